"""Search hyper-parameters with Optuna. Everything is kept in one folder, and the search can be stopped at any time.

A trial trains an agent with one configuration, once per seed. Its score is the paper's: the total reward of all
episodes, averaged over seeds. All trials use the same seeds: a search has the same result however often it is stopped
and continued.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from bdpi.runs.build import agent_class
from bdpi.runs.config import RunConfig
from bdpi.runs.errors import RunError, named
from bdpi.runs.folder import RunFolder
from bdpi.runs.settings import parse_settings
from bdpi.runs.train import tried
from bdpi.studies.choices import Choices, setting_texts, space_of
from bdpi.studies.trials import Reports, Result, train

if TYPE_CHECKING:
    import optuna

_STUDY = "tune"
_REPORTS = 10  # per run: a trial may be pruned at each
_MOST_KILLED = 3  # a trial whose process was killed this often is not repeated


@dataclass(frozen=True)
class Search:
    """What to search.

    :param environment: Gymnasium id
    :param agent: one that :func:`bdpi.studies.choices.tunable` has
    :param episodes: of each run
    :param seeds: runs of each trial
    :param seed: of the first run and of the search; the other runs have the seeds that follow
    :param settings: ``name=value`` texts, of what is not searched
    """

    environment: str
    agent: str = "bdpi"
    episodes: int = 100
    seeds: int = 1
    seed: int = 0
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("episodes", "seeds"):
            if getattr(self, name) < 1:
                raise RunError(f"the number of {name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.seed <= 2**32 - self.seeds:
            raise RunError(f"seeds are from 0 to {2**32 - 1}: {self.seeds} from {self.seed} on are not")


@dataclass(frozen=True)
class Trial:
    """A trial that has ended.

    :param number: from 1 on; trials that were interrupted and repeated count once
    :param status: ``"finished"``, ``"pruned"`` or ``"failed"``
    :param settings: what differs from the agent's defaults, as ``--set`` takes it
    :param episodes: that it was trained for, over all seeds
    :param score: of a finished one
    :param error: of a failed one, in one line
    """

    number: int
    status: str
    settings: list[str]
    episodes: int
    score: float | None = None
    error: str = ""


@dataclass
class Tuning:
    """How a search, or one session of it, ended.

    :param trials: all, those of earlier sessions included
    :param goal: how many there should be
    """

    trials: list[Trial]
    goal: int

    @property
    def best(self) -> list[Trial]:
        """Finished trials, the best one first; of equal ones, the first."""
        return sorted((t for t in self.trials if t.score is not None), key=lambda t: (-(t.score or 0.0), t.number))


def load_optuna() -> ModuleType:
    """:raises RunError: when it is not installed."""
    try:
        import optuna
    except ImportError:
        raise RunError('tuning needs Optuna, which is not installed: pip install "bdpi[tune]"') from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Tuner:
    """A search in a folder. The constructor checks the search; nothing is written before ``run``.

    :param search: what to search
    :param out: the folder; None: ``runs/tune/ENVIRONMENT-AGENT``
    :param pruner: stops bad trials; None: those whose mean return is below the median of the others
    :raises RunError: when the search cannot begin
    """

    def __init__(
        self, search: Search, out: Path | None = None, pruner: optuna.pruners.BasePruner | None = None
    ) -> None:
        self._optuna = load_optuna()
        cls = agent_class(search.agent)
        space_of(search.agent)
        hyperparameters, policy_kwargs = parse_settings(search.settings, cls)
        #: settings that are not searched
        self.fixed = {**hyperparameters, **policy_kwargs}
        self.search = search
        with tried(self._run_config(search.settings, search.seed)) as session:
            self.search = search = replace(search, environment=session.config.environment)
            self.choices = Choices(search.agent, session, self.fixed)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{search.environment}-{search.agent}")
        self.out = Path("runs") / "tune" / name if out is None else out
        self.block = math.ceil(search.episodes / _REPORTS)
        self._pruner = pruner or self._optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2 * self.block)

    def run(
        self,
        trials: int,
        should_stop: Callable[[], bool] = lambda: False,
        ended: Callable[[Trial, int], object] = lambda trial, goal: None,
        tick: Callable[[int, int], object] = lambda done, total: None,
    ) -> Tuning:
        """Run trials. If a call was stopped, the same call completes it.

        :param trials: number of trials
        :param should_stop: called after every step; if it returns True, the search stops and can be continued
        :param ended: called after every trial, with the total number of trials
        :param tick: called after every step, with the number of episodes that are done, and the total
        :raises RunError: when the folder cannot be used
        """
        if trials < 1:
            raise RunError(f"the number of trials must be at least 1, not {trials}")
        with self._study() as study:
            goal = self._goal(study, trials)
            first = index = len(_ended(study))
            per_trial = self.search.episodes * self.search.seeds

            def tick_trial(episodes: int) -> None:
                tick((index - first) * per_trial + episodes, (goal - first) * per_trial)

            while index < goal and not should_stop():
                trial = self._trial(study, index, should_stop, tick_trial)
                if trial is None:
                    break
                index += 1
                ended(trial, goal)
            return Tuning([_described(trial) for trial in _ended(study)], goal)

    def command(self, trial: Trial) -> list[str]:
        """The command, word by word, that repeats the first run of a trial."""
        search = self.search
        words = ["bdpi", "train", search.environment]
        if search.agent != "bdpi":
            words += ["--agent", search.agent]
        words += ["--episodes", str(search.episodes), "--seed", str(search.seed)]
        for text in trial.settings:
            words += ["--set", text]
        return words

    # -- the study ------------------------------------------------------------------------------------------------

    @contextmanager
    def _study(self) -> Iterator[optuna.Study]:
        """The study in the folder, which is locked."""
        file = self.out / "tune.sqlite"
        url = _url(file)
        folder = RunFolder(self.out)
        folder.make()
        with folder.locked():
            is_empty = not file.exists() or not file.stat().st_size
            if is_empty and (self.out / "trials").exists():
                raise RunError(f"{self.out} has trials but nothing in {file.name}: choose another --out, or remove it")
            try:
                storage = self._optuna.storages.RDBStorage(url)
                study = self._optuna.create_study(
                    storage=storage, study_name=_STUDY, direction="maximize", pruner=self._pruner, load_if_exists=True
                )
                _check_sound(study)
            except Exception as error:  # SQLAlchemy, Alembic and Optuna have exceptions of their own
                raise RunError(
                    f"{file} cannot be used: {named(error)[:300]}; choose another --out, or remove it"
                ) from None
            try:
                self._check_same(study)
                for left in _in_state(study, self._optuna.trial.TrialState.RUNNING):  # its process was killed
                    study.tell(left.number, state=self._optuna.trial.TrialState.FAIL)
                yield study
            except self._optuna.exceptions.StorageInternalError as error:  # a full disk, most likely
                raise RunError(f"{file} cannot be written: {named(error)[:300]}") from None
            finally:
                storage.remove_session()
                storage.engine.dispose()

    def _check_same(self, study: optuna.Study) -> None:
        """:raises RunError: when the folder's search is another one."""
        search = {**asdict(self.search), "settings": sorted(setting_texts(self.fixed)), "space": self.choices.values}
        here = json.loads(json.dumps(search))
        there = study.user_attrs.get("plan")
        if there is None:
            study.set_user_attr("plan", here)
        elif there != here:
            different = ", ".join(
                "other values to choose from" if name == "space" else f"{name} {there.get(name)!r}, not {value!r}"
                for name, value in here.items()
                if value != there.get(name)
            )
            raise RunError(f"{self.out} holds a search with other settings ({different}): choose another --out")

    def _goal(self, study: optuna.Study, trials: int) -> int:
        """How many trials there should be in the end."""
        done = len(_ended(study))
        goal, asked = study.user_attrs.get("goal", (0, 0))
        if done >= goal or asked != trials:
            goal = done + trials
            study.set_user_attr("goal", (goal, trials))
        return int(goal)

    # -- one trial ------------------------------------------------------------------------------------------------

    def _trial(
        self, study: optuna.Study, index: int, should_stop: Callable[[], bool], tick: Callable[[int], object]
    ) -> Trial | None:
        """:returns: None when it was interrupted."""
        states = self._optuna.trial.TrialState
        trial = self._ask(study, index)
        settings = setting_texts(self.choices.settings(trial.params))
        trial.set_user_attr("index", index)
        trial.set_user_attr("settings", settings)
        before = [t for t in study.get_trials(deepcopy=False) if t.user_attrs.get("index") == index]
        killed = [t for t in before if t.state == states.FAIL and "interrupted" not in t.user_attrs]
        same = next(
            (t for t in _ended(study) if t.user_attrs["settings"] == settings and "error" not in t.user_attrs), None
        )
        if len(killed) >= _MOST_KILLED:
            result = Result("failed", error=f"the process was killed in it, {len(killed)} times")
        elif same is not None:  # the same seeds would give the same episodes
            result = Result("pruned" if same.state == states.PRUNED else "finished", same.user_attrs["returns"])
            for step, value in same.intermediate_values.items():
                trial.report(value, step)
        else:
            configs = [self._run_config(settings, self.search.seed + number) for number in range(self.search.seeds)]
            path = self.out / "trials" / f"{index + 1:03d}"
            try:
                result = train(configs, path, Reports(trial, self.block), should_stop, tick)
            except RunError:
                self._interrupt(study, trial)
                raise
        if result.status == "interrupted":
            self._interrupt(study, trial)
            return None
        score = float(np.mean([sum(returns) for returns in result.returns])) if result.returns else math.nan
        if result.status == "finished" and not math.isfinite(score):
            result = replace(result, status="failed", error=f"the total reward is {score}")
        trial.set_user_attr("returns", result.returns if result.status != "failed" else [])
        if result.status == "failed":
            trial.set_user_attr("error", result.error)
        if result.status == "finished":
            frozen = study.tell(trial, score)
        else:
            frozen = study.tell(trial, state=states.PRUNED if result.status == "pruned" else states.FAIL)
        return _described(frozen)

    def _interrupt(self, study: optuna.Study, trial: optuna.Trial) -> None:
        """End a trial so that it is repeated. It does not count as killed."""
        trial.set_user_attr("interrupted", True)
        study.tell(trial, state=self._optuna.trial.TrialState.FAIL)

    def _ask(self, study: optuna.Study, index: int) -> optuna.Trial:
        """The configuration of trial ``index``: the defaults first, and an interrupted one again."""
        waiting = _in_state(study, self._optuna.trial.TrialState.WAITING)
        stopped = [t for t in study.get_trials(deepcopy=False) if t.user_attrs.get("index") == index]
        if not waiting and stopped:  # another version of Optuna might draw something else
            study.enqueue_trial(stopped[-1].params)
        elif not waiting and index == 0:
            study.enqueue_trial({name: self.choices.defaults[name] for name in self.choices.values})
        # What a sampler draws must not depend on how often the search was stopped.
        seed = int(np.random.SeedSequence([self.search.seed, index]).generate_state(1)[0])
        study.sampler = self._optuna.samplers.TPESampler(seed=seed)
        categorical = self._optuna.distributions.CategoricalDistribution
        return study.ask({name: categorical(values) for name, values in self.choices.values.items()})

    def _run_config(self, settings: Sequence[str], seed: int) -> RunConfig:
        search = self.search
        hyperparameters, policy_kwargs = parse_settings(settings, agent_class(search.agent))
        return RunConfig(
            environment=search.environment,
            agent=search.agent,
            seed=seed,
            episodes=search.episodes,
            hyperparameters=hyperparameters,
            policy_kwargs=policy_kwargs,
        )


def _url(file: Path) -> str:
    """The URL of a file, for SQLAlchemy.

    :raises RunError: for a path that it cannot name
    """
    if "?" in str(file):
        raise RunError(f"the path {file} has a question mark, which Optuna cannot deal with: choose another --out")
    return f"sqlite:///{file}".replace("{", "{{").replace("}", "}}")  # Optuna fills in templates


def _in_state(study: optuna.Study, state: optuna.trial.TrialState) -> list[optuna.trial.FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(state,))


def _ended(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Trials with a result, which may be an error. Interrupted ones are repeated, and do not count."""
    found = study.get_trials(deepcopy=False)
    return [t for t in found if t.state.is_finished() and (t.state.name != "FAIL" or "error" in t.user_attrs)]


def _check_sound(study: optuna.Study) -> None:
    """Read everything that a search needs: a damaged database raises here, not an hour later."""
    goal, asked = study.user_attrs.get("goal", (0, 0))
    if not isinstance(goal, int) or not isinstance(asked, int):
        raise TypeError(f"the goal is {goal!r} trials, of which {asked!r} were asked for")
    if not isinstance(study.user_attrs.get("plan", {}), dict):
        raise TypeError(f"the plan is {study.user_attrs['plan']!r}")
    for trial in _ended(study):
        described = _described(trial)
        "".join(described.settings)
        sum(map(math.fsum, trial.user_attrs["returns"]))


def _described(trial: optuna.trial.FrozenTrial) -> Trial:
    attributes = trial.user_attrs
    return Trial(
        attributes["index"] + 1,
        {"COMPLETE": "finished", "PRUNED": "pruned"}.get(trial.state.name, "failed"),
        attributes["settings"],
        sum(len(returns) for returns in attributes["returns"]),
        trial.value if trial.state.name == "COMPLETE" else None,
        attributes.get("error", ""),
    )
