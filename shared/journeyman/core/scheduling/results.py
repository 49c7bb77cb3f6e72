"""Defines the scheduler's results (planned NodeClaims, pods for existing nodes, pod errors), options and result cache.

The cache is keyed by the resource versions that results were computed from. The solver and its verification are pure
and read no clock, so the same pods in the same cluster give the same results; losing the cache only costs time.

Differs: karpenter's `ConsolidationState` (pkg/controllers/state/cluster.go) decides by which watch events arrived.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from msgspec import Struct, field

from journeyman.core.api.objects import NodeSelectorRequirement, OfferingKey, Pod
from journeyman.core.catalogue import Catalogue, Resources
from journeyman.core.state.skipped_objects import SkippedObject
from journeyman.core.state.snapshot import Snapshot, Workloads


class PlannedDevice(Struct, frozen=True, kw_only=True):
    """A device that is available for a ResourceClaim (`namespace/name`); kube-scheduler may allocate another equal one.

    `request` is the claim's request, or the chosen subrequest (`request/subrequest`). A device that is not `published`
    will come with the node.
    """

    claim: str
    request: str
    driver: str
    pool: str
    device: str
    published: bool


class PlannedClaim(Struct, frozen=True, kw_only=True):
    """One node to launch.

    `pods` are keys (`namespace/name`), sorted. `instance_types` are by price of their cheapest usable offering, then
    name; every one of them can hold all the pods plus its daemons. `requirements` are those of the NodeClaim's spec
    (NodePool, zone if decided, capacity types, instance types…), sorted by key. `requests` are the pods' sum plus the
    smallest daemon overhead among the types. `offering` is the cheapest (instance type, zone, capacity type) and
    `price` its hourly price. `min_values_relaxed`: the NodePool's minValues could not be met and were lowered.
    `reservations` are the ids of the reserved capacity that it holds, `overlays` the annotations for NodeOverlays on
    its instance types. `devices` are by instance type the devices for its pods' ResourceClaims, and `dra_drivers` must
    publish their devices before the node is initialized.
    """

    node_pool: str
    pods: tuple[str, ...]
    instance_types: tuple[str, ...]
    requirements: tuple[NodeSelectorRequirement, ...]
    requests: Resources
    offering: OfferingKey
    price: float
    min_values_relaxed: bool = False
    reservations: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    devices: Mapping[str, tuple[PlannedDevice, ...]] = field(default_factory=dict)
    dra_drivers: tuple[str, ...] = ()


class PoolReason(Struct, frozen=True, kw_only=True):
    """Why one NodePool cannot provide a node for a pod.

    `kind` is for programs: taints, requirements, resources, offerings, limits, min-values, rules (about other pods),
    not-usable. Of the NodePool's `types_total` instance types `types_suiting` meet the requirements, `types_fitting`
    are large enough as well, `types_available` have an available offering too. `detail` is the text.
    `unavailable_until` is the earliest time at which a compatible offering is tried again.
    """

    node_pool: str
    kind: str
    detail: str
    types_total: int = 0
    types_suiting: int = 0
    types_fitting: int = 0
    types_available: int = 0
    unavailable_until: datetime | None = None


class PodError(Struct, frozen=True, kw_only=True):
    """Why one pod is not scheduled.

    `kind` is for programs: unsupported, invalid, unschedulable, limits, no-nodepool, refused, unreached (the effort did
    not suffice; it is scheduled again). `by_node_pool` has each NodePool's own reason, most helpful first; `reasons`
    are the same as data. `smallest_change` is the smallest change that would let it schedule, as text, or why the
    search for it ended; empty if none was searched for.
    """

    kind: str
    message: str
    by_node_pool: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[PoolReason, ...] = ()
    smallest_change: str = ""

    def message_within(self, length: int) -> str:
        """Return the message in at most `length` characters, always with the smallest change."""
        if len(self.message) <= length or not self.smallest_change:
            return self.message
        end = f"… Smallest change: {self.smallest_change}"
        return f"{self.message[: max(length - len(end), 0)]}{end}"


class LeftOutDaemons(Struct, frozen=True, kw_only=True):
    """The DaemonSets (`namespace/name`) without which nodes of a NodePool are planned, and why as a sentence."""

    names: tuple[str, ...]
    why: str


NOT_EXPLAINED: Final = PodError(kind="unschedulable", message="no node fits it")
"""The error of unschedulable pods before they are explained: the explanation is searched after the launches."""


class PodExplainer(Protocol):
    """Explains the unschedulable pods of one pass."""

    def errors(self, wanted: Collection[str], effort: Effort) -> Mapping[str, PodError]:
        """Return the error of each of these pods, by key."""


class PlanSummary(Struct, frozen=True, kw_only=True):
    """What a plan comes to: who proposed it, its unschedulable pods, the price per hour and number of its new nodes."""

    proposer: str
    unschedulable: int
    price: float
    nodes: int

    def as_data(self) -> dict[str, Any]:
        """Return it for logs and JSON."""
        price = {"pricePerHour": self.price, "nodes": self.nodes}
        return {"proposer": self.proposer, "unschedulable": self.unschedulable, **price}


class ChosenPlan(Struct, frozen=True, kw_only=True):
    """The plan that won, and those that it was compared with, in order."""

    plan: PlanSummary
    rivals: tuple[PlanSummary, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return it for logs and JSON."""
        return {**self.plan.as_data(), "rivals": [rival.as_data() for rival in self.rivals]}


class Results(Struct, frozen=True, kw_only=True):
    """The results of one pass.

    `existing` maps a StateNode's `name` to the keys of the pods planned onto it; `pod_errors` has every pod considered
    and not scheduled. `price` is the sum over `new_claims`; `lower_bound` is the linear-programming bound on it (0 if
    there is no new node, or the bound is not wanted). `devices` are by node name the devices on existing nodes for the
    planned pods' ResourceClaims, including claims that they share with bound pods. `warnings` has by NodePool its
    invalid annotations, which are ignored; `pod_warnings` what is simplified of pods with very many preferences, by one
    key for equal pods. `chosen_plan` says who proposed the plan, and which rivals lost by how much; None without pods
    to schedule. `unexplained` explains the pods with the error `NOT_EXPLAINED` (`explanation.explained`). Results that
    are `is_truncated` have used up their effort: another pass may schedule more pods, or for less.
    """

    new_claims: tuple[PlannedClaim, ...] = ()
    existing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pod_errors: Mapping[str, PodError] = field(default_factory=dict)
    price: float = 0.0
    lower_bound: float = 0.0
    unusable_node_pools: Mapping[str, str] = field(default_factory=dict)  # NodePools not used in this pass, with why
    warnings: Mapping[str, str] = field(default_factory=dict)
    pod_warnings: Mapping[str, str] = field(default_factory=dict)
    skipped: tuple[SkippedObject, ...] = ()  # DaemonSets and nodes that cannot be evaluated
    devices: Mapping[str, tuple[PlannedDevice, ...]] = field(default_factory=dict)
    chosen_plan: ChosenPlan | None = None
    is_truncated: bool = False
    left_out: Mapping[str, LeftOutDaemons] = field(default_factory=dict)  # DaemonSets, by NodePool
    unexplained: PodExplainer | None = None

    @property
    def gap(self) -> float:
        """The relative difference between the plan's price and the lower bound; 0 without a bound."""
        return self.price / self.lower_bound - 1 if self.lower_bound > 0 else 0.0


class Defect(Struct, frozen=True):
    """A mistake in a plan.

    `nodes` are the defective nodes, by their names in messages. There are none where no node is wrong by itself: if
    several are too many together, or a pod is missing from the plan.
    """

    sentence: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.sentence


class Verifier(Protocol):
    """Finds the defects of a plan, by the snapshot and the catalogue from which the solver computed it."""

    def __call__(
        self,
        snapshot: Snapshot,
        catalogue: Catalogue,
        results: Results,
        *,
        pods: Sequence[Pod] | None = None,
        without_nodes: frozenset[str] = frozenset(),
        ignore_dra_requests: bool = True,
    ) -> tuple[Defect, ...]:
        """Return the defects, each with a sentence that names pod and node; empty if there are none.

        Args:
            snapshot: The snapshot that the solver saw.
            catalogue: The catalogue that the solver saw.
            results: The plan.
            pods: The pods to schedule; None to check only the pods in the plan.
            without_nodes: Names of state nodes that the solver must not use.
            ignore_dra_requests: As in the solver's options: whether DaemonSets whose pods have ResourceClaims count for
            nothing.
        """
        ...


def placements(results: Results) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the nodes that get pods, by their names in messages, and the pods' keys."""
    yield from ((name_of_claim(claim), claim.pods) for claim in results.new_claims)
    yield from ((name_of_node(name), keys) for name, keys in results.existing.items())


def name_of_node(name: str) -> str:
    """Return the name of an existing node in messages."""
    return f"node {name}"


def name_of_claim(claim: PlannedClaim) -> str:
    """Return the name of a planned node in messages."""
    shown = f"{', '.join(claim.pods[:3])}{'…' if len(claim.pods) > 3 else ''}"
    return f"the NodeClaim of NodePool {claim.node_pool} for {shown}"


class PreferencePolicy(str, Enum):
    """What the scheduler does with preferences (preferred affinity, ScheduleAnyway, PreferNoSchedule).

    RESPECT requires them until it has to relax them (Karpenter's default). IGNORE ignores those of pods. WHEN_FREE
    respects them where that does not raise the price.
    """

    RESPECT = "Respect"
    IGNORE = "Ignore"
    WHEN_FREE = "WhenFree"


class MinValuesPolicy(str, Enum):
    """What the scheduler does with minValues that cannot be met: STRICT launches no node, BEST_EFFORT lowers them."""

    STRICT = "Strict"
    BEST_EFFORT = "BestEffort"


class Options(Struct, frozen=True, kw_only=True):
    """Settings of one pass.

    A NodeClaim lists every instance type up to `near_price` times the cheapest price, at least `min_types` if available
    (Karpenter's count for spot-to-spot consolidation), at most `max_types` (AWS truncates a launch to 60).
    `compare_up_to`: up to this number of pods, the sequential scheduler also runs, and the cheaper plan wins.
    `ignore_dra_requests`: pods with ResourceClaims are not scheduled (Karpenter's IGNORE_DRA_REQUESTS). `bound`:
    compute the lower bound of the price, for reports; no decision depends on it, and it takes a third of the time of a
    small pass.
    """

    near_price: float = 1.25
    min_types: int = 15
    max_types: int = 60
    preferences: PreferencePolicy = PreferencePolicy.RESPECT
    min_values: MinValuesPolicy = MinValuesPolicy.STRICT
    compare_up_to: int = 600
    ignore_dra_requests: bool = True
    bound: bool = True


UNLIMITED: Final = 1 << 62


class EffortSpentError(Exception):
    """A pass has used up its effort; `Scheduler.solve` answers with the best plan so far, or schedules fewer pods."""


class Effort:
    """The work that a pass may still do, in units of about a microsecond.

    It is counted, not measured: the same pods with the same effort give the same results on every machine. Each place
    whose work grows with the size of a pod's constraints spends it before it works.
    """

    def __init__(self, units: int = UNLIMITED) -> None:
        self.left = units
        self.done = 0
        """The work that was announced and begun."""

    def spend(self, units: int) -> None:
        """Count down.

        Raises:
            EffortSpentError: The units are more than what is left, of which then nothing is left.
        """
        self.require(units)
        self.left -= units
        self.done += units

    def require(self, units: int) -> None:
        """Raise EffortSpentError if that much work, which will be spent later, is more than what is left."""
        if units > self.left:
            self.left = 0
            raise EffortSpentError


class ProblemKey(NamedTuple):
    """The keys of the pods to schedule, the names of the nodes treated as deleted, and the kind of solve."""

    pods: tuple[str, ...]
    without_nodes: frozenset[str]
    kind: str = ""


class CachedResults(Struct, frozen=True, eq=False):
    """The results for one version of one cluster, by problem; immutable.

    `version` has all inputs of results but the catalogue: options, hibernating NodePools, and the UIDs and resource
    versions of objects. Catalogues are compared by identity, because `steps.load` reuses them.
    """

    catalogue: Catalogue | None = None
    version: tuple[object, ...] = ()
    by_problem: Mapping[ProblemKey, Results] = field(default_factory=dict)

    def valid_for(self, snapshot: Snapshot, catalogue: Catalogue, options: Options) -> CachedResults:
        """Return these results if the cluster has the same version, else an empty cache for the new version."""
        hibernating = frozenset(p.metadata.name for p in snapshot.node_pools if p.is_hibernating(snapshot.now))
        parts = [getattr(snapshot, part) for part in _PARTS]
        parts += [getattr(snapshot.workloads, part) for part in Workloads.__struct_fields__]
        version = (options, hibernating, *map(_versions, parts))
        is_same = None not in version and self.catalogue is catalogue and self.version == version
        return self if is_same else CachedResults(catalogue, version)

    def with_results(self, results: Mapping[ProblemKey, Results]) -> CachedResults:
        """Return a copy with further results, without those that are truncated."""
        complete = {problem: found for problem, found in results.items() if not found.is_truncated}
        by_problem = {**self.by_problem, **complete}
        return CachedResults(self.catalogue, self.version, by_problem) if complete else self


def _versions(items: Iterable[Any]) -> tuple[object, ...] | None:
    """Return the UIDs and resource versions of objects, other items as they are; None if one has no version."""
    found: list[object] = []
    for item in items:
        version = _VERSION(item) if hasattr(item, "metadata") else item
        if version is not item and not version[1]:
            return None  # a virtual pod of a CapacityBuffer, which the API server does not store
        found.append(version)
    return tuple(found)


_NO_INPUTS: Final = frozenset({"cluster", "now", "workloads", "churn_ledger", "fleet_guard"})
_PARTS: Final = tuple(name for name in Snapshot.__struct_fields__ if name not in _NO_INPUTS)
_VERSION: Final = attrgetter("metadata.uid", "metadata.resource_version")
