"""Verification of topology spread constraints, pod affinity and anti-affinity.

Each test builds a plan by hand: it assigns each pod to a new node in a given zone, or to an existing node. The verifier
accepts a valid plan and reports the violated constraint of an invalid one.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.launch_faults import FaultScope
from journeyman.core.api.objects import NodeSelectorRequirement, Object, ObjectMeta
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling import scheduler
from tests.helpers import plans
from tests.helpers.builders import (
    NOW,
    POOL,
    a_backoff,
    a_launched_claim,
    a_node,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    ago,
    an_instance_type,
    merge,
    stamp,
)
from tests.helpers.plans import a_plan, a_planned_claim

TYPE = an_instance_type("z", cpu=8, memory_gib=32, price=0.2, zones=("a", "b", "c"))
TWO_ZONES = an_instance_type("z", cpu=8, memory_gib=32, price=0.2, zones=("a", "b"))
NODE_A = "node-n1"
HOUR = timedelta(hours=1)


def objections(results, *pods, running=(), types=(TYPE,), is_certain=True, **cluster):
    """Return the findings about a plan as one text; the cluster has one existing node, in zone a."""
    there = {"nodes": (a_node("n1"),), "claims": (a_running_claim("n1"),)}
    snapshot = a_snapshot(**{"pods": (*pods, *running), **there, **cluster})
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    return plans.objections(snapshot, catalogue, results, pods=pods, is_certain=is_certain)


def by_zone(*placed, types=(TYPE,), **cluster):
    """Return the findings when each pod gets its own new node; `placed` are (zone, pod), zone "" is undecided."""
    claims = [a_planned_claim(pod, types=types, **({"zone": zone} if zone else {})) for zone, pod in placed]
    return objections(a_plan(*claims), *(pod for _, pod in placed), types=types, **cluster)


def in_zones(zones, pods, **kwargs):
    """Call `by_zone` with the zones as a string of letters and the pods as a list."""
    return by_zone(*zip(zones, pods, strict=True), **kwargs)


def together(*pods, **cluster):
    """Return the findings when all these pods are scheduled to one new node in zone a."""
    return objections(a_plan(a_planned_claim(*pods, types=(TYPE,), zone="a")), *pods, **cluster)


def on_the_node(*pods, **cluster):
    """Return the findings when these pods are scheduled to the existing node in zone a."""
    return objections(a_plan(node_n1=pods), *pods, **cluster)


def a_member(name, *specs, app="web", namespace="default", node="", **values):
    """Return a small pod with label app=`app` and these specs merged."""
    spec = {}
    for more in specs:
        spec = merge(spec, more)
    metadata = {"labels": {"app": app, **values}, "namespace": namespace}
    return a_pod(name, cpu="100m", memory="64Mi", node=node, spec=spec, metadata=metadata)


def selecting(app):
    """A label selector."""
    return {"matchLabels": {"app": app}}


def spread(key=labels.ZONE, app="web", **more):
    """Return a spec with a topology spread constraint on the pods of an app, maxSkew 1."""
    constraint = {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selecting(app),
    }
    return {"topologySpreadConstraints": [{**constraint, **more}]}


def term(key, app="web", **more):
    """An affinity term."""
    return {"topologyKey": key, "labelSelector": selecting(app), **more}


def near(*terms):
    """A spec with required pod affinity."""
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def apart(*terms):
    """A spec with required pod anti-affinity."""
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def members(count, *specs, **kwargs):
    """Return `count` such pods, named p0, p1, ..."""
    return [a_member(f"p{i}", *specs, **kwargs) for i in range(count)]


# -- spread ----------------------------------------------------------------------------------------------------------

HOSTS, ZONES = spread(labels.HOSTNAME), spread()
STRICT, LOOSE = (
    spread(**more)["topologySpreadConstraints"] for more in ({}, {"maxSkew": 2, "nodeTaintsPolicy": "Honor"})
)
IN_ZONE_A = {"nodeSelector": {labels.ZONE: "a"}}
NOT_IN_C = {"matchExpressions": [{"key": labels.ZONE, "operator": "NotIn", "values": ["c"]}]}
ELSEWHERE = {
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [NOT_IN_C]}}}
}
TWO_RUNNING = [a_member(f"r{i}", node=NODE_A) for i in range(2)]
DATABASES = [a_member(f"r{i}", app="db", node=NODE_A) for i in range(2)]
STRANGER = a_member("p", spread(app="db"))
SOLD_OUT_IN_C = {
    "types": (replace(TYPE, offerings=tuple(replace(o, available=o.zone != "c") for o in TYPE.offerings)),)
}
TAINTED = {"nodes": (a_node("n1", spec={"taints": [{"key": "gpu", "effect": "NoSchedule"}]}),)}
GOING = a_pod("r", cpu="100m", node=NODE_A, metadata={"deletionTimestamp": stamp(ago(minutes=1))})
OVER = (a_backoff(FaultScope.NODE_POOL, until=ago(minutes=2)),)
RACKS = a_pool(spec={"template": {"spec": {"requirements": [{"key": "rack", "operator": "In", "values": ["x", "y"]}]}}})


def both_policies(key):
    """A spec with two constraints over a label that count on different nodes (nodeTaintsPolicy)."""
    each = (spread(key, **more)["topologySpreadConstraints"] for more in ({}, {"nodeTaintsPolicy": "Honor"}))
    return {"topologySpreadConstraints": [constraint for (constraint,) in each]}


def here(**policy):
    """The pod p, which spreads over zones by this policy and may not run on the existing node."""
    return a_member("p", spread(**policy), {"nodeSelector": {labels.ARCH: "amd64"}})


def with_node_in_c(deleting=None):
    """The existing node, in zone c."""
    node = a_node("n1", deleting=deleting, metadata={"labels": {labels.ZONE: "c"}})
    return {"nodes": (node,), "claims": (a_running_claim("n1"),)}


def racked(*racks):
    """Return the findings when two pods that spread over racks get these."""
    pods = members(2, spread("rack"))
    claims = [a_planned_claim(pod, types=(TYPE,), rack=rack) for pod, rack in zip(pods, racks, strict=True)]
    return objections(a_plan(*claims), *pods, node_pools=(RACKS,))


def moved_from_the_node():
    """Return the findings when a pod on the existing node is rescheduled and another takes its place there."""
    pod, moving = a_member("p", HOSTS), a_member("r", HOSTS, node=NODE_A)
    plan = a_plan(a_planned_claim(moving, types=(TYPE,), zone="a"), node_n1=[pod])
    return objections(plan, pod, moving)


CROWDED = "is one of 2"
SPREADS = {
    "a pod on each of two hosts": (lambda: in_zones("aa", members(2, HOSTS)), ""),
    "two pods on a host, and a new host is empty": (
        lambda: together(*members(2, HOSTS)),
        "p0 is one of 2 in kubernetes.io/hostname new node 0, the emptiest domain has 0, its spread allows 1 more",
    ),
    "a running pod counts": (lambda: on_the_node(a_member("p", HOSTS), running=TWO_RUNNING[:1]), CROWDED),
    "maxSkew 2": (lambda: together(*members(2, spread(labels.HOSTNAME, maxSkew=2))), ""),
    "pods with different node selectors on two hosts": (
        lambda: in_zones("aa", [a_member("p", HOSTS), a_member("q", HOSTS, IN_ZONE_A)]),
        "",
    ),
    "pods with different node selectors on a host": (
        lambda: together(a_member("p", HOSTS), a_member("q", HOSTS, IN_ZONE_A)),
        "is one of 2 in kubernetes.io/hostname",
    ),
    "two constraints over zones": (lambda: in_zones("abca", members(4, both_policies(labels.ZONE))), ""),
    "two constraints over hosts": (lambda: in_zones("abca", members(4, both_policies(labels.HOSTNAME))), ""),
    "four pods over three zones": (lambda: in_zones("abca", members(4, ZONES)), ""),
    "an empty zone": (
        lambda: in_zones("aabb", members(4, ZONES)),
        f"is one of 2 in {labels.ZONE} a, the emptiest domain has 0",
    ),
    "two running pods in the zone": (lambda: in_zones("abbc", members(4, ZONES), running=TWO_RUNNING), "is one of 3"),
    "two running pods in another zone": (lambda: in_zones("bcbc", members(4, ZONES), running=TWO_RUNNING), ""),
    "an undecided zone": (lambda: by_zone(("", a_member("p", ZONES))), ""),
    "an undecided zone that may be the other's": (lambda: in_zones(["", "a"], members(2, ZONES)), CROWDED),
    "an undecided zone beside maxSkew 2": (
        lambda: in_zones(["", "a"], [a_member("p", ZONES), a_member("q", spread(maxSkew=2))]),
        "",
    ),
    "a label that a new node lacks": (
        lambda: by_zone(("a", a_member("p", spread("rack")))),
        "pod default/p spreads over rack, which is not decided there",
    ),
    "a label that the node lacks": (
        lambda: on_the_node(a_member("p", spread("rack"))),
        "pod default/p spreads over rack, which is not decided there",
    ),
    "a pod that its constraint does not count": (lambda: on_the_node(STRANGER, running=DATABASES[:1]), ""),
    "a pod that its constraint does not count, in a full domain": (
        lambda: on_the_node(STRANGER, running=DATABASES),
        "pod default/p is one of 2",
    ),
    "counted pods that may come later": (
        lambda: in_zones("aaa", [STRANGER, a_member("d0", app="db"), a_member("d1", app="db")]),
        "",
    ),
    "as many zones as minDomains": (lambda: in_zones("abab", members(4, spread(minDomains=2)), types=(TWO_ZONES,)), ""),
    "fewer zones than minDomains": (
        lambda: in_zones("abab", members(4, spread(minDomains=3)), types=(TWO_ZONES,), is_certain=False),
        "the emptiest domain has 0",
    ),
    "a zone without offerings": (lambda: in_zones("abab", members(4, ZONES), **SOLD_OUT_IN_C), ""),
    "a zone without offerings that has a node": (
        lambda: in_zones("abab", members(4, ZONES), **SOLD_OUT_IN_C, **with_node_in_c()),
        "the emptiest domain has 0",
    ),
    "a zone without offerings whose node is deleted": (
        lambda: in_zones("abab", members(4, ZONES), **SOLD_OUT_IN_C, **with_node_in_c(ago(minutes=1))),
        "",
    ),
    "a NodePool that tries again after a failed launch has no other zones": (
        lambda: in_zones("abab", members(4, ZONES), types=(TWO_ZONES,), launch_backoffs=OVER, nodes=(), claims=()),
        "",
    ),
    "a zone that node affinity excludes": (lambda: in_zones("abab", members(4, ZONES, ELSEWHERE)), ""),
    "pods on a node that the pod does not match": (lambda: by_zone(("a", here()), running=TWO_RUNNING), ""),
    "nodeTaintsPolicy beside a node selector": (
        lambda: by_zone(("a", here(nodeTaintsPolicy="Honor")), running=TWO_RUNNING),
        "",
    ),
    "nodeAffinityPolicy Ignore": (
        lambda: by_zone(("a", here(nodeAffinityPolicy="Ignore")), running=TWO_RUNNING, is_certain=False),
        "is one of 3",
    ),
    "pods on an untolerated node": (
        lambda: by_zone(("a", a_member("p", ZONES)), running=TWO_RUNNING, **TAINTED),
        "is one of 3",
    ),
    "pods on an untolerated node, with nodeTaintsPolicy Honor": (
        lambda: by_zone(("a", a_member("p", spread(nodeTaintsPolicy="Honor"))), running=TWO_RUNNING, **TAINTED),
        "",
    ),
    "a terminating pod": (lambda: on_the_node(a_member("p", HOSTS), running=(GOING,)), ""),
    "a pod of another namespace": (
        lambda: on_the_node(a_member("p", HOSTS), running=(a_member("r", namespace="other", node=NODE_A),)),
        "",
    ),
    "a rescheduled pod": (moved_from_the_node, ""),
    "values that only the NodePool lists": (lambda: racked("x", "y"), ""),
    "a value that only the NodePool lists": (
        lambda: racked("x", "x"),
        "is one of 2 in rack x, the emptiest domain has 0",
    ),
}


@pytest.mark.parametrize("case", SPREADS)
def test_topology_spread_is_verified(case):
    """Running and planned pods count; the emptiest domain is one that the pod may be in."""
    found, words = SPREADS[case]
    assert words in found() if words else found() == ""


@pytest.mark.parametrize("constraints", [STRICT + LOOSE, LOOSE + STRICT])
def test_strictest_of_two_spreads_over_the_same_pods_limits_them(constraints):
    """They count on different nodes (nodeTaintsPolicy); each pod counts once."""
    found = in_zones("aab", members(3, {"topologySpreadConstraints": constraints}))
    assert found.count("is one of 2") == found.count("is one of") == 1


@pytest.mark.parametrize(
    ("specs", "right"),
    [
        ([spread(), {}], True),
        ([spread(), spread()], False),
        ([spread(), spread(maxSkew=2)], True),
        ([spread(maxSkew=2), spread(maxSkew=2)], True),
        ([spread(whenUnsatisfiable="ScheduleAnyway"), spread(whenUnsatisfiable="ScheduleAnyway")], True),
        ([spread(app="db"), spread(app="db")], True),
        ([spread(labelSelector=None), spread(labelSelector=None)], True),
        ([spread(labelSelector={}), spread(labelSelector={})], False),
        ([spread(minDomains=2), spread()], False),
        ([spread(matchLabelKeys=["rev"])] * 2, True),
        ([spread(matchLabelKeys=["app"])] * 2, False),
    ],
    ids=[
        "loose-later",
        "both-strict",
        "looser-later",
        "both-loose",
        "preferred",
        "others",
        "no pod",
        "every pod",
        "min-domains",
        "differing-revisions",
        "equal-label",
    ],
)
def test_a_plan_is_valid_if_some_order_of_its_pods_keeps_every_spread(specs, right):
    """The plan schedules two pods to zone a and none to zones b and c."""
    pods = [a_member(f"p{i}", spec, rev=str(i)) for i, spec in enumerate(specs)]
    assert (by_zone(*(("a", pod) for pod in pods)) == "") == right


@pytest.mark.parametrize("scope", [FaultScope.NODE_CLASS, FaultScope.NODE_POOL, FaultScope.ACCOUNT])
def test_zones_of_a_node_pool_that_waits_after_a_failed_launch_are_no_domains(scope):
    """It waits until its back-off ends, then for the node of the one NodeClaim that tries again."""
    pods, ended, young = members(2, spread()), ago(minutes=2), timedelta(minutes=1)
    in_a = {"metadata": {"labels": {labels.ZONE: "a"}}}
    tries = a_launched_claim("try", age=young, **in_a)

    def found(claim, until=ended, **changes):
        backoff = replace(a_backoff(scope, until=until), **changes)
        claims = (a_running_claim("n1", age=HOUR), claim)
        return on_the_node(*pods, claims=claims, launch_backoffs=(backoff,), is_certain="generations" in changes)

    assert found(tries) == ""
    assert found(a_launched_claim("old", age=HOUR, **in_a), until=NOW + HOUR) == ""
    for is_domain in (
        found(a_launched_claim("old", age=HOUR, **in_a)),
        found(a_running_claim("try", age=young, **in_a)),
        found(a_launched_claim("try", age=young, deleting=ago(seconds=5), **in_a)),
        found(tries, generations="of an object that changed since"),
    ):
        assert "is one of 2 in topology.kubernetes.io/zone a, the emptiest domain has 0" in is_domain


@pytest.mark.parametrize("scope", [FaultScope.NODE_CLASS, FaultScope.NODE_POOL, FaultScope.ACCOUNT])
def test_plan_for_the_node_that_tries_again_after_a_failed_launch_verifies(scope):
    """The pods share the only zone with a node, as kube-scheduler lets them; no NodePool may launch one elsewhere."""
    pods = members(3, spread())
    tries = a_launched_claim("try", metadata={"labels": {labels.ZONE: "a"}})
    backoffs = (a_backoff(scope, until=ago(minutes=2)),)
    snapshot = a_snapshot(pods=pods, claims=(tries,), launch_backoffs=backoffs)
    catalogue = Catalogue({POOL: (TYPE,)})

    results = scheduler.solve(snapshot, catalogue)

    assert results.existing == {"try": tuple(pod.key for pod in pods)}
    assert plans.objections(snapshot, catalogue, results, pods=pods) == ""


# -- affinity --------------------------------------------------------------------------------------------------------

LONELY = "finds none of the pods in its"
GUEST, ZONAL_GUEST = (a_member("p", near(term(key, "db"))) for key in (labels.HOSTNAME, labels.ZONE))
HOST, RUNNING_HOST = a_member("d", app="db"), a_member("r", app="db", node=NODE_A)
RUNNING = a_member("r", node=NODE_A)
FRIENDS = members(3, near(term(labels.ZONE)))
CHOOSY = [a_member(f"p{z}", near(term(labels.ZONE)), {"nodeSelector": {labels.ZONE: z}}) for z in "ab"]
EGG = a_member("e", near(term(labels.ZONE, "hen")), app="egg")
HEN = a_member("h", near(term(labels.ZONE, "egg")), app="hen")
EITHER = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]}
FIRST = a_member("p", near({"topologyKey": labels.HOSTNAME, "labelSelector": EITHER}))
OTHER = a_member("d", near(term(labels.ZONE, "db")), app="db")
CHAIN = [
    a_member("p0", app="app0"),
    *(a_member(f"p{i}", near(term(labels.HOSTNAME, f"app{i - 1}")), app=f"app{i}") for i in (2, 1)),
]
PREFERRED = {
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term(labels.HOSTNAME)}]
}
AFFINITIES = {
    "beside its host": (lambda: together(GUEST, HOST), ""),
    "on another node": (lambda: in_zones("aa", [GUEST, HOST]), f"pod default/p {LONELY} kubernetes.io/hostname"),
    "on the node of a running pod": (lambda: on_the_node(GUEST, running=(RUNNING_HOST,)), ""),
    "in the zone of a running pod": (lambda: by_zone(("a", ZONAL_GUEST), running=(RUNNING_HOST,)), ""),
    "in another zone": (lambda: by_zone(("b", ZONAL_GUEST), running=(RUNNING_HOST,)), LONELY),
    "without a host": (lambda: by_zone(("a", ZONAL_GUEST)), LONELY),
    "to themselves in one zone": (lambda: in_zones("bbb", FRIENDS), ""),
    "to themselves in two zones": (lambda: in_zones("bbc", FRIENDS, is_certain=False), LONELY),
    "to themselves, and one runs in another zone": (
        lambda: in_zones("bbb", FRIENDS, running=(RUNNING,), is_certain=False),
        LONELY,
    ),
    "to themselves, and one runs there": (lambda: in_zones("aaa", FRIENDS, running=(RUNNING,)), ""),
    "to themselves, with different node selectors": (lambda: in_zones("ab", CHOOSY), ""),
    "to each other": (lambda: in_zones("aa", [EGG, HEN], is_certain=False), LONELY),
    "to each other, and one runs": (
        lambda: in_zones("aa", [EGG, HEN], running=(a_member("r", app="hen", node=NODE_A),)),
        "",
    ),
    "before a pod without affinity": (lambda: in_zones("ab", [FRIENDS[0], a_member("q")]), ""),
    "before pods that it selects": (lambda: in_zones("aa", [OTHER, FIRST]), ""),
    "after a running pod that it selects": (
        lambda: by_zone(("a", FIRST), running=(RUNNING_HOST,), is_certain=False),
        "pod default/p finds none",
    ),
    "in a chain": (lambda: together(*CHAIN), ""),
    "in a chain without its first pod": (lambda: together(*CHAIN[1:]), LONELY),
    "in an undecided zone, on its node": (
        lambda: objections(a_plan(a_planned_claim(ZONAL_GUEST, HOST, types=(TYPE,))), ZONAL_GUEST, HOST),
        "",
    ),
    "in an undecided zone": (lambda: in_zones(["", "a"], [ZONAL_GUEST, HOST]), LONELY),
    "in an undecided zone, with a host in each": (
        lambda: in_zones(["", *"abc"], [ZONAL_GUEST, *(a_member(f"d{z}", app="db") for z in "abc")]),
        "",
    ),
    "preferred": (lambda: by_zone(("a", a_member("p", {"affinity": {"podAffinity": PREFERRED}}, app="db"))), ""),
}


@pytest.mark.parametrize("case", AFFINITIES)
def test_required_pod_affinity_is_verified(case):
    """A selected pod runs or is planned in each domain that the pod may get; only the first of its kind starts one."""
    found, words = AFFINITIES[case]
    assert words in found() if words else found() == ""


# -- anti-affinity ---------------------------------------------------------------------------------------------------

SHY, ZONAL_SHY = (a_member("s", apart(term(key, "loud")), app="shy") for key in (labels.HOSTNAME, labels.ZONE))
SHY_RUNNING, ZONAL_SHY_RUNNING = (
    a_member("s", apart(term(key, "loud")), app="shy", node=NODE_A) for key in (labels.HOSTNAME, labels.ZONE)
)
LOUD = a_member("l", app="loud")
RIVALS = members(2, apart(term(labels.ZONE)))
WIDE, IN_ZONE_C = a_planned_claim(ZONAL_SHY, types=(TYPE,)), a_planned_claim(LOUD, types=(TYPE,), zone="c")
A_OR_B = NodeSelectorRequirement(key=labels.ZONE, operator="In", values=("a", "b"))
NARROW = replace(WIDE, requirements=(*WIDE.requirements, A_OR_B))
SELECTS, GUARDED = "selects 1 other pod(s)", "runs pod default/s, whose anti-affinity selects a pod planned there"
ANTI_AFFINITIES = {
    "on two nodes": (lambda: in_zones("aa", [SHY, LOUD]), ""),
    "on a node": (
        lambda: together(SHY, LOUD),
        "the anti-affinity of pod default/s selects 1 other pod(s) in kubernetes.io/hostname",
    ),
    "on a node, in another order": (lambda: together(LOUD, SHY), f"of pod default/s {SELECTS}"),
    "to a running pod": (lambda: on_the_node(SHY, running=(a_member("l", app="loud", node=NODE_A),)), "default/s"),
    "of a running pod": (lambda: on_the_node(LOUD, running=(SHY_RUNNING,)), GUARDED),
    "of a running pod in the zone": (lambda: by_zone(("a", LOUD), running=(ZONAL_SHY_RUNNING,)), GUARDED),
    "of a running pod in another zone": (lambda: by_zone(("b", LOUD), running=(ZONAL_SHY_RUNNING,)), ""),
    "to themselves in two zones": (lambda: in_zones("ab", RIVALS), ""),
    "to themselves in a zone": (lambda: in_zones("aa", RIVALS), SELECTS),
    "of a pod to itself": (lambda: by_zone(("", RIVALS[0])), ""),
    "in an undecided zone that may be the other's": (lambda: in_zones(["", "b"], RIVALS), SELECTS),
    "between running pods": (
        lambda: on_the_node(a_member("p", app="db"), running=members(2, apart(term(labels.HOSTNAME)), node=NODE_A)),
        "",
    ),
    "preferred": (lambda: together(*members(2, {"affinity": {"podAntiAffinity": PREFERRED}})), ""),
    "in zones that exclude the other's": (lambda: objections(a_plan(NARROW, IN_ZONE_C), ZONAL_SHY, LOUD), ""),
    "in zones that include the other's": (lambda: objections(a_plan(WIDE, IN_ZONE_C), ZONAL_SHY, LOUD), SELECTS),
}


@pytest.mark.parametrize("case", ANTI_AFFINITIES)
def test_required_anti_affinity_is_verified(case):
    """It holds both ways, in each domain that a node may get, in any order; running pods are not judged."""
    found, words = ANTI_AFFINITIES[case]
    assert words in found() if words else found() == ""


CALM = (Object(metadata=ObjectMeta(name="calm", labels={"mood": "calm"})), Object(metadata=ObjectMeta(name="default")))


@pytest.mark.parametrize(
    ("more", "other", "clash"),
    [
        ({}, {}, True),
        ({}, {"namespace": "calm"}, False),
        ({"namespaces": ["calm"]}, {"namespace": "calm"}, True),
        ({"namespaces": ["calm"]}, {}, False),
        ({"namespaceSelector": {}}, {"namespace": "unknown"}, True),
        ({"namespaceSelector": selecting("x")}, {"namespace": "calm"}, False),
        ({"namespaceSelector": {"matchLabels": {"mood": "calm"}}}, {"namespace": "calm"}, True),
        ({"namespaceSelector": {"matchLabels": {"mood": "calm"}}}, {}, False),
        ({"namespaceSelector": {"matchLabels": {"mood": "calm"}}, "namespaces": ["default"]}, {}, True),
        ({"matchLabelKeys": ["rev"]}, {"rev": "1"}, True),
        ({"matchLabelKeys": ["rev"]}, {"rev": "2"}, False),
        ({"mismatchLabelKeys": ["rev"]}, {"rev": "1"}, False),
        ({"mismatchLabelKeys": ["rev"]}, {"rev": "2"}, True),
        ({"labelSelector": None}, {}, False),
        ({"labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}}, {}, True),
        ({"labelSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}}, {}, False),
        ({"labelSelector": {"matchExpressions": [{"key": "rev", "operator": "Exists"}]}}, {}, False),
        ({"labelSelector": {"matchExpressions": [{"key": "rev", "operator": "DoesNotExist"}]}}, {}, True),
        ({"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Like", "values": ["web"]}]}}, {}, False),
    ],
)
def test_terms_select_pods_as_kubernetes_does(more, other, clash):
    """Covers namespaces, namespaceSelector, (mis)matchLabelKeys and all operators; an unknown one selects no pod."""
    owner = a_member("s", apart(term(labels.HOSTNAME, **more)), app="shy", rev="1")
    assert (together(owner, a_member("o", **other), namespaces=CALM) != "") == clash
