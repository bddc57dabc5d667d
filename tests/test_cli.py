"""The command ``bdpi``, as people use it."""

import contextlib
import importlib.util
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from PIL import Image
from stable_baselines3.common.monitor import load_results
from typer.testing import Result

import bdpi
from bdpi.agents import AGENTS, PAPER_AGENTS
from bdpi.learner import fused
from bdpi.runs import doctor
from bdpi.runs.build import PEER_NAMES
from bdpi.runs.presets import PRESETS
from command_line import ODD_WORLDS, bdpi_command, refused, succeeds

pytestmark = pytest.mark.usefixtures("elsewhere")
PATIENCE = 180.0  # seconds, on a machine that may be slow and busy
QUICK = ["--set", "n_critics=2", "--set", "fit_steps=2", "--set", "batch_size=16"]
FILES = {"config.json", "monitor.csv", "agent.zip", "replay.npz", "episode.json", "curve.png"}


def trained(folder: Path, *arguments: str) -> Result:
    return succeeds("train", *arguments, *QUICK, "--out", folder)


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("lake") / "run"
    return folder, trained(folder, "FrozenLake-v1", "--episodes", "30", "--seed", "5")


def test_the_run_folder_holds_everything_and_the_way_there_is_printed(lake: tuple[Path, Result]) -> None:
    folder, result = lake
    assert {file.name for file in folder.iterdir()} == FILES | {"policy.gif"}
    config = config_of(folder)
    assert config["environment"] == "FrozenLake-v1"
    assert (config["agent"], config["seed"], config["episodes"], config["steps"]) == ("bdpi", 5, 30, None)
    assert config["hyperparameters"] == {"n_critics": 2, "fit_steps": 2, "batch_size": 16}
    assert config["status"] == "finished"
    assert {"python", "bdpi", "numpy", "torch", "gymnasium", "stable-baselines3"} <= set(config["versions"])
    assert all(config[name] for name in ("started", "finished", "platform", "command", "result", "learner", "defaults"))
    results = load_results(str(folder))
    assert len(results) == 30
    agent = bdpi.BDPI.load(folder / "agent.zip", env=None)
    assert agent.n_critics == 2
    assert results["l"].sum() == config["result"]["steps"] == agent.num_timesteps
    with Image.open(folder / "curve.png") as curve:
        curve.verify()
    with Image.open(folder / "policy.gif") as film:
        assert 1 < film.n_frames <= 210
        for frame in range(film.n_frames):
            film.seek(frame)
            film.load()
        assert 200 < film.width < 600
    for part in ("Finished: 30 episodes", "Mean return of the last 30 episodes: 0.", "ms per step"):
        assert part in result.stdout
    for part in (folder / "curve.png", folder / "policy.gif", folder / "agent.zip", f"bdpi play {folder}"):
        assert str(part) in result.stdout
    assert result.stderr == ""


def test_a_run_alone_has_a_report(lake: tuple[Path, Result], tmp_path: Path) -> None:
    succeeds("report", str(lake[0]), "--x", "steps", "--no-paper", "--out", str(tmp_path / "report"))
    tables = (tmp_path / "report" / "tables.md").read_text()
    assert "bdpi on FrozenLake-v1" in tables.replace("8x8", "")
    assert (tmp_path / "report" / "figure.pdf").exists()
    page = (tmp_path / "report" / "index.html").read_text()
    assert "data:image/gif" in page


def test_steps_and_settings_reach_the_agent(tmp_path: Path) -> None:
    own = (
        "--agent",
        "actor-mimic",
        "--set",
        "temperature=0.5",
        "--set",
        "net_arch=[8,8]",
        "--set",
        "activation_fn=relu",
    )
    result = trained(tmp_path / "run", "CartPole-v1", "--steps", "123", *own)
    assert "123 steps" in result.stdout
    config = config_of(tmp_path / "run")
    assert (config["result"]["steps"], config["hyperparameters"]["temperature"]) == (123, 0.5)
    agent = bdpi.ActorMimic.load(tmp_path / "run" / "agent.zip")
    assert agent.policy_kwargs["net_arch"] == [8, 8]
    assert agent.policy_kwargs["activation_fn"].__name__ == "ReLU"
    refused(bdpi_command("train", "CartPole-v1", "--agent", "abcdqn", "--set", "temperature=1"), "knows no")


# -- a run that ends well


def test_the_default_folder_is_named_after_the_run(tmp_path: Path) -> None:
    result = bdpi_command("train", "CartPole-v1", "--episodes", "2", "--seed", "7", *QUICK)
    assert result.exit_code == 0
    (folder,) = (tmp_path / "runs" / "CartPole-v1").iterdir()
    assert re.fullmatch(r"bdpi-seed7-\d{8}-\d{6}", folder.name)


@pytest.mark.parametrize("agent", ["abcdqn", "actor-mimic", "bootstrapped-dqn", "tabular-bdpi"])
def test_other_agents_are_trained_and_played_by_their_names(tmp_path: Path, agent: str) -> None:
    result = trained(tmp_path / "run", "FrozenLake8x8-v1", "--agent", agent, "--episodes", "3")
    assert f"{agent.upper()} on FrozenLake8x8-v1" in result.stdout
    assert bdpi_command("play", str(tmp_path / "run"), "--episodes", "1", "--no-watch").exit_code == 0


def test_pendulum_is_searched_by_itself(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = trained(run, "Pendulum-v1", "--episodes", "1")
    assert result.stdout.count("continuous actions, each found by 6 binary decisions") == 1
    assert "Finished: 1 episodes, 200 steps" in result.stdout
    assert load_results(str(run))["l"].tolist() == [200]
    result = succeeds("play", str(run), "--episodes", "2", "--no-watch")
    assert len(re.findall(r"^episode \d  return -\S+  steps 200$", result.stdout, re.MULTILINE)) == 2
    assert (run / "policy.gif").exists()


def test_noise_comes_with_tests(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = trained(run, "CartPole-v1", "--episodes", "4", "--off-policy-noise", "0.2")
    assert {file.name for file in run.iterdir()} == FILES | {"policy.gif", "test.csv"}
    assert config_of(run)["off_policy_noise"] == 0.2
    assert "Mean return of the last 4 test episodes: " in result.stdout
    result = succeeds("train", "--resume", str(run), "--episodes", "6")
    assert "Mean return of the last 6 test episodes: " in result.stdout
    assert len(load_results(str(run))) == 6  # of training


# -- bad input: one line, status 2, nothing left behind


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["CartPol-v1"], "did you mean CartPole-v1"),
        (["cartpole-v1"], "did you mean CartPole-v1"),
        (["LunarLander-v2"], "did you mean LunarLander-v3"),
        (["Qwertyuiop-v0"], "unknown environment 'Qwertyuiop-v0'"),
        (["not an id!"], "unknown environment"),
        ([""], "unknown environment"),
        (["no_such_module:Env-v0"], "there is no module no_such_module"),
        (["odd_worlds:Bogus-v0"], "has no environment Bogus-v0"),
        (["odd_worlds:Broken-v0"], "the robot"),
        (["odd_worlds:Continuous-v0"], "Binary Action Search"),
        (["Blackjack-v1"], "not supported"),
        (["CartPole-v1", "--agent", "alphago"], "unknown agent 'alphago': choose from bdpi"),
        (["CartPole-v1", "--episodes", "0"], "--episodes"),
        (["CartPole-v1", "--episodes", "many"], "--episodes"),
        (["CartPole-v1", "--steps", "-5"], "--steps"),
        (["CartPole-v1", "--episodes", "5", "--steps", "5"], "exclude each other"),
        (["CartPole-v1", "--off-policy-noise", "2"], "--off-policy-noise"),
        (["CartPole-v1", "--off-policy-noise", "much"], "--off-policy-noise"),
        (["Pendulum-v1", "--action-bits", "0"], "--action-bits"),
        (["CartPole-v1", "--action-bits", "4"], "leave --action-bits out"),
        (["FrozenLake-v1", "--agent", "bdpi", "--set", "prior_scale=1"], "knows no 'prior_scale'"),
        (["CartPole-v1", "--agent", "tabular-bdpi"], "Discrete observations"),
        (["CartPole-v1", "--seed", "-1"], "--seed"),
        (["CartPole-v1", "--set", "n_critic=2"], "did you mean n_critics"),
        (["CartPole-v1", "--set", "n_critics=0"], "n_critics"),
        (["CartPole-v1", "--set", "n_critics=two"], "n_critics"),
        (["CartPole-v1", "--set", "gamma=2"], "gamma"),
        (["CartPole-v1", "--set", "n_critics"], "name=value"),
        (["CartPole-v1", "--set", "learner=abacus"], "learner"),
        (["CartPole-v1", "--set", "device=abacus"], "abacus"),
        (["CartPole-v1", "--set", "buffer_size=1e15"], "from 1 to 50000000"),
        (["CartPole-v1", "--bogus"], "--bogus"),
        ([], "which environment?"),
        (["--resume", "nowhere"], "there is no run folder nowhere"),
        (["--resume", "."], "not the folder of a run"),
        (["CartPole-v1", "--resume", "."], "leave ENV_ID out"),
        (["--resume", ".", "--seed", "0"], "leave --seed out"),
        (["--resume", ".", "--off-policy-noise", "0"], "leave --off-policy-noise out"),
        (["--resume", ".", "--action-bits", "6"], "leave --action-bits out"),
    ],
)
def test_what_cannot_be_trained_is_refused(arguments: list[str], says: str, tmp_path: Path) -> None:
    refused(bdpi_command("train", *arguments), says)
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_the_way_is_refused(lake: tuple[Path, Result], tmp_path: Path) -> None:
    refused(bdpi_command("trian"), "trian")
    before = (lake[0] / "config.json").read_text()
    refused(bdpi_command("train", "CartPole-v1", "--out", str(lake[0])), "already holds a run")
    for more in ([], ["--episodes", "30"]):
        refused(bdpi_command("train", "--resume", str(lake[0]), *more), "already has its 30 episodes")
    assert (lake[0] / "config.json").read_text() == before
    (tmp_path / "file").touch()
    for out in ("file", "file/run"):
        refused(bdpi_command("train", "CartPole-v1", "--out", out), "in the way")


@pytest.mark.skipif(importlib.util.find_spec("mujoco") is not None, reason="MuJoCo is installed: nothing is missing")
def test_what_an_environment_needs_is_named() -> None:
    refused(bdpi_command("train", "HalfCheetah-v5"), "mujoco")


@pytest.mark.parametrize("name", ["config.json", "monitor.csv", "agent.zip", "replay.npz"])
@pytest.mark.parametrize("damage", ["missing", "cut", "foreign"])
def test_damaged_runs_are_refused(tmp_path: Path, lake: tuple[Path, Result], name: str, damage: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(lake[0], run)
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[: len(content) // 2] if damage == "cut" else b"PK\x03\x04 something else")
    if damage == "missing":
        (run / name).unlink()
    refused(bdpi_command("train", "--resume", str(run), "--episodes", "40"), name)
    if name in ("config.json", "agent.zip"):
        refused(bdpi_command("play", str(run)), name)


# -- real processes: signals, pipes, terminals


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [ODD_WORLDS, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


@contextlib.contextmanager
def started(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command, pipe = [sys.executable, "-m", "bdpi.cli", *arguments], subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment())
    patience = threading.Timer(PATIENCE, process.kill)  # so that a line that never comes ends the test
    patience.start()
    try:
        yield process
    finally:
        patience.cancel()
        process.kill()
        process.communicate()


def read_until(process: "subprocess.Popen[str]", pattern: str) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if re.search(pattern, line):
            return text
    raise AssertionError(f"{pattern!r} never came: {text}")


def test_ctrl_c_saves_everything_and_the_printed_command_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    with started("train", "CartPole-v1", "--episodes", "1000000", *QUICK, "--out", str(run)) as process:
        read_until(process, "^BDPI on CartPole-v1")
        deadline = time.monotonic() + PATIENCE
        while (run / "monitor.csv").read_text().count("\n") < 12 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert errors == ""
    assert {file.name for file in run.iterdir()} == FILES
    assert config_of(run)["status"] == "interrupted"
    n_episodes = len(load_results(str(run)))
    assert n_episodes >= 10

    (command,) = re.findall(r"^Go on: +bdpi (.*)$", output, re.MULTILINE)
    succeeds(*shlex.split(command), "--episodes", str(n_episodes + 5))
    results = load_results(str(run))
    assert len(results) == n_episodes + 5
    assert results["t"].is_monotonic_increasing
    assert config_of(run)["status"] == "finished"
    assert {file.name for file in run.iterdir()} == FILES | {"policy.gif"}


def test_progress_is_shown_in_a_long_first_episode_and_sigterm_saves(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started("train", "odd_worlds:Endless-v0", *QUICK, "--out", str(run)) as process:
        output = read_until(process, r"^episode 1/300 .* steps \d+")
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert errors == ""
    assert re.search(r"no curve: no episode has ended", rest)
    assert f"Go on:     bdpi train --resume {run}" in rest
    assert all(character.isprintable() or character == "\n" for character in output + rest)
    assert {file.name for file in run.iterdir()} == FILES - {"curve.png"}


def test_a_second_ctrl_c_exits_at_once(tmp_path: Path) -> None:
    with started("train", "odd_worlds:Stuck-v0", *QUICK, "--out", str(tmp_path / "run")) as process:
        read_until(process, "^stuck")
        process.send_signal(signal.SIGINT)
        read_until(process, "^stopping after this step")  # which it waits for
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130


def test_a_reader_that_leaves_does_not_end_training(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started("train", "CartPole-v1", "--episodes", "30", *QUICK, "--out", str(run)) as process:
        read_until(process, "^BDPI on")
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=PATIENCE) == 0
    assert config_of(run)["status"] == "finished"


def test_an_environment_that_breaks_keeps_everything(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = bdpi_command("train", "odd_worlds:NotANumber-v0", *QUICK, "--out", str(run))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "step 18" in result.stderr
    assert "nan" in result.stderr
    assert "Traceback" not in result.output
    assert "Traceback" in (run / "error.txt").read_text()
    assert {file.name for file in run.iterdir()} == FILES | {"error.txt"}
    assert config_of(run)["status"] == "failed"
    assert len(load_results(str(run))) == 3
    assert f"bdpi train --resume {run}" in result.stdout


def test_the_live_view_runs_on_a_real_terminal(tmp_path: Path) -> None:
    here, there = pty.openpty()
    command = [sys.executable, "-m", "bdpi.cli", "train", "CartPole-v1", "--episodes", "20", *QUICK, "--out", "run"]
    terminal = environment(TERM="xterm-256color", COLUMNS="100", LINES="40")
    process = subprocess.Popen(command, stdin=there, stdout=there, stderr=there, cwd=tmp_path, env=terminal)
    os.close(there)
    output = b""
    with contextlib.suppress(OSError):  # Linux says "I/O error" where the other side has closed
        while select.select([here], [], [], PATIENCE)[0]:
            chunk = os.read(here, 65536)
            if not chunk:
                break
            output += chunk
    os.close(here)
    assert process.wait(timeout=PATIENCE) == 0
    text = output.decode()
    assert "\x1b[?25l" in text  # drawn in place, the cursor hidden
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "episode 20/20" in text
    assert "Finished: 20 episodes" in text
    assert any("\u2801" <= character <= "\u28ff" for character in text)


def test_help_and_lists_are_fast_because_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from bdpi.cli import app\n"
        "for words in (['train', '--help'], ['envs'], ['export', '--help']):\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0\n"
        "heavy = ('torch', 'stable_baselines3', 'matplotlib', 'pandas', 'miniworld')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert output.stdout.strip() == "[]"


def test_play_prints_the_returns_films_and_opens_a_window(
    lake: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in (lake[0], lake[0] / "agent.zip"):
        result = succeeds("play", str(run), "--episodes", "4", "--no-watch")
        assert re.search(r"Return over 4 episodes: mean \S+, min \S+, max \S+", result.stdout)
    film = tmp_path / "films" / "lake.gif"
    result = succeeds("play", str(lake[0]), "--episodes", "2", "--record", str(film), "--stochastic", "--seed", "9")
    with Image.open(film) as gif:
        assert gif.n_frames > 1
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    result = succeeds("play", str(lake[0]), "--episodes", "1", "--watch")


# -- play, doctor, help


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is always a display")
def test_watching_needs_a_display(lake: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    refused(bdpi_command("play", str(lake[0]), "--watch"), "no display")
    assert bdpi_command("play", str(lake[0]), "--episodes", "1").exit_code == 0


def test_what_cannot_be_played_is_refused(lake: tuple[Path, Result], tmp_path: Path) -> None:
    refused(bdpi_command("play"), "RUN")
    refused(bdpi_command("play", "nowhere"), "there is no run folder nowhere")
    refused(bdpi_command("play", str(tmp_path)), "not the folder of a run")
    refused(bdpi_command("play", str(lake[0]), "--record", "film.mp4"), ".gif")
    refused(bdpi_command("play", str(lake[0]), "--episodes", "0"), "--episodes")
    refused(bdpi_command("play", str(lake[0]), "--watch", "--record", "film.gif"), "--watch or --record")
    (tmp_path / "file").touch()
    refused(bdpi_command("play", str(lake[0]), "--record", "file/film.gif"), "cannot be written")
    trained(tmp_path / "run", "odd_worlds:Counting-v0", "--episodes", "1")
    refused(bdpi_command("play", str(tmp_path / "run"), "--record", "film.gif"), "cannot be drawn")
    refused(bdpi_command("play", str(tmp_path / "run"), "--watch"), "cannot be drawn")
    assert bdpi_command("play", str(tmp_path / "run")).exit_code == 0


def test_envs_lists_the_environments_of_the_package_and_the_presets() -> None:
    result = succeeds("envs")
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if "-v" in line.split(" ")[0]}
    assert list(lines) == list(PRESETS)
    own = {spec.id for spec in gymnasium.registry.values() if str(spec.entry_point).startswith("bdpi.envs")}
    assert own <= set(lines) <= set(gymnasium.registry)
    assert "net_arch=[256]" in lines["LunarLander-v3"]
    assert "Binary Action Search, 6 bits" in lines["Pendulum-v1"]
    assert 'pip install "bdpi[hallway]"' in lines["Hallway-v0"]
    assert "CnnPolicy, fit_steps=1" in lines["Hallway-v0"]


def test_the_doctor_knows_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("python", "torch", "gymnasium", "stable-baselines3", "native learner", "threads", "CUDA"):
        assert doctors(part)
    assert doctors("kernels for pictures")
    assert str(Path(bdpi.__file__).parent) in bdpi_command("doctor").stdout
    if not torch.cuda.is_available():
        assert "populations" in doctors("fused kernels")
        assert 'pip install "bdpi[cuda]"' in doctors("fused kernels")
    monkeypatch.setenv("BDPI_NUM_THREADS", "many")
    assert "BDPI_NUM_THREADS" in doctors("native learner")


def test_the_doctor_says_whether_epochs_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctors("CUDA graphs").startswith("used: " if torch.cuda.is_available() else "not used: they need a GPU")
    assert doctor.why_not_recorded("cpu") == "cpu has no graphs"  # the trial itself runs anywhere
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(fused, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "why_not_recorded", lambda: "operation not permitted when stream is capturing")
    assert doctors("CUDA graphs").endswith("which is slower: operation not permitted when stream is capturing")
    monkeypatch.setattr(doctor, "why_not_recorded", lambda: 1 / 0)
    assert doctors("CUDA graphs").startswith("cannot be tried: ")


def test_version_and_help() -> None:
    assert bdpi_command("--version").stdout == f"bdpi {bdpi.__version__}\n"
    for arguments in ([], ["--help"], ["train", "--help"], ["play", "-h"], ["envs", "-h"], ["doctor", "--help"]):
        result = bdpi_command(*arguments)
        assert result.exit_code == 0
        assert "Usage" in result.stdout
    help_of_train = bdpi_command("train", "--help").stdout
    assert "bdpi train CartPole-v1 --steps 20000" in help_of_train
    text = " ".join(re.sub(r"[^A-Za-z0-9,.: -]", " ", help_of_train).split())
    assert f"Which algorithm: {', '.join(AGENTS)}" in text
    assert f"with the settings of the paper: {', '.join(PAPER_AGENTS)}" in text
    assert f"or one to compare with: {', '.join(PEER_NAMES)}" in text


def doctors(part: str) -> str:
    """What the doctor says of this."""
    result = succeeds("doctor")
    found = re.search(rf"^{part} +(.*)$", result.stdout, re.MULTILINE)
    assert found is not None, result.stdout
    return found[1]
