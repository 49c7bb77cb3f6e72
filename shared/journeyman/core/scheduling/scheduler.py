"""The scheduler: pods in, planned nodes out.

In this order: pods become classes, and classes ladders of rows (`question`); constraints between pods become domains
and rules about one node; nodes that exist are filled; what is left is packed onto new nodes, NodePools of greater
weight first, by price within (`bulk`); Karpenter's own way competes where there are few pods (`plans`); every new node
keeps the instance types that would serve nearly as cheaply (`choosing`); and what could not be placed says why
(`explain`).

Pure: same snapshot, same catalogue, same answer, byte for byte.

Plans that compete: in bulk by price, and for few pods Karpenter's own way as well. The best is kept.

Where both place as many pods the cheaper wins, and of equal ones that with fewer nodes.

Pods that stay with the claim opened for them, once all others are placed: is their spread still kept?

What the pods on new nodes cost at least: the linear-programming bound by which a plan is measured.

It knows what each pod wants of its node and the rules about one node, but neither domains that were chosen, nor limits,
nor weights, nor that nodes are whole: what these cost is the gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.bulk_scheduling import plan_in_bulk
from journeyman.core.scheduling.domain_counts import Ledger, is_wide
from journeyman.core.scheduling.existing_nodes import is_leaving
from journeyman.core.scheduling.instance_type_choice import planned_claims
from journeyman.core.scheduling.new_nodes import Items
from journeyman.core.scheduling.offering.market import open_market, worth_considering
from journeyman.core.scheduling.offering.reserved import Reservations
from journeyman.core.scheduling.options import MinValuesPolicy, Options, PreferencePolicy
from journeyman.core.scheduling.packing import Problem, lower_bound
from journeyman.core.scheduling.pods import is_currently_reschedulable, is_provisionable
from journeyman.core.scheduling.problem import Asked, Draft, Ground, Kept, OpenNode, Question, Unit, ask
from journeyman.core.scheduling.reserved_placements import may_keep_from_a_place, with_reserved_placements
from journeyman.core.scheduling.results import DeviceGrant, PlannedClaim, PodError, Results
from journeyman.core.scheduling.sequential import Way, place_one_by_one
from journeyman.core.state.snapshot import Snapshot

__all__ = ["Options", "Scheduler", "pods_to_place", "solve"]


def solve(
    snapshot: Snapshot,
    catalogue: Catalogue,
    *,
    pods: Sequence[Pod] | None = None,
    without_nodes: frozenset[str] = frozenset(),
    options: Options = Options(),  # noqa: B008 - a frozen value
) -> Results:
    """Place pods on existing and new nodes.

    Args:
        snapshot: The cluster.
        catalogue: What can be launched, by NodePool.
        pods: The pods to place, wherever they are now; by default `pods_to_place`.
        without_nodes: Names of StateNodes that are to be thought away, with the pods on them (consolidation asks what
            would become of a cluster without them).
        options: Policies, and how much choice of instance types a claim keeps.

    Returns:
        New claims by pool and pods, fillings of existing nodes, and an error for every pod without a place.
    """
    return Scheduler(snapshot, catalogue, options).solve(pods, without_nodes)


def pods_to_place(snapshot: Snapshot) -> tuple[Pod, ...]:
    """Provisionable pods, and those on nodes marked for deletion that can be moved now.

    Restates: karpenter pkg/controllers/provisioning/provisioner.go `Schedule`.
    """
    pending = [pod for pod in snapshot.pods if is_provisionable(pod)]
    leaving = [
        pod
        for node in snapshot.state_nodes
        if is_leaving(node)
        for pod in node.pods
        if is_currently_reschedulable(pod, snapshot.pdbs, snapshot.now)
    ]
    return (*pending, *leaving)


class Scheduler:
    """One snapshot and catalogue, prepared once, for one or many questions (consolidation asks many)."""

    def __init__(self, snapshot: Snapshot, catalogue: Catalogue, options: Options = Options()) -> None:  # noqa: B008
        self.snapshot = snapshot
        self._ground = Ground.of(snapshot, catalogue, options)

    def solve(self, pods: Sequence[Pod] | None = None, without_nodes: frozenset[str] = frozenset()) -> Results:
        """See `solve`."""
        considered = pods_to_place(self.snapshot) if pods is None else tuple(pods)
        if not considered:  # most runs of a cluster at rest, or of one that waits for its nodes
            return Results(set_aside_pools=self._ground.set_aside, remarks=self._ground.remarks)
        asked = with_reserved_placements(ask(self._ground, considered, without_nodes))
        plan = answer(asked)
        return Results(
            new_claims=tuple(sorted(plan.claims, key=lambda c: (c.node_pool, c.pods))),
            existing=plan.existing,
            pod_errors=dict(sorted({**asked.errors, **self._errors(asked, plan)}.items())),
            price=plan.price,
            lower_bound=lower_bound_of(asked.question, plan.draft.opened) if self._ground.options.bound else 0.0,
            set_aside_pools=self._ground.set_aside,
            remarks=self._ground.remarks,
            devices=plan.devices,
        )

    @property
    def _unusable(self) -> Mapping[str, str]:
        """NodePools that sit this pass out, with why; also those that could not be read in the first place."""
        unread = {item.name: item.why for item in self.snapshot.set_aside if item.kind == "NodePool"}
        return {**unread, **self._ground.set_aside}

    def _errors(self, asked: Asked, plan: Plan) -> dict[str, PodError]:
        """An error for each pod without a place; pods of a class share it."""
        if not plan.unplaced:
            return {}
        # A cold start that leaves nobody out does without.
        from journeyman.core.scheduling.explaining.explain import Explainer  # noqa: PLC0415

        question = asked.question
        explainer = Explainer(
            axes=question.axes,
            stalls=question.stalls,
            headroom=plan.draft.headroom,
            set_aside=self._unusable,
            others=(
                *(entry.group for entry in question.repelled),
                *(group for row in question.rows for group in row.anti_affinities if group.id not in row.soft),
            ),
            strict_min_values=question.options.min_values is MinValuesPolicy.STRICT,
        )
        errors: dict[str, PodError] = {}
        for family, keys in plan.unplaced.items():
            row = question.ladders[family][-1]
            stuck = plan.draft.stuck.get(family, "")
            error = explainer.explain(question.rows[row], question.requests[row], stuck=stuck)
            errors.update(dict.fromkeys(keys, error))
        return errors


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


def no_longer_level(question: Question, draft: Draft, kept: Sequence[Kept]) -> tuple[Kept, ...]:
    """Those of them that are too many where they are, as a finished draft has it."""
    spread = [entry for entry in kept if any(is_wide(s.group) for s in question.rows[entry.row].spreads)]
    if not spread:
        return ()
    ledger = Ledger(question)
    ledger.enter_draft(draft)
    return tuple(e for e in spread if ledger.is_out_of_place(e.row, question.existing.nodes[e.node].labels))


def lower_bound_of(question: Question, nodes: Sequence[OpenNode]) -> float:
    """A price per hour that no plan for the pods on these nodes undercuts; 0 without any."""
    counts = np.zeros(len(question.rows), dtype=np.int64)
    for node in nodes:
        for row, count in node.pods:
            counts[question.ladders[question.family[row]][-1]] += count  # what they insist on
    if not counts.any():
        return 0.0
    caps = question.caps.for_new_nodes(counts)
    items = Items.of(question, caps, [Unit(row=int(r), count=int(counts[r])) for r in np.flatnonzero(counts)])
    market = open_market(question.stalls, items.wishes)
    reserved = Reservations.of((stall.template for stall in question.stalls), ())
    width = len(question.axes)
    offers = np.flatnonzero(worth_considering(market, np.flatnonzero(items.requests[:, :width].any(axis=0))))
    return lower_bound(
        Problem(
            counts=items.counts,
            requests=items.requests,
            allowed=market.allowed[:, items.wish_of],
            sizes=np.concatenate((market.sizes[offers], np.tile(caps.caps, (len(offers), 1))), axis=1),
            prices=(market.prices - market.fees)[offers],
            signatures=market.signatures[offers],
            loose=items.loose,
            bound=items.bound,
            stock=market.stock[offers],
            stocks=np.array([reserved.left[name] for name in market.reservations], dtype=np.int64),
        )
    )
