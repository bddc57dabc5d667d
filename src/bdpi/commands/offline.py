"""``bdpi train --offline``: the part of the command that learns from a journal."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from bdpi.commands.console import FAILED, complain, say


def train_offline(
    journal: Path,
    environment: str | None,
    agent: str | None,
    seed: int | None,
    epochs: int | None,
    settings: Sequence[str],
    action_bits: int | None,
    made: dict[str, Any],
    out: Path | None,
    log: Sequence[str] | None,
) -> None:
    """Learn from a journal, and say how it went.

    :param made: how the environment is made: its arguments and wrappers
    """
    from bdpi.commands.ticker import Ticker
    from bdpi.runs.build import agent_class
    from bdpi.runs.config import OfflineConfig
    from bdpi.runs.formatting import duration, number
    from bdpi.runs.logs import log_to, services_of
    from bdpi.runs.offline import prepare_offline
    from bdpi.runs.progress import Observer
    from bdpi.runs.settings import parse_settings
    from bdpi.runs.signals import Stop
    from bdpi.runs.trust import option_for

    name = agent or "bdpi"
    hyperparameters, policy_kwargs = parse_settings(settings, agent_class(name))
    config = OfflineConfig(
        journal=str(journal),
        environment=environment or "",
        agent=name,
        seed=seed or 0,
        epochs=epochs,
        hyperparameters=hyperparameters,
        policy_kwargs=policy_kwargs,
        action_bits=action_bits,
        **made,
    )
    services = services_of(log)
    stop = Stop()
    with Ticker("transitions") as reading:
        session = prepare_offline(config, out, note=say, tick=reading, command=["bdpi", *sys.argv[1:]])
    assert isinstance(session.config, OfflineConfig)
    log_to(session.status, services)
    config = session.config
    say(f"{name} learns from {config.transitions} transitions of {journal}, {config.epochs} epochs")
    learning = Ticker("epochs")

    class View(Observer):
        def epoch(self, done: int, total: int) -> None:
            learning(done, total)

        def note(self, text: str) -> None:
            say(text)

    with stop.on_signals(), learning:
        outcome = session.run(View(), stop.requested)
    result = outcome.summary
    say(f"{outcome.status.capitalize()}: {result.epochs} epochs in {duration(result.seconds)}")
    if result.mean_return is not None:
        say(f"Mean return of {result.test_episodes} test episodes: {number(result.mean_return)}")
    if outcome.folder.agent.exists():
        say(f"  agent  {outcome.folder.agent}")
        if config.environment:
            say(f"Watch it:  bdpi play {shlex.quote(str(outcome.folder.path))}{option_for(config)}")
    if outcome.error is not None:
        complain(outcome.error)
        raise typer.Exit(FAILED)
    if outcome.status == "interrupted":
        raise typer.Exit(stop.exit_status)
