"""Configurations of BDPI that are compared.

``Candidate`` says what one run does. On the command line a candidate is a name of ``CANDIDATES``, with changes behind
slashes: ``paper/observations=bounds/trust_region=0.01``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

OBSERVATION_SCALES = ("none", "bounds", "running", "range", "wide", "narrow")


@dataclass(frozen=True)
class Candidate:
    """What a run does.

    :param observations: how they are scaled: "none"; "bounds": finite bounds of the space to [-1, 1], others by running
        statistics; "running": by mean and standard deviation; "range": what was seen to [-1, 1]; "wide": likewise
        three times what was seen, as far as finite bounds allow; "narrow": likewise what was seen and a margin on both
        sides, at first half as wide as finite bounds, and half as wide again with each doubling of experience
    :param narrow_from: so many transitions, the margin is at its widest
    :param input_size: "range", "wide" and "narrow": to [-input_size, input_size]
    :param preserve: new scales of observations change the first layers so that no prediction changes
    :param return_size: returns are scaled to about this size; None: they are not
    :param centre: returns are shifted, too
    :param rare: rewards are rare where less than this share of the transitions has one that is not 0. Then "range" is
        at least what finite bounds allow, and returns are scaled to a third of ``return_size``
    :param actor_learning_rate: None: as the critics'
    :param persistence: the random numbers that an action is drawn by are kept for a while: for so many steps on average
        at most. Each episode has another mean, between 1 and this, drawn evenly on a logarithmic scale
    :param persistence_until: after so many transitions, every step has new random numbers; 0: never
    :param persistence_trials: random numbers are kept in half of the episodes, and in one of twenty as long as the last
        ten of these episodes had lower returns than the last ten others
    :param greedy_trials: some episodes take the actor's most probable actions: one in ten, and eight in ten as long as
        the last ten of these episodes had higher returns than the last ten others
    :param fresh: each training iteration of a critic has a batch of its own; the actor sees the last one
    :param novelty: where rewards are ``rare``, a step that leads to a cell of the observation space is worth so much
        more, in the networks' units, divided by the square root of how often the cell was seen. There are about a
        thousand cells, by finite bounds; each state number is one
    :param balance: a transition is drawn with a probability that falls with this power of how often its cell had been
        seen when it was stored; 0: all alike. For runs that are not longer than the replay memory
    :param clip: a next state is worth so much of min(Q_A, Q_B), and for the rest Q_B, of the action that Q_A prefers:
        1 is clipped double Q-learning, as the paper has it, 0 double Q-learning
    :param n_step: transitions hold the sum of so many rewards
    :param n_step_until: transitions after so many hold one reward; 0: never
    :param capacity: of the replay memory
    :param share: each critic sees this share of the transitions
    :param reset_every: so many epochs, one critic in turn begins anew; 0: never
    :param limits_terminal: a time limit ends an episode as a terminal state does
    :param initial_spread: factor for the critics' first weights and biases of the last layer
    :param hidden: units; None: as many as the task says
    :param relu: hidden units are rectified linear ones, not tanh
    :param layer_norm: hidden units of the critics are normalised before tanh, without learned gain and bias
    :param prior: Q-values are those of a trained network plus so many times those of a fixed random one
    :param rate_decay: the critics' learning rate falls linearly to 0 within each fit
    :param fresh_moments: Adam's moments and step counts of a critic are 0 at the beginning of each fit
    """

    name: str = "paper"
    observations: str = "none"
    narrow_from: int = 256
    input_size: float = 1.0
    preserve: bool = False
    return_size: float | None = None
    centre: bool = False
    rare: float = 0.0
    learning_rate: float = 1e-4
    actor_learning_rate: float | None = None
    persistence: float = 1.0
    persistence_until: int = 0
    persistence_trials: bool = False
    greedy_trials: bool = False
    fresh: bool = False
    novelty: float = 0.0
    balance: float = 0.0
    step_size: float = 0.2
    trust_region: float = 0.05
    gamma: float = 0.99
    clip: float = 1.0
    n_step: int = 1
    n_step_until: int = 0
    capacity: int = 20_000
    share: float = 1.0
    reset_every: int = 0
    limits_terminal: bool = False
    initial_spread: float = 1.0
    hidden: int | None = None
    relu: bool = False
    n_critics: int = 16
    batch_size: int = 256
    critic_iterations: int = 4
    fit_steps: int = 20
    layer_norm: bool = False
    prior: float = 0.0
    rate_decay: bool = False
    fresh_moments: bool = False

    def __post_init__(self) -> None:
        if self.observations not in OBSERVATION_SCALES:
            raise ValueError(f"observations={self.observations!r}: choose from {', '.join(OBSERVATION_SCALES)}")
        if not 1 <= self.n_step <= 32:
            raise ValueError(f"n_step={self.n_step}: between 1 and 32")
        if self.capacity < max(self.batch_size, self.n_step):
            raise ValueError(f"capacity={self.capacity}: at least one batch, {self.batch_size}")
        if self.persistence < 1:
            raise ValueError(f"persistence={self.persistence}: 1 or more steps")
        if self.novelty and self.n_step > 1:
            raise ValueError(f"novelty={self.novelty}: with n_step=1 only, not {self.n_step}")
        if not 0 <= self.clip <= 1:
            raise ValueError(f"clip={self.clip}: between 0 and 1")
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share}: more than 0, at most 1")

    @property
    def rates(self) -> tuple[float, float, float, float]:
        """What the kernels take: learning rates of critics and actor, alpha, lambda."""
        actor = self.learning_rate if self.actor_learning_rate is None else self.actor_learning_rate
        return self.learning_rate, actor, self.step_size, -math.expm1(-self.trust_region)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Runs can be trained together if these are the same, and the task."""
        numbers = self.hidden, self.n_critics, self.batch_size, self.critic_iterations, self.fit_steps
        flags = {"plain": self.is_plain, "layer_norm": self.layer_norm, "fresh": self.fresh, "relu": self.relu}
        flags[f"clip={self.clip:g}"] = self.clip != 1
        return *numbers, *(name for name, is_set in flags.items() if is_set)

    @property
    def is_plain(self) -> bool:
        """Whether PyTorch has to train the critics, because the kernels cannot."""
        return self.layer_norm or self.prior != 0 or self.rate_decay or self.fresh_moments

    @property
    def is_scaled(self) -> bool:
        """Whether scales are estimated."""
        return self.observations != "none" or self.return_size is not None


PAPER = Candidate()
BASE = replace(PAPER, name="base", observations="range", return_size=10.0, trust_region=0.01)
CANDIDATES = {candidate.name: candidate for candidate in (PAPER, BASE)}


def find(text: str) -> Candidate:
    """A candidate by its name with changes; the text is its name.

    :raises ValueError: for a name or a setting that is none
    """
    name, *changes = text.split("/")
    if name not in CANDIDATES:
        raise ValueError(f"unknown candidate {name!r}: choose from {', '.join(CANDIDATES)}")
    candidate, types = CANDIDATES[name], {field.name: str(field.type) for field in fields(Candidate)}
    for change in changes:
        key, _, value = change.partition("=")
        if key not in types or key == "name":
            raise ValueError(f"unknown setting {key!r} in {text!r}: choose from {', '.join(types)}")
        candidate = replace(candidate, **{key: _parsed(value, types[key])})
    return replace(candidate, name=text)


def _parsed(value: str, kind: str) -> Any:
    if value.lower() in ("none", "null") and "None" in kind:
        return None
    if kind == "bool":
        if value.lower() not in ("true", "false"):
            raise ValueError(f"{value!r}: write true or false")
        return value.lower() == "true"
    return int(value) if kind.startswith("int") else float(value) if kind.startswith("float") else value
