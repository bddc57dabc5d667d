"""What lies between an environment and an agent's policy: the VecEnv wrappers that turn and normalise observations, and
Binary Action Search.

An exported policy does their work, too. A saved agent holds what is needed for that, so that it can be exported without
its environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecExtractDictObs,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)

from bdpi.agents.decisions import Decisions
from bdpi.agents.encoding import Arrays
from bdpi.agents.frames import stacked_space
from bdpi.envs.descriptions import describe, space_of
from bdpi.envs.factors import MAX_DECISIONS, check_whole
from bdpi.envs.wrappers import BinaryActionSearch, OffPolicyNoise, Retracing

#: Name of the only input, where observations are not a Dict.
SINGLE = "observation"
#: Wrappers of an environment that leave alone what an agent sees, and what its actions mean.
_NEUTRAL = (Monitor, OffPolicyNoise, OrderEnforcing, PassiveEnvChecker, Retracing, TimeLimit)


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


Change = Normalization | ChannelsFirst


@dataclass(frozen=True, eq=False)
class Input:
    """One input of the exported function.

    :param space: of what the environment gives
    :param steps: what wrappers do to it before the policy sees it, in this order
    """

    space: spaces.Space[Any]
    steps: tuple[Change, ...] = ()

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


@dataclass(frozen=True, eq=False)
class Inputs:
    """All that a policy sees, from where it comes.

    :param parts: one per key of Dict observations, else one called "observation"
    :param wrappers: classes of the environment and its wrappers, from the inside out
    :param search: of an agent that learned behind ``BinaryActionSearch``, the decisions on a whole action, all by the
        agent's two outputs; the parts are then what the environment inside it gives
    """

    parts: dict[str, Input]
    wrappers: tuple[str, ...] = ()
    search: Decisions | None = None


def inputs_from(env: VecEnv) -> Inputs:
    """The inputs of a function that takes what an environment gives, and does the work of its wrappers.

    They start at the environment, or behind the last wrapper with a memory (``VecFrameStack``) or of an unknown class:
    a function of one observation cannot do that wrapper's work.

    :raises ValueError: when ``VecNormalize`` is inside such a wrapper
    """
    wrappers: list[VecEnv] = [env]
    while isinstance(wrappers[0], VecEnvWrapper):
        wrappers.insert(0, wrappers[0].venv)
    current = first = _fresh(wrappers[0].observation_space)
    for wrapper in wrappers[1:]:
        current = _through(wrapper, current)
    search = _search_in(wrappers[0]) if current is first else None
    if search is not None:
        current = _fresh(search.own_space)
    return Inputs(_named(current), tuple(type(wrapper).__name__ for wrapper in wrappers), search)


def stacked_inputs(inputs: Inputs, n_stack: int) -> Inputs:
    """The inputs of a function that takes stacks of frames, each as the environment gives it: pictures with their
    channels last have their frames on that axis, all others on the first one."""
    if n_stack == 1:
        return inputs
    if inputs.search is not None:  # stacks hold earlier decisions, too
        inputs = replace(inputs, parts=inputs_of_space(inputs.search.observation_space).parts, search=None)
    ((name, part),) = inputs.parts.items()
    axis = -1 if any(isinstance(step, ChannelsFirst) for step in part.steps) else 0
    space, steps = stacked_space(part.space, n_stack, axis), list[Change]()
    for step in part.steps:
        if isinstance(step, Normalization):
            mean, deviation = (np.concatenate([each] * n_stack, axis) for each in (step.mean, step.deviation))
            step = replace(step, mean=mean, deviation=deviation)
        elif isinstance(step, ChannelsFirst):
            axis = 0
        steps.append(step)
    return replace(inputs, parts={name: Input(space, tuple(steps))})


def inputs_of_space(space: spaces.Space[Any]) -> Inputs:
    """Inputs that nothing is done to."""
    return Inputs(_named(_fresh(space)))


# -- in files


def describe_inputs(inputs: Inputs) -> tuple[dict[str, Any], Arrays]:
    """As JSON and arrays; only parts that something is done to, and decisions on a whole action."""
    parts: dict[str, Any] = {}
    arrays: Arrays = {}
    for key, part in inputs.parts.items():
        if part.steps:
            turned = any(isinstance(step, ChannelsFirst) for step in part.steps)
            parts[key] = {"space": describe(part.space), "channels_last": turned, "clip": None}
        for step in part.steps:
            if isinstance(step, Normalization):
                parts[key]["clip"] = step.clip
                arrays |= {f"{key}.mean": step.mean, f"{key}.deviation": step.deviation}
    described = {"wrappers": list(inputs.wrappers), "parts": parts}
    if inputs.search is not None:
        box, seen = describe(inputs.search.own_actions), describe(inputs.search.own_space)
        described["search"] = {"observation_space": seen, "action_space": box, "bits": inputs.search.bits}
    return described, arrays


def restore_inputs(described: Any, arrays: Arrays, seen: spaces.Space[Any], actions: spaces.Space[Any]) -> Inputs:
    """What :func:`describe_inputs` was given.

    :param seen: the space that the policy knows
    :param actions: of the agent
    :raises ValueError: when they do not fit
    """
    search = _restore_search(described["search"], seen, actions) if "search" in described else None
    parts = inputs_of_space(seen if search is None else search.own_space).parts
    for key, part in described["parts"].items():
        space, steps = space_of(part["space"]), list[Change]()
        shape = space.shape or ()
        if part["channels_last"]:
            steps.append(ChannelsFirst())
            shape = (shape[2], *shape[:2])
        if part["clip"] is not None:
            mean, deviation = arrays[f"{key}.mean"], arrays[f"{key}.deviation"]
            if not mean.shape == deviation.shape == shape or not np.all(deviation > 0) or not np.isfinite(mean).all():
                raise ValueError(f"the file is damaged: the mean of {key} has shape {mean.shape}, it has {shape}")
            steps.append(Normalization(mean.astype(np.float64), deviation.astype(np.float64), float(part["clip"])))
        if shape != parts[key].space.shape or not isinstance(space, spaces.Box):
            raise ValueError(f"the file does not fit: {key} comes as {space}, and is seen as {parts[key].space}")
        parts[key] = Input(space, tuple(steps))
    return Inputs(parts, tuple(str(name) for name in described["wrappers"]), search)


def _restore_search(described: Any, seen: spaces.Space[Any], actions: spaces.Space[Any]) -> Decisions:
    most = int(np.prod(seen.shape or ()))
    own, box = (space_of(described[name], most) for name in ("observation_space", "action_space"))
    bits = check_whole("bits", described["bits"], 1, MAX_DECISIONS, "6 gives 64 values")
    is_possible = isinstance(own, spaces.Box) and isinstance(box, spaces.Box) and actions == spaces.Discrete(2)
    search = Decisions(own, box, bits) if is_possible else None
    if search is None or search.observation_space != seen:
        raise ValueError(f"the file does not fit: bits of {box} cannot follow {own} where {seen} are seen")
    return search


# -- wrapper by wrapper


def _named(inputs: Input | Mapping[str, Input]) -> dict[str, Input]:
    return {SINGLE: inputs} if isinstance(inputs, Input) else dict(inputs)


_Inputs = Input | Mapping[str, Input]


def _fresh(space: spaces.Space[Any]) -> _Inputs:
    if isinstance(space, spaces.Dict):
        return {key: Input(part) for key, part in space.spaces.items()}
    return Input(space)


def _search_in(env: VecEnv) -> Decisions | None:
    """The decisions on a whole action, if an agent sees nothing else than ``BinaryActionSearch`` shows of a Box."""
    if not isinstance(env, DummyVecEnv):
        return None
    inside: Any = env.envs[0]
    while type(inside) in _NEUTRAL:
        inside = inside.env
    if type(inside) is not BinaryActionSearch or not isinstance(inside.env.observation_space, spaces.Box):
        return None
    return Decisions(inside.env.observation_space, inside.env.action_space, inside.bits)


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


def _then(part: Input, step: Change) -> Input:
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
