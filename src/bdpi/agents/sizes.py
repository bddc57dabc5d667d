"""Networks that a file names are no larger than what it holds: a few bytes cannot ask for gigabytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from bdpi.agents.encoding import Arrays


def check_layers(net_arch: Any, arrays: Arrays) -> None:
    """Whether the file holds networks with such layers, before they are made.

    :param net_arch: hidden layers, a list or a dictionary of lists; None: the default
    :raises ValueError: if it holds fewer numbers than one of their layers has, or they are no layers
    """
    held = sum(array.size for array in arrays.values())
    for layers in net_arch.values() if isinstance(net_arch, dict) else [net_arch or []]:
        if not isinstance(layers, list | tuple) or not all(_is_size(size) for size in layers):
            raise ValueError(f"the file is damaged: net_arch is {str(net_arch)[:100]}, not a list of layer sizes")
        sizes = [1, *map(int, layers)]
        largest = max(first * second for first, second in zip(sizes, [*sizes[1:], 0], strict=True))
        if largest > held:
            raise ValueError(
                f"the file is damaged: net_arch is {str(net_arch)[:100]}, and the file holds {held} numbers in all"
            )


def _is_size(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) > 0


def check_inputs(space: spaces.Space[Any], arrays: Arrays) -> None:
    """Whether the file holds networks, or tables, for such observations: each number of one has at least a weight.

    :raises ValueError: if it holds fewer
    """
    held, needed = sum(array.size for array in arrays.values()), spaces.flatdim(space)
    if needed > held:
        raise ValueError(f"the file is damaged: observations of {needed} numbers, and the file holds {held} in all")
