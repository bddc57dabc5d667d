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
from bdpi.agents.descriptions import describe
from bdpi.agents.inputs import Input, Inputs, Normalization
from bdpi.export.inputs import exportable_actor, inputs_of
from bdpi.storage.atomic import make_folder, write_atomically

if TYPE_CHECKING:
    import onnx

    from bdpi.agents import Ensemble
    from bdpi.export.graph import Graph

REMEDY = 'pip install "bdpi[export]"'
PROBABILITIES, ACTION = "probabilities", "action"
#: How far probabilities may be from those of PyTorch, which adds numbers up in another order.
TOLERANCE = 1e-4


def export_onnx(agent: Ensemble, path: str | os.PathLike[str]) -> None:
    """Write an agent's actor, with all that comes before it, as an ONNX file.

    The graph takes observations as the environment gives them, with a first axis of any length n, and of the space's
    own type: float32, uint8 pictures (before any transposition), int64 state numbers of shape (n,). Its input is
    called ``observation``; Dict observations have an input per key (``observation.action`` for a key that is the name
    of an output). It returns

    - ``probabilities``, float32 (n, n_actions);
    - ``action``, int64 (n,): the most probable one, in the environment's numbers. That is ``predict`` with
      ``deterministic=True`` and without action masks. With masks, take the most probable action that is allowed.

    Discrete parts become one-hot, pictures are divided by 255 and transposed, numbers are scaled as the agent scales
    them, and ``VecNormalize`` normalises with the statistics that it has now, just as for the agent. A saved agent has
    in its file what is needed for that, and can be exported without its environment. A frame stack (``VecFrameStack``)
    has a memory, which a graph has not: the graph takes stacked observations. State numbers outside their space become
    a row of zeros.

    The file's metadata hold ``bdpi`` (version), ``class``, ``observation_space`` (of the inputs), ``action_space`` and
    ``wrappers`` (from the inside out), all but the first two as JSON.

    :param agent: BDPI or ActorMimic
    :param path: of the file; folders are made, and a file of that name is replaced at once or not at all
    :raises ImportError: without the package onnx
    :raises ValueError: for an agent without an actor, and for layers that have no counterpart
    """
    model = onnx_model(agent)
    target = pathlib.Path(path)
    make_folder(target.parent)
    write_atomically(target, model.SerializeToString(deterministic=True))


def onnx_model(agent: Ensemble) -> onnx.ModelProto:
    """What :func:`export_onnx` writes."""
    try:
        import onnx
        from onnx import TensorProto, helper
    except ImportError:
        raise ImportError(f"ONNX files need the package onnx, which is not installed: {REMEDY}") from None
    from bdpi.export.graph import IR_VERSION, OPSET, Graph, add_network

    actor = exportable_actor(agent)
    described = inputs_of(agent)
    inputs = described.parts
    names = input_names(inputs)
    graph = Graph()
    with agent.learning_paused():
        seen = _parts(agent.observation_space, inputs)
        prepared = {
            key: _preprocess(graph, _wrap(graph, names[key], part), seen[key], agent.policy.normalize_images)
            for key, part in inputs.items()
        }
        for key, scales in agent.policy.scales_of_parts().items():
            name = next(iter(prepared)) if key is None else key
            shift, factor = (each.cpu().numpy().reshape(seen[name].shape) for each in scales)
            centred = graph.add("Sub", prepared[name], graph.constant(shift, what="shift"))
            prepared[name] = graph.add("Mul", centred, graph.constant(factor, what="factor"))
        is_dict = isinstance(agent.observation_space, spaces.Dict)
        scores = add_network(graph, actor, prepared if is_dict else next(iter(prepared.values())))
    graph.add("Softmax", scores, name=PROBABILITIES, axis=1)
    chosen = graph.add("ArgMax", PROBABILITIES, axis=1, keepdims=0)
    graph.add("Add", chosen, graph.constant(agent.decisions.first_action, np.int64), name=ACTION)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "policy",
            [
                helper.make_tensor_value_info(names[key], _type(part.space), ["n", *(part.space.shape or ())])
                for key, part in inputs.items()
            ],
            [
                helper.make_tensor_value_info(PROBABILITIES, TensorProto.FLOAT, ["n", agent.policy.n_actions]),
                helper.make_tensor_value_info(ACTION, TensorProto.INT64, ["n"]),
            ],
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
    return {
        key: f"observation.{key}" if key in (PROBABILITIES, ACTION) or key[:1] in ("/", "") else key for key in inputs
    }


def _metadata(agent: Ensemble, inputs: Inputs) -> dict[str, str]:
    is_dict = isinstance(agent.observation_space, spaces.Dict)
    taken = {key: part.space for key, part in inputs.parts.items()}
    space = spaces.Dict(taken) if is_dict else next(iter(taken.values()))
    return {
        "bdpi": bdpi.__version__,
        "class": type(agent).__name__,
        "observation_space": json.dumps(describe(space)),
        "action_space": json.dumps(describe(agent.action_space)),
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


def _cast(graph: Graph, value: str, dtype: Any) -> str:
    from onnx import helper

    return graph.add("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _wrap(graph: Graph, value: str, part: Input) -> str:
    """Add what the environment's wrappers do."""
    for step in part.steps:
        if isinstance(step, Normalization):
            # In double precision, as NumPy does it: a mean may be much larger than the deviation from it.
            centred = graph.add("Sub", _cast(graph, value, np.float64), graph.constant(step.mean, np.float64, "mean"))
            scaled = graph.add("Div", centred, graph.constant(step.deviation, np.float64, "deviation"))
            bounds = (graph.constant(sign * step.clip, np.float64, "clip") for sign in (-1, 1))
            value = _cast(graph, graph.add("Clip", scaled, *bounds), np.float32)
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
        return _equal(graph, column, numbers)
    if isinstance(seen, spaces.MultiDiscrete):
        sizes = [int(size) for size in seen.nvec]
        numbers = np.concatenate([np.arange(size) + int(start) for size, start in zip(sizes, seen.start, strict=True)])
        # each number as often as it has possible values, beside each of them
        which = graph.constant(np.repeat(np.arange(len(sizes)), sizes), np.int64, "which")
        return _equal(graph, graph.add("Gather", _cast(graph, value, np.int64), which, axis=1), numbers)
    value = _cast(graph, value, np.float32)
    if normalize_images and is_image_space(seen):
        value = graph.add("Div", value, graph.constant(255.0))
    return value


def _equal(graph: Graph, values: str, numbers: Any) -> str:
    return _cast(graph, graph.add("Equal", values, graph.constant(numbers, np.int64, "numbers")), np.float32)


def check_onnx(agent: Ensemble, path: str | os.PathLike[str], n: int = 1000, seed: int = 0) -> float:
    """Compare an exported file with the agent's own predictions, on random observations, in ONNX Runtime.

    :param agent: that was exported
    :param path: of the file
    :param n: number of observations
    :param seed: of the observations
    :return: the largest difference between two probabilities
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
    largest = 0.0
    for first in range(0, n, 100):  # pictures are large
        drawn = {key: part.sample(min(100, n - first), generator) for key, part in inputs.items()}
        parts = {key: inputs[key].seen(values) for key, values in drawn.items()}
        seen: Any = parts if is_dict else next(iter(parts.values()))
        fed = {names[key]: values for key, values in drawn.items()}
        probabilities, actions = session.run([PROBABILITIES, ACTION], fed)
        expected = agent.policy.probabilities(seen)
        everything = np.ones((len(expected), agent.policy.n_actions), dtype=bool)
        predicted, _ = agent.predict(seen, deterministic=True, action_masks=everything)
        difference = float(np.abs(probabilities - expected).max())
        # where two actions are about equally probable, rounding may decide between them
        zero_based = np.asarray(actions - agent.decisions.first_action)[:, None]
        lost = expected.max(axis=1) - np.take_along_axis(expected, zero_based, axis=1)[:, 0]
        if not difference <= TOLERANCE or np.any((actions != predicted) & (lost > TOLERANCE)):
            raise ValueError(
                f"{path} does not do what the agent does: probabilities differ by up to {difference:.3g}, and "
                f"{int((actions != predicted).sum())} of {len(actions)} actions are others. Is it of this agent?"
            )
        largest = max(largest, difference)
    return largest
