"""Candidates: which nodes may be disrupted, why others may not, and their costs."""

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.disruption.candidates import eviction_cost, find_candidates
from tests.helpers.builders import ago, condition, merge, stamp
from tests.helpers.disrupting import GRACE, PROTECTED, a_pdb, disruption_of, first_evaluation
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod, an_unlaunched_member, price
from tests.helpers.small_clusters import table

NOTHING = frozenset()


def protected_for(duration: str) -> dict:
    """Metadata with a do-not-disrupt annotation of this duration."""
    return {"annotations": {labels.DO_NOT_DISRUPT: duration}}


def find(snapshot, *, in_commands=NOTHING, consolidatable=frozenset({"n"}), eventual=False):
    """The candidates, with the usual instance types and all NodeClaims consolidatable."""
    options = {"consolidatable": consolidatable, "in_commands": in_commands, "eventual": eventual}
    return find_candidates(snapshot, a_catalogue(), **options)


def a_web_pod(**changes):
    """A pod of node-n that the PodDisruptionBudget selects."""
    return a_pod("web", node="node-n", **changes)


def with_pods(*pods, **changes):
    return a_member("n", pods=pods, **changes)


def test_candidate_has_price_reschedulable_pods_and_disruption_cost():
    """DaemonSet pods are not rescheduled and add no disruption cost."""
    daemon = a_pod("daemon", node="node-n", owner="DaemonSet")
    snapshot = a_fleet(a_member("n", size="l", capacity_type="spot", cpus=["1", "1"], pods=[daemon]))

    (candidate,) = find(snapshot).candidates

    assert (candidate.price, candidate.disruption_cost) == (price("l", "spot"), 3.0)
    assert candidate.reschedulable_pods == ("default/n-0", "default/n-1")
    assert candidate.savings_ratio == price("l", "spot") / 3
    assert (candidate.is_empty, candidate.consolidatable) == (False, True)


def test_node_with_pods_of_negative_eviction_cost_is_empty():
    """A very negative deletion cost makes a pod's eviction cost negative."""
    cheap = a_web_pod(metadata={"annotations": {labels.POD_DELETION_COST: "-2147483648"}})
    (candidate,) = find(a_fleet(with_pods(cheap))).candidates
    assert candidate.is_empty
    assert candidate.reschedulable_pods == ("default/web",)


LOWEST = str(-(2**31))


@table(
    "annotations, priority, expected",
    none=({labels.POD_DELETION_COST: "0"}, None, 1.0),
    deletion_cost_of_a_pod=({labels.POD_DELETION_COST: "134217728"}, 0, 2.0),
    no_number=({labels.POD_DELETION_COST: "nonsense"}, 0, 1.0),
    priority_of_a_system_pod=({labels.POD_DELETION_COST: "0"}, 2_000_000_000, 10.0),
    lowest_of_both=({labels.POD_DELETION_COST: LOWEST}, -(2**31), -10.0),
    disruption_cost_first=({labels.DISRUPTION_COST: "134217728", labels.POD_DELETION_COST: "-134217728"}, None, 2.0),
    no_integer=({labels.DISRUPTION_COST: "1.5", labels.POD_DELETION_COST: "134217728"}, None, 1.0),
    above_32_bits=({labels.DISRUPTION_COST: "2147483648"}, None, 1.0),
    underscores=({labels.DISRUPTION_COST: "1_000_000_000"}, None, 1.0),
    lowest=({labels.DISRUPTION_COST: LOWEST}, None, -10.0),
    ours=({labels.POD_DELETION_COST: "-5", labels.OWN_POD_DELETION_COST: "-5"}, None, 1.0),
    a_users_in_place_of_ours=({labels.POD_DELETION_COST: "134217728", labels.OWN_POD_DELETION_COST: "-5"}, None, 2.0),
)
def test_eviction_cost_is_bounded(annotations, priority, expected):
    """A deletion cost of 2^27 adds as much as one pod; priorities of system pods reach the bound.

    The disruption cost comes first, as in Karpenter 1.15; a deletion cost that Journeyman wrote says nothing about evictions.
    """
    spec = {} if priority is None else {"priority": priority}
    assert eviction_cost(a_pod("p", metadata={"annotations": annotations}, spec=spec)) == pytest.approx(expected)


def test_eviction_cost_follows_deletion_cost_and_priority():
    """A pod without either costs 1."""
    by_cost = [
        eviction_cost(a_pod("p", metadata={"annotations": {labels.POD_DELETION_COST: value}}))
        for value in ("101", "100", "99", "0", "-100")
    ]
    by_priority = [eviction_cost(a_pod("p", spec={"priority": value})) for value in (1, 0, -1)]

    for costs, middle in ((by_cost, 3), (by_priority, 1)):
        assert costs == sorted(set(costs), reverse=True)
        assert costs[middle] == 1


ANNOTATED = f'Pod has "{labels.DO_NOT_DISRUPT}" annotation (Pod=default/p)'


@table(
    "snapshot, why",
    not_initialized=(a_fleet(a_member("n", initialized=False)), "Node isn't initialized"),
    deleting=(a_fleet(a_member("n", deleting=True)), "Node is deleting or marked for deletion"),
    nominated=(
        a_fleet(a_member("n"), pending=[a_pod("p", status={"nominatedNodeName": "node-n"})]),
        "Node is nominated for a pending pod",
    ),
    annotated=(
        a_fleet(a_member("n", node=PROTECTED)),
        f'Disruption is blocked through the "{labels.DO_NOT_DISRUPT}" annotation',
    ),
    without_nodepool=(a_fleet(a_member("n", pool="other")), "NodePool not found (NodePool=other)"),
    without_label=(a_fleet(a_member("n", pool="")), 'Node doesn\'t have required label "karpenter.sh/nodepool"'),
    annotated_pod=(a_fleet(with_pods(a_pod("p", node="node-n", **PROTECTED))), ANNOTATED),
    annotated_daemon=(a_fleet(with_pods(a_pod("p", node="node-n", owner="DaemonSet", **PROTECTED))), ANNOTATED),
    pdb=(
        a_fleet(with_pods(a_web_pod()), pdbs=(a_pdb(),)),
        "Pdb prevents pod evictions (PodDisruptionBudget=[default/web], Pod=default/web)",
    ),
    two_pdbs=(
        a_fleet(with_pods(a_web_pod()), pdbs=(a_pdb(allowed=9), a_pdb("also", allowed=9))),
        "Pdb prevents pod evictions (PodDisruptionBudget=[default/web default/also], Pod=default/web)",
    ),
)
def test_blocked_node_is_not_a_candidate_and_has_events(snapshot, why):
    """The Node and the NodeClaim have Events with Karpenter's messages."""
    found = find(snapshot)

    assert found.candidates == ()
    assert {(e.reason, e.ref.resource.kind, e.message) for e in found.events} == {
        ("DisruptionBlocked", "NodeClaim", why),
        ("DisruptionBlocked", "Node", why),
    }


@pytest.mark.parametrize(("phase", "expected"), [("Replacing", 0), ("Draining", 0), ("Succeeded", 1)])
def test_replacement_is_no_candidate_until_its_command_has_ended(phase, expected):
    """It is empty while the pods that it was launched for are evicted one after the other."""
    command = disruption_of(first_evaluation(a_fleet(a_member("old", size="l", cpus=["1"]))), phase=phase)
    claim = command.spec.replacements[0].name
    snapshot = replace(a_fleet(a_member(claim)), node_disruptions=(command,))
    assert len(find(snapshot, consolidatable=frozenset({claim})).candidates) == expected


EXPIRING = {"status": {"conditions": [condition("DisruptionReason", reason="Expired")]}}


@table(
    "old, planned, expected",
    terminates=({"deleting": True}, "default/moves:uid-move", 0),
    expires=({"claim": EXPIRING}, "default/moves:uid-move", 0),
    another_pod_of_that_name=({"deleting": True}, "default/moves:uid-othr", 1),
    stays=({}, "default/moves:uid-move", 1),
)
def test_node_launched_for_pods_of_a_leaving_node_is_no_candidate(old, planned, expected):
    """It is empty until they are evicted, which their PodDisruptionBudget may forbid for hours; another would be launched."""
    moves = a_pod("moves", node="node-old", metadata={"uid": "uid-moves-from-old"})
    launched = a_member("n", claim={"metadata": {"annotations": {labels.PLANNED_PODS: planned}}})
    found = find(a_fleet(a_member("old", pods=[moves], **old), launched))
    assert [c.nodeclaim for c in found.candidates if c.nodeclaim == "n"] == ["n"] * expected


OWNED = {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-n", "uid": "uid-node-n"}]}
MIRROR = {"metadata": {"annotations": {"kubernetes.io/config.mirror": "hash"}, **OWNED}}
POLITE = a_pod("p", node="node-n", **PROTECTED)
ALWAYS = "AlwaysAllow"
GOING = {"metadata": {"deletionTimestamp": stamp(ago(seconds=5))}}


def ready(status: str) -> dict:
    return {"status": {"conditions": [condition("Ready", status=status)]}}


def tolerating(**toleration) -> dict:
    return {"spec": {"tolerations": [{"operator": "Exists", **toleration}]}}


@table(
    "pods, policy, blocks",
    static_and_annotated=([a_pod("static", node="node-n", **merge(MIRROR, PROTECTED))], "no pdb", True),
    annotated=([POLITE], "no pdb", True),
    annotated_until_it_is_older=([a_pod("p", node="node-n", metadata=protected_for("2h"))], "no pdb", True),
    annotated_until_it_was_older=([a_pod("p", node="node-n", metadata=protected_for("30m"))], "no pdb", False),
    annotated_and_terminating=([a_pod("p", node="node-n", **merge(GOING, PROTECTED))], "no pdb", False),
    annotated_and_ended=([a_pod("p", node="node-n", status={"phase": "Succeeded"}, **PROTECTED)], "no pdb", False),
    plain=([a_web_pod()], None, True),
    of_a_DaemonSet=([a_web_pod(owner="DaemonSet")], None, True),
    of_a_DaemonSet_that_tolerates_all=([a_web_pod(owner="DaemonSet", **tolerating())], None, False),
    tolerates_disruption=([a_web_pod(**tolerating(key=labels.DISRUPTED_TAINT))], None, False),
    terminating=([a_web_pod(**GOING)], None, False),
    succeeded=([a_web_pod(status={"phase": "Succeeded"})], None, False),
    failed=([a_web_pod(status={"phase": "Failed"})], None, False),
    the_kubelets_own=([a_web_pod(**MIRROR)], None, False),
    not_said_to_be_ready=([a_web_pod(status={"conditions": []})], ALWAYS, True),
    of_unknown_readiness=([a_web_pod(**ready("Unknown"))], ALWAYS, True),
    unready=([a_web_pod(**ready("False"))], ALWAYS, False),
    unready_beside_one_whose_annotation_is_over=(
        [
            a_pod("brief", node="node-n", metadata={"labels": {"app": "brief"}, **protected_for("30m")}),
            a_web_pod(**ready("False")),
        ],
        ALWAYS,
        False,
    ),
    unready_with_a_healthy_budget=([a_web_pod(**ready("False"))], "IfHealthyBudget", True),
)  # fmt: skip
def test_pods_that_a_drain_evicts_and_that_must_not_be_evicted_block_their_node(pods, policy, blocks):
    """A drain neither evicts pods that have ended or terminate, nor the kubelet's own, nor those that tolerate the taint.

    A do-not-disrupt duration starts with the pod, an hour ago. The PodDisruptionBudget allows no disruption; with AlwaysAllow,
    a pod is unhealthy if its Ready condition is False (pkg/utils/pdb/pdb.go `isEvictable`).
    """
    pdbs = () if policy == "no pdb" else (a_pdb(**({} if policy is None else {"unhealthyPodEvictionPolicy": policy})),)
    found = find(a_fleet(with_pods(*pods), pdbs=pdbs))
    assert [c.nodeclaim for c in found.candidates] == ([] if blocks else ["n"])
    assert {e.reason for e in found.events} == ({"DisruptionBlocked"} if blocks else set())


@table(
    "member, pdbs, is_candidate",
    annotation=(with_pods(POLITE, claim=GRACE), (), True),
    pdb=(with_pods(a_web_pod(), claim=GRACE), (a_pdb(),), True),
    annotation_without_grace_period=(with_pods(POLITE), (), False),
    pdb_without_grace_period=(with_pods(a_web_pod()), (a_pdb(),), False),
    annotation_of_the_node=(a_member("n", claim=GRACE, node=PROTECTED), (), False),
)
def test_termination_grace_period_waives_blocking_pods_for_eventual_disruption(member, pdbs, is_candidate):
    """The drain ends with it; it waives nothing for emptiness and consolidation, nor the annotation on the Node itself."""
    assert bool(find(a_fleet(member, pdbs=pdbs), eventual=True).candidates) is is_candidate
    graceful = find(a_fleet(member, pdbs=pdbs))
    assert (graceful.candidates, {e.reason for e in graceful.events}) == ((), {"DisruptionBlocked"})


def test_nodes_in_commands_and_unmanaged_nodes_have_no_events():
    """Neither a node in a command nor a node without a NodeClaim is a candidate."""
    fleet = a_fleet(a_member("busy"), a_member("foreign"))
    snapshot = replace(fleet, claims=tuple(c for c in fleet.claims if c.metadata.name == "busy"))
    found = find(snapshot, in_commands=frozenset({"busy"}))
    assert (found.candidates, found.events) == ((), ())
    assert find(a_fleet(a_member("n")), in_commands=frozenset({"n"})).candidates == ()


def test_nodeclaim_without_a_node_is_not_a_candidate():
    """The NodeClaim has an Event with the reason."""
    (event,) = find(a_fleet(an_unlaunched_member("n"))).events
    assert (event.ref.resource.kind, event.message) == ("NodeClaim", "NodeClaim does not have an associated node")


def test_candidate_with_unknown_instance_type_has_no_price():
    """The node may still be deleted when it is empty."""
    unknown = a_member("n", node={"metadata": {"labels": {labels.INSTANCE_TYPE: "gone"}}})
    (candidate,) = find(a_fleet(unknown)).candidates
    assert (candidate.instance_type, candidate.price) == ("", 0.0)
