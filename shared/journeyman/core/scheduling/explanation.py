"""Explains why a pod is unschedulable: per NodePool, and the smallest change that would let it schedule.

Each NodePool filters its instance types step by step (taints, requirements, resources, offerings, limits, minValues);
the first step that leaves none is the reason, with counts. The NodePool that passed the most steps comes first.

The smallest change is the first of these that suffices: a toleration, another label value, a smaller request, a higher
limit, waiting for an offering, volumes elsewhere, a relaxed constraint, one more NodePool. A change suffices if an empty
new node of some NodePool would then take the pod; constraints about other pods are considered last.

Availability is filtered last, so that every filter can be repeated with a change. Offerings are computed once per set
of terms and shared by all pods with these terms.

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaim.go `InstanceTypeFilterError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Taint, Toleration
from journeyman.core.api.resources import CPU, MEMORY, PODS, describe_amount, format_amount
from journeyman.core.scheduling.arrays import Bools, Ints, distinct, every
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.nodeclaim_templates import achievable, distinct_enough
from journeyman.core.scheduling.nodepool_options import NodePoolOptions
from journeyman.core.scheduling.pod_classes import PodClass
from journeyman.core.scheduling.requirements import EMPTY, Requirements, likely_meant, of, requirement
from journeyman.core.scheduling.results import Effort, EffortSpentError, PodError, PoolReason
from journeyman.core.scheduling.topology import TopologyGroup
from journeyman.core.state.taints import format_taint, untolerated

# Most helpful first: the NodePool that passed the most filters.
_RANKS: Final = ("rules", "min-values", "limits", "offerings", "resources", "requirements", "taints", "not-usable")
# Why an offering is unavailable, as text
_UNAVAILABLE_REASONS: Final = {
    "InsufficientCapacity": "out of stock",
    "NodeClassUnsupported": "refused with the settings of its NodeClass",
    "SpotInterruption": "interrupted lately",
    "CapacityReservationInterruption": "interrupted lately",
    "": "unavailable",
}
_NAMED_RESOURCES: Final = 2
_NAMED_DAEMONS: Final = 3

MAX_SEARCHES: Final = 256
"""The number of pod classes for which the smallest change is searched; further classes usually share a cause."""


MAX_SEARCH: Final = 130_000
"""The effort for one pod class: for dozens of labels in dozens of terms no single change would help anyway."""
_PER_TERM: Final = 150
_PER_CHANGE: Final = 20


class Explainer:
    """Explains the unschedulable pods of one pass; pods with equal constraints share one explanation."""

    def __init__(
        self,
        *,
        axes: Sequence[str],
        pools: Sequence[NodePoolOptions],
        headroom: Sequence[Headroom],
        invalid_objects: Mapping[str, str],
        others: Iterable[TopologyGroup] = (),
        strict_min_values: bool = True,
        left_out: Mapping[str, Sequence[str]] = MappingProxyType({}),
        searches: int = MAX_SEARCHES,
        effort: Effort | None = None,
    ) -> None:
        """Explain the state at the end of the pass.

        Args:
            axes: Resource names.
            pools: All NodePools in use, in order.
            headroom: What is left of their limits at the end of the pass.
            invalid_objects: The unusable NodePools, with the reason.
            others: The groups of required anti-affinity of other pods, running or scheduled in this pass.
            strict_min_values: Whether a NodePool whose minValues cannot be met launches no node.
            left_out: By NodePool, the DaemonSets without which its nodes are planned.
            searches: The most pod classes for which the smallest change is searched.
            effort: Limits the work; by default nothing does. Pods that it does not suffice for get a short error.
        """
        self._effort = effort if effort is not None else Effort()
        self._axes = axes
        self._pools, self._headroom = pools, headroom
        self._strict_min_values = strict_min_values
        self._invalid_objects = invalid_objects
        self._left_out = left_out
        self._others = tuple({group.id: group for group in others}.values())
        self._searches = searches
        self._errors_by_case: dict[object, PodError] = {}

    @cached_property
    def _views(self) -> tuple[NodePoolView, ...]:
        """Return a view of each NodePool; lazy, because most passes have no unschedulable pods."""
        both = zip(self._pools, self._headroom, strict=True)
        return tuple(NodePoolView(pool, headroom, strict_min_values=self._strict_min_values) for pool, headroom in both)

    def explain(self, cls: PodClass, request: Ints, *, stuck: str = "") -> PodError:
        """Return the error of a class's unschedulable pods.

        Args:
            cls: The class at its last relaxation level, without preferences.
            request: The requests of one pod, by axis.
            stuck: The constraint about other pods that the pod does not meet, as text.
        """
        rules = tuple(group.id for group in (*(s.group for s in cls.spreads), *cls.anti_affinities, *cls.affinities))
        key = (cls.terms, cls.volume_terms, cls.tolerations, request.tobytes(), stuck, rules, cls.ports)
        if key not in self._errors_by_case:
            self._errors_by_case[key] = self._explain(cls, pod_requirements_of(cls, request), stuck)
        return self._errors_by_case[key]

    def _explain(self, cls: PodClass, pod_requirements: PodRequirements, stuck: str) -> PodError:
        try:
            self._effort.spend(_PER_TERM * len(pod_requirements.terms) * len(self._pools))
        except EffortSpentError:
            message = (
                "no node fits it; it has so many constraints that the reasons were not searched for. Simplify them"
            )
            return PodError(kind="unschedulable", message=message)
        unusable = [PoolReason(node_pool=n, kind="not-usable", detail=why) for n, why in self._invalid_objects.items()]
        case = UnschedulableCase(
            cls=cls, pod_requirements=pod_requirements, axes=self._axes, pools=self._views, others=self._others
        )
        by_pool = [
            _reason(pool, case, stuck or _constraints_as_text(case), self._left_out.get(pool.name, ()))
            for pool in self._views
        ]
        reasons = sorted((*by_pool, *unusable), key=lambda r: (_RANKS.index(r.kind), r.node_pool))
        details = {r.node_pool: r.detail for r in reasons}
        if not by_pool:
            why = "; ".join(f"{name}: {detail}" for name, detail in details.items())
            message = f"no NodePool is usable ({why})" if why else "no NodePool exists; create one"
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
        keys = {key for term in case.cls.terms for key in term}
        work = _PER_CHANGE * len(case.pod_requirements.terms) * len(self._pools) * (len(keys) + 4)
        if self._searches <= 0 or case.cls.claims or work > MAX_SEARCH:  # changes to ResourceClaims are not searched
            return ""
        try:
            self._effort.spend(work)
        except EffortSpentError:
            return ""
        self._searches -= 1
        return smallest_change(case)


def _reason(pool: NodePoolView, case: UnschedulableCase, stuck: str, left_out: Sequence[str]) -> PoolReason:
    """Return the first filter that leaves no instance type of the NodePool, with counts."""
    found = pool.find(case.pod_requirements)
    kind, detail, until = _first_failure(pool, case, found, stuck)
    if left_out:
        more = f" and {len(left_out) - _NAMED_DAEMONS} others" if len(left_out) > _NAMED_DAEMONS else ""
        detail += f" (although planned without DaemonSet {', '.join(left_out[:_NAMED_DAEMONS])}{more})"
    return PoolReason(
        node_pool=pool.name,
        kind=kind,
        detail=detail,
        types_total=pool.types_total,
        types_suiting=int(found.suiting.sum()),
        types_fitting=int(found.fitting.sum()),
        types_available=int(found.available.sum()),
        unavailable_until=until,
    )


def _first_failure(
    pool: NodePoolView, case: UnschedulableCase, found: FilteredTypes, stuck: str
) -> tuple[str, str, datetime | None]:
    pod_requirements, axes = case.pod_requirements, case.axes
    taint = pool.untolerated(pod_requirements)
    if taint is not None:
        return "taints", f"did not tolerate taint (taint={format_taint(taint)})", None
    if not found.suiting.any():
        return (*_nothing_suits(pool, case), None)
    if not found.fitting.any():
        return "resources", _too_small(pool, pod_requirements, found, axes), None
    fits = f"{_needs(pool, pod_requirements, found, axes)}{int(found.fitting.sum())} of {pool.types_total} types fit"
    if not found.available.any():
        explanation, until = _unavailable(pool, pod_requirements, found.rows)
        return (
            "offerings",
            f"{fits}, but no instance type has the required offering{explanation}{_volumes_as_text(case.cls)}",
            until,
        )
    if not found.allowed.any():
        limits_left = ", ".join(
            describe_amount(name, max(int(n), 0))
            for name, n in zip(pool.headroom.resources, pool.headroom.left, strict=True)
        )
        return (
            "limits",
            f"{fits}, but all available instance types exceed limits for nodepool (left: {limits_left})",
            None,
        )
    unmet_min_values = pool.too_alike(found.allowed)
    if unmet_min_values:
        return "min-values", f"{fits}, but the minValues requirement is not met ({unmet_min_values})", None
    if pool.only_reserved(found):
        return "offerings", f"{fits}, but only reserved capacity offers them, and none is left", None
    return "rules", f"{fits}, but {stuck}", None


def _nothing_suits(pool: NodePoolView, case: UnschedulableCase) -> tuple[str, str]:
    """Return which requirement no type meets, or what DaemonSets take on types that would do without them."""
    pod_requirements = case.pod_requirements
    if taken := _taken_by_daemons(pool, pod_requirements, case.axes):
        return "resources", f"no instance type has enough resources: {taken}"
    unmet = pool.unmet(pod_requirements) or "all labels that the pod requires"
    none = f"no instance type met all requirements (none of its {pool.types_total} has {unmet})"
    return "requirements", f"{pool.refusal(pod_requirements) or none}{_volumes_as_text(case.cls)}"


def _constraints_as_text(case: UnschedulableCase) -> str:
    """Return the constraints that may exclude the pod, as text; used if the solver named none."""
    own = "; ".join(rule for _, rule in topology_constraints_of(case.cls))
    if not own:
        return "unsatisfiable constraints of other pods"
    return f"unsatisfiable constraints of the pod: {own}"


def _volumes_as_text(cls: PodClass) -> str:
    """Return where the pod's volumes can be attached, as text; empty if anywhere."""
    return "" if cls.volume_terms == (EMPTY,) else f" (its volumes: {where_volumes_are(cls)})"


def _needs(pool: NodePoolView, pod_requirements: PodRequirements, found: FilteredTypes, axes: Sequence[str]) -> str:
    """Return the requests that most types are too small for, as text; empty if there are none."""
    sizes = pool.pool.sizes[found.suiting]
    short = [
        (int((sizes[:, a] < pod_requirements.request[a]).sum()), name, int(pod_requirements.request[a]))
        for a, name in enumerate(axes)
    ]
    worst = sorted((s for s in short if s[0]), key=lambda s: (-s[0], s[1]))[:_NAMED_RESOURCES]
    return f"needs {' and '.join(describe_amount(name, amount) for _, name, amount in worst)}: " if worst else ""


def _too_small(pool: NodePoolView, pod_requirements: PodRequirements, found: FilteredTypes, axes: Sequence[str]) -> str:
    """Return the resources that are missing or too small, with the maximum of each, as text."""
    sizes = pool.pool.sizes[found.suiting]
    taken = _taken_by_daemons(pool, pod_requirements, axes)
    absent = [name for a, name in enumerate(axes) if pod_requirements.request[a] > 0 >= sizes[:, a].max()]
    if absent and taken:
        return f"no instance type has enough resources: {taken}"
    if absent:
        return f"no instance type has enough resources: none of the {len(sizes)} compatible types has {' or '.join(absent)}"
    exceeded = [a for a in range(len(axes)) if (sizes[:, a] < pod_requirements.request[a]).all()]
    maxima = ", ".join(describe_amount(axes[a], int(sizes[:, a].max())) for a in exceeded)
    hint = f" (at most {maxima} for pods)" if maxima else " (each is enough on some type, but on none together)"
    return (
        f"{_needs(pool, pod_requirements, found, axes)}no instance type has enough resources: none of the {len(sizes)} "
        f"compatible types is large enough{hint}{'; ' if taken else ''}{taken}"
    )


def _taken_by_daemons(pool: NodePoolView, pod_requirements: PodRequirements, axes: Sequence[str]) -> str:
    """Return which DaemonSets take what on the largest type that would hold the pod without them; empty if none would."""
    options = pool.pool
    whole = options.sizes + options.overhead
    types = pool.types_for(pod_requirements.terms) & every(whole >= pod_requirements.request)
    if not types.any():
        return ""
    largest = max(np.flatnonzero(types).tolist(), key=lambda t: (*whole[t].tolist(), -t))
    short = np.flatnonzero(options.sizes[largest] < pod_requirements.request).tolist()
    if not short:
        return ""
    parts = [_taken(options, largest, axes[a], int(whole[largest, a])) for a in short[:_NAMED_RESOURCES]]
    return f"on its {options.template.table.types[largest].name} DaemonSets take {' and '.join(parts)}"


def _taken(options: NodePoolOptions, type_index: int, name: str, size: int) -> str:
    uses = [
        (d.requests.get(name, 0), d.name) for d in options.daemons if d.types[type_index] and d.requests.get(name, 0)
    ]
    named = sorted(uses, key=lambda use: (-use[0], use[1]))
    shown = ", ".join(f"{who} {describe_amount(name, amount)}" for amount, who in named[:_NAMED_DAEMONS])
    more = f", {len(named) - _NAMED_DAEMONS} others" if len(named) > _NAMED_DAEMONS else ""
    total = describe_amount(name, sum(amount for amount, _ in named))
    return f"{total} of its {describe_amount(name, size)} ({shown}{more})"


def _unavailable(pool: NodePoolView, pod_requirements: PodRequirements, rows: Bools) -> tuple[str, datetime | None]:
    """Return where and why compatible offerings are unavailable, as text, and the earliest time that one is retried."""
    causes = pool.lack(rows)
    until = min((time for _, time in causes if time is not None), default=None)
    reasons = sorted({reason for reason, _ in causes})
    why = ", ".join(_UNAVAILABLE_REASONS.get(reason, reason) for reason in reasons)
    when = f" until {until:%H:%M} UTC" if until is not None else " now" if reasons == [""] else ""
    return f"{_where(pod_requirements)}: {why}{when}", until


def _where(pod_requirements: PodRequirements) -> str:
    """Return the zones and capacity types that the pod requires, as text."""
    text = ""
    for key, name in ((labels.ZONE, "zone"), (labels.CAPACITY_TYPE, "capacity type")):
        requirements = [term.get(key) for term in pod_requirements.terms]
        values = {
            value
            for requirement in requirements
            if requirement is not None and not requirement.complement
            for value in requirement.values
        }
        if values and None not in requirements:
            text += f" in {name} {' or '.join(sorted(values))}"
    return text


_SHORT_NAMES = {labels.ZONE: "zone", labels.CAPACITY_TYPE: "capacity type", labels.INSTANCE_TYPE: "instance type"}


class UnschedulableCase(Struct, frozen=True, kw_only=True, eq=False):
    """An unschedulable pod: its class, its node requirements, and the NodePools.

    `others` are the groups of required anti-affinity of other pods.
    """

    cls: PodClass
    pod_requirements: PodRequirements
    axes: Sequence[str]
    pools: Sequence[NodePoolView]
    others: Sequence[TopologyGroup]


def smallest_change(case: UnschedulableCase) -> str:
    """Return the smallest change that would let the pod schedule, as text."""
    if any(pool.takes(case.pod_requirements) for pool in case.pools):
        return _relaxed_rule(case)
    for attempt in (_tolerated, _allowed_value, _smaller_request, _raised_limit, _later, _moved_volumes):
        change = attempt(case)
        if change:
            return change
    return _fewer_daemons(case) or "create a NodePool with instance types for it"


def _fewer_daemons(case: UnschedulableCase) -> str:
    """Return the NodePool on which DaemonSets must take less, as text; empty if that does not suffice."""
    for pool in case.pools:
        if pool.untolerated(case.pod_requirements) is None and _taken_by_daemons(
            pool, case.pod_requirements, case.axes
        ):
            return (
                f"lower the requests of DaemonSets on NodePool {pool.name}, keep some off it by node affinity, or allow larger "
                "instance types"
            )
    return ""


def _tolerated(case: UnschedulableCase) -> str:
    """Return the taint to tolerate, as text; empty if no single toleration helps."""
    taints = {format_taint(t): t for pool in case.pools if (t := pool.untolerated(case.pod_requirements)) is not None}
    for name in sorted(taints):
        pod_requirements = case.pod_requirements.tolerating(taints[name])
        if any(pool.takes(pod_requirements) for pool in case.pools):
            return f"tolerate taint {name}"
    return ""


def _allowed_value(case: UnschedulableCase) -> str:
    """Return the first sufficient change to a required label, as text: its key, its value, or without the requirement."""
    required = {key for term in case.cls.terms for key in term}
    for key in (*(k for k in _SHORT_NAMES if k in required), *sorted(required - _SHORT_NAMES.keys())):
        change = _respelled(case, key) or _without(case, key)
        if change:
            return change
    return ""


def _respelled(case: UnschedulableCase, key: str) -> str:
    """Return the correct spelling of a label key, as text; empty if the key is known or the correction does not help."""
    known_labels = {name for pool in case.pools for name in pool.pool.template.requirements}
    if key in known_labels or key in labels.WELL_KNOWN:
        return ""
    meant = likely_meant(key, known_labels)
    terms = [of(replace(r, key=meant) if k == key else r for k, r in t.items()) for t in case.cls.terms]
    pod_requirements = pod_requirements_of(case.cls, case.pod_requirements.request, terms)
    return f"write label {key} as {meant}" if meant and any(pool.takes(pod_requirements) for pool in case.pools) else ""


def _without(case: UnschedulableCase, key: str) -> str:
    """Return the label's cheapest sufficient value, or else to drop the requirement, as text; empty if neither helps."""
    terms = [Requirements({k: r for k, r in term.items() if k != key}) for term in case.cls.terms]
    pod_requirements = pod_requirements_of(case.cls, case.pod_requirements.request, terms)
    compatible_pools = [pool for pool in case.pools if pool.takes(pod_requirements)]
    if not compatible_pools:
        return ""
    value = min(
        filter(None, (_cheapest_value(pool, pod_requirements, key) for pool in compatible_pools)), default=(0.0, "")
    )[1]
    if value and any(pool.takes(_with_value_allowed(case, key, value)) for pool in compatible_pools):
        return f"allow {_SHORT_NAMES[key]} {value}" if key in _SHORT_NAMES else f"allow label {key}={value}"
    return f"drop its requirement on {_SHORT_NAMES.get(key, f'label {key}')}"


def _with_value_allowed(case: UnschedulableCase, key: str, value: str) -> PodRequirements:
    """Return the requirements of the pod with one more value allowed for a label."""
    terms = [
        Requirements(
            {**term, key: requirement(key, "In", (*term[key].values, value) if not term[key].complement else (value,))}
        )
        for term in case.cls.terms
        if key in term
    ]
    return pod_requirements_of(case.cls, case.pod_requirements.request, terms)


def _cheapest_value(pool: NodePoolView, pod_requirements: PodRequirements, key: str) -> tuple[float, str] | None:
    """Return (price, label value) of the NodePool's cheapest offering for the pod; None if it does not set the label."""
    template = pool.pool.template
    table, found = template.table, pool.find(pod_requirements)
    rows = np.flatnonzero(found.rows & table.available & found.allowed[table.row_type])
    price = float(table.prices[rows].min())
    codes, values = table.row_values(key)
    cheapest = distinct(codes[rows[table.prices[rows] == price]])
    pool_requirement = template.requirements.get(key)
    offered = min(values[code] or "" for code in cheapest)
    value = offered or (pool_requirement.single if pool_requirement is not None else None)
    return (price, value) if value else None


def _smaller_request(case: UnschedulableCase) -> str:
    """Return the request to lower, as text; if several would suffice, the smallest change in proportion."""
    request = case.pod_requirements.request
    changes: list[tuple[float, str, int]] = []
    for a in map(int, np.flatnonzero(request)):
        name, amount = case.axes[a], int(request[a])
        most = max((_most(pool, case.pod_requirements, a) for pool in case.pools), default=0)
        if name != PODS and 0 <= most < amount and (most or name not in (CPU, MEMORY)):
            changes.append((1 - most / amount, name, most))
    if not changes:
        return ""
    _, name, most = min(changes)
    amount = int(request[list(case.axes).index(name)])
    if not most:
        return f"request no {name}, or create a NodePool whose instance types have it"
    return f"request at most {describe_amount(name, most)} (it asks for {describe_amount(name, amount)})"


def _most(pool: NodePoolView, pod_requirements: PodRequirements, axis: int) -> int:
    """Return how much of one resource the pod could request in the NodePool; -1 if no amount would suffice."""
    if pool.untolerated(pod_requirements) is not None:
        return -1
    request: Ints = pod_requirements.request.copy()
    request[axis] = 0
    allowed = pool.find(replace(pod_requirements, request=request)).allowed
    request[axis] = most = int(pool.pool.sizes[allowed, axis].max(initial=-1))
    return most if most >= 0 and pool.takes(replace(pod_requirements, request=request)) else -1


def _raised_limit(case: UnschedulableCase) -> str:
    """Return the limit to raise, as text: fewest resources first, then the smallest increase in proportion."""
    raises = [raised for pool in case.pools if (raised := _least_raise(pool, case.pod_requirements)) is not None]
    return min(raises)[2] if raises else ""


def _least_raise(pool: NodePoolView, pod_requirements: PodRequirements) -> tuple[int, float, str] | None:
    """Return (number of resources, increase in proportion to a node, text) for one NodePool; None if it does not help."""
    types = np.flatnonzero(pool.find(pod_requirements).available)
    if not len(types) or pool.untolerated(pod_requirements) is not None:
        return None
    headroom = pool.headroom
    short = np.maximum(headroom.costs[types] - headroom.left, 0)
    shares = (short / np.maximum(headroom.costs[types], 1)).sum(axis=1)
    counts = np.count_nonzero(short, axis=1)
    best = int(np.lexsort((shares, counts))[0])
    if not counts[best]:
        return None
    lacking = ((name, int(n)) for name, n in zip(headroom.resources, short[best], strict=True) if n)
    text = " and ".join(f"{name} by {format_amount(name, n)}" for name, n in lacking)
    return int(counts[best]), float(shares[best]), f"raise NodePool {pool.name}'s limit on {text}"


def _later(case: UnschedulableCase) -> str:
    """Return the earliest time at which a compatible offering is tried again, as text; empty if there is none."""
    times: list[datetime] = []
    for pool in case.pools:
        if pool.untolerated(case.pod_requirements) is None:
            table, found = pool.pool.template.table, pool.find(case.pod_requirements)
            unavailable = found.rows & ~table.available & pool.within_limits[table.row_type]
            times += [until for _, until in pool.lack(unavailable) if until is not None]
    return f"wait until {min(times):%Y-%m-%d %H:%M} UTC, when unavailable offerings are tried again" if times else ""


def _moved_volumes(case: UnschedulableCase) -> str:
    pod_requirements = replace(case.pod_requirements, terms=case.cls.terms)
    helps = case.cls.volume_terms != (EMPTY,) and any(pool.takes(pod_requirements) for pool in case.pools)
    return f"move its volumes out of {where_volumes_are(case.cls)}" if helps else ""


def where_volumes_are(cls: PodClass) -> str:
    """Return where the pods' volumes can be attached, as text."""
    return " or ".join(" and ".join(map(str, term.values())) for term in cls.volume_terms)


def _relaxed_rule(case: UnschedulableCase) -> str:
    """Return the constraint about other pods to relax, as text; a general text if there are several."""
    rules, keys = list(topology_constraints_of(case.cls)), _excluding_labels(case)
    if len(rules) == 1 and not keys:
        verb, rule = rules[0]
        return f"{verb} its {rule}"
    if keys and not rules:
        return f"relax the pod anti-affinity of other pods over {' and '.join(keys)}, which excludes it"
    return "relax its constraints about other pods, or theirs about it"


def _excluding_labels(case: UnschedulableCase) -> list[str]:
    """Return the topology keys over which other pods' anti-affinity excludes the class's pods, sorted."""
    cls, own = case.cls, {group.id for group in case.cls.anti_affinities}
    wide = (g for g in case.others if g.id not in own and g.key != labels.HOSTNAME)
    return sorted({group.key for group in wide if group.counts(cls.namespace, cls.labels)})


def topology_constraints_of(cls: PodClass) -> Iterator[tuple[str, str]]:
    """Yield each constraint that could exclude the class's pods from a new node, and the verb to remove it with.

    A new node has a hostname of its own, which no spread over hostname excludes, and anti-affinity only if a DaemonSet's pods
    will run there.
    """
    for spread in cls.spreads:
        if spread.key != labels.HOSTNAME:
            least = f", minDomains {spread.min_domains}" if spread.min_domains > 1 else ""
            yield "relax", f"topology spread over {spread.key} (maxSkew {spread.max_skew}{least})"
    for group in cls.anti_affinities:
        if group.key != labels.HOSTNAME or cls.launch_terms != (EMPTY,):
            yield "remove", f"pod anti-affinity over {group.key} to {group.in_words}"
    for group in cls.affinities:
        yield "remove", f"pod affinity over {group.key} to {group.in_words}"
    for port in cls.ports:
        yield "remove", f"host port {port.port}"


Terms = tuple[Requirements, ...]


class PodRequirements(Struct, frozen=True, kw_only=True, eq=False):
    """What a pod requires of its node: one of `terms`, its tolerations, its requests by axis."""

    terms: Terms
    tolerations: tuple[Toleration, ...]
    request: Ints

    def tolerating(self, taint: Taint) -> PodRequirements:
        """Return the requirements with a toleration for this taint added."""
        extra = Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)
        return replace(self, tolerations=(*self.tolerations, extra))


def pod_requirements_of(cls: PodClass, request: Ints, terms: Iterable[Requirements] | None = None) -> PodRequirements:
    """Return the requirements of a class's pods; `terms` replaces the class's own terms."""
    own = cls.terms if terms is None else terms
    terms = dict.fromkeys(term & volumes for term in own for volumes in cls.volume_terms)
    return PodRequirements(terms=tuple(terms), tolerations=cls.tolerations, request=request)


class FilteredTypes(Struct, frozen=True, kw_only=True, eq=False):
    """The instance types of a NodePool that pass each filter.

    Attributes:
        suiting: Types with an offering that meets the requirements, available or not.
        fitting: Of these, the types that are large enough.
        available: Of these, the types with such an offering available.
        allowed: Of these, the types within the limits.
        rows: The offerings, available or not, that meet the requirements and whose types are large enough.
    """

    suiting: Bools
    fitting: Bools
    available: Bools
    allowed: Bools
    rows: Bools


class NodePoolView:
    """Filters the instance types of one NodePool; limits are evaluated once, by the constructor."""

    def __init__(self, pool: NodePoolOptions, headroom: Headroom, *, strict_min_values: bool = True) -> None:
        """Prepare the NodePool for queries."""
        self.pool = pool
        self.headroom = headroom
        self.strict_min_values = strict_min_values
        table = pool.template.table
        usable: Bools = pool.usable[table.row_type]
        self.own_rows: Bools = table.rows_meeting(pool.template.requirements) & usable
        self.within_limits: Bools = headroom.allows()
        self.types_total = int(self._types(self.own_rows).sum())
        self._rows: dict[Terms, Bools] = {}

    @property
    def name(self) -> str:
        """Return the name of the NodePool."""
        return self.pool.template.name

    @cached_property
    def _lack(self) -> tuple[Ints, tuple[tuple[str, datetime | None], ...]]:
        """Return why offerings are unavailable, as (cause number per offering, (reason, until) by number)."""
        numbers: dict[tuple[str, datetime | None], int] = {}
        offered = (o for t in self.pool.template.table.types for o in t.offerings)
        codes = [numbers.setdefault((o.unavailable_reason, o.unavailable_until), len(numbers)) for o in offered]
        return np.array(codes, dtype=np.int64), tuple(numbers)

    def lack(self, rows: Bools) -> tuple[tuple[str, datetime | None], ...]:
        """Return the distinct (reason, until) for which these offerings are unavailable."""
        codes, causes = self._lack
        return tuple(causes[n] for n in distinct(codes[rows]))

    @property
    def taints(self) -> tuple[Taint, ...]:
        """Return the taints of the NodePool's nodes."""
        return tuple(self.pool.template.node_pool.spec.template.spec.taints)

    def untolerated(self, pod_requirements: PodRequirements) -> Taint | None:
        """Return the first taint that the pod does not tolerate."""
        return untolerated(self.taints, pod_requirements.tolerations)

    def refusal(self, pod_requirements: PodRequirements) -> str:
        """Return why the NodePool's own labels exclude the first term, as text; empty if they admit any term."""
        offered = self.pool.template.requirements
        refusals = [offered.compatible(t, allow_undefined=labels.WELL_KNOWN) for t in pod_requirements.terms]
        if None in refusals:
            return ""
        return next(filter(None, refusals), "contradictory requirements")

    def find(self, pod_requirements: PodRequirements) -> FilteredTypes:
        """Return the types that pass each filter for the pod; taints are ignored."""
        table, rows = self.pool.template.table, self.rows(pod_requirements.terms)
        large = every(self.pool.sizes >= pod_requirements.request)
        suiting = self._types(rows)
        rows = rows & large[table.row_type]
        available = self._types(rows & table.available)
        return FilteredTypes(
            suiting=suiting,
            fitting=suiting & large,
            available=available,
            allowed=available & self.within_limits,
            rows=rows,
        )

    def takes(self, pod_requirements: PodRequirements) -> bool:
        """Return whether the NodePool can launch a node for the pod now; constraints about other pods are ignored."""
        if self.untolerated(pod_requirements) is not None:
            return False
        found = self.find(pod_requirements)
        return bool(found.allowed.any()) and not self.only_reserved(found) and not self.too_alike(found.allowed)

    def only_reserved(self, found: FilteredTypes) -> bool:
        """Return whether only reserved capacity, which may run out within a pass, is available for the pod."""
        table = self.pool.template.table
        rows = found.rows & table.available & found.allowed[table.row_type]
        return bool((table.row_reservation[rows] >= 0).all())

    def too_alike(self, types: Bools) -> str:
        """Return the NodePool's minValues that these types do not meet, as text; empty if none or if minValues may be relaxed."""
        if not self.strict_min_values or distinct_enough(self.pool, types):
            return ""
        min_values = self.pool.template.min_values
        return ", ".join(
            f"{n} of {min_values[k]} for {k}" for k, n in achievable(self.pool, types).items() if n < min_values[k]
        )

    def rows(self, terms: Terms) -> Bools:
        """Return the offerings that meet one of the terms, available or not, of any size."""
        rows = self._rows.get(terms)
        if rows is None:
            template = self.pool.template
            rows = np.zeros(len(template.table.row_type), dtype=bool)
            for term in terms:
                if template.requirements.compatible(term, allow_undefined=labels.WELL_KNOWN) is None:
                    rows |= template.table.rows_meeting(template.narrowed(term))
            rows &= self.own_rows
            self._rows[terms] = rows
        return rows

    def types_for(self, terms: Terms) -> Bools:
        """Return the types with an offering that meets one of the terms, even if they are too small for their daemons."""
        template = self.pool.template
        rows: Bools = np.zeros(len(template.table.row_type), dtype=bool)
        for term in terms:
            if template.requirements.compatible(term, allow_undefined=labels.WELL_KNOWN) is None:
                rows |= template.table.rows_meeting(template.narrowed(term))
        return self._types(rows & template.table.rows_meeting(template.requirements))

    def unmet(self, pod_requirements: PodRequirements) -> str:
        """Return a requirement that no type of the NodePool meets, as text; empty if there is no single one."""
        template = self.pool.template
        unmet = (template.table.unmet(template.narrowed(term)) for term in pod_requirements.terms)
        return next(filter(None, unmet), "")

    def _types(self, rows: Bools) -> Bools:
        table = self.pool.template.table
        types: Bools = np.zeros(len(table.types), dtype=bool)
        types[table.row_type[rows]] = True
        return types
