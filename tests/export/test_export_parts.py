"""Exports of agents that vote, and of actions of several parts, decided one after the other."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from decisive import decisive_agent
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from bdpi import ABCDQN, BDPI, BootstrappedDQN
from bdpi.export import check_onnx, export_c, export_onnx
from bdpi.export.inputs import leaves
from bdpi.export.onnx_file import by_leaf
from small import QUICK, Walk

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
