"""A saved agent acts, and the returns are counted."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bdpi.envs.film import Film, Filmed, has_display, no_window
from bdpi.runs.build import environment_of, load_agent, wrapped
from bdpi.runs.config import BaseConfig, OfflineConfig
from bdpi.runs.episodes import Episode
from bdpi.runs.errors import RunError, named, one_line
from bdpi.runs.folder import RunFolder
from bdpi.runs.trust import check_environment

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

    from bdpi.agents import Ensemble as Agent
    from bdpi.agents.journal import Transition

_LONGEST = 2000  # steps of a film


def open_agent(
    folder: RunFolder, render_mode: str | None = None, film: Film | None = None, *, trust: bool = False
) -> Agent:
    """The agent of a run, loaded, with a new environment to act in.

    :param render_mode: ``"human"`` opens a window, ``"rgb_array"`` is what a film needs.
    :param film: gets the pictures of what happens in the environment.
    :param trust: import the module that the run names for its environment.
    :raises RunError: when something is missing or damaged.
    """
    config = config_of(folder, trust)
    # Asked first: told to draw what it cannot, Gymnasium only warns, and then nothing is drawn.
    if render_mode is not None and not can_draw(config, render_mode):
        raise RunError(f"{config.environment} cannot be drawn: it has no render mode {render_mode!r}")
    environment = environment_of(config, render_mode)
    if film is not None:
        environment = Filmed(environment, film)
    return load_agent(config, folder.agent, wrapped(environment, config.action_bits))


def config_of(folder: RunFolder, trust: bool = False) -> BaseConfig:
    """The configuration of a run that names its environment.

    :param trust: the environment may be of any module.
    :raises RunError: when it names none, or one that must not be imported; when it is damaged.
    """
    config = folder.read().config
    if isinstance(config, OfflineConfig) and not config.environment:
        raise RunError(
            f"{folder.path} is of an agent that learned from a journal and knows no environment: name one when it "
            f"learns, bdpi train ENVIRONMENT --offline {shlex.quote(config.journal)}, or export it, bdpi export "
            f"{shlex.quote(str(folder.path))} policy.onnx"
        )
    check_environment(config, folder.config, trust)
    return config


def can_draw(config: BaseConfig, render_mode: str) -> bool:
    """Whether the environment of a run has a render mode."""
    made = environment_of(config)
    made.close()
    return render_mode in (made.metadata.get("render_modes") or ())


def steps(
    agent: Agent,
    environment: VecEnv,
    *,
    deterministic: bool,
    seen: Callable[[Transition], None] | None = None,
) -> Iterator[Episode | None]:
    """Act for ever, without learning: an ``Episode`` where a step ended one, ``None`` elsewhere.

    :param environment: one, in a Monitor.
    :param seen: is given each transition.
    """
    from bdpi.agents import Ensemble
    from bdpi.agents.masks import MaskSource, reset_infos

    observations: Any = environment.reset()
    infos = reset_infos(environment)
    # Stable-Baselines3's own algorithms know nothing of masks.
    ask = MaskSource(environment, agent.action_space) if isinstance(agent, Ensemble) else None
    n_steps, state, begins = 0, None, np.ones(environment.num_envs, dtype=bool)
    while True:
        masks: dict[str, Any] = {} if ask is None else {"action_masks": ask(infos, n_steps)}
        before = observations
        actions, state = agent.predict(before, state, begins, deterministic, **masks)
        observations, rewards, dones, infos = environment.step(actions)
        if seen is not None:
            seen(_transition(before, actions, rewards, observations, dones, infos))
        begins = dones
        n_steps += 1
        yield Episode.from_info(infos[0])
        if dones[0]:
            infos = reset_infos(environment)  # of the state that the next action is for


def _transition(before: Any, actions: Any, rewards: Any, after: Any, dones: Any, infos: Any) -> Transition:
    """What the only environment has done."""
    from bdpi.agents.collector import row_of
    from bdpi.agents.journal import Transition

    info, truncated = infos[0], bool(infos[0].get("TimeLimit.truncated", False))
    return Transition(
        row_of(before, 0),
        info.get("executed_action", actions[0]),
        float(rewards[0]),
        info["terminal_observation"] if dones[0] else row_of(after, 0),
        bool(dones[0]) and not truncated,
        truncated,
        info.get("discount"),
    )


def seeded_steps(agent: Agent, *, deterministic: bool, seed: int) -> Iterator[Episode | None]:
    """Act for ever in the agent's own environment, the same way for the same seed."""
    environment = agent.get_env()
    assert environment is not None
    agent.set_random_seed(seed)
    return steps(agent, environment, deterministic=deterministic)


def close(agent: Agent) -> None:
    """Close the agent's environment, and its window."""
    environment = agent.get_env()
    if environment is not None:
        environment.close()


def play(
    folder: RunFolder,
    n_episodes: int,
    *,
    watch: bool | None = False,
    record: Path | None = None,
    deterministic: bool = True,
    seed: int = 0,
    trust: bool = False,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> list[Episode]:
    """Let the agent of a run act for some episodes.

    :param watch: open a window; ``None``: if the environment has one, there is a display, and nothing is recorded.
    :param record: write a GIF of the episodes, as many as fit in one of a sensible size.
    :param deterministic: take the most probable action instead of drawing one.
    :param trust: see :func:`open_agent`.
    :param on_episode: is called after each episode.
    :raises RunError: when the run is damaged, or cannot be watched or recorded.
    """
    if watch and record:
        raise RunError("an environment either opens a window or is recorded: choose --watch or --record")
    if watch and not has_display():
        raise RunError("there is no display to watch on: leave --watch out, or use --record FILE.gif")
    if watch is None:
        watch = not record and has_display() and can_draw(config_of(folder, trust), "human")
    film = Film() if record else None
    render_mode = "human" if watch else "rgb_array" if record else None
    played: list[Episode] = []
    with contextlib.nullcontext() if watch else no_window():
        agent = open_agent(folder, render_mode, film, trust=trust)
        try:
            for episode in seeded_steps(agent, deterministic=deterministic, seed=seed):
                if episode is not None:
                    played.append(episode)
                    on_episode(episode)
                    if len(played) == n_episodes:
                        break
        except RunError:
            raise
        except Exception as error:  # environments and their windows are foreign code
            raise RunError(f"playing failed: {named(error)}") from None
        finally:
            close(agent)
    if film is not None and record is not None:
        try:
            film.save(record)
        except (ValueError, OSError) as error:
            raise RunError(f"the film {record} cannot be written: {one_line(error)}") from None
    return played


def film_policy(
    folder: RunFolder,
    *,
    max_episodes: int = 3,
    enough_steps: int = 120,
    max_steps: int = _LONGEST,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Write ``policy.gif``: the saved agent of a run that this process trains, taking its most probable actions.

    :param max_episodes: film so many, if they are short.
    :param enough_steps: begin no further episode after so many steps.
    :param max_steps: stop filming even in the middle of an episode.
    :raises RunError: when the environment cannot draw.
    """
    film = Film()
    with no_window():
        agent = open_agent(folder, "rgb_array", film, trust=True)
        try:
            n_episodes = 0
            for episode in seeded_steps(agent, deterministic=True, seed=config_of(folder, trust=True).seed):
                n_episodes += episode is not None
                enough = n_episodes == max_episodes or film.steps_filmed >= enough_steps
                if (episode is not None and enough) or film.steps_filmed >= max_steps or should_stop():
                    break
        finally:
            close(agent)
    film.save(folder.film)


def film_episode(config: BaseConfig, agent: Agent, path: Path, should_stop: Callable[[], bool]) -> None:
    """Write a film of one episode, with the most probable actions of an agent that goes on learning as if it had not
    been filmed; no film where it should stop.

    :raises RunError: when the environment cannot draw.
    """
    film, generator = Film(), agent.policy.generator.bit_generator
    before = generator.state
    with no_window():
        inside = wrapped(Filmed(environment_of(config, "rgb_array"), film), config.action_bits)
        environment = agent._wrap_env(inside)
        try:
            environment.seed(config.seed)
            for episode in steps(agent, environment, deterministic=True):
                if episode is not None or film.steps_filmed >= _LONGEST or should_stop():
                    break
        finally:
            generator.state = before
            environment.close()
    if not should_stop():
        film.save(path)
