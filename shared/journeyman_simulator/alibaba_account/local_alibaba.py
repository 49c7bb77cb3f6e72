"""Runs the deployed application on a simulated cluster and a simulated Alibaba Cloud account, in this process.

The official SDK sends its requests over HTTP to the simulated services on 127.0.0.1, whose clock is virtual: so their
signatures carry the machine's time, and the server checks them against that.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from msgspec.structs import replace

from journeyman.cloud.alibaba.alibaba_settings import AlibabaSettings
from journeyman.cloud.alibaba.ecs_instances import instance_id_from
from journeyman.cloud.alibaba.sdk_client import SdkOpenApi
from journeyman.cloud.alibaba.smq_queue import SmqMessage
from journeyman.core.api.objects import ECSNODECLASS
from journeyman.core.plan import Observation, Step
from journeyman.kube.clusters import RegisteredCluster
from journeyman.observe import RunTelemetry
from journeyman.ports import Clock, KubeStore
from journeyman.runtime.adapters import logger
from journeyman.runtime.alibaba import AlibabaAdapters, read_alibaba_environment
from journeyman.runtime.composition import Runtime
from journeyman.runtime.environment import read_environment
from journeyman.signing import Credentials
from journeyman_simulator.alibaba_account.alibaba_account import AlibabaAccount
from journeyman_simulator.alibaba_account.alibaba_machines import AlibabaMachines
from journeyman_simulator.alibaba_account.ecs_instance_states import EcsInstance
from journeyman_simulator.alibaba_account.fc_stack import DEAD_LETTERS, FcStack, read_description
from journeyman_simulator.alibaba_account.openapi_server import serving
from journeyman_simulator.alibaba_account.smq import InProcessSmq, SimulatedSmq
from journeyman_simulator.alibaba_account.smq_http import SmqHttpServer
from journeyman_simulator.cloud_rules.access_keys import SimulatedAccessKey
from journeyman_simulator.deployment_files import load_handler
from journeyman_simulator.kubelet import BOOT, MachineSource
from journeyman_simulator.lambda_functions import LambdaFunction
from journeyman_simulator.local_deployment import ACTOR, CloudFacts, LocalDeployment, LogLine
from journeyman_simulator.startup_taints import StartupTaintRemover
from journeyman_simulator.world import Actor

REGION: Final = "cn-hangzhou"
KUBERNETES_VERSION: Final = "1.33.3-aliyun.1"
ZONES: Final = tuple(f"{REGION}-{letter}" for letter in "ijk")
_ENDING: Final = frozenset({"Stopping", "Stopped", "Deleted"})


class LocalAlibabaDeployment(LocalDeployment):
    """The application on a simulated Alibaba Cloud account; `stack` has its resources."""

    facts = CloudFacts(
        account="Alibaba Cloud",
        functions="Function Compute",
        spot_warning="Preemptible Instance Interruption",
        reclaims="ECS reclaims a preemptible node with five minutes' notice",
        notice=timedelta(minutes=5),
        currency="¥",
        gigabyte_second=0.00009 + 0.000009,  # a vCPU and a GB, cn-hangzhou, from the public price page
        request=0.000_001_5,  # from the same page
        launch_operation="CreateAutoProvisioningGroup",
    )
    node_class = ECSNODECLASS

    def __init__(
        self,
        *,
        start: datetime,
        cluster: str = "demo",
        settings: Mapping[str, str] | None = None,
        boot: timedelta = BOOT,
        on_log: Callable[[LogLine], None] | None = None,
    ) -> None:
        """Prepare a deployment.

        Args:
            start: The virtual time at the start; aware.
            cluster: The registered cluster's name.
            settings: Further settings of the deployment, which s.yaml reads from the environment.
            boot: The time from a running instance to a registered node.
            on_log: Called with each log line of the functions, parsed.
        """
        super().__init__(start=start, cluster=cluster, boot=boot, on_log=on_log)
        self.account = AlibabaAccount(self.clock, region=REGION, zones=ZONES)
        self.smq = SimulatedSmq(self.clock)
        self._settings = dict(settings or {})

    def _deploy(self, opened: ExitStack) -> tuple[Runtime, MachineSource, Sequence[Actor]]:
        seeded = self.account.seed(cluster=self.cluster, kubernetes_version=KUBERNETES_VERSION)
        machines = AlibabaMachines(self.account, seeded.cluster_id)
        settings = {
            "JOURNEYMAN_CLUSTER_NAME": self.cluster,
            "JOURNEYMAN_CLUSTER_ID": seeded.cluster_id,
            **self._settings,
        }
        self.stack = FcStack(self.account, self.smq, read_description(), settings)
        self.stack.create_resources(partial(load_handler, cloud="alibaba"), self.clock)
        endpoint = opened.enter_context(serving(self.account))
        queues = opened.enter_context(
            SmqHttpServer(self.smq, self.account.access_keys, self.account.permissions.may_call)
        )
        runtime = local_runtime(
            self.stack.variables,
            services=f"http://{endpoint}",
            queues=queues.endpoint,
            key=self.account.access_key,
            store=self.server.acting_as(ACTOR),
            clock=self.clock,
        )
        taints = StartupTaintRemover(self.server.acting_as("setup-agent"))
        return runtime, machines, [self.account, taints, *self.stack.actors]

    def _send(self, step: Step, body: str, message_id: str) -> None:
        InProcessSmq(self.smq).send(self.stack.queue_names[f"{step.value.title()}Queue"], [SmqMessage(body)])

    @property
    def functions(self) -> Sequence[LambdaFunction]:
        """Return the deployed functions."""
        return tuple(self.stack.functions.values())

    @property
    def price_per_hour(self) -> float:
        """Return the price in yuan per hour of all instances that are not being deleted."""
        return sum(self._price(instance) for instance in self._instances())

    def calls(self) -> Mapping[str, int]:
        """Return the number of requests to the account by operation."""
        return self.account.calls()

    def interrupt(self, provider_id: str) -> None:
        """Reclaim a preemptible instance with five minutes' notice."""
        self.account.interrupt(instance_id_from(provider_id))

    def _instances(self) -> list[EcsInstance]:
        return [instance for instance in self.account.instances.known.values() if instance.state not in _ENDING]

    def _price(self, instance: EcsInstance) -> float:
        prices = self.account.prices
        return prices.price(instance.instance_type, instance.zone, instance.capacity_type) or 0.0

    def _live_instances(self) -> list[str]:
        return [f"instance {instance.id} is {instance.state}" for instance in self._instances()]

    def _dead_letters(self) -> list[str]:
        return [self.stack.queue_names[DEAD_LETTERS]] if self.stack.dead_letters() else []


def local_runtime(
    variables: Mapping[str, str],
    *,
    services: str,
    queues: str,
    key: SimulatedAccessKey,
    store: KubeStore,
    clock: Clock,
) -> Runtime:
    """Return the runtime of Function Compute with its cluster, clock and endpoints replaced.

    Args:
        variables: The functions' environment variables, from s.yaml.
        services: The URL of ECS, VPC, Container Service and RAM.
        queues: The URL of the queues.
        key: The access key of all functions.
        store: The cluster's API server.
        clock: The clock of the runtime.
    """
    endpoints = {f"{name}_ENDPOINT": services for name in ("ECS", "VPC", "CS", "RAM")}
    credentials = Credentials(access_key_id=key.id, access_key_secret=key.secret, security_token=key.security_token)
    alibaba = read_alibaba_environment({**variables, **endpoints, "SMQ_ENDPOINT": queues})

    def open_api(region: str) -> SdkOpenApi:
        # virtual time does not pass while a function runs, so it does not wait between attempts either
        return SdkOpenApi(region, clock, lambda: credentials, endpoint=alibaba.endpoint, pause=lambda _seconds: None)

    adapters = _SimulatedAdapters(
        read_environment(variables, has_sqs=False),
        alibaba,
        clock=clock,
        open_api=open_api,
        stores=lambda _settings: store,
        credentials=lambda: credentials,
    )
    return Runtime(adapters.clusters.settings, adapters)


class _SimulatedAdapters(AlibabaAdapters):
    """Emits no metrics, and sends one request after another, so that runs are reproducible."""

    def alibaba_settings(self, cluster: RegisteredCluster) -> AlibabaSettings:
        """Return the settings with one launch and one read at a time."""
        return replace(super().alibaba_settings(cluster), max_parallel_launches=1, parallel_reads=False)

    def telemetry(self, store: KubeStore, fields: Mapping[str, str]) -> RunTelemetry:
        """Return telemetry without metrics."""
        return RunTelemetry(logger(), store, self.clock, fields=fields, stream=io.StringIO())

    def observe(self, observations: Sequence[Observation]) -> None:
        """Emit nothing."""
