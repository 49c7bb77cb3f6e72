"""Measures how the real kube-scheduler binds the pods of a plan that our provision step made on a real API server.

Only machines are played: for each launched instance a Node joins, closed and not ready, in random order over some
seconds, and turns ready a little later. The step is woken as a function is: by its own messages, and a second after
there is news of a node.
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
from journeyman.runtime.aws import SystemClock
from journeyman.steps.context import Memory, RunContext, Settings
from journeyman.steps.provision import provision
from journeyman_simulator.kubelet import Machine
from tests.controlplane.manifests import install_crds
from tests.controlplane.plane import ControlPlane
from tests.helpers import builders, workloads
from tests.helpers.fakes import FakeCloud, FakeQueue, Fence, Record
from tests.helpers.lower_bound import lower_bound
from tests.helpers.waiting import wait_until

CLUSTER = "binding"
BECOMES_READY_AFTER = 2.0  # seconds after it joined
NEWS_TAKES = 1.0  # seconds until a batch of events wakes the function
RUN_MAY_TAKE = timedelta(seconds=60)
SMALLEST_MILLICORES, MEDIAN_MILLICORES, LARGEST_MILLICORES, SIGMA = 100, 500, 32_000, 1.3
NODE_VCPUS = ("2", "4", "8", "16", "32", "48")
LEAST_MIB_PER_CORE, MOST_MIB_PER_CORE = 256, 8192
_NOT_READY = "node.kubernetes.io/not-ready"
JSONDict = dict[str, Any]


def heavy_tailed_pods(count: int, seed: int) -> list[JSONDict]:
    """Pods of many sizes: 0.1 to 32 vCPU, most of them small, with 0.25 to 8 GiB of memory for each."""
    rng = random.Random(seed)
    made: list[JSONDict] = []
    for index in range(count):
        drawn = round(MEDIAN_MILLICORES * rng.lognormvariate(0, SIGMA))
        millicores = min(LARGEST_MILLICORES, max(SMALLEST_MILLICORES, drawn))
        per_core = LEAST_MIB_PER_CORE * (MOST_MIB_PER_CORE / LEAST_MIB_PER_CORE) ** rng.random()
        made += workloads.pods(f"p{index:04d}", 1, f"{millicores}m", f"{round(per_core * millicores / 1000)}Mi")
    return made


@dataclass(frozen=True, kw_only=True)
class Realised:
    """One plan and what became of it. Prices are per hour."""

    pods: int
    nodes: int
    bound: float  # the linear-programming bound of the price
    planned: float
    final: float
    first_wave: int  # pods on nodes of the first plan
    as_planned: int  # pods on exactly the node they were planned for
    seconds: float  # from the first node's joining until the last pod was bound
    nominations: int
    repeated: int  # nominations written again, since an attempt of kube-scheduler had cleared them
    runs: int

    @property
    def first_wave_share(self) -> float:
        """Of the pods, those bound without a second wave of nodes."""
        return self.first_wave / self.pods


@dataclass
class Machines:
    """Plays the instances: which node joins or turns ready now."""

    store: HttpKubeStore
    rng: random.Random
    joining_seconds: float
    joins: dict[str, float] = field(default_factory=dict)  # by node name, when
    ready: dict[str, float] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)

    def act(self, machines: Iterable[Machine], now: float) -> bool:
        """Everything due at this moment; True if a node joined or turned ready."""
        news = False
        for machine in machines:
            name = machine.node_name
            if name not in self.joins:
                self.joins[name] = now + self.rng.uniform(0, self.joining_seconds)
            elif name not in self.ready and now >= self.joins[name]:
                self._join(machine)
                self.ready[name], news = now + BECOMES_READY_AFTER, True
            elif name in self.ready and name not in self.done and now >= self.ready[name]:
                self._turn_ready(name)
                self.done.add(name)
                news = True
        return news

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

    def _turn_ready(self, name: str) -> None:
        """Restates: kubelet and node lifecycle controller, who remove the taint that admission gave the node."""
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
    """One cluster of pods, from all pending to all bound."""

    def __init__(self, plane: ControlPlane, pods: list[JSONDict], *, nominate: bool, seed: int, joining: float) -> None:
        """Nothing is created yet.

        Args:
            plane: A control plane with a scheduler; nothing of ours is in it.
            pods: To be placed; in namespace default.
            nominate: Whether pods are nominated to the nodes they were planned for.
            seed: Of the order in which nodes join.
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

    def realise(self, *, within: float) -> Realised:
        """Plan, let the nodes join, wait until every pod is bound.

        Args:
            within: Seconds it may take; what is not bound then is counted as it is.
        """
        self._set_the_stage()
        self._run()
        planned, first, places = self.cloud.price, {m.node_name for m in self.cloud.machines()}, self._planned_places()
        seconds = self._until_bound(within)
        bound = {p.key: p.spec.node_name for p in self.store.list(POD).items if p.spec.node_name}
        return Realised(
            pods=len(self.pods),
            nodes=len(first),
            bound=lower_bound(self.scenario),
            planned=planned,
            final=self.cloud.price,
            first_wave=sum(node in first for node in bound.values()),
            as_planned=sum(places.get(key) == node for key, node in bound.items()),
            seconds=seconds,
            nominations=self.nominations,
            repeated=self.repeated,
            runs=self.runs,
        )

    def _set_the_stage(self) -> None:
        install_crds(self._admin)
        self.store.create(EC2NODECLASS, builders.node_class_body())
        self.store.create(NODEPOOL, self.pool)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda pod: self.store.create(POD, pod), self.pods))
        wait_until(self._everybody_waits, "kube-scheduler has not looked at every pod", seconds=180)

    def _everybody_waits(self) -> bool:
        pods = self.store.list(POD).items
        return len(pods) == len(self.pods) and all(pod.status.conditions for pod in pods)

    def _run(self) -> None:
        """One invocation of the function."""
        self.queue.sent.clear()
        now = self.clock.now()
        run = RunContext(
            cluster=CLUSTER,
            settings=self.settings,
            store=self.store,
            cloud=self.cloud,
            queue=self.queue,
            lease=Fence(),
            clock=self.clock,
            telemetry=self.record,
            deadline=now + RUN_MAY_TAKE,
            request_id=f"run-{self.runs}",
            memory=self.memory,
        )
        outcome = provision(run, RequeueDue(id="1", cluster=CLUSTER, step=Step.PROVISION, reason="test", time=now))
        self.runs += 1
        self.nominations += outcome.counts.get("nominations", 0)
        self.repeated += outcome.counts.get("nominations repeated", 0)

    def _planned_places(self) -> Mapping[str, str]:
        """Node by pod, as the claims remember it."""
        nodes = {m.provider_id: m.node_name for m in self.cloud.machines()}
        claims = self.store.list(NODECLAIM).items
        return {key: nodes[c.status.provider_id] for c in claims for key in planned_pods(c.metadata.annotations)}

    def _until_bound(self, within: float) -> float:
        began, news = time.monotonic(), None
        while (now := time.monotonic()) < began + within:
            if self.machines.act(self.cloud.machines(), now) and news is None:
                news = now
            if (news is not None and now >= news + NEWS_TAKES) or self._is_woken():
                news = None
                self._run()
            elif not self.store.list(POD, field_selector="spec.nodeName=").items:
                break
            time.sleep(0.05)
        return time.monotonic() - began

    def _is_woken(self) -> bool:
        now: datetime = self.clock.now()
        return any(m.step is Step.PROVISION and (m.at is None or m.at <= now) for m in self.queue.sent)


def realised(
    pods: list[JSONDict], *, nominate: bool, seed: int, joining: float = 8.0, within: float = 90.0
) -> Realised:
    """What becomes of the plan for these pods on a control plane of its own."""
    with ControlPlane(scheduler=True) as plane:
        return Binding(plane, pods, nominate=nominate, seed=seed, joining=joining).realise(within=within)


def _node_pool() -> JSONDict:
    """The pool of the published workloads, without the largest nodes, of the kind that FakeCloud understands."""
    pool = workloads.node_pool("spot", "on-demand")
    pool["spec"]["template"]["spec"]["requirements"].append(
        workloads.in_("karpenter.k8s.aws/instance-cpu", *NODE_VCPUS)
    )
    pool["spec"]["template"]["spec"]["nodeClassRef"] = dict(builders.CLASS_REF)
    return pool
