"""Conditions of EC2NodeClasses: what AWS refuses, and what cannot work."""

import pytest
from botocore.exceptions import ClientError

from journeyman.errors import InvalidObjectError
from tests.unit.cloud.aws.conftest import launching_claim
from tests.unit.cloud.conftest import condition


def test_role_that_may_not_be_passed_is_a_condition_with_the_remedy(aws, resolved):
    """A NodeClass that was Ready names another role, which the stack's parameter NodeRoleArn lacks."""
    aws.identity.not_passable.add("second")
    before = resolved()
    assert condition(before, "Ready")[0] == "True"
    after = resolved(before["status"], role="path/second")

    status, reason, message = condition(after, "InstanceProfileReady")
    assert (status, reason) == ("False", "RoleNotAllowed")
    assert "role second" in message
    assert "NodeRoleArn" in message
    assert "iam:PassRole" in message
    assert "AddRoleToInstanceProfile to the function" not in message
    assert condition(after, "Ready")[0] == "False"
    assert after["status"]["subnets"] == before["status"]["subnets"]
    aws.identity.not_passable.clear()
    assert condition(resolved(after["status"], role="second"), "Ready")[0] == "True"


def test_refused_profile_is_a_condition_that_names_the_right(aws, resolved):
    """Others than the right to pass the role are the functions' own."""
    aws.fail_next("CreateInstanceProfile", "AccessDenied")
    status, reason, message = condition(resolved(), "InstanceProfileReady")
    assert (status, reason) == ("False", "RequestRefused")
    assert "grant iam:CreateInstanceProfile" in message


@pytest.mark.parametrize("own", [{}, {"Name": "mine"}])
def test_node_class_with_the_most_tags_launches_and_its_instance_is_named(aws, provider, resolved, launch, clock, own):
    """EC2 allows 50 tags, of which eight are ours with the name; it refuses one more."""
    body = resolved(tags={f"k{i}": "v" for i in range(42)} | own)
    assert condition(body, "Ready")[0] == "True"
    provider_id = launch(launching_claim("full", clock.now()), body).instance.provider_id
    if not own:
        provider.name_instance(provider_id, "ip-10-0-0-1.ec2.internal")

    tags = {k: v for k, v in provider.get_each([provider_id])[provider_id].tags.items() if not k.startswith("aws:")}
    assert len(tags) == 50
    assert tags["Name"] == own.get("Name", "ip-10-0-0-1.ec2.internal")
    with pytest.raises(ClientError, match="TagLimitExceeded"):
        aws.client("ec2").create_tags(Resources=[provider_id.rpartition("/")[2]], Tags=[{"Key": "more", "Value": "v"}])


@pytest.mark.parametrize("number", [45, 50])
def test_more_tags_would_be_refused_at_each_launch(resolved, launch, clock, number):
    """So the condition says so before."""
    body = resolved(tags={f"k{i}": "v" for i in range(number)})
    failed = launch(launching_claim("full", clock.now()), body)
    assert condition(body, "Ready")[0] == "False"
    assert not hasattr(failed, "instance")


def test_status_that_does_not_validate_is_computed_anew(provider, resolved):
    """Another version may have written it; until then nothing can be said about the NodeClass's instance types."""
    unreadable = {**(body := resolved()), "status": {"capacityReservations": [{"id": "cr-1"}], "other": 1}}
    with pytest.raises(InvalidObjectError, match="capacityReservations"):
        provider.get_instance_types(unreadable)
    assert resolved(status=unreadable["status"])["status"] == body["status"]
