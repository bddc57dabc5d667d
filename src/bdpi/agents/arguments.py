"""Arguments of agents: what their constructors take, shown in full, and what was meant by a name that they do not."""

from __future__ import annotations

import difflib
import inspect
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import torch

from bdpi.agents.advice import Advisor
from bdpi.agents.journal import Journal
from bdpi.learner.arrangement import Precision
from bdpi.learner.registry import LearnerChoice


class CommonSettings(TypedDict, total=False):
    """Arguments that mean the same to all agents, see :class:`Settings`."""

    buffer_size: int
    batch_size: int
    gamma: float
    learning_starts: int
    n_steps: int
    n_stack: int
    optimize_memory_usage: bool
    train_freq: int | tuple[int, str]
    gradient_steps: int
    max_grad_norm: float | None
    replay_buffer_class: type[Any] | None
    replay_buffer_kwargs: dict[str, Any] | None
    n_critics: int
    fit_steps: int | None
    policy_kwargs: dict[str, Any] | None
    stats_window_size: int
    tensorboard_log: str | None
    verbose: int
    seed: int | None
    device: torch.device | str
    learner: LearnerChoice
    precision: Precision
    n_threads: int | None
    journal: str | os.PathLike[str] | Journal | None
    autosave: str | os.PathLike[str] | None
    autosave_minutes: float
    asynchronous: bool
    advisors: Sequence[Advisor]
    advice_steps: int | None
    _init_setup_model: bool


class Settings(CommonSettings, total=False):
    """What the constructors of agents take beside policy, environment and learning rate.

    :param buffer_size: how many transitions are remembered. A larger memory forgets less and reacts more slowly.
    :param batch_size: transitions per batch. Learning starts when there is one batch.
    :param gamma: discount factor
    :param learning_starts: steps before the first epoch; they are chosen as all others are
    :param n_steps: rewards that are added up before Q-values are asked for what follows, at most: to the end of an
        episode, or to where observations do not go on. More spread rare rewards faster, and learn from what was done
        instead of the best that could be.
    :param n_stack: networks see so many observations of an episode, the last ones, oldest first, for tasks that a
        single one does not show in full; the first is repeated before there are so many. The memory keeps each by
        itself. Not for Dict observations, and for Discrete actions only. Hand ``predict`` the state that it returned,
        with ``episode_start``, as ``evaluate_policy`` does.
    :param optimize_memory_usage: remember each observation once, which halves the memory that pictures take. Learns the
        same; not for Dict observations and demonstrations
    :param train_freq: transitions (of each environment) between learning epochs, or ``(n, "episode")``.
        More than 1 saves computation at the cost of samples.
    :param gradient_steps: learning epochs each time, per environment; -1 makes as many as there were transitions
    :param max_grad_norm: gradients of a network that are longer than this are shortened to it; PyTorch trains then
    :param replay_buffer_class: SB3's ``HerReplayBuffer`` learns from goals that were not meant, too; a class derived
        from the agent's own memory (:mod:`bdpi.agents.buffers`) is taken as it is
    :param replay_buffer_kwargs: its arguments, for instance ``n_sampled_goal``
    :param n_critics: N_c. More critics make learning smoother and exploration more careful, and cost time.
    :param critics_per_step: how many of the critics an epoch trains, picked at random; all if None
    :param repeat_critics: draw the critics of an epoch with replacement, as the code of the paper does: an epoch trains
        some of them several times, on a batch each time, and others not at all
    :param critic_iterations: N_t, training iterations per critic and epoch. More extract more from a batch.
    :param fit_steps: Adam steps per fit of a network; 20 if None (1 where there are pictures)
    :param critic_step_size: alpha, how far Q-values move towards their new estimate in one iteration. Lower values
        average over more transitions, which noisy rewards may need.
    :param observation_size: networks see numbers between minus this and this, by the range observed so far, so that any
        unit will do. Larger tells observations apart more quickly, and explores less. None: observations are as they
        are. Pictures and state numbers are never scaled. A ``VecNormalize`` does it instead.
    :param return_size: the size that returns have for networks with 32 hidden units and 20 fit steps, in proportion for
        others: rewards are scaled by what was observed, so that any unit will do. Smaller learns faster from each
        batch, and overfits it sooner. None: rewards are as they are. A ``VecNormalize`` that normalises rewards does
        it instead.
    :param rare_rewards: rewards are rare where less than this share of the transitions has one that is not 0. Then
        finite bounds of observations count as observed, networks see half of ``observation_size``, and returns and
        learning rates are a third of ``return_size`` and ``learning_rate``: agents look for a goal more widely, and
        longer. Decided where observations or returns are scaled. 0: never
    :param policy_kwargs: arguments of the policy, for instance ``dict(net_arch=[256])``
    :param stats_window_size: episodes over which the logged mean return is taken
    :param tensorboard_log: folder for TensorBoard; no such log if None
    :param verbose: 0 silent, 1 information, 2 debugging
    :param seed: makes everything repeatable, bit for bit on the same machine
    :param device: where networks live. "auto" is the CPU for perceptrons, else a GPU if there is one.
    :param learner: "native" (C++), "torch", or "auto": native wherever possible. "fused" has kernels of its own for
        small perceptrons on a GPU.
    :param precision: in which the PyTorch learner computes. "bfloat16" makes convolutional networks faster on a GPU:
        their convolutions and matrix products are rounded to 8 significant bits while they learn, by kernels of our own
        where the networks have the usual shape and Triton is installed, else by PyTorch's autocast; the last layer,
        parameters, Adam's moments, targets, and whatever the agent predicts, stay float32.
    :param n_threads: threads of the native learner; all cores if None (one less with ``asynchronous``). Never changes
        results.
    :param journal: file in which every transition is before the agent acts again; what is in it already becomes the
        agent's experience. See :class:`~bdpi.agents.journal.Journal`.
    :param autosave: file to which the agent is saved now and then, in :meth:`learn`, in :meth:`learn_once` or in the
        background; see :meth:`save`. ``observe`` alone never does, and waits for the background's only while it copies
        counters and statistics.
    :param autosave_minutes: between two savings
    :param asynchronous: :meth:`learn` learns in the background while it acts. Results are then not repeatable.
    :param advisors: functions of one observation, as the environment shows it, that say how probable each action should
        be, or URLs that do (``POST {"observation": [...]}``, answered by ``{"probabilities": [...]}`` within a second):
        the agent acts from the normalised product of its actor and all of them. It learns from what is executed.
        ``predict`` has no advice. For Discrete actions. They are not saved: give ``load`` them anew.
    :param advice_steps: advice fades: it counts in full at the agent's first step, and for nothing after so many. None:
        it stays, until ``withdraw_advice``
    :param _init_setup_model: build the networks at once
    """

    critics_per_step: int | None
    repeat_critics: bool
    critic_iterations: int
    critic_step_size: float
    observation_size: float | None
    return_size: float | None
    rare_rewards: float


DEFAULTS: Settings = {
    "buffer_size": 20_000,
    "batch_size": 256,
    "gamma": 0.99,
    "learning_starts": 0,
    "n_steps": 1,
    "n_stack": 1,
    "optimize_memory_usage": False,
    "train_freq": 1,
    "gradient_steps": 1,
    "max_grad_norm": None,
    "replay_buffer_class": None,
    "replay_buffer_kwargs": None,
    "n_critics": 16,
    "critics_per_step": None,
    "repeat_critics": False,
    "critic_iterations": 4,
    "fit_steps": None,
    "critic_step_size": 0.2,
    "observation_size": 2.0,
    "return_size": 10.0,
    "rare_rewards": 0.1,
    "policy_kwargs": None,
    "stats_window_size": 100,
    "tensorboard_log": None,
    "verbose": 0,
    "seed": None,
    "device": "auto",
    "learner": "auto",
    "precision": "float32",
    "n_threads": None,
    "journal": None,
    "autosave": None,
    "autosave_minutes": 5.0,
    "asynchronous": False,
    "advisors": (),
    "advice_steps": None,
    "_init_setup_model": True,
}
#: Arguments that Stable-Baselines3 takes, and keeps.
OF_SB3 = {"buffer_size", "batch_size", "gamma", "train_freq", "gradient_steps", "policy_kwargs", "stats_window_size"}
OF_SB3 |= {"tensorboard_log", "verbose", "seed", "device", "learning_starts", "n_steps"}
OF_SB3 |= {"replay_buffer_class", "replay_buffer_kwargs", "optimize_memory_usage"}
#: Arguments that change nothing by default, most for users of SB3's DQN: files and runs say only what was given.
UNLESS_GIVEN = {"learning_starts", "n_steps", "n_stack", "optimize_memory_usage", "max_grad_norm"}
UNLESS_GIVEN |= {"replay_buffer_class", "replay_buffer_kwargs", "advice_steps", "repeat_critics"}
_NO_TARGETS = "there are no target networks, because the two networks of each critic judge each other"
_NO_RANDOM_ACTIONS = "no actions are random: the actor, or a critic of many, decides how much is tried out"
#: Arguments of SB3's DQN that mean nothing here, and why.
_IGNORED = {
    **dict.fromkeys(("tau", "target_update_interval"), _NO_TARGETS),
    **dict.fromkeys(("exploration_fraction", "exploration_initial_eps", "exploration_final_eps"), _NO_RANDOM_ACTIONS),
}
#: Arguments of policies that are loaded without their agent, which has them otherwise.
ALONE = {"n_critics", "is_table", "prior_scale"}
_VARIABLE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def complete(agent_class: type[Any], given: Settings) -> Settings:
    """The arguments that were given, and the defaults of the others; warns of those that are ignored.

    :raises TypeError: for an argument that there is not
    """
    if strange := given.keys() - DEFAULTS.keys() - _IGNORED.keys():
        raise TypeError(unknown(agent_class, strange, "its constructor"))
    return {**DEFAULTS, **without_ignored(agent_class, given, 5)}  # type: ignore[typeddict-item]


def without_ignored(agent_class: type[Any], given: Mapping[str, Any], stacklevel: int) -> dict[str, Any]:
    """What was given, without what means nothing here, which a warning names.

    :param stacklevel: of that warning, see ``warnings.warn``
    """
    if ignored := [name for name in _IGNORED if name in given]:
        reasons = "; ".join(dict.fromkeys(_IGNORED[name] for name in ignored))
        text = f"{agent_class.__name__} ignores {', '.join(ignored)}: {reasons}"
        warnings.warn(text, UserWarning, stacklevel=stacklevel)
    return {name: value for name, value in given.items() if name not in _IGNORED}


def common_arguments() -> list[inspect.Parameter]:
    """What ``**settings`` of :class:`~bdpi.agents.ensemble.Ensemble` are."""
    hints = {name: getattr(hint, "__forward_arg__", hint) for name, hint in Settings.__annotations__.items()}
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=each, annotation=hints[name]) for name, each in DEFAULTS.items()]


def show_all(agent_class: type[Any], settings: Iterable[inspect.Parameter] | None = None) -> None:
    """Have the signature and the docstring of a constructor show, in place of ``**settings``, what they are.

    :param settings: None: what the constructor of its base class takes
    """
    constructor = vars(agent_class).get("__init__")
    if constructor is None:
        return
    signature = inspect.signature(constructor)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    if len(own) == len(signature.parameters):
        return
    inherited = settings or inspect.signature(super(agent_class, agent_class).__init__).parameters.values()
    others = [each.replace(kind=each.KEYWORD_ONLY) for each in inherited if each.kind not in _VARIABLE]
    passed_on = [each for each in others if each.name not in signature.parameters and each.name != "self"]
    constructor.__signature__ = signature.replace(parameters=[*own, *passed_on])
    classes = [*reversed(agent_class.__mro__), *([] if settings is None else [Settings])]
    explained = {name: text for each in classes for name, text in _explained(each).items()}
    texts = [explained[each.name] for each in passed_on if each.name in explained]
    own_text, is_open, _ = _docstring(agent_class).partition("\n:param settings:")
    if texts and is_open:
        agent_class.__doc__ = "\n".join([own_text, *texts, ""])


def _docstring(agent_class: type[Any]) -> str:
    """Without indentation, which Python 3.13 takes away by itself."""
    return inspect.cleandoc(agent_class.__doc__ or "")


def _explained(agent_class: type[Any]) -> dict[str, str]:
    """What the docstring of a class says of each argument."""
    parts = _docstring(agent_class).split("\n:param ")[1:]
    return {part.partition(":")[0]: f":param {part.rstrip()}" for part in parts}


def settings_of(agent_class: type[Any]) -> dict[str, inspect.Parameter]:
    """What a constructor can be told, beside policy, environment and device."""
    parameters = inspect.signature(agent_class.__init__).parameters
    beside = {"self", "policy", "env", "device", "_init_setup_model"}
    return {name: each for name, each in parameters.items() if each.kind not in _VARIABLE and name not in beside}


def unknown(owner: type[Any], names: Iterable[str], taken_by: str, known: Iterable[str] | None = None) -> str:
    """Says that a class does not take arguments of these names, and which were meant, perhaps.

    :param known: what it takes; None: it is an agent
    """
    known = sorted(settings_of(owner) if known is None else known)
    close = [match for name in names for match in difflib.get_close_matches(name, known, n=1)]
    hint = f"did you mean {' and '.join(close)}? " if close else ""
    if of_agent := sorted(DEFAULTS.keys() & set(names)):
        hint = f"give {' and '.join(of_agent)} to the agent itself; "
    given = ", ".join(map(repr, sorted(names)))
    return f"{owner.__name__} has no argument {given}: {hint}{taken_by} takes {', '.join(known)}"


def check_policy_arguments(policy_class: type[Any], given: Iterable[str]) -> None:
    """Refuse what no constructor of the policy takes, and what its agent says.

    :raises TypeError: with the names that are nearest
    """
    known: set[str] = set()
    for constructor in (vars(each)["__init__"] for each in policy_class.__mro__ if "__init__" in vars(each)):
        parameters = inspect.signature(constructor).parameters.values()
        known |= {each.name for each in parameters if each.kind not in _VARIABLE}
        if all(each.kind is not each.VAR_KEYWORD for each in parameters):  # it passes nothing on
            break
    known -= {"self", "observation_space", "action_space", "lr_schedule"} | ALONE
    if strange := set(given) - known:
        raise TypeError(unknown(policy_class, strange, "policy_kwargs", known))
