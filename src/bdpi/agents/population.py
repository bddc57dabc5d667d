"""Many agents at once: they differ in seed and hyper-parameters, and one loop trains them all, on a GPU together."""

from __future__ import annotations

import contextlib
import inspect
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback
from stable_baselines3.common.env_util import is_wrapped, unwrap_wrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv

from bdpi.agents import checks
from bdpi.agents.agent_learner import Epochs
from bdpi.agents.ensemble import Ensemble
from bdpi.agents.files import class_of
from bdpi.agents.learners import learn_together
from bdpi.envs.preparing import prepare_environment
from bdpi.learner import fused, nvrtc
from bdpi.learner.interface import EpochMetrics
from bdpi.learner.joint import JointLearner
from bdpi.learner.stack import N_GROUPS, Group, Stack, StackRow, Stacks

Maker = str | Callable[[], gym.Env[Any, Any]]
CallbackMaker = Callable[[int], MaybeCallback]


class Population:
    """n agents with environments, memories and seeds of their own, trained together.

    Each of them learns what it would learn alone with ``learner="fused"``: bit for bit if they are fewer than 4 or have
    at most 32 hidden units, while kernels that are faster for many round differently. Agents that differ in the seed,
    the learning rates, alpha or the parameter of the actor's rule are trained by the same pair of kernels, those that
    differ in anything else by kernels that run side by side. Without a suitable GPU (see ``bdpi doctor``), of which
    it warns, and for networks that the kernels do not know, agents learn one after the other.

    One loop steps all environments, while the GPU trains other agents: what an agent does between two epochs, its
    environment included, takes 0.4 ms or more with LunarLander, and adds up over agents. For many agents,
    ``bdpi study ... --executor population`` has a process for each.

    :param agent_class: :class:`~bdpi.agents.bdpi.BDPI` or another agent of this package
    :param env: id of the environment, or a function that makes a new one each time
    :param n: number of agents
    :param configs: a dictionary for each agent, of its arguments beside the common ones; None: they differ in the seed
        only
    :param policy: of all agents
    :param seed: agent number k has the seed ``seed + k``, unless its configuration says otherwise
    :param device: where they are trained together; those that learn by themselves are there, too, unless their networks
        are small perceptrons, which learn on the CPU. "cpu": all learn by themselves, without a warning.
    :param common: arguments of all agents
    :raises ValueError: for arguments that do not fit; it says whose they are
    :raises TypeError: for arguments that agents do not have
    """

    def __init__(
        self,
        agent_class: type[Ensemble],
        env: Maker,
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
        if not (isinstance(agent_class, type) and issubclass(agent_class, Ensemble)):
            raise ValueError(f"agent_class must be bdpi.BDPI or another agent of this package, got {agent_class!r}")
        self._begin(int(n), device)
        for number in range(n):
            arguments = {"seed": seed + number, **common, **(configs[number] if configs else {})}
            self._add(env, partial(_agent, agent_class, policy, self._place, arguments))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        env: Maker,
        *,
        agent_class: type[Ensemble] | None = None,
        device: torch.device | str = "cuda",
        **changes: Any,
    ) -> Population:
        """A population of the agents that :meth:`save` wrote; they go on learning, with what they remember if that was
        saved, too. Their environments begin new episodes, and :meth:`returns` has those from now on.

        :param folder: where they were saved
        :param env: id of the environment, or a function that makes a new one each time
        :param agent_class: of the agents; None: one of this package, which the files name
        :param device: see :class:`Population`
        :param changes: of all agents, see their ``load``
        :raises FileNotFoundError: when there is no agent, or one is missing
        :raises ValueError: for files that are damaged, or do not fit
        """
        _check_maker(env)
        files = _saved(Path(folder))
        agent_class = agent_class or _class_in(files[0])
        population = cls.__new__(cls)
        population._begin(len(files), device)
        # As when they were made, small networks stay on the CPU.
        arguments = {"device": population._place, "_device_is_free": True, **changes}
        for file in files:
            population._add(env, partial(agent_class.load, file, **arguments))
        return population

    def _begin(self, n: int, device: torch.device | str) -> None:
        """Make room for n agents."""
        self.agents: list[Ensemble] = []
        self._place = _place(device)
        self._stacks = Stacks(n, self._place) if fused.runs_on(self._place) else None
        self._is_learning = False

    def _add(self, env: Maker, make: Callable[[gym.Env[Any, Any]], Ensemble]) -> None:
        """Make an agent, and its environment."""
        made = _make(env, self.agents)
        try:
            agent = make(made)
            _check_autosave(agent, self.agents)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"agent {len(self.agents)} cannot be made: {error}") from error
        if self._stacks is not None:
            learn_together(agent, self._stacks)
        self.agents.append(agent)

    def learn(
        self, total_timesteps: int, callback: MaybeCallback | CallbackMaker = None, **arguments: Any
    ) -> Population:
        """Have each agent learn for so many steps; returns when all have.

        Ctrl-C stops all of them after their current step; each can go on from there.

        :param total_timesteps: of each agent
        :param callback: a function from the number of an agent to its callback (None: it has none). Or, for all agents,
            a function of two arguments, as SB3 takes it.
        :param arguments: others of the agents' ``learn``. With ``tensorboard_log``, agent 0 logs to ``BDPI-0_1``.
        :raises RuntimeError: when agents failed; the others have learned to the end. And while they learn already
        :raises ValueError: for a callback that several agents cannot share, or no number of steps
        """
        checks.check_steps(total_timesteps)
        callbacks = _for_each(callback, len(self.agents))
        if self._is_learning:
            raise RuntimeError("this population is learning already: call learn again when that has returned")
        self._is_learning = True
        try:
            with _interruption() as is_interrupted:
                runs = [
                    _Run(agent, partial(agent.learning, total_timesteps, each, **self._logged(number, arguments)))
                    for number, agent in enumerate(self.agents)
                    for each in [CallbackList([*_parts(callbacks[number]), _Until(is_interrupted)])]
                ]
                _learn([runs[first::N_GROUPS] for first in range(N_GROUPS)])
        finally:
            self._is_learning = False
        if is_interrupted():
            raise KeyboardInterrupt
        errors = [(number, run.error) for number, run in enumerate(runs) if run.error is not None]
        if errors:
            number, error = errors[0]
            raise RuntimeError(f"{len(errors)} of {len(runs)} agents failed; agent {number}: {error}") from error
        return self

    def _logged(self, number: int, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments of an agent's ``learn``: what it logs is for TensorBoard, in a folder that has its number."""
        agent = self.agents[number]
        name = arguments.get("tb_log_name") or type(agent).__name__
        interval = {"log_interval": None} if agent.tensorboard_log is None else {}
        return {**interval, **arguments, "tb_log_name": f"{name}-{number}"}

    def returns(self) -> list[list[float]]:
        """Returns of the episodes of each agent; :func:`bdpi.runs.populations.store_population` keeps them as runs."""
        return [monitor_of(agent).get_episode_rewards() for agent in self.agents]

    def save(self, folder: str | Path, include_buffer: bool = False) -> None:
        """Save each agent, as ``agent-0.zip`` and so on; :meth:`load` brings them back.

        :param folder: of this population alone
        :param include_buffer: with the replay memories, without which they would have to collect some experience first
        :raises ValueError: for a folder with more agents than there are here; nothing is written then
        """
        left = Path(folder) / f"agent-{len(self.agents)}.zip"
        if left.exists():
            raise ValueError(f"{left} is of a larger population: choose another folder, or remove what is there")
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


def _make(env: Maker, others: list[Ensemble]) -> gym.Env[Any, Any]:
    """The environment of an agent.

    :param others: agents that have one
    """
    if isinstance(env, str):
        prepare_environment(env)
        made = gym.make(env)
    else:
        made = env()
    if not isinstance(made, gym.Env):
        raise ValueError(f"env must make a Gymnasium environment, for agent {len(others)} it made {made!r}")
    if any(made.unwrapped is other.get_env().envs[0].unwrapped for other in others):  # type: ignore[union-attr]
        raise ValueError(f"env must make a new environment each time, agent {len(others)} got that of another agent")
    return made if is_wrapped(made, Monitor) else Monitor(made)


def _check_autosave(agent: Ensemble, others: list[Ensemble]) -> None:
    """Whether an agent has a file of its own to save itself to."""
    files = [Path(other.autosave).absolute() for other in others if other.autosave is not None]
    if agent.autosave is not None and Path(agent.autosave).absolute() in files:
        raise ValueError(
            f"autosave={str(agent.autosave)!r} is the file of another agent: give each its own, "
            'configs=[{"autosave": f"agent-{number}.zip"} for number in range(n)]'
        )


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
            stacklevel=4,
        )
    return place if count else torch.device("cpu")


def _agent(
    agent_class: type[Ensemble],
    policy: str,
    place: torch.device,
    arguments: dict[str, Any],
    env: gym.Env[Any, Any],
) -> Ensemble:
    """An agent whose networks are at a place, unless they are small, which are faster on the CPU."""
    if "device" in arguments:
        return agent_class(policy, env, **arguments)
    agent = agent_class(policy, env, **arguments, device=place, _init_setup_model=False)
    agent._device_is_free = True
    agent._setup_model()
    return agent


def monitor_of(agent: Ensemble) -> Monitor[Any, Any]:
    """What counts the episodes of an agent of a population."""
    monitor = unwrap_wrapper(agent.get_env().envs[0], Monitor)  # type: ignore[union-attr]
    assert isinstance(monitor, Monitor)
    return monitor


def _saved(folder: Path) -> list[Path]:
    """The files of agents, in the order of their numbers."""
    found = {path.name for path in folder.glob("agent-*.zip")}
    files = [folder / f"agent-{number}.zip" for number in range(len(found))]
    if not files:
        raise FileNotFoundError(f"there is no saved population in {folder}: no agent-0.zip")
    for file in files:
        if file.name not in found:
            raise FileNotFoundError(f"{file} is missing: {folder} has {', '.join(sorted(found))}")
    return files


def _class_in(file: Path) -> type[Ensemble]:
    """The class of a saved agent."""
    from bdpi.agents import AGENTS

    name = class_of(file)
    for known in AGENTS.values():
        if known.__name__ == name:
            return known
    raise ValueError(f"{file} holds an agent of class {name}, not of this package: give load agent_class={name}")


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

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        super().__init__()
        self._is_wanted = is_wanted

    def _on_step(self) -> bool:
        return not self._is_wanted()


def _parts(callback: MaybeCallback) -> list[BaseCallback]:
    """What SB3 takes for a callback, as a list of them."""
    if callback is None:
        return []
    if isinstance(callback, list):
        return callback
    return [callback if isinstance(callback, BaseCallback) else ConvertCallback(callback)]


class _Run:
    """An agent that learns.

    :param begin: gives what it learns by, see :meth:`bdpi.agents.ensemble.Ensemble.learning`
    """

    def __init__(self, agent: Ensemble, begin: Callable[[], Epochs]) -> None:
        self._agent, self._epochs = agent, begin()
        self._metrics: EpochMetrics | None = None
        self.error: Exception | None = None
        #: whether it learns no more
        self.is_over = False

    def go_on(self) -> StackRow | None:
        """Until the next epoch. Returns where it is to be computed; None: the agent has done it by itself, or ends."""
        learner = self._agent.agent_learner.learner
        try:
            asked = self._epochs.send(self._metrics)
            if not isinstance(learner, JointLearner):
                self._metrics = learner.epoch(*asked)
                return None
            place = learner.ask(*asked)
            assert isinstance(place, StackRow)
            return place
        except StopIteration:
            self.is_over = True
        except Exception as error:
            self.fail(error)
        return None

    def take(self, error: Exception | None) -> None:
        """Take what an epoch has left, or that it failed."""
        learner = self._agent.agent_learner.learner
        assert isinstance(learner, JointLearner)
        if error is None:
            self._metrics = learner.answer()
        else:
            learner.forget_memory()
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self.error = error
        self.end()

    def end(self) -> None:
        """Learn no more."""
        self.is_over = True
        self._epochs.close()


#: some runs that are trained
_Started = tuple[Stack, Group, list[_Run]]


def _learn(groups: list[list[_Run]]) -> None:
    """One loop: while some groups are trained, the environments of another one make a step."""
    started: list[list[_Started]] = [[] for _ in groups]
    try:
        while any(not run.is_over for runs in groups for run in runs):
            for number, runs in enumerate(groups):
                _finish(started[number])
                started[number] = []  # if go_on is interrupted, there is nothing to wait for
                started[number] = _start(runs)
    finally:
        for each in started:
            _finish(each)
        for run in chain(*groups):
            run.end()


def _start(runs: list[_Run]) -> list[_Started]:
    """Have runs go on until their next epochs, and start these: one launch for all runs of a stack."""
    by_stack: dict[Stack, list[tuple[_Run, int]]] = {}
    for run in runs:
        if not run.is_over and (place := run.go_on()) is not None:
            by_stack.setdefault(place.stack, []).append((run, place.row))
    started = []
    for stack, members in by_stack.items():
        asking = [run for run, _ in members]
        try:
            started.append((stack, stack.start([row for _, row in members]), asking))
        except Exception as error:
            for run in asking:
                run.take(error)
    return started


def _finish(started: list[_Started]) -> None:
    """Wait for epochs, and give them to their runs."""
    for stack, group, runs in started:
        failure = None
        try:
            stack.finish(group)
        except Exception as error:
            failure = error
        for run in runs:
            run.take(failure)


@contextlib.contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """While this lasts, the first Ctrl-C is only noted, and the second one interrupts; says whether there was one."""
    noted: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield lambda: False
        return

    def note(*_: Any) -> None:
        noted.append(1)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)
