"""OfferingState (`journeyman.dev/v1alpha1`): unavailable offerings, prices with their age, and learned sizes, per NodeClass.

One object per NodeClass, with the NodeClass's name. It is a cache: if it is deleted, the next runs fill it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from journeyman.core.api.conditions import Conditions
from journeyman.core.api.duration import backed_off, time_after
from journeyman.core.api.launch_failures import MAX_LAUNCH_FAILURES, LaunchFailure
from journeyman.core.api.model import Bool, Int, Metadata, Model, ResourceTexts, Time, crd, problem
from journeyman.core.api.objects import ObjectMeta, OfferingKey
from journeyman.core.api.requirement_rules import NodeClassRef

MAX_UNAVAILABLE: Final = 2000
MAX_SOURCE: Final = 253
MAX_MESSAGE: Final = 1024
MAX_PRICES: Final = 5000
MAX_LEARNED: Final = 500
PRICES_REFRESHED: Final = "PricesRefreshed"
"""The condition that is False while on-demand prices do not come from the cloud's pricing API."""
FAILURE_MEMORY: Final = timedelta(hours=6)
"""How long after `until` failures are still counted; a later failure counts as the first."""

_Name = Annotated[str, Field(max_length=253)]


class UnavailableOffering(Model):
    """An offering that a launch found unavailable."""

    instance_type: _Name = Field(min_length=1, description="Instance type; * means every instance type.")
    zone: _Name = Field(min_length=1, description="Zone of the offering.")
    capacity_type: _Name = Field(
        min_length=1, description="Capacity type of the offering: on-demand, spot or reserved."
    )
    reservation_id: _Name = Field(
        default="",
        alias="reservationID",
        description="Capacity reservation of the offering; empty means all of them, or none for other capacity types.",
        json_schema_extra=crd(default=""),  # the API server needs a value in each key of a list map
    )
    until: Time = Field(description="Time until which the offering is not used for launches.")
    reason: str = Field(default="", max_length=1024, description="Error code of the cloud.")
    failures: Int = Field(default=1, ge=1, description="Number of failures since the last successful launch.")
    node_class_only: Bool = Field(
        default=False, description="Whether the offering is unavailable only with this NodeClass's settings."
    )

    @property
    def key(self) -> OfferingKey:
        """The offering's name."""
        return OfferingKey(self.instance_type, self.zone, self.capacity_type, self.reservation_id)


class LearnedAllocatable(Model):
    """What nodes of an instance type and image offer to pods: the least that was seen of each resource."""

    instance_type: _Name = Field(min_length=1, description="Instance type of the nodes.")
    image_id: _Name = Field(
        default="",
        alias="imageID",
        description="Image of the nodes.",
        json_schema_extra=crd(default=""),  # the API server needs a value in each key of a list map
    )
    node_class_hash: _Name = Field(
        default="",
        description="Hash of the NodeClass with whose settings the nodes were launched; of others it says nothing.",
    )
    allocatable: ResourceTexts = Field(default={}, description="Least allocatable that was seen, by resource.")
    node: _Name = Field(default="", description="Last node that offered less of a resource than those before it.")
    last_seen: Time = Field(
        description="Time when a node last offered no more than this; it is kept for 60 days from then."
    )

    @property
    def key(self) -> tuple[str, str]:
        """Instance type and image."""
        return self.instance_type, self.image_id


_Price = Annotated[str, Field(max_length=32)]  # a CRD has no floating-point numbers


class PriceRefresh(Model):
    """The source, the age and the currency of prices."""

    on_demand_refreshed_at: Time | None = Field(
        default=None, description="Time of the last refresh of on-demand prices."
    )
    on_demand_tried_at: Time | None = Field(
        default=None, description="Time of the last attempt to refresh on-demand prices."
    )
    spot_refreshed_at: Time | None = Field(default=None, description="Time of the last refresh of Spot prices.")
    source: str = Field(
        default="", max_length=MAX_SOURCE, description="Source of on-demand prices: the bundled table or a pricing API."
    )
    message: str = Field(
        default="", max_length=MAX_MESSAGE, description="Error of the last refresh; empty if it succeeded."
    )
    currency: str = Field(default="", max_length=3, description="Currency of all prices, such as USD or CNY.")
    estimated: Bool = Field(default=False, description="Whether on-demand prices are those of another region.")
    on_demand: dict[str, _Price] = Field(
        default={},
        max_length=MAX_PRICES,
        description="On-demand price per hour by instance type, as the cloud's pricing API returned it.",
    )


class OfferingStateSpec(Model):
    """`spec` of an OfferingState."""

    node_class_ref: NodeClassRef | None = Field(default=None, description="NodeClass that the offerings belong to.")


def _check_unique_failures(failures: tuple[LaunchFailure, ...]) -> tuple[LaunchFailure, ...]:
    for key, count in Counter(failure.key for failure in failures).items():
        if count > 1:
            raise problem(f"{key} is listed {count} times; keep one")
    return failures


def _check_unique(offerings: tuple[UnavailableOffering, ...]) -> tuple[UnavailableOffering, ...]:
    for key, count in Counter(offering.key for offering in offerings).items():
        if count > 1:
            raise problem(f"{key} is listed {count} times; keep one")
    return offerings


def _check_unique_sizes(sizes: tuple[LearnedAllocatable, ...]) -> tuple[LearnedAllocatable, ...]:
    for (instance_type, image), count in Counter(size.key for size in sizes).items():
        if count > 1:
            raise problem(f"{instance_type} with image {image} is listed {count} times; keep one")
    return sizes


class OfferingStateStatus(Model):
    """`status` of an OfferingState."""

    unavailable: Annotated[tuple[UnavailableOffering, ...], AfterValidator(_check_unique)] = Field(
        default=(),
        max_length=MAX_UNAVAILABLE,
        description="Unavailable offerings. An entry is kept for six hours after it expires, to count further failures.",
        json_schema_extra=crd(
            x_kubernetes_list_type="map",
            x_kubernetes_list_map_keys=["instanceType", "zone", "capacityType", "reservationID"],
        ),
    )
    launch_failures: Annotated[tuple[LaunchFailure, ...], AfterValidator(_check_unique_failures)] = Field(
        default=(),
        max_length=MAX_LAUNCH_FAILURES,
        description="Objects whose fault failed launches are. An entry is kept for six hours after it expires.",
        json_schema_extra=crd(x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["scope", "name"]),
    )
    learned_allocatable: Annotated[tuple[LearnedAllocatable, ...], AfterValidator(_check_unique_sizes)] = Field(
        default=(),
        max_length=MAX_LEARNED,
        description="What nodes of an instance type and image offer to pods, by which further nodes are planned.",
        json_schema_extra=crd(x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["instanceType", "imageID"]),
    )
    prices: PriceRefresh = Field(default_factory=PriceRefresh, description="Source, age and currency of prices.")
    conditions: Conditions = Field(default=(), description="PricesRefreshed.")


class OfferingState(Model):
    """Unavailable offerings, and prices with their age, for one NodeClass."""

    api_version: Literal["journeyman.dev/v1alpha1"] = "journeyman.dev/v1alpha1"
    kind: Literal["OfferingState"] = "OfferingState"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    spec: OfferingStateSpec = Field(default_factory=OfferingStateSpec)
    status: OfferingStateStatus = Field(default_factory=OfferingStateStatus)


def with_failures(
    entries: Iterable[UnavailableOffering],
    offerings: Iterable[OfferingKey],
    *,
    at: datetime,
    first: timedelta,
    longest: timedelta,
    reason: str,
    now: datetime,
    node_class_only: bool = False,
) -> tuple[UnavailableOffering, ...]:
    """Return the unavailable offerings after further launch failures.

    A failure after `until` counts one more and doubles the time for which the offering is unavailable. A failure before
    `until` comes from a launch that was requested before the first failure was recorded: it is not counted again.
    Entries are dropped `FAILURE_MEMORY` after `until`.

    Args:
        entries: Entries so far.
        offerings: The offerings that failed.
        at: Time of the failure.
        first: How long an offering is unavailable after its first failure.
        longest: Upper bound of that time, however many failures there were.
        reason: Error code of the cloud.
        now: The time.
        node_class_only: Whether only launches with this NodeClass's settings fail; a failure of the offering itself stays.

    Returns:
        Entries sorted by instance type, zone, capacity type, reservation; at most `MAX_UNAVAILABLE`, those that expire last.
    """
    merged = {offering.key: offering for offering in entries if time_after(offering.until, FAILURE_MEMORY) > now}
    for key in offerings:
        before = merged.get(key)
        if node_class_only and before is not None and not before.node_class_only and before.until > at:
            continue
        failed = _failed(before, key, at=at, first=first, longest=longest, reason=reason)
        merged[key] = failed.model_copy(update={"node_class_only": node_class_only})
    longest_first = sorted(merged.values(), key=lambda o: (-o.until.timestamp(), o.key))[:MAX_UNAVAILABLE]
    return tuple(sorted(longest_first, key=lambda o: o.key))


def without_offering(
    entries: Iterable[UnavailableOffering], offering: OfferingKey, at: datetime
) -> tuple[UnavailableOffering, ...]:
    """Return the unavailable offerings after a successful launch of one, which resets its failures.

    Args:
        entries: Entries so far.
        offering: The offering of the launched instance; the entries for all instance types of that zone and capacity type, and
            for all reservations, are reset, too.
        at: Time of the launch. Entries that are unavailable at that time failed later, and are kept.
    """
    return tuple(o for o in entries if o.key not in offering.meant_by or o.until > at)


def _failed(
    before: UnavailableOffering | None,
    key: OfferingKey,
    *,
    at: datetime,
    first: timedelta,
    longest: timedelta,
    reason: str,
) -> UnavailableOffering:
    counted = (before.failures, before.until) if before is not None else None
    failures, until = backed_off(counted, at, first=first, longest=longest)
    return UnavailableOffering(
        instance_type=key.instance_type,
        zone=key.zone,
        capacity_type=key.capacity_type,
        reservation_id=key.reservation_id,
        until=until,
        reason=reason,
        failures=failures,
    )
