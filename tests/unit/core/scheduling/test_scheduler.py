"""The scheduler as a whole: small clusters, one rule at a time, and the second opinion on every plan."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Options, PreferencePolicy
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman.core.scheduling.verify import verify
from journeyman.core.state.snapshot import InvalidObject
from tests.helpers.builders import (
    LARGE,
    MEDIUM,
    NOW,
    SMALL,
    TYPES,
    a_claim,
    a_daemon_set,
    a_launched_claim,
    a_node,
    a_node_class,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    an_instance_type,
    merge,
    provider_id_of,
    stamp,
    with_reservation,
)

ZONAL = an_instance_type("z.medium", cpu=4, memory_gib=16, price=0.2, zones=("a", "b", "c"), spot=0.07)
ZONAL_B = an_instance_type("z.medium", cpu=4, memory_gib=16, price=0.2, zones=("b",))
HOST = labels.HOSTNAME


def schedule(*pods, types=TYPES, catalogue=None, options=Options(), **cluster):  # noqa: B008 - a frozen value
    """The verified plan for these pods (and whatever else the cluster holds)."""
    snapshot = a_snapshot(pods=tuple(sorted(pods, key=lambda p: p.key)), **cluster)
    catalogue = catalogue or Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    results = solve(snapshot, catalogue, options=options)
    assert verify(snapshot, catalogue, results, pods=pods_to_schedule(snapshot)) == ()
    return results


def pods(count, prefix="p", **kwargs):
    """That many equal pods."""
    return [a_pod(f"{prefix}{i}", **kwargs) for i in range(count)]


def spread(key, *, skew=1, app="web", **more):
    """A spec with one required spread over the pods of an app."""
    constraint = {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}},
    }
    return {"topologySpreadConstraints": [{**constraint, **more}]}


def required(*terms):
    """A spec whose required node affinity has these terms, each a list of (key, operator, values)."""
    made = [{"matchExpressions": [{"key": k, "operator": o, "values": list(v)} for k, o, v in t]} for t in terms]
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": made}}}
    }


def zones_of(results):
    """How many pods each claim pinned to one zone has, by zone."""
    counts = {}
    for claim in results.new_claims:
        (zone,) = next(r.values for r in claim.requirements if r.key == labels.ZONE)
        counts[zone] = counts.get(zone, 0) + len(claim.pods)
    return counts


# --- price


def test_a_spread_that_is_wide_enough_sends_more_pods_where_it_is_cheap():
    """Zones may differ by three pods, and b costs four times as much: one pod there will do."""
    types = [an_instance_type(f"in-{z}", cpu=2, memory_gib=8, price=p, zones=(z,)) for z, p in (("a", 0.1), ("b", 0.4))]
    web = pods(5, cpu="1500m", metadata={"labels": {"app": "web"}}, spec=spread(labels.ZONE, skew=3))

    results = schedule(*web, types=tuple(types))

    assert sorted(claim.offering[1] for claim in results.new_claims) == ["a", "a", "a", "a", "b"]


@pytest.mark.parametrize(("full_zones", "expected"), [((), {"b": 2}), (("b",), {"b": 2}), (("a",), {"a": 1, "b": 1})])
def test_a_pod_joins_one_that_its_spread_counts_unless_another_zone_has_nodes(full_zones, expected):
    """kube-scheduler knows only zones with nodes: with one in zone a it binds no second pod in b before one is in a."""
    types = [an_instance_type(f"in-{z}", cpu=4, memory_gib=8, price=p, zones=(z,)) for z, p in (("a", 0.4), ("b", 0.3))]
    claims = tuple(a_running_claim(f"n{z}") for z in full_zones)
    nodes = tuple(a_node(f"n{z}", metadata={"labels": {labels.ZONE: z}}) for z in full_zones)
    full = [a_pod(f"full-{z}", cpu="4", node=f"node-n{z}", metadata={"labels": {"app": "other"}}) for z in full_zones]
    web = {"labels": {"app": "web"}}
    bound = a_pod("bound", cpu="1", metadata=web, spec=spread(labels.ZONE))
    counted = a_pod("counted", cpu="2", metadata=web, spec=spread(labels.ZONE, app="none"))

    results = schedule(bound, counted, *full, types=tuple(types), nodes=nodes, claims=claims)

    assert zones_of(results) == expected


def preferred(kind, term, *, named="podAffinityTerm"):
    """A spec with one preferred term of this kind of affinity."""
    entry = {"weight": 1, named: term}
    return {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [entry]}}}


def test_pods_that_cannot_share_a_node_as_they_prefer_are_packed_by_price():
    """They prefer the node of a cache that is not there: two small nodes are cheaper than the large one for both."""
    types = (
        an_instance_type("large", cpu=16, memory_gib=64, price=0.4),
        an_instance_type("small", cpu=8, memory_gib=32, price=0.1),
    )
    beside = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "cache"}}}

    results = schedule(*pods(2, cpu="7", spec=preferred("podAffinity", beside)), types=types)

    assert results.price == pytest.approx(0.2)


def test_of_equal_pods_those_that_want_the_fewest_nodes_go_first():
    """One prefers zone a, the other any zone without web pods: it leaves the node of zone a, which holds one pod."""
    in_zone_a = {"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": ["a"]}]}
    without_web = {"topologyKey": labels.ZONE, "labelSelector": {"matchLabels": {"app": "web"}}}
    choosy = a_pod("z", cpu="1", spec=preferred("nodeAffinity", in_zone_a, named="preference"))
    other = a_pod("a", cpu="1", spec=preferred("podAntiAffinity", without_web))
    claims = tuple(a_running_claim(f"n{zone}") for zone in "ab")
    nodes = tuple(a_node(f"n{zone}", metadata={"labels": {labels.ZONE: zone}}) for zone in "ab")
    full = a_pod("full", cpu="3", node="node-na")

    results = schedule(choosy, other, full, nodes=nodes, claims=claims)

    assert results.existing == {"node-na": ("default/z",), "node-nb": ("default/a",)}


def test_nothing_to_do_is_a_plan_without_claims():
    """And without a price."""
    results = schedule()

    assert (results.new_claims, results.price, results.lower_bound) == ((), 0.0, 0.0)


@pytest.mark.karpenter(
    "provisioning/scheduling/instance_selection",
    it="should schedule on one of the cheapest instances",
)
def test_the_cheapest_nodes_that_hold_the_pods_are_planned():
    """Seven cores on one large node, not on two medium ones."""
    results = schedule(*pods(7))

    (claim,) = results.new_claims
    assert claim.offering == ("m.large", "a", labels.ON_DEMAND)
    assert results.price == claim.price == 0.37
    assert 0 < results.lower_bound <= results.price


def test_a_claim_lists_every_type_that_still_fits_cheapest_first():
    """One core fits all three; three cores no longer fit the small one."""
    one, three = schedule(*pods(1)), schedule(*pods(3))

    assert one.new_claims[0].instance_types == ("m.small", "m.medium", "m.large")
    assert three.new_claims[0].instance_types == ("m.medium", "m.large")


def test_unavailable_offerings_are_not_planned_for():
    """Spot is out of stock in every zone, so on-demand it is."""
    offerings = tuple(replace(o, available=o.capacity_type != labels.SPOT) for o in ZONAL.offerings)

    results = schedule(*pods(1), types=(replace(ZONAL, offerings=offerings),))

    assert results.new_claims[0].offering == ("z.medium", "a", labels.ON_DEMAND)


@pytest.mark.karpenter("provisioning", it="should account for daemonsets")
def test_daemons_take_their_share_of_every_node():
    """Three cores and a daemon of one do not fit a node of four."""
    results = schedule(*pods(3), daemon_sets=(a_daemon_set("agent", cpu="1"),))

    (claim,) = results.new_claims
    assert claim.offering[0] == "m.large"
    assert claim.requests["cpu"] == 4000


def test_fewest_nodes_can_be_asked_for():
    """The annotation on the NodePool chooses Karpenter's way."""
    cheap = an_instance_type("m.tiny", cpu=1, memory_gib=4, price=0.01)
    few = a_pool(metadata={"annotations": {labels.PACKING: "fewest-nodes"}})

    assert len(schedule(*pods(4, cpu="500m"), types=(cheap, LARGE)).new_claims) == 4
    assert len(schedule(*pods(4, cpu="500m"), types=(cheap, LARGE), node_pools=(few,)).new_claims) == 1


# --- requirements


@pytest.mark.karpenter("provisioning/scheduling", it="should use node selectors")
@pytest.mark.karpenter("provisioning/scheduling", it="should schedule compatible requirements with Operator=NotIn")
def test_selectors_and_affinity_narrow_the_offerings():
    """Zone b, on-demand: what the claim says is exactly that."""
    pod = a_pod(
        "p",
        spec={
            "nodeSelector": {labels.CAPACITY_TYPE: labels.ON_DEMAND},
            **required([(labels.ZONE, "NotIn", ("a", "c"))]),
        },
    )

    (claim,) = schedule(pod, types=(ZONAL,)).new_claims

    assert claim.offering == ("z.medium", "b", labels.ON_DEMAND)


@pytest.mark.karpenter("provisioning/scheduling", it="should relax multiple terms")
def test_the_first_term_that_can_be_met_is_used():
    """Terms are alternatives: the first names a type that does not exist."""
    pod = a_pod(
        "p",
        spec=required([(labels.INSTANCE_TYPE, "In", ("x.none",))], [(labels.INSTANCE_TYPE, "In", ("m.large",))]),
    )

    assert schedule(pod).new_claims[0].instance_types == ("m.large",)


def test_affinity_alternatives_are_chosen_with_the_other_pods_of_a_node():
    """One pod would take zone a or any on-demand node; with one that needs zone b beside it, it is the latter."""
    either = required([(labels.ZONE, "In", ["a"])], [(labels.CAPACITY_TYPE, "In", [labels.ON_DEMAND])])
    types = (an_instance_type("z.large", cpu=8, memory_gib=32, price=0.3, zones=("a", "b")),)
    results = schedule(a_pod("p0", spec=either), a_pod("p1", spec={"nodeSelector": {labels.ZONE: "b"}}), types=types)
    assert [claim.pods for claim in results.new_claims] == [("default/p0", "default/p1")]
    assert zones_of(results) == {"b": 2}


@pytest.mark.karpenter("provisioning/scheduling", it="should schedule compatible pods to the same node")
@pytest.mark.karpenter("provisioning/scheduling", it="should schedule incompatible pods to the different node")
def test_pods_with_different_values_of_an_open_label_get_different_nodes():
    """The pool allows both teams; one node can belong to one only."""
    pool = a_pool(
        spec={"template": {"spec": {"requirements": [{"key": "team", "operator": "In", "values": ["red", "blue"]}]}}}
    )
    some = [
        a_pod(f"{team}{i}", cpu="100m", spec={"nodeSelector": {"team": team}})
        for team in ("red", "blue")
        for i in (0, 1)
    ]

    results = schedule(*some, a_pod("any", cpu="100m"), node_pools=(pool,))

    teams = [next(r.values for r in c.requirements if r.key == "team") for c in results.new_claims]
    assert sorted(teams) == [("blue",), ("red",)]
    assert results.pod_errors == {}


@pytest.mark.karpenter("provisioning", it="should schedule pods that tolerate taints")
@pytest.mark.karpenter("provisioning/scheduling/topology", it="should schedule pods that tolerate NodePool constraints")
def test_taints_keep_pods_out_unless_tolerated():
    """One of two pods tolerates the pool's taint."""
    pool = a_pool(spec={"template": {"spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}}})
    brave = a_pod("brave", spec={"tolerations": [{"key": "gpu", "operator": "Exists"}]})

    results = schedule(brave, a_pod("shy"), node_pools=(pool,))

    assert [c.pods for c in results.new_claims] == [("default/brave",)]
    assert "did not tolerate taint (taint=gpu=yes:NoSchedule)" in results.pod_errors["default/shy"].message


def test_a_pool_that_could_not_be_read_is_named_to_pods_that_have_no_other():
    """The error names the unreadable pool."""
    unread = InvalidObject(kind="NodePool", name="broken", uid="u", why="requirements: operator Is is none")

    results = schedule(a_pod("p"), node_pools=(), invalid_objects=(unread,))

    assert results.pod_errors["default/p"].by_node_pool == {"broken": "requirements: operator Is is none"}


# --- NodePools


@pytest.mark.karpenter(
    "provisioning",
    it="should not match NodePool with PreferNoSchedule taint when other NodePool match",
)
def test_a_prefer_no_schedule_taint_holds_while_another_node_is_possible():
    """PreferNoSchedule: another NodePool first, even a dearer one of less weight, and this one rather than none."""
    taints = [{"key": "quiet", "effect": "PreferNoSchedule"}]
    quiet = a_pool("quiet", spec={"weight": 10, "template": {"spec": {"taints": taints}}})
    other = a_pool("other", spec={"limits": {"cpu": "2"}})
    catalogue = Catalogue({"quiet": (MEDIUM,), "other": (SMALL,)})
    results = schedule(*pods(2), catalogue=catalogue, node_pools=(other, quiet))
    assert sorted((c.node_pool, len(c.pods)) for c in results.new_claims) == [("other", 1), ("quiet", 1)]


def test_pods_outside_their_own_spread_use_capacity_of_every_admitted_zone():
    """Zone a has a node with capacity for some and nothing to buy; the rest goes to zone b."""
    spec = spread(labels.ZONE, app="other")
    results = schedule(*pods(5, spec=spec), types=(ZONAL_B,), nodes=(a_node(),), claims=(a_running_claim(),))
    assert not results.pod_errors


@pytest.mark.parametrize("skews", [(1, 2), (2, 1)])
def test_of_two_spreads_over_the_same_pods_the_stricter_holds(skews):
    """In whatever order they are written: with a node in a zone that takes none, one pod is all there may be."""
    both = [c for skew in skews for c in spread(labels.ZONE, skew=skew)["topologySpreadConstraints"]]
    full = a_pod("full", cpu="4", node="node-default-1", metadata={"labels": {"app": "other"}})
    spec = {"topologySpreadConstraints": both}
    results = schedule(full, *pods(2, spec=spec), types=(ZONAL_B,), nodes=(a_node(),), claims=(a_running_claim(),))
    assert zones_of(results) == {"b": 1}
    assert list(results.pod_errors) == ["default/p1"]


def test_spread_uses_prefer_no_schedule_zones_only_if_the_skew_demands_it():
    """With a skew of two, two pods stay in zone b, and the third has to go to zone c, where the node is full."""
    zones = [{"key": labels.ZONE, "operator": "In", "values": ["c"]}]
    quiet = {"requirements": zones, "taints": [{"key": "quiet", "effect": "PreferNoSchedule"}]}
    catalogue = Catalogue({"default": (ZONAL_B,), "quiet": (ZONAL,)})
    pools = (a_pool(), a_pool("quiet", spec={"template": {"spec": quiet}}))
    full = a_pod("full", cpu="4", node="node-default-1", metadata={"labels": {"app": "other"}})
    node = a_node(metadata={"labels": {labels.ZONE: "c"}})
    cluster = {"catalogue": catalogue, "node_pools": pools, "nodes": (node,), "claims": (a_running_claim(),)}
    two = schedule(full, *pods(2, spec=spread(labels.ZONE, skew=2)), **cluster)
    three = schedule(full, *pods(3, spec=spread(labels.ZONE, skew=2)), **cluster)
    assert (zones_of(two), zones_of(three)) == ({"b": 2}, {"b": 2, "c": 1})


def test_a_label_that_only_has_to_be_there_gets_a_value():
    """A NodePool with `team Exists`: the node comes up with some team, for a pod that asks for one and not for 0."""
    requirement = {"key": "team", "operator": "Exists"}
    pool = a_pool(spec={"template": {"spec": {"requirements": [requirement]}}})
    pod = a_pod("p", spec=required([("team", "NotIn", ["0"])]))
    (claim,) = schedule(pod, node_pools=(pool,)).new_claims
    assert ("team", "In", ("1",)) in [(r.key, r.operator, r.values) for r in claim.requirements]


@pytest.mark.parametrize(
    "term",
    [
        [("nope", "Exists", []), ("nope", "DoesNotExist", [])],
        [("nope", "Exists", []), ("nope", "NotIn", ["x"])],
        [("nope", "In", ["x"]), ("nope", "In", ["y"])],
        [(labels.ARCH, "In", ["amd64"]), (labels.ARCH, "DoesNotExist", [])],
    ],
    ids=["there-and-not", "there-but-nowhere", "two-values", "well-known"],
)
def test_a_pod_whose_rules_no_node_can_meet_gets_none_and_the_others_go_on(term):
    """It would never run there, and a node would be opened for it again and again."""
    results = schedule(a_pod("never", spec=required(term)), a_pod("plain"))
    assert [claim.pods for claim in results.new_claims] == [("default/plain",)]
    assert results.pod_errors["default/never"].kind == "unschedulable"


@pytest.mark.parametrize(("tolerations", "taken"), [([], False), ([{"operator": "Exists"}], True)])
def test_a_cordoned_node_takes_only_pods_that_tolerate_it(tolerations, taken):
    """Its taint may not be there yet; kube-scheduler reads the field."""
    node = a_node(spec={"unschedulable": True})
    pod = a_pod("p", spec={"tolerations": tolerations})
    results = schedule(pod, nodes=(node,), claims=(a_running_claim(),))
    assert ("node-default-1" in results.existing) is taken
    assert bool(results.new_claims) is not taken


@pytest.mark.karpenter("provisioning", it="should schedule to the nodepool with the highest priority always")
def test_a_heavier_pool_takes_what_it_can_even_at_a_higher_price():
    """The light pool gets only the pod that the heavy one cannot have."""
    heavy, light = a_pool("heavy", spec={"weight": 10}), a_pool("light")
    catalogue = Catalogue({"heavy": (MEDIUM,), "light": (SMALL, LARGE)})

    results = schedule(*pods(1), a_pod("big", cpu="7"), node_pools=(heavy, light), catalogue=catalogue)

    assert {c.node_pool: c.pods for c in results.new_claims} == {"heavy": ("default/p0",), "light": ("default/big",)}


def test_limits_are_kept_and_what_is_beyond_them_goes_to_the_next_pool():
    """Four cores in the heavy pool are one medium node; the rest falls through."""
    heavy, light = a_pool("heavy", spec={"weight": 10, "limits": {"cpu": "4"}}), a_pool("light")

    results = schedule(*pods(6), types=(MEDIUM,), node_pools=(heavy, light))

    assert [c.node_pool for c in results.new_claims] == ["heavy", "light"]
    assert results.pod_errors == {}


@pytest.mark.karpenter("provisioning", it="should partially schedule if limits would be exceeded")
def test_pods_beyond_all_limits_say_so():
    """The error is of kind limits, and what is left is in it."""
    results = schedule(*pods(6), types=(MEDIUM,), node_pools=(a_pool(spec={"limits": {"cpu": "4"}}),))

    assert len(results.new_claims) == 1
    assert {e.kind for e in results.pod_errors.values()} == {"limits"}
    assert len(results.pod_errors) == 3


def test_a_limited_pool_takes_large_reservations_where_that_is_cheaper():
    """The limit allows the large reservation for all pods, or the small one for one pod; the others would be bought."""
    limited = a_pool("limited", spec={"limits": {"memory": "32Gi"}})
    booked = (with_reservation(SMALL, "cr-small", price=1e-7), with_reservation(LARGE, "cr-large", price=4e-7))

    results = schedule(
        *pods(6), catalogue=Catalogue({"limited": booked, "other": TYPES}), node_pools=(limited, a_pool("other"))
    )

    assert [claim.offering[0] for claim in results.new_claims] == [LARGE.name]
    assert results.price < 1e-5


def test_nodes_that_exist_count_against_the_limits():
    """The pool's four cores are taken."""
    results = schedule(
        *pods(1, cpu="3"),
        a_pod("running", cpu="3", node="node-default-1"),
        node_pools=(a_pool(spec={"limits": {"cpu": "4"}}),),
        nodes=(a_node(),),
        claims=(a_running_claim(),),
    )

    assert results.pod_errors["default/p0"].kind == "limits"


@pytest.mark.parametrize(
    ("pool", "node_class", "why"),
    [
        (a_pool(spec={"replicas": 2}), a_node_class(), "static"),
        (a_pool(), a_node_class(ready=False, message="no subnets"), "no subnets"),
        (a_pool(), a_node_class("other"), "does not exist"),
        (
            a_pool(
                spec={
                    "template": {
                        "spec": {"requirements": [{"key": labels.ARCH, "operator": "In", "values": ["arm64"]}]}
                    }
                }
            ),
            a_node_class(),
            "no instance type",
        ),
    ],
)
def test_a_pool_that_cannot_be_used_is_set_aside_with_the_reason(pool, node_class, why):
    """And the error of its pods says that no NodePool is left."""
    results = schedule(*pods(1), node_pools=(pool,), node_classes=(node_class,))

    assert why in results.unusable_node_pools["default"]
    assert results.pod_errors["default/p0"].kind == "no-nodepool"


# --- spread


@pytest.mark.karpenter("provisioning/scheduling/topology", it="should balance pods across zones (match labels)")
def test_zone_spread_divides_pods_evenly_over_provisionable_zones():
    """Eight pods, three zones: 3, 3, 2."""
    results = schedule(*pods(8, spec=spread(labels.ZONE)), types=(ZONAL,))

    assert sorted(zones_of(results).values()) == [2, 3, 3]


def test_zone_spread_counts_pods_that_run():
    """Two run in zone a already; the four new ones even that out."""
    running = [a_pod(f"r{i}", cpu="100m", node="node-default-1") for i in range(2)]
    full = a_pod("full", cpu="3500m", node="node-default-1", metadata={"labels": {"app": "other"}})

    results = schedule(
        *running,
        full,
        *pods(4, spec=spread(labels.ZONE)),
        types=(ZONAL,),
        nodes=(a_node(),),
        claims=(a_running_claim(),),
    )

    assert zones_of(results) == {"b": 2, "c": 2}


def test_a_pod_that_no_zone_can_take_after_all_is_not_counted_on():
    """Only one type holds the large pod, and the pool wants two to choose from; no zone can take it."""
    zones = tuple("abcdefgh")
    types = tuple(
        an_instance_type(f"t.{cpu}", cpu=cpu, memory_gib=4 * cpu, price=0.05 * cpu, zones=zones) for cpu in (2, 4, 32)
    )
    variety = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 2}
    pool = a_pool(spec={"template": {"spec": {"requirements": [variety]}}})
    even = spread(labels.ZONE)

    results = schedule(a_pod("large", cpu="20", spec=even), *pods(8, spec=even), types=types, node_pools=(pool,))

    assert list(results.pod_errors) == ["default/large"]
    assert sorted(claim.offering[1] for claim in results.new_claims) == list(zones)


def test_few_pods_go_to_the_zone_in_which_their_node_is_cheapest():
    """One zone has more and larger types, cheaper by the core; the pod needs one node, the cheapest is in the other."""
    types = (
        an_instance_type("s.a", cpu=8, memory_gib=32, price=0.18, zones=("a",)),
        an_instance_type("l.b", cpu=16, memory_gib=64, price=0.22, zones=("b",)),
        an_instance_type("xl.b", cpu=64, memory_gib=256, price=3.0, zones=("b",)),
    )

    results = schedule(a_pod("p", cpu="3", spec=spread(labels.ZONE)), types=types)

    assert results.price == pytest.approx(0.18)


def test_a_zone_out_of_stock_does_not_stall_the_spread():
    """Zone c has nothing to offer and no nodes: it is no domain."""
    offerings = tuple(replace(o, available=o.zone != "c") for o in ZONAL.offerings)

    results = schedule(*pods(6, spec=spread(labels.ZONE)), types=(replace(ZONAL, offerings=offerings),))

    assert zones_of(results) == {"a": 3, "b": 3}


@pytest.mark.karpenter("provisioning/scheduling/topology", it="should respect minDomains constraints")
def test_too_few_domains_hold_the_spread_to_its_skew():
    """`minDomains` of four with three zones: one pod each, the others wait."""
    results = schedule(*pods(5, spec=spread(labels.ZONE, minDomains=4)), types=(ZONAL,))

    assert zones_of(results) == {"a": 1, "b": 1, "c": 1}
    assert {e.kind for e in results.pod_errors.values()} == {"unschedulable"}


@pytest.mark.karpenter("provisioning/scheduling/topology", it="should balance pods on the same hostname up to maxskew")
def test_hostname_spread_caps_the_pods_on_a_node():
    """At most two of five on a node makes three nodes."""
    results = schedule(*pods(5, cpu="100m", spec=spread(HOST, skew=2)))

    assert sorted(len(c.pods) for c in results.new_claims) == [1, 2, 2]


def test_pods_that_a_hostname_spread_only_counts_fill_its_nodes_later():
    """Order decides, as in Karpenter: the spread is not held against pods that do not have it."""
    results = schedule(*pods(2, cpu="100m", spec=spread(HOST)), *pods(3, "loose", cpu="100m"))

    spread_out = [sum(key.startswith("default/p") for key in claim.pods) for claim in results.new_claims]
    assert spread_out == [1, 1]


@pytest.mark.parametrize(("policy", "nodes"), [("Respect", 4), ("Ignore", 1), ("WhenFree", 1)])
def test_a_preferred_spread_binds_until_it_blocks_or_the_policy_ignores_it(policy, nodes):
    """Respect opens a node for each pod; Ignore does not know it; WhenFree knows what it would cost."""
    spec = spread(HOST, whenUnsatisfiable="ScheduleAnyway")

    results = schedule(*pods(4, cpu="100m", spec=spec), options=Options(preferences=PreferencePolicy(policy)))

    assert len(results.new_claims) == nodes


def test_a_preference_that_costs_nothing_is_kept():
    """The zone costs the same, and an equally cheap plan keeps to it."""
    demand = {
        "weight": 1,
        "preference": {"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": ["b"]}]},
    }
    spec = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [demand]}}}

    results = schedule(*pods(2, spec=spec), types=(ZONAL,), options=Options(preferences=PreferencePolicy.WHEN_FREE))

    assert {claim.offering[1] for claim in results.new_claims} == {"b"}


def test_a_free_preference_is_kept_although_that_of_other_pods_has_a_price():
    """One class prefers a zone of equal price, the other a node for each pod."""
    demand = {
        "weight": 1,
        "preference": {"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": ["b"]}]},
    }
    zonal = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [demand]}}}
    apart = spread(HOST, whenUnsatisfiable="ScheduleAnyway")

    results = schedule(
        *pods(2, cpu="100m", spec=zonal),
        *pods(2, "apart", cpu="100m", spec=apart),
        types=(ZONAL,),
        options=Options(preferences=PreferencePolicy.WHEN_FREE),
    )

    assert [claim.offering[1] for claim in results.new_claims] == ["b"]


# --- nodes that exist


@pytest.mark.karpenter(
    "provisioning/scheduling",
    it="should launch a second node if a pod won't fit on the existingNodes node",
)
def test_existing_nodes_are_filled_first():
    """Two of three pods fit; the third gets a new node."""
    results = schedule(
        *pods(3), a_pod("running", cpu="2", node="node-default-1"), nodes=(a_node(),), claims=(a_running_claim(),)
    )

    assert results.existing == {"node-default-1": ("default/p0", "default/p1")}
    assert [c.pods for c in results.new_claims] == [("default/p2",)]


@pytest.mark.karpenter(
    "provisioning/scheduling",
    it="should order initialized nodes for scheduling uninitialized nodes",
)
def test_initialized_nodes_come_before_those_on_their_way():
    """Then by name."""
    cluster = {"nodes": (a_node("b"),), "claims": (a_launched_claim("a"), a_running_claim("b"))}

    assert schedule(*pods(1), **cluster).existing == {"node-b": ("default/p0",)}


def opened_for(*names, zone="", **changes):
    """A claim on its way for these pods, in a zone."""
    asked = [{"key": labels.ZONE, "operator": "In", "values": [zone]}] if zone else []
    remembered = {labels.PLANNED_PODS: ",".join(f"default/{name}" for name in names)}
    return merge(
        {
            "metadata": {"annotations": remembered, "labels": {labels.ZONE: zone} if zone else {}},
            "spec": {"requirements": asked},
        },
        changes,
    )


@pytest.mark.karpenter(
    "provisioning/scheduling",
    it="should not launch a second node if there is an in-flight node that can support the pod",
)
def test_a_claim_in_flight_keeps_the_pods_it_was_opened_for():
    """Although its node may come to be in one of two zones, both of which suit them, nothing is launched twice."""
    wanted = {"key": labels.ZONE, "operator": "In", "values": ["a", "b"]}
    asked = {"requirements": [wanted], "resources": {"requests": {"cpu": "3", "memory": "4Gi", "pods": "3"}}}
    claim = a_claim(metadata={"annotations": {labels.PLANNED_PODS: "default/p,default/gone"}}, spec=asked)

    results = schedule(a_pod("p", spec=required([(labels.ZONE, "In", ("a", "b"))])), claims=(claim,), types=(ZONAL,))

    assert results.existing == {"default-1": ("default/p",)}
    assert results.new_claims == ()


def test_pods_of_an_in_flight_claim_leave_capacity_for_a_later_daemon():
    """Both fitted when it was opened; now the second needs another node."""
    claim = a_launched_claim(**opened_for("p0", "p1"))

    results = schedule(*pods(2, cpu="2"), claims=(claim,), daemon_sets=(a_daemon_set("agent", cpu="500m"),))

    assert results.existing == {"default-1": ("default/p0",)}
    assert [c.pods for c in results.new_claims] == [("default/p1",)]


def test_pods_stay_with_their_claim_though_another_zone_became_available():
    """Zone b was all there was; kube-scheduler will let them in there, so none of them is provisioned for twice."""
    web = pods(3, spec=spread(labels.ZONE))

    results = schedule(*web, claims=(a_launched_claim(**opened_for("p0", "p1", "p2", zone="b")),), types=(ZONAL,))

    assert results.existing == {"default-1": ("default/p0", "default/p1", "default/p2")}
    assert results.new_claims == ()


def test_a_pod_that_comes_later_is_spread_around_those_who_stay():
    """To zone a, which is empty, not to the claim in zone b, which has capacity."""
    web = pods(4, cpu="500m", spec=spread(labels.ZONE))

    results = schedule(*web, claims=(a_launched_claim(**opened_for("p0", "p1", "p2", zone="b")),), types=(ZONAL,))

    assert results.existing == {"default-1": ("default/p0", "default/p1", "default/p2")}
    assert [claim.offering[1] for claim in results.new_claims] == ["a"]


def test_pods_of_an_in_flight_claim_stay_only_where_their_spread_allows():
    """Nothing can be launched any more. Two run in zone a, so that of the four planned for zone b three may come."""
    running = [a_pod(f"r{i}", node="node-a", cpu="1900m") for i in range(2)]
    coming = a_launched_claim("b", **opened_for("p0", "p1", "p2", "p3", zone="b"))

    results = schedule(
        *running,
        *pods(4, cpu="500m", spec=spread(labels.ZONE)),
        nodes=(a_node("a"),),
        claims=(a_running_claim("a"), coming),
        node_classes=(a_node_class(ready=False),),
    )

    assert len(results.existing["b"]) == 3
    assert [error.kind for error in results.pod_errors.values()] == ["no-nodepool"]


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
def test_a_pod_leaves_an_in_flight_claim_if_its_other_pods_changed(kind):
    """It was planned for zone b; whom it must be with is in zone a only, or whom it must avoid came to b."""
    term = {"topologyKey": labels.ZONE, "labelSelector": {"matchLabels": {"app": "db"}}}
    moody = a_pod("p", spec={"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    where = "a" if kind == "podAffinity" else "b"
    db = a_pod("db", node="node-db", cpu="3800m", metadata={"labels": {"app": "db"}})

    results = schedule(
        moody,
        db,
        nodes=(a_node("db", metadata={"labels": {labels.ZONE: where}}),),
        claims=(a_running_claim("db"), a_launched_claim("late", **opened_for("p", zone="b"))),
        types=(ZONAL,),
    )

    assert results.existing == {}
    assert [claim.offering[1] for claim in results.new_claims] == ["a"]


def test_pods_kept_on_an_unlaunched_claim_count_for_their_spread():
    """Its node will suit them whatever becomes of it. A host port lets one of two stay; zone b may have no second pod."""
    listening = {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}
    processors = required([(labels.ARCH, "In", ("amd64", "arm64"))])
    wanted = [{"key": labels.ZONE, "operator": "In", "values": ["b"]}]
    wanted += [{"key": labels.ARCH, "operator": "In", "values": ["amd64", "arm64"]}]
    claim = a_claim(**merge(opened_for("p0", "p1"), {"spec": {"requirements": wanted}}))

    results = schedule(
        *pods(2, spec={**spread(labels.ZONE, minDomains=2), **processors, **listening}),
        claims=(claim,),
        types=(ZONAL_B,),
    )

    assert results.existing == {"default-1": ("default/p0",)}
    assert list(results.pod_errors) == ["default/p1"]


def test_a_pod_is_kept_by_one_claim_if_two_remember_it():
    """The first by name that has the capacity."""
    claims = [a_launched_claim(name, **opened_for("p0", "p1")) for name in ("first", "second")]

    results = schedule(*pods(2, cpu="3"), claims=tuple(claims))

    assert results.existing == {"first": ("default/p0",), "second": ("default/p1",)}


def test_a_pod_of_an_in_flight_claim_is_not_counted_where_it_still_runs():
    """It is on its way from a node that goes, in zone a, to zone b: the other three are spread as if it were there."""
    web = {"metadata": {"labels": {"app": "web"}}, "spec": spread(labels.ZONE)}
    going = a_running_claim("going", deleting=NOW)
    coming = a_launched_claim(
        "coming", metadata={"labels": {labels.ZONE: "b"}, "annotations": {labels.PLANNED_PODS: "default/moving"}}
    )
    results = schedule(
        a_pod("moving", node="node-going", **web),
        *pods(3, **web),
        nodes=(a_node("going", deleting=NOW),),
        claims=(coming, going),
        types=(ZONAL,),
    )

    assert results.pod_errors == {}
    assert len(results.existing["coming"]) == 2


def test_pod_that_must_share_a_node_is_scheduled_beside_reserved_placements():
    """The claim of the other pod is too small for it, and nothing can be launched."""
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": labels.HOSTNAME}
    together = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    small = {"status": {"allocatable": {"cpu": "500m", "memory": "4Gi", "pods": "10"}}}

    results = schedule(
        a_pod("reserved", cpu="100m"),
        a_pod("together", cpu="1", spec=together),
        claims=(a_launched_claim("small", **opened_for("reserved", **small)), a_launched_claim("wide")),
        types=(),
    )

    assert results.pod_errors == {}
    assert "default/together" in results.existing["wide"]


def test_pods_nominated_to_a_node_hold_their_place():
    """The scheduler does not plan a nominated pod again, and keeps its capacity."""
    nominated = a_pod("nominated", cpu="3", status={"nominatedNodeName": "node-default-1"})

    results = schedule(nominated, *pods(1, cpu="2"), nodes=(a_node(),), claims=(a_running_claim(),))

    assert results.existing == {}
    assert len(results.new_claims) == 1


@pytest.mark.karpenter(
    "provisioning/scheduling",
    it="should re-schedule pods from a deleting node when pods are active",
)
def test_pods_of_a_leaving_node_are_given_new_places():
    """The node is being deleted: its pod needs another one."""
    results = schedule(
        a_pod("moving", node="node-default-1"), nodes=(a_node(deleting=NOW),), claims=(a_running_claim(deleting=NOW),)
    )

    assert [c.pods for c in results.new_claims] == [("default/moving",)]


def test_nodes_can_be_thought_away():
    """What would become of the pods of node a without it? They fit node b."""
    snapshot = a_snapshot(
        pods=(a_pod("p", node="node-a"),),
        nodes=(a_node("a"), a_node("b")),
        claims=(a_running_claim("a"), a_running_claim("b")),
    )

    results = solve(snapshot, Catalogue({"default": TYPES}), pods=snapshot.pods, without_nodes=frozenset({"node-a"}))

    assert results.existing == {"node-b": ("default/p",)}


# --- pods left alone


def test_a_pod_with_an_unsupported_rule_fails_and_the_others_are_placed():
    """Its error is of kind unsupported and names the rule."""
    results = schedule(a_pod("odd", spec={"resourceClaims": [{"name": "gpu"}]}), *pods(1))

    assert results.pod_errors["default/odd"].kind == "unsupported"
    assert "resource claim" in results.pod_errors["default/odd"].message.lower()
    assert [c.pods for c in results.new_claims] == [("default/p0",)]


def test_a_pod_that_a_running_pods_anti_affinity_selects_goes_elsewhere():
    """The rule is the other pod's, the effect is on this one."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "web"}}}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    loner = a_pod("loner", node="node-default-1", spec={"affinity": anti})

    results = schedule(
        loner,
        *pods(1),
        a_pod("other", metadata={"labels": {"app": "db"}}),
        nodes=(a_node(),),
        claims=(a_running_claim(),),
    )

    assert [c.pods for c in results.new_claims] == [("default/p0",)]
    assert results.existing == {"node-default-1": ("default/other",)}


@pytest.mark.parametrize(
    ("pod", "kind", "word"),
    [
        (a_pod("p", cpu="lots"), "invalid", "lots"),
        (a_pod("p", cpu="99"), "unschedulable", "99 vCPU"),
        (a_pod("p", spec={"nodeSelector": {"team": "red"}}), "unschedulable", "team"),
        (
            a_pod("p", spec={"nodeSelector": {labels.ZONE: "mars"}}),
            "unschedulable",
            "no instance type met all requirements (none of its 3 has",
        ),
        (a_pod("p", spec=required([("team", "In", ())])), "invalid", "at least one value"),
    ],
)
def test_a_pod_without_a_place_says_why(pod, kind, word):
    """The error says what to change; the other pod is placed."""
    results = schedule(pod, a_pod("fine"))

    assert results.pod_errors["default/p"].kind == kind
    assert word in results.pod_errors["default/p"].message
    assert [c.pods for c in results.new_claims] == [("default/fine",)]


def test_terminating_and_bound_pods_are_not_asked_about():
    """Nor those that have ended."""
    ignored = (
        a_pod("bound", node="somewhere"),
        a_pod("ended", status={"phase": "Succeeded"}),
        a_pod("going", metadata={"deletionTimestamp": stamp(NOW)}),
    )

    results = schedule(*ignored)

    assert results.new_claims == ()
    assert results.pod_errors == {}


@pytest.mark.karpenter("provisioning/scheduling", it="should launch a second node if an in-flight node is terminating")
def test_a_node_that_left_the_cloud_without_its_claim_is_no_place():
    """A claim that is being deleted takes no pod, launched or not."""
    going = a_claim("default-9", provider_id=provider_id_of("default-9"), deleting=NOW)

    assert len(schedule(*pods(1), claims=(going,)).new_claims) == 1
