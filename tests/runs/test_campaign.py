"""Many runs: in this process, in several, on Ray; interrupted, killed, failing, damaged."""

import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bdpi.report import write_report
from bdpi.runs.campaign import Tally, run_campaign
from bdpi.runs.config import Place, RunConfig, RunRecord, RunStatus
from bdpi.runs.episodes import Episodes, Summary, summarize
from bdpi.runs.errors import RunError
from bdpi.runs.executors import Executor, make_executor
from bdpi.runs.folder import RunFolder
from bdpi.runs.job import Job, check_jobs, execute, length_so_far, status_of
from bdpi.runs.results import StoredRun, read_run, read_runs, with_archived, write_archive, write_index
from bdpi.runs.train import prepare_resumption
from bdpi.runs.versions import LEARNING

SMALL = {"n_critics": 2, "critic_iterations": 1, "fit_steps": 2, "batch_size": 16}


def job(root: Path, series: str = "BDPI", seed: int = 0, **plan: Any) -> Job:
    plan = {"environment": "FrozenLake-v1", "episodes": 15, "hyperparameters": SMALL, "seed": seed, **plan}
    place = Place("small", "algorithms", plan["environment"], series, seed)
    return Job(place, RunConfig(**plan), root / "small" / f"{series}-seed{seed}")


def small_study(root: Path, **plan: Any) -> list[Job]:
    return [
        *(job(root, seed=seed, **plan) for seed in range(2)),
        *(job(root, "ABCDQN", seed, agent="abcdqn", **plan) for seed in range(2)),
        job(root, "PPO", 0, agent="ppo", **{**plan, "hyperparameters": {}}),
    ]


def read_study(root: Path, jobs: list[Job]) -> tuple[str, list[StoredRun], list[str]]:
    write_index(root / "small", "Small", [(job.place, job.folder) for job in jobs])
    return read_runs(root / "small")


def episodes_of(root: Path, jobs: list[Job]) -> dict[Any, Any]:
    _, runs, problems = read_study(root, jobs)
    assert not problems
    return {(run.place.series, run.place.seed): (run.returns.tolist(), run.lengths.tolist()) for run in runs}


def run_all(jobs: list[Job], executor: Executor | None = None, **others: Any) -> tuple[Tally, list[str]]:
    said: list[str] = []
    return run_campaign(jobs, executor or make_executor("local"), say=said.append, **others), said


def after(n: int) -> Callable[[], bool]:
    """Asks to stop after n steps."""
    left = iter(range(n))
    return lambda: next(left, None) is None


def test_runs_of_one_series_learn_by_code_that_learns_the_same(tmp_path: Path) -> None:
    first, second, peer = job(tmp_path), job(tmp_path, seed=1), job(tmp_path, "PPO", agent="ppo", hyperparameters={})
    tally, _ = run_all([first, peer])
    assert len(tally.done) == 2
    assert RunFolder(first.folder).read_run()[1].learned_by == {LEARNING}
    for each in (first, peer):
        file = RunFolder(each.folder).config
        file.write_text(file.read_text().replace(LEARNING, "0123456789ab"))
    tally, _ = run_all([first, peer])
    assert len(tally.done) == 2  # all that there is was made alike
    other_peer = job(tmp_path, "PPO", 1, agent="ppo", hyperparameters={})
    tally, said = run_all([first, second, peer, other_peer])
    assert tally.done == [first, peer, other_peer]
    assert list(tally.failed) == [second]
    assert not second.folder.exists()
    assert any("0123456789ab" in line and str(first.folder) in line for line in said)
    elsewhere = job(tmp_path / "elsewhere", seed=1)
    run_all([elsewhere])
    runs = [read_run(each.place, each.folder) for each in (first, elsewhere)]
    with pytest.raises(RunError, match="0123456789ab"):
        with_archived(runs, tmp_path / "archive")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """What the small study gives when nothing happens to it."""
    root = tmp_path_factory.mktemp("expected")
    jobs = small_study(root)
    tally, _ = run_all(jobs)
    assert len(tally.done) == 5
    return episodes_of(root, jobs)


@pytest.mark.parametrize("agent", ["bdpi", "dqn"])
def test_runs_that_are_as_long_as_so_many_steps(tmp_path: Path, agent: str) -> None:
    plan = {"agent": agent, "episodes": None, "steps": 120, "hyperparameters": SMALL if agent == "bdpi" else {}}
    jobs = [job(tmp_path, seed=seed, **plan) for seed in range(2)]
    assert execute(jobs[1], after(70)).status == "interrupted"
    assert status_of(jobs[1]) == "unfinished"
    tally, _ = run_all(jobs)
    assert (tally.fraction, tally.line().split(", ")[3]) == (1.0, "100% of the work")
    assert [RunFolder(each.folder).read().status.result.steps for each in jobs] == [120, 120]
    assert [status_of(each) for each in jobs] == ["finished"] * 2
    assert 0 < length_so_far(jobs[0]) == stored(jobs[0]).length <= 120  # of episodes that have ended
    alone = job(tmp_path / "alone", seed=1, **plan)
    execute(alone)
    assert stored(jobs[1]).lengths.tolist() == stored(alone).lengths.tolist()
    longer = job(tmp_path, **{**plan, "steps": 200})
    assert status_of(longer) == "unfinished"
    assert execute(longer).status == "finished"
    assert RunFolder(longer.folder).read().status.result.steps == 200


def test_finished_runs_are_never_repeated(tmp_path: Path) -> None:
    jobs = [job(tmp_path, seed=seed) for seed in range(2)]
    run_all(jobs[:1])
    before = (jobs[0].folder / "monitor.csv").stat().st_mtime_ns
    tally, said = run_all(jobs)
    assert len(tally.done) == 2
    assert said == ["1 of 2 runs are done already"]
    assert (jobs[0].folder / "monitor.csv").stat().st_mtime_ns == before
    longer = job(tmp_path, episodes=20)
    assert status_of(longer) == "unfinished"
    assert execute(longer).status == "finished"
    assert status_of(job(tmp_path, episodes=3)) == "finished"
    with pytest.raises(RunError, match="did you mean n_critics"):  # before anything runs
        check_jobs([*jobs, job(tmp_path, hyperparameters={"n_critic": 3})])


def a_run_that_must_start_over(root: Path, agent: str) -> tuple[Job, Job]:
    """Ten finished episodes, and what should become of them: fifteen."""
    plan: dict[str, Any] = {"agent": agent} if agent == "bdpi" else {"agent": agent, "hyperparameters": {}}
    short = job(root, seed=1, episodes=10, **plan)
    assert execute(short).status == "finished"
    (short.folder / "replay.npz").unlink(missing_ok=True)
    return short, job(root, seed=1, **plan)


def stored(one: Job) -> StoredRun:
    run = read_run(one.place, one.folder)
    assert run is not None
    return run


@pytest.mark.parametrize("agent", ["bdpi", "ppo", "dqn"])
def test_a_finished_run_is_kept_until_a_longer_one_has_finished(tmp_path: Path, agent: str) -> None:
    short, longer = a_run_that_must_start_over(tmp_path, agent)
    before = stored(short)
    for steps in (3, 60):
        assert execute(longer, after(steps)).status == "interrupted"
        kept = stored(short)
        assert (kept.status, kept.returns.tolist()) == ("finished", before.returns.tolist())
        assert (status_of(short), status_of(longer)) == ("finished", "unfinished")
    assert execute(longer).status == "finished"
    assert len(stored(longer).returns) == 15
    assert not list(longer.folder.glob(".*"))
    fresh = replace(longer, folder=tmp_path / "fresh")
    execute(fresh)
    assert stored(fresh).returns.tolist() == stored(longer).returns.tolist()


def test_an_interrupted_attempt_is_not_taken_for_a_finished_run(tmp_path: Path) -> None:
    """Not even where it has the episodes that are wanted now: it was to have more."""
    _, longer = a_run_that_must_start_over(tmp_path, "dqn")
    much_longer = replace(longer, config=longer.config.changed(episodes=5000))
    assert execute(much_longer, after(1000)).status == "interrupted"
    assert length_so_far(much_longer) > 15
    assert execute(longer).status == "finished"
    assert (stored(longer).status, len(stored(longer).returns)) == ("finished", 15)


def test_a_stopped_peer_is_not_replaced_by_one_that_was_stopped_earlier(tmp_path: Path) -> None:
    one = job(tmp_path, agent="ppo", hyperparameters={}, episodes=500)
    for steps in (200, 50):
        assert execute(one, after(steps)).status == "interrupted"
        assert stored(one).lengths.sum() > 150


def test_an_index_that_is_written_again_knows_runs_and_no_attempts(tmp_path: Path) -> None:
    short, longer = a_run_that_must_start_over(tmp_path, "ppo")
    execute(longer, after(5))
    assert (longer.folder / ".attempt" / "config.json").exists()
    (tmp_path / "small" / "study.json").write_text("{")
    _, runs, problems = read_study(tmp_path, [])
    assert not problems
    assert [(run.path, run.status) for run in runs] == [(short.folder, "finished")]


def test_what_a_ray_worker_sends_does_not_replace_what_is_worth_more(tmp_path: Path) -> None:
    from bdpi.runs.executors.on_ray import _packed, _received

    short, longer = a_run_that_must_start_over(tmp_path, "ppo")
    elsewhere = replace(longer, folder=tmp_path / "worker" / "run")
    for stop, episodes in ((after(5), 10), (None, 15)):
        result = execute(elsewhere, stop) if stop else execute(elsewhere)
        assert stop or _received(longer, _packed(elsewhere.folder), result) == result
        _received(longer, _packed(elsewhere.folder), result)
        assert (stored(short).status, len(stored(short).returns)) == ("finished", episodes)


def index_some(root: Path, number: int, barrier: Any) -> None:
    entries = [(Place("s", "r", "E", f"S{number}", seed), root / f"{number}-{seed}") for seed in range(50)]
    barrier.wait()
    write_index(root, "Several", entries)


def test_studies_that_begin_at_the_same_moment_are_all_in_the_index(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        root, barrier = tmp_path / str(attempt), context.Barrier(4)
        writers = [context.Process(target=index_some, args=(root, number, barrier)) for number in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(300)
        assert [writer.exitcode for writer in writers] == [0] * 4
        assert len(json.loads((root / "study.json").read_text())["runs"]) == 200
        assert [path.name for path in root.iterdir()] == ["study.json"]


class Killed(BaseException):
    """As kill -9: nothing after it is done."""


@pytest.mark.parametrize("agent", ["ppo", pytest.param("bdpi", marks=pytest.mark.full)])
def test_a_study_that_is_killed_while_a_longer_run_takes_over_has_one_of_both(
    tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, longer = a_run_that_must_start_over(tmp_path, agent)
    shutil.copytree(short.folder, tmp_path / "kept")
    wanted: list[int] | None = None
    for survived in range(20):
        shutil.rmtree(short.folder)
        shutil.copytree(tmp_path / "kept", short.folder)
        with monkeypatch.context() as patch:
            killed = killed_in_take_over(patch, survived)
            with pytest.raises(Killed) if survived < 4 else suppress(Killed):
                execute(longer)
        run = stored(longer)
        assert (run.status, len(run.returns)) in (("finished", 10), ("finished", 15))
        assert run.record.status.episodes == len(run.returns)
        assert status_of(short) in ("finished", "unfinished")
        assert execute(short).status == "finished"
        assert execute(longer).status == "finished"
        wanted = wanted or stored(longer).lengths.tolist()
        assert stored(longer).lengths.tolist() == wanted
        assert not list(longer.folder.glob(".*"))
        if not killed:
            return
    raise AssertionError("it was always killed")


def killed_in_take_over(patch: pytest.MonkeyPatch, survived: int) -> list[str]:
    """Dies after so many changes of the file system; gives a list that then is not empty."""
    killed: list[str] = []
    left = iter(range(survived))

    def mortal(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **others: Any) -> Any:
            if next(left, None) is None:
                killed.append(str(arguments))
                raise Killed
            return function(*arguments, **others)

        return call

    take_over = RunFolder.take_over

    def from_now_on(folder: RunFolder) -> None:
        for name in ("rename", "replace", "unlink", "rmdir"):
            patch.setattr(os, name, mortal(getattr(os, name)))
        take_over(folder)

    patch.setattr(RunFolder, "take_over", from_now_on)
    return killed


def test_a_run_with_other_settings_is_not_mistaken_for_this_one(tmp_path: Path) -> None:
    run_all([job(tmp_path)])
    other = job(tmp_path, hyperparameters={**SMALL, "n_critics": 3})
    tally, said = run_all([other, job(tmp_path, seed=1)])
    assert len(tally.done) == 1
    assert "holds a run with other settings (hyperparameters" in said[0]
    assert "'n_critics': 2" in said[0]
    with pytest.raises(RunError, match="off_policy_noise None, not 0"):
        status_of(job(tmp_path, off_policy_noise=0.1))


def recorded(one: Job, state: str = "finished", **settings: Any) -> None:
    """Put a finished run there, of which only the settings matter."""
    folder = RunFolder(one.folder)
    folder.make()
    folder.monitor.write_text('#{"t_start": 0, "env_id": ""}\nr,l,t\n' + "1,1,1\n" * 15)
    result = summarize(Episodes([1.0] * 15), 15, 1.0)
    status = RunStatus(status=state, result=result, policy="MlpPolicy")
    folder.write(RunRecord(one.config.changed(**settings), status))


def test_a_failing_run_does_not_stop_the_others_and_says_why_everywhere(tmp_path: Path) -> None:
    """In what is said, in the store, in an archive, and in the report."""
    jobs = [job(tmp_path, "bad", environment="odd_worlds:NotANumber-v0"), job(tmp_path)]
    tally, said = run_all([*jobs, job(tmp_path, "unknown", environment="Missing-v0")])
    assert (len(tally.done), len(tally.failed)) == (1, 2)
    for part in ("not finite: nan", "Traceback", "unknown environment 'Missing-v0'"):
        assert part in "\n".join(said)
    # of 3 runs of 15 episodes, one is whole, and one has 3 episodes
    assert tally.line().startswith("1 of 3 runs done, 0 running, 2 failed, 40% of the work, time left ")
    title, runs, _ = read_study(tmp_path, jobs)
    write_archive(tmp_path / "archive", title, runs)
    for found in (runs, read_runs(tmp_path / "archive")[1]):
        assert "not finite: nan" in found[0].error
        assert found[1].error == ""
    write_report(runs, tmp_path / "report", title=title, command="c")
    assert "not finite: nan" in (tmp_path / "report" / "tables.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("environment", "agent", "there", "is_same"),
    [
        ("CartPole-v1", "bdpi", {"policy_kwargs": {}}, True),
        ("CartPole-v1", "bdpi", {"policy_kwargs": {"net_arch": [128]}}, False),
        ("CartPole-v1", "ppo", {"policy_kwargs": {"net_arch": [128]}}, False),
        ("LunarLander-v3", "bdpi", {"policy_kwargs": {"net_arch": [256]}}, True),  # its preset
        ("LunarLander-v3", "bdpi", {"policy_kwargs": {"net_arch": [128]}}, False),
        ("LunarLander-v3", "ppo", {"policy_kwargs": {}}, True),
        ("Pendulum-v1", "bdpi", {"action_bits": 6}, True),
        ("Pendulum-v1", "bdpi", {"action_bits": 8}, False),
        ("Pendulum-v1", "sac", {"action_bits": None}, True),
    ],
)
def test_a_setting_that_is_no_longer_there_is_a_difference(
    tmp_path: Path, environment: str, agent: str, there: dict[str, Any], is_same: bool
) -> None:
    one = job(tmp_path, environment=environment, agent=agent, hyperparameters={})
    recorded(one, **there)
    if is_same:
        assert status_of(one) == "finished"
    else:
        with pytest.raises(RunError, match=f"holds a run with other settings \\({next(iter(there))}"):
            status_of(one)


def test_the_reason_of_a_failure_may_have_several_lines(tmp_path: Path) -> None:
    one = job(tmp_path)
    recorded(one, state="failed")
    trace = 'Traceback (most recent call last):\n  File "robot.py", line 3\n    it()\n'
    (one.folder / "error.txt").write_text(f"{trace}ValueError: the robot\nis on fire\n")
    assert stored(one).error == "ValueError: the robot is on fire"


@pytest.mark.parametrize("name", ["local", "processes"])
def test_an_environment_that_calls_sys_exit_fails_its_run_only(tmp_path: Path, name: str) -> None:
    bad = job(tmp_path, "bad", environment="odd_worlds:Exiting-v0")
    tally, said = run_all([bad, job(tmp_path)], make_executor(name, workers=2), should_stop=stop_after(300))
    assert (len(tally.done), len(tally.failed)) == (1, 1)
    text = "\n".join(said)
    assert "SystemExit: 3" in text
    assert "Traceback" in text


def test_a_damaged_index_is_named_and_the_runs_are_found_without_it(tmp_path: Path) -> None:
    jobs = [job(tmp_path, seed=seed) for seed in range(2)]
    run_all(jobs)
    whole = episodes_of(tmp_path, jobs)
    (tmp_path / "small" / "study.json").write_text('{"title": "Sma')
    _, runs, (problem,) = read_runs(tmp_path / "small")
    assert {(run.place.series, run.place.seed): (run.returns.tolist(), run.lengths.tolist()) for run in runs} == whole
    assert "study.json is damaged" in problem
    assert "the 2 runs below" in problem


def test_the_time_left_is_known_after_the_first_runs_and_follows_the_later_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lefts: dict[int, float | None] = {}  # runs in this process tell nothing while they run
    jobs = [job(tmp_path, seed=seed, episodes=1) for seed in range(2)]
    run_all(jobs, show=lambda tally: lefts.update({len(tally.done): tally.seconds_left()}))
    assert lefts[1] > 0
    # Ten episodes in ten seconds, then one in ten: the ninety that are left take longer than ninety seconds.
    clock, one = [100.0], job(tmp_path, "long", episodes=101)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    tally = Tally([one], running={one: 0.0}, began=100.0)
    one.folder.mkdir(parents=True)
    for second in range(21):
        clock[0] = 100.0 + second
        (one.folder / "monitor.csv").write_text("#\nr,l,t\n" + "1,1,1\n" * (min(second, 10) + (second == 20)))
        left = tally.seconds_left()
    assert left == 900


def test_a_run_with_noise_needs_its_test_episodes(tmp_path: Path) -> None:
    """Without them, its curve would show the episodes that the noise has spoilt."""
    jobs = [job(tmp_path, seed=seed, off_policy_noise=0.2, episodes=6) for seed in range(3)]
    run_all(jobs)
    (jobs[0].folder / "test.csv").unlink()
    short = jobs[1].folder / "test.csv"
    short.write_text("".join(short.read_text().splitlines(keepends=True)[:-2]))
    _, runs, problems = read_study(tmp_path, jobs)
    assert [run.place.seed for run in runs] == [2]
    for longer in (False, True):
        tally, said = run_all([replace(one, config=one.config.changed(episodes=6 + longer)) for one in jobs])
        assert len(tally.done) == 1
        for lines in (problems, said):
            assert "BDPI-seed0/test.csv cannot be read" in lines[0]
            assert "BDPI-seed1/test.csv is damaged: it has 4 episodes instead of 6; remove" in lines[1]
    assert not (jobs[0].folder / "test.csv").exists()


def test_a_run_whose_last_test_was_interrupted_is_whole(tmp_path: Path) -> None:
    one = job(tmp_path, off_policy_noise=0.2, episodes=6)
    execute(one)
    record = RunFolder(one.folder).read()
    assert isinstance(record.status.result, Summary)
    assert record.status.test_episodes == 6
    record.status.result = replace(record.status.result, test_episodes=5)
    RunFolder(one.folder).write(record)
    test = one.folder / "test.csv"
    test.write_text("".join(test.read_text().splitlines(keepends=True)[:-1]))
    assert status_of(one) == "finished"
    assert len(stored(one).test_returns) == 5
    write_archive(tmp_path / "archive", "Small", [replace(stored(one), test_returns=None), stored(one)])
    _, runs, problems = read_runs(tmp_path / "archive")
    assert [len(run.shown_returns) for run in runs] == [5]
    assert "lacks test episodes" in problems[0]


def test_an_archive_keeps_what_the_new_runs_lack(tmp_path: Path) -> None:
    jobs = [job(tmp_path, seed=seed, episodes=4) for seed in range(3)]
    run_all(jobs)
    first, second, third = map(stored, jobs)
    shorter = replace(second, returns=second.returns[:2], lengths=second.lengths[:2])
    archive = tmp_path / "archive"
    assert with_archived([third], archive) == [third]
    write_archive(archive, "Small", [first, second])
    again = replace(first, returns=first.returns + 1)
    whole = with_archived([again, shorter, third], archive)
    assert [run.place.seed for run in whole] == [0, 1, 2]
    for found, expected in zip(whole, [again, second, third], strict=True):
        assert found.returns.tolist() == expected.returns.tolist()
    status = second.record.status.model_copy(update={"state": "failed"})
    failed = replace(second, record=RunRecord(second.config, status), returns=np.zeros(2), lengths=np.ones(2, np.int64))
    write_archive(tmp_path / "failed", "Small", [failed])
    assert with_archived([replace(second, returns=np.zeros(1))], tmp_path / "failed")[0].status == "finished"
    config = first.config.changed(hyperparameters={"n_critics": 3})
    other = replace(first, record=RunRecord(config, first.record.status))
    with pytest.raises(RunError, match="hyperparameters"):
        with_archived([other], archive)
    (archive / "runs.json").write_text("{")
    with pytest.raises(RunError, match="damaged"):
        with_archived([third], archive)


def test_what_is_no_run_is_named_with_what_to_do_and_nothing_else_is_lost(tmp_path: Path) -> None:
    jobs = [job(tmp_path, seed=seed) for seed in range(7)]
    run_all(jobs)
    folders = [one.folder for one in jobs]
    (folders[0] / "config.json").unlink()
    shutil.rmtree(folders[1])
    folders[1].write_text("a file")
    (folders[2] / "config.json").write_text('{"environment": "FrozenLake-v1", "agent": "bdpi"}')
    (folders[3] / "config.json").write_text('{"environment": ')
    (folders[4] / "monitor.csv").write_bytes(b"\xff\x00 no monitor")
    shutil.rmtree(folders[5])
    folders[5].mkdir()  # it has not begun
    title, runs, problems = read_study(tmp_path, jobs)
    assert (title, [run.place.seed for run in runs], len(problems)) == ("Small", [6], 5)
    assert "BDPI-seed0 has monitor.csv, agent.zip, replay.npz, episode.json" in problems[0]
    assert "BDPI-seed1 is a file" in problems[1]
    assert all(f"remove {folders[seed]}, and bdpi study repeats" in problems[seed] for seed in (0, 1))
    tally, said = run_all(jobs)
    assert tally.done == [jobs[6], jobs[5]]
    lines = "\n".join(said)
    assert f"{folders[0]} already holds monitor.csv" in lines
    assert f"{folders[1]} cannot be a run folder: a file of that name is in the way: remove it" in lines
    assert f"{folders[2]}/config.json is damaged: it has no 'seed'" in lines
    assert f"remove {folders[2]} to repeat" in lines
    for damaged in (f"{folders[3]}/config.json is damaged", f"{folders[4]}/monitor.csv is damaged"):
        assert damaged in lines
        assert damaged in "\n".join(problems)


@pytest.mark.parametrize("text", ["r,l\n1", '#{"t_start": 0, "env_id": ""}\nr,l,t\n1,1,1\n'])
def test_a_damaged_peer_is_left_alone_by_a_longer_study(tmp_path: Path, text: str) -> None:
    one = job(tmp_path, agent="ppo", hyperparameters={})
    execute(one)
    (one.folder / "monitor.csv").write_text(text)
    for episodes in (15, 30):
        tally, said = run_all([replace(one, config=one.config.changed(episodes=episodes))])
        assert tally.failed
        assert "monitor.csv is damaged" in said[0]
    assert (one.folder / "monitor.csv").read_text() == text


def stop_after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def test_an_interrupted_study_goes_on_and_equals_an_uninterrupted_one(tmp_path: Path, expected: dict[Any, Any]) -> None:
    jobs = small_study(tmp_path)
    done, asked, sessions = 0, 20, 0
    while done < len(jobs):
        tally, _ = run_all(jobs, should_stop=after(asked))
        assert not tally.failed
        done, asked, sessions = len(tally.done), 2 * asked, sessions + 1
    assert sessions > 1
    assert episodes_of(tmp_path, jobs) == expected


def test_runs_that_are_interrupted_in_their_processes_go_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    gate, asked = tmp_path / "gate", []
    undisturbed, jobs = (
        small_study(tmp_path / name, environment="odd_worlds:GatedLake-v0", env_kwargs={"gate": str(gate)})
        for name in ("undisturbed", "interrupted")
    )
    run_all(undisturbed)
    gate.touch()

    def should_stop() -> bool:
        asked.append(all(length_so_far(one) >= 4 for one in jobs[:2]))
        return asked[-1]

    def show(tally: Tally) -> None:
        if sum(asked) > 2:  # by now the runs know it, too
            gate.unlink(missing_ok=True)

    tally, _ = run_all(jobs, make_executor("processes", workers=2), should_stop=should_stop, show=show)
    assert sorted(one.folder for one in tally.interrupted) == [one.folder for one in jobs[:2]]
    assert len(run_all(jobs, make_executor("processes", workers=2))[0].done) == 5
    assert episodes_of(tmp_path / "interrupted", jobs) == episodes_of(tmp_path / "undisturbed", undisturbed)


def children_of(parent: int) -> list[int]:
    """Living child processes."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(status[1]) == parent and status[0] != "Z":
                found.append(int(entry.name))
    return found


def forking_servers() -> list[int]:
    """The server that the executor has started."""
    return [pid for pid in children_of(os.getpid()) if b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def children_training() -> list[int]:
    """The processes of the runs: children of the server that the executor has started, and of no other."""
    return [child for server in forking_servers() for child in children_of(server)]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")
def test_a_killed_process_is_replaced(tmp_path: Path, expected: dict[Any, Any]) -> None:
    jobs = small_study(tmp_path)
    killed = []

    def kill_one(tally: Tally) -> None:
        mine = [pid for pid in children_training() if pid not in killed]
        if len(killed) < 3 and tally.running and mine:
            killed.append(random.Random(len(killed)).choice(mine))
            os.kill(killed[-1], signal.SIGKILL)

    tally, _ = run_all(jobs, make_executor("processes", workers=2), show=kill_one)
    assert len(killed) == 3
    assert not tally.failed
    assert episodes_of(tmp_path, jobs) == expected


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")
def test_a_study_goes_on_when_the_server_that_forks_its_processes_is_killed(tmp_path: Path) -> None:
    gate, killed = tmp_path / "gate", list[int]()
    one = job(tmp_path, environment="odd_worlds:GatedLake-v0", env_kwargs={"gate": str(gate)})
    gate.touch()

    def is_interrupted() -> bool:
        return one.folder.exists() and RunFolder(one.folder).read().status.state == "interrupted"

    def kill_server(tally: Tally) -> None:
        if not killed and length_so_far(one) >= 4:
            killed.extend(forking_servers())
            left = children_of(killed[0])
            os.kill(killed[0], signal.SIGKILL)
            end = time.monotonic() + 120
            while not is_interrupted() and time.monotonic() < end:  # its process saves the run, says so, and ends
                time.sleep(0.05)
                if not set(left) & set(children_of(killed[0])):
                    gate.unlink(missing_ok=True)
            assert is_interrupted()
            time.sleep(2)  # until it has said so, and waits for another run

    tally, _ = run_all([one], make_executor("processes", workers=1), show=kill_server)
    assert len(killed) == 1
    assert tally.done == [one]  # not left as it is, interrupted by no one


def test_a_run_that_was_killed_while_its_last_files_were_put_in_place_is_completed(tmp_path: Path) -> None:
    one = job(tmp_path)
    execute(one)
    agent, config = one.folder / "agent.zip", one.folder / "config.json"
    saved, number = agent.read_bytes(), json.loads(config.read_text())["checkpoint"]
    agent.rename(one.folder / f".next-{number}-agent.zip")
    (one.folder / f".next-{number + 1}-replay.npz").write_bytes(b"half a file")
    episodes = (one.folder / "monitor.csv").stat().st_mtime_ns
    assert status_of(one) == "unfinished"
    assert run_all([one])[0].done == [one]
    assert agent.read_bytes() == saved
    assert not list(one.folder.glob(".next-*"))
    assert (one.folder / "monitor.csv").stat().st_mtime_ns == episodes


LEFT = ("..next-7-episode.json.99.0.partial", ".agent.zip.99.1.partial", ".config.json.99.2.partial")


@pytest.mark.parametrize("when", ["before its first save", "before it began", "later"])
def test_what_a_run_that_was_killed_left_half_written_is_removed(tmp_path: Path, when: str) -> None:
    one = job(tmp_path, episodes=2)
    one.folder.mkdir(parents=True)
    if when != "before it began":
        execute(replace(one, config=one.config.changed(episodes=1)))
        config = json.loads((one.folder / "config.json").read_text())
        saved = {"result": None, "status": "running"} if when == "before its first save" else {"status": "running"}
        (one.folder / "config.json").write_text(json.dumps(config | saved))
    for name in LEFT:
        (one.folder / name).write_text("half a file")
    assert run_all([one])[0].done == [one]
    assert not list(one.folder.glob(".*"))


def test_who_would_resume_a_run_leaves_the_files_that_are_being_saved(tmp_path: Path) -> None:
    one = job(tmp_path)
    execute(one)
    saving = one.folder / ".next-9-agent.zip"
    saving.write_bytes(b"the first half")
    with RunFolder(one.folder).locked(), pytest.raises(RunError, match="another process"):
        prepare_resumption(one.folder, episodes=100)
    assert saving.exists()


def test_two_processes_never_write_the_same_run(tmp_path: Path) -> None:
    """Both would like to; one of them is told that it is busy, or finds it done."""
    one = job(tmp_path, episodes=40)
    code = "import sys, pickle; from bdpi.runs.job import execute; print(execute(pickle.load(sys.stdin.buffer)).status)"
    (tmp_path / "job").write_bytes(pickle.dumps(one))
    command = [sys.executable, "-c", code]
    both = [
        subprocess.Popen(command, stdin=(tmp_path / "job").open("rb"), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=300)[0].strip() for process in both]
    assert "finished" in answers
    assert set(answers) <= {"finished", "busy"}
    assert status_of(one) == "finished"
    assert len((one.folder / "monitor.csv").read_text().splitlines()) == 42


def test_an_archive_holds_everything(tmp_path: Path) -> None:
    jobs = [job(tmp_path, record_entropy=True, episodes=40), job(tmp_path, "noisy", off_policy_noise=0.2)]
    run_all(jobs)
    title, runs, _ = read_study(tmp_path, jobs)
    write_archive(tmp_path / "archive", title, runs)
    again, copies, problems = read_runs(tmp_path / "archive")
    assert (again, problems) == ("Small", [])
    for run, copy in zip(runs, copies, strict=True):
        assert copy.place == run.place
        assert copy.record == run.record
        np.testing.assert_array_equal(copy.returns, run.returns)
        np.testing.assert_array_equal(copy.lengths, run.lengths)
        assert (copy.test_returns is None) == (run.test_returns is None)
    assert len(runs[0].entropies) == runs[0].lengths.sum()
    assert 0 < runs[0].entropies[0] <= 2
    assert copies[0].entropies[0] == pytest.approx(runs[0].entropies[:100].mean(), rel=1e-3)
    assert len(runs[1].test_returns) == 15
    with pytest.raises(RunError, match="not the folder"):
        read_runs(tmp_path)
    (tmp_path / "archive" / "episodes.csv.gz").write_bytes(b"nothing")
    with pytest.raises(RunError, match="is damaged"):
        read_runs(tmp_path / "archive")


def test_the_entropy_of_an_interrupted_run_is_complete(tmp_path: Path) -> None:
    whole, parts = job(tmp_path, "whole", record_entropy=True), job(tmp_path, "parts", record_entropy=True)
    execute(whole)
    assert execute(parts, after(30)).status == "interrupted"
    assert execute(parts).status == "finished"
    assert (parts.folder / "entropy.f32").read_bytes() == (whole.folder / "entropy.f32").read_bytes()
    assert execute(job(tmp_path, "none", agent="abcdqn", record_entropy=True)).error.startswith("abcdqn has no actor")


def test_ray_workers_that_do_not_share_files_send_them_or_tell_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs the extra bdpi[ray]")
    from bdpi.runs.executors import on_ray

    monkeypatch.setattr(on_ray, "_marker", lambda jobs: nullcontext(tmp_path / "nowhere"))
    jobs = [job(tmp_path, seed=seed) for seed in range(2)]
    tally, said = run_all([*jobs, job(tmp_path, "bad", environment="Missing-v0")], make_executor("ray", workers=2))
    assert len(tally.done) == 2, said
    assert "unknown environment 'Missing-v0'" in "\n".join(said)
    assert len(episodes_of(tmp_path, jobs)["BDPI", 1][0]) == 15
    assert status_of(jobs[0]) == "finished"


@pytest.mark.full
def test_ray_finishes_a_study_though_a_worker_is_killed(tmp_path: Path, expected: dict[Any, Any]) -> None:
    ray = pytest.importorskip("ray", reason="needs the extra bdpi[ray]")
    jobs = small_study(tmp_path)
    killed: list[int] = []

    def workers() -> list[int]:
        everyone = children_of(os.getpid())
        for pid in everyone:  # grows: all descendants of this process, and of no other
            everyone += children_of(pid)
        found = []
        for pid in everyone:
            try:
                if b"ray::_work" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:
                continue
        return found

    def kill_one(tally: Tally) -> None:
        if not killed and tally.running and workers():
            killed.append(workers()[0])
            os.kill(killed[0], signal.SIGKILL)

    tally, said = run_all(jobs, make_executor("ray", workers=2), show=kill_one)
    assert killed
    assert not ray.is_initialized()
    assert len(tally.done) == 5, said
    assert episodes_of(tmp_path, jobs) == expected


@pytest.mark.full
def test_a_ray_cluster_that_requires_a_token_says_which_variables_it_wants(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra bdpi[ray]")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = tempfile.mkdtemp(prefix="ray")  # where no other process looks for a cluster; a short path, for its sockets
    environment = {**os.environ, "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": own}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 2}
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
    start += ["--include-dashboard=false", "--num-cpus=1"]
    (tmp_path / "tiny.yaml").write_text(
        "{title: Tiny, seeds: 1, environments: {lake: {id: FrozenLake-v1, episodes: 3}}, rows: {one: {BDPI: {}}}}"
    )
    study = [sys.executable, "-m", "bdpi.cli", "study", "tiny.yaml", "--executor", "ray"]
    study += ["--ray-address", f"127.0.0.1:{port}"]
    with subprocess.Popen(start, env={**environment, **token}, stdout=subprocess.DEVNULL) as cluster:
        try:
            for known in ({}, token):
                for _ in range(60):
                    ended = subprocess.run(
                        study, cwd=tmp_path, env={**environment, **known}, capture_output=True, text=True
                    )
                    if "start one there: ray start --head" not in ended.stderr:  # it is up
                        break
                    time.sleep(1)
                assert ended.returncode == (0 if known else 2), ended.stderr
                assert known or "RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN" in ended.stderr
        finally:
            cluster.terminate()
            cluster.wait()
            shutil.rmtree(own, ignore_errors=True)
