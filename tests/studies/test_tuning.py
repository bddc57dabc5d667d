"""Searches of hyper-parameters: what is tried, given up, kept and repeated."""

import builtins
import resource
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bdpi.runs.config import RunConfig
from bdpi.runs.errors import RunError
from bdpi.studies.choices import tunable
from bdpi.studies.trials import Reports, train

optuna = pytest.importorskip("optuna")

from bdpi.studies.tuning import Search, Trial, Tuner, Tuning  # noqa: E402

#: Everything that takes time is small; what is left to search does not cost any.
QUICK = ("n_critics=2", "critic_iterations=1", "fit_steps=1", "batch_size=32", "net_arch=[8]")
ALL = ("buffer_size=1000", "batch_size=8", "critics_per_step=1", "n_critics=2", "critic_iterations=1")
QUICK_DICT = {"n_critics": 2, "critic_iterations": 1, "fit_steps": 1, "batch_size": 32}


@pytest.fixture(autouse=True)
def _odd_worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def search(environment: str = "CartPole-v1", *, settings: tuple[str, ...] = QUICK, **others: Any) -> Search:
    return Search(environment, **{"episodes": 4, "settings": settings, **others})


def after(n_calls: int) -> Callable[[], bool]:
    """Asks to stop, from the n-th time that it is asked on."""
    calls = iter(range(10**9))
    return lambda: next(calls) >= n_calls


# -- what is chosen from


@pytest.mark.parametrize("agent", sorted(tunable()))
def test_every_agent_begins_with_its_defaults_and_then_has_the_papers_values(agent: str, tmp_path: Path) -> None:
    environment = "FrozenLake-v1" if agent == "tabular-bdpi" else "CartPole-v1"
    choices = Tuner(Search(environment, agent), tmp_path / "out").choices
    assert choices.settings({name: choices.defaults[name] for name in choices.values}) == {}
    for name, values in choices.values.items():
        assert choices.defaults[name] in values
        assert len(values) >= 3
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("environment", "agent", "chosen", "settings"),
    [
        ("CartPole-v1", "bdpi", {"n_critics": 1, "critics_per_step": 8}, {"n_critics": 1}),  # there are not more
        ("CartPole-v1", "bdpi", {"n_critics": 8, "critics_per_step": 4}, {"n_critics": 8, "critics_per_step": 4}),
        ("CartPole-v1", "ppo", {"n_steps": 64}, {"n_steps": 64, "batch_size": 64}),  # learns from whole batches
        ("LunarLander-v3", "bdpi", {"net_arch": "[256]"}, {}),  # its default
    ],
)
def test_what_is_chosen_can_be_trained(environment: str, agent: str, chosen: dict, settings: dict) -> None:
    choices = Tuner(Search(environment, agent)).choices
    assert choices.settings({**{name: choices.defaults[name] for name in choices.values}, **chosen}) == settings


def test_what_is_fixed_limits_what_is_chosen() -> None:
    choices = Tuner(Search("CartPole-v1", settings=("critics_per_step=8",))).choices
    assert choices.values["n_critics"] == (8, 16, 32)
    for n_critics in choices.values["n_critics"]:
        chosen = {name: choices.defaults[name] for name in choices.values} | {"n_critics": n_critics}
        assert choices.settings(chosen)["critics_per_step"] == 8
    choices = Tuner(Search("CartPole-v1", settings=("n_critics=4",))).choices
    assert choices.values["critics_per_step"] == (1, 4, None)


# -- searches


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuner, Tuning]:
    folder = tmp_path_factory.mktemp("searched")
    tuner = Tuner(search(seeds=2, seed=3), folder)
    return folder, tuner, tuner.run(3)


def test_scores_are_total_rewards_averaged_over_seeds_and_only_small_files_are_kept(
    searched: tuple[Path, Tuner, Tuning],
) -> None:
    folder, tuner, found = searched
    assert [trial.number for trial in found.trials] == [1, 2, 3]
    first = found.trials[0]
    lines = [line for path in folder.glob("trials/001/*/monitor.csv") for line in path.read_text().splitlines()[2:]]
    assert len(lines) == first.episodes == 8
    assert first.score == sum(float(line.split(",")[0]) for line in lines) / 2
    assert found.best[0].score == max(trial.score for trial in found.trials if trial.score is not None)
    assert first.settings == [*QUICK]  # the defaults
    assert any(trial.settings != first.settings for trial in found.trials)
    assert {path.name for path in (folder / "trials").rglob("*") if path.is_file()} == {"config.json", "monitor.csv"}
    assert isinstance(tuner._pruner, optuna.pruners.MedianPruner)
    assert Tuner(search(episodes=50)).block == 5


def test_the_same_search_finds_the_same_however_often_it_is_stopped(
    searched: tuple[Path, Tuner, Tuning], tmp_path: Path
) -> None:
    _, _, undisturbed = searched
    for n_sessions in range(20):  # noqa: B007  # each has less than a trial's steps, so they go on in the middle
        found = Tuner(search(seeds=2, seed=3), tmp_path / "other").run(3, after(80))
        if len(found.trials) == found.goal:
            break
    assert n_sessions > 2
    assert found == undisturbed
    study = optuna.load_study(study_name="tune", storage=f"sqlite:///{tmp_path}/other/tune.sqlite")
    assert len(study.trials) > 3  # the interrupted ones are still there
    assert {trial.state.name for trial in study.trials} == {"COMPLETE", "FAIL"}


def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    """A trial that nobody has ended, as SIGKILL leaves it, is repeated, but not for ever."""
    tuner = Tuner(search("odd_worlds:Counting-v0", episodes=2), tmp_path / "out")

    def kill(index: int) -> None:
        with tuner._study() as study:
            tuner._ask(study, index).set_user_attr("index", index)

    kill(0)
    kill(0)
    assert [(trial.status, trial.settings) for trial in tuner.run(1).trials] == [("finished", [*QUICK])]
    for _ in range(3):
        kill(1)
    found = tuner.run(1)
    assert [trial.status for trial in found.trials] == ["finished", "failed"]
    assert "killed in it, 3 times" in found.trials[1].error


def test_an_interrupted_trial_is_repeated_even_where_something_else_would_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = Tuner(search("odd_worlds:Counting-v0", episodes=2), tmp_path / "out")
    with tuner._study() as study:
        interrupted = tuner._ask(study, 0)
        interrupted.set_user_attr("index", 5)
    with tuner._study() as study:
        monkeypatch.setattr(optuna.samplers, "TPESampler", lambda seed: optuna.samplers.RandomSampler(seed + 1))
        assert tuner._ask(study, 5).params == interrupted.params
        assert tuner._ask(study, 6).params != interrupted.params


def test_the_same_call_adds_trials_and_one_that_was_stopped_is_completed(tmp_path: Path) -> None:
    tuner = Tuner(search("odd_worlds:Counting-v0", episodes=2), tmp_path / "out")
    assert len(tuner.run(2).trials) == 2
    stopped = tuner.run(3, after(15))
    assert len(stopped.trials) < stopped.goal == 5
    assert len(tuner.run(3).trials) == 5
    assert len(tuner.run(1).trials) == 6


def test_what_was_tried_is_not_trained_again(tmp_path: Path) -> None:
    fixed = (*QUICK, "learning_rate=1e-4", "buffer_size=1000")
    tuner = Tuner(search("odd_worlds:Right-v0", settings=fixed, episodes=2), tmp_path / "out")
    assert set(tuner.choices.values) == {"critics_per_step"}
    found = tuner.run(8)
    assert len(found.trials) == 8
    assert len(list((tmp_path / "out" / "trials").iterdir())) == 2  # one critic a step, or both
    scores: dict[str, set[float | None]] = {}
    for trial in found.trials:
        scores.setdefault(str(trial.settings), set()).add(trial.score)
    assert [len(values) for values in scores.values()] == [1, 1]


# -- bad trials are given up


class Rigged:
    """Gives up at the n-th report."""

    def __init__(self, prune_at: int) -> None:
        self.values: dict[int, float] = {}
        self._prune_at = prune_at

    def report(self, value: float, step: int) -> None:
        self.values[step] = value

    def should_prune(self) -> bool:
        return len(self.values) >= self._prune_at


def rigged(judge: Rigged, folder: Path, seeds: int) -> tuple[str, list[int]]:
    common: dict[str, Any] = {"environment": "odd_worlds:Counting-v0", "episodes": 6, "hyperparameters": QUICK_DICT}
    plans = [RunConfig(seed=seed, **common) for seed in range(seeds)]
    result = train(plans, folder, Reports(judge, 2), lambda: False, lambda n: None)
    return result.status, [len(returns) for returns in result.returns]


@pytest.mark.parametrize(
    ("prune_at", "expected"),
    [(1, ("pruned", [2])), (3, ("pruned", [6])), (4, ("pruned", [6, 2])), (6, ("finished", [6, 6]))],
)
def test_trials_end_at_the_report_that_condemns_them(
    tmp_path: Path, prune_at: int, expected: tuple[str, list[int]]
) -> None:
    judge = Rigged(prune_at)
    assert rigged(judge, tmp_path, 2) == expected
    assert judge.values == dict.fromkeys(range(2, 2 * prune_at + 1, 2), 5.0)
    reports = Reports(other := Rigged(100), 2)
    for returns in ([1.0, 2.0, 9.0], [1.0, 2.0, 9.0, 4.0]):
        reports.add(returns)
    reports.next_run([1.0, 2.0, 9.0, 4.0])
    reports.add([5.0, 3.0])
    assert other.values == {2: 1.5, 4: 4.0, 6: 4.0}  # means over all episodes so far


def test_pruned_trials_are_in_the_study(tmp_path: Path) -> None:
    """This pruner wants returns that Counting cannot have, but only once there is a trial to have a result."""

    class AfterTheFirst(optuna.pruners.BasePruner):  # type: ignore[misc,name-defined]
        def prune(self, study: Any, trial: Any) -> bool:
            return trial.number > 0

    tuner = Tuner(search("odd_worlds:Counting-v0"), tmp_path / "out", AfterTheFirst())
    ended: list[Trial] = []
    found = tuner.run(3, ended=lambda trial, goal: ended.append(trial))
    assert found.trials == ended
    assert [(trial.status, trial.episodes) for trial in ended] == [("finished", 4), ("pruned", 1), ("pruned", 1)]
    assert [trial.number for trial in found.best] == [1]


# -- trials that fail, and mistakes


@pytest.mark.parametrize("agent", ["a2c", "bdpi"])
def test_a_full_disk_stops_the_search_and_costs_no_trial(tmp_path: Path, agent: str) -> None:
    """No file may become as large as the agent, which is saved in the end. The database of the search is smaller."""
    settings = ("net_arch=[400,400]", *(("n_critics=2", "fit_steps=1") if agent == "bdpi" else ()))
    tuner = Tuner(search("odd_worlds:Counting-v0", agent=agent, settings=settings, episodes=2), tmp_path / "out")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
    try:
        for _ in range(4):
            with pytest.raises(RunError, match="cannot be written"):
                tuner.run(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [trial.status for trial in tuner.run(2).trials] == ["finished", "finished"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"environment": "CartPoel-v1"}, "did you mean CartPole-v1"),
        ({"agent": "bpdi"}, "unknown agent 'bpdi'"),
        ({"agent": "sac"}, "no values to try for sac: choose one of bdpi"),
        ({"episodes": 0}, "episodes must be at least 1, not 0"),
        ({"seeds": 0}, "seeds must be at least 1, not 0"),
        ({"seed": 2**32 - 1, "seeds": 2}, "seeds are from 0 to 4294967295"),
        ({"settings": ("n_critics=0",)}, "n_critics"),
        ({"settings": ("n_critic=2",)}, "did you mean n_critics"),
        ({"settings": ("critics_per_step=32",)}, "critics_per_step.*16.*32"),
        ({"environment": "FrozenLake-v1", "agent": "tabular-bdpi", "settings": ALL}, "leave one out"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        Tuner(Search(**{"environment": "CartPole-v1", **wrong}))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_another_search_is_refused(searched: tuple[Path, Tuner, Tuning], tmp_path: Path) -> None:
    folder, _, _ = searched
    with pytest.raises(RunError, match="episodes 4, not 7"):
        Tuner(search(seeds=2, seed=3, episodes=7), folder).run(1)
    with pytest.raises(RunError, match="trials"):
        Tuner(search(seeds=2, seed=3), folder).run(0)
    (tmp_path / "trials").mkdir()
    for _ in range(2):
        with pytest.raises(RunError, match="has trials"):
            Tuner(search(), tmp_path).run(1)
        (tmp_path / "tune.sqlite").touch()
    (tmp_path / "tune.sqlite").write_text("no database at all, but long enough to be looked at" * 10)
    with pytest.raises(RunError, match="cannot be used"):
        Tuner(search(), tmp_path).run(1)


def test_a_folder_of_a_trial_with_another_configuration_is_not_mistaken_for_this_one(tmp_path: Path) -> None:
    """The database of one search beside the trials of another."""
    Tuner(search("odd_worlds:Counting-v0", episodes=1, settings=("n_critics=2",)), tmp_path / "a").run(1)
    tuner = Tuner(search("odd_worlds:Counting-v0", episodes=1, settings=("n_critics=3",)), tmp_path / "b")
    tuner.run(1)
    shutil.copytree(tmp_path / "a" / "trials" / "001", tmp_path / "b" / "trials" / "002")
    for _ in range(4):  # as often as one likes: no trial is burned
        with pytest.raises(RunError, match="hyperparameters"):
            tuner.run(1)
    shutil.rmtree(tmp_path / "b" / "trials" / "002")
    assert [trial.status for trial in tuner.run(1).trials] == ["finished"] * 2


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE study_user_attributes SET value_json = '[1]' WHERE key = 'goal'",
        "UPDATE study_user_attributes SET value_json = '[1, \"a\"]' WHERE key = 'goal'",
        "UPDATE study_user_attributes SET value_json = '7' WHERE key = 'plan'",
        "UPDATE study_user_attributes SET value_json = '{' WHERE key = 'plan'",
        "UPDATE trial_user_attributes SET value_json = '3' WHERE key = 'settings'",
        "UPDATE trial_user_attributes SET value_json = '[[\"a\"]]' WHERE key = 'returns'",
        "DELETE FROM trial_user_attributes WHERE key = 'index'",
        "UPDATE trials SET state = 'ODD'",
    ],
)
def test_a_database_with_odd_content_is_named(
    searched: tuple[Path, Tuner, Tuning], tmp_path: Path, change: str
) -> None:
    shutil.copy(searched[0] / "tune.sqlite", tmp_path)
    with sqlite3.connect(tmp_path / "tune.sqlite") as connection:
        connection.execute(change)
    with pytest.raises(RunError, match="cannot be used"):
        Tuner(search(seeds=2, seed=3), tmp_path).run(1)


def test_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    out = tmp_path / "50% {done} #1"
    Tuner(search("odd_worlds:Counting-v0", episodes=1), out).run(1)
    with sqlite3.connect(out / "tune.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM trials").fetchone() == (1,)
    with pytest.raises(RunError, match="question mark"):
        Tuner(search(), tmp_path / "what?").run(1)


def test_without_optuna_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def fake(name: str, *arguments: Any, **others: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return real(name, *arguments, **others)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(RunError, match=r'pip install "bdpi\[tune\]"'):
        Tuner(search())
