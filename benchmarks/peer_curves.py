"""How many steps the tuned peers need: from the episodes that tuned_peers.py has collected, as a Markdown table.

    python benchmarks/peer_curves.py
    python benchmarks/peer_curves.py results/benchmark/peers/episodes.csv.gz --threshold Pendulum-v1=-250

A run reaches a threshold with the episode at which the mean return of its last 20 episodes is that high. The median is
over seeds, where runs that never get there count as longer than all others; the interval is a bootstrap's, 95 %.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from peer_runs import Episode
from peer_store import Key, read_episodes

RESULTS = Path(__file__).resolve().parents[1] / "results" / "benchmark" / "peers" / "episodes.csv.gz"
WINDOW = 20
REPETITIONS = 10_000

#: Gymnasium's, or the package's; Pendulum has none, and most episodes of a balanced one are above this
THRESHOLDS = {
    "CartPole-v1": 475.0,
    "Acrobot-v1": -100.0,
    "MountainCar-v0": -110.0,
    "LunarLander-v3": 200.0,
    "Pendulum-v1": -200.0,
    "PendulumTorques-v0": -200.0,
    "FrozenLake8x8-v1": 0.85,
    "Table-v0": 90.0,
}


@dataclass(frozen=True)
class StepsNeeded:
    """Steps until a threshold is reached; None: never.

    :param median: over seeds
    :param low: lower end of the 95 % interval of the median
    :param high: upper end
    :param n_reached: runs that have reached it
    :param n_runs: all
    """

    median: float | None
    low: float | None
    high: float | None
    n_reached: int
    n_runs: int


def steps_to_threshold(episodes: Sequence[Episode], threshold: float, window: int = WINDOW) -> int | None:
    """Steps of a run when the mean return of its last episodes first reaches a threshold; None: never."""
    returns = np.array([episode.episode_return for episode in episodes])
    if len(returns) < window:
        return None
    means = np.convolve(returns, np.full(window, 1 / window), mode="valid")
    reached = np.flatnonzero(means >= threshold - 1e-9)  # the sum of 20 returns has rounding errors
    return episodes[int(reached[0]) + window - 1].steps if len(reached) else None


def steps_needed(steps: Sequence[int | None], seed: int = 0) -> StepsNeeded:
    """The median over runs, with an interval.

    :param steps: of each run
    """
    if not steps:
        raise ValueError("there are no runs to take the median of")
    values = np.array([math.inf if each is None else each for each in steps])
    generator = np.random.default_rng(seed)
    drawn = generator.choice(values, (REPETITIONS, len(values)))
    # No interpolation between neighbours, one of which may be infinite.
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975), method="inverted_cdf")
    ends = [float(end) if np.isfinite(end) else None for end in (np.median(values), low, high)]
    return StepsNeeded(*ends, n_reached=int(np.isfinite(values).sum()), n_runs=len(values))


def analyse(
    runs: dict[Key, list[Episode]], thresholds: dict[str, float] = THRESHOLDS
) -> dict[tuple[str, str], StepsNeeded]:
    """By task and peer; tasks without a threshold are left out."""
    found: dict[tuple[str, str], list[int | None]] = {}
    for (task, peer, _), episodes in sorted(runs.items()):
        if task in thresholds:
            found.setdefault((task, peer), []).append(steps_to_threshold(episodes, thresholds[task]))
    return {name: steps_needed(steps) for name, steps in found.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("episodes", type=Path, nargs="?", default=RESULTS, help="default: %(default)s")
    parser.add_argument("--threshold", action="append", default=[], metavar="TASK=RETURN")
    options = parser.parse_args(arguments)
    thresholds = dict(THRESHOLDS)
    for text in options.threshold:
        task, _, value = text.rpartition("=")
        try:
            thresholds[task] = float(value)
        except ValueError:
            parser.error(f"--threshold {text} is no TASK=RETURN, such as CartPole-v1=475")
    if not options.episodes.exists():
        parser.error(f"{options.episodes} does not exist: run benchmarks/tuned_peers.py first")
    print("| task | threshold | peer | reached | median steps | 95 % interval |\n|---|---|---|---|---|---|")
    for (task, peer), needed in analyse(read_episodes(options.episodes), thresholds).items():
        reached = f"{needed.n_reached} of {needed.n_runs}"
        interval = f"{_text(needed.low)} – {_text(needed.high)}"
        print(f"| {task} | {thresholds[task]:g} | {peer} | {reached} | {_text(needed.median)} | {interval} |")


def _text(steps: float | None) -> str:
    return "never" if steps is None else f"{steps:,.0f}"


if __name__ == "__main__":
    main()
