"""Topology spread: with everything in place, is every constraint of every newly placed pod kept?

Per host name the minimum counts as 0, since a new node can always be opened (Karpenter's rule): a node that gets pods may
hold at most maxSkew of them. Per zone the minimum is over the zones the pod could live in: those where a node it accepts
stands, or where something it accepts can be launched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod, TopologySpreadConstraint
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Results
from journeyman.core.scheduling.verify.matching import accepts_labels, selects, untolerated
from journeyman.core.scheduling.verify.outcomes import outcome_of, pool_admits, possible_outcomes
from journeyman.core.state import Snapshot, StateNode


@dataclass(frozen=True, slots=True)
class _Place:
    """A node, standing or planned: where it is and who will be on it."""

    name: str
    zones: frozenset[str]
    pods: tuple[Pod, ...]
    new_pods: tuple[Pod, ...]
    standing: StateNode | None


def check_spread(
    snapshot: Snapshot,
    catalogue: Catalogue,
    results: Results,
    known: Mapping[str, Pod],
    without_nodes: frozenset[str],
) -> Iterator[str]:
    """What is wrong, one sentence for each constraint and domain."""
    places = _places(snapshot, catalogue, results, known, without_nodes)
    seen: set[tuple[object, ...]] = set()
    for place in places:
        for pod in place.new_pods:
            for constraint in pod.spec.topology_spread_constraints:
                if constraint.when_unsatisfiable != "DoNotSchedule":
                    continue
                key = labels.ALIASES.get(constraint.topology_key, constraint.topology_key)
                identity = (_identity(pod), repr(constraint), place.name if key == labels.HOSTNAME else place.zones)
                if identity in seen:
                    continue
                seen.add(identity)
                if key == labels.HOSTNAME:
                    yield from _check_host(pod, constraint, place)
                elif key == labels.ZONE:
                    yield from _check_zone(snapshot, catalogue, pod, constraint, place=place, places=places)


def _identity(pod: Pod) -> tuple[object, ...]:
    """What makes two pods the same for spreading: one check serves all replicas."""
    spec = pod.spec
    return (
        pod.metadata.namespace,
        tuple(sorted(pod.metadata.labels.items())),
        tuple(sorted(spec.node_selector.items())),
        repr(spec.affinity),
        repr(spec.tolerations),
    )


def _places(
    snapshot: Snapshot,
    catalogue: Catalogue,
    results: Results,
    known: Mapping[str, Pod],
    without_nodes: frozenset[str],
) -> list[_Place]:
    places = []
    for node in snapshot.state_nodes:
        zone = node.labels.get(labels.ZONE)
        new = tuple(known[key] for key in results.existing.get(node.name, ()))
        new_keys = {pod.key for pod in new}
        gone = node.name in without_nodes or node.deleting
        old = () if gone else tuple(p for p in node.pods if p.key not in new_keys and _counts(p))
        places.append(_Place(node.name, frozenset({zone} if zone else ()), old + new, new, None if gone else node))
    for index, claim in enumerate(results.new_claims):
        pool = snapshot.node_pools_by_name.get(claim.node_pool)
        outcomes = possible_outcomes(pool, catalogue, claim) if pool is not None else ()
        zones = frozenset(offering.zone for _, offering, _ in outcomes)
        new = tuple(known[key] for key in claim.pods)
        places.append(_Place(f"new node {index} of {claim.node_pool}", zones, new, new, None))
    return places


def _counts(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in {"Succeeded", "Failed"}


def _selected(pod: Pod, constraint: TopologySpreadConstraint, other: Pod) -> bool:
    """Whether the constraint counts the other pod: same namespace, selector, and equal matchLabelKeys."""
    if other.metadata.namespace != pod.metadata.namespace or not selects(
        constraint.label_selector, other.metadata.labels
    ):
        return False
    mine = pod.metadata.labels
    return all(other.metadata.labels.get(key) == mine[key] for key in constraint.match_label_keys if key in mine)


def _check_host(pod: Pod, constraint: TopologySpreadConstraint, place: _Place) -> Iterator[str]:
    count = sum(_selected(pod, constraint, other) for other in place.pods)
    if count > constraint.max_skew and _selected(pod, constraint, pod):
        yield f"{place.name}: {count} pods like {pod.key}, spread allows {constraint.max_skew} a node"


def _check_zone(
    snapshot: Snapshot,
    catalogue: Catalogue,
    pod: Pod,
    constraint: TopologySpreadConstraint,
    *,
    place: _Place,
    places: list[_Place],
) -> Iterator[str]:
    if len(place.zones) != 1:
        yield f"{place.name}: pod {pod.key} spreads over zones, but the zone is open: {sorted(place.zones)}"
        return
    counts = dict.fromkeys(_domains(snapshot, catalogue, pod, constraint, places), 0)
    (here,) = place.zones
    counts.setdefault(here, 0)
    for other_place in places:
        if (
            len(other_place.zones) == 1
            and (zone := next(iter(other_place.zones))) in counts
            and _eligible(pod, constraint, other_place)
        ):
            counts[zone] += sum(_selected(pod, constraint, other) for other in other_place.pods)
    least = 0 if len(counts) < (constraint.min_domains or 1) else min(counts.values())
    if counts[here] - least > constraint.max_skew and _selected(pod, constraint, pod):
        yield f"zone {here}: {counts[here]} pods like {pod.key}, the emptiest zone has {least}, spread allows {constraint.max_skew} more"


def _eligible(pod: Pod, constraint: TopologySpreadConstraint, place: _Place) -> bool:
    """Whether a standing node counts as part of a domain (nodeAffinityPolicy, nodeTaintsPolicy); planned ones do."""
    if place.standing is None:
        return bool(place.new_pods)
    labels_here = {key: frozenset({value}) for key, value in place.standing.labels.items()}
    if constraint.node_affinity_policy != "Ignore" and not accepts_labels(pod, labels_here):
        return False
    return constraint.node_taints_policy != "Honor" or untolerated(pod, place.standing.taints) is None


def _domains(
    snapshot: Snapshot,
    catalogue: Catalogue,
    pod: Pod,
    constraint: TopologySpreadConstraint,
    places: list[_Place],
) -> set[str]:
    """Zones this pod could live in."""
    standing = {zone for p in places if p.standing is not None and _eligible(pod, constraint, p) for zone in p.zones}
    launchable: set[str] = set()
    for pool in snapshot.node_pools:
        if pool.metadata.deletion_timestamp is not None:
            continue
        if constraint.node_taints_policy == "Honor" and untolerated(pod, pool.spec.template.spec.taints) is not None:
            continue
        for instance_type in catalogue.instance_types(pool.metadata.name):
            for offering in instance_type.offerings:
                if offering.available and offering.zone not in launchable | standing:
                    outcome = outcome_of(pool, instance_type, offering)
                    if accepts_labels(pod, outcome) and pool_admits(pool, outcome):
                        launchable.add(offering.zone)
    return standing | launchable
