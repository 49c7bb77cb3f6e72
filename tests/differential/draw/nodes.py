"""Nodes in every lifecycle stage, with their NodeClaims and pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.differential.draw.pods import Workload
from tests.differential.draw.resizes import LEVELS, resized
from tests.differential.draw.resizes import STAGES as STAGES_OF_RESIZES
from tests.differential.draw.storage import csi_node
from tests.differential.draw.types import requirement_value
from tests.differential.draw.words import (
    CAPACITY_TYPE,
    GPU,
    HOSTNAME,
    INSTANCE_TYPE,
    NODE_CLASS,
    NODE_CLASS_LABEL,
    NODEPOOL,
    RACK,
    TEAM,
    TRANSITION_TIME,
    ZONE,
    Draw,
    Features,
    JSONDict,
    an_object,
    chance,
    pick,
)

STAGES = ("initialized", "initialized", "initialized", "registered", "launched", "deleting", "cordoned", "unmanaged")
CONDITIONS = ("Launched", "Registered", "Initialized")


@dataclass(frozen=True, kw_only=True)
class DrawnNode:
    """The values that a node shares with its NodeClaim, pods and CSINode."""

    index: int
    pool: JSONDict
    instance_type: JSONDict
    labels: dict[str, str]
    stage: str

    @property
    def name(self) -> str:
        """The name of the node."""
        return f"n{self.index}"

    @property
    def provider_id(self) -> str:
        """The provider ID of the node's instance."""
        return f"aws:///{self.labels[ZONE]}/i-{self.index}"

    @property
    def template(self) -> JSONDict:
        """The spec of its NodePool's template."""
        spec: JSONDict = self.pool["spec"]["template"]["spec"]
        return spec

    @property
    def allocatable(self) -> dict[str, str]:
        """The allocatable resources of the node."""
        capacity = self.instance_type["capacity"]
        memory_mib = int(capacity["memory"].removesuffix("Gi")) * 1024 - 300
        return {**capacity, "cpu": f"{int(capacity['cpu']) * 1000 - 80}m", "memory": f"{memory_mib}Mi"}


@st.composite
def nodes(
    draw: Draw,
    features: Features,
    pools: Sequence[JSONDict],
    types: Sequence[JSONDict],
    workloads: Sequence[Workload],
    daemons: Sequence[JSONDict],
) -> list[JSONDict]:
    """Draw up to six nodes with their NodeClaims, pods, some of the daemon pods, and CSINodes."""
    found: list[JSONDict] = []
    for index in range(draw(st.integers(1, 6))):
        node = draw(_drawn_nodes(index, pools, types))
        if node.stage != "unmanaged":
            found.append(_node_claim(node))
        if node.stage == "launched":
            continue
        found.append(_node_object(node, reports_gpus=not chance(draw, 30)))
        found += draw(_running_pods(node, workloads, features))
        of_daemons = [_daemon_pod(node, daemon) for daemon in daemons if not chance(draw, 50)]
        if features.resizes and of_daemons and chance(draw, 30):
            newest = {"creationTimestamp": f"2026-01-05T10:0{index}:00Z"}  # only then both take it for a new node's pod
            daemon_pod = {**of_daemons[0], "metadata": {**of_daemons[0]["metadata"], **newest}}
            of_daemons[0] = resized(daemon_pod, pick(draw, STAGES_OF_RESIZES), "container")
        found += of_daemons
        if features.volumes and chance(draw, 60):
            found.append(csi_node(node.name, draw(st.integers(1, 4))))
    return found


@st.composite
def _drawn_nodes(draw: Draw, index: int, pools: Sequence[JSONDict], types: Sequence[JSONDict]) -> DrawnNode:
    pool, instance_type = pick(draw, pools), pick(draw, types)
    offering = pick(draw, [o for o in instance_type["offerings"] if requirement_value(o, CAPACITY_TYPE) != "reserved"])
    type_labels = {r["key"]: r["values"][0] for r in instance_type["requirements"] if len(r["values"]) == 1}
    custom_labels = {}
    for requirement in pool["spec"]["template"]["spec"]["requirements"]:
        if requirement["key"] in {TEAM, RACK}:
            custom_labels[requirement["key"]] = pick(draw, requirement.get("values") or ["red", "green"])
    labels = {
        **pool["spec"]["template"]["metadata"]["labels"],
        **type_labels,
        **custom_labels,
        NODEPOOL: pool["metadata"]["name"],
        NODE_CLASS_LABEL: NODE_CLASS["name"],
        INSTANCE_TYPE: instance_type["name"],
        ZONE: requirement_value(offering, ZONE),
        CAPACITY_TYPE: requirement_value(offering, CAPACITY_TYPE),
    }
    return DrawnNode(index=index, pool=pool, instance_type=instance_type, labels=labels, stage=pick(draw, STAGES))


def _node_claim(node: DrawnNode) -> JSONDict:
    reached = {"launched": 1, "registered": 2}.get(node.stage, 3)
    condition = {"status": "True", "reason": "Done", "lastTransitionTime": TRANSITION_TIME}
    terminating = {"deletionTimestamp": "2026-01-05T11:59:00Z", "finalizers": ["karpenter.sh/termination"]}
    return an_object(
        "NodeClaim",
        f"c{node.index}",
        "karpenter.sh/v1",
        metadata={"labels": node.labels, **(terminating if node.stage == "deleting" else {})},
        spec={
            "nodeClassRef": NODE_CLASS,
            "taints": node.template.get("taints", []),
            "startupTaints": node.template.get("startupTaints", []),
            "requirements": [{"key": INSTANCE_TYPE, "operator": "In", "values": [node.instance_type["name"]]}],
            "resources": {"requests": {"cpu": "1"}},
            "expireAfter": "Never",
        },
        status={
            "providerID": node.provider_id,
            "capacity": node.instance_type["capacity"],
            "allocatable": node.allocatable,
            "conditions": [{"type": kind, **condition} for kind in CONDITIONS[:reached]],
            "nodeName": "" if node.stage == "launched" else node.name,
        },
    )


def _node_object(node: DrawnNode, *, reports_gpus: bool) -> JSONDict:
    """Return the Node; before initialization it may not report its GPUs yet."""
    stage_labels = {"karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
    labels = {**node.labels, HOSTNAME: node.name, **stage_labels}
    taints = list(node.template.get("taints", []))
    starting = node.stage == "registered"
    if starting:
        del labels["karpenter.sh/initialized"]
        taints += [
            *node.template.get("startupTaints", []),
            {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
        ]
    if node.stage == "unmanaged":
        labels = {k: v for k, v in labels.items() if k not in {NODEPOOL, NODE_CLASS_LABEL, *stage_labels}}
    if node.stage == "cordoned":
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    unreported = {GPU} if starting and not reports_gpus else set()
    return an_object(
        "Node",
        node.name,
        metadata={"labels": labels},
        spec={
            "providerID": node.provider_id,
            "taints": taints,
            **({"unschedulable": True} if node.stage == "cordoned" else {}),
        },
        status={
            "capacity": {k: v for k, v in node.instance_type["capacity"].items() if k not in unreported},
            "allocatable": {k: v for k, v in node.allocatable.items() if k not in unreported},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    )


@st.composite
def _running_pods(draw: Draw, node: DrawnNode, workloads: Sequence[Workload], features: Features) -> list[JSONDict]:
    """Draw running pods of the workloads, as many as fit; they may violate their constraints on this node."""
    free_cpu, found = int(node.allocatable["cpu"].removesuffix("m")), []
    for index in range(draw(st.integers(0, 4))):
        cpu = pick(draw, (100, 500, 1000))
        if cpu > free_cpu:
            break
        free_cpu -= cpu
        pod = pick(draw, workloads).pod(f"r{node.index}-{index}", node=node.name, cpu=f"{cpu}m")
        if features.resizes and chance(draw, 60):
            pod = resized(pod, pick(draw, STAGES_OF_RESIZES), pick(draw, LEVELS))
        found.append(draw(_pod_states(pod)) if features.edge_cases else pod)
    return found


@st.composite
def _pod_states(draw: Draw, pod: JSONDict) -> JSONDict:
    """Draw the pod as it is, completed, terminating, or with the do-not-disrupt annotation."""
    state = pick(draw, ("running", "running", "completed", "terminating", "do-not-disrupt"))
    metadata = dict(pod["metadata"])
    if state == "completed":
        return {**pod, "status": {**pod["status"], "phase": "Succeeded"}}
    if state == "terminating":
        metadata |= {"deletionTimestamp": "2026-01-05T11:59:30Z", "finalizers": ["example.com/slow"]}
    if state == "do-not-disrupt":
        metadata["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    return {**pod, "metadata": metadata}


def _daemon_pod(node: DrawnNode, daemon: JSONDict) -> JSONDict:
    """Return the DaemonSet's pod on a node."""
    name, template = daemon["metadata"]["name"], daemon["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "controller": True}
    uid = f"DaemonSet-{daemon['metadata']['namespace']}-{name}"
    return an_object(
        "Pod",
        f"{name}-{node.index}",
        namespace=daemon["metadata"]["namespace"],
        metadata={**template["metadata"], "ownerReferences": [{**owner, "uid": uid}]},
        spec={**template["spec"], "nodeName": node.name},
        status={"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    )
