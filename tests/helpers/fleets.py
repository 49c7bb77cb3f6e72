"""Fleets of nodes with their NodeClaims and pods, and instance types for replacements, for tests of disruption.

Types are `s`, `m`, `l` and `xl` (2, 4, 8 and 16 CPUs) at 0.1 per CPU and hour in two zones, Spot at 40 % of it. The node
of claim `n` is `node-n`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from journeyman.core.api import labels
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import Node, NodeClaim, Pod
from journeyman.core.catalogue import Catalogue, InstanceType, price_of
from journeyman.core.state import Snapshot
from tests.helpers import builders
from tests.helpers.builders import a_snapshot, ago, merge, stamp

SIZES = {"s": 2, "m": 4, "l": 8, "xl": 16}
ZONES = ("a", "b")


def types(*, spot: bool = True) -> tuple[InstanceType, ...]:
    """Return instance types of every size, available in both zones."""
    return tuple(
        builders.an_instance_type(
            name, cpu=cpus, memory_gib=4 * cpus, price=cpus * 0.1, zones=ZONES, spot=cpus * 0.04 if spot else None
        )
        for name, cpus in SIZES.items()
    )


TYPES = types()


def a_catalogue(*pools: str, of: tuple[InstanceType, ...] = TYPES) -> Catalogue:
    """Return a catalogue with these types for each of the NodePools (`default` if none is given)."""
    return Catalogue(dict.fromkeys(pools or ("default",), of))


def price(size: str, capacity_type: str = labels.ON_DEMAND) -> float:
    """Return the hourly price."""
    return price_of(TYPES, size, "a", capacity_type)


def a_pool(
    name: str = "default", *, capacity_types: Iterable[str] = (labels.ON_DEMAND,), **disruption: Any
) -> NodePool:
    """Return a NodePool whose budget allows 100 % of its nodes; keyword arguments are fields of `spec.disruption` as JSON."""
    requirement = {"key": labels.CAPACITY_TYPE, "operator": "In", "values": list(capacity_types)}
    spec = {
        "template": {"spec": {"requirements": [requirement]}},
        "disruption": {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}], **disruption},
    }
    return builders.a_pool(name, spec=spec)


@dataclass(frozen=True)
class Member:
    """A node, its NodeClaim and its pods."""

    node: Node | None
    claim: NodeClaim
    pods: tuple[Pod, ...] = ()


def a_pod(name: str, *, node: str = "", owner: str = "ReplicaSet", **kwargs: Any) -> Pod:
    """Return a pod of a workload: bound to `node` and ready, or unschedulable."""
    owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "owner", "uid": "owner", "controller": True}]
    changes: dict[str, Any] = {"metadata": {"ownerReferences": owners}}
    if node:
        conditions = [builders.condition(type_, since=ago(hours=1)) for type_ in ("PodScheduled", "Ready")]
        changes["status"] = {"conditions": conditions}
    return builders.a_pod(name, node=node, **merge(changes, kwargs))


def a_member(
    name: str,
    *,
    size: str = "m",
    pool: str = "default",
    capacity_type: str = labels.ON_DEMAND,
    zone: str = "a",
    cpus: Iterable[str] = (),
    pods: Iterable[Pod] = (),
    initialized: bool = True,
    ready: bool = True,
    deleting: bool = False,
    quiet_for: timedelta = timedelta(hours=1),
    claim: Mapping[str, Any] = {},
    node: Mapping[str, Any] = {},
) -> Member:
    """Return a node that joined two hours ago; its last pod event was `quiet_for` ago.

    `cpus` adds one pod for each entry; `claim` and `node` change the objects' JSON.
    """
    own = {
        labels.NODEPOOL: pool,
        labels.INSTANCE_TYPE: size,
        labels.ZONE: zone,
        labels.CAPACITY_TYPE: capacity_type,
        builders.CLASS_LABEL: builders.CLASS,
    }
    amounts = {"cpu": str(SIZES[size]), "memory": f"{4 * SIZES[size]}Gi"}
    gone_since = ago(seconds=5) if deleting else None
    stages = ("Launched", "Registered", *(("Initialized",) if initialized else ()))
    state = {
        "metadata": {"labels": own},
        "status": {"capacity": amounts, "allocatable": amounts, "lastPodEventTime": stamp(ago(seconds=0) - quiet_for)},
    }
    made = builders.a_running_claim(
        name, true=stages, age=timedelta(hours=2), deleting=gone_since, **merge(state, dict(claim))
    )
    marks = {**own, labels.INITIALIZED: "true" if initialized else "false"}
    host = {"metadata": {"labels": marks}, "status": {"capacity": amounts, "allocatable": amounts}}
    joined = builders.a_node(name, ready=ready, **merge(host, dict(node)))
    placed = (*pods, *(a_pod(f"{name}-{i}", cpu=cpu, node=f"node-{name}") for i, cpu in enumerate(cpus)))
    return Member(node=joined, claim=made, pods=placed)


def an_unlaunched_member(name: str) -> Member:
    """Return a NodeClaim that is not launched."""
    return Member(node=None, claim=builders.a_claim(name))


def a_fleet(*members: Member, pools: Iterable[NodePool] = (), pending: Iterable[Pod] = (), **parts: Any) -> Snapshot:
    """Return a snapshot of these nodes at `NOW`, with the NodePool `default` if none is given."""
    return a_snapshot(
        node_pools=tuple(sorted(pools, key=lambda p: p.metadata.name)) or (a_pool(),),
        claims=tuple(sorted((m.claim for m in members), key=lambda c: c.metadata.name)),
        nodes=tuple(sorted((m.node for m in members if m.node), key=lambda n: n.metadata.name)),
        pods=tuple(sorted((*(p for m in members for p in m.pods), *pending), key=lambda p: p.key)),
        **parts,
    )


def bodies(*members: Member) -> tuple[dict[str, Any], ...]:
    """Return the members' objects as JSON for an API server."""
    found: list[dict[str, Any]] = []
    for member in members:
        found.append(_body("karpenter.sh/v1", "NodeClaim", member.claim))
        if member.node is not None:
            found.append(_body("v1", "Node", member.node))
        found += [_body("v1", "Pod", pod) for pod in member.pods]
    return tuple(found)


def _body(api_version: str, kind: str, value: msgspec.Struct) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, **msgspec.to_builtins(value)}
