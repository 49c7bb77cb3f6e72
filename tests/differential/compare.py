"""Our answer to a scenario against Karpenter's, and against what must hold whatever Karpenter says."""

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
from journeyman.core.api.objects import NodeSelectorRequirement, OfferingKey
from journeyman.core.api.resources import to_resources
from journeyman.core.scheduling.results import PlannedClaim, PodError, Results
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman.core.scheduling.verify import Defect, verify
from tests.differential.karpenter import Karpenter

JSONDict = dict[str, Any]
TOLERANCE = 1e-9
NO_MONEY = 1e-5  # per hour: reserved capacity is paid for already, its price only says which to prefer
ANSWERS = 20  # how often Karpenter is asked at most before a finding that its luck may explain stands
UNRELAXED_ANSWERS = 5  # how often it is asked about pods that tolerate PreferNoSchedule from the start


class Finding(Struct, frozen=True, kw_only=True):
    """Something that should not be. `kind` is one of KINDS; `cause` groups findings that look alike.

    `pods` are those it is about, `theirs` is Karpenter's plan, `lawful` the pods that it schedules without breaking a rule.
    `theirs_unrelaxed` is Karpenter's plan if no pod with topology spread had to be relaxed; see `_plan_unrelaxed`.
    """

    kind: str
    text: str
    cause: str = ""
    pods: tuple[str, ...] = ()
    theirs: Results = Results()
    lawful: frozenset[str] = frozenset()
    theirs_unrelaxed: Results | None = None


KINDS = {
    "oracle": "Karpenter cannot answer",
    "crash": "our solver raised",
    "verify": "our plan does not pass verification",
    "repetition": "asked again, we answer something else",
    "order": "asked with everything in another order, we answer something else",
    "bound": "our plan costs less than its lower bound",
    "considered": "we and Karpenter do not look at the same pods",
    "missing": "Karpenter places a pod that we do not",
    "dearer": "our plan for the pods that Karpenter places costs more than Karpenter's",
    "rejected": "Karpenter's plan does not pass our verification",
}
BY_LUCK = {"missing": ANSWERS, "dearer": ANSWERS, "rejected": ANSWERS // 2 + 1}
"""How many of the answers must show a finding that Karpenter's luck may explain."""


class Ours:
    """Our answer to a scenario."""

    def __init__(self, scenario: JSONDict) -> None:
        self.scenario = scenario
        self.case = read(scenario)
        self.results = answer_to(self.case)

    def only(self, pods: Collection[str]) -> Results:
        """The answer if the other pods that ask for a place were not there."""
        gone = {pod.key for pod in pods_to_schedule(self.case.snapshot)} - set(pods)
        left = [_shrunk(o, gone) for o in self.scenario["objects"] if o["kind"] != "Pod" or key_of(o) not in gone]
        return answer_to(read({**self.scenario, "objects": left}))

    def objections(self, results: Results, pods: Iterable[str] | None = None) -> tuple[Defect, ...]:
        """What verification says about a plan."""
        wanted = None if pods is None else set(pods)
        asked = [p for p in pods_to_schedule(self.case.snapshot) if wanted is None or p.key in wanted]
        return verify(self.case.snapshot, self.case.catalogue, results, pods=asked)

    @cached_property
    def placed(self) -> frozenset[str]:
        """Keys of the pods that have a place."""
        return placed_in(self.results)


def _shrunk(raw: JSONDict, gone: Collection[str]) -> JSONDict:
    """The object itself; of a CapacityBuffer one without the virtual pods that are gone."""
    if raw["kind"] != "CapacityBuffer":
        return raw
    fewer = sum(1 for key in gone if re.fullmatch(key_of(raw).replace("/", "/capacity-buffer-") + r"-\d+", key))
    return {**raw, "spec": {**raw["spec"], "replicas": raw["spec"]["replicas"] - fewer}}


def read(scenario: JSONDict) -> Scenario:
    """As `journeyman solve` would."""
    return parse_scenario(json.dumps(scenario).encode())


def answer_to(case: Scenario) -> Results:
    """Our plan."""
    return solve(case.snapshot, case.catalogue, options=options_of(case))


def key_of(raw: JSONDict) -> str:
    """`namespace/name` of an object."""
    return f"{raw['metadata'].get('namespace', '')}/{raw['metadata'].get('name', '')}"


def placed_in(results: Results) -> frozenset[str]:
    """Keys of the pods that a plan places."""
    on_new = {pod for claim in results.new_claims for pod in claim.pods}
    return frozenset(on_new | {pod for pods in results.existing.values() for pod in pods})


def findings(scenario: JSONDict, karpenter: Karpenter) -> list[Finding]:
    """All that is wrong with our answer.

    Karpenter breaks some ties by chance (it iterates over maps), so that its answers differ in what they place and cost.
    What may be its luck counts only if all of `ANSWERS` answers show it: a plan that Karpenter itself might have come to
    is good enough. A plan of Karpenter's that breaks a rule counts if most do.
    """
    answer = karpenter.ask(scenario)
    if answer.get("error"):
        return [Finding(kind="oracle", text=answer["error"], cause=_without_names(answer["error"]))]
    try:
        ours = Ours(scenario)
        found = [*_on_its_own(scenario, ours)]
        first = against(ours, answer)
    except Exception as error:  # noqa: BLE001 - whatever it raises is what we look for
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {last.name}"
        return [Finding(kind="crash", text="".join(traceback.format_exception(error)), cause=where)]
    found += [f for f in first if f.kind not in BY_LUCK]
    by_luck = [f for f in first if f.kind in BY_LUCK]
    standing = _standing({f.kind for f in by_luck}, lambda: {f.kind for f in against(ours, karpenter.ask(scenario))})
    found += [f for f in by_luck if f.kind in standing]
    return [
        replace(f, theirs_unrelaxed=_plan_unrelaxed(scenario, f.theirs, karpenter)) if f.kind == "dearer" else f
        for f in found
    ]


def _standing(kinds: Collection[str], ask: Callable[[], Collection[str]]) -> frozenset[str]:
    """Return the kinds that enough answers show. The first showed all of them; `ask` returns those that another shows."""
    shown, absent = Counter(kinds), Counter[str]()
    for _ in range(ANSWERS - 1):
        undecided = [k for k in kinds if shown[k] < BY_LUCK[k] and absent[k] <= ANSWERS - BY_LUCK[k]]
        if not undecided:
            break
        seen = ask()
        for kind in undecided:
            (shown if kind in seen else absent)[kind] += 1
    return frozenset(kind for kind in kinds if shown[kind] >= BY_LUCK[kind])


def _plan_unrelaxed(scenario: JSONDict, theirs: Results, karpenter: Karpenter) -> Results | None:
    """Return Karpenter's plan if it need not relax pods with topology spread, the most expensive of several.

    It asks for the pods that Karpenter has on new nodes with a PreferNoSchedule taint as if they tolerated it from the start,
    for pods with alternatives of node affinity as if they had only the last one, and for both. Plans for fewer pods do not
    count; None if there is none, or nothing to change.
    """
    pools = read(scenario).snapshot.node_pools
    tainted = {
        p.metadata.name for p in pools if any(t.effect == "PreferNoSchedule" for t in p.spec.template.spec.taints)
    }
    dissuaded = {pod for claim in theirs.new_claims if claim.node_pool in tainted for pod in claim.pods}
    objects = scenario["objects"]
    tolerating = [_tolerating(raw) if key_of(raw) in dissuaded else raw for raw in objects]
    variants = [tolerating, [_decided(raw) for raw in objects], [_decided(raw) for raw in tolerating]]
    changed = [variant for n, variant in enumerate(variants) if variant not in (objects, *variants[:n])]
    answers = [karpenter.ask({**scenario, "objects": v}) for v in changed for _ in range(UNRELAXED_ANSWERS)]
    plans = [results_of(answer) for answer in answers if not answer.get("error")]
    return max(
        (plan for plan in plans if placed_in(plan) >= placed_in(theirs)), key=lambda plan: plan.price, default=None
    )


def _decided(raw: JSONDict) -> JSONDict:
    """Return a pod that has topology spread with the last of its alternatives of required node affinity only."""
    if raw["kind"] != "Pod" or not raw["spec"].get("topologySpreadConstraints"):
        return raw
    affinity = raw["spec"].get("affinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = ((affinity.get("nodeAffinity") or {}).get(required) or {}).get("nodeSelectorTerms") or ()
    if len(terms) < 2:
        return raw
    node_affinity = {**affinity["nodeAffinity"], required: {"nodeSelectorTerms": [terms[-1]]}}
    return {**raw, "spec": {**raw["spec"], "affinity": {**affinity, "nodeAffinity": node_affinity}}}


def _tolerating(raw: JSONDict) -> JSONDict:
    """Return a pod that has topology spread with the toleration that Karpenter adds when it relaxes a pod."""
    if raw["kind"] != "Pod" or not raw["spec"].get("topologySpreadConstraints"):
        return raw
    toleration = {"operator": "Exists", "effect": "PreferNoSchedule"}
    return {**raw, "spec": {**raw["spec"], "tolerations": [*raw["spec"].get("tolerations", ()), toleration]}}


def _on_its_own(scenario: JSONDict, ours: Ours) -> Iterable[Finding]:
    """What needs no Karpenter to be wrong."""
    results = ours.results
    yield from _as_findings("verify", ours.objections(results))
    if results.lower_bound > results.price * (1 + TOLERANCE) + TOLERANCE:
        yield Finding(kind="bound", text=f"price {results.price} < bound {results.lower_bound}")
    for kind, other in (("repetition", scenario), ("order", shuffled(scenario))):
        again = answer_to(read(other))
        if repr(again) != repr(results):
            yield Finding(kind=kind, text=_difference(results, again))


def _difference(first: Results, second: Results) -> str:
    parts = [name for name in Results.__struct_fields__ if repr(getattr(first, name)) != repr(getattr(second, name))]
    return f"{', '.join(parts)} differ; price {first.price} and {second.price}"


def shuffled(scenario: JSONDict) -> JSONDict:
    """The same with its lists in another order, always the same other order."""
    rng = random.Random(0)
    types = [{**t, "offerings": rng.sample(t["offerings"], len(t["offerings"]))} for t in scenario["instanceTypes"]]
    objects = scenario["objects"]
    return {**scenario, "instanceTypes": rng.sample(types, len(types)), "objects": rng.sample(objects, len(objects))}


def against(ours: Ours, answer: JSONDict) -> list[Finding]:
    """What is wrong in comparison with one answer of Karpenter's."""
    theirs = results_of(answer)
    rejected = [replace(f, theirs=theirs) for f in _as_findings("rejected", _objections_to(ours, theirs))]
    found = [*_considered(ours, answer), *rejected]
    missing = tuple(sorted(placed_in(theirs) - ours.placed))
    if missing:
        return [*found, _missing(ours, answer, missing)]
    mine = ours.results if ours.placed == placed_in(theirs) else ours.only(placed_in(theirs))
    lost = placed_in(theirs) - placed_in(mine)
    if lost:  # with fewer pods asking, fewer of these got a place
        found.append(Finding(kind="missing", text=f"asked for only what Karpenter places, we leave out {sorted(lost)}"))
    elif mine.price > theirs.price * (1 + TOLERANCE) + NO_MONEY:
        found.append(_dearer(mine, theirs))
    return found


def results_of(answer: JSONDict) -> Results:
    """Karpenter's plan as one of ours."""
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


def _objections_to(ours: Ours, theirs: Results) -> tuple[Defect, ...]:
    """Verification of Karpenter's plan, but for what only our own plans promise.

    With BestEffort its claims say only sometimes that minValues were lowered: whether this is known when the first pod is
    placed, not when the last is.
    """
    if ours.scenario["options"].get("minValuesPolicy") == "BestEffort":
        claims = tuple(replace(claim, min_values_relaxed=True) for claim in theirs.new_claims)
        theirs = replace(theirs, new_claims=claims)
    return ours.objections(theirs, pods=placed_in(theirs) | theirs.pod_errors.keys())


def _considered(ours: Ours, answer: JSONDict) -> Iterable[Finding]:
    theirs = placed_in(results_of(answer)) | answer["errors"].keys()
    mine = ours.placed | ours.results.pod_errors.keys()
    if theirs - mine:
        yield Finding(kind="considered", text=f"only Karpenter: {sorted(theirs - mine)}", cause="only Karpenter")
    let_in = sorted(ours.placed & answer["ignored"].keys())
    if let_in:
        why = answer["ignored"][let_in[0]]
        yield Finding(kind="considered", text=f"Karpenter ignores {let_in}: {why}", cause="only we", pods=tuple(let_in))


def _missing(ours: Ours, answer: JSONDict, missing: Sequence[str]) -> Finding:
    error = ours.results.pod_errors.get(missing[0])
    why = f"{error.kind}: {error.message}" if error else "not even an error"
    place = _place(answer, missing[0])
    theirs = results_of(answer)
    numbers = f"{len(missing)} of {len(placed_in(theirs))} pods (we place {len(ours.placed)})"
    return Finding(
        kind="missing",
        theirs=theirs,
        text=f"{numbers}, first {missing[0]}; Karpenter: {place}; we: {why}",
        cause=_without_names(why),
        pods=tuple(missing),
        lawful=_lawfully_placed(ours, theirs),
    )


def _lawfully_placed(ours: Ours, theirs: Results) -> frozenset[str]:
    """Return the pods of Karpenter's plan that are left once those that break a rule are taken out, one after the other."""
    while True:
        placed = placed_in(theirs)
        about = {pod for f in _as_findings("rejected", _objections_to(ours, theirs)) for pod in f.pods} & placed
        if not about:
            return placed
        theirs = _without(theirs, max(about))


def _without(plan: Results, pod: str) -> Results:
    claims = tuple(replace(claim, pods=tuple(p for p in claim.pods if p != pod)) for claim in plan.new_claims)
    existing = {node: tuple(p for p in pods if p != pod) for node, pods in plan.existing.items()}
    errors = {**plan.pod_errors, pod: PodError(kind="unschedulable", message="it broke a rule")}
    return replace(plan, new_claims=tuple(c for c in claims if c.pods), existing=existing, pod_errors=errors)


def _place(answer: JSONDict, pod: str) -> str:
    for claim in answer["nodeClaims"]:
        if pod in claim["pods"]:
            return f"new node of {claim['nodePool']}, {claim['cheapestOffering']}, with {len(claim['pods'])} pods"
    return next((f"node {node}" for node, pods in answer["existing"].items() if pod in pods), "nowhere")


def _dearer(mine: Results, theirs: Results) -> Finding:
    text = (
        f"{mine.price:.6f} > {theirs.price:.6f} ({mine.price / theirs.price if theirs.price else float('inf'):.4f}); "
        f"we {_nodes(mine)}, Karpenter {_nodes(theirs)}"
    )
    return Finding(kind="dearer", text=text, theirs=theirs)


def _nodes(results: Results) -> str:
    kinds = Counter(f"{claim.node_pool}:{'/'.join(claim.offering)}" for claim in results.new_claims)
    on_existing = sum(map(len, results.existing.values()))
    return ", ".join([*(f"{n}x {kind}" for kind, n in sorted(kinds.items())), f"{on_existing} pods on existing nodes"])


def _as_findings(kind: str, objections: Iterable[Defect]) -> Iterable[Finding]:
    by_cause: dict[str, list[str]] = {}
    for objection in map(str, objections):
        by_cause.setdefault(_without_names(objection), []).append(objection)
    for cause, alike in by_cause.items():
        about = tuple(re.findall(r"\bpod ([\w.-]+/[\w.-]+)", " ".join(alike)))
        yield Finding(kind=kind, text=f"{len(alike)}x {alike[0]}", cause=cause, pods=about)


def _without_names(text: str) -> str:
    """So that findings can be counted: numbers and names of objects blotted out."""
    text = re.sub(r"\b(default|batch)/[\w.-]+", "POD", text)
    text = re.sub(r"POD(, POD)*…?", "POD", text)
    text = re.sub(r"\b(p|n|c|d)\d+\b", r"\1#", text)
    text = re.sub(r"\b[a-z]\d\.\d+x\b", "TYPE", text)
    return re.sub(r"\d+(\.\d+)?", "#", text)[:160]
