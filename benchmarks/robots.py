"""CartPole, learned by a robot in C and by one in JavaScript, which have its physics, over HTTP from ``bdpi serve``.

    python benchmarks/robots.py

Each robot has a server of its own, with clients/cart_pole.yaml, the default agent. It makes a step every 20 ms, and
ends when its last 20 episodes have 195 steps or more on average, of at most 500, or after 1000 episodes. Steps of all
episodes go to results/serve/, with how many epochs the learner was behind in the end.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
CLIENTS, RESULTS = ROOT / "clients", ROOT / "results" / "serve"


def compiled(program: Path) -> list[str]:
    """The command of the robot in C."""
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2", f"-I{CLIENTS / 'c'}"]
    subprocess.run(["cc", *flags, str(CLIENTS / "c" / "cart_pole.c"), "-lm", "-o", str(program)], check=True)
    return [str(program)]


def learn(robot: Sequence[str], folder: Path, milliseconds: int) -> tuple[list[int], int, float]:
    """Steps of the episodes until it has learned, epochs that are due then, and seconds."""
    command = [sys.executable, "-m", "bdpi.cli", "serve", str(CLIENTS / "cart_pole.yaml"), "--port", "0"]
    server = subprocess.Popen([*command, "--out", str(folder / "run")], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        port = next(found[1] for line in server.stdout if (found := re.search(r"Listening: .*:(\d+)/", line)))
        start = time.monotonic()
        done = subprocess.run([*robot, port, "1000", str(milliseconds)], stdout=subprocess.PIPE, text=True)
        seconds = time.monotonic() - start
        if done.returncode not in (0, 3):
            raise SystemExit(f"{robot[0]} ended with status {done.returncode}")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/state") as response:
            due = json.load(response)["epochs_due"]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    return [int(line) for line in done.stdout.split()], due, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=int, default=20, help="of a step")
    milliseconds = parser.parse_args().milliseconds
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        robots = {"c": compiled(folder / "cart_pole"), "javascript": ["node", f"{CLIENTS}/javascript/cart_pole.mjs"]}
        for language, robot in robots.items():
            steps, due, seconds = learn(robot, folder / language, milliseconds)
            last, passed = float(np.mean(steps[-20:])), np.mean(steps[-20:]) >= 195
            said = f"{language}: mean of the last 20 of {len(steps)} episodes {last:.1f}{'' if passed else ', not 195'}"
            said += f"; {sum(steps)} steps in {seconds:.0f} s, {due} epochs due in the end"
            print(said, flush=True)
            (RESULTS / f"CartPole-{language}.csv").write_text(f"# {said}\n" + "".join(f"{each}\n" for each in steps))


if __name__ == "__main__":
    main()
