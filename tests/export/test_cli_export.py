"""The command ``bdpi export``."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from decisive import decisive_agent
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from bdpi import BDPI
from bdpi.agents.files import read_agent, write_agent
from bdpi.envs import ControlLoop
from bdpi.export import export_onnx
from bdpi.runs.config import RunConfig
from bdpi.runs.folder import RunFolder
from bdpi.runs.play import open_agent
from bdpi.runs.train import prepare
from command_line import bdpi_command, refused, succeeds
from small import Walk, quick_agent

pytestmark = pytest.mark.usefixtures("elsewhere")
QUICK = {"n_critics": 2, "fit_steps": 2, "batch_size": 16, "n_threads": 1}


def trained(folder: Path, environment: str, agent: str = "bdpi") -> Path:
    hyperparameters = {"n_steps": 16, "batch_size": 16} if agent == "ppo" else QUICK
    plan = RunConfig(environment=environment, agent=agent, episodes=None, steps=60, hyperparameters=hyperparameters)
    assert prepare(plan, folder).run().status == "finished"
    return folder


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("lake") / "run", "FrozenLake-v1")


def test_a_run_becomes_an_onnx_file(lake: Path) -> None:
    result = succeeds("export", lake, "policy.onnx")
    assert "Wrote policy.onnx" in result.output
    assert "in 1000 random observations it acts as the agent does" in result.output
    session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
    states = np.arange(16)
    (actions,) = session.run(["action"], {"observation": states})
    assert np.array_equal(actions, open_agent(RunFolder.open(lake)).predict(states, deterministic=True)[0])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_a_run_becomes_a_c_header(lake: Path, tmp_path: Path) -> None:
    assert bdpi_command("export", lake / "agent.zip", "lake.h").exit_code == 0
    Path("main.c").write_text(
        '#include <stdio.h>\n#include "lake.h"\n'
        'int main(void) { for (float s = 0; s < 16; s++) printf("%d\\n", lake_act(&s)); return 0; }\n'
    )
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Werror", "main.c", "-o", "lake", "-lm"], check=True)
    printed = subprocess.run([str(tmp_path / "lake")], check=True, capture_output=True, text=True).stdout
    actions = open_agent(RunFolder.open(lake)).predict(np.arange(16), deterministic=True)[0]
    assert [int(line) for line in printed.split()] == actions.tolist()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_an_agent_that_learned_with_vecnormalize_takes_what_the_robot_sees(tmp_path: Path) -> None:
    """The file alone is enough: the statistics are in it."""
    space = spaces.Box(np.float32([-1, 1000, 0]), np.float32([1, 1001, 1e-3]))
    env = VecNormalize(DummyVecEnv([lambda: Walk(space)]))
    agent = decisive_agent(env)
    agent.save("robot.zip")
    for name in ("robot.onnx", "robot.h"):
        succeeds("export", "robot.zip", name)
    space.seed(0)
    seen = np.array([space.sample() for _ in range(50)])
    expected = agent.predict(env.normalize_obs(seen), deterministic=True)[0]
    assert set(expected) == {0, 1}
    session = onnxruntime.InferenceSession("robot.onnx", providers=["CPUExecutionProvider"])
    assert np.array_equal(session.run(["action"], {"observation": seen})[0], expected)
    Path("main.c").write_text(
        '#include <stdio.h>\n#include "robot.h"\nint main(void) { float seen[3];'
        ' while (scanf("%f %f %f", seen, seen + 1, seen + 2) == 3) printf("%d\\n", robot_act(seen)); return 0; }\n'
    )
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Werror", "main.c", "-o", "robot", "-lm"], check=True)
    rows = "\n".join(" ".join(f"{value:.9g}" for value in row) for row in seen)
    printed = subprocess.run([str(tmp_path / "robot")], input=rows, check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in printed.split()] == expected.tolist()


def test_pictures_are_taken_as_the_robot_sees_them() -> None:
    agent = quick_agent(Walk(spaces.Box(0, 255, (36, 40, 3), np.uint8)), "CnnPolicy")
    agent.save("camera.zip")
    export_onnx(agent, "live.onnx")
    assert bdpi_command("export", "camera.zip", "saved.onnx").exit_code == 0
    for name in ("live.onnx", "saved.onnx"):
        assert onnxruntime.InferenceSession(name).get_inputs()[0].shape == ["n", 36, 40, 3]


@pytest.mark.parametrize("with_memory", [False, True])
def test_masks_are_not_exported_and_that_is_said(with_memory: bool) -> None:
    agent = quick_agent(ControlLoop(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)))
    seen = np.zeros(3, np.float32)
    agent.observe(seen, agent.act(seen, mask=[1, 0]), 0.0, seen, False, False, next_mask=[1, 1])
    agent.save("robot.zip", include_buffer=with_memory)
    for name in ("robot.onnx", "robot.h"):
        result = succeeds("export", "robot.zip", name)
        assert "learned with action masks, which this file knows nothing of" in result.output
        assert "predict" not in result.output
    assert "take the largest that is allowed" in Path("robot.h").read_text()
    with pytest.warns(RuntimeWarning, match="predicts without"):
        BDPI.load("robot.zip").predict(seen)


def test_of_several_parts_there_are_no_probabilities_to_take() -> None:
    env = Walk(pays=lambda env, action: 1.0, says=lambda env: {"action_mask": [0, 1, 1, 1]})
    env.action_space = spaces.MultiDiscrete([2, 2])
    quick_agent(env).learn(20).save("robot.zip")
    for name in ("robot.onnx", "robot.h"):
        result = bdpi_command("export", "robot.zip", name)
        assert "may choose actions that are not allowed" in result.output
        assert "take the largest" not in result.output
    assert "take the largest" not in Path("robot.h").read_text()


def test_the_format_overrides_the_ending(lake: Path) -> None:
    assert bdpi_command("export", lake, "deep/policy.inc", "--format", "c").exit_code == 0
    assert "policy_act" in Path("deep/policy.inc").read_text()
    assert bdpi_command("export", lake, "policy", "--format", "onnx").exit_code == 0
    assert onnxruntime.InferenceSession(Path("policy").read_bytes()).get_inputs()[0].name == "observation"


def test_what_cannot_be_exported_is_said_in_one_line(lake: Path, tmp_path: Path) -> None:
    refused(bdpi_command("export"), "RUN")
    refused(bdpi_command("export", lake), "OUT")
    refused(bdpi_command("export", "nowhere", "policy.onnx"), "there is no run folder nowhere")
    refused(bdpi_command("export", lake, "policy.pb"), "policy.pb", "--format")
    refused(bdpi_command("export", lake, "policy.onnx", "--format", "tflite"), "--format")
    refused(bdpi_command("export", lake, tmp_path, "--format", "c"), "is a folder", "policy.h")
    assert not Path("policy.onnx").exists()


def test_peers_are_refused(tmp_path: Path) -> None:
    refused(
        bdpi_command("export", trained(tmp_path / "run", "FrozenLake-v1", "ppo"), "policy.onnx"),
        "PPO, which is not one of",
    )


def test_a_table_is_exported_in_both_formats(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "FrozenLake-v1", "tabular-bdpi")
    result = bdpi_command("export", run, "policy.onnx")
    assert (result.exit_code, "it acts as the agent does" in result.output) == (0, True), result.output
    assert bdpi_command("export", run / "agent.zip", "policy.h").exit_code == 0
    assert "Table: 16-4; 64 constants, 256 bytes." in Path("policy.h").read_text()


def test_only_the_file_is_needed(tmp_path: Path) -> None:
    """Neither the environment nor its module, whoever names it."""
    for agent, ending in (("bdpi", "onnx"), ("abcdqn", "h")):
        run = trained(tmp_path / agent, "CartPole-v1", agent)
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps({**config, "environment": "no_such_module:Gone-v0"}))
        succeeds("export", run, tmp_path / f"policy.{ending}")
        (run / "config.json").unlink()
        assert bdpi_command("export", run / "agent.zip", tmp_path / f"policy.{ending}").exit_code == 0


@pytest.mark.parametrize("more", [[], ["--n-envs", 2, "--off-policy-noise", 0.1]])
def test_a_run_with_continuous_actions_becomes_a_file_that_gives_torques(more: list[object], tmp_path: Path) -> None:
    """From the folder, and from the agent's file alone."""
    small = [f"--set={name}={value}" for name, value in QUICK.items()]
    succeeds("train", "Pendulum-v1", "--steps", 300, *more, *small, "--out", tmp_path / "run")
    shutil.copy(tmp_path / "run" / "agent.zip", "alone.zip")
    for number, file in enumerate((tmp_path / "run", "alone.zip")):
        said = succeeds("export", file, f"{number}/policy.onnx").output
        assert ("it acts as the agent does" in said, "single decisions" in said) == (True, False), said
        succeeds("export", file, f"{number}/policy.h")
    assert Path("0/policy.onnx").read_bytes() == Path("1/policy.onnx").read_bytes()
    assert Path("0/policy.h").read_text() == Path("1/policy.h").read_text()
    assert "void policy_act(const float *observation, float *action)" in Path("0/policy.h").read_text()
    session = onnxruntime.InferenceSession("0/policy.onnx", providers=["CPUExecutionProvider"])
    (torques,) = session.run(["action"], {"observation": np.eye(3, dtype=np.float32)})
    assert (torques.shape, torques.dtype, np.abs(torques).max() <= 2) == ((3, 1), np.float32, True)


def test_a_run_whose_file_is_from_before_gives_single_decisions(tmp_path: Path) -> None:
    file = trained(tmp_path / "run", "Pendulum-v1") / "agent.zip"
    document, arrays = read_agent(file, "BDPI")
    del document["inputs"]["search"]
    write_agent(file, document, arrays)
    assert "single decisions, 0 down and 1 up" in succeeds("export", tmp_path / "run", "policy.onnx").output
    session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
    assert session.run(["action"], {"observation": np.eye(5, dtype=np.float32)})[0].shape == (5,)


def test_without_onnx_the_remedy_is_named_and_without_its_runtime_nothing_is_compared(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = bdpi_command("export", lake, "policy.onnx")
    assert (result.exit_code, "not compared" in result.output) == (0, True), result.output
    monkeypatch.setitem(sys.modules, "onnx", None)
    refused(bdpi_command("export", lake, "policy.onnx"), 'pip install "bdpi[export]"')
    assert bdpi_command("export", lake, "policy.h").exit_code == 0
    assert "--format" in bdpi_command("export", "--help").output
