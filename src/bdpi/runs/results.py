"""The runs of a study, read back for reports, and archives of them.

A run of a study has, in its configuration, an entry ``study`` that says where it belongs: the study's name, the row and
the environment (together: a panel of its figure) and the series (a curve of that panel).
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bdpi.runs.build import is_peer
from bdpi.runs.config import Place, RunConfig, RunRecord, RunStatus, State
from bdpi.runs.episodes import check_number, read_returns
from bdpi.runs.errors import RunError, named, one_line
from bdpi.runs.folder import RunFolder, locked
from bdpi.storage.atomic import make_folder, write_atomically
from bdpi.storage.reading import Damaged, most_unpacked, read_arrays, read_bytes, read_gzip, read_json

INDEX = "study.json"  #: in the folder of a study: which run belongs where
_EPISODES, _RUNS, _ENTROPIES = "episodes.csv.gz", "runs.json", "entropies.npz"
MOST_RUNS = 50_000  #: of a study
_MOST_SHARING = 20  # series of a study that show one run
_LONGEST_ERROR, _LARGEST_ERROR = 200, 1 << 20  # characters that are shown, bytes of a file
_UNPACKED = 10  # how many times its size an archive of episodes may hold
_KINDS = ("train", "test")  # of episodes
_NO_EPISODES: tuple[array[float], array[int]] = array("d"), array("q")
_LARGEST_BLOCK = 10_000  # steps that entropies may be averages of
#: Of a configuration.
_SETTINGS: tuple[str, ...] = (
    "agent",
    "hyperparameters",
    "policy_kwargs",
    "off_policy_noise",
    "remember_tests",
    "action_bits",
    "env_kwargs",
)
_SETTINGS += ("wrappers",)
_ENTROPY_BLOCK = 100  # steps that an archive averages over


@dataclass(frozen=True)
class StoredRun:
    """One run, as far as it has come.

    :param place: where it belongs
    :param record: its configuration and status
    :param returns: return of each training episode
    :param lengths: steps of each
    :param test_returns: of the noise-free test episodes of runs with off-policy noise; ``None`` for other runs. Where
        there are any, they are what the paper shows.
    :param entropies: entropy of the policy (bits) at each step, where it was recorded
    :param path: its folder; ``None`` where it was read from an archive
    :param error: why it failed, in a line
    """

    place: Place
    record: RunRecord
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    test_returns: NDArray[np.float64] | None = None
    entropies: NDArray[np.float32] | None = None
    path: Path | None = None
    error: str = ""

    @property
    def config(self) -> RunConfig:
        """What was run."""
        assert isinstance(self.record.config, RunConfig)
        return self.record.config

    @property
    def status(self) -> State:
        """``"finished"``, ``"interrupted"``, ``"failed"`` or ``"running"``."""
        return self.record.status.state

    @property
    def shown_returns(self) -> NDArray[np.float64]:
        """What belongs into a figure: test episodes where there are any."""
        return self.returns if self.test_returns is None else self.test_returns

    @property
    def length(self) -> int:
        """How many episodes have ended; how many steps these took, if the run is as long as so many steps."""
        return len(self.returns) if self.config.steps is None else int(self.lengths.sum())

    @property
    def counts(self) -> bool:
        """Whether it belongs into an average: not if it failed on the way. One with all its episodes that could not be
        saved, because its critics had diverged, does: leaving it out would flatter the others."""
        return len(self.shown_returns) > 0 and (self.status != "failed" or self.length >= self.config.length)


def write_index(
    root: Path,
    title: str,
    folders: Iterable[tuple[Place, Path]],
    note: Callable[[str], object] = lambda text: None,
) -> None:
    """Remember which run belongs where; what was known already stays known.

    :param note: gets a line when the index was damaged, or is missing. Then, what is known already is what the runs say
        themselves.
    """
    make_folder(root)
    with locked(root):  # another study may begin at the same moment
        try:
            pairs = [*_read_index(root)[1], *folders]
        except RunError as error:
            found = _find_runs(root)
            pairs = [*folders, *found]
            note(f"{error}, with the {len(found)} runs that were found in {root}")
        known = {tuple(vars(place).values()): path for place, path in pairs}
        entries = [[*place, str(path.relative_to(root))] for place, path in known.items()]
        text = json.dumps({"title": title, "runs": entries}, ensure_ascii=False, indent=0)
        write_atomically(root / INDEX, text)


def _read_index(root: Path) -> tuple[str, list[tuple[Place, Path]]]:
    try:
        index = read_json(root / INDEX)
        if len(index["runs"]) > MOST_RUNS:
            raise ValueError(f"it has more than {MOST_RUNS} runs")
        pairs = [(Place(*entry[:5]), _inside(root, entry[5])) for entry in index["runs"]]
        folder, n = max(Counter(path for _, path in pairs).items(), key=lambda each: each[1], default=(root, 0))
        if n > _MOST_SHARING:
            raise ValueError(f"{n} of its series show the run in {folder.name}, more than {_MOST_SHARING}")
        return str(index["title"]), pairs
    except FileNotFoundError:
        if not _find_runs(root):
            return "", []
        raise RunError(f"{root / INDEX} is missing; bdpi study writes it again") from None
    except (ValueError, TypeError, KeyError, IndexError, OSError) as error:
        raise RunError(f"{root / INDEX} is damaged: {named(error)}; bdpi study writes it again") from None


def _inside(root: Path, name: str) -> Path:
    """:raises ValueError: for the folder of a run that is not in that of its study"""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} is outside the study")
    return root / path


def _find_runs(root: Path) -> list[tuple[Place, Path]]:
    """The runs below a folder that can say where they belong: not far below, for it may be any folder."""
    found = []
    for file in sorted(file for depth in (1, 2, 3) for file in root.glob("*/" * depth + "config.json")):
        if file.parent.name.startswith("."):  # an attempt at a run that is there
            continue
        with contextlib.suppress(RunError):
            place = RunFolder(file.parent).read().status.study
            if place is not None:
                found.append((place, file.parent))
    return found


def read_runs(root: Path) -> tuple[str, list[StoredRun], list[str]]:
    """A study's title, its runs, and what is wrong with those that cannot be read.

    :param root: the folder of a study, or an archive of one; or that of a run
    :raises RunError: when it is none of them
    """
    if (root / _RUNS).exists():
        return _read_archive(root)
    if (RunFolder(root).config).exists():
        return _read_alone(root)
    runs, problems = [], []
    try:
        title, folders = _read_index(root)
    except RunError as error:
        title, folders = "", _find_runs(root)
        problems.append(f"{error}; until then, the {len(folders)} runs below {root} say themselves where they belong")
    if not (root / INDEX).exists() and {place.study for place, _ in folders} != {root.absolute().name}:
        raise RunError(f"{root} is not the folder of a study or a run: it has neither {INDEX} nor config.json")
    for place, path in folders:
        try:
            run = read_run(place, path)
        except RunError as error:
            problems.append(f"left out: {error}; remove {path}, and bdpi study repeats the run")
            continue
        if run is not None:
            runs.append(run)
    return title, runs, problems


def _read_alone(root: Path) -> tuple[str, list[StoredRun], list[str]]:
    """One run, wherever it belongs."""
    config, status = RunFolder(root).read_run()
    alone = Place("", "run", config.environment, config.agent, config.seed)
    run = read_run(status.study or alone, root)
    return f"{config.agent} on {config.environment}, seed {config.seed}", [] if run is None else [run], []


def read_run(place: Place, path: Path) -> StoredRun | None:
    """One run; None if it has not begun.

    :raises RunError: when its folder is damaged
    """
    folder = RunFolder(path).whole()
    if path.is_file():
        raise RunError(f"{path} is a file, and not the folder of a run")
    if not folder.config.exists():
        if folder.present:
            raise RunError(f"{path} has {', '.join(folder.present)}, but no config.json")
        return None
    config, status = folder.read_run()
    returns, lengths = read_episodes(folder, status)
    return StoredRun(
        place,
        RunRecord(config, status),
        returns,
        lengths,
        None if config.off_policy_noise is None else read_tests(folder, status),
        _entropies(folder.entropy) if folder.entropy.exists() else None,
        path,
        _why(folder) if status.state == "failed" else "",
    )


def _entropies(path: Path) -> NDArray[np.float32]:
    try:
        content = read_bytes(path)
    except (Damaged, OSError) as error:
        raise RunError(f"{path} is damaged: {error}") from None
    return np.frombuffer(content[: len(content) // 4 * 4], np.float32)


def _why(folder: RunFolder) -> str:
    """The end of a traceback: what was raised."""
    try:
        text = read_bytes(folder.error, _LARGEST_ERROR).decode(errors="replace").strip()
    except (Damaged, OSError):  # none
        return ""
    frames = [match.end() for match in re.finditer(r"^[ \t].*\n", text, re.MULTILINE)]
    return one_line(text[frames[-1] if frames else 0 :])[:_LONGEST_ERROR]


def read_episodes(folder: RunFolder, status: RunStatus) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns and lengths of the training episodes of a run; none of one that has just begun.

    :raises RunError: when ``monitor.csv`` is damaged, or does not have all that the run had when it was saved
    """
    if not status.episodes and not folder.monitor.exists():
        return np.zeros(0), np.zeros(0, np.int64)
    returns, lengths = read_returns(folder.monitor)
    check_number(folder.monitor, len(returns), status.episodes)
    return returns, lengths


def read_tests(folder: RunFolder, status: RunStatus) -> NDArray[np.float64]:
    """Returns of the test episodes of a run with noise.

    :raises RunError: when ``test.csv`` is damaged, or does not have all that the run had when it was saved
    """
    saved = status.test_episodes
    returns = read_returns(folder.test)[0] if saved or folder.test.exists() else np.zeros(0)
    check_number(folder.test, len(returns), saved)
    return returns


def write_archive(root: Path, title: str, runs: Sequence[StoredRun]) -> list[Path]:
    """The episodes of many runs in few small files, to be kept and committed; :func:`read_runs` reads them back.

    Entropies are averaged over blocks of steps.

    :raises RunError: when the folder cannot be made
    """
    try:
        make_folder(root)
    except OSError as error:
        raise RunError(f"--archive {root} cannot be used: {one_line(error)}; choose another folder") from None
    lines = ["run,kind,return,length\n"]
    for number, run in enumerate(runs):
        episodes = zip(run.returns.tolist(), run.lengths.tolist(), strict=True)
        lines += [f"{number},train,{r:.10g},{n}\n" for r, n in episodes]
        if run.test_returns is not None:
            lines += [f"{number},test,{r:.10g},\n" for r in run.test_returns.tolist()]
    # Without a time stamp, the same runs give the same file. A higher level takes seven times as long for a tenth less.
    packed = gzip.compress("".join(lines).encode(), compresslevel=6, mtime=0)
    write_atomically(root / _EPISODES, packed)
    described = {
        "title": title,
        "entropy_block": _ENTROPY_BLOCK,
        "runs": [
            {"place": asdict(run.place), "status": run.status, "config": run.record.as_dict()}
            | ({"error": run.error} if run.error else {})
            for run in runs
        ],
    }
    write_atomically(root / _RUNS, json.dumps(described, ensure_ascii=False, indent=1) + "\n")
    blocks = {
        str(number): run.entropies[: len(run.entropies) // _ENTROPY_BLOCK * _ENTROPY_BLOCK]
        .reshape(-1, _ENTROPY_BLOCK)
        .mean(axis=1)
        .astype(np.float16)
        for number, run in enumerate(runs)
        if run.entropies is not None
    }
    written = [root / _EPISODES, root / _RUNS]
    if blocks:
        write_atomically(root / _ENTROPIES, lambda file: np.savez_compressed(file, **blocks))  # type: ignore[arg-type]
        written.append(root / _ENTROPIES)
    return written


def with_archived(runs: Sequence[StoredRun], archive: Path) -> list[StoredRun]:
    """Runs, and those that only an archive has, or has more episodes of: what was archived is not lost.

    :param archive: need not exist
    :raises RunError: when it is damaged, or has a run with other settings in the place of one of these
    """
    known = {run.place: run for run in _read_archive(archive)[1]} if (archive / _RUNS).exists() else {}
    for run in runs:
        before = known.setdefault(run.place, run)
        pairs = ((name, getattr(before.config, name), getattr(run.config, name)) for name in _SETTINGS)
        different = next((f"{name}: {old!r}, not {new!r}" for name, old, new in pairs if old != new), None)
        if different is not None:
            raise RunError(
                f"the archive {archive} has {run.place.series} on {run.place.environment}, seed {run.place.seed}, with "
                f"another {different}; choose another folder, or remove it"
            )
        if _worth(run) >= _worth(before):
            known[run.place] = run
    _check_learning(known.values(), archive)
    return list(known.values())


def _check_learning(runs: Iterable[StoredRun], archive: Path) -> None:
    """:raises RunError: when runs of one series were made by code that learns differently; peers do not learn by it"""
    first: dict[Place, set[str]] = {}
    for run in runs:
        learned_by, series = run.record.status.learned_by, replace(run.place, seed=0)
        if not is_peer(run.config.agent) and first.setdefault(series, learned_by) != learned_by:
            both = " and ".join(sorted({name or "unknown" for name in first[series] | learned_by}))
            raise RunError(
                f"runs of {run.place.series} on {run.place.environment} were made by code that learns differently "
                f"(fingerprints {both}): choose another folder than {archive}, or remove it"
            )


def _worth(run: StoredRun) -> tuple[bool, int]:
    return run.counts, run.length


def _read_archive(root: Path) -> tuple[str, list[StoredRun], list[str]]:
    try:
        described = read_json(root / _RUNS)
        by_run = _read_episodes(root / _EPISODES, len(described["runs"]))
        blocks, block = {}, described["entropy_block"]
        if (root / _ENTROPIES).exists():
            packed = read_bytes(root / _ENTROPIES)
            blocks = read_arrays(io.BytesIO(packed))
            if type(block) is not int or not 0 < block <= _LARGEST_BLOCK:
                raise ValueError(f"entropy_block is {block!r:.80}")
            if 4 * block * sum(each.size for each in blocks.values()) > most_unpacked(len(packed)):
                raise ValueError("it has more entropies than it can hold")
        runs, problems = [], []
        for number, run in enumerate(described["runs"]):
            train, test = (by_run.get((str(number), kind), _NO_EPISODES) for kind in _KINDS)
            entropies = blocks.get(str(number))
            place = Place(**run["place"])
            record = RunRecord.parse(run["config"], f"{place} in the archive {root}")
            if not isinstance(record.config, RunConfig):
                raise ValueError(f"{place} learned from a journal, without episodes")
            noisy = record.config.off_policy_noise is not None
            if noisy and len(test[0]) < record.status.test_episodes:
                problems.append(f"left out: {place} in the archive {root} lacks test episodes: archive it again")
                continue
            runs.append(
                StoredRun(
                    place,
                    record,
                    np.array(train[0], np.float64),
                    np.array(train[1], np.int64),
                    np.array(test[0], np.float64) if noisy else None,
                    None if entropies is None else np.repeat(entropies.astype(np.float32).reshape(-1), block),
                    error=str(run.get("error", ""))[:_LONGEST_ERROR],
                )
            )
        return str(described["title"]), runs, problems
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, csv.Error) as error:
        raise RunError(f"the archive {root} is damaged: {one_line(named(error))}") from None


def _read_episodes(path: Path, n_runs: int) -> dict[tuple[str, str], tuple[array[float], array[int]]]:
    """Returns and lengths, by the number and the kind of the run."""
    lines = io.TextIOWrapper(io.BytesIO(read_gzip(path, _UNPACKED)), "utf-8", newline="")  # text in pieces
    found: dict[tuple[str, str], tuple[array[float], array[int]]] = {}
    for number, kind, episode_return, length in itertools.islice(csv.reader(lines), 1, None):
        if (number, kind) not in found:
            if kind not in _KINDS or not number.isdecimal() or str(int(number)) != number or int(number) >= n_runs:
                raise ValueError(f"it has episodes of run {number[:20]!r}, {kind[:20]!r}, and {n_runs} runs")
            found[number, kind] = array("d"), array("q")
        returns, lengths = found[number, kind]
        returns.append(float(episode_return))
        lengths.append(int(length or 0))
    return found
