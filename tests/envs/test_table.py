"""Table does what the paper's text and its own documentation say."""

from __future__ import annotations

import inspect
import math
import re
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled, InvalidAction, ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from bdpi.envs import Table, register
from bdpi.envs.table import FORWARD, TURN_LEFT, TURN_RIGHT

IDS = {"Table-v0": 200, "TableLong-v0": 2000}


def drive(env: gym.Env, actions: list[int]) -> tuple[np.ndarray, float, bool, bool, dict]:
    """The result of the last action; the ones before it must not end the episode."""
    for action in actions[:-1]:
        _, reward, terminated, truncated, _ = env.step(action)
        assert (reward, terminated, truncated) == (0, False, False)
    return env.step(actions[-1])


def drive_to_the_goal(env: gym.Env) -> tuple[float, bool, bool, dict, int]:
    """Turn towards (0.5, 0.5), then go: from the start, that is also the heading the dock wants."""
    (x, y, heading), _ = env.reset()
    for steps in range(1, 10_000):
        error = math.remainder(math.atan2(0.5 - y, 0.5 - x) - heading, math.tau)
        action = FORWARD if abs(error) <= 0.1 else TURN_LEFT if error > 0 else TURN_RIGHT
        (x, y, heading), reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return reward, terminated, truncated, info, steps
    raise AssertionError("the episode never ended")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("env_id", "limit"), IDS.items())
def test_both_ids_make_a_table_that_gymnasium_and_stable_baselines3_like(env_id: str, limit: int) -> None:
    before = gym.registry[env_id]
    register()  # again: silent
    assert gym.registry[env_id] is before
    env = gym.make(env_id, render_mode="rgb_array")
    assert isinstance(env.unwrapped, Table)
    assert env.spec.max_episode_steps == limit
    gymnasium_check_env(env.unwrapped)
    sb3_check_env(env, skip_render_check=False)


# Registration


# Episodes


@pytest.mark.parametrize("env_id", IDS)
def test_turning_to_the_goal_and_going_there_docks_well_within_200_steps(env_id: str) -> None:
    reward, terminated, truncated, info, steps = drive_to_the_goal(gym.make(env_id))
    assert (reward, terminated, truncated, info["is_success"]) == (100, True, False, True)
    assert steps < 120
    assert drive_to_the_goal(gym.make(env_id, start=(0.1, 0.1, -3 * math.pi / 4)))[:2] == (100, True)  # from behind


@pytest.mark.parametrize("heading", [0, math.pi / 2, math.pi, -math.pi / 2])
def test_driving_over_any_of_the_four_edges_falls_off(heading: float) -> None:
    env = Table(start=(0.5, 0.5, heading))
    env.reset()
    # 100 steps of 0.005 from the middle end exactly on the edge, where the robot still stands.
    observation, reward, terminated, truncated, info = drive(env, [FORWARD] * 101)
    assert (reward, terminated, truncated, info["is_success"]) == (-50, True, False, False)
    assert observation in env.observation_space
    edge = [0.5 + 0.5 * round(math.cos(heading)), 0.5 + 0.5 * round(math.sin(heading))]
    np.testing.assert_allclose(observation[:2], edge, atol=1e-6)


@pytest.mark.parametrize(("env_id", "limit"), IDS.items())
def test_the_time_limit_truncates_and_does_not_terminate(env_id: str, limit: int) -> None:
    env = gym.make(env_id)
    env.reset()
    _, reward, terminated, truncated, info = drive(env, [TURN_LEFT] * limit)
    assert (reward, terminated, truncated) == (0, False, True)
    assert info["is_success"] is False  # otherwise SB3's success rate would leave this episode out
    env.unwrapped.reset()
    assert drive(env.unwrapped, [TURN_LEFT] * 2500)[1:4] == (0, False, False)  # without its id, it has no limit


def test_every_observation_of_random_episodes_is_in_the_space_and_every_reward_has_its_reason() -> None:
    env = Table()
    first, _ = env.reset()
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(100):
        observation, _ = env.reset()
        np.testing.assert_array_equal(observation, first)
        terminated = False
        while not terminated:
            observation, reward, terminated, _, info = env.step(rng.integers(3))
            assert observation in env.observation_space
            outcomes.add((reward, terminated, info["is_success"]))
    assert outcomes == {(0, False, False), (-50, True, False), (100, True, True)}


def test_the_same_actions_give_exactly_the_same_episode_whatever_the_seed() -> None:
    actions = np.random.default_rng(1).integers(3, size=200)
    episodes = []
    for seed in (0, 0, 1):
        env = gym.make("Table-v0")
        observation, _ = env.reset(seed=seed)
        episode = [observation]
        for action in actions:
            observation, *_, terminated, truncated, _ = env.step(action)
            episode.append(observation)
            if terminated or truncated:
                break
        episodes.append(np.array(episode))
    np.testing.assert_array_equal(episodes[0], episodes[1])
    np.testing.assert_array_equal(episodes[0], episodes[2])


@pytest.mark.parametrize(
    ("action", "change"),
    [(FORWARD, (0.005 * math.cos(2), 0.005 * math.sin(2), 0)), (TURN_LEFT, (0, 0, 0.1)), (TURN_RIGHT, (0, 0, -0.1))],
)
@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_actions_move_0_005_along_the_heading_or_turn_by_0_1(action: int, change: tuple, kind: type) -> None:
    env = Table(start=kind([0.2, 0.3, 2.0]))
    before, _ = env.reset()
    np.testing.assert_allclose(before, [0.2, 0.3, 2.0], atol=1e-6)
    np.testing.assert_allclose(env.step(action)[0], before + np.array(change), atol=1e-6)


# Movement


@pytest.mark.parametrize("action", [TURN_LEFT, TURN_RIGHT])
def test_the_heading_wraps_and_stays_the_direction_the_robot_drives_in(action: int) -> None:
    sign = 1 if action == TURN_LEFT else -1
    env = Table(start=(0.5, 0.5, sign * 3.1))
    env.reset()
    observation = env.step(action)[0]
    assert observation[2] == pytest.approx(sign * (3.2 - 2 * math.pi), abs=1e-6)
    moved = env.step(FORWARD)[0] - observation
    np.testing.assert_allclose(moved[:2], [0.005 * math.cos(3.2), sign * 0.005 * math.sin(3.2)], atol=1e-6)


def test_many_small_steps_add_up_without_the_rounding_of_float32() -> None:
    env = Table(start=(0.1, 0.1, 0.0))
    env.reset()
    observation = drive(env, [FORWARD] * 180)[0]
    assert observation[0] == 1
    assert np.float32(0.1) + np.full(180, 0.005, np.float32).cumsum()[-1] != 1  # what the observations alone would give


@pytest.mark.parametrize("heading", [7.0, -7.0, math.pi, 100 * math.pi])
def test_a_start_heading_of_more_than_half_a_turn_is_wrapped(heading: float) -> None:
    observation, _ = Table(start=(0.2, 0.2, heading)).reset()
    assert abs(observation[2]) <= np.float32(math.pi)
    assert math.cos(observation[2]) == pytest.approx(math.cos(heading), abs=1e-6)
    assert math.sin(observation[2]) == pytest.approx(math.sin(heading), abs=1e-6)


# The edges of the dock: 0.05 and 0.3 rad still count, a little more does not.


@pytest.mark.parametrize("beyond", [0, 1e-6])
@pytest.mark.parametrize("heading", [0, math.pi / 2, math.pi, -math.pi / 2])
def test_the_dock_reaches_0_05_from_the_goal_on_each_side(heading: float, beyond: float) -> None:
    away = 0.055 + beyond  # one step forward leaves 0.05, or a little more
    start = (0.5 - away * math.cos(heading), 0.5 - away * math.sin(heading), heading)
    env = Table(start=start, goal=(0.5, 0.5, heading))
    env.reset()
    _, reward, terminated, _, _ = env.step(FORWARD)
    assert (reward, terminated) == ((100, True) if beyond == 0 else (0, False))


@pytest.mark.parametrize("beyond", [0, 1e-6])
@pytest.mark.parametrize("action", [TURN_LEFT, TURN_RIGHT])
@pytest.mark.parametrize("goal_heading", [math.pi / 4, math.pi, -math.pi, -3.0, 3.0])
def test_the_dock_accepts_headings_up_to_0_3_rad_off_also_across_pi(
    goal_heading: float, action: int, beyond: float
) -> None:
    sign = 1 if action == TURN_LEFT else -1
    env = Table(start=(0.5, 0.5, goal_heading - sign * (0.4 + beyond)), goal=(0.5, 0.5, goal_heading))
    env.reset()
    _, reward, terminated, _, _ = env.step(action)
    assert (reward, terminated) == ((100, True) if beyond == 0 else (0, False))


def test_driving_through_the_station_with_a_wrong_heading_does_not_dock() -> None:
    env = Table(start=(0.3, 0.5, 0.0))
    env.reset()
    assert drive(env, [FORWARD] * 80)[1:3] == (0, False)


def test_wider_tolerances_and_a_higher_speed_make_docking_quicker() -> None:
    steps = [
        drive_to_the_goal(Table(**arguments))[4]
        for arguments in ({}, {"position_tolerance": 0.1}, {"position_tolerance": 0.1, "speed": 0.02})
    ]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == 3


ODD = {
    "start": [(1.2, 0.1, 0), (0.1, -0.1, 0), (0.1, math.nan, 0), (0.1, 0.1, math.inf), (0.1, 0.1), "123", 0.1],
    "goal": [(0.5, 2, 0), (0.5, 0.5, math.nan)],
    "position_tolerance": [-0.1, math.nan],
    "heading_tolerance": [-1, math.inf],
    "speed": [0, -0.005, math.nan, "fast"],
    "turn_rate": [0.0, math.inf],
    "render_mode": ["ansi"],
}


# Mistakes


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ODD.items() for value in values])
def test_a_bad_argument_is_named_together_with_the_remedy(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{name}=.{{20,}}"):
        Table(**{name: value})


def test_a_start_in_the_dock_is_refused() -> None:
    with pytest.raises(ValueError, match="already docked"):
        Table(start=(0.5, 0.5, 0.8))


def test_stepping_or_rendering_without_an_episode_says_to_reset() -> None:
    env, ended = Table(render_mode="rgb_array"), Table()
    drive_to_the_goal(ended)
    for call in (lambda: env.step(FORWARD), env.render, lambda: ended.step(FORWARD)):
        with pytest.raises(ResetNeeded, match="reset"):
            call()


@pytest.mark.parametrize("action", [3, -1, 0.0, "forward", None, np.array([0, 1])])
def test_an_invalid_action_is_refused_and_moves_nothing(action: object) -> None:
    env = Table()
    before, _ = env.reset()
    with pytest.raises(InvalidAction, match="turn left"):
        env.step(action)
    np.testing.assert_allclose(env.step(TURN_LEFT)[0], before + np.array([0, 0, 0.1]), atol=1e-6)


def test_rendering_without_a_render_mode_says_which_ones_there_are() -> None:
    env = Table()
    env.reset()
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.render() is None


def test_training_needs_no_pygame_and_pictures_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    monkeypatch.delitem(sys.modules, "bdpi.envs.table_picture", raising=False)
    monkeypatch.delattr("bdpi.envs.table_picture", raising=False)
    assert drive_to_the_goal(Table())[0] == 100
    env = Table(render_mode="rgb_array")
    env.reset()
    with pytest.raises(DependencyNotInstalled, match="pip install"):
        env.render()


# Pictures: the table fills the middle 360 of 400 pixels, y points up.


def pixel(x: float, y: float) -> tuple[float, float]:
    """Row and column of a place on the table."""
    return 380 - 360 * y, 20 + 360 * x


def robot_in(picture: np.ndarray) -> np.ndarray:
    """Row and column of the middle of everything that is nearly black: only the robot is."""
    black = np.argwhere(picture.max(axis=2) < 60)
    return (black.min(axis=0) + black.max(axis=0) + 1) / 2  # the mark is a hole in the disc and would pull a mean


@pytest.mark.parametrize("place", [(0.1, 0.1), (0.9, 0.2), (0.25, 0.8), (0.7, 0.6)])
def test_the_robot_is_drawn_where_it_is(place: tuple[float, float]) -> None:
    env = Table(start=(*place, 0.0), render_mode="rgb_array")
    env.reset()
    first, second = env.render(), env.render()
    assert (first.shape, first.dtype) == ((400, 400, 3), np.uint8)
    np.testing.assert_array_equal(first, second)
    assert not np.shares_memory(first, second)
    np.testing.assert_allclose(robot_in(first), pixel(*place), atol=1)
    observation = drive(env, [TURN_LEFT] * 10 + [FORWARD] * 10)[0]
    np.testing.assert_allclose(robot_in(env.render()), pixel(*observation[:2]), atol=1)


@pytest.mark.parametrize("heading", [0.0, 1.0, math.pi / 2, math.pi, -2.0])
def test_the_mark_on_the_robot_is_on_the_side_it_looks_to(heading: float) -> None:
    env = Table(start=(0.2, 0.2, heading), render_mode="rgb_array")
    env.reset()
    picture = env.render()
    ahead = np.array([math.cos(heading), math.sin(heading)]) * 0.017
    front, back = (tuple(np.round(pixel(*(0.2 + way))).astype(int)) for way in (ahead, -ahead))
    assert picture[front].min() > 200
    assert picture[back].max() < 60


def test_the_station_is_blue_and_lies_at_the_goal() -> None:
    env = Table(goal=(0.3, 0.7, 0.0), render_mode="rgb_array")
    env.reset()
    picture = env.render().astype(int)
    rows, columns = np.nonzero(picture[:, :, 2] > picture[:, :, 0] + 60)
    (top, left), (bottom, right) = pixel(0.25, 0.75), pixel(0.35, 0.65)
    np.testing.assert_allclose(
        [rows.min(), columns.min(), rows.max(), columns.max()], [top, left, bottom, right], atol=2
    )


def test_the_station_shows_its_heading() -> None:
    pictures = []
    for heading in (0.0, 2.0):
        env = Table(goal=(0.5, 0.5, heading), render_mode="rgb_array")
        env.reset()
        pictures.append(env.render())
    different = np.argwhere((pictures[0] != pictures[1]).any(axis=2))
    assert len(different) > 50
    assert abs(different - 200).max() <= 20


def test_the_way_the_robot_came_stays_visible_until_the_next_episode_and_a_fallen_one_is_off_the_table() -> None:
    env = Table(start=(0.2, 0.2, 0.0), render_mode="rgb_array")
    env.reset()
    empty = env.render()
    drive(env, [FORWARD] * 40)
    row, column = np.round(pixel(0.3, 0.2)).astype(int)
    assert (env.render()[row, column] != empty[row, column]).any()
    env.reset()
    np.testing.assert_array_equal(env.render(), empty)
    env = Table(start=(0.9, 0.5, 0.0), speed=0.12, render_mode="rgb_array")
    env.reset()
    assert env.step(FORWARD)[1] == -50
    np.testing.assert_allclose(robot_in(env.render()), pixel(1.02, 0.5), atol=1)


def test_human_mode_opens_a_window_shows_each_step_and_closes_it() -> None:
    import pygame

    env = gym.make("Table-v0", render_mode="human")
    env.reset()
    start = pygame.surfarray.array3d(pygame.display.get_surface())
    assert start.shape == (400, 400, 3)
    for _ in range(5):
        env.step(FORWARD)
    assert (pygame.surfarray.array3d(pygame.display.get_surface()) != start).any()
    assert env.render() is None
    env.close()
    env.close()
    assert not pygame.display.get_init()


# The documentation


def section(title: str) -> str:
    return inspect.getdoc(Table).split(f"## {title}\n")[1].split("\n## ")[0]


def number(text: str) -> float:
    return {"-π": -math.pi, "π": math.pi}[text] if "π" in text else float(text)


def test_the_documented_arguments_are_the_constructors_with_its_defaults() -> None:
    documented = dict(re.findall(r"^- `(\w+)=(.*?)`:", section("Arguments"), re.MULTILINE))
    actual = {name: parameter.default for name, parameter in inspect.signature(Table).parameters.items()}
    assert {name: eval(text, {"π": math.pi}) for name, text in documented.items()} == actual


def test_the_documented_observation_bounds_are_those_of_the_space() -> None:
    rows = re.findall(r"\| (\d) +\|.*\| (\S+) +\| (\S+) +\|", section("Observation Space"))
    assert [row[0] for row in rows] == ["0", "1", "2"]
    space = Table().observation_space
    np.testing.assert_array_equal(np.array([number(row[1]) for row in rows], np.float32), space.low)
    np.testing.assert_array_equal(np.array([number(row[2]) for row in rows], np.float32), space.high)


def test_the_documented_actions_start_rewards_and_limits_are_the_real_ones() -> None:
    env = Table()
    actions = re.findall(r"\| (\d) +\| (\w+ \w+) ([\d.]+)", section("Action Space"))
    assert [(int(action), name, float(size)) for action, name, size in actions] == [
        (FORWARD, "Move forward", env.speed),
        (TURN_LEFT, "Turn left", env.turn_rate),
        (TURN_RIGHT, "Turn right", env.turn_rate),
    ]
    start = re.match(r"`\(([\d., ]+)\)`", section("Starting State")).group(1)
    np.testing.assert_allclose(env.reset()[0], [float(value) for value in start.split(",")], atol=1e-7)
    rewards = re.findall(r"^- .*: ([+-]?\d+)$", section("Rewards"), re.MULTILINE)
    assert [float(reward) for reward in rewards] == [100, -50, 0]  # each is earned by a test above
    limits = re.findall(r"`(\w+-v0)` after (\d+) steps", section("Episode End"))
    assert {env_id: int(limit) for env_id, limit in limits} == IDS
