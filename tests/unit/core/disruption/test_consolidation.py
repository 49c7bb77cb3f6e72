"""Consolidation: deletes nodes that are not needed, replaces others by cheaper ones, never raises the price."""

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
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
from tests.helpers.disrupting import candidates_of, with_min_values
from tests.helpers.fleets import TYPES, a_catalogue, a_fleet, a_member, a_pod, a_pool, price
from tests.helpers.small_clusters import table

BOTH = (labels.ON_DEMAND, labels.SPOT)
NONE = frozenset()
FRESH = frozenset({"fresh"})
CHEAPEST = "Can't replace with a cheaper node"


def a_simulation(snapshot, *, catalogue=None, fresh=NONE, marked=NONE):
    """The simulation, and its candidates by NodeClaim name; nodes that are `fresh` are within their consolidateAfter."""
    types = catalogue or a_catalogue(*(p.metadata.name for p in snapshot.node_pools))
    simulation = Simulation(snapshot, types, marked_for_deletion=marked, within_consolidate_after=fresh)
    return simulation, candidates_of(snapshot, types)


def decide(snapshot, *names: str, spot_to_spot: bool = False, **options):
    """The command for these nodes together."""
    simulation, candidates = a_simulation(snapshot, **options)
    command = compute_consolidation(simulation, [candidates[n] for n in names], spot_to_spot=spot_to_spot)
    assert simulation.verify(command) == ()
    return command


def outcome(command) -> str:
    """What the command does: `delete`, `replace by on-demand s, m`, or why it does nothing."""
    if command.decision is Decision.REPLACE:
        (replacement,) = command.replacements
        (kind,) = values_of(replacement, labels.CAPACITY_TYPE)
        assert values_of(replacement, labels.INSTANCE_TYPE) == replacement.instance_types
        assert replacement.offering.capacity_type == kind
        return f"replace by {kind} {', '.join(replacement.instance_types)}"
    return "delete" if command.decision is Decision.DELETE else command.why_not


def values_of(claim, key: str) -> tuple[str, ...]:
    """The values a planned claim allows for a label."""
    return next(r.values for r in claim.requirements if r.key == key)


def in_zone(name, zone, **changes):
    return a_pod(name, spec={"nodeSelector": {labels.ZONE: zone}}, **changes)


def busy(name="n", *, size="xl", pods=5, **changes):
    """A node with so many pods of 1.4 CPUs."""
    return a_member(name, size=size, cpus=["1400m"] * pods, **changes)


MIXED = [a_pool(capacity_types=BOTH)]
NO_SPOT = tuple(
    replace(t, offerings=tuple(replace(o, available=o.capacity_type != labels.SPOT) for o in t.offerings))
    for t in TYPES
)
SPOT_NODE = a_fleet(a_member("n", size="xl", capacity_type=labels.SPOT, cpus=["1"] * 5), pools=MIXED)
HOPELESS = in_zone("hopeless", "nowhere")
OLD = a_member("old", size="s", cpus=["1"])
YOUNG = a_member("young", size="xl", initialized=False)
WAITS = a_pod("waits", cpu="1")
LITTLE = a_member("spare", cpus=["1"])
UNMOVABLE = a_fleet(a_member("n", pods=[in_zone("picky", "nowhere", node="node-n")]), a_member("roomy"))
IN_TWO_ZONES = a_fleet(a_member("n", size="xl", pods=[in_zone(f"p{z}", z, node="node-n", cpu="1") for z in "ab"]))
ORDER = ("n", "spare", "old", "a")
FULL = (a_member("a", cpus=["3"]), a_member("b", cpus=["3"]), a_member("target", size="m", cpus=["500m"]))


@table(
    "snapshot, options, expected",
    deletes_it_if_its_pods_fit_on_existing_nodes=(
        a_fleet(LITTLE, a_member("roomy", size="l", cpus=["1"])), {}, "delete"
    ),
    replaces_it_by_a_cheaper_one=(a_fleet(busy()), {}, "replace by on-demand l"),
    keeps_the_cheapest_node=(a_fleet(busy(size="l")), {}, CHEAPEST),
    requires_spot_so_that_the_launch_does_not_fall_back_to_on_demand=(
        a_fleet(busy(size="l"), pools=MIXED), {}, "replace by spot l, xl"
    ),
    replaces_it_on_demand_while_spot_is_sold_out_where_Karpenter_launches_in_vain=(
        a_fleet(a_member("n", size="xl", cpus=["1"] * 5), pools=MIXED),
        {"catalogue": a_catalogue(of=NO_SPOT)},
        "replace by on-demand l",
    ),
    spot_to_spot_needs_the_feature_gate=(SPOT_NODE, {}, "SpotToSpotConsolidation is disabled"),
    spot_to_spot_needs_fifteen_types=(SPOT_NODE, {"spot_to_spot": True}, "SpotToSpotConsolidation requires 15 cheaper"),
    spot_to_spot_rules_apply_only_to_spot_nodes_alone=(
        a_fleet(
            a_member("n", size="xl", cpus=["1"]),
            a_member("also", size="xl", capacity_type=labels.SPOT, cpus=["1"]),
            pools=MIXED,
        ),
        {"names": ("n", "also")},
        "replace by spot m, l, xl",
    ),
    keeps_it_if_a_pod_would_be_unschedulable=(UNMOVABLE, {}, "not all pods would schedule, pod default/picky:"),
    keeps_it_if_its_pods_need_two_nodes=(IN_TWO_ZONES, {}, "Can't remove without creating 2 candidates"),
    a_pod_that_was_pending_before_does_not_block=(
        a_fleet(LITTLE, a_member("roomy", size="l"), pending=[HOPELESS]), {}, "delete"
    ),
    moves_no_pods_to_nodes_that_may_never_initialize=(a_fleet(OLD, YOUNG), {}, CHEAPEST),
    nor_with_a_pending_pod=(a_fleet(OLD, YOUNG, pending=[WAITS]), {}, "not all pods would schedule, pod default/old-0"),
    moves_no_pods_to_recently_changed_nodes_whose_consolidateAfter_would_restart=(
        a_fleet(OLD, a_member("fresh", size="xl")), {"fresh": FRESH}, CHEAPEST
    ),
    nor_while_a_pod_waits=(a_fleet(OLD, a_member("fresh", size="xl"), pending=[WAITS]), {"fresh": FRESH}, CHEAPEST),
    moves_pods_past_recently_changed_nodes_while_others_wait=(
        a_fleet(OLD, a_member("fresh", cpus=["1"]), a_member("quiet", size="xl"), pending=[HOPELESS]),
        {"fresh": FRESH},
        "delete",
    ),
    moves_pods_past_a_recently_changed_node_to_which_pending_pods_go=(
        a_fleet(
            OLD,
            a_member("fresh", size="xl", cpus=["1"]),
            a_member("quiet", size="s", cpus=["500m"]),
            pending=[a_pod("waits", cpu="6")],
        ),
        {"fresh": FRESH},
        "delete",
    ),
    moves_pods_to_a_roomy_node=(a_fleet(*FULL, a_member("going", size="xl")), {}, "delete"),
    nodes_marked_for_deletion_have_no_capacity_and_pods_that_need_it=(
        a_fleet(*FULL, a_member("going", size="xl")), {"marked": frozenset({"b", "going"})}, CHEAPEST
    ),
    min_values_hold_after_the_price_filter=(
        a_fleet(busy(), pools=[with_min_values(2)]), {}, "Filtering by price: minValues requirement is not met"
    ),
)  # fmt: skip
def test_consolidation_deletes_or_replaces_a_node_or_says_why_not(snapshot, options, expected):
    """Of the node whose name is the first of these; a reason not to consolidate begins with `expected`."""
    options = dict(options)
    present = {c.metadata.name for c in snapshot.claims}
    command = decide(snapshot, *options.pop("names", [next(n for n in ORDER if n in present)]), **options)
    found = outcome(command)
    assert found.startswith(expected) if command.decision is Decision.NO_OP else found == expected


def test_saving_is_the_price_of_the_nodes_less_that_of_their_replacement():
    """Of the offering that is launched."""
    assert decide(a_fleet(LITTLE, busy("roomy", size="l", pods=1)), "spare").saving == pytest.approx(price("m"))
    assert decide(a_fleet(busy()), "n").saving == pytest.approx(price("xl") - price("l"))
    (spot,) = decide(a_fleet(busy(size="l"), pools=MIXED), "n").replacements
    assert spot.price == pytest.approx(price("l", labels.SPOT))
    sold_out = a_catalogue(of=NO_SPOT)
    (bought,) = decide(a_fleet(busy(pods=3), pools=MIXED), "n", catalogue=sold_out).replacements
    assert bought.price < price("xl")


def test_command_is_verified_by_the_options_of_the_simulation():
    """With IGNORE_DRA_REQUESTS a DaemonSet with ResourceClaims takes no capacity; else it fills the other node."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    daemon_sets = (builders.a_daemon_set("agent", cpu="3", resourceClaims=claims),)
    snapshot = a_fleet(LITTLE, a_member("other", cpus=["1"]), daemon_sets=daemon_sets)

    command = decide(snapshot, "spare")

    nothing = {"marked_for_deletion": NONE, "within_consolidate_after": NONE}
    counting = Simulation(snapshot, a_catalogue(), **nothing, options=Options(ignore_dra_requests=False))
    assert command.decision is Decision.DELETE
    assert "cpu" in str(counting.verify(command)[0])


def test_recently_changed_node_counts_against_limits():
    """No pods move to the node, but its resources count against its NodePool's limits."""
    spot = a_pool("spot", capacity_types=(labels.SPOT,))
    limited = spot.model_copy(update={"spec": spot.spec.model_copy(update={"limits": {"cpu": "8"}})})
    old, fresh = busy("old", size="l"), a_member("fresh", size="l", pool="spot", capacity_type=labels.SPOT)
    for pool, decision in ((spot, Decision.REPLACE), (limited, Decision.NO_OP)):
        assert decide(a_fleet(old, fresh, pools=[a_pool(), pool]), "old", fresh=FRESH).decision is decision


@pytest.mark.parametrize(("least", "types"), [(2, ("m", "l")), (3, None)])
def test_replacement_keeps_min_values_when_enough_cheaper_types_remain(least, types):
    """Two cheaper types satisfy minValues 2, which the replacement keeps; they do not satisfy minValues 3."""
    command = decide(a_fleet(a_member("n", size="xl", cpus=["1"] * 3), pools=[with_min_values(least)]), "n")

    for replacement in command.replacements:
        assert replacement.instance_types == types
        assert [r.min_values for r in replacement.requirements if r.key == labels.INSTANCE_TYPE] == [least]
    unmet = f"Filtering by price: minValues requirement is not met for label(s) (label(s)=[{labels.INSTANCE_TYPE}])"
    assert (command.why_not, len(command.replacements)) == (("", 1) if types else (unmet, 0))


def test_worst_launch_price_is_of_the_launched_capacity_type():
    """It uses reserved before Spot before on-demand offerings, and of these the most expensive available one."""
    offers = {(o.zone, o.capacity_type): o for o in TYPES[0].offerings}
    bought, spot, dear = offers["a", "on-demand"], offers["a", "spot"], replace(offers["b", "spot"], price=0.15)
    reserved = replace(spot, capacity_type="reserved", price=0.0, requirements=())

    def worst(*offerings, **wanted):
        wanted = {{"zone": labels.ZONE, "kind": labels.CAPACITY_TYPE}[key]: value for key, value in wanted.items()}
        return worst_launch_price(replace(TYPES[0], offerings=offerings), requirements.from_labels(wanted))

    assert worst(bought, spot, dear) == 0.15
    assert worst(bought, spot, dear, zone="a") == pytest.approx(0.08)
    assert worst(bought, spot, dear, reserved) == 0.0
    assert worst(bought, spot, dear, kind="on-demand") == pytest.approx(0.2)
    assert worst(replace(spot, available=False)) is None


def test_single_node_consolidation_orders_candidates_by_savings_ratio_within_budgets():
    """NodePools whose budgets allow no disruption are skipped."""
    members = (
        a_member("dear", size="xl", cpus=["1"] * 2),
        a_member("cheap", size="s", cpus=["1"]),
        a_member("other", size="xl", pool="other", cpus=["1"]),
        a_member("empty"),
    )
    simulation, candidates = a_simulation(a_fleet(*members, pools=[a_pool(), a_pool("other")]))

    seen = [e.candidate.nodeclaim for e in single_node_commands(simulation, candidates.values(), {"default": 1})]

    assert seen == ["dear", "cheap"]


def test_candidates_of_all_nodepools_are_interleaved_from_the_highest_savings_ratio_on():
    """Three NodePools have a node with one pod each, one with five and one with ten; all cost the same."""
    pools = ("one", "two", "three")
    members = [a_member(f"{pool}-{n}", pool=pool, cpus=["10m"] * n) for pool in pools for n in (10, 5, 1)]
    _, candidates = a_simulation(a_fleet(*members, pools=map(a_pool, pools)))
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
    places = [(pool, i, size) for pool in ("one", "two") for i, size in enumerate(("l", "m"))]
    members = [a_member(f"{pool}{i}", pool=pool, cpus=["1"], size=size) for pool, i, size in places]
    simulation, candidates = a_simulation(a_fleet(*members, pools=[a_pool("one"), a_pool("two")]))
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
    candidate = a_simulation(snapshot)[1]["n"]
    without_type, without_zone = replace(candidate, instance_type=""), replace(candidate, zone="")
    assert unconsolidatable_reason(without_type, snapshot) == 'Instance Type "m" not found'
    assert unconsolidatable_reason(without_zone, snapshot) == f'Node does not have label "{labels.ZONE}"'


def test_first_error_names_the_first_pod_by_name():
    """The message also contains the number of other pods with errors."""
    assert first_error({"default/b": "no capacity"}) == "pod default/b: no capacity"
    assert first_error({"default/b": "no capacity", "default/a": "no zone"}) == "pod default/a: no zone and 1 more"
