"""Multi-node consolidation: several nodes are deleted at once, with at most one replacement."""

from collections import Counter

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.commands import MAX_CANDIDATES, pages
from journeyman.core.disruption.multi_node_consolidation import multi_node_commands
from tests.helpers import builders
from tests.helpers.disrupting import (
    PROTECTED,
    a_controller,
    a_roomy_member,
    candidates_of,
    disruption_of,
    first_evaluation,
    proposed,
    with_min_values,
)
from tests.helpers.fleets import TYPES, a_fleet, a_member, a_pod, a_pool, price
from tests.helpers.small_clusters import table

BOTH = (labels.ON_DEMAND, labels.SPOT)
of_both_kinds = pytest.mark.parametrize("capacity_type", BOTH)


def attempts(snapshot, **options):
    """All evaluations of the search, with a budget of 100 for each NodePool."""
    controller = a_controller(snapshot)
    budgets = {pool.metadata.name: 100 for pool in snapshot.node_pools}
    return list(multi_node_commands(controller.simulation, candidates_of(snapshot).values(), budgets, **options))


def underused(number: int, *, size: str = "l", **changes):
    """Nodes with one small pod each."""
    return [a_member(f"n{i}", size=size, cpus=["1"], **changes) for i in range(number)]


def small(name: str, *, pods: int = 1, cpu: str = "100m", **changes):
    """A small node with so many pods."""
    return a_member(name, size="s", cpus=[cpu] * pods, **changes)


@of_both_kinds
def test_nodes_are_replaced_by_one_of_another_type(capacity_type):
    """Spot nodes need the feature gate, but no fifteen cheaper types.

    Two small nodes are not replaced by one: deleting the one with fewer pods moves fewer pods for the same saving. Emptiness
    deletes several empty nodes, for the reason Empty, before multi-node consolidation is evaluated.
    """
    kind = {"capacity_type": capacity_type}
    pools = [a_pool(capacity_types=(capacity_type,))]
    two = [small("few", cpu="500m", **kind), small("more", pods=2, cpu="500m", **kind)]
    three, empty = ["n0", "n1", "n2"], [a_member(f"n{i}", **kind) for i in range(3)]

    assert proposed(a_fleet(*underused(3, **kind), pools=pools), spot_to_spot=True) == ("multi-node", three, [("m",)])
    assert proposed(a_fleet(*two, pools=pools), spot_to_spot=True) == ("single-node", ["few"], [])
    assert proposed(a_fleet(*empty, pools=[a_pool(capacity_types=BOTH)])) == ("emptiness", three, [])


def test_spot_and_on_demand_nodes_are_replaced_by_one_together():
    """That needs no feature gate, and the replacement is Spot."""
    members = [*underused(2), a_member("spot", size="l", capacity_type=labels.SPOT, cpus=["1"])]
    found = first_evaluation(a_fleet(*members, pools=[a_pool(capacity_types=BOTH)]))
    assert sorted(c.nodeclaim for c in found.command.candidates) == ["n0", "n1", "spot"]
    assert found.command.replacements[0].offering.capacity_type == labels.SPOT


@pytest.mark.parametrize(
    ("sizes", "cpus", "types"),
    [
        (["xl", "xl", "s"], ["400m"], None),  # s would do, as would deleting both others
        (["xl", "xl", "m"], ["400m"], ("s",)),
        (["xl", "xl", "l"], ["900m"], ("m",)),
    ],
)
def test_replacement_is_cheaper_than_every_candidate_of_a_type_it_may_have(sizes, cpus, types):
    """The comment of `filterOutSameInstanceType` in multinodeconsolidation.go explains it by such nodes."""
    snapshot = a_fleet(*(a_member(f"n{i}", size=size, cpus=cpus) for i, size in enumerate(sizes)))
    found = next(a for a in attempts(snapshot) if len(a.candidates) == 3)
    assert [r.instance_types for r in found.command.replacements] == ([types] if types else [])
    assert found.command.why_not == ("" if types else "Can't replace with a cheaper node")


@pytest.mark.parametrize(("least", "found"), [(1, True), (2, False)])
def test_types_left_below_those_of_the_candidates_must_meet_min_values(least, found):
    """Of s, m and l, all cheaper than both nodes, only s is cheaper than m."""
    members = a_member("n0", size="xl", cpus=["400m"]), a_member("n1", size="m", cpus=["400m"])
    (attempt,) = attempts(a_fleet(*members, pools=[with_min_values(least)]))
    assert bool(attempt.command.replacements) is found
    assert ("minValues" in attempt.command.why_not) is not found


def with_tiny_pod(name: str, **changes):
    """A small node with a pod that requests next to nothing."""
    return a_member(name, size="s", pods=[a_pod(f"p-{name}", node=f"node-{name}", cpu="10m", memory="1Mi", **changes)])


@pytest.mark.parametrize(
    ("nodes", "deletable", "lengths"),
    [
        (1, 1, []),
        (2, 2, [2]),
        (8, 8, [5, 7, 8]),
        (8, 3, [5, 3, 4]),
        (8, 0, [5, 3, 2]),
        (250, 250, [51, 76, 88, 94, 97, 99, 100]),
    ],
)
def test_longest_prefix_that_can_be_consolidated_is_found_by_binary_search(nodes, deletable, lengths):
    """The search considers a hundred candidates at most. `best` is what can be taken if the time is up."""
    pinned = {"spec": {"nodeSelector": {labels.ZONE: "nowhere"}}}
    members = [with_tiny_pod(f"n{i:03}") for i in range(deletable)]
    members += [with_tiny_pod(f"x{i:03}", **pinned) for i in range(nodes - deletable)]
    found = attempts(a_fleet(*members, a_roomy_member()))

    assert [len(a.candidates) for a in found] == lengths
    valid = [length for length in lengths if length <= deletable]
    assert (len(found[-1].best.candidates) if found and found[-1].best else 0) == max(valid, default=0)
    assert max(lengths, default=0) <= MAX_CANDIDATES


@pytest.mark.parametrize(
    ("budgets", "expected"),
    [
        ({"one": "3", "two": "100%"}, {"one": 3, "two": 4}),
        ({"one": "2", "two": "2"}, {"one": 2, "two": 2}),
        ({"one": "0", "two": "100%"}, {"two": 4}),
        ({"one": "0", "two": "0"}, {}),
        ({"one": "1", "two": "0"}, {"one": 1}),
    ],
)
def test_budgets_are_spent_while_nodes_are_chosen(budgets, expected):
    """A single node that budgets allow is left to single-node consolidation."""
    pools = [a_pool(name, budgets=[{"nodes": nodes}]) for name, nodes in budgets.items()]
    members = [small(f"{p}{i}", pool=p) for p in budgets for i in range(4)]

    found = first_evaluation(a_fleet(*members, a_roomy_member(pool="one"), pools=pools))

    counts = Counter(candidate.nodepool for candidate in (found.command.candidates if found else ()))
    assert counts == Counter(expected)
    assert found is None or found.method == ("single-node" if sum(expected.values()) == 1 else "multi-node")


def test_nodes_that_save_most_per_pod_are_consolidated_first():
    """The budget allows two of four."""
    members = [small(name, pods=pods) for name, pods in {"a": 8, "b": 1, "c": 4, "d": 2}.items()]
    snapshot = a_fleet(*members, a_roomy_member(), pools=[a_pool(budgets=[{"nodes": "2"}])])
    assert proposed(snapshot) == ("multi-node", ["b", "d"], [])


@of_both_kinds
def test_single_node_is_consolidated_after_the_validation_of_several_failed(capacity_type):
    """While the proposal waited, two of three nodes got a pod, so that their pods need a larger replacement."""
    pools = [a_pool(capacity_types=(capacity_type,))]
    before = underused(3, capacity_type=capacity_type)
    late = tuple(a_pod(f"late-{i}", node=f"node-n{i}", cpu="6") for i in range(2))
    proposal = disruption_of(first_evaluation(a_fleet(*before, pools=pools), spot_to_spot=True))
    snapshot = a_fleet(*before, pools=pools, pending=late)

    rejected = a_controller(replace(snapshot, node_disruptions=(proposal,)), spot_to_spot=True).revalidate(proposal)

    assert (proposal.spec.method, proposal.claims) == ("multi-node", ("n0", "n1", "n2"))
    assert rejected.why_not == "scheduling: m is no longer an option"
    assert proposed(snapshot, spot_to_spot=True) == ("single-node", ["n2"], [])


@pytest.mark.parametrize(
    ("proposed_types", "why"),
    [
        (("m",), ""),
        (("m", "l"), ""),  # l would be the type of a candidate, which only the search refuses
        (("s", "m"), "scheduling: s is no longer an option"),
    ],
)
def test_validation_of_several_nodes_accepts_any_type_that_still_suits_the_pods(proposed_types, why):
    """The filter of same types decides what is proposed; it is not repeated (validation.go `validateCommand`)."""
    snapshot = a_fleet(*underused(3))
    disruption = disruption_of(first_evaluation(snapshot))
    (replacement,) = disruption.spec.replacements
    changed = replacement.model_copy(update={"instance_types": proposed_types})
    edited = disruption.model_copy(update={"spec": disruption.spec.model_copy(update={"replacements": (changed,)})})

    command = a_controller(replace(snapshot, node_disruptions=(disruption,))).revalidate(edited)

    assert command.why_not == why
    assert tuple(t for r in command.replacements for t in r.instance_types) == (() if why else proposed_types)


def test_same_type_filter_ignores_candidates_of_unknown_price():
    """A candidate whose offering is unknown does not forbid its type, if another node of that type has a price."""
    members = [a_member("n0", size="l", cpus=["900m"]), a_member("n1", size="l", zone="c", cpus=["900m"])]
    dear = builders.an_instance_type("l", cpu=8, memory_gib=32, price=0.8, zones=("a", "b"))
    types = Catalogue({"default": (*(t for t in TYPES if t.name != "l"), dear)})

    found = first_evaluation(a_fleet(*members), catalogue=types)

    assert [r.instance_types for r in found.command.replacements] == [("s", "m")]
    assert found.command.saving == pytest.approx(price("l") - price("s"))


def test_search_considers_as_many_nodes_as_one_nodedisruption_can_hold():
    """Of two dozen nodes with a hundred pods of long names, about twenty; the search starts with half of them."""
    tiny = {"cpu": "1m", "memory": "1Mi"}
    pods = {
        n: [a_pod(f"{'a' * 450}-{n}-{p}", node=f"node-{n}", **tiny) for p in range(100)]
        for n in map(str, range(10, 34))
    }
    members = [a_member(name, pods=each) for name, each in pods.items()]
    controller = a_controller(a_fleet(*members))
    candidates = list(candidates_of(controller.snapshot).values())

    first = next(multi_node_commands(controller.simulation, candidates, {"default": 24}))

    (held, *_) = pages(candidates)
    assert len(held) < 24
    assert len(first.candidates) == (2 + len(held)) // 2


def test_fewer_nodes_are_tried_when_kube_scheduler_may_bind_the_pods_of_all_otherwise():
    """Two nodes with three cores free each take all three pods only if the smaller ones are bound to the same node."""
    full = [a_member(name, cpus=["1"], node=PROTECTED) for name in "ab"]
    removable = [small("n1", cpu="1100m"), small("n2", cpu="1100m"), a_member("n3", size="m", cpus=["2"])]
    assert proposed(a_fleet(*full, *removable)) == ("multi-node", ["n1", "n3"], [])


@table(
    "refused, best",
    a_short_prefix=({"n2": "default/p-n0"}, ["n0", "n1", "n2", "n3", "n4"]),
    the_longest_prefix=({"n4": "default/p-n1"}, ["n0", "n1", "n2", "n3"]),
    all_long_prefixes=(dict.fromkeys(("n2", "n3", "n4"), "default/p-n0"), ["n0", "n1"]),
    every_prefix=(dict.fromkeys(("n1", "n2", "n3", "n4"), "default/p-n0"), None),
    a_pod_that_waits=({"n4": "default/waits"}, ["n0", "n1", "n2", "n3"]),
    all_with_the_first_node=("n0", ["n1", "n2", "n3", "n4"]),
)
def test_prefix_whose_pods_may_find_no_capacity_does_not_end_the_search(refused, best):
    """Longer ones are tried, then shorter ones. `refused` has a pod for the commands whose last node is this one.

    If only the commands with one node are refused, all others go together.
    """

    def unbound(command):
        names = [c.nodeclaim for c in command.candidates]
        return refused.get(names[-1], "") if isinstance(refused, dict) else f"default/p-{refused}" * (refused in names)

    snapshot = a_fleet(*(with_tiny_pod(f"n{i}") for i in range(5)), a_roomy_member())
    taken = attempts(snapshot, unbound=unbound)[-1].best

    assert (taken and [c.nodeclaim for c in taken.candidates]) == best


def test_replacement_is_made_larger_until_its_pods_find_capacity_in_any_order():
    """Of m and l, which are cheaper than the nodes, l takes them in any order."""

    def unbound(command):
        return "default/n0-0" if any(r.offering.instance_type == "m" for r in command.replacements) else ""

    found = attempts(a_fleet(*underused(3, size="xl")), unbound=unbound)
    assert [len(a.candidates) for a in found] == [2, 3]
    assert [r.instance_types for r in found[-1].best.replacements] == [("l",)]
