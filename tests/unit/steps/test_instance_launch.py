"""Launches of several NodeClaims, and the checks of deadline, Lease and limits between them."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NODECLAIM, NODEPOOL
from journeyman.core.plan import CreateObject, LaunchInstance, Plan, Step, chain_of
from journeyman.errors import ForbiddenError, LeaseLostError
from tests.helpers.builders import NOW, claim_body, condition, merge, node_class_body, pool_body, stamp
from tests.helpers.fakes import Altered, Cluster, FakeCloud, FakeLease, InterceptingStore, failing

NOT_READY = condition("Ready", "False", reason="SubnetsNotFound", observedGeneration=1)


class SlowCloud(FakeCloud):
    def launch(self, requests):
        for request in requests:
            self.clock.advance(30)
            yield self._launch(request)


class TakenOver(FakeLease):
    """A Lease that another run acquires as soon as `done` returns true."""

    done = staticmethod(lambda: False)

    def check(self):
        if self.done():
            raise LeaseLostError("another run took it")


@pytest.fixture
def cluster():
    ready = {"conditions": [condition("Ready", observedGeneration=1)]}
    cluster = Cluster(fence=TakenOver(), seconds=115)
    cluster.add(pool_body(), node_class_body(status=ready, metadata={"generation": 1}))
    return cluster


def launch(cluster, *names, run=None, **changes):
    """Run a step that creates and launches these NodeClaims, each with the changes."""
    return cluster.execute(Plan(chains=tuple(opened(name, **changes) for name in names)), run=run)


def opened(name, **changes):
    launch = LaunchInstance(claim=name, why="test")
    return chain_of(name, CreateObject(resource=NODECLAIM, body=claim_body(name, **changes), why="test"), launch)


def limited_to(cluster, nodes):
    cluster.server.patch(NODEPOOL, "default", {"spec": {"limits": {"nodes": str(nodes)}}})


def with_instance(cluster):
    return [c.metadata.name for c in cluster.server.list(NODECLAIM).items if c.status.provider_id]


@pytest.mark.parametrize(("seconds", "launched"), [(115, "abc"), (124, "abc"), (125, "abcd")])
def test_a_launch_near_the_deadline_is_left_to_the_next_run(cluster, seconds, launched):
    """A fourth launch needs the 35 seconds that are left after the third one, 5 of them for the run's end."""
    cluster.cloud, cluster.seconds = SlowCloud(cluster.clock), seconds
    outcome = launch(cluster, "a", "b", "c", "d", "e")

    assert cluster.cloud.launches == with_instance(cluster) == [*launched]
    assert outcome.status == "partial"
    assert [w.step for w in outcome.requeues] == [Step.PROVISION]
    assert len(cluster.server.list(NODECLAIM).items) == 5


def test_lease_is_checked_between_two_launches(cluster):
    """The status has the launched instances; the run that holds the Lease launches the others."""
    cluster.fence.done = lambda: bool(with_instance(cluster))
    outcome = launch(cluster, "a", "b", "c")

    assert cluster.cloud.launches == with_instance(cluster) == ["a"]
    assert outcome.status == "busy"


def test_claims_created_during_the_run_count_against_the_limit(cluster):
    """Another step creates a NodeClaim between this run's read and its launches; the limit holds, and none is lost."""
    limited_to(cluster, 2)

    def another():
        cluster.add(claim_body("another"))
        cluster.clock.advance(1)

    outcome = launch(cluster, "a", "b", run=cluster.run(store=InterceptingStore(cluster.server, "create", 1, another)))

    assert cluster.cloud.launches == []
    assert _stay(cluster) == ["a", "another"] or _stay(cluster) == ["another", "b"]
    assert "LimitsExceeded" in cluster.record.reasons
    assert [w.step for w in outcome.requeues] == [Step.PROVISION, Step.TERMINATE]

    launch(cluster, *_stay(cluster))
    assert cluster.cloud.launches == _stay(cluster)


def test_claims_deleted_during_the_run_do_not_count_against_the_limit(cluster):
    """The limit holds for what there is at the launch, and for this NodePool; one that is deleted has none any more."""
    limited_to(cluster, 2)
    cluster.add(claim_body("former", metadata={"finalizers": []}))
    gone = InterceptingStore(cluster.server, "create", 1, lambda: cluster.server.delete(NODECLAIM, "former"))

    launch(cluster, "a", "b", run=cluster.run(store=gone))
    launch(cluster, "c", metadata={"labels": {labels.NODEPOOL: "gone"}})

    assert with_instance(cluster) == ["a", "b", "c"]


def test_own_claims_count_against_the_limit_before_a_list_has_them(cluster):
    """A list may be of a version from before they were created."""
    limited_to(cluster, 1)

    def old_list(resource, **where):
        found = cluster.server.list(resource, **where)
        return replace(found, items=()) if resource is NODECLAIM else found

    launch(cluster, "a", "b", run=cluster.run(store=Altered(cluster.server, list=old_list)))

    assert cluster.cloud.launches == []
    assert len(_stay(cluster)) == 1


def test_limit_of_one_nodepool_does_not_stop_launches_for_another(cluster):
    limited_to(cluster, 1)
    cluster.add(pool_body("free"))
    other = opened("f", metadata={"labels": {labels.NODEPOOL: "free"}})

    def another():
        cluster.add(claim_body("another"))

    run = cluster.run(store=InterceptingStore(cluster.server, "create", 1, another))
    cluster.execute(Plan(chains=(other, opened("a"))), run=run)

    assert with_instance(cluster) == ["f"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"metadata": {"deletionTimestamp": stamp(NOW), "finalizers": ["x"]}}, "does not exist or is being deleted"),
        ({"metadata": {"name": "another"}}, "does not exist or is being deleted"),
        ({"status": {"conditions": [NOT_READY]}}, "is not ready: SubnetsNotFound"),
        ({"status": {"conditions": [{**NOT_READY, "message": "no subnet"}]}}, "is not ready: no subnet"),
    ],
    ids=["deleted", "missing", "not ready", "not ready, with a message"],
)
def test_nothing_is_launched_for_a_nodeclass_that_cannot_be_used(change, why):
    """The note has what the NodeClass says itself."""
    cluster = Cluster()
    ready = {"conditions": [condition("Ready", observedGeneration=1)]}
    cluster.add(pool_body(), merge(node_class_body(status=ready, metadata={"generation": 1}), change))

    outcome = launch(cluster, "a")

    assert cluster.cloud.launches == []
    [note] = [note for note in outcome.notes if "failed to launch NodeClaim a" in note]
    assert f"EC2NodeClass default {why}" in note
    assert "deleted it to schedule its pods again" in note


def test_nothing_is_launched_for_a_claim_without_the_finalizer(cluster):
    """It cannot be added; the instance of a claim that is deleted without it would leak."""
    refusing = Altered(cluster.server, patch=failing(ForbiddenError("cannot patch nodeclaims", status=403)))
    launch(cluster, "a", run=cluster.run(store=refusing), metadata={"finalizers": []})
    assert cluster.cloud.launches == []


def _stay(cluster):
    return [c.metadata.name for c in cluster.server.list(NODECLAIM).items if c.metadata.deletion_timestamp is None]


def test_claims_are_listed_again_only_for_nodepools_with_a_limit(cluster):
    lists = []
    store = Altered(cluster.server, list=lambda *a, **where: lists.append(a) or cluster.server.list(*a, **where))
    launch(cluster, "a", run=cluster.run(store=store))
    assert lists == []

    limited_to(cluster, 9)
    launch(cluster, "b", "c", run=cluster.run(store=store))
    assert len(lists) == 1


def test_an_instance_whose_claim_was_deleted_at_launch_requeues(cluster):
    """Another run deletes and finalizes it; without other NodeClaims the next garbage collection is ten minutes later."""

    def launch_late(requests):
        for request in requests:
            name = request.claim.metadata.name
            cluster.server.patch(NODECLAIM, name, {"metadata": {"finalizers": None}})
            cluster.server.delete(NODECLAIM, name)
            yield from cluster.cloud.launch([request])

    outcome = launch(cluster, "a", run=cluster.run(cloud=Altered(cluster.cloud, launch=launch_late)))

    assert cluster.cloud.launches == ["a"]
    at = next(requeue.at for requeue in outcome.requeues if requeue.step is Step.TERMINATE)
    assert timedelta(seconds=30) < at - cluster.clock.now() < timedelta(minutes=1)


@pytest.mark.parametrize("is_lost", [True, False])
def test_launch_that_outlasts_the_lease_requeues_terminate(cluster, is_lost):
    """The sandbox was frozen during the launch, and another run may have deleted the NodeClaim meanwhile; usually nothing is sent."""
    cluster.fence.done = lambda: is_lost and bool(cluster.cloud.launches)
    outcome = launch(cluster, "a")

    assert (outcome.status == "busy", with_instance(cluster) == []) == (is_lost, is_lost)
    assert (Step.TERMINATE in {requeue.step for requeue in outcome.requeues}) is is_lost
