"""Who is where: the pods that rules over labels other than the host name count, by domain, running and planned.

Every rule of every row is asked here, and every pod that is placed is entered here, so that all see the same counts.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go, topology.go `Record`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.scheduling.demand.classes import PodClass
from journeyman.core.scheduling.demand.topology import Group, LabelIndex, Pins, Spread
from journeyman.core.scheduling.domains.dealing import UNLIMITED, Cell, Level
from journeyman.core.scheduling.domains.spreading import ANY_TAINT, Counts, Spreading, Watcher
from journeyman.core.scheduling.draft import Draft, OpenNode, Question
from journeyman.core.scheduling.offering.wishes import Shape, Wish
from journeyman.core.scheduling.requirements import from_labels


class _Entries(Struct):
    """Where a row's pods are entered: (key, counts), and the spreads that count them, each with the row's own skew."""

    counts: list[tuple[str, Counts]] = field(default_factory=list)
    spreads: list[tuple[Spreading, int | None]] = field(default_factory=list)


class Ledger:
    """Counts by domain for every group of the question over a label other than the host name."""

    def __init__(self, question: Question) -> None:
        """All running pods entered, and none of those to be placed."""
        self._question = question
        self._rows = question.rows
        self._watcher = Watcher(question)
        self._groups: dict[bytes, Group] = {}
        self._tallies: dict[bytes, Counts] = {}
        self._possible: dict[bytes, Counts] = {}
        self._held: dict[bytes, Counts] = {}
        self._own: list[list[tuple[Spread, Spreading]]] = [[] for _ in question.rows]
        self._spreads_of_group: dict[bytes, list[Spreading]] = {}
        self._counting: list[list[Group]] = [[] for _ in question.rows]
        self._entries: dict[int, _Entries] = {}
        self._index = LabelIndex(self._rows)
        self._is_everywhere: dict[str, bool] = {}
        for r, row in enumerate(question.rows):
            self._register(r, row)
        for repelled in question.repelled:
            if is_wide(repelled.group):
                self._register_group(repelled.group)
                self._held.setdefault(repelled.group.id, {}).update(dict.fromkeys(sorted(repelled.domains), 1))
        self._index_rows()

    # --- set-up

    def _register(self, r: int, row: PodClass) -> None:
        for spread in row.spreads:
            if is_wide(spread.group):
                found = self._watcher.spreading(spread, row)
                if self._is_idle(spread, found):
                    continue
                self._own[r].append((spread, found))
                known = self._spreads_of_group.setdefault(spread.group.id, [])
                if found not in known:
                    known.append(found)
                self._groups.setdefault(spread.group.id, spread.group)
        for group in (*row.affinities, *row.anti_affinities):
            if is_wide(group):
                self._register_group(group)

    def _is_idle(self, spread: Spread, found: Spreading) -> bool:
        """Whether a constraint that counts nobody can be forgotten: whatever node its pods go to has the label."""
        if self._index.counted_by(spread.group) or any(found.running.values()):
            return False
        known = self._is_everywhere.get(spread.key)
        if known is None:
            offered = all(stall.template.table.settles(spread.key) for stall in self._question.stalls)
            known = offered and all(spread.key in node.labels for node in self._question.existing.nodes)
            self._is_everywhere[spread.key] = known
        return known

    def _register_group(self, group: Group) -> None:
        self._groups.setdefault(group.id, group)
        if group.id not in self._tallies:
            self._tallies[group.id] = self._watcher.running(group)

    def _index_rows(self) -> None:
        for group in self._groups.values():
            for r in self._index.counted_by(group):
                self._counting[r].append(group)

    # --- questions

    @property
    def keys(self) -> frozenset[str]:
        """The labels that any rule is about."""
        return frozenset(group.key for group in self._groups.values())

    def counting(self, row: int) -> Sequence[Group]:
        """The groups that count the row's pods."""
        return self._counting[row]

    def spreads(self, row: int) -> list[Spread]:
        """The row's own constraints over these labels, as far as they count anybody."""
        return [spread for spread, _ in self._own[row]]

    def tally(self, group: Group) -> Mapping[str, int]:
        """The pods that a group of an affinity counts, by domain."""
        return self._tallies[group.id]

    def levels(self, row: int) -> list[Level]:
        """The rules of the row's own, those that others have about it, and the counts it should keep level."""
        counted = {group.id for group in self._counting[row]}
        found = [
            Level(
                key=spread.key,
                counts=spreading.counts,
                rivals=spreading.held_against(spread.max_skew),
                skew=spread.max_skew,
                step=int(spread.group.id in counted),
                from_zero=spreading.is_short_of(spread.min_domains),
            )
            for spread, spreading in self._own[row]
        ]
        for group in self._rows[row].anti_affinities:
            if is_wide(group):
                counts = _together(self._tallies[group.id], self._possible.get(group.id))
                found.append(_ban(group.key, counts, step=int(group.id in counted)))
        own = {spread.group.id for spread, _ in self._own[row]}
        for group in self._counting[row]:
            held = self._held.get(group.id)
            if held:
                found.append(_ban(group.key, held, step=0))
            if group.id not in own and group.id in self._spreads_of_group:
                counts = self._spreads_of_group[group.id][0].counts
                found.append(Level(key=group.key, counts=counts, rivals=counts, skew=None, step=1))
        return found

    def is_over(self, row: int, values: Mapping[str, str]) -> bool:
        """Whether the row's pods in these domains are too many for one of its spreads, now that all are placed."""
        counted = {group.id for group in self._counting[row]}
        for spread, spreading in self._own[row]:
            if spread.group.id in counted:
                held = spreading.held_against(spread.max_skew).get(values[spread.key], 0)
                if held - spreading.floor(spread.min_domains) > spread.max_skew:
                    return True
        return False

    def is_out_of_place(self, row: int, values: Mapping[str, str]) -> bool:
        """Whether the row's pods, who came to these domains before all others, are not level any more.

        They are held to the domains in which nodes stand if these have more: kube-scheduler knows of no others. And all
        who were placed later may be there first. A domain that is decided at launch is not judged before.
        """
        for spread, spreading in self._own[row]:
            held = spreading.held_against(UNLIMITED).get(values.get(spread.key, ""), 0)
            floor = max(spreading.floor(spread.min_domains), spreading.standing_floor(spread.min_domains))
            if held - floor > spread.max_skew:
                return True
        return False

    def why_closed(self, row: int, cells: Sequence[Cell]) -> str:
        """The first rule that closes all of these cells alone, in words; or that all of them together do."""
        levels = self.levels(row)
        for level in levels:
            values = sorted({cell.values[level.key] for cell in cells if level.key in cell.values})
            if values and not any(level.admits(value) for value in values):
                shown = ", ".join(values)
                if level.is_ban:
                    return f"unsatisfiable pod anti-affinity: every domain of {level.key} that it can reach is taken ({shown})"
                few = ", as there are fewer domains than its minDomains" if level.from_zero else ""
                return (
                    f"unsatisfiable topology spread over {level.key}: one more pod in any of {shown} exceeds its "
                    f"maxSkew of {level.skew}{few}"
                )
        return "unsatisfiable rules between pods: no domain that it can reach keeps all of them"

    def domains_of(self, opened: OpenNode, key: str) -> list[str]:
        """The domains in which a node that is yet to be opened may end."""
        wish = Wish(Shape((opened.requirements,), ANY_TAINT))
        return sorted(value for (value,) in self._question.stalls[opened.stall].domains_for(wish, (key,)))

    # --- entries

    def enter(self, row: int, values: Mapping[str, str], pods: int, pins: Pins, *, certain: bool = True) -> None:
        """Count pods of the row (take them back if fewer than 0) on nodes of these domains.

        Args:
            row: Whose pods.
            values: The domains, by label.
            pods: How many.
            pins: What is known of their nodes' labels.
            certain: Their nodes suit them by what is known already.
        """
        entries = self._entries_of(row)
        for key, counts in entries.counts:
            _add(counts, values.get(key), pods)
        for spreading, skew in entries.spreads:
            value = values.get(spreading.key)
            if value is not None:
                surely, maybe = self._watcher.lets_in(spreading, row, pins)
                spreading.enter(value, pods, skew=skew, surely=surely and certain, maybe=maybe)

    def enter_draft(self, draft: Draft) -> None:
        """Count all whom a draft has placed."""
        nodes = self._question.existing.nodes
        for node, entries in sorted(draft.on_existing.items()):
            for row, count in entries:
                values = nodes[node].labels
                certain = bool(nodes[node].provider_id) or self._suits(row, values)
                self.enter(row, values, count, tuple(sorted(values.items())), certain=certain)
        for opened in draft.opened:
            singles = {key: r.single for key, r in opened.requirements.items()}
            known = {key: value for key, value in singles.items() if value is not None}
            open_keys = self.keys - known.keys()
            for row, count in opened.pods:
                self.enter(row, known, count, tuple(sorted(known.items())))
                for key in sorted(open_keys):
                    self.enter_possible(row, key, self.domains_of(opened, key), count)

    def _suits(self, row: int, values: Mapping[str, str]) -> bool:
        """Whether these labels suit the row; those of a claim to be launched do not tell everything yet."""
        offered = from_labels(values)
        return any(offered.compatible(term) is None for term in self._rows[row].strict_terms)

    def enter_possible(self, row: int, key: str, domains: Iterable[str], pods: int) -> None:
        """Pods of the row whose domain is one of several: whoever keeps away from them keeps away from all of these."""
        counting = [g for g in self._counting[row] if g.key == key and g.id in self._tallies]
        holding = [g for g in self._rows[row].anti_affinities if g.key == key and g.id not in self._rows[row].soft]
        for domain in domains:
            for group in counting:
                _add(self._possible.setdefault(group.id, {}), domain, pods)
            for group in holding:
                _add(self._held.setdefault(group.id, {}), domain, pods)

    def _entries_of(self, row: int) -> _Entries:
        found = self._entries.get(row)
        if found is None:
            found = self._entries[row] = self._find_entries(row)
        return found

    def _find_entries(self, row: int) -> _Entries:
        found, pods = _Entries(), self._rows[row]
        own: dict[bytes, int] = {}
        for spread, _ in self._own[row]:
            own[spread.group.id] = min(spread.max_skew, own.get(spread.group.id, spread.max_skew))
        for group in self._counting[row]:
            if group.id in self._tallies:
                found.counts.append((group.key, self._tallies[group.id]))
            found.spreads += [(s, own.get(group.id)) for s in self._spreads_of_group.get(group.id, ())]
        for group in pods.anti_affinities:
            if is_wide(group) and group.id not in pods.soft:
                found.counts.append((group.key, self._held.setdefault(group.id, {})))
        return found


def is_wide(group: Group) -> bool:
    """Whether its domains are more than one node each."""
    return group.key != labels.HOSTNAME


def _ban(key: str, counts: Mapping[str, int], *, step: int) -> Level:
    return Level(key=key, counts=counts, rivals=counts, skew=step, step=step, from_zero=True, is_ban=True)


def _add(counts: Counts, value: str | None, pods: int) -> None:
    if value is not None:
        counts[value] = counts.get(value, 0) + pods


def _together(first: Counts, second: Counts | None) -> Counts:
    if not second:
        return first
    return {value: first.get(value, 0) + second.get(value, 0) for value in {**first, **second}}
