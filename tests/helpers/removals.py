"""Measures on a real control plane whether removals come true: kube-scheduler binds the pods that follow the evicted ones.

Deployments fill a fleet, then shrink, so that consolidation removes and replaces nodes. Only instances and kubelets are
simulated; API server, kube-scheduler and the controllers of Deployments and ReplicaSets are real. The steps run as the
functions do: when their own requeue messages are due, and a second after a change of Nodes or pods.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from journeyman.cli.scenario import parse_scenario
from journeyman.core.api.objects import EC2NODECLASS, NODE_DISRUPTION, NODECLAIM, NODEPOOL, POD, Pod
from journeyman.core.plan import Step
from journeyman.errors import ConflictError, NotFoundError
from journeyman.kube.access.kubeconfig import from_kubeconfig
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman.ports import RequeueDue, Trigger
from journeyman.runtime.adapters import SystemClock
from journeyman.steps.consolidate import consolidate
from journeyman.steps.context import Memory, Outcome, RunContext, Settings
from journeyman.steps.provision import provision
from journeyman.steps.terminate import terminate
from journeyman_simulator.judge import verify_strictly
from journeyman_simulator.workload_controllers import DEPLOYMENT
from tests.controlplane.manifests import install_crds
from tests.controlplane.plane import ControlPlane
from tests.helpers import builders, workloads
from tests.helpers.binding import Machines
from tests.helpers.fakes import FakeCloud, FakeLease, FakeQueue, Record

CLUSTER: Final = "removals"
STEPS: Final[Mapping[Step, Callable[[RunContext, Trigger], Outcome]]] = {
    Step.PROVISION: provision,
    Step.TERMINATE: terminate,
    Step.CONSOLIDATE: consolidate,
}
MILLICORES: Final = (100, 250, 500, 750, 1_000, 1_500, 2_000, 3_000)
MIB_PER_CORE: Final = (1_024, 2_048, 4_096, 6_144)
POLL_SECONDS: Final = 1.0
VALIDATION_SECONDS: Final = 3.0  # instead of 15: nothing else changes in this cluster


class RemovalResult(Struct, frozen=True, kw_only=True):
    """What consolidation planned and what came of it. Prices are per hour.

    `removed` are the nodes that succeeded commands deleted, `launched_again` the nodes that pods needed beyond the planned
    replacements, `planned` the saving of the succeeded commands, `realised` the fall of the fleet's price.
    """

    pods: int
    nodes_before: int
    nodes_after: int
    removed: int
    launched_again: int
    planned: float
    realised: float
    evictions: int
    seconds: float

    @property
    def share_without_launch(self) -> float:
        """Return the share of removals after which no node was launched again."""
        return 1 - self.launched_again / self.removed if self.removed else 1.0

    @property
    def realised_share(self) -> float:
        """Return the realised saving over the planned one."""
        return self.realised / self.planned if self.planned else 1.0


class RemovalCluster:
    """A cluster on a real control plane whose instances and kubelets are simulated."""

    def __init__(self, plane: ControlPlane, *, deployments: int, seed: int) -> None:
        self.store = HttpKubeStore(Transport(from_kubeconfig(str(plane.kubeconfig))))
        self._admin = plane.admin
        self._rng = random.Random(seed)
        self._replicas = {f"d{number:02}": self._rng.randint(3, 12) for number in range(deployments)}
        pool = _node_pool()
        scenario = {"name": CLUSTER, "instanceTypes": workloads.instance_types(), "objects": [pool], "options": {}}
        types = parse_scenario(msgspec.json.encode(scenario)).catalogue.instance_types("default")
        self._pool = pool
        self.clock, self.queue, self.record = SystemClock(), FakeQueue(), Record()
        self.cloud = FakeCloud(self.clock, types)
        self._memory = {step: Memory() for step in STEPS}
        self._settings = Settings(
            cluster_name=CLUSTER,
            validation_delay=timedelta(seconds=VALIDATION_SECONDS),
            reversal_window=timedelta(0),  # the nodes are only minutes old
        )
        self._machines = Machines(self.store, self._rng, 2.0)
        self._next_sweep = 0.0

    def fill(self) -> None:
        """Create the Deployments, and wait until every pod runs; nothing is consolidated before the measurement."""
        install_crds(self._admin)
        self.store.create(EC2NODECLASS, builders.node_class_body())
        self.store.create(NODEPOOL, self._pool)
        for name, replicas in self._replicas.items():
            self.store.create(DEPLOYMENT, self._deployment(name, replicas), namespace="default")
        self._until(lambda: len(self._running()) == sum(self._replicas.values()), within=180, consolidating=False)

    def shrink(self) -> None:
        """Take away between a quarter and three quarters of each Deployment's replicas, and wait until they are gone."""
        self._replicas = {name: max(1, round(n * self._rng.uniform(0.25, 0.75))) for name, n in self._replicas.items()}
        for name, replicas in self._replicas.items():
            self.store.patch(DEPLOYMENT, name, {"spec": {"replicas": replicas}}, namespace="default")
        self._until(lambda: len(self._running()) == sum(self._replicas.values()), within=180, consolidating=False)

    def consolidate(self, *, quiet: float, within: float) -> RemovalResult:
        """Run until no command has started for `quiet` seconds, and return what was planned and realised."""
        began = time.monotonic()
        before, nodes = self.cloud.price, len(self.store.list(NODECLAIM).items)
        launches = len(self.cloud.launches)
        last = [began, 0.0]

        def is_at_rest() -> bool:
            commands = self.store.list(NODE_DISRUPTION).items
            if len(commands) != last[1] or any(_phase(c) not in _ENDED for c in commands):
                last[:] = [time.monotonic(), float(len(commands))]
            all_run = len(self._running()) == sum(self._replicas.values())
            return all_run and time.monotonic() > last[0] + quiet

        self._until(is_at_rest, within=within)
        succeeded = [c for c in self.store.list(NODE_DISRUPTION).items if _phase(c) == "Succeeded"]
        replacements = {r["name"] for c in succeeded for r in c["spec"].get("replacements", ())}
        return RemovalResult(
            pods=sum(self._replicas.values()),
            nodes_before=nodes,
            nodes_after=len(self.store.list(NODECLAIM).items),
            removed=sum(len(c["spec"]["candidates"]) for c in succeeded),
            launched_again=len(set(self.cloud.launches[launches:]) - replacements),
            planned=sum(float(c["spec"]["savingPerHour"]) for c in succeeded),
            realised=before - self.cloud.price,
            evictions=sum(c["status"].get("evictedPods", 0) for c in succeeded),
            seconds=time.monotonic() - began,
        )

    def _until(self, done: Callable[[], bool], *, within: float, consolidating: bool = True) -> None:
        """Run machines, kubelets and steps until `done`; raise TimeoutError after `within` seconds."""
        end, polled = time.monotonic() + within, 0.0
        while True:
            now = time.monotonic()
            changed = self._machines.act(self.cloud.machines(), now)
            changed = self._run_kubelets() or changed
            if changed or now > self._next_sweep:
                self._next_sweep = now + POLL_SECONDS * 2
                self._run(Step.PROVISION)
                self._run(Step.TERMINATE)
                if consolidating:
                    self._run(Step.CONSOLIDATE)
            if now > polled + POLL_SECONDS:
                polled = now
                if done():
                    return
            if now > end:
                raise TimeoutError(f"not done within {within:.0f} s: {len(self._running())} pods run")
            time.sleep(0.05)

    def _run(self, step: Step) -> None:
        now = self.clock.now()
        self.queue.sent.clear()
        run = RunContext(
            cluster=CLUSTER,
            settings=self._settings,
            store=self.store,
            cloud=self.cloud,
            queue=self.queue,
            lease=FakeLease(),
            clock=self.clock,
            telemetry=self.record,
            deadline=now + timedelta(seconds=60),
            request_id=step.value,
            memory=self._memory[step],
            verify=verify_strictly,
        )
        STEPS[step](run, RequeueDue(id="1", cluster=CLUSTER, step=step, reason="test", time=now))

    def _run_kubelets(self) -> bool:
        """Set bound pods Running and Ready, and remove terminating ones; return whether there were any."""
        changed = False
        for pod in self.store.list(POD).items:
            if not pod.spec.node_name:
                continue
            if pod.metadata.deletion_timestamp is not None:
                with suppress(NotFoundError, ConflictError):
                    self.store.delete(POD, pod.metadata.name, namespace="default", grace_period_seconds=0)
                changed = True
            elif pod.status.phase != "Running":
                ready = [builders.condition("Ready", since=self.clock.now())]
                status = {"status": {"phase": "Running", "conditions": ready}}
                with suppress(NotFoundError, ConflictError):
                    self.store.patch(POD, pod.metadata.name, status, namespace="default", subresource="status")
                changed = True
        return changed

    def _running(self) -> list[Pod]:
        return [
            p
            for p in self.store.list(POD).items
            if p.status.phase == "Running" and p.metadata.deletion_timestamp is None
        ]

    def _deployment(self, name: str, replicas: int) -> dict[str, Any]:
        millicores = self._rng.choice(MILLICORES)
        mebibytes = round(self._rng.choice(MIB_PER_CORE) * millicores / 1000)
        requests = {"cpu": f"{millicores}m", "memory": f"{mebibytes}Mi"}
        container = {"name": "c", "image": "pause", "resources": {"requests": requests}}
        template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
        }


_ENDED: Final = frozenset({"Succeeded", "RolledBack", "Rejected", "Expired"})


def _phase(command: Mapping[str, Any]) -> str:
    return str((command.get("status") or {}).get("phase", ""))


def class_of_pool(pool: dict[str, Any]) -> dict[str, Any]:
    """Return a NodePool of the published workloads with the NodeClass of the builders."""
    reference = {"spec": {"template": {"spec": {"nodeClassRef": dict(builders.CLASS_REF)}}}}
    return builders.merge(pool, reference)


def _node_pool() -> dict[str, Any]:
    """Return the NodePool of the published workloads with a budget of 100 %, without the largest nodes."""
    pool = workloads.node_pool("on-demand")
    pool["spec"]["template"]["spec"]["requirements"].append(
        workloads.in_("karpenter.k8s.aws/instance-cpu", "2", "4", "8", "16")
    )
    pool["spec"]["template"]["spec"]["nodeClassRef"] = dict(builders.CLASS_REF)
    pool["spec"]["disruption"] = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}
    return pool


def measure_removals(*, deployments: int, seed: int, quiet: float = 20.0, within: float = 400.0) -> RemovalResult:
    """Fill and shrink a cluster on a new control plane, and measure what consolidation makes of it."""
    with ControlPlane(scheduler=True, controllers=True) as plane:
        cluster = RemovalCluster(plane, deployments=deployments, seed=seed)
        cluster.fill()
        cluster.shrink()
        return cluster.consolidate(quiet=quiet, within=within)
