"""The live page of a run that learns in this process: it looks on from a thread of its own, and changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI
from gymnasium import spaces

from bdpi.agents.metrics import entropy_bits
from bdpi.runs.formatting import number
from bdpi.runs.live import Speed, position, time_left
from bdpi.runs.session import Session
from bdpi.serve.curves import POINTS, SHOWN, live_curves
from bdpi.serve.listen import beside
from bdpi.serve.page import LIVE, add_page

_REFUSAL = json.dumps({"error": "this page only shows a run: nothing can be told to it", "field": "type"})
_NUMBERS, _ACTIONS, _ROBOTS = 64, 64, 16  # more of them make no page that one can read


@contextlib.contextmanager
def watched(session: Session, port: int) -> Iterator[str]:
    """Serve the page of a run on loopback while this lasts, and give its address.

    :param port: 0: any that is free
    :raises RunError: when it cannot be listened at
    """
    watch = Watch(session)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        looking = asyncio.create_task(_look(watch))
        yield
        looking.cancel()

    async def refuse(_: str) -> str:
        return _REFUSAL

    app = FastAPI(title="bdpi train --watch", version="1", lifespan=lifespan, openapi_url=None)
    add_page(app, watch.describe, watch.state, refuse)
    with beside(app, port) as address:
        yield address


async def _look(watch: Watch) -> None:
    while True:
        watch.look()
        await asyncio.sleep(LIVE)


class Watch:
    """What the page shows of a run. It reads what learning has left lying there: no random number is drawn, no network
    is asked, no lock is taken.

    :param session: that will learn, or learns
    """

    def __init__(self, session: Session) -> None:
        self._session, self._agent = session, session.agent
        self._speed, self._steps_per_second = Speed(), 0.0
        #: steps at each look, and what was found last then
        self._points: dict[str, deque[tuple[int, float]]] = {name: deque(maxlen=SHOWN) for name in POINTS}
        self._last_steps = session.progress.steps

    def describe(self) -> dict[str, Any]:
        """As a task describes it; names are numbers, for environments have none."""
        info, agent = self._session.info, self._agent
        space, actions = agent.observation_space, agent.action_space
        low: Any = []
        high: Any = []
        if isinstance(space, spaces.Discrete):
            low, high = [space.start], [space.start + space.n - 1]
        elif isinstance(space, spaces.Box) and len(space.shape) == 1:
            low, high = space.low.tolist(), space.high.tolist()
        ends = list(zip(low, high, strict=True))[:_NUMBERS]
        return {
            "name": f"{info.agent.upper()} on {info.environment}, seed {info.seed}",
            "observations": [
                {"name": f"{index}", "low": finite(first), "high": finite(last), "unit": ""}
                for index, (first, last) in enumerate(ends)
            ],
            "actions": [str(actions.start + index) for index in range(min(int(actions.n), _ACTIONS))]
            if isinstance(actions, spaces.Discrete)
            else [],
            "watched": True,
        }

    def look(self) -> None:
        """Note where the run stands, for curves."""
        progress, points = self._session.progress, self._points
        self._steps_per_second = self._speed.update(progress.steps) or 0.0
        if progress.steps == self._last_steps:
            return
        self._last_steps = progress.steps
        rewards = [monitor.rewards[-1] for monitor in self._session.driver.monitors if monitor.rewards[-1:]]
        drawn_by = self._drawn_by()
        disagreement = getattr(self._agent, "_diagnostics", {}).get("train/disagreement")
        found = {
            "rewards": float(np.mean(rewards)) if rewards else None,
            "entropy": None if drawn_by is None else entropy_bits(drawn_by),
            "disagreement": disagreement,
        }
        for name, value in found.items():
            if value is not None and math.isfinite(value):
                points[name].append((progress.steps, float(value)))

    def state(self, with_curves: bool = True) -> dict[str, Any]:
        """All that the page shows."""
        progress, agent = self._session.progress, self._agent
        shown = progress.shown
        averages = shown.averages[-1:]
        totals = {
            "position": position(progress),
            "time_left": time_left(progress, self._steps_per_second),
            "steps": progress.steps,
            "episodes": len(progress.episodes),
            "average": number(averages[0] if averages else None),
            "best": number(shown.best_average),
            "steps_per_second": round(self._steps_per_second, 1),
            "policy_version": int(getattr(agent, "_n_updates", 0)),
        }
        if hasattr(agent, "epochs_due"):
            totals["epochs_due"] = agent.epochs_due
        if getattr(agent, "journal", None) is not None:
            path = Path(getattr(agent.journal, "path", agent.journal))
            files = [path.with_name(f"{path.name}{ending}") for ending in ("", "-wal")]
            totals["journal_bytes"] = sum(file.stat().st_size for file in files if file.exists())
        findings = [finding.message for finding in progress.findings]
        curves = {"curves": self._curves()} if with_curves else {}
        return {**totals, "findings": findings, "robots": self._robots(), **curves}

    def _curves(self) -> dict[str, Any]:
        shown, points = self._session.progress.shown, {name: list(found) for name, found in self._points.items()}
        values = getattr(getattr(self._agent, "_checkup", None), "values", ())  # of peers, there are none
        return live_curves(shown.returns[-SHOWN:], len(shown), points, list(values))

    def _drawn_by(self) -> Any:
        actions = getattr(self._agent, "actions", None)
        return None if actions is None else actions.drawn_by

    def _robots(self) -> list[dict[str, Any]]:
        """The environments, as far as this process knows what is going on there."""
        agent, monitors = self._agent, self._session.driver.monitors
        seen, taken, drawn_by = agent._last_obs, getattr(agent.env, "actions", None), self._drawn_by()
        made = []
        for index in range(min(agent.n_envs, _ROBOTS)):
            rewards = list(monitors[index].rewards) if index < len(monitors) else []
            made.append(
                {
                    "name": f"environment {index + 1}",
                    "observation": self._numbers(seen, index),
                    "mask": None,
                    "told": self._told(taken, drawn_by, index),
                    "driven": None,
                    "asks": False,
                    "mark": None,
                    "return": finite(math.fsum(rewards)) or 0,
                    "length": len(rewards),
                }
            )
        return made

    def _numbers(self, seen: Any, index: int) -> list[float | None] | None:
        """An observation that is a number, or a row of them."""
        if not isinstance(seen, np.ndarray) or index >= len(seen) or seen[index].ndim > 1:
            return None
        return [finite(value) for value in np.ravel(seen[index])[:_NUMBERS].tolist()]

    def _told(self, taken: Any, drawn_by: Any, index: int) -> dict[str, Any] | None:
        """The last action, and what it was drawn by, if there is an actor."""
        space = self._agent.action_space
        if not isinstance(space, spaces.Discrete) or taken is None or index >= len(taken):
            return None
        action = int(taken[index])
        drawn = drawn_by is not None and index < len(drawn_by)
        return {
            "action": action - int(space.start),
            "name": str(action),
            "status": "policy",
            "probabilities": [round(float(each), 6) for each in drawn_by[index][:_ACTIONS]] if drawn else [],
        }


def finite(value: float) -> float | None:
    """JSON knows no others."""
    return float(value) if math.isfinite(value) else None
