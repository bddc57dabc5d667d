"""What the file of an agent may set: names, types and ranges. Nothing else is taken from one, and never a path."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium import spaces
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.type_aliases import TrainFreq
from stable_baselines3.common.utils import LinearSchedule
from typing_extensions import TypedDict

from bdpi.agents.checks import LARGEST
from bdpi.agents.encoding import Foreign

#: Arguments that are paths: given anew when an agent is loaded.
PATHS = ("journal", "autosave", "tensorboard_log")

_COUNT = Annotated[int, Field(ge=0, lt=2**62)]
_NUMBER = Annotated[float, Field(allow_inf_nan=False)]
_RATE = Annotated[float, Field(ge=0, allow_inf_nan=False)] | LinearSchedule
_SEEN = np.ndarray | dict[str, np.ndarray]


def _whole(low: int, high: int) -> Any:
    return Annotated[int, Field(ge=low, le=high)]


class _Hindsight(TypedDict):
    n_sampled_goal: _whole(0, 10**6)  # type: ignore[valid-type]
    goal_selection_strategy: Literal["final", "episode", "future"]


_COUNTED = {"num_timesteps", "_total_timesteps", "_num_timesteps_at_start", "_episode_num", "_n_updates"}
_COUNTED |= {"learning_starts", "journaled", "count", "due"}
#: What has a range, or another type than its default value. All but what is counted may be None.
_KNOWN: dict[str, Any] = {
    **dict.fromkeys(_COUNTED, _COUNT),
    **{name: _whole(1, most) for name, most in LARGEST.items()},
    **dict.fromkeys(("critic_iterations", "fit_steps"), _whole(1, 10**6)),
    "_stats_window_size": _whole(1, 10**7),
    **dict.fromkeys(("learning_rate", "actor_learning_rate"), _RATE),
    **dict.fromkeys(("_last_obs", "_last_original_obs"), _SEEN),
    **dict.fromkeys(("_last_episode_starts", "_followed", "masks"), np.ndarray),
    **dict.fromkeys(("ep_info_buffer", "ep_success_buffer"), deque),
    **dict.fromkeys(("gamma", "demonstration_share", "_current_progress_remaining"), Annotated[float, Field(le=1)]),
    "action_noise": ActionNoise,
    "action_space": spaces.Space,
    "advice_steps": _whole(1, 2**62),
    "n_envs": _whole(1, 10**5),
    "_frames": dict[_COUNT, np.ndarray],
    "max_grad_norm": Annotated[float, Field(gt=0, allow_inf_nan=False)] | _whole(1, 2**62),
    "hindsight": _Hindsight,
    "observation_space": spaces.Space,
    "policy_class": type,
    "seed": _whole(0, 2**32 - 1),
    "train_freq": TrainFreq,
    "_collected": tuple[_COUNT, _COUNT],
    "_diagnostics": dict[str, float],
    "_epochs_due": Annotated[float, Field(ge=0, allow_inf_nan=False)],
    "keeps": list[bool],
    **dict.fromkeys(("sums", "returns_kept", "returns_other"), list[_NUMBER]),
    "steps": list[_COUNT],
}


def check_names(names: Iterable[str], declared: dict[str, type]) -> None:
    """:raises ValueError: for the first name that is not declared"""
    if strange := sorted(name for name in names if name not in declared):
        raise ValueError(f"the file is damaged: it sets {strange[0][:100]!r}, which no agent keeps")


def check(values: dict[str, Any], declared: dict[str, type]) -> None:
    """Whether a file sets only what is declared, to values of the right type and in their range.

    :param values: by their names
    :param declared: names and types; ``object``: any
    :raises ValueError: naming the first value that does not fit
    """
    foreign = {name for name, value in values.items() if isinstance(value, Foreign)}  # said later, with the remedy
    fields = {name: _type_of(name, kind) for name, kind in declared.items()}
    table = TypedDict("table", fields, total=False)  # type: ignore[operator, misc]
    config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
    table.__pydantic_config__ = config  # type: ignore[attr-defined]
    try:
        TypeAdapter(table).validate_python({name: values[name] for name in values if name not in foreign})
    except ValidationError as error:
        first = error.errors()[0]
        name, value = first["loc"][0], f"{first['input']!r:.100}"
        if first["type"] == "extra_forbidden":
            raise ValueError(f"the file is damaged: it sets {str(name)[:100]!r}, which no agent keeps") from None
        raise ValueError(f"the file is damaged: {name} is {value}: {first['msg']}") from None


def _type_of(name: str, kind: type) -> Any:
    known = _KNOWN.get(name, Any if kind is object else kind)
    return known if known is Any or name in _COUNTED else known | None
