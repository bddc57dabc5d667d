"""What each agent costs per environment step: acting, the environment, storing, and one learning epoch.

    make bench

Agents take turns; times are medians over turns. The default configuration, that is, an epoch per step.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bdpi.agents import AGENTS
from bdpi.learner.native import default_threads
from bdpi.runs.presets import preset_of

ENVIRONMENTS = ("TableLong-v0", "FrozenLake8x8-v1", "LunarLander-v3")
FIRST_BATCH = 256  # steps before anything is learned
STEPS = 60  # per turn


def measure(environment: str, rounds: int, threads: int, advance) -> dict[str, float]:
    """Milliseconds per step of each agent that can learn here."""
    agents = {}
    for name, agent_class in AGENTS.items():
        if name == "tabular-bdpi" and not isinstance(gym.make(environment).observation_space, gym.spaces.Discrete):
            continue
        kwargs = {"policy_kwargs": preset_of(environment).policy_kwargs} if name != "tabular-bdpi" else {}
        agents[name] = agent_class("MlpPolicy", environment, seed=0, n_threads=threads, **kwargs)
        agents[name].learn(FIRST_BATCH + STEPS, log_interval=None)
    times: dict[str, list[float]] = {name: [] for name in agents}
    for _ in range(rounds):
        for name, agent in agents.items():
            start = time.perf_counter()
            agent.learn(STEPS, log_interval=None, reset_num_timesteps=False)
            times[name].append((time.perf_counter() - start) / STEPS)
            advance()
    return {name: 1000 * float(np.median(values)) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each agent gets its turn (default: 5)")
    parser.add_argument("--threads", type=int, default=default_threads(), help="threads of the native learner")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    console = Console()
    results = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=arguments.rounds * len(AGENTS) * len(ENVIRONMENTS))
        for environment in ENVIRONMENTS:
            if not console.is_terminal:
                console.print(f"measuring the agents on {environment} ...")
            progress.update(task, description=environment)
            results[environment] = measure(
                environment, arguments.rounds, arguments.threads, lambda: progress.advance(task)
            )
    table = Table(title="Milliseconds per environment step (default configuration)", title_justify="left")
    table.add_column("")
    for environment in ENVIRONMENTS:
        table.add_column(environment, justify="right")
    for name in AGENTS:
        cells = (results[environment].get(name) for environment in ENVIRONMENTS)
        table.add_row(name, *("–" if cell is None else f"{cell:.1f}" for cell in cells))
    console.print(table)
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    console.print(
        f"{arguments.threads} threads; load of the machine in the last minute: {load:.1f} on {cores} cores",
        highlight=False,
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
