"""Verifies a plan with plain code that shares nothing with the solver; a plan with defects is not executed.

The check writes down the cluster as it will be: the pods of each existing and each planned node, and the labels that a
planned node gets from each of its offerings. Each rule then counts in this final placement. What it reports is certain,
in whichever order the pods come, for an offering that the cloud may choose; what counting does not decide passes. Not
checked are prices, ResourceClaims' devices, and the anti-affinity of DaemonSets' pods that are still to come. An
expensive plan passes, a wrong one does not. Tests verify each plan with a stricter judge as well.

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaim.go, existingnode.go, scheduler.go
`filterByRemainingResources`, reservationmanager.go, volumetopology.go, topologygroup.go `nextDomainTopologySpread`,
`nextDomainAffinity`, `nextDomainAntiAffinity`, topology.go `updateInverseAffinities`; pkg/scheduling/volumeusage.go.
Differs: `nodes` is counted within a pass as well; host ports of DaemonSets' pods that are still to come are in use; a
domain in which no instance type can be launched and no node exists does not count for topology spread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from operator import itemgetter

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod, TopologySpreadConstraint
from journeyman.core.api.resources import NODES, absurd_request, to_resources
from journeyman.core.catalogue import Catalogue, InstanceType
from journeyman.core.scheduling.results import Defect, Results, name_of_claim, placements
from journeyman.core.scheduling.verify.final_placement import (
    FinalNode,
    FinalPlacement,
    Outcomes,
    Volumes,
    why_unusable,
)
from journeyman.core.scheduling.verify.matching import (
    CountedPods,
    PodKind,
    conflicting_port,
    daemon_of,
    is_daemon,
    is_finished_or_terminating,
    is_met,
    is_opted_out,
    normalized,
    total_requests,
    untolerated,
)
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.launch_backoff import backoffs_of
from journeyman.errors import InvalidQuantityError


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
    daemons = (daemon_of(daemon_set, filter(is_daemon, snapshot.pods)) for daemon_set in snapshot.daemon_sets)
    running = [d for d in daemons if not (d.unreadable or absurd_request(d.requests))]
    counted = [d for d in running if not (ignore_dra_requests and d.asks_for_devices)]
    placement = FinalPlacement(snapshot, catalogue, results, known, counted)
    moving = {pod.key for pod in pods or ()}.union(*(keys for _, keys in placements(results)))
    for state in snapshot.state_nodes:
        if state.name not in without_nodes:
            placement.add_existing_node(state, moving)
    for claim in results.new_claims:
        if claim.node_pool in placement.offerings:
            placement.add_new_node(claim)
    rules = (
        _check_usable,
        _check_taints,
        _check_labels,
        _check_volumes,
        _check_host_ports,
        _check_capacity,
        _check_instance_types,
        _check_limits,
        _check_reservations,
        _check_spread,
        _check_affinity,
        _check_anti_affinity,
    )
    return tuple(defect for rule in rules for defect in rule(placement))


def _check_completeness(results: Results, known: Mapping[str, Pod], pods: Sequence[Pod]) -> Iterator[Defect]:
    """Check that each pod exists, is scheduled at most once, and is either scheduled or has an error."""
    nodes: dict[str, list[str]] = {}
    for name, keys in placements(results):
        for key in keys:
            nodes.setdefault(key, []).append(name)
    for key, names in sorted(nodes.items()):
        if len(names) > 1:
            yield Defect(f"pod {key} is scheduled {len(names)} times", tuple(names))
        if key in results.pod_errors:
            yield Defect(f"pod {key} is scheduled and has an error")
        if key not in known:
            yield Defect(f"pod {key} is scheduled but does not exist", tuple(names))
    for pod in pods:
        if pod.key not in nodes and pod.key not in results.pod_errors and not is_opted_out(pod):
            yield Defect(f"pod {pod.key} is missing from the plan: neither scheduled nor has it an error")
    for claim in results.new_claims:
        if not claim.pods:
            yield Defect(f"a NodeClaim of NodePool {claim.node_pool} has no pods", (name_of_claim(claim),))


def _check_usable(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that NodePools may launch nodes, that existing nodes take pods, and that pods' requests are valid."""
    pools = {pool.metadata.name: pool for pool in placement.snapshot.node_pools}
    for claim in placement.results.new_claims:
        if claim.node_pool not in placement.offerings:
            pool = pools.get(claim.node_pool)
            why = why_unusable(pool, placement.snapshot) if pool is not None else "does not exist"
            yield Defect(f"{(name := name_of_claim(claim))}: the NodePool {why}", (name,))
    usable = {node.name for node in placement.nodes if node.is_usable}
    for name, pods in placements(Results(existing=placement.results.existing)):
        if name not in usable:
            shown = f"{name} gets pods ({', '.join(pods[:3])})"
            yield Defect(f"{shown} although it does not exist, is going, or was to be left out", (name,))
    for kind, where in placement.planned.items():
        if kind.unreadable:
            yield from (node.defect(f"pod {pod} is scheduled although {kind.unreadable}") for node, pod, _ in where)


def _check_taints(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that pods tolerate the taints of their nodes."""
    for kind, where in placement.planned.items():
        for node, pod, _ in where:
            taint = untolerated(kind.pod, node.taints)
            if taint is not None:
                yield node.defect(f"pod {pod} does not tolerate taint {taint.key}={taint.value}:{taint.effect}")


def _check_labels(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that nodes meet the requirements of their pods, and new nodes those of their NodePool."""
    for kind, where in placement.planned.items():
        for node, pod, _ in where if kind.node_requirements else ():
            if not node.meets(kind.node_requirements):
                yield node.defect(f"pod {pod} does not accept its labels")
    broken: dict[Outcomes, list[str]] = {}
    for node in placement.nodes:
        if node.claim is not None and node.outcomes not in broken:
            unmet = (
                r for r in placement.offerings[node.claim.node_pool].requirements if not node.outcomes.meet((((r,),),))
            )
            broken[node.outcomes] = [f"it breaks the NodePool's requirement {r.key} {r.operator}" for r in unmet]
        yield from map(node.defect, broken.get(node.outcomes, ()))


def _check_volumes(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that nodes reach the volumes of their pods, and attach no more of them than CSI drivers allow."""
    volumes = Volumes(placement.snapshot)
    for kind, where in placement.planned.items():
        for name in kind.volume_claims:
            found = volumes.of(name)
            for node, pod, _ in where:
                if found is None:
                    yield node.defect(f"pod {pod} is scheduled although no node can use the volume of {'/'.join(name)}")
                elif found[1] and not node.meets((found[1],)):
                    yield node.defect(f"the volumes of pod {pod} cannot be reached from there")
    for node in placement.nodes:
        limits = volumes.limits.get(node.state.node.metadata.name, {}) if node.state and node.state.node else {}
        planned = {name for kind in node.kinds for name in kind.volume_claims} if limits else set()
        there = {name for kind in node.staying for name in kind.volume_claims} | planned if planned else set()
        attached = Counter(volume[0] for name in there if (volume := volumes.of(name)) is not None)
        concerned = {volume[0] for name in planned if (volume := volumes.of(name)) is not None}
        for driver in sorted(concerned & limits.keys()):
            limit = limits[driver]
            if limit is not None and attached[driver] > limit:
                pods = f"with pods {', '.join(sorted(node.planned))}"
                yield node.defect(f"{attached[driver]} volumes of {driver} {pods}, it attaches {limit}")


def _check_host_ports(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that pods use each host port of their node once."""
    for node in placement.nodes:
        if any(kind.ports for kind in node.kinds):
            taken = [port for kind in (*node.staying, *node.daemons) for port in kind.ports]
            for pod, kind in sorted(node.planned.items()):
                port = conflicting_port(kind.ports, taken)
                if port is not None:
                    yield node.defect(f"host port {port.number}/{port.protocol} of pod {pod} is taken")
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
                pods = ", ".join(sorted(node.planned))
                yield node.defect(f"{resource} is exceeded by {amount - left} with pods {pods}")
            if node.claim is not None and amount > node.claim.requests.get(resource, 0):
                yield node.defect(f"it requests {resource} {node.claim.requests.get(resource, 0)}, its pods {amount}")


def _allocatable(state: StateNode) -> Mapping[str, int]:
    """Return the node's allocatable; until it is initialized, missing amounts come from its NodeClaim."""
    reported = to_resources(state.node.status.allocatable, round_up=False) if state.node is not None else {}
    if state.claim is None or (state.initialized and reported):
        return reported
    claimed = to_resources(state.claim.status.allocatable, round_up=False)
    if not claimed and not reported:
        return to_resources(state.claim.spec.resources.requests, round_up=True)
    return {**claimed, **{name: amount for name, amount in reported.items() if amount}}


def _check_instance_types(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that each listed instance type can be launched, and that they have the values that minValues require."""
    for node in placement.nodes:
        if node.claim is None:
            continue
        missing = sorted({*node.claim.instance_types} - node.outcomes.types.keys())
        if missing or not node.outcomes.types:
            yield node.defect(f"{missing[0] if missing else 'nothing'} cannot be launched under its requirements")
        for requirement in placement.offerings[node.claim.node_pool].requirements:
            if requirement.min_values is not None and not node.claim.min_values_relaxed:
                number = sum(is_met(requirement, value) for value in node.outcomes.stated(normalized(requirement.key)))
                if number < requirement.min_values:
                    wanted = f"NodePool {node.claim.node_pool} wants {requirement.min_values}"
                    yield node.defect(f"its types offer {number} value(s) of {requirement.key}, {wanted}")


def _check_limits(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that usage and the largest type of each NodeClaim are within NodePools' limits; `nodes` counts one each."""
    for name, offerings in placement.offerings.items():
        planned = [node for node in placement.nodes if node.claim is not None and node.claim.node_pool == name]
        states = [node.state for node in placement.nodes if node.state is not None and node.state.node_pool == name]
        counted = [state for state in states if not (state.twin_of or state.is_being_disrupted)]
        for resource, limit in sorted(offerings.pool.spec.limit_amounts.items()) if planned else ():
            used: dict[str, int] = {}  # by instance; of Nodes that share one, the least counts
            for state in counted:
                amount, instance = _usage(state, resource, offerings.types), state.provider_id or state.name
                used[instance] = min(amount, used.get(instance, amount))
            total = sum(used.values()) + sum(_largest(resource, node.outcomes.types.values()) for node in planned)
            if total > limit:
                claim = f"with the NodeClaim for {next(iter(planned[0].planned), '')}"
                yield Defect(f"NodePool {name}: {resource} could reach {total} {claim}, its limit is {limit}")


def _usage(state: StateNode, resource: str, types: Iterable[InstanceType]) -> int:
    """Return a node's capacity, the less of what Node and NodeClaim say; before launch, that of the largest type listed.

    What a Node without NodeClaim says of its instance may be too much, so it counts for nothing.
    """
    if resource == NODES or state.claim is None:
        return 1 if resource == NODES else 0
    try:
        reported = to_resources(state.node.status.capacity, round_up=False) if state.node is not None else {}
        claimed = to_resources(state.claim.status.capacity, round_up=False)
    except InvalidQuantityError:
        return 0
    if reported or claimed:
        return min(filter(None, (reported.get(resource), claimed.get(resource))), default=0)
    listed = {n for r in state.claim.spec.requirements if r.key == labels.INSTANCE_TYPE for n in r.values}
    return _largest(resource, (t for t in types if t.name in listed))


def _largest(resource: str, types: Iterable[InstanceType]) -> int:
    return 1 if resource == NODES else max((t.capacity.get(resource, 0) for t in types), default=0)


def _check_reservations(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that the NodeClaims that use or require a reservation do not exceed its capacity."""
    needed: Counter[str] = Counter()
    for node in placement.nodes:
        if node.claim is not None:
            needed.update({*node.claim.reservations, node.outcomes.reservation})
    types = chain.from_iterable(offerings.types for offerings in placement.offerings.values() if needed.keys() - {""})
    left: dict[str, int] = {}
    for offering in chain.from_iterable(t.offerings for t in types):
        if offering.available and offering.reservation_id:
            known = left.get(offering.reservation_id, offering.reservation_capacity)
            left[offering.reservation_id] = min(known, offering.reservation_capacity)
    for reservation in sorted(needed.keys() - {""}):
        number, capacity = needed[reservation], left.get(reservation, 0)
        if number > capacity:
            yield Defect(f"reservation {reservation}: {number} NodeClaims need it, it has capacity for {capacity}")


def _check_spread(placement: FinalPlacement) -> Iterator[Defect]:
    """Check topology spread: the last pod that spreads into a domain finds maxSkew more than in the emptiest at most.

    Pods without the constraint may come after it. A node whose domain is undecided counts in each that it may get, and for
    the emptiest in none. Pods that stay with the NodeClaim planned for them were checked before its launch.
    """
    rules: dict[object, tuple[CountedPods, Set[FinalNode], list[tuple[PodKind, TopologySpreadConstraint]]]] = {}
    for kind in placement.planned:
        for constraint in kind.pod.spec.topology_spread_constraints:
            if constraint.when_unsatisfiable == "DoNotSchedule":
                group = CountedPods.of(kind.pod, constraint)
                is_any_node = group.key == labels.HOSTNAME  # a pod counts on its own node
                honors_affinity = constraint.node_affinity_policy != "Ignore" and not is_any_node
                honors_taints = constraint.node_taints_policy == "Honor" and not is_any_node
                requirements = kind.node_requirements if honors_affinity else ()
                case = group.id, requirements, kind.pod.spec.tolerations if honors_taints else None
                if case not in rules:
                    nodes = (node for node in placement.nodes if node.outcomes.meet(requirements, any))
                    tolerated = {n for n in nodes if not (honors_taints and untolerated(kind.pod, n.taints))}
                    rules[case] = group, tolerated, []
                rules[case][2].append((kind, constraint))
    for group, counting, constraints in rules.values():
        yield from _check_spread_rule(placement, group, counting, constraints)


def _check_spread_rule(
    placement: FinalPlacement,
    group: CountedPods,
    counting: Set[FinalNode],
    constraints: Sequence[tuple[PodKind, TopologySpreadConstraint]],
) -> Iterator[Defect]:
    """Check constraints that count the same pods on the same nodes (`counting`: nodeAffinityPolicy, nodeTaintsPolicy)."""
    staying: Counter[str] = Counter()
    final: Counter[str] = Counter()
    for node, planned, remaining in placement.present(group):
        domains = node.domains(group.key)
        if len(domains) == 1 and node in counting:
            staying.update(dict.fromkeys(domains, remaining))
            final.update(dict.fromkeys(domains, planned + remaining))
    entering: dict[str, dict[tuple[PodKind, FinalNode], tuple[int, str, int, FinalNode]]] = {}
    for kind, constraint in constraints:
        allowance = constraint.max_skew + _emptiest(placement, group, kind, counting, final)
        is_counted = placement.counts(group, kind)
        for node, pod, number in placement.planned[kind]:
            if not _is_awaited_by(node, kind):
                entry = allowance, pod, number * is_counted, node
                if node.lacks(group.key):
                    yield node.defect(f"pod {pod} spreads over {group.key}, which is not decided there")
                for domain in node.domains(group.key):
                    known = entering.setdefault(domain, {}).setdefault((kind, node), entry)
                    entering[domain][kind, node] = min(known, entry, key=itemgetter(0))
    for domain, entries in sorted(entering.items()):
        present = staying[domain]
        for allowance, pod, number, node in sorted(entries.values(), key=itemgetter(0, 1)):
            present += number
            if present > allowance:
                yield node.defect(
                    f"pod {pod} is one of {present} in {group.key} {domain}, its spread allows {allowance}"
                )
                break


def _emptiest(
    placement: FinalPlacement, group: CountedPods, kind: PodKind, counting: Set[FinalNode], final: Mapping[str, int]
) -> int:
    """Return the number of counted pods in the emptiest domain that a pod may be in; 0 for hosts, as new ones may come.

    A NodePool in back-off adds no domain, though the node that tries again is of it: then only domains with nodes count.
    """
    if group.key == labels.HOSTNAME:
        return 0
    nodes = [n for n in placement.nodes if n.state is not None and n.is_usable and n in counting]
    domains = {domain for node in nodes for domain in node.domains(group.key) if kind.admits(group.key, domain)}
    for offerings in placement.offerings.values():
        if not (untolerated(kind.pod, offerings.taints) or backoffs_of(offerings.pool, placement.snapshot)):
            domains |= offerings.domains(group.key, kind)
    return min((final.get(domain, 0) for domain in domains or final), default=0)


def _is_awaited_by(node: FinalNode, kind: PodKind) -> bool:
    """Whether the node's NodeClaim, which has not registered, was planned for all the pods of this kind."""
    if node.state is None or node.state.claim is None or node.state.registered:
        return False
    entries = node.state.claim.metadata.annotations.get(labels.PLANNED_PODS, "").split(",")
    awaited = {entry.partition(":")[0] for entry in entries}
    return all(key in awaited for key, planned in node.planned.items() if planned is kind)


def _check_affinity(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that pods find a pod that their affinity selects, or select themselves, in each domain that they may get.

    On a node whose domain is undecided, the pod is on the same node, or in each of the domains.
    """
    known: dict[bytes, tuple[Set[str], Set[str]]] = {}
    for kind, where in placement.planned.items():
        for group in (CountedPods.of(kind.pod, term) for term in kind.affinity):
            if group.id not in known:
                nodes = [*(node for node, _, _ in placement.present(group)), *placement.awaiting(group)]
                each = [node.domains(group.key) for node in nodes]
                known[group.id] = (
                    {node.host for node in nodes},
                    set().union(*(found for found in each if len(found) == 1)),
                )
            hosts, domains = known[group.id]
            for node, pod, _ in where:
                if node.lacks(group.key) or not (node.host in hosts or node.domains(group.key) <= domains):
                    yield node.defect(f"pod {pod} finds none of the pods in its {group.key} that its affinity asks for")


def _check_anti_affinity(placement: FinalPlacement) -> Iterator[Defect]:
    """Check that no domain that a node may get has both a pod with anti-affinity and another that it selects."""
    rules: dict[bytes, tuple[CountedPods, list[tuple[PodKind, FinalNode, str]], dict[str, str]]] = {}
    for kind, where in placement.planned.items():
        for term in kind.anti_affinity:
            group = CountedPods.of(kind.pod, term)
            rules.setdefault(group.id, (group, [], {}))[1].extend((kind, node, pod) for node, pod, _ in where)
    for node in placement.nodes:
        for kind in node.staying:
            for term in kind.anti_affinity if not is_finished_or_terminating(kind.pod) else ():
                group = CountedPods.of(kind.pod, term)
                guarded = rules.setdefault(group.id, (group, [], {}))[2]
                guarded.update(dict.fromkeys(node.domains(group.key), kind.pod.key))
    for group, owners, guarded in rules.values():
        counted: Counter[str] = Counter()
        for node, planned, staying in placement.present(group, planned_only=not owners):
            for domain in node.domains(group.key):
                counted[domain] += planned + staying
                if planned and domain in guarded:
                    excluding = f"runs pod {guarded[domain]}, whose anti-affinity selects a pod planned there"
                    yield node.defect(f"in {group.key} {domain} {excluding}")
        itself = {kind: int(placement.counts(group, kind)) for kind in {kind for kind, _, _ in owners}}
        for kind, node, pod in owners:
            shared = [domain for domain in sorted(node.domains(group.key)) if counted[domain] > itself[kind]]
            if shared:
                others = f"{counted[shared[0]] - itself[kind]} other pod(s) in {group.key} {shared[0]}"
                yield node.defect(f"the anti-affinity of pod {pod} selects {others}")
