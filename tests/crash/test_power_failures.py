"""After a power failure at any moment, what was said to be safe is there, and everything can go on."""

import shutil
import sys
from pathlib import Path

import pytest

from bdpi import BDPI
from bdpi.agents.journal import Journal
from bdpi.runs.folder import RunFolder
from bdpi.runs.train import prepare_resumption
from disk import MODELS, record, states

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux's LD_PRELOAD and a C compiler"
)
SIZES = [20, pytest.param(700, marks=pytest.mark.full)]  # states under each model

BEGIN = """
import sys
from pathlib import Path
root = Path(sys.argv[1])
marks = 0
def mark():
    global marks
    marks += 1
    open(root / f"MARK-{marks}", "w").close()
"""
AGENT = """
from small import Walk, quick_agent
agent = quick_agent(Walk())
for _ in range(4):
    agent.learn(20, reset_num_timesteps=False)
    agent.save(root / "lamp.zip", include_buffer=True)
    mark()
"""
JOURNAL = """
import numpy as np
from gymnasium import spaces
from bdpi.agents.journal import Journal, Transition
journal = Journal(root / "robot.sqlite", spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2), durable=True)
for _ in range(60):
    journal.append(Transition(np.zeros(3, np.float32), 0, 0.0, np.zeros(3, np.float32), False, False))
    mark()
journal.close()
"""
RUN = """
from bdpi.runs import recorder
from bdpi.runs.config import RunConfig
from bdpi.runs.train import prepare
recorder.CHECKPOINT_SECONDS, recorder._CHECKPOINT_SHARE = 0.0, 1e9
quick = {"n_critics": 2, "fit_steps": 1, "batch_size": 8}
more = {"off_policy_noise": 0.1, "record_entropy": True}
plan = RunConfig(environment="FrozenLake-v1", episodes=6, hyperparameters=quick, **more)
session = prepare(plan, root / "deep" / "run")
session.draws = False
save = session.save
def marked(state):
    problem = save(state)
    assert problem is None, problem
    mark()
session.save = marked
assert session.run().status == "finished"
"""


def check_agent(folder: Path, marks: int) -> None:
    if marks or (folder / "lamp.zip").exists():
        assert BDPI.load(folder / "lamp.zip").num_timesteps >= 20 * marks


def check_journal(folder: Path, marks: int) -> None:
    if marks:
        with Journal(folder / "robot.sqlite") as journal:
            assert len(list(journal.steps())) >= marks


def check_run(folder: Path, marks: int) -> None:
    path = folder / "deep" / "run"
    if marks:
        assert RunFolder(path).read().status.checkpoint >= marks
        session = prepare_resumption(path, episodes=50)
        assert session.agent.num_timesteps >= marks - 1  # the last one came after the same step


SCENARIOS = {"agent": (AGENT, check_agent), "journal": (JOURNAL, check_journal), "run": (RUN, check_run)}


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_that_was_safe_is_lost(tmp_path: Path, name: str, n: int) -> None:
    scenario, check = SCENARIOS[name]
    root = tmp_path / "root"
    records = record(BEGIN + scenario, root, tmp_path)
    safe = 0
    for model in MODELS:
        for marks, folder in states(records, root, model, tmp_path, every=max(1, len(records) // n)):
            check(folder, marks)
            shutil.rmtree(folder)
            safe = max(safe, marks)
    assert safe > 3
