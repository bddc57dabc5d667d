"""Starting, stopping and resuming runs from Python, with the real agent and real environments."""

import json
from pathlib import Path

import numpy as np
import pytest

from bdpi.runs import recorder
from bdpi.runs.config import RunConfig
from bdpi.runs.episodes import Summary, read_monitor
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder
from bdpi.runs.play import play
from bdpi.runs.progress import Observer, Progress, RunInfo
from bdpi.runs.train import prepare, prepare_resumption

QUICK = {"n_critics": 2, "fit_steps": 2, "batch_size": 16, "n_threads": 1}


def quick(environment: str = "FrozenLake-v1", episodes: int | None = 10, steps: int | None = None) -> RunConfig:
    return RunConfig(environment=environment, episodes=episodes, steps=steps, hyperparameters=QUICK)


class Listener(Observer):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def began(self, info: RunInfo, progress: Progress) -> None:
        self.heard.append("began")

    def doing(self, what: str) -> None:
        self.heard.append(what)

    def note(self, text: str) -> None:
        self.heard.append(f"note: {text}")

    def ended(self) -> None:
        self.heard.append("ended")


def test_training_is_silent_and_reports_to_its_observer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    listener = Listener()
    outcome = prepare(quick(), tmp_path / "run").run(listener)
    assert outcome.status == "finished"
    assert listener.heard == ["began", "saving", "drawing the curve", "filming the policy", "ended"]
    assert capfd.readouterr() == ("", "")


def test_preparing_writes_nothing(tmp_path: Path) -> None:
    prepare(quick(), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_the_same_seed_gives_the_same_run_and_another_one_does_not(tmp_path: Path) -> None:
    returns = []
    for number, seed in enumerate((1, 1, 2)):
        plan = RunConfig(environment="CartPole-v1", seed=seed, episodes=8, hyperparameters=QUICK)
        folder = prepare(plan, tmp_path / str(number)).run().folder
        returns.append(read_monitor(folder.monitor).returns)
    assert returns[0] == returns[1]
    assert returns[0] != returns[2]


def test_a_stopped_run_resumes_with_its_agent_and_its_experience(tmp_path: Path) -> None:
    asked = 0

    def after_60_steps() -> bool:
        nonlocal asked
        asked += 1
        return asked >= 60

    first = prepare(quick("CartPole-v1", episodes=12), tmp_path / "run")
    outcome = first.run(should_stop=after_60_steps)
    assert outcome.status == "interrupted"
    assert outcome.summary.steps == 60
    assert not outcome.folder.film.exists()  # somebody waits for the end

    second = prepare_resumption(tmp_path / "run")
    assert second.agent.num_timesteps == 60
    assert len(second.agent.replay_buffer) == len(first.agent.replay_buffer) == 60
    for name, parameter in first.agent.policy.state_dict().items():
        assert np.array_equal(parameter, second.agent.policy.state_dict()[name])
    assert second.run().status == "finished"

    episodes = read_monitor(outcome.folder.monitor)
    assert len(episodes) == 12
    assert episodes.seconds == sorted(episodes.seconds)
    status = outcome.folder.read().status
    assert status.state == "finished"
    assert isinstance(status.result, Summary)
    assert status.result.steps >= sum(episodes.lengths)
    assert len(status.resumed) == 1


def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    prepare(quick(episodes=3), tmp_path).run()
    with pytest.raises(RunError, match=r"already has its 3 episodes.*--episodes"):
        prepare_resumption(tmp_path)
    assert prepare_resumption(tmp_path, episodes=5).run().summary.episodes == 5
    steps = prepare_resumption(tmp_path, steps=200).run().summary.steps
    assert steps == 200
    with pytest.raises(RunError, match=r"already has its 200 steps.*--steps"):
        prepare_resumption(tmp_path)


def test_steps_are_exact_even_where_the_agent_learns_once_per_episode(tmp_path: Path) -> None:
    hyperparameters = {**QUICK, "train_freq": (1, "episode")}
    plan = RunConfig(environment="CartPole-v1", episodes=None, steps=77, hyperparameters=hyperparameters)
    assert prepare(plan, tmp_path).run().summary.steps == 77


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "CHECKPOINT_SECONDS", 0.0)
    saved: list[int] = []
    session = prepare(quick("CartPole-v1", episodes=200), tmp_path)

    def killed() -> bool:
        config = json.loads((tmp_path / "config.json").read_text())
        n_saved = config["result"]["episodes"] if config["result"] else 0
        if n_saved >= 2 and len(session.progress.episodes) > n_saved:
            saved.append(n_saved)
            raise SystemExit  # as good as a power failure: nothing is saved any more
        return False

    with pytest.raises(SystemExit):
        session.run(should_stop=killed)
    folder = RunFolder(tmp_path)
    assert folder.read().status.state == "running"
    n_seen, n_saved = len(read_monitor(folder.monitor)), saved[0]
    assert n_seen > n_saved
    # What the saved agent has not seen does not count.
    outcome = prepare_resumption(tmp_path, episodes=n_saved + 3).run()
    assert outcome.status == "finished"
    assert len(read_monitor(folder.monitor)) == n_saved + 3


def test_a_run_killed_before_its_first_checkpoint_cannot_be_resumed(tmp_path: Path) -> None:
    def killed() -> bool:
        raise SystemExit

    with pytest.raises(SystemExit):
        prepare(quick(), tmp_path).run(should_stop=killed)
    with pytest.raises(RunError, match="before anything was saved"):
        prepare_resumption(tmp_path)


def test_a_keyboard_interrupt_without_handlers_saves_too(tmp_path: Path) -> None:
    def interrupted() -> bool:
        raise KeyboardInterrupt

    outcome = prepare(quick(), tmp_path).run(should_stop=interrupted)
    assert outcome.status == "interrupted"
    assert outcome.folder.agent.exists()


@pytest.mark.parametrize("world", ["NotANumber", "LastRewardNotANumber"])
def test_an_environment_that_breaks_loses_nothing(tmp_path: Path, world: str) -> None:
    listener = Listener()
    plan = RunConfig(environment=f"odd_worlds:{world}-v0", episodes=100, hyperparameters=QUICK)
    outcome = prepare(plan, tmp_path).run(listener)
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert "not finite: nan" in outcome.error
    folder = outcome.folder
    assert "Traceback" in folder.error.read_text()
    assert read_monitor(folder.monitor).returns == [5.0, 5.0, 5.0]
    assert folder.curve.exists()
    assert folder.read().status.state == "failed"
    resumed = prepare_resumption(tmp_path, episodes=6)
    assert len(resumed.agent.replay_buffer) == (17 if world == "NotANumber" else 19)
    assert resumed.run().status == "finished"  # the new environment has not broken yet
    assert read_monitor(folder.monitor).returns == [5.0] * 6
    assert not folder.error.exists()


def test_what_cannot_be_drawn_is_only_noted(tmp_path: Path) -> None:
    listener = Listener()
    outcome = prepare(RunConfig(environment="odd_worlds:Counting-v0", episodes=2, hyperparameters=QUICK), tmp_path).run(
        listener
    )
    assert outcome.status == "finished"
    assert any(text.startswith("note: no film: ") and "rgb_array" in text for text in listener.heard)
    assert not outcome.folder.film.exists()


def test_a_run_that_cannot_save_everything_says_so_and_saves_the_rest(tmp_path: Path) -> None:
    session = prepare(quick(episodes=2), tmp_path)
    session.folder.replay = tmp_path / "missing" / "replay.npz"
    outcome = session.run()
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert "replay.npz could not be saved" in outcome.error
    assert outcome.folder.read().status.state == "failed"
    assert outcome.folder.agent.exists()


@pytest.mark.parametrize(
    ("world", "policy"), [("Counting", "MlpPolicy"), ("Pictures", "CnnPolicy"), ("Several", "MultiInputPolicy")]
)
def test_the_network_fits_the_observations_and_the_run_can_be_resumed(tmp_path: Path, world: str, policy: str) -> None:
    quickest = {"n_critics": 1, "critic_iterations": 1, "fit_steps": 1, "batch_size": 8}  # convolutions are slow
    session = prepare(RunConfig(environment=f"odd_worlds:{world}-v0", episodes=5, hyperparameters=quickest), tmp_path)
    assert session.status.policy == policy
    assert session.run().status == "finished"
    assert prepare_resumption(tmp_path, episodes=7).run().summary.steps == 35


def test_the_papers_network_for_lunar_lander_is_chosen_and_announced() -> None:
    notes: list[str] = []
    session = prepare(RunConfig(environment="LunarLander-v3", hyperparameters=QUICK), note=notes.append)
    assert session.config.policy_kwargs == {"net_arch": [256]}
    assert any("net_arch=[256]" in note for note in notes)
    own = prepare(
        RunConfig(environment="LunarLander-v3", hyperparameters=QUICK, policy_kwargs={"net_arch": [16]}),
        note=notes.append,
    )
    assert own.config.policy_kwargs == {"net_arch": [16]}


def test_an_id_without_version_is_completed() -> None:
    notes: list[str] = []
    assert (
        prepare(RunConfig(environment="CartPole", hyperparameters=QUICK), note=notes.append).config.environment
        == "CartPole-v1"
    )
    assert any("CartPole-v1" in note for note in notes)


def test_playing_is_repeatable_and_leaves_the_run_alone(tmp_path: Path) -> None:
    folder = prepare(quick("CartPole-v1", episodes=3), tmp_path).run().folder
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    for deterministic in (True, False):
        first = play(folder, 5, deterministic=deterministic, seed=3)
        assert first == play(folder, 5, deterministic=deterministic, seed=3)
        assert first != play(folder, 5, deterministic=deterministic, seed=4)
    assert before == {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
