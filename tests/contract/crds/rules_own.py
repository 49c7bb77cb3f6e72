"""Rules of NodeDisruptions, FleetPlans, OfferingStates and ChurnLedgers."""

from __future__ import annotations

from collections.abc import Iterator

from tests.contract.crds.edge_values import TIMES_BAD, TIMES_GOOD
from tests.contract.crds.rule import NODE_CLASS_REF, Rule, rule_of


def node_disruption_rules() -> Iterator[Rule]:
    kind = "NodeDisruption"
    candidates = "spec.candidates"
    yield rule_of(kind, "spec.reason")(good=("Empty", "Underutilized", "Drifted"), bad=("empty", "Expired", None, 1))
    yield rule_of(kind, "spec.decision")(good=("delete", "replace"), bad=("Delete", "", None))
    yield rule_of(kind, "spec.method")(good=("emptiness", "multi-node", "drift"), bad=("balanced", "", None))
    one = {"nodeClaim": "a"}
    yield rule_of(kind, candidates)(
        good=([one], [one] * 1000), bad=([], [one] * 1001, None, [{}], [None], [{"nodeClaim": ""}])
    )
    for field in ("node", "nodePool", "instanceType", "zone", "capacityType", "nodeClaimUID"):
        yield rule_of(kind, f"{candidates}.0.{field}")(good=("", "a", "n" * 253, None), bad=("n" * 254, 1, []))
    pods = ([], ["default/web"], None, ["p" * 512], ["p"] * 1000)
    yield rule_of(kind, f"{candidates}.0.pods")(good=pods, bad=(["p" * 513], ["p"] * 1001, [1], [None], "p"))
    prices, wrong = (
        ("0", "0.5", "-1.25", "123456789012", "1.123456789"),
        ("", "1e3", ".5", "1.", "+1", "1.1234567890", "٣", "-"),
    )
    for path in (f"{candidates}.0.price", "spec.replacements.0.price", "spec.savingPerHour"):
        yield rule_of(kind, path)(good=(*prices, None), bad=(*wrong, True, [], 1, 0.5))
    yield rule_of(kind, "spec.replacements")(good=([], None, [{"name": "a"}]), bad=([{}], [{"name": ""}], [None]))
    workload = {"kind": "Deployment", "namespace": "default", "name": "web", "pods": 2}
    unnamed = {"kind": "Deployment", "namespace": "default"}
    yield rule_of(kind, "spec.workloads")(
        good=([], None, [workload], [workload] * 500, [{**workload, "uid": "u"}]),
        bad=([workload] * 501, [unnamed], [None], "web", [{**workload, "pods": -1}], [{**workload, "kind": ""}]),
    )
    yield rule_of(kind, "spec.createdAt")(good=(*TIMES_GOOD, None), bad=TIMES_BAD)
    yield rule_of(kind, "spec.explanation")(good=("", "x" * 4096, "\n", None), bad=("x" * 4097, 1))
    yield rule_of(kind, "spec")(bad=({}, None))


def fleet_plan_rules() -> Iterator[Rule]:
    kind, move = "FleetPlan", {"name": "a", "nodeClaims": ["a"]}
    yield rule_of(kind, "spec.moves")(
        good=([], None, [move], [{**move, "after": ["b"], "replacements": ["m5.large/a/spot"], "evictions": 3}]),
        bad=([{}], [None], [{**move, "nodeClaims": []}], [{**move, "nodeClaims": ["a"] * 101}], "a"),
    )
    for path in ("spec.priceBefore", "spec.priceAfter", "spec.lowerBound", "spec.moves.0.savingPerHour"):
        yield rule_of(kind, path)(good=("0", "0.5", None), bad=("", "1e3", True, 1))
    yield rule_of(kind, "spec.createdAt")(good=(*TIMES_GOOD, None), bad=TIMES_BAD)
    yield rule_of(kind, "spec.explanation")(good=("", "x" * 4096, None), bad=("x" * 4097, 1))


def offering_state_rules() -> Iterator[Rule]:
    kind = "OfferingState"
    yield rule_of(kind, "spec")(good=({}, None), bad=([], "all"))
    yield rule_of(kind, "spec.nodeClassRef")(
        good=(None,), bad=({}, {**NODE_CLASS_REF, "group": "a/b"}, {**NODE_CLASS_REF, "name": ""}, "a")
    )


def churn_ledger_rules() -> Iterator[Rule]:
    kind = "ChurnLedger"
    web = {"kind": "Deployment", "namespace": "default", "name": "web"}
    yield rule_of(kind, "status.workloads")(
        good=([], None, [web], [web] * 500),
        bad=([web] * 501, [{**web, "name": ""}], [{**web, "namespace": ""}], [None], "web"),
    )
    counters, refused = ([], [0], [1_000_000] * 25), ([0] * 26, [-1], [1_000_001], [0.5], ["1"], [None], 1)
    for field in ("evictions", "launches", "reversals"):
        counted = tuple([{**web, field: value}] for value in counters)
        yield rule_of(kind, "status.workloads")(good=counted, bad=tuple([{**web, field: value}] for value in refused))
    yield rule_of(kind, "status.otherEvictions")(good=(*counters, None), bad=refused)
    held = tuple([{**web, "heldUntil": time}] for time in TIMES_GOOD)
    yield rule_of(kind, "status.workloads")(good=held, bad=([{**web, "heldUntil": TIMES_BAD[0]}],))
    pool = {"name": "default", "reversals": [1]}
    yield rule_of(kind, "status.nodePools")(
        good=([], None, [pool], [pool] * 200),
        bad=([pool] * 201, [{}], [{"name": ""}], [{"name": "a", "reversals": [-1]}]),
    )
    command = {"name": "empty-1", "isCounted": True, "reversedBy": "default-1"}
    yield rule_of(kind, "status.commands")(
        good=([], None, [command], [command] * 1000), bad=([command] * 1001, [{}], [{**command, "isCounted": "yes"}])
    )
    for path in ("status.hour", "status.launchesUntil"):
        yield rule_of(kind, path)(good=(*TIMES_GOOD, None), bad=TIMES_BAD)
