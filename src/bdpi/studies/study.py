"""A study is a table; this module reads it and makes jobs of it."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from bdpi.runs.config import DEFAULT_EPISODES, Place, RunConfig
from bdpi.runs.errors import RunError, named, one_line
from bdpi.runs.folder import refuse_outside
from bdpi.runs.job import Job
from bdpi.runs.results import MOST_RUNS
from bdpi.runs.settings import POLICY_SETTINGS
from bdpi.storage.reading import Damaged, read_bytes
from bdpi.studies.settings import check_settings
from bdpi.studies.space import Space
from bdpi.studies.tables import mapping, only_known, read_yaml, whole

_LARGEST = 256 << 10  # bytes of a YAML file, which takes some seconds to read then
_MOST_LINKS = 20  # from a series that is the same as another to the one that has runs
_SPACE = ("space", "at_most", "same")
_ID = re.compile(r":|-v\d+$")  # what only Gymnasium ids have
_LENGTH = ("episodes", "steps")
_AROUND = ("env_kwargs", "wrappers")
_PLAN = ("off_policy_noise", "remember_tests", "action_bits", "record_entropy", "n_envs", *_AROUND)
_SETTINGS = ("agent", "set", *_SPACE, *_PLAN, *_LENGTH, "in", "same_as")


@dataclass(frozen=True)
class Series:
    """One curve of one panel. Its runs have so many episodes, or steps; one of the two is None.

    :param same_as: row and series whose runs are shown, instead of runs of its own
    :param space: run k has configuration k of this space, instead of only another seed
    """

    row: str
    environment: str
    name: str
    agent: str = "bdpi"
    episodes: int | None = DEFAULT_EPISODES
    steps: int | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    same_as: tuple[str, str] | None = None
    space: Space | None = None


@dataclass(frozen=True)
class Study:
    """A table of runs.

    :param seeds: runs of each series; where series have spaces, how many configurations are drawn
    :param short_names: of the environments, for the command line
    :param first_seed: of each series; the others follow it
    """

    name: str
    title: str
    seeds: int
    series: tuple[Series, ...]
    short_names: dict[str, str] = field(default_factory=dict)
    first_seed: int = 0

    def __post_init__(self) -> None:
        taken: dict[tuple[str, ...], Series] = {}
        for series in self.series:
            for what, name in (("row", series.row), ("series", series.name), ("environment", series.environment)):
                if not name.strip("."):
                    raise RunError(f"the study {self.name} has a {what} {name!r}, which no folder can have as its name")
            if series.same_as is None:
                # In small letters: some file systems do not tell them from capitals.
                parts = tuple(_folder(part).lower() for part in (series.row, series.environment, series.name))
                other = taken.setdefault(parts, series)
                if other is not series:
                    both = " and ".join(f"{each.row}/{each.name} on {each.environment}" for each in (other, series))
                    raise RunError(
                        f"{both} of the study {self.name} would have their runs in the same folder, {'/'.join(parts)}: "
                        "give one of them another name"
                    )

    @property
    def _seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

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
        steps: int | None = None,
        first_seed: int = 0,
    ) -> Study:
        """A part of the study, with as many runs and episodes as one likes.

        :param environments: short names or ids; all if empty. A study that draws configurations goes anywhere: ids
            that it does not have get what its first environment has.
        :param rows: all if empty
        :param only: names of series; all if empty
        :param seeds: so many
        :param configs: so many, in a study that draws configurations
        :param episodes: of each run, instead of what its series or environment has
        :param steps: of each run, instead of episodes
        :param first_seed: of each series; of a study that draws configurations, the first one's number
        """
        if self.draws and seeds is not None:
            raise RunError(f"each run of {self.name} has another configuration: give --configs {seeds}, not --seeds")
        if not self.draws and configs is not None:
            raise RunError(f"the study {self.name} draws no configurations: give --seeds {configs}, not --configs")
        if self.draws:
            new = [name for name in dict.fromkeys(environments) if _ID.search(name) and not self._has(name)]
            if new:
                return self._elsewhere(new).smaller(
                    environments=environments,
                    rows=rows,
                    only=only,
                    configs=configs,
                    episodes=episodes,
                    steps=steps,
                    first_seed=first_seed,
                )
        ids = {
            _find(name, self.short_names | {i: i for i in self.short_names.values()}, "environment")
            for name in environments
        }
        rows = tuple(_find(name, {s.row: s.row for s in self.series}, "row") for name in rows)
        only = tuple(_find(name, {s.name: s.name for s in self.series}, "series") for name in only)
        given = {"episodes": episodes, "steps": steps}
        chosen = [
            replace(s, **_length({f"this part of {self.name}": given, s.name: vars(s)}))
            for s in self.series
            if (not ids or s.environment in ids) and (not rows or s.row in rows) and (not only or s.name in only)
        ]
        if not chosen:
            raise RunError(f"nothing of the study {self.name} is left: those options exclude each other")
        n = seeds or configs or self.seeds
        return Study(self.name, self.title, n, tuple(chosen), self.short_names, first_seed)

    def _has(self, environment: str) -> bool:
        return environment in self.short_names.values()

    def _elsewhere(self, ids: list[str]) -> Study:
        first = next(iter(self.short_names.values()))
        copies = [replace(s, environment=name) for name in ids for s in self.series if s.environment == first]
        short_names = self.short_names | {name: name for name in ids}
        return Study(self.name, self.title, self.seeds, (*self.series, *copies), short_names)

    def jobs(self, root: Path) -> list[Job]:
        """One for each run, seed by seed, so that all curves are there early. Series that show others have none.

        :raises RunError: for an agent or a setting that does not exist, naming the series; for a link that leads out of
            the folder
        """
        refuse_outside(root, dict.fromkeys(path for _, path in self.folders(root)))
        for series in self.series:
            fixed = {name: (value,) for name, value in series.hyperparameters.items()}
            drawn = {} if series.space is None else series.space.all_values
            check_settings(series.agent, {**fixed, **drawn}, f"{series.row}/{series.name} of {self.name}")
        return [
            self._job(series, seed, place, root)
            for seed in self._seeds
            for series, place in self._places(seed)
            if series.same_as is None
        ] + [
            # what `same_as` names may have been left out of a smaller study
            job
            for seed in self._seeds
            for job in self._borrowed(root, seed)
        ]

    def folders(self, root: Path) -> list[tuple[Place, Path]]:
        """Where the runs of each place are: for series that show others, those of the others."""
        return [
            (place, _path(root, place if series.same_as is None else self._shown(place, series.same_as)))
            for seed in self._seeds
            for series, place in self._places(seed)
        ]

    def _places(self, seed: int) -> Iterator[tuple[Series, Place]]:
        for series in self.series:
            try:
                place = Place(self.name, series.row, series.environment, series.name, seed)
            except ValidationError as error:
                wrong = error.errors()[0]
                raise RunError(f"{self.name} has the name {wrong['input']!r}: {wrong['msg']}") from None
            yield series, place

    def _job(self, series: Series, seed: int, place: Place, root: Path) -> Job:
        drawn = None if series.space is None else series.space.draw(series.agent, seed)
        settings = series.hyperparameters | ({} if drawn is None else drawn.settings)
        policy = {k: v for k, v in settings.items() if k in POLICY_SETTINGS}
        rest = {k: v for k, v in settings.items() if k not in policy}
        config = RunConfig(
            environment=series.environment,
            agent=series.agent,
            seed=seed,
            episodes=series.episodes,
            steps=series.steps,
            hyperparameters=rest,
            policy_kwargs=policy,
            **series.others,
        )
        return Job(place, config, _path(root, place), None if drawn is None else drawn.indices)

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
    return root.joinpath(*map(_folder, parts))


def _folder(name: str) -> str:
    """A name without what file systems, shells and URLs may stumble over. Not every name has one of its own."""
    return re.sub(r"[^\w.+=-]+", "-", name)


def study_names() -> dict[str, str]:
    """The studies that come with the package, and their titles."""
    folder = files("bdpi.studies")
    found = sorted(file.name for file in folder.iterdir() if file.name.endswith(".yaml"))
    return {name.removesuffix(".yaml"): yaml.safe_load((folder / name).read_text("utf-8"))["title"] for name in found}


def load_protocol(name: str, protocol: str) -> Study:
    """A study of the paper, by its text or as the code that its authors published has it.

    :param protocol: "text" or "code"
    :raises RunError: when there is none
    """
    if protocol == "text" or name.endswith(f"-{protocol}"):
        return load_study(name)
    if (other := f"{name}-{protocol}") not in study_names():
        both = ", ".join(each.removesuffix(f"-{protocol}") for each in study_names() if each.endswith(f"-{protocol}"))
        raise RunError(f"the study {name} has no protocol {protocol!r}: {both or 'none'} has; leave --protocol out")
    return load_study(other)


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
            table = read_yaml(read_bytes(path, _LARGEST).decode(), name)
        elif name in study_names():
            table = read_yaml((files("bdpi.studies") / f"{name}.yaml").read_text("utf-8"), name)
        else:
            raise RunError(
                f"there is no study {name!r}: choose from {', '.join(study_names())}, or name a .yaml or .py file"
            )
    except OSError as error:
        raise RunError(f"{name} cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RunError(f"{name} is no YAML: {one_line(error)}") from None
    except Damaged as error:
        raise RunError(f"{name} is no study: {error}") from None
    except RunError:
        raise
    except (Exception, SystemExit) as error:  # a Python file may do anything
        raise RunError(f"{name} cannot be {'run' if path.suffix == '.py' else 'read'}: {named(error)}") from None
    return parse_study(_study_name(path) if path.suffix else name, table)


def _study_name(path: Path) -> str:
    """The name of the folder that its runs are kept in."""
    name = _folder(path.stem)
    if not name.strip("."):
        raise RunError(f"the study {path} cannot have a folder of that name: rename the file")
    return name


def parse_study(name: str, table: Any) -> Study:
    """:raises RunError: naming what is wrong and where"""
    table = mapping(table, f"the study {name}")
    only_known(table, ("title", "seeds", "configurations", "environments", "rows"), f"the study {name}")
    environments = {
        short: _environment({"id": entry} if isinstance(entry, str) else entry, f"environment {short} of {name}")
        for short, entry in _entries(table, "environments", name).items()
    }
    short_names = {short: str(entry["id"]) for short, entry in environments.items()}
    known: dict[str, str] = {}
    for short, environment in short_names.items():
        first = known.setdefault(environment, short)
        if first != short:
            raise RunError(f"environments {first} and {short} of {name} are both {environment}: leave one out")
    series: list[Series] = []
    for row, entries in _entries(table, "rows", name).items():
        entries = mapping(entries, f"row {row} of {name}")
        if not entries:
            raise RunError(f"row {row} of {name} is empty: give it a series, for example {{BDPI: {{agent: bdpi}}}}")
        for label, settings in entries.items():
            where = f"{row}/{label} of {name}"
            series += _series(row, label, environments, settings, where)
            _check_runs(len(series), name)
    by_name = {(one.row, one.name, one.environment): one for one in series}
    resolved = tuple(_resolved(one, by_name, name) for one in series)
    draws = {one.space is not None for one in resolved}
    if len(draws) > 1:
        raise RunError(f"some series of the study {name} have a space, others do not: make two studies of it")
    number, other = ("configurations", "seeds") if draws == {True} else ("seeds", "configurations")
    if other in table:
        raise RunError(f"the study {name} has {other!r}: it needs {number!r}, as its series have {_spaces(draws)}")
    seeds = whole(table.get(number, 8), f"{number} of the study {name}")
    _check_runs(seeds * len(resolved), name)
    return Study(name, str(table.get("title", name)), seeds, resolved, short_names)


def _check_runs(runs: int, study: str) -> None:
    if runs > MOST_RUNS:
        raise RunError(f"the study {study} has more than {MOST_RUNS} runs: make several studies of it")


def _entries(table: Mapping[str, Any], key: str, name: str) -> dict[str, Any]:
    if key not in table:
        raise RunError(f"the study {name} has no {key!r}")
    entries = mapping(table[key], f"{key} of {name}")
    if not entries:
        raise RunError(f"{key} of {name} are empty: there is nothing to run")
    return entries


def _environment(entry: Any, what: str) -> dict[str, Any]:
    entry = mapping(entry, what)
    only_known(entry, ("id", *_LENGTH, *_AROUND), what)
    if "id" not in entry:
        raise RunError(f"{what}: give its Gymnasium id, for example {{id: CartPole-v1, episodes: 100}}")
    for name in _LENGTH:
        whole(entry.get(name, 1), f"{name} of {what}")
    for name in _AROUND:
        if name in entry:
            _check(name, entry[name], what)
    return entry


def _length(levels: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Episodes or steps of a run, by the first of these that says so."""
    for where, level in levels.items():
        episodes, steps = (level.get(name) for name in _LENGTH)
        if episodes and steps:
            raise RunError(f"{where} has episodes ({episodes}) and steps ({steps}): leave one of them out")
        if episodes or steps:
            return {"episodes": episodes, "steps": steps}
    return {"episodes": DEFAULT_EPISODES, "steps": None}


def _resolved(one: Series, series: Mapping[tuple[str, str, str], Series], study: str) -> Series:
    """A series that shows others, with what those are; any other one as it is."""
    origin, links = one, 0
    while origin.same_as is not None:
        found = series.get((*origin.same_as, one.environment)) if len(origin.same_as) == 2 else None
        if found is None:
            shown = "/".join(origin.same_as)
            raise RunError(f"{origin.row}/{origin.name} of {study} is the same as {shown}, which is not there")
        origin, links = found, links + 1
        if links > _MOST_LINKS:
            raise RunError(f"{one.row}/{one.name} of {study} shows itself by 'same_as': give it an agent instead")
    if origin is one:
        return one
    return replace(origin, row=one.row, name=one.name, same_as=(origin.row, origin.name))


def _spaces(draws: set[bool]) -> str:
    return "spaces" if draws == {True} else "no spaces"


def _series(row: str, label: str, environments: Mapping[str, Any], settings: Any, where: str) -> list[Series]:
    """A series in every environment."""
    settings = mapping(settings, where)
    only_known(settings, _SETTINGS, where)
    if "same_as" in settings and len(settings) > 1:
        others = ", ".join(repr(name) for name in settings if name != "same_as")
        raise RunError(f"{where} has 'same_as' and {others}: it shows other runs as they are, leave one of them out")
    inside = mapping(settings.pop("in", {}), f"'in' of {where}")
    only_known(inside, environments, f"'in' of {where}")
    return [
        _series_in(row, label, environment, settings, inside.get(short, {}), where, f"'in: {short}' of {where}")
        for short, environment in environments.items()
    ]


def _series_in(
    row: str, label: str, environment: Mapping[str, Any], settings: Mapping[str, Any], inside: Any, *where: str
) -> Series:
    inside = mapping(inside, where[1])
    only_known(inside, _SETTINGS[:-2], where[1])
    sets = [
        mapping(each.get("set", {}), f"'set' of {what}") for each, what in zip((settings, inside), where, strict=True)
    ]
    length = _length({where[1]: inside, where[0]: settings, f"environment {environment['id']}": environment})
    settings = {**settings, **inside}
    for name, value in settings.items():
        _check(name, value, where[1] if name in inside else where[0])
    rules = [name for name in _SPACE[1:] if name in settings and "space" not in settings]
    if rules:
        raise RunError(f"{where[0]} has {', '.join(map(repr, rules))} and no 'space' that they could be about")
    same_as = settings.get("same_as")
    values, at_most, same = (settings.get(name, {}) for name in _SPACE)
    return Series(
        row=row,
        environment=str(environment["id"]),
        name=label,
        agent=str(settings.get("agent", "bdpi")),
        **length,
        hyperparameters={**sets[0], **sets[1]},
        others=_others(environment, settings),
        same_as=None if same_as is None else tuple(str(same_as).split("/", 1)),  # type: ignore[arg-type]
        space=Space.parse(values, at_most, same, where[0]) if "space" in settings else None,
    )


def _others(environment: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of runs beside hyper-parameters; an environment's own wrappers are inside those of a series."""
    others = {key: settings[key] for key in _PLAN if key in settings}
    kwargs = {**environment.get("env_kwargs", {}), **others.get("env_kwargs", {})}
    wrappers = [*environment.get("wrappers", ()), *others.get("wrappers", ())]
    return {**others, **({"env_kwargs": kwargs} if kwargs else {}), **({"wrappers": wrappers} if wrappers else {})}


def _check(name: str, value: Any, where: str) -> None:
    """Of what kind a value has to be."""
    if name == "env_kwargs":
        mapping(value, f"env_kwargs of {where}")
    if name == "wrappers" and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise RunError(f"wrappers of {where} must be a list of classes, [module:Class], not {value!r}")
    if name in (*_LENGTH, "action_bits", "n_envs"):
        whole(value, f"{name} of {where}")
    if name in ("record_entropy", "remember_tests") and not isinstance(value, bool):
        raise RunError(f"{name} of {where} must be true or false, not {value!r}")
    if name == "off_policy_noise" and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise RunError(f"off_policy_noise of {where} must be a probability, from 0 to 1, not {value!r}")


def _find(name: str, known: Mapping[str, str], what: str) -> str:
    lower = {key.lower(): value for key, value in known.items()}
    if name.lower() not in lower:
        raise RunError(f"the study has no {what} {name!r}: it has {', '.join(known)}")
    return lower[name.lower()]
