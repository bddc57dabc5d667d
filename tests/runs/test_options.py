"""Options of ``bdpi train`` that Stable-Baselines3's users know: what they do, and that they survive resumption."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv

import bdpi
from bdpi.agents import AGENTS
from bdpi.runs.config import RunConfig
from bdpi.runs.episodes import read_monitor
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder
from bdpi.runs.play import open_agent, play
from bdpi.runs.settings import parse_env_kwargs
from bdpi.runs.tester import evaluation_means
from bdpi.runs.train import prepare, prepare_resumption
from command_line import bdpi_command, succeeds

SMALL = {"n_critics": 2, "critic_iterations": 1, "fit_steps": 1, "batch_size": 16, "n_threads": 1}


def plan_of(environment: str = "FrozenLake-v1", **more: Any) -> RunConfig:
    return RunConfig(environment=environment, **{"episodes": 12, "seed": 3, "hyperparameters": SMALL, **more})


def learned(path: Path, file: str = "agent.zip") -> dict[str, bytes]:
    folder = RunFolder(path)
    agent = AGENTS[folder.read().config.agent].load(path / file)
    return {name: array.tobytes() for name, array in agent.agent_learner.learner.state_dict().items()}


# -- arguments and wrappers


def test_arguments_of_environments_are_written_as_in_the_rl_zoo_or_as_json() -> None:
    texts = ["is_slippery:False", "map_name:8x8", '{"gain": 0.5, "rows": ["SF", "FG"]}', "{deep: true}"]
    assert parse_env_kwargs(texts) == {
        "is_slippery": False,
        "map_name": "8x8",
        "gain": 0.5,
        "rows": ["SF", "FG"],
        "deep": True,
    }
    for text, says in (("is_slippery", "name:value"), ("{3: 4}", "JSON"), ("render_mode:human", "render_mode")):
        with pytest.raises(RunError, match=says):
            parse_env_kwargs([text])


def test_arguments_and_wrappers_reach_all_environments_of_a_run(tmp_path: Path) -> None:
    plan = plan_of(
        env_kwargs={"is_slippery": False, "desc": ["SFG"]},
        wrappers=["odd_wrappers:Longer", "gymnasium.wrappers:TransformReward"],
    )
    with pytest.raises(RunError, match=r"TransformReward cannot be made.*func"):
        prepare(plan, tmp_path / "none")
    plan = plan.changed(wrappers=["odd_wrappers:Longer"], eval_every=10, eval_episodes=2)
    assert prepare(plan, tmp_path).run().status == "finished"
    for path in (tmp_path / "monitor.csv", tmp_path / "eval.csv"):
        assert set(read_monitor(path).returns) <= {0.0, 10.0}  # the wrapper counts a goal tenfold
    assert prepare_resumption(tmp_path, episodes=13).config.env_kwargs == plan.env_kwargs
    assert {episode.episode_return for episode in play(RunFolder(tmp_path), 3)} <= {0.0, 10.0}
    peer = prepare(plan.changed(agent="dqn", eval_every=None, hyperparameters={}), tmp_path / "peer")
    assert "Longer" in str(peer.environment)


def test_what_is_wrong_with_arguments_and_wrappers_is_said() -> None:
    for more, says in (
        ({"env_kwargs": {"slippery": True}}, "with slippery=True.*unexpected keyword"),
        ({"env_kwargs": {"desc": np.zeros(3)}}, "numbers, texts"),
        ({"wrappers": ["gymnasium.wrappers.FlattenObservation"]}, "mean gymnasium.wrappers:FlattenObservation"),
        ({"wrappers": ["gymnasium.wrappers:Nothing"]}, "no Nothing in gymnasium.wrappers"),
        ({"wrappers": ["os:system"]}, "no subclass of gymnasium.Wrapper"),
        ({"wrappers": ["no_such_module:Wrapper"]}, "no module no_such_module"),
    ):
        with pytest.raises(RunError, match=says):
            prepare(plan_of(**more))


def test_what_a_file_gives_an_environment_is_trusted_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = prepare(plan_of(episodes=2), tmp_path)
    session.draws = False
    session.run()
    folder = session.folder
    text = json.loads(folder.config.read_text())
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('it ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    for changes in (
        {"wrappers": ["evil:Wrapper"]},
        {"env_kwargs": {"file": "/etc/passwd"}},
        {"env_kwargs": {"size": 10**9}},
        {"env_kwargs": {"rows": ["a"] * 1000}},
        {"env_kwargs": {"deep": {"file": ["../x"]}}},
    ):
        folder.config.write_text(json.dumps({**text, **changes}))
        for use in (lambda: open_agent(folder), lambda: prepare_resumption(tmp_path, episodes=3)):
            with pytest.raises(RunError, match="--trust"):
                use()
    assert not (tmp_path / "it ran").exists()
    folder.config.write_text(json.dumps({**text, "env_kwargs": {"is_slippery": False, "map_name": "4x4"}}))
    assert open_agent(folder) is not None


# -- several environments


def test_several_environments_learn_as_often_from_each_transition(tmp_path: Path) -> None:
    plans = [plan_of("CartPole-v1", episodes=None, steps=200, n_envs=n) for n in (1, 4)]
    sessions = [prepare(plan, tmp_path / str(plan.n_envs)) for plan in plans]
    assert [session.run().status for session in sessions] == ["finished"] * 2
    one, four = (session.agent for session in sessions)
    assert isinstance(sessions[1].environment, DummyVecEnv)
    assert (one.num_timesteps, four.num_timesteps) == (200, 200)
    assert abs(one._n_updates - four._n_updates) <= 16 + 4  # before there is a batch, neither learns
    assert read_monitor(tmp_path / "4" / "monitor.csv").lengths == sessions[1].progress.episodes.lengths
    assert len(play(RunFolder(tmp_path / "4"), 2)) == 2


def test_agents_of_this_package_alone_step_several_environments_evaluate_and_film() -> None:
    for more, option in (
        ({"eval_every": 5}, "--eval-every"),
        ({"film_every": 5}, "--film"),
    ):
        with pytest.raises(RunError, match=option):
            prepare(plan_of(agent="dqn", hyperparameters={}, **more))
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in more.items()]
        result = bdpi_command("train", "--offline", "robot.sqlite", *arguments)
        assert option in result.output
    with pytest.raises(RunError, match=r"cannot be drawn.*--film-every"):
        prepare(plan_of("odd_worlds:Counting-v0", film_every=2))
    with pytest.raises(RunError, match="at least 1"):
        plan_of(eval_every=0)


# -- evaluations and films


def test_the_best_agent_is_kept_and_evaluating_changes_no_training(tmp_path: Path) -> None:
    plain, watched = plan_of(episodes=40), plan_of(episodes=40, eval_every=50, eval_episodes=3, film_every=20)
    for name, plan in (("plain", plain), ("watched", watched)):
        assert prepare(plan, tmp_path / name).run().status == "finished"
    assert learned(tmp_path / "plain") == learned(tmp_path / "watched")
    folder = RunFolder(tmp_path / "watched")
    assert [path.exists() for path in map(folder.film_after, (20, 30, 40))] == [True, False, True]
    means = evaluation_means(read_monitor(folder.evaluations), 3)
    assert len(means) == folder.read_run()[1].result.steps // 50  # type: ignore[union-attr]
    best = bdpi.BDPI.load(folder.best)
    assert best.num_timesteps == 50 * (1 + int(np.argmax(means)))
    folder.agent = folder.best
    assert len(play(folder, 1)) == 1


def test_evaluations_that_are_overdue_can_be_stopped(tmp_path: Path) -> None:
    """They come before the first step of a run that is resumed, and Ctrl-C had to be pressed twice."""
    plan = plan_of(episodes=None, steps=100, eval_every=50, eval_episodes=3)
    assert prepare(plan, tmp_path / "run").run().status == "finished"
    folder = RunFolder(tmp_path / "run")
    whole = json.loads(folder.config.read_text())
    folder.config.write_text(json.dumps({**whole, "evaluations": 3}))
    outcome = prepare_resumption(folder.path, steps=150).run(should_stop=lambda: True)
    assert (outcome.status, outcome.summary.steps, folder.read().status.evaluations) == ("interrupted", 100, 3)
    assert prepare_resumption(folder.path).run().status == "finished"
    assert len(read_monitor(folder.evaluations)) == 9


def test_a_file_asks_for_no_more_evaluations_than_a_run_may_lack(tmp_path: Path) -> None:
    plan = plan_of(episodes=None, steps=100, eval_every=50, eval_episodes=3)
    assert prepare(plan, tmp_path / "run").run().status == "finished"
    folder = RunFolder(tmp_path / "run")
    whole = json.loads(folder.config.read_text())
    folder.config.write_text(json.dumps({**whole, "eval_every": 1, "result": {**whole["result"], "steps": 10**12}}))
    with pytest.raises(RunError, match=r"10{12} steps had 10{12} evaluations of 3 episodes, and 6 of these are there"):
        prepare_resumption(folder.path, steps=2 * 10**12)


def test_the_command_line_has_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bdpi", "train"])
    words = "train FrozenLake-v1 --steps 90 --env-kwargs is_slippery:False --wrapper odd_wrappers:Longer --n-envs 3"
    words += " --eval-every 30 --eval-episodes 1 --film-every 25 --out run --set n_critics=2 --set fit_steps=1"
    succeeds(*words.split())
    config = RunFolder(tmp_path / "run").read_run()[0]
    assert (config.env_kwargs, config.wrappers) == ({"is_slippery": False}, ["odd_wrappers:Longer"])
    assert (config.n_envs, config.eval_every, config.eval_episodes, config.film_every) == (3, 30, 1, 25)
    succeeds("play", "run", "--best", "--episodes", "1", "--no-watch")
