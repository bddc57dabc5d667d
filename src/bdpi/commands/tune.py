"""``bdpi tune``: search the hyper-parameters of an agent."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdpi.commands.console import FAILED, complain, say, say_table

if TYPE_CHECKING:
    from bdpi.studies.tuning import Trial, Tuner, Tuning

_MOST_SHOWN = 10


def tune(
    environment: Annotated[
        str, typer.Argument(metavar="ENV_ID", help="A Gymnasium id, as for bdpi train.", show_default=False)
    ],
    agent: Annotated[
        str, typer.Option(metavar="NAME", help="Which algorithm; any of bdpi train, except sac and td3.")
    ] = "bdpi",
    trials: Annotated[int, typer.Option(metavar="N", min=1, help="Number of configurations to try.")] = 20,
    episodes: Annotated[int, typer.Option(metavar="M", min=1, help="Episodes of each run.")] = 100,
    seeds: Annotated[int, typer.Option(metavar="K", min=1, help="Runs of each configuration.")] = 1,
    seed: Annotated[
        int,
        typer.Option(
            metavar="S", min=0, max=2**32 - 1, help="The same seed gives the same search. Runs begin with it."
        ),
    ] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Fix a hyper-parameter, which is then not searched; may be repeated.",
            show_default=False,
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="T", min=0, help="Stop after this time; the same command continues.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where everything is kept.", show_default="runs/tune/ENV_ID-AGENT"),
    ] = None,
) -> None:
    """Search for good hyper-parameters with Optuna, among those of the paper's study of robustness.

    The score of a configuration is the total reward over all its episodes, as in the paper; with several seeds, their
    mean. The first trial has the defaults. A trial whose mean return is below the median of the others, after a fifth
    of a run or later, is pruned: it stops early. In the end, the best trials are shown, and the command that trains
    with the best one.

    Ctrl-C stops after the current step, and the same command continues. After all trials, it adds as many again.

    [bold]Examples[/bold]

    $ bdpi tune CartPole-v1

    $ bdpi tune LunarLander-v3 --trials 50 --episodes 200 --seeds 2 --minutes 600

    $ bdpi tune FrozenLake8x8-v1 --agent ppo --set gae_lambda=0.9 --out runs/lake
    """
    from bdpi.commands.ticker import Ticker
    from bdpi.runs.build import warnings_as_notes
    from bdpi.runs.signals import Stop
    from bdpi.studies.tuning import Search, Tuner

    stop = Stop()
    deadline = None if minutes is None else time.monotonic() + 60 * minutes

    def should_stop() -> bool:
        return stop.requested() or (deadline is not None and time.monotonic() > deadline)

    ticker = Ticker("episodes")

    def ended(trial: Trial, goal: int) -> None:
        ticker.end()  # its line is still open on a terminal
        say(_line(trial, goal, tuner.fixed))

    with warnings_as_notes(say):
        tuner = Tuner(Search(environment, agent, episodes, seeds, seed, tuple(settings or ())), out)
        say(f"{agent} on {tuner.search.environment}: {', '.join(tuner.choices.values)}")
        with stop.on_signals(), ticker:
            found = tuner.run(trials, should_stop, ended, ticker)
    _report(tuner, found)
    if len(found.trials) < found.goal:
        say(f"Stopped after {len(found.trials)} of {found.goal} trials. Go on: the same command again.")
        raise typer.Exit(stop.exit_status if stop.requested() else 0)
    if not found.best:
        complain("no trial has finished, so there is no best one")
        raise typer.Exit(FAILED)


def _line(trial: Trial, goal: int, fixed: Mapping[str, Any]) -> str:
    from bdpi.runs.formatting import number

    how = {
        "finished": f"total reward {number(trial.score)}",
        "pruned": f"pruned after {trial.episodes} episodes",
        "failed": f"failed: {trial.error}",
    }
    return f"trial {trial.number}/{goal}   {how[trial.status]}   {_settings(trial, fixed)}"


def _settings(trial: Trial, fixed: Mapping[str, Any]) -> str:
    """What was chosen, and is not the default."""
    return " ".join(text for text in trial.settings if text.partition("=")[0] not in fixed) or "(defaults)"


def _report(tuner: Tuner, found: Tuning) -> None:
    """The best trials, and how to train with the best one."""
    from rich.table import Table

    from bdpi.runs.formatting import number

    counts = {status: sum(t.status == status for t in found.trials) for status in ("finished", "pruned", "failed")}
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    say()
    say(f"{len(found.trials)} trials in {tuner.out / 'tune.sqlite'}{f': {said}' if said else ''}")
    best = found.best[:_MOST_SHOWN]
    if not best:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("trial", "total reward", "per episode"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("settings")
    for trial in best:
        per_episode = (trial.score or 0.0) / tuner.search.episodes
        table.add_row(str(trial.number), number(trial.score), number(per_episode), _settings(trial, tuner.fixed))
    say_table(table)
    say(f"The best:  {shlex.join(tuner.command(best[0]))}")
