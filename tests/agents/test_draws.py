"""For how long the random numbers behind an action are kept."""

import numpy as np
import pytest

from bdpi import BDPI
from bdpi.agents.actions import Draws
from bdpi.learner.scales import Scales, range_of, scale_to_range, size_of


def begun(persistence=32.0, n_envs=1, n_actions=3, seed=0):
    """Draws whose first episodes keep their random numbers, and their generator."""
    draws, generator = Draws(n_envs, n_actions, persistence), np.random.default_rng(seed)
    while not all(draws.keeps):
        draws.begin_episodes(range(n_envs), generator)
    return draws, generator


def test_kept_numbers_give_the_same_action_for_long_and_the_actors_probabilities_all_the_same():
    probabilities = np.tile(np.float32([0.2, 0.5, 0.3]), (4000, 1))
    draws, generator = Draws(4000, 3, 32.0), np.random.default_rng(0)
    draws.begin_episodes(range(4000), generator)
    actions = np.array([draws.pick(probabilities, generator) for _ in range(20)])
    kept = np.array(draws.keeps)
    for kind in (kept, ~kept):
        shares = np.bincount(actions[-1, kind], minlength=3) / kind.sum()
        np.testing.assert_allclose(shares, [0.2, 0.5, 0.3], atol=0.04)
    repeats = (actions[1:] == actions[:-1]).mean(axis=0)
    chance = 0.2**2 + 0.5**2 + 0.3**2
    assert repeats[~kept].mean() == pytest.approx(chance, abs=0.02)
    assert repeats[kept].mean() > 0.7


def test_a_certain_actor_does_what_it_wants():
    draws, generator = begun()
    for wanted in (0, 2, 1, 2):
        assert draws.pick(np.eye(3, dtype=np.float32)[[wanted]], generator) == [wanted]


@pytest.mark.parametrize(("gain", "share"), [(0.0, 0.5), (1.0, 0.5), (-1.0, 0.05)])
def test_numbers_are_kept_as_long_as_that_costs_nothing(gain, share):
    draws, generator, kept = Draws(1, 2, 8.0), np.random.default_rng(0), []
    for _ in range(2000):
        draws.begin_episodes([0], generator)
        kept.append(draws.keeps[0])
        draws.end_episodes([0], [gain * kept[-1]])
    assert np.mean(kept[20:]) == pytest.approx(share, abs=0.04)


def test_an_agent_compares_the_returns_of_its_episodes_and_goes_on_with_them(tmp_path):
    settings = {"seed": 1, "n_critics": 2, "critic_iterations": 1, "fit_steps": 1, "device": "cpu"}
    agent = BDPI("MlpPolicy", "CartPole-v1", **settings).learn(400)
    assert min(len(agent.draws.returns_kept), len(agent.draws.returns_other)) >= 3
    assert max(agent.draws.returns_kept + agent.draws.returns_other) > 9
    agent.save(tmp_path / "agent", include_buffer=True)
    loaded = BDPI.load(tmp_path / "agent", env="CartPole-v1")
    for name in Draws.saved:
        np.testing.assert_array_equal(getattr(loaded.draws, name), getattr(agent.draws, name))


def test_a_robot_keeps_them_too():
    agent = BDPI("MlpPolicy", "CartPole-v1", seed=2, device="cpu", batch_size=4096)
    changes = []
    for _ in range(40):
        actions = [agent.act(np.zeros(4, np.float32)) for _ in range(30)]
        changes.append(np.count_nonzero(np.diff(actions)))
        agent.observe(np.zeros(4), actions[-1], 1.0, np.zeros(4), True, False)
    assert min(changes) <= 2  # an episode of 30 steps, where chance would have about 14
    assert max(changes) >= 8


@pytest.mark.parametrize("value", [0.5, float("nan"), "long"])
def test_a_wrong_persistence_is_refused(value):
    with pytest.raises(ValueError, match="persistence"):
        BDPI("MlpPolicy", "CartPole-v1", persistence=value)


def test_bounds_count_as_observed_unless_they_are_far_away():
    seen = np.array([[0.0, 0.2, 5.0], [0.1, 0.3, 6.0]])
    bounds = np.array([[-1.0, -np.inf, -1e9], [1.0, 0.4, 8.0]])
    np.testing.assert_allclose(range_of(seen), [[0, 0.2, 5], [0.1, 0.3, 6]])
    np.testing.assert_allclose(range_of(seen, bounds), [[-1, 0.2, 5], [1, 0.4, 8]])
    scales = scale_to_range(Scales.unknown(3), range_of(seen, bounds), True, 2.0)
    np.testing.assert_allclose(scales.inputs(range_of(seen, bounds)), [[-2] * 3, [2] * 3], rtol=1e-6)


@pytest.mark.parametrize(("rare", "bounds"), [(0.1, True), (0.0, False)])
def test_where_rewards_are_rare_bounds_count_and_sizes_and_rates_are_smaller(rare, bounds, tmp_path):
    """Table: rewards come at the end of episodes only, and a robot begins in a corner."""
    quick = {"n_critics": 2, "critic_iterations": 1, "fit_steps": 20, "batch_size": 64}
    agent = BDPI("MlpPolicy", "Table-v0", seed=6, device="cpu", rare_rewards=rare, **quick).learn(600)
    reach = (1 if bounds else 2) / agent.policy.scales.factor[:2]  # half of the range of x and y
    assert np.allclose(reach, 0.5, rtol=1e-3) == bounds
    rewards = agent.replay_buffer.rewards_held()
    assert 0 < np.count_nonzero(rewards) < 0.1 * len(rewards)
    size = size_of(agent.replay_buffer.returns_to_go()) * agent.policy.scales.return_factor
    assert size == pytest.approx(10 / 3 if bounds else 10, rel=0.25)
    agent.save(tmp_path / "agent", include_buffer=True)
    for each in (agent, BDPI.load(tmp_path / "agent", env="Table-v0")):
        assert each.hyperparameters().learning_rate == pytest.approx(1e-4 if bounds else 3e-4)
        assert each.hyperparameters().actor_learning_rate == pytest.approx(1e-4 if bounds else 3e-4)
