"""Power failures, kills and an hour at 50 Hz: what holds, in numbers, in results/robust/.

    python benchmarks/robust.py power
    python benchmarks/robust.py kills
    python benchmarks/robust.py soak --minutes 60

``power``: records what programs write, and lets the power fail at 2,000 moments of each, under three models of a file
system; see tests/crash. ``kills``: kills robots, runs and studies 1,000 times in all. ``soak``: a loop acts in
CartPole at 50 Hz while the agent learns in the background, writes its journal and saves itself every minute; once a
minute, a row is appended to the table.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

PERIOD = 0.02  # seconds
sys.path.append(str(Path(__file__).parents[1] / "tests" / "crash"))
RESULTS = Path(__file__).parents[1] / "results" / "robust"
COLUMNS = [
    *("minute", "resident_mb", "threads", "descriptors", "act_ms_median", "act_ms_99", "act_ms_99.9", "act_ms_worst"),
    *("observe_ms_99", "observe_ms_worst", "late", "transitions", "epochs", "epochs_due", "journal_mb", "load"),
]


def power(names: list[str], n: int, out: Path, work: Path) -> bool:
    """Whether nothing is lost or refused.

    :param names: of scenarios; all if empty
    :param n: states of each
    :param out: the table, in which their rows are replaced
    """
    from scenarios import SCENARIOS

    from disk import MODELS, fail, record

    _begin(out, "scenario,model,states,different,lost,refused,seconds", names)
    sound = True
    for name, (_, check, _, rounds) in SCENARIOS.items():
        if names and name not in names:
            continue
        folder = work / name
        folder.mkdir()
        records = record(name, rounds, folder / "root", folder)
        for model in MODELS:
            began = time.monotonic()
            tally = fail(records, folder / "root", model, folder, -(-n // len(MODELS)), check)
            counts = [tally.states, tally.different, len(tally.lost), len(tally.refused)]
            _append(out, [name, model, *counts, f"{time.monotonic() - began:.0f}"])
            for problem in (*tally.lost, *tally.refused):
                sound = False
                print(name, problem, flush=True)
    return sound


def kills(names: list[str], n: int, out: Path, work: Path) -> bool:
    """Whether nothing is lost, different or refused.

    :param names: of programs; all if empty
    :param n: kills in all
    :param out: the table, in which their rows are replaced
    """
    from kills import KILLS, killed

    _begin(out, "program,kills,transitions,lost,different,refused,seconds", names)
    sound = True
    for name, (_, share) in KILLS.items():
        if names and name not in names:
            continue
        folder = work / name.replace(" ", "-")
        folder.mkdir()
        began = time.monotonic()
        found = killed(name, max(1, round(share * n)), folder)
        counts = [found["kills"], found["transitions"], found["lost"], found["different"], len(found["refused"])]
        _append(out, [name, *counts, f"{time.monotonic() - began:.0f}"])
        sound = sound and not any(counts[2:])
        print(*found["refused"], sep="\n", end="", flush=True)
    return sound


def _begin(out: Path, header: str, names: list[str]) -> None:
    """A table without the rows of these; without any, if there are none."""
    kept = out.read_text().splitlines()[1:] if names and out.exists() else []
    kept = [row for row in kept if next(csv.reader([row]))[0] not in names]
    out.write_text("".join(f"{line}\n" for line in (header, *kept)))


def _append(out: Path, row: list[object]) -> None:
    with out.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow(row)


def resident_mb() -> float:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(minutes: int, n_critics: int, out: Path, folder: Path) -> None:
    """:param out: the table, which is begun anew"""
    import gymnasium as gym
    import numpy as np

    from bdpi import BDPI
    from bdpi.agents.journal import Journal

    warnings.filterwarnings("error", message="autosave")  # to which the robot would go on
    env = gym.make("CartPole-v1")
    journal = folder / "robot.sqlite"
    files = {"journal": journal, "autosave": folder / "robot.zip", "autosave_minutes": 1.0}
    agent = BDPI("MlpPolicy", env, seed=0, n_threads=1, n_critics=n_critics, **files)
    observation, _ = env.reset(seed=0)
    agent.start_learning()
    out.write_text(",".join(COLUMNS) + "\n")
    acting, observing, late = [], [], 0
    began = tick = time.perf_counter()
    for minute in range(1, minutes + 1):
        while tick < began + 60 * minute:
            tick += PERIOD
            ahead = tick - time.perf_counter()
            time.sleep(max(0.0, ahead))
            late += ahead < 0
            before = time.perf_counter()
            action = agent.act(observation)
            acting.append(time.perf_counter() - before)
            following, reward, terminated, truncated, _ = env.step(action)
            before = time.perf_counter()
            agent.observe(observation, action, reward, following, terminated, truncated)
            observing.append(time.perf_counter() - before)
            observation = env.reset()[0] if terminated or truncated else following
        act, observe = 1000 * np.array(acting), 1000 * np.array(observing)
        size = sum(file.stat().st_size for file in folder.glob("robot.sqlite*")) / 2**20
        quantiles = [*np.quantile(act, (0.5, 0.99, 0.999)), act.max(), np.quantile(observe, 0.99), observe.max()]
        row = [minute, f"{resident_mb():.1f}", len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))]
        row += [f"{value:.3f}" for value in quantiles]
        row += [late, agent.num_timesteps, agent._n_updates, agent.epochs_due]
        row += [f"{size:.1f}", f"{os.getloadavg()[0]:.1f}"]
        _append(out, row)
        acting, observing, late = [], [], 0
    agent.stop_learning()
    steps = agent.num_timesteps
    agent.close_journal()
    with Journal(journal, read_only=True) as written:
        assert len(written) == steps, f"{len(written)} transitions are in the journal, {steps} were observed"
    loaded = BDPI.load(folder / "robot.zip", env=env, journal=journal)
    assert loaded.num_timesteps == steps, "the agent that was saved does not come back with all that was observed"
    assert threading.active_count() == 1
    print(f"{minutes} minutes, {n_critics} critics: {steps} transitions, all of them in the journal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("power", help="power failures")
    command.add_argument("names", nargs="*", metavar="SCENARIO", help="only this one")
    command.add_argument("--states", type=int, default=2000, help="of each scenario")
    command = commands.add_parser("kills", help="kill -9")
    command.add_argument("names", nargs="*", metavar="PROGRAM", help="only this one")
    command.add_argument("--kills", type=int, default=1000, help="of all programs together")
    command = commands.add_parser("soak", help="act at 50 Hz, and learn, write and save meanwhile")
    command.add_argument("--minutes", type=int, default=60)
    command.add_argument("--critics", type=int, default=16)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the tables")
    arguments = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "BDPI_NUM_THREADS"):
        os.environ[name] = "1"
    with tempfile.TemporaryDirectory() as folder:
        if arguments.command == "soak":
            soak(arguments.minutes, arguments.critics, arguments.out / "soak.csv", Path(folder))
        elif arguments.command == "kills":
            sys.exit(not kills(arguments.names, arguments.kills, arguments.out / "kills.csv", Path(folder)))
        else:
            sys.exit(not power(arguments.names, arguments.states, arguments.out / "power-failures.csv", Path(folder)))


if __name__ == "__main__":
    main()
