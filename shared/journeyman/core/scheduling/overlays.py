"""NodeOverlays laid over the catalogue: other prices, and extended resources that the provider does not know of.

Overlays are taken by weight, then by name, both from the top. Of several that price one offering the first wins, of
several that add one resource to a type the first too. Two of equal weight that would say something of the same thing
are a mistake: the later one is not applied at all, and told so.

Restates: karpenter pkg/controllers/nodeoverlay/controller.go, store.go.
Differs: it is part of every decision, so no NodePool waits to be evaluated; of several overlays of one weight each is
compared with all before it, not with the last one only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from journeyman.core.api import labels
from journeyman.core.api.nodeoverlay import NodeOverlay
from journeyman.core.api.nodepool import NodePool
from journeyman.core.catalogue import Catalogue, InstanceType, Offering
from journeyman.core.scheduling.requirements import Requirements, from_labels, from_selectors


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overlaid:
    """A catalogue with overlays applied. `conflicts` are those left out, by name: the overlay each one collides with."""

    catalogue: Catalogue
    conflicts: Mapping[str, str]


@dataclass(slots=True)
class _Changes:
    """What overlays say of one instance type in one NodePool, the first of each kind being the heaviest.

    `price` has for each offering (by position) the overlay that prices it; `seen` for each offering, and each resource
    added, the last overlay that spoke of it.
    """

    price: dict[int, NodeOverlay] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    seen: dict[int | str, NodeOverlay] = field(default_factory=dict)

    def subjects(self, overlay: NodeOverlay, offerings: Iterable[int]) -> list[int | str]:
        """What the overlay speaks of: these offerings if it changes prices, and the resources it adds."""
        priced = list(offerings) if overlay.spec.changes_price else []
        return [*priced, *sorted(overlay.spec.capacity)]

    def conflict(self, overlay: NodeOverlay, offerings: Iterable[int]) -> str:
        """The overlay of equal weight that spoke of the same before, empty if none did."""
        before = (self.seen.get(subject) for subject in self.subjects(overlay, offerings))
        return next((o.metadata.name for o in before if o is not None and o.spec.weight == overlay.spec.weight), "")

    def add(self, overlay: NodeOverlay, offerings: Sequence[int]) -> None:
        """Let the overlay change what no heavier one has changed."""
        if overlay.spec.changes_price:
            for index in offerings:
                self.price.setdefault(index, overlay)
        self.capacity = {**overlay.spec.capacity_amounts, **self.capacity}
        self.seen.update(dict.fromkeys(self.subjects(overlay, offerings), overlay))

    def applied_to(self, instance_type: InstanceType) -> InstanceType:
        """The type as the overlays have it."""
        offerings = tuple(
            _repriced(offering, self.price[index]) if index in self.price else offering
            for index, offering in enumerate(instance_type.offerings)
        )
        if not self.capacity:
            return replace(instance_type, offerings=offerings)
        capacity = {**instance_type.capacity, **self.capacity}
        return replace(instance_type, offerings=offerings, capacity=capacity, capacity_overlaid=True)


def _repriced(offering: Offering, overlay: NodeOverlay) -> Offering:
    return replace(offering, price=overlay.spec.adjusted(offering.price), price_overlaid=True)


def apply_overlays(pools: Iterable[NodePool], catalogue: Catalogue, overlays: Iterable[NodeOverlay]) -> Overlaid:
    """The catalogue as overlays have it; the very same one if none of them matches anything.

    Args:
        pools: The NodePools, whose names and template labels overlays may select.
        catalogue: The provider's word, by NodePool.
        overlays: Those that validate.
    """
    described = [
        (pool.metadata.name, instance_type, _description(pool, instance_type))
        for pool in sorted(pools, key=lambda p: p.metadata.name)
        for instance_type in catalogue.instance_types(pool.metadata.name)
    ]
    changes: dict[tuple[str, str], _Changes] = {}
    conflicts: dict[str, str] = {}
    heaviest_first = sorted(overlays, key=lambda o: (o.spec.weight, o.metadata.name), reverse=True)
    for overlay in heaviest_first:
        wanted = from_selectors(overlay.spec.requirements)
        matching = [
            (changes.setdefault((pool, instance_type.name), _Changes()), offerings)
            for pool, instance_type, description in described
            if (offerings := _matching_offerings(instance_type, description, wanted))
        ]
        if other := next((name for change, at in matching if (name := change.conflict(overlay, at))), ""):
            conflicts[overlay.metadata.name] = other
            continue
        for change, offerings in matching:
            change.add(overlay, offerings)
    changed = {key: change for key, change in changes.items() if change.price or change.capacity}
    return Overlaid(catalogue=_changed(catalogue, changed), conflicts=dict(sorted(conflicts.items())))


def _description(pool: NodePool, instance_type: InstanceType) -> Requirements:
    """What the nodes of a type are known to be in this pool."""
    own = {labels.NODEPOOL: pool.metadata.name, **pool.spec.template.metadata.labels}
    return from_labels(own) & from_selectors(instance_type.requirements)


def _matching_offerings(instance_type: InstanceType, description: Requirements, wanted: Requirements) -> list[int]:
    """The positions of the offerings that an overlay is about; none if it is not about the type."""
    if description.compatible(wanted) is not None:
        return []
    return [
        index
        for index, offering in enumerate(instance_type.offerings)
        if wanted.compatible(from_selectors(offering.requirements), allow_undefined=labels.WELL_KNOWN) is None
    ]


def _changed(catalogue: Catalogue, changes: Mapping[tuple[str, str], _Changes]) -> Catalogue:
    if not changes:
        return catalogue
    return Catalogue(
        {
            pool: tuple(changes[pool, t.name].applied_to(t) if (pool, t.name) in changes else t for t in types)
            for pool, types in catalogue.by_node_pool.items()
        }
    )


def overlay_annotations(types: Iterable[InstanceType]) -> dict[str, str]:
    """What a claim says of overlays if it may become one of these types.

    Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaimtemplate.go `ToNodeClaim`.
    """
    listed = tuple(types)
    found = {
        labels.PRICE_OVERLAY_APPLIED: any(o.price_overlaid for t in listed for o in t.offerings),
        labels.CAPACITY_OVERLAY_APPLIED: any(t.capacity_overlaid for t in listed),
    }
    return {key: "true" for key, applied in found.items() if applied}
