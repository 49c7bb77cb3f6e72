"""Hashes for static drift: of a NodePool's template and of a NodeClass, stored on them and on their NodeClaims.

A NodeClaim has drifted if its hash differs from its owner's *and both have the same version*. The value is not Karpenter's,
which hashes Go structs, so the version differs, too: Karpenter writes `v3`, Journeyman `journeyman-v3`. With different
versions nothing has drifted, and the NodeClaim's hash is written again: clusters migrate to Journeyman and back without
replacing nodes. The number is Karpenter's, because the same fields count. A CCENodeClass has the published provider's value and
version instead (`ccenodeclass.cce_node_class_hash`).

Restates: karpenter pkg/apis/v1/nodepool.go `Hash`; karpenter-provider-aws pkg/apis/v1/ec2nodeclass.go `Hash`: list
order and zero values do not count, nor do requirements (NodePool) and selectors (NodeClass).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.duration import parse_nillable_duration

if TYPE_CHECKING:
    from journeyman.core.api.ec2nodeclass import EC2NodeClass
    from journeyman.core.api.nodepool import NodePool

NODEPOOL_HASH_VERSION: Final = "journeyman-v3"
EC2NODECLASS_HASH_VERSION: Final = "journeyman-v6"
ECSNODECLASS_HASH_VERSION: Final = "journeyman-v3"  # of both APIs: they have the same settings

# `hash:"ignore"` in Karpenter; kubelet and amiFamily are hashed separately, as JSON and as resolved
_EC2_IGNORED: Final = frozenset(
    {
        "subnetSelectorTerms",
        "securityGroupSelectorTerms",
        "capacityReservationSelectorTerms",
        "placementGroupSelector",
        "ipPrefixCount",
        "amiSelectorTerms",
        "amiFamily",
        "kubelet",
    }
)


class HashKeys(Struct, frozen=True):
    """The annotations for a hash and its version."""

    hash: str
    version: str

    def differ(self, owner: Mapping[str, str], claim: Mapping[str, str]) -> bool:
        """Whether the owner's hash differs from the NodeClaim's, in the same version.

        Args:
            owner: Annotations of the NodePool or NodeClass.
            claim: Annotations of the NodeClaim.

        Returns:
            False if either lacks hash or version, or the versions are not the same.
        """
        ours, theirs = (self._of(owner), self._of(claim))
        return all(ours) and all(theirs) and ours[1] == theirs[1] and ours[0] != theirs[0]

    def _of(self, annotations: Mapping[str, str]) -> tuple[str, str]:
        return annotations.get(self.hash, ""), annotations.get(self.version, "")


def node_class_keys(group: str, kind: str) -> HashKeys:
    """Return the annotations of a NodeClass's hash; the vendor's ECSNodeClass has them in Karpenter's domain."""
    prefix = f"{labels.GROUP if group == labels.ACS_GROUP else group}/{kind.lower()}-hash"
    return HashKeys(prefix, f"{prefix}-version")


NODEPOOL_KEYS: Final = HashKeys(labels.NODEPOOL_HASH, labels.NODEPOOL_HASH_VERSION)
EC2NODECLASS_KEYS: Final = node_class_keys(labels.AWS_GROUP, "EC2NodeClass")
ECSNODECLASS_KEYS: Final = node_class_keys(labels.ALIBABA_GROUP, "ECSNodeClass")
ACS_ECSNODECLASS_KEYS: Final = node_class_keys(labels.ACS_GROUP, "ECSNodeClass")
CCENODECLASS_KEYS: Final = node_class_keys(labels.HUAWEI_GROUP, "CCENodeClass")


def node_pool_hash(pool: NodePool) -> str:
    """Return the hash of the NodePool's template; requirements, limits and disruption do not count."""
    template = pool.spec.template
    spec = template.spec
    return hash_of(
        {
            "labels": template.metadata.labels,
            "annotations": template.metadata.annotations,
            "taints": msgspec.to_builtins(spec.taints),
            "startupTaints": msgspec.to_builtins(spec.startup_taints),
            "nodeClassRef": msgspec.to_builtins(spec.node_class_ref),
            "terminationGracePeriod": _duration_text(spec.termination_grace_period),
            "expireAfter": _duration_text(spec.expire_after),
        }
    )


def node_pool_hash_annotations(pool: NodePool) -> dict[str, str]:
    """Return the hash annotations of a NodePool and its NodeClaims."""
    return {NODEPOOL_KEYS.hash: node_pool_hash(pool), NODEPOOL_KEYS.version: NODEPOOL_HASH_VERSION}


def ec2_node_class_hash(node_class: EC2NodeClass, *, ca_bundle: str = "") -> str:
    """Return the hash of the NodeClass's settings; selectors (subnets, groups, images) do not count.

    Args:
        node_class: The NodeClass.
        ca_bundle: The cluster's CA bundle, which is part of user data.
    """
    spec = {key: value for key, value in node_class.spec.to_wire().items() if key not in _EC2_IGNORED}
    return hash_of(
        {
            "spec": spec,
            "amiFamily": node_class.spec.resolved_ami_family,
            "caBundle": ca_bundle,
            "kubelet": json.dumps(node_class.spec.kubelet, sort_keys=True) if node_class.spec.kubelet else "",
        }
    )


def ec2_node_class_hash_annotations(node_class: EC2NodeClass, *, ca_bundle: str = "") -> dict[str, str]:
    """Return the hash annotations of an EC2NodeClass and its NodeClaims."""
    return {
        EC2NODECLASS_KEYS.hash: ec2_node_class_hash(node_class, ca_bundle=ca_bundle),
        EC2NODECLASS_KEYS.version: EC2NODECLASS_HASH_VERSION,
    }


def _duration_text(text: str | None) -> str:
    """Return the same text for all notations of a duration; empty for None and `Never`."""
    duration: timedelta | None = parse_nillable_duration(text) if text is not None else None
    return f"{duration // timedelta(seconds=1)}s" if duration is not None else ""


def hash_of(value: Mapping[str, Any]) -> str:
    """Return the hash of settings; the order of lists, and missing and empty values do not count."""
    return hashlib.sha256(_canonical(_without_zeros(value)).encode()).hexdigest()[:16]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _without_zeros(value: Any) -> Any:
    """Return the value with lists sorted and without missing and empty values; False and 0 stay."""
    if isinstance(value, Mapping):
        kept = {key: _without_zeros(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, "", [], {})}
    if isinstance(value, (list, tuple)):
        return sorted((_without_zeros(item) for item in value), key=_canonical)
    return value
