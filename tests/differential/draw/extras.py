"""Objects that change what others mean: daemon sets, overlays of instance types, buffers, disruption budgets."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.differential.draw.pods import TERM, Workload, expressions
from tests.differential.draw.words import (
    ARCH,
    CAPACITY_TYPE,
    FAMILY,
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

EXTENDED = "example.com/licence"


@st.composite
def daemon_sets(draw: Draw, name: str, types: Sequence[JSONDict]) -> JSONDict:
    """One that runs on all nodes, or on some."""
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
        terms = [{"matchExpressions": [draw(expressions(types))]}]
        spec["affinity"] = {"nodeAffinity": {TERM: {"nodeSelectorTerms": terms}}}
    labels = {"daemon": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    body = {"selector": {"matchLabels": labels}, "template": template}
    return an_object("DaemonSet", name, "apps/v1", namespace="kube-system", spec=body)


@st.composite
def node_overlays(draw: Draw, types: Sequence[JSONDict]) -> list[JSONDict]:
    """Up to three that set or change prices, or add a resource; they may contradict each other."""
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
                {"capacity": {EXTENDED: "2"}},
            ),
        )
        spec = {"requirements": [require(key, pick(draw, ("In", "NotIn")), values[key])], **change}
        if chance(draw, 60):
            spec["weight"] = pick(draw, (1, 10))
        found.append(an_object("NodeOverlay", f"o{index}", "karpenter.sh/v1alpha1", spec=spec))
    return found


@st.composite
def buffers(draw: Draw, workloads: Sequence[Workload]) -> list[JSONDict]:
    """Capacity buffers: capacity kept free for more pods of a workload."""
    replicas, like = draw(st.integers(1, 4)), pick(draw, workloads)
    template = {"metadata": {"labels": like.labels}, "spec": like.spec}
    ready = {"type": "ReadyForProvisioning", "status": "True", "reason": "Resolved", "message": ""}
    buffer = an_object(
        "CapacityBuffer",
        "spare",
        "autoscaling.x-k8s.io/v1beta1",
        namespace=like.namespace,
        spec={"podTemplateRef": {"name": "spare"}, "replicas": replicas},
        status={"replicas": replicas, "conditions": [{**ready, "lastTransitionTime": "2026-01-05T11:00:00Z"}]},
    )
    return [an_object("PodTemplate", "spare", namespace=like.namespace, template=template), buffer]


@st.composite
def disruption_budgets(draw: Draw, workloads: Sequence[Workload]) -> list[JSONDict]:
    """One or two for pods of a workload; some allow nothing."""
    amounts: tuple[JSONDict, ...] = (
        {"maxUnavailable": 0},
        {"maxUnavailable": 1},
        {"minAvailable": "100%"},
        {"minAvailable": 1},
    )
    found = []
    for index in range(pick(draw, (1, 2))):
        like = pick(draw, workloads)
        spec = {"selector": {"matchLabels": {"app": like.labels["app"]}}, **pick(draw, amounts)}
        found.append(an_object("PodDisruptionBudget", f"b{index}", "policy/v1", namespace=like.namespace, spec=spec))
    return found
