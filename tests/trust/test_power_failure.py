"""A checkpoint is a point to which all files of a run can be brought back."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from bdpi.runs import recorder
from bdpi.runs.config import RunConfig
from bdpi.runs.errors import RunError
from bdpi.runs.job import Job, Place, execute, status_of
from bdpi.runs.train import prepare, prepare_resumption

SMALL = {"n_critics": 2, "fit_steps": 1, "batch_size": 8}


def config(episodes: int, **more: Any) -> RunConfig:
    return RunConfig(environment="CartPole-v1", episodes=episodes, hyperparameters=SMALL, **more)


def test_all_that_a_checkpoint_counts_on_is_on_the_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(recorder, "_CHECKPOINT_SHARE", 10.0)
    synced: dict[int, int] = {}  # size of each file, by its number, when it was synced last
    sync, move, checked, missing = os.fsync, os.replace, 0, set()

    def watched_sync(handle: int) -> None:
        synced[os.fstat(handle).st_ino] = os.fstat(handle).st_size
        sync(handle)

    def watched_move(source: Any, target: Any) -> None:
        nonlocal checked
        if Path(target).name == "config.json" and (tmp_path / "run" / "entropy.f32").exists():
            checked += 1
            for name in ("monitor.csv", "entropy.f32", "test.csv", "eval.csv"):
                path = tmp_path / "run" / name
                if path.exists() and synced.get(path.stat().st_ino) != path.stat().st_size:
                    missing.add(name)
        move(source, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "replace", watched_move)
    session = prepare(
        config(3, record_entropy=True, off_policy_noise=0.1, eval_every=9, eval_episodes=1), tmp_path / "run"
    )
    session.draws = False
    assert session.run().status == "finished"
    assert checked > 3
    assert not missing


def test_new_folders_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync = set(), os.fsync

    def watched(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        sync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    session = prepare(config(1), tmp_path / "deep" / "run")
    session.draws = False
    session.run()
    assert {path.stat().st_ino for path in (tmp_path, tmp_path / "deep", tmp_path / "deep" / "run")} <= synced


def test_two_resumptions_of_one_run_do_not_undo_each_other(tmp_path: Path) -> None:
    session = prepare(config(2), tmp_path / "run")
    session.draws = False
    session.run()
    first, second = (prepare_resumption(tmp_path / "run", episodes=n) for n in (6, 4))
    first.draws = False
    assert first.run().summary.episodes == 6
    with pytest.raises(RunError, match="trained by another process since it was loaded"):
        second.run()
    assert prepare_resumption(tmp_path / "run", episodes=7).progress.summary.episodes == 6


@pytest.mark.parametrize("earlier", [False, True])
def test_a_disk_that_is_full_in_the_end_costs_no_run_of_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    """Whether there is an earlier checkpoint to go back to, or not."""
    job = Job(Place("study", "row", "CartPole-v1", "BDPI", 1), config(4), tmp_path / "run")
    if earlier:
        assert execute(Job(job.place, config(2), job.folder)).status == "finished"
    saved = {path.name: path.read_bytes() for path in job.folder.glob("agent.zip")}
    with monkeypatch.context() as patched:
        from bdpi.agents.buffers import TransitionBuffer

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patched.setattr(TransitionBuffer, "save_npz", full)
        assert execute(job).status == "failed"
    if earlier:  # still whole
        assert {path.name: path.read_bytes() for path in job.folder.glob("agent.zip")} == saved
        assert prepare_resumption(job.folder, episodes=4).progress.summary.episodes == 2
    assert execute(job).status == "finished"
    assert status_of(job) == "finished"
