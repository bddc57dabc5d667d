"""Where the episodes of the tuned peers are kept: a compressed CSV, and a JSON file that says what is finished."""

from __future__ import annotations

import csv
import fcntl
import gzip
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peer_runs import Entry, Episode

COLUMNS = ("task", "peer", "seed", "episode", "steps", "return", "length")
Key = tuple[str, str, int]  # task, peer, seed


class Store:
    """Keeps finished runs. Each is appended as a whole: after a crash, what was half written is cut off.

    :param path: of the CSV; the JSON file is beside it
    :param entries: of the table, by task and peer
    :param software: what new runs are made with
    """

    def __init__(self, path: Path, entries: dict[tuple[str, str], Entry], software: str = "") -> None:
        self.path, self._entries, self._software = path, entries, software
        self._index = index_of(path)
        self._state: dict[str, Any] = {"bytes": 0, "software": [], "finished": {}}
        if self._index.exists():
            self._state = json.loads(self._index.read_text(encoding="utf-8"))
        elif path.exists():
            raise SystemExit(f"{path} exists without {self._index.name}: choose another --out, or remove it")
        #: with what is known about each
        self.finished: dict[Key, dict[str, Any]] = {key_of(name): run for name, run in self._state["finished"].items()}
        for key, run in self.finished.items():
            if key[:2] in entries and entries[key[:2]].fingerprint != run["fingerprint"]:
                raise SystemExit(
                    f"{path} has runs of {key[0]}/{key[1]} with other parameters than the table's: choose another --out"
                )

    @classmethod
    def open(cls, path: Path, entries: dict[tuple[str, str], Entry], software: str) -> Store:
        """For writing, by one process at a time."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = index_of(path).with_suffix(".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SystemExit(f"another process writes to {path}: wait for it, or choose another --out") from None
        store = cls(path, entries, software)
        store._lock = lock
        if path.exists():
            os.truncate(path, store._state["bytes"])
        return store

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        Path(self._lock.name).unlink()
        self._lock.close()

    def add(self, key: Key, episodes: Iterable[Episode], seconds: float) -> None:
        """Append a finished run."""
        rows = [(*key, number, *episode) for number, episode in enumerate(episodes, 1)]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._state["bytes"]:
            writer.writerow(COLUMNS)
        writer.writerows(rows)
        with self.path.open("ab") as file:
            file.write(gzip.compress(text.getvalue().encode(), mtime=0))  # files of several such parts are read as one
            file.flush()
            os.fsync(file.fileno())
            self._state["bytes"] = file.tell()
        if self._software not in self._state["software"]:
            self._state["software"].append(self._software)
        self.finished[key] = {
            "episodes": len(rows),
            "seconds": round(seconds, 1),
            "fingerprint": self._entries[key[:2]].fingerprint,
            "software": self._state["software"].index(self._software),
        }
        self._state["finished"]["/".join(map(str, key))] = self.finished[key]
        new = self._index.with_suffix(".json.new")
        new.write_text(_as_json(self._state), encoding="utf-8")
        new.replace(self._index)

    def longest(self, key: Key) -> float:
        """Seconds that this took with other seeds; 0 if that is not known."""
        return max((run["seconds"] for other, run in self.finished.items() if other[:2] == key[:2]), default=0.0)


def index_of(path: Path) -> Path:
    """The JSON file beside a CSV."""
    return path.with_name(path.name.removesuffix(".gz").removesuffix(".csv") + ".json")


def key_of(name: str) -> Key:
    task, peer, seed = name.rsplit("/", 2)
    return task, peer, int(seed)


def read_episodes(path: Path) -> dict[Key, list[Episode]]:
    """The episodes of all runs."""
    runs: dict[Key, list[Episode]] = {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = row["task"], row["peer"], int(row["seed"])
            episode = Episode(int(row["steps"]), float(row["return"]), int(row["length"]))
            runs.setdefault(key, []).append(episode)
    return runs


def _as_json(state: dict[str, Any]) -> str:
    """One line for each run."""
    runs = ",\n".join(f"  {json.dumps(name)}: {json.dumps(run)}" for name, run in state["finished"].items())
    head = {name: value for name, value in state.items() if name != "finished"}
    return json.dumps(head)[:-1] + ', "finished": {\n' + runs + "\n}}\n"
