"""Liveness: NodeClaims whose instance ended, or was never built, before their node registered."""

from datetime import timedelta

from journeyman.core.api import labels
from journeyman.core.api.objects import OfferingKey
from journeyman.core.lifecycle.failed_registrations import ended_registrations, record_failed_registrations
from journeyman.core.lifecycle.launch import OfferingBackoff
from journeyman.core.lifecycle.liveness import delete_claims_of_ended_instances
from journeyman.core.plan import DeleteObject, MarkOfferingUnavailable
from journeyman.core.state.instances import BuildFailure, CloudInstances
from tests.helpers.actions import events, of_type
from tests.helpers.builders import NOW, a_launched_claim, a_running_claim, a_snapshot, an_instance

BACKOFF = OfferingBackoff(first=timedelta(minutes=2), longest=timedelta(hours=1))
OFFERED = {"labels": {labels.INSTANCE_TYPE: "m.medium", labels.ZONE: "a", labels.CAPACITY_TYPE: "on-demand"}}


def plan_for(claim, failure=None, state="stopped"):
    instance = an_instance(claim.metadata.name, state=state, failure=failure)
    cloud = CloudInstances(listed=(instance,))
    snapshot = a_snapshot(claims=(claim,))
    failed = ended_registrations(snapshot, cloud.ended, {instance.provider_id: failure} if failure else {})
    return record_failed_registrations(snapshot, failed, BACKOFF) + delete_claims_of_ended_instances(snapshot, cloud)


def test_offering_without_stock_for_an_accepted_launch_is_unavailable():
    """The cloud accepted the launch, and found later that it has no stock; the NodeClaim's Event says why."""
    claim = a_launched_claim("a", metadata=OFFERED)
    failure = BuildFailure(reason="NoStock", message="no stock of m.medium", is_capacity=True)

    plan = plan_for(claim, failure)

    (mark,) = of_type(plan, MarkOfferingUnavailable)
    assert (mark.offerings, mark.reason) == ((OfferingKey("m.medium", "a", "on-demand"),), "NoStock")
    assert (mark.at, mark.first, mark.longest) == (NOW, BACKOFF.first, BACKOFF.longest)
    (deleted,) = of_type(plan, DeleteObject)
    assert deleted.ref.name == "a"
    (event,) = events(plan)
    assert "could not be built, no stock of m.medium" in event.message


def test_instance_that_failed_for_another_reason_leaves_its_offering_available():
    """A quota or a wrong setting concerns every offering; an instance that a user stopped did not fail at all."""
    claim = a_launched_claim("a", metadata=OFFERED)
    quota = BuildFailure(reason="QuotaExceeded", message="the quota is used up", is_capacity=False)

    for failure in (quota, None):
        plan = plan_for(claim, failure)
        assert not of_type(plan, MarkOfferingUnavailable)
        assert [each.ref.name for each in of_type(plan, DeleteObject)] == ["a"]


def test_claim_stays_while_its_instance_is_built_or_after_it_registered():
    """A registered claim is drained, which other reconcilers do."""
    assert not plan_for(a_launched_claim("a", metadata=OFFERED), state="pending").chains
    assert not of_type(plan_for(a_running_claim("a", metadata=OFFERED)), DeleteObject)
