"""Launches while ECS lists an instance late: the client token finds it, and no second one is launched."""

from datetime import timedelta

import pytest

from journeyman.cloud.alibaba.provider import AlibabaCloudProvider
from journeyman.core.api import labels
from journeyman.core.api.launch_faults import FaultScope
from journeyman.errors import CreateError
from journeyman.ports import Launched
from tests.unit.cloud.alibaba.conftest import AckCluster
from tests.unit.cloud.conftest import a_claim

LAG = 30


@pytest.fixture
def ack():
    """Return an account that lists a new instance after half a minute, and really launches."""
    ack = AckCluster()
    ack.account.describe_lag_seconds = LAG
    ack.new_process = lambda: AlibabaCloudProvider(ack.account.open_api(), ack.settings, ack.clock)
    ack.provider = ack.new_process()
    return ack


def test_instance_that_ecs_lists_late_is_adopted_later(ack):
    """A warm process sends the same parameters with the same token, and gets the first answer.

    Another process has another attach script, so the token alone does not return that answer.
    """
    body = ack.node_class()
    first, repeated = ack.launch(body), ack.launch(body)
    ack.provider = ack.new_process()
    waiting = ack.launch(body)
    ack.clock.advance(LAG)
    adopted = ack.launch(body)

    assert isinstance(first, Launched)
    assert (type(waiting.error), waiting.answered) == (CreateError, False)
    assert first.instance.provider_id == repeated.instance.provider_id == adopted.instance.provider_id
    assert len(ack.account.instances.known) == 1


def test_client_token_without_an_instance_changes_after_two_minutes(ack):
    """Its first use may have failed in a crashed run, so ECS is given time to list an instance first."""
    body = ack.node_class()
    ack.launch(body)
    ack.provider = ack.new_process()
    claim = a_claim()
    claim.metadata.annotations[labels.LAUNCH_RETRY] = "7 2026-11-02T09:00:00Z 0"
    last = ack.launch(body, claim)

    assert last.answered
    assert last.retry_after == timedelta(minutes=2)


def test_quota_and_arrears_of_the_account_are_conditions_and_mark_nothing(ack):
    """Other offerings would be refused as well; the message says what to do."""
    ack.account.set_vcpu_quota(1)
    body = ack.node_class()
    over_quota = ack.launch(body)
    ack.account.set_vcpu_quota(1000)
    ack.account.in_arrears = True
    unpaid = ack.launch(body, a_claim("unpaid"))

    assert over_quota.error.condition_reason == "VCPULimitExceeded"
    assert (over_quota.unavailable, over_quota.answered) == ((), True)
    assert unpaid.error.condition_reason == "AccountInArrears"
    assert "pay" in unpaid.error.message


@pytest.mark.parametrize("code", ["", "InvalidSpotPriceLimit.LowerThanPublicPrice"], ids=["disks", "price limit"])
def test_settings_that_suit_no_offering_are_the_node_classs_fault(ack, code):
    """Other NodeClasses launch these offerings; this one is skipped for a while. The account refuses old disks itself."""
    if code:
        ack = AckCluster()
        ack.open_api.refusal = code
    body = ack.node_class(systemDisk={"categories": ["cloud"]})
    outcome = ack.launch(body, a_claim(spec={"nodeClassRef": {"name": "default"}}))

    assert outcome.unavailable == ()
    assert outcome.unavailable_for_class
    [fault] = outcome.faults
    assert (fault.scope, fault.name) == (FaultScope.NODE_CLASS, "default")
    assert (code or "InvalidDiskCategory.NotSupported") in fault.message
    assert "spec." in fault.remedy


def test_vswitch_without_addresses_is_skipped_alone():
    """It is the vSwitch's fault; offerings are unavailable only in zones without another vSwitch."""
    ack = AckCluster()
    ack.open_api.refusal = "InvalidVSwitchId.IpNotEnough"
    body = ack.node_class()
    outcome = ack.launch(body)

    assert {fault.scope for fault in outcome.faults} == {FaultScope.SUBNET}
    assert {fault.name for fault in outcome.faults} == {vswitch["id"] for vswitch in body["status"]["vSwitches"]}
    assert {offering.instance_type for offering in outcome.unavailable} == {"*"}
