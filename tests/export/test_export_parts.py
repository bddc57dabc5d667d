"""Exports of agents that vote, and of actions of several parts, decided one after the other, inside or by a wrapper."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
from decisive import decisive_agent
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from bdpi import ABCDQN, BDPI, BootstrappedDQN
from bdpi.agents.files import read_agent, write_agent
from bdpi.envs.descriptions import describe
from bdpi.envs.wrappers import BinaryActionSearch, OffPolicyNoise
from bdpi.export import check_onnx, export_c, export_onnx
from bdpi.export.inputs import leaves
from bdpi.export.onnx_file import by_leaf
from small import QUICK, Walk, quick_agent

N = 400
SEEN = spaces.Box(-1, 1, (3,), np.float32)
ARM = spaces.Box(np.float32([-2, 0]), np.float32([2, 1]))
ACTIONS = {
    "MultiDiscrete": spaces.MultiDiscrete([3, 4, 2], start=[1, -2, 0]),
    "one number": spaces.MultiDiscrete([5]),
    "MultiBinary": spaces.MultiBinary([2, 2]),
    "Box": ARM,
    "whole numbers": spaces.Box(-7, 20, (2,), np.int64),
    "Tuple": spaces.Tuple([spaces.Discrete(3, start=2), ARM]),
    "Dict": spaces.Dict({"gear": spaces.MultiDiscrete([2, 3]), "arm": ARM, "horn": spaces.MultiBinary(2)}),
}
DICT = spaces.Dict({"picture": spaces.Box(0, 255, (3, 36, 36), np.uint8), "speed": SEEN, "gear": spaces.Discrete(3)})


class Acting(Walk):
    """A walk that any action goes on."""

    def __init__(self, seen: spaces.Space, actions: spaces.Space) -> None:
        super().__init__(seen)
        self.action_space = actions

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return self.observation_space.sample(), float(self.np_random.random()), self.np_random.random() < 0.1, False, {}


def drawn(space: spaces.Space) -> Any:
    space.seed(3)
    rows = [space.sample() for _ in range(N)]
    return (
        {key: np.array([row[key] for row in rows]) for key in space}
        if isinstance(space, spaces.Dict)
        else (np.array(rows))
    )


def in_onnx(path: Path, observations: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs() if each.name != "probabilities"]
    return session.run(names, observations if isinstance(observations, dict) else {"observation": observations})


def in_c(header: Path, observations: Any, n_numbers: int) -> Any:
    source, library = header.with_suffix(".c"), header.with_suffix(".so")
    call = "policy_act(o, out)" if n_numbers else "*out = (float)policy_act(o)"
    source.write_text(f'#include "{header.name}"\nvoid act(const float *o, float *out) {{ {call}; }}\n')
    strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-Wno-unused-function"]
    subprocess.run(["gcc", *strict, "-O1", "-shared", "-fPIC", str(source), "-o", str(library), "-lm"], check=True)
    act, out = ctypes.CDLL(str(library)).act, np.zeros((N, n_numbers or 1), np.float32)
    for row, place in zip(np.ascontiguousarray(observations.reshape(N, -1), np.float32), out, strict=True):
        act(row.ctypes.data_as(ctypes.c_void_p), place.ctypes.data_as(ctypes.c_void_p))
    return out


def assert_same(space: spaces.Space, found: list[Any], predicted: Any) -> None:
    """All but one in a hundred, where rounding decides; and not always the same action."""
    wanted = by_leaf(space, predicted)
    alike = []
    for (_, leaf), here, there in zip(leaves(space), found, wanted, strict=True):
        assert here.shape == there.shape
        assert all(leaf.contains(each.astype(leaf.dtype)) or leaf.shape == () for each in here)
        alike.append(np.isclose(here, there, rtol=1e-5, atol=1e-5).reshape(N, -1).all(axis=1))
    assert np.all(alike, axis=0).mean() >= 0.99
    assert any(len(np.unique(each.reshape(N, -1), axis=0)) > 1 for each in wanted)


@pytest.mark.parametrize("what", ACTIONS)
def test_actions_of_several_parts_are_decided_in_the_file_as_by_the_agent(what: str, tmp_path: Path) -> None:
    space = ACTIONS[what]
    agent = decisive_agent(Acting(SEEN, space), policy_kwargs={"action_bits": 4})
    agent.save(tmp_path / "agent")
    agent = BDPI.load(tmp_path / "agent")  # without its environment
    observations = drawn(SEEN)
    predicted, _ = agent.predict(observations, deterministic=True)
    export_onnx(agent, tmp_path / "policy.onnx")
    check_onnx(agent, tmp_path / "policy.onnx", n=200)
    assert_same(space, in_onnx(tmp_path / "policy.onnx", observations), predicted)
    if shutil.which("gcc"):
        export_c(agent, tmp_path / "policy.h")
        numbers = agent.decisions.sums().action
        found = np.split(in_c(tmp_path / "policy.h", observations, len(numbers)), *_ends(space), axis=1)
        shaped = [part.reshape(N, *leaf.shape) for part, (_, leaf) in zip(found, leaves(space), strict=True)]
        assert_same(space, shaped, predicted)


def _ends(space: spaces.Space) -> list[Any]:
    return [np.cumsum([int(np.prod(leaf.shape or (1,))) for _, leaf in leaves(space)])[:-1]]


@pytest.mark.parametrize("seen", [spaces.Discrete(9, start=2), spaces.MultiDiscrete([3, 4]), DICT], ids=str)
def test_any_observation_may_come_before_several_parts(seen: spaces.Space, tmp_path: Path) -> None:
    policy = "MultiInputPolicy" if isinstance(seen, spaces.Dict) else "MlpPolicy"
    more = {"learning_starts": 1000} if isinstance(seen, spaces.Dict) else {}  # pictures take long to learn from
    agent = decisive_agent(Acting(seen, ACTIONS["Tuple"]), policy, **more)
    export_onnx(agent, tmp_path / "policy.onnx")
    observations = drawn(seen)
    predicted, _ = agent.predict(observations, deterministic=True)
    assert_same(ACTIONS["Tuple"], in_onnx(tmp_path / "policy.onnx", observations), predicted)


def test_vecnormalize_comes_before_several_parts(tmp_path: Path) -> None:
    env = VecNormalize(DummyVecEnv([lambda: Acting(SEEN, ARM)]), clip_obs=1.0)
    agent = decisive_agent(env)
    observations = drawn(SEEN)
    predicted, _ = agent.predict(env.normalize_obs(observations), deterministic=True)
    export_onnx(agent, tmp_path / "policy.onnx")
    assert_same(ARM, in_onnx(tmp_path / "policy.onnx", observations), predicted)
    if shutil.which("gcc"):
        export_c(agent, tmp_path / "policy.h")
        assert_same(ARM, [in_c(tmp_path / "policy.h", observations, 2)], predicted)


@pytest.mark.parametrize("actions", [spaces.Discrete(4, start=-3), ARM], ids=str)
@pytest.mark.parametrize(("cls", "more"), [(ABCDQN, {}), (BootstrappedDQN, {"prior_scale": 2.0})])
def test_critics_vote_in_the_file_as_in_the_agent(cls: Any, more: Any, actions: spaces.Space, tmp_path: Path) -> None:
    agent = cls("MlpPolicy", Acting(SEEN, actions), seed=1, **{**QUICK, "n_critics": 5, "batch_size": 32}, **more)
    agent.learn(120)
    agent.save(tmp_path / "agent")
    agent, observations = cls.load(tmp_path / "agent"), 3 * drawn(SEEN)
    export_onnx(agent, tmp_path / "policy.onnx")
    check_onnx(agent, tmp_path / "policy.onnx", n=200)
    predicted, _ = agent.predict(observations, deterministic=True)
    assert_same(actions, in_onnx(tmp_path / "policy.onnx", observations), predicted)
    if more:
        with pytest.raises(ValueError, match=r"prior functions.*ONNX"):
            export_c(agent, tmp_path / "policy.h")
    elif shutil.which("gcc"):
        export_c(agent, tmp_path / "policy.h")
        found = in_c(tmp_path / "policy.h", observations, int(np.prod(actions.shape)) if actions.shape else 0)
        assert_same(actions, [found.reshape(predicted.shape)], predicted)


# -- behind Binary Action Search


class Recorded(gym.Wrapper):
    """Keeps what is seen, and what is done there."""

    def reset(self, **given: Any) -> Any:
        self.last, info = self.env.reset(**given)
        self.seen, self.done = [], []
        return self.last, info

    def step(self, action: Any) -> Any:
        self.seen.append(self.last)
        self.done.append(action)
        self.last, *rest = self.env.step(action)
        return self.last, *rest


def in_the_wrapper(agent: Any, env: gym.Env) -> tuple[Any, Any]:
    """N observations of the environment inside, and the actions that the agent decides on there bit by bit."""
    seen, _ = env.reset(seed=5)
    recorded = env
    while not isinstance(recorded, Recorded):
        recorded = recorded.env
    observations, actions = [], []
    while len(actions) < N:
        seen, _, terminated, truncated, _ = env.step(agent.predict(seen, deterministic=True)[0])
        if terminated or truncated or len(recorded.done) == 50:
            observations += recorded.seen
            actions += recorded.done
            seen, _ = env.reset()
    return np.array(observations[:N]), np.array(actions[:N])


ENVIRONMENTS = {
    "Pendulum": lambda: gym.make("Pendulum-v1"),
    "two numbers": lambda: Acting(SEEN, ARM),
    "doubles of two axes": lambda: Acting(spaces.Box(-9, 9, (2, 2), np.float64), spaces.Box(-7, 20, (2,), np.int64)),
}


@pytest.mark.parametrize("critics_vote", [False, True])
@pytest.mark.parametrize("what", ENVIRONMENTS)
def test_behind_binary_action_search_whole_actions_come_from_what_the_environment_shows(
    what: str, critics_vote: bool, tmp_path: Path
) -> None:
    env = BinaryActionSearch(Recorded(ENVIRONMENTS[what]()), bits=4)
    if critics_vote:
        agent = ABCDQN("MlpPolicy", env, seed=1, **{**QUICK, "n_critics": 5}).learn(300)
    else:
        agent = decisive_agent(env).learn(300)
    observations, actions = in_the_wrapper(agent, env)
    agent.save(tmp_path / "agent")
    type(agent).load(tmp_path / "agent").save(tmp_path / "again")
    files = {"live": agent, **{name: type(agent).load(tmp_path / name) for name in ("agent", "again")}}
    for name, each in files.items():
        export_onnx(each, tmp_path / f"{name}.onnx")
        assert (tmp_path / f"{name}.onnx").read_bytes() == (tmp_path / "live.onnx").read_bytes()
        check_onnx(each, tmp_path / f"{name}.onnx")
        export_c(each, tmp_path / f"{name}.h", "policy")
        assert (tmp_path / f"{name}.h").read_text() == (tmp_path / "live.h").read_text()
    assert_same(env.env.action_space, in_onnx(tmp_path / "live.onnx", observations), actions)
    if shutil.which("gcc"):
        n_numbers = actions[0].size
        assert_same(env.env.action_space, [in_c(tmp_path / "live.h", observations, n_numbers)], actions)


def test_the_comparison_is_of_whole_actions(tmp_path: Path) -> None:
    agent = decisive_agent(BinaryActionSearch(Acting(SEEN, ARM)))
    export_onnx(agent, tmp_path / "policy.onnx")
    agent.set_env(BinaryActionSearch(Acting(SEEN, spaces.Box(-3, 3, (2,), np.float32))))  # of the same bits
    with pytest.raises(ValueError, match="1000 of 1000 actions are others"):
        check_onnx(agent, tmp_path / "policy.onnx")


def searched(space: spaces.Space = SEEN) -> gym.Env:
    return BinaryActionSearch(Acting(space, ARM))


@pytest.mark.parametrize(
    ("env", "more", "shape"),
    [
        (lambda: OffPolicyNoise(searched(), 0.1), {}, [2]),
        (lambda: DummyVecEnv([searched, searched]), {}, [2]),
        (lambda: VecNormalize(DummyVecEnv([searched]), norm_obs=False), {}, [2]),
        (lambda: VecNormalize(DummyVecEnv([searched])), {}, []),
        (lambda: TransformObservation(searched(), lambda seen: -seen, None), {}, []),
        (lambda: searched(spaces.Dict({"arm": SEEN, "gear": spaces.Discrete(3)})), {}, []),
        (searched, {"n_stack": 2}, []),
    ],
)
def test_single_decisions_are_exported_where_a_wrapper_outside_changes_what_the_agent_sees(
    env: Any, more: Any, shape: list[int], tmp_path: Path
) -> None:
    made = env()
    agent = quick_agent(made, **more).learn(40)
    agent.save(tmp_path / "agent")
    for each in (agent, BDPI.load(tmp_path / "agent")):
        export_onnx(each, tmp_path / "policy.onnx")
        check_onnx(each, tmp_path / "policy.onnx", n=100)
        export_c(each, tmp_path / "policy.h")
        session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
        (observation,), action = session.get_inputs(), session.get_outputs()[-1]
        n_seen = SEEN.shape[0] if shape else made.observation_space.shape[0] * more.get("n_stack", 1)
        assert (observation.shape, action.shape) == (["n", n_seen], ["n", *shape])


@pytest.mark.parametrize(
    "damage",
    [
        {"observation_space": describe(spaces.Box(-1, 1, (4,), np.float32))},
        {"observation_space": describe(spaces.Discrete(3))},
        {"action_space": describe(spaces.Box(-1, 1, (3,), np.float32))},
        {"action_space": describe(spaces.Box(-1, 1, (10**6,), np.float32))},
        {"action_space": describe(spaces.Box(-np.inf, 1, (2,), np.float32))},
        {"action_space": describe(spaces.Discrete(2))},
        {"bits": 25},
        {"bits": "6"},
        {"bits": None},
    ],
    ids=str,
)
def test_a_search_in_a_file_has_to_fit(damage: Any, tmp_path: Path) -> None:
    quick_agent(searched()).save(tmp_path / "agent.zip")
    document, arrays = read_agent(tmp_path / "agent.zip", "BDPI")
    document["inputs"]["search"].update(damage)
    write_agent(tmp_path / "agent.zip", document, arrays)
    with pytest.raises(ValueError, match=r"does not fit|bits must|too large|bounds"):
        BDPI.load(tmp_path / "agent.zip")
