"""The command ``bdpi``: train an agent, play with it, run studies and report on them, look at the installation.

Only the command line is here: what it does is in ``bdpi.runs``. Everything heavy is imported by the command that needs
it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from bdpi.commands import export, journal, tune

if TYPE_CHECKING:
    from bdpi.runs.progress import Observer
    from bdpi.runs.signals import Stop
    from bdpi.runs.train import Outcome

BAD_INPUT = 2
FAILED = 1


class _OneLineErrors(TyperGroup):
    """A group of commands whose complaints are one line, with the command's own errors and typer's alike."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        from bdpi.runs.errors import RunError, one_line

        try:
            status = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except RunError as error:
            _complain(str(error))
            status = BAD_INPUT
        except OSError as error:  # files that may not be read or written, a full disk
            _complain(one_line(error))
            status = BAD_INPUT
        except typer.Abort:  # Ctrl-C, with some versions of typer; training itself has its own way
            status = 130
        except Exception as error:
            # Typer's own errors (a missing argument, text instead of a number) know how to describe themselves. Where
            # their classes live differs between versions of typer.
            if not hasattr(error, "format_message"):
                raise
            _complain(f"{one_line(error.format_message())} (bdpi --help shows examples)")
            status = BAD_INPUT
        if standalone_mode:
            sys.exit(status or 0)
        return status


app = typer.Typer(
    cls=_OneLineErrors,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say(text: str = "") -> None:
    """Print, unless nobody reads any more."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def _complain(text: str) -> None:
    print(f"bdpi: {text}", file=sys.stderr, flush=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        import bdpi

        _say(f"bdpi {bdpi.__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def _bdpi(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Sample-efficient reinforcement learning for Gymnasium environments with discrete or continuous actions.

    [bold]Try this first[/bold] (two minutes):

    $ bdpi train FrozenLake8x8-v1 --seed 1
    """
    if context.invoked_subcommand is None:
        help_text = context.get_help()  # with rich, this has printed it
        if help_text:
            _say(help_text)


@app.command()
def train(
    environment: Annotated[
        str | None,
        typer.Argument(
            metavar="ENV_ID",
            help="A Gymnasium id: CartPole-v1, Table-v0, or my_module:MyEnv-v0. bdpi envs lists some.",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which algorithm: bdpi, abcdqn, actor-mimic, bootstrapped-dqn, tabular-bdpi; or one to compare with: "
            "ppo, a2c, dqn, sac, td3, acktr, prioritized-dueling-dqn (these cannot be resumed).",
            show_default="bdpi",
        ),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Train for exactly so many episodes.", show_default="300")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Train for exactly so many steps instead.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="S", min=0, max=2**32 - 1, help="The same seed gives the same run.", show_default="0"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a hyper-parameter; may be repeated. A wrong name lists all of them.",
            show_default=False,
        ),
    ] = None,
    off_policy_noise: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            min=0.0,
            max=1.0,
            help="Replace each training action by a random one with this probability (the paper: 0.2, Table 0.05), and "
            "play a test episode without noise, that is not learned from, after each training episode.",
            show_default=False,
        ),
    ] = None,
    action_bits: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=24,
            help="Continuous actions: how many binary decisions find each number of an action.",
            show_default="6",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run folder; the default is runs/ENV_ID/AGENT-seedS-TIME."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run that was stopped, instead of a new one.")
    ] = None,
    offline: Annotated[
        Path | None,
        typer.Option(
            metavar="JOURNAL",
            help="Learn from a robot's journal, without any step; with ENV_ID, the agent is tried there afterwards.",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="With --offline: learn so often.", show_default="as many as there are transitions"
        ),
    ] = None,
) -> None:
    """Train an agent and keep everything about the run in one folder.

    The folder holds config.json, monitor.csv (one line an episode, as Stable-Baselines3 writes it), agent.zip,
    replay.npz, episode.json (where the current episode stands), curve.png, and policy.gif where the environment can
    draw itself. With --off-policy-noise, test.csv holds the test episodes, and the curve and the printed returns are
    theirs.

    Ctrl-C stops after the current step and saves everything; --resume goes on, in simulations exactly where it was.

    [bold]Examples[/bold]

    $ bdpi train FrozenLake8x8-v1

    $ bdpi train LunarLander-v3 --episodes 200 --seed 3

    $ bdpi train CartPole-v1 --steps 20000 --set n_critics=8 --set net_arch=[64,64] --set activation_fn=relu

    $ bdpi train FrozenLake8x8-v1 --agent abcdqn --off-policy-noise 0.2

    $ bdpi train Pendulum-v1 --episodes 100

    $ bdpi train my_robot:Docking-v0 --out runs/docking

    $ bdpi train --resume runs/docking --episodes 500

    $ bdpi train --offline robot.sqlite --epochs 2000 --out runs/from-journal
    """
    from bdpi.runs.errors import RunError

    if offline is not None:
        from bdpi.commands.offline import train_offline

        others = {"episodes": episodes, "steps": steps, "resume": resume, "off_policy_noise": off_policy_noise}
        train_offline(offline, environment, agent, seed, epochs, settings or (), action_bits, out, **others)
        return
    if epochs is not None:
        raise RunError("--epochs is for --offline JOURNAL: give --episodes or --steps instead")
    if episodes is not None and steps is not None:
        raise RunError("--episodes and --steps exclude each other: give one of them")
    if resume is not None:
        fixed = {
            "ENV_ID": environment,
            "--agent": agent,
            "--seed": seed,
            "--set": settings,
            "--off-policy-noise": off_policy_noise,
            "--action-bits": action_bits,
            "--out": out,
        }
        given = [name for name, value in fixed.items() if value not in (None, [])]
        if given:
            raise RunError(
                f"--resume goes on with what the run was started with: leave {' and '.join(given)} out "
                "(only --episodes or --steps may change)"
            )
    elif environment is None:
        raise RunError("which environment? For example: bdpi train CartPole-v1 (bdpi train --help tells more)")

    from bdpi.runs.build import agent_class
    from bdpi.runs.plan import DEFAULT_EPISODES, Plan
    from bdpi.runs.settings import parse_settings
    from bdpi.runs.signals import Stop
    from bdpi.runs.train import prepare, prepare_resumption

    stop = Stop()
    view = _view(stop)
    command = ["bdpi", *sys.argv[1:]]
    if resume is not None:
        session = prepare_resumption(resume, episodes=episodes, steps=steps, note=view.note, command=command)
    else:
        assert environment is not None
        agent = agent or "bdpi"
        hyperparameters, policy_kwargs = parse_settings(settings or (), agent_class(agent))
        if episodes is None and steps is None:
            episodes = DEFAULT_EPISODES
        plan = Plan(
            environment,
            agent,
            seed or 0,
            episodes,
            steps,
            hyperparameters,
            policy_kwargs,
            off_policy_noise=off_policy_noise,
            action_bits=action_bits,
        )
        session = prepare(plan, out, note=view.note, command=command)
    with stop.on_signals():
        outcome = session.run(view, stop.requested)
    _report(outcome)
    if outcome.status == "failed":
        raise typer.Exit(FAILED)
    if outcome.status == "interrupted":
        raise typer.Exit(stop.exit_status)


def _view(stop: Stop) -> Observer:
    """The live view, or plain lines where the output goes to a file, a pipe, or a terminal that cannot move about."""
    from rich.console import Console

    from bdpi.runs.live import PlainView, TerminalView

    console = Console()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        return TerminalView(console, stop.requested)
    return PlainView(sys.stdout, stop.requested)


def _program() -> str:
    """What to type to get this program again: its name, or its path where the shell would not find it."""
    import shutil

    called = Path(sys.argv[0])
    if called.name != "bdpi" or shutil.which("bdpi"):
        return "bdpi"
    here = Path.cwd()
    return shlex.quote(str(called.relative_to(here) if called.is_relative_to(here) else called))


def _report(outcome: Outcome) -> None:
    """Say how it went, where everything is, and what can be done next."""
    from bdpi.runs.text import duration, number

    folder, summary = outcome.folder, outcome.summary
    run = shlex.quote(str(folder.path))
    per_step = "" if summary.ms_per_step is None else f" ({summary.ms_per_step:.3g} ms per step)"
    _say()
    _say(
        f"{outcome.status.capitalize()}: {summary.episodes} episodes, {summary.steps} steps "
        f"in {duration(summary.seconds)}{per_step}"
    )
    if summary.mean_return is not None:
        kind = "test episodes" if summary.test_episodes else "episodes"
        _say(
            f"Mean return of the last {summary.last_episodes} {kind}: {number(summary.mean_return)}   "
            f"best moving average: {number(summary.best_average)}"
        )
    for name, path in (("curve", folder.curve), ("film", folder.film), ("agent", folder.agent)):
        if path.exists():
            _say(f"  {name:<6} {path}")
    if outcome.status == "finished":
        _say(f"Watch it:  {_program()} play {run}")
    else:
        _say(f"Go on:     {_program()} train --resume {run}")
    if outcome.error is not None:
        details = f" (all before it is saved; details: {folder.error})" if folder.error.exists() else ""
        _complain(f"{outcome.error}{details}")


@app.command()
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
    seed: Annotated[
        int, typer.Option(metavar="S", min=0, max=2**32 - 1, help="The same seed plays the same episodes.")
    ] = 0,
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

    from bdpi.runs.build import warnings_as_notes
    from bdpi.runs.episodes import Episode
    from bdpi.runs.play import play as play_run
    from bdpi.runs.text import number

    n_played = 0

    def show(episode: Episode) -> None:
        nonlocal n_played
        n_played += 1
        _say(f"episode {n_played}  return {number(episode.episode_return)}  steps {episode.length}")

    with warnings_as_notes(_say):
        played = play_run(
            folder, episodes, watch=watch, record=record, deterministic=not stochastic, seed=seed, on_episode=show
        )
    returns = [episode.episode_return for episode in played]
    _say(
        f"Return over {len(returns)} episodes: mean {number(sum(returns) / len(returns))}, "
        f"min {number(min(returns))}, max {number(max(returns))}"
    )
    if record is not None:
        _say(f"Film: {record}")


export.register(app)
journal.register(app)
tune.register(app)


class _ExecutorName(str, Enum):
    local = "local"
    processes = "processes"
    ray = "ray"
    population = "population"


@app.command()
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
    seeds: Annotated[int | None, typer.Option(metavar="N", min=1, help="So many runs of each series.")] = None,
    configs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="So many, where each run has another configuration.")
    ] = None,
    episodes: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most so many episodes.")] = None,
    executor: Annotated[
        _ExecutorName,
        typer.Option(help="Here, one run after the other; in processes; on a Ray cluster; together on a GPU."),
    ] = _ExecutorName.processes,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs at a time.", show_default="all cores")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of a running Ray cluster.", show_default="a new one here")
    ] = None,
    minutes: Annotated[float | None, typer.Option(metavar="M", min=0, help="Stop, resumable, after so long.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs are kept, in a folder per study.")] = Path(
        "runs"
    ),
) -> None:
    """Run a whole comparison: many seeds of many agents, on as many cores or machines as there are.

    Finished runs are never repeated, so the same command goes on where it was stopped, and a larger one (more seeds,
    more episodes) adds what is missing. A run that fails does not stop the others.

    [bold]Examples[/bold]

    $ bdpi study list

    $ bdpi study figure2 --env frozenlake --row algorithms --seeds 4

    $ bdpi study figure2 --only BDPI --only PPO --episodes 200 --minutes 30

    $ bdpi study robustness --configs 50 --episodes 200 --env CartPole-v1

    $ bdpi study my_study.yaml --executor ray --ray-address auto

    $ bdpi report runs/figure2
    """
    from bdpi.studies import load_study, study_names

    if name == "list":
        for known, title in study_names().items():
            whole = load_study(known)
            rows = ", ".join(dict.fromkeys(series.row for series in whole.series))
            _say(f"{known:<16} {title} (rows: {rows}; environments: {', '.join(whole.short_names)})")
        return

    import time

    from rich.console import Console

    from bdpi.runs.campaign import LiveTally, PlainTally, run_campaign
    from bdpi.runs.executors import make_executor
    from bdpi.runs.job import check_plans
    from bdpi.runs.signals import Stop
    from bdpi.runs.store import write_index

    part = load_study(name).smaller(
        environments=tuple(environment or ()),
        rows=tuple(row or ()),
        only=tuple(only or ()),
        seeds=seeds,
        configs=configs,
        episodes=episodes,
    )
    root = out.absolute()
    jobs = part.jobs(root)
    check_plans([job.plan for job in jobs])
    write_index(root / part.name, part.title, part.folders(root))
    stop = Stop()
    deadline = None if minutes is None else time.monotonic() + 60 * minutes

    def should_stop() -> bool:
        return stop.requested() or (deadline is not None and time.monotonic() > deadline)

    console = Console()
    live = sys.stdout.isatty() and not console.is_dumb_terminal
    with stop.on_signals(), LiveTally(console) if live else PlainTally(sys.stdout) as view:
        chosen = make_executor(executor.value, workers, ray_address)
        tally = run_campaign(jobs, chosen, should_stop, view.show, view.say)
    _say(tally.line())
    folder = shlex.quote(str(out / part.name))
    if len(tally.done) == len(jobs):
        _say(f"Draw it:   {_program()} report {folder}")
        return
    _say(f"Go on:     the same command again. So far: {_program()} report {folder}")
    raise typer.Exit(FAILED if tally.failed else stop.exit_status if stop.requested() else 0)


@app.command()
def report(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS", help="The folder of a study, or an archive of one.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write.", show_default="RUNS/report")] = None,
    archive: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also keep all episodes there, in a few small files that report can read."),
    ] = None,
) -> None:
    """Draw a study: figure (PNG, PDF), tables with intervals, and a page for the browser.

    [bold]Examples[/bold]

    $ bdpi report runs/figure2

    $ bdpi report runs/figure2 --archive results/figure2 --out results/figure2
    """
    from bdpi.report.write import write_report
    from bdpi.runs.errors import RunError
    from bdpi.runs.store import read_runs, write_archive

    title, found, problems = read_runs(runs)
    for problem in problems:
        _complain(f"left out: {problem}")
    if not any(len(run.returns) for run in found):
        raise RunError(f"{runs} has no episodes yet")
    if archive is not None:
        write_archive(archive, title, found)
    for path in write_report(found, out or runs / "report", title=title, command=shlex.join(["bdpi", *sys.argv[1:]])):
        _say(f"  {path}")


@app.command()
def envs() -> None:
    """List the environments of the paper, and what is changed by itself when an agent is trained on them."""
    from rich.console import Console
    from rich.table import Table

    from bdpi.runs.presets import ALWAYS, PRESETS

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("environment", "what it is", "changed by itself", "to install"):
        table.add_column(title, no_wrap=title == "environment")
    for environment, preset in PRESETS.items():
        table.add_row(environment, preset.what, preset.changes or "-", preset.install or "-")
    # In a file or a pipe, lines are not folded: somebody may want to search them.
    console = Console(width=None if sys.stdout.isatty() else 200, markup=False, highlight=False)
    with contextlib.suppress(OSError):
        console.print(table)
    for line in ("", *ALWAYS):
        _say(line)


@app.command()
def doctor() -> None:
    """Show versions, the native learner, the instruction set, threads, CUDA: what a bug report should contain."""
    from bdpi.runs.doctor import findings

    found = findings()
    width = max(len(name) for name, _ in found)
    for name, value in found:
        _say(f"{name:<{width}}  {value}")


def main() -> None:
    """The entry point of the ``bdpi`` command."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal or a pipe that knows no Unicode gets question marks, not an exception in the middle of a run.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app(prog_name="bdpi")


if __name__ == "__main__":
    main()
