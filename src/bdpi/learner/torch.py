"""The readable reference: any pair of PyTorch modules, on any device.

All critics of an epoch are trained at once: their parameters are rows of one tensor, and ``torch.func`` maps a
module's forward pass and gradient over the rows. Modules that cannot be mapped are looped over, with the same result.
Parameters live in flat tensors, so that Adam is a handful of elementwise lines and states can be exchanged with the
native learner.

Modules are used in evaluation mode: dropout is off, batch normalisation uses its stored statistics.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from bdpi.learner.interface import (
    BoolArray,
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
from bdpi.learner.rules import ActorRule

#: A tensor, or a dictionary of tensors: what a module's ``forward`` takes.
Inputs = Any

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # Adam's, as PyTorch sets them


def flatten_parameters(module: nn.Module) -> FloatArray:
    """A module's parameters as one float32 vector, in the order of ``module.parameters()``."""
    return nn.utils.parameters_to_vector(module.parameters()).detach().cpu().float().numpy()


def bind_parameters(module: nn.Module, flat: Tensor) -> None:
    """Make a module's parameters views of ``flat``: what changes in one changes in the other."""
    offset = 0
    for parameter in module.parameters():
        parameter.data = flat[offset : offset + parameter.numel()].view(parameter.shape)
        parameter.requires_grad_(False)
        offset += parameter.numel()


def as_float(observations: Any) -> Inputs:
    """The default ``preprocess``: numbers as float32."""
    return tree_map(lambda tensor: tensor.float(), observations)


def allowed(q: Tensor, masks: Tensor | None) -> Tensor:
    """Q-values with minus infinity for actions that are not allowed, so that no argmax and no softmax takes them."""
    return q if masks is None else q.masked_fill(~masks, -torch.inf)


class FunctionalNetwork:
    """A module as a function of (flat parameters, inputs), for one network or for a stack of them."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module.eval()
        self.named = [(name, parameter.shape, parameter.numel()) for name, parameter in module.named_parameters()]
        if not self.named:
            raise ValueError(f"a network without parameters cannot learn: {module}")
        #: whether values and gradients of a stack can be computed at once; not known before it was tried
        self.can_be_mapped: dict[str, bool] = {}

    def __call__(self, flat: Tensor, inputs: Inputs) -> Tensor:
        """Outputs (n, n_outputs) of one network, ``flat`` of shape (P,)."""
        named, offset = {}, 0
        for name, shape, size in self.named:
            named[name] = flat[offset : offset + size].view(shape)
            offset += size
        output: Tensor = functional_call(self.module, named, (inputs,))
        return output

    def values(self, stacked: Tensor, inputs: Inputs) -> Tensor:
        """Outputs of a stack of networks (k, P), each for its own inputs (k, n, ...)."""
        return self._map("values", self, self, stacked, inputs)

    def gradients(self, stacked: Tensor, inputs: Inputs, targets: Tensor) -> Tensor:
        """Of the mean squared error of each network of a stack, (k, P)."""

        def loss(flat: Tensor, x: Inputs, y: Tensor) -> Tensor:
            return nn.functional.mse_loss(self(flat, x), y)

        return self._map("gradients", grad(loss), partial(gradient_of, loss), stacked, inputs, targets)

    def _map(self, kind: str, mapped: Callable[..., Tensor], single: Callable[..., Tensor], *stacked: Any) -> Tensor:
        """All slices along the first axis at once where the module allows it, else one after the other."""
        if self.can_be_mapped.get(kind, True):
            try:
                result: Tensor = vmap(mapped)(*stacked)
                self.can_be_mapped[kind] = True
                return result
            except (RuntimeError, ValueError, NotImplementedError):
                if kind in self.can_be_mapped:
                    raise  # it has worked before: this is another problem
        slices = [single(*tree_map(lambda tensor: tensor[i], stacked)) for i in range(len(stacked[0]))]  # noqa: B023
        self.can_be_mapped[kind] = False
        return torch.stack(slices)


def gradient_of(loss: Callable[..., Tensor], flat: Tensor, *arguments: Any) -> Tensor:
    """d loss / d flat, by ordinary automatic differentiation, which every module supports."""
    with torch.enable_grad():
        flat = flat.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(flat, *arguments), flat)
    return gradient


class AdamTensors:
    """A :class:`NetworkState` on a device, with the optimiser step of ``torch.optim.Adam``."""

    def __init__(self, state: NetworkState, device: torch.device) -> None:
        self.parameters, self.first_moment, self.second_moment, self.steps = (
            torch.as_tensor(getattr(state, field.name)).to(device) for field in fields(NetworkState)
        )

    def select(self, index: Any) -> AdamTensors:
        """The networks at ``index`` (copies; see :meth:`put`)."""
        part = object.__new__(AdamTensors)
        for name, tensor in vars(self).items():
            setattr(part, name, tensor[index])
        return part

    def put(self, index: Any, part: AdamTensors) -> None:
        """Write back what :meth:`select` took out."""
        for name, tensor in vars(self).items():
            tensor[index] = getattr(part, name)

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        """One Adam step, in place."""
        self.steps += 1
        self.first_moment.lerp_(gradient, 1 - BETA_1)
        self.second_moment.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
        count = self.steps.double()
        step_size = (learning_rate / (1 - BETA_1**count)).float().unsqueeze(-1)
        scale = torch.sqrt(1 - BETA_2**count).float().unsqueeze(-1)
        self.parameters -= step_size * self.first_moment / (self.second_moment.sqrt() / scale + EPSILON)


class TorchLearner:
    """BDPI's learning epoch on PyTorch modules.

    :param actor: module from inputs to one score per action; the softmax is applied here. None: critics only
    :param critic: module from inputs to one Q-value per action; a template, its own parameters are not used
    :param state: initial parameters; copied
    :param device: where to compute
    :param preprocess: from a batch of raw observations (tensors) to the modules' inputs, for instance one-hot vectors
    :param prior_scale: weight of the fixed random function ``state.priors`` in each critic
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
    ) -> None:
        self.device = torch.device(device)
        self.preprocess = preprocess
        self.prior_scale = prior_scale
        state = copy.deepcopy(state)
        self._critic_network = FunctionalNetwork(critic.to(self.device))
        self.critics = AdamTensors(state.critics, self.device)
        self.active = torch.as_tensor(state.active).to(self.device)
        self.priors = torch.as_tensor(state.priors).to(self.device)
        self._actor_network = None if actor is None else FunctionalNetwork(actor.to(self.device))
        self.actor = None if state.actor is None else AdamTensors(state.actor, self.device)

    # -- the algorithm ------------------------------------------------------------------------------------------

    def epoch(
        self, transitions: Transitions, batches: IntArray, critics: IntArray, hyperparameters: Hyperparameters
    ) -> EpochMetrics:
        """See :meth:`bdpi.learner.interface.Learner.epoch`."""
        with torch.no_grad():
            observations = self._inputs(transitions.observations, batches)
            targets, critic_loss, mean_q = self._train_critics(
                observations, transitions, batches, torch.as_tensor(critics, device=self.device), hyperparameters
            )
            actor_loss = float("nan")
            rule = hyperparameters.actor_rule
            if rule is not None:
                targets = allowed(targets, self._masks(transitions.masks, batches))
                losses = [
                    self._train_actor(rule, tree_map(lambda tensor: tensor[k], observations), q, hyperparameters)  # noqa: B023
                    for k, q in enumerate(targets)
                ]
                actor_loss = torch.stack(losses).mean().item()
        return EpochMetrics(critic_loss.item(), actor_loss, mean_q.item())

    def _train_critics(
        self,
        observations: Inputs,
        transitions: Transitions,
        batches: IntArray,
        critics: Tensor,
        hyperparameters: Hyperparameters,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All training iterations of all critics; returns the last Q' (n_trained, n, n_actions) and two metrics."""
        next_observations = self._inputs(transitions.next_observations, batches)
        next_masks = self._masks(transitions.next_masks, batches)
        prior = self._prior(critics, observations)
        next_prior = self._prior(critics, next_observations)
        actions, rewards, discounts = (
            torch.as_tensor(array[batches]).to(self.device).unsqueeze(2)
            for array in (transitions.actions, transitions.rewards, transitions.discounts)
        )
        for _ in range(hyperparameters.critic_iterations):
            active = self.active[critics]
            q_a = self.critics.select((critics, active))
            q_b = self.critics.parameters[critics, 1 - active]
            q_next_a = self._critic_network.values(q_a.parameters, next_observations) + next_prior
            q_next_b = self._critic_network.values(q_b, next_observations) + next_prior
            # V(s') is the smaller of both opinions about the action that Q_A prefers
            best = allowed(q_next_a, next_masks).argmax(dim=2, keepdim=True)
            value = torch.minimum(q_next_a.gather(2, best), q_next_b.gather(2, best))
            network = self._critic_network.values(q_a.parameters, observations)
            q = network + prior
            change = hyperparameters.critic_step_size * (rewards + discounts * value - q.gather(2, actions))
            targets = q.scatter_add(2, actions, change)
            network_targets = network.scatter_add(2, actions, change)

            for _ in range(hyperparameters.fit_steps):
                gradients = self._critic_network.gradients(q_a.parameters, observations, network_targets)
                q_a.step(gradients, hyperparameters.learning_rate)
            self.critics.put((critics, active), q_a)
            self.active[critics] = 1 - active
        return targets, nn.functional.mse_loss(q, targets), q.mean()

    def _train_actor(
        self, rule: ActorRule, observations: Inputs, q: Tensor, hyperparameters: Hyperparameters
    ) -> Tensor:
        """Let the actor follow one critic; returns the loss before the fit."""
        actor = self.actor
        assert actor is not None
        policy = self._scores(actor.parameters, observations).softmax(dim=1)
        targets = rule.targets(policy, q)

        def loss(flat: Tensor) -> Tensor:
            scores = self._scores(flat, observations)
            if rule.loss == "cross_entropy":
                return nn.functional.cross_entropy(scores, targets)
            return nn.functional.mse_loss(scores.softmax(dim=1), targets)

        before = loss(actor.parameters)
        for _ in range(hyperparameters.fit_steps):
            actor.step(gradient_of(loss, actor.parameters), hyperparameters.actor_learning_rate)
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
            q = self._critic_network.values(stacked, everyone)
            if self.prior_scale:
                q = q + self.prior_scale * self._critic_network.values(self.priors, everyone)
            return q.cpu().numpy()

    def _prior(self, critics: Tensor, inputs: Inputs) -> Tensor | float:
        """The fixed random part of the critics' Q-values."""
        if not self.prior_scale:
            return 0.0
        return self.prior_scale * self._critic_network.values(self.priors[critics], inputs)

    def _masks(self, masks: BoolArray | None, batches: IntArray) -> Tensor | None:
        return None if masks is None else torch.as_tensor(masks[batches]).to(self.device)

    def _inputs(self, observations: Observations, batches: IntArray | None = None) -> Inputs:
        """Preprocessed observations; (n_trained, batch_size, ...) where ``batches`` is given."""

        def rows(array: NDArray[Any]) -> Tensor:
            chosen = array if batches is None else array[batches.reshape(-1)]
            return torch.as_tensor(np.ascontiguousarray(chosen)).to(self.device)

        if isinstance(observations, dict):
            inputs = self.preprocess({name: rows(array) for name, array in observations.items()})
        else:
            inputs = self.preprocess(rows(observations))
        if batches is None:
            return inputs
        return tree_map(lambda tensor: tensor.view(*batches.shape, *tensor.shape[1:]), inputs)

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
