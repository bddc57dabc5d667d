"""Returns, entropy and the like go to TensorBoard, W&B, MLflow and CSV; read back by their own libraries."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import pytest
from stable_baselines3.common.callbacks import BaseCallback

import bdpi
from bdpi.agents.collector import Transition
from bdpi.agents.robots import Robot
from logbooks import csv_rows, mlflow_rows, returns, tensorboard_rows, wandb_rows
from small import Walk, fingerprint, quick_agent

OWN = {"rollout/ep_rew", "rollout/ep_len", "train/entropy", "train/disagreement", "train/epochs_due"}
OWN |= {"train/q_expected", "train/q_followed", "train/q_error"}


@pytest.fixture(autouse=True)
def _services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")


def test_every_service_is_told_the_same_of_each_episode_and_learning_is_the_same(tmp_path: Path) -> None:
    agent = quick_agent()
    agent.set_logger(bdpi.configure_logger(tmp_path, ["tensorboard", "wandb,mlflow", "csv"], settings={"seed": 0}))
    agent.learn(300, log_interval=1)
    agent.logger.close()
    rows = csv_rows(tmp_path)
    assert set().union(*(row for _, row in rows)) > OWN
    assert [step for step, _ in rows] == list(range(7, 300, 7))
    for other in (
        tensorboard_rows(tmp_path),
        *mlflow_rows(),
        *wandb_rows(tmp_path).values(),
    ):
        assert returns(other) == returns(rows)
        assert other[-1][1]["train/entropy"] == pytest.approx(rows[-1][1]["train/entropy"])
    assert fingerprint(agent) == fingerprint(quick_agent().learn(300))


def walked(agent: bdpi.BDPI, steps: int, robot: Robot | None = None, learns: bool = True) -> list[float]:
    """Returns of episodes that a robot's loop has had."""
    env, ended, total = Walk(), [], 0.0
    observation, _ = env.reset(seed=0)
    for _ in range(steps):
        action = agent.act(observation) if robot is None else robot.pick(robot.probabilities(observation, None))
        before, (observation, reward, terminated, _, _) = observation, env.step(action)
        if robot is None:
            agent.observe(before, action, reward, observation, terminated, False)
        else:
            robot.observe(robot.check_step(Transition(before, action, reward, observation, terminated, False)))
        if learns:
            agent.learn_once()
        total += float(reward)
        if terminated:
            ended.append(total)
            total = 0.0
            observation, _ = env.reset()
    return ended


@pytest.mark.parametrize("shared", [False, True])
def test_tensorboard_shows_what_a_robot_does_and_learns(tmp_path: Path, shared: bool) -> None:
    agent = quick_agent(tensorboard_log=str(tmp_path))
    ended = walked(agent, 300, Robot(agent, 0) if shared else None)
    agent.logger.close()
    rows = tensorboard_rows(tmp_path / "BDPI_1")
    assert returns(rows) == ended
    assert set().union(*(row for _, row in rows)) >= OWN | {"rollout/ep_rew_mean"}
    quiet = quick_agent()
    walked(quiet, 300, Robot(quiet, 0) if shared else None)
    assert fingerprint(agent) == fingerprint(quiet)


def test_an_agent_that_learns_in_the_background_logs_there_and_a_loaded_one_goes_on(tmp_path: Path) -> None:
    agent = quick_agent(tensorboard_log=str(tmp_path))
    agent.start_learning()
    ended = walked(agent, 100, learns=False)
    agent.stop_learning(finish=True)
    agent.logger.close()
    agent.save(tmp_path / "robot", include_buffer=True)
    loaded = bdpi.BDPI.load(tmp_path / "robot", tensorboard_log=str(tmp_path))
    ended += walked(loaded, 100)
    loaded.logger.close()
    rows = tensorboard_rows(tmp_path / "BDPI_1")
    assert sum(row["rollout/ep_rew"] for _, row in rows) <= sum(ended)  # some may have been logged at the same step
    assert rows[-1][0] == 198  # the second robot's fourteenth episode
    assert any("train/epochs_due" in row for _, row in rows)


def test_a_csv_goes_on_after_the_step_that_is_repeated(tmp_path: Path) -> None:
    for step in (0, 14):
        logger = bdpi.configure_logger(tmp_path, "csv,tensorboard", step=step)
        for number in range(step + 7, 36, 7):
            logger.record("time/total_timesteps", number)
            logger.record("rollout/ep_rew", number + step)
            logger.dump(number)
        logger.close()
    rows = csv_rows(tmp_path)
    assert [(step, row["rollout/ep_rew"]) for step, row in rows] == [(7, 7), (14, 14), (21, 35), (28, 42), (35, 49)]
    assert returns(tensorboard_rows(tmp_path)) == returns(rows)


class Full(BaseCallback):
    """The disk is full after some steps."""

    def _on_step(self) -> bool:
        if self.n_calls == 50:
            for writer in self.logger.output_formats:
                writer.file.close()
                writer.file = Path("/dev/full").open("w")  # noqa: SIM115
        return True


def test_a_log_that_fails_is_one_warning_and_learning_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # where nothing answers
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    cases = {"csv": Full(), "mlflow": None}
    for service, callback in cases.items():
        agent = quick_agent()
        agent.set_logger(bdpi.configure_logger(tmp_path, service))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", RuntimeWarning)
            agent.learn(300, log_interval=1, callback=callback)
            agent.logger.close()
        told = [str(each.message) for each in said if "logging to" in str(each.message)]
        assert len(told) == 1
        assert f"logging to {service} failed" in told[0]
        assert agent.num_timesteps == 300
    with pytest.warns(RuntimeWarning, match="logging to csv failed"):
        assert bdpi.configure_logger(tmp_path / "file", "csv").output_formats == []


def test_a_service_that_is_slow_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:  # takes connections, and never answers
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "100")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        agent = quick_agent()
        agent.set_logger(bdpi.configure_logger(tmp_path, "mlflow"))
        begun = time.monotonic()
        agent.learn(50, log_interval=1)
        assert time.monotonic() < begun + 90
        deaf.close()
        with pytest.warns(RuntimeWarning, match="logging to mlflow failed"):
            agent.logger.close()


def test_a_service_that_is_not_known_or_not_installed_is_named() -> None:
    with pytest.raises(ValueError, match="unknown log 'tensorflow': choose from tensorboard, wandb, mlflow, csv"):
        bdpi.configure_logger(".", "csv,tensorflow")
