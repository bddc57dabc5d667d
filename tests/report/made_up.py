"""Small studies that never ran: several panels, unfinished and failed runs, tests, entropies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bdpi.runs.config import Place, RunConfig, RunRecord, RunStatus, State
from bdpi.runs.results import StoredRun

LAKE, LANDER, TABLE = "FrozenLake8x8-v1", "LunarLander-v3", "TableLong-v0"


def run(
    returns: Any,
    *,
    series: str = "BDPI",
    seed: int = 0,
    row: str = "algorithms",
    environment: str = LAKE,
    status: State = "finished",
    study: str = "figure2",
    episodes: int = 300,
    hyperparameters: dict[str, Any] | None = None,
    configuration: dict[str, tuple[int, int]] | None = None,
    **others: Any,
) -> StoredRun:
    returns = np.asarray(returns, np.float64)
    config = RunConfig(
        environment=environment,
        agent=series.lower(),
        seed=seed,
        episodes=episodes,
        hyperparameters={"n_critics": 16} if hyperparameters is None else hyperparameters,
    )
    about = RunStatus(
        status=status,
        versions={"python": "3.11.7", "bdpi": "0.1.0"},
        command=["bdpi", "train", environment, "--seed", str(seed)],
        configuration=configuration,
    )
    place = Place(study, row, environment, series, seed)
    lengths = np.full(len(returns), 20, np.int64)
    return StoredRun(place, RunRecord(config, about), returns, lengths, **others)


def learned(seed: int, best: float, episodes: int = 60, first: float = 0.0) -> np.ndarray:
    """Returns that rise to ``best``, with noise."""
    rise = 1.0 / (1.0 + np.exp(-(np.arange(episodes) - 20) / 5.0))
    noise = np.random.default_rng(seed).normal(scale=0.1 * abs(best - first), size=episodes)
    return first + (best - first) * rise + noise


def study(film: Path | None = None) -> list[StoredRun]:
    """Two environments and three rows of Figure 2, and an entropy study. On the lake, BDPI lacks a run that still goes
    on, and PPO one that failed before its first episode had ended.

    :param film: folder of a run with ``policy.gif``.
    """
    runs = []
    for seed in range(4):
        runs.append(run(learned(seed, 0.7), seed=seed, path=film if seed == 1 else None))
        runs.append(run(learned(10 + seed, 0.1), series="PPO", seed=seed))
        runs.append(run(learned(20 + seed, 200, first=-200), environment=LANDER, seed=seed))
        runs.append(run(learned(30 + seed, -50, first=-200), environment=LANDER, series="PPO", seed=seed))
        runs.append(run(learned(40 + seed, 0.7), row="critics", series="16x16", seed=seed))
        runs.append(run(learned(50 + seed, 0.3), row="critics", series="1x1", seed=seed))
        runs.append(run(learned(seed, 0.7), row="noise", seed=seed))
        tests = learned(60 + seed, 0.65)
        runs.append(run(learned(seed, 0.4), row="noise", series="BDPI+noise", seed=seed, test_returns=tests))
        entropy = np.random.default_rng(seed).uniform(0.5, 1.5, size=600).astype(np.float32)
        where = {"study": "entropy", "row": "entropy", "environment": TABLE}
        runs.append(run(learned(seed, 100.0, first=-50.0), seed=seed, entropies=entropy, **where))
    runs.append(run(learned(4, 0.7)[:7], seed=4, status="failed", error="ValueError: the arm is stuck"))
    runs.append(run([], series="PPO", seed=4, status="running"))
    return runs
