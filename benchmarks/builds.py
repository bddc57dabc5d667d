"""Builds of the native learner against each other: `python benchmarks/builds.py WHEEL_OR_SO [...]`.

Milliseconds of processor time for an epoch of the default configuration, on one thread, of the installed build and of
those given, which take turns epoch by epoch in one process; medians, and the median over the rounds of how many times
the installed build's time another takes.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import os
import tempfile
import time
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np

from bdpi.learner import Hyperparameters, LearnerState, native
from bdpi.learner.functional import flatten_parameters
from speed import SETTINGS, perceptron, random_transitions


def load(path: Path, folder: Path) -> ModuleType:
    """The extension module of a file, or of a wheel."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            (name,) = (name for name in wheel.namelist() if Path(name).name.startswith("_native"))
            path = Path(wheel.extract(name, folder / path.stem))
    loader = importlib.machinery.ExtensionFileLoader("_native", str(path.resolve()))
    spec = importlib.util.spec_from_loader("_native", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def measure(builds: list[ModuleType], name: str, instruction_set: str, rounds: int) -> np.ndarray:
    """Milliseconds per epoch, a row for each round and a column for each build."""
    sizes, one_hot = SETTINGS[name]
    rng = np.random.default_rng(0)
    transitions = random_transitions(sizes, one_hot, rng)
    critics = np.array([[flatten_parameters(perceptron(sizes)) for _ in range(2)] for _ in range(16)])
    actor, learners = flatten_parameters(perceptron(sizes)), []
    for native._native in builds:  # what NativeLearner makes its engine with
        state = LearnerState.fresh(actor, critics)
        options = {"one_hot": one_hot, "n_threads": 1, "instruction_set": instruction_set}
        learners.append(native.NativeLearner(sizes, sizes, state, **options))
    times = np.empty((rounds + 1, len(builds)))
    for turn in times:  # the first is a warm-up
        batches, order = rng.integers(0, len(transitions.actions), (16, 256)), rng.permutation(16)
        for i in rng.permutation(len(builds)):
            started = time.thread_time()
            learners[i].epoch(transitions, batches, order, Hyperparameters())
            turn[i] = 1000 * (time.thread_time() - started)
    return times[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("others", type=Path, nargs="+", help="a wheel of bdpi, or its bdpi/_native*.so")
    parser.add_argument("--rounds", type=int, default=100, help="epochs of each build (default: 100)")
    arguments = parser.parse_args()
    assert native._native is not None, "no native learner is installed"
    with tempfile.TemporaryDirectory() as folder:
        builds = [native._native, *(load(path, Path(folder)) for path in arguments.others)]
        for instruction_set in native._native.supported_instruction_sets():
            for name in SETTINGS:
                times = measure(builds, name, instruction_set, arguments.rounds)
                others = np.median(times[:, 1:], axis=0), np.median(times[:, 1:] / times[:, :1], axis=0)
                shown = [f"{each:8.2f} ms ({ratio:.2f} times)" for each, ratio in zip(*others, strict=True)]
                print(f"{instruction_set:9} {name:29} {np.median(times[:, 0]):8.2f} ms", *shown, flush=True)
    print(f"load of the machine in the last minute: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
