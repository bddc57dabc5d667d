"""Critics that the kernels cannot train, in batched PyTorch: layer normalisation, priors, other fits.

The networks of all critics of all runs are one batch, B = R C. The backward pass is written out. On a GPU, the whole
epoch of the critics is a CUDA graph. The actors are trained by the kernels as ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bdpi.learner.adam import BETA_1, BETA_2, EPSILON, AdamTensors
from bdpi.learner.streams import LAUNCHING
from scales.candidates import Candidate
from scales.learning import Learning, initial_networks
from scales.tasks import Space

PRIOR_SEED = 1_000_000  # priors are drawn with other seeds than networks
NORM_EPSILON = 1e-5


class Perceptrons:
    """Functions of many networks (B, P) at once, each with its own inputs (B, N, I + 1), the last of which is 1.

    Parameters are in another order than elsewhere: a row of hidden units for each input, one for the biases, one for
    each output, then the outputs' biases.

    :param sizes: inputs, hidden units, outputs
    :param layer_norm: normalise hidden units before tanh, without parameters
    """

    def __init__(self, sizes: tuple[int, int, int], layer_norm: bool, device: torch.device) -> None:
        self._sizes, self._layer_norm = sizes, layer_norm
        inputs, hidden, outputs = sizes
        self._n_first, self._n_second = (inputs + 1) * hidden, hidden * outputs
        places = torch.arange(self._n_first + self._n_second + outputs)
        places[: inputs * hidden] = places[: inputs * hidden].view(hidden, inputs).t().flatten()
        self._from, self._to = places.to(device), places.argsort().to(device)

    def arranged(self, rows: Tensor) -> Tensor:
        """Rows (B, P) from the order of ``module.parameters()``."""
        return rows.index_select(1, self._from)

    def arranged_back(self, rows: Tensor) -> Tensor:
        """Rows (B, P) in the order of ``module.parameters()``."""
        return rows.index_select(1, self._to)

    def values(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Outputs (B, N, A)."""
        return self.forward(parameters, x)[0]

    def forward(self, parameters: Tensor, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Outputs, and what :meth:`backward` needs."""
        first, second, bias = self._parts(parameters)
        z, kept = torch.bmm(x, first), []
        if self._layer_norm:
            y, mean, deviation = torch.native_layer_norm(z, [self._sizes[1]], None, None, NORM_EPSILON)
            z, kept = y, [z, mean, deviation]
        h = z.tanh_()
        return torch.baddbmm(bias, h, second.transpose(1, 2)), [h, *kept]

    def backward(self, parameters: Tensor, x: Tensor, kept: list[Tensor], d: Tensor, gradient: Tensor) -> None:
        """Write the gradient (B, P) for a loss whose derivatives by the outputs are ``d``."""
        h, *norm = kept
        _, second, _ = self._parts(parameters)
        d_first, d_second, d_bias = self._parts(gradient)
        torch.bmm(d.transpose(1, 2), h, out=d_second)
        torch.sum(d, dim=1, keepdim=True, out=d_bias)
        dz = torch.ops.aten.tanh_backward(torch.bmm(d, second), h)
        if norm:
            wanted = [True, False, False]
            shape = [self._sizes[1]]
            dz = torch.ops.aten.native_layer_norm_backward(dz, norm[0], shape, *norm[1:], None, None, wanted)[0]
        torch.bmm(x.transpose(1, 2), dz, out=d_first)

    def _parts(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views: (B, I + 1, H), (B, A, H), (B, 1, A)."""
        inputs, hidden, outputs = self._sizes
        first, second, bias = rows.split([self._n_first, self._n_second, outputs], dim=1)
        return first.unflatten(1, (inputs + 1, hidden)), second.unflatten(1, (outputs, hidden)), bias.unsqueeze(1)


@dataclass
class Fitted:
    """Networks during an epoch: copies, rows as :class:`Perceptrons` takes them.

    :param places: where they come from and go to, among all networks of an :class:`AdamTensors`
    :param steps: of Adam, (B,)
    """

    places: Tensor
    parameters: Tensor
    first_moment: Tensor
    second_moment: Tensor
    steps: Tensor

    @classmethod
    def taken(cls, tensors: AdamTensors, places: Tensor, networks: Perceptrons) -> Fitted:
        """Copies of the networks at these places."""
        rows = tensors.parameters, tensors.first_moment, tensors.second_moment
        parts = [networks.arranged(each.flatten(end_dim=-2).index_select(0, places)) for each in rows]
        return cls(places, *parts, tensors.steps.flatten().index_select(0, places))

    def put_back(self, tensors: AdamTensors, networks: Perceptrons) -> None:
        """Write them to where they were."""
        for name in ("parameters", "first_moment", "second_moment"):
            rows = getattr(tensors, name)
            rows.view(-1, rows.shape[-1]).index_copy_(0, self.places, networks.arranged_back(getattr(self, name)))
        tensors.steps.view(-1).index_copy_(0, self.places, self.steps)

    def begin(self, keeps: Tensor) -> None:
        """A new target: forget Adam's moments and steps where ``keeps`` (B, 1) is 0, not 1."""
        self.first_moment *= keeps
        self.second_moment *= keeps
        self.steps *= keeps.squeeze(1).long()

    def step(self, gradient: Tensor, step_size: Tensor, scale: Tensor, epsilon: Tensor) -> None:
        """One step of Adam; ``step_size`` and ``scale`` are columns (B, 1) of what :func:`step_sizes` says."""
        self.first_moment.lerp_(gradient, 1 - BETA_1)
        self.second_moment.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
        divisor = torch.addcmul(epsilon, self.second_moment.sqrt(), scale)
        self.parameters.addcdiv_(self.first_moment * step_size, divisor, value=-1)


def step_sizes(steps: Tensor, rates: Tensor, decays: Tensor, fit_steps: int) -> tuple[Tensor, Tensor]:
    """Learning rates and factors of the roots of second moments, with Adam's corrections, for a fit: (B, F) both.

    :param steps: before the fit, (B,)
    :param rates: of learning, (B, 1), float64 as the next
    :param decays: 1 where rates fall linearly, (B, 1): the first step has the whole rate, the last one 1 / F of it
    """
    numbers = torch.arange(fit_steps, dtype=torch.float64, device=steps.device)
    counts = steps.unsqueeze(1) + numbers + 1
    rates = rates * (1 - decays * numbers / fit_steps)
    corrections = [-torch.expm1(counts * math.log(beta)) for beta in (BETA_1, BETA_2)]
    return (rates / corrections[0]).float(), corrections[1].rsqrt().float()


class Recorded:
    """Calls a function that changes tensors in place: the first time as it is, from then on as a CUDA graph.

    The function must read all that changes from the same tensors each time. Without a GPU, and if it cannot be
    recorded, it is called as it is.
    """

    def __init__(self, function: Callable[[], None], device: torch.device, name: str) -> None:
        self._function, self._name = function, name
        self._graph: torch.cuda.CUDAGraph | None = None
        self._may_record, self._was_called = device.type == "cuda", False

    def __call__(self) -> None:
        """Call it, on the current stream, which must not be the default one."""
        if self._may_record and self._was_called and self._graph is None:
            self._record()
        if self._graph is None:
            self._function()
        else:
            self._graph.replay()
        self._was_called = True

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with LAUNCHING:  # one recording at a time, and nobody waits for the device meanwhile
            try:
                # On the stream where the function ran before: libraries have set themselves up there.
                stream = torch.cuda.current_stream()
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    self._function()
                self._graph = graph
            except (RuntimeError, NotImplementedError) as error:  # nothing was executed
                self._may_record = False
                torch.cuda.synchronize()
                print(f"{self._name}: no CUDA graph, goes on without, which is slower: {error}", flush=True)


class PlainLearning(Learning):
    """Runs whose critics PyTorch trains; see :class:`scales.learning.Learning`."""

    def __init__(
        self,
        space: Space,
        candidates: Sequence[Candidate],
        seeds: Sequence[int],
        hidden: int,
        steps: int,
        device: torch.device,
        sharing: int,
        name: str,
    ) -> None:
        super().__init__(space, candidates, seeds, hidden, steps, device, sharing, name)
        self._has_priors = any(candidate.prior for candidate in candidates)
        self._drawn_priors = [
            initial_networks(PRIOR_SEED + seed, self.sizes, self.n_critics)[0]
            for seed in (seeds if self._has_priors else ())
        ]

    def allocate(self) -> None:
        """Make tensors, in the thread that uses them."""
        device, candidates = self.device, self._candidates
        self._perceptrons = Perceptrons(self.sizes, candidates[0].layer_norm, device)

        def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return self._repeated(torch.tensor(values, dtype=dtype, device=device).unsqueeze(1))

        self._decays = column([each.rate_decay for each in candidates], torch.float64)
        self._keeps = column([not each.fresh_moments for each in candidates], torch.float32)
        self._prior_sizes = column([each.prior for each in candidates], torch.float32).unsqueeze(2)
        self._run_numbers = self._repeated(torch.arange(self.runs, device=device))
        self._epsilon = torch.full((1, 1), EPSILON, device=device)
        self._train_critics = Recorded(self._critics_epoch, device, self._name)
        super().allocate()

    def make_priors(self) -> Tensor:
        """Fixed networks of Q_A and Q_B of each critic, (R, C, 2, P).

        Only new scales of returns change them, as all Q-values: predictions in the environment's units stay the same.
        """
        if not self._has_priors:
            return super().make_priors()
        return torch.as_tensor(np.stack(self._drawn_priors)).to(self.device)

    def train(self) -> None:
        """An epoch with the batches and in the order that ``tensors`` holds."""
        with self._streams.let_others_go_first():
            self._train_critics()
        self._networks.train_actor(self.actors, self.memory, self.runs, self.tensors, self._hyperparameters)

    def _critics_epoch(self) -> None:
        """All training iterations of all critics; tensors in, tensors out, nothing that depends on their values."""
        tensors, networks, hyper = self.tensors, self._perceptrons, self._hyperparameters
        x, next_x, actions, rewards, discounts = self._gathered()
        all_rates = self._repeated(tensors.rates)
        rates, step_size = all_rates[:, :1], all_rates[:, 2].float().view(-1, 1, 1)
        critics = self.n_critics * self._run_numbers + tensors.order.long().flatten()
        first = self.active.flatten().index_select(0, critics)
        pair = [Fitted.taken(self.critics, 2 * critics + place, networks) for place in (first, 1 - first)]
        priors = [self._prior(each.places, x) for each in pair]
        next_priors = [self._prior(each.places, next_x) for each in pair]

        q_next = [
            networks.values(each.parameters, next_x) + prior for each, prior in zip(pair, next_priors, strict=True)
        ]
        for iteration in range(hyper.critic_iterations):
            a, b = iteration % 2, 1 - iteration % 2
            best = q_next[a].argmax(dim=2, keepdim=True)
            value = rewards + discounts * torch.minimum(q_next[a].gather(2, best), q_next[b].gather(2, best))
            y, kept = networks.forward(pair[a].parameters, x)
            q = y + priors[a]
            change = step_size * (value - q.gather(2, actions))
            targets = y.scatter_add(2, actions, change)
            self._fit(pair[a], x, y, kept, targets, rates)
            if iteration + 1 < hyper.critic_iterations:
                q_next[a] = networks.values(pair[a].parameters, next_x) + next_priors[a]

        for each in pair:
            each.put_back(self.critics, networks)
        self.active.view(-1).index_copy_(0, critics, (first + hyper.critic_iterations) % 2)
        tensors.q.copy_((targets + priors[a]).view_as(tensors.q))
        shape = tensors.metrics.shape[:2]
        tensors.metrics[..., 0] = (change.square().sum(dim=(1, 2)) / y[0].numel()).view(shape)
        tensors.metrics[..., 2] = q.mean(dim=(1, 2)).view(shape)

    def _fit(self, network: Fitted, x: Tensor, y: Tensor, kept: list[Tensor], targets: Tensor, rates: Tensor) -> None:
        """Fit networks to their targets.

        :param y: their outputs now
        :param kept: of the same evaluation
        """
        fit_steps, gradient = self._hyperparameters.fit_steps, torch.empty_like(network.parameters)
        network.begin(self._keeps)
        sizes, scales = step_sizes(network.steps, rates, self._decays, fit_steps)
        for step in range(fit_steps):
            if step:
                y, kept = self._perceptrons.forward(network.parameters, x)
            d = (y - targets).mul_(2 / y[0].numel())
            self._perceptrons.backward(network.parameters, x, kept, d, gradient)
            network.step(gradient, sizes[:, step : step + 1], scales[:, step : step + 1], self._epsilon)
        network.steps += fit_steps

    def _gathered(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Inputs and next inputs (B, N, I + 1), actions, rewards as networks see them, discounts (B, N, 1)."""
        memory, scales = self.memory, self._repeated(self.tensors.scales).unsqueeze(1)
        beginnings = memory.actions.shape[1] * self._run_numbers.unsqueeze(1)
        places = self.tensors.batches.long().view(-1, self.batch_size) + beginnings

        def at(column: Tensor) -> Tensor:
            return column.flatten(end_dim=1).index_select(0, places.flatten()).view(*places.shape, *column.shape[2:])

        discounts = at(memory.discounts).unsqueeze(2)
        shift, factor = scales[..., -2:-1], scales[..., -1:]
        rewards = (at(memory.rewards).unsqueeze(2) - (1 - discounts) * shift) * factor
        x, next_x = (self._network_inputs(at(each), scales) for each in (memory.observations, memory.next_observations))
        return x, next_x, at(memory.actions).unsqueeze(2), rewards, discounts

    def _network_inputs(self, observations: Tensor, scales: Tensor) -> Tensor:
        """(..., I + 1) of observations (..., I) or state numbers (...); the last one is 1."""
        inputs = self.space.inputs
        if self.space.one_hot:
            x = (observations.unsqueeze(-1) == torch.arange(inputs, device=self.device)).float()
        else:
            x = (observations - scales[..., :inputs]) * scales[..., inputs : 2 * inputs]
        return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)

    def _repeated(self, tensor: Tensor) -> Tensor:
        """(B, ...) from (R, ...): what concerns a run, for each of its critics."""
        return tensor.unsqueeze(1).expand(-1, self.n_critics, *tensor.shape[1:]).flatten(end_dim=1)

    def _prior(self, places: Tensor, x: Tensor) -> Tensor:
        """The fixed part of the Q-values of networks; broadcasts where there is none."""
        if not self._has_priors:
            return self._prior_sizes
        chosen = self.priors.flatten(end_dim=-2).index_select(0, places)
        return self._prior_sizes * self._perceptrons.values(self._perceptrons.arranged(chosen), x)

    def q_values(self) -> tuple[Tensor, Tensor]:
        """Q_A and Q_B of all critics, (R, C, A), in the networks' units."""
        x = self._network_inputs(self._there.tensors["current"], self.tensors.scales)
        x = self._repeated(x).unsqueeze(1)
        critics, active = torch.arange(len(x), device=self.device), self.active.flatten()
        result = []
        for places in (2 * critics + active, 2 * critics + 1 - active):
            chosen = self.critics.parameters.flatten(end_dim=-2).index_select(0, places)
            q = self._perceptrons.values(self._perceptrons.arranged(chosen), x) + self._prior(places, x)
            result.append(q.view(self.runs, self.n_critics, -1))
        return result[0], result[1]
