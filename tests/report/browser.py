"""A headless Chromium, driven through its DevTools protocol over a pipe: real pages, real mouse, no further package."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """The program, by the names that systems give it, or by the variable CHROMIUM."""
    return os.environ.get("CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in one browser, until :meth:`close`.

    ``problems`` collects errors of the console and of scripts, ``requests`` every address the page asked for.
    """

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        program = find_chromium()
        assert program is not None
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._width, self._height = width, height
        self._number, self._buffer = 0, b""
        self._answers: dict[int, dict[str, Any]] = {}
        self._loaded = False
        self._home = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [
            *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
            *(f"--user-data-dir={self._home.name}", f"--window-size={width},{height}", "--remote-debugging-pipe"),
        ]

        def connect() -> None:
            """The browser reads commands from descriptor 3 and answers on 4; both numbers may be taken until then."""
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
            for end, number in zip(ends, (3, 4), strict=True):
                os.dup2(end, number)
                os.close(end)

        # Python's own descriptors are not inherited anyway
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "close_fds": False}
        self._process = subprocess.Popen([*command, "about:blank"], preexec_fn=connect, **quiet)
        os.close(to_browser)
        os.close(from_browser)
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        self._session: str | None = None
        targets = self._call("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self.resize(self._width, self._height)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._home.cleanup()

    def open(self, page: Path | str) -> None:
        """A file, or an address."""
        self._loaded = False
        self._call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        deadline = time.monotonic() + 180
        while not self._loaded:
            self._receive(deadline)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def resize(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, **features: str) -> None:
        """Such as ``prefers_color_scheme="dark"``."""
        chosen = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self._call("Emulation.setEmulatedMedia", features=chosen)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width and height of the first element that matches, after scrolling it into view."""
        found = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()"
        )
        return tuple(found)

    def click(self, selector: str, shift: bool = False, times: int = 1) -> None:
        left, top, width, height = self.box(selector)
        for count in range(1, times + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self._mouse(kind, left + width / 2, top + height / 2, "left", count, 8 if shift else 0)

    def hover(self, x: float, y: float) -> None:
        self._mouse("mouseMoved", x, y)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self._mouse("mouseMoved", *start)
        self._mouse("mousePressed", *start, "left", 1)
        for share in (0.3, 0.6, 1.0):
            x, y = (a + share * (b - a) for a, b in zip(start, end, strict=True))
            self._mouse("mouseMoved", x, y, "left")
        self._mouse("mouseReleased", *end, "left", 1)

    def key(self, name: str) -> None:
        text = {"text": name} if len(name) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=name, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=name)

    def _mouse(self, kind: str, x: float, y: float, button: str = "none", count: int = 0, modifiers: int = 0) -> None:
        held = 1 if button == "left" and kind != "mouseReleased" else 0
        pressed = {"button": button, "buttons": held, "clickCount": count, "modifiers": modifiers}
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 180
        while number not in self._answers:
            self._receive(deadline)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, deadline: float) -> None:
        ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(self._read, 1 << 20) if ready else b""
        if not chunk:
            raise AssertionError(f"the browser does not answer (exit status {self._process.poll()})")
        *messages, self._buffer = (self._buffer + chunk).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._notice(message["method"], message["params"])

    def _notice(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(str([each.get("value") for each in parameters["args"]]))


def texts(browser: Browser, selector: str) -> Sequence[str]:
    """Visible text of every element that matches."""
    found: list[str] = browser.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText)")
    return found
