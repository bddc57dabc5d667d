"""Saving and loading agents: one file, without code in it.

What is saved is declared where it is kept: by the arguments of an agent's constructor, and by ``saved``, the names and
types of attributes of an agent's classes and of its parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import check_for_correct_spaces

from bdpi.agents.arguments import UNLESS_GIVEN, settings_of, unknown, without_ignored
from bdpi.agents.encoding import Arrays, Foreign, decode, encode
from bdpi.agents.environments import make_if_id
from bdpi.agents.files import File, read_agent, read_parameters, write_agent
from bdpi.agents.inputs import Inputs, describe_inputs, inputs_from, restore_inputs
from bdpi.agents.normalizing import describe_normalizer, restore_normalizer
from bdpi.agents.schema import PATHS, check, check_names
from bdpi.agents.sizes import check_layers, check_networks, check_policy_names
from bdpi.envs.factors import DEFAULT_BITS, count_choices

if TYPE_CHECKING:
    from bdpi.agents.ensemble import Ensemble

AnyAgent = TypeVar("AnyAgent", bound="Ensemble")

#: Arguments that say how large networks are.
_SHAPING = {"n_critics", "n_stack", "policy_class", "policy_kwargs", "prior_scale"}
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
#: Arguments that are not even written.
_NOT_WRITTEN = {"journal", "autosave", "advisors"}
#: Of the arguments for users of SB3's DQN, those that are always written.
_OF_ALL_FILES = {"learning_starts", "n_steps", "optimize_memory_usage"}
#: Transitions that a learner has room for from the beginning: a batch for each thread.
_MOST_AT_ONCE = 10**6
_TYPES: dict[str, type] = {each.__name__: each for each in (bool, int, float, str, dict)}


def declared(agent_class: type[Ensemble]) -> dict[str, type]:
    """Names of all attributes of an agent that are saved, with the type of their values (``object``: any)."""
    found: dict[str, type] = {}
    for name, argument in settings_of(agent_class).items():
        by_annotation = _TYPES.get(str(argument.annotation).partition(" ")[0].partition("[")[0], object)
        is_known = argument.default not in (None, argument.empty)
        if name not in _NOT_WRITTEN:
            found[_ATTRIBUTES.get(name, name)] = type(argument.default) if is_known else by_annotation
    for each in agent_class.__mro__:
        found |= vars(each).get("saved", {})
    return found


def check_arguments(agent: Ensemble) -> None:
    """:raises ValueError: when an argument of the agent's class is not an attribute of that name: it would get lost"""
    names = [name for name in settings_of(type(agent)) if not hasattr(agent, _ATTRIBUTES.get(name, name))]
    if names:
        raise ValueError(
            f"{type(agent).__name__} does not keep its argument {names[0]}, which a saved agent would lack: write "
            f"self.{names[0]} = {names[0]} in its constructor, before super().__init__"
        )


# -- saving


def save_agent(agent: Ensemble, path: File, exclude: Iterable[str], include: Iterable[str], buffer: bool) -> None:
    """See :meth:`bdpi.agents.ensemble.Ensemble.save`."""
    check_arguments(agent)
    known = declared(type(agent))
    strange = [name for name in include if name not in known]
    if strange:
        raise ValueError(f"{strange[0]} could not be loaded again: declare it in {type(agent).__name__}.saved")
    names = known.keys() - set(exclude) | set(include)
    arrays: Arrays = {}
    parts: dict[str, Arrays] = {}
    with agent.learning_held():
        with agent.learning_paused():  # for a moment: ``observe`` waits for it
            agent._settle()
            values = {
                name: value for name, value in vars(agent).items() if name in names and not _is_usual(name, value)
            }
            values |= {
                f"_{name}": {attribute: getattr(part, attribute) for attribute in part.saved}
                for name, part in ((name, getattr(agent, name)) for name in agent.parts)
            }
            attributes = {name: encode(value, arrays, f"attributes.{name}") for name, value in values.items()}
            normalizer, statistics = None, agent.get_vec_normalize_env()
            if statistics is not None:
                normalizer, parts["normalizer"] = describe_normalizer(statistics)
            elif agent.kept_normalizer is not None:
                normalizer, parts["normalizer"] = agent.kept_normalizer
            inputs, known_inputs = None, _inputs_of(agent)
            if known_inputs is not None:
                inputs, parts["inputs"] = describe_inputs(known_inputs)
            arrays = _copies({**arrays, **_joined(parts)})
        # The rest is large, and only learning changes it.
        plain = getattr(agent.policy, "_orig_mod", agent.policy)  # inside of what torch.compile gives
        policy = {name: tensor.cpu().numpy() for name, tensor in plain.state_dict().items()}
        large = {"learner": agent.agent_learner.learner.state_dict(), "policy": policy}
        if buffer:
            large["replay"] = agent.replay_buffer.held()
        arrays |= _copies(_joined(large))
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(
                f"the agent is not saved, because {name} holds numbers that are not finite: learning has diverged"
            )
    names_of = {"class": type(agent).__name__, "bdpi": _version()}
    about = {**names_of, "parts": [*large, *parts], "normalizer": normalizer, "inputs": inputs}
    public = {name: value for name, value in attributes.items() if not name.startswith("_")}
    write_agent(path, {**about, "attributes": attributes}, arrays, {**names_of, **public})


def _is_usual(name: str, value: Any) -> bool:
    """Whether an argument for users of SB3's DQN is as if it were not given; the file is then as without it."""
    if name == "replay_buffer_class":
        return str(value.__module__).startswith("bdpi.")
    if name == "n_stack":
        return bool(value == 1)
    if name == "repeat_critics":
        return value is False
    return name in {"hindsight", "_frames", *UNLESS_GIVEN} - _OF_ALL_FILES and value in (None, {})


def _inputs_of(agent: Ensemble) -> Inputs | None:
    env = agent.get_env()
    if env is None:
        return agent.kept_inputs
    try:
        return inputs_from(env)
    except ValueError:  # wrappers in an order that cannot be exported; an agent can be saved all the same
        return None


def _version() -> str:
    try:
        return version_of("bdpi")
    except PackageNotFoundError:
        return "unknown"


def _joined(parts: dict[str, Arrays]) -> Arrays:
    return {f"{part}.{name}": array for part, named in parts.items() for name, array in named.items()}


def _copies(arrays: Arrays) -> Arrays:
    return {name: array.copy(order="C") for name, array in arrays.items()}


# -- loading


def load_agent(
    agent_class: type[AnyAgent],
    path: File,
    env: GymEnv | str | None,
    device: torch.device | str,
    custom_objects: dict[str, Any],
    force_reset: bool,
    changes: dict[str, Any],
) -> AnyAgent:
    """See :meth:`bdpi.agents.ensemble.Ensemble.load`."""
    document, arrays = read_agent(path, [each.__name__ for each in agent_class.__mro__])
    try:
        return _from_file(agent_class, document, arrays, env, device, custom_objects, force_reset, changes)
    except _UNLOADABLE as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__  # PyTorch says it in many lines
        if isinstance(error, MemoryError) or "allocate memory" in said:
            remedy = "give load a smaller buffer_size or batch_size, or load it on a larger machine"
            raise ValueError(f"{path} does not fit into memory: {said}; {remedy}") from error
        remedy = "take another copy of it, or train again"
        if given := ", ".join(sorted(_SHAPING & (changes.keys() | custom_objects.keys()))):
            remedy = f"leave {given} out, which does not fit it, or {remedy}"
        raise ValueError(f"{path} is damaged, or of another kind of agent: {said}; {remedy}") from error


def load_parameters(path: File) -> dict[str, dict[str, torch.Tensor]]:
    """Of networks and learner, as ``get_parameters`` has them, of a saved agent of any class."""
    arrays = read_parameters(path)
    return {
        name: {key: torch.from_numpy(array) for key, array in _part_of(arrays, part).items()}
        for name, part in (("policy", "policy"), ("agent_learner", "learner"))
    }


def _from_file(
    agent_class: type[AnyAgent],
    document: dict[str, Any],
    arrays: Arrays,
    env: GymEnv | str | None,
    device: torch.device | str,
    custom_objects: dict[str, Any],
    force_reset: bool,
    changes: dict[str, Any],
) -> AnyAgent:
    changes, names = without_ignored(agent_class, changes, 5), declared(agent_class)
    kept = names | {f"_{part}": dict for part in agent_class.parts}
    check_names(document["attributes"].keys() - custom_objects.keys(), kept)  # before values are made
    data = {
        name: custom_objects[name] if name in custom_objects else _decoded(name, value, arrays)
        for name, value in document["attributes"].items()
    }
    check({name: value for name, value in data.items() if name not in custom_objects}, kept)
    brings_networks = bool({"policy_class", "policy_kwargs"} & (custom_objects.keys() | changes.keys()))
    _check_sizes(data, arrays, brings_networks)
    changes = {_ATTRIBUTES.get(name, name): value for name, value in changes.items()}
    data |= dict.fromkeys(PATHS[1:]) | changes  # the journal is opened last
    _check_brought_along(data)
    if not brings_networks:
        check_networks(data, arrays, agent_class.has_tables)
    vec_env = None
    if env is not None:
        vec_env = agent_class._wrap_env(make_if_id(env), data["verbose"])
        if document.get("normalizer") is not None:
            vec_env = restore_normalizer(vec_env, document["normalizer"], _part_of(arrays, "normalizer"))
        try:
            check_for_correct_spaces(vec_env, data["observation_space"], data["action_space"])
        except ValueError as error:
            raise ValueError(f"{error}; give an environment with the spaces that the agent has learned in") from None
        if data["n_envs"] != vec_env.num_envs:  # what was decided for an episode was so for other environments
            n = vec_env.num_envs
            data["_begun"], data["_collector"]["masks"] = False, None
            data["_episodes"] |= {"sums": [0.0] * n, "steps": [0] * n}
            times = np.ones((n, data["_draws"]["times"].shape[1]))
            data["_draws"] |= {"times": times, "means": np.ones(n), "keeps": [False] * n}
        data["n_envs"] = vec_env.num_envs
        if force_reset:  # before training goes on; an environment is not in the file
            data["_last_obs"] = None
    agent = agent_class(data["policy_class"], vec_env, device=device, _init_setup_model=False)  # type: ignore[arg-type]
    strange = changes.keys() - document["attributes"].keys() - names.keys() - vars(agent).keys()
    if strange:
        raise ValueError(unknown(agent_class, strange, "load"))
    states = {name: data.pop(f"_{name}") for name in agent.parts}
    vars(agent).update(data, agent_class=agent_class.__name__)
    if vec_env is None and document.get("normalizer") is not None:
        agent.kept_normalizer = document["normalizer"], _part_of(arrays, "normalizer")
    if vec_env is None and document.get("inputs") is not None:
        own = data["observation_space"], data["action_space"]
        agent.kept_inputs = restore_inputs(document["inputs"], _part_of(arrays, "inputs"), *own)
    agent.journal = None  # until the replay memory is there
    agent._setup_model()
    for name, state in states.items():
        part = getattr(agent, name)
        check(state, part.saved)
        vars(part).update({attribute: state[attribute] for attribute in part.saved})
    parts = {part: _part_of(arrays, part) for part in ("policy", "learner", "replay") if part in document["parts"]}
    agent.policy.load_state_dict({name: torch.from_numpy(array) for name, array in parts["policy"].items()})
    agent.agent_learner.learner.load_state_dict(parts["learner"])
    if "replay" in parts:
        agent.replay_buffer.take_over(parts["replay"], "the file")
    agent.journal = changes.get("journal")
    if agent.journal is not None:
        agent._open_journal(agent.journal)
    return agent


def _decoded(name: str, value: Any, arrays: Arrays) -> Any:
    try:
        return decode(value, arrays, f"attributes.{name}")
    except ValueError as error:
        raise ValueError(f"the file is damaged: {name} makes no sense ({error})") from error


def _part_of(arrays: Arrays, part: str) -> Arrays:
    return {name.removeprefix(f"{part}."): array for name, array in arrays.items() if name.startswith(f"{part}.")}


def _check_sizes(data: dict[str, Any], arrays: Arrays, brings_networks: bool) -> None:
    """Whether the file has as many critics, environments and choices as it says.

    :param brings_networks: the user gives networks, of which the file says nothing
    :raises ValueError: if it does not
    """
    held = len(arrays["learner.active"])
    if data["n_critics"] != held:
        raise ValueError(f"the file is damaged: it says that n_critics is {data['n_critics']!r}, and holds {held}")
    if not brings_networks:
        check_policy_names(data["policy_kwargs"] or {})
        check_layers((data["policy_kwargs"] or {}).get("net_arch"))
    at_once = data["batch_size"] * (data["n_threads"] or 1)
    if at_once > _MOST_AT_ONCE:
        raise ValueError(f"batch_size times n_threads is {at_once}, more than {_MOST_AT_ONCE}: give load n_threads=1")
    n_envs, lengths = data["n_envs"], [len(data["_episodes"][name]) for name in ("sums", "steps")]
    if lengths != [n_envs, n_envs]:
        raise ValueError(f"the file is damaged: it has episodes of {lengths[0]} environments instead of {n_envs}")
    times, means, keeps = (data["_draws"][name] for name in ("times", "means", "keeps"))
    n_outputs = count_choices(data["action_space"], (data["policy_kwargs"] or {}).get("action_bits", DEFAULT_BITS))
    if times.shape != (n_envs, n_outputs) or means.shape != (n_envs,) or len(keeps) != n_envs:
        raise ValueError(
            f"the file is damaged: it has draws {times.shape} of {len(keeps)} environments, and {n_envs} environments "
            f"with {n_outputs} choices"
        )


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
