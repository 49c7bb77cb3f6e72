"""Sweep: the steps that are due, from claims, pools and unassigned pods alone."""

from contextlib import suppress
from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NODEPOOL, Condition, OwnerReference
from journeyman.core.disruption.calendar import entry_prefix
from journeyman.core.plan import Step
from journeyman.core.state import InvalidObject
from journeyman.errors import CloudProviderError, RateLimitedError
from journeyman.ports import ScheduledRun
from journeyman.steps.sweep import due_steps, sweep
from tests.helpers.builders import (
    CLASS_LABEL,
    CLUSTER,
    NOW,
    a_claim,
    a_launched_claim,
    a_node_class,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    ago,
    claim_body,
    condition,
    pool_body,
    stamp,
)
from tests.helpers.fakes import Cluster, FakeWindowSchedules

FINALIZER = "karpenter.k8s.aws/termination"
QUIET = NOW.replace(minute=1)  # not a multiple of any period
READY = a_pool(status={"conditions": [condition(t, observedGeneration=1) for t in ("ValidationSucceeded", "Ready")]})


def due(**kwargs):
    snapshot = a_snapshot(**{"now": QUIET, "node_pools": (READY,), **kwargs})
    return {requeue.step for requeue in due_steps(snapshot)}


def trigger():
    return ScheduledRun(id="1", cluster="demo", step=Step.SWEEP, reason="because", time=NOW)


def consolidatable(name="default-1", *, more=(), **kwargs):
    types = ("Launched", "Registered", "Initialized", "Consolidatable")
    conditions = [*(condition(t, since=ago(hours=1)) for t in types), *more]
    return a_running_claim(name, status={"conditions": conditions}, **kwargs)


def disrupted(**changes):
    """Return a NodeClaim with the condition DisruptionReason, which is True unless `changes` say otherwise."""
    return consolidatable(more=(condition("DisruptionReason", **changes),))


def ready_pool(consolidate_after):
    return a_pool(spec={"disruption": {"consolidateAfter": consolidate_after}}, status=READY.to_wire()["status"])


def hashed(version, *, pool="default"):
    annotations = {labels.NODEPOOL_HASH: "123", labels.NODEPOOL_HASH_VERSION: version}
    return consolidatable(metadata={"annotations": annotations, "labels": {labels.NODEPOOL: pool}})


def unlabelled(claim):
    """Return the NodeClaim without the NodeClass label, as older releases of Karpenter created it."""
    kept = {key: value for key, value in claim.metadata.labels.items() if key != CLASS_LABEL}
    return replace(claim, metadata=replace(claim.metadata, labels=kept))


def disowned(claim):
    """Return the NodeClaim without the NodePool label; its ownerReference still names the NodePool."""
    kept = {key: value for key, value in claim.metadata.labels.items() if key != labels.NODEPOOL}
    owner = OwnerReference(api_version="karpenter.sh/v1", kind="NodePool", name="default", uid="uid-default")
    return replace(claim, metadata=replace(claim.metadata, labels=kept, owner_references=(owner,)))


def expiring(*, minutes_ago):
    """Return an initialized NodeClaim that was created so long ago and expires after an hour."""
    types = ("Launched", "Registered", "Initialized", "Consolidatable")
    age = timedelta(minutes=minutes_ago) - (QUIET - NOW)
    return a_running_claim(age=age, true=types, spec={"expireAfter": "1h"})


def invalid(kind="NodePool", *, reported=None):
    """Return an object of generation 2 that does not validate; its condition says so as of the generation `reported`."""
    conditions = () if reported is None else (Condition("ValidationSucceeded", "False", observed_generation=reported),)
    return InvalidObject(kind=kind, name="bad", uid="u", why="weight", generation=2, conditions=conditions)


AN_HOUR_OLD = {"claims": (a_running_claim(age=timedelta(hours=1)),)}
BY_REASON = {
    "nothing, in a cluster without nodes": ({}, set()),
    "nothing, in a settled one": ({"claims": (consolidatable(),)}, set()),
    "a pod without a node": ({"pods": (a_pod("p"),)}, {Step.PROVISION}),
    "a pod without the PodScheduled condition": (
        {"pods": (a_pod("p", spec={"schedulingGates": [{"name": "x"}]}, status={"conditions": []}),)},
        set(),
    ),
    "a claim without an instance": ({"claims": (a_claim(),)}, {Step.PROVISION}),
    "a claim whose node has not joined": ({"claims": (a_launched_claim(),)}, {Step.PROVISION}),
    "a claim that is being deleted": ({"claims": (a_launched_claim(deleting=NOW),)}, {Step.TERMINATE}),
    "a claim that is too old": ({"claims": (consolidatable(age=timedelta(days=31)),)}, {Step.TERMINATE}),
    "a claim before the last tenth of its hour": ({"claims": (expiring(minutes_ago=52),)}, set()),
    # the sweep looks every minute, so no message waits for days; the replacement starts in the last tenth
    "a claim in the last tenth of its hour": ({"claims": (expiring(minutes_ago=56),)}, {Step.TERMINATE}),
    "a claim at its end": ({"claims": (expiring(minutes_ago=60),)}, {Step.TERMINATE}),
    "a claim whose consolidateAfter has passed": (AN_HOUR_OLD, {Step.CONSOLIDATE}),
    "a disruption under way": ({"claims": (disrupted(),)}, {Step.CONSOLIDATE}),
    "a disruption that ended": ({"claims": (disrupted(status="False"),)}, set()),
    "a disruption of an expired claim, which terminate goes on with": (
        {"claims": (disrupted(reason="Expired"),)},
        set(),
    ),
    "a claim of a pool that never consolidates": ({**AN_HOUR_OLD, "node_pools": (ready_pool("Never"),)}, set()),
    "a claim whose consolidateAfter passes now": (
        {**AN_HOUR_OLD, "node_pools": (ready_pool("61m"),)},
        {Step.CONSOLIDATE},
    ),
    "a claim whose consolidateAfter has not passed": ({**AN_HOUR_OLD, "node_pools": (ready_pool("62m"),)}, set()),
    "a claim whose consolidateAfter started again with its last pod": (
        {"claims": (a_running_claim(age=timedelta(hours=1), status={"lastPodEventTime": stamp(QUIET)}),)},
        set(),
    ),
    "an invalid pool": ({"invalid_objects": (invalid(),)}, {Step.PROVISION}),
    "an invalid pool that changed since its condition": ({"invalid_objects": (invalid(reported=1),)}, {Step.PROVISION}),
    "an invalid pool whose condition says so": ({"invalid_objects": (invalid(reported=2),)}, set()),
    "an invalid overlay, which each step that reads it reports": (
        {"invalid_objects": (invalid("NodeOverlay"),)},
        set(),
    ),
    "a pool without conditions": ({"node_pools": (a_pool(),)}, {Step.PROVISION}),
    "a pool that changed since its conditions were written": (
        {"node_pools": (a_pool(metadata={"generation": 2}, status=READY.to_wire()["status"]),)},
        {Step.PROVISION},
    ),
    "a claim with a hash of another version": ({"claims": (hashed("v3"),)}, {Step.PROVISION}),
    "such a claim whose pool is gone": ({"claims": (hashed("v3", pool="gone"),)}, set()),
    "a claim that lost its finalizer": ({"claims": (consolidatable(metadata={"finalizers": []}),)}, {Step.PROVISION}),
    "a claim without its NodeClass's label": ({"claims": (unlabelled(consolidatable()),)}, {Step.PROVISION}),
    "a claim without its provider id": ({"claims": (consolidatable(provider_id=""),)}, {Step.PROVISION}),
    "a claim that is said to be ending": (
        {"claims": (consolidatable(more=(condition("InstanceTerminating"),)),)},
        {Step.TERMINATE},
    ),
    "a claim that is said to be initialized": (
        {"claims": (a_launched_claim(true=("Launched", "Initialized", "Consolidatable")),)},
        {Step.PROVISION},
    ),
    "a claim without its NodePool's label": ({"claims": (disowned(consolidatable()),)}, {Step.PROVISION}),
    "a claim on a capacity block that ends soon": (
        {
            "claims": (consolidatable(metadata={"labels": {labels.RESERVATION_ID: "cr-1"}}),),
            "node_classes": (a_node_class(block_ends={"cr-1": NOW + timedelta(minutes=39)}),),
        },
        {Step.PROVISION},
    ),
}


@pytest.mark.parametrize(("cluster", "steps"), BY_REASON.values(), ids=BY_REASON)
def test_each_reason_requeues_its_step_and_no_other(cluster, steps):
    assert due(**cluster) == steps


@pytest.mark.parametrize("user", ["NodePool", "NodeClaim", ""])
@pytest.mark.parametrize(
    ("node_class", "minute", "due_for"),
    [
        ({}, 1, set()),
        ({"generation": 2}, 1, {"NodePool", "NodeClaim"}),
        ({"deleting": True, "finalizers": (FINALIZER,)}, 1, {"NodePool", ""}),
        ({"deleting": True, "finalizers": (FINALIZER,)}, 10, {"NodePool", "NodeClaim", ""}),
        ({"deleting": True}, 1, set()),
    ],
    ids=["unchanged", "changed", "deleted", "deleted ten minutes ago", "deleted without our finalizer"],
)
def test_node_class_is_due_when_it_changes_and_until_it_is_finalized(node_class, minute, due_for, user):
    """A change matters to its users; a deletion waits for its NodeClaims, of which the step reminds every ten minutes."""
    of_another = a_pool(
        spec={"template": {"spec": {"nodeClassRef": {"name": "another"}}}}, status=READY.to_wire()["status"]
    )
    found = due(
        node_classes=(a_node_class(**node_class),),
        node_pools=(READY if user == "NodePool" else of_another,),
        claims=(consolidatable(),) if user == "NodeClaim" else (),
        now=NOW.replace(minute=minute),
    )
    assert (Step.PROVISION in found) is (user in due_for)


@pytest.mark.parametrize(("minute", "is_due"), [(1, False), (5, True), (10, True)])
def test_nodepool_that_is_not_ready_is_due_every_five_minutes(minute, is_due):
    """Its NodeClass may have become ready without an event that anyone saw."""
    conditions = [condition("ValidationSucceeded", observedGeneration=1), condition("Ready", "False")]
    found = due(node_pools=(a_pool(status={"conditions": conditions}),), now=NOW.replace(minute=minute))
    assert (Step.PROVISION in found) is is_due


@pytest.mark.parametrize(("claims", "enabled", "is_due"), [(1, True, True), (2, True, False), (1, False, False)])
def test_static_nodepool_is_due_until_it_has_its_replicas(claims, enabled, is_due):
    """Terminating NodeClaims do not count; without the feature gate static NodePools requeue no step."""
    pool = a_pool(spec={"replicas": 2}, status=READY.to_wire()["status"])
    living = tuple(consolidatable(name=f"c{n}") for n in range(claims))
    snapshot = a_snapshot(now=QUIET, node_pools=(pool,), claims=(*living, consolidatable(name="z", deleting=NOW)))
    due = due_steps(snapshot, static_capacity=enabled)
    assert (Step.PROVISION in {requeue.step for requeue in due}) == is_due


@pytest.mark.parametrize("claim", [consolidatable("going", deleting=NOW), a_launched_claim("coming")])
def test_a_budget_window_that_just_started_matters_to_nodes_that_stay(claim):
    """Consolidation can do nothing with one that leaves or has not joined. Two minutes later no window is starting."""
    budgets = [{"nodes": "1", "schedule": "1 21 * * *", "duration": "1h"}]
    pool = a_pool(spec={"disruption": {"budgets": budgets}}, status=READY.to_wire()["status"])
    assert due(node_pools=(pool,), claims=(consolidatable(),)) == {Step.CONSOLIDATE}
    assert due(node_pools=(pool,), claims=(consolidatable(),), now=QUIET + timedelta(minutes=2)) == set()
    assert Step.CONSOLIDATE not in due(node_pools=(pool,), claims=(claim,))
    assert Step.CONSOLIDATE in due(node_pools=(pool,), claims=(claim, consolidatable()))


def test_a_hibernation_window_requeues_consolidation_when_it_opens_and_provisioning_when_it_closes():
    """The window of a CapacityBuffer does so the other way round."""
    metadata = {"annotations": {labels.HIBERNATE: "1 21 * * * / 1h"}}
    pool = a_pool(metadata=metadata, status=READY.to_wire()["status"])
    assert due(node_pools=(pool,), claims=(consolidatable(),)) == {Step.CONSOLIDATE}
    assert due(node_pools=(pool,), now=QUIET + timedelta(minutes=30)) == set()
    assert due(node_pools=(pool,), now=QUIET + timedelta(hours=1)) == {Step.PROVISION}


def a_scheduled_cluster():
    """Return a cluster with a NodePool that hibernates at ten for an hour, as it is now in a cloud with a scheduler."""
    cluster, schedules = Cluster(), FakeWindowSchedules()
    cluster.add(pool_body(metadata={"annotations": {labels.HIBERNATE: "0 22 * * * / 1h"}}))
    return cluster, schedules


def times(schedules):
    return sorted((f"{entry.at:%H:%M}", entry.step.value) for entry in schedules.entries.values())


def test_sweep_keeps_schedule_entries_as_the_nodepools_say():
    """It creates them once, changes them with the NodePool, deletes them with it, and lists them every five minutes."""
    cluster, schedules = a_scheduled_cluster()
    leaked = "".join((entry_prefix(CLUSTER), "gone-12345678-c-20260303T0000Z"))
    schedules.entries[leaked] = schedules.entries["other-cluster"] = None

    sweep(cluster.run(window_schedules=schedules), trigger())
    assert schedules.entries.pop("other-cluster", "") is None
    assert times(schedules) == [("22:00", "consolidate"), ("23:00", "provision")]

    cluster.server.patch(NODEPOOL, "default", {"metadata": {"annotations": {labels.HIBERNATE: "30 22 * * * / 1h"}}})
    sweep(cluster.run(window_schedules=schedules), trigger())
    assert times(schedules) == [("22:30", "consolidate"), ("23:30", "provision")]

    cluster.server.delete(NODEPOOL, "default")
    sweep(cluster.run(window_schedules=schedules), trigger())
    assert (times(schedules), schedules.lists) == ([], 1)

    cluster.clock.advance_to(NOW + timedelta(minutes=5))
    sweep(cluster.run(window_schedules=schedules), trigger())
    assert schedules.lists == 2


@pytest.mark.parametrize("error", [RateLimitedError("slow down"), CloudProviderError("not allowed: grant it")])
def test_refused_schedule_entries_hold_nothing_up(error):
    """The sweep sends its messages, then reports the error; the next sweep creates the entries."""
    cluster, schedules = a_scheduled_cluster()
    cluster.add(claim_body("going", metadata={"deletionTimestamp": stamp(NOW)}))
    schedules.fails = error
    with suppress(CloudProviderError):
        sweep(cluster.run(window_schedules=schedules), trigger())
    assert Step.TERMINATE in {m.step for m in cluster.queue.sent}
    assert error.message in str(cluster.record.lines)

    schedules.fails = None
    sweep(cluster.run(window_schedules=schedules), trigger())
    assert times(schedules) == [("22:00", "consolidate"), ("23:00", "provision")]


def test_garbage_and_consolidation_are_due_at_intervals():
    """Schedules fire seconds late; still, the sweeps of one hour find each period due exactly once.

    What has no node is found by the period alone: a NodeDisruption whose requeue message was lost, in a cluster without
    NodeClaims or with one that starts, since the sweep reads no NodeDisruptions.
    """
    sweeps = [NOW + timedelta(minutes=m, seconds=(m * 7) % 20 - 5) for m in range(60)]
    seen = [due(now=at, claims=(consolidatable(age=at - NOW),)) for at in sweeps]
    assert sum(Step.TERMINATE in steps for steps in seen) == 30
    assert sum(Step.CONSOLIDATE in steps for steps in seen) == 30
    assert sum(Step.CONSOLIDATE in due(now=NOW + timedelta(minutes=m)) for m in range(60)) == 6
    with_one_that_starts = [due(now=NOW.replace(minute=minute), claims=(a_claim(),)) for minute in (1, 2, 3)]
    assert [Step.CONSOLIDATE in steps for steps in with_one_that_starts] == [False, True, False]


def test_sweep_sends_messages_and_writes_nothing():
    """It runs without a Lease."""
    cluster = Cluster()
    cluster.add(claim_body("going", metadata={"deletionTimestamp": stamp(NOW)}))
    writes = []
    cluster.server.on_write(writes.append)
    outcome = sweep(cluster.run(), trigger())
    assert {m.step for m in cluster.queue.sent} >= {Step.TERMINATE}
    assert {m.at for m in cluster.queue.sent} == {None}
    assert (writes, cluster.fence.releases, outcome.step) == ([], 0, Step.SWEEP)
