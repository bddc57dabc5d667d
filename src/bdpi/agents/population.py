"""Many agents at once: they differ in seed and hyper-parameters, and one program on a GPU trains them all."""

from __future__ import annotations

import contextlib
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv

from bdpi.agents import checks
from bdpi.agents.base import EnsembleAlgorithm
from bdpi.learner import fused, nvrtc
from bdpi.learner.cohort import Cohorts, Member

CallbackMaker = Callable[[int], MaybeCallback]


class Population:
    """n agents with environments, memories and seeds of their own, trained together.

    Each of them learns what it would learn alone with ``learner="fused"``: bit for bit if they are fewer than 4 or have
    at most 32 hidden units, while kernels that are faster for many round differently. Agents that differ in the seed,
    the learning rates, alpha or the parameter of the actor's rule are trained by the same pair of kernels, those that
    differ in anything else by kernels that run side by side. Without a suitable GPU (see ``bdpi doctor``), of which
    it warns, and for networks that the kernels do not know, agents learn by themselves, each in a thread.

    :param agent_class: :class:`~bdpi.agents.bdpi.BDPI` or another agent of this package
    :param env: id of the environment, or a function that makes a new one each time
    :param n: number of agents
    :param configs: a dictionary for each agent, of its arguments beside the common ones; None: they differ in the seed
        only
    :param policy: of all agents
    :param seed: agent number k has the seed ``seed + k``, unless its configuration says otherwise
    :param device: where they are trained together; those that learn by themselves are there, too, unless their networks
        are small perceptrons, which learn on the CPU. "cpu": all learn by themselves, and nobody is warned.
    :param common: arguments of all agents
    :raises ValueError: for arguments that do not fit; it says whose they are
    :raises TypeError: for arguments that agents do not have
    """

    def __init__(
        self,
        agent_class: type[EnsembleAlgorithm],
        env: str | Callable[[], gym.Env[Any, Any]],
        n: int,
        configs: Sequence[Mapping[str, Any]] | None = None,
        *,
        policy: str = "MlpPolicy",
        seed: int = 0,
        device: torch.device | str = "cuda",
        **common: Any,
    ) -> None:
        _check_count(n, configs)
        checks.check_integer("seed", seed, 0)
        _check_maker(env)
        if not (isinstance(agent_class, type) and issubclass(agent_class, EnsembleAlgorithm)):
            raise ValueError(f"agent_class must be bdpi.BDPI or another agent of this package, got {agent_class!r}")
        self.agents: list[EnsembleAlgorithm] = []
        self._members: list[list[Member]] = []
        self._lock = threading.Lock()
        self._ended: list[threading.Event] = []
        place = _place(device)
        cohorts = Cohorts(int(n), place)
        for number in range(n):
            arguments = {"seed": seed + number, **common, **(configs[number] if configs else {})}
            with cohorts.making() as members:
                made = _make(env, self.agents)
                try:
                    self.agents.append(_agent(agent_class, policy, made, place, arguments))
                except (TypeError, ValueError) as error:
                    kind = TypeError if isinstance(error, TypeError) else ValueError
                    raise kind(f"agent {number} cannot be made: {error}") from error
            for member in members:
                member.cohort.pause(member)  # nobody waits for an agent that does not learn
            self._members.append(members)

    def learn(
        self, total_timesteps: int, callback: MaybeCallback | CallbackMaker = None, **arguments: Any
    ) -> Population:
        """Have each agent learn for so many steps; returns when all have.

        Ctrl-C stops all of them after their current step; each can go on from there.

        :param total_timesteps: of each agent
        :param callback: a function from the number of an agent to its callback (None: it has none). Or, for all agents,
            a function of two arguments, as SB3 takes it; it is called in the thread of each agent.
        :param arguments: others of the agents' ``learn``
        :raises RuntimeError: when agents failed; the others have learned to the end. And while they learn already
        :raises ValueError: for a callback that several agents cannot share
        """
        errors: dict[int, BaseException] = {}
        stop = threading.Event()
        callbacks = [CallbackList([*_parts(each), _Until(stop)]) for each in _for_each(callback, len(self.agents))]

        def learn(number: int, ended: threading.Event) -> None:
            try:
                if not stop.is_set():
                    with self._learning(number):
                        everything = {"log_interval": None, "callback": callbacks[number], **arguments}
                        self.agents[number].learn(total_timesteps, **everything)
            except BaseException as error:
                errors[number] = error
            finally:
                ended.set()

        ended = self._claim()
        threads = [threading.Thread(target=learn, args=each) for each in enumerate(ended)]
        try:
            for thread in threads:
                thread.start()
            _wait(ended)
        except BaseException:  # Ctrl-C, most likely
            stop.set()
            for thread, event in zip(threads, ended, strict=True):
                if thread.ident is None:  # it has not begun, and will not
                    event.set()
            _wait(ended)
            raise
        if errors:
            number, error = min(errors.items())
            raise RuntimeError(f"{len(errors)} of {len(threads)} agents failed; agent {number}: {error}") from error
        return self

    def _claim(self) -> list[threading.Event]:
        """For each agent, what is set when it has learned."""
        with self._lock:
            if not all(event.is_set() for event in self._ended):
                raise RuntimeError("this population is learning already: call learn again when that has returned")
            self._ended = [threading.Event() for _ in self.agents]
            return self._ended

    @contextlib.contextmanager
    def _learning(self, number: int) -> Iterator[None]:
        """While this lasts, others of its cohort wait for this agent."""
        for member in self._members[number]:
            member.cohort.resume(member)
        try:
            yield
        finally:
            for member in self._members[number]:
                member.cohort.pause(member)

    def returns(self) -> list[list[float]]:
        """Returns of the episodes of each agent."""
        return [_monitor_of(agent).get_episode_rewards() for agent in self.agents]

    def save(self, folder: str | Path, include_buffer: bool = False) -> None:
        """Save each agent, as ``agent-0.zip`` and so on."""
        for number, agent in enumerate(self.agents):
            agent.save(Path(folder) / f"agent-{number}", include_buffer=include_buffer)


def _check_count(n: Any, configs: Any) -> None:
    """Whether there is a configuration for each of n agents."""
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
        raise ValueError(f"a population has at least one agent: n must be a whole number from 1 on, got n={n!r}")
    if configs is None:
        return
    wanted = "configs must be a list of dictionaries, one for each agent"
    if isinstance(configs, Mapping):
        raise ValueError(f"{wanted}, got a single one; arguments of all agents go beside it: Population(..., **config)")
    if not isinstance(configs, Sequence) or isinstance(configs, str):
        raise ValueError(f"{wanted}, got {configs!r}")
    if len(configs) != n:
        raise ValueError(f"configs must have one entry for each of the {n} agents, got {len(configs)}")
    for number, config in enumerate(configs):
        if not isinstance(config, Mapping):
            raise ValueError(f"{wanted}, but configs[{number}] is {config!r}")
        for name in ("policy", "env"):
            if name in config:
                raise ValueError(
                    f"configs[{number}] has {name!r}, which all agents of a population have in common: give it once, "
                    f"Population(..., {name}=...)"
                )


def _check_maker(env: Any) -> None:
    """Whether environments can be made of it."""
    wanted = "env must be the id of an environment, or a function that makes one for each agent"
    if isinstance(env, gym.Env | VecEnv):
        raise ValueError(f"{wanted}, not an environment: give lambda: ... of what has made {env}")
    if not isinstance(env, str) and not callable(env):
        raise ValueError(f"{wanted}, got {env!r}")


def _make(env: str | Callable[[], gym.Env[Any, Any]], others: list[EnsembleAlgorithm]) -> Monitor[Any, Any]:
    """The environment of an agent.

    :param others: agents that have one
    """
    made = gym.make(env) if isinstance(env, str) else env()
    if not isinstance(made, gym.Env):
        raise ValueError(f"env must make a Gymnasium environment, for agent {len(others)} it made {made!r}")
    if any(_monitor_of(other).env is made for other in others):
        raise ValueError(f"env must make a new environment each time, agent {len(others)} got that of another agent")
    return Monitor(made)


def _place(device: Any) -> torch.device:
    """Where to train: the CPU if the GPU that is asked for does not exist."""
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device must be one of PyTorch, as "cuda", "cuda:1" or "cpu", got {device!r}') from error
    if place.type != "cuda":
        return place
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if 0 < count <= (place.index or 0):
        raise ValueError(f"device={device!r} does not exist: the last GPU is cuda:{count - 1}")
    if count == 0 or not fused.is_available():
        where = "on the CPU" if count == 0 else "on the CPU if its networks are small"
        warnings.warn(
            f"each agent of this population learns by itself, {where}: to be trained together, they need "
            f'{nvrtc.REMEDY}. bdpi doctor says what there is; device="cpu" that this is meant.',
            RuntimeWarning,
            stacklevel=3,
        )
    return place if count else torch.device("cpu")


def _agent(
    agent_class: type[EnsembleAlgorithm],
    policy: str,
    env: Monitor[Any, Any],
    place: torch.device,
    arguments: dict[str, Any],
) -> EnsembleAlgorithm:
    """An agent whose networks are at a place, unless they are small, which are faster on the CPU."""
    if "device" in arguments:
        return agent_class(policy, env, **arguments)
    agent = agent_class(policy, env, **arguments, device=place, _init_setup_model=False)
    agent._device_is_free = True
    agent._setup_model()
    return agent


def _monitor_of(agent: EnsembleAlgorithm) -> Monitor[Any, Any]:
    """What counts the episodes of an agent of a population."""
    return agent.get_env().envs[0]  # type: ignore[union-attr, no-any-return]


def _for_each(callback: MaybeCallback | CallbackMaker, n: int) -> list[MaybeCallback]:
    """The callbacks of n agents."""
    if callback is None or (n == 1 and isinstance(callback, BaseCallback | list)):
        return [callback] * n  # type: ignore[list-item]
    own = "a function from the number of an agent to a callback of its own, callback=lambda number: ..."
    if isinstance(callback, BaseCallback | list):
        raise ValueError(f"{n} agents cannot share a callback, which has one agent; give {own}: got {callback!r}")
    if isinstance(callback, type) or not callable(callback):
        raise ValueError(f"callback must be {own}, got {callback!r}")
    if _takes_two(callback):
        return [callback] * n  # type: ignore[list-item]
    each: list[Any] = [callback(number) for number in range(n)]  # type: ignore[call-arg, arg-type]
    for number, given in enumerate(each):
        if not (given is None or isinstance(given, list) or callable(given) or isinstance(given, BaseCallback)):
            raise ValueError(f"callback must be {own}; for agent {number} it gave {given!r}")
    return each


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether it is a callback itself, as SB3 takes them: a function of local and global variables."""
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):  # a ValueError: a built-in function that does not say what it takes
        return False
    return True


class _Until(BaseCallback):
    """Stops an agent after its current step, once that is wanted."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop

    def _on_step(self) -> bool:
        return not self._stop.is_set()


def _parts(callback: MaybeCallback) -> list[BaseCallback]:
    """What SB3 takes for a callback, as a list of them."""
    if callback is None:
        return []
    if isinstance(callback, list):
        return callback
    return [callback if isinstance(callback, BaseCallback) else ConvertCallback(callback)]


def _wait(events: list[threading.Event]) -> None:
    """Unlike ``Thread.join``, which takes a thread for ended when Ctrl-C interrupts it."""
    for event in events:
        event.wait()
