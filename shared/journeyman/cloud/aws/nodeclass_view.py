"""An EC2NodeClass, and what the provider derives from it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec
from msgspec import Struct

from journeyman.cloud.aws.ami_families import BY_ALIAS, FAMILIES, AmiFamily
from journeyman.cloud.free_addresses import SubnetsByZone, subnets_by_zone
from journeyman.core.api.ec2nodeclass import EC2NodeClass, EC2NodeClassSpec
from journeyman.core.api.ec2nodeclass_status import EC2NodeClassStatus
from journeyman.core.api.model import parse
from journeyman.core.api.objects import ObjectMeta
from journeyman.ports import JSON


class AmiAlias(Struct, frozen=True, kw_only=True):
    """An AMI alias, `family@version`."""

    text: str
    family: AmiFamily
    version: str


class NodeClassView:
    """A valid EC2NodeClass, and what the provider derives from it."""

    def __init__(self, node_class: EC2NodeClass) -> None:
        self.node_class = node_class

    @property
    def name(self) -> str:
        """Return `metadata.name`."""
        return self.node_class.metadata.name

    @property
    def uid(self) -> str:
        """Return `metadata.uid`."""
        return self.node_class.metadata.uid

    @property
    def spec(self) -> EC2NodeClassSpec:
        """Return `spec`."""
        return self.node_class.spec

    @property
    def status(self) -> EC2NodeClassStatus:
        """Return `status`."""
        return self.node_class.status

    @cached_property
    def alias(self) -> AmiAlias | None:
        """Return the AMI alias; None if no selector term has one."""
        if self.spec.alias is None:
            return None
        family, _, version = self.spec.alias.partition("@")
        return AmiAlias(text=self.spec.alias, family=BY_ALIAS[family], version=version)

    @property
    def family(self) -> AmiFamily:
        """Return the family in `spec.amiFamily`, else the alias's."""
        return FAMILIES[self.spec.resolved_ami_family]

    @property
    def raid0(self) -> bool:
        """Whether local disks hold the node's ephemeral storage."""
        return self.spec.instance_store_policy == "RAID0"

    @property
    def placement_group(self) -> str:
        """Return the name or id of the placement group that `spec` selects; empty if it selects none."""
        selector = self.spec.placement_group_selector
        return (selector.name or selector.id or "") if selector is not None else ""

    @cached_property
    def zone_ids(self) -> Mapping[str, str]:
        """Return the zone ids of the subnets in `status`, by zone."""
        return {subnet.zone: subnet.zone_id for subnet in sorted(self.status.subnets, key=lambda s: s.zone)}

    @cached_property
    def subnets_by_zone(self) -> SubnetsByZone:
        """Return the ids of the subnets in `status`, by zone."""
        return subnets_by_zone((subnet.zone, subnet.id) for subnet in self.status.subnets)


def metadata_of(raw: JSON) -> ObjectMeta:
    """Return `metadata` of an EC2NodeClass, which may be invalid."""
    return msgspec.convert(raw.get("metadata") or {}, ObjectMeta)


def ec2_node_class(raw: JSON) -> NodeClassView:
    """Return the view of an EC2NodeClass.

    Args:
        raw: The object as the API server or a manifest has it.

    Raises:
        InvalidObjectError: The object is invalid.
    """
    return NodeClassView(parse(EC2NodeClass, raw))
