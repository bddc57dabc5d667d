"""A task file: what a robot sees, what it can do, how it learns, and what it must not do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator
from typing_extensions import Self

from bdpi.agents.advice import check_url
from bdpi.agents.schema import PATHS
from bdpi.runs.config import Printable
from bdpi.runs.errors import RunError, one_line
from bdpi.storage.reading import Damaged, read_bytes
from bdpi.studies.settings import check_settings
from bdpi.studies.tables import read_yaml

LARGEST = 256 << 10  # bytes of a task file
_OWN = ("seed", "asynchronous", "advisors", "advice_steps", *PATHS)
Label = Annotated[Printable, Field(min_length=1, max_length=100)]


class Dimension(BaseModel):
    """One number of an observation.

    :param low: smallest value that is expected
    :param high: largest value that is expected
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Label
    low: FiniteFloat
    high: FiniteFloat
    unit: Printable = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"{self.name}: low is {self.low:g}, which must be less than high, {self.high:g}")
        return self


class Rule(BaseModel):
    """While a number is too large or too small, some actions are not allowed; neither the policy's nor a person's.

    :param when: name of the number
    :param forbid: names of actions
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    when: Label
    above: FiniteFloat | None = None
    below: FiniteFloat | None = None
    forbid: list[Label] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError(f"the rule for {self.when!r} needs either above or below")
        return self


class Limits(BaseModel):
    """What clients may ask of the server.

    :param robots: that may ever take part
    :param requests_per_second: of each robot
    :param connections: at the same time
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    robots: int = Field(16, ge=1, le=1000)
    requests_per_second: float = Field(1000.0, gt=0, le=1e6)
    connections: int = Field(256, ge=1, le=10_000)


class RobotTask(BaseModel):
    """What ``bdpi serve`` is given.

    :param observations: the numbers that a robot sees
    :param actions: their names
    :param agent: one with an actor
    :param seed: of the agent
    :param hyperparameters: arguments of the agent that differ from its defaults
    :param policy_kwargs: as in ``config.json`` of a run
    :param safety: when actions are not allowed
    :param safe_action: what robots do while they are stopped, paused, or wait for a person; None: nothing
    :param ask_above: uncertainty, from 0 to 1, above which a person is asked; None: never
    :param ask_seconds: for so long
    :param ask_fallback: name of the action that is taken then; None: the policy's
    :param advisors: URLs that say how probable each action should be, see :mod:`bdpi.agents.advice`
    :param advice_steps: after so many transitions, advice has faded; None: it does not
    :param success_reward: added when a person marks an episode as a success
    :param failure_reward: added when a person marks it as a failure
    :param durable: wait for the disk at each transition, so that a power failure loses none
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[Printable, Field(min_length=1, max_length=100)]
    observations: list[Dimension] = Field(min_length=1, max_length=10_000)
    actions: list[Label] = Field(min_length=2, max_length=1000)
    agent: Literal["bdpi", "bdpi-paper", "actor-mimic"] = "bdpi"
    seed: int = Field(0, ge=0, lt=2**32)
    hyperparameters: dict[str, Any] = {}
    policy_kwargs: dict[str, Any] = {}
    safety: list[Rule] = []
    safe_action: Label | None = None
    ask_above: float | None = Field(None, ge=0, le=1)
    ask_seconds: float = Field(10.0, gt=0, le=3600)
    ask_fallback: Label | None = None
    advisors: list[Printable] = Field([], max_length=16)
    advice_steps: int | None = Field(None, ge=1, lt=2**62)
    success_reward: FiniteFloat = 1.0
    failure_reward: FiniteFloat = -1.0
    durable: bool = False
    limits: Limits = Field(default_factory=lambda: Limits.model_validate({}))

    @model_validator(mode="after")
    def _check(self) -> Self:
        for what, names in (("observations", [each.name for each in self.observations]), ("actions", self.actions)):
            twice = next((name for name, n in Counter(names).items() if n > 1), None)
            if twice is not None:
                raise ValueError(f"{what} has the name {twice!r} twice")
        named = [self.safe_action, self.ask_fallback, *(name for rule in self.safety for name in rule.forbid)]
        unknown = next((name for name in named if name is not None and name not in self.actions), None)
        if unknown is not None:
            raise ValueError(f"{unknown!r} is none of the actions, {', '.join(self.actions)}")
        seen = [each.name for each in self.observations]
        unseen = next((rule.when for rule in self.safety if rule.when not in seen), None)
        if unseen is not None:
            raise ValueError(f"{unseen!r} is none of the observations, {', '.join(seen)}")
        for url in self.advisors:
            check_url(url)
        own = next((name for name in _OWN if name in self.hyperparameters), None)
        if own is not None:
            raise ValueError(f"hyperparameters has {own!r}, which the task or the server decides: leave it out")
        return self

    def observation_space(self) -> spaces.Box:
        low, high = (
            np.array([getattr(each, end) for each in self.observations], np.float32) for end in ("low", "high")
        )
        return spaces.Box(low, high, dtype=np.float32)

    def number_of(self, action: str | None) -> int | None:
        """Of an action; None: of none."""
        return None if action is None else self.actions.index(action)

    def allowed(self, observation: Any) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Which actions the rules leave; None: all."""
        if not self.safety:
            return None
        mask = np.ones(len(self.actions), dtype=bool)
        names = [each.name for each in self.observations]
        for rule in self.safety:
            value = float(observation[names.index(rule.when)])
            if (rule.above is not None and value > rule.above) or (rule.below is not None and value < rule.below):
                mask[[self.actions.index(name) for name in rule.forbid]] = False
        return mask


def complaint(error: ValidationError) -> tuple[str, str]:
    """The field that is wrong first, and what is wrong with it, with its value."""
    first = error.errors()[0]
    field, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    if not field:  # of several fields together
        return field, message
    if first["type"] == "missing":
        return field, f"{field} is missing"
    value = "" if isinstance(first["input"], dict) else f" is {first['input']!r:.80}"
    return field, f"{field}{value}: {message}"


def read_task(path: Path, trust: bool = False) -> RobotTask:
    """The task that a file describes.

    :param trust: the user trusts the file, and has the server ask the advisors that it names
    :raises RunError: for a file that cannot be read, makes no sense, or needs trust
    """
    try:
        content = read_yaml(read_bytes(path, LARGEST).decode(), str(path))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from None
    except Damaged as error:
        raise RunError(f"{path} is no task file: {error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise RunError(f"{path} is not YAML: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} must name observations and actions, see docs/serve.md")
    try:
        task = RobotTask.model_validate(content)
    except ValidationError as error:
        hint = ""
        if any(isinstance(each["input"], bool) and each["type"] == "string_type" for each in error.errors()):
            hint = ' (YAML takes on, off, yes and no for truth values: write "on")'
        raise RunError(f"{path}: {one_line(complaint(error)[1])}{hint}") from None
    if task.advisors and not trust:
        raise RunError(
            f"{path} names the advisor {task.advisors[0]}, which would be told all observations: if you know it and "
            "trust the file, give --trust"
        )
    for key in ("hyperparameters", "policy_kwargs"):
        check_settings(task.agent, {name: [value] for name, value in getattr(task, key).items()}, str(path), key)
    return task
