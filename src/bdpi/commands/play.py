"""``bdpi play``: a trained agent acts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bdpi.commands.console import Trust, say


def play(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder, or the agent.zip in it.")],
    episodes: Annotated[int, typer.Option(metavar="N", min=1, help="How many episodes.")] = 10,
    watch: Annotated[
        bool | None,
        typer.Option("--watch/--no-watch", help="Open a window.", show_default="where there is a display"),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE.gif", help="Write a film of the episodes instead.")
    ] = None,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Draw actions as in training, instead of the most probable ones.")
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="The best agent of bdpi train --eval-every, instead of the last one.")
    ] = False,
    seed: Annotated[
        int, typer.Option(metavar="S", min=0, max=2**32 - 1, help="The same seed plays the same episodes.")
    ] = 0,
    trust: Trust = False,
) -> None:
    """Let a trained agent act: print its returns, watch it, or record it.

    [bold]Examples[/bold]

    $ bdpi play runs/CartPole-v1/bdpi-seed0-20250131-120000

    $ bdpi play runs/docking --episodes 100 --no-watch

    $ bdpi play runs/docking --record docking.gif --episodes 3 --stochastic
    """
    from bdpi.runs.errors import RunError
    from bdpi.runs.folder import RunFolder

    if record is not None and record.suffix.lower() != ".gif":
        raise RunError(f"--record writes GIF files, so the name must end in .gif, unlike {str(record)!r}")
    folder = RunFolder.open(run)
    if best:
        if not folder.best.is_file():
            raise RunError(f"{folder.path} has no best.zip: bdpi train --eval-every N keeps the best agent there")
        folder.agent = folder.best

    from bdpi.runs.build import warnings_as_notes
    from bdpi.runs.episodes import Episode
    from bdpi.runs.formatting import number
    from bdpi.runs.play import play as play_run

    n_played = 0

    def show(episode: Episode) -> None:
        nonlocal n_played
        n_played += 1
        say(f"episode {n_played}  return {number(episode.episode_return)}  steps {episode.length}")

    with warnings_as_notes(say):
        played = play_run(
            folder,
            episodes,
            watch=watch,
            record=record,
            deterministic=not stochastic,
            seed=seed,
            trust=trust,
            on_episode=show,
        )
    returns = [episode.episode_return for episode in played]
    say(
        f"Return over {len(returns)} episodes: mean {number(sum(returns) / len(returns))}, "
        f"min {number(min(returns))}, max {number(max(returns))}"
    )
    if record is not None:
        say(f"Film: {record}")
