"""Environments of many runs in several processes.

Each process steps a share of the environments when it is told to. Observations, actions and rewards are in shared
memory. Processes do not import PyTorch, except for Binary Action Search, which needs Stable-Baselines3.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bdpi.storage.shared import Parts, SharedArrays
from scales import tasks

STEP, RESET, REPORT, STOP = range(4)
PATIENCE = 5.0  # seconds until a process looks whether the other one is alive

#: run, its steps so far, return, steps and real steps of an episode
Record = tuple[int, int, float, int, int]


@dataclass(frozen=True)
class Run:
    """What an environment has to know about its run."""

    seed: int
    gamma: float
    limits_terminal: bool


class Failure(RuntimeError):
    """A process that steps environments has failed."""


class Environments:
    """The environments of the runs of a group, in processes; each begins an episode by itself when one ends.

    ``arrays`` has, after a step: ``observations`` to act on next; ``final``, the observations that the step led to;
    ``rewards``, ``discounts`` (0 at terminal states) and ``ended``. Runs whose action is negative do nothing.

    :param variant: the task
    :param space: its spaces
    :param runs: seeds and discounts
    :param n_workers: processes
    """

    def __init__(self, variant: tasks.Variant, space: tasks.Space, runs: Sequence[Run], n_workers: int) -> None:
        count = len(runs)
        n_workers = max(1, min(n_workers, count))
        seen: tuple[tuple[int, ...], DTypeLike] = (
            ((count,), np.int64) if space.one_hot else ((count, space.inputs), np.float32)
        )
        parts: Parts = {
            "observations": seen,
            "final": seen,
            "actions": ((count,), np.int64),
            "rewards": ((count,), np.float32),
            "discounts": ((count,), np.float32),
            "ended": ((count,), np.bool_),
            "command": ((2,), np.int64),
            "busy": ((1,), np.int64),
            "failed": ((n_workers,), np.bool_),
        }
        context = multiprocessing.get_context("spawn")
        self._shared = SharedArrays(parts)
        self.arrays = self._shared.arrays
        self._done, self._lock = context.Semaphore(0), context.Lock()
        self._go = [context.Semaphore(0) for _ in range(n_workers)]
        self._pipes, self._processes = [], []
        bounds = np.linspace(0, count, n_workers + 1).astype(int).tolist()
        before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "SDL_VIDEODRIVER")}
        os.environ.update(OMP_NUM_THREADS="1", SDL_VIDEODRIVER="dummy")
        for number, go in enumerate(self._go):
            mine, theirs = context.Pipe()
            share = range(bounds[number], bounds[number + 1])
            arguments = (
                variant,
                list(runs),
                share,
                number,
                parts,
                self._shared.name,
                go,
                self._done,
                self._lock,
                theirs,
            )
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

    def step(self, actions: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """One step of every environment; returns the arrays, which the next step overwrites."""
        self.arrays["actions"][:] = actions
        self._tell(STEP)
        return self.arrays

    def reset(self, seed: int) -> dict[str, NDArray[Any]]:
        """Begin new episodes; each environment's seed is this one plus that of its run."""
        self._tell(RESET, seed)
        return self.arrays

    def records(self) -> list[Record]:
        """Episodes that ended since the last call, in each run's order."""
        self._tell(REPORT)
        return [record for pipe in self._pipes for record in pipe.recv()]

    def close(self) -> None:
        """End the processes."""
        if not self._processes:
            return
        self.arrays["command"][0] = STOP
        for go in self._go:
            go.release()
        for process in self._processes:
            process.join(PATIENCE)
            if process.is_alive():
                process.terminate()
                process.join()
        self._processes = []
        self.arrays = {}
        self._shared.close()

    def _tell(self, command: int, argument: int = 0) -> None:
        self.arrays["command"][:] = command, argument
        self.arrays["busy"][0] = len(self._go)
        for go in self._go:
            go.release()
        while not self._done.acquire(timeout=PATIENCE):
            dead = [process for process in self._processes if not process.is_alive()]
            if dead:
                self._raise([f"process {process.pid} ended with code {process.exitcode}" for process in dead])
        if self.arrays["failed"].any():
            self._raise([self._pipes[number].recv() for number in np.flatnonzero(self.arrays["failed"])])

    def _raise(self, texts: list[str]) -> None:
        raise Failure("an environment's process failed:\n" + "\n".join(texts))


def _work(
    variant: tasks.Variant,
    runs: list[Run],
    share: range,
    number: int,
    parts: Parts,
    name: str,
    go: Any,
    done: Any,
    lock: Any,
    pipe: Any,
) -> None:
    """Step a share of the environments, until told to stop or left alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted program asks for the records, and then says stop
    shared, parent = SharedArrays(parts, name), os.getppid()
    arrays = shared.arrays

    def finish() -> None:
        with lock:
            arrays["busy"][0] -= 1
            if arrays["busy"][0] == 0:  # one signal is enough
                done.release()

    try:
        mine = [_Environment(variant, runs[index], index, arrays) for index in share]
        while True:
            while not go.acquire(timeout=PATIENCE):
                if os.getppid() != parent:
                    return
            command, argument = arrays["command"].tolist()
            if command == STOP:
                return
            if command == STEP:
                for environment in mine:
                    environment.step()
            elif command == RESET:
                for environment in mine:
                    environment.reset(argument)
            finish()
            if command == REPORT:  # the other side reads now, so that a full pipe does not block
                pipe.send([record for environment in mine for record in environment.take_records()])
    except BaseException:
        arrays["failed"][number] = True
        finish()
        pipe.send(traceback.format_exc())
        go.acquire(timeout=12 * PATIENCE)  # the pipe stays open until the other side has read


class _Environment:
    """One environment and its row of the arrays."""

    def __init__(self, variant: tasks.Variant, run: Run, row: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._env, self._run, self._row = tasks.make(variant.task), run, row
        self._arrays = dict(arrays)
        self._observation_factor, self._reward_factor = variant.observation_factor, variant.reward_factor
        self._records: list[Record] = []
        self._steps = 0
        self._begin_episode()

    def reset(self, seed: int) -> None:
        observation, _ = self._env.reset(seed=seed + self._run.seed)
        self._write("observations", observation)
        self._begin_episode()

    def take_records(self) -> list[Record]:
        records, self._records = self._records, []
        return records

    def step(self) -> None:
        arrays, row = self._arrays, self._row
        action = int(arrays["actions"][row])
        if action < 0:
            arrays["ended"][row] = False
            return
        observation, reward, terminated, truncated, info = self._env.step(action)
        ended = bool(terminated or truncated)
        self._steps += 1
        self._length += 1
        self._return += float(reward)
        is_terminal = terminated or (truncated and self._run.limits_terminal)
        self._write("final", observation)
        arrays["rewards"][row] = reward * self._reward_factor
        arrays["discounts"][row] = 0.0 if is_terminal else info.get("discount", self._run.gamma)
        arrays["ended"][row] = ended
        if ended:
            real = int(info["episode"]["l"]) if "episode" in info else self._length
            self._records.append((row, self._steps, self._return, self._length, real))
            self._begin_episode()
            observation, _ = self._env.reset()
        self._write("observations", observation)

    def _begin_episode(self) -> None:
        self._return, self._length = 0.0, 0

    def _write(self, name: str, observation: Any) -> None:
        if self._observation_factor != 1:
            observation = np.asarray(observation, np.float64) * self._observation_factor
        self._arrays[name][self._row] = observation
