"""The programs and notebooks in examples/ run from top to bottom, as they are."""

import runpy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# What each one says in the end, where it did what it is there for.
PROGRAMS = {
    "action_masks.py": "of two sticks, it takes",
    "compare_with_dqn.py": "DQN   return of the last ten episodes",
    "demonstrations.py": "transitions of 3 demonstrations",
    "export_policy.py": "probabilities differ from the agent's by",
    "own_environment.py": "first three episodes",
    "robot_loop.py": "a new agent begins with 300 transitions of the journal",
    "study.py": "runs/study/report/index.html",
    "train_and_evaluate.py": "went on to step 330",
}


def test_each_program_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == PROGRAMS.keys()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert PROGRAMS[name] in capsys.readouterr().out


@pytest.mark.full  # a notebook has a process of its own, which imports everything anew
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "clear the outputs before committing"
    done = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any(output.output_type == "display_data" for cell in done.cells for output in cell.get("outputs", []))
