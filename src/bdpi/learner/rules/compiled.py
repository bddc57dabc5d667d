"""Rules in C++ that come as source: the native learner calls them by their addresses."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bdpi.learner.rules import Native

HEADER = Path(__file__).with_name("rules.hpp")
REMEDY = "install a C++ compiler (Debian: apt install g++; macOS: xcode-select --install)"
_LIBRARIES: list[ctypes.CDLL] = []  # functions are there as long as these are


def find_compiler() -> str | None:
    """``CXX``, or what there usually is."""
    return next(filter(shutil.which, filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++"))), None)


def source_of(native: Native | None) -> str:
    """The C++ function of a rule from outside the package; empty for others."""
    return "" if native is None or len(native) == 2 else native[2]


def address_of(native: Native) -> int:
    """Where the compiled function is; 0 for a rule of the package, which the native learner knows by name.

    :raises ValueError: if there is no compiler, or the function does not compile
    """
    return _compile(native[0], source_of(native)) if source_of(native) else 0


@functools.cache
def _compile(name: str, source: str) -> int:
    compiler = find_compiler()
    if compiler is None:
        raise ValueError(f"the C++ rule {name} comes as source, which has to be compiled: {REMEDY}")
    with tempfile.TemporaryDirectory() as folder:
        code, library = Path(folder, "rule.cpp"), Path(folder, "rule.so")
        pointer = f'extern "C" const auto bdpi_rule = &{name};'
        code.write_text(f'#include <math.h>\n#include "{HEADER}"\n{source}\n{pointer}\n')
        command = [compiler, "-std=c++17", "-O3", "-shared", "-fPIC", "-o", str(library), str(code)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"the C++ rule {name} does not compile:\n{done.stderr}")
        _LIBRARIES.append(ctypes.CDLL(str(library)))
    return ctypes.c_void_p.in_dll(_LIBRARIES[-1], "bdpi_rule").value or 0
