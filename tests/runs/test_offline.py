"""Learning from a journal, without an environment."""

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from bdpi import BDPI
from bdpi.agents import AGENTS
from bdpi.agents.journal import Journal, Transition
from bdpi.envs import ControlLoop
from bdpi.runs import offline
from bdpi.runs.config import OfflineConfig
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder
from bdpi.runs.offline import prepare_offline
from bdpi.runs.play import play
from bdpi.runs.progress import Observer
from small import epochs_of

QUICK: dict[str, Any] = {"n_critics": 2, "fit_steps": 4, "batch_size": 32, "critic_iterations": 2, "n_threads": 1}
N = 1500


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of somebody who walks about on FrozenLake at random."""
    path = tmp_path_factory.mktemp("lake") / "lake.sqlite"
    env = gym.make("FrozenLake-v1", is_slippery=False)
    env.action_space.seed(0)
    with Journal(path, env.observation_space, env.action_space) as journal:
        seen, _ = env.reset(seed=0)
        for _ in range(N):
            action = int(env.action_space.sample())
            next_seen, reward, terminated, truncated, _ = env.step(action)
            journal.append(Transition(seen, action, float(reward), next_seen, terminated, truncated))
            seen = env.reset()[0] if terminated or truncated else next_seen
    return path


def plan(journal: Path, **arguments: Any) -> OfflineConfig:
    return OfflineConfig(journal=str(journal), **{"epochs": 20, "hyperparameters": QUICK, **arguments})


class Listener(Observer):
    def __init__(self, tick: Callable[[int, int], object]) -> None:
        self.epoch = tick  # type: ignore[assignment, method-assign]


def policy_of(agent: BDPI) -> np.ndarray[Any, Any]:
    return agent.policy.probabilities(np.arange(16))


def test_it_learns_the_way_over_the_lake(lake, tmp_path):
    """Somebody who walks at random reaches the goal in 1 or 2 of 100 episodes; a way that leads there always does."""
    env = gym.make("FrozenLake-v1", is_slippery=False)
    # Faster than usual: a test has no time for many epochs. Rewards are rare, which makes a third of it.
    faster = {**QUICK, "n_critics": 4, "fit_steps": 10, "learning_rate": 9e-3}
    session = prepare_offline(plan(lake, epochs=250, seed=1, hyperparameters=faster), tmp_path / "out")
    outcome = session.run()
    assert (outcome.status, outcome.summary.epochs) == ("finished", 250)
    agent = BDPI.load(tmp_path / "out" / "agent.zip")
    returns = []
    for seed in range(3):
        seen, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            action, _ = agent.predict(seen, deterministic=True)
            seen, reward, terminated, truncated, _ = env.step(int(action))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    assert returns == [1, 1, 1]


def test_the_folder_says_what_was_done(lake, tmp_path, monkeypatch):
    monkeypatch.setattr(offline, "CHECKPOINT_SECONDS", 0.0)
    ticks: list[tuple[int, int]] = []
    session = prepare_offline(plan(lake), tmp_path / "out", command=["bdpi", "train"], tick=lambda *t: ticks.append(t))
    assert ticks[-1] == (N, N)
    assert not (tmp_path / "out").exists()
    saved: list[int] = []

    def tick(done: int, total: int) -> None:
        ticks.append((done, total))
        if done > 1:
            saved.append(epochs_of(BDPI.load(tmp_path / "out" / "agent.zip")))

    outcome = session.run(Listener(tick))
    assert ticks[-1] == (20, 20)
    assert saved == list(range(1, 20))  # checkpoints
    assert sorted(os.listdir(tmp_path / "out")) == ["agent.zip", "config.json"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["environment"], config["journal"], config["command"]) == (None, str(lake), ["bdpi", "train"])
    assert (config["agent"], config["seed"], config["epochs"], config["transitions"]) == ("bdpi", 0, 20, N)
    assert config["status"] == outcome.status == "finished"
    assert config["result"]["epochs"] == 20
    assert config["hyperparameters"] == {**QUICK, "buffer_size": 20_000}
    assert config["versions"]["numpy"] == np.__version__
    with pytest.raises(RunError, match="already holds"):
        prepare_offline(plan(lake), tmp_path / "out")
    with pytest.raises(RunError, match="no environment"):
        play(outcome.folder, 1)
    assert prepare_offline(plan(lake, epochs=None)).config.epochs == N
    notes: list[str] = []
    small = prepare_offline(plan(lake, hyperparameters={**QUICK, "buffer_size": 100}), note=notes.append)
    assert notes == [f"buffer_size=100: only the last 100 of {N} transitions are learned from"]
    with Journal(lake) as journal:
        expected = [step.action for step in journal.steps(after=N - 100)]
    assert small.agent.replay_buffer.transitions().actions.tolist() == expected


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_learns_from_a_journal_the_same_with_the_same_seed(agent, lake, tmp_path):
    policies = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        session = prepare_offline(plan(lake, agent=agent, epochs=3, seed=seed), tmp_path / name)
        assert session.run().status == "finished"
        loaded = AGENTS[agent].load(tmp_path / name / "agent.zip")
        assert epochs_of(loaded) == 3
        policies.append([policy_of(each).tolist() for each in (session.agent, loaded)])
        assert policies[-1][0] == policies[-1][1]
    assert policies[0] == policies[1] != policies[2]


def test_the_robot_goes_on_with_what_was_learned_and_takes_no_other_journal_for_its_own(lake, tmp_path):
    (tmp_path / "robot.sqlite").write_bytes(lake.read_bytes())
    prepare_offline(plan(tmp_path / "robot.sqlite"), tmp_path / "out").run()
    with Journal(lake) as journal:
        loop = ControlLoop(journal.observation_space, journal.action_space)
    with Journal(tmp_path / "other.sqlite", loop.observation_space, loop.action_space) as journal:
        for _ in range(N + 100):
            journal.append(Transition(1, 2, 0.0, 2, False, False))
    saved = tmp_path / "out" / "agent.zip"
    with pytest.raises(ValueError, match="is not the journal"):
        BDPI.load(saved, env=loop, journal=tmp_path / "other.sqlite")
    for name, held in (("robot", N + 1), ("new", 1)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing was lost
            agent = BDPI.load(saved, env=loop, journal=tmp_path / f"{name}.sqlite")
        assert len(agent.replay_buffer) == agent.num_timesteps == N
        agent.observe(3, agent.act(3), 0.0, 4, False, False)
        assert agent.learn_once()
        assert len(agent.collector.journal) == held


def test_an_environment_to_try_it_in(lake, tmp_path):
    notes: list[str] = []
    outcome = prepare_offline(plan(lake, environment="FrozenLake-v1"), tmp_path / "out", note=notes.append).run()
    assert outcome.summary.test_episodes == offline.TEST_EPISODES
    record = RunFolder.open(tmp_path / "out").read()
    assert record.config.environment == "FrozenLake-v1"
    assert record.status.result == outcome.summary
    assert outcome.summary.mean_return is not None
    assert len(play(outcome.folder, 2)) == 2
    alone = prepare_offline(plan(lake, policy_kwargs=record.config.policy_kwargs), tmp_path / "alone")
    alone.run()
    np.testing.assert_array_equal(
        policy_of(alone.agent), policy_of(BDPI.load(tmp_path / "out" / "agent.zip"))
    )  # nothing was learned from the environment


def test_another_environment_is_refused(lake, tmp_path):
    with pytest.raises(RunError, match="Discrete there, Box"):
        prepare_offline(plan(lake, environment="CartPole-v1"), tmp_path / "out")
    with pytest.raises(RunError, match="n 16 there, 64 here"):
        prepare_offline(plan(lake, environment="FrozenLake8x8-v1"), tmp_path / "out")
    with Journal(tmp_path / "five.sqlite", spaces.Discrete(16), spaces.Discrete(5)) as journal:
        for _ in range(40):
            journal.append(Transition(1, 4, 0.0, 2, False, False))
    with pytest.raises(RunError, match="n 5 there, 4 here"):
        prepare_offline(plan(tmp_path / "five.sqlite", environment="FrozenLake-v1"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_learned_from(lake, tmp_path):
    short = tmp_path / "short.sqlite"
    with Journal(short, spaces.Discrete(16), spaces.Discrete(4)):
        pass
    with pytest.raises(RunError, match="no transitions"):
        prepare_offline(plan(short))
    with Journal(short) as journal:
        for _ in range(5):
            journal.append(Transition(1, 2, 0.0, 2, False, False))
    with pytest.raises(RunError, match="batch_size=5"):
        prepare_offline(plan(short))
    with Journal(short) as journal:
        for _ in range(40):
            journal.append(Transition(1, 2, 0.0, 99, False, False))  # which nobody checks in such a program
    with pytest.raises(RunError, match=r"transition 6.* is 99"):
        prepare_offline(plan(short))
    with pytest.raises(RunError, match="there is no journal"):
        prepare_offline(plan(tmp_path / "nowhere.sqlite", environment="FrozenLake-v1"))
    assert not (tmp_path / "nowhere.sqlite").exists()
    with pytest.raises(RunError, match="ppo"):
        prepare_offline(plan(lake, agent="ppo"))
    with pytest.raises(RunError, match="leave --set journal out"):
        prepare_offline(plan(lake, hyperparameters={**QUICK, "journal": "other.sqlite"}))
    with pytest.raises(RunError, match="--action-bits"):
        prepare_offline(plan(lake, action_bits=4))
    with pytest.raises(RunError, match="n_critics"):
        prepare_offline(plan(lake, hyperparameters={"n_critics": 0}))


def test_stopped_in_the_middle_what_was_learned_is_kept(lake, tmp_path):
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 7

    outcome = prepare_offline(plan(lake, environment="FrozenLake-v1"), tmp_path / "out").run(should_stop=should_stop)
    assert (outcome.status, outcome.summary.epochs, outcome.summary.test_episodes) == ("interrupted", 7, 0)
    assert epochs_of(BDPI.load(tmp_path / "out" / "agent.zip")) == 7
    assert RunFolder.open(tmp_path / "out").read().status.state == "interrupted"


def test_an_error_in_learning_is_the_outcome(lake, tmp_path):
    session = prepare_offline(plan(lake), tmp_path / "out")
    session.agent.replay_buffer.rewards[:] = np.nan
    outcome = session.run()
    assert outcome.status == "failed"
    assert "diverged" in (outcome.error or "")
    assert "diverged" in (tmp_path / "out" / "error.txt").read_text()


def test_pictures_with_their_channels_last(tmp_path):
    space = spaces.Box(0, 255, (36, 40, 3), np.uint8)
    space.seed(0)
    with Journal(tmp_path / "camera.sqlite", space, spaces.Discrete(2)) as journal:
        for number in range(8):
            journal.append(Transition(space.sample(), number % 2, 1.0, space.sample(), number == 7, False))
        first = next(journal.steps()).observation
    few = {"n_critics": 1, "fit_steps": 1, "batch_size": 4, "critic_iterations": 1, "buffer_size": 8}
    session = prepare_offline(plan(tmp_path / "camera.sqlite", epochs=1, hyperparameters=few), tmp_path / "out")
    held = session.agent.replay_buffer.transitions().observations
    np.testing.assert_array_equal(held[0], first.transpose(2, 0, 1))
    assert session.run().status == "finished"


def test_masks_and_dicts(tmp_path):
    space = spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "mode": spaces.Discrete(3)})
    space.seed(0)
    mask = np.array([True, False, True])
    with Journal(tmp_path / "arm.sqlite", space, spaces.Discrete(3)) as journal:
        for number in range(40):
            journal.append(Transition(space.sample(), 0, 1.0, space.sample(), number % 9 == 8, False, 0.5, mask, mask))
    session = prepare_offline(plan(tmp_path / "arm.sqlite", epochs=3), tmp_path / "out")
    held = session.agent.replay_buffer.transitions()
    assert held.masks is not None
    assert np.array_equal(held.masks, np.tile(mask, (40, 1)))
    assert session.run().status == "finished"
