"""A configuration becomes an environment and an agent; whatever is wrong with it is said in one line."""

from __future__ import annotations

import contextlib
import difflib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bdpi.runs.config import BaseConfig, RunConfig
from bdpi.runs.errors import RunError, named, one_line
from bdpi.runs.modules import import_module, import_wrapper, not_registered
from bdpi.runs.presets import preset_of
from bdpi.runs.settings import policy_arguments

if TYPE_CHECKING:
    import gymnasium as gym
    from stable_baselines3.common.vec_env import VecEnv

    from bdpi.agents import Ensemble as Agent

Config = TypeVar("Config", bound=BaseConfig)

DEFAULT_ACTION_BITS = 6
#: The keys of ``bdpi.baselines.paper.PEERS``, which takes a while to import.
PEER_NAMES = ("ppo", "a2c", "dqn", "sac", "td3", "acktr", "acer", "prioritized-dueling-dqn")


def agent_class(name: str) -> type[Agent]:
    """An agent of this package, or one that it is compared with.

    :raises RunError: for a name that is neither in ``bdpi.agents.AGENTS`` nor in ``bdpi.baselines.paper.PEERS``.
    """
    from bdpi.agents import AGENTS, PAPER_AGENTS

    if is_peer(name):
        from bdpi.baselines.paper import PEERS

        return PEERS[name]  # type: ignore[return-value]  # alike in what runs ask of them, except where is_peer is asked
    if name not in (*AGENTS, *PAPER_AGENTS):
        raise RunError(f"unknown agent {name!r}: choose from {', '.join((*AGENTS, *PAPER_AGENTS, *PEER_NAMES))}")
    return AGENTS[PAPER_AGENTS[name][0] if name in PAPER_AGENTS else name]


def is_peer(name: str) -> bool:
    """Whether an agent is one that BDPI is compared with, not one of this package's own family."""
    return name in PEER_NAMES


def environment_of(config: BaseConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """The environment of a run, with its arguments and wrappers.

    :raises RunError: see :func:`make_environment`; for a wrapper that there is not
    """
    made = make_environment(config.environment, render_mode, config.env_kwargs)
    for name in config.wrappers:
        made = import_wrapper(name)(made)
    return made


def make_environment(
    environment: str, render_mode: str | None = None, arguments: Mapping[str, Any] | None = None
) -> gym.Env[Any, Any]:
    """``gymnasium.make``, that also knows the environments of this package and whose errors are one line.

    :param environment: of ``my_module:MyEnv-v0``, the module may be in the current folder.
    :param arguments: of its constructor, those that are not the default.
    :raises RunError: when there is no such environment, or it cannot be made.
    """
    import gymnasium as gym

    import bdpi.envs
    from bdpi.envs.preparing import prepare_environment

    bdpi.envs.register()
    module, before = environment.rpartition(":")[0], set(gym.registry)
    try:
        prepare_environment(environment)  # before anything is imported that may draw
        if module:
            import_module(module)
        # Not every environment has this argument.
        drawn: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        return gym.make(environment, **{**(arguments or {}), **drawn})
    except RunError:
        raise
    except (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv) as error:
        if module:
            raise RunError(not_registered(environment, before)) from None
        raise RunError(_unknown_environment(environment, error, list(gym.registry))) from None
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise RunError(f"{environment} needs something that is not installed: {one_line(error)}") from None
    except Exception as error:  # an environment is foreign code: its constructor may raise anything
        # Gymnasium raises the bare base class for ids that no rule of its grammar matches.
        if type(error) is gym.error.Error and "id" in str(error).lower():
            raise RunError(_unknown_environment(environment, error, list(gym.registry))) from None
        given = f" with {', '.join(f'{name}={value!r}' for name, value in arguments.items())}" if arguments else ""
        raise RunError(f"{environment} cannot be made{given}: {named(error)}") from None


def _unknown_environment(environment: str, error: Exception, registered: list[str]) -> str:
    lower = {name.lower(): name for name in registered}
    close = [lower[name] for name in difflib.get_close_matches(environment.lower(), lower, n=3, cutoff=0.75)]
    if close:
        return f"unknown environment {environment!r}: did you mean {' or '.join(close)}?"
    return (
        f"unknown environment {environment!r}: {one_line(error)} "
        "(ids look like CartPole-v1; my_module:MyEnv-v0 imports my_module first)"
    )


def wrapped(
    environment: gym.Env[Any, Any], action_bits: int | None, off_policy_noise: float | None = None
) -> gym.Env[Any, Any]:
    """What the agent acts in. From the inside out: the environment, checks, Monitor, Binary Action Search, noise.

    Monitor is inside, so that it counts real steps. Noise is outside, because agents learn from the decisions that were
    executed, so these are what it has to replace.

    :param action_bits: of Binary Action Search, for continuous actions; ``None``: without.
    :param off_policy_noise: probability of a random action; ``None``: without.
    :raises RunError: when the actions or observations do not allow it.
    """
    from bdpi.envs.wrappers import BinaryActionSearch, OffPolicyNoise
    from bdpi.envs.wrappers.checked import Checked

    result = monitored(Checked(environment))
    try:
        if action_bits is not None:
            result = BinaryActionSearch(result, action_bits)
        if off_policy_noise is not None:
            result = OffPolicyNoise(result, off_policy_noise)
    except ValueError as error:
        raise RunError(one_line(error)) from None
    return result


def monitored(environment: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """The environment in a Monitor, unless there is one inside, which counts real steps instead of decisions."""
    from stable_baselines3.common.env_util import is_wrapped
    from stable_baselines3.common.monitor import Monitor

    return environment if is_wrapped(environment, Monitor) else Monitor(environment)


def retraceable(environment: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """A simulation that can be brought back to the middle of an episode; any other environment as it is."""
    from bdpi.envs.wrappers.retracing import Retracing, is_simulation

    return Retracing(environment) if is_simulation(environment) else environment


def with_full_id(config: Config, environment: gym.Env[Any, Any]) -> Config:
    """The configuration with the version of its environment: ``CartPole`` is ``CartPole-v1``."""
    if environment.spec is None or ":" in config.environment:
        return config
    return config.changed(environment=environment.spec.id)


def with_action_bits(config: Config, action_space: gym.Space[Any]) -> Config:
    """The configuration with Binary Action Search if the actions are continuous.

    :raises RunError: when bits were asked for, and the actions are not continuous.
    """
    from gymnasium import spaces

    if not isinstance(action_space, spaces.Box):
        if config.action_bits is not None:
            raise RunError(
                f"{config.environment} has the actions {action_space}: leave --action-bits out, it is for "
                "continuous ones"
            )
        return config
    return config.changed(action_bits=DEFAULT_ACTION_BITS if config.action_bits is None else config.action_bits)


def announcements(config: RunConfig, bare: gym.Env[Any, Any]) -> Iterator[str]:
    """What a run does by itself, or beside what every run does, each in one line."""
    import torch
    from gymnasium import spaces

    from bdpi.envs.factors import factors_of

    if config.action_bits is not None:
        yield _binary_search(config, bare.action_space)
    elif not is_peer(config.agent) and not isinstance(bare.action_space, spaces.Discrete):
        n = len(factors_of(bare.action_space).sizes)
        yield f"{config.environment}: actions {bare.action_space}, so {n} decisions one after the other at each step"
    if policy_name(bare.observation_space) == "CnnPolicy" and "fit_steps" not in config.hyperparameters:
        yield f"{config.environment}: pictures, so CnnPolicy and fit_steps=1 (--set fit_steps=20 would change it)"
        has_gpu = torch.cuda.is_available()
        if not (is_peer(config.agent) or has_gpu or "n_critics" in config.hyperparameters):
            quick = "--set n_critics=2 --set batch_size=32 --set train_freq=4"
            yield f"without a GPU, a step can take seconds, as bdpi check measures: {quick} take a hundredth of that"
        if has_gpu and not is_peer(config.agent) and "precision" not in config.hyperparameters:
            yield "on a GPU, --set precision=bfloat16 takes a third of the time for pictures"
    if config.off_policy_noise is not None:
        yield (
            f"training actions are random with probability {config.off_policy_noise:g}; a test without that comes "
            "after each training episode, and is not learned from"
        )


def _binary_search(config: RunConfig, action_space: gym.Space[Any]) -> str:
    size = int(np.prod(action_space.shape or ()))
    decisions = f"{config.action_bits} binary decisions" + (f" for each of its {size} numbers" if size > 1 else "")
    return f"{config.environment}: continuous actions, each found by {decisions} (--action-bits would change it)"


def policy_name(observation_space: gym.Space[Any]) -> str:
    """SB3's name of the network that fits the observations."""
    from gymnasium import spaces
    from stable_baselines3.common.preprocessing import is_image_space

    if isinstance(observation_space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(observation_space) else "MlpPolicy"


def with_preset(config: Config, note: Callable[[str], None]) -> Config:
    """The configuration with what the paper changes for its environment, unless the user has decided otherwise."""
    preset = {
        name: value
        for name, value in preset_of(config.environment).policy_kwargs.items()
        if name not in config.policy_kwargs
    }
    for name, value in preset.items():
        note(f"{config.environment}: {name}={value}, as in the paper (--set {name}=[64,64] would change it)")
    return config.changed(policy_kwargs={**preset, **config.policy_kwargs})


def build_agent(config: BaseConfig, environment: gym.Env[Any, Any] | VecEnv) -> Agent:
    """:raises RunError: for spaces and hyper-parameters that the agent refuses."""
    from bdpi.agents import PAPER_AGENTS

    cls = agent_class(config.agent)
    of_paper = PAPER_AGENTS[config.agent][1] if config.agent in PAPER_AGENTS else {}
    try:
        return cls(
            policy_name(environment.observation_space),
            environment,
            seed=config.seed,
            policy_kwargs=policy_arguments(config),
            **{**of_paper, **config.hyperparameters},
        )
    except (ValueError, TypeError) as error:  # what agents say to people
        raise RunError(one_line(error)) from None
    except Exception as error:  # what PyTorch and NumPy say, of a device or a size that is not there
        raise RunError(f"the agent cannot be made: {named(error)}") from None


def load_agent(config: BaseConfig, path: Path, environment: gym.Env[Any, Any] | VecEnv) -> Agent:
    """The agent of a run, or a peer.

    :raises RunError: when the file is missing, damaged, foreign, or of an agent with other spaces.
    """
    if not path.is_file():
        raise RunError(f"there is no saved agent {path}")
    cls = agent_class(config.agent)
    try:
        if is_peer(config.agent):
            from bdpi.runs.peer_file import load_peer

            return load_peer(config, path, environment)  # type: ignore[return-value]  # see agent_class
        return cls.load(path, env=environment)
    except Exception as error:  # a damaged file can fail anywhere between zip, JSON and tensors
        raise RunError(f"{path} cannot be loaded: {named(error)}") from None


@contextlib.contextmanager
def warnings_as_notes(note: Callable[[str], None]) -> Iterator[None]:
    """Warnings become one line each, every one once, instead of breaking into a live view with file names."""
    said: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = one_line(message)
        if text not in said:
            said.add(text)
            note(text)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
