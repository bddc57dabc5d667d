"""The live page in a real browser, beside a real robot."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bdpi_robot import Robot
from serving import Server, png, running, until

from bdpi.agents.journal import Journal
from bdpi.runs.config import RunConfig
from bdpi.runs.train import prepare
from bdpi.serve.watch import watched

sys.path.append(str(Path(__file__).parents[1] / "report"))
from browser import NAMES, Browser, find_chromium

pytestmark = pytest.mark.skipif(find_chromium() is None, reason=f"no browser: none of {', '.join(NAMES)} is installed")
EVIL = "<img src=x onerror='window.evil = 1'>"


class _Address:
    """What :class:`Browser` opens."""

    def __init__(self, port: int) -> None:
        self._port = port

    def as_uri(self) -> str:
        return f"http://127.0.0.1:{self._port}/"


@contextlib.contextmanager
def robot_at_work(server: Server) -> Iterator[list[dict[str, Any]]]:
    """A robot at about 30 Hz; what it was told."""
    told: list[dict[str, Any]] = []
    stop = threading.Event()

    def work() -> None:
        robot = Robot(port=server.port, name="arm")
        robot.begin()
        answer = robot.act([0, 0])
        while not stop.wait(0.03):
            told.append(answer)
            if answer["action"] is None and answer["status"] != "ended":
                answer = robot.act([0, 0])
                continue
            if answer["status"] != "ended":
                answer = robot.step(answer["action"], 0.5, [0, answer["action"]], picture=png(40, 30))
            if answer["status"] == "ended":
                told.append(answer)
                robot.begin()
                answer = robot.act([0, 0])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield told
    finally:
        stop.set()
        thread.join()


def test_a_person_watches_drives_and_stops(tmp_path: Path) -> None:
    actions = ["off", "on", EVIL]
    with (
        running(tmp_path, actions=actions, success_reward=7.0) as server,
        robot_at_work(server) as told,
        contextlib.closing(Browser(1100, 900)) as browser,
    ):
        browser.open(_Address(server.port))  # type: ignore[arg-type]
        until(lambda: browser.run("Number(document.querySelector('[data-total=steps]')?.textContent) > 5"))
        until(lambda: browser.run("document.querySelector('[data-panel=entropy] path.line')?.getAttribute('d')"))
        until(lambda: browser.run("document.querySelector('.film').naturalWidth") == 40)
        assert EVIL in browser.run("document.querySelector('[data-action=\"2\"]').innerText")

        before = len(told)
        browser._call("Input.dispatchKeyEvent", type="keyDown", key="2", text="2")
        until(lambda: [each["action"] for each in told[before:] if each["status"] == "person"][3:])
        for kind, key in (("keyDown", "1"), ("keyDown", "2"), ("keyUp", "1")):  # rolled from one to the other
            browser._call("Input.dispatchKeyEvent", type=kind, key=key, **({"text": key} if kind == "keyDown" else {}))
        rolled = len(told) + 3
        until(lambda: len(told) > rolled + 20)
        assert {(each["status"], each["action"]) for each in told[rolled:]} == {("person", 1)}
        before = len(told)
        until(lambda: len(told) > before)
        browser._call("Input.dispatchKeyEvent", type="keyUp", key="2")
        assert {each["action"] for each in told[before:] if each["status"] == "person"} == {1}
        until(lambda: told[-1]["status"] == "policy")

        browser.click("[data-mark=success]")
        until(lambda: told[-1]["status"] == "ended" or any(each["status"] == "ended" for each in told[before:]))
        browser.click("#stop")
        until(lambda: told[-1]["status"] == "stopped")
        assert told[-1]["action"] is None
        stopped = len(told)
        until(lambda: len(told) >= stopped + 5)
        assert {each["status"] for each in told[stopped:]} == {"stopped"}
        browser.resize(390, 800)
        until(lambda: browser.run("document.querySelector('#stop').getAttribute('aria-pressed')") == "true")
        assert browser.run("document.documentElement.scrollWidth") <= 390
        browser.run("scrollTo(0, document.body.scrollHeight)")
        assert browser.run("scrollY > 0 && document.querySelector('#stop').getBoundingClientRect().top >= 0")
        browser.click("#stop")  # once more is no other command
        stopped = len(told)
        until(lambda: len(told) >= stopped + 20)
        assert {each["status"] for each in told[stopped:]} == {"stopped"}
        browser.click("#clear")
        until(lambda: told[-1]["status"] == "policy")
        browser.click("#hold")
        until(lambda: not browser.run("document.querySelector('[data-mark=start]').hidden"))
        browser.click("[data-mark=end]")
        until(lambda: told[-1]["status"] == "paused")
        until(lambda: not browser.run("document.querySelector('[data-mark=start]').disabled"))
        browser.click("[data-mark=start]")
        until(lambda: told[-1]["status"] == "policy")
        browser.click("#hold")
        browser.click("#learning")
        until(lambda: server.send("/v1/state")[1]["learns"] is False)

        until(lambda: browser.run("document.querySelector('#clear').disabled"))
        assert browser.run("document.documentElement.scrollWidth") <= 390
        assert browser.run("document.querySelector('[data-action=\"0\"]').getBoundingClientRect().height") >= 40
        assert browser.run("window.evil") is None
        assert browser.problems == []
        own = (f"http://127.0.0.1:{server.port}/", "data:")
        assert [each for each in browser.requests if not each.startswith(own)] == []
    with Journal(server.out / "journal.sqlite", read_only=True) as journal:
        steps = list(journal.steps())
    assert [step.action for step in steps] == [each["action"] for each in told if each["action"] is not None]
    assert [step.reward for step in steps if step.terminated] == [7.5]


def test_each_action_has_a_key_and_long_names_leave_the_stop_in_sight(tmp_path: Path) -> None:
    actions = [f"action_{number}_with_a_long_name_without_a_space" for number in range(12)]
    with (
        running(tmp_path, name="w" * 100, actions=actions) as server,
        robot_at_work(server) as told,
        contextlib.closing(Browser(320, 568)) as browser,
    ):
        browser.open(_Address(server.port))  # type: ignore[arg-type]
        until(lambda: browser.run("document.querySelector('[data-action=\"11\"]') !== null"))
        assert browser.run("document.documentElement.scrollWidth") <= 320
        left, _, width, _ = browser.box("#stop")
        assert left >= 0
        assert left + width <= 320
        assert browser.run("document.querySelector('header').getBoundingClientRect().height") < 568 / 4
        browser.run("document.querySelector('[data-action=\"11\"]').focus()")
        browser._call("Input.dispatchKeyEvent", type="keyDown", key=" ", text=" ")
        until(lambda: (told[-1]["status"], told[-1]["action"]) == ("person", 11))
        browser._call("Input.dispatchKeyEvent", type="keyUp", key=" ")
        until(lambda: told[-1]["status"] == "policy")
        assert browser.problems == []


def test_the_page_follows_a_server_of_another_task(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    names = "[...document.querySelectorAll('.actions button')].map((each) => each.firstChild.textContent.at(-1))"
    with contextlib.closing(Browser(390, 800)) as browser:
        with running(tmp_path / "first", actions=["a", "b"]) as server, robot_at_work(server):
            browser.open(_Address(server.port))  # type: ignore[arg-type]
            until(lambda: browser.run(names) == ["a", "b"])
        with running(tmp_path / "second", port=server.port, actions=["c", "d"]) as server, robot_at_work(server):
            until(lambda: browser.run(names) == ["c", "d"])


def test_a_watched_run_has_nothing_to_press(tmp_path: Path) -> None:
    session = prepare(RunConfig(environment="CartPole-v1", seed=1, episodes=None, steps=10**9), tmp_path / "run")
    with watched(session, 0) as address, contextlib.closing(Browser(390, 800)) as browser:
        stop = threading.Event()
        thread = threading.Thread(target=session.run, kwargs={"should_stop": stop.is_set})
        thread.start()
        try:
            browser.open(_Address(int(address.split(":")[2].strip("/"))))  # type: ignore[arg-type]
            until(lambda: browser.run("Number(document.querySelector('[data-total=steps]')?.textContent) > 5"))
            until(lambda: browser.run("document.querySelector('[data-panel=entropy] path.line')?.getAttribute('d')"))
            others = "[...document.querySelectorAll('button')].filter((each) => !each.closest('#curves'))"
            shown = f"{others}.filter((each) => each.checkVisibility() && !each.disabled)"
            assert browser.run(f"{shown}.length") == 0
            assert browser.run("document.documentElement.scrollWidth") <= 390
            assert browser.problems == []
        finally:
            stop.set()
            thread.join()
