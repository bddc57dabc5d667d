"""The study of robustness: the appendix's spaces, and configurations that are the same everywhere."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bdpi.report.configurations import comparisons_of
from bdpi.report.write import write_report
from bdpi.runs.campaign import run_campaign
from bdpi.runs.errors import RunError
from bdpi.runs.executors import make_executor
from bdpi.runs.job import check_jobs, execute, status_of
from bdpi.runs.results import read_runs, write_index
from bdpi.studies import load_study
from bdpi.studies.space import Space
from bdpi.studies.study import parse_study

SPACE = Space({"a": (1, 4, 8), "b": (1, 4), "c": ("x", "y", "z")}, at_most={"a": "b"}, same={"d": "c"})
TABLE: dict[str, Any] = {
    "configurations": 3,
    "environments": {"pole": {"id": "CartPole-v1", "episodes": 2}},
    "rows": {"r": {"PPO": {"agent": "ppo", "space": {"n_steps": [16, 32], "net_arch": [[8], [16]]}}}},
}
SIZES = {  # how many configurations the appendix's lists have, without what they have for nothing
    "BDPI": 5 * 5 * 5 * 4 * 3 * 5 * 4 * 4,
    "PPO": 5 * 5 * 4 * 7 * 4 * 5,
    "A2C": 5 * 5 * 4 * 5 * 5 * 5,
    "ACKTR": 5 * 5 * 4 * 6 * 5 * 5 * 5 * 5,
    "DQN": 5 * 5 * 5 * 3 * 4 * 4 * 5 * 4 * 5,
    "PrioritizedDuelingDQN": 5 * 5 * 5 * 3 * 4 * 4 * 5 * 4 * 5 * 5,
}

BDPI_7 = {"learning_rate": 0.0001, "net_arch": [96], "buffer_size": 20000, "batch_size": 64, "critics_per_step": 4}
BDPI_7 |= {"n_critics": 8, "critic_iterations": 1, "fit_steps": 1}
PPO_7 = {"learning_rate": 0.00001, "net_arch": [96, 96], "ent_coef": 0.03, "n_steps": 256, "gae_lambda": 0.9}
PPO_7 |= {"n_epochs": 8, "batch_size": 256}


def test_a_configuration_depends_on_its_algorithm_and_number_only() -> None:
    code = f"from bdpi.studies.space import Space; print([{SPACE!r}.draw('bdpi', k).settings for k in range(20)])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == str([SPACE.draw("bdpi", k).settings for k in range(20)])
    backwards = Space(dict(reversed(SPACE.values.items())), SPACE.at_most, SPACE.same)
    assert [backwards.draw("bdpi", k).settings for k in range(20)] == [
        SPACE.draw("bdpi", k).settings for k in range(20)
    ]
    assert [SPACE.draw("dqn", k).settings for k in range(20)] != [SPACE.draw("bdpi", k).settings for k in range(20)]


def test_configurations_never_change() -> None:
    """Runs that exist would not fit the study any more. These numbers were written down when it was made."""
    robustness = {series.name: series for series in load_study("robustness").series}
    drawn = {name: series.space.draw(series.agent, 7).settings for name, series in robustness.items() if series.space}
    assert drawn["BDPI"] == BDPI_7
    assert drawn["PPO"] == PPO_7


def test_all_allowed_configurations_are_equally_likely_and_no_others_are_drawn() -> None:
    allowed = {(a, b, c) for a, b, c in product(*SPACE.values.values()) if a <= b}
    drawn = [SPACE.draw("bdpi", number).settings for number in range(9_000)]
    counts = Counter((each["a"], each["b"], each["c"]) for each in drawn)
    assert set(counts) == allowed
    assert len(allowed) == 9
    # 1000 of each are expected, with a standard deviation of 30
    assert all(850 < count < 1150 for count in counts.values())
    assert all(each["d"] == each["c"] for each in drawn)
    for drawn in (SPACE.draw("bdpi", number) for number in range(20)):  # indices say which value it is
        assert {name: SPACE.values[name][index] for name, (index, _) in drawn.indices.items()} == {
            name: drawn.settings[name] for name in "abc"
        }
        assert all(count == len(SPACE.values[name]) for name, (_, count) in drawn.indices.items())
    with pytest.raises(RunError, match="in which a is at most b"):
        Space({"a": (4, 8), "b": (1,)}, at_most={"a": "b"}).draw("bdpi", 0)


def test_the_spaces_are_those_of_the_appendix(tmp_path: Path) -> None:
    study = load_study("robustness")
    sizes = {}
    for series in study.series:
        assert series.space is not None
        sizes[series.name] = 1
        for values in series.space.values.values():
            sizes[series.name] *= len(values)
    assert sizes == SIZES
    assert study.seeds == 2000
    assert {(s.environment, s.episodes) for s in study.series} == {("LunarLander-v3", 800)}
    jobs = study.smaller(configs=40).jobs(tmp_path)
    check_jobs(jobs)
    assert len(jobs) == 40 * 6
    for job in jobs:
        settings = job.config.hyperparameters
        assert job.config.seed == job.place.seed
        assert settings.get("critics_per_step", 0) <= settings.get("n_critics", 0)
        assert settings.get("n_steps") == settings["batch_size"] if job.config.agent == "ppo" else True
        assert len(job.config.policy_kwargs["net_arch"]) == (2 if job.config.agent in ("ppo", "a2c", "acktr") else 1)


def test_the_budget_can_be_chosen(tmp_path: Path) -> None:
    study = load_study("robustness")
    few = study.smaller(configs=2, episodes=5, environments=("CartPole-v1",), only=("bdpi",)).jobs(tmp_path)
    assert [(j.config.environment, j.config.episodes, j.place.seed) for j in few] == [
        ("CartPole-v1", 5, k) for k in (0, 1)
    ]
    more = study.smaller(configs=4, only=("bdpi",)).jobs(tmp_path)
    assert [j.config.hyperparameters for j in few] == [j.config.hyperparameters for j in more[:2]]
    both = study.smaller(configs=1, environments=("lunarlander", "Acrobot-v1"), only=("DQN",)).jobs(tmp_path)
    assert {j.config.environment for j in both} == {"LunarLander-v3", "Acrobot-v1"}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("robustness", {"seeds": 3}, "give --configs 3, not --seeds"),
        ("figure2", {"configs": 3}, "give --seeds 3, not --configs"),
        ("robustness", {"environments": ("moon",)}, "no environment 'moon'"),
    ],
)
def test_options_that_do_not_fit_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        load_study(name).smaller(**options)


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ({"space": {}}, "must be a table of names and lists"),
        ({"space": {"n_steps": 16}}, "n_steps in the space of r/s of t needs a list of values"),
        ({"space": {"n_steps": [16, 16]}}, "has a value twice"),
        ({"space": {"a": [1]}, "at_most": {"a": "b"}}, "at_most of r/s of t names b: its space has a"),
        ({"space": {"a": [1], "b": [1]}, "same": {"a": "b"}}, "cannot be drawn and be the same"),
        ({"at_most": {"a": "b"}}, "'at_most' and no 'space'"),
    ],
)
def test_mistakes_in_a_space_are_named(series: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        parse_study("t", {**TABLE, "rows": {"r": {"s": {"agent": "ppo", **series}}}})
    with pytest.raises(RunError, match="configurations"):
        parse_study("t", {**{k: v for k, v in TABLE.items() if k != "configurations"}, "seeds": 3})
    with pytest.raises(RunError, match="have a space"):
        parse_study("t", {**TABLE, "rows": {"r": {**TABLE["rows"]["r"], "s": {"agent": "ppo"}}}})


def test_runs_remember_which_configuration_they_have(three_runs: Path) -> None:
    _, runs, problems = read_runs(three_runs / "t")
    jobs = parse_study("t", TABLE).jobs(three_runs)
    assert not problems
    for run in runs:
        drawn = run.record.status.configuration
        assert {name: tuple(entry) for name, entry in drawn.items()} == jobs[run.place.seed].configuration
        assert run.config.hyperparameters["n_steps"] == [16, 32][drawn["n_steps"][0]]
        assert run.config.policy_kwargs["net_arch"] == [[8], [16]][drawn["net_arch"][0]]


@pytest.fixture(scope="module")
def three_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("three")
    study = parse_study("t", TABLE)
    write_index(root / "t", study.title, study.folders(root))
    for job in study.jobs(root):
        assert execute(job).status == status_of(job) == "finished"
    return root


@pytest.mark.parametrize(
    "damage",
    [{"configuration": {"n_steps": [0]}}, {"configuration": 5}, {"configuration": {"a": [2, 2]}}, {"policy_kwargs": 1}],
)
def test_a_run_with_a_damaged_configuration_is_left_out_by_name(
    three_runs: Path, tmp_path: Path, damage: dict[str, Any]
) -> None:
    shutil.copytree(three_runs / "t", tmp_path / "t")
    config = tmp_path / "t" / "r" / "CartPole-v1" / "PPO-seed1" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **damage}))
    _, runs, (problem,) = read_runs(tmp_path / "t")
    assert f"{config} is damaged: " in problem
    assert [(a.name, len(a.scores), a.n_drawn) for a in comparisons_of(runs)[0].algorithms] == [("PPO", 2, 2)]


def test_a_finished_run_without_its_episodes_is_damaged(three_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(three_runs / "t", tmp_path / "t")
    jobs = parse_study("t", TABLE).jobs(tmp_path)
    missing, garbage = (job.folder / "monitor.csv" for job in jobs[:2])
    missing.unlink()
    garbage.write_text("".join(garbage.read_text().splitlines(keepends=True)[:3]))
    said: list[str] = []
    tally = run_campaign(jobs, make_executor("local"), say=said.append)
    assert [job.place.seed for job in tally.done] == [2]
    expected = (f"{missing} cannot be read: No such file", f"{garbage} is damaged: it has 1 episodes instead of 2")
    for line, message in zip(said, expected, strict=False):
        assert message in line
        assert f"; remove {tmp_path}" in line
    _, runs, problems = read_runs(tmp_path / "t")
    for problem, message in zip(problems, expected, strict=True):
        assert problem.startswith(f"left out: {message}")
    write_report(runs, tmp_path / "report", title="t", command="c")
    assert "| CartPole, 2 episodes | PPO | 1 |" in (tmp_path / "report" / "tables.md").read_text()
    kept = replace(runs[0], returns=runs[0].returns[:0], lengths=runs[0].lengths[:0])
    assert comparisons_of([*runs, kept])[0].algorithms[0].unfinished == "1 without episodes"


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.full)])
def test_every_algorithm_runs_with_what_is_drawn(number: int, tmp_path: Path) -> None:
    study = load_study("robustness").smaller(configs=number + 1, episodes=4, environments=("CartPole-v1",))
    jobs = [job for job in study.jobs(tmp_path) if job.place.seed == number]
    assert {job.place.series: execute(job).status for job in jobs} == dict.fromkeys(SIZES, "finished")
