"""Many runs of one task, all of which make a step at the same time: environments in processes, learning on a GPU.

Each group of runs has a thread and streams of its own, so that the environments of one group are stepped while the
networks of another one are trained.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch

from scales import tasks, workers
from scales.candidates import Candidate
from scales.deploy import RULES
from scales.learning import Learning
from scales.scaling import RunScales
from scales.variants import PlainLearning

REPORT_EVERY = 60.0  # seconds
DEPLOYED_SEED = 100_000  # environments of the evaluation have other seeds than those of the training

#: task, candidate, seed, episode, steps so far, return, steps of the episode, those of them in the environment
Row = tuple[str, str, int, int, int, float, int, int]
#: task, candidate, seed, rule, episode, return, length
DeployedRow = tuple[str, str, int, str, int, float, int]


@dataclass(frozen=True)
class Settings:
    """What all groups have in common.

    :param device: where to learn
    :param sharing: how many runs share it, for the choice of kernels
    :param n_workers: processes per group; None: one for 16 runs, at most 8
    :param steps: of every task, None: as many as the task says
    :param deadline: until when to train, in seconds of ``time.monotonic``
    :param deploy: episodes per rule after training
    :param deploy_seconds: until when, after the training
    :param plain: PyTorch trains all critics, also those that the kernels could
    """

    device: torch.device
    sharing: int
    n_workers: int | None = None
    steps: int | None = None
    deadline: float = float("inf")
    deploy: int = 0
    deploy_seconds: float = 120.0
    plain: bool = False


def is_milestone(count: int, batch_size: int) -> bool:
    """Whether scales are estimated again after so many transitions: one batch, twice as many, and so on."""
    factor, rest = divmod(count, batch_size)
    return rest == 0 and factor > 0 and factor & (factor - 1) == 0


class Group:
    """Runs of one task whose networks have the same sizes.

    :param name: for people; the random numbers of the group follow from it
    :param variant: the task
    :param runs: candidate and seed of each
    :param settings: of the program
    """

    def __init__(
        self, name: str, variant: tasks.Variant, runs: Sequence[tuple[Candidate, int]], settings: Settings
    ) -> None:
        self.name, self.variant, self.runs, self._settings = name, variant, list(runs), settings
        candidates, seeds = [candidate for candidate, _ in runs], [seed for _, seed in runs]
        self.goal = settings.steps or variant.task.steps
        self.steps, self.failure, self.diverged = 0, "", 0
        #: of the first epoch, and of the last step; kernels are compiled before
        self.began, self.ended, self.untimed_steps = 0.0, 0.0, 0
        self.is_ended, self._is_recorded = False, False
        space, hidden = tasks.space_of(variant), candidates[0].hidden or variant.task.hidden
        device, sharing = settings.device, settings.sharing
        kind = PlainLearning if settings.plain or candidates[0].is_plain else Learning
        self.learning = kind(space, candidates, seeds, hidden, self.goal, device, sharing, name)
        self._scales = RunScales(candidates, space, self.goal)
        who = [workers.Run(seed, each.gamma, each.limits_terminal) for each, seed in runs]
        n_workers = settings.n_workers or min(8, -(-len(who) // 16))
        self._environments = workers.Environments(variant, space, who, n_workers)
        self._episodes = np.zeros(len(runs), np.int64)

    @property
    def milliseconds(self) -> float:
        """Per step of all runs, since they learn."""
        timed = self.steps - self.untimed_steps
        return 1000 * (self.ended - self.began) / timed if timed > 0 and self.began else float("nan")

    def run(
        self,
        stop: threading.Event,
        write: Callable[[list[Row]], None],
        write_deployed: Callable[[list[DeployedRow]], None],
    ) -> None:
        """Train until the end, in this thread; an exception is kept as ``failure``, and stops all."""
        try:
            with torch.no_grad():
                self._train(stop, write)
                self._record(write)
                if self._settings.deploy and not stop.is_set():
                    self._deploy(stop, write_deployed)
        except BaseException:
            self.failure = traceback.format_exc()
            stop.set()
        finally:
            self._end(write)

    def _train(self, stop: threading.Event, write: Callable[[list[Row]], None]) -> None:
        learning, environments = self.learning, self._environments
        learning.allocate()
        learning.set_scales(self._scales.packed())
        seen = environments.reset(0)["observations"].copy()
        with learning.work():
            learning.look(seen)
            learning.act()
        actions = learning.wait()
        reported = time.monotonic()
        while self.steps < self.goal and not stop.is_set():
            arrays = environments.step(actions)
            self._learn(seen, arrays)
            seen[:] = arrays["observations"]
            actions = learning.wait()
            self.steps, self.ended = self.steps + 1, time.monotonic()
            if not self.began and learning.epochs:
                self.began, self.untimed_steps = self.ended, self.steps
            if self.ended > self._settings.deadline:
                break
            if self.ended - reported > REPORT_EVERY:
                reported = self.ended
                write(self._rows(environments.records()))

    def _learn(self, seen: Any, arrays: dict[str, Any]) -> None:
        """Start what follows a step of the environments: memory, scales, an epoch, the next actions."""
        learning, count = self.learning, self.learning.added + 1
        surprised: Iterable[int] = self._scales.add(arrays)
        if is_milestone(count, learning.batch_size):
            changes = self._scales.estimate(range(len(self.runs)))
        else:
            changes = self._scales.estimate(surprised if count > learning.batch_size else ())
        if changes:
            learning.set_scales(self._scales.packed())
        with learning.work():
            learning.store(seen, arrays)
            learning.rescale(changes)
            learning.epoch()
            learning.act()

    def _deploy(self, stop: threading.Event, write: Callable[[list[DeployedRow]], None]) -> None:
        """Evaluate without learning, by every rule, in the same episodes."""
        learning, environments, wanted = self.learning, self._environments, self._settings.deploy
        deadline = time.monotonic() + self._settings.deploy_seconds
        for rule in RULES:
            seen = environments.reset(DEPLOYED_SEED)["observations"]
            finished = np.zeros(len(self.runs), np.int64)
            while finished.min() < wanted and time.monotonic() < deadline and not stop.is_set():
                with learning.work():
                    learning.look(seen)
                    learning.choose(rule)
                actions = np.where(finished < wanted, learning.wait(), -1)
                arrays = environments.step(actions)
                seen = arrays["observations"]
                finished += arrays["ended"]
            rows: list[DeployedRow] = []
            episodes = np.zeros(len(self.runs), np.int64)
            for run, _, value, length, _ in environments.records():
                candidate, seed = self.runs[run]
                rows.append((self.variant.name, candidate.name, seed, rule, int(episodes[run]), value, length))
                episodes[run] += 1
            write(rows)

    def _record(self, write: Callable[[list[Row]], None]) -> None:
        write(self._rows(self._environments.records()))
        self._is_recorded = True

    def _rows(self, records: Iterable[workers.Record]) -> list[Row]:
        rows = []
        for run, steps, value, length, real in records:
            candidate, seed = self.runs[run]
            episode = int(self._episodes[run])
            rows.append((self.variant.name, candidate.name, seed, episode, steps, value, length, real))
            self._episodes[run] += 1
        return rows

    def _end(self, write: Callable[[list[Row]], None]) -> None:
        """Write what was recorded, whatever has happened, and end the processes."""
        try:
            if not self._is_recorded:
                self._record(write)
            with torch.no_grad():
                self.diverged = int(self.learning.diverged().sum())
        except BaseException:
            self.failure = self.failure or traceback.format_exc()
        finally:
            self._environments.close()
            self.is_ended = True


def groups_of(
    names: Sequence[str], candidates: Sequence[tuple[str, Candidate]], seeds: Sequence[int], parts: int
) -> list[tuple[str, tasks.Variant, list[tuple[Candidate, int]]]]:
    """Name, task and runs of each group.

    :param candidates: each with the tasks that it is for, as a pattern
    :param parts: in so many groups runs are divided that could be in one
    """
    found: dict[tuple[Any, ...], list[tuple[Candidate, int]]] = {}
    for name in names:
        for number, run in enumerate(
            (each, seed) for only, each in candidates if fnmatchcase(name, only) for seed in seeds
        ):
            found.setdefault((name, run[0].shape, number % parts), []).append(run)
    result = []
    for (name, shape, part), runs in found.items():
        label = name + "".join(f"/{item}" for item in shape if item is not None) + f"/{part}"
        result.append((label, tasks.find(name), runs))
    return result
