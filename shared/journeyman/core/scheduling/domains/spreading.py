"""What topology spread constraints count: on which nodes, in which domains, and how many pods there are.

Constraints that count the same pods on the same nodes share one record, whatever their maxSkew.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologynodefilter.go, topology.go `countDomains`,
topologygroup.go `domainMinCount`.
Differs: a domain that cannot be had (no offering there that the pods accept, no node) is none. Pods on nodes that are
being removed count where they are, and not for the minimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct, field

from journeyman.core.api.objects import Toleration
from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.demand.classes import PodClass
from journeyman.core.scheduling.demand.topology import Group, Pins, Spread
from journeyman.core.scheduling.draft import Question
from journeyman.core.scheduling.offering.wishes import Shape, Wish
from journeyman.core.scheduling.requirements import EMPTY, Requirement, Requirements, from_labels

Counts = dict[str, int]

ANY_TAINT: Final = (Toleration(operator="Exists"),)


class _Watch(Struct, frozen=True):
    """Whom a constraint counts, and for whom: pods of these requirements and tolerations."""

    group: bytes
    terms: tuple[Requirements, ...]
    tolerations: tuple[Toleration, ...]
    own_nodes_only: bool
    untainted_only: bool


class Spreading(Struct, eq=False):
    """The pods that some constraints count, by domain.

    `counts` are all of them, over the domains that the emptiest is looked for in. `running` are those that run, leaving
    nodes included; `planned` those that came with such a constraint themselves, by its maxSkew. `standing` are the
    domains in which nodes stand.
    """

    watch: _Watch
    key: str
    counts: Counts
    running: Counts
    standing: frozenset[str]
    planned: dict[int, Counts] = field(default_factory=dict)

    def is_short_of(self, min_domains: int) -> bool:
        """Whether there are fewer domains than a constraint wants, so that the emptiest counts as empty."""
        return len(self.counts) < min_domains

    def floor(self, min_domains: int) -> int:
        """How many pods the emptiest domain has."""
        return 0 if self.is_short_of(min_domains) else min(self.counts.values(), default=0)

    def standing_floor(self, min_domains: int) -> int:
        """The same of the domains in which nodes stand."""
        found = [pods for domain, pods in self.counts.items() if domain in self.standing]
        return min(found) if found and len(found) >= min_domains else 0

    def held_against(self, max_skew: int) -> Counts:
        """The pods that count against one of that maxSkew, by domain; those that bear more may all come after it."""
        found = dict(self.running)
        for skew, counts in self.planned.items():
            if skew <= max_skew:
                for value, pods in counts.items():
                    found[value] = found.get(value, 0) + pods
        return found

    def enter(self, value: str, pods: int, *, skew: int | None, surely: bool, maybe: bool) -> None:
        """Count planned pods; `skew` is that of their own such constraint, None if they have none."""
        if surely and value in self.counts:
            self.counts[value] += pods
        if maybe and skew is not None:
            planned = self.planned.setdefault(skew, {})
            planned[value] = planned.get(value, 0) + pods


class Watcher:
    """Finds what constraints count, each distinct one once."""

    def __init__(self, question: Question) -> None:
        """Nodes as they stand."""
        nodes = question.existing.standing
        self._rows = question.rows
        self._stalls = question.stalls
        self._census = question.existing.census
        self._standing = nodes
        self._nodes = question.existing.standing_columns
        self._staying = question.existing.staying
        self._found: dict[object, Spreading] = {}
        self._judged: dict[object, tuple[bool, bool]] = {}

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {node.name: n for n, node in enumerate(self._standing)}

    @cached_property
    def _has_taints(self) -> bool:
        return any(s.template.pool.spec.template.spec.taints for s in self._stalls) or any(
            node.taints for node in self._standing
        )

    def spreading(self, spread: Spread, row: PodClass) -> Spreading:
        """What a row's constraint counts; rows that share their parts are not compared."""
        policies = (spread.own_nodes_only, spread.untainted_only)
        parts = (spread.group.id, id(row.strict_terms), id(row.tolerations), *policies)
        found = self._found.get(parts)
        if found is None:
            watch = _Watch(spread.group.id, row.strict_terms, row.tolerations, *policies)
            found = self._found.get(watch)
            if found is None:
                found = self._found[watch] = self._look(spread.group, watch)
            self._found[parts] = found
        return found

    def _look(self, group: Group, watch: _Watch) -> Spreading:
        counting: Bools = np.ones(len(self._standing), dtype=bool)
        if watch.own_nodes_only:
            counting &= self._nodes.meeting(watch.terms)
        if watch.untainted_only:
            counting &= self._nodes.accepted(watch.tolerations, heeds_preferences=False)
        staying = self.running(group, counting & self._staying)
        here = self._standing_in(group.key, counting & self._staying)
        domains = self._domains(group.key, watch, here)
        return Spreading(
            watch=watch,
            key=group.key,
            counts={domain: staying.get(domain, 0) for domain in domains},
            running=self.running(group, counting),
            standing=here,
        )

    def running(self, group: Group, nodes: Bools | None = None) -> Counts:
        """The running pods that a group counts, by domain, on some of the nodes (all of them by default)."""
        found: Counts = {}
        by_node = self._census.by_node(group)
        if by_node:
            codes, values = self._nodes.label(group.key)
            for name, pods in by_node.items():
                place = self._places[name]
                value = values[codes[place]]
                if value is not None and (nodes is None or nodes[place]):
                    found[value] = found.get(value, 0) + pods
        return dict(sorted(found.items()))

    def _standing_in(self, key: str, nodes: Bools) -> frozenset[str]:
        """The domains of these nodes."""
        if not nodes.any():
            return frozenset()
        codes, values = self._nodes.label(key)
        here = {values[code] for code in set(codes[nodes].tolist())}
        return frozenset(value for value in here if value is not None)

    def _domains(self, key: str, watch: _Watch, here: frozenset[str]) -> list[str]:
        """Where the emptiest domain is looked for: domains that can be had, and those of nodes that count, `here`."""
        wish = Wish(Shape(watch.terms, watch.tolerations))
        found = {value for stall in self._stalls for (value,) in stall.domains_for(wish, (key,))} | here
        admitted = [term.get(key) for term in watch.terms]
        return sorted(value for value in found if any(wanted is None or wanted.has(value) for wanted in admitted))

    def lets_in(self, spreading: Spreading, row: int, pins: Pins) -> tuple[bool, bool]:
        """Whether the nodes that a row's pods go to count: surely, possibly."""
        watch, pods = spreading.watch, self._rows[row]
        surely = maybe = True
        if watch.own_nodes_only and watch.terms is not pods.strict_terms and watch.terms != (EMPTY,):
            case = (id(spreading), row, pins)
            if case not in self._judged:
                self._judged[case] = _judge(watch.terms, pods.terms, pins)
            surely, maybe = self._judged[case]
        if watch.untainted_only and self._has_taints and watch.tolerations != pods.tolerations:
            surely = False
        return surely, maybe


def _judge(wanted: Sequence[Requirements], terms: Sequence[Requirements], pins: Pins) -> tuple[bool, bool]:
    """Whether a node for one of `terms` with these labels meets one of those `wanted`: surely, possibly."""
    fixed = from_labels(dict(pins))
    known = [term & fixed for term in terms]
    surely = all(any(_implies(node, term) for term in wanted) for node in known)
    maybe = any(node.conflict(term) is None for node in known for term in wanted)
    return surely, maybe


def _implies(known: Mapping[str, Requirement], wanted: Requirements) -> bool:
    """Whether whatever meets the one meets the other."""
    return all(
        key in known and known[key].present and known[key].intersection(wish) == known[key]
        for key, wish in wanted.items()
    )
