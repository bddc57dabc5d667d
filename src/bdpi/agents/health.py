"""Why a run may not learn: numbers in, findings out. No agent, no environment, nothing random.

Each rule is a function that answers a list of findings, which is empty where all is well. A rule has its thresholds
above it, with the reason for each: a finding on a run that learns is worse than none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


class HealthWarning(RuntimeWarning):
    """An agent that is unlikely to learn says why."""


@dataclass(frozen=True)
class Finding:
    """One reason why a run may not learn.

    :param code: short and stable, such as ``"rewards-equal"``
    :param message: what was seen, with its value, in a sentence
    :param remedy: what to do about it, in a sentence
    """

    code: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


# -- observations

#: Fewer transitions may all be of the same corner of the environment.
ENOUGH_TRANSITIONS = 1000
#: A lander touches the ground once an episode: a contact that was never seen in fewer episodes may still come.
ENOUGH_EPISODES = 5
#: Where episodes hardly ever end, so many transitions do as well.
PLENTY_OF_TRANSITIONS = 10_000
#: A sensor that is at its end now and then is normal, also most of the time: walls, a robot that waits.
SATURATED_SHARE = 0.9
#: A flag or a count is at a bound most of the time and has few values; a sensor that is cut off has many beside it.
FEWEST_VALUES = 10
#: Indices that a message names; the others are counted.
_MOST_NAMED = 6


def observation_findings(observations: Any, space: spaces.Space[Any], episodes: int) -> list[Finding]:
    """Dimensions that never change, and dimensions that are nearly always at their smallest or largest value.

    :param observations: one row a transition; a dictionary of such arrays for a Dict space
    :param space: which they are from
    :param episodes: that have ended meanwhile
    """
    parts = observations if isinstance(observations, dict) else {None: observations}
    n = len(next(iter(parts.values())))
    if n < ENOUGH_TRANSITIONS or (episodes < ENOUGH_EPISODES and n < PLENTY_OF_TRANSITIONS):
        return []
    findings: list[Finding] = []
    still: list[str] = []
    for key, rows in parts.items():
        inner = space.spaces[key] if isinstance(space, spaces.Dict) and key is not None else space
        values = rows.reshape(n, -1)
        name = "" if key is None else f"{key!r}"
        constant = np.flatnonzero((values == values[0]).all(axis=0))
        if len(constant) == values.shape[1]:
            still.append(name)
        elif isinstance(inner, spaces.Box) and len(inner.shape) < 3:
            # Of pictures, borders never change; of numbers that stand for something, some never occur.
            findings += _constant(values, constant, name, n)
            findings += _saturated(values, name)
    if len(still) == len(parts):
        message = f"No observation differs from any other in {n} transitions: the agent sees nothing."
        return [Finding("observations-constant", message, "Check what the environment's reset and step return.")]
    if still:
        which = ", ".join(still)
        findings.append(
            Finding(
                "observations-constant",
                f"Observation {which} was the same in all of {n} transitions.",
                "Check what the environment puts there, or leave it out.",
            )
        )
    return _first_of_each_code(findings)


def _constant(values: Floats, constant: NDArray[np.int64], name: str, n: int) -> list[Finding]:
    if len(constant) == 0:
        return []
    stuck = f" (always {values[0, constant[0]]:g})" if len(constant) == 1 else ""
    return [
        Finding(
            "observations-constant",
            f"{_dimensions(constant, name)} never changed in {n} transitions{stuck}.",
            "Check that sensor or leave it out; it tells the agent nothing.",
        )
    ]


def _saturated(values: Floats, name: str) -> list[Finding]:
    if values.dtype.kind != "f":
        return []
    low, high = values.min(axis=0), values.max(axis=0)
    # A force or a contact is 0 most of the time, which is where it rests.
    shares = np.maximum(*((values == end).mean(axis=0) * (end != 0) for end in (low, high)))
    suspects = np.flatnonzero((shares >= SATURATED_SHARE) & (low < high))
    cut = np.array([each for each in suspects if len(np.unique(values[:, each])) > FEWEST_VALUES], np.int64)
    if len(cut) == 0:
        return []
    worst = cut[shares[cut].argmax()]
    at_low = low[worst] != 0 and (values[:, worst] == low[worst]).mean() >= SATURATED_SHARE
    end = f"{'smallest' if at_low else 'largest'} value ({low[worst] if at_low else high[worst]:g})"
    return [
        Finding(
            "observations-saturated",
            f"{_dimensions(cut, name)} saturates: {shares[worst]:.0%} of dimension {worst}'s values are its {end}.",
            "Widen the range in which it is measured or clipped, so that different states look different.",
        )
    ]


#: So many times the range of nearly all values: the few beyond it decide how the others are seen.
OUTLYING = 50.0
#: Numbers that networks tell apart well, and learn well, without being scaled.
SEEN_WELL = 0.01, 30.0
LEARNED_WELL = 300.0


def scale_findings(observations: Floats, reach: Floats | None, size_of_returns: float | None) -> list[Finding]:
    """Single values that blind the agent to all others; and units that do not suit networks, where nothing scales them.

    :param observations: all numbers that could be scaled, side by side, one row a transition
    :param reach: half of the range that each is scaled by; None: they are not scaled
    :param size_of_returns: that are not scaled; None: they are
    """
    findings: list[Finding] = []
    if len(observations) < ENOUGH_TRANSITIONS:
        return findings
    low, high = np.percentile(observations, [0.5, 99.5], axis=0) if observations.shape[1] else (np.zeros(0),) * 2
    usual = (high - low) / 2
    if reach is not None:
        far = np.flatnonzero((usual > 0) & (reach > OUTLYING * usual))
        if len(far):
            findings.append(
                Finding(
                    "observations-outlying",
                    f"{_dimensions(far, '')} had a value {_number(reach[far[0]] / usual[far[0]])} times as far as "
                    "nearly all others: the range by which it is scaled is that of a glitch.",
                    "Clip that sensor to values that can be, and train anew.",
                )
            )
    else:
        odd = np.flatnonzero((usual > 0) & ((usual < SEEN_WELL[0]) | (usual > SEEN_WELL[1])))
        if len(odd):
            findings.append(
                Finding(
                    "observations-unscaled",
                    f"{_dimensions(odd, '')} varies by {_number(usual[odd[0]])}, which networks see badly as it is.",
                    "Set observation_size=2, which is the default of BDPI.",
                )
            )
    if size_of_returns is not None and size_of_returns > LEARNED_WELL:
        findings.append(
            Finding(
                "returns-unscaled",
                f"Discounted returns have a size of {_number(size_of_returns)}, which networks learn slowly as it is.",
                "Set return_size=10, which is the default of BDPI.",
            )
        )
    return findings


def _dimensions(indices: Sequence[int] | NDArray[np.int64], name: str) -> str:
    named = ", ".join(str(index) for index in indices[:_MOST_NAMED])
    more = f" and {len(indices) - _MOST_NAMED} more" if len(indices) > _MOST_NAMED else ""
    where = f" of {name}" if name else ""
    return f"Observation dimension{'s' if len(indices) > 1 else ''} {named}{more}{where}"


def _first_of_each_code(findings: Iterable[Finding]) -> list[Finding]:
    return list({finding.code: finding for finding in reversed(list(findings))}.values())[::-1]


# -- rewards

#: A random walk on FrozenLake 8×8 finds its only reward after 3000 steps or so.
ENOUGH_REWARDS = 5000


#: Of steps whose reward is not 0: with fewer, what actor and critics think of most states is still noise.
OFTEN_REWARDED = 0.01


def reward_findings(rewards: Floats, returns_differ: bool) -> list[Finding]:
    """All rewards equal, where the ends of episodes make no difference either.

    :param rewards: of real steps
    :param returns_differ: whether episodes were ever worth something different: with a reward of 1 a step, longer ones
        are worth more, and there is something to learn
    """
    if len(rewards) < ENOUGH_REWARDS or returns_differ or (rewards != rewards[0]).any():
        return []
    return [
        Finding(
            "rewards-equal",
            f"All of the last {len(rewards)} rewards are {rewards[0]:g}: there is nothing to learn from.",
            "Check the reward function; where rewards are rare, make the task easier at first, reward parts of it, or "
            "add demonstrations.",
        )
    ]


# -- episodes

#: The longest episodes of usual tasks have some thousand steps; without an end, nothing tells how good the agent is.
ENDLESS_STEPS = 10_000


def episode_findings(steps_without_end: int, most: int = ENDLESS_STEPS) -> list[Finding]:
    """An episode that never ends.

    :param steps_without_end: real steps since an environment began its episode
    :param most: so many are too many
    """
    if steps_without_end < most:
        return []
    return [
        Finding(
            "episode-endless",
            f"An episode has not ended in {steps_without_end} steps.",
            "Let the environment terminate where the task is done or has failed, or register it with "
            "max_episode_steps.",
        )
    ]


@dataclass(frozen=True)
class Returns:
    """What episodes were worth, from first to last.

    :param first: of the first episodes, in which the agent knew nothing
    :param recent: of the last ones, none of which is among the first
    :param best: of all
    """

    first: Sequence[float]
    recent: Sequence[float]
    best: float

    @property
    def have_not_improved(self) -> bool:
        """Whether the last episodes are no better than the first were; False while there are too few to tell."""
        if len(self.first) < N_FIRST or len(self.recent) < N_RECENT:
            return False
        # One standard error: half of the runs that improve by less would be called improving otherwise.
        margin = float(np.std(self.first)) / math.sqrt(len(self.first))
        return float(np.mean(self.recent)) <= float(np.mean(self.first)) + margin

    @property
    def were_better(self) -> bool:
        """Whether an episode was clearly better than the last ones, and not by luck: so better is possible."""
        return self.best > float(np.mean(self.recent)) + 3 * float(np.std(self.recent))


#: Means of fewer returns are mostly luck.
N_FIRST = N_RECENT = 20


# -- actor and critics

#: Of the entropy of random actions: an actor that explores no more. One that has learned is as certain, and improves.
CERTAIN = 0.1
#: Critics begin as random functions and need some thousand epochs to become anything else.
ENOUGH_EPOCHS = 5000
#: Of the way from what random critics agree on to full agreement.
NO_AGREEMENT = 0.15


def policy_findings(entropy: float, n_actions: int, returns: Returns) -> list[Finding]:
    """An actor that is certain of something bad.

    :param entropy: of the policy, in bits, averaged over states
    :param n_actions: that it chooses from
    """
    if entropy >= CERTAIN * math.log2(max(2, n_actions)) or not returns.have_not_improved or not returns.were_better:
        return []
    return [
        Finding(
            "certain-but-poor",
            f"The actor is certain (entropy {entropy:.2g} bits) while the last {len(returns.recent)} returns "
            f"(mean {_number(np.mean(returns.recent))}) are no better than the first "
            f"({_number(np.mean(returns.first))}; the best was {_number(returns.best)}).",
            "Lower trust_region (of BDPI) or raise n_critics, so that it explores for longer.",
        )
    ]


def critic_findings(greedy: NDArray[np.int64], n_actions: int, epochs: int, returns: Returns) -> list[Finding]:
    """Critics that prefer different actions nearly everywhere, as random ones do.

    :param greedy: the action that each critic prefers in some states, (n_critics, n)
    :param n_actions: that they choose from
    :param epochs: of learning so far
    """
    n_critics = len(greedy)
    if n_critics < 3 or n_actions < 2 or epochs < ENOUGH_EPOCHS or not returns.have_not_improved:
        return []
    votes = np.stack([(greedy == action).sum(axis=0) for action in range(n_actions)])
    agreement = float(votes.max(axis=0).mean()) / n_critics
    chance = chance_agreement(n_critics, n_actions)
    if agreement > chance + NO_AGREEMENT * (1 - chance):
        return []
    return [
        Finding(
            "critics-disagree",
            f"After {epochs} epochs, the critics still prefer different actions nearly everywhere: {agreement:.0%} "
            f"of them agree on one, where {chance:.0%} of random ones would.",
            "Check that actions matter, that observations tell states apart, and that learning_rate is not too low; "
            "for noisy rewards, lower critic_step_size or raise buffer_size.",
        )
    ]


def chance_agreement(n_critics: int, n_actions: int) -> float:
    """The share of critics that prefer the most frequent action, if each prefers one at random."""
    # The number of ways in which no action has more than m of n votes is n! times the coefficient of x^n in
    # (1 + x + x²/2! + ... + x^m/m!)^n_actions.
    expected, before = 0.0, 0.0
    for most in range(1, n_critics + 1):
        series = np.array([1 / math.factorial(k) for k in range(most + 1)])
        power = np.ones(1)
        for _ in range(n_actions):
            power = np.convolve(power, series)[: n_critics + 1]
        ways = power[n_critics] if len(power) > n_critics else 0.0
        probability = float(ways * math.factorial(n_critics) / float(n_actions) ** n_critics)
        expected += most * (probability - before)
        before = probability
    return expected / n_critics


#: Q-values of many critics are a bit too high or too low all the time, and lag behind returns while these grow.
FAR_ABOVE = 3.0
FAR_BELOW = 0.1


def value_findings(q: Floats, returns: Floats, epochs: int) -> list[Finding]:
    """Q-values that have nothing to do with what came after.

    :param q: of actions that were taken, averaged over critics
    :param returns: discounted, that followed them
    :param epochs: of learning so far
    """
    if epochs < ENOUGH_EPOCHS or len(q) < ENOUGH_TRANSITIONS // 4 or returns.min() == returns.max():
        return []
    size, largest = float(np.abs(q).mean()), float(np.abs(returns).max())
    if size <= FAR_ABOVE * largest and size >= FAR_BELOW * float(np.abs(returns).mean()):
        return []
    seen = f"they predict {_number(q.mean())} on average, and {_number(returns.mean())} followed"
    if size > largest:
        return [
            Finding(
                "values-far",
                f"Q-values are far beyond the discounted returns seen: {seen} (at most {_number(largest)}).",
                "Lower learning_rate or gamma.",
            )
        ]
    return [
        Finding(
            "values-far",
            f"Q-values have not come near the discounted returns seen: {seen}.",
            "Raise learning_rate, or lower return_size.",
        )
    ]


def _number(value: float | np.floating[Any]) -> str:
    return f"{float(value):.3g}"
