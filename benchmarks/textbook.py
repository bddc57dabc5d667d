"""BDPI as one would write it down from the paper: the learner that the others are measured against.

One ``nn.Sequential`` and one ``torch.optim.Adam`` per network, a Python loop per critic, iteration and step.
"""

from __future__ import annotations

import itertools

import numpy as np
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
    """:param sizes: inputs, hidden units, actions; the same for actor and critics
    :param one_hot: observations are state numbers
    """

    name = "textbook PyTorch"

    def __init__(self, sizes: list[int], n_critics: int, one_hot: bool, hyperparameters: Hyperparameters) -> None:
        self.sizes, self.one_hot = sizes, one_hot
        self.actor = perceptron(sizes)
        self.critics = [[perceptron(sizes), perceptron(sizes)] for _ in range(n_critics)]
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), hyperparameters.actor_learning_rate)
        self.optimizers = {
            network: torch.optim.Adam(network.parameters(), hyperparameters.learning_rate)
            for pair in self.critics
            for network in pair
        }

    def _inputs(self, observations: np.ndarray) -> torch.Tensor:
        tensor = torch.as_tensor(observations)
        return one_hot(tensor, self.sizes[0]).float() if self.one_hot else tensor

    def epoch(self, data: Transitions, batches: IntArray, critics: IntArray, hyper: Hyperparameters) -> None:
        """One learning epoch."""
        assert isinstance(hyper.actor_rule, Conservative)
        rate = hyper.actor_rule.rate
        for critic, batch in zip(critics, batches, strict=True):
            states, next_states = self._inputs(data.observations[batch]), self._inputs(data.next_observations[batch])
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
                greedy = one_hot(target.argmax(dim=1), self.sizes[-1])
                policy = (1 - rate) * policy + rate * greedy
            for _ in range(hyper.fit_steps):
                loss = mse_loss(self.actor(states).softmax(dim=1), policy)
                self.actor_optimizer.zero_grad()
                loss.backward()
                self.actor_optimizer.step()
