"""What the CRDs admit and the models reject is reported on the object, and the cluster goes on.

The objects are those of the rules, with the values of `differences.Reported`; a NodeClass is resolved by
`test_aws_cloud.py::test_invalid_node_class_gets_a_false_condition`.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api.objects import CAPACITY_BUFFER, NODE_OVERLAY, NODECLAIM, NODEPOOL, condition_of
from tests.contract.crds.all_rules import RULES
from tests.contract.crds.conftest import MODELS
from tests.contract.crds.differences import Reported
from tests.contract.crds.rule import BASES, with_value
from tests.fuzz.healthy_cluster import HealthyCluster
from tests.helpers.fakes import Cluster

RESOURCES = {r.kind: r for r in (NODEPOOL, NODE_OVERLAY, CAPACITY_BUFFER, NODECLAIM)}
CONDITIONS = {
    "NodePool": ("ValidationSucceeded", "NodePoolValidationFailed", "Ready"),
    "NodeOverlay": ("ValidationSucceeded", "RuntimeValidation", "Ready"),
    "CapacityBuffer": ("ReadyForProvisioning", "InvalidSpec", "Provisioning"),
}
"""The condition that says why, its reason, and another one that is False as well."""


def reported_objects(kind):
    """Return an object for each listed value of the kind, with its own name."""
    values = [
        (r.path, value) for r in RULES if r.kind == kind and isinstance(r.because, Reported) for value in r.listed
    ]
    found = []
    for index, (path, value) in enumerate(values):
        name = f"{kind.lower()}-{index}"
        obj = with_value(with_value(BASES[kind], path, value), "metadata.name", name)
        found.append(with_value(with_value(obj, "metadata.uid", f"uid-{name}"), "metadata.generation", 1))
    return found


def healthy_cluster(*objects):
    """Return a healthy cluster with these objects, and with the gates on."""
    healthy = HealthyCluster(objects)
    settings = healthy.cluster.settings
    gates = {"node_overlay": True, "capacity_buffer": True}
    healthy.cluster.settings = replace(settings, feature_gates=replace(settings.feature_gates, **gates))
    return healthy


@pytest.mark.parametrize("kind", CONDITIONS)
def test_conditions_and_events_report_what_cannot_work(kind):
    """They name the field; every healthy object gets what the steps owe it."""
    objects = reported_objects(kind)
    healthy = healthy_cluster(*objects)

    findings = healthy.run()

    assert (findings.stopped, findings.rejected) == ({}, [])
    assert all(findings.served.values()), findings.served
    stored = {raw["metadata"]["name"]: raw for raw in healthy.cluster.server.list(RESOURCES[kind]).items}
    type_, reason, other = CONDITIONS[kind]
    assert len(objects) > 1
    for obj in objects:
        name = obj["metadata"]["name"]
        (problem, *_) = MODELS[kind].validate(obj).causes
        conditions = {c["type"]: c for c in stored[name]["status"]["conditions"]}
        assert conditions[type_]["status"] == conditions[other]["status"] == "False", (obj, problem)
        assert conditions[type_]["reason"] == reason
        assert f"{kind} {name} does not validate: spec" in conditions[type_]["message"], problem
        events = dict(events_on(healthy.cluster, kind, name))
        assert {"ObjectSkipped", type_} <= set(events), (name, events)
        assert conditions[type_]["message"] in events["ObjectSkipped"]


def test_nodeclaims_with_such_values_are_not_launched():
    """Journeyman creates none; a user may. A condition and an Event report it; every healthy object is served."""
    objects = reported_objects("NodeClaim")
    healthy = healthy_cluster(*objects)

    findings = healthy.run()

    assert (findings.stopped, findings.rejected) == ({}, [])
    assert all(findings.served.values()), findings.served
    stored = {claim.metadata.name: claim for claim in healthy.cluster.server.list(NODECLAIM).items}
    for obj in objects:
        name = obj["metadata"]["name"]
        launched = condition_of(stored[name].status.conditions, "Launched")
        assert (launched.status, launched.reason) == ("False", "InvalidSpec"), obj
        assert f"NodeClaim {name} does not validate: spec" in launched.message
        assert launched.message in dict(events_on(healthy.cluster, "NodeClaim", name))["Launched"]
        assert not stored[name].status.provider_id


def events_on(cluster: Cluster, kind, name):
    """Yield (reason, message) of the Events on an object."""
    for event in cluster.record.events:
        if (event.ref.resource.kind, event.ref.name) == (kind, name):
            yield event.reason, event.message
