"""A look at an environment before anything is trained in it: what it gives, how it ends, how long training takes."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from bdpi.runs.build import make_environment
from bdpi.runs.config import DEFAULT_EPISODES, RunConfig
from bdpi.runs.errors import RunError, named, one_line

if TYPE_CHECKING:
    import gymnasium as gym

    from bdpi.agents import Ensemble as Agent
    from bdpi.agents.health import Finding

#: Enough random episodes and steps to see what is usual; a slow environment gets so many seconds instead.
PLAYED_EPISODES, PLAYED_STEPS, PLAYED_SECONDS = 20, 2000, 15.0
#: To measure how long learning takes: the first epoch prepares things, the others are what it costs.
EPOCHS, LEARNING_SECONDS = 10, 5.0
_COLLECTING_SECONDS = 5.0
#: Random steps without an end, in an environment without a time limit, that are a problem: an agent begins at random.
ENDLESS_STEPS = 1000
#: Of Gymnasium's hints, those about what is done here without any help: scales, and continuous actions.
_NOT_HERE = ("minimum value is -infinity", "maximum value is infinity", "symmetric and normalized space")
#: Numbers of pictures that are kept to be described.
_MOST_NUMBERS = 20_000_000

#: Told what is counted, how much is done, and of how much.
Tick = Callable[[str, int, int], object]


@dataclass(frozen=True)
class Range:
    """What some numbers were like.

    :param name: of what they are
    :param low: the smallest
    :param high: the largest
    :param mean: of all
    :param spread: their standard deviation
    """

    name: str
    low: float
    high: float
    mean: float
    spread: float

    @classmethod
    def of(cls, name: str, values: Any) -> Range:
        numbers = np.asarray(values, np.float64)
        return cls(name, *(float(each) for each in (numbers.min(), numbers.max(), numbers.mean(), numbers.std())))


@dataclass(frozen=True)
class RandomEpisodes:
    """How random episodes went.

    :param terminated: so many ended by themselves
    :param truncated: so many were cut off, by a time limit most likely
    :param unfinished: steps of the one that was going on when the look ended
    :param lengths: in steps; ``None``: none ended
    :param returns: of the random policy; ``None``: none ended
    """

    terminated: int
    truncated: int
    unfinished: int
    lengths: Range | None
    returns: Range | None


@dataclass(frozen=True)
class TrainingTime:
    """How long training takes on this machine.

    :param episodes: that are trained
    :param learning_ms: milliseconds that the agent takes for a step, to act and to learn
    :param seconds: in all, if episodes stay as long as random ones; ``None``: none ended
    :param longest: in all, if every episode takes all the steps it may; ``None``: there is no limit
    """

    episodes: int
    learning_ms: float
    seconds: float | None
    longest: float | None


@dataclass
class Look:
    """All that was seen.

    :param environment: its id
    :param observations: their space
    :param actions: their space
    :param limit: of steps in an episode; ``None``: none
    :param steps: that were made at random
    :param ranges: of the observations, dimension by dimension
    :param rewards: what they were like
    :param episodes: how they went
    :param step_ms: milliseconds that the environment takes for a step
    :param by_itself: what ``bdpi train`` does without being told
    :param estimate: how long training takes; ``None`` where nothing can be trained
    :param remarks: worth knowing, and no problem
    :param findings: problems, and what to do about them
    """

    environment: str
    observations: str
    actions: str
    limit: int | None = None
    steps: int = 0
    ranges: list[Range] = field(default_factory=list)
    rewards: Range | None = None
    episodes: RandomEpisodes | None = None
    step_ms: float | None = None
    by_itself: list[str] = field(default_factory=list)
    estimate: TrainingTime | None = None
    remarks: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def look_at(
    environment: str, episodes: int = DEFAULT_EPISODES, tick: Tick = lambda what, done, total: None, seed: int = 0
) -> Look:
    """Make an environment, act in it at random, and try an agent on it.

    :param environment: Gymnasium id
    :param episodes: whose training time is estimated
    :param tick: told how many random steps and learning epochs are made
    :param seed: of everything that is drawn
    :raises RunError: when there is no such environment, or it cannot be made
    """
    with _caught() as said:
        bare = make_environment(environment)
        spec = bare.spec
        if spec is not None and ":" not in environment:
            environment = spec.id
        limit = None if spec is None else spec.max_episode_steps
        look = Look(environment, str(bare.observation_space), str(bare.action_space), limit)
        try:
            _ask_gymnasium(bare, look)
            _play(bare, look, tick, seed)
        finally:
            with contextlib.suppress(Exception):  # foreign code
                bare.close()
    with _caught() as said_to_agents:
        _try_agent(look, episodes, tick, seed)
    look.remarks[:0] = list(dict.fromkeys([*said, *said_to_agents]))
    return look


@contextlib.contextmanager
def _caught() -> Iterator[list[str]]:
    """Warnings, one line each, in a list that is complete afterwards."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            yield said
        finally:
            lines = dict.fromkeys(one_line(each.message).removeprefix("WARN: ") for each in caught)
            said += [line for line in lines if not any(part in line for part in _NOT_HERE)]


def _problem(code: str, message: str, remedy: str) -> Finding:
    from bdpi.agents.health import Finding

    return Finding(code, message, remedy)


def _ask_gymnasium(bare: gym.Env[Any, Any], look: Look) -> None:
    """Gymnasium's own check, without drawing and without a second copy: there may be one robot only."""
    from gymnasium.utils.env_checker import check_env

    try:
        check_env(bare.unwrapped, skip_render_check=True, skip_close_check=True)
    except Exception as error:  # an assertion, or whatever the environment raises
        text = one_line(error) if isinstance(error, AssertionError) and str(error) else named(error)
        if "determini" in text.lower():
            look.remarks.append(f"{text} (a run with the same seed will not be the same)")
        else:
            remedy = "Correct the environment; gymnasium.utils.env_checker.check_env shows where."
            look.findings.append(_problem("gymnasium-check", f"Gymnasium's check fails: {text}", remedy))


# -- random episodes


class _Played:
    """What random steps gave."""

    def __init__(self) -> None:
        self.observations: list[Any] = []
        self.rewards: list[float] = []
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.terminated = self.truncated = self.length = 0
        self.total = self.seconds = 0.0

    def add(self, observation: Any, reward: SupportsFloat, terminated: bool, truncated: bool) -> None:
        self.observations.append(observation)
        self.rewards.append(float(reward))
        self.length, self.total = self.length + 1, self.total + float(reward)
        if terminated or truncated:
            self.terminated += bool(terminated)
            self.truncated += not terminated
            self.returns.append(self.total)
            self.lengths.append(self.length)
            self.length, self.total = 0, 0.0


def _play(bare: gym.Env[Any, Any], look: Look, tick: Tick, seed: int) -> None:
    from bdpi.agents import health
    from bdpi.envs.factors import random_action

    played = _Played()
    began = time.monotonic()
    space: Any = bare.action_space
    space.seed(seed)
    try:
        observation, info = bare.reset(seed=seed)
        _refuse_not_finite(observation, 0.0, 0)
        while _goes_on(played, time.monotonic() - began):
            action = random_action(space, info["action_mask"]) if "action_mask" in info else space.sample()
            before = time.perf_counter()
            observation, reward, terminated, truncated, info = bare.step(action)
            played.seconds += time.perf_counter() - before
            _refuse_not_finite(observation, reward, len(played.rewards) + 1)
            played.add(observation, reward, terminated, truncated)
            steps = len(played.rewards)
            tick("random steps", steps, PLAYED_STEPS if steps <= PLAYED_STEPS else health.ENDLESS_STEPS)
            if terminated or truncated:
                observation, info = bare.reset()
    except Exception as error:  # foreign code
        text = str(error) if isinstance(error, RunError) else f"it raises {named(error)}"
        where = f"after {len(played.rewards)} random steps"
        look.findings.append(_problem("environment-fails", f"{text[:1].upper()}{text[1:]}, {where}.", "Correct it."))
    look.steps = len(played.rewards)
    if not played.rewards:
        return
    look.rewards = Range.of("reward", played.rewards)
    look.step_ms = 1000 * played.seconds / look.steps
    lengths, returns = (
        Range.of(name, values) if values else None
        for name, values in (("steps", played.lengths), ("return", played.returns))
    )
    look.episodes = RandomEpisodes(played.terminated, played.truncated, played.length, lengths, returns)
    seen = _stacked(played.observations, bare.observation_space)
    if seen is not None:
        look.ranges = _ranges(seen, bare.observation_space)
        look.findings += health.observation_findings(seen, bare.observation_space, len(played.lengths))
    look.findings += health.reward_findings(np.array(played.rewards), len(set(played.returns)) > 1)
    _judge_ends(played, look)


def _goes_on(played: _Played, seconds: float) -> bool:
    from bdpi.agents.health import ENDLESS_STEPS

    if seconds > PLAYED_SECONDS or len(played.rewards) >= ENDLESS_STEPS:
        return False
    return len(played.lengths) < PLAYED_EPISODES or len(played.rewards) < PLAYED_STEPS


def _refuse_not_finite(observation: Any, reward: Any, step: int) -> None:
    """:raises RunError: for what agents refuse"""
    parts = observation.values() if isinstance(observation, dict) else [observation]
    for part in parts:
        if not isinstance(part, tuple) and not np.isfinite(np.asarray(part, np.float64)).all():
            raise RunError(f"the observation holds a number that is not finite in step {step}")
    if not np.isfinite(float(reward)):
        raise RunError(f"the reward is {reward} in step {step}")


def _judge_ends(played: _Played, look: Look) -> None:
    from bdpi.agents import health

    steps = len(played.rewards)
    if not played.lengths:
        endless = [] if look.limit is not None else health.episode_findings(played.length, ENDLESS_STEPS)
        look.findings += endless
        if not endless:
            look.remarks.append(f"no episode ended within {steps} random steps: how long they are is not known")
    codes = {finding.code for finding in look.findings}
    if "rewards-equal" not in codes and len(set(played.rewards)) == 1 and len(set(played.returns)) <= 1:
        look.remarks.append(
            f"all {steps} rewards of random actions are {played.rewards[0]:g}, and no episode is worth more than "
            "another: the agent has to find something better by chance before it can learn"
        )


def _stacked(observations: list[Any], space: gym.Space[Any]) -> Any:
    """Rows of observations, or a dictionary of them; None for what agents do not take."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = {key: _stacked([each[key] for each in observations], part) for key, part in space.spaces.items()}
        return None if any(part is None for part in parts.values()) else parts
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return None
    size = max(1, int(np.prod(space.shape or ())))
    every = max(1, len(observations) * size // _MOST_NUMBERS)
    return np.stack([np.asarray(each) for each in observations[::every]])


def _ranges(seen: Any, space: gym.Space[Any], name: str = "") -> list[Range]:
    """One for each dimension of a vector, one for all of a picture or of a state number."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return [each for key, part in space.spaces.items() for each in _ranges(seen[key], part, key)]
    rows: NDArray[Any] = seen.reshape(len(seen), -1)
    if isinstance(space, spaces.Discrete):
        label = f"state number ({len(np.unique(rows))} of {space.n} seen)"
        return [Range.of(f"{name} {label}".strip(), rows)]
    if len(space.shape or ()) >= 3:
        return [Range.of(f"{name} pixels".strip(), rows)]
    return [Range.of(f"{name} {index}".strip(), rows[:, index]) for index in range(rows.shape[1])]


# -- an agent


def _try_agent(look: Look, episodes: int, tick: Tick, seed: int) -> None:
    """What a run would do by itself, and how long its steps would take."""
    from bdpi.runs.train import prepare

    notes: list[str] = []
    try:
        session = prepare(RunConfig(environment=look.environment, seed=seed, episodes=episodes), note=notes.append)
    except RunError as error:
        remedy = "Wrap the environment so that its spaces fit (bdpi envs says which do)."
        look.findings.append(_problem("no-agent", f"No agent can learn here: {str(error).rstrip('.')}.", remedy))
        return
    try:
        look.by_itself = [*notes, *_always(session.agent, session.status.policy)]
        if any(finding.code == "environment-fails" for finding in look.findings):
            return
        look.estimate = _estimate(look, episodes, *_time(session, tick))
    except Exception as error:  # foreign code, and what agents refuse
        remedy = "Correct the environment; bdpi train would end with this."
        look.findings.append(_problem("agent-fails", f"Learning fails: {named(error)}.", remedy))
    finally:
        with contextlib.suppress(Exception):
            session.environment.close()


def _always(agent: Agent, policy: str) -> Iterator[str]:
    from gymnasium import spaces

    yield f"networks: {policy}"
    if isinstance(agent.observation_space, spaces.Discrete):
        yield f"state numbers are one-hot, {agent.observation_space.n} inputs"
    elif agent.policy.scaled_parts and agent.observation_size is not None:
        yield "observations: the agent scales numbers by their range, whatever their units"
    if agent.return_size is not None:
        yield "returns: the agent scales them by their size, whatever their units"


def _time(session: Any, tick: Tick) -> tuple[float, float]:
    """Seconds of a real step (the environment's share included, as measured here), and of its learning."""
    agent, environment = session.agent, session.environment
    observation, info = environment.reset(seed=session.config.seed)
    steps: list[tuple[Any, ...]] = []
    decisions = real_steps = 0
    began = time.monotonic()
    while len(steps) < agent.batch_size and time.monotonic() - began < _COLLECTING_SECONDS:
        mask = info.get("action_mask")
        action = agent.act(observation, mask)
        following, reward, terminated, truncated, info = environment.step(action)
        executed = info.get("executed_action", action)
        arguments = {"mask": mask, "discount": info.get("discount")}
        steps.append((observation, executed, reward, following, terminated, truncated, arguments))
        agent.observe(*steps[-1][:-1], next_mask=info.get("action_mask"), **arguments)
        decisions += 1
        real_steps += info.get("discount") != 1.0
        observation = following
        if terminated or truncated:
            observation, info = environment.reset()
    acting = (time.monotonic() - began) / max(1, real_steps)
    number = 0
    while len(agent.replay_buffer) < agent.batch_size:  # a slow one: what it gave, again
        *step, arguments = steps[number % len(steps)]
        agent.observe(*step, next_mask=arguments["mask"], **arguments)
        number += 1
    return acting, _time_of_epoch(agent, tick) * decisions / max(1, real_steps)


def _time_of_epoch(agent: Any, tick: Tick) -> float:
    """Seconds; the first epoch does not count, unless it takes so long that another would be too much."""
    durations: list[float] = []
    while len(durations) <= EPOCHS and sum(durations) < LEARNING_SECONDS:
        before = time.perf_counter()
        agent.learn_once()
        durations.append(time.perf_counter() - before)
        tick("learning epochs", len(durations), EPOCHS + 1)
    return float(np.median(durations[1:] or durations))


def _estimate(look: Look, episodes: int, acting: float, learning: float) -> TrainingTime:
    assert look.step_ms is not None
    per_step = acting + learning
    mean = None if look.episodes is None or look.episodes.lengths is None else look.episodes.lengths.mean
    return TrainingTime(
        episodes,
        max(0.0, 1000 * per_step - look.step_ms),
        None if mean is None else episodes * mean * per_step,
        None if look.limit is None else episodes * look.limit * per_step,
    )
