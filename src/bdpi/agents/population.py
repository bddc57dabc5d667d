"""Many agents at once: they differ in seed and hyper-parameters, and one program on a GPU trains them all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import MaybeCallback

from bdpi.agents.base import EnsembleAlgorithm
from bdpi.learner import fused
from bdpi.learner.cohort import Cohorts, Member


class Population:
    """n agents with environments, memories and seeds of their own, trained together.

    Each of them learns what it would learn alone with ``learner="fused"``: bit for bit if they are fewer than 4 or have
    at most 32 hidden units, while kernels that are faster for many round differently. Agents that differ in the seed,
    the learning rates, alpha or the parameter of the actor's rule are trained by the same pair of kernels, those that
    differ in anything else by kernels that run side by side. Without a suitable GPU (see ``bdpi doctor``), and for
    networks that the kernels do not know, agents learn by themselves, each in a thread.

    :param agent_class: :class:`~bdpi.agents.bdpi.BDPI` or another agent of this package
    :param env: id of the environment, or a function that makes one
    :param n: number of agents
    :param configs: arguments of each agent, beside the common ones; None: they differ in the seed only
    :param policy: of all agents
    :param seed: agent number k has the seed ``seed + k``, unless its configuration says otherwise
    :param device: where they are trained together
    :param common: arguments of all agents
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
        device: str = "cuda",
        **common: Any,
    ) -> None:
        if n < 1:
            raise ValueError(f"a population has at least one agent, got n={n}")
        if configs is not None and len(configs) != n:
            raise ValueError(f"configs must have one entry for each of the {n} agents, got {len(configs)}")
        self.agents: list[EnsembleAlgorithm] = []
        self._members: list[list[Member]] = []
        self._lock = threading.Lock()
        self._ended: list[threading.Event] = []
        cohorts = Cohorts(n, device if fused.is_available() else "cpu")
        for number in range(n):
            arguments = {"seed": seed + number, **common, **(configs[number] if configs else {})}
            with cohorts.making() as members:
                made = Monitor(gym.make(env) if isinstance(env, str) else env())
                self.agents.append(agent_class(policy, made, **arguments))
            for member in members:
                member.cohort.pause(member)  # nobody waits for an agent that does not learn
            self._members.append(members)

    def learn(self, total_timesteps: int, callback: MaybeCallback = None, **arguments: Any) -> Population:
        """Have each agent learn for so many steps; returns when all have.

        Ctrl-C stops all of them after their current step; each can go on from there.

        :param total_timesteps: of each agent
        :param callback: shared by all agents
        :param arguments: others of the agents' ``learn``
        :raises RuntimeError: when agents failed; the others have learned to the end. And while they learn already
        """
        errors: dict[int, BaseException] = {}
        stop = threading.Event()
        callbacks = [CallbackList([*_parts(callback), _Until(stop)]) for _ in self.agents]

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
        return [agent.get_env().envs[0].get_episode_rewards() for agent in self.agents]  # type: ignore[union-attr]

    def save(self, folder: str | Path, include_buffer: bool = False) -> None:
        """Save each agent, as ``agent-0.zip`` and so on."""
        for number, agent in enumerate(self.agents):
            agent.save(Path(folder) / f"agent-{number}", include_buffer=include_buffer)


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
