"""NodePools as NodeClaim templates, in Karpenter's order, their minValues, and the NodeClaims of planned nodes.

A NodeClaim of a NodePool with minValues must list instance types with that many different values of a label (for
example, instance families). Its pods must therefore fit all of these types, so packing uses smaller offerings: each is
reduced to the size that enough other types also have.

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaimtemplate.go, provisioner.go `NewScheduler`;
pkg/cloudprovider/types.go `SatisfiesMinValues`; pkg/controllers/provisioning/scheduling/nodeclaim.go
`FinalizeScheduling`.
Differs: NodePools of equal weight compete on price, where Karpenter takes the last by name; a NodeClaim's name is
derived, not random, so that the same decision made twice creates one NodeClaim; an annotation lists the pods it was
planned for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
from msgspec import Struct, field, to_builtins

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement, Pod, Taint
from journeyman.core.api.resources import format_resources
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.arrays import Bools, Floats, Ints
from journeyman.core.scheduling.offerings import OfferingTable, offering_tables
from journeyman.core.scheduling.requirements import (
    EMPTY,
    InvalidRequirementError,
    Requirements,
    from_labels,
    from_selectors,
)
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.state.launch_backoff import why_backed_off
from journeyman.core.state.pod_predicates import is_owned_by
from journeyman.core.state.skipped_objects import SkippedObject, evaluate
from journeyman.core.state.snapshot import Snapshot
from journeyman.core.state.state_node import StateNode
from journeyman.errors import ConfigurationError

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool

BY_PRICE = "price"
FEWEST_NODES = "fewest-nodes"
NO_TYPES = "nodepool requirements filtered out all available instance types"
"""Start of the message for a NodePool that is unusable although its NodeClass is ready."""
_STATIC: Final = "static NodePools are not scaled for pods"


class PoolOrder(NamedTuple):
    """Sort key of a NodePool; the smallest is tried first. `rank` is its negated weight."""

    rank: int
    fewest_nodes: bool


class NodeClaimTemplate(Struct, frozen=True, kw_only=True, eq=False):
    """One NodePool ready for scheduling.

    `taints` are those of its nodes, without startup taints. Templates of equal `order` compete on price; the smaller
    goes first. `requirements` are those of its nodes, including that they will be registered and initialized. `rows`
    are the offerings of `table` that are available and meet the requirements. `node_surcharge` is the NodePool's
    surcharge per node, `warning` says which annotations are invalid and ignored. `min_values` has by label how many
    different values a claim must list.
    """

    node_pool: NodePool
    name: str
    taints: tuple[Taint, ...]
    order: PoolOrder
    requirements: Requirements
    table: OfferingTable
    rows: Bools
    node_surcharge: float = 0.0
    warning: str = ""
    min_values: Mapping[str, int] = field(default_factory=dict)

    @property
    def types(self) -> Bools:
        """Which instance types the NodePool may launch, available or not."""
        found: Bools = np.zeros(len(self.table.types), dtype=bool)
        found[self.table.row_type[self.table.rows_meeting(self.requirements)]] = True
        return found

    def narrowed(self, term: Requirements) -> Requirements:
        """Return the term, each key intersected with the NodePool's requirement."""
        own = self.requirements
        return Requirements({k: own[k].intersection(wanted) if k in own else wanted for k, wanted in term.items()})

    def rows_meeting(self, term: Requirements) -> Bools:
        """Return which offerings of the table, available or not, meet a term on a node of the NodePool."""
        if not self.requirements.is_compatible(term, allow_undefined=labels.WELL_KNOWN):
            return np.zeros(len(self.table.row_type), dtype=bool)
        return self.table.rows_meeting(self.narrowed(term))


def node_class_label(pool: NodePool) -> tuple[str, str]:
    """The label that names a node's NodeClass: `<group>/<lower-case kind>` and the name."""
    ref = pool.spec.template.spec.node_class_ref
    return labels.node_class_label(ref.group, ref.kind), ref.name


def make_templates(snapshot: Snapshot, catalogue: Catalogue) -> tuple[tuple[NodeClaimTemplate, ...], dict[str, str]]:
    """Return the templates by weight, then name, both descending, and by name why other NodePools are unusable."""
    tables = offering_tables(catalogue)
    templates: list[NodeClaimTemplate] = []
    invalid_objects: dict[str, str] = {}
    for pool in sorted(snapshot.node_pools, key=lambda p: p.metadata.name, reverse=True):
        found = _STATIC if pool.spec.static else evaluate(pool, _template, pool, snapshot, tables)
        if isinstance(found, NodeClaimTemplate):
            templates.append(found)
        else:
            invalid_objects[pool.metadata.name] = found.why if isinstance(found, SkippedObject) else found
    templates.sort(key=lambda t: t.order)  # stable: names stay descending
    return tuple(templates), dict(sorted(invalid_objects.items()))


def make_template(pool: NodePool, snapshot: Snapshot, catalogue: Catalogue) -> NodeClaimTemplate | str:
    """Return one NodePool's template, or why it has none; static NodePools replace their nodes with it."""
    return _template(pool, snapshot, offering_tables(catalogue))


def _template(pool: NodePool, snapshot: Snapshot, tables: Mapping[str, OfferingTable]) -> NodeClaimTemplate | str:
    """Return the NodePool's template, or why it has none."""
    reason = _not_usable(pool, snapshot)
    if reason:
        return reason
    table = tables.get(pool.metadata.name)
    if table is None or not table.types:
        return "no instance types are known for its NodeClass"
    try:
        requirements = _requirements(pool)
    except InvalidRequirementError as error:
        return error.message
    contradictory = [key for key, wanted in sorted(requirements.items()) if wanted.impossible]
    if contradictory:
        return f"{NO_TYPES}: no value meets all that its requirements and labels ask of {', '.join(contradictory)}"
    suitable = table.rows_meeting(requirements)
    if not suitable.any():
        unmet = table.unmet(requirements)
        return f"{NO_TYPES}{f': there is none with {unmet}' if unmet else ''}"
    node_surcharge, warning = _settings(pool) if pool.metadata.annotations else (0.0, "")
    return NodeClaimTemplate(
        node_pool=pool,
        name=pool.metadata.name,
        taints=tuple(pool.spec.template.spec.taints),
        order=PoolOrder(-pool.spec.weight, pool.packing == FEWEST_NODES),
        requirements=requirements,
        table=table,
        rows=suitable & table.available,
        node_surcharge=node_surcharge,
        warning=warning,
        min_values={key: r.min_values for key, r in sorted(requirements.items()) if r.min_values},
    )


def _settings(pool: NodePool) -> tuple[float, str]:
    """Return the NodePool's surcharge per node, and a warning that names its invalid annotations, which are ignored."""
    surcharge, warnings = 0.0, list[str]()
    try:
        surcharge = pool.node_surcharge
    except ConfigurationError as error:
        warnings.append(f"{error.message}; its nodes are planned without it")
    if pool.packing not in {BY_PRICE, FEWEST_NODES}:
        wrong = f"annotation {labels.PACKING}: {pool.packing!r} is neither {BY_PRICE} nor {FEWEST_NODES}"
        warnings.append(f"{wrong}; packed by {BY_PRICE}")
    mode = pool.metadata.annotations.get(labels.REBALANCE, labels.REBALANCE_REPLACE)
    if mode != labels.REBALANCE_REPLACE:
        wrong = f"annotation {labels.REBALANCE}: {mode!r} is not {labels.REBALANCE_REPLACE}"
        warnings.append(f"{wrong}; rebalancing is only recommended")
    return surcharge, "; ".join(warnings)


def _not_usable(pool: NodePool, snapshot: Snapshot) -> str:
    if pool.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    if pool.is_hibernating(snapshot.now):
        return f"it hibernates (annotation {labels.HIBERNATE})"
    node_class = snapshot.node_class_of(pool)
    ref = pool.spec.template.spec.node_class_ref
    if node_class is None:
        return f"{ref.kind} {ref.name} does not exist"
    if node_class.deleting or not node_class.ready:
        why = "is being deleted" if node_class.deleting else f"is not ready: {node_class.message or node_class.reason}"
        return f"{ref.kind} {ref.name} {why}"
    return why_backed_off(pool, snapshot)


def _requirements(pool: NodePool) -> Requirements:
    template = pool.spec.template
    class_key, class_name = node_class_label(pool)
    fixed = {
        **template.metadata.labels,
        labels.NODEPOOL: pool.metadata.name,
        class_key: class_name,
        labels.REGISTERED: "true",
        labels.INITIALIZED: "true",
    }
    return from_selectors(template.spec.requirements) & from_labels(fixed)


_ROUNDING = 1e-12


class HasNodeClaimTemplate(Protocol):
    """The part of NodePoolOptions that the minValues functions read."""

    @property
    def template(self) -> NodeClaimTemplate:
        """The template with the minValues and the instance types."""


def distinct_enough(pool: HasNodeClaimTemplate, types: Bools | Ints) -> bool:
    """Whether these instance types (a mask, or indices) have as many different values as minValues require."""
    return achievable(pool, types) == pool.template.min_values


def achievable(pool: HasNodeClaimTemplate, types: Bools | Ints) -> Mapping[str, int]:
    """Return by label with minValues how many different values these types have, capped at the minValues."""
    offered = {key: pool.template.table.type_values(key)[types] for key in pool.template.min_values}
    counts = {key: int(np.count_nonzero(np.logical_or.reduce(values, axis=0))) for key, values in offered.items()}
    return {key: min(counts[key], least) for key, least in pool.template.min_values.items()}


def needed_for_variety(pool: HasNodeClaimTemplate, types: Ints) -> list[int]:
    """Return the first of these types that together satisfy minValues.

    If they cannot satisfy it, return every type that adds a new value.
    """
    template = pool.template
    needed: dict[int, None] = {}
    for key, minimum in template.min_values.items():
        values = template.table.type_values(key)
        seen: Bools = np.zeros(values.shape[1], dtype=bool)
        for chosen in needed:
            seen |= values[chosen]
        for candidate in types.tolist():
            if np.count_nonzero(seen) >= minimum:
                break
            if (values[candidate] & ~seen).any():
                needed[candidate] = None
                seen |= values[candidate]
    return list(needed)


def with_variety(pool: HasNodeClaimTemplate, types: Ints, codes: Ints, patterns: Bools) -> Bools:
    """Return by kind of offering the demands it serves, reduced until enough different types serve all of them.

    Args:
        pool: A NodePool with minValues.
        types: The type of each offering.
        codes: The kind of each offering, an index into `patterns`.
        patterns: By kind and demand, whether such an offering meets it.

    Returns:
        The patterns; a kind that too few types share loses the demands that make it rare, or all demands if removing
        those is not enough.
    """
    reduced: Bools = patterns.copy()
    for kind in range(len(patterns)):
        shared = patterns & patterns[kind]
        for other in np.argsort(-shared.sum(axis=1), kind="stable"):
            if distinct_enough(pool, types[_suiting(shared[other], patterns)[codes]]):
                reduced[kind] = shared[other]
                break
        else:
            reduced[kind] = False
    return reduced


def _suiting(pattern: Bools, patterns: Bools) -> Bools:
    """Return which patterns meet all demands of this one."""
    suiting: Bools = np.logical_and.reduce(patterns | ~pattern, axis=1)
    return suiting


def varied_sizes(
    pool: HasNodeClaimTemplate, types: Ints, sizes: Ints, kinds: tuple[Ints, Bools], requested: Ints
) -> Ints:
    """Return each offering's size, reduced to what enough different types also have.

    Args:
        pool: A NodePool with minValues.
        types: The type of each offering.
        sizes: Allocatable by type of the table and axis.
        kinds: The kind of each offering, and which demands each kind serves (`with_variety`).
        requested: The axes that pods request; the sizes along other axes are not reduced.

    Returns:
        Sizes by offering and axis; the types that hold a size have as many values of each label as minValues require.
    """
    codes, patterns = kinds
    reduced = sizes[types]
    for kind in range(len(patterns)):
        offerings = np.flatnonzero(codes == kind)
        others = np.array(sorted(set(types[_suiting(patterns[kind], patterns)[codes]].tolist())), dtype=np.int64)
        shares = _shares(sizes[types[offerings]][:, requested], sizes[others][:, requested])
        least = np.ones(len(offerings))
        for key, wanted in pool.template.min_values.items():
            least = np.minimum(least, _nth_best(shares, pool.template.table.type_values(key)[others], wanted))
        scaled = np.floor(reduced[np.ix_(offerings, requested)] * least[:, None] * (1 - _ROUNDING)).astype(np.int64)
        reduced[np.ix_(offerings, requested)] = np.where(
            least[:, None] < 1, scaled, reduced[np.ix_(offerings, requested)]
        )
    return reduced


def _shares(sizes: Ints, others: Ints) -> Floats:
    """Return by size and other size the share of the first that the second holds, at most 1."""
    shares = np.ones((len(sizes), len(others)))
    for axis in range(sizes.shape[1]):
        own_size = sizes[:, axis]
        ratio = others[:, axis] / np.maximum(own_size, 1)[:, None]
        shares = np.minimum(shares, np.where(own_size[:, None] > 0, ratio, 1.0))
    return shares


def _nth_best(shares: Floats, values: Bools, n: int) -> Floats:
    """Return by size the share that the best types with `n` different values hold; 0 if there are fewer values."""
    best = (
        np.stack([shares[:, has].max(axis=1, initial=0.0) for has in values.T], axis=1) if values.shape[1] else shares
    )
    if best.shape[1] < n or not values.shape[1]:
        return np.zeros(len(shares))
    nth: Floats = np.partition(best, best.shape[1] - n, axis=1)[:, best.shape[1] - n]
    return nth


NAME_CHARACTERS: Final = 8
MAX_PLANNED_BYTES: Final = 32 * 1024  # an eighth of what the API server allows all annotations together
_UID_CHARACTERS: Final = 8
_BASE36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_MAX_NAME: Final = 63  # a claim's name becomes a label value


def claim_name(pool: str, seed: str, pods: Sequence[str]) -> str:
    """Return `<pool>-<8 base 36 characters>`, the same for the same seed and pods.

    Args:
        pool: NodePool name; shortened if the claim name would be too long for a label value.
        seed: A value that is different for each decision about the same pods.
        pods: UIDs (or keys) of the planned pods, in any order.
    """
    digest = hashlib.sha256("\0".join((pool, seed, *sorted(pods))).encode()).digest()
    number = int.from_bytes(digest, "big")
    suffix = ""
    for _ in range(NAME_CHARACTERS):
        number, digit = divmod(number, 36)
        suffix += _BASE36[digit]
    return f"{pool[: _MAX_NAME - NAME_CHARACTERS - 1].rstrip('-.')}-{suffix}"


class PlannedPod(Struct, frozen=True, kw_only=True):
    """A pod in the planned-pods annotation: `namespace/name`, and the start of its UID (empty if unknown)."""

    key: str
    uid: str = ""

    def means(self, pod: Pod) -> bool:
        """Whether this entry matches the pod: the same key and UID, or a StatefulSet's replacement for it."""
        same = not self.uid or pod.metadata.uid.startswith(self.uid)
        return pod.key == self.key and (same or is_owned_by(pod, "StatefulSet", "apps"))


def promised_labels(node: StateNode) -> Requirements:
    """Return the label requirements of a NodeClaim that has not launched."""
    try:
        requirements = from_selectors(node.claim.spec.requirements) if node.claim is not None else EMPTY
        return requirements & from_labels(node.labels)
    except InvalidRequirementError:  # the NodeClaim was edited
        return EMPTY


def planned_pods(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the pods (`namespace/name`) that a NodeClaim was planned for."""
    return tuple(pod.key for pod in parse_planned_pods(annotations))


def parse_planned_pods(annotations: Mapping[str, str]) -> tuple[PlannedPod, ...]:
    """Parse the planned-pods annotation: entries are `namespace/name:<8 characters of the UID>`."""
    entries = (entry.partition(":") for entry in annotations.get(labels.PLANNED_PODS, "").split(",") if entry)
    return tuple(PlannedPod(key=key, uid=uid) for key, _, uid in entries)


def format_planned_pods(keys: Sequence[str], uids: Mapping[str, str]) -> str:
    """Return the planned-pods annotation for these pods; pods beyond its size limit are left out and are not nominated.

    Args:
        keys: `namespace/name` of each.
        uids: The known UIDs by key.
    """
    text = ",".join(f"{key}:{uids[key][:_UID_CHARACTERS]}" if uids.get(key) else key for key in keys)
    if len(text) <= MAX_PLANNED_BYTES:
        return text
    return text[: MAX_PLANNED_BYTES + 1].rpartition(",")[0]


def to_node_claim(
    planned: PlannedClaim,
    pool: NodePool,
    *,
    name: str,
    hash: str,  # noqa: A002 - Karpenter's word
    hash_version: str,
    uids: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the NodeClaim manifest.

    Args:
        planned: The planned node.
        pool: Its NodePool.
        name: From `claim_name`.
        hash: The NodePool's static hash, for drift.
        hash_version: The version of the hashing.
        uids: The UIDs of the planned pods that already exist, by key.
    """
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {
            "name": name,
            "labels": _labels(planned, pool),
            "annotations": {
                **pool.spec.template.metadata.annotations,
                labels.NODEPOOL_HASH: hash,
                labels.NODEPOOL_HASH_VERSION: hash_version,
                labels.MIN_VALUES_RELAXED: "true" if planned.min_values_relaxed else "false",
                labels.PLANNED_PODS: format_planned_pods(planned.pods, uids),
                **dict.fromkeys(planned.overlays, "true"),
                **({labels.DRA_DRIVERS: ",".join(planned.dra_drivers)} if planned.dra_drivers else {}),
            },
            "ownerReferences": [
                {
                    "apiVersion": "karpenter.sh/v1",
                    "kind": "NodePool",
                    "name": pool.metadata.name,
                    "uid": pool.metadata.uid,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "requirements": [_to_wire(r) for r in planned.requirements],
            "resources": {"requests": format_resources(planned.requests)},
            **_template_spec(pool),
        },
    }


def adopted_spec(pool: NodePool, node_labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec of a NodeClaim whose instance runs: its offering is from its Node's labels."""
    known = (labels.NODEPOOL, labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE, labels.ARCH, labels.OS)
    values = {**node_labels, labels.NODEPOOL: pool.metadata.name}
    requirements = [{"key": key, "operator": "In", "values": [values[key]]} for key in known if values.get(key)]
    return {"requirements": requirements, "resources": {"requests": {}}, **_template_spec(pool)}


def _template_spec(pool: NodePool) -> dict[str, Any]:
    template = pool.spec.template.spec
    ref = template.node_class_ref
    spec: dict[str, Any] = {
        "nodeClassRef": {"group": ref.group, "kind": ref.kind, "name": ref.name},
        "expireAfter": template.expire_after,
    }
    if template.taints:
        spec["taints"] = [_to_wire(taint) for taint in template.taints]
    if template.startup_taints:
        spec["startupTaints"] = [_to_wire(taint) for taint in template.startup_taints]
    if template.termination_grace_period is not None:
        spec["terminationGracePeriod"] = template.termination_grace_period
    return spec


def _labels(planned: PlannedClaim, pool: NodePool) -> dict[str, str]:
    """Return the template's labels, the NodePool and NodeClass labels, and one value per required custom label."""
    class_key, class_name = node_class_label(pool)
    custom = {
        r.key: r.values[0]
        for r in planned.requirements
        if r.operator == "In" and r.values and r.key not in labels.WELL_KNOWN and not labels.is_restricted(r.key)
    }
    return {
        **custom,
        **pool.spec.template.metadata.labels,
        labels.NODEPOOL: pool.metadata.name,
        class_key: class_name,
    }


def _to_wire(part: NodeSelectorRequirement | Taint) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in to_builtins(part).items()}
