"""A robot that learns from a bdpi server. Python's standard library is enough; copy this file.

robot = Robot("127.0.0.1", 8088, "arm-1")
robot.begin()
answer = robot.act(observation)
while answer["status"] != "ended":
    if answer["action"] is None:  # stopped, paused, or waiting for a person: stand still
        time.sleep(0.1)
        answer = robot.act(observation)
        continue
    observation, reward, terminated, truncated = move(answer["action"])
    answer = robot.step(answer["action"], reward, observation, terminated, truncated)

Where there is a gymnasium.Env: for episode_return in episodes(env, robot): ...
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any


class Refused(Exception):
    """The server refuses a request: what is wrong with which field."""


class Robot:
    """One robot. Requests that get no answer are repeated, and the server does not store them twice.

    :param name: tells it from other robots of the same task
    :param token: that the server printed, where it listens to others
    :param patience: seconds that a server may be away, for instance to be started again
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 8088, name: str = "robot", token: str = "", patience: float = 60.0
    ) -> None:
        self._address, self._name, self._patience = (host, port), name, patience
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connection: http.client.HTTPConnection | None = None
        self._seq = 0

    def begin(self) -> None:
        """Begin an episode."""
        self._seq = self._post("episodes", {"robot": self._name})["seq"]

    def act(
        self, observation: Sequence[float], mask: Sequence[int] | None = None, picture: bytes | None = None
    ) -> dict[str, Any]:
        """What to do now: ``action``, ``status``, ``probabilities``, ``uncertainty``, ``policy_version``.

        :param picture: of a camera, a small JPEG or PNG, which the page shows
        """
        return self._next("act", picture, observation=list(observation), mask=mask)

    def step(
        self,
        executed_action: int,
        reward: float,
        next_observation: Sequence[float],
        terminated: bool = False,
        truncated: bool = False,
        next_mask: Sequence[int] | None = None,
        picture: bytes | None = None,
    ) -> dict[str, Any]:
        """Tell what really happened, and ask what to do next; ``status`` is "ended" where the episode is over."""
        return self._next(
            "step",
            picture,
            executed_action=executed_action,
            reward=reward,
            next_observation=list(next_observation),
            terminated=terminated,
            truncated=truncated,
            next_mask=next_mask,
        )

    def _next(self, kind: str, picture: bytes | None, **body: Any) -> dict[str, Any]:
        if picture is not None:
            body["picture"] = base64.b64encode(picture).decode()
        answer = self._post(kind, {"robot": self._name, "seq": self._seq + 1, **body})
        self._seq = answer["seq"]
        return answer

    def _post(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        text, deadline = json.dumps(body), time.monotonic() + self._patience
        while True:
            try:
                if self._connection is None:
                    silent = min(10.0, max(1.0, self._patience))  # seconds that a server may take to answer
                    self._connection = http.client.HTTPConnection(*self._address, timeout=silent)
                self._connection.request("POST", f"/v1/{kind}", text, self._headers)
                response = self._connection.getresponse()
                answer = json.loads(response.read())
                break
            except (OSError, http.client.HTTPException, ValueError):  # no answer, or half of one
                self.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        if response.status != 200:
            raise Refused(f"{response.status}: {answer.get('error', answer)}")
        return dict(answer)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def episodes(env: Any, robot: Robot) -> Iterator[float]:
    """Have the server act in a ``gymnasium.Env``, and learn from it: the return of one episode after the other.

    :param env: observations are vectors of numbers, actions Discrete from 0 on
    """
    while True:
        observation, _ = env.reset()
        robot.begin()
        answer, total = robot.act(observation.tolist()), 0.0
        while answer["status"] != "ended":
            if answer["action"] is None:  # stopped, paused, or waiting for a person: stand still
                time.sleep(0.1)
                answer = robot.act(observation.tolist())
                continue
            observation, reward, terminated, truncated, _ = env.step(answer["action"])
            total += float(reward)
            answer = robot.step(
                answer["action"], float(reward), observation.tolist(), bool(terminated), bool(truncated)
            )
        yield total
