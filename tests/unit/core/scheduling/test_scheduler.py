"""The whole scheduler on small clusters, one rule at a time, and on a public trace; `verify` accepts every plan."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from journeyman.cli.scenario import parse_scenario
from journeyman.cli.solve import options_of
from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Options
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
    an_instance_type,
    merge,
    provider_id_of,
    stamp,
)

ZONAL = an_instance_type("z.medium", cpu=4, memory_gib=16, price=0.2, zones=("a", "b", "c"), spot=0.07)
ZONAL_B = an_instance_type("z.medium", cpu=4, memory_gib=16, price=0.2, zones=("b",))
HOST = labels.HOSTNAME


def schedule(*pods, types=TYPES, catalogue=None, options=Options(), **cluster):  # noqa: B008 - a frozen value
    """The verified plan for these pods and the other objects of the cluster."""
    snapshot = a_snapshot(pods=tuple(sorted(pods, key=lambda p: p.key)), **cluster)
    catalogue = catalogue or Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    results = solve(snapshot, catalogue, options=options)
    assert verify_strictly(snapshot, catalogue, results, pods=pods_to_schedule(snapshot)) == ()
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
    """The number of pods of the new NodeClaims by zone."""
    counts = {}
    for claim in results.new_claims:
        (zone,) = next(r.values for r in claim.requirements if r.key == labels.ZONE)
        counts[zone] = counts.get(zone, 0) + len(claim.pods)
    return counts


# --- price


def test_plan_without_pods_has_no_nodeclaims():
    """Its price and lower bound are 0."""
    results = schedule()

    assert (results.new_claims, results.price, results.lower_bound) == ((), 0.0, 0.0)


def test_scheduler_plans_the_cheapest_nodes_that_hold_the_pods():
    """Seven pods get one large node, not two medium ones."""
    results = schedule(*pods(7))

    (claim,) = results.new_claims
    assert str(claim.offering) == "m.large/a/on-demand"
    assert results.price == claim.price == 0.37
    assert 0 < results.lower_bound <= results.price


def test_scheduler_does_not_use_unavailable_offerings():
    """Spot is out of stock in every zone, so the NodeClaim is on-demand."""
    offerings = tuple(replace(o, available=o.capacity_type != labels.SPOT) for o in ZONAL.offerings)

    results = schedule(*pods(1), types=(replace(ZONAL, offerings=offerings),))

    assert results.new_claims[0].offering[:3] == ("z.medium", "a", labels.ON_DEMAND)


def test_new_node_has_capacity_for_daemonset_pods():
    """Pods of three cores and a DaemonSet pod of one core do not fit on a node of four."""
    results = schedule(*pods(3), daemon_sets=(a_daemon_set("agent", cpu="1"),))

    (claim,) = results.new_claims
    assert claim.offering[0] == "m.large"
    assert claim.requests["cpu"] == 4000


# --- requirements


def test_pod_error_names_the_only_nodepool_which_is_invalid():
    """The error contains the reason."""
    unread = InvalidObject(kind="NodePool", name="broken", uid="u", why="requirements: operator Is is none")

    results = schedule(a_pod("p"), node_pools=(), invalid_objects=(unread,))

    assert results.pod_errors["default/p"].by_node_pool == {"broken": "requirements: operator Is is none"}


# --- NodePools


# --- spread


# --- existing nodes


def test_initialized_nodes_are_filled_before_in_flight_nodes():
    """The order by name comes second."""
    cluster = {"nodes": (a_node("b"),), "claims": (a_launched_claim("a"), a_running_claim("b"))}

    assert schedule(*pods(1), **cluster).existing == {"node-b": ("default/p0",)}


def planned_for(*names, zone="", **changes):
    """Return the fields of an in-flight NodeClaim planned for these pods, in a zone."""
    requirements = [{"key": labels.ZONE, "operator": "In", "values": [zone]}] if zone else []
    annotations = {labels.PLANNED_PODS: ",".join(f"default/{name}" for name in names)}
    return merge(
        {
            "metadata": {"annotations": annotations, "labels": {labels.ZONE: zone} if zone else {}},
            "spec": {"requirements": requirements},
        },
        changes,
    )


def test_in_flight_nodeclaim_keeps_its_planned_pods():
    """The pod allows both zones in which its node may be, so the scheduler plans no second node."""
    wanted = {"key": labels.ZONE, "operator": "In", "values": ["a", "b"]}
    spec = {"requirements": [wanted], "resources": {"requests": {"cpu": "3", "memory": "4Gi", "pods": "3"}}}
    claim = a_claim(metadata={"annotations": {labels.PLANNED_PODS: "default/p,default/gone"}}, spec=spec)

    results = schedule(a_pod("p", spec=required([(labels.ZONE, "In", ("a", "b"))])), claims=(claim,), types=(ZONAL,))

    assert results.existing == {"default-1": ("default/p",)}
    assert results.new_claims == ()


def test_in_flight_nodeclaim_has_capacity_for_a_later_daemonset():
    """Both planned pods fitted before the DaemonSet; now the second needs another node."""
    claim = a_launched_claim(**planned_for("p0", "p1"))

    results = schedule(*pods(2, cpu="2"), claims=(claim,), daemon_sets=(a_daemon_set("agent", cpu="500m"),))

    assert results.existing == {"default-1": ("default/p0",)}
    assert [c.pods for c in results.new_claims] == [("default/p1",)]


def test_planned_pods_stay_although_another_zone_became_available():
    """Only zone b was available at first; kube-scheduler will bind the pods there, so they need no second node."""
    web = pods(3, spec=spread(labels.ZONE))

    results = schedule(*web, claims=(a_launched_claim(**planned_for("p0", "p1", "p2", zone="b")),), types=(ZONAL,))

    assert results.existing == {"default-1": ("default/p0", "default/p1", "default/p2")}
    assert results.new_claims == ()


def test_later_pod_is_spread_around_the_planned_pods():
    """It goes to zone a, which is empty, not to the NodeClaim in zone b, which has capacity."""
    web = pods(4, cpu="500m", spec=spread(labels.ZONE))

    results = schedule(*web, claims=(a_launched_claim(**planned_for("p0", "p1", "p2", zone="b")),), types=(ZONAL,))

    assert results.existing == {"default-1": ("default/p0", "default/p1", "default/p2")}
    assert [claim.offering[1] for claim in results.new_claims] == ["a"]


def test_planned_pods_stay_only_as_far_as_their_spread_allows():
    """Two pods run in zone a, so three of the four planned for zone b stay; no NodePool is ready."""
    running = [a_pod(f"r{i}", node="node-a", cpu="1900m") for i in range(2)]
    coming = a_launched_claim("b", **planned_for("p0", "p1", "p2", "p3", zone="b"))

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
def test_planned_pod_leaves_a_nodeclaim_that_violates_its_affinity(kind):
    """It is planned for zone b; the pod of its affinity is only in zone a, or that of its anti-affinity in zone b."""
    term = {"topologyKey": labels.ZONE, "labelSelector": {"matchLabels": {"app": "db"}}}
    moody = a_pod("p", spec={"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    where = "a" if kind == "podAffinity" else "b"
    db = a_pod("db", node="node-db", cpu="3800m", metadata={"labels": {"app": "db"}})

    results = schedule(
        moody,
        db,
        nodes=(a_node("db", metadata={"labels": {labels.ZONE: where}}),),
        claims=(a_running_claim("db"), a_launched_claim("late", **planned_for("p", zone="b"))),
        types=(ZONAL,),
    )

    assert results.existing == {}
    assert [claim.offering[1] for claim in results.new_claims] == ["a"]


def test_planned_pods_of_an_unlaunched_nodeclaim_count_for_their_spread():
    """The host port keeps the second pod from this node, and the spread allows no second pod in zone b."""
    listening = {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}
    processors = required([(labels.ARCH, "In", ("amd64", "arm64"))])
    wanted = [{"key": labels.ZONE, "operator": "In", "values": ["b"]}]
    wanted += [{"key": labels.ARCH, "operator": "In", "values": ["amd64", "arm64"]}]
    claim = a_claim(**merge(planned_for("p0", "p1"), {"spec": {"requirements": wanted}}))

    results = schedule(
        *pods(2, spec={**spread(labels.ZONE, minDomains=2), **processors, **listening}),
        claims=(claim,),
        types=(ZONAL_B,),
    )

    assert results.existing == {"default-1": ("default/p0",)}
    assert list(results.pod_errors) == ["default/p1"]


def test_pod_planned_for_two_nodeclaims_stays_on_one():
    """The first NodeClaim by name that has the capacity keeps it."""
    claims = [a_launched_claim(name, **planned_for("p0", "p1")) for name in ("first", "second")]

    results = schedule(*pods(2, cpu="3"), claims=tuple(claims))

    assert results.existing == {"first": ("default/p0",), "second": ("default/p1",)}


def test_spread_counts_a_moving_pod_in_the_zone_it_is_planned_for():
    """Its node in zone a is being deleted; the other three pods are spread as if it ran in zone b."""
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


def test_pod_with_affinity_gets_a_node_although_its_target_has_a_small_one():
    """It does not fit on the NodeClaim planned for its target, and no NodePool has instance types."""
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": labels.HOSTNAME}
    together = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    small = {"status": {"allocatable": {"cpu": "500m", "memory": "4Gi", "pods": "10"}}}

    results = schedule(
        a_pod("reserved", cpu="100m"),
        a_pod("together", cpu="1", spec=together),
        claims=(a_launched_claim("small", **planned_for("reserved", **small)), a_launched_claim("wide")),
        types=(),
    )

    assert results.pod_errors == {}
    assert "default/together" in results.existing["wide"]


def test_nominated_pod_keeps_its_capacity():
    """The scheduler does not plan a nominated pod again, and reserves its capacity."""
    nominated = a_pod("nominated", cpu="3", status={"nominatedNodeName": "node-default-1"})

    results = schedule(nominated, *pods(1, cpu="2"), nodes=(a_node(),), claims=(a_running_claim(),))

    assert results.existing == {}
    assert len(results.new_claims) == 1


def test_pods_of_a_deleting_node_are_rescheduled():
    """The node is being deleted, so its pod gets another node."""
    results = schedule(
        a_pod("moving", node="node-default-1"), nodes=(a_node(deleting=NOW),), claims=(a_running_claim(deleting=NOW),)
    )

    assert [c.pods for c in results.new_claims] == [("default/moving",)]


def test_pods_are_rescheduled_without_an_excluded_node():
    """Without node a, its pod fits on node b."""
    snapshot = a_snapshot(
        pods=(a_pod("p", node="node-a"),),
        nodes=(a_node("a"), a_node("b")),
        claims=(a_running_claim("a"), a_running_claim("b")),
    )

    results = solve(snapshot, Catalogue({"default": TYPES}), pods=snapshot.pods, without_nodes=frozenset({"node-a"}))

    assert results.existing == {"node-b": ("default/p",)}


# --- pods that get no node, and pods to ignore


def test_pod_with_an_unsupported_rule_has_an_error():
    """The error is of kind unsupported and names the rule; the other pod is scheduled."""
    results = schedule(a_pod("odd", spec={"resourceClaims": [{"name": "gpu"}]}), *pods(1))

    assert results.pod_errors["default/odd"].kind == "unsupported"
    assert "resource claim" in results.pod_errors["default/odd"].message.lower()
    assert [c.pods for c in results.new_claims] == [("default/p0",)]


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
def test_unschedulable_pod_has_an_error_with_the_reason(pod, kind, word):
    """The error says what to change; the other pod is scheduled."""
    results = schedule(pod, a_pod("fine"))

    assert results.pod_errors["default/p"].kind == kind
    assert word in results.pod_errors["default/p"].message
    assert [c.pods for c in results.new_claims] == [("default/fine",)]


def test_bound_completed_and_terminating_pods_are_not_scheduled():
    """The plan has no NodeClaims and no errors."""
    ignored = (
        a_pod("bound", node="somewhere"),
        a_pod("ended", status={"phase": "Succeeded"}),
        a_pod("going", metadata={"deletionTimestamp": stamp(NOW)}),
    )

    results = schedule(*ignored)

    assert results.new_claims == ()
    assert results.pod_errors == {}


def test_deleting_nodeclaim_without_a_node_takes_no_pods():
    """It takes no pods before or after its launch."""
    going = a_claim("default-9", provider_id=provider_id_of("default-9"), deleting=NOW)

    assert len(schedule(*pods(1), claims=(going,)).new_claims) == 1


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


RACK = "example.com/rack"


def test_pod_order_does_not_change_the_plan():
    """The API server lists pods in any order."""
    mixed = [
        *pods(5, spec=spread(labels.ZONE)),
        *pods(3, "db", cpu="2", metadata={"labels": {"app": "db"}}),
        *pods(4, "loose", cpu="250m"),
    ]
    catalogue = Catalogue({"default": (ZONAL, LARGE)})

    assert solve(a_snapshot(pods=tuple(mixed)), catalogue) == solve(a_snapshot(pods=tuple(mixed[::-1])), catalogue)
