"""Domains for pods: spread, affinity and anti-affinity over any label, with the relaxation of preferences."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.domain_assignment import assign_domains
from journeyman.core.scheduling.node_filling import NodeFilling
from journeyman.core.scheduling.problem import ClusterInputs, PartialSolution, SchedulingProblem, prepare_task
from journeyman.core.scheduling.results import Options
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman.core.scheduling.verify import verify
from tests.helpers.builders import a_node, a_pod, a_pool, a_running_claim, a_snapshot, an_instance_type

ZONES = ("a", "b", "c")
ZONAL = an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=ZONES)
SPOTTY = an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b"), spot=0.1)
ZONAL_A = an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a",))
RACK = "example.com/rack"


@dataclass(frozen=True)
class Assigned:
    """What became of the pods, by the `app` label of theirs."""

    problem: SchedulingProblem
    solution: PartialSolution
    batches: tuple
    left: dict

    def app(self, row):
        """The app of a row."""
        return self.problem.rows[row].pods[0].metadata.labels["app"]

    def sent(self, app="web"):
        """New nodes by the domains they must be in, and how many pods go there."""
        found = Counter()
        for batch in self.batches:
            if self.app(batch.row) == app:
                found["/".join(value for _, value in batch.pins)] += batch.count
        return dict(found)

    def kept(self, app="web"):
        """Existing nodes with how many pods go there."""
        nodes = self.problem.existing.nodes
        found = Counter()
        for node, entries in self.solution.on_existing.items():
            found[nodes[node].name] += sum(n for row, n in entries if self.app(row) == app)
        return {name: n for name, n in found.items() if n}

    def reasons(self, app="web"):
        """How many pods no domain may take."""
        return sum(n for c, n in self.left.items() if self.app(self.problem.levels[c][0]) == app)

    def why(self):
        """The words for those."""
        return " ".join(self.solution.reasons.values())


def assign(*pods, types=(ZONAL,), ceilings=None, **cluster):
    """Domains for these pods in a cluster."""
    snapshot = a_snapshot(pods=tuple(sorted(pods, key=lambda p: p.key)), **cluster)
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    asked = prepare_task(ClusterInputs.of(snapshot, catalogue, Options()), pods_to_schedule(snapshot), frozenset())
    solution, problem = asked.initial_solution(), asked.problem
    if ceilings is not None:
        solution = replace(solution, ceilings=ceilings(problem))
    filling = NodeFilling(
        problem.existing, problem.rows, problem.requests, problem.host_constraints, solution.on_existing
    )
    assigned = assign_domains(problem, solution, filling)
    solution = replace(solution, on_existing=filling.taken, reasons=assigned.reasons)
    return Assigned(problem, solution, assigned.batches, assigned.left)


def pods(count, app="web", prefix="", **kwargs):
    """That many equal pods of an app."""
    return [a_pod(f"{prefix or app}{i}", metadata={"labels": {"app": app}}, **kwargs) for i in range(count)]


def spread(key=labels.ZONE, *, skew=1, app="web", **more):
    """A spread constraint over the pods of an app."""
    selector = {"matchLabels": {"app": app}}
    base = {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return {"topologySpreadConstraints": [{**base, **more}]}


def near(app="web", key=labels.ZONE):
    """A spec that wants to be where pods of an app are."""
    return {"affinity": {"podAffinity": {_REQUIRED: [_term(app, key)]}}}


def apart(app="web", key=labels.ZONE):
    """A spec that wants to be where no pod of an app is."""
    return {"affinity": {"podAntiAffinity": {_REQUIRED: [_term(app, key)]}}}


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _term(app, key):
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}


def only(*zones):
    """Part of a spec: node affinity for some zones."""
    expression = {"key": labels.ZONE, "operator": "In", "values": list(zones)}
    return {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}


def a_full_cluster(*zones, free=0):
    """Nodes and claims, one per zone, each with `free` of their four CPUs to spare, and the pods that fill them."""
    names = [f"n{index}" for index in range(len(zones))]
    nodes = tuple(a_node(n, metadata={"labels": {labels.ZONE: z}}) for n, z in zip(names, zones, strict=True))
    filler = [
        a_pod(f"filler-{n}", cpu=str(4 - free), node=f"node-{n}", metadata={"labels": {"app": "filler"}})
        for n in names
        if free < 4
    ]
    return filler, {"nodes": nodes, "claims": tuple(a_running_claim(n) for n in names)}


# -- pods that no rule touches ----------------------------------------------------------------------------------------


def test_a_spread_that_counts_nobody_sends_nobody_anywhere():
    """Whatever node such pods go to has a zone. A label that nodes may lack is asked for all the same."""
    idle = assign(*pods(5, spec=spread(app="unmatched")))
    rack = assign(*pods(5, spec=spread("example.com/rack", app="unmatched")))

    assert idle.sent() == {"": 5}
    assert (rack.sent(), rack.reasons()) == ({}, 5)


def test_pods_without_rules_may_go_anywhere():
    """They get one unit, and packing decides."""
    assigned = assign(*pods(5))

    assert assigned.sent() == {"": 5}
    assert not any(batch.is_quota for batch in assigned.batches)


def test_what_nothing_can_take_is_stuck_without_a_word_about_domains():
    """Its reasons are the NodePools'."""
    assigned = assign(*pods(2, cpu="64"))

    assert assigned.reasons() == 2
    assert assigned.why() == ""


# -- spread -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "expected"), [(1, [1]), (7, [3, 2, 2]), (10_000, [3334, 3333, 3333])])
def test_spread_fills_the_emptiest_domain_first(count, expected):
    """However many there are."""
    assert sorted(assign(*pods(count, spec=spread())).sent().values(), reverse=True) == expected


def test_pods_that_run_count():
    """Two pods in zone a leave the next two for b and c."""
    filler, cluster = a_full_cluster("a")
    running = pods(2, prefix="old", cpu="0", node="node-n0")

    assert assign(*filler, *running, *pods(2, spec=spread()), **cluster).sent() == {"b": 1, "c": 1}


def test_a_zone_out_of_stock_is_no_domain():
    """No pod waits for it, and its count of zero keeps no pod out of other zones."""
    sold_out = replace(ZONAL, offerings=tuple(replace(o, available=o.zone != "c") for o in ZONAL.offerings))

    assert assign(*pods(6, spec=spread()), types=(sold_out,)).sent() == {"a": 3, "b": 3}


def test_too_few_domains_count_as_empty_ones():
    """minDomains 4 in three zones: each zone may have maxSkew pods."""
    assigned = assign(*pods(8, spec=spread(skew=2, minDomains=4)))

    assert assigned.sent() == {"a": 2, "b": 2, "c": 2}
    assert assigned.reasons() == 2
    assert "exceeds its maxSkew" in assigned.why()


@pytest.mark.parametrize(("policy", "expected"), [("Honor", {"a": 1, "b": 1}), ("Ignore", {"b": 2})])
@pytest.mark.karpenter(
    "provisioning/scheduling/topology",
    it="should balance pods across a label (NodeAffinityPolicy=honor)",
)
@pytest.mark.karpenter(
    "provisioning/scheduling/topology",
    it="should balance pods across a label (NodeAffinityPolicy=ignore)",
)
def test_the_node_affinity_policy_tells_whose_pods_count(policy, expected):
    """Pods on a node that the spread's own pods may not use count only if it ignores that."""
    filler, cluster = a_full_cluster("a")
    running = pods(2, prefix="old", cpu="0", node="node-n0")
    disk = {"nodeSelector": {"disk": "fast"}}
    pools = (a_pool(spec={"template": {"metadata": {"labels": {"disk": "fast"}}}}),)
    types = (an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b")),)
    new = pods(2, spec={**spread(nodeAffinityPolicy=policy), **disk})

    assert assign(*filler, *running, *new, types=types, node_pools=pools, **cluster).sent() == expected


@pytest.mark.parametrize(("policy", "expected"), [("Honor", {"a": 1, "b": 1}), ("Ignore", {"b": 2})])
@pytest.mark.karpenter(
    "provisioning/scheduling/topology",
    it="should balance pods across a label (NodeTaintsPolicy=honor)",
)
@pytest.mark.karpenter(
    "provisioning/scheduling/topology",
    it="should balance pods across a label (NodeTaintsPolicy=ignore)",
)
def test_the_node_taints_policy_tells_whose_pods_count(policy, expected):
    """Pods on a tainted node count unless the spread honours taints."""
    taint = {"key": "mine", "effect": "NoSchedule"}
    node = a_node("n0", spec={"taints": [taint]})
    running = pods(2, prefix="old", cpu="0", node="node-n0")
    types = (an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b")),)
    new = pods(2, spec=spread(nodeTaintsPolicy=policy))

    assigned = assign(*running, *new, types=types, nodes=(node,), claims=(a_running_claim("n0"),))

    assert assigned.sent() == expected


def test_capacity_types_are_domains():
    """Half on spot, half on demand."""
    assigned = assign(*pods(6, spec=spread(labels.CAPACITY_TYPE)), types=(SPOTTY,))

    assert assigned.sent() == {"on-demand": 3, "spot": 3}


def test_a_nodepool_defines_domains_of_a_label_of_its_own():
    """A requirement In [r1, r2] leaves the rack open; the pods' spread decides."""
    racks = [{"key": RACK, "operator": "In", "values": ["r1", "r2"]}]
    pools = (a_pool(spec={"template": {"spec": {"requirements": racks}}}),)

    assert assign(*pods(4, spec=spread(RACK)), node_pools=pools).sent() == {"r1": 2, "r2": 2}


@pytest.mark.karpenter("provisioning/scheduling/topology", it="should spread pods while respecting both constraints")
def test_two_spreads_over_different_labels_hold_at_once():
    """Zones and capacity types, each level."""
    both = [c for key in (labels.ZONE, labels.CAPACITY_TYPE) for c in spread(key)["topologySpreadConstraints"]]
    assigned = assign(*pods(100, spec={"topologySpreadConstraints": both}), types=(SPOTTY,))

    found = {tuple(cell.split("/")): n for cell, n in assigned.sent().items()}
    assert sum(found.values()) == 100
    for position in (0, 1):
        totals = Counter()
        for cell, n in found.items():
            totals[cell[position]] += n
        assert set(totals.values()) == {50}


def test_ties_go_to_the_cheaper_zone():
    """Karpenter leaves them to chance."""
    dear = an_instance_type("x.large", cpu=8, memory_gib=32, price=0.5, zones=("a",))
    cheap = an_instance_type("y.large", cpu=8, memory_gib=32, price=0.4, zones=("b",))

    assert assign(*pods(3, spec=spread()), types=(dear, cheap)).sent() == {"a": 1, "b": 2}


def test_room_on_existing_nodes_comes_first_as_far_as_the_skew_allows():
    """Two fit on a node in zone a; a third there would be one too many anyway."""
    filler, cluster = a_full_cluster("a", free=3)
    assigned = assign(*filler, *pods(6, spec=spread()), **cluster)

    assert assigned.kept() == {"node-n0": 2}
    assert assigned.sent() == {"b": 2, "c": 2}


def test_pods_that_are_merely_counted_are_kept_level_but_never_refused():
    """They have no spread themselves; the pods that have one stay level around them."""
    loose = pods(9, prefix="loose", cpu="500m")
    bound = pods(3, prefix="bound", spec=spread())

    assert assign(*loose, *bound).sent() == {"a": 4, "b": 4, "c": 4}
    tied = pods(5, prefix="tied", cpu="500m", spec={"nodeSelector": {labels.ZONE: "a"}})
    assert assign(*tied, *bound).sent() == {"a": 5, "b": 2, "c": 1}


def test_pods_that_are_merely_counted_do_not_pay_for_it():
    """A zone that costs more is not worth being level."""
    dear = an_instance_type("x.large", cpu=8, memory_gib=32, price=0.5, zones=("a",))
    cheap = an_instance_type("y.large", cpu=8, memory_gib=32, price=0.4, zones=("b",))
    bound = pods(1, prefix="bound", cpu="2", spec=spread())

    assert assign(*pods(4, prefix="loose"), *bound, types=(dear, cheap)).sent() == {"a": 1, "b": 4}


def test_classes_with_less_choice_go_first():
    """Pods that must be in zone a are placed before the others level the rest."""
    tied = pods(4, prefix="tied", cpu="500m", spec={**spread(), "nodeSelector": {labels.ZONE: "a"}})

    assert assign(*pods(8, prefix="free", spec=spread()), *tied).sent() == {"a": 4, "b": 4, "c": 4}


# -- affinity ---------------------------------------------------------------------------------------------------------


def test_affinity_to_its_own_kind_chooses_one_domain_by_price():
    """All classes that must follow have their say."""
    types = (
        an_instance_type("x.large", cpu=8, memory_gib=32, price=0.5, zones=("a",)),
        an_instance_type("y.large", cpu=8, memory_gib=32, price=0.4, zones=("b",)),
    )

    assert assign(*pods(3, spec=near()), *pods(2, prefix="big", cpu="4", spec=near()), types=types).sent() == {"b": 5}


def test_the_first_domain_suits_those_with_less_choice():
    """One class can only be in zone c, so all go there."""
    tied = {"affinity": {**near()["affinity"], **only("c")}}

    assert assign(*pods(3, cpu="2", spec=near()), *pods(1, prefix="tied", spec=tied)).sent() == {"c": 4}


def test_affinity_goes_where_the_pods_run():
    """The domain is taken, be it dearer."""
    filler, cluster = a_full_cluster("b")
    running = pods(1, app="db", cpu="0", node="node-n0")

    assert assign(*filler, *running, *pods(3, spec=near("db")), **cluster).sent() == {"b": 3}


def test_those_to_be_followed_are_where_the_followers_can_be():
    """The target is free to go anywhere, its followers are not; the order of the queue does not matter."""
    followers = pods(2, cpu="4", spec={"affinity": {**near("db")["affinity"], **only("c")}})

    assigned = assign(*followers, *pods(2, app="db"))

    assert (assigned.sent(), assigned.sent("db")) == ({"c": 2}, {"c": 2})


@pytest.mark.karpenter("provisioning/scheduling/topology", it="should handle multiple dependent affinities")
def test_followers_of_followers_find_their_way():
    """web follows db, db follows disk."""
    assigned = assign(*pods(1, cpu="4", spec=near("db")), *pods(1, "db", cpu="2", spec=near("disk")), *pods(1, "disk"))

    assert assigned.sent() == assigned.sent("db") == assigned.sent("disk")
    assert not assigned.left


def test_affinity_to_nobody_is_stuck():
    """There is no such pod, and it does not match its own selector."""
    assigned = assign(*pods(2, spec=near("db")))

    assert assigned.reasons() == 2
    assert "no domain of topology.kubernetes.io/zone that it can reach holds any of the pods" in assigned.why()


def test_affinity_out_of_reach_may_be_founded_anew():
    """Its kind runs in zone a, where it must not go: it is the first of those that may be elsewhere."""
    filler, cluster = a_full_cluster("a")
    running = pods(1, prefix="old", cpu="0", node="node-n0")
    spec = {"affinity": {**near()["affinity"], **only("b", "c")}}

    assert assign(*filler, *running, *pods(2, spec=spec), **cluster).sent() == {"b": 2}


# -- anti-affinity ----------------------------------------------------------------------------------------------------


def test_anti_affinity_takes_every_domain_once():
    """All of them in one pass, and no more."""
    assigned = assign(*pods(5, spec=apart()))

    assert assigned.sent() == {"a": 1, "b": 1, "c": 1}
    assert assigned.reasons() == 2
    assert "every domain of topology.kubernetes.io/zone that it can reach is taken (a, b, c)" in assigned.why()


def test_anti_affinity_holds_both_ways():
    """Pods that it selects are not with it, in either order of the queue."""
    for mine, theirs in (("4", "1"), ("1", "4")):
        assigned = assign(*pods(3, cpu=mine, spec=apart("db")), *pods(6, "db", cpu=theirs))

        assert not assigned.left
        assert not assigned.sent().keys() & assigned.sent("db").keys()


def test_pods_that_run_keep_others_away():
    """Their rule is not ours, its effect is."""
    filler, cluster = a_full_cluster("a", free=3)
    loner = a_pod("loner", cpu="0", node="node-n0", metadata={"labels": {"app": "loner"}}, spec=apart("web"))

    assigned = assign(*filler, loner, *pods(2), **cluster)

    assert assigned.kept() == {}
    assert "a" not in assigned.sent()
    assert sum(assigned.sent().values()) == 2


def test_anti_affinity_keeps_away_from_pods_that_run():
    """A running pod without rules of its own occupies zone a."""
    filler, cluster = a_full_cluster("a")
    running = pods(1, app="db", cpu="0", node="node-n0")

    assert set(assign(*filler, *running, *pods(3, spec=apart("db")), **cluster).sent()) <= {"b", "c"}


# -- preferences, ceilings, what is there -----------------------------------------------------------------------------


def test_a_preferred_spread_is_kept_as_far_as_it_goes():
    """Zone b has only nodes too small for them: the first pod keeps the preference, the others give it up."""
    types = (ZONAL_A, an_instance_type("y.small", cpu=2, memory_gib=8, price=0.1, zones=("b",)))

    assigned = assign(*pods(3, cpu="6", spec=spread(whenUnsatisfiable="ScheduleAnyway")), types=types)

    assert assigned.sent() == {"a": 1, "": 2}
    assert [batch.row for batch in assigned.batches] == [1, 0]


def test_a_preference_binds_nobody_else():
    """Pods that prefer to be apart take a zone each and then double up; those they shun go where they like."""
    shun = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_weighted("web")]}}

    assigned = assign(*pods(4, spec={"affinity": shun}))

    assert assigned.sent() == {"a": 1, "b": 1, "c": 1, "": 1}
    assert not assigned.left


def _weighted(app):
    return {"weight": 1, "podAffinityTerm": _term(app, labels.ZONE)}


def test_a_ceiling_closes_a_domain():
    """Learned from an attempt in which limits cut the quota short."""

    def ceilings(problem):
        return {(0, ((labels.ZONE, "a"),)): 1, (0, ((labels.ZONE, "b"),)): 0}

    assert assign(*pods(9, spec=spread(skew=9)), ceilings=ceilings).sent() == {"a": 1, "c": 8}


def test_the_order_of_pods_does_not_matter():
    """The API server's order is an accident."""
    some = [
        *pods(5, spec=spread()),
        *pods(3, "db", cpu="2", spec=apart("web")),
        *pods(4, "cache", cpu="500m", spec=near("web")),
        *pods(4, "loose", cpu="250m"),
    ]

    first, second = assign(*some), assign(*reversed(some))

    assert [(u.count, u.pins) for u in first.batches] == [(u.count, u.pins) for u in second.batches]
    assert first.left == second.left


# -- price and capacity of domains ------------------------------------------------------------------------------------


def test_the_cheaper_zone_is_the_one_with_the_lower_price_per_cpu():
    """The larger type costs more, a pod on it less."""
    small = an_instance_type("x.small", cpu=2, memory_gib=8, price=0.2, zones=("a",))
    large = an_instance_type("y.large", cpu=8, memory_gib=32, price=0.4, zones=("b",))

    assert assign(*pods(3, spec=spread()), types=(small, large)).sent() == {"a": 1, "b": 2}


def test_a_pod_that_fits_only_a_type_that_is_largest_in_nothing_is_assigned():
    """Others have more CPU or more memory; it fits the one between them to the byte."""
    types = (
        an_instance_type("c.large", cpu=8, memory_gib=8, price=0.3),
        an_instance_type("m.medium", cpu=4, memory_gib=16, price=0.3),
        an_instance_type("r.small", cpu=2, memory_gib=32, price=0.3),
    )

    assert assign(*pods(1, cpu="3920m", memory="15872Mi"), types=types).sent() == {"": 1}
    assert assign(*pods(1, cpu="3921m", memory="15872Mi"), types=types).reasons() == 1


def test_a_node_without_free_cpu_takes_pods_that_request_none():
    """Nothing of it is overdrawn."""
    filler, cluster = a_full_cluster("a")

    assert assign(*filler, *pods(1, cpu="0", spec=near("filler")), **cluster).kept() == {"node-n0": 1}


def test_affinity_to_its_own_kind_uses_one_of_two_domains():
    """A node in zone a has capacity for one of the pods, new nodes are cheaper in zone b."""
    types = (
        an_instance_type("x.large", cpu=8, memory_gib=32, price=0.5, zones=("a",)),
        an_instance_type("y.large", cpu=8, memory_gib=32, price=0.4, zones=("b",)),
    )
    filler, cluster = a_full_cluster("a", free=1)
    assigned = assign(*filler, *pods(3, spec=near()), types=types, **cluster)

    assert not assigned.left
    assert {"a" if assigned.kept() else "b"} | assigned.sent().keys() in ({"a"}, {"b"})


def test_the_first_domain_of_an_affinity_is_chosen_by_the_price_of_whole_nodes():
    """Zone a has large nodes alone: cheap by the CPU, dear for one pod."""
    types = (
        an_instance_type("x.huge", cpu=64, memory_gib=256, price=2.0, zones=("a",)),
        an_instance_type("y.small", cpu=2, memory_gib=8, price=0.1, zones=("b",)),
    )

    assert assign(*pods(1, spec=near()), types=types).sent() == {"b": 1}


def test_a_constraint_that_leaves_a_domain_open_is_not_the_reason():
    """The spread leaves zone a alone, the anti-affinity zone b alone: only both together exclude the pod."""
    types = (an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b")),)
    filler, cluster = a_full_cluster("a", "b")
    running = [*pods(1, "db", cpu="0", node="node-n0"), *pods(1, prefix="old", cpu="0", node="node-n1")]
    assigned = assign(*filler, *running, *pods(1, spec={**spread(), **apart("db")}), types=types, **cluster)

    assert assigned.reasons() == 1
    assert assigned.why() == "unsatisfiable rules between pods: no domain that it can reach keeps all of them"


def test_the_first_domain_of_an_affinity_is_that_of_the_nodepool_with_more_weight():
    """Its zone is the dearer one."""
    types = (
        an_instance_type("x.large", cpu=8, memory_gib=32, price=0.4, zones=("a",)),
        an_instance_type("y.large", cpu=8, memory_gib=32, price=0.5, zones=("b",)),
    )
    in_zone = {z: {"spec": {"requirements": [{"key": labels.ZONE, "operator": "In", "values": [z]}]}} for z in "ab"}
    pools = (a_pool("heavy", spec={"weight": 10, "template": in_zone["b"]}), a_pool(spec={"template": in_zone["a"]}))

    assert assign(*pods(3, spec=near()), types=types, node_pools=pools).sent() == {"b": 3}


def test_first_zone_of_an_affinity_counts_only_pods_that_need_new_nodes():
    """Zone a is dearer, but a node there takes three of the four pods; without the node all go to zone b."""
    near = {"topologyKey": labels.ZONE, "labelSelector": {"matchLabels": {"app": "web"}}}
    spec = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}}
    web = [a_pod(f"w{n}", cpu="1", spec=spec) for n in range(4)]
    types = (
        an_instance_type("a.large", cpu=8, memory_gib=32, price=0.6, zones=("a",)),
        an_instance_type("b.large", cpu=8, memory_gib=32, price=0.4, zones=("b",)),
    )
    existing = {"nodes": (a_node("n"),), "claims": (a_running_claim("n"),)}
    running = a_pod("r", cpu="500m", node="node-n", metadata={"labels": {"app": "other"}})

    assert assign(*web, types=types).sent() == {"b": 4}
    beside = assign(*web, running, types=types, **existing)
    assert (beside.kept(), beside.sent()) == ({"node-n": 3}, {"a": 1})


def test_first_zone_of_an_affinity_is_rated_by_its_cheapest_cell():
    """Zone a has dear on-demand and cheap Spot nodes, zone b on-demand nodes in between."""
    near = {"topologyKey": labels.ZONE, "labelSelector": {"matchLabels": {"app": "web"}}}
    loose = {"maxSkew": 9, "topologyKey": labels.CAPACITY_TYPE, "whenUnsatisfiable": "DoNotSchedule"}
    spec = {
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}},
        "topologySpreadConstraints": [{**loose, "labelSelector": {"matchLabels": {"app": "web"}}}],
    }
    types = (
        an_instance_type("a.large", cpu=8, memory_gib=32, price=0.9, zones=("a",), spot=0.1),
        an_instance_type("b.large", cpu=8, memory_gib=32, price=0.15, zones=("b",)),
    )

    sent = assign(*(a_pod(f"w{n}", cpu="1", spec=spec) for n in range(2)), types=types).sent()

    assert {where.split("/")[-1] for where in sent} == {"a"}


def test_node_whose_zone_is_open_keeps_repelled_pods_out_of_all_its_zones():
    """Two pods share a large node in zone a or b; the pod that stays away from them gets zone c, or waits without one."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"

    def term(key):
        return {required: [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": "db"}}}]}

    def member(name, app, cpu, rules):
        return a_pod(name, cpu=cpu, spec={"affinity": rules}, metadata={"labels": {"app": app}})

    pods = (
        *(member(f"db-{n}", "db", "3", {"podAffinity": term(labels.HOSTNAME)}) for n in range(2)),
        member("web", "web", "1", {"podAntiAffinity": term(labels.ZONE)}),
    )
    large = an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b"))

    def zone_of_web(zones):
        types = (large, an_instance_type("z.small", cpu=2, memory_gib=8, price=0.1, zones=zones))
        snapshot, catalogue = a_snapshot(pods=pods), Catalogue({"default": types})
        results = solve(snapshot, catalogue, options=Options(compare_up_to=0))
        assert verify(snapshot, catalogue, results, pods=pods) == ()
        return [claim.offering[1] for claim in results.new_claims if claim.pods == ("default/web",)]

    assert zone_of_web(ZONES) == ["c"]
    assert zone_of_web(("a", "b")) == []
