"""The sum tree and the replay buffer that samples by priority."""

import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from bdpi.baselines import PrioritizedReplayBuffer, SumTree
from small import Walk

BOX = spaces.Box(-1, 1, (2,), np.float32)


@settings(max_examples=200)
@given(st.data())
def test_nodes_are_sums_and_found_places_have_priority(data):
    size = data.draw(st.integers(1, 40))
    tree, numbers = SumTree(size), np.zeros(size)
    for _ in range(data.draw(st.integers(1, 6))):
        places = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=12)))
        values = np.array([data.draw(st.sampled_from([0.0, 1e-9, 0.1, 1.0, 3.7, 1e6])) for _ in places])
        tree[places] = values
        for place, value in zip(places, values, strict=True):
            numbers[place] = value
        np.testing.assert_array_equal(tree[np.arange(size)], numbers)
        inner = np.arange(1, tree.first_leaf)
        np.testing.assert_array_equal(tree.nodes[inner], tree.nodes[2 * inner] + tree.nodes[2 * inner + 1])
        assert tree.total == pytest.approx(numbers.sum())
        if tree.total > 0:
            shares = np.array(data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20)))
            found = tree.find(shares * tree.total)
            assert (found < size).all()
            assert (numbers[found] > 0).all()


def test_places_are_found_by_their_share():
    tree = SumTree(5)
    tree[np.arange(5)] = [1, 0, 2, 4, 1]
    np.testing.assert_array_equal(tree.find(np.arange(8)), [0, 2, 2, 3, 3, 3, 3, 4])


def filled(steps: int, n_envs: int = 1, size: int | None = None, **arguments) -> PrioritizedReplayBuffer:
    """Transition number i, counted over environments, has the reward i."""
    buffer = PrioritizedReplayBuffer((size or steps) * n_envs, BOX, spaces.Discrete(3), "cpu", n_envs, **arguments)
    for step in range(steps):
        number = step * n_envs + np.arange(n_envs)
        observations = np.stack([number, number], axis=1).astype(np.float32)
        infos = [{"TimeLimit.truncated": bool(n % 4 == 3)} for n in number]
        buffer.add(observations, observations + 1, number[:, None] % 3, number.astype(float), number % 2 == 1, infos)
    return buffer


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_sampling_is_proportional(alpha, n_envs):
    buffer = filled(5, n_envs, alpha=alpha)
    n = 5 * n_envs
    errors = np.random.default_rng(0).exponential(size=n) - 0.5
    buffer.update_priorities(np.arange(n), errors)
    buffer.generator = np.random.default_rng(1)
    # batches of one: strata make larger ones better than chance, and the test below would not be valid
    drawn = np.array([buffer.sample(1).rewards.item() for _ in range(8000)], int)
    counts = np.bincount(drawn, minlength=n)
    probabilities = (np.abs(errors) + 1e-6) ** alpha / ((np.abs(errors) + 1e-6) ** alpha).sum()
    chi_square = np.sum((counts - 8000 * probabilities) ** 2 / (8000 * probabilities))
    degrees = n - 1
    # mean k and variance 2k: four standard deviations above
    assert chi_square <= degrees + 4 * np.sqrt(2 * degrees)


def test_batches_are_stratified():
    """Each transition is sampled as often as its share of the batch says, or once more or less."""
    buffer = filled(10, alpha=1.0)
    buffer.update_priorities(np.arange(10), np.arange(1, 11))
    counts = np.bincount(buffer.sample(550).places, minlength=10)
    np.testing.assert_allclose(counts, 10 * np.arange(1, 11), atol=2)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_correct_the_bias(beta):
    buffer = filled(8, alpha=0.7, beta=beta)
    errors = np.linspace(0.1, 3, 8)
    buffer.update_priorities(np.arange(8), errors)
    samples = buffer.sample(500)
    probabilities = (errors + 1e-6) ** 0.7 / ((errors + 1e-6) ** 0.7).sum()
    expected = (8 * probabilities[samples.places]) ** -beta
    np.testing.assert_allclose(samples.weights.numpy().ravel(), expected / expected.max(), rtol=1e-5)
    assert samples.weights.shape == samples.rewards.shape == (500, 1)
    other = pickle.loads(pickle.dumps(buffer))
    np.testing.assert_array_equal(buffer.sample(50).places, other.sample(50).places)
    with pytest.raises(ValueError, match="not finite"):
        buffer.update_priorities(np.arange(2), [1, np.nan])
    if beta == 1:  # a weighted mean of samples is proportional to the plain mean of all
        weighted = (samples.weights * samples.rewards).sum() / samples.weights.sum()
        assert weighted.item() == pytest.approx(3.5, abs=0.15)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_samples_are_the_transitions_at_their_places(n_envs):
    buffer = filled(6, n_envs)
    samples = buffer.sample(100)
    number = torch.as_tensor(samples.places).float()
    np.testing.assert_array_equal(samples.rewards.ravel(), number)
    np.testing.assert_array_equal(samples.observations[:, 0], number)
    np.testing.assert_array_equal(samples.next_observations[:, 1], number + 1)
    np.testing.assert_array_equal(samples.actions.ravel(), number.int() % 3)
    # odd transitions are the last of an episode, every second of them because time was up
    np.testing.assert_array_equal(samples.dones.ravel(), number % 4 == 1)


def test_new_transitions_have_the_highest_priority():
    buffer = filled(4, size=6, alpha=1.0)
    buffer.update_priorities(np.arange(4), [0.5, 7.0, 0.1, 0.2])
    buffer.update_priorities(np.array([1]), [0.3])
    buffer.add(np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    np.testing.assert_allclose(buffer.tree[np.arange(6)], [0.5, 0.3, 0.1, 0.2, 7, 0], rtol=1e-4)


def test_what_is_overwritten_loses_its_priority():
    buffer = filled(4, size=4, alpha=1.0)
    buffer.update_priorities(np.arange(4), [5, 1, 1, 1])
    buffer.update_priorities(np.array([0]), [0.01])
    buffer.add(np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    np.testing.assert_allclose(buffer.tree[np.arange(4)], [5, 1, 1, 1], rtol=1e-4)
    buffer.reset()
    assert buffer.tree.total == 0
    with pytest.raises(ValueError, match="nothing to sample"):
        buffer.sample(3)


def test_bad_arguments_are_named():
    odd = {"alpha": 2, "beta": -1, "smallest_priority": 0, "optimize_memory_usage": True, "n_steps": 0, "gamma": 2}
    for name, value in odd.items():
        with pytest.raises(ValueError, match=name):
            filled(1, **{name: value})


@pytest.mark.parametrize("n_envs", [1, 2])
def test_plain_dqn_samples_by_priority(n_envs):
    agent = DQN(
        "MlpPolicy",
        VecNormalize(DummyVecEnv([Walk] * n_envs)),
        buffer_size=200,
        learning_starts=20,
        replay_buffer_class=PrioritizedReplayBuffer,
        replay_buffer_kwargs={"alpha": 1.0},
        seed=0,
    )
    agent.learn(100)
    buffer = agent.replay_buffer
    assert isinstance(buffer, PrioritizedReplayBuffer)
    everything = np.arange(buffer.size() * n_envs)
    np.testing.assert_allclose(buffer.tree[everything], 1)
    buffer.update_priorities(everything, np.where(everything == 17, 1e9, 0.0))
    assert (buffer.sample(32, agent.get_vec_normalize_env()).places == 17).all()
    agent.train(gradient_steps=2, batch_size=32)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize(("steps", "size"), [(7, 12), (20, 12)])
def test_returns_of_several_steps_end_with_their_episode(steps, size, n_envs):
    """Against a loop over the transitions of each environment, in a buffer that is not full, and one that is."""
    buffer = PrioritizedReplayBuffer(size * n_envs, BOX, spaces.Discrete(3), "cpu", n_envs, n_steps=3, gamma=0.9)
    rng = np.random.default_rng(n_envs)
    stored = []
    for step in range(steps):
        number = step * n_envs + np.arange(n_envs)
        observations = np.stack([number, number], axis=1).astype(np.float32)
        dones, late = rng.random((2, n_envs)) < 0.3
        rewards = rng.normal(size=n_envs)
        infos = [{"TimeLimit.truncated": bool(each)} for each in dones & late]
        buffer.add(observations, observations + 0.5, np.zeros((n_envs, 1)), rewards, dones, infos)
        stored.append((rewards.astype(np.float32), dones, dones & ~late))
    samples = buffer.sample(400)
    assert len(np.unique(samples.places)) == min(steps, size) * n_envs
    for i, number in enumerate(samples.observations[:, 0].int().tolist()):
        step, environment = divmod(number, n_envs)
        total, n = 0.0, 0
        for rewards, dones, _ in stored[step : step + 3]:
            total += 0.9**n * rewards[environment]
            n += 1
            if dones[environment]:
                break
        last = step + n - 1
        assert samples.rewards[i].item() == pytest.approx(total, rel=1e-5)
        assert samples.discounts[i].item() == pytest.approx(0.9**n)
        assert samples.next_observations[i, 0].item() == last * n_envs + environment + 0.5
        assert bool(samples.dones[i]) == stored[last][2][environment]


def test_plain_dqn_learns_from_several_steps_if_the_buffer_is_told():
    def weights(**arguments):
        agent = DQN(
            "MlpPolicy",
            Walk(),
            learning_starts=20,
            replay_buffer_class=PrioritizedReplayBuffer,
            replay_buffer_kwargs=arguments,
            seed=0,
        )
        return torch.nn.utils.parameters_to_vector(agent.learn(100).policy.parameters())

    assert (weights() == weights(n_steps=1, gamma=0.99)).all()
    assert (weights() != weights(n_steps=3, gamma=0.99)).any()
