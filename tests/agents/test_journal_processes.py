"""One journal and several programs: what a robot has written stays, whoever looks, and wherever it is killed."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from bdpi import BDPI
from bdpi.agents.journal import Journal, JournalError, Transition
from bdpi.cli import app
from bdpi.envs import ControlLoop

LOOP = ControlLoop(spaces.Box(0, 1e6, (3,), np.float32), spaces.Discrete(2))
ROBOT = """
import contextlib, sys
from pathlib import Path
import numpy as np
from gymnasium import spaces
from bdpi import BDPI
from bdpi.agents.journal import Journal
from bdpi.agents.journal_files import export_npz, export_parquet, import_npz, import_parquet
from bdpi.agents.journal_info import examine
from bdpi.envs import ControlLoop

small = dict(n_critics=2, batch_size=16, critic_iterations=1, fit_steps=1)


def attempt(what):
    with contextlib.suppress(ValueError):
        what()


loop = ControlLoop(spaces.Box(0, 1e6, (3,), np.float32), spaces.Discrete(2))
agent = BDPI("MlpPolicy", loop, journal="robot.sqlite", **small)
Path("link").symlink_to("robot.sqlite")


def second_journal():
    with Journal("robot.sqlite") as journal:
        BDPI("MlpPolicy", loop, **small).add_demonstrations(journal)


def loaded():
    global agent
    agent.save("robot.zip")
    agent.close_journal()
    agent = BDPI.load("robot.zip", env=loop, journal="robot.sqlite")


def exported():
    with Journal("robot.sqlite", read_only=True) as journal:
        export_npz(journal, "robot.npz")
        attempt(lambda: export_npz(journal, "robot.sqlite"))


looks = dict(
    second_journal=second_journal,
    demonstrations=lambda: BDPI("MlpPolicy", loop, **small).add_demonstrations("robot.sqlite"),
    loaded=loaded,
    info=lambda: examine("robot.sqlite"),
    exported=exported,
    another_space=lambda: attempt(lambda: Journal("robot.sqlite", spaces.Discrete(2), spaces.Discrete(2))),
    read_as_an_agent=lambda: attempt(lambda: BDPI.load("robot.sqlite", env=loop)),
    read_as_a_link_to_an_agent=lambda: attempt(lambda: BDPI.load("link", env=loop)),
    read_as_a_memory=lambda: attempt(lambda: agent.replay_buffer.load_npz("robot.sqlite")),
    imported_as_npz=lambda: attempt(lambda: import_npz("robot.sqlite", "new.sqlite")),
    imported_as_parquet=lambda: attempt(lambda: import_parquet("robot.sqlite", "new.sqlite")),
    imported_into=lambda: attempt(lambda: import_npz("robot.npz", "robot.sqlite")),
    saved_over=lambda: attempt(lambda: agent.save("robot.sqlite")),
)
print(*looks, flush=True)
for line in sys.stdin:
    word = line.strip()
    if word.isdigit():
        for number in range(int(word)):
            seen = np.full(3, agent.num_timesteps, np.float32)
            agent.observe(seen, agent.act(seen), float(agent.num_timesteps), seen + 1, False, False)
    else:
        looks[word]()
    print("done", flush=True)
"""


def test_whoever_looks_at_the_journal_of_a_running_robot(tmp_path, monkeypatch):
    """Whatever else the robot's own process does with the file, another program that opens and closes the journal must
    not tidy its log away: what is written afterwards would be lost."""
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", ROBOT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as robot:
        assert robot.stdin is not None
        assert robot.stdout is not None

        def say(word: object) -> None:
            robot.stdin.write(f"{word}\n")
            assert robot.stdout.readline() == "done\n", word

        ways, written = robot.stdout.readline().split(), 0
        assert len(ways) > 10
        try:
            for way in ways:
                say(20)
                written += 20
                say(way)
                with Journal("robot.sqlite") as journal:
                    assert len(journal) == written, way
                assert Path("robot.sqlite-wal").exists(), way
                with pytest.raises(JournalError, match="another agent"):
                    BDPI("MlpPolicy", LOOP, journal="robot.sqlite")
                say(10)
                written += 10
            result = CliRunner().invoke(app, ["journal", "import", "robot.sqlite", "robot.npz"])
            assert result.exit_code == 2
            assert "Another program has it open" in result.stderr
        finally:
            robot.send_signal(signal.SIGKILL)
    with Journal("robot.sqlite") as journal:
        assert [step.reward for step in journal.steps()] == list(range(written))
    assert CliRunner().invoke(app, ["journal", "import", "robot.sqlite", "robot.npz"]).exit_code == 0
    assert BDPI("MlpPolicy", LOOP, journal="robot.sqlite").num_timesteps > written  # a robot that was killed is gone


MAKER = """
import os, signal
from gymnasium import spaces
from bdpi.agents import journal_database
from bdpi.agents.journal import Journal

run, statements = journal_database.JournalDatabase.run, 0


def run_or_die(self, sql, values=()):
    global statements
    statements += 1
    if statements == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return run(self, sql, values)


for deadly in range(1, 1000):
    process = os.fork()
    if process == 0:
        journal_database.JournalDatabase.run = run_or_die
        Journal(f"{deadly}.sqlite", spaces.Discrete(4), spaces.Discrete(2))
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0:
        break
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_killed_while_it_is_made(tmp_path, monkeypatch):
    """A journal that was never finished is made again, by whoever says what of."""
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", MAKER], check=True)
    paths = [path for path in tmp_path.glob("*.sqlite") if path.stat().st_size > 0]
    assert len(paths) > 10
    said = []
    for path in paths:
        for read_only in (True, False):
            try:
                Journal(path, read_only=read_only).close()
            except JournalError as error:
                said.append(str(error))
        with Journal(path, spaces.Discrete(4), spaces.Discrete(2)) as journal:
            assert journal.append(Transition(3, 1, 0.5, 2, False, False)) == 1
        with Journal(path) as journal:
            assert [step.reward for step in journal.steps()] == [0.5]
    assert len(said) > 10
    assert all("there is no journal" in message for message in said)
