"""CCENodeClass (`karpenter.k8s.huawei/v1alpha1`): the Huawei Cloud settings of nodes in a CCE cluster.

`cce_node_class(raw)` validates an object and returns its view; `problems_of` returns what the CRD admits although CCE refuses it.

Restates: huaweicloud-samples/karpenter-provider-huawei pkg/apis/v1alpha1/ccenodeclass.go, ccenodeclass_status.go, labels.go.
Differs: these optional fields are additions, and do not change the hash while they are unset: `imsSelector.imageID`, `agencyName`,
`metadataOptions`, `preInstall`, `postInstall`, `securityReinforcementType`, `tags` and `spotPriceLimit`. All else is admitted and
refused alike; `problems_of` and the condition ValidationSucceeded are additions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Struct
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict, model_validator
from typing_extensions import Self

from journeyman.core.api import quantity
from journeyman.core.api.conditions import Conditions, to_wire
from journeyman.core.api.hashes import CCENODECLASS_KEYS
from journeyman.core.api.hashstructure import int32_hash, map_hash, slice_hash, struct_hash, text_hash
from journeyman.core.api.kubelet_configuration import RESERVABLE, check_not_negative, reserved_rules, with_keys
from journeyman.core.api.model import MAX_INT32, Int, Metadata, Model, crd, parse, problem, rules
from journeyman.core.api.nodeclass_rules import MAX_TERMS, at_least_one_rule, terms_checker
from journeyman.core.api.objects import Condition, ObjectMeta
from journeyman.errors import InvalidQuantityError

CCENODECLASS_HASH_VERSION: Final = "v3"  # the published provider's, because its value is the same
SUBNETS_READY: Final = "SubnetsReady"
CONTROLLERS_TAGS: Final = ("karpenter-cluster", "karpenter-nodepool", "karpenter-nodeclaim", "karpenter-nodeclaim-uid")
"""Tags of the ECS servers of nodes; CCE allows letters, digits, `-` and `_` in their keys only."""
MAX_TAGS: Final = 8 - len(CONTROLLERS_TAGS)  # CreateNode takes eight
VOLUME_TYPES: Final = ("SAS", "SSD", "SATA", "ESSD", "GPSSD", "GPSSD2", "ESSD2")
DEFAULT_K8S_VOLUME_GIB: Final = 100
HARDENED_OS: Final = "Huawei Cloud EulerOS 2.0"  # the only one that `securityReinforcementType` is for

_UUID: Final = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_TAG_KEY: Final = "^[A-Za-z0-9_-]{1,36}$"
_TAG_VALUE: Final = "^[A-Za-z0-9_.:=+@/ -]{0,255}$"
_RESERVED_TAG_PREFIXES: Final = ("CCE-", "__type_baremetal")
_MAX_ROOT_GIB: Final = 1024
_MAX_DATA_GIB: Final = 32768
_MAX_PIDS: Final = 2097152
_MAX_SCRIPTS: Final = 10240  # characters of both scripts in base64
_PERFORMANCE: Final = {"iops": ("GPSSD2", "ESSD2"), "throughput": ("GPSSD2",)}  # the volume types that need the field
_NANO: Final = 10**9
_UNITS: Final[Mapping[str, tuple[int, str]]] = {  # nano units of the unit in which CCE takes a reserved resource
    "cpu": (_NANO // 1000, "millicores"),
    "memory": (_NANO * 2**20, "Mi"),
    "ephemeral-storage": (_NANO * 2**30, "Gi"),
    "pid": (_NANO, "process ids"),
}


def _check_password(value: Any) -> str:
    """Return a valid password. Its error does not repeat it, because Events and logs have the error."""
    if not isinstance(value, str) or not value:
        raise problem("a password is text, salted and encrypted as CCE's API requires")
    return value


def _check_tags(tags: dict[str, str]) -> dict[str, str]:
    for key in tags:
        if key in CONTROLLERS_TAGS or key.startswith(_RESERVED_TAG_PREFIXES):
            raise problem(f"tag {key!r} is set by the controller or by CCE; remove it")
    return tags


class SubnetSelectorTerm(Model):
    """Subnets with this id and this name."""

    id: str | None = Field(default=None, pattern=_UUID, description="ID of the VPC subnet.")
    name: str | None = Field(default=None, min_length=1, description="Name of the VPC subnet.")


class CCEKubeletConfiguration(Model):
    """The kubelet settings that CCE has parameters for."""

    max_pods: Int | None = Field(
        default=None, ge=16, le=256, description="Number of pods per node.", json_schema_extra=crd(format="int32")
    )
    system_reserved: (
        Annotated[
            dict[str, str],
            AfterValidator(with_keys("systemReserved", RESERVABLE)),
            AfterValidator(check_not_negative),
        ]
        | None
    ) = Field(
        default=None,
        description="Resources reserved for the operating system.",
        json_schema_extra=reserved_rules("systemReserved"),
    )
    kube_reserved: (
        Annotated[
            dict[str, str],
            AfterValidator(with_keys("kubeReserved", RESERVABLE)),
            AfterValidator(check_not_negative),
        ]
        | None
    ) = Field(
        default=None,
        description="Resources reserved for Kubernetes' own components.",
        json_schema_extra=reserved_rules("kubeReserved"),
    )


class IMSSelector(Model):
    """The operating system of nodes."""

    ims_family: str = Field(min_length=1, description="CCE's name of the operating system.")
    image_id: str | None = Field(
        default=None,
        alias="imageID",
        pattern=_UUID,
        description="ID of a private image with that operating system; CCE's image if unset.",
    )


class BlockDevice(Model):
    """A disk of a node."""

    volume_size: Int = Field(
        ge=10, le=MAX_INT32, description="Size of the disk in GiB.", json_schema_extra=crd(format="int32")
    )
    volume_type: str = Field(
        min_length=1, description="Type of the disk: SAS, SSD, SATA, ESSD, GPSSD, GPSSD2 or ESSD2."
    )
    iops: Int | None = Field(
        default=None,
        ge=-MAX_INT32 - 1,
        le=MAX_INT32,
        description="IOPS of a disk of the type GPSSD2 or ESSD2, which need it.",
        json_schema_extra=crd(format="int32", minimum=None, maximum=None),
    )
    throughput: Int | None = Field(
        default=None,
        ge=-MAX_INT32 - 1,
        le=MAX_INT32,
        description="Throughput in MiB/s of a disk of the type GPSSD2, which needs it.",
        json_schema_extra=crd(format="int32", minimum=None, maximum=None),
    )


class BlockDeviceMappings(Model):
    """The disks of a node."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("blockDeviceMappings.root.volumeSize must be at least 40Gi", "self.root.volumeSize >= 40"),
            (
                "blockDeviceMappings.k8s.volumeSize must be at least 20Gi when specified",
                "!has(self.k8s) || self.k8s.volumeSize >= 20",
            ),
        )
    )

    root: BlockDevice = Field(description="The system disk.")
    k8s: BlockDevice | None = Field(
        default=None,
        alias="k8s",
        description="The disk of the container runtime and the kubelet; 100 GiB of the root disk's type if unset.",
    )
    users: tuple[BlockDevice, ...] = Field(default=(), description="Further data disks.")

    @model_validator(mode="after")
    def _large_enough(self) -> Self:
        if self.root.volume_size < 40:
            raise problem("blockDeviceMappings.root.volumeSize must be at least 40Gi")
        if self.k8s is not None and self.k8s.volume_size < 20:
            raise problem("blockDeviceMappings.k8s.volumeSize must be at least 20Gi when specified")
        return self


class RuntimeConfiguration(Model):
    """The container runtime."""

    type: Literal["docker", "containerd"] | None = Field(
        default=None, description="Type of the container runtime; CCE selects it if unset."
    )


class UserPassword(Model):
    """Login by password."""

    username: Literal["root"] | None = Field(default=None, description="Name of the user; root if unset.")
    password: Annotated[str, BeforeValidator(_check_password), Field(min_length=1)] = Field(
        description="Password, salted and encrypted as CCE's API requires."
    )


class Login(Model):
    """How an administrator logs in to a node."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "exactly one of login.userPassword or login.sshKey must be set",
                "has(self.userPassword) != has(self.sshKey)",
            ),
        )
    )

    user_password: UserPassword | None = Field(default=None, description="Login by password.")
    ssh_key: str | None = Field(default=None, min_length=1, description="Name of the key pair of the user root.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.user_password is None) == (self.ssh_key is None):
            raise problem("exactly one of login.userPassword or login.sshKey must be set")
        return self


class MetadataOptions(Model):
    """Options of the instance metadata service."""

    http_tokens: Literal["optional", "required"] | None = Field(
        default=None, description="Whether requests need a token (IMDSv2); optional if unset."
    )


class CCENodeClassSpec(Model):
    """`spec` of a CCENodeClass."""

    subnet_selector_terms: Annotated[
        tuple[SubnetSelectorTerm, ...], AfterValidator(terms_checker(of=("name", "id")))
    ] = Field(
        min_length=1,
        max_length=MAX_TERMS,
        description="Terms that select the VPC subnets of nodes.",
        json_schema_extra=rules(
            ("subnetSelectorTerms cannot be empty", "self.size() != 0"), at_least_one_rule("name", "id")
        ),
    )
    kubelet: CCEKubeletConfiguration | None = Field(default=None, description="Settings of the kubelet.")
    ecs_group_id: str | None = Field(default=None, description="ID of the ECS server group of nodes.")
    ims_selector: IMSSelector = Field(description="The operating system of nodes.")
    block_device_mappings: BlockDeviceMappings = Field(description="The disks of nodes.")
    runtime_configuration: RuntimeConfiguration | None = Field(default=None, description="The container runtime.")
    login: Login = Field(description="How an administrator logs in to a node.")
    agency_name: str | None = Field(
        default=None, min_length=1, max_length=64, description="Name of the IAM agency of nodes."
    )
    metadata_options: MetadataOptions | None = Field(
        default=None, description="Options of the instance metadata service."
    )
    pre_install: str | None = Field(
        default=None, min_length=1, description="Script that runs before Kubernetes is installed, as plain text."
    )
    post_install: str | None = Field(
        default=None, min_length=1, description="Script that runs after Kubernetes is installed, as plain text."
    )
    security_reinforcement_type: Literal["cybersecurity"] | None = Field(
        default=None, description="Hardening of the operating system Huawei Cloud EulerOS 2.0; none if unset."
    )
    tags: Annotated[
        dict[
            Annotated[str, Field(pattern=_TAG_KEY)],
            Annotated[str, Field(pattern=_TAG_VALUE)],
        ],
        AfterValidator(_check_tags),
    ] = Field(
        default={},
        max_length=MAX_TAGS,
        description="Tags of the nodes' ECS instances.",
        json_schema_extra=rules(
            ("a tag key is 1 to 36 letters, digits, - and _", f"self.all(k, k.matches('{_TAG_KEY}'))"),
            *((f"the tag {tag} is set by the controller", f"self.all(k, k != '{tag}')") for tag in CONTROLLERS_TAGS),
            *(
                (f"tags that start with {prefix} are reserved by CCE", f"self.all(k, !k.startsWith('{prefix}'))")
                for prefix in _RESERVED_TAG_PREFIXES
            ),
            patternProperties=None,
            additionalProperties={"type": "string", "maxLength": 255, "pattern": _TAG_VALUE},
        ),
    )
    spot_price_limit: Annotated[float, Strict()] | None = Field(
        default=None,
        gt=0,
        description="Maximum price per hour of a Spot instance; the on-demand price if unset.",
        json_schema_extra=crd(exclusiveMinimum=True, minimum=0),
    )

    @property
    def k8s_volume(self) -> BlockDevice:
        """The disk of the container runtime and the kubelet."""
        disks = self.block_device_mappings
        if disks.k8s is not None:
            return disks.k8s
        return disks.root.model_copy(update={"volume_size": DEFAULT_K8S_VOLUME_GIB})

    @property
    def runtime(self) -> Literal["docker", "containerd"]:
        """The container runtime that nodes are expected to have."""
        configured = self.runtime_configuration
        return (configured.type if configured is not None else None) or "containerd"


class Subnet(Model):
    """A subnet found by the selector terms."""

    id: str = Field(description="ID of the subnet.")


class CCENodeClassStatus(Model):
    """`status` of a CCENodeClass."""

    subnets: tuple[Subnet, ...] = Field(default=(), description="Subnets.")
    conditions: Conditions = Field(default=(), description="SubnetsReady, ValidationSucceeded and Ready.")


class CCENodeClass(Model):
    """The Huawei Cloud settings of nodes: network, operating system, disks and login."""

    api_version: Literal["karpenter.k8s.huawei/v1alpha1"] = "karpenter.k8s.huawei/v1alpha1"
    kind: Literal["CCENodeClass"] = "CCENodeClass"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    spec: CCENodeClassSpec
    status: CCENodeClassStatus = Field(default_factory=CCENodeClassStatus)


class CCENodeClassView(Struct, frozen=True):
    """A valid CCENodeClass, and what the provider reads of it."""

    node_class: CCENodeClass

    @property
    def metadata(self) -> ObjectMeta:
        """`metadata`."""
        return self.node_class.metadata

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.node_class.metadata.name

    @property
    def spec(self) -> CCENodeClassSpec:
        """`spec`."""
        return self.node_class.spec

    @property
    def subnet_ids(self) -> tuple[str, ...]:
        """The ids of the subnets in the status, in its order."""
        return tuple(subnet.id for subnet in self.node_class.status.subnets)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions in the status."""
        return self.node_class.status.conditions

    @property
    def hash_annotations(self) -> Mapping[str, str]:
        """The annotations with the static hash and its version, of the NodeClass and its NodeClaims."""
        return {
            CCENODECLASS_KEYS.hash: cce_node_class_hash(self.spec),
            CCENODECLASS_KEYS.version: CCENODECLASS_HASH_VERSION,
        }


def cce_node_class(raw: Mapping[str, Any]) -> CCENodeClassView:
    """Return the view of a CCENodeClass.

    Args:
        raw: The object as the API server or a manifest has it.

    Raises:
        InvalidObjectError: The object is invalid.
    """
    return CCENodeClassView(parse(CCENodeClass, raw))


def status_of(subnet_ids: Iterable[str], conditions: Iterable[Condition]) -> dict[str, Any]:
    """Return the `status` of a CCENodeClass.

    Args:
        subnet_ids: The subnets, in the order in which they are used.
        conditions: All conditions, Ready included.
    """
    return {"subnets": [{"id": id_} for id_ in subnet_ids], "conditions": to_wire(conditions)}


def problems_of(node_class: CCENodeClass) -> tuple[str, ...]:
    """Return why CCE would refuse a node of this CCENodeClass, which the CRD admits.

    Returns:
        In the order of the fields; each names the field, its value and what to change. Empty if there is no problem.
    """
    spec = node_class.spec
    disks = spec.block_device_mappings
    found = [*_reserved_problems(spec.kubelet), *_disk_problems("root", disks.root, _MAX_ROOT_GIB)]
    if disks.k8s is not None:
        found += _disk_problems("k8s", disks.k8s, _MAX_DATA_GIB)
    for index, disk in enumerate(disks.users):
        found += _disk_problems(f"users[{index}]", disk, _MAX_DATA_GIB)
    if (length := _base64_length(spec.pre_install) + _base64_length(spec.post_install)) > _MAX_SCRIPTS:
        found.append(
            f"spec.preInstall and spec.postInstall have {length} characters in base64; CCE takes {_MAX_SCRIPTS} in total. "
            "Shorten them, or let them download the rest"
        )
    if spec.security_reinforcement_type is not None and spec.ims_selector.ims_family != HARDENED_OS:
        found.append(
            f"spec.securityReinforcementType is {spec.security_reinforcement_type!r}, but spec.imsSelector.imsFamily is "
            f"{spec.ims_selector.ims_family!r}; use {HARDENED_OS!r} or remove securityReinforcementType"
        )
    return tuple(found)


def reserved_amounts(reserved: Mapping[str, str] | None) -> dict[str, int]:
    """Return reserved resources in the units of CCE's API, by name: millicores, Mi, Gi of storage, process ids.

    Raises:
        InvalidQuantityError: A value is not a quantity, or not a whole number of these units.
    """
    return {name: _reserved_amount(name, value) for name, value in (reserved or {}).items()}


def _reserved_amount(name: str, value: str) -> int:
    nano, unit = _UNITS[name]
    amount, remainder = divmod(quantity.parse(value).nano, nano)
    if remainder:
        raise InvalidQuantityError(
            f"{value!r} is not a whole number of {unit}, as CCE requires; round it up", quantity=value
        )
    if name == "pid" and amount > _MAX_PIDS:
        raise InvalidQuantityError(f"{value!r} is too large; CCE reserves at most {_MAX_PIDS} {unit}", quantity=value)
    return amount


def _reserved_problems(kubelet: CCEKubeletConfiguration | None) -> Iterator[str]:
    if kubelet is None:
        return
    for field, reserved in (("systemReserved", kubelet.system_reserved), ("kubeReserved", kubelet.kube_reserved)):
        for name, value in (reserved or {}).items():
            if text := _amount_problem(name, value):
                yield f"spec.kubelet.{field}.{name}: {text}"


def _amount_problem(name: str, value: str) -> str:
    try:
        _reserved_amount(name, value)
    except InvalidQuantityError as error:
        return error.message
    return ""


def _disk_problems(field: str, disk: BlockDevice, most_gib: int) -> Iterator[str]:
    path = f"spec.blockDeviceMappings.{field}"
    if disk.volume_size > most_gib:
        yield f"{path}.volumeSize is {disk.volume_size}; CCE takes at most {most_gib} GiB there. Reduce it"
    if disk.volume_type not in VOLUME_TYPES:
        yield f"{path}.volumeType is {disk.volume_type!r}; use one of {', '.join(VOLUME_TYPES)}"
        return
    for name, value in (("iops", disk.iops), ("throughput", disk.throughput)):
        needs = disk.volume_type in _PERFORMANCE[name]
        if needs and (value is None or value <= 0):
            shown = "missing" if value is None else value
            yield f"{path}.{name} is {shown}; a disk of the type {disk.volume_type} needs it. Set a positive number"
        elif not needs and value is not None:
            yield (
                f"{path}.{name} is {value}; a disk of the type {disk.volume_type} cannot have it. Remove it, or use the type "
                f"{' or '.join(_PERFORMANCE[name])}"
            )


def _base64_length(script: str | None) -> int:
    return -(-len(script.encode()) // 3) * 4 if script is not None else 0


def cce_node_class_hash(spec: CCENodeClassSpec) -> str:
    """Return the hash of a CCENodeClass's settings; the subnet selectors do not count.

    It is the published provider's value, of a struct with the settings in effect; fields that provider does not have
    are a further field of the struct if one is set.

    Restates: huaweicloud-samples/karpenter-provider-huawei pkg/apis/v1alpha1/ccenodeclass.go `Hash`.
    """
    disks, password = spec.block_device_mappings, spec.login.user_password
    user = None
    if password is not None:
        user = struct_hash(
            "normalizedUserPassword", {"Username": text_hash("root"), "Password": text_hash(password.password)}
        )
    volumes = {
        "Root": _volume_hash(disks.root),
        "K8S": None if disks.k8s is None else _volume_hash(disks.k8s),
        "Users": slice_hash(map(_volume_hash, disks.users)),
    }
    whole = struct_hash(
        "",
        {
            "Spec": struct_hash(
                "CCENodeClassSpec",
                {"Kubelet": _kubelet_hash(spec.kubelet), "ECSGroupID": _optional_text_hash(spec.ecs_group_id)},
            ),
            "EffectiveIMS": struct_hash("normalizedIMSSelection", {"Family": text_hash(spec.ims_selector.ims_family)}),
            "EffectiveBlockDeviceMappings": struct_hash("normalizedBlockDeviceMappings", volumes),
            "EffectiveRuntime": struct_hash("normalizedRuntimeConfiguration", {"Type": text_hash(spec.runtime)}),
            "EffectiveLogin": struct_hash(
                "normalizedLogin", {"UserPassword": user, "SSHKey": _optional_text_hash(spec.login.ssh_key)}
            ),
            "Additions": _additions_hash(spec),
        },
    )
    return str(whole)


def _kubelet_hash(kubelet: CCEKubeletConfiguration | None) -> int | None:
    if kubelet is None:
        return None
    return struct_hash(
        "KubeletConfiguration",
        {
            "MaxPods": None if kubelet.max_pods is None else int32_hash(kubelet.max_pods),
            "SystemReserved": None if kubelet.system_reserved is None else map_hash(kubelet.system_reserved),
            "KubeReserved": None if kubelet.kube_reserved is None else map_hash(kubelet.kube_reserved),
        },
    )


def _volume_hash(disk: BlockDevice) -> int:
    return struct_hash(
        "normalizedVolume",
        {
            "Size": int32_hash(disk.volume_size),
            "VolumeType": text_hash(disk.volume_type),
            "Iops": int32_hash(disk.iops) if disk.iops else None,
            "Throughput": int32_hash(disk.throughput) if disk.throughput else None,
        },
    )


def _additions_hash(spec: CCENodeClassSpec) -> int | None:
    options, limit = spec.metadata_options, spec.spot_price_limit
    fields = {
        "ImageID": _optional_text_hash(spec.ims_selector.image_id),
        "AgencyName": _optional_text_hash(spec.agency_name),
        "HTTPTokens": _optional_text_hash(options.http_tokens if options is not None else None),
        "PreInstall": _optional_text_hash(spec.pre_install),
        "PostInstall": _optional_text_hash(spec.post_install),
        "SecurityReinforcementType": _optional_text_hash(spec.security_reinforcement_type),
        "Tags": map_hash(spec.tags) if spec.tags else None,
        "SpotPriceLimit": None if limit is None else text_hash(repr(limit)),
    }
    return struct_hash("Additions", fields) if any(value is not None for value in fields.values()) else None


def _optional_text_hash(value: str | None) -> int | None:
    return None if value is None else text_hash(value)
