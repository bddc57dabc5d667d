"""How long ``step`` takes: four robots at 50 Hz, LunarLander's network and default settings, on loopback.

    python benchmarks/serve.py --seconds 120

Each robot is a process with the Python client; what it measures is the whole request over HTTP, while the agent learns.
Percentiles go to results/serve/step.csv, with the load of the machine just before, by other programs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import yaml

sys.path.append(str(Path(__file__).parents[1] / "clients" / "python"))
from bdpi_robot import Robot

RESULTS = Path(__file__).resolve().parents[1] / "results" / "serve"
SECONDS = 120.0
TASK = {
    "name": "lander",
    "observations": [{"name": f"x{number}", "low": -1.5, "high": 1.5} for number in range(8)],
    "actions": ["nothing", "left", "main", "right"],
}


def drive(port: int, number: int, seconds: float) -> list[float]:
    """One robot at 50 Hz; the seconds that each ``step`` took."""
    robot, generator, times = Robot(port=port, name=f"robot-{number}"), np.random.default_rng(number), []
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
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="what fewer show is not kept")
    parser.add_argument("--robots", type=int, default=4)
    chosen = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "lander.yaml"
        task.write_text(yaml.safe_dump(TASK))
        command = [sys.executable, "-m", "bdpi.cli", "serve", str(task), "--port", "0", "--out", f"{folder}/run"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            port = next(int(found[1]) for line in server.stdout if (found := re.search(r"Listening: .*:(\d+)/", line)))
            with multiprocessing.get_context("spawn").Pool(chosen.robots) as pool:
                given = [(port, number, chosen.seconds) for number in range(chosen.robots)]
                times = [1000 * each for part in pool.starmap(drive, given, chunksize=1) for each in part]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/state") as response:
                state = json.load(response)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
    rows = {
        "robots": chosen.robots,
        "seconds": chosen.seconds,
        "steps": len(times),
        "epochs learned": state["policy_version"],
        "epochs due": state["epochs_due"],
        "cores": os.cpu_count(),
        "load before": round(load, 2),
        **{f"{share:g} %, ms": round(float(np.percentile(times, share)), 2) for share in (50, 90, 99, 99.9)},
        "longest, ms": round(max(times), 2),
        "over 5 ms, %": round(100 * float(np.mean(np.array(times) > 5)), 3),
        "over 20 ms, %": round(100 * float(np.mean(np.array(times) > 20)), 3),
    }
    text = "".join(f"{name},{value}\n" for name, value in rows.items())
    print(text, end="")
    if chosen.seconds >= SECONDS:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "step.csv").write_text(text)


if __name__ == "__main__":
    main()
