"""Consolidatable: when a node has been quiet for long enough."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.disruption.consolidatable import assess_consolidatable, pods_hash
from tests.helpers.builders import NOW, ago, condition, stamp
from tests.helpers.fleets import a_fleet, a_member, a_pod, a_pool

SECONDS = timedelta(seconds=1)


def seen(*pods) -> dict:
    """A claim that has counted these pods already."""
    return {"metadata": {"annotations": {labels.PODS_HASH: pods_hash(pods)}}}


def patched(found, key: str):
    """What the plan writes into `status` under that key, None if it does not."""
    patches = [a.patch["status"] for a in found.plan.actions if "status" in a.patch]
    return next((status.get(key) for status in patches if key in status), None)


def test_a_node_is_consolidatable_once_its_pods_were_left_alone_for_long_enough():
    """True at the very second; the condition is written with the version that was read."""
    node = a_member("n", quiet_for=30 * SECONDS, claim=seen())

    found = assess_consolidatable(a_fleet(node))

    assert (found.claims, found.within_window, found.next_at) == ({"n"}, frozenset(), None)
    (patch,) = found.plan.actions
    assert (patch.resource_version, patch.subresource) == ("7", "status")
    assert [c["status"] for c in patch.patch["status"]["conditions"] if c["type"] == "Consolidatable"] == ["True"]
    [chain] = found.plan.chains
    assert ("n", "Consolidatable") in {(e.ref.name, e.reason) for e in chain.events}
    assert all(o.labels["status"] == "True" for o in chain.observations)


def test_a_node_within_its_window_waits_and_says_when_it_ends():
    """The condition is taken away, all others stay, and the step knows when to look again."""
    held = ("Launched", "Registered", "Initialized", "Ready", "Consolidatable")
    conditions = [condition(type_, since=ago(hours=2), observedGeneration=1) for type_ in held]
    node = a_member("n", quiet_for=10 * SECONDS, claim={**seen(), "status": {"conditions": conditions}})

    found = assess_consolidatable(a_fleet(node))

    assert (found.claims, found.within_window, found.next_at) == (frozenset(), {"n"}, NOW + 20 * SECONDS)
    assert {c["type"] for c in patched(found, "conditions")} == set(held) - {"Consolidatable"}


@pytest.mark.parametrize(
    "pool",
    [a_pool(consolidateAfter="Never"), a_pool("static")],
)
def test_a_pool_that_never_consolidates_has_no_consolidatable_nodes(pool):
    """Never means never, however quiet."""
    node = a_member("n", pool=pool.metadata.name, claim=seen())
    static = pool.model_copy(update={"spec": pool.spec.model_copy(update={"replicas": 3})})

    found = assess_consolidatable(a_fleet(node, pools=[pool if pool.metadata.name == "default" else static]))

    assert (found.claims, found.within_window) == (frozenset(), frozenset())


def test_a_node_that_is_not_initialized_is_not_judged_by_its_quiet():
    """Its pods have yet to come."""
    found = assess_consolidatable(a_fleet(a_member("n", initialized=False, claim=seen())))

    assert found.claims == frozenset()
    assert found.within_window == frozenset()


def test_scaling_down_restarts_the_clock():
    """A pod that has gone shows in the digest: the window begins again now, and both are written, status first."""
    stays, goes = a_pod("stays", node="node-n"), a_pod("goes", node="node-n")
    node = a_member("n", pods=[stays], claim=seen(stays, goes))

    found = assess_consolidatable(a_fleet(node))

    assert found.within_window == {"n"}
    assert found.next_at == NOW + 30 * SECONDS
    assert patched(found, "lastPodEventTime") == stamp(NOW)
    assert [a.subresource for a in found.plan.actions] == ["status", ""]
    assert found.plan.actions[1].patch == {"metadata": {"annotations": {labels.PODS_HASH: pods_hash([stays])}}}


def test_a_pod_that_begins_to_terminate_counts_once():
    """It restarts the clock as it begins; that it is gone a moment later is no second event."""
    going = a_pod("p", node="node-n", metadata={"deletionTimestamp": stamp(NOW)})

    began = assess_consolidatable(a_fleet(a_member("n", pods=[going], claim=seen(a_pod("p", node="node-n")))))
    ended = assess_consolidatable(a_fleet(a_member("n", claim=seen(going))))

    assert patched(began, "lastPodEventTime") == stamp(NOW)
    assert patched(ended, "lastPodEventTime") is None


def test_daemons_coming_and_going_do_not_restart_the_clock():
    """Every node has them; they say nothing about use."""
    daemon = a_pod("daemon", node="node-n", owner="DaemonSet")

    found = assess_consolidatable(a_fleet(a_member("n", pods=[daemon], claim=seen())))

    assert found.claims == {"n"}


def test_the_first_look_takes_the_newest_sign_of_the_pods_that_are_there():
    """Nothing is known of what went before; a pod bound ten seconds ago keeps the node from being quiet."""
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(ago(seconds=10))}]
    fresh = a_pod("fresh", node="node-n", status={"conditions": conditions})

    found = assess_consolidatable(a_fleet(a_member("n", pods=[fresh])))

    assert patched(found, "lastPodEventTime") == stamp(ago(seconds=10))
    assert found.next_at == NOW + 20 * SECONDS


def test_events_in_quick_succession_are_written_once_in_ten_seconds():
    """A rollout of a hundred pods must not be a hundred writes; the decision still counts from now."""
    node = a_member("n", quiet_for=5 * SECONDS, pods=[a_pod("p", node="node-n")], claim=seen())

    found = assess_consolidatable(a_fleet(node))

    assert found.next_at == NOW + 30 * SECONDS
    assert patched(found, "lastPodEventTime") is None
    assert all(labels.PODS_HASH not in str(a.patch) for a in found.plan.actions)


def test_nothing_is_written_when_nothing_changed():
    """Judged again from what was written, the same moment asks for no write: a quiet cluster stays quiet."""
    first = assess_consolidatable(a_fleet(a_member("n", claim=seen())))
    written = patched(first, "conditions")
    again = a_fleet(a_member("n", claim={**seen(), "status": {"conditions": written}}))

    assert assess_consolidatable(again).plan.chains == ()
    assert assess_consolidatable(replace(again, now=NOW + timedelta(hours=1))).plan.chains == ()


def test_claims_that_others_write_are_judged_and_left_alone():
    """Conditions are one list: two writers in a run would undo each other."""
    found = assess_consolidatable(a_fleet(a_member("n", claim=seen())), without_writes=frozenset({"n"}))

    assert found.claims == {"n"}
    assert found.plan.chains == ()
