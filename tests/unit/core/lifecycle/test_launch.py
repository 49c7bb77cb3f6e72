"""Launch: the changes of a NodeClaim for each outcome of the cloud."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import OfferingKey
from journeyman.core.lifecycle.launch import (
    FailedLaunch,
    LaunchedInstance,
    OfferingBackoff,
    answered_failures,
    failures,
    launch_nodeclaims,
    record_launch,
    retry_at,
)
from journeyman.core.plan import (
    ClearOfferingFailures,
    DeleteObject,
    LaunchInstance,
    MarkOfferingUnavailable,
    PatchObject,
    Requeue,
    Step,
)
from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    CreateError,
    InsufficientCapacityError,
    NodeClaimNotFoundError,
    NodeClassNotReadyError,
    RateLimitedError,
)
from tests.helpers.actions import conditions, done, of_type, requeues
from tests.helpers.builders import CLASS, CLASS_LABEL, NOW, a_claim
from tests.helpers.small_clusters import table

BACKOFF = OfferingBackoff()
OFFERING = OfferingKey("m.small", "a", "spot")


def failed(claim, error, unavailable=(), **answer):
    return record_launch(claim, FailedLaunch(error=error, unavailable=unavailable, **answer), NOW, BACKOFF)


def patched(plan):
    """Return all patches of a plan, merged."""
    whole = {"metadata": {}, "status": {}}
    for action in of_type(plan, PatchObject):
        for part, value in action.patch.items():
            whole[part].update(value)
    return whole


def a_launched(**changes):
    made = {
        "provider_id": "aws:///a/i-1",
        "image_id": "",
        "labels": {},
        "annotations": {},
        "capacity": {},
        "allocatable": {},
    }
    return LaunchedInstance(**{**made, **changes})


def message_of(plan):
    """Return the message of the condition Launched."""
    return next(c["message"] for c in patched(plan)["status"]["conditions"] if c["type"] == "Launched")


def test_launched_claim_gets_the_clouds_labels_and_keeps_its_own():
    """The cloud's labels are added, the status has the instance, the retry annotation is removed, failures are recorded."""
    claim = a_claim(metadata={"labels": {"mine": "yes"}, "annotations": {labels.LAUNCH_RETRY: "2 x"}})
    instance = a_launched(
        image_id="ami-1",
        labels={"mine": "no", labels.ZONE: "a"},
        annotations={"hash": "h"},
        capacity={"cpu": "4"},
        allocatable={"cpu": "3900m"},
        unavailable=(OFFERING,),
    )

    plan = record_launch(claim, instance, NOW, BACKOFF)

    patch = patched(plan)
    assert patch["metadata"]["labels"] == {labels.ZONE: "a"}
    assert patch["metadata"]["annotations"] == {"hash": "h", labels.LAUNCH_RETRY: None}
    assert (patch["status"]["providerID"], patch["status"]["imageID"]) == ("aws:///a/i-1", "ami-1")
    assert patch["status"]["allocatable"] == {"cpu": "3900m"}
    assert conditions(plan)["Launched"] == ("True", "Launched")
    assert conditions(plan)["Ready"] == ("Unknown", "ReconcilingDependents")
    assert [a.offerings for a in of_type(plan, MarkOfferingUnavailable)] == [(OFFERING,)]


BOTH = {Step.PROVISION, Step.TERMINATE}
REFUSED = InsufficientCapacityError("no stock", offerings=(OFFERING,))
ENDED = NodeClaimNotFoundError("the instance of an earlier launch, aws:///z/i-1, is terminated")


@table(
    "error, steps, event, counted_as",
    insufficient_capacity=(REFUSED, BOTH, "InsufficientCapacityError", "insufficient_capacity"),
    unready_node_class=(NodeClassNotReadyError("no subnets"), {Step.TERMINATE}, "NodeClassNotReady", None),
    ended_instance_of_an_earlier_launch=(ENDED, BOTH, "InstanceNotFound", "garbage_collected"),
)
def test_launch_that_cannot_succeed_deletes_the_claim_and_reschedules(error, steps, event, counted_as):
    """A NodeClaim has one instance in its lifetime. While the NodeClass is unready, provisioning would only create it again."""
    plan = failed(a_claim(), error)
    assert done(plan) == "delete NodeClaim default-1"
    assert requeues(plan).keys() == steps
    assert [e.reason for e in plan.events] == [event]
    assert counted_as in {None, plan.chains[0].observations[0].labels["reason"]}


def test_refused_offerings_are_recorded_before_the_claim_is_deleted():
    """So the next plan avoids them."""
    mark, deletion, *_ = failed(a_claim(), REFUSED).actions
    assert isinstance(mark, MarkOfferingUnavailable)
    assert mark.soonest_end == NOW + timedelta(minutes=3)
    assert isinstance(deletion, DeleteObject)


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (CreateError("forbidden" * 500, condition_reason="Unauthorized"), "Unauthorized", "forbidden" * 500),
        (CreateError("x" * 99_999, condition_reason="Unauthorized"), "Unauthorized", "x" * 32_768),
        (CloudProviderError("x" * 1024), "LaunchFailed", "x" * 1024),
        (CloudProviderError("x" * 1025), "LaunchFailed", "x" * 1021 + "..."),
        (RateLimitedError("slow down", retry_after_seconds=0), "RequestLimitExceeded", "slow down"),
    ],
    ids=["create error", "longer than a condition may be", "other error", "long other error", "throttled"],
)
def test_other_launch_failure_sets_launched_unknown_and_retries(error, reason, message):
    """Launched is Unknown with the reason; the cloud's message is kept whole; an annotation has the next attempt."""
    plan = failed(a_claim(), error)
    assert (conditions(plan)["Launched"], message_of(plan)) == (("Unknown", reason), message)
    assert of_type(plan, Requeue) == [retry(NOW + timedelta(seconds=1))]


def retry(at):
    return Requeue(step=Step.PROVISION, at=at, reason="retry the launch of NodeClaim default-1")


def test_retries_back_off_from_a_second_to_a_minute():
    """Each failure doubles the wait in the annotation."""
    waits, claim = [], a_claim()
    for _ in range(8):
        plan = failed(claim, CloudProviderError("down"))
        annotations = patched(plan)["metadata"]["annotations"]
        claim = a_claim(metadata={"annotations": annotations})
        waits.append((retry_at(claim) - NOW).total_seconds())

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_only_an_answered_launch_failure_changes_the_next_client_token():
    """After any other failure, an earlier attempt may have launched an instance; all failures count for the wait."""
    counted, claim = [], a_claim()
    refused = CreateError("no such profile", condition_reason="InstanceProfileNameInvalid")
    others = CloudUnavailableError("broke off"), RateLimitedError("slow down"), CloudProviderError("forbidden")
    for error, answered in ((others[0], False), (others[1], False), (refused, True), (others[2], False)):
        annotations = patched(failed(claim, error, answered=answered))["metadata"]["annotations"]
        claim = a_claim(metadata={"annotations": annotations})
        counted.append(answered_failures(claim))

    assert counted == [0, 0, 1, 1]
    assert failures(claim) == 4
    assert retry_at(claim) == NOW + timedelta(seconds=8)


def test_failure_and_throttling_may_have_their_own_retry_delay():
    """After it, the cloud lists an instance of the failed attempt, if there is one. It waits at least as long as the cloud asks."""
    unsettled = CreateError("used", condition_reason="LaunchFailed")
    own = failed(a_claim(), unsettled, retry_after=timedelta(minutes=2))
    throttled = failed(a_claim(), RateLimitedError("slow down", retry_after_seconds=20))
    assert of_type(own, Requeue)[0].at == NOW + timedelta(minutes=2)
    assert of_type(throttled, Requeue)[0].at == NOW + timedelta(seconds=20)


def test_a_claim_gets_its_finalizer_and_the_label_of_its_node_class_before_its_instance():
    """One chain first adds them and then launches. A NodeClaim that a user created gets the label, too."""
    plan = launch_nodeclaims([a_claim(metadata={"finalizers": [], "labels": {CLASS_LABEL: "x"}})], NOW)
    ((protect, launch),) = (chain.actions for chain in plan.chains)
    assert protect.patch["metadata"]["finalizers"] == [labels.TERMINATION_FINALIZER]
    assert isinstance(launch, LaunchInstance)

    bare = a_claim()
    bare.metadata.labels.pop(CLASS_LABEL)
    (chain,) = launch_nodeclaims([bare], NOW).chains
    assert chain.actions[0].patch["metadata"]["labels"] == {CLASS_LABEL: CLASS}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"taints": [{"key": "a", "effect": "NoSchedule"}] * 2}, "taint a:NoSchedule"),
        ({"requirements": [{"key": "team", "operator": "In", "values": ["no label"]}]}, "'no label'"),
        ({"resources": {"requests": {"cpu": "-1"}}}, "'-1' is negative"),
    ],
)
def test_users_nodeclaim_that_does_not_validate_is_not_launched(spec, says):
    """`Launched` is False with the field; Journeyman's own NodeClaims are not validated again."""
    users, ours = (a_claim(spec=spec, metadata={"labels": {labels.NODEPOOL: pool}}) for pool in ("x", "default"))
    users.metadata.labels.pop(labels.NODEPOOL)

    plan = launch_nodeclaims([users], NOW)

    assert of_type(plan, LaunchInstance) == []
    assert conditions(plan)["Launched"] == ("False", "InvalidSpec")
    assert message_of(plan).startswith("NodeClaim default-1 does not validate: spec")
    assert says in message_of(plan)
    assert len(of_type(launch_nodeclaims([ours], NOW), LaunchInstance)) == 1


def test_claim_is_launched_again_exactly_when_its_retry_is_due():
    """The annotation has the time; until then it is requeued for it."""
    due = NOW + timedelta(seconds=30)
    now, later = (a_claim(metadata={"annotations": {labels.LAUNCH_RETRY: f"5 {at.isoformat()}"}}) for at in (NOW, due))
    assert len(of_type(launch_nodeclaims([now], NOW), LaunchInstance)) == 1
    assert launch_nodeclaims([later], NOW).actions == (retry(due),)


def test_launched_refused_and_deleting_claims_are_left_alone():
    """There is nothing to launch."""
    launched = a_claim(provider_id="aws:///a/i-1", true=("Launched",))
    refused = a_claim(status={"conditions": [{"type": "Launched", "status": "False"}]})
    for claim in (launched, refused, a_claim(deleting=NOW)):
        assert launch_nodeclaims([claim], NOW).chains == ()


@pytest.mark.parametrize("launched_at", [NOW - timedelta(hours=1), None])
def test_offering_failures_are_cleared_as_of_the_instances_launch(launched_at):
    """A repeated launch returns the instance of an earlier run: failures since then stay."""
    instance = a_launched(offering=OFFERING, launched_at=launched_at)
    failed_before = OfferingBackoff(previously_failed=frozenset({OFFERING}))

    (cleared,) = of_type(record_launch(a_claim(), instance, NOW, failed_before), ClearOfferingFailures)

    assert (cleared.offering, cleared.at) == (OFFERING, launched_at or NOW)
    accepted = replace(instance, is_confirmed=False)
    for each, backoff in ((instance, BACKOFF), (accepted, failed_before)):
        assert not of_type(record_launch(a_claim(), each, NOW, backoff), ClearOfferingFailures)
