"""The fleet plan: which nodes stay, which moves lead to the cheaper fleet, and which of them may start."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.disruption.fleet_moves import MoveCost, carried_out
from journeyman.core.disruption.fleet_planning import next_moves, plan_fleet
from journeyman.core.disruption.simulation import Simulation
from tests.helpers import builders
from tests.helpers.disrupting import candidates_of
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod, a_pool, price
from tests.helpers.small_clusters import ZONE, spread

NONE = frozenset()


THREE = [a_member(f"n{i}", size="l", cpus=["600m"]) for i in range(3)]


def busy(snapshot):
    """The nodes with pods that may be disrupted, by NodeClaim name."""
    return {name: each for name, each in candidates_of(snapshot).items() if not each.is_empty}


def planned(snapshot, *, allowed=100, within_consolidate_after=NONE, **kwargs):
    """The plan; each of its moves that comes after no other passes verification by itself."""
    pools = [p.metadata.name for p in snapshot.node_pools]
    catalogue = a_catalogue(*pools)
    simulation = Simulation(snapshot, catalogue, within_consolidate_after=within_consolidate_after)
    budgets = dict.fromkeys(pools, allowed)
    plan = plan_fleet(simulation, busy(snapshot).values(), budgets, **kwargs)
    for move in plan.moves:
        assert move.saving > 0
        assert move.after or simulation.verify(move.command) == ()
    return plan


def moves_of(plan):
    """The NodeClaims and the types of the replacements of each move."""
    return [
        (tuple(c.nodeclaim for c in m.candidates), tuple(r.offering.instance_type for r in m.replacements))
        for m in plan.moves
    ]


def test_nodes_that_share_a_new_node_are_one_move():
    """Three nodes with a pod each are worth one small node; every pod moves once."""
    plan = planned(a_fleet(*THREE))
    assert moves_of(plan) == [(("n0", "n1", "n2"), ("s",))]
    assert (plan.evictions, plan.price_after) == (3, pytest.approx(price("s")))
    assert plan.price_before == pytest.approx(3 * price("l"))
    assert plan.lower_bound <= plan.price_after


def test_half_empty_nodes_of_the_cheapest_kind_are_emptied_into_each_other():
    """Four half-full nodes: replacing all saves as much as deleting two, but evicts twice as many pods."""
    plan = planned(a_fleet(*(a_member(f"n{i}", cpus=["1", "1"]) for i in range(4))))
    assert [len(c) for c, _ in moves_of(plan)] == [1, 1]
    assert all(not replacements for _, replacements in moves_of(plan))
    assert plan.evictions == 4
    assert plan.price_after == pytest.approx(2 * price("m"))


@pytest.mark.parametrize("annotations", [{}, {labels.BUFFER_POD: "true"}])
def test_node_stays_whose_free_capacity_is_for_a_pod_without_a_node(annotations):
    """Without that pod, two of the three nodes would be deleted; a CapacityBuffer's pod would then need a new node."""
    waits = a_pod("waits", cpu="3", metadata={"annotations": annotations})
    plan = planned(a_fleet(*(a_member(f"n{i}", cpus=["1"]) for i in range(3)), pending=(waits,)))
    assert moves_of(plan) == [(("n2",), ())]
    assert "its free capacity is for pod default/waits" in {node.why for node in plan.staying}


def test_node_stays_rather_than_to_be_replaced_by_its_like():
    """All pods fit on an l, which one of the nodes is."""
    roomy = a_member("roomy", size="l", cpus=["200m"])
    other = a_member("other", size="xl", cpus=["1500m", "1500m", "200m", "200m", "200m", "900m", "3"])
    plan = planned(a_fleet(roomy, other))
    assert moves_of(plan) == [(("other",), ())]
    assert {node.nodeclaim: node.why for node in plan.staying} == {"roomy": "another l would be launched in its place"}


def test_node_is_replaced_by_its_like_if_that_saves_more():
    """The large pod fits beside the others only if one of these goes to a small node; otherwise it would need one of its own size."""
    small = ["400m", "900m", "900m", "400m", "200m", "3", "400m", "1500m", "200m", "900m", "1500m", "3", "1100m"]
    plan = planned(a_fleet(a_member("n0", size="xl", cpus=["3"]), a_member("n1", size="xl", cpus=small)))
    assert moves_of(plan) == [(("n0", "n1"), ("xl", "s"))]


def test_full_node_stays_and_says_why():
    """Its price is what its pods are worth."""
    plan = planned(a_fleet(a_member("full", cpus=["1", "1", "1", "1"]), a_member("spare", size="xl", cpus=["1"])))
    assert moves_of(plan) == [(("spare",), ("s",))]
    (stays,) = plan.staying
    assert stays.nodeclaim == "full"
    assert "its price of 0.4000 is at most the worth of its capacity" in stays.why


def test_fleet_close_to_its_lower_bound_is_left_alone():
    """Nothing can be saved that is worth an eviction."""
    plan = planned(a_fleet(*(a_member(f"n{i}", cpus=["2", "2"]) for i in range(3))))
    assert plan.moves == ()
    assert plan.price_before == pytest.approx(plan.lower_bound)


def test_no_move_has_more_nodes_than_the_budgets_allow():
    """Of six nodes at least five go, at most two together."""
    snapshot = a_fleet(*(a_member(f"n{i}", size="xl", cpus=["3900m"]) for i in range(6)))
    plan = planned(snapshot, allowed=2)
    assert {c for candidates, _ in moves_of(plan) for c in candidates} >= {f"n{i}" for i in range(1, 6)}
    assert max(len(candidates) for candidates, _ in moves_of(plan)) <= 2
    assert planned(snapshot, allowed=0).moves == ()


def test_move_that_does_not_pay_its_evictions_back_is_left_out():
    """The saving of 0.6 per hour pays an eviction of 1.0 within two hours, not within one."""
    snapshot = a_fleet(a_member("n", size="l", cpus=["1"]))
    assert planned(snapshot, cost=MoveCost(eviction=1.0, payback=timedelta(hours=2))).moves
    plan = planned(snapshot, cost=MoveCost(eviction=1.0, payback=timedelta(hours=1)))
    assert plan.moves == ()
    assert [node.nodeclaim for node in plan.staying] == ["n"]


@pytest.mark.parametrize(
    ("member", "pool", "why"),
    [
        ({"capacity_type": labels.SPOT}, a_pool(capacity_types=(labels.SPOT,)), "SpotToSpotConsolidation is disabled"),
        ({}, builders.a_pool("default", metadata={"annotations": {labels.PACKING: "fewest-nodes"}}), "fewest nodes"),
    ],
)
def test_nodes_outside_the_plan_stay_with_a_reason(member, pool, why):
    """Single-node consolidation handles them."""
    plan = planned(a_fleet(a_member("n", size="xl", cpus=["1"], **member), pools=[pool]))
    assert plan.moves == ()
    assert why in plan.staying[0].why


def test_settled_nodes_stay():
    """A plan that is made again moves no pod that has moved already."""
    plan = planned(a_fleet(*THREE), settled={"n0"})
    assert "n0" not in {c for candidates, _ in moves_of(plan) for c in candidates}


def test_nodes_that_take_no_pods_are_no_targets():
    """Pods would restart the consolidateAfter of a node that changed lately."""
    roomy = a_member("roomy", size="l", cpus=["7"])
    snapshot = a_fleet(roomy, a_member("n", size="s", cpus=["200m"]))
    (delete,) = planned(snapshot, settled={"roomy"}).moves
    assert delete.existing == {"node-roomy": ("default/n-0",)}
    assert planned(snapshot, settled={"roomy"}, within_consolidate_after=frozenset({"roomy"})).moves == ()


def test_pods_with_topology_spread_stay_spread():
    """The moves keep two zones; each is verified alone."""
    pods = {zone: a_pod(f"web-{zone}", cpu="500m", node=f"node-{zone}", spec=spread(ZONE)) for zone in "ab"}
    plan = planned(a_fleet(*(a_member(zone, size="xl", zone=zone, pods=[pod]) for zone, pod in pods.items())))
    zones = sorted(claim.offering.zone for move in plan.moves for claim in move.replacements)
    assert zones == ["a", "b"]


def starting(snapshot, *names, allowed=2, leaving=None):
    """Which of the moves of these nodes may start while nodes leave: by default their own."""
    present, leaving = busy(snapshot), set(names if leaving is None else leaving)
    waiting, nodes = [(present[name],) for name in names], {f"node-{name}" for name in leaving}
    return next_moves(Simulation(snapshot, a_catalogue()), waiting, {"default": allowed}, leaving=nodes)


def test_moves_that_start_together_do_not_use_the_same_room():
    """The capacity on one node suffices for one of two; the second move launches a node or waits."""
    members = (a_member("n0", size="m", cpus=["900m"]), a_member("n1", size="m", cpus=["900m"]))
    snapshot = a_fleet(a_member("roomy", size="l", cpus=["7"]), *members)
    both = starting(snapshot, "n0", "n1")

    assert not both.invalid
    roomy = {"node-roomy": ("default/n0-0",)}
    assert [(dict(m.existing), len(m.replacements)) for m in both.moves] == [(roomy, 0), ({}, 1)]
    assert [m.name for m in starting(snapshot, "n0", "n1", allowed=1, leaving=()).moves] == ["n0"]


def test_move_waits_while_pods_of_another_could_take_its_capacity():
    """The pod of n0 fits exactly on the fuller node, but kube-scheduler prefers the emptier one, which n1 needs besides its replacement."""
    members = (a_member("n0", cpus=["1"]), a_member("n1", size="xl", cpus=["1900m", "2"]))
    snapshot = a_fleet(a_member("a-fuller", cpus=["3"]), a_member("b-emptier", size="l", cpus=["6"]), *members)
    assert [m.name for m in starting(snapshot, "n1").moves] == ["n1"]
    both = starting(snapshot, "n0", "n1")
    assert [m.name for m in both.moves] == ["n0"]
    assert (both.too_early, both.invalid) == ({"n1"}, {})


def test_moves_that_start_are_solved_without_those_that_do_not():
    """After the too early move of n4, n3 would need a new node. Validation, which sees only the proposed moves, finds the same."""
    members = {
        "n0": ("s", "1500m 200m"),
        "n1": ("l", "400m 400m 1500m 200m 200m"),
        "n2": ("m", "200m"),
        "n3": ("l", "400m 200m 1500m"),
        "n4": ("l", "3 3 900m 300m"),
        "n5": ("s", "400m 200m 400m 200m 600m"),
    }
    snapshot = a_fleet(*(a_member(name, size=size, cpus=cpus.split()) for name, (size, cpus) in members.items()))
    three = {"allowed": 3, "leaving": ("n3", "n4", "n5")}
    proposed = starting(snapshot, "n5", "n4", "n3", **three)
    assert proposed.too_early == {"n4"}
    assert [(m.name, m.replacements) for m in proposed.moves] == [("n5", ()), ("n3", ())]
    assert starting(snapshot, "n5", "n3", **three).moves == proposed.moves


def test_carried_out_move_leaves_a_cluster_without_its_nodes():
    """The pods run on the replacement, which has the labels and the capacity of its type."""
    snapshot = a_fleet(*THREE)
    (move,) = planned(snapshot).moves

    after = carried_out(snapshot, a_catalogue(), move, ["new"])

    (node,) = after.state_nodes
    assert (node.name, node.initialized, len(node.pods)) == ("new", True, 3)
    assert node.labels[labels.INSTANCE_TYPE] == "s"
    assert node.labels[labels.NODEPOOL] == "default"


def test_pods_move_with_what_they_hold():
    """One of 64 CPU has and keeps 600m; one that shrinks from 3500m still fills its node, so only the others are merged."""
    refused = a_pod("r", cpu="64", node="node-a", status=builders.a_resize("600m", pending="Infeasible"))
    shrinks = a_pod("s", cpu="100m", node="node-c", status=builders.a_resize("3500m"))
    fleet = a_fleet(a_member("a", pods=[refused]), a_member("b", cpus=["600m"]), a_member("c", pods=[shrinks]))
    assert moves_of(planned(fleet)) == [(("a", "b"), ("s",))]
