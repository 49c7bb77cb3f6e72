"""Explains why a pod is unschedulable: per NodePool, and the smallest change that would let it schedule.

Each NodePool filters its instance types step by step (taints, requirements, resources, offerings, limits, minValues);
the first step that leaves none is the reason, with counts. The NodePool that passed the most steps comes first.

The smallest change lifts one rule: it is the first of a toleration, another label value, a smaller request, a higher
limit, waiting for an offering, volumes elsewhere, a relaxed constraint, one more NodePool. A change suffices if an
empty new node of some NodePool would then take the pod; constraints about other pods are considered last. The search
reads only the requirements that can matter (`_relevant`): a pod may name thousands of labels, but a NodePool's nodes
have dozens.

Explanations have an effort of their own, because pods that wait for nodes must not wait for them: provision launches
first, then explains (`UnexplainedPods`). Each kind of pod may take a part of it, the smallest first, so that one pod
with very many constraints costs no other pod its explanation. What is spent is what the comparisons cost, and it is
spent before they are made.

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaim.go `InstanceTypeFilterError`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod
from journeyman.core.api.resources import CPU, MEMORY, PODS
from journeyman.core.api.wording import counted, describe_amount, listed, readable
from journeyman.core.scheduling.arrays import Ints, every
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.nodepool_options import NodePoolOptions
from journeyman.core.scheduling.nodepool_view import (
    ENTRIES_PER_UNIT,
    FilteredTypes,
    NodePoolView,
    UnschedulablePod,
    entries_of,
)
from journeyman.core.scheduling.pod_classes import PodClass
from journeyman.core.scheduling.requirements import EMPTY, Requirements, likely_meant, of, requirement
from journeyman.core.scheduling.results import NOT_EXPLAINED, Effort, EffortSpentError, PodError, PoolReason, Results
from journeyman.core.scheduling.topology import TopologyGroup
from journeyman.core.state.taints import format_taint

# Most helpful first: the NodePool that passed the most filters.
_RANKS: Final = ("rules", "min-values", "limits", "offerings", "resources", "requirements", "taints", "not-usable")
# Why an offering is unavailable, as text
_UNAVAILABLE_REASONS: Final = {
    "InsufficientCapacity": "out of stock",
    "SpotInterruption": "interrupted lately",
    "CapacityReservationInterruption": "interrupted lately",
    "": "unavailable",
}

_SHORT_NAMES: Final = {
    labels.ZONE: "zone",
    labels.CAPACITY_TYPE: "capacity type",
    labels.INSTANCE_TYPE: "instance type",
}
_VOLUMES: Final = "\0volumes\0"  # stands for the pod's volumes: pods with equal constraints have claims of their own
_TOO_SMALL: Final = "no instance type has enough resources: "
_NAMED_RESOURCES: Final = 2
_NAMED_DAEMONS: Final = 3

MAX_EFFORT: Final = 1_000_000
"""The most effort of the explanations of one pass: about a second."""
MAX_EFFORT_OF_A_KIND: Final = 100_000
"""The most effort for pods with equal constraints."""
SEARCH_ENDED: Final = "the search for it ended early, because the pod has too many constraints; simplify them"
_PER_KIND: Final = 150  # effort of explaining one kind of pods in one NodePool, without what grows with the constraints
_PER_SPELLING: Final = 60  # effort of looking for the label that a misspelled one means
_GROUPS_PER_UNIT: Final = 2
_BLOCKERS_KEPT: Final = 2  # of a term; no single change helps against two
_REMEMBERED_BYTES: Final = 16_000_000  # of all NodePools' views
_TOO_MANY_CONSTRAINTS: Final = PodError(
    kind="unschedulable",
    message="no node fits it; it has so many constraints that the search for the reasons ended early. Simplify them",
)


class UnexplainedPods(Struct, frozen=True, kw_only=True, eq=False):
    """Unschedulable pods of one kind, of which no explanation was searched yet.

    `cls` is their class at its last relaxation level, without preferences, `request` what one of them requests, by
    axis. `stuck` is the constraint about other pods that they do not meet, as text.
    """

    cls: PodClass
    request: Ints
    stuck: str
    keys: tuple[str, ...]


def explained(results: Results, effort: int = MAX_EFFORT, only: Collection[str] | None = None) -> Results:
    """Return the results with the explanations of their unschedulable pods.

    Args:
        results: Those of a pass, without some pods if need be.
        effort: The most work. Pods for which it does not suffice get a short error.
        only: The keys of the pods to explain, by default all; the others are not explained later either.
    """
    explainer = results.unexplained
    if explainer is None:
        return results
    wanted = {
        key for key, error in results.pod_errors.items() if error == NOT_EXPLAINED and (only is None or key in only)
    }
    errors = explainer.errors(wanted, Effort(min(effort, MAX_EFFORT)))
    merged = {key: errors.get(key, error) for key, error in results.pod_errors.items()}
    return replace(results, pod_errors=merged, unexplained=None)


class Explainer(Struct, kw_only=True, eq=False, dict=True):
    """Explains the unschedulable pods of one pass, as it ended; pods with equal constraints share one explanation.

    Attributes:
        axes: Resource names.
        pools: All NodePools in use, in order.
        headroom: What is left of their limits.
        invalid_objects: The unusable NodePools, with the reason.
        others: The groups of required anti-affinity of other pods, running or scheduled in this pass.
        strict_min_values: Whether a NodePool whose minValues cannot be met launches no node.
        left_out: By NodePool, the DaemonSets without which its nodes are planned.
        unexplained: The pods to explain.
        volumes_of: Returns a pod's PersistentVolumeClaims and where each can be attached, as text; empty if unknown.
    """

    axes: Sequence[str]
    pools: Sequence[NodePoolOptions]
    headroom: Sequence[Headroom]
    invalid_objects: Mapping[str, str]
    others: Sequence[TopologyGroup] = ()
    strict_min_values: bool = True
    left_out: Mapping[str, Sequence[str]] = MappingProxyType({})
    unexplained: Sequence[UnexplainedPods] = ()
    volumes_of: Callable[[Pod], str] = lambda _pod: ""
    _errors: dict[object, PodError] = field(default_factory=dict)

    @cached_property
    def _others(self) -> tuple[TopologyGroup, ...]:
        return tuple({group.id: group for group in self.others}.values())

    @cached_property
    def _views(self) -> tuple[NodePoolView, ...]:
        """Return a view of each NodePool; lazy, because the effort may not suffice for any pod."""
        remembered = _REMEMBERED_BYTES // max(len(self.pools), 1)
        return tuple(
            NodePoolView(pool, headroom, strict_min_values=self.strict_min_values, remembered_bytes=remembered)
            for pool, headroom in zip(self.pools, self.headroom, strict=True)
        )

    def errors(self, wanted: Collection[str], effort: Effort) -> dict[str, PodError]:
        """Return the error of each wanted pod; those with few constraints first, while the effort lasts."""
        errors: dict[str, PodError] = {}
        sizes = {p.keys: entries_of(p.cls.terms) + len(p.cls.tolerations) + len(p.cls.ports) for p in self.unexplained}
        for pods in sorted(self.unexplained, key=lambda pods: (sizes[pods.keys], pods.keys)):
            keys = [key for key in pods.keys if key in wanted]
            if not keys:
                continue
            error = self.explain(pods.cls, pods.request, stuck=pods.stuck, effort=effort)
            errors.update(dict.fromkeys(keys, error))
            if _VOLUMES in error.message:
                anonymous = listed(" and ".join(map(str, term.values())) for term in pods.cls.volume_terms)
                named = {pod.key: self.volumes_of(pod) or anonymous for pod in pods.cls.pods if pod.key in wanted}
                errors.update({key: _with_volumes(error, named[key]) for key in keys})
        return errors

    def explain(self, cls: PodClass, request: Ints, *, stuck: str = "", effort: Effort | None = None) -> PodError:
        """Return the error of a class's unschedulable pods; it may contain `_VOLUMES`.

        Args:
            cls: The class at its last relaxation level, without preferences.
            request: The requests of one pod, by axis.
            stuck: The constraint about other pods that the pod does not meet, as text.
            effort: Limits the work of all explanations; by default nothing does.
        """
        effort = effort if effort is not None else Effort()
        groups = tuple(group.id for group in cls.groups)
        key = (cls.terms, cls.volume_terms, cls.tolerations, request.tobytes(), stuck, groups, cls.ports)
        if key not in self._errors:
            own = Effort(min(effort.left, MAX_EFFORT_OF_A_KIND))
            self._errors[key] = self._explain(cls, request, stuck, own)
            effort.spend(own.done)
        return self._errors[key]

    def _explain(self, cls: PodClass, request: Ints, stuck: str, effort: Effort) -> PodError:
        try:
            effort.spend(_PER_KIND * (1 + len(self._views)))
            pod = UnschedulablePod(cls=cls, request=request, effort=effort).with_terms(cls.terms)
            case = UnschedulableCase(pod=pod, axes=self.axes, pools=self._views, others=self._others)
            by_pool = [_reason(pool, case, stuck, self.left_out.get(pool.name, ())) for pool in self._views]
        except EffortSpentError:
            return _TOO_MANY_CONSTRAINTS
        unusable = [PoolReason(node_pool=n, kind="not-usable", detail=why) for n, why in self.invalid_objects.items()]
        reasons = tuple(sorted((*by_pool, *unusable), key=lambda r: (_RANKS.index(r.kind), r.node_pool)))
        details = {r.node_pool: r.detail for r in reasons}
        if not by_pool:
            why = "; ".join(f"{name}: {detail}" for name, detail in details.items())
            message = f"no NodePool is usable ({why})" if why else "no NodePool exists; create one"
            return PodError(kind="no-nodepool", message=message, by_node_pool=details, reasons=reasons)
        message = "; ".join(f"NodePool {name}: {detail}" for name, detail in details.items())
        try:
            change = _smallest_change(case) if not cls.claims else ""
        except EffortSpentError:
            change = SEARCH_ENDED
        return PodError(
            kind="limits" if reasons[0].kind == "limits" else "unschedulable",
            message=f"{message}. Smallest change: {change}" if change else message,
            by_node_pool=details,
            reasons=reasons,
            smallest_change=change,
        )


def _with_volumes(error: PodError, volumes: str) -> PodError:
    """Return the error with the names and places of a pod's own volumes."""
    return replace(
        error,
        message=error.message.replace(_VOLUMES, volumes),
        by_node_pool={name: detail.replace(_VOLUMES, volumes) for name, detail in error.by_node_pool.items()},
        reasons=tuple(replace(reason, detail=reason.detail.replace(_VOLUMES, volumes)) for reason in error.reasons),
        smallest_change=error.smallest_change.replace(_VOLUMES, volumes),
    )


class UnschedulableCase(Struct, frozen=True, kw_only=True, eq=False):
    """An unschedulable pod and the NodePools; `others` are the groups of required anti-affinity of other pods."""

    pod: UnschedulablePod
    axes: Sequence[str]
    pools: Sequence[NodePoolView]
    others: Sequence[TopologyGroup]

    def is_taken(self, pod: UnschedulablePod) -> bool:
        """Return whether some NodePool can launch a node for such a pod now. Raises EffortSpentError."""
        return any(pool.takes(pod) for pool in self.pools)

    def tolerated_pools(self) -> Iterator[NodePoolView]:
        """Yield the NodePools whose taints the pod tolerates. Raises EffortSpentError."""
        return (pool for pool in self.pools if pool.untolerated(self.pod) is None)


def _reason(pool: NodePoolView, case: UnschedulableCase, stuck: str, left_out: Sequence[str]) -> PoolReason:
    """Return the first filter that leaves no instance type of the NodePool, with counts."""
    found, until = pool.find(case.pod), None
    taint = pool.untolerated(case.pod)
    if taint is not None:
        kind, detail = "taints", f"did not tolerate taint (taint={format_taint(taint)})"
    elif not found.suiting.any():
        kind, detail = _nothing_suits(pool, case)
    elif not found.fitting.any():
        kind, detail = "resources", _too_small(pool, case, found)
    else:
        kind, why, until = _no_node(pool, case, found, stuck)
        detail = f"{_needs(pool, case, found)}{int(found.fitting.sum())} of {pool.types_total} types fit, but {why}"
    if left_out:
        detail += f" (although planned without DaemonSet {listed(left_out, 'and', _NAMED_DAEMONS)})"
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


def _nothing_suits(pool: NodePoolView, case: UnschedulableCase) -> tuple[str, str]:
    """Return which requirement no type meets, or what DaemonSets take on types that would do without them."""
    if taken := _taken_by_daemons(pool, case):
        return "resources", f"{_TOO_SMALL}{taken}"
    if _are_apart(case.pod.cls):
        return "requirements", f"no node can attach all of its volumes ({_VOLUMES})"
    return "requirements", f"{pool.refusal(case.pod)}{_its_volumes(case.pod.cls)}"


def _no_node(
    pool: NodePoolView, case: UnschedulableCase, found: FilteredTypes, stuck: str
) -> tuple[str, str, datetime | None]:
    """Return why the types that are large enough give no node, and until when the reason holds, if that is known."""
    if not found.available.any():
        where, until = _unavailable(pool, case, found)
        return "offerings", f"no instance type has the required offering{where}{_its_volumes(case.pod.cls)}", until
    if not found.allowed.any():
        amounts = zip(pool.headroom.resources, pool.headroom.left, strict=True)
        left = ", ".join(describe_amount(name, max(int(amount), 0)) for name, amount in amounts)
        return "limits", f"all available instance types exceed limits for nodepool (left: {left})", None
    if unmet := pool.unmet_min_values(found.allowed):
        return "min-values", f"the minValues requirement is not met ({unmet})", None
    if pool.only_reserved(found):
        return "offerings", "only reserved capacity offers them, and none is left", None
    own = listed((rule for _, rule in _topology_constraints_of(case.pod.cls)), "and")
    return "rules", stuck or f"unsatisfiable constraints of {f'the pod: {own}' if own else 'other pods'}", None


def _its_volumes(cls: PodClass) -> str:
    """Return where the pod's volumes can be attached, as text; empty if anywhere."""
    return f" (its volumes: {_VOLUMES})" if cls.volume_terms != (EMPTY,) else ""


def _needs(pool: NodePoolView, case: UnschedulableCase, found: FilteredTypes) -> str:
    """Return the requests that most types are too small for, as text; empty if there are none."""
    request = case.pod.request
    short = (pool.options.sizes[found.suiting] < request).sum(axis=0)
    worst = sorted((-int(short[a]), case.axes[a], int(request[a])) for a in np.flatnonzero(short).tolist())
    amounts = " and ".join(describe_amount(name, amount, round_up=True) for _, name, amount in worst[:_NAMED_RESOURCES])
    return f"needs {amounts}: " if amounts else ""


def _too_small(pool: NodePoolView, case: UnschedulableCase, found: FilteredTypes) -> str:
    """Return the resources that are missing or too small, with the maximum of each, as text."""
    sizes = pool.options.sizes[found.suiting]
    request, largest = case.pod.request, sizes.max(axis=0)
    taken = _taken_by_daemons(pool, case)
    absent = [case.axes[a] for a in np.flatnonzero((request > 0) & (largest <= 0)).tolist()]
    if absent:
        return _TOO_SMALL + (taken or f"none of the {len(sizes)} compatible types has {listed(absent)}")
    exceeded = np.flatnonzero(largest < request).tolist()
    maxima = listed((describe_amount(case.axes[a], int(largest[a])) for a in exceeded), "and")
    hint = f" (at most {maxima} for pods)" if maxima else " (each is enough on some type, but on none together)"
    text = f"{_TOO_SMALL}none of the {len(sizes)} compatible types is large enough{hint}"
    return f"{_needs(pool, case, found)}{text}{'; ' if taken else ''}{taken}"


def _unavailable(pool: NodePoolView, case: UnschedulableCase, found: FilteredTypes) -> tuple[str, datetime | None]:
    """Return where and why compatible offerings are unavailable, as text, and the earliest time that one is retried."""
    where = ""
    for key, name in ((labels.ZONE, "zone"), (labels.CAPACITY_TYPE, "capacity type")):
        wanted = [term.get(key) for term in case.pod.terms]
        values = {value for r in wanted if r is not None and not r.complement for value in r.values}
        if values and None not in wanted:
            where += f" in {name} {listed(sorted(values))}"
    causes = pool.causes(found.rows)
    until = min((time for _, time in causes if time is not None), default=None)
    reasons = sorted({reason for reason, _ in causes})
    why = ", ".join(_UNAVAILABLE_REASONS.get(reason, reason) for reason in reasons)
    when = f" until {until:%H:%M} UTC" if until is not None else " now" if reasons == [""] else ""
    return f"{where}: {why}{when}", until


def _smallest_change(case: UnschedulableCase) -> str:
    """Return the smallest change that would let the pod schedule, as text; it may contain `_VOLUMES`.

    Raises:
        EffortSpentError: The search takes more than the pod's explanation may cost.
    """
    case = _relevant(case)
    if case.is_taken(case.pod):
        return _relaxed_rule(case)
    lifted = (_tolerated, _allowed_value, _smaller_request, _raised_limit, _later, _moved_volumes, _fewer_daemons)
    return next(filter(None, (lift(case) for lift in lifted)), "create a NodePool with instance types for it")


def _relevant(case: UnschedulableCase) -> UnschedulableCase:
    """Return the case with those requirements of each term that decide whether a NodePool takes the pod.

    These are the requirements on labels that NodePools, instance types, offerings or the pod's volumes define, and of
    the others two that no node meets: with two of them no single change helps, and with none the others exclude no
    node.
    """
    case.pod.effort.spend(entries_of(case.pod.cls.terms) // ENTRIES_PER_UNIT)
    defined = (key for pool in case.pools for key in (*pool.table.labels, *pool.template.requirements))
    known = frozenset(defined).union(*case.pod.cls.volume_terms)
    cls = replace(case.pod.cls, terms=tuple(dict.fromkeys(_only_relevant(term, known) for term in case.pod.cls.terms)))
    return replace(case, pod=replace(case.pod, cls=cls).with_terms(cls.terms))


def _only_relevant(term: Requirements, known: frozenset[str]) -> Requirements:
    unknown = {key: r for key, r in term.items() if key not in known}
    if not unknown:
        return term
    blocking = (k for k, r in unknown.items() if r.impossible or (r.present and k not in labels.WELL_KNOWN))
    kept = {key: r for key, r in term.items() if key in known}
    return Requirements(kept | {key: term[key] for key in sorted(blocking)[:_BLOCKERS_KEPT]})


def _tolerated(case: UnschedulableCase) -> str:
    """Return the taint to tolerate, as text; empty if no single toleration helps."""
    taints = {format_taint(t): t for pool in case.pools if (t := pool.untolerated(case.pod)) is not None}
    helping = (name for name in sorted(taints) if case.is_taken(case.pod.tolerating(taints[name])))
    return next((f"tolerate taint {name}" for name in helping), "")


def _allowed_value(case: UnschedulableCase) -> str:
    """Return the first sufficient change to a required label, as text: its key, its value, or none required."""
    required = {key for term in case.pod.cls.terms for key in term}
    known = frozenset(name for pool in case.pools for name in pool.template.requirements)
    keys = (*(key for key in _SHORT_NAMES if key in required), *sorted(required - _SHORT_NAMES.keys()))
    return next(filter(None, (_respelled(case, key, known) or _without(case, key) for key in keys)), "")


def _respelled(case: UnschedulableCase, key: str, known: frozenset[str]) -> str:
    """Return the correct spelling of a label key, as text; empty if the key is known or that does not help."""
    if key in known or key in labels.WELL_KNOWN:
        return ""
    case.pod.effort.spend(_PER_SPELLING + entries_of(case.pod.cls.terms) // ENTRIES_PER_UNIT)
    meant = likely_meant(key, known)
    if not meant:
        return ""
    terms = [of(replace(r, key=meant) if k == key else r for k, r in t.items()) for t in case.pod.cls.terms]
    return f"write label {key} as {meant}" if case.is_taken(case.pod.with_terms(terms)) else ""


def _without(case: UnschedulableCase, key: str) -> str:
    """Return the label's cheapest sufficient value, or else to drop it, as text; empty if neither helps."""
    case.pod.effort.spend(entries_of(case.pod.cls.terms) // ENTRIES_PER_UNIT)
    pod = case.pod.with_terms(
        [Requirements({k: r for k, r in term.items() if k != key}) for term in case.pod.cls.terms]
    )
    pools = [pool for pool in case.pools if pool.takes(pod)]
    if not pools:
        return ""
    _, value = min((found for pool in pools if (found := _cheapest_value(pool, pod, key))[1]), default=(0.0, ""))
    if value and any(pool.takes(_with_value(case, key, value)) for pool in pools):
        return f"allow {_SHORT_NAMES[key]} {value}" if key in _SHORT_NAMES else f"allow label {key}={value}"
    return f"drop its requirement on {_SHORT_NAMES.get(key, f'label {key}')}"


def _cheapest_value(pool: NodePoolView, pod: UnschedulablePod, key: str) -> tuple[float, str]:
    """Return (price, label value) of the NodePool's cheapest offering for the pod; the value may be empty."""
    rows, prices = pool.launchable(pool.find(pod)), pool.table.prices
    price = prices[rows].min()
    pod.effort.spend(len(pool.table.row_values(key)[1]) // 4)
    return float(price), min(pool.values(key, rows[prices[rows] == price]))


def _with_value(case: UnschedulableCase, key: str, value: str) -> UnschedulablePod:
    """Return the requirements of the pod with one more value allowed for a label."""
    wanted = [(term, () if term[key].complement else term[key].values) for term in case.pod.cls.terms if key in term]
    return case.pod.with_terms([Requirements({**t, key: requirement(key, "In", (*own, value))}) for t, own in wanted])


def _smaller_request(case: UnschedulableCase) -> str:
    """Return the request to lower, as text; if several would suffice, the smallest change in proportion."""
    changes: list[tuple[float, str, int, int]] = []
    for axis in np.flatnonzero(case.pod.request).tolist():
        name, amount = case.axes[axis], int(case.pod.request[axis])
        most = max((_most(pool, case.pod, axis) for pool in case.pools), default=0)
        if name != PODS and 0 <= most < amount and (most or name not in (CPU, MEMORY)):
            changes.append((1 - most / amount, name, most, amount))
    if not changes:
        return ""
    _, name, most, amount = min(changes)
    if not most:
        return f"request no {name}, or create a NodePool whose instance types have it"
    asked = describe_amount(name, amount, round_up=True)
    return f"request at most {describe_amount(name, most)} (it asks for {asked})"


def _most(pool: NodePoolView, pod: UnschedulablePod, axis: int) -> int:
    """Return how much of one resource the pod could request in the NodePool; -1 if no amount would suffice."""
    if pool.untolerated(pod) is not None:
        return -1
    request: Ints = pod.request.copy()
    request[axis] = 0
    allowed = pool.find(replace(pod, request=request)).allowed
    request[axis] = most = int(pool.options.sizes[allowed, axis].max(initial=-1))
    return most if most >= 0 and pool.takes(replace(pod, request=request)) else -1


def _raised_limit(case: UnschedulableCase) -> str:
    """Return the limit to raise, as text: fewest resources first, then the smallest part of a node."""
    raises: list[tuple[int, float, str]] = []
    for pool in case.pools:
        headroom, types = pool.headroom, np.flatnonzero(pool.find(case.pod).available)
        if not len(types) or pool.untolerated(case.pod) is not None:
            continue
        short = np.maximum(headroom.costs[types] - headroom.left, 0)
        shares = (short / np.maximum(headroom.costs[types], 1)).sum(axis=1)
        counts = np.count_nonzero(short, axis=1)
        best = int(np.lexsort((shares, counts))[0])
        lacking = ((name, int(n)) for name, n in zip(headroom.resources, short[best], strict=True) if n)
        text = " and ".join(f"{name} by {readable(name, n, round_up=True)}" for name, n in lacking)
        if text:
            raises.append((int(counts[best]), float(shares[best]), f"raise NodePool {pool.name}'s limit on {text}"))
    return min(raises)[2] if raises else ""


def _later(case: UnschedulableCase) -> str:
    """Return the earliest time at which a compatible offering is tried again, as text; empty if there is none."""
    waiting = (
        (pool, pool.find(case.pod).rows & ~pool.table.available & pool.within_limits[pool.table.row_type])
        for pool in case.tolerated_pools()
    )
    times = [until for pool, rows in waiting for _, until in pool.causes(rows) if until is not None]
    return f"wait until {min(times):%Y-%m-%d %H:%M} UTC, when unavailable offerings are tried again" if times else ""


def _moved_volumes(case: UnschedulableCase) -> str:
    if case.pod.cls.volume_terms == (EMPTY,) or not case.is_taken(replace(case.pod, terms=case.pod.cls.terms)):
        return ""
    where = "one node can attach all of them" if _are_apart(case.pod.cls) else "a node can run it"
    return f"move its volumes to where {where} ({_VOLUMES})"


def _are_apart(cls: PodClass) -> bool:
    """Return whether no node can attach all volumes of the class's pods."""
    return all(any(r.impossible for r in term.values()) for term in cls.volume_terms)


def _fewer_daemons(case: UnschedulableCase) -> str:
    """Return the NodePool on which DaemonSets must take less, as text; empty if that does not suffice."""
    crowded = (pool.name for pool in case.tolerated_pools() if _taken_by_daemons(pool, case))
    others = "keep some off it by node affinity, or allow larger instance types"
    return next((f"lower the requests of DaemonSets on NodePool {name}, {others}" for name in crowded), "")


def _taken_by_daemons(pool: NodePoolView, case: UnschedulableCase) -> str:
    """Return which DaemonSets take what on the largest type that would hold the pod without them; empty if none."""
    options, request = pool.options, case.pod.request
    whole = options.sizes + options.overhead
    types = np.flatnonzero(pool.types_without_daemons(case.pod) & every(whole >= request)).tolist()
    largest = max(types, key=lambda t: (*whole[t].tolist(), -t), default=0)
    short = np.flatnonzero(options.sizes[largest] < request).tolist() if types else []
    parts: list[str] = []
    for axis in short[:_NAMED_RESOURCES]:
        name = case.axes[axis]
        uses = ((d.requests.get(name, 0), d.name) for d in options.daemons if d.types[largest])
        named = sorted((use for use in uses if use[0]), key=lambda use: (-use[0], use[1]))
        shown = ", ".join(f"{who} {describe_amount(name, amount)}" for amount, who in named[:_NAMED_DAEMONS])
        more = f", {counted(len(named) - _NAMED_DAEMONS, 'other')}" if len(named) > _NAMED_DAEMONS else ""
        total = describe_amount(name, sum(amount for amount, _ in named))
        parts.append(f"{total} of its {describe_amount(name, int(whole[largest, axis]))} ({shown}{more})")
    return f"on its {pool.table.types[largest].name} DaemonSets take {' and '.join(parts)}" if parts else ""


def _relaxed_rule(case: UnschedulableCase) -> str:
    """Return the constraint about other pods to relax, as text; a general text if there are several."""
    case.pod.effort.spend(len(case.others) // _GROUPS_PER_UNIT)
    cls, own = case.pod.cls, {group.id for group in case.pod.cls.anti_affinities}
    wide = (g for g in case.others if g.id not in own and g.key != labels.HOSTNAME)
    keys = sorted({g.key for g in wide if g.counts(cls.namespace, cls.labels)})  # over which others' anti-affinity is
    rules = list(_topology_constraints_of(cls))
    if len(rules) == 1 and not keys:
        verb, rule = rules[0]
        return _lower_min_domains(case) or f"{verb} its {rule}"
    if keys and not rules:
        return f"relax the pod anti-affinity of other pods over {listed(keys, 'and')}, which excludes it"
    return "relax its constraints about other pods, or theirs about it"


def _lower_min_domains(case: UnschedulableCase) -> str:
    """Return to what the only topology spread must lower its minDomains, as text; empty if that does not suffice."""
    spread = next((s for s in case.pod.cls.spreads if s.key != labels.HOSTNAME), None)
    if spread is None or spread.min_domains <= 1:
        return ""
    available = ((pool, np.flatnonzero(pool.find(case.pod).rows & pool.table.available)) for pool in case.pools)
    domains = len(frozenset[str]().union(*(pool.values(spread.key, rows) for pool, rows in available)) - {""})
    if not 0 < domains < spread.min_domains:
        return ""
    return f"lower minDomains of its topology spread over {spread.key} from {spread.min_domains} to {domains}"


def _topology_constraints_of(cls: PodClass) -> Iterator[tuple[str, str]]:
    """Yield the verb to remove it with, and each constraint that could exclude the class's pods from a new node.

    A new node has a hostname of its own, which no spread over hostname excludes, and anti-affinity only if a
    DaemonSet's pods will run there.
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
