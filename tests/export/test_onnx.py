"""Exported ONNX files do in ONNX Runtime what the agents do."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from decisive import N, assert_alike, decisive_agent, tabular_agent
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)
from torch import nn

from bdpi import BDPI, ActorMimic, TabularBDPI
from bdpi.agents.files import read_agent, write_agent
from bdpi.envs.descriptions import describe, space_of
from bdpi.export import check_onnx, export_onnx
from small import QUICK, Walk, quick_agent

PICTURE = spaces.Box(0, 255, (36, 40, 3), np.uint8)
MIXED = spaces.Dict(
    {
        "picture": PICTURE,
        "speed": spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
        "gear": spaces.Discrete(4, start=-1),
        "action": spaces.MultiDiscrete([2, 3]),
        "lights": spaces.MultiBinary(3),
    }
)


def sampled(space: spaces.Space, n: int = N) -> Any:
    space.seed(3)
    if isinstance(space, spaces.Dict):
        return {key: sampled(part, n) for key, part in space.spaces.items()}
    return np.array([space.sample() for _ in range(n)])


def run(path: Path, observations: Any) -> tuple[Any, Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    fed = observations if isinstance(observations, dict) else {"observation": observations}
    probabilities, actions = session.run(["probabilities", "action"], fed)
    assert actions.dtype == np.int64
    return probabilities, actions


def exported(agent: BDPI, folder: Path) -> Path:
    export_onnx(agent, folder / "policy.onnx")
    return folder / "policy.onnx"


class Small(BaseFeaturesExtractor):
    """Convolutions of the user's own."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space, features_dim=4 * 9 * 10)
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.net(observations)


@pytest.mark.parametrize(
    ("space", "policy", "kwargs"),
    [
        *(
            (space, "MlpPolicy", {})
            for space in (
                spaces.Box(-1, 1, (5,), np.float32),
                spaces.Box(-1, 1, (2, 3), np.float64),
                spaces.Box(0, 9, (4,), np.int64),
                spaces.Discrete(40),
                spaces.Discrete(40, start=-7),
                spaces.MultiDiscrete([3, 5, 2]),
                spaces.MultiDiscrete([3, 5], start=[10, -2]),
                spaces.MultiBinary(6),
                spaces.MultiBinary([2, 4]),
                PICTURE,
            )
        ),
        (PICTURE, "CnnPolicy", {}),
        (PICTURE, "CnnPolicy", {"features_extractor_class": Small}),
        (spaces.Box(0, 255, (1, 36, 36), np.uint8), "CnnPolicy", {}),
        (MIXED, "MultiInputPolicy", {}),  # an input for each key
    ],
    ids=str,
)
def test_the_file_takes_raw_observations_and_acts_as_the_agent(
    space: spaces.Space, policy: str, kwargs: dict, tmp_path: Path
) -> None:
    agent = decisive_agent(Walk(space, start=5), policy, policy_kwargs=kwargs)
    path, observations = exported(agent, tmp_path), sampled(space)
    fed = observations
    if isinstance(space, spaces.Dict):
        fed = {("observation.action" if key == "action" else key): values for key, values in observations.items()}
    assert_alike(agent, observations, *run(path, fed))
    assert check_onnx(agent, path, n=100) < 1e-5
    if space.shape == (5,):  # batches may have any length
        whole, (one, action) = run(path, fed)[0], run(path, fed[:1])
        assert action.shape == (1,)
        assert np.allclose(one, whole[:1], atol=1e-6)


def test_the_file_of_another_agent_is_told_apart_and_the_same_agent_gives_the_same_file(tmp_path: Path) -> None:
    agent = ActorMimic("MlpPolicy", Walk(), **QUICK)
    path = exported(agent, tmp_path)
    assert check_onnx(agent, path) < 1e-5
    first = path.read_bytes()
    path.write_text("something else")
    assert exported(agent, tmp_path).read_bytes() == first
    assert [file.name for file in tmp_path.iterdir()] == ["policy.onnx"]
    with pytest.raises(ValueError, match="does not do"):
        check_onnx(decisive_agent(Walk()), path)
    with torch.no_grad():
        next(agent.policy.actor.parameters())[0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        exported(agent, tmp_path)


# -- wrappers


def seen_in(env: Any, agent: BDPI) -> tuple[Any, Any]:
    """N observations in a wrapped environment: before normalisation, and as the agent sees them."""
    raw, seen = [], [env.reset()]
    normalizer = agent.get_vec_normalize_env()
    for _ in range(N):
        raw.append(seen[-1] if normalizer is None else normalizer.get_original_obs())
        seen.append(env.step(np.array([0]))[0])
    return np.concatenate(raw), np.concatenate(seen[:-1])


def test_vecnormalize_is_part_of_the_file(tmp_path: Path) -> None:
    space = spaces.Box(np.float32([-1, 1000, 0]), np.float32([1, 1001, 1e-3]))
    env = VecMonitor(VecNormalize(VecMonitor(DummyVecEnv([lambda: Walk(space)])), clip_obs=1.0))
    agent = decisive_agent(env)
    env.venv.training = False
    export_onnx(agent, tmp_path / "policy.onnx")
    raw, seen = seen_in(env, agent)
    assert np.abs(raw).max() > 999
    assert np.abs(seen).max() == 1  # some are clipped
    assert_alike(agent, seen, *run(tmp_path / "policy.onnx", raw))
    assert check_onnx(agent, tmp_path / "policy.onnx") < 1e-5


def test_vecnormalize_inside_a_frame_stack_is_refused(tmp_path: Path) -> None:
    agent = quick_agent()
    agent.env = VecFrameStack(VecNormalize(DummyVecEnv([Walk])), 2)
    with pytest.raises(ValueError, match="VecFrameStack"):
        export_onnx(agent, tmp_path / "policy.onnx")


BOX = spaces.Box(5, 9, (3,), np.float32)


GRAY = spaces.Box(0, 255, (36, 36, 1), np.uint8)
TWO = spaces.Dict({"eye": PICTURE, "arm": BOX})
UNSCALED = {"normalize_images": False, "features_extractor_kwargs": {"normalized_image": True}}


def vectors(space: spaces.Space) -> DummyVecEnv:
    return DummyVecEnv([lambda: Walk(space)])


@pytest.mark.parametrize(
    ("env", "policy", "kwargs"),
    [
        (lambda: Walk(BOX), "MlpPolicy", {}),
        (lambda: Walk(PICTURE), "CnnPolicy", {}),
        (lambda: Walk(TWO), "MultiInputPolicy", {}),
        (lambda: VecNormalize(vectors(BOX), clip_obs=1.5), "MlpPolicy", {}),
        (lambda: VecNormalize(vectors(BOX), norm_obs=False), "MlpPolicy", {}),
        (lambda: VecNormalize(VecTransposeImage(vectors(TWO)), norm_obs_keys=["arm"]), "MultiInputPolicy", {}),
        (lambda: VecNormalize(VecTransposeImage(vectors(PICTURE))), "CnnPolicy", UNSCALED),
        (lambda: VecNormalize(VecFrameStack(vectors(BOX), 3)), "MlpPolicy", {}),
        (lambda: VecFrameStack(vectors(BOX), 4), "MlpPolicy", {}),
        (lambda: VecFrameStack(vectors(GRAY), 4), "CnnPolicy", {}),
        (lambda: VecExtractDictObs(vectors(TWO), "arm"), "MlpPolicy", {}),
        (lambda: VecExtractDictObs(VecTransposeImage(vectors(TWO)), "eye"), "CnnPolicy", {}),
    ],
)
def test_a_saved_agent_is_exported_as_in_its_environment(env: Any, policy: str, kwargs: Any, tmp_path: Path) -> None:
    """To the very same file, also when it was saved again without an environment; and it acts as the agent there."""
    made = env()
    agent = decisive_agent(made, policy, policy_kwargs=kwargs)
    export_onnx(agent, tmp_path / "live.onnx")
    agent.save(tmp_path / "agent")
    loaded = BDPI.load(tmp_path / "agent")
    assert loaded.get_env() is None
    loaded.save(tmp_path / "again")
    for name in ("agent", "again"):
        saved = BDPI.load(tmp_path / name)
        export_onnx(saved, tmp_path / "saved.onnx")
        assert (tmp_path / "saved.onnx").read_bytes() == (tmp_path / "live.onnx").read_bytes()
        assert check_onnx(saved, tmp_path / "saved.onnx", n=100) < 1e-5
    if not isinstance(made, Walk) and "Cnn" not in policy and not isinstance(made.observation_space, spaces.Dict):
        if isinstance(made, VecNormalize):
            made.training = False
        raw, seen = seen_in(made, agent)
        assert_alike(agent, seen, *run(tmp_path / "live.onnx", raw))


def without_inputs(path: Path) -> None:
    """A file as it was before agents were saved with how their observations come."""
    document, arrays = read_agent(path, "BDPI")
    document["inputs"] = None
    write_agent(path, document, arrays)


def test_an_agent_whose_normalisation_is_not_known_is_refused(tmp_path: Path) -> None:
    agent = BDPI("MlpPolicy", VecNormalize(DummyVecEnv([Walk])), n_critics=2, batch_size=16)
    agent.save(tmp_path / "agent.zip")
    without_inputs(tmp_path / "agent.zip")
    with pytest.raises(ValueError, match="VecNormalize"):
        export_onnx(BDPI.load(tmp_path / "agent"), tmp_path / "policy.onnx")
    export_onnx(BDPI.load(tmp_path / "agent", env=Walk()), tmp_path / "policy.onnx")


def test_without_anything_known_observations_are_as_the_policy_sees_them(tmp_path: Path) -> None:
    agent = decisive_agent(Walk(PICTURE), "CnnPolicy")
    agent.save(tmp_path / "agent.zip")
    without_inputs(tmp_path / "agent.zip")
    export_onnx(BDPI.load(tmp_path / "agent"), tmp_path / "policy.onnx")
    observations = sampled(PICTURE).transpose(0, 3, 1, 2)
    assert_alike(agent, observations, *run(tmp_path / "policy.onnx", observations))


@pytest.mark.parametrize(
    "damage",
    [
        lambda part: part.update(space=describe(spaces.Box(0, 255, (36, 41, 3), np.uint8))),
        lambda part: part.update(space=describe(spaces.Discrete(3))),
        lambda part: part.update(channels_last=False),
        lambda part: part.update(clip=3.0),
        lambda part: part.pop("clip"),
    ],
)
def test_how_observations_come_has_to_fit(damage: Any, tmp_path: Path) -> None:
    quick_agent(Walk(PICTURE), "CnnPolicy").save(tmp_path / "agent.zip")
    document, arrays = read_agent(tmp_path / "agent.zip", "BDPI")
    damage(document["inputs"]["parts"]["observation"])
    write_agent(tmp_path / "agent.zip", document, arrays)
    with pytest.raises(ValueError, match=r"does not fit|damaged"):
        BDPI.load(tmp_path / "agent.zip")


# -- networks


class Mixture(BaseFeaturesExtractor):
    """Layers and functions that the policies of this package have no use for."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space, features_dim=24)
        size = int(np.prod(space.shape))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Flatten(), nn.Linear(size, 8), layer)
            for layer in (nn.LayerNorm(8), nn.GELU(), nn.Sequential(nn.SiLU(), nn.Dropout(), nn.Linear(8, 8, False)))
        )
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        first, second, third = (layer(observations) for layer in self.layers)
        return torch.cat([torch.relu(first) - 0.5, second * self.weight / 2, third.flatten(1).tanh()], dim=1)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ELU, nn.LeakyReLU, nn.SELU, nn.Sigmoid])
def test_other_networks_are_exported_too(activation: type[nn.Module], tmp_path: Path) -> None:
    kwargs = {"features_extractor_class": Mixture, "net_arch": [16, 8], "activation_fn": activation}
    agent = decisive_agent(Walk(), policy_kwargs=kwargs, learner="torch")
    export_onnx(agent, tmp_path / "policy.onnx")
    observations = sampled(agent.observation_space)
    assert_alike(agent, observations, *run(tmp_path / "policy.onnx", observations))


class Sine(BaseFeaturesExtractor):
    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space, features_dim=3)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return observations.sin()


class Branching(Sine):
    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return observations if observations.sum() > 0 else -observations


class Rare(Sine):
    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space)
        self.layer = nn.Mish()

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layer(observations)
        return features


@pytest.mark.parametrize(
    ("extractor", "message"), [(Sine, "calls sin"), (Branching, "depends on the values"), (Rare, "class Mish.*Linear")]
)
def test_what_cannot_be_exported_is_named(extractor: type[Sine], message: str, tmp_path: Path) -> None:
    agent = quick_agent(policy_kwargs={"features_extractor_class": extractor}, learner="torch")
    with pytest.raises(ValueError, match=message):
        export_onnx(agent, tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


# -- agents


@pytest.mark.parametrize("space", [spaces.Discrete(40), spaces.Discrete(9, start=-2)], ids=str)
def test_a_table_is_looked_up(space: spaces.Discrete, tmp_path: Path) -> None:
    agent = tabular_agent(Walk(space, start=3))
    agent.save(tmp_path / "agent")
    agent, observations = TabularBDPI.load(tmp_path / "agent"), sampled(space)  # without its environment
    path = exported(agent, tmp_path)
    probabilities, actions = run(path, observations)
    assert_alike(agent, observations, probabilities, actions)
    assert np.array_equal(probabilities, agent.policy.probabilities(observations))
    assert check_onnx(agent, path, n=100) == 0
    unknown = np.array([space.start - 1, space.start + space.n, 2**60, -(2**60)])
    probabilities, actions = run(path, unknown)
    assert (np.unique(probabilities).tolist(), np.unique(actions).tolist()) == ([0.5], [3])
    with pytest.raises(ValueError, match="does not do"):
        check_onnx(TabularBDPI("MlpPolicy", Walk(space, start=3), **QUICK), path)
    agent.agent_learner.learner.state_dict()["actor"][0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        exported(agent, tmp_path)


# -- files


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    env = VecNormalize(DummyVecEnv([lambda: Walk(start=3)]))
    agent = quick_agent(env)
    export_onnx(agent, tmp_path / "new" / "policy.onnx")
    model = onnx.load(tmp_path / "new" / "policy.onnx")
    found = {entry.key: entry.value for entry in model.metadata_props}
    assert found["class"] == "BDPI"
    assert found["bdpi"] == model.producer_version
    assert space_of(json.loads(found["observation_space"])) == env.observation_space
    assert json.loads(found["action_space"]) == describe(agent.action_space)
    assert json.loads(found["wrappers"]) == ["DummyVecEnv", "VecNormalize"]


def test_without_onnx_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r'pip install "bdpi\[export\]"'):
        export_onnx(quick_agent(), tmp_path / "policy.onnx")
