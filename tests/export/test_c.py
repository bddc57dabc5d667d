"""Exported C headers compile without a warning and do what the agents do."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decisive import N, assert_alike, decisive_agent, tabular_agent
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from torch import nn

from bdpi import BDPI, TabularBDPI
from bdpi.export import export_c
from small import Walk, quick_agent

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
STRICT = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]


def compiled(header: Path, name: str = "policy") -> Any:
    """A library of the header's two functions."""
    source, library = header.with_suffix(".c"), header.with_suffix(".so")
    source.write_text(
        f'#include "{header.name}"\n#include "{header.name}"\n'
        f"int act(const float *observation) {{ return {name}_act(observation); }}\n"
        f"void probabilities(const float *observation, float *out) {{ {name}_probabilities(observation, out); }}\n"
        f"int sizes[2] = {{{name.upper()}_INPUTS, {name.upper()}_ACTIONS}};\n"
    )
    subprocess.run(["gcc", *STRICT, "-O1", "-shared", "-fPIC", str(source), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


def run(library: Any, observations: Any) -> tuple[Any, Any]:
    rows = np.ascontiguousarray(observations.reshape(N, -1), dtype=np.float32)
    n_inputs, n_actions = (ctypes.c_int * 2).in_dll(library, "sizes")
    assert rows.shape[1] == n_inputs
    actions, probabilities = np.zeros(N, dtype=np.int64), np.zeros((N, n_actions), dtype=np.float32)
    for number, row in enumerate(rows):
        actions[number] = library.act(row.ctypes.data_as(ctypes.c_void_p))
        out = probabilities[number]
        library.probabilities(row.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p))
    return probabilities, actions


def sampled(space: spaces.Space) -> Any:
    space.seed(3)
    return np.array([space.sample() for _ in range(N)])


@pytest.mark.parametrize(
    ("space", "kwargs"),
    [
        (spaces.Box(-1, 1, (5,), np.float32), {}),
        (spaces.Box(-1, 1, (2, 3), np.float64), {"net_arch": [16, 8], "activation_fn": nn.ReLU}),
        (spaces.Box(-1, 1, (3,), np.float32), {"net_arch": []}),
        (spaces.Discrete(40), {}),
        (spaces.Discrete(40, start=-7), {"net_arch": [8, 8]}),
        (spaces.Discrete(9, start=2), {"net_arch": []}),
    ],
    ids=str,
)
def test_the_header_takes_raw_observations_and_acts_as_the_agent(
    space: spaces.Space, kwargs: dict[str, Any], tmp_path: Path
) -> None:
    agent = decisive_agent(Walk(space, start=-5), policy_kwargs=kwargs)
    export_c(agent, tmp_path / "policy.h")
    observations = sampled(space)
    assert_alike(agent, observations, *run(compiled(tmp_path / "policy.h"), observations))


@pytest.mark.parametrize("space", [spaces.Discrete(40), spaces.Discrete(9, start=-2)], ids=str)
def test_a_table_is_looked_up(space: spaces.Discrete, tmp_path: Path) -> None:
    agent = tabular_agent(Walk(space, start=3))
    agent.save(tmp_path / "agent")
    export_c(TabularBDPI.load(tmp_path / "agent"), tmp_path / "policy.h")
    observations = sampled(space)
    library = compiled(tmp_path / "policy.h")
    probabilities, actions = run(library, observations)
    assert_alike(agent, observations, probabilities, actions)
    assert np.array_equal(probabilities, agent.policy.probabilities(observations))
    for unknown in (space.start - 1, space.start + space.n, 1e30, np.nan):
        probabilities, actions = run(library, np.full(N, unknown))
        assert np.unique(probabilities).tolist() == [0.5]
        assert np.unique(actions).tolist() == [3]


@pytest.mark.parametrize("stacked", [1, 3])
def test_vecnormalize_is_part_of_the_header(stacked: int, tmp_path: Path) -> None:
    # A mean so much larger than the deviation that, rounded to a float, it would be off by a tenth of a deviation.
    space = spaces.Box(np.float32([-1, 16_000, 0]), np.float32([1, 16_000.01, 1e-3]))
    env = VecNormalize(VecFrameStack(DummyVecEnv([lambda: Walk(space)]), stacked), clip_obs=1.0)
    if stacked == 1:
        env = VecNormalize(DummyVecEnv([lambda: Walk(space)]), clip_obs=1.0)
    agent = decisive_agent(env)
    raw = np.concatenate([sampled(space)] * stacked, axis=1)
    # as after many more steps: at first, VecNormalize's own start weighs more than such small deviations
    env.obs_rms.mean, env.obs_rms.var = raw.mean(axis=0, dtype=np.float64), raw.var(axis=0, dtype=np.float64)
    agent.save(tmp_path / "agent")
    for number, each in enumerate((agent, BDPI.load(tmp_path / "agent"))):
        export_c(each, tmp_path / f"policy{number}.h", "policy")
        assert_alike(agent, env.normalize_obs(raw), *run(compiled(tmp_path / f"policy{number}.h"), raw))


@pytest.mark.parametrize("state", [-1.0, 40.0, 1e30, -1e30, np.nan])
def test_states_outside_their_space_read_nothing_outside_the_weights(state: float, tmp_path: Path) -> None:
    agent = decisive_agent(Walk(spaces.Discrete(40)))
    export_c(agent, tmp_path / "policy.h")
    probabilities, _ = run(compiled(tmp_path / "policy.h"), np.full(N, state))
    with torch.no_grad():
        expected = agent.policy.actor(torch.zeros(1, 40)).softmax(dim=1).numpy()
    assert np.allclose(probabilities, expected, atol=1e-6)


def test_every_weight_is_printed_exactly(tmp_path: Path) -> None:
    agent = decisive_agent(Walk())
    scales = agent.policy.scales
    with torch.no_grad():
        next(agent.policy.actor.parameters())[0] = torch.tensor([1.0, 1e-40, 3e38])
    export_c(agent, tmp_path / "policy.h")
    text = re.sub(r"/\*.*?\*/", "", (tmp_path / "policy.h").read_text(), flags=re.DOTALL)
    arrays = re.findall(r"static const float \w+\[\d+\] = \{(.*?)\};", text, re.DOTALL)
    found = [np.float32(number.removesuffix("f")) for array in arrays for number in re.findall(r"[^\s,]+", array)]
    wanted = [*scales.shift, *scales.factor]
    wanted += [value for parameter in agent.policy.actor.parameters() for value in parameter.detach().numpy().ravel()]
    assert np.array_equal(found, np.array(wanted, dtype=np.float32))


@pytest.mark.parametrize(
    ("file", "name"), [("docking-2.h", "docking_2"), ("2nd.h", "policy_2nd"), ("_.h", "policy"), ("int.h", "int")]
)
def test_names_begin_with_that_of_the_file(file: str, name: str, tmp_path: Path) -> None:
    export_c(quick_agent(), tmp_path / file)
    assert compiled(tmp_path / file, name).act
    text = (tmp_path / file).read_text()
    assert re.findall(r"#include.*", text) == ["#include <math.h>"]
    assert "alloc" not in text
    assert max(map(len, text.splitlines())) <= 120


def test_two_policies_fit_into_one_program_and_a_name_may_be_given(tmp_path: Path) -> None:
    for name in ("far", "near"):
        export_c(quick_agent(), tmp_path / "policies" / f"{name}.h", name=f"{name}_robot")
    source = (
        '#include "policies/far.h"\n#include "policies/near.h"\nint act(const float *o) { return far_robot_act(o); }\n'
    )
    (tmp_path / "main.c").write_text(source)
    subprocess.run(["gcc", *STRICT, "-c", "main.c", "-o", "main.o"], check=True, cwd=tmp_path)
    with pytest.raises(ValueError, match="got 'my robot'"):
        export_c(quick_agent(), tmp_path / "policy.h", name="my robot")


def agent_on(space: spaces.Space, policy: str = "MlpPolicy", **kwargs: Any) -> BDPI:
    return quick_agent(Walk(space), policy, policy_kwargs=kwargs)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (lambda: agent_on(spaces.Dict({"a": spaces.Discrete(2)}), "MultiInputPolicy"), "Dict observations.*ONNX"),
        (lambda: agent_on(spaces.MultiDiscrete([2, 3])), "MultiDiscrete.*ONNX"),
        (lambda: agent_on(spaces.Box(0, 255, (36, 36, 3), np.uint8), "CnnPolicy"), "pictures.*ONNX"),
        (lambda: agent_on(spaces.Discrete(3, start=1 << 25)), "33554432 to 33554434.*ONNX"),
        (lambda: agent_on(spaces.Box(-1, 1, (3,), np.float32), activation_fn=nn.ELU), "class ELU.*ONNX"),
    ],
)
def test_what_cannot_be_exported_is_named(agent: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        export_c(agent(), tmp_path / "policy.h")
    assert list(tmp_path.iterdir()) == []
