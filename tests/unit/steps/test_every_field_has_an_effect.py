"""No field of a NodePool or a NodeClaim is accepted and ignored: a change of each changes what the steps write.

The scenario: three pods get nodes and leave them, nodes are consolidated and expire, and a user deletes what is left.
"""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from journeyman.cloud.aws.fleet_launch import LIMITS
from journeyman.cloud.launch_filter import launchable
from journeyman.core.api import labels
from journeyman.core.api.nodeclaim_schema import NodeClaimSpecSchema
from journeyman.core.api.nodepool import NodePoolSpec
from journeyman.core.api.objects import NODECLAIM, POD
from journeyman.core.plan import Step
from journeyman.ports import ScheduledRun
from journeyman.steps.consolidate import consolidate
from journeyman.steps.context import FeatureGates, Settings
from journeyman.steps.provision import provision
from journeyman.steps.terminate import terminate
from journeyman_simulator.kube_scheduler import KubeScheduler
from journeyman_simulator.kubelet import Kubelets
from tests.helpers.builders import (
    CLUSTER,
    a_claim,
    an_instance_type,
    claim_body,
    merge,
    node_class_body,
    pod_body,
    pool_body,
)
from tests.helpers.fakes import Cluster
from tests.unit.cloud.aws.test_every_field_has_an_effect import field_paths

STEPS = {Step.PROVISION: provision, Step.CONSOLIDATE: consolidate, Step.TERMINATE: terminate}
SECONDS = (0, 60, 60, 60, 600, 60, 60)
TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}
SMALL = {"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["m.small"]}
NEVER, EMPTY_ONLY = {"consolidateAfter": "Never"}, {"consolidationPolicy": "WhenEmpty"}
CLOSED = {"nodes": "0", "schedule": "0 0 1 1 *", "duration": "1h"}


def disruption(**changes: Any) -> dict[str, Any]:
    """Return a NodePool's spec that consolidates at once, with changes."""
    return {"disruption": {"consolidateAfter": "0s", "consolidationPolicy": "WhenEmptyOrUnderutilized", **changes}}


def template(**changes: Any) -> dict[str, Any]:
    """Return a NodePool's spec with changes of its template's spec."""
    return {"template": {"spec": changes}}


# the field's path: changes of the spec without, and with the field's change
OF_A_NODEPOOL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "template.metadata.labels": ({}, {"template": {"metadata": {"labels": {"team": "a"}}}}),
    "template.metadata.annotations": ({}, {"template": {"metadata": {"annotations": {"note": "a"}}}}),
    "template.spec.taints": ({}, template(taints=[TAINT])),
    "template.spec.startupTaints": ({}, template(startupTaints=[TAINT])),
    "template.spec.requirements": ({}, template(requirements=[SMALL])),
    "template.spec.nodeClassRef": ({}, template(nodeClassRef={"name": "missing"})),
    "template.spec.terminationGracePeriod": ({}, template(terminationGracePeriod="5m")),
    "template.spec.expireAfter": ({}, template(expireAfter="5m")),
    "disruption.consolidateAfter": (disruption(), disruption(**NEVER)),
    "disruption.consolidationPolicy": (disruption(), disruption(**EMPTY_ONLY)),
    "disruption.budgets.nodes": (disruption(), disruption(budgets=[{"nodes": "0"}])),
    "disruption.budgets.schedule": (
        disruption(budgets=[{**CLOSED, "schedule": "* * * * *"}]),
        disruption(budgets=[CLOSED]),
    ),
    "disruption.budgets.duration": (
        disruption(budgets=[{**CLOSED, "duration": "8784h"}]),
        disruption(budgets=[CLOSED]),
    ),
    "disruption.budgets.reasons": (
        disruption(budgets=[{"nodes": "0"}]),
        disruption(budgets=[{"nodes": "0", "reasons": ["Drifted"]}]),
    ),
    "limits": ({}, {"limits": {"cpu": "0"}}),
    "weight": ({}, {"weight": 50}),
    "replicas": ({}, {"replicas": 2}),
}
OF_A_NODECLAIM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "taints": ({}, {"taints": [TAINT]}),
    "startupTaints": ({}, {"startupTaints": [TAINT]}),
    "requirements": ({}, {"requirements": [SMALL]}),
    "resources": ({}, {"resources": {"requests": {"cpu": "100"}}}),  # the cloud adapter reads them
    "nodeClassRef": ({}, {"nodeClassRef": {"name": "missing"}}),
    "terminationGracePeriod": ({}, {"terminationGracePeriod": "5m"}),
    "expireAfter": ({}, {"expireAfter": "5m"}),
}


@pytest.mark.parametrize(("listed", "model"), [(OF_A_NODEPOOL, NodePoolSpec), (OF_A_NODECLAIM, NodeClaimSpecSchema)])
def test_every_field_is_listed(listed, model):
    """A new field needs an effect, and a line here."""
    assert set(listed) == set(field_paths(model))


def written(*bodies: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return what the steps write in the scenario, and what they launch, without hashes of the NodePool's template."""
    gates = FeatureGates(static_capacity=True)
    cluster = Cluster(settings=replace(Settings(cluster_name=CLUSTER), feature_gates=gates))
    cluster.add(node_class_body(), *bodies)
    cluster.add(*(pod_body(f"p{number}", cpu="1") for number in range(3)))
    kubelets = Kubelets(cluster.server.acting_as("kubelet"), cluster.clock, cluster.cloud)
    scheduler = KubeScheduler(cluster.server.acting_as("kube-scheduler"), cluster.clock)
    found: list[tuple[Any, ...]] = []
    cluster.server.on_write(
        lambda w: (
            found.append((w.verb, w.resource.kind, w.name, w.subresource, without_hashes(w.body)))
            if w.resource.kind not in {"Event", "Lease", "Pod"}
            else None
        )
    )
    for number, seconds in enumerate(SECONDS):
        cluster.clock.advance(seconds)
        kubelets.act()
        scheduler.act()
        kubelets.act()
        for step, function in STEPS.items():
            trigger = ScheduledRun(id="t", cluster=CLUSTER, step=step, reason="-", time=cluster.clock.now())
            function(cluster.run(), trigger)
        if number == 2:
            for pod in cluster.server.list(POD).items[:2]:
                cluster.server.delete(POD, pod.metadata.name, namespace=pod.metadata.namespace, grace_period_seconds=0)
        if number == len(SECONDS) - 2:
            for claim in cluster.server.list(NODECLAIM).items:
                cluster.server.delete(NODECLAIM, claim.metadata.name)
    return [*found, ("launches", *cluster.cloud.launches)]


def without_hashes(body: Any) -> Any:
    """Return the body without the hash of a NodePool's template, which changes with each of its fields."""
    if not isinstance(body, dict):
        return body
    return {key: without_hashes(value) for key, value in body.items() if "nodepool-hash" not in key}


@pytest.mark.parametrize("field", OF_A_NODEPOOL)
def test_every_field_of_a_nodepool_changes_what_is_written(field):
    """Only the weight needs another NodePool."""
    others = [pool_body("other", spec=disruption(**NEVER))] if field == "weight" else []
    before, after = (
        written(pool_body("mine", spec=merge(disruption(), spec)), *others) for spec in OF_A_NODEPOOL[field]
    )

    assert before
    assert before != after


@pytest.mark.parametrize("field", sorted(OF_A_NODECLAIM.keys() - {"resources"}))
def test_every_field_of_a_nodeclaim_changes_what_is_written(field):
    """A user creates the NodeClaim; the steps launch, register and terminate its node."""
    before, after = (
        written(claim_body("mine", spec=spec), pool_body("mine", spec=disruption())) for spec in OF_A_NODECLAIM[field]
    )

    assert before
    assert before != after


def test_resources_of_a_nodeclaim_exclude_instance_types_that_do_not_fit():
    """The cloud adapter chooses the instance types of a launch."""
    medium = an_instance_type("m.medium", cpu=4, memory_gib=16, price=0.2)
    plain, larger = (a_claim(spec=spec) for spec in ({}, OF_A_NODECLAIM["resources"][1]))

    assert launchable(plain, [medium], LIMITS)
    assert not launchable(larger, [medium], LIMITS)


def test_the_same_objects_are_written_alike():
    """Otherwise every field would seem to have an effect."""
    assert written(pool_body("mine", spec=disruption())) == written(pool_body("mine", spec=disruption()))
    assert timedelta(seconds=sum(SECONDS)) > timedelta(minutes=5)  # the shortest durations above end in the scenario
