"""A policy as a C header, for microcontrollers: no memory allocation, nothing needed but math.h."""

from __future__ import annotations

import os
import pathlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

import bdpi
from bdpi.agents.files import replace_file
from bdpi.agents.inputs import Input, Normalization
from bdpi.agents.policies import Network
from bdpi.export.inputs import MASKS_ARE_NOT_EXPORTED, exportable_actor, inputs_of

if TYPE_CHECKING:
    from bdpi.agents import Ensemble

_WIDTH = 120
_LARGEST_STATE = 1 << 24  # above, floats are further apart than 1
_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.Tanh: "tanhf(values[i])",
    nn.ReLU: "values[i] > 0.0f ? values[i] : 0.0f",
}


@dataclass(frozen=True, eq=False)
class _Layer:
    weights: NDArray[np.float32]  # (outputs, inputs)
    biases: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class _Scales:
    shift: NDArray[np.float32]
    factor: NDArray[np.float32]

    @classmethod
    def of(cls, agent: Ensemble) -> _Scales | None:
        """How the agent scales observations; None: not at all."""
        for shift, factor in agent.policy.scales_of_parts().values():
            if bool((shift != 0).any() or (factor != 1).any()):
                return cls(shift.cpu().numpy(), factor.cpu().numpy())
        return None


def export_c(agent: Ensemble, path: str | os.PathLike[str], name: str | None = None) -> None:
    """Write an agent's actor, with all that comes before it, as one C99 header without dependencies.

    The header has ``static const float`` weights and two functions::

        int NAME_act(const float *observation);                          // the most probable action
        void NAME_probabilities(const float *observation, float *out);   // of all NAME_ACTIONS actions

    An observation is NAME_INPUTS numbers as the environment gives them, in the order of memory (C order) where they
    have several axes; a Discrete one is one number. Actions are the environment's numbers. The agent's scales and
    ``VecNormalize`` are part of the functions, as they are now; a saved agent has them in its file. ``VecFrameStack``
    is not: the functions take stacked observations. Action masks are not, either: of the probabilities, take the
    largest that is allowed. Compile with ``-lm`` where the C library needs it. The functions take a few hundred bytes
    of stack, for the hidden units.

    :param agent: BDPI or ActorMimic, with a perceptron of tanh or ReLU units on Box or Discrete observations
    :param path: of the file; folders are made, and a file of that name is replaced at once or not at all
    :param name: what the names in the header begin with; the file's name if None
    :raises ValueError: for an agent without an actor, and for other observations and networks
    """
    target = pathlib.Path(path)
    text = c_header(agent, _identifier(target.stem) if name is None else name)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, lambda file: file.write(text.encode("ascii")))


def c_header(agent: Ensemble, name: str = "policy") -> str:
    """What :func:`export_c` writes.

    :param name: what the names in the header begin with
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"name must be letters, digits and _, beginning with a letter, got {name!r}")
    actor = exportable_actor(agent)
    part = _only_input(agent)
    with agent.learning_paused():
        layers, activation = _perceptron(actor)
        normalization = next((step for step in part.steps if isinstance(step, Normalization)), None)
        scales = _Scales.of(agent)
    one_hot = part.space if isinstance(part.space, spaces.Discrete) else None
    lines = [
        *_introduction(agent, part, layers, normalization, scales, name),
        *_constants(name, layers, normalization, scales),
        *_helpers(name, layers, activation, one_hot),
        *_scores(name, layers, normalization, scales, one_hot),
        *_functions(name),
    ]
    return "\n".join(lines) + "\n"


def _identifier(stem: str) -> str:
    found = re.sub(r"[^A-Za-z0-9]+", "_", stem).strip("_")
    return found if found[:1].isalpha() else f"policy_{found}".rstrip("_")


# -- what is exported


def _only_input(agent: Ensemble) -> Input:
    """:raises ValueError: for observations that the header cannot take"""
    remedy = "the C header takes Box and Discrete observations; everything else can be exported as ONNX"
    if isinstance(agent.observation_space, spaces.Dict):
        raise ValueError(f"Dict observations cannot be exported as C: {remedy}")
    (part,) = inputs_of(agent).parts.values()
    if not isinstance(part.space, spaces.Box | spaces.Discrete):
        raise ValueError(f"observations of {part.space} cannot be exported as C: {remedy}")
    if is_image_space(part.space):
        raise ValueError(f"pictures cannot be exported as C: {remedy}")
    if isinstance(part.space, spaces.Discrete):
        first, last = int(part.space.start), int(part.space.start + part.space.n - 1)
        if max(-first, last) > _LARGEST_STATE:
            raise ValueError(
                f"the states {first} to {last} cannot be exported as C, because float has no number for each of them: "
                "export them as ONNX"
            )
    return part


def _perceptron(actor: Network) -> tuple[list[_Layer], type[nn.Module] | None]:
    """The layers of an actor, and the class of its activation function (None without hidden layers).

    :raises ValueError: when it is something else than a perceptron
    """
    extractor, *rest = actor.children()
    if type(actor) is not Network or type(extractor) is not FlattenExtractor:
        kind = type(extractor if type(actor) is Network else actor).__name__
        raise ValueError(f"a network with {kind} cannot be exported as C, only perceptrons: export it as ONNX")
    hidden, activations = rest[0::2], {type(module) for module in rest[1::2]}
    if not activations <= _ACTIVATIONS.keys() or len(activations) > 1:
        named = ", ".join(sorted(kind.__name__ for kind in activations))
        raise ValueError(f"units of class {named} cannot be exported as C, only Tanh or ReLU: export them as ONNX")
    layers = []
    for module in hidden:
        assert isinstance(module, nn.Linear)
        layers.append(_Layer(module.weight.detach().cpu().numpy(), module.bias.detach().cpu().numpy()))
    return layers, next(iter(activations), None)


# -- text


def _introduction(
    agent: Ensemble,
    part: Input,
    layers: list[_Layer],
    normalization: Normalization | None,
    scales: _Scales | None,
    name: str,
) -> list[str]:
    first, n_actions = int(agent.action_space.start), int(agent.action_space.n)
    n_inputs = 1 if isinstance(part.space, spaces.Discrete) else int(layers[0].weights.shape[1])
    sizes = "-".join(str(size) for size in (layers[0].weights.shape[1], *(len(layer.biases) for layer in layers)))
    n_constants = sum(layer.weights.size + layer.biases.size for layer in layers)
    n_constants += 0 if normalization is None else 3 * normalization.mean.size
    n_constants += 0 if scales is None else 2 * scales.shift.size
    if isinstance(part.space, spaces.Discrete):
        observation = f"the number of a state, from {part.space.start} to {part.space.start + part.space.n - 1}"
    else:
        observation = f"{n_inputs} numbers as the environment gives them, shape {part.space.shape}"
    lines = [
        f"/* The policy of a {type(agent).__name__} agent, written by bdpi {bdpi.__version__}.",
        " *",
        f" * Observation: {observation}.",
    ]
    if normalization is not None:
        lines.append(" * It is normalised here, by the statistics of the agent's VecNormalize.")
    lines.append(f" * Actions: {first} to {first + n_actions - 1}.")
    if agent.learned_with_masks:
        lines.append(f" * {MASKS_ARE_NOT_EXPORTED}.")
    lines += [
        f" * Network: {sizes}; {n_constants} constants, {4 * n_constants} bytes.",
        " */",
        f"#ifndef BDPI_{name.upper()}_H",
        f"#define BDPI_{name.upper()}_H",
        "",
        "#include <math.h>",
        "",
        f"#define {name.upper()}_INPUTS {n_inputs}",
        f"#define {name.upper()}_ACTIONS {n_actions}",
        f"#define {name.upper()}_FIRST_ACTION ({first})",
        "",
    ]
    return lines


def _constants(
    name: str, layers: list[_Layer], normalization: Normalization | None, scales: _Scales | None
) -> list[str]:
    lines: list[str] = []
    if scales is not None:
        lines += _array(f"{name}_shift", scales.shift)
        lines += _array(f"{name}_factor", scales.factor)
    if normalization is not None:
        # A mean is the sum of two floats, so that observations near it keep all their digits.
        mean = normalization.mean.reshape(-1)
        high = mean.astype(np.float32)
        lines += _array(f"{name}_mean", high)
        lines += _array(f"{name}_mean_rest", mean - high)
        lines += _array(f"{name}_scale", 1 / normalization.deviation.reshape(-1))
    for number, layer in enumerate(layers):
        lines += _array(f"{name}_weights_{number}", layer.weights.reshape(-1))
        lines += _array(f"{name}_biases_{number}", layer.biases)
    return [*lines, ""]


def _array(name: str, values: NDArray[Any]) -> list[str]:
    lines = [f"static const float {name}[{len(values)}] = {{"]
    row = "   "
    for text in map(_number, values):
        if len(row) + len(text) + 2 > _WIDTH:
            lines.append(row)
            row = "   "
        row += f" {text},"
    return [*lines, row, "};"]


def _number(value: Any) -> str:
    """A float constant that is exactly the float32 it was printed from: nine digits tell any two of them apart."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if not np.isfinite(single):
        raise ValueError(f"the policy holds {value}, which is no finite float: it cannot be exported as C")
    text = f"{float(single):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _helpers(
    name: str, layers: list[_Layer], activation: type[nn.Module] | None, one_hot: spaces.Discrete | None
) -> list[str]:
    lines: list[str] = []
    if one_hot is None or len(layers) > 1:
        lines += [
            "/* out = biases + weights in; weights has a row for each output. */",
            f"static inline void {name}_layer(const float *weights, const float *biases, const float *in, int n_in,",
            "        float *out, int n_out) {",
            "    for (int i = 0; i < n_out; i++) {",
            "        float sum = biases[i];",
            "        for (int j = 0; j < n_in; j++) sum += *weights++ * in[j];",
            "        out[i] = sum;",
            "    }",
            "}",
            "",
        ]
    if activation is not None:
        lines += [
            f"static inline void {name}_activate(float *values, int n) {{",
            f"    for (int i = 0; i < n; i++) values[i] = {_ACTIVATIONS[activation]};",
            "}",
            "",
        ]
    return lines


def _scores(
    name: str,
    layers: list[_Layer],
    normalization: Normalization | None,
    scales: _Scales | None,
    one_hot: spaces.Discrete | None,
) -> list[str]:
    """The function from an observation to the network's outputs."""
    lines = [f"static inline void {name}_scores(const float *observation, float *out) {{"]
    value = "observation"
    n_inputs = layers[0].weights.shape[1]
    if normalization is not None:
        clip = _number(normalization.clip)
        lines += [
            f"    float seen[{n_inputs}];",
            f"    for (int i = 0; i < {n_inputs}; i++) {{",
            f"        const float value = (observation[i] - {name}_mean[i] - {name}_mean_rest[i]) * {name}_scale[i];",
            f"        seen[i] = value < -{clip} ? -{clip} : value > {clip} ? {clip} : value;",
            "    }",
        ]
        value = "seen"
    if scales is not None:
        lines += [
            f"    float scaled[{n_inputs}];",
            f"    for (int i = 0; i < {n_inputs}; i++) scaled[i] = ({value}[i] - {name}_shift[i]) * {name}_factor[i];",
        ]
        value = "scaled"
    for number, layer in enumerate(layers):
        n_in, n_out = layer.weights.shape[1], len(layer.biases)
        last = number == len(layers) - 1
        target = "out" if last else f"hidden_{number}"
        if not last:
            lines.append(f"    float {target}[{n_out}];")
        weights, biases = f"{name}_weights_{number}", f"{name}_biases_{number}"
        if one_hot is not None and number == 0:
            lines += [
                f"    const float state = observation[0] - {_number(one_hot.start)};",
                f"    const int known = state >= 0.0f && state < {_number(one_hot.n)};  /* else, no input is one */",
                f"    const float *column = {weights} + (known ? (long)state : 0);",
                f"    for (int i = 0; i < {n_out}; i++) "
                f"{target}[i] = {biases}[i] + (known ? column[(long)i * {n_in}] : 0.0f);",
            ]
        else:
            lines.append(f"    {name}_layer({weights}, {biases}, {value}, {n_in}, {target}, {n_out});")
        if not last:
            lines.append(f"    {name}_activate({target}, {n_out});")
        value = target
    return [*lines, "}", ""]


def _functions(name: str) -> list[str]:
    n_actions = f"{name.upper()}_ACTIONS"
    return [
        "/* The most probable action, in the environment's numbers. */",
        f"static inline int {name}_act(const float *observation) {{",
        f"    float scores[{n_actions}];",
        "    int best = 0;",
        f"    {name}_scores(observation, scores);",
        f"    for (int i = 1; i < {n_actions}; i++) if (scores[i] > scores[best]) best = i;",
        f"    return {name.upper()}_FIRST_ACTION + best;",
        "}",
        "",
        f"/* How probable each action is: {n_actions} numbers. */",
        f"static inline void {name}_probabilities(const float *observation, float *out) {{",
        "    float largest, sum = 0.0f;",
        f"    {name}_scores(observation, out);",
        "    largest = out[0];",
        f"    for (int i = 1; i < {n_actions}; i++) if (out[i] > largest) largest = out[i];",
        f"    for (int i = 0; i < {n_actions}; i++) sum += out[i] = expf(out[i] - largest);",
        f"    for (int i = 0; i < {n_actions}; i++) out[i] /= sum;",
        "}",
        "",
        f"#endif  /* BDPI_{name.upper()}_H */",
    ]
