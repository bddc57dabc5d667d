"""The command ``bdpi export``."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner, Result

from bdpi.cli import app
from bdpi.runs.folder import RunFolder
from bdpi.runs.plan import Plan
from bdpi.runs.play import open_agent
from bdpi.runs.train import prepare

QUICK = {"n_critics": 2, "fit_steps": 2, "batch_size": 16, "n_threads": 1}


def bdpi_command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("bdpi: ")
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr


def trained(folder: Path, environment: str, agent: str = "bdpi") -> Path:
    hyperparameters = {"n_steps": 16, "batch_size": 16} if agent == "ppo" else QUICK
    plan = Plan(environment, agent, episodes=None, steps=60, hyperparameters=hyperparameters)
    assert prepare(plan, folder).run().status == "finished"
    return folder


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("lake") / "run", "FrozenLake-v1")


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_becomes_an_onnx_file(lake: Path) -> None:
    result = bdpi_command("export", lake, "policy.onnx")
    assert result.exit_code == 0, result.output
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


def test_the_format_overrides_the_ending(lake: Path) -> None:
    assert bdpi_command("export", lake, "deep/policy.inc", "--format", "c").exit_code == 0
    assert "policy_act" in Path("deep/policy.inc").read_text()
    assert bdpi_command("export", lake, "policy", "--format", "onnx").exit_code == 0
    assert onnxruntime.InferenceSession(Path("policy").read_bytes()).get_inputs()[0].name == "observation"


def test_continuous_actions_are_explained(tmp_path: Path) -> None:
    result = bdpi_command("export", trained(tmp_path / "run", "Pendulum-v1"), "policy.onnx")
    assert result.exit_code == 0, result.output
    assert "BinaryActionSearch" in result.output


def test_what_cannot_be_exported_is_said_in_one_line(lake: Path, tmp_path: Path) -> None:
    refused(bdpi_command("export"), "RUN")
    refused(bdpi_command("export", lake), "OUT")
    refused(bdpi_command("export", "nowhere", "policy.onnx"), "there is no run folder nowhere")
    refused(bdpi_command("export", lake, "policy.pb"), "policy.pb", "--format")
    refused(bdpi_command("export", lake, "policy.onnx", "--format", "tflite"), "--format")
    refused(bdpi_command("export", lake, tmp_path, "--format", "c"), "is a folder", "policy.h")
    assert not Path("policy.onnx").exists()


@pytest.mark.parametrize(
    ("agent", "words"), [("abcdqn", "ABCDQN has no actor network"), ("ppo", "PPO is not an agent of this package")]
)
def test_agents_without_an_actor_are_refused(agent: str, words: str, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "CartPole-v1", agent)
    refused(bdpi_command("export", run, "policy.onnx"), words)


def test_without_onnx_the_remedy_is_named(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    refused(bdpi_command("export", lake, "policy.onnx"), 'pip install "bdpi[export]"')
    assert bdpi_command("export", lake, "policy.h").exit_code == 0


def test_without_onnx_runtime_nothing_is_compared(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = bdpi_command("export", lake, "policy.onnx")
    assert result.exit_code == 0, result.output
    assert "not compared" in result.output


def test_help_answers_without_loading_pytorch() -> None:
    code = "import sys; from bdpi.cli import app; import bdpi.commands.export; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    result = bdpi_command("export", "--help")
    assert result.exit_code == 0
    assert "--format" in result.output
