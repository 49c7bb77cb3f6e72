"""NodePools, NodeClaims and Nodes of other autoscalers: no step writes them, whatever state they are in."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, POD, Resource
from journeyman.core.observability.nodepool_metrics import pool_gauges
from journeyman.core.plan import Step
from journeyman.ports import RequeueDue
from journeyman.steps.consolidate import consolidate
from journeyman.steps.context import FeatureGates
from journeyman.steps.load import EVERYTHING, load
from journeyman.steps.provision import provision
from journeyman.steps.sweep import sweep
from journeyman.steps.terminate import terminate
from tests.helpers.builders import (
    CAPACITY,
    NOW,
    ago,
    claim_body,
    condition,
    merge,
    node_class_body,
    pod_body,
    pool_body,
    stamp,
)
from tests.helpers.fakes import Cluster
from tests.helpers.fleets import a_catalogue

KIND = {"group": "karpenter.example.com", "kind": "OtherNodeClass", "name": "default"}
LABEL = "karpenter.example.com/othernodeclass"
PROVIDER_ID = "example:///i-1"
RAW_NODE, RAW_NODECLAIM, RAW_POD = (
    Resource(kind=r.kind, plural=r.plural, group=r.group, version=r.version, namespaced=r.namespaced, type=dict)
    for r in (NODE, NODECLAIM, POD)
)


@pytest.fixture
def cluster():
    cluster = Cluster()
    cluster.settings = type(cluster.settings)(
        cluster_name="demo", feature_gates=FeatureGates(node_repair=True, static_capacity=True)
    )
    cluster.add(
        pool_body(), node_class_body(), pool_body("others", spec={"template": {"spec": {"nodeClassRef": KIND}}})
    )
    return cluster


def a_foreign_claim(*true, provider_id="", **changes):
    body = claim_body("foreign", provider_id=provider_id, **changes)
    body["metadata"]["labels"] = {labels.NODEPOOL: "others"}
    body["spec"]["nodeClassRef"] = KIND
    if true:
        hour_ago = ago(hours=1)
        body.setdefault("status", {})["conditions"] = [condition(type_, since=hour_ago) for type_ in true]
    return body


def a_foreign_node(*, ready="True", since=NOW, **changes):
    metadata = {
        "name": "foreign",
        "labels": {LABEL: "default", labels.NODEPOOL: "others"},
        "finalizers": [labels.TERMINATION_FINALIZER],
        **changes,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {"providerID": PROVIDER_ID},
        "status": {
            "capacity": {"cpu": "1"},
            "allocatable": dict(CAPACITY),
            "conditions": [condition("Ready", ready, since=since)],
        },
    }


def everything(cluster):
    found = {}
    for resource in (RAW_NODE, RAW_NODECLAIM, NODEPOOL):
        found |= {(resource.kind, o["metadata"]["name"]): o for o in cluster.server.list(resource).items}
    return {key: body for key, body in found.items() if key[1] in {"foreign", "others"}}


def run_all_steps(cluster):
    """Run every step twice, two minutes apart, so that each of them has seen what the others wrote."""
    for _ in range(2):
        for name, step in (
            (Step.PROVISION, provision),
            (Step.TERMINATE, terminate),
            (Step.CONSOLIDATE, consolidate),
            (Step.SWEEP, sweep),
        ):
            trigger = RequeueDue(id="1", cluster="demo", step=name, reason="test", time=cluster.clock.now())
            step(cluster.run(), trigger)
        cluster.clock.advance(timedelta(minutes=2).total_seconds())


JOINED = a_foreign_claim("Launched", "Registered", provider_id=PROVIDER_ID)
INITIALIZED = a_foreign_claim("Launched", "Registered", "Initialized", provider_id=PROVIDER_ID)
LAUNCHED = a_foreign_claim("Launched", provider_id=PROVIDER_ID)
STATES = {
    "new": [a_foreign_claim()],
    "without our finalizer": [a_foreign_claim(metadata={"finalizers": []})],
    "launched an hour ago": [LAUNCHED],
    "joining": [LAUNCHED, a_foreign_node(labels={}, finalizers=[])],
    "registered": [JOINED, a_foreign_node()],
    "initialized, with less than its capacity": [INITIALIZED, a_foreign_node()],
    "without an instance": [INITIALIZED, a_foreign_node(ready="False")],
    "unhealthy": [INITIALIZED, a_foreign_node(ready="False", since=ago(hours=2))],
    "expired": [merge(LAUNCHED, {"spec": {"expireAfter": "1m"}})],
    "deleted": [merge(JOINED, {"metadata": {"deletionTimestamp": stamp(NOW)}}), a_foreign_node()],
    "its node deleted": [JOINED, a_foreign_node(deletionTimestamp=stamp(NOW))],
}


@pytest.mark.parametrize("bodies", STATES.values(), ids=STATES)
def test_nodeclaim_and_node_of_another_autoscaler_are_not_written(cluster, bodies):
    """The steps neither launch, drain nor finalize them, nor evict their pods or record Events on them.

    As in Karpenter, pods of any deleted node get another node.
    """
    cluster.add(*bodies, pod_body("on-foreign", node="foreign"))
    before = everything(cluster)
    run_all_steps(cluster)
    assert everything(cluster) == before
    assert [p.metadata.name for p in cluster.server.list(POD).items if not p.metadata.deletion_timestamp] == [
        "on-foreign"
    ]
    assert "foreign" not in {event.ref.name for event in cluster.record.events}
    assert "foreign" not in cluster.cloud.launches


@pytest.mark.parametrize("spec", [{"weight": 1}, {"weight": -5}, {"replicas": 2}], ids=["valid", "invalid", "static"])
def test_nodepool_of_another_autoscaler_is_not_written(cluster, spec):
    """It gets no status, hash or gauge, also if it does not validate by our rules, and no node for a pending pod."""
    cluster.server.delete(NODEPOOL, "others")
    cluster.add(pool_body("others", spec={**spec, "template": {"spec": {"nodeClassRef": KIND}}}))
    before = everything(cluster)
    cluster.add(pod_body("waits"))
    run_all_steps(cluster)
    assert everything(cluster) == before
    assert [c.metadata.labels[labels.NODEPOOL] for c in cluster.server.list(NODECLAIM).items] == ["default"]
    gauges = pool_gauges(load(cluster.run(), EVERYTHING), a_catalogue("default"))
    assert {sample.labels["nodepool"] for sample in gauges} == {"default"}
