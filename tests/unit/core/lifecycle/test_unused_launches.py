"""Unused launches: which nodes count as not used, for which pods the next launch waits, and when that ends."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.churn_ledger import LEDGER_NAME, MAX_UNUSED, MAX_UNUSED_PODS, ChurnLedger
from journeyman.core.api.model import parse
from journeyman.core.lifecycle.unused_launches import record_unused_launches, remember_launches
from tests.helpers.builders import (
    NOW,
    a_claim,
    a_daemon_set,
    a_node,
    a_node_class,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    ago,
    condition,
    stamp,
)
from tests.helpers.small_clusters import table

MINUTE = timedelta(minutes=1)


def a_waiting_pod(name="web-1", *, workload="web", **changes):
    """A pod of a ReplicaSet that was created an hour ago."""
    named = {"name": workload, "uid": f"uid-{workload}"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", **named, "controller": True}
    metadata = {"creationTimestamp": stamp(ago(hours=1)), "ownerReferences": [owner]}
    return a_pod(name, **{"cpu": "2", **changes}, metadata=metadata)


def a_claim_for(*pods, name="default-1", age=2 * MINUTE, **changes):
    """A NodeClaim that was launched for these pods `age` ago and is initialized since a minute later."""
    planned = ",".join(f"{pod.key}:{pod.metadata.uid[:8]}" for pod in pods)
    metadata = {"annotations": {labels.PLANNED_PODS: planned}, "labels": {labels.INSTANCE_TYPE: "m.medium"}}
    ready = [condition(t, since=NOW - age + MINUTE) for t in ("Launched", "Registered", "Initialized")]
    return a_running_claim(
        name, age=age, metadata=metadata, **{"status": {"nodeName": f"node-{name}", "conditions": ready}, **changes}
    )


def a_cluster(*pods, claims=None, nodes=None, ledger=None, **more):
    claims = (a_claim_for(*pods),) if claims is None else claims
    nodes = tuple(a_node(claim.metadata.name) for claim in claims) if nodes is None else nodes
    return a_snapshot(pods=pods, claims=claims, nodes=nodes, churn_ledger=ledger, **more)


def a_ledger(*entries):
    metadata = {"name": LEDGER_NAME, "uid": "u", "resourceVersion": "1"}
    return parse(ChurnLedger, {"metadata": metadata, "status": {"unusedLaunches": [e.to_wire() for e in entries]}})


def stored_of(snapshot):
    """The ledger after a run has recorded what the snapshot shows."""
    return a_ledger(*remember_launches(snapshot).entries)


def later(snapshot, minutes, **changes):
    return replace(snapshot, now=snapshot.now + minutes * MINUTE, **changes)


WEB = a_waiting_pod()


def test_pod_that_is_not_bound_to_its_node_waits_for_the_next_launch():
    """The entry names workload and pod; the next launch waits two minutes."""
    memory = remember_launches(a_cluster(WEB))
    [entry] = memory.entries
    assert (entry.kind, entry.name, entry.pods, entry.launches) == ("ReplicaSet", "web", ("uid-web-1",), 1)
    assert entry.until == NOW + 2 * MINUTE
    assert memory.waiting == {"default/web-1"}


@table(
    "snapshot",
    just_initialized=(a_cluster(WEB, claims=(a_claim_for(WEB, age=1.5 * MINUTE),)),),
    starting=(a_cluster(WEB, claims=(a_claim(true=("Launched", "Registered")),)),),
    no_node=(a_cluster(WEB, nodes=()),),
    of_others=(a_cluster(WEB, claims=(a_claim_for(a_pod("another")),)),),
    used=(a_cluster(WEB, a_waiting_pod("other", node="node-default-1")),),
    displaced=(a_cluster(WEB, a_waiting_pod("big", cpu="3", node="node-default-1")),),
    bound=(a_cluster(a_waiting_pod(node="node-default-1")),),
    older_than_the_pod=(a_cluster(WEB, claims=(a_claim_for(WEB, age=timedelta(hours=2)),)),),
)
def test_healthy_launch_is_not_counted(snapshot):
    """The node still starts, is used, was launched for others, or another pod took the place."""
    assert remember_launches(snapshot).entries == ()


@pytest.mark.parametrize(
    ("reason", "after", "counted"), [("Empty", 30, 1), ("Empty", 3, 0), ("Underutilized", 30, 0), (None, 30, 0)]
)
def test_node_that_is_removed_as_empty_counts_at_once(reason, after, counted):
    """Consolidation may be faster than the 40 seconds; a node that goes for another reason does not count before."""
    ready = [condition(t, since=ago(seconds=after)) for t in ("Launched", "Registered", "Initialized")]
    ready += [condition("DisruptionReason", reason=reason)] if reason else []
    claim = a_claim_for(WEB, status={"nodeName": "node-default-1", "conditions": ready}, deleting=NOW)
    assert len(remember_launches(a_cluster(WEB, claims=(claim,))).entries) == counted


def test_node_that_is_too_small_counts_as_soon_as_it_has_joined():
    """With what the DaemonSets take, whatever else runs there; the message has what was planned and what the node offers."""
    pod = a_waiting_pod(memory="14Gi")
    claim = a_claim_for(pod)
    starting = replace(claim, status=replace(claim.status, conditions=()))
    node = a_node(registered=False, status={"allocatable": {"memory": "14000Mi"}})
    [entry] = remember_launches(a_cluster(pod, claims=(starting,), nodes=(node,))).entries
    assert entry.message == (
        "node node-default-1 of type m.medium offers 13.672Gi memory, planned 16Gi (the pod requests 14Gi, DaemonSets 0Gi)"
    )

    agent = a_daemon_set("agent", memory="3Gi")
    memory = remember_launches(a_cluster(pod, claims=(claim,), daemon_sets=(agent,)))
    assert "DaemonSets 3Gi" in memory.entries[0].message


def test_wait_doubles_up_to_an_hour():
    """Each further node that is launched after a wait counts once."""
    waits, ledger = [], None
    for n in range(8):
        now = NOW + timedelta(hours=3 * n)
        claim = a_claim_for(WEB, name=f"c{n}", age=2 * MINUTE - timedelta(hours=3 * n))
        snapshot = replace(a_cluster(WEB, claims=(claim,), ledger=ledger), now=now)
        ledger = stored_of(snapshot)
        again = replace(snapshot, churn_ledger=ledger, now=now + MINUTE)
        assert remember_launches(again).entries == ledger.status.unused_launches
        waits.append((ledger.status.unused_launches[0].until - now) // MINUTE)
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]


def test_nodes_that_are_launched_together_count_once():
    """Forty pods without their nodes are one failure; an entry for so many pods is for all pods like them."""
    pods = [a_waiting_pod(f"web-{n}") for n in range(40)]
    claims = tuple(a_claim_for(pod, name=f"c{n}") for n, pod in enumerate(pods))
    few = remember_launches(a_cluster(*pods[:5], claims=claims[:5]))
    assert [(e.launches, len(e.pods)) for e in few.entries] == [(1, 5)]
    many = remember_launches(a_cluster(*pods, claims=claims))
    assert [(e.launches, e.pods) for e in many.entries] == [(1, ())]
    assert len(many.waiting) == 40 > MAX_UNUSED_PODS


def test_further_replica_waits_only_while_none_like_it_runs():
    """A pod that its controller creates again waits as before; beside one that runs, a new one gets its node."""
    entry_of = stored_of(a_cluster(a_waiting_pod()))
    again = a_waiting_pod("web-2")
    assert remember_launches(a_cluster(again, claims=(), ledger=entry_of)).waiting == {again.key}
    both = (a_waiting_pod(), again, a_waiting_pod("web-0", node="another"))
    assert remember_launches(a_cluster(*both, claims=(), ledger=entry_of)).waiting == {"default/web-1"}


@table(
    "changed",
    pod=({"pods": (a_waiting_pod(cpu="1"),)},),
    NodePool=({"node_pools": (a_pool(metadata={"generation": 2}),)},),
    another_NodePool=({"node_pools": (a_pool(), a_pool("more"))},),
    NodeClass=({"node_classes": (a_node_class(hash="edited"),)},),
)
def test_wait_ends_when_something_changes(changed):
    """The same node is not counted again for it."""
    snapshot = a_cluster(a_waiting_pod())
    ledger = stored_of(snapshot)
    assert remember_launches(later(snapshot, 1, churn_ledger=ledger)).waiting
    after = remember_launches(later(snapshot, 1, churn_ledger=ledger, claims=(), **changed))
    assert after.waiting == frozenset()


def test_entry_goes_when_its_pod_runs():
    """Later launches start from the beginning."""
    ledger = stored_of(a_cluster(a_waiting_pod()))
    bound = a_waiting_pod(node="node-default-1")
    assert remember_launches(a_cluster(bound, ledger=ledger)).entries == ()
    gone = replace(a_cluster(claims=(), ledger=ledger), now=NOW + timedelta(minutes=30))
    assert len(remember_launches(gone).entries) == 1
    assert remember_launches(replace(gone, now=NOW + timedelta(hours=2))).entries == ()


def test_entries_are_bounded_and_in_order():
    """Those of the fewest launches are left out."""
    pods = [a_waiting_pod(f"p{n}", workload=f"w{n:03}") for n in range(MAX_UNUSED + 5)]
    claims = tuple(a_claim_for(pod, name=f"c{n}") for n, pod in enumerate(pods))
    names = [entry.name for entry in remember_launches(a_cluster(*pods, claims=claims)).entries]
    assert names == [f"w{n:03}" for n in range(MAX_UNUSED)]


def test_plan_records_the_count_with_one_event_and_a_metric():
    """The patch changes its own field only; a repeated run changes nothing. A ledger that does not exist is created first."""
    snapshot = a_cluster(a_waiting_pod(), ledger=a_ledger())
    plan = record_unused_launches(snapshot)
    [chain] = plan.chains
    assert set(chain.actions[0].patch["status"]) == {"unusedLaunches"}
    assert chain.actions[0].resource_version == "1"
    [event] = chain.events
    assert event.reason == "LaunchDelayed"
    assert event.message.endswith("One launch was not used; the next one waits until 21:02 UTC")
    counted = [(o.name, o.labels["cause"]) for o in chain.observations]
    assert counted == [("journeyman_launches_unused_total", "unbound")]
    assert record_unused_launches(replace(snapshot, churn_ledger=stored_of(snapshot))).chains == ()
    [chain] = record_unused_launches(a_cluster(WEB)).chains
    assert [type(action).__name__ for action in chain.actions] == ["CreateObject", "Requeue"]
