"""Multi-layer perceptrons on the CPU: a whole learning epoch in one C++ call.

The call releases the GIL, allocates nothing, and gives the same bits on any number of threads. The code is compiled
for several instruction sets, and the best that the processor has is chosen when a learner is made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpi.learner.interface import (
    EpochMetrics,
    FloatArray,
    Hyperparameters,
    IntArray,
    LearnerState,
    Observations,
    Transitions,
    in_stretches,
)
from bdpi.learner.rules import ActorRule, CriticRule
from bdpi.learner.rules.compiled import address_of


def _import_compiled() -> tuple[Any, str | None]:
    try:
        return import_module("bdpi._native"), None
    except ImportError as error:  # installed without a compiler
        return None, f"the compiled module could not be imported ({error})"


_native, _reason = _import_compiled()

REMEDY = "Install a C++ compiler (Debian: apt install g++; macOS: xcode-select --install) and install bdpi again."
MAX_LAYERS = 64  # of weights, in one network; kMaxLayers in kernel.hpp


def is_available() -> bool:
    """Whether the compiled module is there."""
    return _native is not None


def default_threads() -> int:
    """Threads of a learner: ``BDPI_NUM_THREADS``, else ``OMP_NUM_THREADS``, else the cores this process may use."""
    for name in ("BDPI_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name)
        if value:
            if not value.isdecimal() or int(value) < 1:
                raise ValueError(f"{name} must be a positive whole number, got {value!r}")
            return int(value)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def info() -> dict[str, Any]:
    """What ``bdpi doctor`` shows about the native learner."""
    supported: list[str] = _native.supported_instruction_sets() if _native is not None else []
    chosen = os.environ.get("BDPI_INSTRUCTION_SET") or (supported[0] if supported else None)
    return {
        "available": is_available(),
        "instruction_set": chosen,
        "supported": supported,
        "threads": default_threads(),
        "reason": None if _reason is None else f"{_reason}. {REMEDY}",
    }


def _native_rule(rule: ActorRule | CriticRule) -> tuple[str, float, int]:
    """Name, parameter, and the address of a rule from outside the package."""
    if rule.native is None:
        raise ValueError(f"the native learner does not know the rule {rule}; use the PyTorch learner")
    return rule.native[0], rule.native[1], address_of(rule.native)


class NativeLearner:
    """BDPI's learning epoch in C++.

    Observations are float32 of shape (n, n_inputs), or, with ``one_hot``, int64 state numbers of shape (n,). Epochs
    read uint8 and bool, too. With 128 inputs or more, an epoch computes on distinct rows and skips inputs that do not
    matter.

    :param actor_sizes: inputs, hidden units of each layer, actions; ``[8, 256, 4]`` has one hidden layer
    :param critic_sizes: the same for the critics
    :param activation: of the hidden units, "tanh" or "relu"
    :param one_hot: the inputs are one-hot vectors, given as state numbers
    :param state: initial parameters; this learner works in these very arrays
    :param batch_size: largest batch of an epoch
    :param n_threads: how many threads share an epoch; never changes the result
    :param prior_scale: weight of the fixed random function ``state.priors`` in each critic
    :param instruction_set: one of ``info()["supported"]``; the best by default, or ``BDPI_INSTRUCTION_SET``
    """

    name = "native"

    def __init__(
        self,
        actor_sizes: Sequence[int],
        critic_sizes: Sequence[int],
        state: LearnerState,
        activation: str = "tanh",
        one_hot: bool = False,
        batch_size: int = 256,
        n_threads: int | None = None,
        instruction_set: str | None = None,
        prior_scale: float = 0.0,
    ) -> None:
        if _native is None:
            raise RuntimeError(f"the native learner is not available: {_reason}. {REMEDY}")
        for name, array in state.to_dict().items():
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise ValueError(f"{name} must be a writeable, contiguous array")
        n_critics = len(state.active)
        self.state = state
        settings = activation, one_hot, batch_size, n_threads, instruction_set, prior_scale
        self._made_of = tuple(actor_sizes), tuple(critic_sizes), state, *settings
        self.n_actions = critic_sizes[-1]
        self.prior_scale = prior_scale
        self._engine = _native.Engine(
            actor_sizes=list(actor_sizes),
            critic_sizes=list(critic_sizes),
            activation=activation,
            one_hot=one_hot,
            batch_size=batch_size,
            n_critics=n_critics,
            n_threads=min(default_threads(), n_critics) if n_threads is None else n_threads,
            instruction_set=instruction_set or os.environ.get("BDPI_INSTRUCTION_SET", ""),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has an engine of its own."""
        return NativeLearner, self._made_of

    @property
    def instruction_set(self) -> str:
        """The instruction set in use."""
        return str(self._engine.instruction_set)

    @property
    def n_threads(self) -> int:
        """Threads that share an epoch."""
        return int(self._engine.n_threads)

    def epoch(
        self, transitions: Transitions, batches: IntArray, critics: IntArray, hyperparameters: Hyperparameters
    ) -> EpochMetrics:
        """See :meth:`bdpi.learner.interface.Learner.epoch`."""
        return in_stretches(self._distinct, transitions, batches, critics, hyperparameters)

    def _distinct(
        self, transitions: Transitions, batches: IntArray, critics: IntArray, hyperparameters: Hyperparameters
    ) -> EpochMetrics:
        state, rule, scales = self.state, hyperparameters.actor_rule, transitions.scales
        critic_loss, actor_loss, mean_q = self._engine.epoch(
            observations=transitions.observations,
            actions=transitions.actions,
            rewards=transitions.rewards,
            discounts=transitions.discounts,
            next_observations=transitions.next_observations,
            batches=batches,
            critics=critics,
            masks=transitions.masks,
            next_masks=transitions.next_masks,
            actor=None if state.actor is None else tuple(vars(state.actor).values()),
            critic_networks=tuple(vars(state.critics).values()),
            priors=state.priors,
            active=state.active,
            critic_iterations=hyperparameters.critic_iterations,
            fit_steps=hyperparameters.fit_steps,
            learning_rate=hyperparameters.learning_rate,
            actor_learning_rate=hyperparameters.actor_learning_rate,
            critic_rule=_native_rule(hyperparameters.critic_rule),
            actor_rule=None if rule is None else _native_rule(rule),
            cross_entropy=rule is not None and rule.loss == "cross_entropy",
            prior_scale=self.prior_scale,
            shift=None if scales is None else scales.shift,
            factor=None if scales is None else scales.factor,
            return_shift=0.0 if scales is None else scales.return_shift,
            return_factor=1.0 if scales is None else scales.return_factor,
        )
        return EpochMetrics(critic_loss, float("nan") if rule is None else actor_loss, mean_q)

    def policy(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.policy`."""
        assert self.state.actor is not None, "there is no actor"
        out = np.empty((len(observations), self.n_actions), dtype=np.float32)
        self._engine.predict(actor=True, parameters=self.state.actor.parameters, observations=observations, out=out)
        return out

    def q_values(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.q_values`."""
        state = self.state
        out = np.empty((len(state.active), len(observations), self.n_actions), dtype=np.float32)
        for critic, active in enumerate(state.active):
            parameters = state.critics.parameters[critic, active]
            self._engine.predict(actor=False, parameters=parameters, observations=observations, out=out[critic])
        if self.prior_scale:
            prior = np.empty_like(out[0])
            for critic, parameters in enumerate(state.priors):
                self._engine.predict(actor=False, parameters=parameters, observations=observations, out=prior)
                out[critic] += self.prior_scale * prior
        return out

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """See :meth:`bdpi.learner.interface.Learner.state_dict`."""
        return self.state.to_dict()

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See :meth:`bdpi.learner.interface.Learner.load_state_dict`."""
        self.state.update(state)
