"""The folder of a run: which files it has, and what a crash leaves of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from bdpi.runs.config import OfflineConfig, RunConfig, RunRecord, RunStatus
from bdpi.runs.errors import Busy, RunError
from bdpi.storage.atomic import is_special, make_folder, sync_file, sync_folder, write_atomically
from bdpi.storage.reading import Damaged, read_bytes

LARGEST_CONFIG = 4 << 20  # bytes


@contextlib.contextmanager
def locked(folder: Path, refusal: str | None = None) -> Iterator[None]:
    """Keep a folder from other processes. The lock ends with the process, however it ends.

    :param refusal: what to say when another process holds it; ``None``: wait for that.
    :raises Busy: when another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows: folders cannot be locked there
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if refusal is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(refusal) from None
        except OSError:  # some network file systems know no locks: better without than not at all
            pass
        yield
    finally:
        os.close(handle)


def staged(path: Path, number: int) -> Path:
    """Where a file of checkpoint ``number`` waits until all that belong to it are written."""
    return path.with_name(f".next-{number}-{path.name}")


def default_path(environment: str, agent: str, seed: int, root: Path = Path("runs")) -> Path:
    """``runs/CartPole-v1/bdpi-seed0-20250131-235959``, with a number behind it when that one exists already."""
    name = f"{agent}-seed{seed}-{datetime.now():%Y%m%d-%H%M%S}"
    # "ALE/Pong-v5" and "package:Env-v0" become one folder, so that runs/*/* lists the runs of every environment.
    parent = root / re.sub(r"[^A-Za-z0-9._-]+", "-", environment)
    path = parent / name
    number = 2
    while path.exists():
        path = parent / f"{name}-{number}"
        number += 1
    return path


def refuse_outside(root: Path, folders: Iterable[Path]) -> None:
    """Runs are written below the folder that the user names: a stranger's link may lead to any other.

    :raises RunError: when one of them is elsewhere
    """
    inside = os.path.join(os.path.realpath(root), "")
    for folder in folders:
        if not os.path.realpath(folder).startswith(inside):
            raise RunError(
                f"{folder} is a link, or is behind one, to {os.path.realpath(folder)}, which is not in {root}: remove "
                "the link, or choose another --out"
            )


def refuse_links(files: Iterable[Path]) -> None:
    """:raises RunError: when one of them is a link, or a pipe: what it leads to would be read or written"""
    for path in files:
        if path.is_symlink():
            raise RunError(f"{path} is a link to {os.readlink(path)}: put a copy in its place, or remove it")
        if is_special(path):
            raise RunError(f"{path} is not a file: remove it")


class RunFolder:
    """The files of one run.

    :param path: the folder. It need not exist; ``open`` finds one that does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.monitor = path / "monitor.csv"
        self.test = path / "test.csv"
        self.evaluations = path / "eval.csv"
        self.agent = path / "agent.zip"
        self.best = path / "best.zip"
        self.replay = path / "replay.npz"
        self.episode = path / "episode.json"
        self.entropy = path / "entropy.f32"
        self.curve = path / "curve.png"
        self.film = path / "policy.gif"
        self.progress = path / "progress.csv"
        self.error = path / "error.txt"
        #: where the run is trained anew, while the one that is here is kept
        self.attempt = path / ".attempt"
        self._successor = path / ".successor"  # an attempt that has become the run, until its files are moved

    @property
    def files(self) -> tuple[Path, ...]:
        logs, pictures = (self.monitor, self.test, self.evaluations), (self.curve, self.film, self.progress)
        return self.config, *logs, *self.checkpoint, self.best, self.entropy, *pictures, self.error

    def film_after(self, episodes: int) -> Path:
        """Of ``--film-every``."""
        return self.path / f"policy-{episodes}.gif"

    def sync(self) -> None:
        """Have what was appended to a run's files outlast a power failure, before a checkpoint counts on it."""
        for path in (self.monitor, self.test, self.evaluations, self.entropy):
            if path.exists():
                sync_file(path)

    @property
    def events(self) -> list[Path]:
        """TensorBoard's files."""
        return list(self.path.glob("events.out.tfevents.*"))

    @property
    def checkpoint(self) -> tuple[Path, ...]:
        """The files that only make sense together."""
        return (self.agent, self.replay, self.episode)

    def is_settled(self, checkpoint: int) -> bool:
        """Whether all files of the last checkpoint are where they belong."""
        waiting = [staged(path, checkpoint) for path in (*self.checkpoint, self.best)]
        return not any(path.exists() for path in (*waiting, self._successor))

    def settle(self, checkpoint: int) -> None:
        """After a crash while saving: finish the checkpoint that ``config.json`` names, and forget any other.

        Requires the lock, as :meth:`tidy`.
        """
        for path in (*self.checkpoint, self.best):
            complete = staged(path, checkpoint)
            if complete.exists():
                os.replace(complete, path)
        sync_folder(self.path)  # before what is behind is removed
        self.tidy()

    def tidy(self) -> None:
        """Remove what killed processes have left half written. Requires the lock: no process writes then."""
        for pattern in (".next-*", ".*.partial*"):
            for left in self.path.glob(pattern):
                left.unlink(missing_ok=True)

    def take_over(self) -> None:
        """Put the run in :attr:`attempt` in the place of the one that is here; after a crash, it is either."""
        own = self.best, self.evaluations, self.curve, self.film, self.error, self.progress
        for file in (*own, *self.events):  # it may have none
            if not (self.attempt / file.name).exists():
                file.unlink(missing_ok=True)
        os.rename(self.attempt, self._successor)  # from now on, it is the run
        sync_folder(self.path)
        self.move_successor()

    def move_successor(self) -> None:
        """Finish what :meth:`take_over` has begun, if anything.

        :raises RunError: when a file of the run is a link
        """
        self.refuse_links()
        if self._successor.is_dir():
            for file in sorted(self._successor.iterdir(), key=lambda file: file.name == self.config.name):
                os.replace(file, self.path / file.name)
            sync_folder(self.path)
            self._successor.rmdir()

    def whole(self) -> RunFolder:
        """The run for readers: while a successor's files are moved, each is in one place or the other."""
        whole = RunFolder(self.path)
        if self._successor.is_dir():
            for name, file in vars(self).items():
                if file in self.files and (self._successor / file.name).exists():
                    setattr(whole, name, self._successor / file.name)
        return whole

    def make(self) -> None:
        """Make the folder where it does not exist.

        :raises RunError: when that is not possible.
        """
        try:
            make_folder(self.path)
        except (FileExistsError, NotADirectoryError):
            raise RunError(
                f"{self.path} cannot be a run folder: a file of that name is in the way: remove it, or choose another "
                "--out"
            ) from None
        except OSError as error:
            raise RunError(f"the run folder {self.path} cannot be made: {error.strerror or error}") from None

    def refuse_links(self) -> None:
        """:raises RunError: when a file of the run is a link, or a pipe"""
        refuse_links((*self.files, self.attempt, self._successor))

    @property
    def present(self) -> list[str]:
        """Names of the files that are there."""
        return [file.name for file in self.files if file.exists()]

    def refuse_if_taken(self) -> None:
        """:raises RunError: when a run is in the folder already."""
        taken = ", ".join(self.present)
        if taken and not self.config.exists():
            raise RunError(
                f"{self.path} already holds {taken} of a run whose config.json is missing, so it cannot "
                "go on: remove it, or choose another --out"
            )
        if taken:
            raise RunError(
                f"{self.path} already holds a run ({taken}): choose another --out, "
                f"or go on with it: bdpi train --resume {shlex.quote(str(self.path))}"
            )

    @classmethod
    def new(cls, path: Path | None, name: str, agent: str, seed: int) -> RunFolder:
        """One without a run, and not made yet.

        :param path: ``None``: :func:`default_path` for these names.
        :raises RunError: when a run is in the folder already.
        """
        folder = cls(path or default_path(name, agent, seed))
        folder.refuse_if_taken()
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Find a run by its folder, or by the ``agent.zip`` in it.

        :raises RunError: when there is no run.
        """
        folder = cls(path.parent if path.name == "agent.zip" else path)
        if not folder.path.exists():
            raise RunError(f"there is no run folder {folder.path}")
        if not folder.config.is_file():
            raise RunError(f"{folder.path} is not the folder of a run: it has no config.json")
        return folder

    def read(self) -> RunRecord:
        """:raises RunError: when ``config.json`` is damaged or foreign."""
        try:
            text = read_bytes(self.config, LARGEST_CONFIG)
        except OSError as error:
            raise RunError(f"{self.config} cannot be read: {error.strerror or error}") from None
        except Damaged as error:
            raise RunError(f"{self.config} is damaged: {error}") from None
        return RunRecord.parse(text, self.config)

    def read_run(self) -> tuple[RunConfig, RunStatus]:
        """Configuration and status of a run with episodes.

        :raises RunError: when ``config.json`` is damaged or foreign, or the agent learned from a journal.
        """
        record = self.read()
        if isinstance(record.config, OfflineConfig):
            raise RunError(
                f"{self.path} was learned from a journal, without episodes that --resume could go on with: learn "
                f"longer with bdpi train --offline {shlex.quote(record.config.journal)} --epochs N, or go on with a "
                f"robot: load {self.agent} in Python, with env= and journal="
            )
        return record.config, record.status

    def write(self, record: RunRecord) -> None:
        text = json.dumps(record.as_dict(), indent=2, ensure_ascii=False, default=repr) + "\n"
        write_atomically(self.config, text)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from training in the same folder.

        :raises RunError: when another process holds it.
        """
        with locked(self.path, f"{self.path} is being trained by another process: wait for it or stop it"):
            yield
