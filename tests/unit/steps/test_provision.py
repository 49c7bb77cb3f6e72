"""Provision: from pending pods to joined nodes, run by run, on the in-memory API server."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, OFFERING_STATE, condition_of
from journeyman.core.plan import Step
from journeyman.errors import (
    CloudProviderError,
    CreateError,
    InsufficientCapacityError,
    RateLimitedError,
)
from journeyman.ports import ClusterChanged
from journeyman.steps.context import Memory
from journeyman.steps.provision import provision
from journeyman_simulator.kubelet import BOOT, Kubelets
from tests.fuzz.expensive_pods import SHAPES
from tests.helpers.builders import NOW, claim_body, condition, merge, node_class_body, pod_body, pool_body, stamp
from tests.helpers.fakes import Altered, Cluster, InterceptingStore, failing

TRIGGER = ClusterChanged(id="1", cluster="demo", step=Step.PROVISION, reason="pods", time=NOW)


@pytest.fixture
def cluster():
    cluster = Cluster()
    cluster.add(pool_body(), node_class_body())
    return cluster


def run(cluster, **changes):
    cluster.queue.sent.clear()
    return provision(cluster.run(**changes), TRIGGER)


def add_pods(cluster, number, **changes):
    cluster.add(*(pod_body(f"p{i}", **changes) for i in range(number)))


def claims(cluster):
    return cluster.server.list(NODECLAIM).items


def requeue_of(cluster, step):
    return next((m for m in cluster.queue.sent if m.step is step), None)


def test_pending_pods_get_nodes_in_one_run(cluster):
    """The run creates NodeClaims with finalizer and planned pods, launches instances, and requeues the step.

    Later runs count them as capacity.
    """
    add_pods(cluster, 10)
    outcome = run(cluster)

    made = claims(cluster)
    assert sum(len(c.metadata.annotations[labels.PLANNED_PODS].split(",")) for c in made) == 10
    assert all(c.status.provider_id and labels.TERMINATION_FINALIZER in c.metadata.finalizers for c in made)
    assert cluster.record.reasons.count("Nominated") == 10
    assert cluster.record.count_of("karpenter_nodeclaims_created_total") == len(made)
    assert requeue_of(cluster, Step.PROVISION).at == NOW + timedelta(seconds=5)
    assert outcome.status == "done"

    launched = list(cluster.cloud.launches)
    for _ in range(3):
        cluster.clock.advance(5)
        run(cluster)
    assert cluster.cloud.launches == launched


@pytest.mark.parametrize(
    ("fitting", "stuck", "logged"), [(0, 0, []), (2, 0, [("info", 2)]), (0, 3, [("debug", 3)]), (2, 3, [("info", 5)])]
)
def test_log_counts_the_pods_that_a_run_schedules(cluster, fitting, stuck, logged):
    """At info only if it launches nodes for some: every run finds those that fit nowhere."""
    add_pods(cluster, fitting)
    cluster.add(*(pod_body(f"stuck-{number}", cpu="500") for number in range(stuck)))
    run(cluster)
    lines = [(level, fields["number"]) for level, text, fields in cluster.record.lines if "provisionable pod" in text]
    assert lines == logged


def test_unchanged_cluster_is_not_solved_again(cluster):
    """Each run emits an Event on an unschedulable pod; the step solves again once there is another pod."""
    add_pods(cluster, 1, cpu="500")
    is_solved, known = [], cluster.memory.cached_results
    for number in range(4):
        if number == 3:
            cluster.add(pod_body("another", cpu="500"))
        run(cluster)
        is_solved.append(cluster.memory.cached_results is not known)
        known = cluster.memory.cached_results

    assert is_solved == [True, True, False, True]  # the first run writes the NodePool's conditions
    assert len(known.by_problem) == 1
    assert cluster.record.reasons.count("FailedScheduling") == 5


def test_pods_are_explained_after_all_nodes_are_launched(cluster):
    """However long it takes to find out why one pod fits nowhere, no other pod waits for it."""
    add_pods(cluster, 3)
    cluster.add(pod_body("stuck", cpu="500"))
    reasons_at_writes = []
    cluster.server.on_write(lambda write: reasons_at_writes.append((write.resource, list(cluster.record.reasons))))

    run(cluster)

    (message,) = [e.message for e in cluster.record.events if e.reason == "FailedScheduling"]
    assert "Smallest change: request at most" in message
    assert all(claim.status.provider_id for claim in claims(cluster))
    assert not any("FailedScheduling" in reasons for kind, reasons in reasons_at_writes if kind is NODECLAIM)
    assert NODECLAIM in {kind for kind, _ in reasons_at_writes}


def test_claims_without_an_instance_are_launched_before_planning(cluster):
    """An earlier run crashed between creation and launch; this one launches its NodeClaim, which keeps its pods."""
    body = claim_body("cut-off", metadata={"annotations": {labels.PLANNED_PODS: "default/p0,default/p1"}})
    cluster.add(body)
    add_pods(cluster, 2)
    run(cluster)
    assert cluster.cloud.launches == ["cut-off"]
    assert [c.metadata.name for c in claims(cluster)] == ["cut-off"]


def test_lost_launch_response_makes_no_second_instance(cluster):
    """The NodeClaim's UID is the client token, so the next run finds the instance."""
    add_pods(cluster, 1)
    die = failing(MemoryError())
    with pytest.raises(MemoryError):  # the process dies at the patch of the launched NodeClaim's status
        run(cluster, store=InterceptingStore(cluster.server, "patch", 6, die))
    assert [c.status.provider_id for c in claims(cluster)] == [""]

    run(cluster)
    assert len(cluster.cloud.list()) == 1
    assert claims(cluster)[0].status.provider_id == cluster.cloud.list()[0].provider_id


def test_nodes_that_joined_are_registered_and_initialized(cluster):
    """Runs at the times of the requeue messages lead from unschedulable pods to Ready NodeClaims."""
    add_pods(cluster, 3)
    kubelets = Kubelets(cluster.server, cluster.clock, cluster.cloud)
    run(cluster)
    while "Ready" not in {c.type for c in claims(cluster)[0].status.conditions if c.status == "True"}:
        requeue = requeue_of(cluster, Step.PROVISION)
        assert requeue is not None
        cluster.clock.advance_to(requeue.at)
        kubelets.act()
        run(cluster)
        assert cluster.clock.now() < NOW + BOOT + timedelta(minutes=1)
    run(cluster)  # the NodePool's status counts the nodes at the start of a run

    (node,) = cluster.server.list(NODE).items
    assert node.metadata.labels[labels.INITIALIZED] == "true"
    assert not node.spec.taints
    assert {(c.type, c.status) for c in claims(cluster)[0].status.conditions} >= {("Ready", "True")}
    assert cluster.server.get(NODEPOOL, "default")["status"]["nodes"] == 1


def test_next_run_uses_another_offering_after_insufficient_capacity(cluster):
    """The offering is unavailable for three minutes, the NodeClaim is deleted, the pods are scheduled again at once."""
    add_pods(cluster, 1)
    cluster.cloud.types = tuple(t for t in cluster.cloud.types if t.name in {"m.small", "m.large"})
    refused = (("m.small", "a", "on-demand"),)
    cluster.cloud.failures = [InsufficientCapacityError("none left", offerings=refused)]
    run(cluster)
    assert requeue_of(cluster, Step.PROVISION).at is None
    (avoided,) = cluster.server.get(OFFERING_STATE, "default")["status"]["unavailable"]
    assert (avoided["instanceType"], avoided["until"]) == ("m.small", "2026-03-02T21:03:00Z")
    assert "InsufficientCapacityError" in cluster.record.reasons

    run(cluster)
    assert [i.instance_type for i in cluster.cloud.list()] == ["m.large"]


@pytest.mark.parametrize(("age", "again"), [(5, 10), (59, 10), (60, None)])
def test_new_pods_planned_for_an_existing_node_are_checked_again(cluster, age, again):
    """kube-scheduler may bind other pods there first, and sends no event of it; later the sweep checks.

    Pods that run there do not matter.
    """
    size = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    node = {"metadata": {"name": "n"}, "spec": {}, "status": {"capacity": size, "allocatable": size}}
    cluster.add({"apiVersion": "v1", "kind": "Node", **node})
    cluster.add(pod_body("p", metadata={"creationTimestamp": stamp(NOW - timedelta(seconds=age))}))
    cluster.add(pod_body("runs", node="n"))
    run(cluster)
    requeue = requeue_of(cluster, Step.PROVISION)
    assert not claims(cluster)
    assert (requeue.at if requeue else None) == (NOW + timedelta(seconds=again) if again else None)


def test_claims_are_kept_while_instance_types_are_throttled(cluster):
    """At a throttled cold start the NodeClaim stays with the reason in its condition, and the step is requeued."""
    add_pods(cluster, 1)
    cluster.cloud.failures = [CreateError("not allowed", condition_reason="Unauthorized")]
    run(cluster)
    cluster.clock.advance(1)

    throttled = failing(RateLimitedError("slow down", retry_after_seconds=5))
    outcome = run(cluster, cloud=Altered(cluster.cloud, get_instance_types=throttled))

    (claim,) = claims(cluster)
    launched = condition_of(claim.status.conditions, "Launched")
    assert (launched.status, launched.reason) == ("Unknown", "RequestLimitExceeded")
    assert requeue_of(cluster, Step.PROVISION).at <= cluster.clock.now() + timedelta(seconds=5)
    assert outcome.counts["errors"] == 1
    cluster.clock.advance(5)
    run(cluster)
    assert claims(cluster)[0].status.provider_id


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CreateError("not allowed", condition_reason="Unauthorized"), "Unauthorized"),
        (RateLimitedError("slow down", retry_after_seconds=1), "RequestLimitExceeded"),
    ],
)
def test_failed_launch_is_retried_and_its_condition_has_the_reason(cluster, error, reason):
    """The NodeClaim keeps its pods, and the retries have a back-off."""
    add_pods(cluster, 1)
    cluster.cloud.failures = [error]
    outcome = run(cluster)
    (claim,) = claims(cluster)
    assert {(c.type, c.reason) for c in claim.status.conditions} >= {("Launched", reason)}
    assert [note for note in outcome.notes if "launching it again in the next run" in note]

    run(cluster)
    assert len(cluster.cloud.launches) == 1
    cluster.clock.advance(1)
    run(cluster)
    (claim,) = claims(cluster)
    assert claim.status.provider_id
    assert labels.LAUNCH_RETRY not in claim.metadata.annotations


def test_a_node_class_is_resolved_only_when_due(cluster):
    """It is resolved when it is new, then every five minutes, which writes a timestamp; else a quiet cluster costs no writes."""
    run(cluster)
    writes = []
    cluster.server.on_write(writes.append)
    cluster.clock.advance(60)
    outcome = run(cluster)
    assert (cluster.cloud.resolved, writes, outcome.requeues) == (1, [], ())
    cluster.clock.advance(240)
    run(cluster)
    assert cluster.cloud.resolved == 2
    assert [(w.resource.kind, list(w.body)) for w in writes] == [("EC2NodeClass", ["metadata"])]


def test_a_node_class_that_is_not_ready_launches_no_nodes(cluster):
    cluster.cloud.ready = False
    add_pods(cluster, 1)
    run(cluster)
    conditions = {c["type"]: c for c in cluster.server.get(NODEPOOL, "default")["status"]["conditions"]}
    assert conditions["NodeClassReady"]["reason"] == "SubnetsNotFound"
    assert not claims(cluster)


def test_a_throttled_node_class_keeps_its_status(cluster):
    run(cluster)
    cluster.clock.advance(600)
    add_pods(cluster, 1)
    run(cluster, cloud=Altered(cluster.cloud, resolve=failing(RateLimitedError("slow down"))))
    assert len(claims(cluster)) == 1


def test_an_invalid_pool_is_reported_and_the_valid_one_serves(cluster):
    cluster.add(merge(pool_body("bad"), {"spec": {"weight": 1000}}))
    add_pods(cluster, 1)
    run(cluster)
    bad = {c["type"]: c["status"] for c in cluster.server.get(NODEPOOL, "bad")["status"]["conditions"]}
    assert bad == {"ValidationSucceeded": "False", "NodeClassReady": "Unknown", "Ready": "False"}
    assert len(claims(cluster)) == 1


@pytest.mark.parametrize(
    ("limits", "leaving", "pods", "waiting"),
    [({"cpu": "12"}, 3, 2, 0), ({"nodes": "3"}, 3, 2, 0), ({"cpu": "12", "memory": "48Gi"}, 3, 2, 0), ({"cpu": "8"}, 1, 3, 1)],
)  # fmt: skip
def test_draining_nodes_leave_their_share_of_the_limits_to_new_ones(cluster, limits, leaving, pods, waiting):
    """And no more: one 4-CPU node stays, all together exceed the limits, and two pods need another node; a third one waits."""
    cluster.server.patch(NODEPOOL, "default", {"spec": {"limits": limits}})
    names = ["stays", *(f"leaves-{number}" for number in range(leaving))]
    for name in names:
        cluster.add(claim_body(name, provider_id=f"aws:///a/i-{name}"))
    for name in names[1:]:
        cluster.server.delete(NODECLAIM, name)
    add_pods(cluster, pods, cpu="3500m")
    run(cluster)

    (new,) = [c for c in claims(cluster) if c.metadata.name not in names]
    assert new.status.provider_id
    assert cluster.record.reasons.count("FailedScheduling") == waiting


@pytest.mark.parametrize("is_deleted", [True, False])
def test_nodepool_is_read_again_before_its_nodeclaims_are_created(cluster, is_deleted):
    """It was deleted meanwhile, or the nodes that stay exceed its lowered limits; the step is requeued."""
    done = [condition(type_, observedGeneration=1) for type_ in ("Launched", "Registered", "Initialized", "Ready")]
    cluster.add(claim_body("stays", provider_id="aws:///a/i-stays", status={"conditions": done}))
    add_pods(cluster, 2, cpu="3500m")

    def meanwhile():
        if is_deleted:
            cluster.server.delete(NODEPOOL, "default")
        else:
            cluster.server.patch(NODEPOOL, "default", {"spec": {"limits": {"cpu": "2"}}})

    run(cluster, store=InterceptingStore(cluster.server, "get", 1, meanwhile))
    assert [claim.metadata.name for claim in claims(cluster)] == ["stays"]
    assert (requeue_of(cluster, Step.PROVISION).at is None) is is_deleted
    why = "it is deleted or invalid" if is_deleted else "cpu"
    assert any(f"not creating NodeClaims for NodePool default: {why}" in m for _, m, _ in cluster.record.lines)


def test_one_run_creates_a_limited_number_of_nodeclaims(cluster):
    cluster.settings = type(cluster.settings)(cluster_name="demo", claims_per_run=1)
    add_pods(cluster, 12)
    run(cluster)
    assert len(claims(cluster)) == 1
    assert requeue_of(cluster, Step.PROVISION).at is None
    assert requeue_of(cluster, Step.PROVISION).reason == "1 planned node left for the next run"


def test_next_run_finishes_a_run_that_reached_its_deadline(cluster):
    """The deadline passes after NodeClaims are created; the requeued run launches them and creates no others."""
    add_pods(cluster, 10)
    slow = InterceptingStore(cluster.server, "create", 2, lambda: cluster.clock.advance(56))
    outcome = run(cluster, store=slow)
    assert outcome.status == "partial"
    created = [c.metadata.name for c in claims(cluster)]
    assert cluster.cloud.launches == []
    assert requeue_of(cluster, Step.PROVISION).at is None

    run(cluster)
    assert sorted(c.metadata.name for c in claims(cluster) if c.status.provider_id) == sorted(created)
    assert len(cluster.cloud.list()) == len(created)


def test_unused_cloud_resources_are_deleted_once_a_day(cluster):
    """Also if every run is in a new process; with NodeClasses and NodeClaims as this run has stored them.

    The first NodeClass keeps the time.
    """
    cluster.add(node_class_body("another"))
    add_pods(cluster, 1)
    run(cluster)
    assert cluster.cloud.cleanups == [(("another", "default"), (claims(cluster)[0].metadata.name,))]
    annotations = [c["metadata"].get("annotations", {}) for c in cluster.server.list(cluster.cloud.node_class).items]
    assert [labels.CLEANED_UP_AT in each for each in annotations] == [True, False]

    cleanups = []
    for hours in (23, 1, 12):
        cluster.clock.advance(hours * 3600)
        cluster.memory = Memory()
        run(cluster)
        cleanups.append(len(cluster.cloud.cleanups))
    assert cleanups == [1, 2, 2]
    assert cluster.record.count_of("journeyman_cloud_resources_deleted_total") == 2


def test_failed_deletion_of_unused_resources_is_tried_again_a_day_later(cluster):
    """A missing right must not slow every run down; the log line says which."""
    cluster.cloud.cleanup_error = CloudProviderError("not allowed: grant iam:ListInstanceProfiles")
    for _ in range(3):
        run(cluster)
    assert len(cluster.cloud.cleanups) == 1

    cluster.cloud.cleanup_error = None
    cluster.clock.advance(24 * 3600)
    run(cluster)
    assert len(cluster.cloud.cleanups) == 2


def test_pods_that_the_time_does_not_suffice_for_are_scheduled_again(cluster):
    """The cheap pod gets a node; the others are reported, and another pass follows within a minute."""
    cluster.settings = replace(cluster.settings, launch_call_timeout=timedelta(seconds=1))
    cluster.add(pod_body("cheap"), *SHAPES["node_terms"](20, 300))
    run(cluster, deadline=NOW + timedelta(seconds=8))
    planned = [claim.metadata.annotations[labels.PLANNED_PODS] for claim in claims(cluster)]
    assert any("default/cheap" in pods for pods in planned)
    messages = [event.message for event in cluster.record.events if event.reason == "FailedScheduling"]
    unreached = float(sum("the scheduler's time did not suffice for this pod" in message for message in messages))
    assert unreached
    assert ("journeyman_scheduler_unreached_pods", unreached) in [
        (o.name, o.value) for o in cluster.record.observations
    ]
    requeues = [message.at for message in cluster.queue.sent if message.step is Step.PROVISION]
    assert requeues
    assert all(at is None or at <= NOW + timedelta(minutes=1) for at in requeues)


def test_next_pass_for_pods_that_the_time_did_not_suffice_for_is_a_minute_later(cluster):
    """By then the pods that were scheduled are bound; here there are none."""
    cluster.add(*SHAPES["node_terms"](20, 300))
    run(cluster, deadline=NOW + timedelta(seconds=6))
    assert claims(cluster) == ()
    assert requeue_of(cluster, Step.PROVISION).at == NOW + timedelta(minutes=1)
