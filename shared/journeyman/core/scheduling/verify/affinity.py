"""Required pod affinity: can the pods have come in an order in which each found a pod of those it asks for?

A pod may enter a domain that holds a pod its term selects. The first of a kind may enter an empty one if its own term
selects it and none of the domains it could reach holds such a pod. In an open domain a pod must be at home whatever
becomes of the node: with pods of the same node, or with pods in every domain that it may come to be in.

Orders are tried as they are most likely to work: first those start a domain whom nobody at all will help, then those
whom no pod will that asks for nothing itself; then all of the latter come.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go `nextDomainAffinity`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from journeyman.core.scheduling.verify.counting import Census, Group, group_of_term
from journeyman.core.scheduling.verify.defect import Defect
from journeyman.core.scheduling.verify.index import Index, Place
from journeyman.core.scheduling.verify.kinds import Identity, Kind


class _Arrival(Struct, frozen=True, eq=False):
    """Pods of one kind that come to one place. `groups` are those they ask for, `joins` those that count them."""

    kind: Kind
    place: Place
    pod: str
    groups: tuple[Group, ...]
    joins: tuple[Group, ...]


class _Present:
    """Who is where so far."""

    def __init__(self) -> None:
        self._domains: dict[bytes, set[str]] = {}
        self._places: set[tuple[bytes, str]] = set()
        self._possible: dict[bytes, set[str]] = {}

    def enter(self, group: Group, place: Place) -> None:
        """A pod that the group counts is in the place."""
        domains = place.domains(group.key)
        self._places.add((group.id, place.host))
        self._possible.setdefault(group.id, set()).update(domains)
        if len(domains) == 1:
            self._domains.setdefault(group.id, set()).update(domains)

    def accompanies(self, group: Group, place: Place) -> bool:
        """Whether whoever comes there finds such a pod, whatever becomes of the node."""
        domains = place.domains(group.key)
        if not domains:
            return False
        return (group.id, place.host) in self._places or domains <= self._domains.get(group.id, set())

    def is_within_reach(self, group: Group, kind: Kind) -> bool:
        """Whether a domain that such pods could go to may hold one that the group counts."""
        return any(kind.admits(group.key, domain) for domain in self._possible.get(group.id, ()))


def check_affinity(index: Index, census: Census) -> Iterator[Defect]:
    """What is wrong, one sentence for each kind of pod and place."""
    arrivals = _arrivals(index, census)
    if not any(arrival.groups for arrival in arrivals):
        return
    groups = {group.id: group for arrival in arrivals for group in arrival.groups}
    present = _Present()
    for group in groups.values():
        for presence in census.presences(group):
            if presence.staying:
                present.enter(group, presence.place)
    waiting = [arrival for arrival in arrivals if arrival.groups]
    free = [arrival for arrival in arrivals if not arrival.groups]
    for helpers in (arrivals, free):
        waiting = _let_in(waiting, present, _help_from(helpers))
    for arrival in free:
        _enter(arrival, present)
    for arrival in _let_in(waiting, present, _Present()):
        lacking = next(g for g in arrival.groups if not present.accompanies(g, arrival.place))
        yield arrival.place.defect(
            f"pod {arrival.pod} finds none of the pods in its {lacking.key} that its affinity asks for"
        )


def _arrivals(index: Index, census: Census) -> list[_Arrival]:
    asked: dict[Kind, tuple[Group, ...]] = {}
    groups: dict[bytes, Group] = {}
    for kind in index.planned_by_kind:
        own = tuple(group_of_term(kind.pod, term) for term in kind.affinity)
        asked[kind] = tuple(groups.setdefault(group.id, group) for group in own)
    joined: dict[Identity, list[Group]] = {kind.identity: [] for kind in index.planned_by_kind}
    for group in groups.values():
        for identity in census.identities(group):
            if identity in joined:
                joined[identity].append(group)
    return [
        _Arrival(kind, place, pod, asked[kind], tuple(joined[kind.identity]))
        for kind, where in index.planned_by_kind.items()
        for place, pod, _ in where
    ]


def _help_from(helpers: Sequence[_Arrival]) -> _Present:
    """Where these pods would be found by others who do not ask for the same."""
    helped = _Present()
    for arrival in helpers:
        for group in arrival.joins:
            if group not in arrival.groups:
                helped.enter(group, arrival.place)
    return helped


def _let_in(waiting: Sequence[_Arrival], present: _Present, helped: _Present) -> list[_Arrival]:
    """Whoever can, until nobody else can; who is left. Who has help to expect does not start a domain."""
    left = list(waiting)
    while True:
        still = [arrival for arrival in left if not _comes(arrival, present, helped)]
        if len(still) == len(left):
            return left
        left = still


def _comes(arrival: _Arrival, present: _Present, helped: _Present) -> bool:
    for group in arrival.groups:
        if present.accompanies(group, arrival.place):
            continue
        starts = (
            group in arrival.joins
            and bool(arrival.place.domains(group.key))
            and not helped.accompanies(group, arrival.place)
            and not present.is_within_reach(group, arrival.kind)
        )
        if not starts:
            return False
    _enter(arrival, present)
    return True


def _enter(arrival: _Arrival, present: _Present) -> None:
    for group in arrival.joins:
        present.enter(group, arrival.place)
