"""Creates the runtime on Function Compute: reads the environment once, and creates adapters when they are first needed.

Nothing happens at import. Every part can be replaced, as on AWS (`runtime.aws`): a simulation brings its own clock, stores,
OpenAPI and queue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from aws_lambda_powertools import Logger
from msgspec import Struct

from journeyman.cloud.alibaba.alibaba_errors import translated
from journeyman.cloud.alibaba.alibaba_settings import DEFAULT_MEMORY_OVERHEAD, AlibabaSettings
from journeyman.cloud.alibaba.ecs_instances import EcsInstances
from journeyman.cloud.alibaba.open_api import OpenApi
from journeyman.cloud.alibaba.provider import AlibabaCloudProvider
from journeyman.cloud.alibaba.sdk_client import SdkOpenApi, credentials_of, private_endpoint, public_endpoint
from journeyman.cloud.alibaba.smq_queue import SdkSmq, Smq, SmqQueue
from journeyman.core.api.ecs_settings import APIS, ECS_API, ECSNodeClassAPI
from journeyman.core.plan import Step
from journeyman.errors import ConfigurationError
from journeyman.kube.clusters import AckAccess, ClusterRegistry, RegisteredCluster
from journeyman.ports import Clock, CloudProvider, KubeStore, Queue
from journeyman.runtime.access_providers import own_access_providers
from journeyman.runtime.adapters import CloudAdapters, FoundInstance, StoreFactory, cluster_id_of
from journeyman.runtime.call_deadline import run_ends_at
from journeyman.runtime.collector import collect_rarely
from journeyman.runtime.composition import Runtime, current
from journeyman.runtime.environment import Environment, Variable, Variables, read_environment
from journeyman.signing import Credentials
from journeyman.steps.context import Settings

DEFAULT_QUEUE_PREFIX: Final = "journeyman-"

VARIABLES: Final = (
    Variable(
        "SMQ_ENDPOINT",
        "",
        "URL of the account's queues; required.",
        "https://1000000000000001.mns.cn-hangzhou.aliyuncs.com",
    ),
    Variable(
        "JOURNEYMAN_QUEUE_PREFIX",
        DEFAULT_QUEUE_PREFIX,
        "The queues' names are this and the step's, and `dead-letters`.",
    ),
    Variable(
        "ALIBABA_PRIVATE_ENDPOINTS",
        "false",
        "`true`: requests go to the endpoints inside the VPC, so that functions need no NAT gateway for them.",
    ),
    *(
        Variable(
            f"{service.upper()}_ENDPOINT",
            "",
            f"Host of {name} instead of the region's endpoint; with `http://` in front it speaks no TLS.",
        )
        for service, name in (("ecs", "ECS"), ("vpc", "VPC"), ("cs", "Container Service"), ("ram", "RAM"))
    ),
)
"""Every variable that only functions on Alibaba Cloud read. docs/settings.md is generated from this table."""

OpenApiFactory = Callable[[str], OpenApi]
"""Returns the OpenAPI of a region."""


class AlibabaEnvironment(Struct, frozen=True, kw_only=True):
    """The settings that only Function Compute has.

    Attributes:
        smq_endpoint: URL of the account's queues.
        queue_prefix: The queues' names are this and the step's; `dead-letters` for those of messages that can never succeed.
        endpoints: Host of a service, instead of the region's endpoint; with `http://` in front it speaks no TLS.
        is_private: Whether requests go to the endpoints inside the VPC.
    """

    smq_endpoint: str
    queue_prefix: str = DEFAULT_QUEUE_PREFIX
    endpoints: Mapping[str, str]
    is_private: bool = False

    def endpoint(self, service: str, region: str) -> tuple[str, bool]:
        """Return the host of a service, and whether it speaks TLS."""
        given = self.endpoints.get(service, "")
        if given:
            return given.partition("://")[2] or given, not given.startswith("http://")
        return (private_endpoint if self.is_private else public_endpoint)(service, region)


def read_alibaba_environment(variables: Variables) -> AlibabaEnvironment:
    """Return the parsed settings. Raises ConfigurationError if the queues' endpoint is missing."""
    endpoint = variables.get("SMQ_ENDPOINT", "")
    if not endpoint:
        raise ConfigurationError(
            "SMQ_ENDPOINT is not set",
            variable="SMQ_ENDPOINT",
            to_do="set it on the function, such as https://<account>.mns.<region>.aliyuncs.com; infra/alibaba/s.yaml does",
        )
    names = {service: f"{service.upper()}_ENDPOINT" for service in ("ecs", "vpc", "cs", "ram")}
    return AlibabaEnvironment(
        smq_endpoint=endpoint,
        queue_prefix=variables.get("JOURNEYMAN_QUEUE_PREFIX") or DEFAULT_QUEUE_PREFIX,
        endpoints={service: variables[name] for service, name in names.items() if variables.get(name)},
        is_private=variables.get("ALIBABA_PRIVATE_ENDPOINTS", "false").lower() == "true",
    )


class AlibabaAdapters(CloudAdapters):
    """`composition.Adapters` on Alibaba Cloud."""

    def __init__(
        self,
        environment: Environment,
        alibaba: AlibabaEnvironment,
        *,
        clock: Clock | None = None,
        stores: StoreFactory | None = None,
        open_api: OpenApiFactory | None = None,
        smq: Smq | None = None,
        credentials: Callable[[], Credentials] | None = None,
        log_to: Logger | None = None,
    ) -> None:
        """Prepare the adapters; open no connection yet.

        Args:
            environment: The process's settings.
            alibaba: Those for Function Compute.
            clock: The time; the machine's by default.
            stores: Returns the API server of a cluster; by default connects as its `access` says.
            open_api: Returns the OpenAPI of a region; by default the official SDK with the function's credentials.
            smq: The account's queues; by default the official SDK.
            credentials: Returns the access key for the SDK; by default that of the function's role.
            log_to: Writes log lines; the process's logger by default.
        """
        super().__init__(environment, clock=clock, stores=stores, log_to=log_to)
        self._alibaba = alibaba
        self._open_api = open_api or self._sdk
        self._smq = smq
        self._credentials = credentials or function_credentials
        self._by_region: dict[str, OpenApi] = {}

    def cloud(self, cluster: Settings, store: KubeStore) -> CloudProvider:
        """Return ECS in the cluster's region. Raises ConfigurationError for clusters of other clouds."""
        registered = self.clusters[cluster.cluster_name]
        return AlibabaCloudProvider(
            self._region(registered.region), self.alibaba_settings(registered), self.clock, api=_api_of(registered)
        )

    def alibaba_settings(self, cluster: RegisteredCluster) -> AlibabaSettings:
        """Return the cluster's settings. Raises ConfigurationError for clusters of other clouds."""
        return AlibabaSettings(
            cluster_id=_cluster_id(cluster),
            region=cluster.region,
            kubernetes_version=cluster.kubernetes_version,
            vm_memory_overhead_percent=self.environment.memory_overhead(default=DEFAULT_MEMORY_OVERHEAD),
        )

    def queue(self) -> Queue:
        """Return the queues of this deployment."""
        prefix = self._alibaba.queue_prefix
        return SmqQueue(
            self._smq or SdkSmq(self._alibaba.smq_endpoint, self._credentials),
            self.clock,
            queues={step: f"{prefix}{step.value}" for step in Step},
            dead_letter_queue=f"{prefix}dead-letters",
        )

    def registry(self) -> ClusterRegistry:
        """Return the access to the registered clusters."""
        return ClusterRegistry(self.clusters, own_access_providers(self.clock, os.environ, ack=self._credentials))

    def read_register(self) -> Mapping[str, str]:
        """Return no cluster: the environment has them all."""
        return {}

    def look_up(self, cluster: RegisteredCluster, instance_ids: Iterable[str]) -> Mapping[str, FoundInstance]:
        """Return the registered cluster of each instance by its id, from the instances' tags."""
        instances = EcsInstances(self._region(cluster.region), cluster.region, _cluster_id(cluster))
        names = {_cluster_id(each): name for name, each in self.clusters.items()}
        found = instances.clusters_of(instance_ids)
        return {id_: FoundInstance(names.get(cluster_id, cluster_id), id_) for id_, cluster_id in found.items()}

    def _region(self, region: str) -> OpenApi:
        if region not in self._by_region:
            self._by_region[region] = self._open_api(region)
        return self._by_region[region]

    def _sdk(self, region: str) -> OpenApi:
        return SdkOpenApi(region, self.clock, self._credentials, endpoint=self._alibaba.endpoint, ends_at=run_ends_at)


def function_credentials() -> Credentials:
    """Return the access key of the function's role, or of the SDK's default chain. Raises CloudProviderError."""
    with translated("sts:GetCallerIdentity"):
        return credentials_of()


def _cluster_id(cluster: RegisteredCluster) -> str:
    """Return the id of a cluster (`cluster_id_of`). Raises ConfigurationError."""
    return cluster_id_of(cluster, AckAccess, "Alibaba Cloud")


def _api_of(cluster: RegisteredCluster) -> ECSNodeClassAPI:
    """Return the API of the cluster's ECSNodeClasses. Raises ConfigurationError."""
    if not cluster.node_class_group:
        return ECS_API
    for api in APIS:
        if api.resource.group == cluster.node_class_group:
            return api
    known = ", ".join(api.resource.group for api in APIS)
    raise ConfigurationError(
        f"cluster {cluster.name!r} has nodeClassGroup {cluster.node_class_group!r}, which is none of {known}",
        cluster=cluster.name,
        to_do="correct its registration",
    )


def runtime() -> Runtime:
    """Return the installed runtime (`composition.installed`), or else one from the environment.

    Raises:
        ConfigurationError: An environment variable is missing or wrong.
    """
    return current(partial(_from_environment, os.environ))


def _from_environment(variables: Variables) -> Runtime:
    collect_rarely()
    adapters = AlibabaAdapters(read_environment(variables, has_sqs=False), read_alibaba_environment(variables))
    return Runtime(adapters.clusters.settings, adapters)
