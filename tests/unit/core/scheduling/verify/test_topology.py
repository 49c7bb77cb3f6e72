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


def test_hostname_spread_limits_the_pods_per_node_to_max_skew():
    """Running pods count too; the global minimum is 0 because a new node can always be launched."""
    one, two = members(2, spread(labels.HOSTNAME))
    assert by_zone(("a", one), ("a", two)) == ""
    found = together(one, two)
    assert "pod default/p0 is one of 2 in kubernetes.io/hostname" in found
    assert "the emptiest domain has 0, its spread allows 1 more" in found
    assert "p0 is one of 2" in on_the_node(one, running=(a_member("r", node=NODE_A),))
    looser = members(2, spread(labels.HOSTNAME, maxSkew=2))
    assert together(*looser) == ""


def test_pods_with_different_node_selectors_count_together_in_a_hostname_spread():
    """The shared node meets the node selector of each pod, so both pods count there."""
    plain = a_member("p0", spread(labels.HOSTNAME))
    choosy = a_member("p1", spread(labels.HOSTNAME), {"nodeSelector": {labels.ZONE: "a"}})
    assert by_zone(("a", plain), ("a", choosy)) == ""
    assert "is one of 2 in kubernetes.io/hostname" in together(plain, choosy)


def test_pod_with_two_spreads_over_the_same_pods_counts_once():
    """The constraints count on different nodes (nodeTaintsPolicy); the strictest limits the pods."""
    for key in (labels.ZONE, labels.HOSTNAME):
        first, second = (
            spread(key, **more)["topologySpreadConstraints"] for more in ({}, {"nodeTaintsPolicy": "Honor"})
        )
        assert in_zones("abca", members(4, {"topologySpreadConstraints": first + second})) == ""
    loose = spread(maxSkew=2, nodeTaintsPolicy="Honor")["topologySpreadConstraints"]
    strict = spread()["topologySpreadConstraints"]
    for constraints in (strict + loose, loose + strict):
        found = in_zones("aab", members(3, {"topologySpreadConstraints": constraints}))
        assert found.count("is one of 2") == found.count("is one of") == 1


def test_zone_spread_is_measured_against_the_emptiest_eligible_zone():
    """A zone may exceed the emptiest of the three zones by at most maxSkew; running pods count."""
    pods = members(4, spread())
    assert in_zones("abca", pods) == ""
    assert f"is one of 2 in {labels.ZONE} a, the emptiest domain has 0" in in_zones("aabb", pods)
    running = (a_member("r0", node=NODE_A), a_member("r1", node=NODE_A))
    assert "is one of 3" in in_zones("abbc", pods, running=running)
    assert in_zones("bcbc", pods, running=running) == ""


def test_node_may_have_an_undecided_zone_only_if_every_zone_satisfies_the_spread():
    """Otherwise the node could launch in a zone that already has too many pods."""
    one, two = members(2, spread())
    assert by_zone(("", one)) == ""
    assert "is one of 2" in by_zone(("", one), ("a", two))
    assert by_zone(("", one), ("a", a_member("p1", spread(maxSkew=2)))) == ""


def test_pod_that_spreads_over_a_label_which_its_node_lacks_is_reported():
    """This applies to new nodes and existing nodes."""
    pod = a_member("p", spread("rack"))
    assert "pod default/p spreads over rack, which is not decided there" in by_zone(("a", pod), is_certain=False)
    assert "pod default/p spreads over rack, which is not decided there" in on_the_node(pod, is_certain=False)


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


def test_pod_not_matching_its_own_spread_selector_avoids_domains_above_max_skew():
    """Pods that already run in the domain count; pods of the same plan do not, as they may be scheduled later."""
    stranger = a_member("p", spread(app="db"))
    running = [a_member(f"r{i}", app="db", node=NODE_A) for i in range(2)]
    assert on_the_node(stranger, running=running[:1]) == ""
    assert "pod default/p is one of 2" in on_the_node(stranger, running=running)
    assert by_zone(("a", stranger), ("a", a_member("d0", app="db")), ("a", a_member("d1", app="db"))) == ""


def test_global_minimum_is_zero_when_there_are_fewer_domains_than_min_domains():
    """Two zones with two pods each satisfy minDomains 2 but violate minDomains 3."""
    assert in_zones("abab", members(4, spread(minDomains=2)), types=(TWO_ZONES,)) == ""
    assert "the emptiest domain has 0" in in_zones(
        "abab", members(4, spread(minDomains=3)), types=(TWO_ZONES,), is_certain=False
    )


def test_zone_without_available_offerings_and_without_nodes_is_no_domain():
    """An existing node in the zone makes it a domain, unless the node is being deleted."""
    pods = members(4, spread())
    sold_out = replace(TYPE, offerings=tuple(replace(o, available=o.zone != "c") for o in TYPE.offerings))
    assert in_zones("abab", pods, types=(sold_out,)) == ""
    in_c = {"metadata": {"labels": {labels.ZONE: "c"}}}
    standing = {"nodes": (a_node("n1", **in_c),), "claims": (a_running_claim("n1"),)}
    assert "the emptiest domain has 0" in in_zones("abab", pods, types=(sold_out,), **standing)
    cordoned = {"nodes": (a_node("n1", deleting=ago(minutes=1), **in_c),), "claims": (a_running_claim("n1"),)}
    assert in_zones("abab", pods, types=(sold_out,), **cordoned) == ""


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


def test_plan_of_a_node_pool_that_tries_again_after_a_failed_launch_verifies():
    """No other NodePool and no node has a domain; the pods are balanced over those of the planned nodes."""
    over = (a_backoff(FaultScope.NODE_POOL, until=ago(minutes=2)),)
    pods = members(4, spread())
    assert in_zones("abab", pods, types=(TWO_ZONES,), launch_backoffs=over, nodes=(), claims=()) == ""


def test_zones_excluded_by_the_node_affinity_of_a_pod_are_no_domains():
    """The required node affinity excludes zone c, so an empty zone c does not violate the spread."""
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
def test_pods_on_a_node_that_the_pod_does_not_match_count_only_if_affinity_is_ignored(policy, right):
    """Two pods run on a node in zone a that the pod's node selector excludes; nodeAffinityPolicy defaults to Honor."""
    here = {"nodeSelector": {labels.ARCH: "amd64"}}
    running = [a_member(f"r{i}", node=NODE_A) for i in range(2)]
    found = by_zone(("a", a_member("p", spread(**policy), here)), running=running, is_certain=not policy)
    assert (found == "") == right


def test_pods_on_an_untolerated_node_count_unless_node_taints_policy_is_honor():
    """Two pods run on a tainted node in zone a; nodeTaintsPolicy defaults to Ignore."""
    tainted = {"nodes": (a_node("n1", spec={"taints": [{"key": "gpu", "effect": "NoSchedule"}]}),)}
    running = [a_member(f"r{i}", node=NODE_A) for i in range(2)]
    assert by_zone(("a", a_member("p", spread())), running=running, **tainted) != ""
    assert by_zone(("a", a_member("p", spread(nodeTaintsPolicy="Honor"))), running=running, **tainted) == ""


def test_terminating_and_rescheduled_pods_do_not_count_on_their_current_node():
    """Pods of another namespace do not count either."""
    pod = a_member("p", spread(labels.HOSTNAME))
    going = a_pod("r", cpu="100m", node=NODE_A, metadata={"deletionTimestamp": stamp(ago(minutes=1))})
    assert on_the_node(pod, running=(going,)) == ""
    assert on_the_node(pod, running=(a_member("r", namespace="other", node=NODE_A),)) == ""
    moving = a_member("r", spread(labels.HOSTNAME), node=NODE_A)
    plan = a_plan(a_planned_claim(moving, types=(TYPE,), zone="a"), node_n1=[pod])
    assert objections(plan, pod, moving) == ""


def test_label_values_of_a_node_pool_requirement_are_topology_domains():
    """Only the NodePool lists values of the label over which the pods spread."""
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


def test_required_pod_affinity_needs_a_matching_pod_in_the_same_domain():
    """The matching pod may be running or planned; the domain is a node or a zone."""
    guest, host = a_member("p", near(term(labels.HOSTNAME, "db"))), a_member("d", app="db")
    assert together(guest, host) == ""
    assert "pod default/p finds none of the pods in its kubernetes.io/hostname" in by_zone(("a", guest), ("a", host))
    assert on_the_node(guest, running=(a_member("r", app="db", node=NODE_A),)) == ""
    zonal = a_member("p", near(term(labels.ZONE, "db")))
    assert by_zone(("a", zonal), running=(a_member("r", app="db", node=NODE_A),)) == ""
    assert "finds none" in by_zone(("b", zonal), running=(a_member("r", app="db", node=NODE_A),))
    assert "finds none" in by_zone(("a", zonal))


def test_only_the_first_pod_of_a_self_affinity_may_start_a_domain():
    """The other pods that the term selects must be in the same zone, or in the zone of a running pod."""
    pods = members(3, near(term(labels.ZONE)))
    assert in_zones("bbb", pods) == ""
    assert "finds none of the pods" in in_zones("bbc", pods, is_certain=False)
    assert "finds none of the pods" in in_zones("bbb", pods, running=(a_member("r", node=NODE_A),), is_certain=False)
    assert in_zones("aaa", pods, running=(a_member("r", node=NODE_A),)) == ""


def test_pods_with_self_affinity_may_start_separate_zones_when_node_selectors_differ():
    """Their node selectors require different zones."""
    pods = [a_member(f"p{z}", near(term(labels.ZONE)), {"nodeSelector": {labels.ZONE: z}}) for z in "ab"]
    assert by_zone(("a", pods[0]), ("b", pods[1])) == ""


def test_circular_pod_affinity_is_reported():
    """Each pod needs the other one first; a running pod that one of them selects breaks the circle."""
    egg, hen = (
        a_member("e", near(term(labels.ZONE, "hen")), app="egg"),
        a_member("h", near(term(labels.ZONE, "egg")), app="hen"),
    )
    assert "finds none" in by_zone(("a", egg), ("a", hen), is_certain=False)
    assert by_zone(("a", egg), ("a", hen), running=(a_member("r", app="hen", node=NODE_A),)) == ""


def test_pod_without_affinity_may_be_scheduled_after_the_first_pod_of_an_affinity():
    """The pod with the affinity starts zone a before the matching pod is scheduled to zone b."""
    first = a_member("p", near(term(labels.ZONE)))
    assert by_zone(("a", first), ("b", a_member("q"))) == ""


def test_pod_may_start_a_domain_before_pods_that_its_affinity_selects_are_scheduled():
    """No other affinity selects it, so it may be first; it may not if a pod that it selects already runs."""
    either = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]}
    first = a_member("p", near({"topologyKey": labels.HOSTNAME, "labelSelector": either}))
    other = a_member("d", near(term(labels.ZONE, "db")), app="db")
    assert by_zone(("a", other), ("a", first)) == ""
    running = (a_member("r", app="db", node=NODE_A),)
    assert "pod default/p finds none" in by_zone(("a", first), running=running, is_certain=False)


def test_chain_of_pod_affinities_is_valid_on_one_node():
    """Each pod selects the previous one; without the first pod of the chain the plan is invalid."""
    chain = [a_member("p0")] + [
        a_member(f"p{i}", near(term(labels.HOSTNAME, f"app{i - 1}")), app=f"app{i}") for i in (2, 1)
    ]
    chain[0] = a_member("p0", app="app0")
    assert together(*chain) == ""
    assert "finds none" in together(*chain[1:])


def test_affinity_in_an_undecided_zone_needs_its_pod_on_the_same_node_or_in_every_zone():
    """A node without a decided zone may launch in a zone that has no matching pod."""
    guest, host = a_member("p", near(term(labels.ZONE, "db"))), a_member("d", app="db")
    both = a_planned_claim(guest, host, types=(TYPE,))
    assert objections(a_plan(both), guest, host) == ""
    assert "finds none" in by_zone(("", guest), ("a", host))
    everywhere = [a_member(f"d{z}", app="db") for z in "abc"]
    assert by_zone(("", guest), *zip("abc", everywhere, strict=True)) == ""


# -- anti-affinity ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True])
def test_required_anti_affinity_is_checked_in_both_directions(swapped):
    """Either pod may come first in the plan, and either pod may already run."""
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


def test_pods_with_self_anti_affinity_need_separate_zones():
    """A pod does not count against itself; a node with an undecided zone counts in every zone it may get."""
    pods = members(2, apart(term(labels.ZONE)))
    assert in_zones("ab", pods) == ""
    assert "selects 1 other pod(s)" in in_zones("aa", pods)
    assert by_zone(("", pods[0])) == ""
    assert "selects 1 other pod(s)" in by_zone(("", pods[0]), ("b", pods[1]))


def test_anti_affinity_violation_between_running_pods_is_not_reported():
    """The verifier checks the plan, not the current state of the cluster."""
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
    """Covers namespaces, namespaceSelector, (mis)matchLabelKeys and all operators; an unknown one selects no pod."""
    owner = a_member("s", apart(term(labels.HOSTNAME, **more)), app="shy", rev="1")
    is_certain = more.keys().isdisjoint({"namespaces", "namespaceSelector", "mismatchLabelKeys"})
    assert (together(owner, a_member("o", **other), namespaces=CALM, is_certain=is_certain) != "") == clash


def test_preferred_pod_affinity_and_anti_affinity_are_not_enforced():
    """A plan that violates only preferred terms is valid."""
    preferred = {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term(labels.HOSTNAME)}]
    }
    pods = members(2, {"affinity": {"podAntiAffinity": preferred}})
    assert together(*pods) == ""
    assert by_zone(("a", a_member("p", {"affinity": {"podAffinity": preferred}}, app="db"))) == ""


def test_zonal_anti_affinity_is_checked_in_every_zone_that_a_nodeclaim_may_get():
    """Requirements that exclude the zone of the selected pod make the plan valid."""
    shy, loud = a_member("s", apart(term(labels.ZONE, "loud")), app="shy"), a_member("l", app="loud")
    zones = NodeSelectorRequirement(key=labels.ZONE, operator="In", values=("a", "b"))
    wide = a_planned_claim(shy, types=(TYPE,))
    narrow = replace(wide, requirements=(*wide.requirements, zones))
    other = a_planned_claim(loud, types=(TYPE,), zone="c")
    assert objections(a_plan(narrow, other), shy, loud) == ""
    assert "selects 1 other pod(s)" in objections(a_plan(wide, other), shy, loud)
