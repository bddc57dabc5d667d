"""The readable reference: any pair of PyTorch modules, on any device.

All critics of an epoch are trained at once, as a stack (:mod:`bdpi.learner.functional`), unless they have
convolutions: then, one after the other. Parameters live in flat tensors, so that Adam is a handful of elementwise lines
and states can be exchanged with the native learner. On a GPU the replay memory is mirrored
(:mod:`bdpi.learner.memory`), the epoch is a CUDA graph (:mod:`bdpi.learner.graphs`), and networks that begin with
convolutions are fed with patches (:mod:`bdpi.learner.patches`).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.utils._pytree import tree_map

from bdpi.learner import pictures
from bdpi.learner.convolutions import has_convolutions, products_as_convolutions
from bdpi.learner.functional import FunctionalNetwork, Inputs, NetworkStack
from bdpi.learner.graphs import Replay
from bdpi.learner.interface import (
    EpochMetrics,
    FloatArray,
    Hyperparameters,
    IntArray,
    LearnerState,
    NetworkState,
    Observations,
    Transitions,
    check_same_arrays,
)
from bdpi.learner.memory import DeviceMemory, TensorTransitions
from bdpi.learner.patches import lay_out, taking_patches
from bdpi.learner.pictures import PictureNetworks
from bdpi.learner.rules import ActorRule, allowed
from bdpi.learner.scales import Scales
from bdpi.learner.streams import Streams, current

Precision = Literal["float32", "bfloat16"]

PICTURES_AT_ONCE = 8  # critics that kernels train as a stack; the actor follows one stack while the next is trained
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # Adam's, as PyTorch sets them


def dtype_of(precision: str) -> torch.dtype:
    """The type that a precision stands for.

    :raises ValueError: for any other name
    """
    if precision not in ("float32", "bfloat16"):
        raise ValueError(f'precision must be "float32" or "bfloat16", got {precision!r}')
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def as_float(observations: Any) -> Inputs:
    """The default ``preprocess``: numbers as float32."""
    return tree_map(lambda tensor: tensor.float(), observations)


def numbers_of(hyperparameters: Hyperparameters) -> NDArray[np.float64]:
    """Learning rates of critics and actor, parameters of their rules."""
    twins = [
        None if rule is None else rule.native for rule in (hyperparameters.critic_rule, hyperparameters.actor_rule)
    ]
    rates = hyperparameters.learning_rate, hyperparameters.actor_learning_rate
    return np.array([*rates, *(0.0 if twin is None else twin[1] for twin in twins)])


def _as_they_are(inputs: Inputs) -> Inputs:
    return inputs


def _channels_last(inputs: Inputs) -> Inputs:
    """The layout that convolutions on a GPU work in."""
    return tree_map(lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x, inputs)


def _warn_of_pytorch(reason: str) -> None:
    """Say once that kernels are not used, and why."""
    warnings.warn(
        f"PyTorch trains these networks, not the faster kernels for pictures: {reason}.", RuntimeWarning, stacklevel=4
    )


def _rows(tensor: Tensor) -> list[Tensor]:
    """The networks in a tensor of them, as PyTorch's optimisers take them."""
    return list(tensor.view(-1, tensor.shape[-1]))


class AdamTensors:
    """A :class:`NetworkState` on a device, with the optimiser step of ``torch.optim.Adam``, in one kernel."""

    def __init__(self, state: NetworkState, device: torch.device) -> None:
        self.parameters, self.first_moment, self.second_moment, self.steps = (
            torch.as_tensor(getattr(state, field.name)).to(device) for field in fields(NetworkState)
        )

    def select(self, index: Any) -> AdamTensors:
        """The networks at ``index``: views where PyTorch gives such, as for slices; else copies (see :meth:`put`)."""
        part = object.__new__(AdamTensors)
        for name, tensor in vars(self).items():
            setattr(part, name, tensor[index])
        return part

    def put(self, index: Any, part: AdamTensors) -> None:
        """Write back what :meth:`select` took out."""
        for name, tensor in vars(self).items():
            tensor[index] = getattr(part, name)

    def step(self, gradient: Tensor, learning_rate: Tensor) -> None:
        """One Adam step, in place."""
        adam(
            _rows(self.parameters),
            _rows(gradient),
            _rows(self.first_moment),
            _rows(self.second_moment),
            max_exp_avg_sqs=[],
            state_steps=list(self.steps.float().view(-1)),
            fused=True,
            amsgrad=False,
            beta1=BETA_1,
            beta2=BETA_2,
            lr=learning_rate,
            weight_decay=0.0,
            eps=EPSILON,
            maximize=False,
        )
        self.steps += 1

    def step_by_kernel(self, gradient: Tensor, learning_rate: Tensor) -> None:
        """The same by a kernel of our own, which is faster for few long rows."""
        from bdpi.learner.picture_kernels import adam as step

        rows = self.parameters.view(-1, self.parameters.shape[-1])
        moments = self.first_moment.view_as(rows), self.second_moment.view_as(rows)
        step(rows, gradient.view_as(rows), *moments, self.steps, learning_rate, (BETA_1, BETA_2), EPSILON)
        self.steps += 1


@dataclass(frozen=True)
class TrainedCritics:
    """What some critics leave for the actor and the log."""

    observations: Inputs  #: of their batches, (n_trained, batch_size, ...)
    targets: Tensor  #: their last Q', (n_trained, batch_size, n_actions)
    q: Tensor  #: Q_A before its last fit
    errors: Tensor  #: what Q_A lacked to Q' then


@dataclass(frozen=True)
class TrainedNetworks:
    """The networks in the form in which an epoch evaluates them; predictions take them as they were given."""

    critics: NetworkStack | PictureNetworks
    actor: FunctionalNetwork | PictureNetworks | None
    lay_out: Callable[[Inputs], Inputs]  #: inputs of a batch as they take them
    step: Callable[[AdamTensors, Tensor, Tensor], None] = AdamTensors.step  #: with gradients, and a learning rate


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
    ) -> None:
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
        self._memory = DeviceMemory(self.device, mirror=self.device.type != "cpu")
        #: critics in a stack, None: all. PyTorch is slow on stacks of convolutions: such critics are trained apart,
        #: side by side on a GPU
        self._at_once = 1 if has_convolutions(critic) else None
        with current(self.device):
            self._streams = Streams() if self.device.type == "cuda" and has_convolutions(critic) else None
        self._dtype = dtype_of(precision)
        self._wants_patches = self.device.type == "cuda" if patches is None else patches
        wants_kernels = self.device.type == "cuda" if picture_kernels is None else picture_kernels
        wants_kernels = wants_kernels and self._dtype == torch.bfloat16
        self._lacks_kernels = pictures.why_not(self.device) if wants_kernels else ""
        self._wants_kernels = wants_kernels and not self._lacks_kernels
        #: inputs that an epoch has to scale; here, ``preprocess`` does it
        self._n_scaled = 0
        #: made in the first epoch, which shows what inputs look like
        self._trained: TrainedNetworks | None = None
        #: runs epochs as CUDA graphs; None on other devices
        self.replay = Replay(self._epoch) if self.device.type == "cuda" else None

    # -- the algorithm ------------------------------------------------------------------------------------------

    def epoch(
        self, transitions: Transitions, batches: IntArray, critics: IntArray, hyperparameters: Hyperparameters
    ) -> EpochMetrics:
        """See :meth:`bdpi.learner.interface.Learner.epoch`."""
        memory, batches = self._memory.fetch(transitions, batches)
        if self._trained is None:
            self._trained = self._make_trained(memory, batches)
        rates = numbers_of(hyperparameters)
        scales = transitions.scales or Scales.none(self._n_scaled)
        inputs = [torch.as_tensor(array).to(self.device) for array in (batches, critics, rates, scales.packed())]
        hyperparameters = replace(hyperparameters, learning_rate=0.0, actor_learning_rate=0.0)  # these may change
        as_convolutions = products_as_convolutions() if self._streams is not None else nullcontext()
        with current(self.device), torch.no_grad(), as_convolutions:
            if self.replay is None:
                metrics = self._epoch(inputs, memory, hyperparameters)
            else:
                key = (batches.shape, hyperparameters, self._memory.generation)
                metrics = self.replay(inputs, memory, hyperparameters, key=key)
        return EpochMetrics(*metrics.tolist())

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
        results = (task() for task in tasks) if self._streams is None else self._streams.run(tasks)
        trained, losses = [], []
        for group in results:
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

        def loss(targets: Tensor | None, scores: Tensor) -> tuple[Tensor, Tensor]:
            policy = scores.softmax(dim=1)
            if targets is None:
                targets = rule.targets(policy.detach(), q)
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

    def _make_trained(self, memory: TensorTransitions, batches: IntArray) -> TrainedNetworks:
        """The networks to train: by kernels or with patches where both actor and critics can; in the wanted type."""
        critics, actor = self._critic_networks, self._actor_network
        modules = [critics.module] if actor is None else [critics.module, actor.module]
        arrange: Callable[[Inputs], Inputs] = _channels_last if self._streams is not None else _as_they_are
        takes_patches = False
        if has_convolutions(critics.module):
            if self._lacks_kernels:
                _warn_of_pytorch(f"{self._lacks_kernels}; bdpi doctor says what there is")
            few = self.preprocess(tree_map(lambda tensor: tensor[batches[0, :2]], memory.observations))
            if self._wants_kernels:
                found = [pictures.find_picture_networks(module, few) for module in modules]
                if found[0] is not None and found[-1] is not None:
                    self._at_once = PICTURES_AT_ONCE
                    actor_found = None if actor is None else found[1]
                    return TrainedNetworks(found[0], actor_found, pictures.lay_out, AdamTensors.step_by_kernel)
                _warn_of_pytorch(
                    "they train convolutions and linear layers with ReLU or tanh between them, and no other"
                )
            if self._wants_patches:
                taking = [each for each in (taking_patches(module, few) for module in modules) if each is not None]
                takes_patches = len(taking) == len(modules) and len({seen for _, seen in taking}) == 1
                if takes_patches:
                    modules = [module for module, _ in taking]
                    arrange = partial(lay_out, windows=taking[0][1], dtype=self._dtype)
        if not takes_patches and self._dtype == torch.float32:
            return TrainedNetworks(critics, actor, arrange)
        return TrainedNetworks(
            NetworkStack(modules[0], self._dtype),
            None if actor is None else FunctionalNetwork(modules[1], self._dtype),
            arrange,
        )

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
