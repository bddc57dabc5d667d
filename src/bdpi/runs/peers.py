"""Runs of the algorithms that BDPI is compared with.

They come from Stable-Baselines3 and learn quickly, so they are not resumed: a run that was stopped, or is to become
longer, starts over. The same seed and number of episodes give the same episodes. With another number, those of DQN and
of prioritized dueling DQN differ from the first on: how quickly they explore less, and correct for their priorities,
depends on how long they will learn.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box
from stable_baselines3.common.preprocessing import is_image_space

from bdpi.runs.build import (
    agent_class,
    environment_of,
    monitored,
    warnings_as_notes,
    with_full_id,
)
from bdpi.runs.config import RunConfig
from bdpi.runs.errors import RunError, one_line
from bdpi.runs.folder import RunFolder
from bdpi.runs.peer_file import save_peer
from bdpi.runs.progress import Observer, Progress
from bdpi.runs.recorder import PeerRecorder
from bdpi.runs.session import Content, Driver, Session, new_status
from bdpi.runs.settings import defaults_of, policy_arguments
from bdpi.runs.signals import leave_group, left_to_parent

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

_DEFAULT_LENGTH = 1000  # steps of an episode without a limit, to tell an algorithm how long it will learn


def prepare_peer(
    config: RunConfig, path: Path | None, note: Callable[[str], None], command: Sequence[str], copies: bool
) -> Session:
    """See :func:`bdpi.runs.train.prepare`."""
    if config.off_policy_noise is not None or config.action_bits is not None or config.record_entropy:
        raise RunError(f"{config.agent} knows neither off-policy noise, nor action bits, nor the entropy of its policy")
    options = {"--eval-every": config.eval_every, "--film-every": config.film_every}
    if unknown := [name for name, value in options.items() if value]:
        raise RunError(
            f"{config.agent} is trained as by the paper and Stable-Baselines3: leave {' and '.join(unknown)} out, "
            "which only bdpi's own agents know"
        )
    from bdpi.baselines.paper import make_peer

    with warnings_as_notes(note):
        bare = environment_of(config)
        spec = bare.spec
        config = with_full_id(config, bare)
        folder = RunFolder.new(path, config.environment, config.agent, config.seed)
        environment = _environments(config, bare, copies)
        arguments = {**config.hyperparameters, "policy_kwargs": policy_arguments(config)}
        name = "" if spec is None else spec.id
        try:
            agent = make_peer(config.agent, environment, config.seed, environment_id=name, **arguments)
        except Exception as error:  # SB3 leaves most values to PyTorch and NumPy, which do not say whose they were
            given = ", ".join(
                f"{name}={value!r}" for name, value in {**config.hyperparameters, **config.policy_kwargs}.items()
            )
            raise RunError(one_line(error) + (f" ({config.agent} with {given})" if given else "")) from None
    policy, learner = type(agent.policy).__name__, f"stable-baselines3 {type(agent).__name__}"
    defaults = peer_defaults(config, is_image_space(bare.observation_space))
    status = new_status(command, policy, learner, defaults, resumable=False)
    limit = (spec.max_episode_steps if spec is not None else None) or _DEFAULT_LENGTH
    # Of an environment whose actions are built by decisions, the limit counts actions.
    decisions = bare.get_wrapper_attr("n_decisions") if bare.has_wrapper_attr("n_decisions") else 1
    steps = config.steps or (config.episodes or 1) * limit * decisions
    driver = PeerDriver(agent, environment, steps)
    return Session(folder, config, status, driver, Progress(config.episodes, config.steps))


def peer_defaults(config: RunConfig, pixels: bool) -> dict[str, Any]:
    """The arguments of a peer that its config does not give: the paper's, or SB3's; as JSON can hold them.

    :param pixels: whether observations are pictures
    """
    from bdpi.baselines.paper import parameters_of

    observations = Box(0, 255, (36, 36, 3), np.uint8) if pixels else Box(0, 1, (1,), np.float32)
    paper = parameters_of(config.agent, config.environment.rpartition(":")[2], observations)
    policy = paper.pop("policy_kwargs", {})
    if "activation_fn" in policy:
        policy = {**policy, "activation_fn": policy["activation_fn"].__name__.lower()}
    given = {**config.hyperparameters, **config.policy_kwargs}
    used = {**_sb3_defaults(config.agent), **paper, **policy}
    return {name: value for name, value in used.items() if name not in given}


@functools.cache
def _sb3_defaults(agent: str) -> dict[str, Any]:
    return defaults_of(agent_class(agent))


def _environments(config: RunConfig, bare: Any, may_copy: bool) -> Any:
    """The environment, or as many copies as the paper has, each in a process of its own where that is possible."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    from bdpi.baselines.paper import PARAMETERS

    of_pictures = is_image_space(bare.observation_space)
    copies = max(config.n_envs, PARAMETERS[config.agent].pixel_copies if of_pictures else 1)
    if copies == 1 or not may_copy:
        return monitored(bare)
    spec = bare.spec
    bare.close()
    if not of_pictures or not _can_be_sent(spec):
        return DummyVecEnv([functools.partial(_make, config)] * copies)
    try:
        with left_to_parent():
            return SubprocVecEnv([functools.partial(_make_alone, config)] * copies, start_method="forkserver")
    except (EOFError, ConnectionError):
        raise RunError(
            f"{config.environment} cannot be made in other processes, in which {config.agent} learns from pictures: "
            f"register it in a module of its own, and give it as my_module:{config.environment}"
        ) from None


def _can_be_sent(spec: Any) -> bool:
    """Whether another process could tell what environment it has; not of one that a lambda makes."""
    try:
        pickle.dumps(spec)
    except Exception:  # whatever pickle, and the classes of others, raise
        return False
    return True


def _make(config: RunConfig) -> Any:
    return monitored(environment_of(config))


def _make_alone(config: RunConfig) -> Any:
    """In another process, which leaves it to this one what a signal means."""
    leave_group()
    return _make(config)


class PeerDriver(Driver):
    """A peer learns.

    :param total_steps: what the algorithm is told, the longest that its episodes could take; DQN and prioritized
        dueling DQN explore less and less over a tenth of them
    """

    def __init__(self, agent: BaseAlgorithm, environment: Any, total_steps: int) -> None:
        super().__init__(agent, environment)
        self._total_steps = total_steps

    def learn(self, session: Session, observer: Observer, should_stop: Callable[[], bool]) -> None:
        recorder = PeerRecorder(session.progress, session.folder.monitor, session.config.environment, should_stop)
        log_interval = 1 if session.status.log else None
        self.agent.learn(self._total_steps, callback=recorder, log_interval=log_interval)

    def contents(self, session: Session) -> list[Content]:
        return [(session.folder.agent, lambda file: save_peer(self.agent, file))]
