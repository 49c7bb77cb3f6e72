"""EC2's status checks: each failed check is returned once, with its start."""

import pytest
from botocore.exceptions import ClientError

from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.instance_provider import failing_checks
from journeyman.core.state import InstanceStatus
from journeyman.errors import CloudProviderError
from tests.unit.cloud.aws.conftest import START, Pages

HEALTHY = {"Status": "ok", "Details": [{"Name": "reachability", "Status": "passed"}]}


def entry(name, *, instance=HEALTHY, system=HEALTHY, events=()):
    """Return an entry of DescribeInstanceStatus."""
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
    """The message names the permission to grant."""
    refused = ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "DescribeInstanceStatus")
    aws = Pages(describe_instance_status=refused)

    with pytest.raises(CloudProviderError, match="ec2:DescribeInstanceStatus"):
        failing_checks(Clients(lambda service, region: aws, "us-east-1"))
