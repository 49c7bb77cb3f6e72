"""Builders: each returns one object with defaults; a test states only the fields that matter to it.

`a_…` returns the Struct that the core reads; `…_body` returns the JSON for the API server.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.launch_faults import FaultScope, LaunchBackoff, LaunchFault
from journeyman.core.api.model import parse
from journeyman.core.api.nodeoverlay import NodeOverlay
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import DaemonSet, Node, NodeClaim, NodeSelectorRequirement, Pod
from journeyman.core.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment
from journeyman.core.catalogue import InstanceType, Offering, label_requirements
from journeyman.core.state import NodeClassState, Snapshot
from journeyman.ports import Instance

NOW = datetime(2026, 3, 2, 21, 0, tzinfo=timezone.utc)
POOL, CLUSTER, CLASS = "default", "demo", "default"
CLASS_REF = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": CLASS}
CLASS_LABEL = "karpenter.k8s.aws/ec2nodeclass"
GIB = 2**30


def ago(**kwargs: float) -> datetime:
    """Return the time so long before `NOW`."""
    return NOW - timedelta(**kwargs)


def stamp(time: datetime | None) -> str | None:
    """Return a time in the API server's format."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ") if time is not None else None


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes`: maps are merged, all other values replaced."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def condition(
    type_: str, status: str = "True", *, since: datetime = NOW, reason: str = "", **extra: Any
) -> dict[str, Any]:
    """Return a status condition as JSON."""
    return {
        "type": type_,
        "status": status,
        "reason": reason or type_,
        "message": "",
        "lastTransitionTime": stamp(since),
        **extra,
    }


def a_body(api_version: str, kind: str, name: str, *, namespace: str = "", **fields: Any) -> dict[str, Any]:
    """Return an object as JSON; one of a namespace has its name."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def budget_body(name: str = "web", **spec: Any) -> dict[str, Any]:
    """Return a PodDisruptionBudget of the pods with the label app=web as JSON; it allows no disruption unless `spec` says so."""
    spec = {"selector": {"matchLabels": {"app": "web"}}, **(spec or {"maxUnavailable": 0})}
    return a_body("policy/v1", "PodDisruptionBudget", name, namespace="default", spec=spec)


# -- NodePool, NodeClass, instance types ----------------------------------------------------------------------------


def pool_body(name: str = POOL, **changes: Any) -> dict[str, Any]:
    """Return a NodePool that allows every instance type of its NodeClass, as JSON."""
    base = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {
            "template": {"spec": {"nodeClassRef": dict(CLASS_REF), "requirements": []}},
            "disruption": {"consolidateAfter": "30s"},
        },
    }
    return merge(base, changes)


def a_pool(name: str = POOL, **changes: Any) -> NodePool:
    """Return `pool_body` as its model, with a UID and a generation."""
    stored = {
        "metadata": {
            "uid": f"uid-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": stamp(ago(days=1)),
        }
    }
    return parse(NodePool, merge(pool_body(name, **stored), changes))


def overlay_body(name: str, **spec: Any) -> dict[str, Any]:
    """Return a NodeOverlay for all offerings, or for those that meet `requirements`, as JSON."""
    base = {"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": name}}
    return {**base, "spec": {"requirements": [], **spec}}


def an_overlay(name: str, **spec: Any) -> NodeOverlay:
    """Return `overlay_body` as its model."""
    stored = {"uid": f"uid-{name}", "generation": 1, "creationTimestamp": stamp(ago(days=1)), "resourceVersion": "3"}
    return parse(NodeOverlay, merge(overlay_body(name, **spec), {"metadata": stored}))


def buffer_body(name: str, **spec: Any) -> dict[str, Any]:
    """Return a CapacityBuffer as JSON."""
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": metadata, "spec": spec}


def node_class_body(name: str = CLASS, **changes: Any) -> dict[str, Any]:
    """Return a valid EC2NodeClass as JSON."""
    base = {
        "apiVersion": "karpenter.k8s.aws/v1",
        "kind": "EC2NodeClass",
        "metadata": {"name": name},
        "spec": {
            "role": "node",
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "subnetSelectorTerms": [{"tags": {"karpenter.sh/discovery": CLUSTER}}],
            "securityGroupSelectorTerms": [{"tags": {"karpenter.sh/discovery": CLUSTER}}],
        },
    }
    return merge(base, changes)


def a_node_class(name: str = CLASS, **changes: Any) -> NodeClassState:
    """Return a NodeClass that is Ready, as its model."""
    fields = {
        "name": name,
        "uid": f"uid-{name}",
        "kind": "EC2NodeClass",
        "group": "karpenter.k8s.aws",
        "generation": 1,
        "ready": True,
        "observed_generation": 1,
        "reason": "Ready",
        "raw": node_class_body(name),
    }
    return NodeClassState(**{**fields, **changes})


def an_instance_type(
    name: str, *, cpu: int, memory_gib: int, price: float, zones: tuple[str, ...] = ("a",), spot: float | None = None
) -> InstanceType:
    """Return an instance type with an on-demand offering in each zone, and a Spot offering at the price `spot` if given."""
    prices = {labels.ON_DEMAND: price} | ({labels.SPOT: spot} if spot is not None else {})
    offerings = tuple(
        Offering(zone=z, capacity_type=c, price=p, requirements=label_requirements(zone=z, capacity_type=c))
        for z in zones
        for c, p in prices.items()
    )
    values = {
        labels.INSTANCE_TYPE: (name,),
        labels.ARCH: ("amd64",),
        labels.OS: ("linux",),
        labels.ZONE: zones,
        labels.CAPACITY_TYPE: tuple(prices),
    }
    return InstanceType(
        name=name,
        requirements=tuple(NodeSelectorRequirement(key=k, operator="In", values=v) for k, v in values.items()),
        offerings=offerings,
        capacity={"cpu": cpu * 1000, "memory": memory_gib * GIB, "pods": 110, "ephemeral-storage": 20 * GIB},
        overhead={"cpu": 80, "memory": GIB // 2},
    )


def with_reservation(instance_type: InstanceType, name: str, *, price: float) -> InstanceType:
    """Return the type with a reserved offering for one instance in zone a."""
    values = {labels.ZONE: "a", labels.CAPACITY_TYPE: labels.RESERVED, labels.RESERVATION_ID: name}
    reserved = Offering(
        zone="a",
        capacity_type=labels.RESERVED,
        price=price,
        requirements=tuple(NodeSelectorRequirement(key=k, operator="In", values=(v,)) for k, v in values.items()),
        reservation_id=name,
        reservation_capacity=1,
    )
    wide = NodeSelectorRequirement(key=labels.CAPACITY_TYPE, operator="In", values=(labels.ON_DEMAND, labels.RESERVED))
    own = tuple(r for r in instance_type.requirements if r.key != labels.CAPACITY_TYPE)
    return replace(instance_type, offerings=(*instance_type.offerings, reserved), requirements=(*own, wide))


SMALL = an_instance_type("m.small", cpu=2, memory_gib=8, price=0.10)
MEDIUM = an_instance_type("m.medium", cpu=4, memory_gib=16, price=0.19)
LARGE = an_instance_type("m.large", cpu=8, memory_gib=32, price=0.37)
TYPES = (LARGE, MEDIUM, SMALL)


# -- pods, nodes, claims --------------------------------------------------------------------------------------------


def pod_body(name: str, *, cpu: str = "1", memory: str = "1Gi", node: str = "", **changes: Any) -> dict[str, Any]:
    """Return a pod as JSON: unschedulable, or running on `node`."""
    container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = (
        {"phase": "Running", "startTime": stamp(ago(hours=1))}
        if node
        else {"phase": "Pending", "conditions": [waiting]}
    )
    base = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": [container], **({"nodeName": node} if node else {})},
        "status": status,
    }
    return merge(base, changes)


def a_pod(name: str, **kwargs: Any) -> Pod:
    """Return `pod_body` as a Struct, with a UID."""
    body = pod_body(name, **kwargs)
    return msgspec.convert(merge({"metadata": {"uid": f"uid-{name}"}}, body), Pod)


def a_resize(cpu: str, *, pending: str = "") -> dict[str, Any]:
    """Return the `status` argument of `a_pod` whose container has other CPU than it requests; `pending` is the reason."""
    amounts = {"cpu": cpu, "memory": "1Gi"}
    status = {"name": "c", "allocatedResources": amounts, "resources": {"requests": amounts}}
    kinds = [condition("PodScheduled"), *([condition("PodResizePending", reason=pending)] if pending else [])]
    return {"containerStatuses": [status], "conditions": kinds}


def claim_body(name: str = "default-1", *, provider_id: str = "", **changes: Any) -> dict[str, Any]:
    """Return a NodeClaim of the NodePool, with the termination finalizer, as JSON."""
    base = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {
            "name": name,
            "labels": {labels.NODEPOOL: POOL, CLASS_LABEL: CLASS},
            "finalizers": [labels.TERMINATION_FINALIZER],
        },
        "spec": {
            "nodeClassRef": dict(CLASS_REF),
            "requirements": [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["m.medium"]}],
            "resources": {"requests": {"cpu": "3", "pods": "3"}},
            "expireAfter": "720h",
        },
    }
    if provider_id:
        base["status"] = {"providerID": provider_id, "capacity": dict(CAPACITY), "allocatable": dict(CAPACITY)}
    return merge(base, changes)


CAPACITY = {"cpu": "4", "memory": "16Gi", "pods": "110", "ephemeral-storage": "20Gi"}


def a_claim(
    name: str = "default-1",
    *,
    true: tuple[str, ...] = (),
    age: timedelta = timedelta(minutes=1),
    deleting: datetime | None = None,
    **changes: Any,
) -> NodeClaim:
    """Return `claim_body` as a Struct, created `age` ago; the conditions `true` are True since then."""
    created = NOW - age
    stored = {
        "metadata": {
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "generation": 1,
            "creationTimestamp": stamp(created),
            "deletionTimestamp": stamp(deleting),
        },
        "status": {"conditions": [condition(type_, since=created, observedGeneration=1) for type_ in true]},
    }
    body = merge(claim_body(name, **{k: changes.pop(k) for k in ("provider_id",) if k in changes}), stored)
    return msgspec.convert(merge(body, changes), NodeClaim)


def a_launched_claim(name: str = "default-1", **kwargs: Any) -> NodeClaim:
    """Return a NodeClaim with an instance, `aws:///a/i-<name>`, whose node has not joined."""
    return a_claim(name, **{"provider_id": provider_id_of(name), "true": ("Launched",), **kwargs})


def a_running_claim(name: str = "default-1", **kwargs: Any) -> NodeClaim:
    """Return a NodeClaim whose node is initialized."""
    done = {"true": ("Launched", "Registered", "Initialized"), "status": {"nodeName": f"node-{name}"}}
    return a_launched_claim(name, **{**done, **kwargs})


def provider_id_of(claim: str) -> str:
    """Return the provider id that builders give a NodeClaim's instance."""
    return f"aws:///a/i-{claim}"


def a_backoff(
    scope: FaultScope = FaultScope.NODE_CLASS, *, until: datetime = NOW, name: str = "default"
) -> LaunchBackoff:
    """Return the back-off after one failed launch, as a snapshot at `NOW` has it."""
    at_fault = "" if scope is FaultScope.ACCOUNT else name
    fault = LaunchFault(scope=scope, name=at_fault, reason="AMINotFound", message="gone", remedy="Correct it")
    return LaunchBackoff(fault=fault, failures=1, until=until, is_over=until <= NOW, node_class=CLASS)


def an_instance(claim: str = "default-1", *, age: timedelta = timedelta(minutes=5), **changes: Any) -> Instance:
    """Return the instance of a NodeClaim, as the cloud provider lists it."""
    fields = {
        "provider_id": provider_id_of(claim),
        "instance_type": "m.medium",
        "zone": "a",
        "capacity_type": labels.ON_DEMAND,
        "state": "running",
        "launched_at": NOW - age,
        "tags": {labels.NODECLAIM_TAG: claim, labels.NODECLAIM_UID_TAG: f"uid-{claim}"},
    }
    return Instance(**{**fields, **changes})


def a_node(
    claim: str = "default-1",
    *,
    ready: bool = True,
    deleting: datetime | None = None,
    registered: bool = True,
    **changes: Any,
) -> Node:
    """Return the node of a NodeClaim, `node-<claim>`: registered, or with `registered` False as the kubelet created it."""
    marks = {labels.REGISTERED: "true", labels.INITIALIZED: "true", labels.NODEPOOL: POOL, CLASS_LABEL: CLASS}
    taint = {"key": labels.UNREGISTERED_TAINT, "effect": "NoExecute"}
    base = {
        "metadata": {
            "name": f"node-{claim}",
            "uid": f"uid-node-{claim}",
            "resourceVersion": "9",
            "creationTimestamp": stamp(ago(minutes=1)),
            "deletionTimestamp": stamp(deleting),
            "labels": {labels.HOSTNAME: f"node-{claim}", labels.ZONE: "a", **(marks if registered else {})},
            "finalizers": [labels.TERMINATION_FINALIZER] if registered else [],
        },
        "spec": {"providerID": provider_id_of(claim), "taints": [] if registered else [taint]},
        "status": {
            "capacity": dict(CAPACITY),
            "allocatable": dict(CAPACITY),
            "conditions": [condition("Ready", "True" if ready else "False")],
        },
    }
    return msgspec.convert(merge(base, changes), Node)


def a_daemon_set(name: str, *, cpu: str = "100m", memory: str = "128Mi", **spec: Any) -> DaemonSet:
    """Return a DaemonSet that runs on every node, unless the changes to its pod's spec restrict it."""
    spec = {**pod_body(name, cpu=cpu, memory=memory)["spec"], "tolerations": [{"operator": "Exists"}], **spec}
    body = {
        "metadata": {"name": name, "namespace": "kube-system", "uid": f"uid-{name}"},
        "spec": {"template": {"metadata": {}, "spec": spec}},
    }
    return msgspec.convert(body, DaemonSet)


# -- storage --------------------------------------------------------------------------------------------------------

EBS = "ebs.csi.aws.com"


def a_volume_claim(
    name: str, *, volume: str = "", storage_class: str | None = "gp3", **changes: Any
) -> PersistentVolumeClaim:
    """Return a PersistentVolumeClaim that waits for its first consumer, or is bound to `volume`."""
    bound = {"pv.kubernetes.io/bind-completed": "yes"} if volume else {}
    base = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": bound},
        "spec": {"volumeName": volume, "storageClassName": storage_class},
        "status": {"phase": "Bound" if volume else "Pending"},
    }
    return msgspec.convert(merge(base, changes), PersistentVolumeClaim)


def a_volume(name: str, *terms: dict[str, tuple[str, ...]], **changes: Any) -> PersistentVolume:
    """Return an EBS volume with node affinity for nodes that meet one of the terms, each a map from label to values."""
    selector = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": values} for key, values in term.items()]}
        for term in terms
    ]
    reach = {"nodeAffinity": {"required": {"nodeSelectorTerms": selector}}} if terms else {}
    base = {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {"csi": {"driver": EBS}, **reach}}
    return msgspec.convert(merge(base, changes), PersistentVolume)


def an_attachment(volume: str, node: str) -> VolumeAttachment:
    """Return the attachment of a PersistentVolume to a node; with an empty name, of an inline volume."""
    source = {"persistentVolumeName": volume} if volume else {}
    spec = {"attacher": EBS, "nodeName": node, "source": source}
    return msgspec.convert({"metadata": {"name": f"csi-{volume}-{node}"}, "spec": spec}, VolumeAttachment)


def a_storage_class(
    name: str = "gp3", *, mode: str = "WaitForFirstConsumer", zones: tuple[str, ...] = (), **changes: Any
) -> StorageClass:
    """Return an EBS StorageClass, limited to `zones` if given."""
    label = {"matchLabelExpressions": [{"key": "topology.ebs.csi.aws.com/zone", "values": zones}]}
    base = {
        "metadata": {"name": name},
        "provisioner": EBS,
        "volumeBindingMode": mode,
        "allowedTopologies": [label] if zones else [],
    }
    return msgspec.convert(merge(base, changes), StorageClass)


def a_csi_node(name: str, **limits: int | None) -> CSINode:
    """Return the CSINode of a node with the volume limit of each driver; underscores stand for the driver name's dots."""
    drivers = [
        {"name": driver.replace("_", "."), "allocatable": {"count": count} if count is not None else {}}
        for driver, count in limits.items()
    ]
    return msgspec.convert({"metadata": {"name": name}, "spec": {"drivers": drivers}}, CSINode)


def claims_as_volumes(*names: str) -> dict[str, Any]:
    """Return the `volumes` argument of `a_pod` for these PersistentVolumeClaims."""
    return {"spec": {"volumes": [{"name": n, "persistentVolumeClaim": {"claimName": n}} for n in names]}}


def a_snapshot(**kwargs: Any) -> Snapshot:
    """Return a snapshot at `NOW` with one NodePool and its NodeClass."""
    defaults = {
        "cluster": CLUSTER,
        "now": NOW,
        "node_class_label": CLASS_LABEL,
        "node_pools": (a_pool(),),
        "node_classes": (a_node_class(),),
    }
    return Snapshot(**{**defaults, **kwargs})
