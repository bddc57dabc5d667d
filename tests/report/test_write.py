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


def test_a_report_of_more_than_can_be_drawn_in_seconds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive of 300 kB may name a thousand environments."""
    rows = [run([1.0], row=f"row{n}") for n in range(25)]
    environments = [run([1.0], environment=f"E{n}-v0") for n in range(25)]
    for runs in (rows, environments):
        with pytest.raises(RunError, match=r"25 panels.*BDPI_PANELS=25"):
            write_report(runs, tmp_path / "report", title="t", command="c")
    curves = [run([1.0], series=f"BDPI {n}") for n in range(193)]
    with pytest.raises(RunError, match=r"193 curves in 1 panels.*BDPI_PANELS=25"):
        write_report(curves, tmp_path / "report", title="t", command="c")
    assert not (tmp_path / "report").exists()
    monkeypatch.setattr("bdpi.report.write._PANELS", 1)
    two = [run([1.0, 2.0], row=f"row{n}") for n in range(2)]
    with pytest.raises(RunError, match="BDPI_PANELS=2"):
        write_report(two, tmp_path / "report", title="t", command="c")
    monkeypatch.setenv("BDPI_PANELS", "2")
    assert write_report(two, tmp_path / "report", title="t", command="c")


def test_a_report_of_ones_own_study_need_not_speak_of_the_paper(tmp_path: Path) -> None:
    for with_paper in (True, False):
        write_report(study(), tmp_path, title="t", command="c", with_paper=with_paper, x="steps")
        tables = (tmp_path / "tables.md").read_text(encoding="utf-8")
        assert ("paper" in tables) is with_paper
        assert '"paper":true' not in (tmp_path / "index.html").read_text(encoding="utf-8")
        assert "environment step" in (tmp_path / "index.html").read_text(encoding="utf-8")
