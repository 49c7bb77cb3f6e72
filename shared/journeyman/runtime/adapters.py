"""The parts of a process's adapters that every cloud has: stores, Leases, telemetry, the register, the routing of interruptions.

`runtime.aws` and its siblings add what differs: the access to clusters, the cloud provider, the queue.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from typing import Any, ClassVar, Final

from aws_lambda_powertools import Logger
from msgspec import Struct

from journeyman.core.plan import Observation, Step
from journeyman.errors import ConfigurationError, JourneymanError
from journeyman.kube.caching_store import CachingKubeStore
from journeyman.kube.clusters import (
    AckAccess,
    CceAccess,
    ClusterRegistry,
    InClusterAccess,
    KubeconfigAccess,
    RegisteredCluster,
)
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.lease import KubeLease
from journeyman.kube.list_cache import ListCache
from journeyman.kube.transport import Transport
from journeyman.observe import RunTelemetry, embedded_metrics, logs
from journeyman.ports import Clock, CloudProvider, Interruption, KubeStore, Lease, Queue, WindowSchedules
from journeyman.runtime.cluster_register import RegisteredClusters
from journeyman.runtime.environment import Environment
from journeyman.steps.context import Settings

LEASE_PREFIX: Final = "journeyman-"
MAX_REMEMBERED: Final = 10_000
"""Instances whose cluster a process remembers."""

StoreFactory = Callable[[Settings], KubeStore]


class SystemClock:
    """`ports.Clock` with the machine's time."""

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.now(timezone.utc)  # noqa: TID251 - the one place that reads the clock


class FoundInstance(Struct, frozen=True):
    """An instance that an event names: its cluster, and the id by which its cluster knows it."""

    cluster: str  # its name; empty without a cluster
    instance_id: str


class CloudAdapters(ABC):
    """`composition.Adapters`, but for the cloud."""

    events_name_instances: ClassVar[bool] = True
    """Whether the ids in the cloud's events are those by which clusters know their instances."""

    def __init__(
        self,
        environment: Environment,
        *,
        clock: Clock | None = None,
        stores: StoreFactory | None = None,
        log_to: Logger | None = None,
    ) -> None:
        """Prepare the adapters; open no connection yet.

        Args:
            environment: The process's settings.
            clock: The time; the machine's by default.
            stores: Returns the API server of a cluster; by default connects as its `access` says.
            log_to: Writes log lines; the process's logger by default.
        """
        self.clock: Clock = clock or SystemClock()
        self.environment = environment
        self._stores = stores or self._connected_store
        self._log_to = log_to
        self._connected: dict[str, RegisteredCluster] = {}
        self.clusters = RegisteredClusters(environment, self.clock, self.read_register, self._report_register)
        self._list_cache = ListCache()
        self._instances: dict[str, FoundInstance] = {}  # by their ids in events

    @abstractmethod
    def cloud(self, cluster: Settings, store: KubeStore) -> CloudProvider:
        """Return the cluster's cloud account and region. Raises ConfigurationError for clusters of other clouds."""

    @abstractmethod
    def queue(self) -> Queue:
        """Return the queues of this deployment."""

    def window_schedules(self, _cluster: Settings) -> WindowSchedules | None:
        """Return None: without entries in the cloud's scheduler, the sweep finds the edges of windows within a minute."""
        return None

    @abstractmethod
    def registry(self) -> ClusterRegistry:
        """Return the access to the registered clusters."""

    @abstractmethod
    def read_register(self) -> Mapping[str, str]:
        """Return the clusters of the register outside of the environment, as JSON by name."""

    @abstractmethod
    def look_up(self, cluster: RegisteredCluster, instance_ids: Iterable[str]) -> Mapping[str, FoundInstance]:
        """Return what the cloud knows of each instance by its id in the event, with this cluster's credentials and region.

        Instances that the cloud does not know are missing; others that the request returned may be there. Raises JourneymanError.
        """

    def credentials_of(self, cluster: RegisteredCluster) -> tuple[str, ...]:
        """Return what clusters have in common that one request can serve: the region, and more on some clouds."""
        return (cluster.region,)

    def account_of(self, _cluster: RegisteredCluster) -> str:
        """Return the account of a cluster's instances; empty if it is the functions' own."""
        return ""

    def store(self, cluster: Settings) -> KubeStore:
        """Return the cluster's API server. Raises ConfigurationError if the settings in `access` are wrong."""
        self._connected[cluster.cluster_name] = self.clusters[cluster.cluster_name]
        return self._stores(cluster)

    def is_outdated(self, cluster: Settings) -> bool:
        """Whether the cluster is registered otherwise than when it was connected."""
        name = cluster.cluster_name
        try:
            current = self.clusters.get(name)
        except JourneymanError:
            return False  # its parameter does not parse now
        return current is not None and self._connected.get(name, current) != current

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

        The instances' tags name their cluster. An instance that the cloud does not know, since it was just launched, may belong to
        every cluster in the event's account and region; so does each instance while the cloud does not answer. Where clusters do
        not know instances by the ids in events (`events_name_instances`), an unknown one belongs to no cluster.

        Raises:
            JourneymanError: The cloud did not answer, and no cluster knows the instances by their ids in the events.
        """
        candidates = {i.id: self._clusters_where(i.account, i.region) for i in interruptions}
        remembered = self._remembered(id_ for i in interruptions for id_ in i.instance_ids)
        wanted: dict[tuple[str, ...], tuple[RegisteredCluster, set[str]]] = {}
        for interruption in interruptions:
            unknown = set(interruption.instance_ids) - remembered.keys()
            for name in candidates[interruption.id] if unknown else ():
                cluster = self.clusters[name]
                wanted.setdefault(self.credentials_of(cluster), (cluster, set()))[1].update(unknown)
        answers = [self._look_up_or_error(cluster, instance_ids) for cluster, instance_ids in wanted.values()]
        found = {id_: found for answer in answers if not isinstance(answer, Exception) for id_, found in answer.items()}
        self._remember(found)
        known = remembered | found
        if not self.events_name_instances:
            unknown = {id_ for _, instance_ids in wanted.values() for id_ in instance_ids} - known.keys()
            failures = [answer for answer in answers if isinstance(answer, Exception)]
            if unknown and failures:
                raise failures[0]
            known |= {id_: FoundInstance("", id_) for id_ in unknown}
        return {i.id: _instances_by_cluster(i, candidates[i.id], known) for i in interruptions}

    def _remembered(self, instance_ids: Iterable[str]) -> dict[str, FoundInstance]:
        """Return the instances among these that earlier events named, with their cluster if it is still registered."""
        known = {id_: self._instances[id_] for id_ in instance_ids if id_ in self._instances}
        return {id_: found for id_, found in known.items() if found.cluster in self.clusters}

    def _remember(self, found: Mapping[str, FoundInstance]) -> None:
        """Remember the clusters of instances: the cloud reports several changes of state of each."""
        if len(self._instances) > MAX_REMEMBERED:
            self._instances.clear()
        self._instances.update(found)

    def _look_up_or_error(
        self, cluster: RegisteredCluster, instance_ids: Iterable[str]
    ) -> Mapping[str, FoundInstance] | JourneymanError:
        """Return the result of `look_up`, or the error that it raised, which is logged."""
        try:
            return self.look_up(cluster, instance_ids)
        except JourneymanError as error:
            then = (
                "every cluster looks for them" if self.events_name_instances else "their event is handled again later"
            )
            text = f"cannot look up which clusters have the instances, so {then}: {error.message}"
            self.log("warning", text, error=type(error).__name__)
            return error

    def _clusters_where(self, account: str, region: str) -> tuple[str, ...]:
        """Return the registered clusters whose instances may be in the account and region, sorted."""
        return tuple(
            name
            for name, cluster in sorted(self.clusters.items())
            if region in ("", cluster.region) and account in ("", self.account_of(cluster) or account)
        )

    def _report_register(self, error: JourneymanError) -> None:
        self.log("error", error.message, error=type(error).__name__, **error.context)
        self.observe((Observation(name="journeyman_cluster_register_errors_total"),))

    def _connected_store(self, cluster: Settings) -> KubeStore:
        name = cluster.cluster_name
        transport = Transport(self.registry().connect(name), cluster=name)
        return CachingKubeStore(HttpKubeStore(transport), self._list_cache, cluster=name, log=self.log)


def _instances_by_cluster(
    interruption: Interruption, candidates: Sequence[str], known: Mapping[str, FoundInstance]
) -> dict[str, tuple[str, ...]]:
    """Return the interruption's instances by cluster, without clusters that have none of them."""
    found = {
        name: [known.get(id_, FoundInstance(name, id_)) for id_ in interruption.instance_ids] for name in candidates
    }
    by_cluster = {name: tuple(each.instance_id for each in of if each.cluster == name) for name, of in found.items()}
    return {name: ids for name, ids in by_cluster.items() if ids}


def cluster_id_of(cluster: RegisteredCluster, own: type[AckAccess | CceAccess], cloud: str) -> str:
    """Return the cloud's id of a cluster; its name for one that is reached in another way.

    Args:
        cluster: The cluster.
        own: The access to the cloud's own clusters.
        cloud: The cloud's name, for the error.

    Raises:
        ConfigurationError: The cluster is on another cloud.
    """
    if isinstance(cluster.access, own):
        return cluster.access.cluster_id
    if isinstance(cluster.access, (KubeconfigAccess, InClusterAccess)):
        return cluster.name
    raise ConfigurationError(
        f"nodes of cluster {cluster.name!r} cannot be launched from {cloud}",
        cluster=cluster.name,
        to_do="register it with a deployment on its own cloud",
    )


@cache
def logger() -> Logger:
    """Return the process's logger."""
    return logs.json_logger(level=os.environ.get("LOG_LEVEL", "info"), commit=os.environ.get("JOURNEYMAN_COMMIT", ""))
