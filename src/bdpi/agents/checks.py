"""Bad input, caught early: each function returns silently or raises an error that says what to change."""

from __future__ import annotations

import math
import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecMonitor,
    VecNormalize,
    VecVideoRecorder,
    unwrap_vec_normalize,
)

from bdpi.agents.spaces import stack_outside
from bdpi.envs.factors import factors_of, mask_sizes
from bdpi.learner.arrangement import dtype_of
from bdpi.learner.registry import check_choice

if TYPE_CHECKING:
    from bdpi.agents.ensemble import Ensemble


#: What more of would only be a mistake, or an attack on the machine's memory.
LARGEST = {
    "n_critics": 10**4,
    "critics_per_step": 10**4,
    "batch_size": 10**5,  # learners have room for one batch from the beginning
    "buffer_size": 5 * 10**7,  # where n_stack looks back, nine bytes each from the beginning
    "n_steps": 10**6,
    "n_stack": 10**4,
    "n_threads": 1024,
}


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> None:
    """``value`` is a whole number in [low, high]."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or value < low or (high is not None and value > high):
        wanted = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be a whole number {wanted}, got {value!r}")


def check_number(name: str, value: Any, low: float, high: float = math.inf, low_included: bool = False) -> None:
    """``value`` is a finite number in (low, high], or in [low, high]."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    inside = is_number and math.isfinite(value) and (low <= value if low_included else low < value) and value <= high
    if not inside:
        wanted = f"{'at least' if low_included else 'more than'} {low:g}"
        if math.isfinite(high):
            wanted += f" and at most {high:g}"
        raise ValueError(f"{name} must be a number {wanted}, got {value!r}")


def check_steps(value: Any) -> None:
    """``value`` is a number of steps to learn for; 1e5 is one, too."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value >= 0 and value == int(value)):
        raise ValueError(f"total_timesteps must be a whole number of steps, 0 or more, got {value!r}")


def check_learning_rate(name: str, value: Any) -> None:
    """``value`` is a positive number or a schedule (a function of the remaining progress, as in SB3)."""
    if not callable(value):
        check_number(name, value, 0)


def check_settings(agent: Ensemble) -> None:
    """The arguments that all agents have in common."""
    if not callable(agent.learning_rate):
        check_number("learning_rate", agent.learning_rate, 0, low_included=True)  # 0: loaded only to be watched
    if agent.actor_learning_rate is not None:
        check_learning_rate("actor_learning_rate", agent.actor_learning_rate)
    for name in ("buffer_size", "batch_size", "n_critics", "critic_iterations", "fit_steps", "n_threads"):
        if (value := getattr(agent, name)) is not None:
            check_integer(name, value, 1, LARGEST.get(name))
    check_integer("learning_starts", agent.learning_starts, 0)
    check_integer("n_steps", agent.n_steps, 1, LARGEST["n_steps"])
    check_integer("n_stack", agent.n_stack, 1, LARGEST["n_stack"])
    if agent.n_stack > 1 and not isinstance(agent.action_space, spaces.Discrete):
        remedy = stack_outside(agent.n_stack)
        raise ValueError(f"n_stack={agent.n_stack} is for Discrete actions, not {agent.action_space}: {remedy}")
    for name in ("policy_kwargs", "replay_buffer_kwargs"):
        if not isinstance(value := getattr(agent, name), dict):  # a file of RL-Zoo has text there
            raise ValueError(f"{name} must be a dictionary, such as dict(...) makes, got {value!r}")
    check_truth("optimize_memory_usage", agent.optimize_memory_usage)
    if agent.max_grad_norm is not None:
        check_number("max_grad_norm", agent.max_grad_norm, 0)
    check_number("gamma", agent.gamma, 0, 1, low_included=True)
    if agent.critics_per_step is not None:
        check_integer("critics_per_step", agent.critics_per_step, 1, agent.n_critics)
    check_truth("repeat_critics", agent.repeat_critics)
    check_number("critic_step_size", agent.critic_step_size, 0, 1)
    for name in ("observation_size", "return_size"):
        if (value := getattr(agent, name)) is not None:
            check_number(name, value, 0)
    check_number("rare_rewards", agent.rare_rewards, 0, 1, low_included=True)
    check_number("persistence", agent.persistence, 1, low_included=True)
    check_integer("gradient_steps", agent.gradient_steps, -1)
    check_choice(agent.learner_choice)
    dtype_of(agent.precision)
    check_number("autosave_minutes", agent.autosave_minutes, 0)
    if agent.autosave is not None and not isinstance(agent.autosave, str | os.PathLike):
        raise ValueError(f"autosave must be the path of a file, got {agent.autosave!r}")
    check_integer("stats_window_size", agent._stats_window_size, 1)
    check_train_freq(agent.train_freq, agent.n_envs)


def check_capacity(agent: Ensemble, *, batch_is_default: bool = False) -> None:
    """The replay memory of an agent that learns has room for a batch; one that is loaded to be watched needs none.

    :param batch_is_default: its size is the default, so that it may be smaller
    """
    for name in ("buffer_size", "batch_size"):
        check_integer(name, getattr(agent, name), 1)
    capacity = agent.buffer_size // agent.n_envs * agent.n_envs
    if capacity >= agent.batch_size:
        return
    if batch_is_default and capacity:
        text = f"batch_size is {capacity} instead of {agent.batch_size}: buffer_size={agent.buffer_size} holds no more"
        warnings.warn(text, UserWarning, stacklevel=4)
        agent.batch_size = capacity
        return
    rounded = f" ({capacity} in {agent.n_envs} environments)" if capacity != agent.buffer_size else ""
    raise ValueError(
        f"buffer_size must be at least batch_size ({agent.batch_size}), got {agent.buffer_size}{rounded}: "
        "learning starts when the buffer holds one batch"
    )


def warn_of_missing_gpu(device: Any) -> None:
    """SB3 takes the CPU without a word where the GPU that is asked for does not exist."""
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        warnings.warn(
            f'device="{device}" is not there, so that the CPU is used: bdpi doctor says what is missing; device="cpu" '
            "that this is meant.",
            RuntimeWarning,
            stacklevel=4,
        )


def check_train_freq(value: Any, n_envs: int) -> None:
    """A number of steps, or ``(number, "step" or "episode")``; episodes only in a single environment."""
    frequency = value if isinstance(value, tuple) else (value, "step")
    if len(frequency) != 2:
        raise ValueError(f'train_freq must be a number of steps or (number, "step" | "episode"), got {value!r}')
    check_integer("train_freq", frequency[0], 1)
    unit = getattr(frequency[1], "value", frequency[1])
    if unit not in ("step", "episode"):
        raise ValueError(f'the unit of train_freq must be "step" or "episode", got {frequency[1]!r}')
    if unit == "episode" and n_envs > 1:
        raise ValueError(
            f"train_freq={frequency!r} needs a single environment, there are {n_envs}: their episodes end at "
            "different times. Use a number of steps."
        )


def check_environment(env: Any) -> None:
    """Something with spaces that can be learned from."""
    if not hasattr(env, "action_space") or not hasattr(env, "observation_space"):
        raise ValueError(f"env must be a Gymnasium environment, a VecEnv or the id of an environment, got {env!r}")
    if not isinstance(env, VecEnv) and getattr(env, "num_envs", None) is not None:  # gym.make_vec's, EnvPool's
        raise ValueError(
            f"env is {type(env).__name__}, many environments as Gymnasium or EnvPool steps them: agents take those of "
            'Stable-Baselines3, stable_baselines3.common.env_util.make_vec_env("CartPole-v1", n_envs=4)'
        )
    factors_of(env.action_space)
    check_observation_space(env.observation_space)


def check_normalization(env: VecEnv) -> None:
    """``VecNormalize`` is outside of all that changes observations: agents remember them as they are before it, which
    has to be what the wrappers around it take."""
    wrapper = env
    while isinstance(wrapper, VecEnvWrapper) and not isinstance(wrapper, VecNormalize):
        inner = wrapper.venv
        if unwrap_vec_normalize(inner) is not None and type(wrapper) not in (VecMonitor, VecCheckNan, VecVideoRecorder):
            name = type(wrapper).__name__
            raise ValueError(
                f"VecNormalize is inside {name}, so that observations before it are not what the agent sees: put it "
                f"outside, VecNormalize({name}(...))"
            )
        wrapper = inner


def check_policy(policy: Any, names: dict[str, Any], base: type, env: Any) -> None:
    """A policy's name or class, fit for the observations."""
    known = policy in names if isinstance(policy, str) else isinstance(policy, type) and issubclass(policy, base)
    if not known:
        raise ValueError(f"policy must be one of {', '.join(names)}, or a subclass of {base.__name__}; got {policy!r}")
    if policy == "MultiInputPolicy" and env is not None and not isinstance(env.observation_space, spaces.Dict):
        raise ValueError(
            f"MultiInputPolicy is for Dict observations; use MlpPolicy or CnnPolicy for {env.observation_space}"
        )


def check_observation_space(space: spaces.Space[Any]) -> None:
    """The kinds of observations that the policies can take."""
    named = space.spaces if isinstance(space, spaces.Dict) else {}
    for key in named:
        if "." in key or not key:
            raise ValueError(
                f"the key {key!r} of the observations cannot be used, because networks and files have names with dots "
                "between their parts: give it another name, without dots"
            )
    texts = [key for key, part in named.items() if part.dtype is not None and part.dtype.kind == "U"]
    if texts:
        raise ValueError(
            f"the observation {texts[0]!r} is text, which no network here reads: leave it out with "
            f"gymnasium.wrappers.FilterObservation(env, {[key for key in named if key not in texts]})"
        )
    for part in named.values() or [space]:
        if not isinstance(part, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise ValueError(
                f"observation space {part} is not supported. Use Box, Discrete, MultiDiscrete, MultiBinary, or a Dict "
                "of them (gymnasium.wrappers.FlattenObservation turns most others into a Box)."
            )
        shape = part.shape or ()
        if (isinstance(part, spaces.Box) and shape == ()) or (
            isinstance(part, spaces.MultiDiscrete) and len(shape) > 1
        ):
            raise ValueError(
                f"observation space {part} is not supported: give a Box at least one axis, a MultiDiscrete exactly one "
                "(gymnasium.wrappers.FlattenObservation does)."
            )


def check_finite(what: str, values: Any, step: int, environment: int) -> None:
    """No NaN, no infinity in what an environment returned."""
    if isinstance(values, dict):
        for key, part in values.items():
            check_finite(f"{what}[{key!r}]", part, step, environment)
        return
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
    where = f" at index {index[0] if len(index) == 1 else index}" if index else ""
    raise ValueError(
        f"the {what} of environment {environment} at step {step} is not finite: {array[index]}{where}. "
        "Everything before this step is kept; repair the environment and go on."
    )


def check_reward(reward: Any, step: int) -> None:
    """One finite number, also where it is kept, in single precision."""
    array: NDArray[Any] = np.asarray(reward)
    if array.shape != () or array.dtype.kind not in "biuf":
        raise ValueError(
            f"the reward must be a number, got {repr(reward)[:100]} at step {step}: give one number, their sum perhaps"
        )
    with np.errstate(over="ignore"):
        check_finite("reward", array.astype(np.float32), step, 0)


def check_shape(what: str, value: Any, space: spaces.Space[Any], step: int) -> None:
    """An observation has the shape of its space, and is made of numbers.

    :param step: its number, for messages
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            raise ValueError(f"the {what} must have the keys {', '.join(space.spaces)}, got {value!r}")
        for key, part in space.spaces.items():
            check_shape(f"{what}[{key!r}]", value[key], part, step)
        return
    array: NDArray[Any] = np.asarray(value)
    if array.shape != (space.shape or ()) or array.dtype.kind not in "biuf":
        found = f"shape {array.shape}" if array.dtype.kind in "biuf" else repr(value)[:100]
        raise ValueError(
            f"the {what} must be numbers of shape {space.shape or ()}, got {found} at step {step}: correct it, or the "
            "observation space. Everything before this step is kept."
        )
    # It is kept in the type of the space: what does not fit would become something else, without a word.
    with np.errstate(all="ignore"):
        kept = array.astype(space.dtype)
        fits = (
            np.isfinite(kept).all() or not np.isfinite(array).all() if kept.dtype.kind == "f" else (kept == array).all()
        )
    if not fits:
        raise ValueError(
            f"the {what} holds numbers that {space.dtype}, the type of its space, cannot: {str(value)[:100]}"
        )


def check_in_space(what: str, values: Any, space: spaces.Space[Any], step: int, environment: int) -> None:
    """Numbers that index tables are inside their space."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            check_in_space(f"{what}[{key!r}]", values[key], part, step, environment)
    elif isinstance(space, spaces.Discrete):
        value = int(np.asarray(values).reshape(()))
        if not space.start <= value < space.start + space.n:
            raise ValueError(
                f"the {what} of environment {environment} at step {step} is {value}, outside its space "
                f"{space.start}..{space.start + space.n - 1}. Everything before this step is kept."
            )
    elif isinstance(space, spaces.MultiDiscrete) and not (
        np.all(values >= space.start) and np.all(values < space.start + space.nvec)
    ):
        raise ValueError(
            f"the {what} of environment {environment} at step {step} is {values}, outside its space {space}. "
            "Everything before this step is kept."
        )


def check_action(name: str, value: Any, space: spaces.Space[Any]) -> Any:
    """An action of the environment; returns it as its space has it, a Discrete one as an int."""
    if not isinstance(space, spaces.Discrete):
        action = _converted(value, space)
        if not space.contains(action):
            raise ValueError(f"{name} is {value!r}, which is not an action of the environment: give one of {space}")
        return action
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be one whole number, got {value!r}")
    action = int(array.reshape(()))
    if not space.start <= action < space.start + space.n:
        raise ValueError(
            f"{name} is {action}, which is not an action of the environment "
            f"({space.start}..{space.start + space.n - 1})"
        )
    return action


def _converted(value: Any, space: spaces.Space[Any]) -> Any:
    """A value with arrays of the types that a space has, where they are of the same kind."""
    if isinstance(space, spaces.Dict) and isinstance(value, dict):
        return {key: _converted(value[key], part) if key in value else None for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple) and isinstance(value, tuple | list) and len(value) == len(space.spaces):
        return tuple(_converted(each, part) for each, part in zip(value, space.spaces, strict=True))
    array = np.asarray(value)
    fits = space.dtype is not None and np.can_cast(array.dtype, space.dtype, "same_kind")
    return array.astype(space.dtype) if fits else array


def check_truth(name: str, value: Any) -> bool:
    """True or False, or 1 or 0; returns it as a bool."""
    array = np.asarray(value)
    if array.shape != () or not _is_zeros_and_ones(array):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(array)


def masks_of(
    infos: list[dict[str, Any]],
    space: spaces.Space[Any],
    step: int,
    ended: Any = None,
    source: str = 'info["action_mask"]',
) -> NDArray[np.bool_] | None:
    """``info["action_mask"]`` of each environment, (n_envs, n_actions); None where no environment gives one.

    That of an action of several numbers has the choices for each of them, one after the other.

    :param ended: environments whose episode has just ended: it does not matter if nothing is allowed any more there
    :param source: where the environment says it, for messages
    """
    if not any("action_mask" in info for info in infos):
        return None
    sizes = mask_sizes(space)
    n_actions = sum(sizes)
    masks = np.ones((len(infos), n_actions), dtype=bool)
    for environment, info in enumerate(infos):
        if "action_mask" not in info:
            continue
        mask = np.asarray(info["action_mask"])
        if mask.shape != (n_actions,) or not _is_zeros_and_ones(mask):
            raise ValueError(
                f"{source} of environment {environment} at step {step} must be {n_actions} zeros and ones, "
                f"one for each action, got {info['action_mask']!r}"
            )
        if not _allows(mask, sizes):
            if ended is not None and ended[environment]:
                continue
            raise ValueError(
                f"{source} of environment {environment} at step {step} allows no action at all"
                f"{_of_several(sizes)}; allow one, or end the episode before"
            )
        masks[environment] = mask.astype(bool)
    return masks


def check_masks(masks: Any, n: int, space: spaces.Space[Any]) -> NDArray[np.bool_]:
    """The argument ``action_masks`` of ``predict``, as (n, n_actions).

    :param n: number of observations
    :param space: of the actions
    """
    sizes = mask_sizes(space)
    n_actions = sum(sizes)
    given = np.asarray(masks)
    fits = given.shape == (n, n_actions) or (n == 1 and given.shape == (n_actions,))
    if not fits or not _is_zeros_and_ones(given):
        raise ValueError(
            f"action_masks must be zeros and ones of shape {(n, n_actions)}, a row for each observation, got {masks!r}"
        )
    result = given.reshape(n, n_actions).astype(bool)
    for index, mask in enumerate(result):
        if not _allows(mask, sizes):
            raise ValueError(f"action_masks allow no action at all{_of_several(sizes)} in observation {index}")
    return result


def _allows(mask: NDArray[Any], sizes: list[int]) -> bool:
    """Whether there is a choice left for each number of an action."""
    return all(bool(part.any()) for part in np.split(mask, np.cumsum(sizes)[:-1]))


def _of_several(sizes: list[int]) -> str:
    return f" for one of the {len(sizes)} numbers of an action" if len(sizes) > 1 else ""


def _is_zeros_and_ones(mask: NDArray[Any]) -> bool:
    return mask.dtype.kind in "biuf" and bool(np.isin(mask, (0, 1)).all())
