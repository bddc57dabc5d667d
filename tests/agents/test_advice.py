"""Advisors: functions, and programs at a URL, that say how probable actions should be."""

from __future__ import annotations

import copy
import json
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from bdpi import ABCDQN, BDPI, ActorMimic
from bdpi.agents import TabularBDPI, advice
from bdpi.envs import ControlLoop
from bdpi.runs.build import build_agent
from bdpi.runs.config import BaseConfig
from bdpi.runs.errors import RunError
from small import QUICK, Walk, fingerprint, quick_agent


def right(_: Any) -> list[float]:
    return [0, 1]


def rows_of(agent: BDPI, name: str) -> Any:
    """What the memory has, (rows, environments, ...)."""
    return getattr(agent.replay_buffer, name)[: agent.num_timesteps // agent.n_envs]


def actions_of(agent: BDPI) -> set[int]:
    return set(rows_of(agent, "actions").reshape(-1).tolist())


@pytest.mark.parametrize("kind", ["one", "several", "normalized", "stacked", "in the background"])
def test_learn_follows_advice(kind: str) -> None:
    several = kind in ("several", "normalized")
    env: Any = DummyVecEnv([lambda: Walk()] * 3) if several else Walk()
    env = VecNormalize(env) if kind == "normalized" else env
    shown: list[Any] = []

    def advisor(observation: Any) -> list[float]:
        shown.append(observation)
        return right(observation)

    more = {"stacked": {"n_stack": 2}, "in the background": {"asynchronous": True}}.get(kind, {})
    agent = quick_agent(env, advisors=[advisor], **more).learn(60)
    assert actions_of(agent) == {1}
    assert agent._n_updates > 0
    # each was told, once, what the memory has, in the units of the environment
    np.testing.assert_array_equal(np.array(shown), rows_of(agent, "observations").reshape(-1, 3))


@pytest.mark.parametrize("agent_class", [BDPI, ActorMimic, TabularBDPI])
def test_agents_act_from_the_normalised_product(agent_class: type[BDPI]) -> None:
    space = spaces.Discrete(5) if agent_class is TabularBDPI else spaces.Box(-1, 1, (3,), np.float32)
    system = ControlLoop(space, spaces.Discrete(4))
    said = np.array([[1, 2, 3, 4], [2, 0, 1, 1.0]])
    small = {} if agent_class is TabularBDPI else QUICK
    agent = agent_class("MlpPolicy", system, seed=0, advisors=[lambda _, row=row: row for row in said], **small)
    seen = space.sample()
    agent.act(seen)
    product = agent.policy.probabilities(np.array([seen]))[0] * said[0] * said[1]
    np.testing.assert_allclose(agent.actions.drawn_by[0], product / product.sum(), rtol=1e-5)


def test_masks_hold_and_a_product_of_zeros_is_the_actors() -> None:
    system = ControlLoop(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3))
    advisors: list[Any] = [lambda _: [1, 0, 0]]
    agent = BDPI("MlpPolicy", system, seed=0, advisors=advisors, **QUICK)
    own = agent.policy.probabilities(np.zeros((1, 3), np.float32))[0]
    assert {agent.act(np.zeros(3)) for _ in range(20)} == {0}
    agent.act(np.zeros(3), mask=[0, 1, 1])
    np.testing.assert_allclose(agent.actions.drawn_by[0], [0, *(own[1:] / own[1:].sum())], rtol=1e-5)
    advisors.append(lambda _: [0, 1, 1])  # they contradict each other
    agent = BDPI("MlpPolicy", system, seed=0, advisors=advisors, **QUICK)
    agent.act(np.zeros(3))
    np.testing.assert_allclose(agent.actions.drawn_by[0], own, rtol=1e-5)


def test_advice_fades_and_is_withdrawn(tmp_path: Any) -> None:
    asked = []

    def advisor(observation: Any) -> list[float]:
        asked.append(agent.num_timesteps)
        return [1, 9]

    agent = quick_agent(ControlLoop(Walk().observation_space, spaces.Discrete(2)), advisors=[advisor], advice_steps=8)
    seen, shares = np.zeros(3, np.float32), []

    def step() -> None:
        agent.observe(seen, agent.act(seen), 0.0, seen, False, False)
        odds = agent.actions.drawn_by[0] / agent.policy.probabilities(seen[None])[0]
        shares.append(np.log(odds[1] / odds[0]) / np.log(9))

    for _ in range(4):
        step()
    agent.save(tmp_path / "agent")
    with zipfile.ZipFile(tmp_path / "agent.zip") as file:
        assert not any(b"advisors" in file.read(name) for name in file.namelist())
    alone = BDPI.load(tmp_path / "agent", env=agent.env)
    assert alone.advice is None
    agent = BDPI.load(tmp_path / "agent", env=agent.env, advisors=[advisor])
    for _ in range(6):
        step()
    np.testing.assert_allclose(shares, [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0, 0], atol=1e-4)
    assert asked == list(range(8))
    agent = quick_agent(advisors=[right]).learn(10)
    with pytest.raises(ValueError, match="unlike 3"):
        agent.advise([3])
    assert agent.learn(10, reset_num_timesteps=False).advice is not None
    assert actions_of(agent) == {1}
    agent.withdraw_advice()
    agent.learn(60, reset_num_timesteps=False)
    assert actions_of(agent) == {0, 1}


def test_a_withdrawn_or_a_copied_agent_is_as_any_other() -> None:
    never = quick_agent().learn(40)
    withdrawn = quick_agent(advisors=[right])
    withdrawn.withdraw_advice()
    assert fingerprint(withdrawn.learn(40)) == fingerprint(never)
    advised = quick_agent(advisors=[right]).learn(20)
    assert fingerprint(copy.deepcopy(advised).learn(20)) == fingerprint(advised.learn(20))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"advisors": right}, "must be a list"),
        ({"advisors": "http://127.0.0.1:9"}, "must be a list"),
        ({"advisors": [3]}, "unlike 3"),
        ({"advisors": ["file:///etc/passwd"]}, "is no URL"),
        ({"advisors": ["http://a b/"]}, "is no URL"),
        ({"advisors": ["http://localhost:99999/"]}, "is no URL"),
        ({"advisors": [right], "advice_steps": 0}, "advice_steps"),
    ],
)
def test_what_cannot_advise_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        quick_agent(**given)


def test_who_cannot_be_advised_is_refused() -> None:
    with pytest.raises(ValueError, match="ABCDQN has no actor"):
        ABCDQN("MlpPolicy", Walk(), advisors=[right], **QUICK)
    with pytest.raises(ValueError, match="Discrete actions"):
        quick_agent(ControlLoop(spaces.Box(0, 1, (2,)), spaces.MultiDiscrete([2, 2])), advisors=[right])
    with pytest.raises(RunError, match="advisors"):  # a run's file names no URL
        build_agent(BaseConfig(environment="", hyperparameters={"advisors": ["http://127.0.0.1:9"]}), Walk())


@pytest.mark.parametrize("says", [[1.0], [1, -1], [1, np.nan], "left", None])
def test_a_function_that_is_wrong_is_named_and_nothing_is_lost(says: Any) -> None:
    agent = quick_agent(advisors=[lambda _: says])
    with pytest.raises(ValueError, match="must say 2 numbers"):
        agent.learn(10)
    agent.withdraw_advice()
    assert agent.learn(10).num_timesteps == 10


@contextmanager
def answering(answer: Callable[[Any], bytes], status: int = 200) -> Iterator[str]:
    """The URL of a program that answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/advice?of=me"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_advisor_at_a_url() -> None:
    asked = []

    def answer(request: Any) -> bytes:
        asked.append(request["observation"])
        return b'{"probabilities": [0, 1]}'

    with answering(answer) as url:
        agent = quick_agent(advisors=[url]).learn(20)
    assert actions_of(agent) == {1}
    np.testing.assert_array_equal(np.array(asked, np.float32), rows_of(agent, "observations")[:, 0])


@pytest.mark.parametrize("what", ["words", "a few numbers", "a huge number", "depths", "an error", "nobody"])
def test_an_agent_acts_without_an_advisor_that_fails(what: str) -> None:
    said = {"words": b"hello", "a few numbers": b'{"probabilities": [1]}'}
    said |= {"a huge number": b'{"probabilities": [1%s, 1]}' % (b"0" * 400), "depths": b"[" * 100_000}
    text = said.get(what, b'{"probabilities": [0, 1]}')
    asked = []

    def answer(request: Any) -> bytes:
        asked.append(request)
        return text

    with answering(answer, 500 if what == "an error" else 200) as url:
        if what == "nobody":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                url = f"http://127.0.0.1:{free.getsockname()[1]}/"
        agent = quick_agent(advisors=[url])
        with pytest.warns(RuntimeWarning, match="acts without it") as warned:
            agent.learn(40)
    assert actions_of(agent) == {0, 1}
    # it is not asked again at each step: a dead one would cost a second each time
    assert len([each for each in warned if "advisor" in str(each.message)]) < 40
    assert len(asked) < 40


def test_an_advisor_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "PATIENCE", 0.2)
    monkeypatch.setattr(advice, "PAUSE", 1e6)
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            """A letter now and then, for ever: no single wait is long."""
            line, _ = listening.accept()
            with line:
                try:
                    line.sendall(b"HTTP/1.1 200 OK\r\n")
                    while not is_over.wait(0.05):
                        line.sendall(b"X")
                except OSError:
                    pass

        thread = threading.Thread(target=drip)
        thread.start()
        agent = quick_agent(advisors=[f"http://127.0.0.1:{listening.getsockname()[1]}/"])
        with pytest.warns(RuntimeWarning, match="acts without it"):
            agent.learn(40)
        is_over.set()
        thread.join()
    assert actions_of(agent) == {0, 1}


def test_an_advisor_that_is_back_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "PAUSE", 0.01)
    works = threading.Event()
    with answering(lambda _: b'{"probabilities": [0, 1]}' if works.is_set() else b"") as url:
        agent = quick_agent(ControlLoop(Walk().observation_space, spaces.Discrete(2)), advisors=[url])
        seen = np.zeros(3, np.float32)
        with pytest.warns(RuntimeWarning, match="acts without it"):
            agent.act(seen)
        works.set()
        while agent.actions.drawn_by[0, 0] > 0:  # or the test never ends
            agent.act(seen)
            time.sleep(0.01)
