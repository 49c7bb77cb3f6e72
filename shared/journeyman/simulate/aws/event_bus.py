"""EventBridge's default bus as AWS runs it: true-shaped events, input transformation, SQS and Lambda targets."""

from __future__ import annotations

import copy
import json
import re
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.events.models import Rule, events_backends
from moto.sqs.models import sqs_backends

from journeyman.simulate.aws.patching import Patch
from journeyman.simulate.aws.timekeeping import Timekeeper, from_milliseconds

_PLACEHOLDER = re.compile(r'\\.|"|<([\w.\-]+)>')


class Delivery(NamedTuple):
    """An event on its way to a function."""

    function_arn: str
    event: Any


class EventBus:
    """Publishes what AWS services publish, and delivers to the targets of matching rules.

    `deliveries` holds events for Lambda targets: whoever runs the functions takes them from there, since nothing may
    call back into AWS while AWS is answering.
    """

    def __init__(self, time: Timekeeper, region: str, on_event: Callable[[dict[str, Any]], object] | None) -> None:
        self._time = time
        self._region = region
        self._on_event = on_event
        self.deliveries: deque[Delivery] = deque()

    def publish(self, source: str, detail_type: str, detail: Mapping[str, Any], resources: Sequence[str]) -> None:
        """Put a service's event on the default bus, as of now."""
        event = {
            "version": "0",
            "id": str(uuid.uuid4()),
            "detail-type": detail_type,
            "source": source,
            "account": DEFAULT_ACCOUNT_ID,
            "time": _iso(self._time.now()),
            "region": self._region,
            "resources": list(resources),
            "detail": dict(detail),
        }
        if self._on_event:
            self._on_event(event)
        backend = events_backends[DEFAULT_ACCOUNT_ID][self._region]
        for rule in list(backend.describe_event_bus("default").rules.values()):
            self._route(rule, event)

    def deliver(self, target: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        """Hand `event` to one rule target, shaped as the target asks."""
        text = shaped(target, event)
        service, name = target["Arn"].split(":")[2], target["Arn"].rsplit(":", 1)[1]
        if service == "lambda":
            self.deliveries.append(Delivery(target["Arn"], json.loads(text)))
            return
        group = target.get("SqsParameters", {}).get("MessageGroupId")
        backend = sqs_backends[DEFAULT_ACCOUNT_ID][self._region]
        queue: Any = backend.queues.get(name)
        # EventBridge gives up silently on a target that refuses: a missing queue, a FIFO queue it cannot deduplicate.
        if queue and (not queue.fifo_queue or (group and queue.content_based_deduplication)):
            backend.send_message(queue_name=name, message_body=text, group_id=group)

    def patches(self) -> tuple[Patch, ...]:
        """Replaces what happens to an event once PutEvents has accepted it."""

        def replace(original: Callable[..., None]) -> Callable[..., None]:
            def send_to_targets(rule: Rule, original_event: dict[str, Any], transform_input: bool = True) -> None:
                event = {key: value for key, value in original_event.items() if key != "ingestion-time"}
                event["time"] = _iso(from_milliseconds(float(event["time"]) * 1000))
                elsewhere = copy.copy(rule)
                elsewhere.targets = [target for target in rule.targets if not _is_ours(target)]
                self._route(rule, event)
                if rule.state == "ENABLED":
                    original(elsewhere, original_event, transform_input)

            return send_to_targets

        return (
            Patch(
                owner=Rule,
                name="send_to_targets",
                replace=replace,
                reason="disabled rules stay silent, Lambda targets and every form of input work, events have AWS's keys",
            ),
        )

    def _route(self, rule: Rule, event: Any) -> None:
        if (
            rule.state != "ENABLED"
            or not rule.event_pattern.get_pattern()
            or not rule.event_pattern.matches_event(event)
        ):
            return
        for target in rule.targets:
            if _is_ours(target):
                self.deliver(target, event)


def shaped(target: Mapping[str, Any], event: Mapping[str, Any]) -> str:
    """The text a target gets: its constant, a part of the event, a filled-in template, or the event itself."""
    if "Input" in target:
        return str(target["Input"])
    if "InputPath" in target:
        return json.dumps(_at_path(event, target["InputPath"]))
    if "InputTransformer" in target:
        transformer = target["InputTransformer"]
        values = {name: _at_path(event, path) for name, path in transformer.get("InputPathsMap", {}).items()}
        return _filled_in(transformer["InputTemplate"], values | {"aws.events.event.json": event})
    return json.dumps(event)


def _filled_in(template: str, values: Mapping[str, Any]) -> str:
    """Replace each `<name>`: inside quotes by bare text, outside by JSON; unknown names vanish as AWS has it."""
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


def _at_path(event: Mapping[str, Any], path: str) -> Any:
    """The value at a path like `$.detail.instance-id`; None if there is none."""
    value: Any = event
    for key in path.split(".")[1:]:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _is_ours(target: Mapping[str, Any]) -> bool:
    return target["Arn"].split(":")[2] in {"sqs", "lambda"}


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
