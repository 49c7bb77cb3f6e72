"""A cluster's nodes asked about again and again: what is kept must never show."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Toleration
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.existing_nodes import NodeColumns, allocatable_of
from journeyman.core.scheduling.problem import ClusterInputs, prepare_task
from journeyman.core.scheduling.requirements import of, requirement
from journeyman.core.scheduling.results import Options
from journeyman.core.scheduling.scheduler import Scheduler, solve
from journeyman.core.scheduling.sequential import schedule_sequentially
from journeyman.core.scheduling.topology import Pin
from tests.helpers.builders import (
    TYPES,
    a_csi_node,
    a_launched_claim,
    a_node,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    a_storage_class,
    a_volume_claim,
    claims_as_volumes,
)

NODES = ("one", "two", "three", "four", "five", "six")
WEB = {"labelSelector": {"matchLabels": {"app": "web"}}}
RULES = (
    {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": labels.HOSTNAME, **WEB}]
            }
        }
    },
    {
        "affinity": {
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": labels.ZONE, **WEB}]}
        }
    },
    {
        "topologySpreadConstraints": [
            {"topologyKey": labels.ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **WEB}
        ]
    },
    {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}]},
    claims_as_volumes("data")["spec"],
    {},
)


def a_web_pod(number, spec, **where):
    """One of the pods of an app, with a rule of its own."""
    return a_pod(f"web-{number}", metadata={"labels": {"app": "web"}}, spec=spec, **where)


@pytest.fixture
def cluster():
    """A node for every kind of rule, a claim on its way with a pod planned onto it, a limited pool."""
    running = tuple(a_web_pod(n, RULES[n], node=f"node-{name}") for n, name in enumerate(NODES))
    pending = (a_web_pod("planned", {}), a_web_pod("nominated", {}, status={"nominatedNodeName": "node-one"}))
    planned = {"metadata": {"annotations": {labels.PLANNED_PODS: "default/web-planned"}}}
    nodes = tuple(
        a_node(name, metadata={"labels": {labels.HOSTNAME: f"node-{name}", labels.ZONE: "abc"[n % 3]}})
        for n, name in enumerate(NODES)
    )
    return a_snapshot(
        node_pools=(a_pool(spec={"limits": {"cpu": "32"}}),),
        nodes=tuple(sorted(nodes, key=lambda n: n.metadata.name)),
        claims=tuple(
            sorted((*map(a_running_claim, NODES), a_launched_claim("coming", **planned)), key=lambda c: c.metadata.name)
        ),
        pods=tuple(sorted((*running, *pending), key=lambda p: p.key)),
        persistent_volume_claims=(a_volume_claim("data"),),
        storage_classes=(a_storage_class(),),
        csi_nodes=(a_csi_node("node-five", ebs_csi_aws_com=1), a_csi_node("node-six", ebs_csi_aws_com=1)),
    )


@pytest.mark.parametrize("with_pending", [False, True])
def test_a_question_asked_again_is_answered_as_if_it_were_the_first(cluster, with_pending):
    """Each node thought away, twice over, and pods placed anew without their nodes going."""
    catalogue = Catalogue({pool.metadata.name: TYPES for pool in cluster.node_pools})
    scheduler = Scheduler(cluster, catalogue)
    pending = tuple(pod for pod in cluster.pods if not pod.spec.node_name) if with_pending else ()
    nodes = [node for node in cluster.state_nodes if node.pods]
    questions = [(node.pods, frozenset({node.name})) for node in nodes]
    questions += [(node.pods, frozenset()) for node in nodes]
    questions += [((*nodes[0].pods, *nodes[1].pods), frozenset({nodes[0].name})), ((), frozenset({"node-coming"}))]

    for pods, gone in (*questions, *questions):
        asked = (*pods, *pending)
        assert scheduler.solve(asked, gone) == solve(cluster, catalogue, pods=asked, without_nodes=gone)


def some_columns(draw, count):
    """Labels and taints of nodes, of which some lack labels, some are cordoned, and some are equal."""
    nodes = [
        a_node(
            f"c{n}",
            metadata={"labels": {key: draw.choice("xy") for key in ("one", "two") if draw.random() < 0.7}},
            spec={
                "taints": [{"key": "t", "value": v, "effect": "NoSchedule"} for v in "12" if draw.random() < 0.3],
                "unschedulable": draw.random() < 0.2,
            },
        )
        for n in range(count)
    ]
    return a_snapshot(nodes=tuple(nodes)).state_nodes


@pytest.mark.parametrize("seed", range(20))
def test_columns_of_some_nodes_are_those_of_a_cluster_without_the_others(seed):
    """Labels, taints, cells, tolerations, terms and pins, in the order asked for."""
    draw = random.Random(seed)
    nodes = some_columns(draw, 7)
    places = draw.sample(range(7), draw.randint(0, 5))
    part, alone = NodeColumns(nodes).only(np.array(places, dtype=np.int64)), NodeColumns([nodes[p] for p in places])
    tolerating = (Toleration(key="t", operator="Equal", value="1"),)

    for key in ("one", "two", "none"):
        (codes, values), (own, own_values) = part.label(key), alone.label(key)
        assert [values[c] for c in codes] == [own_values[c] for c in own] == [nodes[p].labels.get(key) for p in places]
    for keys in (("one",), ("one", "two")):
        found = {cell.pins: cell.nodes.tolist() for cell in part.cells(keys)}
        assert found == {cell.pins: cell.nodes.tolist() for cell in alone.cells(keys)}
        assert found == {
            pins: [tuple(Pin(k, nodes[p].labels[k]) for k in keys if k in nodes[p].labels) == pins for p in places]
            for pins in found
        }
        assert all(any(where) for where in found.values())
    for columns, tolerations in itertools.product((part, alone), ((), tolerating)):
        accepted = columns.accepted(tolerations, avoids_prefer_no_schedule=False).tolist()
        assert accepted == [
            not nodes[p].node.spec.unschedulable and all(t.value == "1" and tolerations for t in nodes[p].taints)
            for p in places
        ]
    x, not_y, exists = (
        requirement("one", "In", ("x",)),
        requirement("two", "NotIn", ("y",)),
        requirement("two", "Exists"),
    )
    terms = (of((x, not_y)), of((exists,)))
    assert part.meeting(terms).tolist() == [
        (nodes[p].labels.get("one") == "x" and nodes[p].labels.get("two") != "y") or "two" in nodes[p].labels
        for p in places
    ]
    assert part.pinned((Pin("one", "x"), Pin("two", "y"))).tolist() == [
        nodes[p].labels.get("one") == "x" and nodes[p].labels.get("two") == "y" for p in places
    ]


def test_node_that_is_overcommitted_on_one_axis_takes_nothing():
    """A node of four CPUs runs pods that ask for six; its memory would do."""
    running = tuple(a_pod(f"r{n}", cpu="3", node="node-one") for n in range(2))
    cluster = a_snapshot(
        nodes=(a_node("one"),),
        claims=(a_running_claim("one"),),
        pods=(*running, a_pod("waiting", cpu="0", memory="1Mi")),
    )

    assert solve(cluster, Catalogue({"default": TYPES})).existing == {}


def test_anti_affinity_of_pods_that_move_excludes_no_domain():
    """Of two nodes with such a pod one is removed: only the other's zone is excluded."""
    apart = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": labels.ZONE, **WEB}]}
    }
    nodes = tuple(a_node(zone, metadata={"labels": {labels.ZONE: zone}}) for zone in "ab")
    running = tuple(a_web_pod(n, {"affinity": apart}, node=f"node-{zone}") for n, zone in enumerate("ab"))
    cluster = a_snapshot(nodes=nodes, claims=tuple(map(a_running_claim, "ab")), pods=running)
    inventory = ClusterInputs.of(cluster, Catalogue({"default": TYPES}), Options()).inventory

    def excluded(*asking, without=()):
        standing = inventory.standing(asking, frozenset(without))
        return {domain for entry in inventory.repelled(standing) for domain in entry.domains}

    assert excluded() == {"a", "b"}
    assert excluded(without=("node-a",)) == {"b"}
    assert excluded(running[0]) == {"b"}
    assert excluded(running[1], without=("node-a",)) == set()


@pytest.mark.parametrize(
    ("of_claim", "of_node", "initialized", "cpu"),
    [
        ({}, {}, False, 3000),
        ({"cpu": "4"}, {}, False, 4000),
        ({"cpu": "4"}, {"cpu": "2", "gpu": "0"}, False, 2000),
        ({}, {"cpu": "2"}, False, 2000),
        ({"cpu": "4"}, {"cpu": "2"}, True, 2000),
        ({"cpu": "4"}, {}, True, 4000),
    ],
)
def test_allocatable_is_completed_by_the_claim_until_the_node_is_initialized(of_claim, of_node, initialized, cpu):
    """Its pods ask for three CPUs; a device that the node does not report yet is the claim's."""
    marks = {} if initialized else {labels.INITIALIZED: "false"}
    gpus = {"gpu": "1"} if of_claim else {}
    node = a_node("one", metadata={"labels": marks})
    node = replace(node, status=replace(node.status, allocatable=of_node))
    claim = a_running_claim("one")
    claim = replace(claim, status=replace(claim.status, allocatable={**of_claim, **gpus}))
    (found,) = a_snapshot(nodes=(node,), claims=(claim,)).state_nodes

    allocatable = allocatable_of(found)

    assert allocatable["cpu"] == cpu
    assert allocatable.get("gpu", 0) == (1 if of_claim and not (initialized and of_node) else 0)


@pytest.mark.parametrize(("limit", "placed"), [(2, 1), (3, 2), (4, 3)])
def test_shared_and_own_volumes_count_together_pod_by_pod(limit, placed):
    """Each pod has a volume of its own, all share one; the next pod needs one more attachment."""
    pods = tuple(a_pod(f"p{n}", cpu="100m", **claims_as_volumes(f"own-{n}", "shared")) for n in range(3))
    cluster = a_snapshot(
        nodes=(a_node("one"),),
        claims=(a_running_claim("one"),),
        pods=pods,
        persistent_volume_claims=tuple(map(a_volume_claim, ("own-0", "own-1", "own-2", "shared"))),
        storage_classes=(a_storage_class(),),
        csi_nodes=(a_csi_node("node-one", ebs_csi_aws_com=limit),),
    )
    task = prepare_task(ClusterInputs.of(cluster, Catalogue({"default": TYPES}), Options()), pods, frozenset())

    solution = schedule_sequentially(task.problem, task.initial_solution())

    assert sum(n for entries in solution.on_existing.values() for _, n in entries) == placed
