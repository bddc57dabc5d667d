"""One contract: from the same parameters and the same batches, every learner makes the same parameters.

The oracle is the reference learner. The others are PyTorch's learner on the CPU, and on a GPU, where an epoch runs step
by step first and is replayed as a graph from then on, the native learner, and the fused kernels, those for a few runs
and those for many, which run on a GPU where there is one and are emulated elsewhere.
"""

import copy
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bdpi.learner import Hyperparameters, LearnerState, native, nvrtc
from bdpi.learner.fused import FusedNetworks, is_suitable
from bdpi.learner.joint import JointLearner
from bdpi.learner.rules import ClippedDouble, Conservative, Imitation
from bdpi.learner.stack import Stacks
from bdpi.learner.tabular import TabularLearner
from worlds import assert_same_state, make_learner, random_batches, random_state, random_transitions

pytestmark = pytest.mark.usefixtures("fused_kernels")

INSTRUCTION_SETS = native.info()["supported"]
needs_native = pytest.mark.skipif(not native.is_available(), reason="the compiled learner is not installed")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
MARKS = {"reference": (), "torch": (), "native": needs_native, "cuda": needs_cuda, "fused": (), "whole": ()}
PAIRS = [
    pytest.param(source, target, marks=marks)
    for kind, marks in MARKS.items()
    for source, target in sorted({(kind, kind), (kind, "reference"), ("reference", kind)})
]
INPUTS = [  # numbers, or one-hot states, which no kernel for many runs trains
    pytest.param(kind, one_hot, marks=marks, id=f"{kind}-{'one-hot' if one_hot else 'numbers'}")
    for kind, marks in MARKS.items()
    for one_hot in (False, True)
    if not (kind == "whole" and one_hot)
]
TASKS = {"table": ([3, 32, 3], False), "lake": ([64, 32, 4], True), "lander": ([8, 256, 4], False)}


def hidden_units(*kinds: str) -> int:
    """As few as are quick to emulate; with fewer than 33, kernels for many runs are those for a few."""
    return 40 if "whole" in kinds else 16


def default_epochs(kind: str, task: str, tolerance: float = 1e-5, **native_arguments: Any) -> None:
    """On a GPU the second of three epochs is recorded and replayed, the third only replayed.

    :param tolerance: after the first of them; differences of rounding grow
    """
    sizes, one_hot = TASKS[task]
    state = random_state(sizes, sizes, 2)
    reference = make_learner("reference", state, sizes, sizes, one_hot=one_hot)
    fast = make_learner(kind, state, sizes, sizes, one_hot=one_hot, **native_arguments)
    transitions = random_transitions(sizes[0], sizes[-1], one_hot)
    for epoch, allowed in enumerate([tolerance, 1e-4, 1e-4]):
        batches, critics = random_batches(2, 2, 256, seed=epoch)
        expected = reference.epoch(transitions, batches, critics, Hyperparameters())
        measured = fast.epoch(transitions, batches, critics, Hyperparameters())
        assert_same_state(reference, fast, allowed)
        np.testing.assert_allclose(
            [measured.critic_loss, measured.actor_loss, measured.mean_q],
            [expected.critic_loss, expected.actor_loss, expected.mean_q],
            rtol=10 * allowed,
            atol=1e-7,
        )
    if getattr(fast, "replay", None) is not None:
        assert fast.replay.reason == ""


needs_kernels = pytest.mark.skipif(not nvrtc.is_available(), reason="takes long without a GPU")


needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.parametrize(
    ("kind", "task", "arguments"),
    [
        *(("native", task, {"instruction_set": each}) for task in TASKS for each in INSTRUCTION_SETS),
        # PyTorch's Adam has 1 - beta_2 in float32 there, which makes second moments smaller by a share of 1.3e-5.
        *(pytest.param("cuda", task, {"tolerance": 2e-5}, marks=needs_cuda) for task in TASKS),
        pytest.param("cuda:1", "table", {"tolerance": 2e-5}, marks=needs_two),
        *(pytest.param("fused", task, {}, marks=needs_kernels) for task in TASKS),
        pytest.param("whole", "lander", {}, marks=needs_kernels),
    ],
)
def test_learners_equal_the_reference_after_default_epochs(kind, task, arguments):
    default_epochs(kind, task, **arguments)


def random_epochs(kind: str, data: st.DataObject) -> None:
    """Any depth, any width, any batch, any rule, some critics only, masked actions, prior functions, all discounts.

    The fused kernels train networks with one hidden layer, without prior functions; those for many runs train the ones
    with more than 32 hidden units, few inputs, and no one-hot ones.
    """
    draw, is_fused, is_whole = data.draw, kind in ("fused", "whole"), kind == "whole"

    def hidden(most: int) -> list[int]:
        units = st.integers(33, 100) if is_whole else st.integers(1, 40)
        return draw(st.lists(units, min_size=int(is_fused), max_size=1 if is_fused else most))

    inputs, actions = draw(st.integers(1, 12 if is_whole else 40)), draw(st.integers(2, 7))
    critic_sizes, actor_sizes = [inputs, *hidden(3), actions], [inputs, *hidden(2), actions]
    one_hot = not is_whole and draw(st.booleans())
    batch_size, seed = draw(st.integers(1, 70)), draw(st.integers(0, 1000))
    n_critics = draw(st.integers(1, 4))
    n_trained = draw(st.integers(1, n_critics))
    prior_scale = draw(st.sampled_from([0.0] if is_fused else [0.0, 0.7]))
    hyper = Hyperparameters(
        critic_iterations=draw(st.integers(1, 3)),
        fit_steps=draw(st.integers(1, 5)),
        critic_rule=ClippedDouble(0.5),
        actor_rule=draw(st.sampled_from([Conservative(0.2), Imitation(), Imitation(0.5), None])),
        learning_rate=1e-3,
        actor_learning_rate=2e-3,
    )
    if is_fused:
        fits = (is_suitable(sizes, one_hot, batch_size, 0.0) for sizes in (actor_sizes, critic_sizes))
        assume(all(fits))
    native_arguments: dict[str, Any] = {}
    if kind == "native":
        native_arguments = {"batch_size": batch_size, "instruction_set": draw(st.sampled_from(INSTRUCTION_SETS))}
    state = random_state(actor_sizes, critic_sizes, n_critics, seed, priors=prior_scale > 0)
    networks = state, actor_sizes, critic_sizes, draw(st.sampled_from(["tanh", "relu"])), one_hot, prior_scale
    reference, fast = make_learner("reference", *networks), make_learner(kind, *networks, **native_arguments)
    transitions = random_transitions(inputs, actions, one_hot, seed=seed, masked=draw(st.booleans()))
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
            moved = learn(reference)
            for name, array in learned.items():
                assume(array.size == 0 or np.abs(moved[name] - array).max() <= 1e-4 * np.abs(array).max())
        raise
    states = transitions.observations[:37]
    np.testing.assert_allclose(reference.policy(states), fast.policy(states), atol=1e-5)
    np.testing.assert_allclose(reference.q_values(states), fast.q_values(states), atol=1e-4)


HAS_GPU = nvrtc.is_available()
#: how many examples of each: in `make test`, and at full size; each example of kernels has some to compile
EXAMPLES = {"torch": (5, 20), "native": (20, 60), "cuda": (0, 40)}
EXAMPLES |= {"fused": (0, 40), "whole": (0, 40)} if HAS_GPU else {"fused": (2, 4), "whole": (1, 3)}
SIZED = [
    pytest.param(kind, n, marks=[mark for mark in (MARKS[kind], is_full and pytest.mark.full) if mark])
    for kind, sizes in EXAMPLES.items()
    for is_full, n in enumerate(sizes)
    if n
]


@pytest.mark.parametrize(("kind", "examples"), SIZED)
def test_learners_equal_the_reference_on_random_shapes(kind, examples):
    @settings(max_examples=examples)
    @given(data=st.data())
    def equals(data):
        random_epochs(kind, data)

    equals()


@pytest.mark.parametrize(("kind", "one_hot"), INPUTS)
def test_terminal_transitions_do_not_look_ahead_and_others_do(kind, one_hot):
    sizes = [9, hidden_units(kind), 3]
    state = random_state(sizes, sizes, 2)
    batches, critics = random_batches(2, 2, 64)

    def parameters_after(discount: float, next_seed: int):
        base = random_transitions(9, 3, one_hot, discount=discount)
        other = random_transitions(9, 3, one_hot, seed=next_seed).next_observations
        transitions = type(base)(base.observations, base.actions, base.rewards, base.discounts, other)
        learner = make_learner(kind, state, sizes, sizes, one_hot=one_hot)
        learner.epoch(transitions, batches, critics, Hyperparameters(critic_iterations=1, fit_steps=2))
        return learner.state_dict()["critics.parameters"]

    np.testing.assert_array_equal(parameters_after(0.0, 5), parameters_after(0.0, 6))
    assert not np.array_equal(parameters_after(0.99, 5), parameters_after(0.99, 6))
    assert not np.array_equal(parameters_after(0.99, 5), parameters_after(0.5, 5))


REPEATED = [
    *(pytest.param(kind, one_hot, 1, marks=MARKS[kind]) for kind in ("torch", "native") for one_hot in (False, True)),
    *(pytest.param("fused", one_hot, runs) for one_hot in (False, True) for runs in (1, 2)),
    pytest.param("whole", False, 2),
]


@pytest.mark.parametrize(("kind", "one_hot", "runs"), REPEATED)
def test_a_critic_that_is_drawn_several_times_learns_from_a_batch_each_time(kind, one_hot, runs):
    """Learners that train the critics of an epoch side by side have to take those that are there twice in turns.

    :param runs: of several, kernels train all at once, of which each has repeated critics of its own
    """
    sizes = [6, hidden_units(kind), 3]
    hyper = Hyperparameters(critic_iterations=3, fit_steps=3, actor_rule=Conservative(0.2), repeats=True)
    transitions, batches = random_transitions(6, 3, one_hot), random_batches(4, 5, 40)[0]
    orders = [np.array([2, 0, 2, 3, 2]), np.array([1, 1, 0, 1, 0])]
    states = [random_state(sizes, sizes, 4, seed) for seed in range(runs)]
    networks = [make_learner("reference", state, sizes, sizes, one_hot=one_hot) for state in states]
    expected = [each.epoch(transitions, batches, order, hyper) for each, order in zip(networks, orders, strict=False)]
    if runs == 1:
        learners = [make_learner(kind, states[0], sizes, sizes, one_hot=one_hot)]
        found = [learners[0].epoch(transitions, batches, orders[0], hyper)]
    else:
        n = 128 if kind == "whole" else 2  # kernels are chosen by how many there could be
        stacks = Stacks(runs, "cuda" if nvrtc.is_available() else "cpu", n)
        of_stack = FusedNetworks(tuple(sizes), tuple(sizes), one_hot, relu=False)
        learners = [JointLearner(stacks, of_stack, copy.deepcopy(state.to_dict())) for state in states]
        asked = zip(learners, orders, strict=True)
        rows = [each.ask(transitions, batches, order, hyper) for each, order in asked]
        rows[0].stack.finish(rows[0].stack.start([row.row for row in rows]))
        found = [each.answer() for each in learners]
    for learner, reference, measured, wanted in zip(learners, networks, found, expected, strict=True):
        assert_same_state(reference, learner, 1e-4)
        np.testing.assert_allclose(astuple(measured), astuple(wanted), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(("kind", "one_hot"), INPUTS)
def test_actions_that_no_sample_took_keep_their_biases(kind, one_hot):
    """Their errors are exactly 0 before the first step of a fit, and of less than 1e-8 Adam would make half a step."""
    sizes, taken = [9, hidden_units(kind), 3], 1
    state = random_state(sizes, sizes, 2)
    transitions = random_transitions(9, 3, one_hot)
    transitions.actions[:] = taken
    learner = make_learner(kind, state, sizes, sizes, one_hot=one_hot)
    learner.epoch(transitions, *random_batches(2, 2, 100), Hyperparameters(critic_iterations=1, fit_steps=1))
    change = learner.state_dict()["critics.parameters"][:, 0, -3:] - state.critics.parameters[:, 0, -3:]
    assert (change[:, taken] != 0).all()
    np.testing.assert_array_equal(np.delete(change, taken, axis=1), 0)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_learning_goes_on_in_another_learner_after_a_save_and_a_load(source, target, tmp_path):
    """An odd number of iterations leaves the two networks of a critic with their roles exchanged."""
    sizes = [5, hidden_units(source, target), 3]
    transitions = random_transitions(5, 3, False)
    hyper = Hyperparameters(critic_iterations=3, fit_steps=4)
    batches, critics = random_batches(3, 2, 64)
    first = make_learner(source, random_state(sizes, sizes, 3), sizes, sizes)
    first.epoch(transitions, batches, critics, hyper)
    np.savez(tmp_path / "state.npz", **first.state_dict())
    second = make_learner(target, random_state(sizes, sizes, 3, seed=99), sizes, sizes)
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
    learner = make_learner(kind, state, sizes, sizes, one_hot=True)
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


@needs_native
@settings(max_examples=10)
@given(n_states=st.integers(2, 12), n_actions=st.integers(2, 5), seed=st.integers(0, 1000))
def test_a_long_native_fit_ends_where_the_table_is(n_states, n_actions, seed):
    """A linear network on one-hot states is a table; fitted long enough, it must agree with the tabular learner."""
    long_fit_against_table("native", n_states, n_actions, seed, Conservative(0.05))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["reference", "torch", pytest.param("cuda", marks=needs_cuda)])
def test_a_long_fit_ends_where_the_table_is(kind):
    long_fit_against_table(kind, 7, 3, 0, Conservative(0.05))
