"""One process that owns the GPU trains the runs of all others.

A run stays what it is elsewhere, a session in a process of its own. Only its learner's epochs are computed here: the
learner writes what an epoch needs to shared memory, says so through a socket, and waits. As soon as enough runs wait,
one launch of the kernels trains them, while the environments of others make their next step.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from bdpi.learner.interface import Hyperparameters
from bdpi.learner.stack import N_GROUPS, Group, Kind, Stack, StackRow, Stacks
from bdpi.runs.signals import leave_to_parent
from bdpi.storage.shared import SharedArrays

_PATIENCE = 0.005  # seconds that runs wait for others
_LOOK_AROUND = 0.5  # seconds
_POLL = 0.0001  # seconds between two looks at the GPU
_START = 120.0  # seconds that the server has to start
_TRAIN, _DONE = b"train", b""


class TrainerLost(BaseException):
    """The process that trains has ended. No error of the run: it goes on from its checkpoint, in another process."""


# -- in the process of a run


class Client:
    """Trains runs of this process in another one; see :class:`bdpi.learner.joint.Trainer`.

    :param address: of the server's socket
    """

    def __init__(self, address: Path) -> None:
        self._address = address

    def join(self, kind: Kind, hyperparameters: Hyperparameters) -> RemoteRow:
        """See :meth:`bdpi.learner.joint.Trainer.join`."""
        return RemoteRow(_connect(self._address), kind, hyperparameters)


class RemoteRow:
    """A run's row of a stack in another process; see :class:`bdpi.learner.joint.JointPlace`."""

    def __init__(self, connection: Connection, kind: Kind, hyperparameters: Hyperparameters) -> None:
        self._connection = connection
        name, size, row = self._ask("join", kind, hyperparameters)
        self._shared = SharedArrays(kind.parts(size), name)
        rows = slice(row, row + 1)
        self.arrays: Mapping[str, NDArray[Any]] = {name: array[rows] for name, array in self._shared.arrays.items()}

    def train(self) -> None:
        """See :meth:`bdpi.learner.joint.JointPlace.train`."""
        self._say(_TRAIN)

    def remember(self) -> None:
        """See :meth:`bdpi.learner.joint.JointPlace.remember`."""
        self._ask("remember")

    def get(self, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """See :meth:`bdpi.learner.joint.JointPlace.get`."""
        state: dict[str, NDArray[Any]] = self._ask("get", names)
        return state

    def set(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See :meth:`bdpi.learner.joint.JointPlace.set`."""
        self._ask("set", state)

    def leave(self) -> None:
        """See :meth:`bdpi.learner.joint.JointPlace.leave`."""
        self._connection.close()
        self.arrays = {}
        self._shared.close()

    def _ask(self, what: str, *arguments: Any) -> Any:
        return self._say(pickle.dumps((what, arguments)))

    def _say(self, message: bytes) -> Any:
        try:
            self._connection.send_bytes(message)
            answer = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise TrainerLost("the process that trains has ended") from error
        value = None if answer == _DONE else pickle.loads(answer)
        if isinstance(value, Exception):
            raise RuntimeError(f"runs that are trained together have failed: {value}") from value
        return value


def _connect(address: Path) -> Connection:
    """A connection to the server, which may have to start first."""
    end = time.monotonic() + _START
    while True:
        connecting = socket.socket(socket.AF_UNIX)
        try:
            connecting.connect(str(address))
            return Connection(connecting.detach())
        except OSError as error:
            connecting.close()
            if time.monotonic() > end:
                raise TrainerLost("the process that trains does not start") from error
            time.sleep(0.05)


# -- in the process that trains


def serve(address: Path, size: int, device: str, is_over: Callable[[], bool]) -> None:
    """Train runs until ``is_over``, and until none is left: they save themselves first."""
    Server(address, size, device).serve(is_over)


def work(address: Path, size: int, device: str, stop: Any) -> None:
    """What a process that trains does.

    :param stop: a shared value; not zero: no more runs begin
    """
    leave_to_parent()
    parent = os.getppid()
    serve(address, size, device, lambda: bool(stop.value) or os.getppid() != parent)


@dataclass(eq=False)
class _Run:
    """A run, as the server sees it."""

    connection: Connection
    row: StackRow | None = None


@dataclass
class _Waiting:
    """Runs of a stack that wait to be trained, and groups that are."""

    runs: list[_Run] = field(default_factory=list)
    since: float = 0.0
    started: list[tuple[Group, list[_Run]]] = field(default_factory=list)


class Server(Stacks):
    """Runs of other processes.

    :param address: of the socket to make
    :param size: how many runs there may be at a time
    :param device: where they are trained
    """

    def __init__(self, address: Path, size: int, device: torch.device | str = "cuda") -> None:
        super().__init__(size, device)
        self._shared: dict[Kind, SharedArrays] = {}
        self._waiting: dict[Stack, _Waiting] = {}
        self._runs: set[_Run] = set()
        self._selector = selectors.DefaultSelector()
        self._socket = socket.socket(socket.AF_UNIX)
        address.unlink(missing_ok=True)  # of one that died
        self._socket.bind(str(address))
        self._socket.listen(size)
        self._selector.register(self._socket, selectors.EVENT_READ)

    def make_arrays(self, kind: Kind) -> Mapping[str, NDArray[Any]]:
        """Shared ones."""
        self._shared[kind] = SharedArrays(kind.parts(self.size))
        return self._shared[kind].arrays

    def leave(self, stack: Stack, row: int) -> None:
        """See :meth:`bdpi.learner.stack.Stacks.leave`."""
        super().leave(stack, row)
        if not stack.n_runs:
            del self._waiting[stack]
            self._shared.pop(stack.kind).close()

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Train runs until ``is_over``, and until none is left."""
        try:
            while self._runs or not is_over():
                for key, _ in self._selector.select(self._timeout()):
                    if key.data is None:
                        self._accept()
                    else:
                        self._hear(key.data)
                for stack, waiting in list(self._waiting.items()):
                    self._finish(stack, waiting)
                    self._start(stack, waiting)
        finally:
            for shared in self._shared.values():
                shared.close()
            self._socket.close()

    def _timeout(self) -> float:
        """How long to wait for messages: not while the GPU computes, which says nothing when it is done."""
        if any(waiting.started for waiting in self._waiting.values()):
            time.sleep(_POLL)
            return 0.0
        return _PATIENCE if any(waiting.runs for waiting in self._waiting.values()) else _LOOK_AROUND

    def _accept(self) -> None:
        run = _Run(Connection(self._socket.accept()[0].detach()))
        self._runs.add(run)
        self._selector.register(run.connection, selectors.EVENT_READ, run)

    def _hear(self, run: _Run) -> None:
        try:
            message = run.connection.recv_bytes()
        except (EOFError, OSError):  # it has left, or died
            self._forget(run)
            return
        if message == _TRAIN:
            assert run.row is not None
            waiting = self._waiting[run.row.stack]
            if not waiting.runs:
                waiting.since = time.monotonic()
            waiting.runs.append(run)
            return
        what, arguments = pickle.loads(message)
        try:
            value = self._join(run, *arguments) if what == "join" else getattr(run.row, what)(*arguments)
        except Exception as error:
            value = error
        self._answer(run, _DONE if value is None else pickle.dumps(value))

    def _join(self, run: _Run, kind: Kind, hyperparameters: Hyperparameters) -> tuple[str, int, int]:
        row = run.row = self.join(kind, hyperparameters)
        self._waiting.setdefault(row.stack, _Waiting())
        return self._shared[row.stack.kind].name, self.size, row.row

    def _forget(self, run: _Run) -> None:
        self._selector.unregister(run.connection)
        run.connection.close()
        self._runs.discard(run)
        if run.row is None:
            return
        stack = run.row.stack
        waiting = self._waiting[stack]
        waiting.runs = [other for other in waiting.runs if other is not run]
        if any(run in runs for _, runs in waiting.started):  # its row is in use
            self._finish(stack, waiting, wait=True)
        run.row.leave()

    def _start(self, stack: Stack, waiting: _Waiting) -> None:
        """Train the runs that wait, if they are enough, or have waited for long enough."""
        is_late = time.monotonic() - waiting.since >= _PATIENCE
        if not waiting.runs or not stack.has_room or not (N_GROUPS * len(waiting.runs) >= stack.n_runs or is_late):
            return
        runs, waiting.runs = waiting.runs, []
        try:
            waiting.started.append((stack.start([run.row.row for run in runs if run.row is not None]), runs))
        except Exception as error:
            self._answer_all(runs, error)

    def _finish(self, stack: Stack, waiting: _Waiting, wait: bool = False) -> None:
        """Answer runs whose epochs are computed."""
        for group, runs in list(waiting.started):
            if wait or group.streams.is_done():
                waiting.started.remove((group, runs))
                try:
                    stack.finish(group)
                except Exception as error:
                    self._answer_all(runs, error)
                else:
                    self._answer_all(runs)

    def _answer_all(self, runs: list[_Run], error: Exception | None = None) -> None:
        for run in runs:
            self._answer(run, _DONE if error is None else pickle.dumps(RuntimeError(str(error))))

    def _answer(self, run: _Run, answer: bytes) -> None:
        with contextlib.suppress(OSError):  # it died, as we are about to hear
            run.connection.send_bytes(answer)
