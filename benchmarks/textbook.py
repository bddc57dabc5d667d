"""BDPI as one would write it down from the paper: the learner that the others are measured against.

One module and one ``torch.optim.Adam`` per network, a Python loop per critic, iteration and step. It is slow, and so
plain that the tests take it as their reference too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss, one_hot

from bdpi.learner import Hyperparameters, Transitions
from bdpi.learner.interface import IntArray
from bdpi.learner.rules import Conservative


def perceptron(sizes: list[int]) -> nn.Sequential:
    """Linear layers with tanh between them."""
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class TextbookLearner:
    """BDPI's learning epoch.

    :param actor: module from inputs to scores
    :param critics: pairs [Q_A, Q_B] of modules from inputs to Q-values
    :param hyperparameters: for the learning rates
    :param preprocess: from observations to inputs
    """

    def __init__(
        self,
        actor: nn.Module,
        critics: list[list[nn.Module]],
        hyperparameters: Hyperparameters,
        preprocess: Callable[[Any], Any] = lambda observations: observations,
    ) -> None:
        self.actor, self.critics, self.preprocess = actor, critics, preprocess
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), hyperparameters.actor_learning_rate)
        self.optimizers = {
            network: torch.optim.Adam(network.parameters(), hyperparameters.learning_rate)
            for pair in critics
            for network in pair
        }

    def _inputs(self, observations: Any, batch: IntArray) -> Any:
        if isinstance(observations, dict):
            return self.preprocess({key: torch.as_tensor(part[batch]) for key, part in observations.items()})
        return self.preprocess(torch.as_tensor(observations[batch]))

    def epoch(self, data: Transitions, batches: IntArray, critics: IntArray, hyper: Hyperparameters) -> None:
        """One learning epoch."""
        assert isinstance(hyper.actor_rule, Conservative)
        rate = hyper.actor_rule.rate
        for critic, batch in zip(critics, batches, strict=True):
            states, next_states = (self._inputs(part, batch) for part in (data.observations, data.next_observations))
            actions = torch.as_tensor(data.actions[batch])[:, None]
            rewards = torch.as_tensor(data.rewards[batch])[:, None]
            discounts = torch.as_tensor(data.discounts[batch])[:, None]
            for _ in range(hyper.critic_iterations):
                q_a, q_b = self.critics[critic]
                with torch.no_grad():
                    next_a, next_b = q_a(next_states), q_b(next_states)
                    best = next_a.argmax(dim=1, keepdim=True)
                    value = torch.minimum(next_a.gather(1, best), next_b.gather(1, best))
                    target = q_a(states)
                    error = rewards + discounts * value - target.gather(1, actions)
                    target.scatter_add_(1, actions, hyper.critic_step_size * error)
                for _ in range(hyper.fit_steps):
                    loss = mse_loss(q_a(states), target)
                    self.optimizers[q_a].zero_grad()
                    loss.backward()
                    self.optimizers[q_a].step()
                self.critics[critic] = [q_b, q_a]
            with torch.no_grad():
                policy = self.actor(states).softmax(dim=1)
                greedy = one_hot(target.argmax(dim=1), policy.shape[1])
                policy = (1 - rate) * policy + rate * greedy
            for _ in range(hyper.fit_steps):
                loss = mse_loss(self.actor(states).softmax(dim=1), policy)
                self.actor_optimizer.zero_grad()
                loss.backward()
                self.actor_optimizer.step()
