"""What programs write while the power fails, and what must be there afterwards.

A scenario is two functions: one writes files below a folder, and makes a mark whenever something is safe from now on;
the other looks at what is left of them. ``python scenarios.py NAME FOLDER ROUNDS`` writes.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from bdpi import BDPI
from bdpi.agents import AGENTS
from bdpi.agents.journal import Journal, Transition
from bdpi.agents.journal_files import export_npz, import_npz
from bdpi.envs import ControlLoop
from bdpi.export import export_c, export_onnx
from bdpi.runs import recorder
from bdpi.runs.campaign import run_campaign
from bdpi.runs.config import RunConfig
from bdpi.runs.episodes import read_monitor
from bdpi.runs.errors import RunError
from bdpi.runs.executors.local import Local
from bdpi.runs.folder import RunFolder
from bdpi.runs.job import Job
from bdpi.runs.results import read_runs, write_archive, write_index
from bdpi.runs.train import prepare, prepare_resumption
from bdpi.studies.study import Series, Study

Mark = Callable[[], None]
QUICK: dict[str, Any] = {"n_critics": 2, "fit_steps": 1, "batch_size": 8}
LARGE = spaces.Box(-1, 1e6, (3000,), np.float32)  # a few pages of a database, so that it comes to its checkpoints


class Lost(Exception):
    """Something that was safe is not there."""


def checkpoint_at_every_step() -> None:
    recorder.CHECKPOINT_SECONDS, recorder._CHECKPOINT_SHARE = 0.0, 1e9


def one_step(agent: BDPI, number: int) -> None:
    """A step of a robot."""
    seen, following = (np.array([number % 7 / 7, each], np.float32) for each in (0, 1))
    action = agent.act(seen)
    agent.observe(seen, action, float(action), following, terminated=number % 7 == 6, truncated=False)
    agent.learn_once()


def new_robot(**files: Any) -> BDPI:
    robot = ControlLoop(spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2))
    return BDPI("MlpPolicy", robot, seed=0, policy_kwargs={"net_arch": [8]}, **QUICK, **files)


# -- an agent that saves itself -----------------------------------------------------------------------------------


def write_autosave(root: Path, rounds: int, mark: Mark) -> None:
    agent = new_robot(autosave=root / "lamp.zip", autosave_minutes=1e-9)
    for number in range(rounds):
        one_step(agent, number)
        mark()


def check_autosave(folder: Path, marks: int, whole: Path) -> None:
    if marks and not (folder / "lamp.zip").exists():
        raise Lost
    if (folder / "lamp.zip").exists() and BDPI.load(folder / "lamp.zip").num_timesteps < marks:
        raise Lost


# -- a durable journal --------------------------------------------------------------------------------------------


def write_journal(root: Path, rounds: int, mark: Mark) -> None:
    """In two lives."""
    for life in range(2):
        with Journal(root / "robot.sqlite", LARGE, spaces.Discrete(2), durable=True) as journal:
            for number in range(life * rounds, (life + 1) * rounds):
                seen = np.full(3000, number, np.float32)
                journal.append(Transition(seen, number % 2, float(number), seen, False, False))
                mark()


def check_journal(folder: Path, marks: int, whole: Path) -> None:
    if marks:
        with Journal(folder / "robot.sqlite", LARGE, spaces.Discrete(2), durable=True) as journal:
            steps = list(journal.steps())
            if len(steps) < marks or any(step.reward != number for number, step in enumerate(steps)):
                raise Lost
            journal.append(*steps[:1])


# -- a run --------------------------------------------------------------------------------------------------------


def write_run(root: Path, rounds: int, mark: Mark) -> None:
    checkpoint_at_every_step()
    more: dict[str, Any] = {"off_policy_noise": 0.1, "record_entropy": True}
    config = RunConfig(environment="FrozenLake-v1", episodes=rounds, hyperparameters=QUICK, **more)
    session = prepare(config, root / "deep" / "run")
    session.draws = False
    save = session.save

    def marked(state: Any) -> str | None:
        problem = save(state)
        assert problem is None, problem
        mark()
        return None

    session.save = marked  # type: ignore[method-assign]
    assert session.run().status == "finished"


def check_run(folder: Path, marks: int, whole: Path) -> None:
    """It goes on to its end, and has the same bits then."""
    path = folder / "deep" / "run"
    if marks:
        if RunFolder(path).read().status.checkpoint < marks:
            raise Lost
        finish(path)
        if learned(path) != learned(whole / "deep" / "run"):
            raise Lost


def finish(path: Path) -> None:
    """Resume a run, as far as there is something left of it."""
    try:
        session = prepare_resumption(path)
        session.draws = False
        session.run()
    except RunError:
        if RunFolder(path).read().status.state != "finished":  # which is what it says, then
            raise
    assert RunFolder(path).read().status.state == "finished"


def learned(path: Path) -> tuple[Any, ...]:
    """All bits that a run has brought about."""
    folder = RunFolder(path)
    config, status = folder.read_run()
    files = [file for file in (folder.monitor, folder.test) if file.exists()]
    episodes = [(read_monitor(file).returns, read_monitor(file).lengths) for file in files]
    entropy = folder.entropy.read_bytes() if folder.entropy.exists() else b""
    if config.agent not in AGENTS:
        return episodes, status.episodes
    agent = AGENTS[config.agent].load(folder.agent)
    arrays = {name: array.tobytes() for name, array in agent.agent_learner.learner.state_dict().items()}
    return episodes, status.episodes, entropy, agent.num_timesteps, arrays


# -- a study ------------------------------------------------------------------------------------------------------


def study_of(episodes: int) -> Study:
    """A run of ours, which can be resumed, and a peer's, which starts over."""
    ours = Series("row", "FrozenLake-v1", "BDPI", "bdpi", episodes, hyperparameters=QUICK)
    peer = Series("row", "FrozenLake-v1", "DQN", "dqn", episodes, hyperparameters={"learning_starts": 5})
    return Study("study", "A study", 2, (ours, peer))


def jobs_of(episodes: int, root: Path) -> list[Job]:
    """Those with the second seed: of the first one, there are pictures."""
    return [job for job in study_of(episodes).jobs(root) if job.place.seed]


def run_study(root: Path, episodes: int, finished: Callable[[Job], None] = lambda job: None) -> None:
    """What ``bdpi study`` does."""
    study = study_of(episodes)
    jobs = jobs_of(episodes, root)
    write_index(root / study.name, study.title, [(job.place, job.folder) for job in jobs])
    done: set[Job] = set()

    def show(tally: Any) -> None:
        assert not tally.failed, tally.failed
        for job in tally.done:
            if job not in done:
                done.add(job)
                finished(job)

    assert len(run_campaign(jobs, Local(), show=show).done) == len(jobs)


def write_study(root: Path, rounds: int, mark: Mark) -> None:
    """Twice, the second time with more episodes."""
    checkpoint_at_every_step()
    for episodes in (rounds, rounds + 1):
        run_study(root, episodes, lambda job: mark())


def check_study(folder: Path, marks: int, whole: Path) -> None:
    """Runs that were finished have all their episodes, the others go on, and all have the same bits in the end."""
    rounds = read_runs(whole / "study")[1][0].config.episodes
    assert rounds is not None
    for before, episodes in ((0, rounds - 1), (2, rounds)):
        jobs = jobs_of(episodes, folder)
        for job in jobs[: max(0, marks - before)]:
            if RunFolder(job.folder).whole().read().status.episodes < episodes:
                raise Lost
    run_study(folder, rounds)
    _, runs, problems = read_runs(folder / "study")
    assert not problems, problems
    for run, job in zip(runs, jobs_of(rounds, whole), strict=True):
        assert run.path is not None
        if learned(run.path) != learned(job.folder):
            raise Lost


# -- exports and archives -----------------------------------------------------------------------------------------

EXPORTS = ("new/policy.onnx", "new/policy.h", "robot.npz", "archive/runs.json", "archive/episodes.csv.gz")


def write_export(root: Path, rounds: int, mark: Mark) -> None:
    """Beside the folder, a copy of each version of each file."""
    outside = root.with_name("versions")
    (outside / "robot").mkdir(parents=True)
    agent = new_robot(journal=outside / "robot.sqlite")
    study = Study("study", "A study", 1, study_of(1).series[:1])
    run_campaign(study.jobs(outside), Local())
    write_index(outside / "study", study.title, study.folders(outside))
    for number in range(rounds):
        one_step(agent, number)
        export_onnx(agent, root / "new" / "policy.onnx")
        export_c(agent, root / "new" / "policy.h")
        with Journal(outside / "robot.sqlite", read_only=True) as journal:
            export_npz(journal, root / "robot.npz")
        write_archive(root / "archive", f"Version {number}", read_runs(outside / "study")[1])
        for name in EXPORTS:
            copy = outside / str(number) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, copy)
        import_npz(root / "robot.npz", root / f"{number}.sqlite")
        mark()


def check_export(folder: Path, marks: int, whole: Path) -> None:
    outside = whole.with_name("versions")
    for name in EXPORTS:
        path = folder / name
        known = [outside / str(number) / name for number in range(max(0, marks - 1), marks + 1)]
        if not path.exists():
            if marks:
                raise Lost
        elif path.read_bytes() not in [version.read_bytes() for version in known if version.exists()]:
            raise Lost
    for number in range(marks + 1):
        path = folder / f"{number}.sqlite"
        if number < marks or path.exists():
            with Journal(path, read_only=True) as journal:
                if len(list(journal.steps())) != number + 1:
                    raise Lost


Check = Callable[[Path, int, Path], None]
SCENARIOS: dict[str, tuple[Callable[[Path, int, Mark], None], Check, int, int]] = {
    "autosave": (write_autosave, check_autosave, 12, 80),
    "journal": (write_journal, check_journal, 30, 100),
    "run": (write_run, check_run, 2, 6),
    "study": (write_study, check_study, 1, 3),
    "export": (write_export, check_export, 3, 40),
}  #: what writes, what checks, and how many rounds in a small test and in the largest


def main() -> None:
    name, root, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    marks = 0

    def mark() -> None:
        nonlocal marks
        marks += 1
        open(root / f"MARK-{marks}", "w").close()

    SCENARIOS[name][0](root, rounds, mark)


if __name__ == "__main__":
    main()
