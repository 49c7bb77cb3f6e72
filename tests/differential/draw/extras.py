"""DaemonSets, NodeOverlays, CapacityBuffers and PodDisruptionBudgets."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.differential.draw.pods import REQUIRED, Workload, node_selector_requirements
from tests.differential.draw.words import (
    ARCH,
    CAPACITY_TYPE,
    FAMILY,
    HOSTNAME,
    INSTANCE_TYPE,
    NODEPOOL,
    ZONE,
    Draw,
    JSONDict,
    an_object,
    chance,
    pick,
    require,
)

EXTENDED_RESOURCE = "example.com/licence"


@st.composite
def daemon_sets(draw: Draw, name: str, types: Sequence[JSONDict]) -> JSONDict:
    """Draw a DaemonSet for all nodes, or for some."""
    requests = {"cpu": pick(draw, ("50m", "200m", "500m")), "memory": pick(draw, ("64Mi", "256Mi"))}
    container: JSONDict = {"name": "c", "image": "i", "resources": {"requests": requests}}
    if chance(draw, 10):
        container["ports"] = [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]
    spec: JSONDict = {"containers": [container]}
    if chance(draw, 60):
        spec["tolerations"] = [{"operator": "Exists"}]
    if chance(draw, 30):
        spec["nodeSelector"] = pick(draw, ({CAPACITY_TYPE: "spot"}, {ARCH: "amd64"}))
    elif chance(draw, 20):
        terms = [{"matchExpressions": [draw(node_selector_requirements(types))]}]
        spec["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    if chance(draw, 8):
        apart = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "app0"}}, "namespaces": ["default"]}
        spec["affinity"] = {**spec.get("affinity", {}), "podAntiAffinity": {REQUIRED: [apart]}}
    labels = {"daemon": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    body = {"selector": {"matchLabels": labels}, "template": template}
    return an_object("DaemonSet", name, "apps/v1", namespace="kube-system", spec=body)


@st.composite
def node_overlays(draw: Draw, types: Sequence[JSONDict]) -> list[JSONDict]:
    """Draw up to three NodeOverlays that set or adjust prices, or add a resource; they may conflict."""
    found = []
    for index in range(pick(draw, (1, 2, 3))):
        key = pick(draw, (FAMILY, INSTANCE_TYPE, CAPACITY_TYPE, ZONE, NODEPOOL))
        values = {
            FAMILY: "m5",
            INSTANCE_TYPE: str(types[0]["name"]),
            CAPACITY_TYPE: "spot",
            ZONE: "a",
            NODEPOOL: "p0",
        }
        change: JSONDict = pick(
            draw,
            (
                {"price": "0.011"},
                {"priceAdjustment": "-30%"},
                {"priceAdjustment": "+0.2"},
                {"priceAdjustment": "+50%"},
                {"capacity": {EXTENDED_RESOURCE: "2"}},
            ),
        )
        spec = {"requirements": [require(key, pick(draw, ("In", "NotIn")), values[key])], **change}
        if chance(draw, 60):
            spec["weight"] = pick(draw, (1, 10))
        found.append(an_object("NodeOverlay", f"o{index}", "karpenter.sh/v1alpha1", spec=spec))
    return found


@st.composite
def capacity_buffers(draw: Draw, workloads: Sequence[Workload]) -> list[JSONDict]:
    """Draw a CapacityBuffer for pods of a workload, with its PodTemplate."""
    replicas, workload = draw(st.integers(1, 4)), pick(draw, workloads)
    template = {"metadata": {"labels": workload.labels}, "spec": workload.spec}
    ready = {"type": "ReadyForProvisioning", "status": "True", "reason": "Resolved", "message": ""}
    buffer = an_object(
        "CapacityBuffer",
        "spare",
        "autoscaling.x-k8s.io/v1beta1",
        namespace=workload.namespace,
        spec={"podTemplateRef": {"name": "spare"}, "replicas": replicas},
        status={"replicas": replicas, "conditions": [{**ready, "lastTransitionTime": "2026-01-05T11:00:00Z"}]},
    )
    return [an_object("PodTemplate", "spare", namespace=workload.namespace, template=template), buffer]


@st.composite
def disruption_budgets(draw: Draw, workloads: Sequence[Workload]) -> list[JSONDict]:
    """Draw one or two PodDisruptionBudgets; some allow no disruption."""
    amounts: tuple[JSONDict, ...] = (
        {"maxUnavailable": 0},
        {"maxUnavailable": 1},
        {"minAvailable": "100%"},
        {"minAvailable": 1},
    )
    found = []
    for index in range(pick(draw, (1, 2))):
        workload = pick(draw, workloads)
        spec = {"selector": {"matchLabels": {"app": workload.labels["app"]}}, **pick(draw, amounts)}
        found.append(
            an_object("PodDisruptionBudget", f"b{index}", "policy/v1", namespace=workload.namespace, spec=spec)
        )
    return found
