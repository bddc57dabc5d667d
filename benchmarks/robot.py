"""What learning while acting and the journal cost on a simulated robot.

    make bench-robot

A loop acts at 50 Hz with LunarLander's network and the default configuration while the agent learns in the background:
how long does an answer of ``act`` take? And how long does it take to write a transition to the journal?
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import gymnasium as gym
import numpy as np

from bdpi import BDPI
from bdpi.agents.journal import Journal, Transition

PERIOD = 0.02  # seconds


def act_while_learning(seconds: float, journal: Path | None) -> None:
    env = gym.make("LunarLander-v3")
    agent = BDPI("MlpPolicy", env, seed=0, policy_kwargs={"net_arch": [256]}, asynchronous=True, journal=journal)
    observation, _ = env.reset(seed=0)
    agent.start_learning()
    acting, observing = [], []
    tick = time.perf_counter()
    end = tick + seconds
    while tick < end:
        tick += PERIOD
        time.sleep(max(0.0, tick - time.perf_counter()))
        before = time.perf_counter()
        action = agent.act(observation)
        acted = time.perf_counter()
        following, reward, terminated, truncated, _ = env.step(action)
        stepped = time.perf_counter()
        agent.observe(observation, action, reward, following, terminated, truncated)
        observing.append(time.perf_counter() - stepped)
        acting.append(acted - before)
        observation = env.reset()[0] if terminated or truncated else following
    agent.stop_learning()
    for name, times in (("act", acting), ("observe", observing)):
        ms = 1000 * np.array(times)
        quantiles = ", ".join(f"{100 * q:g} %: {np.quantile(ms, q):.2f}" for q in (0.5, 0.99, 0.999))
        print(f"{name:<8} {len(ms)} calls, milliseconds {quantiles}, longest {ms.max():.2f}", flush=True)
    learning = agent._n_updates / seconds
    print(f"meanwhile {agent._n_updates} epochs were learned, {learning:.1f} per second", flush=True)


def journal_cost(rows: int) -> None:
    env = gym.make("LunarLander-v3")
    observation, _ = env.reset(seed=0)
    step = Transition(observation, 1, 0.5, observation, False, False)
    with tempfile.TemporaryDirectory() as folder:
        for durable in (False, True):
            path = Path(folder) / f"{durable}.sqlite"
            count = rows if not durable else rows // 20
            with Journal(path, env.observation_space, env.action_space, durable=durable) as journal:
                start = time.perf_counter()
                for _ in range(count):
                    journal.append(step)
                ms = 1000 * (time.perf_counter() - start) / count
            safe = "even without power" if durable else "if the program crashes"
            print(f"journal  {ms:.3f} ms per transition, which is safe {safe}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long to act")
    arguments = parser.parse_args()
    journal_cost(20_000)
    with tempfile.TemporaryDirectory() as folder:
        act_while_learning(arguments.seconds, Path(folder) / "robot.sqlite")


if __name__ == "__main__":
    main()
