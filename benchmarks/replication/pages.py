"""What came out of measuring the paper again, as pages: docs/results.md, and one page for each panel of its figures.

    python benchmarks/replication/pages.py           # writes the pages and their figures
    python benchmarks/replication/pages.py --check   # fails if a page is not what the results give

All numbers and verdicts are computed from results/; the rules are in PROTOCOL.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from bdpi.report.figure import draw_figure  # noqa: E402
from bdpi.report.panels import Row  # noqa: E402
from bdpi.report.paper import paper_curve, paper_environment  # noqa: E402
from bdpi.runs.results import StoredRun, read_runs  # noqa: E402
from replication.claims import (  # noqa: E402
    CLAIMS,
    MARGINS,
    PROTOCOLS,
    RESULTS,
    STUDIES,
    AnyComparison,
    Finding,
    Measured,
    Verdict,
    counted,
)
from replication.curves import Counterpart, counterparts, table, table_of  # noqa: E402
from replication.hallway import hallway_page  # noqa: E402
from replication.sensitivities import sensitivities  # noqa: E402

DOCS = ROOT / "docs"
PANELS = DOCS / "panels"
ENVIRONMENTS = {  # what --env calls them
    "Table": "table",
    "LunarLander": "lunarlander",
    "FrozenLake": "frozenlake",
    "Hallway": "hallway",
    "Pendulum": "pendulum",
}
SEEDED = "--first-seed 100 --seeds 8 --executor population"

INDEX = """# The paper, measured again

Written by `make figures` from the runs under results/. Rules, margins and levels were
[written down](../benchmarks/replication/PROTOCOL.md) before the runs of the protocol, and verdicts are computed.
Protocol *text* is what the paper says, protocol *code* what the authors' published program does where that differs. The
number behind a verdict is that of the runs, of the series that has the fewest; an asterisk says that the verdict is
provisional: seeds, episodes or commits are not yet what the protocol asks for. A claim of several comparisons is
confirmed where all are, and refuted where one is; the pages of the panels have each of them.
"""

CONTRADICTIONS = """
## Where the paper contradicts itself
- λ is 0.01 in the background section, and δ 0.05 in the table of parameters. Ours are λ = 1 − exp(−δ), δ = 0.05.
- λ equals δ in one place, and 1 − exp(−δ) in the appendix. At δ = 0.05 the two differ by {lambdas:.1%}.
- Table has 200 steps in the text and 2,000 in the figure. Hallway's rewards are 0 or 1 in the text; the figure's first
  points are no multiples of an eighth, and fit 1 − 0.2 · t / 250.
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is another")
    options = parser.parse_args(arguments)
    wanted = pages()
    if options.check:
        stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        stale += [path for path in PANELS.glob("*.md") if path not in wanted]
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what results/ give: run `make figures`", file=sys.stderr)
        return bool(stale)
    PANELS.mkdir(exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    draw(Measured("text"))
    print(f"{len(wanted)} pages in docs/")
    return 0


def pages() -> dict[Path, str]:
    """All of them, by path."""
    measured = {protocol: Measured(protocol) for protocol in PROTOCOLS}
    curves = {protocol: counterparts(suffix) for protocol, suffix in PROTOCOLS.items()}
    found = {PANELS / f"{slug(*panel)}.md": panel_page(*panel, measured, curves) for panel in panels(curves["text"])}
    return {DOCS / "results.md": index(measured, curves), DOCS / "hallway.md": hallway_page(), **found}


def panels(curves: Iterable[Counterpart]) -> list[tuple[str, str]]:
    """Row and environment of each panel, in the paper's order."""
    return list(dict.fromkeys((curve.paper.row.lower(), curve.paper.environment) for curve in curves))


def slug(row: str, environment: str) -> str:
    """The name of a panel's files."""
    return environment.lower() if row == environment.lower() else f"{environment.lower()}-{row}"


# -- the first page


def index(measured: dict[str, Measured], curves: dict[str, list[Counterpart]]) -> str:
    """A line for each claim, then a line for each panel."""
    parts = [INDEX]
    for group, claims in groupby(CLAIMS, key=lambda claim: claim.group):
        lines = [[claim.text, *(cell(claim.evaluate(each)) for each in measured.values())] for claim in claims]
        parts.append(f"\n## {group}\n\n" + table(("claim", *(f"protocol {name}" for name in measured)), lines))
    parts.append("\n" + totals(measured))
    parts.append(f"\n## The {len(curves['text'])} curves\n\n" + counts(curves) + "\n")
    columns = (
        "panel",
        *(f"{state}, {name}" for name in curves for state in ("complete", "partial", "missing")),
        "verdicts, text",
    )
    parts.append(table(columns, (panel_line(*panel, curves) for panel in panels(curves["text"]))))
    parts += [CONTRADICTIONS.format(lambdas=0.05 / (1 - np.exp(-0.05)) - 1), identical()]
    parts += ["\n## Robustness, in numbers\n\n", sensitivities(measured["text"]), entropies()]
    parts.append(
        "\n## The runs\n\n" + table(("archive", "runs", "seeds", "begun", "commits", "fingerprints"), archives())
    )
    parts.append(
        "\nMost of them are older than the protocol. What was wrong with some, and which were replaced, is in the "
        "[changelog](../CHANGELOG.md). Pixels and learning rates on Hallway have [a page of their own](hallway.md).\n"
    )
    return "".join(parts)


def cell(finding: Finding) -> str:
    """A verdict, how many runs it stands on, and whether it is provisional."""
    if finding.verdict is Verdict.UNMEASURED:
        return finding.verdict.value
    return f"{finding.verdict.value}, {finding.runs}{'' if finding.is_complete else ' *'}"


def totals(measured: dict[str, Measured]) -> str:
    """How many claims have which verdict."""
    lines = []
    for name, each in measured.items():
        counts = counted(claim.evaluate(each) for claim in CLAIMS)
        lines.append(
            f"Protocol {name}: " + ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items()) + ".\n"
        )
    return "\n".join(lines)


def counts(curves: dict[str, list[Counterpart]]) -> str:
    """How many curves are there."""
    lines = []
    for name, each in curves.items():
        states = Counter(curve.state for curve in each)
        lines.append(f"Protocol {name}: {_counted(states, ('complete', 'partial', 'missing'))}.\n")
    return "\n".join(lines)


def panel_line(row: str, environment: str, curves: dict[str, list[Counterpart]]) -> list[str]:
    """Of the first page's table."""
    cells = [f"[{environment}, {row}](panels/{slug(row, environment)}.md)"]
    for each in curves.values():
        states = Counter(curve.state for curve in of_panel(row, environment, each))
        cells += [str(states[state]) for state in ("complete", "partial", "missing")]
    verdicts = Counter(curve.verdict.split(" (")[0] for curve in of_panel(row, environment, curves["text"]))
    return [*cells, _counted(verdicts, tuple(sorted(verdicts)))]


def of_panel(row: str, environment: str, curves: Iterable[Counterpart]) -> list[Counterpart]:
    """Curves of one panel."""
    return [each for each in curves if (each.paper.row.lower(), each.paper.environment) == (row, environment)]


def _counted(counts: Counter[str], names: tuple[str, ...]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in names)


def identical() -> str:
    """Curves of the paper that should differ."""
    few, all_of_them = (paper_curve("critics", "LunarLander-v3", name) for name in ("16x8", "16x16"))
    third = paper_curve("pendulum", "Pendulum-v1", "TD3")
    assert few is not None
    assert all_of_them is not None
    assert third is not None
    lines = []
    if np.array_equal(few.returns, all_of_them.returns):
        lines.append("- On LunarLander, the curves of 16x8 and 16x16 are one and the same.\n")
    lines.append(
        f"- On Pendulum, TD3's curve begins at {third.returns[0]:.0f}, where a random policy has about −1,200: it is "
        "smoothed from another start, or had learned before.\n"
    )
    return "".join(lines)


def entropies() -> str:
    """Bits of the policies, over steps that all runs have: the protocol has no verdict for it."""
    stored, lines = read_runs(RESULTS / "entropy")[1], []
    for name in dict.fromkeys(run.place.series for run in stored):
        runs = [run.entropies for run in stored if run.place.series == name and run.entropies is not None]
        have = min(map(len, runs))
        for first, last in ((0, 250), (250, 1_000), (1_000, 5_000), (have - 5_000, have)):
            part = np.array([run[first:last] for run in runs])
            spread = part.std(axis=0, ddof=1).mean()
            lines.append([name, f"{first} to {last}", f"{part.mean():.2f}", f"{spread:.2f}", str(len(runs))])
    head = (
        "\n## Entropy of the policy on Table\n\nThe paper describes it in words: it dips again and again in the first "
        "episodes, and runs differ later. [Figure](../results/entropy/entropy.png). No rule was registered, so there "
        "is no verdict.\n\n"
    )
    return head + table(("series", "steps", "bits", "deviation between runs", "runs"), lines)


def archives() -> list[list[str]]:
    """What the numbers come from."""
    lines = []
    for protocol in PROTOCOLS.values():
        for study in (*STUDIES, "robustness", "entropy"):
            folder = RESULTS / f"{study}{protocol}"
            if folder.exists():
                lines.append(archive(folder, read_runs(folder)[1]))
    return lines


def archive(folder: Path, runs: list[StoredRun]) -> list[str]:
    """A line of the table of archives."""
    seeds = sorted({run.place.seed for run in runs})
    begun = sorted(run.record.status.started[:10] for run in runs if run.record.status.started)
    named = {run.record.status.versions.get("commit", "") for run in runs}
    learned = {one for run in runs for one in run.record.status.learned_by}
    name = f"[{folder.name}](../results/{folder.name}/tables.md)"
    when = "" if not begun else begun[0] if begun[0] == begun[-1] else f"{begun[0]} to {begun[-1]}"
    return [name, str(len(runs)), f"{seeds[0]} to {seeds[-1]}", when, _named(named), _named(learned)]


def _named(names: set[str]) -> str:
    known = sorted(names - {""})
    return ", ".join(known) + (" and unknown" if known else "unknown") * ("" in names)


# -- the pages of the panels


def panel_page(row: str, environment: str, measured: dict[str, Measured], curves: dict[str, list[Counterpart]]) -> str:
    """Figure, curves, comparisons, command."""
    study = "pendulum" if environment == "Pendulum" else "figure2"
    parts = [
        f"# {environment}: {row}\n\nA panel of the paper's figures, [measured again](../results.md). Written by "
        "`make figures`.\n"
    ]
    if any(curve.state != "missing" for curve in of_panel(row, environment, curves["text"])):
        alt = f"Returns of {environment}, {row}: thick lines are ours, thin ones the paper's"
        parts.append(f"\n![{alt}]({slug(row, environment)}.png)\n")
    for name, each in curves.items():
        here = of_panel(row, environment, each)
        suffix = "" if name == "text" else f" --protocol {name}"
        option = "" if environment == "Pendulum" else f" --env {ENVIRONMENTS[environment]} --row {row}"
        parts.append(f"\n## Curves, protocol {name}\n\n`bdpi study {study}{option}{suffix} {SEEDED}`\n\n")
        parts.append(table_of(here) if any(curve.state != "missing" for curve in here) else "No runs yet.\n")
    parts.append(
        "\nReturns are means of the last tenth of the episodes that the paper's curve and all runs have, smoothed as "
        "the paper's; differences have 95 % bootstrap intervals over runs, and a margin of "
        f"{MARGINS[environment]:g}.\n"
    )
    lines = [
        [claim.text, *comparison_line(comparison, measured)]
        for claim in CLAIMS
        for comparison in claim.comparisons
        if comparison.place == (row, environment)
    ]
    if lines:
        columns = (
            "claim",
            "comparison",
            *(column for name in measured for column in (f"difference or return, {name}", f"verdict, {name}")),
        )
        parts.append("\n## What the paper says of it\n\n" + table(columns, lines))
    return "".join(parts)


def comparison_line(comparison: AnyComparison, measured: dict[str, Measured]) -> list[str]:
    """What it found, by each protocol."""
    findings = [comparison.evaluate(each) for each in measured.values()]
    return [findings[0].what, *(text for each in findings for text in (each.estimate, cell(each)))]


def draw(measured: Measured) -> None:
    """The figures of the panels that have runs."""
    for row in measured.rows:
        for panel in row.panels:
            environment = paper_environment(panel.environment)
            if row.study in ("figure2", "pendulum") and environment is not None:
                alone = Row(row.study, row.name, row.title, (panel,))
                draw_small(alone, PANELS / f"{slug(row.name, environment)}.png")


def draw_small(row: Row, path: Path) -> None:
    """For the screen, not for print: a tenth of the size."""
    draw_figure([row], [path])
    with Image.open(path) as picture:
        picture.thumbnail((1200, 1200))
        picture.convert("RGB").quantize(256, kmeans=1).save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
