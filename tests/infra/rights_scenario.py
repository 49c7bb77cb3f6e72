"""A deployment whose functions are processes of their own, for tests of the rights that each function needs.

On a cloud each function has caches of its own, so that it also sends the requests whose answers another function has.
"""

import io
from abc import ABC, abstractmethod
from datetime import timedelta

from journeyman.core.api.objects import NODECLAIM, NODEPOOL, POD
from journeyman.errors import KubeUnavailableError
from journeyman.observe import RunTelemetry
from journeyman.runtime.adapters import logger
from journeyman.runtime.composition import installed
from journeyman_simulator.local_deployment import ACTOR
from journeyman_simulator.workload_controllers import DEPLOYMENT


class OwnProcess:
    """Runs a function's handler in a runtime of its own, created by its first invocation."""

    def __init__(self, handler, create):
        self._handler, self._create, self._runtime = handler, create, None

    def restart(self):
        self._runtime = None

    def __call__(self, event, context):
        self._runtime = self._runtime or self._create()
        with installed(self._runtime):
            return self._handler(event, context)


class Unmeasured:
    """Adapters without metrics on standard output."""

    def telemetry(self, store, fields):
        return RunTelemetry(logger(), store, self.clock, fields=fields, stream=io.StringIO())

    def observe(self, observations):
        """Emit nothing."""


class RightsScenario(ABC):
    """Runs a deployment, whose API server does not respond while the scenario `is_down`."""

    def __init__(self, deployment):
        self.deployment, self.server, self.world = deployment, deployment.server, deployment.world
        self.is_down = False
        self.processes = {}
        for name, function in deployment.stack.functions.items():
            self.processes[name] = function.handler = OwnProcess(function.handler, self.new_runtime)

    @abstractmethod
    def new_runtime(self):
        """Return a runtime as a new process of a function has it."""

    def restart(self):
        """Let every function read everything again."""
        for process in self.processes.values():
            process.restart()

    def store(self):
        if self.is_down:
            raise KubeUnavailableError("no route to host")
        return self.server.acting_as(ACTOR)

    def run(self, **span):
        self.world.run_for(timedelta(**span))

    def until(self, done, what, minutes):
        self.world.run_until(done, within=timedelta(minutes=minutes), waiting_for=what)

    def claims(self, pool=""):
        """Return the NodeClaims, of one NodePool or of all."""
        found = self.server.list(NODECLAIM).items
        return [claim for claim in found if not pool or claim.metadata.labels["karpenter.sh/nodepool"] == pool]

    def pool(self, name, node_class, capacity_type, **disruption):
        """Create a NodePool with nodes of a NodeClass, which is given by its resource."""
        reference = {"group": node_class.group, "kind": node_class.kind, "name": "default"}
        requirement = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity_type]}
        template = {"spec": {"nodeClassRef": reference, "requirements": [requirement]}}
        spec = {"template": template, **({"disruption": disruption} if disruption else {})}
        self.server.load(
            [{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec}]
        )

    def node_class(self, node_class, spec):
        """Create the NodeClass `default`."""
        kind = {"apiVersion": node_class.api_version, "kind": node_class.kind, "metadata": {"name": "default"}}
        self.server.load([{**kind, "spec": spec}])

    def deploy(self, name, replicas, cpu, pool):
        """Create a workload for the nodes of a NodePool, and wait until its pods run."""
        self.create_workload(name, replicas, cpu, pool)
        self.until_running(name, replicas)

    def create_workload(self, name, replicas, cpu, pool):
        container = {"name": "app", "image": "app", "resources": {"requests": {"cpu": cpu}}}
        spec = {"containers": [container], "nodeSelector": {"karpenter.sh/nodepool": pool}}
        template = {"metadata": {"labels": {"app": name}}, "spec": spec}
        workload = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        meta = {"name": name, "namespace": "default"}
        self.server.load([{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": workload}])

    def until_running(self, name, replicas):
        self.until(lambda: self._running(name) == replicas, f"{replicas} pods of {name}", minutes=8)

    def _running(self, name):
        pods = self.server.list(POD).items
        return sum(pod.metadata.labels.get("app") == name and pod.status.phase == "Running" for pod in pods)

    def replace_node(self, node_class):
        """Let consolidation replace a node by a smaller one, with functions that have read nothing before."""
        disruption = {
            "consolidationPolicy": "WhenEmptyOrUnderutilized",
            "consolidateAfter": "0s",
            "budgets": [{"nodes": "100%"}],
        }
        self.pool("steady", node_class, "on-demand", **disruption)
        self.deploy("large", 1, "14", "steady")
        self.deploy("small", 1, "1", "steady")
        before = {claim.metadata.name for claim in self.claims("steady")}
        self.restart()
        self.server.delete(DEPLOYMENT, "large", namespace="default")
        self.until(lambda: not before & {claim.metadata.name for claim in self.claims()}, "the replacement", minutes=20)
        self.run(minutes=1)

    def remove_everything(self):
        for resource, namespace in ((DEPLOYMENT, "default"), (NODEPOOL, "")):
            for item in self.server.list(resource).items:
                metadata = item["metadata"] if isinstance(item, dict) else {"name": item.metadata.name}
                self.server.delete(resource, metadata["name"], namespace=namespace)
        self.until(lambda: not self.claims(), "no NodeClaims", minutes=15)
