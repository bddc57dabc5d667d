"""The networks behind ``"MlpPolicy"``, ``"CnnPolicy"`` and ``"MultiInputPolicy"``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
    create_mlp,
    get_actor_critic_arch,
)
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from bdpi.agents.actions import mask_probabilities
from bdpi.agents.draws import draw
from bdpi.agents.spaces import NativeInputs, preprocess, scaled_parts, shift_to_zero, to_arrays, zero_based
from bdpi.learner.interface import BoolArray, FloatArray
from bdpi.learner.native import MAX_LAYERS
from bdpi.learner.scales import Scales


def _check_net_arch(net_arch: Any) -> None:
    parts = net_arch.values() if isinstance(net_arch, dict) else [net_arch]
    complete = not isinstance(net_arch, dict) or net_arch.keys() == {"pi", "qf"}
    if not complete or not all(isinstance(part, list | tuple) and all(map(_is_size, part)) for part in parts):
        raise ValueError(
            "net_arch must be a list of numbers of hidden units, such as [64, 64], or one for the actor and one for "
            f"the critics, dict(pi=[64], qf=[256]); got {net_arch!r}"
        )


def _check_class(name: str, value: Any, wanted: type, example: str) -> None:
    if not (isinstance(value, type) and issubclass(value, wanted)):
        raise ValueError(f"{name} must be a class derived from {wanted.__name__}, such as {example}; got {value!r}")


def _is_size(units: Any) -> bool:
    return isinstance(units, int | np.integer) and not isinstance(units, bool) and bool(units > 0)


class Network(nn.Sequential):
    """A features extractor and a multi-layer perceptron, from preprocessed inputs to one number per action."""

    def __init__(
        self, extractor: BaseFeaturesExtractor, hidden: list[int], n_actions: int, activation: type[nn.Module]
    ) -> None:
        super().__init__(extractor, *create_mlp(extractor.features_dim, n_actions, hidden, activation))
        self.features_dim = extractor.features_dim


class BDPIPolicy(BasePolicy):
    """The actor, and the recipe for critics.

    While an agent learns, ``actor`` shares its memory with the agent's learner. The critics live in the learner only.
    The scales that networks see observations and returns by are part of the policy, and of its ``state_dict``.
    An agent without an actor sets ``actor`` to None and ``behaviour`` to what it follows instead.

    :param observation_space: Observation space
    :param action_space: Action space, Discrete
    :param lr_schedule: not used: the learner owns the optimisers
    :param net_arch: hidden units of each layer, ``[32]`` by default; ``dict(pi=[…], qf=[…])`` gives the actor another
        size than the critics. Larger networks fit more complex tasks and cost proportionally more time.
    :param activation_fn: of the hidden units; the native learner knows ``nn.Tanh`` (default) and ``nn.ReLU``
    :param features_extractor_class: what comes before the perceptron; each network has its own
    :param features_extractor_kwargs: arguments of the features extractor
    :param normalize_images: divide images by 255. Without that, fresh networks tell pictures apart much better, and
        want a smaller learning rate (1e-5): docs/results.md has what this makes of Hallway.
    """

    default_net_arch: tuple[int, ...] = (32,)
    #: Adam steps per fit; one where pictures, alone or among other observations, go through convolutions
    default_fit_steps = 20
    observation_shift: Tensor
    observation_factor: Tensor
    return_scale: Tensor

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Discrete,
        lr_schedule: Schedule | None = None,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class,
            features_extractor_kwargs,
            normalize_images=normalize_images,
        )
        _check_class("activation_fn", activation_fn, nn.Module, "torch.nn.Tanh")
        _check_class("features_extractor_class", features_extractor_class, BaseFeaturesExtractor, "NatureCNN of SB3")
        self.input_space = zero_based(observation_space)
        self.activation_fn = activation_fn
        self.net_arch = list(self.default_net_arch) if net_arch is None else net_arch
        _check_net_arch(self.net_arch)
        self.actor_arch, self.critic_arch = (list(map(int, part)) for part in get_actor_critic_arch(self.net_arch))
        self.n_actions = int(action_space.n)
        #: how many numbers of which parts of an observation are scaled, see :func:`bdpi.agents.spaces.scaled_parts`
        self.scaled_parts = scaled_parts(self.input_space)
        self.register_buffer("observation_shift", torch.zeros(sum(self.scaled_parts.values())))
        self.register_buffer("observation_factor", torch.ones(sum(self.scaled_parts.values())))
        #: shift, factor, and whether they were estimated
        self.register_buffer("return_scale", torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
        #: how networks see observations (all numbers of all parts that are scaled, side by side) and returns
        self.scales = Scales.none(len(self.observation_shift))
        self.register_load_state_dict_post_hook(type(self)._read_scales)  # type: ignore[no-untyped-call]
        self.actor: Network | None = self._make_network(self.actor_arch)
        self._features_dim = int(self.actor.features_dim)
        #: from zero-based observations and masks to probabilities, where there is no actor
        self.behaviour: Callable[[Any, BoolArray | None], FloatArray] | None = None
        #: which actions the next prediction may choose, (n, n_actions); None: all
        self.action_masks: BoolArray | None = None
        #: only ``predict`` draws from it, so that evaluating an agent does not change its training
        self.generator = np.random.default_rng()

    def _make_network(self, hidden: list[int]) -> Network:
        extractor = self.features_extractor_class(self.input_space, **self.features_extractor_kwargs)
        return Network(extractor, hidden, self.n_actions, self.activation_fn)

    @property
    def last_layer_size(self) -> int:
        """How many parameters the last layer of a critic has: its weights, then one bias per action."""
        inputs = self.critic_arch[-1] if self.critic_arch else self._features_dim
        return (inputs + 1) * self.n_actions

    def make_critic(self) -> Network:
        """A new, randomly initialised Q-network."""
        return self._make_network(self.critic_arch)

    def set_training_mode(self, mode: bool) -> None:
        """PyTorch walks through all modules to set it, and agents ask for it at each step."""
        if self.training != mode:
            super().set_training_mode(mode)

    def preprocess(self, observations: Any) -> Any:
        """Zero-based observation tensors as network inputs."""
        inputs = preprocess(observations, self.input_space, self.normalize_images)
        for key, (shift, factor) in self.scales_of_parts().items():
            part = inputs if key is None else inputs[key]
            scaled = (part - shift.view(part.shape[1:])) * factor.view(part.shape[1:])
            if key is None:
                return scaled
            inputs[key] = scaled
        return inputs

    def scales_of_parts(self) -> dict[str | None, tuple[Tensor, Tensor]]:
        """Shifts and factors of the parts of an observation that are scaled, flat."""
        sizes = list(self.scaled_parts.values())
        shifts, factors = torch.split(self.observation_shift, sizes), torch.split(self.observation_factor, sizes)
        return dict(zip(self.scaled_parts, zip(shifts, factors, strict=True), strict=True))

    def set_scales(self, scales: Scales) -> None:
        """Have networks see the world by other scales."""
        self.scales = scales
        self.observation_shift.copy_(torch.as_tensor(scales.shift))
        self.observation_factor.copy_(torch.as_tensor(scales.factor))
        new = [scales.return_shift, scales.return_factor, scales.knows_returns]
        self.return_scale.copy_(torch.tensor(new, dtype=torch.float64))

    def _read_scales(self, *_: Any) -> None:
        """After ``load_state_dict``."""
        shift, factor = (each.cpu().numpy().copy() for each in (self.observation_shift, self.observation_factor))
        return_shift, return_factor, knows_returns = self.return_scale.tolist()
        self.scales = Scales(shift, factor, return_shift, return_factor, bool(knows_returns))

    def native_inputs(self) -> NativeInputs | None:
        """How to feed the native learner, or None where the networks are more than multi-layer perceptrons."""
        is_perceptron = self.features_extractor_class is FlattenExtractor
        is_known = self.activation_fn in (nn.Tanh, nn.ReLU)
        is_deep = max(len(self.actor_arch), len(self.critic_arch)) >= MAX_LAYERS
        if not is_perceptron or not is_known or is_deep:
            return None
        return NativeInputs(self.input_space, self.normalize_images)

    def probabilities(self, observations: Any) -> FloatArray:
        """pi(.|s) for a batch of observations, (n, n_actions)."""
        tensors, _ = self.obs_to_tensor(observations)
        return self._probabilities(tensors).cpu().numpy()

    def _probabilities(self, tensors: Any) -> Tensor:
        observations = shift_to_zero(tensors, self.observation_space)
        if self.actor is None:
            assert self.behaviour is not None
            return torch.as_tensor(self.behaviour(to_arrays(observations), self.action_masks))
        with torch.no_grad():
            scores: Tensor = self.actor(self.preprocess(observations))
            return scores.softmax(dim=1)

    def forward(self, observation: Any, deterministic: bool = False) -> Tensor:
        """Actions for a batch of observations."""
        return self._predict(observation, deterministic)

    def _predict(self, observation: Any, deterministic: bool = False) -> Tensor:
        probabilities = mask_probabilities(self._probabilities(observation).cpu().numpy(), self.action_masks)
        actions = probabilities.argmax(axis=1) if deterministic else draw(probabilities, self.generator)
        return torch.as_tensor(actions) + int(self.action_space.start)  # type: ignore[attr-defined]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {
            "net_arch": self.net_arch,
            "activation_fn": self.activation_fn,
            "features_extractor_class": self.features_extractor_class,
            "features_extractor_kwargs": self.features_extractor_kwargs,
        }


class MlpPolicy(BDPIPolicy):
    """Vectors and state numbers (one-hot): one hidden layer of 32 tanh units."""


SMALLEST_PICTURE = 36  # pixels in each direction, of which the last convolution sees one patch


def _check_pictures(space: spaces.Space[Any], is_normalized: bool) -> None:
    if not is_image_space(space, check_channels=False, normalized_image=is_normalized):
        raise ValueError(
            f'"CnnPolicy" is for pictures, Box(0, 255, (height, width, channels), uint8), got {space}: use '
            '"MlpPolicy", or "MultiInputPolicy" for Dict'
        )
    assert space.shape is not None
    if min(space.shape[1:]) < SMALLEST_PICTURE:  # channels first: agents turn pictures round
        raise ValueError(
            f"pictures of {space.shape[1]} by {space.shape[2]} pixels are too small for CnnPolicy's convolutions, "
            f"which need {SMALLEST_PICTURE} in each direction: enlarge them, or give policy_kwargs a "
            "features_extractor_class"
        )


class Convolutions(NatureCNN):
    """The DeepMind convolutions alone, whose hidden layer is the policy's: in ``net_arch``."""

    def __init__(self, observation_space: spaces.Box, normalized_image: bool = False) -> None:
        _check_pictures(observation_space, normalized_image)
        super().__init__(observation_space, normalized_image=normalized_image)
        first = self.linear[0]
        assert isinstance(first, nn.Linear)
        self._features_dim = first.in_features
        self.linear = nn.Identity()  # type: ignore[assignment]


class CnnPolicy(BDPIPolicy):
    """Images: the DeepMind convolutions and one hidden layer of 256 tanh units; a features extractor of your own is not
    followed by a hidden layer, unless ``net_arch`` says so.

    The paper's critics have tanh units on every task. With rectified ones in that place, as SB3's NatureCNN has them,
    their Q-values on Hallway can explode.
    """

    default_net_arch = (256,)
    default_fit_steps = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.setdefault("features_extractor_class", Convolutions) is not Convolutions:
            kwargs.setdefault("net_arch", [])
        elif "features_dim" in (kwargs.get("features_extractor_kwargs") or {}):
            raise ValueError("CnnPolicy's hidden layer is set by net_arch: give net_arch=[256], not features_dim")
        super().__init__(*args, **kwargs)


class MultiInputPolicy(BDPIPolicy):
    """Dict observations: vectors side by side, images through the DeepMind convolutions, then 32 tanh units."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("features_extractor_class", CombinedExtractor)
        super().__init__(*args, **kwargs)
        parts = self.observation_space.spaces.values() if isinstance(self.observation_space, spaces.Dict) else ()
        if any(is_image_space(part) for part in parts):
            self.default_fit_steps = 1
