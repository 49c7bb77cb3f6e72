"""A simulated cluster with workload controllers, kube-scheduler, kubelets and a cloud; messages and the sweep run the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODE_DISRUPTION, NODECLAIM, NODEPOOL, POD, NodeClaim, is_true
from journeyman.core.catalogue import InstanceType
from journeyman.core.plan import Step
from journeyman.ports import Message, RequeueDue, Trigger
from journeyman.steps.consolidate import consolidate
from journeyman.steps.context import Outcome, RunContext
from journeyman.steps.provision import provision
from journeyman.steps.sweep import sweep
from journeyman.steps.terminate import terminate
from journeyman_simulator.kube_scheduler import KubeScheduler
from journeyman_simulator.kubelet import Kubelets
from journeyman_simulator.workload_controllers import DEPLOYMENT, WorkloadControllers
from journeyman_simulator.world import World
from tests.helpers.builders import CLUSTER, node_class_body
from tests.helpers.fakes import Cluster, FakeCloud

STEPS: Mapping[Step, Callable[[RunContext, Trigger], Outcome]] = {
    Step.PROVISION: provision,
    Step.TERMINATE: terminate,
    Step.CONSOLIDATE: consolidate,
}


@dataclass
class Functions:
    """An actor that runs each step whose message is due, and the sweep every minute."""

    cluster: Cluster
    outcomes: list[tuple[datetime, Outcome]] = field(default_factory=list)
    last_sweep: datetime | None = None

    def due(self) -> datetime | None:
        """Return when the next message or sweep is due."""
        now = self.cluster.clock.now()
        times = [m.at or now for m in self.cluster.queue.sent]
        return min([*times, self._next_sweep()])

    def act(self) -> bool:
        """Run the sweep if it is due, then the first step that is due; return whether there was such a step."""
        now = self.cluster.clock.now()
        if now >= self._next_sweep():
            self.last_sweep = now
            sweep(self.cluster.run(), self.trigger(Step.SWEEP))
        ready = [m for m in self.cluster.queue.sent if m.at is None or m.at <= now]
        if not ready:
            return False
        step = ready[0].step
        self.cluster.queue.sent = [m for m in self.cluster.queue.sent if m not in ready or m.step is not step]
        self.outcomes.append((now, STEPS[step](self.cluster.run(), self.trigger(step))))
        return True

    def _next_sweep(self) -> datetime:
        return self.last_sweep + timedelta(minutes=1) if self.last_sweep else self.cluster.clock.now()

    def trigger(self, step: Step) -> Trigger:
        """Return a trigger of the step, as the sweep sends it."""
        now = self.cluster.clock.now()
        return RequeueDue(id="t", cluster=CLUSTER, step=step, reason="test", time=now)


class SimulatedCluster:
    """The simulated cluster, with methods that change it, run it and query its state."""

    def __init__(self, types: Sequence[InstanceType], pool: dict[str, Any]) -> None:
        self.cluster = Cluster()
        self.server, self.clock, self.record = self.cluster.server, self.cluster.clock, self.cluster.record
        self.cluster.cloud = self.cloud = FakeCloud(self.clock, types)
        self.cluster.add(pool, node_class_body())
        self.functions = Functions(self.cluster)
        self.world = World(
            self.clock,
            [
                WorkloadControllers(self.server, self.clock),
                KubeScheduler(self.server, self.clock),
                Kubelets(self.server, self.clock, self.cloud),
                self.functions,
            ],
        )

    def deploy(
        self,
        name: str,
        replicas: int,
        *,
        cpu: str,
        memory: str = "1Gi",
        annotations: Mapping[str, str] = MappingProxyType({}),
        pool: str = "",
    ) -> None:
        """Create a Deployment, whose pods have these annotations and select that NodePool, and run the provision step."""
        container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
        selector = {"nodeSelector": {labels.NODEPOOL: pool}} if pool else {}
        metadata = {"labels": {"app": name}, "annotations": dict(annotations)}
        template = {"metadata": metadata, "spec": {"containers": [container], **selector}}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        meta = {"name": name, "namespace": "default"}
        body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
        self.server.create(DEPLOYMENT, body, namespace="default")
        self.requeue(Step.PROVISION)

    def scale(self, name: str, replicas: int) -> None:
        """Set the replicas of a Deployment."""
        self.server.patch(DEPLOYMENT, name, {"spec": {"replicas": replicas}}, namespace="default")

    def delete_node_and_kubelet(self, claim: NodeClaim) -> None:
        """Delete a NodeClaim's Node without its finalizers; its kubelet does not register it again."""
        name, machines = claim.status.node_name, self.cloud.machines
        self.cloud.machines = lambda: tuple(m for m in machines() if m.node_name != name)
        self.server.patch(NODE, name, {"metadata": {"finalizers": []}})
        self.server.delete(NODE, name)

    def requeue(self, step: Step) -> None:
        """Send a requeue message for a step."""
        self.cluster.queue.send([Message(cluster=CLUSTER, step=step, reason="test")])

    def until(self, done: Callable[[], bool], what: str, *, minutes: float = 30) -> None:
        """Run all actors until `done` returns true."""
        self.world.run_until(done, within=timedelta(minutes=minutes), waiting_for=what)

    def run_for(self, *, minutes: float) -> None:
        """Run all actors for so many minutes of virtual time."""
        self.world.run_for(timedelta(minutes=minutes))

    def running(self) -> int:
        """Return how many pods run."""
        return sum(1 for pod in self.server.list(POD).items if pod.status.phase == "Running")

    def pending(self) -> int:
        """Return how many pods have no node."""
        return sum(1 for pod in self.server.list(POD).items if not pod.spec.node_name)

    def nodes(self) -> list[str]:
        """Return the instance types of the nodes, sorted."""
        return sorted(n.metadata.labels["node.kubernetes.io/instance-type"] for n in self.server.list(NODE).items)

    def claims(self) -> tuple[Any, ...]:
        """Return the NodeClaims."""
        return self.server.list(NODECLAIM).items

    def initialized(self) -> list[Any]:
        """Return the initialized NodeClaims."""
        return [claim for claim in self.claims() if is_true(claim.status.conditions, "Initialized")]

    def settled(self) -> list[str]:
        """Return the names of the initialized NodeClaims that are not terminating."""
        return [claim.metadata.name for claim in self.initialized() if claim.metadata.deletion_timestamp is None]

    def messages(self, reason: str) -> list[str]:
        """Return the messages of the Events with this reason."""
        return [event.message for event in self.record.events if event.reason == reason]

    def registration_health(self) -> tuple[str, str]:
        """Return status and reason of the NodePool's condition NodeRegistrationHealthy."""
        conditions = self.server.get(NODEPOOL, "default")["status"]["conditions"]
        return next((c["status"], c["reason"]) for c in conditions if c["type"] == "NodeRegistrationHealthy")

    def disruptions(self) -> list[tuple[str, str, str]]:
        """Return (reason, decision, phase) of the NodeDisruptions in order of creation."""
        made = sorted(self.server.list(NODE_DISRUPTION).items, key=lambda d: d["spec"]["createdAt"])
        return [(d["spec"]["reason"], d["spec"]["decision"], (d.get("status") or {}).get("phase", "")) for d in made]
