"""Are the kernels for pictures as exact as PyTorch in bfloat16? Four epochs of Hallway's size on a GPU.

    python benchmarks/picture_agreement.py

The same networks learn from the same random pictures: in float32 by PyTorch, in bfloat16 by PyTorch, and in bfloat16 by
the kernels. Printed is by how much the changes that the latter two make to the parameters differ from those of the
first: the mean of the difference, by amount, divided by that of the change.
"""

from __future__ import annotations

import argparse
import copy

import numpy as np
import torch
from gymnasium import spaces

from bdpi.agents.policies import CnnPolicy
from bdpi.learner import Hyperparameters, LearnerState, Transitions, pictures
from bdpi.learner.functional import flatten_parameters
from bdpi.learner.interface import Ring
from bdpi.learner.torch import Precision, TorchLearner

IMAGES, IMAGE, ACTIONS, CRITICS, BATCH, EPOCHS = 2_000, (3, 60, 80), 4, 16, 256, 4
WAYS: dict[str, tuple[Precision, bool]] = {
    "float32": ("float32", False),
    "PyTorch in bfloat16": ("bfloat16", False),
    "kernels": ("bfloat16", True),
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if not torch.cuda.is_available() or not pictures.is_available(torch.device("cuda")):
        raise SystemExit(f"kernels cannot be compared here: {pictures.REMEDY}")
    torch.manual_seed(0)
    rng, hyper = np.random.default_rng(0), Hyperparameters(fit_steps=1)
    policy = CnnPolicy(spaces.Box(0, 255, IMAGE, np.uint8), spaces.Discrete(ACTIONS))
    images = rng.integers(0, 255, (IMAGES, *IMAGE), dtype=np.uint8)
    rewards, actions = rng.normal(size=IMAGES).astype(np.float32), rng.integers(0, ACTIONS, IMAGES)
    discounts, ring = np.full_like(rewards, 0.99), Ring(object(), IMAGES, IMAGES)
    memory = Transitions(images, actions, rewards, discounts, images[::-1].copy(), ring=ring)
    critics = np.array([[flatten_parameters(policy.make_critic()) for _ in range(2)] for _ in range(CRITICS)])
    assert policy.actor is not None
    state = LearnerState.fresh(flatten_parameters(policy.actor), critics)
    learners = {
        name: TorchLearner(
            copy.deepcopy(policy.actor),
            policy.make_critic(),
            state,
            "cuda",
            policy.preprocess,
            precision=precision,
            picture_kernels=kernels,
        )
        for name, (precision, kernels) in WAYS.items()
    }
    before = {name: array.copy() for name, array in learners["float32"].state_dict().items()}
    for _ in range(EPOCHS):
        batches, order = rng.integers(0, IMAGES, (CRITICS, BATCH)), rng.permutation(CRITICS)
        for learner in learners.values():
            learner.epoch(memory, batches, order, hyper)
    for which in ("critics", "actor"):
        exact, *others = (learner.state_dict()[f"{which}.parameters"] for learner in learners.values())
        moved = np.abs(exact - before[f"{which}.parameters"]).mean()
        for name, found in zip(list(learners)[1:], others, strict=True):
            print(f"{which}, {name}: {100 * np.abs(found - exact).mean() / moved:.1f} %", flush=True)


if __name__ == "__main__":
    main()
