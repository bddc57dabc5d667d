"""The end of an ONNX graph: the networks, and the choice of an action by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bdpi.agents.decisions import KEY
from bdpi.export.inputs import Opinion, bounds_of, decisions_of, exportable_table, leaves

if TYPE_CHECKING:
    from bdpi.agents import Ensemble
    from bdpi.export.graph import Graph

PROBABILITIES, ACTION = "probabilities", "action"


class Decider:
    """Adds what comes after the preprocessing: the networks, and the choice of an action by them.

    :param opinions: see :func:`bdpi.export.inputs.exportable_networks`
    :param prepared: names of the preprocessed parts of the observation, by key
    """

    def __init__(self, graph: Graph, agent: Ensemble, opinions: list[Opinion], prepared: dict[str, str]) -> None:
        self._graph, self._agent, self._opinions, self._prepared = graph, agent, opinions, prepared
        self._decisions = decisions_of(agent)
        self._is_dict = isinstance(agent.observation_space, spaces.Dict)

    def add(self, observation: str) -> list[tuple[str, int, tuple[int, ...]]]:
        """Add all of it; returns names, types and shapes of the outputs.

        :param observation: an input, which says how many observations there are
        """
        from onnx import TensorProto

        graph, agent, decisions = self._graph, self._agent, self._decisions
        if decisions.is_plain:
            table = exportable_table(agent)
            scores = [] if table is not None else self._scores(self._prepared)
            chosen = self._chosen(scores, PROBABILITIES) if table is None else self._looked_up(observation, table)
            graph.add("Add", chosen, graph.constant(decisions.first_action, np.int64), name=ACTION)
            n_actions = agent.policy.n_actions
            return [(PROBABILITIES, TensorProto.FLOAT, (n_actions,)), (ACTION, TensorProto.INT64, ())]
        sums = decisions.sums()
        n = graph.add("Shape", observation, start=0, end=1)
        decided, action = (self._rows(n, row) for row in (np.zeros_like(sums.seen[0]), sums.action))
        flat = None if self._is_dict else self._flat()
        for number, before in enumerate(sums.seen):
            seen = self._seen(graph.add("Add", decided, graph.constant(before, np.float64)), flat, len(before))
            first, end = sums.bounds[number], sums.bounds[number + 1]
            scores = self._scores(seen)
            if decisions is agent.decisions:  # else, all are by the same outputs
                bounds = [graph.constant([at], np.int64, "bound") for at in (first, end, 1)]
                scores = [graph.add("Slice", each, *bounds) for each in scores]
            chosen = self._chosen(scores)
            for_this = (graph.constant(rows[first:end], np.float64) for rows in (sums.seen_by, sums.action_by))
            decided, action = (
                graph.add("Add", so_far, graph.add("Gather", rows, chosen, axis=0))
                for so_far, rows in zip((decided, action), for_this, strict=True)
            )
        return self._parts_of(action)

    def _looked_up(self, state: str, table: NDArray[np.float32]) -> str:
        """The most probable choice by a table, which gets a row for states that it does not have."""
        graph, n_states = self._graph, len(table)
        assert isinstance(self._agent.observation_space, spaces.Discrete)
        row = graph.add("Sub", state, graph.constant(self._agent.observation_space.start, np.int64, "first"))
        is_known = [graph.add("GreaterOrEqual", row, graph.constant(0, np.int64, "bound"))]
        is_known.append(graph.add("Less", row, graph.constant(n_states, np.int64, "bound")))
        row = graph.add("Where", graph.add("And", *is_known), row, graph.constant(n_states, np.int64, "unknown"))
        rows = graph.constant(np.vstack([table, np.full_like(table[:1], 1 / table.shape[1])]), what="table")
        return graph.add("ArgMax", graph.add("Gather", rows, row, name=PROBABILITIES, axis=0), axis=1, keepdims=0)

    def _rows(self, n: str, row: Any) -> str:
        """The same row for each observation."""
        shape = self._graph.add("Concat", n, self._graph.constant([len(row)], np.int64, "size"), axis=0)
        return self._graph.add("Expand", self._graph.constant(row[None], np.float64), shape)

    def _flat(self) -> str:
        (value,) = self._prepared.values()
        return self._graph.add("Flatten", value, axis=1)

    def _seen(self, decided: str, flat: str | None, n_seen: int) -> dict[str, str]:
        """The parts of what networks see, with what is decided so far."""
        if not n_seen:
            return self._prepared if flat is None else dict.fromkeys(self._prepared, flat)
        decided = cast(self._graph, decided, np.float32)
        if flat is None:
            return {**self._prepared, KEY: decided}
        return dict.fromkeys(self._prepared, self._graph.add("Concat", flat, decided, axis=1))

    def _scores(self, seen: dict[str, str]) -> list[str]:
        """One for each opinion, (n, outputs)."""
        from bdpi.export.graph import add_network

        graph, space = self._graph, self._agent.policy.input_space
        seen = dict(seen)
        for key, scales in self._agent.policy.scales_of_parts().items():
            name = next(iter(seen)) if key is None else key
            part = space[key] if isinstance(space, spaces.Dict) and key is not None else space
            shift, factor = (each.cpu().numpy().reshape(part.shape) for each in scales)
            centred = graph.add("Sub", seen[name], graph.constant(shift, what="shift"))
            seen[name] = graph.add("Mul", centred, graph.constant(factor, what="factor"))
        inputs: Any = seen if self._is_dict else next(iter(seen.values()))
        scores = []
        for opinion in self._opinions:
            weighted = [
                graph.add("Mul", add_network(graph, network, inputs), graph.constant(weight))
                if weight != 1
                else add_network(graph, network, inputs)
                for weight, network in opinion
            ]
            scores.append(weighted[0] if len(weighted) == 1 else graph.add("Sum", *weighted))
        return scores

    def _chosen(self, scores: list[str], name: str | None = None) -> str:
        """The most probable choice, or that of most critics.

        :param name: of the probabilities
        """
        graph = self._graph
        if self._agent.policy.actor is not None:
            probabilities = graph.add("Softmax", scores[0], name=name, axis=1)
            return graph.add("ArgMax", probabilities, axis=1, keepdims=0)
        votes = []
        for each in scores:
            highest = graph.add("ArgMax", each, axis=1, keepdims=1)
            votes.append(equal(graph, highest, np.arange(self._decisions.most_choices)))
        total = graph.add("Sum", *votes)
        share = graph.add("Div", total, graph.constant(float(len(votes))), name=name)
        return graph.add("ArgMax", share, axis=1, keepdims=0)

    def _parts_of(self, action: str) -> list[tuple[str, int, tuple[int, ...]]]:
        """The outputs, cut out of a flat action."""
        from onnx import helper

        graph, first = self._graph, 0
        outputs: list[tuple[str, int, tuple[int, ...]]] = []
        for name, space in leaves(self._decisions.own_actions):
            low, high, is_whole = bounds_of(space)
            bounds = [graph.constant([at], np.int64, "bound") for at in (first, first + len(low), 1)]
            value, first = graph.add("Slice", action, *bounds), first + len(low)
            value = graph.add("Round", value) if is_whole else value
            value = graph.add("Max", value, graph.constant(low, np.float64))
            value = graph.add("Min", value, graph.constant(high, np.float64))
            dtype = np.dtype(space.dtype if isinstance(space, spaces.Box) else np.int64)
            kind, shape = helper.np_dtype_to_tensor_dtype(dtype), tuple(space.shape or ())
            value = graph.add("Reshape", value, graph.constant([-1, *shape], np.int64, "shape"))
            outputs.append((graph.add("Cast", value, to=kind, name=name), kind, shape))
        return outputs


def cast(graph: Graph, value: str, dtype: Any) -> str:
    """Another type."""
    from onnx import helper

    return graph.add("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def equal(graph: Graph, values: str, numbers: Any) -> str:
    """Ones where the values are these numbers, as float32."""
    return cast(graph, graph.add("Equal", values, graph.constant(numbers, np.int64, "numbers")), np.float32)
