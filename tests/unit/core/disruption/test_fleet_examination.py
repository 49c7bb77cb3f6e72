"""The examination of a fleet: which nodes can be deleted or replaced, and what the others lack."""

import json
from math import inf

import pytest

from journeyman.cli.scenario import parse_scenario
from journeyman.cli.solve import options_of
from journeyman.core.api import labels
from journeyman.core.disruption.candidates import Candidate
from journeyman.core.disruption.commands import Decision
from journeyman.core.disruption.consolidation import compute_consolidation
from journeyman.core.disruption.fleet_examination import FleetExaminer, NodeExamination, NodeVerdict, examine
from journeyman.core.disruption.simulation import Simulation
from tests.helpers import large_fleets
from tests.helpers.disrupting import candidates_of
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod, a_pool, price
from tests.helpers.small_clusters import HOST, ZONE, apart, near, prefers, spread, table

NONE = frozenset[str]()


def web(name: str, node: str, spec) -> object:
    """A pod of the app `web`."""
    return a_pod(name, cpu="500m", node=f"node-{node}", spec=spec)


def examined(snapshot, *, within=NONE, marked=NONE, spot_to_spot=False) -> dict[str, NodeExamination]:
    """What is found, by NodeClaim."""
    catalogue = a_catalogue(*(p.metadata.name for p in snapshot.node_pools))
    simulation = Simulation(snapshot, catalogue, within_consolidate_after=within, marked_for_deletion=marked)
    candidates = candidates_of(snapshot, catalogue).values()
    return dict(examine(simulation, candidates, spot_to_spot=spot_to_spot).by_nodeclaim)


def test_node_whose_pods_fit_on_the_other_nodes_is_deletable_and_one_with_pods_for_a_smaller_one_replaceable():
    """Its pods have no value beyond what is paid for anyway; else the shadow value is the price of that smaller node."""
    found = examined(a_fleet(a_member("spare", cpus=["1"]), a_member("roomy", size="l", cpus=["1"])))["spare"]
    assert (found.verdict, found.shadow_value, found.why_not) == (NodeVerdict.DELETABLE, 0.0, "")
    assert found.saving == price("m")
    found = examined(a_fleet(a_member("n", size="xl", cpus=["1400m"] * 5)))["n"]
    assert (found.verdict, found.shadow_value) == (NodeVerdict.REPLACEABLE, price("l"))


def test_node_that_stays_names_the_pod_and_the_least_shortage():
    """The other node with most free CPU is named, and how much it lacks."""
    found = examined(a_fleet(*(a_member(n, cpus=[c]) for n, c in (("full", "3900m"), ("near", "1"), ("far", "2")))))[
        "full"
    ]

    assert (found.verdict, found.is_proven, found.shadow_value) == (NodeVerdict.STAYS, True, price("m"))
    short = found.shortage
    assert (short.pod, short.pods, short.without_capacity) == ("default/full-0", 1, 1)
    assert (short.resource, short.amount, short.node) == ("cpu", 900, "node-near")
    assert found.why_not == (
        "Can't replace with a cheaper node: the other nodes lack 900m cpu for pod default/full-0, at least (Node node-near), "
        "and the cheapest node for all such pods costs 0.4000 per hour, this one 0.4000"
    )


@table(
    "changes, options",
    not_initialized=({"initialized": False}, {}),
    deleting=({"deleting": True}, {}),
    within_consolidateAfter=({}, {"within": frozenset({"other"})}),
    in_a_command=({}, {"marked": frozenset({"other"})}),
)
def test_excluded_node_takes_no_pods(changes, options):
    """Nodes that are not initialized, deleting, changed recently or in a command have no capacity for others."""
    fleet = a_fleet(a_member("full", cpus=["3"]), a_member("other", size="l", **changes))
    assert examined(fleet, **options)["full"].verdict is NodeVerdict.STAYS


@table(
    "rule, resource, beside_an_empty_node_of_its_zone",
    spread_over_zones=(spread(ZONE), ZONE, {NodeVerdict.DELETABLE}),
    apart_on_nodes=(apart(key=HOST), "host rules", {*NodeVerdict}),
    apart_in_zones=(apart(key=ZONE), ZONE, {*NodeVerdict}),
)
def test_pods_with_rules_need_a_domain_of_their_own(rule, resource, beside_an_empty_node_of_its_zone):
    """A node or zone with a pod of the same app takes no second one; the emptiest zone after the removal is the node's own."""
    members = [
        a_member("n1", zone="a", cpus=["3"], pods=[web("w1", "n1", rule)]),
        a_member("n2", zone="b", size="xl", pods=[web("w2", "n2", rule)]),
    ]
    found = examined(a_fleet(*members))["n1"]
    with_capacity = examined(a_fleet(*members, a_member("n3", zone="a", cpus=["100m"])))["n1"]

    assert found.verdict is not NodeVerdict.DELETABLE
    assert found.shortage.resource == resource
    assert with_capacity.verdict in beside_an_empty_node_of_its_zone


def test_pod_that_no_node_can_run_keeps_its_node():
    """The scheduler's error says why."""
    broken = a_pod("odd", cpu="1", node="node-n", spec={"nodeSelector": {"a key": "x"}})
    found = examined(a_fleet(a_member("n", pods=[broken]), a_member("other", size="xl")))["n"]
    assert (found.verdict, found.shadow_value) == (NodeVerdict.STAYS, inf)
    assert found.why_not.startswith("not all pods would schedule, pod default/odd: ")


@table(
    "rule, size, other",
    must_share_a_node=(near(key=HOST), "m", a_member("other", cpus=["4"])),
    prefer_to_keep_apart_if_no_new_node_takes_them=(
        prefers(apart(key=HOST)), "l", a_member("other", size="s", cpus=["1900m"])
    ),
)  # fmt: skip
def test_pods_with_rules_that_are_not_evaluated_are_left_to_the_simulation(rule, size, other):
    """Affinity over hostnames, which never excludes such a node. Without the preference, one smaller node takes both."""
    pods = [web("w1", "n", rule), web("w2", "n", rule)]
    found = examined(a_fleet(a_member("n", size=size, pods=pods), other))["n"]
    assert (found.verdict, found.passes, found.why_not) == (NodeVerdict.UNDECIDED, True, "")


@pytest.mark.parametrize("gate", [False, True])
def test_spot_node_is_not_replaced_by_few_cheaper_spot_types(gate):
    """Spot-to-spot is a gate, and needs 15 cheaper instance types."""
    pool = a_pool(capacity_types=(labels.SPOT,))
    fleet = a_fleet(a_member("n", size="xl", capacity_type=labels.SPOT, cpus=["1"]), pools=[pool])
    assert examined(fleet, spot_to_spot=gate)["n"].verdict is NodeVerdict.STAYS


def test_pods_that_wait_take_their_room_first():
    """A pending pod fills the only other node, so that the node's own pod has no capacity."""
    members = [a_member("n", cpus=["2"]), a_member("other", cpus=["1"])]
    pending = a_pod("pending", cpu="3")
    assert examined(a_fleet(*members))["n"].verdict is NodeVerdict.DELETABLE
    assert examined(a_fleet(*members, pending=[pending]))["n"].verdict is not NodeVerdict.DELETABLE


# -- beside the simulation --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ruled_fleet() -> tuple[Simulation, tuple[Candidate, ...]]:
    """A simulation of 60 full nodes whose pods have rules, and its candidates."""
    scenario = parse_scenario(json.dumps(large_fleets.fleet(60, 600, usage=0.97, rules=True)).encode())
    simulation = Simulation(scenario.snapshot, scenario.catalogue, options=options_of(scenario))
    return simulation, tuple(candidates_of(scenario.snapshot, scenario.catalogue).values())


def test_examination_leaves_the_cluster_as_it_was(ruled_fleet):
    """Whatever was examined before, in whatever order, a node gets the same answer."""
    simulation, candidates = ruled_fleet
    forwards, backwards = FleetExaminer(simulation, candidates), FleetExaminer(simulation, candidates)

    first = {c.nodeclaim: forwards.examine(c) for c in candidates}
    second = {c.nodeclaim: backwards.examine(c) for c in reversed(candidates)}

    assert first == second
    assert all(forwards.examine(c) == first[c.nodeclaim] for c in candidates)


def test_examination_agrees_with_the_simulation_on_a_fleet_with_rules(ruled_fleet):
    """No node is excluded that the simulation removes; nearly all that pass are confirmed."""
    simulation, candidates = ruled_fleet
    found = examine(simulation, candidates)
    decisions = {c.nodeclaim: compute_consolidation(simulation, (c,)).decision for c in candidates}
    expected = {
        NodeVerdict.DELETABLE: Decision.DELETE,
        NodeVerdict.REPLACEABLE: Decision.REPLACE,
        NodeVerdict.STAYS: Decision.NO_OP,
    }

    wrong = [n for n in found.nodes if expected[n.verdict] is not decisions[n.candidate.nodeclaim]]

    assert not [n for n in wrong if n.verdict is NodeVerdict.STAYS]
    assert len(wrong) <= len(candidates) // 20
