"""Runs `journeyman demo`: provisioning, consolidation, a Spot interruption and scale to zero in a simulation.

The handlers, queues, rules and schedules are the deployed ones (template.yaml, infra/alibaba, infra/huawei); only the cluster,
the cloud and the clock are simulated. Each phase ends with a check: the demo fails if a pod does not run, or if a NodeClaim, an instance or a dead
letter remains at the end.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Final

import yaml
from msgspec import Struct, field
from rich.console import Console
from rich.table import Table

from journeyman.cli.console import standard_output
from journeyman.core.api.objects import NODE, NODECLAIM, POD, Pod, is_true
from journeyman.errors import JourneymanError
from journeyman_simulator.deployment_files import deployment_file
from journeyman_simulator.local_deployment import CloudFacts, LocalDeployment, LogLine
from journeyman_simulator.simulator_cli.timeline import Timeline
from journeyman_simulator.workload_controllers import DEPLOYMENT

BETWEEN_SWEEPS: Final = timedelta(seconds=20)
LARGEST_FUNCTION_GB: Final = 1769 / 1024  # template.yaml; some functions have less memory


class DemoCloud(Struct, frozen=True, kw_only=True):
    """How the demo runs on a cloud.

    Attributes:
        manifests: The examples with the cluster's NodePools, NodeClasses and workloads.
        start: When the demo starts, half an hour before its budget window opens.
        has_window: Whether the NodePool's budgets have a window.
        deploy: Returns the deployment, given the start and a receiver of log lines.
        patience: How long a phase may take, for consolidateAfter and budgets differ.
    """

    manifests: tuple[str, ...]
    start: datetime
    has_window: bool
    deploy: Callable[[datetime, Callable[[LogLine], None]], LocalDeployment]
    patience: timedelta

    @property
    def window_opens(self) -> datetime | None:
        """When the budget window opens; None without one."""
        return self.start + timedelta(minutes=30) if self.has_window else None


def _on_aws(start: datetime, on_log: Callable[[LogLine], None]) -> LocalDeployment:
    from journeyman_simulator.local_aws import LocalAwsDeployment

    return LocalAwsDeployment(start=start, on_log=on_log)


def _on_alibaba(start: datetime, on_log: Callable[[LogLine], None]) -> LocalDeployment:
    from journeyman_simulator.alibaba_account.local_alibaba import LocalAlibabaDeployment

    return LocalAlibabaDeployment(start=start, on_log=on_log)


def _on_huawei(start: datetime, on_log: Callable[[LogLine], None]) -> LocalDeployment:
    from journeyman_simulator.huawei_account.local_huawei import LocalHuaweiDeployment

    return LocalHuaweiDeployment(start=start, on_log=on_log)


CLOUDS: Final = {
    "aws": DemoCloud(
        manifests=("demo-cluster", "inflate", "cpu-burst"),
        start=datetime(2026, 3, 2, 21, 30, tzinfo=timezone.utc),
        has_window=True,  # it opens at 22:00
        deploy=_on_aws,
        patience=timedelta(minutes=15),
    ),
    "alibaba": DemoCloud(
        manifests=("alibaba-cluster", "inflate", "cpu-burst"),
        start=datetime(2026, 3, 2, 23, 30, tzinfo=timezone.utc),  # its budget forbids consolidation until midnight
        has_window=True,
        deploy=_on_alibaba,
        patience=timedelta(minutes=45),
    ),
    "huawei": DemoCloud(
        manifests=("huawei-cluster", "huawei-spot", "inflate"),  # the first, a published one, has cpu-burst
        start=datetime(2026, 3, 2, 21, 30, tzinfo=timezone.utc),
        has_window=False,
        deploy=_on_huawei,
        patience=timedelta(minutes=15),
    ),
}
"""The clouds by name, as `--cloud` has them."""


class DemoPhase(Struct, kw_only=True):
    """The figures of one phase of the demo, and its unmet expectations."""

    title: str
    pods: int = 0
    nodes: int = 0
    price_before: float = 0.0
    price_peak: float = 0.0  # before the budget window opens
    price_after: float = 0.0
    invocations: int = 0
    billed_ms: int = 0
    seconds_to_run: float | None = None
    problems: list[str] = field(default_factory=list)


class DemoScenario:
    """Runs the phases on an open deployment."""

    def __init__(self, cloud: DemoCloud, deployment: LocalDeployment, timeline: Timeline) -> None:
        self._cloud = cloud
        self._deployment = deployment
        self._timeline = timeline
        self.phases: list[DemoPhase] = []

    def run(self) -> None:
        """Run all phases. Raises WorldStuckError if the simulation cannot continue."""
        self._load_examples()
        self._first_pods()
        self._consolidate_in_window()
        self._spot_interruption()
        self._scale_to_zero()

    @property
    def problems(self) -> list[str]:
        """Return all unmet expectations."""
        return [problem for phase in self.phases for problem in phase.problems]

    def _load_examples(self) -> None:
        for name in self._cloud.manifests:
            self._deployment.server.load(
                yaml.safe_load_all(deployment_file("docs", "examples", f"{name}.yaml").read_text())
            )

    def _first_pods(self) -> None:
        self._deployment.world.run_for(
            BETWEEN_SWEEPS
        )  # so that the forwarder reports the pods before the sweep does, as is usual
        with self._phase("1. Ten pods on a cluster with no node") as phase:
            scaled_at = self._scale("inflate", 10)
            self._until_running("inflate", 10, within=timedelta(minutes=5))
            phase.seconds_to_run = (self._deployment.clock.now() - scaled_at).total_seconds()
            self._timeline.external_event(f"10 of 10 pods run after {phase.seconds_to_run:.0f} s")
            self._until_initialized()

    def _consolidate_in_window(self) -> None:
        opens = self._cloud.window_opens
        when = " when the window opens" if opens is not None else ""
        with self._phase(f"2. A burst ends; its node is replaced by a smaller one{when}") as phase:
            scaled_at = self._scale("cpu-burst", 10)
            self._until_running("cpu-burst", 10, within=timedelta(minutes=5))
            phase.seconds_to_run = (self._deployment.clock.now() - scaled_at).total_seconds()
            self._timeline.external_event(f"10 of 10 pods run after {phase.seconds_to_run:.0f} s")
            self._until_initialized()
            self._scale("cpu-burst", 5)
            self._until_running("cpu-burst", 5, within=timedelta(minutes=2))
            full = phase.price_peak = self._deployment.price_per_hour
            if opens is not None:
                self._deployment.world.run_for(opens - self._deployment.clock.now())
                if self._deployment.price_per_hour != full:
                    phase.problems.append("an underutilized node was disrupted while the budget forbade it")
                self._timeline.external_event(f"{opens:%H:%M}, the budget window opens")
            self._deployment.world.run_until(
                lambda: self._deployment.price_per_hour < full and self._is_settled(),
                within=self._cloud.patience,
                waiting_for="a cheaper fleet",
            )
            self._check_running(phase, {"inflate": 10, "cpu-burst": 5})

    def _spot_interruption(self) -> None:
        facts = self._deployment.facts
        with self._phase(f"3. {facts.reclaims}") as phase:
            node = self._busiest_spot_node()
            warned = self._deployment.clock.now()
            self._timeline.external_event(facts.spot_warning, node=node.rsplit("/", 1)[-1])
            self._deployment.interrupt(node)
            self._until_running("inflate", 10, within=facts.notice, not_on=node)
            phase.seconds_to_run = (self._deployment.clock.now() - warned).total_seconds()
            self._timeline.external_event(f"10 of 10 pods run elsewhere after {phase.seconds_to_run:.0f} s")
            self._deployment.world.run_until(
                lambda: self._is_settled() and not self._has_node(node),
                within=timedelta(minutes=10),
                waiting_for="the old node to be gone",
            )
            self._check_running(phase, {"inflate": 10, "cpu-burst": 5})

    def _scale_to_zero(self) -> None:
        with self._phase("4. All workloads scale to zero, and so does the price") as phase:
            self._scale("inflate", 0)
            self._scale("cpu-burst", 0)
            self._deployment.world.run_until(
                lambda: not self._deployment.leftovers() and self._is_settled(),
                within=self._cloud.patience,
                waiting_for="an empty cluster",
            )
            self._deployment.world.run_for(timedelta(minutes=2))  # nothing may be launched again
            phase.problems += [f"left over: {thing}" for thing in self._deployment.leftovers()]
            if self._deployment.price_per_hour:
                currency = self._deployment.facts.currency
                phase.problems.append(f"the price is {self._deployment.price_per_hour:.4f} {currency}/h, not 0")
            self._timeline.external_event("no nodes, no instances, nothing left over")

    @contextmanager
    def _phase(self, title: str) -> Iterator[DemoPhase]:
        self._timeline.phase(title)
        phase = DemoPhase(title=title, price_before=self._deployment.price_per_hour)
        self.phases.append(phase)
        runs, billed = self._bill()
        yield phase
        phase.price_after = self._deployment.price_per_hour
        phase.pods = sum(
            p.status.phase == "Running" and not _is_daemon(p) for p in self._deployment.server.list(POD).items
        )
        phase.nodes = len(self._deployment.server.list(NODE).items)
        runs_now, billed_now = self._bill()
        phase.invocations, phase.billed_ms = runs_now - runs, billed_now - billed

    def _bill(self) -> tuple[int, int]:
        executed = [i for function in self._deployment.functions for i in function.invocations]
        return len(executed), sum(i.billed_ms for i in executed)

    def _scale(self, name: str, replicas: int) -> datetime:
        before = self._deployment.server.get(DEPLOYMENT, name, namespace="default")["spec"]["replicas"]
        self._timeline.external_event(f"kubectl scale {name}: {before} → {replicas}")
        self._deployment.server.patch(DEPLOYMENT, name, {"spec": {"replicas": replicas}}, namespace="default")
        return self._deployment.clock.now()

    def _until_running(self, app: str, number: int, *, within: timedelta, not_on: str = "") -> None:
        lost = {n.metadata.name for n in self._deployment.server.list(NODE).items if n.spec.provider_id == not_on}

        def executed() -> bool:
            pods = self._pods(app)
            settled = [p for p in pods if p.status.phase == "Running" and p.spec.node_name not in lost]
            return len(pods) == len(settled) == number

        self._deployment.world.run_until(executed, within=within, waiting_for=f"{number} running pods of {app}")

    def _until_initialized(self) -> None:
        def executed() -> bool:
            return all(
                is_true(c.status.conditions, "Initialized") for c in self._deployment.server.list(NODECLAIM).items
            )

        self._deployment.world.run_until(executed, within=timedelta(minutes=5), waiting_for="initialized NodeClaims")

    def _has_node(self, provider_id: str) -> bool:
        return any(node.spec.provider_id == provider_id for node in self._deployment.server.list(NODE).items)

    def _is_settled(self) -> bool:
        """Whether all NodeClaims are initialized, all pods run, and none is terminating."""
        claims, pods = self._deployment.server.list(NODECLAIM).items, self._deployment.server.list(POD).items
        return all(
            c.metadata.deletion_timestamp is None and is_true(c.status.conditions, "Initialized") for c in claims
        ) and all(p.status.phase == "Running" and p.metadata.deletion_timestamp is None for p in pods)

    def _check_running(self, phase: DemoPhase, wanted: dict[str, int]) -> None:
        for app, number in wanted.items():
            running = sum(p.status.phase == "Running" for p in self._pods(app))
            if running != number:
                phase.problems.append(f"{running} of {number} pods of {app} run")

    def _pods(self, app: str) -> list[Pod]:
        return [p for p in self._deployment.server.list(POD).items if p.metadata.labels.get("app") == app]

    def _busiest_spot_node(self) -> str:
        """Return the provider id of the Spot node with the most pods."""
        nodes = [
            n
            for n in self._deployment.server.list(NODE).items
            if n.metadata.labels.get("karpenter.sh/capacity-type") == "spot"
        ]
        pods = self._pods("inflate")
        pods_per_node = {n.metadata.name: sum(p.spec.node_name == n.metadata.name for p in pods) for n in nodes}
        return max(nodes, key=lambda n: (pods_per_node[n.metadata.name], n.metadata.name)).spec.provider_id


def run_demo(cloud: str = "aws", *, quiet: bool = False, console: Console | None = None) -> int:
    """Run the demo and print its timeline.

    Args:
        cloud: A key of `CLOUDS`.
        quiet: Whether to print only the summary table.
        console: The console; standard output if None.

    Returns:
        The exit code: 0 if every pod ran and nothing is left over, else 1.
    """
    console = console or standard_output()
    started = time.monotonic()
    timelines: list[Timeline] = []

    def on_log(line: LogLine) -> None:
        for timeline in timelines:
            timeline.log_line(line)

    chosen = CLOUDS[cloud]
    deployment = chosen.deploy(chosen.start, on_log)
    facts = deployment.facts
    console.print(
        f"[bold]Journeyman[/bold]: the deployed {facts.functions} handlers on an in-memory cluster and a simulated "
        f"{facts.account} account, in virtual time.\n"
    )
    with ExitStack() as opened:
        with console.status(f"creating queues, rules and functions in a simulated {facts.account} account …"):
            opened.enter_context(deployment)
        timeline = Timeline(console, deployment.clock, _cached_price(deployment), currency=facts.currency, quiet=quiet)
        timelines.append(timeline)
        timeline.heading()
        scenario = DemoScenario(chosen, deployment, timeline)
        problems = _run(scenario)
    _print_summary(console, facts, scenario, problems, time.monotonic() - started)
    return 1 if problems else 0


def _run(scenario: DemoScenario) -> list[str]:
    """Run the phases and return the unmet expectations."""
    try:
        scenario.run()
    except JourneymanError as error:
        return [*scenario.problems, str(error)]
    return scenario.problems


def _cached_price(deployment: LocalDeployment) -> Callable[[], float]:
    """Return a function that returns the price, and reads the cloud once for each state of the cluster."""
    known: dict[tuple[str, datetime], float] = {}

    def price() -> float:
        key = (deployment.server.resource_version, deployment.clock.now())
        if key not in known:
            known.clear()
            known[key] = deployment.price_per_hour
        return known[key]

    return price


def _print_summary(
    console: Console, facts: CloudFacts, scenario: DemoScenario, problems: list[str], real_seconds: float
) -> None:
    table = Table(title="\nSummary", title_justify="left", padding=(0, 0, 0, 1))
    table.add_column("phase", min_width=20)
    price = f"{facts.currency}/h"
    for name in (
        "pods",
        "nodes",
        f"{price}\nbefore",
        f"{price}\nafter",
        "function\nruns",
        "billed\nms",
        "s until\nrunning",
    ):
        table.add_column(name, justify="right")
    for c in scenario.phases:
        until_running = "" if c.seconds_to_run is None else f"{c.seconds_to_run:.0f}"
        cells = (
            c.pods,
            c.nodes,
            f"{c.price_before:.4f}",
            f"{c.price_after:.4f}",
            c.invocations,
            c.billed_ms,
            until_running,
        )
        table.add_row(c.title, *map(str, cells))
    invocations, billed = sum(c.invocations for c in scenario.phases), sum(c.billed_ms for c in scenario.phases)
    table.add_section()
    table.add_row("all", "", "", "", "", str(invocations), str(billed), "")
    console.print(table)
    cost = billed / 1000 * LARGEST_FUNCTION_GB * facts.gigabyte_second + invocations * facts.request
    console.print(
        f"{invocations} function runs, billed {billed / 1000:.1f} s: at most {facts.currency} {cost:.5f} on {facts.functions}. "
        f"Simulated in {real_seconds:.0f} s with {_peak_memory_mb()} MB of memory."
    )
    for problem in problems:
        console.print(f"[red]✗ {problem}[/red]")
    if not problems:
        console.print("[green]✓ every pod ran, and nothing is left over[/green]")


def _peak_memory_mb() -> int:
    """Return this process's peak memory in MB; macOS reports bytes, Linux KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024**2 if sys.platform == "darwin" else 1024)


def _is_daemon(pod: Pod) -> bool:
    return any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)
