"""A run that was stopped or killed, and resumed, has the same episodes as one that was not."""

import json
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bdpi.agents import AGENTS
from bdpi.agents.journal import Journal
from bdpi.envs.wrappers import BinaryActionSearch, OffPolicyNoise, Retracing
from bdpi.runs import recorder
from bdpi.runs.config import RunConfig
from bdpi.runs.episodes import read_monitor
from bdpi.runs.errors import RunError
from bdpi.runs.train import prepare, prepare_resumption

SMALL = {"n_critics": 3, "critic_iterations": 2, "fit_steps": 2, "batch_size": 32, "buffer_size": 150}


def plan_of(environment: str = "FrozenLake-v1", **others: Any) -> RunConfig:
    others = {"episodes": 40, "seed": 3, "hyperparameters": SMALL, **others}
    return RunConfig(environment=environment, **others)


def result_of(path: Path) -> tuple[Any, ...]:
    folder = prepare_resumption(path, episodes=10_000, trust=True).folder  # only to find it, nothing is written
    files = [file for file in (folder.agent, folder.best) if file.exists()]
    agents = [AGENTS[folder.read().config.agent].load(file) for file in files]
    states = [agent.agent_learner.learner.state_dict() for agent in agents]
    learned = [{name: array.tobytes() for name, array in state.items()} for state in states]
    episodes = read_monitor(folder.monitor)
    others = [read_monitor(file).returns for file in (folder.test, folder.evaluations) if file.exists()]
    steps = folder.read().status.result.steps
    return episodes.returns, episodes.lengths, others, steps, agents[0].num_timesteps, learned


def uninterrupted(plan: RunConfig, path: Path) -> tuple[Any, ...]:
    assert prepare(plan, path).run().status == "finished"
    return result_of(path)


def interrupted(plan: RunConfig, path: Path, seed: int) -> tuple[Any, ...]:
    """Stopped at random steps, again and again."""
    rng = np.random.default_rng(seed)
    status, sessions = "new", 0
    longest = 119 if plan.eval_every is None or plan.action_bits is None else 700  # an evaluation is played whole
    while status != "finished":
        left = iter(range(int(rng.integers(0, longest))))
        session = prepare(plan, path) if status == "new" else prepare_resumption(path)
        status = session.run(should_stop=lambda left=left: next(left, None) is None).status
        sessions += 1
    assert sessions > (3 if plan.n_envs == 1 and plan.eval_every is None else 1)
    return result_of(path)


PLANS = {
    **{agent: plan_of(agent=agent) for agent in AGENTS},
    "continuous actions": plan_of("Pendulum-v1", episodes=2, action_bits=2),
    "noise": plan_of(agent="abcdqn", off_policy_noise=0.2),
    "remembered tests": plan_of(off_policy_noise=0.2, remember_tests=True),
    "Box2D": plan_of("LunarLander-v3", episodes=4, policy_kwargs={"net_arch": [8]}),
    "a stack of frames": plan_of("odd_worlds:Stacked-v0", episodes=24),
    "frames of the agent": plan_of("CartPole-v1", agent="abcdqn", hyperparameters={**SMALL, "n_stack": 3}),
    "several steps per epoch": plan_of(hyperparameters={**SMALL, "train_freq": 4}),
    "an epoch per episode": plan_of("CartPole-v1", hyperparameters={**SMALL, "train_freq": (1, "episode")}),
    "several environments": plan_of(n_envs=3, eval_every=40, eval_episodes=2),
    "several, with noise": plan_of(agent="abcdqn", n_envs=2, off_policy_noise=0.2, eval_every=30, eval_episodes=2),
    "several searches": plan_of("Pendulum-v1", episodes=3, action_bits=2, n_envs=2, eval_every=150, eval_episodes=1),
    "several tables": plan_of(agent="tabular-bdpi", n_envs=2, eval_every=40),
    "evaluations": plan_of(agent="bootstrapped-dqn", eval_every=33, eval_episodes=2),
    "wrappers": plan_of(
        episodes=12, env_kwargs={"is_slippery": False}, wrappers=["odd_wrappers:Longer"], eval_every=60
    ),
}


SMALLER = ("bdpi", "abcdqn", "remembered tests", "continuous actions", "frames of the agent", "evaluations", "wrappers")
SMALLER += ("several environments", "several, with noise", "several searches", "several tables")


@pytest.mark.parametrize(
    "what", [what if what in SMALLER else pytest.param(what, marks=pytest.mark.full) for what in PLANS]
)
def test_an_interrupted_run_equals_an_uninterrupted_one(tmp_path: Path, what: str) -> None:
    whole = uninterrupted(PLANS[what], tmp_path / "whole")
    assert interrupted(PLANS[what], tmp_path / "parts", seed=0) == whole


KILLED = {"agent": "abcdqn"}, {"n_envs": 2, "eval_every": 20, "eval_episodes": 2}  # of which best.zip is one more file


@pytest.mark.parametrize("others", KILLED)
@pytest.mark.parametrize(("episodes", "least"), [(12, 1), pytest.param(40, 6, marks=pytest.mark.full)])
def test_a_killed_run_equals_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: dict[str, Any], episodes: int, least: int
) -> None:
    """Killed between the files of a checkpoint, too: ``os.replace`` is what puts each in its place."""
    plan = plan_of(episodes=episodes, **others)
    whole = uninterrupted(plan, tmp_path / "whole")
    monkeypatch.setattr(recorder, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(recorder, "_CHECKPOINT_SHARE", 1e9)  # after every step
    rng = np.random.default_rng(1)
    path = tmp_path / "killed"
    original, kills, left = os.replace, 0, 0

    def replace_or_die(*paths: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise SystemExit
        original(*paths)

    monkeypatch.setattr(os, "replace", replace_or_die)
    done = 0
    while done < episodes:
        left = int(rng.integers(8, 200))
        try:
            session = prepare_resumption(path) if path.exists() else prepare(plan, path)
            session.run()
        except SystemExit:
            kills += 1
        left = 0
        done = json.loads((path / "config.json").read_text())["result"]["episodes"]
    assert kills >= least
    assert result_of(path) == whole


def test_a_run_that_was_killed_after_its_last_episode_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(recorder, "_CHECKPOINT_SHARE", 1e9)  # after every step, the last one, too
    session = prepare(plan_of(episodes=2), tmp_path)

    def die(*_: Any) -> None:
        raise SystemExit

    session._look_back = die  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        session.run()
    assert session.folder.read().status.state == "running"
    for _ in range(2):
        with pytest.raises(RunError, match="already has its 2 episodes"):
            prepare_resumption(tmp_path)
        assert session.folder.read().status.state == "finished"
    assert prepare_resumption(tmp_path, episodes=3).run().status == "finished"


class Clock(gym.Env[Any, Any]):
    """Depends on more than its actions, as the world does."""

    observation_space = gym.spaces.Box(-1, 1e9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    retraceable = True
    ticks = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observe(), 1.0, False, False, {}

    def _observe(self) -> Any:
        Clock.ticks += 1
        return np.array([Clock.ticks], np.float32)


def test_an_environment_that_cannot_be_repeated_begins_a_new_episode() -> None:
    env = Retracing(Clock())
    env.reset(seed=0)
    env.step(0)
    other = Retracing(Clock())
    other.follow(env.trace())
    before = Clock.ticks
    observation, info = other.reset(seed=5)
    assert other.followed is False
    assert "continued_episode" not in info
    assert observation == before + 3  # two of them were the attempt
    assert other.trace()["actions"] == []


def test_all_generators_of_all_layers_come_back() -> None:
    def make() -> Retracing:
        return Retracing(OffPolicyNoise(BinaryActionSearch(gym.make("Pendulum-v1"), bits=3), 0.5))

    env = make()
    env.reset(seed=4)
    env.reset()
    for _ in range(7):
        env.step(1)
    trace = json.loads(json.dumps(env.trace()))
    other = make()
    other.follow(trace)
    other.reset(seed=99)  # the seed is that of another episode
    assert other.followed
    for _ in range(20):
        np.testing.assert_array_equal(env.step(0)[0], other.step(0)[0])
    np.testing.assert_array_equal(env.reset()[0], other.reset()[0])


def test_a_real_robot_is_never_moved_just_to_come_back(tmp_path: Path) -> None:
    plan = plan_of("odd_worlds:Counting-v0", episodes=20)
    session = prepare(plan, tmp_path)
    assert not isinstance(session.environment, Retracing)
    asked = iter(range(7))
    assert session.run(should_stop=lambda: next(asked, None) is None).status == "interrupted"
    assert json.loads((tmp_path / "episode.json").read_text()) is None
    assert prepare_resumption(tmp_path).run().status == "finished"


def test_a_resumed_run_goes_on_with_its_journal_and_its_autosave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan_with(name: str) -> RunConfig:
        files = {"journal": f"{name}.sqlite", "autosave": f"{name}.zip", "autosave_minutes": 1e-6}
        return plan_of(episodes=15, hyperparameters={**SMALL, **files})

    def journal_of(name: str) -> list[tuple[Any, ...]]:
        with Journal(tmp_path / f"{name}.sqlite", read_only=True) as journal:
            return [(int(step.observation), step.action, int(step.next_observation)) for step in journal.steps()]

    monkeypatch.chdir(tmp_path)
    whole = uninterrupted(plan_with("whole"), tmp_path / "whole")
    rng, status, path = np.random.default_rng(2), "new", tmp_path / "parts"
    while status != "finished":
        (tmp_path / "parts.zip").unlink(missing_ok=True)
        asked = iter(range(int(rng.integers(20, 60))))
        session = prepare(plan_with("parts"), path) if status == "new" else prepare_resumption(path, trust=True)
        session.draws = False
        monkeypatch.chdir(path.parent.parent)  # a run may be resumed from anywhere
        status = session.run(should_stop=lambda asked=asked: next(asked, None) is None).status
        assert (tmp_path / "parts.zip").exists()
        del session
    assert result_of(path) == whole
    assert journal_of("parts") == journal_of("whole")
    assert len(journal_of("whole")) == whole[3]


def test_a_killed_run_goes_on_with_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as if it had not been killed, except that the steps since its last checkpoint are in the journal twice."""
    monkeypatch.setattr(recorder, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(recorder, "_CHECKPOINT_SHARE", 1e-9)  # after the first step, and never again
    files = {name: {"journal": str(tmp_path / f"{name}.sqlite")} for name in ("whole", "killed")}
    plans = {name: plan_of(episodes=12, hyperparameters={**SMALL, **file}) for name, file in files.items()}
    whole = uninterrupted(plans["whole"], tmp_path / "whole")
    asked = iter(range(50))

    def die() -> bool:
        if next(asked, None) is None:
            raise SystemExit
        return False

    with pytest.raises(SystemExit):
        prepare(plans["killed"], tmp_path / "killed").run(should_stop=die)
    session = prepare_resumption(tmp_path / "killed", trust=True)
    session.draws = False
    assert session.run().status == "finished"
    assert result_of(tmp_path / "killed") == whole
    with Journal(tmp_path / "killed.sqlite", read_only=True) as journal:
        assert len(journal) == whole[3] + 50
