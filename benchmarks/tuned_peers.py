"""How well tuned peers learn: algorithms of Stable-Baselines3 and sb3-contrib with the RL Zoo's hyper-parameters.

    python benchmarks/tuned_peers.py --workers 8 --minutes 60
    python benchmarks/tuned_peers.py --only CartPole-v1/dqn "Table-v0/*" --seeds 100-103

tuned_peers.yaml has the parameters, peer_runs.py what one run does. Every run (task, peer, seed) is a process of its
own with one thread. The episodes of finished runs are appended to a compressed CSV, and what is finished is in a JSON
file beside it. Runs that are stopped, by --minutes or Ctrl-C, start over the next time; finished ones are skipped. All
peers of all tasks get a seed before the next seed begins. Runs that take longer than the time left, by what earlier
seeds took, are not begun.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from peer_runs import TABLE, Entry, Episode, load_table, software, train
from peer_store import Key, Store

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "benchmark" / "peers" / "episodes.csv.gz"


@dataclass(frozen=True)
class Run:
    """One that is going on in another process."""

    key: Key
    process: Any
    connection: Connection
    started: float


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="TASK/PEER", help="patterns with * are allowed")
    parser.add_argument("--seeds", default="100-115", help="as 100-115, or 100,102 (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="runs at a time (default: all cores)")
    parser.add_argument("--minutes", type=float, default=None, help="stop after this time (default: when finished)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="a .csv.gz file (default: %(default)s)")
    parser.add_argument("--table", type=Path, default=TABLE, help="of tasks and peers (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        table = load_table(options.table)
        queue = [
            (entry.task, entry.peer, seed) for seed in seeds(options.seeds) for entry in chosen(table, options.only)
        ]
    except ValueError as error:
        parser.error(str(error))
    if options.workers < 1:
        parser.error(f"--workers must be at least 1, got {options.workers}")
    entries = {(entry.task, entry.peer): entry for entry in table}
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    with Store.open(options.out, entries, software()) as store:
        todo = [key for key in queue if key not in store.finished]
        print(f"{len(queue)} runs, {len(queue) - len(todo)} of them finished before", flush=True)
        failures = work(todo, entries, store, options.workers, deadline)
        left = [key for key in queue if key not in store.finished]
        print(f"{len(queue) - len(left)} of {len(queue)} runs are finished: {options.out}")
    for key, message in failures.items():
        print(f"failed: {'/'.join(map(str, key))}: {message}", file=sys.stderr)
    return 1 if failures else 0


def chosen(table: list[Entry], patterns: list[str]) -> list[Entry]:
    """:raises ValueError: for a pattern that nothing matches."""
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(entry.name, pattern) for entry in table):
            raise ValueError(f"--only {pattern} names nothing; there are {', '.join(entry.name for entry in table)}")
    return [entry for entry in table if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in patterns)]


def seeds(text: str) -> list[int]:
    """``100-102,107`` is 100, 101, 102 and 107."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
            raise ValueError(f"--seeds {text} is no list of seeds: write 100-115, or 100,102")
        found += range(int(first), int(last or first) + 1)
    return found


def work(
    todo: list[Key], entries: dict[tuple[str, str], Entry], store: Store, workers: int, deadline: float | None
) -> dict[Key, str]:
    """Do runs until all are finished, the time is over, or Ctrl-C is pressed. Returns those that failed, and why."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # for the processes that are started here
    queue, failures = list(todo), {}
    n_ended = 0
    running: list[Run] = []
    with stopping_all(running):
        while queue or running:
            left = float("inf") if deadline is None else deadline - time.monotonic()
            if left <= 0:
                print(f"The time is over: {len(running)} unfinished runs are dropped", flush=True)
                break
            while len(running) < workers and (key := next_that_fits(queue, store, left)) is not None:
                queue.remove(key)
                running.append(start(key, entries[key[:2]]))
            if not running:
                print("The time left is too short for every other run", flush=True)
                break
            for connection in wait([run.connection for run in running], timeout=min(left, 5.0)):
                run = next(run for run in running if run.connection is connection)
                running.remove(run)
                seconds = time.monotonic() - run.started
                episodes = received(run)
                n_ended += 1
                where = f"[{n_ended}/{len(todo)}] {run.key[0]} {run.key[1]} seed {run.key[2]}"
                if isinstance(episodes, str):
                    failures[run.key] = episodes
                    print(f"{where}: FAILED after {seconds:.0f} s: {episodes}", flush=True)
                else:
                    store.add(run.key, episodes, seconds)
                    print(f"{where}: {summary(episodes)}, {seconds:.0f} s", flush=True)
    return failures


def next_that_fits(queue: list[Key], store: Store, left: float) -> Key | None:
    """The first run that can end in the seconds that are left, as far as is known."""
    return next((key for key in queue if store.longest(key) <= left), None)


def start(key: Key, entry: Entry) -> Run:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=in_process, args=(theirs, entry, key[2]), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process is the end of the connection
    return Run(key, process, mine, time.monotonic())


def in_process(connection: Connection, entry: Entry, seed: int) -> None:
    """One run, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that has started this one
    try:
        import torch

        torch.set_num_threads(1)
        result: list[Episode] | str = train(entry, seed, parent=os.getppid())
    except Exception as error:  # algorithms and environments are foreign code
        result = f"{type(error).__name__}: {error}"
    connection.send(result)


def received(run: Run) -> list[Episode] | str:
    """The episodes of a run that has ended, or what went wrong."""
    try:
        result: list[Episode] | str = run.connection.recv()
    except EOFError:
        run.process.join()
        return f"the process ended with exit code {run.process.exitcode}"
    run.process.join()
    return result


def summary(episodes: list[Episode]) -> str:
    if not episodes:
        return "no episode"
    last = [episode.episode_return for episode in episodes[-20:]]
    return f"{len(episodes)} episodes, mean return of the last {len(last)}: {sum(last) / len(last):.1f}"


@contextmanager
def stopping_all(running: list[Run]) -> Iterator[None]:
    """At the end, and on Ctrl-C or SIGTERM, the processes that still run are ended."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nStopped: {len(running)} unfinished runs are dropped, the same command goes on", flush=True)
    finally:
        signal.signal(signal.SIGTERM, before)
        for run in running:
            run.process.terminate()
        for run in running:
            run.process.join()


if __name__ == "__main__":
    sys.exit(main())
