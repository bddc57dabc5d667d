"""``bdpi study`` and ``bdpi report`` as a user types them."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from typer.testing import CliRunner, Result

from bdpi.cli import app
from bdpi.runs.results import read_runs

STUDY = """
title: Tiny
seeds: 2
environments: {lake: {id: FrozenLake-v1, episodes: 25}}
rows:
  algorithms:
    BDPI: {agent: bdpi, set: {n_critics: 2, critic_iterations: 1, fit_steps: 2, batch_size: 16}}
    PPO: {agent: ppo}
  critics:
    2x2: {same_as: algorithms/BDPI}
"""
REPORT = ("tables.md", "index.html")


def bdpi(*arguments: object, folder: Path, check: bool = True) -> Result:
    """In this process, as if it had been typed there."""
    words, before = [str(argument) for argument in arguments], os.getcwd()
    os.chdir(folder)
    try:
        with patch.object(sys, "argv", ["bdpi", *words]):
            done = CliRunner().invoke(app, words)
    finally:
        os.chdir(before)
    assert not check or done.exit_code == 0, done.output
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(STUDY)
    return tmp_path


def episodes(folder: Path) -> dict[object, object]:
    _, runs, problems = read_runs(folder / "runs" / "tiny")
    assert not problems
    return {(run.place.row, run.place.series, run.place.seed): run.returns.tolist() for run in runs}


def test_wrappers_that_a_study_names_are_imported_only_with_trust(folder: Path) -> None:
    (folder / "around.yaml").write_text(
        "environments: {lake: {id: FrozenLake-v1, wrappers: ['evil:Wrapper']}}\nrows: {r: {PPO: {agent: ppo}}}\n"
    )
    (folder / "evil.py").write_text("from pathlib import Path\nPath('it ran').touch()\n")
    assert "--trust" in bdpi("study", "around.yaml", folder=folder, check=False).output
    assert not (folder / "it ran").exists()


def test_the_list_of_studies(tmp_path: Path) -> None:
    lines = bdpi("study", "list", folder=tmp_path).stdout.splitlines()
    assert any(line.startswith("figure2") and "table, lunarlander, frozenlake, hallway" in line for line in lines)


def test_a_study_from_the_first_run_to_the_report(folder: Path) -> None:
    first = bdpi("study", "tiny.yaml", "--seeds", 1, "--episodes", 5, "--workers", 2, folder=folder)
    assert "2 of 2 runs done" in first.stdout
    assert "bdpi report runs/tiny" in first.stdout
    second = bdpi("study", "tiny.yaml", "--executor", "local", folder=folder)
    assert second.stdout.count("4 of 4 runs done") == 1
    found = episodes(folder)
    assert len(found) == 6
    assert found["critics", "2x2", 0] == found["algorithms", "BDPI", 0]
    assert {len(returns) for returns in found.values()} == {25}
    report = bdpi("report", "runs/tiny", "--archive", "kept", "--out", "shown", folder=folder)
    assert "index.html" in report.stdout
    assert {"figure.png", "figure.pdf", "tables.md", "index.html"} <= {
        path.name for path in (folder / "shown").iterdir()
    }
    assert "index.html" in bdpi("report", "kept", "--out", "again", folder=folder).stdout
    tables = [(folder / name / "tables.md").read_text().splitlines() for name in ("shown", "again")]
    shown, again = ([line for line in table if "Made by" not in line] for table in tables)
    assert shown == again
    archived = (folder / "kept" / "episodes.csv.gz").read_bytes()
    shutil.rmtree(next(folder.glob("runs/tiny/*/*/PPO-seed1")))
    fewer = bdpi("report", "runs/tiny", "--archive", "kept", "--out", "shown", folder=folder)
    assert "also reported on, and kept: what runs/tiny has not, or not as far, of kept (runs: 1)" in fewer.stdout
    assert (folder / "kept" / "episodes.csv.gz").read_bytes() == archived


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["study", "figur2"], "there is no study 'figur2'"),
        (["study", "tiny.yaml", "--env", "moon"], "no environment 'moon'"),
        (["study", "robustness", "--env", "CartPol-v1"], "unknown environment 'CartPol-v1': did you mean CartPole-v1"),
        (["study", "robustness", "--env", "nomodule:Foo-v1"], "nomodule"),
        (["study", "robustness", "--env", "Pendulum-v1", "--only", "DQN"], "dqn needs Discrete actions, those"),
        (["study", "tiny.yaml", "--ray-address", "auto"], "--ray-address auto is for --executor ray, not processes"),
        (["study", "tiny.yaml", "--out", "tiny.yaml/x"], "--out tiny.yaml/x cannot be used"),
        (["report", "."], "is not the folder of a study or a run"),
        (["report", "missing"], "is not the folder of a study"),
    ],
)
def test_mistakes_are_one_line(folder: Path, arguments: list[str], message: str) -> None:
    done = bdpi(*arguments, folder=folder, check=False)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert [path.name for path in folder.iterdir()] == ["tiny.yaml"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_study_that_cannot_run_here_leaves_nothing_behind(folder: Path) -> None:
    done = bdpi("study", "tiny.yaml", "--executor", "population", folder=folder, check=False)
    assert done.exit_code == 2
    assert "--executor population needs a GPU" in done.stderr
    assert not (folder / "runs").exists()


def test_a_wrong_address_of_a_cluster_is_said_at_once(folder: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra bdpi[ray]")
    command = ["study", "tiny.yaml", "--executor", "ray", "--ray-address", "127.0.0.1:1"]
    done = subprocess.run([sys.executable, "-m", "bdpi.cli", *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no Ray cluster at --ray-address 127.0.0.1:1: " in done.stderr  # Ray itself would wait for a minute first


def test_the_command_of_a_study_is_recorded_in_its_runs(folder: Path) -> None:
    command = ["study", "tiny.yaml", "--seeds", "1", "--executor", "local", "--episodes"]
    bdpi(*command, "2", folder=folder)
    bdpi(*command, "3", folder=folder)
    runs = folder / "runs" / "tiny" / "algorithms" / "FrozenLake-v1"
    first, peer = (json.loads((runs / f"{name}-seed0" / "config.json").read_text()) for name in ("BDPI", "PPO"))
    assert first["command"] == ["bdpi", *command, "2"]
    assert [session["command"] for session in first["resumed"]] == [["bdpi", *command, "3"]]
    assert peer["command"] == ["bdpi", *command, "3"]  # it has started over
    refused = bdpi("report", "runs/tiny", "--archive", "tiny.yaml/x", folder=folder, check=False)
    assert "--archive tiny.yaml/x cannot be used" in refused.stderr
    assert "choose another folder" in refused.stderr


def test_a_damaged_index_is_written_again_and_no_run_is_forgotten(folder: Path) -> None:
    command = ["study", "tiny.yaml", "--only", "PPO", "--episodes", 2, "--executor", "local"]
    bdpi(*command, folder=folder)
    index = folder / "runs" / "tiny" / "study.json"
    index.write_text("{bad")
    drawn = bdpi("report", "runs/tiny", folder=folder)
    for said in (drawn.stderr, *(folder.joinpath("runs/tiny/report", name).read_text() for name in REPORT)):
        assert "bdpi study writes it again; until then, the 2 runs below" in said
    again = bdpi(*command, "--seeds", 1, folder=folder)  # asks for fewer runs than there are
    assert re.fullmatch(r"bdpi: .*study\.json is damaged: .* with the 2 runs that were found in .*\n", again.stderr)
    both = [("algorithms", "PPO", 0), ("algorithms", "PPO", 1)]
    assert sorted(episodes(folder)) == both
    index.unlink()
    assert "study.json is missing; bdpi study writes it again" in bdpi("report", "runs/tiny", folder=folder).stderr
    bdpi(*command, "--seeds", 1, folder=folder)
    assert sorted(episodes(folder)) == both


def test_who_goes_on_after_a_failure_is_told_what_comes_first(folder: Path) -> None:
    command = ["study", "tiny.yaml", "--only", "PPO", "--episodes", 2, "--executor", "local"]
    bdpi(*command, folder=folder)
    (config,) = folder.glob("runs/tiny/*/*/PPO-seed0/config.json")
    config.write_text("{bad")
    done = bdpi(*command, folder=folder, check=False)
    assert done.exit_code == 1
    assert "Go on:     when what failed is mended, or its folder removed, the same command again" in done.stdout
    shutil.rmtree(config.parent)
    assert "Go on" not in bdpi(*command, folder=folder).stdout


def rows(folder: Path) -> int:
    """Episodes of all runs so far."""
    return sum(path.read_text().count("\n") for path in folder.glob("runs/tiny/*/*/*/monitor.csv"))


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.full)])
def test_a_study_whose_driver_is_killed_again_and_again(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, kills: int
) -> None:
    """The merged result is that of an undisturbed study; processes that were left alone end by themselves."""
    undisturbed = tmp_path_factory.mktemp("undisturbed")
    (undisturbed / "tiny.yaml").write_text(STUDY)
    bdpi("study", "tiny.yaml", folder=undisturbed)
    rng = random.Random(0)
    command = [sys.executable, "-m", "bdpi.cli", "study", "tiny.yaml", "--workers", "2"]
    for _ in range(kills):
        wanted = rows(folder) + rng.randint(1, 20)
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and rows(folder) < wanted:
                time.sleep(0.01)
            process.send_signal(rng.choice([signal.SIGKILL, signal.SIGINT]))
    left = time.monotonic() + 180
    while (last := bdpi("study", "tiny.yaml", folder=folder, check=False)).exit_code and time.monotonic() < left:
        time.sleep(1)  # a run may still be saved by a process whose driver is gone
    assert last.exit_code == 0, last.stdout + last.stderr
    assert episodes(folder) == episodes(undisturbed)
    statuses = [json.loads(path.read_text())["status"] for path in folder.glob("runs/tiny/*/*/*/config.json")]
    assert statuses == ["finished"] * 4


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.full) for each in (signal.SIGTERM, signal.SIGHUP))]
)
def test_a_signal_to_all_its_processes_stops_a_study_cleanly(folder: Path, number: signal.Signals) -> None:
    """As a terminal sends them for Ctrl-C and when it is closed, and ``timeout`` does."""
    (folder / "tiny.yaml").write_text(STUDY.replace("episodes: 25", "episodes: 1000000"))
    command = [sys.executable, "-m", "bdpi.cli", "study", "tiny.yaml", "--workers", "2", "--only", "BDPI"]
    usual = {"preexec_fn": lambda: signal.signal(number, signal.SIG_DFL)}  # also where the tests run under nohup
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True, **usual)
    configs = [folder / f"runs/tiny/algorithms/FrozenLake-v1/BDPI-seed{seed}/config.json" for seed in range(2)]
    end = time.monotonic() + 180
    while not all(config.exists() for config in configs) and time.monotonic() < end:
        time.sleep(0.1)
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 128 + number
    assert output.count("Stopping: runs end after their current step, and are saved") == 1
    assert "the same command again" in output
    assert "0 running, 0 failed" in output.splitlines()[-2]
    assert [json.loads(config.read_text())["status"] for config in configs] == ["interrupted"] * 2
