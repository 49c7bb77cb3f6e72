"""A Node joined with its NodeClaim: whose taints count, which pods it runs, and when it is leaving."""

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.observability.node_metrics import node_gauges
from journeyman.core.state.state_node import one_per_instance
from tests.helpers.builders import (
    NOW,
    a_claim,
    a_launched_claim,
    a_node,
    a_pod,
    a_running_claim,
    a_snapshot,
    ago,
    condition,
    provider_id_of,
    stamp,
)

EPHEMERAL = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
READINESS = {"key": "readiness.k8s.io/network", "effect": "NoSchedule"}
STARTUP = {"key": "cni", "effect": "NoExecute"}
OTHER = {"key": "team", "effect": "NoSchedule"}
STARTING = {"metadata": {"labels": {labels.INITIALIZED: "false"}}}


def state_of(*, node=None, claim=None, pods=()):
    """Return the only state node of these objects."""
    snapshot = a_snapshot(
        nodes=(node,) if node else (), claims=(claim,) if claim else (), pods=tuple(sorted(pods, key=lambda p: p.key))
    )
    (state,) = snapshot.state_nodes
    return state


@pytest.mark.parametrize(
    ("initialized", "managed", "expected"),
    [
        (False, True, {"team"}),
        (True, True, {EPHEMERAL["key"], READINESS["key"], "cni", "team"}),
        (False, False, {EPHEMERAL["key"], READINESS["key"], "cni", "team"}),
        (True, False, {EPHEMERAL["key"], READINESS["key"], "cni", "team"}),
    ],
)
def test_taints_of_a_starting_node_count_once_it_is_initialized(initialized, managed, expected):
    """Pods are planned onto a starting node, which loses these taints; on other nodes a user added them later."""
    spec = {"taints": [EPHEMERAL, READINESS, STARTUP, OTHER]}
    node = a_node(spec=spec, **({} if initialized else STARTING))
    claim = (
        (a_running_claim if initialized else a_launched_claim)(spec={"startupTaints": [STARTUP]}) if managed else None
    )
    assert {t.key for t in state_of(node=node, claim=claim).taints} == expected


def test_node_named_like_its_claim_is_one_state_node():
    """Names do not matter, the provider id does."""
    node = a_node("same", metadata={"name": "same"})
    assert state_of(node=node, claim=a_running_claim("same")).name == "same"


@pytest.mark.parametrize(
    ("claim", "node"), [({"deleting": NOW}, {}), ({}, {"deleting": NOW})], ids=["NodeClaim deleted", "Node deleted"]
)
def test_deletion_of_node_or_claim_marks_the_node(claim, node):
    """No pod is planned onto it, and its pods are rescheduled."""
    state = state_of(node=a_node(**node), claim=a_running_claim(**claim))
    assert state.is_terminating
    assert state.is_being_disrupted
    assert state.is_leaving


def test_node_leaves_from_the_start_of_its_disruption():
    """The condition is written before the Node is tainted."""
    started = {"status": {"conditions": [condition("DisruptionReason", reason="Empty")]}}
    state = state_of(node=a_node(), claim=a_running_claim(**started))
    assert (state.is_leaving, state.is_being_disrupted) == (True, False)
    assert not state_of(node=a_node(), claim=a_running_claim()).is_leaving


def test_one_per_instance_prefers_the_initialized_node_and_keeps_duplicates():
    """Those without a provider id stay, as they are not launched; so does `b`, whose own instance runs under another id."""
    twin = a_node("a", metadata={"name": "a-twin", "labels": {labels.INITIALIZED: ""}})
    copy = a_launched_claim("b", provider_id=provider_id_of("a"))
    snapshot = a_snapshot(nodes=(twin, a_node("a")), claims=(a_running_claim("a"), copy, a_claim("c"), a_claim("d")))
    assert sorted(n.name for n in one_per_instance(snapshot.state_nodes)) == ["b", "c", "d", "node-a"]


def test_one_per_instance_counts_the_oldest_node_while_there_is_no_nodeclaim():
    """A tenant creates a Node with the provider id of another, and with a name that sorts first."""
    forged = a_node("a", metadata={"name": "forged", "uid": "uid-forged", "creationTimestamp": stamp(NOW)})
    own = a_node("a", metadata={"creationTimestamp": stamp(ago(minutes=5))})
    assert [n.name for n in one_per_instance(a_snapshot(nodes=(forged, own)).state_nodes)] == ["node-a"]


BOUND = a_pod("bound", node="node-default-1", cpu="1")
DAEMON = a_pod(
    "daemon",
    node="node-default-1",
    cpu="500m",
    metadata={"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]},
)


@pytest.mark.parametrize(
    ("pods", "requested", "daemons"),
    [
        ((a_pod("unbound", cpu="1"),), 0, 0),
        ((BOUND,), 1, 0),
        ((BOUND, a_pod("again", node="node-default-1", cpu="2")), 3, 0),
        ((), 0, 0),
        ((BOUND, a_pod("done", node="node-default-1", cpu="2", status={"phase": "Succeeded"})), 1, 0),
        ((a_pod("bound", node="node-other", cpu="1"),), 0, 0),
        ((BOUND, DAEMON), 1.5, 0.5),
    ],
    ids=["unbound", "bound", "another", "deleted", "terminal", "recreated elsewhere", "daemon"],
)
def test_requests_are_those_of_the_pods_that_run_on_the_node(pods, requested, daemons):
    """Each run sums them from the pods that it reads, so that no missed event lasts."""
    snapshot = a_snapshot(nodes=(a_node(),), claims=(a_running_claim(),), pods=pods)
    cpu = {s.name: s.value for s in node_gauges(snapshot) if s.labels.get("resource_type") == "cpu"}
    assert cpu.get("karpenter_nodes_total_pod_requests", 0) == requested
    assert cpu.get("karpenter_nodes_total_daemon_requests", 0) == daemons


def test_deleted_node_has_no_gauges():
    """They are computed from the nodes that exist."""
    snapshot = a_snapshot(nodes=(a_node("a"), a_node("b")), pods=(a_pod("p", node="node-b"),))
    for nodes in (snapshot.nodes, snapshot.nodes[:1]):
        named = {s.labels.get("node_name") for s in node_gauges(replace(snapshot, nodes=nodes))} - {None}
        assert named == {node.metadata.name for node in nodes}


def test_node_that_this_run_registers_has_the_labels_of_its_nodeclaim():
    """The Node was loaded before; without the labels, pods that select their NodePool would get another node."""
    claim = a_running_claim("a", metadata={"labels": {labels.NODEPOOL: "apps", "team": "a"}})
    node = a_node("a")
    bare = {labels.HOSTNAME: "ip-1", "team": "b"}
    node = replace(node, metadata=replace(node.metadata, labels=bare))
    found = a_snapshot(claims=(claim,), nodes=(node,)).state_nodes_by_claim["a"].labels
    assert (found[labels.NODEPOOL], found["team"], found[labels.HOSTNAME]) == ("apps", "b", "ip-1")
