"""What many inputs cost: `python benchmarks/wide.py [--before OTHER.so]`, on MiniGrid, and on MinAtar if installed.

Milliseconds of processor time for an epoch of the default configuration, on one thread, with what a random policy sees.
`--before` measures another build of the native learner, too, in turns, and says how many times faster this one is.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np

MINIGRID = ("MiniGrid-Empty-8x8-v0", "MiniGrid-DoorKey-8x8-v0", "MiniGrid-GoToDoor-6x6-v0")
MINATAR = ("breakout", "asterix", "freeway", "space_invaders", "seaquest")
SMALL = {"Table": ([3, 32, 3], False), "FrozenLake": ([64, 32, 4], True), "LunarLander": ([8, 256, 4], False)}
#: all numbers change in each row, so that nothing can be skipped
DENSE = {"100 sensors": ([100, 32, 4], False)}
N, BEFORE = 4000, "BDPI_BENCHMARK_NATIVE"


def seen_by_chance(env: gym.Env) -> np.ndarray:
    """Flat observations of random actions."""
    env.action_space.seed(0)
    rows, (observation, _) = [], env.reset(seed=0)
    for _ in range(N):
        rows.append(np.ravel(observation))
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            observation, _ = env.reset()
    return np.array(rows)


def collect() -> dict[str, np.ndarray]:
    from minigrid.wrappers import FlatObsWrapper

    found = {name: seen_by_chance(FlatObsWrapper(gym.make(name))) for name in MINIGRID}
    if importlib.util.find_spec("minatar"):
        from minatar.gym import BaseEnv

        found |= {f"MinAtar {name}": seen_by_chance(BaseEnv(name)) for name in MINATAR}
    return found


def measure(seen: dict[str, np.ndarray], rounds: int) -> dict[str, float]:
    """Milliseconds per epoch, with the native learner that the environment variable names."""
    if path := os.environ.get(BEFORE):
        spec = importlib.util.spec_from_file_location("bdpi._native", path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["bdpi._native"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    from bdpi.learner import Hyperparameters, LearnerState
    from bdpi.learner.functional import flatten_parameters
    from bdpi.learner.native import NativeLearner
    from bdpi.learner.scales import Scales, scale_to_range
    from speed import perceptron, random_transitions

    times = {}
    for name in [*SMALL, *DENSE, *seen]:
        sizes, one_hot = {**SMALL, **DENSE}.get(name) or ([seen[name].shape[1], 32, 6], False)
        rng = np.random.default_rng(0)
        transitions = random_transitions([1, *sizes[1:]] if name in seen else sizes, one_hot, rng)
        if name in seen:
            rows = seen[name].astype(np.float32) if path else seen[name]
            which = rng.integers(0, len(rows) - 1, len(transitions.actions))
            transitions.observations, transitions.next_observations = rows[which], rows[which + 1]
            if rows.dtype != bool:  # as agents scale numbers, but no pictures
                transitions.scales = scale_to_range(Scales.none(sizes[0]), seen[name].astype(np.float32), True)
        critics = np.array([[flatten_parameters(perceptron(sizes)) for _ in range(2)] for _ in range(16)])
        state = LearnerState.fresh(flatten_parameters(perceptron(sizes)), critics)
        learner = NativeLearner(sizes, sizes, state, one_hot=one_hot, n_threads=1)
        each = []
        for _ in range(rounds):
            batches = rng.integers(0, len(transitions.actions), (16, 256))
            started = time.thread_time()
            learner.epoch(transitions, batches, rng.permutation(16), Hyperparameters())
            each.append(1000 * (time.thread_time() - started))
        times[name] = float(np.median(each))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another build of bdpi/_native*.so")
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each turn (default: 3)")
    parser.add_argument("--turns", type=int, default=3, help="of each build (default: 3)")
    parser.add_argument("--json", action="store_true", help="one turn, printed as JSON")
    arguments = parser.parse_args()
    seen = collect()
    if arguments.json:
        print(json.dumps(measure(seen, arguments.rounds)))
        return
    builds = {"now": "", **({"before": str(arguments.before)} if arguments.before else {})}
    turns: dict[str, list[dict[str, float]]] = {build: [] for build in builds}
    for _ in range(arguments.turns):
        for build, path in builds.items():
            command = [sys.executable, __file__, "--json", "--rounds", str(arguments.rounds)]
            answer = subprocess.run(command, env={**os.environ, BEFORE: path}, stdout=subprocess.PIPE, check=True)
            turns[build].append(json.loads(answer.stdout.splitlines()[-1]))
    for name in turns["now"][0]:
        ms = {build: float(np.median([turn[name] for turn in each])) for build, each in turns.items()}
        ratio = f"{ms['before']:9.1f} before, {ms['before'] / ms['now']:5.1f} times" if "before" in ms else ""
        print(f"{name:26} {ms['now']:8.1f} ms {ratio}")


if __name__ == "__main__":
    main()
