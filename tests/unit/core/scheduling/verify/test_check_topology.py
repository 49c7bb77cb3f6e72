"""The second opinion on rules between pods: topology spread, affinity, anti-affinity.

Plans are made by hand: each pod with the zone of the new node it gets, or on nodes that are there. A right plan passes; the
same with one thing changed is named.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement, Object, ObjectMeta
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.verify import verify
from tests.helpers.builders import (
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


def objections(results, *pods, running=(), types=(TYPE,), **cluster):
    """All that is wrong with a plan, in one text; one node stands in zone a."""
    there = {"nodes": (a_node("n1"),), "claims": (a_running_claim("n1"),)}
    snapshot = a_snapshot(**{"pods": (*pods, *running), **there, **cluster})
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    return "\n".join(map(str, verify(snapshot, catalogue, results, pods=pods)))


def by_zone(*placed, types=(TYPE,), **cluster):
    """What is wrong if each pod gets a new node of its own in this zone ("": left open); `placed` are (zone, pod)."""
    claims = [a_planned_claim(pod, types=types, **({"zone": zone} if zone else {})) for zone, pod in placed]
    return objections(a_plan(*claims), *(pod for _, pod in placed), types=types, **cluster)


def in_zones(zones, pods, **kwargs):
    """The same, with the zones as letters."""
    return by_zone(*zip(zones, pods, strict=True), **kwargs)


def together(*pods, **cluster):
    """What is wrong if they share a new node in zone a."""
    return objections(a_plan(a_planned_claim(*pods, types=(TYPE,), zone="a")), *pods, **cluster)


def on_the_node(*pods, **cluster):
    """What is wrong if they go to the node in zone a."""
    return objections(a_plan(node_n1=pods), *pods, **cluster)


def a_member(name, *specs, app="web", namespace="default", node="", **values):
    """A small pod of an application, with these specs merged."""
    spec = {}
    for more in specs:
        spec = merge(spec, more)
    metadata = {"labels": {"app": app, **values}, "namespace": namespace}
    return a_pod(name, cpu="100m", memory="64Mi", node=node, spec=spec, metadata=metadata)


def selecting(app):
    """A label selector."""
    return {"matchLabels": {"app": app}}


def spread(key=labels.ZONE, app="web", **more):
    """A spec that spreads the pods of an application with a skew of one."""
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
    """Several of them."""
    return [a_member(f"p{i}", *specs, **kwargs) for i in range(count)]


# -- spread ----------------------------------------------------------------------------------------------------------


def test_pods_that_spread_over_nodes_are_not_put_together():
    """A node holds maxSkew of them, those that run there included; new nodes can always be opened."""
    one, two = members(2, spread(labels.HOSTNAME))
    assert by_zone(("a", one), ("a", two)) == ""
    found = together(one, two)
    assert "pod default/p0 is one of 2 in kubernetes.io/hostname" in found
    assert "the emptiest domain has 0, its spread allows 1 more" in found
    assert "p0 is one of 2" in on_the_node(one, running=(a_member("r", node=NODE_A),))
    looser = members(2, spread(labels.HOSTNAME, maxSkew=2))
    assert together(*looser) == ""


def test_pods_of_one_spread_with_other_node_affinities_count_on_their_node():
    """On the node that both are planned for, the affinity of each holds, so both count."""
    plain = a_member("p0", spread(labels.HOSTNAME))
    choosy = a_member("p1", spread(labels.HOSTNAME), {"nodeSelector": {labels.ZONE: "a"}})
    assert by_zone(("a", plain), ("a", choosy)) == ""
    assert "is one of 2 in kubernetes.io/hostname" in together(plain, choosy)


def test_pods_that_spread_over_zones_are_level():
    """Against the emptiest zone that could take them."""
    pods = members(4, spread())
    assert in_zones("abca", pods) == ""
    assert f"is one of 2 in {labels.ZONE} a, the emptiest domain has 0" in in_zones("aabb", pods)
    running = (a_member("r0", node=NODE_A), a_member("r1", node=NODE_A))
    assert "is one of 3" in in_zones("abbc", pods, running=running)
    assert in_zones("bcbc", pods, running=running) == ""


def test_a_zone_must_be_decided_unless_every_one_would_do():
    """An open node may come up where there are too many already."""
    one, two = members(2, spread())
    assert by_zone(("", one)) == ""
    assert "is one of 2" in by_zone(("", one), ("a", two))
    assert by_zone(("", one), ("a", a_member("p1", spread(maxSkew=2)))) == ""


def test_a_label_that_a_node_lacks_is_no_domain():
    """Neither on new nodes nor on those that are there."""
    pod = a_member("p", spread("rack"))
    assert "pod default/p spreads over rack, which is not decided there" in by_zone(("a", pod))
    assert "pod default/p spreads over rack, which is not decided there" in on_the_node(pod)


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
    """Two pods in zone a while b and c are empty."""
    pods = [a_member(f"p{i}", spec, rev=str(i)) for i, spec in enumerate(specs)]
    assert (by_zone(*(("a", pod) for pod in pods)) == "") == right


def test_a_pod_outside_its_own_spread_stays_off_crowded_domains():
    """What ran there before it came is held against it; what comes with it is not."""
    stranger = a_member("p", spread(app="db"))
    running = [a_member(f"r{i}", app="db", node=NODE_A) for i in range(2)]
    assert on_the_node(stranger, running=running[:1]) == ""
    assert "pod default/p is one of 2" in on_the_node(stranger, running=running)
    assert by_zone(("a", stranger), ("a", a_member("d0", app="db")), ("a", a_member("d1", app="db"))) == ""


def test_too_few_domains_count_as_empty_ones():
    """With minDomains above what there is, the emptiest has none."""
    assert in_zones("abab", members(4, spread(minDomains=2)), types=(TWO_ZONES,)) == ""
    assert "the emptiest domain has 0" in in_zones("abab", members(4, spread(minDomains=3)), types=(TWO_ZONES,))


def test_a_zone_that_cannot_be_had_is_no_domain():
    """Nothing can be launched there, and no node stands there. A node there makes it one."""
    pods = members(4, spread())
    sold_out = replace(TYPE, offerings=tuple(replace(o, available=o.zone != "c") for o in TYPE.offerings))
    assert in_zones("abab", pods, types=(sold_out,)) == ""
    in_c = {"metadata": {"labels": {labels.ZONE: "c"}}}
    standing = {"nodes": (a_node("n1", **in_c),), "claims": (a_running_claim("n1"),)}
    assert "the emptiest domain has 0" in in_zones("abab", pods, types=(sold_out,), **standing)
    cordoned = {"nodes": (a_node("n1", deleting=ago(minutes=1), **in_c),), "claims": (a_running_claim("n1"),)}
    assert in_zones("abab", pods, types=(sold_out,), **cordoned) == ""


def test_zones_that_the_pod_itself_rules_out_are_no_domains():
    """By node selector, by taint of the only NodePool there."""
    elsewhere = {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": labels.ZONE, "operator": "NotIn", "values": ["c"]}]}
                    ]
                }
            }
        }
    }
    assert in_zones("abab", members(4, spread(), elsewhere)) == ""
    assert in_zones("abab", members(4, spread())) != ""


@pytest.mark.parametrize(
    ("policy", "right"),
    [({}, True), ({"nodeTaintsPolicy": "Honor"}, True), ({"nodeAffinityPolicy": "Ignore"}, False)],
    ids=["default", "heeds-taints", "ignores-affinity"],
)
def test_policies_say_on_which_nodes_pods_count(policy, right):
    """A node in zone a that the pod does not accept runs two: by default they do not count."""
    here = {"nodeSelector": {labels.ARCH: "amd64"}}
    running = [a_member(f"r{i}", node=NODE_A) for i in range(2)]
    assert (by_zone(("a", a_member("p", spread(**policy), here)), running=running) == "") == right


def test_a_tainted_node_counts_unless_taints_are_honoured():
    """nodeTaintsPolicy."""
    tainted = {"nodes": (a_node("n1", spec={"taints": [{"key": "gpu", "effect": "NoSchedule"}]}),)}
    running = [a_member(f"r{i}", node=NODE_A) for i in range(2)]
    assert by_zone(("a", a_member("p", spread())), running=running, **tainted) != ""
    assert by_zone(("a", a_member("p", spread(nodeTaintsPolicy="Honor"))), running=running, **tainted) == ""


def test_pods_that_end_or_move_do_not_count_where_they_are():
    """Nor do pods of another namespace."""
    pod = a_member("p", spread(labels.HOSTNAME))
    going = a_pod("r", cpu="100m", node=NODE_A, metadata={"deletionTimestamp": stamp(ago(minutes=1))})
    assert on_the_node(pod, running=(going,)) == ""
    assert on_the_node(pod, running=(a_member("r", namespace="other", node=NODE_A),)) == ""
    moving = a_member("r", spread(labels.HOSTNAME), node=NODE_A)
    plan = a_plan(a_planned_claim(moving, types=(TYPE,), zone="a"), node_n1=[pod])
    assert objections(plan, pod, moving) == ""


def test_a_node_pool_makes_domains_of_its_own_labels():
    """Spread over a label whose values only the NodePool names."""
    pool = a_pool(
        spec={"template": {"spec": {"requirements": [{"key": "rack", "operator": "In", "values": ["x", "y"]}]}}}
    )
    pods = members(2, spread("rack"))

    def racked(*racks):
        claims = [a_planned_claim(pod, types=(TYPE,), rack=rack) for pod, rack in zip(pods, racks, strict=True)]
        return objections(a_plan(*claims), *pods, node_pools=(pool,))

    assert racked("x", "y") == ""
    assert "is one of 2 in rack x, the emptiest domain has 0" in racked("x", "x")


# -- affinity --------------------------------------------------------------------------------------------------------


def test_a_pod_that_asks_for_company_finds_it():
    """On its node, in its zone; running or planned."""
    guest, host = a_member("p", near(term(labels.HOSTNAME, "db"))), a_member("d", app="db")
    assert together(guest, host) == ""
    assert "pod default/p finds none of the pods in its kubernetes.io/hostname" in by_zone(("a", guest), ("a", host))
    assert on_the_node(guest, running=(a_member("r", app="db", node=NODE_A),)) == ""
    zonal = a_member("p", near(term(labels.ZONE, "db")))
    assert by_zone(("a", zonal), running=(a_member("r", app="db", node=NODE_A),)) == ""
    assert "finds none" in by_zone(("b", zonal), running=(a_member("r", app="db", node=NODE_A),))
    assert "finds none" in by_zone(("a", zonal))


def test_only_the_first_of_a_kind_may_come_alone():
    """It must be one that its own term selects, and the others go to where it is."""
    pods = members(3, near(term(labels.ZONE)))
    assert in_zones("bbb", pods) == ""
    assert "finds none of the pods" in in_zones("bbc", pods)
    assert "finds none of the pods" in in_zones("bbb", pods, running=(a_member("r", node=NODE_A),))
    assert in_zones("aaa", pods, running=(a_member("r", node=NODE_A),)) == ""


def test_pods_that_cannot_reach_each_other_may_each_come_first():
    """Their node selectors keep them in different zones."""
    pods = [a_member(f"p{z}", near(term(labels.ZONE)), {"nodeSelector": {labels.ZONE: z}}) for z in "ab"]
    assert by_zone(("a", pods[0]), ("b", pods[1])) == ""


def test_pods_that_only_wait_for_each_other_never_come():
    """A circle is no order."""
    egg, hen = (
        a_member("e", near(term(labels.ZONE, "hen")), app="egg"),
        a_member("h", near(term(labels.ZONE, "egg")), app="hen"),
    )
    assert "finds none" in by_zone(("a", egg), ("a", hen))
    assert by_zone(("a", egg), ("a", hen), running=(a_member("r", app="hen", node=NODE_A),)) == ""


def test_pods_without_wishes_may_come_last():
    """One that starts a domain may do so before others of its kind are elsewhere."""
    first = a_member("p", near(term(labels.ZONE)))
    assert by_zone(("a", first), ("b", a_member("q"))) == ""


def test_a_pod_that_no_other_selects_may_come_before_those_that_it_selects():
    """It starts its own node before the pod with another affinity is elsewhere; it cannot if such a pod runs."""
    either = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]}
    first = a_member("p", near({"topologyKey": labels.HOSTNAME, "labelSelector": either}))
    other = a_member("d", near(term(labels.ZONE, "db")), app="db")
    assert by_zone(("a", other), ("a", first)) == ""
    assert "pod default/p finds none" in by_zone(("a", first), running=(a_member("r", app="db", node=NODE_A),))


def test_a_chain_of_affinities_is_followed():
    """Each finds the one before it."""
    chain = [a_member("p0")] + [
        a_member(f"p{i}", near(term(labels.HOSTNAME, f"app{i - 1}")), app=f"app{i}") for i in (2, 1)
    ]
    chain[0] = a_member("p0", app="app0")
    assert together(*chain) == ""
    assert "finds none" in together(*chain[1:])


def test_in_an_open_domain_company_comes_along_or_is_everywhere():
    """The zone of a node that may be any says nothing of who is there."""
    guest, host = a_member("p", near(term(labels.ZONE, "db"))), a_member("d", app="db")
    both = a_planned_claim(guest, host, types=(TYPE,))
    assert objections(a_plan(both), guest, host) == ""
    assert "finds none" in by_zone(("", guest), ("a", host))
    everywhere = [a_member(f"d{z}", app="db") for z in "abc"]
    assert by_zone(("", guest), *zip("abc", everywhere, strict=True)) == ""


# -- anti-affinity ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True])
def test_pods_that_repel_others_are_not_put_together(swapped):
    """It works both ways, and for those that run already."""
    shy, loud = a_member("s", apart(term(labels.HOSTNAME, "loud")), app="shy"), a_member("l", app="loud")
    pair = (loud, shy) if swapped else (shy, loud)
    assert by_zone(("a", shy), ("a", loud)) == ""
    assert "the anti-affinity of pod default/s selects 1 other pod(s) in kubernetes.io/hostname" in together(*pair)
    assert "pod default/s" in on_the_node(shy, running=(a_member("l", app="loud", node=NODE_A),))
    running = a_member("s", apart(term(labels.HOSTNAME, "loud")), app="shy", node=NODE_A)
    assert "runs pod default/s, whose anti-affinity selects a pod planned there" in on_the_node(
        loud, running=(running,)
    )
    zonal = a_member("s", apart(term(labels.ZONE, "loud")), app="shy", node=NODE_A)
    assert "whose anti-affinity selects" in by_zone(("a", loud), running=(zonal,))
    assert by_zone(("b", loud), running=(zonal,)) == ""


def test_pods_that_repel_their_own_kind_have_a_domain_each():
    """A pod does not repel itself; an open zone is all that it may become."""
    pods = members(2, apart(term(labels.ZONE)))
    assert in_zones("ab", pods) == ""
    assert "selects 1 other pod(s)" in in_zones("aa", pods)
    assert by_zone(("", pods[0])) == ""
    assert "selects 1 other pod(s)" in by_zone(("", pods[0]), ("b", pods[1]))


def test_running_pods_that_repel_each_other_are_not_our_doing():
    """The plan is judged, not the cluster."""
    running = members(2, apart(term(labels.HOSTNAME)), node=NODE_A)
    assert on_the_node(a_member("p", app="db"), running=running) == ""


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
    """Namespaces by name and by label, labels that must match or mismatch, all operators; what is malformed selects none."""
    owner = a_member("s", apart(term(labels.HOSTNAME, **more)), app="shy", rev="1")
    assert (together(owner, a_member("o", **other), namespaces=CALM) != "") == clash


def test_preferences_are_no_rules():
    """Preferred terms bind no pod."""
    preferred = {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term(labels.HOSTNAME)}]
    }
    pods = members(2, {"affinity": {"podAntiAffinity": preferred}})
    assert together(*pods) == ""
    assert by_zone(("a", a_member("p", {"affinity": {"podAffinity": preferred}}, app="db"))) == ""


def test_a_claim_may_come_to_be_in_any_zone_that_its_requirements_leave():
    """Two of three zones: the third may hold a pod that it must not meet."""
    shy, loud = a_member("s", apart(term(labels.ZONE, "loud")), app="shy"), a_member("l", app="loud")
    zones = NodeSelectorRequirement(key=labels.ZONE, operator="In", values=("a", "b"))
    wide = a_planned_claim(shy, types=(TYPE,))
    narrow = replace(wide, requirements=(*wide.requirements, zones))
    other = a_planned_claim(loud, types=(TYPE,), zone="c")
    assert objections(a_plan(narrow, other), shy, loud) == ""
    assert "selects 1 other pod(s)" in objections(a_plan(wide, other), shy, loud)
