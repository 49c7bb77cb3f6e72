"""Read the fields of an EC2NodeClass.

The object may be invalid, since `resolve` turns mistakes into conditions, so no function here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct

from journeyman.cloud.aws.ami_families import BY_ALIAS, CUSTOM, FAMILIES, AmiFamily
from journeyman.cloud.free_addresses import SubnetsByZone, subnets_by_zone

JSON = Mapping[str, Any]


class AmiAlias(Struct, frozen=True, kw_only=True):
    """An AMI alias, `family@version`. `family` is None if the alias names no known family."""

    text: str
    family: AmiFamily | None
    version: str


class NodeClassView:
    """A typed view of an EC2NodeClass; `raw` is the object as the API server stores it."""

    def __init__(self, raw: JSON) -> None:
        self.raw = raw
        self.spec: JSON = raw.get("spec") or {}
        self.status: JSON = raw.get("status") or {}

    @property
    def name(self) -> str:
        """Return `metadata.name`."""
        return str(self.raw.get("metadata", {}).get("name", ""))

    @property
    def uid(self) -> str:
        """Return `metadata.uid`."""
        return str(self.raw.get("metadata", {}).get("uid", ""))

    @cached_property
    def alias(self) -> AmiAlias | None:
        """Return the AMI alias; None if no selector term has one."""
        text = next((str(term["alias"]) for term in self.terms("amiSelectorTerms") if term.get("alias")), "")
        if not text:
            return None
        family, _, version = text.partition("@")
        return AmiAlias(text=text, family=BY_ALIAS.get(family), version=version)

    @cached_property
    def family(self) -> AmiFamily:
        """Return the family in `spec.amiFamily`, else the alias's family, else Custom.

        Restates: karpenter-provider-aws pkg/apis/v1/ec2nodeclass.go `AMIFamily`.
        """
        named = FAMILIES.get(str(self.spec.get("amiFamily") or ""))
        if named is not None:
            return named
        return self.alias.family if self.alias and self.alias.family else CUSTOM

    @property
    def kubelet(self) -> JSON:
        """Return `spec.kubelet`, an open object."""
        return self.spec.get("kubelet") or {}

    @property
    def tags(self) -> Mapping[str, str]:
        """Return `spec.tags`."""
        return {key: str(value) for key, value in (self.spec.get("tags") or {}).items()}

    @property
    def block_device_mappings(self) -> tuple[JSON, ...]:
        """Return `spec.blockDeviceMappings`, in the user's order."""
        return tuple(self.spec.get("blockDeviceMappings") or ())

    @property
    def network_interfaces(self) -> tuple[JSON, ...]:
        """Return `spec.networkInterfaces`; empty means the default interfaces."""
        return tuple(self.spec.get("networkInterfaces") or ())

    @property
    def raid0(self) -> bool:
        """Whether local disks hold the node's ephemeral storage."""
        return self.spec.get("instanceStorePolicy") == "RAID0"

    def terms(self, field: str) -> tuple[JSON, ...]:
        """Return the selector terms in that field of `spec`."""
        return tuple(self.spec.get(field) or ())

    @cached_property
    def zone_ids(self) -> Mapping[str, str]:
        """Return the zone ids of the subnets in `status`, by zone."""
        return {
            subnet["zone"]: subnet.get("zoneID", "") for subnet in sorted(self.subnets, key=lambda s: str(s["zone"]))
        }

    @property
    def subnets(self) -> tuple[JSON, ...]:
        """Return `status.subnets`."""
        return tuple(self.status.get("subnets") or ())

    @cached_property
    def subnets_by_zone(self) -> SubnetsByZone:
        """Return the ids of the subnets in `status`, by zone."""
        return subnets_by_zone((str(subnet["zone"]), str(subnet["id"])) for subnet in self.subnets)

    @property
    def capacity_reservations(self) -> tuple[JSON, ...]:
        """Return `status.capacityReservations`, by id."""
        return tuple(self.status.get("capacityReservations") or ())

    @property
    def placement_group(self) -> str:
        """Return the name or id of the placement group that `spec` selects; empty if it selects none."""
        selector = self.spec.get("placementGroupSelector") or {}
        return str(selector.get("name") or selector.get("id") or "")

    @property
    def amis(self) -> tuple[JSON, ...]:
        """Return `status.amis`, newest first."""
        return tuple(self.status.get("amis") or ())

    def condition(self, type_: str) -> JSON | None:
        """Return the status condition of that type; None if the status lacks it."""
        return next((c for c in self.status.get("conditions") or () if c.get("type") == type_), None)
