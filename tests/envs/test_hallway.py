"""Hallway does what the paper's text and its own documentation say."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled, InvalidAction, ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

import bdpi.envs

try:
    from bdpi.envs.hallway import BACKWARD, FORWARD, TURN_LEFT, TURN_RIGHT, Hallway
except DependencyNotInstalled as error:
    MISSING = str(error)
else:
    MISSING = ""

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

Make = Callable[..., gym.Env]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes environments, and closes them after the test."""
    made: list[gym.Env] = []

    def make(env_id: str = "Hallway-v0", **arguments: object) -> gym.Env:
        made.append(gym.make(env_id, **arguments))
        return made[-1]

    yield make
    for env in made:
        env.close()


def in_a_big_room(make: Make, heading: float = 0.3) -> gym.Env:
    """The robot is in a place where it meets neither walls nor the box for a while."""
    env = make(length=(40, 40), width=(40, 40))
    env.reset(seed=0)
    world = env.unwrapped
    world.agent.pos = np.array([10.0, 0, 10.0])
    if np.linalg.norm(world.box.pos - world.agent.pos) < 10:
        world.agent.pos = np.array([30.0, 0, 30.0])
    world.agent.dir = heading
    return env


def towards_the_box(env: gym.Env) -> int:
    """The action of somebody who knows where everything is. A room has no obstacle between robot and box."""
    robot = env.unwrapped.agent
    x, _, z = env.unwrapped.box.pos - robot.pos
    error = math.remainder(math.atan2(-z, x) - robot.dir, math.tau)  # z points to the right of x
    return FORWARD if abs(error) < 0.2 else TURN_LEFT if error > 0 else TURN_RIGHT


def red(picture: np.ndarray) -> np.ndarray:
    """Where a picture shows the box: nothing else in the room has a colour."""
    return (picture[..., 0] > 100) & (picture[..., 1] < 50) & (picture[..., 2] < 50)


# Registration and spaces


def test_the_id_makes_a_hallway_with_500_steps_four_actions_and_small_pictures(
    make: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    env = make(render_mode="rgb_array")
    env.reset()
    assert capfd.readouterr() == ("", "")  # it prints nothing
    assert isinstance(env.unwrapped, Hallway)
    assert bdpi.envs.Hallway is Hallway
    assert env.spec.max_episode_steps == 500
    assert env.action_space == gym.spaces.Discrete(4)
    assert env.observation_space == gym.spaces.Box(0, 255, (60, 80, 3), np.uint8)


@pytest.mark.filterwarnings("error")
def test_gymnasium_and_stable_baselines3_find_nothing_to_complain_about(make: Make) -> None:
    gymnasium_check_env(make(render_mode="rgb_array").unwrapped)
    sb3_check_env(make(render_mode="rgb_array"), skip_render_check=False)


# Starting state


def test_every_episode_has_another_room_box_and_start_and_they_are_anywhere(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    world = env.unwrapped
    rooms, boxes, starts, headings = [], [], [], []
    for _ in range(200):
        env.reset()
        room = np.array([world.max_x - world.min_x, world.max_z - world.min_z])
        rooms.append(room)
        boxes.append(world.box.pos[[0, 2]] / room)
        starts.append(world.agent.pos[[0, 2]] / room)
        headings.append(math.remainder(world.agent.dir, math.tau))
        # Nothing stands in a wall, and the robot is not at the box yet.
        assert not world.intersect(world.agent, world.agent.pos, world.agent.radius)
        assert not world.intersect(world.box, world.box.pos, world.box.radius)
        assert not world.near(world.box)
    # 200 uniform numbers leave a tenth of their range free at an end once in a billion times.
    smallest, largest = np.min(rooms, axis=0), np.max(rooms, axis=0)
    assert np.all((smallest >= [6, 3]) & (smallest < [6.6, 3.3]))
    assert np.all((largest <= [12, 6]) & (largest > [11.4, 5.7]))
    for places in (boxes, starts):
        assert np.all(np.min(places, axis=0) < 0.3)
        assert np.all(np.max(places, axis=0) > 0.7)
    assert min(headings) < -0.8 * math.pi
    assert max(headings) > 0.8 * math.pi


def test_the_size_of_the_room_can_be_chosen_and_the_smallest_have_a_start_too(make: Make) -> None:
    world = make(length=np.array([9, 9]), width=[4.5, 4.5]).unwrapped
    world.reset()
    assert (world.max_x - world.min_x, world.max_z - world.min_z) == (9, 4.5)
    world = make(length=(3, 3), width=(3, 3)).unwrapped
    for seed in range(50):
        world.reset(seed=seed)
        assert not world.near(world.box)


# Episodes


def test_driving_to_the_box_gives_1_and_ends_the_episode(make: Make) -> None:
    env = make()
    for seed in range(10):
        env.reset(seed=seed)
        for _ in range(200):
            _, reward, terminated, truncated, info = env.step(towards_the_box(env))
            assert (reward, truncated, info["is_success"]) == (1 if terminated else 0, False, terminated)
            if terminated:
                break
        assert terminated
        assert env.unwrapped.near(env.unwrapped.box)  # what MiniWorld's own tasks call reached
        with pytest.raises(ResetNeeded, match="ended"):
            env.step(FORWARD)
    env.reset(seed=0)
    world = env.unwrapped
    side = -1 if world.box.pos[0] > world.max_x / 2 else 1  # where there is more space
    world.agent.pos = world.box.pos + np.array([1.3 * side, 0, 0])
    world.agent.dir = 0.0 if side == 1 else math.pi
    backwards = [env.step(BACKWARD)[1:3]]
    while not backwards[-1][1] and len(backwards) < 4:
        backwards.append(env.step(BACKWARD)[1:3])
    assert backwards[-1] == (1, True)  # backing into the box reaches it as well


def test_the_time_limit_of_500_steps_truncates_and_does_not_terminate(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    for _ in range(499):
        assert env.step(TURN_LEFT)[1:4] == (0, False, False)
    _, reward, terminated, truncated, info = env.step(TURN_LEFT)
    assert (reward, terminated, truncated) == (0, False, True)
    assert info["is_success"] is False  # otherwise SB3's success rate would leave this episode out
    for _ in range(1100):  # without its id, it has no limit; MiniWorld's own are 250 and 1500
        assert env.unwrapped.step(TURN_LEFT)[1:4] == (0, False, False)


def test_walls_stop_the_robot(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    world = env.unwrapped
    corner = 0.0 if world.box.pos[0] > world.max_x / 2 else world.max_x  # away from the box
    world.agent.pos = np.array([abs(corner - 0.5), 0, world.max_z / 2])
    world.agent.dir = math.pi if corner == 0 else 0.0
    for _ in range(20):
        env.step(FORWARD)
    assert 0.4 <= abs(world.agent.pos[0] - corner) <= 0.5


# Movement


@pytest.mark.parametrize(("action", "sign"), [(0, 1), (1, -1), (2, 1), (3, -1)])
def test_the_amount_of_movement_is_random_at_every_step(make: Make, action: int, sign: int) -> None:
    heading = 0.3
    env = in_a_big_room(make, heading)
    ahead = np.array([math.cos(heading), 0, -math.sin(heading)])
    right = np.array([math.sin(heading), 0, math.cos(heading)])
    places, headings = [env.unwrapped.agent.pos], [heading]
    for _ in range(60):
        env.step(action)
        places.append(env.unwrapped.agent.pos)
        headings.append(env.unwrapped.agent.dir)
    moves, turns = np.diff(places, axis=0), sign * np.degrees(np.diff(headings))
    along, across = sign * (moves @ ahead), moves @ right
    # All of 60 uniform numbers are in the same half of their range once in 10^18 times.
    if action in (FORWARD, BACKWARD):
        assert not turns.any()
        assert len(np.unique(along)) == 60
        assert 0.12 <= along.min() < 0.145 < along.max() <= 0.17
        assert -0.05 <= across.min() < -0.01 < 0.01 < across.max() <= 0.05
    else:
        assert not moves.any()
        assert 10 <= turns.min() < 15 < turns.max() <= 20


# Seeds


def test_the_same_seed_and_actions_give_the_same_frames_rooms_and_movements(make: Make) -> None:
    actions = np.random.default_rng(1).integers(4, size=80)
    episodes = []
    for env, seed in zip((first := make(), make(), make(), first), (7, 7, 8, 7), strict=True):
        frames = [env.reset(seed=seed)[0]]
        for step, action in enumerate(actions):
            frame, _, terminated, truncated, _ = env.step(action)
            frames.append(frame)
            if step == 50 or terminated or truncated:
                frames.append(env.reset()[0])  # the second episode follows from the seed, too
        episodes.append(np.array(frames))
    np.testing.assert_array_equal(episodes[0], episodes[1])
    np.testing.assert_array_equal(episodes[0], episodes[3])
    assert not np.array_equal(episodes[0][0], episodes[2][0])


# What can be seen


def test_the_camera_sees_the_box_when_it_looks_there_and_only_then(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    world = env.unwrapped
    x, _, z = world.box.pos - world.agent.pos
    for offset, seen in ((0, True), (math.pi, False)):
        world.agent.dir = math.atan2(-z, x) + offset
        assert red(world.render_obs()).any() == seen
    world.agent.dir = math.atan2(-z, x)
    columns = np.nonzero(red(world.render_obs()))[1]
    assert abs(columns.mean() - 39.5) < 3


def test_light_colours_and_camera_do_not_change_between_episodes(make: Make) -> None:
    env = make(length=(9, 9), width=(5, 5))
    world = env.unwrapped
    frames = []
    for seed in range(60):
        env.reset(seed=seed)
        world.agent.pos, world.agent.dir = np.array([8.0, 0, 2.5]), 0.0  # in front of a wall
        if world.box.pos[0] < 7:  # behind the robot
            frames.append(world.render_obs())
    assert len(frames) > 20
    assert all(np.array_equal(frame, frames[0]) for frame in frames)


@pytest.mark.parametrize("view", ["agent", "top"])
def test_it_looks_exactly_as_miniworld_draws_it(make: Make, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from miniworld.miniworld import MiniWorldEnv

    env = make(view=view, render_mode="rgb_array")
    for seed in range(5):
        env.reset(seed=seed)
        ours = env.render()
        with monkeypatch.context() as patch:
            patch.setattr(Hallway, "_render_world", MiniWorldEnv._render_world)
            MiniWorldEnv._render_static(env.unwrapped)
            np.testing.assert_array_equal(ours, env.render())


def test_pictures_are_large_and_observations_do_not_depend_on_them(make: Make) -> None:
    plain, pictured = make(), make(view="top", render_mode="rgb_array")
    np.testing.assert_array_equal(plain.reset(seed=1)[0], pictured.reset(seed=1)[0])
    picture = pictured.render()
    assert (picture.shape, picture.dtype) == ((600, 800, 3), np.uint8)
    assert red(picture).any()  # from above, the box is always there
    np.testing.assert_array_equal(plain.step(FORWARD)[0], pictured.step(FORWARD)[0])


def test_a_window_shows_every_step(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame")
    shown = []
    monkeypatch.setattr(pygame.display, "flip", lambda: shown.append(pygame.surfarray.array3d(screen())))
    screen = pygame.display.get_surface
    env = make(view="top", render_mode="human")
    env.reset(seed=0)
    env.step(FORWARD)
    assert env.render() is None
    pictures = make(view="top", render_mode="rgb_array")
    pictures.reset(seed=0)
    np.testing.assert_array_equal(shown[0].transpose(1, 0, 2), pictures.render())
    assert len(shown) == 3
    assert not np.array_equal(shown[0], shown[1])
    env.close()
    assert not pygame.display.get_init()


# Several at once


def test_hallways_in_one_process_do_not_change_each_others_frames(make: Make) -> None:
    make("MiniWorld-Hallway-v0").reset(seed=0)
    first, second = make(), make()
    frame, other = first.reset(seed=1)[0], second.reset(seed=2)[0]
    assert not np.array_equal(frame, other)
    make("MiniWorld-Hallway-v0").reset(seed=0)
    np.testing.assert_array_equal(first.unwrapped.render_obs(), frame)
    np.testing.assert_array_equal(second.unwrapped.render_obs(), other)
    second.close()
    np.testing.assert_array_equal(first.unwrapped.render_obs(), frame)


def test_spawned_workers_see_what_this_process_sees() -> None:
    frames = []
    for vector in (
        DummyVecEnv([lambda: gym.make("bdpi:Hallway-v0")]),
        SubprocVecEnv([lambda: gym.make("bdpi:Hallway-v0")], start_method="spawn"),
    ):
        vector.seed(3)
        frames.append([vector.reset(), vector.step(np.array([0]))[0]])
        vector.close()
    np.testing.assert_array_equal(*frames)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_forked_process_is_told_to_be_spawned(tmp_path: Path) -> None:
    code = """
import os, gymnasium as gym
gym.make("bdpi:Hallway-v0")
if os.fork() == 0:
    try:
        gym.make("bdpi:Hallway-v0")
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""
    assert 'start_method="spawn"' in printed(code, tmp_path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_closing_gives_the_memory_back() -> None:
    def megabytes_after_cycles(cycles: int) -> float:
        for seed in range(cycles):
            env = gym.make("Hallway-v0", render_mode="rgb_array")
            env.reset(seed=seed)
            env.render()
            env.close()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    before = megabytes_after_cycles(15)
    # MiniWorld keeps about 34 MB each time.
    assert megabytes_after_cycles(15) - before < 15 * 34 / 4


# Mistakes


@pytest.mark.parametrize(
    "arguments",
    [
        *({"length": odd} for odd in (6, (6,), "69", (6, math.nan), (6, math.inf), (12, 6))),
        {"width": (2, 6)},
        {"view": "side"},
        {"render_mode": "ansi"},
    ],
)
def test_a_bad_argument_is_named_together_with_the_remedy(arguments: dict) -> None:
    (name,) = arguments
    with pytest.raises(ValueError, match=f"{name}=.{{5,}}"):
        Hallway(**arguments)


@pytest.mark.parametrize("action", [4, -1, 0.0, "forward", None, np.array([0, 1])])
def test_an_invalid_action_is_refused_and_moves_nothing(make: Make, action: object) -> None:
    world = make().unwrapped
    world.reset(seed=0)
    before = world.agent.pos, world.agent.dir
    with pytest.raises(InvalidAction, match="turn left"):
        world.step(action)
    assert (world.agent.pos, world.agent.dir) == before


def test_a_closed_hallway_may_be_closed_again_and_opens_with_the_next_reset(make: Make) -> None:
    world = make(render_mode="rgb_array").unwrapped
    for is_new in (True, False):
        for call in (lambda: world.step(FORWARD), world.render):
            with pytest.raises(ResetNeeded, match="reset"):
                call()
        if is_new:
            before, _ = world.reset(seed=4)
            world.close()
            world.close()
    np.testing.assert_array_equal(world.reset(seed=4)[0], before)
    assert world.render().any()
    silent = make().unwrapped
    silent.reset()
    with pytest.warns(UserWarning, match="render_mode"):
        assert silent.render() is None


# What may be missing. These faults are made in a new process: in this one, MiniWorld has already started.

TRY_TWICE = """
import bdpi, gymnasium as gym
for _ in range(2):
    try:
        gym.make("Hallway-v0")
    except gym.error.DependencyNotInstalled as error:
        print(error)
"""
REMEDIES = [
    'pip install "bdpi[hallway]"',
    "apt-get install --no-install-recommends libegl1 libgl1 libglu1-mesa libfreetype6",
    "PYGLET_HEADLESS=1",
]


def check_message(printed: str, cause: str) -> None:
    lines = printed.splitlines()
    assert len(lines) == 2  # also the second time
    for line in lines:
        assert all(remedy in line for remedy in REMEDIES)
    assert cause in lines[0]


def test_without_miniworld_the_package_works_and_the_error_says_what_to_install(tmp_path: Path) -> None:
    check_message(printed('import sys; sys.modules["miniworld"] = None\n' + TRY_TWICE, tmp_path), "miniworld")


OTHERS = [pytest.param(library, marks=pytest.mark.full) for library in ("GL", "GLU", "freetype")]


@pytest.mark.parametrize("library", ["EGL", *OTHERS])
def test_a_missing_system_library_is_named_together_with_its_package(library: str, tmp_path: Path) -> None:
    hide = f"""
import ctypes, ctypes.util
class Hiding(ctypes.LibraryLoader):
    def LoadLibrary(self, name):
        if name == {library!r} or name.startswith("lib{library}.so"):
            raise OSError(name + ": cannot open shared object file")
        return super().LoadLibrary(name)
ctypes.cdll = Hiding(ctypes.CDLL)
"""
    check_message(printed(hide + TRY_TWICE, tmp_path, PYGLET_HEADLESS="1"), f'Library "{library}" not found')


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have a display, or no headless mode")
def test_a_display_that_does_not_answer_gives_the_same_error(tmp_path: Path) -> None:
    check_message(printed(TRY_TWICE, tmp_path, DISPLAY=":987", PYGLET_HEADLESS="0"), "does not start here")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have a display, or no headless mode")
def test_without_a_display_it_works_by_itself_and_triton_can_be_loaded_after_it(tmp_path: Path) -> None:
    code = (
        "import os; os.environ.pop('LP_NUM_THREADS', None)\n"
        "import gymnasium as gym; print(gym.make('bdpi:Hallway-v0').reset()[0].shape)\n"
        "print(os.environ['PYGLET_HEADLESS'], os.environ['LP_NUM_THREADS'])\n"
    )
    assert printed(code + AFTER, tmp_path) == "(60, 80, 3)\n1 0\nfine\n"


# Learning


def test_bdpi_trains_on_it_end_to_end(make: Make) -> None:
    from bdpi import BDPI

    agent = BDPI("CnnPolicy", make(), n_critics=2, batch_size=16, buffer_size=300, train_freq=25, seed=0)
    before = {name: value.clone() for name, value in agent.agent_learner.state_dict().items()}
    agent.learn(300)
    assert agent.num_timesteps == 300
    assert agent.replay_buffer.size() == 300
    after = agent.agent_learner.state_dict()
    changed = {name for name, value in after.items() if not value.equal(before[name])}
    for network in ("actor", "critics"):
        assert any(network in name for name in changed)
    assert all(bool(value.isfinite().all()) for value in after.values())
    assert agent.predict(agent.get_env().reset())[0] in range(4)


#: what PyTorch may do by itself, in the middle of learning, where Triton is installed
AFTER = """
import importlib.util
if importlib.util.find_spec("triton") is not None:
    import triton._C.libtriton
print("fine")
"""


MINIWORLDS = "miniworld:MiniWorld-Hallway-v0"


MADE = {
    "agent": f"import bdpi; bdpi.BDPI('CnnPolicy', '{MINIWORLDS}', n_critics=1, buffer_size=256)",
    "run": f"from bdpi.runs.build import make_environment; make_environment('{MINIWORLDS}').reset()",
    "population": "import bdpi; bdpi.Population(bdpi.BDPI, "
    f"'{MINIWORLDS}', 1, policy='CnnPolicy', n_critics=1, buffer_size=256)",
    "peer": f"from bdpi.baselines.paper import make_peer; make_peer('dqn', '{MINIWORLDS}', buffer_size=10)",
}


@pytest.mark.parametrize("how", [pytest.param(how, marks=() if how == "agent" else pytest.mark.full) for how in MADE])
def test_miniworlds_own_is_made_without_a_display_and_triton_can_be_loaded_after_it(how, tmp_path):
    assert printed(f"{MADE[how]}\n{AFTER}", tmp_path).endswith("fine\n")  # MiniWorld prints, too


def test_environments_that_do_not_draw_by_opengl_do_not_load_triton(tmp_path):
    """It takes 70 MB, in every process of a study."""
    code = "import sys; from bdpi.runs.build import make_environment as make; make('LunarLander-v3'); make('Table-v0')"
    assert printed(f"{code}; print('triton' in sys.modules)", tmp_path) == "False\n"


def test_kernels_for_pictures_that_are_available_stay_so_whatever_draws_later(tmp_path):
    code = f"""
import os, torch, gymnasium
os.environ["CC"] = "cc"
from bdpi.learner import pictures
print(pictures.why_not(torch.device("cuda")) == "")
gymnasium.make("{MINIWORLDS}").reset()
{AFTER}
"""
    expected = importlib.util.find_spec("triton") is not None
    said = printed(code, tmp_path, PYGLET_HEADLESS="1").split()
    assert (said[0], said[-1]) == (str(expected), "fine")


def test_where_triton_would_crash_kernels_for_pictures_are_not_available(tmp_path):
    """Whoever makes the environment before anything of this package is imported gets PyTorch, and is told so."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    code = f"""
import os, gymnasium, torch
os.environ["CC"] = "cc"
gymnasium.make("{MINIWORLDS}").reset()
from bdpi.learner import pictures
print("libLLVM" in open("/proc/self/maps").read())
print(pictures.why_not(torch.device("cuda")))
"""
    *_, uses_llvm, why = printed(code, tmp_path, PYGLET_HEADLESS="1").splitlines()
    if uses_llvm == "False":
        pytest.skip("here, OpenGL draws without an LLVM")
    assert why.startswith("Triton would crash, since Mesa has drawn")


def printed(code: str, folder: Path, **variables: str) -> str:
    """What a new Python without a display prints."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "PYGLET_HEADLESS")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**environment, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout
