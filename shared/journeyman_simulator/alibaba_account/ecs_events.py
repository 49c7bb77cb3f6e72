"""Implements ECS's events on EventBridge, and the system events that DescribeInstanceHistoryEvents lists.

Restates: CloudEvents 1.0 as EventBridge of Alibaba Cloud sends them, with source `acs.ecs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import count
from typing import Any, Final

from msgspec import Struct

from journeyman_simulator.alibaba_account.openapi_requests import (
    ActionHandlers,
    ActionRequest,
    from_second,
    numbered_page,
    to_second,
    token_page,
)
from journeyman_simulator.cloud_rules.service_time import ServiceTime

JSON = Mapping[str, Any]
_STATUS_CODES: Final = {"Scheduled": 24, "Executing": 1, "Executed": 0, "Avoided": 4, "Canceled": 5, "Failed": 3}
_TYPE_CODES: Final = {
    "SystemMaintenance.Reboot": 1,
    "SystemMaintenance.Redeploy": 17,
    "SystemMaintenance.Stop": 18,
    "SystemFailure.Reboot": 2,
    "SystemFailure.Redeploy": 45,
    "SystemFailure.Stop": 46,
    "SystemFailure.Delete": 29,
    "InstanceFailure.Reboot": 3,
}


class PlannedEvent(Struct, kw_only=True):
    """A system event of an instance: maintenance or a failure."""

    id: str
    instance_id: str
    event_type: str
    published_at: datetime
    not_before: datetime
    status: str = "Scheduled"
    reason: str = "The instance runs on degraded hardware."
    changed_at: datetime | None = None


class EcsEventBus:
    """Publishes ECS's events, and keeps the system events.

    Args:
        time: The time of events.
        region: The region of events.
        account: The account's id.
        on_event: Called with every event.
    """

    def __init__(
        self, time: ServiceTime, region: str, account: str, on_event: Callable[[dict[str, Any]], object] | None
    ) -> None:
        self._time = time
        self._region = region
        self._account = account
        self._serial = count(1)
        self.subscribers: list[Callable[[dict[str, Any]], object]] = [on_event] if on_event else []
        self.planned: dict[str, PlannedEvent] = {}

    def publish(self, event_type: str, instance_id: str, data: JSON) -> None:
        """Publish an event of an instance, such as "Instance:StateChange", with the current time."""
        if not self.subscribers:
            return
        now = self._time.now().strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        event = {
            "specversion": "1.0",
            "id": f"00000000-0000-4000-8000-{next(self._serial):012x}",
            "source": "acs.ecs",
            "type": f"ecs:{event_type}",
            "datacontenttype": "application/json;charset=utf-8",
            "subject": f"acs:ecs:{self._region}:{self._account}:instance/{instance_id}",
            "time": now,
            "aliyunaccountid": self._account,
            "aliyunoriginalaccountid": self._account,
            "aliyunregionid": self._region,
            "aliyuneventbusname": "default",
            "aliyunpublishtime": now,
            "aliyunpublishaddr": "10.0.0.1",
            "data": dict(data),
        }
        for subscriber in self.subscribers:
            subscriber(event)

    def plan(self, instance_id: str, event_type: str, not_before: datetime, reason: str = "") -> PlannedEvent:
        """Schedule a system event, with ECS's usual reason if none is given, and publish that."""
        event = PlannedEvent(
            id=f"e-bp1{next(self._serial):017d}",
            instance_id=instance_id,
            event_type=event_type,
            published_at=self._time.now(),
            not_before=not_before,
        )
        event.reason = reason or event.reason
        self.planned[event.id] = event
        self._publish_planned(event)
        return event

    def set_status(self, event_id: str, status: str) -> None:
        """Change the status of a system event, and publish that."""
        event = self.planned[event_id]
        event.status = status
        event.changed_at = self._time.now()
        self._publish_planned(event)

    def _publish_planned(self, event: PlannedEvent) -> None:
        data = {
            "eventId": event.id,
            "eventType": event.event_type,
            "eventStatus": event.status,
            "instanceId": event.instance_id,
            "publishTime": to_second(event.published_at),
            "notBefore": to_second(event.not_before),
        }
        if event.changed_at and event.status in {"Executing", "Executed"}:
            data["executeStartTime"] = to_second(event.not_before)
        if event.changed_at and event.status == "Executed":
            data["executeFinishTime"] = to_second(event.changed_at)
        self.publish(f"Instance:{event.event_type}", event.instance_id, data)

    def handlers(self) -> ActionHandlers:
        """Return the handlers of ECS's actions."""
        return {"DescribeInstanceHistoryEvents": self._describe}

    def _describe(self, request: ActionRequest) -> dict[str, Any]:
        found = [_history_entry(event) for event in self._selected(request)]
        answer: JSON
        if "MaxResults" in request.parameters or "NextToken" in request.parameters:
            page, answer = token_page(request, found, default=10)
        else:
            page, answer = numbered_page(request, found)
        return {"InstanceSystemEventSet": {"InstanceSystemEventType": page}, **answer}

    def _selected(self, request: ActionRequest) -> Iterator[PlannedEvent]:
        types = {
            *(request.get("InstanceEventType") or ()),
            *([request["EventType"]] if request.get("EventType") else ()),
        }
        statuses = {
            *(request.get("InstanceEventCycleStatus") or ()),
            *([request["EventCycleStatus"]] if request.get("EventCycleStatus") else ()),
        }
        resources = {
            *(request.get("ResourceId") or ()),
            *([request["InstanceId"]] if request.get("InstanceId") else ()),
        }
        span = request.get("NotBefore") or {}
        for event in self.planned.values():
            if (
                (not types or event.event_type in types)
                and (not statuses or event.status in statuses)
                and (not resources or event.instance_id in resources)
                and (not request.get("EventId") or event.id in request["EventId"])
                and ("Start" not in span or from_second(span["Start"]) <= event.not_before)
                and ("End" not in span or event.not_before <= from_second(span["End"]))
            ):
                yield event


def _history_entry(event: PlannedEvent) -> dict[str, Any]:
    return {
        "EventId": event.id,
        "InstanceId": event.instance_id,
        "ResourceType": "instance",
        "EventType": {"Code": _TYPE_CODES.get(event.event_type, 0), "Name": event.event_type},
        "EventCycleStatus": {"Code": _STATUS_CODES.get(event.status, 0), "Name": event.status},
        "EventPublishTime": to_second(event.published_at),
        "NotBefore": to_second(event.not_before),
        "ImpactLevel": "100",
        "Reason": event.reason,
    }
