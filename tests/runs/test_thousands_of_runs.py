"""A study of many runs, as a user starts it, all of it real except the agent. A worker is killed, then the driver.

``BDPI_SIMULATED_RUNS=2000`` makes it as large as the paper's study of robustness.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bdpi.runs.results import read_runs

RUNS = int(os.environ.get("BDPI_SIMULATED_RUNS", "200"))
MOST_GROWTH = 40_000  # kB; the memories of 2 000 agents would be far more
STUDY = """
from fake_trainer import Log

fake = {"agent": "fake", "set": {"log": Log("log")}}
STUDY = {
    "seeds": RUNS,
    "environments": {"counting": {"id": "odd_worlds:Counting-v0", "episodes": 3}},
    "rows": {"all": {"fake": fake}},
}
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")


class Driver:
    """``bdpi study`` in a folder."""

    def __init__(self, folder: Path, executor: str) -> None:
        self._log = folder / "log"
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bdpi.cli", "study", "simulated.py", "--executor", executor, "--workers", "2"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.memory: list[int] = []  #: kB, from the first run on

    def events(self, what: str) -> list[tuple[int, int]]:
        """Seeds and processes of the runs that ``"began"``, or were ``"trained"``."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [(int(line.split()[1]), int(line.split()[2])) for line in lines if line.startswith(what)]

    def wait(self, until: Callable[[], bool]) -> None:
        end = time.monotonic() + 120 + RUNS
        before = len(self.events("trained"))
        while not until() and time.monotonic() < end:
            if len(self.events("trained")) > before + 20 and self.process.poll() is None:
                status = Path(f"/proc/{self.process.pid}/status").read_text()
                self.memory += map(int, re.findall(r"VmRSS:\s+(\d+)", status))
            time.sleep(0.05)
        assert until()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def finished(folder: Path) -> set[int]:
    configs = [json.loads(path.read_text()) for path in folder.glob("runs/simulated/*/*/*/config.json")]
    return {config["seed"] for config in configs if config["status"] == "finished"}


@pytest.mark.parametrize(
    ("executor", "runs"),
    [("processes", 60), *(pytest.param(executor, RUNS, marks=pytest.mark.full) for executor in ("processes", "ray"))],
)
def test_each_run_is_finished_once_though_a_worker_and_the_driver_are_killed(
    tmp_path: Path, executor: str, runs: int
) -> None:
    if executor == "ray":
        pytest.importorskip("ray", reason="needs the extra bdpi[ray]")
    (tmp_path / "simulated.py").write_text(f"RUNS = {runs}\n{STUDY}")
    (gate := tmp_path / "log.gate").write_text(f"{3 * runs // 4}")  # of these runs, none ends before the driver does

    first, began_at = Driver(tmp_path, executor), time.monotonic()
    first.wait(lambda: len(first.events("trained")) > runs // 5)
    killed = first.events("began")[-1][1]
    os.kill(killed, signal.SIGKILL)
    first.wait(lambda: len(first.events("trained")) > runs // 2)
    assert not is_alive(killed)
    workers, minutes = {pid for _, pid in first.events("began")}, (time.monotonic() - began_at) / 60
    # each took one run after the other for two minutes, and the killed one may have been replaced
    assert len(workers) <= 3 + 2 * (minutes // 2)
    first.process.kill()
    gate.unlink()
    first.process.communicate()
    first.wait(lambda: not any(map(is_alive, workers)))
    done, begun = finished(tmp_path), len(first.events("began"))
    assert runs // 3 < len(done) < runs

    second = Driver(tmp_path, executor)
    second.wait(lambda: second.process.poll() is not None)
    output, _ = second.process.communicate()
    assert second.process.returncode == 0, output
    assert f"{len(done)} of {runs} runs are done already" in output
    assert f"{runs} of {runs} runs done" in output

    began = [seed for seed, _ in second.events("began")]
    assert not done & set(began[begun:])
    assert set(began) == set(range(runs)) == finished(tmp_path)
    assert len(began) <= runs + 3  # what the killed worker and the two of the killed driver were at
    _, stored, problems = read_runs(tmp_path / "runs" / "simulated")
    assert not problems
    assert {(run.status, *run.returns, *run.lengths) for run in stored} == {("finished", *[5.0] * 3, *[5] * 3)}
    assert len(stored) == runs
    assert not list(tmp_path.glob("runs/simulated/*/*/*/.*"))
    for driver in (first, second) if runs > 100 else ():
        assert max(driver.memory) - driver.memory[0] < MOST_GROWTH
        print(f"{executor}: {driver.memory[0]} kB, at most {max(driver.memory)} kB")
