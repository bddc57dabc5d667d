"""Starting, stopping and resuming runs from Python, with the real agent and real environments."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bdpi.runs.config import RunConfig
from bdpi.runs.episodes import read_monitor
from bdpi.runs.errors import RunError
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
    session = prepare(quick(), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []  # preparing writes nothing
    outcome = session.run(listener)
    assert outcome.status == "finished"
    assert listener.heard == ["began", "saving", "drawing the curve", "filming the policy", "ended"]
    assert capfd.readouterr() == ("", "")


def raises(error: type[BaseException]) -> Callable[[], bool]:
    def stop() -> bool:
        raise error

    return stop


def test_a_run_that_is_interrupted_is_saved_and_one_that_is_killed_at_once_cannot_be_resumed(tmp_path: Path) -> None:
    outcome = prepare(quick(), tmp_path / "interrupted").run(should_stop=raises(KeyboardInterrupt))
    assert outcome.status == "interrupted"
    assert outcome.folder.agent.exists()
    assert not outcome.folder.film.exists()  # the user waits for the end
    with pytest.raises(SystemExit):
        prepare(quick(), tmp_path / "killed").run(should_stop=raises(SystemExit))
    with pytest.raises(RunError, match="before anything was saved"):
        prepare_resumption(tmp_path / "killed")


def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    prepare(quick(episodes=3), tmp_path).run()
    with pytest.raises(RunError, match="its 3 episodes"):
        prepare_resumption(tmp_path)
    assert prepare_resumption(tmp_path, episodes=5).run().summary.episodes == 5
    steps = prepare_resumption(tmp_path, steps=200).run().summary.steps
    assert steps == 200
    with pytest.raises(RunError, match="its 200 steps"):
        prepare_resumption(tmp_path)


def test_steps_are_exact_even_where_the_agent_learns_once_per_episode(tmp_path: Path) -> None:
    hyperparameters = {**QUICK, "train_freq": (1, "episode")}
    plan = RunConfig(environment="CartPole-v1", episodes=None, steps=77, hyperparameters=hyperparameters)
    assert prepare(plan, tmp_path).run().summary.steps == 77


@pytest.mark.parametrize("world", ["NotANumber", "LastRewardNotANumber"])
def test_an_environment_that_breaks_loses_nothing(tmp_path: Path, world: str) -> None:
    outcome = prepare(quick(f"odd_worlds:{world}-v0", episodes=100), tmp_path).run()
    assert outcome.status == "failed"
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
    outcome = prepare(quick("odd_worlds:Counting-v0", episodes=2), tmp_path).run(listener)
    assert outcome.status == "finished"
    assert any(text.startswith("note: no film: ") and "rgb_array" in text for text in listener.heard)
    assert not outcome.folder.film.exists()


def test_a_run_that_cannot_save_everything_says_so_and_saves_the_rest(tmp_path: Path) -> None:
    session = prepare(quick(episodes=2), tmp_path)
    session.folder.replay = tmp_path / "missing" / "replay.npz"
    outcome = session.run()
    assert outcome.status == "failed"
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


def test_the_papers_network_for_lunar_lander_is_chosen_and_announced_and_an_id_is_completed() -> None:
    notes: list[str] = []
    session = prepare(RunConfig(environment="LunarLander-v3", hyperparameters=QUICK), note=notes.append)
    assert session.config.policy_kwargs == {"net_arch": [256]}
    assert any("net_arch=[256]" in note for note in notes)
    own = RunConfig(environment="LunarLander-v3", hyperparameters=QUICK, policy_kwargs={"net_arch": [16]})
    assert prepare(own).config.policy_kwargs == {"net_arch": [16]}
    unversioned = RunConfig(environment="CartPole", hyperparameters=QUICK)
    assert prepare(unversioned, note=notes.append).config.environment == "CartPole-v1"
    assert any("CartPole-v1" in note for note in notes)


def test_playing_is_repeatable_and_leaves_the_run_alone(tmp_path: Path) -> None:
    folder = prepare(quick("CartPole-v1", episodes=3), tmp_path).run().folder
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    for deterministic in (True, False):
        first = play(folder, 5, deterministic=deterministic, seed=3)
        assert first == play(folder, 5, deterministic=deterministic, seed=3)
        assert first != play(folder, 5, deterministic=deterministic, seed=4)
    assert before == {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
