"""One contract: from the same parameters and the same batches, every learner makes the same parameters."""

import copy
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from bdpi.learner import Hyperparameters, LearnerState, native
from bdpi.learner.native import NativeLearner
from bdpi.learner.rules import Conservative, Imitation
from bdpi.learner.tabular import TabularLearner
from bdpi.learner.torch import TorchLearner
from worlds import (
    assert_same_state,
    both_learners,
    perceptron,
    random_batches,
    random_state,
    random_transitions,
)

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the compiled learner is not installed")

INSTRUCTION_SETS = native.info()["supported"]


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize(
    ("sizes", "one_hot"),
    [([3, 32, 3], False), ([64, 32, 4], True), ([8, 256, 4], False)],
    ids=["table", "lake", "lander"],
)
def test_native_equals_torch_after_a_default_epoch(sizes, one_hot, instruction_set):
    reference, fast = both_learners(sizes, sizes, 2, one_hot=one_hot, instruction_set=instruction_set)
    transitions = random_transitions(sizes[0], sizes[-1], one_hot)
    batches, critics = random_batches(2, 2, 256)
    expected = reference.epoch(transitions, batches, critics, Hyperparameters())
    measured = fast.epoch(transitions, batches, critics, Hyperparameters())
    assert fast.instruction_set == instruction_set
    assert_same_state(reference, fast, tolerance=1e-5)
    np.testing.assert_allclose(
        [measured.critic_loss, measured.actor_loss, measured.mean_q],
        [expected.critic_loss, expected.actor_loss, expected.mean_q],
        rtol=1e-4,
        atol=1e-7,
    )


@settings(max_examples=60, deadline=None)
@given(
    inputs=st.integers(1, 40),
    actions=st.integers(2, 7),
    critic_hidden=st.lists(st.integers(1, 40), max_size=3),
    actor_hidden=st.lists(st.integers(1, 40), max_size=2),
    activation=st.sampled_from(["tanh", "relu"]),
    one_hot=st.booleans(),
    batch_size=st.integers(1, 70),
    n_critics=st.integers(1, 4),
    instruction_set=st.sampled_from(INSTRUCTION_SETS),
    seed=st.integers(0, 1000),
    rule=st.sampled_from([Conservative(0.2), Imitation(), Imitation(0.5), None]),
    masked=st.booleans(),
    prior_scale=st.sampled_from([0.0, 0.7]),
    data=st.data(),
)
def test_native_equals_torch_on_random_shapes(
    inputs,
    actions,
    critic_hidden,
    actor_hidden,
    activation,
    one_hot,
    batch_size,
    n_critics,
    instruction_set,
    seed,
    rule,
    masked,
    prior_scale,
    data,
):
    """Any depth, any width, any batch, any rule, some critics only, masked actions, prior functions, all discounts."""
    n_trained = data.draw(st.integers(1, n_critics))
    reference, fast = both_learners(
        [inputs, *actor_hidden, actions],
        [inputs, *critic_hidden, actions],
        n_critics,
        activation,
        one_hot,
        seed,
        prior_scale,
        batch_size=batch_size,
        instruction_set=instruction_set,
    )
    transitions = random_transitions(inputs, actions, one_hot, seed=seed, masked=masked)
    hyper = Hyperparameters(
        critic_iterations=data.draw(st.integers(1, 3)),
        fit_steps=data.draw(st.integers(1, 5)),
        critic_step_size=0.5,
        actor_rule=rule,
        learning_rate=1e-3,
        actor_learning_rate=2e-3,
    )
    start = copy.deepcopy(reference.state_dict())

    def learn(learner) -> dict:
        for epoch in range(2):
            batches, critics = random_batches(n_critics, n_trained, batch_size, seed=seed + epoch)
            learner.epoch(transitions, batches, critics, hyper)
        return copy.deepcopy(learner.state_dict())

    learn(fast)
    learned = learn(reference)
    try:
        assert_same_state(reference, fast)
    except AssertionError:
        # A rectified unit at its kink, or two actions that are equally good: rounding decides what is learned. Where
        # that is so, a change of the last digits changes what the reference learns, too.
        rng = np.random.default_rng(0)
        for _ in range(5):
            last_digits = 1 + 1e-6 * rng.normal(size=start["critics.parameters"].shape).astype(np.float32)
            reference.load_state_dict({**start, "critics.parameters": start["critics.parameters"] * last_digits})
            moved = np.abs(learn(reference)["critics.parameters"] - learned["critics.parameters"]).max()
            assume(moved < 1e-4 * np.abs(learned["critics.parameters"]).max())
        raise
    states = transitions.observations[:37]
    np.testing.assert_allclose(reference.policy(states), fast.policy(states), atol=1e-5)
    np.testing.assert_allclose(reference.q_values(states), fast.q_values(states), atol=1e-4)


def make_learner(kind: str, state: LearnerState, one_hot: bool, inputs: int):
    if kind == "native":
        return NativeLearner([inputs, 16, 3], [inputs, 16, 3], copy.deepcopy(state), one_hot=one_hot)
    encode = (lambda x: nn.functional.one_hot(x, inputs).float()) if one_hot else (lambda x: x.float())
    return TorchLearner(perceptron([inputs, 16, 3]), perceptron([inputs, 16, 3]), state, preprocess=encode)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("kind", ["native", "torch"])
def test_terminal_transitions_do_not_look_ahead_and_others_do(kind, one_hot):
    state = random_state([9, 16, 3], [9, 16, 3], 2)
    batches, critics = random_batches(2, 2, 64)

    def parameters_after(discount: float, next_seed: int):
        base = random_transitions(9, 3, one_hot, discount=discount)
        other = random_transitions(9, 3, one_hot, seed=next_seed).next_observations
        transitions = type(base)(base.observations, base.actions, base.rewards, base.discounts, other)
        learner = make_learner(kind, state, one_hot, 9)
        learner.epoch(transitions, batches, critics, Hyperparameters(critic_iterations=1, fit_steps=2))
        return learner.state_dict()["critics.parameters"]

    np.testing.assert_array_equal(parameters_after(0.0, 5), parameters_after(0.0, 6))
    assert not np.array_equal(parameters_after(0.99, 5), parameters_after(0.99, 6))
    assert not np.array_equal(parameters_after(0.99, 5), parameters_after(0.5, 5))


@pytest.mark.parametrize("source", ["native", "torch"])
@pytest.mark.parametrize("target", ["native", "torch"])
def test_learning_goes_on_in_another_learner_after_a_save_and_a_load(source, target, tmp_path):
    """An odd number of iterations leaves the two networks of a critic with their roles exchanged."""
    state = random_state([5, 16, 3], [5, 16, 3], 3)
    transitions = random_transitions(5, 3, False)
    hyper = Hyperparameters(critic_iterations=3, fit_steps=4)
    batches, critics = random_batches(3, 2, 64)
    first = make_learner(source, state, False, 5)
    first.epoch(transitions, batches, critics, hyper)
    np.savez(tmp_path / "state.npz", **first.state_dict())
    second = make_learner(target, random_state([5, 16, 3], [5, 16, 3], 3, seed=99), False, 5)
    with np.load(tmp_path / "state.npz") as file:
        second.load_state_dict(dict(file))
    assert second.state_dict()["active"].sum() == 2
    for seed in (1, 2):
        batches, critics = random_batches(3, 3, 64, seed=seed)
        first.epoch(transitions, batches, critics, hyper)
        second.epoch(transitions, batches, critics, hyper)
    assert_same_state(first, second, tolerance=0 if source == target else 1e-4)


def long_fit_against_table(kind: str, n_states: int, n_actions: int, seed: int, rule) -> None:
    rng = np.random.default_rng(seed)
    tables = rng.normal(size=(2, 2, n_states, n_actions)).astype(np.float32)
    logits = rng.normal(size=(n_states, n_actions)).astype(np.float32)

    def weights(table):  # a linear layer of the transposed table, and a zero bias
        return np.concatenate([table.T.reshape(-1), np.zeros(n_actions, np.float32)])

    critics = np.array([[weights(table) for table in pair] for pair in tables])
    state = LearnerState.fresh(weights(logits), critics)
    policy = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    oracle = TabularLearner(n_states, n_actions, 2, critics=tables, actor=policy)
    sizes = [n_states, n_actions]
    if kind == "native":
        learner = NativeLearner(sizes, sizes, state, one_hot=True)
    else:
        encode = partial(nn.functional.one_hot, num_classes=n_states)
        learner = TorchLearner(perceptron(sizes), perceptron(sizes), state, preprocess=lambda x: encode(x).float())
    transitions = random_transitions(n_states, n_actions, one_hot=True, seed=seed, masked=seed % 2 == 1)
    batches, order = random_batches(2, 2, 256, seed=seed)  # large enough for all states to occur
    hyper = Hyperparameters(
        critic_iterations=2, fit_steps=3000, learning_rate=2e-3, actor_learning_rate=2e-3, actor_rule=rule
    )
    oracle.epoch(transitions, batches, order, hyper)
    learner.epoch(transitions, batches, order, hyper)
    states = np.arange(n_states)
    # An epoch moves tables and policies much further than the tolerance: such an agreement is not an accident.
    moved, moved_actor = (np.abs(oracle.critics - tables).max(), np.abs(oracle.actor - policy).max())
    np.testing.assert_allclose(learner.q_values(states), oracle.q_values(states), atol=0.15 * moved)
    np.testing.assert_allclose(learner.policy(states), oracle.policy(states), atol=0.15 * moved_actor)


@settings(max_examples=10, deadline=None)
@given(n_states=st.integers(2, 12), n_actions=st.integers(2, 5), seed=st.integers(0, 1000))
def test_a_long_native_fit_ends_where_the_table_is(n_states, n_actions, seed):
    """A linear network on one-hot states is a table; fitted long enough, it must agree with the tabular learner."""
    long_fit_against_table("native", n_states, n_actions, seed, Conservative(0.05))


def test_a_long_torch_fit_ends_where_the_table_is():
    long_fit_against_table("torch", 7, 3, 0, Conservative(0.05))
