"""The executor sends the patches of consecutive chains in parallel and keeps each chain's order."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api.objects import NODECLAIM, NODEPOOL, POD
from journeyman.core.plan import Chain, CreateObject, Event, ObjectRef, PatchObject, Plan, Requeue, Step, chain_of
from journeyman.errors import ForbiddenError
from journeyman.steps.phases import MAX_PARALLEL_PATCHES
from tests.helpers.builders import NOW, claim_body, pod_body, pool_body
from tests.helpers.fakes import Altered, Cluster


@pytest.fixture
def cluster():
    """Return a cluster with forty NodePools and three NodeClaims."""
    cluster = Cluster()
    cluster.add(*(pool_body(f"p{n:02}") for n in range(40)), *(claim_body(name) for name in "abc"))
    return cluster


def carry_out(cluster, *chains, server=None):
    """Run a step that only executes these chains; return the outcome and how many patches each request sent in parallel."""
    server, together = server or cluster.server, []
    store = Altered(
        server,
        patch=lambda *given, **how: together.append(1) or server.patch(*given, **how),
        patch_each=lambda kind, patches, **how: (
            together.append(len(patches)) or server.patch_each(kind, patches, **how)
        ),
    )
    outcome = cluster.execute(Plan(chains=tuple(chains)), run=cluster.run(store=store))
    return outcome, together


def labelled(resource, name, value="x", *, version=""):
    patch = {"metadata": {"labels": {"touched": value}}}
    return PatchObject(ref=ObjectRef(resource=resource, name=name), patch=patch, why="test", resource_version=version)


def imaged(name):
    ref, patch = ObjectRef(resource=NODECLAIM, name=name), {"status": {"imageID": "i"}}
    return PatchObject(ref=ref, patch=patch, why="test", subresource="status")


def the_labels(cluster, resource, name):
    stored = cluster.server.get(resource, name)
    return stored["metadata"].get("labels", {}) if isinstance(stored, dict) else stored.metadata.labels


def test_first_patches_are_sent_in_parallel_then_the_second(cluster):
    """Six requests take the time of two; requeues among them are none."""
    requeue = Requeue(step=Step.TERMINATE, at=NOW, reason="test")
    chains = (chain_of(name, labelled(NODECLAIM, name), imaged(name), requeue) for name in "abc")
    outcome, together = carry_out(cluster, *chains)
    assert together == [3, 3]
    assert outcome.counts == {"PatchObject": 6}
    for name in "abc":
        claim = cluster.server.get(NODECLAIM, name)
        assert (claim.metadata.labels["touched"], claim.status.image_id) == ("x", "i")


def test_chains_of_a_higher_wave_begin_once_the_first_patches_of_the_others_are_answered(cluster):
    """They do not wait for second patches."""
    chains = {name: chain_of(name, labelled(NODECLAIM, name), imaged(name)) for name in "abc"}
    _, together = carry_out(cluster, replace(chains["a"], wave=1), chains["b"], chains["c"])
    versions = {name: cluster.server.get(NODECLAIM, name).metadata.version_number for name in "abc"}
    assert together == [2, 1, 2, 1]
    assert versions["a"] > max(versions["b"], versions["c"])


def test_refused_patch_stops_its_chain_and_its_events(cluster):
    """The other chains continue."""
    event = Event(ref=ObjectRef(resource=NODECLAIM, name="n"), reason="Evicted", message="done")
    stale = Chain(subject="a", actions=(labelled(NODECLAIM, "a", version="1"), imaged("a")), events=(event,))
    fine = Chain(subject="b", actions=(labelled(NODECLAIM, "b"), imaged("b")), events=(event,))
    outcome, together = carry_out(cluster, stale, fine)
    assert together == [2, 1]
    assert outcome.counts == {"PatchObject": 2, "conflicts": 1}
    assert cluster.server.get(NODECLAIM, "a").status.image_id == ""
    assert cluster.record.reasons == ["Evicted"]


def test_missing_permission_to_patch_pods_stops_only_patches_of_pods(cluster):
    """No further pod is tried; a chain goes on until it comes to its pod."""
    cluster.add(*(pod_body(f"p{n:02}") for n in range(40)))
    of_pods = [
        PatchObject(ref=ObjectRef(resource=POD, name=f"p{n:02}", namespace="default"), patch={}, why="test")
        for n in range(40)
    ]
    claims = (chain_of(name, labelled(NODECLAIM, name), of_pods[0]) for name in "abc")

    def patch_each(resource, patches, **how):
        if resource is POD:
            return [ForbiddenError("pods is forbidden", status=403) for _ in patches]
        return cluster.server.patch_each(resource, patches, **how)

    refusing = Altered(cluster.server, patch_each=patch_each)
    outcome, together = carry_out(cluster, *(chain_of("pod", p) for p in of_pods), *claims, server=refusing)

    assert together == [MAX_PARALLEL_PATCHES, 3]
    assert outcome.counts == {"errors": 1, "patches of pods refused": MAX_PARALLEL_PATCHES, "PatchObject": 3}


def test_patches_of_one_object_wait_for_each_other(cluster):
    """The second patch uses the resource version that the first one returned."""
    version = cluster.server.get(NODECLAIM, "a").metadata.resource_version
    chains = (chain_of(value, labelled(NODECLAIM, "a", value, version=version)) for value in ("first", "second"))
    outcome, together = carry_out(cluster, *chains)
    assert together == [1, 1]
    assert outcome.counts == {"PatchObject": 2}
    assert the_labels(cluster, NODECLAIM, "a")["touched"] == "second"


def test_chain_with_other_actions_keeps_its_place(cluster):
    """Earlier chains are executed before it, later ones after it."""
    create = CreateObject(resource=NODECLAIM, body=claim_body("new"), why="test")
    pools = [chain_of(name, labelled(NODEPOOL, name)) for name in ("p00", "p01", "p02", "p03")]
    late = chain_of("late", create, labelled(NODECLAIM, "new"))
    _, together = carry_out(cluster, *pools[:2], late, *pools[2:])
    assert together == [2, 1, 2]


def test_lease_is_checked_before_each_batch_of_patches(cluster):
    """After losing the Lease no further batch is sent."""
    cluster.fence.checks_left = 1
    names = [f"p{n:02}" for n in range(40)]
    outcome, together = carry_out(cluster, *(chain_of(name, labelled(NODEPOOL, name)) for name in names))
    assert together == [MAX_PARALLEL_PATCHES]
    assert outcome.status == "busy"
    assert "touched" not in the_labels(cluster, NODEPOOL, names[MAX_PARALLEL_PATCHES])
