"""For loops that call the agent: act, observe, learn; and learning in the background."""

from __future__ import annotations

import contextlib
import io
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import GymEnv, TrainFreq

from bdpi.agents import checks
from bdpi.agents.background import Background
from bdpi.agents.collecting import CollectingAlgorithm
from bdpi.agents.demonstrations import steps_of
from bdpi.agents.files import refuse_pickle, with_ending
from bdpi.agents.journal import Step
from bdpi.agents.learners import AgentLearner
from bdpi.agents.normalizing import update_normalizer
from bdpi.agents.policies import BDPIPolicy
from bdpi.agents.quick import QuickActor
from bdpi.agents.spaces import channels_first
from bdpi.learner.functional import bind_parameters
from bdpi.learner.interface import BoolArray, IntArray

_MOST_DUE = 8  # epochs that learn() lets the background fall behind


class SteppingAlgorithm(CollectingAlgorithm):
    """An algorithm that can be called step by step as well as by :meth:`learn`."""

    policy: BDPIPolicy
    agent_learner: AgentLearner
    _background: Background | None = None
    #: the actor that acts, where it is a perceptron on the CPU
    _quick_actor: QuickActor | None = None
    #: of each batch that is drawn from demonstrations, where there are any
    demonstration_share = 0.25
    #: whether act has begun an episode, for agents that decide something then
    _begun = False
    #: epochs that were left when learning in the background was stopped
    _epochs_due: float
    _acted_mask: BoolArray | None = None

    # -- step by step -------------------------------------------------------------------------------------------

    def act(self, observation: Any, mask: Any = None) -> int:
        """Choose an action to learn from, drawn as in training. (For the best known one: ``predict``.)

        :param observation: what the system is like now; pictures may have their channels last, as in ``predict``
        :param mask: which actions are allowed, zeros and ones; None: all
        """
        self._check_background()
        self._check_one_loop("act")
        observation = self._seen("observation", observation)
        n_actions = int(self.action_space.n)
        masks = None if mask is None else checks.check_masks(mask, 1, n_actions)
        if not self._begun:
            self._begun = True
            self._episodes_ended(np.array([0]))
        batch = _batch_of_one(observation)
        if self._vec_normalize_env is not None:
            batch = self._vec_normalize_env.normalize_obs(batch)
        with self.acting():
            action = self._pick_actions(batch, masks)
        self._acted_mask = masks
        return int(action[0]) + int(self.action_space.start)

    def observe(
        self,
        observation: Any,
        executed_action: Any,
        reward: Any,
        next_observation: Any,
        terminated: Any,
        truncated: Any,
        *,
        mask: Any = None,
        next_mask: Any = None,
        discount: float | None = None,
    ) -> None:
        """Remember what happened.

        :param observation: before the action
        :param executed_action: what was really done: another action than ``act`` returned, where a safety layer or a
            person has stepped in
        :param reward: for it
        :param next_observation: after it
        :param terminated: the task is over, and nothing comes after it
        :param truncated: the episode was ended, but could have gone on
        :param mask: which actions were allowed before; None: what ``act`` was told last
        :param next_mask: which actions are allowed now; needed by agents that act with masks, unless the task is over
        :param discount: of this transition; None: the agent's ``gamma``
        """
        self._check_background()
        self._check_one_loop("observe")
        step = self.num_timesteps + 1
        observation = self._seen("observation", observation)
        next_observation = self._seen("next observation", next_observation)
        checks.check_reward(reward, step)
        action = checks.check_action("executed_action", executed_action, self.action_space)
        terminated = checks.check_truth("terminated", terminated)
        truncated = checks.check_truth("truncated", truncated)
        info: dict[str, Any] = {"TimeLimit.truncated": truncated and not terminated}
        if discount is not None:
            checks.check_number("discount", discount, 0, 1, low_included=True)
            info["discount"] = discount
        masks = self._observed_masks(mask, next_mask, terminated)
        done = terminated or truncated
        kept_reward = np.array([reward], dtype=np.float32)
        with self.observing():
            self._remember(
                _batch_of_one(observation),
                _batch_of_one(next_observation),
                np.array([[action]]),
                kept_reward,
                np.array([done]),
                [info],
                masks,
            )
            if self._vec_normalize_env is not None:
                seen = Step(observation, action, float(kept_reward[0]), next_observation, terminated, truncated)
                update_normalizer(self._vec_normalize_env, seen)
            self._acted_mask = None
            if done:
                self._episode_num += 1
                self._episodes_ended(np.array([0]))
        if self._background is not None:
            self._background.make(self._epochs_per_step())

    def learn_once(self) -> bool:
        """One learning epoch; returns whether there was enough experience for it.

        This is also when an agent with ``autosave`` is saved, if it is time for that.
        """
        if self._background is not None:
            raise RuntimeError("the agent learns in the background already; stop_learning() ends that")
        has_learned = self._learn_once()
        if has_learned:
            self._epochs_due = max(0.0, self._epochs_due - 1)
        self._autosave_if_due()
        return has_learned

    def _learn_once(self) -> bool:
        if not self._can_learn():
            return False
        if not hasattr(self, "_logger"):
            self.set_logger(Logger(folder=None, output_formats=[]))
        self._learn_epochs(1, self.batch_size)
        return True

    def _can_learn(self) -> bool:
        return self._has_experience(self.batch_size)

    def _has_experience(self, batch_size: int) -> bool:
        return len(self.replay_buffer) + self.replay_buffer.n_demonstrations >= batch_size

    def add_demonstrations(self, dataset: Any, share: float = 0.25) -> int:
        """Learn from somebody else's transitions, too; returns how many there are.

        They are kept apart from the agent's own experience, which never overwrites them.

        :param dataset: see :func:`bdpi.agents.demonstrations.steps_of`
        :param share: of each batch that is drawn from demonstrations, all of them together
        :raises ValueError: for transitions that do not fit the agent's spaces; nothing is added then
        """
        checks.check_number("share", share, 0, 1)
        steps = []
        for number, step in enumerate(steps_of(dataset)):
            try:
                steps.append(self._checked(step))
            except ValueError as error:
                raise ValueError(f"demonstration {number}: {error}") from error
        if not steps:
            raise ValueError("there are no transitions in the demonstrations")
        with self.learning_paused():
            self.replay_buffer.add_demonstrations(steps)
            self.demonstration_share = float(share)
        return len(steps)

    def _checked(self, step: Step) -> Step:
        """A transition from elsewhere, if it could be one of the agent's own."""
        observation = self._seen("observation", step.observation)
        next_observation = self._seen("next observation", step.next_observation)
        checks.check_reward(step.reward, 0)
        action = checks.check_action("the action", step.action, self.action_space)
        if step.discount is not None:
            checks.check_number("discount", step.discount, 0, 1, low_included=True)
        return replace(step, observation=observation, action=action, next_observation=next_observation)

    def _check_one_loop(self, name: str) -> None:
        if self.n_envs != 1:
            raise ValueError(f"{name} is for one system at a time, and this agent learns in {self.n_envs} environments")

    def _seen(self, what: str, value: Any) -> Any:
        """An observation as the agent keeps it, if it makes sense."""
        value = channels_first(value, self.observation_space)
        checks.check_shape(what, value, self.observation_space)
        self.check_observation(what, value, 0, self.num_timesteps)
        return value

    def _observed_masks(self, mask: Any, next_mask: Any, is_over: bool) -> tuple[BoolArray, BoolArray] | None:
        n_actions = int(self.action_space.n)
        before = self._acted_mask if mask is None else checks.check_masks(mask, 1, n_actions)
        if before is not None and next_mask is None and not is_over:
            raise ValueError("this agent acts with masks: give observe next_mask, the actions that are allowed now")
        if before is None and next_mask is None:
            return None
        everything = np.ones((1, n_actions), dtype=bool)
        after = everything if next_mask is None else checks.check_masks(next_mask, 1, n_actions)
        return (everything if before is None else before), after

    # -- in the background --------------------------------------------------------------------------------------

    def start_learning(self) -> None:
        """Learn in a thread from now on: as many epochs as :meth:`learn` would make, as soon as there is time.

        ``act`` answers meanwhile, from a copy of the actor that follows each epoch. Epochs that a robot leaves no time
        for wait until there is some: see :attr:`epochs_due`.
        """
        if self._background is not None:
            raise RuntimeError("the agent learns in the background already")
        learned = self.agent_learner.actor_parameters
        if self.policy.actor is None or learned is None:
            raise ValueError(
                f"{type(self).__name__} cannot learn while it acts, because it has no actor network to act with "
                "meanwhile; BDPI and ActorMimic have one"
            )
        self._epochs_per_step()  # says what is wrong with train_freq before anything is observed
        published = learned.detach().cpu().clone()
        methods = self._learn_once, self._can_learn, self._autosave_if_due
        try:
            self._act_with(published)
            self._background = Background(*methods, learned, published, self._epochs_due)
            self._background.start()
        except BaseException:  # Ctrl-C, perhaps before there was a thread
            self.stop_learning()
            self._act_with(learned)
            raise

    @property
    def epochs_due(self) -> int:
        """How many epochs learning in the background is behind.

        :meth:`start_learning` begins with them, and they are saved with the agent; ``learn_once`` makes one of them.
        """
        return int(self._epochs_due if self._background is None else self._background.due)

    def stop_learning(self, finish: bool = False) -> None:
        """Wait for the epoch that is going on, and learn no more; what is due then is left to be learned later.

        :param finish: make all epochs that are due before, however long that takes. Whoever is interrupted meanwhile
            can stop it again.
        :raises RuntimeError: when learning has failed
        """
        if self._background is None:
            return
        background = self._background
        if finish:
            background.wait_until_due(0)
        background.stop()
        self._epochs_due = background.due
        assert self.agent_learner.actor_parameters is not None
        self._act_with(self.agent_learner.actor_parameters)
        self._background = None  # only now: whoever was interrupted before can stop it again
        background.check()

    def _act_with(self, parameters: torch.Tensor) -> None:
        """Have the policy act with these parameters of the actor, which may change from now on."""
        assert self.policy.actor is not None
        bind_parameters(self.policy.actor, parameters)
        inputs = self.policy.native_inputs() if parameters.device.type == "cpu" else None
        self._quick_actor = None if inputs is None else QuickActor(self.policy, inputs, parameters)

    def acting(self) -> contextlib.AbstractContextManager[Any]:
        """While this lasts, the networks that act do not change."""
        return contextlib.nullcontext() if self._background is None else self._background.acting

    def observing(self) -> contextlib.AbstractContextManager[Any]:
        """While this lasts, nobody else sees the agent, which may be half changed."""
        return contextlib.nullcontext() if self._background is None else self._background.observing

    def learning_held(self) -> contextlib.AbstractContextManager[Any]:
        """While this lasts, networks and memory stay as they are. Nobody who observes waits for it: what is observed
        meanwhile is taken into the memory afterwards."""
        return contextlib.nullcontext() if self._background is None else self._background.working

    @contextlib.contextmanager
    def learning_paused(self) -> Iterator[None]:
        """While this lasts, nothing is learned in the background, and the memory holds all that was observed."""
        with contextlib.nullcontext() if self._background is None else self._background.paused():
            yield

    def _check_background(self) -> None:
        if self._background is not None:
            self._background.check()

    def _change_memory(self, store: Callable[[], object]) -> None:
        if self._background is None:
            store()
        else:
            self._background.defer(store)

    def _epochs_per_step(self) -> float:
        """How many epochs a transition is worth."""
        frequency = self.train_freq
        if not isinstance(frequency, TrainFreq) or frequency.unit.value != "step":
            raise ValueError("learning in the background goes by steps: give train_freq a number of steps")
        return float(frequency.frequency if self.gradient_steps < 0 else self.gradient_steps) / frequency.frequency

    def _have_learned(self, background: Background, epochs: int) -> None:
        """:meth:`learn` has made some steps: have them learned from, and do not run too far ahead."""
        background.check()
        background.make(epochs)
        background.wait_until_due(_MOST_DUE)
        background.check()

    def dump_logs(self) -> None:
        """As in SB3; learning in the background pauses meanwhile."""
        with self.learning_paused():
            super().dump_logs()

    @contextlib.contextmanager
    def _networks_may_change(self) -> Iterator[None]:
        """While this lasts, nothing is learned in the background, nobody acts, and the actor is the learner's own."""
        background = self._background
        if background is None:
            yield
            return
        assert self.policy.actor is not None
        with background.paused():
            with background.acting:
                bind_parameters(self.policy.actor, background.learned)
                try:
                    yield
                finally:
                    bind_parameters(self.policy.actor, background.published)
            background.publish()

    def get_parameters(self) -> dict[str, dict[str, Any]]:
        """As in SB3; learning in the background pauses meanwhile."""
        with self.learning_paused():
            return super().get_parameters()

    def set_parameters(
        self, load_path_or_dict: Any, exact_match: bool = True, device: torch.device | str = "auto"
    ) -> None:
        """As in SB3; learning in the background pauses meanwhile, and goes on with these parameters."""
        with self._networks_may_change():
            super().set_parameters(load_path_or_dict, exact_match, device)

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """As in SB3; learning in the background pauses meanwhile."""
        with self.learning_paused():
            super().set_env(env, force_reset)

    def save_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase) -> None:
        """Write the replay memory to a NumPy file; learning in the background pauses meanwhile.

        :param path: of the file; ``.npz`` is added where there is no ending, and folders are made. Or an open file.
            (What SB3's ``CheckpointCallback`` calls ``.pkl`` is such a file, too.)
        """
        if isinstance(path, str | pathlib.Path):
            path = with_ending(pathlib.Path(path), ".npz")
            path.parent.mkdir(parents=True, exist_ok=True)
        with self.learning_paused():
            self.replay_buffer.save_npz(path)

    def load_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True) -> None:
        """Replace the replay memory by a saved one; learning in the background pauses meanwhile.

        :param path: of what :meth:`save_replay_buffer` wrote
        :param truncate_last_traj: not used
        :raises ValueError: for other files; nothing changes then. Those of Stable-Baselines3 are pickles, which can
            run anything when they are read.
        """
        if isinstance(path, str | pathlib.Path):
            path = pathlib.Path(path)
            path = path if path.exists() else with_ending(path, ".npz")
        refuse_pickle(path)
        with self.learning_paused():
            self.replay_buffer.load_npz(path)

    def _step_collected(self) -> None:
        if self._background is None:  # whose thread looks after it
            self._autosave_if_due()

    def _autosave_if_due(self) -> None:
        raise NotImplementedError

    def _learn_epochs(self, epochs: int, batch_size: int) -> None:
        raise NotImplementedError

    def _pick_actions(self, observations: Any, masks: BoolArray | None) -> IntArray:
        raise NotImplementedError


def _batch_of_one(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _batch_of_one(part) for key, part in value.items()}
    return np.array(value)[None]
