"""Two threads, or two processes, that learn at once: a clear error, or it works; it never hangs."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from bdpi import _native

COMMON = """
import faulthandler, os, sys, threading, time
faulthandler.dump_traceback_later(240, exit=True)
from small import Walk, quick_agent
agent = quick_agent(Walk(), n_threads=2, fit_steps=20, n_critics=8).learn(40)
"""


def run(code: str) -> str:
    """In a process of its own, which a deadlock could not take along. Nothing is said about leaks in the end."""
    path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "agents")
    done = subprocess.run(
        [sys.executable, "-c", COMMON + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, "BDPI_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "leaked" not in done.stderr
    return done.stdout


def test_learn_once_in_two_threads() -> None:
    said = run(
        """
        def work():
            for _ in range(300):
                try:
                    agent.learn_once()
                except RuntimeError as error:
                    said.add(str(error))
        said, threads = set(), [threading.Thread(target=work) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert agent.learn_once()
        print(said)
        """
    )
    assert said.strip() == "set()" or "in another thread" in said


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked there")
def test_a_child_that_is_forked_while_the_agent_learns() -> None:
    said = run(
        """
        import warnings
        warnings.simplefilter("ignore")
        agent.start_learning()
        observation = agent.observation_space.sample()
        calls = [
            lambda: agent.act(observation),
            lambda: agent.predict(observation),
            lambda: agent.observe(observation, 0, 1.0, observation, False, False),
            lambda: agent.save("never.zip"),
        ]
        for number in range(20):
            agent.observe(observation, agent.act(observation), 1.0, observation, False, False)
            child = os.fork()
            if child == 0:
                try:
                    calls[number % len(calls)]()
                except RuntimeError as error:
                    print(error, flush=True)
                    os._exit(0 if "forked" in str(error) else 1)
                os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
        agent.stop_learning()
        """
    )
    assert said.count("forked") == 20


def test_a_program_that_ends_while_its_agent_learns() -> None:
    run(
        """
        agent.mine = [agent]  # in a cycle, as an agent is that a callback or a closure knows
        agent.start_learning()
        """
    )


def test_actor_and_critics_of_other_sizes_are_refused_in_the_engine() -> None:
    for critic in ([3, 32, 5], [4, 32, 2]):
        with pytest.raises(ValueError, match="actor and critics"):
            _native.Engine([3, 32, 2], critic, "tanh", False, 8, 2, 1)
    assert np.isfinite(_native.fma_peak(1, 0.01))
