"""An environment on another machine, over a real socket: the same episodes, bit for bit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from bdpi import BDPI
from bdpi.envs import Remote, remote_env
from bdpi.envs.remote import OfferedEnv, make_server
from small import QUICK, Walk, fingerprint


@pytest.fixture(scope="module")
def cart_pole() -> Iterator[str]:
    """The URL of CartPole, in a process of its own."""
    command = [sys.executable, "-m", "bdpi.envs.remote", "CartPole-v1", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(found[1] for line in process.stdout if (found := re.match(r"Listening: (http\S+)", line)))
        finally:
            process.terminate()


@contextmanager
def serving(env: gym.Env[Any, Any], token: str = "") -> Iterator[str]:
    with make_server(OfferedEnv(env), "127.0.0.1", 0, token) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def episodes(env: gym.Env[Any, Any], n: int) -> list[Any]:
    """All that an environment says in some episodes, its actions drawn."""
    env.action_space.seed(0)
    said: list[Any] = []
    for episode in range(n):
        observation, info = env.reset(seed=5 if episode == 0 else None)
        said.append((observation.dtype, observation.tobytes(), info))
        ended = False
        while not ended:
            observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
            said.append((observation.dtype, observation.tobytes(), reward, terminated, truncated, info))
            ended = terminated or truncated
    return said


def test_the_same_episodes(cart_pole: str) -> None:
    local, remote = gym.make("CartPole-v1"), Remote(cart_pole)
    assert (remote.observation_space, remote.action_space) == (local.observation_space, local.action_space)
    assert episodes(remote, 4) == episodes(local, 4)


def test_the_same_learning(cart_pole: str) -> None:
    local, remote = (BDPI("MlpPolicy", env, seed=0, **QUICK).learn(60) for env in ("CartPole-v1", Remote(cart_pole)))
    assert fingerprint(remote) == fingerprint(local)


class Parts(gym.Env[Any, Any]):
    """Says back what it was told."""

    observation_space = spaces.Dict(
        {"number": spaces.Discrete(5, start=-2), "picture": spaces.Box(0, 255, (2, 3), np.uint8)}
    )
    action_space = spaces.Tuple(
        [spaces.MultiDiscrete([3, 4]), spaces.Box(-1, 1, (2,), np.float64), spaces.MultiBinary(3)]
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {"options": options, "mask": np.array([True, False]), "self": self}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), np.float32(0.1), np.bool_(False), True, {"got": repr(action)}


def test_actions_and_observations_of_several_parts() -> None:
    with serving(Parts()) as url:
        remote, local = Remote(url), Parts()
        assert (remote.observation_space, remote.action_space) == (local.observation_space, local.action_space)
        seen, info = remote.reset(seed=3, options={"slow": 1})
        assert seen in remote.observation_space
        np.testing.assert_array_equal(seen["picture"], local.reset(seed=3)[0]["picture"])
        assert info == {"options": {"slow": 1}, "mask": [True, False]}
        remote.action_space.seed(1)
        action = remote.action_space.sample()
        _, reward, terminated, truncated, info = remote.step(action)
        assert (reward, terminated, truncated) == (float(np.float32(0.1)), False, True)
        assert info["got"] == repr(action)


def test_masks_of_a_remote_environment_are_kept() -> None:
    def says(_: Any) -> dict[str, Any]:
        return {"action_mask": np.array([1, 0], np.int8)}

    with serving(Walk(says=says)) as url:
        agent = BDPI("MlpPolicy", Remote(url), seed=0, **QUICK).learn(30)
    assert set(agent.replay_buffer.actions[:30].reshape(-1).tolist()) == {0}


def post(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_repeated_request_is_answered_again_and_done_once() -> None:
    env = Walk()
    with serving(env) as url:
        session = post(f"{url}/v1/session", {})[1]["session"]
        assert post(f"{url}/v1/reset", {"session": session, "seq": 1})[0] == 200
        step = {"session": session, "seq": 2, "action": 1}
        answers = [post(f"{url}/v1/step", step) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        assert env.steps == 1
        assert post(f"{url}/v1/step", {**step, "seq": 4})[0] == 409  # one is missing
        assert post(f"{url}/v1/step", {**step, "seq": 3, "action": 7})[0] == 422
        assert env.steps == 1


def test_a_robot_that_was_restarted_begins_a_session_at_reset() -> None:
    first, second = Walk(), Walk()
    with serving(first) as url:
        remote = Remote(url)
        remote.reset()
        other = Remote(url)  # takes over
        other.reset()
        with pytest.raises(RuntimeError, match="another learner has come"):
            remote.step(1)
        remote.reset()
        remote.step(1)
    port = int(url.rpartition(":")[2])
    with make_server(OfferedEnv(second), "127.0.0.1", port, "") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            other.close()
            with pytest.raises(RuntimeError, match="restarted"):
                other.step(1)
            other.reset()
            other.step(1)
        finally:
            server.shutdown()
            thread.join()
    assert (first.steps, second.steps) == (1, 1)


def test_without_a_session_there_is_no_step() -> None:
    env = Walk()
    with serving(env) as url:
        assert post(f"{url}/v1/reset", {"session": "", "seq": 1})[0] == 409  # none has begun
        remote = Remote(url)
        remote.reset()
        Remote(url)
        with pytest.raises(RuntimeError, match="another learner has come"):
            remote.step(1)
        with pytest.raises(RuntimeError, match="reset begins another one"):
            remote.step(1)
        assert env.steps == 0
        remote.reset()
        remote.step(1)
        assert env.steps == 1


@pytest.mark.parametrize("action", [1.9, 1.0, "1", True, None, [1], {}])
def test_an_action_that_is_only_like_one_is_refused(action: Any) -> None:
    env = Walk()
    with serving(env) as url:
        session = post(f"{url}/v1/session", {})[1]["session"]
        post(f"{url}/v1/reset", {"session": session, "seq": 1})
        assert post(f"{url}/v1/step", {"session": session, "seq": 2, "action": action})[0] == 422
    assert env.steps == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observation": None}, "is nothing of"),
        ({"observation": "x"}, "is nothing of"),
        ({"reward": "1"}, "reward is '1'"),
        ({"terminated": 0}, "terminated is 0"),
        ({"info": []}, "info is"),
        ({"reward": ...}, "'reward' is missing"),
        ({"observation": ...}, "'observation' is missing"),
    ],
)
def test_answers_of_another_program_are_named(changes: dict[str, Any], message: str) -> None:
    class Other(OfferedEnv):
        def _step(self, request: dict[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in {**super()._step(request), **changes}.items() if value is not ...}

    with make_server(Other(Walk()), "127.0.0.1", 0, "") as server:
        threading.Thread(target=server.serve_forever).start()
        remote = Remote(f"http://127.0.0.1:{server.server_port}")
        remote.reset()
        with pytest.raises(ValueError, match=message):
            remote.step(1)
        server.shutdown()


def test_an_answer_of_many_levels_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Walk()) as url:
        remote = Remote(url, patience=0.2)
        remote.reset()
        monkeypatch.setattr(remote_env.http.client.HTTPResponse, "read", lambda *_: b"[" * 100_000)
        with pytest.raises(ConnectionError, match="gives no answer"):
            remote.step(1)


def test_errors_of_the_environment_are_named_and_nobody_is_waited_for_for_ever() -> None:
    def breaks(env: Any, _: Any) -> float:
        raise ValueError("the arm is stuck")

    with serving(Walk(pays=breaks)) as url:
        remote = Remote(url)
        remote.reset()
        with pytest.raises(RuntimeError, match="the arm is stuck"):
            remote.step(1)
        remote.close()
    with pytest.raises(ConnectionError, match="no answer"):
        Remote(url, patience=0.1)
    with pytest.raises(ValueError, match="is no URL"):
        Remote("127.0.0.1:8089")


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (401, {}, {"Authorization": "Bearer wrong"}),
        (403, {}, {"Origin": "http://127.0.0.1"}),
        (415, {}, {"Content-Type": "text/plain"}),
        (400, b"{", {}),
        (400, b"[" * 100_000, {}),
        (404, [], {}),
    ],
)
def test_what_is_refused(status: int, body: Any, headers: dict[str, str]) -> None:
    env = Walk()
    with serving(env, token="secret") as url:
        given = {"Authorization": "Bearer secret", **headers}
        assert post(f"{url}/v1/session", body, **given)[0] == status
        assert env.episodes == 0
        Remote(url, token="secret").reset()
    assert env.episodes == 1


def test_other_hosts_and_large_bodies_are_refused() -> None:
    with serving(Walk()) as url:
        assert post(f"{url}/v1/session", {}, Host="evil.example")[0] == 403
        assert post(f"{url}/v1/session", b"{}", **{"Content-Length": str(10**9)})[0] == 413
