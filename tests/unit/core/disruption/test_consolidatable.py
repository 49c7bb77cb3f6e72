"""The Consolidatable condition and lastPodEventTime."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Condition
from journeyman.core.disruption.consolidatable import assess_consolidatable, pods_hash
from tests.helpers.builders import NOW, ago, condition, stamp
from tests.helpers.fleets import a_fleet, a_member, a_pod, a_pool

SECONDS = timedelta(seconds=1)


def seen(*pods) -> dict:
    """A NodeClaim manifest whose pods-hash annotation covers these pods."""
    return {"metadata": {"annotations": {labels.PODS_HASH: pods_hash(pods)}}}


def patched(found, key: str):
    """The value that the plan writes to this field of `status`; None if it does not write it."""
    patches = [a.patch["status"] for a in found.plan.actions if "status" in a.patch]
    return next((status.get(key) for status in patches if key in status), None)


def test_node_is_consolidatable_after_consolidate_after():
    """The plan writes the condition at the resource version that was read, and records an Event."""
    node = a_member("n", quiet_for=30 * SECONDS, claim=seen())

    found = assess_consolidatable(a_fleet(node))

    assert (found.claims, found.within_window, found.next_at) == ({"n"}, frozenset(), None)
    (patch,) = found.plan.actions
    assert (patch.resource_version, patch.subresource) == ("7", "status")
    assert [c["status"] for c in patch.patch["status"]["conditions"] if c["type"] == "Consolidatable"] == ["True"]
    [chain] = found.plan.chains
    assert ("n", "Consolidatable") in {(e.ref.name, e.reason) for e in chain.events}
    assert all(o.labels["status"] == "True" for o in chain.observations)


def test_node_within_consolidate_after_is_not_consolidatable():
    """The condition is removed, all others stay, and the end of consolidateAfter is returned."""
    held = ("Launched", "Registered", "Initialized", "Ready", "Consolidatable")
    conditions = [condition(type_, since=ago(hours=2), observedGeneration=1) for type_ in held]
    node = a_member("n", quiet_for=10 * SECONDS, claim={**seen(), "status": {"conditions": conditions}})

    found = assess_consolidatable(a_fleet(node))

    assert (found.claims, found.within_window, found.next_at) == (frozenset(), {"n"}, NOW + 20 * SECONDS)
    assert {c["type"] for c in patched(found, "conditions")} == set(held) - {"Consolidatable"}


@pytest.mark.parametrize("pool", [a_pool(consolidateAfter="Never"), a_pool("static")])
def test_node_is_not_consolidatable_when_consolidate_after_is_never(pool):
    """Nodes of a static NodePool are not consolidatable either."""
    stages = ("Launched", "Registered", "Initialized", "Consolidatable")
    held = {"status": {"conditions": [condition(t, since=ago(hours=2), observedGeneration=1) for t in stages]}}
    node = a_member("n", pool=pool.metadata.name, claim={**seen(), **held})
    static = pool.model_copy(update={"spec": pool.spec.model_copy(update={"replicas": 3})})

    found = assess_consolidatable(a_fleet(node, pools=[pool if pool.metadata.name == "default" else static]))

    assert (found.claims, found.within_window) == (frozenset(), frozenset())
    assert "Consolidatable" not in {c["type"] for c in patched(found, "conditions")}


@pytest.mark.parametrize("status", ["Unknown", "False"])
def test_uninitialized_node_is_not_consolidatable(status):
    """kube-scheduler has yet to bind its pods. A condition that says otherwise is removed."""
    conditions = [
        condition(t, since=ago(hours=2), observedGeneration=1) for t in ("Launched", "Registered", "Consolidatable")
    ]
    conditions.append(condition("Initialized", status, since=ago(hours=2), observedGeneration=1))
    claim = {**seen(), "status": {"conditions": conditions}}

    found = assess_consolidatable(a_fleet(a_member("n", initialized=False, claim=claim)))

    assert found.claims == frozenset()
    assert found.within_window == frozenset()
    assert "Consolidatable" not in {c["type"] for c in patched(found, "conditions")}


@pytest.mark.parametrize(("seconds", "consolidatable"), [(29, False), (30, True)])
def test_consolidate_after_counts_from_initialization_while_no_pod_was_seen(seconds, consolidatable):
    """The NodeClaim has no lastPodEventTime; consolidateAfter is 30 seconds."""
    conditions = [condition(t, since=ago(hours=1), observedGeneration=1) for t in ("Launched", "Registered")]
    conditions.append(condition("Initialized", since=ago(seconds=seconds), observedGeneration=1))
    claim = {**seen(), "status": {"conditions": conditions, "lastPodEventTime": None}}

    found = assess_consolidatable(a_fleet(a_member("n", claim=claim)))

    assert (found.claims == {"n"}) is consolidatable


def test_removed_pod_restarts_consolidate_after():
    """The plan writes lastPodEventTime first, and then the changed pods hash."""
    stays, goes = a_pod("stays", node="node-n"), a_pod("goes", node="node-n")
    node = a_member("n", pods=[stays], claim=seen(stays, goes))

    found = assess_consolidatable(a_fleet(node))

    assert found.within_window == {"n"}
    assert found.next_at == NOW + 30 * SECONDS
    assert patched(found, "lastPodEventTime") == stamp(NOW)
    assert [a.subresource for a in found.plan.actions] == ["status", ""]
    assert found.plan.actions[1].patch == {"metadata": {"annotations": {labels.PODS_HASH: pods_hash([stays])}}}


def test_pod_events_need_a_node_and_its_claim():
    """A NodeClaim without its Node, and a Node without a NodeClaim, have none."""
    pod = a_pod("p", node="node-n")
    member = a_member("n", pods=[pod], claim=seen())
    fleet = a_fleet(member)
    for part in ({"nodes": ()}, {"claims": ()}):
        found = assess_consolidatable(replace(fleet, **part))
        assert (patched(found, "lastPodEventTime"), found.claims, found.within_window) == (
            None,
            frozenset(),
            frozenset(),
        )


def test_new_pod_replaces_an_older_last_pod_event_time():
    """It was set five minutes ago."""
    node = a_member("n", quiet_for=300 * SECONDS, pods=[a_pod("p", node="node-n")], claim=seen())
    assert patched(assess_consolidatable(a_fleet(node)), "lastPodEventTime") == stamp(NOW)


def test_terminating_pod_restarts_consolidate_after_once():
    """The removal of the terminating pod does not restart it again."""
    going = a_pod("p", node="node-n", metadata={"deletionTimestamp": stamp(NOW)})

    began = assess_consolidatable(a_fleet(a_member("n", pods=[going], claim=seen(a_pod("p", node="node-n")))))
    ended = assess_consolidatable(a_fleet(a_member("n", claim=seen(going))))

    assert patched(began, "lastPodEventTime") == stamp(NOW)
    assert patched(ended, "lastPodEventTime") is None


def test_daemonset_pods_do_not_restart_consolidate_after():
    """A new DaemonSet pod is not a pod event."""
    daemon = a_pod("daemon", node="node-n", owner="DaemonSet")

    found = assess_consolidatable(a_fleet(a_member("n", pods=[daemon], claim=seen())))

    assert found.claims == {"n"}


def test_first_run_sets_last_pod_event_time_to_the_last_pod_binding():
    """The first run does not know which pods were removed."""
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(ago(seconds=10))}]
    fresh = a_pod("fresh", node="node-n", status={"conditions": conditions})

    found = assess_consolidatable(a_fleet(a_member("n", pods=[fresh])))

    assert patched(found, "lastPodEventTime") == stamp(ago(seconds=10))
    assert found.next_at == NOW + 20 * SECONDS


def test_last_pod_event_time_is_written_at_most_every_ten_seconds():
    """The decision still counts consolidateAfter from the current time."""
    node = a_member("n", quiet_for=5 * SECONDS, pods=[a_pod("p", node="node-n")], claim=seen())

    found = assess_consolidatable(a_fleet(node))

    assert found.next_at == NOW + 30 * SECONDS
    assert patched(found, "lastPodEventTime") is None
    assert all(labels.PODS_HASH not in str(a.patch) for a in found.plan.actions)


def test_unchanged_nodeclaim_is_not_written():
    """A second run that reads the conditions written by the first has no actions."""
    first = assess_consolidatable(a_fleet(a_member("n", claim=seen())))
    written = patched(first, "conditions")
    again = a_fleet(a_member("n", claim={**seen(), "status": {"conditions": written}}))

    assert assess_consolidatable(again).plan.chains == ()
    assert assess_consolidatable(replace(again, now=NOW + timedelta(hours=1))).plan.chains == ()


def test_nodeclaim_is_not_written_when_it_is_excluded_from_writes():
    """A patch replaces the whole list of conditions, so a second patch in the same run would undo the first."""
    found = assess_consolidatable(a_fleet(a_member("n", claim=seen())), without_writes=frozenset({"n"}))

    assert found.claims == {"n"}
    assert found.plan.chains == ()


def test_next_change_is_the_earliest_end_of_consolidate_after():
    """The step requeues itself for that time."""
    members = [a_member(f"n{s}", quiet_for=s * SECONDS, claim=seen()) for s in (5, 20)]

    assert assess_consolidatable(a_fleet(*members)).next_at == NOW + 10 * SECONDS


@pytest.mark.parametrize("status", ["False", "True"])
def test_pod_that_kube_scheduler_did_not_bind_counts_from_its_start_time(status):
    """Static and directly bound pods have no PodScheduled condition that is True."""
    scheduled = condition("PodScheduled", since=ago(seconds=50), status=status)
    pod = a_pod("p", node="node-n")
    changed = replace(
        pod.status, conditions=msgspec.convert([scheduled], tuple[Condition, ...]), start_time=ago(seconds=40)
    )
    member = a_member("n", pods=[replace(pod, status=changed)], claim={"status": {"lastPodEventTime": None}})

    found = assess_consolidatable(a_fleet(member))

    assert patched(found, "lastPodEventTime") == stamp(ago(seconds=50 if status == "True" else 40))
