"""The common view of the ECSNodeClasses of both APIs, so that the Alibaba Cloud provider handles one kind.

`ecs_node_class(raw)` validates an object of either API and returns an `ECSNodeClassView`: its settings (`ECSSettings`), what its
status has found (`ResolvedResources`), and the names that differ between the APIs (`ECSNodeClassAPI`). `status_of` writes a
status in the object's own API. Sizes are whole GiB, and defaults are set.

Differs: data disks of `karpenter.k8s.alibabacloud` without `dataDiskCategories`, which upstream ignores, have every category.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels, quantity
from journeyman.core.api.conditions import (
    ACS_ECSNODECLASS_DEPENDENTS,
    ECSNODECLASS_DEPENDENTS,
    READY,
    to_wire,
)
from journeyman.core.api.hashes import (
    ACS_ECSNODECLASS_KEYS,
    ECSNODECLASS_HASH_VERSION,
    ECSNODECLASS_KEYS,
    HashKeys,
    hash_of,
)
from journeyman.core.api.model import parse
from journeyman.core.api.objects import (
    ACS_ECSNODECLASS,
    ECSNODECLASS,
    Condition,
    NodeSelectorRequirement,
    ObjectMeta,
    Resource,
    is_true,
)
from journeyman.errors import InvalidObjectError

if TYPE_CHECKING:
    from journeyman.core.api.acs_ecsnodeclass import DataDisk as ACSDataDisk
    from journeyman.core.api.acs_ecsnodeclass import SystemDisk as ACSSystemDisk
    from journeyman.core.api.kubelet_configuration import KubeletConfiguration

_GIB: Final = 2**30
_DEFAULT_SIZE_GIB: Final = 20  # of a system disk, in `karpenter.k8s.alibabacloud`
_ARCHITECTURES: Final = {"x86_64": "amd64", "arm64": "arm64"}  # ECS's name -> Kubernetes' name
_ECS_ARCHITECTURES: Final = {ours: theirs for theirs, ours in _ARCHITECTURES.items()}


class ECSNodeClassAPI(Struct, frozen=True, kw_only=True):
    """The names in which the two APIs of ECSNodeClasses differ.

    Attributes:
        resource: The kind.
        hash_keys: Annotations of the static hash.
        vswitches: Condition type: vSwitches were found.
        security_groups: Condition type: security groups were found.
        images: Condition type: images were found.
        role: Condition type: the RAM role exists; empty if the API has no role.
        dependents: The conditions from which Ready is derived, ValidationSucceeded included.
    """

    resource: Resource[dict[str, Any]]
    hash_keys: HashKeys
    vswitches: str
    security_groups: str
    images: str
    role: str
    dependents: tuple[str, ...]

    @property
    def label(self) -> str:
        """The label, and the tag on instances, with the name of the NodeClass."""
        return labels.node_class_label(self.resource.group, self.resource.kind)

    @property
    def finalizer(self) -> str:
        """The finalizer of the NodeClass."""
        return f"{self.resource.group}/termination"


ECS_API: Final = ECSNodeClassAPI(
    resource=ECSNODECLASS,
    hash_keys=ECSNODECLASS_KEYS,
    vswitches="VSwitchesReady",
    security_groups="SecurityGroupsReady",
    images="ImagesReady",
    role="",
    dependents=ECSNODECLASS_DEPENDENTS,
)
ACS_API: Final = ECSNodeClassAPI(
    resource=ACS_ECSNODECLASS,
    hash_keys=ACS_ECSNODECLASS_KEYS,
    vswitches="VSwitchResolved",
    security_groups="SecurityGroupResolved",
    images="ImageResolved",
    role="RAMRoleResolved",
    dependents=ACS_ECSNODECLASS_DEPENDENTS,
)
_ECS_IGNORED: Final = (
    "vswitch_terms",
    "security_group_terms",
    "image_terms",
    "capacity_reservation_terms",
    *("cluster_id", "cluster_name", "cluster_endpoint"),
)
"""Selectors, and the names of the cluster."""
APIS: Final = (ECS_API, ACS_API)
_BY_GROUP: Final = {api.resource.group: api for api in APIS}


class VSwitchTerm(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """VSwitches with all these tags (the value `*` matches any) and in this zone, or with this id; empty fields do not matter."""

    tags: Mapping[str, str] = {}
    id: str = ""
    zone: str = ""


class SecurityGroupTerm(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Security groups with all these tags, this id and this name; empty fields do not matter."""

    tags: Mapping[str, str] = {}
    id: str = ""
    name: str = ""


class ImageTerm(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Images with all these properties; empty fields do not matter.

    Attributes:
        alias: `family@version` of an image of ACK; it is the only field and the only term.
        name: Name with wildcards.
        family: ECS image family, such as `acs:alibaba_cloud_linux_3_2104_lts_x64`.
        owner_alias: `system`, `self`, `others` or `marketplace`.
        owner_id: Account that owns the image.
    """

    id: str = ""
    alias: str = ""
    name: str = ""
    tags: Mapping[str, str] = {}
    family: str = ""
    owner_alias: str = ""
    owner_id: str = ""

    @property
    def alias_family(self) -> str:
        """The family of the alias, such as AlibabaCloudLinux3; empty without an alias."""
        return self.alias.partition("@")[0]

    @property
    def alias_version(self) -> str:
        """The version of the alias, such as `latest`; empty without an alias."""
        return self.alias.partition("@")[2]


class CapacityReservationTerm(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Capacity reservations (private pools) with all these tags, or this id."""

    tags: Mapping[str, str] = {}
    id: str = ""


class Disk(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A disk; `categories` are tried in this order, `performance_level` (empty: unset) is for cloud_essd only."""

    categories: tuple[str, ...]
    size_gib: int
    device: str = ""
    performance_level: str = ""
    encrypted: bool = False
    kms_key_id: str = ""
    snapshot_id: str = ""
    delete_with_instance: bool = True


class InstanceMetadata(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of the instance metadata service."""

    http_tokens: str = "optional"
    http_put_response_hop_limit: int = 1
    http_endpoint: str = "enabled"


class ECSSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`spec` of an ECSNodeClass of either API; a setting that one API lacks has its default. Empty means unset.

    Attributes:
        kubelet: As `kubelet.config.k8s.io/v1beta1` has it, in camelCase, without unset fields.
        spot_strategy: `SpotAsPriceGo` or `SpotWithPriceLimit`; empty means SpotAsPriceGo.
        capacity_reservation_preference: `open`, `target` or `none`; empty in an API without reservations.
        metadata_options: None leaves ECS's defaults.
        launch_template_version: 0 means the template's default version.
    """

    vswitch_terms: tuple[VSwitchTerm, ...] = ()
    vswitch_selection_policy: str = "cheapest"
    security_group_terms: tuple[SecurityGroupTerm, ...] = ()
    image_terms: tuple[ImageTerm, ...] = ()
    kubelet: Mapping[str, Any] = {}
    system_disk: Disk
    data_disks: tuple[Disk, ...] = ()
    format_data_disk: bool = False
    instance_store_policy: str = ""
    tags: Mapping[str, str] = {}
    resource_group_id: str = ""
    user_data: str = ""
    password: str = ""
    key_pair_name: str = ""
    password_inherit: bool = False
    role: str = ""
    spot_strategy: str = ""
    spot_price_limit: float | None = None
    metadata_options: InstanceMetadata | None = None
    launch_template_id: str = ""
    launch_template_version: int = 0
    capacity_reservation_terms: tuple[CapacityReservationTerm, ...] = ()
    capacity_reservation_preference: str = ""
    cluster_id: str = ""
    cluster_name: str = ""
    cluster_endpoint: str = ""


class ResolvedVSwitch(Struct, frozen=True, kw_only=True):
    """A vSwitch in the status; `free_addresses` is 0 where the API does not store it."""

    id: str
    zone: str
    free_addresses: int = 0


class ResolvedSecurityGroup(Struct, frozen=True, kw_only=True):
    """A security group in the status."""

    id: str
    name: str = ""


class ResolvedImage(Struct, frozen=True, kw_only=True):
    """An image in the status, with its requirements on instance types, among them the architecture."""

    id: str
    name: str = ""
    requirements: tuple[NodeSelectorRequirement, ...] = ()

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures that the image boots on, in Kubernetes' names; empty means any."""
        return next((r.values for r in self.requirements if (r.key, r.operator) == (labels.ARCH, "In")), ())


class ResolvedResources(Struct, frozen=True, kw_only=True):
    """What the selectors of an ECSNodeClass have found."""

    vswitches: tuple[ResolvedVSwitch, ...] = ()
    security_groups: tuple[ResolvedSecurityGroup, ...] = ()
    images: tuple[ResolvedImage, ...] = ()
    ram_role: str = ""


class ECSNodeClassView(Struct, frozen=True, kw_only=True):
    """An ECSNodeClass of either API."""

    api: ECSNodeClassAPI
    metadata: ObjectMeta
    settings: ECSSettings
    resolved: ResolvedResources
    conditions: tuple[Condition, ...] = ()

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name

    @property
    def hash_annotations(self) -> dict[str, str]:
        """The annotations with the static hash and its version."""
        return ecs_node_class_hash_annotations(self.settings, self.api.hash_keys)


def ecs_node_class_hash(settings: ECSSettings) -> str:
    """Return the hash of an ECSNodeClass's settings; selectors (vSwitches, groups, images) do not count.

    Both APIs have the same hash for the same settings, and each notation of a disk's size has.

    Restates: cloudpilot-ai/karpenter-provider-alibabacloud pkg/apis/v1alpha1/ecsnodeclass.go `Hash`.
    """
    spec = msgspec.to_builtins(settings)
    kubelet = spec.pop("kubelet", {})
    return hash_of(
        {
            "spec": {key: value for key, value in spec.items() if key not in _ECS_IGNORED},
            "kubelet": json.dumps(kubelet, sort_keys=True) if kubelet else "",
        }
    )


def ecs_node_class_hash_annotations(settings: ECSSettings, keys: HashKeys) -> dict[str, str]:
    """Return the hash annotations of an ECSNodeClass and its NodeClaims."""
    return {keys.hash: ecs_node_class_hash(settings), keys.version: ECSNODECLASS_HASH_VERSION}


def api_of(raw: Mapping[str, Any]) -> ECSNodeClassAPI:
    """Return the API of an ECSNodeClass, which may be invalid.

    Raises:
        InvalidObjectError: It is of another API group.
    """
    version = str(raw.get("apiVersion", ""))
    api = _BY_GROUP.get(version.partition("/")[0])
    if api is None:
        known = " and ".join(each.resource.api_version for each in APIS)
        name = str((raw.get("metadata") or {}).get("name", ""))
        raise InvalidObjectError(
            f"ECSNodeClass {name} does not validate: apiVersion: {version!r} is not one of {known}",
            kind=ECSNODECLASS.kind,
            name=name,
        )
    return api


def ecs_node_class(raw: Mapping[str, Any]) -> ECSNodeClassView:
    """Return the common view of an ECSNodeClass of either API.

    Args:
        raw: The object as the API server or a manifest has it, with its `apiVersion`.

    Raises:
        InvalidObjectError: The object is invalid, or of another API.
    """
    return _acs_view(raw) if api_of(raw) is ACS_API else _ecs_view(raw)


def status_of(api: ECSNodeClassAPI, resolved: ResolvedResources, conditions: Iterable[Condition]) -> dict[str, Any]:
    """Return the `status` of an ECSNodeClass as its API has it.

    Args:
        api: The API of the object.
        resolved: The resources, in the order in which they are used.
        conditions: All conditions, Ready included.
    """
    conditions = tuple(conditions)
    groups = [{"id": group.id, "name": group.name} for group in resolved.security_groups]
    if api is not ACS_API:
        return {
            "vSwitches": [{"id": vswitch.id, "zoneID": vswitch.zone} for vswitch in resolved.vswitches],
            "securityGroups": groups,
            "images": [
                {
                    "id": image.id,
                    "name": image.name,
                    "requirements": [
                        {"key": r.key, "operator": r.operator, "values": list(r.values)} for r in image.requirements
                    ],
                }
                for image in resolved.images
            ],
            "conditions": to_wire(conditions),
        }
    return {
        "ready": is_true(conditions, READY),
        "vSwitches": [
            {
                "id": vswitch.id,
                "zone": vswitch.zone,
                "zoneID": vswitch.zone,
                "availableIPAddressCount": vswitch.free_addresses,
            }
            for vswitch in resolved.vswitches
        ],
        "securityGroups": groups,
        "images": [
            {"id": image.id, "name": image.name, "architecture": _ecs_architecture(image)} for image in resolved.images
        ],
        "ramRole": resolved.ram_role,
        "conditions": to_wire(conditions),
    }


def _ecs_architecture(image: ResolvedImage) -> str:
    (architecture, *others) = image.architectures or ("",)
    return "" if others else _ECS_ARCHITECTURES.get(architecture, architecture)


def _ecs_view(raw: Mapping[str, Any]) -> ECSNodeClassView:
    from journeyman.core.api.ecsnodeclass import DISK_CATEGORIES, ECSNodeClass  # noqa: PLC0415 - built only where one is read

    node_class = parse(ECSNodeClass, raw)
    spec, status = node_class.spec, node_class.status
    disk = spec.system_disk
    system_disk = Disk(categories=DISK_CATEGORIES, size_gib=_DEFAULT_SIZE_GIB, performance_level="PL0")
    if disk is not None:
        system_disk = Disk(
            categories=disk.categories or DISK_CATEGORIES,
            size_gib=_gib(disk.volume_size) if disk.volume_size else disk.size or _DEFAULT_SIZE_GIB,
            performance_level=disk.performance_level,
        )
    categories = spec.data_disk_categories or DISK_CATEGORIES
    settings = ECSSettings(
        vswitch_terms=tuple(
            VSwitchTerm(tags=term.tags or {}, id=term.id or "") for term in spec.v_switch_selector_terms
        ),
        vswitch_selection_policy=spec.v_switch_selection_policy,
        security_group_terms=tuple(
            SecurityGroupTerm(tags=term.tags or {}, id=term.id or "", name=term.name or "")
            for term in spec.security_group_selector_terms
        ),
        image_terms=tuple(ImageTerm(id=term.id or "", alias=term.alias or "") for term in spec.image_selector_terms),
        kubelet=_kubelet(spec.kubelet_configuration),
        system_disk=system_disk,
        data_disks=tuple(
            Disk(categories=categories, size_gib=_gib(disk.volume_size), device=disk.device or "")
            for disk in spec.data_disks
        ),
        format_data_disk=spec.format_data_disk,
        tags=spec.tags,
        resource_group_id=spec.resource_group_id or "",
        user_data=spec.user_data or "",
        password=spec.password or "",
        key_pair_name=spec.key_pair_name or "",
        password_inherit=spec.password_inherit or False,
    )
    resolved = ResolvedResources(
        vswitches=tuple(ResolvedVSwitch(id=found.id, zone=found.zone_id) for found in status.v_switches),
        security_groups=tuple(ResolvedSecurityGroup(id=found.id, name=found.name) for found in status.security_groups),
        images=tuple(
            ResolvedImage(id=found.id, name=found.name, requirements=found.requirements) for found in status.images
        ),
    )
    return ECSNodeClassView(
        api=ECS_API,
        metadata=node_class.metadata,
        settings=settings,
        resolved=resolved,
        conditions=status.conditions,
    )


def _acs_view(raw: Mapping[str, Any]) -> ECSNodeClassView:
    from journeyman.core.api.acs_ecsnodeclass import ACSECSNodeClass, SystemDisk  # noqa: PLC0415 - as above

    node_class = parse(ACSECSNodeClass, raw)
    spec, status = node_class.spec, node_class.status
    options = spec.metadata_options
    settings = ECSSettings(
        vswitch_terms=tuple(
            VSwitchTerm(tags=term.tags or {}, id=term.id or "", zone=term.zone_id or "")
            for term in spec.v_switch_selector_terms or ()
        ),
        security_group_terms=tuple(
            SecurityGroupTerm(tags=term.tags or {}, id=term.id or "", name=term.name or "")
            for term in spec.security_group_selector_terms or ()
        ),
        image_terms=tuple(
            ImageTerm(
                id=term.id or "",
                name=term.name or "",
                tags=term.tags or {},
                family=term.image_family or "",
                owner_alias=term.image_owner_alias or "",
                owner_id=term.image_owner_id or "",
            )
            for term in spec.image_selector_terms or ()
        ),
        kubelet=_kubelet(spec.kubelet),
        system_disk=_acs_disk(spec.system_disk or SystemDisk()),
        data_disks=tuple(_acs_data_disk(disk) for disk in spec.data_disks),
        instance_store_policy=spec.instance_store_policy or "",
        tags=spec.tags,
        user_data=spec.user_data or "",
        role=spec.role or "",
        spot_strategy=spec.spot_strategy or "",
        spot_price_limit=spec.spot_price_limit,
        metadata_options=None
        if options is None
        else InstanceMetadata(
            http_tokens=options.http_tokens,
            http_put_response_hop_limit=options.http_put_response_hop_limit,
            http_endpoint=options.http_endpoint,
        ),
        launch_template_id=spec.launch_template_id or "",
        launch_template_version=spec.launch_template_version or 0,
        capacity_reservation_terms=tuple(
            CapacityReservationTerm(tags=term.tags or {}, id=term.id or "")
            for term in spec.capacity_reservation_selector_terms
        ),
        capacity_reservation_preference=spec.capacity_reservation_preference,
        cluster_id=spec.cluster_id or "",
        cluster_name=spec.cluster_name or "",
        cluster_endpoint=spec.cluster_endpoint or "",
    )
    resolved = ResolvedResources(
        vswitches=tuple(
            ResolvedVSwitch(id=found.id, zone=found.zone, free_addresses=found.available_ip_address_count)
            for found in status.v_switches
        ),
        security_groups=tuple(ResolvedSecurityGroup(id=found.id, name=found.name) for found in status.security_groups),
        images=tuple(
            ResolvedImage(id=found.id, name=found.name, requirements=_requirements(found.architecture))
            for found in status.images
        ),
        ram_role=status.ram_role or "",
    )
    return ECSNodeClassView(
        api=ACS_API,
        metadata=node_class.metadata,
        settings=settings,
        resolved=resolved,
        conditions=status.conditions,
    )


def _acs_disk(disk: ACSSystemDisk | ACSDataDisk) -> Disk:
    return Disk(
        categories=(disk.category,),
        size_gib=disk.size,
        performance_level=disk.performance_level or "",
        encrypted=disk.encrypted or False,
        kms_key_id=disk.kms_key_id or "",
    )


def _acs_data_disk(disk: ACSDataDisk) -> Disk:
    return replace(
        _acs_disk(disk),
        device=disk.device or "",
        snapshot_id=disk.snapshot_id or "",
        delete_with_instance=disk.delete_with_instance,
    )


def _requirements(architecture: str) -> tuple[NodeSelectorRequirement, ...]:
    if not architecture:
        return ()
    name = _ARCHITECTURES.get(architecture, architecture)
    return (NodeSelectorRequirement(key=labels.ARCH, operator="In", values=(name,)),)


def _gib(size: str) -> int:
    """Return a volume size in GiB, rounded up."""
    return -(-quantity.parse(size).units(round_up=True) // _GIB)


def _kubelet(configuration: KubeletConfiguration | None) -> dict[str, Any]:
    if configuration is None:
        return {}
    return {key: value for key, value in configuration.to_wire().items() if value not in ([], {})}
