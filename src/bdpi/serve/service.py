"""The learning service behind the server: several robots, one agent, and persons who watch. One thread calls it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bdpi.agents import Ensemble
from bdpi.agents.advice import Weights
from bdpi.agents.journal import JournalError, Transition
from bdpi.agents.robots import Robot
from bdpi.runs.logs import Log
from bdpi.serve.curves import POINTS, SHOWN, live_curves
from bdpi.serve.person import Person
from bdpi.serve.protocol import (
    Action,
    ActRequest,
    Begun,
    EpisodeRequest,
    ObserveRequest,
    PersonRequest,
    Refused,
    StepRequest,
    Stored,
)
from bdpi.serve.sessions import Answered, Sessions
from bdpi.serve.task import RobotTask
from bdpi.serve.uncertainty import Uncertainty


class _Session:
    """One robot: where it is, what it was told last, and what a person wants of it."""

    def __init__(self, name: str, robot: Robot, task: RobotTask, last: Answered | None) -> None:
        self.name, self.robot, self.person, self.last = name, robot, Person(task), last
        self.observation, self.mask = None, None
        if last is not None and last.observation is not None:
            self.observation = np.frombuffer(last.observation, np.float32)
            self.mask = None if last.mask is None else np.frombuffer(last.mask, np.bool_)
            self.person.started = json.loads(last.answer).get("status") != "paused"  # else it may wait for its start
        self.told: Action | None = None
        #: of its camera, the latest; for the page
        self.picture: str | None = None
        self._tokens, self._filled = max(1.0, task.limits.requests_per_second), time.monotonic()

    @property
    def seq(self) -> int:
        return 0 if self.last is None else self.last.seq

    def count(self, per_second: float) -> None:
        """:raises Refused: for more requests than that, after a burst of as many, or of one"""
        now = time.monotonic()
        self._tokens = min(max(1.0, per_second), self._tokens + (now - self._filled) * per_second)
        self._filled = now
        if self._tokens < 1:
            raise Refused(429, "robot", f"{self.name} sends more than {per_second:g} requests a second: send fewer")
        self._tokens -= 1


class Service:
    """Answers robots and persons.

    :param task: what is learned
    :param agent: which learns it, with a journal
    :param store: the requests that were answered
    :param journal: its file
    :param log: of the run until now
    """

    def __init__(self, task: RobotTask, agent: Ensemble, store: Sessions, journal: Path, log: Log) -> None:
        assert agent.collector.journal is not None
        self.task, self.agent, self._journal, self._store = task, agent, agent.collector.journal, store
        self._files = [journal.with_name(f"{journal.name}{ending}") for ending in ("", "-wal")]
        self.sessions: dict[str, _Session] = {}
        for name, number in self._store.robots().items():
            self.sessions[name] = _Session(name, Robot(agent, number), task, self._store.last(number))
        self.uncertainty = Uncertainty(agent)
        self._checkpoints = self._journal.checkpoints(), store.checkpoints
        on = store.switches()
        self.paused, self.stopped, self.holds = "paused" in on, "stopped" in on, "holds" in on
        #: of the latest episodes; those before the last start are in the log
        self.returns: deque[float] = deque(log.returns[np.isfinite(log.returns)].tolist(), maxlen=SHOWN)
        values = np.stack([log.steps, log.expected, log.followed], axis=1)
        agent._checkup.values.extend(map(tuple, values[np.isfinite(values).all(axis=1)].tolist()))
        #: time, reward, entropy and disagreement of the latest steps
        self.steps: deque[tuple[float, float, float, float]] = deque(maxlen=SHOWN)

    def tidy(self) -> None:
        """What waits for epochs and for the disk: to be done every second, in another thread."""
        self.uncertainty.refresh()
        for make in self._checkpoints:
            make()

    # -- robots -------------------------------------------------------------------------------------------------

    def begin(self, request: EpisodeRequest) -> Begun:
        session = self._session(request.robot)
        if request.seq is None:
            request = request.model_copy(update={"seq": session.seq + 1})

        def work() -> tuple[Begun, None, Any, None]:
            session.robot.begin_episode()
            session.person.begin_episode()
            assert request.seq is not None
            return Begun(seq=request.seq), None, None, None

        return self._once(session, request, Begun, work)

    def advice(self, request: ActRequest | StepRequest) -> Weights | None:
        """What advisors say of where the robot will act; this may take a while, and another thread may call it."""
        advice, session, numbers = self.agent.advice, self.sessions.get(request.robot), _acts_in(request)
        is_next = request.seq == 1 + (0 if session is None else session.seq)  # else it is refused, or answered again
        if advice is None or not is_next or len(numbers) != len(self.task.observations):
            return None
        with np.errstate(over="ignore"):
            observation = np.array(numbers, np.float32)
        return advice([observation], self.agent.num_timesteps) if np.isfinite(observation).all() else None

    def act(self, request: ActRequest, advice: Weights | None = None) -> Action:
        session = self._session(request.robot)

        def work() -> tuple[Action, None, Any, Any]:
            observation = self._observation(session, "observation", request.observation)
            mask = self._mask(session, "mask", request.mask, observation)
            return self._decide(session, request.seq, observation, mask, advice), None, observation, mask

        return self._once(session, request, Action, work)

    def observe(self, request: ObserveRequest) -> Stored:
        session = self._session(request.robot)

        def work() -> tuple[Stored, Transition, None, None]:
            step = self._transition(session, request)
            ended = step.terminated or step.truncated
            return Stored(seq=request.seq, stored=self._journal.last + 1, ended=ended), step, None, None

        return self._once(session, request, Stored, work)

    def step(self, request: StepRequest, advice: Weights | None = None) -> Action:
        session = self._session(request.robot)

        def work() -> tuple[Action, Transition, Any, Any]:
            step, stored = self._transition(session, request), self._journal.last + 1
            if step.terminated or step.truncated:
                answer = self._answer(request.seq, "ended", None)
                return answer.model_copy(update={"stored": stored}), step, None, None
            answer = self._decide(session, request.seq, step.next_observation, step.next_mask, advice)
            return answer.model_copy(update={"stored": stored}), step, step.next_observation, step.next_mask

        return self._once(session, request, Action, work)

    def _session(self, name: str) -> _Session:
        if name not in self.sessions:
            most = self.task.limits.robots
            if len(self.sessions) >= most:
                raise Refused(403, "robot", f"{name} would be robot {most + 1}, and the task allows {most}")
            number = len(self.sessions)
            self._store.add_robot(name, number)
            self.sessions[name] = _Session(name, Robot(self.agent, number), self.task, None)
        session = self.sessions[name]
        session.count(self.task.limits.requests_per_second)
        return session

    def _once(self, session: _Session, request: Any, kind: type[Any], work: Callable[[], tuple[Any, ...]]) -> Any:
        """Do what a request asks for, if it has not been done; answer it again, if it has.

        :param work: checks the request; gives the answer, the transition to store, and where the robot is then
        """
        digest = hashlib.sha256(f"{type(request).__name__} {request.model_dump_json()}".encode()).digest()
        last, expected = session.last, session.seq + 1
        if last is not None and request.seq == last.seq:
            if digest == last.digest:
                return kind.model_validate_json(last.answer)
            raise Refused(409, "seq", f"seq {request.seq} was another request: the next one has seq {expected}")
        if request.seq != expected:
            raise Refused(
                409, "seq", f"seq is {request.seq}, and {session.name} has come to {session.seq}: send {expected}"
            )
        answer, step, observation, mask = work()
        blob, allowed = (None if array is None else array.tobytes() for array in (observation, mask))
        number = self._journal.last + (step is not None)
        done = Answered(request.seq, number, digest, blob, allowed, answer.model_dump_json())
        try:
            self._store.note(session.robot.number, done, self._journal.last)
            if step is not None:
                self._store_step(session, step)
        except (JournalError, sqlite3.Error) as error:
            raise Refused(507, "seq", f"nothing was stored: {error}") from error
        session.last, session.observation, session.mask = done, observation, mask
        session.picture = getattr(request, "picture", None) or session.picture
        session.told = answer if isinstance(answer, Action) else None
        return answer

    def _store_step(self, session: _Session, step: Transition) -> None:
        session.robot.observe(step)
        session.person.answered()
        self.steps.append((time.monotonic(), step.reward, self.uncertainty.entropy, self.uncertainty.disagreement))
        if step.terminated or step.truncated:
            self.returns.append(session.robot.episodes.last[0])
            session.person.begin_episode()

    # -- checking -----------------------------------------------------------------------------------------------

    def _observation(self, session: _Session, field: str, numbers: list[float]) -> Any:
        names = [each.name for each in self.task.observations]
        if len(numbers) != len(names):
            shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            raise Refused(422, field, f"{field} has {len(numbers)} numbers, and the task has {len(names)}: {shown}")
        with np.errstate(over="ignore"):
            observation = np.array(numbers, np.float32)
        if not np.isfinite(observation).all():
            raise Refused(422, field, f"{field} holds {max(numbers, key=abs):g}, too large for single precision")
        return observation

    def _mask(self, session: _Session, field: str, given: list[int] | None, observation: Any) -> Any:
        """What the robot can do and the task's rules allow; None: everything."""
        rules = self.task.allowed(observation)
        if given is None:
            mask = rules
        elif len(given) != len(self.task.actions):
            raise Refused(422, field, f"{field} has {len(given)} entries, the task {len(self.task.actions)} actions")
        else:
            mask = np.array(given, bool) if rules is None else np.array(given, bool) & rules
        if mask is not None and not mask.any():
            raise Refused(422, field, f"{field} and the safety rules of the task leave no action: stand still")
        return mask

    def _transition(self, session: _Session, request: ObserveRequest) -> Transition:
        """What is to be stored, as the agent keeps it; a person's mark ends the episode."""
        if session.observation is None:
            raise Refused(409, "seq", f"{session.name} has not acted since its episode began: send act before")
        after = self._observation(session, "next_observation", request.next_observation)
        mask, person = session.mask, session.person.mark
        next_mask = self._mask(session, "next_mask", request.next_mask, after)
        terminated = request.terminated or person in ("success", "failure")
        if mask is not None and next_mask is None and not terminated:
            raise Refused(422, "next_mask", "next_mask is missing, and act was given a mask: say what is possible now")
        reward = request.reward
        if person in ("success", "failure"):
            reward += self.task.success_reward if person == "success" else self.task.failure_reward
        if request.executed_action not in range(len(self.task.actions)):
            raise Refused(
                422,
                "executed_action",
                f"executed_action is {request.executed_action}, and actions go from 0 to {len(self.task.actions) - 1}",
            )
        truncated = (request.truncated or person == "end") and not terminated
        try:
            return session.robot.check_step(
                Transition(
                    session.observation,
                    request.executed_action,
                    reward,
                    after,
                    terminated,
                    truncated,
                    mask=mask,
                    next_mask=next_mask,
                )
            )
        except ValueError as error:
            raise Refused(422, "reward", str(error)) from error

    # -- acting -------------------------------------------------------------------------------------------------

    def _decide(self, session: _Session, seq: int, observation: Any, mask: Any, advice: Weights | None) -> Action:
        """Whose action is taken, and which."""
        person, robot = session.person, session.robot
        probabilities = robot.probabilities(observation, mask)
        uncertainty = self.uncertainty(robot.seen(observation)[0], probabilities)
        probabilities = robot.advised(probabilities, advice)
        held, safe = person.action, self.task.number_of(self.task.safe_action)
        status, action = "policy", safe
        if self.stopped:
            status = "stopped"
        elif held is not None and (mask is None or mask[held]):
            status, action = "person", held
            person.answered()
        elif self.paused or self._waits(session):
            status = "paused"
        else:
            person.started = True
            status = person.ask(uncertainty) if self.uncertainty.is_calibrated else "policy"
            if status == "fallback":
                action = self.task.number_of(self.task.ask_fallback)
            if status == "policy" or (status == "fallback" and (action is None or not (mask is None or mask[action]))):
                action = robot.pick(probabilities)
        if action is not None and mask is not None and not mask[action]:
            action = None  # what is safe elsewhere is not allowed here
        answer = self._answer(seq, status, action)
        rounded = [round(float(each), 6) for each in probabilities]
        return answer.model_copy(update={"probabilities": rounded, "uncertainty": round(uncertainty, 4)})

    def _waits(self, session: _Session) -> bool:
        """For a person who starts its episode."""
        return self.holds and not session.person.started

    def _answer(self, seq: int, status: Any, action: int | None) -> Action:
        name = None if action is None else self.task.actions[action]
        return Action(seq=seq, action=action, name=name, status=status, policy_version=self.agent._n_updates)

    # -- persons ------------------------------------------------------------------------------------------------

    def command(self, request: PersonRequest) -> None:
        """Do what a person wants."""
        name = request.command
        if name in ("stop", "clear"):
            self.stopped = name == "stop"
            self._keep("stopped", self.stopped)
        elif name in ("pause", "resume"):
            self.paused = name == "pause"
            self._keep("paused", self.paused)
        elif name in ("hold", "go_on"):
            self.holds = name == "hold"
            self._keep("holds", self.holds)
        elif name in ("pause_learning", "resume_learning"):
            if (name == "resume_learning") != self.learns:
                (self.agent.start_learning if name == "resume_learning" else self.agent.stop_learning)()
            self._keep("rests", not self.learns)
        elif request.robot not in self.sessions:
            raise Refused(404, "robot", f"there is no robot {request.robot}")
        else:
            person = self.sessions[request.robot].person
            if name == "release":
                person.release()
            elif name == "start":
                person.started, person.mark = True, None
            elif name == "drive":
                if request.action not in range(len(self.task.actions)):
                    most = len(self.task.actions) - 1
                    raise Refused(422, "action", f"action is {request.action}, and actions go from 0 to {most}")
                person.drive(int(request.action or 0))
            else:
                person.mark = name  # type: ignore[assignment]

    def _keep(self, switch: str, on: bool) -> None:
        try:
            self._store.switch(switch, on)
        except sqlite3.Error as error:
            raise Refused(507, "command", f"done, but forgotten when the server is started again: {error}") from error

    @property
    def learns(self) -> bool:
        return bool(self.agent._background.is_running)

    def state(self, with_curves: bool = True) -> dict[str, Any]:
        """All that the page shows."""
        now, agent = time.monotonic(), self.agent
        latest = [each for each in self.steps if each[0] > now - 10]
        span = now - latest[0][0] if len(latest) == SHOWN else 10.0
        totals: dict[str, Any] = {
            "steps": agent.num_timesteps,
            "episodes": agent._episode_num,
            "steps_per_second": round(len(latest) / span, 1),
            "policy_version": agent._n_updates,
            "epochs_due": agent.epochs_due,
            "journal_bytes": sum(file.stat().st_size for file in self._files if file.exists()),
            "learns": self.learns,
            "paused": self.paused,
            "stopped": self.stopped,
            "holds": self.holds,
        }
        robots = [
            {
                "name": session.name,
                "observation": None if session.observation is None else session.observation.tolist(),
                "mask": None if session.mask is None else session.mask.tolist(),
                "told": None if session.told is None else json.loads(session.told.model_dump_json()),
                "driven": session.person.action,
                "asks": session.person.is_asked,
                "mark": session.person.mark,
                "waits": self._waits(session) and session.told is not None and session.told.status == "paused",
                "picture": session.picture,
                "return": session.robot.episodes.sums[0],
                "length": session.robot.episodes.steps[0],
            }
            for session in self.sessions.values()
        ]
        return {**totals, "robots": robots, **({"curves": self._curves()} if with_curves else {})}

    def _curves(self) -> dict[str, Any]:
        agent = self.agent
        first = agent.num_timesteps - len(self.steps) + 1
        points = {
            name: [(first + number, each[column]) for number, each in enumerate(self.steps)]
            for column, name in enumerate(POINTS, 1)
        }
        return live_curves(list(self.returns), agent._episode_num, points, list(agent._checkup.values))


def _acts_in(request: ActRequest | StepRequest) -> list[float]:
    """The observation that an action is asked for; none where an episode ends."""
    if isinstance(request, ActRequest):
        return request.observation
    return [] if request.terminated or request.truncated else request.next_observation
