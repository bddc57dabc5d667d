"""Which instruction sets the learner finds: what GCC says of this processor, of emulated ones, and made-up systems."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A processor with AVX2, FMA and AVX-512: the features that cpuid says, and the registers that the system saves.
BASIC, EXTENDED, ALL_REGISTERS = 0x18001000, 0xD0030020, 0xE6


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    if compiler is None or "x86_64" not in subprocess.check_output([compiler, "-dumpmachine"], text=True):
        pytest.skip("there is no g++ for x86-64")
    path = tmp_path_factory.mktemp("processor") / "processor"
    source = Path(__file__).with_name("processor.cpp")
    subprocess.run([compiler, "-std=c++17", f"-I{ROOT / 'cpp'}", str(source), "-o", str(path)], check=True)
    return path


def said(*command: object) -> list[list[bool]]:
    """Has AVX2, has AVX-512; then the same by GCC."""
    done = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    numbers = [number == "1" for number in done.stdout.splitlines()[0].split()]
    return [numbers[:2], numbers[2:]]


def test_this_processor_has_what_gcc_says(program: Path) -> None:
    ours, gcc = said(program)
    assert ours == gcc


def test_the_learner_has_the_kernels_of_this_processor(program: Path) -> None:
    native = pytest.importorskip("bdpi._native")
    avx2, avx512 = said(program)[0]
    assert native.supported_instruction_sets() == ["avx512"] * avx512 + ["avx2"] * avx2 + ["baseline"]


@pytest.mark.parametrize(
    ("model", "expected"),
    [("Nehalem", False), ("Haswell", True), ("max", True), ("max,-fma", False), ("max,-avx2", False)],
)
def test_emulated_processors(program: Path, model: str, expected: bool) -> None:
    emulator = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    if emulator is None:
        pytest.skip("there is no qemu-x86_64 (Debian: apt-get install qemu-user)")
    ours, gcc = said(emulator, "-cpu", model, program)
    assert ours == gcc == [expected, False]  # the emulator has no AVX-512


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((BASIC, EXTENDED, ALL_REGISTERS), [True, True]),
        ((BASIC, EXTENDED, 0x06), [True, False]),  # a system that does not save the registers of AVX-512
        ((BASIC, EXTENDED, 0x02), [False, False]),  # nor those of AVX
        ((BASIC, EXTENDED, 0), [False, False]),
        ((BASIC, EXTENDED & ~(1 << 31), ALL_REGISTERS), [True, False]),  # no VL
        ((BASIC & ~(1 << 12), EXTENDED, ALL_REGISTERS), [False, False]),  # no FMA
    ],
)
def test_a_system_must_save_the_registers(program: Path, numbers: tuple[int, ...], expected: list[bool]) -> None:
    assert said(program, *numbers)[0] == expected
