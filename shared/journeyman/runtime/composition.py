"""Holds what a process runs on: the clusters it serves, and their connections and caches.

One composition lives as long as its process, so that warm invocations reuse connections and caches. It names no cloud:
`runtime.aws` makes one from the environment, a simulation makes its own.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.plan import Observation, Step
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
from journeyman.ports import EVERY_CLUSTER, Clock, CloudProvider, KubeStore, Lease, Queue, Telemetry, Trigger
from journeyman.runtime.call_deadline import calls_end_by
from journeyman.steps.context import Memory, RunContext, Settings

FLUSH_MARGIN = timedelta(seconds=1)

_UNREACHABLE = (ConfigurationError, ForbiddenError, KubeUnavailableError)

V = TypeVar("V")


class Context(Protocol):
    """What we use of a platform's invocation context (Lambda's, and the like elsewhere)."""

    @property
    def aws_request_id(self) -> str:
        """The platform's id of this invocation."""
        ...

    def get_remaining_time_in_millis(self) -> float:
        """Time until the platform ends it."""
        ...


class FlushableTelemetry(Telemetry, Protocol):
    """Telemetry that keeps some of it until the run ends."""

    def flush(self, *, until: datetime) -> None:
        """Write what was kept; stop at `until`."""
        ...


@runtime_checkable
class PerRunStore(Protocol):
    """A KubeStore that keeps what a run may spend on it."""

    def for_run(self, budget: RequestBudget, purpose: str) -> KubeStore:
        """The same store for one run; `purpose` is its step, as runs of a step ask for the same things."""
        ...


class Adapters(Protocol):
    """How one composition reaches the outside.

    Each is made once per cluster, when first needed, and then kept until the cluster is out of reach: it may have moved.
    """

    clock: Clock

    def store(self, cluster: Settings) -> KubeStore:
        """The cluster's API server."""
        ...

    def cloud(self, cluster: Settings, store: KubeStore) -> CloudProvider:
        """The cluster's cloud account and region."""
        ...

    def queue(self) -> Queue:
        """The queues of this deployment."""
        ...

    def lease(self, cluster: Settings, step: Step, store: KubeStore, holder: str) -> Lease:
        """The fence of one run; `holder` names the run."""
        ...

    def telemetry(self, store: KubeStore, fields: Mapping[str, str]) -> FlushableTelemetry:
        """Logs, Events and metrics of one run; `fields` go onto each log line."""
        ...

    def log(self, level: str, message: str, **fields: Any) -> None:
        """A line that belongs to no run."""
        ...

    def observe(self, observations: Sequence[Observation]) -> None:
        """Metric samples that belong to no run, nor to a cluster."""
        ...


class _Kept(Struct, Generic[V], frozen=True):
    """Values made once per key."""

    make: Callable[[Settings], V]
    values: dict[str, V] = field(default_factory=dict)

    def of(self, cluster: Settings) -> V:
        name = cluster.cluster_name
        if name not in self.values:
            self.values[name] = self.make(cluster)
        return self.values[name]

    def forget(self, cluster: Settings) -> None:
        self.values.pop(cluster.cluster_name, None)


class Runtime:
    """The clusters one process serves, and the runs it makes for them."""

    def __init__(self, clusters: Mapping[str, Settings], adapters: Adapters) -> None:
        """Args: `clusters` by name."""
        self._clusters = dict(clusters)
        self._adapters = adapters
        self._stores: _Kept[KubeStore] = _Kept(adapters.store)
        self._clouds: _Kept[CloudProvider] = _Kept(lambda c: adapters.cloud(c, self._stores.of(c)))
        self._memories: _Kept[Memory] = _Kept(lambda _: Memory())
        self._queue: Queue | None = None

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of the clusters served, sorted."""
        return tuple(sorted(self._clusters))

    @property
    def clock(self) -> Clock:
        """The time of this composition."""
        return self._adapters.clock

    @property
    def queue(self) -> Queue:
        """The queues, for messages that no run sends."""
        if self._queue is None:
            self._queue = self._adapters.queue()
        return self._queue

    def log_error(self, error: Exception, **fields: str) -> None:
        """Log an error with its context; with a stack trace if it is a bug."""
        if isinstance(error, JourneymanError) and not isinstance(error, InvariantError):
            level = "info" if isinstance(error, LeaseLostError) else "error"
            self._adapters.log(level, error.message, **{**_text(error.context), **fields}, error=type(error).__name__)
            return
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self._adapters.log("error", str(error), error=type(error).__name__, stacktrace=trace, **fields)

    def addressed(self, trigger: Trigger) -> tuple[Trigger, ...]:
        """One trigger for each cluster that the trigger is about, by name.

        Raises:
            UnknownClusterError: It names a cluster that is not served here.
        """
        if trigger.cluster == EVERY_CLUSTER:
            return tuple(replace(trigger, cluster=name) for name in self.clusters)
        self.settings_of(trigger.cluster)
        return (trigger,)

    @contextmanager
    def invocation(self, trigger: Trigger, context: Context) -> Iterator[RunContext]:
        """Yield one run of the trigger's step for its cluster; its telemetry is flushed when it ends, however it ends.

        Args:
            trigger: About one cluster (see `addressed`).
            context: The platform's; its remaining time becomes the run's deadline.

        Raises:
            UnknownClusterError: The cluster is not served here.
        """
        settings = self.settings_of(trigger.cluster)
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
            with calls_end_by(deadline - FLUSH_MARGIN), self._dropped_if_unreachable(settings):
                yield RunContext(
                    cluster=settings.cluster_name,
                    settings=settings,
                    store=store,
                    cloud=MeteredCloud(
                        self._clouds.of(settings), self.clock, telemetry.observe, controller=trigger.step.value
                    ),
                    queue=self.queue,
                    lease=self._adapters.lease(settings, trigger.step, store, context.aws_request_id),
                    clock=self.clock,
                    telemetry=telemetry,
                    deadline=deadline,
                    request_id=context.aws_request_id,
                    memory=self._memories.of(settings),
                )
        finally:
            telemetry.flush(until=deadline - FLUSH_MARGIN)
            cost = request_metrics(budget.usage, trigger.step.value)  # what was flushed had its price, too
            for observation in cost:
                telemetry.observe(observation)
            if cost:
                telemetry.flush(until=deadline - FLUSH_MARGIN)

    @contextmanager
    def connected(self, cluster: str) -> Iterator[KubeStore]:
        """The API server of a cluster served here, for what needs no run. Raises UnknownClusterError."""
        settings = self.settings_of(cluster)
        with self._dropped_if_unreachable(settings):
            yield self._stores.of(settings)

    @contextmanager
    def _dropped_if_unreachable(self, settings: Settings) -> Iterator[None]:
        """Drop all that is kept for a cluster if it cannot be reached: it may have been created again."""
        try:
            yield
        except _UNREACHABLE:
            self._stores.forget(settings)
            self._clouds.forget(settings)  # what nodes join with is in there
            self._memories.forget(settings)
            raise

    def _store_for_run(self, settings: Settings, budget: RequestBudget, step: Step) -> KubeStore:
        kept = self._stores.of(settings)
        return kept.for_run(budget, step.value) if isinstance(kept, PerRunStore) else kept

    def log(self, level: str, message: str, **fields: str) -> None:
        """A line that belongs to no run."""
        self._adapters.log(level, message, **fields)

    def observe(self, *observations: Observation) -> None:
        """Metric samples that belong to no run, nor to a cluster."""
        self._adapters.observe(observations)

    def settings_of(self, cluster: str) -> Settings:
        """The settings of a cluster served here. Raises UnknownClusterError."""
        if cluster not in self._clusters:
            raise UnknownClusterError(
                f"cluster {cluster!r} is not registered here",
                cluster=cluster,
                registered=", ".join(self.clusters),
                to_do="register it in JOURNEYMAN_CLUSTERS, or correct the sender",
            )
        return self._clusters[cluster]


_installed: list[Runtime] = []


@contextmanager
def installed(runtime: Runtime) -> Iterator[Runtime]:
    """Let the handlers use `runtime` instead of the process's own."""
    _installed.append(runtime)
    try:
        yield runtime
    finally:
        _installed.remove(runtime)


def current(make: Callable[[], Runtime]) -> Runtime:
    """Return the process's runtime: the one installed last, or else one that is made now and kept."""
    if not _installed:
        _installed.append(make())
    return _installed[-1]


def _text(context: Mapping[str, Any]) -> dict[str, str]:
    return {f"{name}_" if name in {"level", "error"} else name: str(value) for name, value in context.items()}


def request_metrics(usage: RequestUsage, controller: str) -> tuple[Observation, ...]:
    """Return the metrics of a run's requests to the API server; none if it sent no request."""
    if not usage.requests:
        return ()
    counted = {
        "journeyman_kube_requests_total": usage.requests,
        "journeyman_kube_retries_total": usage.retries,
        "journeyman_kube_sent_bytes_total": usage.sent_bytes,
        "journeyman_kube_received_bytes_total": usage.received_bytes,
    }
    labels = {"controller": controller}
    return tuple(Observation(name=name, value=value, labels=labels) for name, value in counted.items())
