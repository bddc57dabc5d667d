"""The networks behind ``"MlpPolicy"``, ``"CnnPolicy"`` and ``"MultiInputPolicy"``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    create_mlp,
    get_actor_critic_arch,
)
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import obs_as_tensor
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from bdpi.agents.actions import draw, mask_probabilities
from bdpi.agents.decisions import Decisions, only
from bdpi.agents.extractors import Convolutions, combined_extractor
from bdpi.agents.spaces import NativeInputs, preprocess, scaled_parts, shift_to_zero, to_arrays, zero_based
from bdpi.envs.factors import DEFAULT_BITS
from bdpi.learner.functional import flatten_parameters, statistics_of
from bdpi.learner.interface import BoolArray, FloatArray, IntArray
from bdpi.learner.native import MAX_LAYERS
from bdpi.learner.rules import allowed
from bdpi.learner.scales import Scales

if TYPE_CHECKING:
    from bdpi.agents.agent_learner import AgentLearner


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


def _checked_adam(optimizer: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    if optimizer is not torch.optim.Adam:
        raise ValueError(f"optimizer_class must be torch.optim.Adam, which all learners have; got {optimizer!r}")
    if strange := kwargs.keys() - {"betas", "eps", "weight_decay"}:
        raise ValueError(f"optimizer_kwargs may have betas, eps and weight_decay, not {', '.join(sorted(strange))}")
    betas, numbers = kwargs.get("betas", (0.9, 0.999)), [kwargs[name] for name in kwargs if name != "betas"]
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas) or not all(number >= 0 for number in numbers):
        raise ValueError(f"optimizer_kwargs must be two betas from 0 to below 1, and numbers from 0 on; got {kwargs!r}")
    return {**kwargs, "betas": tuple(map(float, betas))} if "betas" in kwargs else dict(kwargs)


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
    An agent without an actor network sets ``actor`` to None and ``follows`` to its learner, whose critics or table the
    policy follows then; they are in its ``state_dict``.

    :param observation_space: Observation space
    :param action_space: Action space; what is not Discrete is decided on part by part, see
        :class:`~bdpi.agents.decisions.Decisions`
    :param lr_schedule: not used: the learner owns the optimisers
    :param net_arch: hidden units of each layer, ``[32]`` by default; ``dict(pi=[…], qf=[…])`` gives the actor another
        size than the critics. Larger networks fit more complex tasks and cost proportionally more time.
    :param activation_fn: of the hidden units; the native learner knows ``nn.Tanh`` (default) and ``nn.ReLU``
    :param features_extractor_class: what comes before the perceptron; each network has its own
    :param features_extractor_kwargs: arguments of the features extractor
    :param normalize_images: divide images by 255. Without that, fresh networks tell pictures apart much better, and
        want a smaller learning rate (1e-5): docs/hallway.md has what this makes of Hallway.
    :param optimizer_class: ``torch.optim.Adam``; there is no other
    :param optimizer_kwargs: Adam's ``betas``, ``eps`` and ``weight_decay``; PyTorch trains then
    :param share_features_extractor: False: each network has its own
    :param n_critics: for a policy that is loaded without its agent: it follows the votes of so many critics; 0: there
        is an actor
    :param prior_scale: weight of a fixed random function in each of these critics
    :param is_table: for a policy that is loaded without its agent: the actor is a table
    :param action_bits: decisions for each number of a ``Box`` action. More are more precise, and take longer to learn.
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
        action_space: spaces.Space[Any],
        lr_schedule: Schedule | None = None,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        share_features_extractor: bool = False,
        n_critics: int = 0,
        prior_scale: float = 0.0,
        is_table: bool = False,
        action_bits: int = DEFAULT_BITS,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class,
            features_extractor_kwargs,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=_checked_adam(optimizer_class, optimizer_kwargs or {}),
        )
        if share_features_extractor:
            raise ValueError("share_features_extractor=True is not possible: each network learns its own features")
        _check_class("activation_fn", activation_fn, nn.Module, "torch.nn.Tanh")
        _check_class("features_extractor_class", features_extractor_class, BaseFeaturesExtractor, "NatureCNN of SB3")
        #: from what networks say to actions of the environment
        self.decisions = Decisions(observation_space, action_space, action_bits)
        self.action_bits = action_bits
        self.input_space = zero_based(self.decisions.observation_space)
        self.activation_fn = activation_fn
        self.net_arch = list(self.default_net_arch) if net_arch is None else net_arch
        _check_net_arch(self.net_arch)
        self.actor_arch, self.critic_arch = (list(map(int, part)) for part in get_actor_critic_arch(self.net_arch))
        self.n_actions = self.decisions.n_outputs
        #: how many numbers of which parts of an observation are scaled, see :func:`bdpi.agents.spaces.scaled_parts`
        self.scaled_parts = scaled_parts(self.input_space)
        self.register_buffer("observation_shift", torch.zeros(sum(self.scaled_parts.values())))
        self.register_buffer("observation_factor", torch.ones(sum(self.scaled_parts.values())))
        #: shift, factor, and whether they were estimated
        self.register_buffer("return_scale", torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
        self._use(Scales.none(len(self.observation_shift)))
        self.register_load_state_dict_post_hook(type(self)._read_scales)  # type: ignore[no-untyped-call]
        self.actor: Network | None = self._make_network(self.actor_arch)
        self._features_dim = int(self.actor.features_dim)
        #: the agent's learner, where there is no actor network
        self.follows: AgentLearner | None = None
        #: what is followed without an agent
        self._followed: dict[str, Tensor] = {}
        self.prior_scale = prior_scale
        #: a critic whose own parameters are not used; in a list, so that it is no part of this module
        self._critic: list[Network] = []
        if n_critics or is_table:
            self.follow(None)
            self._followed = self._empty(n_critics, is_table)
        #: which actions the next prediction may choose, as environments say it; None: all
        self.action_masks: BoolArray | None = None
        #: only ``predict`` draws from it, so that evaluating an agent does not change its training
        self.generator = np.random.default_rng()
        self.set_training_mode(False)  # gradients are the learner's, which has modules of its own

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
        self._use(scales)
        self.observation_shift.copy_(torch.as_tensor(scales.shift))
        self.observation_factor.copy_(torch.as_tensor(scales.factor))
        new = [scales.return_shift, scales.return_factor, scales.knows_returns]
        self.return_scale.copy_(torch.tensor(new, dtype=torch.float64))

    def _read_scales(self, *_: Any) -> None:
        """After ``load_state_dict``."""
        shift, factor = (each.cpu().numpy().copy() for each in (self.observation_shift, self.observation_factor))
        return_shift, return_factor, knows_returns = self.return_scale.tolist()
        if not np.isfinite([*shift, *factor, return_shift]).all() or not 1e-100 < return_factor < 1e100:
            raise RuntimeError(f"the state is damaged: returns are scaled by {return_factor:g}, or inputs by no number")
        self._use(Scales(shift, factor, return_shift, return_factor, bool(knows_returns)))

    def _use(self, scales: Scales) -> None:
        #: how networks see observations (all numbers of all parts that are scaled, side by side) and returns
        self.scales = scales
        inputs = self.native_inputs()
        #: the same, of all inputs of perceptrons
        self.input_scales = scales if inputs is None else inputs.all_scales(scales)

    def native_inputs(self) -> NativeInputs | None:
        """How to feed the native learner, or None where the networks are more than multi-layer perceptrons."""
        is_perceptron = self.features_extractor_class is FlattenExtractor
        if self.features_extractor_class is CombinedExtractor and isinstance(self.input_space, spaces.Dict):
            parts = self.input_space.spaces.values()  # which it lays side by side, but for pictures
            is_perceptron = not any(is_image_space(part, check_channels=False) for part in parts)
        is_known = self.activation_fn in (nn.Tanh, nn.ReLU)
        is_deep = max(len(self.actor_arch), len(self.critic_arch)) >= MAX_LAYERS
        if not is_perceptron or not is_known or is_deep:
            return None
        return NativeInputs(self.input_space, self.normalize_images)

    def probabilities(self, observations: Any) -> FloatArray:
        """pi(.|s) for a batch of observations, (n, n_actions); of decisions, what is decided so far is part of them."""
        is_plain = self.decisions.is_plain
        tensors = self.obs_to_tensor(observations)[0] if is_plain else obs_as_tensor(observations, self.device)
        return self._probabilities(tensors).cpu().numpy()

    def _probabilities(self, tensors: Any) -> Tensor:
        observations = shift_to_zero(tensors, self.decisions.observation_space)
        if self.actor is None and self.follows is not None and not _is_traced():
            return torch.as_tensor(self.follows.behaviour(to_arrays(observations), self.action_masks))
        with torch.no_grad():
            if self.actor is None:
                return self._behaviour(observations)
            scores: Tensor = self.actor(self.preprocess(observations))
            return scores.softmax(dim=1)

    def _behaviour(self, observations: Any) -> Tensor:
        """Without an actor network, what :meth:`AgentLearner.behaviour` is, in PyTorch: it can be traced."""
        followed = self.followed()
        if "actor" in followed:
            return followed["actor"].to(observations.device)[observations.reshape(-1).long()].float()
        inputs, masks = self.preprocess(observations), self._masks()
        votes = []
        for critic, active in enumerate(followed["active"].tolist()):
            q = self._q_values(followed["critics.parameters"][critic, active], inputs)
            if self.prior_scale:
                q = q + self.prior_scale * self._q_values(followed["priors"][critic], inputs)
            votes.append(nn.functional.one_hot(allowed(q, masks).argmax(dim=1), self.n_actions).float())
        return torch.stack(votes).mean(dim=0)

    def _q_values(self, flat: Tensor, inputs: Any) -> Tensor:
        """Of the critic with these parameters. (``functional_call`` refuses to be traced.)"""
        (network,), offset = self._critic, 0
        before = [values[name] for values, name, _ in self._critic_parameters]
        try:
            for values, name, shape in self._critic_parameters:
                values[name] = flat[offset : offset + math.prod(shape)].view(shape).to(self.device)
                offset += math.prod(shape)
            q: Tensor = network(inputs)
        finally:  # while it is exported, these are no numbers
            for (values, name, _), value in zip(self._critic_parameters, before, strict=True):
                values[name] = value
        return q

    def _masks(self) -> Tensor | None:
        return None if self.action_masks is None else torch.as_tensor(self.action_masks).to(self.device)

    def forward(self, observation: Any, deterministic: bool = True) -> Tensor:
        """Actions for a batch of observations; the most probable ones unless told otherwise, as SB3's DQN does."""
        return self._predict(observation, deterministic)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """As in SB3. Actions that are a Tuple or a Dict come in a list where there are several observations."""
        if self.decisions.is_plain:
            return super().predict(observation, state, episode_start, deterministic)
        self.set_training_mode(False)
        tensors, is_batch = self.obs_to_tensor(observation)
        actions = self._decide(tensors, deterministic)
        return (actions if is_batch else only(actions)), state

    def _decide(self, tensors: Any, deterministic: bool) -> Any:
        """Actions of any kind, decided on part by part."""
        if _is_traced():
            raise ValueError(
                f"{self.action_space} actions are decided on one after the other, which cannot be traced: use "
                "bdpi.export, or call predict"
            )
        masks = self.action_masks

        def choose(seen: Any, allowed: BoolArray | None) -> IntArray:
            self.action_masks = allowed
            return self._choose(obs_as_tensor(seen, self.device), deterministic).cpu().numpy()

        try:
            return self.decisions.make(to_arrays(tensors), masks, choose)
        finally:
            self.action_masks = masks

    def _predict(self, observation: Any, deterministic: bool = False) -> Tensor:
        if not self.decisions.is_plain:
            return torch.as_tensor(np.asarray(self._decide(observation, deterministic)))
        return self._choose(observation, deterministic) + self.decisions.first_action

    def _choose(self, observation: Any, deterministic: bool) -> Tensor:
        """One of the outputs for each observation."""
        probabilities = self._probabilities(observation)
        if deterministic:
            masks = self._masks()
            if masks is not None:
                kept = torch.where(masks, probabilities, 0.0)
                probabilities = torch.where(kept.sum(dim=1, keepdim=True) > 0, kept, masks.to(kept.dtype))
            return probabilities.argmax(dim=1)
        if _is_traced():
            return torch.multinomial(probabilities, 1).squeeze(1)
        return torch.as_tensor(draw(mask_probabilities(probabilities.cpu().numpy(), self.action_masks), self.generator))

    # -- what a policy without an actor network follows, in its state_dict under the learner's names

    def follow(self, learner: AgentLearner | None) -> None:
        """Have no actor network, and follow this learner; None: what is loaded later."""
        self.actor, self.follows = None, learner
        with torch.random.fork_rng():
            self._critic = [self.make_critic().eval().requires_grad_(False)]
        statistics = [(part._buffers, name, value) for part, name, value in statistics_of(self._critic[0])]
        parameters = [
            (part._parameters, name, value)
            for part in self._critic[0].modules()
            for name, value in part._parameters.items()
        ]
        #: where its values are kept, under which name, and their shapes; in the order of a flat vector
        self._critic_parameters: list[tuple[Any, str, tuple[int, ...]]] = [
            (values, name, tuple(value.shape))
            for values, name, value in [*statistics, *parameters]
            if value is not None
        ]

    def followed(self) -> dict[str, Tensor]:
        """Critics or a table by the learner's names; empty with an actor network."""
        if self.actor is not None:
            return {}
        if self.follows is None:
            return self._followed
        with _disable_current_modes():  # an export's tensors hold no numbers
            return self.follows.followed()

    def _empty(self, n_critics: int, is_table: bool) -> dict[str, Tensor]:
        if is_table:
            return {"actor": torch.zeros(int(self.input_space.n), self.n_actions, dtype=torch.float64)}  # type: ignore[attr-defined]
        size = len(flatten_parameters(self.make_critic()))
        return {
            "active": torch.zeros(n_critics, dtype=torch.int64),
            "critics.parameters": torch.zeros(n_critics, 2, size),
            "priors": torch.zeros(n_critics, size if self.prior_scale else 0),
        }

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination |= {prefix + name: tensor.clone() for name, tensor in self.followed().items()}

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        followed = self.followed()
        given = {name: state_dict.pop(prefix + name) for name in followed if prefix + name in state_dict}
        rest = local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, prefix, *rest)
        missing_keys += [prefix + name for name in followed.keys() - given.keys()]
        wrong = [name for name, tensor in given.items() if tensor.shape != followed[name].shape]
        error_msgs += [
            f"size mismatch for {name}: {given[name].shape}, expected {followed[name].shape}" for name in wrong
        ]
        if wrong or not given:
            return
        if self.follows is None:
            self._followed = {name: tensor.detach().cpu().clone() for name, tensor in (followed | given).items()}
        else:
            self.follows.load_state_dict(self.follows.state_dict() | given)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        followed = self.followed()
        return super()._get_constructor_parameters() | {
            "optimizer_kwargs": self.optimizer_kwargs,
            "n_critics": len(followed.get("active", ())),
            "prior_scale": self.prior_scale,
            "is_table": "actor" in followed,
            "action_bits": self.action_bits,
            "net_arch": self.net_arch,
            "activation_fn": self.activation_fn,
            "features_extractor_class": self.features_extractor_class,
            "features_extractor_kwargs": self.features_extractor_kwargs,
        }


def _is_traced() -> bool:
    is_tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return bool(is_tracing or torch.compiler.is_compiling())


class MlpPolicy(BDPIPolicy):
    """Vectors and state numbers (one-hot): one hidden layer of 32 tanh units."""


class CnnPolicy(BDPIPolicy):
    """Images: the DeepMind convolutions, or smaller ones for small pictures and maps of true and false
    (:class:`~bdpi.agents.extractors.Convolutions`), and one hidden layer of 256 tanh units, or of as many as
    ``features_dim`` in ``features_extractor_kwargs`` says; a features extractor of your own is not followed by a hidden
    layer, unless ``net_arch`` says so.

    The paper's critics have tanh units on every task. With rectified ones in that place, as SB3's NatureCNN has them,
    their Q-values on Hallway can explode.
    """

    default_net_arch = (256,)
    default_fit_steps = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.setdefault("features_extractor_class", Convolutions) is not Convolutions:
            kwargs.setdefault("net_arch", [])
        elif "features_dim" in (given := dict(kwargs.get("features_extractor_kwargs") or {})):
            first = given.pop("features_dim")  # the hidden layer, which is the policy's here
            layers = kwargs.get("net_arch") or []
            by_network = {name: [first, *part] for name, part in layers.items()} if isinstance(layers, dict) else None
            kwargs |= {"net_arch": by_network or [first, *layers], "features_extractor_kwargs": given}
        super().__init__(*args, **kwargs)


class MultiInputPolicy(BDPIPolicy):
    """Dict observations: vectors side by side, images through the DeepMind convolutions, small ones through those of
    :class:`~bdpi.agents.extractors.Convolutions`, then 32 tanh units."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        space = kwargs.get("observation_space", args[0] if args else None)
        kwargs.setdefault("features_extractor_class", combined_extractor(space))
        super().__init__(*args, **kwargs)
        parts = self.observation_space.spaces.values() if isinstance(self.observation_space, spaces.Dict) else ()
        if any(is_image_space(part) for part in parts):
            self.default_fit_steps = 1
