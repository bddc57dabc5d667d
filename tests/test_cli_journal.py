"""``bdpi journal`` and ``bdpi train --offline``, as people use them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import pytest
from journals import change, only_readable, public_folder
from stable_baselines3.common.env_util import make_vec_env

from bdpi import BDPI
from bdpi.agents.journal import Journal
from bdpi.commands import ticker
from command_line import bdpi_command, refused, succeeds
from small import epochs_of

QUICK = ["--set", "n_critics=2", "--set", "fit_steps=2", "--set", "batch_size=16", "--set", "critic_iterations=1"]
pytestmark = pytest.mark.usefixtures("elsewhere")
N = 300


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lake") / "lake.sqlite"
    env = gym.make("FrozenLake-v1")
    small = {"n_critics": 2, "batch_size": 16, "critic_iterations": 1, "fit_steps": 1}
    with Journal(path, env.observation_space, env.action_space) as journal:
        BDPI("MlpPolicy", env, journal=journal, seed=0, **small).learn(N)
    return path


def fails(*arguments: object) -> str:
    return refused(bdpi_command(*arguments))


def test_info(lake: Path) -> None:
    result = succeeds("journal", "info", lake)
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert lines["transitions"] == str(N)
    assert lines["returns"].startswith("mean 0")
    assert (lines["observations"], lines["actions"]) == ("Discrete(16)", "Discrete(4)")
    assert lines["intact"] == "yes"
    found = json.loads(bdpi_command("journal", "info", lake, "--json").stdout)
    with Journal(lake) as journal:
        steps = list(journal.steps())
    assert found["episodes"] == sum(step.terminated or step.truncated for step in steps)
    assert found["returns"]["mean"] == pytest.approx(sum(step.reward for step in steps) / found["episodes"])
    assert (found["transitions"], found["intact"], found["problem"], found["gaps"]) == (N, True, None, 0)
    assert found["observation_space"] == {"type": "Discrete", "n": 16, "start": 0}
    assert found["bytes"] == lake.stat().st_size


def test_info_counts_what_does_not_follow(lake: Path) -> None:
    """Two robots' transitions in turn, as several environments at once write them."""
    with Journal(lake) as one, Journal("mixed.sqlite", one.observation_space, one.action_space) as mixed:
        found = json.loads(bdpi_command("journal", "info", "mixed.sqlite", "--json").stdout)
        assert (found["transitions"], found["episodes"], found["returns"], found["intact"]) == (0, 0, None, True)
        assert bdpi_command("journal", "info", "mixed.sqlite").exit_code == 0
        steps = [step for step in one.steps() if not step.terminated][:60]
        for first, second in zip(steps[:30], steps[30:], strict=True):
            mixed.append(first)
            mixed.append(second)
    result = bdpi_command("journal", "info", "mixed.sqlite")
    assert result.exit_code == 0
    assert "transitions do not begin where the one before ended" in result.stdout
    assert "60 transitions of one that has not ended" in result.stdout


def test_info_of_several_environments() -> None:
    env = make_vec_env("CartPole-v1", 3)
    agent = BDPI("MlpPolicy", env, journal="three.sqlite", n_critics=2, batch_size=16, fit_steps=1, seed=0)
    agent.learn(240)
    found = json.loads(bdpi_command("journal", "info", "three.sqlite", "--json").stdout)
    assert (found["environments"], found["gaps"]) == (3, 0)
    assert agent.ep_info_buffer is not None
    assert found["episodes"] == len(agent.ep_info_buffer)
    assert found["returns"]["mean"] == pytest.approx(sum(e["r"] for e in agent.ep_info_buffer) / found["episodes"])
    shown = bdpi_command("journal", "info", "three.sqlite").stdout
    assert "environments  3" in shown
    assert "transitions of some that have not ended" in shown


def test_info_of_a_damaged_journal(lake: Path) -> None:
    for sql, problem in (
        ("UPDATE transitions SET action = 99 WHERE id = 7", "transition 7 makes no sense"),
        ("UPDATE transitions SET observation = x'6300000000000000' WHERE id = 9", "is 99, outside its space"),
    ):
        Path("bad.sqlite").write_bytes(lake.read_bytes())
        change(Path("bad.sqlite"), sql)
        result = bdpi_command("journal", "info", "bad.sqlite")
        assert result.exit_code == 1
        assert "intact        no: bad.sqlite is damaged" in result.stdout
        assert problem in result.stdout
        assert json.loads(bdpi_command("journal", "info", "bad.sqlite", "--json").stdout)["intact"] is False
        os.remove("bad.sqlite")
    Path("bad.sqlite").write_bytes(lake.read_bytes()[:-5000])
    assert bdpi_command("journal", "info", "bad.sqlite").exit_code in (1, 2)


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_export_and_import(lake: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    result = bdpi_command("journal", "export", lake, f"lake.{ending}")
    assert (result.exit_code, result.stdout) == (0, f"{N} transitions: lake.{ending}\n"), result.output
    for total in (N, 2 * N):
        result = bdpi_command("journal", "import", "copy.sqlite", f"lake.{ending}")
        assert result.stdout == f"{N} transitions added to copy.sqlite, which has {total} now\n", result.output
    env = gym.make("CartPole-v1")
    with Journal("cart.sqlite", env.observation_space, env.action_space):
        pass
    before = Path("cart.sqlite").read_bytes()
    message = fails("journal", "import", "cart.sqlite", f"lake.{ending}")
    assert "cart.sqlite is the journal of another environment: observation_space: Box there, Discrete here" in message
    assert Path("cart.sqlite").read_bytes() == before


def test_mistakes(lake: Path) -> None:
    assert "there is no journal nowhere.sqlite" in fails("journal", "info", "nowhere.sqlite")
    assert "ends neither in .npz nor in .parquet" in fails("journal", "export", lake, "lake.csv")
    assert "ends neither in .npz nor in .parquet" in fails("journal", "import", "new.sqlite", "lake.csv")
    assert "No such file" in fails("journal", "import", "new.sqlite", "nowhere.npz")
    Path("text.npz").write_text("a shopping list")
    assert "text.npz cannot be imported" in fails("journal", "import", "new.sqlite", "text.npz")
    assert "text.npz is not a journal" in fails("journal", "export", "text.npz", "other.npz")
    Path("journal.npz").write_bytes(lake.read_bytes())
    assert "is the journal itself" in fails("journal", "export", "journal.npz", "journal.npz")
    assert "bdpi --help" in fails("journal", "info")
    assert "--epochs is for --offline" in fails("train", "FrozenLake-v1", "--epochs", "3")
    message = fails("train", "--offline", lake, "--episodes", "3", "--off-policy-noise", "0.1")
    assert "leave --episodes and --off-policy-noise out" in message
    assert "observation_space: Discrete there, Box here" in fails("train", "CartPole-v1", "--offline", lake)
    assert "there is no journal nowhere.sqlite" in fails("train", "--offline", "nowhere.sqlite")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["info", "--help"], ["export", "--help"], ["import", "--help"]])
def test_help_teaches(arguments: list[str]) -> None:
    result = bdpi_command("journal", *arguments)
    assert result.exit_code == 0
    assert "$ bdpi journal" in result.stdout


def test_progress_goes_to_standard_error(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticker, "SECONDS", 0.0)
    result = bdpi_command("journal", "export", lake, "lake.npz")
    assert f"{N} of {N} transitions" in result.stderr
    assert result.stdout == f"{N} transitions: lake.npz\n"


ROBOT = """
import sys, time
from bdpi.agents.journal import Journal
with Journal(sys.argv[1]) as journal:
    step = next(journal.steps())
    for number in range(10**6):
        print(journal.append(step), flush=True)
"""


def test_looked_at_while_a_robot_writes(lake: Path) -> None:
    """The readers see all that was written before they came, and the robot notices nothing of them."""
    Path("robot.sqlite").write_bytes(lake.read_bytes())
    with subprocess.Popen([sys.executable, "-c", ROBOT, "robot.sqlite"], stdout=subprocess.PIPE, text=True) as robot:
        assert robot.stdout is not None
        try:
            seen = int(robot.stdout.readline())
            for number in range(3):
                found = json.loads(bdpi_command("journal", "info", "robot.sqlite", "--json").stdout)
                assert found["intact"]
                assert found["transitions"] >= seen
                assert bdpi_command("journal", "export", "robot.sqlite", f"{number}.npz").exit_code == 0
                seen = max(seen, int(robot.stdout.readline()), found["transitions"])
            assert "Another program has it open" in fails("journal", "import", "robot.sqlite", "0.npz")
            assert robot.poll() is None
        finally:
            robot.kill()
    assert bdpi_command("journal", "import", "robot.sqlite", "0.npz").exit_code == 0


def test_train_offline() -> None:
    def run(*arguments: object) -> str:
        return succeeds(*arguments).stdout

    run("train", "FrozenLake-v1", "--episodes", "30", *QUICK, "--set", "journal=lake.sqlite", "--out", "online")
    out = run("train", "--offline", "lake.sqlite", "FrozenLake-v1", "--epochs", 25, *QUICK, "--out", "offline")
    assert "Finished: 25 epochs" in out
    assert "Mean return of 10 test episodes: " in out
    assert sorted(os.listdir("offline")) == ["agent.zip", "config.json"]
    assert "Return over 2 episodes" in run("play", "offline", "--episodes", 2)
    assert "already holds a run" in fails("train", "--offline", "lake.sqlite", "--out", "offline")
    journal = Path("lake.sqlite").resolve()
    message = fails("train", "--resume", "offline")
    assert "offline was learned from a journal, without episodes that --resume could go on with" in message
    assert f"learn longer with bdpi train --offline {journal} --epochs N" in message
    out = run("train", "--offline", "lake.sqlite", "--agent", "abcdqn", "--epochs", 5, *QUICK, "--seed", 2)
    (folder,) = Path("runs/lake").iterdir()
    assert f"agent  {folder}/agent.zip" in out
    assert "return" not in out
    assert f"{folder} was learned from a journal" in fails("train", "--resume", folder)
    config = json.loads((folder / "config.json").read_text())
    assert (config["environment"], config["agent"], config["seed"], config["epochs"]) == (None, "abcdqn", 2, 5)


@pytest.mark.skipif(sys.platform == "win32", reason="folders have other rights there")
def test_a_journal_on_a_disk_that_can_only_be_read(lake: Path) -> None:
    with public_folder() as disk, public_folder() as desk:
        (disk / "lake.sqlite").write_bytes(lake.read_bytes())
        desk.chmod(0o777)
        os.chdir(desk)
        with only_readable(disk):
            for arguments in (
                ["journal", "info", disk / "lake.sqlite"],
                ["journal", "export", disk / "lake.sqlite", "lake.npz"],
                ["train", "--offline", disk / "lake.sqlite", "--epochs", 3, *QUICK, "--out", "out"],
                ["journal", "import", "copy.sqlite", "lake.npz"],
            ):
                succeeds(*arguments)
            assert "cannot be opened" in fails("journal", "import", disk / "lake.sqlite", "lake.npz")
        os.chdir("/")
        assert {path.name: path.read_bytes() for path in disk.iterdir()} == {"lake.sqlite": lake.read_bytes()}


def test_ctrl_c_keeps_what_was_learned(lake: Path) -> None:
    command = [sys.executable, "-m", "bdpi.cli", "train", "--offline", str(lake), "--epochs", "10000000", *QUICK]
    command += ["--log", "csv", "--out", "out"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "learns from 300 transitions" in process.stdout.readline()
        log, deadline = Path("out/progress.csv"), time.monotonic() + 180
        while not (log.exists() and log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Interrupted: " in rest
    config = json.loads(Path("out/config.json").read_text())
    assert config["status"] == "interrupted"
    assert epochs_of(BDPI.load("out/agent.zip")) == config["result"]["epochs"] > 0


FULL = """
import resource, sys
import numpy as np
from gymnasium import spaces
from bdpi import BDPI
from bdpi.agents.journal import Journal, Transition
from bdpi.cli import app
from bdpi.envs import ControlLoop

box = spaces.Box(-1, 1, (500,), np.float32)
with Journal("robot.sqlite", box, spaces.Discrete(2)) as journal:
    for _ in range(60):
        journal.append(Transition(box.sample(), 0, 0.0, box.sample(), False, False))
BDPI("MlpPolicy", ControlLoop(box, spaces.Discrete(2)), n_critics=2).save("robot.zip")
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
for command in (
    "journal export robot.sqlite out.npz",
    "journal export robot.sqlite out.parquet",
    "export robot.zip out.h",
    "train --offline robot.sqlite --epochs 1 --set batch_size=16 --set n_critics=2 --out offline",
    "train CartPole-v1 --episodes 1 --set n_critics=2 --set batch_size=16 --set net_arch=[256] --out run",
):
    print(command.split()[-1], app(command.split(), standalone_mode=False), flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="files may grow there as they like")
def test_a_full_disk_is_named(tmp_path):
    """Files that may not grow any more are as good as a full disk, and do no harm to other tests."""
    command = [sys.executable, "-c", FULL]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if line.startswith("bdpi: ")]
    assert len(said) == 5, done.stderr
    for name, line in zip(("out.npz", "out.parquet", "out.h", "agent.zip", "agent.zip"), said, strict=True):
        assert name in line
        assert "too large" in line
