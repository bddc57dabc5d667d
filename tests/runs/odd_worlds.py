"""Environments that misbehave, for `bdpi train odd_worlds:…`."""

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.toy_text import frozen_lake
from gymnasium.wrappers import FrameStackObservation


class Counting(gym.Env[Any, Any]):
    """Observes the number of steps; an episode has five of them, each rewarded with 1. It cannot be drawn."""

    metadata = {"render_modes": []}  # noqa: RUF012
    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.total = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.total += 1
        self.steps += 1
        return self._observe(), 1.0, self.steps == 5, False, {}

    def _observe(self) -> Any:
        return np.array([self.steps], np.float32)


class NotANumber(Counting):
    """In the fourth episode, a sensor breaks."""

    def _observe(self) -> Any:
        return np.array([np.nan if self.total == 18 else self.steps], np.float32)


class LastRewardNotANumber(Counting):
    """The reward that ends the fourth episode is no number, and Monitor has already written it down."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, float("nan") if self.total == 20 else reward, terminated, truncated, info


class Endless(Counting):
    """The first episode does not end, and steps take a while."""

    def step(self, action: Any) -> Any:
        time.sleep(0.01)
        return self._observe(), 0.0, False, False, {}


class Stuck(Counting):
    """The first step never returns; it says so."""

    def step(self, action: Any) -> Any:
        print("stuck", flush=True)
        while True:
            time.sleep(60)


class Exiting(Counting):
    """In the fourth episode, it ends the process that it is in, or tries to."""

    def step(self, action: Any) -> Any:
        if self.total == 17:
            sys.exit(3)
        return super().step(action)


class Broken(Counting):
    """Cannot be made."""

    def __init__(self) -> None:
        raise KeyError("the robot\ndoes not answer")


class Continuous(Counting):
    """Has actions that BDPI cannot choose from."""

    action_space = gym.spaces.Box(-np.inf, np.inf, (2,))


class Steered(Counting):
    """Has continuous actions between bounds; an episode is truncated."""

    action_space = gym.spaces.Box(-1.0, 1.0, (2,))

    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, False, terminated, info


class Levers(Counting):
    """Has two levers with three positions each, and can be brought back to the middle of an episode."""

    action_space = gym.spaces.MultiDiscrete([3, 3])
    retraceable = True


class Right(Counting):
    """Action 1 is rewarded with 1."""

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(action), terminated, truncated, info


class Blind(Right):
    """The second of two sensors is stuck."""

    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)

    def _observe(self) -> Any:
        return np.array([self.steps, 0.5], np.float32)


class Forever(Right):
    """No episode ends."""

    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, False, info


class Jagged(Right):
    """Observations have another shape than they should."""

    def _observe(self) -> Any:
        return np.zeros(3, np.float32)


class Masked(Right):
    """Action 1 is not allowed, and ends the episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options)[0], {"action_mask": np.array([1, 0], np.int8)}

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated or action == 1, truncated, {"action_mask": np.array([1, 0], np.int8)}


class Pictures(Counting):
    """The number of steps as a grey picture."""

    observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)

    def _observe(self) -> Any:
        return np.full((36, 36, 1), 40 * self.steps, np.uint8)


class SlowPictures(Pictures):
    """Steps take a while."""

    def step(self, action: Any) -> Any:
        time.sleep(0.005)
        return super().step(action)


class Several(Counting):
    """The number of steps and its parity."""

    observation_space = gym.spaces.Dict({"count": Counting.observation_space, "odd": gym.spaces.Discrete(2)})

    def _observe(self) -> Any:
        return {"count": np.array([self.steps], np.float32), "odd": self.steps % 2}


class GatedLake(frozen_lake.FrozenLakeEnv):
    """A lake of which a process begins four episodes, and no more while a file is there."""

    retraceable = True
    free, begun = 4, 0

    def __init__(self, gate: str = "gate") -> None:
        super().__init__()
        self.gate = Path(gate)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        type(self).begun += 1
        while self.begun > self.free and self.gate.exists():
            time.sleep(0.01)
        return super().reset(seed=seed, options=options)


class SecondGatedLake(GatedLake):
    """Which the first run of twelve episodes passes, and not the second one."""

    free = 15


WORLDS = [world for world in vars().values() if isinstance(world, type) and issubclass(world, gym.Env)]
for world in WORLDS:
    if f"{world.__name__}-v0" not in gym.registry:
        gym.register(f"{world.__name__}-v0", entry_point=world)
if "Stacked-v0" not in gym.registry:
    gym.register("Stacked-v0", entry_point=lambda: FrameStackObservation(gym.make("CartPole-v1").unwrapped, 3))
if "LambdaPictures-v0" not in gym.registry:
    gym.register("LambdaPictures-v0", entry_point=lambda: Pictures())
