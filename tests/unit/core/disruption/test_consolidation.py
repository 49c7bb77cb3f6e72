"""Consolidation: deletes nodes that are not needed, replaces others by cheaper ones, never raises the price."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.candidates import find_candidates
from journeyman.core.disruption.commands import Decision
from journeyman.core.disruption.consolidation import compute_consolidation, first_error, worst_launch_price
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.disruption.single_node_consolidation import (
    interleaved,
    single_node_commands,
    unconsolidatable_reason,
)
from journeyman.core.scheduling import requirements
from journeyman.core.scheduling.results import Options
from tests.helpers import builders
from tests.helpers.fleets import TYPES, a_catalogue, a_fleet, a_member, a_pod, a_pool, price

BOTH = (labels.ON_DEMAND, labels.SPOT)
NONE = frozenset()


def a_simulation(snapshot, *, catalogue=None, within_consolidate_after=NONE, marked=NONE):
    """The simulation, and its candidates by NodeClaim name."""
    types = catalogue or a_catalogue(*(p.metadata.name for p in snapshot.node_pools))
    simulation = Simulation(
        snapshot, types, marked_for_deletion=marked, within_consolidate_after=within_consolidate_after
    )
    names = frozenset(c.metadata.name for c in snapshot.claims)
    found = find_candidates(snapshot, types, consolidatable=names, in_commands=NONE)
    return simulation, {c.nodeclaim: c for c in found.candidates}


def decide(snapshot, *names: str, spot_to_spot: bool = False, **kwargs):
    """The command for these nodes together."""
    simulation, candidates = a_simulation(snapshot, **kwargs)
    command = compute_consolidation(simulation, [candidates[n] for n in names], spot_to_spot=spot_to_spot)
    assert simulation.verify(command) == ()
    return command


def values_of(claim, key: str) -> tuple[str, ...]:
    """The values a planned claim allows for a label."""
    return next(r.values for r in claim.requirements if r.key == key)


def test_node_whose_pods_fit_on_existing_nodes_is_deleted():
    """The command saves the whole price of the node."""
    snapshot = a_fleet(a_member("spare", cpus=["1"]), a_member("roomy", size="l", cpus=["1"]))

    command = decide(snapshot, "spare")

    assert command.decision is Decision.DELETE
    assert command.saving == pytest.approx(price("m"))


def test_underutilized_node_is_replaced_by_a_cheaper_one():
    """The command saves the difference between the two prices."""
    command = decide(a_fleet(a_member("n", size="xl", cpus=["1400m"] * 5)), "n")

    assert command.decision is Decision.REPLACE
    (replacement,) = command.replacements
    assert replacement.instance_types == ("l",)
    assert values_of(replacement, labels.INSTANCE_TYPE) == ("l",)
    assert command.saving == pytest.approx(price("xl") - price("l"))


def test_command_is_verified_by_the_options_of_the_simulation():
    """With IGNORE_DRA_REQUESTS a DaemonSet with ResourceClaims takes no capacity; else it fills the other node."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    daemon_sets = (builders.a_daemon_set("agent", cpu="3", resourceClaims=claims),)
    snapshot = a_fleet(a_member("spare", cpus=["1"]), a_member("other", cpus=["1"]), daemon_sets=daemon_sets)

    command = decide(snapshot, "spare")

    counting = Simulation(
        snapshot,
        a_catalogue(),
        marked_for_deletion=NONE,
        within_consolidate_after=NONE,
        options=Options(ignore_dra_requests=False),
    )
    assert command.decision is Decision.DELETE
    assert "cpu" in str(counting.verify(command)[0])


def test_cheapest_node_is_not_replaced():
    """A replacement of the same price saves nothing."""
    command = decide(a_fleet(a_member("n", size="l", cpus=["1400m"] * 5)), "n")

    assert command.decision is Decision.NO_OP
    assert command.why_not == "Can't replace with a cheaper node"


def test_replacement_of_an_on_demand_node_by_spot_requires_spot():
    """Without this requirement, the launch might fall back to on-demand and cost more."""
    snapshot = a_fleet(a_member("n", size="l", cpus=["1400m"] * 5), pools=[a_pool(capacity_types=BOTH)])

    (replacement,) = decide(snapshot, "n").replacements

    assert values_of(replacement, labels.CAPACITY_TYPE) == (labels.SPOT,)
    assert replacement.offering[2] == labels.SPOT
    assert replacement.price == pytest.approx(price("l", labels.SPOT))
    assert set(replacement.instance_types) <= {"l", "xl"}


def test_replacement_is_on_demand_if_spot_is_unavailable():
    """Karpenter requires Spot here, and its launch fails."""
    pools = [a_pool(capacity_types=BOTH)]
    sold_out = tuple(
        replace(t, offerings=tuple(replace(o, available=o.capacity_type != labels.SPOT) for o in t.offerings))
        for t in TYPES
    )

    command = decide(
        a_fleet(a_member("n", size="xl", cpus=["1"] * 5), pools=pools), "n", catalogue=a_catalogue(of=sold_out)
    )

    assert values_of(command.replacements[0], labels.CAPACITY_TYPE) == (labels.ON_DEMAND,)
    assert command.replacements[0].price < price("xl")


def test_spot_to_spot_needs_the_feature_gate_and_fifteen_types():
    """Without these rules, consolidation could replace the replacement again."""
    snapshot = a_fleet(
        a_member("n", size="xl", capacity_type=labels.SPOT, cpus=["1"] * 5), pools=[a_pool(capacity_types=BOTH)]
    )

    assert "SpotToSpotConsolidation is disabled" in decide(snapshot, "n").why_not
    assert "requires 15 cheaper instance type options" in decide(snapshot, "n", spot_to_spot=True).why_not


def test_spot_to_spot_keeps_the_fifteen_cheapest_types():
    """The cheaper instance types are then already options of the replacement."""
    small = [
        builders.an_instance_type(f"t{i:02}", cpu=4, memory_gib=16, price=0.4, zones=("a",), spot=0.1 + i / 1000)
        for i in range(20)
    ]
    snapshot = a_fleet(
        a_member("n", size="xl", capacity_type=labels.SPOT, cpus=["1"] * 3), pools=[a_pool(capacity_types=BOTH)]
    )

    command = decide(snapshot, "n", spot_to_spot=True, catalogue=Catalogue({"default": (*TYPES, *small)}))

    assert command.replacements[0].instance_types == tuple(f"t{i:02}" for i in range(15))


def test_node_is_not_consolidated_when_its_pods_would_be_unschedulable():
    """The reason names the pod."""
    picky = a_pod("picky", node="node-n", spec={"nodeSelector": {labels.ZONE: "nowhere"}})

    command = decide(a_fleet(a_member("n", pods=[picky]), a_member("roomy")), "n")

    assert command.decision is Decision.NO_OP
    assert command.why_not.startswith("not all pods would schedule, pod default/picky:")


def test_node_is_not_replaced_by_several_nodes():
    """Pods spread over two zones would need two nodes."""
    pods = [a_pod(f"p{z}", node="node-n", cpu="1", spec={"nodeSelector": {labels.ZONE: z}}) for z in ("a", "b")]

    command = decide(a_fleet(a_member("n", size="xl", pods=pods)), "n")

    assert command.why_not == "Can't remove without creating 2 candidates"


def test_unschedulable_pending_pod_does_not_block_consolidation():
    """The pod was pending before the disruption."""
    hopeless = a_pod("hopeless", spec={"nodeSelector": {labels.ZONE: "nowhere"}})
    snapshot = a_fleet(a_member("spare", cpus=["1"]), a_member("roomy", size="l"), pending=[hopeless])

    assert decide(snapshot, "spare").decision is Decision.DELETE


@pytest.mark.parametrize("pending", [(), (a_pod("waits", cpu="1"),)], ids=["alone", "with a pending pod"])
def test_pods_are_not_moved_to_uninitialized_or_recently_changed_nodes(pending):
    """The former may never initialize; the latter's consolidateAfter would restart."""
    young = a_member("young", size="xl", initialized=False)
    fresh = a_member("fresh", size="xl")
    old = a_member("old", size="s", cpus=["1"])

    assert decide(a_fleet(old, young, pending=pending), "old").decision is Decision.NO_OP
    assert (
        decide(a_fleet(old, fresh, pending=pending), "old", within_consolidate_after=frozenset({"fresh"})).decision
        is Decision.NO_OP
    )


def test_pods_move_past_recently_changed_nodes_while_other_pods_wait():
    """The pending pod may be scheduled on the recently changed node; the candidate's pods fit on another node."""
    fresh = a_member("fresh", size="m", cpus=["1"])
    quiet = a_member("quiet", size="xl")
    old = a_member("old", size="s", cpus=["1"])
    hopeless = a_pod("hopeless", spec={"nodeSelector": {labels.ZONE: "nowhere"}})

    command = decide(
        a_fleet(old, fresh, quiet, pending=[hopeless]), "old", within_consolidate_after=frozenset({"fresh"})
    )

    assert command.decision is Decision.DELETE


def test_pods_move_past_a_recently_changed_node_to_which_pending_pods_go():
    """Only the recently changed node has capacity for the pending pod, and only the quiet one for the candidate's."""
    fresh = a_member("fresh", size="xl", cpus=["1"])
    quiet = a_member("quiet", size="s", cpus=["500m"])
    old = a_member("old", size="s", cpus=["1"])
    waits = a_pod("waits", cpu="6")

    command = decide(a_fleet(old, fresh, quiet, pending=[waits]), "old", within_consolidate_after=frozenset({"fresh"}))

    assert command.decision is Decision.DELETE


def test_recently_changed_node_counts_against_limits():
    """No pods move to the node, but its resources count against its NodePool's limits."""
    spot = a_pool("spot", capacity_types=(labels.SPOT,))
    limited = spot.model_copy(update={"spec": spot.spec.model_copy(update={"limits": {"cpu": "8"}})})
    old = a_member("old", size="l", cpus=["1400m"] * 5)
    fresh = a_member("fresh", size="l", pool="spot", capacity_type=labels.SPOT)

    def replaced(pool):
        return decide(
            a_fleet(old, fresh, pools=[a_pool(), pool]), "old", within_consolidate_after=frozenset({"fresh"})
        ).decision

    assert replaced(spot) is Decision.REPLACE
    assert replaced(limited) is Decision.NO_OP


def test_nodes_marked_for_deletion_have_no_capacity():
    """Their own pods need capacity on other nodes, too."""
    snapshot = a_fleet(
        a_member("a", cpus=["3"]),
        a_member("b", cpus=["3"]),
        a_member("target", size="m", cpus=["500m"]),
        a_member("going", size="xl"),
    )

    assert decide(snapshot, "a").decision is Decision.DELETE
    assert decide(snapshot, "a", marked=frozenset({"b", "going"})).decision is not Decision.DELETE


def test_min_values_apply_after_the_price_filter():
    """A node of a NodePool with minValues 2 is not replaced if only one instance type is cheaper."""
    pool = builders.a_pool(
        spec={
            "template": {
                "spec": {
                    "requirements": [
                        {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 2},
                        {"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]},
                    ]
                }
            }
        }
    )

    command = decide(a_fleet(a_member("n", size="xl", cpus=["1400m"] * 5), pools=[pool]), "n")

    assert command.decision is Decision.NO_OP


def test_worst_launch_price_is_of_the_launched_capacity_type():
    """It uses reserved before Spot before on-demand offerings, and of these the most expensive available one."""
    offers = {o.capacity_type: o for o in TYPES[0].offerings if o.zone == "a"}
    dear = replace(next(o for o in TYPES[0].offerings if o.zone == "b" and o.capacity_type == "spot"), price=0.15)
    reserved = replace(offers["spot"], capacity_type="reserved", price=0.0)
    rack = replace(TYPES[0], offerings=(offers["on-demand"], offers["spot"], dear))
    anything = requirements.EMPTY
    zone_a = requirements.from_labels({labels.ZONE: "a"})

    assert worst_launch_price(rack, anything) == 0.15
    assert worst_launch_price(rack, zone_a) == pytest.approx(0.08)
    assert (
        worst_launch_price(replace(rack, offerings=(*rack.offerings, replace(reserved, requirements=()))), anything)
        == 0.0
    )
    assert worst_launch_price(rack, requirements.from_labels({labels.CAPACITY_TYPE: "on-demand"})) == pytest.approx(0.2)
    assert worst_launch_price(replace(rack, offerings=(replace(offers["spot"], available=False),)), anything) is None


def test_single_node_consolidation_orders_candidates_by_savings_ratio_within_budgets():
    """NodePools whose budgets allow no disruption are skipped."""
    snapshot = a_fleet(
        a_member("dear", size="xl", cpus=["1"] * 2),
        a_member("cheap", size="s", cpus=["1"]),
        a_member("other", size="xl", pool="other", cpus=["1"]),
        a_member("empty"),
        pools=[a_pool(), a_pool("other")],
    )
    simulation, candidates = a_simulation(snapshot)

    seen = [e.candidate.nodeclaim for e in single_node_commands(simulation, candidates.values(), {"default": 1})]

    assert seen == ["dear", "cheap"]


def test_candidates_of_all_nodepools_are_interleaved_from_the_highest_savings_ratio_on():
    """Three NodePools have a node with one pod each, one with five and one with ten; all cost the same."""
    pools = [a_pool(name) for name in ("one", "two", "three")]
    members = [
        a_member(f"{p.metadata.name}-{n}", pool=p.metadata.name, cpus=["10m"] * n) for p in pools for n in (10, 5, 1)
    ]
    _, candidates = a_simulation(a_fleet(*members, pools=pools))

    order = [c.nodeclaim.partition("-")[2] for c in interleaved(candidates.values())]

    assert order == ["1"] * 3 + ["5"] * 3 + ["10"] * 3


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("", ["one0", "two0", "one1", "two1"]),
        ("two0", ["one1", "two1"]),
        ("two1", []),
        ("two0/9", ["one1", "two1"]),
        ("gone/3", ["one1", "two1"]),
        ("gone/9", ["one0", "two0", "one1", "two1"]),
        ("gone", ["one0", "two0", "one1", "two1"]),
        ("multi-node/0", ["one0", "two0", "one1", "two1"]),
    ],
)
def test_single_node_consolidation_continues_behind_the_last_examined_node(after, expected):
    """It alternates between NodePools, so that none waits for all nodes of another; a node that is gone leaves its place."""
    pools = [a_pool("one"), a_pool("two")]
    members = [
        a_member(f"{p}{i}", pool=p, cpus=["1"], size=s) for p in ("one", "two") for i, s in enumerate(("l", "m"))
    ]
    simulation, candidates = a_simulation(a_fleet(*members, pools=pools))

    commands = single_node_commands(simulation, candidates.values(), {"one": 9, "two": 9}, after=after)

    assert [e.candidate.nodeclaim for e in commands] == expected


@pytest.mark.parametrize(
    ("disruption", "why"),
    [
        ({"consolidationPolicy": "WhenEmpty"}, "consolidation policy WhenEmpty, but node is not empty"),
        ({"consolidateAfter": "Never"}, "consolidation disabled"),
    ],
)
def test_nodepool_may_disable_consolidation(disruption, why):
    """The node's Events contain the reason."""
    snapshot = a_fleet(a_member("n", cpus=["1"]), pools=[a_pool(**disruption)])
    simulation, candidates = a_simulation(snapshot)

    assert why in unconsolidatable_reason(candidates["n"], snapshot)
    assert list(single_node_commands(simulation, candidates.values(), {"default": 9})) == []


def test_node_without_zone_or_capacity_type_is_not_consolidated():
    """Its price is unknown."""
    snapshot = a_fleet(a_member("n", cpus=["1"]))
    _, candidates = a_simulation(snapshot)

    assert (
        unconsolidatable_reason(replace(candidates["n"], instance_type=""), snapshot) == 'Instance Type "m" not found'
    )
    assert (
        unconsolidatable_reason(replace(candidates["n"], zone=""), snapshot)
        == f'Node does not have label "{labels.ZONE}"'
    )


def test_mixed_candidates_may_be_replaced_by_spot_without_the_feature_gate():
    """Spot-to-spot rules apply only if every candidate is a Spot node."""
    members = [a_member("n", size="xl", cpus=["1"]), a_member("spot", size="xl", capacity_type=labels.SPOT, cpus=["1"])]

    (replacement,) = decide(a_fleet(*members, pools=[a_pool(capacity_types=BOTH)]), "n", "spot").replacements

    assert values_of(replacement, labels.CAPACITY_TYPE) == (labels.SPOT,)


@pytest.mark.parametrize(("cheaper", "decision"), [(14, Decision.NO_OP), (15, Decision.REPLACE)])
def test_fifteen_cheaper_types_are_enough_for_spot_to_spot(cheaper, decision):
    """Fourteen cheaper instance types are not enough."""
    small = [
        builders.an_instance_type(f"t{i:02}", cpu=4, memory_gib=16, price=0.4, zones=("a",), spot=0.1)
        for i in range(cheaper)
    ]
    dear = builders.an_instance_type("xl", cpu=16, memory_gib=64, price=1.6, zones=("a",), spot=0.64)
    snapshot = a_fleet(
        a_member("n", size="xl", capacity_type=labels.SPOT, cpus=["1"] * 3), pools=[a_pool(capacity_types=BOTH)]
    )

    command = decide(snapshot, "n", spot_to_spot=True, catalogue=Catalogue({"default": (dear, *small)}))

    assert command.decision is decision


@pytest.mark.parametrize(("least", "types"), [(2, ("m", "l")), (3, None)])
def test_replacement_keeps_min_values_when_enough_cheaper_types_remain(least, types):
    """Two cheaper types satisfy minValues 2, which the replacement keeps; they do not satisfy minValues 3."""
    spec = {
        "template": {
            "spec": {
                "requirements": [
                    {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": least},
                    {"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]},
                ]
            }
        }
    }

    command = decide(a_fleet(a_member("n", size="xl", cpus=["1"] * 3), pools=[builders.a_pool(spec=spec)]), "n")

    if types is None:
        assert (
            command.why_not
            == f"Filtering by price: minValues requirement is not met for label(s) (label(s)=[{labels.INSTANCE_TYPE}])"
        )
    else:
        (replacement,) = command.replacements
        assert replacement.instance_types == types
        assert [r.min_values for r in replacement.requirements if r.key == labels.INSTANCE_TYPE] == [least]


def test_first_error_names_the_first_pod_by_name():
    """The message also contains the number of other pods with errors."""
    assert first_error({"default/b": "no capacity"}) == "pod default/b: no capacity"
    assert first_error({"default/b": "no capacity", "default/a": "no zone"}) == "pod default/a: no zone and 1 more"
