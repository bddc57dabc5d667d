"""Do all learners learn the same? Some epochs of a saved run, by each learner that works here.

    python benchmarks/agreement.py runs/figure2/algorithms/LunarLander-v3/BDPI-seed0

The folder holds an agent and its replay memory, as an interrupted run leaves them. All learners begin with its state
and get the same batches. Printed are their losses, and by how much the change that they make to the parameters differs
from the one that PyTorch makes on the CPU: the norm of the difference, divided by that of the change. On a GPU, fused
kernels are tried for one run, and for many.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from bdpi.agents.ensemble import Ensemble
from bdpi.learner import fused, native
from bdpi.learner.fused import FusedLearner
from bdpi.learner.interface import Learner
from bdpi.runs.build import agent_class, make_environment
from bdpi.runs.folder import RunFolder


def load(folder: Path, learner: str, device: str = "cpu") -> Ensemble:
    config = RunFolder(folder).read().config
    environment = make_environment(config.environment)
    agent = agent_class(config.agent).load(folder / "agent.zip", environment, device=device, learner=learner)
    agent.replay_buffer.load_npz(folder / "replay.npz")
    return agent


def learners(folder: Path) -> Iterator[tuple[str, Learner]]:
    """With their names."""
    if native.is_available():
        yield "native", load(folder, "native").agent_learner.learner
    if fused.is_available():
        for runs in (1, 128):
            learner = load(folder, "fused", "cuda").agent_learner.learner
            assert isinstance(learner, FusedLearner)
            learner._networks = replace(learner._networks, runs=runs)
            yield f"fused, as for {runs} runs", learner


def difference(found: np.ndarray, expected: np.ndarray, before: np.ndarray) -> float:
    """Of changes, relative to the expected one."""
    return float(np.linalg.norm(found.astype(float) - expected) / np.linalg.norm(expected.astype(float) - before))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of an interrupted run of BDPI or a relative")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--critics", type=int, default=4, help="so many are trained per epoch")
    arguments = parser.parse_args()
    reference = load(arguments.folder, "torch")
    transitions = reference.replay_buffer.transitions()
    hyperparameters = reference.hyperparameters()
    rng = np.random.default_rng(0)
    size = arguments.critics, reference.batch_size
    epochs = [
        (rng.integers(0, len(transitions.actions), size), rng.permutation(reference.n_critics)[: arguments.critics])
        for _ in range(arguments.epochs)
    ]
    before = {
        name: array.copy()
        for name, array in reference.agent_learner.learner.state_dict().items()
        if name in ("actor.parameters", "critics.parameters")
    }

    def after(learner: Learner) -> tuple[str, dict[str, np.ndarray]]:
        for batches, critics in epochs:
            metrics = learner.epoch(transitions, batches, critics, hyperparameters)
        losses = f"losses {metrics.critic_loss:.7g} (critics), {metrics.actor_loss:.7g} (actor)"
        return losses, {name: learner.state_dict()[name].copy() for name in before}

    losses, expected = after(reference.agent_learner.learner)
    print(f"torch: {losses}", flush=True)
    for learner_name, learner in learners(arguments.folder):
        losses, found = after(learner)
        texts = [f"{name} differ by {difference(found[name], expected[name], before[name]):.2g}" for name in before]
        print(f"{learner_name}: {losses}; {', '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
