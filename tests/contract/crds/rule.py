"""A validation rule of one field, with valid and invalid values, and valid objects to set them in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.objects import ACS_ECSNODECLASS, Resource
from tests.contract.crds.differences import Difference

JSONDict = dict[str, Any]

ACS: Final = f"{ACS_ECSNODECLASS.kind}.{ACS_ECSNODECLASS.group}"


def kind_of(resource: Resource[Any]) -> str:
    """Return the name of a kind here, which for the second kind of that name has its group."""
    return ACS if resource == ACS_ECSNODECLASS else resource.kind


class Rule(Struct, frozen=True, kw_only=True):
    """A validation rule of one field.

    Attributes:
        kind: Kind of the object, as `kind_of` names it.
        path: The field, from the object's root; a number is an index of a list.
        good: Valid values.
        bad: Invalid values.
        listed: Values that are a listed difference; `because` says which.
        with_few_values: Whether to test few values, because another rule tests the same model at another path.
    """

    kind: str
    path: str
    good: tuple[Any, ...] = ()
    bad: tuple[Any, ...] = ()
    listed: tuple[Any, ...] = ()
    because: Difference | None = None
    with_few_values: bool = False

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield ("good", "bad" or "listed", value) for each value to test."""
        for said, values in (("good", self.good), ("bad", self.bad), ("listed", self.listed)):
            for value in values[:1] + values[1:][-1:] if self.with_few_values else values:
                yield said, value


def rule_of(kind: str, path: str) -> Callable[..., Rule]:
    """Return a function that makes rules of one field; its parameters are the further attributes of `Rule`."""
    return partial(Rule, kind=kind, path=path)


def with_value(obj: Mapping[str, Any], path: str, value: Any) -> JSONDict:
    """Return a copy of the object with the value at the path; missing parents are created, list items must exist."""
    whole: JSONDict = copy.deepcopy(dict(obj))
    *parents, last = path.split(".")
    at: Any = whole
    for name in parents:
        at = at[int(name)] if isinstance(at, list) else at.setdefault(name, {})
    at[int(last) if isinstance(at, list) else last] = copy.deepcopy(value)
    return whole


def with_few_values(rules: Iterable[Rule]) -> Iterator[Rule]:
    """Yield the rules with few of their values."""
    for rule in rules:
        yield replace(rule, with_few_values=True)


NODE_CLASS_REF: Final = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
ARCH: Final = {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]}
TAINT: Final = {"key": "example.com/gpu", "value": "yes", "effect": "NoSchedule"}


def _specimen(version: str, kind: str, spec: JSONDict | None = None, **metadata: str) -> JSONDict:
    body: JSONDict = {"apiVersion": version, "kind": kind, "metadata": {"name": "specimen", **metadata}}
    return {**body, "spec": spec} if spec else body


BASES: Final[Mapping[str, JSONDict]] = {
    "NodePool": _specimen(
        "karpenter.sh/v1",
        "NodePool",
        spec={
            "template": {
                "metadata": {"labels": {"team": "a"}},
                "spec": {"requirements": [ARCH], "nodeClassRef": NODE_CLASS_REF, "taints": [TAINT]},
            },
            "disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "10%"}]},
        },
    ),
    "NodeClaim": _specimen(
        "karpenter.sh/v1", "NodeClaim", spec={"requirements": [ARCH], "nodeClassRef": NODE_CLASS_REF, "taints": [TAINT]}
    ),
    "NodeOverlay": _specimen("karpenter.sh/v1alpha1", "NodeOverlay", spec={"requirements": [ARCH]}),
    "EC2NodeClass": _specimen(
        "karpenter.k8s.aws/v1",
        "EC2NodeClass",
        spec={
            "role": "KarpenterNodeRole",
            "amiFamily": "AL2023",
            "amiSelectorTerms": [{"id": "ami-123"}],
            "subnetSelectorTerms": [{"tags": {"discovery": "*"}}],
            "securityGroupSelectorTerms": [{"tags": {"discovery": "*"}}],
            "blockDeviceMappings": [{"deviceName": "/dev/xvda", "rootVolume": True, "ebs": {"volumeSize": "20Gi"}}],
        },
    ),
    "ECSNodeClass": _specimen(
        "karpenter.k8s.alibabacloud/v1alpha1",
        "ECSNodeClass",
        spec={
            "vSwitchSelectorTerms": [{"tags": {"discovery": "*"}}],
            "securityGroupSelectorTerms": [{"tags": {"discovery": "*"}}],
            "imageSelectorTerms": [{"alias": "AlibabaCloudLinux3@latest"}],
            "systemDisk": {"volumeSize": "40Gi"},
            "dataDisks": [{"volumeSize": "100Gi"}],
        },
    ),
    ACS: _specimen(
        "karpenter.alibabacloud.com/v1alpha1",
        "ECSNodeClass",
        spec={
            "vSwitchSelectorTerms": [{"tags": {"discovery": "*"}}],
            "securityGroupSelectorTerms": [{"tags": {"discovery": "*"}}],
            "imageSelectorTerms": [{"id": "m-123"}],
            "systemDisk": {"category": "cloud_essd"},
            "dataDisks": [{"category": "cloud_essd", "size": 120}],
        },
    ),
    "CCENodeClass": _specimen(
        "karpenter.k8s.huawei/v1alpha1",
        "CCENodeClass",
        spec={
            "subnetSelectorTerms": [{"name": "nodes"}],
            "imsSelector": {"imsFamily": "Huawei Cloud EulerOS 2.0"},
            "blockDeviceMappings": {
                "root": {"volumeSize": 50, "volumeType": "SSD"},
                "users": [{"volumeSize": 100, "volumeType": "SAS"}],
            },
            "login": {"sshKey": "admin"},
        },
    ),
    "CapacityBuffer": _specimen(
        "autoscaling.x-k8s.io/v1beta1",
        "CapacityBuffer",
        namespace="default",
        spec={"podTemplateRef": {"name": "web"}, "replicas": 2, "limits": {"cpu": "8"}},
    ),
    "NodeDisruption": _specimen(
        "journeyman.dev/v1alpha1",
        "NodeDisruption",
        spec={
            "reason": "Empty",
            "decision": "replace",
            "method": "emptiness",
            "candidates": [{"nodeClaim": "default-1"}],
            "replacements": [{"name": "default-2"}],
        },
    ),
    "ChurnLedger": {"apiVersion": "journeyman.dev/v1alpha1", "kind": "ChurnLedger", "metadata": {"name": "specimen"}},
    "FleetPlan": _specimen(
        "journeyman.dev/v1alpha1", "FleetPlan", spec={"moves": [{"name": "default-1", "nodeClaims": ["default-1"]}]}
    ),
    "OfferingState": _specimen("journeyman.dev/v1alpha1", "OfferingState", spec={"nodeClassRef": NODE_CLASS_REF}),
}
"""A valid object of every kind."""
