"""Kubernetes' storage objects, as far as they say where a pod may run, or what still holds on to a node.

Claims, volumes, classes, drivers on nodes; volumes attached to nodes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from journeyman.core.api.objects import APIStruct, NodeSelector, Object, resource


class PersistentVolumeClaimSpec(APIStruct, frozen=True):
    """`spec` of a PersistentVolumeClaim. `volume_name` is set once it is bound (or asks for one volume by name)."""

    volume_name: str = ""
    storage_class_name: str | None = None


class PersistentVolumeClaimStatus(APIStruct, frozen=True):
    """`status` of a PersistentVolumeClaim: Pending, Bound or Lost."""

    phase: str = ""


class PersistentVolumeClaim(Object, frozen=True):
    """A PersistentVolumeClaim."""

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class VolumeNodeAffinity(APIStruct, frozen=True):
    """`nodeAffinity` of a PersistentVolume: the nodes from which it can be reached."""

    required: NodeSelector | None = None


class CSIVolumeSource(APIStruct, frozen=True):
    """`csi` of a PersistentVolume."""

    driver: str = ""


class PersistentVolumeSpec(APIStruct, frozen=True):
    """`spec` of a PersistentVolume; of its source only what kind it is."""

    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolumeSource | None = None
    aws_elastic_block_store: dict[str, Any] | None = msgspec.field(default=None, name="awsElasticBlockStore")
    local: dict[str, Any] | None = None
    host_path: dict[str, Any] | None = None


class PersistentVolume(Object, frozen=True):
    """A PersistentVolume."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class TopologySelectorLabelRequirement(APIStruct, frozen=True):
    """One label of an allowed topology, and the values it may have."""

    key: str
    values: tuple[str, ...] = ()


class TopologySelectorTerm(APIStruct, frozen=True):
    """Labels that must all hold."""

    match_label_expressions: tuple[TopologySelectorLabelRequirement, ...] = ()


class StorageClass(Object, frozen=True):
    """A StorageClass; `allowed_topologies` are alternatives."""

    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


class VolumeNodeResources(APIStruct, frozen=True):
    """How many volumes of a driver a node takes; no count means no limit is known."""

    count: int | None = None


class CSINodeDriver(APIStruct, frozen=True):
    """A CSI driver that runs on a node."""

    name: str
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(APIStruct, frozen=True):
    """`spec` of a CSINode."""

    drivers: tuple[CSINodeDriver, ...] = ()


class CSINode(Object, frozen=True):
    """The CSI drivers on the node of the same name."""

    spec: CSINodeSpec = CSINodeSpec()


class VolumeAttachmentSource(APIStruct, frozen=True):
    """`source` of a VolumeAttachment; no name means a volume that a pod brings along itself."""

    persistent_volume_name: str = ""


class VolumeAttachmentSpec(APIStruct, frozen=True):
    """`spec` of a VolumeAttachment."""

    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(Object, frozen=True):
    """A volume that is, or is to be, attached to a node; gone once it is detached."""

    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


PERSISTENT_VOLUME_CLAIM = resource(
    "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", PersistentVolumeClaim, namespaced=True
)
PERSISTENT_VOLUME = resource("", "v1", "PersistentVolume", "persistentvolumes", PersistentVolume, namespaced=False)
STORAGE_CLASS = resource("storage.k8s.io", "v1", "StorageClass", "storageclasses", StorageClass, namespaced=False)
CSI_NODE = resource("storage.k8s.io", "v1", "CSINode", "csinodes", CSINode, namespaced=False)
VOLUME_ATTACHMENT = resource(
    "storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", VolumeAttachment, namespaced=False
)
