"""Consolidation as Karpenter's suite describes it: which nodes are replaced or deleted, and which stay."""

from collections import Counter

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.consolidatable import assess_consolidatable
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.scheduling.results import MinValuesPolicy, Options, PreferencePolicy
from tests.helpers import builders
from tests.helpers.builders import ago, condition, merge
from tests.helpers.disrupting import (
    GRACE,
    PROTECTED,
    a_controller,
    a_pdb,
    a_roomy_member,
    disruption_of,
    first_evaluation,
    proposed,
    with_min_values,
)
from tests.helpers.fleets import TYPES, Member, a_catalogue, a_fleet, a_member, a_pod, a_pool
from tests.helpers.small_clusters import HOST, ZONE, apart, only, prefers, spread, table
from tests.unit.core.disruption.test_candidates import protected_for

BOTH = (labels.ON_DEMAND, labels.SPOT)
FREE = {"metadata": {"labels": {"app": "free"}}}
MANY_TYPES = Catalogue(
    {
        "default": tuple(
            builders.an_instance_type(f"t{i:02}", cpu=4, memory_gib=16, price=1 + i / 100, spot=0.4 + i / 1000)
            for i in range(20)
        )
    }
)
"""Twenty types; each costs a little more than the one before."""

of_both_kinds = pytest.mark.parametrize("kind", BOTH)


def of_kind(capacity_type: str, type_: str = "t19", *, name: str = "n", **changes) -> Member:
    """A node of one of `MANY_TYPES`, by default the dearest, with one pod."""
    changes = {"cpus": ["1"], **changes}
    return a_member(name, size="m", capacity_type=capacity_type, **merge(typed(type_), changes))


def typed(name: str) -> dict:
    """Changes of a member: its instance type."""
    own = {"metadata": {"labels": {labels.INSTANCE_TYPE: name}}}
    return {"node": own, "claim": own}


def decided(*members: Member, kind: str, **parts):
    """What is proposed for nodes of `MANY_TYPES`, with the gate SpotToSpotConsolidation."""
    parts = {"pools": [a_pool(capacity_types=(kind,))], **parts}
    return proposed(a_fleet(*members, **parts), spot_to_spot=True, catalogue=MANY_TYPES)


def cheapest(number: int) -> tuple[str, ...]:
    """The names of so many of `MANY_TYPES`."""
    return tuple(f"t{i:02}" for i in range(number))


# -- replacement ------------------------------------------------------------------------------------------------------


@of_both_kinds
def test_node_is_replaced_also_while_another_nodepool_has_no_instance_types(kind):
    """The replacement may have every cheaper type, of Spot the fifteen cheapest."""
    pools = [a_pool(capacity_types=(kind,)), a_pool("broken", capacity_types=(kind,))]
    for fleet_pools in (pools[:1], pools):
        expected = ("single-node", ["n"], [cheapest(15 if kind == labels.SPOT else 19)])
        assert decided(of_kind(kind), kind=kind, pools=fleet_pools) == expected


@of_both_kinds
@table(
    "node, parts",
    pdb=({}, {"pdbs": (a_pdb(),)}),
    node=({"node": PROTECTED}, {}),
    pod=({"pods": [a_pod("web", node="node-n", **PROTECTED)]}, {}),
)
def test_blocked_node_is_not_replaced(kind, node, parts):
    """Another node beside it is."""
    other = of_kind(kind, name="other", cpus=[], pods=[a_pod("free", node="node-other", **FREE)])
    assert decided(of_kind(kind, **node), other, kind=kind, **parts)[:2] == ("single-node", ["other"])


@of_both_kinds
@table(
    "pdb, ready, replaced",
    not_ready_with_AlwaysAllow=(a_pdb(unhealthyPodEvictionPolicy="AlwaysAllow"), "False", True),
    ready_with_AlwaysAllow=(a_pdb(unhealthyPodEvictionPolicy="AlwaysAllow"), "True", False),
    another_namespace=(
        replace(a_pdb(), metadata=replace(a_pdb().metadata, namespace="elsewhere")), "True", True
    ),
)  # fmt: skip
def test_node_is_replaced_whose_pods_a_pdb_does_not_protect(kind, pdb, ready, replaced):
    """With AlwaysAllow a pod that is not ready may be evicted; a PodDisruptionBudget is for its own namespace."""
    pod = a_pod("web", node="node-n", status={"conditions": [condition("Ready", status=ready)]})
    assert (decided(of_kind(kind, cpus=[], pods=[pod]), kind=kind, pdbs=(pdb,)) is not None) is replaced


@pytest.mark.parametrize(("rank", "replaced"), [(1, False), (14, False), (15, True), (19, True)])
def test_spot_node_of_the_fifteen_cheapest_types_is_not_replaced(rank, replaced):
    """Its replacement could otherwise be replaced again, one type at a time."""
    assert (decided(of_kind(labels.SPOT, f"t{rank:02}"), kind=labels.SPOT) is not None) is replaced


def in_need_of(least: int, kind: str):
    """A NodePool of this capacity type that needs so many instance types."""
    return with_min_values(least, kind=kind, consolidateAfter="30s", budgets=[{"nodes": "100%"}])


@pytest.mark.parametrize(("least", "kept"), [(16, 16), (10, 15)])
def test_spot_replacement_keeps_as_many_types_as_min_values_needs_and_at_least_fifteen(least, kept):
    """They are the cheapest ones."""
    found = decided(of_kind(labels.SPOT), kind=labels.SPOT, pools=[in_need_of(least, labels.SPOT)])
    assert found[2] == [cheapest(kept)]


UNMET = f"minValues requirement is not met for label(s) (label(s)=[{labels.INSTANCE_TYPE}])"


def why_not(snapshot, **options) -> set[str]:
    """Messages of the Events Unconsolidatable."""
    evaluations = a_controller(snapshot, **options).evaluate_methods()
    return {e.message for evaluation in evaluations for e in evaluation.plan.events if e.reason == "Unconsolidatable"}


@of_both_kinds
@pytest.mark.parametrize(("least", "replaced"), [(15, True), (16, False)])
def test_node_is_not_replaced_if_too_few_cheaper_types_are_left_for_min_values(kind, least, replaced):
    """Fifteen types are cheaper; the Event says which requirement is not met."""
    snapshot = a_fleet(of_kind(kind, "t15"), pools=[in_need_of(least, kind)])
    options = {"catalogue": MANY_TYPES, "spot_to_spot": True}
    assert (proposed(snapshot, **options) is not None) is replaced
    assert bool(why_not(snapshot, **options)) is not replaced
    assert all(UNMET in message for message in why_not(snapshot, **options))


def test_min_values_hold_for_consolidation_also_when_provisioning_may_relax_them():
    """Two types exist, and minValues is 3."""
    snapshot = a_fleet(a_member("n", size="xl", cpus=["1"]), pools=[in_need_of(3, labels.ON_DEMAND)])
    catalogue = a_catalogue(of=tuple(t for t in TYPES if t.name in {"s", "xl"}))
    options = {"catalogue": catalogue, "options": Options(min_values=MinValuesPolicy.BEST_EFFORT)}
    assert proposed(snapshot, **options) is None
    assert why_not(snapshot, **options) == {f"Filtering by price: {UNMET}"}


@pytest.mark.parametrize(("dearest", "replaced"), [(1.0, False), (0.49, True)])
def test_node_is_not_replaced_if_one_zone_of_its_spot_replacement_costs_more(dearest, replaced):
    """The launch may choose any zone, so the dearest one counts. The node costs 0.5."""
    zones = {"a": dearest, "b": 0.2, "c": 0.4}
    spots = [
        builders.an_instance_type("spot", cpu=8, memory_gib=32, price=9, zones=(z,), spot=p) for z, p in zones.items()
    ]
    spot = replace(
        builders.an_instance_type("spot", cpu=8, memory_gib=32, price=9, zones=tuple(zones), spot=1),
        offerings=tuple(o for t in spots for o in t.offerings if o.capacity_type == labels.SPOT),
    )
    current = builders.an_instance_type("current", cpu=8, memory_gib=32, price=0.5)
    sold_out = replace(current, offerings=tuple(replace(o, available=False) for o in current.offerings))
    snapshot = a_fleet(a_member("n", size="l", cpus=["1"], **typed("current")), pools=[a_pool(capacity_types=BOTH)])

    assert (proposed(snapshot, catalogue=Catalogue({"default": (sold_out, spot)})) is not None) is replaced


@pytest.mark.parametrize(
    ("capacity_type", "reservations", "expected"),
    [
        (labels.RESERVED, {"l": 0.00002, "s": 0.00001}, ("s",)),
        (labels.ON_DEMAND, {"l": 0.00001}, ("l",)),
        (labels.SPOT, {"l": 0.00001}, ("l",)),
    ],
)
def test_node_is_replaced_by_reserved_capacity(capacity_type, reservations, expected):
    """A reserved node costs next to nothing, so that only a cheaper reservation replaces it."""
    types = tuple(
        builders.with_reservation(t, f"r-{t.name}", price=reservations[t.name]) if t.name in reservations else t
        for t in TYPES
    )
    member = a_member("n", size="l", capacity_type=capacity_type, cpus=["1"])
    snapshot = a_fleet(member, pools=[a_pool(capacity_types=(*BOTH, labels.RESERVED))])

    found = first_evaluation(snapshot, catalogue=a_catalogue(of=types), spot_to_spot=True)

    (claim,) = found.command.replacements
    assert (claim.instance_types, claim.offering.capacity_type) == (expected, labels.RESERVED)


# -- deletion ---------------------------------------------------------------------------------------------------------


def a_small_pod(name="p", node="n", **changes):
    return a_pod(name, node=f"node-{node}", **{"cpu": "500m", **changes})


def a_pair(pod=None, **changes):
    """Node `n` with this pod, or a small one, and node `other` with two, on which it fits."""
    other = a_member("other", size="m", cpus=["500m"] * 2)
    return a_member("n", size="m", pods=[pod or a_small_pod()], **changes), other


@table(
    "members, pdbs, expected",
    no_pdb_selects_its_pod=(a_pair(a_small_pod(**FREE)), (a_pdb(),), "n"),
    not_its_node=(a_pair(node=PROTECTED), (), "other"),
    not_its_pod=(a_pair(a_small_pod(**PROTECTED)), (), "other"),
    terminationGracePeriod_waives_no_annotation=(a_pair(a_small_pod(**PROTECTED), claim=GRACE), (), "other"),
    terminationGracePeriod_waives_no_pdb=(
        (
            a_member("n", size="m", cpus=["500m"], claim=GRACE),
            a_member("other", size="m", pods=[a_small_pod("q", "other", cpu="1", **FREE)]),
        ),
        (a_pdb(),),
        "other",
    ),
    not_within_the_duration=(a_pair(a_small_pod(metadata=protected_for("2h"))), (), "other"),
    after_the_duration=(a_pair(a_small_pod(metadata=protected_for("30m"))), (), "n"),
    an_invalid_duration=(a_pair(a_small_pod(metadata=protected_for("soon"))), (), "n"),
    a_pod_without_owner=(a_pair(a_small_pod(metadata={"ownerReferences": []})), (), "n"),
)
def test_node_is_deleted_whose_pods_may_be_evicted(members, pdbs, expected):
    """Otherwise the other node is deleted. terminationGracePeriod waives nothing for consolidation."""
    found = proposed(a_fleet(*members, pdbs=pdbs, pools=[a_pool(budgets=[{"nodes": "1"}])]))
    assert found[:2] == ("single-node", [expected])


def one_by_one(*rules):
    """Two small nodes with a small pod each that has these rules."""
    spec = rules[0] if rules else {}
    return [a_member(n, size="s", pods=[a_small_pod(f"p-{n}", n, spec=spec)]) for n in ("n1", "n2")]


NEVER = [a_pool(), a_pool("never", consolidateAfter="Never")]
XL = a_member("n", size="xl", pods=[a_pod("p", node="node-n", spec=prefers(only(labels.INSTANCE_TYPE, "xl")))])
MANY = [a_member(f"other{i:02}", cpus=["2"], initialized=i == 7) for i in range(20)]
IGNORE, RESPECT = (Options(preferences=policy) for policy in (PreferencePolicy.IGNORE, PreferencePolicy.RESPECT))


@table(
    "snapshot, options, expected",
    another_nodepool_is_unusable_as_its_NodeClass_does_not_exist=(
        a_fleet(*a_pair(), pools=[a_pool(budgets=[{"nodes": "1"}]), a_pool("broken")]),
        {"catalogue": a_catalogue()},
        ("single-node", ["n"], []),
    ),
    pods_may_move_to_a_node_that_has_no_nodeclaim=(
        replace(a_fleet(*a_pair()), claims=(a_pair()[0].claim,)), {}, ("single-node", ["n"], [])
    ),
    pods_may_move_to_a_node_that_is_never_consolidated=(
        a_fleet(
            a_member("n", cpus=["500m"]), a_member("other", pool="never", size="s", cpus=["500m"]), pools=NEVER
        ),
        {},
        ("single-node", ["n"], []),
    ),
    pods_move_to_the_initialized_one_of_many_nodes=(
        a_fleet(a_member("n", size="s", cpus=["1"]), *MANY), {}, ("single-node", ["n"], [])
    ),
    a_new_node_has_no_pods_of_a_node_within_its_consolidateAfter=(
        a_fleet(a_member("n", size="xl", cpus=["5"]), a_member("fresh", size="m", cpus=["2"])),
        {"fresh": frozenset({"fresh"})},
        ("single-node", ["n"], [("l",)]),
    ),
    not_if_a_pod_must_not_run_beside_another=(a_fleet(*one_by_one(apart(key=HOST))), {}, None),
    without_that_rule_both_fit_on_one_node=(a_fleet(*one_by_one()), {}, ("single-node", ["n1"], [])),
    not_if_it_prefers_not_to=(a_fleet(*one_by_one(prefers(apart(key=HOST)))), {"options": RESPECT}, None),
    unless_preferences_are_ignored=(
        a_fleet(*one_by_one(prefers(apart(key=HOST)))), {"options": IGNORE}, ("single-node", ["n1"], [])
    ),
    not_if_a_pod_prefers_its_type=(a_fleet(XL), {"options": RESPECT}, None),
    unless_its_preference_is_ignored=(a_fleet(XL), {"options": IGNORE}, ("single-node", ["n"], [("s", "m", "l")])),
)  # fmt: skip
def test_node_is_deleted_or_replaced(snapshot, options, expected):
    """While its pods may run elsewhere; PREFERENCE_POLICY decides whether preferences count."""
    assert proposed(snapshot, **options) == expected


def test_replacement_keeps_pods_spread_over_zones():
    """Two zones have a pod each; the replacement for the third pod's node is in its zone."""
    members = [
        a_member(name, size=size, zone=zone, pods=[a_pod(f"p-{name}", node=f"node-{name}", spec=spread(ZONE))])
        for name, size, zone in (("n", "xl", "a"), ("other", "s", "b"))
    ]
    found = first_evaluation(a_fleet(*members))

    assert [c.nodeclaim for c in found.command.candidates] == ["n"]
    assert found.command.replacements[0].offering.zone == "a"


# -- several nodes, budgets -------------------------------------------------------------------------------------------

ROOMY = a_roomy_member(pool="other")
empty_or_busy = pytest.mark.parametrize("cpus", [[], ["10m"]], ids=["empty", "busy"])


@empty_or_busy
@pytest.mark.parametrize(("budget", "number"), [("3", 3), ("100%", 10), ("0%", 0)])
def test_budget_limits_how_many_of_ten_nodes_go_at_once(cpus, budget, number):
    """Whether they are empty, or their pods fit on another node."""
    members = [a_member(f"n{i}", size="s", cpus=cpus) for i in range(10)]
    found = proposed(a_fleet(*members, ROOMY, pools=[a_pool(budgets=[{"nodes": budget}]), a_pool("other")]))
    assert (len(found[1]) if found else 0) == number
    assert found is None or found[0] == ("multi-node" if cpus else "emptiness")


@pytest.mark.parametrize(("leaving", "allowed"), [(0, True), (2, True), (3, False)])
def test_budget_of_three_allows_a_node_until_three_are_being_deleted(leaving, allowed):
    """Single-node consolidation deletes one node for each command."""
    members = [a_member(f"n{i}", size="s", cpus=["100m"], deleting=i < leaving) for i in range(10)]
    snapshot = a_fleet(*members, ROOMY, pools=[a_pool(budgets=[{"nodes": "3"}]), a_pool("other")])
    found = proposed(snapshot, examined_until="multi-node/0")
    assert (found and (found[0], len(found[1]))) == (("single-node", 1) if allowed else None)


@empty_or_busy
@pytest.mark.parametrize(("budget", "number"), [("2", 2), ("100%", 3), ("0", 0)])
def test_each_of_ten_nodepools_has_its_own_budget(cpus, budget, number):
    """One command deletes nodes of all of them."""
    names = [f"pool{i}" for i in range(10)]
    members = [a_member(f"{name}-{i}", pool=name, size="s", cpus=cpus) for name in names for i in range(3)]
    pools = [*(a_pool(name, budgets=[{"nodes": budget}]) for name in names), a_pool("other")]

    found = proposed(a_fleet(*members, ROOMY, pools=pools))

    counts = Counter(claim.partition("-")[0] for claim in (found[1] if found else ()))
    assert counts == Counter(dict.fromkeys(names, number))


# -- while a proposal waits -------------------------------------------------------------------------------------------


def with_late_pod(members, **changes):
    """The members; the first one has another pod."""
    first, *others = members
    late = a_pod("late", node="node-n", cpu="100m", **changes)
    return (Member(node=first.node, claim=first.claim, pods=(*first.pods, late)), *others)


@pytest.mark.parametrize("members", [(a_member("n", size="xl", cpus=["1"]),), a_pair()], ids=["replace", "delete"])
@pytest.mark.parametrize(("pod", "pdbs"), [(PROTECTED, ()), ({}, (a_pdb(),))], ids=["annotation", "pdb"])
def test_proposal_is_rejected_when_a_pod_that_blocks_it_was_bound_meanwhile(members, pod, pdbs):
    """The pod is protected by its annotation or by a PodDisruptionBudget; without it the proposal is valid."""
    pools = [a_pool(budgets=[{"nodes": "1"}])]
    proposal = disruption_of(first_evaluation(a_fleet(*members, pools=pools)))
    later = a_fleet(*with_late_pod(members, **pod), pools=pools, pdbs=pdbs, node_disruptions=(proposal,))
    unchanged = a_fleet(*members, pools=pools, node_disruptions=(proposal,))

    assert a_controller(later).revalidate(proposal).why_not == "churn: a candidate no longer qualifies"
    assert a_controller(unchanged).revalidate(proposal).why_not == ""


def test_empty_nodes_that_stayed_empty_are_deleted_without_the_others():
    """One of two empty nodes got a pod while the proposal waited."""
    members = (a_member("n"), a_member("quiet"))
    proposal = disruption_of(first_evaluation(a_fleet(*members)))
    later = a_fleet(*with_late_pod(members), node_disruptions=(proposal,))
    assert proposal.claims == ("n", "quiet")
    assert [c.nodeclaim for c in a_controller(later).revalidate(proposal).candidates] == ["quiet"]


# -- nodes that are left alone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cpus", [[], ["1"]], ids=["empty", "busy"])
def test_nodes_of_a_static_nodepool_are_neither_deleted_nor_replaced(cpus):
    """A user who sets their Consolidatable condition changes nothing: the step derives it."""
    pool = a_pool()
    static = pool.model_copy(update={"spec": pool.spec.model_copy(update={"replicas": 2})})
    stages = ("Launched", "Registered", "Initialized", "Consolidatable")
    claim = {"status": {"conditions": [condition(t, since=ago(hours=2)) for t in stages]}}
    snapshot = a_fleet(*(a_member(n, size="xl", cpus=cpus, claim=claim) for n in ("n1", "n2")), pools=[static])

    controller = DisruptionController(snapshot, a_catalogue(), assess_consolidatable(snapshot))

    assert not any(e.commands for e in controller.evaluate_methods())


def buffer_pods(number: int, cpu: str):
    """So many virtual pods of a CapacityBuffer."""
    return [a_pod(f"spare{i}", cpu=cpu, metadata={"annotations": {labels.BUFFER_POD: "true"}}) for i in range(number)]


@pytest.mark.parametrize(("buffers", "deleted"), [(0, ["n0", "n1", "n2"]), (1, ["n1", "n2"]), (2, ["n2"]), (3, None)])
def test_empty_nodes_stay_while_buffer_pods_need_them(buffers, deleted):
    """Each node has capacity for one buffer pod."""
    members = [a_member(f"n{i}", size="s") for i in range(3)]
    found = proposed(a_fleet(*members, pending=buffer_pods(buffers, "1500m")))
    assert found == (("emptiness", deleted, []) if deleted else None)


@pytest.mark.parametrize(("buffers", "types"), [(0, ("s", "m", "l")), (2, ("m", "l")), (8, ("l",))])
def test_node_with_pods_and_buffer_pods_is_replaced_by_a_cheaper_one_for_both(buffers, types):
    """The more buffer pods, the larger the replacement."""
    snapshot = a_fleet(a_member("n", size="xl", cpus=["1"]), pending=buffer_pods(buffers, "500m"))
    assert proposed(snapshot) == ("single-node", ["n"], [types])


def test_node_for_the_pods_of_a_deleting_node_is_not_replaced():
    """Two of five pods have moved; the others are still to come, and need its capacity."""
    old = a_member("old", size="l", cpus=["1"] * 3, deleting=True)
    new = a_member("new", size="l", cpus=["1"] * 2)
    assert proposed(a_fleet(new)) == ("single-node", ["new"], [("m",)])
    assert proposed(a_fleet(old, new)) is None


def test_pods_of_deleting_nodes_may_need_a_node_that_is_not_initialized():
    """They are no error of the candidate's simulation; the candidate's own pods would be one."""
    others = a_member("leaving", size="m", cpus=["2"], deleting=True), a_member("joining", size="m", initialized=False)
    n, spare = a_member("n", size="s", cpus=["1"]), a_member("spare", size="s", cpus=["900m"], node=PROTECTED)
    simulation = a_controller(a_fleet(n, spare, *others)).simulation
    assert proposed(a_fleet(n, spare, *others)) == ("single-node", ["n"], [])
    assert "default/leaving-0" in simulation.without(()).results.existing["node-joining"]


def test_node_with_a_local_volume_is_replaced():
    """The volume ends with its node, so that its affinity to that node binds the pod no longer."""
    pod = a_pod("db", node="node-n", owner="StatefulSet", **builders.claims_as_volumes("data"))
    local = {"spec": {"csi": None, "local": {"path": "/mnt"}}}
    parts = {
        "persistent_volume_claims": (builders.a_volume_claim("data", volume="pv", storage_class="local"),),
        "persistent_volumes": (builders.a_volume("pv", {labels.HOSTNAME: ("node-n",)}, **local),),
        "storage_classes": (builders.a_storage_class("local", provisioner="kubernetes.io/no-provisioner"),),
    }

    assert proposed(a_fleet(a_member("n", size="xl", pods=[pod]), **parts))[:2] == ("single-node", ["n"])
