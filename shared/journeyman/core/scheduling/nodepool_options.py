"""What a NodePool can launch for given pods: its instance types less daemons, and the offerings compatible with them.

`NodeConstraints` are what a pod class requires of its node (alternatives of requirements, tolerations); a `NodeDemand`
adds the labels that are decided for its pods. `NodePoolOptions` finds the offerings that meet a demand; thousands of
pod classes share few demands, so results are cached.

An offering may leave a label open (for example, a custom label with several values in the NodePool). Then two pods may
each be compatible with it, but not with each other. Such a NodePool is split into *variants*, each with its open labels
narrowed until all demands it admits are compatible with each other.

`CompatibleOfferings` has one bit per demand and offering: compatible or not. It contains only the cheapest offering per
NodePool, type and bits, and no offering that is neither cheaper nor larger than another with the same bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Taint, Toleration
from journeyman.core.api.resources import MAX_AMOUNT
from journeyman.core.scheduling.arrays import Bools, Floats, Ints, every, numbered, undominated
from journeyman.core.scheduling.daemon_overhead import Daemon, types_running
from journeyman.core.scheduling.nodeclaim_templates import NodeClaimTemplate, varied_sizes, with_variety
from journeyman.core.scheduling.offerings import OfferingTable
from journeyman.core.scheduling.pod_classes import HostPort, PodClass
from journeyman.core.scheduling.requirements import EMPTY, Requirement, Requirements, of, requirement
from journeyman.core.scheduling.topology import ABSENT, DecidedLabels
from journeyman.core.state.taints import has_untolerated_preference, untolerated


class NodeConstraints(Struct, frozen=True, cache_hash=True):
    """What a pod class requires of its node: one of `terms`, and no taint that `tolerations` do not cover.

    `avoids_prefer_no_schedule`: no PreferNoSchedule taint either, as long as that preference is not relaxed.
    """

    terms: tuple[Requirements, ...]
    tolerations: tuple[Toleration, ...]
    avoids_prefer_no_schedule: bool = False

    @classmethod
    def of(cls, pods: PodClass) -> NodeConstraints:
        """The constraints of a class on a new node, its volumes' included."""
        return cls(pods.new_node_terms, pods.tolerations, pods.avoids_prefer_no_schedule)

    def accepts(self, taints: Sequence[Taint]) -> bool:
        """Whether the pods tolerate these taints."""
        if self.avoids_prefer_no_schedule and has_untolerated_preference(taints, self.tolerations):
            return False
        return untolerated(taints, self.tolerations) is None


class NodeDemand(Struct, frozen=True):
    """Constraints, and the labels that are decided for the node."""

    constraints: NodeConstraints
    decided: DecidedLabels = ()

    @property
    def terms(self) -> tuple[Requirements, ...]:
        """The alternatives with the decided labels added, without those that contradict them."""
        return _with_decided(self.constraints.terms, self.decided) if self.decided else self.constraints.terms


def decided_requirements(decided: DecidedLabels) -> Requirements:
    """Return the requirements of nodes with these decided labels."""
    return of(
        requirement(key, "DoesNotExist") if value == ABSENT else requirement(key, "In", (value,))
        for key, value in decided
    )


@lru_cache(maxsize=8192)
def _with_decided(terms: tuple[Requirements, ...], decided: DecidedLabels) -> tuple[Requirements, ...]:
    fixed = decided_requirements(decided)
    both = (term & fixed for term in terms)
    return tuple(term for term in both if not any(term[key].impossible for key in fixed))


class TemplateVariant(Struct, frozen=True):
    """A NodePool with its open labels (`open_keys`, as far as any demand names them) narrowed to `narrowed`."""

    narrowed: Requirements
    open_keys: frozenset[str]

    def admits(self, term: Requirements) -> bool:
        """Whether every node of the variant meets the term's requirements on open labels."""
        for key in self.open_keys:
            required, own = term.get(key), self.narrowed.get(key)
            if required is not None and (own is None or not _within(own, required)):
                return False
        return True


def _within(inner: Requirement, outer: Requirement) -> bool:
    """Whether every value that meets `inner` also meets `outer`."""
    if inner.present and not inner.complement:
        return all(outer.has(value) for value in inner.values)
    return inner.intersection(outer) == inner


WHOLE_TEMPLATE = TemplateVariant(EMPTY, frozenset())
"""The template with no label narrowed, used to check a single demand."""


def variants_of(template: NodeClaimTemplate, demands: Iterable[NodeDemand]) -> tuple[TemplateVariant, ...]:
    """Return the variants of the NodePool; for each term of each demand, at least one variant admits it."""
    terms = list(dict.fromkeys(term for demand in demands for term in demand.terms))
    open_keys = frozenset(key for key in {key for term in terms for key in term} if _is_open(template, key))
    narrowings = dict.fromkeys(Requirements({k: term[k] for k in sorted(open_keys) if k in term}) for term in terms)
    variants: list[Requirements] = []
    for narrowed in narrowings:
        if not narrowed or not template.requirements.is_compatible(narrowed, allow_undefined=labels.WELL_KNOWN):
            continue
        for index, variant in enumerate(variants):
            if _agree(template, variant, narrowed):
                variants[index] = variant & narrowed
                break
        else:
            variants.append(narrowed)
    return tuple(TemplateVariant(narrowed, open_keys) for narrowed in variants) or (TemplateVariant(EMPTY, open_keys),)


def _agree(template: NodeClaimTemplate, variant: Requirements, narrowed: Requirements) -> bool:
    """Whether a node of the variant can also meet these requirements."""
    if variant.conflict(narrowed) is not None:
        return False
    return (template.requirements & variant).conflict(narrowed) is None


def _is_open(template: NodeClaimTemplate, key: str) -> bool:
    """Whether a node of the NodePool could still have several values of a label once its offering is chosen."""
    offered = template.requirements.get(key)
    if (offered is not None and offered.single is not None) or template.table.settles(key):
        return False
    return offered is not None or key in template.table.labels or key in labels.WELL_KNOWN


class _DomainSizes(Struct, frozen=True, eq=False):
    """The domains where a demand can be met, with the sizes of instance types there; dominated sizes are left out."""

    domains: tuple[tuple[tuple[str, ...], ...], ...]
    sizes: Ints
    owners: Ints

    def holding(self, request: Ints | None) -> frozenset[tuple[str, ...]]:
        groups = (
            range(len(self.domains)) if request is None else set(self.owners[every(self.sizes >= request)].tolist())
        )
        return frozenset(domain for group in groups for domain in self.domains[group])


class DaemonUse(Struct, frozen=True, eq=False):
    """What the pod of a DaemonSet (`namespace/name`) uses on nodes of these instance types."""

    name: str
    types: Bools
    requests: Mapping[str, int]
    ports: tuple[HostPort, ...]


class NodePoolOptions(Struct, kw_only=True, eq=False):
    """A template with its nodes' capacity for pods: `sizes` by type and axis, less daemon overhead.

    `overhead` is the daemon overhead, the sum of `daemons`; `usable` is False for types too small for their daemons.
    Daemons use the same host ports on all types of one `daemon_group`; `daemon_ports` lists them by group. Results are
    cached.
    """

    template: NodeClaimTemplate
    sizes: Ints
    overhead: Ints
    usable: Bools
    daemon_group: Ints
    daemon_ports: tuple[frozenset[HostPort], ...]
    daemons: tuple[DaemonUse, ...] = ()
    _rows: dict[NodeDemand, tuple[Bools, ...]] = field(default_factory=dict)
    _serves: dict[NodeDemand, bool] = field(default_factory=dict)
    _domain_sizes: dict[tuple[NodeDemand, tuple[str, ...]], _DomainSizes] = field(default_factory=dict)
    _largest: dict[bytes, Ints] = field(default_factory=dict)

    @classmethod
    def of(cls, template: NodeClaimTemplate, daemons: Iterable[Daemon], axes: Sequence[str]) -> NodePoolOptions:
        """Return the template's instance types with the capacity along these axes that daemons leave for pods."""
        table = template.table
        overhead: Ints = np.zeros((len(table.types), len(axes)), dtype=np.int64)
        taken = [frozenset[HostPort]()] * len(table.types)
        uses: list[DaemonUse] = []
        for daemon in daemons:
            running = types_running(template, daemon)
            if not running.any():
                continue
            uses.append(DaemonUse(daemon.pod.key, running, daemon.requests, daemon.ports))
            overhead[running] += [daemon.requests.get(axis, 0) for axis in axes]
            np.minimum(overhead, MAX_AMOUNT, out=overhead)
            for index in np.flatnonzero(running).tolist() if daemon.ports else ():
                taken[index] = taken[index].union(daemon.ports)
        allocatable = [table.amounts(axis, allocatable=True) for axis in axes]
        sizes: Ints = np.array(allocatable, dtype=np.int64).reshape(len(axes), len(table.types)).T - overhead
        groups = {ports: group for group, ports in enumerate(dict.fromkeys(taken))}
        return cls(
            template=template,
            sizes=sizes,
            overhead=overhead,
            usable=every(sizes >= 0),
            daemon_group=np.array([groups[ports] for ports in taken], dtype=np.int64),
            daemon_ports=tuple(groups),
            daemons=tuple(uses),
        )

    def rows(self, demand: NodeDemand, variant: TemplateVariant = WHOLE_TEMPLATE) -> Bools:
        """Return which offerings meet a demand in a variant, regardless of size. Callers must not change the array."""
        by_term = self.rows_by_term(demand)
        if len(by_term) == 1 and variant.admits(demand.terms[0]):
            return by_term[0]
        found: Bools = np.zeros(len(self.template.table.row_type), dtype=bool)
        for term, rows in zip(demand.terms, by_term, strict=True):
            if variant.admits(term):
                found |= rows
        return found

    def types_with_free_ports(self, ports: Collection[HostPort]) -> Bools:
        """Return which instance types' daemons leave these host ports free."""
        free = [not any(port.conflicts(used) for port in ports for used in taken) for taken in self.daemon_ports]
        by_type: Bools = np.array(free, dtype=bool)[self.daemon_group]
        return by_type

    def serves(self, demand: NodeDemand) -> bool:
        """Whether any offering meets a demand, regardless of size."""
        found = self._serves.get(demand)
        if found is None:
            found = self._serves[demand] = any(rows.any() for rows in self.rows_by_term(demand))
        return found

    def rows_by_term(self, demand: NodeDemand) -> tuple[Bools, ...]:
        """Return by term of a demand which offerings meet it; open labels are ignored."""
        if demand not in self._rows:
            launchable = self.template.rows & self.usable[self.template.table.row_type]
            if not demand.constraints.accepts(self.template.taints):
                launchable = np.zeros_like(launchable)
            self._rows[demand] = tuple(self.template.rows_meeting(term) & launchable for term in demand.terms)
        return self._rows[demand]

    def domains_for(
        self, demand: NodeDemand, keys: tuple[str, ...], request: Ints | None = None
    ) -> frozenset[tuple[str, ...]]:
        """Return the combinations of label values that a node for the demand can have, each in the order of `keys`.

        Args:
            demand: The demand; its decided labels are applied too.
            keys: Node labels. A label without listed values (the NodePool only requires it to exist) has no values.
            request: If given, return only combinations where one pod with this request (by axis) fits.
        """
        if (demand, keys) not in self._domain_sizes:
            self._domain_sizes[demand, keys] = self._find_domain_sizes(demand, keys)
        return self._domain_sizes[demand, keys].holding(request)

    def _find_domain_sizes(self, demand: NodeDemand, keys: tuple[str, ...]) -> _DomainSizes:
        found: dict[tuple[tuple[str, ...], ...], Bools] = {}
        for term, rows in zip(demand.terms, self.rows_by_term(demand), strict=True):
            for domains, where in self._combinations(term, keys, np.flatnonzero(rows)):
                types = found.setdefault(domains, np.zeros(len(self.sizes), dtype=bool))
                types[self.template.table.row_type[where]] = True
        sizes = [self._largest_of(types) for types in found.values()]
        return _DomainSizes(
            domains=tuple(found),
            sizes=np.concatenate((*sizes, self.sizes[:0])),
            owners=np.repeat(np.arange(len(sizes)), [len(s) for s in sizes]),
        )

    def _largest_of(self, types: Bools) -> Ints:
        """Return the sizes of these types, without those that another type exceeds on every axis."""
        key = types.tobytes()
        if key not in self._largest:
            sizes = self.sizes[types]
            sizes = sizes[np.argsort(-sizes.sum(axis=1), kind="stable")]
            self._largest[key] = sizes[undominated(sizes)]
        return self._largest[key]

    def _combinations(
        self, term: Requirements, keys: tuple[str, ...], rows: Ints
    ) -> Iterable[tuple[tuple[tuple[str, ...], ...], Ints]]:
        """Yield (combinations of the keys' values, the rows that allow them)."""
        for own, where in self.template.table.by_labels(keys, rows):
            domains = tuple(product(*(self._values(key, r, term) for key, r in zip(keys, own, strict=True))))
            if domains:
                yield domains, where

    def _values(self, key: str, own: Requirement | None, term: Requirements) -> tuple[str, ...]:
        """Return the sorted values of a label that NodePool, instance type and term allow; empty if none are listed."""
        parts = [r for r in (own, self.template.requirements.get(key), term.get(key)) if r is not None]
        if not parts:
            return ()
        merged = parts[0]
        for part in parts[1:]:
            merged = merged.intersection(part)
        return () if merged.complement else tuple(sorted(merged.values))


class CompatibleOfferings(Struct, frozen=True, kw_only=True, eq=False):
    """The offerings compatible with any demand in a list, by price, then NodePool order, then type name.

    Every array has one entry per offering. `pools` are indices into the NodePools given, `variants` into
    `variants_by_pool`, `types` into the template's types. `constraints` index `allowed`, which has by them and demand
    whether they are compatible. `prices` include the NodePool's surcharge per node, `fees`. `reservation` is the
    reservation that an offering draws on, an index into `reservations`, or -1.
    """

    pools: Ints
    variants: Ints
    types: Ints
    prices: Floats
    fees: Floats
    sizes: Ints
    constraints: Ints
    allowed: Bools
    reservation: Ints
    reservations: tuple[str, ...]
    variants_by_pool: tuple[tuple[TemplateVariant, ...], ...]

    def only(self, offers: Bools | Ints) -> CompatibleOfferings:
        """Return a copy with only these offerings."""
        by_offering = ("pools", "variants", "types", "prices", "fees", "sizes", "constraints", "reservation")
        return replace(self, **{name: getattr(self, name)[offers] for name in by_offering})


def compatible_offerings(
    pools: Sequence[NodePoolOptions], demands: Sequence[NodeDemand], varied: Ints | None = None
) -> CompatibleOfferings:
    """Return the offerings compatible with any demand; only the cheapest per NodePool, variant, type and constraints.

    Args:
        pools: NodePools of one order.
        demands: The pods' demands.
        varied: The axes that pods request; if given, offerings of NodePools with minValues are reduced to the size
            that enough different types also have.
    """
    variants = tuple(variants_of(pool.template, demands) for pool in pools)
    reservations = tuple(sorted({name for pool in pools for name in pool.template.table.reservations}))
    constraints: dict[bytes, int] = {}
    parts = [
        part
        for index, pool in enumerate(pools)
        for part in _parts(
            index, pool, variants[index], demands, reservations=reservations, varied=varied, constraints=constraints
        )
    ]
    indices = np.concatenate([p.indices for p in parts] or [np.zeros((5, 0), dtype=np.int64)], axis=1)
    pool, variant, types, numbers, reservation = indices
    fees = np.array([s.template.node_surcharge for s in pools])[pool]
    prices = np.concatenate([p.prices for p in parts] or [np.zeros(0)]) + fees
    order = np.lexsort((types, variant, pool, prices))
    packed = np.frombuffer(b"".join(constraints), dtype=np.uint8).reshape(len(constraints), -(-len(demands) // 8))
    sizes = np.concatenate((*(p.sizes for p in parts), pools[0].sizes[:0]))
    return CompatibleOfferings(
        pools=pool[order],
        variants=variant[order],
        types=types[order],
        prices=prices[order],
        fees=fees[order],
        sizes=sizes[order],
        constraints=numbers[order],
        allowed=np.unpackbits(packed, axis=1, count=len(demands)).astype(bool),
        reservation=reservation[order],
        reservations=reservations,
        variants_by_pool=variants,
    )


class _VariantOfferings(NamedTuple):
    """The compatible offerings of one variant of a NodePool.

    `indices` has the rows pool, variant, type, constraints and reservation, as in `CompatibleOfferings`; a column per
    offering.
    """

    indices: Ints
    prices: Floats
    sizes: Ints


def _parts(
    index: int,
    pool: NodePoolOptions,
    variants: Sequence[TemplateVariant],
    demands: Sequence[NodeDemand],
    *,
    reservations: Sequence[str],
    varied: Ints | None,
    constraints: dict[bytes, int],
) -> Iterator[_VariantOfferings]:
    """Yield the offerings of one NodePool by variant; adds new bit patterns to `constraints`, which numbers them."""
    table = pool.template.table
    served = [(w, demand) for w, demand in enumerate(demands) if pool.serves(demand)]
    if not served:
        return
    terms = [(w, term) for w, demand in served for term in demand.terms]
    by_term = np.array([rows for _, demand in served for rows in pool.rows_by_term(demand)], dtype=bool)
    rows = np.flatnonzero(np.logical_or.reduce(by_term, axis=0))
    codes, patterns = numbered(by_term[:, rows])
    rows, codes = _cheapest(table, rows, codes)
    owners = np.array([w for w, _ in terms])
    numbers_of_reservations = [-1, *map(reservations.index, table.reservations)]
    reservation = np.array(numbers_of_reservations, dtype=np.int64)[table.row_reservation[rows] + 1]
    for v, variant in enumerate(variants):
        admitted = np.array([variant.admits(term) for _, term in terms], dtype=bool)
        bits: Bools = np.zeros((len(demands), len(patterns)), dtype=bool)
        np.logical_or.at(bits, owners, (patterns & admitted).T)
        served_demands: Bools = bits.T
        types, sizes = table.row_type[rows], pool.sizes[table.row_type[rows]]
        if varied is not None and pool.template.min_values:
            served_demands = with_variety(pool, types, codes, served_demands)
            sizes = varied_sizes(pool, types, pool.sizes, (codes, served_demands), varied)
        packed = np.packbits(served_demands, axis=1)
        numbers = np.array([constraints.setdefault(row.tobytes(), len(constraints)) for row in packed], dtype=np.int64)
        useful = np.flatnonzero(np.logical_or.reduce(served_demands, axis=1)[codes])
        columns = (
            np.full(len(useful), index),
            np.full(len(useful), v),
            types[useful],
            numbers[codes[useful]],
            reservation[useful],
        )
        yield _VariantOfferings(np.stack(columns), table.prices[rows[useful]], sizes[useful])


def _cheapest(table: OfferingTable, rows: Ints, codes: Ints) -> tuple[Ints, Ints]:
    """Return the cheapest row per type, code and reservation, in the table's order, and their codes."""
    types, reservation, prices = table.row_type[rows], table.row_reservation[rows], table.prices[rows]
    order = np.lexsort((rows, prices, reservation, codes, types))
    groups = np.stack((types, codes, reservation))[:, order]
    first = np.flatnonzero(np.concatenate(([True], (groups[:, 1:] != groups[:, :-1]).any(axis=0))))
    chosen = np.sort(order[first])
    return rows[chosen], codes[chosen]


def worth_considering(offerings: CompatibleOfferings, axes: Ints) -> Bools:
    """Return which offerings no other of the same constraints dominates.

    An offering dominates another if it costs at most as much and is at least as large on every axis. A reservation may
    run out, so an offering that uses one dominates only offerings of the same reservation.
    """
    undominated_offerings: Bools = np.zeros(len(offerings.prices), dtype=bool)
    sizes = offerings.sizes[:, axes]
    groups = offerings.constraints * (len(offerings.reservations) + 1) + offerings.reservation + 1
    order = np.lexsort((-sizes.sum(axis=1), offerings.prices, groups))  # at equal prices, larger ones first
    cache: dict[bytes, Ints] = {}  # many groups offer the same at the same prices
    for members in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        offered = sizes[members]
        key = offered.tobytes()
        if key not in cache:
            cache[key] = undominated(offered)
        undominated_offerings[members[cache[key]]] = True
    return undominated_offerings
