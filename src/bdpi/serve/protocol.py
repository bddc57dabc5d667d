"""What robots and persons send, version 1. What is not described here is refused."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, StrictBool, StrictInt

from bdpi.serve.pictures import LONGEST, check_picture

#: What a robot may be called.
ROBOT = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
Name = Annotated[str, Field(pattern=ROBOT)]
Numbers = Annotated[list[FiniteFloat], Field(max_length=10_000)]
Mask = Annotated[list[Annotated[int, Field(ge=0, le=1)]], Field(max_length=1000)]
#: JPEG or PNG in base64.
Picture = Annotated[str, Field(max_length=LONGEST), AfterValidator(check_picture)]

_Switch = Literal["stop", "clear", "pause", "resume", "pause_learning", "resume_learning", "hold", "go_on"]
_Command = Literal["drive", "release", "start"]
_Mark = Literal["success", "failure", "end"]


class Refused(Exception):
    """A request that is not done; nothing has changed.

    :param status: of HTTP
    :param field: of the request
    :param message: with the value and the remedy
    """

    def __init__(self, status: int, field: str, message: str) -> None:
        super().__init__(message)
        self.status, self.field, self.message = status, field, message


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    robot: Name = "robot"


class EpisodeRequest(_Request):
    """Begin an episode; one that was going on is given up.

    :param seq: one more than the last; None: not known, and the answer says it
    """

    seq: Annotated[StrictInt, Field(ge=1)] | None = None


class _Numbered(_Request):
    seq: Annotated[StrictInt, Field(ge=1)]
    picture: Picture | None = None


class ActRequest(_Numbered):
    """Ask for an action.

    :param picture: of a camera, for the page; nothing is learned from it, and it is not kept
    :param observation: what the robot sees now
    :param mask: which actions are possible, zeros and ones; None: all
    """

    observation: Numbers
    mask: Mask | None = None


class ObserveRequest(_Numbered):
    """Tell what happened after ``act``.

    :param picture: as in ``act``
    :param executed_action: what was really done
    :param terminated: the task is over
    :param truncated: the episode was ended, but could have gone on
    :param next_mask: which actions are possible now; needed where ``act`` was given a mask
    """

    executed_action: StrictInt
    reward: FiniteFloat
    next_observation: Numbers
    terminated: StrictBool = False
    truncated: StrictBool = False
    next_mask: Mask | None = None


class StepRequest(ObserveRequest):
    """``observe``, and ``act`` in the next observation."""


class PersonRequest(_Request):
    """What a person at the page wants.

    :param command: ``drive`` holds for a second, and is repeated while a button is held; after ``hold``, robots wait
        before the first action of each episode, until ``start`` or ``go_on``
    :param action: of ``drive``
    """

    command: Literal[_Switch, _Command, _Mark]
    action: StrictInt | None = None


class Refusal(BaseModel):
    """The answer to what is refused; nothing has changed then.

    :param error: what is wrong, and what to do
    :param field: of the request; empty: the request as a whole
    """

    error: str
    field: str


class Begun(BaseModel):
    """:param seq: of this request; the next one has one more"""

    seq: int


class Stored(Begun):
    """:param stored: number of the transition in the journal
    :param ended: the episode is over, perhaps because a person ended it: begin the next one
    """

    stored: int
    ended: bool


class Action(Begun):
    """:param action: to be executed, counted from 0; None: none
    :param name: of the action
    :param status: ``policy``, ``person`` or ``fallback`` says whose action it is; ``ask``: wait for a person, and
        ask again; ``paused``, ``stopped``: stand still; ``ended``: begin the next episode
    :param probabilities: of the policy, with the advice that there is
    :param uncertainty: from 0 to 1, among the states of the last hour
    :param policy_version: epochs that were learned
    :param stored: number of the transition in the journal, after ``step``
    """

    action: int | None
    name: str | None
    status: Literal["policy", "person", "fallback", "ask", "paused", "stopped", "ended"]
    probabilities: list[float] = []
    uncertainty: float | None = None
    policy_version: int
    stored: int | None = None
