"""Runs in processes of their own that one more process trains together; any of them may die."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import emulator
from bdpi.learner import nvrtc
from bdpi.runs.campaign import Tally, run_campaign
from bdpi.runs.config import Place, RunConfig
from bdpi.runs.executors.population import OnGPU
from bdpi.runs.folder import RunFolder
from bdpi.runs.job import Job, status_of

KERNELS = Path(tempfile.gettempdir()) / f"bdpi-kernels-{os.getpid()}"
SMALL = {"n_critics": 2, "batch_size": 8, "critic_iterations": 1, "fit_steps": 1, "buffer_size": 100, "train_freq": 4}


def job(root: Path, series: str, seed: int = 0, **plan: Any) -> Job:
    if "environment" not in plan:  # whose fifth episode waits for the test, where there is a file
        plan = {"environment": "odd_worlds:GatedLake-v0", "env_kwargs": {"gate": str(root / "gate")}, **plan}
    plan = {"episodes": 8, "hyperparameters": SMALL, "seed": seed, **plan}
    place = Place("small", "algorithms", plan["environment"], series, seed)
    return Job(place, RunConfig(**plan), root / f"{series}-seed{seed}")


def jobs_in(root: Path) -> list[Job]:
    """Runs of two kinds that the kernels can train, and one that they cannot."""
    deep = {"policy_kwargs": {"net_arch": [4, 4]}}
    return [*(job(root, "bdpi", k) for k in range(3)), job(root, "abcdqn", agent="abcdqn"), job(root, "deep", **deep)]


def run(jobs: list[Job], workers: int = 5, **others: Any) -> Tally:
    where = ("cuda", None) if nvrtc.is_available() else ("cpu", partial(emulator.train, KERNELS))
    return run_campaign(jobs, OnGPU(workers, *where), say=print, **others)


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Iterator[None]:
    """Emulated kernels are compiled once."""
    KERNELS.mkdir()
    yield
    shutil.rmtree(KERNELS)


def episodes_of(jobs: list[Job]) -> list[list[str]]:
    """Returns and lengths, without times."""
    return [
        [line.rpartition(",")[0] for line in RunFolder(job.folder).monitor.read_text().splitlines()[2:]] for job in jobs
    ]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What runs give when nothing happens to them."""
    jobs = jobs_in(tmp_path_factory.mktemp("expected"))
    assert len(run(jobs).done) == 5
    learners = [RunFolder(job.folder).read().status.learner for job in jobs]
    assert learners == ["population"] * 4 + ["native"]
    return episodes_of(jobs)


def has_episodes(job: Job, number: int) -> bool:
    monitor = RunFolder(job.folder).monitor
    return monitor.exists() and len(monitor.read_text().splitlines()) >= 2 + number


def parents() -> dict[int, int]:
    """The parent of each process."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def our_processes() -> list[int]:
    """What the server that we have started has forked, oldest first: the one that trains, then those of runs."""
    known = parents()
    return sorted(pid for pid, parent in known.items() if known.get(parent) == os.getpid())


def closed_gate(root: Path) -> Path:
    """Runs wait before their fifth episode until this is removed."""
    gate = root / "gate"
    gate.touch()
    return gate


def test_interrupted_runs_go_on_as_if_nothing_had_happened(tmp_path: Path, expected: list[list[str]]) -> None:
    jobs, gate, answers = jobs_in(tmp_path), closed_gate(tmp_path), []

    def should_stop() -> bool:
        answers.append(all(has_episodes(job, 4) for job in jobs))
        return answers[-1]

    def show(*_: Any) -> None:
        if sum(answers) > 2:  # by now the runs know it, too
            gate.unlink(missing_ok=True)

    tally = run(jobs, should_stop=should_stop, show=show)
    assert len(tally.interrupted) == 5
    assert [status_of(job) for job in jobs] == ["unfinished"] * 5
    assert len(run(jobs).done) == 5
    assert episodes_of(jobs) == expected


@pytest.mark.full
@pytest.mark.parametrize("of_trainer", [True, False])
def test_any_process_may_die(tmp_path: Path, expected: list[list[str]], of_trainer: bool) -> None:
    jobs, gate, killed = jobs_in(tmp_path), closed_gate(tmp_path), []

    def show(*_: Any) -> None:
        if killed or not has_episodes(jobs[0], 2):
            return
        trainer, *others = our_processes()
        killed.append(trainer if of_trainer else others[0])
        os.kill(killed[0], signal.SIGKILL)
        gate.unlink()

    tally = run(jobs, show=show)
    assert killed
    assert len(tally.done) == 5
    assert episodes_of(jobs) == expected


def test_a_run_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    bad = job(tmp_path, "bad", environment="odd_worlds:Exiting-v0")
    end = time.monotonic() + 120
    tally = run([bad, job(tmp_path, "bdpi")], 2, should_stop=lambda: time.monotonic() > end)
    assert [len(tally.done), len(tally.failed)] == [1, 1]
