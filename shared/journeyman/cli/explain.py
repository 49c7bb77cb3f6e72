"""`journeyman explain node NAME`: why a node stays, the smallest change that would free it, its pods and its budgets.

On a cluster the reason is the condition `Disruptable`, which consolidate writes on the NodeClaim; the command only reads. For a
scenario file it evaluates the disruption methods itself, and also shows who places the pods without the node: the plan that the
scheduler chooses then, and by how much its rivals lose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from journeyman.cli.scenario import read_scenario
from journeyman.cli.solve import options_of
from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTABLE, format_time
from journeyman.core.api.model import parse
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODE, NODE_DISRUPTION, NODECLAIM, NODEPOOL, PDB, POD, condition_of
from journeyman.core.api.resources import CPU, MEMORY, format_amount, pod_requests
from journeyman.core.api.wording import counted
from journeyman.core.catalogue import Catalogue, price_of
from journeyman.core.disruption.budgets import UNLIMITED, budget_status
from journeyman.core.disruption.candidates import DisruptionReason, NodePoolName
from journeyman.core.disruption.circuit_breaker import CircuitBreaker
from journeyman.core.disruption.commands import marked_for_deletion
from journeyman.core.disruption.consolidatable import assess_consolidatable
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.scheduling.results import ChosenPlan, PlanSummary
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.pod_predicates import is_disruptable, is_reschedulable, preventing_pdbs
from journeyman.errors import ConfigurationError, InvalidObjectError
from journeyman.ports import KubeStore

_BUDGET_REASONS: Final = (DisruptionReason.EMPTY, DisruptionReason.UNDERUTILIZED, DisruptionReason.DRIFTED)


class NodeExplanation(Struct, frozen=True, kw_only=True):
    """What is known about one node: the reason for which it stays, or the command that disrupts it; either may be empty.

    `price` is per hour, None if it is unknown. `since` is when the reason was first written, None if that is unknown.
    `chosen_plan` places the pods without the node; None if nothing was simulated, or no pods need another node.
    """

    node: StateNode
    reason: str = ""
    message: str = ""
    since: datetime | None = None
    command: str = ""
    price: float | None = None
    chosen_plan: ChosenPlan | None = None

    def as_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "node": self.node.name,
            "nodeClaim": _claim_name(self.node),
            "reason": self.reason,
            "message": self.message,
            "since": format_time(self.since) if self.since is not None else None,
            "command": self.command,
            "pricePerHour": self.price,
            "chosenPlan": self.chosen_plan.as_data() if self.chosen_plan is not None else None,
        }


def explain_in_scenario(path: Path, name: str) -> tuple[Snapshot, NodeExplanation]:
    """Return the cluster of a scenario file, and the explanation of a node, named by Node or NodeClaim.

    Raises:
        ConfigurationError: The file is no scenario, or has no such node.
    """
    scenario = read_scenario(path)
    snapshot, catalogue = scenario.snapshot, scenario.catalogue
    node = _node_named(snapshot, name)
    controller = DisruptionController(
        snapshot,
        catalogue,
        assess_consolidatable(snapshot),
        spot_to_spot=bool(scenario.options.get("spotToSpotConsolidation")),
        options=options_of(scenario),
    )
    commands = [command for evaluation in controller.evaluate_methods() for command in evaluation.commands]
    claim = _claim_name(node)
    found = next((c for c in commands if any(candidate.nodeclaim == claim for candidate in c.candidates)), None)
    stays = next((one for one in controller.why_nodes_stay() if one.nodeclaim == claim), None)
    explanation = NodeExplanation(
        node=node, price=_price(node, catalogue), chosen_plan=_plan_without(controller, claim)
    )
    if found is not None:
        text = f"{found.decision.value} ({found.reason.value}), saving {found.saving:.4f} per hour"
        return snapshot, replace(explanation, command=text)
    if stays is not None:
        return snapshot, replace(explanation, reason=stays.blocked.reason, message=stays.message)
    return snapshot, explanation


def _plan_without(controller: DisruptionController, claim: str) -> ChosenPlan | None:
    """Return the plan for the pods if this NodeClaim is deleted; None if no disruption method considers it."""
    eligible = (candidate for examined in controller.eligible().values() for candidate in examined.candidates)
    candidate = next((candidate for candidate in eligible if candidate.nodeclaim == claim), None)
    return controller.simulation.without((candidate,)).results.chosen_plan if candidate is not None else None


def explain_in_cluster(store: KubeStore, name: str, now: datetime) -> tuple[Snapshot, NodeExplanation]:
    """Return the cluster as far as the explanation needs it, and the explanation of a node, named by Node or NodeClaim.

    Raises:
        ConfigurationError: The cluster has no such node.
        KubeAPIError: The API server did not answer, or does not allow the reads.
    """
    snapshot = Snapshot(
        cluster="",
        now=now,
        node_pools=tuple(_parsed(store.list(NODEPOOL).items, NodePool)),
        claims=store.list(NODECLAIM).items,
        nodes=store.list(NODE).items,
        pods=store.list(POD).items,
        pdbs=store.list(PDB).items,
        node_disruptions=tuple(_parsed(store.list(NODE_DISRUPTION).items, NodeDisruption)),
    )
    node = _node_named(snapshot, name)
    command = next((d for d in snapshot.node_disruptions if not d.finished and _claim_name(node) in d.claims), None)
    if command is not None:
        text = f"{command.metadata.name}, {command.status.phase}: {command.spec.explanation}"
        return snapshot, NodeExplanation(node=node, command=text)
    stored = condition_of(node.conditions, DISRUPTABLE)
    if stored is None or stored.status != "False":
        return snapshot, NodeExplanation(node=node)
    explanation = NodeExplanation(
        node=node, reason=stored.reason, message=stored.message, since=stored.last_transition_time
    )
    return snapshot, explanation


def print_explanation(console: Console, snapshot: Snapshot, explanation: NodeExplanation) -> None:
    """Print the explanation with the node's pods, its NodePool's budgets, and a pause."""
    node = explanation.node
    values = (node.labels.get(key, "") for key in (labels.INSTANCE_TYPE, labels.CAPACITY_TYPE, labels.ZONE))
    offering = " ".join(value for value in values if value)
    price = "" if explanation.price is None else f", {explanation.price:.4f} per hour"
    console.print(f"[bold]Node {escape(node.name)}[/bold]  NodeClaim {escape(_claim_name(node) or 'none')}")
    console.print(
        f"  NodePool {escape(node.node_pool or 'none')}, {escape(offering or 'instance type unknown')}{price}"
    )
    console.print()
    for line in _reason_lines(explanation):
        console.print(line, soft_wrap=True)
    if explanation.chosen_plan is not None:
        for line in _plan_lines(explanation.chosen_plan):
            console.print(line, soft_wrap=True)
    breaker = CircuitBreaker.of(snapshot)
    for why in filter(None, (breaker.why_paused(node.node_pool), breaker.why_no_replacement(node.node_pool))):
        console.print(f"[bold]Paused[/bold]  {escape(why)}", soft_wrap=True)
    for table in (_budgets(snapshot, node.node_pool), _pods(snapshot, node)):
        console.print()
        console.print(table)


def _reason_lines(explanation: NodeExplanation) -> Iterator[str]:
    if explanation.command:
        yield f"[bold]Is disrupted[/bold]  {escape(explanation.command)}"
    elif explanation.reason:
        why, _, change = explanation.message.partition(". Smallest change: ")
        since = f", since {format_time(explanation.since)}" if explanation.since is not None else ""
        yield f"[bold]Stays[/bold]  {escape(explanation.reason)}{since}"
        yield f"  {escape(why)}"
        yield f"[bold]Smallest change[/bold]  {escape(change or 'none; it waits')}"
    elif explanation.node.claim is None:
        yield "[bold]Stays[/bold]  No NodeClaim owns it, so no disruption method considers it."
    else:
        yield "[bold]No reason is known[/bold]  Consolidate has not examined the node yet, or is about to disrupt it."


def _plan_lines(chosen: ChosenPlan) -> Iterator[str]:
    yield f"[bold]Pods without it[/bold]  {chosen.plan.proposer}: {_comes_to(chosen.plan)}"
    for rival in chosen.rivals:
        pods, nodes = rival.unschedulable - chosen.plan.unschedulable, rival.nodes - chosen.plan.nodes
        price = rival.price - chosen.plan.price
        differences = (
            (pods, counted(abs(pods), "unschedulable pod")),
            (price, f"{abs(price):.4f} per hour"),
            (nodes, counted(abs(nodes), "node")),
        )
        texts = (f"{text} {'more' if amount > 0 else 'less'}" for amount, text in differences if round(amount, 4))
        yield f"  {rival.proposer}: {', '.join(texts) or 'the same'}"


def _comes_to(plan: PlanSummary) -> str:
    left = f", {counted(plan.unschedulable, 'unschedulable pod')}" if plan.unschedulable else ""
    return f"{counted(plan.nodes, 'new node')}, {plan.price:.4f} per hour{left}"


def _budgets(snapshot: Snapshot, node_pool: str) -> Table:
    table = _table("budgets for reason", "allowed", "disrupted or not ready", "nodes")
    marked = marked_for_deletion(snapshot)
    for reason in _BUDGET_REASONS:
        status = budget_status(snapshot, reason, marked).get(NodePoolName(node_pool))
        if status is not None:
            allowed = "unlimited" if status.allowed == UNLIMITED else str(status.allowed)
            table.add_row(reason.value, allowed, str(status.disrupting), str(status.total))
    return table


def _pods(snapshot: Snapshot, node: StateNode) -> Table:
    """Return the pods that must be rescheduled, and what protects each."""
    table = _table("pod", "cpu", "memory", "protected by")
    for pod in node.pods:
        if not is_reschedulable(pod):
            continue
        requests = pod_requests(pod)
        amounts = (format_amount(name, requests.get(name, 0)) for name in (CPU, MEMORY))
        protectors = [f"PodDisruptionBudget {name}" for name in preventing_pdbs(pod, snapshot.pdbs, snapshot.now)]
        if not is_disruptable(pod, snapshot.now):
            protectors.append(labels.DO_NOT_DISRUPT)
        table.add_row(escape(pod.key), *amounts, escape(", ".join(protectors)))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _node_named(snapshot: Snapshot, name: str) -> StateNode:
    node = next((n for n in snapshot.state_nodes if name in (n.name, _claim_name(n))), None)
    if node is None:
        raise ConfigurationError(
            f"there is no Node or NodeClaim {name}", to_do="kubectl get nodeclaims -o wide lists both names"
        )
    return node


def _claim_name(node: StateNode) -> str:
    return node.claim.metadata.name if node.claim is not None else ""


def _price(node: StateNode, catalogue: Catalogue) -> float | None:
    values = (node.labels.get(key, "") for key in (labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE))
    return price_of(catalogue.instance_types(node.node_pool), *values) or None


def _parsed(items: Iterable[Any], model: type[Any]) -> Iterator[Any]:
    """Yield the objects that validate; the others are not explained, and have conditions of their own."""
    for raw in items:
        with suppress(InvalidObjectError):
            yield parse(model, raw)
