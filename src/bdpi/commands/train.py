"""``bdpi train``: one run."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdpi.commands.console import FAILED, Log, complain, program, say
from bdpi.commands.serve import need_server

if TYPE_CHECKING:
    from bdpi.runs.progress import Observer
    from bdpi.runs.session import Outcome, Session
    from bdpi.runs.signals import Stop

_PORT = 8088  # of the live page, as of bdpi serve
#: Parameters of :func:`train` that go with one of it.
_WITH_RESUME = {"resume", "episodes", "steps", "log", "watch", "port", "trust"}
_WITH_OFFLINE = {"offline", "environment", "agent", "seed", "epochs", "settings", "action_bits", "env_kwargs"}
_WITH_OFFLINE |= {"wrapper", "out", "log", "port", "trust"}
#: How they are called, where it is not by their own name.
_OPTIONS = {"environment": "ENV_ID", "settings": "--set"}


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
            help="Which algorithm: bdpi, abcdqn, actor-mimic, bootstrapped-dqn, tabular-bdpi; with the settings of the "
            "paper: bdpi-paper, abcdqn-paper, actor-mimic-paper, bdpi-code, abcdqn-code, actor-mimic-code, "
            "bootstrapped-dqn-code (-code: of its published program); or one to compare with: ppo, a2c, dqn, sac, td3, "
            "acktr, acer, prioritized-dueling-dqn (these cannot be resumed).",
            show_default="bdpi",
        ),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of episodes.", show_default="300")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of steps, instead of --episodes.")
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
    env_kwargs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:VALUE",
            help="An argument of the environment, such as is_slippery:False, or several as JSON; may be repeated.",
            show_default=False,
        ),
    ] = None,
    wrapper: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:CLASS",
            help="Put a gymnasium.Wrapper around the environment, such as gymnasium.wrappers:FlattenObservation; may "
            "be repeated, the innermost first. The returns are those that come out of it.",
            show_default=False,
        ),
    ] = None,
    n_envs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Step so many environments together. Steps are counted over all of them, and each is learned from as "
            "often as with one; the last one may end a few episodes more.",
            show_default="1",
        ),
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Every N steps, play the same few episodes with the most probable actions, without learning from "
            "them, and keep the agent with the best mean return so far as best.zip.",
            show_default="never",
        ),
    ] = None,
    eval_episodes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Episodes of each evaluation of --eval-every.", show_default="5"),
    ] = None,
    film_every: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Every N episodes, film one with the most probable actions: policy-N.gif.",
            show_default="never",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run folder; the default is runs/ENV_ID/AGENT-seedS-TIME."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Continue a run that was stopped.")] = None,
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
            metavar="N",
            min=1,
            help="With --offline: number of epochs.",
            show_default="as many as there are transitions",
        ),
    ] = None,
    log: Log = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Show the run in a browser, on a live page that this machine alone can open; implies --log csv.",
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=65535, help="Of --watch; 0: any that is free.", show_default="8088"),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="With --resume: do what the run's config.json says outside its folder: import the modules of its "
            "environment and its wrappers, write its journal and its autosave, log to its services (as --log does).",
        ),
    ] = False,
) -> None:
    """Train an agent and keep everything about the run in one folder.

    The folder holds config.json, monitor.csv (one line an episode, as Stable-Baselines3 writes it), agent.zip,
    replay.npz, episode.json (where the current episode stands), curve.png, and policy.gif where the environment can
    draw itself. With --off-policy-noise, test.csv holds the test episodes, and the curve and the printed returns are
    theirs. With --eval-every, eval.csv holds the episodes of each evaluation, and best.zip the best agent (bdpi play
    RUN --best). With --watch or --log csv, progress.csv holds what bdpi report RUN draws of how it learned.

    Ctrl-C stops after the current step and saves everything; --resume continues, in simulations exactly where it was.

    [bold]Examples[/bold]

    $ bdpi train FrozenLake8x8-v1

    $ bdpi train LunarLander-v3 --episodes 200 --seed 3

    $ bdpi train CartPole-v1 --steps 20000 --set n_critics=8 --set net_arch=[64,64] --set activation_fn=relu

    $ bdpi train FrozenLake8x8-v1 --agent abcdqn --off-policy-noise 0.2

    $ bdpi train Pendulum-v1 --episodes 100

    $ bdpi train my_robot:Docking-v0 --out runs/docking

    $ bdpi train FrozenLake-v1 --env-kwargs is_slippery:False --env-kwargs map_name:8x8

    $ bdpi train CartPole-v1 --steps 20000 --n-envs 4 --eval-every 2000 --film-every 50

    $ bdpi train minigrid:MiniGrid-Empty-5x5-v0 --wrapper minigrid.wrappers:FlatObsWrapper

    $ bdpi train --resume runs/docking --episodes 500

    $ bdpi train CartPole-v1 --log tensorboard,csv

    $ bdpi train LunarLander-v3 --watch

    $ bdpi train --offline robot.sqlite --epochs 2000 --out runs/from-journal
    """
    given = {name: value for name, value in locals().items() if value not in (None, []) and value is not False}

    from bdpi.runs.errors import RunError
    from bdpi.runs.settings import parse_env_kwargs, parse_settings

    if eval_episodes is not None and eval_every is None and resume is None and offline is None:
        raise RunError("--eval-episodes is for --eval-every N: give both, or leave it out")
    if port is not None and not watch:
        raise RunError("--port is for --watch: give both, or leave it out")
    if offline is not None:
        from bdpi.commands.offline import train_offline

        if others := _others(given, _WITH_OFFLINE):
            raise RunError(f"--offline learns without any environment step: leave {others} out")
        made = {"env_kwargs": parse_env_kwargs(env_kwargs or ()), "wrappers": wrapper or []}
        train_offline(offline, environment, agent, seed, epochs, settings or (), action_bits, made, out, log)
        return
    if epochs is not None:
        raise RunError("--epochs is for --offline JOURNAL: give --episodes or --steps instead")
    if episodes is not None and steps is not None:
        raise RunError("--episodes and --steps exclude each other: give one of them")
    if resume is not None:
        if others := _others(given, _WITH_RESUME):
            raise RunError(
                f"--resume continues with the settings of the run: leave {others} out "
                "(only --episodes or --steps may change)"
            )
    elif environment is None:
        raise RunError("which environment? For example: bdpi train CartPole-v1 (bdpi train --help tells more)")

    from bdpi.runs.build import agent_class
    from bdpi.runs.config import DEFAULT_EPISODES, RunConfig
    from bdpi.runs.logs import log_to, services_of
    from bdpi.runs.signals import Stop
    from bdpi.runs.train import prepare, prepare_resumption
    from bdpi.runs.trust import option_for

    services = services_of([*(log or ()), *(["csv"] if watch else [])])
    stop = Stop()
    view = _view(stop)
    command = ["bdpi", *sys.argv[1:]]
    if resume is not None:
        session = prepare_resumption(
            resume, episodes=episodes, steps=steps, note=view.note, command=command, trust=trust, log=services
        )
    else:
        assert environment is not None
        agent = agent or "bdpi"
        hyperparameters, policy_kwargs = parse_settings(settings or (), agent_class(agent))
        if episodes is None and steps is None:
            episodes = DEFAULT_EPISODES
        config = RunConfig(
            environment=environment,
            agent=agent,
            seed=seed or 0,
            episodes=episodes,
            steps=steps,
            hyperparameters=hyperparameters,
            policy_kwargs=policy_kwargs,
            off_policy_noise=off_policy_noise,
            action_bits=action_bits,
            env_kwargs=parse_env_kwargs(env_kwargs or ()),
            wrappers=wrapper or [],
            n_envs=n_envs or 1,
            eval_every=eval_every,
            eval_episodes=eval_episodes or RunConfig.model_fields["eval_episodes"].default,
            film_every=film_every,
        )
        session = prepare(config, out, note=view.note, command=command)
    log_to(session.status, services)
    with _page(session, watch, port, view), stop.on_signals():
        outcome = session.run(view, stop.requested)
    _report(outcome, option_for(session.config))
    if outcome.status == "failed":
        raise typer.Exit(FAILED)
    if outcome.status == "interrupted":
        raise typer.Exit(stop.exit_status)


def _others(given: Iterable[str], wanted: set[str]) -> str:
    """The options that are given beside those that are wanted."""
    return " and ".join(_OPTIONS.get(name, f"--{name.replace('_', '-')}") for name in given if name not in wanted)


@contextlib.contextmanager
def _page(session: Session, watch: bool, port: int | None, view: Observer) -> Iterator[None]:
    """The live page while this lasts, where it is wanted."""
    if not watch:
        yield
        return
    need_server("--watch")
    from bdpi.serve.watch import watched

    with watched(session, _PORT if port is None else port) as address:
        view.note(f"Live page: {address}")
        yield


def _view(stop: Stop) -> Observer:
    """The live view, or plain lines where the output goes to a file, a pipe, or a terminal that cannot move about."""
    from rich.console import Console

    from bdpi.runs.live import PlainView, TerminalView

    console = Console()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        return TerminalView(console, stop.requested)
    return PlainView(sys.stdout, stop.requested)


def _report(outcome: Outcome, trust: str) -> None:
    """Say how it went, where everything is, and what can be done next.

    :param trust: an option that this needs
    """
    from bdpi.runs.formatting import duration, number

    folder, summary = outcome.folder, outcome.summary
    run = shlex.quote(str(folder.path))
    per_step = "" if summary.ms_per_step is None else f" ({summary.ms_per_step:.3g} ms per step)"
    say()
    say(
        f"{outcome.status.capitalize()}: {summary.episodes} episodes, {summary.steps} steps "
        f"in {duration(summary.seconds)}{per_step}"
    )
    if summary.mean_return is not None:
        kind = "test episodes" if summary.test_episodes else "episodes"
        say(
            f"Mean return of the last {summary.last_episodes} {kind}: {number(summary.mean_return)}   "
            f"best moving average: {number(summary.best_average)}"
        )
    if outcome.findings:
        say("Why it may not learn:")
        for finding in outcome.findings:
            say(f"  {finding.message}")
            say(f"    {finding.remedy}")
    for name, path in (("curve", folder.curve), ("film", folder.film), ("agent", folder.agent), ("best", folder.best)):
        if path.exists():
            say(f"  {name:<6} {path}")
    if outcome.status == "finished":
        say(f"Watch it:  {program()} play {run}{trust}")
    else:
        say(f"Go on:     {program()} train --resume {run}{trust}")
    if outcome.error is not None:
        details = f" (all before it is saved; details: {folder.error})" if folder.error.exists() else ""
        complain(f"{outcome.error}{details}")
