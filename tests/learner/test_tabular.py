"""The oracle itself: hand-computed updates, optimal policies, the trust region."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bdpi.learner import Hyperparameters, Transitions
from bdpi.learner.rules import ClippedDouble, Conservative
from bdpi.learner.tabular import TabularLearner, actor_targets, assign, critic_targets, group


def transitions_of(states, actions, rewards, discounts, next_states) -> Transitions:
    numbers = np.asarray(rewards, np.float32), np.broadcast_to(np.float32(discounts), len(states))
    return Transitions(np.asarray(states), np.asarray(actions), *numbers, np.asarray(next_states))


def one_transition(*values) -> Transitions:
    return transitions_of(*([value] for value in values))


def learner_with(q_a, q_b) -> TabularLearner:
    return TabularLearner(2, 2, 1, critics=np.array([[q_a, q_b]]))


BATCH, CRITIC = np.array([[0]]), np.array([0])


def test_one_iteration_by_hand():
    # a* = 1 at state 1 by Q_A; V = min(4, 2) = 2; Q'(0, 0) = 1 + 0.5 (10 + 0.9 * 2 - 1) = 6.4
    learner = learner_with([[1.0, 0.0], [3.0, 4.0]], [[0.0, 0.0], [9.0, 2.0]])
    hyper = Hyperparameters(critic_iterations=1, critic_rule=ClippedDouble(0.5), actor_rule=Conservative(0.05))
    learner.epoch(one_transition(0, 0, 10.0, 0.9, 1), BATCH, CRITIC, hyper)
    np.testing.assert_allclose(learner.critics[0, 0], [[6.4, 0.0], [3.0, 4.0]], rtol=1e-6)
    np.testing.assert_array_equal(learner.critics[0, 1], [[0.0, 0.0], [9.0, 2.0]])
    assert learner.active.tolist() == [1]
    rate = 1 - np.exp(-0.05)
    np.testing.assert_allclose(learner.actor[0], [0.5 * (1 - rate) + rate, 0.5 * (1 - rate)], rtol=1e-6)
    np.testing.assert_array_equal(learner.actor[1], [0.5, 0.5])


def test_the_second_iteration_trains_the_other_table_with_swapped_roles():
    # then, with B in the role of A: a* = 0 by Q_B; V = min(9, 3) = 3; Q_B(0, 0) = 0 + 0.5 (10 + 0.9 * 3 - 0) = 6.35
    learner = learner_with([[1.0, 0.0], [3.0, 4.0]], [[0.0, 0.0], [9.0, 2.0]])
    hyper = Hyperparameters(critic_iterations=2, critic_rule=ClippedDouble(0.5))
    learner.epoch(one_transition(0, 0, 10.0, 0.9, 1), BATCH, CRITIC, hyper)
    assert learner.critics[0, 0, 0, 0] == pytest.approx(6.4, rel=1e-6)
    assert learner.critics[0, 1, 0, 0] == pytest.approx(6.35, rel=1e-6)
    assert learner.active.tolist() == [0]


def test_terminal_transitions_do_not_bootstrap():
    learner = learner_with([[0.0, 0.0], [100.0, 100.0]], [[0.0, 0.0], [100.0, 100.0]])
    learner.epoch(one_transition(0, 1, 1.0, 0.0, 1), BATCH, CRITIC, Hyperparameters(critic_iterations=1))
    assert learner.critics[0, 0, 0, 1] == pytest.approx(0.2)


def test_the_actor_follows_the_last_targets_not_the_fitted_table():
    # two transitions of state 0 disagree: Q' of the first prefers action 0, that of the second action 1
    transitions = transitions_of([0, 0], [0, 1], [1.0, 5.0], 0, [1, 1])
    learner = TabularLearner(2, 2, 1)
    hyper = Hyperparameters(critic_iterations=1, critic_rule=ClippedDouble(1.0), actor_rule=Conservative(1.0))
    learner.epoch(transitions, np.array([[0, 1]]), CRITIC, hyper)
    np.testing.assert_allclose(learner.critics[0, 0, 0], [0.5, 2.5])  # least squares: means over the two rows
    np.testing.assert_allclose(learner.actor[0], [0.5, 0.5])  # one vote each; the fitted table would say action 1


def test_an_epoch_costs_what_its_batch_does_however_many_states_there_are():
    n_states, n = 1_000_000, 64
    rng = np.random.default_rng(0)
    states, actions, following = (rng.integers(most, size=n) for most in (n_states, 2, n_states))
    transitions = transitions_of(states, actions, np.ones(n), 1, following)
    learner = TabularLearner(n_states, 2, 1)
    tracemalloc.start()
    try:
        learner.epoch(transitions, np.arange(n)[None], CRITIC, Hyperparameters())
        learner.q_values(transitions.observations)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < n_states  # bytes: not even one for each state


def test_assign_takes_the_mean_of_repeated_states():
    table = np.zeros((3, 2))
    assign(table, group(np.array([2, 0, 2])), np.array([[1.0, 2.0], [7.0, 8.0], [3.0, 4.0]]))
    np.testing.assert_allclose(table, [[7.0, 8.0], [0.0, 0.0], [2.0, 3.0]])


def test_ties_go_to_the_first_action():
    q = np.zeros((1, 3)), np.ones((1, 3)), np.array([[5.0, 0.0, 0.0]])
    targets = critic_targets(ClippedDouble(1.0), *q, np.array([1]), np.zeros(1), np.ones(1))
    np.testing.assert_allclose(targets, [[0.0, 1.0, 0.0]])  # V = min(Q_A, Q_B) of action 0 = min(1, 5)


def test_converges_to_the_optimal_policy_of_a_stochastic_problem():
    rng = np.random.default_rng(3)
    n_states, n_actions, gamma = 6, 3, 0.9
    dynamics = rng.dirichlet(np.full(n_states, 0.5), size=(n_states, n_actions))
    rewards = rng.normal(size=(n_states, n_actions))
    q = np.zeros((n_states, n_actions))
    for _ in range(500):  # value iteration
        q = rewards + gamma * dynamics @ q.max(axis=1)

    n = 6000
    states, actions = rng.integers(0, n_states, n), rng.integers(0, n_actions, n)
    cumulative = dynamics[states, actions].cumsum(axis=1)
    next_states = (cumulative < rng.random(n)[:, None]).sum(axis=1).clip(max=n_states - 1)
    transitions = transitions_of(states, actions, rewards[states, actions], gamma, next_states)
    learner = TabularLearner(n_states, n_actions, n_critics=4)
    for _ in range(400):
        batches, critics = rng.integers(0, n, (4, 256)), rng.permutation(4)
        learner.epoch(transitions, batches, critics, Hyperparameters())
    assert learner.actor.argmax(axis=1).tolist() == q.argmax(axis=1).tolist()
    assert learner.actor.max(axis=1).min() > 0.9  # it is sure of it, too
    assert np.abs(learner.critics.mean(axis=(0, 1)) - q).max() < 0.25  # rewards are of size 1, values of size 10


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**31), delta=st.floats(1e-3, 2.0), n_actions=st.integers(2, 6), sharpness=st.floats(0.1, 30)
)
def test_an_actor_step_stays_in_the_trust_region(seed, delta, n_actions, sharpness):
    """KL(pi_k || pi_k+1) <= delta and the L1 distance <= 2 lambda, whatever the policy and the votes."""
    rng = np.random.default_rng(seed)
    scores = sharpness * rng.normal(size=(5, n_actions))
    policy = np.exp(scores - scores.max(axis=1, keepdims=True))
    policy /= policy.sum(axis=1, keepdims=True)
    states = rng.integers(0, 5, 20)
    rule = Conservative(delta)
    new = policy.copy()
    assign(new, group(states), actor_targets(rule, policy[states], rng.normal(size=(20, n_actions))))
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = np.where(policy > 0, policy * np.log(policy / new), 0).sum(axis=1)
    assert divergence.max() <= delta * (1 + 1e-9)
    assert np.abs(new - policy).sum(axis=1).max() <= 2 * rule.rate * (1 + 1e-9)
    np.testing.assert_allclose(new.sum(axis=1), 1)


def test_the_bounds_are_reached_by_a_certain_policy_that_is_wrong():
    rule = Conservative(0.3)
    new = actor_targets(rule, np.array([[0.0, 1.0]]), np.array([[7.0, 3.0]]))
    assert -np.log(new[0, 1]) == pytest.approx(0.3)
    assert np.abs(new - [[0.0, 1.0]]).sum() == pytest.approx(2 * rule.rate)


def test_a_saved_state_continues_exactly():
    rng = np.random.default_rng(0)
    states, actions, following = (rng.integers(0, most, 300) for most in (9, 4, 9))
    transitions = transitions_of(states, actions, rng.normal(size=300), 0.9, following)
    batches, critics = rng.integers(0, 300, (3, 32)), np.arange(3)
    first = TabularLearner(9, 4, 3)
    first.epoch(transitions, batches, critics, Hyperparameters(critic_iterations=3))
    second = TabularLearner(9, 4, 3)
    second.load_state_dict({name: array.copy() for name, array in first.state_dict().items()})
    for learner in (first, second):
        learner.epoch(transitions, batches[::-1], critics, Hyperparameters())
    for name, array in first.state_dict().items():
        np.testing.assert_array_equal(array, second.state_dict()[name])
    assert first.policy(np.arange(9)).shape == (9, 4)
    assert first.q_values(np.arange(9)).shape == (3, 9, 4)
