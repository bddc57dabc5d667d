"""Runs of the algorithms that BDPI is compared with."""

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from stable_baselines3.common.vec_env import SubprocVecEnv
from torch import nn

from bdpi.baselines.paper import PARAMETERS, make_peer
from bdpi.runs.build import PEER_NAMES, environment_of
from bdpi.runs.config import RunConfig, RunRecord
from bdpi.runs.episodes import read_monitor
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder
from bdpi.runs.job import read_same
from bdpi.runs.play import open_agent, steps
from bdpi.runs.train import prepare, prepare_resumption

FEW = ["ppo", "dqn", "sac"]
OTHERS = [pytest.param(name, marks=pytest.mark.full) for name in PEER_NAMES if name not in FEW]


@pytest.mark.parametrize("name", FEW + OTHERS)
def test_a_run_has_what_every_run_has(tmp_path: Path, name: str) -> None:
    environment, episodes = ("Pendulum-v1", 1) if name in ("sac", "td3") else ("CartPole-v1", 6)
    returns = []
    for attempt in ("one", "two"):
        plan = RunConfig(environment=environment, agent=name, seed=1, episodes=episodes)
        outcome = prepare(plan, tmp_path / attempt).run()
        assert outcome.status == "finished", outcome.error
        assert outcome.summary.episodes == episodes
        returns.append(read_monitor(outcome.folder.monitor).returns)
    assert returns[0] == returns[1]
    assert len(returns[0]) == episodes
    record = outcome.folder.read()
    assert record.config.agent == name
    assert not record.status.resumable
    assert outcome.folder.curve.exists()
    assert outcome.folder.film.exists()
    with pytest.raises(RunError, match="cannot be resumed"):
        prepare_resumption(outcome.folder.path, episodes=100)
    agent = open_agent(outcome.folder)
    assert agent.env is not None
    episode = next(episode for episode in steps(agent, agent.env, deterministic=True) if episode is not None)
    assert episode.length > 0


def test_hyperparameters_reach_the_algorithm(tmp_path: Path) -> None:
    small = {"n_steps": 32, "batch_size": 16}
    plan = RunConfig(environment="CartPole-v1", agent="ppo", episodes=2, hyperparameters=small)
    session = prepare(plan, tmp_path)
    defaults = session.status.defaults
    assert defaults["ent_coef"] == 0.01
    assert defaults["clip_range"] == 0.2  # SB3's
    assert (defaults["net_arch"], defaults["activation_fn"]) == ([32, 32], "tanh")
    assert not {"n_steps", "batch_size", "seed", "env"} & set(defaults)
    assert session.agent.n_steps == 32
    assert session.agent.gamma == 0.99
    assert session.agent.policy.net_arch == [32, 32]
    plan = RunConfig(environment="CartPole-v1", agent="dqn", episodes=2, policy_kwargs={"net_arch": [7]})
    assert prepare(plan, tmp_path).agent.policy.net_arch == [7]
    plan = RunConfig(environment="CartPole-v1", agent="a2c", episodes=2, policy_kwargs={"activation_fn": "relu"})
    session = prepare(plan, tmp_path)
    assert isinstance(session.agent.policy.mlp_extractor.policy_net[1], nn.ReLU)
    assert session.config.policy_kwargs == {"activation_fn": "relu"}
    assert prepare(RunConfig(environment="LunarLander-v3", agent="dqn"), tmp_path).status.defaults["net_arch"] == [256]


@pytest.mark.parametrize("name", ["ppo", "sac", "prioritized-dueling-dqn"])
def test_another_parameter_of_the_paper_makes_another_run(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bdpi.baselines import paper

    plan = RunConfig(environment="Pendulum-v1" if name in ("sac", "td3") else "CartPole-v1", agent=name, episodes=1)
    folder = RunFolder(tmp_path)
    session = prepare(plan, tmp_path)
    folder.write(RunRecord(plan, session.status))
    assert read_same(folder, plan).defaults
    changed = replace(paper.PARAMETERS[name], everywhere={**paper.PARAMETERS[name].everywhere, "gamma": 0.9})
    monkeypatch.setitem(paper.PARAMETERS, name, changed)
    with pytest.raises(RunError, match=r"gamma 0\.99, not 0\.9"):
        read_same(folder, plan)


def test_a_full_disk_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were full: neither episodes nor anything else can be written any more."""
    session = prepare(RunConfig(environment="CartPole-v1", agent="ppo", episodes=3), tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("bdpi.runs.recorder.append_to_monitor", full)
    monkeypatch.setattr("bdpi.runs.session.write_atomically", full)
    session.folder.error = tmp_path / "missing" / "error.txt"  # cannot be written, either
    session.draws = False
    outcome = session.run()
    assert outcome.status == "failed"
    assert f"No space left on device (where {tmp_path} is)" in str(outcome.error)
    assert "error.txt could not be saved" in str(outcome.error)
    assert "agent.zip could not be saved" in str(outcome.error)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (RunConfig(environment="CartPole-v1", agent="sac"), "sac needs Box actions"),
        (RunConfig(environment="CartPole-v1", agent="ppo", off_policy_noise=0.2), "knows neither off-policy noise"),
        (RunConfig(environment="CartPole-v1", agent="ppo", hyperparameters={"n_steps": 0}), "n_steps"),
        (RunConfig(environment="CartPole-v1", agent="a2c", hyperparameters={"n_steps": -3}), "a2c with n_steps=-3"),
        (RunConfig(environment="CartPole-v1", agent="a2c", policy_kwargs={"net_arch": [-1]}), "a2c with net_arch="),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, plan: RunConfig, message: str) -> None:
    with pytest.raises(RunError, match=message):
        prepare(plan, tmp_path)
    assert not RunFolder(tmp_path).config.exists()


PICTURES = """
import gymnasium as gym, numpy as np

class Pictures(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, True, False, {}

gym.register("Lambda-v0", entry_point=lambda **arguments: Pictures(**arguments))
"""


@pytest.mark.full
def test_pictures_may_come_from_an_environment_that_cannot_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which several processes make one each."""
    few = replace(PARAMETERS["ppo"], pixels={"n_steps": 8, "batch_size": 16}, pixel_copies=2)
    monkeypatch.setitem(PARAMETERS, "ppo", few)
    (tmp_path / "pictures_of_lambda.py").write_text(PICTURES)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = prepare(
        RunConfig(environment="pictures_of_lambda:Lambda-v0", agent="ppo", episodes=20), tmp_path / "run"
    ).run()
    assert outcome.status == "finished", outcome.error
    gym.register("OnlyHere-v0", entry_point="pictures_of_lambda:Pictures")  # in this process
    with pytest.raises(RunError, match="other processes"):
        prepare(RunConfig(environment="OnlyHere-v0", agent="ppo", episodes=20), tmp_path / "other")
    del gym.registry["OnlyHere-v0"]
    processes = SubprocVecEnv(
        [partial(environment_of, RunConfig(environment="pictures_of_lambda:Lambda-v0"))] * 2, start_method="forkserver"
    )
    with pytest.raises(ValueError, match="give make_peer its id"):
        make_peer("ppo", processes)


COPIES = """
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from bdpi.baselines import paper
from bdpi.runs.config import RunConfig, RunRecord
from bdpi.runs.signals import Stop
from bdpi.runs.train import prepare

if __name__ == "__main__":
    paper.PARAMETERS["ppo"] = replace(paper.PARAMETERS["ppo"], pixel_copies=2)
    stop = Stop()
    small = {"n_steps": 8, "batch_size": 16}
    with stop.on_signals():
        plan = RunConfig(environment=sys.argv[1], agent="ppo", episodes=int(sys.argv[2]), hyperparameters=small)
        session = prepare(plan, Path("run"))
        session.draws = False
        outcome = session.run(should_stop=stop.requested)
    print(outcome.status, outcome.error)
"""


def with_copies(folder: Path, environment: str, episodes: int) -> subprocess.Popen[str]:
    (folder / "copies.py").write_text(COPIES)
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "copies.py", environment, str(episodes)],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # also where the tests run under nohup
    )


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.full) for each in (signal.SIGTERM, signal.SIGHUP))]
)
def test_a_signal_to_all_processes_of_a_run_with_copies_only_stops_it(tmp_path: Path, number: signal.Signals) -> None:
    process = with_copies(tmp_path, "odd_worlds:SlowPictures-v0", 100_000)
    monitor, end = tmp_path / "run" / "monitor.csv", time.monotonic() + 180
    while not (monitor.exists() and monitor.read_text().count("\n") > 2) and time.monotonic() < end:
        time.sleep(0.1)
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=180)
    assert output.strip() == "interrupted None"
    assert RunFolder(tmp_path / "run").read().status.episodes > 0


def test_an_environment_that_a_lambda_makes_has_its_copies_in_this_process(tmp_path: Path) -> None:
    output, _ = with_copies(tmp_path, "odd_worlds:LambdaPictures-v0", 12).communicate(timeout=300)
    assert output.strip() == "finished None"
