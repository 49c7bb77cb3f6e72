"""Runs an under-used fleet through the real steps on the simulated cluster until it is at rest, and counts what happened.

A scenario of `under_used_fleets` becomes a cluster: its nodes are instances of the simulated cloud, its pods belong to a ReplicaSet
per size, and kube-scheduler, kubelets, workload controllers, messages and the sweep are those of `simulated_cluster`. All settings
but those given are the product's defaults.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.objects import FLEET_PLAN, NODE_DISRUPTION, NodeClaim
from journeyman.core.plan import Step
from journeyman.core.state import NodeClassState
from journeyman.ports import Launched, LaunchRequest
from journeyman_simulator.workload_controllers import REPLICASET
from tests.helpers.builders import ago, merge
from tests.helpers.removals import class_of_pool
from tests.helpers.simulated_cluster import SimulatedCluster
from tests.helpers.under_used_fleets import JSONDict, parsed, scenario

AWS = "karpenter.k8s.aws"
QUIET = timedelta(minutes=25)
"""Longer than any limit on churn holds a node: whatever is left to do is done within it."""


class SteppedFleet(Struct, frozen=True, kw_only=True):
    """What became of a fleet. Prices are per hour, `minutes` of virtual time until nothing changed any more.

    `launched_again` are nodes that no command planned; `first_seconds` is the real time of the first run that proposed commands, `idle_seconds` the longest run after the rest.
    """

    price: float
    pods: int
    evictions: int
    minutes: float
    launched_again: int
    plans: int
    commands: Counter[str]
    first_seconds: float
    idle_seconds: float


class FleetCluster:
    """A scenario on the simulated cluster."""

    def __init__(self, name: str, **settings: Any) -> None:
        """Load the scenario of this name."""
        made = scenario(name)
        objects: dict[str, list[JSONDict]] = {}
        for body in made["objects"]:
            objects.setdefault(body["kind"], []).append(body)
        pool = _with_labels_of_the_cloud(class_of_pool(objects["NodePool"][0]))
        types = [t for t in parsed(made).catalogue.instance_types("default") if t.name in _types_of(made)]
        self.simulation = SimulatedCluster(types, pool)
        self.simulation.cluster.settings = replace(self.simulation.cluster.settings, **settings)
        self.simulation.run_for(minutes=1)  # until the NodeClass is ready
        nodes = {node["metadata"]["name"]: node for node in objects["Node"]}
        names = {
            claim["metadata"]["name"]: self._add_node(claim, nodes[claim["metadata"]["name"]], pool)
            for claim in objects["NodeClaim"]
        }
        self.pods = len(objects["Pod"])
        self._add_pods(objects["Pod"], names)
        self.evicted: list[tuple[str, datetime]] = []
        server, clock = self.simulation.server, self.simulation.clock
        server.on_write(lambda write: self.evicted.append((write.name, clock.now())) if write.verb == "evict" else None)
        self.runs: list[tuple[datetime, float, int]] = []

    def _add_node(self, claim: JSONDict, node: JSONDict, pool: JSONDict) -> str:
        """Launch the instance of a node, create its Node and NodeClaim, and return the Node's name."""
        cloud, reference = self.simulation.cloud, pool["spec"]["template"]["spec"]["nodeClassRef"]
        created = {"creationTimestamp": ago(hours=2).strftime("%Y-%m-%dT%H:%M:%SZ")}
        body = merge(claim, {"metadata": created, "spec": {"nodeClassRef": reference}})
        asked = LaunchRequest(
            claim=msgspec.convert(body, NodeClaim, strict=False),
            node_class=NodeClassState(
                group=reference["group"],
                kind=reference["kind"],
                name=reference["name"],
                uid="",
                generation=1,
                ready=True,
            ),
            instance_types=cloud.types,
        )
        (launched,) = cloud.launch([asked])
        assert isinstance(launched, Launched), launched
        provider_id = launched.instance.provider_id
        name = next(m.node_name for m in cloud.machines() if m.provider_id == provider_id)
        labels = {**node["metadata"]["labels"], "kubernetes.io/hostname": name}
        finalizers = {"finalizers": ["karpenter.sh/termination"]}
        self.simulation.cluster.add(
            merge(
                body,
                {
                    "metadata": {"labels": {**labels, "kubernetes.io/hostname": name}, **finalizers},
                    "status": {"providerID": provider_id, "nodeName": name},
                },
            ),
            merge(
                node,
                {
                    "metadata": {"name": name, "labels": labels, **created, **finalizers},
                    "spec": {"providerID": provider_id},
                },
            ),
        )
        return name

    def _add_pods(self, pods: list[JSONDict], names: dict[str, str]) -> None:
        """Create the pods on their nodes, and a ReplicaSet for each size."""
        sizes: dict[str, list[JSONDict]] = {}
        for pod in pods:
            requests = pod["spec"]["containers"][0]["resources"]["requests"]
            sizes.setdefault(f"web-{requests['cpu']}-{requests['memory'].lower()}", []).append(pod)
        for name, own in sizes.items():
            labels = {"app": name}
            spec = {key: value for key, value in own[0]["spec"].items() if key != "nodeName"}
            template = {"metadata": {"labels": labels}, "spec": spec}
            metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
            owner = {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": name,
                "uid": f"uid-{name}",
                "controller": True,
            }
            self.simulation.cluster.add(
                {
                    "apiVersion": REPLICASET.api_version,
                    "kind": "ReplicaSet",
                    "metadata": metadata,
                    "spec": {"replicas": len(own), "selector": {"matchLabels": labels}, "template": template},
                },
                *(
                    merge(
                        pod,
                        {
                            "metadata": {"labels": labels, "ownerReferences": [owner], "namespace": "default"},
                            "spec": {"nodeName": names[pod["spec"]["nodeName"]]},
                        },
                    )
                    for pod in own
                ),
            )

    def run(self, *, most: timedelta = timedelta(hours=4), say: Callable[[str], None] = lambda _: None) -> SteppedFleet:
        """Run until nothing was evicted, launched or removed for `QUIET`, and return what happened."""
        simulation, start = self.simulation, self.simulation.clock.now()
        launches = len(simulation.cloud.launches)
        simulation.requeue(Step.CONSOLIDATE)
        state: tuple[Any, ...] = ()
        changed = start
        first = idle = 0.0
        while simulation.clock.now() - start < most:
            began = time.perf_counter()
            simulation.run_for(minutes=1 / 6)
            seconds = time.perf_counter() - began
            claims = frozenset(c.metadata.name for c in simulation.claims())
            now_state = (claims, len(self.evicted))
            commands = simulation.server.list(NODE_DISRUPTION).items
            if commands and not first:
                first = seconds
            if now_state != state:
                state, changed, idle = now_state, simulation.clock.now(), 0.0
            idle = max(idle, seconds)
            unfinished = any((d.get("status") or {}).get("finishedAt") is None for d in commands)
            if not unfinished and simulation.clock.now() - changed >= QUIET:
                break
            phases = Counter(f"{d['spec']['method']} {(d.get('status') or {}).get('phase', '')}" for d in commands)
            say(
                f"{(simulation.clock.now() - start) / timedelta(minutes=1):6.1f} min  {seconds:6.2f} s  {len(claims)} claims"
                f"  {simulation.cloud.price:8.3f} $/h  {len(self.evicted)} evictions  {simulation.pending()} pending  {dict(phases)}"
            )
        commands = simulation.server.list(NODE_DISRUPTION).items
        planned = sum(
            len(d["spec"].get("replacements", ()))
            for d in commands
            if (d.get("status") or {}).get("phase") in {"Succeeded", "RolledBack"}
        )
        return SteppedFleet(
            price=simulation.cloud.price,
            pods=self.pods,
            evictions=len(self.evicted),
            minutes=(changed - start) / timedelta(minutes=1),
            launched_again=len(simulation.cloud.launches) - launches - planned,
            plans=len(simulation.server.list(FLEET_PLAN).items),
            commands=Counter(f"{d['spec']['method']} {(d.get('status') or {}).get('phase', '')}" for d in commands),
            first_seconds=first,
            idle_seconds=idle,
        )


def _types_of(made: JSONDict) -> frozenset[str]:
    """Return the names of the instance types that the scenario's NodePool allows."""
    return frozenset(
        t["name"]
        for t in made["instanceTypes"]
        for values in ({r["key"]: r["values"][0] for r in t["requirements"]},)
        if values[f"{AWS}/instance-category"] in "cmr" and int(values[f"{AWS}/instance-generation"]) > 4
    )


def _with_labels_of_the_cloud(pool: JSONDict) -> JSONDict:
    """Return the NodePool without requirements on labels that the simulated cloud does not give nodes: they would drift."""
    requirements = [r for r in pool["spec"]["template"]["spec"]["requirements"] if not r["key"].startswith(AWS)]
    return merge(pool, {"spec": {"template": {"spec": {"requirements": requirements}}}})
