"""Features extractors of one's own, with layers that train in another way than they predict."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from bdpi import ABCDQN, BDPI
from small import QUICK, Walk, fingerprint

BOX = spaces.Box(-1, 1, (3,), np.float32)
PICTURE = spaces.Box(0, 255, (36, 36, 1), np.uint8)


class Normalized(BaseFeaturesExtractor):
    def __init__(self, observation_space: spaces.Box, features_dim: int = 8) -> None:
        super().__init__(observation_space, features_dim)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3, features_dim), nn.BatchNorm1d(features_dim), nn.ReLU())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


class Dropping(BaseFeaturesExtractor):
    def __init__(self, observation_space: spaces.Box, features_dim: int = 8, share: float = 0.5) -> None:
        super().__init__(observation_space, features_dim)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3, features_dim), nn.Dropout(share))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


class Convolving(BaseFeaturesExtractor):
    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 16)
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 12, 12), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(16)
        )
        self.layers(torch.zeros(2, *observation_space.shape))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


def make(extractor: Any, agent_class: Any = BDPI, env: Any = None, policy: str = "MlpPolicy", **arguments: Any) -> Any:
    kwargs = {"features_extractor_class": extractor, **arguments.pop("policy_kwargs", {})}
    return agent_class(policy, env or Walk(), seed=2, policy_kwargs=kwargs, **{**QUICK, "train_freq": 4, **arguments})


@pytest.mark.parametrize("agent_class", [BDPI, ABCDQN])
def test_batch_norm_learns_its_statistics(agent_class):
    """Of each network's own, and they are those of what the layer in front of it gives."""
    model = make(Normalized, agent_class, observation_size=None).learn(120)
    critics = model.agent_learner.state_dict()["critics.parameters"].numpy()
    means, variances = critics[..., :8], critics[..., 8:16]  # in front of the parameters
    assert (means != 0).all()
    assert (variances != 1).all()
    assert len(np.unique(means[..., 0])) == means[..., 0].size
    if agent_class is BDPI:
        linear, norm = model.policy.actor[0].layers[1:3]
        seen = torch.as_tensor(model.replay_buffer.transitions().observations)
        given = linear(seen)
        torch.testing.assert_close(norm.running_mean, given.mean(dim=0), atol=0.15, rtol=0)
        torch.testing.assert_close(norm.running_var, given.var(dim=0), atol=0.15, rtol=0.5)


def test_predictions_use_the_statistics_whatever_else_is_in_the_batch():
    model = make(Normalized).learn(60)
    seen = np.stack([BOX.sample() for _ in range(20)])
    together = model.policy.probabilities(seen)
    np.testing.assert_allclose(
        np.concatenate([model.policy.probabilities(row[None]) for row in seen]), together, rtol=1e-5
    )
    before = copy.deepcopy(model.policy.state_dict())
    model.predict(seen)
    for name, tensor in model.policy.state_dict().items():
        torch.testing.assert_close(tensor, before[name])


def test_dropout_changes_what_is_learned_and_no_prediction():
    with_dropout, without = (
        make(Dropping, policy_kwargs={"features_extractor_kwargs": {"share": share}}).learn(60) for share in (0.5, 0.0)
    )
    assert fingerprint(with_dropout) != fingerprint(without)
    seen = np.stack([BOX.sample() for _ in range(20)])
    np.testing.assert_array_equal(*(with_dropout.policy.probabilities(seen) for _ in range(2)))
    np.testing.assert_array_equal(*(with_dropout.agent_learner.q_values(seen) for _ in range(2)))


@pytest.mark.parametrize("extractor", [Normalized, Dropping])
def test_saved_and_copied_agents_go_on_with_the_same_bits(extractor, tmp_path):
    model = make(extractor).learn(40)
    model.save(tmp_path / "model", include_buffer=True)
    custom = {"policy_kwargs": model.policy_kwargs, "policy_class": model.policy_class}
    loaded = BDPI.load(tmp_path / "model", custom_objects=custom)
    torch.manual_seed(99)  # of others: no matter
    for each in (model, copy.deepcopy(model), loaded):
        for _ in range(3):
            each.learn_once()
    twin = BDPI.load(tmp_path / "model", custom_objects=custom)
    for _ in range(3):
        twin.learn_once()
    assert fingerprint(model) == fingerprint(loaded) == fingerprint(twin)


def test_pictures(tmp_path):
    model = make(Convolving, env=Walk(PICTURE), policy="CnnPolicy", train_freq=10, fit_steps=1).learn(40)
    norm = model.policy.actor[0].layers[1]
    assert (norm.running_mean != 0).all()
    model.policy.save(tmp_path / "policy.pt")
    loaded = model.policy_class.load(tmp_path / "policy.pt")
    seen = np.stack([PICTURE.sample().transpose(2, 0, 1) for _ in range(5)])
    np.testing.assert_allclose(loaded.probabilities(seen), model.policy.probabilities(seen), rtol=1e-5)


@pytest.mark.full
def test_it_learns():
    """With batch normalisation and dropout, too."""

    class Both(Normalized):
        def __init__(self, observation_space: spaces.Box) -> None:
            super().__init__(observation_space)
            self.layers.append(nn.Dropout(0.2))

    model = make(Both, learning_rate=0.01, trust_region=1.0, train_freq=2, fit_steps=10).learn(60)
    assert model.policy.probabilities(np.stack([BOX.sample() for _ in range(20)]))[:, 1].mean() > 0.8
