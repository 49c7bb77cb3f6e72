"""Existing nodes: cached data returns the same results as new data; allocatable, anti-affinity and volumes."""

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
    NOW,
    TYPES,
    a_csi_node,
    a_launched_claim,
    a_node,
    a_pod,
    a_pool,
    a_resize,
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
    """Return a pod of the app `web` with this spec."""
    return a_pod(f"web-{number}", metadata={"labels": {"app": "web"}}, spec=spec, **where)


@pytest.fixture
def cluster():
    """A node for every kind of constraint, a launched NodeClaim with a planned pod, and a NodePool with a limit."""
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
def test_reused_scheduler_returns_the_same_results_as_a_new_one(cluster, with_pending):
    """Each problem is solved twice: nodes are removed, or their pods are rescheduled while the nodes stay."""
    catalogue = Catalogue({pool.metadata.name: TYPES for pool in cluster.node_pools})
    scheduler = Scheduler(cluster, catalogue)
    pending = tuple(pod for pod in cluster.pods if not pod.spec.node_name) if with_pending else ()
    nodes = [node for node in cluster.state_nodes if node.pods]
    questions = [(node.pods, frozenset({node.name})) for node in nodes]
    questions += [(node.pods, frozenset()) for node in nodes]
    questions += [((*nodes[0].pods, *nodes[1].pods), frozenset({nodes[0].name})), ((), frozenset({"node-coming"}))]

    for pods, gone in (*questions, *questions):
        requested_pods = (*pods, *pending)
        assert scheduler.solve(requested_pods, gone) == solve(
            cluster, catalogue, pods=requested_pods, without_nodes=gone
        )


def some_columns(draw, count):
    """Return nodes with random labels and taints; some lack labels, some are cordoned, and some may be equal."""
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
def test_columns_of_a_subset_of_nodes_equal_columns_built_from_that_subset(seed):
    """Labels, topology domains, tolerated taints, terms and pins are equal and in the order of the subset."""
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


def test_node_that_is_overcommitted_on_one_resource_gets_no_pods():
    """A node of four CPUs runs pods that request six; a pod that requests only memory is not scheduled to it."""
    running = tuple(a_pod(f"r{n}", cpu="3", node="node-one") for n in range(2))
    cluster = a_snapshot(
        nodes=(a_node("one"),),
        claims=(a_running_claim("one"),),
        pods=(*running, a_pod("waiting", cpu="0", memory="1Mi")),
    )

    assert solve(cluster, Catalogue({"default": TYPES})).existing == {}


def test_anti_affinity_of_pods_to_reschedule_excludes_no_domain():
    """Two zones run a pod with anti-affinity; a zone is not excluded if its node is removed or its pod rescheduled."""
    apart = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": labels.ZONE, **WEB}]}
    }
    nodes = tuple(a_node(zone, metadata={"labels": {labels.ZONE: zone}}) for zone in "ab")
    running = tuple(a_web_pod(n, {"affinity": apart}, node=f"node-{zone}") for n, zone in enumerate("ab"))
    cluster = a_snapshot(nodes=nodes, claims=tuple(map(a_running_claim, "ab")), pods=running)
    inventory = ClusterInputs.of(cluster, Catalogue({"default": TYPES}), Options()).inventory

    def excluded(*rescheduled, without=()):
        selection = inventory.select(rescheduled, frozenset(without))
        return {domain for entry in inventory.inverse_anti_affinities(selection) for domain in entry.domains}

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
def test_nodeclaim_completes_node_allocatable_until_the_node_is_initialized(of_claim, of_node, initialized, cpu):
    """Without a status the NodeClaim's request of three CPUs counts; the NodeClaim adds a GPU not yet reported."""
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
def test_shared_and_own_volumes_count_against_the_attach_limit(limit, placed):
    """Each pod has its own volume and all share one: the first pod needs two attachments, each other pod one."""
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


@pytest.mark.parametrize(
    ("requested", "status", "is_reused"),
    [
        ("500m", a_resize("3"), False),
        ("3", a_resize("500m", pending="Deferred"), False),
        ("64", a_resize("500m", pending="Infeasible"), True),
    ],
    ids=["shrinks", "growth deferred", "growth infeasible"],
)
def test_node_has_the_space_that_its_resized_pods_leave(requested, status, is_reused):
    """The largest amount counts, and after an infeasible growth what the pod has; one of the same spec is not resized."""
    pods = (
        a_pod("equal", cpu=requested, node="node-other"),
        a_pod("resized", cpu=requested, node="node-default-1", status=status),
        a_pod("next", cpu="2"),
    )
    snapshot = a_snapshot(nodes=(a_node(),), claims=(a_running_claim(),), pods=pods)

    found = solve(snapshot, Catalogue({"default": TYPES}))

    assert found.existing == ({"node-default-1": ("default/next",)} if is_reused else {})


def test_pod_that_moves_counts_with_what_it_holds():
    """Two pods of one spec leave their nodes; no type has what the infeasible growth requests."""
    where = {"node": "node-default-1", "cpu": "64"}
    refused = a_pod("refused", status=a_resize("1", pending="Infeasible"), **where)
    deferred = a_pod("deferred", status=a_resize("1", pending="Deferred"), **where)
    snapshot = a_snapshot(
        nodes=(a_node(deleting=NOW),), claims=(a_running_claim(deleting=NOW),), pods=(deferred, refused)
    )

    found = solve(snapshot, Catalogue({"default": TYPES}))

    assert [(claim.offering.instance_type, claim.pods) for claim in found.new_claims] == [
        ("m.small", ("default/refused",))
    ]
    assert found.pod_errors.keys() == {"default/deferred"}
