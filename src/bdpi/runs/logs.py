"""What a run logs to services such as TensorBoard, beside the files of its folder."""

from __future__ import annotations

import contextlib
import csv
import math
import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bdpi.runs.errors import RunError, one_line

if TYPE_CHECKING:
    from bdpi.agents.logs import Service
    from bdpi.runs.config import RunStatus
    from bdpi.runs.session import Session


#: Services that write elsewhere than into the run's folder.
OUTSIDE = ("wandb", "mlflow")
_LARGEST = 1e15  # a number of a log; whole ones up to here are exact
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Log:
    """What ``progress.csv`` says of learning, a row an episode; NaN where a row has no such number.

    :param steps: of training, at its end
    :param returns: of the episode
    :param lengths: of the episode
    :param entropy: of the policy, in bits
    :param disagreement: of the critics: share of states in which they do not all prefer the same action
    :param expected: what the critics expect of the latest transitions
    :param followed: the discounted return that followed
    """

    steps: Numbers
    returns: Numbers
    lengths: Numbers
    entropy: Numbers
    disagreement: Numbers
    expected: Numbers
    followed: Numbers


_COLUMNS = {
    "steps": "time/total_timesteps",
    "returns": "rollout/ep_rew",
    "lengths": "rollout/ep_len",
    "entropy": "train/entropy",
    "disagreement": "train/disagreement",
    "expected": "train/q_expected",
    "followed": "train/q_followed",
}


def read_log(path: Path) -> Log:
    """Of a run; without rows where there is no file.

    :raises RunError: when the file is damaged
    """
    from bdpi.agents.log_writers import csv_lines

    try:
        header, *rows = [*csv.reader(csv_lines(path))] or [[]]
    except (OSError, ValueError, csv.Error) as error:
        raise RunError(f"{path} cannot be read: {one_line(error)}; remove it, and only its curves are lost") from None
    whole = [row for row in rows if len(row) == len(header)]  # a crash cuts one off
    found = {}
    for name, column in _COLUMNS.items():
        place = header.index(column) if column in header else None
        found[name] = np.array([math.nan if place is None else _number(row[place]) for row in whole])
    return Log(**found)


def _number(cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:  # mostly an empty one
        return math.nan
    return value if abs(value) < _LARGEST else math.nan


def services_of(names: Sequence[str] | None) -> list[Service]:
    """What ``--log`` asks for, which works from here on.

    :raises RunError: for a service that is not known, or whose library is not installed
    """
    from bdpi.agents.logs import check_services

    try:
        services = check_services(names or ())
    except (ValueError, ImportError) as error:
        raise RunError(one_line(error)) from None
    if "mlflow" in services:
        from bdpi.agents.log_writers import mlflow_experiment

        try:  # once, before many runs of a study want to make the same database
            mlflow_experiment()
        except Exception as error:
            warnings.warn(f"MLflow does not answer: {one_line(error)}", RuntimeWarning, stacklevel=2)
    return services


def log_to(status: RunStatus, services: Sequence[Service]) -> None:
    """Have a run log to these services, too."""
    if services:
        status.log = list(dict.fromkeys((*status.log, *services)))
        status.log_id = status.log_id or uuid.uuid4().hex


def check_logs(status: RunStatus, services: Sequence[str], source: object) -> None:
    """Whether a file names only services that write into its folder, or that the user names, too.

    :param services: that the user names
    :param source: the file, for the message
    :raises RunError: naming the others
    """
    others = [name for name in status.log if name in OUTSIDE and name not in services]
    if others:
        raise RunError(
            f"{source} names the log {','.join(others)}, which is written outside of its folder: if you want it, give "
            f"--log {','.join(others)}; if the run is yours, --trust does, too"
        )


@contextlib.contextmanager
def logged(session: Session) -> Iterator[None]:
    """While this lasts, the agent logs to the services of its run."""
    from bdpi.agents.logs import configure_logger

    config, status = session.config, session.status
    if not status.log:
        yield
        return
    place, logger = status.study, None
    about = {
        "name": f"{config.agent} {config.environment} seed {config.seed}"
        + ("" if place is None else f" {place.series}"),
        "group": config.environment if place is None else f"{place.study}/{place.row}/{place.environment}",
        "settings": config.model_dump(),
        "run_id": status.log_id,
        "step": session.agent.num_timesteps,
    }
    try:
        logger = configure_logger(session.folder.path, status.log, **about)
        session.agent.set_logger(logger)
    except ImportError as error:  # of a run that was begun elsewhere
        warnings.warn(one_line(error), RuntimeWarning, stacklevel=3)
    try:
        yield
    finally:
        if logger is not None:
            logger.close()
