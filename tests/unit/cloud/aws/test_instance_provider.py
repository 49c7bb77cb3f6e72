"""EC2's instances: their provider ids, why they ended, refused terminations, and status checks, of which each failed one is returned once."""

from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.instance_provider import InstanceProvider, failing_checks
from journeyman.core.state import InstanceStatus
from journeyman.errors import CloudProviderError
from tests.helpers.fakes import failing
from tests.unit.cloud.aws.conftest import START, Pages

HEALTHY = {"Status": "ok", "Details": [{"Name": "reachability", "Status": "passed"}]}


def entry(name, *, instance=HEALTHY, system=HEALTHY, events=()):
    return {
        "InstanceId": name,
        "AvailabilityZone": "us-east-1a",
        "InstanceStatus": instance,
        "SystemStatus": system,
        "Events": list(events),
    }


def failed_checks(*pages):
    """Return the failed checks if EC2 responds to each request with these pages."""
    aws = Pages(describe_instance_status=[{"InstanceStatuses": list(page)} for page in pages])
    return failing_checks(Clients(lambda service, region: aws, "us-east-1"))


def test_failed_checks_and_planned_events_are_reported_once():
    """The three requests may return an instance several times; passed and unfinished checks are not reported."""
    failed = {"Details": [{"Name": "reachability", "Status": "failed", "ImpairedSince": START}]}
    starting = {"Details": [{"Name": "reachability", "Status": "initializing"}]}
    planned = {"Code": "instance-retirement", "Description": "The instance is running on degraded hardware"}
    over = {"Code": "system-reboot", "Description": "[Completed] scheduled reboot"}

    found = failed_checks([entry("i-2", instance=starting, system=failed)], [entry("i-1", events=[planned, over])])

    assert found == (
        InstanceStatus(provider_id="aws:///us-east-1a/i-1", category="EventStatus", name="instance-retirement"),
        InstanceStatus(provider_id="aws:///us-east-1a/i-2", category="SystemStatus", name="reachability", since=START),
    )


def test_forbidden_call_names_the_missing_permission():
    refused = ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "DescribeInstanceStatus")
    aws = Pages(describe_instance_status=refused)
    with pytest.raises(CloudProviderError, match="ec2:DescribeInstanceStatus"):
        failing_checks(Clients(lambda service, region: aws, "us-east-1"))


def described(**changes):
    placed = {"Placement": {"AvailabilityZone": "us-east-1a"}, "LaunchTime": START, "State": {"Name": "terminated"}}
    return {"InstanceId": "i-1", "InstanceType": "m5.large", **placed, **changes}


SPOT = {"Code": "Server.SpotInstanceTermination", "Message": "Spot instance termination"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"StateReason": SPOT, "StateTransitionReason": "Server.SpotInstanceTermination"},
            "Termination; Spot instance termination",
        ),
        ({"StateReason": SPOT, "StateTransitionReason": "by the host"}, "Spot instance termination; by the host"),
        ({"StateReason": {"Code": "Client.UserInitiatedShutdown"}}, "Client.UserInitiatedShutdown"),
        ({"StateReason": SPOT, "State": {"Name": "running"}}, None),
        ({"StateReason": SPOT, "State": {"Name": "pending"}}, None),
        ({"StateTransitionReason": "User initiated"}, None),
    ],
)
def test_ended_instance_says_why_in_ec2s_words(changes, message):
    """Each text once; an instance that runs has not ended, and without a code EC2 does not say."""
    aws = Pages(describe_instances=[{"Reservations": [{"Instances": [described(**changes)]}]}])
    found = InstanceProvider(Clients(lambda service, region: aws, "us-east-1"), "demo").list()[0].failure
    assert (found is None) is (message is None)
    if found is not None:
        assert found.message.endswith(message)


def test_refused_termination_names_the_instance_and_its_zone():
    provider_id = "aws:///us-east-1a/i-1"
    refused = failing(ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "TerminateInstances"))
    ec2 = SimpleNamespace(terminate_instances=refused)
    [error] = (
        InstanceProvider(Clients(lambda service, region: ec2, "us-east-1"), "demo").delete_each([provider_id]).values()
    )

    assert (error.context["provider_id"], error.context["zone"]) == (provider_id, "us-east-1a")
