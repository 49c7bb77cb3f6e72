"""The Consolidatable condition and lastPodEventTime."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.disruption.consolidatable import assess_consolidatable, pods_hash
from tests.helpers.builders import NOW, ago, condition, stamp
from tests.helpers.fleets import a_fleet, a_member, a_pod, a_pool

SECONDS = timedelta(seconds=1)
AGO = ago(hours=2)


def seen(*pods) -> dict:
    """A NodeClaim manifest whose pods-hash annotation covers these pods."""
    return {"metadata": {"annotations": {labels.PODS_HASH: pods_hash(pods)}}}


def held(*types, initialized=True, since=AGO, status="True"):
    """Conditions of a NodeClaim that is initialized since a time, or not, and has these conditions too."""
    stages = [condition(t, since=ago(hours=2), observedGeneration=1) for t in ("Launched", "Registered", *types)]
    return [*stages, condition("Initialized", status, since=since, observedGeneration=1)]


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
    conditions = held("Ready", "Consolidatable")
    node = a_member("n", quiet_for=10 * SECONDS, claim={**seen(), "status": {"conditions": conditions}})
    found = assess_consolidatable(a_fleet(node))
    assert (found.claims, found.within_window, found.next_at) == (frozenset(), {"n"}, NOW + 20 * SECONDS)
    assert {c["type"] for c in patched(found, "conditions")} == {c["type"] for c in conditions} - {"Consolidatable"}


@pytest.mark.parametrize("replicas", [None, 3], ids=["never", "static"])
@pytest.mark.parametrize("status", ["True", "Unknown", "False"])
def test_node_is_not_consolidatable_when_consolidate_after_is_never_or_it_is_not_initialized(replicas, status):
    """Nodes of a static NodePool are not either. kube-scheduler has yet to bind pods to an uninitialized node.

    A condition that says otherwise is removed.
    """
    pool = a_pool(**({"consolidateAfter": "Never"} if status == "True" and not replicas else {}))
    static = pool.model_copy(update={"spec": pool.spec.model_copy(update={"replicas": replicas})})
    claim = {**seen(), "status": {"conditions": held("Consolidatable", status=status)}}

    found = assess_consolidatable(a_fleet(a_member("n", initialized=status == "True", claim=claim), pools=[static]))

    assert (found.claims, found.within_window) == (frozenset(), frozenset())
    assert "Consolidatable" not in {c["type"] for c in patched(found, "conditions")}


@pytest.mark.parametrize(("seconds", "consolidatable"), [(29, False), (30, True)])
def test_consolidate_after_counts_from_initialization_while_no_pod_was_seen(seconds, consolidatable):
    """The NodeClaim has no lastPodEventTime; consolidateAfter is 30 seconds."""
    status = {"conditions": held(since=ago(seconds=seconds)), "lastPodEventTime": None}
    found = assess_consolidatable(a_fleet(a_member("n", claim={**seen(), "status": status})))
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
    fleet = a_fleet(a_member("n", pods=[a_pod("p", node="node-n")], claim=seen()))
    for part in ({"nodes": ()}, {"claims": ()}):
        found = assess_consolidatable(replace(fleet, **part))
        assert patched(found, "lastPodEventTime") is None
        assert not found.claims | found.within_window


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


@pytest.mark.parametrize(("quiet_for", "written"), [(5, None), (300, stamp(NOW))])
def test_last_pod_event_time_is_written_at_most_every_ten_seconds(quiet_for, written):
    """The decision counts consolidateAfter from the current time: a new pod is an event."""
    node = a_member("n", quiet_for=quiet_for * SECONDS, pods=[a_pod("p", node="node-n")], claim=seen())
    found = assess_consolidatable(a_fleet(node))
    assert (found.next_at, patched(found, "lastPodEventTime")) == (NOW + 30 * SECONDS, written)
    assert any(labels.PODS_HASH in str(a.patch) for a in found.plan.actions) is bool(written)


def test_unchanged_nodeclaim_is_not_written():
    """A second run that reads the conditions written by the first has no actions.

    Nor has one for a NodeClaim that is written elsewhere: its patch of all conditions would undo the other.
    """
    first = assess_consolidatable(a_fleet(a_member("n", claim=seen())))
    written = patched(first, "conditions")
    again = a_fleet(a_member("n", claim={**seen(), "status": {"conditions": written}}))

    assert assess_consolidatable(again).plan.chains == ()
    assert assess_consolidatable(replace(again, now=NOW + timedelta(hours=1))).plan.chains == ()
    found = assess_consolidatable(a_fleet(a_member("n", claim=seen())), without_writes=frozenset({"n"}))

    assert (found.claims, found.plan.chains) == ({"n"}, ())


def test_next_change_is_the_earliest_end_of_consolidate_after():
    """The step requeues itself for that time."""
    members = [a_member(f"n{s}", quiet_for=s * SECONDS, claim=seen()) for s in (5, 20)]
    assert assess_consolidatable(a_fleet(*members)).next_at == NOW + 10 * SECONDS


@pytest.mark.parametrize("status", ["False", "True"])
def test_pod_that_kube_scheduler_did_not_bind_counts_from_its_start_time(status):
    """Static and directly bound pods have no PodScheduled condition that is True."""
    scheduled = condition("PodScheduled", since=ago(seconds=50), status=status)
    pod = a_pod("p", node="node-n", status={"conditions": [scheduled], "startTime": stamp(ago(seconds=40))})
    found = assess_consolidatable(a_fleet(a_member("n", pods=[pod], claim={"status": {"lastPodEventTime": None}})))
    assert patched(found, "lastPodEventTime") == stamp(ago(seconds=50 if status == "True" else 40))
