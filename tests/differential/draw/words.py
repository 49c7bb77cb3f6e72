"""Shared by the strategies for clusters: labels with few values, so that constraints match, and helpers that draw."""

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
CSI_DRIVER = "ebs.csi.aws.com"

LABEL_VALUES: dict[str, tuple[str, ...]] = {
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
TRANSITION_TIME = "2026-01-05T11:00:00Z"


@dataclass(frozen=True, kw_only=True)
class Features:
    """The kinds of constraints and objects in a cluster: few at a time, so that they interact in small examples."""

    node_selectors: bool
    node_affinity: bool
    preferences: bool
    taints: bool
    topology_spread: bool
    pod_affinity: bool
    pod_anti_affinity: bool
    host_ports: bool
    volumes: bool
    gpus: bool
    namespaces: bool
    daemon_sets: bool
    existing_nodes: bool
    pool_limits: bool
    pool_weights: bool
    min_values: bool
    reservations: bool
    unavailable_offerings: bool
    edge_cases: bool  # rare pod fields, pods that terminate or have completed, static NodePools
    node_overlays: bool
    capacity_buffers: bool
    disruption_budgets: bool
    resizes: bool  # of running pods


PERCENT = {
    "host_ports": 15,
    "volumes": 15,
    "gpus": 12,
    "namespaces": 10,
    "min_values": 15,
    "reservations": 10,
    "edge_cases": 15,
    "node_overlays": 8,
    "capacity_buffers": 6,
    "disruption_budgets": 10,
    "resizes": 25,
}


@st.composite
def feature_sets(draw: Draw) -> Features:
    """Draw features: each with a probability of 40 %, or of the percentage in `PERCENT`."""
    return Features(**{name: chance(draw, PERCENT.get(name, 40)) for name in Features.__dataclass_fields__})


def chance(draw: Draw, percent: int) -> bool:
    """Draw True with a probability of this many percent; False is the simpler value."""
    return bool(draw(st.integers(0, 99)) >= 100 - percent)


def pick(draw: Draw, values: Sequence[T]) -> T:
    """Draw one of the values; the first is the simplest."""
    value: T = draw(st.sampled_from(values))
    return value


def pick_some(draw: Draw, values: Sequence[T]) -> list[T]:
    """Draw one or more of the values, in the order given."""
    indices = draw(st.sets(st.sampled_from(range(len(values))), min_size=1))
    return [values[index] for index in sorted(indices)]


def require(key: str, operator: str, *values: str) -> JSONDict:
    """Return a node selector requirement, without `values` if there are none."""
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


def an_object(kind: str, name: str, api: str = "v1", *, namespace: str = "", **fields: Any) -> JSONDict:
    """Return a Kubernetes object; `metadata` in `fields` is added to its name and namespace."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **fields.pop("metadata", {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}
