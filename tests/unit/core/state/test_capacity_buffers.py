"""CapacityBuffers: how many pods they stand for, what those look like, and what is said of them."""

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.capacity_buffer import CapacityBuffer, CapacityBufferSpec
from journeyman.core.api.model import parse
from journeyman.core.api.objects import CAPACITY_BUFFER
from journeyman.core.api.workloads import PodTemplate, Workload
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.simulation import nodes_hosting_buffers
from journeyman.core.lifecycle.capacity_buffer_status import reconcile_capacity_buffers, without_virtual_pods
from journeyman.core.lifecycle.provisioning import create_nodeclaims
from journeyman.core.scheduling.nodeclaim_templates import planned_pods
from journeyman.core.scheduling.results import PlannedClaim, PodError, Results
from journeyman.core.scheduling.scheduler import solve
from journeyman.core.state import Workloads
from journeyman.core.state.capacity_buffers import (
    MAX_PODS_PER_BUFFER,
    buffer_of,
    resolve_buffers,
    virtual_pods,
)
from journeyman.core.state.pod_predicates import is_provisionable, is_virtual_pod
from journeyman.errors import InvalidObjectError
from journeyman_simulator.judge import verify_strictly
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
    (one,) = resolve_buffers([a_buffer(**spec)], found or workloads(), NOW)
    return one


def statuses(plan):
    return {
        action.ref.name: action.patch["status"]
        for chain in plan.chains
        for action in chain.actions
        if action.ref.resource is CAPACITY_BUFFER
    }


def status_of(buffer, objects):
    """The status of a buffer before a pass."""
    snapshot = a_snapshot(capacity_buffers=(buffer,), workloads=objects)
    return statuses(reconcile_capacity_buffers(snapshot, Results()))["spare"]


@pytest.mark.parametrize(
    ("spec", "scaled_to", "count"),
    [
        ({**OF_SHAPE, "replicas": 7}, 0, 7),
        ({**OF_SHAPE, "replicas": 0}, 0, 0),
        ({**OF_SHAPE, "limits": {"cpu": "4500m", "memory": "64Gi"}}, 0, 4),
        ({**OF_SHAPE, "replicas": 9, "limits": {"memory": "2Gi"}}, 0, 2),
        ({**OF_SHAPE, "replicas": 9, "limits": {"pods": "7"}}, 0, 7),
        ({**OF_SHAPE, "replicas": 2, "limits": {"nvidia.com/gpu": 1}}, 0, 2),
        ({**OF_SHAPE, "limits": {"nvidia.com/gpu": 1}}, 0, 0),
        ({**OF_SHAPE, "replicas": 10, "limits": {"cpu": "3"}}, 0, 3),
        ({**OF_SHAPE, "replicas": 3, "limits": {"cpu": "10"}}, 0, 3),
        ({**OF_SHAPE, "limits": {"cpu": "5"}}, 0, 5),
        ({**OF_SHAPE, "replicas": 2_000_000}, 0, MAX_PODS_PER_BUFFER),
        ({**OF_WEB}, 10, 0),
        ({**OF_WEB, "percentage": 25}, 10, 3),
        ({**OF_WEB, "percentage": 20}, 10, 2),
        ({**OF_WEB, "percentage": 20, "replicas": 5}, 10, 5),
        ({**OF_WEB, "percentage": 80, "replicas": 5}, 10, 8),
        ({**OF_WEB, "percentage": 80, "replicas": 5, "limits": {"cpu": "4"}}, 10, 4),
        ({**OF_WEB, "percentage": 10}, 1, 1),
        ({**OF_WEB, "percentage": 1}, 1, 1),
        ({**OF_WEB, "percentage": 1}, 10, 1),
        ({**OF_WEB, "percentage": 50}, 0, 0),
        ({**OF_WEB, "percentage": 0}, 10, 0),
        ({**OF_WEB, "percentage": 100}, 5, 5),
        ({**OF_WEB, "percentage": 200}, 5, 10),
        ({**OF_WEB, "percentage": 10}, 1000, 100),
        ({"scalableRef": {"kind": "StatefulSet", "name": "db"}, "percentage": 100}, 10, 1),
    ],
)
def test_the_larger_of_replicas_and_percentage_counts_within_limits(spec, scaled_to, count):
    """A percentage is rounded up; limits alone say how many; what the pods do not ask for limits nothing.

    Pods request one CPU; `scaled_to` is the Deployment's number of replicas.
    """
    buffer, objects = a_buffer(**spec), workloads(scaled_to)

    status = status_of(buffer, objects)

    assert status["replicas"] == count
    assert len(virtual_pods(resolve_buffers([buffer], objects, NOW), NOW)) == count


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
    found = resolve_buffers([a_buffer("bad", **spec), good], workloads(), NOW)
    assert [pod.metadata.name for pod in virtual_pods(found, NOW)] == ["capacity-buffer-good-1"]


def test_a_shape_with_an_absurd_quantity_is_a_failure_of_that_buffer_alone():
    """Its message names the resource."""
    one = resolved(workloads(cpu="lots"), **OF_SHAPE, limits={"cpu": 1})
    assert one.reason == "ResolutionFailed"
    assert "cpu" in one.message


@pytest.mark.parametrize(
    ("annotations", "pods"),
    [
        ({}, 2),
        ({labels.ACTIVE: "0 20 * * * / 2h"}, 2),  # it is nine in the evening
        ({labels.ACTIVE: "0 22 * * * / 2h"}, 0),
        ({labels.ACTIVE: "0 22 * * * / 2h", labels.TIME_ZONE: "Europe/Berlin"}, 2),
        ({labels.ACTIVE: "in the evening"}, 2),  # reported, and ignored
    ],
)
def test_a_buffer_reserves_capacity_in_its_windows_only(annotations, pods):
    """Outside of them its status says that no pods are planned for."""
    body = merge(buffer_body("spare", **OF_SHAPE, replicas=2), {"metadata": {"annotations": annotations}})
    (one,) = found = resolve_buffers([parse(CapacityBuffer, body)], workloads(), NOW)

    assert len(virtual_pods(found, NOW)) == one.replicas == pods
    assert one.reason == "Resolved"
    assert ("outside of its windows" in one.message) == (pods == 0)


def test_other_strategies_and_deleted_buffers_get_no_virtual_pods():
    """Another controller may keep capacity by other means."""
    other = a_buffer("other", **OF_SHAPE, replicas=1, provisioningStrategy="example.com/shrink")
    leaving = parse(
        CapacityBuffer,
        merge(buffer_body("leaving", **OF_SHAPE, replicas=1), {"metadata": {"deletionTimestamp": NOW.isoformat()}}),
    )
    assert resolve_buffers([other, leaving], workloads(), NOW) == ()


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
    virtual = virtual_pods(resolve_buffers([buffer], workloads(), NOW), NOW)
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
    virtual = virtual_pods(resolve_buffers([buffer], templates_index, NOW), NOW)
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
    assert reasons["lost"] == {"ReadyForProvisioning": "PodTemplateNotFound", "Provisioning": "NotReadyForProvisioning"}


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
    virtual = virtual_pods(resolve_buffers([a_buffer(**OF_SHAPE, replicas=1)], workloads(**where), NOW), NOW)
    alike = a_pod("real", spec=where)
    snapshot = a_snapshot(
        pods=(*virtual, alike), node_pools=(a_pool(),), nodes=(a_node(),), claims=(a_running_claim(),)
    )
    catalogue = Catalogue({pool.metadata.name: TYPES for pool in snapshot.node_pools})
    results = solve(snapshot, catalogue)
    assert verify_strictly(snapshot, catalogue, results, pods=snapshot.pods) == ()
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
    plain, changed = (resolve_buffers([a_buffer(**spec)], workloads(), NOW) for spec in (before, {**before, **change}))

    assert plain
    assert [(b.replicas, b.reason) for b in plain] != [(b.replicas, b.reason) for b in changed]


def test_all_buffers_together_get_a_bounded_number_of_pods():
    """Of five buffers of 5,000 pods each the last one gets none, and says why."""
    buffers = [a_buffer(f"b{number}", **OF_WEB, replicas=5000) for number in range(5)]
    found = resolve_buffers(buffers, workloads(), NOW)
    assert [each.replicas for each in found] == [5000, 5000, 5000, 5000, 0]
    assert "all buffers together" in found[-1].message


@pytest.mark.parametrize(
    ("kind", "spec", "replicas"),
    [
        ("Deployment", {"replicas": 10}, 2),
        ("ReplicaSet", {"replicas": 10}, 2),
        ("StatefulSet", {"replicas": 5}, 1),
        ("Deployment", {}, 1),
    ],
)
def test_workload_is_resolved_without_a_pod_template_reference(kind, spec, replicas):
    """The status of a buffer that named a PodTemplate before loses the reference."""
    field = {"Deployment": "deployments", "ReplicaSet": "replica_sets", "StatefulSet": "stateful_sets"}[kind]
    objects = Workloads(**{field: (named(Workload, "web", spec={"template": template(), **spec}),)})
    body = buffer_body("spare", scalableRef={"apiGroup": "apps", "kind": kind, "name": "web"}, percentage=20)
    body["status"] = {"podTemplateRef": {"name": "shape"}, "podTemplateGeneration": 4, "replicas": 9}
    buffer = parse(CapacityBuffer, body)

    status = status_of(buffer, objects)

    assert (status["replicas"], status["podTemplateRef"], status["podTemplateGeneration"]) == (replicas, None, None)
    assert ("ReadyForProvisioning", "True") in {(c["type"], c["status"]) for c in status["conditions"]}


def container(cpu="", memory="", *, sidecar=False):
    requests = {name: amount for name, amount in (("cpu", cpu), ("memory", memory)) if amount}
    policy = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": f"c{cpu}{memory}{sidecar}", "image": "pause", "resources": {"requests": requests}, **policy}


def sized_by(limits, containers, init=()):
    """The number of pods of a buffer with these limits alone."""
    shape = {"metadata": {}, "spec": {"containers": list(containers), "initContainers": list(init)}}
    objects = Workloads(pod_templates=(named(PodTemplate, "shape", template=shape),))
    return resolved(objects, **OF_SHAPE, limits=limits).replicas


@pytest.mark.parametrize(
    ("limits", "containers", "init", "replicas"),
    [
        ({"cpu": "4"}, [container("1")], [], 4),
        ({"memory": "2Gi"}, [container(memory="512Mi")], [], 4),
        ({"cpu": "8", "memory": "4Gi"}, [container("1", "1Gi")], [], 4),
        ({"cpu": "3"}, [container("500m"), container("500m")], [], 3),
        ({"cpu": "8"}, [container("1")], [container("4")], 2),
        ({"cpu": "6"}, [container("2")], [container("500m")], 3),
        ({"cpu": "10"}, [container("3")], [], 3),
        ({"cpu": "1"}, [container("250m")], [], 4),
        ({"cpu": "1"}, [container("2")], [], 0),
        ({"cpu": "15", "memory": "7680Mi"}, [container("1", "512Mi"), container("500m", "256Mi")], [], 10),
        ({"cpu": "40"}, [container("1")], [container("4"), container("2")], 10),
        ({"cpu": "11", "memory": "10Gi"}, [container("1"), container(memory="1Gi")], [], 10),
        ({"cpu": "15"}, [container("1")], [container("500m", sidecar=True)], 10),
        ({"cpu": "17"}, [container("1")], [container("500m", sidecar=True), container("200m", sidecar=True)], 10),
        ({"cpu": "45"}, [container("1")], [container("500m", sidecar=True), container("4")], 10),
        ({"cpu": "40"}, [container("1")], [container("4"), container("500m", sidecar=True)], 10),
        ({"cpu": "20"}, [container("1")], [container("2")], 10),
        ({"cpu": "4"}, [container()], [], 0),
        ({"memory": "4Gi"}, [container("1")], [], 0),
    ],
)
def test_limits_allow_as_many_pods_as_their_requests_fit(limits, containers, init, replicas):
    """A pod requests what Kubernetes counts for it; a little less than the limit is one pod less."""
    assert sized_by(limits, containers, init) == replicas


def test_buffer_follows_its_pod_template():
    """An edit of the template renews the generation; without the template both conditions are replaced, and no pod stays."""
    body = merge(buffer_body("spare", **OF_SHAPE, replicas=3), {"metadata": {"generation": 7}})

    def reconciled(status, objects):
        buffer = parse(CapacityBuffer, {**body, "status": status})
        pods = virtual_pods(resolve_buffers([buffer], objects, NOW), NOW)
        snapshot = a_snapshot(capacity_buffers=(buffer,), workloads=objects, pods=pods)
        results = Results(existing={"n": tuple(pod.key for pod in pods)})
        return {**status, **statuses(reconcile_capacity_buffers(snapshot, results))["spare"]}, len(pods)

    first, pods = reconciled({}, workloads())
    assert pods == 3
    edited = Workloads(
        pod_templates=(
            named(
                PodTemplate,
                "shape",
                metadata={"name": "shape", "namespace": "default", "generation": 5},
                template=template(),
            ),
        )
    )
    second, _ = reconciled(first, edited)
    assert (first["podTemplateGeneration"], second["podTemplateGeneration"]) == (4, 5)

    third, pods = reconciled(second, Workloads())
    assert pods == 0
    assert sorted((c["type"], c["status"], c["reason"], c["observedGeneration"]) for c in third["conditions"]) == [
        ("Provisioning", "False", "NotReadyForProvisioning", 7),
        ("ReadyForProvisioning", "False", "PodTemplateNotFound", 7),
    ]
    assert virtual_pods(resolve_buffers([], workloads(), NOW), NOW) == ()


def test_pod_template_concerns_the_buffers_that_name_it():
    """One template may serve several buffers; others keep their own size."""
    buffers = (
        a_buffer("a", **OF_SHAPE, replicas=1),
        a_buffer("b", **OF_SHAPE, replicas=2),
        a_buffer("other", podTemplateRef={"name": "different"}, replicas=1),
        a_buffer("scalable", **OF_WEB, percentage=10),
    )

    found = resolve_buffers(buffers, workloads(), NOW)

    assert {one.buffer.metadata.name: (one.replicas, one.generation) for one in found} == {
        "a": (1, 4),
        "b": (2, 4),
        "other": (0, None),
        "scalable": (1, None),
    }


def test_buffers_of_one_name_in_two_namespaces_are_counted_apart():
    """The message has the number of virtual pods on new nodes; real pods do not count."""
    there = {"metadata": {"namespace": "other"}}
    scaled = msgspec.convert(
        merge({"metadata": {"name": "web"}, "spec": {"replicas": 2, "template": template()}}, there), Workload
    )
    objects = msgspec.structs.replace(workloads(3), deployments=(*workloads(3).deployments, scaled))
    here_buffer = a_buffer("same", **OF_WEB, percentage=100)
    there_buffer = parse(CapacityBuffer, merge(buffer_body("same", **OF_WEB, percentage=100), there))
    pods = virtual_pods(resolve_buffers([here_buffer, there_buffer], objects, NOW), NOW)
    here, away = (
        [pod.key for pod in pods if pod.metadata.namespace == namespace] for namespace in ("default", "other")
    )
    snapshot = a_snapshot(capacity_buffers=(here_buffer, there_buffer), workloads=objects, pods=(a_pod("real"), *pods))

    plan = reconcile_capacity_buffers(
        snapshot,
        Results(
            new_claims=(planned(here[0], here[1], "default/real"),), existing={"n": ("default/real", here[2], *away)}
        ),
    )

    reported = {
        chain.actions[0].ref.namespace: next(
            (c["status"], c["reason"], c["message"])
            for c in chain.actions[0].patch["status"]["conditions"]
            if c["type"] == "Provisioning"
        )
        for chain in plan.chains
    }
    assert reported == {
        "default": ("False", "RequiresNewCapacity", "2/3 virtual pods required new capacity, 0 failed"),
        "other": ("True", "FitsExistingCapacity", "All 2 virtual pods fit on existing capacity"),
    }


def test_real_pods_are_no_virtual_pods():
    """An annotation of another name marks none; a real pod's error stays, and its node hosts no buffer."""
    real = a_pod("real", metadata={"annotations": {"other": "true"}})
    virtual = virtual_pods([resolved(**OF_SHAPE, replicas=2)], NOW)
    error = PodError(kind="unschedulable", message="no")
    results = Results(existing={"n": (real.key,)}, pod_errors=dict.fromkeys((p.key for p in (real, *virtual)), error))

    assert without_virtual_pods(results, (real, *virtual)).pod_errors == {real.key: error}
    assert nodes_hosting_buffers((real, *virtual), results) == frozenset()
    assert nodes_hosting_buffers((real, *virtual), Results()) == frozenset()
    assert without_virtual_pods(Results(), virtual) == Results()
