"""Kubernetes' storage objects, with the fields that scheduling and termination need."""

from __future__ import annotations

from typing import Any

import msgspec

from journeyman.core.api.objects import APIStruct, NodeSelector, Object, resource


class PersistentVolumeClaimSpec(APIStruct, frozen=True):
    """`spec` of a PersistentVolumeClaim. `volume_name` is set when it is bound, or to request one volume."""

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
    """`nodeAffinity` of a PersistentVolume: the nodes that can mount it."""

    required: NodeSelector | None = None


class CSIVolumeSource(APIStruct, frozen=True):
    """`csi` of a PersistentVolume."""

    driver: str = ""


class PersistentVolumeSpec(APIStruct, frozen=True):
    """`spec` of a PersistentVolume; of its source only the kind."""

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
    """Labels that must all match."""

    match_label_expressions: tuple[TopologySelectorLabelRequirement, ...] = ()


class StorageClass(Object, frozen=True):
    """A StorageClass; `allowed_topologies` are alternatives."""

    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


class VolumeNodeResources(APIStruct, frozen=True):
    """Maximum number of a driver's volumes on a node; None if unknown."""

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
    """`source` of a VolumeAttachment; without a name, an inline volume of a pod."""

    persistent_volume_name: str = ""


class VolumeAttachmentSpec(APIStruct, frozen=True):
    """`spec` of a VolumeAttachment."""

    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(Object, frozen=True):
    """An attachment of a volume to a node; deleted when the volume is detached."""

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
