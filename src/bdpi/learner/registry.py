"""Which learner for which networks, rules and device: a table of what each learner needs.

PyTorch needs nothing, and is the slowest for small networks. "auto" takes the first that can, and says so where that is
slower than one would expect.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from bdpi.learner import fused, native, nvrtc
from bdpi.learner.adam import USUAL_ADAM, AdamSettings
from bdpi.learner.rules import ActorRule, CriticRule
from bdpi.learner.rules.compiled import REMEDY, find_compiler, source_of

LearnerName = Literal["native", "torch", "fused"]
LearnerChoice = Literal["auto", "native", "torch", "fused"]


@dataclass(frozen=True)
class Task:
    """What a learner is chosen by.

    :param networks: inputs, units of hidden layers and outputs of critics and actor; empty if they are anything else
        than perceptrons with tanh or ReLU units
    :param one_hot: the inputs are one-hot vectors of state numbers
    :param batch_size: largest batch of an epoch
    :param device: where to compute
    :param rules: of critics, and of the actor, if there is one
    :param prior_scale: weight of a fixed random function in each critic
    :param adam: of the optimisers
    """

    networks: tuple[tuple[int, ...], ...]
    one_hot: bool
    batch_size: int
    device: torch.device
    rules: tuple[CriticRule | ActorRule, ...]
    prior_scale: float = 0.0
    adam: AdamSettings = USUAL_ADAM

    def has_usual_adam(self) -> bool:
        """Whether Adam is as in C++."""
        return self.adam == USUAL_ADAM

    def fits_kernels(self) -> bool:
        """Whether the fused kernels have room for the networks."""
        limits = self.one_hot, self.batch_size, self.prior_scale
        return bool(self.networks) and all(fused.is_suitable(sizes, *limits) for sizes in self.networks)

    def has_twins(self) -> bool:
        """Whether all rules are written in C++, too."""
        return all(rule.native is not None for rule in self.rules)

    def has_compiler(self) -> bool:
        """Whether rules that come as C++ source can be compiled for the CPU."""
        return not any(source_of(rule.native) for rule in self.rules) or find_compiler() is not None


@dataclass(frozen=True)
class Need:
    """What a learner cannot do without.

    :param is_met: whether a task has it
    :param reason: why not, after "the ... learner"
    :param warning: what "auto" says before it takes the next learner; empty if that is as it should be
    """

    is_met: Callable[[Task], bool]
    reason: str | Callable[[], str]
    warning: str = ""

    def why(self) -> str:
        """The reason, which may not be known before."""
        return self.reason if isinstance(self.reason, str) else self.reason()


_SMALL = (
    "trains small perceptrons with one hidden layer of tanh or ReLU units, with batches of at most "
    f'{fused.LARGEST_BATCH}; for everything else use learner="auto"'
)
_TWINS = 'trains by rules that have a C++ counterpart; for everything else use learner="auto"'
_ADAM = 'has Adam as it is usual, and takes no max_grad_norm and no optimizer_kwargs; use learner="auto"'
_SLOW = "It falls back to PyTorch: the same algorithm, but 18 to 140 times slower."

#: In the order in which "auto" tries them, except for the fused one, which has to be asked for.
NEEDS: dict[LearnerName, tuple[Need, ...]] = {
    "fused": (
        Need(Task.fits_kernels, _SMALL),
        Need(Task.has_usual_adam, _ADAM),
        Need(Task.has_twins, _TWINS),
        Need(lambda task: fused.is_available(), f"needs {nvrtc.REMEDY}"),
        Need(lambda task: fused.runs_on(task.device), 'learns on a GPU: give device="cuda"'),
    ),
    "native": (
        Need(
            lambda task: bool(task.networks) and task.device.type == "cpu",
            'trains multi-layer perceptrons with tanh or ReLU units on the CPU; for everything else use learner="auto"',
        ),
        Need(
            Task.has_usual_adam,
            _ADAM,
            f"bdpi's compiled learner takes no max_grad_norm and no optimizer_kwargs. {_SLOW}",
        ),
        Need(Task.has_twins, _TWINS),
        Need(
            lambda task: native.is_available(),
            lambda: f"is not available: {native.info()['reason']}",
            f"bdpi was installed without its compiled learner. {_SLOW} {native.REMEDY}",
        ),
        Need(
            Task.has_compiler,
            f"has to compile a rule that comes as C++ source: {REMEDY}",
            f"bdpi has no compiler for a rule that comes as C++ source. {_SLOW} For the fast one, {REMEDY}.",
        ),
    ),
    "torch": (),
}


def check_choice(choice: LearnerChoice) -> None:
    """:raises ValueError: for a learner that there is not"""
    if choice not in get_args(LearnerChoice):
        raise ValueError(f'learner must be "auto", "native", "torch" or "fused", got {choice!r}')


def lacking(learner: LearnerName, task: Task) -> Need | None:
    """The first need of a learner that is not met."""
    return next((need for need in NEEDS[learner] if not need.is_met(task)), None)


def choose(task: Task, choice: LearnerChoice = "auto") -> LearnerName:
    """The learner for a task: the one that is asked for, or the fastest that can.

    :raises ValueError: if that one cannot
    """
    check_choice(choice)
    if choice != "auto":
        if (need := lacking(choice, task)) is not None:
            raise ValueError(f"the {choice} learner {need.why()}")
        return choice
    for learner in NEEDS:
        if learner == "fused":
            continue
        if (need := lacking(learner, task)) is None:
            return learner
        if need.warning:
            warnings.warn(need.warning, RuntimeWarning, stacklevel=3)
    return "torch"


def can_learn_together(task: Task) -> bool:
    """Whether the fused kernels can train a task together with others; if not, a warning says why."""
    need = next((need for need in NEEDS["fused"][:3] if not need.is_met(task)), None)
    if need is not None:
        warnings.warn(
            f"falling back to separate training, which is slower: the fused learner {need.why()}",
            RuntimeWarning,
            stacklevel=4,
        )
    return need is None
