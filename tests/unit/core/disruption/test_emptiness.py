"""Emptiness: which empty nodes one command deletes."""

import json
from datetime import datetime, timezone

import pytest

from journeyman.core.api import labels
from journeyman.core.api.model import parse
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.disruption.candidates import Candidate, NodeClaimName, NodePoolName
from journeyman.core.disruption.commands import Decision, to_node_disruption
from journeyman.core.disruption.emptiness import delete_empty
from tests.helpers.builders import ago, stamp
from tests.helpers.disrupting import proposed
from tests.helpers.fleets import a_fleet, a_member, a_pod


def a_candidate(name: str, *, price: float = 1.0, pool: str = "default", cost: float = 1.0, **changes):
    """A node, empty unless it has a disruption cost."""
    place = {"instance_type": "m", "zone": "zone-a", "capacity_type": "on-demand"}
    names = {"nodeclaim": NodeClaimName(name), "nodeclaim_uid": f"uid-{name}", "node": name, "node_uid": name}
    fields = {"nodepool": NodePoolName(pool), "price": price, "disruption_cost": cost, "consolidatable": True}
    return Candidate(**{**names, **place, **fields, **changes})


def test_budget_limits_the_number_of_empty_nodes_deleted():
    """A budget of three deletes the three most expensive nodes, and the NodePool is reported as constrained."""
    pool = NodePoolName("default")
    nodes = [a_candidate(f"n{usd}", price=float(usd)) for usd in range(10)]

    (command,), constrained = delete_empty(nodes, {pool: 3})

    assert [c.price for c in command.candidates] == [9.0, 8.0, 7.0]
    assert command.decision is Decision.DELETE
    assert constrained == {pool}


def test_nodes_with_pods_or_within_consolidate_after_or_without_budget_entry_are_not_deleted():
    """Without candidates there is no command; a NodePool without an entry has a budget of 0."""
    nodes = [a_candidate("busy", cost=2.0), a_candidate("fresh", consolidatable=False)]
    assert delete_empty(nodes, {NodePoolName("default"): 9}) == ((), frozenset())
    assert delete_empty([a_candidate("n", pool="unknown")], {}) == ((), {"unknown"})


LONG = "a" * 63  # of a name, whose limit is 253 characters for most objects


@pytest.mark.parametrize(
    ("nodes", "pods"), [(1_001, 0), (300, 110), (20, 1_000)], ids=["many nodes", "many pods", "many pods each"]
)
def test_all_empty_nodes_are_in_commands_that_one_object_can_hold(nodes, pods):
    """All are proposed together. etcd takes objects of 1.5 MiB, and half a megabyte is left for the status."""
    names = tuple(f"{LONG}/{LONG}-{i}" for i in range(pods))
    candidates = [a_candidate(f"{LONG}-{i:04}", reschedulable_pods=names) for i in range(nodes)]

    commands, constrained = delete_empty(candidates, {NodePoolName("default"): nodes})

    stored = [to_node_disruption(c, "emptiness", datetime(2026, 1, 1, tzinfo=timezone.utc)) for c in commands]
    bodies = [disruption.to_wire() for disruption in stored]
    claims = [claim for body in bodies for claim in parse(NodeDisruption, body).claims]
    assert sorted(claims) == sorted(c.nodeclaim for c in candidates)
    assert len({disruption.metadata.name for disruption in stored}) == len(commands) > 1
    assert all(len(json.dumps(body)) < 1_000_000 and len(body["spec"]["candidates"]) <= 100 for body in bodies)
    assert constrained == frozenset()


def deletable(*pods, **changes):
    """Whether emptiness deletes a node with these pods."""
    found = proposed(a_fleet(a_member("n", size="s", pods=pods, **changes)))
    return found is not None and found[0] == "emptiness"


GOING = {"metadata": {"deletionTimestamp": stamp(ago(seconds=5))}}


@pytest.mark.parametrize(
    ("pods", "empty"),
    [
        ((), True),
        ((a_pod("agent", node="node-n", owner="DaemonSet"),), True),
        ((a_pod("web", node="node-n", owner="ReplicaSet", **GOING),), True),
        ((a_pod("db", node="node-n", owner="StatefulSet", **GOING),), False),
        ((a_pod("web", node="node-n"),), False),
    ],
)
def test_node_is_empty_when_none_of_its_pods_needs_another_node(pods, empty):
    """A terminating pod of a StatefulSet comes back with its name, so that it needs a place."""
    assert deletable(*pods) is empty


@pytest.mark.parametrize(("value", "empty"), [("true", False), ("false", True)])
def test_do_not_disrupt_keeps_an_empty_node_only_when_it_is_true(value, empty):
    """The annotation is on the Node."""
    assert deletable(node={"metadata": {"annotations": {labels.DO_NOT_DISRUPT: value}}}) is empty


@pytest.mark.parametrize("pending", [0, 1])
def test_empty_nodes_are_deleted_unless_pending_pods_are_to_run_there(pending):
    """kube-scheduler has nominated the large node for the pod, which does not fit on the small one."""
    waiting = [a_pod("waits", cpu="3", status={"nominatedNodeName": "node-large"}) for _ in range(pending)]
    snapshot = a_fleet(a_member("large", size="m"), a_member("small", size="s"), pending=waiting)
    assert proposed(snapshot) == ("emptiness", ["small"] if pending else ["large", "small"], [])


@pytest.mark.parametrize(("cpu", "replaced"), [("14", False), ("1", True)])
def test_node_that_a_pending_pod_needs_is_not_replaced(cpu, replaced):
    """The large pod only fits beside the small one on this node; a small pending pod fits on a cheaper node, too."""
    waiting = a_pod("waits", cpu=cpu)
    found = proposed(a_fleet(a_member("n", size="xl", pods=[a_pod("p", node="node-n")]), pending=[waiting]))
    assert (found is not None) is replaced
