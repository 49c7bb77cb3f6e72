"""Computes what each kind of constraint costs: how much less a plan costs without it (`journeyman solve --rules`).

The prices show which kinds of constraints make a fleet cost more than its lower bound. They do not add up: of two constraints
that forbid the same thing, each costs nothing alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.objects import Affinity, Container, NodeAffinity, Pod, PodAffinity, PodSpec
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Results
from journeyman.core.state.snapshot import Snapshot
from journeyman.core.state.taints import is_prefer_no_schedule

if TYPE_CHECKING:  # importing the models builds validators, which this module does not need
    from journeyman.core.api.nodepool import NodePool

Solve = Callable[[Snapshot, Catalogue], Results]
T = TypeVar("T", bound=msgspec.Struct)


class RulePrice(Struct, frozen=True, kw_only=True):
    """The price of one kind of rule: how much less per hour, and how many nodes fewer, the same pods need without it.

    `per_hour` may be slightly negative, because plans are not proven to be optimal.
    """

    rule: str
    per_hour: float
    nodes: int


class Gap(Struct, frozen=True, kw_only=True):
    """A plan's price per hour, its lower bound, and the prices of the rules, most expensive first."""

    price: float
    lower_bound: float
    rules: tuple[RulePrice, ...]

    @property
    def share(self) -> float:
        """The difference between price and lower bound as a share of the bound; 0 without a bound."""
        return self.price / self.lower_bound - 1 if self.lower_bound > 0 else 0.0


def price_of_rules(snapshot: Snapshot, catalogue: Catalogue, solve: Solve, rules: Iterable[str] = ()) -> Gap:
    """Return what each kind of rule costs per hour.

    Args:
        snapshot: The cluster. Unschedulable pods are left out of the comparison.
        catalogue: The instance types that can be launched.
        solve: Returns a plan.
        rules: The kinds to price (`RULES`), all if empty; kinds that do not occur in the cluster are skipped.

    Returns:
        The gap of the plan for the whole cluster; kinds of equal price are sorted by name.

    Raises:
        KeyError: A kind of rule is unknown.
    """
    whole = solve(snapshot, catalogue)
    base = _without_pods(snapshot, whole.pod_errors)
    plan = solve(base, catalogue) if base is not snapshot else whole
    placed = {key for claim in plan.new_claims for key in claim.pods}.union(*plan.existing.values())
    prices = [
        RulePrice(
            rule=rule,
            per_hour=plan.price - relaxed.price,
            nodes=len(plan.new_claims) - len(relaxed.new_claims),
        )
        for rule, changed in _without_each(base, placed, tuple(rules) or RULES)
        for relaxed in [solve(changed, catalogue)]
    ]
    prices.sort(key=lambda found: (-found.per_hour, found.rule))
    return Gap(price=whole.price, lower_bound=whole.lower_bound, rules=tuple(prices))


def _without_pods(snapshot: Snapshot, keys: Mapping[str, object]) -> Snapshot:
    if not keys:
        return snapshot
    return replace(snapshot, pods=tuple(pod for pod in snapshot.pods if pod.key not in keys))


def _without_each(snapshot: Snapshot, placed: set[str], rules: Sequence[str]) -> Iterator[tuple[str, Snapshot]]:
    """Yield the cluster without each kind of constraint that occurs in it."""
    for rule in rules:
        changed = _KINDS[rule](snapshot, placed)
        if changed is not snapshot:
            yield rule, changed


# --- rules of pods


def _in_pods(
    change: Callable[[PodSpec], PodSpec], *, running: bool = False
) -> Callable[[Snapshot, set[str]], Snapshot]:
    """Return a function that changes the specs of pods that were scheduled, with `running` also of running pods."""

    def relaxed(snapshot: Snapshot, placed: set[str]) -> Snapshot:
        pods = tuple(
            _with_spec(pod, change(pod.spec)) if pod.key in placed or (running and pod.spec.node_name) else pod
            for pod in snapshot.pods
        )
        return snapshot if _same(snapshot.pods, pods) else replace(snapshot, pods=pods)

    return relaxed


def _with_spec(pod: Pod, spec: PodSpec) -> Pod:
    return pod if spec is pod.spec else msgspec.structs.replace(pod, spec=spec)


def _same(before: Sequence[object], after: Sequence[object]) -> bool:
    return all(a is b for a, b in zip(before, after, strict=True))


def _changed(struct: T, **values: Any) -> T:
    """Return the struct with these values; the same object if it has them already."""
    if all(getattr(struct, name) == value for name, value in values.items()):
        return struct
    return msgspec.structs.replace(struct, **values)


def _with_affinity(spec: PodSpec, **parts: Any) -> PodSpec:
    return spec if spec.affinity is None else _changed(spec, affinity=_changed(spec.affinity, **parts))


def _without_selectors(spec: PodSpec) -> PodSpec:
    node_affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    kept = _changed(node_affinity, required=None) if node_affinity is not None else None
    return _with_affinity(_changed(spec, node_selector={}), node_affinity=kept)


def _without_affinity(spec: PodSpec) -> PodSpec:
    terms = spec.affinity.pod_affinity if spec.affinity is not None else None
    return _with_affinity(spec, pod_affinity=_changed(terms, required=()) if terms is not None else None)


def _without_anti_affinity(spec: PodSpec) -> PodSpec:
    terms = spec.affinity.pod_anti_affinity if spec.affinity is not None else None
    return _with_affinity(spec, pod_anti_affinity=_changed(terms, required=()) if terms is not None else None)


def _without_spread(spec: PodSpec) -> PodSpec:
    soft = tuple(c for c in spec.topology_spread_constraints if c.when_unsatisfiable != "DoNotSchedule")
    return _changed(spec, topology_spread_constraints=soft)


def _without_host_ports(spec: PodSpec) -> PodSpec:
    containers = tuple(_without_ports(container) for container in spec.containers)
    return _changed(spec, containers=containers)


def _without_ports(container: Container) -> Container:
    return _changed(container, ports=tuple(port for port in container.ports if not port.host_port))


def _without_volumes(spec: PodSpec) -> PodSpec:
    return _changed(spec, volumes=())


def _without_preferred(spec: PodSpec) -> PodSpec:
    hard = tuple(c for c in spec.topology_spread_constraints if c.when_unsatisfiable == "DoNotSchedule")
    kept = _changed(spec, topology_spread_constraints=hard)
    return _changed(kept, affinity=_without_preferred_terms(spec.affinity)) if spec.affinity is not None else kept


def _without_preferred_terms(affinity: Affinity) -> Affinity:
    return _changed(
        affinity,
        node_affinity=_required_only(affinity.node_affinity),
        pod_affinity=_required_only(affinity.pod_affinity),
        pod_anti_affinity=_required_only(affinity.pod_anti_affinity),
    )


def _required_only(part: NodeAffinity | PodAffinity | None) -> NodeAffinity | PodAffinity | None:
    return _changed(part, preferred=()) if part is not None else None


# --- rules of NodePools and DaemonSets


def _in_pools(change: Callable[[NodePool], NodePool]) -> Callable[[Snapshot, set[str]], Snapshot]:
    def relaxed(snapshot: Snapshot, _: set[str]) -> Snapshot:
        pools = tuple(map(change, snapshot.node_pools))
        return snapshot if _same(snapshot.node_pools, pools) else replace(snapshot, node_pools=pools)

    return relaxed


def _with_pool_spec(pool: NodePool, **values: Any) -> NodePool:
    return pool.model_copy(update={"spec": pool.spec.model_copy(update=values)})


def _without_limits(pool: NodePool) -> NodePool:
    return _with_pool_spec(pool, limits={}) if pool.spec.limits and not pool.spec.static else pool


def _without_weight(pool: NodePool) -> NodePool:
    return _with_pool_spec(pool, weight=0) if pool.spec.weight else pool


def _with_template_spec(pool: NodePool, **values: Any) -> NodePool:
    template = pool.spec.template
    return _with_pool_spec(pool, template=template.model_copy(update={"spec": template.spec.model_copy(update=values)}))


def _without_min_values(pool: NodePool) -> NodePool:
    entries = pool.spec.template.spec.requirements
    plain = tuple(_changed(entry, min_values=None) for entry in entries)
    return pool if _same(entries, plain) else _with_template_spec(pool, requirements=plain)


def _without_preference_taints(pool: NodePool) -> NodePool:
    taints = pool.spec.template.spec.taints
    hard = tuple(taint for taint in taints if not is_prefer_no_schedule(taint))
    return pool if len(hard) == len(taints) else _with_template_spec(pool, taints=hard)


def _without_daemons(snapshot: Snapshot, _: set[str]) -> Snapshot:
    return replace(snapshot, daemon_sets=()) if snapshot.daemon_sets else snapshot


def _without_preferences(snapshot: Snapshot, placed: set[str]) -> Snapshot:
    return _in_pools(_without_preference_taints)(_in_pods(_without_preferred)(snapshot, placed), placed)


_KINDS: Final[Mapping[str, Callable[[Snapshot, set[str]], Snapshot]]] = {
    "selectors": _in_pods(_without_selectors),
    "spread": _in_pods(_without_spread),
    "affinity": _in_pods(_without_affinity),
    "anti-affinity": _in_pods(_without_anti_affinity, running=True),
    "host-ports": _in_pods(_without_host_ports),
    "volumes": _in_pods(_without_volumes),
    "preferences": _without_preferences,
    "daemons": _without_daemons,
    "limits": _in_pools(_without_limits),
    "min-values": _in_pools(_without_min_values),
    "weights": _in_pools(_without_weight),
}

RULES: Final = tuple(_KINDS)
"""The kinds of rules that have a price."""
