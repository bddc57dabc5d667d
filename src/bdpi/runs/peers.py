"""Runs of the algorithms that BDPI is compared with.

They come from Stable-Baselines3 and learn quickly, so they are not resumed: a run that was stopped, or is to become
longer, starts over. The same seed and number of episodes give the same episodes. With another number, those of DQN and
of prioritized dueling DQN differ from the first on: how quickly they explore less, and correct for their priorities,
depends on how long they will learn.
"""

from __future__ import annotations

import functools
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.preprocessing import is_image_space

from bdpi.runs.build import agent_class, make_environment, monitored, policy_arguments, warnings_as_notes
from bdpi.runs.episodes import Episode, append_to_monitor
from bdpi.runs.errors import RunError, named, one_line
from bdpi.runs.folder import RunFolder, default_path
from bdpi.runs.plan import Plan
from bdpi.runs.progress import Observer, Progress, RunInfo
from bdpi.runs.settings import settable
from bdpi.runs.signals import leave_group, left_to_parent
from bdpi.runs.train import Session, _circumstances, _now
from bdpi.storage.atomic import write_atomically

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

_DEFAULT_LENGTH = 1000  # steps of an episode without a limit, to tell an algorithm how long it will learn


def prepare_peer(
    plan: Plan, path: Path | None, note: Callable[[str], None], command: Sequence[str], copies: bool
) -> PeerSession:
    """See :func:`bdpi.runs.train.prepare`."""
    if plan.off_policy_noise is not None or plan.action_bits is not None or plan.record_entropy:
        raise RunError(f"{plan.agent} knows neither off-policy noise, nor action bits, nor the entropy of its policy")
    from bdpi.baselines.paper import make_peer

    with warnings_as_notes(note):
        bare = make_environment(plan.environment)
        spec = bare.spec
        if spec is not None and ":" not in plan.environment:
            plan = replace(plan, environment=spec.id)
        folder = RunFolder(path or default_path(plan.environment, plan.agent, plan.seed))
        folder.refuse_if_taken()
        environment = _environments(plan, bare, copies)
        arguments = {**plan.hyperparameters, "policy_kwargs": policy_arguments(plan)}
        name = "" if spec is None else spec.id
        try:
            agent = make_peer(plan.agent, environment, plan.seed, environment_id=name, **arguments)
        except Exception as error:  # SB3 leaves most values to PyTorch and NumPy, which do not say whose they were
            given = ", ".join(
                f"{name}={value!r}" for name, value in {**plan.hyperparameters, **plan.policy_kwargs}.items()
            )
            raise RunError(one_line(error) + (f" ({plan.agent} with {given})" if given else "")) from None
    config = {
        **plan.as_dict(),
        "status": "prepared",
        "result": None,
        "resumable": False,
        "policy": type(agent.policy).__name__,
        "learner": f"stable-baselines3 {type(agent).__name__}",
        "defaults": defaults_of(plan, is_image_space(bare.observation_space)),
        **_circumstances(command),
    }
    limit = (spec.max_episode_steps if spec is not None else None) or _DEFAULT_LENGTH
    # Of an environment whose actions are built by decisions, the limit counts actions.
    decisions = bare.get_wrapper_attr("n_decisions") if bare.has_wrapper_attr("n_decisions") else 1
    steps = plan.steps or (plan.episodes or 1) * limit * decisions
    return PeerSession(folder, config, agent, environment, Progress(plan.episodes, plan.steps), steps)


def defaults_of(plan: Plan, pixels: bool) -> dict[str, Any]:
    """The arguments of a peer that its plan does not give: the paper's, or SB3's; as JSON can hold them.

    :param pixels: whether observations are pictures
    """
    from bdpi.baselines.paper import parameters_of

    observations = Box(0, 255, (36, 36, 3), np.uint8) if pixels else Box(0, 1, (1,), np.float32)
    paper = parameters_of(plan.agent, plan.environment.rpartition(":")[2], observations)
    policy = paper.pop("policy_kwargs", {})
    if "activation_fn" in policy:
        policy = {**policy, "activation_fn": policy["activation_fn"].__name__.lower()}
    given = {**plan.hyperparameters, **plan.policy_kwargs}
    used = {**_sb3_defaults(plan.agent), **paper, **policy}
    return {name: value for name, value in used.items() if name not in given}


@functools.cache
def _sb3_defaults(agent: str) -> dict[str, Any]:
    parameters = settable(agent_class(agent))
    return {name: each.default for name, each in parameters.items() if each.default is not each.empty}


def _environments(plan: Plan, bare: Any, may_copy: bool) -> Any:
    """The environment, or as many copies as the paper has, each in a process of its own where that is possible."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    from bdpi.baselines.paper import PARAMETERS

    copies = PARAMETERS[plan.agent].pixel_copies if is_image_space(bare.observation_space) else 1
    if copies == 1 or not may_copy:
        return monitored(bare)
    spec = bare.spec
    bare.close()
    if not _can_be_sent(spec):
        return DummyVecEnv([_Make(plan.environment)] * copies)
    try:
        with left_to_parent():
            return SubprocVecEnv([_MakeAlone(plan.environment)] * copies, start_method="forkserver")
    except (EOFError, ConnectionError):
        raise RunError(
            f"{plan.environment} cannot be made in other processes, in which {plan.agent} learns from pictures: "
            f"register it in a module of its own, and give it as my_module:{plan.environment}"
        ) from None


def _can_be_sent(spec: Any) -> bool:
    """Whether another process could tell what environment it has; not of one that a lambda makes."""
    try:
        pickle.dumps(spec)
    except Exception:  # whatever pickle, and the classes of others, raise
        return False
    return True


class _Make:
    def __init__(self, environment: str) -> None:
        self._environment = environment

    def __call__(self) -> Any:
        return monitored(make_environment(self._environment))


class _MakeAlone(_Make):
    """Can be sent to another process, which then leaves it to this one what a signal means."""

    def __call__(self) -> Any:
        leave_group()
        return super().__call__()


class PeerSession(Session):
    """A run of one peer.

    :param total_steps: what the algorithm is told, the longest that its episodes could take; DQN and prioritized
        dueling DQN explore less and less over a tenth of them
    """

    def __init__(
        self,
        folder: RunFolder,
        config: dict[str, Any],
        agent: BaseAlgorithm,
        environment: Any,
        progress: Progress,
        total_steps: int,
    ) -> None:
        self.folder, self.config, self.environment, self.progress = folder, config, environment, progress
        self.peer, self.tester, self.draws = agent, None, True
        self._total_steps = total_steps
        self._traceback = None

    @property
    def info(self) -> RunInfo:
        config = self.config
        return RunInfo(config["environment"], config["agent"], config["seed"], config["learner"], self.folder.path)

    def _to_close(self) -> tuple[Any, ...]:
        return (self.environment,)

    def _look_back(self, observer: Observer) -> None:
        pass  # peers do not look at themselves

    def _attach_monitor(self) -> None:
        pass  # the keeper writes

    def _learn(self, should_stop: Callable[[], bool], observer: Observer) -> None:
        keeper = _PeerKeeper(self.progress, self.folder.monitor, self.config["environment"], should_stop)
        self.peer.learn(self._total_steps, callback=keeper, log_interval=None)  # type: ignore[arg-type]

    def _save(self, status: str) -> str | None:
        self.config.update(status=status, finished=_now(), result=self.progress.summary.as_dict())
        problems = []

        def attempt(path: Path, task: Callable[[], object]) -> None:
            try:
                task()
            except Exception as error:  # a full disk, most likely
                problems.append(f"{path.name} could not be saved: {named(error)}")
                self.config.update(status="failed")
                self._blame(error)

        folder, text = self.folder, self._traceback
        if text is not None:
            attempt(folder.error, lambda: folder.error.write_text(text, encoding="utf-8"))
        attempt(folder.agent, lambda: write_atomically(folder.agent, self.peer.save))
        attempt(folder.config, lambda: folder.write_config(self.config))
        return "; ".join(problems) or None


class _PeerKeeper(BaseCallback):
    """Counts steps and episodes of one or several environments, writes episodes down, ends training in time."""

    def __init__(self, progress: Progress, path: Path, environment: str, should_stop: Callable[[], bool]) -> None:
        super().__init__()
        self._progress, self._path, self._environment, self._should_stop = progress, path, environment, should_stop
        self._t_start = time.time()

    def _on_step(self) -> bool:
        progress = self._progress
        progress.steps = self.num_timesteps
        for info in self.locals["infos"]:
            episode = Episode.from_info(info)
            if episode is not None and not progress.complete:
                append_to_monitor(self._path, self._environment, self._t_start, episode)
                progress.episodes.add(episode.episode_return, episode.length, episode.seconds)
        return not (progress.complete or self._should_stop())
