"""``n_stack``: an agent that stacks frames itself is one whose environment stacks them."""

import copy
import ctypes
import itertools
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.evaluation as sb3
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, TransformObservation
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from bdpi import ABCDQN, BDPI, ActorMimic, BootstrappedDQN, TabularBDPI, evaluate_policy
from bdpi.agents.journal import Journal, Transition
from bdpi.agents.robots import Robot
from bdpi.envs import ControlLoop
from bdpi.export import export_c, export_onnx
from bdpi.export.onnx_file import check_onnx
from bdpi.runs.config import OfflineConfig
from bdpi.runs.offline import prepare_offline
from small import QUICK, Walk, epochs_of, fingerprint

N = 3
#: A ring that is soon full; networks see numbers as they are, because scales are the same for all frames of a stack.
SMALL = {**QUICK, "buffer_size": 30, "observation_size": None, "policy_kwargs": {"net_arch": [8]}}


def blind() -> gym.Env:
    """CartPole without velocities."""
    space = spaces.Box(-5, 5, (2,), np.float32)
    return TransformObservation(gym.make("CartPole-v1"), lambda seen: seen[::2].astype(np.float32), space)


def numbered(start: int = 0) -> gym.Env:
    return Walk(spaces.Discrete(5, start=start))


def pictured() -> gym.Env:
    return Walk(spaces.Box(0, 255, (36, 36, 1), np.uint8))


def stacking(env: gym.Env) -> gym.Env:
    """The first frame of an episode is repeated there, too."""
    space, stacked = env.observation_space, FrameStackObservation(env, N)
    if isinstance(space, spaces.Discrete):
        whole = spaces.MultiDiscrete([space.n] * N, start=[space.start] * N)
        return TransformObservation(stacked, np.array, whole)
    axis = -1 if len(space.shape) == 3 else 0
    low, high = (np.concatenate([bound] * N, axis) for bound in (space.low, space.high))
    whole = spaces.Box(low, high, dtype=space.dtype)
    return TransformObservation(stacked, lambda seen: np.concatenate(seen, axis), whole)


def pair(make: Any = blind, n_envs: int = 1, agent_class: Any = BDPI, policy: str = "MlpPolicy", **arguments: Any):
    """An agent that stacks frames, and one whose environment does."""
    arguments = {**SMALL, "seed": 1, **arguments}
    first = agent_class(policy, DummyVecEnv([make] * n_envs), n_stack=N, **arguments)
    second = agent_class(policy, DummyVecEnv([lambda: stacking(make())] * n_envs), **arguments)
    return first, second


def loop(env: gym.Env) -> ControlLoop:
    return ControlLoop(env.observation_space, env.action_space)


def loops(**arguments: Any) -> tuple[BDPI, BDPI]:
    arguments = {**SMALL, "seed": 1, **arguments}
    stacked = BDPI("MlpPolicy", loop(stacking(blind())), **arguments)
    return BDPI("MlpPolicy", loop(blind()), n_stack=N, **arguments), stacked


@pytest.mark.parametrize(
    ("n_envs", "arguments"),
    [
        (1, {}),
        (3, {"learner": "torch"}),
        (3, {"n_steps": 3}),
        (1, {"optimize_memory_usage": True}),
        (1, {"agent_class": ABCDQN, "learner": "torch"}),
        (2, {"agent_class": BootstrappedDQN}),
        (1, {"agent_class": ActorMimic}),
        (2, {"make": lambda: numbered(2)}),
        (1, {"make": lambda: numbered(0), "learner": "torch"}),
    ],
)
def test_frames_of_the_agent_are_frames_of_the_environment(n_envs, arguments):
    agents = pair(n_envs=n_envs, **arguments)
    for agent in agents:
        agent.learn(150)
        assert agent.replay_buffer.full
    assert fingerprint(agents[0]) == fingerprint(agents[1])
    for held in ("observations", "next_observations"):  # round the ring: what it has overwritten is in stacks, too
        first, second = (getattr(agent.replay_buffer.transitions(), held) for agent in agents)
        np.testing.assert_array_equal(first[:], np.reshape(second[np.arange(len(second))], first.shape))


def test_pictures_are_stacked_by_their_channels():
    usual = {"policy": "CnnPolicy", "policy_kwargs": {}, "train_freq": 10, "fit_steps": 1, "n_critics": 2}
    agents = pair(pictured, **usual)
    assert agents[0].policy.observation_space.shape == (N, 36, 36)
    for agent in agents:
        agent.learn(40)
    assert fingerprint(agents[0]) == fingerprint(agents[1])
    assert agents[0].replay_buffer.observations.shape[2:] == (1, 36, 36)
    seen = np.random.default_rng(0).integers(0, 256, (36, 36, 1), dtype=np.uint8)  # channels last
    assert (
        agents[0].predict(seen, deterministic=True)[0]
        == agents[1].predict(np.concatenate([seen] * N, -1), deterministic=True)[0]
    )


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("agent_class", [BDPI, ABCDQN])
def test_whoever_evaluates_hands_the_frames_back(agent_class, deterministic):
    agents = pair(agent_class=agent_class)
    for function in (sb3.evaluate_policy, evaluate_policy):
        returns = []
        for agent, wrap in zip(agents, (lambda env: env, stacking), strict=True):
            agent.set_random_seed(4)
            env = DummyVecEnv([lambda wrap=wrap: wrap(blind())] * 2)
            env.seed(5)
            returns.append(function(agent, env, 6, deterministic=deterministic, return_episode_rewards=True))
        assert returns[0] == returns[1]
    state = agents[0].predict(np.zeros((2, 2), np.float32))[1]
    with pytest.raises(ValueError, match="give the state that predict returned"):
        agents[0].predict(np.zeros(2, np.float32), state)


def test_frames_that_are_not_handed_back_are_warned_of_once():
    agent, seen = BDPI("MlpPolicy", blind(), n_stack=N, **SMALL), blind().reset(seed=0)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # as evaluate_policy does, time and again
            _, state = agent.predict(seen)
            agent.predict(seen, state, [False])
        agent.predict(seen)
    with pytest.warns(RuntimeWarning, match="Hand back the state"):
        agent.predict(seen)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.predict(seen)


def test_vecnormalize_treats_all_frames_alike():
    def normalized(env: Any, n: int) -> VecNormalize:
        found = VecNormalize(DummyVecEnv([env]), training=False)
        found.obs_rms = RunningMeanStd(shape=(2 * n,))
        found.obs_rms.mean[:], found.obs_rms.var[:] = [0.3, -0.1] * n, [4, 0.1] * n
        return found

    settings = {**SMALL, "seed": 1}
    agents = (
        BDPI("MlpPolicy", normalized(blind, 1), n_stack=N, **settings),
        BDPI("MlpPolicy", normalized(lambda: stacking(blind()), N), **settings),
    )
    for agent in agents:
        agent.learn(80)
    assert fingerprint(agents[0]) == fingerprint(agents[1])


def test_an_offset_changes_nothing_and_each_frame_has_the_same_scales():
    """With zeros before the first frame it would: they are no observation."""

    def moved() -> gym.Env:
        space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        return TransformObservation(blind(), lambda seen: np.round(seen * 64) + 2**14, space)

    def still() -> gym.Env:
        return TransformObservation(
            blind(), lambda seen: np.round(seen * 64), spaces.Box(-np.inf, np.inf, (2,), np.float32)
        )

    agents = [
        BDPI("MlpPolicy", make(), n_stack=N, **{**SMALL, "observation_size": 2, "seed": 0}).learn(60)
        for make in (still, moved)
    ]
    for agent in agents:
        factors, shifts = (np.reshape(each, (N, 2)) for each in (agent.policy.scales.factor, agent.policy.scales.shift))
        assert (factors == factors[0]).all()
        assert (shifts == shifts[0]).all()
    assert fingerprint(agents[0]) == fingerprint(agents[1])


def steps(seed: int, n: int) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Observations of one robot, alone and as its environment stacks them, and whether an episode begins. What episodes
    end in is not among them: nothing comes after it, and it is not learned from."""
    rng, first = np.random.default_rng(seed), True
    frame = rng.normal(size=2).astype(np.float32)
    stack = np.tile(frame, N)
    for _ in range(n):
        if first:
            frame = rng.normal(size=2).astype(np.float32)
            stack = np.tile(frame, N)
        yield frame, stack, first
        first = rng.random() < 0.15
        frame = rng.normal(size=2).astype(np.float32)
        stack = np.concatenate([stack[2:], frame])


def drive(agents: Any, n: int, seed: int = 0) -> None:
    """Several robots take turns, each in its own episode; they do the same with all agents."""
    robots = [[Robot(agent, number) for agent in agents] for number in range(3)]
    seen = [list(steps(seed + number, n + 1)) for number in range(3)]
    rng, at = np.random.default_rng(seed), [0, 0, 0]
    for _ in range(n):
        number = int(rng.integers(3))
        (frame, stack, _), (next_frame, next_stack, ended) = seen[number][at[number] : at[number] + 2]
        at[number] += 1
        chosen = []
        ways = [(frame, next_frame), (stack, next_stack)]
        for each, (before, after) in zip(robots[number], ways, strict=False):
            probabilities = each.probabilities(each.check("observation", before), None)
            chosen.append((probabilities.tobytes(), each.pick(probabilities)))
            step = Transition(before, chosen[0][1], float(number), after, ended, False)
            each.observe(each.check_step(step))
        assert len(set(chosen)) == 1
        for agent in agents:
            agent.learn_once()


def test_robots_take_turns_and_each_has_its_frames():
    agents = loops()
    drive(agents, 120)  # round the ring
    assert fingerprint(agents[0]) == fingerprint(agents[1])


@pytest.mark.parametrize("done", [20, 47])
def test_a_saved_agent_goes_on_with_the_frames_of_its_episode(done, tmp_path):
    saved, _ = loops()

    def act(agents: Any, data: list[Any]) -> None:
        for (frame, _, _), (following, _, ended) in itertools.pairwise(data):
            actions = [agent.act(frame) for agent in agents]
            assert len(set(actions)) == 1
            for agent in agents:
                agent.observe(frame, actions[0], 1.0, following, ended, False)
                agent.learn_once()

    data = list(steps(2, done + 41))
    act([saved], data[: done + 1])
    saved.save(tmp_path / "agent", include_buffer=True)
    loaded = BDPI.load(tmp_path / "agent", env=loop(blind()))
    assert loaded.n_stack == N
    act([saved, loaded], data[done:])
    assert fingerprint(saved) == fingerprint(loaded)


def test_a_copy_has_frames_of_its_own():
    first = pair()[0].learn(40)
    second = copy.deepcopy(first)
    for agent in (first, second):
        agent.learn(40, reset_num_timesteps=False)
    assert fingerprint(first) == fingerprint(second)


def test_frames_are_followed_while_the_agent_learns_in_the_background():
    agent, _ = loops()
    agent.start_learning()
    rows = list(steps(0, 60))
    try:
        for (frame, stack, _), (following, _, ended) in itertools.pairwise(rows):
            np.testing.assert_array_equal(agent.seen(frame[None], [0])[0], stack)
            agent.observe(frame, agent.act(frame), 0.0, following, ended, False)
    finally:
        agent.stop_learning(finish=True)
    held = agent.replay_buffer.transitions().observations[:]
    np.testing.assert_array_equal(np.roll(held, -agent.replay_buffer.pos, axis=0), [row[1] for row in rows[29:59]])


def test_a_journal_has_frames_and_brings_stacks_back(tmp_path):
    file = tmp_path / "robots.sqlite"
    before, after = (BDPI("MlpPolicy", loop(blind()), n_stack=N, seed=1, **{**SMALL, "buffer_size": 70}) for _ in "ab")
    before._open_journal(file)
    drive([before], 60)
    before.close_journal()
    with Journal(file, read_only=True) as journal:
        assert journal.observation_space.shape == (2,)
        last = {step.environment: step.next_observation for step in journal.steps()}
    after._open_journal(file)
    for held in ("observations", "next_observations"):
        first, second = (getattr(agent.replay_buffer.transitions(), held)[:] for agent in (before, after))
        np.testing.assert_array_equal(first, second)
    for number, frame in last.items():
        np.testing.assert_array_equal(*(agent.seen(frame[None], [number]) for agent in (before, after)))


def test_demonstrations_keep_their_frames_however_many_environments_there_are():
    shown = [
        Transition(np.full(2, t, np.float32), 0, 0.0, np.full(2, t + 1, np.float32), t == 9, False, environment=robot)
        for t in range(10)
        for robot in range(2)
    ]
    agent, _ = pair(n_envs=2)
    agent.add_demonstrations(shown)
    seen = agent.replay_buffer.transitions().observations[30:].reshape(-1, N, 2)[:, :, 0]
    wanted = sorted([[max(0, t - 2), max(0, t - 1), t] for t in range(10)] * 2)
    assert sorted(seen.tolist()) == wanted


def episodes(seed: int) -> Iterator[tuple[Transition, Transition]]:
    """What a robot does, with the frames that it sees, and with stacks of them."""
    rng = np.random.default_rng(seed)
    while True:
        frame = rng.normal(size=2).astype(np.float32)
        stack, ends = np.tile(frame, N), [False, False]
        while not any(ends):
            following = rng.normal(size=2).astype(np.float32)
            after, ends = np.concatenate([stack[2:], following]), (rng.random(2) < 0.07).tolist()
            step = int(rng.integers(2)), float(rng.normal())
            yield (
                Transition(frame, *step, following, *ends, environment=seed),
                Transition(stack, *step, after, *ends, environment=seed),
            )
            frame, stack = following, after


def written(file: Path, way: int) -> Path:
    """What three robots did in turns: frames (0), or stacks of them (1)."""
    env = (blind, lambda: stacking(blind()))[way]()
    with Journal(file, env.observation_space, env.action_space) as journal:
        for steps in itertools.islice(zip(*map(episodes, range(3)), strict=True), 60):
            journal.append(*(step[way] for step in steps))
    return file


def offline(journal: Path, epochs: int, **changes: Any) -> OfflineConfig:
    settings = {name: value for name, value in SMALL.items() if name != "policy_kwargs"}
    settings = {"policy_kwargs": SMALL["policy_kwargs"], "hyperparameters": {**settings, "buffer_size": 500, **changes}}
    return OfflineConfig(journal=str(journal), epochs=epochs, **settings)


@pytest.mark.parametrize("learner", ["native", "torch"])
def test_learning_from_a_journal_of_frames_is_learning_from_one_of_stacks(learner, tmp_path):
    agents = []
    for way, n_stack in enumerate((N, 1)):
        config = offline(written(tmp_path / f"{way}", way), 9, learner=learner, n_stack=n_stack)
        assert prepare_offline(config, tmp_path / f"run{way}").run().status == "finished"
        agents.append(BDPI.load(tmp_path / f"run{way}" / "agent.zip"))
    assert epochs_of(agents[0]) == 9
    assert fingerprint(agents[0]) == fingerprint(agents[1])


def test_a_robot_goes_on_with_the_frames_of_the_journal_that_was_learned_from(tmp_path):
    """It was not there when the agent learned, and its episodes had not ended."""
    file = written(tmp_path / "robots.sqlite", 0)
    prepare_offline(offline(file, 1, n_stack=N), tmp_path / "run").run()
    agent = BDPI.load(tmp_path / "run" / "agent.zip", env=loop(blind()), journal=file)
    for robot in range(3):
        last, stacked = next(itertools.islice(episodes(robot), 59, None))
        assert (last.terminated, last.truncated) == (False, False)
        seen = agent.seen(last.next_observation[None], [robot])[0]
        np.testing.assert_array_equal(seen, stacked.next_observation)


def test_a_journal_of_frames_shows_what_one_of_stacks_does(tmp_path):
    agents = loops(buffer_size=100)
    agents[0].add_demonstrations(written(tmp_path / "frames.sqlite", 0))
    with Journal(written(tmp_path / "stacks.sqlite", 1)) as journal:  # each robot's one after the other, as kept there
        agents[1].add_demonstrations(sorted(journal.steps(), key=lambda step: step.environment))
    drive(agents, 40)
    assert epochs_of(agents[0]) == 40
    assert fingerprint(agents[0]) == fingerprint(agents[1])


def test_a_run_is_tested_with_the_frames_that_it_learned_from(tmp_path):
    """In the environment of ``bdpi train ENV --offline``, whose episodes it plays afterwards."""

    def framed() -> gym.Env:
        return Walk(blind().observation_space)

    agents = []
    for way, n_stack in enumerate((N, 1)):
        gym.register(f"Framed-v{way}", (framed, lambda: stacking(framed()))[way])
        changes = {"learning_rate": 0.02, "trust_region": 0.5, "n_stack": n_stack}  # a policy that looks at frames
        config = offline(written(tmp_path / f"{way}", way), 20, **changes).changed(environment=f"Framed-v{way}")
        agents.append(prepare_offline(config, tmp_path / f"run{way}").run().summary)
    assert agents[0].test_episodes == 10
    assert 0 < agents[0].mean_return == agents[1].mean_return < 7


def test_a_file_whose_links_lead_nowhere_is_refused(tmp_path):
    agent, _ = pair()
    agent.learn(47)
    held = agent.replay_buffer.held()
    for name, value in (("back", 30), ("back", -2), ("apart_at", 99), ("apart", np.nan)):
        changed = {key: array.copy() for key, array in held.items()}
        changed[name].reshape(-1)[:] = value
        with pytest.raises(ValueError, match="damaged"):
            agent.replay_buffer.take_over(changed, "the file")
    agent.replay_buffer.take_over(held, "the file")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_an_exported_policy_takes_stacks(tmp_path):
    agent = BDPI("MlpPolicy", VecNormalize(DummyVecEnv([blind])), n_stack=N, **{**SMALL, "seed": 0}).learn(60)
    agent.save(tmp_path / "agent")
    agent = BDPI.load(tmp_path / "agent")  # without its environment
    export_onnx(agent, tmp_path / "policy.onnx")
    assert check_onnx(agent, tmp_path / "policy.onnx") < 1e-5
    export_c(agent, tmp_path / "policy.h")
    (tmp_path / "policy.c").write_text(
        '#include "policy.h"\nvoid see(float *o, const float *f, int b) { policy_observe(o, f, b); }\n'
    )
    flags = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "policy.c", "-o", "policy.so", "-lm"], check=True, cwd=tmp_path)
    observe = ctypes.CDLL(str(tmp_path / "policy.so")).see
    ring = np.zeros(2 * N, np.float32)
    for frame, stack, begins in steps(3, 40):
        observe(*(ctypes.c_void_p(each.ctypes.data) for each in (ring, np.ascontiguousarray(frame))), int(begins))
        np.testing.assert_array_equal(ring, stack)


def test_exported_pictures_are_stacks_of_what_the_camera_gives(tmp_path):
    agent = BDPI("CnnPolicy", pictured(), n_stack=2, seed=0, **{**QUICK, "n_critics": 2})
    export_onnx(agent, tmp_path / "policy.onnx")
    assert check_onnx(agent, tmp_path / "policy.onnx", n=20) < 1e-5


@pytest.mark.parametrize(
    ("agent_class", "env", "n_stack", "message"),
    [
        (BDPI, Walk(spaces.Dict({"a": spaces.Box(-1, 1, (2,))})), 2, "FlattenObservation"),
        (BDPI, "CartPole-v1", 0, "n_stack must be a whole number"),
        (BDPI, "Pendulum-v1", 2, "n_stack=2 is for Discrete actions"),
        (TabularBDPI, "FrozenLake-v1", 2, "use BDPI"),
    ],
)
def test_what_cannot_be_stacked_is_refused(agent_class, env, n_stack, message):
    policy = "MultiInputPolicy" if not isinstance(env, str) else "MlpPolicy"
    with pytest.raises(ValueError, match=message):
        agent_class(policy, env, n_stack=n_stack)


@pytest.mark.parametrize(
    ("seen", "actions"),
    [
        (spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)}), spaces.Discrete(2)),
        (spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3])),
    ],
)
def test_what_the_refusal_names_is_learned_from(seen, actions):
    """A Dict, and actions of several parts, stacked by Gymnasium's wrapper."""
    env: Any = Walk(seen, pays=lambda env, action: 1.0)
    env.action_space = actions
    policy = "MultiInputPolicy" if isinstance(seen, spaces.Dict) else "MlpPolicy"
    with pytest.raises(ValueError, match="n_stack=2 is ") as refused:
        BDPI(policy, env, n_stack=2)
    name, n = re.search(r"gymnasium\.wrappers\.(\w+)\(env, (\d)\)", str(refused.value)).groups()
    env = getattr(gym.wrappers, name)(env, int(n))
    agent = BDPI(policy, env, seed=0, **QUICK).learn(30)
    assert epochs_of(agent) > 0
    assert actions.contains(agent.predict(env.reset()[0])[0])
