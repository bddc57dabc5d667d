"""``--log`` of runs and studies, read back by the services' own libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bdpi.runs.config import RunConfig
from bdpi.runs.episodes import read_monitor
from bdpi.runs.logs import log_to
from bdpi.runs.train import prepare, prepare_resumption
from command_line import bdpi_command, succeeds
from logbooks import Rows, csv_rows, mlflow_rows, returns, tensorboard_rows, wandb_rows

QUICK = ["n_critics=2", "fit_steps=2", "batch_size=16"]
SETTINGS = [word for each in QUICK for word in ("--set", each)]
STUDY = """
seeds: 2
environments: {lake: {id: FrozenLake-v1, episodes: 5}}
rows: {one: {BDPI: {agent: bdpi, set: {n_critics: 2, fit_steps: 2, batch_size: 16}}, PPO: {agent: ppo}}}
"""


@pytest.fixture(autouse=True)
def _services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")


def steps_of(rows: Rows) -> list[int]:
    return [step for step, _ in rows]


@pytest.mark.full
def test_a_run_that_is_resumed_goes_on_in_the_same_logs(tmp_path: Path) -> None:
    run = tmp_path / "run"
    lake = "train", "FrozenLake-v1", *SETTINGS, "--out"
    succeeds(*lake, str(run), "--episodes", "8", "--log", "tensorboard,wandb", "--log", "csv,mlflow")
    succeeds("train", "--resume", str(run), "--episodes", "15", "--log", "wandb,mlflow")
    succeeds(*lake, str(tmp_path / "quiet"), "--episodes", "15")
    recorded = read_monitor(run / "monitor.csv")
    assert recorded.returns == read_monitor(tmp_path / "quiet" / "monitor.csv").returns
    assert recorded.lengths == read_monitor(tmp_path / "quiet" / "monitor.csv").lengths
    rows = csv_rows(run)
    assert len(rows) == 15
    logs = [
        rows,
        tensorboard_rows(run),
        *mlflow_rows(),
        *wandb_rows(tmp_path).values(),
    ]
    assert len(logs) == 4
    for log in logs:
        assert returns(log) == recorded.returns
        assert steps_of(log) == steps_of(rows)


def test_a_run_that_was_killed_repeats_steps_and_no_rows(tmp_path: Path) -> None:
    config = RunConfig(environment="FrozenLake-v1", episodes=10, hyperparameters={"n_critics": 2, "fit_steps": 2})
    session = prepare(config, tmp_path / "run")
    log_to(session.status, ["csv", "tensorboard"])
    saved = 0

    def stop() -> bool:
        nonlocal saved
        done = len(session.progress.episodes)
        if done == 5 and not saved:
            saved = session.agent.num_timesteps
            session.save("running")
        if done == 8:
            raise SystemExit  # as good as a kill: nothing is saved any more
        return False

    with pytest.raises(SystemExit):
        session.run(should_stop=stop)
    assert steps_of(csv_rows(tmp_path / "run"))[-1] > saved
    prepare_resumption(tmp_path / "run").run()
    rows = csv_rows(tmp_path / "run")
    assert returns(rows) == read_monitor(tmp_path / "run" / "monitor.csv").returns
    assert steps_of(rows) == sorted(set(steps_of(rows)))
    assert returns(tensorboard_rows(tmp_path / "run")) == returns(rows)


def test_a_study_logs_each_of_its_runs_peers_included(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(STUDY)
    succeeds("study", "tiny.yaml", "--executor", "local", "--log", "csv")
    folders = [path.parent for path in tmp_path.rglob("monitor.csv")]
    assert len(folders) == 4
    for folder in folders:
        if json.loads((folder / "config.json").read_text())["agent"] == "bdpi":
            assert returns(csv_rows(folder)) == read_monitor(folder / "monitor.csv").returns
        else:
            assert (folder / "progress.csv").exists()


def test_learning_from_a_journal_logs_its_epochs(tmp_path: Path) -> None:
    succeeds("train", "FrozenLake-v1", "--steps", "300", *SETTINGS, "--set", "journal=lake.sqlite", "--out", "first")
    succeeds(
        "train", "--offline", "lake.sqlite", "--epochs", "300", *SETTINGS, "--out", "second", "--log", "tensorboard"
    )
    rows = tensorboard_rows(tmp_path / "second")
    assert steps_of(rows) == [100, 200, 300]
    assert {"train/entropy", "train/q_error"} <= rows[-1][1].keys()


def test_a_service_that_is_not_known_is_named_before_anything_is_made(tmp_path: Path) -> None:
    result = bdpi_command("train", "FrozenLake-v1", "--log", "tensorflow")
    assert result.exit_code == 2
    assert "unknown log 'tensorflow': choose from tensorboard, wandb, mlflow, csv" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("log", [{"log": ["/etc/passwd"]}, {"log": ["csv"], "log_id": "x' OR '1'='1"}])
def test_a_strangers_run_names_no_other_places_to_log_to(tmp_path: Path, log: dict[str, object]) -> None:
    succeeds("train", "FrozenLake-v1", "--episodes", "1", *SETTINGS, "--out", "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    (tmp_path / "run/config.json").write_text(json.dumps({**config, **log}))
    result = bdpi_command("train", "--resume", "run", "--episodes", "2")
    assert result.exit_code == 2
    assert "is damaged: log" in result.output
