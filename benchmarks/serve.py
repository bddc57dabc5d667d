"""How long ``step`` takes: four robots at 50 Hz, LunarLander's network and default settings, on loopback.

python benchmarks/serve.py --seconds 20
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import yaml

sys.path.append(str(Path(__file__).parents[1] / "clients" / "python"))
from bdpi_robot import Robot

TASK = {
    "name": "lander",
    "observations": [{"name": f"x{number}", "low": -1.5, "high": 1.5} for number in range(8)],
    "actions": ["nothing", "left", "main", "right"],
}


def drive(port: int, name: str, seconds: float, times: list[float]) -> None:
    """One robot at 50 Hz; appends the seconds that each ``step`` took."""
    robot, generator = Robot(port=port, name=name), np.random.default_rng(abs(hash(name)))
    robot.begin()
    answer = robot.act(generator.uniform(-1, 1, 8).tolist())
    beginning = due = time.perf_counter()
    while (now := time.perf_counter()) < beginning + seconds:
        time.sleep(max(0.0, due - now))
        due += 0.02
        seen = generator.uniform(-1, 1, 8).tolist()
        start = time.perf_counter()
        answer = robot.step(answer["action"], seen[0], seen)
        times.append(time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--robots", type=int, default=4)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "lander.yaml"
        task.write_text(yaml.safe_dump(TASK))
        command = [sys.executable, "-m", "bdpi.cli", "serve", str(task), "--port", "0", "--out", f"{folder}/run"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            port = next(int(found[1]) for line in server.stdout if (found := re.search(r"Listening: .*:(\d+)/", line)))
            times: list[float] = []
            threads = [
                threading.Thread(target=drive, args=(port, f"robot-{number}", chosen.seconds, times))
                for number in range(chosen.robots)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
    shares = ", ".join(f"{share:g} % {1000 * np.percentile(times, share):.1f}" for share in (50, 99, 99.9))
    print(f"{len(times)} steps of {chosen.robots} robots, milliseconds: {shares}, longest {1000 * max(times):.1f}")


if __name__ == "__main__":
    main()
