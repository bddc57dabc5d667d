"""Does human intervention pay? ``Table-v0``, with a scripted person who takes over for at most 5 % of the steps.

    python benchmarks/intervention.py

Question: with a person who steers towards the dock for at most 5 % of the steps, and only when the server asks, does
the agent dock in an earlier episode?

The service of ``bdpi serve`` runs in this process, with its default agent, journal and memory; the robot is Table-v0.
It waits while more than 8 epochs are due, so that the load of the machine does not decide how much is learned.

- The server asks where uncertainty is above 0.9 (``ask_above``). The person then drives for 10 steps in a row, if these
  and all their steps before are at most 5 % of all steps so far; otherwise there is no answer, and after 0.01 seconds
  the policy acts.
- The person turns towards the dock where the heading is off by more than 0.1 rad, and drives forward otherwise.
- Seeds 400 to 407, each with and without the person. A run ends when it docks, or after 100 episodes. One
  run was made before, with seed 999 and six episodes, to see that the program works: neither way docked.
- Metric: the first episode that docks, whoever drives; 101 where there is none.
- Rule: intervention pays if the 95 % interval of the mean difference, a bootstrap over the eight pairs, is below 0; it
  harms if it is above 0.
- Beside it, not decided on: the person's share of the steps, and whether it was the policy that docked.

Returns of episodes, their steps and those of the person go to results/serve/ as each run ends; runs that are there
already are not repeated.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import bdpi  # noqa: F401  # registers Table-v0
from bdpi.envs.table import FORWARD, TURN_LEFT, TURN_RIGHT
from bdpi.report.statistics import bootstrap_mean
from bdpi.serve.protocol import ActRequest, EpisodeRequest, PersonRequest, StepRequest
from bdpi.serve.run import served
from bdpi.serve.service import Service
from bdpi.serve.task import RobotTask

RESULTS = Path(__file__).resolve().parents[1] / "results" / "serve"
SEEDS, EPISODES, SHARE, IN_A_ROW, MOST_DUE = range(400, 408), 100, 0.05, 10, 8
TASK: dict[str, Any] = {
    "name": "table",
    "observations": [
        {"name": "x", "low": 0, "high": 1},
        {"name": "y", "low": 0, "high": 1},
        {"name": "heading", "low": -math.pi, "high": math.pi},
    ],
    "actions": ["forward", "left", "right"],
    # The service's thread learns, and one core is a run's.
    "hyperparameters": {"n_threads": 1},
}


def towards_the_dock(observation: Any) -> int:
    """What the person does."""
    x, y, heading = observation
    off = math.remainder(math.atan2(0.5 - y, 0.5 - x) - heading, math.tau)
    return TURN_LEFT if off > 0.1 else TURN_RIGHT if off < -0.1 else FORWARD


class Person:
    """Drives when asked, as long as the budget lasts."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.steps = self.left = 0

    def asked(self, all_steps: int) -> None:
        if self.steps + IN_A_ROW <= SHARE * (all_steps + IN_A_ROW):
            self.left = IN_A_ROW

    def look(self, observation: Any) -> None:
        """Hold a button before the robot acts in a state, or let go."""
        if self.left:
            self._service.command(PersonRequest(robot="table", command="drive", action=towards_the_dock(observation)))
        else:
            self._service.command(PersonRequest(robot="table", command="release"))


def episodes_of(service: Service, env: gym.Env[Any, Any], asks: bool) -> list[tuple[float, int, int, int]]:
    """Return, steps, steps of the person, and whether the person made the last step, of each episode."""
    person, seq, found = Person(service), 0, []
    while len(found) < EPISODES and not any(value > 0 for value, *_ in found):
        observation, _ = env.reset()
        seq = service.begin(EpisodeRequest(robot="table", seq=seq + 1)).seq
        person.left, value, steps, before = 0, 0.0, 0, person.steps
        if asks:
            person.look(observation)
        seq += 1
        answer = service.act(ActRequest(robot="table", seq=seq, observation=observation.tolist()))
        while True:
            while answer.action is None:  # asked
                person.asked(service.agent.num_timesteps)
                person.look(observation)
                time.sleep(0.002)
                seq += 1
                answer = service.act(ActRequest(robot="table", seq=seq, observation=observation.tolist()))
            by_person = answer.status == "person"
            if by_person:
                person.steps, person.left = person.steps + 1, person.left - 1
            observation, reward, terminated, truncated, _ = env.step(answer.action)
            value, steps = value + float(reward), steps + 1
            while service.agent.epochs_due > MOST_DUE:
                time.sleep(0.001)
            if asks:
                person.look(observation)
            seq += 1
            answer = service.step(
                StepRequest(
                    robot="table",
                    seq=seq,
                    executed_action=answer.action,
                    reward=float(reward),
                    next_observation=observation.tolist(),
                    terminated=terminated,
                    truncated=truncated,
                )
            )
            if terminated or truncated:
                break
        found.append((value, steps, person.steps - before, int(by_person)))
    return found


def file_of(seed: int, asks: bool) -> Path:
    return RESULTS / f"Table-v0-{'asks' if asks else 'alone'}-seed{seed}.csv"


def run(job: tuple[int, bool]) -> None:
    """One run: its seed, and whether the person is asked."""
    seed, asks = job
    if file_of(*job).exists():
        return
    asking = {"ask_above": 0.9, "ask_seconds": 0.01} if asks else {}
    task = RobotTask.model_validate({**TASK, "seed": seed, **asking})
    with tempfile.TemporaryDirectory() as folder, served(task, Path(folder) / "run") as service:
        found = episodes_of(service, gym.make("Table-v0"), asks)
    lines = [",".join(f"{value:g}" for value in each) for each in found]
    file_of(*job).write_text("\n".join(["return,steps,person,ended_by_person", *lines, ""]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    workers = parser.parse_args().workers
    RESULTS.mkdir(parents=True, exist_ok=True)
    jobs = [(seed, asks) for seed in SEEDS for asks in (True, False)]
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=1) as pool:
        for _ in pool.imap_unordered(run, jobs, chunksize=1):
            pass
    first: dict[bool, list[int]] = {True: [], False: []}
    for seed, asks in jobs:
        rows = np.loadtxt(file_of(seed, asks), delimiter=",", skiprows=1, ndmin=2)
        docked = rows[-1, 0] > 0
        first[asks].append(len(rows) if docked else EPISODES + 1)
        who = "" if not docked else ", driven by the person" if rows[-1, 3] else ", by itself"
        share = rows[:, 2].sum() / rows[:, 1].sum()
        shown = f"docks in episode {len(rows)}{who}" if docked else f"has not docked in {len(rows)} episodes"
        print(f"seed {seed}, {'asks' if asks else 'alone'}: {shown}; the person made {share:.1%} of the steps")
    for asks in (True, False):
        name, median, mean = "asks" if asks else "alone", np.median(first[asks]), np.mean(first[asks])
        print(f"{name}: first dock in episode {median:g} (median), {mean:.1f} (mean)")
    difference = bootstrap_mean(np.array(first[True], float) - np.array(first[False], float))
    print(f"asks minus alone: {difference.value:.1f} [{difference.low:.1f}, {difference.high:.1f}] episodes")


if __name__ == "__main__":
    main()
