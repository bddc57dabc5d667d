"""The compiled learner on other processors and systems, emulated, where compilers for them are installed.

On Debian, that takes ``apt-get install g++-aarch64-linux-gnu qemu-user g++-mingw-w64-x86-64-posix wine64``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "tests/learner/other_processor.cpp", ROOT / "cpp/engine.cpp", ROOT / "cpp/kernel.cpp"]
#: Those of CMakeLists.txt.
OPTIONS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
#: What compiles, and what runs that; the first of each that is there.
OTHERS = {
    "NEON": (["aarch64-linux-gnu-g++"], ["qemu-aarch64", "qemu-aarch64-static"]),
    "Windows": (["x86_64-w64-mingw32-g++-posix"], ["wine64", "wine", "/usr/lib/wine/wine64"]),
}


def learned(folder: Path, compiler: str, *runner: str) -> np.ndarray:
    """What the program writes that a compiler made."""
    program = folder / f"{Path(compiler).name}.exe"
    places = [f"-I{ROOT / 'cpp'}", f"-I{ROOT / 'src/bdpi/learner/rules'}"]
    command = [compiler, "-static", *OPTIONS, *places, "-DBDPI_KERNEL=baseline", *map(str, SOURCES), "-pthread"]
    subprocess.run([*command, "-o", str(program)], check=True)
    settings = {**os.environ, "WINEPREFIX": str(folder / "wine"), "WINEDEBUG": "-all"}
    written = subprocess.run([*runner, str(program)], check=True, capture_output=True, env=settings).stdout
    return np.frombuffer(written, np.float32)


@pytest.mark.full
@pytest.mark.parametrize("other", OTHERS)
def test_the_same_is_learned_but_for_rounding(other: str, tmp_path: Path) -> None:
    compilers, runners = (list(filter(None, map(shutil.which, names))) for names in OTHERS[other])
    if not compilers or not runners or not shutil.which("g++"):
        pytest.skip(f"there is no {' or no '.join([*OTHERS[other][0], OTHERS[other][1][0], 'g++'])}")
    here, there = learned(tmp_path, "g++"), learned(tmp_path, compilers[0], runners[0])
    assert len(here) == 105_953
    assert np.ptp(here) > 1
    np.testing.assert_allclose(there, here, rtol=0, atol=2e-5)
    assert np.abs(there - here).mean() < 1e-6
