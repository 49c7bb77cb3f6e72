"""PersistentVolumeClaims: bound to a volume in a zone, or pending with WaitForFirstConsumer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from tests.differential.draw.pods import Workload
from tests.differential.draw.words import CSI_DRIVER, ZONE, Draw, JSONDict, an_object, chance, pick, pick_some, require

SIZE = {"requests": {"storage": "10Gi"}}


@st.composite
def volumes(draw: Draw, workloads: Sequence[Workload], pods: Iterable[JSONDict]) -> list[JSONDict]:
    """Draw two StorageClasses, and the bound or pending PersistentVolumeClaims that the pods mount."""
    found = [_storage_class("anywhere", ()), _storage_class("some-zones", tuple(pick_some(draw, ("a", "b", "c"))))]
    namespaces = {w.namespace for w in workloads if w.shared_claims}
    for namespace in sorted(namespaces):
        found += draw(_claims("shared", namespace, bound=chance(draw, 50)))
    for pod in pods:
        running = "nodeName" in pod["spec"]
        for volume in pod["spec"].get("volumes", ()):
            name = volume["name"]
            if name != "shared" and not chance(draw, 2):
                found += draw(_claims(name, pod["metadata"]["namespace"], bound=running or chance(draw, 40)))
    return found


def _storage_class(name: str, zones: tuple[str, ...]) -> JSONDict:
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}] if zones else []
    return an_object(
        "StorageClass",
        name,
        "storage.k8s.io/v1",
        provisioner=CSI_DRIVER,
        volumeBindingMode="WaitForFirstConsumer",
        allowedTopologies=topologies,
    )


@st.composite
def _claims(draw: Draw, name: str, namespace: str, *, bound: bool) -> list[JSONDict]:
    """Draw a PersistentVolumeClaim, and its PersistentVolume if it is bound."""
    spec: JSONDict = {"accessModes": ["ReadWriteOnce"], "resources": SIZE}
    if not bound:
        spec["storageClassName"] = pick(draw, ("anywhere", "some-zones"))
        return [an_object("PersistentVolumeClaim", name, namespace=namespace, spec=spec, status={"phase": "Pending"})]
    volume = f"pv-{namespace}-{name}"
    terms = [{"matchExpressions": [require(ZONE, "In", pick(draw, ("a", "b", "c")))]}]
    disk = {
        "csi": {"driver": CSI_DRIVER, "volumeHandle": volume},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
    }
    claim = an_object(
        "PersistentVolumeClaim",
        name,
        namespace=namespace,
        metadata={"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        spec={**spec, "storageClassName": "anywhere", "volumeName": volume},
        status={"phase": "Bound"},
    )
    return [claim, an_object("PersistentVolume", volume, spec={**disk, "storageClassName": "anywhere"})]


def csi_node(node: str, count: int) -> JSONDict:
    """Return a CSINode that limits how many volumes can be attached to the node."""
    driver = {"name": CSI_DRIVER, "nodeID": node, "topologyKeys": [ZONE], "allocatable": {"count": count}}
    return an_object("CSINode", node, "storage.k8s.io/v1", spec={"drivers": [driver]})
