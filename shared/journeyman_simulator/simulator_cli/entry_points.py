"""Commands that the simulator adds to `journeyman`: `demo`, `replay` and `faults`.

pyproject.toml lists them in the entry point group `journeyman.commands`. Each imports its modules when it runs.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import typer


class Cloud(str, Enum):
    """The clouds that the simulator has."""

    AWS = "aws"
    ALIBABA = "alibaba"
    HUAWEI = "huawei"


def demo(
    cloud: Annotated[Cloud, typer.Option("--cloud", envvar="CLOUD", help="The simulated cloud.")] = Cloud.AWS,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the summary table.")] = False,
) -> None:
    """Run the deployed handlers through a day of a simulated cluster and cloud account."""
    _remove_aws_settings()
    from journeyman_simulator.simulator_cli.demo_command import run_demo

    raise typer.Exit(run_demo(cloud.value, quiet=quiet))


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
    """Pass recorded events to the deployed handlers on a recorded cluster; print each decision and each write."""
    _remove_aws_settings()
    from journeyman_simulator.simulator_cli.replay_command import run_replay

    raise typer.Exit(run_replay(events, cluster, aws))


def faults(
    *,
    cloud: Annotated[Cloud, typer.Option("--cloud", envvar="CLOUD", help="The simulated cloud.")] = Cloud.AWS,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Run the scenario of this seed.")] = 0,
    scenario: Annotated[
        Path | None,
        typer.Option("--scenario", exists=True, dir_okay=False, help="Run a saved scenario instead of a seed's."),
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", help="Run the scenarios of many seeds, first..last; print violations only.")
    ] = "",
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Reduce a scenario that violates an invariant, and save it.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the scenario and the result.")] = False,
    require_crash_coverage: Annotated[
        bool,
        typer.Option(
            "--require-crash-coverage", help="With --seeds: fail if no process crashed at one of the API calls."
        ),
    ] = False,
) -> None:
    """Run a scenario with injected faults (crashes, lost messages, node failures) and check the invariants."""
    _remove_aws_settings()
    from journeyman_simulator.simulator_cli.faults_command import run_scenario, run_seeds

    name: Literal["aws", "alibaba", "huawei"] = cloud.value
    raise typer.Exit(
        run_seeds(seeds, cloud=name, require_crash_coverage=require_crash_coverage)
        if seeds
        else run_scenario(seed, scenario, cloud=name, shrink=shrink, quiet=quiet)
    )


def _remove_aws_settings() -> None:
    """Remove the user's AWS settings from this process's environment, since the account is simulated."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
