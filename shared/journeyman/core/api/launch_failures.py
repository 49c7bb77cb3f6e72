"""`status.launchFailures` of an OfferingState: the objects whose fault failed launches are, and until when they are skipped."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from pydantic import Field

from journeyman.core.api.duration import backed_off, time_after
from journeyman.core.api.launch_faults import MAX_MESSAGE, MAX_REMEDY, FaultKey, FaultScope, LaunchFault, shortened
from journeyman.core.api.model import Int, Model, Time, crd

MAX_LAUNCH_FAILURES: Final = 200
LAUNCH_FAILURE_MEMORY: Final = timedelta(hours=6)
"""How long after `until` failures are still counted; a later failure counts as the first."""

_Name = Annotated[str, Field(max_length=253)]


class LaunchFailure(Model):
    """An object whose fault failed launches are."""

    scope: Literal["NodeClass", "NodePool", "Subnet", "Account"] = Field(description="Kind of the object at fault.")
    name: _Name = Field(
        default="",
        description="Name of the object, id of the subnet, or empty for the account.",
        json_schema_extra=crd(default=""),  # the API server needs a value in each key of a list map
    )
    reason: _Name = Field(default="", description="Reason, as in the Launched condition of the failed launch.")
    message: str = Field(default="", max_length=MAX_MESSAGE, description="What happened, in the cloud's own words.")
    remedy: str = Field(default="", max_length=MAX_REMEDY, description="Command to run, or field to change.")
    failures: Int = Field(default=1, ge=1, description="Number of failures since the last success.")
    until: Time = Field(description="Time until which nothing is launched that has this fault.")
    generations: _Name = Field(
        default="",
        description="Generations of NodeClass and NodePool at the failure; a change of them ends the back-off.",
    )

    @property
    def key(self) -> FaultKey:
        """The object at fault."""
        return FaultKey(FaultScope(self.scope), self.name)

    @property
    def fault(self) -> LaunchFault:
        """The fault of the last failed launch."""
        return LaunchFault(
            scope=FaultScope(self.scope),
            name=self.name,
            reason=self.reason,
            message=self.message,
            remedy=self.remedy,
        )


def with_launch_failure(
    entries: Iterable[LaunchFailure],
    fault: LaunchFault,
    *,
    at: datetime,
    first: timedelta,
    longest: timedelta,
    generations: str,
    now: datetime,
) -> tuple[LaunchFailure, ...]:
    """Return the launch failures after a further one.

    A failure after `until` counts one more and doubles the back-off. A failure before `until` comes from a launch that was
    requested before the first failure was recorded: it is not counted again. With other generations it is the first failure.

    Args:
        entries: Entries so far.
        fault: The fault of the failed launch.
        at: Time of the failure.
        first: The back-off after the first failure.
        longest: The longest back-off.
        generations: The generations of the objects at the failure; empty if they do not matter.
        now: The time.

    Returns:
        Entries sorted by scope and name; at most `MAX_LAUNCH_FAILURES`, those that expire last.
    """
    merged = {e.key: e for e in entries if time_after(e.until, LAUNCH_FAILURE_MEMORY) > now}
    before = merged.get(fault.key)
    if before is not None and before.generations != generations:
        before = None
    counted = (before.failures, before.until) if before is not None else None
    failures, until = backed_off(counted, at, first=first, longest=longest)
    merged[fault.key] = LaunchFailure(
        scope=fault.scope.value,
        name=fault.name,
        reason=fault.reason,
        message=shortened(fault.message, MAX_MESSAGE),
        remedy=shortened(fault.remedy, MAX_REMEDY),
        failures=failures,
        until=until,
        generations=generations,
    )
    longest_first = sorted(merged.values(), key=lambda e: (-e.until.timestamp(), e.key))[:MAX_LAUNCH_FAILURES]
    return tuple(sorted(longest_first, key=lambda e: e.key))


def without_launch_failures(
    entries: Iterable[LaunchFailure], keys: Collection[FaultKey], at: datetime
) -> tuple[LaunchFailure, ...]:
    """Return the launch failures after a success of these objects at `at`; those whose back-off lasts longer failed later, and stay."""
    return tuple(e for e in entries if e.key not in keys or e.until > at)
