"""A policy as a C header, for microcontrollers: no memory allocation, nothing needed but math.h.

``templates/policy.h.j2`` is the header; here is what is written into it.
"""

from __future__ import annotations

import os
import pathlib
import re
import textwrap
from functools import cache
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

import bdpi
from bdpi.agents.decisions import Sums
from bdpi.agents.inputs import Input, Normalization
from bdpi.agents.policies import Network
from bdpi.export.inputs import (
    bounds_of,
    decisions_of,
    exportable_networks,
    exportable_table,
    inputs_of,
    leaves,
    note_on_masks,
)
from bdpi.storage.atomic import make_folder, write_atomically

if TYPE_CHECKING:
    from bdpi.agents import Ensemble

_WIDTH = 120
_LARGEST_STATE = 1 << 24  # above, floats are further apart than 1
_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.Tanh: "tanhf(values[i])",
    nn.ReLU: "values[i] > 0.0f ? values[i] : 0.0f",
}


def export_c(agent: Ensemble, path: str | os.PathLike[str], name: str | None = None) -> None:
    """Write what an agent acts by, with all that comes before it, as one C99 header without dependencies.

    The header has ``static const float`` weights and two functions::

        int NAME_act(const float *observation);                          // the most probable action
        void NAME_probabilities(const float *observation, float *out);   // of all NAME_ACTIONS actions

    An observation is NAME_INPUTS numbers as the environment gives them, in the order of memory (C order) where they
    have several axes; a Discrete one is one number. Actions are the environment's numbers. The agent's scales and
    ``VecNormalize`` are part of the functions, as they are now; a saved agent has them in its file. ``VecFrameStack``
    is not: the functions take stacked observations. Of an agent with ``n_stack``, a third function keeps them, in an
    array of NAME_INPUTS numbers of yours::

        void NAME_observe(float *observation, const float *frame, int begins);  // begins: the first of an episode

    Action masks are not, either: of the probabilities, take the
    largest that is allowed. Compile with ``-lm`` where the C library needs it. The functions take a few hundred bytes
    of stack, for the hidden units.

    The critics of an agent without an actor vote: their shares are its probabilities. Actions of several parts are
    decided one after the other, and returned as NAME_NUMBERS floats, part after part, instead::

        void NAME_act(const float *observation, float *action);

    So are the bits of an agent that learned behind ``BinaryActionSearch``, see
    :func:`~bdpi.export.onnx_file.export_onnx`.

    The table of TabularBDPI is looked up; all actions are alike in states that it does not have.

    :param agent: any with a table, or with perceptrons of tanh or ReLU units on Box or Discrete observations
    :param path: of the file; folders are made, and a file of that name is replaced at once or not at all
    :param name: what the names in the header begin with; the file's name if None
    :raises ValueError: for other observations and networks
    """
    target = pathlib.Path(path)
    text = c_header(agent, _identifier(target.stem) if name is None else name)
    make_folder(target.parent)
    write_atomically(target, text.encode("ascii"))


def c_header(agent: Ensemble, name: str = "policy") -> str:
    """What :func:`export_c` writes.

    :param name: what the names in the header begin with
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"name must be letters, digits and _, beginning with a letter, got {name!r}")
    opinions, decisions = exportable_networks(agent), decisions_of(agent)
    part = _only_input(agent)
    if agent.policy.prior_scale:
        raise ValueError("critics with prior functions cannot be exported as C: export them as ONNX")
    modules: list[Any] = []
    with agent.learning_paused():
        table = exportable_table(agent)
        if table is None:
            networks = [_perceptron(network) for ((_, network),) in opinions]
            arrays, modules = _arrays(agent, part, [each[::2] for each in networks]), networks[0]
            sizes = [modules[0].in_features, *(layer.out_features for layer in modules[::2])]
        else:
            arrays, sizes = {"table": table.reshape(-1)}, list(table.shape)
    sums = None if decisions.is_plain else decisions.sums()
    if sums is not None:
        arrays |= _decisions(decisions.own_actions, sums)
    normalization = _normalization(part)
    return _template().render(
        name=name,
        agent=type(agent).__name__,
        version=bdpi.__version__,
        shape=part.space.shape,
        n_stack=agent.n_stack,
        states=part.space if isinstance(part.space, spaces.Discrete) else None,
        clip=None if normalization is None else normalization.clip,
        first_action=decisions.first_action,
        note=note_on_masks(agent),
        sizes=sizes,
        activation=_ACTIVATIONS[type(modules[1])] if len(modules) > 1 else "",
        arrays=arrays,
        is_table=table is not None,
        n_networks=len(opinions),
        is_vote=table is None and agent.policy.actor is None,
        bounds=[] if sums is None else sums.bounds.tolist(),
        is_search=decisions is not agent.decisions,
        n_decided=0 if sums is None else sums.seen.shape[1],
        n_numbers=0 if sums is None else len(sums.action),
        number_of=[] if sums is None else np.abs(sums.action_by).argmax(axis=1).tolist(),
        n_constants=sum(map(len, arrays.values())),
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bdpi.export"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(number=_number, numbers=_numbers)
    return environment.get_template("policy.h.j2")


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
    if isinstance(part.space, spaces.Discrete) and not agent.decisions.is_plain:
        raise ValueError("decisions that follow state numbers cannot be exported as C: export them as ONNX")
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


def _perceptron(actor: Network) -> list[Any]:
    """The linear layers of an actor, and the activation functions between them.

    :raises ValueError: when it is something else than a perceptron
    """
    extractor, *modules = actor.children()
    if type(actor) is not Network or type(extractor) is not FlattenExtractor:
        kind = type(extractor if type(actor) is Network else actor).__name__
        raise ValueError(f"a network with {kind} cannot be exported as C, only perceptrons: export it as ONNX")
    activations = {type(module) for module in modules[1::2]}
    if not activations <= _ACTIVATIONS.keys() or len(activations) > 1:
        named = ", ".join(sorted(kind.__name__ for kind in activations))
        raise ValueError(f"units of class {named} cannot be exported as C, only Tanh or ReLU: export them as ONNX")
    return modules


def _normalization(part: Input) -> Normalization | None:
    return next((step for step in part.steps if isinstance(step, Normalization)), None)


def _decisions(actions: spaces.Space[Any], sums: Sums) -> dict[str, NDArray[Any]]:
    bounds = [bounds_of(space) for _, space in leaves(actions)]
    low, high = (np.concatenate([each[side] for each in bounds]) for side in (0, 1))
    whole = np.concatenate([np.full(len(each[0]), each[2]) for each in bounds])
    seen = {"decided": sums.seen.reshape(-1), "decided_by": sums.seen_by.reshape(-1)} if sums.seen.size else {}
    return {
        **seen,
        "action": sums.action,
        "action_by": np.take_along_axis(sums.action_by, np.abs(sums.action_by).argmax(axis=1)[:, None], axis=1)[:, 0],
        "low": low,
        "high": high,
        "whole": whole,
    }


def _arrays(agent: Ensemble, part: Input, networks: list[list[nn.Linear]]) -> dict[str, NDArray[Any]]:
    """The constants, by the end of their names; those of several networks are one behind the other."""
    arrays: dict[str, NDArray[Any]] = {}
    for shift, factor in agent.policy.scales_of_parts().values():
        if bool((shift != 0).any() or (factor != 1).any()):
            arrays |= {"shift": shift.cpu().numpy(), "factor": factor.cpu().numpy()}
    normalization = _normalization(part)
    if normalization is not None:
        # A mean is the sum of two floats, so that observations near it keep all their digits.
        mean = normalization.mean.reshape(-1)
        high = mean.astype(np.float32)
        arrays |= {"mean": high, "mean_rest": mean - high, "scale": 1 / normalization.deviation.reshape(-1)}
    for number, layers in enumerate(zip(*networks, strict=True)):
        for name, plural in (("weight", "weights"), ("bias", "biases")):
            values = [getattr(layer, name).detach().cpu().numpy().reshape(-1) for layer in layers]
            arrays[f"{plural}_{number}"] = np.concatenate(values)
    return arrays


# -- text


def _numbers(values: NDArray[Any]) -> str:
    indent = " " * 4
    text = ", ".join(map(_number, values)) + ","
    return textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _number(value: Any) -> str:
    """A float constant that is exactly the float32 it was printed from: nine digits tell any two of them apart."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if not np.isfinite(single):
        raise ValueError(f"the policy holds {value}, which is no finite float: it cannot be exported as C")
    text = f"{float(single):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"
