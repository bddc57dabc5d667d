"""SB3's replay buffers, with what BDPI needs: a discount per transition, arrays from zero, files without pickle."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecEnv

from bdpi.agents import memory_file
from bdpi.agents.apart import pieces
from bdpi.agents.encoding import Arrays
from bdpi.agents.files import File
from bdpi.agents.following import Flat, Following
from bdpi.agents.journal import Transition
from bdpi.agents.memory_file import Contents
from bdpi.agents.spaces import is_zero_based, shift_to_zero
from bdpi.agents.stacks import FrameStacks, Links
from bdpi.learner import Transitions
from bdpi.learner.interface import BoolArray, IntArray, Observations, Ring
from bdpi.learner.scales import returns_to_go

#: Arrays that every memory has, beside its observations.
_OF_ALL = ("actions", "rewards", "dones", "timeouts", "discounts")


def stacked(values: list[Any]) -> Any:
    """Several observations as a batch."""
    if isinstance(values[0], dict):
        return {key: np.stack([value[key] for value in values]) for key in values[0]}
    return np.stack(values)


def _map(function: Any, observations: Any) -> Any:
    if isinstance(observations, dict):
        return {key: function(part) for key, part in observations.items()}
    return function(observations)


def _flat(array: NDArray[Any], rows: int) -> NDArray[Any]:
    """The first rows, those of all environments one after the other."""
    return array[:rows].reshape(-1, *array.shape[2:])


if TYPE_CHECKING:
    _Base = ReplayBuffer
else:
    _Base = object


class TransitionMemory(_Base):
    """Mixed into SB3's two buffers.

    ``discounts`` holds gamma (or what ``info["discount"]`` says of a step), and 0 where the episode terminated; a
    truncated episode keeps gamma. Discrete observations and actions are stored counted from 0, whatever the ``start``
    of their space. ``masks`` and ``next_masks`` exist from the first action mask on; a step without one allows all.

    :param gamma: discount factor of ordinary transitions
    :param n_steps: rewards that a transition of a batch adds up, at most
    :param n_stack: frames in an observation of a batch; each is stored by itself
    :param optimize_memory_usage: store each observation once
    """

    #: batches need to know which transitions follow each other
    looks_ahead = False

    def __init__(
        self,
        *args: Any,
        gamma: float = 0.99,
        n_steps: int = 1,
        n_stack: int = 1,
        optimize_memory_usage: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.gamma, self.n_steps = gamma, n_steps
        #: rows whose transitions do not go on from those of the row before, (rows, n_envs); None: nothing looks ahead
        self.begins: BoolArray | None = None
        if self.looks_ahead or n_steps > 1 or n_stack > 1 or optimize_memory_usage:
            self.begins = np.ones((self.buffer_size, self.n_envs), dtype=bool)
        #: from each transition to the one before it; None: nothing looks back
        self.links: Links | None = None
        if n_stack > 1 and not isinstance(self.observations, dict):  # for which stacks are refused
            self.links = Links(self.buffer_size, self.n_envs, n_stack, self.observations[0, 0])
        if optimize_memory_usage:
            if isinstance(self.observations, dict):
                raise ValueError("optimize_memory_usage=True is not for Dict observations")
            self.next_observations = Following(self.observations)  # type: ignore[assignment]
        self.discounts = np.zeros((self.buffer_size, self.n_envs), dtype=np.float32)
        self.masks: BoolArray | None = None
        self.next_masks: BoolArray | None = None
        #: transitions that are never overwritten; they lie behind the others, in rows of their own
        self.n_demonstrations = 0
        #: how many transitions were ever added, and to which contents: loading replaces them
        self._added, self._contents = 0, object()
        self._starts_at_zero = is_zero_based(self.observation_space)
        assert isinstance(self.action_space, spaces.Discrete)
        self._first_action = int(self.action_space.start)

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: Any,
        reward: Any,
        done: Any,
        infos: list[dict[str, Any]],
        masks: tuple[BoolArray, BoolArray] | None = None,
        environments: Sequence[int] | None = None,
    ) -> None:
        """Store one transition of each environment.

        :param masks: which actions were allowed before and after it, (n_envs, n_actions) each; None: all
        :param environments: numbers of those that they are of; None: each of its own
        """
        row = self.pos
        if self.links is not None and self.full and row < self.buffer_size:
            self.links.free(row, _flat(self.observations, self.buffer_size))
        for index, info in enumerate(infos):
            truncated = info.get("TimeLimit.truncated", False)
            terminated = done[index] and not truncated
            self.discounts[row, index] = 0.0 if terminated else info.get("discount", self.gamma)
            self.timeouts[row, index] = truncated
        if not self._starts_at_zero:
            space = self.observation_space
            obs, next_obs = shift_to_zero(obs, space), shift_to_zero(next_obs, space)
        for name, given in (("observations", obs), ("next_observations", next_obs)):
            stored = getattr(self, name)
            if isinstance(stored, dict):
                for key, array in stored.items():
                    array[row] = np.reshape(given[key], array.shape[1:])
            else:
                stored[row] = given.reshape(stored.shape[1:])
        self.actions[row] = (action - self._first_action).reshape(self.n_envs, 1)
        self.rewards[row], self.dones[row] = reward, done
        if self.begins is not None:
            begins = self.begins[row] = self._begins(np.array([row]))[0]
            if isinstance(self.next_observations, Following):
                self.next_observations.go_on(row - 1, begins)
        if self.links is not None:
            self.links.add(row, environments or range(self.n_envs), self._goes_on)
        self.pos = row + 1
        if self.pos == self.buffer_size:
            self.pos, self.full = 0, True
        self._added += self.n_envs
        if masks is not None and self.masks is None:
            self.masks, self.next_masks = (np.ones((len(self.actions), *masks[0].shape), dtype=bool) for _ in range(2))
        if self.masks is not None and self.next_masks is not None:
            self.masks[row], self.next_masks[row] = (True, True) if masks is None else masks

    def add_steps(self, steps: Sequence[Transition]) -> None:
        """Store one transition of each environment, as a journal has them."""
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": step.truncated} for step in steps]
        for info, step in zip(infos, steps, strict=True):
            if step.discount is not None:
                info["discount"] = step.discount
        masks = None
        if any(step.mask is not None or step.next_mask is not None for step in steps):
            assert isinstance(self.action_space, spaces.Discrete)
            everything = np.ones(int(self.action_space.n), dtype=bool)
            columns = [step.mask for step in steps], [step.next_mask for step in steps]
            before, after = (np.array([everything if mask is None else mask for mask in column]) for column in columns)
            masks = before, after
        self.add(
            stacked([step.observation for step in steps]),
            stacked([step.next_observation for step in steps]),
            np.array([[step.action] for step in steps]),
            np.array([step.reward for step in steps], dtype=np.float32),
            np.array([step.terminated or step.truncated for step in steps]),
            infos,
            masks,
            [step.environment for step in steps],
        )

    def reset(self) -> None:
        """Forget all transitions but demonstrations."""
        super().reset()
        if self.masks is not None and self.next_masks is not None:
            self.masks[: self.buffer_size] = self.next_masks[: self.buffer_size] = True
        if self.links is not None:
            self.links.reset()
        self._added, self._contents = 0, object()

    def __len__(self) -> int:
        """Number of transitions held."""
        return int(self.size()) * int(self.n_envs)

    @property
    def n_held(self) -> int:
        """Number of transitions to learn from, demonstrations too."""
        return int((self.buffer_size if self.full else self.pos) * self.n_envs + self.n_demonstrations)

    def add_demonstrations(self, steps: Sequence[Transition]) -> None:
        """Keep transitions apart from the others; they are never overwritten.

        :param steps: the last one is repeated to fill a row of all environments
        """
        if isinstance(self.next_observations, Following):
            raise ValueError("optimize_memory_usage=True leaves no room for demonstrations: give it up for them")
        rows = -(-len(steps) // self.n_envs)
        pos, full, added = self.pos, self.full, self._added
        first = len(self.arrays()["actions"])
        for name, array in self.arrays().items():
            self._set_array(name, np.concatenate([array, np.zeros((rows, *array.shape[1:]), array.dtype)]))
        if self.begins is not None:
            self.begins = np.concatenate([self.begins, np.ones((rows, self.n_envs), dtype=bool)])
        places = np.arange(rows * self.n_envs).reshape(rows, self.n_envs)
        if self.links is not None:  # those of an environment one below the other, so that they can be linked
            places = places.reshape(self.n_envs, rows).T
            steps = sorted(steps, key=lambda step: step.environment)
        for row in range(rows):
            self.pos = first + row
            self.add_steps([steps[min(place, len(steps) - 1)] for place in places[row].tolist()])
        self.pos, self.full, self._added, self._contents = pos, full, added, object()
        self.n_demonstrations += rows * self.n_envs

    def draw(self, rng: np.random.Generator, size: tuple[int, int], share: float) -> IntArray:
        """Indices of some transitions, for batches.

        :param size: number of batches, transitions of each
        :param share: of a batch that is drawn from the demonstrations, where there are any
        """
        if self.n_demonstrations == 0:
            return rng.integers(0, (self.buffer_size if self.full else self.pos) * self.n_envs, size=size)
        batches, batch_size = size
        shown = batch_size if len(self) == 0 else min(batch_size, round(share * batch_size))
        first = self.buffer_size * self.n_envs
        parts = [first + rng.integers(0, self.n_demonstrations, size=(batches, shown))]
        if shown < batch_size:
            parts.append(rng.integers(0, len(self), size=(batches, batch_size - shown)))
        return np.concatenate(parts, axis=1)

    def batches(
        self, rng: np.random.Generator, size: tuple[int, int], share: float, env: VecEnv | None = None
    ) -> tuple[Transitions, IntArray]:
        """Transitions to learn from, and which of them the batches are.

        :param size: see :meth:`draw`, as ``share``
        :param env: the agent's, for memories that ask it
        """
        drawn, held = self.draw(rng, size, share), self.transitions()
        if self.begins is None:
            return held, drawn
        return self._several_steps(held, drawn.reshape(-1)), np.arange(drawn.size).reshape(size)

    def _several_steps(self, held: Transitions, index: IntArray) -> Transitions:
        """From the transitions at ``index``, as many steps in one as there are, up to ``n_steps``."""
        rewards, discounts = held.rewards[index], held.discounts[index]
        last = index.copy()
        goes_on = np.ones(len(index), dtype=bool)
        for _ in range(self.n_steps - 1):
            following, is_there = self._following(last)
            goes_on &= is_there
            rewards += np.where(goes_on, discounts * held.rewards[following], 0)
            discounts = np.where(goes_on, discounts * held.discounts[following], discounts)
            last = np.where(goes_on, following, last)
        return Transitions(
            _map(lambda array: array[index], held.observations),
            held.actions[index],
            rewards,
            discounts,
            _map(lambda array: array[last], held.next_observations),
            None if held.masks is None else held.masks[index],
            None if held.next_masks is None else held.next_masks[last],
        )

    def _following(self, index: IntArray) -> tuple[IntArray, BoolArray]:
        """The transitions that come after these, in the order of :meth:`transitions`, and whether there are such."""
        assert self.begins is not None
        row, env = index // self.n_envs, index % self.n_envs
        next_row = row + 1
        is_newest = next_row == (self.pos or self.buffer_size)
        next_row[next_row == self.buffer_size] = 0
        is_newest |= next_row == len(self.begins)
        next_row[next_row == len(self.begins)] = 0
        is_there = ~is_newest & ~self.begins[next_row, env]
        return np.where(is_there, next_row * self.n_envs + env, index), is_there

    def _begins(self, rows: IntArray) -> BoolArray:
        """Which transitions of some rows are the first of an episode, or do not go on where those before them ended."""
        before = np.where(rows > 0, rows, self.buffer_size) - 1
        begins = self.dones[before].astype(bool)
        seen, left = (
            (each.values() if isinstance(each, dict) else [each])
            for each in (self.observations, self.next_observations)
        )
        for now, then in zip(seen, left, strict=True):
            begins |= (now[rows] != then[before]).reshape(len(rows), self.n_envs, -1).any(axis=2)
        begins[(rows == self.buffer_size) | ((rows == 0) & (not self.full))] = True
        return begins

    def _goes_on(self, before: int, after: int) -> bool:
        """Whether a transition goes on where another one ended; counted as in :meth:`transitions`."""
        row, env = divmod(before, self.n_envs)
        seen, left = self.observations[divmod(after, self.n_envs)], self.next_observations[row][env]
        return not self.dones[row, env] and np.array_equal(seen, left)

    def returns_to_go(self) -> NDArray[np.float64]:
        """The return from each transition held to the end of its episode, or to the last one of it that is held."""
        columns = self.rewards, self.discounts, self.dones
        oldest = self.pos if self.full else 0
        own = returns_to_go(*(np.roll(column[: self.size()], -oldest, axis=0) for column in columns))
        if not self.n_demonstrations:
            return own
        return np.concatenate([own, returns_to_go(*(column[self.buffer_size :] for column in columns))])

    def newest_rewards(self) -> NDArray[np.float32]:
        """Of the last step of each environment."""
        return self.rewards[self.pos - 1 : self.pos or None]

    def rewards_held(self) -> NDArray[np.float32]:
        """Of all transitions held, demonstrations too."""
        return np.concatenate([self.rewards[: self.size()], self.rewards[self.buffer_size :]], axis=None)

    def newest_observations(self) -> Observations:
        """That the last step of each environment led to."""
        return _map(lambda array: array[self.pos - 1], self.next_observations)

    def next_observations_held(self) -> Observations:
        """The next observations of all transitions held, demonstrations too."""

        def held(array: NDArray[Any]) -> NDArray[Any]:
            rows = np.concatenate([array[: self.size()], array[self.buffer_size :]])
            return rows.reshape(-1, *array.shape[2:])

        return _map(held, self.next_observations)

    def next_observations_in_pieces(self) -> Iterator[Observations]:
        """The same, some at a time."""
        width = sum(math.prod(each.shape[1:]) for name, each in self.arrays().items() if name.startswith("next_obs"))
        for first, end in ((0, self.size()), (self.buffer_size, len(self.actions))):
            for piece in pieces(end, width, first):
                yield _map(
                    lambda array, piece=piece: array[piece].reshape(-1, *array.shape[2:]), self.next_observations
                )

    def transitions(self) -> Transitions:
        """All transitions held, oldest position first, without copying; demonstrations behind them."""
        rows = len(self.actions) if self.n_demonstrations else self.size()
        seen, following = (
            {key: _flat(part, rows) for key, part in each.items()}
            if isinstance(each, dict)
            else Flat(each, rows * self.n_envs)
            if isinstance(each, Following)
            else each[:rows].reshape(-1, *each.shape[2:])
            for each in (self.observations, self.next_observations)
        )
        if self.links is not None:
            seen, following = FrameStacks(self.links, seen), FrameStacks(self.links, seen, following)  # type: ignore
        return Transitions(
            seen,
            self.actions[:rows].reshape(-1),
            self.rewards[:rows].reshape(-1),
            self.discounts[:rows].reshape(-1),
            following,
            None if self.masks is None else _flat(self.masks, rows),
            None if self.next_masks is None else _flat(self.next_masks, rows),
            None if self.n_demonstrations else Ring(self._contents, self.buffer_size * self.n_envs, self._added),
        )

    # -- files --------------------------------------------------------------------------------------------------

    def save_npz(self, path: File) -> None:
        """Write the transitions held to a compressed NumPy file, at once or not at all; no pickle is involved.

        :param path: of the file; ``.npz`` is added where there is no ending, and folders are made. Or an open file.
        """
        memory_file.write(path, self.held())

    def load_npz(self, path: File) -> None:
        """Take over the transitions of :meth:`save_npz`; the buffer must have the same size and spaces.

        :param path: of the file, or an open one
        :raises ValueError: for a file that is damaged or does not fit; nothing changes then
        """
        self._take(memory_file.read(path, self))

    def held(self) -> Arrays:
        """The transitions held, as arrays."""
        rows, arrays, shown = self.size(), self.arrays(), {}
        if self.n_demonstrations:
            shown = {f"shown.{name}": array[self.buffer_size :] for name, array in arrays.items()}
        apart = {} if self.links is None else self.links.kept_apart()
        held = {name: array[:rows] for name, array in arrays.items()}
        return {**held, **shown, **apart, "position": np.array([self.pos, int(self.full)])}

    def take_over(self, loaded: Arrays, where: str) -> None:
        """Replace the transitions by others, of a buffer of the same size and spaces.

        :param loaded: what :meth:`held` returned
        :param where: it comes from, for messages
        :raises ValueError: when they do not fit; nothing changes then
        """
        self._take(memory_file.placed(self, loaded, where))

    def _take(self, given: Contents) -> None:
        once = isinstance(self.next_observations, Following)
        for name, array in given.whole.items():
            self._set_array(name, array)
        self.n_demonstrations = given.n_shown * self.n_envs
        self.pos, self.full = given.position, given.is_full
        self._added, self._contents = (self.pos + self.full * self.buffer_size) * self.n_envs, object()
        if self.links is not None:
            self.links.restore(given.rows, self.pos, given.apart)
        if self.begins is not None:
            self.begins = np.ones((len(self.actions), self.n_envs), dtype=bool)
            width = self.n_envs + sum(each[:1].size for name, each in given.whole.items() if "observations" in name)
            for first, end in ((0, given.rows), (self.buffer_size, len(self.actions))):  # those that are held
                for piece in pieces(end, width, first):
                    self.begins[piece] = self._begins(np.arange(piece.start, piece.stop))
            if self.full:
                self.begins[self.pos] = True  # the oldest
            if once:
                following = Following(self.observations)
                following.take_over(self.next_observations[: given.rows], self.begins)
                self.next_observations = following  # type: ignore[assignment]

    def arrays(self) -> Arrays:
        """All there is of each transition, by name, with a row for each step of all environments."""
        named = {name: getattr(self, name) for name in _OF_ALL}
        for name in ("observations", "next_observations"):
            stored = getattr(self, name)
            if isinstance(stored, dict):
                named |= {f"{name}.{key}": part for key, part in stored.items()}
            else:
                named[name] = stored
        if self.masks is not None and self.next_masks is not None:
            named |= {"masks": self.masks, "next_masks": self.next_masks}
        if self.links is not None:
            named["back"] = self.links.back
        return named

    def _set_array(self, name: str, array: NDArray[Any]) -> None:
        whole, _, key = name.partition(".")
        if key:
            getattr(self, whole)[key] = array
        elif name == "back" and self.links is not None:
            self.links.back = array
        else:
            setattr(self, whole, array)


class TransitionBuffer(TransitionMemory, ReplayBuffer):
    """The replay buffer of array observations."""


class DictTransitionBuffer(TransitionMemory, DictReplayBuffer):
    """The replay buffer of Dict observations."""
