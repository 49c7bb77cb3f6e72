"""Nodes in every stage of life, with pods on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.differential.draw.pods import Workload
from tests.differential.draw.storage import attach_limit
from tests.differential.draw.types import value
from tests.differential.draw.words import (
    CAPACITY_TYPE,
    EARLIER,
    GPU,
    HOSTNAME,
    INSTANCE_TYPE,
    NODE_CLASS,
    NODE_CLASS_LABEL,
    NODEPOOL,
    RACK,
    TEAM,
    ZONE,
    Draw,
    JSONDict,
    Mix,
    an_object,
    chance,
    pick,
)

STAGES = ("initialized", "initialized", "initialized", "registered", "launched", "deleting", "cordoned", "unmanaged")
CONDITIONS = ("Launched", "Registered", "Initialized")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A node to be: what it is made of, and how far it got."""

    index: int
    pool: JSONDict
    instance_type: JSONDict
    labels: dict[str, str]
    stage: str

    @property
    def node(self) -> str:
        """Its name."""
        return f"n{self.index}"

    @property
    def provider_id(self) -> str:
        """Its instance."""
        return f"aws:///{self.labels[ZONE]}/i-{self.index}"

    @property
    def template(self) -> JSONDict:
        """The spec of its NodePool's template."""
        found: JSONDict = self.pool["spec"]["template"]["spec"]
        return found

    @property
    def allocatable(self) -> dict[str, str]:
        """What pods can have of it."""
        own = self.instance_type["capacity"]
        memory_mib = int(own["memory"].removesuffix("Gi")) * 1024 - 300
        return {**own, "cpu": f"{int(own['cpu']) * 1000 - 80}m", "memory": f"{memory_mib}Mi"}


@st.composite
def nodes(
    draw: Draw,
    mix: Mix,
    pools: Sequence[JSONDict],
    types: Sequence[JSONDict],
    workloads: Sequence[Workload],
    daemons: Sequence[JSONDict],
) -> list[JSONDict]:
    """A few nodes with their claims, pods (of daemons too, here and there), and limits for volumes."""
    found: list[JSONDict] = []
    for index in range(draw(st.integers(1, 6))):
        place = draw(_places(index, pools, types))
        if place.stage != "unmanaged":
            found.append(_claim(place))
        if place.stage == "launched":
            continue
        found.append(_node(place, reports_gpus=not chance(draw, 30)))
        found += draw(_pods_on(place, workloads, mix))
        found += [_daemon_pod(place, daemon) for daemon in daemons if not chance(draw, 50)]
        if mix.volumes and chance(draw, 60):
            found.append(attach_limit(place.node, draw(st.integers(1, 4))))
    return found


@st.composite
def _places(draw: Draw, index: int, pools: Sequence[JSONDict], types: Sequence[JSONDict]) -> Place:
    pool, instance_type = pick(draw, pools), pick(draw, types)
    offering = pick(draw, [o for o in instance_type["offerings"] if value(o, CAPACITY_TYPE) != "reserved"])
    own = {r["key"]: r["values"][0] for r in instance_type["requirements"] if len(r["values"]) == 1}
    open_labels = {}
    for requirement in pool["spec"]["template"]["spec"]["requirements"]:
        if requirement["key"] in {TEAM, RACK}:
            open_labels[requirement["key"]] = pick(draw, requirement.get("values") or ["red", "green"])
    labels = {
        **pool["spec"]["template"]["metadata"]["labels"],
        **own,
        **open_labels,
        NODEPOOL: pool["metadata"]["name"],
        NODE_CLASS_LABEL: NODE_CLASS["name"],
        INSTANCE_TYPE: instance_type["name"],
        ZONE: value(offering, ZONE),
        CAPACITY_TYPE: value(offering, CAPACITY_TYPE),
    }
    return Place(index=index, pool=pool, instance_type=instance_type, labels=labels, stage=pick(draw, STAGES))


def _claim(place: Place) -> JSONDict:
    reached = {"launched": 1, "registered": 2}.get(place.stage, 3)
    true = {"status": "True", "reason": "Done", "lastTransitionTime": EARLIER}
    leaving = {"deletionTimestamp": "2026-01-05T11:59:00Z", "finalizers": ["karpenter.sh/termination"]}
    return an_object(
        "NodeClaim",
        f"c{place.index}",
        "karpenter.sh/v1",
        metadata={"labels": place.labels, **(leaving if place.stage == "deleting" else {})},
        spec={
            "nodeClassRef": NODE_CLASS,
            "taints": place.template.get("taints", []),
            "startupTaints": place.template.get("startupTaints", []),
            "requirements": [{"key": INSTANCE_TYPE, "operator": "In", "values": [place.instance_type["name"]]}],
            "resources": {"requests": {"cpu": "1"}},
            "expireAfter": "Never",
        },
        status={
            "providerID": place.provider_id,
            "capacity": place.instance_type["capacity"],
            "allocatable": place.allocatable,
            "conditions": [{"type": kind, **true} for kind in CONDITIONS[:reached]],
            "nodeName": "" if place.stage == "launched" else place.node,
        },
    )


def _node(place: Place, *, reports_gpus: bool) -> JSONDict:
    """The node itself. While it starts it may not report its devices yet."""
    marks = {"karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
    labels = {**place.labels, HOSTNAME: place.node, **marks}
    taints = list(place.template.get("taints", []))
    starting = place.stage == "registered"
    if starting:
        del labels["karpenter.sh/initialized"]
        taints += [
            *place.template.get("startupTaints", []),
            {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
        ]
    if place.stage == "unmanaged":
        labels = {k: v for k, v in labels.items() if k not in {NODEPOOL, NODE_CLASS_LABEL, *marks}}
    if place.stage == "cordoned":
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    hidden = {GPU} if starting and not reports_gpus else set()
    return an_object(
        "Node",
        place.node,
        metadata={"labels": labels},
        spec={
            "providerID": place.provider_id,
            "taints": taints,
            **({"unschedulable": True} if place.stage == "cordoned" else {}),
        },
        status={
            "capacity": {k: v for k, v in place.instance_type["capacity"].items() if k not in hidden},
            "allocatable": {k: v for k, v in place.allocatable.items() if k not in hidden},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    )


@st.composite
def _pods_on(draw: Draw, place: Place, workloads: Sequence[Workload], mix: Mix) -> list[JSONDict]:
    """Running pods of the workloads, as many as fit; where they are may well break their own rules by now."""
    left, found = int(place.allocatable["cpu"].removesuffix("m")), []
    for index in range(draw(st.integers(0, 4))):
        cpu = pick(draw, (100, 500, 1000))
        if cpu > left:
            break
        left -= cpu
        pod = pick(draw, workloads).pod(f"r{place.index}-{index}", node=place.node, cpu=f"{cpu}m")
        found.append(draw(_later(pod)) if mix.oddities else pod)
    return found


@st.composite
def _later(draw: Draw, pod: JSONDict) -> JSONDict:
    """The same pod when it is done, or on its way out, or not to be disturbed."""
    state = pick(draw, ("running", "running", "done", "leaving", "undisturbed"))
    metadata = dict(pod["metadata"])
    if state == "done":
        return {**pod, "status": {**pod["status"], "phase": "Succeeded"}}
    if state == "leaving":
        metadata |= {"deletionTimestamp": "2026-01-05T11:59:30Z", "finalizers": ["example.com/slow"]}
    if state == "undisturbed":
        metadata["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    return {**pod, "metadata": metadata}


def _daemon_pod(place: Place, daemon: JSONDict) -> JSONDict:
    """The daemon set's pod on a node."""
    name, template = daemon["metadata"]["name"], daemon["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "controller": True}
    uid = f"DaemonSet-{daemon['metadata']['namespace']}-{name}"
    return an_object(
        "Pod",
        f"{name}-{place.index}",
        namespace=daemon["metadata"]["namespace"],
        metadata={**template["metadata"], "ownerReferences": [{**owner, "uid": uid}]},
        spec={**template["spec"], "nodeName": place.node},
        status={"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    )
