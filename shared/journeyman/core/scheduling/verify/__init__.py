"""Verifies a plan with plain code that shares nothing with the solver; a plan with defects is not executed.

The check writes down the cluster as it will be: the pods of each existing and each planned node, and the values that
each label of a planned node may get from its offerings. Each rule then counts in this final placement. What it reports
is certain, in whichever order the pods come, for an offering that the cloud may choose; what counting does not decide
passes. Not checked are prices, ResourceClaims' devices, affinity to the pods that DaemonSets are still to run, and
spread with policies other than the default ones. An expensive plan passes, a wrong one
does not. Tests verify each plan with a stricter judge as well.

It is one module because the rules are short and read one model: what nodes may become (`Outcomes`, `Offerings`), and
where the pods are (`FinalNode`, `FinalPlacement`).

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaim.go, existingnode.go, scheduler.go
`filterByRemainingResources`, reservationmanager.go, volumetopology.go, topologygroup.go `nextDomainTopologySpread`,
`nextDomainAffinity`, `nextDomainAntiAffinity`, topology.go `updateInverseAffinities`; pkg/scheduling/volumeusage.go.
Differs: `nodes` is counted within a pass as well; host ports of DaemonSets' pods that are still to come are in use; a
domain in which no instance type can be launched and no node exists does not count for topology spread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import (
    LabelSelector,
    LabelSelectorRequirement,
    NodeSelectorRequirement,
    Pod,
    PodAffinityTerm,
    Taint,
    TopologySpreadConstraint,
)
from journeyman.core.api.resources import NODES, fits, to_resources
from journeyman.core.catalogue import Catalogue, InstanceType
from journeyman.core.scheduling.results import Defect, PlannedClaim, Results, name_of_claim, name_of_node, placements
from journeyman.core.scheduling.verify.matching import (
    ENCODER,
    Alternatives,
    PodKind,
    Volumes,
    conflicting_port,
    daemons_of,
    is_daemon,
    is_finished_or_terminating,
    is_met,
    is_opted_out,
    kinds_of,
    normalized,
    pods_by_node,
    selects,
    taints_of,
    total_requests,
    untolerated,
    why_unusable,
)
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.launch_backoff import backoffs_of
from journeyman.errors import InvalidQuantityError

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool

Labels = Mapping[str, tuple[str | None, ...]]
"""The values that labels may get, None if the node may lack it. A label that is not listed is missing."""

Offer = tuple[str, Labels]
"""The reservation that an offering uses, empty if none, and the labels that a node gets from it."""

Requirements = tuple[NodeSelectorRequirement, ...]
Quantifier = Callable[[Iterable[bool]], bool]

_ABSENT: Final = (None,)
_UNKNOWN: Final = "\0"
"""Stands for a value that the plan does not decide: it may meet any requirement, and is no domain."""


def verify(
    snapshot: Snapshot,
    catalogue: Catalogue,
    results: Results,
    *,
    pods: Sequence[Pod] | None = None,
    without_nodes: frozenset[str] = frozenset(),
    ignore_dra_requests: bool = True,
) -> tuple[Defect, ...]:
    """Return the defects of a plan, checked against the snapshot and the catalogue from which the solver computed it.

    The parameters are those of `results.Verifier`.
    """
    known = {pod.key: pod for pod in (*snapshot.pods, *(pods or ()))}
    found = tuple(_check_completeness(results, known, pods or ()))
    if found:
        return found  # placements of unknown pods cannot be checked
    placement = FinalPlacement(
        snapshot=snapshot,
        catalogue=catalogue,
        results=results,
        kinds=kinds_of(known.values()),
        daemons=daemons_of(snapshot, ignore_dra_requests=ignore_dra_requests),
        moving={pod.key for pod in pods or ()}.union(*(keys for _, keys in placements(results))),
        without_nodes=without_nodes,
    )
    return tuple(defect for rule in _RULES for defect in rule(placement))


def _check_completeness(results: Results, known: Mapping[str, Pod], pods: Sequence[Pod]) -> Iterator[Defect]:
    """Check that each pod exists, is scheduled at most once, and is either scheduled or has an error."""
    nodes: dict[str, list[str]] = {}
    for name, keys in placements(results):
        for key in keys:
            nodes.setdefault(key, []).append(name)
    for key, names in sorted(nodes.items()):
        times = f"{len(names)} times" if len(names) > 1 else "and has an error" if key in results.pod_errors else ""
        wrong = times if key in known else "but does not exist"
        if wrong:
            yield Defect(f"pod {key} is scheduled {wrong}", tuple(names))
    for pod in pods:
        if pod.key not in nodes and pod.key not in results.pod_errors and not is_opted_out(pod):
            yield Defect(f"pod {pod.key} is missing from the plan: neither scheduled nor has it an error")
    yield from (
        Defect(f"{name_of_claim(c)}: it has no pods", (name_of_claim(c),)) for c in results.new_claims if not c.pods
    )


class Outcomes:
    """What a node may become: by reservation and labels of each offering; an existing node has one, without a type."""

    def __init__(self, offers: Sequence[Offer], types: Iterable[InstanceType] = ()) -> None:
        self.types = {instance_type.name: instance_type for instance_type in types}
        self.reservations = {reservation for reservation, _ in offers}
        self._offers = offers
        self._values: dict[str, Set[str | None]] = {}

    @cached_property
    def allocatable(self) -> Mapping[str, int]:
        """The least that an instance type has of each resource."""
        amounts = [instance_type.allocatable for instance_type in self.types.values()]
        return {name: min(of.get(name, 0) for of in amounts) for name in chain.from_iterable(amounts)}

    def values(self, key: str) -> Set[str | None]:
        """Return the values that a label may get."""
        if key not in self._values:
            self._values[key] = {value for _, each in self._offers for value in each.get(key, _ABSENT)}
        return self._values[key]

    def meet(self, requirements: Iterable[Alternatives], of: Quantifier = all, *, unknown: bool = False) -> bool:
        """Whether each value that a label may get meets these, or `any`; `unknown`: whether undecided ones do."""

        def holds(r: NodeSelectorRequirement) -> bool:
            return of(unknown if v == _UNKNOWN else is_met(r, v) for v in self.values(normalized(r.key)))

        return all(any(all(map(holds, term)) for term in terms) for terms in requirements)

    def may_meet(self, requirements: Iterable[Alternatives]) -> bool:
        """Whether some outcome may meet these."""
        return self.meet(requirements, any, unknown=True)

    def fail(self, requirements: Iterable[Alternatives]) -> bool:
        """Whether some outcome surely does not meet these; if there are alternatives, whether no outcome meets one."""
        return not all(self.meet((t,), all if len(t) == 1 else any, unknown=True) for t in requirements)


class Offerings:
    """The available offerings of a NodePool, with the labels that nodes get from them."""

    def __init__(self, pool: NodePool, types: Sequence[InstanceType], daemons: Sequence[PodKind]) -> None:
        template, reference = pool.spec.template, pool.spec.template.spec.node_class_ref
        self.pool, self.taints = pool, template.spec.taints
        fixed = (
            NodeSelectorRequirement(key=k, operator="In", values=(v,)) for k, v in template.metadata.labels.items()
        )
        self.requirements: Requirements = (*template.spec.requirements, *fixed)
        self.types = {instance_type.name: instance_type for instance_type in types}
        self.daemons = [daemon for daemon in daemons if untolerated(daemon.pod, self.taints) is None]
        own = {**template.metadata.labels, labels.node_class_label(reference.group, reference.kind): reference.name}
        own |= {labels.NODEPOOL: pool.metadata.name, labels.REGISTERED: "true", labels.INITIALIZED: "true"}
        self._own: Labels = {key: (value,) for key, value in own.items()}
        self._defined = {normalized(r.key) for r in self.requirements} | own.keys() | labels.WELL_KNOWN
        self._offers: dict[Requirements, dict[str, list[Offer]]] = {}
        self.outcomes, self.domains = cache(self._outcomes), cache(self._domains)

    def _outcomes(self, requirements: Requirements) -> Outcomes:
        """Return what a NodeClaim with these requirements may become."""
        listed = [r for r in requirements if r.key == labels.INSTANCE_TYPE and r.operator == "In"][:1]
        names = chain.from_iterable(r.values for r in listed) if listed else self.types
        offers = self._offers_of(names, tuple(r for r in requirements if r not in listed))
        types = (self.types[name] for name, of_type in offers.items() if of_type)
        return Outcomes([*chain.from_iterable(offers.values())], types)

    @cached_property
    def _spacious(self) -> list[Labels]:
        """The labels from each offering that meets the NodePool's requirements and holds all DaemonSets' pods."""
        requests = total_requests(self.daemons)
        holding = [name for name, instance_type in self.types.items() if fits(requests, instance_type.allocatable)]
        return [each for of_type in self._offers_of(holding, self.requirements).values() for _, each in of_type]

    def _domains(self, key: str, requirements: tuple[Alternatives, ...]) -> Set[str]:
        """Return the values of a label that new nodes for pods with these requirements may get for certain."""
        found: set[str] = set()
        for each in self._spacious:
            for value in filter(None, each.get(key, ())):
                if value not in found and Outcomes([("", {**each, key: (value,)})]).meet(requirements):
                    found.add(value)
        return found - {_UNKNOWN}

    def _offers_of(self, names: Iterable[str], requirements: Requirements) -> Mapping[str, list[Offer]]:
        """Return by instance type the available offerings that meet the requirements: reservation and labels."""
        known, types = self._offers.setdefault(requirements, {}), [self.types[n] for n in names if n in self.types]
        known.update({t.name: list(self._offers_of_type(t, requirements)) for t in types if t.name not in known})
        return {t.name: known[t.name] for t in types}

    def _offers_of_type(self, instance_type: InstanceType, requirements: Requirements) -> Iterator[Offer]:
        """Yield the offerings with those values of their labels that meet the requirements.

        The labels of an offering override those of its type, and these the NodePool's; requirements list the others.
        """
        of_type = {**self._own, **_stated(instance_type.requirements)}
        # requirements that list values decide a label first, then those that it must exist for
        ordered = sorted(requirements, key=lambda r: (r.operator != "In", is_met(r, None)))
        keyed = [(normalized(r.key), r) for r in ordered]
        for o in (offering for offering in instance_type.offerings if offering.available):
            fields = {labels.ZONE: (o.zone,), labels.CAPACITY_TYPE: (o.capacity_type,)}
            each = {**of_type, **fields, **_stated(o.requirements)}
            for key, r in keyed:
                if key not in each and key not in self._defined:
                    continue  # nodes get no such label
                values = each.get(key) or (
                    r.values if r.operator == "In" else _ABSENT if is_met(r, None) else (_UNKNOWN,)
                )
                each[key] = tuple(value for value in values if value == _UNKNOWN or is_met(r, value))
                if not each[key]:
                    break
            else:
                yield o.reservation_id, each


def _stated(requirements: Iterable[NodeSelectorRequirement]) -> dict[str, tuple[str | None, ...]]:
    return {normalized(r.key): r.values or _ABSENT for r in requirements if r.operator in {"In", "DoesNotExist"}}


class Group(NamedTuple):
    """The pods of some namespaces that a rule selects, which count by the values of node label `key`."""

    id: bytes
    key: str
    namespaces: Set[str]
    selector: LabelSelector

    @classmethod
    def of(
        cls, pod: Pod, rule: PodAffinityTerm | TopologySpreadConstraint, namespaces: Mapping[str, Mapping[str, str]]
    ) -> Group | None:
        """Return the pods that a rule of this pod counts, None if it counts none; `namespaces` have labels by name."""
        if rule.label_selector is None:
            return None
        key, own = normalized(rule.topology_key), pod.metadata.labels
        narrowed, named = [(k, "In") for k in rule.match_label_keys], {pod.metadata.namespace}
        if isinstance(rule, PodAffinityTerm):
            narrowed += [(k, "NotIn") for k in rule.mismatch_label_keys]
            if rule.namespaces or rule.namespace_selector is not None:
                selected = (n for n, values in namespaces.items() if selects(rule.namespace_selector, values))
                named = {*rule.namespaces, *selected}
        more = (LabelSelectorRequirement(key=k, operator=o, values=(own[k],)) for k, o in sorted(narrowed) if k in own)
        selector = replace(rule.label_selector, match_expressions=(*rule.label_selector.match_expressions, *more))
        return cls(ENCODER.encode((key, sorted(named), selector)), key, named, selector)

    def counts(self, kind: PodKind) -> bool:
        """Whether pods of this kind are counted."""
        own = kind.pod.metadata
        return own.namespace in self.namespaces and selects(self.selector, own.labels)


class FinalNode(Struct, eq=False, kw_only=True):
    """A node with its final pods: `planned` by key, those `staying`, and DaemonSets' pods that run there or will."""

    name: str
    host: str
    taints: tuple[Taint, ...]
    planned: Mapping[str, PodKind]
    staying: Sequence[PodKind] = ()
    daemons: Sequence[PodKind]
    outcomes: Outcomes
    state: StateNode | None = None

    def first(self, kind: PodKind) -> str:
        """Return the first of the planned pods of a kind."""
        return min(key for key, planned in self.planned.items() if planned is kind)

    def defect(self, wrong: str, kind: PodKind | None = None) -> Defect:
        """Return a defect of this node, or of the planned pods of a kind."""
        subject = f"pod {self.first(kind)} " if kind is not None else ""
        return Defect(f"{self.name}: {subject}{wrong}", (self.name,))

    def domains(self, key: str) -> Set[str]:
        """Return the known values that a label may get; a new node's hostname is its own."""
        if key == labels.HOSTNAME:
            return {self.host}
        return {value for value in self.outcomes.values(key) if value is not None and value != _UNKNOWN}

    def lacks(self, key: str) -> bool:
        """Whether the node surely has no such label."""
        return key != labels.HOSTNAME and self.outcomes.values(key) <= {None}


Presence = tuple[FinalNode, PodKind, int, int]
"""Pods of one kind on one node: how many are planned onto it, how many stay there."""


class FinalPlacement:
    """The cluster with all pods of the plan: its nodes, and where each kind of pod is that counts for other pods."""

    def __init__(
        self,
        *,
        snapshot: Snapshot,
        catalogue: Catalogue,
        results: Results,
        kinds: Mapping[str, PodKind],
        daemons: Sequence[PodKind],
        moving: Set[str],
        without_nodes: Set[str],
    ) -> None:
        self.snapshot, self.results, self.daemons, self._kinds = snapshot, results, daemons, kinds
        labelled = {namespace.metadata.name: namespace.metadata.labels for namespace in snapshot.namespaces}
        with_pods = {kind.pod.metadata.namespace for kind in chain(kinds.values(), daemons)}  # others matter to no rule
        self.namespaces: Mapping[str, Mapping[str, str]] = {name: labelled.get(name, {}) for name in with_pods}
        self.volumes = Volumes(snapshot)
        self.offerings = {
            (name := pool.metadata.name): Offerings(pool, catalogue.instance_types(name), self._daemons_of(name))
            for pool in snapshot.node_pools
            if not why_unusable(pool, snapshot)
        }
        pods, states = pods_by_node(snapshot), [s for s in snapshot.state_nodes if s.name not in without_nodes]
        self.existing = [self._existing_node(s, [key for key in pods[s.name] if key not in moving]) for s in states]
        self.usable = [n for n in self.existing if n.state and not (n.state.is_being_disrupted or n.state.is_unusable)]
        launched = (claim for claim in results.new_claims if claim.node_pool in self.offerings)
        self.new = [(self._new_node(number, claim), claim) for number, claim in enumerate(launched)]
        self.nodes = [*self.existing, *(node for node, _ in self.new)]
        self.planned: dict[PodKind, list[Presence]] = {}
        self.staying: dict[PodKind, list[Presence]] = {}
        for node in self.nodes:
            for kind, number in Counter(node.planned.values()).items():
                self.planned.setdefault(kind, []).append((node, kind, number, 0))
            for kind, number in Counter(node.staying).items():
                if not is_finished_or_terminating(kind.pod):
                    self.staying.setdefault(kind, []).append((node, kind, 0, number))
        self._by_label: dict[tuple[str, str, str], dict[PodKind, None]] = {}
        for kind in (*self.planned, *self.staying):
            for label in (("", ""), *kind.pod.metadata.labels.items()):
                self._by_label.setdefault((kind.pod.metadata.namespace, *label), {})[kind] = None
        self._counted: dict[bytes, list[Presence]] = {}

    def _existing_node(self, state: StateNode, staying: Iterable[str]) -> FinalNode:
        undecided = state.claim.spec.requirements if state.claim is not None and not state.provider_id else ()
        own = {key: (value,) for key, value in state.labels.items()}
        outcomes = Outcomes([("", {**{normalized(r.key): (_UNKNOWN,) for r in undecided}, **own})])
        planned = {key: self._kinds[key] for key in self.results.existing.get(state.name, ())}
        taints, daemons = taints_of(state), self._daemons_of(state.node_pool) if planned else ()
        return FinalNode(
            name=name_of_node(state.name),
            host=state.labels.get(labels.HOSTNAME, state.name),
            taints=taints,
            planned=planned,
            staying=[self._kinds[key] for key in staying],
            daemons=[d for d in daemons if not untolerated(d.pod, taints) and outcomes.meet(d.node_requirements)],
            outcomes=outcomes,
            state=state,
        )

    def _new_node(self, number: int, claim: PlannedClaim) -> FinalNode:
        """Return a planned node; a DaemonSet's pod that no type holds may be meant for others."""
        offerings = self.offerings[claim.node_pool]
        outcomes = offerings.outcomes(claim.requirements)
        held = (d for d in offerings.daemons if fits(d.requests, outcomes.allocatable))
        return FinalNode(
            name=name_of_claim(claim),
            host=f"new node {number}",
            taints=offerings.taints,
            planned={key: self._kinds[key] for key in claim.pods},
            daemons=[d for d in held if outcomes.meet(d.node_requirements)],
            outcomes=outcomes,
        )

    def _daemons_of(self, pool: str) -> Sequence[PodKind]:
        left_out = self.results.left_out.get(pool)
        return [d for d in self.daemons if left_out is None or d.pod.key not in left_out.names]

    def groups(self, pod: Pod, terms: Iterable[PodAffinityTerm]) -> Iterator[Group]:
        """Yield the pods that each of these terms of a pod counts; terms that count none are left out."""
        return filter(None, (Group.of(pod, term, self.namespaces) for term in terms))

    def present(self, group: Group) -> Sequence[Presence]:
        """Return where the pods are that a rule counts."""
        if group.id not in self._counted:
            named = (("", ""), *group.selector.match_labels.items())
            kinds: list[PodKind] = []
            for namespace in sorted(group.namespaces):
                fewest = min((self._by_label.get((namespace, *label), {}) for label in named), key=len)
                kinds += fewest
            found = ((*self.planned.get(k, ()), *self.staying.get(k, ())) for k in kinds if group.counts(k))
            self._counted[group.id] = [*chain.from_iterable(found)]
        return self._counted[group.id]


def _check_nodes(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that NodePools may launch nodes, and that existing nodes take pods."""
    pools = placement.snapshot.node_pools_by_name
    for claim in placement.results.new_claims:
        if claim.node_pool not in placement.offerings:
            pool, name = pools.get(claim.node_pool), name_of_claim(claim)
            why = why_unusable(pool, placement.snapshot) if pool is not None else "does not exist"
            yield Defect(f"{name}: the NodePool {why}", (name,))
    usable = {node.name for node in placement.usable}
    for name, pods in placements(Results(existing=placement.results.existing)):
        if name not in usable:
            shown = f"{name} gets pods ({', '.join(pods[:3])})"
            yield Defect(f"{shown} although it does not exist, is going, or was to be left out", (name,))


def _check_pods(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that pods tolerate their nodes' taints, and that nodes meet their requirements and reach their volumes."""
    for kind, where in placement.planned.items():
        found = [placement.volumes.of(name) for name in kind.volume_claims]
        unusable = kind.unreadable or ("no node can use one of its volumes" if None in found else "")
        reachable = [volume[1] for volume in found if volume is not None and volume[1]]
        for node, _, _, _ in where:
            taint = untolerated(kind.pod, node.taints)
            if unusable:
                yield node.defect(f"is scheduled although {unusable}", kind)
            if taint is not None:
                yield node.defect(f"does not tolerate taint {taint.key}={taint.value}:{taint.effect}", kind)
            if node.outcomes.fail(kind.node_requirements):
                yield node.defect("does not accept its labels", kind)
            if node.outcomes.fail(reachable):
                yield node.defect("uses volumes that cannot be reached from there", kind)


def _check_attachments(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that existing nodes attach no more volumes than CSI drivers allow; a shared one counts once."""
    volumes = placement.volumes
    for node in placement.existing:
        limits = volumes.limits.get(node.state.node.metadata.name, {}) if node.state and node.state.node else {}
        planned = {name for kind in node.planned.values() for name in kind.volume_claims} if limits else set()
        there = planned.union(*(kind.volume_claims for kind in node.staying)) if planned else planned
        attached = Counter(volume[0] for volume in map(volumes.of, there) if volume is not None)
        for driver in sorted({volume[0] for volume in map(volumes.of, planned) if volume is not None} & limits.keys()):
            limit = limits[driver]
            if limit is not None and attached[driver] > limit:
                pods = ", ".join(sorted(node.planned))
                yield node.defect(f"{attached[driver]} volumes of {driver} with pods {pods}, it attaches {limit}")


def _check_host_ports(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that pods use each host port of their node once."""
    for node in placement.nodes:
        taken = [port for kind in (*node.staying, *node.daemons) for port in kind.ports] if node.planned else []
        for pod, kind in sorted(node.planned.items()):
            port = conflicting_port(kind.ports, taken)
            if port:
                yield node.defect(f"host port {port} of pod {pod} is taken")
            taken += kind.ports


def _check_capacity(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that nodes hold their pods and DaemonSets' pods, planned ones as each of their instance types."""
    for node in (node for node in placement.nodes if node.planned):
        try:
            available = node.outcomes.allocatable if node.state is None else _allocatable(node.state)
        except InvalidQuantityError as error:
            yield node.defect(f"its size cannot be read: {error.message}")
            continue
        used, daemons = total_requests(node.staying), total_requests(node.daemons)
        running = total_requests(kind for kind in node.staying if is_daemon(kind.pod))
        for resource, amount in sorted(total_requests(node.planned.values()).items()):
            taken = used.get(resource, 0) + max(daemons.get(resource, 0) - running.get(resource, 0), 0)
            left = available.get(resource, 0) - taken
            if amount > max(left, 0):
                yield node.defect(
                    f"{resource} is exceeded by {amount - left} with pods {', '.join(sorted(node.planned))}"
                )


def _allocatable(state: StateNode) -> Mapping[str, int]:
    """Return the node's allocatable; until it is initialized, missing amounts come from its NodeClaim."""
    reported = to_resources(state.node.status.allocatable, round_up=False) if state.node is not None else {}
    if state.claim is None or (state.initialized and reported):
        return reported
    claimed = to_resources(state.claim.status.allocatable, round_up=False)
    requested = {} if claimed or reported else to_resources(state.claim.spec.resources.requests, round_up=True)
    return {**requested, **claimed, **{name: amount for name, amount in reported.items() if amount}}


def _check_new_nodes(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that NodeClaims request what their pods do, and list types that can be launched and are allowed."""
    for node, claim in placement.new:
        for resource, amount in sorted(total_requests(node.planned.values()).items()):
            if amount > claim.requests.get(resource, 0):
                yield node.defect(f"it requests {resource} {claim.requests.get(resource, 0)}, its pods {amount}")
        missing = sorted({*claim.instance_types} - node.outcomes.types.keys())
        if missing or not node.outcomes.types:
            yield node.defect(f"{missing[0] if missing else 'nothing'} cannot be launched under its requirements")
        for required in placement.offerings[claim.node_pool].requirements:
            if node.outcomes.fail((((required,),),)):
                yield node.defect(f"it breaks the NodePool's requirement {required.key} {required.operator}")
            if required.min_values is not None and not claim.min_values_relaxed:
                stated = (
                    _stated(t.requirements).get(normalized(required.key), ()) for t in node.outcomes.types.values()
                )
                number = sum(is_met(required, value) for value in {*chain.from_iterable(stated)} - {None})
                if number < required.min_values:
                    wanted = f"NodePool {claim.node_pool} wants {required.min_values}"
                    yield node.defect(f"its types offer {number} value(s) of {required.key}, {wanted}")


def _check_limits(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that usage and the largest type of each NodeClaim are within NodePools' limits; `nodes` counts one each."""
    for name, offerings in placement.offerings.items():
        planned = [node for node, claim in placement.new if claim.node_pool == name]
        states = [node.state for node in placement.existing if node.state is not None and node.state.node_pool == name]
        counted = [state for state in states if not (state.twin_of or state.is_being_disrupted)]
        by_instance = {
            state.provider_id or state.name: state for state in sorted(counted, key=lambda s: s.claim is None)
        }
        for resource, limit in sorted(offerings.pool.spec.limit_amounts.items()) if planned else ():
            total = sum(_usage(state, resource, offerings.types) for state in by_instance.values())
            total += sum(_largest(resource, node.outcomes.types.values()) for node in planned)
            if total > limit:
                claim = f"with the NodeClaim for {next(iter(planned[0].planned), '')}"
                yield Defect(f"NodePool {name}: {resource} could reach {total} {claim}, its limit is {limit}")


def _usage(state: StateNode, resource: str, types: Mapping[str, InstanceType]) -> int:
    """Return a node's capacity, the less of what Node and NodeClaim say; before launch, that of the largest type.

    What a Node without NodeClaim says of its instance may be too much, so it counts for nothing.
    """
    if resource == NODES or state.claim is None:
        return 1 if resource == NODES else 0
    if not state.provider_id:
        listed = {name for r in state.claim.spec.requirements if r.key == labels.INSTANCE_TYPE for name in r.values}
        return _largest(resource, (types[name] for name in listed & types.keys()))
    try:
        texts = (state.claim.status.capacity, state.node.status.capacity if state.node is not None else {})
        return min(filter(None, (to_resources(each, round_up=False).get(resource) for each in texts)), default=0)
    except InvalidQuantityError:
        return 0


def _largest(resource: str, types: Iterable[InstanceType]) -> int:
    return 1 if resource == NODES else max((t.capacity.get(resource, 0) for t in types), default=0)


def _check_reservations(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that the NodeClaims that use or require a reservation do not exceed its capacity."""
    needed: Counter[str] = Counter()
    for node, claim in placement.new:
        required = node.outcomes.reservations if len(node.outcomes.reservations) == 1 else ()
        needed.update({*claim.reservations, *required} - {""})
    for reservation, number in sorted(needed.items()):
        types = chain.from_iterable(offerings.types.values() for offerings in placement.offerings.values())
        offered = (o for o in chain.from_iterable(t.offerings for t in types) if o.reservation_id == reservation)
        left = min((o.reservation_capacity for o in offered if o.available), default=0)
        if number > left:
            yield Defect(f"reservation {reservation}: {number} NodeClaims need it, it has capacity for {left}")


def _check_spread(placement: FinalPlacement) -> Iterator[Defect]:
    """Check topology spread: the last pod that spreads into a domain finds maxSkew more than in the emptiest at most.

    Pods without the constraint may come after it. A node whose domain is undecided counts in each that it may get, and
    for the emptiest in none. Pods on nodes that have not registered were checked before their launch.
    """
    rules: dict[object, tuple[Group, dict[PodKind, int]]] = {}
    for kind in placement.planned:
        for rule in kind.pod.spec.topology_spread_constraints:
            is_usual = rule.node_affinity_policy != "Ignore" and rule.node_taints_policy != "Honor"
            is_required = rule.when_unsatisfiable == "DoNotSchedule"
            group = Group.of(kind.pod, rule, placement.namespaces) if is_required and is_usual else None
            if group is not None:
                is_host = group.key == labels.HOSTNAME  # a pod counts on its own node
                case = group.id, *(((), ()) if is_host else (kind.node_requirements, kind.pod.spec.tolerations))
                skews = rules.setdefault(case, (group, {}))[1]
                skews[kind] = min(rule.max_skew, skews.get(kind, rule.max_skew))
    for group, skews in rules.values():
        first = next(iter(skews))
        final: Counter[str] = Counter()
        there: Counter[str] = Counter()
        full: set[str] = set()
        for node, _, planned, staying in placement.present(group):
            domains = node.domains(group.key)
            if len(domains) == 1 and (group.key == labels.HOSTNAME or node.outcomes.may_meet(first.node_requirements)):
                final.update(dict.fromkeys(domains, planned + staying))
                there.update(dict.fromkeys(domains, staying))
        emptiest = _emptiest(placement, group.key, first, final)
        where = chain.from_iterable(placement.planned[kind] for kind in skews)
        for node, kind, planned, _ in sorted(where, key=lambda each: (skews[each[1]], each[0].first(each[1]))):
            if node.state is None or node.state.registered:
                if node.lacks(group.key):
                    yield node.defect(f"spreads over {group.key}, which its node has not", kind)
                for domain in sorted(node.domains(group.key) - full):
                    there[domain] += planned * group.counts(kind)
                    if there[domain] > emptiest + skews[kind]:
                        full.add(domain)
                        found = f"is one of {there[domain]} in {group.key} {domain}, the emptiest domain has {emptiest}"
                        yield node.defect(f"{found}, its spread allows {skews[kind]} more", kind)


def _emptiest(placement: FinalPlacement, key: str, kind: PodKind, final: Mapping[str, int]) -> int:
    """Return the number of counted pods in the emptiest domain that a pod may be in; 0 for hosts, as new ones may come.

    A NodePool in back-off adds no domain, though the node that tries again is of it: then only domains with nodes
    count.
    """
    if key == labels.HOSTNAME:
        return 0
    nodes = (n for n in placement.usable if n.outcomes.may_meet(kind.node_requirements))
    domains = {domain for node in nodes for domain in node.domains(key)}
    for offerings in placement.offerings.values():
        if not (untolerated(kind.pod, offerings.taints) or backoffs_of(offerings.pool, placement.snapshot)):
            domains |= offerings.domains(key, kind.node_requirements)
    return min((final.get(domain, 0) for domain in domains or final), default=0)


def _check_affinity(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that pods find a pod that their affinity selects, or select themselves, in each domain that they may get.

    On a node whose domain is undecided, the pod is on the same node, or in each of the domains.
    """
    known: dict[bytes, tuple[Set[str], Set[str]]] = {}
    for kind, where in placement.planned.items():
        for group in placement.groups(kind.pod, kind.affinity):
            if group.id not in known:
                nodes = [node for node, _, _, _ in placement.present(group)]
                each = (node.domains(group.key) for node in nodes)
                known[group.id] = {n.host for n in nodes}, set().union(*(found for found in each if len(found) == 1))
            hosts, domains = known[group.id]
            for node, _, _, _ in where if not any(map(group.counts, placement.daemons)) else ():
                if node.lacks(group.key) or (node.host not in hosts and not node.domains(group.key) <= domains):
                    yield node.defect(f"finds none of the pods in its {group.key} that its affinity asks for", kind)


def _check_anti_affinity(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that no domain that a node may get has both a pod with anti-affinity and another that it selects."""
    rules: dict[bytes, tuple[Group, list[Presence], dict[str, str]]] = {}
    for kind, where in chain(placement.planned.items(), placement.staying.items()):
        for group in placement.groups(kind.pod, kind.anti_affinity):
            _, owners, guarded = rules.setdefault(group.id, (group, [], {}))
            owners += (each for each in where if each[2])
            guarded.update(
                {domain: kind.pod.key for node, _, n, _ in where if not n for domain in node.domains(group.key)}
            )
    for group, owners, guarded in rules.values():
        counted: Counter[str] = Counter()
        for node, kind, planned, staying in placement.present(group):
            for domain in node.domains(group.key):
                counted[domain] += planned + staying
                if planned and domain in guarded:
                    wrong = f"is selected by the anti-affinity of pod {guarded[domain]} in {group.key} {domain}"
                    yield node.defect(wrong, kind)
        for node, kind, _, _ in owners:
            others = max((counted[domain] for domain in node.domains(group.key)), default=0) - group.counts(kind)
            if others > 0:
                yield node.defect(f"has anti-affinity to {others} other pod(s) in its {group.key}", kind)


_RULES: Final = (
    *(
        _check_nodes,
        _check_pods,
        _check_attachments,
        _check_host_ports,
        _check_capacity,
        _check_new_nodes,
        _check_limits,
    ),
    *(_check_reservations, _check_spread, _check_affinity, _check_anti_affinity),
)
