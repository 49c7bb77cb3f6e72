"""What reconcilers decide on: a snapshot, the instance types that could be launched now, and what the cloud answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from journeyman.core.api.nodeoverlay import NodeOverlay
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NodeClaim, Resource
from journeyman.core.catalogue import Catalogue, InstanceType, without_unavailable
from journeyman.core.plan import Failure
from journeyman.core.scheduling.node_overlays import apply_overlays
from journeyman.core.scheduling.results import ResultCache
from journeyman.core.state import InstanceStatus, NodeClassState, RepairPolicy, Snapshot
from journeyman.errors import CloudProviderError, InvariantError
from journeyman.ports import Instance, Trigger
from journeyman.steps.actions import WrittenObjects
from journeyman.steps.context import RunContext, Settings


class SchedulingInputs(Struct, frozen=True, kw_only=True):
    """A snapshot with the catalogue of its NodePools, and all types by NodeClass (for claims without a NodePool).

    `failures` are the NodeClasses whose instance types the cloud did not list, with the error; `overlay_conflicts` the
    NodeOverlays that were left out, each with the one it conflicts with.
    """

    snapshot: Snapshot
    catalogue: Catalogue
    by_node_class: Mapping[str, tuple[InstanceType, ...]]
    failures: Mapping[str, CloudProviderError] = field(default_factory=dict)
    overlay_conflicts: Mapping[str, str] = field(default_factory=dict)

    def node_class(self, claim: NodeClaim) -> NodeClassState | None:
        """Return the NodeClass of a claim, None if it does not exist."""
        name = claim.spec.node_class_ref.name
        return next((n for n in self.snapshot.node_classes if n.name == name), None)


class StepInputs(Struct, frozen=True, kw_only=True):
    """What the reconcilers of a step decide on; a step's load function reads all of it.

    `snapshot` is the cluster with what this run has written so far, `loaded` the cluster as it was read. Deleted NodeClaims
    are left out of `snapshot`, since no pod can rely on their capacity.
    """

    trigger: Trigger
    settings: Settings
    loaded: Snapshot
    snapshot: Snapshot
    node_class_kind: Resource[dict[str, Any]]
    result_cache: ResultCache
    scheduling: SchedulingInputs | None = None  # the snapshot with its catalogue, for steps that launch
    written: WrittenObjects = field(default_factory=WrittenObjects)  # by this run
    supports_nomination: bool = False  # the cluster's kube-scheduler keeps nominations
    instances: tuple[Instance, ...] = ()  # that the cloud lists
    gone: frozenset[str] = frozenset()  # provider ids of instances that the cloud does not know any more
    statuses: tuple[InstanceStatus, ...] = ()  # of instances whose checks fail
    repair_policies: tuple[RepairPolicy, ...] = ()
    failures: tuple[Failure, ...] = ()  # reads that failed and that the step does without

    @property
    def catalogued(self) -> SchedulingInputs:
        """The snapshot with its catalogue. Raises InvariantError in a step that has none."""
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
            result_cache=run.memory.result_cache,
            repair_policies=run.cloud.repair_policies,
            **more,
        )


def scheduling_inputs_of(run: RunContext, snapshot: Snapshot) -> SchedulingInputs:
    """Return the snapshot with the instance types that could be launched now.

    A NodeClass whose types the cloud does not list leaves only its own NodePools without any. NodeOverlays are applied to
    what NodePools may use, and unavailable offerings are left out. While nothing changed since the process's last run, the
    catalogue is the same object, so that solvers keep what they derived from it.
    """
    failures: dict[str, CloudProviderError] = {}
    by_class = {c.name: _types(run, c, failures) for c in snapshot.node_classes}
    active = frozenset(u for u in snapshot.unavailable if u.until > snapshot.now)
    offered = {name: without_unavailable(types, active, snapshot.now) for name, types in by_class.items()}
    by_pool = {p.metadata.name: p.spec.template.spec.node_class_ref.name for p in snapshot.node_pools}
    overlays = _generations(snapshot.node_overlays, snapshot.node_pools)
    key = (frozenset(by_pool.items()), active, overlays, *sorted(by_class.items(), key=lambda entry: entry[0]))
    memory = run.memory
    if memory.catalogue is None or not _same(memory.catalogue_key, key):
        plain = Catalogue({pool: offered.get(name, ()) for pool, name in by_pool.items()})
        overlaid = apply_overlays(snapshot.node_pools, plain, snapshot.node_overlays)
        memory.catalogue, memory.overlay_conflicts = overlaid.catalogue, overlaid.conflicts
        memory.catalogue_key = key
    return SchedulingInputs(
        snapshot=snapshot,
        catalogue=memory.catalogue,
        by_node_class=offered,
        failures=failures,
        overlay_conflicts=memory.overlay_conflicts,
    )


def _generations(overlays: Iterable[NodeOverlay], pools: Iterable[NodePool]) -> frozenset[tuple[str, int]]:
    """Return which overlays apply to pools with which labels; nothing where there are no overlays."""
    found = [o.metadata for o in overlays]
    return frozenset((m.uid, m.generation) for m in [*found, *(p.metadata for p in pools if found)])


def _types(
    run: RunContext, node_class: NodeClassState, failures: dict[str, CloudProviderError]
) -> tuple[InstanceType, ...]:
    try:
        return run.cloud.get_instance_types(node_class.raw)
    except CloudProviderError as error:
        failures[node_class.name] = error
        return ()


def _same(before: Any, after: Any) -> bool:
    """Whether two catalogue keys are the same; lists of types are compared by identity, as adapters keep them."""
    if not before or len(before) != len(after) or before[:3] != after[:3]:
        return False
    return all(a == b and old is new for (a, old), (b, new) in zip(before[3:], after[3:], strict=True))
