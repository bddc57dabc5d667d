"""A study is a table; this module reads it and makes jobs of it."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from bdpi.runs.errors import RunError, named, one_line
from bdpi.runs.job import Job
from bdpi.runs.plan import Plan
from bdpi.runs.store import Place
from bdpi.studies.space import Space

_SPACE = ("space", "at_most", "same")
_SETTINGS = ("agent", "set", *_SPACE, "off_policy_noise", "action_bits", "record_entropy", "episodes", "in", "same_as")
_ID = re.compile(r":|-v\d+$")  # what only Gymnasium ids have
_PLAN = ("off_policy_noise", "action_bits", "record_entropy")


@dataclass(frozen=True)
class Series:
    """One curve of one panel.

    :param same_as: row and series whose runs are shown, instead of runs of its own
    :param space: run k has configuration k of this space, instead of only another seed
    """

    row: str
    environment: str
    name: str
    agent: str = "bdpi"
    episodes: int = 300
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    same_as: tuple[str, str] | None = None
    space: Space | None = None


@dataclass(frozen=True)
class Study:
    """A table of runs.

    :param seeds: runs of each series; where series have spaces, how many configurations are drawn
    :param short_names: of the environments, for the command line
    """

    name: str
    title: str
    seeds: int
    series: tuple[Series, ...]
    short_names: dict[str, str] = field(default_factory=dict)

    @property
    def draws(self) -> bool:
        """Whether runs of a series differ in their configuration."""
        return any(series.space is not None for series in self.series)

    def smaller(
        self,
        *,
        environments: tuple[str, ...] = (),
        rows: tuple[str, ...] = (),
        only: tuple[str, ...] = (),
        seeds: int | None = None,
        configs: int | None = None,
        episodes: int | None = None,
    ) -> Study:
        """A part of the study, with as many runs and episodes as one likes.

        :param environments: short names or ids; all if empty. A study that draws configurations goes anywhere: ids
            that it does not have get what its first environment has.
        :param rows: all if empty
        :param only: names of series; all if empty
        :param seeds: so many
        :param configs: so many, in a study that draws configurations
        :param episodes: of each run, instead of what its series or environment has
        """
        if self.draws and seeds is not None:
            raise RunError(f"each run of {self.name} has another configuration: give --configs {seeds}, not --seeds")
        if not self.draws and configs is not None:
            raise RunError(f"the study {self.name} draws no configurations: give --seeds {configs}, not --configs")
        if self.draws:
            new = [name for name in environments if _ID.search(name) and name not in self.short_names.values()]
            if new:
                return self._elsewhere(new).smaller(
                    environments=environments, rows=rows, only=only, configs=configs, episodes=episodes
                )
        ids = {
            _find(name, self.short_names | {i: i for i in self.short_names.values()}, "environment")
            for name in environments
        }
        rows = tuple(_find(name, {s.row: s.row for s in self.series}, "row") for name in rows)
        only = tuple(_find(name, {s.name: s.name for s in self.series}, "series") for name in only)
        chosen = [
            Series(**{**vars(s), "episodes": episodes or s.episodes})
            for s in self.series
            if (not ids or s.environment in ids) and (not rows or s.row in rows) and (not only or s.name in only)
        ]
        if not chosen:
            raise RunError(f"nothing of the study {self.name} is left: those options exclude each other")
        return Study(self.name, self.title, seeds or configs or self.seeds, tuple(chosen), self.short_names)

    def _elsewhere(self, ids: list[str]) -> Study:
        first = next(iter(self.short_names.values()))
        copies = [
            Series(**{**vars(s), "environment": name}) for name in ids for s in self.series if s.environment == first
        ]
        short_names = self.short_names | {name: name for name in ids}
        return Study(self.name, self.title, self.seeds, (*self.series, *copies), short_names)

    def jobs(self, root: Path) -> list[Job]:
        """One for each run, seed by seed, so that all curves are there early. Series that show others have none."""
        return [
            self._job(series, seed, place, root)
            for seed in range(self.seeds)
            for series, place in self._places(seed)
            if series.same_as is None
        ] + [
            # what `same_as` names may have been left out of a smaller study
            job
            for seed in range(self.seeds)
            for job in self._borrowed(root, seed)
        ]

    def folders(self, root: Path) -> list[tuple[Place, Path]]:
        """Where the runs of each place are: for series that show others, those of the others."""
        return [
            (place, _path(root, place if series.same_as is None else self._shown(place, series.same_as)))
            for seed in range(self.seeds)
            for series, place in self._places(seed)
        ]

    def _places(self, seed: int) -> Iterator[tuple[Series, Place]]:
        for series in self.series:
            yield series, Place(self.name, series.row, series.environment, series.name, seed)

    def _job(self, series: Series, seed: int, place: Place, root: Path) -> Job:
        drawn = None if series.space is None else series.space.draw(series.agent, seed)
        settings = series.hyperparameters | ({} if drawn is None else drawn.settings)
        policy = {k: v for k, v in settings.items() if k in ("net_arch", "activation_fn")}
        rest = {k: v for k, v in settings.items() if k not in policy}
        plan = Plan(series.environment, series.agent, seed, series.episodes, None, rest, policy, **series.others)
        return Job(place, plan, _path(root, place), None if drawn is None else drawn.indices)

    def _shown(self, place: Place, same_as: tuple[str, str]) -> Place:
        return Place(place.study, same_as[0], place.environment, same_as[1], place.seed)

    def _borrowed(self, root: Path, seed: int) -> Iterator[Job]:
        known = {place for _, place in self._places(seed)}
        for series, place in self._places(seed):
            shown = place if series.same_as is None else self._shown(place, series.same_as)
            if shown not in known:
                known.add(shown)  # several series may show the same runs
                yield self._job(series, seed, shown, root)


def _path(root: Path, place: Place) -> Path:
    """``runs/figure2/algorithms/FrozenLake8x8-v1/BDPI-seed0``."""
    parts = (place.study, place.row, place.environment, f"{place.series}-seed{place.seed}")
    return root.joinpath(*(re.sub(r"[^\w.+=-]+", "-", part) for part in parts))


def study_names() -> dict[str, str]:
    """The studies that come with the package, and their titles."""
    folder = files("bdpi.studies")
    found = sorted(file.name for file in folder.iterdir() if file.name.endswith(".yaml"))
    return {name.removesuffix(".yaml"): yaml.safe_load((folder / name).read_text("utf-8"))["title"] for name in found}


def load_study(name: str) -> Study:
    """A study by its name, or from a YAML or Python file.

    A Python file defines ``STUDY``, a dictionary as YAML would give it.

    :raises RunError: when there is none, or it makes no sense
    """
    path = Path(name)
    try:
        if path.suffix == ".py":
            table = runpy.run_path(name).get("STUDY")
        elif path.suffix in (".yaml", ".yml"):
            table = yaml.safe_load(path.read_text("utf-8"))
        elif name in study_names():
            table = yaml.safe_load((files("bdpi.studies") / f"{name}.yaml").read_text("utf-8"))
        else:
            raise RunError(
                f"there is no study {name!r}: choose from {', '.join(study_names())}, or name a .yaml or .py file"
            )
    except OSError as error:
        raise RunError(f"{name} cannot be read: {error.strerror or error}") from None
    except yaml.YAMLError as error:
        raise RunError(f"{name} is no YAML: {one_line(error)}") from None
    except RunError:
        raise
    except Exception as error:  # a Python file may do anything
        raise RunError(f"{name} cannot be run: {named(error)}") from None
    return parse_study(path.stem if path.suffix else name, table)


def parse_study(name: str, table: Any) -> Study:
    """:raises RunError: naming what is wrong and where"""
    table = _mapping(table, f"the study {name}")
    for key in ("environments", "rows"):
        if key not in table:
            raise RunError(f"the study {name} has no {key!r}")
    _only_known(table, ("title", "seeds", "configurations", "environments", "rows"), f"the study {name}")
    environments = {
        short: {"id": entry} if isinstance(entry, str) else _mapping(entry, f"environment {short} of {name}")
        for short, entry in _mapping(table["environments"], f"environments of {name}").items()
    }
    series = []
    for row, entries in _mapping(table["rows"], f"rows of {name}").items():
        for label, settings in _mapping(entries, f"row {row} of {name}").items():
            for short, environment in environments.items():
                where = f"{row}/{label} of {name}"
                series.append(_series(str(row), str(label), short, environment, settings, where))
    known = {(s.row, s.name): s for s in series}
    resolved = []
    for one in series:
        if one.same_as is not None:
            if one.same_as not in known:
                raise RunError(
                    f"{one.row}/{one.name} of {name} is the same as {'/'.join(one.same_as)}, which is not there"
                )
            origin = next(s for s in series if (s.row, s.name) == one.same_as and s.environment == one.environment)
            one = Series(**{**vars(origin), "row": one.row, "name": one.name, "same_as": one.same_as})
        resolved.append(one)
    draws = {one.space is not None for one in resolved}
    if len(draws) > 1:
        raise RunError(f"some series of the study {name} have a space, others do not: make two studies of it")
    number, other = ("configurations", "seeds") if draws == {True} else ("seeds", "configurations")
    if other in table:
        raise RunError(f"the study {name} has {other!r}: it needs {number!r}, as its series have {_spaces(draws)}")
    seeds = table.get(number, 8)
    if not isinstance(seeds, int) or seeds < 1:
        raise RunError(f"{number} of the study {name} must be a whole number from 1 on, not {seeds!r}")
    short_names = {short: str(entry["id"]) for short, entry in environments.items()}
    return Study(name, str(table.get("title", name)), seeds, tuple(resolved), short_names)


def _spaces(draws: set[bool]) -> str:
    return "spaces" if draws == {True} else "no spaces"


def _series(row: str, label: str, short: str, environment: Mapping[str, Any], settings: Any, where: str) -> Series:
    settings = dict(_mapping(settings, where))
    _only_known(settings, _SETTINGS, where)
    overrides = _mapping(settings.pop("in", {}), f"'in' of {where}").get(short, {})
    overrides = _mapping(overrides, f"'in: {short}' of {where}")
    _only_known(overrides, _SETTINGS[:-2], f"'in: {short}' of {where}")
    settings |= {**overrides, "set": {**settings.get("set", {}), **overrides.get("set", {})}}
    if "id" not in environment:
        raise RunError(f"environment {short}: give its Gymnasium id, for example {{id: CartPole-v1, episodes: 100}}")
    same_as = settings.get("same_as")
    rules = [name for name in _SPACE[1:] if name in settings and "space" not in settings]
    if rules:
        raise RunError(f"{where} has {', '.join(map(repr, rules))} and no 'space' that they could be about")
    values, at_most, same = (settings.get(name, {}) for name in _SPACE)
    return Series(
        row=row,
        environment=str(environment["id"]),
        name=label,
        agent=str(settings.get("agent", "bdpi")),
        episodes=settings.get("episodes", environment.get("episodes", 300)),
        hyperparameters=dict(settings["set"]),
        others={key: settings[key] for key in _PLAN if key in settings},
        same_as=None if same_as is None else tuple(str(same_as).split("/", 1)),  # type: ignore[arg-type]
        space=Space.parse(values, at_most, same, where) if "space" in settings else None,
    )


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RunError(f"{what} must be a table (names and values), not {value!r}")
    return value


def _only_known(table: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    unknown = [str(key) for key in table if key not in known]
    if unknown:
        raise RunError(f"{what} has the unknown {', '.join(map(repr, unknown))}: known are {', '.join(known)}")


def _find(name: str, known: Mapping[str, str], what: str) -> str:
    lower = {key.lower(): value for key, value in known.items()}
    if name.lower() not in lower:
        raise RunError(f"the study has no {what} {name!r}: it has {', '.join(known)}")
    return lower[name.lower()]
