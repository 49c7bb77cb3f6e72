"""Inconsistent NodeClaims are deleted with an Event that has the reason."""

from datetime import timedelta

from journeyman.core.api import labels
from journeyman.core.lifecycle.garbage_collection import inconsistent_claims
from journeyman.core.plan import DeleteObject, PatchObject, Requeue, merge_plans
from journeyman.core.state.instances import CloudInstances
from tests.helpers.builders import (
    NOW,
    a_launched_claim,
    a_node,
    a_running_claim,
    a_snapshot,
    ago,
    an_instance,
    condition,
    provider_id_of,
    stamp,
)
from tests.helpers.small_clusters import table

AFTER = timedelta(minutes=5)
RUNNING = CloudInstances(listed=(an_instance(),))


def run(claim, *nodes, cloud=RUNNING):
    """Return the plan, with the removals that the brake would allow."""
    plan, lost = inconsistent_claims(a_snapshot(claims=(claim,), nodes=nodes), cloud, AFTER)
    return merge_plans((plan, *(one.removal for one in lost)))


def missing(since, **changes):
    """Return a NodeClaim whose node is missing since a time."""
    return a_running_claim(metadata={"annotations": {labels.NODE_MISSING_SINCE: stamp(since)}}, **changes)


def test_missing_node_is_recorded_and_requeued():
    """Its kubelet may register it again."""
    noted, look = run(a_running_claim()).actions
    assert isinstance(noted, PatchObject)
    assert noted.patch == {"metadata": {"annotations": {labels.NODE_MISSING_SINCE: stamp(NOW)}}}
    assert look.at == NOW + AFTER


def test_claim_of_missing_node_is_deleted_after_timeout():
    """After five minutes it is deleted, because no pod can be bound to its instance."""
    waiting = run(missing(ago(minutes=4)))
    assert [type(a) for a in waiting.actions] == [Requeue]
    assert waiting.actions[0].at == NOW + timedelta(minutes=1)

    plan = run(missing(ago(minutes=5)))
    (deletion, _) = plan.actions
    assert isinstance(deletion, DeleteObject)
    assert deletion.ref.uid == "uid-default-1"
    (event,) = plan.chains[0].events
    assert (event.reason, event.type) == ("NodeNotFound", "Warning")
    assert "node-default-1" in event.message


def test_reregistered_node_clears_node_missing_since():
    """If the node is missing again, the timeout starts again; so it does if a user edited the annotation."""
    (forgotten,) = run(missing(ago(minutes=9)), a_node()).actions
    assert forgotten.patch == {"metadata": {"annotations": {labels.NODE_MISSING_SINCE: None}}}
    edited = a_running_claim(metadata={"annotations": {labels.NODE_MISSING_SINCE: "yesterday"}})
    assert [type(a) for a in run(edited).actions] == [PatchObject, Requeue]


def test_claim_with_instance_terminating_and_no_deletion_is_deleted():
    """The condition implies a deletion; the step still drains it first."""
    claim = a_running_claim(status={"conditions": [condition("InstanceTerminating")]})
    plan = run(claim, a_node())
    assert [type(a) for a in plan.actions] == [DeleteObject, Requeue]
    assert [e.reason for e in plan.chains[0].events] == ["InconsistentStatus"]


GONE = CloudInstances(missing=frozenset({provider_id_of("default-1")}))


@table(
    "claim, nodes, cloud",
    it_has_its_node=(a_running_claim(), [a_node()], RUNNING),
    its_node_has_not_joined_yet=(a_launched_claim(), [], RUNNING),
    it_is_going_already=(missing(ago(hours=1), deleting=NOW), [], RUNNING),
    its_instance_is_gone_which_is_garbage=(missing(ago(hours=1)), [], GONE),
)
def test_consistent_claims_are_kept(claim, nodes, cloud):
    """Other reconcilers handle them."""
    assert run(claim, *nodes, cloud=cloud).actions == ()
