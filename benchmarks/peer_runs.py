"""One run of a tuned peer: the table of parameters, the algorithm that an entry of it describes, and its training."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import yaml

TABLE = Path(__file__).with_name("tuned_peers.yaml")


class Episode(NamedTuple):
    """:param steps: of all copies of the environment, when the episode ended"""

    steps: int
    episode_return: float
    length: int


@dataclass(frozen=True)
class Entry:
    """A peer on a task. tuned_peers.yaml says what the fields are."""

    task: str
    peer: str
    algorithm: str
    source: str
    zoo_steps: int
    steps: int
    policy: str
    n_envs: int
    normalize: bool
    parameters: dict[str, Any]
    changes: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.task}/{self.peer}"

    @property
    def fingerprint(self) -> str:
        """Of everything that decides on the episodes."""
        fields = {name: value for name, value in asdict(self).items() if name not in ("source", "note")}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]


def load_table(path: Path = TABLE) -> list[Entry]:
    """All entries, task by task."""
    tasks = yaml.safe_load(path.read_text(encoding="utf-8"))["tasks"]
    return [Entry(task, peer, **values) for task, peers in tasks.items() for peer, values in peers.items()]


def arguments_of(entry: Entry) -> dict[str, Any]:
    """The arguments of the algorithm, when it is trained for ``entry.steps``.

    SB3 measures schedules and the exploration in shares of the training. The Zoo's shares become those of ours, so that
    a shorter training is the beginning of the Zoo's, and a longer one goes on with what the Zoo's ended with.
    """
    ratio = entry.zoo_steps / entry.steps
    arguments = {**entry.parameters, **entry.changes}
    for name, value in arguments.items():
        if isinstance(value, str) and value.startswith("lin_"):
            arguments[name] = Linear(float(value.removeprefix("lin_")), ratio)
    if "exploration_fraction" in arguments:
        arguments["exploration_fraction"] *= ratio
    return arguments


class Linear:
    """A schedule from a value down to 0.

    :param initial: value
    :param duration: until it is 0, as a multiple of the training
    """

    def __init__(self, initial: float, duration: float) -> None:
        self.initial, self.duration = initial, duration

    def __call__(self, progress_remaining: float) -> float:
        return self.initial * max(0.0, 1 - (1 - progress_remaining) / self.duration)


def algorithm_class(name: str) -> Any:
    """:raises ImportError: when sb3-contrib is missing, with what to install."""
    import stable_baselines3

    if name in ("dqn", "ppo", "sac"):
        return getattr(stable_baselines3, name.upper())
    try:
        import sb3_contrib
    except ImportError as error:
        raise ImportError(f"{name} needs sb3-contrib: run pip install sb3-contrib") from error
    return {"qr-dqn": sb3_contrib.QRDQN, "tqc": sb3_contrib.TQC}[name]


def build(entry: Entry, seed: int) -> Any:
    """The algorithm with its environments: Monitor is inside, so that episodes have raw returns."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    import bdpi  # noqa: F401 # registers its environments

    algorithm = algorithm_class(entry.algorithm)
    arguments = arguments_of(entry)
    environment: Any = make_vec_env(entry.task, n_envs=entry.n_envs, seed=seed)
    if entry.normalize:
        environment = VecNormalize(environment, gamma=arguments["gamma"])
    return algorithm(entry.policy, environment, seed=seed, device="cpu", **arguments)


def train(entry: Entry, seed: int, parent: int | None = None) -> list[Episode]:
    """The episodes of one run.

    :param parent: stop when the process of this number is gone
    """
    from stable_baselines3.common.callbacks import BaseCallback

    episodes: list[Episode] = []

    class Record(BaseCallback):
        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "episode" in info:
                    episode = info["episode"]
                    episodes.append(Episode(self.num_timesteps, float(episode["r"]), int(episode["l"])))
            if parent is not None and os.getppid() != parent:
                raise RuntimeError("the process that has started this run is gone")
            return self.num_timesteps < entry.steps

    model = build(entry, seed)
    model.learn(entry.steps, callback=Record(), log_interval=None)
    model.get_env().close()
    return [episode for episode in episodes if episode.steps <= entry.steps]


def shortened(entry: Entry, steps: int) -> Entry:
    """The first steps of the same training."""
    return replace(entry, steps=steps)


def software() -> str:
    """What runs are made with, for the record."""
    names = ("torch", "stable-baselines3", "sb3-contrib", "gymnasium", "numpy")
    return ", ".join([f"python {platform.python_version()}", *(f"{name} {_version(name)}" for name in names)])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
