"""A snapshot with what could be launched now: the catalogue of its pools, refused offerings avoided, overlays laid over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from journeyman.core.api.nodeoverlay import NodeOverlay
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NodeClaim
from journeyman.core.catalogue import Catalogue, InstanceType, without_unavailable
from journeyman.core.scheduling.node_overlays import apply_overlays
from journeyman.core.state import NodeClassState, Snapshot
from journeyman.errors import CloudProviderError
from journeyman.steps.context import RunContext


class SchedulingInputs(Struct, frozen=True, kw_only=True):
    """A snapshot with the catalogue of its pools, and all types by NodeClass (for claims that have no pool).

    `failures` are the NodeClasses whose types the cloud did not tell, with why; `overlay_conflicts` the NodeOverlays that
    were left out, each with the one it collides with.
    """

    snapshot: Snapshot
    catalogue: Catalogue
    by_node_class: Mapping[str, tuple[InstanceType, ...]]
    failures: Mapping[str, CloudProviderError] = field(default_factory=dict)
    overlay_conflicts: Mapping[str, str] = field(default_factory=dict)

    def node_class(self, claim: NodeClaim) -> NodeClassState | None:
        """The NodeClass a claim refers to, None if it does not exist."""
        name = claim.spec.node_class_ref.name
        return next((n for n in self.snapshot.node_classes if n.name == name), None)


def scheduling_inputs_of(run: RunContext, snapshot: Snapshot) -> SchedulingInputs:
    """The snapshot with what could be launched now.

    A NodeClass whose types cannot be had leaves only its own pools without any. NodeOverlays are laid over what the pools
    may use. While nothing changed since the last run of this sandbox, the catalogue is the same object, so that solvers
    keep what they derived from it.
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
    """What overlays are applied, and to pools with which labels; nothing where there are no overlays."""
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
    """Whether two catalogue keys stand for the same; lists of types are compared by identity, as adapters keep them."""
    if not before or len(before) != len(after) or before[:3] != after[:3]:
        return False
    return all(a == b and old is new for (a, old), (b, new) in zip(before[3:], after[3:], strict=True))
