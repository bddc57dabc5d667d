"""Thousands of finished runs: what is read of them, counted in files, because seconds depend on the machine."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bdpi.runs.campaign import run_campaign
from bdpi.runs.config import RunRecord, RunStatus
from bdpi.runs.episodes import Episodes, read_monitor, read_returns, summarize
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder
from bdpi.runs.job import Job, JobResult
from bdpi.runs.results import read_runs, write_index
from bdpi.studies import load_study

EPISODES = 3
_opened: list[str] | None = None


def _remember(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str):
        _opened.append(arguments[0])


sys.addaudithook(_remember)  # cannot be removed, and does nothing outside of these tests


def opened(action: Callable[[], object], root: Path) -> Counter[str]:
    """Which files below ``root`` an action opens, by their name."""
    global _opened
    _opened = []
    try:
        action()
        return Counter(Path(path).name for path in _opened if path.startswith(str(root)))
    finally:
        _opened = None


class Nothing:
    """An executor that remembers what it should do."""

    def __init__(self) -> None:
        self.asked: list[Job] = []

    def run(
        self, jobs: Sequence[Job], should_stop: Callable[[], bool], started: Callable[[Job], None]
    ) -> Iterator[tuple[Job, JobResult] | None]:
        self.asked += jobs
        yield from ()


@pytest.fixture(scope="module", params=[200, pytest.param(2_000, marks=pytest.mark.full)])
def finished(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Job]]:
    """A study whose runs are all done: configuration, episodes, an agent and its memory."""
    root = tmp_path_factory.mktemp("many")
    study = load_study("robustness").smaller(configs=request.param, episodes=EPISODES, only=("PPO",))
    jobs = study.jobs(root)
    write_index(root / study.name, study.title, study.folders(root))
    for job in jobs:
        folder = RunFolder(job.folder)
        folder.make()
        result = summarize(Episodes([1.0] * EPISODES), 60, 1.0)
        drawn = {"study": job.place, "configuration": job.configuration}
        folder.write(RunRecord(job.config, RunStatus(status="finished", result=result, policy="MlpPolicy", **drawn)))
        rows = "".join(f"{job.place.seed + episode}.5,20,{episode}.25\n" for episode in range(EPISODES))
        folder.monitor.write_text('#{"t_start": 1.0, "env_id": "LunarLander-v3"}\nr,l,t\n' + rows)
        folder.agent.write_bytes(b"agent")
        folder.replay.write_bytes(b"memory")
    return root, jobs


def test_listing_reads_nothing_but_configurations_and_episodes(finished: tuple[Path, list[Job]]) -> None:
    root, jobs = finished
    executor = Nothing()
    tallies = []
    files = opened(lambda: tallies.append(run_campaign(jobs, executor)), root)
    assert len(tallies[0].done) == len(jobs)
    assert not executor.asked
    assert files == {"config.json": len(jobs), "monitor.csv": len(jobs)}
    assert max(RunFolder(job.folder).config.stat().st_size for job in jobs) < 5_000


def test_reporting_reads_nothing_but_configurations_and_episodes(finished: tuple[Path, list[Job]]) -> None:
    root, jobs = finished
    found: list[Any] = []
    files = opened(lambda: found.extend(read_runs(root / "robustness")), root)
    assert files == {"study.json": 1, "config.json": len(jobs), "monitor.csv": len(jobs)}
    _, runs, problems = found
    assert not problems
    assert [run.returns.tolist() for run in runs[:2]] == [[0.5, 1.5, 2.5], [1.5, 2.5, 3.5]]
    assert {len(run.returns) for run in runs} == {EPISODES}


def test_a_study_that_was_stopped_goes_on_with_what_is_missing(finished: tuple[Path, list[Job]]) -> None:
    root, done = finished
    n = len(done)
    jobs = load_study("robustness").smaller(configs=n + 3, episodes=EPISODES, only=("PPO",)).jobs(root)
    executor = Nothing()
    assert len(run_campaign(jobs, executor).done) == n
    assert [job.place.seed for job in executor.asked] == [n, n + 1, n + 2]


@pytest.mark.parametrize(
    "rows",
    [
        "",
        "1.5,20,0.25\n-2.0,30,0.5\n",
        "nan,20,0.25\n",
        "1.5,20,0.25\n-2.0,30",  # cut off by a crash
        "1.5,20,0.25,extra\n",
        '"1.5",20,0.25\n',
    ],
)
def test_episodes_are_read_quickly_and_as_carefully(rows: str, tmp_path: Path) -> None:
    path = tmp_path / "monitor.csv"
    path.write_text('#{"t_start": 1.0, "env_id": "x"}\nr,l,t\n' + rows)
    slowly = read_monitor(path)
    returns, lengths = read_returns(path)
    assert str(returns.tolist()) == str(slowly.returns)
    assert lengths.tolist() == slowly.lengths


@pytest.mark.parametrize("rows", ["1.5,x,0.25\n", "1.5,20\n1.5,20,0.25,4\n", "1.5,inf,0.25\n", "\n"])
def test_damaged_episodes_are_named(rows: str, tmp_path: Path) -> None:
    path = tmp_path / "monitor.csv"
    path.write_text('#{"t_start": 1.0, "env_id": "x"}\nr,l,t\n' + rows)
    with pytest.raises(RunError, match="is no episode"):
        read_returns(path)
