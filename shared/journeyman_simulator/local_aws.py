"""Runs the deployed application on a simulated cluster and on moto, in this process."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from journeyman.cloud.aws.aws_settings import AwsSettings
from journeyman.cloud.aws.pricing import shipped_on_demand
from journeyman.core.api.objects import EC2NODECLASS
from journeyman.core.plan import Observation, Step
from journeyman.kube.clusters import RegisteredCluster
from journeyman.observe import RunTelemetry
from journeyman.ports import Clock, KubeStore
from journeyman.runtime.adapters import logger
from journeyman.runtime.aws import AwsAdapters
from journeyman.runtime.composition import Runtime
from journeyman.runtime.environment import read_environment
from journeyman_simulator.cloud_rules.schedule_runner import ScheduleRunner
from journeyman_simulator.deployment_files import deployment_file, load_handler
from journeyman_simulator.ec2_machines import Ec2Machines
from journeyman_simulator.kubelet import BOOT, MachineSource
from journeyman_simulator.lambda_functions import LambdaFunction
from journeyman_simulator.local_deployment import ACTOR, CloudFacts, LocalDeployment, LogLine
from journeyman_simulator.moto_account.moto_seed import seed_account
from journeyman_simulator.moto_account.moto_server import MotoAccount
from journeyman_simulator.sam_stack import ClientSource, SamStack, read_template
from journeyman_simulator.world import Actor

KUBERNETES_VERSION: Final = "1.33"
REGION: Final = "us-east-1"
SERVICE_CIDR: Final = "10.100.0.0/16"


class LocalAwsDeployment(LocalDeployment):
    """The application on moto; `stack` has its resources."""

    facts = CloudFacts(
        account="AWS",
        functions="Lambda",
        spot_warning="EC2 Spot Instance Interruption Warning",
        reclaims="EC2 reclaims a Spot node with two minutes' notice",
        notice=timedelta(minutes=2),
        currency="$",
        gigabyte_second=0.0000166667,  # x86, us-east-1, from the public price page
        request=0.0000002,  # from the same page
        launch_operation="CreateFleet",
    )
    node_class = EC2NODECLASS

    def __init__(
        self,
        *,
        start: datetime,
        cluster: str = "demo",
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
            parameters: Further parameters of the template.
            boot: The time from a running instance to a registered node.
            port: The port on which moto listens; 0 selects a free one.
            families: The instance families that the region offers; all of moto's if there are none.
            on_log: Called with each log line of the functions, parsed.
        """
        super().__init__(start=start, cluster=cluster, boot=boot, on_log=on_log)
        self.aws = MotoAccount(
            self.clock,
            shipped_on_demand(REGION),
            region=REGION,
            port=port,
            families=families,
            on_event=self._record_cloud_event,
        )
        self._parameters = dict(parameters or {})

    def _deploy(self, opened: ExitStack) -> tuple[Runtime, MachineSource, Sequence[Actor]]:
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
        ticker = ScheduleRunner(
            self.aws.client("events"),
            self.aws.client("scheduler"),
            self.clock,
            self.aws.deliver,
            version=self.aws.schedule_version,
        )
        return (
            runtime,
            self.machines,
            [self.aws, ticker, _DirectInvocations(self.aws, self.stack), *self.stack.mappings],
        )

    def _send(self, step: Step, body: str, message_id: str) -> None:
        self.aws.client("sqs").send_message(
            QueueUrl=self.stack.queue_urls[f"{step.value.title()}Queue"],
            MessageBody=body,
            MessageGroupId=self.cluster,
            MessageDeduplicationId=message_id,
        )

    @property
    def functions(self) -> Sequence[LambdaFunction]:
        """Return the deployed functions."""
        return tuple(self.stack.functions.values())

    def calls(self) -> Mapping[str, int]:
        """Return the number of requests to the account by operation."""
        return self.aws.calls()

    def interrupt(self, provider_id: str) -> None:
        """Reclaim a Spot instance with two minutes' notice."""
        self.aws.interrupt(provider_id.rsplit("/", 1)[-1])

    def _record_cloud_event(self, event: Mapping[str, Any]) -> None:
        self.machines.record_event(event)

    @property
    def price_per_hour(self) -> float:
        """Return the price in USD per hour of all pending and running instances."""
        found = self.aws.client("ec2").describe_instances(
            Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        )
        return sum(self._price(i) for r in found["Reservations"] for i in r["Instances"])

    def _live_instances(self) -> list[str]:
        pages = self.aws.client("ec2").get_paginator("describe_instances").paginate()
        return [
            f"instance {i['InstanceId']} is {i['State']['Name']}"
            for page in pages
            for r in page["Reservations"]
            for i in r["Instances"]
            if i["State"]["Name"] not in {"terminated", "shutting-down"}
        ]

    def _dead_letters(self) -> list[str]:
        sqs = self.aws.client("sqs")
        name = "ApproximateNumberOfMessages"
        return [
            url.rsplit("/", 1)[-1]
            for url in self.stack.dead_letter_urls
            if int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])
        ]

    def _price(self, instance: Mapping[str, Any]) -> float:
        capacity_type = "spot" if instance.get("InstanceLifecycle") == "spot" else "on-demand"
        zone = instance["Placement"]["AvailabilityZone"]
        return self.aws.prices.price(instance["InstanceType"], zone, capacity_type) or 0.0


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


class _LocalAdapters(AwsAdapters):
    """Emits no metrics, launches one instance after another, and holds messages without a thread, so that runs are reproducible."""

    renew_seconds = 0

    def aws_settings(self, cluster: RegisteredCluster, store: KubeStore) -> AwsSettings:
        """Return the settings with one launch at a time, so that a run is reproducible."""
        return replace(super().aws_settings(cluster, store), max_parallel_launches=1)

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
