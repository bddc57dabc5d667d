"""``bdpi study``: many runs from one command."""

from __future__ import annotations

import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from bdpi.commands.console import FAILED, Log, Trust, complain, program, say


class _ExecutorName(str, Enum):
    local = "local"
    processes = "processes"
    ray = "ray"
    population = "population"


class _Protocol(str, Enum):
    text = "text"
    code = "code"


def study(
    name: Annotated[
        str,
        typer.Argument(metavar="STUDY", help="A name (bdpi study list), or a .yaml or .py file.", show_default=False),
    ],
    environment: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="ENV", help="Only on this environment; may be repeated.", show_default=False),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option(metavar="ROW", help="Only this row of the figure; may be repeated.", show_default=False),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="SERIES", help="Only this series; may be repeated.", show_default=False),
    ] = None,
    protocol: Annotated[
        _Protocol, typer.Option(help="A study of the paper by its text, or as the code that its authors published.")
    ] = _Protocol.text,
    seeds: Annotated[int | None, typer.Option(metavar="N", min=1, help="Runs of each series.")] = None,
    first_seed: Annotated[int, typer.Option(metavar="K", min=0, help="Seed of the first run of each series.")] = 0,
    configs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs of each series with random configurations.")
    ] = None,
    episodes: Annotated[int | None, typer.Option(metavar="N", min=1, help="Episodes of each run.")] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", min=1, help="Steps of each run, not episodes.")] = None,
    executor: Annotated[
        _ExecutorName,
        typer.Option(help="One run after the other; in processes; on a Ray cluster; together on a GPU."),
    ] = _ExecutorName.processes,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Runs at a time. With --executor population, how many the GPU trains together: from 4 on, kernels for "
            "many runs train networks of more than 32 hidden units, and round differently.",
            show_default="all cores; population: 64",
        ),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of a running Ray cluster.", show_default="a new one here")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="M", min=0, help="Stop after this time; the same command continues.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs are kept, in a folder per study.")] = Path(
        "runs"
    ),
    log: Log = None,
    trust: Trust = False,
) -> None:
    """Run a whole comparison: many seeds of many agents, on as many cores or machines as there are.

    Finished runs are never repeated: the same command continues where it stopped, and a larger one (more seeds, more
    episodes) adds what is missing. A run that fails does not stop the others.

    [bold]Examples[/bold]

    $ bdpi study list

    $ bdpi study figure2 --env frozenlake --row algorithms --seeds 4

    $ bdpi study figure2 --only BDPI --only PPO --episodes 200 --minutes 30

    $ bdpi study figure2 --env table --first-seed 100 --seeds 8

    $ bdpi study figure2 --protocol code --env table

    $ bdpi study robustness --configs 50 --episodes 200 --env CartPole-v1

    $ bdpi study my_study.yaml --executor ray --ray-address auto

    $ bdpi report runs/figure2
    """
    from bdpi.runs.errors import RunError, one_line
    from bdpi.studies import load_protocol, load_study, study_names

    if name == "list":
        for known, title in study_names().items():
            whole = load_study(known)
            rows = ", ".join(dict.fromkeys(series.row for series in whole.series))
            say(f"{known:<16} {title} (rows: {rows}; environments: {', '.join(whole.short_names)})")
        return

    if ray_address is not None and executor is not _ExecutorName.ray:
        raise RunError(
            f"--ray-address {ray_address} is for --executor ray, not {executor.value}: give both, or neither"
        )

    import time
    from dataclasses import replace

    from rich.console import Console

    from bdpi.runs.campaign import LiveTally, PlainTally, run_campaign
    from bdpi.runs.executors import make_executor
    from bdpi.runs.job import check_jobs
    from bdpi.runs.logs import services_of
    from bdpi.runs.results import write_index
    from bdpi.runs.signals import Stop
    from bdpi.runs.trust import check_around, check_module

    part = load_protocol(name, protocol.value).smaller(
        environments=tuple(environment or ()),
        rows=tuple(row or ()),
        only=tuple(only or ()),
        seeds=seeds,
        configs=configs,
        episodes=episodes,
        steps=steps,
        first_seed=first_seed,
    )
    root = out.absolute()
    command = ("bdpi", *sys.argv[1:])
    services = tuple(services_of(log))
    jobs = [replace(job, command=command, log=services) for job in part.jobs(root)]
    for job in jobs:
        is_trusted = trust or name.endswith(".py")
        if job.config.environment not in (environment or ()):  # the file names it, not the command line
            check_module(job.config.environment, name, is_trusted)
        check_around(job.config, name, is_trusted)
    check_jobs(jobs)
    stop = Stop()
    deadline = None if minutes is None else time.monotonic() + 60 * minutes

    def should_stop() -> bool:
        return stop.requested() or (deadline is not None and time.monotonic() > deadline)

    console = Console()
    live = sys.stdout.isatty() and not console.is_dumb_terminal
    with stop.on_signals(), LiveTally(console) if live else PlainTally(sys.stdout) as view:
        chosen = make_executor(executor.value, workers, ray_address)
        try:
            write_index(root / part.name, part.title, part.folders(root), complain)
        except OSError as error:
            raise RunError(f"--out {out} cannot be used: {one_line(error)}; choose another folder") from None
        tally = run_campaign(jobs, chosen, should_stop, view.show, view.say)
    folder = shlex.quote(str(out / part.name))
    if len(tally.done) == len(jobs):
        say(f"Draw it:   {program()} report {folder}")
        return
    first = "when what failed is mended, or its folder removed, " if tally.failed else ""
    say(f"Go on:     {first}the same command again. So far: {program()} report {folder}")
    raise typer.Exit(FAILED if tally.failed else stop.exit_status if stop.requested() else 0)
