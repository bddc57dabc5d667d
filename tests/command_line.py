"""The command ``bdpi``, as tests type it."""

from pathlib import Path

from typer.testing import CliRunner, Result

from bdpi.cli import app

#: Where Python finds ``odd_worlds:Broken-v0`` and the like.
ODD_WORLDS = str(Path(__file__).parent / "runs")


def bdpi_command(*arguments: object) -> Result:
    """What comes of it, in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeeds(*arguments: object) -> Result:
    """The same, of a command that does what it should."""
    result = bdpi_command(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refused(result: Result, *words: str) -> str:
    """The one line that says what is wrong; the status is 2.

    :param words: that are in it
    """
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("bdpi: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr
    assert "Traceback" not in result.output
    return result.stderr
