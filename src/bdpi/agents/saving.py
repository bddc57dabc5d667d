"""Saving and loading agents: one file, without code in it."""

from __future__ import annotations

import copy
import inspect
import os
import time
import warnings
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Any, TypeVar

import numpy as np
import torch
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import check_for_correct_spaces, get_system_info

from bdpi.agents import checks
from bdpi.agents.environments import make_if_id
from bdpi.agents.files import File, read_agent, read_parameters, write_agent
from bdpi.agents.inputs import Inputs, describe_inputs, inputs_from, restore_inputs
from bdpi.agents.journal import Journal
from bdpi.agents.normalizing import describe_normalizer, restore_normalizer
from bdpi.agents.plain import Arrays, Foreign, decode, encode
from bdpi.agents.stepping import SteppingAlgorithm

Self = TypeVar("Self", bound="SavingAlgorithm")

#: What comes out of a file whose parts are missing, garbled, or do not fit together.
_UNLOADABLE = (
    KeyError,
    IndexError,
    TypeError,
    RuntimeError,
    AssertionError,
    AttributeError,
    OverflowError,
    MemoryError,
    EOFError,
)

#: Where arguments are kept whose attributes have other names.
_ATTRIBUTES = {"learner": "learner_choice", "stats_window_size": "_stats_window_size"}


class SavingAlgorithm(SteppingAlgorithm):
    """An algorithm that is saved whole, now and then by itself."""

    journal: str | os.PathLike[str] | Journal | None
    autosave: str | os.PathLike[str] | None
    autosave_minutes: float
    _learned_with_masks: bool
    _saved_at: float
    #: settings and statistics of the ``VecNormalize`` that the agent learned with, where it was loaded without one
    kept_normalizer: tuple[dict[str, Any], Arrays] | None = None
    #: what its environment's wrappers do to observations, where it was loaded without an environment
    kept_inputs: Inputs | None = None

    @classmethod
    def _settings(cls) -> list[str]:
        """Names of what the constructor can be told, beside policy, environment and device."""
        named = {
            name
            for each in cls.__mro__
            if issubclass(each, SavingAlgorithm) and "__init__" in vars(each)
            for name, parameter in inspect.signature(vars(each)["__init__"]).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        return sorted({*named, "learning_rate"} - {"device", "_init_setup_model"})

    def save(
        self,
        path: File,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
        *,
        include_buffer: bool = False,
    ) -> None:
        """Write the agent to one file, whole or not at all.

        Learning in the background pauses until everything is copied. ``observe`` waits only while counters and
        statistics are, not for networks and memory.

        Networks, Adam's moments, generators and counters are in it, and the statistics of ``VecNormalize``, if there is
        one: an agent that is loaded goes on where it was. How its environment gives observations is in it, too, for
        exports. There is no code in the file, and reading it runs none.

        :param path: of the file; ``.zip`` is added where there is no ending
        :param exclude: attributes to leave out
        :param include: attributes not to leave out
        :param include_buffer: with the replay memory
        """
        left_out = (set(self._excluded_save_params()) | set(exclude or ())) - set(include or ())
        arrays: Arrays = {}
        parts: dict[str, Arrays] = {}
        with self.learning_held():
            with self.learning_paused():  # for a moment: whoever observes waits for it
                if self._background is not None:
                    self._epochs_due = self._background.due
                self._learned_with_masks = self.learned_with_masks  # which the memory knows, and may not be saved
                attributes = {
                    name: encode(value, arrays, f"attributes.{name}")
                    for name, value in list(vars(self).items())
                    if name not in left_out
                }
                normalizer = None
                if self._vec_normalize_env is not None:
                    normalizer, parts["normalizer"] = describe_normalizer(self._vec_normalize_env)
                elif self.kept_normalizer is not None:
                    normalizer, parts["normalizer"] = self.kept_normalizer
                inputs = None
                known_inputs = self._known_inputs()
                if known_inputs is not None:
                    inputs, parts["inputs"] = describe_inputs(known_inputs)
                arrays = _copies({**arrays, **_joined(parts)})
            # The rest is large, and changed by nobody but who learns.
            large = {"learner": self.agent_learner.learner.state_dict(), "policy": self._policy_arrays()}
            if include_buffer:
                large["replay"] = self.replay_buffer.held()
            arrays |= _copies(_joined(large))
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError(
                    f"the agent is not saved, because {name} holds numbers that are not finite: learning has diverged"
                )
        about: dict[str, Any] = {"class": type(self).__name__, "bdpi": _version(), "parts": [*large, *parts]}
        about |= {"normalizer": normalizer, "inputs": inputs}
        write_agent(path, {**about, "attributes": attributes}, arrays)

    @property
    def learned_with_masks(self) -> bool:
        """Whether actions were masked at some time."""
        return self._learned_with_masks or (self.replay_buffer is not None and self.replay_buffer.masks is not None)

    def _known_inputs(self) -> Inputs | None:
        if self.env is None:
            return self.kept_inputs
        try:
            return inputs_from(self.env)
        except ValueError:  # wrappers in an order that cannot be exported; an agent can be saved all the same
            return None

    def _autosave_if_due(self) -> None:
        """Asked between steps and epochs; there need not be anything to learn from yet."""
        if self.autosave is not None and time.monotonic() >= self._saved_at + 60 * self.autosave_minutes:
            # With a journal, the experience is in a file already; demonstrations are not.
            include = self._journal is None or self.replay_buffer.n_demonstrations > 0
            try:
                self.save(self.autosave, include_buffer=include)
            except OSError as error:  # the robot goes on
                warnings.warn(
                    f"autosave to {self.autosave} failed: {error}. It is tried again in {self.autosave_minutes:g} min.",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self._saved_at = time.monotonic()

    def _policy_arrays(self) -> Arrays:
        return {name: tensor.cpu().numpy() for name, tensor in self.policy.state_dict().items()}

    def _excluded_save_params(self) -> list[str]:
        derived = ["agent_learner", "replay_buffer_class", "replay_buffer_kwargs", "_actor_lr_schedule"]
        derived += ["_masked_resets", "_warned_of_lone_masks", "_record", "_checkup"]
        derived += ["acted_by", "_warned_of_masks", "_background", "_acted_mask", "_quick_actor"]
        derived += ["journal", "_journal", "autosave", "_saved_at", "lr_schedule", "start_time", "kept_normalizer"]
        return [*super()._excluded_save_params(), *derived, "kept_inputs", "_device_is_free"]

    def set_parameters(
        self, load_path_or_dict: Any, exact_match: bool = True, device: torch.device | str = "auto"
    ) -> None:
        """As in SB3: networks and all that the learner has, of a saved agent or of :meth:`get_parameters`.

        :param load_path_or_dict: what :meth:`save` wrote, or parameters by their names
        :param exact_match: nothing may be missing
        :param device: not used: they go where the agent's are
        :raises ValueError: for parameters of other networks; nothing changes then
        """
        if not isinstance(load_path_or_dict, dict):
            arrays = read_parameters(load_path_or_dict)
            load_path_or_dict = {
                name: {key: torch.from_numpy(array) for key, array in _part_of(arrays, part).items()}
                for name, part in (("policy", "policy"), ("agent_learner", "learner"))
            }
        with self.learning_paused():
            before = copy.deepcopy(self.get_parameters())
            try:
                super().set_parameters(load_path_or_dict, exact_match, device)
            except Exception as error:
                super().set_parameters(before)
                raise ValueError(f"the parameters do not fit this agent: {error}") from error

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "agent_learner"], []  # what get_parameters and set_parameters are about

    @classmethod
    def load(  # type: ignore[override]
        cls: type[Self],
        path: File,
        env: GymEnv | str | None = None,
        device: torch.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> Self:
        """Load an agent that :meth:`save` wrote.

        :param path: of the file
        :param env: environment to go on learning in (an id will do); none is needed for predictions. If the agent
            learned with ``VecNormalize``, so will this one; one that you bring gets the statistics of the agent's, and
            keeps its own ``training`` and ``norm_reward``.
        :param device: where networks live
        :param custom_objects: attributes to use instead of those in the file; functions and classes of your own, which
            a file cannot hold, have to be given here
        :param print_system_info: print what is installed
        :param force_reset: learning begins with a new episode
        :param kwargs: arguments of the constructor, or attributes, to change, for instance ``journal``
        :raises ValueError: for a file that is damaged or does not fit, and for kwargs that do not exist
        """
        if print_system_info:
            get_system_info()
        document, arrays = read_agent(path, cls.__name__)
        try:
            checks.warn_of_missing_gpu(device)
            return cls._from_file(document, arrays, env, device, custom_objects or {}, force_reset, kwargs)
        except _UNLOADABLE as error:
            raise ValueError(f"{path} is damaged, or of another kind of agent: {error}") from error

    @classmethod
    def _from_file(
        cls: type[Self],
        document: dict[str, Any],
        arrays: Arrays,
        env: GymEnv | str | None,
        device: torch.device | str,
        custom_objects: dict[str, Any],
        force_reset: bool,
        changes: dict[str, Any],
    ) -> Self:
        data = {
            name: custom_objects[name] if name in custom_objects else decode(value, arrays)
            for name, value in document["attributes"].items()
        }
        data.setdefault("_one_step_on_dicts", False)
        _check_sizes(data, arrays)
        changes = {_ATTRIBUTES.get(name, name): value for name, value in changes.items()}
        data |= changes
        _check_brought_along(data)
        if env is not None:
            vec_env = cls._wrap_env(make_if_id(env), data["verbose"])
            if document.get("normalizer") is not None:
                vec_env = restore_normalizer(vec_env, document["normalizer"], _part_of(arrays, "normalizer"))
            check_for_correct_spaces(vec_env, data["observation_space"], data["action_space"])
            if data["n_envs"] != vec_env.num_envs:
                data["_begun"] = False  # what was decided for an episode was so for other environments
            data["n_envs"] = vec_env.num_envs
            if force_reset:  # before training goes on; an environment is not in the file
                data["_last_obs"] = None
        else:
            vec_env = None
        agent = cls(data["policy_class"], vec_env, device=device, _init_setup_model=False)  # type: ignore[call-arg, arg-type]  # as agents take them
        unknown = changes.keys() - document["attributes"].keys() - vars(agent).keys()
        if unknown:
            raise ValueError(
                f"{cls.__name__} has no {', '.join(sorted(unknown))}: load takes {', '.join(cls._settings())}"
            )
        _check_types(vars(agent), {name: value for name, value in data.items() if name not in custom_objects | changes})
        vars(agent).update(data)
        if vec_env is None and document.get("normalizer") is not None:
            agent.kept_normalizer = document["normalizer"], _part_of(arrays, "normalizer")
        if vec_env is None and document.get("inputs") is not None:
            agent.kept_inputs = restore_inputs(
                document["inputs"], _part_of(arrays, "inputs"), data["observation_space"]
            )
        agent.journal = None  # until the replay memory is there
        agent._setup_model()
        parts = {part: _part_of(arrays, part) for part in document["parts"]}
        agent.policy.load_state_dict({name: torch.from_numpy(array) for name, array in parts["policy"].items()})
        agent.agent_learner.learner.load_state_dict(parts["learner"])
        if "replay" in parts:
            agent.replay_buffer.take_over(parts["replay"], "the file")
        agent.journal = changes.get("journal")
        if agent.journal is not None:
            agent._open_journal(agent.journal)
        return agent


def _version() -> str:
    try:
        return version_of("bdpi")
    except PackageNotFoundError:
        return "unknown"


def _joined(parts: dict[str, Arrays]) -> Arrays:
    return {f"{part}.{name}": array for part, named in parts.items() for name, array in named.items()}


def _copies(arrays: Arrays) -> Arrays:
    return {name: array.copy(order="C") for name, array in arrays.items()}


def _part_of(arrays: Arrays, part: str) -> Arrays:
    return {name.removeprefix(f"{part}."): array for name, array in arrays.items() if name.startswith(f"{part}.")}


def _check_sizes(data: dict[str, Any], arrays: Arrays) -> None:
    """Whether the file has as many networks as it says, before they are made.

    :raises ValueError: if it does not
    """
    held = len(arrays["learner.active"])
    if data["n_critics"] != held:
        raise ValueError(f"the file is damaged: it says that n_critics is {data['n_critics']!r}, and holds {held}")


#: What attributes are that a new agent does not have.
_OPTIONAL: dict[str, type] = {
    "_generator": np.random.Generator,
    "_predict_generator": np.random.Generator,
    "seed": int,
    "critics_per_step": int,
    "fit_steps": int,
    "n_threads": int,
    "_begun": bool,
}


def _check_types(usual: dict[str, Any], data: dict[str, Any]) -> None:
    """Whether attributes are what they usually are.

    :raises ValueError: if one is not
    """
    for name, value in data.items():
        default = usual.get(name)
        wanted = _OPTIONAL.get(name) if default is None else type(default)
        if wanted is None or value is None or callable(default) or callable(value) or name == "train_freq":
            continue
        whole_number_for_number = wanted is float and type(value) is int
        if type(value) is not wanted and not whole_number_for_number:
            raise ValueError(f"the file is damaged: {name} is {str(value)[:100]!r}, not a {wanted.__name__}")


def _check_brought_along(data: dict[str, Any]) -> None:
    """:raises ValueError: when something is missing that a file cannot hold"""

    def look(name: str, value: Any) -> None:
        if isinstance(value, Foreign):
            raise ValueError(
                f"{name} was {value.what}, which a file cannot hold without running code when it is read: "
                f'give load(..., custom_objects={{"{name.partition("[")[0]}": ...}})'
            )
        if isinstance(value, dict):
            for key, part in value.items():
                look(f"{name}[{key!r}]", part)

    for name, value in data.items():
        look(name, value)
