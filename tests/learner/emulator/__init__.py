"""The fused kernels on the CPU; see emulator.cpp."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from bdpi.learner import fused
from bdpi.learner.fused import HEADERS, SOURCE, Sizes


class Emulator:
    """See :class:`bdpi.learner.fused.Kernels`.

    :param folder: where compiled kernels are kept
    """

    device_type = "cpu"
    _libraries: ClassVar[dict[Any, ctypes.CDLL]] = {}  # of all emulators: compiling takes longer than most epochs

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def launch(
        self, name: str, sizes: Sizes, programs: int, arguments: Sequence[Any], crowd: int, outside: str
    ) -> None:
        key = (*sizes.items(), outside)
        if key not in self._libraries:
            target = self._folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.so"
            if not target.exists():  # another process may have compiled it
                self._compile(target, sizes, outside)
            self._libraries[key] = ctypes.CDLL(str(target))
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        assert self._libraries[key].launch_kernel(name.encode(), programs, pointers) == 0

    def _compile(self, target: Path, sizes: Sizes, outside: str) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            folders = [Path(name), HEADERS[0].parent]
            macros, made = folders[0] / "sizes.h", folders[0] / "made.so"
            macros.write_text("".join(f"#define {macro} {value}\n" for macro, value in sizes.items()))
            (folders[0] / "outside.hpp").write_text(outside)
            command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
            # Multiplies and adds in one, as GPUs do, where this processor can.
            command += ["-march=native", "-ffp-contract=fast", "-fexpensive-optimizations"]
            command += [f"-I{folder}" for folder in folders]
            source = [f'-DSIZES="{macros}"', f'-DSOURCE="{SOURCE}"', str(Path(__file__).with_name("emulator.cpp"))]
            done = subprocess.run([*command, *source, "-o", str(made)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-3000:]
            made.rename(target)


@contextmanager
def emulated_kernels(folder: Path) -> Iterator[None]:
    """Have ``learner="fused"`` and populations run the kernels on the CPU, with ``device="cpu"``."""
    with patch.object(fused, "kernels", Emulator(folder)):
        yield


def train(folder: Path, *others: Any) -> None:
    """What a process does that trains runs for ``--executor population``, on the CPU."""
    from bdpi.runs.executors.training import work

    with emulated_kernels(folder):
        work(*others)
