"""The inputs of reconcilers: a snapshot, the instance types that can be launched now, and the cloud's instances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from journeyman.core.api.nodeoverlay import NodeOverlay
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NodeClaim, Resource
from journeyman.core.catalogue import Catalogue, InstanceType, with_learned_sizes, without_unavailable
from journeyman.core.lifecycle.learned_sizes import known_sizes
from journeyman.core.lifecycle.node_overlays import apply_overlays
from journeyman.core.plan import Failure
from journeyman.core.scheduling.results import UNLIMITED, CachedResults, Results, Verifier
from journeyman.core.scheduling.verify import verify
from journeyman.core.state import BuildFailure, InstanceStatus, NodeClassState, RepairPolicy, Snapshot
from journeyman.core.state.skipped_objects import report_skipped
from journeyman.errors import CloudProviderError, InvalidObjectError, InvariantError, NodeClassNotReadyError
from journeyman.ports import Instance, Prices, Trigger
from journeyman.steps.actions import WrittenObjects
from journeyman.steps.context import CachedCatalogue, RunContext, Settings
from journeyman.steps.recorder import emit_reports


class SchedulingInputs(Struct, frozen=True, kw_only=True):
    """A snapshot with the catalogue of its NodePools, and all types by NodeClass (for claims without a NodePool).

    `failures` are the errors of NodeClasses whose instance types could not be listed; `overlay_conflicts` maps each ignored
    NodeOverlay to the one it conflicts with.
    """

    snapshot: Snapshot
    catalogue: Catalogue
    by_node_class: Mapping[str, tuple[InstanceType, ...]]
    failures: Mapping[str, CloudProviderError] = field(default_factory=dict)
    overlay_conflicts: Mapping[str, str] = field(default_factory=dict)
    prices: Prices = Prices()  # the source and age of the catalogue's prices

    def node_class(self, claim: NodeClaim) -> NodeClassState | None:
        """Return the NodeClass of a claim; None if it does not exist."""
        name = claim.spec.node_class_ref.name
        return next((n for n in self.snapshot.node_classes if n.name == name), None)


class StepInputs(Struct, frozen=True, kw_only=True):
    """The inputs of a step's reconcilers, which the step's load function reads.

    `loaded` is the cluster as it was read, `snapshot` the same with what this run has written so far. `snapshot` has no
    deleted NodeClaims, since no pod can use their capacity.
    """

    trigger: Trigger
    settings: Settings
    loaded: Snapshot
    snapshot: Snapshot
    node_class_kind: Resource[dict[str, Any]]
    cached_results: CachedResults = CachedResults()  # of this run and earlier ones
    scheduled: Results = Results()  # of this run, to be explained
    scheduling: SchedulingInputs | None = None  # the snapshot with its catalogue, for steps that launch
    written: WrittenObjects = field(default_factory=WrittenObjects)  # by this run
    supports_nomination: bool = False  # by the cluster's kube-scheduler
    stored_claims: tuple[NodeClaim, ...] = ()  # before the tags of instances corrected their provider ids
    instances: tuple[Instance, ...] = ()  # as the cloud lists them
    missing_instances: frozenset[str] = frozenset()  # provider ids of instances that do not exist any more
    end_reasons: Mapping[str, BuildFailure] = field(default_factory=dict)  # why instances ended, by provider id
    foreign_instances: frozenset[str] = (
        frozenset()
    )  # provider ids of instances that other clusters of this name launched
    statuses: tuple[InstanceStatus, ...] = ()  # failing status checks
    repair_policies: tuple[RepairPolicy, ...] = ()
    drift_reasons: Mapping[str, str] = field(default_factory=dict)  # the cloud's answer by NodeClaim (`is_drifted`)
    failures: tuple[Failure, ...] = ()  # of reads that the step can do without
    verify: Verifier = verify  # every plan, before it is executed
    effort: int = UNLIMITED  # of one pass of the scheduler (`RunContext.effort`)
    examined_until: str = ""  # the last object that an earlier run examined before its time was up
    schedule_entries: frozenset[str] | None = None  # names of the entries in the cloud's scheduler; None if unknown

    @property
    def catalogued(self) -> SchedulingInputs:
        """The snapshot with its catalogue. Raises InvariantError if no reconciler of the step needs the catalogue."""
        if self.scheduling is None:
            raise InvariantError("the step has loaded no catalogue", trigger=self.trigger.id)
        return self.scheduling

    @classmethod
    def of(cls, run: RunContext, trigger: Trigger, snapshot: Snapshot, **more: Any) -> StepInputs:
        """Return the inputs of a run that has read `snapshot` and has written nothing yet."""
        return cls(
            trigger=trigger,
            settings=run.settings,
            loaded=snapshot,
            snapshot=snapshot,
            node_class_kind=run.cloud.node_class,
            cached_results=run.memory.cached_results,
            verify=run.verify,
            repair_policies=run.cloud.repair_policies,
            examined_until=run.lease.examined_until,
            **more,
        )


def scheduling_inputs_of(run: RunContext, snapshot: Snapshot) -> SchedulingInputs:
    """Return the snapshot with the instance types that can be launched now.

    They have the sizes that were learned from nodes. NodeOverlays are applied, and unavailable offerings are left out. If the types of a NodeClass cannot be listed, only its
    own NodePools have none. While nothing changes between runs of a process, the catalogue stays the same object, so that
    the solver can reuse what it derived from it.
    """
    failures: dict[str, CloudProviderError] = {}
    by_class = {c.name: _instance_types(run, c, failures) for c in snapshot.node_classes}
    active = frozenset(u for u in snapshot.unavailable if u.until > snapshot.now)
    by_pool = {p.metadata.name: p.spec.template.spec.node_class_ref.name for p in snapshot.node_pools}
    overlays = _generations(snapshot.node_overlays, snapshot.node_pools)
    sizes = known_sizes(snapshot)
    amounts = frozenset((*s.key, tuple(sorted(s.allocatable.items()))) for s in sizes)
    key = (frozenset(by_pool.items()), active, overlays, amounts, *sorted(by_class.items(), key=lambda entry: entry[0]))
    cached = run.memory.catalogue
    if cached is None or not _is_same_key(cached.key, key):
        offered = {
            name: with_learned_sizes(
                without_unavailable(types, (u for u in active if u.node_class in ("", name))),
                (s for s in sizes if s.node_class == name),
            )
            for name, types in by_class.items()
        }
        without_overlays = Catalogue({pool: offered.get(name, ()) for pool, name in by_pool.items()})
        overlaid = apply_overlays(snapshot.node_pools, without_overlays, snapshot.node_overlays)
        emit_reports(run, report_skipped(overlaid.skipped))
        cached = run.memory.catalogue = CachedCatalogue(
            key=key, offered=offered, catalogue=overlaid.catalogue, overlay_conflicts=overlaid.conflicts
        )
    return SchedulingInputs(
        snapshot=snapshot,
        catalogue=cached.catalogue,
        by_node_class=cached.offered,
        failures=failures,
        overlay_conflicts=cached.overlay_conflicts,
        prices=run.cloud.prices(),
    )


def _generations(overlays: Iterable[NodeOverlay], pools: Iterable[NodePool]) -> frozenset[tuple[str, int]]:
    """Return the versions of NodeOverlays and of the NodePools they apply to; empty if there are no overlays."""
    metas = [o.metadata for o in overlays]
    return frozenset((m.uid, m.generation) for m in [*metas, *(p.metadata for p in pools if metas)])


def _instance_types(
    run: RunContext, node_class: NodeClassState, failures: dict[str, CloudProviderError]
) -> tuple[InstanceType, ...]:
    try:
        return run.cloud.get_instance_types(node_class.raw)
    except CloudProviderError as error:
        failures[node_class.name] = error
    except InvalidObjectError as error:  # a condition of the NodeClass says so
        failures[node_class.name] = NodeClassNotReadyError(error.message)
    return ()


_PARTS: Final = 4  # of a catalogue's key before its types


def _is_same_key(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    """Whether two catalogue keys are equal; lists of types are compared by identity, because adapters cache them."""
    if len(before) != len(after) or before[:_PARTS] != after[:_PARTS]:
        return False
    return all(a == b and old is new for (a, old), (b, new) in zip(before[_PARTS:], after[_PARTS:], strict=True))
