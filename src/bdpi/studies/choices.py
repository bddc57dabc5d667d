"""What ``bdpi tune`` chooses from: the values of the study ``robustness``, which are the paper's.

Optuna chooses among numbers and texts, so lists (``net_arch``) are texts here, as ``--set`` takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bdpi.runs.errors import RunError

if TYPE_CHECKING:
    from bdpi.runs.session import Session
    from bdpi.studies.space import Space

Value = int | float | str | None

#: BDPI's relatives have the same hyper-parameters.
_OF_PAPER = ("bdpi", "abcdqn", "actor-mimic", "bootstrapped-dqn")
_LIKE_BDPI = (*_OF_PAPER, "abcdqn-paper", "actor-mimic-paper", *(f"{name}-code" for name in _OF_PAPER), "tabular-bdpi")
_OF_NETWORKS = ("learning_rate", "net_arch", "fit_steps")  # without effect on tables


class Choices:
    """The configurations of one agent in one environment.

    :param agent: an agent of :func:`tunable`
    :param session: a run that was prepared with nothing but the settings that are fixed
    :param fixed: settings that are the user's, and are not chosen
    :raises RunError: when nothing is left to choose
    """

    def __init__(self, agent: str, session: Session, fixed: Mapping[str, Any]) -> None:
        self._space = space_of(agent)
        self._fixed = dict(fixed)
        names = tuned(agent)
        #: what the agent has by itself
        self.defaults: dict[str, Value] = {name: _default(name, session.agent) for name in names}
        #: for each name that is chosen, the paper's values, and the default where it is not among them
        self.values: dict[str, tuple[Value, ...]] = {}
        for name in names:
            if name not in fixed:
                values = tuple(plain(value) for value in self._space.values[name])
                default = self.defaults[name]
                self.values[name] = self._allowed(name, values if default in values else (*values, default))
        if not self.values:
            raise RunError(f"every hyper-parameter of {agent} that could be chosen has a --set: leave one out")

    def _allowed(self, name: str, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """Those that go with what is fixed, as the default does: the session could be prepared. None always goes."""
        for small, large in self._space.at_most.items():
            if name == small and self._fixed.get(large) is not None:
                values = tuple(value for value in values if value is None or value <= self._fixed[large])
            if name == large and self._fixed.get(small) is not None:
                values = tuple(value for value in values if value is None or value >= self._fixed[small])
        return values

    def settings(self, chosen: Mapping[str, Value]) -> dict[str, Any]:
        """What to change about the agent, so that it has the chosen values. What it has by itself is left out.

        :param chosen: a value for each name in ``values``
        """
        settings = {name: value for name, value in chosen.items() if value != self.defaults[name]} | self._fixed
        complete = {**self.defaults, **settings}
        for small, large in self._space.at_most.items():
            # Of one critic, four cannot be trained in each step: all are, which is what None means.
            is_chosen = small not in self._fixed and complete[small] is not None
            if is_chosen and complete[small] >= complete[large]:
                settings[small] = complete[large]
                if self.defaults[small] is None:
                    del settings[small]
        for name, other in self._space.same.items():
            if other in settings and name not in self._fixed:
                settings[name] = settings[other]
        return settings


def tunable() -> dict[str, Space]:
    """The spaces, by the names of agents."""
    from bdpi.studies import load_study

    found = {series.agent: series.space for series in load_study("robustness").series if series.space is not None}
    return {**found, **dict.fromkeys(_LIKE_BDPI, found["bdpi-paper"])}


def space_of(agent: str) -> Space:
    """:raises RunError: for an agent that the paper has no values for."""
    spaces = tunable()
    if agent not in spaces:
        raise RunError(f"there are no values to try for {agent}: choose one of {', '.join(spaces)}")
    return spaces[agent]


def tuned(agent: str) -> dict[str, tuple[Any, ...]]:
    """The paper's values of each hyper-parameter that has an effect on an agent."""
    values = space_of(agent).values
    return {name: values[name] for name in values if agent != "tabular-bdpi" or name not in _OF_NETWORKS}


def setting_texts(settings: Mapping[str, Any]) -> list[str]:
    """``["n_critics=8", "net_arch=[64]"]``, as ``--set`` takes them."""
    return [f"{name}={plain(value)}" for name, value in settings.items()]


def plain(value: Any) -> Value:
    """A value that Optuna can choose."""
    return str(value).replace(" ", "") if isinstance(value, list | tuple | dict) else value


def _default(name: str, model: Any) -> Value:
    """What a hyper-parameter is if it is not set."""
    if name == "net_arch":
        return plain(model.policy.net_arch)
    if name == "fit_steps":
        return int(model.hyperparameters().fit_steps)  # the argument is None, which depends on the observations
    if name == "train_freq":
        return int(model.train_freq.frequency)
    value: Value = getattr(model, name)
    return value
