"""Searches for the smallest change that would let an unschedulable pod schedule.

It is the first of these that suffices: a toleration, another label value, a smaller request, a higher limit, waiting for an
offering, volumes elsewhere, a relaxed constraint, one more NodePool. A change suffices if an empty new node of some NodePool would
then take the pod; constraints about other pods are considered last.

The search reads only the requirements that can matter (`_relevant`): a pod may name thousands of labels, but a NodePool's nodes have
dozens. Its work is charged before it is done, and what it costs is bounded by the effort that the pod is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.resources import CPU, MEMORY, PODS
from journeyman.core.api.wording import counted, describe_amount, listed, readable
from journeyman.core.scheduling.arrays import Ints, distinct, every
from journeyman.core.scheduling.nodepool_options import NodePoolOptions
from journeyman.core.scheduling.nodepool_view import (
    NodePoolView,
    PodRequirements,
    entries_of,
    pod_requirements_of,
    values_offered,
)
from journeyman.core.scheduling.pod_classes import PodClass
from journeyman.core.scheduling.requirements import EMPTY, Requirements, likely_meant, of, requirement
from journeyman.core.scheduling.results import Effort
from journeyman.core.scheduling.topology import TopologyGroup
from journeyman.core.state.taints import format_taint

SHORT_NAMES: Final = {
    labels.ZONE: "zone",
    labels.CAPACITY_TYPE: "capacity type",
    labels.INSTANCE_TYPE: "instance type",
}
VOLUMES: Final = "\0volumes\0"
"""Stands for the pod's volumes in texts: pods with equal constraints have PersistentVolumeClaims of their own."""

NAMED_RESOURCES: Final = 2
"""How many resources a message names."""
_NAMED_DAEMONS: Final = 3
_BLOCKERS_KEPT: Final = 2  # of a term; no single change helps against two
_PER_SPELLING: Final = 60  # effort of looking for the label that a misspelled one means
_ENTRIES_PER_UNIT: Final = 2
_GROUPS_PER_UNIT: Final = 2


class UnschedulableCase(Struct, frozen=True, kw_only=True, eq=False):
    """An unschedulable pod: its class, its node requirements, and the NodePools.

    `others` are the groups of required anti-affinity of other pods.
    """

    cls: PodClass
    pod_requirements: PodRequirements
    axes: Sequence[str]
    pools: Sequence[NodePoolView]
    others: Sequence[TopologyGroup]

    @property
    def effort(self) -> Effort:
        """What the pod's explanation may still cost."""
        return self.pod_requirements.effort

    def with_terms(self, terms: Sequence[Requirements]) -> PodRequirements:
        """Return the pod's requirements with other terms for its node. Raises EffortSpentError."""
        return pod_requirements_of(self.cls, self.pod_requirements.request, self.effort, terms)

    def is_taken(self, pod_requirements: PodRequirements) -> bool:
        """Return whether some NodePool can launch a node for such a pod now. Raises EffortSpentError."""
        return any(pool.takes(pod_requirements) for pool in self.pools)


def smallest_change(case: UnschedulableCase) -> str:
    """Return the smallest change that would let the pod schedule, as text; it may contain `VOLUMES`.

    Raises:
        EffortSpentError: The search takes more than the pod's explanation may cost.
    """
    case = _relevant(case)
    if case.is_taken(case.pod_requirements):
        return _relaxed_rule(case)
    for attempt in (_tolerated, _allowed_value, _smaller_request, _raised_limit, _later, _moved_volumes):
        change = attempt(case)
        if change:
            return change
    return _fewer_daemons(case) or "create a NodePool with instance types for it"


def _fewer_daemons(case: UnschedulableCase) -> str:
    """Return the NodePool on which DaemonSets must take less, as text; empty if that does not suffice."""
    for pool in case.pools:
        if pool.untolerated(case.pod_requirements) is None and taken_by_daemons(pool, case.pod_requirements, case.axes):
            return (
                f"lower the requests of DaemonSets on NodePool {pool.name}, keep some off it by node affinity, or allow larger "
                "instance types"
            )
    return ""


def taken_by_daemons(pool: NodePoolView, pod_requirements: PodRequirements, axes: Sequence[str]) -> str:
    """Return which DaemonSets take what on the largest type that would hold the pod without them; empty if none would."""
    options = pool.pool
    whole = options.sizes + options.overhead
    types = pool.types_for(pod_requirements) & every(whole >= pod_requirements.request)
    if not types.any():
        return ""
    largest = max(np.flatnonzero(types).tolist(), key=lambda t: (*whole[t].tolist(), -t))
    short = np.flatnonzero(options.sizes[largest] < pod_requirements.request).tolist()
    if not short:
        return ""
    parts = [_taken(options, largest, axes[a], int(whole[largest, a])) for a in short[:NAMED_RESOURCES]]
    return f"on its {options.template.table.types[largest].name} DaemonSets take {' and '.join(parts)}"


def _taken(options: NodePoolOptions, type_index: int, name: str, size: int) -> str:
    uses = [
        (d.requests.get(name, 0), d.name) for d in options.daemons if d.types[type_index] and d.requests.get(name, 0)
    ]
    named = sorted(uses, key=lambda use: (-use[0], use[1]))
    shown = ", ".join(f"{who} {describe_amount(name, amount)}" for amount, who in named[:_NAMED_DAEMONS])
    more = f", {counted(len(named) - _NAMED_DAEMONS, 'other')}" if len(named) > _NAMED_DAEMONS else ""
    total = describe_amount(name, sum(amount for amount, _ in named))
    return f"{total} of its {describe_amount(name, size)} ({shown}{more})"


def _relevant(case: UnschedulableCase) -> UnschedulableCase:
    """Return the case with those requirements of each term that decide whether a NodePool takes the pod.

    These are the requirements on labels that NodePools, instance types, offerings or the pod's volumes define, and of the others two
    that no node meets: with two of them no single change helps, and with none the others exclude no node.
    """
    case.effort.spend(entries_of(case.cls.terms) // _ENTRIES_PER_UNIT)
    known = frozenset().union(*(pool.known_labels for pool in case.pools), *case.cls.volume_terms)
    terms = tuple(dict.fromkeys(_only_relevant(term, known) for term in case.cls.terms))
    cls = replace(case.cls, terms=terms)
    requirements = pod_requirements_of(cls, case.pod_requirements.request, case.effort)
    return replace(case, cls=cls, pod_requirements=requirements)


def _only_relevant(term: Requirements, known: frozenset[str]) -> Requirements:
    kept = {key: r for key, r in term.items() if key in known}
    if len(kept) == len(term):
        return term
    blocking = sorted(
        key
        for key, r in term.items()
        if key not in known and (r.impossible or not (r.allows_absence or key in labels.WELL_KNOWN))
    )
    return Requirements(kept | {key: term[key] for key in blocking[:_BLOCKERS_KEPT]})


def _tolerated(case: UnschedulableCase) -> str:
    """Return the taint to tolerate, as text; empty if no single toleration helps."""
    taints = {format_taint(t): t for pool in case.pools if (t := pool.untolerated(case.pod_requirements)) is not None}
    for name in sorted(taints):
        if case.is_taken(case.pod_requirements.tolerating(taints[name])):
            return f"tolerate taint {name}"
    return ""


def _allowed_value(case: UnschedulableCase) -> str:
    """Return the first sufficient change to a required label, as text: its key, its value, or without the requirement."""
    required = {key for term in case.cls.terms for key in term}
    known = frozenset(name for pool in case.pools for name in pool.pool.template.requirements)
    for key in (*(k for k in SHORT_NAMES if k in required), *sorted(required - SHORT_NAMES.keys())):
        change = _respelled(case, key, known) or _without(case, key)
        if change:
            return change
    return ""


def _respelled(case: UnschedulableCase, key: str, known: frozenset[str]) -> str:
    """Return the correct spelling of a label key, as text; empty if the key is known or the correction does not help."""
    if key in known or key in labels.WELL_KNOWN:
        return ""
    case.effort.spend(_PER_SPELLING + entries_of(case.cls.terms) // _ENTRIES_PER_UNIT)
    meant = likely_meant(key, known)
    if not meant:
        return ""
    terms = [of(replace(r, key=meant) if k == key else r for k, r in t.items()) for t in case.cls.terms]
    return f"write label {key} as {meant}" if case.is_taken(case.with_terms(terms)) else ""


def _without(case: UnschedulableCase, key: str) -> str:
    """Return the label's cheapest sufficient value, or else to drop the requirement, as text; empty if neither helps."""
    case.effort.spend(entries_of(case.cls.terms) // _ENTRIES_PER_UNIT)
    terms = [Requirements({k: r for k, r in term.items() if k != key}) for term in case.cls.terms]
    pod_requirements = case.with_terms(terms)
    compatible_pools = [pool for pool in case.pools if pool.takes(pod_requirements)]
    if not compatible_pools:
        return ""
    value = min(
        filter(None, (_cheapest_value(pool, pod_requirements, key) for pool in compatible_pools)), default=(0.0, "")
    )[1]
    if value and any(pool.takes(_with_value_allowed(case, key, value)) for pool in compatible_pools):
        return f"allow {SHORT_NAMES[key]} {value}" if key in SHORT_NAMES else f"allow label {key}={value}"
    return f"drop its requirement on {SHORT_NAMES.get(key, f'label {key}')}"


def _with_value_allowed(case: UnschedulableCase, key: str, value: str) -> PodRequirements:
    """Return the requirements of the pod with one more value allowed for a label."""
    terms = [
        Requirements(
            {**term, key: requirement(key, "In", (*term[key].values, value) if not term[key].complement else (value,))}
        )
        for term in case.cls.terms
        if key in term
    ]
    return case.with_terms(terms)


def _cheapest_value(pool: NodePoolView, pod_requirements: PodRequirements, key: str) -> tuple[float, str] | None:
    """Return (price, label value) of the NodePool's cheapest offering for the pod; None if it does not set the label."""
    template = pool.pool.template
    table, found = template.table, pool.find(pod_requirements)
    rows = np.flatnonzero(found.rows & table.available & found.allowed[table.row_type])
    price = float(table.prices[rows].min())
    codes, values = table.row_values(key)
    pod_requirements.effort.spend(len(values) // 4)
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
    asked = describe_amount(name, amount, round_up=True)
    return f"request at most {describe_amount(name, most)} (it asks for {asked})"


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
    text = " and ".join(f"{name} by {readable(name, n, round_up=True)}" for name, n in lacking)
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
    if case.cls.volume_terms == (EMPTY,) or not case.is_taken(pod_requirements):
        return ""
    if are_apart(case.cls):
        return f"move its volumes to where one node can attach all of them ({VOLUMES})"
    return f"move its volumes to where a node can run it ({VOLUMES})"


def are_apart(cls: PodClass) -> bool:
    """Return whether no node can attach all volumes of the class's pods."""
    return all(any(r.impossible for r in term.values()) for term in cls.volume_terms)


def where_volumes_are(cls: PodClass) -> str:
    """Return where the pods' volumes can be attached, as text."""
    return listed(" and ".join(map(str, term.values())) for term in cls.volume_terms)


def _relaxed_rule(case: UnschedulableCase) -> str:
    """Return the constraint about other pods to relax, as text; a general text if there are several."""
    rules, keys = list(topology_constraints_of(case.cls)), _excluding_labels(case)
    if len(rules) == 1 and not keys:
        verb, rule = rules[0]
        return _lower_min_domains(case) or f"{verb} its {rule}"
    if keys and not rules:
        return f"relax the pod anti-affinity of other pods over {listed(keys, 'and')}, which excludes it"
    return "relax its constraints about other pods, or theirs about it"


def _lower_min_domains(case: UnschedulableCase) -> str:
    """Return by how much the only topology spread must lower its minDomains, as text; empty if that does not suffice."""
    spread = next((s for s in case.cls.spreads if s.key != labels.HOSTNAME), None)
    if spread is None or spread.min_domains <= 1:
        return ""
    domains = len(values_offered(case.pools, case.pod_requirements, spread.key))
    if not 0 < domains < spread.min_domains:
        return ""
    return f"lower minDomains of its topology spread over {spread.key} from {spread.min_domains} to {domains}"


def _excluding_labels(case: UnschedulableCase) -> list[str]:
    """Return the topology keys over which other pods' anti-affinity excludes the class's pods, sorted."""
    case.effort.spend(len(case.others) // _GROUPS_PER_UNIT)
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
