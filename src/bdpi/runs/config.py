"""What ``config.json`` holds: what to run, and how far that has come. No other module knows its keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass as checked_dataclass
from typing_extensions import Self

from bdpi.runs.episodes import OfflineSummary, Summary
from bdpi.runs.errors import RunError, one_line
from bdpi.storage.reading import Damaged, parse_json

#: Of the layout of ``config.json``.
SCHEMA_VERSION = 1
DEFAULT_EPISODES = 300
MOST_ENVIRONMENTS = 1024
_MOST_WRAPPERS, _MOST_PARTS = 32, 10_000
#: What a file holds only of runs that use it.
_OPTIONS = ("env_kwargs", "wrappers", "n_envs", "eval_every", "eval_episodes", "film_every", "remember_tests")

State = Literal["prepared", "running", "finished", "interrupted", "failed"]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it should be a name, without what moves a terminal's cursor")
    return text


Printable = Annotated[str, AfterValidator(_printable)]


def _few(wrappers: list[str]) -> list[str]:
    """Each calls the next one, and Python does that some hundred times."""
    if len(wrappers) > _MOST_WRAPPERS:
        raise RunError(f"an environment has at most {_MOST_WRAPPERS} wrappers, not {len(wrappers)}")
    return wrappers


def _without_advisors(hyperparameters: dict[str, Any]) -> dict[str, Any]:
    """A run's file names no URL that is then asked."""
    if "advisors" in hyperparameters:
        raise RunError("runs have no advisors: give them to the agent in a program of your own")
    return hyperparameters


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """As they come back from a file, so that a run that is resumed has the same."""
    try:
        return dict(json.loads(json.dumps(arguments, allow_nan=False)))
    except (TypeError, ValueError):
        raise RunError(
            f"arguments of environments are numbers, texts, true, false, null, lists and dicts of them, not {arguments}"
        ) from None


class BaseConfig(BaseModel):
    """What all runs are given.

    :param environment: Gymnasium id, such as ``"CartPole-v1"`` or ``"my_package:MyEnv-v0"``
    :param agent: a name in ``bdpi.agents.AGENTS``, ``bdpi.agents.PAPER_AGENTS`` or ``bdpi.baselines.paper.PEERS``
    :param seed: seeds the environment and everything that the agent draws
    :param hyperparameters: arguments of the agent that differ from its defaults
    :param policy_kwargs: ``net_arch`` (a list, or a dict with ``pi`` and ``qf``), ``activation_fn`` (``"tanh"``,
        ``"relu"``), ``normalize_images`` and ``last_filters``, written as JSON can hold them
    :param action_bits: binary decisions per number of a continuous action; ``None``: the default where actions are
        continuous, nothing elsewhere
    :param env_kwargs: arguments of the environment, beside its id; what JSON can hold
    :param wrappers: subclasses of ``gymnasium.Wrapper`` around the environment, the innermost first:
        ``"my_module:MyWrapper"``
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: Printable
    agent: Printable = "bdpi"
    seed: StrictInt = 0
    hyperparameters: Annotated[dict[str, Any], AfterValidator(_without_advisors)] = {}
    policy_kwargs: dict[str, Any] = {}
    action_bits: StrictInt | None = None
    env_kwargs: Annotated[dict[str, Any], AfterValidator(_plain)] = {}
    wrappers: Annotated[list[Printable], AfterValidator(_few)] = []

    def changed(self, **changes: Any) -> Self:
        """A copy with other values, which are checked."""
        return type(self)(**{**dict(self), **changes})


class RunConfig(BaseConfig):
    """One agent, one environment, one seed, for so long.

    :param episodes: stop after exactly this many episodes; ``None``: ``steps`` decides
    :param steps: stop after exactly this many environment steps; ``None``: ``episodes`` decides
    :param off_policy_noise: in training, each action is replaced by a random one with this probability, and each
        training episode is followed by a test episode without noise that is not learned from; ``None``: neither
    :param remember_tests: put the transitions of test episodes into the replay memory, as the code of the paper does;
        no epoch follows them, but later ones may draw them
    :param record_entropy: keep the entropy of the policy in every step, for agents with an actor
    :param n_envs: how many environments are stepped together; the last step may then end more episodes than asked for
    :param eval_every: evaluate the agent each time so many steps are made, and keep the best one; ``None``: do not
    :param eval_episodes: of each evaluation
    :param film_every: film an episode each time so many episodes have ended; ``None``: do not
    """

    episodes: StrictInt | None = DEFAULT_EPISODES
    steps: StrictInt | None = None
    off_policy_noise: StrictFloat | None = None
    remember_tests: StrictBool = False
    record_entropy: StrictBool = False
    n_envs: StrictInt = 1
    eval_every: StrictInt | None = None
    eval_episodes: StrictInt = 5
    film_every: StrictInt | None = None

    @property
    def length(self) -> int:
        """How many episodes the run is to have, or steps."""
        return self.episodes or self.steps or 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.episodes is None) == (self.steps is None):
            raise RunError("give either a number of episodes or a number of steps, not both and not neither")
        if (self.episodes or self.steps or 0) < 1:
            raise RunError("the number of episodes or steps must be at least 1")
        if self.off_policy_noise is not None and not 0 <= self.off_policy_noise <= 1:
            raise RunError(f"off-policy noise is a probability, from 0 to 1, not {self.off_policy_noise}")
        if self.remember_tests and (self.off_policy_noise is None or self.n_envs > 1):
            raise RunError("remember_tests is for runs with off_policy_noise, in one environment: there are no tests")
        for name in ("n_envs", "eval_every", "eval_episodes", "film_every"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise RunError(f"{name} must be at least 1, not {value}")
        if self.n_envs > MOST_ENVIRONMENTS:
            raise RunError(f"n_envs must be at most {MOST_ENVIRONMENTS}, not {self.n_envs}: they share one process")
        if self.n_envs > 1 and self.record_entropy:
            raise RunError("the entropy of the policy is recorded in one environment: leave n_envs out")
        return self


class OfflineConfig(BaseConfig):
    """One agent, one journal, one seed, for so many epochs.

    :param environment: to test the agent in afterwards; empty: it is not tested
    :param journal: path of the journal whose transitions are learned from
    :param epochs: of learning; ``None``: as many as there are transitions
    :param transitions: in the journal, when it was read
    """

    environment: Annotated[
        Printable,
        BeforeValidator(lambda name: "" if name is None else name),
        PlainSerializer(lambda name: name or None),
    ] = ""
    journal: str
    epochs: StrictInt | None = None
    transitions: StrictInt | None = None


@checked_dataclass(frozen=True)
class Place:
    """Where a run belongs in a study.

    :param study: name of the study, ``"figure2"``
    :param row: of its figure, ``"algorithms"``
    :param environment: Gymnasium id, ``"FrozenLake8x8-v1"``
    :param series: name of the curve, ``"BDPI"`` or ``"16x8"``
    :param seed: runs of one series differ in it
    """

    study: Printable
    row: Printable
    environment: Printable
    series: Printable
    seed: int


def _checked_choice(choice: tuple[int, int]) -> tuple[int, int]:
    if not 0 <= choice[0] < choice[1]:
        raise ValueError("it should be which value, and of how many")
    return choice


Choice = Annotated[tuple[StrictInt, StrictInt], AfterValidator(_checked_choice)]


class Circumstances(BaseModel):
    """When, how and with what a session was started."""

    started: str = ""
    command: Annotated[list[str], Field(max_length=_MOST_PARTS)] = []
    versions: Annotated[dict[str, str], Field(max_length=_MOST_PARTS)] = {}
    platform: str = ""


class RunStatus(Circumstances):
    """How far a run has come, and what made it. Only what was set is written.

    :param state: as ``status`` in the file
    :param result: when it was saved last; ``None``: never
    :param resumable: whether a stopped run can go on; otherwise it starts over
    :param policy: SB3's name of the networks
    :param learner: which one the agent has chosen
    :param defaults: hyper-parameters that were not given
    :param resumed: later sessions
    :param finished: when the last session ended
    :param checkpoint: number of the last one
    :param evaluations: how many episodes of them there were at that time
    :param findings: why the run may not learn: code, message and remedy of each
    :param log: services that its numbers go to
    :param log_id: by which they know the run
    :param study: where it belongs, in a study
    :param configuration: where hyper-parameters were drawn from lists, which value each has, and of how many
    """

    state: State = Field(alias="status")
    result: Summary | OfflineSummary | None = None
    resumable: StrictBool = True
    policy: str = ""
    learner: str = ""
    defaults: dict[str, Any] = {}
    resumed: Annotated[list[Circumstances], Field(max_length=_MOST_PARTS)] = []
    finished: str | None = None
    checkpoint: StrictInt = 0
    evaluations: Annotated[StrictInt, Field(ge=0)] = 0
    findings: Annotated[list[dict[str, str]], Field(max_length=_MOST_PARTS)] = []
    log: Annotated[list[Literal["tensorboard", "wandb", "mlflow", "csv"]], Field(max_length=4)] = []
    log_id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] = ""
    study: Place | None = None
    configuration: Annotated[dict[str, Choice], Field(max_length=_MOST_PARTS)] | None = None

    @property
    def learned_by(self) -> set[str]:
        """What made it learn, see ``LEARNING`` of :mod:`bdpi.runs.versions`; empty if a session does not say."""
        return {each.versions.get("learning", "") for each in (self, *self.resumed)}

    @property
    def episodes(self) -> int:
        """How many the run had when it was saved last."""
        return self.result.episodes if isinstance(self.result, Summary) else 0

    def length(self, config: RunConfig) -> int:
        """How many episodes the run had when it was saved last, or steps, if ``config`` counts these."""
        if not isinstance(self.result, Summary):
            return 0
        return self.result.steps if config.episodes is None else self.result.episodes

    def is_complete(self, config: RunConfig) -> bool:
        """Whether it had all that ``config`` asks for."""
        return self.length(config) >= config.length

    @property
    def test_episodes(self) -> int:
        """How many the run had when it was saved last."""
        return 0 if self.result is None else self.result.test_episodes


def _names(value: Any) -> Iterator[str]:
    """The keys of all dictionaries that JSON has."""
    if isinstance(value, dict):
        yield from value
        value = [*value.values()]
    for part in value:
        if part and isinstance(part, (dict, list)):
            yield from _names(part)


@dataclass(frozen=True)
class RunRecord:
    """The content of ``config.json``.

    :param config: what to run
    :param status: how far that has come
    """

    config: RunConfig | OfflineConfig
    status: RunStatus

    @classmethod
    def parse(cls, data: Any, source: object) -> RunRecord:
        """:param data: the text of the file, or what JSON makes of it
        :param source: where it is from, for messages
        :raises RunError: for another version of the schema, and for values that make no sense
        """
        remedy = "correct it, or take another copy of it"
        if isinstance(data, bytes):
            try:
                data = parse_json(data)
            except Damaged as error:
                raise RunError(f"{source} is damaged: {one_line(error)}; {remedy}") from None
        if not isinstance(data, dict) or not isinstance(data.get("agent"), str):
            raise RunError(f"{source} was not written by bdpi: it names no environment and agent; {remedy}")
        if not all(map(str.isprintable, _names(data))):
            raise RunError(f"{source} is damaged: it has a name with what moves a terminal's cursor; {remedy}")
        version = data.get("schema_version", SCHEMA_VERSION)
        if version != SCHEMA_VERSION:
            raise RunError(f"{source} has schema_version {version!r}, and {SCHEMA_VERSION} is known: use a newer bdpi")
        config: type[RunConfig | OfflineConfig] = OfflineConfig if "journal" in data else RunConfig
        missing = next((name for name in config.model_fields if name not in data and name not in _OPTIONS), None)
        if missing is not None:
            raise RunError(f"{source} is damaged: it has no {missing!r}; {remedy}")
        try:
            given = {name: data[name] for name in config.model_fields if name in data}
            return cls(config.model_validate(given), RunStatus.model_validate(data))
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            value = "missing" if first["type"] == "missing" else f"{first['input']!r:.80}"
            raise RunError(f"{source} is damaged: {name} is {value}: {first['msg']}; {remedy}") from None
        except RunError as error:
            raise RunError(f"{source} is damaged: {error}; {remedy}") from None

    def as_dict(self) -> dict[str, Any]:
        """As the file has it."""
        status = self.status.model_dump(exclude_unset=True, by_alias=True)
        fields = type(self.config).model_fields
        config = {
            name: value
            for name, value in self.config.model_dump().items()
            if name not in _OPTIONS or value != fields[name].default
        }
        return {"schema_version": SCHEMA_VERSION, **config, **status}
