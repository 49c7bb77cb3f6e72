"""The states of simulated EC2 instances, how long each lasts, and DescribeInstanceStatus' checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from journeyman_simulator.cloud_rules.service_time import ServiceTime


class InstanceTiming(Struct, frozen=True, kw_only=True):
    """How long an instance stays in each state, and how late DescribeInstances learns of a new one; seconds."""

    pending_seconds: float = 8
    shutting_down_seconds: float = 30
    terminated_visible_seconds: float = 3600  # "remains visible for about an hour", EC2 user guide
    interruption_notice_seconds: float = 120  # the two-minute warning
    describe_lag_seconds: float = 0


INSTANCE_CHECK: Final = "InstanceStatus"
SYSTEM_CHECK: Final = "SystemStatus"

JSON = Mapping[str, Any]
_STATUS_FILTERS: Final[Mapping[str, Callable[[JSON], Sequence[str]]]] = {
    "instance-status.status": lambda entry: [entry[INSTANCE_CHECK]["Status"]],
    "system-status.status": lambda entry: [entry[SYSTEM_CHECK]["Status"]],
    "event.code": lambda entry: [event["Code"] for event in entry["Events"]],
}


class InstanceStatusChecks:
    """Which checks fail since when; all others pass."""

    def __init__(self, time: ServiceTime) -> None:
        self._time = time
        self._failing: dict[tuple[str, str], datetime] = {}
        self._planned: dict[str, list[dict[str, Any]]] = {}

    def fail(self, instance_id: str, check: str = INSTANCE_CHECK) -> None:
        """Let an instance fail a check (`INSTANCE_CHECK` or `SYSTEM_CHECK`) from now on."""
        self._failing.setdefault((instance_id, check), self._time.now())

    def recover(self, instance_id: str) -> None:
        """Let it pass all its checks again."""
        self._failing = {key: since for key, since in self._failing.items() if key[0] != instance_id}

    def plan(self, instance_id: str, code: str, at: datetime) -> None:
        """Plan an event for the instance's host, as "instance-retirement"."""
        event = {"Code": code, "Description": "The instance is running on degraded hardware", "NotBefore": at}
        self._planned.setdefault(instance_id, []).append(event)

    def told(self, instances: Iterable[tuple[str, str]], filters: Iterable[JSON]) -> list[dict[str, Any]]:
        """The statuses of these instances (id and zone) that match every filter.

        Raises:
            KeyError: A filter is not known here.
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
            "InstanceState": {"Code": 16, "Name": "running"},
            INSTANCE_CHECK: self._check(instance_id, INSTANCE_CHECK),
            SYSTEM_CHECK: self._check(instance_id, SYSTEM_CHECK),
            "Events": list(self._planned.get(instance_id, [])),
        }

    def _check(self, instance_id: str, check: str) -> dict[str, Any]:
        since = self._failing.get((instance_id, check))
        if since is None:
            return {"Status": "ok", "Details": [{"Name": "reachability", "Status": "passed"}]}
        return {
            "Status": "impaired",
            "Details": [{"Name": "reachability", "Status": "failed", "ImpairedSince": since}],
        }
