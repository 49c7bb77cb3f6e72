"""Compares our plan for a scenario with Karpenter's, and checks what must hold for every plan of ours."""

from __future__ import annotations

import json
import random
import re
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.cli.scenario import Scenario, parse_scenario
from journeyman.cli.solve import options_of
from journeyman.core.api.labels import INSTANCE_TYPE
from journeyman.core.api.objects import DaemonSet, NodeSelectorRequirement, OfferingKey, PodAffinityTerm
from journeyman.core.api.resources import to_resources
from journeyman.core.scheduling.results import Defect, PlannedClaim, PodError, Results
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman.core.state.pod_predicates import selects
from journeyman_simulator.judge import verify_strictly
from tests.differential.karpenter import Karpenter

JSONDict = dict[str, Any]
TOLERANCE = 1e-9
NEGLIGIBLE_PRICE = 1e-5  # per hour; reserved capacity is paid for already, and its tiny price only ranks reservations
KARPENTER_RUNS = 20  # Karpenter solves a scenario at most this often before a finding that a tie may explain is kept
VARIANT_RUNS = 5  # it solves each variant of a scenario this often


class Finding(Struct, frozen=True, kw_only=True):
    """A defect, or a difference from Karpenter to our disadvantage.

    Attributes:
        kind: One of KINDS.
        text: The message.
        cause: The message without names and numbers, which groups findings.
        pods: Keys of the affected pods.
        karpenter_plan: Karpenter's plan.
        valid_pods: Keys of the pods that Karpenter's plan schedules without violating a constraint, for each of its plans.
        karpenter_plan_unrelaxed: Karpenter's plan if it need not relax pods (`_solve_unrelaxed`).
        karpenter_plan_unlimited: Karpenter's plan if the NodePools have no limits.
        karpenter_plan_indifferent: Karpenter's plan if no pod has preferences about DaemonSets' pods.
    """

    kind: str
    text: str
    cause: str = ""
    pods: tuple[str, ...] = ()
    karpenter_plan: Results = Results()
    valid_pods: tuple[frozenset[str], ...] = ()
    karpenter_plan_unrelaxed: Results | None = None
    karpenter_plan_unlimited: Results | None = None
    karpenter_plan_indifferent: Results | None = None


KINDS = {
    "oracle": "Karpenter cannot solve the scenario",
    "crash": "our solver raises an exception",
    "verify": "our plan does not pass verification",
    "repetition": "our solver returns another plan when it runs again",
    "order": "our solver returns another plan when the objects are in another order",
    "bound": "our plan costs less than its lower bound",
    "considered": "we and Karpenter do not try to schedule the same pods",
    "missing": "Karpenter schedules a pod that we do not",
    "dearer": "our plan for the pods that Karpenter schedules costs more than Karpenter's",
    "rejected": "Karpenter's plan does not pass our verification",
}
MIN_OCCURRENCES = {"missing": KARPENTER_RUNS, "dearer": KARPENTER_RUNS, "rejected": KARPENTER_RUNS // 2 + 1}
"""Of these kinds only findings that occur in so many of Karpenter's plans are kept, since it breaks ties at random."""


class OurSolution:
    """Our plan for a scenario."""

    def __init__(self, scenario: JSONDict) -> None:
        self.scenario = scenario
        self.case = parse(scenario)
        self.results = solve_scenario(self.case)

    def solve_only(self, pods: Collection[str]) -> Results:
        """Return our plan if no other pods were pending."""
        removed = {pod.key for pod in pods_to_schedule(self.case.snapshot)} - set(pods)
        objects = self.scenario["objects"]
        kept = [_without_virtual_pods(o, removed) for o in objects if o["kind"] != "Pod" or key_of(o) not in removed]
        return solve_scenario(parse({**self.scenario, "objects": kept}))

    def defects_of(self, results: Results, pods: Iterable[str] | None = None) -> tuple[Defect, ...]:
        """Return what verification finds wrong with a plan; with `pods`, as if only these were pending."""
        keys = None if pods is None else set(pods)
        pending = [p for p in pods_to_schedule(self.case.snapshot) if keys is None or p.key in keys]
        ignored = options_of(self.case).ignore_dra_requests
        return verify_strictly(
            self.case.snapshot, self.case.catalogue, results, pods=pending, ignore_dra_requests=ignored
        )

    @cached_property
    def scheduled(self) -> frozenset[str]:
        """The keys of the pods that our plan schedules."""
        return scheduled_pods(self.results)


def _without_virtual_pods(raw: JSONDict, removed: Collection[str]) -> JSONDict:
    """Return the object; a CapacityBuffer without those of its virtual pods that are in `removed`."""
    if raw["kind"] != "CapacityBuffer":
        return raw
    fewer = sum(1 for key in removed if re.fullmatch(key_of(raw).replace("/", "/capacity-buffer-") + r"-\d+", key))
    return {**raw, "spec": {**raw["spec"], "replicas": raw["spec"]["replicas"] - fewer}}


def parse(scenario: JSONDict) -> Scenario:
    """Parse a scenario as `journeyman solve` does."""
    return parse_scenario(json.dumps(scenario).encode())


def solve_scenario(case: Scenario) -> Results:
    """Return our plan."""
    return solve(case.snapshot, case.catalogue, options=options_of(case))


def key_of(raw: JSONDict) -> str:
    """Return the `namespace/name` of an object."""
    return f"{raw['metadata'].get('namespace', '')}/{raw['metadata'].get('name', '')}"


def scheduled_pods(results: Results) -> frozenset[str]:
    """Return the keys of the pods that a plan schedules."""
    on_new = {pod for claim in results.new_claims for pod in claim.pods}
    return frozenset(on_new | {pod for pods in results.existing.values() for pod in pods})


def compare_plans(scenario: JSONDict, karpenter: Karpenter) -> list[Finding]:
    """Return the findings about our plan, and about Karpenter's.

    Karpenter breaks some ties at random (it iterates over maps), others by the pods' UIDs, which the API server draws, so
    its plans for a scenario differ in pods and price. Our plan need only be as good as one of them: a `missing` or
    `dearer` finding is kept only if all `KARPENTER_RUNS` plans show it, every other one of which has other UIDs. A
    `rejected` finding is kept if most of them do.
    """
    answer = karpenter.solve(scenario)
    if answer.get("error"):
        return [Finding(kind="oracle", text=answer["error"], cause=_generalize(answer["error"]))]
    try:
        ours = OurSolution(scenario)
        found = [*_check_our_plan(scenario, ours)]
        first = compare_with_answer(ours, answer)
    except Exception as error:  # noqa: BLE001 - every exception is a finding
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {last.name}"
        return [Finding(kind="crash", text="".join(traceback.format_exception(error)), cause=where)]
    found += [f for f in first if f.kind not in MIN_OCCURRENCES]
    uncertain = [f for f in first if f.kind in MIN_OCCURRENCES]

    valid_pods: list[frozenset[str]] = []

    def compare_again(run: int) -> set[str]:
        again = compare_with_answer(ours, karpenter.solve(_with_other_uids(scenario, run) if run % 2 else scenario))
        valid_pods.extend(pods for f in again for pods in f.valid_pods)
        return {f.kind for f in again}

    kept = _frequent_kinds({f.kind for f in uncertain}, compare_again)
    found += [replace(f, valid_pods=(*f.valid_pods, *valid_pods)) for f in uncertain if f.kind in kept]
    return [_with_variants(f, scenario, karpenter) if f.kind == "dearer" else f for f in found]


def _with_other_uids(scenario: JSONDict, seed: int) -> JSONDict:
    """Return the scenario with a random UID for each pending pod without one; Karpenter orders equal pods by UID."""
    rng = random.Random(seed)
    objects = [_with_uid(raw, f"{rng.getrandbits(64):016x}") for raw in scenario["objects"]]
    return {**scenario, "objects": objects}


def _with_uid(raw: JSONDict, uid: str) -> JSONDict:
    if (
        raw["kind"] != "Pod"
        or "uid" in raw["metadata"]
        or raw["spec"].get("nodeName")
        or raw["spec"].get("resourceClaims")
    ):
        return raw
    return {**raw, "metadata": {**raw["metadata"], "uid": uid}}


def _frequent_kinds(kinds: Collection[str], compare_again: Callable[[int], Collection[str]]) -> frozenset[str]:
    """Return the kinds that occur often enough; all occur in the first run, `compare_again` does the run of a number."""
    present, absent = Counter(kinds), Counter[str]()
    for run in range(1, KARPENTER_RUNS):
        undecided = [k for k in kinds if present[k] < MIN_OCCURRENCES[k] <= KARPENTER_RUNS - absent[k]]
        if not undecided:
            break
        found = compare_again(run)
        for kind in undecided:
            (present if kind in found else absent)[kind] += 1
    return frozenset(kind for kind in kinds if present[kind] >= MIN_OCCURRENCES[kind])


def _with_variants(finding: Finding, scenario: JSONDict, karpenter: Karpenter) -> Finding:
    unlimited = [_without_limits(raw) for raw in scenario["objects"]]
    daemon_sets = parse(scenario).snapshot.daemon_sets
    indifferent = [_without_preferences_about(daemon_sets, raw) for raw in scenario["objects"]]
    return replace(
        finding,
        karpenter_plan_unrelaxed=_solve_unrelaxed(scenario, finding.karpenter_plan, karpenter),
        karpenter_plan_unlimited=_most_expensive(scenario, [unlimited], finding.karpenter_plan, karpenter),
        karpenter_plan_indifferent=_most_expensive(scenario, [indifferent], finding.karpenter_plan, karpenter),
    )


def _solve_unrelaxed(scenario: JSONDict, karpenter_plan: Results, karpenter: Karpenter) -> Results | None:
    """Return Karpenter's plan if it need not relax pods, as `_most_expensive` of three variants.

    The pods that it schedules to new nodes with a PreferNoSchedule taint tolerate it from the start; pods with several
    terms of required node affinity have only the last one; both.
    """
    pools = parse(scenario).snapshot.node_pools
    tainted = {
        p.metadata.name for p in pools if any(t.effect == "PreferNoSchedule" for t in p.spec.template.spec.taints)
    }
    on_tainted = {pod for claim in karpenter_plan.new_claims if claim.node_pool in tainted for pod in claim.pods}
    objects = scenario["objects"]
    tolerating = [_with_toleration(raw) if key_of(raw) in on_tainted else raw for raw in objects]
    variants = [
        tolerating,
        [_with_last_affinity_term(raw) for raw in objects],
        [_with_last_affinity_term(raw) for raw in tolerating],
    ]
    return _most_expensive(scenario, variants, karpenter_plan, karpenter)


def _most_expensive(
    scenario: JSONDict, variants: Sequence[Sequence[JSONDict]], karpenter_plan: Results, karpenter: Karpenter
) -> Results | None:
    """Return Karpenter's most expensive plan for variants of the objects, of those that schedule as many pods.

    Returns None if no variant differs, or none has such a plan.
    """
    changed = [v for n, v in enumerate(variants) if v not in (scenario["objects"], *variants[:n])]
    answers = [karpenter.solve({**scenario, "objects": v}) for v in changed for _ in range(VARIANT_RUNS)]
    plans = [plan_of(answer) for answer in answers if not answer.get("error")]
    complete = [plan for plan in plans if scheduled_pods(plan) >= scheduled_pods(karpenter_plan)]
    return max(complete, key=lambda plan: plan.price, default=None)


def _without_limits(raw: JSONDict) -> JSONDict:
    if raw["kind"] != "NodePool":
        return raw
    return {**raw, "spec": {key: value for key, value in raw["spec"].items() if key != "limits"}}


def _without_preferences_about(daemon_sets: Sequence[DaemonSet], raw: JSONDict) -> JSONDict:
    """Return the object; a pod keeps no preferred affinity or anti-affinity to pods of these DaemonSets."""
    affinity = (raw["spec"].get("affinity") or {}) if raw["kind"] == "Pod" else {}
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    kept = {
        kind: {**rules, preferred: [w for w in rules[preferred] if not _is_about(daemon_sets, w["podAffinityTerm"])]}
        for kind in ("podAffinity", "podAntiAffinity")
        if preferred in (rules := affinity.get(kind) or {})
    }
    return {**raw, "spec": {**raw["spec"], "affinity": {**affinity, **kept}}} if kept else raw


def _is_about(daemon_sets: Sequence[DaemonSet], raw_term: JSONDict) -> bool:
    """Return whether a term names the namespace of one of these DaemonSets, and selects its pods."""
    term = msgspec.convert(raw_term, PodAffinityTerm)
    return any(
        ds.metadata.namespace in term.namespaces and selects(term.label_selector, ds.spec.template.metadata.labels)
        for ds in daemon_sets
    )


def _with_last_affinity_term(raw: JSONDict) -> JSONDict:
    """Return the object; a pod keeps only the last term of its required node affinity."""
    if raw["kind"] != "Pod":
        return raw
    affinity = raw["spec"].get("affinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = ((affinity.get("nodeAffinity") or {}).get(required) or {}).get("nodeSelectorTerms") or ()
    if len(terms) < 2:
        return raw
    node_affinity = {**affinity["nodeAffinity"], required: {"nodeSelectorTerms": [terms[-1]]}}
    return {**raw, "spec": {**raw["spec"], "affinity": {**affinity, "nodeAffinity": node_affinity}}}


def _with_toleration(raw: JSONDict) -> JSONDict:
    """Return the object; a pod gets the toleration that Karpenter adds when it relaxes a pod."""
    if raw["kind"] != "Pod":
        return raw
    toleration = {"operator": "Exists", "effect": "PreferNoSchedule"}
    return {**raw, "spec": {**raw["spec"], "tolerations": [*raw["spec"].get("tolerations", ()), toleration]}}


def _check_our_plan(scenario: JSONDict, ours: OurSolution) -> Iterable[Finding]:
    """Yield the findings that need no comparison with Karpenter."""
    results = ours.results
    yield from _as_findings("verify", ours.defects_of(results))
    if results.lower_bound > results.price * (1 + TOLERANCE) + TOLERANCE:
        yield Finding(kind="bound", text=f"price {results.price} < bound {results.lower_bound}")
    for kind, other in (("repetition", scenario), ("order", shuffled(scenario))):
        again = solve_scenario(parse(other))
        if repr(again) != repr(results):
            yield Finding(kind=kind, text=_difference(results, again))


def _difference(first: Results, second: Results) -> str:
    parts = [name for name in Results.__struct_fields__ if repr(getattr(first, name)) != repr(getattr(second, name))]
    return f"{', '.join(parts)} differ; price {first.price} and {second.price}"


def shuffled(scenario: JSONDict) -> JSONDict:
    """Return the scenario with its lists in another order, which is always the same."""
    rng = random.Random(0)
    types = [{**t, "offerings": rng.sample(t["offerings"], len(t["offerings"]))} for t in scenario["instanceTypes"]]
    objects = scenario["objects"]
    return {**scenario, "instanceTypes": rng.sample(types, len(types)), "objects": rng.sample(objects, len(objects))}


def compare_with_answer(ours: OurSolution, answer: JSONDict) -> list[Finding]:
    """Return the findings of a comparison with one answer of the oracle."""
    karpenter_plan = plan_of(answer)
    scheduled = scheduled_pods(karpenter_plan)
    rejected = _as_findings("rejected", _karpenter_defects(ours, karpenter_plan))
    found = [*_compare_considered_pods(ours, answer), *(replace(f, karpenter_plan=karpenter_plan) for f in rejected)]
    missing = tuple(sorted(scheduled - ours.scheduled))
    if missing:
        return [*found, _missing_finding(ours, answer, missing)]
    our_plan = ours.results if ours.scheduled == scheduled else ours.solve_only(scheduled)
    lost = scheduled - scheduled_pods(our_plan)
    if lost:  # with fewer pending pods we schedule fewer of these
        text = f"if no other pods are pending, we do not schedule {sorted(lost)}"
        found.append(Finding(kind="missing", text=text, pods=tuple(sorted(lost)), karpenter_plan=karpenter_plan))
    elif our_plan.price > karpenter_plan.price * (1 + TOLERANCE) + NEGLIGIBLE_PRICE:
        found.append(_dearer_finding(our_plan, karpenter_plan))
    return found


def plan_of(answer: JSONDict) -> Results:
    """Return the plan in an answer of the oracle."""
    claims = tuple(_planned(claim) for claim in answer["nodeClaims"])
    errors = {pod: PodError(kind="unschedulable", message=why) for pod, why in answer["errors"].items()}
    existing = {node: tuple(pods) for node, pods in answer["existing"].items()}
    return Results(new_claims=claims, existing=existing, pod_errors=errors, price=answer["price"])


def _planned(claim: JSONDict) -> PlannedClaim:
    instance_type, zone, capacity_type = claim["cheapestOffering"].split("/")
    types = {"key": INSTANCE_TYPE, "operator": "In", "values": claim["instanceTypes"]}
    return PlannedClaim(
        node_pool=claim["nodePool"],
        pods=tuple(claim["pods"]),
        instance_types=tuple(claim["instanceTypes"]),
        requirements=tuple(msgspec.convert([*claim["requirements"], types], list[NodeSelectorRequirement])),
        requests=to_resources(claim["requests"], round_up=True),
        offering=OfferingKey(instance_type, zone, capacity_type),
        price=claim["price"],
        min_values_relaxed=claim["minValuesRelaxed"],
    )


def _karpenter_defects(ours: OurSolution, karpenter_plan: Results) -> tuple[Defect, ...]:
    """Return what verification finds wrong with Karpenter's plan, except what only our plans guarantee.

    With BestEffort Karpenter marks a NodeClaim as relaxed if its first pod lowers minValues, not if a later one does.
    """
    if ours.scenario["options"].get("minValuesPolicy") == "BestEffort":
        claims = tuple(replace(claim, min_values_relaxed=True) for claim in karpenter_plan.new_claims)
        karpenter_plan = replace(karpenter_plan, new_claims=claims)
    return ours.defects_of(karpenter_plan, pods=scheduled_pods(karpenter_plan) | karpenter_plan.pod_errors.keys())


def _compare_considered_pods(ours: OurSolution, answer: JSONDict) -> Iterable[Finding]:
    considered = scheduled_pods(plan_of(answer)) | answer["errors"].keys()
    left_out = sorted(considered - ours.scheduled - ours.results.pod_errors.keys())
    if left_out:
        yield Finding(kind="considered", text=f"only Karpenter: {left_out}", cause="only Karpenter")
    ignored = tuple(sorted(ours.scheduled & answer["ignored"].keys()))
    if ignored:
        text = f"Karpenter ignores {[*ignored]}: {answer['ignored'][ignored[0]]}"
        yield Finding(kind="considered", text=text, cause="only we", pods=ignored)


def _missing_finding(ours: OurSolution, answer: JSONDict, missing: Sequence[str]) -> Finding:
    error = ours.results.pod_errors.get(missing[0])
    why = f"{error.kind}: {error.message}" if error else "no error"
    node = _describe_node(answer, missing[0])
    karpenter_plan = plan_of(answer)
    numbers = f"{len(missing)} of {len(scheduled_pods(karpenter_plan))} pods (we schedule {len(ours.scheduled)})"
    return Finding(
        kind="missing",
        karpenter_plan=karpenter_plan,
        text=f"{numbers}, first {missing[0]}; Karpenter: {node}; we: {why}",
        cause=_generalize(why),
        pods=tuple(missing),
        valid_pods=(_validly_scheduled(ours, karpenter_plan),),
    )


def _validly_scheduled(ours: OurSolution, karpenter_plan: Results) -> frozenset[str]:
    """Return the pods of Karpenter's plan that remain after removing, one by one, those that violate a constraint."""
    while True:
        scheduled = scheduled_pods(karpenter_plan)
        defects = _karpenter_defects(ours, karpenter_plan)
        rejected = _as_findings("rejected", defects)
        violating = scheduled & {pod for finding in rejected for pod in finding.pods}
        violating = violating or scheduled & {pod for defect in defects for pod in _pods_over_capacity(str(defect))}
        if not violating:
            return scheduled
        karpenter_plan = _without_pod(karpenter_plan, max(violating))


def _pods_over_capacity(text: str) -> list[str]:
    """Return the pods of a node of which they exceed a resource together; fewer of them may fit."""
    listed = re.search(r"is exceeded by \d+ with pods (.+)", text)
    return listed[1].split(", ") if listed else []


def _without_pod(plan: Results, pod: str) -> Results:
    claims = tuple(replace(claim, pods=tuple(p for p in claim.pods if p != pod)) for claim in plan.new_claims)
    existing = {node: tuple(p for p in pods if p != pod) for node, pods in plan.existing.items()}
    errors = {**plan.pod_errors, pod: PodError(kind="unschedulable", message="it violates a constraint")}
    return replace(plan, new_claims=tuple(c for c in claims if c.pods), existing=existing, pod_errors=errors)


def _describe_node(answer: JSONDict, pod: str) -> str:
    for claim in answer["nodeClaims"]:
        if pod in claim["pods"]:
            return f"new node of {claim['nodePool']}, {claim['cheapestOffering']}, with {len(claim['pods'])} pods"
    return next((f"node {node}" for node, pods in answer["existing"].items() if pod in pods), "no node")


def _dearer_finding(our_plan: Results, karpenter_plan: Results) -> Finding:
    ratio = our_plan.price / karpenter_plan.price if karpenter_plan.price else float("inf")
    prices = f"{our_plan.price:.6f} > {karpenter_plan.price:.6f} ({ratio:.4f})"
    text = f"{prices}; we {_summarize_nodes(our_plan)}, Karpenter {_summarize_nodes(karpenter_plan)}"
    return Finding(kind="dearer", text=text, karpenter_plan=karpenter_plan)


def _summarize_nodes(results: Results) -> str:
    kinds = Counter(f"{claim.node_pool}:{claim.offering}" for claim in results.new_claims)
    on_existing = sum(map(len, results.existing.values()))
    return ", ".join([*(f"{n}x {kind}" for kind, n in sorted(kinds.items())), f"{on_existing} pods on existing nodes"])


def _as_findings(kind: str, defects: Iterable[Defect]) -> Iterable[Finding]:
    by_cause: dict[str, list[str]] = {}
    for message in map(str, defects):
        by_cause.setdefault(_generalize(message), []).append(message)
    for cause, messages in by_cause.items():
        pods = tuple(re.findall(r"\bpod ([\w.-]+/[\w.-]+)", " ".join(messages)))
        yield Finding(kind=kind, text=f"{len(messages)}x {messages[0]}", cause=cause, pods=pods)


def _generalize(text: str) -> str:
    """Return the text without numbers and names of objects, so that findings can be counted."""
    text = re.sub(r"\b(default|batch)/[\w.-]+", "POD", text)
    text = re.sub(r"POD(, POD)*…?", "POD", text)
    text = re.sub(r"\b(p|n|c|d)\d+\b", r"\1#", text)
    text = re.sub(r"\b[a-z]\d\.\d+x\b", "TYPE", text)
    return re.sub(r"\d+(\.\d+)?", "#", text)[:160]
