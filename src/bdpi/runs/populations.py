"""A population that learned in Python becomes runs, which ``bdpi report`` draws and ``bdpi play`` shows."""

from __future__ import annotations

import platform
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdpi.runs.config import Place, RunConfig, RunRecord, RunStatus
from bdpi.runs.episodes import Episode, Episodes, append_to_monitor, summarize
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder
from bdpi.runs.results import write_index
from bdpi.runs.settings import settable
from bdpi.runs.versions import origin

if TYPE_CHECKING:
    from stable_baselines3.common.monitor import Monitor

    from bdpi.agents import Ensemble, Population

# Arguments that say where and how an agent works, not how it learns.
_NOT_SETTINGS = {
    "autosave",
    "autosave_minutes",
    "device",
    "journal",
    "n_threads",
    "stats_window_size",
    "tensorboard_log",
}


def store_population(population: Population, folder: str | Path, environment: str = "", title: str = "") -> list[Path]:
    """Write each agent as a run, with its episodes, and the folder as a study.

    >>> import bdpi
    >>> from bdpi.runs.populations import store_population
    >>> several = bdpi.Population(bdpi.BDPI, "CartPole-v1", n=4, device="cpu")
    >>> store_population(several.learn(5_000), "runs/mine")  # doctest: +SKIP

    ``bdpi report runs/mine`` then draws them, a curve for each configuration.

    :param folder: of these runs alone
    :param environment: its id, for populations that were made with a function
    :param title: of the report; the folder's name if empty
    :return: the folders of the runs
    :raises RunError: for a folder that holds runs already; nothing is written then
    """
    from bdpi.agents.population import monitor_of

    root = Path(folder)
    names = [_name(agent) for agent in population.agents]
    monitors = [monitor_of(agent) for agent in population.agents]
    environments = [environment or _id(monitor) for monitor in monitors]
    runs = [RunFolder(root / f"agent-{number}") for number in range(len(names))]
    for run in runs:
        run.refuse_if_taken()
    places = [
        Place(root.absolute().name, "population", where, series, int(agent.seed or 0))
        for where, series, agent in zip(environments, _series(population), population.agents, strict=True)
    ]
    for run, name, agent, monitor, place in zip(runs, names, population.agents, monitors, places, strict=True):
        run.make()
        steps = monitor.get_total_steps()  # an agent that was loaded has made others before
        defaults = {argument: each.default for argument, each in settable(type(agent)).items()}
        episodes = _write_episodes(run, place.environment, monitor)
        agent.save(run.agent)
        config = RunConfig(
            environment=place.environment,
            agent=name,
            seed=place.seed,
            episodes=None,
            steps=max(1, steps),
            hyperparameters={key: value for key, value in _settings(agent).items() if value != defaults[key]},
            policy_kwargs=dict(agent.policy_kwargs),
        )
        status = RunStatus(
            status="finished",
            result=summarize(episodes, steps, episodes.seconds[-1] if len(episodes) else 0.0),
            policy=type(agent.policy).__name__,
            learner=agent.learner_name,
            versions=origin(),
            platform=platform.platform(),
            study=place,
        )
        run.write(RunRecord(config, status))
    write_index(root, title or root.absolute().name, zip(places, (run.path.absolute() for run in runs), strict=True))
    return [run.path for run in runs]


def _name(agent: Ensemble) -> str:
    """As ``bdpi train`` calls it."""
    from bdpi.agents import AGENTS

    for name, known in AGENTS.items():
        if type(agent) is known:
            return name
    raise RunError(f"{type(agent).__name__} is no agent of this package ({', '.join(AGENTS)}), bdpi could not load it")


def _settings(agent: Ensemble) -> dict[str, Any]:
    """Its hyper-parameters, by the names of its arguments, wherever it has them from; of schedules their names."""
    from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

    kept = {name: getattr(agent, name) for name in settable(type(agent)) if hasattr(agent, name)}
    frequency = agent.train_freq
    if isinstance(frequency, TrainFreq):
        steps = frequency.unit == TrainFrequencyUnit.STEP
        kept["train_freq"] = frequency.frequency if steps else (frequency.frequency, frequency.unit.value)
    kept["learner"] = agent.learner_choice
    return {
        name: getattr(value, "__qualname__", str(value)) if callable(value) else value
        for name, value in kept.items()
        if name not in _NOT_SETTINGS
    }


def _id(monitor: Monitor[Any, Any]) -> str:
    if monitor.spec is None:
        raise RunError("the environment of this population has no id: say what to call it, environment='MyEnv-v0'")
    return monitor.spec.id


def _series(population: Population) -> list[str]:
    """Names of the curves: agents that differ in the seed only have one in common."""
    every = [{**_settings(agent), **agent.policy_kwargs} for agent in population.agents]
    differing = [
        name for name in dict.fromkeys(chain(*every)) if any(each.get(name) != every[0].get(name) for each in every)
    ]
    names = []
    for agent, mine in zip(population.agents, every, strict=True):
        settings = ", ".join(f"{name}={mine[name]}" for name in differing if name in mine)
        names.append(settings or type(agent).__name__)
    often = Counter(zip(names, (agent.seed for agent in population.agents), strict=True))
    return [
        name if often[name, agent.seed] == 1 else f"{name}, agent {number}"
        for number, (name, agent) in enumerate(zip(names, population.agents, strict=True))
    ]


def _write_episodes(run: RunFolder, environment: str, monitor: Monitor[Any, Any]) -> Episodes:
    episodes = Episodes()
    columns = monitor.get_episode_rewards(), monitor.get_episode_lengths(), monitor.get_episode_times()
    for episode in map(Episode, *columns):
        append_to_monitor(run.monitor, environment, monitor.t_start, episode)
        episodes.add(episode.episode_return, episode.length, episode.seconds)
    return episodes
