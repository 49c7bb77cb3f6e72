"""Whom a rule between pods counts, and where those are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from journeyman.core.api.objects import LabelSelector, Object, Pod, PodAffinityTerm, TopologySpreadConstraint
from journeyman.core.scheduling.verify.index import Index, Place
from journeyman.core.scheduling.verify.kinds import Identity, Kind, is_going
from journeyman.core.scheduling.verify.matching import normalized, selects

_ENCODER = msgspec.msgpack.Encoder()


class Group(Struct, frozen=True, eq=False):
    """The pods that a rule counts, by the values of node label `key`.

    `id` is equal for groups that count the same pods over the same label. Namespaces are those named and those whose
    labels `namespace_selector` selects. Of labels named in `same` and `other` a pod must have (not have) these values.
    """

    id: bytes
    key: str
    namespaces: frozenset[str]
    namespace_selector: LabelSelector | None
    selector: LabelSelector | None
    same: Mapping[str, str]
    other: Mapping[str, str]

    def counts(self, identity: Identity, namespaces: Mapping[str, Object]) -> bool:
        """Whether a pod of this namespace and these labels is counted."""
        namespace, values = identity[0], dict(identity[1])
        return (
            self._covers(namespace, namespaces)
            and selects(self.selector, values)
            and all(values.get(key) == value for key, value in self.same.items())
            and all(values.get(key) != value for key, value in self.other.items())
        )

    def _covers(self, namespace: str, namespaces: Mapping[str, Object]) -> bool:
        if namespace in self.namespaces:
            return True
        known = namespaces.get(namespace)
        return selects(self.namespace_selector, known.metadata.labels if known is not None else {})


def group_of_spread(pod: Pod, constraint: TopologySpreadConstraint) -> Group:
    """The pods that a spread constraint of this pod counts: in its namespace, with its values of matchLabelKeys."""
    return _group(
        key=constraint.topology_key,
        namespaces=frozenset({pod.metadata.namespace}),
        namespace_selector=None,
        selector=constraint.label_selector,
        same=_own(pod, constraint.match_label_keys),
        other={},
    )


def group_of_term(pod: Pod, term: PodAffinityTerm) -> Group:
    """The pods that an affinity or anti-affinity term of this pod is about."""
    own_namespace = not term.namespaces and term.namespace_selector is None
    return _group(
        key=term.topology_key,
        namespaces=frozenset({pod.metadata.namespace} if own_namespace else term.namespaces),
        namespace_selector=term.namespace_selector,
        selector=term.label_selector,
        same=_own(pod, term.match_label_keys),
        other=_own(pod, term.mismatch_label_keys),
    )


def _own(pod: Pod, keys: Iterable[str]) -> dict[str, str]:
    return {key: pod.metadata.labels[key] for key in sorted(keys) if key in pod.metadata.labels}


def _group(
    *,
    key: str,
    namespaces: frozenset[str],
    namespace_selector: LabelSelector | None,
    selector: LabelSelector | None,
    same: Mapping[str, str],
    other: Mapping[str, str],
) -> Group:
    key = normalized(key)
    parts = (key, sorted(namespaces), _canonical(namespace_selector), _canonical(selector), same, other)
    return Group(_ENCODER.encode(parts), key, namespaces, namespace_selector, selector, same, other)


def _canonical(selector: LabelSelector | None) -> object:
    if selector is None:
        return None
    expressions = sorted((e.key, e.operator, sorted(e.values)) for e in selector.match_expressions)
    return sorted(selector.match_labels.items()), expressions


class Presence(Struct, frozen=True, eq=False):
    """Pods of one kind in one place: how many are planned there, how many stay."""

    place: Place
    planned: int
    staying: int


class Census:
    """Who is where, by what selectors look at."""

    def __init__(self, index: Index) -> None:
        self._namespaces = {namespace.metadata.name: namespace for namespace in index.snapshot.namespaces}
        self._presences: dict[Identity, list[Presence]] = {}
        self._by_label: dict[tuple[str, str], list[Identity]] = {}
        self._counted: dict[bytes, frozenset[Identity]] = {}
        for kind, where in index.planned_by_kind.items():
            found = self._presences.setdefault(kind.identity, [])
            found += [Presence(place, number, 0) for place, _, number in where]
        for place in index.standing_places:
            for kind, number in Counter(kind for kind in place.staying if not is_going(kind.pod)).items():
                self._presences.setdefault(kind.identity, []).append(Presence(place, 0, number))
        for identity in self._presences:
            for label in identity[1]:
                self._by_label.setdefault(label, []).append(identity)

    def counts(self, group: Group, kind: Kind) -> bool:
        """Whether the group counts pods of this kind."""
        return group.counts(kind.identity, self._namespaces)

    def presences(self, group: Group) -> Iterable[Presence]:
        """Where the pods are that the group counts; a place may come several times."""
        for identity in self.identities(group):
            yield from self._presences[identity]

    def identities(self, group: Group) -> frozenset[Identity]:
        """Those present that the group counts."""
        known = self._counted.get(group.id)
        if known is None:
            candidates = (i for i in self._candidates(group) if group.counts(i, self._namespaces))
            known = self._counted[group.id] = frozenset(candidates)
        return known

    def _candidates(self, group: Group) -> Iterable[Identity]:
        if group.selector is not None and group.selector.match_labels:
            return self._by_label.get(min(group.selector.match_labels.items()), ())
        return self._presences
