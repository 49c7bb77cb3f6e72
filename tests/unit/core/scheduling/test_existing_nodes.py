"""A cluster's nodes asked about again and again: what is kept must never show."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.scheduler import Scheduler, solve
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
