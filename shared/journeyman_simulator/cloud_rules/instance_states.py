"""Rules of the states of simulated EC2 instances: durations, transitions, and the events of each transition.

Restates: EC2 user guide, "Amazon EC2 instance state changes", "Spot Instance interruption notices", "EC2 instance
rebalance recommendations".
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct, field

from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.service_errors import incorrect_instance_state, spot_instance_cannot_stop
from journeyman_simulator.cloud_rules.service_time import ServiceTime

INSTANCE_CHECK: Final = "InstanceStatus"
SYSTEM_CHECK: Final = "SystemStatus"
STATE_CODES: Final = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
BY_USER: Final = "Client.UserInitiatedShutdown"
BY_SPOT: Final = "Server.SpotInstanceTermination"
_TERMINATING: Final = frozenset({"shutting-down", "terminated"})

JSON = Mapping[str, Any]
I = TypeVar("I")  # noqa: E741 - an account's record of an instance


class InstanceTiming(Struct, frozen=True, kw_only=True):
    """The duration of each instance state, and the delay until DescribeInstances shows a new instance, in seconds."""

    pending_seconds: float = 8
    shutting_down_seconds: float = 30
    terminated_visible_seconds: float = 3600  # "remains visible for about an hour", EC2 user guide
    interruption_notice_seconds: float = 120  # the two-minute warning
    describe_lag_seconds: float = 0


class InstanceFacts(Struct, frozen=True, kw_only=True):
    """The properties of an instance that the rules read."""

    id: str
    zone: str
    state: str
    is_spot: bool


class EarlyEnd(Struct, frozen=True, kw_only=True):
    """How the cloud ends an instance soon after its launch: why, in its own words, and so many seconds after the launch."""

    reason: str
    after_seconds: float


class EventPublisher(Protocol):
    """A bus that accepts the events of AWS services."""

    def publish(self, source: str, detail_type: str, detail: JSON, resources: Sequence[str]) -> None:
        """Put an event on the default bus, with the current time."""
        ...


class StateChange(Struct, frozen=True):
    """A state, with its start and its reason."""

    at: datetime
    state: str
    reason: str = ""


class StateHistory(Struct, kw_only=True, eq=False):
    """A record of an instance with every change of its state, so that a read can return the state of some seconds ago."""

    changes: list[StateChange] = field(default_factory=list)

    @property
    def state(self) -> str:
        """Return the current state; "" before the first."""
        return self.changes[-1].state if self.changes else ""

    def since(self, state: str) -> datetime | None:
        """Return when the current state began, if it is this one."""
        return self.changes[-1].at if self.state == state else None

    def state_at(self, moment: datetime) -> str:
        """Return the state at a moment; "" before the first."""
        return next((change.state for change in reversed(self.changes) if change.at <= moment), "")


class InstanceObservation(Struct, frozen=True):
    """An event for observers of an account: a launch, a request to delete, or a change of state."""

    at: datetime
    what: str  # "launched", "deletion-requested", or the state
    instance: Any  # the account's record


class TimedTransitions:
    """Makes an account's transitions, each at its own time, in the order in which they were scheduled."""

    def __init__(self, time: ServiceTime) -> None:
        self._time = time
        self._transitions: list[tuple[datetime, int, Callable[[], object]]] = []
        self._order = count()

    def settle(self) -> bool:
        """Make the transitions that are due, each at its own time; return whether one was due."""
        now = self._time.now()
        changed = False
        while self._transitions and self._transitions[0][0] <= now:
            moment, _, transition = heapq.heappop(self._transitions)
            with self._time.at(moment):
                transition()
            changed = True
        return changed

    def due(self) -> datetime | None:
        """Return when the next instance changes its state."""
        return self._transitions[0][0] if self._transitions else None

    def _schedule(self, seconds: float, transition: Callable[[], object]) -> None:
        moment = self._time.now() + timedelta(seconds=seconds)
        heapq.heappush(self._transitions, (moment, next(self._order), transition))


class InstanceLifecycle(TimedTransitions, ABC, Generic[I]):
    """Changes the states of an account's instances as time passes, and publishes each transition.

    This class has the rules; the account's subclass reads and writes its records of instances.
    """

    def __init__(
        self, time: ServiceTime, bus: EventPublisher, timing: InstanceTiming, *, region: str, account: str
    ) -> None:
        super().__init__(time)
        self._bus = bus
        self._timing = timing
        self._region = region
        self._account = account
        self.checks = InstanceStatusChecks(time)
        self._early_ends: list[EarlyEnd] = []

    @abstractmethod
    def facts(self, instance: I) -> InstanceFacts:
        """Return the current properties of an instance."""

    @abstractmethod
    def find(self, instance_id: str) -> I | None:
        """Return the instance with that id; None if it does not exist."""

    @abstractmethod
    def record_state(self, instance: I, state: str, reason: str) -> None:
        """Write a new state and its StateReason code (empty if AWS sends none)."""

    @abstractmethod
    def release(self, instance: I) -> None:
        """Release the addresses and volumes of an instance that has shut down."""

    @abstractmethod
    def forget(self, instance: I) -> None:
        """Remove a terminated instance that EC2 no longer shows."""

    def start_launch(self, instance: I) -> None:
        """Make a launched or started instance pending, and later running."""
        self._enter(instance, "pending")
        self._schedule(self._timing.pending_seconds, lambda: self._advance(instance, "pending", "running"))
        if self._early_ends:
            end = self._early_ends.pop(0)
            self._schedule(end.after_seconds, lambda: self._end_early(instance, end.reason))

    def end_next_early(self, number: int = 1, *, reason: str, after_seconds: float = 5) -> None:
        """End the instances of the next `number` launches, with a StateReason such as Client.InternalError."""
        self._early_ends += [EarlyEnd(reason=reason, after_seconds=after_seconds)] * number

    def launch_normally(self) -> None:
        """Let the instances of all further launches live."""
        self._early_ends.clear()

    def start_stopped(self, instance: I) -> None:
        """Start a stopped instance (StartInstances). Raises ServiceError if it is not stopped."""
        facts = self.facts(instance)
        if facts.state != "stopped":
            raise incorrect_instance_state(facts.id, "started")
        self.start_launch(instance)

    def require_stoppable(self, instance: I) -> None:
        """Raise ServiceError if StopInstances rejects this instance."""
        facts = self.facts(instance)
        if facts.is_spot:
            raise spot_instance_cannot_stop(facts.id)
        if facts.state in _TERMINATING:
            raise incorrect_instance_state(facts.id, "stopped")

    def begin_stop(self, instance: I) -> None:
        """Stop an instance that is not stopping or stopped (StopInstances). Raises ServiceError if it cannot be stopped."""
        self.require_stoppable(instance)
        if self.facts(instance).state in {"stopping", "stopped"}:
            return
        self._enter(instance, "stopping", BY_USER)
        self._schedule(self._timing.shutting_down_seconds, lambda: self._advance(instance, "stopping", "stopped"))

    def begin_termination(self, instance: I, reason: str = BY_USER) -> None:
        """Shut down an instance that is not terminating, with a StateReason code."""
        if self.facts(instance).state in _TERMINATING:
            return
        self._enter(instance, "shutting-down", reason)
        self._schedule(self._timing.shutting_down_seconds, lambda: self._terminate(instance, reason))

    def interrupt(self, instance_id: str) -> None:
        """Reclaim a Spot instance: send a rebalance recommendation and an interruption warning, and shut it down later.

        Raises:
            ConfigurationError: No Spot instance with that id is pending or running.
        """
        instance = self._live_spot_instance(instance_id)
        self.recommend_rebalance(instance_id)
        detail = {"instance-id": instance_id, "instance-action": "terminate"}
        self._publish_spot_event(instance, "EC2 Spot Instance Interruption Warning", detail)
        self._schedule(self._timing.interruption_notice_seconds, lambda: self.begin_termination(instance, BY_SPOT))

    def recommend_rebalance(self, instance_id: str) -> None:
        """Publish a rebalance recommendation for a Spot instance. Raises ConfigurationError as `interrupt` does."""
        instance = self._live_spot_instance(instance_id)
        self._publish_spot_event(instance, "EC2 Instance Rebalance Recommendation", {"instance-id": instance_id})

    def is_described(self, launched_at: datetime) -> bool:
        """Whether DescribeInstances already shows an instance with that launch time."""
        return launched_at + timedelta(seconds=self._timing.describe_lag_seconds) <= self._time.now()

    def _terminate(self, instance: I, reason: str) -> None:
        self.release(instance)
        self._enter(instance, "terminated", reason)
        self._schedule(self._timing.terminated_visible_seconds, lambda: self.forget(instance))

    def _end_early(self, instance: I, reason: str) -> None:
        """Terminate an instance at once while it is pending, as EC2 does; else shut it down."""
        if self.facts(instance).state == "pending":
            self._terminate(instance, reason)
        else:
            self.begin_termination(instance, reason)

    def _advance(self, instance: I, before: str, after: str) -> None:
        if self.facts(instance).state == before:
            self._enter(instance, after)

    def _enter(self, instance: I, state: str, reason: str = "") -> None:
        self.record_state(instance, state, reason)
        instance_id = self.facts(instance).id
        self._bus.publish(
            "aws.ec2",
            "EC2 Instance State-change Notification",
            {"instance-id": instance_id, "state": state},
            [f"arn:aws:ec2:{self._region}:{self._account}:instance/{instance_id}"],
        )

    def _publish_spot_event(self, instance: I, detail_type: str, detail: JSON) -> None:
        # AWS sends these ARNs with the zone in place of the region, and without an account
        facts = self.facts(instance)
        self._bus.publish("aws.ec2", detail_type, detail, [f"arn:aws:ec2:{facts.zone}:instance/{facts.id}"])

    def _live_spot_instance(self, instance_id: str) -> I:
        instance = self.find(instance_id)
        if instance is not None:
            facts = self.facts(instance)
            if facts.is_spot and facts.state in {"pending", "running"}:
                return instance
        raise ConfigurationError("only a pending or running Spot instance can be interrupted", instance=instance_id)


_STATUS_FILTERS: Final[Mapping[str, Callable[[JSON], Sequence[str]]]] = {
    "instance-status.status": lambda entry: [entry[INSTANCE_CHECK]["Status"]],
    "system-status.status": lambda entry: [entry[SYSTEM_CHECK]["Status"]],
    "event.code": lambda entry: [event["Code"] for event in entry["Events"]],
}


class InstanceStatusChecks:
    """The status checks of instances and the scheduled events of their hosts, as in DescribeInstanceStatus."""

    def __init__(self, time: ServiceTime) -> None:
        self._time = time
        self._failing: dict[tuple[str, str], datetime] = {}
        self._scheduled_events: dict[str, list[dict[str, Any]]] = {}

    def fail(self, instance_id: str, check: str = INSTANCE_CHECK) -> None:
        """Make an instance fail a check (`INSTANCE_CHECK` or `SYSTEM_CHECK`) from now on."""
        self._failing.setdefault((instance_id, check), self._time.now())

    def recover(self, instance_id: str) -> None:
        """Make an instance pass all its checks again."""
        self._failing = {key: since for key, since in self._failing.items() if key[0] != instance_id}

    def plan(self, instance_id: str, code: str, at: datetime) -> None:
        """Schedule an event of the instance's host, such as "instance-retirement"."""
        event = {"Code": code, "Description": "The instance is running on degraded hardware", "NotBefore": at}
        self._scheduled_events.setdefault(instance_id, []).append(event)

    def statuses(self, instances: Iterable[tuple[str, str]], filters: Iterable[JSON]) -> list[dict[str, Any]]:
        """Return the statuses of the instances, given as (id, zone), that match every filter.

        Raises:
            KeyError: The simulation does not support a filter.
        """
        found = [self._entry(instance_id, zone) for instance_id, zone in instances]
        for wanted in filters:
            read, values = _STATUS_FILTERS[wanted["Name"]], set(wanted["Values"])
            found = [entry for entry in found if values.intersection(read(entry))]
        return found

    def _entry(self, instance_id: str, zone: str) -> dict[str, Any]:
        return {
            "InstanceId": instance_id,
            "AvailabilityZone": zone,
            "InstanceState": {"Code": STATE_CODES["running"], "Name": "running"},
            INSTANCE_CHECK: self._check(instance_id, INSTANCE_CHECK),
            SYSTEM_CHECK: self._check(instance_id, SYSTEM_CHECK),
            "Events": list(self._scheduled_events.get(instance_id, [])),
        }

    def _check(self, instance_id: str, check: str) -> dict[str, Any]:
        since = self._failing.get((instance_id, check))
        if since is None:
            return {"Status": "ok", "Details": [{"Name": "reachability", "Status": "passed"}]}
        return {
            "Status": "impaired",
            "Details": [{"Name": "reachability", "Status": "failed", "ImpairedSince": since}],
        }
