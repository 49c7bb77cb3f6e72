"""EC2's own status checks: each failed check is returned once, with its start."""

import pytest
from botocore.exceptions import ClientError

from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.instance_provider import failing_checks
from journeyman.core.state import InstanceStatus
from journeyman.errors import CloudProviderError
from tests.unit.cloud.aws.conftest import START, Pages

HEALTHY = {"Status": "ok", "Details": [{"Name": "reachability", "Status": "passed"}]}


def entry(name, *, instance=HEALTHY, system=HEALTHY, events=()):
    """An entry of DescribeInstanceStatus."""
    return {
        "InstanceId": name,
        "AvailabilityZone": "us-east-1a",
        "InstanceStatus": instance,
        "SystemStatus": system,
        "Events": list(events),
    }


def asked(*pages):
    """The checks that fail, if EC2 answers each question with these pages."""
    aws = Pages(describe_instance_status=[{"InstanceStatuses": list(page)} for page in pages])
    return failing_checks(Clients(lambda service, region: aws, "us-east-1"))


def test_failed_checks_and_planned_events_are_reported_once():
    """The three questions may name one instance several times; checks that pass or are still running are no finding."""
    failed = {"Details": [{"Name": "reachability", "Status": "failed", "ImpairedSince": START}]}
    starting = {"Details": [{"Name": "reachability", "Status": "initializing"}]}
    planned = {"Code": "instance-retirement", "Description": "The instance is running on degraded hardware"}
    over = {"Code": "system-reboot", "Description": "[Completed] scheduled reboot"}

    found = asked([entry("i-2", instance=starting, system=failed)], [entry("i-1", events=[planned, over])])

    assert found == (
        InstanceStatus(provider_id="aws:///us-east-1a/i-1", category="EventStatus", name="instance-retirement"),
        InstanceStatus(provider_id="aws:///us-east-1a/i-2", category="SystemStatus", name="reachability", since=START),
    )


def test_forbidden_call_names_the_missing_permission():
    """The message says what to grant."""
    refused = ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "DescribeInstanceStatus")
    aws = Pages(describe_instance_status=refused)

    with pytest.raises(CloudProviderError, match="ec2:DescribeInstanceStatus"):
        failing_checks(Clients(lambda service, region: aws, "us-east-1"))
