"""The house is as CONTRIBUTING.md says."""

import ast
import re
from collections import Counter
from pathlib import Path

from transition import calls_of_a_step

ROOT = Path(__file__).parents[1]


def test_files_that_are_named_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    places = [ROOT, ROOT / "src" / "bdpi"]
    named = re.findall(r"[`(]([\w./]+/[\w.]+\.(?:py|hpp|cu|cpp|yaml|md|svg))[`)]", text)
    assert len(named) > 10
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_no_two_public_classes_have_one_name():
    trees = [ast.parse(path.read_text()) for path in (ROOT / "src" / "bdpi").rglob("*.py")]
    classes = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    names = Counter(name for name in classes if not name.startswith("_"))
    assert len(names) > 100
    assert [name for name, number in names.items() if number > 1] == []


def test_every_room_is_in_the_table():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = {path.parent.name for path in (ROOT / "src" / "bdpi").glob("*/__init__.py")}
    assert {room for room in rooms if f"`{room}`" not in text} == set()


def test_a_transition_goes_through_few_functions_and_files():
    calls = calls_of_a_step()
    assert len(calls) <= 27
    assert len({file for file, _ in calls}) <= 7
