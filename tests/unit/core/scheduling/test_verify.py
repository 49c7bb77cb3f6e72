"""The second opinion: it passes right plans, and names what is wrong with any other.

Each case takes a right plan, breaks one rule, and looks for the sentence that says so.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import PodError, Results
from journeyman.core.scheduling.scheduler import pods_to_place, solve
from journeyman.core.scheduling.verify import verify
from tests.helpers.builders import (
    LARGE,
    SMALL,
    a_claim,
    a_daemon_set,
    a_node,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    ago,
    an_instance_type,
)

ZONAL = an_instance_type("z.medium", cpu=4, memory_gib=16, price=0.2, zones=("a", "b"))
TAINT = {"key": "gpu", "effect": "NoSchedule"}
ERROR = PodError(kind="unschedulable", message="no place")


def spread(key, **more):
    """A spec that spreads the pods of app `web` with a skew of one."""
    selector = {"matchLabels": {"app": "web"}}
    constraint = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return {"topologySpreadConstraints": [{**constraint, **more}]}


def planned(*pods, types=(SMALL, LARGE), **cluster):
    """A snapshot of these pods, its catalogue, and a plan that is right."""
    snapshot = a_snapshot(pods=pods, **cluster)
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    results = solve(snapshot, catalogue)
    assert objections(snapshot, catalogue, results) == ""
    return snapshot, catalogue, results


def objections(snapshot, catalogue, results, **kwargs):
    """All that is wrong, in one text."""
    return "\n".join(verify(snapshot, catalogue, results, pods=pods_to_place(snapshot), **kwargs))


def with_claim(results, **changes):
    """The plan with its first claim changed."""
    first, *rest = results.new_claims
    return replace(results, new_claims=(replace(first, **changes), *rest))


def onto(node, *keys):
    """A plan that puts these pods on an existing node."""
    return Results(existing={node: keys})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r, "m.small could be launched under its requirements, but is not planned for"),
        (lambda r: with_claim(r, offering=("m.large", "b", labels.SPOT)), "can never be m.large b spot"),
        (lambda r: replace(r, new_claims=r.new_claims * 2), "placed 2 times"),
        (lambda r: replace(r, pod_errors={"default/p0": ERROR}), "placed and yet has an error"),
        (lambda r: with_claim(r, pods=(*r.new_claims[0].pods, "default/ghost")), "does not exist"),
        (lambda r: with_claim(r, pods=("default/p0",)), "default/p1 was forgotten"),
        (lambda r: replace(r, new_claims=(*r.new_claims, replace(r.new_claims[0], pods=()))), "for no pod"),
        (lambda r: with_claim(r, node_pool="gone"), "the NodePool does not exist"),
        (lambda r: with_claim(r, price=0.01), "its cheapest offering costs"),
        (lambda r: with_claim(r, instance_types=("m.huge",)), "m.huge cannot be launched"),
        (lambda r: with_claim(r, instance_types=("m.small", "m.large"), price=0.1), "cpu 4000 wanted, 1920 there"),
    ],
    ids=[
        "more-types",
        "offering",
        "twice",
        "placed-and-error",
        "unknown",
        "forgotten",
        "empty",
        "no-pool",
        "price",
        "type",
        "too-small",
    ],
)
def test_a_claim_that_was_tampered_with_is_found_out(change, words):
    """Bookkeeping, what can be launched, what fits, and what it costs; here requirements also leave open m.small."""
    snapshot, catalogue, results = planned(a_pod("p0", cpu="2"), a_pod("p1", cpu="2"))
    assert len(results.new_claims) == 1
    requirements = tuple(
        replace_values(r, ("m.small", "m.large")) if r.key == labels.INSTANCE_TYPE else r
        for r in results.new_claims[0].requirements
    )
    assert words in objections(snapshot, catalogue, change(with_claim(results, requirements=requirements)))


def replace_values(requirement, values):
    """A requirement with other values."""
    return type(requirement)(key=requirement.key, operator=requirement.operator, values=values)


@pytest.mark.parametrize(
    ("pod_spec", "pool_spec", "words"),
    [
        ({}, {"template": {"spec": {"taints": [TAINT]}}}, "does not tolerate taint gpu="),
        ({"nodeSelector": {labels.ARCH: "arm64"}}, {}, "does not accept its labels"),
        ({}, {"limits": {"cpu": "1"}}, "its limit is 1000"),
        ({}, {"limits": {"nodes": "0"}}, "nodes could reach 1"),
        (
            {},
            {"template": {"spec": {"requirements": [{"key": labels.ARCH, "operator": "In", "values": ["arm64"]}]}}},
            "breaks the NodePool's requirement",
        ),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, {}, "volume"),
        (spread("example.com/rack"), {}, "spreads over example.com/rack"),
    ],
    ids=["taint", "labels", "limit", "nodes", "pool-requirement", "volume", "other-spread"],
)
def test_a_rule_that_the_plan_did_not_know_is_found_broken(pod_spec, pool_spec, words):
    """A plan made for a plain pod, put before a cluster where pod or NodePool has one rule more."""
    _, catalogue, results = planned(a_pod("p"))
    strict = a_snapshot(pods=(a_pod("p", spec=pod_spec),), node_pools=(a_pool(spec=pool_spec),))
    assert words in objections(strict, catalogue, results)


def test_what_daemons_take_is_counted_on_new_nodes():
    """A plan made without a DaemonSet is too tight with it."""
    snapshot, catalogue, results = planned(a_pod("p", cpu="1900m"), types=(SMALL,))
    crowded = replace(snapshot, daemon_sets=(a_daemon_set("agent", cpu="100m"),))
    assert "cpu 1900 wanted, 1820 there" in objections(crowded, catalogue, results)


@pytest.mark.parametrize(
    ("pod_spec", "node", "claim", "words"),
    [
        ({}, {"spec": {"taints": [TAINT]}}, {}, "does not tolerate taint gpu"),
        ({"nodeSelector": {labels.ZONE: "b"}}, {}, {}, "does not accept its labels"),
        ({}, {"spec": {"unschedulable": True}}, {}, "is cordoned"),
        ({}, {"status": {"allocatable": {"cpu": "1500m"}}}, {}, "cpu is overbooked by 500"),
        ({}, {}, {"deleting": ago(minutes=1)}, "is going"),
    ],
    ids=["taint", "labels", "cordoned", "overbooked", "going"],
)
def test_a_wrong_placement_on_an_existing_node_is_found(pod_spec, node, claim, words):
    """Taints, labels, cordons, room and nodes that go away."""
    pod = a_pod("p", spec=pod_spec)
    running = a_pod("r", node="node-default-1")
    snapshot = a_snapshot(pods=(pod, running), nodes=(a_node(**node),), claims=(a_running_claim(**claim),))
    results = replace(onto("node-default-1", "default/p"), pod_errors={"default/r": ERROR} if claim else {})
    assert words in objections(snapshot, Catalogue({}), results)


def test_cordons_and_preferences_do_not_bind_pods_that_may_ignore_them():
    """A toleration covers a cordon; PreferNoSchedule never keeps a pod away."""
    pod = a_pod("p", spec={"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]})
    quiet = {"unschedulable": True, "taints": [{"key": "quiet", "effect": "PreferNoSchedule"}]}
    snapshot = a_snapshot(pods=(pod,), nodes=(a_node(spec=quiet),), claims=(a_running_claim(),))
    assert objections(snapshot, Catalogue({}), onto("node-default-1", "default/p")) == ""


def test_nodes_that_were_to_be_left_out_get_no_pods():
    """Consolidation asks what would become of the cluster without them."""
    snapshot = a_snapshot(pods=(a_pod("p"),), nodes=(a_node(),), claims=(a_running_claim(),))
    results, without = onto("node-default-1", "default/p"), frozenset({"node-default-1"})
    assert objections(snapshot, Catalogue({}), results) == ""
    assert "was to be left out" in objections(snapshot, Catalogue({}), results, without_nodes=without)


def test_a_claim_in_flight_promises_no_more_than_it_asks_for():
    """Before launch nobody knows how large its node will be."""
    snapshot = a_snapshot(pods=(a_pod("p", cpu="4"),), claims=(a_claim(),))
    assert "cpu is overbooked by 1000" in objections(snapshot, Catalogue({}), onto("default-1", "default/p"))


def test_pods_that_spread_over_nodes_must_not_be_put_together():
    """A node may hold maxSkew of them, those that run there included."""
    snapshot, catalogue, results = planned(*(a_pod(f"p{i}", spec=spread(labels.HOSTNAME)) for i in range(2)))
    first, second = results.new_claims
    together = replace(results, new_claims=(replace(first, pods=(*first.pods, *second.pods)),))
    assert "spread allows 1 a node" in objections(snapshot, catalogue, together)


def test_pods_that_spread_over_zones_must_be_level_and_their_zones_pinned():
    """Against the emptiest zone that could take them; an open zone could turn out to be any."""
    snapshot, catalogue, results = planned(
        *(a_pod(f"p{i}", spec=spread(labels.ZONE)) for i in range(2)), types=(ZONAL,)
    )
    first, second = results.new_claims
    moved = replace(first, pods=(*first.pods, *second.pods))
    assert "the emptiest zone has 0" in objections(snapshot, catalogue, replace(results, new_claims=(moved,)))
    opened = tuple(r for r in first.requirements if r.key != labels.ZONE)
    assert "the zone is open: ['a', 'b']" in objections(snapshot, catalogue, with_claim(results, requirements=opened))


def test_too_few_zones_count_as_empty_ones():
    """With minDomains above what there is, the emptiest zone has none."""
    snapshot, catalogue, results = planned(a_pod("p0", cpu="2"), a_pod("p1", cpu="2"))
    assert len(results.new_claims) == 1
    pods = tuple(a_pod(f"p{i}", cpu="2", spec=spread(labels.ZONE, minDomains=3)) for i in range(2))
    assert "spread allows 1 more" in objections(replace(snapshot, pods=pods), catalogue, results)


def test_a_pod_that_a_running_pod_repels_is_not_placed():
    """Required anti-affinity works both ways, and is not understood yet."""
    term = {"topologyKey": labels.HOSTNAME, "labelSelector": {"matchLabels": {"app": "web"}}}
    affinity = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    guard = a_pod("guard", node="node-default-1", spec=affinity, metadata={"labels": {"app": "guard"}})
    snapshot, catalogue, results = planned(a_pod("p"))
    guarded = replace(snapshot, pods=(guard, *snapshot.pods), nodes=(a_node(),), claims=(a_running_claim(),))
    assert "the anti-affinity of pod default/guard selects it" in objections(guarded, catalogue, results)
