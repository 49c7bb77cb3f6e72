"""Plans broken on purpose: whatever a decision may get wrong, the second opinion notices.

A few random clusters are planned rightly; every mutation is tried on each plan that it applies to.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.scheduler import pods_to_place, solve
from journeyman.core.scheduling.verify import verify
from tests.helpers.builders import (
    a_daemon_set,
    a_node,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    an_instance_type,
)

SEEDS = range(25)
TYPES = tuple(
    an_instance_type(f"t{cpu}", cpu=cpu, memory_gib=4 * cpu, price=0.05 * cpu, zones=("a", "b"), spot=0.011 * cpu)
    for cpu in (2, 4, 8)
)
TAINT = {"key": "gpu", "effect": "NoSchedule"}
NODE = "node-default-1"


def a_cluster(seed):
    """A NodePool without and one with a taint, a node, a DaemonSet, and pods of several kinds."""
    draw = random.Random(seed)
    specs = [
        {},
        {"nodeSelector": {labels.ZONE: draw.choice(["a", "b"])}},
        {"tolerations": [{"key": "gpu", "operator": "Exists"}], "nodeSelector": {labels.NODEPOOL: "gpu"}},
        {"topologySpreadConstraints": [_spread(labels.HOSTNAME, draw.randint(1, 2))]},
        {"topologySpreadConstraints": [_spread(labels.ZONE, 1)]},
    ]
    pods = []
    for group, spec in enumerate(specs):
        cpu, memory = draw.choice(["500m", "1", "1500m"]), draw.choice(["256Mi", "3Gi"])
        labelled = {"labels": {"app": "web" if "topologySpreadConstraints" in spec else "plain", "group": str(group)}}
        for spread in spec.get("topologySpreadConstraints", ()):
            spread["matchLabelKeys"] = ["group"]
        names = [f"g{group}-{i}" for i in range(draw.randint(2, 6))]
        pods += [a_pod(name, cpu=cpu, memory=memory, spec=spec, metadata=labelled) for name in names]
    tainted = a_pool("gpu", spec={"template": {"spec": {"taints": [TAINT]}}})
    snapshot = a_snapshot(
        node_pools=(a_pool(), tainted),
        pods=tuple(pods),
        nodes=(a_node(),),
        claims=(a_running_claim(),),
        daemon_sets=(a_daemon_set("agent"),),
    )
    return snapshot, Catalogue({pool.metadata.name: TYPES for pool in snapshot.node_pools})


def _spread(key, skew):
    selector = {"matchLabels": {"app": "web"}}
    return {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}


def edit(results, at, **changes):
    """The plan with one claim changed."""
    claims = list(results.new_claims)
    claims[at] = replace(claims[at], **changes)
    return replace(results, new_claims=tuple(claims))


def move_into_other_pool(results, draw):
    """The claim of plain pods opens in the tainted NodePool, or the other way round."""
    at = draw.randrange(len(results.new_claims))
    pool = "gpu" if results.new_claims[at].node_pool == "default" else "default"
    return edit(results, at, node_pool=pool)


def overfill(results, draw):
    """All pods of the plan on one new node."""
    at = draw.randrange(len(results.new_claims))
    everything = tuple(sorted(pod for claim in results.new_claims for pod in claim.pods))
    return replace(results, new_claims=(replace(results.new_claims[at], pods=everything),))


def overfill_the_node(results, draw):
    """The pods of new nodes on the node that is there already."""
    moved = tuple(sorted(pod for claim in results.new_claims for pod in claim.pods))
    return replace(results, new_claims=(), existing={NODE: (*results.existing.get(NODE, ()), *moved)})


def put_twice(results, draw):
    """A pod on two nodes."""
    at, other = draw.randrange(len(results.new_claims)), draw.choice(results.new_claims)
    return edit(results, at, pods=(*results.new_claims[at].pods, other.pods[0]))


def forget(results, draw):
    """A pod on none."""
    at = draw.randrange(len(results.new_claims))
    return edit(results, at, pods=results.new_claims[at].pods[1:])


def change_price(results, draw):
    """A cent off."""
    at = draw.randrange(len(results.new_claims))
    return edit(results, at, price=results.new_claims[at].price - 0.01)


def list_one_type_less(results, draw):
    """A type that may be launched all the same."""
    at = draw.choice([i for i, c in enumerate(results.new_claims) if len(c.instance_types) > 1])
    return edit(results, at, instance_types=results.new_claims[at].instance_types[:-1])


def invent_a_type(results, draw):
    """A type that nobody sells."""
    at = draw.randrange(len(results.new_claims))
    return edit(results, at, instance_types=(*results.new_claims[at].instance_types, "t1024"))


def open_the_types(results, draw):
    """Requirements that no longer say which types: the smallest is too small for some claim."""
    claims = [
        replace(c, requirements=tuple(r for r in c.requirements if r.key != labels.INSTANCE_TYPE))
        for c in results.new_claims
    ]
    return replace(results, new_claims=tuple(claims))


def open_the_zones(results, draw):
    """Requirements that no longer say which zone, though pods asked for one."""
    claims = [
        replace(c, requirements=tuple(r for r in c.requirements if r.key != labels.ZONE)) for c in results.new_claims
    ]
    return replace(results, new_claims=tuple(claims))


def name_another_offering(results, draw):
    """A zone that does not exist."""
    at = draw.randrange(len(results.new_claims))
    name, _, capacity_type = results.new_claims[at].offering
    return edit(results, at, offering=(name, "z", capacity_type))


MUTATIONS = (
    move_into_other_pool,
    overfill,
    overfill_the_node,
    put_twice,
    forget,
    change_price,
    list_one_type_less,
    invent_a_type,
    open_the_types,
    open_the_zones,
    name_another_offering,
)


@pytest.fixture(scope="module")
def plans():
    """The clusters, planned."""
    made = []
    for seed in SEEDS:
        snapshot, catalogue = a_cluster(seed)
        made.append((snapshot, catalogue, solve(snapshot, catalogue)))
    return made


def test_the_plans_are_right_as_they_are(plans):
    """And worth breaking: every one opens several nodes, and pods have places on the node that is there."""
    for snapshot, catalogue, results in plans:
        assert verify(snapshot, catalogue, results, pods=pods_to_place(snapshot)) == ()
        assert not results.pod_errors
        assert len(results.new_claims) > 2
        assert results.existing[NODE]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.__name__)
def test_a_broken_plan_never_passes(plans, mutation):
    """Each way to break a plan is noticed on every one of them."""
    for seed, (snapshot, catalogue, results) in zip(SEEDS, plans, strict=True):
        broken = mutation(results, random.Random(seed))
        assert verify(snapshot, catalogue, broken, pods=pods_to_place(snapshot)), f"seed {seed}"


def test_a_pod_that_loses_its_toleration_is_noticed(plans):
    """The same plan, for pods that no longer tolerate the taint."""
    for snapshot, catalogue, results in plans:
        bare = tuple(
            a_pod(p.metadata.name, spec={"nodeSelector": dict(p.spec.node_selector)}) if p.spec.tolerations else p
            for p in snapshot.pods
        )
        found = verify(replace(snapshot, pods=bare), catalogue, results, pods=bare)
        assert any("does not tolerate taint gpu" in objection for objection in found)
