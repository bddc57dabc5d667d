"""The kinds of files that a stranger may give, each with intact examples and with all that is done with them.

An example is a folder in one stored zip archive, whatever the kind: one form for mutations and for the corpus.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import random
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import bdpi.envs
from bdpi import BDPI, TabularBDPI
from bdpi.agents.files import class_of
from bdpi.agents.journal import Journal, JournalError, Transition
from bdpi.agents.journal_files import export_npz, export_parquet, import_npz, import_parquet
from bdpi.agents.journal_info import examine
from bdpi.envs.control_loop import ControlLoop
from bdpi.report.configurations import comparisons_of, is_drawn
from bdpi.report.page import make_page
from bdpi.report.panels import rows_of
from bdpi.report.robustness import Robustness
from bdpi.report.tables import TabledRow, markdown
from bdpi.report.write import write_report
from bdpi.runs.config import Place, RunConfig
from bdpi.runs.errors import RunError
from bdpi.runs.folder import RunFolder
from bdpi.runs.job import Job, execute
from bdpi.runs.peer_file import load_peer
from bdpi.runs.results import read_runs, write_archive, write_index
from bdpi.runs.train import prepare, prepare_resumption
from bdpi.serve.protocol import ActRequest, EpisodeRequest, Refused, StepRequest
from bdpi.serve.run import read_served, served
from bdpi.serve.task import RobotTask, read_task
from bdpi.studies.study import load_study

Files = dict[str, bytes]
SPACE = spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "mode": spaces.Discrete(3)})
ACTIONS = spaces.Discrete(4, start=1)
SMALL: dict[str, Any] = {"n_critics": 2, "fit_steps": 1, "batch_size": 4, "buffer_size": 64}
TINY = {"net_arch": [4]}
PARTS = ControlLoop(
    spaces.Box(-1, 1, (2,)), spaces.Dict({"gear": spaces.Discrete(3), "wheel": spaces.Box(-1, 1, (1,))})
)
MANY_STEPS = 2000  # of a journal that are read; what was fuzzed is short
DRAWN = 200  # of so many reports one is drawn, too, which takes a second


def packed(files: Files) -> bytes:
    """A folder as one file."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return stream.getvalue()


def unpacked(data: bytes) -> Files:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def files_of(folder: Path) -> Files:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    :param make: intact examples, in an empty folder; yields the folder of each
    :param use: all that is done with such a folder
    :param errors: that may come out of it, when the files are damaged
    """

    make: Callable[[Path], Iterator[Path]]
    use: Callable[[Path], object]
    errors: tuple[type[Exception], ...]

    def examples(self, folder: Path) -> list[bytes]:
        return [packed(files_of(each)) for each in self.make(folder)]


def _act(agent: Any) -> None:
    action, _ = agent.predict(agent.observation_space.sample())
    action = np.int64(action) if isinstance(agent.action_space, spaces.Discrete) else action
    assert agent.action_space.contains(action), action


# -- saved agents, replay memories, peers -----------------------------------------------------------------------


@cache
def _cart_pole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1")


def agent_of(**changes: Any) -> BDPI:
    return BDPI("MlpPolicy", _cart_pole(), seed=0, policy_kwargs=TINY, **{**SMALL, **changes})


def make_agents(folder: Path) -> Iterator[Path]:
    for number, buffer in enumerate((True, False)):
        agent_of().learn(10).save(folder / f"{number}" / "agent.zip", include_buffer=buffer)
        yield folder / f"{number}"
    agent = BDPI("MlpPolicy", PARTS, seed=0, policy_kwargs={**TINY, "action_bits": 2}, **SMALL)
    seen = PARTS.observation_space.sample()
    agent.observe(seen, {"gear": 1, "wheel": np.zeros(1, np.float32)}, 1.0, seen, False, False)
    agent.save(folder / "parts" / "agent.zip")
    yield folder / "parts"


def use_agent(folder: Path) -> None:
    if class_of(folder / "agent.zip") == "TabularBDPI":
        _act(TabularBDPI.load(folder / "agent.zip"))
        return
    agent = BDPI.load(folder / "agent.zip")
    _act(agent)
    several = not isinstance(agent.action_space, spaces.Discrete)
    agent = BDPI.load(folder / "agent.zip", env=PARTS if several else _cart_pole())
    agent.learn_once()
    _act(agent)


def make_replays(folder: Path) -> Iterator[Path]:
    agent_of().learn(20).save_replay_buffer(folder / "replay.npz")
    yield folder


def use_replay(folder: Path) -> None:
    """In a memory as ``settings.json`` says, where that is there."""
    settings = folder / "settings.json"
    agent = agent_of(**json.loads(settings.read_text())) if settings.exists() else agent_of()
    agent.load_replay_buffer(folder / "replay.npz")
    agent.learn_once()


def make_peers(folder: Path) -> Iterator[Path]:
    quick: dict[str, Any] = {"ppo": {"n_steps": 8, "batch_size": 4}, "dqn": {"buffer_size": 64, "learning_starts": 4}}
    for agent, settings in quick.items():
        config = RunConfig(
            environment="CartPole-v1", agent=agent, episodes=1, hyperparameters=settings, policy_kwargs=TINY
        )
        session = prepare(config, folder / agent)
        session.draws = False
        assert session.run().status == "finished"
        for file in set((folder / agent).iterdir()) - {folder / agent / name for name in ("config.json", "agent.zip")}:
            file.unlink()
        yield folder / agent


def use_peer(folder: Path) -> None:
    config = RunFolder(folder).read().config
    if config.agent not in ("ppo", "dqn"):
        return  # it would be read as another kind
    if not (folder / "agent.zip").is_file():
        return  # bdpi.runs.build.load_agent says so before
    _act(load_peer(config, folder / "agent.zip", _cart_pole()))


# -- journals and their exports -----------------------------------------------------------------------------------


def transitions(n: int) -> Iterator[Transition]:
    SPACE.seed(0)
    rng = random.Random(0)
    for number in range(n):
        mask = np.array([True, False, True, True]) if number % 4 else None
        ends = number % 7 == 6, number % 11 == 10
        seen = SPACE.sample(), SPACE.sample()
        yield Transition(seen[0], rng.randint(1, 4), rng.gauss(0, 1), seen[1], *ends, 0.5, mask, mask, number % 3)


def make_journals(folder: Path) -> Iterator[Path]:
    """One that was closed, and one whose program crashed: its last transitions are in the log."""
    for name in ("closed", "crashed"):
        path = folder / "made" / name / "robot.sqlite"
        path.parent.mkdir(parents=True)
        with Journal(path, SPACE, ACTIONS) as journal:
            for step in transitions(20):
                journal.append(step)
            shutil.copytree(path.parent, folder / "crashed", dirs_exist_ok=True)
        shutil.copytree(path.parent, folder / "closed", dirs_exist_ok=True)
    (folder / "crashed" / "robot.sqlite-shm").unlink()
    yield folder / "closed"
    yield folder / "crashed"


def _read(journal: Journal) -> None:
    assert len(journal) >= 0
    for step in itertools.islice(journal.steps(), MANY_STEPS):
        assert np.isfinite(np.float32(step.reward))
        assert 1 <= step.action <= 4
        assert step.environment >= 0


def use_journal(folder: Path) -> None:
    """Each way by itself: what one refuses, another may take."""
    path, said = folder / "robot.sqlite", []
    for way in (_examine, _read_journal, _take_in, _append):
        try:
            way(path)
        except JournalError as error:
            said.append(error)
    if said:
        raise said[-1]


def _examine(path: Path) -> None:
    json.dumps(examine(path).as_dict())


def _read_journal(path: Path) -> None:
    with Journal(path, read_only=True) as journal:
        if journal.action_space == ACTIONS:
            _read(journal)


def _take_in(path: Path) -> None:
    BDPI("MultiInputPolicy", ControlLoop(SPACE, ACTIONS), journal=path, policy_kwargs=TINY, **SMALL).close_journal()


def _append(path: Path) -> None:
    with Journal(path, SPACE, ACTIONS) as journal:
        before = journal.last
        assert journal.append(next(transitions(1))) == before + 1


def make_exports(folder: Path) -> Iterator[Path]:
    yield _exported(folder, export_npz)


def make_parquets(folder: Path) -> Iterator[Path]:
    yield _exported(folder, export_parquet)


def _exported(folder: Path, export: Any) -> Path:
    (folder / "export").mkdir()
    with Journal(folder / "robot.sqlite", SPACE, ACTIONS) as journal:
        for step in transitions(20):
            journal.append(step)
        export(journal, folder / "export" / "robot")
    return folder / "export"


def _importing(import_: Any) -> Callable[[Path], None]:
    def use(folder: Path) -> None:
        target = folder / "new.sqlite"
        try:
            import_(folder / "robot", target)
        except JournalError:
            assert not target.exists()
            raise
        _read_journal(target)

    return use


# -- runs, studies, archives --------------------------------------------------------------------------------------


def _job(seed: int, path: Path) -> Job:
    config = RunConfig(
        environment="CartPole-v1",
        seed=seed,
        episodes=2,
        hyperparameters=SMALL,
        policy_kwargs=TINY,
        record_entropy=True,
        off_policy_noise=0.1,
    )
    return Job(Place("study", "row", "CartPole-v1", "BDPI", seed), config, path)


def _trained(path: Path, seed: int = 0) -> Path:
    job = _job(seed, path)
    assert execute(job).status == "finished"
    for name in ("curve.png", "policy.gif"):
        (path / name).unlink(missing_ok=True)
    return path


def make_runs(folder: Path) -> Iterator[Path]:
    yield _trained(folder / "run")


def use_run(folder: Path) -> None:
    """Resume it: as far as training goes on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = prepare_resumption(folder, episodes=10**6)
    with contextlib.closing(session.environment) as environment:
        environment.reset()


STUDY = """
title: A study
seeds: 2
environments:
  cart: {id: CartPole-v1, episodes: 3}
  lake: FrozenLake-v1
rows:
  one:
    BDPI: {agent: bdpi, set: &few {n_critics: 2, fit_steps: 1}, in: {lake: {set: {batch_size: 8}}}}
    other: {agent: abcdqn, set: *few, off_policy_noise: 0.1}
    again: {same_as: one/BDPI}
"""
SPACE_STUDY = """
configurations: 3
environments: {cart: CartPole-v1}
rows:
  one:
    BDPI:
      agent: bdpi
      space: {n_critics: [2, 4, 8], critics_per_step: [2, 4], batch_size: [8, 16]}
      at_most: {critics_per_step: n_critics}
      same: {fit_steps: batch_size}
"""


def make_studies(folder: Path) -> Iterator[Path]:
    for number, text in enumerate((STUDY, SPACE_STUDY)):
        (folder / f"{number}").mkdir()
        (folder / f"{number}" / "study.yaml").write_text(text)
        yield folder / f"{number}"


def use_study(folder: Path) -> None:
    study = load_study(str(folder / "study.yaml"))
    root = folder / "runs"
    for _, path in [*study.folders(root), *((job.place, job.folder) for job in study.jobs(root))]:
        assert path.is_relative_to(root)
        assert ".." not in path.parts


def make_results(folder: Path) -> Iterator[Path]:
    root = folder / "study"
    jobs = [_job(seed, root / f"run{seed}") for seed in range(2)]
    for seed, job in enumerate(jobs):
        for name in ("agent.zip", "replay.npz", "episode.json"):
            (_trained(job.folder, seed) / name).unlink()
    write_index(root, "title", [(job.place, job.folder) for job in jobs])
    yield root


def make_archives(folder: Path) -> Iterator[Path]:
    for root in make_results(folder):
        title, runs, _ = read_runs(root)
        write_archive(folder / "archive", title, runs)
        yield folder / "archive"


def use_results(folder: Path) -> None:
    """Report on them."""
    title, runs, problems = read_runs(folder)
    for text in problems:
        assert text.isprintable(), text
    if not any(len(run.returns) for run in runs):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if sum(map(len, (run.returns for run in runs))) % DRAWN == 0:
            write_report(runs, folder / "report", title=title, command="", problems=problems)
            return
        comparisons_of(runs)
        rows = TabledRow.all_of(rows_of(run for run in runs if not is_drawn(run)))
        _ = [markdown(table).encode() for each in rows for table in each.tables]
        page = make_page(runs, title=title, command="", robustness=Robustness(), rows=rows, problems=problems)
        page.encode()


# -- served runs ------------------------------------------------------------------------------------------------

TASK = """
name: lamp
observations:
  - {name: night, low: 0, high: 1}
  - &lamp {name: lamp, low: 0, high: 1, unit: "on"}
actions: ["off", "on", dim]
agent: bdpi
hyperparameters: {n_critics: 2, fit_steps: 1, batch_size: 4, buffer_size: 64}
policy_kwargs: {net_arch: [4]}
safety: [{when: lamp, above: 0.9, forbid: ["on", dim]}]
safe_action: "off"
ask_above: 0.8
limits: {robots: 3}
"""


def make_tasks(folder: Path) -> Iterator[Path]:
    (folder / "task.yaml").write_text(TASK)
    yield folder


def use_task(folder: Path) -> None:
    task = read_task(folder / "task.yaml")
    if task.hyperparameters == SMALL and task.policy_kwargs == TINY:  # else learning takes as long as the file says
        _ask(task, folder / "run")


def make_served(folder: Path) -> Iterator[Path]:
    (folder / "task.yaml").write_text(TASK)
    with served(read_task(folder / "task.yaml"), folder / "run") as service:
        for name in ("arm-1", "arm-2"):
            service.begin(EpisodeRequest(robot=name))
            service.act(ActRequest(robot=name, seq=2, observation=[0, 0]))
            seen: dict[str, Any] = {"reward": 1, "next_observation": [1, 0], "truncated": True}
            service.step(StepRequest(robot=name, seq=3, executed_action=1, **seen))
    yield folder / "run"


def use_served(folder: Path) -> None:
    (folder / "task.yaml").write_text(TASK)
    _ask(read_task(folder / "task.yaml"), folder)
    title, runs, _ = read_served(folder)
    make_page(runs, title=title, command="").encode()


def _ask(task: RobotTask, run: Path) -> None:
    """What a robot and a page ask. A refusal is an answer, too."""
    with served(task, run) as service, contextlib.suppress(Refused):
        json.dumps(service.state())
        service.begin(EpisodeRequest(robot="arm-1"))
        seq, zeros = service.sessions["arm-1"].seq, [0.0] * len(task.observations)
        service.act(ActRequest(robot="arm-1", seq=seq + 1, observation=zeros))
        seen: dict[str, Any] = {"reward": 1, "next_observation": zeros}
        service.step(StepRequest(robot="arm-1", seq=seq + 2, executed_action=1, **seen))


bdpi.envs.register()
KINDS = {
    "agent": Kind(make_agents, use_agent, (ValueError,)),
    "replay": Kind(make_replays, use_replay, (ValueError,)),
    "peer": Kind(make_peers, use_peer, (ValueError, RunError)),
    "journal": Kind(make_journals, use_journal, (JournalError,)),
    "export": Kind(make_exports, _importing(import_npz), (JournalError,)),
    "parquet": Kind(make_parquets, _importing(import_parquet), (JournalError,)),
    "run": Kind(make_runs, use_run, (RunError,)),
    "study": Kind(make_studies, use_study, (RunError,)),
    "results": Kind(make_results, use_results, (RunError,)),
    "archive": Kind(make_archives, use_results, (RunError,)),
    "task": Kind(make_tasks, use_task, (RunError,)),
    "served": Kind(make_served, use_served, (RunError,)),
}
