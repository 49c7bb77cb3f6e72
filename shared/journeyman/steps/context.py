"""What every step is given and what it gives back: `Settings`, `RunContext`, `Outcome`.

A step is `step(run: RunContext, trigger: Trigger) -> Outcome`. It holds no state of its own: whatever it needs
to go on is in the cluster's objects, or in a requeue message it leaves behind.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct, field

from journeyman.core.api.objects import TopologySpreadConstraint
from journeyman.core.catalogue import Catalogue
from journeyman.core.plan import Requeue, Step
from journeyman.core.scheduling.options import MinValuesPolicy, Options, PreferencePolicy
from journeyman.core.scheduling.result_cache import ResultCache
from journeyman.ports import Clock, CloudProvider, KubeStore, Lease, Queue, Telemetry


class FeatureGates(Struct, frozen=True, kw_only=True):
    """Karpenter's FEATURE_GATES with its defaults."""

    reserved_capacity: bool = True
    node_repair: bool = False
    spot_to_spot_consolidation: bool = False
    node_overlay: bool = False
    static_capacity: bool = False
    capacity_buffer: bool = False


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
    unavailable_longest: timedelta = timedelta(hours=1)
    stray_after: timedelta = timedelta(minutes=5)
    pod_nomination: bool = True
    registration_poll: timedelta = timedelta(seconds=5)
    node_class_refresh: timedelta = timedelta(minutes=5)
    deadline_margin: timedelta = timedelta(seconds=5)
    launch_patience: timedelta = timedelta(seconds=30)  # how long a cloud's client asks, all attempts together
    claims_per_run: int = 300

    @property
    def scheduling(self) -> Options:
        """How the scheduler is to decide; nobody who carries its plans out asks what they are short of the best."""
        return Options(
            preferences=self.preference_policy,
            min_values=self.min_values_policy,
            ignore_dra_requests=self.ignore_dra_requests,
            bound=False,
        )


class Memory(Struct):
    """What a warm sandbox keeps for a cluster between runs. Losing it costs time, never correctness."""

    kubernetes_version: tuple[int, int] | None = None
    catalogue: Catalogue | None = None
    catalogue_key: Hashable = None
    overlay_conflicts: Mapping[str, str] = field(default_factory=dict)
    parsed: dict[str, Mapping[Hashable, Any]] = field(
        default_factory=dict
    )  # by kind: what `load` has made of each version
    answers: ResultCache = field(default_factory=ResultCache)
    checks_due: datetime | None = None  # not before then are the cloud's own checks of instances asked for again
    checks_refused: bool = False  # we may not ask for them


DONE: Final = "done"
BUSY: Final = "busy"
PARTIAL: Final = "partial"


class RunContext(Struct, frozen=True, kw_only=True):
    """One run's connections to the outside. `deadline` is when the platform ends the run, margin not yet taken off."""

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

    @property
    def out_of_time(self) -> bool:
        """Whether it is time to stop cleanly and leave the rest to a requeue."""
        return self.clock.now() >= self.deadline - self.settings.deadline_margin


class Outcome(Struct, frozen=True, kw_only=True):
    """What a run did.

    `status` is "done"; "busy" if another run holds the step (it will do the work); or "partial" if something is left
    for a requeue that has been sent. `wakes` are the requeues sent, at most one for each step.
    """

    step: Step
    cluster: str
    status: str = DONE
    notes: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    requeues: tuple[Requeue, ...] = ()
