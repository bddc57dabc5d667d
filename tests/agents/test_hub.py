"""Agents on the Hugging Face Hub, by its real clients, on a Hub of this machine: nothing is simulated in a process."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from bdpi import BDPI
from local_hub import TOKEN, LocalHub
from small import quick_agent


def talk(hub: LocalHub, home: Path, program: str) -> Any:
    """What a program prints that knows the Hub at this address only."""
    known = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **known}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


AGENT = """
import json
import gymnasium as gym
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from bdpi import BDPI
quick = dict(n_critics=2, fit_steps=1, critic_iterations=1, batch_size=16, seed=1, tensorboard_log="/home/ada/secret")
env = DummyVecEnv([lambda: gym.make("CartPole-v1", render_mode="rgb_array")])
agent = BDPI("MlpPolicy", VecNormalize(env), **quick).learn(60)
"""
PUSHED = """
bits = lambda agent: [[array.tolist() for array in group.values()] for group in agent.get_parameters().values()]
before, last = bits(agent), agent._last_obs.tolist()
url = agent.push_to_hub("ada/pole", "CartPole-v1", n_eval_episodes=3)
loaded = BDPI.from_hub("ada/pole", env="CartPole-v1")
print(json.dumps({
    "url": url, "same": bits(loaded) == before == bits(agent) and agent._last_obs.tolist() == last,
    "steps": loaded.learn(20, reset_num_timesteps=False).num_timesteps,
}))
"""


def test_an_agent_is_pushed_with_its_results_and_loaded(tmp_path: Path) -> None:
    with LocalHub(tmp_path / "hub") as hub:
        said = talk(hub, tmp_path / "home", AGENT + PUSHED)
    assert said == {"url": f"{hub.url}/ada/pole", "same": True, "steps": 80}
    repository = tmp_path / "hub" / "ada" / "pole"
    assert sorted(file.name for file in repository.iterdir()) == ["README.md", "agent.zip", "replay.gif"]
    with Image.open(repository / "replay.gif") as film:
        assert film.n_frames > 3
    assert b"secret" not in (repository / "agent.zip").read_bytes()  # a path of this machine
    _, metadata, text = (repository / "README.md").read_text("utf-8").split("---\n", 2)
    card = yaml.safe_load(metadata)
    assert card["library_name"] == "stable-baselines3"
    assert {"CartPole-v1", "reinforcement-learning", "bdpi"} <= set(card["tags"])
    result = card["model-index"][0]["results"][0]
    assert card["model-index"][0]["name"] == "BDPI"
    assert (result["dataset"]["name"], result["metrics"][0]["type"]) == ("CartPole-v1", "mean_reward")
    mean, deviation = map(float, result["metrics"][0]["value"].split(" +/- "))
    assert 1 <= mean <= 500
    assert deviation >= 0
    assert "over 3 episodes" in text
    assert 'BDPI.from_hub("ada/pole")' in text
    assert "![The agent acts](replay.gif)" in text


def test_the_page_of_the_documentation_is_true(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    code = code.replace("6_000", "260").replace("n_eval_episodes=20", "n_eval_episodes=1")
    with LocalHub(tmp_path / "hub") as hub:
        assert talk(hub, tmp_path / "home", f"{code}\nprint(agent.num_timesteps)") == 260


def test_the_card_of_an_agent_that_stacks_frames_hands_them_back(tmp_path: Path) -> None:
    program = AGENT.replace("**quick", "n_stack=2, **quick") + 'print(json.dumps(agent.push_to_hub("ada/stacks")))'
    with LocalHub(tmp_path / "hub") as hub:
        talk(hub, tmp_path / "home", program)
    card = (tmp_path / "hub" / "ada" / "stacks" / "README.md").read_text("utf-8")
    assert "action, state = agent.predict(observation, state, deterministic=True)" in card


PACKAGED = """
import os
from huggingface_sb3 import load_from_hub, package_to_hub
env.reset()
package_to_hub(agent, "bdpi-CartPole-v1", "BDPI", "CartPole-v1", env, "ada/other", "An agent", n_eval_episodes=2,
               video_length=20)
os.environ["TRUST_REMOTE_CODE"] = "True"  # which load_from_hub wants before it downloads anything; from_hub does not
loaded = BDPI.load(load_from_hub("ada/other", "bdpi-CartPole-v1.zip"))
del os.environ["TRUST_REMOTE_CODE"]
again = BDPI.from_hub("ada/other", filename="bdpi-CartPole-v1.zip")
print(json.dumps({"steps": [loaded.num_timesteps, again.num_timesteps]}))
"""


def test_huggingface_sb3_packages_and_loads_our_files(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_sb3")
    with LocalHub(tmp_path / "hub") as hub:
        assert talk(hub, tmp_path / "home", AGENT + PACKAGED)["steps"] == [60, 60]
    repository = tmp_path / "hub" / "ada" / "other"
    config = json.loads((repository / "config.json").read_text("utf-8"))
    assert (config["class"], config["n_critics"], config["num_timesteps"]) == ("BDPI", 2, 60)
    assert json.loads((repository / "results.json").read_text("utf-8"))["n_eval_episodes"] == 2


def test_without_huggingface_hub_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for ask in (lambda: quick_agent().push_to_hub("ada/pole"), lambda: BDPI.from_hub("ada/pole")):
        with pytest.raises(ImportError, match=r"bdpi\[hub\]"):
            ask()
