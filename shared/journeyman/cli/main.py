"""The `journeyman` command. Each command imports what it needs when it runs, so that `--help` is instant."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from journeyman import __version__
from journeyman.errors import JourneymanError

app = typer.Typer(
    name="journeyman",
    help="Karpenter without the workshop: decide, explain and replay what a node autoscaler would do.",
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Karpenter without the workshop."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command()
def demo(
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the closing table.")] = False,
) -> None:
    """Run the main job on a simulated cluster and cloud, through the real AWS Lambda handlers."""
    _leave_own_account()
    from journeyman_simulator.cli.demo import run_demo

    raise typer.Exit(run_demo(quiet=quiet))


@app.command()
def solve(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, help="Scenario files; see docs/examples/scenario.json."
        ),
    ],
    rules: Annotated[
        bool,
        typer.Option("--rules", help="Also plan without each kind of rule in turn, to tell what it costs per hour."),
    ] = False,
) -> None:
    """Ask the scheduler alone where the pods of scenario files go, and at what price.

    A scenario holds what can be bought (instanceTypes), a cluster (objects, as
    Kubernetes has them) and options. The answer is a line of JSON for each file:
    nodes to open (nodeClaims) and pods for those that exist (existing); for each
    pod left over why (errors), and what would help (smallestChanges); the price
    per hour, the bound that no plan can undercut, and the gap between the two.
    """
    from journeyman.cli.solve import solve as solve_files
    from journeyman.runtime.collector import collect_rarely

    collect_rarely()
    solve_files(files, rules=rules)


@app.command()
def replay(
    events: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="Recorded events (JSON).")],
    cluster: Annotated[
        Path, typer.Option(exists=True, help="Cluster as Kubernetes YAML: a file, or a folder of files.")
    ],
    aws: Annotated[
        str,
        typer.Option(
            envvar="AWS_ENDPOINT_URL",
            help="'moto' (built in), or a LocalStack-compatible endpoint such as http://localhost:4566.",
        ),
    ] = "moto",
) -> None:
    """Feed recorded events to the real handlers on a recorded cluster; show the decisions and every write."""
    _leave_own_account()
    from journeyman_simulator.cli.replay import run_replay

    raise typer.Exit(run_replay(events, cluster, aws))


@app.command()
def journeyman_simulator(
    *,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which story.")] = 0,
    story: Annotated[
        Path | None, typer.Option("--story", exists=True, dir_okay=False, help="A story that was kept, instead.")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Many at once, first..last: only what breaks is told.")] = "",
    shrink: Annotated[bool, typer.Option("--shrink", help="Shorten a story that breaks a rule, and keep it.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the story and the verdict.")] = False,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="With --seeds: fail if some call was never the last before a death.")
    ] = False,
) -> None:
    """Tell a story in which everything goes wrong that can, and judge whether all promises were kept."""
    _leave_own_account()
    from journeyman_simulator.cli.faults import run_hunt, run_story

    raise typer.Exit(
        run_hunt(seeds, everywhere=everywhere) if seeds else run_story(seed, story, shrink=shrink, quiet=quiet)
    )


def main() -> None:
    """Entry point that turns our own errors into readable lines."""
    try:
        app()
    except JourneymanError as error:
        typer.secho(f"journeyman: {_for_a_person(error)}", fg="red", err=True)
        raise SystemExit(1) from error


def _for_a_person(error: JourneymanError) -> str:
    """The message, the facts that it does not hold already, and on a line of its own what to do."""
    facts = {key: value for key, value in error.context.items() if key != "to_do" and value}
    told = ", ".join(f"{key}={value}" for key, value in facts.items() if str(value) not in error.message)
    to_do = f"\nto do: {error.context['to_do']}" if error.context.get("to_do") else ""
    return f"{error.message}{f' ({told})' if told else ''}{to_do}"


def _leave_own_account() -> None:
    """Forget the person's own AWS settings: boto3 would look for their profile, and these commands have an account of their own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
