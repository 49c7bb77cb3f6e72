"""Rules of the CCENodeClass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.contract.crds.differences import Refused
from tests.contract.crds.rule import Rule, rule_of

KIND: Final = "CCENodeClass"
ADDED_FIELDS: Final = (
    *("agencyName", "metadataOptions", "preInstall", "postInstall"),
    *("securityReinforcementType", "tags", "spotPriceLimit"),
)
"""Fields of the spec that the published CRD does not have; `imsSelector.imageID` is one, too."""

INT32: Final = 2**31 - 1
UUID: Final = "30abcb7b-ddeb-4a93-9e83-0b21f59b07a3"
NOT_UUIDS: Final = ("", "subnet-1", UUID[:-1], f"{UUID}0", f"x{UUID}", f"{UUID}\n", UUID.replace("-", ""), 1)


def selector_rules() -> Iterator[Rule]:
    """Terms that select subnets, and the operating system."""
    by_id, by_name = {"id": UUID}, {"name": "nodes"}
    yield rule_of(KIND, "spec.subnetSelectorTerms")(
        good=([by_id], [by_name], [{**by_id, **by_name}], [by_id, by_name], [by_id] * 30, [{"id": UUID.upper()}]),
        bad=([], None, {}, [by_id] * 31, [{}], [None], [{"id": None}], [{"name": ""}], [{"name": 1}], [by_id, {}]),
    )
    yield rule_of(KIND, "spec.subnetSelectorTerms")(bad=tuple([{"id": v}] for v in NOT_UUIDS))
    yield rule_of(KIND, "spec.imsSelector")(bad=({}, None, [], "EulerOS 2.9", {"imageID": UUID}))
    yield rule_of(KIND, "spec.imsSelector.imsFamily")(good=("Ubuntu 22.04", "x"), bad=("", None, 1))


def disk_rules() -> Iterator[Rule]:
    """Disks. CCE's own limits, which no CRD has, are `problems_of`."""
    at = "spec.blockDeviceMappings"
    disk = {"volumeSize": 40, "volumeType": "SSD"}
    yield rule_of(KIND, at)(good=({"root": disk},), bad=({}, None, [], {"k8s": disk}))
    for path, least in ((f"{at}.root", 40), (f"{at}.k8s", 20), (f"{at}.users.0", 10)):
        good: tuple[Any, ...] = (
            *({**disk, "volumeSize": size} for size in (least, 99999, INT32)),
            *({"volumeSize": 50, "volumeType": name} for name in ("ESSD2", "imaginary")),
        )
        bad: tuple[Any, ...] = (
            *({**disk, "volumeSize": size} for size in (least - 1, 0, -1, "40", "40Gi", 40.5, None, INT32 + 1)),
            *({**disk, "volumeType": name} for name in ("", None, 1)),
            {"volumeSize": 50},
        )
        yield rule_of(KIND, path)(good=good, bad=bad)
        for field in ("iops", "throughput"):
            bounds = (0, 1, -1, 3000, INT32, -INT32 - 1, None)
            wrong = ("3000", 0.5, True, INT32 + 1, -INT32 - 2)
            yield rule_of(KIND, path)(
                good=tuple({**disk, field: value} for value in bounds),
                bad=tuple({**disk, field: value} for value in wrong),
            )
    yield rule_of(KIND, f"{at}.k8s")(good=(None,))
    yield rule_of(KIND, f"{at}.users")(good=([], None, [disk] * 50), bad=({}, [None], [{}], [disk, {}]))


def instance_rules() -> Iterator[Rule]:
    """Kubelet, server group, container runtime and login."""
    yield rule_of(KIND, "spec")(bad=({}, None, []))
    yield rule_of(KIND, "spec.kubelet")(good=({}, None), bad=([], "on"))
    yield rule_of(KIND, "spec.kubelet.maxPods")(good=(16, 256, 110.0, None), bad=(15, 257, "110", 16.5, True))
    for field in ("systemReserved", "kubeReserved"):
        good = (
            *({}, None, {"cpu": None}, dict.fromkeys(("cpu", "memory", "ephemeral-storage", "pid"), "1")),
            *({"cpu": amount} for amount in ("100m", "", "lots", "1e1.5", "0.0001")),
        )
        bad = ([], {"gpu": "1"}, {"": "1"}, {"cpu": "-1"}, {"memory": "-"}, {"cpu": 1}, {"cpu": {}})
        yield rule_of(KIND, f"spec.kubelet.{field}")(good=good, bad=bad)
    yield rule_of(KIND, "spec.ecsGroupId")(good=(UUID, "", None), bad=(1, []))
    runtime = "spec.runtimeConfiguration"
    yield rule_of(KIND, runtime)(good=({}, None), bad=([], "containerd"))
    yield rule_of(KIND, f"{runtime}.type")(good=("docker", "containerd", None), bad=("", "cri-o", 1))
    password = {"password": "JDYkYWJj"}
    yield rule_of(KIND, "spec.login")(
        good=(
            {"sshKey": "admin"},
            {"userPassword": password},
            {"userPassword": {**password, "username": "root"}},
            {"userPassword": password, "sshKey": None},
        ),
        bad=(
            *({}, None, [], {"sshKey": ""}, {"sshKey": 1}),
            {"sshKey": "admin", "userPassword": password},
            *({"userPassword": {**password, "username": name}} for name in ("admin", "")),
            *({"userPassword": {"password": value}} for value in ("", None, 1)),
            {"userPassword": {}},
        ),
    )


def added_rules() -> Iterator[Rule]:
    """Fields that the published CRD does not have."""
    yield _added("spec.imsSelector.imageID", (UUID, None), NOT_UUIDS)
    yield _added("spec.agencyName", ("a", "node_agency", "n" * 64, None), ("", "n" * 65, 1))
    yield _added("spec.metadataOptions", ({}, None), ([], "on"))
    yield _added("spec.metadataOptions.httpTokens", ("optional", "required", None), ("", "enabled", 1))
    for field in ("preInstall", "postInstall"):
        yield _added(f"spec.{field}", ("#!/bin/sh\necho hello", "x" * 20000, None), ("", 1, []))
    yield _added("spec.securityReinforcementType", ("cybersecurity", None), ("", "null", "other", 1))
    yield _added(
        "spec.tags",
        (
            *({}, None, {"team": "a"}, {"team": ""}, {"a_B-9": "v" * 255}, {f"k{i}": "v" for i in range(4)}),
            *({"k" * 36: "v"}, {"k": "a-b_c.d:e+f=g@h/i j"}, {"cce-x": "v"}, {"karpenter": "v"}),
        ),
        (
            *({f"k{i}": "v" for i in range(5)}, [], {"a": 1}, {"": "v"}, {"k" * 37: "v"}, {"a.b": "v"}, {"ä": "v"}),
            *({"a": "v" * 256}, {"a": "ä"}, {"a": "b*"}, {"a": "b\n"}, {"a\n": "b"}),
            *({key: "v"} for key in ("CCE-Cluster-ID", "__type_baremetal", "karpenter-cluster", "karpenter-nodepool")),
            *({key: "v"} for key in ("karpenter-nodeclaim", "karpenter-nodeclaim-uid")),
        ),
    )
    yield _added("spec.spotPriceLimit", (0.5, 1, 1e-9, None), (0, -1, 0.0, "0.5", True))


def _added(path: str, good: tuple[Any, ...], refused: tuple[Any, ...]) -> Rule:
    return rule_of(KIND, path)(good=good, listed=refused, because=Refused.ADDED_FIELD)


def status_rules() -> Iterator[Rule]:
    """Statuses."""
    subnet = {"id": UUID}
    yield rule_of(KIND, "status.subnets")(
        good=([], None, [subnet], [subnet, {"id": "any"}]), bad=([{}], [None], {}, [{"id": 1}], [{"name": "nodes"}])
    )
