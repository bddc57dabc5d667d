"""The networks and replay memories of many runs, trained by the fused kernels.

R runs have C critics each, which are trained with K = C batches of N transitions. All runs make a step at the same
time. Everything random is drawn on the device.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bdpi.learner.adam import AdamTensors
from bdpi.learner.functional import flatten_parameters
from bdpi.learner.fused import EpochTensors, FusedNetworks, is_suitable
from bdpi.learner.interface import Hyperparameters, NetworkState
from bdpi.learner.memory import TensorTransitions
from bdpi.learner.rules import Conservative
from bdpi.learner.scales import Scales, rescale_critics
from bdpi.learner.staging import Staging
from bdpi.learner.streams import LAUNCHING, EpochStreams
from scales.candidates import Candidate
from scales.critic_rules import critic_rule
from scales.deploy import choose
from scales.scaling import preserve_first_layers
from scales.tasks import Space

REDRAWS = 12  # of transitions that a critic may not see


@functools.cache
def initial_networks(
    seed: int, sizes: tuple[int, int, int], n_critics: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Critics (C, 2, P) and actor (P,) as PyTorch initialises them; not to be called by several threads at a time."""
    torch.manual_seed(seed)

    def network() -> NDArray[np.float32]:
        inputs, hidden, outputs = sizes
        return flatten_parameters(nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)))

    critics = np.array([[network() for _ in range(2)] for _ in range(n_critics)])
    return critics, network()


def evaluate(
    parameters: Tensor, sizes: tuple[int, int, int], inputs: Tensor, one_hot: bool, relu: bool = False
) -> Tensor:
    """Outputs (..., A) of networks (..., P), each for one observation: (..., I), or (...) state numbers."""
    n_in, hidden, n_out = sizes
    flat = parameters.reshape(-1, parameters.shape[-1])
    parts = torch.split(flat, [n_in * hidden, hidden, hidden * n_out, n_out], dim=1)
    first, second = parts[0].view(-1, hidden, n_in), parts[2].view(-1, n_out, hidden)
    if one_hot:
        states = inputs.reshape(-1, 1, 1).expand(-1, hidden, 1)
        y = first.gather(2, states) + parts[1].unsqueeze(2)
    else:
        y = torch.baddbmm(parts[1].unsqueeze(2), first, inputs.reshape(-1, n_in, 1))
    y = torch.baddbmm(parts[3].unsqueeze(2), second, y.relu() if relu else y.tanh())
    return y.view(*parameters.shape[:-1], n_out)


class Learning:
    """Runs of one task whose networks have the same sizes.

    :param space: of the task
    :param candidates: one per run, of the same shape
    :param seeds: one per run
    :param hidden: units
    :param steps: as many as runs will make; replay memories need not be larger
    :param device: where they are trained
    :param sharing: how many runs share the device, see :class:`bdpi.learner.fused.FusedNetworks`
    :param name: the numbers that are drawn follow from it
    """

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
        self.space, self.device = space, device
        first, count = candidates[0], len(candidates)
        self.runs, self.n_critics, self.batch_size = count, first.n_critics, first.batch_size
        self.sizes = (space.inputs, hidden, space.actions)
        rule = Conservative()
        if not is_suitable(self.sizes, space.one_hot, self.batch_size, 0.0):
            raise ValueError(f"{name}: the kernels cannot train networks of {self.sizes}")
        #: launches of the critics' kernel in an epoch, each with batches of its own
        self._launches = first.critic_iterations if first.fresh else 1
        iterations = first.critic_iterations // self._launches
        self._hyperparameters = Hyperparameters(iterations, first.fit_steps, critic_rule(first.clip), actor_rule=rule)
        self._networks = FusedNetworks(self.sizes, self.sizes, space.one_hot, first.relu, runs=sharing)
        self._relu = first.relu
        self._initial = [initial_networks(seed, self.sizes, self.n_critics) for seed in seeds]
        self._candidates = candidates
        self._name, self._steps = name, steps
        self._n_last = (hidden + 1) * space.actions
        #: transitions of each run so far, and epochs
        self.added, self.epochs = 0, 0
        self._capacities = np.array([min(candidate.capacity, steps) for candidate in candidates])
        self._n_steps = np.array([candidate.n_step for candidate in candidates])
        self._n_step_until = np.array([candidate.n_step_until or steps for candidate in candidates])
        self._ages = np.zeros(count, np.int64)  # steps since the beginning of the episode
        self._resets = np.array([candidate.reset_every for candidate in candidates])
        self._draws = Draws(candidates, zlib.crc32(name.encode()))
        self._novelty = Novelty(candidates, space, steps)

    def allocate(self) -> None:
        """Make tensors, in the thread that uses them."""
        device, space, count = self.device, self.space, self.runs
        critics = np.stack([critics for critics, _ in self._initial])
        for run, candidate in enumerate(self._candidates):
            critics[run, ..., -self._n_last :] *= candidate.initial_spread
        self.critics = AdamTensors(NetworkState.fresh(critics), device)
        self.actors = AdamTensors(NetworkState.fresh(np.stack([actor for _, actor in self._initial])), device)
        self.active = torch.zeros((count, self.n_critics), dtype=torch.int64, device=device)
        self.priors = self.make_priors()
        self._streams = EpochStreams(device)
        self._generator = torch.Generator(device).manual_seed(zlib.crc32(self._name.encode()))
        capacity = int(self._capacities.max())
        seen: tuple[tuple[int, ...], Any] = ((), np.int64) if space.one_hot else ((space.inputs,), np.float32)

        def room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros((count, capacity, *shape), dtype=dtype, device=device)

        observed = torch.int64 if space.one_hot else torch.float32
        self.memory = TensorTransitions(
            room(seen[0], observed),
            room((), torch.int64),
            room((), torch.float32),
            room((), torch.float32),
            room(seen[0], observed),
            None,
            None,
        )
        self._longer = np.flatnonzero(self._n_steps > 1)
        longest = int(self._n_steps.max())
        earlier = (len(self._longer), longest - 1)
        parts = {
            "current": ((count, *seen[0]), seen[1]),
            "observations": ((count, *seen[0]), seen[1]),
            "actions": ((count,), np.int64),
            "rewards": ((count,), np.float32),
            "discounts": ((count,), np.float32),
            "next_observations": ((count, *seen[0]), seen[1]),
            "places": ((count,), np.int64),
            "sizes": ((count,), np.float32),
            "scales": ((count, 2 * space.inputs + 2), np.float32),
            "draws_anew": ((count,), np.bool_),
            "is_greedy": ((count,), np.bool_),
            "weights": ((count,), np.float64),
        }
        if len(self._longer):
            parts |= {"earlier": (earlier, np.int64), "is_earlier": (earlier, np.bool_)}
        self._there = Staging(parts, device)
        self._back = Staging({"actions": ((count,), np.int64)}, device)
        there = self._there.tensors
        names = "observations", "actions", "rewards", "discounts", "next_observations"
        self._new = TensorTransitions(**{name: there[name] for name in names}, masks=None, next_masks=None)
        shape = (count, self.n_critics, self.batch_size)
        self.tensors = EpochTensors(
            members=torch.arange(count, dtype=torch.int32, device=device),
            batches=torch.zeros(shape, dtype=torch.int32, device=device),
            order=torch.zeros(shape[:2], dtype=torch.int32, device=device),
            rates=torch.tensor([each.rates for each in self._candidates], dtype=torch.float64, device=device),
            q=torch.zeros((*shape, space.actions), device=device),
            metrics=torch.zeros((*shape[:2], 3), device=device),
            scales=there["scales"],
        )
        self._race = torch.ones((count, space.actions), device=device)
        self._longer_index = torch.as_tensor(self._longer, device=device)
        shares = np.array([candidate.share for candidate in self._candidates])
        self._sharing = torch.as_tensor(np.flatnonzero(shares < 1), device=device)
        self._shares = torch.as_tensor(shares[shares < 1], device=device).float().view(-1, 1, 1)
        self._sharing_capacities = torch.as_tensor(self._capacities[shares < 1], device=device).view(-1, 1, 1)
        balanced = [run for run, candidate in enumerate(self._candidates) if candidate.balance]
        self._balanced = torch.tensor(balanced, dtype=torch.int64, device=device)
        self._sums = torch.full((len(balanced), capacity), math.inf, dtype=torch.float64, device=device)
        bounds = [1 / math.sqrt(n) for n in self.sizes[:2]]
        n_last = self._n_last
        self._bounds = torch.tensor([bounds[0]] * (critics.shape[-1] - n_last) + [bounds[1]] * n_last, device=device)
        if device.type == "cuda":
            with LAUNCHING:  # to wait for the device would spoil what another group records
                torch.cuda.synchronize(device)  # other streams use the tensors from now on

    def make_priors(self) -> Tensor:
        """Networks that are added to critics and not trained, (R, C, ..., P); none here."""
        return torch.zeros((self.runs, self.n_critics, 0), device=self.device)

    # -- one step -----------------------------------------------------------------------------------------------

    def work(self) -> Any:
        """What is started meanwhile is computed in order, beside what other groups compute."""
        return self._streams.work()

    def wait(self) -> NDArray[np.int64]:
        """For what was started; returns the actions."""
        self._streams.wait()
        return self._back.arrays["actions"]

    def set_scales(self, scales: NDArray[np.float32]) -> None:
        """Scales of all runs, (R, 2 I + 2); they count from the next :meth:`look` or :meth:`store` on."""
        self._there.arrays["scales"][:] = scales

    def look(self, observations: NDArray[Any], draws_anew: NDArray[np.bool_] | bool = True) -> None:
        """Send observations on which to act, and which runs draw new random numbers for that."""
        self._there.arrays["current"][:] = observations
        self._there.arrays["draws_anew"][:] = draws_anew
        self._there.arrays["is_greedy"][:] = self._draws.is_greedy
        self._there.send()

    def store(self, observations: NDArray[Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Put one transition of each run into its replay memory, and look at what comes next.

        :meth:`wait` before the next one: the host's arrays may not change until the device has copied them.

        :param observations: on which runs acted
        :param arrays: see :class:`workers.Environments`
        """
        there, capacity = self._there.arrays, self.memory.actions.shape[1]
        there["observations"][:] = observations
        for name in ("actions", "rewards", "discounts"):
            there[name][:] = arrays[name]
        there["next_observations"][:] = arrays["final"]
        there["rewards"] += self._novelty.add(arrays, there["scales"][:, -1])
        there["weights"][:] = self._novelty.weights
        first = np.arange(self.runs) * capacity
        there["places"][:] = first + self.added % self._capacities
        there["sizes"][:] = np.minimum(self.added + 1, self._capacities)
        if len(self._longer):
            ago, rows = np.arange(1, self._n_steps.max()), self._longer[:, None]
            there["earlier"][:] = first[rows] + (self.added - ago) % self._capacities[rows]
            is_long = (self._n_steps[rows] > ago) & (self.added - ago < self._n_step_until[rows])
            there["is_earlier"][:] = is_long & (self._ages[rows] >= ago)
        self._ages = np.where(arrays["ended"], 0, self._ages + 1)
        self.look(arrays["observations"], self._draws.anew(arrays["rewards"], arrays["ended"]))
        self._networks.remember(self.memory, self._new, self._there.tensors["places"], self.runs)
        if len(self._longer):
            self._lengthen()
        if len(self._balanced):
            self._sums[:, self.added] = self._there.tensors["weights"][self._balanced]
        self.added += 1

    def _lengthen(self) -> None:
        """Add the new reward to earlier transitions of the same episode, which then lead to the new observation."""
        there, rows = self._there.tensors, self._longer_index
        at, counts = there["earlier"], there["is_earlier"]
        rewards, discounts = self.memory.rewards.view(-1), self.memory.discounts.view(-1)
        sums, products = rewards[at], discounts[at]
        reward, discount = there["rewards"][rows].unsqueeze(1), there["discounts"][rows].unsqueeze(1)
        rewards[at] = torch.where(counts, sums + products * reward, sums)
        discounts[at] = torch.where(counts, products * discount, products)
        led_to = self.memory.next_observations.view(-1, *self.memory.next_observations.shape[2:])
        counts = counts.view(*counts.shape, *[1] * (led_to.dim() - 1))
        led_to[at] = torch.where(counts, there["next_observations"][rows].unsqueeze(1), led_to[at])

    def epoch(self) -> None:
        """One learning epoch of every run, if there is a batch."""
        if self.added < self.batch_size:
            return
        for _ in range(self._launches - 1):
            self._draw()
            self._train_critics()
        self._draw()
        self.train()
        self.epochs += 1
        is_due = (self._resets > 0) & (self.epochs % np.maximum(self._resets, 1) == 0)
        if is_due.any():
            self._begin_anew(np.flatnonzero(is_due))

    def train(self) -> None:
        """An epoch with the batches and in the order that ``tensors`` holds."""
        self._train_critics()
        self._networks.train_actor(self.actors, self.memory, self.runs, self.tensors, self._hyperparameters)

    def _train_critics(self) -> None:
        everything = self.memory, self.runs, self.tensors, self._hyperparameters
        with self._streams.let_others_go_first():
            self._networks.train_critics(self.critics, self.active, *everything)

    def act(self) -> None:
        """Draw an action of each run for what it looks at: the first to arrive in a race of exponential times."""
        policy, anew = self.policy(), self._there.tensors["draws_anew"].unsqueeze(1)
        drawn = torch.empty_like(policy).exponential_(generator=self._generator)
        self._race.copy_(torch.where(anew, drawn, self._race))
        drawn = (policy / self._race).argmax(dim=1)
        self._answer(torch.where(self._there.tensors["is_greedy"], policy.argmax(dim=1), drawn))

    def _answer(self, actions: Tensor) -> None:
        self._back.tensors["actions"].copy_(actions)
        self._back.receive()

    # -- predictions --------------------------------------------------------------------------------------------

    def policy(self) -> Tensor:
        """Probabilities (R, A) for what runs look at."""
        return self._evaluate(self.actors.parameters, self._inputs()).softmax(dim=1)

    def q_values(self) -> tuple[Tensor, Tensor]:
        """Q_A and Q_B of all critics, (R, C, A), in the networks' units."""
        shape = (self.runs, self.n_critics, 2)
        inputs = self._inputs()
        inputs = inputs.view(self.runs, 1, 1, *inputs.shape[1:]).expand(*shape, *inputs.shape[1:])
        q = self._evaluate(self.critics.parameters, inputs)
        index = self.active.view(*shape[:2], 1, 1).expand(-1, -1, 1, q.shape[-1])
        return q.gather(2, index).squeeze(2), q.gather(2, 1 - index).squeeze(2)

    def _evaluate(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        return evaluate(parameters, self.sizes, inputs, self.space.one_hot, self._relu)

    def choose(self, rule: str) -> None:
        """An action of each run for what it looks at, by one of :data:`deploy.RULES`."""
        if rule == "drawn":
            self.act()
        else:
            self._answer(choose(rule, self.policy(), *self.q_values()))

    def _inputs(self) -> Tensor:
        current, inputs = self._there.tensors["current"], self.space.inputs
        if self.space.one_hot:
            return current
        scales = self.tensors.scales
        return (current - scales[:, :inputs]) * scales[:, inputs : 2 * inputs]

    # -- what is drawn ------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        """Batches and the order of critics."""
        sizes = np.minimum(self.added, self._capacities)
        batches, order = self.tensors.batches, self.tensors.order
        if sizes.min() == sizes.max():
            batches.random_(0, int(sizes[0]), generator=self._generator)
        else:
            limits = self._there.tensors["sizes"].view(-1, 1, 1)
            drawn = torch.rand(batches.shape, generator=self._generator, device=self.device)
            batches.copy_(torch.minimum((drawn * limits).floor_(), limits - 1))
        order.copy_(torch.rand(order.shape, generator=self._generator, device=self.device).argsort(dim=1))
        if len(self._sharing):
            batches[self._sharing] = self._draw_shares().int()
        if len(self._balanced):
            shape = (len(self._balanced), batches[0].numel())
            drawn = torch.rand(shape, generator=self._generator, device=self.device, dtype=torch.float64)
            places = torch.searchsorted(self._sums, drawn * self._sums[:, self.added - 1 : self.added], right=True)
            batches[self._balanced] = places.clamp_(max=self.added - 1).int().view(-1, *batches.shape[1:])

    def _draw_shares(self) -> Tensor:
        """Batches of runs whose critics see only a share of the transitions: the first of a few that they may see."""
        limits = self._there.tensors["sizes"][self._sharing].view(-1, 1, 1)
        shape = (REDRAWS, len(self._sharing), *self.tensors.batches.shape[1:])
        drawn = torch.rand(shape, generator=self._generator, device=self.device)
        places = torch.minimum((drawn * limits).floor_(), limits - 1).long()
        age = (self.added - 1 - places) % self._sharing_capacities
        critics = self.tensors.order[self._sharing].long().unsqueeze(2)
        may = hashed(self.added - 1 - age, critics) < self._shares
        chosen = may.byte().argmax(dim=0, keepdim=True)
        return places.gather(0, chosen).squeeze(0)

    # -- rare changes -------------------------------------------------------------------------------------------

    def rescale(self, changes: Mapping[int, tuple[Scales, Scales]]) -> None:
        """Change critics so that what they predict stays the same in the environment's units.

        Critics that have seen no reward yet predict numbers without a unit: they stay as they are.
        """
        names = "parameters", "first_moment", "second_moment"
        for run, (before, after) in changes.items():
            if self._candidates[run].preserve and not self.space.one_hot:
                for networks in (self.critics, self.actors):
                    state = {name: getattr(networks, name)[run] for name in names}
                    preserve_first_layers(state, before, after, self.sizes[1])
            if self._candidates[run].novelty and before.return_factor != after.return_factor:
                rewards = torch.as_tensor(self._novelty.rewards(run, after.return_factor), device=self.device)
                self.memory.rewards[run, : len(rewards)] = rewards
            same = (before.return_shift, before.return_factor) == (after.return_shift, after.return_factor)
            if same or not before.knows_returns:
                continue
            state = {f"critics.{name}": getattr(self.critics, name)[run] for name in names}
            state["priors"] = self.priors[run]
            rescale_critics(state, before, after, self._n_last, self.space.actions)

    def _begin_anew(self, runs: NDArray[np.int64]) -> None:
        """The next critic of each of these runs is a new one."""
        turns = self.epochs // self._resets[runs] - 1
        at = torch.as_tensor(runs, device=self.device), torch.as_tensor(turns % self.n_critics, device=self.device)
        shape = (len(runs), 2, len(self._bounds))
        drawn = torch.rand(shape, generator=self._generator, device=self.device)
        spreads = [self._candidates[run].initial_spread for run in runs.tolist()]
        drawn = (2 * drawn - 1) * self._bounds
        drawn[..., -self._n_last :] *= torch.tensor(spreads, device=self.device).view(-1, 1, 1)
        self.critics.parameters[at] = drawn
        for tensor in (self.critics.first_moment, self.critics.second_moment, self.critics.steps, self.active):
            tensor[at] = 0

    def diverged(self) -> NDArray[np.bool_]:
        """Which runs have parameters that are no numbers; waits for the device."""
        critics = self.critics.parameters.isfinite().flatten(1).all(dim=1)
        return ~(critics & self.actors.parameters.isfinite().all(dim=1)).cpu().numpy()


class Draws:
    """When runs draw new random numbers for their actions.

    :param candidates: one per run
    :param seed: of what is drawn here
    """

    def __init__(self, candidates: Sequence[Candidate], seed: int) -> None:
        self._persistence = np.array([candidate.persistence for candidate in candidates])
        self._until = np.array([candidate.persistence_until or np.inf for candidate in candidates])
        self._trials = [Trials(each.persistence_trials, each.greedy_trials) for each in candidates]
        #: which runs take the most probable action
        self.is_greedy = np.zeros(len(candidates), np.bool_)
        self._generator, self._steps = np.random.default_rng(seed), 0
        self._returns, self._means = np.zeros(len(candidates)), np.ones(len(candidates))
        self._begin_episodes(np.arange(len(candidates)))

    def anew(self, rewards: NDArray[Any], ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """After one more step of each run: True where the next action is drawn by new numbers."""
        self._steps += 1
        self._returns += rewards
        self._begin_episodes(np.flatnonzero(ended))
        means = np.where(self._steps < self._until, self._means, 1.0)
        return ended | (self._generator.random(len(means)) * means < 1)

    def _begin_episodes(self, runs: NDArray[np.int64]) -> None:
        """Choose how the next episode of these runs draws: the mean time for which numbers are kept, or greedily."""
        for run in runs.tolist():
            trials = self._trials[run]
            if self._steps:
                trials.add(float(self._returns[run]))
            keeps, self.is_greedy[run] = trials.choose(self._generator)
            self._returns[run] = 0.0
            self._means[run] = self._persistence[run] ** self._generator.random() if keeps else 1.0


class Trials:
    """How an episode draws its actions, by what such episodes were worth.

    :param keeps: tries whether to keep random numbers; otherwise always does
    :param greedy: tries the most probable actions
    """

    WINDOW, FEWEST, SELDOM = 10, 3, 0.05
    GREEDY_SELDOM, GREEDY_OFTEN = 0.1, 0.8

    def __init__(self, keeps: bool = True, greedy: bool = False) -> None:
        self._tries_keeping, self._tries_greedy = keeps, greedy
        self._without, self._kept, self._drawn, self._greedy = (deque[float](maxlen=self.WINDOW) for _ in range(4))
        self._now = [self._without, self._drawn]

    def add(self, value: float) -> None:
        """The return of the episode that was chosen for."""
        for returns in self._now:
            returns.append(value)

    def choose(self, generator: np.random.Generator) -> tuple[bool, bool]:
        """Whether the next episode keeps them, and whether it is greedy."""
        if self._tries_greedy:
            is_better = self._greedy and self._drawn and np.mean(self._greedy) > np.mean(self._drawn)
            if generator.random() < (self.GREEDY_OFTEN if is_better else self.GREEDY_SELDOM):
                self._now = [self._greedy]
                return False, True
        without, kept = self._without, self._kept
        if not self._tries_keeping:
            share = 1.0
        elif min(len(without), len(kept)) < self.FEWEST:
            share = 0.5 if len(without) == len(kept) else float(len(kept) < len(without))
        else:
            share = self.SELDOM if np.mean(kept) < np.mean(without) else 0.5
        keeps = bool(generator.random() < share) if self._tries_keeping else True
        self._now = [self._kept if keeps else self._without, self._drawn]
        return keeps, False


class Novelty:
    """What it is worth to come to a cell of the observation space that was seldom seen, where rewards are rare; and how
    often transitions are drawn that lead there.

    :param candidates: one per run
    :param space: of the task
    :param steps: as many as there can be
    """

    CELLS = 1000

    def __init__(self, candidates: Sequence[Candidate], space: Space, steps: int) -> None:
        self._candidates, self._space = candidates, space
        self._runs = [run for run, candidate in enumerate(candidates) if candidate.novelty or candidate.balance]
        #: sums of the weights of all transitions so far
        self.weights = np.zeros(len(candidates))
        self._counts: dict[int, dict[tuple[int, ...], int]] = {run: {} for run in self._runs}
        self._raw = {run: np.zeros(min(candidates[run].capacity, steps), np.float32) for run in self._runs}
        self._bonuses = {run: np.zeros_like(raw) for run, raw in self._raw.items()}
        self._n_rewarded = np.zeros(len(candidates), np.int64)
        self._steps = 0
        if self._runs and not space.one_hot:
            if not np.isfinite([space.low, space.high]).all():
                raise ValueError("novelty: for tasks with state numbers or finite bounds")
            self._bins = max(2, round(self.CELLS ** (1 / space.inputs)))

    def add(self, arrays: Mapping[str, NDArray[Any]], factors: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the step of each run is worth in addition, in the environment's units.

        :param arrays: see :class:`workers.Environments`
        :param factors: of returns
        """
        extra = np.zeros(len(self._candidates), np.float32)
        self._n_rewarded += arrays["rewards"] != 0
        for run in self._runs:
            cell, counts = self._cell(arrays["final"][run]), self._counts[run]
            counts[cell] = counts.get(cell, 0) + 1
            candidate, at = self._candidates[run], self._steps % len(self._raw[run])
            is_rare = self._n_rewarded[run] < candidate.rare * (self._steps + 1)
            bonus = candidate.novelty / math.sqrt(counts[cell]) if is_rare else 0.0
            self.weights[run] += counts[cell] ** -candidate.balance
            self._raw[run][at], self._bonuses[run][at] = arrays["rewards"][run], bonus
            extra[run] = bonus / factors[run]
        self._steps += 1
        return extra

    def rewards(self, run: int, factor: float) -> NDArray[np.float32]:
        """All that this run's memory holds, with a new factor of returns."""
        size = min(self._steps, len(self._raw[run]))
        return self._raw[run][:size] + self._bonuses[run][:size] / np.float32(factor)

    def _cell(self, observation: Any) -> tuple[int, ...]:
        if self._space.one_hot:
            return (int(observation),)
        share = (observation - self._space.low) / (self._space.high - self._space.low)
        return tuple(np.minimum((share * self._bins).astype(int), self._bins - 1).tolist())


def hashed(counters: Tensor, critics: Tensor) -> Tensor:
    """A number in [0, 1) for each transition and critic, always the same one."""
    x = (counters * 0x9E3779B1 + critics * 0x85EBCA77 + 0x27220A95) & 0xFFFFFFFF
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF
    x = x ^ (x >> 15)
    return (x >> 8).float() / 2**24
