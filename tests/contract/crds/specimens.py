"""Every rule of the custom resources with values that just keep it and values that just break it.

One table for four questions: do the CRDs and the models judge each value as the rule says; do they agree on any mixture of
such values; what do Karpenter's own CRDs make of them; is what Karpenter takes and we do not listed, with its reason.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from tests.contract.crds.differences import Difference

JSONDict = dict[str, Any]


class Rule(Struct, frozen=True, kw_only=True):
    """A rule about one field.

    Attributes:
        kind: Whose field.
        path: The field, from the object's root; a number is a place in a list.
        good: Values that keep the rule.
        bad: Values that break it.
        strays: Values that break it, too, but that Karpenter's CRDs let in; `because` says why ours do not.
        again: Whether another rule says the same of the same model elsewhere, so that a few values are enough here.
    """

    kind: str
    path: str
    good: tuple[Any, ...] = ()
    bad: tuple[Any, ...] = ()
    strays: tuple[Any, ...] = ()
    because: Difference | None = None
    again: bool = False

    def values(self) -> Iterator[tuple[str, Any]]:
        """("good", "bad" or "strays", value) for each value to ask about."""
        for said, values in (("good", self.good), ("bad", self.bad), ("strays", self.strays)):
            for value in values[:1] + values[1:][-1:] if self.again else values:
                yield said, value


def with_value(obj: Mapping[str, Any], path: str, value: Any) -> JSONDict:
    """A copy of the object with a value at the path; objects on the way are made, the place in a list must exist."""
    whole: JSONDict = copy.deepcopy(dict(obj))
    *parents, last = path.split(".")
    at: Any = whole
    for name in parents:
        at = at[int(name)] if isinstance(at, list) else at.setdefault(name, {})
    at[int(last) if isinstance(at, list) else last] = copy.deepcopy(value)
    return whole


_REF: Final = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
_ARCH: Final = {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]}
_TAINT: Final = {"key": "example.com/gpu", "value": "yes", "effect": "NoSchedule"}

BASES: Final[Mapping[str, JSONDict]] = {
    "NodePool": {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "specimen"},
        "spec": {
            "template": {
                "metadata": {"labels": {"team": "a"}},
                "spec": {"requirements": [_ARCH], "nodeClassRef": _REF, "taints": [_TAINT]},
            },
            "disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "10%"}]},
        },
    },
    "NodeClaim": {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": "specimen"},
        "spec": {"requirements": [_ARCH], "nodeClassRef": _REF, "taints": [_TAINT]},
    },
    "NodeOverlay": {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": "specimen"},
        "spec": {"requirements": [_ARCH]},
    },
    "EC2NodeClass": {
        "apiVersion": "karpenter.k8s.aws/v1",
        "kind": "EC2NodeClass",
        "metadata": {"name": "specimen"},
        "spec": {
            "role": "KarpenterNodeRole",
            "amiFamily": "AL2023",
            "amiSelectorTerms": [{"id": "ami-123"}],
            "subnetSelectorTerms": [{"tags": {"discovery": "*"}}],
            "securityGroupSelectorTerms": [{"tags": {"discovery": "*"}}],
            "blockDeviceMappings": [{"deviceName": "/dev/xvda", "rootVolume": True, "ebs": {"volumeSize": "20Gi"}}],
        },
    },
    "NodeDisruption": {
        "apiVersion": "journeyman.dev/v1alpha1",
        "kind": "NodeDisruption",
        "metadata": {"name": "specimen"},
        "spec": {
            "reason": "Empty",
            "decision": "replace",
            "method": "emptiness",
            "candidates": [{"nodeClaim": "default-1"}],
            "replacements": [{"name": "default-2"}],
        },
    },
    "OfferingState": {
        "apiVersion": "journeyman.dev/v1alpha1",
        "kind": "OfferingState",
        "metadata": {"name": "specimen"},
        "spec": {"nodeClassRef": _REF},
    },
}
"""A valid object of every kind."""

_N63: Final = "n" * 63
_PREFIX: Final = ".".join(["a" * 50] * 5)  # 254 letters; a DNS name has at most 253

_KEYS_GOOD: Final = (
    "team",
    "example.com/team",
    "a.b-c.d/E_f.g",
    f"{_PREFIX[:253]}/{'n' * 62}",
    "node.kubernetes.io/instance-type",
)
_KEYS_BAD: Final = (
    "",
    "-team",
    "team-",
    "UPPER/team",
    "a//b",
    "a/b/c",
    "/team",
    "team/",
    "tëam",
    "te am",
    "team\n",
    "a..b/c",
)
_KEYS_TOO_LONG: Final = (f"{_N63}n", f"example.com/{_N63}n", f"{_PREFIX}/n")
_OURS_BY_NAME: Final = (
    "karpenter.k8s.aws/instance-family",
    "karpenter.k8s.aws/ec2nodeclass",
    "karpenter.sh/capacity-type",
)
_RESERVED: Final = (
    "kubernetes.io/hostname",
    "karpenter.sh/registered",
    "karpenter.sh/do-not-sync-taints",
    "sub.karpenter.sh/x",
    "karpenter.k8s.aws/unheard-of",
    "sub.karpenter.k8s.aws/x",
)
_VALUES_GOOD: Final = ("", "a", _N63, "A_b.c-1")
_VALUES_BAD: Final = (f"{_N63}n", "-a", "a-", "a b", "ä", "a\n")
_DURATIONS_GOOD: Final = ("0s", "1h30m", "90s", "1s1s", "2562047h")
_DURATIONS_BAD: Final = ("", "1d", "1.5h", "-1h", "h", "1h ", "1 h", "٣h", 30, True)
_QUANTITIES_GOOD: Final = ("1", 1, 0, "1.5", ".5", "5.", "+1", "1Ki", "100m", "1e3", "1E-3", "2Ei", 2.0)
_QUANTITIES_BAD: Final = ("", "one", "1 Gi", "1gi", "1KB", "0x1", "٣", "1e", [], True, 1.5)
_TIMES_GOOD: Final = (
    "2026-01-01T00:00:00Z",
    "2026-01-01T00:00:00.123456Z",
    "2026-01-01T00:00:00+01:00",
    "2026-01-01t00:00:00z",
)
_TIMES_BAD: Final = (
    "", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01 00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z",
    "2026-01-01T23:59:60Z", "2026-01-01T00:00Z", "2026-01-01T00:00:00+0100", "1767225600", 1767225600, "now",
)  # fmt: skip
_BOOLEANS_BAD: Final = ("true", 1, 0, "")
_TAGS_GOOD: Final = ({"a": "b"}, {"a": "*"}, {f"k{i}": "v" for i in range(20)})
_TAGS_BAD: Final = ({"": "v"}, {"k": ""}, {f"k{i}": "v" for i in range(21)}, ["a"], {"k": 1})


def _again(rules: Iterable[Rule]) -> Iterator[Rule]:
    for rule in rules:
        yield replace(rule, again=True)


def _requirement(key: str = "team", operator: str = "In", values: Any = ("a",), **more: Any) -> JSONDict:
    return {"key": key, "operator": operator, **({} if values is None else {"values": list(values)}), **more}


def _requirement_rules(kind: str, path: str, *, pool_allowed: bool, min_values: bool = True) -> Iterator[Rule]:
    """Rules that NodePools, NodeClaims and NodeOverlays share about one requirement."""
    at = f"{path}.0"
    yield Rule(
        kind=kind,
        path=f"{path}",
        good=([], [_requirement()] * 100),
        bad=([_requirement()] * 101, {}, "all", [None], None),
    )
    yield Rule(
        kind=kind,
        path=f"{at}.key",
        good=(*_KEYS_GOOD, *_OURS_BY_NAME[:2], *(("karpenter.sh/nodepool",) if pool_allowed else ())),
        bad=(*_KEYS_BAD, *_RESERVED, *(() if pool_allowed else ("karpenter.sh/nodepool",)), 1),
        strays=_KEYS_TOO_LONG,
        because=Difference.NOT_A_KEY,
    )
    yield Rule(kind=kind, path=f"{at}.key", good=("mykarpenter.sh/x", "karpenter.sh", "karpenter.k8s.aws"))
    yield Rule(
        kind=kind,
        path=f"{at}.values",
        good=(*([v] for v in _VALUES_GOOD), ["a"] * 1000),
        bad=([], None, "a", [1], [None], {}),
        strays=tuple([v] for v in _VALUES_BAD),
        because=Difference.NOT_A_VALUE,
    )
    yield Rule(kind=kind, path=f"{at}.values", strays=(["a"] * 1001,), because=Difference.TOO_MUCH)
    yield Rule(kind=kind, path=f"{at}.operator", good=("In", "NotIn"), bad=("in", "", "Equals", "Gt", "Lte", 1, None))
    numbers = [
        _requirement(operator=op, values=[n]) for op in ("Gt", "Lt", "Gte", "Lte") for n in ("0", "7", "000", "9" * 18)
    ]
    wrong = [("-1",), ("1", "2"), (), ("a",), ("",), None, ("1.5",), ("9" * 20,), ("0x1",), ("1_000",)]
    yield Rule(
        kind=kind,
        path=at,
        good=(
            *numbers,
            _requirement(operator="Exists", values=None),
            _requirement(operator="Exists", values=()),
            _requirement(operator="DoesNotExist", values=None),
            _requirement(operator="Exists", values=("a",)),
            _requirement(key="karpenter.sh/capacity-type", values=("spot", "imaginary")),
            _requirement(key="karpenter.sh/capacity-type", operator="NotIn", values=("imaginary",)),
        ),
        bad=(
            *(_requirement(operator="Gt", values=v) for v in wrong),
            _requirement(values=None),
            {},
            None,
            "a",
            {"key": "team"},
        ),
        strays=(_requirement(key="karpenter.sh/capacity-type", values=("imaginary",)),),
        because=Difference.NO_CAPACITY_TYPE,
    )
    yield Rule(
        kind=kind, path=at, strays=(_requirement(operator="Lte", values=("+1",)),), because=Difference.NOT_A_VALUE
    )
    if min_values:
        two = ("a", "b")
        yield Rule(
            kind=kind,
            path=at,
            good=(
                _requirement(values=two, minValues=2),
                _requirement(values=[f"v{i}" for i in range(50)], minValues=50),
                _requirement(operator="Exists", values=None, minValues=50),
                _requirement(operator="NotIn", values=two, minValues=3),
            ),
            bad=(
                _requirement(values=two, minValues=3),
                _requirement(values=[f"v{i}" for i in range(60)], minValues=51),
                *(_requirement(values=two, minValues=n) for n in (0, -1, "1", 1.5, True)),
            ),
            strays=(_requirement(key="karpenter.sh/capacity-type", values=("spot", "imaginary"), minValues=2),),
            because=Difference.NO_CAPACITY_TYPE,
        )


def _taint(**over: Any) -> JSONDict:
    return {name: value for name, value in {**_TAINT, **over}.items() if value is not ...}


def _taint_rules(kind: str, at: str) -> Iterator[Rule]:
    plain = (
        [],
        [_taint(effect="NoExecute"), _taint(key="b")],
        [_taint(key="b", value=...)],
        [_taint(key="b", value="")],
    )
    yield Rule(kind=kind, path=at, good=(*plain, *([_taint(key=k)] for k in _KEYS_GOOD)), bad=({}, "a", [None], [{}]))
    yield Rule(kind=kind, path=at, bad=tuple([_taint(key=k)] for k in (*_KEYS_BAD, ..., None, 1)))
    yield Rule(kind=kind, path=at, strays=tuple([_taint(key=k)] for k in _KEYS_TOO_LONG), because=Difference.NOT_A_KEY)
    yield Rule(
        kind=kind,
        path=at,
        good=([_taint(key="b", value=_N63)],),
        bad=([_taint(key="b", value="-")], [_taint(key="b", value=1)]),
    )
    yield Rule(kind=kind, path=at, strays=([_taint(key="b", value=f"{_N63}n")],), because=Difference.NOT_A_KEY)
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    yield Rule(kind=kind, path=at, good=tuple([_taint(key="b", effect=e)] for e in effects))
    yield Rule(kind=kind, path=at, bad=tuple([_taint(effect=e)] for e in ("", "noschedule", ..., None, "All")))
    yield Rule(kind=kind, path=at, good=tuple([_taint(effect="NoExecute", timeAdded=t)] for t in _TIMES_GOOD))
    yield Rule(kind=kind, path=at, bad=tuple([_taint(key="b", timeAdded=t)] for t in _TIMES_BAD))
    twice = ([_taint(key="b"), _taint(key="b", value="other")],)
    yield Rule(kind=kind, path=at, strays=twice, because=Difference.TAINT_TWICE)
    many = [_taint(key=f"k{i}", effect="NoExecute") for i in range(101)]
    yield Rule(kind=kind, path=at, good=(many[:100],), strays=(many,), because=Difference.TOO_MUCH)


def _template_rules(kind: str, spec: str) -> Iterator[Rule]:
    """Rules that NodePools' templates and NodeClaims share."""
    yield from _taint_rules(kind, f"{spec}.taints")
    yield from _again(_taint_rules(kind, f"{spec}.startupTaints"))
    yield Rule(kind=kind, path=f"{spec}.startupTaints", strays=([_taint()],), because=Difference.TAINT_TWICE)
    yield Rule(
        kind=kind,
        path=f"{spec}.nodeClassRef",
        good=(_REF, {**_REF, "group": "example.com"}, {**_REF, "name": "n" * 253}),
        bad=(
            *({**_REF, "group": v} for v in ("", "a/b", None, 1)),
            *({**_REF, field: v} for field in ("kind", "name") for v in ("", None, 1)),
            {}, None, "default",
        ),
        strays=({**_REF, "group": "g" * 254}, {**_REF, "kind": "K" * 64}, {**_REF, "name": "n" * 254}),
        because=Difference.NO_SUCH_NAME,
    )  # fmt: skip
    yield Rule(
        kind=kind, path=f"{spec}.expireAfter", good=(*_DURATIONS_GOOD, "Never", None), bad=(*_DURATIONS_BAD, "never")
    )
    yield Rule(
        kind=kind, path=f"{spec}.terminationGracePeriod", good=(*_DURATIONS_GOOD, None), bad=(*_DURATIONS_BAD, "Never")
    )
    for field in ("expireAfter", "terminationGracePeriod"):
        too_long = ("2562048h", "9" * 40 + "s")
        yield Rule(kind=kind, path=f"{spec}.{field}", strays=too_long, because=Difference.UNREADABLE_DURATION)
        yield Rule(kind=kind, path=f"{spec}.{field}", strays=("1s" * 33,), because=Difference.TOO_MUCH)


def _quantity_rules(kind: str, path: str) -> Iterator[Rule]:
    yield Rule(
        kind=kind,
        path=path,
        good=({}, None, *({"example.com/thing": q} for q in _QUANTITIES_GOOD), {"example.com/thing": None}),
        bad=(*({"example.com/thing": q} for q in _QUANTITIES_BAD), [], "all"),
    )
    unreadable = ("1e1.5", "1e.5", "1e100", "1" * 65, "1E+1000")
    yield Rule(
        kind=kind,
        path=path,
        strays=tuple({"example.com/thing": q} for q in unreadable),
        because=Difference.UNREADABLE_QUANTITY,
    )
    negative = ({"example.com/thing": "-1"}, {"example.com/thing": -1}, {"example.com/thing": "-1Gi"})
    yield Rule(kind=kind, path=path, strays=negative, because=Difference.NEGATIVE)


def _node_pool_rules() -> Iterator[Rule]:
    kind, template = "NodePool", "spec.template"
    yield from _requirement_rules(kind, f"{template}.spec.requirements", pool_allowed=False)
    yield from _template_rules(kind, f"{template}.spec")
    yield from _quantity_rules(kind, "spec.limits")
    labels = f"{template}.metadata.labels"
    yield Rule(kind=kind, path=labels, good=({}, None, {"a": None}, {f"k{i}": "v" for i in range(100)}))
    yield Rule(kind=kind, path=labels, good=tuple({k: "v"} for k in (*_KEYS_GOOD, *_OURS_BY_NAME, "karpenter.sh")))
    yield Rule(
        kind=kind,
        path=labels,
        good=tuple({"k": v} for v in _VALUES_GOOD),
        bad=tuple({"k": v} for v in (*_VALUES_BAD, 1)),
    )
    yield Rule(kind=kind, path=labels, bad=tuple({k: "v"} for k in (*_RESERVED, "karpenter.sh/nodepool")))
    yield Rule(kind=kind, path=labels, bad=({f"k{i}": "v" for i in range(101)}, [], "a"))
    yield Rule(
        kind=kind,
        path=labels,
        strays=tuple({k: "v"} for k in (*_KEYS_BAD, *_KEYS_TOO_LONG)),
        because=Difference.NOT_A_KEY,
    )
    yield Rule(
        kind=kind, path=f"{template}.metadata.annotations", good=({}, {"a": "x" * 5000}, None), bad=({"a": 1}, [], "a")
    )
    yield Rule(kind=kind, path="spec.weight", good=(1, 100, None, 50.0), bad=(0, 101, -1, "5", 1.5, True, 2**40))
    yield Rule(kind=kind, path="spec.replicas", good=(0, 5, 2**31 - 1), bad=(-1, 2**31, "5", 1.5, 2**63, 10**30))
    static = {"template": BASES[kind]["spec"]["template"], "replicas": 2}
    yield Rule(
        kind=kind,
        path="spec",
        good=(static, {**static, "limits": {"nodes": "5"}}, {**static, "limits": {}}, {**static, "disruption": {}}),
        bad=(
            {**static, "limits": {"cpu": "5"}},
            {**static, "limits": {"nodes": 5, "cpu": "5"}},
            {**static, "weight": 1},
            {},
            None,
        ),
    )
    yield Rule(kind=kind, path=template, bad=({}, None, {"spec": {}}, {"metadata": {}}))
    disruption = "spec.disruption"
    yield Rule(kind=kind, path=disruption, good=(None, {}, {"consolidateAfter": "1m"}), bad=([], "on"))
    yield Rule(
        kind=kind,
        path=f"{disruption}.consolidateAfter",
        good=(*_DURATIONS_GOOD, "Never"),
        bad=(*_DURATIONS_BAD, "never"),
    )
    policies = ("WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced", None)
    yield Rule(kind=kind, path=f"{disruption}.consolidationPolicy", good=policies, bad=("whenempty", "", "Never", 1))
    yield from _budget_rules(kind, f"{disruption}.budgets")


def _budget_rules(kind: str, path: str) -> Iterator[Rule]:
    yield Rule(
        kind=kind,
        path=path,
        good=([], None, [{}], [{"nodes": "1"}] * 50),
        bad=([{"nodes": "1"}] * 51, {}, [None], "10%"),
    )
    nodes_good, nodes_bad = (
        ("0", "7", "0%", "100%", "007", "99%"),
        ("101%", "-1", "1.5", "10 %", "", "ten", "%", "٣", 1.5, True),
    )
    yield Rule(kind=kind, path=f"{path}.0.nodes", good=(*nodes_good, None), bad=(*nodes_bad, 5))
    yield Rule(kind=kind, path=f"{path}.0.nodes", strays=("1" * 11,), because=Difference.TOO_MUCH)
    schedules = ("@daily", "@hourly", "0 9 * * 1-5", "*/5 0-23 1,15 jan mon", "@dailyx", "a b c d e", "0 9 * * 1 6")
    yield Rule(
        kind=kind, path=f"{path}.0", good=tuple({"nodes": "0", "schedule": s, "duration": "8h"} for s in schedules)
    )
    wrong = ("", "@never", "0 9 * *", "daily", " @daily", 5)
    yield Rule(kind=kind, path=f"{path}.0", bad=tuple({"nodes": "0", "schedule": s, "duration": "8h"} for s in wrong))
    durations = ("8h", "90m", "1h30m", "8h0s", "1h30m0s", "0m")
    yield Rule(
        kind=kind, path=f"{path}.0", good=tuple({"nodes": "0", "schedule": "@daily", "duration": d} for d in durations)
    )
    wrong = ("", "30s", "1d", "Never", "30m1h", "1h30m5s", "1.5h", "-1h")
    yield Rule(
        kind=kind, path=f"{path}.0", bad=tuple({"nodes": "0", "schedule": "@daily", "duration": d} for d in wrong)
    )
    yield Rule(
        kind=kind,
        path=f"{path}.0",
        bad=({"nodes": "0", "schedule": "@daily"}, {"nodes": "0", "duration": "8h"}, {"nodes": None, "duration": "1h"}),
        good=({"nodes": "0", "schedule": None, "duration": None},),
    )
    reasons = (["Empty"], ["Drifted", "Underutilized", "Empty"], [], None)
    yield Rule(
        kind=kind,
        path=f"{path}.0.reasons",
        good=reasons,
        bad=(["empty"], ["Empty", "Empty"], ["Expired"], "Empty", [None]),
    )


def _node_claim_rules() -> Iterator[Rule]:
    kind = "NodeClaim"
    yield from _again(_requirement_rules(kind, "spec.requirements", pool_allowed=True))
    yield from _again(_template_rules(kind, "spec"))
    yield from _again(_quantity_rules(kind, "spec.resources.requests"))
    yield Rule(kind=kind, path="spec.resources", good=({}, None), bad=([], "all"))
    yield Rule(kind=kind, path="spec", bad=({}, None, [], {"requirements": []}))


def _node_overlay_rules() -> Iterator[Rule]:
    kind = "NodeOverlay"
    yield from _again(_requirement_rules(kind, "spec.requirements", pool_allowed=True, min_values=False))
    bad = (_requirement(operator="NotIn", values=()), _requirement(operator="NotIn", values=None))
    yield Rule(kind=kind, path="spec.requirements.0", bad=bad)
    yield Rule(
        kind=kind,
        path="spec.price",
        good=("0", "1", "1.5", "0.00001", None),
        bad=("", "-1", "+1", ".5", "1.", "1e3", "٣", 1, 1.5),
    )
    yield Rule(
        kind=kind,
        path="spec.priceAdjustment",
        good=("+1", "-0.5", "+.5", "+10%", "-15%", "-100%", "-99.9%", "+1000%", None),
        bad=("", "1", "10%", "-101%", "-100.5%", "+", "+%", "+1e3", "+٣", 1),
    )
    for field in ("price", "priceAdjustment"):
        yield Rule(
            kind=kind,
            path=f"spec.{field}",
            strays=(f"{'+' * (field != 'price')}{'9' * 400}",),
            because=Difference.TOO_MUCH,
        )
    requirements = BASES[kind]["spec"]["requirements"]
    yield Rule(
        kind=kind, path="spec", bad=({}, None, {"requirements": requirements, "price": "1", "priceAdjustment": "+1"})
    )
    yield Rule(kind=kind, path="spec.weight", good=(1, 10000, None), bad=(0, 10001, -1, "5", 1.5))
    yield from _again(_quantity_rules(kind, "spec.capacity"))
    yield Rule(
        kind=kind, path="spec.capacity", bad=tuple({r: 1} for r in ("cpu", "memory", "ephemeral-storage", "pods"))
    )
    yield Rule(
        kind=kind,
        path="spec.capacity",
        strays=tuple({r: 1} for r in ("nvidia.com/gpu", "vpc.amazonaws.com/efa")),
        because=Difference.KNOWN_RESOURCE,
    )
    many = {f"example.com/r{i}": 1 for i in range(101)}
    yield Rule(kind=kind, path="spec.capacity", strays=(many,), because=Difference.TOO_MUCH)


def _node_disruption_rules() -> Iterator[Rule]:
    kind = "NodeDisruption"
    candidates = "spec.candidates"
    yield Rule(
        kind=kind, path="spec.reason", good=("Empty", "Underutilized", "Drifted"), bad=("empty", "Expired", None, 1)
    )
    yield Rule(kind=kind, path="spec.decision", good=("delete", "replace"), bad=("Delete", "", None))
    yield Rule(kind=kind, path="spec.method", good=("emptiness", "multi-node", "drift"), bad=("balanced", "", None))
    one = {"nodeClaim": "a"}
    yield Rule(
        kind=kind,
        path=candidates,
        good=([one], [one] * 1000),
        bad=([], [one] * 1001, None, [{}], [None], [{"nodeClaim": ""}]),
    )
    for field in ("node", "nodePool", "instanceType", "zone", "capacityType", "nodeClaimUID"):
        yield Rule(kind=kind, path=f"{candidates}.0.{field}", good=("", "a", "n" * 253, None), bad=("n" * 254, 1, []))
    pods = ([], ["default/web"], None, ["p" * 512], ["p"] * 1000)
    yield Rule(kind=kind, path=f"{candidates}.0.pods", good=pods, bad=(["p" * 513], ["p"] * 1001, [1], [None], "p"))
    prices, wrong = (
        ("0", "0.5", "-1.25", "123456789012", "1.123456789"),
        ("", "1e3", ".5", "1.", "+1", "1.1234567890", "٣", "-"),
    )
    for path in (f"{candidates}.0.price", "spec.replacements.0.price", "spec.savingPerHour"):
        yield Rule(kind=kind, path=path, good=(*prices, None), bad=(*wrong, True, [], 1, 0.5))
    yield Rule(
        kind=kind, path="spec.replacements", good=([], None, [{"name": "a"}]), bad=([{}], [{"name": ""}], [None])
    )
    yield Rule(kind=kind, path="spec.createdAt", good=(*_TIMES_GOOD, None), bad=_TIMES_BAD)
    yield Rule(kind=kind, path="spec.explanation", good=("", "x" * 4096, "\n", None), bad=("x" * 4097, 1))
    yield Rule(kind=kind, path="spec", bad=({}, None))


def _offering_state_rules() -> Iterator[Rule]:
    kind = "OfferingState"
    yield Rule(kind=kind, path="spec", good=({}, None), bad=([], "all"))
    yield Rule(
        kind=kind, path="spec.nodeClassRef", good=(None,), bad=({}, {**_REF, "group": "a/b"}, {**_REF, "name": ""}, "a")
    )


def _term_rules() -> Iterator[Rule]:
    """Selector terms of an EC2NodeClass."""
    kind = "EC2NodeClass"
    ids = {
        "subnetSelectorTerms": "subnet-",
        "securityGroupSelectorTerms": "sg-",
        "amiSelectorTerms": "ami-",
        "capacityReservationSelectorTerms": "cr-",
    }
    for field, prefix in ids.items():
        at, required = f"spec.{field}", field != "capacityReservationSelectorTerms"
        own, tags = {"id": f"{prefix}0123456789abcdef0"}, {"tags": {"a": "b"}}
        empty = {"bad" if required else "good": ([], None)}
        yield Rule(kind=kind, path=at, **empty)
        yield Rule(
            kind=kind,
            path=at,
            good=([own], [tags], [own] * 30, [own, tags]),
            bad=([own] * 31, [{}], [None], {}, [{"tags": None}]),
        )
        yield Rule(
            kind=kind,
            path=at,
            good=([{**own, "tags": None}],),
            bad=([{**own, **tags}], [{"id": "i-1"}], [{"id": ""}], [{"id": 1}]),
        )
        yield Rule(
            kind=kind,
            path=at,
            good=tuple([{"tags": t}] for t in _TAGS_GOOD),
            bad=tuple([{"tags": t}] for t in _TAGS_BAD),
        )
    yield Rule(
        kind=kind,
        path="spec.subnetSelectorTerms",
        good=([{"tags": {}}], [{"id": "subnet-1", "tags": {"a": "b"}}, {"id": "subnet-2"}]),
    )
    name, tags = {"name": "web"}, {"tags": {"a": "b"}}
    yield Rule(
        kind=kind,
        path="spec.securityGroupSelectorTerms",
        good=([name], [{"name": ""}], [{**name, **tags}, tags]),
        bad=([{**name, **tags}], [{**name, "id": "sg-1"}], [{**name, "id": "sg-1", **tags}]),
    )
    mine = {"ownerID": "123456789012"}
    yield Rule(
        kind=kind,
        path="spec.capacityReservationSelectorTerms",
        good=([{**mine, **tags}], [{"instanceMatchCriteria": "open"}], [{**tags, "instanceMatchCriteria": "targeted"}]),
        bad=(
            [mine],
            [{**tags, "ownerID": "12345"}],
            [{"instanceMatchCriteria": "any"}],
            [{"id": "cr-1", **mine}],
            [{"id": "cr-1", "instanceMatchCriteria": "open"}],
            [{"id": "xcr-1"}],
        ),
    )
    yield Rule(
        kind=kind,
        path="spec.placementGroupSelector",
        good=(None, {"name": "a"}, {"id": "pg-0a"}),
        bad=({}, {"name": ""}, {"name": "a", "id": "pg-0a"}, {"id": "pg-"}, {"id": "xpg-1"}, []),
    )


def _ami_rules() -> Iterator[Rule]:
    """Images of an EC2NodeClass, and the family they make."""
    kind, base = "EC2NodeClass", BASES["EC2NodeClass"]["spec"]
    at = "spec.amiSelectorTerms"
    versions = (
        "al2023@latest",
        "al2023@v20240807",
        "bottlerocket@v1.10.0",
        "al2@latest",
        "windows2022@latest",
        "al2023@a@b",
    )
    without = {name: value for name, value in base.items() if name != "amiFamily"}
    yield Rule(kind=kind, path="spec", good=tuple({**without, "amiSelectorTerms": [{"alias": v}]} for v in versions))
    wrong = (
        "",
        "al2023",
        "al2023@",
        "@latest",
        "ubuntu@latest",
        "AL2023@latest",
        "al-2023@latest",
        "windows2022@v1",
        "al2023@" + "v" * 24,
        "al2023\n@latest",
    )
    yield Rule(kind=kind, path="spec", bad=tuple({**without, "amiSelectorTerms": [{"alias": v}]} for v in wrong))
    alias = {"alias": "al2023@latest"}
    yield Rule(
        kind=kind,
        path=at,
        good=(
            [alias],
            [{"name": "mine", "owner": "self"}],
            [{"ssmParameter": "/a"}],
            [{"name": ""}],
            [{"id": "ami-1", "ssmParameter": "/a"}],
        ),
        bad=(
            [{"owner": "self"}],
            [alias, {"id": "ami-1"}],
            [alias, alias],
            [{**alias, "id": "ami-1"}],
            [{**alias, "name": "a"}],
            [{"id": "ami-1", "name": "a"}],
            [{"id": "ami-1", "owner": "self"}, {"name": "a"}],
        ),
    )
    yield Rule(kind=kind, path="spec.amiFamily", good=("AL2", "Custom", "Windows2025"), bad=("al2", "", "Ubuntu", None))
    families = (("al2@latest", "AL2"), ("bottlerocket@latest", "Bottlerocket"), ("windows2019@latest", "Custom"))
    yield Rule(
        kind=kind,
        path="spec",
        good=tuple({**base, "amiSelectorTerms": [{"alias": v}], "amiFamily": f} for v, f in families),
    )
    families = (("al2@latest", "AL2023"), ("bottlerocket@latest", "AL2"), ("windows2019@latest", "Windows2022"))
    yield Rule(
        kind=kind,
        path="spec",
        bad=tuple({**base, "amiSelectorTerms": [{"alias": v}], "amiFamily": f} for v, f in families),
    )


def _volume_rules() -> Iterator[Rule]:
    """Volumes of an EC2NodeClass."""
    kind, at = "EC2NodeClass", "spec.blockDeviceMappings"
    root, plain = {"rootVolume": True}, {"deviceName": "/dev/xvdb"}
    yield Rule(
        kind=kind,
        path=at,
        good=([], None, [plain] * 50, [root, plain, {"rootVolume": False}]),
        bad=([plain] * 51, [root, root], {}, [None]),
    )
    ebs = f"{at}.0.ebs"
    sizes = ("1Gi", "59000Gi", "64000G", "1Ti", "58Ti", "64T", "17Ti", "1T")
    yield Rule(
        kind=kind,
        path=f"{ebs}.volumeSize",
        good=(*sizes, "18Ti", "20Ti", "48Ti"),
        bad=("0Gi", "59001Gi", "64001G", "59Ti", "65T", "1.5Gi", "20", "20gi", "", 20, "1024Mi", "٣Gi"),
    )
    yield Rule(kind=kind, path=f"{ebs}.volumeSize", strays=("Ti", "T"), because=Difference.NO_SIZE)
    yield Rule(
        kind=kind,
        path=ebs,
        good=(
            {"snapshotID": "snap-1"},
            {"snapshotID": "snap-1", "volumeInitializationRate": 100},
            {"volumeSize": "1Gi", "snapshotID": ""},
            None,
        ),
        bad=(
            {},
            {"encrypted": True},
            {"volumeSize": "1Gi", "volumeInitializationRate": 100},
            {"snapshotID": "", "volumeSize": "1Gi", "volumeInitializationRate": 100},
            [],
        ),
    )
    rate = {"snapshotID": "snap-1", "volumeSize": "1Gi"}
    yield Rule(
        kind=kind,
        path=ebs,
        good=({**rate, "volumeInitializationRate": 300},),
        bad=tuple({**rate, "volumeInitializationRate": n} for n in (99, 301, "200", 150.5)),
    )
    yield Rule(kind=kind, path=f"{ebs}.volumeType", good=("gp3", "standard", None), bad=("gp1", "", "GP3"))
    for field in ("iops", "throughput"):
        yield Rule(kind=kind, path=f"{ebs}.{field}", good=(3000, -1, 2**62, None), bad=("3000", 2**63, 1.5))
    for field in ("encrypted", "deleteOnTermination"):
        yield Rule(kind=kind, path=f"{ebs}.{field}", good=(True, False, None), bad=_BOOLEANS_BAD)
    yield Rule(kind=kind, path=f"{at}.0.rootVolume", good=(True, False, None), bad=_BOOLEANS_BAD)


def _instance_rules() -> Iterator[Rule]:
    """What else an EC2NodeClass says of its instances."""
    kind, base = "EC2NodeClass", BASES["EC2NodeClass"]["spec"]
    without = {name: value for name, value in base.items() if name != "role"}
    yield Rule(
        kind=kind,
        path="spec",
        good=({**without, "instanceProfile": "p"}, {**base, "instanceProfile": None}),
        bad=(
            without,
            {**base, "instanceProfile": "p"},
            {**without, "instanceProfile": ""},
            {**base, "role": ""},
            {**base, "role": None},
            {},
        ),
    )
    yield Rule(kind=kind, path="spec", strays=(None,), because=Difference.NO_SPEC)
    forbidden = (
        "",
        "eks:eks-cluster-name",
        "kubernetes.io/cluster/a",
        "kubernetes.io/cluster",
        "karpenter.sh/nodepool",
        "karpenter.sh/nodeclaim",
        "karpenter.k8s.aws/ec2nodeclass",
    )
    yield Rule(
        kind=kind,
        path="spec.tags",
        good=({}, None, {"a": ""}, {"karpenter.sh/mine": "x"}),
        bad=(*({k: "v"} for k in forbidden), {"a": 1}, []),
    )
    yield Rule(kind=kind, path="spec.tags", strays=({f"k{i}": "v" for i in range(101)},), because=Difference.TOO_MUCH)
    for field in ("associatePublicIPAddress", "detailedMonitoring"):
        yield Rule(kind=kind, path=f"spec.{field}", good=(True, False, None), bad=_BOOLEANS_BAD)
    yield Rule(kind=kind, path="spec.ipPrefixCount", good=(0, 1, 2**31 - 1, None), bad=(-1, "1", 1.5, 2**31))
    yield Rule(kind=kind, path="spec.userData", good=("", "x" * 20000, None), bad=(1, {}))
    yield Rule(kind=kind, path="spec.context", good=("", "a", None), bad=(1,))
    yield Rule(kind=kind, path="spec.instanceStorePolicy", good=("RAID0", None), bad=("RAID1", "", "raid0"))
    metadata = "spec.metadataOptions"
    yield Rule(kind=kind, path=metadata, good=({}, None), bad=([], "on"))
    for field in ("httpEndpoint", "httpProtocolIPv6"):
        yield Rule(kind=kind, path=f"{metadata}.{field}", good=("enabled", "disabled", None), bad=("on", "", True))
    yield Rule(kind=kind, path=f"{metadata}.httpTokens", good=("required", "optional", None), bad=("enabled", "", 1))
    yield Rule(kind=kind, path=f"{metadata}.httpPutResponseHopLimit", good=(1, 64, None), bad=(0, 65, "1", 1.5, True))
    tracking = "spec.connectionTracking"
    yield Rule(kind=kind, path=tracking, good=(None, {"udpTimeout": 30}), bad=({}, [], {"udpTimeout": None}))
    for field, low, high in (
        ("tcpEstablishedTimeout", 60, 432000),
        ("udpStreamTimeout", 60, 180),
        ("udpTimeout", 30, 60),
    ):
        yield Rule(
            kind=kind, path=f"{tracking}.{field}", good=(low, high), bad=(low - 1, high + 1, str(low), low + 0.5)
        )
    yield Rule(
        kind=kind,
        path="spec.cpuOptions",
        good=(None, {}, {"nestedVirtualization": "enabled"}),
        bad=({"nestedVirtualization": "on"}, []),
    )
    yield from _interface_rules()


def _interface_rules() -> Iterator[Rule]:
    kind, at = "EC2NodeClass", "spec.networkInterfaces"

    def card(card: Any, device: Any, type_: Any = "interface") -> JSONDict:
        return {"networkCardIndex": card, "deviceIndex": device, "interfaceType": type_}

    first = card(0, 0)
    yield Rule(
        kind=kind,
        path=at,
        good=([], None, [first], [first, card(0, 1, "efa-only")], [first, card(1, 1, "efa-only"), card(1, 0)], [first, *(card(n, 1) for n in range(149))]),
        bad=(
            [card(0, 1)], [card(0, 0, "efa-only")], [first, first], [first, card(0, 0, "efa-only")], [first, card(1, 1, "efa-only"), card(1, 2, "efa-only")],
            [first, card(-1, 0)], [first, card(1, -1)], [first, card(1, 0, "efa")], [first, {}], [first, *(card(n, 1) for n in range(150))], [first, card("1", 0)], [first, card(2**31, 0)],
        ),
    )  # fmt: skip


def _all() -> Iterator[Rule]:
    for rules in (
        _node_pool_rules,
        _node_claim_rules,
        _node_overlay_rules,
        _node_disruption_rules,
        _offering_state_rules,
        _term_rules,
        _ami_rules,
        _volume_rules,
        _instance_rules,
    ):
        yield from rules()


RULES: Final = tuple(_all())
