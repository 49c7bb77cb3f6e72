"""The `journeyman` command: `solve`, `explain`, `budgets`, and the commands that other packages contribute.

A package contributes commands as entry points of the group `journeyman.commands`: the name is the command's, the object a
function as typer takes it. Each command imports what it needs when it runs, so that `--help` is instant.
"""

from __future__ import annotations

from datetime import datetime, timezone
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Final

import typer

from journeyman import __version__
from journeyman.errors import JourneymanError

COMMANDS: Final = "journeyman.commands"
"""The entry point group of contributed commands."""

app = typer.Typer(
    name="journeyman",
    help="Serverless, Karpenter-compatible node autoscaler: plan, explain and replay its decisions.",
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Serverless, Karpenter-compatible node autoscaler: plan, explain and replay its decisions."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


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
        typer.Option(
            "--rules", help="Also plan without each kind of rule in turn, to show what the rule costs per hour."
        ),
    ] = False,
) -> None:
    """Schedule the pods of scenario files and print the plan and its price.

    A scenario holds instance types with their offerings (instanceTypes), a cluster
    (objects, as Kubernetes has them) and options. For each file the command prints
    one line of JSON: the nodes to launch (nodeClaims), the pods for existing nodes
    (existing), why each unschedulable pod does not fit (errors) and the smallest
    change that would let it (smallestChanges), the price per hour, the lower bound
    that no plan can undercut, and the gap between the two.
    """
    from journeyman.cli.solve import solve as solve_files
    from journeyman.runtime.collector import collect_rarely

    collect_rarely()
    solve_files(files, rules=rules)


explain = typer.Typer(help="Explain decisions.", no_args_is_help=True)
app.add_typer(explain, name="explain")


@explain.command()
def node(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the Node, or of its NodeClaim.")],
    scenario: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A scenario file to examine instead of a cluster."),
    ] = None,
    kubeconfig: Annotated[str, typer.Option(help="The kubeconfig; by default KUBECONFIG, then ~/.kube/config.")] = "",
    context: Annotated[str, typer.Option(help="The kubeconfig's context; by default the current one.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON, without the tables.")] = False,
) -> None:
    """Print why a node stays, and the smallest change that would free it.

    On a cluster the reason is the condition Disruptable of its NodeClaim, which
    consolidate keeps up to date. The pods that would have to move, what protects
    them, and the budgets are shown as they are now. Nothing is written. For a
    scenario file, the plan that places the pods without the node is shown, too.
    """
    import json

    from journeyman.cli.console import standard_output
    from journeyman.cli.explain import explain_in_cluster, explain_in_scenario, print_explanation

    if scenario is not None:
        found = explain_in_scenario(scenario, name)
    else:
        from journeyman.kube.access.kubeconfig import from_kubeconfig
        from journeyman.kube.http_store import HttpKubeStore
        from journeyman.kube.transport import Transport
        from journeyman.runtime.adapters import SystemClock

        store = HttpKubeStore(Transport(from_kubeconfig(kubeconfig, context)))
        found = explain_in_cluster(store, name, SystemClock().now())
    if as_json:
        print(json.dumps(found[1].as_data()))
    else:
        print_explanation(standard_output(), *found)


@app.command()
def budgets(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Manifests with NodePools and CapacityBuffers; without any, the cluster of the kubeconfig is read.",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("--next", min=1, max=1000, help="How many openings and closings to print.")
    ] = 10,
    at: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"],
            help="The time to print for, in UTC unless it says otherwise; now by default.",
        ),
    ] = None,
    kubeconfig: Annotated[
        str, typer.Option(help="The kubeconfig to use instead of KUBECONFIG or ~/.kube/config.")
    ] = "",
    context: Annotated[str, typer.Option(help="The kubeconfig's context; the current one by default.")] = "",
) -> None:
    """Print which windows are open now, and which open or close next.

    Windows are those of disruption budgets with a schedule, of hibernation
    (journeyman.dev/hibernate on a NodePool) and of reserved capacity
    (journeyman.dev/active on a CapacityBuffer). Times are local to the time zone
    of each object (journeyman.dev/time-zone). Windows that are invalid are listed
    last, with the reason.
    """
    from rich.console import Console

    from journeyman.cli.window_tables import print_budgets, read_cluster, read_manifests
    from journeyman.runtime.adapters import SystemClock

    if files:
        objects = read_manifests(files)
    else:
        from journeyman.kube.access.kubeconfig import from_kubeconfig
        from journeyman.kube.http_store import HttpKubeStore
        from journeyman.kube.transport import Transport

        connection = from_kubeconfig(kubeconfig, context)
        objects = read_cluster(HttpKubeStore(Transport(connection, cluster=context or "the current context")))
    now = at or SystemClock().now()
    print_budgets(objects, now if now.tzinfo is not None else now.replace(tzinfo=timezone.utc), count, Console())


def main() -> None:
    """Run the command in this process's arguments; print a JourneymanError as one line instead of a traceback."""
    add_contributed_commands()
    try:
        app()
    except JourneymanError as error:
        typer.secho(f"journeyman: {_error_text(error)}", fg="red", err=True)
        raise SystemExit(1) from error


def add_contributed_commands() -> None:
    """Register the commands that installed packages contribute, by name."""
    for command in sorted(entry_points(group=COMMANDS), key=lambda entry: entry.name):
        app.command(name=command.name)(command.load())


def _error_text(error: JourneymanError) -> str:
    """Return the error's message, the context that the message lacks, and on a second line what to do."""
    fields = {key: value for key, value in error.context.items() if key != "to_do" and value}
    context = ", ".join(f"{key}={value}" for key, value in fields.items() if str(value) not in error.message)
    to_do = f"\nto do: {error.context['to_do']}" if error.context.get("to_do") else ""
    return f"{error.message}{f' ({context})' if context else ''}{to_do}"
