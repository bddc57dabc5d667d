"""Studies are tables that become jobs."""

from pathlib import Path
from typing import Any

import pytest

from bdpi.agents import AGENTS, PAPER_AGENTS
from bdpi.baselines.paper import PEERS
from bdpi.report.paper import paper_environment
from bdpi.runs.build import PEER_NAMES
from bdpi.runs.errors import RunError
from bdpi.studies import load_protocol, load_study, study_names
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
        assert {job.config.agent for job in jobs} <= {*AGENTS, *PAPER_AGENTS, *PEERS}
        assert {path for _, path in study.folders(tmp_path)} == {job.folder for job in jobs}
    assert set(PEER_NAMES) == set(PEERS)


def test_the_papers_figure_is_complete(tmp_path: Path) -> None:
    study = load_study("figure2")
    places = [place for place, _ in study.folders(tmp_path)]
    assert len(places) == 8 * 5 * (6 + 6 + 2)
    assert len(study.jobs(tmp_path)) == 8 * 5 * (6 + 5 + 1)  # 16x16 and BDPI without noise are the same runs
    noisy = {j.config.environment: j.config.off_policy_noise for j in study.jobs(tmp_path) if j.place.row == "noise"}
    assert noisy["TableLong-v0"] == 0.05
    assert set(noisy.values()) == {0.05, 0.2}
    settings = {j.place.series: j.config.hyperparameters for j in study.jobs(tmp_path) if j.place.row == "critics"}
    critics = {name: (each.get("n_critics", 16), each.get("critics_per_step")) for name, each in settings.items()}
    assert critics == {"8x8": (8, None), "16x8": (16, 8), "1x1": (1, None), "32x16": (32, 16), "32x32": (32, None)}


def test_protocol_code_has_the_curves_of_the_text_and_the_settings_of_the_code(tmp_path: Path) -> None:
    for name in ("figure2", "pendulum"):
        text, code = (load_protocol(name, protocol) for protocol in ("text", "code"))
        curves = [
            {(each.row, paper_environment(each.environment), each.name) for each in study.series} - {None}
            for study in (text, code)
        ]
        assert {curve for curve in curves[0] if curve[1]} == curves[1]
        assert load_protocol(f"{name}-code", "code") == code
        for job in code.jobs(tmp_path):
            config, agent = job.config, job.config.agent
            assert config.wrappers[0] == "bdpi.envs.wrappers:EndAtTimeLimit"
            assert agent.endswith("-code") or agent in PEERS
            assert config.remember_tests == (config.off_policy_noise is not None)
            if "Hallway" in config.environment and agent not in PEERS:
                rates = [config.hyperparameters.get(name) for name in ("learning_rate", "actor_learning_rate")]
                assert rates in ([1e-5, 1e-6], [1e-5, None])
                assert config.policy_kwargs == {"normalize_images": False, "last_filters": 32}
    with pytest.raises(RunError, match=r"robustness has no protocol 'code': figure2, pendulum has"):
        load_protocol("robustness", "code")


def test_environments_have_arguments_and_wrappers_and_series_have_more_around_them(tmp_path: Path) -> None:
    table = {
        "environments": {
            "lake": {"id": "FrozenLake-v1", "env_kwargs": {"is_slippery": False}, "wrappers": ["a:Inner"]}
        },
        "rows": {"r": {"s": {"agent": "ppo", "wrappers": ["a:Outer"], "env_kwargs": {"map_name": "8x8"}}}},
    }
    config = parse_study("mine", table).jobs(tmp_path)[0].config
    assert (config.wrappers, config.env_kwargs) == (["a:Inner", "a:Outer"], {"is_slippery": False, "map_name": "8x8"})


def test_a_table_becomes_jobs(tmp_path: Path) -> None:
    study = parse_study("small", TABLE)
    jobs = {(j.place.row, j.place.environment, j.place.series, j.place.seed): j for j in study.jobs(tmp_path)}
    assert len(jobs) == 2 * 2 * 4
    job = jobs["critics", "FrozenLake-v1", "8x4", 1]
    assert job.folder == tmp_path / "small" / "critics" / "FrozenLake-v1" / "8x4-seed1"
    assert (job.config.agent, job.config.seed, job.config.episodes) == ("bdpi", 1, 20)
    assert job.config.hyperparameters == {"n_critics": 8, "critics_per_step": 4}
    assert job.config.policy_kwargs == {"net_arch": [16]}
    noisy = jobs["noise", "CartPole-v1", "noisy", 0].config
    assert (noisy.off_policy_noise, noisy.episodes) == (0.05, 5)
    layers = {"pi": [8], "vf": [16, 16]}
    (peer, *_) = parse_study("small", {**TABLE, **setting(agent="ppo", set={"net_arch": layers})}).jobs(tmp_path)
    assert peer.config.policy_kwargs == {"net_arch": layers}
    assert jobs["noise", "FrozenLake-v1", "noisy", 0].config.off_policy_noise == 0.2
    shown = {(p.row, p.series): path for p, path in study.folders(tmp_path) if p.seed == 0 and "Lake" in p.environment}
    assert shown["critics", "16x16"] == shown["algorithms", "BDPI"]


def test_a_smaller_study_has_what_was_asked_for_and_what_that_shows(tmp_path: Path) -> None:
    study = parse_study("small", TABLE)
    part = study.smaller(environments=("lake",), rows=("critics",), only=("16x16",), seeds=3, episodes=7)
    jobs = part.jobs(tmp_path)
    # the runs that 16x16 shows belong to another row; they are run all the same
    assert [(j.place.row, j.place.series, j.config.episodes) for j in jobs] == [("algorithms", "BDPI", 7)] * 3
    assert [p.seed for p, _ in part.folders(tmp_path)] == [0, 1, 2]
    fresh = study.smaller(environments=("lake",), only=("BDPI",), seeds=2, first_seed=100)
    assert [job.config.seed for job in fresh.jobs(tmp_path)] == [100, 101]
    assert {p.seed for p, _ in fresh.folders(tmp_path)} == {100, 101}
    figure = load_study("figure2").smaller(rows=("critics", "noise"), environments=("table",), seeds=1)
    folders = [job.folder for job in figure.jobs(tmp_path)]
    assert len(folders) == len(set(folders)) == 5 + 1 + 1  # 16x16 and BDPI without noise show the same run
    for options, field, value in (
        ({"environments": ("CartPole-v1",)}, "environment", "CartPole-v1"),
        ({"episodes": 3}, "episodes", 3),  # fewer than the study has, or more
        ({"episodes": 2000}, "episodes", 2000),
        ({"steps": 500}, "steps", 500),
        ({"steps": 500}, "episodes", None),
    ):
        assert {getattr(job.config, field) for job in study.smaller(**options).jobs(tmp_path)} == {value}


def test_runs_are_as_long_as_so_many_episodes_or_steps(tmp_path: Path) -> None:
    environments = {"lake": {"id": "FrozenLake-v1", "steps": 90}, "pole": {"id": "CartPole-v1"}}
    series = {"A": {}, "B": {"episodes": 7, "in": {"lake": {"steps": 40}}}}
    table = {"title": "Lengths", "seeds": 1, "environments": environments, "rows": {"r": series}}
    jobs = parse_study("lengths", table).jobs(tmp_path)
    lengths = {(j.place.series, j.place.environment): (j.config.episodes, j.config.steps) for j in jobs}
    assert lengths == {
        ("A", "FrozenLake-v1"): (None, 90),
        ("A", "CartPole-v1"): (300, None),
        ("B", "FrozenLake-v1"): (None, 40),
        ("B", "CartPole-v1"): (7, None),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environments": ("moon",)}, "no environment 'moon': it has lake, pole"),
        ({"rows": ("colums",)}, "no row 'colums'"),
        ({"only": ("TRPO",)}, "no series 'TRPO'"),
        ({"rows": ("noise",), "only": ("PPO",)}, "exclude each other"),
        ({"episodes": 5, "steps": 500}, "small has episodes .5. and steps .500.: leave one"),
    ],
)
def test_what_is_not_there_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        parse_study("small", TABLE).smaller(**options)


def row(**series: Any) -> dict[str, Any]:
    return {"rows": {"r": series}}


def setting(**settings: Any) -> dict[str, Any]:
    return row(s=settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": None}, "rows of small must be a table"),
        ({"colour": 1}, "unknown 'colour'"),
        ({"seeds": 0}, "seeds of the study small"),
        ({"seeds": True}, "seeds of the study small"),
        ({"rows": {}}, "rows of small are empty"),
        ({"rows": {"r": {}}}, "row r of small is empty"),
        ({"rows": {1: {"s": {}}, "1": {"t": {}}}}, "rows of small has '1' twice"),
        ({"environments": {}}, "environments of small are empty"),
        ({"environments": {"lake": {"episodes": 3}}}, "environment lake of small: give its Gymnasium id"),
        ({"environments": {"lake": {"id": "FrozenLake-v1", "bananas": 3}}}, "lake of small has the unknown 'bananas'"),
        ({"environments": {"a": {"id": "X-v1", "episodes": "many"}}}, "episodes of environment a of small .*'many'"),
        ({"environments": {"a": "X-v1", "b": {"id": "X-v1", "episodes": 9}}}, "environments a and b .* both X-v1"),
        ({"environments": {"a": "my/Env-v0", "b": "my:Env-v0"}, **row(s={})}, "on my/Env-v0 and .* on my:Env-v0"),
        (setting(agnt="bdpi"), "r/s of small has the unknown 'agnt'"),
        (setting(**{"in": {"pool": {}}}), "'in' of r/s of small has the unknown 'pool'"),
        (setting(set=5), "'set' of r/s of small must be a table .*, not 5"),
        (setting(set=["n_steps"]), "'set' of r/s of small must be a table"),
        (setting(**{"in": {"lake": {"set": 5}}}), "'set' of 'in: lake' of r/s of small must be a table"),
        (setting(episodes="many"), "episodes of r/s of small .*'many'"),
        (setting(episodes=2.5), "episodes of r/s of small .* not 2.5"),
        (setting(**{"in": {"pole": {"episodes": 0}}}), "episodes of 'in: pole' of r/s of small .* not 0"),
        (setting(episodes=2, steps=50), "r/s of small has episodes .2. and steps .50."),
        ({"environments": {"a": {"id": "X-v1", "episodes": 2, "steps": 50}}}, "environment X-v1 has episodes"),
        (setting(off_policy_noise="high"), "off_policy_noise of r/s .* not 'high'"),
        (setting(record_entropy="yes"), "record_entropy of r/s .* not 'yes'"),
        # every run has a folder of its own
        (row(**{"x<1": {}, "x>1": {"agent": "a2c"}}), "r/x<1 on FrozenLake-v1 and r/x>1 on FrozenLake-v1"),
        (row(**{"x 1": {}, "x>1": {}}), "same folder, r/frozenlake-v1/x-1"),
        (row(bdpi={}, BDPI={}), "r/bdpi on FrozenLake-v1 and r/BDPI on"),
        (row(**{".": {}}), "series '.', which"),
        ({"rows": {"a b": {"s": {}}, "a/b": {"s": {}}}}, "a b/s on FrozenLake-v1 and a/b/s on"),
        ({"rows": {"..": {"s": {}}}}, "row '..', which no folder can have as its name"),
        ({"rows": {"": {"s": {}}}}, "row '', which"),
        # a series that shows another has nothing else
        (setting(same_as="r/t"), "the same as r/t, which is not there"),
        (setting(same_as="r/s"), "r/s of small shows itself"),
        (row(A={"same_as": "r/B"}, B={"same_as": "r/A"}), "r/A of small shows itself"),
        (row(A={"same_as": "r/B"}, B={"same_as": "r/C"}), "r/B of small is the same as r/C, which is not"),
        (row(A={}, B={"same_as": "r/A", "agent": "a2c", "set": {}}), "'same_as' and 'agent', 'set'"),
        (row(A={}, B={"same_as": "r/A", "in": {"pole": {"episodes": 3}}}), "'same_as' and 'in'"),
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
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)")
    for name, message in (
        ("broken.yaml", "is no YAML"),
        ("broken.py", "cannot be run: ZeroDivisionError"),
        ("exits.py", "cannot be run: SystemExit: 3"),
        ("missing.yaml", "cannot be read"),
    ):
        with pytest.raises(RunError, match=message):
            load_study(str(tmp_path / name))
    with pytest.raises(RunError, match="no study 'figur2'"):
        load_study("figur2")


def test_a_series_may_show_one_that_shows_another(tmp_path: Path) -> None:
    rows = {
        "u": {"C": {"same_as": "s/B"}},
        "s": {"B": {"same_as": "r/A"}},
        "r": {"A": {"agent": "ppo", "in": {"pole": {"episodes": 7}}}},
    }
    study = parse_study("small", {**TABLE, "rows": rows})
    assert {(series.agent, series.environment, series.episodes) for series in study.series} == {
        ("ppo", "FrozenLake-v1", 20),
        ("ppo", "CartPole-v1", 7),
    }
    shown: dict[tuple[str, int], set[Path]] = {}
    for place, path in study.folders(tmp_path):
        shown.setdefault((place.environment, place.seed), set()).add(path)
    assert [len(paths) for paths in shown.values()] == [1] * 4
    assert {job.folder for job in study.jobs(tmp_path)} == set.union(*shown.values())
    alone = study.smaller(rows=("u",)).jobs(tmp_path)
    assert {job.folder for job in alone} == set.union(*shown.values())


def test_names_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("environments: {a: CartPole-v1}\nrows:\n  r:\n    s: {agent: ppo}\n    s: {agent: a2c}")
    with pytest.raises(RunError, match=r"twice.*lines 4 and 5"):
        load_study(str(file))
    # what is merged may be changed, which is no repetition
    file.write_text(
        "environments: {a: CartPole-v1}\n"
        "rows: {r: {s: &s {agent: ppo, set: &x {n_steps: 8}}, t: &t {<<: *s, agent: a2c}, u: {<<: *t, episodes: 3}}}"
    )
    assert [(s.agent, s.episodes) for s in load_study(str(file)).series] == [("ppo", 300), ("a2c", 300), ("a2c", 3)]


def test_files_whose_names_no_folder_could_have(tmp_path: Path) -> None:
    text = "environments: {a: CartPole-v1}\nrows: {r: {s: {agent: bdpi}}}"
    (tmp_path / "my study.yaml").write_text(text)
    study = load_study(str(tmp_path / "my study.yaml"))
    assert all(path.is_relative_to(tmp_path / study.name) for _, path in study.folders(tmp_path))
    (tmp_path / "...yaml").write_text(text)
    with pytest.raises(RunError, match="rename the file"):
        load_study(str(tmp_path / "...yaml"))


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ({"agent": "bpdi"}, "r/s of small: unknown agent 'bpdi'"),
        ({"set": {"n_critic": 3}}, "r/s of small: 'set' knows no 'n_critic': did you mean n_critics"),
        ({"set": {"seed": 3}}, "r/s of small sets 'seed'"),
        ({"agent": "a2c", "set": {"net_arch": "big"}}, "r/s of small: net_arch must be a list .* not 'big'"),
        ({"agent": "a2c", "set": {"net_arch": {"pi": [8], "qf": [8]}}}, "net_arch of a2c must be a list"),
        ({"agent": "ppo", "set": {"activation_fn": "gelu"}}, "r/s of small: activation_fn must be tanh or relu"),
        ({"agent": "ppo", "set": {"learning_rate": "1e-4"}}, "r/s of small: learning_rate is the text '1e-4'"),
        ({"agent": "ppo", "set": {"n_steps": "few"}}, "r/s of small: n_steps must be a number .* the text 'few'"),
        ({"in": {"pole": {"set": {"n_critic": 3}}}}, "r/s of small: 'set' knows no 'n_critic'"),
        ({"agent": "ppo", "space": {"n_step": [1, 2]}}, "r/s of small: 'set' knows no 'n_step'"),
        ({"agent": "ppo", "space": {"n_steps": [1, "few"]}}, "r/s of small: n_steps must be a number"),
    ],
)
def test_settings_that_no_agent_has_are_named_with_their_series(
    series: dict[str, Any], message: str, tmp_path: Path
) -> None:
    table = {**TABLE, "rows": {"r": {"s": series}}}
    if "space" in series:
        table = {"environments": TABLE["environments"], "rows": table["rows"]}
    with pytest.raises(RunError, match=message):
        parse_study("small", table).jobs(tmp_path)
