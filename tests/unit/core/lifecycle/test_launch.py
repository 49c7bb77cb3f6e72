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
from tests.helpers.builders import CLASS, CLASS_LABEL, NOW, a_claim

BACKOFF = OfferingBackoff()
OFFERING = OfferingKey("m.small", "a", "spot")


def failed(claim, error, unavailable=(), **answer):
    return record_launch(claim, FailedLaunch(error=error, unavailable=unavailable, **answer), NOW, BACKOFF)


def of_type(plan, kind):
    return [action for action in plan.actions if isinstance(action, kind)]


def patched(plan):
    """Return all patches of a plan, merged."""
    whole = {"metadata": {}, "status": {}}
    for action in of_type(plan, PatchObject):
        for part, value in action.patch.items():
            whole[part].update(value)
    return whole


def conditions_of(plan):
    return {c["type"]: (c["status"], c["reason"]) for c in patched(plan)["status"]["conditions"]}


def test_launched_claim_gets_the_clouds_labels_and_keeps_its_own():
    """The cloud's labels are added, the status has the instance, the retry annotation is removed, failures are recorded."""
    claim = a_claim(metadata={"labels": {"mine": "yes"}, "annotations": {labels.LAUNCH_RETRY: "2 x"}})
    instance = LaunchedInstance(
        provider_id="aws:///a/i-1",
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
    assert patch["status"]["providerID"] == "aws:///a/i-1"
    assert patch["status"]["imageID"] == "ami-1"
    assert patch["status"]["allocatable"] == {"cpu": "3900m"}
    assert conditions_of(plan)["Launched"] == ("True", "Launched")
    assert conditions_of(plan)["Ready"] == ("Unknown", "ReconcilingDependents")
    assert [a.offerings for a in of_type(plan, MarkOfferingUnavailable)] == [(OFFERING,)]


def test_insufficient_capacity_deletes_the_claim_and_reschedules():
    """The refused offerings are recorded before the NodeClaim is deleted, so the next plan avoids them."""
    plan = failed(a_claim(), InsufficientCapacityError("no stock", offerings=(OFFERING,)))

    kinds = [type(action) for action in plan.actions]
    assert kinds.index(MarkOfferingUnavailable) < kinds.index(DeleteObject)
    assert of_type(plan, MarkOfferingUnavailable)[0].soonest_end == NOW + timedelta(minutes=3)
    assert {w.step for w in of_type(plan, Requeue)} == {Step.PROVISION, Step.TERMINATE}
    assert [e.reason for e in plan.events] == ["InsufficientCapacityError"]
    assert plan.chains[0].observations[0].labels["reason"] == "insufficient_capacity"


def test_unready_node_class_deletes_the_claim_and_requeues_terminate_only():
    """Provisioning now would only create the same NodeClaim again."""
    plan = failed(a_claim(), NodeClassNotReadyError("no subnets"))

    assert of_type(plan, DeleteObject)
    assert {w.step for w in of_type(plan, Requeue)} == {Step.TERMINATE}
    assert [e.reason for e in plan.events] == ["NodeClassNotReady"]


def test_ended_instance_of_an_earlier_launch_deletes_the_claim_and_reschedules():
    """A NodeClaim has one instance in its lifetime."""
    plan = failed(a_claim(), NodeClaimNotFoundError("the instance of an earlier launch, aws:///z/i-1, is terminated"))

    assert of_type(plan, DeleteObject)
    assert {w.step for w in of_type(plan, Requeue)} == {Step.PROVISION, Step.TERMINATE}
    assert [e.reason for e in plan.events] == ["InstanceNotFound"]
    assert plan.chains[0].observations[0].labels["reason"] == "garbage_collected"


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

    assert conditions_of(plan)["Launched"] == ("Unknown", reason)
    launched = next(c for c in patched(plan)["status"]["conditions"] if c["type"] == "Launched")
    assert launched["message"] == message
    assert of_type(plan, Requeue) == [
        Requeue(step=Step.PROVISION, at=NOW + timedelta(seconds=1), reason="retry the launch of NodeClaim default-1")
    ]


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
    for error, answered in (
        (CloudUnavailableError("broke off"), False),
        (RateLimitedError("slow down"), False),
        (CreateError("no such profile", condition_reason="InstanceProfileNameInvalid"), True),
        (CloudProviderError("forbidden"), False),
    ):
        annotations = patched(failed(claim, error, answered=answered))["metadata"]["annotations"]
        claim = a_claim(metadata={"annotations": annotations})
        counted.append(answered_failures(claim))

    assert counted == [0, 0, 1, 1]
    assert failures(claim) == 4
    assert retry_at(claim) == NOW + timedelta(seconds=8)


def test_failure_may_have_its_own_retry_delay():
    """After it, the cloud lists an instance of the failed attempt, if there is one."""
    unsettled = CreateError("used", condition_reason="LaunchFailed")
    plan = failed(a_claim(), unsettled, retry_after=timedelta(minutes=2))

    assert of_type(plan, Requeue)[0].at == NOW + timedelta(minutes=2)


def test_throttling_waits_at_least_as_long_as_the_cloud_asks():
    """RateLimitedError has its own delay."""
    plan = failed(a_claim(), RateLimitedError("slow down", retry_after_seconds=20))
    assert of_type(plan, Requeue)[0].at == NOW + timedelta(seconds=20)


def test_a_claim_gets_its_finalizer_before_its_instance():
    """One chain first adds the finalizer and then launches."""
    plan = launch_nodeclaims([a_claim(metadata={"finalizers": [], "labels": {CLASS_LABEL: "x"}})], NOW)

    (chain,) = plan.chains
    protect, launch = chain.actions
    assert protect.patch["metadata"]["finalizers"] == [labels.TERMINATION_FINALIZER]
    assert isinstance(launch, LaunchInstance)


def test_hydration_labels_a_claim_with_its_node_class():
    """A NodeClaim that a user created gets the label, too."""
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
    assert conditions_of(plan)["Launched"] == ("False", "InvalidSpec")
    (message,) = (c["message"] for c in patched(plan)["status"]["conditions"] if c["type"] == "Launched")
    assert message.startswith("NodeClaim default-1 does not validate: spec")
    assert says in message
    assert len(of_type(launch_nodeclaims([ours], NOW), LaunchInstance)) == 1


def test_claim_is_launched_again_exactly_when_its_retry_is_due():
    """The requeue is sent for this time."""
    claim = a_claim(metadata={"annotations": {labels.LAUNCH_RETRY: f"5 {NOW.isoformat()}"}})
    assert len(of_type(launch_nodeclaims([claim], NOW), LaunchInstance)) == 1


def test_a_claim_that_waits_for_its_next_attempt_is_not_launched_yet():
    """Its requeue is due at the time in the annotation."""
    due = NOW + timedelta(seconds=30)
    claim = a_claim(metadata={"annotations": {labels.LAUNCH_RETRY: f"5 {due.isoformat()}"}})
    assert launch_nodeclaims([claim], NOW).actions == (
        Requeue(step=Step.PROVISION, at=due, reason="retry the launch of NodeClaim default-1"),
    )


@pytest.mark.parametrize(
    "claim",
    [
        a_claim(provider_id="aws:///a/i-1", true=("Launched",)),
        a_claim(deleting=NOW),
        a_claim(status={"conditions": [{"type": "Launched", "status": "False"}]}),
    ],
)
def test_launched_refused_and_deleting_claims_are_left_alone(claim):
    """There is nothing to launch."""
    assert launch_nodeclaims([claim], NOW).chains == ()


@pytest.mark.parametrize("launched_at", [NOW - timedelta(hours=1), None])
def test_offering_failures_are_cleared_as_of_the_instances_launch(launched_at):
    """A repeated launch returns the instance of an earlier run: failures since then stay."""
    offering = OfferingKey(*OFFERING)
    instance = LaunchedInstance(
        provider_id="i-1",
        image_id="ami-1",
        labels={},
        annotations={},
        capacity={},
        allocatable={},
        offering=offering,
        launched_at=launched_at,
    )

    plan = record_launch(a_claim(), instance, NOW, OfferingBackoff(previously_failed=frozenset({offering})))

    (cleared,) = of_type(plan, ClearOfferingFailures)
    assert (cleared.offering, cleared.at) == (offering, launched_at or NOW)
    assert not of_type(record_launch(a_claim(), instance, NOW, BACKOFF), ClearOfferingFailures)
    accepted = replace(instance, is_confirmed=False)
    failed_before = OfferingBackoff(previously_failed=frozenset({offering}))
    assert not of_type(record_launch(a_claim(), accepted, NOW, failed_before), ClearOfferingFailures)
