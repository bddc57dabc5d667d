"""Advice: others than the agent say how probable actions should be, and it acts from the product of both.

What is executed is what is learned from, and critics learn off-policy: advice changes which experience there is, not
what is made of it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bdpi.agents import checks
from bdpi.learner.interface import FloatArray
from bdpi.storage.reading import printable

#: Seconds that an advisor at a URL may take, and for which one that failed is left alone.
PATIENCE, PAUSE = 1.0, 10.0
_LARGEST = 1 << 20  # bytes of an answer
Weights = NDArray[np.float64]
#: Says of an observation how probable each action should be, or is a URL that does.
Advisor = Callable[[Any], Any] | str


class Advice:
    """What several advisors say together.

    :param advisors: functions of one observation, or URLs
    :param steps: after which advice counts for nothing, less with each of them; None: it does not fade
    :param n_actions: that there are
    """

    def __init__(self, advisors: Sequence[Advisor], steps: int | None, n_actions: int) -> None:
        self._advisors = [_Url(each) if isinstance(each, str) else each for each in advisors]
        self._steps, self._n_actions = steps, n_actions

    def __call__(self, observations: Sequence[Any], step: int) -> Weights | None:
        """What to multiply the actor's probabilities by, (n, n_actions); None: there is no advice.

        :param observations: as the environment shows them
        :param step: how many the agent has made
        """
        share = 1.0 if self._steps is None else max(0.0, 1 - step / self._steps)
        if share == 0:
            return None
        weights = np.ones((len(observations), self._n_actions))
        for advisor in self._advisors:
            for row, observation in zip(weights, observations, strict=True):
                row *= self._said(advisor, observation) ** share
        return weights

    def _said(self, advisor: Callable[[Any], Any], observation: Any) -> Weights:
        """What one advisor says, the largest number being 1: that is no matter for the product, and keeps it exact."""
        if not isinstance(advisor, _Url):
            return self._checked(advisor(_copied(observation)), advisor)
        try:
            return self._checked(advisor(observation), advisor)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            advisor.leave_alone(error)
        except _LeftAlone:
            pass
        return np.ones(self._n_actions)

    def _checked(self, said: Any, advisor: object) -> Weights:
        """:raises ValueError: for what is no distribution"""
        try:
            weights = np.asarray(said, np.float64)
        except (TypeError, ValueError, OverflowError):
            weights = np.array(np.nan)
        if weights.shape != (self._n_actions,) or not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError(
                f"the advisor {advisor} said {said!r:.100}: it must say {self._n_actions} numbers, how probable each "
                "action should be, 0 or more"
            )
        return weights / weights.max() if weights.any() else np.ones(self._n_actions)


def intersected(probabilities: FloatArray, weights: Weights) -> FloatArray:
    """The normalised product; the probabilities themselves where it is 0 everywhere.

    :param probabilities: 0 for actions that are not allowed
    """
    product = probabilities * weights
    total = product.sum(axis=1, keepdims=True)
    return np.where(total > 0, product / np.where(total > 0, total, 1), probabilities).astype(probabilities.dtype)


def check_advisors(advisors: Any, steps: Any, action_space: spaces.Space[Any], has_actor: bool, name: str) -> None:
    """:raises ValueError: for what cannot advise, or an agent that cannot be advised

    :param name: of the agent's class
    """
    if steps is not None:
        checks.check_integer("advice_steps", steps, 1)
    if not isinstance(advisors, Sequence) or isinstance(advisors, str):
        raise ValueError(f"advisors must be a list of functions or URLs, got {advisors!r}")
    for each in advisors:
        if isinstance(each, str):
            check_url(each)
        elif not callable(each):
            raise ValueError(f"an advisor is a function of an observation, or a URL, unlike {each!r}")
    if advisors and not has_actor:
        raise ValueError(f"{name} has no actor whose probabilities could be advised on: use BDPI or ActorMimic")
    if advisors and not isinstance(action_space, spaces.Discrete):
        raise ValueError(f"advisors are for Discrete actions, not {action_space}: leave them out")


def check_url(url: str) -> None:
    """:raises ValueError: for what no advisor can be asked at"""
    try:
        parts = urlsplit(url)
        is_known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_known = False
    if not is_known or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"the advisor {url!r:.100} is no URL: write http://127.0.0.1:9000/advice, or https://")


class _LeftAlone(Exception):
    """It has failed lately."""


class _Url:
    """Asks an advisor by ``POST {"observation": ...}``, which is answered by ``{"probabilities": [...]}``."""

    def __init__(self, url: str) -> None:
        self._url, self._parts = url, urlsplit(url)
        self._not_before = 0.0

    def __str__(self) -> str:
        return self._url

    def __call__(self, observation: Any) -> Any:
        """:raises OSError, http.client.HTTPException, ValueError: when there is no such answer"""
        if time.monotonic() < self._not_before:
            raise _LeftAlone
        parts, secure = self._parts, self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(str(parts.hostname), parts.port, timeout=PATIENCE)
        target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        body = json.dumps({"observation": _as_json(observation)})
        connection.connect()
        # The time-out is for each part of an answer, which may have many.
        end = threading.Timer(PATIENCE, _end, (connection.sock,))
        end.daemon = True
        end.start()
        try:
            connection.request("POST", target, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read(_LARGEST)
        finally:
            end.cancel()
            connection.close()
        if response.status != 200:
            raise ValueError(f"it answered {response.status} {response.reason}")
        answer = json.loads(text)
        if not isinstance(answer, dict) or "probabilities" not in answer:
            raise ValueError('it answered without "probabilities"')
        return answer["probabilities"]

    def leave_alone(self, error: Exception) -> None:
        """Do not ask for a while, for which the agent acts without it."""
        self._not_before = time.monotonic() + PAUSE
        said = printable(str(error) or type(error).__name__)
        warnings.warn(
            f"the advisor {self._url} gave no advice ({said:.300}): the agent acts without it for {PAUSE:g} seconds",
            RuntimeWarning,
            stacklevel=6,
        )


def _end(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


def _copied(observation: Any) -> Any:
    """Functions may change what they are given."""
    if isinstance(observation, dict):
        return {key: _copied(part) for key, part in observation.items()}
    return np.array(observation)


def _as_json(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: _as_json(part) for key, part in observation.items()}
    return np.asarray(observation).tolist()
