"""An agent looks at itself now and then: what :mod:`bdpi.agents.health` needs to know, from memory and learner.

Looking draws no random number and changes nothing that learns.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.type_aliases import TrainFreq

from bdpi.agents import health
from bdpi.agents.actions import mask_probabilities
from bdpi.agents.health import Finding, HealthWarning
from bdpi.agents.metrics import entropy_bits
from bdpi.learner.interface import IntArray
from bdpi.learner.scales import returns_to_go, size_of
from bdpi.learner.tabular import allowed

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

    from bdpi.agents.collector import EpisodeRecord
    from bdpi.agents.ensemble import Ensemble

#: Epochs between two looks. One takes some milliseconds, less than 1 % of so many epochs of the smallest networks.
LOOK_EVERY = 1000
#: What is new since the last look is worth another one at the end of ``learn``.
WORTH_ANOTHER = 100
#: States in which the actor and the critics are asked for their opinions; more at once would take too much memory.
_STATES = 256
#: Transitions, the latest, some of whose Q-values are compared with what followed.
_LATEST = 1000
#: Means of Q-values and returns that are kept.
_VALUES = 500
#: Numbers of observations that are looked through; more (pictures) are sampled.
_MOST_NUMBERS = 2_000_000


#: Seconds of an epoch from which on an agent on a CPU says what learning will cost.
SLOW = 1.0
#: What PyTorch's first epoch may take longer than all others, in seconds.
_WARM_UP = 5.0


def say_cost(agent: Ensemble, seconds: float) -> None:
    """Warn, on a CPU, if epochs take long: how long, and what to do."""
    if seconds < SLOW or agent.device.type != "cpu" or agent.agent_learner.learner.name not in ("native", "torch"):
        return
    frequency, expected = agent.train_freq, ""
    if isinstance(frequency, TrainFreq) and frequency.unit.value == "step":
        epochs = agent.decisions.n * (1.0 if agent.gradient_steps < 0 else agent.gradient_steps / frequency.frequency)
        expected = f": expect {seconds * epochs:.2g} s per step" if epochs else ""
    remedies = f"fewer critics than n_critics={agent.n_critics}, a larger train_freq, a smaller network"
    if agent.policy.default_fit_steps == 1:
        remedies += ', smaller pictures, precision="bfloat16", a GPU'
    warnings.warn(
        f"a learning epoch takes {seconds:.2g} s{expected}. Faster: {remedies}.", RuntimeWarning, stacklevel=2
    )


class Checkup:
    """When an agent looks at itself, what it found, and what of that was said already."""

    def __init__(self) -> None:
        #: by the last look
        self.findings: list[Finding] = []
        #: there may be something to say
        self.has_news = False
        #: numbers of epochs at which there is no need for another look
        self.seen_epochs = range(LOOK_EVERY)
        #: epochs when Q-values were last compared with returns for the log
        self.valued_at = 0
        #: the latest of these: transitions then, what critics expected, and the return that followed; means
        self.values: deque[tuple[int, float, float]] = deque(maxlen=_VALUES)
        self._said: set[str] = set()
        self._saw_endless = False
        self._timed_one = False
        #: what epochs cost was said, or is not worth saying
        self.knows_cost = False
        #: steps that an episode may have
        self.most_steps = health.ENDLESS_STEPS

    def begin(self, env: VecEnv | None, *, anew: bool) -> None:
        """``learn`` begins.

        :param env: whose time limit, if it has one, ends its episodes in any case
        :param anew: what was said before is said again
        """
        if anew:
            self._said.clear()
        self._saw_endless, self.has_news = False, True
        with contextlib.suppress(Exception):  # not every environment knows, and some live in other processes
            limit = None if env is None else env.get_attr("spec", 0)[0].max_episode_steps
            self.most_steps = max(health.ENDLESS_STEPS, 0 if limit is None else limit + 1)

    def look_if_due(self, agent: Ensemble, every: int = LOOK_EVERY) -> None:
        """Look, if so many epochs have passed since the last time. Only for who may ask the learner."""
        last = self.seen_epochs.start
        if agent._n_updates < last:  # another agent's parameters were loaded
            last = 0
        if agent._n_updates >= last + every:
            self.findings, self.has_news = look(agent), True
            last = agent._n_updates
        self.seen_epochs = range(last, last + LOOK_EVERY)

    def learned(self, agent: Ensemble, seconds: float) -> None:
        """Say once what epochs cost: PyTorch's second one, where the first may have taken long to prepare things.

        :param seconds: that an epoch took
        """
        if self.knows_cost:
            return
        is_first, self._timed_one = not self._timed_one, True
        warms_up = is_first and agent.learner_name == "torch" and SLOW <= seconds < SLOW + _WARM_UP
        self.knows_cost = not warms_up
        if self.knows_cost:
            say_cost(agent, seconds)

    def after_step(self, record: EpisodeRecord) -> None:
        """Say what is new. An agent that learns after episodes only would never look at one that does not end."""
        if not self._saw_endless and record.steps_without_end >= self.most_steps:
            self._saw_endless = True
            endless = health.episode_findings(record.steps_without_end, self.most_steps)
            self.findings = [*(each for each in self.findings if each.code != endless[0].code), *endless]
        self.say()

    def say(self) -> None:
        """Warn of each finding, once."""
        self.has_news = False
        for finding in self.findings:
            if finding.code not in self._said:
                self._said.add(finding.code)
                warnings.warn(f"{finding} [{finding.code}]", HealthWarning, stacklevel=2)


def look(agent: Ensemble) -> list[Finding]:
    """All that is found now."""
    record, buffer = agent.episodes, agent.replay_buffer
    findings = health.episode_findings(record.steps_without_end, agent._checkup.most_steps)
    if buffer is None or len(buffer) == 0:
        return findings
    own = buffer.transitions()
    n = len(buffer)  # demonstrations lie behind
    rewards, discounts = own.rewards[:n], own.discounts[:n]
    inner = (discounts == 1) & (rewards == 0) if agent.gamma < 1 else np.zeros(n, bool)
    frames = getattr(own.observations, "frames", own.observations)  # of a stack, one says what there is to say
    steps = agent.decisions.end_of_steps(own.actions[:n])
    seen = agent.decisions.undecided(_seen(frames, steps))
    if agent.hindsight is not None:  # which replaces goals, so that one that never changes is no mistake
        seen = {key: part for key, part in seen.items() if key != "desired_goal"}
    findings += health.observation_findings(seen, agent.observation_space, record.count)
    findings += health.reward_findings(rewards[~inner], record.differ)
    findings += _scale_findings(agent)
    # Before the first rewards, actor and critics are as random as they began, and rare ones spread slowly.
    is_rewarded = record.differ and float(np.mean(rewards[~inner] != 0)) >= health.OFTEN_REWARDED
    if n < _STATES or agent._n_updates == 0 or not is_rewarded:
        return findings
    chosen = np.linspace(0, n - 1, _STATES).astype(np.int64)
    masks = None if own.masks is None else own.masks[chosen]
    states = _network_view(agent, _rows(own.observations, chosen))
    n_actions = agent.decisions.most_choices
    behaviour = mask_probabilities(agent.agent_learner.behaviour(states, masks), masks)
    greedy = allowed(agent.agent_learner.q_values(states), masks).argmax(axis=2)
    findings += health.policy_findings(entropy_bits(behaviour), n_actions, record.returns)
    findings += health.critic_findings(agent.decisions.choices(greedy), n_actions, agent._n_updates, record.returns)
    q, returns = values_and_returns(agent)
    return findings + health.value_findings(q, returns, agent._n_updates)


def _scale_findings(agent: Ensemble) -> list[Finding]:
    """Whether scales fit what was observed, or are missing."""
    if agent._vec_normalize_env is not None or not agent.agent_learner.needs_scales:
        return []
    held = np.arange(len(agent.replay_buffer))
    flat = agent.agent_learner.flat(_seen(agent.replay_buffer.next_observations_held(), held))
    n_scaled = len(agent.policy.scales.factor) // agent.n_stack
    factor = agent.policy.scales.factor[:n_scaled].astype(np.float64)
    size = agent.observation_size
    reach = None if size is None else np.where(factor > 0, size / np.where(factor > 0, factor, 1), 0)
    size = size_of(agent.replay_buffer.returns_to_go()) if agent.return_size is None else None
    return health.scale_findings(np.zeros((len(held), 0)) if flat is None else flat[:, :n_scaled], reach, size)


def values_and_returns(agent: Ensemble) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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


def _mean_q(agent: Ensemble, observations: Any) -> NDArray[np.float64]:
    """Q-values, averaged over critics, in the environment's units: (n, n_actions)."""
    q = agent.agent_learner.q_values(_network_view(agent, observations)).astype(np.float64).mean(axis=0)
    normalizer = agent._vec_normalize_env
    if normalizer is not None and normalizer.norm_reward:
        q = q * math.sqrt(float(normalizer.ret_rms.var) + normalizer.epsilon)
    return q


def _network_view(agent: Ensemble, observations: Any) -> Any:
    normalizer = agent._vec_normalize_env
    return observations if normalizer is None else agent.decisions.normalized(observations, normalizer)


def _rows(observations: Any, index: Any) -> Any:
    return (
        {key: part[index] for key, part in observations.items()}
        if isinstance(observations, dict)
        else (observations[index])
    )


def _seen(observations: Any, rows: IntArray) -> Any:
    """Observations at these rows, or at as many of them, evenly spread, as can be looked through quickly."""
    parts = observations.values() if isinstance(observations, dict) else [observations]
    numbers = sum(math.prod(part.shape[1:]) for part in parts)
    most = max(health.ENOUGH_TRANSITIONS, _MOST_NUMBERS // max(1, numbers))
    n = len(rows)
    return _rows(observations, rows if n <= most else rows[np.linspace(0, n - 1, most).astype(np.int64)])
