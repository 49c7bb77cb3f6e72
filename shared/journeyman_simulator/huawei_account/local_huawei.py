"""Runs the deployed application on a simulated cluster and a simulated Huawei Cloud account, in this process.

The official SDK sends its requests over HTTP to the simulated services on 127.0.0.1, whose clock is virtual: so their
signatures carry the machine's time, and the server checks them against that. Each function has the access key of its agency.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from journeyman.cloud.huawei.huawei_settings import HuaweiSettings
from journeyman.cloud.huawei.sdk_client import SdkRestApi, function_credentials
from journeyman.core.api.objects import CCENODECLASS
from journeyman.core.plan import Observation, Step
from journeyman.kube.clusters import RegisteredCluster
from journeyman.observe import RunTelemetry
from journeyman.ports import Clock, KubeStore
from journeyman.runtime.adapters import logger
from journeyman.runtime.composition import Runtime
from journeyman.runtime.environment import read_environment
from journeyman.runtime.huawei import HuaweiAdapters, read_huawei_environment
from journeyman_simulator.deployment_files import load_handler
from journeyman_simulator.huawei_account.ecs_servers import HuaweiInstance
from journeyman_simulator.huawei_account.fgs_stack import FgsStack, read_description
from journeyman_simulator.huawei_account.huawei_account import HuaweiAccount
from journeyman_simulator.huawei_account.huawei_machines import HuaweiMachines
from journeyman_simulator.huawei_account.rest_server import serving
from journeyman_simulator.kubelet import BOOT, MachineSource
from journeyman_simulator.lambda_functions import LambdaFunction
from journeyman_simulator.local_deployment import ACTOR, CloudFacts, LocalDeployment, LogLine
from journeyman_simulator.startup_taints import StartupTaintRemover
from journeyman_simulator.world import Actor

REGION: Final = "cn-north-4"
KUBERNETES_VERSION: Final = "v1.33"


class LocalHuaweiDeployment(LocalDeployment):
    """The application on a simulated Huawei Cloud account; `stack` has its resources."""

    facts = CloudFacts(
        account="Huawei Cloud",
        functions="FunctionGraph",
        spot_warning="interruptServer",
        reclaims="ECS reclaims a Spot node with about five minutes' notice",
        notice=timedelta(minutes=5),
        currency="¥",
        gigabyte_second=0.00011108,  # cn-north-4, from the public price page
        request=0.000_001_33,  # from the same page
        launch_operation="CreateNode",
    )
    node_class = CCENODECLASS

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
            settings: Further variables of the Terraform module.
            boot: The time from a running instance to a registered node.
            on_log: Called with each log line of the functions, parsed.
        """
        super().__init__(start=start, cluster=cluster, boot=boot, on_log=on_log)
        self.account = HuaweiAccount(self.clock, region=REGION)
        self._settings = dict(settings or {})

    def _deploy(self, opened: ExitStack) -> tuple[Runtime, MachineSource, Sequence[Actor]]:
        seeded = self.account.seed(cluster=self.cluster, kubernetes_version=KUBERNETES_VERSION)
        machines = HuaweiMachines(self.account, seeded.cluster_id)
        settings = {"cluster_name": self.cluster, "cluster_id": seeded.cluster_id, **self._settings}
        self.stack = FgsStack(self.account, read_description(), settings)
        self.stack.create_resources(partial(load_handler, cloud="huawei"), self.clock)
        url = opened.enter_context(serving(self.account))
        runtime = local_runtime(
            self.stack.variables, services=url, store=self.server.acting_as(ACTOR), clock=self.clock
        )
        taints = StartupTaintRemover(self.server.acting_as("setup-agent"))
        return runtime, machines, [self.account, taints, *self.stack.actors]

    def _send(self, step: Step, body: str, message_id: str) -> None:
        self.stack.invoke_async(step.value, msgspec.json.decode(body))

    @property
    def functions(self) -> Sequence[LambdaFunction]:
        """Return the deployed functions."""
        return tuple(self.stack.functions.values())

    @property
    def price_per_hour(self) -> float:
        """Return the price in yuan per hour of all servers that are not being deleted."""
        return sum(self._price(server) for server in self._servers())

    def calls(self) -> Mapping[str, int]:
        """Return the number of requests to the account by operation."""
        return {name.rpartition(" ")[2]: number for name, number in self.account.calls().items()}

    def interrupt(self, provider_id: str) -> None:
        """Reclaim a Spot node with about five minutes' notice."""
        servers = self.account.instances.known.values()
        self.account.interrupt(next(server.id for server in servers if server.node_id == provider_id))

    def _servers(self) -> list[HuaweiInstance]:
        return [server for server in self.account.instances.alive() if not server.is_deleting]

    def _price(self, server: HuaweiInstance) -> float:
        return self.account.prices.price(server.instance_type, server.zone, server.capacity_type) or 0.0

    def _live_instances(self) -> list[str]:
        return [f"server {server.id} is {server.state}" for server in self._servers()]

    def _dead_letters(self) -> list[str]:
        return ["failure destination"] if self.stack.dead_letters() else []


def local_runtime(variables: Mapping[str, str], *, services: str, store: KubeStore, clock: Clock) -> Runtime:
    """Return the runtime of FunctionGraph with its cluster, clock and endpoints replaced.

    Args:
        variables: The functions' environment variables, from infra/huawei.
        services: The URL of all services.
        store: The cluster's API server.
        clock: The clock of the runtime.
    """
    huawei = read_huawei_environment(variables)

    def rest_api(region: str, project_id: str) -> SdkRestApi:
        # virtual time does not pass while a function runs, so it does not wait between attempts either
        return SdkRestApi(
            region,
            project_id,
            huawei.domain_id,
            clock,
            function_credentials,
            endpoint=lambda _service, _region: services,
            pause=lambda _seconds: None,
        )

    adapters = _SimulatedHuaweiAdapters(
        read_environment(variables, has_sqs=False),
        huawei,
        clock=clock,
        rest_api=rest_api,
        stores=lambda _settings: store,
    )
    return Runtime(adapters.clusters.settings, adapters)


class _SimulatedHuaweiAdapters(HuaweiAdapters):
    """Emits no metrics, and sends one request after another, so that runs are reproducible."""

    def huawei_settings(self, cluster: RegisteredCluster) -> HuaweiSettings:
        """Return the settings with one launch and one read at a time."""
        return replace(super().huawei_settings(cluster), max_parallel_launches=1, parallel_reads=False)

    def telemetry(self, store: KubeStore, fields: Mapping[str, str]) -> RunTelemetry:
        """Return telemetry without metrics."""
        return RunTelemetry(logger(), store, self.clock, fields=fields, stream=io.StringIO())

    def observe(self, observations: Sequence[Observation]) -> None:
        """Emit nothing."""
