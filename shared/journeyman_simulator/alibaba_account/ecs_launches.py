"""Implements launches: the checks that every launch passes, RunInstances, and client tokens.

`EcsLaunches.launch` is one attempt in one pool, for RunInstances and for each configuration of an auto provisioning group
(`auto_provisioning.py`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from journeyman_simulator.alibaba_account.ack_images import EcsImages
from journeyman_simulator.alibaba_account.ecs_instance_states import EcsInstance, SimulatedEcsInstances
from journeyman_simulator.alibaba_account.ecs_stock import EcsStock
from journeyman_simulator.alibaba_account.ecs_types import (
    EcsCatalogue,
    image_architecture,
    system_disk_categories,
    unsupported_disk,
)
from journeyman_simulator.alibaba_account.openapi_errors import (
    NO_STOCK,
    dry_run_succeeded,
    invalid_parameter,
    missing_parameter,
)
from journeyman_simulator.alibaba_account.openapi_requests import ActionHandlers, ActionRequest
from journeyman_simulator.alibaba_account.ram_roles import RamRoles
from journeyman_simulator.alibaba_account.vpc_network import VpcNetwork
from journeyman_simulator.cloud_rules.fleet_allocation import ClientTokens
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError, ServiceError

JSON = Mapping[str, Any]
_USER_DATA_BYTES: Final = 32 * 1024  # before base64


class LaunchSettings(Struct, frozen=True, kw_only=True):
    """What all instances of a launch have in common."""

    image_id: str
    security_groups: tuple[str, ...]
    tags: Mapping[str, str]
    settings: JSON  # the other parameters, by RunInstances' names
    disk_categories: tuple[str, ...]  # of the system disk, in order of preference; empty for the type's default
    disk_size: int
    deletion_protection: bool = False


class LaunchPool(Struct, frozen=True, kw_only=True):
    """The pool of one attempt to launch."""

    instance_type: str
    vswitch_id: str
    spot_strategy: str
    max_price: float | None = None  # for Spot


class EcsLaunches:
    """Launches instances, and handles RunInstances.

    Args:
        instances: The account's instances.
        catalogue: The instance types and prices.
        stock: The stock and the quotas.
        network: The vSwitches and security groups.
        images: The images.
        roles: The RAM roles.
        tokens: The client tokens of all actions.
        require_solvent: Raises ServiceError if the account is in arrears.
    """

    def __init__(
        self,
        *,
        instances: SimulatedEcsInstances,
        catalogue: EcsCatalogue,
        stock: EcsStock,
        network: VpcNetwork,
        images: EcsImages,
        roles: RamRoles,
        tokens: ClientTokens,
        require_solvent: Callable[[], None],
    ) -> None:
        self._instances = instances
        self.catalogue = catalogue
        self._stock = stock
        self._network = network
        self._images = images
        self._roles = roles
        self._tokens = tokens
        self._require_solvent = require_solvent
        self.key_pairs: set[str] = set()

    def handlers(self) -> ActionHandlers:
        """Return the handler of RunInstances."""
        return {"RunInstances": lambda request: self.once("RunInstances", request, lambda: self._run(request))}

    def once(self, action: str, request: ActionRequest, execute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the answer of a client token's first use, or a new one.

        A token repeats a success, and a failure for lack of stock; other failures leave it unused.

        Raises:
            ServiceError: The request fails, or the token was used with other parameters.
        """

        def outcome() -> dict[str, Any]:
            try:
                return {"answer": execute()}
            except ServiceError as error:
                if error.code in NO_STOCK:
                    return {"error": error}
                raise

        found = self._tokens.response((action, request.get("ClientToken", "")), request.parameters, outcome)
        if "error" in found:
            raise ServiceError(found["error"].code, found["error"].message)
        return dict(found["answer"])

    def zone_of(self, vswitch_id: str) -> str:
        """Return the zone of a vSwitch. Raises ServiceError if it does not exist."""
        return self._network.require_vswitch(vswitch_id).zone

    def price(self, pool: LaunchPool) -> float | None:
        """Return the price per hour of a pool; None if its zone does not sell it."""
        capacity_type = _capacity_type(pool.spot_strategy)
        return self.catalogue.prices.price(pool.instance_type, self.zone_of(pool.vswitch_id), capacity_type)

    def launch(self, settings: LaunchSettings, pool: LaunchPool, most: int, least: int) -> list[EcsInstance]:
        """Launch up to `most` instances from a pool, as many as its stock has.

        Raises:
            ServiceError: The pool cannot launch `least` instances.
        """
        self._require_solvent()
        vswitch = self._network.require_vswitch(pool.vswitch_id)
        capacity_type = _capacity_type(pool.spot_strategy)
        failure = self._stock.launch_error(pool.instance_type, vswitch.zone, capacity_type)
        if failure is not None:
            raise failure
        number = min(most, self._stock.available(pool.instance_type, vswitch.zone, capacity_type))
        if number < least:
            message = f"The stock of {pool.instance_type} in {vswitch.zone} has {number} instances; {least} are needed."
            raise ServiceError("OperationDenied.NoStock", message)
        self._check_pool(settings, pool, vswitch.zone)
        self._network.require_addresses(vswitch, number)
        if capacity_type in self._stock.vcpu_quotas:
            used = sum(self.catalogue.cpus(instance.instance_type) for instance in self._instances.alive(capacity_type))
            self._stock.require_quota(capacity_type, used, self.catalogue.cpus(pool.instance_type) * number)
        self._stock.take(pool.instance_type, vswitch.zone, capacity_type, number)
        limit = {} if pool.max_price is None else {"SpotPriceLimit": pool.max_price}
        return [
            self._instances.launch(
                instance_type=pool.instance_type,
                vswitch_id=vswitch.id,
                image_id=settings.image_id,
                security_groups=settings.security_groups,
                spot_strategy=pool.spot_strategy,
                tags=settings.tags,
                settings={**settings.settings, **limit},
                deletion_protection=settings.deletion_protection,
            )
            for _ in range(number)
        ]

    def launchable(self, settings: LaunchSettings, pool: LaunchPool) -> int:
        """Return how many instances the pool's stock and vSwitch have for a launch; 0 if the launch would fail."""
        vswitch = self._network.require_vswitch(pool.vswitch_id)
        try:
            self._require_launchable(settings, pool)
        except ServiceError as error:
            if error.code == "Account.Arrearage":
                raise
            return 0
        capacity_type = _capacity_type(pool.spot_strategy)
        return min(vswitch.free, self._stock.available(pool.instance_type, vswitch.zone, capacity_type))

    def _check_pool(self, settings: LaunchSettings, pool: LaunchPool, zone: str) -> None:
        """Raise ServiceError if the image, the disk or the price limit does not suit the pool."""
        facts = self.catalogue.facts(pool.instance_type)
        image = self._images.require(settings.image_id)
        if image.architecture != image_architecture(facts):
            message = f"The image {image.id} is {image.architecture}, which {pool.instance_type} cannot boot."
            raise ServiceError("ImageNotSupportInstanceType", message)
        if settings.disk_size < image.size:
            message = f"The system disk has {settings.disk_size} GiB; the image needs {image.size} GiB."
            raise ServiceError("InvalidSystemDiskSize.LessThanImageSize", message)
        wanted, allowed = settings.disk_categories, system_disk_categories(facts)
        if wanted and not set(wanted) & set(allowed):
            raise unsupported_disk(wanted[0], pool.instance_type)
        price = self.catalogue.prices.spot(pool.instance_type, zone)
        if pool.max_price is not None and (price is None or pool.max_price < price):
            message = f"The Spot price limit {pool.max_price} is lower than the market price {price}."
            raise ServiceError("InvalidSpotPriceLimit.LowerThanPublicPrice", message)

    def settings_of(self, parameters: JSON, *, image_ids: tuple[str, ...] = (), **disk: Any) -> LaunchSettings:
        """Return the settings in the parameters of RunInstances or in a LaunchConfiguration.

        Args:
            parameters: The parameters.
            image_ids: The images that replace a missing one; they must exist.
            **disk: `disk_categories` and `disk_size` of the result.

        Raises:
            ServiceError: A parameter is missing, is not valid, or names a resource that does not exist.
        """
        groups = parameters.get("SecurityGroupIds") or []
        if "SecurityGroupId" in parameters:
            if groups:
                raise invalid_parameter("SecurityGroupIds", "and SecurityGroupId cannot both be given")
            groups = [parameters["SecurityGroupId"]]
        if not groups:
            raise missing_parameter("SecurityGroupIds")
        _check_user_data(parameters.get("UserData", ""))
        self._check_names(parameters)
        tags = {tag["Key"]: tag.get("Value", "") for tag in parameters.get("Tag") or ()}
        if len(tags) < len(parameters.get("Tag") or ()):
            raise ServiceError("Duplicate.TagKey", "The Tag.N.Key contains duplicate keys.")
        image_id = self._image_id(parameters, image_ids)
        return LaunchSettings(
            image_id=image_id,
            security_groups=self._network.require_groups(groups),
            tags=tags,
            settings=parameters,
            deletion_protection=parameters.get("DeletionProtection", False),
            **disk,
        )

    def require_image(self, image_id: str) -> str:
        """Return the id of an image. Raises ServiceError if it does not exist."""
        return self._images.require(image_id).id

    def _image_id(self, parameters: JSON, replacements: tuple[str, ...]) -> str:
        image_id, family = parameters.get("ImageId"), parameters.get("ImageFamily")
        if image_id and family:
            raise invalid_parameter("ImageFamily", "and ImageId cannot both be given")
        if family:
            latest = self._images.latest_of_family(family)
            if latest is None:
                raise ServiceError("InvalidImageFamily.NotFound", f"The image family {family} does not exist.")
            return latest.id
        ids = (*([image_id] if image_id else ()), *replacements)
        if not ids:
            raise missing_parameter("ImageId")
        for id_ in ids:
            self.require_image(id_)
        return str(ids[0])

    def _check_names(self, parameters: JSON) -> None:
        role, key_pair = parameters.get("RamRoleName"), parameters.get("KeyPairName")
        if role:
            self._roles.require_for_ecs(role)
        if key_pair and key_pair not in self.key_pairs:
            raise ServiceError("InvalidKeyPairName.NotFound", f"The specified KeyPairName {key_pair} does not exist.")
        if parameters.get("Password") and parameters.get("PasswordInherit"):
            raise invalid_parameter("Password", "and PasswordInherit cannot both be given")

    def _run(self, request: ActionRequest) -> dict[str, Any]:
        parameters = request.parameters
        for required in ("InstanceType", "VSwitchId"):
            if not parameters.get(required):
                raise missing_parameter(required)
        if parameters.get("InstanceChargeType", "PostPaid") != "PostPaid":
            raise NotSimulatedError("the simulation does not support InstanceChargeType=PrePaid")
        pool = self._run_pool(request)
        disk = parameters.get("SystemDisk") or {}
        category = disk.get("Category")
        settings = self.settings_of(
            parameters,
            disk_categories=(category,) if category else (),
            disk_size=int(disk.get("Size") or 40),
        )
        if not 20 <= settings.disk_size <= 2048:
            raise ServiceError("InvalidSystemDiskSize.ValueNotSupported", "The system disk has 20 to 2048 GiB.")
        if "PerformanceLevel" in disk and category != "cloud_essd":
            raise invalid_parameter("SystemDisk.PerformanceLevel", "is only for SystemDisk.Category=cloud_essd")
        amount = request.get("Amount", 1)
        least = request.get("MinAmount", amount)
        if least > amount:
            raise invalid_parameter("MinAmount", "must not exceed Amount")
        if request.get("DryRun"):
            self._require_launchable(settings, pool)
            raise dry_run_succeeded()
        launched = self.launch(settings, pool, amount, least)
        return {
            "OrderId": "",
            "TradePrice": (self.price(pool) or 0.0) * len(launched) * self.catalogue.discount,
            "InstanceIdSets": {"InstanceIdSet": [instance.id for instance in launched]},
        }

    def _run_pool(self, request: ActionRequest) -> LaunchPool:
        strategy = request.get("SpotStrategy", "NoSpot")
        limit = request.get("SpotPriceLimit")
        if strategy == "SpotWithPriceLimit" and limit is None:
            raise missing_parameter("SpotPriceLimit")
        criteria = (request.get("PrivatePoolOptions") or {}).get("MatchCriteria", "None")
        if strategy != "NoSpot" and criteria != "None":
            raise invalid_parameter("PrivatePoolOptions.MatchCriteria", "must be None for a Spot instance")
        if criteria == "Target":
            raise NotSimulatedError("the simulation has no private pools")
        zone = self.zone_of(request["VSwitchId"])
        if request.get("ZoneId", zone) != zone:
            raise invalid_parameter("ZoneId", f"is not the zone {zone} of the vSwitch")
        return LaunchPool(
            instance_type=request["InstanceType"],
            vswitch_id=request["VSwitchId"],
            spot_strategy=strategy,
            max_price=limit if strategy == "SpotWithPriceLimit" else None,
        )

    def _require_launchable(self, settings: LaunchSettings, pool: LaunchPool) -> None:
        """Raise ServiceError if a dry run finds that the pool cannot launch."""
        self._require_solvent()
        zone = self.zone_of(pool.vswitch_id)
        failure = self._stock.launch_error(pool.instance_type, zone, _capacity_type(pool.spot_strategy))
        if failure is not None:
            raise failure
        self._check_pool(settings, pool, zone)


def _capacity_type(spot_strategy: str) -> str:
    return "on-demand" if spot_strategy == "NoSpot" else "spot"


def _check_user_data(text: str) -> None:
    try:
        size = len(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        raise ServiceError("InvalidUserData.Base64FormatInvalid", "The UserData is not base64 text.") from None
    if size > _USER_DATA_BYTES:
        raise ServiceError("InvalidUserData.SizeExceeded", f"The UserData has {size} bytes, more than 32 KB.")
