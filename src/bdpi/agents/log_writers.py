"""Writers for SB3's loggers, one for each service. Each continues what an earlier process has written.

Nothing goes over a network unless the user's environment variables say so.
"""

from __future__ import annotations

import atexit
import csv
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import (
    CSVOutputFormat,
    KVWriter,
    TensorBoardOutputFormat,
    filter_excluded_keys,
)

from bdpi.storage.atomic import make_folder, write_atomically
from bdpi.storage.reading import Damaged, read_bytes

#: What SB3 calls the step of a row.
STEPS = "time/total_timesteps"
_LARGEST_CSV, _MOST_ROWS = 1 << 28, 1_000_000  # bytes, of which a row has some hundred
_MOST_WAITING = 100_000  # rows: a service that falls so far behind is left out
_PATIENCE = 30.0  # seconds that a service has in the end
_FLUSH_EVERY = 1.0  # seconds between two requests to MLflow, which take as long as some steps
_LARGEST_REQUEST = 1000  # metrics that MLflow takes at a time

Excluded = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class About:
    """What services are told of a run.

    :param name: that they show
    :param group: of the runs that it is compared with
    :param settings: of the agent and its environment
    :param run_id: by which they know the run; one that they have is continued. Empty: a new run
    :param step: rows of later steps are dropped from files: these steps are about to be repeated
    """

    name: str = ""
    group: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    run_id: str = ""
    step: int = 0


def csv_lines(path: Path) -> list[str]:
    """Of ``progress.csv``; none of one that there is not.

    :raises ValueError: for a file that no run has written
    """
    if not path.exists():
        return []
    text = read_bytes(path, _LARGEST_CSV).decode()
    if text.count("\n") > _MOST_ROWS:
        raise Damaged(f"it has more than {_MOST_ROWS} rows")
    return text.splitlines(keepends=True)


class CSVWriter(CSVOutputFormat):
    """SB3's ``progress.csv``."""

    service = "csv"

    def __init__(self, path: Path, step: int) -> None:
        lines = csv_lines(path)
        kept = [line for line, row in zip(lines[1:], csv.DictReader(lines)) if int(row.get(STEPS) or 0) <= step]  # noqa: B905
        make_folder(path.parent)
        write_atomically(path, "".join([*lines[:1], *kept]))
        self.keys = next(csv.reader(lines[:1]), [])
        self.file = path.open("r+")
        self.file.seek(0, os.SEEK_END)
        self.separator, self.quotechar = ",", '"'


class TensorBoardWriter(TensorBoardOutputFormat):
    """TensorBoard's files."""

    service = "tensorboard"

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)
        self._is_closed = False


class WandbWriter(KVWriter):
    """A run of Weights & Biases: offline, unless WANDB_MODE says otherwise."""

    def __init__(self, about: About) -> None:
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "bdpi"),
            name=about.name or None,
            group=about.group or None,
            config=dict(about.settings),
            id=about.run_id or None,
            resume="allow" if about.run_id else None,
            mode=mode,
            reinit="create_new",  # a process may have several runs
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric=STEPS)  # its own steps cannot be repeated

    def write(self, key_values: dict[str, Any], key_excluded: Excluded, step: int = 0) -> None:
        self._run.log({**_numbers(key_values, key_excluded, "wandb"), STEPS: step})

    def close(self) -> None:
        self._run.finish()


class MLflowWriter(KVWriter):
    """A run of MLflow: in ``mlflow.db`` of the current folder, unless MLFLOW_TRACKING_URI says otherwise."""

    def __init__(self, about: About) -> None:
        self._client, experiment = mlflow_experiment()
        from mlflow.entities import Param

        found = []
        if about.run_id:
            tag = f"tags.`bdpi.run` = '{about.run_id}'"
            found = self._client.search_runs([experiment], tag, max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            tags = {"bdpi.run": about.run_id, "bdpi.group": about.group}
            self._run = self._client.create_run(experiment, tags=tags, run_name=about.name or None).info.run_id
            parameters = [Param(name, str(value)[:500]) for name, value in about.settings.items()]
            self._client.log_batch(self._run, params=parameters)
        self._waiting: list[Any] = []
        self._flushed = 0.0

    def write(self, key_values: dict[str, Any], key_excluded: Excluded, step: int = 0) -> None:
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        numbers = _numbers(key_values, key_excluded, "mlflow")
        self._waiting += [Metric(name, value, now, step) for name, value in numbers.items()]
        if time.monotonic() > self._flushed + _FLUSH_EVERY:
            self._flush()

    def _flush(self) -> None:
        while self._waiting:
            self._client.log_batch(self._run, metrics=self._waiting[:_LARGEST_REQUEST])
            del self._waiting[:_LARGEST_REQUEST]
        self._flushed = time.monotonic()

    def close(self) -> None:
        self._flush()
        self._client.set_terminated(self._run)


def mlflow_experiment() -> tuple[Any, str]:
    """MLflow's client, and the id of the experiment that runs are in. Makes the database where there is none."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "bdpi")
    known = client.get_experiment_by_name(name)
    return client, client.create_experiment(name) if known is None else known.experiment_id


class InThread(KVWriter):
    """Another writer, in a thread: nothing waits for a service that is slow, or gone.

    :param service: its name
    :param make: makes the writer
    """

    def __init__(self, service: str, make: Callable[[], KVWriter]) -> None:
        self.service = service
        self._rows: queue.Queue[tuple[dict[str, Any], Excluded, int] | None] = queue.Queue(_MOST_WAITING)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, args=(make,), name="bdpi log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _work(self, make: Callable[[], KVWriter]) -> None:
        try:
            writer = make()
            while (row := self._rows.get()) is not None:
                writer.write(*row)
            writer.close()
        except BaseException as error:  # the next row raises it
            self._error = error

    def write(self, key_values: dict[str, Any], key_excluded: Excluded, step: int = 0) -> None:
        self._check()
        self._rows.put_nowait((dict(key_values), dict(key_excluded), step))

    def close(self) -> None:
        atexit.unregister(self.close)
        self._rows.put_nowait(None)
        self._thread.join(_PATIENCE)
        self._check()
        if self._thread.is_alive():
            raise TimeoutError(f"{self._rows.qsize()} rows were not written in {_PATIENCE:g} seconds")

    def _check(self) -> None:
        if self._error is not None:
            atexit.unregister(self.close)
            raise RuntimeError(f"{type(self._error).__name__}: {self._error}") from self._error


def _numbers(values: dict[str, Any], excluded: Excluded, service: str) -> dict[str, float]:
    """What can be drawn as a curve."""
    shown = filter_excluded_keys(values, excluded, service)
    return {name: float(value) for name, value in shown.items() if isinstance(value, int | float | np.number)}
