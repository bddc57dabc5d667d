"""Overridden actions are reported, and the agent learns from what was executed."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_checker import check_env

from bdpi import BDPI, PAPER
from bdpi.envs.table import FORWARD, TURN_LEFT, TURN_RIGHT
from bdpi.envs.wrappers import ActionOverride, BackupPolicy, BinaryActionSearch, OffPolicyNoise, table_backup


class Recorder(gym.Env[Any, Any]):
    """Observes the number of steps, and keeps the actions. Its info is always the same dictionary."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float32)

    def __init__(self, n: int = 4, start: int = 0, mask: list[int] | None = None) -> None:
        self.action_space = spaces.Discrete(n, start=start)
        self.info: dict[str, Any] = {} if mask is None else {"action_mask": np.array(mask, np.int8)}
        self.actions: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.actions = []
        return np.zeros(1, np.float32), self.info

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.actions.append(int(action))
        return np.array([len(self.actions)], np.float32), 0.0, False, len(self.actions) % 50 == 0, self.info


def executed(env: gym.Env[Any, Any], action: int, n_steps: int, seed: int | None = 0) -> list[int]:
    """What ``info`` says was executed, where the agent always wants the same."""
    env.reset(seed=seed)
    return [env.step(np.int64(action))[4]["executed_action"] for _ in range(n_steps)]


# The base class


def test_the_base_class_executes_and_reports_the_agents_action() -> None:
    recorder = Recorder()
    assert executed(ActionOverride(recorder), 3, 5) == recorder.actions == [3] * 5
    assert recorder.info == {}  # the environment's own is not touched


def test_override_sees_what_the_agent_saw_last() -> None:
    class Spy(ActionOverride):
        seen: list[tuple[float, int]] = []  # noqa: RUF012

        def override(self, observation: Any, action: int) -> int:
            self.seen.append((float(observation[0]), action))
            return 0

    assert executed(Spy(Recorder()), 2, 3) == [0, 0, 0]
    assert Spy.seen == [(0.0, 2), (1.0, 2), (2.0, 2)]


def test_nested_overrides_report_what_really_happened() -> None:
    recorder = Recorder()
    env = BackupPolicy(BackupPolicy(recorder, lambda _, action: 3 if action == 2 else action), lambda *_: 2)
    env.reset()
    info = env.step(2)[4]
    assert recorder.actions == [3]
    assert info["executed_action"] == 3
    assert info["overridden"] is True  # though the outer one agreed with the agent


def test_continuous_actions_are_overridden_as_decisions() -> None:
    pendulum = gym.make("Pendulum-v1")
    with pytest.raises(ValueError, match="BinaryActionSearch"):
        OffPolicyNoise(pendulum, 0.2)
    env = OffPolicyNoise(BinaryActionSearch(pendulum), 1.0)
    env.reset(seed=0)
    infos = [env.step(0)[4] for _ in range(6)]
    assert {info["executed_action"] for info in infos} == {0, 1}
    assert [info.get("discount") for info in infos] == [1.0] * 5 + [None]


@pytest.mark.parametrize("start", [0, 3, -2])
def test_the_agent_remembers_what_was_executed(start: int) -> None:
    recorder = Recorder(start=start)
    env = BackupPolicy(recorder, lambda _, action: start + 1)
    agent = BDPI("MlpPolicy", env, n_critics=1, fit_steps=1, critic_iterations=1, batch_size=8, seed=0)
    agent.learn(40)
    assert recorder.actions == [start + 1] * 40
    assert (agent.replay_buffer.transitions().actions == 1).all()  # counted from 0


# Noise


def test_noise_replaces_as_many_actions_as_it_should() -> None:
    actions = np.array(executed(OffPolicyNoise(Recorder(n=4), 0.2), 0, 20_000))
    # A random action is the agent's own one time in four. Five standard deviations are 0.013.
    assert np.mean(actions != 0) == pytest.approx(0.2 * 3 / 4, abs=0.013)
    np.testing.assert_allclose(np.bincount(actions)[1:] / len(actions), 0.05, atol=0.008)


@pytest.mark.parametrize("start", [0, 7, -3])
def test_noise_takes_all_actions_of_a_space_with_any_start(start: int) -> None:
    recorder = Recorder(n=3, start=start)
    assert set(executed(OffPolicyNoise(recorder, 1.0), start, 100)) == {start, start + 1, start + 2}


@pytest.mark.parametrize("start", [0, 5])
def test_noise_respects_action_masks(start: int) -> None:
    recorder = Recorder(n=4, start=start, mask=[0, 1, 0, 1])
    assert set(executed(OffPolicyNoise(recorder, 1.0), start + 1, 100)) == {start + 1, start + 3}


def test_noise_can_be_switched_off_for_an_episode() -> None:
    env = OffPolicyNoise(Recorder(), 1.0)
    assert env.active
    env.active = False
    assert executed(env, 2, 50) == [2] * 50
    env.active = True
    assert executed(env, 2, 50) != [2] * 50


def test_the_seed_of_a_reset_makes_noise_repeatable() -> None:
    env = OffPolicyNoise(Recorder(), 0.5)
    first = executed(env, 0, 100, seed=3)
    assert executed(env, 0, 100, seed=None) != first  # it goes on, and does not begin again
    assert executed(env, 0, 100, seed=3) == first
    assert executed(env, 0, 100, seed=4) != first


def test_noise_does_not_share_the_environments_random_numbers() -> None:
    recorder = Recorder()
    noise = OffPolicyNoise(recorder, 0.5)
    replaced, drawn = [], []
    for seed in range(500):
        noise.reset(seed=seed)
        replaced.append(noise.step(np.int64(0))[4]["overridden"])
        drawn.append(recorder.np_random.random())
    assert abs(np.corrcoef(replaced, drawn)[0, 1]) < 0.2  # by chance: 0.04


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan, "0.2", None, True])
def test_probabilities_are_checked(probability: Any) -> None:
    with pytest.raises(ValueError, match="probability"):
        OffPolicyNoise(Recorder(), probability)


# Backup policies


def test_the_supervisor_replaces_unsafe_actions_and_says_so() -> None:
    recorder = Recorder()
    env = BackupPolicy(recorder, lambda observation, action: 0 if action == 3 and observation[0] > 1 else action)
    env.reset()
    infos = [env.step(action)[4] for action in (3, 1, 3, 0)]
    assert recorder.actions == [3, 1, 0, 0]
    assert [info["executed_action"] for info in infos] == recorder.actions
    assert [info["overridden"] for info in infos] == [False, False, True, False]


@pytest.mark.parametrize("wrong", [4, -1, 1.5, "left", None])
def test_a_supervisor_that_returns_no_action_is_named(wrong: Any) -> None:
    env = BackupPolicy(Recorder(), lambda *_: wrong)
    env.reset()
    with pytest.raises(ValueError, match="replaced action 2"):
        env.step(2)


def test_a_supervisor_may_ask_for_the_environment() -> None:
    recorder = Recorder()

    def supervise(observation: Any, action: int, env: gym.Env[Any, Any]) -> int:
        return len(env.unwrapped.actions)  # type: ignore[attr-defined]

    assert executed(BackupPolicy(recorder, supervise), 3, 4) == [0, 1, 2, 3]
    assert BackupPolicy(recorder, max).override(2, 3) == 3  # which is compiled, and has no names of parameters
    with pytest.raises(ValueError, match="must be a function"):
        BackupPolicy(recorder, 3)  # type: ignore[arg-type]


# Table's backup policy


def test_stable_baselines3_finds_nothing_to_complain_about() -> None:
    check_env(BackupPolicy(OffPolicyNoise(gym.make("Table-v0"), 0.1), table_backup), warn=True)


def last_rewards(env: gym.Env[Any, Any], n_episodes: int) -> tuple[list[float], int]:
    """Of a robot that acts at random, mostly forward, or it would take long to come to an edge; and how many of its
    actions were overridden."""
    generator = np.random.default_rng(0)
    rewards, n_overridden = [], 0
    for _ in range(n_episodes):
        env.reset()
        over = False
        while not over:
            action = int(generator.choice([FORWARD, TURN_LEFT, TURN_RIGHT], p=[0.8, 0.1, 0.1]))
            _, reward, terminated, truncated, info = env.step(action)
            n_overridden += info["overridden"]
            over = terminated or truncated
        rewards.append(float(reward))
    return rewards, n_overridden


def test_a_supervised_robot_that_acts_at_random_never_falls_and_sometimes_docks() -> None:
    """Without the supervisor, it falls in most of these episodes."""
    rewards, n_overridden = last_rewards(BackupPolicy(gym.make("TableLong-v0"), table_backup), 50)
    assert set(rewards) == {0.0, 100.0}
    assert n_overridden > 1000


@pytest.mark.parametrize("speed", [None, 0.001, 0.02, 0.05, 0.3])
def test_the_robot_of_tablesafe_never_falls_however_quick_it_is(speed: float | None) -> None:
    arguments: dict[str, Any] = {} if speed is None else {"speed": speed}
    for env in (
        gym.make("TableSafe-v0", **arguments),
        BackupPolicy(gym.make("TableLong-v0", **arguments), table_backup),
    ):
        rewards, n_overridden = last_rewards(env, 8)
        assert min(rewards) == 0
        assert n_overridden > (0 if speed == 0.001 else 100)


def test_tablesafe_is_a_table_of_2000_steps() -> None:
    env = gym.make("TableSafe-v0", start=(0.2, 0.3, 0.0))
    assert env.reset()[0].tolist() == pytest.approx([0.2, 0.3, 0.0])
    for step in range(1, 2001):
        _, reward, terminated, truncated, _ = env.step(TURN_LEFT)
        assert not terminated
        assert truncated == (step == 2000)
        assert reward == 0


@pytest.mark.parametrize("heading", np.linspace(-math.pi, math.pi, 9))
@pytest.mark.parametrize("corner", [(0, 0), (0, 1), (1, 0), (1, 1), (0.5, 0), (1, 0.3)])
def test_a_robot_that_only_wants_forward_is_turned_and_goes_on(corner: tuple[float, float], heading: float) -> None:
    env = BackupPolicy(gym.make("Table-v0", start=(*corner, heading)), table_backup)
    start, _ = env.reset()
    for _ in range(50):
        observation, _, terminated, _, _ = env.step(FORWARD)
        assert not terminated
    # Half a turn takes 31 steps; the rest are 0.005 long.
    assert math.dist(observation[:2], start[:2]) > 0.05


def test_the_supervisor_leaves_a_robot_alone_that_drives_to_the_dock() -> None:
    env = BackupPolicy(gym.make("Table-v0"), table_backup)
    (x, y, heading), _ = env.reset()
    over = False
    while not over:
        error = math.remainder(math.atan2(0.5 - y, 0.5 - x) - heading, math.tau)
        action = FORWARD if abs(error) <= 0.1 else TURN_LEFT if error > 0 else TURN_RIGHT
        (x, y, heading), reward, terminated, truncated, info = env.step(action)
        assert not info["overridden"]
        over = terminated or truncated
    assert reward == 100


def test_a_supervised_robot_learns_to_dock_beside_the_edge() -> None:
    """Robots that act at random dock in 63 % of these episodes, after 111 steps on average; most steps forward from
    the start would lead over the edge."""
    table = gym.make(
        "Table-v0",
        start=(0.95, 0.2, 0.0),
        goal=(0.95, 0.4, math.pi / 2),
        speed=0.02,
        turn_rate=0.4,
        position_tolerance=0.08,
        heading_tolerance=0.6,
    )
    env = BackupPolicy(table, table_backup)
    settings = {**PAPER, "n_critics": 8, "critic_iterations": 2, "learning_rate": 3e-4}
    agent = BDPI("MlpPolicy", env, seed=0, **settings)
    agent.learn(2000)
    assert agent.ep_info_buffer is not None
    episodes = list(agent.ep_info_buffer)
    assert min(episode["r"] for episode in episodes) >= 0  # no fall
    assert [episode["r"] for episode in episodes[-20:]] == [100.0] * 20
    assert np.mean([episode["l"] for episode in episodes[-20:]]) < 20  # the best is about 10
