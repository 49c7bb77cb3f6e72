"""Plans that compete: in bulk by price, and for few pods Karpenter's own way as well. The best is kept.

Where both place as many pods the cheaper wins, and of equal ones that with fewer nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.scheduling.bulk import plan_in_bulk
from journeyman.core.scheduling.domains.staying import no_longer_level
from journeyman.core.scheduling.draft import Draft, Question
from journeyman.core.scheduling.keeping import Kept, may_keep_from_a_place
from journeyman.core.scheduling.one_by_one import Way, place_one_by_one
from journeyman.core.scheduling.opening.choosing import planned_claims
from journeyman.core.scheduling.options import PreferencePolicy
from journeyman.core.scheduling.question import Asked
from journeyman.core.scheduling.results import DeviceGrant, PlannedClaim

_MOST_TRIES: Final = 24  # classes whose preferences are tried one by one
_FEW: Final = 150  # pods; with more the one node that a domain has too many of matters little
_DECIMALS: Final = 9  # of a price; what differs beyond is rounding
_FREE: Final = (0, 0.0, 0)  # every pod has a place, and no node is opened


class Plan(Struct, frozen=True, kw_only=True, eq=False):
    """A finished draft: its claims, and the pod keys it puts on existing nodes, by node name.

    `unplaced` are the keys that have no place, by class. `fees` are what the NodePools charge for the nodes as such.
    `devices` are there for the ResourceClaims of the pods on existing nodes, by node name.
    """

    draft: Draft
    claims: tuple[PlannedClaim, ...]
    existing: Mapping[str, tuple[str, ...]]
    unplaced: Mapping[int, tuple[str, ...]]
    fees: float
    devices: Mapping[str, tuple[DeviceGrant, ...]] = field(default_factory=dict)

    @property
    def price(self) -> float:
        """Of the claims, per hour."""
        return float(sum(claim.price for claim in self.claims))

    @property
    def leftover(self) -> frozenset[str]:
        """The pods without a place."""
        return frozenset(key for keys in self.unplaced.values() for key in keys)

    @property
    def left(self) -> int:
        """How many these are."""
        return sum(len(keys) for keys in self.unplaced.values())

    @property
    def rank(self) -> tuple[int, float, int]:
        """The smaller the better: pods without a place, then price, then nodes."""
        return self.left, round(self.price + self.fees, _DECIMALS), len(self.claims)


def answer(asked: Asked) -> Plan:
    """The best plan for a question in which those stay with their claims whom no rule sends elsewhere.

    Nor do they stay if fewer pods had a place then.
    """
    plan = best_plan(asked)
    while out_of_place := no_longer_level(asked.question, plan.draft, asked.kept):
        asked = asked.releasing(out_of_place)
        plan = best_plan(asked)
    if asked.kept and may_keep_from_a_place(asked.question, asked.kept, plan.unplaced):
        afresh = best_plan(asked.releasing(asked.kept))
        return afresh if afresh.left < plan.left else plan
    return plan


def best_plan(asked: Asked) -> Plan:
    """The best plan for a question, preferences heeded as its options say."""
    if asked.question.options.preferences is PreferencePolicy.WHEN_FREE:
        return _keeping_what_is_free(asked)
    return _best(asked)


def _best(asked: Asked) -> Plan:
    question = asked.question
    plan = _finished(asked, plan_in_bulk(asked))
    if plan.rank == _FREE or not _worth_comparing(question):
        return plan
    best = plan
    if _has_slack(question):
        thrifty = _finished(asked, plan_in_bulk(asked, is_thrifty=True))
        best = min(best, thrifty, key=lambda p: p.rank) if thrifty.leftover == plan.leftover else best
    for way in _ways(asked):
        rival = _rival(asked, way)
        if way == Way() and best.left == rival.left and best.leftover != rival.leftover:
            best = rival  # where room is short the pods get it that Karpenter would give it
        elif rival.left < best.left or rival.leftover == best.leftover:
            best = min(best, rival, key=lambda p: p.rank)
    return best


def _has_slack(question: Question) -> bool:
    """Whether some spread lets domains differ by more than the one pod that there is too many of."""
    spreads = (spread for row in question.rows for spread in row.spreads)
    return any(spread.max_skew > 1 and spread.key != labels.HOSTNAME for spread in spreads)


def _ways(asked: Asked) -> Iterator[Way]:
    """The ways worth comparing: Karpenter's, and others where it would have left a choice to chance, or the next pass."""
    yield Way()
    question = asked.question
    keys = {rule.key for row in question.rows for rules in (row.spreads, row.affinities) for rule in rules}
    few = sum(question.counts) <= _FEW
    if few and keys - {labels.HOSTNAME}:
        yield Way(thrifty=True)
        yield Way(favourite=1)
        yield Way(favourite=2)
    if few and len({stall.template.order for stall in question.stalls}) < len(question.stalls):
        yield Way(by_name=True)
    if any(asked.reservations.left.values()) and any(room.resources for room in asked.headroom):
        yield Way(roomy=True)


def _rival(asked: Asked, way: Way) -> Plan:
    draft = asked.draft()
    place_one_by_one(asked.question, draft, way=way)
    return _finished(asked, draft)


def _worth_comparing(question: Question) -> bool:
    """Whether the pods are few, and price is what every NodePool is after."""
    by_price = not any(stall.template.order[1] for stall in question.stalls)
    return by_price and 0 < sum(question.counts) <= question.options.compare_up_to


def _finished(asked: Asked, draft: Draft) -> Plan:
    question = asked.question
    draw = _Drawing(question, asked.kept)
    existing: dict[str, tuple[str, ...]] = {}
    for node, taken in sorted(draft.on_existing.items()):
        keys = [key for row, count in taken for key in draw.onto(node, row, count)]
        existing[question.existing.nodes[node].name] = tuple(sorted(keys))
    claims = tuple(planned_claims(draft.opened, question, draw))
    plan = Plan(
        draft=draft,
        claims=claims,
        existing=existing,
        unplaced={c: draw.rest(c) for c, left in enumerate(draft.left) if left},
        fees=sum(question.stalls[node.stall].template.node_surcharge for node in draft.opened),
    )
    return plan if draft.devices is None else _with_devices(asked, draft, plan)


def _with_devices(asked: Asked, draft: Draft, plan: Plan) -> Plan:
    """The plan with what is there for its pods' ResourceClaims; pods are drawn again, as they were."""
    from journeyman.core.scheduling.dra import drivers_of, granted  # noqa: PLC0415 - only who has claims pays for it

    question = asked.question
    assert question.devices is not None and draft.devices is not None  # noqa: S101, PT018 - there are claims
    names, nodes = question.devices.claims.names, question.existing.nodes
    draw = _Drawing(question, asked.kept)
    devices: dict[str, tuple[DeviceGrant, ...]] = {}
    for place, taken in sorted(draft.on_existing.items()):
        drawn = {row: draw.onto(place, row, count) for row, count in taken}
        for found in granted(draft.devices.at(place), drawn, names).values():
            if found:
                devices[nodes[place].name] = found
    claims: list[PlannedClaim] = []
    for place, (node, claim) in enumerate(zip(draft.opened, plan.claims, strict=True), len(nodes)):
        drawn = {row: draw(row, count) for row, count in node.pods}
        options = draft.devices.at(place)
        by_type = granted(options, drawn, names)
        listed = {name: by_type[name] for name in claim.instance_types if name in by_type}
        claims.append(replace(claim, devices=listed, dra_drivers=drivers_of(options)) if options else claim)
    return replace(plan, claims=tuple(claims), devices=devices)


class _Drawing:
    """Hands out the pods of each class in queue order, whatever the row that asks; those kept go to their own node."""

    def __init__(self, question: Question, kept: Iterable[Kept]) -> None:
        self._question = question
        self._drawn = [0] * len(question.counts)
        self._kept = {(entry.node, question.family[entry.row]): list(entry.keys) for entry in kept}
        self._queues = self._without_kept()

    def _without_kept(self) -> dict[int, list[str]]:
        """The pods of classes of which some are kept that nobody keeps."""
        away: dict[int, set[str]] = {}
        for (_, family), keys in self._kept.items():
            away.setdefault(family, set()).update(keys)
        first = {family: self._question.rows[self._question.ladders[family][0]] for family in away}
        return {family: [key for key in first[family].keys if key not in away[family]] for family in away}

    def onto(self, node: int, row: int, count: int) -> list[str]:
        """Pods for an existing node."""
        own = self._kept.get((node, self._question.family[row]), [])
        staying, own[:count] = own[:count], []
        return staying + self(row, count - len(staying))

    def __call__(self, row: int, count: int) -> list[str]:
        family = self._question.family[row]
        start = self._drawn[family]
        self._drawn[family] = start + count
        if family in self._queues:
            return self._queues[family][start : start + count]
        return [pod.key for pod in self._question.rows[row].pods[start : start + count]]

    def rest(self, family: int) -> tuple[str, ...]:
        """The keys that nobody drew."""
        row = self._question.ladders[family][0]
        return tuple(self(row, self._question.counts[family] - self._drawn[family]))


def _keeping_what_is_free(asked: Asked) -> Plan:
    """Preferences only where they cost nothing: those of all classes up to some rung, then class by class."""
    ladders = asked.question.ladders
    last = [ladder[-1:] for ladder in ladders]
    best = _best(asked.climbing(last))
    for rung in range(max((len(ladder) for ladder in ladders), default=1) - 1):
        tried = [ladder[min(rung, len(ladder) - 1) :] for ladder in ladders]
        plan = _best(asked.climbing(tried))
        if plan.rank <= best.rank:
            return plan
    return _one_class_after_another(asked, last, best, lambda tried: _best(asked.climbing(tried)))


def _one_class_after_another(
    asked: Asked, starts: list[tuple[int, ...]], best: Plan, plan_with: Callable[[list[tuple[int, ...]]], Plan]
) -> Plan:
    """Each of the larger classes as high on its ladder as costs nothing."""
    ladders, counts = asked.question.ladders, asked.question.counts
    choosy = sorted((c for c, ladder in enumerate(ladders) if len(ladder) > 1), key=lambda c: (-counts[c], c))
    tries = 0
    for c in choosy:
        for rung in range(len(ladders[c]) - 1):
            if tries == _MOST_TRIES:
                return best
            tries += 1
            tried = [*starts]
            tried[c] = ladders[c][rung:]
            plan = plan_with(tried)
            if plan.rank <= best.rank:
                starts, best = tried, plan
                break
    return best
