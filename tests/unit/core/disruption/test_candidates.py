"""Candidates: which nodes may be disrupted, why others may not, and their costs."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import PodDisruptionBudget
from journeyman.core.disruption.candidates import eviction_cost, find_candidates
from tests.helpers.builders import ago, condition, stamp
from tests.helpers.disrupting import disruption_of, first_evaluation
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod, an_unlaunched_member, price

NOTHING = frozenset()
PROTECTED = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}


def find(snapshot, *, in_commands=NOTHING, consolidatable=frozenset({"n"}), catalogue=None, eventual=False):
    """The candidates, with the usual instance types and all NodeClaims consolidatable."""
    types = a_catalogue() if catalogue is None else catalogue
    return find_candidates(snapshot, types, consolidatable=consolidatable, in_commands=in_commands, eventual=eventual)


def a_pdb(name: str = "web", *, allowed: int = 0, **spec) -> PodDisruptionBudget:
    """A PodDisruptionBudget of the pods with `app: web`."""
    body = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec},
        "status": {"disruptionsAllowed": allowed},
    }
    return msgspec.convert(body, PodDisruptionBudget)


def a_web_pod(**changes):
    """A pod of node-n that the PodDisruptionBudget selects."""
    return a_pod("web", node="node-n", **changes)


def test_candidate_has_price_reschedulable_pods_and_disruption_cost():
    """DaemonSet pods are not rescheduled and add no disruption cost."""
    daemon = a_pod("daemon", node="node-n", owner="DaemonSet")
    snapshot = a_fleet(a_member("n", size="l", capacity_type="spot", cpus=["1", "1"], pods=[daemon]))

    (candidate,) = find(snapshot).candidates

    assert candidate.price == price("l", "spot")
    assert candidate.reschedulable_pods == ("default/n-0", "default/n-1")
    assert candidate.disruption_cost == 3.0
    assert candidate.savings_ratio == price("l", "spot") / 3
    assert (candidate.is_empty, candidate.consolidatable) == (False, True)


def test_node_with_pods_of_negative_eviction_cost_is_empty():
    """A very negative deletion cost makes a pod's eviction cost negative."""
    pods = [
        a_pod(
            "cheap",
            node="node-n",
            metadata={"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-2147483648"}},
        )
    ]

    (candidate,) = find(a_fleet(a_member("n", pods=pods))).candidates

    assert candidate.is_empty
    assert candidate.reschedulable_pods == ("default/cheap",)


@pytest.mark.parametrize(
    ("cost", "priority", "expected"),
    [
        ("0", None, 1.0),
        ("134217728", 0, 2.0),
        ("nonsense", 0, 1.0),
        ("0", 2_000_000_000, 10.0),
        ("-2147483648", -(2**31), -10.0),
    ],
)
def test_eviction_cost_is_bounded(cost, priority, expected):
    """A deletion cost of 2^27 adds as much as one pod; priorities of system pods reach the bound."""
    annotations = {"controller.kubernetes.io/pod-deletion-cost": cost}
    pod = a_pod(
        "p", node="n", metadata={"annotations": annotations}, spec={} if priority is None else {"priority": priority}
    )

    assert eviction_cost(pod) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("annotation", "priorities", "costs"),
    [
        (labels.POD_DELETION_COST, ["100"], "above"),
        (labels.POD_DELETION_COST, ["-100"], "below"),
        (labels.POD_DELETION_COST, ["101", "100", "99"], "falling"),
        ("", [1], "above"),
        ("", [-1], "below"),
    ],
)
def test_eviction_cost_follows_deletion_cost_and_priority(annotation, priorities, costs):
    """A pod without either costs 1."""
    found = [
        eviction_cost(
            a_pod("p", metadata={"annotations": {annotation: value}} if annotation else {})
            if annotation
            else a_pod("p", spec={"priority": value})
        )
        for value in priorities
    ]

    if costs == "falling":
        assert found == sorted(set(found), reverse=True)
    else:
        assert (found[0] > 1) is (costs == "above")
        assert found[0] != 1


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({labels.DISRUPTION_COST: "134217728", labels.POD_DELETION_COST: "-134217728"}, 2.0),
        ({labels.DISRUPTION_COST: "1.5", labels.POD_DELETION_COST: "134217728"}, 1.0),
        ({labels.DISRUPTION_COST: "2147483648"}, 1.0),
        ({labels.DISRUPTION_COST: "1_000_000_000"}, 1.0),
        ({labels.DISRUPTION_COST: "-2147483648"}, -10.0),
        ({labels.POD_DELETION_COST: "-5", labels.OWN_POD_DELETION_COST: "-5"}, 1.0),
        ({labels.POD_DELETION_COST: "134217728", labels.OWN_POD_DELETION_COST: "-5"}, 2.0),
    ],
    ids=["first", "no integer", "above 32 bits", "underscores", "lowest", "ours", "a user's in place of ours"],
)
def test_disruption_cost_comes_before_a_deletion_cost(annotations, expected):
    """As in Karpenter 1.15; a deletion cost that Journeyman wrote says nothing about what an eviction costs."""
    assert eviction_cost(a_pod("p", metadata={"annotations": annotations})) == pytest.approx(expected)


BLOCKED = [
    (a_fleet(a_member("n", initialized=False)), "Node isn't initialized"),
    (a_fleet(a_member("n", deleting=True)), "Node is deleting or marked for deletion"),
    (
        a_fleet(a_member("n"), pending=[a_pod("p", status={"nominatedNodeName": "node-n"})]),
        "Node is nominated for a pending pod",
    ),
    (a_fleet(a_member("n", node=PROTECTED)), f'Disruption is blocked through the "{labels.DO_NOT_DISRUPT}" annotation'),
    (a_fleet(a_member("n", pool="other")), "NodePool not found (NodePool=other)"),
    (
        a_fleet(a_member("n", pods=[a_pod("p", node="node-n", **PROTECTED)])),
        f'Pod has "{labels.DO_NOT_DISRUPT}" annotation (Pod=default/p)',
    ),
    (
        a_fleet(a_member("n", pods=[a_pod("p", node="node-n", owner="DaemonSet", **PROTECTED)])),
        f'Pod has "{labels.DO_NOT_DISRUPT}" annotation (Pod=default/p)',
    ),
    (
        a_fleet(a_member("n", cpus=["1"]), pdbs=(a_pdb(),)),
        "Pdb prevents pod evictions (PodDisruptionBudget=[default/web], Pod=default/n-0)",
    ),
    (
        a_fleet(a_member("n", cpus=["1"]), pdbs=(a_pdb(allowed=9), a_pdb("also", allowed=9))),
        "Pdb prevents pod evictions (PodDisruptionBudget=[default/web default/also], Pod=default/n-0)",
    ),
]


@pytest.mark.parametrize(("snapshot", "why"), BLOCKED, ids=[why[:40] for _, why in BLOCKED])
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
    replaced = first_evaluation(a_fleet(a_member("old", size="l", cpus=["1"])))
    assert replaced is not None
    command = disruption_of(replaced, phase=phase)
    claim = command.spec.replacements[0].name
    snapshot = replace(a_fleet(a_member(claim)), node_disruptions=(command,))

    candidates = find(snapshot, consolidatable=frozenset({claim})).candidates

    assert len(candidates) == expected


EXPIRING = {"status": {"conditions": [condition("DisruptionReason", reason="Expired")]}}


@pytest.mark.parametrize(
    ("old", "planned", "expected"),
    [
        ({"deleting": True}, "default/moves:uid-move", 0),
        ({"claim": EXPIRING}, "default/moves:uid-move", 0),
        ({"deleting": True}, "default/moves:uid-othr", 1),
        ({}, "default/moves:uid-move", 1),
    ],
    ids=["terminates", "expires", "another pod of that name", "stays"],
)
def test_node_launched_for_pods_of_a_leaving_node_is_no_candidate(old, planned, expected):
    """It is empty until they are evicted, which their PodDisruptionBudget may forbid for hours; another would be launched."""
    moves = a_pod("moves", node="node-old", metadata={"uid": "uid-moves-from-old"})
    launched = a_member("n", claim={"metadata": {"annotations": {labels.PLANNED_PODS: planned}}})

    found = find(a_fleet(a_member("old", pods=[moves], **old), launched))

    assert [c.nodeclaim for c in found.candidates if c.nodeclaim == "n"] == ["n"] * expected


MIRROR = {
    "metadata": {
        "annotations": {labels.DO_NOT_DISRUPT: "true", "kubernetes.io/config.mirror": "hash"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-n", "uid": "uid-node-n"}],
    }
}
GRACE = {"spec": {"terminationGracePeriod": "5m"}}
POLITE = a_pod("p", node="node-n", **PROTECTED)
UNEVICTABLE = a_pod("web", node="node-n")


@pytest.mark.parametrize(
    ("member", "pdbs"),
    [
        (a_member("n", pods=[a_pod("static", node="node-n", **MIRROR)]), ()),
        (a_member("n", pods=[POLITE], claim=GRACE), ()),
        (a_member("n", pods=[POLITE]), ()),
        (a_member("n", pods=[UNEVICTABLE], claim=GRACE), (a_pdb(),)),
        (a_member("n", pods=[UNEVICTABLE]), (a_pdb(),)),
        (a_member("n", pods=[a_pod("agent", node="node-n", owner="DaemonSet")]), (a_pdb(),)),
    ],
)
def test_pods_that_must_not_be_evicted_block_graceful_disruption(member, pdbs):
    """A terminationGracePeriod waives nothing for emptiness and consolidation."""
    found = find(a_fleet(member, pdbs=pdbs))

    assert found.candidates == ()
    assert {e.reason for e in found.events} == {"DisruptionBlocked"}


@pytest.mark.parametrize(
    ("member", "pdbs", "is_candidate"),
    [
        (a_member("n", pods=[POLITE], claim=GRACE), (), True),
        (a_member("n", pods=[UNEVICTABLE], claim=GRACE), (a_pdb(),), True),
        (a_member("n", pods=[POLITE]), (), False),
        (a_member("n", pods=[UNEVICTABLE]), (a_pdb(),), False),
        (a_member("n", claim=GRACE, node=PROTECTED), (), False),
    ],
)
def test_termination_grace_period_waives_blocking_pods_for_eventual_disruption(member, pdbs, is_candidate):
    """The drain ends with it. The annotation on the Node itself is not waived."""
    assert bool(find(a_fleet(member, pdbs=pdbs), eventual=True).candidates) is is_candidate


GOING = {"metadata": {"deletionTimestamp": stamp(ago(seconds=5)), "annotations": {labels.DO_NOT_DISRUPT: "true"}}}
ENDED = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}, "status": {"phase": "Succeeded"}}


@pytest.mark.parametrize(
    ("pod", "pdbs"),
    [
        (a_pod("p", node="node-n", **GOING), ()),
        (a_pod("p", node="node-n", **ENDED), ()),
        (a_pod("p", node="node-n", metadata={"deletionTimestamp": stamp(ago(seconds=5))}), (a_pdb(),)),
        (a_pod("p", node="node-n", status={"phase": "Failed"}), (a_pdb(),)),
        (
            a_pod(
                "p",
                node="node-n",
                metadata={
                    "annotations": {"kubernetes.io/config.mirror": "hash"},
                    "ownerReferences": MIRROR["metadata"]["ownerReferences"],
                },
            ),
            (a_pdb(),),
        ),
    ],
)
def test_pods_that_a_drain_does_not_evict_do_not_block_their_node(pod, pdbs):
    """They terminate already, have ended, or are the kubelet's own."""
    assert [c.nodeclaim for c in find(a_fleet(a_member("n", pods=[pod]), pdbs=pdbs)).candidates] == ["n"]


def test_nodes_that_are_leaving_or_without_a_nodepool_are_no_candidates():
    """A node of an executing command is skipped without an Event."""
    lonely = a_member("n", pool="")

    assert find(a_fleet(a_member("n")), in_commands=frozenset({"n"})).candidates == ()
    assert {e.message for e in find(a_fleet(lonely)).events} == {
        'Node doesn\'t have required label "karpenter.sh/nodepool"'
    }


def test_nodes_in_commands_and_unmanaged_nodes_have_no_events():
    """Neither a node in a command nor a node without a NodeClaim is a candidate."""
    fleet = a_fleet(a_member("busy"), a_member("foreign"))
    snapshot = replace(fleet, claims=tuple(c for c in fleet.claims if c.metadata.name == "busy"))

    found = find(snapshot, in_commands=frozenset({"busy"}))

    assert (found.candidates, found.events) == ((), ())


def test_nodeclaim_without_a_node_is_not_a_candidate():
    """The NodeClaim has an Event with the reason."""
    found = find(a_fleet(an_unlaunched_member("n")))

    assert [(e.ref.resource.kind, e.message) for e in found.events] == [
        ("NodeClaim", "NodeClaim does not have an associated node")
    ]


def test_node_is_a_candidate_when_do_not_disrupt_expired_and_its_pdb_has_always_allow():
    """A do-not-disrupt duration starts with the pod; AlwaysAllow exempts unready pods from a PodDisruptionBudget."""
    brief = a_pod("brief", node="node-n", metadata={"labels": {"app": "brief"}, **brief_for("30m")})
    not_ready = a_web_pod(status={"conditions": [condition("Ready", status="False")]})
    pdb = a_pdb(unhealthyPodEvictionPolicy="AlwaysAllow")

    assert len(find(a_fleet(a_member("n", pods=[brief, not_ready]), pdbs=(pdb,))).candidates) == 1
    still = a_pod("new", node="node-n", metadata=brief_for("2h"))
    assert find(a_fleet(a_member("n", pods=[still]))).candidates == ()


def brief_for(duration: str) -> dict:
    """Metadata with a do-not-disrupt annotation of this duration."""
    return {"annotations": {labels.DO_NOT_DISRUPT: duration}}


def test_candidate_with_unknown_instance_type_has_no_price():
    """The node may still be deleted when it is empty."""
    (candidate,) = find(
        a_fleet(a_member("n", node={"metadata": {"labels": {labels.INSTANCE_TYPE: "gone"}}}))
    ).candidates

    assert (candidate.instance_type, candidate.price) == ("", 0.0)


TOLERATES_DISRUPTION = {"tolerations": [{"key": labels.DISRUPTED_TAINT, "operator": "Exists"}]}


@pytest.mark.parametrize(
    ("pod", "policy", "blocks"),
    [
        (a_web_pod(), None, True),
        (a_web_pod(owner="DaemonSet"), None, True),
        (a_web_pod(owner="DaemonSet", spec={"tolerations": [{"operator": "Exists"}]}), None, False),
        (a_web_pod(spec=TOLERATES_DISRUPTION), None, False),
        (a_web_pod(status={"phase": "Succeeded"}), None, False),
        (a_web_pod(status={"conditions": []}), "AlwaysAllow", True),
        (a_web_pod(status={"conditions": [condition("Ready", status="Unknown")]}), "AlwaysAllow", True),
        (a_web_pod(status={"conditions": [condition("Ready", status="False")]}), "AlwaysAllow", False),
        (a_web_pod(status={"conditions": [condition("Ready", status="False")]}), "IfHealthyBudget", True),
    ],
)
def test_pdb_without_allowed_disruptions_blocks_the_nodes_of_pods_that_a_drain_evicts(pod, policy, blocks):
    """A drain neither evicts pods that have ended nor those that tolerate the disrupted taint.

    With AlwaysAllow, a pod is unhealthy if its Ready condition is False (pkg/utils/pdb/pdb.go `isEvictable`).
    """
    pdb = a_pdb(**({} if policy is None else {"unhealthyPodEvictionPolicy": policy}))

    assert bool(find(a_fleet(a_member("n", pods=[pod]), pdbs=(pdb,))).candidates) is not blocks
