"""An environment on another machine: the learner's side. See :mod:`bdpi.envs.remote` for the robot's."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from bdpi.envs.descriptions import space_of

#: Bytes of a message, either way.
LARGEST = 16 << 20
_PAUSE = 0.05  # seconds between two attempts
_FOREIGN = (KeyError, TypeError, ValueError, OverflowError)  # of what has another form


class Remote(gym.Env[Any, Any]):
    """Steps an environment that ``python -m bdpi.envs.remote`` serves, perhaps on a robot, over HTTP.

    Observations, rewards and infos are those of the environment, bit for bit; of infos, what JSON can hold. A request
    that got no answer is sent again, and the environment makes no step twice. It has one learner, the last one that
    came. It is not rendered here.

    >>> env = Remote("http://192.168.0.7:8089", token="...")  # doctest: +SKIP

    :param url: that the robot's side printed
    :param token: that it printed, where it listens to other machines
    :param patience: seconds that an answer may take, and that the robot may be away
    :raises ConnectionError: without an answer
    :raises ValueError: when that is no such environment
    """

    def __init__(self, url: str, token: str = "", patience: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no URL: give the one that python -m bdpi.envs.remote printed")
        self._url, self._patience = url, patience
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=patience)
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        self.observation_space, self.action_space = self._begin()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode there."""
        super().reset(seed=seed)
        if not self._session and self._begin() != (self.observation_space, self.action_space):
            raise ValueError(f"the environment at {self._url} has other spaces now: make a new Remote")
        seen, info = self._next("reset", {}, seed=seed, options=options)
        return seen, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make a step there."""
        wanted: dict[str, type] = {"reward": float, "terminated": bool, "truncated": bool}
        seen, reward, terminated, truncated, info = self._next("step", wanted, action=to_json(action))
        return seen, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the connection; the environment waits for another learner."""
        self._connection.close()

    def _begin(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        begun = self._post("session", {})
        try:
            self._session, self._seq = _typed(begun, "session", str), 0
            return space_of(begun["observation_space"]), space_of(begun["action_space"])
        except _FOREIGN as error:
            raise self._foreign(error) from None

    def _next(self, kind: str, wanted: dict[str, type], **body: Any) -> Iterator[Any]:
        """An observation, what is wanted beside it, and an info."""
        if not self._session:
            raise RuntimeError(f"after the last error, the episode at {self._url} is over: reset begins another one")
        self._seq += 1
        session, self._session = self._session, ""  # after an error, the next reset begins another one
        answer = self._post(kind, {"session": session, "seq": self._seq, **body})
        try:
            seen = of_json(self.observation_space, answer["observation"])
            rest = [_typed(answer, name, type_) for name, type_ in {**wanted, "info": dict}.items()]
        except _FOREIGN as error:
            raise self._foreign(error) from None
        self._session = session
        return iter([seen, *rest])

    def _foreign(self, error: Exception) -> ValueError:
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        return ValueError(f"{self._url} answers, but not as python -m bdpi.envs.remote does: {said:.300}")

    def _post(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        text, deadline = json.dumps(body), time.monotonic() + self._patience
        while True:
            try:
                self._connection.request("POST", f"/v1/{kind}", text, self._headers)
                response = self._connection.getresponse()
                answer = json.loads(response.read(LARGEST))
                if not isinstance(answer, dict):
                    raise ValueError(f"it answered {answer!r:.100}")
                break
            except (
                OSError,
                http.client.HTTPException,
                ValueError,
                RecursionError,
            ) as error:  # no answer, or half of one
                self._connection.close()
                if time.monotonic() > deadline:
                    raise ConnectionError(
                        f"{self._url} gives no answer for {self._patience:g} seconds ({error}): is python -m "
                        "bdpi.envs.remote running there?"
                    ) from error
                time.sleep(_PAUSE)
        if response.status != 200:
            raise RuntimeError(f"{self._url} refuses: {answer.get('error', answer)!s:.1000}")
        return answer


def _typed(answer: dict[str, Any], name: str, kind: type) -> Any:
    value = float(answer[name]) if kind is float and type(answer[name]) is int else answer[name]
    if type(value) is not kind or value == "":
        raise TypeError(f"{name} is {value!r:.100}")
    return value


def to_json(value: Any) -> Any:
    """An action, an observation or an info: arrays become lists, and what JSON cannot hold is left out."""
    if isinstance(value, dict):
        return {str(key): to_json(part) for key, part in value.items() if _is_plain(part)}
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufU"
    return value is None or isinstance(value, dict | bool | int | float | str)


def of_json(space: spaces.Space[Any], value: Any) -> Any:
    """What :func:`to_json` was given, an element of a space.

    :raises ValueError, KeyError, TypeError: for what has another form
    """
    if isinstance(space, spaces.Dict):
        return {key: of_json(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(of_json(part, each) for part, each in zip(space.spaces, value, strict=True))
    numbers = np.array(value, object).reshape(-1).tolist()
    known: dict[str, set[type]] = {"b": {bool}, "f": {int, float}}
    if not set(map(type, numbers)) <= known.get(
        np.dtype(space.dtype).kind, {int}
    ):  # NumPy would make 1 of 1.9, "1" and true
        raise TypeError(f"{value!r:.100} is nothing of {space}")
    return np.int64(value) if isinstance(space, spaces.Discrete) else np.array(value, space.dtype).reshape(space.shape)
