"""Programs that are killed (kill -9), and what must be there afterwards.

``python kills.py WHAT KILLS FOLDER`` prints a line of JSON, see :class:`Tally`. This process has imported everything;
each life of a program is a child that it forks. A child is killed at a random moment, or by ``recorder.c`` right after
it has renamed, synced or removed something for the n-th time.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from scenarios import QUICK, checkpoint_at_every_step, finish, jobs_of, learned, run_study, write_run

from bdpi import BDPI
from bdpi.agents.journal import Journal
from bdpi.envs import ControlLoop
from bdpi.runs.folder import RunFolder
from disk import compiled

SEES, DOES = spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2)
LIVES = 20  # of a robot, before another one begins with empty files
NEVER = 10**9
Task = Callable[[], object]


@dataclass
class Tally:
    """What became of programs that were killed.

    :param kills: that hit a living program
    :param transitions: that robots have said they have observed
    :param epochs: that a robot had learned when it came back, at most
    :param lost: transitions that are not in the journal afterwards
    :param different: runs that ended with other bits than one that was not killed
    :param refused: programs that could not go on, with their last words
    """

    kills: int = 0
    transitions: int = 0
    epochs: int = 0
    lost: int = 0
    different: int = 0
    refused: list[str] = field(default_factory=list)


def live(task: Task, said: Path, seconds: float | None = None, after: int = NEVER) -> tuple[list[str], int, int]:
    """A life: what it said, its exit status (negative: it was killed), and its number of operations, if it was not.

    :param seconds: after which it is killed, unless it has ended
    :param after: so many operations it is killed
    """
    said.write_bytes(b"")
    child = os.fork()
    if child == 0:
        left = ctypes.c_long.in_dll(ctypes.CDLL(None), "crash_after")
        left.value = after
        sys.stdout = sys.stderr = said.open("a", buffering=1)
        status = 1
        try:
            task()
            print("operations", after - left.value)
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)  # a child that has ended is still there until it is waited for
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    lines = said.read_text().split("\n")[:-1]
    operations = int(lines[-1].split()[1]) if status == 0 else 0
    return lines, status, operations


# -- robots -------------------------------------------------------------------------------------------------------


def robot(folder: Path, mode: str) -> None:
    """Walk to the right, for ever, and say what was observed."""
    saved, path = folder / "robot.zip", folder / "robot.sqlite"
    journal: Any = Journal(path, SEES, DOES, durable=True) if mode == "durable" else path
    files = {"journal": journal, "autosave": saved, "autosave_minutes": 0.0005}
    loop = ControlLoop(SEES, DOES)
    new = {"seed": 0, "policy_kwargs": {"net_arch": [8]}, **QUICK}
    agent = BDPI.load(saved, env=loop, **files) if saved.exists() else BDPI("MlpPolicy", loop, **files, **new)
    print("has", agent.num_timesteps, agent._n_updates)
    if mode == "background":
        agent.start_learning()
    place = 0
    while True:
        number, seen = agent.num_timesteps, np.array([place / 5, 0], np.float32)
        action = agent.act(seen)
        place = min(5, place + 1) if action else max(0, place - 1)
        following = np.array([place / 5, 0], np.float32)
        agent.observe(seen, action, float(place == 5), following, terminated=place == 5, truncated=False)
        print("observed", number, action)
        if mode != "background":
            agent.learn_once()
        place %= 5


def kill_robots(mode: str, kills: int, work: Path, rng: np.random.Generator) -> Tally:
    """Half of them at random moments, half after random operations."""
    tally, folder, known = Tally(), work, dict[int, int]()
    while tally.kills < kills:
        if tally.kills % LIVES == 0:
            folder, known = work / str(tally.kills), {}
            folder.mkdir()
        how: dict[str, Any] = {"seconds": float(rng.uniform(0, 0.5))}
        if tally.kills % 2:
            how = {"after": int(rng.integers(1, 60))}
        lines, status, _ = live(partial(robot, folder, mode), work / "said", **how)
        if status != -signal.SIGKILL:
            tally.refused.append("\n".join(lines[-30:]))
            return tally
        tally.kills += 1
        for line in lines:
            if line.startswith("has "):
                steps, epochs = map(int, line.split()[1:])
                tally.lost += max(0, len(known) - steps)
                tally.epochs = max(tally.epochs, epochs)
        observed = [line.split()[1:] for line in lines if line.startswith("observed ")]
        known |= {int(number): int(action) for number, action in observed}
        tally.transitions += len(observed)
        if known:
            with Journal(folder / "robot.sqlite", read_only=True) as journal:
                actions = dict(enumerate(step.action for step in journal.steps()))
            tally.lost += sum(actions.get(number) != action for number, action in known.items())
            known = actions  # what was written, but not said before it was killed, stays from now on, too
    return tally


# -- runs ---------------------------------------------------------------------------------------------------------


def train(root: Path, episodes: int) -> None:
    """What ``bdpi train`` does, and after a kill ``bdpi train --resume``."""
    path = root / "deep" / "run"
    if path.exists() and (not RunFolder(path).config.exists() or RunFolder(path).read().status.result is None):
        shutil.rmtree(path)  # it was killed before anything was saved, and says so
    if not path.exists():
        write_run(root, episodes, mark=lambda: None)
    else:
        checkpoint_at_every_step()
        finish(path)


def kill_run_at_each_operation(kills: int, work: Path, rng: np.random.Generator) -> Tally:
    """The first, then the second, and so on, each time of a new run; as many as there are."""
    tally, root = Tally(), work / "run"
    whole, last = _whole(lambda root: train(root, 1), work)
    for after in np.linspace(1, last, min(kills, last)).round().astype(int).tolist():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        for each in (after, NEVER):
            lines, status, _ = live(lambda: train(root, 1), work / "said", after=each)
            tally.kills += status == -signal.SIGKILL
        if status:
            tally.refused.append("\n".join(lines[-30:]))
        elif learned(root / "deep" / "run") != learned(whole / "deep" / "run"):
            tally.different += 1
    return tally


def kill_again_and_again(
    task: Callable[[Path], object], runs: Callable[[Path], list[Path]], longest: float
) -> Callable[[int, Path, np.random.Generator], Tally]:
    """Until it is finished, then from the beginning; at random moments and after random operations.

    :param task: what to do in a folder
    :param runs: the runs that are there in the end
    :param longest: seconds of a life
    """

    def kill(kills: int, work: Path, rng: np.random.Generator) -> Tally:
        tally, root = Tally(), work / "root"
        whole, last = _whole(task, work)
        while tally.kills < kills:
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir()
            status, life = -signal.SIGKILL, 0
            while status == -signal.SIGKILL:
                life += 1
                how: dict[str, Any] = {"seconds": float(rng.uniform(0, longest))}
                if life % 2:
                    how = {"after": int(rng.integers(1, max(2, last // 2)))}
                lines, status, _ = live(lambda: task(root), work / "said", **how)
                tally.kills += status == -signal.SIGKILL
            if status:
                tally.refused.append("\n".join(lines[-30:]))
                return tally
            tally.different += sum(learned(a) != learned(b) for a, b in zip(runs(root), runs(whole), strict=True))
        return tally

    return kill


def _whole(task: Callable[[Path], object], work: Path) -> tuple[Path, int]:
    """What is not killed, and how many operations it has."""
    whole = work / "whole"
    whole.mkdir()
    lines, status, operations = live(lambda: task(whole), work / "said")
    assert status == 0, lines
    return whole, operations


def study(root: Path) -> None:
    checkpoint_at_every_step()
    run_study(root, 2)


def runs_of_study(root: Path) -> list[Path]:
    return [job.folder for job in jobs_of(2, root)]


Killing = Callable[[int, Path, np.random.Generator], Tally]
#: What is killed, and which share of all kills it gets.
KILLS: dict[str, tuple[Killing, float]] = {
    "robot": (lambda *more: kill_robots("plain", *more), 0.12),
    "robot, background": (lambda *more: kill_robots("background", *more), 0.12),
    "robot, durable": (lambda *more: kill_robots("durable", *more), 0.12),
    "run, each operation": (kill_run_at_each_operation, 0.35),
    "run": (kill_again_and_again(lambda root: train(root, 4), lambda root: [root / "deep" / "run"], 1.5), 0.17),
    "study": (kill_again_and_again(study, runs_of_study, 2.0), 0.13),
}


def killed(what: str, kills: int, work: Path) -> dict[str, Any]:
    """A :class:`Tally`, from a process of its own that has what kills."""
    work = work.resolve()
    environment = {**os.environ, "LD_PRELOAD": str(compiled(work)), "CRASH_ROOT": str(work)}
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "BDPI_NUM_THREADS"), "1")
    command = [sys.executable, __file__, what, str(kills), str(work)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    name, number, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    print(json.dumps(asdict(KILLS[name][0](number, folder, np.random.default_rng(number)))))
