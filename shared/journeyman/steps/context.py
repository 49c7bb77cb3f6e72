"""The parameters and the result of every step: `RunContext` with `Settings` and `Memory`, and `Outcome`.

A step is a function `step(run: RunContext, trigger: Trigger) -> Outcome` without state: what its next run needs is in the
cluster's objects or in a requeue message.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct, field

from journeyman.core.api.objects import TopologySpreadConstraint
from journeyman.core.catalogue import Catalogue, InstanceType
from journeyman.core.lifecycle.liveness import LivenessTimeouts
from journeyman.core.plan import Requeue, Step
from journeyman.core.scheduling.results import CachedResults, MinValuesPolicy, Options, PreferencePolicy, Verifier
from journeyman.core.scheduling.verify import verify
from journeyman.errors import JourneymanError
from journeyman.ports import Clock, CloudProvider, KubeStore, Lease, Queue, Telemetry, WindowSchedules


class FeatureGates(Struct, frozen=True, kw_only=True):
    """Karpenter's FEATURE_GATES with its defaults; only PodDeletionCostManagement, of 1.15, is enabled unlike there."""

    reserved_capacity: bool = True
    node_repair: bool = False
    spot_to_spot_consolidation: bool = False
    node_overlay: bool = False
    static_capacity: bool = False
    capacity_buffer: bool = False
    pod_deletion_cost_management: bool = True


class Settings(Struct, frozen=True, kw_only=True):
    """One cluster's settings: Karpenter's names and defaults where Karpenter has them, ours below."""

    cluster_name: str

    # Karpenter's settings (pkg/operator/options)
    batch_idle_duration: timedelta = timedelta(seconds=1)
    batch_max_duration: timedelta = timedelta(seconds=10)
    preference_policy: PreferencePolicy = PreferencePolicy.RESPECT
    min_values_policy: MinValuesPolicy = MinValuesPolicy.STRICT
    feature_gates: FeatureGates = FeatureGates()
    ignore_dra_requests: bool = True
    default_spread: tuple[TopologySpreadConstraint, ...] = ()
    cluster_state_observability: bool = True

    # Karpenter's constants: nodeclaim/lifecycle and /consistency, node/termination and /health, garbagecollection,
    # disruption; AWS: cache.go, instancestatus.go
    launch_timeout: timedelta = timedelta(minutes=5)
    registration_timeout: timedelta = timedelta(minutes=15)
    min_drain: timedelta = timedelta(seconds=5)
    drain_poll: timedelta = timedelta(seconds=2)
    instance_poll: timedelta = timedelta(seconds=5)
    orphan_age: timedelta = timedelta(seconds=30)
    unavailable_for: timedelta = timedelta(minutes=3)
    disruption_poll: timedelta = timedelta(seconds=10)
    validation_delay: timedelta = timedelta(seconds=15)
    consistency_period: timedelta = timedelta(minutes=10)
    impaired_for: timedelta = timedelta(seconds=120)

    # Ours
    consolidation_payback: timedelta = timedelta(hours=1)
    eviction_cost: float = 0.0001  # in the provider's currency
    reversal_window: timedelta = timedelta(minutes=10)
    unavailable_longest: timedelta = timedelta(hours=1)
    initialization_timeout: timedelta = timedelta(minutes=30)  # twice the registration timeout; zero: none
    inconsistent_after: timedelta = timedelta(minutes=5)
    pod_nomination: bool = True
    fleet_plans: bool = True
    disruption_history_limit: int = 100
    disruption_history_age: timedelta = timedelta(hours=24)
    registration_poll: timedelta = timedelta(seconds=5)
    node_class_refresh: timedelta = timedelta(minutes=5)
    deadline_margin: timedelta = timedelta(seconds=5)
    launch_call_timeout: timedelta = timedelta(seconds=30)  # of one launch request, including its retries
    claims_per_run: int = 300
    max_hops: int = 12  # of a chain of requeues; below Lambda's limit of about 16 runs

    @property
    def timeouts(self) -> LivenessTimeouts:
        """How long a NodeClaim may take to launch, to register and to initialize."""
        return LivenessTimeouts(
            launch=self.launch_timeout,
            registration=self.registration_timeout,
            initialization=self.initialization_timeout,
        )

    @property
    def scheduling(self) -> Options:
        """The scheduler's options. They disable the lower bound, which no step needs."""
        return Options(
            preferences=self.preference_policy,
            min_values=self.min_values_policy,
            ignore_dra_requests=self.ignore_dra_requests,
            bound=False,
        )


class CachedCatalogue(Struct, frozen=True, kw_only=True):
    """The catalogue that a run made from what `key` holds; `offered` are the launchable instance types by NodeClass."""

    key: tuple[Any, ...]
    offered: Mapping[str, tuple[InstanceType, ...]]
    catalogue: Catalogue
    overlay_conflicts: Mapping[str, str]


class Memory(Struct):
    """The caches that a warm process keeps for a cluster between runs. They may vanish at any time."""

    kubernetes_version: tuple[int, int] | None = None
    catalogue: CachedCatalogue | None = None
    parsed: dict[str, Mapping[Hashable, Any]] = field(default_factory=dict)  # `load`'s objects, by kind and version
    cached_results: CachedResults = CachedResults()
    checks_due: datetime | None = None  # when to read the instances' status checks again
    checks_refused: bool = False  # the permission to read status checks is missing
    schedule_entries: frozenset[str] | None = None  # names of the cluster's entries in the cloud's scheduler
    schedule_entries_due: datetime | None = None  # when to list them again


EFFORT_PER_SECOND: Final = 800_000
"""The scheduler's units of work (`core.scheduling.results.Effort`) that a second of one vCPU suffices for, at the least."""
MAX_EFFORT: Final = 4_000_000
"""The most effort of one pass, however much time is left: five seconds, for which one pod may keep the nodes of others waiting. 8,000
distinct pods with anti-affinity take two thirds of it."""
_SHARE_OF_TIME: Final = 4  # of the time left; verifying, launching and other passes take the rest

DONE: Final = "done"
BUSY: Final = "busy"
PARTIAL: Final = "partial"


class RunContext(Struct, frozen=True, kw_only=True):
    """One run's settings and adapters. The platform ends the run at `deadline`; the run stops `deadline_margin` earlier."""

    cluster: str
    settings: Settings
    store: KubeStore
    cloud: CloudProvider
    queue: Queue
    lease: Lease
    clock: Clock
    telemetry: Telemetry
    deadline: datetime
    request_id: str
    memory: Memory = field(default_factory=Memory)
    verify: Verifier = verify
    window_schedules: WindowSchedules | None = (
        None  # None: the cloud has no scheduler for them; the sweep finds all edges
    )

    @property
    def is_out_of_time(self) -> bool:
        """Whether the run must stop now and requeue the remaining work."""
        return self.clock.now() >= self.deadline - self.settings.deadline_margin

    @property
    def effort(self) -> int:
        """The effort that one pass of the scheduler may take in the time that is left."""
        seconds = (self.deadline - self.settings.deadline_margin - self.clock.now()).total_seconds()
        return min(max(int(seconds * EFFORT_PER_SECOND) // _SHARE_OF_TIME, 0), MAX_EFFORT)


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of a run.

    `status` is "done"; "busy" if another run holds the step's Lease; or "partial" if `error` stopped the run and a requeue
    was sent for the remaining work. `requeues` are the requeues that were sent, at most one for each step.
    """

    step: Step
    cluster: str
    status: str = DONE
    notes: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    requeues: tuple[Requeue, ...] = ()
    error: JourneymanError | None = None
