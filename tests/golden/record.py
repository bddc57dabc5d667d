"""Write the golden fingerprints anew: ``python tests/golden/record.py [PART OF A CASE'S NAME ...]``.

Allowed only when a named setting, a new default or a new file format changes what users get, and the change is what the
commit is about: say so in its message and in CHANGELOG.md. Never to make a test green after a rewrite of internals:
same seed, same bits.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

for name, value in {"SDL_VIDEODRIVER": "dummy", "BDPI_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}.items():
    os.environ.setdefault(name, value)
TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / part) for part in ("golden", "agents", "learner")]

from golden_cases import CASES, learning, play  # noqa: E402

STORED = Path(__file__).with_name("golden.json")


def record(parts: list[str]) -> None:
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    for name in CASES:
        if not parts or any(part in name for part in parts):
            with tempfile.TemporaryDirectory() as folder:
                found = play(name, Path(folder))
            print("same   " if stored.get(name) == found else "CHANGED", name, flush=True)
            stored[name] = found
    lines = [f"{json.dumps(name)}: {json.dumps(stored[name])}" for name in CASES if name in stored]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"LEARNING in src/bdpi/runs/versions.py has to be {learning(stored)!r}")


if __name__ == "__main__":
    record(sys.argv[1:])
