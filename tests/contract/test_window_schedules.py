"""`ports.WindowSchedules` on EventBridge Scheduler over HTTP: entries of one cluster, which fire once and delete themselves."""

import json
from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.cloud.aws.window_schedules import EventBridgeWindowSchedules
from journeyman.core.plan import ScheduleEntry, Step
from journeyman.errors import CloudProviderError, CloudUnavailableError, RateLimitedError
from journeyman.events import parse_trigger
from journeyman.ports import ScheduledRun
from journeyman_simulator.cloud_rules.schedule_runner import ScheduleRunner
from tests.contract.conftest import on_both_accounts

pytestmark = on_both_accounts
GROUP = "windows"


class Deployed:
    """A queue of each step, the schedule group, and the adapter for a cluster."""

    def __init__(self, aws, clock):
        self.aws, self.clock = aws, clock
        self.sqs, self.scheduler = aws.client("sqs"), aws.client("scheduler", max_attempts=1)
        fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        self.urls = {
            step: self.sqs.create_queue(QueueName=f"{step.value}.fifo", Attributes=fifo)["QueueUrl"]
            for step in (Step.PROVISION, Step.CONSOLIDATE)
        }
        self.scheduler.create_schedule_group(Name=GROUP)
        self.schedules = self.adapter()

    def adapter(self, group=GROUP):
        return EventBridgeWindowSchedules(
            self.scheduler,
            cluster="demo",
            group=group,
            role_arn="arn:aws:iam::123456789012:role/windows",
            dead_letters_arn="arn:aws:sqs:us-east-1:123456789012:dead",
            queues=self.urls,
            region="us-east-1",
        )

    def entry(self, name="ab12-default-c-20261102T0900Z", step=Step.CONSOLIDATE):
        at = self.clock.now() + timedelta(hours=1)
        return ScheduleEntry(name=name, step=step, at=at, reason="a budget window of NodePool default opens")


@pytest.fixture
def deployed(aws, clock):
    return Deployed(aws, clock)


def test_entry_sends_the_steps_message_when_it_is_due_and_deletes_itself(deployed, aws, clock):
    """The message has the cluster as its group, and parses."""
    deployed.schedules.create(deployed.entry())
    runner = ScheduleRunner(aws.client("events"), deployed.scheduler, clock, aws.deliver, version=aws.schedule_version)
    assert runner.due() == clock.now() + timedelta(hours=1)

    clock.advance_to(runner.due())
    assert runner.act()

    (message,) = deployed.sqs.receive_message(
        QueueUrl=deployed.urls[Step.CONSOLIDATE], MessageSystemAttributeNames=["All"]
    )["Messages"]
    trigger = parse_trigger(json.loads(message["Body"]))
    assert isinstance(trigger, ScheduledRun)
    assert (trigger.cluster, trigger.step, trigger.time) == ("demo", Step.CONSOLIDATE, clock.now())
    assert message["Attributes"]["MessageGroupId"] == "demo"
    assert deployed.schedules.list("ab12-") == frozenset()
    assert runner.due() is None


def test_list_has_the_entries_of_the_cluster_only(deployed):
    """Other clusters have other prefixes, and other applications have other groups; there may be several pages."""
    names = {f"ab12-pool-{n:03}-c-20261102T0900Z" for n in range(120)}
    for name in [*sorted(names), "cd34-pool-c-20261102T0900Z"]:
        deployed.schedules.create(deployed.entry(name))
    assert deployed.schedules.list("ab12-") == names


def test_entries_are_created_and_deleted_once(deployed):
    """A second sweep, or one that did not see the first response, repeats the calls."""
    deployed.schedules.create(deployed.entry())
    deployed.schedules.create(deployed.entry())
    assert len(deployed.schedules.list("ab12-")) == 1
    deployed.schedules.delete(deployed.entry().name)
    deployed.schedules.delete(deployed.entry().name)
    assert deployed.schedules.list("ab12-") == frozenset()


@pytest.mark.parametrize("operation", ["ListSchedules", "CreateSchedule", "DeleteSchedule"])
@pytest.mark.parametrize(
    ("code", "error"), [("ThrottlingException", RateLimitedError), ("InternalServerException", CloudUnavailableError)]
)
def test_errors_name_the_operation_and_can_be_retried(deployed, operation, code, error):
    """The next sweep tries again."""
    calls = {
        "ListSchedules": lambda: deployed.schedules.list("ab12-"),
        "CreateSchedule": lambda: deployed.schedules.create(deployed.entry()),
        "DeleteSchedule": lambda: deployed.schedules.delete("x"),
    }
    deployed.aws.fail_next(operation, code)

    with pytest.raises(error, match=f"scheduler:{operation}") as raised:
        calls[operation]()
    assert raised.value.retryable


def test_missing_group_is_an_error(deployed):
    """It belongs to the stack; without it no entry can be created, which no retry changes."""
    with pytest.raises(CloudProviderError, match="scheduler:CreateSchedule") as raised:
        deployed.adapter("gone").create(replace(deployed.entry(), name="x"))
    assert not raised.value.retryable
