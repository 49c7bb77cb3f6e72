"""The whole scheduler: prices, pods in flight and on deleting nodes, errors, and a public trace; `verify` accepts every plan."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from journeyman.cli.scenario import parse_scenario
from journeyman.cli.solve import options_of
from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman.core.state.snapshot import InvalidObject
from journeyman_simulator.judge import verify_strictly
from tests.helpers import production_trace
from tests.helpers.builders import (
    LARGE,
    NOW,
    TYPES,
    a_claim,
    a_daemon_set,
    a_launched_claim,
    a_node,
    a_node_class,
    a_pod,
    a_running_claim,
    a_snapshot,
    merge,
    provider_id_of,
    stamp,
)
from tests.helpers.karpenter_suite import schedule
from tests.helpers.small_clusters import (
    HOST,
    ZONE,
    apart,
    at,
    by_node,
    listens,
    near,
    only,
    plan,
    selects,
    some,
    spread,
    table,
    zonal,
)

ZONAL = zonal(cpu=4, price=0.2, spot=0.07)


def test_plan_without_pods_has_no_nodeclaims():
    """Its price and lower bound are 0."""
    results = plan().results

    assert (results.new_claims, results.price, results.lower_bound) == ((), 0.0, 0.0)


def test_scheduler_plans_the_cheapest_nodes_that_hold_the_pods():
    """Seven pods get one large node, not two medium ones."""
    results = plan(some(7, "web")).results

    (claim,) = results.new_claims
    assert str(claim.offering) == "m.large/a/on-demand"
    assert results.price == claim.price == 0.37
    assert 0 < results.lower_bound <= results.price


def test_scheduler_does_not_use_unavailable_offerings():
    """Spot is out of stock in every zone, so the NodeClaim is on-demand."""
    offerings = tuple(replace(o, available=o.capacity_type != labels.SPOT) for o in ZONAL.offerings)

    (claim,) = plan(some(1, "web"), types=(replace(ZONAL, offerings=offerings),)).results.new_claims

    assert claim.offering[:3] == ("z.large", "a", labels.ON_DEMAND)


def test_new_node_has_capacity_for_daemonset_pods():
    """Pods of three cores and a DaemonSet pod of one core do not fit on a node of four."""
    found = plan(some(3, "web"), daemon_sets=(a_daemon_set("agent", cpu="1"),))

    assert by_node(found) == "m.large: 3 web"
    assert found.results.new_claims[0].requests["cpu"] == 4000


def test_pod_order_does_not_change_the_plan():
    """The API server lists pods in any order."""
    mixed = [
        *some(5, "web", spread()),
        *some(3, "db", apart("web"), cpu="2"),
        *some(4, "cache", near("web"), cpu="500m"),
        *some(4, "loose", cpu="250m"),
    ]
    catalogue = Catalogue({"default": (ZONAL, LARGE)})

    assert solve(a_snapshot(pods=tuple(mixed)), catalogue) == solve(a_snapshot(pods=tuple(mixed[::-1])), catalogue)


# -- NodeClaims in flight, and the pods that they are planned for


def planned_for(*names, zones=(), **changes):
    """Return the fields of an in-flight NodeClaim that is planned for these pods, in these zones."""
    requirements = [{"key": ZONE, "operator": "In", "values": [*zones]}] if zones else []
    annotations = {labels.PLANNED_PODS: ",".join(f"default/{name}" for name in names)}
    base = {
        "metadata": {"annotations": annotations, "labels": {ZONE: zones[0]} if len(zones) == 1 else {}},
        "spec": {"requirements": requirements},
    }
    return merge(base, changes)


WAITING = {"resources": {"requests": {"cpu": "3", "memory": "4Gi", "pods": "3"}}}
EITHER_ARCH = [
    {"key": ZONE, "operator": "In", "values": ["b"]},
    {"key": labels.ARCH, "operator": "In", "values": ["amd64", "arm64"]},
]
IN_B = a_launched_claim("in-b", **planned_for("web0", "web1", "web2", zones="b"))


@table(
    "pods",
    "claims",
    "cluster",
    "expected",
    initialized_nodes_come_first=(
        [some(1, "web")],
        (a_launched_claim("a"), a_running_claim("b")),
        {"nodes": (a_node("b"),)},
        "node-b: 1 web",
    ),
    planned_pods_stay_while_the_zone_is_open=(
        [some(1, "web", only(ZONE, "a", "b"))],
        (a_claim("c", **planned_for("web0", "gone", zones="ab", spec=WAITING)),),
        {},
        "c: 1 web",
    ),
    a_later_daemon_set_takes_the_place_of_a_planned_pod=(
        [some(2, "web", cpu="2")],
        (a_launched_claim("c", **planned_for("web0", "web1")),),
        {"daemon_sets": (a_daemon_set("agent", cpu="500m"),)},
        "c: 1 web; z.large: 1 web",
    ),
    planned_pods_stay_although_another_zone_became_available=([some(3, "web", spread())], (IN_B,), {}, "in-b: 3 web"),
    a_later_pod_is_spread_around_the_planned_pods=(
        [some(4, "web", spread(), cpu="500m")],
        (IN_B,),
        {},
        "in-b: 3 web; z.large: 1 web",
    ),
    planned_pods_stay_as_far_as_their_spread_allows=(
        [some(2, "web", cpu="1900m", on="a", name="old"), some(4, "web", spread(), cpu="500m")],
        (a_running_claim("a"), a_launched_claim("b", **planned_for("web0", "web1", "web2", "web3", zones="b"))),
        {"nodes": (a_node("a"),), "node_classes": (a_node_class(ready=False),)},
        "b: 3 web; pending: 1 web",
    ),
    pods_leave_a_nodeclaim_that_violates_their_affinity=(
        [some(1, "db", cpu="3800m", on="db"), some(1, "web", near("db"))],
        (a_running_claim("db"), a_launched_claim("late", **planned_for("web0", zones="b"))),
        {"nodes": (a_node("db"),)},
        "z.large: 1 web",
    ),
    pods_leave_a_nodeclaim_that_violates_their_anti_affinity=(
        [some(1, "db", cpu="3800m", on="db"), some(1, "web", apart("db"))],
        (a_running_claim("db"), a_launched_claim("late", **planned_for("web0", zones="b"))),
        {"nodes": (a_node("db", metadata={"labels": {ZONE: "b"}}),)},
        "z.large: 1 web",
    ),
    planned_pods_of_an_unlaunched_nodeclaim_count_for_their_spread=(
        [some(2, "web", spread(minDomains=2), only(labels.ARCH, "amd64", "arm64"), listens(80, cpu="1"))],
        (a_claim("c", **planned_for("web0", "web1", spec={"requirements": EITHER_ARCH})),),
        {"types": (zonal("b"),)},
        "c: 1 web; pending: 1 web",
    ),
    a_pod_that_is_planned_for_two_nodeclaims_stays_on_one=(
        [some(2, "web", cpu="3")],
        tuple(a_launched_claim(name, **planned_for("web0", "web1")) for name in ("first", "second")),
        {},
        "first: 1 web; second: 1 web",
    ),
    a_moving_pod_counts_in_the_zone_that_it_is_planned_for=(
        [some(1, "web", spread(), on="going", name="moving"), some(3, "web", spread())],
        (a_launched_claim("coming", **planned_for("moving0", zones="b")), a_running_claim("going", deleting=NOW)),
        {"nodes": (a_node("going", deleting=NOW),)},
        "coming: 2 web; z.large: 1 web; z.large: 1 web",
    ),
    a_follower_gets_a_node_although_its_target_has_a_small_one=(
        [some(1, "web", cpu="100m", name="reserved"), some(1, "web", near(key=HOST), name="together")],
        (
            a_launched_claim(
                "small",
                **planned_for("reserved0", status={"allocatable": {"cpu": "500m", "memory": "4Gi", "pods": "10"}}),
            ),
            a_launched_claim("wide"),
        ),
        {"types": ()},
        "small: 1 web; wide: 1 web",
    ),
    a_nominated_pod_keeps_its_capacity=(
        [some(1, "old", cpu="3", status={"nominatedNodeName": "node-n"}), some(1, "web", cpu="2")],
        (a_running_claim("n"),),
        {"nodes": (a_node("n"),)},
        "z.large: 1 web",
    ),
    pods_of_a_deleting_node_move=(
        [some(1, "web", on="n")],
        (a_running_claim("n", deleting=NOW),),
        {"nodes": (a_node("n", deleting=NOW),)},
        "z.large: 1 web",
    ),
    a_deleting_nodeclaim_takes_no_pods=(
        [some(1, "web")],
        (a_claim("n", provider_id=provider_id_of("n"), deleting=NOW),),
        {},
        "z.large: 1 web",
    ),
    bound_completed_and_terminating_pods_are_not_scheduled=(
        [
            some(1, "web", on="elsewhere", name="bound"),
            some(1, "web", name="ended", status={"phase": "Succeeded"}),
            some(1, "web", name="going", metadata={"deletionTimestamp": stamp(NOW)}),
        ],
        (),
        {},
        "",
    ),
)
def test_pods_use_the_capacity_that_is_planned_for_them(pods, claims, cluster, expected):
    """A pod stays with the NodeClaim that was created for it, unless a rule forbids that."""
    flat = [pod for each in pods for pod in each]

    assert by_node(schedule(*flat, claims=claims, **{"types": (ZONAL,), **cluster})) == expected


def test_pods_are_rescheduled_without_an_excluded_node():
    """Without node a, its pod fits on node b."""
    nodes, _ = at("a/a:4", "b/b:4")
    snapshot = a_snapshot(
        pods=tuple(some(1, "web", on="a")), nodes=tuple(nodes), claims=(a_running_claim("a"), a_running_claim("b"))
    )

    results = solve(snapshot, Catalogue({"default": TYPES}), pods=snapshot.pods, without_nodes=frozenset({"node-a"}))

    assert results.existing == {"node-b": ("default/web0",)}


# -- pods that get no node


@pytest.mark.parametrize(
    ("pod", "kind", "word"),
    [
        (a_pod("p", cpu="lots"), "invalid", "lots"),
        (a_pod("p", cpu="99"), "unschedulable", "99 vCPU"),
        (a_pod("p", spec=selects(team="red")), "unschedulable", "team"),
        (a_pod("p", spec=selects(zone="mars")), "unschedulable", "met all requirements (none of its 3 has"),
        (a_pod("p", spec=only("team")), "invalid", "at least one value"),
        (a_pod("p", spec={"resourceClaims": [{"name": "gpu"}]}), "unsupported", "esource claim"),
    ],
)
def test_unschedulable_pod_has_an_error_with_the_reason(pod, kind, word):
    """The error says what to change; the other pod is scheduled."""
    results = plan(pod, a_pod("fine")).results

    assert results.pod_errors["default/p"].kind == kind
    assert word in results.pod_errors["default/p"].message
    assert [c.pods for c in results.new_claims] == [("default/fine",)]


def test_pod_error_names_the_only_nodepool_which_is_invalid():
    """The error contains the reason."""
    unread = InvalidObject(kind="NodePool", name="broken", uid="u", why="requirements: operator Is is none")

    results = plan(a_pod("p"), node_pools=(), invalid_objects=(unread,)).results

    assert results.pod_errors["default/p"].by_node_pool == {"broken": "requirements: operator Is is none"}


@pytest.mark.parametrize(
    ("pods", "gpus", "zone_spread", "most"),
    [
        (1000, False, False, 1.05),
        pytest.param(8000, False, False, 1.05, marks=pytest.mark.nightly),
        pytest.param(1000, True, False, 1.06, marks=pytest.mark.slow),
        pytest.param(4000, False, True, 1.07, marks=[pytest.mark.slow, pytest.mark.nightly]),
    ],
)
def test_plan_for_a_production_trace_costs_little_more_than_the_bound(pods, gpus, zone_spread, most):
    """About two pods of the trace fill a node; the bound is that of a linear program that buys nodes in fractions."""
    scenario = production_trace.openb_scenario(pods, gpus=gpus, zone_spread=zone_spread)
    case = parse_scenario(json.dumps(scenario).encode())

    results = solve(case.snapshot, case.catalogue, options=options_of(case))

    assert verify_strictly(case.snapshot, case.catalogue, results, pods=pods_to_schedule(case.snapshot)) == ()
    assert not results.pod_errors
    assert results.price <= most * results.lower_bound
