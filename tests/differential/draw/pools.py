"""NodePools: one to three, with requirements, labels, taints, limits and weights now and then."""

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
    JSONDict,
    Mix,
    an_object,
    chance,
    pick,
    require,
    some,
)

TAINTS = (
    {"key": "dedicated", "value": "x", "effect": "NoSchedule"},
    {"key": "gpu", "value": "x", "effect": "NoExecute"},
    {"key": "dedicated", "value": "x", "effect": "PreferNoSchedule"},
    {"key": "gpu", "value": "x", "effect": "PreferNoSchedule"},
)


@st.composite
def node_pools(draw: Draw, mix: Mix) -> list[JSONDict]:
    """At least one that launches nodes."""
    return [draw(_node_pools(f"p{index}", mix)) for index in range(pick(draw, (1, 1, 2, 3)))]


@st.composite
def _node_pools(draw: Draw, name: str, mix: Mix) -> JSONDict:
    template: JSONDict = {"nodeClassRef": NODE_CLASS, "requirements": draw(_requirements(mix)), "expireAfter": "720h"}
    if mix.taints and chance(draw, 50):
        template["taints"] = [pick(draw, TAINTS)]
    if mix.taints and chance(draw, 15):
        template["startupTaints"] = [{"key": "starting", "effect": "NoSchedule"}]
    labels = {TIER: pick(draw, ("gold", "silver"))} if mix.selectors and chance(draw, 40) else {}
    spec: JSONDict = {
        "template": {"metadata": {"labels": labels}, "spec": template},
        "disruption": {"consolidateAfter": "30s", "consolidationPolicy": "WhenEmptyOrUnderutilized"},
    }
    if mix.limits and chance(draw, 60):
        spec["limits"] = draw(_limits())
    if mix.weights and chance(draw, 60):
        spec["weight"] = pick(draw, (1, 5, 10))
    if mix.oddities and name != "p0" and chance(draw, 20):
        spec["replicas"] = 2  # static: launches nothing for pods, but its nodes take them
        spec.pop("weight", None)
        spec.pop("limits", None)
    return an_object("NodePool", name, "karpenter.sh/v1", spec=spec)


@st.composite
def _requirements(draw: Draw, mix: Mix) -> list[JSONDict]:
    found = []
    if chance(draw, 35):
        found.append(require(CAPACITY_TYPE, "In", *some(draw, ("spot", "on-demand"))))
    elif mix.reservations:
        found.append(require(CAPACITY_TYPE, "In", "on-demand", "reserved", "spot"))
    if chance(draw, 20):
        found.append(require(ARCH, pick(draw, ("In", "NotIn")), pick(draw, ("amd64", "arm64"))))
    if chance(draw, 25):
        found.append(require(ZONE, pick(draw, ("In", "NotIn")), *some(draw, ("a", "b", "c"))))
    if chance(draw, 20):
        found.append(require(CPU, pick(draw, ("Gt", "Lt", "Gte", "Lte")), pick(draw, ("1", "4", "8", "40"))))
    if chance(draw, 15):
        found.append(require(FAMILY, "NotIn", pick(draw, ("m5", "c6", "g5"))))
    if mix.selectors and chance(draw, 40):
        found.append(require(TEAM, "In", *some(draw, ("red", "blue"))))
    elif mix.selectors and chance(draw, 15):
        found.append(require(TEAM, "Exists"))
    if mix.spread and chance(draw, 25):
        found.append(require(RACK, "In", *some(draw, ("r1", "r2", "r3"))))
    if mix.min_values and chance(draw, 60):
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
