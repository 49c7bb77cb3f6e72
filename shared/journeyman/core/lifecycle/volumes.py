"""Volumes that still hold on to a node whose pods are gone.

A volume whose instance goes under it may be attached elsewhere only minutes later, and its pod waits that long. So the
instance waits until the attach-detach controller has taken off all of them.

Restates: karpenter pkg/controllers/node/termination/controller.go `pendingVolumeAttachments`, `filterVolumeAttachments`.
"""

from __future__ import annotations

from journeyman.core.lifecycle.drain import is_drainable
from journeyman.core.scheduling.volumes import claim_keys
from journeyman.core.state import Snapshot, StateNode


def attached_volumes(state: StateNode, snapshot: Snapshot) -> tuple[str, ...]:
    """The names of the VolumeAttachments to wait for, sorted.

    Not those of pods that no drain ends, DaemonSets' that tolerate everything for one: they stay until the instance goes.
    Nor volumes that a pod brings along itself, for which no PersistentVolume stands.

    Args:
        state: The node, with its pods.
        snapshot: That node's VolumeAttachments, and all PersistentVolumeClaims if it has any.
    """
    if state.node is None:
        return ()
    node, staying = state.node.metadata.name, _staying(state, snapshot)
    return tuple(
        sorted(
            attachment.metadata.name
            for attachment in snapshot.volume_attachments
            if attachment.spec.node_name == node
            and (volume := attachment.spec.source.persistent_volume_name)
            and volume not in staying
        )
    )


def _staying(state: StateNode, snapshot: Snapshot) -> frozenset[str]:
    """The PersistentVolumes of pods that stay; a claim that is gone, or bound to none, names none."""
    used = {key for pod in state.pods if not is_drainable(pod, snapshot.now) for key in claim_keys(pod)}
    if not used:
        return frozenset()
    return frozenset(
        claim.spec.volume_name
        for claim in snapshot.persistent_volume_claims
        if f"{claim.metadata.namespace}/{claim.metadata.name}" in used and claim.spec.volume_name
    )
