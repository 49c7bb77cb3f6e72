"""Required anti-affinity: no two pods in one domain of which one has the term and the other is selected by it.

It works both ways, and for pods that run already: a running pod's term keeps new ones away. A node whose domain is open
is in all domains that it may come to be in.

Restates: karpenter pkg/controllers/provisioning/scheduling/topology.go, anti-affinity and inverse anti-affinity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct, field

from journeyman.core.scheduling.verify.counting import Census, Group, group_of_term
from journeyman.core.scheduling.verify.defect import Defect
from journeyman.core.scheduling.verify.index import Index, Place
from journeyman.core.scheduling.verify.kinds import Kind, is_going


class _Rule(Struct, eq=False):
    """Terms about the same pods; the planned pods that have one, and the domains with running pods that have one."""

    group: Group
    owners: list[tuple[Kind, Place, str]] = field(default_factory=list)
    guarded: dict[str, Kind] = field(default_factory=dict)


def check_anti_affinity(index: Index, census: Census) -> Iterator[Defect]:
    """What is wrong, one sentence for each term and place."""
    for rule in _rules(index).values():
        yield from _check_rule(census, rule)


def _rules(index: Index) -> dict[bytes, _Rule]:
    rules: dict[bytes, _Rule] = {}

    def rules_of(kind: Kind) -> Iterator[_Rule]:
        for term in kind.anti_affinity:
            group = group_of_term(kind.pod, term)
            yield rules.setdefault(group.id, _Rule(group))

    for kind, where in index.planned_by_kind.items():
        for rule in rules_of(kind):
            rule.owners.extend((kind, place, pod) for place, pod, _ in where)
    for place in index.standing_places:
        for kind in place.staying:
            if kind.anti_affinity and not is_going(kind.pod):
                for rule in rules_of(kind):
                    rule.guarded.update(dict.fromkeys(place.domains(rule.group.key), kind))
    return rules


def _check_rule(census: Census, rule: _Rule) -> Iterator[Defect]:
    counted: Counter[str] = Counter()
    for presence in census.presences(rule.group):
        for domain in presence.place.domains(rule.group.key):
            counted[domain] += presence.planned + presence.staying
            if presence.planned and domain in rule.guarded:
                pod = rule.guarded[domain].pod.key
                yield presence.place.defect(
                    f"in {rule.group.key} {domain} runs pod {pod}, whose anti-affinity selects a pod planned there"
                )
    for kind, place, pod in rule.owners:
        itself = 1 if census.counts(rule.group, kind) else 0
        for domain in sorted(place.domains(rule.group.key)):
            if counted[domain] > itself:
                others = counted[domain] - itself
                yield place.defect(
                    f"the anti-affinity of pod {pod} selects {others} other pod(s) in {rule.group.key} {domain}"
                )
                break
