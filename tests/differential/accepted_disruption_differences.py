"""Intended differences from Karpenter's disruption decisions, with the reasons.

test_accepted_disruption_differences.py shows each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from journeyman.cli.solve import controller_of, methods
from journeyman.core.disruption.balanced_policy import BalancedScores
from journeyman.core.disruption.binding_orders import unbound_pod
from journeyman.core.disruption.consolidation import compute_consolidation
from journeyman.core.disruption.multi_node_consolidation import multi_node_commands
from journeyman.core.scheduling.nodeclaim_templates import make_template
from tests.differential.compare import parse
from tests.differential.compare_disruption import TOLERANCE, Difference, compare_disruption
from tests.differential.karpenter import Karpenter

JSONDict = dict[str, Any]
DECISIONS = frozenset({"class", "alone", "saving"})


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """An intended difference; `explains` returns whether it is the cause of a difference."""

    name: str
    why: str
    explains: Callable[[JSONDict, Difference, Karpenter], bool]


def _is_due_to(
    without_cause: Callable[[JSONDict], list[JSONDict]],
) -> Callable[[JSONDict, Difference, Karpenter], bool]:
    """Return a function that returns whether a difference is gone if these objects replace the scenario's."""

    def explains(scenario: JSONDict, difference: Difference, karpenter: Karpenter) -> bool:
        objects = without_cause(scenario)
        if objects == scenario["objects"]:
            return False
        found = compare_disruption({**scenario, "objects": objects}, karpenter).differences
        return all(one.key != difference.key and one.kind not in {"oracle", "crash"} for one in found)

    return explains


def _without_starting_nodes(scenario: JSONDict) -> list[JSONDict]:
    """Return the objects without NodeClaims whose Node is not initialized, their Nodes and their pods."""
    claims = [o for o in scenario["objects"] if o["kind"] == "NodeClaim" and not _is(o, "Initialized")]
    names = {claim["status"]["nodeName"] for claim in claims} - {""}
    return [o for o in scenario["objects"] if not _belongs_to(o, names) and _has_node(o)]


def _belongs_to(raw: JSONDict, nodes: set[str]) -> bool:
    name = {
        "Node": lambda: raw["metadata"]["name"],
        "NodeClaim": lambda: raw["status"]["nodeName"],
        "Pod": lambda: raw["spec"].get("nodeName", ""),
    }.get(raw["kind"], lambda: "")()
    return name in nodes


def _has_node(raw: JSONDict) -> bool:
    return raw["kind"] != "NodeClaim" or bool(raw["status"]["nodeName"])


def _without_pending_pods(scenario: JSONDict) -> list[JSONDict]:
    """Return the objects without pods that need a node whatever is disrupted: pending ones, and those on deleting nodes."""
    deleting = {
        o["status"]["nodeName"]
        for o in scenario["objects"]
        if o["kind"] == "NodeClaim" and "deletionTimestamp" in o["metadata"]
    }
    leaving = {"", *deleting}
    return [o for o in scenario["objects"] if o["kind"] != "Pod" or o["spec"].get("nodeName", "") not in leaving]


def _without_nominated_pods(scenario: JSONDict) -> list[JSONDict]:
    return [o for o in scenario["objects"] if o["kind"] != "Pod" or not o.get("status", {}).get("nominatedNodeName")]


def _without_missing_replicas(scenario: JSONDict) -> list[JSONDict]:
    """Return the objects with as many replicas in static NodePools as they have NodeClaims, if they want more."""
    claims = Counter(
        o["metadata"]["labels"]["karpenter.sh/nodepool"] for o in scenario["objects"] if o["kind"] == "NodeClaim"
    )
    return [_with_replicas_at_most(o, claims[o["metadata"]["name"]]) for o in scenario["objects"]]


def _with_replicas_at_most(raw: JSONDict, count: int) -> JSONDict:
    if raw["kind"] != "NodePool" or "replicas" not in raw["spec"]:
        return raw
    return {**raw, "spec": {**raw["spec"], "replicas": min(raw["spec"]["replicas"], count)}}


def _is(raw: JSONDict, condition: str) -> bool:
    return any(c["type"] == condition and c["status"] == "True" for c in raw["status"]["conditions"])


def _is_due_to_binding_orders(scenario: JSONDict, difference: Difference, karpenter: Karpenter) -> bool:
    """Return whether consolidation saves no less if it does not check in which order pods are bound."""
    del karpenter
    if "Consolidation" not in difference.method or difference.kind != "saving":
        return False
    case = parse(scenario)
    controller = controller_of(case)
    spot_to_spot = bool(case.options.get("spotToSpotConsolidation"))
    saving = difference.karpenters["saving"] - TOLERANCE
    if difference.node:
        candidates = [c for c in controller.eligible()["single-node"].candidates if c.node == difference.node]
        command = compute_consolidation(controller.simulation, candidates, spot_to_spot=spot_to_spot)
        return command.saving >= saving and bool(unbound_pod(command, case.snapshot, case.catalogue))
    eligible = controller.eligible()["multi-node"]
    check = BalancedScores.of(case.snapshot, case.catalogue).why_not
    attempts = multi_node_commands(
        controller.simulation, eligible.candidates, eligible.remaining, spot_to_spot=spot_to_spot, check=check
    )
    best = [attempt.best for attempt in attempts][-1]
    return best is not None and best.saving >= saving


def _is_due_to_payback(scenario: JSONDict, difference: Difference, karpenter: Karpenter) -> bool:
    """Return whether the difference is gone if moves need not pay back, and we then decide otherwise."""
    free = {**scenario, "options": {**scenario["options"], "consolidationPayback": "0s"}}
    if "Consolidation" not in difference.method or _decided(scenario, difference) == _decided(free, difference):
        return False
    return difference.key not in {one.key for one in compare_disruption(free, karpenter).differences}


def _decided(scenario: JSONDict, difference: Difference) -> JSONDict | None:
    """Return our decision for the difference's node, or the method's first command; None if there is none."""
    found = {one["method"]: one for one in methods(controller_of(parse(scenario)))}[difference.method]
    decided: JSONDict | None = (
        found["alone"].get(difference.node) if difference.node else next(iter(found["commands"]), None)
    )
    return decided


def _is_due_to_preferences(scenario: JSONDict, difference: Difference, karpenter: Karpenter) -> bool:
    """Return whether the difference is gone if pods have no preferences, or then is due to binding orders."""
    without = {**scenario, "options": {**scenario["options"], "preferencePolicy": "Ignore"}}
    found = {one.key: one for one in compare_disruption(without, karpenter).differences}
    same = found.get(difference.key)
    return "MultiNode" in difference.method and (same is None or _is_due_to_binding_orders(without, same, karpenter))


def _launches_nothing(scenario: JSONDict, difference: Difference, karpenter: Karpenter) -> bool:
    """Return whether no instance type meets the requirements of a static NodePool of which Karpenter replaces a node."""
    del karpenter
    if "StaticDrift" not in difference.method:
        return False
    case = parse(scenario)
    pools = {replacement["nodePool"] for replacement in difference.karpenters["replacements"]}
    templates = [make_template(case.snapshot.node_pools_by_name[name], case.snapshot, case.catalogue) for name in pools]
    return any(isinstance(template, str) for template in templates)


def _saves_more(scenario: JSONDict, difference: Difference, karpenter: Karpenter) -> bool:
    """Return whether our command saves more than Karpenter's. Verification finds nothing wrong with it."""
    del scenario, karpenter
    return difference.ours.get("saving", 0.0) > difference.karpenters.get("saving", 0.0) + TOLERANCE


ACCEPTED = (
    Accepted(
        name="starting nodes",
        why=(
            "Karpenter schedules candidates' pods on nodes that are not initialized too, and then gives the candidate up, "
            "because such a node may never be. We leave these nodes out and find other capacity, so that a node that does "
            "not start blocks no consolidation."
        ),
        explains=_is_due_to(_without_starting_nodes),
    ),
    Accepted(
        name="nominated pods",
        why=(
            "A pod that waits for the node it is nominated for counts as running there, so that pods with an affinity to it "
            "follow it. Karpenter leaves it out."
        ),
        explains=_is_due_to(_without_nominated_pods),
    ),
    Accepted(
        name="pending pods first",
        why=(
            "While pending pods or those on deleting nodes need new nodes, drift waits for the provision step to launch them. "
            "Karpenter launches nodes for these pods as replacements, too."
        ),
        explains=lambda scenario, difference, karpenter: (
            ".Drift" in difference.method and _is_due_to(_without_pending_pods)(scenario, difference, karpenter)
        ),
    ),
    Accepted(
        name="missing replicas",
        why=(
            "What limits.nodes of a static NodePool leaves is for its missing replicas first, because the provision step may "
            "launch them at the same time; drifted nodes wait for them."
        ),
        explains=_is_due_to(_without_missing_replicas),
    ),
    Accepted(
        name="nothing to launch",
        why=(
            "Karpenter replaces a static NodePool's node although no instance type meets the requirements, and rolls that back. We "
            "say on the node why no replacement can be launched."
        ),
        explains=_launches_nothing,
    ),
    Accepted(
        name="binding orders",
        why=(
            "kube-scheduler does not follow the simulation, so nodes are only removed if their pods find capacity in whatever "
            "order they are bound, with a larger replacement if need be. Karpenter does not check that."
        ),
        explains=_is_due_to_binding_orders,
    ),
    Accepted(
        name="pays back",
        why=(
            "A move must save within an hour what it costs: the replacement while it boots, and an amount per eviction. "
            "Karpenter also replaces a node for a smaller saving."
        ),
        explains=_is_due_to_payback,
    ),
    Accepted(
        name="more is saved",
        why=(
            "Karpenter places pods one by one, largest first, and finds capacity on the remaining nodes for fewer of them. "
            "Where we find it for all, a node is deleted that Karpenter keeps or replaces."
        ),
        explains=_saves_more,
    ),
    Accepted(
        name="preferences",
        why=(
            "Of pods with the same preference, which may not all have it met, Karpenter gives up that of another one. If "
            "a preferred spread then needs a second new node, nothing is consolidated."
        ),
        explains=_is_due_to_preferences,
    ),
)


def explanation(scenario: JSONDict, difference: Difference, karpenter: Karpenter) -> Accepted | None:
    """Return the accepted difference that explains this one; None if there is none."""
    if difference.kind not in DECISIONS:
        return None
    return next((accepted for accepted in ACCEPTED if accepted.explains(scenario, difference, karpenter)), None)
