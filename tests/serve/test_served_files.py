"""Task files and folders of served runs that a stranger wrote, see docs/guarantees.md."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml
from serving import TASK

from bdpi.runs.errors import RunError
from bdpi.serve.protocol import ActRequest, EpisodeRequest, StepRequest
from bdpi.serve.run import read_served, served
from bdpi.serve.task import read_task


def use(folder: Path, **changes: Any) -> None:
    """Begin with a task, or go on: one transition."""
    (folder / "task.yaml").write_text(yaml.safe_dump({**TASK, **changes}))
    with served(read_task(folder / "task.yaml"), folder / "run") as service:
        seq = service.begin(EpisodeRequest(robot="arm")).seq
        service.act(ActRequest(robot="arm", seq=seq + 1, observation=[0, 0]))
        seen: dict[str, Any] = {"reward": 1, "next_observation": [1, 0]}
        service.step(StepRequest(robot="arm", seq=seq + 2, executed_action=1, **seen))


@pytest.mark.parametrize("name", ["journal", "autosave", "tensorboard_log"])
def test_a_task_names_no_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"hyperparameters has '{name}'"):
        use(tmp_path, hyperparameters={name: str(tmp_path / "elsewhere")})
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["journal.sqlite", "sessions.sqlite-wal", "agent.zip", "task.json", "token"])
def test_links_of_a_run_are_refused(name: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(mine)
    with pytest.raises(RunError, match=f"{name} is a link to"):
        use(tmp_path)
    assert mine.read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are of Unix")
def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "task.yaml")
    with pytest.raises(RunError, match="is no task file"):
        read_task(tmp_path / "task.yaml")


def test_a_setting_that_is_refused_does_not_become_the_runs(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="batch_size"):
        use(tmp_path, hyperparameters={"batch_size": 0})
    use(tmp_path)


DAMAGE = {
    "a trigger that forgets": "CREATE TRIGGER t BEFORE INSERT ON requests BEGIN SELECT RAISE(IGNORE); END",
    "a table more": "CREATE TABLE more (x)",
    "a robot without a number": "UPDATE robots SET number = 7",
    "a robot with a strange name": "UPDATE robots SET name = '<b>'",
    "an answer that is none": "UPDATE requests SET answer = '[1'",
    "a short observation": "UPDATE requests SET observation = x'00'",
    "a number that is text": "UPDATE requests SET seq = 'x' || seq",
    "a robot that there is not": "UPDATE requests SET robot = 9",
    "a mask that is none": "UPDATE requests SET mask = x'0905'",
    "an observation that is no number": "UPDATE requests SET observation = x'0000c07f0000c07f'",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_sessions_that_no_server_wrote_are_refused(what: str, tmp_path: Path) -> None:
    use(tmp_path)
    path = tmp_path / "run" / "sessions.sqlite"
    with sqlite3.connect(path) as database:
        database.execute(DAMAGE[what])
    database.close()
    with pytest.raises(RunError, match=r"sessions\.sqlite cannot be used: .*Remove it"):
        use(tmp_path)
    path.unlink()
    use(tmp_path)


def test_sessions_of_another_program_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "sessions.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(RunError, match="file is not a database"):
        use(tmp_path)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"time/total_timesteps\n" + b"1\n" * 1_000_001, b"a\n" + b"x" * 200_000 + b"\n"]
)
def test_a_log_that_no_run_wrote_is_refused(content: bytes, tmp_path: Path) -> None:
    use(tmp_path)
    log = tmp_path / "run" / "progress.csv"
    log.write_bytes(content)
    for read in (use, lambda folder: read_served(folder / "run")):
        with pytest.raises(RunError, match=r"progress\.csv cannot be read: .*remove it"):
            read(tmp_path)
    log.unlink()
    use(tmp_path)


def test_numbers_of_a_log_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    use(tmp_path)
    header = b"rollout/ep_rew,train/q_expected,train/q_followed,time/total_timesteps\n"
    (tmp_path / "run" / "progress.csv").write_bytes(header + b"nan,1,1,1e300\n1e999,x,,\n2,3\n4,5,6,1\n")
    (run,) = read_served(tmp_path / "run")[1]
    assert (run.returns.tolist(), run.lengths.tolist()) == ([4], [0])


def test_a_token_that_no_server_made_is_refused(tmp_path: Path) -> None:
    """An empty one, of a disk that was full, would let everyone in."""
    from bdpi.serve.listen import token_of

    path, said = tmp_path / "token", []
    token = token_of(path, said.append)
    assert len(token) >= 32
    assert path.stat().st_mode & 0o077 == 0
    assert token_of(path, said.append) == token
    assert ["(also in" in said[0], "of an earlier start" in said[1]] == [True, True]
    for content in (b"", b"secret", token.encode() + b"\n", b"\xff" * 32):
        path.write_bytes(content)
        with pytest.raises(RunError, match="token of this program: remove it"):
            token_of(path, said.append)


@pytest.mark.parametrize("make", [Path.touch, lambda path: (path / "task.json").mkdir(parents=True)])
def test_what_is_in_the_way_is_named(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "run")
    with pytest.raises(RunError, match=r"run.*(in the way|cannot be read).*"):
        use(tmp_path)


@pytest.mark.parametrize(
    "changes", [{"seed": -1}, {"actions": ["off", "\x1b[2J"]}, {"hyperparameters": {"n_threads": 2**31}}]
)
def test_values_that_make_no_sense_are_named(changes: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"seed is -1|actions.1 is|n_threads must be"):
        use(tmp_path, **changes)
