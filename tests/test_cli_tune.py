"""``bdpi tune`` as a user types it."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stable_baselines3.common.monitor import load_results

from command_line import ODD_WORLDS, bdpi_command, refused, succeeds

optuna = pytest.importorskip("optuna")

pytestmark = pytest.mark.usefixtures("elsewhere")
QUICK = [
    word
    for text in ("n_critics=2", "critic_iterations=1", "fit_steps=1", "batch_size=32", "buffer_size=2000")
    for word in ("--set", text)
]


def states(folder: Path) -> list[str]:
    study = optuna.load_study(study_name="tune", storage=f"sqlite:///{folder}/tune.sqlite")
    return [trial.state.name for trial in study.trials]


def test_the_printed_command_trains_as_the_best_trial_did(tmp_path: Path) -> None:
    arguments = ("tune", "CartPole-v1", "--trials", "3", "--episodes", "4", "--seed", "2", *QUICK)
    result = succeeds(*arguments)
    assert "3 trials in runs/tune/CartPole-v1-bdpi/tune.sqlite: 3 finished" in result.stdout
    table = [line.split() for line in result.stdout.splitlines() if re.match(r" +\d+ ", line)]
    assert len(table) == 3
    scores = [float(row[1]) for row in table]
    assert scores == sorted(scores, reverse=True)
    (command,) = re.findall(r"^The best:  bdpi (.*)$", result.stdout, re.MULTILINE)
    succeeds(*shlex.split(command), "--out", "best")
    assert load_results("best")["r"].sum() == pytest.approx(scores[0])

    again = bdpi_command(*arguments[:3], "1", *arguments[4:])  # adds one to those that are there
    assert again.exit_code == 0, again.output
    assert "trial 4/4" in again.stdout
    assert states(tmp_path / "runs/tune/CartPole-v1-bdpi") == ["COMPLETE"] * 4


def test_ctrl_c_keeps_the_search_and_the_same_command_goes_on(tmp_path: Path) -> None:
    world = "odd_worlds:SecondGatedLake-v0"
    arguments = ["tune", world, "--trials", "4", "--episodes", "12", *QUICK, "--out", "my search"]
    gate, path = tmp_path / "gate", os.pathsep.join(filter(None, [ODD_WORLDS, os.environ.get("PYTHONPATH")]))
    gate.touch()  # the second trial waits for the test
    command, environment = [sys.executable, "-m", "bdpi.cli", *arguments], {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        monitor = tmp_path / "my search" / "trials" / "002" / "seed0" / "monitor.csv"
        deadline = time.monotonic() + 180
        while (not monitor.exists() or monitor.read_text().count("\n") < 3) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        gate.unlink()
        output, _ = process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == 130
    assert re.search(r"^Stopped after 1 of 4 trials. Go on: the same command again", output, re.MULTILINE), output
    assert states(tmp_path / "my search") == ["COMPLETE", "FAIL"]
    n_before = monitor.read_text().count("\n")

    result = succeeds(*arguments)
    assert re.findall(r"^trial (\d)/4", result.stdout, re.MULTILINE) == ["2", "3", "4"]
    assert n_before < monitor.read_text().count("\n") == 14  # it went on in the same run
    assert states(tmp_path / "my search") == ["COMPLETE", "FAIL", *["COMPLETE"] * 3]


def test_a_search_that_takes_long_shows_progress_and_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bdpi.commands.ticker.SECONDS", 0.2)
    result = succeeds("tune", "odd_worlds:Endless-v0", "--trials", "2", "--minutes", "0.1", *QUICK)
    assert "0 of 200 episodes" in result.stderr
    assert "Stopped after 0 of 2 trials" in result.stdout


def test_failed_trials_are_told_and_without_any_other_the_status_says_so() -> None:
    result = bdpi_command("tune", "odd_worlds:NotANumber-v0", "--trials", "2", "--episodes", "6", *QUICK)
    assert result.exit_code == 1
    assert len(re.findall(r"^trial \d/2   failed: .*nan", result.stdout, re.MULTILINE)) == 2
    assert result.stderr == "bdpi: no trial has finished, so there is no best one\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["CartPoel-v1"], "unknown environment 'CartPoel-v1': did you mean CartPole-v1"),
        (["CartPole-v1", "--agent", "bpdi"], "unknown agent 'bpdi': choose from bdpi"),
        (["CartPole-v1", "--agent", "td3"], "no values to try for td3"),
        (["CartPole-v1", "--trials", "0"], "--trials"),
        (["CartPole-v1", "--set", "n_critics"], "not of the form name=value"),
        ([], "ENV_ID"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    refused(bdpi_command("tune", *arguments), message)
    assert list(tmp_path.iterdir()) == []
