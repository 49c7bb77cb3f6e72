"""Implements the traces that Cloud Trace Service (CTS) records of servers, and the scheduled events of ECS.

Restates: CTS, "Trace structure"; ECS API reference, "Querying scheduled events"; FunctionGraph, "CTS trigger".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import count
from typing import Any, Final

from msgspec import Struct

from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.huawei_account.rest_errors import invalid_request
from journeyman_simulator.huawei_account.rest_operations import OperationHandlers, RestRequest

_SECOND: Final = "%Y-%m-%dT%H:%M:%SZ"
_TYPES: Final = frozenset({"instance-reboot", "instance-stop", "instance-migrate", "instance-redeploy"}) | {
    *("localdisk-recovery", "system-maintenance"),
}
_DEFAULT_LIMIT: Final = 100


class ScheduledEvent(Struct, kw_only=True):
    """A planned operation on a server's host."""

    id: str
    server_id: str
    type: str
    state: str  # inquiring, scheduled, executing, completed, failed or canceled
    published_at: datetime
    not_before: datetime
    finished_at: datetime | None = None


class EcsEvents:
    """Publishes traces as FunctionGraph's CTS trigger passes them on, and keeps the scheduled events.

    Args:
        time: The time of events.
        domain_id: The account.
        on_trace: Called with every trace.
    """

    def __init__(
        self, time: ServiceTime, domain_id: str, on_trace: Callable[[dict[str, Any]], object] | None = None
    ) -> None:
        self._time = time
        self._domain_id = domain_id
        self._serial = count(1)
        self.subscribers: list[Callable[[dict[str, Any]], object]] = [on_trace] if on_trace else []
        self.scheduled: dict[str, ScheduledEvent] = {}

    def publish(self, trace_name: str, server_id: str, name: str, *, by_system: bool = False) -> None:
        """Publish a trace of a server, such as "deleteServer", with the current time."""
        if not self.subscribers:
            return
        milliseconds = self._time.milliseconds()
        is_reclaim = trace_name == "interruptServer"
        trace = {
            "time": milliseconds,
            "user": {
                "name": "ecs" if by_system else "operator",
                "id": "u1000000000000000000000000000001",
                "domain": {"name": "journeyman", "id": self._domain_id},
            },
            "request": {},
            "response": {},
            "code": 200,
            "service_type": "ECS",
            "resource_type": "server" if is_reclaim else "ecs",
            "resource_name": name,
            "resource_id": server_id,
            "trace_name": trace_name,
            "trace_type": "SystemAction" if by_system else "ApiCall",
            "record_time": milliseconds,
            "trace_id": f"00000000-0000-11ef-8000-{next(self._serial):012x}",
            "trace_status": "warning" if is_reclaim else "normal",
        }
        for subscriber in self.subscribers:
            subscriber({"cts": trace})

    def schedule(self, server_id: str, event_type: str, state: str, not_before: datetime) -> ScheduledEvent:
        """Create a scheduled event."""
        if event_type not in _TYPES:
            raise ValueError(f"the type of a scheduled event is one of {', '.join(sorted(_TYPES))}, not {event_type!r}")
        event = ScheduledEvent(
            id=f"e0000000-0000-4000-8000-{next(self._serial):012x}",
            server_id=server_id,
            type=event_type,
            state=state,
            published_at=self._time.now(),
            not_before=not_before,
        )
        self.scheduled[event.id] = event
        return event

    def set_state(self, event_id: str, state: str) -> None:
        """Change the state of a scheduled event."""
        event = self.scheduled[event_id]
        event.state = state
        if state in {"completed", "failed", "canceled"}:
            event.finished_at = self._time.now()

    def handlers(self) -> OperationHandlers:
        """Return the handler of ECS's operation."""
        return {"ListScheduledEvents": self._list}

    def _list(self, request: RestRequest) -> dict[str, Any]:
        since, until = (_moment(request.text(name)) for name in ("publish_since", "publish_until"))
        found = [
            event
            for event in self.scheduled.values()
            if _is_wanted(event, request.query)
            and (since is None or since <= event.published_at)
            and (until is None or event.published_at <= until)
        ]
        if marker := request.text("marker"):
            if marker not in self.scheduled:
                raise invalid_request("ecs", f"marker {marker} is not the id of a scheduled event")
            found = [event for event in found if event.id > marker]
        limit = request.query.get("limit", _DEFAULT_LIMIT)
        more = {"next_marker": found[limit - 1].id} if len(found) > limit else {}
        return {"events": [_entry(event) for event in found[:limit]], "page_info": more}


def _is_wanted(event: ScheduledEvent, query: Mapping[str, Any]) -> bool:
    """Whether an event has the ids, types and states of a query, each a list separated by commas."""
    facts = {"id": event.id, "instance_id": event.server_id, "type": event.type, "state": event.state}
    return all(fact in str(query.get(name, fact)).split(",") for name, fact in facts.items())


def _moment(text: str) -> datetime | None:
    if not text:
        return None
    try:
        return datetime.strptime(f"{text}+0000", f"{_SECOND}%z")
    except ValueError:
        raise invalid_request("ecs", f"{text!r} is not a time such as 2025-05-04T03:02:01Z") from None


def _entry(event: ScheduledEvent) -> dict[str, Any]:
    return {
        "id": event.id,
        "type": event.type,
        "state": event.state,
        "instance_id": event.server_id,
        "publish_time": event.published_at.strftime(_SECOND),
        "not_before": event.not_before.strftime(_SECOND),
        "not_after": None,
        "not_before_deadline": None,
        "start_time": None,
        "finish_time": event.finished_at.strftime(_SECOND) if event.finished_at else None,
        "execute_options": {},
        "source": "platform",
    }
