"""How fast a learning epoch is: the native learner against the reference, in one run.

    make bench

An epoch of the default configuration is 16 critics x 4 iterations x 20 Adam steps, and 16 x 20 steps of the actor, all
on 256 samples. Learners take turns, and times are medians. The reference is measured with one PyTorch thread and with
all of them, and the faster one counts. On a busy machine no such figure means much: the load is printed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

from bdpi import _native
from bdpi.learner import Hyperparameters, LearnerState, Transitions
from bdpi.learner.functional import flatten_parameters
from bdpi.learner.native import NativeLearner, default_threads
from bdpi.learner.reference import ReferenceLearner
from bdpi.learner.torch import TorchLearner

SETTINGS = {
    "Table 3-32-3": ([3, 32, 3], False),
    "FrozenLake 64-32-4 (one-hot)": ([64, 32, 4], True),
    "LunarLander 8-256-4": ([8, 256, 4], False),
}
N_CRITICS, BATCH_SIZE, N_TRANSITIONS = 16, 256, 20_000


def perceptron(sizes: list[int]) -> nn.Sequential:
    """Linear layers with tanh between them."""
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def random_transitions(sizes: list[int], one_hot: bool, rng: np.random.Generator) -> Transitions:
    """A full replay memory."""

    def observations() -> np.ndarray:
        if one_hot:
            return rng.integers(0, sizes[0], N_TRANSITIONS)
        return rng.normal(size=(N_TRANSITIONS, sizes[0])).astype(np.float32)

    return Transitions(
        observations(),
        rng.integers(0, sizes[-1], N_TRANSITIONS),
        rng.normal(size=N_TRANSITIONS).astype(np.float32),
        np.where(rng.random(N_TRANSITIONS) < 0.02, 0, 0.99).astype(np.float32),
        observations(),
    )


def matrix_multiply_adds(sizes: list[int], hyper: Hyperparameters) -> int:
    """Multiply-adds of the matrix products in an epoch: forward, weight gradients, and gradients of hidden units.

    Activation functions, Adam, and the forward passes for the targets are not counted, nor are rows that one-hot
    states save.
    """
    layers = [n_in * n_out for n_in, n_out in itertools.pairwise(sizes)]
    per_sample = 3 * sum(layers) - layers[0]
    fits = N_CRITICS * (hyper.critic_iterations + 1) * hyper.fit_steps
    return per_sample * BATCH_SIZE * fits


def measure(name: str, rounds: int, threads: int, advance) -> dict[str, float]:
    """Milliseconds per epoch of each learner on one setting, and multiply-adds per second at the peak."""
    sizes, one_hot = SETTINGS[name]
    hyper = Hyperparameters()
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    transitions = random_transitions(sizes, one_hot, rng)
    critics = np.array([[flatten_parameters(perceptron(sizes)) for _ in range(2)] for _ in range(N_CRITICS)])
    state = LearnerState.fresh(flatten_parameters(perceptron(sizes)), critics)

    def preprocess(tensor: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(tensor, sizes[0]).float() if one_hot else tensor

    networks = perceptron(sizes), perceptron(sizes), state
    reference = ReferenceLearner(*networks, preprocess)
    batched = TorchLearner(*networks, preprocess=preprocess)
    native = NativeLearner(sizes, sizes, state, one_hot=one_hot, n_threads=threads)
    all_threads = torch.get_num_threads()
    turns = (  # label, learner, epochs, PyTorch threads
        ("reference, 1 thread", reference, 1, 1),
        ("reference", reference, 1, all_threads),
        ("torch", batched, 1, all_threads),
        ("native", native, 20, all_threads),
    )
    times: dict[str, list[float]] = {label: [] for label, *_ in turns}
    peaks = []
    for turn in range(rounds + 1):
        peaks.append(_native.fma_peak(threads, 0.1))
        for label, learner, epochs, torch_threads in turns:
            torch.set_num_threads(torch_threads)
            for _ in range(epochs):
                batches = rng.integers(0, N_TRANSITIONS, (N_CRITICS, BATCH_SIZE))
                order = rng.permutation(N_CRITICS)
                start = time.perf_counter()
                learner.epoch(transitions, batches, order, hyper)
                if turn > 0:  # the first is a warm-up
                    times[label].append(time.perf_counter() - start)
            advance()
    torch.set_num_threads(all_threads)
    result = {label: 1000 * float(np.median(values)) for label, values in times.items()}
    result["reference"] = min(result["reference"], result.pop("reference, 1 thread"))
    result["peak"] = float(np.median(peaks))
    result["share"] = matrix_multiply_adds(sizes, hyper) / (result["native"] / 1000) / result["peak"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each learner gets its turn (default: 3)")
    parser.add_argument("--threads", type=int, default=default_threads(), help="threads of the native learner")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()

    console = Console()
    results = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=4 * (arguments.rounds + 1) * len(SETTINGS))
        for name in SETTINGS:
            if not console.is_terminal:
                console.print(f"measuring {name} ...")
            progress.update(task, description=name)
            results[name] = measure(name, arguments.rounds, arguments.threads, lambda: progress.advance(task))

    table = Table(title="Milliseconds per learning epoch (default configuration)", title_justify="left")
    for column in ("", "reference", "bdpi torch", "bdpi native", "speed-up", "share of FMA peak"):
        table.add_column(column, justify="left" if not column else "right")
    for name, result in results.items():
        one_hot = SETTINGS[name][1]
        share = "(rows saved)" if one_hot else f"{result['share']:.0%}"
        speedup = f"{result['reference'] / result['native']:.0f} x"
        times = (f"{result[label]:,.{1 if label == 'native' else 0}f}" for label in ("reference", "torch", "native"))
        table.add_row(name, *times, speedup, share)
    console.print(table)
    peak = np.mean([result["peak"] for result in results.values()]) / 1e9
    kernel = _native.supported_instruction_sets()[0]
    console.print(
        f"{arguments.threads} threads, {kernel}, peak {peak:.0f} billion multiply-adds per second; "
        f"PyTorch {torch.__version__} with {torch.get_num_threads()} threads"
    )
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    console.print(f"load of the machine in the last minute: {load:.1f} on {cores} cores", highlight=False)
    if load > cores + 1:
        console.print("[yellow]Others are busy on this machine: measure again when it is quiet.[/yellow]")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
