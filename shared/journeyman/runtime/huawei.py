"""Creates the runtime on FunctionGraph: reads the environment once, and creates adapters when they are first needed.

Nothing happens at import. Every part can be replaced, as on AWS (`runtime.aws`): a simulation brings its own clock, stores
and REST API. The cloud provider is imported for the first run, since the function `delay`, which has none, has little memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from fractions import Fraction
from functools import partial
from typing import ClassVar, Final

from aws_lambda_powertools import Logger
from msgspec import Struct

from journeyman.cloud.huawei.function_queue import FunctionQueue
from journeyman.cloud.huawei.huawei_settings import (
    DEFAULT_CURRENCY,
    DEFAULT_MEMORY_OVERHEAD,
    DEFAULT_SPOT_PRICE_PERCENT,
    HuaweiSettings,
)
from journeyman.cloud.huawei.rest_api import SERVICES, RestApi
from journeyman.cloud.huawei.sdk_client import SdkRestApi, function_credentials, public_endpoint
from journeyman.core.plan import Step
from journeyman.errors import ConfigurationError
from journeyman.kube.clusters import CceAccess, ClusterRegistry, RegisteredCluster
from journeyman.ports import Clock, CloudProvider, KubeStore, Queue
from journeyman.runtime.access_providers import own_access_providers
from journeyman.runtime.adapters import CloudAdapters, FoundInstance, StoreFactory, cluster_id_of
from journeyman.runtime.call_deadline import run_ends_at
from journeyman.runtime.collector import collect_rarely
from journeyman.runtime.composition import Runtime, current
from journeyman.runtime.environment import Environment, Variable, Variables, read_environment
from journeyman.signing import Credentials
from journeyman.steps.context import Settings

_URN_PARTS: Final = 7  # urn:fss:<region>:<project>:function:<package>:<start of the names>
LIST_AGE: Final = timedelta(seconds=10)
"""How long a list of a cluster's nodes serves events: many servers end at the same time."""
DELAY_FUNCTION: Final = "delay"
_NAMES: Final = {
    "cce": "CCE", "ecs": "ECS", "vpc": "VPC", "bss": "BSS, such as `https://bss-intl.myhuaweicloud.com`", "functiongraph": "FunctionGraph",
}  # fmt: skip

VARIABLES: Final = (
    Variable(
        "JOURNEYMAN_FUNCTION_URN_PREFIX",
        "",
        "The functions' URNs are this and the step's name, and `delay`; required.",
        "urn:fss:cn-north-4:0a1b2c3d4e5f60718293a4b5c6d7e8f9:function:default:journeyman-",
    ),
    Variable(
        "HUAWEICLOUD_SDK_PROJECT_ID",
        "",
        "Project of the nodes of clusters that are reached by kubeconfig or from inside; by default that of the functions.",
    ),
    Variable("HUAWEICLOUD_SDK_DOMAIN_ID", "", "Id of the account; without it there are no prices."),
    Variable("HUAWEICLOUD_CURRENCY", DEFAULT_CURRENCY, "Currency of the account; `USD` on the international site."),
    Variable(
        "SPOT_PRICE_PERCENT",
        str(float(DEFAULT_SPOT_PRICE_PERCENT)),
        "Price of a Spot instance as a share of its on-demand price, since no API has the prices of Spot instances.",
    ),
    *(
        Variable(f"{service.upper()}_ENDPOINT", "", f"URL of {_NAMES[service]} instead of the region's endpoint.")
        for service in SERVICES
    ),
)
"""Every variable that only functions on Huawei Cloud read. docs/settings.md is generated from this table."""

RestApiFactory = Callable[[str, str], RestApi]
"""Returns the REST API of a region and a project."""


class HuaweiEnvironment(Struct, frozen=True, kw_only=True):
    """The settings that only FunctionGraph has.

    Attributes:
        function_urn_prefix: The functions' URNs are this and the step's name, and `delay`.
        project_id: The project of the nodes of clusters whose access names none.
        domain_id: The account; empty if it is unknown.
        currency: The currency of the account.
        spot_price_percent: The price of a Spot instance as a share of its on-demand price.
        endpoints: URL of a service, instead of the region's endpoint.
    """

    function_urn_prefix: str
    project_id: str
    domain_id: str = ""
    currency: str = DEFAULT_CURRENCY
    spot_price_percent: Fraction = DEFAULT_SPOT_PRICE_PERCENT
    endpoints: Mapping[str, str] = {}

    @property
    def function_region(self) -> str:
        """The region of the functions."""
        return self.function_urn_prefix.split(":")[2]

    @property
    def function_project_id(self) -> str:
        """The project of the functions."""
        return self.function_urn_prefix.split(":")[3]

    def urn(self, function: str) -> str:
        """Return the URN of a function: of a step, or `delay`."""
        return f"{self.function_urn_prefix}{function}"

    def endpoint(self, service: str, region: str) -> str:
        """Return the URL of a service in a region."""
        return self.endpoints.get(service) or public_endpoint(service, region)


def read_huawei_environment(variables: Variables) -> HuaweiEnvironment:
    """Return the parsed settings.

    Raises:
        ConfigurationError: The functions' URNs are missing, or a variable does not parse.
    """
    prefix = variables.get("JOURNEYMAN_FUNCTION_URN_PREFIX", "")
    if not prefix.startswith("urn:fss:") or len(prefix.split(":")) != _URN_PARTS:
        problem = "is not the start of a function's URN" if prefix else "is not set"
        raise ConfigurationError(
            f"JOURNEYMAN_FUNCTION_URN_PREFIX {problem}",
            variable="JOURNEYMAN_FUNCTION_URN_PREFIX",
            value=prefix[:200],
            to_do=f"set it on the function, such as {VARIABLES[0].example}; infra/huawei does",
        )
    function_project_id = variables.get("RUNTIME_PROJECT_ID") or prefix.split(":")[3]
    return HuaweiEnvironment(
        function_urn_prefix=prefix,
        project_id=variables.get("HUAWEICLOUD_SDK_PROJECT_ID") or function_project_id,
        domain_id=variables.get("HUAWEICLOUD_SDK_DOMAIN_ID", ""),
        currency=variables.get("HUAWEICLOUD_CURRENCY") or DEFAULT_CURRENCY,
        spot_price_percent=_share(variables, "SPOT_PRICE_PERCENT", default=DEFAULT_SPOT_PRICE_PERCENT),
        endpoints={
            service: variables[f"{service.upper()}_ENDPOINT"].rstrip("/")
            for service in SERVICES
            if variables.get(f"{service.upper()}_ENDPOINT")
        },
    )


def _share(variables: Variables, name: str, *, default: Fraction) -> Fraction:
    text = variables.get(name, "")
    try:
        share = Fraction(text) if text else default
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise ConfigurationError(
            f"{name} is not a number above 0 and up to 1",
            variable=name,
            value=text[:200],
            to_do=f"set it, such as {float(default)}",
        )
    return share


class HuaweiAdapters(CloudAdapters):
    """`composition.Adapters` on Huawei Cloud."""

    events_name_instances: ClassVar[bool] = False  # they name ECS servers, NodeClaims name CCE nodes

    def __init__(
        self,
        environment: Environment,
        huawei: HuaweiEnvironment,
        *,
        clock: Clock | None = None,
        stores: StoreFactory | None = None,
        rest_api: RestApiFactory | None = None,
        credentials: Callable[[], Credentials] = function_credentials,
        pause: Callable[[float], object] = time.sleep,
        log_to: Logger | None = None,
    ) -> None:
        """Prepare the adapters; open no connection yet.

        Args:
            environment: The process's settings.
            huawei: Those for FunctionGraph.
            clock: The time; the machine's by default.
            stores: Returns the API server of a cluster; by default connects as its `access` says.
            rest_api: Returns the REST API of a region and a project; by default the official SDK with the function's credentials.
            credentials: Returns the access key for the SDK and for CCE; by default that of the function's agency.
            pause: Waits for so many seconds, in the function `delay`.
            log_to: Writes log lines; the process's logger by default.
        """
        super().__init__(environment, clock=clock, stores=stores, log_to=log_to)
        self._huawei = huawei
        self._rest_api = rest_api or self._sdk
        self._credentials = credentials
        self._pause = pause
        self._by_project: dict[tuple[str, str], RestApi] = {}
        self._nodes_of: dict[str, tuple[datetime, Mapping[str, FoundInstance]]] = {}  # by cluster, with the list's time

    def cloud(self, cluster: Settings, store: KubeStore) -> CloudProvider:
        """Return CCE and ECS in the cluster's region and project. Raises ConfigurationError for clusters of other clouds."""
        from journeyman.cloud.huawei.provider import HuaweiCloudProvider  # noqa: PLC0415 - see above

        settings = self.huawei_settings(self.clusters[cluster.cluster_name])
        return HuaweiCloudProvider(self._api_of(settings), settings, self.clock)

    def huawei_settings(self, cluster: RegisteredCluster) -> HuaweiSettings:
        """Return the cluster's settings. Raises ConfigurationError for clusters of other clouds."""
        return HuaweiSettings(
            cluster_id=_cluster_id(cluster),
            project_id=self._project_id(cluster),
            region=cluster.region,
            domain_id=self._huawei.domain_id,
            currency=self._huawei.currency,
            spot_price_percent=self._huawei.spot_price_percent,
            vm_memory_overhead_percent=self.environment.memory_overhead(default=DEFAULT_MEMORY_OVERHEAD),
        )

    def queue(self) -> Queue:
        """Return the queues of this deployment: its functions."""
        huawei = self._huawei
        return FunctionQueue(
            self._api(huawei.function_region, huawei.function_project_id),
            self.clock,
            project_id=huawei.function_project_id,
            functions={step: huawei.urn(step.value) for step in Step},
            delay_function=huawei.urn(DELAY_FUNCTION),
            log=self.log,
            pause=self._pause,
        )

    def registry(self) -> ClusterRegistry:
        """Return the access to the registered clusters."""
        return ClusterRegistry(self.clusters, own_access_providers(self.clock, os.environ, cce=self._credentials))

    def read_register(self) -> Mapping[str, str]:
        """Return no cluster: the environment has them all."""
        return {}

    def look_up(self, cluster: RegisteredCluster, _instance_ids: Iterable[str]) -> Mapping[str, FoundInstance]:
        """Return the CCE node of each ECS server of this cluster by the server's id; one list serves the events of some seconds."""
        from journeyman.cloud.huawei.cce_nodes import HuaweiInstances  # noqa: PLC0415 - see above

        now = self.clock.now()
        if cluster.name in self._nodes_of:
            listed_at, found = self._nodes_of[cluster.name]
            if abs(now - listed_at) < LIST_AGE:
                return found
        settings = self.huawei_settings(cluster)
        nodes = HuaweiInstances(self._api_of(settings), settings).by_server()
        found = {server: FoundInstance(cluster.name, node) for server, node in nodes.items()}
        self._nodes_of[cluster.name] = (now, found)
        return found

    def credentials_of(self, cluster: RegisteredCluster) -> tuple[str, ...]:
        """Return the cluster's name besides its region, since CCE lists the nodes of one cluster in a request."""
        return (cluster.region, cluster.name)

    def _project_id(self, cluster: RegisteredCluster) -> str:
        return cluster.access.project_id if isinstance(cluster.access, CceAccess) else self._huawei.project_id

    def _api_of(self, settings: HuaweiSettings) -> RestApi:
        return self._api(settings.region, settings.project_id)

    def _api(self, region: str, project_id: str) -> RestApi:
        key = (region, project_id)
        if key not in self._by_project:
            self._by_project[key] = self._rest_api(region, project_id)
        return self._by_project[key]

    def _sdk(self, region: str, project_id: str) -> RestApi:
        return SdkRestApi(
            region,
            project_id,
            self._huawei.domain_id,
            self.clock,
            self._credentials,
            endpoint=self._huawei.endpoint,
            ends_at=run_ends_at,
        )


def _cluster_id(cluster: RegisteredCluster) -> str:
    """Return the id of a cluster (`cluster_id_of`). Raises ConfigurationError."""
    return cluster_id_of(cluster, CceAccess, "Huawei Cloud")


def runtime() -> Runtime:
    """Return the installed runtime (`composition.installed`), or else one from the environment.

    Raises:
        ConfigurationError: An environment variable is missing or wrong.
    """
    return current(partial(_from_environment, os.environ))


def _from_environment(variables: Variables) -> Runtime:
    collect_rarely()
    adapters = HuaweiAdapters(read_environment(variables, has_sqs=False), read_huawei_environment(variables))
    return Runtime(adapters.clusters.settings, adapters)
