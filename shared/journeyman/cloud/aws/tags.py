"""Tags of the AWS resources that Journeyman creates, by which later runs and Karpenter find them.

Restates: karpenter-provider-aws pkg/utils/utils.go `GetTags`.
Differs: instances carry their NodeClaim's name and UID from launch, so that a later run finds them after a crash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim
from journeyman.core.lifecycle.instance_names import NAME_TAG

CLUSTER: Final = "eks:eks-cluster-name"
NODE_CLASS: Final = f"{labels.AWS_GROUP}/ec2nodeclass"
CLAIM_UID: Final = labels.NODECLAIM_UID_TAG
NAME: Final = NAME_TAG
MAX_TAGS: Final = 50  # of a resource in EC2, without those that AWS sets itself

# labels.go `RestrictedTagPatterns`, and the tag by which a later run finds a claim's instance
_RESTRICTED: Final = re.compile(
    "|".join(
        (
            r"^eks:eks-cluster-name$",
            r"^kubernetes\.io/cluster",
            rf"^{re.escape(labels.NODEPOOL)}$",
            rf"^{re.escape(labels.NODECLAIM_TAG)}$",
            rf"^{re.escape(NODE_CLASS)}$",
            rf"^{re.escape(CLAIM_UID)}$",
            rf"^{re.escape(labels.CLUSTER_UID_TAG)}$",
        )
    )
)


def restricted_tags(user_tags: Iterable[str]) -> tuple[str, ...]:
    """Return the user's tag keys that are reserved, sorted."""
    return tuple(sorted(key for key in user_tags if _RESTRICTED.search(key)))


def too_many_tags(user_tags: Iterable[str]) -> str:
    """Return why an instance cannot have the user's tags beside ours, and `Name` once its node registered; empty if it can."""
    keys = {*user_tags}
    own = OWN_TAGS + (NAME not in keys)
    if len(keys) + own <= MAX_TAGS:
        return ""
    return (
        f"{len(keys)} tags are too many: an instance has {MAX_TAGS}, of which the controller sets {own}; "
        f"use {MAX_TAGS - own} at most"
    )


def shared_tags(user_tags: Mapping[str, str], *, cluster: str, node_class: str, node_pool: str) -> dict[str, str]:
    """Return the tags of resources that a NodePool shares (launch templates, network interfaces); ours override users'."""
    return {
        **user_tags,
        f"kubernetes.io/cluster/{cluster}": "owned",
        CLUSTER: cluster,
        NODE_CLASS: node_class,
        labels.NODEPOOL: node_pool,
    }


OWN_TAGS: Final = 7
"""The tags that `shared_tags` and `claim_tags` add to the user's."""


def claim_tags(shared: Mapping[str, str], claim: NodeClaim, *, cluster_uid: str) -> dict[str, str]:
    """Return the tags of resources that one NodeClaim owns: its instance, volumes and fleet; no cluster UID if that is unknown."""
    uid = {labels.CLUSTER_UID_TAG: cluster_uid} if cluster_uid else {}
    return {**shared, labels.NODECLAIM_TAG: claim.metadata.name, CLAIM_UID: claim.metadata.uid, **uid}


def to_aws(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as AWS requests have them, sorted by key."""
    return [{"Key": key, "Value": tags[key]} for key in sorted(tags)]


def from_aws(tags: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """Return the tags in an AWS response, by key."""
    return {tag["Key"]: tag.get("Value", "") for tag in tags or ()}
