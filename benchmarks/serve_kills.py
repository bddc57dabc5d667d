"""Does `bdpi serve` lose or double a transition when it, or its robots, are killed at any moment?

    python benchmarks/serve_kills.py --kills 200

Two robots, each a process, step as fast as they can; every other kill (SIGKILL) is the server's, the others are a
robot's. What was killed is started again: the server goes on with its run, a robot begins a new episode. A robot writes
down each step before it is sent, and again when it is answered. In the end, the journal must have each answered step
once, and each other one at most once, in their order. What was found goes to results/serve/kills.csv.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import yaml

from bdpi.agents.journal import Journal

ROOT = Path(__file__).resolve().parents[1]
TASK = {
    "name": "kills",
    "observations": [{"name": "step", "low": 0, "high": 1}],
    "actions": ["off", "on"],
    "hyperparameters": {"n_critics": 2, "batch_size": 16, "learning_starts": 16},
    "policy_kwargs": {"net_arch": [8]},
}
KILLS = 200
_APART = 10**6  # the first steps of two robots
ROBOT = """
import sys, time
from bdpi_robot import Robot

port, name, path, step, size, pause = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6])
robot, file = Robot(port=int(port), name=name, patience=600), open(path, "a", buffering=1)
robot.begin()
answer, due = robot.act([0] * size), time.monotonic()
while True:
    due = max(time.monotonic(), due + pause)
    time.sleep(max(0, due - time.monotonic()))
    file.write(f"sent {step}\\n")
    answer = robot.step(answer["action"], float(step), [step % 2] * size, truncated=step % 10 == 9)
    file.write(f"done {step}\\n")
    step += 1
    if answer["status"] == "ended":
        robot.begin()
        answer = robot.act([0] * size)
"""


class Killed:
    """A server and its robots, in a folder.

    :param task: that they have
    :param hertz: steps a second of each robot; 0: as many as there can be
    """

    def __init__(self, folder: Path, robots: int = 2, task: dict[str, Any] = TASK, hertz: float = 0) -> None:
        self._folder, self._port = folder, 0
        self._how = [str(len(task["observations"])), str(1 / hertz if hertz else 0)]
        (folder / "task.yaml").write_text(yaml.safe_dump(task))
        self.run = folder / "run"
        self._server = self._start_server()
        self._names = [f"r{number}" for number in range(robots)]
        self._robots = {name: self._start_robot(name) for name in self._names}

    def _start_server(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bdpi.cli", "serve", str(self._folder / "task.yaml"), "--out", str(self.run)]
        server = subprocess.Popen([*command, "--port", str(self._port)], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        found = (re.search(r"Listening: .*:(\d+)/", line) for line in server.stdout)
        port = next((int(each[1]) for each in found if each), None)
        if port is None:
            raise SystemExit(f"the server did not start again: status {server.wait()}")
        self._port = port
        return server

    def _steps(self, name: str, word: str) -> list[int]:
        path = self._folder / name
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(word)]

    def _start_robot(self, name: str) -> subprocess.Popen[bytes]:
        first = max(self._steps(name, "sent"), default=self._names.index(name) * _APART - 1) + 1
        given = [str(self._port), name, str(self._folder / name), str(first), *self._how]
        where = str(ROOT / "clients" / "python")
        return subprocess.Popen([sys.executable, "-c", ROBOT, *given], env={"PYTHONPATH": where}, cwd=self._folder)

    def answered(self) -> int:
        """Steps so far."""
        return sum(len(self._steps(name, "done")) for name in self._names)

    def kill_server(self) -> None:
        self._server.kill()
        self._server.wait()
        self._server = self._start_server()

    def restart_server(self) -> None:
        """As a person does it: it saves the agent."""
        self._server.send_signal(signal.SIGTERM)
        self._server.wait()
        self._server = self._start_server()

    def kill_robot(self, name: str) -> None:
        self._robots[name].kill()
        self._robots[name].wait()
        self._robots[name] = self._start_robot(name)

    def kill(self, kills: int, seed: int = 0, restarts: bool = False) -> None:
        """Kill the server and robots in turns, at random moments while steps are made.

        :param restarts: each third time, the server is asked to end instead, and started again
        """
        random = Random(seed)
        for number in range(kills):
            before, deadline = self.answered(), time.monotonic() + 120
            while self.answered() == before and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.3))
            if restarts and number % 3 == 2:
                self.restart_server()
            elif number % 2 == 0:
                self.kill_server()
            else:
                self.kill_robot(random.choice(self._names))

    def end(self) -> None:
        for robot in self._robots.values():
            robot.kill()
            robot.wait()
        self._server.send_signal(signal.SIGTERM)
        self._server.wait()

    def check(self) -> dict[str, int]:
        """How many steps were made, lost, doubled, or came in another order."""
        with Journal(self.run / "journal.sqlite", read_only=True) as journal:
            stored = [int(step.reward) for step in journal.steps()]
        found = dict.fromkeys(("answered", "unanswered", "stored", "lost", "doubled", "unknown", "disordered"), 0)
        for number, name in enumerate(self._names):
            sent, done = self._steps(name, "sent"), self._steps(name, "done")
            kept = [step for step in stored if step // _APART == number]
            found["answered"] += len(done)
            found["unanswered"] += len(sent) - len(done)
            found["stored"] += len(kept)
            found["lost"] += len(set(done) - set(kept))
            found["doubled"] += sum(times - 1 for times in Counter(kept).values())
            found["unknown"] += len(set(kept) - set(sent))
            found["disordered"] += sum(after <= before for before, after in pairwise(kept))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=KILLS, help="what fewer show is not kept")
    kills = parser.parse_args().kills
    with tempfile.TemporaryDirectory() as folder:
        killed = Killed(Path(folder))
        try:
            killed.kill(kills)
        finally:
            killed.end()
        found = {"kills": kills, **killed.check()}
    text = "".join(f"{name},{value}\n" for name, value in found.items())
    print(text, end="")
    if kills >= KILLS:
        path = ROOT / "results" / "serve" / "kills.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
