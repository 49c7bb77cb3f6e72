"""Build requests for CreateFleet and parse its responses.

Restates: karpenter-provider-aws pkg/providers/instance/types.go `CreateFleetInputBuilder`, instance.go `getOverrides`,
`updateUnavailableOfferingsCache`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from journeyman.cloud.aws import tags
from journeyman.cloud.aws.aws_errors import NO_ADDRESSES, NO_SPOT_ROLE, launch_rule
from journeyman.cloud.aws.capacity_reservations import CAPACITY_BLOCK, INTERRUPTIBLE
from journeyman.cloud.aws.launch_templates import LaunchTemplate
from journeyman.cloud.fault_rules import FaultRule
from journeyman.cloud.free_addresses import ChosenSubnet
from journeyman.core.api import labels
from journeyman.core.api.launch_faults import FaultScope
from journeyman.core.api.objects import OfferingKey
from journeyman.core.catalogue import Offering

_TAGGED: Final = ("fleet", "instance", "volume")
# by (spot, a NodeOverlay sets a price): EC2 knows only its own prices, so it follows ours as priorities
_STRATEGIES: Final = {
    (False, False): "lowest-price",
    (False, True): "prioritized",
    (True, False): "price-capacity-optimized",
    (True, True): "capacity-optimized-prioritized",
}

_SPREAD_LIMIT: Final = "limit of instances in this spread placement group"  # `IsSpreadPlacementGroupLimitError`
_TARGETS: Final = {CAPACITY_BLOCK: "capacity-block", INTERRUPTIBLE: "reserved-capacity"}  # by market type


class FleetError(Struct, frozen=True, kw_only=True):
    """An error that CreateFleet reports for one offering."""

    code: str
    message: str
    instance_type: str
    zone: str
    subnet: str

    @property
    def rule(self) -> FaultRule:
        """Whose fault the error is, and what to do."""
        return launch_rule(f"{self.code}: {self.message}")

    def __str__(self) -> str:
        return f"{self.code}: {self.message} ({self.instance_type} in {self.zone})"


class FleetResponse(Struct, frozen=True, kw_only=True):
    """The instance of an instant fleet, and the errors of the offerings that EC2 tried before."""

    instance_id: str
    instance_type: str
    zone: str
    subnet: str
    image_id: str
    errors: tuple[FleetError, ...]


def fleet_request(
    templates: Iterable[LaunchTemplate],
    subnets: Mapping[str, ChosenSubnet],
    *,
    capacity_type: str,
    token: str,
    instance_tags: Mapping[str, str],
    context: str = "",
    market: str = "",
) -> dict[str, Any]:
    """Return the parameters for one instance. Equal arguments give equal parameters, as the client token requires.

    Args:
        templates: The launch templates, whose instance types have offerings of this capacity type only.
        subnets: The subnet to use in each zone; zones missing here are not used.
        capacity_type: spot, on-demand or reserved.
        token: The client token; EC2 creates at most one fleet per token.
        instance_tags: Tags of the fleet, the instance and its volumes.
        context: The NodeClass's `spec.context`, if any.
        market: The market type of the launch templates, for a capacity block or an interruptible reservation.
    """
    spot = capacity_type == labels.SPOT
    by_template = [(template, _offered(template, subnets)) for template in templates]
    every = [offering for _, offered in by_template for _, offering in offered]
    ranks = {price: rank for rank, price in enumerate(sorted({offering.price for offering in every}))}
    strategy = _STRATEGIES[spot, any(offering.price_overlaid for offering in every)]
    return {
        "Type": "instant",
        "ClientToken": token,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": template.name, "Version": "$Latest"},
                "Overrides": [_override(template, name, offering, subnets, ranks) for name, offering in offered],
            }
            for template, offered in by_template
            if offered
        ],
        "TargetCapacitySpecification": {
            "DefaultTargetCapacityType": "spot" if spot else _TARGETS.get(market, "on-demand"),
            "TotalTargetCapacity": 1,
        },
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags.to_aws(instance_tags)} for kind in _TAGGED],
        **_options(strategy, market, spot=spot),
        **({"Context": context} if context else {}),
    }


def _options(strategy: str, market: str, *, spot: bool) -> dict[str, Any]:
    """Return the options of the target capacity type; a capacity block has none."""
    if market == CAPACITY_BLOCK:
        return {}
    if market == INTERRUPTIBLE:
        return {"ReservedCapacityOptions": {"ReservationTypes": [INTERRUPTIBLE]}}
    return {"SpotOptions" if spot else "OnDemandOptions": {"AllocationStrategy": strategy}}


def _offered(template: LaunchTemplate, subnets: Mapping[str, ChosenSubnet]) -> list[tuple[str, Offering]]:
    """Return each type in each zone that has a subnet, cheapest first."""
    offerings = (
        (candidate.name, offering)
        for candidate in template.instance_types
        for offering in candidate.offerings
        if offering.zone in subnets
    )
    return sorted(offerings, key=lambda entry: (entry[1].price, entry[0], entry[1].zone))


def _override(
    template: LaunchTemplate,
    instance_type: str,
    offering: Offering,
    subnets: Mapping[str, ChosenSubnet],
    ranks: Mapping[float, int],
) -> dict[str, Any]:
    """Return the override for an offering. The subnet implies the zone, but errors name the zone only if it is given."""
    return {
        "InstanceType": instance_type,
        "SubnetId": subnets[offering.zone].id,
        "AvailabilityZone": offering.zone,
        "ImageId": template.image_id,
        "Priority": ranks[offering.price],  # EC2 takes whole numbers, the lowest first
    }


def parse_fleet_response(reply: Mapping[str, Any]) -> FleetResponse | tuple[FleetError, ...]:
    """Return the launched instance, or the errors if EC2 launched none."""
    errors = tuple(_error(entry) for entry in reply.get("Errors") or ())
    launched = next((entry for entry in reply.get("Instances") or () if entry.get("InstanceIds")), None)
    if launched is None:
        return errors
    override = launched.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    return FleetResponse(
        instance_id=launched["InstanceIds"][0],
        instance_type=launched.get("InstanceType") or override.get("InstanceType", ""),
        zone=override.get("AvailabilityZone", ""),
        subnet=override.get("SubnetId", ""),
        image_id=override.get("ImageId", ""),
        errors=errors,
    )


def _error(entry: Mapping[str, Any]) -> FleetError:
    override = entry.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    return FleetError(
        code=entry.get("ErrorCode", ""),
        message=entry.get("ErrorMessage", ""),
        instance_type=override.get("InstanceType", ""),
        zone=override.get("AvailabilityZone", ""),
        subnet=override.get("SubnetId", ""),
    )


def unavailable_offerings(
    errors: Iterable[FleetError],
    capacity_type: str,
    zones: Iterable[str],
    exhausted_zones: Iterable[str],
    reservation: str = "",
) -> tuple[OfferingKey, ...]:
    """Return the offerings to mark unavailable, sorted.

    A missing Spot service-linked role makes all spot offerings unavailable; a zone without a free IP address, all its
    offerings; a spread placement group that is full in a zone, those of every type there. "*" stands for every instance type. An error of a reserved launch is about its reservation only.
    """
    unavailable: set[OfferingKey] = set()
    exhausted = set(exhausted_zones)
    for error in errors:
        if error.code == NO_SPOT_ROLE:
            unavailable |= {OfferingKey("*", zone, labels.SPOT) for zone in zones}
        elif error.code == NO_ADDRESSES and error.zone in exhausted:
            unavailable |= {
                OfferingKey("*", error.zone, kind) for kind in {labels.ON_DEMAND, labels.SPOT, capacity_type}
            }
        elif error.rule.scope is not FaultScope.OFFERING or error.rule.node_class_only:
            continue  # subnets and NodeClasses are skipped themselves
        elif _SPREAD_LIMIT in error.message:
            unavailable.add(OfferingKey("*", error.zone, capacity_type))
        elif error.instance_type:
            unavailable.add(OfferingKey(error.instance_type, error.zone, capacity_type, reservation))
    return tuple(sorted(unavailable))


def unavailable_for_class(
    errors: Iterable[FleetError], capacity_type: str, reservation: str = ""
) -> tuple[OfferingKey, ...]:
    """Return the offerings that only the NodeClass's settings make unavailable, sorted."""
    return tuple(
        sorted(
            {
                OfferingKey(error.instance_type, error.zone, capacity_type, reservation)
                for error in errors
                if error.rule.node_class_only and error.instance_type
            }
        )
    )


def exhausted_subnets(errors: Iterable[FleetError]) -> tuple[str, ...]:
    """Return the ids of the subnets that have no free IP address according to EC2, sorted."""
    return tuple(sorted({error.subnet for error in errors if error.code == NO_ADDRESSES and error.subnet}))
