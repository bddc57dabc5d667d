"""How large the house is and who knows whom: lines per room, public classes with one name, and docs/house.svg.

    python benchmarks/house.py

A room is a package of src/bdpi. An arrow of the picture goes from a room to one that it imports; all point down.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

import grimp
import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "bdpi"

Arrows = Counter[tuple[str, str]]


def arrows() -> Arrows:
    """How many modules of a room import one of another room."""
    graph = grimp.build_graph("bdpi")
    found: Arrows = Counter()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            ends = room_of(module), room_of(imported)
            if ends[0] != ends[1] and "bdpi" not in ends:
                found[ends] += 1
    return found


def room_of(module: str) -> str:
    """The part of a module's name after ``bdpi``."""
    return (module + ".bdpi").split(".")[1]


def floors(found: Arrows) -> dict[str, int]:
    """How many rooms are below each, counted along the longest way down.

    :raises ValueError: for rooms that know each other
    """
    below: dict[str, set[str]] = defaultdict(set)
    for upper, lower in found:
        below[upper].add(lower)
        below.setdefault(lower, set())
    floor: dict[str, int] = {}
    while len(floor) < len(below):
        ready = [room for room, others in below.items() if room not in floor and others <= floor.keys()]
        if not ready:
            raise ValueError(f"these rooms know each other: {', '.join(sorted(below.keys() - floor.keys()))}")
        for room in ready:
            floor[room] = 1 + max((floor[other] for other in below[room]), default=-1)
    return floor


def lines(folder: Path) -> int:
    """Of Python."""
    return sum(len(path.read_text().splitlines()) for path in folder.rglob("*.py"))


def homonyms() -> dict[str, list[str]]:
    """Public classes of different modules that have the same name."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    return {name: found for name, found in places.items() if len(found) > 1}


def draw(found: Arrows, path: Path) -> None:
    """The rooms, floor by floor."""
    floor = floors(found)
    by_floor: dict[int, list[str]] = defaultdict(list)
    for room in sorted(floor):
        by_floor[floor[room]].append(room)
    place = {
        room: ((number + 0.5) / len(rooms), height)
        for height, rooms in by_floor.items()
        for number, room in enumerate(rooms)
    }
    figure, axis = plt.subplots(figsize=(7, 6))
    for (upper, lower), count in sorted(found.items()):  # the same picture each time
        style = {"arrowstyle": "-|>", "color": "#8a8a8a", "linewidth": 0.5 + min(count, 20) / 10, "shrinkA": 14}
        axis.annotate("", place[lower], place[upper], arrowprops={**style, "shrinkB": 14})
    for room, (x, y) in place.items():
        size = lines(SOURCE / room) or len((SOURCE / f"{room}.py").read_text().splitlines())
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "#0072b2"}
        axis.text(x, y, f"{room}\n{size} lines", ha="center", va="center", fontsize=9, bbox=box)
    axis.set(xlim=(0, 1), ylim=(-0.5, max(by_floor) + 0.5))
    axis.axis("off")
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def main() -> None:
    found = arrows()
    draw(found, ROOT / "docs" / "house.svg")
    for room in sorted({end for ends in found for end in ends}):
        print(f"{room:10} {lines(SOURCE / room):6} lines")
    print(f"src        {lines(ROOT / 'src'):6} lines of Python")
    print(f"tests      {lines(ROOT / 'tests'):6} lines of Python")
    for name, places in homonyms().items():
        print(f"{name} is a class of {', '.join(places)}")


if __name__ == "__main__":
    matplotlib.rcParams["svg.hashsalt"] = "bdpi"
    main()
