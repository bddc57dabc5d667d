"""The folder of a served run: it is begun with a task, and gone on with after any end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from bdpi.agents.journal import Journal
from bdpi.agents.logs import configure_logger
from bdpi.envs.control_loop import ControlLoop
from bdpi.runs.build import agent_class, build_agent
from bdpi.runs.config import BaseConfig, Place, RunConfig, RunRecord, RunStatus, State
from bdpi.runs.errors import Busy, RunError, one_line
from bdpi.runs.folder import RunFolder, locked, refuse_links
from bdpi.runs.logs import read_log
from bdpi.runs.results import StoredRun
from bdpi.serve.service import Service
from bdpi.serve.sessions import Sessions
from bdpi.serve.task import RobotTask
from bdpi.storage.atomic import write_atomically
from bdpi.storage.reading import Damaged, read_bytes

#: What may differ when a run goes on: all that changes neither what is learned nor what is stored.
_MAY_CHANGE = {
    *("name", "safety", "safe_action", "limits", "durable"),
    *("ask_above", "ask_seconds", "ask_fallback", "success_reward", "failure_reward"),
    *("advisors", "advice_steps"),
}
_FILES = [
    *("task.json", "agent.zip", "progress.csv", "token"),
    *(f"{name}.sqlite{ending}" for name in ("journal", "sessions") for ending in ("", "-wal", "-shm")),
]


@contextlib.contextmanager
def served(task: RobotTask, path: Path) -> Iterator[Service]:
    """Begin or go on with a run, learn while this lasts, and save at its end.

    :param path: of the run's folder
    :raises RunError: when it is another task's, or cannot be gone on with
    """
    RunFolder(path).make()
    with locked(path, f"{path} is being served by another process: stop that, or choose another --out"):
        refuse_links(path / name for name in _FILES)
        _check_task(task, path / "task.json")
        with _opened(task, path) as service:
            write_atomically(path / "task.json", task.model_dump_json(indent=2) + "\n")
            yield service


@contextlib.contextmanager
def _opened(task: RobotTask, path: Path) -> Iterator[Service]:
    file, journal_path = path / "agent.zip", path / "journal.sqlite"
    actions = spaces.Discrete(len(task.actions))
    robot = ControlLoop(task.observation_space(), actions)
    with contextlib.ExitStack() as closed:
        try:
            journal = closed.enter_context(
                Journal(journal_path, robot.observation_space, actions, durable=task.durable)
            )
            sessions = closed.enter_context(Sessions(path / "sessions.sqlite", task, journal.last))
            given: dict[str, Any] = {"journal": journal, "autosave": str(file)}
            if file.exists():
                agent = agent_class(task.agent).load(file, env=robot, **given)
            else:
                settings = {**task.hyperparameters, **given}
                parts: dict[str, Any] = {"agent": task.agent, "seed": task.seed, "policy_kwargs": task.policy_kwargs}
                agent = build_agent(BaseConfig(environment="", hyperparameters=settings, **parts), robot)
            agent.advise(task.advisors, task.advice_steps)
            agent.set_logger(configure_logger(path, "csv", step=agent.num_timesteps))
            closed.callback(agent.logger.close)
            service = Service(task, agent, sessions, journal_path, read_log(RunFolder(path).progress))
            if "rests" not in sessions.switches():
                agent.start_learning()
        except ValueError as error:
            raise RunError(one_line(error)) from None
        try:
            yield service
        finally:
            agent.stop_learning()
            agent.save(file)


def read_served(path: Path) -> tuple[str, list[StoredRun], list[str]]:
    """What :func:`bdpi.runs.results.read_runs` gives, of a served run; its episodes are those in its log.

    :raises RunError: when its files are damaged
    """
    task, log = _read_task(path / "task.json"), read_log(RunFolder(path).progress)
    try:
        with locked(path, ""):
            state: State = "finished"
    except Busy:
        state = "running"
    config = RunConfig(
        environment=task.name,
        agent=task.agent,
        seed=task.seed,
        hyperparameters=task.hyperparameters,
        policy_kwargs=task.policy_kwargs,
        episodes=max(1, len(log.returns)),
    )
    place = Place("", "run", task.name, task.agent, task.seed)
    record = RunRecord(config, RunStatus(status=state))
    ended = np.isfinite(log.returns)
    run = StoredRun(place, record, log.returns[ended], np.nan_to_num(log.lengths[ended]).astype(np.int64), path=path)
    return f"{task.name}, served", [run], []


def _read_task(path: Path) -> RobotTask:
    """:raises RunError: when it cannot be read"""
    try:
        return RobotTask.model_validate_json(read_bytes(path, 4 << 20))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}; choose another --out") from None
    except (Damaged, ValueError) as error:
        raise RunError(f"{path} is damaged: {one_line(error)}; choose another --out") from None


def _check_task(task: RobotTask, path: Path) -> None:
    """:raises RunError: when the folder's task is another one"""
    if path.exists():
        before = _read_task(path)
        for name in RobotTask.model_fields.keys() - _MAY_CHANGE:
            if getattr(before, name) != getattr(task, name):
                raise RunError(f"{path.parent} is the run of a task with other {name}: choose another --out")
