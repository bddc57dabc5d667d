"""Networks that begin with convolutions, fed with patches.

An epoch evaluates a network on one batch of images many times. The patches that its first convolution sees are the same
each time, so they are laid out once; the convolution that remains is a matrix product (:class:`PatchConv2d`).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from bdpi.learner.convolutions import PatchConv2d, Window, is_plain

#: For each tensor of a network's inputs, the window of the convolution that it goes into; None where it stays as it is.
Windows = tuple[Window | None, ...]


def lay_out(inputs: Any, windows: Windows, dtype: torch.dtype = torch.float32) -> Any:
    """Inputs with patches, of type ``dtype``, instead of the images that go into convolutions."""
    tensors, spec = tree_flatten(inputs)
    pairs = zip(tensors, windows, strict=True)
    return tree_unflatten(
        [tensor if window is None else window.patches(tensor.to(dtype)) for tensor, window in pairs], spec
    )


def taking_patches(module: nn.Module, inputs: Any) -> tuple[nn.Module, Windows] | None:
    """A copy of ``module``, with the same parameters, whose first convolutions take patches, and their windows.

    Found out by trying, on the CPU: which convolutions are given an input itself, and whether the copy computes the
    same.

    :param module: any network
    :param inputs: a few of its inputs
    :return: None where the network does not begin with a plain convolution, or does more with its inputs
    """
    inputs = tree_map(lambda tensor: tensor.detach().cpu(), inputs)
    tensors, _ = tree_flatten(inputs)
    windows: list[Window | None] = [None] * len(tensors)
    names: list[str] = []

    def look(name: str, convolution: nn.Conv2d, given: tuple[Any, ...]) -> None:
        for number, tensor in enumerate(tensors):
            if given and given[0] is tensor and tensor.dim() == 4:
                windows[number] = Window.of(convolution)
                names.append(name)

    watched = copy.deepcopy(module).cpu().eval()
    for name, part in watched.named_modules():
        if is_plain(part):
            part.register_forward_pre_hook(lambda part, given, name=name: look(name, part, given))  # type: ignore[misc]
    try:
        with torch.no_grad():
            expected: Tensor = watched(inputs)
            if not names:
                return None
            taking = copy.deepcopy(module)
            for name in names:
                taking.get_submodule(name).__class__ = PatchConv2d
            found: Tensor = copy.deepcopy(taking).cpu().eval()(lay_out(inputs, tuple(windows)))
            same = found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-3, atol=1e-4)
    except Exception:  # a foreign network may raise anything: it does not take patches
        return None
    return (taking, tuple(windows)) if same else None
