"""OfferingState (`journeyman.dev/v1alpha1`): what is known of one NodeClass's offerings beyond the catalogue.

One per NodeClass and of its name: offerings that could not be had and until when they are avoided, and when prices were
last refreshed. Everything in it may be lost without harm; it then is learned again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from journeyman.core.api.model import Int, Metadata, Model, Time, crd, problem
from journeyman.core.api.objects import ObjectMeta
from journeyman.core.api.requirement_rules import NodeClassRef

MAX_UNAVAILABLE: Final = 2000
MAX_SOURCE: Final = 253
MAX_MESSAGE: Final = 1024
MEMORY: Final = timedelta(hours=6)
"""How long failures count after the time to avoid an offering is over: what fails again after that fails anew."""
MOST_DOUBLINGS: Final = 20  # of a wait that is bounded long before; a count read from the cluster may be any number

_Name = Annotated[str, Field(max_length=253)]


class UnavailableOffering(Model):
    """An offering that could not be had."""

    instance_type: _Name = Field(min_length=1, description="The instance type; * means all of them.")
    zone: _Name = Field(min_length=1, description="The zone.")
    capacity_type: _Name = Field(min_length=1, description="on-demand, spot or reserved.")
    until: Time = Field(description="It is avoided until then.")
    reason: str = Field(default="", max_length=1024, description="The cloud's word for why.")
    failures: Int = Field(default=1, ge=1, description="How often it failed in a row.")

    @property
    def key(self) -> tuple[str, str, str]:
        """(instance type, zone, capacity type)."""
        return (self.instance_type, self.zone, self.capacity_type)


class PriceRefresh(Model):
    """Where prices come from and how old they are."""

    on_demand_refreshed_at: Time | None = Field(default=None, description="Last refresh of on-demand prices.")
    spot_refreshed_at: Time | None = Field(default=None, description="Last refresh of Spot prices.")
    source: str = Field(
        default="", max_length=MAX_SOURCE, description="Where on-demand prices come from: a table, or an API."
    )
    message: str = Field(
        default="", max_length=MAX_MESSAGE, description="What went wrong on the last try, if anything."
    )


class OfferingStateSpec(Model):
    """`spec` of an OfferingState."""

    node_class_ref: NodeClassRef | None = Field(default=None, description="The NodeClass it is about.")


def _check_unique(offerings: tuple[UnavailableOffering, ...]) -> tuple[UnavailableOffering, ...]:
    for key, count in Counter(offering.key for offering in offerings).items():
        if count > 1:
            raise problem(f"{'/'.join(key)} is there {count} times; keep one")
    return offerings


class OfferingStateStatus(Model):
    """`status` of an OfferingState."""

    unavailable: Annotated[tuple[UnavailableOffering, ...], AfterValidator(_check_unique)] = Field(
        default=(),
        max_length=MAX_UNAVAILABLE,
        description="Offerings that could not be had; for hours after they may be tried again, their failures count.",
        json_schema_extra=crd(
            x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["instanceType", "zone", "capacityType"]
        ),
    )
    prices: PriceRefresh = Field(default_factory=PriceRefresh, description="How old prices are.")


class OfferingState(Model):
    """What is known of one NodeClass's offerings beyond the catalogue."""

    api_version: Literal["journeyman.dev/v1alpha1"] = "journeyman.dev/v1alpha1"
    kind: Literal["OfferingState"] = "OfferingState"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    spec: OfferingStateSpec = Field(default_factory=OfferingStateSpec)
    status: OfferingStateStatus = Field(default_factory=OfferingStateStatus)


def remember(
    known: Iterable[UnavailableOffering],
    offerings: Iterable[tuple[str, str, str]],
    *,
    at: datetime,
    first: timedelta,
    longest: timedelta,
    reason: str,
    now: datetime,
) -> tuple[UnavailableOffering, ...]:
    """The offerings to avoid, once these have failed too.

    An offering that was avoided, was tried once that was over, and failed again counts one failure more and is avoided
    for twice as long as before. What fails while it is avoided was asked for before that was known, or side by side
    with what failed first: one shortage, one failure. What has been over for `MEMORY` is forgotten.

    Args:
        known: What is remembered.
        offerings: What failed: (instance type, zone, capacity type).
        at: When it failed.
        first: How long an offering is avoided that failed once.
        longest: The longest that one is avoided for, however often it failed.
        reason: The cloud's word for why.
        now: The time.

    Returns:
        Sorted by instance type, zone, capacity type; at most `MAX_UNAVAILABLE`, those that last longest.
    """
    merged = {offering.key: offering for offering in known if offering.until + MEMORY > now}
    for key in offerings:
        merged[key] = _failed(merged.get(key), key, at=at, first=first, longest=longest, reason=reason)
    lasting = sorted(merged.values(), key=lambda o: (-o.until.timestamp(), o.key))[:MAX_UNAVAILABLE]
    return tuple(sorted(lasting, key=lambda o: o.key))


def forget(
    known: Iterable[UnavailableOffering], offering: tuple[str, str, str], at: datetime
) -> tuple[UnavailableOffering, ...]:
    """What is still remembered once an offering could be had: its next failure is a first one again.

    Args:
        known: What is remembered.
        offering: (instance type, zone, capacity type) of what could be had; what was said of all types there is over, too.
        at: When it could be had. What is avoided at that time failed meanwhile, and is kept.
    """
    _, zone, capacity_type = offering
    had = {offering, ("*", zone, capacity_type)}
    return tuple(o for o in known if o.key not in had or o.until > at)


def _failed(
    before: UnavailableOffering | None,
    key: tuple[str, str, str],
    *,
    at: datetime,
    first: timedelta,
    longest: timedelta,
    reason: str,
) -> UnavailableOffering:
    failures, until = 1, at + min(first, longest)
    if before is not None and at < before.until:
        failures, until = before.failures, max(until, before.until)
    elif before is not None:
        failures = before.failures + 1
        until = at + min(first * 2 ** min(before.failures, MOST_DOUBLINGS), longest)
    instance_type, zone, capacity_type = key
    return UnavailableOffering(
        instance_type=instance_type,
        zone=zone,
        capacity_type=capacity_type,
        until=until,
        reason=reason,
        failures=failures,
    )
