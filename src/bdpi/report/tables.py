"""The numbers of a report as tables: built once, written as Markdown and as HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from bdpi.report import statistics, style
from bdpi.report.panels import Panel, Row, StoredSeries
from bdpi.report.paper import PaperCurve, threshold_window, thresholds_of
from bdpi.report.statistics import Estimate
from bdpi.runs.formatting import number
from bdpi.runs.results import StoredRun

NONE = "–"
SCORES = (("all episodes", 1.0), ("last 10 %", 0.1))
_PAPER_EVERY = 8  # episodes from one point of the paper's curves to the next


@dataclass(frozen=True)
class TextTable:
    """Text, cell by cell.

    :param title: what it shows.
    :param columns: their names.
    :param n_texts: how many columns, from the left, hold words; the others hold numbers.
    :param rows: the cells.
    :param note: how to read it.
    """

    title: str
    columns: tuple[str, ...]
    n_texts: int
    rows: tuple[tuple[str, ...], ...]
    note: str


@dataclass(frozen=True)
class TabledRow:
    """A row of panels and its tables. The bootstraps take a while, so a report makes them once."""

    row: Row
    tables: tuple[TextTable, ...]

    @classmethod
    def all_of(cls, rows: Sequence[Row]) -> list[TabledRow]:
        """All rows of a report."""
        return [cls(row, tuple(tables_of(row))) for row in rows]


def tables_of(row: Row) -> list[TextTable]:
    """The tables of one row of panels; those that would be empty are left out."""
    with_paper = all(panel.with_paper for panel in row.panels)
    tables = (_returns(row), _thresholds(row), _improvement(row), _every_pair(row))
    return [table if with_paper else without_paper(table) for table in tables if table.rows]


def without_paper(table: TextTable) -> TextTable:
    """A table without the columns and the notes that compare with the paper."""
    kept = [column for column, name in enumerate(table.columns) if "paper" not in name]
    rows = tuple(tuple(row[column] for column in kept) for row in table.rows)
    note = table.note.split(" The paper's means")[0].replace("it and the paper's are averaged", "it is averaged")
    return replace(table, columns=tuple(table.columns[column] for column in kept), rows=rows, note=note)


def unfinished(rows: Sequence[Row]) -> TextTable:
    """Every run that is not finished, and whether it counts."""
    lines = tuple(
        (
            row.title,
            panel.environment,
            series.name,
            f"{run.status}: {run.error}" if run.error else run.status,
            "yes" if any(run is used for used in series.used) else "no",
            str(run.place.seed),
            str(len(run.shown_returns)),
        )
        for row in rows
        for panel, series in _series(row)
        for run in series.runs
        if run.status != "finished"
    )
    return TextTable(
        "Runs that are not finished",
        ("row", "environment", "series", "status", "counted", "seed", "episodes"),
        5,
        lines,
        "The numbers of a series come from the episodes that all its runs have. "
        "Only runs that failed before they had all their episodes, and runs without any episode, are not counted.",
    )


def findings_table(runs: Iterable[StoredRun]) -> TextTable:
    """What runs found about themselves when they ended, or were last saved."""
    lines = []
    for run in runs:
        for finding in run.record.status.findings:
            said = (finding.get("message", NONE), finding.get("remedy", NONE))
            lines.append((run.place.environment, run.place.series, str(run.place.seed), *said))
    return TextTable(
        "Why runs may not learn",
        ("environment", "series", "seed", "finding", "remedy"),
        5,
        tuple(lines),
        "What agents found about themselves: hints, not proofs. Runs without a finding are not listed.",
    )


def estimate_text(estimate: Estimate) -> str:
    """``0.54 [0.40, 0.67]``; without the interval where there are too few runs for one."""
    if math.isnan(estimate.value):
        return NONE
    if math.isnan(estimate.low):
        return _number(estimate.value)
    return f"{_number(estimate.value)} [{_number(estimate.low)}, {_number(estimate.high)}]"


def _number(value: float) -> str:
    text = number(value)
    return text.removeprefix("-") if float(text) == 0.0 else text


def markdown(table: TextTable) -> str:
    """The table in GitHub's Markdown, with its title and note."""
    rule = [":---" if column < table.n_texts else "---:" for column in range(len(table.columns))]
    lines = [table.columns, rule, *table.rows]
    text = "\n".join("| " + " | ".join(escaped(cell) for cell in line) + " |" for line in lines)
    return f"### {escaped(table.title)}\n\n{text}\n\n{table.note}\n"


def escaped(text: str) -> str:
    """A heading or a cell in Markdown, with everything escaped that would break a table or become markup."""
    for special in "\\`*_<>|[]":
        if special in "[]" and "](" not in text:
            continue  # intervals stay readable
        text = text.replace(special, f"\\{special}")
    return " ".join(text.split())


def _series(row: Row) -> Iterator[tuple[Panel, StoredSeries]]:
    for panel in row.panels:
        for series in panel.series:
            yield panel, series


def _returns(row: Row) -> TextTable:
    lines = []
    for panel, series in _series(row):
        cells = [panel.environment, series.name, series.count, str(series.n_episodes)]
        for _, last in SCORES:
            values = statistics.scores(series, last)
            paper = _paper_score(panel.paper(series.name), series.n_episodes, last)
            cells += [estimate_text(statistics.bootstrap_mean(values)), estimate_text(statistics.iqm([values])), paper]
        lines.append(tuple(cells))
    columns = [f"{kind}, {score}" for score, _ in SCORES for kind in ("mean", "IQM", "paper")]
    return TextTable(
        "Returns",
        ("environment", "series", "runs", "episodes", *columns),
        2,
        tuple(lines),
        "Brackets hold 95 % bootstrap intervals over runs, which stay within what the runs returned, and are a little "
        "too narrow for few of them; below four runs there are none. Interquartile means (IQM) leave out the best and "
        "the worst quarter of the runs. The paper's means are those of its curves over the same episodes; where a "
        "curve does not cover them, its range is given.",
    )


def _paper_score(curve: PaperCurve | None, n_episodes: int, last: float) -> str:
    if curve is None or not n_episodes:
        return NONE
    first = n_episodes - statistics.last_episodes(n_episodes, last)
    end = n_episodes - 1
    value = curve.mean(first, end)
    if math.isnan(value):
        return NONE
    from_, to = max(first, curve.episodes[0]), min(end, curve.episodes[-1])
    whole = from_ - first <= _PAPER_EVERY and end - to <= _PAPER_EVERY
    return _number(value) if whole else f"{_number(value)} ({from_:.0f} to {to:.0f})"


def _thresholds(row: Row) -> TextTable:
    lines = []
    for panel, series in _series(row):
        for threshold in thresholds_of(panel.environment):
            curve, window = panel.paper(series.name), threshold_window(panel.environment)
            reached, median = statistics.median_episode(series, threshold)
            average = series.smoothed.mean(axis=0) if len(series.used) else np.zeros(0)
            passed = statistics.first_at_least(statistics.centred_mean(average, window), threshold)
            lines.append(
                (
                    panel.environment,
                    series.name,
                    number(threshold),
                    series.count,
                    str(series.n_episodes),
                    _episode(passed, f"not within {series.n_episodes}"),
                    NONE if curve is None else _episode(_paper_reaches(curve, threshold, window), "never"),
                    _reached(reached, series),
                    _episode(median, "not reached"),
                )
            )
    return TextTable(
        "Episodes to a threshold",
        (
            *("environment", "series", "threshold", "runs", "episodes", "mean curve", "paper's curve"),
            *("runs that reach it", "median run"),
        ),
        2,
        tuple(lines),
        "First episode at which the smoothed return reaches the threshold. The mean curve has the episodes that all "
        "runs have; it and the paper's are averaged once more, over a twentieth of the episodes that are usual there, "
        "so that a short peak does not count. Runs count with all episodes that each of them has: where these differ, "
        "it is said how many. The median run is there when more than half of the runs are. The first nine episodes, "
        "too few for the smoothing, do not count.",
    )


def _paper_reaches(curve: PaperCurve, threshold: float, window: int) -> int | None:
    every = np.arange(np.ceil(curve.episodes[0]), curve.episodes[-1] + 0.5)
    returns = statistics.centred_mean(np.interp(every, curve.episodes, curve.returns), window)
    reached = statistics.first_at_least(returns, threshold)
    return None if reached is None else int(every[reached - 1])


def _episode(episode: int | None, otherwise: str) -> str:
    return otherwise if episode is None else str(episode)


def _reached(count: int, series: StoredSeries) -> str:
    lengths = {len(run.shown_returns) for run in series.used}
    return f"{count} of {len(series.used)}" + (f" ({_range(lengths)} episodes)" if len(lengths) > 1 else "")


def _range(numbers: Iterable[int]) -> str:
    values = sorted(numbers)
    low, high = values[0], values[-1]
    return str(low) if low == high else f"{low} to {high}"


def _improvement(row: Row) -> TextTable:
    """The subject of the row against every other series."""
    names = row.series
    subject = style.subject(names)
    lines = []
    for other in (name for name in names if name != subject):
        compared = [_compared(panel, subject, other) for panel in row.panels]
        groups = [(panel.environment, [pair]) for panel, pair in zip(row.panels, compared, strict=True) if pair]
        if len(groups) > 1:
            groups.append(("all of these", [pair for _, pairs in groups for pair in pairs]))
        for environment, pairs in groups:
            cells = [f"{subject} over {other}", environment, _counts(pairs), _range(pair[2] for pair in pairs)]
            lines.append((*cells, *(estimate_text(_chance(pairs, last)) for _, last in SCORES)))
    return TextTable(
        "Probability of improvement",
        ("comparison", "environment", "runs", "episodes", *(score for score, _ in SCORES)),
        2,
        tuple(lines),
        "Probability that a run of the first series has a higher mean return than one of the second, over the episodes "
        "that both have in an environment; 95 % intervals from a bootstrap that is stratified by environment.",
    )


def _every_pair(row: Row) -> TextTable:
    """Every series against every other, over all environments."""
    names = [name for name in row.series if any(s.used for _, s in _series(row) if s.name == name)]
    cells: dict[tuple[str, str], str] = {}
    for first, second in combinations(names, 2):
        pairs = [pair for panel in row.panels if (pair := _compared(panel, first, second))]
        chance = _chance(pairs, 1.0)
        cells[first, second] = estimate_text(chance)
        cells[second, first] = estimate_text(Estimate(1 - chance.value, 1 - chance.high, 1 - chance.low, chance.runs))
    lines = tuple((name, *(cells.get((name, other), "") for other in names)) for name in names)
    return TextTable(
        "Probability of improvement, every pair",
        ("over all episodes", *(f"over {name}" for name in names)),
        1,
        lines if len(names) > 2 else (),  # of two, the table above says it all
        "Probability that a run of the series on the left has a higher mean return than one of the series above, "
        "averaged over the environments that both have.",
    )


def _compared(panel: Panel, first: str, second: str) -> tuple[StoredSeries, StoredSeries, int] | None:
    """Two series of a panel and how many episodes they share; ``None`` if one has nothing to compare."""
    found = {series.name: series for series in panel.series if series.used}
    if first not in found or second not in found:
        return None
    x, y = found[first], found[second]
    return x, y, min(x.n_episodes, y.n_episodes)


def _chance(pairs: Sequence[tuple[StoredSeries, StoredSeries, int]], last: float) -> Estimate:
    return statistics.improvement(
        [(statistics.scores(x, last, shared), statistics.scores(y, last, shared)) for x, y, shared in pairs]
    )


def _counts(pairs: Sequence[tuple[StoredSeries, StoredSeries, int]]) -> str:
    return f"{sum(len(x.used) for x, _, _ in pairs)} and {sum(len(y.used) for _, y, _ in pairs)}"
