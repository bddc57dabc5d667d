"""An agent looks at itself now and then: what :mod:`bdpi.agents.health` needs to know, from memory and learner.

Looking draws no random number and changes nothing that learns.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bdpi.agents import health
from bdpi.agents.health import Finding, HealthWarning, Returns
from bdpi.agents.metrics import entropy_bits
from bdpi.agents.policies import mask_probabilities
from bdpi.learner.scales import returns_to_go, size_of
from bdpi.learner.tabular import allowed

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

    from bdpi.agents.base import EnsembleAlgorithm

#: Epochs between two looks. One takes some milliseconds, less than 1 % of so many epochs of the smallest networks.
LOOK_EVERY = 1000
#: What is new since the last look is worth another one at the end of ``learn``.
WORTH_ANOTHER = 100
#: States in which the actor and the critics are asked for their opinions; more at once would take too much memory.
_STATES = 256
#: Transitions, the latest, some of whose Q-values are compared with what followed.
_LATEST = 1000
#: Numbers of observations that are looked through; more (pictures) are sampled.
_MOST_NUMBERS = 2_000_000


class EpisodeRecord:
    """Returns of the first and of the last episodes, and how long the current ones have been going on.

    :param n_envs: environments that are stepped together
    :param kept: what a saved agent has kept of it; it is changed in place. Empty: nothing yet.
    """

    def __init__(self, n_envs: int, kept: dict[str, Any]) -> None:
        self.kept = kept
        if len(kept.get("sums", ())) != n_envs:
            kept.update(sums=[0.0] * n_envs, steps=[0] * n_envs)
        for name, nothing in (("count", 0), ("first", []), ("recent", []), ("low", math.inf), ("high", -math.inf)):
            kept.setdefault(name, nothing)

    def add(self, rewards: Any, dones: Any, infos: list[dict[str, Any]]) -> None:
        """One step of each environment."""
        sums, steps = self.kept["sums"], self.kept["steps"]
        for index, info in enumerate(infos):
            sums[index] += float(rewards[index])
            steps[index] += info.get("discount") != 1.0  # the inner decisions of a continuous action take no time
            if dones[index]:
                self._end(sums[index])
                sums[index], steps[index] = 0.0, 0

    def _end(self, episode_return: float) -> None:
        kept = self.kept
        kept["count"] += 1
        kept["low"], kept["high"] = min(kept["low"], episode_return), max(kept["high"], episode_return)
        if len(kept["first"]) < health.N_FIRST:
            kept["first"].append(episode_return)
        else:
            kept["recent"] = [*kept["recent"][1 - health.N_RECENT :], episode_return]

    def begin(self, environment: int) -> None:
        """The episode that was going on there is given up."""
        self.kept["sums"][environment], self.kept["steps"][environment] = 0.0, 0

    @property
    def steps_without_end(self) -> int:
        return max(self.kept["steps"])

    @property
    def count(self) -> int:
        return int(self.kept["count"])

    @property
    def returns(self) -> Returns:
        return Returns(self.kept["first"], self.kept["recent"], self.kept["high"])

    @property
    def differ(self) -> bool:
        """Whether episodes were worth something different."""
        return bool(self.kept["low"] < self.kept["high"])


class Checkup:
    """When an agent looks at itself, what it found, and what of that was said already."""

    def __init__(self) -> None:
        #: by the last look
        self.findings: list[Finding] = []
        self._said: set[str] = set()
        self._looked_at = 0  # epochs
        self._saw_endless = False
        #: steps that an episode may have
        self.most_steps = health.ENDLESS_STEPS

    def begin(self, env: VecEnv | None, *, anew: bool) -> None:
        """``learn`` begins.

        :param env: whose time limit, if it has one, ends its episodes in any case
        :param anew: what was said before is said again
        """
        if anew:
            self._said.clear()
        self._saw_endless = False
        with contextlib.suppress(Exception):  # not every environment knows, and some live in other processes
            limit = None if env is None else env.get_attr("spec", 0)[0].max_episode_steps
            self.most_steps = max(health.ENDLESS_STEPS, 0 if limit is None else limit + 1)

    def look_if_due(self, agent: EnsembleAlgorithm, every: int = LOOK_EVERY) -> None:
        """Look, if so many epochs have passed since the last time. Only for who may ask the learner."""
        if agent._n_updates < self._looked_at:  # another agent's parameters were loaded
            self._looked_at = 0
        if agent._n_updates >= self._looked_at + every:
            self.findings = look(agent)
            self._looked_at = agent._n_updates

    def after_step(self, record: EpisodeRecord) -> None:
        """Say what is new. An agent that learns after episodes only would never look at one that does not end."""
        if not self._saw_endless and record.steps_without_end >= self.most_steps:
            self._saw_endless = True
            endless = health.episode_findings(record.steps_without_end, self.most_steps)
            self.findings = [*(each for each in self.findings if each.code != endless[0].code), *endless]
        self.say()

    def say(self) -> None:
        """Warn of each finding, once."""
        for finding in self.findings:
            if finding.code not in self._said:
                self._said.add(finding.code)
                warnings.warn(f"{finding} [{finding.code}]", HealthWarning, stacklevel=2)


def look(agent: EnsembleAlgorithm) -> list[Finding]:
    """All that is found now."""
    record, buffer = agent._record, agent.replay_buffer
    findings = health.episode_findings(record.steps_without_end, agent._checkup.most_steps)
    if buffer is None or len(buffer) == 0:
        return findings
    own = buffer.transitions()
    n = len(buffer)  # demonstrations lie behind
    rewards, discounts = own.rewards[:n], own.discounts[:n]
    inner = (discounts == 1) & (rewards == 0) if agent.gamma < 1 else np.zeros(n, bool)
    findings += health.observation_findings(_seen(own.observations, n), agent.observation_space, record.count)
    findings += health.reward_findings(rewards[~inner], record.differ)
    findings += _scale_findings(agent)
    # Before the first rewards, actor and critics are as random as they began, and rare ones spread slowly.
    is_rewarded = record.differ and float(np.mean(rewards[~inner] != 0)) >= health.OFTEN_REWARDED
    if n < _STATES or agent._n_updates == 0 or not is_rewarded:
        return findings
    chosen = np.linspace(0, n - 1, _STATES).astype(np.int64)
    masks = None if own.masks is None else own.masks[chosen]
    states = _network_view(agent, _rows(own.observations, chosen))
    n_actions = int(agent.action_space.n)
    behaviour = mask_probabilities(agent.agent_learner.behaviour(states, masks), masks)
    greedy = allowed(agent.agent_learner.q_values(states), masks).argmax(axis=2)
    findings += health.policy_findings(entropy_bits(behaviour), n_actions, record.returns)
    findings += health.critic_findings(greedy, n_actions, agent._n_updates, record.returns)
    q, returns = values_and_returns(agent)
    return findings + health.value_findings(q, returns, agent._n_updates)


def _scale_findings(agent: EnsembleAlgorithm) -> list[Finding]:
    """Whether scales fit what was observed, or are missing."""
    if agent._vec_normalize_env is not None or not agent.agent_learner.learns_in_units:
        return []
    flat = agent.agent_learner.flat(_seen(agent.replay_buffer.next_observations_held(), len(agent.replay_buffer)))
    factor = agent.policy.scales.factor.astype(np.float64)
    reach = np.where(factor > 0, 1 / np.where(factor > 0, factor, 1), 0) if agent.scale_observations else None
    size = size_of(agent.replay_buffer.returns_to_go()) if agent.return_size is None else None
    rows = len(agent.replay_buffer)
    return health.scale_findings(np.zeros((rows, 0)) if flat is None else flat, reach, size)


def values_and_returns(agent: EnsembleAlgorithm) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the latest transitions whose episodes have ended: what the critics expect, and the discounted return that
    followed, in the environment's units. After a truncation, the critics' own expectation stands for what would have
    come."""
    buffer, n_envs = agent.replay_buffer, agent.n_envs
    held = buffer.size()
    rows = (buffer.pos - np.arange(min(held, max(1, _LATEST // n_envs)), 0, -1)) % buffer.buffer_size
    rewards, discounts = buffer.rewards[rows].astype(np.float64), buffer.discounts[rows].astype(np.float64)
    dones = buffer.dones[rows].astype(bool)
    flat = (rows[:, None] * n_envs + np.arange(n_envs)).reshape(dones.shape)
    own = buffer.transitions()
    truncated = dones & (discounts > 0)
    if truncated.any():
        ends = np.array_split(flat[truncated], -(-int(truncated.sum()) // _STATES))
        q = np.concatenate([_mean_q(agent, _rows(own.next_observations, part)) for part in ends])
        if own.next_masks is not None:
            q = np.where(own.next_masks[flat[truncated]], q, -np.inf)
        rewards[truncated] += discounts[truncated] * q.max(axis=1)
    returns = returns_to_go(rewards, discounts, dones)
    known = np.logical_or.accumulate(dones[::-1])[::-1]
    if not known.any():
        return np.zeros(0), np.zeros(0)
    some = np.unique(np.linspace(0, known.sum() - 1, _STATES).astype(np.int64))
    chosen, returns = flat[known][some], returns[known][some]
    q = _mean_q(agent, _rows(own.observations, chosen))
    return q[np.arange(len(chosen)), own.actions[chosen]], returns


def _mean_q(agent: EnsembleAlgorithm, observations: Any) -> NDArray[np.float64]:
    """Q-values, averaged over critics, in the environment's units: (n, n_actions)."""
    q = agent.agent_learner.q_values(_network_view(agent, observations)).astype(np.float64).mean(axis=0)
    normalizer = agent._vec_normalize_env
    if normalizer is not None and normalizer.norm_reward:
        q = q * math.sqrt(float(normalizer.ret_rms.var) + normalizer.epsilon)
    return q


def _network_view(agent: EnsembleAlgorithm, observations: Any) -> Any:
    return observations if agent._vec_normalize_env is None else agent._vec_normalize_env.normalize_obs(observations)


def _rows(observations: Any, index: Any) -> Any:
    return (
        {key: part[index] for key, part in observations.items()}
        if isinstance(observations, dict)
        else (observations[index])
    )


def _seen(observations: Any, n: int) -> Any:
    """The first n observations, or as many of them, evenly spread, as can be looked through quickly."""
    parts = observations.values() if isinstance(observations, dict) else [observations]
    numbers = sum(math.prod(part.shape[1:]) for part in parts)
    most = max(health.ENOUGH_TRANSITIONS, _MOST_NUMBERS // max(1, numbers))
    return _rows(observations, slice(0, n) if n <= most else np.linspace(0, n - 1, most).astype(np.int64))
