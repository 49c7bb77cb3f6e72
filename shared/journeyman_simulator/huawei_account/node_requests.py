"""Checks the body of CreateNode as strictly as CCE: fields, sizes of disks, login, labels, tags, taints and reservations.

What depends on the account (the flavor, the zone, the subnet, quotas, stock) is checked by `cce_nodes`.

Restates: CCE API reference, "Creating a node".
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError, ServiceError
from journeyman_simulator.huawei_account.body_schema import ListOf, Required, TextMap, check_shape
from journeyman_simulator.huawei_account.flavor_data import FlavorFacts
from journeyman_simulator.huawei_account.rest_errors import invalid_node

JSON = Mapping[str, Any]
_X86_ONLY: Final = frozenset({"CentOS 7.6", "EulerOS 2.5", "Ubuntu 18.04", "Ubuntu 22.04", "Rocky Linux 9.4"})
_SYSTEMS: Final = _X86_ONLY | {"EulerOS 2.9", "EulerOS 2.10", "Huawei Cloud EulerOS 2.0"}
_VOLUME: Final = {
    "size": Required(int),
    "volumetype": Required(str),
    "iops": int,
    "throughput": int,
    "hw:passthrough": bool,
    "cluster_id": str,
    "cluster_type": str,
    "metadata": TextMap(),
}
_LINEAR: Final = {"lvType": Required(str)}
_STORAGE: Final = {
    "storageSelectors": Required(
        ListOf(
            {
                "name": Required(str),
                "storageType": Required(str),
                "matchLabels": dict.fromkeys(
                    ("size", "volumeType", "count", "iops", "throughput", "metadataEncrypted", "metadataCmkid"), str
                ),
            }
        )
    ),
    "storageGroups": Required(
        ListOf(
            {
                "name": Required(str),
                "cceManaged": bool,
                "selectorNames": Required(ListOf(str)),
                "virtualSpaces": Required(
                    ListOf(
                        {
                            "name": Required(str),
                            "size": Required(str),
                            "runtimeConfig": _LINEAR,
                            "lvmConfig": {**_LINEAR, "path": str},
                        }
                    )
                ),
            }
        )
    ),
}
_RESERVED: Final = tuple(
    f"{who}Reserved{what}" for who in ("kube", "system") for what in ("Cpu", "Mem", "Pid", "Storage")
)
_EXTEND: Final = {
    "maxPods": int,
    "alpha.cce/preInstall": str,
    "alpha.cce/postInstall": str,
    "alpha.cce/NodeImageID": str,
    "agency_name": str,
    "securityReinforcementType": str,
    "serverMetadataHttpTokens": str,
    "marketType": str,
    "spotPrice": str,
    "containerBaseSize": int,
    "dockerBaseSize": int,
    "DockerLVMConfigOverride": str,
    "chargingMode": int,
    **dict.fromkeys(_RESERVED, int),
}
_NODE: Final = {
    "kind": Required(str),
    "apiVersion": Required(str),
    "metadata": {"name": str, "annotations": TextMap()},
    "spec": Required(
        {
            "flavor": Required(str),
            "az": Required(str),
            "os": str,
            "count": Required(int),
            "billingMode": int,
            "login": Required({"sshKey": str, "userPassword": {"username": str, "password": Required(str)}}),
            "rootVolume": Required(_VOLUME),
            "dataVolumes": ListOf(_VOLUME, most=16),
            "storage": _STORAGE,
            "runtime": {"name": str},
            "nodeNicSpec": {"primaryNic": {"subnetId": str, "fixedIps": ListOf(str), "ipBlock": str}},
            "publicIP": {"ids": ListOf(str), "count": int},
            "extendParam": _EXTEND,
            "k8sTags": TextMap(),
            "userTags": ListOf({"key": Required(str), "value": Required(str)}),
            "taints": ListOf({"key": Required(str), "value": str, "effect": Required(str)}),
            "ecsGroupId": str,
            "dedicatedHostId": str,
            "offloadNode": bool,
            "serverEnterpriseProjectID": str,
            "partition": str,
            "hostnameConfig": {"type": Required(str)},
            "nodeNameTemplate": {"nameTemplate": str},
            "initializedConditions": ListOf(str, most=2),
            "waitPostInstallFinish": bool,
        }
    ),
}
_NAME: Final = re.compile(r"[a-z]([a-z0-9.-]{0,54}[a-z0-9])?")
_LABEL_NAME: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL_KEY: Final = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL_NAME}")
_LABEL_VALUE: Final = re.compile(rf"({_LABEL_NAME})?")
_TAG_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,36}")
_TAG_VALUE: Final = re.compile(r"[A-Za-z0-9._:=+@/-]{0,255}")
_EFFECTS: Final = frozenset({"NoSchedule", "PreferNoSchedule", "NoExecute"})
_MOST_LABELS, _MOST_TAGS, _MOST_TAINTS = 20, 8, 20
_MOST_PIDS: Final = 2_097_152
_TYPES: Final = frozenset({"SAS", "SSD", "SATA", "ESSD", "GPSSD", "GPSSD2", "ESSD2"})
_IOPS: Final = {"GPSSD2": (3000, 128_000, 500), "ESSD2": (100, 256_000, 50)}  # least, most, most per GiB
_THROUGHPUT: Final = (125, 1000)  # MiB/s, of GPSSD2; at most a quarter of the IOPS


def check_node(body: Any) -> JSON:
    """Return the `spec` of a CreateNode body. Raises ServiceError if CCE does not accept the body.

    Raises:
        ServiceError: CCE does not accept the body.
        NotSimulatedError: The body asks for what the simulation lacks.
    """
    check_shape(body, _NODE, "")
    if body["kind"] != "Node" or body["apiVersion"] != "v3":
        raise invalid_node("kind must be Node and apiVersion v3")
    name = body.get("metadata", {}).get("name")
    if name is not None and not _NAME.fullmatch(name):
        raise invalid_node(
            f"metadata.name {name!r} must have 1 to 56 lower-case letters, digits, dots or hyphens, and start with a letter"
        )
    spec: JSON = body["spec"]
    if spec["count"] != 1:
        if spec["count"] < 1:
            raise invalid_node("spec.count must be 1 or more")
        raise NotSimulatedError("the simulation creates one node for each request")
    if spec.get("billingMode", 0) != 0:
        raise NotSimulatedError("the simulation has no yearly or monthly billing")
    _check_disks(spec)
    _check_login(spec["login"])
    if spec.get("runtime", {}).get("name", "containerd") not in {"docker", "containerd"}:
        raise invalid_node("spec.runtime.name must be docker or containerd")
    _check_labels(spec.get("k8sTags", {}))
    _check_tags(spec.get("userTags", []))
    _check_taints(spec.get("taints", []))
    _check_extend_param(spec.get("extendParam", {}))
    if spec.get("hostnameConfig", {"type": "privateIp"})["type"] not in {"privateIp", "cceNodeName"}:
        raise invalid_node("spec.hostnameConfig.type must be privateIp or cceNodeName")
    for condition in spec.get("initializedConditions", []):
        _require(re.fullmatch(r"[A-Za-z0-9]{1,20}", condition), f"initializedConditions: {condition!r} is not valid")
    return spec


def check_system(spec: JSON, flavor: FlavorFacts) -> None:
    """Raise ServiceError if CCE does not have the operating system, or not for the flavor's architecture."""
    system = spec.get("os", "Huawei Cloud EulerOS 2.0")
    if system not in _SYSTEMS or (flavor.architecture and system in _X86_ONLY):
        raise ServiceError("CCE.01400018", f"OS {system} is not supported for flavor {flavor.name}")


def check_reservations(spec: JSON, flavor: FlavorFacts) -> None:
    """Raise ServiceError if a node reserves half of its CPU or memory, or more."""
    extend = spec.get("extendParam", {})
    for what, capacity in (("Cpu", 1000 * flavor.vcpus), ("Mem", flavor.ram_mib)):
        reserved = extend.get(f"kubeReserved{what}", 0) + extend.get(f"systemReserved{what}", 0)
        if 2 * reserved >= capacity:
            raise invalid_node(f"kubeReserved{what} and systemReserved{what} must be less than half of {capacity}")


def _require(condition: object, message: str) -> None:
    if not condition:
        raise invalid_node(message)


# -- disks --------------------------------------------------------------------------------------------------------------


def _check_disks(spec: JSON) -> None:
    _check_disk(spec["rootVolume"], "spec.rootVolume", 40, 1024)
    data = spec.get("dataVolumes", [])
    _require(data, "spec.dataVolumes must have a disk for the container runtime and the kubelet")
    for number, volume in enumerate(data):
        _check_disk(volume, f"spec.dataVolumes[{number}]", 20 if number == 0 else 10, 32_768)
    if "storage" in spec:
        _check_storage(spec["storage"], data)


def _check_disk(volume: JSON, where: str, least: int, most: int) -> None:
    kind, size = volume["volumetype"], volume["size"]
    _require(least <= size <= most, f"{where}.size must be {least} to {most} GiB, not {size}")
    _require(kind in _TYPES, f"{where}.volumetype {kind!r} is not known")
    iops, throughput = volume.get("iops"), volume.get("throughput")
    if kind not in _IOPS:
        _require(iops is None and throughput is None, f"{where}: a {kind} disk has no iops and no throughput")
        return
    low, high, per_gib = _IOPS[kind]
    if iops is None:
        raise invalid_node(f"{where}.iops is required for {kind}")
    _require(
        low <= iops <= min(high, max(low, per_gib * size)),
        f"{where}.iops must be {low} to {high}, and at most {per_gib} per GiB",
    )
    if kind != "GPSSD2":
        _require(throughput is None, f"{where}: a {kind} disk has no throughput")
        return
    if throughput is None:
        raise invalid_node(f"{where}.throughput is required for {kind}")
    slow, fast = _THROUGHPUT
    _require(
        slow <= throughput <= fast and 4 * throughput <= iops,
        f"{where}.throughput must be {slow} to {fast} MiB/s, and at most a quarter of the iops",
    )


def _check_storage(storage: JSON, data: list[JSON]) -> None:
    names = [selector["name"] for selector in storage["storageSelectors"]]
    _require(len(set(names)) == len(names), "spec.storage.storageSelectors: the names must differ")
    for selector in storage["storageSelectors"]:
        _check_selector(selector, data)
    managed = [group for group in storage["storageGroups"] if group.get("cceManaged")]
    _require(len(managed) == 1, "spec.storage.storageGroups must have one group that is cceManaged")
    _require(managed[0]["name"] == "vgpaas", "spec.storage: the name of the cceManaged group must be vgpaas")
    used: list[str] = []
    for group in storage["storageGroups"]:
        _check_group(group, names)
        used.extend(group["selectorNames"])
    _require(len(set(used)) == len(used), "spec.storage: a selector is in two groups")


def _check_selector(selector: JSON, data: list[JSON]) -> None:
    where = f"spec.storage.storageSelectors {selector['name']}"
    _require(selector["storageType"] in {"evs", "local", "system"}, f"{where}: storageType is not known")
    if selector["storageType"] != "evs":
        return
    labels = selector.get("matchLabels", {})
    wanted = {"size": "size", "volumeType": "volumetype", "iops": "iops", "throughput": "throughput"}
    matching = [
        volume
        for volume in data
        if all(str(volume.get(key)) == labels[label] for label, key in wanted.items() if label in labels)
    ]
    count = labels.get("count", "1")
    _require(count.isdecimal() and int(count) >= 1, f"{where}: count {count!r} is not a number")
    _require(len(matching) >= int(count), f"{where}: no data volume matches {dict(labels)}")


def _check_group(group: JSON, selectors: Iterable[str]) -> None:
    where = f"spec.storage.storageGroups {group['name']}"
    missing = [name for name in group["selectorNames"] if name not in selectors]
    _require(not missing, f"{where}: there is no selector {missing}")
    total = 0
    for space in group["virtualSpaces"]:
        matched = re.fullmatch(r"(\d{1,3})%", space["size"])
        if matched is None:
            raise invalid_node(f"{where}: the size {space['size']!r} of {space['name']} is not a percentage")
        total += int(matched[1])
        config = "runtimeConfig" if space["name"] == "runtime" else "lvmConfig"
        _require(config in space, f"{where}: virtual space {space['name']} needs {config}")
        _require(space[config]["lvType"] in {"linear", "striped"}, f"{where}: lvType is linear or striped")
        _require(
            space["name"] in {"runtime", "kubernetes"} or "path" in space["lvmConfig"],
            f"{where}: virtual space {space['name']} needs lvmConfig.path",
        )
    spaces = {space["name"] for space in group["virtualSpaces"]}
    _require(
        not group.get("cceManaged") or {"runtime", "kubernetes"} <= spaces,
        f"{where}: the cceManaged group needs the virtual spaces runtime and kubernetes",
    )
    _require(total <= 100, f"{where}: the virtual spaces have {total}% together")


# -- login, labels, tags, taints ------------------------------------------------------------------------------------------


def _check_login(login: JSON) -> None:
    _require(len(login) == 1, "spec.login must have sshKey or userPassword, and not both")
    if "userPassword" not in login:
        return
    _require(login["userPassword"].get("username", "root") == "root", "spec.login.userPassword.username must be root")
    # "$6$" and its like in base64; a published manifest, which the demo applies unchanged, has asterisks for the rest
    encoded = login["userPassword"]["password"].startswith("JD")
    _require(encoded, "spec.login.userPassword.password must be salted, hashed and then encoded in base64")


def _check_labels(labels: Mapping[str, str]) -> None:
    _require(len(labels) <= _MOST_LABELS, f"spec.k8sTags has {len(labels)} labels; at most {_MOST_LABELS} are allowed")
    for key, value in labels.items():
        _require(_LABEL_KEY.fullmatch(key), f"spec.k8sTags: {key!r} is not the key of a label")
        _require(_LABEL_VALUE.fullmatch(value), f"spec.k8sTags: {value!r} is not the value of a label")


def _check_tags(tags: list[JSON]) -> None:
    _require(len(tags) <= _MOST_TAGS, f"spec.userTags has {len(tags)} tags; at most {_MOST_TAGS} are allowed")
    keys = [tag["key"] for tag in tags]
    _require(len(set(keys)) == len(keys), "spec.userTags: the keys must differ")
    for tag in tags:
        key = tag["key"]
        _require(
            _TAG_KEY.fullmatch(key) and not key.startswith(("CCE-", "__type_baremetal")),
            f"spec.userTags: {key!r} is not a valid key",
        )
        _require(_TAG_VALUE.fullmatch(tag["value"]), f"spec.userTags: {tag['value']!r} is not a valid value")


def _check_taints(taints: list[JSON]) -> None:
    _require(len(taints) <= _MOST_TAINTS, f"spec.taints has {len(taints)} taints; at most {_MOST_TAINTS} are allowed")
    for taint in taints:
        key = taint["key"]
        _require(_LABEL_KEY.fullmatch(key), f"spec.taints: {key!r} is not the key of a taint")
        _require(_LABEL_VALUE.fullmatch(taint.get("value", "")), f"spec.taints: the value of {key} is not valid")
        _require(taint["effect"] in _EFFECTS, f"spec.taints: the effect {taint['effect']!r} is not known")
        _require(key != "node.kubernetes.io/network-unavailable", f"spec.taints: {key} is set by CCE")
    effects = [(taint["key"], taint["effect"]) for taint in taints]
    _require(len(set(effects)) == len(effects), "spec.taints: a key has the same effect twice")


# -- extendParam ----------------------------------------------------------------------------------------------------------


def _one_of(*values: str) -> Callable[[Any], bool]:
    return lambda value: value in values


_EXTEND_CHECKS: Final[Mapping[str, Callable[[Any], object]]] = {
    "maxPods": lambda value: 16 <= value <= 256,
    "alpha.cce/preInstall": lambda value: _decoded(value, "preInstall") is not None,
    "alpha.cce/postInstall": lambda value: _decoded(value, "postInstall") is not None,
    "marketType": _one_of("spot"),
    "spotPrice": lambda value: re.fullmatch(r"\d{1,6}(\.\d{1,10})?", value),
    "securityReinforcementType": _one_of("null", "cybersecurity"),
    "serverMetadataHttpTokens": _one_of("optional", "required"),
    "kubeReservedPid": lambda value: value <= _MOST_PIDS,
    "systemReservedPid": lambda value: value <= _MOST_PIDS,
}


def _check_extend_param(extend: JSON) -> None:
    for name, is_valid in _EXTEND_CHECKS.items():
        if name in extend:
            _require(is_valid(extend[name]), f"spec.extendParam: {name} is not valid: {extend[name]!r}")
    for name in _RESERVED:
        _require(extend.get(name, 0) >= 0, f"spec.extendParam: {name} is negative")
    _require("spotPrice" not in extend or "marketType" in extend, "spec.extendParam: spotPrice needs marketType spot")


def _decoded(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid_node(f"{where} is not base64") from None
