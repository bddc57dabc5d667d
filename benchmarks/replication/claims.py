"""The paper's claims as comparisons, and what the runs under results/ say of them.

Rules, levels and margins are those of PROTOCOL.md; no verdict is typed by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bdpi.report.configurations import Algorithm, comparisons_of
from bdpi.report.panels import Row, StoredSeries, rows_of
from bdpi.report.paper import PaperCurve, paper_curve, paper_environment
from bdpi.report.sensitivity import best_of_others, sensitivity, share_above
from bdpi.report.statistics import Estimate, bootstrap_difference, bootstrap_mean
from bdpi.report.tables import estimate_text
from bdpi.runs.results import StoredRun, read_runs
from replication.curves import FEWEST, MARGINS, RESULTS, SEEDS, Counterpart, is_clean

LEVELS = {"Table": 25.0, "LunarLander": 0.0, "FrozenLake": 0.3, "Hallway": 0.5}  # what counts as learned
PROTOCOLS = {"text": "", "code": "-code"}  # what is behind the names of their studies
STUDIES = ("figure2", "pendulum", "peers", "trust-region", "aggressiveness")
TABLE, LANDER, LAKE, HALLWAY, PENDULUM = "Table", "LunarLander", "FrozenLake", "Hallway", "Pendulum"
PLACES = (TABLE, LANDER, LAKE, HALLWAY)


class Verdict(Enum):
    """What was found, with its light."""

    CONFIRMED = "🟢 confirmed"
    REFUTED = "🔴 refuted"
    UNDECIDED = "🟡 undecided"
    UNMEASURED = "⚪ not measured"


class Series(NamedTuple):
    """One of ours, by the paper's name of the environment.

    :param episodes: how many count; None: as many as the paper's curve and all runs have
    """

    name: str
    place: str
    row: str = "algorithms"
    study: str = "figure2"
    episodes: int | None = None

    def __str__(self) -> str:
        return self.name if self.study != "peers" else f"{self.name}, {self.row}, {self.episodes} episodes"


@dataclass(frozen=True)
class Finding:
    """What a comparison found.

    :param what: the comparison, for people
    :param estimate: with its interval, as text
    :param runs: of the series that has the fewest
    """

    what: str
    verdict: Verdict
    estimate: str = ""
    runs: int = 0
    is_complete: bool = False


class Measured:
    """The runs of one protocol.

    :param protocol: ``"text"`` or ``"code"``
    :param root: where archives are
    """

    def __init__(self, protocol: str = "text", root: Path = RESULTS) -> None:
        self.root, self._suffix = root, PROTOCOLS[protocol]
        self.rows: list[Row] = []
        for study in STUDIES:
            folder = root / f"{study}{self._suffix}"
            if folder.exists():
                found = rows_of(read_runs(folder)[1])
                self.rows += [replace(row, study=study) for row in found]

    def find(self, wanted: Series) -> StoredSeries | None:
        """The runs of a series, if there are any."""
        for row in self.rows:
            if (row.study, row.name) == (wanted.study, wanted.row):
                for panel in row.panels:
                    if paper_environment(panel.environment) == wanted.place:
                        for series in panel.series:
                            if series.name == wanted.name and series.n_episodes:
                                return series
        return None

    def length(self, wanted: Series, series: StoredSeries) -> int:
        """Episodes that count."""
        limit = wanted.episodes or math.inf
        if wanted.episodes is None and (curve := self._curve(wanted)) is not None:
            limit = math.floor(curve.episodes[-1])
        return int(min(limit, series.n_episodes))

    def is_complete(self, wanted: Series, series: StoredSeries) -> bool:
        """Whether nothing is missing that the protocol asks for."""
        curve = self._curve(wanted)
        if curve is not None:
            return not Counterpart(curve, series).lacks
        is_long = wanted.episodes is None or series.n_episodes >= wanted.episodes
        return is_long and {run.place.seed for run in series.used} >= SEEDS and all(map(is_clean, series.used))

    @staticmethod
    def _curve(wanted: Series) -> PaperCurve | None:
        ids = {TABLE: "TableLong-v0", LAKE: "FrozenLake8x8-v1"}
        return paper_curve(wanted.row, ids.get(wanted.place, f"{wanted.place}-v0"), wanted.name)

    @cached_property
    def robustness(self) -> Sequence[StoredRun]:
        """Runs with random configurations."""
        folder = self.root / f"robustness{self._suffix}"
        return read_runs(folder)[1] if folder.exists() else ()

    @cached_property
    def configurations(self) -> Sequence[Algorithm]:
        """The same, by algorithm."""
        return [each for comparison in comparisons_of(self.robustness) for each in comparison.algorithms]

    @cached_property
    def sensitivities(self) -> Mapping[str, Estimate]:
        """The paper's S of each algorithm."""
        return {each.name: sensitivity(each.points, each.scores) for each in self.configurations}


@dataclass(frozen=True)
class Comparison:
    """Of one series with a level, or of two with each other, over the episodes that both have.

    :param kind: ``learns`` or ``fails``, of one; ``better``, ``sooner`` or ``as good``, of two
    """

    kind: str
    first: Series
    second: Series | None = None

    @property
    def place(self) -> tuple[str, str]:
        """Row and environment of the panel that shows it."""
        return self.first.row, self.first.place

    def evaluate(self, measured: Measured) -> Finding:
        """By the protocol's rules."""
        what = f"{self.first} {self.kind}" if self.second is None else self._of_two()
        wanted = [each for each in (self.first, self.second) if each is not None]
        found = [measured.find(each) for each in wanted]
        there = [each for each in found if each is not None]
        if len(there) < len(wanted):
            return Finding(what, Verdict.UNMEASURED)
        episodes = min(measured.length(each, series) for each, series in zip(wanted, there, strict=True))
        scores = [_scores(series, episodes, self.kind == "sooner") for series in there]
        if self.second is None:
            estimate = bootstrap_mean(scores[0], fewest=FEWEST)
            level = LEVELS[self.first.place]
            verdict = _above(estimate, level) if self.kind == "learns" else _above(estimate, level, Verdict.REFUTED)
        else:
            estimate = bootstrap_difference(*scores, fewest=FEWEST)
            margin = MARGINS[self.first.place]
            verdict = _within(estimate, margin) if self.kind == "as good" else _above(estimate, 0.0)
        complete = all(measured.is_complete(each, series) for each, series in zip(wanted, there, strict=True))
        text = f"{estimate_text(estimate)} ({episodes} episodes)"
        return Finding(what, verdict, text, min(len(each) for each in scores), complete)

    def _of_two(self) -> str:
        words = {"better": "better than", "sooner": "sooner than", "as good": "as good as"}
        return f"{self.first} {words[self.kind]} {self.second}"


@dataclass(frozen=True)
class LessSensitive:
    """Scores of BDPI's random configurations differ less than those of another algorithm, by the paper's S."""

    other: str
    place = ("robustness", LANDER)

    def evaluate(self, measured: Measured) -> Finding:
        """The interval of the difference is made of those of both (MOVER: Zou and Donner 2008)."""
        what = f"S of BDPI less than S of {self.other}"
        found = measured.sensitivities
        if not {"BDPI", self.other} <= found.keys():
            return Finding(what, Verdict.UNMEASURED)
        ours, theirs = found["BDPI"], found[self.other]
        value = theirs.value - ours.value
        low = value - math.hypot(theirs.value - theirs.low, ours.high - ours.value)
        high = value + math.hypot(theirs.high - theirs.value, ours.value - ours.low)
        difference = Estimate(value, low, high, min(ours.runs, theirs.runs))
        return Finding(what, _above(difference, 0.0), estimate_text(difference), difference.runs)


@dataclass(frozen=True)
class BestConfigurations:
    """About a share of BDPI's random configurations is better than the best of all other algorithms."""

    share: float
    place = ("robustness", LANDER)

    def evaluate(self, measured: Measured) -> Finding:
        """By Wilson's interval."""
        what = f"{self.share:.0%} of BDPI's configurations better than the best other one"
        ours = [each for each in measured.configurations if each.name == "BDPI"]
        if not ours:
            return Finding(what, Verdict.UNMEASURED)
        share = share_above(ours[0].scores, best_of_others(measured.configurations, "BDPI")[1])
        return Finding(what, _above(share, self.share - 0.1), estimate_text(share), share.runs)


def _scores(series: StoredSeries, episodes: int, all_of_them: bool) -> NDArray[np.float64]:
    """Of each run: mean of its smoothed returns, in the last tenth of the episodes or in all."""
    first = 0 if all_of_them else episodes - max(1, round(episodes / 10))
    scores: NDArray[np.float64] = series.smoothed[:, first:episodes].mean(axis=1)
    return scores


def _above(estimate: Estimate, level: float, above: Verdict = Verdict.CONFIRMED) -> Verdict:
    """``above`` where the interval lies above a level, the opposite where it lies below."""
    below = Verdict.REFUTED if above is Verdict.CONFIRMED else Verdict.CONFIRMED
    return above if estimate.low > level else below if estimate.high < level else Verdict.UNDECIDED


def _within(estimate: Estimate, margin: float) -> Verdict:
    if -margin <= estimate.low and estimate.high <= margin:
        return Verdict.CONFIRMED
    return Verdict.REFUTED if estimate.low > margin or estimate.high < -margin else Verdict.UNDECIDED


AnyComparison = Comparison | LessSensitive | BestConfigurations


@dataclass(frozen=True)
class Claim:
    """What the paper says, in our words: confirmed where all comparisons are, refuted where one is."""

    group: str
    text: str
    comparisons: tuple[AnyComparison, ...]

    def evaluate(self, measured: Measured) -> Finding:
        """All comparisons as one."""
        found = [each.evaluate(measured) for each in self.comparisons]
        verdicts = {each.verdict for each in found}
        there = [each for each in found if each.verdict is not Verdict.UNMEASURED]
        if Verdict.REFUTED in verdicts:
            verdict = Verdict.REFUTED
        elif not there:
            verdict = Verdict.UNMEASURED
        else:
            verdict = verdicts.pop() if len(verdicts) == 1 else Verdict.UNDECIDED
        fewest = min((each.runs for each in there), default=0)
        return Finding(self.text, verdict, "", fewest, all(each.is_complete for each in found))


def counted(findings: Iterable[Finding]) -> Mapping[Verdict, int]:
    """How many of each verdict."""
    found = [each.verdict for each in findings]
    return {verdict: found.count(verdict) for verdict in Verdict}


def _bdpi(kind: str, place: str, *others: str, row: str = "algorithms", ours: str = "BDPI") -> tuple[Comparison, ...]:
    return tuple(Comparison(kind, Series(ours, place, row), Series(other, place, row)) for other in others)


_OTHERS = ("ABCDQN", "ActorMimic", "BootstrappedDQN", "PPO", "ACKTR")


def _one(kind: str, name: str, *places: str) -> tuple[Comparison, ...]:
    return tuple(Comparison(kind, Series(name, place)) for place in places)


def _peers(kind: str, place: str, episodes: int) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(kind, Series(name, place, study="peers", episodes=episodes), None) for name in ("PPO", "ACKTR")
    )


def _each(kind: str, row: str, first: str, seconds: tuple[str, ...], places: tuple[str, ...]) -> tuple[Comparison, ...]:
    return tuple(each for place in places for each in _bdpi(kind, place, *seconds, row=row, ours=first))


def _settings(
    study: str, row: str, first: str, *others: str, places: tuple[str, ...] = (LAKE,)
) -> tuple[Comparison, ...]:
    return tuple(
        Comparison("as good", Series(other, place, row, study), Series(first, place, row, study))
        for place in places
        for other in others
    )


CLAIMS = (
    *(
        Claim("Algorithms", f"BDPI learns {place} from the fewest episodes of all", _bdpi("sooner", place, *_OTHERS))
        for place in PLACES
    ),
    *(
        Claim("Algorithms", f"… and gets the highest returns on {place}", _bdpi("better", place, *_OTHERS))
        for place in PLACES
    ),
    Claim("Algorithms", "The Actor-Mimic loss matches BDPI's rule on Table", _bdpi("as good", TABLE, "ActorMimic")),
    Claim("Algorithms", "… but fails on LunarLander and Hallway", _one("fails", "ActorMimic", LANDER, HALLWAY)),
    Claim("Algorithms", "ABCDQN, without an actor, fails on Table", _one("fails", "ABCDQN", TABLE)),
    Claim(
        "Algorithms",
        "… and is generally inferior to BDPI",
        tuple(each for place in PLACES for each in _bdpi("better", place, "ABCDQN")),
    ),
    Claim("Algorithms", "Bootstrapped DQN learns FrozenLake", _one("learns", "BootstrappedDQN", LAKE)),
    Claim(
        "Algorithms",
        "… and does not explore well enough elsewhere",
        _one("fails", "BootstrappedDQN", TABLE, LANDER, HALLWAY),
    ),
    Claim(
        "Algorithms",
        "PPO and ACKTR are less sample-efficient than Bootstrapped DQN on FrozenLake",
        _bdpi("sooner", LAKE, "PPO", "ACKTR", ours="BootstrappedDQN"),
    ),
    Claim(
        "Algorithms",
        "ACER and A3C (A2C with eight environments) are less sample-efficient than BDPI",
        tuple(
            Comparison("sooner", Series("BDPI", place), Series(name, place, "left_out", "peers", 1_000))
            for place in (LAKE, LANDER)
            for name in ("ACER", "A2C")
        ),
    ),
    Claim(
        "Algorithms",
        "PPO and ACKTR learn FrozenLake in 5,000 episodes, not in 1,000",
        (*_one("fails", "PPO", LAKE), *_one("fails", "ACKTR", LAKE), *_peers("learns", LAKE, 5_000)),
    ),
    Claim(
        "Algorithms",
        "PPO and ACKTR learn Table in 1,000 episodes, not in 500",
        (*_one("fails", "PPO", TABLE), *_one("fails", "ACKTR", TABLE), *_peers("learns", TABLE, 1_000)),
    ),
    Claim(
        "Algorithms",
        "PPO and ACKTR, with 16 environments, do well on Hallway",
        (*_one("learns", "PPO", HALLWAY), *_one("learns", "ACKTR", HALLWAY)),
    ),
    Claim(
        "Critics", "One critic degrades performance seriously", _each("better", "critics", "16x16", ("1x1",), PLACES)
    ),
    Claim(
        "Critics",
        "As long as there is more than one, their number matters little",
        _each("as good", "critics", "16x16", ("8x8", "16x8", "32x16", "32x32"), (TABLE, LAKE, HALLWAY)),
    ),
    Claim(
        "Critics",
        "Fewer than 16 critics are too few on LunarLander",
        _each("better", "critics", "16x16", ("8x8",), (LANDER,)),
    ),
    Claim("Critics", "More critics learn Table later", _each("sooner", "critics", "8x8", ("32x32",), (TABLE,))),
    Claim(
        "Off-policy noise", "Off-policy noise does no harm", _each("as good", "noise", "BDPI+noise", ("BDPI",), PLACES)
    ),
    Claim(
        "Continuous actions",
        "With Binary Action Search, BDPI outperforms SAC and TD3 on Pendulum",
        tuple(
            Comparison("better", *(Series(name, PENDULUM, "pendulum", "pendulum") for name in ("BDPI+binary", other)))
            for other in ("SAC", "TD3")
        ),
    ),
    Claim(
        "Settings",
        "How far a critic may move the actor (δ) matters little on FrozenLake",
        _settings("trust-region", "trust region", "δ = 0.05", "δ = 0.01", "δ = 0.02", "δ = 0.1", "δ = 0.2"),
    ),
    Claim(
        "Settings",
        "How many iterations critics are trained for (N_t) matters little on FrozenLake",
        _settings("aggressiveness", "iterations", "N_t = 4", "N_t = 1", "N_t = 2", "N_t = 8"),
    ),
    Claim(
        "Robustness",
        "BDPI is less sensitive to its settings than A2C, PPO, ACKTR and DQN",
        tuple(LessSensitive(name) for name in ("A2C", "PPO", "ACKTR", "DQN")),
    ),
    Claim("Robustness", "35 % of BDPI's configurations beat the best of all others", (BestConfigurations(0.35),)),
)
