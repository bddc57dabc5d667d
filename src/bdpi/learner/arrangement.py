"""In which form networks for images are trained: as they are, fed with patches, or by kernels of our own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from bdpi.learner import pictures
from bdpi.learner.adam import AdamTensors
from bdpi.learner.convolutions import has_convolutions
from bdpi.learner.functional import FunctionalNetwork, Inputs, NetworkStack
from bdpi.learner.patches import lay_out, taking_patches
from bdpi.learner.pictures import PictureNetworks

Precision = Literal["float32", "bfloat16"]

PICTURES_AT_ONCE = 8  # critics that kernels train as a stack; the actor follows one stack while the next is trained


def dtype_of(precision: str) -> torch.dtype:
    """The type that a precision stands for.

    :raises ValueError: for any other name
    """
    if precision not in ("float32", "bfloat16"):
        raise ValueError(f'precision must be "float32" or "bfloat16", got {precision!r}')
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


@dataclass(frozen=True)
class TrainedNetworks:
    """The networks in the form in which an epoch evaluates them; predictions take them as they were given."""

    critics: NetworkStack | PictureNetworks
    actor: FunctionalNetwork | PictureNetworks | None
    lay_out: Callable[[Inputs], Inputs]  #: inputs of a batch as they take them
    step: Callable[[AdamTensors, Tensor, Tensor], None] = AdamTensors.step  #: with gradients, and a learning rate
    at_once: int | None = None  #: critics in a stack; None: as many as for other networks


class Arrangement:
    """Finds that form.

    :param device: where networks are trained
    :param dtype: in which they compute
    :param patches: lay out once per batch what first convolutions see; None: on a GPU
    :param picture_kernels: with bfloat16, train networks of the usual shape by kernels of our own; None: on a GPU
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype, patches: bool | None, picture_kernels: bool | None
    ) -> None:
        self._is_gpu, self._dtype = device.type == "cuda", dtype
        self._wants_patches = self._is_gpu if patches is None else patches
        wants_kernels = self._is_gpu if picture_kernels is None else picture_kernels
        wants_kernels = wants_kernels and dtype == torch.bfloat16
        self._lacks_kernels = pictures.why_not(device) if wants_kernels else ""
        self._wants_kernels = wants_kernels and not self._lacks_kernels

    def __call__(
        self, critics: NetworkStack, actor: FunctionalNetwork | None, few: Callable[[], Inputs]
    ) -> TrainedNetworks:
        """By kernels or with patches where both actor and critics can; in the wanted type.

        :param few: gives some inputs, which show what the networks do with such
        """
        modules = [critics.module] if actor is None else [critics.module, actor.module]
        arrange: Callable[[Inputs], Inputs] = _as_they_are
        takes_patches = False
        if has_convolutions(critics.module):
            arrange = _channels_last if self._is_gpu else _as_they_are
            if self._lacks_kernels:
                _warn_of_pytorch(f"{self._lacks_kernels}; bdpi doctor says what there is")
            if self._wants_kernels:
                found = [pictures.find_picture_networks(module, few()) for module in modules]
                if found[0] is not None and found[-1] is not None:
                    kernels = found[0], None if actor is None else found[1]
                    return TrainedNetworks(*kernels, pictures.lay_out, AdamTensors.step_by_kernel, PICTURES_AT_ONCE)
                _warn_of_pytorch(
                    "they train convolutions and linear layers with ReLU or tanh between them, and no other"
                )
            if self._wants_patches:
                taking = [each for each in (taking_patches(module, few()) for module in modules) if each is not None]
                takes_patches = len(taking) == len(modules) and len({seen for _, seen in taking}) == 1
                if takes_patches:
                    modules = [module for module, _ in taking]
                    arrange = partial(lay_out, windows=taking[0][1], dtype=self._dtype)
        if not takes_patches and self._dtype == torch.float32:
            return TrainedNetworks(critics, actor, arrange)
        shorter = None if actor is None else FunctionalNetwork(modules[1], self._dtype)
        return TrainedNetworks(NetworkStack(modules[0], self._dtype), shorter, arrange)


def _as_they_are(inputs: Inputs) -> Inputs:
    return inputs


def _channels_last(inputs: Inputs) -> Inputs:
    """The layout that convolutions on a GPU work in."""
    return tree_map(lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x, inputs)


def _warn_of_pytorch(reason: str) -> None:
    """Say once that kernels are not used, and why."""
    warnings.warn(
        f"PyTorch trains these networks, not the faster kernels for pictures: {reason}.", RuntimeWarning, stacklevel=4
    )
