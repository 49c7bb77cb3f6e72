"""Runs the deployed application on a simulated cluster and cloud, in this process.

`LocalDeployment` creates the resources of template.yaml on moto, loads the deployed handlers, and replaces three parts of
the AWS runtime: the cluster by an in-memory API server, the clock by a virtual one, and the boto3 clients by clients of
moto. Parsers, steps, cloud adapter and queues are those that run on Lambda. The demo, event replay and end-to-end tests
use it.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final

from msgspec.structs import replace

from journeyman.cloud.aws.aws_settings import AwsSettings
from journeyman.cloud.aws.pricing import shipped_on_demand
from journeyman.core.api.objects import NODECLAIM
from journeyman.core.plan import Observation, Step
from journeyman.kube.clusters import RegisteredCluster
from journeyman.observe import RunTelemetry
from journeyman.observe.logs import SERVICE
from journeyman.ports import Clock, KubeStore
from journeyman.runtime.aws import AwsAdapters, logger
from journeyman.runtime.composition import Runtime, installed
from journeyman.runtime.environment import read_environment
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.cloud_rules.schedule_runner import ScheduleRunner
from journeyman_simulator.deployment_files import deployment_file, load_handler
from journeyman_simulator.ec2_machines import Ec2Machines
from journeyman_simulator.kube_scheduler import KubeScheduler
from journeyman_simulator.kubelet import BOOT, Kubelets
from journeyman_simulator.local_forwarder import LocalForwarder
from journeyman_simulator.moto_account.moto_seed import seed_account
from journeyman_simulator.moto_account.moto_server import MotoAccount
from journeyman_simulator.sam_stack import ClientSource, SamStack, read_template
from journeyman_simulator.workload_controllers import WorkloadControllers
from journeyman_simulator.world import World

KUBERNETES_VERSION: Final = "1.33"
REGION: Final = "us-east-1"
SERVICE_CIDR: Final = "10.100.0.0/16"
ACTOR: Final = "journeyman"
LogLine = Mapping[str, Any]


class LocalDeployment:
    """A context manager that deploys the application on entry; `world` then runs it, and `stack` has its resources."""

    def __init__(
        self,
        *,
        start: datetime,
        cluster: str = "demo",
        consolidation_window: str = "",
        parameters: Mapping[str, str] | None = None,
        boot: timedelta = BOOT,
        port: int = 0,
        families: Collection[str] = (),
        on_log: Callable[[LogLine], None] | None = None,
    ) -> None:
        """Prepare a deployment.

        Args:
            start: The virtual time at the start; aware.
            cluster: The registered cluster's name.
            consolidation_window: The template's parameter ConsolidationWindow.
            parameters: Further parameters of the template.
            boot: The time from a running instance to a registered node.
            port: The port on which moto listens; 0 selects a free one.
            families: The instance families that the region offers; all of moto's if there are none.
            on_log: Called with each log line of the functions, parsed.
        """
        self.cluster = cluster
        self.clock = VirtualClock(start)
        self.server = ApiServer(self.clock)
        self.aws = MotoAccount(
            self.clock,
            shipped_on_demand(REGION),
            region=REGION,
            port=port,
            families=families,
            on_event=self._record_cloud_event,
        )
        self._parameters = {"ConsolidationWindow": consolidation_window, **(parameters or {})}
        self._boot = boot
        self._on_log = on_log
        self._opened = ExitStack()

    def __enter__(self) -> LocalDeployment:
        with ExitStack() as opened:
            opened.enter_context(self.aws)
            seeded = seed_account(self.aws, cluster=self.cluster, kubernetes_version=KUBERNETES_VERSION)
            self.machines = Ec2Machines(self.aws, self.cluster)
            self.stack = SamStack(
                self.aws,
                read_template(deployment_file("template.yaml")),
                {
                    "ClusterName": self.cluster,
                    "NodeRoleArn": f"arn:aws:iam::{self.aws.account}:role/{seeded.role}",
                    **self._parameters,
                },
            )
            self.stack.create_resources(load_handler, self.clock, self.aws.queues.due)
            for function in self.stack.functions:
                self.aws.permissions.give_role(function, self.stack.role_of(function))
            runtime = local_runtime(
                self.aws,
                self.stack.variables,
                cluster=self.cluster,
                endpoint=seeded.endpoint,
                store=self.server.acting_as(ACTOR),
                clock=self.clock,
            )
            opened.enter_context(captured_logs(self._on_log))
            opened.enter_context(installed(runtime))
            self.world = World(self.clock, self._actors())
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.close()

    def _record_cloud_event(self, event: Mapping[str, Any]) -> None:
        self.machines.record_event(event)

    @property
    def price_per_hour(self) -> float:
        """Return the price in USD per hour of all pending and running instances."""
        found = self.aws.client("ec2").describe_instances(
            Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        )
        return sum(self._price(i) for r in found["Reservations"] for i in r["Instances"])

    def leftovers(self) -> tuple[str, ...]:
        """Return the NodeClaims, live instances and dead letters, which a cluster without workloads must not have; sorted."""
        claims = [f"NodeClaim {c.metadata.name}" for c in self.server.list(NODECLAIM).items]
        pages = self.aws.client("ec2").get_paginator("describe_instances").paginate()
        instances = [
            f"instance {i['InstanceId']} is {i['State']['Name']}"
            for page in pages
            for r in page["Reservations"]
            for i in r["Instances"]
            if i["State"]["Name"] not in {"terminated", "shutting-down"}
        ]
        letters = [f"dead letter in {url.rsplit('/', 1)[-1]}" for url in self._urls_with_dead_letters()]
        return tuple(sorted(claims + instances + letters))

    def _urls_with_dead_letters(self) -> list[str]:
        sqs = self.aws.client("sqs")
        name = "ApproximateNumberOfMessages"
        return [
            url
            for url in self.stack.dead_letter_urls
            if int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])
        ]

    def _price(self, instance: Mapping[str, Any]) -> float:
        capacity_type = "spot" if instance.get("InstanceLifecycle") == "spot" else "on-demand"
        zone = instance["Placement"]["AvailabilityZone"]
        return self.aws.prices.price(instance["InstanceType"], zone, capacity_type) or 0.0

    def _actors(self) -> list[Any]:
        sqs = self.aws.client("sqs")
        queue_urls = self.stack.queue_urls

        def send(step: Step, body: str, message_id: str) -> None:
            url = queue_urls[f"{step.value.title()}Queue"]
            sqs.send_message(
                QueueUrl=url, MessageBody=body, MessageGroupId=self.cluster, MessageDeduplicationId=message_id
            )

        ticker = ScheduleRunner(self.aws.client("events"), self.aws.client("scheduler"), self.clock, self.aws.deliver)
        return [
            WorkloadControllers(self.server.acting_as("kube-controller-manager")),
            KubeScheduler(self.server.acting_as("kube-scheduler"), self.clock),
            Kubelets(self.server.acting_as("kubelet"), self.clock, self.machines, boot=self._boot),
            self.aws,
            LocalForwarder(self.server, self.clock, self.cluster, send),
            ticker,
            _DirectInvocations(self.aws, self.stack),
            *self.stack.mappings,
        ]


def local_runtime(
    account: ClientSource,
    variables: Mapping[str, str],
    *,
    cluster: str,
    endpoint: str,
    store: KubeStore,
    clock: Clock,
) -> Runtime:
    """Return the AWS runtime with its cluster, clock and account replaced.

    Args:
        account: The account of all boto3 clients.
        variables: The functions' environment variables, from the template.
        cluster: The name of the only registered cluster.
        endpoint: The URL of the cluster's API server, for the nodes' user data.
        store: The cluster's API server.
        clock: The clock of the runtime.
    """
    registered = {
        "name": cluster,
        "region": REGION,
        "endpoint": endpoint,
        "kubernetesVersion": KUBERNETES_VERSION,
        "serviceCidr": SERVICE_CIDR,
        "access": {"kind": "kubeconfig"},
    }
    environment = read_environment({**variables, "JOURNEYMAN_CLUSTERS": json.dumps([registered])})
    clients: dict[str, Any] = {}

    def client(service: str, _region: str) -> Any:
        if service not in clients:
            clients[service] = account.client(service)
        return clients[service]

    adapters = _LocalAdapters(
        environment,
        clock=clock,
        stores=lambda _settings: store,
        clients=client,
    )
    return Runtime(adapters.clusters.settings, adapters)


@contextmanager
def captured_logs(on_log: Callable[[LogLine], None] | None) -> Iterator[None]:
    """Pass each line of the process's logger, including debug lines, to `on_log` instead of printing it."""
    logger()  # creates the handler whose formatter `capture` uses
    ours = logging.getLogger(SERVICE)
    handlers, level = list(ours.handlers), ours.level
    capture = logging.StreamHandler(_ParsedLines(on_log))
    capture.setFormatter(handlers[0].formatter)
    ours.handlers[:] = [capture]
    ours.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        ours.handlers[:] = handlers
        ours.setLevel(level)


class _LocalAdapters(AwsAdapters):
    """Emits no metrics, launches one instance after another, and holds messages without a thread, so that runs are reproducible."""

    renew_seconds = 0

    def aws_settings(self, cluster: RegisteredCluster) -> AwsSettings:
        """Return the settings with one launch at a time, so that a run is reproducible."""
        return replace(super().aws_settings(cluster), max_parallel_launches=1)

    def telemetry(self, store: KubeStore, fields: Mapping[str, str]) -> RunTelemetry:
        return RunTelemetry(logger(), store, self.clock, fields=fields, stream=io.StringIO())

    def observe(self, observations: Sequence[Observation]) -> None:
        """Emit nothing."""


class _DirectInvocations:
    """Invokes the functions that schedules target without a queue. An `Actor`."""

    def __init__(self, aws: MotoAccount, stack: SamStack) -> None:
        self._aws = aws
        self._functions = {function.arn: function for function in stack.functions.values()}

    def due(self) -> datetime | None:
        """Return None: the `ScheduleRunner` is due when a schedule fires."""
        return None

    def act(self) -> bool:
        """Invoke the function of each delivered event; return whether there was one."""
        deliveries = self._aws.take_deliveries()
        for delivery in deliveries:
            self._functions[delivery.function_arn].invoke(delivery.event)
        return bool(deliveries)


class _ParsedLines(io.StringIO):
    """A log stream that parses each line and passes it to `on_log`."""

    def __init__(self, on_log: Callable[[LogLine], None] | None) -> None:
        super().__init__()
        self._on_log = on_log

    def write(self, text: str) -> int:
        if self._on_log and text.strip():
            self._on_log(json.loads(text))
        return len(text)
