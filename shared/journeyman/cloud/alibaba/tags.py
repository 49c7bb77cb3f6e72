"""Tags of the instances that Journeyman launches, by which later runs and published providers find them.

The published provider tags an instance's NodeClaim only after it registered; ours carry name and UID from the launch, so
that a later run finds them after a crash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim

CLUSTER_PREFIX: Final = "kubernetes.io/cluster/"
ACK_CLUSTER_ID: Final = "ecs:ecs-cluster-id"
NODE_CLASS: Final = "karpenter.k8s.alibabacloud/ecsnodeclass"
CLAIM_UID: Final = labels.NODECLAIM_UID_TAG
MAX_TAGS: Final = 20  # RunInstances: Tag.N

_RESERVED: Final = re.compile(
    "|".join(
        (
            r"^ecs:ecs-cluster-(name|id)$",
            r"^kubernetes\.io/cluster",
            *(
                rf"^{re.escape(key)}$"
                for key in (labels.NODEPOOL, labels.NODECLAIM_TAG, NODE_CLASS, CLAIM_UID, labels.CLUSTER_UID_TAG)
            ),
        )
    )
)


def reserved_tags(user_tags: Iterable[str]) -> tuple[str, ...]:
    """Return the user's tag keys that are reserved, sorted."""
    return tuple(sorted(key for key in user_tags if _RESERVED.search(key)))


def cluster_tag(cluster_id: str) -> str:
    """Return the key of the tag of a cluster's instances; its value is `owned`."""
    return f"{CLUSTER_PREFIX}{cluster_id}"


def claim_tags(
    user_tags: Mapping[str, str], claim: NodeClaim, *, cluster_id: str, node_class: str, cluster_uid: str
) -> dict[str, str]:
    """Return the tags of a NodeClaim's instance; ours override users'. The UID of the cluster's kube-system is empty if unknown."""
    return {
        **user_tags,
        cluster_tag(cluster_id): "owned",
        ACK_CLUSTER_ID: cluster_id,
        NODE_CLASS: node_class,
        labels.NODEPOOL: claim.metadata.labels.get(labels.NODEPOOL, ""),
        labels.NODECLAIM_TAG: claim.metadata.name,
        CLAIM_UID: claim.metadata.uid,
        **({labels.CLUSTER_UID_TAG: cluster_uid} if cluster_uid else {}),
    }


def to_request(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as requests have them, sorted by key."""
    return [{"Key": key, "Value": tags[key]} for key in sorted(tags)]


def from_response(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of an object in a response, by key; ECS and VPC name the fields differently."""
    found = (entry.get("Tags") or {}).get("Tag") or ()
    return {tag.get("TagKey") or tag.get("Key") or "": tag.get("TagValue") or tag.get("Value") or "" for tag in found}
