"""BDPI as the paper's Algorithm 2 says it: plain PyTorch, no speed. The other learners change the same parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils._pytree import tree_map

from bdpi.learner import EpochMetrics, Hyperparameters, LearnerState, NetworkState, Transitions
from bdpi.learner.functional import bind_parameters
from bdpi.learner.interface import FloatArray, IntArray, Observations
from bdpi.learner.rules import allowed


class ReferenceLearner:
    """BDPI's learning epoch.

    :param actor: module from inputs to one score per action; copied. None: critics only
    :param critic: module from inputs to one Q-value per action; copied
    :param state: initial parameters and moments; copied
    :param preprocess: from a batch of observations (tensors) to the modules' inputs
    :param prior_scale: weight of the fixed random function ``state.priors`` in each critic
    """

    def __init__(
        self,
        actor: nn.Module | None,
        critic: nn.Module,
        state: LearnerState,
        preprocess: Callable[[Any], Any] = lambda observations: observations,
        prior_scale: float = 0.0,
        dtype: Literal["float32", "float64"] = "float32",
    ) -> None:
        self.preprocess, self.prior_scale, self.dtype = preprocess, prior_scale, getattr(torch, dtype)
        of_actor = None if state.actor is None else state.actor.copied(dtype)
        self.state = LearnerState(of_actor, state.critics.copied(dtype), state.active.copy(), state.priors)
        self.actor = None if actor is None or of_actor is None else TrainedNetwork(actor, of_actor, ())
        numbers, priors = range(len(state.active)), NetworkState.fresh(state.priors).copied(dtype)
        self.critics = [[TrainedNetwork(critic, self.state.critics, (k, part)) for part in range(2)] for k in numbers]
        self.priors = [TrainedNetwork(critic, priors, (k,)) for k in numbers] if prior_scale else []

    def epoch(self, data: Transitions, batches: IntArray, critics: IntArray, hyper: Hyperparameters) -> EpochMetrics:
        """See :meth:`bdpi.learner.interface.Learner.epoch`."""
        metrics = []
        for critic, batch in zip(critics, batches, strict=True):
            states = self._inputs(data.observations, data, batch)
            q_new, critic_loss, mean_q = self._train_critic(critic, states, data, batch, hyper)
            metrics.append((critic_loss, self._train_actor(states, q_new, hyper), mean_q))
        return EpochMetrics(*np.mean(metrics, axis=0).tolist())

    def _train_critic(
        self, critic: int, states: Any, data: Transitions, batch: IntArray, hyper: Hyperparameters
    ) -> tuple[Tensor, float, float]:
        """All training iterations of one critic; returns the last Q'(s, .), its loss, and the mean of Q_A."""
        next_states = self._inputs(data.next_observations, data, batch)
        actions = torch.as_tensor(data.actions[batch])
        masks, next_masks = (m if m is None else torch.as_tensor(m[batch]) for m in (data.masks, data.next_masks))
        rewards, discounts = (torch.as_tensor(part[batch], dtype=self.dtype) for part in (data.rewards, data.discounts))
        if data.scales is not None:  # networks learn (Q - shift) factor
            rewards = (rewards - (1 - discounts) * data.scales.return_shift) * data.scales.return_factor
        prior, next_prior, active = self._prior(critic, states), self._prior(critic, next_states), self.state.active
        for _ in range(hyper.critic_iterations):
            q_a, q_b = self.critics[critic][active[critic]], self.critics[critic][1 - active[critic]]
            q = q_a(states) + prior
            next_a, next_b = (allowed(network(next_states) + next_prior, next_masks) for network in (q_a, q_b))
            # Q'(s, .) = Q_A(s, .), but for the action that was taken   (Eq. abcdqn)
            change = hyper.critic_rule.change(q, next_a, next_b, actions, rewards, discounts)
            q_new = q.scatter_add(1, actions[:, None], change[:, None])
            loss = q_a.fit(states, q_new - prior, mse_loss, hyper.fit_steps, hyper.learning_rate)
            active[critic] = 1 - active[critic]  # Q_A and Q_B change roles
        return allowed(q_new, masks), loss, q.mean().item()

    def _train_actor(self, states: Any, q_new: Tensor, hyper: Hyperparameters) -> float:
        """Let the actor follow one critic (Eq. ppi_actor); returns the loss before the fit."""
        if (rule := hyper.actor_rule) is None or self.actor is None:
            return float("nan")
        targets = rule.targets(self.actor(states).softmax(dim=1), q_new)
        loss = cross_entropy if rule.loss == "cross_entropy" else squared_error
        return self.actor.fit(states, targets, loss, hyper.fit_steps, hyper.actor_learning_rate)

    def policy(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.policy`."""
        assert self.actor is not None, "there is no actor"
        return self.actor(self._inputs(observations)).softmax(dim=1).numpy()

    def q_values(self, observations: Observations) -> FloatArray:
        """See :meth:`bdpi.learner.interface.Learner.q_values`."""
        inputs, active = self._inputs(observations), self.state.active
        q = [self.critics[k][active[k]](inputs) + self._prior(k, inputs) for k in range(len(active))]
        return torch.stack(q).numpy()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """See :meth:`bdpi.learner.interface.Learner.state_dict`."""
        return self.state.to_dict()

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See :meth:`bdpi.learner.interface.Learner.load_state_dict`."""
        self.state.update(state)

    def _inputs(self, observations: Observations, data: Transitions | None = None, batch: Any = slice(None)) -> Any:
        """What networks see of the observations of a batch; of state numbers there are no scales."""
        rows = tree_map(lambda array: torch.as_tensor(array[batch]), observations)
        if data is not None and data.scales is not None and isinstance(rows, Tensor) and rows.is_floating_point():
            rows = (rows - torch.as_tensor(data.scales.shift)) * torch.as_tensor(data.scales.factor)
        return tree_map(lambda tensor: tensor.to(self.dtype), self.preprocess(rows))

    def _prior(self, critic: int, inputs: Any) -> Tensor | float:
        return self.prior_scale * self.priors[critic](inputs) if self.prior_scale else 0.0


def squared_error(scores: Tensor, targets: Tensor) -> Tensor:
    """Of the probabilities."""
    return mse_loss(scores.softmax(dim=1), targets)


class TrainedNetwork:
    """A module and its optimiser, which work in the arrays of a state, at ``index``."""

    def __init__(self, template: nn.Module, state: NetworkState, index: tuple[int, ...]) -> None:
        self.flat, first, second, steps = (torch.from_numpy(array)[index] for array in vars(state).values())
        self.module = copy.deepcopy(template).to(self.flat.dtype).eval()
        bind_parameters(self.module, self.flat)
        self.module.requires_grad_()
        self.adam = torch.optim.Adam([self.flat])
        self.adam.state[self.flat] = {"step": steps, "exp_avg": first, "exp_avg_sq": second}

    def __call__(self, inputs: Any) -> Tensor:
        with torch.no_grad():
            return self.module(inputs)

    def fit(self, inputs: Any, targets: Tensor, loss: Callable[..., Tensor], n_steps: int, rate: float) -> float:
        """Adam steps on the loss between outputs and targets; returns the loss before the first."""
        losses = []
        self.adam.param_groups[0]["lr"] = rate
        for _ in range(n_steps):
            losses.append(loss(self.module(inputs), targets))
            gradient = torch.autograd.grad(losses[-1], list(self.module.parameters()))
            self.flat.grad = nn.utils.parameters_to_vector(gradient)
            self.adam.step()
        return losses[0].item()
