"""Under-used fleets as scenarios: a rolled-out fleet whose pods left, of 20, 100 and 300 nodes.

Every node is of one of four types, in one of three zones, on demand, and holds between one pod and twice the average; a node
is full when the next pod drawn does not fit. All pods belong to one ReplicaSet and have no rules, so the linear-programming
bound is close to the cheapest fleet. Instance types and prices are those of `workloads`.

::

    from tests.helpers.under_used_fleets import current_price, lower_bound, scenario
    fleet = scenario("under-used-100")       # input of `journeyman solve` and of the oracle, with `options.disrupt`
    read = parsed(fleet)                     # read.snapshot, read.catalogue, read.options
    current_price(fleet), lower_bound(fleet)  # dollars per hour
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from typing import Any

from journeyman.cli.scenario import Scenario, parse_scenario
from journeyman.core.api.resources import to_resources
from tests.helpers.lower_bound import lower_bound
from tests.helpers.workloads import CAPACITY_TYPE, HOSTNAME, ZONE, in_, instance_types, node_pool, pods

__all__ = ["NAMES", "current_price", "fleet", "lower_bound", "parsed", "scenario"]

PODS_PER_NODE = {20: 3, 100: 4, 300: 4}
NAMES = tuple(f"under-used-{nodes}" for nodes in PODS_PER_NODE)
TYPES = ("m5.2xlarge", "c5.2xlarge", "r5.xlarge", "m5.4xlarge")
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
MILLICORES = (100, 250, 500, 1000)
MEBIBYTES = (128, 256, 512, 1024)
MIB = 2**20
NOW, CREATED = "2026-01-05T12:00:00Z", "2026-01-05T10:00:00Z"
INSTANCE_TYPE, NODEPOOL = "node.kubernetes.io/instance-type", "karpenter.sh/nodepool"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
CONDITIONS = ("Launched", "Registered", "Initialized", "Consolidatable", "Ready")
JSONDict = dict[str, Any]


def scenario(name: str) -> JSONDict:
    """Return the scenario of a name in `NAMES`; the number of nodes is also the seed."""
    nodes = int(name.rsplit("-", 1)[1])
    return fleet(nodes, PODS_PER_NODE[nodes], seed=nodes)


def fleet(nodes: int, pods_per_node: int, *, seed: int, types: tuple[str, ...] = TYPES) -> JSONDict:
    """Return a scenario of so many nodes with on average `pods_per_node` pods, in the input format of `journeyman solve`."""
    rng = random.Random(seed)
    by_name = {t["name"]: t for t in instance_types()}
    objects = [node_pool("on-demand")]
    for index in range(nodes):
        objects += _member(f"node-{index:05d}", by_name[rng.choice(types)], rng.choice(ZONES), pods_per_node, rng)
    return {
        "name": f"under-used-{nodes}",
        "now": NOW,
        "instanceTypes": instance_types(),
        "objects": objects,
        "options": {"disrupt": True},
    }


def parsed(made: JSONDict) -> Scenario:
    """Return the snapshot, catalogue and options of a scenario."""
    return parse_scenario(json.dumps(made).encode())


def current_price(made: JSONDict) -> float:
    """Return what the scenario's nodes cost per hour."""
    prices = _prices()
    nodes = (o["metadata"]["labels"] for o in made["objects"] if o["kind"] == "Node")
    return sum(prices[labels[INSTANCE_TYPE], labels[ZONE], labels[CAPACITY_TYPE]] for labels in nodes)


@functools.cache
def _prices() -> dict[tuple[str, str, str], float]:
    found = {}
    for instance_type in instance_types():
        for offering in instance_type["offerings"]:
            zone, capacity_type = (r["values"][0] for r in offering["requirements"])
            found[instance_type["name"], zone, capacity_type] = offering["price"]
    return found


def _member(
    name: str, instance_type: JSONDict, zone: str, pods_per_node: int, rng: random.Random
) -> Iterator[JSONDict]:
    """Yield a NodeClaim, its initialized node, and its pods."""
    yield from claim_and_node(name, instance_type, zone)
    millicores, mebibytes = usable(instance_type)
    for index in range(rng.randint(1, 2 * pods_per_node)):
        cpu, memory = rng.choice(MILLICORES), rng.choice(MEBIBYTES)
        if cpu > millicores or memory > mebibytes:
            return
        millicores, mebibytes = millicores - cpu, mebibytes - memory
        yield _running_pod(f"{name}-{index}", name, cpu, memory)


def usable(instance_type: JSONDict) -> tuple[int, int]:
    """Return the millicores and mebibytes that pods can use."""
    capacity = to_resources(instance_type["capacity"], round_up=False)
    overhead = to_resources(instance_type["overhead"], round_up=True)
    return capacity["cpu"] - overhead["cpu"], (capacity["memory"] - overhead["memory"]) // MIB


def claim_and_node(name: str, instance_type: JSONDict, zone: str) -> tuple[JSONDict, JSONDict]:
    """Return an on-demand NodeClaim of the NodePool default, and its initialized node."""
    millicores, mebibytes = usable(instance_type)
    allocatable = {**instance_type["capacity"], "cpu": f"{millicores}m", "memory": f"{mebibytes}Mi"}
    amounts = {"capacity": instance_type["capacity"], "allocatable": allocatable}
    labels = {
        **{r["key"]: r["values"][0] for r in instance_type["requirements"]},
        ZONE: zone,
        CAPACITY_TYPE: "on-demand",
        NODEPOOL: "default",
        HOSTNAME: name,
        "karpenter.sh/registered": "true",
        "karpenter.sh/initialized": "true",
    }
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"node-{name}", "labels": labels, "creationTimestamp": CREATED},
        "spec": {"providerID": f"test:///{name}"},
        "status": {**amounts, "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]},
    }
    return _claim(name, labels, amounts), node


def _claim(name: str, labels: JSONDict, amounts: JSONDict) -> JSONDict:
    conditions = [{"type": c, "status": "True", "reason": c, "lastTransitionTime": CREATED} for c in CONDITIONS]
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": name, "uid": f"claim-{name}", "labels": labels, "creationTimestamp": CREATED},
        "spec": {
            "expireAfter": "720h",
            "nodeClassRef": {"group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default"},
            "requirements": [in_(key, labels[key]) for key in (INSTANCE_TYPE, ZONE, CAPACITY_TYPE)],
        },
        "status": {"providerID": f"test:///{name}", "nodeName": name, **amounts, "conditions": conditions},
    }


def _running_pod(name: str, node: str, millicores: int, mebibytes: int) -> JSONDict:
    (pod,) = pods("web", 1, f"{millicores}m", f"{mebibytes}Mi", nodeName=node)
    conditions = [
        {"type": c, "status": "True", "lastTransitionTime": "2026-01-05T10:05:00Z"} for c in ("PodScheduled", "Ready")
    ]
    pod["metadata"] |= {"name": name, "ownerReferences": [OWNER]}
    return {**pod, "status": {"phase": "Running", "conditions": conditions}}
