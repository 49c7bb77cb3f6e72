"""DaemonSets that fit one by one, but not together, or that leave too little for any pod; `verify` accepts every plan."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.lifecycle.provisioning import scheduling_events
from journeyman.core.scheduling.scheduler import solve
from journeyman_simulator.judge import verify_strictly
from tests.helpers.builders import (
    a_daemon_set,
    a_launched_claim,
    a_node_class,
    a_pod,
    a_pool,
    a_snapshot,
    an_instance_type,
)

SMALL = an_instance_type("m.2xlarge", cpu=8, memory_gib=32, price=0.4)
LARGE = an_instance_type("m.4xlarge", cpu=16, memory_gib=64, price=0.8)


def plan(*pods, daemons, types=(SMALL, LARGE), **cluster):
    """The verified plan for these pods, and its snapshot."""
    snapshot = a_snapshot(pods=pods, daemon_sets=tuple(daemons), **cluster)
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    results = solve(snapshot, catalogue)
    assert verify_strictly(snapshot, catalogue, results, pods=pods) == ()
    return results, snapshot


def left_out(results):
    """The DaemonSets that are left out, by NodePool."""
    return {name: found.names for name, found in results.left_out.items()}


def empty_daemon_sets(count, **spec):
    """DaemonSets whose pods request nothing."""
    return [a_daemon_set(f"d{n:03}", cpu="0", memory="0", **spec) for n in range(count)]


@pytest.mark.parametrize(
    ("first", "second", "gone"),
    [
        ({"priority": 5}, {}, "kube-system/b"),
        ({}, {"priority": 5}, "kube-system/a"),
        ({}, {}, "kube-system/b"),
        ({"priority_class": "system-node-critical"}, {"priority": 9}, "kube-system/b"),
    ],
)
def test_of_two_daemon_sets_that_do_not_fit_together_the_lower_priority_is_left_out(first, second, gone):
    """With equal priorities it is the last by name; where the higher ones fit, theirs is the capacity first."""

    def spec(changes):
        critical = changes.pop("priority_class", "")
        return {**changes, **({"priorityClassName": critical} if critical else {})}

    daemons = [a_daemon_set("a", cpu="8", **spec({**first})), a_daemon_set("b", cpu="8", **spec({**second}))]

    results, _ = plan(a_pod("p"), daemons=daemons)

    assert [claim.pods for claim in results.new_claims] == [("default/p",)]
    assert left_out(results) == {"default": (gone,)}


def test_as_many_empty_daemon_sets_as_a_node_has_pods_leave_one_out():
    """The pod takes the place of the last of them."""
    results, _ = plan(a_pod("p"), daemons=empty_daemon_sets(110))

    assert results.pod_errors == {}
    assert left_out(results) == {"default": ("kube-system/d109",)}


def test_a_daemon_set_is_left_out_for_pods_of_its_priority_not_for_lower_ones():
    """kube-scheduler would bind the higher one first, and the pod would get no place on its node."""
    low, high = a_daemon_set("low", cpu="15"), a_daemon_set("high", cpu="15", priority=1)

    equal, _ = plan(a_pod("p", cpu="2"), daemons=[low])
    lower, _ = plan(a_pod("p", cpu="2"), daemons=[high])
    same, _ = plan(a_pod("p", cpu="2", spec={"priority": 1}), daemons=[high])

    assert (left_out(equal), equal.pod_errors) == ({"default": ("kube-system/low",)}, {})
    assert left_out(lower) == {}
    message = lower.pod_errors["default/p"].message
    assert "on its m.4xlarge DaemonSets take 15 vCPU of its 15.92 vCPU (kube-system/high 15 vCPU)" in message
    assert left_out(same) == {"default": ("kube-system/high",)}


def test_no_daemon_set_is_left_out_while_other_pods_get_nodes_beside_it():
    """The message of the pod that is too large for the rest says so; nodes for the others have capacity for the DaemonSet."""
    results, _ = plan(a_pod("large", cpu="2"), a_pod("small", cpu="500m"), daemons=[a_daemon_set("a", cpu="15")])

    assert left_out(results) == {}
    assert [claim.pods for claim in results.new_claims] == [("default/small",)]
    assert "kube-system/a 15 vCPU" in results.pod_errors["default/large"].message


def test_only_what_helps_is_left_out():
    """The small one of lower priority stays, as leaving it out as well would help no pod."""
    daemons = [a_daemon_set("huge", cpu="15"), a_daemon_set("tiny", cpu="100m", priority=-5)]

    results, _ = plan(a_pod("p", cpu="2"), daemons=daemons)

    assert left_out(results) == {"default": ("kube-system/huge",)}


def test_a_pod_with_another_node_pool_leaves_no_daemon_set_out():
    """The DaemonSet does not run on the NodePool of lower weight."""
    pools = (a_pool("a", spec={"weight": 9}), a_pool("b"))
    daemon = a_daemon_set("a", cpu="15", nodeSelector={labels.NODEPOOL: "a"})

    results, _ = plan(a_pod("p", cpu="2"), daemons=[daemon], node_pools=pools, node_classes=(a_node_class(),))

    assert left_out(results) == {}
    assert [claim.node_pool for claim in results.new_claims] == ["b"]


def test_a_node_in_flight_for_the_pod_is_counted_without_the_daemon_set():
    """No second node is launched for it."""
    capacity = {"cpu": "15920m", "memory": "60Gi", "pods": "110"}
    claim = a_launched_claim(
        metadata={"annotations": {labels.PLANNED_PODS: "default/p:uid-p"}},
        status={"capacity": capacity, "allocatable": capacity},
    )

    results, _ = plan(a_pod("p", cpu="2"), daemons=[a_daemon_set("a", cpu="15")], claims=(claim,))

    assert results.new_claims == ()
    assert list(results.existing.values()) == [("default/p",)]


def test_events_say_what_is_left_out_on_the_node_pool_and_on_the_daemon_set():
    """Also the message of a pod that still finds no node, here because of the limit."""
    pool = a_pool(spec={"limits": {"cpu": "1"}})
    results, snapshot = plan(a_pod("p"), daemons=[a_daemon_set("a", cpu="8"), a_daemon_set("b", cpu="8")])
    limited, _ = plan(a_pod("p"), daemons=[a_daemon_set("a", cpu="8"), a_daemon_set("b", cpu="8")], node_pools=(pool,))

    events = [e for e in scheduling_events(snapshot, results).events if e.reason == "DaemonSetLeftOut"]

    assert [str(event.ref) for event in events] == ["NodePool default", "DaemonSet kube-system/b"]
    assert all(
        "without DaemonSet kube-system/b (8 vCPU, 128Mi memory, priority 0)" in event.message for event in events
    )
    message = limited.pod_errors["default/p"].message
    assert "DaemonSets take 16 vCPU of its 15.92 vCPU (kube-system/a 8 vCPU, kube-system/b 8 vCPU)" in message


def test_a_node_pool_whose_daemon_sets_fill_every_type_says_so():
    """They are of higher priority than the pod, so none is left out; the message has no word of labels."""
    results, _ = plan(a_pod("p"), daemons=empty_daemon_sets(110, priority=1))

    message = results.pod_errors["default/p"].message
    assert "on its m.4xlarge DaemonSets take 110 pods of its 110 pods" in message
    assert "kube-system/d000 1 pod, kube-system/d001 1 pod, kube-system/d002 1 pod, 107 others" in message
    assert "keep some off it by node affinity" in message
    assert "labels" not in message
