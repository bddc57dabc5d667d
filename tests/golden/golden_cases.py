"""What the golden tests cover: each case does something that users do, and returns what they get as plain JSON.

Only public names and files are used, so that internals can be rebuilt. Bits that do not depend on the processor are
SHA-256 fingerprints. PyTorch and the emulated GPU kernels round as the processor's instructions do: of what they learn,
each array is stored as two ``numbers`` (its product with a fixed vector, and its root mean square), which are compared
within a tolerance.
"""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import json
import os
import sqlite3
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from safetensors.numpy import load as load_arrays
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn
from typer.testing import CliRunner

from bdpi import ABCDQN, BDPI, PAPER, ActorMimic, BootstrappedDQN, Population, TabularBDPI
from bdpi.agents import PAPER_AGENTS
from bdpi.cli import app
from bdpi.envs import ControlLoop
from emulator import emulated_kernels
from small import Walk

Result = dict[str, Any]
Case = Callable[[Path], Result]

VECTOR, ONE_HOT = "CartPole-v1", "FrozenLake8x8-v1"
QUICK: dict[str, Any] = {"n_critics": 3, "fit_steps": 3, "critic_iterations": 2, "batch_size": 16, "buffer_size": 80}
QUICK_TABLES = {name: value for name, value in QUICK.items() if name != "fit_steps"}
TINY: dict[str, Any] = {"n_critics": 1, "fit_steps": 1, "critic_iterations": 1, "batch_size": 8, "buffer_size": 80}
DICT = spaces.Dict({"arm": spaces.Box(-1, 1, (2,), np.float32), "mode": spaces.Discrete(3)})
PICTURE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
#: What a run's config.json says of the moment and the machine.
CHANGING = {"started", "finished", "command", "versions", "platform", "seconds", "ms_per_step"}


class Masked(Walk):
    """One of three actions is not allowed, another at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(3)

    def action_masks(self) -> np.ndarray:
        return np.arange(3) != self.time % 3


# -- fingerprints


def fingerprint(arrays: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        array = np.asarray(array)
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def numbers(arrays: Mapping[str, Any]) -> dict[str, list[float]]:
    found = {}
    for name, array in sorted(arrays.items()):
        flat = np.asarray(array, np.float64).ravel()
        if flat.size:
            summary = [flat @ np.cos(np.arange(flat.size)), np.sqrt(np.mean(flat**2))]
            found[name] = [float(f"{number:.8g}") for number in summary]
    return found


def parameters_of(agent: Any) -> dict[str, Any]:
    """Actor, critics, Adam's moments and flags, by their names within the groups of ``get_parameters``."""
    return {name: np.asarray(array) for group in agent.get_parameters().values() for name, array in group.items()}


def memory_of(agent: Any) -> dict[str, Any]:
    transitions = agent.replay_buffer.transitions()
    columns = ("observations", "actions", "rewards", "discounts", "next_observations", "masks", "next_masks")
    found: dict[str, Any] = {}
    for column in columns:
        values = getattr(transitions, column)
        if isinstance(values, dict):
            found |= {f"{column}.{key}": part for key, part in values.items()}
        elif values is not None:
            found[column] = values
    return found


def actions_of(agent: Any) -> list[list[int]]:
    """The most probable actions, and drawn ones, where the agent was last."""
    transitions = agent.replay_buffer.transitions()
    stored, space = transitions.observations, agent.observation_space
    if isinstance(stored, dict):
        seen: Any = {key: part[-12:].reshape(-1, *space[key].shape) for key, part in stored.items()}
    else:
        seen = stored[-12:].reshape(-1, *space.shape)
    masks = None if transitions.masks is None else transitions.masks[-12:]
    return [agent.predict(seen, deterministic=way, action_masks=masks)[0].tolist() for way in (True, False)]


def learned(agent: Any, exact: bool) -> Result:
    """All that learning and acting leave behind."""
    parameters = parameters_of(agent)
    found: Result = {"steps": agent.num_timesteps, "memory": fingerprint(memory_of(agent))}
    found |= {"parameters": fingerprint(parameters)} if exact else {"numbers": numbers(parameters)}
    return {**found, "actions": actions_of(agent)}


def learning(stored: Mapping[str, Any]) -> str:
    """The fingerprint of all that is learned: of every case but those of files, whose layout learns nothing."""
    learned = {name: result for name, result in stored.items() if not name.startswith("files:")}
    return hashlib.sha256(json.dumps(learned, sort_keys=True).encode()).hexdigest()[:12]


# -- agents


def agent_case(agent_class: Any, env: Any, learner: str = "native", policy: str = "MlpPolicy", **settings: Any) -> Case:
    steps = settings.pop("steps", 40)

    def run(folder: Path) -> Result:
        made = env() if callable(env) else env
        agent = agent_class(policy, made, seed=3, device="cpu", **{"learner": learner, **settings}).learn(steps)
        return learned(agent, exact=learner != "torch")

    return run


def paper_case(agent_class: Any, env: str, settings: Mapping[str, Any]) -> Case:
    """With networks and batches that are a little larger, for longer."""
    return agent_case(agent_class, env, "auto", steps=150, **{**settings, "batch_size": 32, "n_critics": 3})


NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "BDPI": (BDPI, {}),
    "BDPI, the paper's": (BDPI, PAPER),
    "ABCDQN": (ABCDQN, {}),
    "ActorMimic": (ActorMimic, {}),
    "BootstrappedDQN": (BootstrappedDQN, {"critics_per_step": 2}),
    "BootstrappedDQN with priors": (BootstrappedDQN, {"critics_per_step": 2, "prior_scale": 3.0}),
}
AGENTS: dict[str, Case] = {
    f"{name}, native, {env}": agent_case(agent_class, env, **{**settings, **QUICK})
    for name, (agent_class, settings) in NETWORKS.items()
    for env in (VECTOR, ONE_HOT)
}
AGENTS |= {
    f"{name}, torch, {env}": agent_case(agent_class, env, "torch", **{**settings, **QUICK, "steps": 20})
    for name, (agent_class, settings) in NETWORKS.items()
    for env in (VECTOR, ONE_HOT)
}
AGENTS["TabularBDPI"] = agent_case(TabularBDPI, ONE_HOT, "auto", **QUICK_TABLES)

PAPERS: dict[str, Case] = {
    "BDPI, Table-v0": paper_case(BDPI, "Table-v0", PAPER),
    "BDPI, FrozenLake8x8-v1": paper_case(BDPI, ONE_HOT, PAPER),
    "ABCDQN, CartPole-v1": paper_case(ABCDQN, VECTOR, PAPER_AGENTS["abcdqn-paper"][1]),
    "ActorMimic, Table-v0": paper_case(ActorMimic, "Table-v0", PAPER_AGENTS["actor-mimic-paper"][1]),
    "BootstrappedDQN, CartPole-v1": paper_case(BootstrappedDQN, VECTOR, {}),
    "TabularBDPI, FrozenLake8x8-v1": paper_case(TabularBDPI, ONE_HOT, {}),
}


def normalized() -> VecNormalize:
    return VecNormalize(DummyVecEnv([lambda: gym.make(VECTOR)]))


def two_environments() -> DummyVecEnv:
    return DummyVecEnv([lambda: Walk(length=4, truncate=True), lambda: Walk(length=7)])


def step_by_step(folder: Path) -> Result:
    """``act``, ``observe`` and ``learn_once`` instead of ``learn``."""
    agent = controlled(gym.make(VECTOR), 40)
    return learned(agent, exact=True)


def controlled(env: Any, steps: int, **settings: Any) -> BDPI:
    loop = ControlLoop(env.observation_space, env.action_space)
    agent = BDPI("MlpPolicy", loop, seed=3, device="cpu", learner="native", **{**QUICK, **settings})
    observation, _ = env.reset(seed=3)
    for _ in range(steps):
        action = agent.act(observation)
        following, reward, terminated, truncated, _ = env.step(action)
        agent.observe(observation, action, reward, following, terminated, truncated)
        agent.learn_once()
        observation = env.reset()[0] if terminated or truncated else following
    return agent


WAYS: dict[str, Case] = {
    "masks": agent_case(BDPI, Masked, **QUICK),
    "masks, torch": agent_case(BDPI, Masked, "torch", steps=20, **QUICK),
    "masks, ABCDQN": agent_case(ABCDQN, Masked, **QUICK),
    "Dict observations": agent_case(BDPI, lambda: Walk(DICT), "torch", "MultiInputPolicy", steps=20, **QUICK),
    "pictures": agent_case(BDPI, lambda: Walk(PICTURE), "torch", "CnnPolicy", **{**QUICK, "fit_steps": 1, "steps": 18}),
    "step by step": step_by_step,
    "rare rewards": agent_case(BDPI, "Table-v0", **QUICK),
    "two environments": agent_case(BDPI, two_environments, **QUICK),
    "VecNormalize": agent_case(BDPI, normalized, **QUICK),
    "several steps per epoch": agent_case(BDPI, VECTOR, train_freq=4, gradient_steps=2, **QUICK),
    "two layers of ReLU": agent_case(
        BDPI, VECTOR, policy_kwargs={"net_arch": [24, 16], "activation_fn": nn.ReLU}, **QUICK
    ),
}


# -- populations, and the GPU's kernels


def population(folder: Path, n: int, env: str, steps: int, exact: bool, **settings: Any) -> Result:
    configs = [{"learning_rate": 1e-3} if number % 2 else {} for number in range(n)]
    together = Population(BDPI, env, n, configs, seed=5, device="cpu", **settings).learn(steps)
    agents = {f"agent {number}": learned(together.agents[number], exact) for number in (0, 1, n - 1)}
    return {**agents, "returns": together.returns()}


def emulated(case: Case) -> Case:
    def run(folder: Path) -> Result:
        with emulated_kernels(folder):
            return case(folder)

    return run


def fused(folder: Path) -> Result:
    settings = {**QUICK, "n_critics": 2, "fit_steps": 2}
    agent = BDPI("MlpPolicy", VECTOR, seed=3, learner="fused", device="cpu", **settings)
    return learned(agent.learn(18), exact=False)


TOGETHER: dict[str, Case] = {
    "population": functools.partial(population, n=3, env="FrozenLake-v1", steps=40, exact=True, **QUICK),
    "GPU kernels, one run": emulated(fused),
    "GPU kernels, few runs": emulated(
        functools.partial(population, n=3, env="FrozenLake-v1", steps=10, exact=False, **TINY)
    ),
    # from 40 runs on, a program trains a whole network of 40 units
    "GPU kernels, many runs": emulated(
        functools.partial(population, n=40, env=VECTOR, steps=9, exact=False, policy_kwargs={"net_arch": [40]}, **TINY)
    ),
}


# -- files


def saved_agent(folder: Path) -> Result:
    agent = BDPI("MlpPolicy", VECTOR, seed=3, device="cpu", learner="native", **QUICK).learn(40)
    agent.save(folder / "agent", include_buffer=True)
    with zipfile.ZipFile(folder / "agent.zip") as archive:
        files = archive.namelist()
        document = json.loads(archive.read("agent.json"))
        arrays = load_arrays(archive.read("arrays.safetensors"))
    arrays = {name: array for name, array in arrays.items() if not name.startswith("attributes._")}
    attributes = {name: value for name, value in document["attributes"].items() if not name.startswith("_")}
    loaded = BDPI.load(folder / "agent.zip", env=VECTOR, device="cpu")
    same = actions_of(loaded) == actions_of(agent) and fingerprint(parameters_of(loaded)) == fingerprint(
        parameters_of(agent)
    )
    loaded.learn(20, reset_num_timesteps=False)
    return {
        "files": files,
        "keys": sorted(document),
        "arrays": {name: f"{array.dtype} {list(array.shape)}" for name, array in sorted(arrays.items())},
        "content": fingerprint(arrays),
        "attributes": {
            name: value if isinstance(value, int | float | str | None) else type(value).__name__
            for name, value in sorted(attributes.items())
        },
        "loads as it was": same,
        "goes on": learned(loaded, exact=True),
    }


def journal(folder: Path) -> Result:
    """A robot's rows, on the disk, exported, and read by another agent."""
    path = folder / "robot.sqlite"
    agent = controlled(gym.make(VECTOR), 30, journal=path)
    same = fingerprint(memory_of(agent))
    agent.close_journal()
    bdpi_command("journal", "export", path, folder / "robot.npz")
    database = sqlite3.connect(path)
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    columns = {name: [row[1] for row in database.execute(f"PRAGMA table_info({name})")] for name in tables}
    database.close()
    other = BDPI("MlpPolicy", VECTOR, seed=3, device="cpu", learner="native", journal=path, **QUICK)
    found = fingerprint(memory_of(other))
    other.close_journal()
    with np.load(folder / "robot.npz") as exported:
        arrays = {name: exported[name] for name in exported.files}
    return {
        "tables": columns,
        "exported": {name: f"{array.dtype} {list(array.shape)}" for name, array in sorted(arrays.items())},
        "rows": fingerprint({name: array for name, array in arrays.items() if array.dtype.kind != "U"}),
        "memory": found,
        "reads what was written": found == same,
    }


def bdpi_command(*arguments: Any) -> None:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output


def steady(config: Any) -> Any:
    """Without times and versions, of which only the names are kept."""
    if not isinstance(config, dict):
        return config
    return {
        name: (sorted(value) if isinstance(value, dict) else None) if name in CHANGING else steady(value)
        for name, value in config.items()
    }


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def run_folder(folder: Path) -> Result:
    """``bdpi train`` with noise, which has test episodes, at once and resumed.

    tests/runs/test_exact_resume.py stops and kills runs at any step.
    """
    settings = [f"--set={name}={value}" for name, value in {**QUICK, "device": "cpu"}.items()]
    path, parts = folder / "run", folder / "parts"
    for episodes, out in ((6, path), (3, parts)):
        noisy = ["--seed", 3, "--off-policy-noise", 0.2, *settings]
        bdpi_command("train", ONE_HOT, "--episodes", episodes, *noisy, "--out", out)
    bdpi_command("train", "--resume", parts, "--episodes", 6)
    tables = {file.name: file.read_text().splitlines()[1:] for file in sorted(path.glob("*.csv"))}
    rows = {name: list(csv.DictReader(lines)) for name, lines in tables.items()}
    with np.load(path / "replay.npz") as held:
        replay = {name: held[name] for name in held.files}
    return {
        "files": files_in(path),
        "config": steady(json.loads((path / "config.json").read_text())),
        "columns": {name: list(table[0]) for name, table in rows.items()},
        "episodes": {name: [[float(row["r"]), int(row["l"])] for row in table] for name, table in rows.items()},
        "replay": {name: f"{array.dtype} {list(array.shape)}" for name, array in sorted(replay.items())},
        "agent": fingerprint(parameters_of(BDPI.load(path / "agent.zip", device="cpu"))),
        "resumed": fingerprint(parameters_of(BDPI.load(parts / "agent.zip", device="cpu"))),
    }


STUDY = """
title: Tiny
seeds: 2
environments: {lake: {id: FrozenLake-v1, episodes: 6}}
rows:
  algorithms:
    BDPI: {agent: bdpi, set: {n_critics: 2, critic_iterations: 1, fit_steps: 2, batch_size: 16, device: cpu}}
    ABCDQN: {agent: abcdqn, set: {n_critics: 2, critic_iterations: 1, fit_steps: 2, batch_size: 16, device: cpu}}
"""


def study(folder: Path) -> Result:
    """``bdpi study`` and what ``bdpi report`` keeps of it."""
    (folder / "tiny.yaml").write_text(STUDY)
    bdpi_command("study", folder / "tiny.yaml", "--executor", "local", "--out", folder / "runs")
    (root,) = {path.parent for path in (folder / "runs").rglob("study.json")}
    bdpi_command("report", root, "--archive", folder / "kept", "--out", folder / "shown")
    archive = json.loads((folder / "kept" / "runs.json").read_text())
    archive["runs"] = [steady(run) for run in archive["runs"]]
    with gzip.open(folder / "kept" / "episodes.csv.gz", "rt") as file:
        episodes = file.read().splitlines()
    return {
        "files": files_in(root),
        "archive": files_in(folder / "kept"),
        "report": files_in(folder / "shown"),
        "runs": archive,
        "episodes": episodes,
    }


FILES: dict[str, Case] = {"saved agent": saved_agent, "journal": journal, "run folder": run_folder, "study": study}

CASES: dict[str, Case] = {
    f"{group}: {name}": case
    for group, cases in {
        "agents": AGENTS, "papers": PAPERS, "ways": WAYS, "together": TOGETHER, "files": FILES
    }.items()
    for name, case in cases.items()
}  # fmt: skip


@contextmanager
def _baseline() -> Iterator[None]:
    """The instructions that all x86-64 processors have."""
    with patch.dict(os.environ, {"BDPI_INSTRUCTION_SET": "baseline"}):
        yield


def play(name: str, folder: Path) -> Result:
    """What a case gives, as JSON has it."""
    with _baseline():
        return json.loads(json.dumps(CASES[name](folder)))
