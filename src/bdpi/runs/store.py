"""Many runs: what a study left behind, read back for whoever draws and counts.

A run of a study has, in its configuration, an entry ``study`` that says where it belongs: the study's name, the row and
the environment (together: a panel of its figure) and the series (a curve of that panel).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Place:
    """Where a run belongs.

    :param study: name of the study, ``"figure2"``
    :param row: of its figure, ``"algorithms"``
    :param environment: Gymnasium id, ``"FrozenLake8x8-v1"``
    :param series: name of the curve, ``"BDPI"`` or ``"16x8"``
    :param seed: runs of one series differ in it
    """

    study: str
    row: str
    environment: str
    series: str
    seed: int


@dataclass(frozen=True)
class StoredRun:
    """One run, as far as it has come.

    :param place: where it belongs
    :param status: ``"finished"``, ``"interrupted"``, ``"failed"`` or ``"running"``
    :param returns: return of each training episode
    :param lengths: steps of each
    :param test_returns: of the noise-free test episodes of runs with off-policy noise; ``None`` for other runs. Where
        there are any, they are what the paper shows.
    :param entropies: entropy of the policy (bits) at each step, where it was recorded
    :param config: the run's ``config.json``
    :param path: its folder; ``None`` where it was read from an archive
    """

    place: Place
    status: str
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    test_returns: NDArray[np.float64] | None = None
    entropies: NDArray[np.float32] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @property
    def shown_returns(self) -> NDArray[np.float64]:
        """What belongs into a figure: test episodes where there are any."""
        return self.returns if self.test_returns is None else self.test_returns
