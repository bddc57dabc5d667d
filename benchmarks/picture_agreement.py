"""Are the kernels for pictures as exact as PyTorch in bfloat16? Four epochs of Hallway's size on a GPU.

    python benchmarks/picture_agreement.py

The same networks learn from the same random pictures: in float32 by PyTorch, in bfloat16 by PyTorch, and in bfloat16 by
the kernels. Printed is by how much the changes that the latter two make to the parameters differ from those of the
first: the mean of the difference, by amount, divided by that of the change.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from bdpi.learner import Hyperparameters, pictures
from gpu import BATCH, CRITICS, IMAGES, hallway_learner, hallway_memory

EPOCHS = 4


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if not torch.cuda.is_available() or not pictures.is_available(torch.device("cuda")):
        raise SystemExit(f"there are no kernels to compare here: {pictures.REMEDY}")
    rng = np.random.default_rng(0)
    memory = hallway_memory(rng)
    _, exact = hallway_learner("cuda")
    others = {
        name: hallway_learner("cuda", "bfloat16", kernels)[1]
        for name, kernels in (("PyTorch in bfloat16", False), ("kernels", True))
    }
    before = {name: array.copy() for name, array in exact.state_dict().items()}
    for _ in range(EPOCHS):
        batches, order = rng.integers(0, IMAGES, (CRITICS, BATCH)), rng.permutation(CRITICS)
        for learner in (exact, *others.values()):
            learner.epoch(memory, batches, order, Hyperparameters(fit_steps=1))
    for part in ("critics.parameters", "actor.parameters"):
        expected = exact.state_dict()[part]
        moved = np.abs(expected - before[part]).mean()
        for name, learner in others.items():
            print(f"{part}, {name}: {100 * np.abs(learner.state_dict()[part] - expected).mean() / moved:.1f} %")


if __name__ == "__main__":
    main()
