"""One HTML file with everything: interactive curves, tables, films, configurations. It needs no network.

Here is what the page says; ``templates/`` has how: ``page.html.j2`` with a macro for each kind of section. Every text
that comes from a run or from the user is escaped, by Jinja in HTML and by the DOM in JavaScript.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import jinja2
import numpy as np

from bdpi.report import statistics
from bdpi.report.configurations import is_drawn
from bdpi.report.entropy import EntropyPanel, entropies_of
from bdpi.report.page_curves import entropy_data, log_data, row_data
from bdpi.report.panels import Row, StoredSeries, rows_of
from bdpi.report.robustness import Robustness
from bdpi.report.tables import NONE, TabledRow, TextTable, findings_table, unfinished
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder
from bdpi.runs.logs import read_log
from bdpi.runs.results import StoredRun
from bdpi.runs.versions import versions

MAX_FILM_BYTES = 6_000_000  # of all films together: a page that mail and browsers can bear
# Entries of a configuration that say how a run went, not what it was.
_NOT_CONFIGURATION = frozenset(
    {"schema_version", "seed", "status", "result", "started", "finished", "study", "resumed", "findings"}
)


class Section(NamedTuple):
    """A section of the page.

    :param name: its id, and the address of the link to it
    :param heading: above it
    :param kind: the macro in ``sections.html.j2`` that writes it
    :param content: what the macro takes
    """

    name: str
    heading: str
    kind: str
    content: Any


def make_page(
    runs: Sequence[StoredRun],
    *,
    title: str,
    command: str,
    robustness: Robustness | None = None,
    rows: Sequence[TabledRow] | None = None,
    problems: Sequence[str] = (),
) -> str:
    """The text of the page.

    :param runs: of any studies, finished or not; may be none.
    :param title: heading.
    :param command: what the reader would run to get this page again.
    :param robustness: of the runs with random configurations, which have no curves.
    :param rows: of the other runs, if they are made already: their tables take a while.
    :param problems: what the reader should know, such as runs that could not be read.
    """
    tabled = TabledRow.all_of(rows_of(run for run in runs if not is_drawn(run))) if rows is None else rows
    drawn = [each.row for each in tabled]
    entropies, problems = entropies_of(runs, max_points=800), [*problems]
    curves = [row_data(f"row{number}-panels", row) for number, row in enumerate(drawn)]
    if entropies:
        curves.append(entropy_data("entropies-panels", entropies))
    learning = _learning(runs, problems)
    if learning is not None:
        curves.append(learning)
    return _template().render(
        title=title,
        summary=_summary(runs),
        sections=[
            *_results(tabled, entropies, robustness, learning),
            *_remarks(runs, drawn, problems),
            *_records(runs, drawn, command),
        ],
        data={"rows": curves},
        version=versions()["bdpi"],
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bdpi.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode("ascii")
    environment.filters["plural"] = _plural
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    return environment.get_template("page.html.j2")


def _summary(runs: Sequence[StoredRun]) -> str:
    if not runs:
        return "There are no runs yet."
    series = len({(run.place.study, run.place.row, run.place.environment, run.place.series) for run in runs})
    environments = len({run.place.environment for run in runs})
    statuses = Counter(run.status for run in runs)
    n_episodes = sum(len(run.returns) for run in runs)
    return (
        f"{_plural(len(runs), 'run')} ({', '.join(f'{count} {status}' for status, count in sorted(statuses.items()))}) "
        f"in {series} series and {_plural(environments, 'environment')}, {n_episodes:,} episodes of training."
    )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _learning(runs: Sequence[StoredRun], problems: list[str]) -> dict[str, Any] | None:
    """Curves of the log, of a run that is alone; None: it has none."""
    if len(runs) != 1 or runs[0].path is None:
        return None
    try:
        data = log_data("learning-panels", read_log(RunFolder(runs[0].path).whole().progress))
    except RunError as error:
        problems.append(str(error))
        return None
    return data if data["panels"] else None


# The sections.


def _results(
    rows: Sequence[TabledRow],
    entropies: Sequence[EntropyPanel],
    robustness: Robustness | None,
    learning: dict[str, Any] | None,
) -> Iterator[Section]:
    for number, each in enumerate(rows):
        content: dict[str, Any] = {"place": f"row{number}-panels", "tables": each.tables, "note": ""}
        yield Section(f"row{number}", each.row.title, "curves", content)
    if learning is not None:
        note = (
            "From the log of the run, progress.csv. Q and returns are means over the latest transitions whose episodes "
            "have ended: where critics expect much more than what followed, they are wrong."
        )
        yield Section("learning", "Learning", "curves", {"place": learning["id"], "tables": (), "note": note})
    if entropies:
        windows = ", ".join(f"{_plural(panel.window, 'step')} ({panel.title})" for panel in entropies)
        note = (
            "Entropy of the policy at every time-step of training: mean and standard deviation over runs, "
            f"as running averages over {windows}."
        )
        content = {"place": "entropies-panels", "tables": (), "note": note}
        yield Section("entropies", "Entropy of the policy", "curves", content)
    if robustness and robustness.tables:
        yield Section("robustness", "Robustness to hyper-parameters", "robustness", robustness)


def _remarks(runs: Sequence[StoredRun], rows: Sequence[Row], problems: Sequence[str]) -> Iterator[Section]:
    for name, table in (("findings", findings_table(runs)), ("unfinished", unfinished(rows))):
        if table.rows:
            yield Section(name, table.title, "table", table)
    if problems:
        yield Section("problems", "Problems", "problems", problems)


def _records(runs: Sequence[StoredRun], rows: Sequence[Row], command: str) -> Iterator[Section]:
    films = _films(rows)
    if films["films"] or films["left_out"]:
        yield Section("films", "Films", "films", films)
    if rows or not runs:
        yield Section("configurations", "Configurations", "configurations", _configurations(rows))
    origin = {"command": command, "of_runs": _versions(runs), "of_report": versions()}
    yield Section("versions", "Versions and command", "versions", origin)


def _films(rows: Sequence[Row]) -> dict[str, Any]:
    """One film per series: of the run in the middle, neither the best nor the worst."""
    films: list[dict[str, Any]] = []
    left_out = size = 0
    for row in rows:
        for panel in row.panels:
            for series in panel.series:
                film = _film(series)
                if film is None:
                    continue
                run, content = film
                if size + len(content) > MAX_FILM_BYTES:
                    left_out += 1
                    continue
                size += len(content)
                title = f"{series.name} on {panel.environment}, seed {run.place.seed}"
                films.append({"title": title, "row": row.title, "gif": content})
    return {"films": films, "left_out": left_out}


def _film(series: StoredSeries) -> tuple[StoredRun, bytes] | None:
    filmed = [run for run in series.runs if run.path is not None and (run.path / "policy.gif").is_file()]
    filmed.sort(key=_final_return)
    for run in filmed[len(filmed) // 2 :] + filmed[: len(filmed) // 2]:
        assert run.path is not None
        content = (run.path / "policy.gif").read_bytes()
        if content.startswith(b"GIF8"):
            return run, content
    return None


def _final_return(run: StoredRun) -> float:
    returns = run.shown_returns
    return float(np.mean(returns[-statistics.last_episodes(len(returns), 0.1) :])) if len(returns) else -math.inf


def _configurations(rows: Sequence[Row]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [
        (
            row.title,
            [
                {"title": f"{panel.environment}, {series.name}", "runs": _runs_text(series), **_configuration(series)}
                for panel in row.panels
                for series in panel.series
            ],
        )
        for row in rows
    ]


def _runs_text(series: StoredSeries) -> str:
    text = _plural(len(series.runs), "run")
    return f"{text}, {series.unfinished}" if series.unfinished else text


def _configuration(series: StoredSeries) -> dict[str, Any]:
    """What the runs have in common, once; below it, what differs from run to run."""
    flat = [_flat(run.record.as_dict()) for run in series.runs]
    names = list(dict.fromkeys(name for each in flat for name in each))
    missing = object()
    same = [
        name for name in names if len({json.dumps(each.get(name, repr(missing)), default=repr) for each in flat}) == 1
    ]
    common = {name: flat[0][name] for name in same}
    text = json.dumps(_nested(common), indent=2, ensure_ascii=False, default=repr)
    differing = [name for name in names if name not in same]
    lines = tuple(
        (
            str(run.place.seed),
            run.status,
            *(_short(each[name]) if name in each else NONE for name in differing),
            str(len(run.shown_returns)),
        )
        for run, each in zip(series.runs, flat, strict=True)
    )
    table = TextTable("Runs", ("seed", "status", *differing, "episodes"), 2 + len(differing), lines, "")
    return {"common": text, "table": table}


def _flat(config: dict[str, Any], before: tuple[str, ...] = ()) -> dict[str, Any]:
    """``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``, so that runs can be compared entry by entry."""
    entries: dict[str, Any] = {}
    for name, value in config.items():
        if not before and name in _NOT_CONFIGURATION:
            continue
        path = (*before, str(name))
        if isinstance(value, dict) and value:
            entries.update(_flat(value, path))
        else:
            entries[".".join(path)] = value
    return entries


def _nested(entries: dict[str, Any]) -> dict[str, Any]:
    """The first level of names back, for reading."""
    result: dict[str, Any] = {}
    for name, value in entries.items():
        group, dot, rest = name.partition(".")
        if dot:
            inner = result.setdefault(group, {})
            if isinstance(inner, dict):
                inner[rest] = value
                continue
        result[name] = value
    return result


def _short(value: object) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return " ".join(value)  # a command
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)


def _versions(runs: Sequence[StoredRun]) -> dict[str, str]:
    used: dict[str, Counter[str]] = {}
    for run in runs:
        status = run.record.status
        for name, value in {**status.versions, "platform": status.platform}.items():
            if value:
                used.setdefault(name, Counter())[value] += 1
    return {name: _counted(values) for name, values in used.items()}


def _counted(values: Counter[str]) -> str:
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{value} ({_plural(count, 'run')})" for value, count in values.most_common())
