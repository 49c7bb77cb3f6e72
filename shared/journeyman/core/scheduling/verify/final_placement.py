"""The cluster as it will be: the pods of each node, and the labels that planned nodes get from each of their offerings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import chain, product
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement, Pod, Taint
from journeyman.core.api.resources import fits
from journeyman.core.catalogue import Catalogue, InstanceType, Offering
from journeyman.core.scheduling.results import Defect, PlannedClaim, Results, name_of_claim, name_of_node
from journeyman.core.scheduling.verify.matching import (
    Alternatives,
    CountedPods,
    PodIdentity,
    PodKind,
    PodKinds,
    is_finished_or_terminating,
    is_met,
    normalized,
    total_requests,
    untolerated,
)
from journeyman.core.state import Snapshot, StateNode

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool

Values = tuple[str | None, ...]
"""The values that a label of a node may get; None if the node may lack it."""

Labels = Mapping[str, Values]
Requirements = tuple[NodeSelectorRequirement, ...]
Offer = tuple[InstanceType, Offering, Labels]

_ABSENT: Final = (None,)
_UNKNOWN: Final = "\0"
"""Stands for a value that meets the NodeClaim's requirements, which list none; no label has it."""

_BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
_CORDON: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""The taint of a cordoned node, which the node lifecycle controller adds; kube-scheduler treats the field the same."""


class Outcomes:
    """What a node may become: an existing node only itself, a planned one what each of its `offers` makes of it."""

    def __init__(self, own: Labels | None = None, offers: Sequence[Offer] = ()) -> None:
        self.offers = offers
        self.types = {instance_type.name: instance_type for instance_type, _, _ in offers}
        self._labels = [own] if own is not None else [each for _, _, each in offers]
        self._stated: dict[str, Set[str]] = {}
        self._domains: dict[str, Set[str]] = {}
        self._combinations: dict[tuple[str, ...], Set[tuple[str | None, ...]]] = {}

    @cached_property
    def allocatable(self) -> Mapping[str, int]:
        """The least that an instance type has of each resource."""
        amounts = [instance_type.allocatable for instance_type in self.types.values()]
        names = dict.fromkeys(name for of in amounts for name in of)
        return {name: min(of.get(name, 0) for of in amounts) for name in names}

    @cached_property
    def reservation(self) -> str:
        """The reservation that all offers use; empty if there is none."""
        used = {offering.reservation_id for _, offering, _ in self.offers}
        return used.pop() if len(used) == 1 else ""

    def stated(self, key: str) -> Set[str]:
        """Return the values of a label that the instance types state, whichever offering is launched."""
        if key not in self._stated:
            requirements = chain.from_iterable(t.requirements for t in self.types.values())
            of_key = (r for r in requirements if normalized(r.key) == key and r.operator == "In")
            self._stated[key] = {value for requirement in of_key for value in requirement.values}
        return self._stated[key]

    def domains(self, key: str) -> Set[str]:
        """Return the values that a label may get."""
        if key not in self._domains:
            self._domains[key] = {value for (value,) in self._combinations_of((key,)) if value is not None}
        return self._domains[key]

    def meet(self, requirements: Sequence[Alternatives], of: Callable[[Iterable[bool]], bool] = all) -> bool:
        """Whether each outcome meets the requirements, or `any`."""
        keys = tuple(dict.fromkeys(normalized(r.key) for terms in requirements for term in terms for r in term))
        return not requirements or of(
            all(any(all(_meets(r, found[normalized(r.key)]) for r in term) for term in terms) for terms in requirements)
            for found in (dict(zip(keys, values, strict=True)) for values in self._combinations_of(keys))
        )

    def _combinations_of(self, keys: tuple[str, ...]) -> Set[tuple[str | None, ...]]:
        """Return the combinations of values that these labels may get."""
        if keys not in self._combinations:
            of_each = (product(*(each.get(key, _ABSENT) for key in keys)) for each in self._labels)
            self._combinations[keys] = set(chain.from_iterable(of_each))
        return self._combinations[keys]


def _meets(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    return value == _UNKNOWN or is_met(requirement, value)


class Offerings:
    """The available offerings of a NodePool, with the labels that nodes get from them."""

    def __init__(self, pool: NodePool, types: Sequence[InstanceType], daemons: Sequence[PodKind]) -> None:
        template, reference = pool.spec.template, pool.spec.template.spec.node_class_ref
        self.pool, self.types, self.taints = pool, types, template.spec.taints
        own_labels = sorted(template.metadata.labels.items())
        self.requirements: Requirements = (
            *template.spec.requirements,
            *(NodeSelectorRequirement(key=key, operator="In", values=(value,)) for key, value in own_labels),
        )
        self.daemons = [daemon for daemon in daemons if untolerated(daemon.pod, self.taints) is None]
        self._daemon_requests = total_requests(self.daemons)
        own = {f"{reference.group}/{reference.kind.lower()}": reference.name, labels.NODEPOOL: pool.metadata.name}
        joined = {**template.metadata.labels, **own, labels.REGISTERED: "true", labels.INITIALIZED: "true"}
        self._own: Labels = {key: (value,) for key, value in joined.items()}
        self._defined = {normalized(r.key) for r in self.requirements} | joined.keys() | labels.WELL_KNOWN
        self._offers: dict[Requirements, dict[str, list[Offer]]] = {}
        self._outcomes: dict[Requirements, Outcomes] = {}
        self._domains: dict[tuple[str, tuple[Alternatives, ...]], set[str]] = {}

    def outcomes(self, requirements: Requirements) -> Outcomes:
        """Return what a NodeClaim with these requirements may become."""
        if requirements not in self._outcomes:
            named = [r for r in requirements if r.key == labels.INSTANCE_TYPE and r.operator == "In"]
            others = tuple(r for r in requirements if r not in named)
            known = self._offers.setdefault(others, {})
            types = [t for t in self.types if all(t.name in r.values for r in named)]
            known.update({t.name: list(self._offers_of(t, others)) for t in types if t.name not in known})
            self._outcomes[requirements] = Outcomes(offers=[offer for t in types for offer in known[t.name]])
        return self._outcomes[requirements]

    def domains(self, key: str, kind: PodKind) -> Set[str]:
        """Return the values of a label that new nodes for a pod may get, by the types that hold all DaemonSets' pods."""
        case = key, kind.node_requirements
        if case not in self._domains:
            found = self._domains[case] = set()
            holding = {t.name for t in self.types if fits(self._daemon_requests, t.allocatable)}
            for each in (each for t, _, each in self.outcomes(self.requirements).offers if t.name in holding):
                for value in (v for v in each.get(key, ()) if v is not None and v not in found):
                    if Outcomes({**each, key: (value,)}).meet(kind.node_requirements, any):
                        found.add(value)
        return self._domains[case]

    def _offers_of(self, instance_type: InstanceType, requirements: Requirements) -> Iterator[Offer]:
        """Yield a type's available offerings that meet the requirements, with those values of their labels that do.

        The labels of an offering override those of its type, and these the NodePool's.
        """
        of_type = {**self._own, **_label_values(instance_type.requirements)}
        by_key: dict[str, list[NodeSelectorRequirement]] = {}
        for requirement in requirements:
            by_key.setdefault(normalized(requirement.key), []).append(requirement)
        for o in (offering for offering in instance_type.offerings if offering.available):
            fields = {labels.ZONE: (o.zone,), labels.CAPACITY_TYPE: (o.capacity_type,)}
            each = {**of_type, **fields, **_label_values(o.requirements)}
            left = {key: self._left(key, each.get(key), of_key) for key, of_key in by_key.items()}
            if all(left.values()):
                yield instance_type, o, {**each, **left}

    def _left(self, key: str, values: Values | None, requirements: Sequence[NodeSelectorRequirement]) -> Values:
        """Return the values that meet the requirements; these list them for a label that only the NodePool defines."""
        if values is None:
            listed = [r.values for r in requirements if r.operator == "In"]
            if key not in self._defined or all(is_met(r, None) for r in requirements):
                return _ABSENT
            if not listed:
                return (_UNKNOWN,) if key in labels.WELL_KNOWN else _ABSENT
            values = listed[0]
        return tuple(value for value in values if all(is_met(r, value) for r in requirements))


def _label_values(requirements: Iterable[NodeSelectorRequirement]) -> Labels:
    stated = (r for r in requirements if r.operator in {"In", "DoesNotExist"})
    return {normalized(r.key): r.values or _ABSENT for r in stated}


class FinalNode(Struct, eq=False, kw_only=True):
    """A node with its final pods: `planned` by key, those `staying`, and the DaemonSets' pods that run there or will.

    `kinds` are those of the planned pods, with one pod's key. `claimed` are the outcomes by what an unlaunched NodeClaim lists.
    """

    name: str
    host: str
    taints: tuple[Taint, ...]
    planned: Mapping[str, PodKind]
    kinds: Mapping[PodKind, str]
    staying: tuple[PodKind, ...] = ()
    daemons: tuple[PodKind, ...]
    outcomes: Outcomes
    claimed: Outcomes
    state: StateNode | None = None
    claim: PlannedClaim | None = None

    def defect(self, wrong: str) -> Defect:
        """Return a defect of this node."""
        return Defect(f"{self.name}: {wrong}", (self.name,))

    def domains(self, key: str) -> Set[str]:
        """Return the values that a label may get; a new node's hostname is its own."""
        return self.outcomes.domains(key) if key != labels.HOSTNAME else {self.host}

    def meets(self, requirements: Sequence[Alternatives]) -> bool:
        """Whether it meets these, whatever it becomes."""
        return self.outcomes.meet(requirements) or self.claimed.meet(requirements)

    def lacks(self, key: str) -> bool:
        """Whether it will not have the label."""
        return key != labels.HOSTNAME and not self.domains(key) and self.claimed is self.outcomes

    @property
    def is_usable(self) -> bool:
        """Whether pods can be planned onto it."""
        return self.state is None or not (self.state.is_being_disrupted or self.state.is_unusable)


class FinalPlacement:
    """The cluster with all pods of the plan."""

    def __init__(
        self,
        snapshot: Snapshot,
        catalogue: Catalogue,
        results: Results,
        known: Mapping[str, Pod],
        daemons: Sequence[PodKind],
    ) -> None:
        self.snapshot, self.results, self._known, self._daemons = snapshot, results, known, daemons
        self.nodes: list[FinalNode] = []
        self.planned: dict[PodKind, list[tuple[FinalNode, str, int]]] = {}
        self.offerings = {
            (name := pool.metadata.name): Offerings(pool, catalogue.instance_types(name), self._daemons_of(name))
            for pool in snapshot.node_pools
            if not why_unusable(pool, snapshot)
        }
        self._kinds = PodKinds()
        self._present: dict[PodIdentity, list[tuple[FinalNode, int, int]]] = {}
        self._by_label: dict[tuple[str, str], list[PodIdentity]] = {}
        self._counted: dict[tuple[bytes, bool], list[tuple[FinalNode, int, int]]] = {}
        self._namespaces = {namespace.metadata.name: namespace for namespace in snapshot.namespaces}
        self._nominated: dict[str, list[Pod]] = {}
        for pod in snapshot.pods:
            if pod.status.nominated_node_name and not pod.spec.node_name and not is_finished_or_terminating(pod):
                self._nominated.setdefault(pod.status.nominated_node_name, []).append(pod)

    def add_existing_node(self, state: StateNode, moving: Set[str]) -> None:
        """Add a node; pods that are `moving` do not stay there."""
        is_cordoned = state.node is not None and state.node.spec.unschedulable
        taints = (*state.taints, _CORDON) if is_cordoned else state.taints
        own: Labels = {key: (value,) for key, value in state.labels.items()}
        listed = state.claim.spec.requirements if state.claim is not None and not state.provider_id else ()
        pods = (*state.pods, *self._nominated.get(state.name, ()))
        outcomes, planned = Outcomes(own), self._kinds_of(self.results.existing.get(state.name, ()))
        belonging = self._daemons_of(state.node_pool) if planned else ()
        self._add(
            FinalNode(
                name=name_of_node(state.name),
                host=state.labels.get(labels.HOSTNAME, state.name),
                taints=taints,
                planned=planned,
                kinds=_first_of_each(planned),
                staying=tuple(self._kinds.of(pod) for pod in pods if pod.key not in moving),
                daemons=tuple(
                    d for d in belonging if not untolerated(d.pod, taints) and outcomes.meet(d.node_requirements)
                ),
                outcomes=outcomes,
                claimed=Outcomes({**_label_values(listed), **own}) if listed else outcomes,
                state=state,
            )
        )

    def add_new_node(self, claim: PlannedClaim) -> None:
        """Add a planned node of a usable NodePool; a DaemonSet's pod that no type holds may be meant for others."""
        offerings = self.offerings[claim.node_pool]
        outcomes, planned = offerings.outcomes(claim.requirements), self._kinds_of(claim.pods)
        held = (d for d in offerings.daemons if fits(d.requests, outcomes.allocatable))
        self._add(
            FinalNode(
                name=name_of_claim(claim),
                host=f"new node {len(self.nodes)}",
                taints=offerings.taints,
                planned=planned,
                kinds=_first_of_each(planned),
                daemons=tuple(daemon for daemon in held if outcomes.meet(daemon.node_requirements)),
                outcomes=outcomes,
                claimed=outcomes,
                claim=claim,
            )
        )

    def _add(self, node: FinalNode) -> None:
        self.nodes.append(node)
        for kind, number in Counter(node.planned.values()).items():
            self.planned.setdefault(kind, []).append((node, node.kinds[kind], number))
            self._record(kind, (node, number, 0))
        for kind, number in Counter(node.staying).items():
            if not is_finished_or_terminating(kind.pod):
                self._record(kind, (node, 0, number))

    def _record(self, kind: PodKind, presence: tuple[FinalNode, int, int]) -> None:
        if kind.identity not in self._present:
            self._present[kind.identity] = []
            for label in kind.identity.labels:
                self._by_label.setdefault(label, []).append(kind.identity)
        self._present[kind.identity].append(presence)

    def _kinds_of(self, keys: Iterable[str]) -> Mapping[str, PodKind]:
        return {key: self._kinds.of(self._known[key]) for key in keys}

    def _daemons_of(self, pool: str) -> Sequence[PodKind]:
        left_out = self.results.left_out.get(pool)
        return [d for d in self._daemons if left_out is None or d.pod.key not in left_out.names]

    def counts(self, group: CountedPods, kind: PodKind) -> bool:
        """Whether a rule counts pods of this kind."""
        return group.counts(kind.identity, self._namespaces)

    def present(self, group: CountedPods, *, planned_only: bool = False) -> Sequence[tuple[FinalNode, int, int]]:
        """Return where pods that a rule counts will be, with the numbers of planned and of staying ones."""
        case = group.id, planned_only
        if case not in self._counted:
            selected = group.selector.match_labels.items() if group.selector is not None else ()
            with_labels = (self._by_label.get(label, ()) for label in selected)
            identities: Collection[PodIdentity] = min(with_labels, key=len, default=self._present)
            if planned_only and len(self.planned) < len(identities):
                identities = dict.fromkeys(kind.identity for kind in self.planned)
            counted = (identity for identity in identities if group.counts(identity, self._namespaces))
            self._counted[case] = [found for identity in counted for found in self._present[identity]]
        return self._counted[case]

    def awaiting(self, group: CountedPods) -> list[FinalNode]:
        """Return the nodes to which a DaemonSet's pod that a rule counts may come."""
        daemons = [daemon for daemon in self._daemons if self.counts(group, daemon)]
        return [
            node
            for node in self.nodes
            for daemon in daemons
            if not untolerated(daemon.pod, node.taints) and node.outcomes.meet(daemon.node_requirements, any)
        ]


def _first_of_each(planned: Mapping[str, PodKind]) -> Mapping[PodKind, str]:
    return {kind: key for key, kind in sorted(planned.items(), reverse=True)}


def why_unusable(pool: NodePool, snapshot: Snapshot) -> str:
    """Return why the NodePool may launch no nodes; empty if it may, or if it only waits after failed launches."""
    node_class = snapshot.node_class_of(pool)
    if pool.spec.static:
        return "has a fixed number of nodes"
    if pool.metadata.deletion_timestamp is not None:
        return "is being deleted"
    if pool.is_hibernating(snapshot.now):
        return "hibernates"
    is_ready = node_class is not None and node_class.ready and not node_class.deleting
    return "" if is_ready else "has no NodeClass that is ready"


class Volumes:
    """The volumes of a snapshot, and how many each CSI driver attaches to a Node (`limits`)."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._claims = {(c.metadata.namespace, c.metadata.name): c for c in snapshot.persistent_volume_claims}
        self._volumes = {volume.metadata.name: volume for volume in snapshot.persistent_volumes}
        self._classes = {found.metadata.name: found for found in snapshot.storage_classes}
        self.limits = {
            node.metadata.name: {d.name: d.allocatable.count for d in node.spec.drivers if d.allocatable is not None}
            for node in snapshot.csi_nodes
        }

    def of(self, name: tuple[str, str]) -> tuple[str, Alternatives] | None:
        """Return the CSI driver of a claim's volume and the requirements on nodes that reach it; None if no node can use it."""
        claim = self._claims.get(name)
        if claim is None or claim.metadata.deletion_timestamp is not None or claim.status.phase == "Lost":
            return None
        if claim.spec.volume_name:
            return self._bound(claim.spec.volume_name) if _BIND_COMPLETED in claim.metadata.annotations else None
        found = self._classes.get(claim.spec.storage_class_name or "")
        if found is None or found.volume_binding_mode == "Immediate":
            return None
        terms = (
            tuple(NodeSelectorRequirement(key=e.key, operator="In", values=e.values) for e in t.match_label_expressions)
            for t in found.allowed_topologies
        )
        return found.provisioner, tuple(term for term in terms if term)

    def _bound(self, name: str) -> tuple[str, Alternatives] | None:
        volume = self._volumes.get(name)
        if volume is None or volume.metadata.deletion_timestamp is not None:
            return None
        affinity = volume.spec.node_affinity.required if volume.spec.node_affinity is not None else None
        is_local = volume.spec.local is not None or volume.spec.host_path is not None
        required = [
            tuple(e for e in term.match_expressions if not (is_local and normalized(e.key) == labels.HOSTNAME))
            for term in (affinity.node_selector_terms if affinity is not None else ())
            if term.match_expressions
        ]
        driver = volume.spec.csi.driver if volume.spec.csi is not None else ""
        return driver, tuple(required) if all(required) else ()
