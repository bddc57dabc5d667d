"""Which other libraries BDPI was run with: each client below, for some hundred steps, in a process of its own.

    python benchmarks/clients.py          # those that are installed; writes results/clients.json and docs/ecosystem.md
    python benchmarks/clients.py minigrid

A docstring says what is run and, after a semicolon, what has to be done for it. Libraries that are not installed keep
their last result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_util import make_atari_env, make_vec_env

import bdpi

ROOT = Path(__file__).parents[1]
STORE, PAGE = ROOT / "results" / "clients.json", ROOT / "docs" / "ecosystem.md"
QUICK: dict[str, Any] = {"n_critics": 2, "fit_steps": 2, "batch_size": 32, "buffer_size": 2_000, "seed": 0}
STEPS = 300
#: By the names of their packages.
CLIENTS: dict[str, Callable[[], object]] = {}


def client(package: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    return lambda run: CLIENTS.setdefault(package, run)


def learned(env: Any, policy: str = "MlpPolicy", callback: Any = None, **settings: Any) -> Any:
    agent = bdpi.BDPI(policy, env, **{**QUICK, **settings}).learn(STEPS, callback=callback)
    assert agent._n_updates > 0
    return agent


def refused(env: Any) -> None:
    with pytest.raises(ValueError, match="make_vec_env"):
        bdpi.BDPI("MlpPolicy", env)


@client("sb3-contrib")
def contrib() -> None:
    """`ActionMasker` and `TimeFeatureWrapper` around CartPole, `MaskableEvalCallback`; nothing"""
    from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
    from sb3_contrib.common.wrappers import ActionMasker, TimeFeatureWrapper

    first, second = (TimeFeatureWrapper(gym.make("CartPole-v1")) for _ in range(2))
    first, second = (ActionMasker(env, lambda env: np.ones(2, bool)) for env in (first, second))
    learned(first, callback=MaskableEvalCallback(second, eval_freq=150, n_eval_episodes=1, verbose=0))


@client("imitation")
def imitation() -> None:
    """`rollout` of an agent, `BC` from its trajectories; it brings SB3 2.2: install bdpi's again"""
    from imitation.algorithms.bc import BC
    from imitation.data.rollout import flatten_trajectories, make_min_episodes, rollout
    from imitation.data.wrappers import RolloutInfoWrapper

    env = make_vec_env("CartPole-v1", wrapper_class=RolloutInfoWrapper)
    steps = flatten_trajectories(rollout(learned(env), env, make_min_episodes(3), rng=np.random.default_rng(0)))
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    BC(**spaces, demonstrations=steps, rng=np.random.default_rng(0)).train(n_epochs=1)


@client("minigrid")
def minigrid() -> None:
    """`MiniGrid-Empty-5x5-v0`; `FilterObservation` leaves the mission's text out, and `FlattenObservation`"""
    import minigrid  # noqa: F401  # registers its tasks

    seen = gym.wrappers.FilterObservation(gym.make("MiniGrid-Empty-5x5-v0"), ["direction", "image"])
    learned(gym.wrappers.FlattenObservation(seen))


@client("MinAtar")
def minatar() -> None:
    """`MinAtar/Breakout-v1`, flattened; `minatar.gym.register_envs()`, and `FlattenObservation`"""
    from minatar import gym as tasks

    tasks.register_envs()
    learned(gym.wrappers.FlattenObservation(gym.make("MinAtar/Breakout-v1")))


@client("ale-py")
def atari() -> None:
    """`ALE/Breakout-v5` by SB3's `make_atari_env`, CnnPolicy, an epoch every 4 steps; `pip install opencv-python`"""
    import ale_py
    from stable_baselines3.common.vec_env import VecFrameStack

    gym.register_envs(ale_py)
    learned(VecFrameStack(make_atari_env("ALE/Breakout-v5"), 4), "CnnPolicy", train_freq=4)


@client("highway-env")
def highway() -> None:
    """`highway-fast-v0`; `import highway_env`"""
    import highway_env

    gym.register_envs(highway_env)
    learned("highway-fast-v0")


@client("SuperSuit")
def supersuit() -> None:
    """PettingZoo's `knights_archers_zombies_v11`, four agents as one `VecEnv`; `black_death_v3`, and no seed"""
    import supersuit
    from pettingzoo.butterfly import knights_archers_zombies_v11 as task

    many = supersuit.pettingzoo_env_to_vec_env_v1(supersuit.black_death_v3(task.parallel_env()))
    learned(supersuit.concat_vec_envs_v1(many, 1, base_class="stable_baselines3"), seed=None)


@client("envpool")
def envpool() -> None:
    """refused, with an error that names SB3's `make_vec_env`; `make_vec_env` instead of `envpool.make`"""
    import envpool

    refused(envpool.make("CartPole-v1", env_type="gymnasium", num_envs=2))


@client("gymnasium")
def make_vec() -> None:
    """`gym.make_vec` is refused, with an error that names SB3's `make_vec_env`, which was run; `make_vec_env`"""

    refused(gym.make_vec("CartPole-v1", num_envs=2))
    learned(make_vec_env("CartPole-v1", n_envs=2))


@client("minari")
def minari() -> None:
    """a dataset of its own format, given to `add_demonstrations`; nothing"""
    import minari
    from minari.data_collector import EpisodeBuffer

    env, n = gym.make("CartPole-v1"), 8  # pushed to the left, the pole stands for as long
    seen = np.array([env.reset(seed=0)[0], *(env.step(0)[0] for _ in range(n))])
    episode = EpisodeBuffer(0, 0, None, seen, np.zeros(n, np.int64), [1.0] * n, [False] * n, [False] * n, infos={})
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    dataset = minari.create_dataset_from_buffers("bdpi/cartpole-v0", [episode], **spaces)
    agent = learned("CartPole-v1")
    agent.add_demonstrations(dataset)
    agent.learn(50)


@client("optuna")
def optuna() -> None:
    """two trials of a study that chooses `n_critics`; nothing (`bdpi tune` does more)"""
    import optuna

    optuna.create_study().optimize(
        lambda trial: learned("CartPole-v1", n_critics=trial.suggest_int("n_critics", 2, 4)).episodes.last[0],
        n_trials=2,
    )


@client("onnxruntime")
def onnxruntime() -> None:
    """`export_onnx`, whose actions are compared with the agent's; nothing"""
    from bdpi.export import check_onnx, export_onnx

    agent = learned("CartPole-v1")
    export_onnx(agent, "pole.onnx")
    check_onnx(agent, "pole.onnx")


@client("rl_zoo3")
def zoo() -> None:
    """its `train` and `enjoy`, as `python -m bdpi.zoo`; nothing ([more commands](clients.md))"""
    settings = "--algo bdpi --env CartPole-v1 -f logs"
    for command in (
        f"train {settings} -n {STEPS} --eval-freq -1 -params n_critics:2 fit_steps:2 batch_size:32",
        f"enjoy {settings} -n 50 --no-render",
    ):
        subprocess.run([sys.executable, "-m", "bdpi.zoo", *command.split()], check=True, capture_output=True)


@client("huggingface_hub")
def hub() -> None:
    """`push_to_hub` and `from_hub`, by HTTP, to a server on this machine; nothing ([more](clients.md))"""
    sys.path.append(str(ROOT / "tests" / "agents"))
    from local_hub import TOKEN, LocalHub

    agent = learned("CartPole-v1")
    with LocalHub(Path("hub")) as server:
        known = {"HF_ENDPOINT": server.url, "HF_HOME": "home", "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
        os.environ.update(known)  # before it is imported
        agent.push_to_hub("ada/pole", "CartPole-v1", n_eval_episodes=2)
        assert bdpi.BDPI.from_hub("ada/pole").num_timesteps == STEPS


def tried(package: str) -> dict[str, str] | None:
    """In a process of its own; None: it is not installed."""
    try:
        found = version(package)
    except PackageNotFoundError:
        return None
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), package]
        settings = {**os.environ, "MINARI_DATASETS_PATH": folder, "SDL_VIDEODRIVER": "dummy", "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True)
    said = "" if ended.returncode == 0 else ended.stderr.strip().splitlines()[-1]
    return {"version": found, "ran": f"{date.today()}", "error": said}


def write(results: dict[str, dict[str, str]]) -> None:
    """Into the page, between its marks."""
    rows = ["| client | version | what was run | what had to be done | result |", "|---|---|---|---|---|"]
    for package, run in CLIENTS.items():
        what, todo = (run.__doc__ or "").split("; ")
        result = results[package]
        rows.append(f"| {package} | {result['version']} | {what} | {todo} | {result['error'] or 'passes'} |")
    before, _, rest = PAGE.read_text().partition("<!-- table -->\n")
    PAGE.write_text("\n".join([f"{before}<!-- table -->", *rows, "<!-- end -->" + rest.partition("<!-- end -->")[2]]))
    STORE.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        CLIENTS[sys.argv[1]]()
    else:
        known = json.loads(STORE.read_text()) if STORE.exists() else {}
        write(known | {package: result for package in CLIENTS if (result := tried(package)) is not None})
