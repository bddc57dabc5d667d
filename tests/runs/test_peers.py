"""Runs of the algorithms that BDPI is compared with."""

from dataclasses import replace
from pathlib import Path

import pytest
from stable_baselines3.common.vec_env import SubprocVecEnv
from torch import nn

from bdpi.baselines.paper import PARAMETERS, make_peer
from bdpi.runs.build import PEER_NAMES
from bdpi.runs.episodes import read_monitor
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder
from bdpi.runs.peers import _Make
from bdpi.runs.plan import Plan
from bdpi.runs.play import open_agent, steps
from bdpi.runs.train import prepare, prepare_resumption


@pytest.mark.parametrize("name", PEER_NAMES)
def test_a_run_has_what_every_run_has(tmp_path: Path, name: str) -> None:
    environment, episodes = ("Pendulum-v1", 1) if name in ("sac", "td3") else ("CartPole-v1", 6)
    returns = []
    for attempt in ("one", "two"):
        plan = Plan(environment, name, seed=1, episodes=episodes)
        outcome = prepare(plan, tmp_path / attempt).run()
        assert outcome.status == "finished", outcome.error
        assert outcome.summary.episodes == episodes
        returns.append(read_monitor(outcome.folder.monitor).returns)
    assert returns[0] == returns[1]
    assert len(returns[0]) == episodes
    config = outcome.folder.read_config()
    assert config["agent"] == name
    assert config["resumable"] is False
    assert outcome.folder.curve.exists()
    assert outcome.folder.film.exists()
    with pytest.raises(RunError, match=f"runs of {name} cannot be resumed"):
        prepare_resumption(outcome.folder.path, episodes=100)
    agent = open_agent(outcome.folder)
    assert agent.env is not None
    episode = next(episode for episode in steps(agent, agent.env, deterministic=True) if episode is not None)
    assert episode.length > 0


def test_hyperparameters_reach_the_algorithm(tmp_path: Path) -> None:
    plan = Plan("CartPole-v1", "ppo", episodes=2, hyperparameters={"n_steps": 32, "batch_size": 16})
    session = prepare(plan, tmp_path)
    assert session.peer.n_steps == 32
    assert session.peer.gamma == 0.99
    assert session.peer.policy.net_arch == [32, 32]
    plan = Plan("CartPole-v1", "dqn", episodes=2, policy_kwargs={"net_arch": [7]})
    assert prepare(plan, tmp_path).peer.policy.net_arch == [7]
    plan = Plan("CartPole-v1", "a2c", episodes=2, policy_kwargs={"activation_fn": "relu"})
    session = prepare(plan, tmp_path)
    assert isinstance(session.peer.policy.mlp_extractor.policy_net[1], nn.ReLU)
    assert session.config["policy_kwargs"] == {"activation_fn": "relu"}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan("CartPole-v1", "sac"), "sac needs Box actions"),
        (Plan("CartPole-v1", "ppo", off_policy_noise=0.2), "knows neither off-policy noise"),
        (Plan("CartPole-v1", "ppo", hyperparameters={"n_steps": 0}), "n_steps"),
        (Plan("CartPole-v1", "a2c", hyperparameters={"n_steps": -3}), r"negative.* \(a2c with n_steps=-3\)"),
        (Plan("CartPole-v1", "a2c", policy_kwargs={"net_arch": [-1]}), r"\(a2c with net_arch=\[-1\]\)"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, plan: Plan, message: str) -> None:
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


def test_pictures_may_come_from_an_environment_that_cannot_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which several processes make one each."""
    few = replace(PARAMETERS["ppo"], pixels={"n_steps": 8, "batch_size": 16}, pixel_copies=2)
    monkeypatch.setitem(PARAMETERS, "ppo", few)
    (tmp_path / "pictures_of_lambda.py").write_text(PICTURES)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = prepare(Plan("pictures_of_lambda:Lambda-v0", "ppo", episodes=20), tmp_path / "run").run()
    assert outcome.status == "finished", outcome.error
    with pytest.raises(RunError, match=r"Lambda-v0 cannot be made in other processes, .* as my_module:Lambda-v0"):
        prepare(Plan("Lambda-v0", "ppo", episodes=20), tmp_path / "other")  # by now, it is registered in this one
    processes = SubprocVecEnv([_Make("pictures_of_lambda:Lambda-v0")] * 2, start_method="forkserver")
    with pytest.raises(ValueError, match="give make_peer its id"):
        make_peer("ppo", processes)


def test_a_stopped_run_keeps_its_episodes(tmp_path: Path) -> None:
    asked = iter(range(150))
    outcome = prepare(Plan("CartPole-v1", "a2c", episodes=50), tmp_path).run(
        should_stop=lambda: next(asked, None) is None
    )
    assert outcome.status == "interrupted"
    assert len(read_monitor(outcome.folder.monitor)) == outcome.summary.episodes > 0
