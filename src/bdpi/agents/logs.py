"""Where the numbers of learning go, and which numbers these are beside those of Stable-Baselines3."""

from __future__ import annotations

import importlib.util
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from stable_baselines3.common.logger import DISABLED, FormatUnsupportedError, KVWriter, Logger
from stable_baselines3.common.utils import configure_logger as sb3_logger

from bdpi.agents.agent_learner import DIAGNOSTICS_EVERY
from bdpi.agents.checkup import values_and_returns
from bdpi.agents.log_writers import About, CSVWriter, InThread, MLflowWriter, TensorBoardWriter, WandbWriter

if TYPE_CHECKING:
    from bdpi.agents.collector import EpisodeRecord
    from bdpi.agents.ensemble import Ensemble

Service = Literal["tensorboard", "wandb", "mlflow", "csv"]


def check_services(names: str | Iterable[str]) -> list[Service]:
    """The services that are meant, each once.

    :param names: some of them, separated by commas; or several such
    :raises ValueError: for one that is not known
    :raises ImportError: for one whose library is not installed
    """
    given = [names] if isinstance(names, str) else names
    found: list[Any] = list(dict.fromkeys(part.strip() for name in given for part in name.split(",")))
    for name in found:
        if name not in get_args(Service):
            raise ValueError(f"unknown log {name!r}: choose from {', '.join(get_args(Service))}")
        library = None if name == "csv" else importlib.util.find_spec(name)
        if name != "csv" and (library is None or library.origin is None):  # a folder of that name is no library
            raise ImportError(f'{name} is not installed: pip install "bdpi[{name}]"')
    return found


def configure_logger(folder: str | os.PathLike[str], services: str | Iterable[str], **about: Any) -> Logger:
    """A logger for ``agent.set_logger``, as ``configure`` of ``stable_baselines3.common.logger`` makes one.

    A service that fails is left out, with one warning. A log that is in the folder already is continued.

    :param folder: for ``progress.csv`` and TensorBoard's files. Weights & Biases and MLflow write to the current
        folder, or to where their environment variables say.
    :param services: of "tensorboard", "wandb", "mlflow" and "csv"
    :param about: what services are told: ``name``, ``group`` and ``settings`` of the run, a ``run_id`` of your own to
        continue it by, and the ``step`` after which it goes on
    :raises ValueError: for a service that is not known
    :raises ImportError: for one whose library is not installed
    """
    told, path = About(**about), Path(folder)
    make: dict[str, Callable[[], KVWriter]] = {
        "tensorboard": lambda: TensorBoardWriter(path, told.step),
        "wandb": lambda: InThread("wandb", partial(WandbWriter, told)),
        "mlflow": lambda: InThread("mlflow", partial(MLflowWriter, told)),
        "csv": lambda: CSVWriter(path / "progress.csv", told.step),
    }
    logger = LenientLogger(str(folder), [])
    for service in check_services(services):
        logger.attempt(service, lambda service=service: logger.output_formats.append(make[service]()))  # type: ignore[misc]
    return logger


class LenientLogger(Logger):
    """Goes on without writers that fail."""

    def dump(self, step: int = 0) -> None:
        """As in SB3."""
        if self.level == DISABLED:
            return
        for writer in tuple(self.output_formats):
            self.attempt(writer, partial(writer.write, self.name_to_value, self.name_to_excluded, step))
        self.name_to_value.clear()
        self.name_to_count.clear()
        self.name_to_excluded.clear()

    def close(self) -> None:
        """As in SB3."""
        for writer in tuple(self.output_formats):
            self.attempt(writer, writer.close)

    def attempt(self, what: KVWriter | str, task: Callable[[], object]) -> None:
        """Do without what fails: a full disk, a service that is gone."""
        try:
            task()
        except FormatUnsupportedError:  # what was logged is wrong, not where
            raise
        except Exception as error:
            if not isinstance(what, str):
                self.output_formats.remove(what)
                what = getattr(what, "service", type(what).__name__)
            said = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"logging to {what} failed, and learning goes on without: {said}", RuntimeWarning, stacklevel=4
            )


def record_state(agent: Ensemble) -> None:
    """Record what SB3 does not: the last episode, epochs due, Q-values against returns.

    Changes nothing that learns, and draws no random number.
    """
    logger, checkup = agent.logger, agent._checkup
    if not logger.output_formats:
        return
    if agent.ep_info_buffer:
        logger.record("rollout/ep_rew", agent.ep_info_buffer[-1]["r"])
        logger.record("rollout/ep_len", agent.ep_info_buffer[-1]["l"])
    logger.record("train/epochs_due", agent.epochs_due)
    if agent._n_updates < checkup.valued_at + DIAGNOSTICS_EVERY or not len(agent.replay_buffer):
        return
    checkup.valued_at = agent._n_updates
    q, returns = values_and_returns(agent)
    if len(q):
        expected, followed = float(q.mean()), float(returns.mean())
        checkup.values.append((agent.num_timesteps, expected, followed))
        logger.record("train/q_expected", expected)
        logger.record("train/q_followed", followed)
        logger.record("train/q_error", float(np.abs(q - returns).mean()))


class StepLog:
    """The log of an agent that is told of its steps by ``observe``: an entry for each episode."""

    def __init__(self) -> None:
        #: episodes that are not logged yet
        self._ended: deque[dict[str, float]] = deque()

    def open(self, agent: Ensemble) -> None:
        """Open it, if it is not open, and if ``learn`` has not opened its own."""
        if not hasattr(agent, "_logger"):
            agent._logger = logger = LenientLogger(agent.tensorboard_log, [])
            if agent.tensorboard_log is not None:
                wanted = 0, agent.tensorboard_log, type(agent).__name__, agent.num_timesteps == 0
                logger.attempt("tensorboard", lambda: logger.output_formats.extend(sb3_logger(*wanted).output_formats))
        if agent._logger.output_formats and agent.ep_info_buffer is None:
            agent.start_time, agent._num_timesteps_at_start = time.time_ns(), agent.num_timesteps
            agent.ep_info_buffer, agent.ep_success_buffer = (deque(maxlen=agent._stats_window_size) for _ in range(2))

    def add(self, agent: Ensemble, record: EpisodeRecord) -> None:
        """Log an episode that has ended: now, or in the background, for which ``observe`` does not wait."""
        if agent._logger.output_formats:
            self._ended.append({"r": record.last[0], "l": record.lengths[0]})
            if not agent._background.is_running:
                self.write(agent)

    def write(self, agent: Ensemble) -> None:
        """Write what was added."""
        while self._ended:
            assert agent.ep_info_buffer is not None
            agent.ep_info_buffer.append(self._ended.popleft())
            agent.dump_logs()
