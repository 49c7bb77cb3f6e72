"""Holds a process's registered clusters, with their connections and caches.

A `Runtime` lives as long as its process, so that warm invocations reuse connections and caches. It does not depend on a
cloud: `runtime.aws` creates one from the environment, a simulation creates its own.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Observation, Step
from journeyman.core.scheduling.results import Verifier
from journeyman.core.scheduling.verify import verify
from journeyman.errors import (
    ConfigurationError,
    ForbiddenError,
    InvariantError,
    JourneymanError,
    KubeUnavailableError,
    LeaseLostError,
    UnknownClusterError,
)
from journeyman.kube.request_budget import RequestBudget, RequestUsage
from journeyman.observe.metered_cloud import MeteredCloud
from journeyman.ports import (
    EVERY_CLUSTER,
    Clock,
    CloudProvider,
    Interruption,
    KubeStore,
    Lease,
    Queue,
    Telemetry,
    Trigger,
    WindowSchedules,
)
from journeyman.runtime.call_deadline import calls_end_by
from journeyman.steps.context import Memory, RunContext, Settings

FLUSH_MARGIN = timedelta(seconds=1)

_UNREACHABLE = (ConfigurationError, ForbiddenError, KubeUnavailableError)

V = TypeVar("V")


class Context(Protocol):
    """The part that we use of the platform's invocation context, such as Lambda's."""

    @property
    def aws_request_id(self) -> str:
        """The platform's id of this invocation."""
        ...

    def get_remaining_time_in_millis(self) -> float:
        """Return the time until the platform ends the invocation."""
        ...


class FlushableTelemetry(Telemetry, Protocol):
    """Telemetry that buffers metrics and Events until the run ends."""

    def flush(self, *, until: datetime) -> None:
        """Write the buffered metrics and Events; stop at `until`."""
        ...


@runtime_checkable
class PerRunStore(Protocol):
    """A KubeStore that limits the requests of each run."""

    def for_run(self, budget: RequestBudget, purpose: str) -> KubeStore:
        """Return the store for one run; `purpose` is its step, since runs of one step read the same lists."""
        ...


class Adapters(Protocol):
    """Creates the adapters of a process.

    A cluster's store and cloud are created when they are first needed, and again after the cluster could not be reached or
    has changed.
    """

    clock: Clock

    def store(self, cluster: Settings) -> KubeStore:
        """Return the cluster's API server."""
        ...

    def cloud(self, cluster: Settings, store: KubeStore) -> CloudProvider:
        """Return the cluster's cloud account and region."""
        ...

    def is_outdated(self, cluster: Settings) -> bool:
        """Whether the cloud describes the cluster otherwise than when its store and cloud were created. Raises nothing."""
        ...

    def queue(self) -> Queue:
        """Return the queues of this deployment."""
        ...

    def window_schedules(self, cluster: Settings) -> WindowSchedules | None:
        """Return the cluster's entries in the cloud's scheduler; None if the deployment has no scheduler for them."""
        ...

    def lease(self, cluster: Settings, step: Step, store: KubeStore, holder: str) -> Lease:
        """Return the Lease of a step for the run named `holder`."""
        ...

    def telemetry(self, store: KubeStore, fields: Mapping[str, str]) -> FlushableTelemetry:
        """Return the logs, Events and metrics of one run; every log line has `fields`."""
        ...

    def log(self, level: str, message: str, **fields: Any) -> None:
        """Write a log line outside of any run."""
        ...

    def observe(self, observations: Sequence[Observation]) -> None:
        """Record metric samples outside of any run and cluster."""
        ...

    def clusters_of(self, interruptions: Sequence[Interruption]) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Return for each interruption, by its id, the registered clusters that may have its instances, with these.

        One look-up in the cloud serves them all; no cluster is read. The instances have the ids by which their cluster knows them.

        Raises:
            JourneymanError: The cloud did not answer, and no cluster knows an instance by the id that an event has.
        """
        ...


class _PerCluster(Struct, Generic[V], frozen=True):
    """Values that are created once per cluster."""

    create: Callable[[Settings], V]
    values: dict[str, V] = field(default_factory=dict)

    def get(self, cluster: Settings) -> V:
        name = cluster.cluster_name
        if name not in self.values:
            self.values[name] = self.create(cluster)
        return self.values[name]

    def drop(self, cluster: Settings) -> None:
        self.values.pop(cluster.cluster_name, None)


class Runtime:
    """The registered clusters of one process, and the runs for them.

    Args:
        clusters: The clusters' settings by name; they may change.
        adapters: Creates the clusters' adapters.
        verify: Verifies each plan before it is executed; tests pass a stricter one.
    """

    def __init__(self, clusters: Mapping[str, Settings], adapters: Adapters, *, verify: Verifier = verify) -> None:
        self._clusters = clusters
        self._adapters = adapters
        self._verify = verify
        self._stores: _PerCluster[KubeStore] = _PerCluster(adapters.store)
        self._clouds: _PerCluster[CloudProvider] = _PerCluster(lambda c: adapters.cloud(c, self._stores.get(c)))
        self._memories: _PerCluster[Memory] = _PerCluster(lambda _: Memory())
        self._queue: Queue | None = None
        self._unreachable: set[str] = set()

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of the registered clusters, sorted."""
        return tuple(sorted(self._clusters))

    def in_order_of_reachability(self, clusters: Iterable[str]) -> list[str]:
        """Return the clusters in their order, those whose API server did not answer their last run after all others."""
        return sorted(clusters, key=lambda name: name in self._unreachable)

    def record_reachability(self, cluster: str, *, is_reachable: bool) -> None:
        """Record whether the cluster's API server answered its last run."""
        if is_reachable:
            self._unreachable.discard(cluster)
        else:
            self._unreachable.add(cluster)

    @property
    def max_hops(self) -> int:
        """How many requeues may follow one another; clusters have the same limit."""
        return next((settings.max_hops for settings in self._clusters.values()), 0)

    @property
    def clock(self) -> Clock:
        """The adapters' clock."""
        return self._adapters.clock

    @property
    def queue(self) -> Queue:
        """The queues of this deployment."""
        if self._queue is None:
            self._queue = self._adapters.queue()
        return self._queue

    def log_error(self, error: Exception, **fields: str) -> None:
        """Log an error with its context, and with a stack trace if it is a bug."""
        if isinstance(error, JourneymanError) and not isinstance(error, InvariantError):
            level = "info" if isinstance(error, LeaseLostError) else "error"
            self._adapters.log(
                level, error.message, **{**_log_fields(error.context), **fields}, error=type(error).__name__
            )
            return
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self._adapters.log("error", str(error), error=type(error).__name__, stacktrace=trace, **fields)

    def triggers_by_cluster(self, trigger: Trigger) -> tuple[Trigger, ...]:
        """Return one trigger for each cluster that the trigger concerns, sorted by name.

        Raises:
            UnknownClusterError: It names a cluster that is not registered here.
        """
        if trigger.cluster == EVERY_CLUSTER:
            return tuple(replace(trigger, cluster=name) for name in self.clusters)
        self.settings_of(trigger.cluster)
        return (trigger,)

    def route(self, triggers: Iterable[Trigger]) -> Mapping[str, tuple[Trigger, ...]]:
        """Return for each interruption among the triggers, by its id, one trigger for each cluster that it concerns.

        Raises:
            JourneymanError: The cloud did not answer (`Adapters.clusters_of`).
        """
        interruptions = [trigger for trigger in triggers if isinstance(trigger, Interruption) and is_routed(trigger)]
        by_id = {interruption.id: interruption for interruption in interruptions}
        clusters = self._adapters.clusters_of(interruptions) if interruptions else {}
        return {
            id_: tuple(replace(by_id[id_], cluster=c, instance_ids=ids) for c, ids in sorted(instances.items()))
            for id_, instances in clusters.items()
        }

    @contextmanager
    def invocation(self, trigger: Trigger, context: Context) -> Iterator[RunContext]:
        """Yield one run of the trigger's step for its cluster; flush its telemetry when it ends or fails.

        Args:
            trigger: A trigger of one cluster (see `triggers_by_cluster`).
            context: The platform's invocation context; its remaining time becomes the run's deadline.

        Raises:
            UnknownClusterError: The cluster is not registered here.
        """
        settings = self.settings_of(trigger.cluster)
        if self._adapters.is_outdated(settings):
            self._drop(settings)
        deadline = self.clock.now() + timedelta(milliseconds=context.get_remaining_time_in_millis())
        budget = RequestBudget(clock=self.clock, until=deadline - FLUSH_MARGIN)
        store = self._store_for_run(settings, budget, trigger.step)
        telemetry = self._adapters.telemetry(
            store,
            {
                "controller": trigger.step.value,
                "reconcileID": context.aws_request_id,
                "cluster": settings.cluster_name,
                "correlation_id": trigger.id,
            },
        )
        try:
            with calls_end_by(deadline - FLUSH_MARGIN), self._drop_if_unreachable(settings):
                yield RunContext(
                    cluster=settings.cluster_name,
                    settings=settings,
                    store=store,
                    cloud=MeteredCloud(
                        self._clouds.get(settings), self.clock, telemetry.observe, controller=trigger.step.value
                    ),
                    queue=self.queue,
                    lease=self._adapters.lease(settings, trigger.step, store, context.aws_request_id),
                    clock=self.clock,
                    telemetry=telemetry,
                    deadline=deadline,
                    request_id=context.aws_request_id,
                    memory=self._memories.get(settings),
                    verify=self._verify,
                    window_schedules=(
                        self._adapters.window_schedules(settings) if trigger.step is Step.SWEEP else None
                    ),
                )
        finally:
            telemetry.flush(until=deadline - FLUSH_MARGIN)
            requests = request_metrics(budget.usage, trigger.step.value)  # after `flush`, whose requests count as well
            for observation in requests:
                telemetry.observe(observation)
            if requests:
                telemetry.flush(until=deadline - FLUSH_MARGIN)

    @contextmanager
    def connected(self, cluster: str) -> Iterator[KubeStore]:
        """Yield a cluster's API server, for requests outside of a run. Raises UnknownClusterError."""
        settings = self.settings_of(cluster)
        with self._drop_if_unreachable(settings):
            yield self._stores.get(settings)

    @contextmanager
    def _drop_if_unreachable(self, settings: Settings) -> Iterator[None]:
        """Drop the cluster's adapters and caches if it cannot be reached, since it may have been created again."""
        try:
            yield
        except _UNREACHABLE:
            self._drop(settings)
            raise

    def _drop(self, settings: Settings) -> None:
        """Drop the cluster's adapters and caches; the next use creates them again."""
        self._stores.drop(settings)
        self._clouds.drop(settings)  # it has the cluster's endpoint and CA for user data
        self._memories.drop(settings)

    def _store_for_run(self, settings: Settings, budget: RequestBudget, step: Step) -> KubeStore:
        store = self._stores.get(settings)
        return store.for_run(budget, step.value) if isinstance(store, PerRunStore) else store

    def log(self, level: str, message: str, **fields: str) -> None:
        """Write a log line outside of any run."""
        self._adapters.log(level, message, **fields)

    def observe(self, *observations: Observation) -> None:
        """Record metric samples outside of any run and cluster."""
        self._adapters.observe(observations)

    def settings_of(self, cluster: str) -> Settings:
        """Return a cluster's settings. Raises UnknownClusterError."""
        if cluster not in self._clusters:
            raise UnknownClusterError(
                f"cluster {cluster!r} is not registered here",
                cluster=cluster,
                registered=", ".join(self.clusters),
                to_do="register it in JOURNEYMAN_CLUSTERS or a parameter below JOURNEYMAN_CLUSTERS_PATH, or correct the sender",
            )
        return self._clusters[cluster]


def is_routed(trigger: Trigger) -> bool:
    """Whether the clusters that a trigger concerns are looked up (`Runtime.route`): it is an interruption that names none."""
    return (
        isinstance(trigger, Interruption)
        and trigger.kind is not InterruptionKind.NO_OP
        and trigger.cluster == EVERY_CLUSTER
    )


_installed: list[Runtime] = []


@contextmanager
def installed(runtime: Runtime) -> Iterator[Runtime]:
    """Make the handlers use `runtime` inside the block."""
    _installed.append(runtime)
    try:
        yield runtime
    finally:
        _installed.remove(runtime)


def current(create: Callable[[], Runtime]) -> Runtime:
    """Return the runtime that was installed last; create and install one if there is none."""
    if not _installed:
        _installed.append(create())
    return _installed[-1]


def _log_fields(context: Mapping[str, Any]) -> dict[str, str]:
    return {f"{name}_" if name in {"level", "error"} else name: str(value) for name, value in context.items()}


def request_metrics(usage: RequestUsage, controller: str) -> tuple[Observation, ...]:
    """Return the metrics of a run's requests to the API server; none if it sent no request."""
    if not usage.requests:
        return ()
    totals = {
        "journeyman_kube_requests_total": usage.requests,
        "journeyman_kube_retries_total": usage.retries,
        "journeyman_kube_sent_bytes_total": usage.sent_bytes,
        "journeyman_kube_received_bytes_total": usage.received_bytes,
    }
    labels = {"controller": controller}
    return tuple(Observation(name=name, value=value, labels=labels) for name, value in totals.items())
