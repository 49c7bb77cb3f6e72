"""Provision with volumes, NodeOverlays, CapacityBuffers and default spread constraints."""

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import CAPACITY_BUFFER, NODE_OVERLAY, NODECLAIM, TopologySpreadConstraint
from journeyman.core.plan import Step
from journeyman.core.scheduling.nodeclaim_templates import planned_pods
from journeyman.ports import ClusterChanged
from journeyman.steps.context import FeatureGates
from journeyman.steps.provision import provision
from tests.helpers.builders import (
    LARGE,
    MEDIUM,
    NOW,
    SMALL,
    a_body,
    an_instance_type,
    buffer_body,
    node_class_body,
    overlay_body,
    pod_body,
    pool_body,
)
from tests.helpers.fakes import Cluster

TRIGGER = ClusterChanged(id="1", cluster="demo", step=Step.PROVISION, reason="pods", time=NOW)


@pytest.fixture
def cluster():
    cluster = Cluster()
    cluster.settings = replace(cluster.settings, feature_gates=FeatureGates(node_overlay=True, capacity_buffer=True))
    cluster.add(pool_body(), node_class_body())
    return cluster


def claims(cluster):
    return cluster.server.list(NODECLAIM).items


def conditions_of(cluster, resource, name, **where):
    conditions = cluster.server.get(resource, name, **where)["status"]["conditions"]
    return {c["type"]: (c["status"], c["reason"]) for c in conditions}


def test_a_buffer_launches_one_node_and_its_pods_get_no_events(cluster):
    """The pending NodeClaim has enough capacity for the next run, and the buffer's condition reports it."""
    shape = {"metadata": {"labels": {"app": "spare"}}, "spec": pod_body("x", cpu="1")["spec"]}
    cluster.add(
        a_body("v1", "PodTemplate", "s", namespace="default", template=shape),
        buffer_body("spare", podTemplateRef={"name": "s"}, replicas=3),
    )
    provision(cluster.run(), TRIGGER)
    opened = [c.metadata.name for c in claims(cluster)]
    assert opened
    assert {c.metadata.annotations[labels.PLANNED_PODS] for c in claims(cluster)} == {""}
    assert cluster.record.reasons.count("Nominated") == 0
    assert conditions_of(cluster, CAPACITY_BUFFER, "spare", namespace="default") == {
        "ReadyForProvisioning": ("True", "Resolved"),
        "Provisioning": ("False", "RequiresNewCapacity"),
    }

    cluster.clock.advance(5)
    provision(cluster.run(), TRIGGER)
    assert [c.metadata.name for c in claims(cluster)] == opened
    assert conditions_of(cluster, CAPACITY_BUFFER, "spare", namespace="default")["Provisioning"] == (
        "True",
        "FitsExistingCapacity",
    )


def test_unavailable_capacity_buffer_does_not_affect_pods(cluster):
    shape = {"metadata": {}, "spec": pod_body("x", cpu="500")["spec"]}
    cluster.add(
        a_body("v1", "PodTemplate", "s", namespace="default", template=shape),
        buffer_body("huge", podTemplateRef={"name": "s"}, replicas=1),
        buffer_body("lost", scalableRef={"kind": "Deployment", "name": "gone"}, replicas=1),
        pod_body("p"),
    )
    outcome = provision(cluster.run(), TRIGGER)
    assert outcome.counts.get("pods without a place", 0) == 0
    assert "FailedScheduling" not in cluster.record.reasons
    assert [planned_pods(c.metadata.annotations) for c in claims(cluster)] == [("default/p",)]
    assert (
        conditions_of(cluster, CAPACITY_BUFFER, "huge", namespace="default")["Provisioning"][1] == "RequiresNewCapacity"
    )
    assert (
        conditions_of(cluster, CAPACITY_BUFFER, "lost", namespace="default")["ReadyForProvisioning"][1]
        == "ScalableRefNotFound"
    )


def test_overlay_price_decides_the_type_and_its_status_is_ready(cluster):
    """The NodeClaim has Karpenter's annotation; the condition of an invalid overlay has the error."""
    only = [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": [LARGE.name]}]
    cluster.add(overlay_body("savings-plan", requirements=only, price="0.01"), pod_body("p"))
    provision(cluster.run(), TRIGGER)
    (claim,) = claims(cluster)
    types = next(r.values for r in claim.spec.requirements if r.key == labels.INSTANCE_TYPE)
    assert types[0] == LARGE.name
    assert claim.metadata.annotations[labels.PRICE_OVERLAY_APPLIED] == "true"
    assert conditions_of(cluster, NODE_OVERLAY, "savings-plan")["Ready"] == ("True", "Ready")


def test_default_constraints_spread_the_pods_of_a_service(cluster):
    """kube-scheduler applies the same constraints."""
    small, medium = (
        an_instance_type(t.name, cpu=n, memory_gib=4 * n, price=t.offerings[0].price, zones=("a", "b"))
        for t, n in ((SMALL, 2), (MEDIUM, 4))
    )
    cluster.cloud.types = (medium, small)
    spread = TopologySpreadConstraint(topology_key=labels.ZONE)
    cluster.settings = replace(cluster.settings, default_spread=(spread,))
    service = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"selector": {"app": "web"}}}
    cluster.add({"apiVersion": "v1", "kind": "Service", **service}, pod_body("p0"), pod_body("p1"))
    provision(cluster.run(), TRIGGER)
    zones = {next(r.values for r in c.spec.requirements if r.key == labels.ZONE) for c in claims(cluster)}
    assert zones == {("a",), ("b",)}


def test_plan_is_measured_with_its_unschedulable_pods(cluster):
    """Ten of 15 pods select an instance type that does not exist."""
    for name, count in (("unknown", 10), (LARGE.name, 5)):
        selector = {"nodeSelector": {labels.INSTANCE_TYPE: name}}
        cluster.add(*(pod_body(f"{name.replace('.', '-')}-{n}", cpu="10m", spec=selector) for n in range(count)))

    provision(cluster.run(), TRIGGER)

    found = {o.name: o.value for o in cluster.record.observations if o.labels.get("controller") == "provisioner"}
    assert found["karpenter_scheduler_unschedulable_pods_count"] == 10
    assert found["karpenter_scheduler_scheduling_duration_seconds"] >= 0
