"""Tags on everything that is created, by which later runs and Karpenter find it.

Restates: karpenter-provider-aws pkg/utils/utils.go `GetTags`.
Differs: instances carry their NodeClaim's name and UID from launch, so that a later run finds them after a crash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim

CLUSTER: Final = "eks:eks-cluster-name"
NODE_CLASS: Final = f"{labels.AWS_GROUP}/ec2nodeclass"
CLAIM_UID: Final = labels.NODECLAIM_UID_TAG

# labels.go `RestrictedTagPatterns`, and the tag by which we find an instance again
_RESTRICTED: Final = re.compile(
    "|".join(
        (
            r"^eks:eks-cluster-name$",
            r"^kubernetes\.io/cluster",
            rf"^{re.escape(labels.NODEPOOL)}$",
            rf"^{re.escape(labels.NODECLAIM_TAG)}$",
            rf"^{re.escape(NODE_CLASS)}$",
            rf"^{re.escape(CLAIM_UID)}$",
        )
    )
)


def restricted_tags(user_tags: Iterable[str]) -> tuple[str, ...]:
    """Return the user's tag keys that are reserved, sorted."""
    return tuple(sorted(key for key in user_tags if _RESTRICTED.search(key)))


def shared_tags(user_tags: Mapping[str, str], *, cluster: str, node_class: str, node_pool: str) -> dict[str, str]:
    """Return tags of what a whole NodePool shares (launch templates, network interfaces). Ours override the user's."""
    return {
        **user_tags,
        f"kubernetes.io/cluster/{cluster}": "owned",
        CLUSTER: cluster,
        NODE_CLASS: node_class,
        labels.NODEPOOL: node_pool,
    }


def claim_tags(shared: Mapping[str, str], claim: NodeClaim) -> dict[str, str]:
    """Return tags of what belongs to one NodeClaim: its instance, volumes, fleet."""
    return {**shared, labels.NODECLAIM_TAG: claim.metadata.name, CLAIM_UID: claim.metadata.uid}


def to_aws(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in the form of AWS requests, by key."""
    return [{"Key": key, "Value": tags[key]} for key in sorted(tags)]


def from_aws(tags: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """Return tags from the form of AWS responses."""
    return {tag["Key"]: tag.get("Value", "") for tag in tags or ()}
