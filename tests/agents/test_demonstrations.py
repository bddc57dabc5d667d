"""Transitions of others: kept apart, drawn with a share of each batch."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv

from bdpi import BDPI
from bdpi.agents.demonstrations import transitions_of
from bdpi.agents.journal import Journal, Transition
from bdpi.envs import ControlLoop

SMALL: dict[str, Any] = {"n_critics": 2, "batch_size": 16, "critic_iterations": 1, "fit_steps": 1, "seed": 0}


def make(env: Any = "CartPole-v1", policy: str = "MlpPolicy", **arguments: Any) -> BDPI:
    return BDPI(policy, env, **{**SMALL, **arguments})


def trajectory(n: int = 20, seed: int = 0) -> list[tuple[Any, ...]]:
    env = gym.make("CartPole-v1")
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    steps = []
    while len(steps) < n:
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        steps.append((observation, action, reward, following, terminated, truncated))
        observation = env.reset()[0] if terminated or truncated else following
    return steps


def test_they_are_never_overwritten():
    agent = make(buffer_size=32)
    assert agent.add_demonstrations(trajectory(20)) == 20
    assert agent.add_demonstrations(trajectory(5, seed=1), share=0.5) == 5
    agent.learn(100)
    held = agent.replay_buffer.transitions()
    assert len(agent.replay_buffer) == 32
    expected = [step[0] for step in (*trajectory(20), *trajectory(5, seed=1))]
    np.testing.assert_array_equal(held.observations[32:], expected)
    assert held.discounts[32:].tolist() == pytest.approx(
        [0.0 if step[4] else 0.99 for step in (*trajectory(20), *trajectory(5, seed=1))]
    )
    assert agent.num_timesteps == 100


@pytest.mark.parametrize(("share", "expected"), [(0.25, 4), (0.5, 8), (1.0, 16)])
def test_the_share_of_a_batch(share, expected):
    agent = make()
    agent.add_demonstrations(trajectory(), share=share)
    rng, first = np.random.default_rng(0), agent.buffer_size
    assert not make().learn_once()
    assert agent.learn_once()  # learning begins with them
    plain = make().learn(40).replay_buffer  # without them, the very same batches as ever
    usual = np.random.default_rng(3).integers(0, 40, size=(2, 16))
    np.testing.assert_array_equal(plain.draw(np.random.default_rng(3), (2, 16), 0.25), usual)
    assert agent.replay_buffer.draw(rng, (3, 16), share).min() >= first, "without experience, all are demonstrations"
    agent.learn(30)
    batches = agent.replay_buffer.draw(rng, (50, 16), share)
    assert ((batches >= first).sum(axis=1) == expected).all()
    assert set(np.unique(batches[batches >= first])) <= set(range(first, first + 20))
    own = batches[batches < first]
    assert own.size == 0 or own.max() < 30


def test_sources(tmp_path):
    steps = trajectory()
    agent = make()
    with Journal(tmp_path / "robot.sqlite", agent.observation_space, agent.action_space) as journal:
        journal.append(*(Transition(*step) for step in steps))
        assert make().add_demonstrations(journal) == 20
    dqn = DQN("MlpPolicy", "CartPole-v1", learning_starts=1000).learn(20)
    other = make().learn(20)
    sources = [tmp_path / "robot.sqlite", str(tmp_path / "robot.sqlite"), map(Transition, *zip(*steps, strict=True))]
    for source in (*sources, iter(steps), dqn.replay_buffer, other.replay_buffer):
        found = make()
        assert found.add_demonstrations(source) == 20
        assert found.replay_buffer.n_demonstrations == 20
    held, own = found.replay_buffer.transitions(), other.replay_buffer.transitions()
    np.testing.assert_array_equal(held.next_observations[found.buffer_size :], own.next_observations)
    np.testing.assert_array_equal(held.discounts[found.buffer_size :], own.discounts)


class Counter(gym.Env):
    """Observations and rewards count the steps: a transition goes from one number to the next."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space | None = None) -> None:
        self.observation_space = space or spaces.Box(0, 10_000, (1,), np.float32)
        self.time = 0

    def _seen(self) -> Any:
        if isinstance(self.observation_space, spaces.Dict):
            return {"time": np.array([self.time], np.float32), "parity": 7 + self.time % 2}
        if isinstance(self.observation_space, spaces.Box):
            return np.array([self.time], np.float32)
        return 7 + self.time % 2 if isinstance(self.observation_space, spaces.Discrete) else [7 + self.time % 2, 0]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self._seen(), float(self.time), False, False, {}


@pytest.mark.parametrize("steps", [20, 50, 64, 70])
@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_the_buffers_of_sb3_hold_only_what_happened(steps, optimized, n_envs):
    kwargs = {"optimize_memory_usage": optimized, "replay_buffer_kwargs": {"handle_timeout_termination": False}}
    kwargs |= {"learning_starts": 10**6, "train_freq": 1, "buffer_size": 32 * n_envs}
    dqn = DQN("MlpPolicy", DummyVecEnv([Counter] * n_envs), **kwargs).learn(steps * n_envs)
    found = [(step.observation[0], step.reward, step.next_observation[0]) for step in transitions_of(dqn.replay_buffer)]
    kept = min(steps, 31 if optimized and steps >= 32 else 32)
    expected = [(time, time + 1, time + 1) for time in range(steps - kept, steps)]  # oldest first
    assert found == [row for row in expected for _ in range(n_envs)]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(2, start=7),
        spaces.MultiDiscrete([2, 3], start=[7, 0]),
        spaces.Dict({"time": spaces.Box(0, 100, (1,), np.float32), "parity": spaces.Discrete(2, start=7)}),
    ],
)
def test_numbers_of_states_come_as_they_were(space):
    policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "MlpPolicy"
    agent = make(Counter(space), policy).learn(20)
    found, other = list(transitions_of(agent.replay_buffer)), make(Counter(space), policy)
    first = found[0].observation["parity"] if isinstance(space, spaces.Dict) else np.ravel(found[0].observation)[0]
    assert first == 7
    assert other.add_demonstrations(agent.replay_buffer) == 20
    held, own = other.replay_buffer.transitions(), agent.replay_buffer.transitions()
    for name, array in (own.observations if isinstance(space, spaces.Dict) else {"": own.observations}).items():
        shown = held.observations[name] if name else held.observations
        np.testing.assert_array_equal(shown[other.buffer_size :], array)


def test_minari(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari", reason="Minari is not installed")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    from minari.data_collector import EpisodeBuffer

    # Minari's collector of data needs JAX, its datasets do not.
    buffers, total = [], 0
    for seed in range(3):
        env = gym.make("CartPole-v1")
        observations, actions, done = [env.reset(seed=seed)[0]], [], False
        while not done:
            actions.append(env.action_space.sample())
            observation, _, terminated, truncated, _ = env.step(actions[-1])
            observations.append(observation)
            done = terminated or truncated
        n = len(actions)
        total += n
        ended = [False] * (n - 1) + [True]
        episode = (np.array(observations), np.array(actions), [1.0] * n, ended, [False] * n)
        buffers.append(EpisodeBuffer(seed, seed, None, *episode, infos={}))
    spaces_ = {"observation_space": env.observation_space, "action_space": env.action_space}
    dataset = minari.create_dataset_from_buffers("test/cartpole-v0", buffers, **spaces_)
    agent = make()
    assert agent.add_demonstrations(dataset) == total
    held = agent.replay_buffer.transitions()
    assert (held.discounts[agent.buffer_size :] == 0).sum() == 3


def test_several_environments_masks_and_dicts():
    agent = make(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 3))
    assert agent.add_demonstrations(trajectory(20)) == 20
    assert agent.replay_buffer.n_demonstrations == 21  # a whole number of rows
    agent.learn(60)
    space = spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "mode": spaces.Discrete(3)})
    agent = make(ControlLoop(space, spaces.Discrete(2, start=4)), "MultiInputPolicy", batch_size=4)
    seen = {"arm": np.zeros(2, np.float32), "mode": 1}
    mask = np.array([True, False])
    agent.add_demonstrations([Transition(seen, 5, 1.0, seen, False, False, 0.5, mask, None)] * 6)
    held = agent.replay_buffer.transitions()
    assert held.actions[-1] == 1
    assert held.discounts[-1] == 0.5
    assert held.masks[-1].tolist() == [True, False]
    assert held.next_masks[-1].tolist() == [True, True]
    assert agent.learn_once()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([(1, 2, 3)], "transition 0 must be"),
        ([], "no transitions"),
        (5, "must be a journal"),
        ([(np.zeros(3), 0, 0.0, np.zeros(4), False, False)], r"demonstration 0: .*shape \(4,\)"),
        ([(np.zeros(4), 2, 0.0, np.zeros(4), False, False)], "demonstration 0: the action is 2, .*not an action"),
        ([(np.zeros(4), 1, 0.0, np.zeros(4), "no", False)], "terminated must be True or False, got 'no'"),
        ([(np.zeros(4), 0, np.nan, np.zeros(4), False, False)], "demonstration 0: .*not finite"),
    ],
)
def test_nonsense_is_refused(bad, message):
    agent = make()
    with pytest.raises(ValueError, match=message):
        agent.add_demonstrations(bad)
    assert agent.replay_buffer.n_demonstrations == 0
    with pytest.raises(ValueError, match="share"):
        agent.add_demonstrations(trajectory(), share=0)


def test_they_are_saved_with_the_memory(tmp_path):
    agent = make()
    agent.add_demonstrations(trajectory(), share=0.75)
    agent.learn(30)
    agent.save(tmp_path / "agent", include_buffer=True)
    agent.replay_buffer.save_npz(tmp_path / "replay.npz")
    loaded = BDPI.load(tmp_path / "agent")
    again = make()
    again.replay_buffer.load_npz(tmp_path / "replay.npz")
    for other in (loaded, again):
        assert other.replay_buffer.n_demonstrations == 20
        before, after = agent.replay_buffer.transitions(), other.replay_buffer.transitions()
        np.testing.assert_array_equal(before.observations, after.observations)
        np.testing.assert_array_equal(before.discounts, after.discounts)
    assert loaded.demonstration_share == 0.75
