"""Measures how the real kube-scheduler binds the pods that the provision step planned on a real API server.

Only the instances are simulated: for each launched instance a Node with the `unregistered` taint joins in random order over
some seconds, and becomes Ready a little later. The step runs as the function does: when its own requeue messages are due, and
a second after a Node changed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from journeyman.cli.scenario import parse_scenario
from journeyman.core.api.objects import EC2NODECLASS, NODE, NODECLAIM, NODEPOOL, POD, Node
from journeyman.core.plan import Step
from journeyman.core.scheduling.nodeclaim_templates import planned_pods
from journeyman.errors import ConflictError
from journeyman.kube.access.kubeconfig import from_kubeconfig
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman.ports import RequeueDue
from journeyman.runtime.adapters import SystemClock
from journeyman.steps.context import Memory, RunContext, Settings
from journeyman.steps.provision import provision
from journeyman_simulator.judge import verify_strictly
from journeyman_simulator.kubelet import Machine
from tests.controlplane.manifests import install_crds
from tests.controlplane.plane import ControlPlane
from tests.helpers import builders, workloads
from tests.helpers.fakes import FakeCloud, FakeLease, FakeQueue, Record
from tests.helpers.lower_bound import lower_bound
from tests.helpers.waiting import wait_until

CLUSTER = "binding"
READY_AFTER = 2.0  # seconds from a Node's creation until it is Ready
BATCH_SECONDS = 1.0  # from a Node's change until the function is invoked
RUN_MAY_TAKE = timedelta(seconds=60)
SMALLEST_MILLICORES, MEDIAN_MILLICORES, LARGEST_MILLICORES, SIGMA = 100, 500, 32_000, 1.3
NODE_VCPUS = ("2", "4", "8", "16", "32", "48")
LEAST_MIB_PER_CORE, MOST_MIB_PER_CORE = 256, 8192
_NOT_READY = "node.kubernetes.io/not-ready"
JSONDict = dict[str, Any]


def heavy_tailed_pods(count: int, seed: int) -> list[JSONDict]:
    """Return pods of many sizes: 0.1 to 32 vCPU, most of them small, with 0.25 to 8 GiB of memory per vCPU."""
    rng = random.Random(seed)
    made: list[JSONDict] = []
    for index in range(count):
        drawn = round(MEDIAN_MILLICORES * rng.lognormvariate(0, SIGMA))
        millicores = min(LARGEST_MILLICORES, max(SMALLEST_MILLICORES, drawn))
        per_core = LEAST_MIB_PER_CORE * (MOST_MIB_PER_CORE / LEAST_MIB_PER_CORE) ** rng.random()
        made += workloads.pods(f"p{index:04d}", 1, f"{millicores}m", f"{round(per_core * millicores / 1000)}Mi")
    return made


@dataclass(frozen=True, kw_only=True)
class BindingResult:
    """A plan, and how kube-scheduler bound its pods. Prices are per hour."""

    pods: int
    nodes: int
    bound: float  # the linear-programming lower bound of the price
    planned: float
    final: float
    first_wave: int  # pods on nodes of the first plan
    as_planned: int  # pods on exactly the node they were planned for
    seconds: float  # from the creation of the first Node until the last pod was bound
    nominations: int
    repeated: int  # nominations written again because kube-scheduler had cleared them
    runs: int

    @property
    def first_wave_share(self) -> float:
        """Return the share of pods that were bound to nodes of the first plan."""
        return self.first_wave / self.pods


@dataclass
class Machines:
    """Simulates the instances: creates their Nodes and sets them Ready."""

    store: HttpKubeStore
    rng: random.Random
    joining_seconds: float
    joins: dict[str, float] = field(default_factory=dict)  # when each Node joins, by name
    ready: dict[str, float] = field(default_factory=dict)  # when each Node becomes Ready, by name
    done: set[str] = field(default_factory=set)

    def act(self, machines: Iterable[Machine], now: float) -> bool:
        """Create Nodes and set them Ready as they are due; return whether there were any."""
        changed = False
        for machine in machines:
            name = machine.node_name
            if name not in self.joins:
                self.joins[name] = now + self.rng.uniform(0, self.joining_seconds)
            elif name not in self.ready and now >= self.joins[name]:
                self._join(machine)
                self.ready[name], changed = now + READY_AFTER, True
            elif name in self.ready and name not in self.done and now >= self.ready[name]:
                self._set_ready(name)
                self.done.add(name)
                changed = True
        return changed

    def _join(self, machine: Machine) -> None:
        marks = {**machine.labels, "kubernetes.io/hostname": machine.node_name}
        body = {
            "metadata": {"name": machine.node_name, "labels": marks},
            "spec": {"providerID": machine.provider_id, "taints": [dict(taint) for taint in machine.taints]},
            "status": {
                "capacity": dict(machine.capacity),
                "allocatable": dict(machine.allocatable),
                "conditions": [builders.condition("Ready", "False")],
            },
        }
        self.store.create(NODE, body)

    def _set_ready(self, name: str) -> None:
        """Set the Ready condition and remove the `not-ready` taint, as kubelet and node lifecycle controller do."""
        ready = {"status": {"conditions": [builders.condition("Ready", since=SystemClock().now())]}}
        self.store.patch(NODE, name, ready, subresource="status")
        while True:
            node: Node = self.store.get(NODE, name)
            taints = [msgspec.to_builtins(t) for t in node.spec.taints if t.key != _NOT_READY]
            patch = {"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": taints}}
            try:
                self.store.patch(NODE, name, patch)
            except ConflictError:
                continue
            return


class Binding:
    """A cluster whose pods are all pending at first, and all bound at the end."""

    def __init__(self, plane: ControlPlane, pods: list[JSONDict], *, nominate: bool, seed: int, joining: float) -> None:
        """Set up the cluster; `bind_pods` creates its objects.

        Args:
            plane: A control plane with kube-scheduler and without Journeyman's CRDs.
            pods: The pending pods, in namespace default.
            nominate: Whether the step nominates pods to the nodes that it planned for them.
            seed: The seed of the order in which nodes join.
            joining: Seconds within which the nodes of one plan join.
        """
        self.store = HttpKubeStore(Transport(from_kubeconfig(str(plane.kubeconfig))))
        self._admin = plane.admin
        self.pool = _node_pool()
        self.pods = pods
        self.scenario = {
            "name": CLUSTER,
            "instanceTypes": workloads.instance_types(),
            "objects": [self.pool, *pods],
            "options": {},
        }
        types = parse_scenario(msgspec.json.encode(self.scenario)).catalogue.instance_types("default")
        self.clock, self.queue, self.record, self.memory = SystemClock(), FakeQueue(), Record(), Memory()
        self.cloud = FakeCloud(self.clock, types)
        self.settings = Settings(cluster_name=CLUSTER, pod_nomination=nominate)
        self.machines = Machines(self.store, random.Random(seed), joining)
        self.runs = self.nominations = self.repeated = 0

    def bind_pods(self, *, within: float) -> BindingResult:
        """Plan, let the nodes join, and wait until every pod is bound.

        Args:
            within: Seconds after which the wait ends, even if pods are still pending.
        """
        self._create_objects()
        self._run()
        planned, first, node_by_pod = (
            self.cloud.price,
            {m.node_name for m in self.cloud.machines()},
            self._planned_nodes(),
        )
        seconds = self._until_bound(within)
        bound = {p.key: p.spec.node_name for p in self.store.list(POD).items if p.spec.node_name}
        return BindingResult(
            pods=len(self.pods),
            nodes=len(first),
            bound=lower_bound(self.scenario),
            planned=planned,
            final=self.cloud.price,
            first_wave=sum(node in first for node in bound.values()),
            as_planned=sum(node_by_pod.get(key) == node for key, node in bound.items()),
            seconds=seconds,
            nominations=self.nominations,
            repeated=self.repeated,
            runs=self.runs,
        )

    def _create_objects(self) -> None:
        install_crds(self._admin)
        self.store.create(EC2NODECLASS, builders.node_class_body())
        self.store.create(NODEPOOL, self.pool)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda pod: self.store.create(POD, pod), self.pods))
        wait_until(self._all_pods_have_conditions, "kube-scheduler has not tried every pod", seconds=180)

    def _all_pods_have_conditions(self) -> bool:
        pods = self.store.list(POD).items
        return len(pods) == len(self.pods) and all(pod.status.conditions for pod in pods)

    def _run(self) -> None:
        """Run the provision step once, as one invocation of the function."""
        self.queue.sent.clear()
        now = self.clock.now()
        run = RunContext(
            cluster=CLUSTER,
            settings=self.settings,
            store=self.store,
            cloud=self.cloud,
            queue=self.queue,
            lease=FakeLease(),
            clock=self.clock,
            telemetry=self.record,
            deadline=now + RUN_MAY_TAKE,
            request_id=f"run-{self.runs}",
            memory=self.memory,
            verify=verify_strictly,
        )
        outcome = provision(run, RequeueDue(id="1", cluster=CLUSTER, step=Step.PROVISION, reason="test", time=now))
        self.runs += 1
        self.nominations += outcome.counts.get("nominations", 0)
        self.repeated += outcome.counts.get("nominations repeated", 0)

    def _planned_nodes(self) -> Mapping[str, str]:
        """Return the planned node of each pod, from the NodeClaims' annotations."""
        nodes = {m.provider_id: m.node_name for m in self.cloud.machines()}
        claims = self.store.list(NODECLAIM).items
        return {key: nodes[c.status.provider_id] for c in claims for key in planned_pods(c.metadata.annotations)}

    def _until_bound(self, within: float) -> float:
        began, changed_at = time.monotonic(), None
        while (now := time.monotonic()) < began + within:
            if self.machines.act(self.cloud.machines(), now) and changed_at is None:
                changed_at = now
            if (changed_at is not None and now >= changed_at + BATCH_SECONDS) or self._is_requeue_due():
                changed_at = None
                self._run()
            elif not self.store.list(POD, field_selector="spec.nodeName=").items:
                break
            time.sleep(0.05)
        return time.monotonic() - began

    def _is_requeue_due(self) -> bool:
        now: datetime = self.clock.now()
        return any(m.step is Step.PROVISION and (m.at is None or m.at <= now) for m in self.queue.sent)


def bind_pods(
    pods: list[JSONDict], *, nominate: bool, seed: int, joining: float = 8.0, within: float = 90.0
) -> BindingResult:
    """Plan and bind these pods on a new control plane."""
    with ControlPlane(scheduler=True) as plane:
        return Binding(plane, pods, nominate=nominate, seed=seed, joining=joining).bind_pods(within=within)


def _node_pool() -> JSONDict:
    """Return the NodePool of the published workloads, without the largest nodes and with FakeCloud's NodeClass."""
    pool = workloads.node_pool("spot", "on-demand")
    pool["spec"]["template"]["spec"]["requirements"].append(
        workloads.in_("karpenter.k8s.aws/instance-cpu", *NODE_VCPUS)
    )
    pool["spec"]["template"]["spec"]["nodeClassRef"] = dict(builders.CLASS_REF)
    return pool
