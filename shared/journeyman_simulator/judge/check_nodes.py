"""Checks each node by itself: planned NodeClaims, pods on existing nodes, limits and reservations, volumes.

A NodeClaim must suit all its pods, whichever of its offerings is launched. NodePool limits and reservations must not be
exceeded, whichever instance types are launched.

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaim.go, existingnode.go, scheduler.go
`filterByRemainingResources`, reservationmanager.go, volumetopology.go, pkg/scheduling/volumeusage.go.
Differs: Karpenter believes what a node reports; `nodes` is counted within a pass as well; the host ports of daemons that have not started yet are in use on
existing nodes as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from journeyman.core.api import labels
from journeyman.core.api.objects import Node, NodeClaim, NodeSelectorRequirement, QuantityText
from journeyman.core.api.resources import NODES, add, subtract, to_resources
from journeyman.core.api.storage import PersistentVolumeClaim, StorageClass
from journeyman.core.scheduling.results import Defect, PlannedClaim, name_of_claim, name_of_node
from journeyman.core.scheduling.verify.matching import (
    Alternatives,
    PodKind,
    Port,
    conflicting_port,
    is_daemon,
    is_met,
    normalized,
    total_requests,
    untolerated,
)
from journeyman.core.state import Snapshot, StateNode
from journeyman.errors import InvalidQuantityError
from journeyman_simulator.judge.possible_labels import PossibleLabels, Rows
from journeyman_simulator.judge.possible_nodes import CheckedNode, PlanIndex, PossibleLaunches, why_unlaunchable

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool

_PRICE_TOLERANCE = 1e-9


def check_claims(index: PlanIndex, storage: StorageIndex) -> Iterator[Defect]:
    """Check each planned NodeClaim by itself."""
    for claim in index.results.new_claims:
        pool = index.snapshot.node_pools_by_name.get(claim.node_pool)
        why = "does not exist" if pool is None else why_unlaunchable(pool, index.snapshot)
        if why:
            yield Defect(
                f"the NodeClaim for {', '.join(claim.pods[:3])}: NodePool {claim.node_pool} {why}",
                (name_of_claim(claim),),
            )
    for node in index.new_nodes:
        if node.claim is not None:
            launches = index.launches(node.claim.node_pool)
            kinds = {kind: key for key, kind in sorted(node.planned.items(), reverse=True)}
            yield from _check_choice(launches, node, node.claim)
            yield from _check_min_values(launches, node, node.claim)
            yield from _check_labels(launches, node, kinds, storage)
            yield from _check_claim_taints(node, kinds)
            yield from _check_claim_capacity(launches, node, node.claim)


def _check_choice(launches: PossibleLaunches, node: CheckedNode, claim: PlannedClaim) -> Iterator[Defect]:
    """Check that the listed types can be launched and that the price is that of the cheapest offering."""
    offerings = launches.offerings
    for name in claim.instance_types:
        if not offerings.by_type.get(name, 0) & node.rows:
            yield node.defect(f"{name} cannot be launched under its requirements")
    more = node.rows & ~launches.rows_of(claim.instance_types)
    if more:
        yield node.defect(f"{_first(launches, more)} could be launched under its requirements, but is not planned for")
    priced_by = claim.offering[:3]
    if not _can_be(launches, node, *priced_by):
        yield node.defect(f"it can never be {' '.join(priced_by)}, by which it is priced")
    if not node.rows:
        yield node.defect("nothing can be launched under its requirements")
        return
    cheapest = offerings.rows[_lowest(node.rows)][1].price
    if not abs(cheapest - claim.price) <= _PRICE_TOLERANCE:
        yield node.defect(f"says {claim.price} per hour, its cheapest offering costs {cheapest}")


def _check_min_values(launches: PossibleLaunches, node: CheckedNode, claim: PlannedClaim) -> Iterator[Defect]:
    """Check that the listed types have as many values of each label as minValues require."""
    if claim.min_values_relaxed:
        return
    for requirement in launches.pool.spec.template.spec.requirements:
        if requirement.min_values is not None:
            offered = _declared(launches, claim.instance_types, normalized(requirement.key))
            number = sum(1 for value in offered if is_met(requirement, value))
            if number < requirement.min_values:
                yield node.defect(
                    f"its types offer {number} value(s) of {requirement.key}, NodePool {claim.node_pool} wants "
                    f"{requirement.min_values}"
                )


def _declared(launches: PossibleLaunches, types: Iterable[str], key: str) -> set[str]:
    """Return the values of a label among these instance types, regardless of offerings."""
    return {
        value
        for name in types
        if name in launches.offerings.types
        for requirement in launches.offerings.types[name].requirements
        if normalized(requirement.key) == key and requirement.operator == "In"
        for value in requirement.values
    }


def _check_labels(
    launches: PossibleLaunches, node: CheckedNode, kinds: dict[PodKind, str], storage: StorageIndex
) -> Iterator[Defect]:
    """Check that every possible launch meets the requirements of the NodePool, the pods and their volumes."""
    broken = launches.pool_requirements if node.rows & ~launches.rows_meeting_pool(node.possible) else ()
    for rule in broken:
        unmet = node.rows & ~node.possible.rows_meeting((((rule,),),))
        if unmet:
            where = _first(launches, unmet)
            yield node.defect(f"as {where} it breaks the NodePool's requirement {rule.key} {rule.operator}")
    for kind, pod in kinds.items():
        unsuitable = node.rows & ~node.possible.rows_meeting(kind.node_requirements)
        if unsuitable:
            yield node.defect(f"pod {pod} does not accept its labels as {_first(launches, unsuitable)}")
        out_of_reach = node.rows & ~node.possible.rows_meeting(storage.node_requirements(kind))
        if out_of_reach:
            yield node.defect(f"the volumes of pod {pod} cannot be reached from {_first(launches, out_of_reach)}")


def _check_claim_taints(node: CheckedNode, kinds: dict[PodKind, str]) -> Iterator[Defect]:
    for kind, pod in kinds.items():
        taint = untolerated(kind.pod, node.taints)
        if taint is not None:
            yield node.defect(f"pod {pod} does not tolerate taint {taint.key}={taint.value}:{taint.effect}")


def _check_claim_capacity(launches: PossibleLaunches, node: CheckedNode, claim: PlannedClaim) -> Iterator[Defect]:
    """Check that every possible launch fits all pods and daemons, host ports included, and that the requests suffice."""
    wanted = total_requests(node.planned.values())
    for resource, amount in sorted(wanted.items()):
        if amount > claim.requests.get(resource, 0):
            yield node.defect(f"requests {resource} {claim.requests.get(resource, 0)}, its pods request {amount}")
    for part in launches.overheads(node.possible):
        rows = part.rows & node.rows
        if not rows:
            continue
        for resource in sorted({*wanted, *part.requests}):
            amount, taken = wanted.get(resource, 0), part.requests.get(resource, 0)
            short = rows & launches.offerings.smaller_than(resource, amount + taken)
            if short:
                yield node.defect(
                    f"{resource} {amount} requested beside {taken} of daemons, {_first(launches, short)} has less"
                )
        yield from _check_ports(node, {"its daemons": part.ports})


def _check_ports(node: CheckedNode, in_use: Mapping[str, Sequence[Port]]) -> Iterator[Defect]:
    """Check that the planned pods use each host port once, and none that is in use.

    Args:
        node: The node.
        in_use: The host ports in use on the node, by the text that names their user.
    """
    planned: list[Port] = []
    taken: dict[str, Sequence[Port]] = {**in_use, "another pod": planned}
    for pod, kind in sorted(node.planned.items()):
        for by, ports in taken.items() if kind.ports else ():
            port = conflicting_port(kind.ports, ports)
            if port:
                yield node.defect(f"host port {port} of pod {pod} is taken by {by}")
                break
        planned += kind.ports


def _can_be(launches: PossibleLaunches, node: CheckedNode, instance_type: str, zone: str, capacity_type: str) -> bool:
    """Whether the node may be launched as such an offering."""
    rows = node.rows & launches.offerings.by_type.get(instance_type, 0)
    while rows:
        _, offering = launches.offerings.rows[_lowest(rows)]
        if (offering.zone, offering.capacity_type) == (zone, capacity_type):
            return True
        rows &= rows - 1
    return False


def _first(launches: PossibleLaunches, rows: Rows) -> str:
    instance_type, offering = launches.offerings.rows[_lowest(rows)]
    return f"{instance_type.name} in {offering.zone}"


def _lowest(rows: Rows) -> int:
    return (rows & -rows).bit_length() - 1


def check_existing(index: PlanIndex, storage: StorageIndex) -> Iterator[Defect]:
    """Check each existing node that gets pods."""
    usable = {
        node.state_node.name: node
        for node in index.existing_nodes
        if node.state_node is not None and node.is_schedulable
    }
    for name, pods in sorted(index.results.existing.items()):
        if name not in usable:
            node, shown = name_of_node(name), ", ".join(pods[:3])
            yield Defect(
                f"{node} gets pods ({shown}) although it does not exist, is going, or was to be left out", (node,)
            )
        elif pods:
            yield from _check_node(index, usable[name], storage)


def _check_node(index: PlanIndex, node: CheckedNode, storage: StorageIndex) -> Iterator[Defect]:
    for pod, kind in node.planned.items():
        taint = untolerated(kind.pod, node.taints)
        if taint is not None:
            yield node.defect(f"pod {pod} does not tolerate taint {taint.key}:{taint.effect}")
        if not meets_labels(node, kind.node_requirements):
            yield node.defect(f"pod {pod} does not accept its labels")
        if not meets_labels(node, storage.node_requirements(kind)):
            yield node.defect(f"the volumes of pod {pod} cannot be reached from there")
    pool = node.state_node.node_pool if node.state_node is not None else ""
    daemons = [daemon for daemon in index.daemons_of_pool(pool) if _belongs(daemon, node)]
    yield from _check_node_capacity(node, daemons)
    running = [port for kind in node.remaining for port in kind.ports]
    expected = [port for daemon in daemons for port in daemon.ports]
    yield from _check_ports(node, {"a pod that runs there": running, "its daemons": expected})
    yield from storage.check_attachments(node)


def meets_labels(node: CheckedNode, node_requirements: Iterable[Alternatives]) -> bool:
    """Whether the node's labels meet these; for a NodeClaim without an instance, all labels it may get."""
    alternatives = tuple(node_requirements)
    if node.possible.rows_meeting(alternatives) & node.rows:
        return True
    return (
        node.is_unlaunched
        and node.state_node is not None
        and bool(_promised_labels(node.state_node).rows_meeting(alternatives))
    )


def _promised_labels(node: StateNode) -> PossibleLabels:
    """Return the labels of a NodeClaim not launched yet as one row, including those that it lists values for."""
    requirements = node.claim.spec.requirements if node.claim is not None else ()
    column: dict[str, frozenset[str]] = {}
    for requirement in requirements:
        if requirement.operator == "In":
            of_key = [other for other in requirements if other.key == requirement.key]
            values = frozenset(v for v in requirement.values if all(is_met(other, v) for other in of_key))
            column[normalized(requirement.key)] = values
    column.update((key, frozenset({value})) for key, value in node.labels.items())
    return PossibleLabels(1, {key: {values: 1} for key, values in column.items()})


def _belongs(daemon: PodKind, node: CheckedNode) -> bool:
    """Whether a daemon runs or will run on the node."""
    return untolerated(daemon.pod, node.taints) is None and bool(
        node.possible.rows_meeting(daemon.node_requirements) & node.rows
    )


def _check_node_capacity(node: CheckedNode, daemons: Sequence[PodKind]) -> Iterator[Defect]:
    """Check that the remaining pods, missing daemons and planned pods do not exceed the node's allocatable."""
    try:
        left = subtract(left_on(node, daemons), total_requests(node.planned.values()))
    except InvalidQuantityError as error:
        yield node.defect(f"its size cannot be read: {error.message}")
        return
    for resource, amount in sorted(left.items()):
        if amount < 0:
            yield node.defect(f"{resource} is exceeded by {-amount} with pods {', '.join(sorted(node.planned))}")


def left_on(node: CheckedNode, daemons: Iterable[PodKind]) -> dict[str, int]:
    """Return what the remaining pods, and daemons that do not run yet, leave of an existing node's allocatable.

    Raises InvalidQuantityError.
    """
    running = total_requests(kind for kind in node.remaining if is_daemon(kind.pod))
    missing = {name: max(n - running.get(name, 0), 0) for name, n in total_requests(daemons).items()}
    size = allocatable(node.state_node) if node.state_node is not None else {}
    return subtract(size, add(total_requests(node.remaining), missing))


def allocatable(node: StateNode) -> dict[str, int]:
    """Return the node's allocatable; until it is initialized, missing amounts come from its NodeClaim.

    A NodeClaim without an instance provides only its requests. Raises InvalidQuantityError.
    """
    reported = _allocatable_amounts(node.node.status.allocatable if node.node else {})
    claimed = _allocatable_amounts(node.claim.status.allocatable if node.claim else {})
    owner = node.claim or node.node
    reported = dict(within_machine(reported, claimed, owner)) if owner is not None else {}
    if node.claim is None or (node.initialized and reported):
        return reported
    if not claimed and not reported:
        return to_resources(node.claim.spec.resources.requests, round_up=True)
    return claimed | {name: amount for name, amount in reported.items() if amount}


def _allocatable_amounts(texts: Mapping[str, QuantityText]) -> dict[str, int]:
    return to_resources(texts, round_up=False)


def check_limits(index: PlanIndex) -> Iterator[Defect]:
    """Check that usage plus the largest type of each planned NodeClaim is within the limits; `nodes` counts one each."""
    for pool in index.usable_pools.values():
        name = pool.metadata.name
        planned = [node for node in index.new_nodes if node.claim and node.claim.node_pool == name]
        if not planned or not pool.spec.limits:
            continue
        for resource, limit in sorted(pool.spec.limit_amounts.items()):
            total = _usage(index, pool, resource)
            total += sum(_largest(index.launches(name), node, resource) for node in planned)
            if total > limit:
                first = next(iter(planned[0].planned), "")
                yield Defect(
                    f"NodePool {name}: {resource} could reach {total} with the NodeClaim for {first}, its limit is {limit}"
                )


def _largest(launches: PossibleLaunches, node: CheckedNode, resource: str) -> int:
    return 1 if resource == NODES else launches.offerings.largest(resource, node.rows)


def _usage(index: PlanIndex, pool: NodePool, resource: str) -> int:
    own = [
        n for n in index.state_nodes if n.node_pool == pool.metadata.name and not n.twin_of and not n.is_being_disrupted
    ]
    instances = {n.provider_id or n.name: n for n in sorted(own, key=_counts_less)}
    if resource == NODES:
        return len(instances)
    return sum(_capacity_of(node, index.launches(pool.metadata.name), resource) for node in instances.values())


def _counts_less(node: StateNode) -> tuple[bool, bool, float]:
    """Return the sort key of Nodes with one provider id, of which the last counts: an initialized one, and the oldest."""
    created = node.node.metadata.creation_timestamp if node.node is not None else None
    return node.initialized, node.node is not None, -created.timestamp() if created is not None else 0.0


def _capacity_of(node: StateNode, launches: PossibleLaunches, resource: str) -> int:
    """Return the node's capacity; before launch, that of the largest type its NodeClaim may become."""
    try:
        reported = to_resources(node.node.status.capacity, round_up=False) if node.node else {}
        claimed = to_resources(node.claim.status.capacity, round_up=False) if node.claim else {}
        owner = node.claim or node.node
        reported = dict(within_machine(reported, claimed, owner)) if owner is not None else {}
    except InvalidQuantityError:
        return 0
    if reported or claimed or node.claim is None:
        return reported.get(resource) or claimed.get(resource, 0)
    types = launches.offerings.types
    listed = [n for r in node.claim.spec.requirements if r.key == labels.INSTANCE_TYPE for n in r.values]
    return max((types[name].capacity.get(resource, 0) for name in listed if name in types), default=0)


def check_reservations(index: PlanIndex) -> Iterator[Defect]:
    """Check that NodeClaims that use or require a reservation do not exceed its capacity."""
    bound: Counter[str] = Counter()
    capacity: dict[str, int] = {}
    for node in index.new_nodes:
        if node.claim is None:
            continue
        offerings = index.launches(node.claim.node_pool).offerings
        only = {reservation for reservation, rows in offerings.reserved.items() if node.rows and not node.rows & ~rows}
        bound.update({*node.claim.reservations, *only})
        for reservation, left in offerings.reservation_capacity.items():
            capacity[reservation] = min(capacity.get(reservation, left), left)
    for reservation, number in sorted(bound.items()):
        left = capacity.get(reservation, 0)
        if number > left:
            yield Defect(f"reservation {reservation}: {number} NodeClaims need it, it has capacity for {left}")


_EBS: Final = "ebs.csi.aws.com"
# CSI drivers that replaced in-tree volume plugins (k8s.io/csi-translation-lib)
_SUCCESSORS: Final = {
    "kubernetes.io/aws-ebs": _EBS,
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/azure-file": "file.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
}


class StorageIndex:
    """The storage objects of a snapshot, by name."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._claims = {(c.metadata.namespace, c.metadata.name): c for c in snapshot.persistent_volume_claims}
        self._volumes = {volume.metadata.name: volume for volume in snapshot.persistent_volumes}
        self._classes = {found.metadata.name: found for found in snapshot.storage_classes}
        self._limits = {
            node.metadata.name: {
                driver.name: driver.allocatable.count
                for driver in node.spec.drivers
                if driver.allocatable is not None and driver.allocatable.count is not None
            }
            for node in snapshot.csi_nodes
        }

    def node_requirements(self, kind: PodKind) -> tuple[Alternatives, ...]:
        """Return the requirements of the pod's volumes on a node's labels, alternatives for each volume."""
        claims = (self._claims.get(name) for name in kind.volume_claims)
        by_claim = (self._alternatives(claim) for claim in claims if claim is not None)
        return tuple(alternatives for alternatives in by_claim if alternatives is not None)

    def _alternatives(self, claim: PersistentVolumeClaim) -> Alternatives | None:
        """Return the alternatives for nodes that can attach the claim's volume; None if every node can."""
        if not claim.spec.volume_name:
            found = self._classes.get(claim.spec.storage_class_name or "")
            return _allowed(found) if found is not None else None
        volume = self._volumes.get(claim.spec.volume_name)
        affinity = volume.spec.node_affinity if volume is not None else None
        if volume is None or affinity is None or affinity.required is None:
            return None
        terms = [t.match_expressions for t in affinity.required.node_selector_terms if t.match_expressions]
        if volume.spec.local is not None or volume.spec.host_path is not None:
            terms = [tuple(e for e in term if normalized(e.key) != labels.HOSTNAME) for term in terms]
        return tuple(terms) if terms and all(terms) else None

    def defect(self, kind: PodKind) -> str:
        """Return why no node can run a pod with these volumes; empty if one can."""
        return next((why for name in kind.volume_claims if (why := self._defect(name))), "")

    def _defect(self, name: tuple[str, str]) -> str:
        claim = self._claims.get(name)
        shown = f"PersistentVolumeClaim {'/'.join(name)}"
        if claim is None:
            return f"{shown} does not exist"
        if claim.metadata.deletion_timestamp is not None or claim.status.phase == "Lost":
            return f"{shown} is being deleted or has lost its volume"
        return self._defect_bound(claim, shown) if claim.spec.volume_name else self._defect_unbound(claim, shown)

    def _defect_bound(self, claim: PersistentVolumeClaim, shown: str) -> str:
        volume = self._volumes.get(claim.spec.volume_name)
        if volume is None or volume.metadata.deletion_timestamp is not None:
            return f"the PersistentVolume of {shown} does not exist or is being deleted"
        return "" if labels.BIND_COMPLETED in claim.metadata.annotations else f"{shown} is not bound completely"

    def _defect_unbound(self, claim: PersistentVolumeClaim, shown: str) -> str:
        found = self._classes.get(claim.spec.storage_class_name or "")
        if found is None:
            return f"{shown} is unbound, and its StorageClass does not exist"
        return f"{shown} is to be bound before it has a pod" if found.volume_binding_mode == "Immediate" else ""

    def check_attachments(self, node: CheckedNode) -> Iterator[Defect]:
        """Check the volume limits of an existing node per driver; a claim that several pods use counts once."""
        limits = (
            self._limits.get(node.state_node.node.metadata.name, {}) if node.state_node and node.state_node.node else {}
        )
        if not limits:
            return
        planned = self._by_driver(node.planned.values())
        remaining = self._by_driver(node.remaining)
        for driver, claims in sorted(planned.items()):
            number = len(claims | remaining.get(driver, set()))
            if driver in limits and number > limits[driver]:
                pods = ", ".join(sorted(node.planned))
                yield node.defect(f"{number} volumes of {driver} with pods {pods}, it attaches {limits[driver]}")

    def _by_driver(self, kinds: Iterable[PodKind]) -> dict[str, set[tuple[str, str]]]:
        found: dict[str, set[tuple[str, str]]] = {}
        for kind in kinds:
            for name in kind.volume_claims:
                claim = self._claims.get(name)
                if claim is not None:
                    found.setdefault(self._driver(claim), set()).add(name)
        return found

    def _driver(self, claim: PersistentVolumeClaim) -> str:
        """Return the CSI driver of the claim's volume, empty if there is none."""
        if not claim.spec.volume_name:
            found = self._classes.get(claim.spec.storage_class_name or "")
            return _SUCCESSORS.get(found.provisioner, found.provisioner) if found is not None else ""
        volume = self._volumes.get(claim.spec.volume_name)
        if volume is None:
            return ""
        if volume.spec.csi is not None:
            return volume.spec.csi.driver
        return _EBS if volume.spec.aws_elastic_block_store is not None else ""


def _allowed(found: StorageClass) -> Alternatives | None:
    terms = (
        tuple(NodeSelectorRequirement(key=e.key, operator="In", values=e.values) for e in t.match_label_expressions)
        for t in found.allowed_topologies
    )
    return tuple(term for term in terms if term) or None


_MOST_PODS: Final = 250
_UNITS: Final = {"cpu": 1000, "memory": 1 << 20}
"""In which the label `instance-cpu` or `instance-memory` counts a resource."""


def within_machine(
    reported: Mapping[str, int], claimed: Mapping[str, int], owner: NodeClaim | Node
) -> Mapping[str, int]:
    """Return what a node reports; what is more than its machine has counts as its NodeClaim has it.

    `owner` is the NodeClaim, or the Node if there is none.
    """
    capacity = to_resources(owner.status.capacity, round_up=False) if isinstance(owner, NodeClaim) else {}
    found = dict(reported)
    for name, amount in reported.items():
        limit = _limit("memory" if name.startswith("hugepages-") else name, capacity, owner.metadata.labels)
        if limit and amount * 10 > limit * 11:
            found[name] = claimed.get(name, limit)
    return found


def _limit(name: str, capacity: Mapping[str, int], own_labels: Mapping[str, str]) -> int:
    """Return what the machine has of a resource; 0 if that is unknown, or no matter of the machine."""
    if name == "pods":
        return max(capacity["pods"], _MOST_PODS) if capacity.get("pods") else 0
    if name not in _UNITS:
        return 0
    known = [own_labels.get(f"{group}/instance-{name}", "0") for group in labels.INSTANCE_TYPE_GROUPS]
    return max(capacity.get(name, 0), *(int(n) * _UNITS[name] for n in known if n.isdecimal() and len(n) < 10), 0)
