"""Pods collapsed into classes: pods that nothing in scheduling can tell apart become one row with a count.

A thousand replicas differ in name only. First the parts of their specs that constrain placement are compared byte by
byte (cheap), then what those parts mean, so that pods that say the same in other words are alike as well, and last the
labels that any selector in this pass looks at. A pod that cannot be scheduled whatever the nodes, because it is
malformed or asks for something not understood, is an error here and takes no further part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api.objects import Object, Pod, Toleration
from journeyman.core.api.resources import CPU, MEMORY
from journeyman.core.scheduling.demand.host_ports import HostPort
from journeyman.core.scheduling.demand.specs import (
    NO_PREFERENCES,
    Preferences,
    SpecReader,
    alternatives,
)
from journeyman.core.scheduling.demand.topology import Group, Repelled, Spread
from journeyman.core.scheduling.demand.validation import required_terms
from journeyman.core.scheduling.demand.volumes import NO_VOLUMES, PodVolumes
from journeyman.core.scheduling.requirements import EMPTY, Requirements
from journeyman.core.scheduling.results import PodError

if TYPE_CHECKING:  # who has no ResourceClaims does not pay for them
    from journeyman.core.scheduling.dra.asks import ClaimAsk

_encode: Final = msgspec.msgpack.Encoder().encode
_LONG_AGO: Final = datetime(1, 1, 1, tzinfo=timezone.utc)

VolumesOf = Callable[[Pod], PodVolumes | str]
"""What a pod's volumes demand of its node, or why it cannot be scheduled."""

ClaimsOf = Callable[[Pod], "tuple[ClaimAsk, ...] | PodError"]
"""What a pod's ResourceClaims ask for, equal asks being the same objects, or why it cannot be scheduled."""

_Seen = tuple[str | None, ...]
"""A pod's namespace and the values of the labels watched, in their order."""

_Alike = tuple[int, int, "tuple[ClaimAsk, ...]", _Seen]
"""What pods of a class have in common: their specs' meaning, their volumes (both numbered), claims, and what is seen."""


class PodClass(Struct, frozen=True, kw_only=True, eq=False):
    """Pods that are alike. `pods` are in queue order; one of `terms` must hold for their node.

    `labels` are only those that some selector of this pass looks at. One of `volume_terms` must hold as well: where the
    pods' volumes can be had (`node_terms` are both together). `volume_counts` are volumes of its own that each pod
    attaches, by CSI driver; `shared_volumes` are (driver, claim key) of those it may share with others. `claims` is
    what the ResourceClaims of each ask for.

    Of the rules between pods `soft` names the groups (by id) that are only preferred: the class itself keeps to them as
    long as it is on this rung of its ladder, nobody else has to. `heeds_preferences`: it stays off nodes with an
    untolerated PreferNoSchedule taint. `strict` are its terms without any preference, None if `terms` have none.
    `preferences` are what `preferences.ladder` makes its rungs of.
    """

    pods: tuple[Pod, ...]
    namespace: str
    labels: Mapping[str, str]
    requests: Mapping[str, int]
    terms: tuple[Requirements, ...]
    tolerations: tuple[Toleration, ...]
    spreads: tuple[Spread, ...]
    affinities: tuple[Group, ...] = ()
    anti_affinities: tuple[Group, ...] = ()
    soft: frozenset[bytes] = frozenset()
    ports: tuple[HostPort, ...] = ()
    volume_terms: tuple[Requirements, ...] = (EMPTY,)
    volume_counts: Mapping[str, int] = field(default_factory=dict)
    shared_volumes: tuple[tuple[str, str], ...] = ()
    claims: tuple[ClaimAsk, ...] = ()
    heeds_preferences: bool = False
    strict: tuple[Requirements, ...] | None = None
    preferences: Preferences = NO_PREFERENCES

    @property
    def strict_terms(self) -> tuple[Requirements, ...]:
        """The alternatives it insists on: by these a spread tells which nodes count."""
        return self.terms if self.strict is None else self.strict

    @property
    def node_terms(self) -> tuple[Requirements, ...]:
        """The alternatives for its node, its volumes' included; contradictory combinations are left out."""
        if self.volume_terms == (EMPTY,):
            return self.terms
        both = (term & volumes for term in self.terms for volumes in self.volume_terms)
        return tuple(wanted for wanted in both if not any(r.impossible for r in wanted.values()))

    @property
    def keys(self) -> tuple[str, ...]:
        """The pods' `namespace/name`, in queue order."""
        return tuple(pod.key for pod in self.pods)


def requirement_terms(pod: Pod) -> tuple[Requirements, ...]:
    """The alternatives for its node: its node selector together with each required node affinity term, in order.

    Raises:
        InvalidRequirementError: An expression cannot be read.
    """
    return alternatives(pod.spec.node_selector, required_terms(pod.spec.affinity))


def collapse(
    pods: Sequence[Pod],
    namespaces: Mapping[str, Object],
    *,
    repelled: Iterable[Repelled] = (),
    volumes_of: VolumesOf | None = None,
    claims_of: ClaimsOf | None = None,
) -> tuple[tuple[PodClass, ...], dict[str, PodError]]:
    """Classes in queue order (CPU descending, memory descending, oldest first), and errors by pod key.

    Pods that opted out of our nodes are in neither. The classes hold what their pods insist on; what they prefer is
    added by `preferences.ladder`.

    Args:
        pods: The pods to place, in any order.
        namespaces: All namespaces by name, for namespace selectors.
        repelled: Rules of pods that run, whose selectors tell pods apart as well.
        volumes_of: What a pod's volumes demand; by default nothing.
        claims_of: What a pod's ResourceClaims ask for; by default pods that have any are set aside.

    Restates: karpenter pkg/controllers/provisioning/scheduling/queue.go `byCPUAndMemoryDescending`, per class.
    """
    reader = SpecReader(namespaces, with_claims=claims_of is not None)
    ordered = sorted(pods, key=_age)
    meanings = _read_all(ordered, reader)
    watched = tuple(sorted(reader.label_keys.union(*(r.group.label_keys for r in repelled))))
    volumes = _Volumes(volumes_of)
    members, errors = _alike(zip(ordered, meanings, strict=True), volumes, claims_of, watched)
    classes = _Classes(reader, watched)
    made = [
        classes.make(meaning, volumes.known[attached], claims, seen, group)
        for (meaning, attached, claims, seen), group in members.items()
    ]
    made.sort(key=lambda c: (-c.requests.get(CPU, 0), -c.requests.get(MEMORY, 0)))  # stable: oldest first stays
    return tuple(made), errors


def _read_all(pods: Iterable[Pod], reader: SpecReader) -> list[int | PodError | None]:
    """What each pod's spec means; those of the same bytes are read once."""
    known: dict[bytes, int | PodError | None] = {}
    found: list[int | PodError | None] = []
    for pod in pods:
        constraints = _constraints(pod)
        if constraints not in known:
            known[constraints] = reader.read(pod)
        found.append(known[constraints])
    return found


def _alike(
    pods: Iterable[tuple[Pod, int | PodError | None]],
    volumes: _Volumes,
    claims_of: ClaimsOf | None,
    watched: tuple[str, ...],
) -> tuple[dict[_Alike, list[Pod]], dict[str, PodError]]:
    """Pods with what their specs mean: grouped by that, by volumes, claims and what selectors see; and the errors."""
    members: dict[_Alike, list[Pod]] = {}
    errors: dict[str, PodError] = {}
    for pod, meaning in pods:
        if not isinstance(meaning, int):
            if meaning is not None:
                errors[pod.key] = meaning
            continue
        attached = volumes.read(pod) if pod.spec.volumes else 0
        if isinstance(attached, PodError):
            errors[pod.key] = attached
            continue
        claims = claims_of(pod) if claims_of is not None and pod.spec.resource_claims else ()
        if isinstance(claims, PodError):
            errors[pod.key] = claims
            continue
        own = pod.metadata
        alike = (meaning, attached, claims, (own.namespace, *map(own.labels.get, watched)))
        if alike in members:
            members[alike].append(pod)
        else:
            members[alike] = [pod]
    return members, errors


def _age(pod: Pod) -> tuple[datetime, str, str, str]:
    own = pod.metadata
    return (own.creation_timestamp or _LONG_AGO, own.uid, own.namespace, own.name)


def _constraints(pod: Pod) -> bytes:
    """Everything in the spec that decides where it may run, volumes aside, as bytes."""
    spec = pod.spec
    return _encode(
        (
            spec.containers,
            spec.init_containers,
            spec.overhead,
            spec.resources,
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
            spec.topology_spread_constraints,
            spec.resource_claims,
        )
    )


class _Volumes:
    """What pods' volumes demand: `known` has each different demand once, the first being none."""

    def __init__(self, volumes_of: VolumesOf | None) -> None:
        self.known: list[PodVolumes] = [NO_VOLUMES]
        self._volumes_of = volumes_of
        self._numbers: dict[PodVolumes, int] = {NO_VOLUMES: 0}

    def read(self, pod: Pod) -> int | PodError:
        """The position in `known` of what this pod's demand, or why it cannot be scheduled."""
        if self._volumes_of is None:
            return 0
        found = self._volumes_of(pod)
        if isinstance(found, str):
            return PodError(kind="invalid", message=found)
        if found is NO_VOLUMES:
            return 0
        number = self._numbers.setdefault(found, len(self.known))
        if number == len(self.known):
            self.known.append(found)
        return number


class _Classes:
    """Makes classes; those that see the same share what they see."""

    def __init__(self, reader: SpecReader, watched: tuple[str, ...]) -> None:
        self._reader = reader
        self._watched = watched
        self._labels: dict[_Seen, dict[str, str]] = {}

    def make(
        self, meaning: int, volumes: PodVolumes, claims: tuple[ClaimAsk, ...], seen: _Seen, pods: Iterable[Pod]
    ) -> PodClass:
        """The class of pods whose specs mean the same and of which selectors see the same."""
        parts = self._reader.parts[meaning]
        own = self._labels.get(seen)
        if own is None:
            values = zip(self._watched, seen[1:], strict=True)
            own = self._labels[seen] = {key: value for key, value in values if value is not None}
        namespace = seen[0] or ""
        rules = self._reader.rules(parts.rules, namespace, own, seen)
        preferred = parts.selection.preferred
        preferences = replace(rules.preferences, node_terms=preferred) if preferred else rules.preferences
        return PodClass(
            pods=tuple(pods),
            namespace=namespace,
            labels=own,
            requests=parts.demand.requests,
            terms=parts.selection.terms,
            tolerations=parts.tolerations,
            spreads=rules.spreads,
            affinities=rules.affinities,
            anti_affinities=rules.anti_affinities,
            ports=parts.demand.ports,
            volume_terms=volumes.terms,
            volume_counts=volumes.counts,
            shared_volumes=volumes.shared,
            claims=claims,
            preferences=preferences,
        )
