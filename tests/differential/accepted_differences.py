"""Where we mean to decide otherwise than Karpenter, by name, with the reason; test_accepted_differences.py shows each.

Most need no exception here, because they only ever place more pods or pay less: zones that cannot be had are no domains
of a spread; alternatives of required node affinity hold all at once; NodePools of equal weight compete on price; limits
are charged with what is cheapest to launch, not with the largest type that might be. Only those below make us do
something that would otherwise count as worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from journeyman.core.api.labels import HOSTNAME, RESERVED
from journeyman.core.api.objects import LabelSelector, Pod, PodAffinityTerm
from journeyman.core.scheduling.requirements import EMPTY, from_labels, from_selectors
from journeyman.core.scheduling.results import Results
from journeyman.core.scheduling.scheduler import pods_to_schedule
from journeyman.core.scheduling.verify import Defect, verify
from journeyman.core.state.pod_predicates import selects
from tests.differential.compare import NO_MONEY, Finding, Ours, placed_in, read

JSONDict = dict[str, Any]
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One of them. `covers` says of a finding about a scenario whether this is why."""

    name: str
    why: str
    covers: Callable[[JSONDict, Finding], bool]


def _is_about_limited_nodes(scenario: JSONDict, finding: Finding) -> bool:
    limited = any("nodes" in (o["spec"].get("limits") or {}) for o in scenario["objects"] if o["kind"] == "NodePool")
    stopped_us = finding.kind == "missing" and "limits" in finding.text and "nodes" in finding.text
    stopped_them = finding.kind == "rejected" and "nodes could reach" in finding.text
    return limited and (stopped_us or stopped_them)


def _is_about_selection(scenario: JSONDict, finding: Finding) -> bool:
    """Whether we schedule as many pods as Karpenter does without breaking a rule, and all of these if no others are pending."""
    if finding.kind != "missing" or not finding.lawful:
        return False
    ours = Ours(scenario)
    return len(ours.placed) >= len(finding.lawful) and placed_in(ours.only(finding.lawful)) >= finding.lawful


def _is_about_presence(scenario: JSONDict, finding: Finding) -> bool:
    about = _pods(scenario, finding)
    return finding.kind in {"missing", "rejected"} and bool(about) and all(_wants_a_label_and_not(pod) for pod in about)


def _wants_a_label_and_not(pod: Pod) -> bool:
    """Whether of all that the pod asks of a label only a preference for its absence seems to be left."""
    asked = from_labels(pod.spec.node_selector)
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
    preferred = affinity.preferred if affinity is not None else ()
    combined = (
        asked & must & like
        for must in (EMPTY, *(from_selectors(term.match_expressions) for term in required))
        for like in (EMPTY, *(from_selectors(entry.preference.match_expressions) for entry in preferred))
    )
    return any(r.present and r.operator in {"NotIn", "DoesNotExist"} for all_ in combined for r in all_.values())


def _is_about_lent_labels(scenario: JSONDict, finding: Finding) -> bool:
    """Whether Karpenter has each pod on a node without a label that it needs, of which another pod there refuses values."""
    pods = {pod.key: pod for pod in read(scenario).snapshot.pods}
    lent = {
        key
        for node in _labelled_pods(scenario, finding.theirs)
        for key in node.pods
        if key in pods and (_wanted_labels(pods[key]) - node.labels) & _refused_labels(pods, node.pods)
    }
    about = {pod.key for pod in _pods(scenario, finding)}
    return finding.kind in {"missing", "rejected"} and bool(about) and about <= lent


class _LabelledPods(NamedTuple):
    """The labels that a node surely has, and the pods planned there."""

    labels: frozenset[str]
    pods: tuple[str, ...]


def _labelled_pods(scenario: JSONDict, plan: Results) -> Iterator[_LabelledPods]:
    snapshot = read(scenario).snapshot
    of_types = {r["key"] for instance_type in scenario["instanceTypes"] for r in instance_type["requirements"]}
    nodes = {node.name: node for node in snapshot.state_nodes}
    for name, there in plan.existing.items():
        yield _LabelledPods(frozenset(nodes[name].labels), there)
    for claim in plan.new_claims:
        template = snapshot.node_pools_by_name[claim.node_pool].spec.template
        of_pool = {*template.metadata.labels, *(r.key for r in template.spec.requirements)}
        yield _LabelledPods(frozenset(of_types | of_pool), claim.pods)


def _wanted_labels(pod: Pod) -> frozenset[str]:
    return frozenset(key for key, is_wanted in _asked_labels(pod) if is_wanted)


def _refused_labels(pods: Mapping[str, Pod], keys: Iterable[str]) -> frozenset[str]:
    return frozenset(
        label for key in keys if key in pods for label, is_wanted in _asked_labels(pods[key]) if not is_wanted
    )


def _asked_labels(pod: Pod) -> set[tuple[str, bool]]:
    """The labels that the pod asks something of, and whether they must be there."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
    preferred = [entry.preference for entry in affinity.preferred] if affinity is not None else []
    asked = {(key, True) for key in pod.spec.node_selector}
    for term in (*required, *preferred):
        asked.update((r.key, r.operator not in {"NotIn", "DoesNotExist"}) for r in term.match_expressions)
    return asked


def _is_about_starting_nodes(scenario: JSONDict, finding: Finding) -> bool:
    """Whether a node that has a taint for as long as it starts is filled beyond what a spread that heeds taints allows."""
    nodes = read(scenario).snapshot.nodes
    named = any(f"node {n.metadata.name}:" in finding.text and n.spec.taints for n in nodes)
    spreads = [s for pod in _pods(scenario, finding) for s in pod.spec.topology_spread_constraints]
    heeding = any(spread.node_taints_policy == "Honor" for spread in spreads)
    return finding.kind == "rejected" and "its spread allows" in finding.text and named and heeding


def _is_about_leaving_pods_without_volumes(scenario: JSONDict, finding: Finding) -> bool:
    about, errors = _pods(scenario, finding), Ours(scenario).results.pod_errors
    invalid = {key for key, error in errors.items() if error.kind == "invalid"}
    leaving = bool(about) and all(pod.spec.node_name and pod.key in invalid for pod in about)
    return finding.kind in {"missing", "rejected"} and leaving


def _is_about_relaxed_pods(scenario: JSONDict, finding: Finding) -> bool:
    """Of a dearer plan, whether Karpenter would pay no less if it had not had to relax the pods with topology spread."""
    if finding.kind == "dearer":
        unrelaxed = finding.theirs_unrelaxed
        mine = Ours(scenario).only(placed_in(finding.theirs))
        return unrelaxed is not None and unrelaxed.price >= mine.price - NO_MONEY
    about = _pods(scenario, finding)
    templates = [pool.spec.template.spec for pool in read(scenario).snapshot.node_pools]
    dissuaded = any(taint.effect == "PreferNoSchedule" for template in templates for taint in template.taints)
    relaxes = all(pod.spec.topology_spread_constraints and (dissuaded or _has_alternatives(pod)) for pod in about)
    return finding.kind in {"missing", "rejected"} and bool(about) and relaxes


def _has_alternatives(pod: Pod) -> bool:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    return affinity is not None and affinity.required is not None and len(affinity.required.node_selector_terms) > 1


def _is_about_min_domains(scenario: JSONDict, finding: Finding) -> bool:
    asked = {
        (spread.topology_key, spread.min_domains)
        for pod in read(scenario).snapshot.pods
        for spread in pod.spec.topology_spread_constraints
    }
    of_several = {key for key, least in asked if any(k == key and other != least for k, other in asked)}
    own = [{s.topology_key for s in pod.spec.topology_spread_constraints} for pod in _pods(scenario, finding)]
    return finding.kind in {"missing", "rejected"} and bool(own) and all(keys & of_several for keys in own)


def _is_about_open_domains(scenario: JSONDict, finding: Finding) -> bool:
    """The zone may be one that the pod must follow others to, or that those it would share a node with must."""
    about, plan = _pods(scenario, finding), finding.theirs
    others = read(scenario).snapshot.pods if about and finding.kind == "rejected" else ()
    return bool(others) and all(
        any(_left_open(pod, plan) for pod in (own, *(o for o in others if _follows(own, o)))) for own in about
    )


def _follows(pod: Pod, other: Pod) -> bool:
    return any(selects(term.label_selector, other.metadata.labels) for term in _terms(pod))


def _left_open(pod: Pod, plan: Results) -> bool:
    """Whether the pod must follow others, but of some node the plan does not say which zone (or the like) it is in."""
    keys = {term.topology_key for term in _terms(pod)} - {HOSTNAME}
    settled = [{r.key for r in claim.requirements if len(r.values) == 1} for claim in plan.new_claims]
    return any(keys - known for known in settled)


def _terms(pod: Pod) -> tuple[PodAffinityTerm, ...]:
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
    return affinity.required if affinity is not None else ()


def _is_about_variety_of_reservations(scenario: JSONDict, finding: Finding) -> bool:
    pools = read(scenario).snapshot.node_pools
    varied = {p.metadata.name for p in pools if any(r.min_values for r in p.spec.template.spec.requirements)}
    reserved = any(c.node_pool in varied and c.offering[-1] == RESERVED for c in finding.theirs.new_claims)
    return finding.kind == "dearer" and reserved


def _is_about_variety_of_reserved_nodes(_: JSONDict, finding: Finding) -> bool:
    short = [c for c in finding.theirs.new_claims if any(pod in finding.text for pod in c.pods)]
    return (
        finding.kind == "rejected"
        and "its types offer" in finding.text
        and bool(short)
        and all(claim.offering[-1] == RESERVED for claim in short)
    )


def _is_about_own_nodes(scenario: JSONDict, finding: Finding) -> bool:
    about, others = _pods(scenario, finding), read(scenario).snapshot.pods
    own = all(any(_spreads_like(pod, other) for other in others) for pod in about)
    return finding.kind == "rejected" and "its spread allows" in finding.text and bool(about) and own


def _spreads_like(pod: Pod, other: Pod) -> bool:
    """Whether they are spread over the same label, count each other, and accept other nodes."""
    keys = {s.topology_key for s in pod.spec.topology_spread_constraints if s.node_affinity_policy != "Ignore"}
    counting = any(
        spread.topology_key in keys
        and selects(spread.label_selector, pod.metadata.labels)
        and selects(spread.label_selector, other.metadata.labels)
        for spread in other.spec.topology_spread_constraints
    )
    return counting and _node_wishes(pod) != _node_wishes(other)


def _node_wishes(pod: Pod) -> tuple[object, object]:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    return pod.spec.node_selector, affinity.required if affinity is not None else None


def _is_about_wishes_given_up(scenario: JSONDict, finding: Finding) -> bool:
    """Whether without the preferences of pods that a spread sends to some zone we would pay no more either."""
    if finding.kind != "dearer":
        return False
    unwishing = {**scenario, "objects": [_without_wishes(raw) for raw in scenario["objects"]]}
    placed = placed_in(finding.theirs)
    plan = Ours(unwishing).only(placed)
    return unwishing != scenario and placed_in(plan) >= placed and plan.price <= finding.theirs.price + NO_MONEY


def _without_wishes(raw: JSONDict) -> JSONDict:
    """A pod that is spread over more than nodes, without what it would rather have of its node."""
    spec = raw.get("spec") or {}
    affinity = spec.get("affinity") or {}
    wide = any(spread["topologyKey"] != HOSTNAME for spread in spec.get("topologySpreadConstraints") or ())
    if raw["kind"] != "Pod" or not wide or PREFERRED not in (affinity.get("nodeAffinity") or {}):
        return raw
    required = {k: v for k, v in affinity["nodeAffinity"].items() if k.startswith("required")}
    return {**raw, "spec": {**spec, "affinity": {**affinity, "nodeAffinity": required}}}


def _is_about_kept_preferences(scenario: JSONDict, finding: Finding) -> bool:
    """Whether without the preferred terms that our plan keeps and Karpenter's breaks we would pay no more either."""
    if finding.kind != "dearer":
        return False
    placed = placed_in(finding.theirs)
    mine = Ours(scenario).only(placed)
    kept = [
        term
        for term in _preferred_terms(scenario)
        if _breaks(scenario, finding.theirs, term) and not _breaks(scenario, mine, term)
    ]
    without = scenario
    for term in reversed(kept):
        without = _without_preference(without, term)
    plan = Ours(without).only(placed)
    return bool(kept) and placed_in(plan) >= placed and plan.price <= finding.theirs.price + NO_MONEY


class _PreferredTerm(NamedTuple):
    """A preferred term of a pod: the pod's place among the objects, podAffinity or podAntiAffinity, the term's place."""

    pod: int
    kind: str
    term: int


def _preferred_terms(scenario: JSONDict) -> Iterator[_PreferredTerm]:
    for place, raw in enumerate(scenario["objects"]):
        affinity = (raw.get("spec") or {}).get("affinity") or {} if raw["kind"] == "Pod" else {}
        for kind in ("podAffinity", "podAntiAffinity"):
            for n in range(len((affinity.get(kind) or {}).get(PREFERRED) or ())):
                yield _PreferredTerm(place, kind, n)


def _breaks(scenario: JSONDict, plan: Results, term: _PreferredTerm) -> bool:
    """Whether verification finds more wrong with a plan if this term is required."""
    required = _without_preference(scenario, term, is_required=True)
    return len(_defects(required, plan)) > len(_defects(scenario, plan))


def _defects(scenario: JSONDict, plan: Results) -> tuple[Defect, ...]:
    case, keys = read(scenario), placed_in(plan) | plan.pod_errors.keys()
    return verify(
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


def _is_about_like_sums(scenario: JSONDict, finding: Finding) -> bool:
    of_others = [s for pod in read(scenario).snapshot.pods for s in _selectors(pod)]
    about = [s for pod in _pods(scenario, finding) for s in _selectors(pod)]
    return finding.kind == "rejected" and any(_sum_alike(one, other) for one in about for other in of_others)


def _selectors(pod: Pod) -> list[LabelSelector]:
    affinity = pod.spec.affinity
    kinds = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ()
    terms = [term for kind in kinds if kind is not None for term in kind.required]
    preferred = [entry.pod_affinity_term for kind in kinds if kind is not None for entry in kind.preferred]
    spreads = [spread.label_selector for spread in pod.spec.topology_spread_constraints]
    found = [*(term.label_selector for term in (*terms, *preferred)), *spreads]
    return [selector for selector in found if selector is not None]


def _sum_alike(one: LabelSelector, other: LabelSelector) -> bool:
    return any(
        (a.key, a.operator) == (b.key, b.operator)
        and set(a.values) != set(b.values)
        and _sum(a.values) == _sum(b.values)
        for a in one.match_expressions
        for b in other.match_expressions
    )


def _sum(values: Sequence[str]) -> int:
    """As Karpenter's hash of a set has it: FNV-1 of each, by exclusive or."""
    total = 0
    for value in values:
        hashed = 0xCBF29CE484222325
        for byte in value.encode():
            hashed = hashed * 0x100000001B3 % 2**64 ^ byte
        total ^= hashed
    return total


def _pods(scenario: JSONDict, finding: Finding) -> list[Pod]:
    """Those that a finding is about."""
    pods = {pod.key: pod for pod in read(scenario).snapshot.pods}
    return [pods[key] for key in finding.pods if key in pods]


ACCEPTED = (
    Difference(
        name="a limit on nodes holds within a pass",
        why="Karpenter does not count the nodes that a pass itself opens, so that one burst exceeds the limit at will",
        covers=_is_about_limited_nodes,
    ),
    Difference(
        name="where not all pods can be scheduled, which are",
        why="Karpenter takes pods one by one, the largest first, and of equal ones by UID; we take kinds of pods at once",
        covers=_is_about_selection,
    ),
    Difference(
        name="a label that must be there must be there",
        why="Karpenter intersects what a pod asks of a label and forgets that one requirement was for its presence:"
        " Exists and NotIn [a], or In [a] and NotIn [a], and the pod goes where no scheduler will bind it",
        covers=_is_about_presence,
    ),
    Difference(
        name="a label is not there because another pod refuses some values of it",
        why="Karpenter takes what is left of them for a definition, and puts pods that need the label on a node without it",
        covers=_is_about_lent_labels,
    ),
    Difference(
        name="pods on a node that is starting count",
        why="Karpenter lets pods go to a node whose startup taint will be gone by then, but a spread that heeds taints"
        " does not see those that are there already",
        covers=_is_about_starting_nodes,
    ),
    Difference(
        name="a pod without its volumes gets no capacity, also if it leaves a node",
        why="Karpenter checks the PersistentVolumeClaims of pending pods only; a pod that leaves its node and has lost"
        " its claim cannot start elsewhere",
        covers=_is_about_leaving_pods_without_volumes,
    ),
    Difference(
        name="a pod that was relaxed still counts the others",
        why="when Karpenter drops an alternative of a pod's node affinity, or has it tolerate PreferNoSchedule, its spread"
        " has another node filter, and a new count starts that knows nothing of the pods placed in this pass; it"
        " may then share a node with more of them, which is cheaper",
        covers=_is_about_relaxed_pods,
    ),
    Difference(
        name="every pod's minDomains is its own",
        why="Karpenter takes spreads that differ in minDomains only for one, and the minDomains of the first for all",
        covers=_is_about_min_domains,
    ),
    Difference(
        name="a zone left open is no zone to follow others to",
        why="Karpenter opens nodes for pods that must follow others, in any of several zones; which it will be, and so"
        " whether they meet, is decided at launch",
        covers=_is_about_open_domains,
    ),
    Difference(
        name="minValues are counted over what can be launched",
        why="Karpenter binds a claim to its reservations when the variety of its types has been counted; what is left then"
        " may be fewer types than the NodePool wants, and nothing on the claim says so",
        covers=_is_about_variety_of_reserved_nodes,
    ),
    Difference(
        name="a claim holds one reservation",
        why="where a NodePool wants variety Karpenter lists several reservations on one claim, and takes a slot in each",
        covers=_is_about_variety_of_reservations,
    ),
    Difference(
        name="a spread counts the nodes that will suit it, said or not",
        why="Karpenter counts pods of another node affinity only where the claim itself says that its node suits; of a"
        " claim that says nothing of the architecture it counts no pod, though all its types have the right one",
        covers=_is_about_own_nodes,
    ),
    Difference(
        name="selectors that differ are two",
        why="Karpenter distinguishes rules between pods by a hash in which app In [app0, app1, app2] is app In [app3]:"
        " FNV-1 of each value, joined by exclusive or; the second such rule of a pass is not heeded",
        covers=_is_about_like_sums,
    ),
    Difference(
        name="a preference is kept where an order of the pods allows it",
        why="Karpenter takes pods one by one, the largest first, and of equal ones by UID; a pod whose turn comes late loses"
        " its preference, or joins those that it avoids on a node whose label is undecided, which may be cheaper",
        covers=_is_about_kept_preferences,
    ),
    Difference(
        name="a preference is dropped when no zone satisfies it",
        why="Karpenter takes one of the zones that a spread leaves, by chance; if nothing there is as the pod would like"
        " it, it drops the preference instead of trying another zone",
        covers=_is_about_wishes_given_up,
    ),
)


def unaccepted(scenario: JSONDict, found: Sequence[Finding]) -> list[Finding]:
    """The findings that no accepted difference explains. A plan of Karpenter's that breaks a rule sets no price."""
    covered = [f for f in found if any(difference.covers(scenario, f) for difference in ACCEPTED)]
    no_measure = any(f.kind == "rejected" for f in covered)
    return [f for f in found if f not in covered and not (no_measure and f.kind == "dearer")]
