"""BDPI on any pair of PyTorch modules, on any device.

All critics of an epoch are trained at once, as a stack (:mod:`bdpi.learner.functional`), unless they have
convolutions: then, one after the other. Parameters live in flat tensors (:mod:`bdpi.learner.adam`), so that states can
be exchanged with the native learner. What a GPU does differently is in :mod:`bdpi.learner.execution`, and what images
do in :mod:`bdpi.learner.arrangement`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bdpi.learner.adam import USUAL_ADAM, AdamSettings, AdamTensors
from bdpi.learner.arrangement import Arrangement, Precision, TrainedNetworks, dtype_of
from bdpi.learner.convolutions import has_convolutions
from bdpi.learner.execution import Execution
from bdpi.learner.functional import FunctionalNetwork, Inputs, NetworkStack, has_modes, statistics_of
from bdpi.learner.graphs import Replay
from bdpi.learner.interface import (
    EpochMetrics,
    FloatArray,
    Hyperparameters,
    IntArray,
    LearnerState,
    Observations,
    Transitions,
    check_same_arrays,
    in_stretches,
)
from bdpi.learner.memory import TensorTransitions
from bdpi.learner.pictures import PictureNetworks
from bdpi.learner.rules import ActorRule, allowed
from bdpi.learner.scales import Scales


def as_float(observations: Any) -> Inputs:
    """The default ``preprocess``: numbers as float32."""
    return tree_map(lambda tensor: tensor.float(), observations)


@dataclass(frozen=True)
class TrainedCritics:
    """What some critics leave for the actor and the log."""

    observations: Inputs  #: of their batches, (n_trained, batch_size, ...)
    targets: Tensor  #: their last Q', (n_trained, batch_size, n_actions)
    q: Tensor  #: Q_A before its last fit
    errors: Tensor  #: what Q_A lacked to Q' then


class TorchLearner:
    """BDPI's learning epoch on PyTorch modules.

    :param actor: module from inputs to one score per action; the softmax is applied here. None: critics only
    :param critic: module from inputs to one Q-value per action; a template, its own parameters are not used
    :param state: initial parameters; copied
    :param device: where to compute
    :param preprocess: from a batch of raw observations (tensors) to the modules' inputs, for instance one-hot vectors
    :param prior_scale: weight of the fixed random function ``state.priors`` in each critic
    :param precision: "bfloat16" computes the epochs' convolutions and matrix products with 8 significant bits, by
        PyTorch's autocast. The last layer, parameters, moments, targets, losses and predictions are float32.
    :param patches: lay out once per batch what the networks' first convolutions see, where they begin with such; None:
        on a GPU
    :param picture_kernels: with "bfloat16", train networks of the usual shape for pictures by kernels of our own, where
        Triton is installed: nearly twice as fast on an H200. None: on a GPU
    :param adam: of the optimisers
    """

    name = "torch"

    def __init__(
        self,
        actor: nn.Module | None,
        critic: nn.Module,
        state: LearnerState,
        device: torch.device | str = "cpu",
        preprocess: Callable[[Any], Inputs] = as_float,
        prior_scale: float = 0.0,
        precision: Precision = "float32",
        patches: bool | None = None,
        picture_kernels: bool | None = None,
        adam: AdamSettings = USUAL_ADAM,
    ) -> None:
        self._adam = adam
        self.device = torch.device(device)
        self.preprocess = preprocess
        self.prior_scale = prior_scale
        state = copy.deepcopy(state)
        self._critic_networks = NetworkStack(critic.to(self.device))
        self.critics = AdamTensors(state.critics, self.device)
        self.active = torch.as_tensor(state.active).to(self.device)
        self.priors = torch.as_tensor(state.priors).to(self.device)
        self._actor_network = None if actor is None else FunctionalNetwork(actor.to(self.device))
        self.actor = None if state.actor is None else AdamTensors(state.actor, self.device)
        self._has_modes = has_modes(critic) or (actor is not None and has_modes(actor))
        self._execution = Execution(self.device, self._epoch, has_convolutions(critic), not self._has_modes)
        #: critics in a stack, None: all. PyTorch is slow on stacks of convolutions: such critics are trained apart
        self._at_once = 1 if has_convolutions(critic) else None
        self._arrangement = Arrangement(self.device, dtype_of(precision), patches, picture_kernels)
        #: inputs that an epoch has to scale; here, ``preprocess`` does it
        self._n_scaled = 0
        #: made in the first epoch, which shows what inputs look like
        self._trained: TrainedNetworks | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes its own of what belongs to a device, such as CUDA graphs."""
        return {**vars(self), "_execution": None, "_trained": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        convolves = has_convolutions(self._critic_networks.module)
        self._execution = Execution(self.device, self._epoch, convolves, not self._has_modes)

    @property
    def replay(self) -> Replay | None:
        """Runs epochs as CUDA graphs; None on other devices."""
        return self._execution.replay

    # -- the algorithm ------------------------------------------------------------------------------------------

    def epoch(
        self, transitions: Transitions, batches: IntArray, critics: IntArray, hyperparameters: Hyperparameters
    ) -> EpochMetrics:
        """See :meth:`bdpi.learner.interface.Learner.epoch`."""
        # four sizes, of which a GPU keeps graphs
        return in_stretches(self._distinct, transitions, batches, critics, hyperparameters, most=8)

    def _distinct(
        self, transitions: Transitions, batches: IntArray, critics: IntArray, hyperparameters: Hyperparameters
    ) -> EpochMetrics:
        memory, batches = self._execution.fetch(transitions, batches)
        if self._trained is None:
            few = partial(self._few_inputs, memory, batches)
            self._trained = self._arrangement(self._critic_networks, self._actor_network, few)
            if self._adam != USUAL_ADAM:
                n_fixed = sum(buffer.numel() for _, _, buffer in statistics_of(self._critic_networks.module))
                self._trained = replace(self._trained, step=partial(self._adam.step, n_fixed))
            self._at_once = self._trained.at_once or self._at_once
        scales = transitions.scales or Scales.none(self._n_scaled)
        arrays = batches, critics, hyperparameters.numbers(), scales.packed()
        with self._noise():
            return EpochMetrics(*self._execution.run(arrays, memory, hyperparameters))

    @contextmanager
    def _noise(self) -> Iterator[None]:
        """Has dropout draw what the state of the learner says: a saved agent goes on as one that was not."""
        if not self._has_modes:
            yield
            return
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(int(self.critics.steps.sum()))
            yield

    def _epoch(self, inputs: list[Tensor], memory: TensorTransitions, hyperparameters: Hyperparameters) -> Tensor:
        """The epoch, as a function of tensors only; returns the three metrics."""
        batches, critics, rates, scales = inputs
        rates = rates.float()
        rule = hyperparameters.actor_rule
        active = self.active[critics]
        pair = [self.critics.select((critics, active)), self.critics.select((critics, 1 - active))]
        at_once = self._at_once or len(batches)
        groups = [slice(start, start + at_once) for start in range(0, len(batches), at_once)]
        tasks = [
            partial(
                self._train_critics,
                memory,
                batches[group],
                critics[group],
                [networks.select(group) for networks in pair],
                rates[0],
                scales[-2:],
                hyperparameters,
            )
            for group in groups
        ]
        trained, losses = [], []
        for group in self._execution.side_by_side(tasks):
            trained.append(group)
            for k, q in enumerate(group.targets if rule is not None else ()):
                assert rule is not None
                observations = tree_map(lambda tensor: tensor[k], group.observations)  # noqa: B023
                losses.append(self._train_actor(rule, observations, q, rates[1], hyperparameters))
        self.critics.put((critics, active), pair[0])
        self.critics.put((critics, 1 - active), pair[1])
        self.active[critics] = (active + hyperparameters.critic_iterations) % 2
        actor_loss = torch.stack(losses).mean() if losses else trained[0].q.new_full((), float("nan"))
        q, errors = (torch.cat([getattr(group, name) for group in trained]) for name in ("q", "errors"))
        return torch.stack([errors.square().mean(), actor_loss, q.mean()])

    def _train_critics(
        self,
        memory: TensorTransitions,
        batches: Tensor,
        critics: Tensor,
        pair: list[AdamTensors],
        learning_rate: Tensor,
        return_scale: Tensor,
        hyperparameters: Hyperparameters,
    ) -> TrainedCritics:
        """All training iterations of some critics.

        :param critics: their numbers
        :param pair: their active networks, and the others; changed in place
        :param return_scale: shift and factor of Q-values
        """
        assert self._trained is not None
        networks, step = self._trained.critics, self._trained.step
        observations = self._batch(memory.observations, batches)
        next_observations = self._batch(memory.next_observations, batches)
        next_masks = None if memory.next_masks is None else memory.next_masks[batches]
        prior = self._prior(networks, critics, observations)
        next_prior = self._prior(networks, critics, next_observations)
        actions, rewards, discounts = (column[batches] for column in (memory.actions, memory.rewards, memory.discounts))
        rewards = (rewards - (1 - discounts) * return_scale[0]) * return_scale[1]

        def moved(q: Tensor, prior: Tensor, *rest: Tensor) -> Tensor:
            """Q' of one critic, less its prior."""
            change = hyperparameters.critic_rule.change(q + prior, *rest)
            return q.scatter_add(1, rest[2].unsqueeze(1), change.unsqueeze(1))

        def opinions(network: AdamTensors) -> Tensor:
            """What some networks say of the next states."""
            return allowed(networks.values(network.parameters, next_observations) + next_prior, next_masks)

        q_next = [opinions(network) for network in pair]
        for iteration in range(hyperparameters.critic_iterations):
            # a and b swap roles each time; only the one that was fitted has new opinions
            a, b = iteration % 2, 1 - iteration % 2
            known = prior, q_next[a], q_next[b], actions, rewards, discounts
            gradients, q, targets = networks.gradients(moved, pair[a].parameters, observations, *known)
            step(pair[a], gradients, learning_rate)
            for _ in range(hyperparameters.fit_steps - 1):
                gradients, _, _ = networks.gradients(lambda _, y: y, pair[a].parameters, observations, targets)
                step(pair[a], gradients, learning_rate)
            if iteration + 1 < hyperparameters.critic_iterations:
                q_next[a] = opinions(pair[a])
        masks = None if memory.masks is None else memory.masks[batches]
        return TrainedCritics(observations, allowed(targets + prior, masks), q + prior, q - targets)

    def _train_actor(
        self, rule: ActorRule, observations: Inputs, q: Tensor, learning_rate: Tensor, hyperparameters: Hyperparameters
    ) -> Tensor:
        """Let the actor follow one critic; returns the loss before the fit."""
        assert self._trained is not None
        actor, network, step = self.actor, self._trained.actor, self._trained.step
        assert actor is not None
        assert network is not None

        calm = None  # the policy without the noise of training
        if isinstance(network, FunctionalNetwork) and network.has_modes:
            calm = network(actor.parameters, observations).softmax(dim=1)

        def loss(targets: Tensor | None, scores: Tensor) -> tuple[Tensor, Tensor]:
            policy = scores.softmax(dim=1)
            if targets is None:
                targets = rule.targets(policy.detach() if calm is None else calm, q)
            if rule.loss == "cross_entropy":
                return nn.functional.cross_entropy(scores, targets), targets
            return nn.functional.mse_loss(policy, targets), targets

        gradient, before, targets = network.gradient(partial(loss, None), actor.parameters, observations)
        step(actor, gradient, learning_rate)
        for _ in range(hyperparameters.fit_steps - 1):
            gradient, _, _ = network.gradient(partial(loss, targets), actor.parameters, observations)
            step(actor, gradient, learning_rate)
        return before

    # -- predictions --------------------------------------------------------------------------------------------

    def _scores(self, flat: Tensor, inputs: Inputs) -> Tensor:
        assert self._actor_network is not None
        return self._actor_network(flat, inputs)

    def policy(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.policy`."""
        assert self.actor is not None, "there is no actor"
        with torch.no_grad():
            return self._scores(self.actor.parameters, self._inputs(observations)).softmax(dim=1).cpu().numpy()

    def q_values(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.q_values`."""
        with torch.no_grad():
            inputs = self._inputs(observations)
            stacked = self.critics.parameters[torch.arange(len(self.active), device=self.device), self.active]
            everyone = tree_map(lambda tensor: tensor.expand(len(stacked), *tensor.shape), inputs)
            q = self._critic_networks.values(stacked, everyone)
            if self.prior_scale:
                q = q + self.prior_scale * self._critic_networks.values(self.priors, everyone)
            return q.cpu().numpy()

    def _prior(self, networks: NetworkStack | PictureNetworks, critics: Tensor, inputs: Inputs) -> Tensor:
        """The fixed random part of the critics' Q-values; broadcasts where there is none."""
        if not self.prior_scale:
            return torch.zeros((len(critics), 1, 1), device=self.device)
        return self.prior_scale * networks.values(self.priors[critics], inputs)

    def _inputs(self, observations: Observations) -> Inputs:
        """Preprocessed observations."""
        return self.preprocess(tree_map(lambda array: torch.as_tensor(array).to(self.device), observations))

    def _batch(self, stored: Any, batches: Tensor) -> Inputs:
        """Preprocessed observations of the batches, (n_trained, batch_size, ...)."""
        assert self._trained is not None
        chosen = self.preprocess(tree_map(lambda tensor: tensor[batches.reshape(-1)], stored))
        return tree_map(lambda tensor: tensor.view(*batches.shape, *tensor.shape[1:]), self._trained.lay_out(chosen))

    def _few_inputs(self, memory: TensorTransitions, batches: IntArray) -> Inputs:
        return self.preprocess(tree_map(lambda tensor: tensor[batches[0, :2]], memory.observations))

    # -- state --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """See :meth:`bdpi.learner.interface.Learner.state_dict`."""
        return {name: tensor.cpu().numpy() for name, tensor in self._tensors().items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See :meth:`bdpi.learner.interface.Learner.load_state_dict`."""
        own = self._tensors()
        check_same_arrays({name: tensor.cpu().numpy() for name, tensor in own.items()}, state)
        for name, tensor in own.items():
            tensor.copy_(torch.as_tensor(np.asarray(state[name])))

    def _tensors(self) -> dict[str, Tensor]:
        named = {"active": self.active, "priors": self.priors}
        for owner, networks in (("actor", self.actor), ("critics", self.critics)):
            if networks is not None:
                named |= {f"{owner}.{name}": tensor for name, tensor in vars(networks).items()}
        return named
