"""Many agents at once: they differ in seed and hyper-parameters, and one program on a GPU trains them all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from stable_baselines3.common.monitor import Monitor

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
        cohorts = Cohorts(n, device if fused.is_available() else "cpu")
        for number in range(n):
            arguments = {"seed": seed + number, **common, **(configs[number] if configs else {})}
            with cohorts.making() as members:
                made = Monitor(gym.make(env) if isinstance(env, str) else env())
                self.agents.append(agent_class(policy, made, **arguments))
            for member in members:
                member.cohort.pause(member)  # nobody waits for an agent that does not learn
            self._members.append(members)

    def learn(self, total_timesteps: int, **arguments: Any) -> Population:
        """Have each agent learn for so many steps; returns when all have.

        :param total_timesteps: of each agent
        :param arguments: of the agents' ``learn``; a callback is shared by all of them
        :raises RuntimeError: when agents failed; the others have learned to the end
        """
        errors: dict[int, BaseException] = {}

        def learn(number: int) -> None:
            members = self._members[number]
            for member in members:
                member.cohort.resume(member)
            try:
                self.agents[number].learn(total_timesteps, **{"log_interval": None, **arguments})
            except BaseException as error:
                errors[number] = error
            finally:
                for member in members:
                    member.cohort.pause(member)

        threads = [threading.Thread(target=learn, args=(number,)) for number in range(len(self.agents))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            number, error = min(errors.items())
            raise RuntimeError(f"{len(errors)} of {len(threads)} agents failed; agent {number}: {error}") from error
        return self

    def returns(self) -> list[list[float]]:
        """Returns of the episodes of each agent."""
        return [agent.get_env().envs[0].get_episode_rewards() for agent in self.agents]  # type: ignore[union-attr]

    def save(self, folder: str | Path, include_buffer: bool = False) -> None:
        """Save each agent, as ``agent-0.zip`` and so on."""
        for number, agent in enumerate(self.agents):
            agent.save(Path(folder) / f"agent-{number}", include_buffer=include_buffer)
