"""Rules of NodePools, NodeClaims and NodeOverlays."""

from __future__ import annotations

from collections.abc import Iterator

from tests.contract.crds.differences import Admitted, Reported
from tests.contract.crds.edge_values import (
    DURATIONS_BAD,
    DURATIONS_GOOD,
    KEYS_BAD,
    KEYS_GOOD,
    KEYS_TOO_LONG,
    OURS_BY_NAME,
    QUANTITIES_GOOD,
    RESERVED,
    VALUES_BAD,
    VALUES_GOOD,
)
from tests.contract.crds.rule import BASES, Rule, rule_of, with_few_values
from tests.contract.crds.rules_shared import quantity_rules, requirement, requirement_rules, template_rules


def node_pool_rules() -> Iterator[Rule]:
    kind, template = "NodePool", "spec.template"
    yield from requirement_rules(kind, f"{template}.spec.requirements", pool_allowed=False)
    yield from template_rules(kind, f"{template}.spec")
    yield from quantity_rules(kind, "spec.limits")
    labels = f"{template}.metadata.labels"
    yield rule_of(kind, labels)(good=({}, None, {"a": None}, {f"k{i}": "v" for i in range(100)}))
    yield rule_of(kind, labels)(good=tuple({k: "v"} for k in (*KEYS_GOOD, *OURS_BY_NAME)))
    yield rule_of(kind, labels)(
        good=tuple({"k": v} for v in VALUES_GOOD), bad=tuple({"k": v} for v in (*VALUES_BAD, 1))
    )
    yield rule_of(kind, labels)(
        bad=tuple({k: "v"} for k in (*RESERVED, "karpenter.sh/nodepool", "karpenter.sh", "mykarpenter.sh/x"))
    )
    yield rule_of(kind, labels)(bad=({f"k{i}": "v" for i in range(101)}, [], "a"))
    yield rule_of(kind, labels)(listed=tuple({k: "v"} for k in (*KEYS_BAD, *KEYS_TOO_LONG)), because=Reported.NOT_A_KEY)
    yield rule_of(kind, f"{template}.metadata.annotations")(good=({}, {"a": "x" * 5000}, None), bad=({"a": 1}, [], "a"))
    yield rule_of(kind, "spec.weight")(good=(1, 100, None, 50.0), bad=(0, 101, -1, "5", 1.5, True, 2**40))
    yield rule_of(kind, "spec.replicas")(good=(0, 5, 2**31 - 1), bad=(-1, 2**31, "5", 1.5, 2**63, 10**30))
    static = {"template": BASES[kind]["spec"]["template"], "replicas": 2}
    yield rule_of(kind, "spec")(
        good=(static, {**static, "limits": {"nodes": "5"}}, {**static, "limits": {}}),
        bad=(
            {**static, "limits": {"cpu": "5"}},
            {**static, "limits": {"nodes": 5, "cpu": "5"}},
            {**static, "weight": 1},
            {},
            None,
        ),
    )
    yield rule_of(kind, template)(bad=({}, None, {"spec": {}}, {"metadata": {}}))
    disruption = "spec.disruption"
    yield rule_of(kind, disruption)(good=(None, {"consolidateAfter": "1m"}), bad=([], "on"))
    yield rule_of(kind, disruption)(listed=({}, {"budgets": []}), because=Admitted.LATER_DEFAULT)
    yield rule_of(kind, f"{disruption}.consolidateAfter")(
        good=(*DURATIONS_GOOD, "Never"), bad=(*DURATIONS_BAD, "never")
    )
    policies = ("WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced", None)
    yield rule_of(kind, f"{disruption}.consolidationPolicy")(good=policies, bad=("whenempty", "", "Never", 1))
    yield from _budget_rules(kind, f"{disruption}.budgets")


def _budget_rules(kind: str, path: str) -> Iterator[Rule]:
    yield rule_of(kind, path)(
        good=([], None, [{}], [{"nodes": "1"}] * 50), bad=([{"nodes": "1"}] * 51, {}, [None], "10%")
    )
    nodes_good, nodes_bad = (
        ("0", "7", "0%", "100%", "007", "99%", "1" * 11, "1" * 5000),
        ("101%", "-1", "1.5", "10 %", "", "ten", "%", "٣", 1.5, True),
    )
    yield rule_of(kind, f"{path}.0.nodes")(good=(*nodes_good, None), bad=(*nodes_bad, 5))
    long = f"0 {','.join(map(str, range(24)))} * * {'mon,' * 500}mon"
    schedules = (
        long,
        "@daily",
        "@hourly",
        "0 9 * * 1-5",
        "*/5 0-23 1,15 jan mon",
        "@dailyx",
        "a b c d e",
        "0 9 * * 1 6",
    )
    yield rule_of(kind, f"{path}.0")(good=tuple({"nodes": "0", "schedule": s, "duration": "8h"} for s in schedules))
    wrong = ("", "@never", "0 9 * *", "daily", " @daily", 5)
    yield rule_of(kind, f"{path}.0")(bad=tuple({"nodes": "0", "schedule": s, "duration": "8h"} for s in wrong))
    durations = (f"{'0' * 5000}8h", "8h", "90m", "1h30m", "8h0s", "1h30m0s", "0m")
    yield rule_of(kind, f"{path}.0")(good=tuple({"nodes": "0", "schedule": "@daily", "duration": d} for d in durations))
    wrong = ("", "30s", "1d", "Never", "30m1h", "1h30m5s", "1.5h", "-1h")
    yield rule_of(kind, f"{path}.0")(bad=tuple({"nodes": "0", "schedule": "@daily", "duration": d} for d in wrong))
    yield rule_of(kind, f"{path}.0")(
        bad=({"nodes": "0", "schedule": "@daily"}, {"nodes": "0", "duration": "8h"}, {"nodes": None, "duration": "1h"}),
        good=({"nodes": "0", "schedule": None, "duration": None},),
    )
    reasons = (["Empty"], ["Drifted", "Underutilized", "Empty"], [], None)
    yield rule_of(kind, f"{path}.0.reasons")(
        good=reasons, bad=(["empty"], ["Empty", "Empty"], ["Expired"], "Empty", [None])
    )


def node_claim_rules() -> Iterator[Rule]:
    kind = "NodeClaim"
    yield from with_few_values(requirement_rules(kind, "spec.requirements", pool_allowed=True))
    yield from with_few_values(template_rules(kind, "spec"))
    yield from with_few_values(quantity_rules(kind, "spec.resources.requests"))
    yield rule_of(kind, "spec.resources")(good=({}, None), bad=([], "all"))
    yield rule_of(kind, "spec")(bad=({}, None, [], {"requirements": []}))


def node_overlay_rules() -> Iterator[Rule]:
    kind = "NodeOverlay"
    yield from with_few_values(requirement_rules(kind, "spec.requirements", pool_allowed=True, min_values=False))
    bad = (requirement(operator="NotIn", values=()), requirement(operator="NotIn", values=None))
    yield rule_of(kind, "spec.requirements.0")(bad=bad)
    yield rule_of(kind, "spec.price")(
        good=("0", "1", "1.5", "0.00001", None), bad=("", "-1", "+1", ".5", "1.", "1e3", "٣", 1, 1.5)
    )
    yield rule_of(kind, "spec.priceAdjustment")(
        good=("+1", "-0.5", "+.5", "+10%", "-15%", "-100%", "-99.9%", "+1000%", None),
        bad=("", "1", "10%", "-101%", "-100.5%", "+", "+%", "+1e3", "+٣", 1),
    )
    for field in ("price", "priceAdjustment"):
        sign = "+" if field == "priceAdjustment" else ""
        infinite, tiny = f"{sign}{'9' * 400}", f"{sign}0.{'0' * 400}1"
        yield rule_of(kind, f"spec.{field}")(good=(tiny,), listed=(infinite,), because=Reported.NO_PRICE)
    requirements = BASES[kind]["spec"]["requirements"]
    yield rule_of(kind, "spec")(bad=({}, None, {"requirements": requirements, "price": "1", "priceAdjustment": "+1"}))
    yield rule_of(kind, "spec.weight")(good=(1, 10000, None), bad=(0, 10001, -1, "5", 1.5))
    yield from with_few_values(quantity_rules(kind, "spec.capacity"))
    yield rule_of(kind, "spec.capacity")(bad=tuple({r: 1} for r in ("cpu", "memory", "ephemeral-storage", "pods")))
    yield rule_of(kind, "spec.capacity")(
        listed=tuple({r: 1} for r in ("nvidia.com/gpu", "vpc.amazonaws.com/efa")), because=Reported.KNOWN_RESOURCE
    )
    many = {f"example.com/r{i}": 1 for i in range(101)}
    yield rule_of(kind, "spec.capacity")(good=(many,))
    for label in ("instance-tenancy", "placement-group-id", "capacity-reservation-id", "nitro-sandbox"):
        key = f"karpenter.k8s.aws/{label}"
        yield rule_of(kind, "spec.requirements.0.key")(listed=(key,), because=Admitted.LATER_LABEL)


def capacity_buffer_rules() -> Iterator[Rule]:
    """Rules of CapacityBuffers, whose CRD is the Kubernetes autoscalers'."""
    kind = "CapacityBuffer"
    limits = ({}, None, *({"example.com/thing": q} for q in QUANTITIES_GOOD))
    yield rule_of(kind, "spec.limits")(good=limits, bad=([], {"cpu": "one"}, {"cpu": []}))
    yield rule_of(kind, "spec.limits")(listed=({"cpu": "-1"}, {"cpu": -1}), because=Reported.NEGATIVE)
    yield rule_of(kind, "spec.limits")(listed=({"cpu": "1e1.5"},), because=Reported.NO_QUANTITY)
    for field in ("replicas", "percentage"):
        yield rule_of(kind, f"spec.{field}")(good=(0, 5, None), bad=(-1, "5", 1.5))
    template, workload = {"name": "web"}, {"apiGroup": "apps", "kind": "Deployment", "name": "web"}
    yield rule_of(kind, "spec")(
        good=({}, {"scalableRef": workload}, {"podTemplateRef": template, "limits": {"cpu": "1"}}),
        bad=(
            {"podTemplateRef": template},
            {"podTemplateRef": template, "replicas": 1, "scalableRef": workload},
            {"podTemplateRef": {}, "replicas": 1},
            {"scalableRef": {"kind": "Deployment"}},
        ),
    )
    yield rule_of(kind, "spec.provisioningStrategy")(good=("", "other", None), bad=(1, []))
