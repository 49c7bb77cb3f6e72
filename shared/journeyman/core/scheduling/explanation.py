"""Explains why a pod is unschedulable: per NodePool, and the smallest change that would let it schedule.

Each NodePool filters its instance types step by step (taints, requirements, resources, offerings, limits, minValues);
the first step that leaves none is the reason, with counts. Reasons of the NodePool that came closest come first.

The smallest change is the first that suffices of: a toleration, another label value, a smaller request, a higher limit,
waiting for an offering, volumes elsewhere, a relaxed constraint, one more NodePool. A change suffices if an empty new
node of some NodePool would take the pod afterwards; rules about other pods are looked at last.

Availability is filtered last, so that every filter can be repeated with a change. Offerings are computed once per set
of terms, however many pods share them.

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaim.go `InstanceTypeFilterError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Taint, Toleration
from journeyman.core.api.resources import CPU, MEMORY, PODS, format_amount
from journeyman.core.scheduling.arrays import Bools, Ints, distinct, every
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.nodeclaim_templates import achievable, distinct_enough
from journeyman.core.scheduling.nodepool_options import NodePoolOptions
from journeyman.core.scheduling.pod_classes import PodClass
from journeyman.core.scheduling.requirements import EMPTY, Requirements, likely_meant, of, requirement
from journeyman.core.scheduling.results import PodError, PoolReason
from journeyman.core.scheduling.taints import format_taint, untolerated
from journeyman.core.scheduling.topology import TopologyGroup

# Most helpful first: the nearer a pool came to taking the pod, the more its reason says.
_RANKS: Final = ("rules", "min-values", "limits", "offerings", "resources", "requirements", "taints", "not-usable")
# What the stock of an offering is marked with when it could not be had, in words
_STOCK: Final = {"InsufficientCapacity": "out of stock", "SpotInterruption": "interrupted lately", "": "unavailable"}
_NAMED_RESOURCES: Final = 2

MAX_SEARCHES: Final = 256
"""For so many kinds of pods the smallest change is looked for; a cluster with more has one cause, not thousands."""


class Explainer:
    """Explains the unschedulable pods of one pass; pods with equal constraints share one explanation."""

    def __init__(
        self,
        *,
        axes: Sequence[str],
        pools: Sequence[NodePoolOptions],
        headroom: Sequence[Headroom],
        set_aside: Mapping[str, str],
        others: Iterable[TopologyGroup] = (),
        strict_min_values: bool = True,
        searches: int = MAX_SEARCHES,
    ) -> None:
        """Explain how things stand at the end of the pass.

        Args:
            axes: Resource names.
            pools: All NodePools in use, in order.
            headroom: Their limits as they stand now.
            set_aside: NodePools not in use, with why.
            others: Whom other pods keep away from, whether they run or are to be placed as well.
            strict_min_values: Whether a pool whose minValues cannot be met opens no node.
            searches: For how many kinds of pods the smallest change is looked for at most (0: where nobody reads it).
        """
        self._axes = axes
        self._pools, self._headroom = pools, headroom
        self._strict_min_values = strict_min_values
        self._set_aside = set_aside
        self._others = tuple({group.id: group for group in others}.values())
        self._searches = searches
        self._known: dict[object, PodError] = {}

    @cached_property
    def _views(self) -> tuple[NodePoolView, ...]:
        """Made when first asked, so that a pass that leaves nothing pays nothing."""
        both = zip(self._pools, self._headroom, strict=True)
        return tuple(NodePoolView(pool, room, strict_min_values=self._strict_min_values) for pool, room in both)

    def explain(self, cls: PodClass, request: Ints, *, stuck: str = "") -> PodError:
        """The error of a class's pods that no existing node and no NodePool took.

        Args:
            cls: The class at its last rung, where nothing is merely preferred.
            request: What one pod takes, along the axes.
            stuck: What the rules about other pods say, in words.
        """
        rules = tuple(group.id for group in (*(s.group for s in cls.spreads), *cls.anti_affinities, *cls.affinities))
        key = (cls.terms, cls.volume_terms, cls.tolerations, request.tobytes(), stuck, rules, cls.ports)
        if key not in self._known:
            self._known[key] = self._explain(cls, pod_requirements_of(cls, request), stuck)
        return self._known[key]

    def _explain(self, cls: PodClass, wanted_node: PodRequirements, stuck: str) -> PodError:
        unusable = [PoolReason(node_pool=n, kind="not-usable", detail=why) for n, why in self._set_aside.items()]
        case = UnschedulableCase(
            cls=cls, wanted_node=wanted_node, axes=self._axes, pools=self._views, others=self._others
        )
        found = [_reason(pool, case, stuck or _rules_in_words(case)) for pool in self._views]
        reasons = sorted((*found, *unusable), key=lambda r: (_RANKS.index(r.kind), r.node_pool))
        details = {r.node_pool: r.detail for r in reasons}
        if not found:
            why = "; ".join(f"{name}: {detail}" for name, detail in details.items())
            message = f"no NodePool can be used ({why})" if why else "there is no NodePool: create one"
            return PodError(kind="no-nodepool", message=message, by_node_pool=details, reasons=tuple(reasons))
        message = "; ".join(f"NodePool {name}: {detail}" for name, detail in details.items())
        change = self._change(case)
        return PodError(
            kind="limits" if reasons[0].kind == "limits" else "unschedulable",
            message=f"{message}. Smallest change: {change}" if change else message,
            by_node_pool=details,
            reasons=tuple(reasons),
            smallest_change=change,
        )

    def _change(self, case: UnschedulableCase) -> str:
        if self._searches <= 0 or case.cls.claims:  # what would be enough of devices is not looked for
            return ""
        self._searches -= 1
        return smallest_change(case)


def _reason(pool: NodePoolView, case: UnschedulableCase, stuck: str) -> PoolReason:
    """The first step at which a pool has nothing left for the pod."""
    found = pool.find(case.wanted_node)
    kind, detail, until = _first_failure(pool, case, found, stuck)
    return PoolReason(
        node_pool=pool.name,
        kind=kind,
        detail=detail,
        types_total=pool.types_total,
        types_suiting=int(found.suiting.sum()),
        types_fitting=int(found.fitting.sum()),
        types_available=int(found.had.sum()),
        unavailable_until=until,
    )


def _first_failure(
    pool: NodePoolView, case: UnschedulableCase, found: FilteredTypes, stuck: str
) -> tuple[str, str, datetime | None]:
    wanted_node, axes = case.wanted_node, case.axes
    taint = pool.untolerated(wanted_node)
    if taint is not None:
        return "taints", f"the pod did not tolerate taint {format_taint(taint)}", None
    if not found.suiting.any():
        unmet = pool.unmet(wanted_node) or "all that the pod requires of its node"
        none = f"none of its {pool.types_total} instance types has {unmet}"
        return "requirements", f"{pool.refusal(wanted_node) or none}{_volumes_in_words(case.cls)}", None
    if not found.fitting.any():
        return "resources", _too_small(pool, wanted_node, found, axes), None
    fits = f"{_needs(pool, wanted_node, found, axes)}{int(found.fitting.sum())} of {pool.types_total} types fit"
    if not found.had.any():
        words, until = _out_of_stock(pool, wanted_node, found.rows)
        return "offerings", f"{fits}, none offered{words}{_volumes_in_words(case.cls)}", until
    if not found.allowed.any():
        left = ", ".join(
            describe_amount(name, max(int(n), 0))
            for name, n in zip(pool.headroom.resources, pool.headroom.left, strict=True)
        )
        return "limits", f"{fits}, its limits leave no room for any of them (left: {left})", None
    alike = pool.too_alike(found.allowed)
    if alike:
        return "min-values", f"{fits}, too few to choose from for its minValues ({alike})", None
    if pool.only_reserved(found):
        return "offerings", f"{fits}, but only as reserved capacity, of which none is left", None
    return "rules", f"{fits}, but {stuck}", None


def _rules_in_words(case: UnschedulableCase) -> str:
    """What to say if nobody knows more than that other pods are in the way: whose rules these may be."""
    own = "; ".join(rule for _, rule in rules_at_work(case.cls))
    if not own:
        return "the rules of other pods keep the pod off all of them"
    return f"the pod's rules keep it off all of them: {own}"


def _volumes_in_words(cls: PodClass) -> str:
    """Where the pod's volumes can be had, if that is not everywhere."""
    return "" if cls.volume_terms == (EMPTY,) else f" (its volumes: {where_volumes_are(cls)})"


def _needs(pool: NodePoolView, wanted_node: PodRequirements, found: FilteredTypes, axes: Sequence[str]) -> str:
    """The resources that rule out the most types, if any do."""
    sizes = pool.pool.sizes[found.suiting]
    short = [
        (int((sizes[:, a] < wanted_node.request[a]).sum()), name, int(wanted_node.request[a]))
        for a, name in enumerate(axes)
    ]
    worst = sorted((s for s in short if s[0]), key=lambda s: (-s[0], s[1]))[:_NAMED_RESOURCES]
    return f"needs {' and '.join(describe_amount(name, asked) for _, name, asked in worst)}: " if worst else ""


def _too_small(pool: NodePoolView, wanted_node: PodRequirements, found: FilteredTypes, axes: Sequence[str]) -> str:
    """Which resources are short or not there at all, and how much of each there is at most."""
    sizes = pool.pool.sizes[found.suiting]
    absent = [name for a, name in enumerate(axes) if wanted_node.request[a] > 0 >= sizes[:, a].max()]
    if absent:
        return f"none of the {len(sizes)} types that suit has any {' or '.join(absent)}"
    alone = [a for a in range(len(axes)) if (sizes[:, a] < wanted_node.request[a]).all()]
    most = ", ".join(describe_amount(axes[a], int(sizes[:, a].max())) for a in alone)
    together = f" (at most {most} for pods)" if most else " (each is enough on some type, but on none together)"
    return f"{_needs(pool, wanted_node, found, axes)}none of the {len(sizes)} types that suit is large enough{together}"


def _out_of_stock(pool: NodePoolView, wanted_node: PodRequirements, rows: Bools) -> tuple[str, datetime | None]:
    """Where nothing can be had, why and until when, from the offerings that would have done."""
    causes = pool.lack(rows)
    until = min((time for _, time in causes if time is not None), default=None)
    reasons = sorted({reason for reason, _ in causes})
    why = ", ".join(_STOCK.get(reason, reason) for reason in reasons)
    when = f" until {until:%H:%M} UTC" if until is not None else " now" if reasons == [""] else ""
    return f"{_where(wanted_node)}: {why}{when}", until


def _where(wanted_node: PodRequirements) -> str:
    """The zones and capacity types that the pod is bound to, in words."""
    words = ""
    for key, name in ((labels.ZONE, "zone"), (labels.CAPACITY_TYPE, "capacity type")):
        wanted_values = [term.get(key) for term in wanted_node.terms]
        values = {
            value for wanted in wanted_values if wanted is not None and not wanted.complement for value in wanted.values
        }
        if values and None not in wanted_values:
            words += f" in {name} {' or '.join(sorted(values))}"
    return words


_SHORT_NAMES = {labels.ZONE: "zone", labels.CAPACITY_TYPE: "capacity type", labels.INSTANCE_TYPE: "instance type"}


class UnschedulableCase(Struct, frozen=True, kw_only=True, eq=False):
    """A pod without a place: its class, what it asks, and the pools there are.

    `others` is whom other pods keep away from, whether they run or are to be placed as well.
    """

    cls: PodClass
    wanted_node: PodRequirements
    axes: Sequence[str]
    pools: Sequence[NodePoolView]
    others: Sequence[TopologyGroup]


def smallest_change(case: UnschedulableCase) -> str:
    """The change, in words."""
    if any(pool.takes(case.wanted_node) for pool in case.pools):
        return _relaxed_rule(case)
    for attempt in (_tolerated, _allowed_value, _smaller_request, _raised_limit, _later, _moved_volumes):
        found = attempt(case)
        if found:
            return found
    return "create a NodePool that suits it"


def _tolerated(case: UnschedulableCase) -> str:
    taints = {format_taint(t): t for pool in case.pools if (t := pool.untolerated(case.wanted_node)) is not None}
    for name in sorted(taints):
        wanted_node = case.wanted_node.tolerating(taints[name])
        if any(pool.takes(wanted_node) for pool in case.pools):
            return f"tolerate taint {name}"
    return ""


def _allowed_value(case: UnschedulableCase) -> str:
    """One label that is written as it was probably meant, or not asked about: with the cheapest value that would do."""
    asked = {key for term in case.cls.terms for key in term}
    for key in (*(k for k in _SHORT_NAMES if k in asked), *sorted(asked - _SHORT_NAMES.keys())):
        found = _respelled(case, key) or _without(case, key)
        if found:
            return found
    return ""


def _respelled(case: UnschedulableCase, key: str) -> str:
    known = {name for pool in case.pools for name in pool.pool.template.requirements}
    if key in known or key in labels.WELL_KNOWN:
        return ""
    meant = likely_meant(key, known)
    terms = [of(replace(r, key=meant) if k == key else r for k, r in t.items()) for t in case.cls.terms]
    wanted_node = pod_requirements_of(case.cls, case.wanted_node.request, terms)
    return f"write label {key} as {meant}" if meant and any(pool.takes(wanted_node) for pool in case.pools) else ""


def _without(case: UnschedulableCase, key: str) -> str:
    terms = [Requirements({k: r for k, r in term.items() if k != key}) for term in case.cls.terms]
    wanted_node = pod_requirements_of(case.cls, case.wanted_node.request, terms)
    taking = [pool for pool in case.pools if pool.takes(wanted_node)]
    if not taking:
        return ""
    value = min(filter(None, (_cheapest_value(pool, wanted_node, key) for pool in taking)), default=(0.0, ""))[1]
    if value and any(pool.takes(_also(case, key, value)) for pool in taking):
        return f"allow {_SHORT_NAMES[key]} {value}" if key in _SHORT_NAMES else f"allow label {key}={value}"
    return f"drop its requirement on {_SHORT_NAMES.get(key, f'label {key}')}"


def _also(case: UnschedulableCase, key: str, value: str) -> PodRequirements:
    """The same with one more value allowed for a label."""
    terms = [
        Requirements(
            {**term, key: requirement(key, "In", (*term[key].values, value) if not term[key].complement else (value,))}
        )
        for term in case.cls.terms
        if key in term
    ]
    return pod_requirements_of(case.cls, case.wanted_node.request, terms)


def _cheapest_value(pool: NodePoolView, wanted_node: PodRequirements, key: str) -> tuple[float, str] | None:
    """(Price, value of the label) of the pool's cheapest offering for the pod; None if that leaves the label open."""
    template = pool.pool.template
    table, found = template.table, pool.find(wanted_node)
    rows = np.flatnonzero(found.rows & table.available & found.allowed[table.row_type])
    price = float(table.prices[rows].min())
    codes, values = table.row_values(key)
    cheapest = distinct(codes[rows[table.prices[rows] == price]])
    own = template.requirements.get(key)
    open_to = min(values[code] or "" for code in cheapest)
    value = open_to or (own.single if own is not None else None)
    return (price, value) if value else None


def _smaller_request(case: UnschedulableCase) -> str:
    """The largest amount of one resource that some node would have; of several resources the one that changes least."""
    request = case.wanted_node.request
    found: list[tuple[float, str, int]] = []
    for a in map(int, np.flatnonzero(request)):
        name, asked = case.axes[a], int(request[a])
        most = max((_most(pool, case.wanted_node, a) for pool in case.pools), default=0)
        if name != PODS and 0 <= most < asked and (most or name not in (CPU, MEMORY)):
            found.append((1 - most / asked, name, most))
    if not found:
        return ""
    _, name, most = min(found)
    asked = int(request[list(case.axes).index(name)])
    if not most:
        return f"request no {name}, or create a NodePool whose instance types have it"
    return f"request at most {describe_amount(name, most)} (it asks for {describe_amount(name, asked)})"


def _most(pool: NodePoolView, wanted_node: PodRequirements, axis: int) -> int:
    """How much of one resource a pod could ask of the pool, all else as it is; -1 if it would not help."""
    if pool.untolerated(wanted_node) is not None:
        return -1
    request: Ints = wanted_node.request.copy()
    request[axis] = 0
    allowed = pool.find(replace(wanted_node, request=request)).allowed
    request[axis] = most = int(pool.pool.sizes[allowed, axis].max(initial=-1))
    return most if most >= 0 and pool.takes(replace(wanted_node, request=request)) else -1


def _raised_limit(case: UnschedulableCase) -> str:
    """The least that a pool's limits would have to grow: fewest resources first, then the least in proportion."""
    found = [raised for pool in case.pools if (raised := _least_raise(pool, case.wanted_node)) is not None]
    return min(found)[2] if found else ""


def _least_raise(pool: NodePoolView, wanted_node: PodRequirements) -> tuple[int, float, str] | None:
    """(Resources to raise, by how much in proportion to a node, in words) for one pool; None if that would not help."""
    types = np.flatnonzero(pool.find(wanted_node).had)
    if not len(types) or pool.untolerated(wanted_node) is not None:
        return None
    room = pool.headroom
    short = np.maximum(room.costs[types] - room.left, 0)
    shares = (short / np.maximum(room.costs[types], 1)).sum(axis=1)
    counts = np.count_nonzero(short, axis=1)
    best = int(np.lexsort((shares, counts))[0])
    if not counts[best]:
        return None
    lacking = ((name, int(n)) for name, n in zip(room.resources, short[best], strict=True) if n)
    words = " and ".join(f"{name} by {format_amount(name, n)}" for name, n in lacking)
    return int(counts[best]), float(shares[best]), f"raise NodePool {pool.name}'s limit on {words}"


def _later(case: UnschedulableCase) -> str:
    """The earliest time at which an offering may be had again that would do."""
    times: list[datetime] = []
    for pool in case.pools:
        if pool.untolerated(case.wanted_node) is None:
            table, found = pool.pool.template.table, pool.find(case.wanted_node)
            lost = found.rows & ~table.available & pool.room[table.row_type]
            times += [until for _, until in pool.lack(lost) if until is not None]
    return f"wait until {min(times):%Y-%m-%d %H:%M} UTC, when stock is looked for again" if times else ""


def _moved_volumes(case: UnschedulableCase) -> str:
    wanted_node = replace(case.wanted_node, terms=case.cls.terms)
    helps = case.cls.volume_terms != (EMPTY,) and any(pool.takes(wanted_node) for pool in case.pools)
    return f"have its volumes elsewhere than {where_volumes_are(case.cls)}" if helps else ""


def where_volumes_are(cls: PodClass) -> str:
    """Where the pods' volumes can be had, in words."""
    return " or ".join(" and ".join(map(str, term.values())) for term in cls.volume_terms)


def _relaxed_rule(case: UnschedulableCase) -> str:
    """The one rule about other pods that can be in the way, where there is but one."""
    rules, keys = list(rules_at_work(case.cls)), _kept_away_over(case)
    if len(rules) == 1 and not keys:
        verb, rule = rules[0]
        return f"{verb} its {rule}"
    if keys and not rules:
        return f"relax the pod anti-affinity of other pods over {' and '.join(keys)}, which keeps it away"
    return "relax its rules about other pods, or theirs about it"


def _kept_away_over(case: UnschedulableCase) -> list[str]:
    """The labels over which other pods keep away from the class's, by rules that it does not have itself."""
    cls, own = case.cls, {group.id for group in case.cls.anti_affinities}
    wide = (g for g in case.others if g.id not in own and g.key != labels.HOSTNAME)
    return sorted({group.key for group in wide if group.counts(cls.namespace, cls.labels)})


def rules_at_work(cls: PodClass) -> Iterator[tuple[str, str]]:
    """Each rule that could keep the class's pods off a new node, in words, and what could be done with it.

    A new node has a host name of its own, so that no spread or anti-affinity over host names closes it.
    """
    for spread in cls.spreads:
        if spread.key != labels.HOSTNAME:
            least = f", minDomains {spread.min_domains}" if spread.min_domains > 1 else ""
            yield "relax", f"topology spread over {spread.key} (maxSkew {spread.max_skew}{least})"
    for group in cls.anti_affinities:
        if group.key != labels.HOSTNAME:
            yield "give up", f"pod anti-affinity over {group.key} to {group.in_words}"
    for group in cls.affinities:
        yield "give up", f"pod affinity over {group.key} to {group.in_words}"
    for port in cls.ports:
        yield "give up", f"host port {port.port}"


def describe_amount(name: str, amount: int) -> str:
    """An amount with the resource's name, as one says it."""
    return f"{amount / 1000:g} vCPU" if name == CPU else f"{format_amount(name, amount)} {name}"


Terms = tuple[Requirements, ...]


class PodRequirements(Struct, frozen=True, kw_only=True, eq=False):
    """What a pod asks of its node: one of `terms`, its tolerations, its request along the axes."""

    terms: Terms
    tolerations: tuple[Toleration, ...]
    request: Ints

    def tolerating(self, taint: Taint) -> PodRequirements:
        """The same with one more toleration, for just this taint."""
        extra = Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)
        return replace(self, tolerations=(*self.tolerations, extra))


def pod_requirements_of(cls: PodClass, request: Ints, terms: Iterable[Requirements] | None = None) -> PodRequirements:
    """What a pod of the class asks; with other terms of its own if given."""
    own = cls.terms if terms is None else terms
    terms = dict.fromkeys(term & volumes for term in own for volumes in cls.volume_terms)
    return PodRequirements(terms=tuple(terms), tolerations=cls.tolerations, request=request)


class FilteredTypes(Struct, frozen=True, kw_only=True, eq=False):
    """Types of a pool, each step of those before. `suiting`: whether or not it can be had, some offering suits.

    `had` are large enough and have such an offering now; `allowed` are within the limits as well. `rows` are the
    offerings that suit, of types large enough.
    """

    suiting: Bools
    fitting: Bools
    had: Bools
    allowed: Bools
    rows: Bools


class NodePoolView:
    """One NodePool to ask. Its limits are looked at as they stand when it is made."""

    def __init__(self, pool: NodePoolOptions, headroom: Headroom, *, strict_min_values: bool = True) -> None:
        """See what the pool has for anybody."""
        self.pool = pool
        self.headroom = headroom
        self.strict_min_values = strict_min_values
        table = pool.template.table
        usable: Bools = pool.usable[table.row_type]
        self.own_rows: Bools = table.rows_meeting(pool.template.requirements) & usable
        self.room: Bools = headroom.allows()
        self.types_total = int(self._types(self.own_rows).sum())
        self._rows: dict[Terms, Bools] = {}

    @property
    def name(self) -> str:
        """The NodePool's name."""
        return self.pool.template.name

    @cached_property
    def _lack(self) -> tuple[Ints, tuple[tuple[str, datetime | None], ...]]:
        """Why each offering cannot be had, as (number, why and until when by number)."""
        numbers: dict[tuple[str, datetime | None], int] = {}
        offered = (o for t in self.pool.template.table.types for o in t.offerings)
        codes = [numbers.setdefault((o.unavailable_reason, o.unavailable_until), len(numbers)) for o in offered]
        return np.array(codes, dtype=np.int64), tuple(numbers)

    def lack(self, rows: Bools) -> tuple[tuple[str, datetime | None], ...]:
        """Why these offerings cannot be had and until when, each cause once."""
        codes, causes = self._lack
        return tuple(causes[n] for n in distinct(codes[rows]))

    @property
    def taints(self) -> tuple[Taint, ...]:
        """The taints of its nodes."""
        return tuple(self.pool.template.node_pool.spec.template.spec.taints)

    def untolerated(self, wanted_node: PodRequirements) -> Taint | None:
        """The first taint that keeps the pod away."""
        return untolerated(self.taints, wanted_node.tolerations)

    def refusal(self, wanted_node: PodRequirements) -> str:
        """Why none of its terms can be met by the pool's own labels, for the first of them; empty if one can."""
        offered = self.pool.template.requirements
        refusals = [offered.compatible(t, allow_undefined=labels.WELL_KNOWN) for t in wanted_node.terms]
        if None in refusals:
            return ""
        return next(filter(None, refusals), "contradictory requirements")

    def find(self, wanted_node: PodRequirements) -> FilteredTypes:
        """What it has for the pod, taints aside."""
        table, rows = self.pool.template.table, self.rows(wanted_node.terms)
        large = every(self.pool.sizes >= wanted_node.request)
        suiting = self._types(rows)
        rows = rows & large[table.row_type]
        had = self._types(rows & table.available)
        return FilteredTypes(suiting=suiting, fitting=suiting & large, had=had, allowed=had & self.room, rows=rows)

    def takes(self, wanted_node: PodRequirements) -> bool:
        """Whether a node of the pool could be opened for the pod now, other pods aside."""
        if self.untolerated(wanted_node) is not None:
            return False
        found = self.find(wanted_node)
        return bool(found.allowed.any()) and not self.only_reserved(found) and not self.too_alike(found.allowed)

    def only_reserved(self, found: FilteredTypes) -> bool:
        """Whether all that it has for the pod now draws on reservations, which may run out within a pass."""
        table = self.pool.template.table
        rows = found.rows & table.available & found.allowed[table.row_type]
        return bool((table.row_reservation[rows] >= 0).all())

    def too_alike(self, types: Bools) -> str:
        """Which of the pool's minValues these types do not meet, in words; empty if they meet all that count."""
        if not self.strict_min_values or distinct_enough(self.pool, types):
            return ""
        wanted = self.pool.template.min_values
        return ", ".join(
            f"{n} of {wanted[k]} for {k}" for k, n in achievable(self.pool, types).items() if n < wanted[k]
        )

    def rows(self, terms: Terms) -> Bools:
        """The offerings that suit one of the terms, whatever their size, and whether they can be had or not."""
        known = self._rows.get(terms)
        if known is None:
            template = self.pool.template
            known = np.zeros(len(template.table.row_type), dtype=bool)
            for term in terms:
                if template.requirements.compatible(term, allow_undefined=labels.WELL_KNOWN) is None:
                    known |= template.table.rows_meeting(template.narrowed(term))
            known &= self.own_rows
            self._rows[terms] = known
        return known

    def unmet(self, wanted_node: PodRequirements) -> str:
        """What no type of the pool has, in words, for the first term of which that can be said."""
        template = self.pool.template
        found = (template.table.unmet(template.narrowed(term)) for term in wanted_node.terms)
        return next(filter(None, found), "")

    def _types(self, rows: Bools) -> Bools:
        table = self.pool.template.table
        found: Bools = np.zeros(len(table.types), dtype=bool)
        found[table.row_type[rows]] = True
        return found
