"""The benchmark of tuned peers: its table is complete, and it goes on where it was stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from peer_curves import analyse, steps_needed, steps_to_threshold
from peer_runs import Entry, Episode, Linear, algorithm_class, arguments_of, build, load_table, train
from peer_store import read_episodes

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "tuned_peers.py"
ENTRIES = load_table()


def skip_without_contrib(entry: Entry) -> None:
    try:
        algorithm_class(entry.algorithm)
    except ImportError as error:
        pytest.skip(str(error))


def few(entry: Entry) -> object:
    """One task for all peers; `make test-all` has the others."""
    marks = () if entry.task in ("CartPole-v1", "Pendulum-v1") else pytest.mark.full
    return pytest.param(entry, id=entry.name, marks=marks)


@pytest.mark.parametrize("entry", map(few, ENTRIES))
def test_every_entry_trains(entry: Entry) -> None:
    skip_without_contrib(entry)
    # Large rollouts and late beginnings are cut short: what is tested is that the arguments are right.
    quick = {name: 20 for name in ("n_steps", "learning_starts", "train_freq") if name in entry.parameters}
    short = replace(entry, steps=40 * entry.n_envs, changes={**quick, **entry.changes})
    assert train(short, seed=100) is not None


def test_all_tasks_and_peers_are_there() -> None:
    discrete = {"dqn", "dqn-x20", "qr-dqn", "ppo"}
    peers = {task: {entry.peer for entry in ENTRIES if entry.task == task} for task in {e.task for e in ENTRIES}}
    assert peers.pop("Pendulum-v1") == {"sac", "tqc", "ppo"}
    assert peers.pop("PendulumTorques-v0") == discrete - {"ppo"}
    assert set(peers) == {
        *("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3", "FrozenLake8x8-v1", "Table-v0")
    }
    assert all(peers[task] == discrete for task in peers)
    for entry in ENTRIES:
        assert bool(entry.note) == (not entry.source.endswith(entry.task)), entry.name  # another task's are explained
        if entry.peer == "dqn-x20":
            (plain,) = (other for other in ENTRIES if (other.task, other.peer) == (entry.task, "dqn"))
            assert entry.steps <= plain.steps  # more updates take longer
            assert replace(entry, peer="dqn", changes={}, steps=plain.steps) == plain
            assert entry.changes == {"train_freq": 1, "gradient_steps": 20}


def test_a_shorter_run_is_the_beginning_of_the_zoos() -> None:
    (entry,) = (entry for entry in ENTRIES if entry.name == "CartPole-v1/ppo")
    assert (entry.steps, entry.zoo_steps) == (50_000, 100_000)
    rate = arguments_of(entry)["learning_rate"]
    assert isinstance(rate, Linear)
    assert [rate(1.0), rate(0.5), rate(0.0)] == pytest.approx([0.001, 0.00075, 0.0005])

    longer = replace(entry, steps=200_000)  # after the Zoo's end, it stays at 0
    assert [arguments_of(longer)["clip_range"](left) for left in (0.75, 0.5, 0.0)] == pytest.approx([0.1, 0.0, 0.0])


@pytest.mark.parametrize("steps", [1_000, 20_000])
def test_exploration_ends_after_as_many_steps_as_in_the_zoo(steps: int) -> None:
    (entry,) = (entry for entry in ENTRIES if entry.name == "CartPole-v1/dqn")
    schedule = build(replace(entry, steps=steps), seed=0).exploration_schedule
    done = 500 / steps  # the Zoo's exploration falls from 1 to 0.04 in 0.16 * 50,000 steps
    assert schedule(1 - done) == pytest.approx(1 - 0.96 * 500 / 8_000)


def test_returns_are_raw_and_counted_over_all_copies() -> None:
    (entry,) = (entry for entry in ENTRIES if entry.name == "MountainCar-v0/ppo")
    assert entry.normalize
    episodes = train(replace(entry, steps=4_000), seed=100)
    assert {episode.episode_return for episode in episodes} == {-200}
    assert [episode.steps for episode in episodes] == [3_200] * 16


# The script


@pytest.fixture
def table(tmp_path: Path) -> Path:
    common = {"source": "", "zoo_steps": 1_000, "policy": "MlpPolicy", "normalize": False}
    ppo = {**common, "algorithm": "ppo", "n_envs": 2, "parameters": {"n_steps": 32, "batch_size": 64}}
    dqn = {**common, "algorithm": "dqn", "n_envs": 1, "parameters": {"learning_starts": 1_000_000}}
    tasks = {
        "CartPole-v1": {"ppo": {**ppo, "steps": 300}, "endless": {**dqn, "steps": 10**9}},
        "Pendulum-v1": {"wrong": {**dqn, "steps": 300}},
    }
    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump({"tasks": tasks}, sort_keys=False))
    return path


def script(table: Path, *arguments: str) -> list[str]:
    out = str(table.with_name("peers.csv.gz"))
    return [sys.executable, str(SCRIPT), "--table", str(table), "--out", out, "--workers", "2", *arguments]


def run(table: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(script(table, *arguments), capture_output=True, text=True, check=False)


@pytest.mark.full
def test_finished_runs_are_kept_and_skipped(table: Path) -> None:
    out = table.with_name("peers.csv.gz")
    first = run(table, "--only", "CartPole-v1/ppo", "--seeds", "100-101")
    assert first.returncode == 0, first.stderr
    runs = read_episodes(out)
    assert set(runs) == {("CartPole-v1", "ppo", 100), ("CartPole-v1", "ppo", 101)}
    again = train(next(entry for entry in load_table(table) if entry.peer == "ppo"), seed=101)
    assert runs["CartPole-v1", "ppo", 101] == again  # the same seed gives the same episodes

    with out.open("ab") as file:
        file.write(b"half of a run that a crash cut off")
    second = run(table, "--only", "CartPole-v1/ppo", "--seeds", "100-102")
    assert "3 runs, 2 of them finished before" in second.stdout
    runs = read_episodes(out)
    assert {seed for _, _, seed in runs} == {100, 101, 102}
    assert runs["CartPole-v1", "ppo", 101] == again

    table.write_text(table.read_text().replace("n_steps: 32", "n_steps: 16"))
    changed = run(table, "--only", "CartPole-v1/ppo")
    assert changed.returncode == 1
    assert "other parameters" in changed.stderr


def test_failures_are_named_and_the_others_go_on(table: Path) -> None:
    result = run(table, "--only", "CartPole-v1/ppo", "Pendulum-v1/*", "--seeds", "100")
    assert result.returncode == 1
    assert "failed: Pendulum-v1/wrong/100" in result.stderr
    assert list(read_episodes(table.with_name("peers.csv.gz"))) == [("CartPole-v1", "ppo", 100)]
    unknown = run(table, "--only", "CartPole-v1/sarsa")
    assert (unknown.returncode, "CartPole-v1/ppo" in unknown.stderr) == (2, True)


@pytest.mark.full
def test_the_time_limit_drops_what_is_unfinished(table: Path) -> None:
    result = run(table, "--only", "CartPole-v1/endless", "--seeds", "100", "--minutes", "0.1")
    assert result.returncode == 0, result.stderr
    assert "0 of 1 runs are finished" in result.stdout
    assert not table.with_name("peers.csv.gz").exists()


@pytest.mark.full
def test_interruption_keeps_what_is_finished(table: Path) -> None:
    command = script(table, "--only", "CartPole-v1/*", "--seeds", "100")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[1/2] CartPole-v1 ppo"):
            break
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    output, _ = process.communicate(timeout=180)
    assert "1 of 2 runs are finished" in output
    assert list(read_episodes(table.with_name("peers.csv.gz"))) == [("CartPole-v1", "ppo", 100)]


# The analysis


def episodes(returns: list[float]) -> list[Episode]:
    return [Episode(10 * number, episode_return, 10) for number, episode_return in enumerate(returns, 1)]


def test_a_threshold_is_reached_by_the_mean_of_20_episodes() -> None:
    assert steps_to_threshold(episodes([0.0] * 20 + [1.0] * 20), 0.5) == 300
    assert steps_to_threshold(episodes([0.0] * 20 + [1.0] * 20), 1.0) == 400
    assert steps_to_threshold(episodes([0.0] * 20 + [1.0] * 19), 1.0) is None
    assert steps_to_threshold(episodes([1.0] * 19), 0.5) is None  # too few
    assert steps_to_threshold(episodes([0.1] * 20), 0.1) == 200


def test_runs_that_never_get_there_count_as_the_longest() -> None:
    needed = steps_needed([100, 200, 300, None, 250])
    assert (needed.median, needed.n_reached, needed.n_runs) == (250, 4, 5)
    assert needed.low == 100
    assert needed.high is None
    assert steps_needed([None, None, 100]).median is None
    same = steps_needed([100] * 4)
    assert (same.low, same.median, same.high) == (100, 100, 100)


def test_the_analysis_is_by_task_and_peer() -> None:
    runs = {("CartPole-v1", "dqn", seed): episodes([0.0] * seed + [500.0] * 20) for seed in (0, 10, 20)}
    found = analyse({**runs, ("Unknown-v0", "dqn", 0): episodes([1.0] * 20)})
    assert list(found) == [("CartPole-v1", "dqn")]
    assert found["CartPole-v1", "dqn"].median == 290  # 475 is reached with one failure among twenty
