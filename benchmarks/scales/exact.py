"""How far the learners are from float64, after 1, 10, 100 and 1,000 epochs from one state with the same batches.

    python benchmarks/scales/exact.py --out results/instrument

Kernels for many runs, kernels for few, PyTorch in float32 and, where it is installed, the native learner train the same
networks (LunarLander's, 8-256-4) on transitions of random LunarLander episodes. Rounding errors grow while networks
learn, in every learner; the question is whether one of them has larger ones, or differs in what it predicts.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "learner"), str(ROOT / "benchmarks")]

from bdpi.learner import Hyperparameters, Transitions, native  # noqa: E402
from bdpi.learner.reference import ReferenceLearner  # noqa: E402
from worlds import make_learner, perceptron, random_batches, random_state  # noqa: E402

SIZES, N_CRITICS, BATCH = [8, 256, 4], 2, 256
MILESTONES = (1, 10, 100, 1000)


def lander_transitions(n: int) -> Transitions:
    """Of a random policy."""
    env = gym.make("LunarLander-v3")
    rng = np.random.default_rng(0)
    rows = []
    observation, _ = env.reset(seed=0)
    while len(rows) < n:
        action = int(rng.integers(4))
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((observation, action, reward, 0.0 if terminated else 0.99, following))
        observation = env.reset()[0] if terminated or truncated else following
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    kinds = np.float32, np.int64, np.float32, np.float32, np.float32
    return Transitions(*(column.astype(kind) for column, kind in zip(columns, kinds, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=MILESTONES[-1])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    on_gpu = torch.cuda.is_available()
    state = random_state(SIZES, SIZES, N_CRITICS)
    transitions = lander_transitions(5000)
    reference = ReferenceLearner(perceptron(SIZES), perceptron(SIZES), state, dtype="float64")
    kinds = ["torch", *(["native"] if native.is_available() else []), *(["fused", "whole", "cuda"] if on_gpu else [])]
    learners = {kind: make_learner(kind, state, SIZES, SIZES) for kind in kinds if kind != "torch" or not on_gpu}
    with open(options.out / "exact.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["epochs", "learner", "actor", "critics", "policy", "q"])
        for epoch in range(1, options.epochs + 1):
            batches, critics = random_batches(N_CRITICS, N_CRITICS, BATCH, n=5000, seed=epoch)
            for learner in (reference, *learners.values()):
                learner.epoch(transitions, batches, critics, Hyperparameters())
            if epoch in MILESTONES:
                for kind, learner in learners.items():
                    row = [epoch, kind, *(f"{value:.3g}" for value in differences(reference, learner, transitions))]
                    table.writerow(row)
                    file.flush()
                    print(*row, flush=True)


def differences(reference: ReferenceLearner, learner: Any, transitions: Transitions) -> list[float]:
    """Root mean square of the difference relative to that of the reference: parameters; then policy and Q-values."""
    observations, critics = np.asarray(transitions.observations)[:1000], np.arange(N_CRITICS)

    def parts(learner: Any) -> list[Any]:
        state = learner.state_dict()
        active = state["critics.parameters"][critics, state["active"]]
        return [state["actor.parameters"], active, learner.policy(observations), learner.q_values(observations)]

    pairs = zip(parts(learner), parts(reference), strict=True)
    return [float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2))) for a, b in pairs]


if __name__ == "__main__":
    main()
