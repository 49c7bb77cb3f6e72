"""Topology spread: with everything in place, can the pods have come in an order that kept every constraint?

A pod may enter a domain while fewer than maxSkew + minimum of the counted pods are there: that is its *allowance*. Pods
that are counted but do not have the constraint may all come later, so they are held against nobody. Of the pods that
have it, those of the smallest allowance come first: the n-th of them must be allowed n, what runs there included.

The minimum is over the domains the pod could live in, with all counted pods, existing and planned. Per host name it is
0, since a new node can always be opened. A planned node whose domain is open counts wherever it may come to be, and for
the minimum nowhere. Pods that stay with a claim on its way that was opened for them were let in when it was; now it is
enough that kube-scheduler will, to whom the domains are those in which nodes stand.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go `nextDomainTopologySpread`.
Differs: a domain where nothing that the pod accepts can be launched, and where no node stands, is no domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Set

import msgspec
from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement, TopologySpreadConstraint
from journeyman.core.scheduling.verify.counting import Census, Group, group_of_spread
from journeyman.core.scheduling.verify.defect import Defect
from journeyman.core.scheduling.verify.index import Index, Place
from journeyman.core.scheduling.verify.kinds import Kind
from journeyman.core.scheduling.verify.matching import untolerated

_ENCODER = msgspec.msgpack.Encoder()


class _Owner(Struct, frozen=True, eq=False):
    """Pods of one kind that have the constraint, in one place. `stays`: its claim was opened for all of them."""

    kind: Kind
    constraint: TopologySpreadConstraint
    place: Place
    pod: str
    number: int
    stays: bool


class _Entry(Struct, frozen=True, eq=False):
    """Pods that enter a domain while fewer than `allowance` are there: maxSkew more than the emptiest has."""

    allowance: int
    minimum: int
    owner: _Owner


class _Rule(Struct, frozen=True, eq=False):
    """Constraints that count the same pods on the same nodes, and all who have one of them."""

    group: Group
    heeds_affinity: bool
    heeds_taints: bool
    owners: list[_Owner] = field(default_factory=list)

    def counts_on(self, place: Place, sample: Kind) -> bool:
        """Whether pods there count (nodeAffinityPolicy, nodeTaintsPolicy)."""
        if self.heeds_taints and untolerated(sample.pod, place.taints) is not None:
            return False
        return not self.heeds_affinity or bool(place.possible.possibly_suiting(sample.wishes) & place.rows)

    def surely_counts(self, place: Place) -> bool:
        """Whether pods there count whatever becomes of the node; on its own node a pod always does."""
        if self.group.key == labels.HOSTNAME:
            return True
        sample = self.owners[0].kind
        if self.heeds_taints and untolerated(sample.pod, place.taints) is not None:
            return False
        return not self.heeds_affinity or place.rows & ~place.possible.possibly_suiting(sample.wishes) == 0


def check_spread(index: Index, census: Census) -> Iterator[Defect]:
    """What is wrong, one sentence for each constraint and domain."""
    rules = tuple(_rules(index).values())
    staying: dict[int, Counter[str]] = {}
    entering: _Entering = {}
    for rule in rules:
        staying[id(rule)], surely = _counted(census, rule)
        yield from _enter(index, rule, surely, entering)
    for (_, domain), entries in sorted(entering.items(), key=lambda found: found[0]):
        for rule in dict.fromkeys(rule for rule, _ in entries):
            here = [entry for other, entry in entries if other is rule or rule.surely_counts(entry.owner.place)]
            own = frozenset(id(entry) for other, entry in entries if other is rule)
            yield from _check_domain(census, rule, domain, here, own, there=staying[id(rule)][domain])


def _rules(index: Index) -> dict[bytes, _Rule]:
    rules: dict[bytes, _Rule] = {}
    for kind, where in index.planned_by_kind.items():
        for constraint in kind.pod.spec.topology_spread_constraints:
            if constraint.when_unsatisfiable != "DoNotSchedule":
                continue
            rule = _rule(kind, constraint)
            known = rules.setdefault(_identity(rule, kind), rule)
            known.owners.extend(
                _Owner(kind, constraint, place, pod, number, stays=_stays(kind, place)) for place, pod, number in where
            )
    return rules


def _stays(kind: Kind, place: Place) -> bool:
    return bool(place.opened_for) and all(key in place.opened_for for key, k in place.planned.items() if k is kind)


def _rule(kind: Kind, constraint: TopologySpreadConstraint) -> _Rule:
    return _Rule(
        group=group_of_spread(kind.pod, constraint),
        heeds_affinity=constraint.node_affinity_policy != "Ignore",
        heeds_taints=constraint.node_taints_policy == "Honor",
    )


def _identity(rule: _Rule, kind: Kind) -> bytes:
    """Equal if the same pods count on the same nodes."""
    wishes = kind.wishes if rule.heeds_affinity else None
    tolerations = kind.pod.spec.tolerations if rule.heeds_taints else None
    return _ENCODER.encode((rule.group.id, wishes, tolerations))


_Entering = dict[tuple[bytes, str], list[tuple[_Rule, _Entry]]]
"""Who enters which domain, by group and domain."""


def _enter(index: Index, rule: _Rule, surely: Mapping[str, int], entering: _Entering) -> Iterator[Defect]:
    """Note a rule's pods in the domains they enter; what is wrong with those whose domain is not decided."""
    minimums: dict[tuple[Kind, int, bool], int] = {}
    strictest: dict[tuple[Kind, str, str], _Entry] = {}
    for owner in rule.owners:
        domains = owner.place.domains(rule.group.key)
        if not domains and not (owner.stays and owner.place.is_unlaunched):
            yield owner.place.defect(f"pod {owner.pod} spreads over {rule.group.key}, which is not decided there")
        case = (owner.kind, owner.constraint.min_domains or 1, owner.stays)
        if case not in minimums:
            minimums[case] = _minimum(index, rule, owner, surely)
        entry = _Entry(minimums[case] + owner.constraint.max_skew, minimums[case], owner)
        for domain in domains:
            known = strictest.setdefault((owner.kind, owner.place.host, domain), entry)
            if entry.allowance < known.allowance:
                strictest[owner.kind, owner.place.host, domain] = entry
    for (_, _, domain), entry in strictest.items():
        entering.setdefault((rule.group.id, domain), []).append((rule, entry))


def _counted(census: Census, rule: _Rule) -> tuple[Counter[str], Counter[str]]:
    """By domain the pods that stay there, and all that will be there for sure."""
    sample = rule.owners[0].kind
    staying: Counter[str] = Counter()
    surely: Counter[str] = Counter()
    for presence in census.presences(rule.group):
        domains = presence.place.domains(rule.group.key)
        if len(domains) == 1 and rule.counts_on(presence.place, sample):
            (domain,) = domains
            staying[domain] += presence.staying
            surely[domain] += presence.staying + presence.planned
    return staying, surely


def _check_domain(
    census: Census, rule: _Rule, domain: str, entries: Iterable[_Entry], own: Container[int], *, there: int
) -> Iterator[Defect]:
    """Let them in, the smallest allowance first; the rule's `own` entries must find it so."""
    for entry in sorted(entries, key=lambda entry: (entry.allowance, entry.owner.pod)):
        owner = entry.owner
        if census.counts(rule.group, owner.kind):
            there += owner.number
        if there > entry.allowance and id(entry) in own:
            yield owner.place.defect(
                f"pod {owner.pod} is one of {there} in {rule.group.key} {domain}, the emptiest domain has {entry.minimum}, "
                f"its spread allows {owner.constraint.max_skew} more"
            )
            return


def _minimum(index: Index, rule: _Rule, owner: _Owner, surely: Mapping[str, int]) -> int:
    """How many counted pods the emptiest of its domains has."""
    if rule.group.key == labels.HOSTNAME:
        return 0
    here = _standing(index, rule, owner.kind)
    found = _emptiest(here | _launchable(index, owner.kind, rule.group.key), owner, surely)
    return max(found, _emptiest(here, owner, surely)) if owner.stays else found


def _emptiest(domains: Set[str], owner: _Owner, surely: Mapping[str, int]) -> int:
    if len(domains) < (owner.constraint.min_domains or 1):
        return 0
    return min((surely.get(domain, 0) for domain in domains), default=0)


def _standing(index: Index, rule: _Rule, kind: Kind) -> frozenset[str]:
    """Where the pod could live on a node that stands and counts."""
    key = rule.group.key
    standing = (p.domains(key) for p in index.standing_places if p.open and rule.counts_on(p, kind))
    return frozenset(domain for domains in standing for domain in domains if kind.admits(key, domain))


def _launchable(index: Index, kind: Kind, key: str) -> set[str]:
    """Where something can be launched that it accepts."""
    found: set[str] = set()
    for pool in index.usable_pools.values():
        if untolerated(kind.pod, pool.spec.template.spec.taints) is None:
            launches = index.launches(pool)
            for wanted in _combinations(kind):
                found |= launches.values(key, wanted)
    return found


def _combinations(kind: Kind) -> Iterable[tuple[NodeSelectorRequirement, ...]]:
    """One alternative of each of its wishes, in every way."""
    combined: list[tuple[NodeSelectorRequirement, ...]] = [()]
    for alternatives in kind.wishes:
        combined = [(*chosen, *more) for chosen in combined for more in alternatives]
    return combined
