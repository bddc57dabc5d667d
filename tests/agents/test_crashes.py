"""A robot that is killed at any moment goes on where it was, with everything it has seen."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from bdpi.agents.journal import Journal

ROBOT = Path(__file__).with_name("robot.py")
KILLS = int(os.environ.get("BDPI_KILLS", "12"))


@pytest.mark.parametrize("kills", [2, pytest.param(KILLS // 2, marks=pytest.mark.full)])
@pytest.mark.parametrize("mode", [[], ["background"]], ids=["in turn", "in the background"])
def test_killed_at_random_moments(tmp_path, mode, kills):
    """BDPI_KILLS=200 in the environment tries longer."""
    rng = np.random.default_rng(len(mode))
    record: list[int] = []  # actions that the robot said it had observed
    for _ in range(kills):
        command = [sys.executable, str(ROBOT), str(tmp_path), *mode]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(float(rng.uniform(0, 0.6)))
            process.send_signal(signal.SIGKILL)
            lines, errors = process.communicate()
        assert first.startswith("has"), errors[-2000:]
        steps, memory, _ = (int(number) for number in first.split()[1:])
        assert steps >= len(record), "a transition is lost"
        assert steps <= len(record) + 1, "the journal holds more than happened"
        assert memory == min(steps, 20_000)  # as many as the replay memory holds
        said = [line.split() for line in lines.splitlines() if len(line.split()) == 3]
        for word, number, action in said:
            if word == "observed":
                # what was in the file, but not said before the robot was killed
                record += [-1] * (int(number) - len(record))
                record.append(int(action))
        with Journal(tmp_path / "robot.sqlite") as journal:
            actions = [step.action for step in journal.steps()]
        assert len(record) <= len(actions) <= len(record) + 1
        assert all(known in (-1, found) for known, found in zip(record, actions, strict=False))
    assert kills == 2 or live_until_it_goes_right(command)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        epochs = int(process.stdout.readline().split()[3])
        process.kill()
    assert epochs > 0, "it went on learning from one life to the next"


def live_until_it_goes_right(command: list[str], seconds: float = 120.0) -> bool:
    """Whether a robot's last fifty steps, within this time, are right as a rule."""
    last: deque[int] = deque(maxlen=50)
    end = time.monotonic() + seconds
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("observed"):
                last.append(int(line.split()[2]))
            if sum(last) >= 45 or time.monotonic() > end:
                break
        process.kill()
    return sum(last) >= 45
