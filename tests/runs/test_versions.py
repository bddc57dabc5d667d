"""What made a run."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import bdpi
from bdpi.runs import versions
from bdpi.runs.versions import origin


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that the package seems to be in."""
    monkeypatch.setattr(bdpi, "__file__", str(tmp_path / "src" / "bdpi" / "__init__.py"))
    versions._commit.cache_clear()
    yield tmp_path
    versions._commit.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    known = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(folder), *known, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_an_installed_package_has_no_commit(package: Path) -> None:
    assert "commit" not in origin()
    assert origin()["bdpi"] == bdpi.__version__


def test_a_clone_has_its_commit_and_says_when_it_was_changed(package: Path) -> None:
    git(package, "init", "-q")
    (package / "file").write_text("a")
    git(package, "add", "file")
    git(package, "commit", "-qm", "first")
    git(package, "tag", "v1")  # a name that many commits could get
    short = git(package, "rev-parse", "--short", "HEAD")
    assert origin()["commit"] == short
    (package / "file").write_text("b")
    versions._commit.cache_clear()
    assert origin()["commit"] == f"{short}-dirty"


def test_files_without_a_repository_are_of_the_commit_that_a_variable_names(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, recorded in (("0123abc", "0123abc"), ("0123abc-dirty", "0123abc-dirty"), ("main", None)):
        monkeypatch.setenv("BDPI_COMMIT", given)
        versions._commit.cache_clear()
        assert origin().get("commit") == recorded
    git(package, "init", "-q")
    monkeypatch.setenv("BDPI_COMMIT", "0123abc")
    versions._commit.cache_clear()
    assert "commit" not in origin()  # a repository speaks for itself; this one has no commit yet


def test_a_repository_that_git_cannot_read_has_none(package: Path) -> None:
    (package / ".git").write_text("nothing")
    assert "commit" not in origin()
