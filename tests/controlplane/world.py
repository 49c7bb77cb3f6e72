"""The deployed application on a real control plane: handlers, queues, schedules, the forwarder, and simulated kubelets.

    with RealWorld(plane) as world:
        world.apply(*manifests)
        world.scale("inflate", 10)
        world.until_running("inflate", 10)

kube-apiserver, kube-scheduler and the controllers are Kubernetes' own and run in real time. AWS is moto,
`journeyman_simulator.kubelet` simulates the nodes, and `pod_collector` deletes the pods of missing nodes; all three follow
the scenario's clock (`clock`), which stops while an actor runs, and then jumps. The functions connect to the cluster as on
Lambda (a kubeconfig with a token, the HTTP store), and the forwarder is the deployed one.
"""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import urllib3

from infra.forwarder.aws_sinks import SqsSink
from infra.forwarder.forwarder import Forwarder
from infra.forwarder.notifications import Batcher, NotifiedStep
from journeyman.cloud.aws.pricing import shipped_on_demand
from journeyman.core.api.objects import NODE, NODE_DISRUPTION, NODECLAIM, POD, Resource, is_true
from journeyman.kube.access.kubeconfig import from_kubeconfig
from journeyman.kube.connection_pool import Connection, client_context
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman.runtime.composition import Runtime, installed
from journeyman_simulator.cloud_rules.schedule_runner import ScheduleRunner
from journeyman_simulator.deployment_files import deployment_file, load_handler
from journeyman_simulator.ec2_machines import Ec2Machines
from journeyman_simulator.kubelet import Kubelets
from journeyman_simulator.lambda_functions import LambdaHandler
from journeyman_simulator.local_aws import KUBERNETES_VERSION, REGION
from journeyman_simulator.local_deployment import captured_logs
from journeyman_simulator.moto_account.moto_seed import seed_account
from journeyman_simulator.moto_account.moto_server import MotoAccount
from journeyman_simulator.sam_stack import SamStack, read_template
from journeyman_simulator.world import WorldStuckError
from tests.controlplane.adapters import runtime
from tests.controlplane.clock import DatedStore, JumpingClock
from tests.controlplane.idle import is_idle
from tests.controlplane.manifests import apply
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pod_collector import PodCollector
from tests.controlplane.registration import registration
from tests.controlplane.sandboxes import Deaths, SandboxDiedError, Sandboxes
from tests.helpers.waiting import wait_until

_IDLE_SECONDS = 0.06  # without a change, before the clock may jump
_IDLE_ROUND_TRIPS = 12  # added to it: so many times the API server's response time, for a busy machine
_LONGEST_IDLE_SECONDS = 12.0  # kube-scheduler retries a pod after ten seconds at the latest
_POLL_SECONDS = 0.03


class RealWorld:
    """A context manager, which deploys the application; all actors except Kubernetes run only inside `until` and `run_for`.

    Args:
        plane: A control plane with scheduler and controllers, and with the CRDs installed.
        cluster: The registered cluster's name.
        groups: The functions' groups in the cluster.
        forwarder_groups: The forwarder's groups in the cluster.
        deaths: If given, the functions run in a separate process, which is killed as it draws.
        families: The instance families that the region offers; all of moto's if there are none.

    Attributes:
        store: Reads and writes the cluster as the admin.
        logs: All lines that the functions logged, parsed.
        metrics: All metrics that the functions wrote, in CloudWatch's embedded metric format.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *,
        cluster: str = "demo",
        groups: Iterable[str] = ("system:masters",),
        forwarder_groups: Iterable[str] = ("system:masters",),
        deaths: Deaths | None = None,
        families: Collection[str] = (),
    ) -> None:
        self.plane = plane
        self.cluster = cluster
        self.clock = JumpingClock()
        self.logs: list[Mapping[str, Any]] = []
        self.metrics = io.StringIO()
        connection = from_kubeconfig(str(plane.kubeconfig))
        self.store = DatedStore(HttpKubeStore(Transport(connection, cluster=cluster)), self.clock)
        self.aws = MotoAccount(
            self.clock,
            shipped_on_demand(REGION),
            region=REGION,
            families=families,
            on_event=self._note_cloud_event,
        )
        self._groups = tuple(groups)
        self._forwarder_groups = tuple(forwarder_groups)
        self._deaths = deaths
        self._opened = ExitStack()

    def __enter__(self) -> RealWorld:
        with ExitStack() as opened:
            opened.enter_context(self.aws)
            seeded = seed_account(self.aws, cluster=self.cluster, kubernetes_version=KUBERNETES_VERSION)
            self.machines = Ec2Machines(self.aws, self.cluster)
            parameters = {
                "ClusterName": self.cluster,
                "NodeRoleArn": f"arn:aws:iam::{self.aws.account}:role/{seeded.role}",
            }
            self.stack = SamStack(self.aws, read_template(deployment_file("template.yaml")), parameters)
            self.stack.create_resources(self._handlers(opened), self.clock, self.aws.queues.due)
            for function in self.stack.functions.values():
                function.fatal = (SandboxDiedError,)
            opened.enter_context(captured_logs(self.logs.append))
            opened.enter_context(installed(self.sandbox()))
            self._kubelets = Kubelets(_CountingWrites(self.store), self.clock, self.machines, sees_all_writes=False)
            self._pod_collector = PodCollector(self.store, self.clock)
            ticker = ScheduleRunner(
                self.aws.client("events"), self.aws.client("scheduler"), self.clock, self.aws.deliver
            )
            self._actors = (self.aws, ticker, *self.stack.mappings)
            self._seen_version, self._idle_seconds = "", _IDLE_SECONDS
            self._checked_version, self._was_idle = "", True
            self._start_forwarder(opened)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def sandbox(self, kubeconfig: Path | None = None) -> Runtime:
        """Return a runtime with empty caches; the functions use the one that was `installed` last.

        Args:
            kubeconfig: The kubeconfig with the functions' identity; by default one for the user `journeyman`.
        """
        return runtime(self._variables(kubeconfig), self.clock, self.aws.client, self.metrics)

    # --- changes to the cluster

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Create or update these objects."""
        for manifest in manifests:
            apply(self.plane.admin, manifest)

    def scale(self, deployment: str, replicas: int, *, namespace: str = "default") -> None:
        """Set the replicas of a Deployment."""
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}"
        self.plane.admin.do("PATCH", path, {"spec": {"replicas": replicas}}, kind="application/merge-patch+json")

    # --- the state of cluster and account

    def pods(self, app: str) -> list[Any]:
        """Return the pods with this label `app`."""
        return list(self.store.list(POD, label_selector=f"app={app}").items)

    def running(self, app: str) -> int:
        """Return how many of the app's pods run and are not terminating."""
        return sum(p.status.phase == "Running" and p.metadata.deletion_timestamp is None for p in self.pods(app))

    def claims(self) -> tuple[Any, ...]:
        """Return all NodeClaims."""
        return self.store.list(NODECLAIM).items

    def nodes(self) -> tuple[Any, ...]:
        """Return all Nodes."""
        return self.store.list(NODE).items

    def instances(self) -> dict[str, str]:
        """Return the state of each instance that was ever launched, by id."""
        pages = self.aws.client("ec2").get_paginator("describe_instances").paginate()
        return {
            i["InstanceId"]: i["State"]["Name"] for page in pages for r in page["Reservations"] for i in r["Instances"]
        }

    def is_quiet(self) -> bool:
        """Return whether all NodeClaims are initialized and none is terminating."""
        claims = self.claims()
        return all(
            claim.metadata.deletion_timestamp is None and is_true(claim.status.conditions, "Initialized")
            for claim in claims
        ) and len(self.nodes()) == len(claims)

    def leftovers(self) -> list[str]:
        """Describe the objects, instances and dead letters that a cluster without pods should not have."""
        present = {
            id_: state for id_, state in self.instances().items() if state not in {"shutting-down", "terminated"}
        }
        return [
            *(f"NodeClaim {c.metadata.name}, finalizers {c.metadata.finalizers}" for c in self.claims()),
            *(f"Node {n.metadata.name}, finalizers {n.metadata.finalizers}" for n in self.nodes()),
            *(f"instance {id_} is {state}" for id_, state in present.items()),
            *(f"dead letter in {url}" for url in self.stack.dead_letter_urls if self._message_count(url)),
        ]

    # --- running the actors

    def until(self, done: Callable[[], bool], waiting_for: str, *, within: timedelta = timedelta(minutes=5)) -> float:
        """Run all actors until `done` returns true; return how many seconds passed by the scenario's clock.

        Raises:
            WorldStuckError: The time `within` passed before.
        """
        began = self.clock.now()
        while True:
            self._run_until_idle()
            if done():
                return (self.clock.now() - began).total_seconds()
            if self.clock.now() - began > within:
                raise WorldStuckError(
                    f"still waiting for {waiting_for} after {within}; {self._description()}",
                    began=self.clock.began.isoformat(),
                )
            self._jump()

    def until_running(self, app: str, number: int, **within: Any) -> float:
        """Run all actors until the app has exactly so many pods, all running; return the seconds."""

        def done() -> bool:
            return len(self.pods(app)) == self.running(app) == number

        return self.until(done, f"{number} running pods of {app}", **within)

    def run_for(self, span: timedelta) -> None:
        """Run all actors for a time by the scenario's clock."""
        end = self.clock.now() + span
        self._run_until_idle()
        while self.clock.now() < end:
            self._jump(end)
            self._run_until_idle()

    # --- parts

    def _description(self) -> str:
        """Describe cluster and account, for the message of a wait that timed out."""
        pods = Counter(f"{p.status.phase} on {p.spec.node_name or 'no node'}" for p in self.store.list(POD).items)
        disruptions = (f"{d['metadata']['name']} {d.get('status')}" for d in self.store.list(NODE_DISRUPTION).items)
        found = [
            *(f"{number} pods {where}" for where, number in sorted(pods.items())),
            *(f"NodeDisruption {text}" for text in disruptions),
            *self.leftovers(),
        ]
        return "; ".join(found)

    def _variables(self, kubeconfig: Path | None = None) -> dict[str, str]:
        """Return the functions' environment variables."""
        identity = kubeconfig or self.plane.kubeconfig_for("journeyman", self._groups)
        cluster = registration(self.plane, self.cluster, identity)
        return {**self.stack.variables, "AWS_REGION": REGION, "JOURNEYMAN_CLUSTERS": json.dumps([cluster])}

    def _handlers(self, opened: ExitStack) -> Callable[[str], LambdaHandler]:
        """Return how the template's handlers are called: in this process, or in one that is killed."""
        if self._deaths is None:
            return load_handler
        log = self.plane.kubeconfig.with_name("functions.log")
        self.sandboxes = Sandboxes(self._variables, self.aws.endpoint_url, self.clock, self._deaths, log)
        return opened.enter_context(self.sandboxes).handler

    def _run_until_idle(self) -> None:
        """Run all actors until none has anything to do before the clock jumps."""
        last = time.monotonic()
        while True:
            now = time.monotonic()
            if self._act():
                last = now
            elif now - last > _LONGEST_IDLE_SECONDS or (now - last > self._idle_seconds and self._is_kubernetes_idle()):
                return
            else:
                time.sleep(_POLL_SECONDS)

    def _act(self) -> bool:
        """Run each actor once; return whether anything changed, by an actor or by Kubernetes."""
        version = self._version()
        busy = has_changed = version != self._seen_version
        self._seen_version = version
        for actor in (self._kubelets, self._pod_collector):
            due = actor.due()
            if version and (has_changed or (due is not None and due <= self.clock.now())):
                busy |= actor.act()
        for actor in self._actors:
            busy |= actor.act()
        return self._invoke_directly() or busy or self._batcher.due() is not None

    def _is_kubernetes_idle(self) -> bool:
        """Return whether Kubernetes is idle at the last seen version; the answer is cached per version."""
        if self._seen_version and self._seen_version != self._checked_version:
            self._checked_version, self._was_idle = self._seen_version, is_idle(self.store, self.plane.admin)
        return not self._seen_version or self._was_idle

    def _version(self) -> str:
        """Return the cluster's latest resource version; empty while the API server does not answer."""
        began = time.monotonic()
        try:
            status, found = self.plane.admin.call("GET", "/api/v1/namespaces?limit=1")
        except urllib3.exceptions.HTTPError:
            return ""
        self._idle_seconds = _IDLE_SECONDS + _IDLE_ROUND_TRIPS * (time.monotonic() - began)
        return str(found["metadata"]["resourceVersion"]) if status == 200 else ""

    def _invoke_directly(self) -> bool:
        """Invoke the functions of schedules and rules that have no queue; return whether there were any."""
        functions = {function.arn: function for function in self.stack.functions.values()}
        deliveries = self.aws.take_deliveries()
        for delivery in deliveries:
            functions[delivery.function_arn].invoke(delivery.event)
        return bool(deliveries)

    def _jump(self, latest: datetime | None = None) -> None:
        """Move the clock to when the first actor has something to do, at the latest to `latest`."""
        moments = [actor.due() for actor in (self._kubelets, self._pod_collector, *self._actors)]
        now = self.clock.now()
        upcoming = [moment for moment in (*moments, latest) if moment is not None and moment > now]
        if upcoming:
            self.clock.jump_to(min(upcoming))

    def _start_forwarder(self, opened: ExitStack) -> None:
        token = self.plane.token_for("forwarder", self._forwarder_groups)
        context = client_context(ca_file=str(self.plane.ca_file))
        transport = Transport(
            Connection(server=self.plane.server, ssl_context=context, authorization=lambda: f"Bearer {token}")
        )
        queues = {step: self.stack.queue_urls[f"{step.value.title()}Queue"] for step in NotifiedStep}
        self._batcher = Batcher(idle_seconds=0.2, max_seconds=2.0)
        sink = SqsSink(queues, self.cluster, self.aws.client("sqs"))
        forwarder = Forwarder(
            self.cluster, transport, sink, batcher=self._batcher, watch_seconds=5, first_pause_seconds=0.1
        )
        opened.callback(forwarder.stop)
        forwarder.start()
        wait_until(lambda: forwarder.is_ready, "the forwarder has not listed the cluster")

    def _note_cloud_event(self, event: Mapping[str, Any]) -> None:
        self.machines.record_event(event)

    def _message_count(self, url: str) -> int:
        name = "ApproximateNumberOfMessages"
        answer = self.aws.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=[name])
        return int(answer["Attributes"][name])


class _CountingWrites:
    """A store that counts its writes, by which the simulated kubelets know whether they changed anything."""

    def __init__(self, store: DatedStore) -> None:
        self._store = store
        self._writes = 0

    def version_of(self, *_: Resource[Any]) -> int:
        return self._writes

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._store, verb)
        if verb in {"create", "patch", "delete"}:
            self._writes += 1
        return call
