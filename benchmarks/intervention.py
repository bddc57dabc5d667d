"""Does human intervention pay? ``Table-v0``, with a scripted person who takes over for at most 5 % of the steps.

    python benchmarks/intervention.py [--person finishes]

Question: with a person who steers towards the dock for at most 5 % of the steps, and only when the server asks, does
the agent dock in an earlier episode? Two persons were studied, one after the other.

The service of ``bdpi serve`` runs in this process, with its default agent, journal and memory; the robot is Table-v0.
It waits while more than 8 epochs are due, so that the load of the machine does not decide how much is learned.

The server asks where uncertainty is above 0.9 (``ask_above``). Where the person does not answer, the policy acts after
0.01 seconds. A person turns towards the dock where the heading is off by more than 0.1 rad, else drives forward.

- **nudges** drives for 10 steps in a row, if these and all steps before are at most 5 % of all steps so far. Seeds 400
  to 407, each with and without the person; a run ends when it docks, driven or not, or after 100 episodes. Metric: the
  episode in which it docks; 101 where there is none. One run was made before, with seed 999 and six episodes, to see
  that the program works: neither way docked.
- **finishes** (registered when the study of the first was known, which found no effect) does not begin what cannot be
  finished: drives to the dock, once the steps that this takes fit into the episode, and with all steps before are at
  most 5 % of all steps so far. Seeds 408 to 415, each with and without the person, and the default agent of that day;
  a run ends with the first episode that docks without any step of the person, or after 100 episodes. Metric: that
  episode; 101 where there is none. Before it, 20 episodes with seed 999, twice, to see that the program works.

Rule, for each: intervention pays if the 95 % interval of the mean difference, a bootstrap over the eight pairs, is
below 0; it harms if it is above 0. Beside it, not decided on: the person's share of the steps.

Returns of episodes, their steps and those of the person go to results/serve/ as each run ends; runs that are there
already are not repeated.
"""

from __future__ import annotations

import argparse
import copy
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
SEEDS = {"nudges": range(400, 408), "finishes": range(408, 416)}
EPISODES, LIMIT, SHARE, IN_A_ROW, MOST_DUE = 100, 200, 0.05, 10, 8
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


def steps_to_the_dock(env: gym.Env[Any, Any], observation: Any) -> int:
    """How many steps the person takes from here, by trying in a copy."""
    tried, steps, docked = copy.deepcopy(env.unwrapped), 0, False
    while not docked:
        observation, _, docked, *_ = tried.step(towards_the_dock(observation))
        steps += 1
    return steps


class Person:
    """Drives when asked, as long as the budget lasts.

    :param finishes: does not begin to drive unless that suffices to dock
    """

    def __init__(self, service: Service, env: gym.Env[Any, Any], finishes: bool) -> None:
        self._service, self._env, self._finishes = service, env, finishes
        self.steps = self.left = 0

    def asked(self, observation: Any, all_steps: int, steps_left: int) -> None:
        """
        :param all_steps: so far
        :param steps_left: in this episode
        """
        needed = steps_to_the_dock(self._env, observation) if self._finishes else IN_A_ROW
        fits = needed <= steps_left or not self._finishes
        if fits and self.steps + needed <= SHARE * (all_steps + needed):
            self.left = needed

    def look(self, observation: Any) -> None:
        """Hold a button before the robot acts in a state, or let go."""
        if self.left:
            self._service.command(PersonRequest(robot="table", command="drive", action=towards_the_dock(observation)))
        else:
            self._service.command(PersonRequest(robot="table", command="release"))


def counts(value: float, by_person: int, finishes: bool) -> bool:
    """Whether an episode with this return, and so many steps of the person, is one that a run ends with."""
    return value > 0 and not (finishes and by_person)


def episodes_of(
    service: Service, env: gym.Env[Any, Any], asks: bool, finishes: bool
) -> list[tuple[float, int, int, int]]:
    """Return, steps, steps of the person, and whether the person made the last step, of each episode."""
    person, seq, found = Person(service, env, finishes), 0, []
    while len(found) < EPISODES and not any(counts(value, steps, finishes) for value, _, steps, _ in found):
        observation, _ = env.reset()
        seq = service.begin(EpisodeRequest(robot="table", seq=seq + 1)).seq
        person.left, value, steps, before = 0, 0.0, 0, person.steps
        if asks:
            person.look(observation)
        seq += 1
        answer = service.act(ActRequest(robot="table", seq=seq, observation=observation.tolist()))
        while True:
            while answer.action is None:  # asked
                person.asked(observation, service.agent.num_timesteps, LIMIT - steps)
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


def file_of(person: str, seed: int, asks: bool) -> Path:
    return RESULTS / f"Table-v0-{('asks' if person == 'nudges' else person) if asks else 'alone'}-seed{seed}.csv"


def run(job: tuple[str, int, bool]) -> None:
    """One run: which person, its seed, and whether the person is asked."""
    person, seed, asks = job
    if file_of(*job).exists():
        return
    asking = {"ask_above": 0.9, "ask_seconds": 0.01} if asks else {}
    task = RobotTask.model_validate({**TASK, "seed": seed, **asking})
    with tempfile.TemporaryDirectory() as folder, served(task, Path(folder) / "run") as service:
        found = episodes_of(service, gym.make("Table-v0"), asks, person == "finishes")
    lines = [",".join(f"{value:g}" for value in each) for each in found]
    file_of(*job).write_text("\n".join(["return,steps,person,ended_by_person", *lines, ""]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--person", choices=SEEDS, default="nudges")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    jobs = [(options.person, seed, asks) for seed in SEEDS[options.person] for asks in (True, False)]
    with multiprocessing.get_context("spawn").Pool(options.workers, maxtasksperchild=1) as pool:
        for _ in pool.imap_unordered(run, jobs, chunksize=1):
            pass
    first: dict[bool, list[int]] = {True: [], False: []}
    for person, seed, asks in jobs:
        rows = np.loadtxt(file_of(person, seed, asks), delimiter=",", skiprows=1, ndmin=2)
        docked = counts(rows[-1, 0], rows[-1, 2], person == "finishes")
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
