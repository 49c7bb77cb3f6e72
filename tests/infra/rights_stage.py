"""Every function in a sandbox and under an identity of its own, on a real API server with the chart installed.

    with RightsStage(plane) as stage:
        stage.run("provision")

Each function has its own composition, as on Lambda: the chart's group, its own memory, the real store. moto simulates
AWS, `journeyman_simulator.kubelet` the nodes, and `bind` kube-scheduler; all follow a simulated clock. That clock is
always ahead of the real time of the API server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from journeyman.cloud.aws.pricing import shipped_on_demand
from journeyman.core.api.objects import CHURN_LEDGER, FLEET_GUARD, FLEET_PLAN, NODE_DISRUPTION, NODECLAIM, Resource
from journeyman.kube.access.kubeconfig import from_kubeconfig
from journeyman.kube.caching_store import CachingKubeStore, ListCache
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman.ports import CloudProvider, KubeStore
from journeyman.runtime.adapters import SystemClock
from journeyman.runtime.aws import AwsAdapters
from journeyman.runtime.composition import Runtime, installed
from journeyman.runtime.environment import read_environment
from journeyman.steps.context import Settings
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.deployment_files import deployment_file, load_handler
from journeyman_simulator.ec2_machines import Ec2Machines
from journeyman_simulator.kubelet import Kubelets
from journeyman_simulator.lambda_functions import InvocationOutcome
from journeyman_simulator.local_aws import KUBERNETES_VERSION, REGION
from journeyman_simulator.local_deployment import captured_logs
from journeyman_simulator.moto_account.moto_seed import seed_account
from journeyman_simulator.moto_account.moto_server import MotoAccount
from journeyman_simulator.sam_stack import SamStack, read_template
from tests.controlplane.plane import ControlPlane
from tests.controlplane.registration import registration
from tests.helpers.deployed_application import FEW_FAMILIES

FUNCTIONS = ("provision", "terminate", "consolidate", "interrupt", "sweep", "api")
CLUSTER = "demo"
MERGE = "application/merge-patch+json"
ALL_FEATURES = {
    "FEATURE_GATES": "NodeOverlay=true,CapacityBuffer=true",
    "FLEET_PLANS": "true",
    "IGNORE_DRA_REQUESTS": "false",
    "SCHEDULER_CONFIG": json.dumps(
        {
            "podTopologySpread": {
                "defaultConstraints": [
                    {"maxSkew": 5, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
                ]
            }
        }
    ),
}


class RightsStage:
    """A context with the application deployed; functions run only when a test calls them.

    Args:
        plane: A control plane without scheduler and controllers, with the chart installed.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.admin = plane.admin
        self.clock = VirtualClock(SystemClock().now() + timedelta(minutes=1))
        self.logs: list[Mapping[str, Any]] = []
        self.repeated: list[str] = []
        self._plane = plane
        self._clouds: list[CloudProvider] = []
        self._runtimes: dict[str, Runtime] = {}
        self._opened = ExitStack()

    def __enter__(self) -> RightsStage:
        with ExitStack() as opened:
            prices = shipped_on_demand(REGION)
            self.aws = MotoAccount(
                self.clock, prices, region=REGION, families=FEW_FAMILIES, on_event=self._note_cloud_event
            )
            opened.enter_context(self.aws)
            self._seeded = seed_account(self.aws, cluster=CLUSTER, kubernetes_version=KUBERNETES_VERSION)
            self._machines = Ec2Machines(self.aws, CLUSTER)
            role = f"arn:aws:iam::{self.aws.account}:role/{self._seeded.role}"
            parameters = {"ClusterName": CLUSTER, "NodeRoleArn": role}
            self._stack = SamStack(self.aws, read_template(deployment_file("template.yaml")), parameters)
            self._stack.create_resources(load_handler, self.clock, self.aws.queues.due)
            self.queue_urls = self._stack.queue_urls
            opened.enter_context(captured_logs(self.logs.append))
            self._kubelets = Kubelets(_Kubelet(self._plane), self.clock, self._machines, sees_all_writes=False)
            self.deploy(ALL_FEATURES)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def deploy(self, variables: Mapping[str, str]) -> None:
        """Give every function a new sandbox with these environment variables on top of the template's."""
        self._runtimes = {name: self._sandbox(name, variables) for name in FUNCTIONS}

    def _note_cloud_event(self, event: Mapping[str, Any]) -> None:
        self._machines.record_event(event)

    # --- functions

    def runtime(self, function: str) -> Runtime:
        """Return a function's composition."""
        return self._runtimes[function]

    def run(self, function: str, event: Mapping[str, Any] | None = None) -> Any:
        """Invoke a function, by default for a requeue of its step, and return its answer.

        Fails the test if the function fails.
        """
        deployed = self._stack.functions[f"{function.title()}Function"]
        with installed(self._runtimes[function]):
            invocation = deployed.invoke(dict(event or self._requeue_event(function)))
        assert invocation.outcome is InvocationOutcome.SUCCEEDED, invocation.error
        failures = (invocation.response or {}).get("batchItemFailures", ())
        assert not failures, [line for line in self.logs if line["level"] in {"ERROR", "WARNING"}][-3:]
        return invocation.response

    def _requeue_event(self, step: str) -> dict[str, Any]:
        now = self.clock.now().isoformat()
        body = {
            "version": "1",
            "source": "requeue",
            "id": "1",
            "time": now,
            "cluster": CLUSTER,
            "step": step,
            "reason": "-",
        }
        return self.record(body, f"journeyman-{step}.fifo")

    def record(self, body: Mapping[str, Any], queue: str) -> dict[str, Any]:
        """Return an SQS event with one message."""
        message = {
            "messageId": "m-1",
            "receiptHandle": "r-1",
            "body": json.dumps(body),
            "attributes": {"ApproximateReceiveCount": "1", "MessageGroupId": CLUSTER},
            "messageAttributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:{REGION}:{self.aws.account}:{queue}",
            "awsRegion": REGION,
        }
        return {"Records": [message]}

    def _sandbox(self, function: str, variables: Mapping[str, str]) -> Runtime:
        kubeconfig = self._plane.kubeconfig_for(function, [f"journeyman-{function}"])
        clusters = json.dumps([registration(self._plane, CLUSTER, kubeconfig)])
        environment = read_environment({**self._stack.variables, **variables, "JOURNEYMAN_CLUSTERS": clusters})
        transport = Transport(from_kubeconfig(str(kubeconfig)))
        lists = ListCache(min_objects=0)  # the cache watches every list, however small
        store = _RepeatingStore(CachingKubeStore(HttpKubeStore(transport), lists, cluster=CLUSTER), self.repeated)
        adapters = _Adapters(
            environment,
            clock=self.clock,
            stores=lambda _settings: store,
            clients=lambda service, _region: self.aws.client(service),
        )
        adapters.clouds = self._clouds
        return Runtime(environment.settings, adapters)

    # --- other actors

    @property
    def zones(self) -> list[str]:
        """The zones in which the account has subnets."""
        return sorted({s["AvailabilityZone"] for s in self.aws.client("ec2").describe_subnets()["Subnets"]})

    def advance(self, **span: float) -> None:
        """Advance the clock; the cloud and the kubelets do what is due."""
        self.clock.advance(timedelta(**span).total_seconds())
        while self.aws.act():
            pass
        self._kubelets.act()

    def boot(self) -> None:
        """Advance the clock until nodes join and become ready."""
        for seconds in (25, 8):
            self.advance(seconds=seconds)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object."""
        return self.admin.do("POST", path, body)

    def create_unschedulable_pod(self, name: str, spec: Mapping[str, Any], **metadata: Any) -> None:
        """Create a pod for which kube-scheduler found no node."""
        container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "500m"}}}
        body = {"metadata": {"name": name, **metadata}, "spec": {"containers": [container], **spec}}
        self.create("/api/v1/namespaces/default/pods", body)
        unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/0 nodes"}
        path = f"/api/v1/namespaces/default/pods/{name}/status"
        self.admin.do("PATCH", path, {"status": {"conditions": [unschedulable]}}, kind=MERGE)

    def bind(self, pod: str, node: str) -> None:
        """Bind a pod to a node, as kube-scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self.create(f"/api/v1/namespaces/default/pods/{pod}/binding", {"metadata": {"name": pod}, "target": target})

    def claims(self) -> dict[str, dict[str, Any]]:
        """Return the NodeClaims by name."""
        items = self.admin.do("GET", "/apis/karpenter.sh/v1/nodeclaims")["items"]
        return {item["metadata"]["name"]: item for item in items}

    def initialized(self) -> set[str]:
        """Return the NodePools that have an initialized node."""
        return {
            claim["metadata"]["labels"]["karpenter.sh/nodepool"]
            for claim in self.claims().values()
            for condition in claim.get("status", {}).get("conditions", ())
            if (condition["type"], condition["status"]) == ("Initialized", "True")
        }

    def terminating_claims(self) -> list[str]:
        """Return the names of the NodeClaims that are being deleted."""
        return sorted(name for name, claim in self.claims().items() if "deletionTimestamp" in claim["metadata"])

    def claim_of(self, pool: str) -> dict[str, Any]:
        """Return the one NodeClaim of a NodePool that is not being deleted."""
        (claim,) = (
            c
            for c in self.claims().values()
            if c["metadata"]["labels"]["karpenter.sh/nodepool"] == pool and "deletionTimestamp" not in c["metadata"]
        )
        return claim


class _Adapters(AwsAdapters):
    """The adapters as on Lambda, but all functions share one cloud adapter, so that AWS lists its types only once."""

    clouds: list[CloudProvider]

    def cloud(self, cluster: Settings, store: KubeStore) -> CloudProvider:
        if not self.clouds:
            self.clouds.append(super().cloud(cluster, store))
        return self.clouds[0]


class _Kubelet(HttpKubeStore):
    """The admin's store; simulated kubelets compare versions to see whether they wrote, which no test uses."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(Transport(from_kubeconfig(str(plane.kubeconfig))))

    def version_of(self, *_: Resource[Any]) -> int:
        """Return a constant."""
        return 0


class _RepeatingStore:
    """A store whose network loses the answer to the first creation of each kind, so that the client repeats it."""

    def __init__(self, store: Any, repeated: list[str], unrepeated: set[str] | None = None) -> None:
        self._store = store
        self._repeated = repeated
        self._unrepeated = (
            {NODECLAIM.kind, NODE_DISRUPTION.kind, CHURN_LEDGER.kind, FLEET_GUARD.kind, FLEET_PLAN.kind}
            if unrepeated is None
            else unrepeated
        )

    def for_run(self, *arguments: Any) -> KubeStore:
        """Return the store for one run."""
        run: Any = _RepeatingStore(self._store.for_run(*arguments), self._repeated, self._unrepeated)
        return run

    def create(self, resource: Resource[Any], body: Any, *, namespace: str = "") -> Any:
        """Create an object, the first of each kind twice."""
        if resource.kind in self._unrepeated:
            self._unrepeated.remove(resource.kind)
            self._repeated.append(resource.kind)
            self._store.create(resource, body, namespace=namespace)
        return self._store.create(resource, body, namespace=namespace)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)
