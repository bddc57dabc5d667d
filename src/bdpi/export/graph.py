"""A PyTorch network as the nodes of an ONNX graph.

``torch.fx`` records what the network does with its layers; each layer becomes the ONNX operator of the same meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import fx, nn

#: The newest that every ONNX Runtime since 2022 reads.
OPSET, IR_VERSION = 17, 8


class Graph:
    """The nodes and constants of an ONNX graph, in the order in which they are computed."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._parameters: dict[Any, str] = {}

    def add(self, operator: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Add a node with one output.

        :param operator: ONNX name
        :param inputs: names of values
        :param name: of the output; a new one if None
        :param attributes: of the operator
        :return: the output's name
        """
        # No key of a Dict observation can be mistaken for it: those come without the slash, see onnx_file.
        name = name or f"/{len(self.nodes)}/{operator}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=f"/{len(self.nodes)}", **attributes))
        return name

    def constant(self, values: Any, dtype: Any = np.float32, what: str = "constant") -> str:
        """Add an array.

        :return: its name
        """
        name = f"/{what}/{len(self.constants)}"
        array = np.ascontiguousarray(np.asarray(values, dtype=dtype))
        self.constants.append(numpy_helper.from_array(array.reshape(np.shape(values)), name))
        return name

    def parameter(self, tensor: torch.Tensor, what: str) -> str:
        """Add a parameter of a network, once for all that it is computed for."""
        key = tensor.data_ptr(), tensor.shape, tensor.stride()
        if key not in self._parameters:
            self._parameters[key] = self.constant(tensor.detach().cpu().numpy(), what=what)
        return self._parameters[key]


def add_network(graph: Graph, network: nn.Module, inputs: str | dict[str, str]) -> str:
    """Add what a network computes.

    :param inputs: name of its input, or the names by key where it takes a dictionary
    :return: name of its output
    :raises ValueError: for a network with parts that have no counterpart here
    """
    try:
        traced = fx.Tracer().trace(network)  # type: ignore[no-untyped-call]
    except Exception as error:  # a features extractor of the user may raise anything
        raise ValueError(
            "the actor cannot be exported, because what it computes depends on the values that it computes with "
            f"({type(error).__name__}: {error})"
        ) from error
    values: dict[fx.Node, Any] = {}

    def value_of(argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [value_of(part) for part in argument]
        return values[argument] if isinstance(argument, fx.Node) else argument

    for node in traced.nodes:
        arguments = [value_of(argument) for argument in node.args]
        options = {name: value_of(argument) for name, argument in node.kwargs.items()}
        if node.op == "output":
            return str(arguments[0])
        if node.op == "placeholder":
            values[node] = inputs
        elif node.op == "get_attr":
            values[node] = graph.parameter(_attribute(network, str(node.target)), str(node.target))
        elif node.op == "call_module":
            values[node] = _add_module(graph, network.get_submodule(str(node.target)), *arguments)
        else:
            values[node] = _add_function(graph, node, arguments, options)
    raise AssertionError("a traced network has an output")


def _attribute(network: nn.Module, path: str) -> torch.Tensor:
    value: Any = network
    for name in path.split("."):
        value = getattr(value, name)
    assert isinstance(value, torch.Tensor)
    return value


# -- layers


def _add_module(graph: Graph, module: nn.Module, *inputs: Any) -> str:
    add = _MODULES.get(type(module))
    if add is None:
        known = ", ".join(sorted(kind.__name__ for kind in _MODULES))
        raise ValueError(f"layers of class {type(module).__name__} cannot be exported; those that can: {known}")
    return add(graph, module, *inputs)


def _linear(graph: Graph, layer: Any, value: str) -> str:
    product = graph.add("MatMul", value, graph.parameter(layer.weight.T, "weight"))
    return product if layer.bias is None else graph.add("Add", product, graph.parameter(layer.bias, "bias"))


def _convolution(graph: Graph, layer: Any, value: str) -> str:
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise ValueError(f"this convolution cannot be exported: {layer}; give its padding in numbers, with zeros")
    parameters = [graph.parameter(layer.weight, "kernel")]
    if layer.bias is not None:
        parameters.append(graph.parameter(layer.bias, "bias"))
    return graph.add(
        "Conv",
        value,
        *parameters,
        kernel_shape=list(layer.kernel_size),
        strides=list(layer.stride),
        pads=[*layer.padding, *layer.padding],
        dilations=list(layer.dilation),
        group=layer.groups,
    )


def _max_pool(graph: Graph, layer: Any, value: str) -> str:
    kernel, stride, padding, dilation = (
        [size, size] if isinstance(size, int) else list(size)
        for size in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    )
    if layer.return_indices:
        raise ValueError(f"this layer cannot be exported: {layer} with return_indices")
    return graph.add(
        "MaxPool",
        value,
        kernel_shape=kernel,
        strides=stride,
        pads=padding + padding,
        dilations=dilation,
        ceil_mode=int(layer.ceil_mode),
    )


def _layer_norm(graph: Graph, layer: Any, value: str) -> str:
    shape = layer.normalized_shape
    scale = np.ones(shape) if layer.weight is None else layer.weight.detach().cpu().numpy()
    parameters = [graph.constant(scale, what="scale")]
    if layer.bias is not None:
        parameters.append(graph.parameter(layer.bias, "bias"))
    return graph.add("LayerNormalization", value, *parameters, axis=-len(shape), epsilon=layer.eps)


def _gelu(graph: Graph, layer: Any, value: str) -> str:
    if layer.approximate != "none":
        raise ValueError(f"this layer cannot be exported: {layer}; without approximate it can")
    error = graph.add("Erf", graph.add("Mul", value, graph.constant(math.sqrt(0.5))))
    half = graph.add("Mul", value, graph.constant(0.5))
    return graph.add("Mul", half, graph.add("Add", error, graph.constant(1.0)))


def _flatten(graph: Graph, value: str, start: int, end: int) -> str:
    if (start, end) != (1, -1):
        raise ValueError(f"flattening axes {start} to {end} cannot be exported: flatten all but the first")
    return graph.add("Flatten", value, axis=1)


def _plain(operator: str) -> Callable[..., str]:
    return lambda graph, layer, value: graph.add(operator, value)


_MODULES: dict[type[nn.Module], Callable[..., str]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.MaxPool2d: _max_pool,
    nn.LayerNorm: _layer_norm,
    nn.Flatten: lambda graph, layer, value: _flatten(graph, value, layer.start_dim, layer.end_dim),
    nn.Tanh: _plain("Tanh"),
    nn.ReLU: _plain("Relu"),
    nn.Sigmoid: _plain("Sigmoid"),
    nn.SELU: _plain("Selu"),
    nn.Identity: _plain("Identity"),
    nn.Dropout: _plain("Identity"),  # predictions drop nothing
    nn.LeakyReLU: lambda graph, layer, value: graph.add("LeakyRelu", value, alpha=float(layer.negative_slope)),
    nn.ELU: lambda graph, layer, value: graph.add("Elu", value, alpha=float(layer.alpha)),
    nn.SiLU: lambda graph, layer, value: graph.add("Mul", value, graph.add("Sigmoid", value)),
    nn.GELU: _gelu,
}

# -- functions, in features extractors of the user's own

_UNARY = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "neg": "Neg", "abs": "Abs", "exp": "Exp"}
_BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "truediv": "Div", "div": "Div"}


def _add_function(graph: Graph, node: fx.Node, arguments: list[Any], options: dict[str, Any]) -> Any:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    if name == "getitem" and isinstance(arguments[0], dict) and arguments[1] in arguments[0]:
        return arguments[0][arguments[1]]
    if name in _UNARY:
        return graph.add(_UNARY[name], arguments[0])
    if name in _BINARY and not options and all(isinstance(part, str | int | float) for part in arguments):
        operands = [part if isinstance(part, str) else graph.constant(part) for part in arguments]
        return graph.add(_BINARY[name], *operands)
    if name in ("cat", "concat"):
        axis = options.get("dim", arguments[1] if len(arguments) > 1 else 0)
        return graph.add("Concat", *(arguments[0] if arguments else options["tensors"]), axis=axis)
    if name == "flatten":
        start, end = (
            options.get(key, arguments[place] if len(arguments) > place else default)
            for key, place, default in (("start_dim", 1, 0), ("end_dim", 2, -1))
        )
        return _flatten(graph, arguments[0], start, end)
    known = ", ".join(sorted({*_UNARY, *_BINARY, "cat", "flatten"}))
    raise ValueError(
        f"the actor calls {name}, which cannot be exported; functions that can: {known}. Layers of torch.nn are safer."
    )
