"""NodePools: one to three, some with requirements, labels, taints, limits or weights."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.differential.draw.words import (
    ARCH,
    CAPACITY_TYPE,
    CPU,
    FAMILY,
    GPU,
    INSTANCE_TYPE,
    NODE_CLASS,
    RACK,
    TEAM,
    TIER,
    ZONE,
    Draw,
    Features,
    JSONDict,
    an_object,
    chance,
    pick,
    pick_some,
    require,
)

TAINTS = (
    {"key": "dedicated", "value": "x", "effect": "NoSchedule"},
    {"key": "gpu", "value": "x", "effect": "NoExecute"},
    {"key": "dedicated", "value": "x", "effect": "PreferNoSchedule"},
    {"key": "gpu", "value": "x", "effect": "PreferNoSchedule"},
)


@st.composite
def node_pools(draw: Draw, features: Features) -> list[JSONDict]:
    """Draw NodePools; the first, `p0`, is never static."""
    return [draw(_node_pools(f"p{index}", features)) for index in range(pick(draw, (1, 1, 2, 3)))]


@st.composite
def _node_pools(draw: Draw, name: str, features: Features) -> JSONDict:
    template: JSONDict = {
        "nodeClassRef": NODE_CLASS,
        "requirements": draw(_requirements(features)),
        "expireAfter": "720h",
    }
    if features.taints and chance(draw, 50):
        template["taints"] = [pick(draw, TAINTS)]
    if features.taints and chance(draw, 15):
        template["startupTaints"] = [{"key": "starting", "effect": "NoSchedule"}]
    labels = {TIER: pick(draw, ("gold", "silver"))} if features.node_selectors and chance(draw, 40) else {}
    spec: JSONDict = {
        "template": {"metadata": {"labels": labels}, "spec": template},
        "disruption": {"consolidateAfter": "30s", "consolidationPolicy": "WhenEmptyOrUnderutilized"},
    }
    if features.pool_limits and chance(draw, 60):
        spec["limits"] = draw(_limits())
    if features.pool_weights and chance(draw, 60):
        spec["weight"] = pick(draw, (1, 5, 10))
    if features.edge_cases and name != "p0" and chance(draw, 20):
        spec["replicas"] = 2  # static: launches no nodes for pending pods
        spec.pop("weight", None)
        spec.pop("limits", None)
    return an_object("NodePool", name, "karpenter.sh/v1", spec=spec)


@st.composite
def _requirements(draw: Draw, features: Features) -> list[JSONDict]:
    found = []
    if chance(draw, 35):
        found.append(require(CAPACITY_TYPE, "In", *pick_some(draw, ("spot", "on-demand"))))
    elif features.reservations:
        found.append(require(CAPACITY_TYPE, "In", "on-demand", "reserved", "spot"))
    if chance(draw, 20):
        found.append(require(ARCH, pick(draw, ("In", "NotIn")), pick(draw, ("amd64", "arm64"))))
    if chance(draw, 25):
        found.append(require(ZONE, pick(draw, ("In", "NotIn")), *pick_some(draw, ("a", "b", "c"))))
    if chance(draw, 20):
        found.append(require(CPU, pick(draw, ("Gt", "Lt", "Gte", "Lte")), pick(draw, ("1", "4", "8", "40"))))
    if chance(draw, 15):
        found.append(require(FAMILY, "NotIn", pick(draw, ("m5", "c6", "g5"))))
    if features.node_selectors and chance(draw, 40):
        found.append(require(TEAM, "In", *pick_some(draw, ("red", "blue"))))
    elif features.node_selectors and chance(draw, 15):
        found.append(require(TEAM, "Exists"))
    if features.topology_spread and chance(draw, 25):
        found.append(require(RACK, "In", *pick_some(draw, ("r1", "r2", "r3"))))
    if features.min_values and chance(draw, 60):
        key = pick(draw, (INSTANCE_TYPE, FAMILY, ZONE))
        found = [r for r in found if r["key"] != key]
        found.append({**require(key, "Exists"), "minValues": pick(draw, (2, 3, 5))})
    return found


@st.composite
def _limits(draw: Draw) -> dict[str, str]:
    amounts = {
        "cpu": ("20", "60", "200", "8", "2"),
        "memory": ("128Gi", "500Gi", "32Gi", "8Gi"),
        "nodes": ("5", "2", "1"),
        GPU: ("4", "1", "0"),
    }
    key = pick(draw, ("cpu", "cpu", "memory", "nodes", GPU))
    return {key: pick(draw, amounts[key])}
