"""Perceptrons in NumPy, for a few observations at a time: PyTorch takes longer to begin than to compute."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpi.learner.interface import FloatArray


class Perceptron:
    """One network or a stack of them, computed from their parameters where they are.

    :param parameters: flat, in PyTorch's order, (..., P); what changes in them changes here
    :param sizes: inputs, units of each hidden layer, outputs
    :param one_hot: inputs are state numbers
    :param is_tanh: hidden units are tanh, else rectified linear ones
    """

    def __init__(self, parameters: FloatArray, sizes: Sequence[int], one_hot: bool, is_tanh: bool) -> None:
        self._one_hot = one_hot
        #: of the hidden units
        self.activation: Callable[[FloatArray], FloatArray] = np.tanh if is_tanh else _rectified
        #: weights and bias of each
        self.layers: list[tuple[FloatArray, FloatArray]] = []
        offset, stack = 0, parameters.shape[:-1]
        for n_in, n_out in itertools.pairwise(sizes):
            weights = parameters[..., offset : offset + n_in * n_out].reshape(*stack, n_out, n_in).swapaxes(-1, -2)
            offset += n_in * n_out
            self.layers.append((weights, parameters[..., None, offset : offset + n_out]))
            offset += n_out

    def __call__(self, x: NDArray[Any]) -> FloatArray:
        """Outputs for inputs (n, n_inputs), or for state numbers (n,): (..., n, n_outputs)."""
        (weights, bias), *others = self.layers
        y: FloatArray = (weights[..., x, :] if self._one_hot else x @ weights) + bias
        for weights, bias in others:
            y = self.activation(y) @ weights + bias
        return y


def _rectified(x: FloatArray) -> FloatArray:
    return np.maximum(x, 0.0)
