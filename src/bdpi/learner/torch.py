"""The readable reference: any pair of PyTorch modules, on any device.

All critics of an epoch are trained at once: their parameters are rows of one tensor, and ``torch.func`` maps a
module's forward pass and gradient over the rows. Modules that cannot be mapped are looped over, with the same result.
Parameters live in flat tensors, so that Adam is a handful of elementwise lines and states can be exchanged with the
native learner.

Modules are used in evaluation mode: dropout is off, batch normalisation uses its stored statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

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


class FunctionalNetwork:
    """A module as a function of (flat parameters, inputs), for one network or for a stack of them."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module.eval()
        self.named = [(name, parameter.shape, parameter.numel()) for name, parameter in module.named_parameters()]
        if not self.named:
            raise ValueError(f"a network without parameters cannot learn: {module}")
        self.can_be_mapped: bool | None = None  # not known before it was tried

    def __call__(self, flat: Tensor, inputs: Inputs) -> Tensor:
        """Outputs (n, n_outputs) of one network, ``flat`` of shape (P,)."""
        named, offset = {}, 0
        for name, shape, size in self.named:
            named[name] = flat[offset : offset + size].view(shape)
            offset += size
        output: Tensor = functional_call(self.module, named, (inputs,))
        return output

    def map(self, function: Callable[..., Tensor], *stacked: Any) -> Tensor:
        """``function`` on each slice along the first axis of its arguments, at once where the module allows."""
        if self.can_be_mapped is not False:
            try:
                result: Tensor = vmap(function)(*stacked)
                self.can_be_mapped = True
                return result
            except (RuntimeError, ValueError):
                if self.can_be_mapped:
                    raise
                self.can_be_mapped = False
        count = len(stacked[0])
        return torch.stack([function(*tree_map(lambda tensor: tensor[i], stacked)) for i in range(count)])  # noqa: B023


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

    :param actor: module from inputs to one score per action; the softmax is applied here
    :param critic: module from inputs to one Q-value per action; a template, its own parameters are not used
    :param state: initial parameters; copied
    :param device: where to compute
    :param preprocess: from a batch of raw observations (tensors) to the modules' inputs, for instance one-hot vectors
    """

    name = "torch"

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        state: LearnerState,
        device: torch.device | str = "cpu",
        preprocess: Callable[[Any], Inputs] = as_float,
    ) -> None:
        self.device = torch.device(device)
        self.preprocess = preprocess
        self._actor_network = FunctionalNetwork(actor.to(self.device))
        self._critic_network = FunctionalNetwork(critic.to(self.device))
        copied = NetworkState(*(array.copy() for array in vars(state.actor).values()))
        self.actor = AdamTensors(copied, self.device)
        self.critics = AdamTensors(NetworkState(*(a.copy() for a in vars(state.critics).values())), self.device)
        self.active = torch.as_tensor(state.active.copy()).to(self.device)

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
            actor_losses = [
                self._train_actor(tree_map(lambda tensor: tensor[k], observations), greedy, hyperparameters)  # noqa: B023
                for k, greedy in enumerate(targets.argmax(dim=2))
            ]
        return EpochMetrics(critic_loss.item(), torch.stack(actor_losses).mean().item(), mean_q.item())

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
        actions, rewards, discounts = (
            torch.as_tensor(array[batches]).to(self.device).unsqueeze(2)
            for array in (transitions.actions, transitions.rewards, transitions.discounts)
        )
        for _ in range(hyperparameters.critic_iterations):
            active = self.active[critics]
            q_a = self.critics.select((critics, active))
            q_b = self.critics.parameters[critics, 1 - active]
            q_next_a = self._critic_network.map(self._critic_network, q_a.parameters, next_observations)
            q_next_b = self._critic_network.map(self._critic_network, q_b, next_observations)
            # V(s') is the smaller of both opinions about the action that Q_A prefers
            best = q_next_a.argmax(dim=2, keepdim=True)
            value = torch.minimum(q_next_a.gather(2, best), q_next_b.gather(2, best))
            q = self._critic_network.map(self._critic_network, q_a.parameters, observations)
            error = rewards + discounts * value - q.gather(2, actions)
            targets = q.scatter_add(2, actions, hyperparameters.critic_step_size * error)

            gradient = grad(lambda flat, x, y: nn.functional.mse_loss(self._critic_network(flat, x), y))
            for _ in range(hyperparameters.fit_steps):
                direction = self._critic_network.map(gradient, q_a.parameters, observations, targets)
                q_a.step(direction, hyperparameters.learning_rate)
            self.critics.put((critics, active), q_a)
            self.active[critics] = 1 - active
        return targets, nn.functional.mse_loss(q, targets), q.mean()

    def _train_actor(self, observations: Inputs, greedy: Tensor, hyperparameters: Hyperparameters) -> Tensor:
        """Move the actor towards one critic's greedy policy (Eq. ppi_actor); returns the loss before the fit."""
        policy = self._probabilities(self.actor.parameters, observations)
        one_hot = nn.functional.one_hot(greedy, policy.shape[1])
        targets = (1 - hyperparameters.actor_rate) * policy + hyperparameters.actor_rate * one_hot
        gradient = grad(lambda flat: nn.functional.mse_loss(self._probabilities(flat, observations), targets))
        for _ in range(hyperparameters.fit_steps):
            self.actor.step(gradient(self.actor.parameters), hyperparameters.actor_learning_rate)
        return nn.functional.mse_loss(policy, targets)

    # -- predictions --------------------------------------------------------------------------------------------

    def _probabilities(self, flat: Tensor, inputs: Inputs) -> Tensor:
        return self._actor_network(flat, inputs).softmax(dim=1)

    def policy(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.policy`."""
        with torch.no_grad():
            return self._probabilities(self.actor.parameters, self._inputs(observations)).cpu().numpy()

    def q_values(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.q_values`."""
        with torch.no_grad():
            inputs = self._inputs(observations)
            stacked = self.critics.parameters[torch.arange(len(self.active)), self.active]
            network = self._critic_network
            return network.map(lambda flat: network(flat, inputs), stacked).cpu().numpy()

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
        named = {"active": self.active}
        for owner in ("actor", "critics"):
            named |= {f"{owner}.{name}": tensor for name, tensor in vars(getattr(self, owner)).items()}
        return named
