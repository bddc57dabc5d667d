"""One run of a study, wherever it is executed: start it, go on with it, or find that it is done."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdpi.runs.build import DEFAULT_ACTION_BITS, is_peer, warnings_as_notes, with_preset
from bdpi.runs.config import Place, RunConfig, RunStatus
from bdpi.runs.episodes import check_number, count_rows
from bdpi.runs.errors import Busy, RunError, named
from bdpi.runs.folder import RunFolder
from bdpi.runs.logs import OUTSIDE, log_to
from bdpi.runs.versions import LEARNING

if TYPE_CHECKING:
    from bdpi.agents.logs import Service
    from bdpi.learner.joint import Trainer
    from bdpi.runs.session import Session

_COLLECT_EVERY = 2.0  # seconds
_PATIENCE = 5.0  # seconds that another process gets to end: one whose study was killed stops after its current step


@dataclass(frozen=True, eq=False)  # a configuration holds dictionaries, and cannot be hashed
class Job:
    """What to run, and where.

    :param place: where the run belongs
    :param config: what it is
    :param folder: where it is kept
    :param configuration: where hyper-parameters were drawn from lists, which value each has, and of how many
    :param command: what the user typed, for the record
    :param log: services that its numbers go to
    """

    place: Place
    config: RunConfig
    folder: Path
    configuration: dict[str, tuple[int, int]] | None = None
    command: tuple[str, ...] = ()
    log: tuple[Service, ...] = ()


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    :param status: ``"finished"``, ``"interrupted"``, ``"failed"``, or ``"busy"`` where another process works on it
    :param error: one line
    :param details: a traceback
    """

    status: str
    error: str = ""
    details: str = ""


def check_jobs(jobs: Sequence[Job]) -> None:
    """Find mistakes before hours are spent.

    Each agent is tried once in each environment, with its first configuration: one that some run has begun with works.

    :raises RunError: for an agent or a hyper-parameter that does not exist, an environment that cannot be made, an
        agent that cannot learn there
    """
    from bdpi.runs.build import agent_class
    from bdpi.runs.settings import check_names
    from bdpi.runs.train import tried

    for agent, names in {(job.config.agent, tuple(job.config.hyperparameters)) for job in jobs}:
        check_names(names, agent_class(agent))
    first = {(job.config.environment, job.config.agent): job for job in reversed(jobs)}
    new = [job.config for job in reversed(first.values()) if not job.folder.exists()]
    for config in new:
        try:
            with tried(config):
                pass
        except RunError as error:
            where = f"{config.agent} on {config.environment}"
            raise RunError(f"{error} ({where}; --env and --only choose what is run)") from None


def status_of(job: Job) -> str:
    """``"finished"``, ``"unfinished"`` or ``"new"``, by a look at the folder.

    :raises RunError: when a run with other settings is there, or the folder is damaged
    """
    folder = RunFolder(job.folder)
    if not folder.config.exists():
        return "new"
    status = read_same(folder, job.config)
    settled = folder.is_settled(status.checkpoint)
    try:
        for path, number in ((folder.monitor, status.episodes), (folder.test, status.test_episodes)):
            if settled and number:
                check_number(path, count_rows(path), number)
    except RunError as error:
        raise RunError(f"{error}; remove {job.folder} to repeat the run") from None
    done = status.is_complete(job.config) and status.state != "failed"
    return "finished" if done and settled else "unfinished"


def check_learning(jobs: Iterable[Job]) -> None:
    """Look whether runs that are there were made by code that learns as this does; peers do not learn by it.

    :param jobs: of one series
    :raises RunError: when one was not
    """
    for job in jobs:
        folder = RunFolder(job.folder)
        if is_peer(job.config.agent) or not folder.config.exists():
            continue
        if others := read_same(folder, job.config).learned_by - {LEARNING}:
            raise RunError(
                f"{job.folder} was made by code that learns otherwise (fingerprint {min(others) or 'unknown'}, now "
                f"{LEARNING}), and runs of one series have to be alike: choose another --out, or remove it"
            )


def read_same(folder: RunFolder, config: RunConfig) -> RunStatus:
    """The status of a run that is there.

    :raises RunError: when it has another configuration, or is damaged
    """
    try:
        found, status = folder.read_run()
    except RunError as error:
        raise RunError(f"{error}; remove {folder.path} to repeat the run") from None
    different = _differences(config, found) or _other_defaults(config, status)
    if different:
        raise RunError(
            f"{folder.path} holds a run with other settings ({different}): choose another --out, or remove it"
        )
    return status


def _differences(wanted: RunConfig, found: RunConfig) -> str:
    """What makes these different runs; how long they are does not."""
    found = found.changed(episodes=wanted.episodes, steps=wanted.steps)
    if not is_peer(wanted.agent):
        # A run knows more than its job: the preset of its environment, the bits of continuous actions.
        wanted = with_preset(wanted, note=lambda text: None)
        if wanted.action_bits is None and found.action_bits == DEFAULT_ACTION_BITS:
            found = found.changed(action_bits=None)
    pairs = zip(dict(wanted).items(), dict(found).values(), strict=True)
    return ", ".join(
        f"{name} {there!r}, not {here!r}"
        for (name, here), there in pairs
        if here != there and _plain(here) != _plain(there)
    )


def _other_defaults(config: RunConfig, status: RunStatus) -> str:
    """What a peer had, by the paper or SB3, and would have no longer."""
    if not is_peer(config.agent):
        return ""
    from bdpi.runs.peers import peer_defaults

    now = peer_defaults(config, pixels="Cnn" in status.policy)
    return ", ".join(
        f"{name} {there!r}, not {now[name]!r}"
        for name, there in status.defaults.items()
        if name in now and _plain(now[name]) != there
    )


def _plain(value: Any) -> Any:
    """As it comes back from JSON, where a tuple is a list."""
    return json.loads(json.dumps(value, default=repr))


def execute(job: Job, should_stop: Callable[[], bool] = lambda: False, trainer: Trainer | None = None) -> JobResult:
    """Run a job to its end, or until it should stop. Never raises: a study goes on without a run that failed.

    :param trainer: trains it together with others, if it can; None: it trains itself
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return _execute(job, should_stop, trainer)
        except Busy as error:
            if should_stop() or time.monotonic() > end:
                return JobResult("busy", str(error))
            time.sleep(0.5)
        except RunError as error:
            return JobResult("failed", str(error))
        except (Exception, SystemExit) as error:  # an environment may call sys.exit()
            return JobResult("failed", named(error), traceback.format_exc())


def _execute(job: Job, should_stop: Callable[[], bool], trainer: Trainer | None) -> JobResult:
    from bdpi.runs.train import prepare_resumption

    status = status_of(job)
    if status == "unfinished":
        _settle(job)
        status = status_of(job)  # perhaps all that was missing
    if status == "finished":
        return JobResult("finished")
    folder = RunFolder(job.folder)
    if status == "unfinished" and _must_start_over(folder, job.config):
        if folder.read().status.episodes:
            return _start_over(job, should_stop, trainer)
        _clear(folder)
        status = "new"
    if status == "new":
        session = _begin(job)
    else:
        wanted, command = job.config, job.command
        session = prepare_resumption(
            job.folder, episodes=wanted.episodes, steps=wanted.steps, command=command, trust=True
        )
    if trainer is None or is_peer(job.config.agent):
        return _run(job, session, should_stop)
    from bdpi.agents.learners import learn_together

    with warnings_as_notes(lambda text: None):
        learner = learn_together(session.agent, trainer)
    session.status.learner = session.agent.learner_name
    try:
        return _run(job, session, should_stop)
    finally:
        if learner is not None:
            learner.leave()


def _settle(job: Job) -> None:
    """Finish what a process that was killed has left half done."""
    folder = RunFolder(job.folder)
    with folder.locked():  # another process might be saving it
        folder.move_successor()
        folder.settle(folder.read().status.checkpoint)
        if _is_sound(replace(job, folder=folder.attempt)):
            replace_if_better(folder, job.config)


def _begin(job: Job) -> Session:
    from bdpi.runs.train import prepare

    try:
        return prepare(job.config, job.folder, command=job.command)
    except RunError as error:
        if status_of(job) != "new":  # another process has begun it since we looked
            raise Busy(str(error)) from error
        raise


def _run(job: Job, session: Session, should_stop: Callable[[], bool]) -> JobResult:
    session.status.study = job.place
    if session.status.log:  # in a folder that may be a stranger's
        session.status.log = [name for name in session.status.log if name not in OUTSIDE]
    log_to(session.status, job.log)
    if job.configuration is not None:
        session.status.configuration = job.configuration
    session.draws = job.place.seed == 0  # one film of each series; curves are for the report to draw
    outcome = session.run(should_stop=should_stop)
    details = (
        outcome.folder.error.read_text("utf-8") if outcome.status == "failed" and outcome.folder.error.exists() else ""
    )
    return JobResult(outcome.status, outcome.error or "", details)


def _must_start_over(folder: RunFolder, config: RunConfig) -> bool:
    """Whether a run cannot go on.

    :param config: what it is to become
    """
    status = folder.read().status
    unsaved = status.state == "failed" and status.is_complete(config)  # in the end, by a full disk, perhaps
    killed_early = status.result is None  # before anything was saved
    # Of a finished run that is to become longer, users may have removed what only that needs.
    removed = status.state == "finished" and not folder.replay.exists()
    return killed_early or removed or unsaved or not status.resumable


def _start_over(job: Job, should_stop: Callable[[], bool], trainer: Trainer | None) -> JobResult:
    """Train a run anew. The one that is there is kept until the new one is worth as much."""
    folder = RunFolder(job.folder)
    with folder.locked():
        attempt = replace(job, folder=folder.attempt)
        if not _may_go_on(attempt):
            shutil.rmtree(folder.attempt, ignore_errors=True)
        result = _execute(attempt, should_stop, trainer)
        if RunFolder(folder.attempt).config.exists():
            replace_if_better(folder, job.config)
    return result


def _is_sound(attempt: Job) -> bool:
    try:
        return status_of(attempt) != "new"
    except RunError:  # damaged, or of a study that was another one then
        return False


def _may_go_on(attempt: Job) -> bool:
    """Whether an attempt that was stopped can be resumed, to become as long as it should."""
    if not _is_sound(attempt):
        return False
    folder = RunFolder(attempt.folder)
    return not folder.read().status.is_complete(attempt.config) and not _must_start_over(folder, attempt.config)


def replace_if_better(folder: RunFolder, config: RunConfig) -> None:
    """Let an attempt take the place of its run, unless that is finished and the attempt is not, or it is longer.

    :param config: counts episodes, or steps
    """
    if not folder.config.exists() or _worth(RunFolder(folder.attempt), config) >= _worth(folder, config):
        folder.take_over()


def _worth(folder: RunFolder, config: RunConfig) -> tuple[bool, int]:
    status = folder.read().status
    return status.state == "finished", status.length(config)


def _clear(folder: RunFolder) -> None:
    """Remove a run.

    :raises RunError: when another process works on it
    """
    with folder.locked():
        folder.tidy()
        # the configuration last: without it, the other files mean nothing
        for file in (*folder.events, *reversed(folder.files)):
            file.unlink(missing_ok=True)


def length_so_far(job: Job) -> int:
    """How many episodes a run has, or steps, at most as many as it is to have; one that starts over counts from there.

    By its Monitor file, so that steps are those of episodes that have ended.
    """
    folder = RunFolder(job.folder)
    for path in (RunFolder(folder.attempt).monitor, folder.monitor):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            episodes = (line for line in islice(file, 2, None) if line.endswith(b"\n"))
            amounts = (1 if job.config.steps is None else _steps_of(line) for line in episodes)
            return min(job.config.length, sum(amounts))
    return 0


def _steps_of(line: bytes) -> int:
    """The length of an episode in a Monitor file: return, length, time."""
    length = line.split(b",", 2)[1:2]
    return int(length[0]) if length and length[0].isdigit() else 0


_collected = time.monotonic()


def forget_runs() -> None:
    """Between runs that share a process: the memory of an agent is freed before the next one takes as much.

    That takes a tenth of a second, so runs that are over in less share it.
    """
    global _collected
    if time.monotonic() > _collected + _COLLECT_EVERY:
        gc.collect()
        _collected = time.monotonic()


def one_thread() -> None:
    """Many runs share the cores: each gets one thread. To be called before PyTorch is imported."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "BDPI_NUM_THREADS"):
        os.environ[name] = "1"
