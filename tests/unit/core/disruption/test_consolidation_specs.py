"""Consolidation as Karpenter's suite describes it: which nodes are replaced or deleted, and which stay."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.consolidatable import assess_consolidatable
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.scheduling.results import MinValuesPolicy, Options, PreferencePolicy
from tests.helpers import builders
from tests.helpers.builders import ago, condition, merge
from tests.helpers.disrupting import a_controller, disruption_of, first_evaluation, proposed
from tests.helpers.fleets import TYPES, Member, a_catalogue, a_fleet, a_member, a_pod, a_pool
from tests.unit.core.disruption.test_candidates import a_pdb

BOTH = (labels.ON_DEMAND, labels.SPOT)
PROTECTED = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}
KINDS = [labels.ON_DEMAND, labels.SPOT]
MANY_TYPES = Catalogue(
    {
        "default": tuple(
            builders.an_instance_type(f"t{i:02}", cpu=4, memory_gib=16, price=1 + i / 100, spot=0.4 + i / 1000)
            for i in range(20)
        )
    }
)
"""Twenty types; each costs a little more than the one before."""


def of_kind(capacity_type: str, **changes) -> Member:
    """A node of the dearest type of `MANY_TYPES` with one pod."""
    changes = {"cpus": ["1"], **changes}
    return a_member("n", size="m", capacity_type=capacity_type, **merge(typed("t19"), changes))


def typed(name: str) -> dict:
    """Changes of a member: its instance type."""
    own = {"metadata": {"labels": {labels.INSTANCE_TYPE: name}}}
    return {"node": own, "claim": own}


def decided(*members: Member, kind: str, **parts):
    """What is proposed for nodes of `MANY_TYPES`, with the gate SpotToSpotConsolidation."""
    options = {"spot_to_spot": True, "catalogue": parts.pop("catalogue", MANY_TYPES), **parts.pop("options", {})}
    parts = {"pools": [a_pool(capacity_types=(kind,))], **parts}
    return proposed(a_fleet(*members, **parts), **options)


# -- replacement ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_node_is_replaced_also_while_another_nodepool_has_no_instance_types(kind):
    """The replacement may have every cheaper type, of Spot the fifteen cheapest."""
    pools = [a_pool(capacity_types=(kind,)), a_pool("broken", capacity_types=(kind,))]

    for fleet_pools in (pools[:1], pools):
        method, claims, (types,) = decided(of_kind(kind), kind=kind, pools=fleet_pools)
        assert (method, claims) == ("single-node", ["n"])
        assert types == tuple(f"t{i:02}" for i in range(15 if kind == labels.SPOT else 19))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "blocked",
    [
        pytest.param({"pdbs": (a_pdb(),)}, id="pdb"),
        pytest.param({"node": PROTECTED}, id="node"),
        pytest.param({"pods": [a_pod("web", node="node-n", **PROTECTED)]}, id="pod"),
    ],
)
def test_blocked_node_is_not_replaced(kind, blocked):
    """Another node beside it is."""
    parts = {key: blocked[key] for key in blocked if key == "pdbs"}
    changes = {key: blocked[key] for key in blocked if key != "pdbs"}
    other = a_member("other", cpus=["1"], capacity_type=kind, **typed("t19"))
    free = msgspec.structs.replace(
        other.pods[0], metadata=msgspec.structs.replace(other.pods[0].metadata, labels={"app": "free"})
    )
    other = Member(node=other.node, claim=other.claim, pods=(free,))

    method, claims, _ = decided(of_kind(kind, **changes), other, kind=kind, **parts)

    assert (method, claims) == ("single-node", ["other"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("pdb", "ready", "replaced"),
    [
        (a_pdb(unhealthyPodEvictionPolicy="AlwaysAllow"), "False", True),
        (a_pdb(unhealthyPodEvictionPolicy="AlwaysAllow"), "True", False),
        (replace(a_pdb(), metadata=msgspec.structs.replace(a_pdb().metadata, namespace="elsewhere")), "True", True),
    ],
)
def test_node_is_replaced_whose_pods_a_pdb_does_not_protect(kind, pdb, ready, replaced):
    """With AlwaysAllow a pod that is not ready may be evicted; a PodDisruptionBudget is for its own namespace."""
    pod = a_pod("web", node="node-n", status={"conditions": [condition("Ready", status=ready)]})

    found = decided(of_kind(kind, cpus=[], pods=[pod]), kind=kind, pdbs=(pdb,))

    assert (found is not None) is replaced


@pytest.mark.parametrize(("rank", "replaced"), [(1, False), (14, False), (15, True), (19, True)])
def test_spot_node_of_the_fifteen_cheapest_types_is_not_replaced(rank, replaced):
    """Its replacement could otherwise be replaced again, one type at a time."""
    member = a_member("n", capacity_type=labels.SPOT, cpus=["1"], **typed(f"t{rank:02}"))

    assert (decided(member, kind=labels.SPOT) is not None) is replaced


def with_min_values(kind: str, least: int):
    """A NodePool that needs so many instance types."""
    requirements = [
        {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": least},
        {"key": labels.CAPACITY_TYPE, "operator": "In", "values": [kind]},
    ]
    disruption = {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]}
    return builders.a_pool(spec={"template": {"spec": {"requirements": requirements}}, "disruption": disruption})


@pytest.mark.parametrize(("least", "kept"), [(16, 16), (10, 15)])
def test_spot_replacement_keeps_as_many_types_as_min_values_needs_and_at_least_fifteen(least, kept):
    """They are the cheapest ones."""
    pools = [with_min_values(labels.SPOT, least)]

    _, _, (types,) = decided(of_kind(labels.SPOT), kind=labels.SPOT, pools=pools)

    assert types == tuple(f"t{i:02}" for i in range(kept))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("least", "replaced"), [(15, True), (16, False)])
def test_node_is_not_replaced_if_too_few_cheaper_types_are_left_for_min_values(kind, least, replaced):
    """Fifteen types are cheaper; the Event says which requirement is not met."""
    member = a_member("n", capacity_type=kind, cpus=["1"], **typed("t15"))
    snapshot = a_fleet(member, pools=[with_min_values(kind, least)])
    options = {"catalogue": MANY_TYPES, "spot_to_spot": True}

    assert (proposed(snapshot, **options) is not None) is replaced
    assert any(why_not(snapshot, **options)) is not replaced
    for message in why_not(snapshot, **options):
        assert f"minValues requirement is not met for label(s) (label(s)=[{labels.INSTANCE_TYPE}])" in message


def why_not(snapshot, **options) -> set[str]:
    """Messages of the Events Unconsolidatable."""
    evaluations = a_controller(snapshot, **options).evaluate_methods()
    return {e.message for evaluation in evaluations for e in evaluation.plan.events if e.reason == "Unconsolidatable"}


def test_min_values_hold_for_consolidation_also_when_provisioning_may_relax_them():
    """Two types exist, and minValues is 3."""
    snapshot = a_fleet(a_member("n", size="xl", cpus=["1"]), pools=[with_min_values(labels.ON_DEMAND, 3)])
    options = {
        "catalogue": a_catalogue(of=tuple(t for t in TYPES if t.name in {"s", "xl"})),
        "options": Options(min_values=MinValuesPolicy.BEST_EFFORT),
    }

    assert proposed(snapshot, **options) is None
    assert why_not(snapshot, **options) == {
        f"Filtering by price: minValues requirement is not met for label(s) (label(s)=[{labels.INSTANCE_TYPE}])"
    }


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
    all_types = (*BOTH, labels.RESERVED)
    snapshot = a_fleet(
        a_member("n", size="l", capacity_type=capacity_type, cpus=["1"]), pools=[a_pool(capacity_types=all_types)]
    )

    found = first_evaluation(snapshot, catalogue=a_catalogue(of=types), spot_to_spot=True)

    (claim,) = found.command.replacements
    assert (claim.instance_types, claim.offering.capacity_type) == (expected, labels.RESERVED)


# -- deletion ---------------------------------------------------------------------------------------------------------


def a_pair(*pods, **changes):
    """Node `n` with these pods, or one, and node `other` with two, on which they fit."""
    other = a_member("other", size="m", cpus=["500m"] * 2)
    return a_member("n", size="m", pods=pods or [a_pod("p", node="node-n", cpu="500m")], **changes), other


def test_node_is_deleted_while_another_nodepool_is_unusable():
    """Its NodeClass does not exist, so that it has no instance types."""
    pools = [a_pool(budgets=[{"nodes": "1"}]), a_pool("broken")]

    assert proposed(a_fleet(*a_pair(), pools=pools), catalogue=a_catalogue()) == ("single-node", ["n"], [])


def test_pods_may_move_to_a_node_that_has_no_nodeclaim():
    """The only managed node is deleted."""
    n, other = a_pair()
    snapshot = replace(a_fleet(n, other), claims=(n.claim,))

    assert proposed(snapshot) == ("single-node", ["n"], [])


FREE = {"metadata": {"labels": {"app": "free"}}}


def brief(value: str) -> dict:
    """Changes of a pod: its do-not-disrupt annotation; it started an hour ago."""
    return {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: value}}}


@pytest.mark.parametrize(
    ("members", "pdbs", "expected"),
    [
        (a_pair(a_pod("p", node="node-n", cpu="500m", **FREE)), (a_pdb(),), ["n"]),
        (a_pair(node=PROTECTED), (), ["other"]),
        (a_pair(a_pod("p", node="node-n", cpu="500m", **PROTECTED)), (), ["other"]),
        (
            a_pair(
                a_pod("p", node="node-n", cpu="500m", **PROTECTED), claim={"spec": {"terminationGracePeriod": "5m"}}
            ),
            (),
            ["other"],
        ),
        (
            (
                a_member("n", size="m", cpus=["500m"], claim={"spec": {"terminationGracePeriod": "5m"}}),
                a_member("other", size="m", pods=[a_pod("q", node="node-other", cpu="1", **FREE)]),
            ),
            (a_pdb(),),
            ["other"],
        ),
        (a_pair(a_pod("p", node="node-n", cpu="500m", **brief("2h"))), (), ["other"]),
        (a_pair(a_pod("p", node="node-n", cpu="500m", **brief("30m"))), (), ["n"]),
        (a_pair(a_pod("p", node="node-n", cpu="500m", **brief("soon"))), (), ["n"]),
        (a_pair(a_pod("p", node="node-n", cpu="500m", metadata={"ownerReferences": []})), (), ["n"]),
    ],
)
def test_node_is_deleted_whose_pods_may_be_evicted(members, pdbs, expected):
    """Otherwise the other node is deleted. terminationGracePeriod waives nothing for consolidation."""
    found = proposed(a_fleet(*members, pdbs=pdbs, pools=[a_pool(budgets=[{"nodes": "1"}])]))

    assert found[:2] == ("single-node", expected)


def test_pods_may_move_to_a_node_that_is_never_consolidated():
    """Its NodePool has consolidateAfter Never."""
    pools = [a_pool(), a_pool("never", consolidateAfter="Never")]
    snapshot = a_fleet(
        a_member("n", cpus=["500m"]), a_member("other", pool="never", size="s", cpus=["500m"]), pools=pools
    )

    assert proposed(snapshot) == ("single-node", ["n"], [])


def test_node_is_replaced_while_other_nodes_are_within_their_consolidate_after():
    """Only pods that would move to such a node are refused; a new node has none."""
    snapshot = a_fleet(a_member("n", size="xl", cpus=["5"]), a_member("fresh", size="m", cpus=["2"]))

    assert proposed(snapshot, fresh=frozenset({"fresh"})) == ("single-node", ["n"], [("l",)])


def test_pods_move_to_the_initialized_one_of_many_nodes():
    """The others may never initialize."""
    others = [a_member(f"other{i:02}", cpus=["2"], initialized=i == 7) for i in range(20)]

    assert proposed(a_fleet(a_member("n", size="s", cpus=["1"]), *others)) == ("single-node", ["n"], [])


def test_replacement_keeps_pods_spread_over_zones():
    """Two zones have a pod each; the replacement for the third pod's node is in its zone."""
    spread = [
        {
            "maxSkew": 1,
            "topologyKey": labels.ZONE,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
    ]

    def member(name, size, zone):
        pod = a_pod(f"p-{name}", node=f"node-{name}", spec={"topologySpreadConstraints": spread})
        return a_member(name, size=size, zone=zone, pods=[pod])

    snapshot = a_fleet(member("n", "xl", "a"), member("other", "s", "b"))

    found = first_evaluation(snapshot)

    assert [c.nodeclaim for c in found.command.candidates] == ["n"]
    assert found.command.replacements[0].offering.zone == "a"


@pytest.mark.parametrize(("apart", "deleted"), [(True, False), (False, True)])
def test_node_is_not_deleted_if_its_pod_must_not_run_beside_another(apart, deleted):
    """Without the rule both pods fit on one node."""
    term = {"topologyKey": labels.HOSTNAME, "labelSelector": {"matchLabels": {"app": "web"}}}
    rule = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    members = [
        a_member(n, size="s", pods=[a_pod(f"p-{n}", node=f"node-{n}", cpu="500m", spec=rule if apart else {})])
        for n in ("n1", "n2")
    ]

    assert (proposed(a_fleet(*members)) is not None) is deleted


@pytest.mark.parametrize(
    ("members", "respect", "ignore"),
    [
        (
            [
                a_member(
                    n,
                    size="s",
                    pods=[
                        a_pod(
                            f"p-{n}",
                            node=f"node-{n}",
                            cpu="500m",
                            spec={
                                "affinity": {
                                    "podAntiAffinity": {
                                        "preferredDuringSchedulingIgnoredDuringExecution": [
                                            {
                                                "weight": 1,
                                                "podAffinityTerm": {
                                                    "topologyKey": labels.HOSTNAME,
                                                    "labelSelector": {"matchLabels": {"app": "web"}},
                                                },
                                            }
                                        ]
                                    }
                                }
                            },
                        )
                    ],
                )
                for n in ("n1", "n2")
            ],
            None,
            ("single-node", ["n1"], []),
        ),
        (
            [
                a_member(
                    "n",
                    size="xl",
                    pods=[
                        a_pod(
                            "p",
                            node="node-n",
                            spec={
                                "affinity": {
                                    "nodeAffinity": {
                                        "preferredDuringSchedulingIgnoredDuringExecution": [
                                            {
                                                "weight": 1,
                                                "preference": {
                                                    "matchExpressions": [
                                                        {
                                                            "key": labels.INSTANCE_TYPE,
                                                            "operator": "In",
                                                            "values": ["xl"],
                                                        }
                                                    ]
                                                },
                                            }
                                        ]
                                    }
                                }
                            },
                        )
                    ],
                )
            ],
            None,
            ("single-node", ["n"], [("s", "m", "l")]),
        ),
    ],
)
def test_preferences_keep_a_node_unless_they_are_ignored(members, respect, ignore):
    """PREFERENCE_POLICY decides."""
    for policy, expected in ((PreferencePolicy.RESPECT, respect), (PreferencePolicy.IGNORE, ignore)):
        assert proposed(a_fleet(*members), options=Options(preferences=policy)) == expected


# -- several nodes, budgets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["empty", "busy"])
@pytest.mark.parametrize(("budget", "number"), [("3", 3), ("100%", 10), ("0%", 0)])
def test_budget_limits_how_many_of_ten_nodes_go_at_once(kind, budget, number):
    """Whether they are empty, or their pods fit on another node."""
    cpus = ["100m"] if kind == "busy" else []
    members = [a_member(f"n{i}", size="s", cpus=cpus) for i in range(10)]
    roomy = a_member("roomy", pool="other", size="xl", node=PROTECTED)
    pools = [a_pool(budgets=[{"nodes": budget}]), a_pool("other")]

    found = proposed(a_fleet(*members, roomy, pools=pools))

    assert (len(found[1]) if found else 0) == number
    assert found is None or found[0] == ("emptiness" if kind == "empty" else "multi-node")


@pytest.mark.parametrize(("leaving", "allowed"), [(0, True), (2, True), (3, False)])
def test_budget_of_three_allows_a_node_until_three_are_being_deleted(leaving, allowed):
    """Single-node consolidation deletes one node for each command."""
    members = [a_member(f"n{i}", size="s", cpus=["100m"], deleting=i < leaving) for i in range(10)]
    roomy = a_member("roomy", pool="other", size="xl", node=PROTECTED)
    snapshot = a_fleet(*members, roomy, pools=[a_pool(budgets=[{"nodes": "3"}]), a_pool("other")])

    found = proposed(snapshot, examined_until="multi-node/0")

    assert (found[0] if found else None) == ("single-node" if allowed else None)
    assert found is None or len(found[1]) == 1


@pytest.mark.parametrize("kind", ["empty", "busy"])
@pytest.mark.parametrize(("budget", "number"), [("2", 2), ("100%", 3), ("0", 0)])
def test_each_of_ten_nodepools_has_its_own_budget(kind, budget, number):
    """One command deletes nodes of all of them."""
    names = [f"pool{i}" for i in range(10)]
    cpus = ["10m"] if kind == "busy" else []
    members = [a_member(f"{name}-{i}", pool=name, size="s", cpus=cpus) for name in names for i in range(3)]
    roomy = a_member("roomy", pool="other", size="xl", node=PROTECTED)
    pools = [*(a_pool(name, budgets=[{"nodes": budget}]) for name in names), a_pool("other")]

    found = proposed(a_fleet(*members, roomy, pools=pools))

    counts = Counter(claim.partition("-")[0] for claim in (found[1] if found else ()))
    assert counts == Counter(dict.fromkeys(names, number))


# -- while a proposal waits -------------------------------------------------------------------------------------------

OVERSIZED = a_member("n", size="xl", cpus=["1"])
SPARE = a_pair()


def with_late_pod(members, pod):
    """The members; the first one has this pod too."""
    first, *others = members
    return (Member(node=first.node, claim=first.claim, pods=(*first.pods, pod)), *others)


LATE = "late"


@pytest.mark.parametrize(
    ("members", "pod", "pdbs"),
    [
        ((OVERSIZED,), a_pod(LATE, node="node-n", cpu="100m", **PROTECTED), ()),
        ((OVERSIZED,), a_pod(LATE, node="node-n", cpu="100m"), (a_pdb(),)),
        (SPARE, a_pod(LATE, node="node-n", cpu="100m", **PROTECTED), ()),
        (SPARE, a_pod(LATE, node="node-n", cpu="100m"), (a_pdb(),)),
    ],
)
def test_proposal_is_rejected_when_a_pod_that_blocks_it_was_bound_meanwhile(members, pod, pdbs):
    """The pod is protected by its annotation or by a PodDisruptionBudget; without it the proposal is valid."""
    pools = [a_pool(budgets=[{"nodes": "1"}])]
    proposal = disruption_of(first_evaluation(a_fleet(*members, pools=pools)))
    later = a_fleet(*with_late_pod(members, pod), pools=pools, pdbs=pdbs, node_disruptions=(proposal,))
    unchanged = a_fleet(*members, pools=pools, node_disruptions=(proposal,))

    assert a_controller(later).revalidate(proposal).why_not == "churn: a candidate no longer qualifies"
    assert a_controller(unchanged).revalidate(proposal).why_not == ""


def test_empty_nodes_that_stayed_empty_are_deleted_without_the_others():
    """One of two empty nodes got a pod while the proposal waited."""
    members = (a_member("n"), a_member("quiet"))
    proposal = disruption_of(first_evaluation(a_fleet(*members)))
    later = a_fleet(*with_late_pod(members, a_pod(LATE, node="node-n")), node_disruptions=(proposal,))

    command = a_controller(later).revalidate(proposal)

    assert proposal.claims == ("n", "quiet")
    assert [c.nodeclaim for c in command.candidates] == ["quiet"]


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


def a_buffer_pod(name: str, cpu: str = "500m"):
    """A virtual pod of a CapacityBuffer."""
    return a_pod(name, cpu=cpu, metadata={"annotations": {labels.BUFFER_POD: "true"}})


@pytest.mark.parametrize(("buffers", "deleted"), [(0, ["n0", "n1", "n2"]), (1, ["n1", "n2"]), (2, ["n2"]), (3, None)])
def test_empty_nodes_stay_while_buffer_pods_need_them(buffers, deleted):
    """Each node has capacity for one buffer pod."""
    members = [a_member(f"n{i}", size="s") for i in range(3)]
    pending = [a_buffer_pod(f"spare{i}", cpu="1500m") for i in range(buffers)]

    assert proposed(a_fleet(*members, pending=pending)) == (("emptiness", deleted, []) if deleted else None)


@pytest.mark.parametrize(("buffers", "types"), [(0, ("s", "m", "l")), (2, ("m", "l")), (8, ("l",))])
def test_node_with_pods_and_buffer_pods_is_replaced_by_a_cheaper_one_for_both(buffers, types):
    """The more buffer pods, the larger the replacement."""
    pending = [a_buffer_pod(f"spare{i}") for i in range(buffers)]

    assert proposed(a_fleet(a_member("n", size="xl", cpus=["1"]), pending=pending)) == ("single-node", ["n"], [types])


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
