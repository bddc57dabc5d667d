"""The report as files."""

from pathlib import Path

import pytest
from made_up import run, study

from bdpi.report import write_report
from bdpi.runs.errors import RunError


def test_a_report_is_a_folder_of_files(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "report"
    written = write_report(study(), folder, title="A study", command="bdpi report runs")
    names = ["figure.png", "figure.pdf", "entropy.png", "entropy.pdf", "tables.md", "index.html"]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert all(path.stat().st_size > 1000 for path in written)
    text = (folder / "tables.md").read_text(encoding="utf-8")
    assert text.startswith("# A study\n\nMade by `bdpi report runs`.\n")
    for heading in ("## Algorithms", "## Critics", "## Noise", "### Returns", "## Runs that are not finished"):
        assert f"\n{heading}\n" in text


def test_headings_are_no_markup(tmp_path: Path) -> None:
    runs = [run([1.0, 2.0], row="r<i>_x_")]
    write_report(runs, tmp_path, title="<b>t</b> [a](http://e.com)\n*x*", command="c")
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert text.startswith("# \\<b\\>t\\</b\\> \\[a\\](http://e.com) \\*x\\*\n")
    assert "\n## R\\<i\\> x\n" in text


def test_the_same_runs_give_the_same_report(tmp_path: Path) -> None:
    first, second = (
        [path.read_bytes() for path in write_report(study(), tmp_path / name, title="t", command="c")] for name in "ab"
    )
    assert first == second


def test_a_new_report_replaces_the_old_one(tmp_path: Path) -> None:
    for title in ("first", "second"):
        written = write_report([run([1.0, 2.0])], tmp_path, title=title, command="c")
    assert [path.name for path in written] == ["figure.png", "figure.pdf", "tables.md", "index.html"]
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "second" in page
    assert "first" not in page.split("<style>")[0]


def test_without_runs_there_is_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no runs"):
        write_report([], tmp_path, title="t", command="c")


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be made"):
        write_report([run([1.0])], tmp_path / "file" / "report", title="t", command="c")
