"""What lies between an environment and an agent's actor: the VecEnv wrappers whose work has to be exported, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecExtractDictObs,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)

from bdpi.agents.policies import BDPIPolicy, Network

if TYPE_CHECKING:
    from bdpi.agents import EnsembleAlgorithm

#: Name of the only input, where observations are not a Dict.
SINGLE = "observation"


@dataclass(frozen=True, eq=False)
class Normalization:
    """What ``VecNormalize`` does to observations.

    :param mean: of each number, float64
    :param deviation: its standard deviation, with ``epsilon`` in it
    :param clip: results are between -clip and clip
    """

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    clip: float

    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """A batch of normalised observations."""
        return np.clip((observations - self.mean) / self.deviation, -self.clip, self.clip).astype(np.float32)


@dataclass(frozen=True)
class ChannelsFirst:
    """What ``VecTransposeImage`` does: (height, width, channels) become (channels, height, width)."""

    def __call__(self, pictures: NDArray[Any]) -> NDArray[Any]:
        """A batch of transposed pictures."""
        return pictures.transpose(0, 3, 1, 2)


Step = Normalization | ChannelsFirst


@dataclass(frozen=True, eq=False)
class Input:
    """One input of the exported function.

    :param space: of what the environment gives
    :param steps: what wrappers do to it before the policy sees it, in this order
    """

    space: spaces.Space[Any]
    steps: tuple[Step, ...] = ()

    def seen(self, observations: NDArray[Any]) -> NDArray[Any]:
        """A batch of observations as the policy sees them."""
        for step in self.steps:
            observations = step(observations)
        return observations

    def sample(self, n: int, generator: np.random.Generator) -> NDArray[Any]:
        """A batch of ``n`` random observations of the environment."""
        space = self.space
        if isinstance(space, spaces.Discrete):
            return generator.integers(int(space.start), int(space.start + space.n), n)
        shape = (n, *(space.shape or ()))
        if isinstance(space, spaces.MultiDiscrete):
            return (generator.integers(0, space.nvec, shape) + space.start).astype(space.dtype)
        if isinstance(space, spaces.MultiBinary):
            return generator.integers(0, 2, shape).astype(space.dtype)
        assert isinstance(space, spaces.Box)
        if space.dtype.kind in "iub":
            return generator.integers(space.low, space.high, shape, endpoint=True).astype(space.dtype)
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        normalized = next((step for step in self.steps if isinstance(step, Normalization)), None)
        if normalized is not None:  # around what the agent has seen; far from it, everything is clipped
            fits = normalized.mean.shape == space.shape  # pictures may be transposed before
            mean, width = normalized.mean, 2 * normalized.deviation
            drawn = generator.normal(mean if fits else mean.mean(), width if fits else width.mean(), shape)
            return np.clip(drawn, low, high).astype(space.dtype)
        bounded = np.isfinite(low) & np.isfinite(high) & (high < 1e6) & (low > -1e6)
        uniform = generator.uniform(np.where(bounded, low, 0), np.where(bounded, high, 1), shape)
        return np.where(bounded, uniform, np.clip(generator.normal(size=shape), low, high)).astype(space.dtype)


def exportable_actor(agent: EnsembleAlgorithm) -> Network:
    """The actor of an agent.

    :raises ValueError: when there is none, or when it is more than a network behind the usual preprocessing
    """
    from bdpi.agents import EnsembleAlgorithm

    name = type(agent).__name__
    if not isinstance(agent, EnsembleAlgorithm):
        raise ValueError(f"{name} is not an agent of this package: only policies of BDPI and ActorMimic are exported")
    policy = agent.policy
    if policy.actor is None:
        raise ValueError(
            f"{name} has no actor network to export: it acts by its critics or tables. Train BDPI or ActorMimic."
        )
    for method in ("preprocess", "probabilities", "_probabilities", "_predict"):
        if getattr(type(policy), method) is not getattr(BDPIPolicy, method):
            raise ValueError(
                f"{type(policy).__name__} has a method {method} of its own, which cannot be exported: do that in the "
                "environment or in a features extractor"
            )
    if not all(bool(parameter.isfinite().all()) for parameter in policy.actor.parameters()):
        raise ValueError("the actor holds numbers that are not finite: export an earlier agent, learning has diverged")
    return policy.actor


def inputs_of(agent: EnsembleAlgorithm) -> dict[str, Input]:
    """The inputs of an agent's exported policy: one per key of Dict observations, else one called "observation".

    They start at the environment, or behind the last wrapper with a memory (``VecFrameStack``) or of an unknown class:
    a function of one observation cannot do that wrapper's work. Without an environment, they are what the policy sees.

    :raises ValueError: when ``VecNormalize`` is inside such a wrapper
    """
    if agent.kept_normalizer is not None:
        raise ValueError(
            "this agent learned with VecNormalize, whose statistics belong to its environment: load it with an "
            "environment, load(..., env=...), and export it then"
        )
    wrappers = wrappers_of(agent)
    current = _fresh(wrappers[0].observation_space if wrappers else agent.observation_space)
    for wrapper in wrappers[1:]:
        current = _through(wrapper, current)
    return {SINGLE: current} if isinstance(current, Input) else dict(current)


def wrappers_of(agent: EnsembleAlgorithm) -> list[VecEnv]:
    """The agent's environment and its wrappers, from the inside out; empty without an environment."""
    environment = agent.get_env()
    found: list[VecEnv] = []
    while environment is not None:
        found.insert(0, environment)
        environment = environment.venv if isinstance(environment, VecEnvWrapper) else None
    return found


_Inputs = Input | Mapping[str, Input]


def _fresh(space: spaces.Space[Any]) -> _Inputs:
    if isinstance(space, spaces.Dict):
        return {key: Input(part) for key, part in space.spaces.items()}
    return Input(space)


def _through(wrapper: VecEnv, inputs: _Inputs) -> _Inputs:
    """The inputs of a function that also does the work of a wrapper."""
    if type(wrapper) in (VecMonitor, VecCheckNan, VecVideoRecorder):
        return inputs
    if isinstance(wrapper, VecNormalize):
        return _normalized(wrapper, inputs)
    if isinstance(wrapper, VecTransposeImage):
        if wrapper.skip:
            return inputs
        if isinstance(inputs, Input):
            return _then(inputs, ChannelsFirst())
        return {
            key: _then(part, ChannelsFirst()) if key in wrapper.image_space_keys else part
            for key, part in inputs.items()
        }
    if isinstance(wrapper, VecExtractDictObs) and not isinstance(inputs, Input):
        return inputs[wrapper.key]
    parts = [inputs] if isinstance(inputs, Input) else list(inputs.values())
    if any(isinstance(step, Normalization) for part in parts for step in part.steps):
        raise ValueError(
            f"VecNormalize is inside {type(wrapper).__name__}, whose work cannot be exported, so that raw observations "
            f"never reach the policy: put VecNormalize outside, VecNormalize({type(wrapper).__name__}(...))"
        )
    return _fresh(wrapper.observation_space)


def _then(part: Input, step: Step) -> Input:
    return replace(part, steps=(*part.steps, step))


def _normalized(wrapper: VecNormalize, inputs: _Inputs) -> _Inputs:
    if not wrapper.norm_obs:
        return inputs

    def normalization(statistics: Any) -> Normalization:
        return Normalization(
            np.array(statistics.mean, dtype=np.float64),
            np.sqrt(np.asarray(statistics.var, dtype=np.float64) + wrapper.epsilon),
            float(wrapper.clip_obs),
        )

    if isinstance(inputs, Input):
        return _then(inputs, normalization(wrapper.obs_rms))
    statistics: Any = wrapper.obs_rms
    return {
        key: _then(part, normalization(statistics[key])) if key in (wrapper.norm_obs_keys or ()) else part
        for key, part in inputs.items()
    }
