"""Implements CreateAutoProvisioningGroup with AutoProvisioningGroupType=instant, which launches once and leaves no group.

The answer has one launch result for each attempt: failed configurations before the one that launched, and with HTTP status
200 even if none did.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman_simulator.alibaba_account.ecs_instance_states import EcsInstance
from journeyman_simulator.alibaba_account.ecs_launches import EcsLaunches, LaunchPool, LaunchSettings
from journeyman_simulator.alibaba_account.openapi_errors import invalid_parameter, missing_parameter
from journeyman_simulator.alibaba_account.openapi_requests import ActionHandlers, ActionRequest
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError, ServiceError

JSON = Mapping[str, Any]
_RESULT_CODES: Final = {"OperationDenied.NoStock": "NoInstanceStock"}
"""The error codes of launch results that differ from those of RunInstances."""


class GroupConfiguration(Struct, frozen=True, kw_only=True):
    """One entry of LaunchTemplateConfig: a pool, its price at the moment, and how a strategy ranks it."""

    pool: LaunchPool
    zone: str
    image_id: str
    price: float
    priority: float
    weight: float
    index: int


class AutoProvisioning:
    """Handles CreateAutoProvisioningGroup."""

    def __init__(self, launches: EcsLaunches) -> None:
        self._launches = launches
        self._serial = count(1)

    def handlers(self) -> ActionHandlers:
        """Return the handler of CreateAutoProvisioningGroup."""
        name = "CreateAutoProvisioningGroup"
        return {name: lambda request: self._launches.once(name, request, lambda: self._create(request))}

    def _create(self, request: ActionRequest) -> dict[str, Any]:
        kind = request.get("AutoProvisioningGroupType", "maintain")
        if kind != "instant":
            raise NotSimulatedError(
                f"the simulation does not support AutoProvisioningGroupType={kind}, whose group launches on its own; "
                "send instant"
            )
        if not request.get("LaunchTemplateConfig"):
            raise missing_parameter("LaunchTemplateConfig")
        launch = _GroupLaunch(self._launches, request)
        launch.run()
        return {
            "AutoProvisioningGroupId": f"apg-bp1{next(self._serial):017d}",
            "LaunchResults": {"LaunchResult": launch.results},
        }


class _GroupLaunch:
    """One launch of a group: its two targets, its settings, and the results so far."""

    def __init__(self, launches: EcsLaunches, request: ActionRequest) -> None:
        self._launches = launches
        self._request = request
        self.results: list[dict[str, Any]] = []
        self._targets = _targets(request)
        configuration: JSON = request.get("LaunchConfiguration") or {}
        configs = request["LaunchTemplateConfig"]
        images = tuple(launches.require_image(config["ImageId"]) for config in configs if config.get("ImageId"))
        if not configuration:
            raise missing_parameter("LaunchConfiguration")
        every_config_has_one = len(images) == len(configs)
        given = [disk["DiskCategory"] for disk in request.get("SystemDiskConfig") or ()]
        if not given and "SystemDiskCategory" in configuration:
            given = [configuration["SystemDiskCategory"]]
        behavior = request.get("SpotInstanceInterruptionBehavior")
        if behavior and "SpotInterruptionBehavior" not in configuration:
            configuration = {**configuration, "SpotInterruptionBehavior": behavior.capitalize()}
        self._settings = launches.settings_of(
            configuration,
            image_ids=images if every_config_has_one else (),
            disk_categories=tuple(given),
            disk_size=configuration.get("SystemDiskSize", 40),
        )

    def run(self) -> None:
        """Launch both targets.

        Raises:
            ServiceError: A parameter is not valid, or the stock has less than MinTargetCapacity; nothing is launched.
        """
        least = int(self._request.get("MinTargetCapacity", "0"))
        if least > sum(self._targets.values()):
            raise invalid_parameter("MinTargetCapacity", "must not exceed TotalTargetCapacity")
        if least and (reachable := self._reachable()) < least:
            message = f"The stock has {reachable:g} of the MinTargetCapacity of {least}."
            raise ServiceError("OperationDenied.NoStock", message)
        for capacity_type, amount in self._targets.items():
            if amount > 0:
                self._launch(capacity_type, amount)

    def _reachable(self) -> float:
        """Return the units of capacity that the stock has for the targets."""
        found = 0.0
        for capacity_type, amount in self._targets.items():
            stock = sum(
                config.weight * self._launches.launchable(self._settings_for(config), config.pool)
                for config in self._configurations(capacity_type)
            )
            found += min(float(amount), stock)
        return found

    def _launch(self, capacity_type: str, amount: float) -> None:
        name = "SpotAllocationStrategy" if capacity_type == "spot" else "PayAsYouGoAllocationStrategy"
        strategy = self._request.get(name, "lowest-price")
        remaining = deque(
            sorted(
                self._configurations(capacity_type),
                key=lambda c: (c.priority if strategy == "prioritized" else 0, c.price / c.weight, c.index),
            )
        )
        while amount > 0 and remaining:
            config = remaining.popleft()
            number = 1 if strategy == "diversified" else math.ceil(amount / config.weight)
            launched = self._attempt(config, number)
            amount -= launched * config.weight
            if launched and strategy == "diversified":
                remaining.append(config)

    def _attempt(self, config: GroupConfiguration, number: int) -> int:
        """Launch up to `number` instances of a configuration, record the result, and return how many were launched."""
        try:
            launched = self._launches.launch(self._settings_for(config), config.pool, number, 1)
        except ServiceError as error:
            if error.code == "Account.Arrearage":
                raise
            self._record(config, [], _RESULT_CODES.get(error.code, error.code), error.message)
            return 0
        self._record(config, launched, "", "")
        return len(launched)

    def _record(self, config: GroupConfiguration, launched: list[EcsInstance], code: str, message: str) -> None:
        result: dict[str, Any] = {
            "InstanceType": config.pool.instance_type,
            "ZoneId": config.zone,
            "SpotStrategy": config.pool.spot_strategy,
            "Amount": len(launched),
            "InstanceIds": {"InstanceId": [instance.id for instance in launched]},
        }
        if code:
            result |= {"ErrorCode": code, "ErrorMsg": message}
        self.results.append(result)

    def _settings_for(self, config: GroupConfiguration) -> LaunchSettings:
        if config.image_id in ("", self._settings.image_id):
            return self._settings
        return replace(self._settings, image_id=config.image_id)

    def _configurations(self, capacity_type: str) -> list[GroupConfiguration]:
        found = []
        for index, config in enumerate(self._request["LaunchTemplateConfig"]):
            if "InstanceType" not in config:
                raise missing_parameter(f"LaunchTemplateConfig.{index + 1}.InstanceType")
            limits = [limit for limit in (config.get("MaxPrice"), self._request.get("MaxSpotPrice")) if limit]
            pool = LaunchPool(
                instance_type=config["InstanceType"],
                vswitch_id=config["VSwitchId"],
                spot_strategy="NoSpot"
                if capacity_type == "on-demand"
                else ("SpotWithPriceLimit" if limits else "SpotAsPriceGo"),
                max_price=min(limits) if limits and capacity_type == "spot" else None,
            )
            price = self._launches.price(pool)
            found.append(
                GroupConfiguration(
                    pool=pool,
                    zone=self._launches.zone_of(config["VSwitchId"]),
                    image_id=config.get("ImageId", ""),
                    price=math.inf if price is None else price,
                    priority=config.get("Priority", math.inf),
                    weight=config.get("WeightedCapacity") or 1.0,
                    index=index,
                )
            )
        return found


def _targets(request: ActionRequest) -> dict[str, int]:
    """Return the units of each capacity type. The default type, else Spot, gets the rest."""
    total = int(request["TotalTargetCapacity"])
    targets = {
        "on-demand": int(request.get("PayAsYouGoTargetCapacity", "0")),
        "spot": int(request.get("SpotTargetCapacity", "0")),
    }
    if total < 1 or sum(targets.values()) > total:
        raise invalid_parameter("TotalTargetCapacity", "must be at least 1, and at least the sum of the two targets")
    default = "on-demand" if request.get("DefaultTargetCapacityType", "Spot") == "PayAsYouGo" else "spot"
    targets[default] += total - sum(targets.values())
    return targets
