"""Read back what services have been told, each with its own library."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STEPS = "time/total_timesteps"
#: Of each row: steps, and values by their names.
Rows = list[tuple[int, dict[str, float]]]


def csv_rows(folder: Path) -> Rows:
    with (folder / "progress.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    return [(int(row[STEPS]), row) for row in rows]


def tensorboard_rows(folder: Path) -> Rows:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder))
    board.Reload()
    found: dict[int, dict[str, float]] = {}
    for name in board.Tags()["scalars"]:
        for event in board.Scalars(name):
            found.setdefault(event.step, {})[name] = event.value
    return sorted(found.items())


def mlflow_rows() -> list[Rows]:
    """Of each run."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("bdpi")
    runs = []
    for run in client.search_runs([experiment.experiment_id]):
        assert run.info.status == "FINISHED"
        found: dict[int, dict[str, float]] = {}
        for name in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, name):
                found.setdefault(metric.step, {})[name] = metric.value
        runs.append(sorted(found.items()))
    return runs


def wandb_rows(folder: Path) -> dict[str, Rows]:
    """By the ids of runs, each of which may have been written by several processes."""
    from wandb.proto.wandb_internal_pb2 import Record

    runs: dict[str, Rows] = {}
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        rows = runs.setdefault(file.stem.removeprefix("run-"), [])
        for data in _records(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                rows.append((int(row[STEPS]), row))
    return runs


def _records(content: bytes, block: int = 1 << 15) -> Iterator[bytes]:
    """Of a file of W&B, which has the format of LevelDB's logs behind seven bytes of its own."""
    assert content.startswith(b":W&B")
    at, parts = 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:  # no room for another header
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def returns(rows: Rows) -> list[Any]:
    return [row["rollout/ep_rew"] for _, row in rows if "rollout/ep_rew" in row]
