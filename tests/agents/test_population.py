"""Many agents at once, wherever they learn. tests/learner/test_cohort.py has what they learn on a GPU."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bdpi import BDPI, Population
from small import QUICK, Walk

INTERRUPTED = """
import os, signal, sys, threading, time
from small import QUICK, Walk
from bdpi import BDPI, Population

def interrupt():
    while min(agent.num_timesteps for agent in several.agents) < 20:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

several = Population(BDPI, Walk, 3, device="cpu", **QUICK)
threading.Thread(target=interrupt).start()
asked = []
try:
    several.learn(10**9, callback=lambda variables, others: asked.append(0) or True)
except KeyboardInterrupt:
    before = [agent.num_timesteps for agent in several.agents]
    assert threading.active_count() <= 2, threading.enumerate()  # the other one has sent the signal
    assert len(asked) == sum(before), "the user's callback was asked at each step"
    several.learn(5, reset_num_timesteps=False)
    assert [agent.num_timesteps for agent in several.agents] == [steps + 5 for steps in before]
    print("went on")
"""


def test_ctrl_c_stops_all_agents_and_they_can_go_on():
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r})\n{INTERRUPTED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "went on\n", done.stderr


def test_a_population_that_learns_is_not_begun_again():
    several, errors = Population(BDPI, Walk, 2, device="cpu", **QUICK), []

    def again(variables, others) -> bool:
        if not errors:
            with pytest.raises(RuntimeError, match="learning already") as error:
                several.learn(1)
            errors.append(error)
        return True

    several.learn(20, callback=again)
    assert errors
    assert [agent.num_timesteps for agent in several.agents] == [20, 20]
    several.learn(5, reset_num_timesteps=False)


def test_without_threads_for_all_agents_none_goes_on(monkeypatch):
    several, start, started = Population(BDPI, Walk, 3, device="cpu", **QUICK), threading.Thread.start, []

    def start_two(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_two)
        with pytest.raises(RuntimeError, match="start new thread"):
            several.learn(10**9)
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()
    several.learn(20)
    assert [agent.num_timesteps for agent in several.agents] == [20] * 3
