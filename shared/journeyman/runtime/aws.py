"""Creates the runtime on AWS Lambda: reads the environment once, and creates adapters when they are first needed.

Nothing happens at import. Every part can be replaced: a simulation installs `Runtime(settings, AwsAdapters(…))` with its
own clock, stores and boto3 clients, and runs the handlers unchanged.
"""

from __future__ import annotations

import ipaddress
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aws_lambda_powertools import Logger

from journeyman.cloud.aws.aws_settings import DEFAULT_MEMORY_OVERHEAD, AwsSettings, Clients
from journeyman.cloud.aws.instance_provider import clusters_by_instance
from journeyman.cloud.aws.provider import AwsCloudProvider
from journeyman.cloud.aws.sqs_queue import RENEW_SECONDS, SQSQueue
from journeyman.cloud.aws.window_schedules import EventBridgeWindowSchedules
from journeyman.errors import ConfigurationError, JourneymanError
from journeyman.kube.access import eks
from journeyman.kube.clusters import ClusterRegistry, EksAccess, InClusterAccess, KubeconfigAccess, RegisteredCluster
from journeyman.ports import Clock, CloudProvider, KubeStore, Queue, WindowSchedules
from journeyman.runtime.access_providers import Sessions, access_providers, new_session
from journeyman.runtime.adapters import CloudAdapters, FoundInstance, StoreFactory
from journeyman.runtime.call_deadline import CONNECT_SECONDS, READ_SECONDS, CallDeadline
from journeyman.runtime.cluster_register import read_parameters
from journeyman.runtime.collector import collect_rarely
from journeyman.runtime.composition import Runtime, current
from journeyman.runtime.environment import Environment, read_environment
from journeyman.steps.context import Settings

if TYPE_CHECKING:
    import boto3

DESCRIBE_PERIOD: Final = timedelta(minutes=5)
"""How often EKS describes a cluster that stays connected; Karpenter reads the version as often."""
_USED_FACTS: Final = ("version", "endpoint", "certificateAuthority", "kubernetesNetworkConfig")
_CLIENT_LOCK: Final = threading.Lock()
"""Held while a client is created: clusters run in parallel, and the boto3 sessions that they share are not thread-safe."""


class _Description(NamedTuple):
    """What EKS said about a cluster, and when."""

    facts: Mapping[str, Any]
    read_at: datetime


ClientFactory = Callable[[str, str], Any]
"""Returns a boto3 client for a service and a region."""


class AwsAdapters(CloudAdapters):
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
        super().__init__(environment, clock=clock, stores=stores, log_to=log_to)
        self._call_deadline = CallDeadline(self.clock)
        self._clients = clients or self._boto3_client
        self._clients_by_group: dict[_ClientGroup, Clients] = {}
        self._described: dict[str, _Description] = {}
        self._sessions = Sessions()

    def registry(self) -> ClusterRegistry:
        """Return the access to the registered clusters, of EKS and of other clouds."""
        return ClusterRegistry(
            self.clusters, access_providers(self.clock, os.environ, self._sessions.of, self._describe)
        )

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
        return AwsCloudProvider(clients, self.aws_settings(registered, store), self.clock)

    def is_outdated(self, cluster: Settings) -> bool:
        """Whether the cluster is registered or described otherwise than when it was connected; looks every five minutes.

        An upgrade changes the images that aliases select. If EKS does not answer, what it said last counts.
        """
        if super().is_outdated(cluster):
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

    def read_register(self) -> Mapping[str, str]:
        """Return the clusters in SSM parameters, as JSON by name. Raises CloudProviderError."""
        environment = self.environment
        return read_parameters(self._clients("ssm", environment.region), environment.clusters_path)

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

    def window_schedules(self, cluster: Settings) -> WindowSchedules | None:
        """Return the cluster's entries in this deployment's schedule group; None if it has none."""
        environment = self.environment
        if not environment.schedule_group:
            return None
        return EventBridgeWindowSchedules(
            self._clients("scheduler", environment.region),
            cluster=cluster.cluster_name,
            group=environment.schedule_group,
            role_arn=environment.schedule_role_arn,
            dead_letters_arn=environment.schedule_dead_letters_arn,
            queues=environment.queues,
            region=environment.region,
        )

    def look_up(self, cluster: RegisteredCluster, instance_ids: Iterable[str]) -> Mapping[str, FoundInstance]:
        """Return the cluster by instance id from the instances' tags (`clusters_by_instance`)."""
        group = _client_group(cluster)
        if group not in self._clients_by_group:
            self._clients_by_group[group] = Clients(self.clients_for(cluster), cluster.region)
        found = clusters_by_instance(self._clients_by_group[group], instance_ids)
        return {id_: FoundInstance(name, id_) for id_, name in found.items()}

    def credentials_of(self, cluster: RegisteredCluster) -> tuple[str, ...]:
        """Return role, external id and region."""
        return _client_group(cluster)

    def account_of(self, cluster: RegisteredCluster) -> str:
        """Return the account of the role that the functions assume for the cluster; empty if they use their own."""
        role = _client_group(cluster)[0]
        return role.split(":")[4] if role else ""

    def _connected_store(self, cluster: Settings) -> KubeStore:
        # a reconnect reads it again, since the cluster may have been created again
        self._described.pop(cluster.cluster_name, None)
        return super()._connected_store(cluster)

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

    def aws_settings(self, cluster: RegisteredCluster, store: KubeStore) -> AwsSettings:
        """Return the cluster's settings; EKS provides those that are not registered, or the API server its version.

        Raises:
            KubeAPIError: The API server did not say its version.
        """
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
            kubernetes_version=cluster.kubernetes_version or str(described.get("version", "")) or _version_of(store),
            service_cidr=service_cidr,
            cluster_dns=_kube_dns_address(service_cidr) if network else "",
            ipv6=network.get("ipFamily") == "ipv6",
            vm_memory_overhead_percent=environment.memory_overhead(default=DEFAULT_MEMORY_OVERHEAD),
            reserved_enis=environment.reserved_enis,
            isolated_vpc=environment.isolated_vpc,
            reserved_capacity=environment.defaults.feature_gates.reserved_capacity,
        )


def _version_of(store: KubeStore) -> str:
    """Return the API server's version as EKS writes it: major and minor."""
    major, minor = store.version()
    return f"{major}.{minor}"


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
