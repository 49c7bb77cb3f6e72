"""Intended differences from Karpenter, with the reasons; test_accepted_differences.py shows each.

Most differences need no entry here, because they only schedule more pods or pay less: zones without available offerings
are no domains of a spread; all terms of a required node affinity are alternatives at once; NodePools of equal weight
compete on price; limits count the cheapest type that fits, not the largest. The entries below cause findings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from journeyman.core.api.labels import HOSTNAME, RESERVED
from journeyman.core.api.objects import LabelSelector, Pod, PodAffinityTerm
from journeyman.core.api.resources import resize_of
from journeyman.core.scheduling.requirements import EMPTY, from_labels, from_selectors
from journeyman.core.scheduling.results import Defect, Results
from journeyman.core.scheduling.scheduler import pods_to_schedule
from journeyman.core.state.pod_predicates import selects
from journeyman.core.state.taints import has_untolerated_preference
from journeyman_simulator.judge import verify_strictly
from tests.differential.compare import NEGLIGIBLE_PRICE, Finding, OurSolution, key_of, parse, scheduled_pods

JSONDict = dict[str, Any]
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An intended difference; `explains` returns whether it is the cause of a finding."""

    name: str
    why: str
    explains: Callable[[JSONDict, Finding], bool]


def _is_due_to_node_limit(scenario: JSONDict, finding: Finding) -> bool:
    has_limit = any("nodes" in (o["spec"].get("limits") or {}) for o in scenario["objects"] if o["kind"] == "NodePool")
    is_ours_limited = finding.kind == "missing" and "limits" in finding.text and "nodes" in finding.text
    is_karpenters_excessive = finding.kind == "rejected" and "nodes could reach" in finding.text
    return has_limit and (is_ours_limited or is_karpenters_excessive)


def _is_due_to_choice_of_pods(scenario: JSONDict, finding: Finding) -> bool:
    """Return whether we schedule as many pods as one of Karpenter's plans validly does, and all of these if no others are pending."""
    if finding.kind != "missing":
        return False
    ours = OurSolution(scenario)
    return any(
        len(ours.scheduled) >= len(pods) and scheduled_pods(ours.solve_only(pods)) >= pods
        for pods in finding.valid_pods  # empty if no pod of the plan can run where the plan puts it
    )


def _is_due_to_label_presence(scenario: JSONDict, finding: Finding) -> bool:
    pods = _pods_of(scenario, finding)
    return finding.kind in {"missing", "rejected"} and bool(pods) and all(_loses_label_presence(pod) for pod in pods)


def _loses_label_presence(pod: Pod) -> bool:
    """Return whether the pod's requirements for a label intersect to NotIn or DoesNotExist, but one needs the label."""
    selected = from_labels(pod.spec.node_selector)
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
    preferred = affinity.preferred if affinity is not None else ()
    combined = (
        selected & required_term & preferred_term
        for required_term in (EMPTY, *(from_selectors(term.match_expressions) for term in required))
        for preferred_term in (EMPTY, *(from_selectors(entry.preference.match_expressions) for entry in preferred))
    )
    found = [requirement for requirements in combined for requirement in requirements.values()]
    return any(r.present and r.operator in {"NotIn", "DoesNotExist"} for r in found)


def _is_due_to_label_of_another_pod(scenario: JSONDict, finding: Finding) -> bool:
    """Return whether Karpenter schedules each pod to a node without a label that it needs and another pod excludes."""
    pods = {pod.key: pod for pod in parse(scenario).snapshot.pods}
    without_label = {
        key
        for node in _labelled_pods(scenario, finding.karpenter_plan)
        for key in node.pods
        if key in pods and (_required_labels(pods[key]) - node.labels) & _excluded_labels(pods, node.pods)
    }
    affected = {pod.key for pod in _pods_of(scenario, finding)}
    return finding.kind in {"missing", "rejected"} and bool(affected) and affected <= without_label


class _LabelledPods(NamedTuple):
    """The label keys that a node is sure to have, and the pods planned there."""

    labels: frozenset[str]
    pods: tuple[str, ...]


def _labelled_pods(scenario: JSONDict, plan: Results) -> Iterator[_LabelledPods]:
    snapshot = parse(scenario).snapshot
    type_labels = {r["key"] for instance_type in scenario["instanceTypes"] for r in instance_type["requirements"]}
    nodes = {node.name: node for node in snapshot.state_nodes}
    for name, on_node in plan.existing.items():
        yield _LabelledPods(frozenset(nodes[name].labels), on_node)
    for claim in plan.new_claims:
        template = snapshot.node_pools_by_name[claim.node_pool].spec.template
        pool_labels = {*template.metadata.labels, *(r.key for r in template.spec.requirements)}
        yield _LabelledPods(frozenset(type_labels | pool_labels), claim.pods)


def _required_labels(pod: Pod) -> frozenset[str]:
    return frozenset(key for key, is_required in _label_requirements(pod) if is_required)


def _excluded_labels(pods: Mapping[str, Pod], keys: Iterable[str]) -> frozenset[str]:
    return frozenset(
        label for key in keys if key in pods for label, is_required in _label_requirements(pods[key]) if not is_required
    )


def _label_requirements(pod: Pod) -> set[tuple[str, bool]]:
    """Return the label keys that the pod's requirements name, each with whether the node must have the label."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
    preferred = [entry.preference for entry in affinity.preferred] if affinity is not None else []
    found = {(key, True) for key in pod.spec.node_selector}
    for term in (*required, *preferred):
        found.update((r.key, r.operator not in {"NotIn", "DoesNotExist"}) for r in term.match_expressions)
    return found


def _is_due_to_starting_node(scenario: JSONDict, finding: Finding) -> bool:
    """Return whether Karpenter exceeds maxSkew in the domain of a tainted node, for a spread with `nodeTaintsPolicy: Honor`."""
    spreads = [s for pod in _pods_of(scenario, finding) for s in pod.spec.topology_spread_constraints]
    keys = {spread.topology_key for spread in spreads if spread.node_taints_policy == "Honor"}
    tainted = [n.metadata for n in parse(scenario).snapshot.nodes if n.spec.taints]
    domains = {f"{key} {node.labels.get(key, node.name)}," for node in tainted for key in keys}
    exceeds = finding.kind == "rejected" and "its spread allows" in finding.text
    return exceeds and any(domain in finding.text for domain in domains)


def _is_due_to_node_to_join(scenario: JSONDict, finding: Finding) -> bool:
    """Return whether Karpenter's plan keeps maxSkew over the domains without those of empty NodeClaims whose node is to join."""
    if finding.kind != "rejected" or "its spread allows" not in finding.text:
        return False
    nodes = parse(scenario).snapshot.state_nodes
    awaited = {n.name for n in nodes if n.node is None and n.name not in finding.karpenter_plan.existing}
    objects = [o for o in scenario["objects"] if o["kind"] != "NodeClaim" or o["metadata"]["name"] not in awaited]
    texts = [str(defect) for defect in _defects({**scenario, "objects": objects}, finding.karpenter_plan)]
    return bool(awaited) and finding.text not in texts


def _is_due_to_missing_volume_claim(scenario: JSONDict, finding: Finding) -> bool:
    affected, errors = _pods_of(scenario, finding), OurSolution(scenario).results.pod_errors
    invalid = {key for key, error in errors.items() if error.kind == "invalid"}
    are_invalid = bool(affected) and all(pod.spec.node_name and pod.key in invalid for pod in affected)
    return finding.kind in {"missing", "rejected"} and are_invalid


def _is_due_to_host_port_of_daemon(scenario: JSONDict, finding: Finding) -> bool:
    """Return whether Karpenter has each pod on an existing node whose DaemonSet has not started and needs its host port."""
    if finding.kind not in {"missing", "rejected"} or not finding.pods:
        return False
    defects = [str(defect) for defect in _defects(scenario, finding.karpenter_plan)]
    taken = [text for text in defects if "by its daemons" in text]
    return all(any(f" of pod {pod} is taken" in text for text in taken) for pod in finding.pods)


def _is_due_to_daemon_on_soft_taint(scenario: JSONDict, finding: Finding) -> bool:
    """Return whether the existing nodes hold the pods without the DaemonSets that do not tolerate their PreferNoSchedule taint."""
    if finding.kind != "rejected" or not _exceeded_nodes(finding.text):
        return False
    snapshot = parse(scenario).snapshot
    taints = [
        taint
        for node in snapshot.nodes
        if node.metadata.name in _exceeded_nodes(finding.text)
        for taint in node.spec.taints
    ]
    avoiding = {
        f"{ds.metadata.namespace}/{ds.metadata.name}"
        for ds in snapshot.daemon_sets
        if has_untolerated_preference(taints, ds.spec.template.spec.tolerations)
    }
    kept = [raw for raw in scenario["objects"] if raw["kind"] != "DaemonSet" or key_of(raw) not in avoiding]
    left = _defects({**scenario, "objects": kept}, finding.karpenter_plan)
    return not any(_exceeded_nodes(str(defect)) for defect in left)


def _exceeded_nodes(text: str) -> list[str]:
    """Return the existing nodes that have too many pods, as verification says."""
    return re.findall(r"\bnode ([\w.-]+): [\w./-]+ is exceeded by", text)


def _is_due_to_relaxation(scenario: JSONDict, finding: Finding) -> bool:
    """Return, for a dearer plan, whether Karpenter pays no less without relaxing pods."""
    if finding.kind == "dearer":
        return _costs_as_much(finding.karpenter_plan_unrelaxed, scenario, finding)
    affected = _pods_of(scenario, finding)
    templates = [pool.spec.template.spec for pool in parse(scenario).snapshot.node_pools]
    has_soft_taint = any(taint.effect == "PreferNoSchedule" for template in templates for taint in template.taints)
    are_relaxed = all(p.spec.topology_spread_constraints and (has_soft_taint or _has_alternatives(p)) for p in affected)
    return finding.kind in {"missing", "rejected"} and bool(affected) and are_relaxed


def _costs_as_much(variant: Results | None, scenario: JSONDict, finding: Finding) -> bool:
    """Return whether Karpenter's plan for a variant of the scenario costs no less than ours for the scenario."""
    our_plan = OurSolution(scenario).solve_only(scheduled_pods(finding.karpenter_plan))
    return variant is not None and variant.price >= our_plan.price - NEGLIGIBLE_PRICE


def _is_due_to_counted_limits(scenario: JSONDict, finding: Finding) -> bool:
    """Return whether Karpenter pays no less without limits."""
    return finding.kind == "dearer" and _costs_as_much(finding.karpenter_plan_unlimited, scenario, finding)


def _is_due_to_spoiled_preference(scenario: JSONDict, finding: Finding) -> bool:
    """Return whether Karpenter pays no less without preferences about DaemonSets' pods."""
    return finding.kind == "dearer" and _costs_as_much(finding.karpenter_plan_indifferent, scenario, finding)


def _has_alternatives(pod: Pod) -> bool:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    return affinity is not None and affinity.required is not None and len(affinity.required.node_selector_terms) > 1


def _is_due_to_min_domains(scenario: JSONDict, finding: Finding) -> bool:
    min_domains = {
        (spread.topology_key, spread.min_domains)
        for pod in parse(scenario).snapshot.pods
        for spread in pod.spec.topology_spread_constraints
    }
    ambiguous = {key for key, least in min_domains if any(k == key and n != least for k, n in min_domains)}
    keys_by_pod = [
        {s.topology_key for s in pod.spec.topology_spread_constraints} for pod in _pods_of(scenario, finding)
    ]
    are_ambiguous = bool(keys_by_pod) and all(keys & ambiguous for keys in keys_by_pod)
    return finding.kind in {"missing", "rejected"} and are_ambiguous


def _is_due_to_undecided_domain(scenario: JSONDict, finding: Finding) -> bool:
    """Return whether the zone is undecided for the affinity of each pod, or of a pod that its affinity selects."""
    affected, plan = _pods_of(scenario, finding), finding.karpenter_plan
    others = parse(scenario).snapshot.pods if affected and finding.kind == "rejected" else ()
    return bool(others) and all(
        any(_has_undecided_domain(p, plan) for p in (pod, *(o for o in others if _has_affinity_to(pod, o))))
        for pod in affected
    )


def _has_affinity_to(pod: Pod, other: Pod) -> bool:
    return any(selects(term.label_selector, other.metadata.labels) for term in _required_affinity_terms(pod))


def _has_undecided_domain(pod: Pod, plan: Results) -> bool:
    """Return whether the plan leaves some NodeClaim's zone (or other topology key of the pod's affinity) open."""
    keys = {term.topology_key for term in _required_affinity_terms(pod)} - {HOSTNAME}
    decided = [{r.key for r in claim.requirements if len(r.values) == 1} for claim in plan.new_claims]
    return any(keys - known for known in decided)


def _required_affinity_terms(pod: Pod) -> tuple[PodAffinityTerm, ...]:
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
    return affinity.required if affinity is not None else ()


def _is_due_to_several_reservations(scenario: JSONDict, finding: Finding) -> bool:
    pools = parse(scenario).snapshot.node_pools
    with_min_values = {p.metadata.name for p in pools if any(r.min_values for r in p.spec.template.spec.requirements)}
    reserved = {claim.node_pool for claim in finding.karpenter_plan.new_claims if claim.offering[2] == RESERVED}
    return finding.kind == "dearer" and bool(with_min_values & reserved)


def _is_due_to_min_values_of_reserved_node(_: JSONDict, finding: Finding) -> bool:
    claims = [c for c in finding.karpenter_plan.new_claims if any(pod in finding.text for pod in c.pods)]
    return (
        finding.kind == "rejected"
        and "its types offer" in finding.text
        and bool(claims)
        and all(claim.offering[2] == RESERVED for claim in claims)
    )


def _is_due_to_node_filter(scenario: JSONDict, finding: Finding) -> bool:
    affected, others = _pods_of(scenario, finding), parse(scenario).snapshot.pods
    differ = all(any(_shares_spread_with_other_filter(pod, other) for other in others) for pod in affected)
    return finding.kind == "rejected" and "its spread allows" in finding.text and bool(affected) and differ


def _shares_spread_with_other_filter(pod: Pod, other: Pod) -> bool:
    """Return whether both pods spread over the same label and count each other, but have different node filters."""
    keys = {s.topology_key for s in pod.spec.topology_spread_constraints if s.node_affinity_policy != "Ignore"}
    is_counted = any(
        spread.topology_key in keys
        and selects(spread.label_selector, pod.metadata.labels)
        and selects(spread.label_selector, other.metadata.labels)
        for spread in other.spec.topology_spread_constraints
    )
    return is_counted and _node_filter(pod) != _node_filter(other)


def _node_filter(pod: Pod) -> tuple[object, object]:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    return pod.spec.node_selector, affinity.required if affinity is not None else None


def _is_due_to_dropped_preference(scenario: JSONDict, finding: Finding) -> bool:
    """Return whether we pay no more than Karpenter if pods with a spread over zones (or the like) have no preferences."""
    if finding.kind != "dearer":
        return False
    without = {**scenario, "objects": [_without_preferences(raw) for raw in scenario["objects"]]}
    scheduled = scheduled_pods(finding.karpenter_plan)
    plan = OurSolution(without).solve_only(scheduled)
    return without != scenario and _is_as_good(plan, finding.karpenter_plan)


def _is_as_good(plan: Results, reference: Results) -> bool:
    """Return whether a plan schedules all pods of another one, and costs no more."""
    return scheduled_pods(plan) >= scheduled_pods(reference) and plan.price <= reference.price + NEGLIGIBLE_PRICE


def _without_preferences(raw: JSONDict) -> JSONDict:
    """Return the object; a pod with a spread over another label than the hostname has no preferred node affinity or spread."""
    spec = raw.get("spec") or {}
    spreads = spec.get("topologySpreadConstraints") or ()
    if raw["kind"] != "Pod" or not any(spread["topologyKey"] != HOSTNAME for spread in spreads):
        return raw
    kept = {"topologySpreadConstraints": [s for s in spreads if s["whenUnsatisfiable"] == "DoNotSchedule"]}
    affinity = spec.get("affinity") or {}
    if PREFERRED in (affinity.get("nodeAffinity") or {}):
        required = {k: v for k, v in affinity["nodeAffinity"].items() if k != PREFERRED}
        kept["affinity"] = {**affinity, "nodeAffinity": required}
    return {**raw, "spec": {**spec, **kept}}


def _is_due_to_kept_preference(scenario: JSONDict, finding: Finding) -> bool:
    """Return whether we pay no more than Karpenter without the preferred terms that only our plan satisfies."""
    if finding.kind != "dearer":
        return False
    scheduled = scheduled_pods(finding.karpenter_plan)
    our_plan = OurSolution(scenario).solve_only(scheduled)
    kept = [
        term
        for term in _preferred_terms(scenario)
        if _violates(scenario, finding.karpenter_plan, term) and not _violates(scenario, our_plan, term)
    ]
    without = scenario
    for term in reversed(kept):
        without = _without_preference(without, term)
    plan = OurSolution(without).solve_only(scheduled)
    return bool(kept) and _is_as_good(plan, finding.karpenter_plan)


class _PreferredTerm(NamedTuple):
    """A preferred term of a pod.

    Attributes:
        pod: The pod's index among the objects.
        kind: `podAffinity` or `podAntiAffinity`.
        term: The term's index.
    """

    pod: int
    kind: str
    term: int


def _preferred_terms(scenario: JSONDict) -> Iterator[_PreferredTerm]:
    for index, raw in enumerate(scenario["objects"]):
        affinity = (raw.get("spec") or {}).get("affinity") or {} if raw["kind"] == "Pod" else {}
        for kind in ("podAffinity", "podAntiAffinity"):
            for n in range(len((affinity.get(kind) or {}).get(PREFERRED) or ())):
                yield _PreferredTerm(index, kind, n)


def _violates(scenario: JSONDict, plan: Results, term: _PreferredTerm) -> bool:
    """Return whether verification finds more defects in a plan if this term is required."""
    required = _without_preference(scenario, term, is_required=True)
    return len(_defects(required, plan)) > len(_defects(scenario, plan))


def _defects(scenario: JSONDict, plan: Results) -> tuple[Defect, ...]:
    case, keys = parse(scenario), scheduled_pods(plan) | plan.pod_errors.keys()
    return verify_strictly(
        case.snapshot, case.catalogue, plan, pods=[pod for pod in pods_to_schedule(case.snapshot) if pod.key in keys]
    )


def _without_preference(scenario: JSONDict, term: _PreferredTerm, *, is_required: bool = False) -> JSONDict:
    """Return the scenario without a preferred term, or with it as a required one."""
    objects = list(scenario["objects"])
    raw = objects[term.pod]
    affinity = raw["spec"]["affinity"]
    preferred = affinity[term.kind][PREFERRED]
    left = {PREFERRED: [entry for n, entry in enumerate(preferred) if n != term.term]}
    required = [*affinity[term.kind].get(REQUIRED, ()), *([preferred[term.term]["podAffinityTerm"]] * is_required)]
    changed = {**affinity, term.kind: {**left, REQUIRED: required}}
    objects[term.pod] = {**raw, "spec": {**raw["spec"], "affinity": changed}}
    return {**scenario, "objects": objects}


def _is_due_to_hash_collision(scenario: JSONDict, finding: Finding) -> bool:
    selectors = [s for pod in parse(scenario).snapshot.pods for s in _selectors(pod)]
    affected = [s for pod in _pods_of(scenario, finding) for s in _selectors(pod)]
    collide = any(_has_hash_collision(one, other) for one in affected for other in selectors)
    return finding.kind == "rejected" and collide


def _selectors(pod: Pod) -> list[LabelSelector]:
    affinity = pod.spec.affinity
    kinds = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ()
    terms = [term for kind in kinds if kind is not None for term in kind.required]
    preferred = [entry.pod_affinity_term for kind in kinds if kind is not None for entry in kind.preferred]
    spreads = [spread.label_selector for spread in pod.spec.topology_spread_constraints]
    found = [*(term.label_selector for term in (*terms, *preferred)), *spreads]
    return [selector for selector in found if selector is not None]


def _has_hash_collision(one: LabelSelector, other: LabelSelector) -> bool:
    return any(
        (a.key, a.operator) == (b.key, b.operator)
        and set(a.values) != set(b.values)
        and _hash_of_set(a.values) == _hash_of_set(b.values)
        for a in one.match_expressions
        for b in other.match_expressions
    )


def _hash_of_set(values: Sequence[str]) -> int:
    """Return Karpenter's hash of a set: the FNV-1 hashes of the values, joined by exclusive or."""
    total = 0
    for value in values:
        hashed = 0xCBF29CE484222325
        for byte in value.encode():
            hashed = hashed * 0x100000001B3 % 2**64 ^ byte
        total ^= hashed
    return total


def _is_due_to_resize_of_pod_level(scenario: JSONDict, finding: Finding) -> bool:
    """Return whether Karpenter schedules a pod with such a resize, or others to its node."""
    plan = finding.karpenter_plan
    resized = [pod for pod in parse(scenario).snapshot.pods if (resize := resize_of(pod)) and resize.pod_level]
    concerned = any(pod.spec.node_name in plan.existing or pod.key in scheduled_pods(plan) for pod in resized)
    return finding.kind in {"missing", "dearer", "rejected"} and concerned


def _is_due_to_awaited_daemons(scenario: JSONDict, finding: Finding) -> bool:
    """Return whether anti-affinity keeps the pods off nodes on which a DaemonSet's pod is still to come."""
    if finding.kind == "rejected":
        return "the awaited pod of DaemonSet" in finding.text
    daemon_sets, pods = parse(scenario).snapshot.daemon_sets, _pods_of(scenario, finding)
    samples = [
        Pod(metadata=replace(ds.spec.template.metadata, namespace=ds.metadata.namespace), spec=ds.spec.template.spec)
        for ds in daemon_sets
    ]
    return (
        finding.kind == "missing"
        and bool(pods)
        and all(any(_keeps_off(pod, d) or _keeps_off(d, pod) for d in samples) for pod in pods)
    )


def _keeps_off(pod: Pod, other: Pod) -> bool:
    """Return whether the required anti-affinity of a pod selects another one."""
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity is not None else None
    return any(
        selects(term.label_selector, other.metadata.labels)
        and (
            term.namespace_selector is not None
            or other.metadata.namespace in (term.namespaces or (pod.metadata.namespace,))
        )
        for term in (affinity.required if affinity is not None else ())
    )


def _pods_of(scenario: JSONDict, finding: Finding) -> list[Pod]:
    """Return the pods of a finding."""
    pods = {pod.key: pod for pod in parse(scenario).snapshot.pods}
    return [pods[key] for key in finding.pods if key in pods]


ACCEPTED = (
    Difference(
        name="our scheduler enforces a limit on nodes within a pass",
        why="Karpenter does not count the nodes that it plans in the same pass, so one burst of pods exceeds the limit",
        explains=_is_due_to_node_limit,
    ),
    Difference(
        name="our scheduler may leave other pods pending, but no more of them",
        why="Karpenter schedules pods one by one, the largest first, and equal ones by UID; we schedule pod classes",
        explains=_is_due_to_choice_of_pods,
    ),
    Difference(
        name="our scheduler keeps the requirement that a label exists",
        why="Karpenter intersects a pod's requirements for a label, such as Exists and NotIn [a], or In [a] and NotIn"
        " [a], and loses the one for its presence; it schedules the pod to a node that kube-scheduler refuses",
        explains=_is_due_to_label_presence,
    ),
    Difference(
        name="our scheduler derives no node label from the NotIn of another pod",
        why="Karpenter takes the values that a NotIn leaves as the node's label, and schedules pods that require the"
        " label to a node that lacks it",
        explains=_is_due_to_label_of_another_pod,
    ),
    Difference(
        name="our scheduler counts the pods on a starting node for every spread",
        why="Karpenter schedules pods to a node whose startup taint will be removed, but a spread with"
        " `nodeTaintsPolicy: Honor` does not count the pods that already run there",
        explains=_is_due_to_starting_node,
    ),
    Difference(
        name="our scheduler knows the domain of a node that is to join",
        why="Karpenter takes the minimum of a spread over the domains of pods and NodePools; for kube-scheduler the domain of"
        " an empty node that joins from a NodeClaim counts as well, also where no NodePool can launch any more",
        explains=_is_due_to_node_to_join,
    ),
    Difference(
        name="our scheduler does not schedule a deleted node's pod whose PersistentVolumeClaim is missing",
        why="Karpenter checks the PersistentVolumeClaims of pending pods only; a pod of a deleted node that has lost"
        " its claim cannot start on another node",
        explains=_is_due_to_missing_volume_claim,
    ),
    Difference(
        name="our scheduler reserves the host ports of DaemonSets that have not started, on existing nodes too",
        why="Karpenter reserves them on new nodes only; a pod that uses one on an existing node keeps the DaemonSet's pod"
        " from starting there",
        explains=_is_due_to_host_port_of_daemon,
    ),
    Difference(
        name="our scheduler counts the pods that DaemonSets will run for anti-affinity",
        why="Karpenter counts only pods that run; it launches a node for a pod that kube-scheduler never binds there, because"
        " a DaemonSet's pod is on it that the pod's anti-affinity selects, or whose anti-affinity selects the pod",
        explains=_is_due_to_awaited_daemons,
    ),
    Difference(
        name="our scheduler expects DaemonSets' pods on existing nodes with a PreferNoSchedule taint",
        why="The DaemonSet controller ignores such taints; Karpenter adds the toleration only when it compares a DaemonSet with the"
        " instance types of a NodePool, and without any it plans pods in place of the DaemonSet's pod",
        explains=_is_due_to_daemon_on_soft_taint,
    ),
    Difference(
        name="our scheduler counts the pods of this pass for a relaxed pod too",
        why="Karpenter drops a term of a pod's node affinity, or adds a toleration of PreferNoSchedule; the pod's"
        " spread then has another node filter, and a new count that ignores the pods scheduled in this pass, so"
        " that more of them may share a node, which is cheaper; a relaxed pod is also scheduled after others",
        explains=_is_due_to_relaxation,
    ),
    Difference(
        name="our scheduler counts the planned instance type against limits",
        why="Karpenter counts the largest type that a NodeClaim lists; it exhausts the limits of a NodePool with a greater"
        " weight sooner, and uses one with a smaller weight, which may be cheaper",
        explains=_is_due_to_counted_limits,
    ),
    Difference(
        name="our scheduler keeps no preference that DaemonSets' pods will spoil",
        why="Karpenter counts only pods that run: a pod that prefers to avoid a DaemonSet's pods gets a new node, on which one"
        " comes as well, instead of its place on an existing node, which a pod with dearer needs gets by luck",
        explains=_is_due_to_spoiled_preference,
    ),
    Difference(
        name="our scheduler uses each pod's own minDomains",
        why="Karpenter merges spreads that differ only in minDomains, and uses the value of the first one for all",
        explains=_is_due_to_min_domains,
    ),
    Difference(
        name="our scheduler satisfies pod affinity only in a decided zone",
        why="Karpenter creates NodeClaims with several zones for pods with required affinity; only the launch decides"
        " the zones, so the pods may end up in different ones",
        explains=_is_due_to_undecided_domain,
    ),
    Difference(
        name="our scheduler counts minValues over the types that can be launched",
        why="Karpenter restricts a NodeClaim to its reservations after it counts minValues; fewer types may remain"
        " than the NodePool requires, and the NodeClaim does not report it",
        explains=_is_due_to_min_values_of_reserved_node,
    ),
    Difference(
        name="our scheduler reserves one reservation per NodeClaim",
        why="Karpenter lists several reservations on one NodeClaim of a NodePool with minValues, and reserves a slot"
        " in each",
        explains=_is_due_to_several_reservations,
    ),
    Difference(
        name="our scheduler counts, for a spread, all nodes that will match its node filter",
        why="Karpenter counts pods with another node affinity only if the NodeClaim's requirements match the filter;"
        " it skips a NodeClaim without a requirement for the architecture, even if all its types have the right"
        " one",
        explains=_is_due_to_node_filter,
    ),
    Difference(
        name="our scheduler treats constraints with different selectors as different",
        why="Karpenter identifies a constraint by a hash that joins the FNV-1 hashes of values by exclusive or; app"
        " In [app0, app1, app2] equals app In [app3], and it ignores the second such constraint of a pass",
        explains=_is_due_to_hash_collision,
    ),
    Difference(
        name="our scheduler keeps a preference if some order of the pods allows it",
        why="Karpenter schedules pods one by one, the largest first, and equal ones by UID; a late pod loses its"
        " preference, or joins pods that it prefers to avoid on a node whose label is undecided, which may be"
        " cheaper",
        explains=_is_due_to_kept_preference,
    ),
    Difference(
        name="our scheduler drops a preference only when no zone satisfies it",
        why="Karpenter picks one of the zones that a spread allows at random; it drops the preference if that zone"
        " does not satisfy it, instead of trying another zone",
        explains=_is_due_to_dropped_preference,
    ),
    Difference(
        name="our scheduler counts resizes of the pod level",
        why="Karpenter reads the status of containers only, so that it plans with what a pod still holds; kube-scheduler"
        " counts the pod level as well since Kubernetes 1.36",
        explains=_is_due_to_resize_of_pod_level,
    ),
)


def unaccepted(scenario: JSONDict, found: Sequence[Finding]) -> list[Finding]:
    """Return the findings that no accepted difference explains; an invalid plan of Karpenter's sets no price."""
    if any(f.kind in {"oracle", "crash"} for f in found):
        return list(found)
    explained = [f for f in found if any(difference.explains(scenario, f) for difference in ACCEPTED)]
    is_invalid = any(f.kind == "rejected" for f in explained)
    return [f for f in found if f not in explained and not (is_invalid and f.kind == "dearer")]
