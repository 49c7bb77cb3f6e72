"""Terminate: drains, instances, finalizers and garbage, run by run, on the in-memory API server."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, PDB, POD, is_true
from journeyman.core.plan import Step
from journeyman.errors import ForbiddenError, RateLimitedError
from journeyman.ports import RequeueDue
from journeyman.steps.provision import provision
from journeyman.steps.terminate import terminate
from journeyman_simulator.kubelet import Kubelets
from tests.helpers.builders import NOW, claim_body, node_class_body, pod_body, pool_body
from tests.helpers.fakes import Cluster

TRIGGER = RequeueDue(id="1", cluster="demo", step=Step.TERMINATE, reason="test", time=NOW)


@pytest.fixture
def cluster():
    """One initialized node with two pods, made by the product itself."""
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


def follow_requeues(cluster, within=timedelta(minutes=5)):
    """Run whenever the step asked to; until it asks no more."""
    end = cluster.clock.now() + within
    runs = 1
    run(cluster)
    while requeue := next((m for m in cluster.queue.sent if m.step is Step.TERMINATE), None):
        cluster.clock.advance_to(max(requeue.at or cluster.clock.now(), cluster.clock.now()))
        cluster.kubelets.act()
        run(cluster)
        runs += 1
        assert cluster.clock.now() < end, "the step never comes to rest"
    return runs


def test_deleted_claim_is_finalized_with_its_node_and_instance(cluster):
    """Nothing left: no claim, no node, no instance; and the pool's counts say so."""
    cluster.server.delete(NODECLAIM, claim(cluster).metadata.name)
    follow_requeues(cluster)

    assert cluster.server.list(NODECLAIM).items == ()
    assert cluster.server.list(NODE).items == ()
    assert cluster.cloud.list() == ()
    assert cluster.server.get(NODEPOOL, "default")["status"]["nodes"] == 0
    assert {"Evicted", "Drained", "InstanceTerminating", "Finalized"} <= set(cluster.record.reasons)


def test_a_node_deleted_by_hand_takes_its_claim_and_instance_along(cluster):
    """kubectl delete node means the same."""
    cluster.server.delete(NODE, cluster.server.list(NODE).items[0].metadata.name)
    follow_requeues(cluster)
    assert cluster.server.list(NODECLAIM).items == ()
    assert cluster.cloud.list() == ()


def test_budget_blocks_the_drain_until_it_allows_disruptions(cluster):
    """An Event on the node reports refused evictions, and the instance stays; once the budget allows it all go."""
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}},
    }
    cluster.add(budget)
    cluster.server.sync_disruption_budgets()
    cluster.server.delete(NODECLAIM, claim(cluster).metadata.name)

    for _ in range(3):
        run(cluster)
        cluster.clock.advance(2)
        cluster.kubelets.act()
    assert "FailedDraining" in cluster.record.reasons
    assert len(cluster.server.list(POD).items) == 2
    assert cluster.cloud.list()[0].state == "running"

    cluster.server.delete(PDB, "web", namespace="default")
    follow_requeues(cluster)
    assert cluster.cloud.list() == ()


def test_pods_of_a_node_that_goes_wake_provision(cluster):
    """Their next place is planned while they are still being evicted."""
    cluster.server.delete(NODECLAIM, claim(cluster).metadata.name)
    run(cluster)
    assert {m.step for m in cluster.queue.sent} == {Step.PROVISION, Step.TERMINATE}


def test_a_vanished_instance_removes_its_claim_and_node(cluster):
    """A user terminated it in the console: no drain, nothing left over."""
    cluster.cloud.lose(claim(cluster).status.provider_id)
    cluster.kubelets.act()
    run(cluster)
    follow_requeues(cluster)
    assert cluster.server.list(NODECLAIM).items == ()
    assert cluster.server.list(NODE).items == ()


def test_orphans_are_terminated_and_young_ones_given_time(cluster):
    """An instance of ours that no claim stands for, older than half a minute."""
    now = cluster.clock.now()
    cluster.cloud.run_orphan("aws:///a/i-old", now - timedelta(seconds=31))
    cluster.cloud.run_orphan("aws:///a/i-young", now - timedelta(seconds=29))
    run(cluster)
    assert cluster.cloud.get("aws:///a/i-old").state == "shutting-down"
    assert cluster.cloud.get("aws:///a/i-young").state == "running"


def test_a_claim_created_during_the_instance_list_keeps_its_instance(cluster):
    """Our clock is a minute ahead of the cloud's, so that its instance looks old enough to be an orphan."""
    cloud = cluster.cloud

    class Racing:
        """Provision launches just before this list is made."""

        def __getattr__(self, name):
            return getattr(cloud, name)

        def list(self):
            cluster.add(claim_body("fresh", provider_id="aws:///a/i-fresh"))
            cloud.run_orphan("aws:///a/i-fresh", cluster.clock.now() - timedelta(minutes=1), claim="fresh")
            return cloud.list()

    outcome = run(cluster, cloud=Racing())
    assert cloud.get("aws:///a/i-fresh").state == "running"
    assert outcome.counts.get("conflicts", 0) == 0


@pytest.mark.parametrize("unseen", [{"NodeClaim"}, {"NodeClaim", "Node"}])
def test_a_stale_list_of_claims_terminates_no_node(cluster, unseen):
    """Before anything ends because a claim is missing, the claim is asked for by name."""

    class Late:
        """A store whose lists of these kinds are of a time before there was anything."""

        def __getattr__(self, name):
            return getattr(cluster.server, name)

        def list(self, resource, **where):
            found = cluster.server.list(resource, **where)
            return replace(found, items=()) if resource.kind in unseen else found

    cluster.clock.advance(60)
    outcome = run(cluster, store=Late())

    assert [i.state for i in cluster.cloud.list()] == ["running"]
    assert [n.metadata.deletion_timestamp for n in cluster.server.list(NODE).items] == [None]
    assert outcome.counts["conflicts"] == 1
    assert [w.at - cluster.clock.now() for w in outcome.requeues] == [timedelta(seconds=1)]


def test_a_claim_deleted_before_its_instance_was_known_leaks_nothing(cluster):
    """The instance carries the claim's name as a tag: it goes first, then the finalizer."""
    body = claim_body("cut-off", metadata={"deletionTimestamp": "2026-03-02T21:00:00Z"})
    cluster.add(body)
    cluster.cloud.run_orphan("aws:///a/i-cut-off", cluster.clock.now(), claim="cut-off")
    run(cluster)
    assert cluster.cloud.get("aws:///a/i-cut-off").state == "shutting-down"
    assert labels.TERMINATION_FINALIZER in cluster.server.get(NODECLAIM, "cut-off").metadata.finalizers
    follow_requeues(cluster)
    assert [c.metadata.name for c in cluster.server.list(NODECLAIM).items] == [claim(cluster).metadata.name]


class Mute:
    """A store that may not write the status of claims."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def patch(self, resource, name, patch, **where):
        if resource is NODECLAIM and where.get("subresource") == "status":
            raise ForbiddenError('cannot patch resource "nodeclaims/status"', status=403, reason="Forbidden")
        return self._store.patch(resource, name, patch, **where)


def test_an_instance_is_terminated_even_if_status_writes_are_denied(cluster):
    """A role that lacks one right must not leave an instance behind with every claim that is given up."""
    cluster.add(claim_body("given-up", metadata={"deletionTimestamp": "2026-03-02T21:00:00Z"}))
    cluster.cloud.run_orphan("aws:///a/i-given-up", cluster.clock.now(), claim="given-up")

    for _ in range(2):
        run(cluster, store=Mute(cluster.server))
        cluster.clock.advance(60)

    assert "aws:///a/i-given-up" not in [instance.provider_id for instance in cluster.cloud.list()]
    assert [c.metadata.name for c in cluster.server.list(NODECLAIM).items] == [claim(cluster).metadata.name]
    assert [level for level, message, _ in cluster.record.lines if "nodeclaims/status" in message] == ["error"]


def test_nodes_go_even_if_volumes_may_not_be_read(cluster):
    """A role of an earlier release: the log says what to do, and an empty node does not run for ever."""

    class Blind:
        """A store that may not list VolumeAttachments."""

        def __getattr__(self, name):
            return getattr(cluster.server, name)

        def list(self, resource, **where):
            if resource.kind == "VolumeAttachment":
                raise ForbiddenError('cannot list resource "volumeattachments"', status=403, reason="Forbidden")
            return cluster.server.list(resource, **where)

    cluster.server.delete(NODECLAIM, claim(cluster).metadata.name)
    for _ in range(12):
        run(cluster, store=Blind())
        cluster.clock.advance(10)
        cluster.kubelets.act()

    assert cluster.server.list(NODECLAIM).items == ()
    assert cluster.cloud.list() == ()
    assert {level for level, message, _ in cluster.record.lines if "volumeattachments" in message} == {"error"}


def test_deleted_claim_without_an_instance_leaves_the_counts(cluster):
    """Claims that wait for their instance are alike in having none; only the one that was let go is counted out."""
    cluster.add(claim_body("waits"), claim_body("goes", metadata={"deletionTimestamp": "2026-03-02T21:00:00Z"}))
    run(cluster)
    assert cluster.server.get(NODEPOOL, "default")["status"]["nodes"] == 2


def test_an_expired_claim_is_deleted_and_drained_without_asking_a_budget(cluster):
    """720 hours after its creation it goes."""
    cluster.clock.advance(timedelta(hours=720).total_seconds())
    cluster.kubelets.act()
    follow_requeues(cluster)
    assert cluster.server.list(NODECLAIM).items == ()
    assert cluster.record.count_of("karpenter_nodeclaims_disrupted_total") == 1


def test_a_throttled_termination_is_repeated(cluster):
    """The finalizers stay, the step comes back."""
    cluster.server.delete(NODECLAIM, claim(cluster).metadata.name)

    class Throttled:
        """The same cloud, whose first termination is refused."""

        def __init__(self, cloud):
            self._cloud, self._refusals = cloud, 1

        def __getattr__(self, name):
            return getattr(self._cloud, name)

        def delete(self, provider_id):
            if self._refusals:
                self._refusals -= 1
                raise RateLimitedError("slow down", retry_after_seconds=3)
            self._cloud.delete(provider_id)

    cluster.cloud = Throttled(cluster.cloud)
    follow_requeues(cluster)
    assert cluster.cloud.list() == ()
    assert cluster.server.list(NODECLAIM).items == ()


def test_running_cluster_causes_no_writes_and_no_requeues(cluster):
    """One read of the claims and nodes."""
    writes = []
    cluster.server.on_write(writes.append)
    outcome = run(cluster)
    assert writes == []
    assert outcome.requeues == ()
