"""Rules that NodePools, NodeClaims and NodeOverlays share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.contract.crds.differences import Admitted, Refused, Reported
from tests.contract.crds.edge_values import (
    DURATIONS_BAD,
    DURATIONS_GOOD,
    KEYS_BAD,
    KEYS_GOOD,
    KEYS_TOO_LONG,
    N63,
    OURS_BY_NAME,
    QUANTITIES_BAD,
    QUANTITIES_GOOD,
    RESERVED,
    RESERVED_BY_OTHER_CLOUDS,
    TAGS_BAD,
    TAGS_GOOD,
    TIMES_BAD,
    TIMES_GOOD,
    VALUES_BAD,
    VALUES_GOOD,
)
from tests.contract.crds.rule import NODE_CLASS_REF, TAINT, JSONDict, Rule, rule_of, with_few_values


def requirement(key: str = "team", operator: str = "In", values: Any = ("a",), **more: Any) -> JSONDict:
    return {"key": key, "operator": operator, **({} if values is None else {"values": list(values)}), **more}


def requirement_rules(kind: str, path: str, *, pool_allowed: bool, min_values: bool = True) -> Iterator[Rule]:
    """Rules of a requirement, shared by NodePools, NodeClaims and NodeOverlays."""
    at = f"{path}.0"
    yield rule_of(kind, f"{path}")(
        good=([], [requirement()] * 100), bad=([requirement()] * 101, {}, "all", [None], None)
    )
    yield rule_of(kind, f"{at}.key")(
        good=(*KEYS_GOOD, *OURS_BY_NAME[:-1], *(("karpenter.sh/nodepool",) if pool_allowed else ())),
        bad=(*KEYS_BAD, *RESERVED, *(() if pool_allowed else ("karpenter.sh/nodepool",)), 1),
        listed=KEYS_TOO_LONG,
        because=Reported.NOT_A_KEY,
    )
    yield rule_of(kind, f"{at}.key")(bad=("mykarpenter.sh/x", "karpenter.sh", "karpenter.k8s.aws"))
    yield rule_of(kind, f"{at}.key")(listed=RESERVED_BY_OTHER_CLOUDS, because=Refused.OTHER_CLOUDS_LABEL)
    later = ("karpenter.k8s.aws/nitro-sandbox",)
    yield rule_of(kind, f"{at}.key")(listed=later, because=Admitted.LATER_LABEL)
    yield rule_of(kind, f"{at}.values")(
        good=(*([v] for v in VALUES_GOOD), ["a"] * 1001),
        bad=([], None, "a", [1], [None], {}),
        listed=tuple([v] for v in VALUES_BAD),
        because=Reported.NOT_A_VALUE,
    )
    yield rule_of(kind, f"{at}.operator")(good=("In", "NotIn"), bad=("in", "", "Equals", "Gt", "Lte", 1, None))
    numbers = [
        requirement(operator=op, values=[n])
        for op in ("Gt", "Lt", "Gte", "Lte")
        for n in ("0", "7", "000", "9" * 18, str(2**63 - 1))
    ]
    wrong = [("-1",), ("1", "2"), (), ("a",), ("",), None, ("1.5",), (str(2**63),), ("0x1",), ("1_000",)]
    yield rule_of(kind, at)(
        good=(
            *numbers,
            requirement(operator="Exists", values=None),
            requirement(operator="Exists", values=()),
            requirement(operator="DoesNotExist", values=None),
            requirement(operator="Exists", values=("a",)),
            requirement(key="karpenter.sh/capacity-type", values=("spot", "imaginary")),
            requirement(key="karpenter.sh/capacity-type", operator="NotIn", values=("imaginary",)),
        ),
        bad=(
            *(requirement(operator="Gt", values=v) for v in wrong),
            requirement(values=None),
            {},
            None,
            "a",
            {"key": "team"},
        ),
        listed=(requirement(key="karpenter.sh/capacity-type", values=("imaginary",)),),
        because=Reported.NO_CAPACITY_TYPE,
    )
    yield rule_of(kind, at)(
        listed=tuple(requirement(operator="Lte", values=(v,)) for v in ("+1", "-0")), because=Reported.NOT_A_VALUE
    )
    if min_values:
        two = ("a", "b")
        yield rule_of(kind, at)(
            good=(
                requirement(values=two, minValues=2),
                requirement(values=[f"v{i}" for i in range(50)], minValues=50),
                requirement(operator="Exists", values=None, minValues=50),
                requirement(operator="NotIn", values=two, minValues=3),
            ),
            bad=(
                requirement(values=two, minValues=3),
                requirement(values=[f"v{i}" for i in range(60)], minValues=51),
                *(requirement(values=two, minValues=n) for n in (0, -1, "1", 1.5, True)),
            ),
            listed=(requirement(key="karpenter.sh/capacity-type", values=("spot", "imaginary"), minValues=2),),
            because=Reported.NO_CAPACITY_TYPE,
        )


def taint(**over: Any) -> JSONDict:
    return {name: value for name, value in {**TAINT, **over}.items() if value is not ...}


def taint_rules(kind: str, at: str) -> Iterator[Rule]:
    plain = ([], [taint(effect="NoExecute"), taint(key="b")], [taint(key="b", value=...)])
    yield rule_of(kind, at)(good=(*plain, *([taint(key=k)] for k in KEYS_GOOD)), bad=({}, "a", [None], [{}]))
    yield rule_of(kind, at)(bad=tuple([taint(key=k)] for k in (*KEYS_BAD, ..., None, 1)))
    yield rule_of(kind, at)(listed=tuple([taint(key=k)] for k in KEYS_TOO_LONG), because=Reported.NOT_A_KEY)
    yield rule_of(kind, at)(
        good=([taint(key="b", value=N63)],), bad=([taint(key="b", value="-")], [taint(key="b", value=1)])
    )
    yield rule_of(kind, at)(listed=([taint(key="b", value=f"{N63}n")],), because=Reported.NOT_A_KEY)
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    yield rule_of(kind, at)(good=tuple([taint(key="b", effect=e)] for e in effects))
    yield rule_of(kind, at)(bad=tuple([taint(effect=e)] for e in ("", "noschedule", ..., None, "All")))
    yield rule_of(kind, at)(good=tuple([taint(effect="NoExecute", timeAdded=t)] for t in TIMES_GOOD))
    yield rule_of(kind, at)(bad=tuple([taint(key="b", timeAdded=t)] for t in TIMES_BAD))
    yield rule_of(kind, at)(listed=([taint(key="b", value="")],), because=Admitted.EMPTY)
    twice = ([taint(key="b"), taint(key="b", value="other")],)
    yield rule_of(kind, at)(listed=twice, because=Reported.TAINT_TWICE)
    many = [taint(key=f"k{i}", effect="NoExecute") for i in range(101)]
    yield rule_of(kind, at)(good=(many,))


def template_rules(kind: str, spec: str) -> Iterator[Rule]:
    """Rules that NodePools' templates and NodeClaims share."""
    yield from taint_rules(kind, f"{spec}.taints")
    yield from with_few_values(taint_rules(kind, f"{spec}.startupTaints"))
    yield rule_of(kind, f"{spec}.startupTaints")(listed=([taint()],), because=Reported.TAINT_TWICE)
    yield rule_of(kind, f"{spec}.nodeClassRef")(
        good=(NODE_CLASS_REF, {**NODE_CLASS_REF, "group": "example.com"}, {**NODE_CLASS_REF, "group": "g" * 254, "kind": "K" * 64, "name": "n" * 254}),
        bad=(
            *({**NODE_CLASS_REF, "group": v} for v in ("", "a/b", None, 1)),
            *({**NODE_CLASS_REF, field: v} for field in ("kind", "name") for v in ("", None, 1)),
            {}, None, "default",
        ),
    )  # fmt: skip
    yield rule_of(kind, f"{spec}.expireAfter")(good=(*DURATIONS_GOOD, "Never", None), bad=(*DURATIONS_BAD, "never"))
    yield rule_of(kind, f"{spec}.terminationGracePeriod")(good=(*DURATIONS_GOOD, None), bad=(*DURATIONS_BAD, "Never"))
    for field in ("expireAfter", "terminationGracePeriod"):
        too_long = ("2562048h", "9" * 40 + "s")
        yield rule_of(kind, f"{spec}.{field}")(listed=too_long, because=Refused.UNREADABLE_DURATION)
        yield rule_of(kind, f"{spec}.{field}")(good=("1s" * 33, f"{'0' * 5000}1h"))


def quantity_rules(kind: str, path: str) -> Iterator[Rule]:
    yield rule_of(kind, path)(
        good=({}, None, *({"example.com/thing": q} for q in QUANTITIES_GOOD), {"example.com/thing": None}),
        bad=(*({"example.com/thing": q} for q in QUANTITIES_BAD), [], "all"),
    )
    large = ("1e100", "1E-999", "1" * 65, "9" * 5000, f"0.{'0' * 5000}1")
    yield rule_of(kind, path)(good=tuple({"example.com/thing": q} for q in large))
    unreadable = ("1e1.5", "1e.5", "1E+1000")
    yield rule_of(kind, path)(
        listed=tuple({"example.com/thing": q} for q in unreadable), because=Refused.UNREADABLE_QUANTITY
    )
    negative = ({"example.com/thing": "-1"}, {"example.com/thing": -1}, {"example.com/thing": "-1Gi"})
    yield rule_of(kind, path)(listed=negative, because=Reported.NEGATIVE)


def selector_rules(kind: str, at: str, by_id: JSONDict, *, most: int = 30) -> Iterator[Rule]:
    """Rules of a NodeClass's selector terms.

    Args:
        kind: The NodeClass's kind.
        at: The list of terms.
        by_id: A term with an id.
        most: The largest number of terms.
    """
    tags = {"tags": {"a": "b"}}
    yield rule_of(kind, at)(
        good=([by_id], [tags], [by_id] * most, [by_id, tags]),
        bad=([by_id] * (most + 1), [{}], [None], {}, [{"tags": None}]),
    )
    yield rule_of(kind, at)(
        good=([{**by_id, "tags": None}],), bad=([{**by_id, **tags}], [{"id": "i-1"}], [{"id": ""}], [{"id": 1}])
    )
    yield rule_of(kind, at)(good=tuple([{"tags": t}] for t in TAGS_GOOD), bad=tuple([{"tags": t}] for t in TAGS_BAD))
