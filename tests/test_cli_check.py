"""``bdpi check``, and what ``bdpi train`` says of a run that does not learn."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from bdpi.agents.health import Finding
from bdpi.runs.live import PlainView, TerminalView
from bdpi.runs.progress import Progress, RunInfo
from command_line import bdpi_command, succeeds

pytestmark = pytest.mark.usefixtures("elsewhere")
QUICK = ["--set", "n_critics=2", "--set", "fit_steps=2", "--set", "batch_size=16", "--set", "train_freq=10"]


def looked(environment: str, *arguments: str) -> tuple[dict, int]:
    result = bdpi_command("check", environment, "--json", *arguments)
    return json.loads(result.stdout), result.exit_code


# -- bdpi check


def test_an_environment_without_problems(tmp_path: Path) -> None:
    result = succeeds("check", "CartPole-v1", "--episodes", "40")
    parts = ("Discrete(2)", "time limit    500 steps", "observation 3", "terminated", "ms", "40 episodes take about")
    for part in (*parts, "MlpPolicy", "No problems found"):
        assert part in result.stdout
    assert "$ bdpi check CartPole-v1" in bdpi_command("check", "--help").stdout
    unknown = bdpi_command("check", "CartPol-v1")
    assert (unknown.exit_code, "did you mean CartPole-v1" in unknown.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []  # nothing is written


def test_json_has_the_numbers_and_they_add_up() -> None:
    look, status = looked("CartPole-v1", "--episodes", "40")
    assert status == 0
    assert look["findings"] == []
    assert len(look["ranges"]) == 4
    assert look["rewards"]["mean"] == 1
    assert look["episodes"]["lengths"]["mean"] == look["episodes"]["returns"]["mean"]
    assert look["episodes"]["truncated"] == 0 < look["episodes"]["terminated"]
    estimate = look["estimate"]
    per_step = (look["step_ms"] + estimate["learning_ms"]) / 1000
    assert estimate["seconds"] == pytest.approx(40 * look["episodes"]["lengths"]["mean"] * per_step, rel=0.01)
    assert estimate["longest"] == pytest.approx(40 * 500 * per_step, rel=0.01)


def test_continuous_actions_and_time_limits() -> None:
    look, status = looked("Pendulum-v1")
    assert status == 0
    assert any("binary decisions" in line for line in look["by_itself"])
    assert look["episodes"]["terminated"] == 0 < look["episodes"]["truncated"]


def test_rewards_that_were_not_found_are_worth_knowing_and_no_problem() -> None:
    look, status = looked("FrozenLake8x8-v1")
    assert status == 0
    assert any("rewards of random actions are 0" in line for line in look["remarks"])
    assert any("one-hot" in line for line in look["by_itself"])


@pytest.mark.parametrize(
    ("world", "code"),
    [
        ("Blind", "observations-constant"),
        ("NotANumber", "environment-fails"),
        ("Continuous", "no-agent"),
        ("Jagged", "gymnasium-check"),
    ],
)
def test_problems_are_found_with_what_to_do_about_them(world: str, code: str) -> None:
    look, status = looked(f"odd_worlds:{world}-v0")
    assert status == 1
    assert code in [finding["code"] for finding in look["findings"]]
    assert all(finding["message"] and finding["remedy"] for finding in look["findings"])


def test_an_episode_that_does_not_end() -> None:
    result = bdpi_command("check", "odd_worlds:Forever-v0")
    assert result.exit_code == 1
    assert "has not ended in 10000 steps" in result.stdout
    assert "max_episode_steps" in result.stdout


@pytest.mark.parametrize("world", ["Masked", "Several", "Pictures", "Steered"])
def test_all_kinds_of_spaces(world: str) -> None:
    look, status = looked(f"odd_worlds:{world}-v0")
    assert status == 0, look["findings"]
    assert look["estimate"]["learning_ms"] > 0


# -- bdpi train

FINDING = Finding("observations-constant", "Observation dimension 1 never changed.", "Check that sensor.")


def test_a_run_says_what_it_found_once_on_the_way_and_with_remedies_in_the_end(tmp_path: Path) -> None:
    result = succeeds("train", "odd_worlds:Blind-v0", "--steps", "1200", "--out", str(tmp_path / "run"), *QUICK)
    before, _, after = result.stdout.partition("Finished:")
    assert before.count("dimension 1 never changed") == 1
    assert after.count("dimension 1 never changed") == 1
    assert "Check that sensor" in after
    assert result.stderr == ""
    (stored,) = json.loads((tmp_path / "run" / "config.json").read_text())["findings"]
    assert stored["code"] == "observations-constant"


def test_a_healthy_run_has_nothing_to_say(tmp_path: Path) -> None:
    result = bdpi_command("train", "odd_worlds:Right-v0", "--steps", "1200", "--out", str(tmp_path / "run"), *QUICK)
    assert "may not learn" not in result.stdout
    assert json.loads((tmp_path / "run" / "config.json").read_text())["findings"] == []


def test_both_views_show_findings() -> None:
    info = RunInfo("Blind-v0", "bdpi", 0, "native", Path("runs/x"))
    progress = Progress(10, None, findings=[FINDING])
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    console.print(TerminalView(console).render(info, progress))
    assert isinstance(console.file, io.StringIO)
    assert FINDING.message in re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())
    stream = io.StringIO()
    PlainView(stream).found(FINDING)
    assert stream.getvalue().count("\n") == 1
    assert FINDING.message in stream.getvalue()
    assert FINDING.remedy in stream.getvalue()
