"""Both simulated accounts reject the same requests with AWS's error codes and without any change."""

import pytest
from botocore.exceptions import ClientError

from journeyman.runtime.cluster_register import read_parameters
from tests.contract.conftest import on_both_accounts
from tests.helpers.small_clusters import table

pytestmark = on_both_accounts

FUNCTION = "arn:aws:lambda:us-east-1:123456789012:function:f"


def code(request, **parameters):
    """Return the error code of a rejected request."""
    with pytest.raises(ClientError) as refused:
        request(**parameters)
    return refused.value.response["Error"]["Code"]


@pytest.fixture
def instance(aws, account):
    """Return a function that launches an instance, waits until it runs, and returns its id."""
    ec2 = aws.client("ec2")

    def run(clock, spot=False):
        market = {"InstanceMarketOptions": {"MarketType": "spot"}} if spot else {}
        image = next(iter(account.images.values()))
        answer = ec2.run_instances(
            ImageId=image, InstanceType="m5.large", SubnetId=account.subnets[0], MinCount=1, MaxCount=1, **market
        )
        clock.advance(60)
        aws.act()
        return answer["Instances"][0]["InstanceId"]

    return run


UNKNOWN_RULE = {"Rule": "gone", "Targets": [{"Id": "f", "Arn": FUNCTION}]}


@table(
    "service", "operation", "parameters", "expected",
    subnet=("ec2", "describe_subnets", {"SubnetIds": ["subnet-1"]}, "InvalidSubnetID.NotFound"),
    security_group=("ec2", "describe_security_groups", {"GroupIds": ["sg-1"]}, "InvalidGroup.NotFound"),
    image=("ec2", "describe_images", {"ImageIds": ["ami-00000000000000999"]}, "InvalidAMIID.NotFound"),
    instance_type=("ec2", "describe_instance_types", {"InstanceTypes": ["zz.large"]}, "InvalidInstanceType"),
    launch_template=(
        "ec2", "delete_launch_template", {"LaunchTemplateName": "gone"}, "InvalidLaunchTemplateName.NotFoundException",
    ),
    queue=("sqs", "get_queue_url", {"QueueName": "gone"}, "AWS.SimpleQueueService.NonExistentQueue"),
    rule=("events", "put_targets", UNKNOWN_RULE, "ResourceNotFoundException"),
    schedule=("scheduler", "get_schedule", {"Name": "gone"}, "ResourceNotFoundException"),
    profile=("iam", "get_instance_profile", {"InstanceProfileName": "gone"}, "NoSuchEntity"),
    parameter=("ssm", "get_parameter", {"Name": "/aws/service/gone"}, "ParameterNotFound"),
    product=("pricing", "get_products", {"ServiceCode": "AmazonS3"}, "InvalidParameterException"),
)  # fmt: skip
def test_services_refuse_names_they_do_not_know(aws, service, operation, parameters, expected):
    """The code is the one for the resource's kind. The simulator has only EC2's products."""
    assert code(getattr(aws.client(service), operation), **parameters) == expected


@pytest.mark.parametrize("operation", ["describe", "terminate", "stop", "start"])
def test_instance_requests_refuse_unknown_ids(aws, operation):
    """An id of the wrong form is malformed; any other is not found."""
    request = getattr(aws.client("ec2"), f"{operation}_instances")
    assert code(request, InstanceIds=["i-0123456789abcdef0"]) == "InvalidInstanceID.NotFound"
    assert code(request, InstanceIds=["m-1"]) == "InvalidInstanceID.Malformed"


def test_names_are_unique(aws, account):
    """A second object of a name is rejected; a queue may be created again with the same attributes."""
    template = {"ImageId": next(iter(account.images.values()))}
    target = {"Arn": FUNCTION, "RoleArn": "arn:aws:iam::123456789012:role/r"}
    schedule = {"ScheduleExpression": "rate(1 hour)", "FlexibleTimeWindow": {"Mode": "OFF"}, "Target": target}
    in_use = "InvalidLaunchTemplateName.AlreadyExistsException"
    for service, operation, parameters, expected in (
        ("ec2", "create_launch_template", {"LaunchTemplateName": "node", "LaunchTemplateData": template}, in_use),
        ("scheduler", "create_schedule", {"Name": "window", **schedule}, "ConflictException"),
        ("iam", "create_instance_profile", {"InstanceProfileName": "p"}, "EntityAlreadyExists"),
    ):
        request = getattr(aws.client(service), operation)
        request(**parameters)
        assert code(request, **parameters) == expected
    sqs = aws.client("sqs")
    for _ in range(2):
        assert sqs.create_queue(QueueName="q", Attributes={"VisibilityTimeout": "30"})["QueueUrl"].endswith("/q")
    assert code(sqs.create_queue, QueueName="q", Attributes={"VisibilityTimeout": "31"}) == "QueueAlreadyExists"


def test_spot_instance_of_a_one_time_request_cannot_be_stopped(aws, clock, instance):
    """It stays running."""
    ec2, instance_id = aws.client("ec2"), instance(clock, spot=True)
    assert code(ec2.stop_instances, InstanceIds=[instance_id]) == "UnsupportedOperation"
    assert state(ec2, instance_id) == "running"


def test_instance_stops_and_starts_in_virtual_time(aws, clock, instance):
    """It passes through stopping and pending; only a stopped one can be started."""
    ec2, instance_id = aws.client("ec2"), instance(clock)
    assert code(ec2.start_instances, InstanceIds=[instance_id]) == "IncorrectInstanceState"

    seen = []
    for request in (ec2.stop_instances, ec2.start_instances):
        request(InstanceIds=[instance_id])
        seen.append(state(ec2, instance_id))
        clock.advance(60)
        seen.append(state(ec2, instance_id))

    assert seen == ["stopping", "stopped", "pending", "running"]


def test_terminated_instance_cannot_be_stopped_or_started(aws, clock, instance):
    """Terminating it again changes nothing."""
    ec2, instance_id = aws.client("ec2"), instance(clock)
    ec2.terminate_instances(InstanceIds=[instance_id])
    clock.advance(60)

    for request in (ec2.stop_instances, ec2.start_instances):
        assert code(request, InstanceIds=[instance_id]) == "IncorrectInstanceState"
    (ended,) = ec2.terminate_instances(InstanceIds=[instance_id])["TerminatingInstances"]
    assert (ended["PreviousState"]["Name"], ended["CurrentState"]["Name"]) == ("terminated", "terminated")


@table(
    "parameters", "expected",
    no_group=({}, "MissingParameter"),
    no_deduplication_id=({"MessageGroupId": "g"}, "InvalidParameterValue"),
    delay=({"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 5}, "InvalidParameterValue"),
)  # fmt: skip
def test_fifo_queue_refuses_messages_it_cannot_order(aws, parameters, expected):
    """A FIFO message needs a group and a deduplication id, and has no delay of its own."""
    sqs = aws.client("sqs")
    url = sqs.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    assert code(sqs.send_message, QueueUrl=url, MessageBody="m", **parameters) == expected
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_sqs_limits_messages_and_batches(aws):
    """A batch has 1 to 10 entries, with a mebibyte together; a message of exactly that size is accepted."""
    sqs = aws.client("sqs")
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    mebibyte = 1 << 20

    def batch(*bodies):
        entries = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies)]
        return code(sqs.send_message_batch, QueueUrl=url, Entries=entries).removeprefix("AWS.SimpleQueueService.")

    assert (batch(), batch(*["m"] * 11)) == ("EmptyBatchRequest", "TooManyEntriesInBatchRequest")
    assert batch("m" * (mebibyte // 2), "m" * (mebibyte // 2 + 1)) == "BatchRequestTooLong"
    assert code(sqs.send_message, QueueUrl=url, MessageBody="m" * (mebibyte + 1)) == "InvalidParameterValue"
    assert sqs.send_message(QueueUrl=url, MessageBody="m" * mebibyte)["MessageId"]


def test_visibility_of_a_message_that_is_not_in_flight_cannot_change(aws, clock):
    """In flight it can: the message is received again after the new timeout."""
    sqs = aws.client("sqs")
    url = sqs.create_queue(QueueName="q", Attributes={"VisibilityTimeout": "30"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="m")
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    handle = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 5}

    sqs.change_message_visibility(**handle)
    clock.advance(5)

    assert code(sqs.change_message_visibility, **handle) == "AWS.SimpleQueueService.MessageNotInflight"
    assert len(sqs.receive_message(QueueUrl=url)["Messages"]) == 1


def test_instance_profile_has_at_most_one_role(aws, account):
    """It must be removed before the profile is deleted."""
    iam = aws.client("iam")
    iam.create_instance_profile(InstanceProfileName="p")
    iam.add_role_to_instance_profile(InstanceProfileName="p", RoleName=account.role)
    assert code(iam.add_role_to_instance_profile, InstanceProfileName="p", RoleName="gone") == "NoSuchEntity"
    assert code(iam.add_role_to_instance_profile, InstanceProfileName="p", RoleName=account.role) == "LimitExceeded"
    assert code(iam.delete_instance_profile, InstanceProfileName="p") == "DeleteConflict"


def test_register_of_clusters_is_read_from_parameters(aws):
    """Pages have ten parameters; those of other stacks and deeper paths are not read; unknown ones are invalid."""
    ssm = aws.client("ssm")
    path = "/journeyman/stack/clusters"
    own = {f"{path}/cluster-{number}" for number in range(23)}
    for name in (*own, f"{path}/deeper/cluster", "/journeyman/other/clusters/cluster"):
        ssm.put_parameter(Name=name, Value='{"region": "eu-west-1"}', Type="String")

    assert set(read_parameters(ssm, path)) == own
    assert read_parameters(ssm, "/journeyman/none/clusters") == {}
    assert ssm.get_parameters(Names=["/aws/service/gone"])["InvalidParameters"] == ["/aws/service/gone"]


def state(ec2, instance_id):
    return ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]["State"]["Name"]
