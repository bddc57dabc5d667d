"""Studies are tables that become jobs."""

from pathlib import Path
from typing import Any

import pytest

from bdpi.agents import AGENTS
from bdpi.baselines.paper import PEERS
from bdpi.runs.build import PEER_NAMES
from bdpi.runs.errors import RunError
from bdpi.studies import load_study, study_names
from bdpi.studies.study import parse_study

TABLE: dict[str, Any] = {
    "title": "Small",
    "seeds": 2,
    "environments": {"lake": {"id": "FrozenLake-v1", "episodes": 20}, "pole": "CartPole-v1"},
    "rows": {
        "algorithms": {"BDPI": {"agent": "bdpi"}, "PPO": {"agent": "ppo"}},
        "critics": {
            "8x4": {"set": {"n_critics": 8, "critics_per_step": 4, "net_arch": [16]}},
            "16x16": {"same_as": "algorithms/BDPI"},
        },
        "noise": {"noisy": {"off_policy_noise": 0.2, "in": {"pole": {"off_policy_noise": 0.05, "episodes": 5}}}},
    },
}


def test_every_study_of_the_package_can_be_read_and_names_agents_that_exist(tmp_path: Path) -> None:
    assert {"figure2", "entropy", "pendulum", "trust-region", "aggressiveness"} <= set(study_names())
    for name in study_names():
        study = load_study(name)
        jobs = study.jobs(tmp_path)
        assert len({job.folder for job in jobs}) == len(jobs)
        assert {job.plan.agent for job in jobs} <= {*AGENTS, *PEERS}
        assert {path for _, path in study.folders(tmp_path)} == {job.folder for job in jobs}
    assert set(PEER_NAMES) == set(PEERS)


def test_the_papers_figure_is_complete(tmp_path: Path) -> None:
    study = load_study("figure2")
    places = [place for place, _ in study.folders(tmp_path)]
    assert len(places) == 8 * 4 * (6 + 6 + 2)
    assert len(study.jobs(tmp_path)) == 8 * 4 * (6 + 5 + 1)  # 16x16 and BDPI without noise are the same runs
    noisy = {j.plan.environment: j.plan.off_policy_noise for j in study.jobs(tmp_path) if j.place.row == "noise"}
    assert noisy["TableLong-v0"] == 0.05
    assert set(noisy.values()) == {0.05, 0.2}
    critics = {
        j.place.series: (j.plan.hyperparameters.get("n_critics", 16), j.plan.hyperparameters.get("critics_per_step"))
        for j in study.jobs(tmp_path)
        if j.place.row == "critics"
    }
    assert critics == {"8x8": (8, None), "16x8": (16, 8), "1x1": (1, None), "32x16": (32, 16), "32x32": (32, None)}


def test_a_table_becomes_jobs(tmp_path: Path) -> None:
    study = parse_study("small", TABLE)
    jobs = {(j.place.row, j.place.environment, j.place.series, j.place.seed): j for j in study.jobs(tmp_path)}
    assert len(jobs) == 2 * 2 * 4
    job = jobs["critics", "FrozenLake-v1", "8x4", 1]
    assert job.folder == tmp_path / "small" / "critics" / "FrozenLake-v1" / "8x4-seed1"
    assert (job.plan.agent, job.plan.seed, job.plan.episodes) == ("bdpi", 1, 20)
    assert job.plan.hyperparameters == {"n_critics": 8, "critics_per_step": 4}
    assert job.plan.policy_kwargs == {"net_arch": [16]}
    assert jobs["noise", "CartPole-v1", "noisy", 0].plan.off_policy_noise == 0.05
    assert jobs["noise", "CartPole-v1", "noisy", 0].plan.episodes == 5
    assert jobs["noise", "FrozenLake-v1", "noisy", 0].plan.off_policy_noise == 0.2
    shown = {(p.row, p.series): path for p, path in study.folders(tmp_path) if p.seed == 0 and "Lake" in p.environment}
    assert shown["critics", "16x16"] == shown["algorithms", "BDPI"]


def test_a_smaller_study_has_what_was_asked_for_and_what_that_shows(tmp_path: Path) -> None:
    study = parse_study("small", TABLE)
    part = study.smaller(environments=("lake",), rows=("critics",), only=("16x16",), seeds=3, episodes=7)
    jobs = part.jobs(tmp_path)
    # the runs that 16x16 shows belong to another row; they are run all the same
    assert [(j.place.row, j.place.series, j.plan.episodes) for j in jobs] == [("algorithms", "BDPI", 7)] * 3
    assert [p.seed for p, _ in part.folders(tmp_path)] == [0, 1, 2]
    figure = load_study("figure2").smaller(rows=("critics", "noise"), environments=("table",), seeds=1)
    folders = [job.folder for job in figure.jobs(tmp_path)]
    assert len(folders) == len(set(folders)) == 5 + 1 + 1  # 16x16 and BDPI without noise show the same run
    assert {j.plan.environment for j in study.smaller(environments=("CartPole-v1",)).jobs(tmp_path)} == {"CartPole-v1"}


@pytest.mark.parametrize("episodes", [3, 2000])
def test_all_runs_have_as_many_episodes_as_asked_for(episodes: int, tmp_path: Path) -> None:
    """Fewer than the study has, or more."""
    jobs = parse_study("small", TABLE).smaller(episodes=episodes).jobs(tmp_path)
    assert {job.plan.episodes for job in jobs} == {episodes}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environments": ("moon",)}, "no environment 'moon': it has lake, pole"),
        ({"rows": ("colums",)}, "no row 'colums'"),
        ({"only": ("TRPO",)}, "no series 'TRPO'"),
        ({"rows": ("noise",), "only": ("PPO",)}, "exclude each other"),
    ],
)
def test_what_is_not_there_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        parse_study("small", TABLE).smaller(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": None}, "rows of small must be a table"),
        ({"colour": 1}, "unknown 'colour'"),
        ({"seeds": 0}, "seeds of the study small must be a whole number from 1 on, not 0"),
        ({"rows": {"r": {"s": {"agnt": "bdpi"}}}}, "r/s of small has the unknown 'agnt'"),
        ({"rows": {"r": {"s": {"same_as": "r/t"}}}}, "the same as r/t, which is not there"),
        ({"environments": {"lake": {"episodes": 3}}}, "environment lake: give its Gymnasium id"),
    ],
)
def test_mistakes_in_a_table_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        parse_study("small", {**TABLE, **change})


def test_studies_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(f"STUDY = {TABLE!r}")
    assert load_study(str(tmp_path / "mine.py")).name == "mine"
    (tmp_path / "mine.yaml").write_text("environments: {a: CartPole-v1}\nrows: {r: {s: {agent: bdpi}}}")
    assert load_study(str(tmp_path / "mine.yaml")).seeds == 8
    (tmp_path / "broken.yaml").write_text("rows: [")
    (tmp_path / "broken.py").write_text("1/0")
    for name, message in (
        ("broken.yaml", "is no YAML"),
        ("broken.py", "cannot be run: ZeroDivisionError"),
        ("missing.yaml", "cannot be read"),
    ):
        with pytest.raises(RunError, match=message):
            load_study(str(tmp_path / name))
    with pytest.raises(RunError, match="there is no study 'figur2': choose from"):
        load_study("figur2")
