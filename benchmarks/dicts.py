"""What a step costs with a Dict of vectors, beside the same numbers in a Box: ``python benchmarks/dicts.py``.

The environments are the same but for the form of what they observe. Agents have one thread and take turns. Prints the
median processor time per step in milliseconds, environment, epoch and all.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from bdpi import BDPI

PARTS = {"position": 3, "velocity": 3, "goal": 2}
N = sum(PARTS.values())
ROUNDS, STEPS = 9, 20


class Numbers(gym.Env):
    """Random numbers, in one form or the other."""

    action_space = spaces.Discrete(4)

    def __init__(self, as_dict: bool) -> None:
        self.as_dict = as_dict
        boxes = {key: spaces.Box(-1, 1, (size,), np.float32) for key, size in PARTS.items()}
        self.observation_space = spaces.Dict(boxes) if as_dict else spaces.Box(-1, 1, (N,), np.float32)
        self.rng, self.steps = np.random.default_rng(0), 0

    def _seen(self) -> Any:
        row = self.rng.uniform(-1, 1, N).astype(np.float32)
        if not self.as_dict:
            return row
        ends = np.cumsum(list(PARTS.values()))[:-1]
        return dict(zip(PARTS, np.split(row, ends), strict=True))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._seen(), float(action == 1), self.steps % 50 == 0, False, {}


def main() -> None:
    torch.set_num_threads(1)
    agents = {
        "Box, native": BDPI("MlpPolicy", Numbers(False), seed=0, n_threads=1),
        "Dict, native": BDPI("MultiInputPolicy", Numbers(True), seed=0, n_threads=1),
        "Dict, PyTorch": BDPI("MultiInputPolicy", Numbers(True), seed=0, learner="torch"),
    }
    times: dict[str, list[float]] = {name: [] for name in agents}
    for agent in agents.values():
        agent.learn(257)
    for number in range(ROUNDS):
        for name, agent in agents.items():
            if agent.learner_name == "torch" and number >= 2:
                continue
            steps = STEPS if agent.learner_name == "native" else 1
            start = time.process_time()
            agent.learn(steps, reset_num_timesteps=False)
            times[name].append(1000 * (time.process_time() - start) / steps)
    for name, each in times.items():
        print(f"{name:14} {statistics.median(each):8.2f} ms per step")


if __name__ == "__main__":
    main()
