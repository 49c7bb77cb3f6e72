"""EventBridge on moto as AWS runs it: real event shapes, input transformation, SQS and Lambda targets, checked schedules."""

from __future__ import annotations

import copy
import json
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.events.exceptions import ValidationException as RuleRefused
from moto.events.models import Rule, events_backends
from moto.events.responses import EventsHandler
from moto.scheduler.exceptions import ValidationException as ScheduleRefused
from moto.scheduler.responses import EventBridgeSchedulerResponse
from moto.sqs.models import sqs_backends

from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.event_delivery import iso, shaped
from journeyman_simulator.cloud_rules.schedule_expressions import parse
from journeyman_simulator.cloud_rules.service_time import ServiceTime, from_milliseconds
from journeyman_simulator.moto_account.moto_extensions import MotoExtension


class Delivery(NamedTuple):
    """An event on its way to a function."""

    function_arn: str
    event: Any


class MotoEventBus:
    """Publishes what AWS services publish, and delivers to the targets of matching rules.

    `deliveries` holds events for Lambda targets: whoever runs the functions takes them from there, since nothing may
    call back into AWS while AWS is answering.
    """

    def __init__(self, time: ServiceTime, region: str, on_event: Callable[[dict[str, Any]], object] | None) -> None:
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
            "time": iso(self._time.now()),
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

    def extensions(self) -> tuple[MotoExtension, ...]:
        """Replaces what happens to an event once PutEvents has accepted it."""

        def replace(original: Callable[..., None]) -> Callable[..., None]:
            def send_to_targets(rule: Rule, original_event: dict[str, Any], transform_input: bool = True) -> None:
                event = {key: value for key, value in original_event.items() if key != "ingestion-time"}
                event["time"] = iso(from_milliseconds(float(event["time"]) * 1000))
                elsewhere = copy.copy(rule)
                elsewhere.targets = [target for target in rule.targets if not _is_ours(target)]
                self._route(rule, event)
                if rule.state == "ENABLED":
                    original(elsewhere, original_event, transform_input)

            return send_to_targets

        return (
            MotoExtension(
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


def _is_ours(target: Mapping[str, Any]) -> bool:
    return target["Arn"].split(":")[2] in {"sqs", "lambda"}


_ANY_TIME = datetime(2000, 1, 1, tzinfo=timezone.utc)


def schedule_extensions() -> tuple[MotoExtension, ...]:
    """Checks before moto stores a definition."""
    reason = "bad schedule expressions are refused"
    return (
        MotoExtension(owner=EventsHandler, name="put_rule", replace=_checking_rule, reason=reason),
        MotoExtension(
            owner=EventBridgeSchedulerResponse, name="create_schedule", replace=_checking_schedule, reason=reason
        ),
        MotoExtension(
            owner=EventBridgeSchedulerResponse, name="update_schedule", replace=_checking_schedule, reason=reason
        ),
    )


def _checking_rule(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def put_rule(response: Any) -> Any:
        if expression := response._get_param("ScheduleExpression"):  # noqa: SLF001 - moto's way to read a parameter
            try:
                parse(expression, first=_ANY_TIME, strict_units=True)
            except ConfigurationError as error:
                raise RuleRefused("Parameter ScheduleExpression is not valid.") from error
        return original(response)

    return put_rule


def _checking_schedule(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check(response: Any) -> Any:
        read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
        expression, zone = read("ScheduleExpression"), read("ScheduleExpressionTimezone") or "UTC"
        try:
            parse(expression, first=_ANY_TIME, zone=zone)
        except ConfigurationError as error:
            raise ScheduleRefused(f"Invalid Schedule Expression {expression}.") from error
        return original(response)

    return check
