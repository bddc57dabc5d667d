"""The 59 curves of the paper's figures beside the runs under results/: which are there, and what they say.

    python benchmarks/curves.py           # writes docs/curves.md
    python benchmarks/curves.py --check   # fails if the page is another

Nothing on the page is typed by hand. Rules and margins are those of benchmarks/replication/PROTOCOL.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bdpi.report.panels import StoredSeries, rows_of
from bdpi.report.paper import PaperCurve, paper_curve, paper_curves
from bdpi.report.statistics import Estimate, bootstrap_mean
from bdpi.report.tables import estimate_text
from bdpi.runs.build import is_peer
from bdpi.runs.results import StoredRun, read_runs

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "curves.md"
STUDIES = ("figure2", "pendulum")
SEEDS = frozenset(range(100, 108))
FEWEST = 4  # runs that an interval needs
MARGINS = {"Table": 15.0, "LunarLander": 45.0, "FrozenLake": 0.1, "Hallway": 0.1, "Pendulum": 120.0}

HEAD = """# The paper's curves, one by one

Written by `make figures` (benchmarks/curves.py) from the runs under results/; rules and margins are those of
[the protocol](../benchmarks/replication/PROTOCOL.md). A curve is complete with seeds 100 to 107, all episodes of the
paper's, clean commits and one fingerprint of the code that learns. Verdicts of partial curves are provisional. Returns
are means of the last tenth of the episodes that the paper's curve and all runs have, smoothed as the paper's;
differences have 95 % bootstrap intervals over runs.

"""


@dataclass(frozen=True)
class Counterpart:
    """A curve of the paper, and our runs of it.

    :param series: None where there are no runs
    """

    paper: PaperCurve
    series: StoredSeries | None

    @property
    def wanted(self) -> int:
        """Episodes that the paper shows."""
        return math.floor(self.paper.episodes[-1])

    @property
    def episodes(self) -> int:
        """Those that all runs have, too."""
        return 0 if self.series is None else min(self.wanted, self.series.n_episodes)

    @property
    def lacks(self) -> list[str]:
        """What the runs would have to have to be complete."""
        runs = () if self.series is None else self.series.used
        short = sum(len(run.shown_returns) < self.wanted for run in runs)
        seeds = SEEDS & {run.place.seed for run in runs}
        fingerprints = {one for run in runs if not is_peer(run.config.agent) for one in run.record.status.learned_by}
        checks = {
            f"seeds 100 to 107 ({len(seeds)} of 8)": seeds == SEEDS,
            f"{self.wanted} episodes ({short} of {len(runs)} have fewer)": not short,
            "clean commits": all(_is_clean(run) for run in runs),
            "one fingerprint": len(fingerprints) <= 1 and "" not in fingerprints,  # peers need none
        }
        return [what for what, is_met in checks.items() if not is_met]

    @property
    def state(self) -> str:
        if self.series is None or not self.episodes:
            return "missing"
        return "partial" if self.lacks else "complete"

    @property
    def scores(self) -> np.ndarray:
        """Of each run, over the last tenth."""
        assert self.series is not None
        first, last = self.last_tenth
        return self.series.smoothed[:, first:last].mean(axis=1)

    @property
    def last_tenth(self) -> tuple[int, int]:
        return self.episodes - max(1, round(self.episodes / 10)), self.episodes

    @property
    def papers_score(self) -> float:
        first, last = self.last_tenth
        return self.paper.mean(first, last - 1)

    @property
    def difference(self) -> Estimate:
        """Ours, less the paper's; without an interval where there are too few runs."""
        return bootstrap_mean(self.scores - self.papers_score, fewest=FEWEST)

    @property
    def verdict(self) -> str:
        if self.state == "missing":
            return "missing"
        found, margin = self.difference, MARGINS[self.paper.environment]
        if math.isnan(found.low):
            return f"too few runs ({found.runs})"
        if -margin <= found.low and found.high <= margin:
            return "as in the paper"
        if found.low > margin:
            return "higher"
        if found.high < -margin:
            return "lower"
        return f"undecided ({found.runs} runs)"


def _is_clean(run: StoredRun) -> bool:
    status = run.record.status
    commits = [each.versions.get("commit", "-dirty") for each in (status, *status.resumed)]
    return not any(commit.endswith("-dirty") for commit in commits)


def counterparts(root: Path = ROOT / "results") -> list[Counterpart]:
    """All curves of the paper, in its order."""
    ours: dict[int, StoredSeries] = {}
    curves = paper_curves()
    for study in STUDIES:
        for row in rows_of(read_runs(root / study)[1]):
            for panel in row.panels:
                for series in panel.series:
                    curve = paper_curve(row.name, panel.environment, series.name)
                    if curve is not None:
                        ours[curves.index(curve)] = series
    return [Counterpart(curve, ours.get(number)) for number, curve in enumerate(curves)]


def page(found: Iterable[Counterpart]) -> str:
    """Counts first, then a table per panel."""
    found = list(found)
    states, verdicts = Counter(each.state for each in found), Counter(each.verdict.split(" (")[0] for each in found)
    counts = [f"{len(found)} curves: " + _counted(states, ("complete", "partial", "missing")) + ".", ""]
    counts += ["Verdicts: " + _counted(verdicts, tuple(sorted(verdicts, key=lambda name: -verdicts[name]))) + ".", ""]
    panels: dict[tuple[str, str], list[Counterpart]] = {}
    for each in found:
        panels.setdefault((each.paper.row, each.paper.environment), []).append(each)
    return HEAD + "\n".join(counts) + "".join(_table(*panel, curves) for panel, curves in panels.items())


def _counted(counts: Counter[str], names: tuple[str, ...]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in names)


def _table(row: str, environment: str, curves: list[Counterpart]) -> str:
    margin = f"margin {MARGINS[environment]:g}"
    columns = ("curve", "runs", "episodes", "ours", "paper", "difference", "verdict", "lacks")
    lines = [columns, ("---",) * len(columns), *(_line(curve) for curve in curves)]
    text = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return f"\n## {environment}, {row.lower()} ({margin})\n\n{text}"


def _line(curve: Counterpart) -> tuple[str, ...]:
    if curve.state == "missing" or curve.series is None:
        return (curve.paper.series, "0", "", "", "", "", curve.verdict, "runs")
    return (
        curve.paper.series,
        str(len(curve.scores)),
        f"{curve.episodes} of {curve.wanted}",
        f"{curve.scores.mean():.3g}",
        f"{curve.papers_score:.3g}",
        estimate_text(curve.difference),
        curve.verdict,
        "; ".join(curve.lacks) or "nothing",
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if docs/curves.md is another")
    options = parser.parse_args(arguments)
    text = page(counterparts())
    if not options.check:
        PAGE.write_text(text)
        print(PAGE.relative_to(ROOT))
    elif not PAGE.exists() or PAGE.read_text() != text:
        print("docs/curves.md is not what results/ give: run `make figures`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
