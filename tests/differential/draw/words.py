"""The small vocabulary that drawn clusters are written in, so that their parts meet: labels, their values, draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import strategies as st

JSONDict = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]
T = TypeVar("T")

ZONE = "topology.kubernetes.io/zone"
HOSTNAME = "kubernetes.io/hostname"
ARCH = "kubernetes.io/arch"
OS = "kubernetes.io/os"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
NODEPOOL = "karpenter.sh/nodepool"
CPU = "karpenter.k8s.aws/instance-cpu"
FAMILY = "karpenter.k8s.aws/instance-family"
GENERATION = "karpenter.k8s.aws/instance-generation"
RESERVATION = "karpenter.k8s.aws/capacity-reservation-id"
TEAM, TIER, RACK = "team", "tier", "example.com/rack"
GPU = "nvidia.com/gpu"
DRIVER = "ebs.csi.aws.com"

VALUES: dict[str, tuple[str, ...]] = {
    ZONE: ("a", "b", "c"),
    CAPACITY_TYPE: ("spot", "on-demand"),
    ARCH: ("amd64", "arm64"),
    CPU: ("1", "2", "4", "8", "16"),
    FAMILY: ("m5", "c6", "r7"),
    GENERATION: ("5", "6", "7"),
    TEAM: ("red", "blue"),
    TIER: ("gold", "silver"),
    RACK: ("r1", "r2", "r3"),
    "example.com/absent": ("x",),
}
NODE_CLASS = {"group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default"}
NODE_CLASS_LABEL = "karpenter.test.sh/testnodeclass"
EARLIER = "2026-01-05T11:00:00Z"


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Which kinds of rules a cluster has at all: few at a time, so that they meet often and examples stay small."""

    selectors: bool
    node_affinity: bool
    preferences: bool
    taints: bool
    spread: bool
    affinity: bool
    anti_affinity: bool
    ports: bool
    volumes: bool
    gpus: bool
    namespaces: bool
    daemons: bool
    nodes: bool
    limits: bool
    weights: bool
    min_values: bool
    reservations: bool
    out_of_stock: bool
    oddities: bool
    overlays: bool
    buffers: bool
    budgets: bool


RARE = {
    "ports": 15,
    "volumes": 15,
    "gpus": 12,
    "namespaces": 10,
    "min_values": 15,
    "reservations": 10,
    "oddities": 15,
    "overlays": 8,
    "buffers": 6,
    "budgets": 10,
}


@st.composite
def mixes(draw: Draw) -> Mix:
    """Each kind in two of five clusters, some more rarely."""
    return Mix(**{name: chance(draw, RARE.get(name, 40)) for name in Mix.__dataclass_fields__})


def chance(draw: Draw, percent: int) -> bool:
    """True that often; False is the simpler case."""
    return bool(draw(st.integers(0, 99)) >= 100 - percent)


def pick(draw: Draw, among: Sequence[T]) -> T:
    """One of them; the first is the simplest."""
    found: T = draw(st.sampled_from(among))
    return found


def some(draw: Draw, among: Sequence[T]) -> list[T]:
    """One or more of them, in the order given."""
    chosen = draw(st.sets(st.sampled_from(range(len(among))), min_size=1))
    return [among[index] for index in sorted(chosen)]


def require(key: str, operator: str, *values: str) -> JSONDict:
    """A requirement; without values for operators that take none."""
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


def an_object(kind: str, name: str, api: str = "v1", *, namespace: str = "", **rest: Any) -> JSONDict:
    """A Kubernetes object; `metadata` among the rest is added to its name."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **rest.pop("metadata", {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}
