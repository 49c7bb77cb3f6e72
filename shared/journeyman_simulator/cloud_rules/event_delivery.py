"""Builds EventBridge events, transforms them for targets, and delivers them to queues and functions."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec import Struct

from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError

_PLACEHOLDER: Final = re.compile(r'\\.|"|<([\w.\-]+)>')
_HEALTH_TIME: Final = "%a, %d %b %Y %H:%M:%S GMT"
_SIMULATED_TARGETS: Final = frozenset({"sqs", "lambda"})
JSON = Mapping[str, Any]


class FunctionDelivery(NamedTuple):
    """An event that is to be delivered to a function."""

    function_arn: str
    event: Any


class EventEnvelope(Struct, frozen=True, kw_only=True):
    """Builds an account's events, which share the account and the region."""

    account: str
    region: str

    def event(
        self, *, event_id: str, source: str, detail_type: str, detail: JSON, resources: Sequence[str], at: datetime
    ) -> dict[str, Any]:
        """Return an event of an AWS service."""
        return {
            "version": "0",
            "id": event_id,
            "detail-type": detail_type,
            "source": source,
            "account": self.account,
            "time": iso(at),
            "region": self.region,
            "resources": list(resources),
            "detail": dict(detail),
        }

    def health_detail(
        self, *, number: int, code: str, instance_ids: Sequence[str], starts_at: datetime, at: datetime
    ) -> dict[str, Any]:
        """Return the detail of an AWS Health event that announces the maintenance of instances."""
        now = at.strftime(_HEALTH_TIME)
        return {
            "eventArn": f"arn:aws:health:{self.region}::event/EC2/{code}/{code}_{number}",
            "service": "EC2",
            "eventTypeCode": code,
            "eventTypeCategory": "scheduledChange",
            "eventScopeCode": "ACCOUNT_SPECIFIC",
            "communicationId": f"{number:012x}-1",
            "startTime": starts_at.strftime(_HEALTH_TIME),
            "lastUpdatedTime": now,
            "statusCode": "upcoming",
            "eventRegion": self.region,
            "eventDescription": [{"language": "en_US", "latestDescription": "Instances are scheduled to be retired."}],
            "affectedEntities": [
                {"entityValue": id_, "lastUpdatedTime": now, "status": "IMPAIRED"} for id_ in instance_ids
            ],
            "affectedAccount": self.account,
            "page": "1",
            "totalPages": "1",
        }


class EventTargets:
    """Delivers events to the targets of rules and schedules.

    It keeps events for functions until the simulation takes them, since a function must not call AWS while the simulated
    AWS handles a request.

    Args:
        send: Sends a message, given the queue's name, the text, and a message group if the target names one.
    """

    def __init__(self, send: Callable[[str, str, str | None], object]) -> None:
        self._send = send
        self._deliveries: deque[FunctionDelivery] = deque()

    def deliver(self, target: JSON, event: JSON) -> None:
        """Deliver an event to a target, in the form that the target defines. Raises NotSimulatedError for other services."""
        text = transformed_input(target, event)
        service, name = target["Arn"].split(":")[2], target["Arn"].rsplit(":", 1)[1]
        if service == "lambda":
            self._deliveries.append(FunctionDelivery(target["Arn"], json.loads(text)))
        elif service == "sqs":
            self._send(name, text, target.get("SqsParameters", {}).get("MessageGroupId"))
        else:
            raise NotSimulatedError(f"the simulation does not support a target in {service}, only queues and functions")

    def take(self) -> tuple[FunctionDelivery, ...]:
        """Remove and return the events for functions, in order."""
        taken = tuple(self._deliveries)
        self._deliveries.clear()
        return taken


def is_simulated_target(target: JSON) -> bool:
    """Whether the target is a queue or a function."""
    return target["Arn"].split(":")[2] in _SIMULATED_TARGETS


def transformed_input(target: JSON, event: JSON) -> str:
    """Return the text for a target: its Input, the part at InputPath, its filled-in InputTransformer, or the event."""
    if "Input" in target:
        return str(target["Input"])
    if "InputPath" in target:
        return json.dumps(_at_path(event, target["InputPath"]))
    if "InputTransformer" in target:
        transformer = target["InputTransformer"]
        values = {name: _at_path(event, path) for name, path in transformer.get("InputPathsMap", {}).items()}
        return _fill_template(transformer["InputTemplate"], values | {"aws.events.event.json": event})
    return json.dumps(event)


def _fill_template(template: str, values: JSON) -> str:
    """Return the template with each `<name>` replaced: by text inside quotes, else by JSON. AWS drops unknown names."""
    quoted = False

    def fill(match: re.Match[str]) -> str:
        nonlocal quoted
        name = match.group(1)
        if name is None:
            quoted ^= match.group() == '"'
            return match.group()
        value = values.get(name)
        if value is None:
            return ""
        text = json.dumps(value)
        return text[1:-1] if quoted and isinstance(value, str) else text.replace('"', '\\"') if quoted else text

    return _PLACEHOLDER.sub(fill, template)


def _at_path(event: JSON, path: str) -> Any:
    """Return the value at a path such as `$.detail.instance-id`; None if it does not exist."""
    value: Any = event
    for key in path.split(".")[1:]:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def iso(moment: datetime) -> str:
    """Return a time in the format of events, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
