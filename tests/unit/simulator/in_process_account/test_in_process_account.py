"""The in-process account's features for fault scenarios: stale reads, faults, clear errors.

The contract tests check that this account and the one on moto behave like AWS.
"""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, ParamValidationError

from journeyman.errors import ConfigurationError
from journeyman.events import parse_trigger
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError
from journeyman_simulator.in_process_account.account import InProcessAccount
from journeyman_simulator.in_process_account.sqs_queues import MessageOutcome

EVENTS = Path(__file__).parents[4] / "events" / "eventbridge"


@pytest.fixture
def clock():
    return VirtualClock(datetime(2026, 11, 2, 8, 0, tzinfo=timezone.utc))


@pytest.fixture
def account(clock):
    return InProcessAccount(clock)


@pytest.fixture
def ec2(account):
    return account.client("ec2")


@pytest.fixture
def launch(account, ec2):
    """Return a function that launches one instance with a fleet and returns its id."""
    seeded = account.seed()
    image = seeded.images["amazon-eks-node-al2023-x86_64-standard-1.33-v20260715"]
    ec2.create_launch_template(LaunchTemplateName="node", LaunchTemplateData={"ImageId": image})

    def one(capacity_type="on-demand", **more):
        overrides = [{"InstanceType": "m5.large", "SubnetId": seeded.subnets[0]}]
        answer = ec2.create_fleet(
            Type="instant",
            TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": capacity_type},
            LaunchTemplateConfigs=[
                {"LaunchTemplateSpecification": {"LaunchTemplateName": "node"}, "Overrides": overrides}
            ],
            **more,
        )
        return answer["Instances"][0]["InstanceIds"][0]

    return one


@pytest.fixture
def sent(account):
    """Return a function that sends texts to a queue with an outcome each and returns the received ones."""
    sqs = account.client("sqs")

    def send(*fates, fifo=False):
        name = "queue.fifo" if fifo else "queue"
        url = sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"} if fifo else {})["QueueUrl"]
        for number, fate in enumerate(fates):
            account.queues.decide = lambda _queue, _body, fate=fate: fate
            group = {"MessageGroupId": "g", "MessageDeduplicationId": f"{number} of {len(fates)}"} if fifo else {}
            sqs.send_message(QueueUrl=url, MessageBody=str(number), **group)
        return sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])

    return send


def states(client):
    found = client.describe_instances()["Reservations"]
    return {i["InstanceId"]: i["State"]["Name"] for r in found for i in r["Instances"]}


# -- stale reads ---------------------------------------------------------------------------------------------------------


def test_reads_can_show_an_earlier_state(account, ec2, clock, launch):
    """A new instance is not listed, a terminated one is still running, and a read by id does not find the new one."""
    old = launch()
    clock.advance(60)
    ec2.terminate_instances(InstanceIds=[old])
    new = launch()
    clock.advance(20)
    lagging = ec2.as_of(clock.now() - timedelta(seconds=21))

    assert states(lagging) == {old: "running"}
    assert states(ec2) == {old: "terminated", new: "running"}
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        lagging.describe_instances(InstanceIds=[new])


def test_templates_and_profiles_can_be_read_in_an_earlier_state(account, ec2, clock, launch):
    """The read does not return a new one, but still returns a deleted one."""
    clock.advance(30)
    ec2.delete_launch_template(LaunchTemplateName="node")
    ec2.create_launch_template(LaunchTemplateName="new", LaunchTemplateData={})
    iam = account.client("iam")
    iam.create_instance_profile(InstanceProfileName="new")
    clock.advance(5)
    moment = clock.now() - timedelta(seconds=10)

    def names(client):
        return [t["LaunchTemplateName"] for t in client.describe_launch_templates()["LaunchTemplates"]]

    assert (names(ec2.as_of(moment)), names(ec2)) == (["node"], ["new"])
    with pytest.raises(ClientError, match="NoSuchEntity"):
        iam.as_of(moment).get_instance_profile(InstanceProfileName="new")


def test_observers_see_every_change_in_order(account, clock, launch):
    """They see launch, termination request and each state with its own time, although the clock jumped."""
    seen = []
    begin = clock.now()
    account.instances.observers.append(lambda e: seen.append(((e.at - begin).total_seconds(), e.what)))
    account.instances.terminate(launch())
    clock.advance(100)
    account.act()

    assert seen == [
        (0, "launched"),
        (0, "pending"),
        (0, "termination-requested"),
        (0, "shutting-down"),
        (12, "terminated"),
    ]


# -- faults ----------------------------------------------------------------------------------------------------


def test_message_can_be_dropped_duplicated_and_reordered(sent):
    """The sender gets a normal response; duplicates have their own message ids."""
    received = sent(
        MessageOutcome(), MessageOutcome(copies=0), MessageOutcome(copies=2), MessageOutcome(overtakes=True)
    )

    assert [message["Body"] for message in received] == ["3", "0", "2", "2"]
    assert len({message["MessageId"] for message in received}) == 4


def test_fifo_queue_duplicates_in_order_and_never_reorders(sent):
    """A duplicate is like a redelivery; reordering would break FIFO's contract, so such a scenario is invalid."""
    received = sent(MessageOutcome(copies=2), MessageOutcome(), fifo=True)

    assert [message["Body"] for message in received] == ["0", "0", "1"]
    with pytest.raises(ConfigurationError, match="overtake"):
        sent(MessageOutcome(overtakes=True), fifo=True)


def test_delayed_message_delays_its_fifo_group(account, sent, clock):
    """The order stays the same, and the queue reports when the next message is due."""
    assert sent(MessageOutcome(delay_seconds=7), MessageOutcome(), fifo=True) == []
    assert account.queues.due("queue.fifo") == clock.now() + timedelta(seconds=7)


def test_instance_that_never_joins_is_marked(account, launch):
    """Only the next launch is affected, and EC2's responses do not show it."""
    account.instances.prevent_next_from_joining()

    assert [account.instances.known[launch()].joins for _ in range(2)] == [False, True]


def test_instances_stop_and_start_as_ec2_allows(account, clock, launch):
    """A stopped instance can be started again; a one-time Spot or a terminated instance cannot be stopped."""
    instances, normal, spot = account.instances, launch(), launch("spot")
    instances.stop(normal)
    clock.advance(12)
    account.act()
    stopped = instances.known[normal].state
    instances.start(normal)
    instances.terminate(normal)

    assert (stopped, instances.known[normal].state) == ("stopped", "shutting-down")
    for instance in (normal, spot):
        with pytest.raises(Exception, match=r"IncorrectInstanceState|UnsupportedOperation"):
            instances.stop(instance)


# -- events -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "example"),
    [
        (lambda i, id_: i.interrupt(id_), "ec2-spot-interruption/terminate.json"),
        (lambda i, id_: i.recommend_rebalance(id_), "ec2-rebalance-recommendation/elevated-risk.json"),
        (lambda i, id_: i.terminate(id_), "ec2-state-change/shutting-down.json"),
        (lambda i, id_: i.announce_retirement(id_, timedelta(days=7)), "health/instance-retirement.json"),
    ],
)
def test_events_have_the_shape_of_recorded_events(clock, cause, example):
    """They have exactly EventBridge's keys, and the product's parser finds the instance."""
    events = []
    account = InProcessAccount(clock, on_event=events.append)
    subnet, image = next(iter(account.network.subnets)), next(iter(account.seed().images.values()))
    instance = account.instances.launch(
        instance_type="m5.large", architecture="x86_64", subnet_id=subnet, image_id=image, spot=True, tags={}
    )
    cause(account.instances, instance.id)
    recorded = json.loads((EVENTS / example).read_text())

    event = events[-1]
    assert event["detail-type"] == recorded["detail-type"]
    assert set(event) == set(recorded)
    assert set(event["detail"]) == set(recorded["detail"])
    assert parse_trigger(event).instance_ids == (instance.id,)


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda a: a.client("s3"), "s3"),
        (lambda a: a.client("ec2").describe_vpcs(), "ec2:DescribeVpcs"),
        (lambda a: a.client("ec2").describe_instances(DryRun=True), "DryRun of ec2:DescribeInstances"),
        (lambda a: a.client("ec2").describe_subnets(Filters=[{"Name": "ipv6", "Values": ["x"]}]), "'ipv6'"),
        (lambda a: a.client("ec2").create_fleet(LaunchTemplateConfigs=[], TargetCapacitySpecification={}), "maintain"),
    ],
)
def test_unsimulated_requests_are_named(account, ask, named):
    """The product does not handle this error, so a scenario fails instead of continuing."""
    with pytest.raises(NotSimulatedError, match=named):
        ask(account)


def test_missing_parameter_is_refused_as_by_botocore(ec2):
    """botocore raises the error before it sends the request."""
    with pytest.raises(ParamValidationError, match="InstanceIds"):
        ec2.terminate_instances()


def test_accounts_with_the_same_requests_are_equal(clock):
    """Ids are serial numbers and prices depend on a seed, so runs are reproducible."""

    def contents():
        account = InProcessAccount(VirtualClock(clock.now()))
        account.seed()
        history = account.client("ec2").describe_spot_price_history()["SpotPriceHistory"]
        return account.client("ec2").describe_images()["Images"], history

    assert contents() == contents()
