"""CapacityBuffers: how many pods they stand for, what those look like, and what is said of them."""

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.capacity_buffer import CapacityBuffer, CapacityBufferSpec
from journeyman.core.api.model import parse
from journeyman.core.api.objects import CAPACITY_BUFFER
from journeyman.core.api.workloads import PodTemplate, Workload
from journeyman.core.catalogue import Catalogue
from journeyman.core.lifecycle.capacity_buffer_status import reconcile_capacity_buffers
from journeyman.core.lifecycle.provisioning import create_nodeclaims
from journeyman.core.scheduling.capacity_buffers import (
    MAX_PODS_PER_BUFFER,
    buffer_of,
    nodes_hosting_buffers,
    resolve_buffers,
    virtual_pods,
    without_virtual_pods,
)
from journeyman.core.scheduling.nodeclaim_templates import planned_pods
from journeyman.core.scheduling.results import PlannedClaim, PodError, Results
from journeyman.core.scheduling.scheduler import solve
from journeyman.core.scheduling.verify import verify
from journeyman.core.state import Workloads
from journeyman.core.state.pod_predicates import is_provisionable, is_virtual_pod
from journeyman.errors import InvalidObjectError
from tests.helpers.builders import (
    NOW,
    TYPES,
    a_node,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    buffer_body,
    merge,
    pod_body,
)
from tests.unit.cloud.aws.test_every_field_has_an_effect import field_paths


def template(*, cpu="1", memory="1Gi", **changes):
    spec = merge(pod_body("x", cpu=cpu, memory=memory)["spec"], changes)
    return {"metadata": {"labels": {"app": "web"}, "creationTimestamp": None}, "spec": spec}


def named(kind, name, **fields):
    return msgspec.convert({"metadata": {"name": name, "namespace": "default", "generation": 4}, **fields}, kind)


def workloads(replicas=10, **changes):
    return Workloads(
        pod_templates=(named(PodTemplate, "shape", template=template(**changes)),),
        deployments=(named(Workload, "web", spec={"replicas": replicas, "template": template(**changes)}),),
        stateful_sets=(named(Workload, "db", spec={"template": template(**changes)}),),
    )


def a_buffer(name="spare", **spec):
    return parse(CapacityBuffer, buffer_body(name, **spec))


OF_SHAPE = {"podTemplateRef": {"name": "shape"}}
OF_WEB = {"scalableRef": {"apiGroup": "apps", "kind": "Deployment", "name": "web"}}


def resolved(found=None, **spec):
    (one,) = resolve_buffers([a_buffer(**spec)], found or workloads())
    return one


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({**OF_SHAPE, "replicas": 3}, 3),
        ({**OF_SHAPE, "replicas": 0}, 0),
        ({**OF_SHAPE, "limits": {"cpu": "4500m", "memory": "64Gi"}}, 4),
        ({**OF_SHAPE, "replicas": 9, "limits": {"memory": "2Gi"}}, 2),
        ({**OF_SHAPE, "replicas": 9, "limits": {"pods": "7"}}, 7),
        ({**OF_SHAPE, "replicas": 2, "limits": {"nvidia.com/gpu": 1}}, 2),
        ({**OF_SHAPE, "limits": {"nvidia.com/gpu": 1}}, 0),
        ({**OF_WEB, "percentage": 25}, 3),
        ({**OF_WEB, "percentage": 1}, 1),
        ({**OF_WEB, "percentage": 0}, 0),
        ({**OF_WEB, "percentage": 50, "replicas": 2}, 5),
        ({**OF_WEB, "percentage": 50, "replicas": 8, "limits": {"cpu": 6}}, 6),
        ({**OF_WEB}, 0),
        ({"scalableRef": {"kind": "StatefulSet", "name": "db"}, "percentage": 100}, 1),
        ({**OF_SHAPE, "replicas": 2_000_000}, MAX_PODS_PER_BUFFER),
    ],
)
def test_the_larger_of_replicas_and_percentage_counts_within_limits(spec, count):
    """A percentage is rounded up; limits alone say how many; what the pods do not ask for limits nothing."""
    assert resolved(**spec).replicas == count


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"podTemplateRef": {"name": "gone"}, "replicas": 1}, "PodTemplateNotFound"),
        ({"scalableRef": {"kind": "Deployment", "name": "gone"}, "replicas": 1}, "ScalableRefNotFound"),
        ({"scalableRef": {"kind": "Rollout", "name": "web"}, "replicas": 1}, "ResolutionFailed"),
        ({"scalableRef": {"apiGroup": "argoproj.io", "kind": "Deployment", "name": "web"}}, "ResolutionFailed"),
        ({"replicas": 1}, "ResolutionFailed"),
    ],
)
def test_a_buffer_without_its_pod_template_has_a_reason_and_no_pods(spec, reason):
    """Others are not touched by it."""
    one = resolved(**spec)
    assert (one.reason, one.template) == (reason, None)
    good = a_buffer("good", **OF_SHAPE, replicas=1)
    found = resolve_buffers([a_buffer("bad", **spec), good], workloads())
    assert [pod.metadata.name for pod in virtual_pods(found, NOW)] == ["capacity-buffer-good-1"]


def test_a_shape_with_an_absurd_quantity_is_a_failure_of_that_buffer_alone():
    """Its message names the resource."""
    one = resolved(workloads(cpu="lots"), **OF_SHAPE, limits={"cpu": 1})
    assert one.reason == "ResolutionFailed"
    assert "cpu" in one.message


def test_other_strategies_and_deleted_buffers_get_no_virtual_pods():
    """Another controller may keep capacity by other means."""
    other = a_buffer("other", **OF_SHAPE, replicas=1, provisioningStrategy="example.com/shrink")
    leaving = parse(
        CapacityBuffer,
        merge(buffer_body("leaving", **OF_SHAPE, replicas=1), {"metadata": {"deletionTimestamp": NOW.isoformat()}}),
    )
    assert resolve_buffers([other, leaving], workloads()) == ()


def test_virtual_pods_look_like_waiting_pods_without_node_or_volumes():
    """Karpenter's names, UIDs, annotations and priority; the same every time."""
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "config", "configMap": {"name": "config"}},
    ]
    found = [resolved(workloads(nodeName="n", volumes=volumes), **OF_SHAPE, replicas=2)]
    first, second = virtual_pods(found, NOW)
    assert (first.metadata.name, first.metadata.uid) == ("capacity-buffer-spare-1", "uid-spare-1")
    assert (second.metadata.name, second.metadata.uid) == ("capacity-buffer-spare-2", "uid-spare-2")
    assert first.metadata.labels == {"app": "web"}
    assert first.metadata.annotations == {
        labels.BUFFER_POD: "true",
        labels.BUFFER_NAME: "spare",
        labels.BUFFER_NAMESPACE: "default",
    }
    assert (first.spec.node_name, first.spec.priority) == ("", -(2**31))
    assert [v.name for v in first.spec.volumes] == ["config"]
    assert is_provisionable(first)
    assert is_virtual_pod(first)
    assert not is_virtual_pod(a_pod("real"))
    assert buffer_of(first) == "default/spare"
    assert virtual_pods(found, NOW) == (first, second)
    assert virtual_pods(found, NOW, ["default/capacity-buffer-spare-1"]) == (second,)


def planned(*pods):
    return PlannedClaim(
        node_pool="default",
        pods=pods,
        instance_types=("m.small",),
        requirements=(),
        requests={"cpu": 1},
        offering=("m.small", "a", "on-demand"),
        price=0.1,
    )


def test_virtual_pods_get_nodes_but_appear_in_no_result():
    """They are not nominated; results without them have real pods alone."""
    buffer = a_buffer(**OF_SHAPE, replicas=3)
    virtual = virtual_pods(resolve_buffers([buffer], workloads()), NOW)
    snapshot = a_snapshot(pods=(a_pod("real"), *virtual))
    keys = [pod.key for pod in virtual]
    claim = planned(keys[0], "default/real")
    (chain,) = create_nodeclaims(snapshot, [claim], NOW).chains
    assert [event.ref.name for event in chain.events] == ["real"]
    assert planned_pods(chain.actions[0].body["metadata"]["annotations"]) == ("default/real",)

    error = PodError(kind="unschedulable", message="no")
    results = Results(new_claims=(claim,), existing={"node": (keys[1],)}, pod_errors={keys[2]: error})
    real_results = without_virtual_pods(results, snapshot.pods)
    assert [c.pods for c in real_results.new_claims] == [("default/real",)]
    assert (real_results.existing, real_results.pod_errors) == ({}, {})
    assert without_virtual_pods(results, [a_pod("real")]) is results
    assert nodes_hosting_buffers(snapshot.pods, results) == {"node"}


def statuses(plan):
    return {
        action.ref.name: action.patch["status"]
        for chain in plan.chains
        for action in chain.actions
        if action.ref.resource is CAPACITY_BUFFER
    }


@pytest.mark.parametrize(
    ("placed", "verdict"),
    [
        (lambda keys: Results(existing={"n": keys}), ("True", "FitsExistingCapacity")),
        (
            lambda keys: Results(new_claims=(planned(keys[0]),), existing={"n": keys[1:]}),
            ("False", "RequiresNewCapacity"),
        ),
        (
            lambda keys: Results(pod_errors=dict.fromkeys(keys, PodError(kind="limits", message="no"))),
            ("False", "RequiresNewCapacity"),
        ),
        (lambda _: Results(), None),
    ],
)
def test_the_status_says_whether_there_is_room_and_is_written_once(placed, verdict):
    """By what a pass made of the virtual pods; a pass that left them out says nothing."""
    templates_index = workloads()
    buffer = a_buffer(**OF_SHAPE, replicas=2)
    virtual = virtual_pods(resolve_buffers([buffer], templates_index), NOW)
    results = placed(tuple(pod.key for pod in virtual))
    snapshot = a_snapshot(capacity_buffers=(buffer,), workloads=templates_index, pods=virtual)
    status = statuses(reconcile_capacity_buffers(snapshot, results))["spare"]
    conditions = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
    assert conditions.get("Provisioning") == verdict
    assert conditions["ReadyForProvisioning"] == ("True", "Resolved")
    assert (status["replicas"], status["podTemplateGeneration"]) == (2, 4)
    assert status["podTemplateRef"] == {"name": "shape"}

    settled = parse(CapacityBuffer, {**buffer_body("spare", **OF_SHAPE, replicas=2), "status": status})
    assert (
        reconcile_capacity_buffers(
            a_snapshot(capacity_buffers=(settled,), workloads=templates_index, pods=virtual), results
        ).chains
        == ()
    )


def test_empty_and_broken_buffers_are_told_apart():
    """BufferEmpty and NotReadyForProvisioning."""
    buffers = (a_buffer("empty", **OF_WEB), a_buffer("lost", podTemplateRef={"name": "gone"}, replicas=1))
    reported = statuses(
        reconcile_capacity_buffers(a_snapshot(capacity_buffers=buffers, workloads=workloads()), Results())
    )
    reasons = {name: {c["type"]: c["reason"] for c in status["conditions"]} for name, status in reported.items()}
    assert reasons["empty"] == {"ReadyForProvisioning": "Resolved", "Provisioning": "BufferEmpty"}
    assert reasons["lost"] == {
        "ReadyForProvisioning": "PodTemplateNotFound",
        "Provisioning": "NotReadyForProvisioning",
    }


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({**OF_SHAPE, **OF_WEB, "replicas": 1}, "mutually exclusive"),
        (OF_SHAPE, "requires 'replicas' or 'limits'"),
        ({**OF_SHAPE, "replicas": -1}, "spec.replicas"),
        ({**OF_SHAPE, "replicas": 1, "limits": {"cpu": "-1"}}, "negative"),
        ({"scalableRef": {"kind": "", "name": "web"}}, "spec.scalableRef.kind"),
    ],
)
def test_a_buffer_that_makes_no_sense_does_not_validate(spec, why):
    """The rules of its definition, should the server not hold them."""
    with pytest.raises(InvalidObjectError, match=why):
        parse(CapacityBuffer, buffer_body("b", **spec))


def selecting(operator, value):
    """The spec of a pod that requires this of the host name."""
    expression = {"key": labels.HOSTNAME, "operator": operator, "values": [value]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


@pytest.mark.parametrize(
    ("where", "on"),
    [
        ({"nodeSelector": {labels.HOSTNAME: "node-default-1"}}, "node"),
        ({"nodeSelector": {labels.HOSTNAME: "elsewhere"}}, None),
        (selecting("NotIn", "node-default-1"), "claim"),
        (selecting("In", "node-default-1"), "node"),
    ],
)
def test_a_virtual_pod_may_select_a_host_name(where, on):
    """Karpenter validates pods before it adds the virtual ones; a NodeClaim never requires a host name."""
    virtual = virtual_pods(resolve_buffers([a_buffer(**OF_SHAPE, replicas=1)], workloads(**where)), NOW)
    alike = a_pod("real", spec=where)
    snapshot = a_snapshot(
        pods=(*virtual, alike), node_pools=(a_pool(),), nodes=(a_node(),), claims=(a_running_claim(),)
    )
    catalogue = Catalogue({pool.metadata.name: TYPES for pool in snapshot.node_pools})
    results = solve(snapshot, catalogue)
    assert verify(snapshot, catalogue, results, pods=snapshot.pods) == ()
    assert results.pod_errors.pop(alike.key).kind == "invalid"
    assert list(results.existing) == (["node-default-1"] if on == "node" else [])
    assert len(results.new_claims) == (on == "claim")
    assert not any(r.key == labels.HOSTNAME for claim in results.new_claims for r in claim.requirements)
    assert bool(results.pod_errors) == (on is None)


# the change of each field of a CapacityBuffer, whose spec has the fields before
FIELDS = {
    "provisioningStrategy": ({**OF_SHAPE, "replicas": 2}, {"provisioningStrategy": "example.com/other"}),
    "podTemplateRef.name": ({**OF_SHAPE, "replicas": 2}, {"podTemplateRef": {"name": "missing"}}),
    "scalableRef.apiGroup": (
        {**OF_WEB, "replicas": 2},
        {"scalableRef": {**OF_WEB["scalableRef"], "apiGroup": "other"}},
    ),
    "scalableRef.kind": ({**OF_WEB, "replicas": 2}, {"scalableRef": {**OF_WEB["scalableRef"], "kind": "StatefulSet"}}),
    "scalableRef.name": ({**OF_WEB, "replicas": 2}, {"scalableRef": {**OF_WEB["scalableRef"], "name": "missing"}}),
    "replicas": ({**OF_SHAPE, "replicas": 2}, {"replicas": 3}),
    "percentage": ({**OF_WEB, "percentage": 20}, {"percentage": 50}),
    "limits": ({**OF_SHAPE, "replicas": 2}, {"limits": {"cpu": "1"}}),
}


def test_every_field_of_a_capacity_buffer_is_listed():
    """A new field needs an effect, and a line in FIELDS."""
    assert set(FIELDS) == set(field_paths(CapacityBufferSpec))


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_capacity_buffer_changes_its_virtual_pods(field):
    """No field is accepted and ignored."""
    before, change = FIELDS[field]
    plain, changed = (resolve_buffers([a_buffer(**spec)], workloads()) for spec in (before, {**before, **change}))

    assert plain
    assert [(b.replicas, b.reason) for b in plain] != [(b.replicas, b.reason) for b in changed]


def test_all_buffers_together_get_a_bounded_number_of_pods():
    """Of five buffers of 5,000 pods each the last one gets none, and says why."""
    buffers = [a_buffer(f"b{number}", **OF_WEB, replicas=5000) for number in range(5)]
    found = resolve_buffers(buffers, workloads())
    assert [each.replicas for each in found] == [5000, 5000, 5000, 5000, 0]
    assert "all buffers together" in found[-1].message
