"""The way of a transition through an agent: how many of this package's functions ``learn`` calls per step on CartPole,
in how many files, and what a step costs beside the learner's epoch and the environment.

    python benchmarks/transition.py
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

import bdpi

ROOT = Path(bdpi.__file__).parent
BEFORE, STEPS, ROUNDS = 400, 1000, 8  # agents look at themselves every 1000 epochs


class Calls(BaseCallback):
    """Lists this package's functions that are called between two steps, outside of the learner's epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[tuple[str, str]]] = []
        self._in_epoch = False

    def _on_step(self) -> bool:
        sys.setprofile(self._note)
        self.steps.append([])
        return True

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if not file.startswith(str(ROOT)):
            return
        if name.endswith("Learner.epoch"):
            self._in_epoch = event == "call" or (self._in_epoch and event != "return")
        elif event == "call" and not self._in_epoch and not name.endswith(">"):
            self.steps[-1].append((str(Path(file).relative_to(ROOT)), name))


def calls_of_a_step() -> list[tuple[str, str]]:
    """Of a step that ends no episode, and at which nothing is estimated or diagnosed."""
    agent = bdpi.BDPI("MlpPolicy", "CartPole-v1", seed=1, device="cpu")
    calls = Calls()
    try:
        agent.learn(BEFORE, calls)
    finally:
        sys.setprofile(None)
    return min(calls.steps[-100:-1], key=len)


def overhead(agent: OffPolicyAlgorithm, learner: Any, epoch: str) -> float:
    """Milliseconds per step that are spent neither in the learner's epoch nor in the environment."""
    agent.learn(BEFORE)
    elsewhere = [0.0]

    def timed(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                elsewhere[0] += time.thread_time() - start

        setattr(owner, name, call)

    timed(learner, epoch)
    timed(agent.get_env(), "step")
    found = []
    for _ in range(ROUNDS):
        elsewhere[0], start = 0.0, time.thread_time()
        agent.learn(STEPS, reset_num_timesteps=False, log_interval=None)
        found.append((time.thread_time() - start - elsewhere[0]) / STEPS)
    return 1000 * min(found)


def main() -> None:
    """Print both, and the cost of a step of DQN as a yardstick."""
    warnings.simplefilter("ignore")
    calls = calls_of_a_step()
    if "--list" in sys.argv:
        print("\n".join(f"  {file:30} {name}" for file, name in calls))
    files = {file for file, _ in calls}
    print(f"A step calls {len(calls)} functions of bdpi in {len(files)} files, and then the learner's epoch.")
    settings: dict[str, Any] = {"seed": 1, "device": "cpu"}
    agent = bdpi.BDPI("MlpPolicy", "CartPole-v1", n_threads=1, critic_iterations=1, fit_steps=1, **settings)
    took = overhead(agent, agent.agent_learner.learner, "epoch")
    print(f"Beside the epoch and the environment, it takes {took:.3f} ms.")
    peer = DQN("MlpPolicy", "CartPole-v1", learning_starts=0, train_freq=1, **settings)
    print(f"A step of SB3's DQN takes {overhead(peer, peer, 'train'):.3f} ms beside train, which draws its batch, too.")


if __name__ == "__main__":
    main()
