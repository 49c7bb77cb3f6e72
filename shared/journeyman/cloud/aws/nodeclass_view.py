"""A typed view of a raw EC2NodeClass.

The object may be invalid, since `resolve` turns mistakes into conditions; so nothing here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct

from journeyman.cloud.aws.ami_families import BY_ALIAS, CUSTOM, FAMILIES, AmiFamily

JSON = Mapping[str, Any]


class AmiAlias(Struct, frozen=True, kw_only=True):
    """`family@version` of an AMI alias; `family` is None if there is no such family."""

    text: str
    family: AmiFamily | None
    version: str


class NodeClassView:
    """`raw` is the object as the API server stores it."""

    def __init__(self, raw: JSON) -> None:
        self.raw = raw
        self.spec: JSON = raw.get("spec") or {}
        self.status: JSON = raw.get("status") or {}

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return str(self.raw.get("metadata", {}).get("name", ""))

    @property
    def uid(self) -> str:
        """`metadata.uid`."""
        return str(self.raw.get("metadata", {}).get("uid", ""))

    @property
    def generation(self) -> int:
        """`metadata.generation`."""
        return int(self.raw.get("metadata", {}).get("generation", 0) or 0)

    @cached_property
    def alias(self) -> AmiAlias | None:
        """The AMI alias, if a selector term has one."""
        text = next((str(term["alias"]) for term in self.terms("amiSelectorTerms") if term.get("alias")), "")
        if not text:
            return None
        family, _, version = text.partition("@")
        return AmiAlias(text=text, family=BY_ALIAS.get(family), version=version)

    @cached_property
    def family(self) -> AmiFamily:
        """`spec.amiFamily`, else the alias's, else Custom.

        Restates: karpenter-provider-aws pkg/apis/v1/ec2nodeclass.go `AMIFamily`.
        """
        named = FAMILIES.get(str(self.spec.get("amiFamily") or ""))
        if named is not None:
            return named
        return self.alias.family if self.alias and self.alias.family else CUSTOM

    @property
    def kubelet(self) -> JSON:
        """`spec.kubelet`, an open object."""
        return self.spec.get("kubelet") or {}

    @property
    def tags(self) -> Mapping[str, str]:
        """`spec.tags`."""
        return {key: str(value) for key, value in (self.spec.get("tags") or {}).items()}

    @property
    def block_device_mappings(self) -> tuple[JSON, ...]:
        """`spec.blockDeviceMappings`, in the user's order."""
        return tuple(self.spec.get("blockDeviceMappings") or ())

    @property
    def network_interfaces(self) -> tuple[JSON, ...]:
        """`spec.networkInterfaces`; empty means the default layout."""
        return tuple(self.spec.get("networkInterfaces") or ())

    @property
    def raid0(self) -> bool:
        """Whether local disks become the node's ephemeral storage."""
        return self.spec.get("instanceStorePolicy") == "RAID0"

    def terms(self, field: str) -> tuple[JSON, ...]:
        """The selector terms of that spec field."""
        return tuple(self.spec.get(field) or ())

    @cached_property
    def zone_ids(self) -> Mapping[str, str]:
        """Zone to zone id, over the subnets in status, by zone."""
        return {
            subnet["zone"]: subnet.get("zoneID", "") for subnet in sorted(self.subnets, key=lambda s: str(s["zone"]))
        }

    @property
    def subnets(self) -> tuple[JSON, ...]:
        """`status.subnets`."""
        return tuple(self.status.get("subnets") or ())

    @property
    def amis(self) -> tuple[JSON, ...]:
        """`status.amis`, newest first."""
        return tuple(self.status.get("amis") or ())

    def condition(self, type_: str) -> JSON | None:
        """The status condition of that type."""
        return next((c for c in self.status.get("conditions") or () if c.get("type") == type_), None)
