"""Who is where: the pods that rules over labels other than the host name count, by domain, running and planned.

Every rule of every row is asked here, and every pod that is placed is entered here, so that all see the same counts.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go, topologynodefilter.go, topology.go `Record`,
`countDomains`.
Differs: domains that cannot be had are none; pods of nodes that are being removed never make a domain's count higher for
the sake of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from journeyman.core.api import labels
from journeyman.core.api.objects import Toleration
from journeyman.core.scheduling.classes import PodClass
from journeyman.core.scheduling.dealing import Cell, Level
from journeyman.core.scheduling.draft import OpenNode, Question
from journeyman.core.scheduling.existing import is_leaving
from journeyman.core.scheduling.market import Shape, Wish
from journeyman.core.scheduling.node_columns import NodeColumns
from journeyman.core.scheduling.offers import Bools
from journeyman.core.scheduling.requirements import EMPTY, Requirements, from_labels
from journeyman.core.scheduling.topology import Group, LabelIndex, Pins, Spread

Counts = dict[str, int]

_ANY_TAINT: Final = (Toleration(operator="Exists"),)


@dataclass(frozen=True, slots=True)
class _Watch:
    """Where a spread counts: its group, on the nodes that its pods' own requirements and tolerations let in."""

    group: bytes
    terms: tuple[Requirements, ...]
    own_nodes_only: bool
    tolerations: tuple[Toleration, ...] | None

    @classmethod
    def of(cls, spread: Spread, row: PodClass) -> _Watch:
        """What a row's spread watches."""
        tolerations = row.tolerations if spread.untainted_only else None
        return cls(spread.group.id, row.strict_terms, spread.own_nodes_only, tolerations)


@dataclass(slots=True)
class _Spreading:
    """The pods a spread counts by domain; `rivals` are those that came by a spread over the same group themselves."""

    key: str
    counts: Counts
    rivals: Counts


@dataclass(slots=True)
class _Entries:
    """Where a row's pods are entered: those that count it, by key."""

    tallies: list[tuple[str, Counts]] = field(default_factory=list)
    held: list[tuple[str, Counts]] = field(default_factory=list)
    spreads: list[tuple[_Watch, _Spreading, bool]] = field(default_factory=list)


class Ledger:
    """Counts by domain for every group of the question over a label other than the host name."""

    def __init__(self, question: Question) -> None:
        """All running pods entered, and none of those to be placed."""
        self._question = question
        self._rows = question.rows
        self._index = LabelIndex(question.rows)
        existing = question.existing
        self._standing = NodeColumns(existing.standing)
        self._staying: Bools = np.array([not is_leaving(node) for node in existing.standing], dtype=bool)
        self._places = {node.name: n for n, node in enumerate(existing.standing)}
        self._tainted = any(s.template.pool.spec.template.spec.taints for s in question.stalls) or any(
            node.taints for node in existing.standing
        )
        self.groups: dict[bytes, Group] = {}
        self._counting: list[list[bytes]] = [[] for _ in question.rows]
        self._tallies: dict[bytes, Counts] = {}
        self._possible: dict[bytes, Counts] = {}
        self._held: dict[bytes, Counts] = {}
        self._spreads: dict[_Watch, _Spreading] = {}
        self._spreads_of_group: dict[bytes, list[_Watch]] = {}
        self._entries: dict[int, _Entries] = {}
        self._implied: dict[object, tuple[bool, bool]] = {}
        self._register()

    # --- set-up

    def _register(self) -> None:
        for row in self._rows:
            for spread in row.spreads:
                if spread.key != labels.HOSTNAME:
                    self._register_spread(spread, row)
            for group in (*row.affinities, *row.anti_affinities):
                if group.key != labels.HOSTNAME:
                    self._register_group(group)
        for repelled in self._question.repelled:
            if repelled.group.key != labels.HOSTNAME:
                self._register_group(repelled.group)
                held = self._held.setdefault(repelled.group.id, {})
                held.update(dict.fromkeys(sorted(repelled.domains), 1))
        for group in self.groups.values():
            for r in self._index.counted_by(group):
                self._counting[r].append(group.id)

    def _register_group(self, group: Group) -> None:
        self.groups.setdefault(group.id, group)
        if group.id not in self._tallies:
            self._tallies[group.id] = self._running(group, np.ones(len(self._places), dtype=bool))

    def _register_spread(self, spread: Spread, row: PodClass) -> None:
        self.groups.setdefault(spread.group.id, spread.group)
        watch = _Watch.of(spread, row)
        if watch in self._spreads:
            return
        filtered = self._counting_nodes(watch)
        counts = dict.fromkeys(self._domains(spread.key, watch, filtered), 0)
        staying = self._running(spread.group, filtered & self._staying)
        counts.update({d: staying.get(d, 0) for d in counts})
        rivals = self._running(spread.group, filtered)
        self._spreads[watch] = _Spreading(spread.key, counts, rivals)
        self._spreads_of_group.setdefault(spread.group.id, []).append(watch)

    def _counting_nodes(self, watch: _Watch) -> Bools:
        """The nodes that let a spread's pods in, as far as its policies ask."""
        found: Bools = np.ones(len(self._places), dtype=bool)
        if watch.own_nodes_only:
            found &= self._standing.meeting(watch.terms)
        if watch.tolerations is not None:
            found &= self._standing.accepted(watch.tolerations, heeds_preferences=False)
        return found

    def _running(self, group: Group, nodes: Bools) -> Counts:
        """The running pods that a group counts, by domain, on some of the nodes."""
        found: Counts = {}
        if not len(self._places):
            return found
        codes, values = self._standing.label(group.key)
        for name, n in self._question.existing.census.by_node(group).items():
            place = self._places[name]
            value = values[codes[place]]
            if value is not None and nodes[place]:
                found[value] = found.get(value, 0) + n
        return dict(sorted(found.items()))

    def _domains(self, key: str, watch: _Watch, nodes: Bools) -> list[str]:
        """Where the emptiest domain is looked for: domains of nodes that count, and those that can be had."""
        wish = Wish(Shape(watch.terms, watch.tolerations if watch.tolerations is not None else _ANY_TAINT))
        found = {value for stall in self._question.stalls for (value,) in stall.domains_for(wish, (key,))}
        if len(self._places):
            codes, values = self._standing.label(key)
            here = {values[code] for code in set(codes[nodes & self._staying].tolist())}
            found |= {value for value in here if value is not None}
        admits = [term.get(key) for term in watch.terms]
        return sorted(v for v in found if any(wanted is None or wanted.has(v) for wanted in admits))

    # --- questions

    def counting(self, row: int) -> Sequence[bytes]:
        """The groups that count the row's pods."""
        return self._counting[row]

    def tally(self, group: bytes) -> Mapping[str, int]:
        """The pods that a group counts, by domain."""
        return self._tallies[group]

    def levels(self, row: int, cells: Iterable[Cell]) -> list[Level]:
        """The rules of the row's own, those that others have about it, and the counts it should keep level."""
        pods = self._rows[row]
        counted = set(self._counting[row])
        found = [self._spread_level(s, row, s.group.id in counted, cells) for s in pods.spreads if _wide(s.group)]
        own = {s.group.id for s in pods.spreads}
        for group in pods.anti_affinities:
            if _wide(group):
                counts = _together(self._tallies[group.id], self._possible.get(group.id, {}))
                step = int(group.id in counted)
                found.append(
                    Level(
                        key=group.key, counts=counts, rivals=counts, skew=step, step=step, from_zero=True, is_ban=True
                    )
                )
        for group_id in self._counting[row]:
            key = self.groups[group_id].key
            held = self._held.get(group_id)
            if held:
                found.append(Level(key=key, counts=held, rivals=held, skew=0, step=0, from_zero=True, is_ban=True))
            watches = self._spreads_of_group.get(group_id, ()) if group_id not in own else ()
            for watch in watches[:1]:
                counts = dict(self._spreads[watch].counts)
                found.append(Level(key=key, counts=counts, rivals=counts, skew=None, step=1))
        return found

    def is_over(self, row: int, values: Mapping[str, str]) -> bool:
        """Whether the row's pods in these domains are too many for one of its spreads, now that all are placed."""
        pods = self._rows[row]
        for spread in pods.spreads:
            if _wide(spread.group) and spread.group.id in self._counting[row]:
                known = self._spreads[_Watch.of(spread, pods)]
                floor = 0 if len(known.counts) < spread.min_domains else min(known.counts.values(), default=0)
                if known.rivals.get(values[spread.key], 0) - floor > spread.max_skew:
                    return True
        return False

    def why_closed(self, row: int, cells: Sequence[Cell]) -> str:
        """The first rule that closes all of these cells alone, in words; or that all of them together do."""
        pods, levels = self._rows[row], self.levels(row, cells)
        for level in levels:
            values = sorted({cell.values[level.key] for cell in cells if level.key in cell.values})
            if values and all(not level.admits(value) for value in values):
                shown = ", ".join(values)
                if level.is_ban:
                    return f"unsatisfiable pod anti-affinity: every domain of {level.key} that it can reach is taken ({shown})"
                return f"unsatisfiable topology spread over {level.key}: one more pod in any of {shown} exceeds maxSkew"
        what = "rules between pods" if len(levels) > 1 or pods.affinities else "rule between pods"
        return f"no domain that it can reach keeps its {what}"

    def domains_of(self, opened: OpenNode, key: str) -> list[str]:
        """The domains in which a node that is yet to be opened may end."""
        wish = Wish(Shape((opened.requirements,), _ANY_TAINT))
        return sorted(value for (value,) in self._question.stalls[opened.stall].domains_for(wish, (key,)))

    def _spread_level(self, spread: Spread, row: int, counts_itself: bool, cells: Iterable[Cell]) -> Level:
        known = self._spreads[_Watch.of(spread, self._rows[row])]
        counts = dict(known.counts)
        few = len(counts) < spread.min_domains
        for cell in cells:
            value = cell.values.get(spread.key)
            if value is not None:
                counts.setdefault(value, known.rivals.get(value, 0))
        return Level(
            key=spread.key,
            counts=counts,
            rivals=dict(known.rivals),
            skew=spread.max_skew,
            step=int(counts_itself),
            from_zero=few,
        )

    # --- entries

    def enter(self, row: int, values: Mapping[str, str], pods: int, pins: Pins) -> None:
        """Count pods of the row (take them back if fewer than 0) on nodes of these domains.

        Args:
            row: Whose pods.
            values: The domains, by label.
            pods: How many.
            pins: What is known of their nodes' labels.
        """
        entries = self._entries_of(row)
        for key, counts in (*entries.tallies, *entries.held):
            _add(counts, values.get(key), pods)
        for watch, spreading, is_rival in entries.spreads:
            value = values.get(spreading.key)
            if value is None:
                continue
            surely, maybe = self._lets_in(watch, row, pins)
            if surely and value in spreading.counts:
                _add(spreading.counts, value, pods)
            if maybe and is_rival:
                _add(spreading.rivals, value, pods)

    def enter_possible(self, row: int, key: str, domains: Iterable[str], pods: int) -> None:
        """Pods of the row whose domain is one of several: whoever keeps away from them keeps away from all of these."""
        for domain in domains:
            for group_id in self._counting[row]:
                if self.groups[group_id].key == key and group_id in self._tallies:
                    _add(self._possible.setdefault(group_id, {}), domain, pods)
            for group in self._rows[row].anti_affinities:
                if group.key == key and group.id not in self._rows[row].soft:
                    _add(self._held.setdefault(group.id, {}), domain, pods)

    def _entries_of(self, row: int) -> _Entries:
        found = self._entries.get(row)
        if found is None:
            found = self._entries[row] = self._find_entries(row)
        return found

    def _find_entries(self, row: int) -> _Entries:
        found, pods = _Entries(), self._rows[row]
        own = {spread.group.id for spread in pods.spreads}
        for group_id in self._counting[row]:
            if group_id in self._tallies:
                found.tallies.append((self.groups[group_id].key, self._tallies[group_id]))
            for watch in self._spreads_of_group.get(group_id, ()):
                found.spreads.append((watch, self._spreads[watch], group_id in own))
        for group in pods.anti_affinities:
            if _wide(group) and group.id not in pods.soft:
                found.held.append((group.key, self._held.setdefault(group.id, {})))
        return found

    def _lets_in(self, watch: _Watch, row: int, pins: Pins) -> tuple[bool, bool]:
        """Whether the nodes the row's pods go to count for a spread: surely, possibly."""
        pods = self._rows[row]
        surely = maybe = True
        if watch.own_nodes_only and watch.terms not in {(EMPTY,), pods.terms, pods.strict_terms}:
            key = (watch, row, pins)
            if key not in self._implied:
                self._implied[key] = _judge(watch.terms, pods.terms, pins)
            surely, maybe = self._implied[key]
        if watch.tolerations is not None and watch.tolerations != pods.tolerations and self._tainted:
            surely = False
        return surely, maybe


def _wide(group: Group) -> bool:
    return group.key != labels.HOSTNAME


def _add(counts: Counts, value: str | None, pods: int) -> None:
    if value is not None:
        counts[value] = counts.get(value, 0) + pods


def _together(first: Mapping[str, int], second: Mapping[str, int]) -> Counts:
    return {value: first.get(value, 0) + second.get(value, 0) for value in {**first, **second}}


def _judge(wanted: Sequence[Requirements], terms: Sequence[Requirements], pins: Pins) -> tuple[bool, bool]:
    """Whether a node for one of `terms` with these labels meets one of those `wanted`: surely, possibly."""
    fixed = from_labels(dict(pins))
    known = [term & fixed for term in terms]
    surely = all(any(_implies(node, term) for term in wanted) for node in known)
    maybe = any(node.conflict(term) is None for node in known for term in wanted)
    return surely, maybe


def _implies(known: Requirements, wanted: Requirements) -> bool:
    """Whether whatever meets the one meets the other."""
    return all(
        key in known and known[key].present and known[key].intersection(wish) == known[key]
        for key, wish in wanted.items()
    )
