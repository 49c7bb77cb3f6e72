"""Hash migration: claims whose hashes were made in another way get today's, or drift could never be told of them again.

So it is after a release that hashes differently, and for the claims of a cluster that Karpenter ran before. What a
template became between the two is not seen: nobody can tell by a hash that is not understood.

Restates: karpenter pkg/controllers/nodepool/hash/controller.go `updateNodeClaimHash`; karpenter-provider-aws
pkg/controllers/nodeclass/hash/controller.go, likewise.
Differs: a claim is migrated whenever it is met with another version, not only in the run in which its owner's changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from journeyman.core.api.conditions import DRIFTED
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION, NODEPOOL_KEYS, HashKeys, node_pool_hash
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NodeClaim, condition_of
from journeyman.core.lifecycle.progress import with_metadata
from journeyman.core.state import NodeClassState


def migrated(claim: NodeClaim, pool: NodePool | None, node_class: NodeClassState | None) -> NodeClaim:
    """The claim with its owners' hashes in their present version; the same object if it has them.

    A claim that has drifted already keeps its hash: it would not be known any more that it has to go.

    Args:
        claim: A claim that was launched.
        pool: Its NodePool, None if it has none or that is gone.
        node_class: Its NodeClass, None if that is gone.
    """
    changes: dict[str, str] = {}
    has_drifted = condition_of(claim.status.conditions, DRIFTED) is not None
    if pool is not None and _is_foreign(claim, NODEPOOL_KEYS, NODEPOOL_HASH_VERSION):
        changes |= _stamp(NODEPOOL_KEYS, NODEPOOL_HASH_VERSION, "" if has_drifted else node_pool_hash(pool))
    if node_class is not None and node_class.hash_version:
        prefix = f"{node_class.group}/{node_class.kind.lower()}-hash"
        keys = HashKeys(prefix, f"{prefix}-version")
        if _is_foreign(claim, keys, node_class.hash_version):
            changes |= _stamp(keys, node_class.hash_version, "" if has_drifted else node_class.hash)
    return with_metadata(claim, annotations={**claim.metadata.annotations, **changes}) if changes else claim


def _is_foreign(claim: NodeClaim, keys: HashKeys, version: str) -> bool:
    return claim.metadata.annotations.get(keys.version) != version


def _stamp(keys: HashKeys, version: str, hash_: str) -> Mapping[str, str]:
    return {keys.version: version, **({keys.hash: hash_} if hash_ else {})}
