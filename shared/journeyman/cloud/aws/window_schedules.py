"""Implement `ports.WindowSchedules` with EventBridge Scheduler: entries of the stack's schedule group that send a step's message.

Every entry is for one time (`at(…)`, UTC), sends one message to the step's queue with the cluster as message group, and deletes
itself afterwards. The group belongs to the stack, whose deletion deletes it with all entries. EventBridge Scheduler fires within a
minute; like every message, that of an entry may be lost, doubled or late.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timezone
from typing import Any, Final
from urllib.parse import urlsplit

from journeyman.cloud.aws.aws_errors import error_code, translated
from journeyman.core.plan import ScheduleEntry, Step
from journeyman.errors import CloudProviderError

_ALREADY_EXISTS: Final = "ConflictException"
_NOT_FOUND: Final = "ResourceNotFoundException"
_MAX_DESCRIPTION: Final = 512  # characters, as EventBridge Scheduler allows
RETRY_SECONDS: Final = 900
"""How long a delivery is retried; the sweep has started the step long before."""


class EventBridgeWindowSchedules:
    """The entries of one cluster.

    Args:
        scheduler: A boto3 client.
        cluster: The cluster's name.
        group: The name of the schedule group.
        role_arn: The role with which EventBridge Scheduler sends to the queues.
        dead_letters_arn: The queue for messages that it cannot deliver.
        queues: The URL of each step's FIFO queue.
        region: The region of the queues.
    """

    def __init__(
        self,
        scheduler: Any,
        *,
        cluster: str,
        group: str,
        role_arn: str,
        dead_letters_arn: str,
        queues: Mapping[Step, str],
        region: str,
    ) -> None:
        self._scheduler = scheduler
        self._cluster = cluster
        self._group = group
        self._role_arn = role_arn
        self._dead_letters_arn = dead_letters_arn
        self._queues = queues
        self._region = region

    def list(self, prefix: str) -> frozenset[str]:
        """Return the names of the entries that start with the cluster's prefix."""
        names: set[str] = set()
        with translated("scheduler:ListSchedules", group=self._group):
            pages = self._scheduler.get_paginator("list_schedules").paginate(GroupName=self._group, NamePrefix=prefix)
            for page in pages:
                names.update(str(schedule["Name"]) for schedule in page["Schedules"])
        return frozenset(names)

    def create(self, entry: ScheduleEntry) -> None:
        """Create an entry; done if one of that name exists, because names identify the content."""
        at = entry.at.astimezone(timezone.utc)
        try:
            with translated("scheduler:CreateSchedule", group=self._group, name=entry.name):
                self._scheduler.create_schedule(
                    GroupName=self._group,
                    Name=entry.name,
                    Description=entry.reason[:_MAX_DESCRIPTION],
                    ScheduleExpression=f"at({at:%Y-%m-%dT%H:%M:%S})",
                    ScheduleExpressionTimezone="UTC",
                    FlexibleTimeWindow={"Mode": "OFF"},
                    ActionAfterCompletion="DELETE",
                    Target={
                        "Arn": self._queue_arn(entry.step),
                        "RoleArn": self._role_arn,
                        "Input": self._message(entry),
                        "SqsParameters": {"MessageGroupId": self._cluster},
                        "DeadLetterConfig": {"Arn": self._dead_letters_arn},
                        "RetryPolicy": {"MaximumEventAgeInSeconds": RETRY_SECONDS, "MaximumRetryAttempts": 10},
                    },
                )
        except CloudProviderError as error:
            if error_code(error) != _ALREADY_EXISTS:
                raise

    def delete(self, name: str) -> None:
        """Delete an entry; done if it does not exist."""
        try:
            with translated("scheduler:DeleteSchedule", group=self._group, name=name):
                self._scheduler.delete_schedule(GroupName=self._group, Name=name)
        except CloudProviderError as error:
            if error_code(error) != _NOT_FOUND:
                raise

    def _message(self, entry: ScheduleEntry) -> str:
        """Return the message's body; EventBridge Scheduler fills in the id and the time."""
        body = {
            "version": "1",
            "source": "schedule",
            "id": "<aws.scheduler.execution-id>",
            "time": "<aws.scheduler.scheduled-time>",
            "cluster": self._cluster,
            "step": entry.step.value,
            "reason": entry.reason,
        }
        return json.dumps(body, separators=(",", ":"))

    def _queue_arn(self, step: Step) -> str:
        """Return the ARN of the step's queue, whose URL ends in account and name; the partition is that of the role."""
        account, name = urlsplit(self._queues[step]).path.strip("/").split("/")[-2:]
        return f"arn:{self._role_arn.split(':')[1]}:sqs:{self._region}:{account}:{name}"
