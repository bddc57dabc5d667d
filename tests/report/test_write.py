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
    again = write_report(study(), tmp_path / "again", title="A study", command="bdpi report runs")
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in again]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert all(path.stat().st_size > 1000 for path in written)
    text = (folder / "tables.md").read_text(encoding="utf-8")
    assert text.startswith("# A study\n\nMade by `bdpi report runs`.\n")
    for heading in ("## Algorithms", "## Critics", "## Noise", "### Returns", "## Runs that are not finished"):
        assert f"\n{heading}\n" in text


def test_a_new_report_replaces_the_old_one(tmp_path: Path) -> None:
    for title in ("first", "second"):
        written = write_report([run([1.0, 2.0])], tmp_path, title=title, command="c")
    assert [path.name for path in written] == ["figure.png", "figure.pdf", "tables.md", "index.html"]
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "second" in page
    assert "first" not in page.split("<style>")[0]


def test_headings_are_no_markup_and_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    runs = [run([1.0, 2.0], row="r<i>_x_")]
    write_report(runs, tmp_path, title="<b>t</b> [a](http://e.com)\n*x*", command="c")
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert text.startswith("# \\<b\\>t\\</b\\> \\[a\\](http://e.com) \\*x\\*\n")
    assert "\n## R\\<i\\> x\n" in text
    for stored, folder, message in (
        ([], tmp_path, "no runs"),
        (runs, tmp_path / "tables.md" / "report", "cannot be made"),
    ):
        with pytest.raises(RunError, match=message):
            write_report(stored, folder, title="t", command="c")
