"""RL Baselines3 Zoo itself, with our agents: in other processes, because it changes Gymnasium when it is imported."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bdpi.agents import AGENTS

pytest.importorskip("rl_zoo3")

#: Runs `python -m bdpi.zoo` with each of its arguments, in one process.
COMMANDS = """
import sys
from runpy import run_module
for line in sys.argv[1:]:
    sys.argv = ["zoo", *line.split()]
    run_module("bdpi.zoo", run_name="__main__")
"""
QUICK = "-params n_critics:2 fit_steps:1 critic_iterations:1 batch_size:16"
TRAIN = f"train --env CartPole-v1 -n 150 --eval-freq 60 --eval-episodes 2 --seed 1 {QUICK}"
ENJOY = "enjoy --env CartPole-v1 -f logs --no-render -n 40"


def zoo(folder: Path, *lines: str) -> str:
    known = {"MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, *lines],
        cwd=folder,
        env={**os.environ, **known},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_an_agent_is_trained_and_enjoyed(tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text("default: {n_timesteps: 30, policy: MlpPolicy, n_critics: 2}")
    said = zoo(
        tmp_path,
        f"{TRAIN} learning_rate:1e-3 --algo bdpi",
        f"{ENJOY} --algo bdpi",
        f"{ENJOY} --algo bdpi --load-best",
        "train --algo bdpi --env CartPole-v1 --eval-freq -1 --conf-file own.yml",
    )
    loaded = [line.rpartition("/")[2] for line in said.splitlines() if line.startswith("Loading hyperparameters")]
    assert loaded == ["hyperparams.yml", "Loading hyperparameters from: own.yml"]
    assert said.count("Mean reward:") == 2
    runs = [tmp_path / "logs" / "bdpi" / f"CartPole-v1_{number}" / "CartPole-v1" / "config.yml" for number in (1, 2)]
    assert [yaml.unsafe_load(run.read_text())["n_timesteps"] for run in runs] == [15_000, 30]


@pytest.mark.full
def test_every_command_of_rl_zoo_knows_every_agent(tmp_path: Path) -> None:
    ice = TRAIN.replace("CartPole-v1", "FrozenLake-v1")
    zoo(tmp_path, *(f"{ice} --algo {name}" for name in AGENTS), f"{TRAIN} --algo bdpi", f"{TRAIN} --algo bdpi")
    zoo(tmp_path, *(ENJOY.replace("CartPole-v1", "FrozenLake-v1") + f" --algo {name}" for name in AGENTS))
    # An error of an agent would be a trial that was pruned.
    tune = "train -optimize --n-trials 2 --n-startup-trials 1 --n-evaluations 2 --eval-episodes 1 --pruner none"
    stored = "--storage study.log --study-name s"
    zoo(tmp_path, *(f"{tune} --algo {name} --env FrozenLake-v1 -n 80 {stored}-{name}" for name in AGENTS))
    for name in AGENTS:
        (report,) = (tmp_path / "logs" / name).glob("report_*.csv")
        with report.open() as file:
            assert [trial["state"] for trial in csv.DictReader(file)] == ["COMPLETE", "COMPLETE"], name
    said = zoo(tmp_path, f"train --algo bdpi --env FrozenLake-v1 -n 40 {stored}-bdpi --trial-id 1 --eval-freq -1")
    assert "'net_arch'" in said
    said = zoo(
        tmp_path,
        "plot_train -a bdpi -e CartPole-v1 -f logs -w 3",
        "all_plots -a bdpi -e CartPole-v1 -f logs -o plots --no-display",
        "plot_from_file -i plots -o figure.png --format png --boxplot",
    )
    assert "|CartPole-v1 |" in said
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_without_rl_zoo_the_extra_is_named() -> None:
    program = "import sys; sys.modules['rl_zoo3'] = None; import bdpi.zoo"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert 'pip install "bdpi[zoo]"' in done.stderr.splitlines()[-1]
