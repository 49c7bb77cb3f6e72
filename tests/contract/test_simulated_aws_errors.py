"""Both simulated accounts reject the same requests with AWS's error codes and without any change."""

import pytest
from botocore.exceptions import ClientError

from journeyman.runtime.cluster_register import read_parameters
from tests.contract.conftest import on_both_accounts

pytestmark = on_both_accounts

UNKNOWN_ID = "i-0123456789abcdef0"


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


@pytest.mark.parametrize(
    "operation", ["describe_instances", "terminate_instances", "stop_instances", "start_instances"]
)
@pytest.mark.parametrize(
    ("instance_id", "expected"), [(UNKNOWN_ID, "InvalidInstanceID.NotFound"), ("m-1", "InvalidInstanceID.Malformed")]
)
def test_instance_requests_refuse_unknown_ids(aws, operation, instance_id, expected):
    """An id of the wrong form is malformed; any other is not found."""
    assert code(getattr(aws.client("ec2"), operation), InstanceIds=[instance_id]) == expected


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

    assert code(ec2.stop_instances, InstanceIds=[instance_id]) == "IncorrectInstanceState"
    assert code(ec2.start_instances, InstanceIds=[instance_id]) == "IncorrectInstanceState"
    (ended,) = ec2.terminate_instances(InstanceIds=[instance_id])["TerminatingInstances"]
    assert (ended["PreviousState"]["Name"], ended["CurrentState"]["Name"]) == ("terminated", "terminated")


@pytest.mark.parametrize(
    ("operation", "parameters", "expected"),
    [
        ("describe_subnets", {"SubnetIds": ["subnet-1"]}, "InvalidSubnetID.NotFound"),
        ("describe_security_groups", {"GroupIds": ["sg-1"]}, "InvalidGroup.NotFound"),
        ("describe_images", {"ImageIds": ["ami-00000000000000999"]}, "InvalidAMIID.NotFound"),
        ("describe_instance_types", {"InstanceTypes": ["zz.large"]}, "InvalidInstanceType"),
        ("delete_launch_template", {"LaunchTemplateName": "gone"}, "InvalidLaunchTemplateName.NotFoundException"),
    ],
)
def test_ec2_refuses_names_it_does_not_know(aws, operation, parameters, expected):
    """The code is the one for the resource's kind."""
    assert code(getattr(aws.client("ec2"), operation), **parameters) == expected


def test_launch_template_names_are_unique(aws, account):
    """A second template of a name is rejected."""
    ec2 = aws.client("ec2")
    data = {"LaunchTemplateName": "node", "LaunchTemplateData": {"ImageId": next(iter(account.images.values()))}}
    ec2.create_launch_template(**data)

    assert code(ec2.create_launch_template, **data) == "InvalidLaunchTemplateName.AlreadyExistsException"


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, "MissingParameter"),
        ({"MessageGroupId": "g"}, "InvalidParameterValue"),
        ({"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 5}, "InvalidParameterValue"),
    ],
    ids=["no group", "no deduplication id", "delay"],
)
def test_fifo_queue_refuses_messages_it_cannot_order(aws, parameters, expected):
    """A FIFO message needs a group and a deduplication id, and has no delay of its own."""
    sqs = aws.client("sqs")
    url = sqs.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]

    assert code(sqs.send_message, QueueUrl=url, MessageBody="m", **parameters) == expected
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_sqs_refuses_unknown_queues_and_other_attributes(aws):
    """Creating a queue again needs the same attributes."""
    sqs = aws.client("sqs")
    sqs.create_queue(QueueName="q", Attributes={"VisibilityTimeout": "30"})

    assert code(sqs.get_queue_url, QueueName="gone") == "AWS.SimpleQueueService.NonExistentQueue"
    assert code(sqs.create_queue, QueueName="q", Attributes={"VisibilityTimeout": "31"}) == "QueueAlreadyExists"
    assert sqs.create_queue(QueueName="q", Attributes={"VisibilityTimeout": "30"})["QueueUrl"].endswith("/q")


def test_sqs_refuses_empty_and_large_batches(aws):
    """A batch has 1 to 10 entries."""
    sqs = aws.client("sqs")
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    entries = [{"Id": str(number), "MessageBody": "m"} for number in range(11)]

    assert code(sqs.send_message_batch, QueueUrl=url, Entries=[]) == "AWS.SimpleQueueService.EmptyBatchRequest"
    assert (
        code(sqs.send_message_batch, QueueUrl=url, Entries=entries)
        == "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"
    )


def test_sqs_refuses_messages_and_batches_of_over_a_mebibyte(aws):
    """The entries of a batch have the limit together; a message of exactly that size is accepted."""
    sqs = aws.client("sqs")
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    mebibyte = 1 << 20
    halves = [{"Id": str(number), "MessageBody": "m" * (mebibyte // 2 + number)} for number in range(2)]

    assert code(sqs.send_message, QueueUrl=url, MessageBody="m" * (mebibyte + 1)) == "InvalidParameterValue"
    assert code(sqs.send_message_batch, QueueUrl=url, Entries=halves) == "AWS.SimpleQueueService.BatchRequestTooLong"
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


def test_events_refuse_unknown_rules(aws):
    """A target needs an existing rule."""
    events = aws.client("events")
    target = {"Id": "f", "Arn": "arn:aws:lambda:us-east-1:123456789012:function:f"}

    assert code(events.put_targets, Rule="gone", Targets=[target]) == "ResourceNotFoundException"


def test_schedule_names_are_unique(aws):
    """A second schedule of a name is rejected, and an unknown one is not found."""
    scheduler = aws.client("scheduler")
    schedule = {
        "Name": "window",
        "ScheduleExpression": "rate(1 hour)",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "Target": {
            "Arn": "arn:aws:lambda:us-east-1:123456789012:function:f",
            "RoleArn": "arn:aws:iam::123456789012:role/r",
        },
    }
    scheduler.create_schedule(**schedule)

    assert code(scheduler.create_schedule, **schedule) == "ConflictException"
    assert code(scheduler.get_schedule, Name="gone") == "ResourceNotFoundException"


def test_iam_refuses_unknown_and_used_names(aws, account):
    """A profile has at most one role, which must be removed before its deletion."""
    iam = aws.client("iam")
    iam.create_instance_profile(InstanceProfileName="p")
    iam.add_role_to_instance_profile(InstanceProfileName="p", RoleName=account.role)

    assert code(iam.get_instance_profile, InstanceProfileName="gone") == "NoSuchEntity"
    assert code(iam.create_instance_profile, InstanceProfileName="p") == "EntityAlreadyExists"
    assert code(iam.add_role_to_instance_profile, InstanceProfileName="p", RoleName="gone") == "NoSuchEntity"
    assert code(iam.delete_instance_profile, InstanceProfileName="p") == "DeleteConflict"
    with pytest.raises(ClientError, match="LimitExceeded"):
        iam.add_role_to_instance_profile(InstanceProfileName="p", RoleName=account.role)


def test_ssm_refuses_unknown_parameters(aws):
    """GetParameter returns an error; GetParameters lists them as invalid."""
    ssm = aws.client("ssm")

    assert code(ssm.get_parameter, Name="/aws/service/gone") == "ParameterNotFound"
    assert ssm.get_parameters(Names=["/aws/service/gone"])["InvalidParameters"] == ["/aws/service/gone"]


def test_register_of_clusters_is_read_from_parameters(aws):
    """Pages have ten parameters; those of other stacks and below deeper paths are not read."""
    ssm = aws.client("ssm")
    path = "/journeyman/stack/clusters"
    for number in range(23):
        ssm.put_parameter(Name=f"{path}/cluster-{number}", Value='{"region": "eu-west-1"}', Type="String")
    ssm.put_parameter(Name=f"{path}/deeper/cluster", Value="-", Type="String")
    ssm.put_parameter(Name="/journeyman/other/clusters/cluster", Value="-", Type="String")

    assert set(read_parameters(ssm, path)) == {f"{path}/cluster-{number}" for number in range(23)}
    assert read_parameters(ssm, "/journeyman/none/clusters") == {}


def test_pricing_refuses_other_services(aws):
    """The simulator has only EC2's products."""
    assert code(aws.client("pricing").get_products, ServiceCode="AmazonS3") == "InvalidParameterException"


def state(ec2, instance_id):
    return ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]["State"]["Name"]
