"""Creates the runtime on AWS Lambda: reads the environment once, and creates adapters when they are first needed.

Nothing happens at import. Every part can be replaced: a simulation installs `Runtime(settings, AwsAdapters(…))` with its
own clock, stores and boto3 clients, and runs the handlers unchanged.
"""

from __future__ import annotations

import ipaddress
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aws_lambda_powertools import Logger

from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.cloud.aws.instance_provider import clusters_by_instance
from journeyman.cloud.aws.provider import AwsCloudProvider
from journeyman.cloud.aws.sqs_queue import RENEW_SECONDS, SQSQueue
from journeyman.core.plan import Observation, Step
from journeyman.errors import ConfigurationError, JourneymanError
from journeyman.kube.access import eks
from journeyman.kube.caching_store import CachingKubeStore
from journeyman.kube.clusters import ClusterRegistry, EksAccess, InClusterAccess, KubeconfigAccess, RegisteredCluster
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.lease import KubeLease
from journeyman.kube.list_cache import ListCache
from journeyman.kube.transport import Transport
from journeyman.observe import RunTelemetry, embedded_metrics, logs
from journeyman.ports import Clock, CloudProvider, Interruption, KubeStore, Lease, Queue
from journeyman.runtime.access_providers import Sessions, access_providers, new_session
from journeyman.runtime.call_deadline import CONNECT_SECONDS, READ_SECONDS, CallDeadline
from journeyman.runtime.cluster_register import RegisteredClusters, read_parameters
from journeyman.runtime.collector import collect_rarely
from journeyman.runtime.composition import Runtime, current
from journeyman.runtime.environment import Environment, read_environment
from journeyman.steps.context import Settings

if TYPE_CHECKING:
    import boto3

DEFAULT_KUBERNETES_VERSION: Final = "1.34"
LEASE_PREFIX: Final = "journeyman-"
DESCRIBE_PERIOD: Final = timedelta(minutes=5)
"""How often EKS describes a cluster that stays connected; Karpenter reads the version as often."""
_USED_FACTS: Final = ("version", "endpoint", "certificateAuthority", "kubernetesNetworkConfig")
_CLIENT_LOCK: Final = threading.Lock()
"""Held while a client is created: clusters run in parallel, and the boto3 sessions that they share are not thread-safe."""


class _Description(NamedTuple):
    """What EKS said about a cluster, and when."""

    facts: Mapping[str, Any]
    read_at: datetime


StoreFactory = Callable[[Settings], KubeStore]
ClientFactory = Callable[[str, str], Any]
"""Returns a boto3 client for a service and a region."""


class SystemClock:
    """`ports.Clock` with the machine's time."""

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.now(timezone.utc)  # noqa: TID251 - the one place that reads the clock


class AwsAdapters:
    """`composition.Adapters` on AWS."""

    renew_seconds: float = RENEW_SECONDS
    """How often a function renews its messages, in a thread; 0 for never, in simulations without threads."""

    def __init__(
        self,
        environment: Environment,
        *,
        clock: Clock | None = None,
        stores: StoreFactory | None = None,
        clients: ClientFactory | None = None,
        log_to: Logger | None = None,
    ) -> None:
        """Prepare the adapters; open no connection yet.

        Args:
            environment: The process's settings.
            clock: The time; the machine's by default.
            stores: Returns the API server of a cluster; by default connects as its `access` says.
            clients: Returns boto3 clients; by default with the process's credentials.
            log_to: Writes log lines; the process's logger by default.
        """
        self.clock: Clock = clock or SystemClock()
        self.environment = environment
        self._stores = stores or self._connected_store
        self._call_deadline = CallDeadline(self.clock)
        self._clients = clients or self._boto3_client
        self._log_to = log_to
        self._clients_by_group: dict[_ClientGroup, Clients] = {}
        self._described: dict[str, _Description] = {}
        self._sessions = Sessions()
        self._connected: dict[str, RegisteredCluster] = {}
        self.clusters = RegisteredClusters(environment, self.clock, self._read_register, self._report_register)
        self._registry = ClusterRegistry(
            self.clusters, access_providers(self.clock, os.environ, self._sessions.of, self._describe)
        )
        self._list_cache = ListCache()

    def store(self, cluster: Settings) -> KubeStore:
        """Return the cluster's API server. Raises ConfigurationError if the settings in `access` are wrong."""
        self._connected[cluster.cluster_name] = self.clusters[cluster.cluster_name]
        return self._stores(cluster)

    def cloud(self, cluster: Settings, store: KubeStore) -> CloudProvider:
        """Return EC2 in the cluster's account and region. Raises ConfigurationError for clusters of other clouds."""
        registered = self.clusters[cluster.cluster_name]
        if not isinstance(registered.access, (EksAccess, KubeconfigAccess, InClusterAccess)):
            raise ConfigurationError(
                f"nodes of cluster {registered.name!r} cannot be launched from AWS",
                cluster=registered.name,
                to_do="register it with a deployment on its own cloud",
            )
        clients = Clients(self.clients_for(registered), registered.region)
        return AwsCloudProvider(clients, self.aws_settings(registered), self.clock)

    def is_outdated(self, cluster: Settings) -> bool:
        """Whether the cluster is registered or described otherwise than when it was connected; looks every five minutes.

        An upgrade changes the images that aliases select. If EKS does not answer, what it said last counts.
        """
        if self._is_registered_anew(cluster.cluster_name):
            self._described.pop(cluster.cluster_name, None)
            return True
        earlier, now = self._described.get(cluster.cluster_name), self.clock.now()
        if earlier is None or now - earlier.read_at < DESCRIBE_PERIOD:
            return False
        registered = self.clusters[cluster.cluster_name]
        try:
            facts = self._read_description(registered)
        except JourneymanError as error:
            self.log("warning", f"keeping what EKS said about cluster {registered.name} before: {error.message}")
            facts = earlier.facts
        self._described[registered.name] = _Description(facts, now)
        return any(facts.get(field) != earlier.facts.get(field) for field in _USED_FACTS)

    def _is_registered_anew(self, name: str) -> bool:
        try:
            current = self.clusters.get(name)
        except JourneymanError:
            return False  # its parameter does not parse now
        return current is not None and self._connected.get(name, current) != current

    def _read_register(self) -> Mapping[str, str]:
        environment = self.environment
        return read_parameters(self._clients("ssm", environment.region), environment.clusters_path)

    def _report_register(self, error: JourneymanError) -> None:
        self.log("error", error.message, error=type(error).__name__, **error.context)
        self.observe((Observation(name="journeyman_cluster_register_errors_total"),))

    def queue(self) -> Queue:
        """Return the queues of this deployment."""
        return SQSQueue(
            self._clients("sqs", self.environment.region),
            self.clock,
            queues=self.environment.queues,
            requeue_url=self.environment.requeue_url,
            log=self.log,
            renew_seconds=self.renew_seconds,
        )

    def lease(self, cluster: Settings, step: Step, store: KubeStore, holder: str) -> Lease:
        """Return the step's Lease in the cluster."""
        return KubeLease(
            store,
            self.clock,
            name=f"{LEASE_PREFIX}{step.value}",
            holder=holder,
            namespace=self.environment.system_namespace,
        )

    def telemetry(self, store: KubeStore, fields: Mapping[str, str]) -> RunTelemetry:
        """Return telemetry that writes log lines and EMF metrics to standard output, and Events to the cluster."""
        return RunTelemetry(
            self._log_to or logger(),
            store,
            self.clock,
            fields=fields,
            component=self.environment.event_component,
            conditions=self.environment.defaults.cluster_state_observability,
        )

    def log(self, level: str, message: str, **fields: Any) -> None:
        """Write a log line outside of any run."""
        logs.write(self._log_to or logger(), level, message, fields)

    def observe(self, observations: Sequence[Observation]) -> None:
        """Write metric samples as EMF to standard output."""
        embedded_metrics.write(observations, constant={}, stream=sys.stdout)

    def clusters_of(self, interruptions: Sequence[Interruption]) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Return the registered clusters that may have each interruption's instances, by its id, with these instances.

        The instances' tags name their cluster. An instance that EC2 does not know, since it was just launched, may belong to
        every cluster in the event's account and region; so does each instance while EC2 does not answer.
        """
        known: dict[str, str] = {}
        candidates = {i.id: self._clusters_where(i.account, i.region) for i in interruptions}
        for group, instance_ids in _grouped(self.clusters, candidates, interruptions).items():
            known |= self._look_up(group, instance_ids)
        return {i.id: _instances_by_cluster(i, candidates[i.id], known) for i in interruptions}

    def _look_up(self, group: _ClientGroup, instance_ids: Iterable[str]) -> dict[str, str]:
        """Return the cluster by instance id (`clusters_by_instance`); log an error, and return none then."""
        try:
            return clusters_by_instance(self._routing_clients(group), instance_ids)
        except JourneymanError as error:
            text = f"cannot look up which clusters have the instances, so every cluster looks for them: {error.message}"
            self.log("warning", text, error=type(error).__name__)
            return {}

    def _clusters_where(self, account: str, region: str) -> tuple[str, ...]:
        """Return the registered clusters whose instances may be in the account and region, sorted."""
        return tuple(
            name
            for name, cluster in sorted(self.clusters.items())
            if region in ("", cluster.region) and account in ("", _account_of(cluster) or account)
        )

    def _routing_clients(self, group: _ClientGroup) -> Clients:
        if group not in self._clients_by_group:
            cluster = next(c for c in self.clusters.values() if _client_group(c) == group)
            self._clients_by_group[group] = Clients(self.clients_for(cluster), cluster.region)
        return self._clients_by_group[group]

    def _connected_store(self, cluster: Settings) -> KubeStore:
        name = cluster.cluster_name
        self._described.pop(name, None)  # a reconnect reads it again, since the cluster may have been created again
        transport = Transport(self._registry.connect(name), cluster=name)
        return CachingKubeStore(HttpKubeStore(transport), self._list_cache, cluster=name, log=self.log)

    def _boto3_client(self, service: str, region: str) -> Any:
        return self._call_deadline.watch(_client_of(new_session(region), service, region))

    def clients_for(self, cluster: RegisteredCluster) -> ClientFactory:
        """Return the factory of boto3 clients with the role in the cluster's settings, or else with the process's own."""
        if isinstance(cluster.access, EksAccess) and cluster.access.role_arn:
            session = self._sessions.of(cluster)
            return lambda service, region: self._call_deadline.watch(_client_of(session, service, region))
        return self._clients

    def _describe(self, cluster: RegisteredCluster) -> Mapping[str, Any]:
        """Return EKS's description of the cluster, which is read once for each connection."""
        if cluster.name not in self._described:
            self._described[cluster.name] = _Description(self._read_description(cluster), self.clock.now())
        return self._described[cluster.name].facts

    def _read_description(self, cluster: RegisteredCluster) -> Mapping[str, Any]:
        return eks.describe(cluster.name, self.clients_for(cluster)("eks", cluster.region))

    def aws_settings(self, cluster: RegisteredCluster) -> AwsSettings:
        """Return the cluster's settings; EKS provides those that are not registered."""
        environment = self.environment
        described = self._describe(cluster) if isinstance(cluster.access, EksAccess) and not cluster.endpoint else {}
        network: Mapping[str, str] = described.get("kubernetesNetworkConfig") or {}
        service_cidr = cluster.service_cidr or network.get("serviceIpv4Cidr") or network.get("serviceIpv6Cidr", "")
        return AwsSettings(
            cluster_name=cluster.name,
            region=cluster.region,
            cluster_endpoint=cluster.endpoint or str(described.get("endpoint", "")),
            cluster_ca=cluster.certificate_authority
            or str((described.get("certificateAuthority") or {}).get("data", "")),
            kubernetes_version=cluster.kubernetes_version
            or str(described.get("version", ""))
            or DEFAULT_KUBERNETES_VERSION,
            service_cidr=service_cidr,
            cluster_dns=_kube_dns_address(service_cidr) if network else "",
            ipv6=network.get("ipFamily") == "ipv6",
            vm_memory_overhead_percent=environment.vm_memory_overhead_percent,
            reserved_enis=environment.reserved_enis,
            isolated_vpc=environment.isolated_vpc,
            reserved_capacity=environment.defaults.feature_gates.reserved_capacity,
        )


def _kube_dns_address(service_cidr: str) -> str:
    """Return the address of EKS's Service kube-dns: the tenth of the service CIDR, as EKS reserves it; empty for another text."""
    try:
        return str(ipaddress.ip_network(service_cidr)[10])
    except (ValueError, IndexError):
        return ""


_ClientGroup = tuple[str, str, str]
"""Role, external id and region: clusters with the same ones share a client."""


def _client_group(cluster: RegisteredCluster) -> _ClientGroup:
    access = cluster.access
    role = (access.role_arn, access.external_id) if isinstance(access, EksAccess) else ("", "")
    return (*role, cluster.region)


def _account_of(cluster: RegisteredCluster) -> str:
    """Return the account of the role that the functions assume for the cluster; empty if they use their own."""
    role = _client_group(cluster)[0]
    return role.split(":")[4] if role else ""


def _grouped(
    clusters: Mapping[str, RegisteredCluster],
    candidates: Mapping[str, Sequence[str]],
    interruptions: Sequence[Interruption],
) -> dict[_ClientGroup, set[str]]:
    """Return the instances to look up with each group's client."""
    groups: dict[_ClientGroup, set[str]] = {}
    for interruption in interruptions:
        for name in candidates[interruption.id]:
            groups.setdefault(_client_group(clusters[name]), set()).update(interruption.instance_ids)
    return groups


def _instances_by_cluster(
    interruption: Interruption, candidates: Sequence[str], known: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return the interruption's instances by cluster, without clusters that have none of them."""
    by_cluster = {
        name: tuple(id_ for id_ in interruption.instance_ids if known.get(id_, name) == name) for name in candidates
    }
    return {name: ids for name, ids in by_cluster.items() if ids}


def _client_of(session: boto3.Session, service: str, region: str) -> Any:
    from botocore.config import Config  # noqa: PLC0415 - a simulation with its own clients does not need it

    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 4},
        user_agent_extra="journeyman",
    )
    create: Callable[..., Any] = session.client
    with _CLIENT_LOCK:
        return create(service, region_name=region, config=config)


@cache
def logger() -> Logger:
    """Return the process's logger."""
    return logs.json_logger(level=os.environ.get("LOG_LEVEL", "info"), commit=os.environ.get("JOURNEYMAN_COMMIT", ""))


def runtime() -> Runtime:
    """Return the installed runtime (`composition.installed`), or else one from the environment.

    Raises:
        ConfigurationError: An environment variable is missing or wrong.
    """
    return current(_from_environment)


def _from_environment() -> Runtime:
    collect_rarely()
    adapters = AwsAdapters(read_environment(os.environ))
    return Runtime(adapters.clusters.settings, adapters)
