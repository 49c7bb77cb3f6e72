"""The rules of every row, made when first needed.

Restates: karpenter pkg/controllers/provisioning/scheduling/topology.go `NewTopology`, `AddRequirements`.
Differs: domains that cannot be had (nothing the pod accepts is on offer there, no node it accepts stands there) are not
counted as empty ones. Where `binding` is asked for, pods that required anti-affinity over a domain is about are bound
to one domain each; in Karpenter one such pod occupies all domains its node might be launched in, and the next waits for
another pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from journeyman.core.api import labels
from journeyman.core.api.objects import Toleration
from journeyman.core.scheduling.demand.topology import Group, LabelIndex, Spread, domain_of
from journeyman.core.scheduling.draft import Question
from journeyman.core.scheduling.one_by_one.book import NONE, Book
from journeyman.core.scheduling.one_by_one.ledger import Ledger
from journeyman.core.scheduling.one_by_one.places import Places
from journeyman.core.scheduling.one_by_one.rules import HostRules, JoinRule, KeyRules, Rules, SpreadRule
from journeyman.core.scheduling.one_by_one.shelves import Shelf
from journeyman.core.scheduling.one_by_one.tallies import EVERY_NODE, DomainTally, HostTally, NodeFilter, Tally
from journeyman.core.scheduling.requirements import EMPTY, Requirements
from journeyman.core.scheduling.taints import untolerated


class RuleBook:
    """All rules of a pass; `ledger` has their tallies."""

    def __init__(
        self,
        question: Question,
        shelves: Sequence[Shelf],
        book: Book,
        places: Places,
        active: Sequence[int],
        *,
        binding: bool,
    ) -> None:
        """`active` are the rows that pods may still be placed by; what only others' rules count is not counted."""
        self._question = question
        self._shelves = shelves
        self._book = book
        self._places = places
        self._binding = binding
        self._rows = LabelIndex(question.rows)
        self._made: dict[int, Rules] = {}
        self._eligible: dict[object, frozenset[str]] = {}
        self._inverse: dict[int, list[tuple[Group, Tally]]] = {}
        self._repelled: dict[int, list[tuple[str, frozenset[str]]]] = {}
        self.ledger = Ledger(question.existing.census, self._rows, len(question.rows), book, places)
        self._prepare_repulsion()
        for row in active:
            self.of(row)

    def _prepare_repulsion(self) -> None:
        """Who keeps whom away: by row, the groups with required anti-affinity that count it."""
        owned: dict[bytes, Tally] = {}
        for row, cls in enumerate(self._question.rows):
            for group in cls.anti_affinities:
                if group.id in cls.soft:
                    continue
                if group.id not in owned:
                    owned[group.id] = self._owners(group)
                self.ledger.keep(row, owned[group.id])
        for entry in self._question.repelled:
            for row in self._rows.counted_by(entry.group):
                self._repelled.setdefault(row, []).append((entry.group.key, entry.domains))
            if entry.group.key != labels.HOSTNAME:
                self._places.watch(entry.group.key)

    def _owners(self, group: Group) -> Tally:
        """A tally of those who keep away from the pods that a group counts."""
        host = group.key == labels.HOSTNAME
        tally: Tally = HostTally() if host else DomainTally(group.key, anywhere=True)
        if not host:
            self._places.watch(group.key)
        for row in self._rows.counted_by(group):
            self._inverse.setdefault(row, []).append((group, tally))
        return tally

    def of(self, row: int) -> Rules:
        """The rules of one row."""
        found = self._made.get(row)
        if found is None:
            found = self._made[row] = self._rules(row)
        return found

    def _rules(self, row: int) -> Rules:
        cls = self._question.rows[row]
        hosts = HostRules()
        keys: dict[str, KeyRules] = {}

        def over(key: str) -> KeyRules:
            return keys.setdefault(key, KeyRules(key))

        for spread in cls.spreads:
            self._add_spread(row, spread, hosts, over)
        for group in cls.affinities:
            self._add_affinity(row, group, hosts, over)
        for group in cls.anti_affinities:
            self._add_anti_affinity(row, group, hosts, over)
        for rules in keys.values():
            rules.needs_label = True
        self._add_repulsion(row, hosts, over)
        return Rules(hosts, tuple(keys[key] for key in sorted(keys)))

    def _add_spread(self, row: int, spread: Spread, hosts: HostRules, over: Callable[[str], KeyRules]) -> None:
        cls = self._question.rows[row]
        own = int(spread.counts(cls.namespace, cls.labels))
        # On the node that a pod goes to its own node affinity holds, so that node counts, whatever was open before.
        nodes = EVERY_NODE if spread.key == labels.HOSTNAME else self._filter(row, spread)
        tally = self.ledger.tally("spread", spread.group, nodes)
        if isinstance(tally, HostTally):
            hosts.most.append((tally, spread.max_skew - own))
            return
        rules = over(spread.key)
        eligible = self._eligible_domains(row, spread)
        rules.spreads.append(SpreadRule(tally, spread.max_skew, spread.min_domains, own, eligible))
        rules.binding = True

    def _add_affinity(self, row: int, group: Group, hosts: HostRules, over: Callable[[str], KeyRules]) -> None:
        cls = self._question.rows[row]
        starts = group.counts(cls.namespace, cls.labels)
        tally = self.ledger.tally("affinity", group, EVERY_NODE)
        if isinstance(tally, HostTally):
            hosts.joins.append((tally, starts))
        else:
            within = lambda: self._had_by(row, group.key)  # noqa: E731 - seldom asked for, and then costly
            over(group.key).joins.append(JoinRule(tally, starts, self._reach(row, group.key), within))

    def _add_anti_affinity(self, row: int, group: Group, hosts: HostRules, over: Callable[[str], KeyRules]) -> None:
        soft = group.id in self._question.rows[row].soft
        tally = self.ledger.tally("avoided" if soft else "apart", group, EVERY_NODE)
        if isinstance(tally, HostTally):
            hosts.most.append((tally, 0))
            return
        rules = over(group.key)
        rules.apart.append(tally)
        rules.binding |= self._binding and not soft

    def _add_repulsion(self, row: int, hosts: HostRules, over: Callable[[str], KeyRules]) -> None:
        for group, tally in self._inverse.get(row, ()):
            if isinstance(tally, HostTally):
                hosts.most.append((tally, 0))
                continue
            rules = over(group.key)
            rules.apart.append(tally)
            rules.binding |= self._binding
            beside = self.ledger.tally("apart", group, EVERY_NODE)
            if isinstance(beside, DomainTally) and beside not in rules.apart:
                rules.beside.append(beside)
        for key, domains in self._repelled.get(row, ()):
            if key != labels.HOSTNAME:
                over(key).repelled |= domains
                continue
            places = (p for p, node in enumerate(self._places.standing) if domain_of(node, key) in domains)
            hosts.repelled = tuple(sorted({*hosts.repelled, *places}))

    # -- domains ------------------------------------------------------------------------------------------------------

    def _strict(self, row: int) -> tuple[Requirements, ...]:
        """What the row's class requires of its node, preferences aside."""
        return self._question.rows[row].strict_terms

    def _filter(self, row: int, spread: Spread) -> NodeFilter:
        terms = self._strict(row) if spread.own_nodes_only else (EMPTY,)
        return NodeFilter(
            terms=None if EMPTY in terms else tuple(self._book.number(term) for term in terms),
            tolerations=self._question.rows[row].tolerations if spread.untainted_only else None,
        )

    def _reach(self, row: int, key: str) -> Callable[[str], bool]:
        rules = [term.get(key) for term in self._strict(row)]
        return lambda domain: any(rule is None or rule.has(domain) for rule in rules)

    def _eligible_domains(self, row: int, spread: Spread) -> frozenset[str]:
        """The domains that the minimum is over: where something is on offer that the pod accepts, or stands."""
        nodes = self._filter(row, spread)
        strict = self._strict(row)
        terms = tuple(self._book.number(term) for term in strict)
        tolerations = self._question.rows[row].tolerations
        case = (spread.key, nodes, terms, tolerations)
        found = self._eligible.get(case)
        if found is None:
            if nodes.terms is None:  # the label alone is looked at
                own = (Requirements({k: r for k, r in term.items() if k == spread.key}) for term in strict)
                terms = tuple(self._book.number(term) for term in own)
            standing = self._standing_domains(spread.key, nodes, self._reach(row, spread.key))
            launchable = self._launchable_domains(spread.key, tolerations, terms)
            found = self._eligible[case] = frozenset((*standing, *launchable))
        return found

    def _had_by(self, row: int, key: str) -> frozenset[str]:
        """The domains that the row's pods can have a node in, standing or new, as far as its class says."""
        terms = tuple(self._book.number(term) for term in self._strict(row))
        tolerations = self._question.rows[row].tolerations
        case = (key, terms, tolerations)
        found = self._eligible.get(case)
        if found is None:
            standing = self._standing_domains(key, EVERY_NODE, self._reach(row, key))
            launchable = self._launchable_domains(key, tolerations, terms)
            found = self._eligible[case] = frozenset((*standing, *launchable))
        return found

    def _standing_domains(self, key: str, nodes: NodeFilter, reaches: Callable[[str], bool]) -> Iterator[str]:
        for node in self._places.standing:
            domain = domain_of(node, key)
            if domain is not None and reaches(domain) and self.ledger.counts_node(nodes, node):
                yield domain

    def _launchable_domains(self, key: str, tolerations: Sequence[Toleration], terms: Sequence[int]) -> Iterator[str]:
        for shelf in self._shelves:
            taints = shelf.stall.template.pool.spec.template.spec.taints
            if untolerated(taints, tolerations) is not None:
                continue
            for term in terms:
                wanted = self._book.narrowed(shelf.offer, term)
                if wanted != NONE:
                    yield from shelf.domains(key, shelf.suiting(wanted), wanted)
