"""The terminate step on the in-memory API server: drains, instances, finalizers and garbage collection."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, OFFERING_STATE, PDB, POD, is_true
from journeyman.core.plan import Step
from journeyman.core.state import BuildFailure
from journeyman.errors import ForbiddenError, RateLimitedError
from journeyman.ports import RequeueDue
from journeyman.steps.provision import provision
from journeyman.steps.terminate import MAX_LOOKUPS, terminate
from journeyman_simulator.kubelet import Kubelets
from tests.helpers.builders import (
    NOW,
    ago,
    budget_body,
    claim_body,
    condition,
    merge,
    node_class_body,
    pod_body,
    pool_body,
    stamp,
)
from tests.helpers.fakes import Altered, Cluster, FakeCloud
from tests.helpers.fleets import a_member, bodies

TRIGGER = RequeueDue(id="1", cluster="demo", step=Step.TERMINATE, reason="test", time=NOW)


@pytest.fixture
def cluster():
    """Return a cluster with one initialized node and two pods, which the provision step created."""
    cluster = Cluster()
    cluster.add(pool_body(), node_class_body(), pod_body("a"), pod_body("b"))
    kubelets = Kubelets(cluster.server, cluster.clock, cluster.cloud)
    for _ in range(9):
        provision(cluster.run(), TRIGGER)
        cluster.clock.advance(5)
        kubelets.act()
    (node,) = cluster.server.list(NODE).items
    assert is_true(cluster.server.list(NODECLAIM).items[0].status.conditions, "Initialized")
    for name in ("a", "b"):
        cluster.server.bind("default", name, node.metadata.name)
    for _ in range(2):
        kubelets.act()
        cluster.clock.advance(5)
    assert {p.status.phase for p in cluster.server.list(POD).items} == {"Running"}
    cluster.kubelets = kubelets
    cluster.queue.sent.clear()
    cluster.record.events.clear()
    return cluster


def claim(cluster):
    return cluster.server.list(NODECLAIM).items[0]


def run(cluster, **changes):
    cluster.queue.sent.clear()
    return terminate(cluster.run(**changes), TRIGGER)


def next_run(cluster):
    """Return when the step runs again: for a message that was just sent, or for that of an earlier run."""
    now = cluster.clock.now()
    sent = next((m.at or now for m in cluster.queue.sent if m.step is Step.TERMINATE), None)
    pending = cluster.fence.next_run
    return sent or (pending if pending and pending > now else None)


def follow_requeues(cluster, within=timedelta(minutes=5), **changes):
    """Run the step at each requeue until it sends no more."""
    end = cluster.clock.now() + within
    runs = 1
    run(cluster, **changes)
    while at := next_run(cluster):
        cluster.clock.advance_to(max(at, cluster.clock.now()))
        cluster.kubelets.act()
        run(cluster, **changes)
        runs += 1
        assert cluster.clock.now() < end, "the step never comes to rest"
    return runs


@pytest.mark.parametrize("has_budget", [False, True])
def test_deleted_claim_is_finalized_with_its_node_and_instance(cluster, has_budget):
    """No NodeClaim, node or instance is left, and the NodePool's status counts none; the NodeClaim goes last.

    A PodDisruptionBudget that allows the evictions makes no difference.
    """
    if has_budget:
        cluster.add(budget_body(minAvailable=0))
        cluster.server.sync_disruption_budgets()
    cluster.server.delete(NODECLAIM, claim(cluster).metadata.name)
    seen = []
    cluster.server.on_write(
        lambda _: seen.append((len(cluster.server.list(NODECLAIM).items), len(cluster.server.list(NODE).items)))
    )
    follow_requeues(cluster)
    assert (0, 1) not in seen
    assert (1, 0) in seen

    assert cluster.server.list(NODECLAIM).items == ()
    assert cluster.server.list(NODE).items == ()
    assert cluster.cloud.list() == ()
    assert cluster.server.get(NODEPOOL, "default")["status"]["nodes"] == 0
    assert {"Drained", "InstanceTerminating", "Finalized"} <= set(cluster.record.reasons)
    assert cluster.record.reasons.count("Evicted") == 2
    assert "FailedDraining" not in cluster.record.reasons


def test_claim_with_a_quantity_in_another_notation_is_finalized(cluster):
    """Karpenter's client would write 50000 as 50k, which differs from what is stored."""
    requests = {"resources": {"requests": {"memory": "50000"}}}
    cluster.add(claim_body("odd", provider_id="aws:///a/i-odd", spec=requests))
    cluster.server.delete(NODECLAIM, "odd")
    follow_requeues(cluster)
    assert "odd" not in {c.metadata.name for c in cluster.server.list(NODECLAIM).items}


def test_nodes_deleted_together_are_finalized_together(cluster):
    """Each has chains of its own; a run that was repeated changes nothing more."""
    cluster.add(*(pod_body(f"more-{n}", cpu="7") for n in range(3)))
    for _ in range(9):
        provision(cluster.run(), TRIGGER)
        cluster.clock.advance(5)
        cluster.kubelets.act()
    nodes = cluster.server.list(NODE).items
    assert len(nodes) > 2
    for node in nodes:
        cluster.server.delete(NODE, node.metadata.name)
    run(cluster)
    follow_requeues(cluster)
    assert cluster.server.list(NODE).items == cluster.server.list(NODECLAIM).items == cluster.cloud.list() == ()


def test_budget_blocks_the_drain_until_it_allows_disruptions(cluster):
    """An Event on the node reports refused evictions, and the instance stays. Provision schedules the pods during the drain."""
    cluster.add(budget_body())
    cluster.server.sync_disruption_budgets()
    cluster.server.delete(NODECLAIM, claim(cluster).metadata.name)

    run(cluster)
    assert {m.step for m in cluster.queue.sent} == {Step.PROVISION, Step.TERMINATE}
    for _ in range(2):
        cluster.clock.advance(2)
        cluster.kubelets.act()
        run(cluster)
    assert "FailedDraining" in cluster.record.reasons
    assert len(cluster.server.list(POD).items) == 2
    assert cluster.cloud.list()[0].state == "running"

    cluster.server.delete(PDB, "web", namespace="default")
    follow_requeues(cluster)
    assert cluster.cloud.list() == ()


@pytest.mark.parametrize("how", ["lost", "throttled"])
def test_a_node_whose_instance_ends_otherwise_leaves_nothing(cluster, how):
    """A user terminated it in the console, so that it needs no drain; or the cloud throttles, and the step requeues itself."""
    provider_id = claim(cluster).status.provider_id
    if how == "lost":
        cluster.cloud.lose(provider_id)
        cluster.kubelets.act()
        run(cluster)
    else:
        cluster.server.delete(NODECLAIM, claim(cluster).metadata.name)
        cluster.cloud.refusals[provider_id] = [RateLimitedError("slow down", retry_after_seconds=3)]
    follow_requeues(cluster)
    assert cluster.server.list(NODECLAIM).items == cluster.server.list(NODE).items == cluster.cloud.list() == ()


@pytest.mark.parametrize(("age", "wait"), [(timedelta(minutes=10), 30), (timedelta(hours=2), 300)])
def test_instances_without_claim_are_terminated_some_time_after_they_were_first_seen(cluster, age, wait):
    """The instance has the cluster's tag, but no NodeClaim has its provider id; one that has run for hours gets minutes."""
    cluster.cloud.run_orphan("aws:///a/i-1", cluster.clock.now() - age)
    run(cluster)
    cluster.clock.advance(wait - 1)
    run(cluster)
    assert cluster.cloud.get("aws:///a/i-1").state == "running"
    cluster.clock.advance(1)
    run(cluster)
    assert cluster.cloud.get("aws:///a/i-1").state == "shutting-down"


def test_a_claim_created_during_the_instance_list_keeps_its_instance(cluster):
    """The function's clock is a minute ahead of the cloud's, so that the instance seems old enough to be garbage."""
    cloud = cluster.cloud

    def list_after_a_launch_by_provision():
        cluster.add(claim_body("fresh", provider_id="aws:///a/i-fresh"))
        cloud.run_orphan("aws:///a/i-fresh", cluster.clock.now() - timedelta(minutes=1), claim="fresh")
        return cloud.list()

    outcome = run(cluster, cloud=Altered(cloud, list=list_after_a_launch_by_provision))
    assert cloud.get("aws:///a/i-fresh").state == "running"
    assert outcome.counts.get("conflicts", 0) == 0


@pytest.mark.parametrize("unseen", [{"NodeClaim"}, {"NodeClaim", "Node"}])
def test_a_stale_list_of_claims_terminates_no_node(cluster, unseen):
    """Before the step creates the NodeClaim again, or terminates the instance, it reads that NodeClaim by name."""

    def old_list(resource, **where):
        found = cluster.server.list(resource, **where)
        return replace(found, items=()) if resource.kind in unseen else found

    late = Altered(cluster.server, list=old_list)
    cluster.clock.advance(60)
    run(cluster, store=late)
    cluster.clock.advance(60)
    outcome = run(cluster, store=late)

    assert [i.state for i in cluster.cloud.list()] == ["running"]
    assert [n.metadata.deletion_timestamp for n in cluster.server.list(NODE).items] == [None]
    assert outcome.counts["conflicts"] == 1
    assert {w.at - cluster.clock.now() for w in outcome.requeues} == {timedelta(seconds=1)}


def test_claim_without_a_provider_id_leaks_no_instance(cluster):
    """The instance's tag names the NodeClaim; the step terminates it before it removes the finalizer."""
    body = claim_body("cut-off", metadata={"deletionTimestamp": "2026-03-02T21:00:00Z"})
    cluster.add(body)
    cluster.cloud.run_orphan("aws:///a/i-cut-off", cluster.clock.now(), claim="cut-off")
    run(cluster)
    assert cluster.cloud.get("aws:///a/i-cut-off").state == "shutting-down"
    assert labels.TERMINATION_FINALIZER in cluster.server.get(NODECLAIM, "cut-off").metadata.finalizers
    follow_requeues(cluster)
    assert [c.metadata.name for c in cluster.server.list(NODECLAIM).items] == [claim(cluster).metadata.name]


def test_an_instance_is_terminated_even_if_status_writes_are_denied(cluster):
    """A missing permission must not leak an instance with each deleted NodeClaim."""

    def patch(resource, name, body, **where):
        if resource is NODECLAIM and where.get("subresource") == "status":
            raise ForbiddenError('cannot patch resource "nodeclaims/status"', status=403, reason="Forbidden")
        return cluster.server.patch(resource, name, body, **where)

    cluster.add(claim_body("given-up", metadata={"deletionTimestamp": "2026-03-02T21:00:00Z"}))
    cluster.cloud.run_orphan("aws:///a/i-given-up", cluster.clock.now(), claim="given-up")

    for _ in range(2):
        run(cluster, store=Altered(cluster.server, patch=patch))
        cluster.clock.advance(60)

    assert "aws:///a/i-given-up" not in [instance.provider_id for instance in cluster.cloud.list()]
    assert [c.metadata.name for c in cluster.server.list(NODECLAIM).items] == [claim(cluster).metadata.name]
    assert [level for level, message, _ in cluster.record.lines if "nodeclaims/status" in message] == ["error"]


def test_nodes_go_even_if_volumes_may_not_be_read(cluster):
    """A role of an earlier release lacks the permission; the log has the remedy, and the empty node is deleted."""

    def list_without_attachments(resource, **where):
        if resource.kind == "VolumeAttachment":
            raise ForbiddenError('cannot list resource "volumeattachments"', status=403, reason="Forbidden")
        return cluster.server.list(resource, **where)

    cluster.server.delete(NODECLAIM, claim(cluster).metadata.name)
    for _ in range(12):
        run(cluster, store=Altered(cluster.server, list=list_without_attachments))
        cluster.clock.advance(10)
        cluster.kubelets.act()

    assert cluster.server.list(NODECLAIM).items == ()
    assert cluster.cloud.list() == ()
    assert {level for level, message, _ in cluster.record.lines if "volumeattachments" in message} == {"error"}


def test_deleted_claim_leaves_the_counts_at_once(cluster):
    """The node is still draining, but the NodePool's status and limits do not count it; one without an instance neither."""
    launched = (claim_body(name, provider_id=f"aws:///a/i-{name}") for name in ("launched-1", "launched-2"))
    cluster.add(claim_body("waits"), *launched)
    cluster.server.delete(NODECLAIM, claim(cluster).metadata.name)
    run(cluster)
    assert cluster.server.list(NODE).items
    assert cluster.server.get(NODEPOOL, "default")["status"]["nodes"] == 2


def test_an_expired_claim_is_deleted_and_drained_without_asking_a_budget(cluster):
    """It expires 720 hours after its creation."""
    cluster.clock.advance(timedelta(hours=720).total_seconds())
    cluster.kubelets.act()
    follow_requeues(cluster)
    assert cluster.server.list(NODECLAIM).items == ()
    assert cluster.record.count_of("karpenter_nodeclaims_disrupted_total") == 1
    assert cluster.record.count_of("karpenter_pods_disruption_initiated_total") == 2


def test_running_cluster_causes_no_writes_and_no_requeues(cluster):
    writes = []
    cluster.server.on_write(writes.append)
    outcome = run(cluster)
    assert writes == []
    assert outcome.requeues == ()


class Asked(FakeCloud):
    """A cloud that records which instances it is asked for by their ids, and for the reasons of which ends.

    Its list may be from before anything was launched, and it may say one reason of all ends.
    """

    def __init__(self, clock):
        super().__init__(clock)
        self.ids, self.ends = [], []
        self.list_is_old, self.reason = False, None

    def list(self):
        return () if self.list_is_old else super().list()

    def get_each(self, provider_ids):
        self.ids.append(sorted(provider_ids))
        return {i.provider_id: i for i in super().list() if i.provider_id in provider_ids}

    def end_reasons(self, provider_ids):
        self.ends.append(sorted(provider_ids))
        return dict.fromkeys(provider_ids, self.reason) if self.reason is not None else {}


def with_members(*members):
    """Return a cluster with these nodes, and a cloud that has none of their instances."""
    cluster = Cluster()
    cluster.cloud = Asked(cluster.clock)
    kube_system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": "ours"}}
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": "default", "uid": "uid-default"}
    cluster.add(kube_system, pool_body(metadata={"uid": "uid-default"}), node_class_body())
    for body in bodies(*members):
        cluster.add(merge(body, {"metadata": {"ownerReferences": [owner]}}) if body["kind"] == "NodeClaim" else body)
    return cluster


def launched(**age):
    """Return the part of a NodeClaim that was launched so long ago and has not registered."""
    return {"status": {"conditions": [condition("Launched", since=ago(**age))]}}


JOINING = launched(hours=1)
GOING = {"metadata": {"deletionTimestamp": stamp(NOW)}}


UNLISTED = {
    "joining, gone": ({"claim": JOINING, "ready": False}, None, True, True),
    "joining, stopped": ({"claim": JOINING, "ready": False}, "stopped", False, False),
    "just launched, not listed yet": ({"claim": launched(seconds=30), "ready": False}, None, False, False),
    "launched a while ago, gone": ({"claim": launched(seconds=31), "ready": False}, None, True, True),
    "not ready, gone": ({"ready": False}, None, True, False),
    "not ready, running": ({"ready": False}, "running", False, False),
    "ready": ({}, None, False, False),
    "terminating, gone": ({"claim": GOING}, None, True, False),
    "terminating, running": ({"claim": GOING}, "running", False, False),
    "terminating without an instance": (
        {"claim": {**GOING, "status": {"providerID": ""}}, "node": {"spec": {"providerID": ""}}},
        *(None, False, False),
    ),
}


@pytest.mark.parametrize(("changes", "listed_as", "by_id", "for_its_end"), UNLISTED.values(), ids=UNLISTED)
def test_cloud_is_asked_only_for_instances_that_its_list_lacks(changes, listed_as, by_id, for_its_end):
    """A list may lag behind, so nothing is removed before the instance is not found by its id either."""
    cluster = with_members(a_member("n", **changes))
    if listed_as is not None:
        cluster.cloud.run_orphan("aws:///a/i-n", NOW, claim="n", claim_uid="uid-n")
    if listed_as == "stopped":
        cluster.cloud.stop("aws:///a/i-n")

    terminate(cluster.run(), TRIGGER)

    asked = [["aws:///a/i-n"]]
    assert (cluster.cloud.ids, cluster.cloud.ends) == (asked * by_id, asked * for_its_end)


@pytest.mark.parametrize(("cluster_uid", "goes"), [("", False), ("ours", False), ("another", True)])
def test_claim_stays_while_its_instance_is_found_by_its_id(cluster_uid, goes):
    """The list is from before the launch; an instance that another cluster of this name launched is none of this one."""
    cluster = with_members(a_member("n", claim=JOINING, ready=False))
    cluster.cloud.run_orphan("aws:///a/i-n", NOW, claim="n", claim_uid="uid-n")
    cluster.cloud.edit_tags("aws:///a/i-n", {labels.CLUSTER_UID_TAG: cluster_uid})
    cluster.cloud.list_is_old = True

    terminate(cluster.run(), TRIGGER)

    assert bool(claim(cluster).metadata.deletion_timestamp) is goes


@pytest.mark.parametrize(("reason", "fault"), [("KeyDisabled", "KeyDisabled"), (None, "RegistrationFailed")])
def test_instance_that_ended_before_its_node_joined_has_the_clouds_reason(reason, fault):
    cluster = with_members(a_member("n", claim=JOINING, ready=False))
    if reason is not None:
        cluster.cloud.reason = BuildFailure(reason=reason, message="the key is disabled", is_capacity=False)

    terminate(cluster.run(), TRIGGER)

    [state] = cluster.server.list(OFFERING_STATE).items
    assert [failure["reason"] for failure in state["status"]["launchFailures"]] == [fault]


@pytest.mark.parametrize(("count", "shown", "more"), [(1, 1, ""), (5, 5, ""), (7, 5, " and 2 more")])
def test_event_names_some_instances_of_another_cluster_of_this_name(count, shown, more):
    """They are left alone; only a user knows which of the two clusters is gone."""
    cluster = with_members()
    for number in range(count):
        cluster.cloud.run_orphan(f"i-{number}", ago(hours=1))
        cluster.cloud.edit_tags(f"i-{number}", {labels.CLUSTER_UID_TAG: "another"})

    terminate(cluster.run(), TRIGGER)

    [event] = [event for event in cluster.record.events if event.reason == "ForeignInstances"]
    assert event.message.startswith(f"{count} instances have")
    assert f"{', '.join(f'i-{number}' for number in range(shown))}{more}. They are left alone" in event.message
    assert cluster.record.count_of("journeyman_foreign_instances") == count
    assert cluster.cloud.deletions == []


def test_instances_of_terminating_nodes_are_looked_up_before_those_that_may_be_lost():
    """One run looks up a limited number; the node that terminates goes on although a whole zone is lost."""
    lost = [a_member(f"a{number:03}", ready=False) for number in range(MAX_LOOKUPS)]
    cluster = with_members(*lost, a_member("z", claim=GOING))

    terminate(cluster.run(), TRIGGER)

    [ids] = cluster.cloud.ids
    assert len(ids) == MAX_LOOKUPS
    assert "aws:///a/i-z" in ids


@pytest.mark.parametrize("repair", [True, False])
@pytest.mark.parametrize("healthy", [True, False])
def test_pods_are_read_only_of_nodes_that_the_run_removes(repair, healthy):
    """A cluster has many pods; a repair counts those of the unhealthy node."""
    conditions = [condition("Ready"), condition("AcceleratedHardwareReady", str(healthy), since=ago(hours=1))]
    cluster = with_members(a_member("n", cpus=["1"], node={"status": {"conditions": conditions}}))
    cluster.cloud.run_orphan("aws:///a/i-n", NOW, claim="n", claim_uid="uid-n")
    gates = replace(cluster.settings.feature_gates, node_repair=repair)
    cluster.settings = replace(cluster.settings, feature_gates=gates)
    listed = []

    def counting(resource, **where):
        listed.append(resource.kind)
        return cluster.server.list(resource, **where)

    terminate(cluster.run(store=Altered(cluster.server, list=counting)), TRIGGER)

    assert ("Pod" in listed) is (repair and not healthy)
    assert bool(claim(cluster).metadata.deletion_timestamp) is (repair and not healthy)
