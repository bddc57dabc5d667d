"""Between an agent and its networks: what they see, what they say in the user's units, how they act and learn."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from bdpi.agents.actions import mask_probabilities
from bdpi.agents.metrics import diagnostics
from bdpi.agents.spaces import NativeInputs, is_zero_based, shift_to_zero
from bdpi.learner import EpochMetrics, Hyperparameters, Learner, Transitions
from bdpi.learner.functional import bind_parameters
from bdpi.learner.interface import BoolArray, FloatArray, IntArray, Observations
from bdpi.learner.native import NativeLearner
from bdpi.learner.perceptron import Perceptron
from bdpi.learner.scales import CLOSER, FAR, Scales, rescale_critics
from bdpi.learner.tabular import TabularLearner, allowed

if TYPE_CHECKING:
    from bdpi.agents.buffers import DictTransitionBuffer, TransitionBuffer
    from bdpi.agents.decisions import Decisions
    from bdpi.agents.ensemble import Ensemble
    from bdpi.agents.policies import BDPIPolicy


#: Entropy, disagreement and KL cost a few forward passes; every hundredth epoch is enough to draw their curves.
DIAGNOSTICS_EVERY = 100
#: Q-values this many times larger than the largest reward in every step would give have diverged.
DIVERGED = 100.0

#: Gives the arguments of :meth:`bdpi.learner.interface.Learner.epoch`, and wants what it returns.
Epochs = Generator[tuple[Transitions, IntArray, IntArray, Hyperparameters], EpochMetrics | None, None]


class AgentLearner:
    """A learner, and the way from an agent's observations to its inputs.

    :param learner: any learner
    :param inputs: from replay arrays to the learner's arrays; None where it takes the replay arrays themselves
    :param policy: whose networks are trained; has their scales
    :param has_actor: the agent follows an actor; else it follows its critics
    """

    def __init__(self, learner: Learner, inputs: NativeInputs | None, policy: BDPIPolicy, has_actor: bool) -> None:
        self.learner = learner
        self.has_actor = has_actor
        self._policy = policy
        #: networks do; tables learn as well in any unit
        self.needs_scales = not isinstance(learner, TabularLearner)
        #: that the policy's network shares with the learner, which changes them
        self.actor_parameters: torch.Tensor | None = None
        self._inputs = inputs
        self._space = policy.decisions.observation_space
        self._starts_at_zero = is_zero_based(self._space)
        #: the actor that acts, in NumPy, where it is a perceptron on the CPU, and how it sees observations
        self._acting: tuple[Perceptron, NativeInputs] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy shares no memory with what it is a copy of; see :func:`bdpi.agents.learners.share_actor`."""
        return {**vars(self), "_acting": None, "actor_parameters": None}

    # -- acting -------------------------------------------------------------------------------------------------

    def act_with(self, parameters: torch.Tensor) -> None:
        """Have the policy act with these parameters of the actor, which may change from now on."""
        policy = self._policy
        assert policy.actor is not None
        bind_parameters(policy.actor, parameters)
        inputs = policy.native_inputs() if parameters.device.type == "cpu" else None
        if inputs is None:
            self._acting = None
            return
        sizes = [inputs.size, *policy.actor_arch, policy.n_actions]
        self._acting = Perceptron(parameters.numpy(), sizes, inputs.one_hot, policy.activation_fn is nn.Tanh), inputs

    def probabilities(self, observations: Any) -> FloatArray:
        """pi(.|s) of the policy for a batch of observations, (n, n_actions); quickly, if its actor is a perceptron."""
        if self._acting is None:
            return self._policy.probabilities(observations)
        network, inputs = self._acting
        rows = observations if self._starts_at_zero else shift_to_zero(observations, self._space)
        is_ready = inputs.is_float and rows.ndim == 2 and rows.dtype == np.float32
        seen = rows if is_ready else inputs(rows)
        (weights, bias), *others = network.layers
        if not inputs.one_hot:
            scales = self._policy.input_scales
            seen = (seen - scales.shift) * scales.factor
        y: FloatArray = (weights[seen] if inputs.one_hot else seen @ weights) + bias
        for weights, bias in others:
            y = network.activation(y) @ weights + bias
        e: FloatArray = np.exp(y - np.maximum.reduce(y, axis=1, keepdims=True))
        total: FloatArray = np.add.reduce(e, axis=1, keepdims=True)
        return e / total

    def behaviour(self, observations: Observations, masks: BoolArray | None = None) -> FloatArray:
        """What the agent does in zero-based observations: probabilities, (n, n_actions).

        :param masks: which actions are allowed; an actor's probabilities are for the caller to mask
        """
        return self._behaviour(self._seen(observations), masks)

    def _behaviour(self, inputs: Observations, masks: BoolArray | None) -> FloatArray:
        if self.has_actor:
            return self.learner.policy(inputs)
        # A critic that is picked at random and followed: each action is taken as often as critics prefer it.
        q = self.learner.q_values(inputs)
        return np.eye(q.shape[2], dtype=np.float32)[allowed(q, masks).argmax(axis=2)].mean(axis=0)

    def q_values(self, observations: Observations) -> FloatArray:
        """Q_A(s, .) of every critic for zero-based observations, (n_critics, n, n_actions), in the user's units."""
        return self._policy.scales.q_values(self.learner.q_values(self._seen(observations)))

    def _seen(self, observations: Observations) -> Observations:
        """Zero-based observations as the learner predicts from them."""
        if self._inputs is None:
            return observations
        rows = self._inputs(observations)
        return rows if self._inputs.one_hot else self._policy.input_scales.inputs(rows)

    # -- learning -----------------------------------------------------------------------------------------------

    def prepare(
        self, transitions: Transitions, batches: IntArray, normalizer: VecNormalize | None
    ) -> tuple[Transitions, IntArray]:
        """The learner's arrays for these batches: the replay memory itself where possible, else a converted copy.

        :param transitions: of the replay memory; changed
        """
        inputs, scales = self._inputs, self._policy.scales
        if normalizer is None and inputs is not None and inputs.is_bytes and isinstance(self.learner, NativeLearner):
            seen, following = inputs.bytes(transitions.observations), inputs.bytes(transitions.next_observations)
            if seen is not None and following is not None:
                transitions.observations, transitions.next_observations = seen, following
                transitions.scales = self._policy.input_scales
                return transitions, batches
        if normalizer is not None or (inputs is not None and not inputs.direct):
            transitions = gather(transitions, batches, normalizer, self._policy.decisions)
            batches = np.arange(batches.size).reshape(batches.shape)
        if inputs is not None:
            if not inputs.is_float or np.ndim(transitions.observations) != 2:  # type: ignore[arg-type]
                transitions.observations = inputs(transitions.observations)
                transitions.next_observations = inputs(transitions.next_observations)
            scales = self._policy.input_scales
        transitions.scales = scales
        return transitions, batches

    def compute(self, epochs: Epochs) -> None:
        """Have the learner compute all of them."""
        try:
            asked = next(epochs)
            while True:
                asked = epochs.send(self.learner.epoch(*asked))
        except StopIteration:
            pass
        finally:
            epochs.close()

    def judge(
        self, number: int, transitions: Transitions, batches: IntArray, metrics: EpochMetrics, gamma: float, step: int
    ) -> dict[str, float]:
        """What to log of an epoch.

        :param number: of the epoch
        :param transitions: of which it was, as :meth:`prepare` gave them
        :param metrics: what came out
        :param step: of the environment, for messages
        :raises ValueError: when learning has diverged
        """
        scales, rewards = self._policy.scales, transitions.rewards
        critic_loss = metrics.critic_loss / scales.return_factor**2
        mean_q = metrics.mean_q / scales.return_factor + scales.return_shift
        has_exploded = False
        if number % DIAGNOSTICS_EVERY == 0:
            # A Q-value that is far larger than rewards like those seen could ever add up to is no value of any policy.
            has_exploded = abs(mean_q) * (1 - gamma) > DIVERGED * (float(np.abs(rewards).max()) or 1.0)
        if has_exploded or not math.isfinite(critic_loss):
            raise ValueError(
                f"learning diverged at step {step}: the critics' loss is {critic_loss:.3g} and their mean Q-value "
                f"{mean_q:.3g}, with rewards up to {np.abs(rewards[batches]).max():.3g}. Lower learning_rate, leave "
                "return_size at its default, and go on from an earlier agent; the experience is kept."
            )
        found = {"train/critic_loss": critic_loss, "train/mean_q": mean_q}
        if self.has_actor:
            found["train/actor_loss"] = metrics.actor_loss
            if not math.isfinite(metrics.actor_loss):
                hint = " Q-values of actions that are not allowed are minus infinity, and 0 times that is not a number."
                raise ValueError(
                    f"the actor's loss is {metrics.actor_loss} at step {step}: its rule gives targets that are no "
                    f"probabilities.{'' if transitions.masks is None else hint}"
                )
        return found

    def opinions(self, transitions: Transitions, batch: IntArray) -> tuple[FloatArray, IntArray]:
        """For the states of a prepared batch: what the agent does, and each critic's greedy action (n_critics, n)."""
        stored = transitions.observations
        states = {key: part[batch] for key, part in stored.items()} if isinstance(stored, dict) else stored[batch]
        if self._inputs is not None and transitions.scales is not None and not self._inputs.one_hot:
            states = transitions.scales.inputs(np.asarray(states))
        masks = None if transitions.masks is None else transitions.masks[batch]
        behaviour = mask_probabilities(self._behaviour(states, masks), masks)
        return behaviour, allowed(self.learner.q_values(states), masks).argmax(axis=2)

    # -- scales -------------------------------------------------------------------------------------------------

    def flat(self, observations: Observations) -> NDArray[Any] | None:
        """All numbers of observations that are scaled, side by side, for each frame of a stack; None: none are."""
        keys = [key for key in self._policy.scaled_parts if key is not None]
        parts = [observations[key] for key in keys] if isinstance(observations, dict) else [observations]
        if not self._policy.scaled_parts:
            return None
        rows = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
        n_frames = sum(self._policy.scaled_parts.values()) // max(1, rows.shape[1])
        return rows if n_frames == 1 else np.tile(rows, n_frames)

    def bounds(self) -> NDArray[Any] | None:
        """The lowest and the highest values of observations that are scaled, (2, n); None: there are none."""
        space = self._space
        if isinstance(space, spaces.Dict):
            parts: Observations = {
                key: np.stack([part.low, part.high]) for key, part in space.items() if isinstance(part, spaces.Box)
            }
        else:
            parts = np.stack([space.low, space.high]) if isinstance(space, spaces.Box) else np.zeros((2, 0))
        return self.flat(parts)

    def may_be_far(
        self, memory: TransitionBuffer | DictTransitionBuffer, input_size: float | None, size: float | None
    ) -> bool:
        """A quick look, at each step: whether the newest transitions may be far from all that scales were made for.

        :param input_size: that observations are to have; None: they are not scaled
        :param size: that returns are to have; None: they are not scaled
        """
        scales, observations, newest = self._policy.scales, memory.next_observations, memory.pos - 1
        if len(scales.shift):
            if input_size is None:
                if not (scales.factor == 1).all():
                    return True
            elif not scales.all_known:
                return True
            else:
                is_plain = memory.links is None and not isinstance(observations, dict)
                seen: Any = observations[newest] if is_plain else self.flat(memory.newest_observations())  # type: ignore[index]
                rows = seen.reshape(-1, len(scales.shift))
                if np.maximum.reduce(np.abs((rows - scales.shift) * scales.factor), axis=None) > FAR * input_size:
                    return True
        if size is None:
            return False
        if not scales.knows_returns:
            return bool(memory.rewards.any())
        return max(map(abs, memory.rewards[newest].tolist())) * scales.return_factor > FAR * size

    def set_scales(self, scales: Scales) -> None:
        """Have networks see the world by other scales; Q-values in the user's units stay what they are.

        :raises ValueError: when no network can say these Q-values by other scales
        """
        before = self._policy.scales
        if before.knows_returns:
            state = {name: array.copy() for name, array in self.learner.state_dict().items()}
            rescale_critics(state, before, scales, self._policy.last_layer_size, self._policy.n_actions)
            try:
                self.learner.load_state_dict(state)
            except RuntimeError as error:
                raise ValueError(
                    f"the critics cannot learn returns that are scaled by {scales.return_factor:g}, after "
                    f"{before.return_factor:g}: {error}. Go on from an earlier agent; the experience is kept."
                ) from error
        self._policy.set_scales(scales)

    # What SB3's save and load ask of anything that they store.

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All that learning changes."""
        return {name: torch.from_numpy(array.copy()) for name, array in self.learner.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """Take over a state; a state of other networks is refused."""
        self.learner.load_state_dict({name: np.asarray(tensor.cpu()) for name, tensor in state.items()})

    def followed(self) -> dict[str, torch.Tensor]:
        """Of :meth:`state_dict`, what a policy without an actor network follows: critics, or a table."""
        state = self.learner.state_dict()
        names = ("actor",) if "actor" in state else ("active", "critics.parameters", "priors")
        return {name: torch.from_numpy(np.array(state[name])) for name in names}


def gather(
    transitions: Transitions, batches: IntArray, normalizer: VecNormalize | None, decisions: Decisions
) -> Transitions:
    """The transitions that ``batches`` names, copied and normalised with the current statistics of ``normalizer``."""
    index = batches.reshape(-1)

    def observations(stored: Observations) -> Observations:
        chosen = (
            {key: part.take(index, axis=0) for key, part in stored.items()}
            if isinstance(stored, dict)
            else stored[index]
        )
        return chosen if normalizer is None else decisions.normalized(chosen, normalizer)

    rewards = transitions.rewards[index]
    if normalizer is not None:
        rewards = normalizer.normalize_reward(rewards).astype(np.float32)
    return Transitions(
        observations(transitions.observations),
        transitions.actions[index],
        rewards,
        transitions.discounts[index],
        observations(transitions.next_observations),
        None if transitions.masks is None else transitions.masks[index],
        None if transitions.next_masks is None else transitions.next_masks[index],
    )


def learn_epochs(agent: Ensemble, n: int, batch_size: int, held: int) -> Epochs:
    """Draw batches, have an epoch computed, and judge what came of it, n times.

    :param held: how many transitions there are to learn from
    """
    generator, learner, memory = agent._generator, agent.agent_learner, agent.replay_buffer
    if learner.needs_scales:
        follow_scales(agent, max(agent.num_timesteps, held))  # a journal or demonstrations may hold more
    hyperparameters, n_trained = agent.hyperparameters(), agent.critics_per_step or agent.n_critics
    start = time.perf_counter()
    for _ in range(n):
        if agent.repeat_critics:
            critics = generator.integers(agent.n_critics, size=n_trained)
        else:
            critics = generator.permutation(agent.n_critics)[:n_trained]
        drawn = memory.batches(generator, (n_trained, batch_size), agent.demonstration_share, agent.env)
        transitions, batches = learner.prepare(*drawn, agent._vec_normalize_env)
        diagnose = agent._n_updates % DIAGNOSTICS_EVERY == 0
        before = learner.opinions(transitions, batches[0])[0] if diagnose else None
        metrics = yield transitions, batches, critics, hyperparameters
        assert metrics is not None
        found = learner.judge(agent._n_updates, transitions, batches, metrics, agent.gamma, agent.num_timesteps)
        if before is not None:
            agent._diagnostics = diagnostics(before, *learner.opinions(transitions, batches[0]))
        agent._n_updates += 1
        for name, value in {**found, **agent._diagnostics}.items():
            agent.logger.record(name, value)
    elapsed = time.perf_counter() - start
    agent.logger.record("train/learning_rate", hyperparameters.learning_rate)
    agent.logger.record("train/n_updates", agent._n_updates, exclude="tensorboard")
    if n:
        agent.logger.record("train/milliseconds_per_epoch", 1000 * elapsed / n)
        if not agent._checkup.knows_cost:
            agent._checkup.learned(agent, elapsed / n)
    if agent._n_updates not in agent._checkup.seen_epochs:
        agent._checkup.look_if_due(agent)


def follow_scales(agent: Ensemble, experience: int) -> None:
    """Estimate scales again, where that is due, or where the newest transition is far from what they are for.

    :param experience: how many transitions were seen
    """
    normalizer, before = agent._vec_normalize_env, agent.policy.scales
    size, inputs = None, None  # of returns, and of observations, for networks; None: not scaled
    if agent.return_size is not None and not (normalizer is not None and normalizer.norm_reward):
        # What Adam can change in an epoch grows with the width of networks and with its steps.
        width = agent.policy.critic_arch[-1] if agent.policy.critic_arch else 32
        size = agent.return_size * width / 32 * (agent.fit_steps or agent.policy.default_fit_steps) / 20
    if normalizer is None or not normalizer.norm_obs:
        inputs = agent.observation_size
    learner, memory, estimator = agent.agent_learner, agent.replay_buffer, agent.scale_estimator
    seen = inputs / CLOSER if inputs is not None and estimator.rare else inputs
    if experience >= estimator.due or learner.may_be_far(memory, seen, size):
        scales = estimator.estimate(before, learner, memory, experience, inputs, size, agent.rare_rewards)
        if scales is not before:
            with agent._background.acting:
                learner.set_scales(scales)
