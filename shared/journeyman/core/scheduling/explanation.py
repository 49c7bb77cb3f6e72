"""Explains why a pod is unschedulable: per NodePool, and the smallest change that would let it schedule.

Each NodePool filters its instance types step by step (taints, requirements, resources, offerings, limits, minValues);
the first step that leaves none is the reason, with counts. The NodePool that passed the most steps comes first.
Availability is filtered last, so that every filter can be repeated with a change (`smallest_change`).

Explanations have an effort of their own, because pods that wait for nodes must not wait for them: provision launches first, then
explains (`UnexplainedPods`). Each kind of pod may take a part of it, the smallest first, so that one pod with very many constraints
costs no other pod its explanation. What is spent is what the comparisons cost.

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaim.go `InstanceTypeFilterError`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod
from journeyman.core.api.wording import describe_amount, listed
from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.nodepool_options import NodePoolOptions
from journeyman.core.scheduling.nodepool_view import (
    FilteredTypes,
    NodePoolView,
    PodRequirements,
    entries_of,
    pod_requirements_of,
)
from journeyman.core.scheduling.pod_classes import PodClass
from journeyman.core.scheduling.requirements import EMPTY
from journeyman.core.scheduling.results import NOT_EXPLAINED, Effort, EffortSpentError, PodError, PoolReason, Results
from journeyman.core.scheduling.smallest_change import (
    NAMED_RESOURCES,
    VOLUMES,
    UnschedulableCase,
    are_apart,
    smallest_change,
    taken_by_daemons,
    topology_constraints_of,
    where_volumes_are,
)
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

_NAMED_DAEMONS: Final = 3

MAX_EFFORT: Final = 1_000_000
"""The most effort of the explanations of one pass: about a second."""
MAX_EFFORT_OF_A_KIND: Final = 100_000
"""The most effort for pods with equal constraints."""
SEARCH_ENDED: Final = "the search for it ended early, because the pod has too many constraints; simplify them"
_PER_KIND: Final = 150  # effort of explaining one kind of pods in one NodePool, without what grows with the constraints
_REMEMBERED_BYTES: Final = 16_000_000  # of all NodePools' views
_TOO_MANY_CONSTRAINTS: Final = PodError(
    kind="unschedulable",
    message="no node fits it; it has so many constraints that the search for the reasons ended early. Simplify them",
)

VolumesOfPod = Callable[[Pod], str]
"""Returns a pod's PersistentVolumeClaims and where each can be attached, as text; empty if it is unknown."""


class UnexplainedPods(Struct, frozen=True, kw_only=True, eq=False):
    """Unschedulable pods of one kind, of which no explanation was searched yet.

    Attributes:
        cls: The class at its last relaxation level, without preferences.
        request: The requests of one pod, by axis.
        stuck: The constraint about other pods that the pods do not meet, as text.
        keys: The keys of the pods.
    """

    cls: PodClass
    request: Ints
    stuck: str
    keys: tuple[str, ...]

    @property
    def size(self) -> int:
        """What explaining them takes, roughly: the number of their constraints."""
        return entries_of(self.cls.terms) + len(self.cls.tolerations) + len(self.cls.ports)


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
        unexplained: Sequence[UnexplainedPods] = (),
        volumes_of: VolumesOfPod = lambda _pod: "",
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
            unexplained: The pods to explain.
            volumes_of: Returns a pod's volumes as text.
        """
        self._axes = axes
        self._pools, self._headroom = pools, headroom
        self._strict_min_values = strict_min_values
        self._invalid_objects = invalid_objects
        self._left_out = left_out
        self._others = tuple({group.id: group for group in others}.values())
        self._unexplained = unexplained
        self._volumes_of = volumes_of
        self._errors_by_case: dict[object, PodError] = {}

    @cached_property
    def _views(self) -> tuple[NodePoolView, ...]:
        """Return a view of each NodePool; lazy, because most passes have no unschedulable pods."""
        remembered = _REMEMBERED_BYTES // max(len(self._pools), 1)
        return tuple(
            NodePoolView(pool, headroom, strict_min_values=self._strict_min_values, remembered_bytes=remembered)
            for pool, headroom in zip(self._pools, self._headroom, strict=True)
        )

    def errors(self, wanted: Collection[str], effort: Effort) -> dict[str, PodError]:
        """Return the error of each wanted pod; those with few constraints first, while the effort lasts."""
        errors: dict[str, PodError] = {}
        for pods in sorted(self._unexplained, key=lambda pods: (pods.size, pods.keys)):
            keys = [key for key in pods.keys if key in wanted]
            if keys:
                error = self.explain(pods.cls, pods.request, stuck=pods.stuck, effort=effort)
                errors.update(self._with_volumes(pods.cls, keys, error))
        return errors

    def _with_volumes(self, cls: PodClass, keys: Iterable[str], error: PodError) -> dict[str, PodError]:
        """Return the error by pod, with the name and place of each pod's volumes."""
        if VOLUMES not in error.message:
            return dict.fromkeys(keys, error)
        pods = {pod.key: pod for pod in cls.pods}
        anonymous = where_volumes_are(cls)
        return {key: _filled(error, self._volumes_of(pods[key]) or anonymous) for key in keys}

    def explain(self, cls: PodClass, request: Ints, *, stuck: str = "", effort: Effort | None = None) -> PodError:
        """Return the error of a class's unschedulable pods; it may contain `VOLUMES`.

        Args:
            cls: The class at its last relaxation level, without preferences.
            request: The requests of one pod, by axis.
            stuck: The constraint about other pods that the pod does not meet, as text.
            effort: Limits the work of all explanations; by default nothing does.
        """
        effort = effort if effort is not None else Effort()
        rules = tuple(group.id for group in (*(s.group for s in cls.spreads), *cls.anti_affinities, *cls.affinities))
        key = (cls.terms, cls.volume_terms, cls.tolerations, request.tobytes(), stuck, rules, cls.ports)
        if key not in self._errors_by_case:
            own = Effort(min(effort.left, MAX_EFFORT_OF_A_KIND))
            self._errors_by_case[key] = self._explain(cls, request, stuck, own)
            effort.spend(own.done)
        return self._errors_by_case[key]

    def _explain(self, cls: PodClass, request: Ints, stuck: str, effort: Effort) -> PodError:
        try:
            effort.spend(_PER_KIND * (1 + len(self._views)))
            case = UnschedulableCase(
                cls=cls,
                pod_requirements=pod_requirements_of(cls, request, effort),
                axes=self._axes,
                pools=self._views,
                others=self._others,
            )
            by_pool = [_reason(pool, case, stuck, self._left_out.get(pool.name, ())) for pool in self._views]
        except EffortSpentError:
            return _TOO_MANY_CONSTRAINTS
        unusable = [PoolReason(node_pool=n, kind="not-usable", detail=why) for n, why in self._invalid_objects.items()]
        reasons = sorted((*by_pool, *unusable), key=lambda r: (_RANKS.index(r.kind), r.node_pool))
        details = {r.node_pool: r.detail for r in reasons}
        if not by_pool:
            why = "; ".join(f"{name}: {detail}" for name, detail in details.items())
            message = f"no NodePool is usable ({why})" if why else "no NodePool exists; create one"
            return PodError(kind="no-nodepool", message=message, by_node_pool=details, reasons=tuple(reasons))
        message = "; ".join(f"NodePool {name}: {detail}" for name, detail in details.items())
        change = _change(case)
        return PodError(
            kind="limits" if reasons[0].kind == "limits" else "unschedulable",
            message=f"{message}. Smallest change: {change}" if change else message,
            by_node_pool=details,
            reasons=tuple(reasons),
            smallest_change=change,
        )


def _change(case: UnschedulableCase) -> str:
    """Return the smallest change, or that the search for it ended; empty if none is searched: for ResourceClaims."""
    if case.cls.claims:
        return ""
    try:
        return smallest_change(case)
    except EffortSpentError:
        return SEARCH_ENDED


def _filled(error: PodError, volumes: str) -> PodError:
    """Return the error with these volumes."""
    return replace(
        error,
        message=error.message.replace(VOLUMES, volumes),
        by_node_pool={name: detail.replace(VOLUMES, volumes) for name, detail in error.by_node_pool.items()},
        reasons=tuple(replace(reason, detail=reason.detail.replace(VOLUMES, volumes)) for reason in error.reasons),
        smallest_change=error.smallest_change.replace(VOLUMES, volumes),
    )


def _reason(pool: NodePoolView, case: UnschedulableCase, stuck: str, left_out: Sequence[str]) -> PoolReason:
    """Return the first filter that leaves no instance type of the NodePool, with counts."""
    found = pool.find(case.pod_requirements)
    kind, detail, until = _first_failure(pool, case, found, stuck)
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
        left = ", ".join(
            describe_amount(name, max(int(n), 0))
            for name, n in zip(pool.headroom.resources, pool.headroom.left, strict=True)
        )
        return (
            "limits",
            f"{fits}, but all available instance types exceed limits for nodepool (left: {left})",
            None,
        )
    unmet_min_values = pool.too_alike(found.allowed)
    if unmet_min_values:
        return "min-values", f"{fits}, but the minValues requirement is not met ({unmet_min_values})", None
    if pool.only_reserved(found):
        return "offerings", f"{fits}, but only reserved capacity offers them, and none is left", None
    return "rules", f"{fits}, but {stuck or _constraints_as_text(case)}", None


def _nothing_suits(pool: NodePoolView, case: UnschedulableCase) -> tuple[str, str]:
    """Return which requirement no type meets, or what DaemonSets take on types that would do without them."""
    if taken := taken_by_daemons(pool, case.pod_requirements, case.axes):
        return "resources", f"no instance type has enough resources: {taken}"
    if are_apart(case.cls):
        return "requirements", f"no node can attach all of its volumes ({VOLUMES})"
    refusal = pool.refusal(case.pod_requirements)
    if not refusal:
        unmet = pool.unmet(case.pod_requirements) or "all labels that the pod requires"
        refusal = f"no instance type met all requirements (none of its {pool.types_total} has {unmet})"
    return "requirements", f"{refusal}{_volumes_as_text(case.cls)}"


def _constraints_as_text(case: UnschedulableCase) -> str:
    """Return the constraints that may exclude the pod, as text; used if the solver named none."""
    own = [rule for _, rule in topology_constraints_of(case.cls)]
    if not own:
        return "unsatisfiable constraints of other pods"
    return f"unsatisfiable constraints of the pod: {listed(own, 'and')}"


def _volumes_as_text(cls: PodClass) -> str:
    """Return where the pod's volumes can be attached, as text; empty if anywhere."""
    return "" if cls.volume_terms == (EMPTY,) else f" (its volumes: {VOLUMES})"


def _needs(pool: NodePoolView, pod_requirements: PodRequirements, found: FilteredTypes, axes: Sequence[str]) -> str:
    """Return the requests that most types are too small for, as text; empty if there are none."""
    short = (pool.pool.sizes[found.suiting] < pod_requirements.request).sum(axis=0)
    worst = sorted((-int(short[a]), axes[a], int(pod_requirements.request[a])) for a in map(int, np.flatnonzero(short)))
    amounts = " and ".join(describe_amount(name, amount, round_up=True) for _, name, amount in worst[:NAMED_RESOURCES])
    return f"needs {amounts}: " if amounts else ""


def _too_small(pool: NodePoolView, pod_requirements: PodRequirements, found: FilteredTypes, axes: Sequence[str]) -> str:
    """Return the resources that are missing or too small, with the maximum of each, as text."""
    sizes = pool.pool.sizes[found.suiting]
    request, largest = pod_requirements.request, sizes.max(axis=0)
    taken = taken_by_daemons(pool, pod_requirements, axes)
    absent = [axes[a] for a in map(int, np.flatnonzero((request > 0) & (largest <= 0)))]
    if absent and taken:
        return f"no instance type has enough resources: {taken}"
    if absent:
        return f"no instance type has enough resources: none of the {len(sizes)} compatible types has {listed(absent)}"
    exceeded = list(map(int, np.flatnonzero(largest < request)))
    maxima = listed((describe_amount(axes[a], int(largest[a])) for a in exceeded), "and")
    hint = f" (at most {maxima} for pods)" if maxima else " (each is enough on some type, but on none together)"
    return (
        f"{_needs(pool, pod_requirements, found, axes)}no instance type has enough resources: none of the {len(sizes)} "
        f"compatible types is large enough{hint}{'; ' if taken else ''}{taken}"
    )


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
            text += f" in {name} {listed(sorted(values))}"
    return text
