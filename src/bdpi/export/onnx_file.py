"""A policy as an ONNX file: raw observations in, probabilities and the most probable action out."""

from __future__ import annotations

import json
import os
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

import bdpi
from bdpi.agents.inputs import Input, Inputs, Normalization
from bdpi.envs.descriptions import describe
from bdpi.export.deciding import ACTION, PROBABILITIES, Decider, cast, equal
from bdpi.export.inputs import decisions_of, exportable_networks, exportable_table, inputs_of, leaves
from bdpi.learner.interface import BoolArray
from bdpi.storage.atomic import make_folder, write_atomically

if TYPE_CHECKING:
    import onnx

    from bdpi.agents import Ensemble
    from bdpi.export.graph import Graph

REMEDY = 'pip install "bdpi[export]"'
#: How far probabilities may be from those of PyTorch, which adds numbers up in another order.
TOLERANCE = 1e-4
_FEW = 0.01  # of actions may be others, where rounding decides


def export_onnx(agent: Ensemble, path: str | os.PathLike[str]) -> None:
    """Write what an agent acts by, with all that comes before it, as an ONNX file.

    The graph takes observations as the environment gives them, with a first axis of any length n, and of the space's
    own type: float32, uint8 pictures (before any transposition), int64 state numbers of shape (n,). Its input is
    called ``observation``; Dict observations have an input per key (``observation.action`` for a key that is the name
    of an output). It returns

    - ``probabilities``, float32 (n, n_actions); of an agent without an actor, the votes of its critics;
    - ``action``, int64 (n,): the most probable one, in the environment's numbers. That is ``predict`` with
      ``deterministic=True`` and without action masks. With masks, take the most probable action that is allowed.

    Actions of several parts are decided one after the other inside the graph. There are no probabilities then;
    ``action`` is (n, ...) in the type of a ``Box``, else int64, and a ``Dict`` or a ``Tuple`` has an output for each
    part: ``action.left``, ``action.0``. So are the bits of an agent that learned behind ``BinaryActionSearch``: the
    graph takes the ``Box`` observation of the environment inside, and gives its action. (It takes what the agent sees,
    and gives single bits, where something outside of that wrapper changes or hides it, ``VecNormalize`` or
    ``SubprocVecEnv`` for instance, and where the environment observes something else than a ``Box``.)

    Discrete parts become one-hot, pictures are divided by 255 and transposed, numbers are scaled as the agent scales
    them, and ``VecNormalize`` normalises with the statistics that it has now, just as for the agent. A saved agent has
    in its file what is needed for that, and can be exported without its environment. A frame stack (``VecFrameStack``)
    has a memory, which a graph has not: the graph takes stacked observations, and so it does with ``n_stack``: the
    last frames, oldest first, side by side on the first axis (the last one of pictures whose channels are last); the
    first of an episode is repeated before there are so many. State numbers outside their space become
    a row of zeros.

    The file's metadata hold ``bdpi`` (version), ``class``, ``observation_space`` (of the inputs), ``action_space`` and
    ``wrappers`` (from the inside out), all but the first two as JSON.

    The table of TabularBDPI is looked up; all actions are alike in states that it does not have.

    :param agent: any agent of this package
    :param path: of the file; folders are made, and a file of that name is replaced at once or not at all
    :raises ImportError: without the package onnx
    :raises ValueError: for layers that have no counterpart
    """
    model = onnx_model(agent)
    target = pathlib.Path(path)
    make_folder(target.parent)
    write_atomically(target, model.SerializeToString(deterministic=True))


def onnx_model(agent: Ensemble) -> onnx.ModelProto:
    """What :func:`export_onnx` writes."""
    try:
        import onnx
        from onnx import helper
    except ImportError:
        raise ImportError(f"ONNX files need the package onnx, which is not installed: {REMEDY}") from None
    from bdpi.export.graph import IR_VERSION, OPSET, Graph

    opinions = exportable_networks(agent)
    described = inputs_of(agent)
    inputs = described.parts
    names = input_names(inputs)
    decisions = decisions_of(agent)
    graph = Graph()
    with agent.learning_paused():
        space = agent.policy.observation_space if decisions.is_plain else decisions.own_space
        seen = _parts(space, inputs)
        # Pictures that are not in a Dict are flat numbers where several decisions are made.
        is_flat = not decisions.is_plain and not isinstance(agent.observation_space, spaces.Dict)
        is_normalized = agent.policy.normalize_images and not is_flat
        prepared = {
            key: _preprocess(graph, _wrap(graph, names[key], part), seen[key], is_normalized)
            for key, part in inputs.items()
            if opinions  # a table takes the number of a state
        }
        made = Decider(graph, agent, opinions, prepared).add(next(iter(names.values())))
    outputs = [helper.make_tensor_value_info(name, dtype, ["n", *shape]) for name, dtype, shape in made]
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "policy",
            [
                helper.make_tensor_value_info(names[key], _type(part.space), ["n", *(part.space.shape or ())])
                for key, part in inputs.items()
            ],
            outputs,
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="bdpi",
        producer_version=bdpi.__version__,
    )
    helper.set_model_props(model, _metadata(agent, described))
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ValueError(f"the actor cannot be exported, its layers do not fit together as ONNX: {error}") from error
    return model


def input_names(inputs: dict[str, Input]) -> dict[str, str]:
    """What the graph calls its inputs, by the key of the observation."""
    taken = PROBABILITIES, ACTION, ""
    return {key: f"observation.{key}" if key.partition(".")[0] in taken or key[0] == "/" else key for key in inputs}


def _metadata(agent: Ensemble, inputs: Inputs) -> dict[str, str]:
    is_dict = isinstance(agent.observation_space, spaces.Dict)
    taken = {key: part.space for key, part in inputs.parts.items()}
    space = spaces.Dict(taken) if is_dict else next(iter(taken.values()))
    return {
        "bdpi": bdpi.__version__,
        "class": type(agent).__name__,
        "observation_space": json.dumps(describe(space)),
        "action_space": json.dumps(describe(decisions_of(agent).own_actions)),
        "wrappers": json.dumps(inputs.wrappers),
    }


def _parts(space: spaces.Space[Any], inputs: dict[str, Input]) -> dict[str, spaces.Space[Any]]:
    return dict(space.spaces) if isinstance(space, spaces.Dict) else dict.fromkeys(inputs, space)


def _type(space: spaces.Space[Any]) -> int:
    from onnx import helper

    if isinstance(space, spaces.Discrete):
        return helper.np_dtype_to_tensor_dtype(np.dtype(np.int64))
    assert space.dtype is not None
    return helper.np_dtype_to_tensor_dtype(np.dtype(space.dtype))


def _wrap(graph: Graph, value: str, part: Input) -> str:
    """Add what the environment's wrappers do."""
    for step in part.steps:
        if isinstance(step, Normalization):
            # In double precision, as NumPy does it: a mean may be much larger than the deviation from it.
            centred = graph.add("Sub", cast(graph, value, np.float64), graph.constant(step.mean, np.float64, "mean"))
            scaled = graph.add("Div", centred, graph.constant(step.deviation, np.float64, "deviation"))
            bounds = (graph.constant(sign * step.clip, np.float64, "clip") for sign in (-1, 1))
            value = cast(graph, graph.add("Clip", scaled, *bounds), np.float32)
        else:
            value = graph.add("Transpose", value, perm=[0, 3, 1, 2])
    return value


def _preprocess(graph: Graph, value: str, seen: spaces.Space[Any], normalize_images: bool) -> str:
    """Add what the policy's preprocessing does, see :mod:`bdpi.agents.spaces`.

    :param seen: the space that the policy knows
    """
    if isinstance(seen, spaces.Discrete):
        numbers = np.arange(int(seen.n)) + int(seen.start)
        column = graph.add("Reshape", value, graph.constant([-1, 1], np.int64, "shape"))
        return equal(graph, column, numbers)
    if isinstance(seen, spaces.MultiDiscrete):
        sizes = [int(size) for size in seen.nvec]
        numbers = np.concatenate([np.arange(size) + int(start) for size, start in zip(sizes, seen.start, strict=True)])
        # each number as often as it has possible values, beside each of them
        which = graph.constant(np.repeat(np.arange(len(sizes)), sizes), np.int64, "which")
        return equal(graph, graph.add("Gather", cast(graph, value, np.int64), which, axis=1), numbers)
    value = cast(graph, value, np.float32)
    if normalize_images and is_image_space(seen):
        value = graph.add("Div", value, graph.constant(255.0))
    return value


def check_onnx(agent: Ensemble, path: str | os.PathLike[str], n: int = 1000, seed: int = 0) -> float:
    """Compare an exported file with the agent's own predictions, on random observations, in ONNX Runtime.

    :param agent: that was exported
    :param path: of the file
    :param n: number of observations
    :param seed: of the observations
    :return: the largest difference between two probabilities; 0 where there are none to compare
    :raises ImportError: without the package onnxruntime
    :raises ValueError: when probabilities differ by more than rounding, or other actions are chosen
    """
    try:
        import onnxruntime
    except ImportError:
        raise ImportError("comparing needs ONNX Runtime, which is not installed: pip install onnxruntime") from None
    session = onnxruntime.InferenceSession(pathlib.Path(path).read_bytes(), providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(seed)
    inputs = inputs_of(agent).parts
    names = input_names(inputs)
    is_dict = isinstance(agent.observation_space, spaces.Dict)
    largest, n_others = 0.0, 0
    is_vote = agent.policy.actor is None and exportable_table(agent) is None
    decisions = decisions_of(agent)
    is_exact = not is_vote and decisions.is_plain
    outputs = [name for name, _ in leaves(decisions.own_actions)]
    for first in range(0, n, 100):  # pictures are large
        drawn = {key: part.sample(min(100, n - first), generator) for key, part in inputs.items()}
        parts = {key: inputs[key].seen(values) for key, values in drawn.items()}
        seen: Any = parts if is_dict else next(iter(parts.values()))
        fed = {names[key]: values for key, values in drawn.items()}
        if not is_exact:
            n_others += _count_others(agent, session.run(outputs, fed), seen)
            continue
        probabilities, actions = session.run([PROBABILITIES, ACTION], fed)
        expected = agent.policy.probabilities(seen)
        everything = np.ones((len(expected), agent.policy.n_actions), dtype=bool)
        predicted, _ = agent.actions.predict(agent.agent_learner, seen, None, None, True, everything)
        largest = max(largest, float(np.abs(probabilities - expected).max()))
        # where two actions are about equally probable, rounding may decide between them
        zero_based = np.asarray(actions - agent.decisions.first_action)[:, None]
        lost = expected.max(axis=1) - np.take_along_axis(expected, zero_based, axis=1)[:, 0]
        n_others += int(np.sum((actions != predicted) & (lost > TOLERANCE)))
    # Votes and sequences of decisions say not how close they were.
    if not largest <= TOLERANCE or n_others > (0 if is_exact else _FEW * n):
        raise ValueError(
            f"{path} does not do what the agent does: probabilities differ by up to {largest:.3g}, and {n_others} of "
            f"{n} actions are others. Is it of this agent?"
        )
    return largest


def _count_others(agent: Ensemble, actions: list[Any], seen: Any) -> int:
    """How many actions are not those that the agent predicts.

    :param actions: of each part of the action space
    """
    decisions = decisions_of(agent)

    def predicted(observations: Any, allowed: BoolArray | None) -> Any:
        chosen, _ = agent.actions.predict(agent.agent_learner, observations, None, None, True, None)
        return chosen if allowed is None else allowed.argmax(axis=1) + chosen

    # BinaryActionSearch asks for one bit after the other
    expected = predicted(seen, None) if decisions is agent.decisions else decisions.make(seen, None, predicted)
    pairs = zip(actions, by_leaf(decisions.own_actions, expected), strict=True)
    alike = [np.isclose(here, there, rtol=1e-5, atol=1e-6).reshape(len(here), -1).all(axis=1) for here, there in pairs]
    return int(np.sum(~np.all(alike, axis=0)))


def by_leaf(space: spaces.Space[Any], actions: Any) -> list[Any]:
    """Actions of each part of a space, as :func:`~bdpi.export.inputs.leaves` has them, from a batch of actions."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        keys = space.spaces.keys() if isinstance(space, spaces.Dict) else range(len(space.spaces))
        return [leaf for key in keys for leaf in by_leaf(space[key], [each[key] for each in actions])]  # type: ignore[index]
    return [np.asarray(actions)]
