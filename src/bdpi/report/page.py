"""One HTML file with everything: interactive curves, tables, films, configurations. It needs no network.

The page is a template, ``page.html`` with ``page.css`` and ``page.js``, that is filled here. Every text that comes from
a run or from the user is escaped, in HTML here and by the DOM in JavaScript.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from bdpi.report import statistics, style
from bdpi.report.configurations import is_drawn
from bdpi.report.entropy import EntropyPanel, entropies_of
from bdpi.report.panels import Panel, Row, Series, rows_of
from bdpi.report.robustness import Robustness
from bdpi.report.statistics import learning_curve
from bdpi.report.tables import NONE, Table, TabledRow, findings_table, unfinished
from bdpi.runs.results import StoredRun
from bdpi.runs.versions import versions

MAX_POINTS = 240  # per curve: about one per two pixels of an enlarged panel
MAX_FILM_BYTES = 6_000_000  # of all films together: a page that mail and browsers can bear
_PICTURES = {
    "robustness": "Total reward of every configuration, sorted: the numbers are in the table below",
    "importance": "Share of the variance that each hyper-parameter explains: the numbers are in the table below",
}
# Entries of a configuration that say how a run went, not what it was.
_NOT_CONFIGURATION = frozenset({"seed", "status", "result", "started", "finished", "study", "resumed", "findings"})


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
    :param rows: of the other runs, where somebody has made them already.
    :param problems: what the reader should know, such as runs that could not be read.
    """
    tabled = TabledRow.all_of(rows_of(run for run in runs if not is_drawn(run))) if rows is None else rows
    drawn = [each.row for each in tabled]
    entropies = entropies_of(runs, max_points=800)
    parts: list[tuple[str, str, str]] = []  # id, heading, HTML
    for number, each in enumerate(tabled):
        parts.append((f"row{number}", each.row.title, _row_section(f"row{number}", each.tables)))
    if entropies:
        parts.append(("entropies", "Entropy of the policy", _entropy_section(entropies)))
    if robustness and robustness.tables:
        parts.append(("robustness", "Robustness to hyper-parameters", _robustness_section(robustness)))
    found = findings_table(runs)
    if found.rows:
        parts.append(("findings", found.title, _table(found)))
    waiting = unfinished(drawn)
    if waiting.rows:
        parts.append(("unfinished", waiting.title, _table(waiting)))
    if problems:
        listed = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
        parts.append(("problems", "Problems", f"<ul>{listed}</ul>"))
    films = _films(drawn)
    if films:
        parts.append(("films", "Films", films))
    if drawn or not runs:
        parts.append(("configurations", "Configurations", _configurations(drawn)))
    parts.append(("versions", "Versions and command", _origin(runs, command)))
    return _filled(
        {
            "title": escape(title),
            "summary": escape(_summary(runs)),
            "css": _file("page.css"),
            "js": _file("page.js"),
            "navigation": " ".join(f'<a href="#{name}">{escape(heading)}</a>' for name, heading, _ in parts),
            "sections": "\n".join(
                f'<section id="{name}" aria-labelledby="{name}-heading">\n'
                f'<h2 id="{name}-heading">{escape(heading)}</h2>\n{content}\n</section>'
                for name, heading, content in parts
            ),
            "footer": escape(f"Made by bdpi {versions()['bdpi']}. The page is complete in itself: it loads nothing."),
            "data": _json(
                {
                    "rows": [
                        *(_row_data(f"row{number}-panels", row) for number, row in enumerate(drawn)),
                        *([_entropy_data("entropies-panels", entropies)] if entropies else []),
                    ]
                }
            ),
        }
    )


def _file(name: str) -> str:
    return resources.files("bdpi.report").joinpath(name).read_text(encoding="utf-8").strip()


def _filled(values: dict[str, str]) -> str:
    """The template with its ``{{names}}`` replaced, in one pass: what is put in is not looked through again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], _file("page.html")) + "\n"


def _json(data: object) -> str:
    """JSON that can stand in a ``<script>``: without anything that HTML would see as a tag."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


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


# The curves: data for page.js.


def _row_data(place: str, row: Row) -> dict[str, Any]:
    return {
        "id": place,
        "title": row.title,
        "bands": "95 % bands",
        "series": _series_data(row.series),
        "panels": [_panel_data(panel) for panel in row.panels],
    }


def _series_data(names: Sequence[str]) -> list[dict[str, str]]:
    colours = style.colours(names)
    return [{"name": name, "light": colours[name][0], "dark": colours[name][1]} for name in names]


def _panel_data(panel: Panel) -> dict[str, Any]:
    curves = [_curve_data(series) for series in panel.series]
    for series in panel.series:
        paper = panel.paper(series.name)
        if paper is not None:
            points = {"x": paper.episodes.astype(int).tolist(), "y": _numbers(paper.returns)}
            curves.append({"series": series.name, "paper": True, **points})
    return _with_shared_x(panel.environment, style.environment_title(panel.environment), "episode", "return", curves)


def _with_shared_x(environment: str, title: str, x: str, y: str, curves: list[dict[str, Any]]) -> dict[str, Any]:
    """Most curves of a panel have the same episodes: they are written once, and curves have their number."""
    shared: list[list[int]] = []
    for curve in curves:
        if curve["x"] not in shared:
            shared.append(curve["x"])
        curve["x"] = shared.index(curve["x"])
    return {"environment": environment, "title": title, "x": x, "y": y, "shared": shared, "curves": curves}


def _curve_data(series: Series) -> dict[str, Any]:
    curve = learning_curve(series, MAX_POINTS)
    data: dict[str, Any] = {"series": series.name, "runs": series.count}
    data.update(x=curve.episodes.tolist(), y=_numbers(curve.mean))
    if curve.runs > 1:
        data.update(low=_numbers(curve.low), high=_numbers(curve.high))
    return data


def _entropy_data(place: str, panels: Sequence[EntropyPanel]) -> dict[str, Any]:
    names = style.ordered_series({curve.name for panel in panels for curve in panel.curves})
    return {
        "id": place,
        "title": "Entropy of the policy",
        "bands": "standard deviation over runs",
        "series": _series_data(names),
        "panels": [
            _with_shared_x(
                panel.environment,
                panel.title,
                "time-step",
                "entropy in bits",
                [
                    {
                        "series": curve.name,
                        "runs": curve.count,
                        "x": curve.steps.tolist(),
                        "y": _numbers(curve.mean),
                        "low": _numbers(curve.low),
                        "high": _numbers(curve.high),
                    }
                    for curve in panel.curves
                ],
            )
            for panel in panels
        ],
    }


def _numbers(values: Iterable[float]) -> list[float | None]:
    """Four digits are more than a screen shows. JSON has no NaN."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]


# The sections.


def _row_section(name: str, tables: Sequence[Table]) -> str:
    # The first table is what most readers look for; the others are a click away.
    folded = "\n".join(_folded(table, opened=number == 0) for number, table in enumerate(tables))
    return f"{_panels(name)}\n{folded}"


def _robustness_section(robustness: Robustness) -> str:
    figures = "\n".join(
        f'<figure class="picture"><img src="data:image/png;base64,{base64.b64encode(content).decode("ascii")}" '
        f'alt="{escape(_PICTURES[name])}"></figure>'
        for name, content in robustness.pictures.items()
    )
    folded = "\n".join(_folded(table, opened=number == 0) for number, table in enumerate(robustness.tables))
    return f"{figures}\n{folded}"


def _entropy_section(panels: Sequence[EntropyPanel]) -> str:
    windows = ", ".join(f"{_plural(panel.window, 'step')} ({panel.title})" for panel in panels)
    note = (
        "Entropy of the policy at every time-step of training: mean and standard deviation over runs, "
        f"as running averages over {windows}."
    )
    return f'{_panels("entropies")}\n<p class="note">{escape(note)}</p>'


def _panels(name: str) -> str:
    return (
        f'<div id="{name}-panels"></div>\n'
        '<p class="hint">Point at a curve for its values; drag across a panel to zoom, double-click to see everything '
        "again. Names above switch curves off and on.</p>\n"
        "<noscript><p>The curves need JavaScript; the tables do not.</p></noscript>"
    )


def _folded(table: Table, opened: bool) -> str:
    summary = f"<summary><h3>{escape(table.title)}</h3></summary>"
    return f"<details{' open' if opened else ''}>{summary}\n{_table(table)}</details>"


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_word(table, column)}>{escape(name).replace(" %", "&nbsp;%")}</th>'
        for column, name in enumerate(table.columns)
    )
    lines, before = [], ""
    grouped = len({line[0] for line in table.rows}) < len(table.rows)
    for line in table.rows:
        # Where the first column changes, a stronger rule helps the eye.
        first = ' class="first"' if grouped and line[0] != before else ""
        before = line[0]
        cells = "".join(
            f'<th scope="row"{_word(table, column)}>{escape(cell)}</th>'
            if column < table.n_texts
            else f"<td>{escape(cell)}</td>"
            for column, cell in enumerate(line)
        )
        lines.append(f"<tr{first}>{cells}</tr>")
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(lines)
        + "\n</tbody></table></div>\n"
        + (f'<p class="note">{escape(table.note)}</p>' if table.note else "")
    )


def _word(table: Table, column: int) -> str:
    return ' class="word"' if column < table.n_texts else ""


def _films(rows: Sequence[Row]) -> str:
    """One film per series: of the run in the middle, neither the best nor the worst."""
    figures, left_out, size = [], 0, 0
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
                what = f"{series.name} on {panel.environment}, seed {run.place.seed}"
                picture = base64.b64encode(content).decode("ascii")
                figures.append(
                    f'<figure><img loading="lazy" src="data:image/gif;base64,{picture}" alt="Film: {escape(what)}">'
                    f"<figcaption>{escape(what)} ({escape(row.title)})</figcaption></figure>"
                )
    if not figures and not left_out:
        return ""
    note = "What agents do after training. Of each series that has films, the run with the median final return."
    if left_out:
        note += f" {_plural(left_out, 'film')} would have made the page too large: see policy.gif in the run folders."
    return (
        f'<details class="moving" open><summary>{_plural(len(figures), "film")}</summary>\n'
        f'<p class="note">{escape(note)}</p>\n<div class="films">{"".join(figures)}</div></details>'
    )


def _film(series: Series) -> tuple[StoredRun, bytes] | None:
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


def _configurations(rows: Sequence[Row]) -> str:
    blocks = []
    for row in rows:
        inner = [
            f"<details><summary>{escape(f'{panel.environment}, {series.name}')} "
            f'<span class="note">{escape(_runs_text(series))}</span></summary>\n{_configuration(series)}</details>'
            for panel in row.panels
            for series in panel.series
        ]
        blocks.append(f"<details><summary>{escape(row.title)}</summary>\n" + "\n".join(inner) + "\n</details>")
    return "\n".join(blocks) or "<p>There are none.</p>"


def _runs_text(series: Series) -> str:
    text = _plural(len(series.runs), "run")
    return f"{text}, {series.unfinished}" if series.unfinished else text


def _configuration(series: Series) -> str:
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
    table = Table("Runs", ("seed", "status", *differing, "episodes"), 2 + len(differing), lines, "")
    return f"<pre>{escape(text)}</pre>\n{_table(table)}"


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


def _origin(runs: Sequence[StoredRun], command: str) -> str:
    used: dict[str, Counter[str]] = {}
    for run in runs:
        status = run.record.status
        for name, value in {**status.versions, "platform": status.platform}.items():
            if value:
                used.setdefault(name, Counter())[value] += 1
    return (
        f"<h3>Command</h3>\n<pre>{escape(command)}</pre>\n"
        + (
            f"<h3>Of the runs</h3>\n{_list({name: _counted(values) for name, values in used.items()})}\n"
            if used
            else ""
        )
        + f"<h3>Of this report</h3>\n{_list(versions())}"
    )


def _counted(values: Counter[str]) -> str:
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{value} ({_plural(count, 'run')})" for value, count in values.most_common())


def _list(entries: dict[str, str]) -> str:
    return (
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in entries.items()) + "</dl>"
    )
