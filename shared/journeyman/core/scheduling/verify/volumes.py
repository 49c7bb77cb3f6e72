"""Volumes: from where a pod's can be reached, and how many a node attaches.

A bound claim goes where its PersistentVolume can be reached; one that waits goes where its StorageClass may make it.

Restates: karpenter pkg/controllers/provisioning/scheduling/volumetopology.go, pkg/scheduling/volumeusage.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement, Pod
from journeyman.core.api.storage import PersistentVolumeClaim, StorageClass
from journeyman.core.scheduling.verify.defect import Defect
from journeyman.core.scheduling.verify.index import Place
from journeyman.core.scheduling.verify.kinds import Kind
from journeyman.core.scheduling.verify.matching import normalized
from journeyman.core.scheduling.verify.possible import Alternatives
from journeyman.core.state import Snapshot

_BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
_EBS: Final = "ebs.csi.aws.com"
# k8s.io/csi-translation-lib: what took over from plugins that once were part of Kubernetes
_SUCCESSORS: Final = {
    "kubernetes.io/aws-ebs": _EBS,
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/azure-file": "file.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
}


class Storage:
    """The storage objects of a snapshot, by name."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._claims = {(c.metadata.namespace, c.metadata.name): c for c in snapshot.persistent_volume_claims}
        self._volumes = {volume.metadata.name: volume for volume in snapshot.persistent_volumes}
        self._classes = {found.metadata.name: found for found in snapshot.storage_classes}
        self._limits = {
            node.metadata.name: {
                driver.name: driver.allocatable.count
                for driver in node.spec.drivers
                if driver.allocatable is not None and driver.allocatable.count is not None
            }
            for node in snapshot.csi_nodes
        }

    def wishes(self, kind: Kind) -> tuple[Alternatives, ...]:
        """What the pod's volumes ask of a node's labels, one of the alternatives of each."""
        claims = (self._claims.get(name) for name in _claim_names(kind.pod))
        wishes = (self._alternatives(claim) for claim in claims if claim is not None)
        return tuple(wish for wish in wishes if wish is not None)

    def _alternatives(self, claim: PersistentVolumeClaim) -> Alternatives | None:
        """Where its volume can be reached from; None if from everywhere."""
        if not claim.spec.volume_name:
            found = self._classes.get(claim.spec.storage_class_name or "")
            return _allowed(found) if found is not None else None
        volume = self._volumes.get(claim.spec.volume_name)
        affinity = volume.spec.node_affinity if volume is not None else None
        if volume is None or affinity is None or affinity.required is None:
            return None
        terms = [t.match_expressions for t in affinity.required.node_selector_terms if t.match_expressions]
        if volume.spec.local is not None or volume.spec.host_path is not None:
            terms = [tuple(e for e in term if normalized(e.key) != labels.HOSTNAME) for term in terms]
        return tuple(terms) if terms and all(terms) else None

    def defect(self, kind: Kind) -> str:
        """Why a pod with these volumes cannot run anywhere; empty if it can."""
        return next((why for name in _claim_names(kind.pod) if (why := self._defect(name))), "")

    def _defect(self, name: tuple[str, str]) -> str:
        claim = self._claims.get(name)
        shown = f"PersistentVolumeClaim {'/'.join(name)}"
        if claim is None:
            return f"{shown} does not exist"
        if claim.metadata.deletion_timestamp is not None or claim.status.phase == "Lost":
            return f"{shown} is being deleted or has lost its volume"
        return self._defect_bound(claim, shown) if claim.spec.volume_name else self._defect_unbound(claim, shown)

    def _defect_bound(self, claim: PersistentVolumeClaim, shown: str) -> str:
        volume = self._volumes.get(claim.spec.volume_name)
        if volume is None or volume.metadata.deletion_timestamp is not None:
            return f"the PersistentVolume of {shown} does not exist or is being deleted"
        return "" if _BIND_COMPLETED in claim.metadata.annotations else f"{shown} is not bound completely"

    def _defect_unbound(self, claim: PersistentVolumeClaim, shown: str) -> str:
        found = self._classes.get(claim.spec.storage_class_name or "")
        if found is None:
            return f"{shown} is unbound, and its StorageClass does not exist"
        return f"{shown} is to be bound before it has a pod" if found.volume_binding_mode == "Immediate" else ""

    def check_attachments(self, place: Place) -> Iterator[Defect]:
        """Of each driver a node that stands attaches only so many volumes; a claim that several pods use counts once."""
        limits = self._limits.get(place.node.node.metadata.name, {}) if place.node and place.node.node else {}
        if not limits:
            return
        brought = self._by_driver(place.planned.values())
        there = self._by_driver(place.staying)
        for driver, claims in sorted(brought.items()):
            number = len(claims | there.get(driver, set()))
            if driver in limits and number > limits[driver]:
                pods = ", ".join(sorted(place.planned))
                yield place.defect(f"{number} volumes of {driver} with pods {pods}, it attaches {limits[driver]}")

    def _by_driver(self, kinds: Iterable[Kind]) -> dict[str, set[tuple[str, str]]]:
        found: dict[str, set[tuple[str, str]]] = {}
        for kind in kinds:
            for name in _claim_names(kind.pod):
                claim = self._claims.get(name)
                if claim is not None:
                    found.setdefault(self._driver(claim), set()).add(name)
        return found

    def _driver(self, claim: PersistentVolumeClaim) -> str:
        """The CSI driver of the claim's volume, empty if there is none."""
        if not claim.spec.volume_name:
            found = self._classes.get(claim.spec.storage_class_name or "")
            return _SUCCESSORS.get(found.provisioner, found.provisioner) if found is not None else ""
        volume = self._volumes.get(claim.spec.volume_name)
        if volume is None:
            return ""
        if volume.spec.csi is not None:
            return volume.spec.csi.driver
        return _EBS if volume.spec.aws_elastic_block_store is not None else ""


def _claim_names(pod: Pod) -> Iterator[tuple[str, str]]:
    """Namespace and name of the claims that the pod uses; that of an ephemeral volume is called after pod and volume."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield pod.metadata.namespace, volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield pod.metadata.namespace, f"{pod.metadata.name}-{volume.name}"


def _allowed(found: StorageClass) -> Alternatives | None:
    terms = (
        tuple(NodeSelectorRequirement(key=e.key, operator="In", values=e.values) for e in t.match_label_expressions)
        for t in found.allowed_topologies
    )
    return tuple(term for term in terms if term) or None
