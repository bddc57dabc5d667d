"""``bdpi check``: a look at an environment."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from bdpi.commands.console import FAILED, say, say_table

if TYPE_CHECKING:
    from bdpi.runs.check import Look, Range

_MOST_DIMENSIONS = 20


def check(
    environment: Annotated[
        str, typer.Argument(metavar="ENV_ID", help="A Gymnasium id, as for bdpi train.", show_default=False)
    ],
    episodes: Annotated[
        int, typer.Option(metavar="N", min=1, help="Estimate the time for this number of episodes.")
    ] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Look at an environment before training: spaces, scales, how episodes end, and how long training takes.

    Acts at random in it for some seconds, asks Gymnasium's own checker, and tries an agent for a few learning epochs:
    not for a robot that could hurt itself. Nothing is written.

    The exit status is 0 where nothing speaks against training, and 1 where problems were found.

    [bold]Examples[/bold]

    $ bdpi check CartPole-v1

    $ bdpi check my_module:MyEnv-v0 --episodes 1000

    $ bdpi check my_module:MyEnv-v0 --json > look.json
    """
    from bdpi.commands.ticker import Ticker
    from bdpi.runs.check import look_at

    with Ticker() as ticker:
        look = look_at(environment, episodes, lambda what, done, total: ticker(done, total, what))
    if as_json:
        say(json.dumps(look.as_dict(), indent=2))
    else:
        _show(look)
    if look.findings:
        raise typer.Exit(FAILED)


def _show(look: Look) -> None:
    say(f"{look.environment}")
    say(f"  observations  {look.observations}")
    say(f"  actions       {look.actions}")
    say(f"  time limit    {'none' if look.limit is None else f'{look.limit} steps'}")
    if look.steps:
        _show_steps(look)
    if look.by_itself:
        _list("What bdpi train does automatically:", look.by_itself)
    _show_times(look)
    if look.remarks:
        _list("Worth knowing:", look.remarks)
    if look.findings:
        say()
        say("Problems:")
        for finding in look.findings:
            say(f"  {finding.message}")
            say(f"    {finding.remedy}")
    else:
        say()
        say("No problems found.")


def _show_steps(look: Look) -> None:
    from rich.table import Table

    say()
    say(f"In {look.steps} steps of random actions:")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
    table.add_column("", no_wrap=True)
    for title in ("smallest", "largest", "mean", "spread"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in look.ranges[:_MOST_DIMENSIONS]:
        table.add_row(f"observation {each.name}", *_numbers(each))
    if len(look.ranges) > _MOST_DIMENSIONS:
        table.add_row(f"... and {len(look.ranges) - _MOST_DIMENSIONS} more (--json has all)", *[""] * 4)
    episodes = look.episodes
    for name, spread in (
        ("reward", look.rewards),
        ("return of an episode", None if episodes is None else episodes.returns),
        ("steps of an episode", None if episodes is None else episodes.lengths),
    ):
        if spread is not None:
            table.add_row(name, *_numbers(spread))
    say_table(table)
    if episodes is not None:
        going_on = f"; one was going on after {episodes.unfinished} steps" if episodes.unfinished else ""
        ended = episodes.terminated + episodes.truncated
        say(
            f"  {ended} episodes ended: {episodes.terminated} terminated, {episodes.truncated} truncated (cut off, "
            f"mostly by a time limit){going_on}"
        )


def _numbers(spread: Range) -> list[str]:
    return [f"{value:.4g}" for value in (spread.low, spread.high, spread.mean, spread.spread)]


def _show_times(look: Look) -> None:
    from bdpi.runs.formatting import duration

    if look.step_ms is None:
        return
    say()
    estimate = look.estimate
    learning = "" if estimate is None else f", acting and learning {estimate.learning_ms:.3g} ms"
    say(f"A step of the environment takes {look.step_ms:.3g} ms{learning}.")
    if estimate is None:
        return
    times = []
    if estimate.seconds is not None:
        times.append(f"about {duration(estimate.seconds)} if they stay as long as random ones")
    if estimate.longest is not None:
        times.append(f"{duration(estimate.longest)} if all reach the time limit")
    say(f"{estimate.episodes} episodes take {', '.join(times) or 'an unknown time: none has ended'}.")


def _list(title: str, lines: list[str]) -> None:
    say()
    say(title)
    for line in lines:
        say(f"  {line}")
