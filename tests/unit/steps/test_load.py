"""Load: one consistent snapshot of a cluster, without its invalid objects."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import EC2NODECLASS, NODE_OVERLAY, NODEPOOL, TopologySpreadConstraint
from journeyman.core.plan import Step
from journeyman.core.state.pod_predicates import selects
from journeyman.errors import CloudProviderError, InvalidObjectError, NotFoundError
from journeyman.steps.context import FeatureGates
from journeyman.steps.load import (
    EVERYTHING,
    MAX_POD_LISTS,
    NODES_AND_CLAIMS,
    SWEEP_SCOPE,
    load,
    node_class_state,
    with_pods_of,
    with_volumes_of,
)
from journeyman.steps.scheduling_inputs import scheduling_inputs_of
from journeyman.steps.sweep import due_steps
from tests.helpers.builders import (
    EBS,
    LARGE,
    NOW,
    a_body,
    buffer_body,
    claim_body,
    merge,
    node_class_body,
    overlay_body,
    pod_body,
    pool_body,
    stamp,
)
from tests.helpers.fakes import Altered, Cluster


class Counting:
    """A store that records which kinds are listed, in order."""

    def __init__(self, server):
        self._server = server
        self.listed = []

    def list(self, resource, **kwargs):
        self.listed.append((resource.kind, kwargs.get("field_selector", "")))
        return self._server.list(resource, **kwargs)


def test_nodes_and_claims_are_read_first_and_pods_last_each_kind_once():
    """A race then launches too few nodes instead of duplicates. The sweep reads only the kinds that it needs."""
    cluster = Cluster()
    cluster.add(pod_body("waiting"), pod_body("running", node="n"))
    store = Counting(cluster.server)
    load(cluster.run(store=store), EVERYTHING)
    kinds = [kind for kind, _ in store.listed]
    assert kinds[:2] == ["Node", "NodeClaim"]
    assert kinds[-1] == "Pod"
    assert len(kinds) == len(set(kinds))

    store.listed.clear()
    snapshot = load(cluster.run(store=store), SWEEP_SCOPE)
    assert store.listed == [("NodeClaim", ""), ("NodePool", ""), ("EC2NodeClass", ""), ("Pod", "spec.nodeName=")]
    assert [pod.key for pod in snapshot.pods] == ["default/waiting"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"requirements": [{"key": f"test.com.test/test-{'x' * 250}", "operator": "Exists"}]}, "requirements"),
        ({"capacity": {"cpu": "5"}}, "cpu"),
    ],
)
def test_invalid_overlay_changes_neither_prices_nor_capacity(change, why):
    """It is kept with the reason, which its condition states; a valid overlay beside it is applied."""
    cluster = Cluster()
    bad = {"price": "13234.223", "capacity": {"smarter-devices/fuse": 1}, **change}
    good = overlay_body("good", capacity={"example.com/good": 1})
    settings = replace(cluster.run().settings, feature_gates=FeatureGates(node_overlay=True))

    def list_with_an_overlay_from_before_the_definition_had_its_rules(resource, **kwargs):
        found = cluster.server.list(resource, **kwargs)
        more = [merge(overlay_body("bad", **bad), {"metadata": {"uid": "u"}})] if resource is NODE_OVERLAY else []
        return replace(found, items=(*found.items, *more))

    cluster.add(pool_body(), node_class_body(), good)
    store = Altered(cluster.server, list=list_with_an_overlay_from_before_the_definition_had_its_rules)
    run = cluster.run(settings=settings, store=store)
    snapshot = load(run, EVERYTHING)

    types = scheduling_inputs_of(run, snapshot).catalogue.instance_types("default")

    assert {t.name: t.offerings for t in types} == {t.name: t.offerings for t in cluster.cloud.types}
    assert {("smarter-devices/fuse" in t.capacity, t.capacity["example.com/good"]) for t in types} == {(False, 1)}
    (invalid,) = snapshot.invalid_objects
    assert (invalid.kind, invalid.name) == ("NodeOverlay", "bad")
    assert why in invalid.why


def test_invalid_objects_are_skipped_by_name_and_others_are_used():
    """A weight out of range, a time before any that can be read, and a generation that is no number."""
    cluster = Cluster()
    cluster.add(
        *(pool_body("good"), merge(pool_body("bad"), {"spec": {"weight": 1000}})),
        pool_body("odd", metadata={"creationTimestamp": "0000-01-01T00:00:00Z"}),
        *(node_class_body("good"), node_class_body("odd", metadata={"generation": "x"})),
    )
    snapshot = load(cluster.run(), EVERYTHING)
    assert [pool.metadata.name for pool in snapshot.node_pools] == ["good"]
    assert [node_class.name for node_class in snapshot.node_classes] == ["good"]
    skipped = sorted((item.kind, item.name) for item in snapshot.invalid_objects)
    assert skipped == [("EC2NodeClass", "odd"), ("NodePool", "bad"), ("NodePool", "odd")]
    (aside,) = [item for item in snapshot.invalid_objects if item.name == "bad"]
    assert "spec.weight" in aside.why
    (line,) = [line for line in cluster.record.lines if line[0] == "warning" and "spec.weight" in line[1]]
    assert aside.why in line[1]
    assert line[2]["NodePool"] == {"name": "bad"}
    assert sorted((event.reason, str(event.ref)) for event in cluster.record.events) == [
        ("ObjectSkipped", f"{kind} {name}") for kind, name in skipped
    ]
    assert cluster.record.count_of("journeyman_objects_skipped_total") == 3


def test_a_warm_sandbox_validates_each_version_of_an_object_once():
    """An unchanged object is the same model; a changed or corrected one is validated again."""
    cluster = Cluster()
    cluster.add(pool_body("a"), pool_body("b"), merge(pool_body("c"), {"spec": {"weight": 1000}}))
    first = load(cluster.run(), EVERYTHING)
    cluster.server.patch(NODEPOOL, "b", {"spec": {"weight": 5}})
    cluster.server.patch(NODEPOOL, "c", {"spec": {"weight": 7}})
    second = load(cluster.run(), EVERYTHING)
    assert [pool.metadata.name for pool in first.node_pools] == ["a", "b"]
    assert [item.name for item in first.invalid_objects] == ["c"]
    assert [pool.spec.weight for pool in second.node_pools] == [0, 5, 7]
    assert second.node_pools[0] is first.node_pools[0]
    assert second.invalid_objects == ()


def test_storage_is_read_with_what_scheduling_needs_and_only_then():
    """A StorageClass without volumeBindingMode binds immediately, which is the API server's default."""
    cluster = Cluster()
    claim = {"volumeName": "pv", "storageClassName": "gp3"}
    cluster.add(
        a_body("storage.k8s.io/v1", "StorageClass", "gp3", provisioner=EBS),
        a_body("storage.k8s.io/v1", "CSINode", "n", spec={"drivers": []}),
        a_body("v1", "PersistentVolume", "pv", spec={"csi": {"driver": EBS}}),
        a_body("v1", "PersistentVolumeClaim", "data", namespace="default", spec=claim),
    )
    snapshot = load(cluster.run(), EVERYTHING)
    assert [c.volume_binding_mode for c in snapshot.storage_classes] == ["Immediate"]
    assert [n.metadata.name for n in snapshot.csi_nodes] == ["n"]
    assert [v.spec.csi.driver for v in snapshot.persistent_volumes] == [EBS]
    assert [c.spec.volume_name for c in snapshot.persistent_volume_claims] == ["pv"]
    assert load(cluster.run(), NODES_AND_CLAIMS).persistent_volume_claims == ()


def test_default_spread_constraints_require_services_and_owners():
    """With them the steps see the pod's constraints as kube-scheduler does."""
    cluster = Cluster()
    service = a_body("v1", "Service", "web", namespace="default", spec={"selector": {"app": "web"}})
    cluster.add(service, pod_body("waiting"))
    store = Counting(cluster.server)
    assert load(cluster.run(store=store), EVERYTHING).pods[0].spec.topology_spread_constraints == ()
    assert "Service" not in {kind for kind, _ in store.listed}

    spread = (TopologySpreadConstraint(topology_key=labels.ZONE),)
    settings = replace(cluster.run().settings, default_spread=spread)
    (pod,) = load(cluster.run(settings=settings), EVERYTHING).pods
    (constraint,) = pod.spec.topology_spread_constraints
    assert constraint.topology_key == labels.ZONE
    assert selects(constraint.label_selector, {"app": "web"})
    assert not selects(constraint.label_selector, {"app": "db"})


def test_overlays_are_applied_only_with_their_feature_gate():
    """A change of an overlay's spec makes a new catalogue, a change of its status does not; an invalid one is ignored."""
    cluster = Cluster()
    cluster.add(
        pool_body(),
        node_class_body(),
        overlay_body("a", price="1.5"),
        overlay_body("b", priceAdjustment="+5%"),
        overlay_body("c", capacity={"smarter-devices/fuse": 2}),
    )
    assert load(cluster.run(), EVERYTHING).node_overlays == ()

    settings = replace(cluster.run().settings, feature_gates=FeatureGates(node_overlay=True))
    run = cluster.run(settings=settings)
    world = scheduling_inputs_of(run, load(run, EVERYTHING))
    types = world.catalogue.instance_types("default")
    assert {o.price for t in types for o in t.offerings if t.name == LARGE.name} == {LARGE.offerings[0].price * 1.05}
    assert {t.capacity["smarter-devices/fuse"] for t in types} == {2}
    assert world.overlay_conflicts == {"a": "b"}

    cluster.server.patch(NODE_OVERLAY, "b", {"status": {"conditions": []}}, subresource="status")
    assert scheduling_inputs_of(run, load(run, EVERYTHING)).catalogue is world.catalogue
    cluster.server.patch(NODE_OVERLAY, "b", {"spec": {"weight": 2}})
    assert scheduling_inputs_of(run, load(run, EVERYTHING)).overlay_conflicts == {}


def test_buffers_add_virtual_pods_and_only_their_refs_are_read():
    """That needs the feature gate; the sweep reads only the buffers, and requeues provisioning for them."""
    cluster = Cluster()
    shape = {"metadata": {}, "spec": pod_body("x")["spec"]}
    cluster.add(
        a_body("v1", "PodTemplate", "s", namespace="default", template=shape),
        buffer_body("spare", podTemplateRef={"name": "s"}, replicas=2),
        pod_body("waiting"),
    )
    assert [pod.key for pod in load(cluster.run(), EVERYTHING).pods] == ["default/waiting"]

    settings = replace(cluster.run().settings, feature_gates=FeatureGates(capacity_buffer=True))
    store = Counting(cluster.server)
    run = cluster.run(settings=settings, store=store)
    names = [pod.metadata.name for pod in load(run, EVERYTHING).pods]
    assert names == ["capacity-buffer-spare-1", "capacity-buffer-spare-2", "waiting"]
    assert {"CapacityBuffer", "PodTemplate"} <= {kind for kind, _ in store.listed}
    assert not {"Deployment", "ReplicaSet", "Service"} & {kind for kind, _ in store.listed}

    glance = load(run, SWEEP_SCOPE)
    assert [pod.key for pod in glance.pods] == ["default/waiting"]
    assert [b.key for b in glance.capacity_buffers] == ["default/spare"]
    quiet = replace(glance, pods=())
    assert next((w.step, w.reason) for w in due_steps(quiet)) == (
        Step.PROVISION,
        "CapacityBuffer default/spare may have been used up",
    )


@pytest.mark.parametrize(
    ("spec", "kinds"),
    [
        ({"podTemplateRef": {"name": "s"}, "replicas": 1}, {"PodTemplate"}),
        ({"scalableRef": {"kind": "Deployment", "name": "web"}, "percentage": 10}, {"Deployment"}),
        ({"scalableRef": {"kind": "ReplicaSet", "name": "web"}, "percentage": 10}, {"ReplicaSet"}),
        ({"scalableRef": {"kind": "StatefulSet", "name": "web"}, "percentage": 10}, {"StatefulSet"}),
        ({"podTemplateRef": {"name": "s"}, "replicas": 1, "provisioningStrategy": "of-another"}, set()),
        ({"scalableRef": {"kind": "Deployment", "name": "web"}, "provisioningStrategy": "of-another"}, set()),
    ],
    ids=["template", "Deployment", "ReplicaSet", "StatefulSet", "inactive template", "inactive Deployment"],
)
def test_a_buffer_reads_no_more_than_the_kind_it_refers_to(spec, kinds):
    """A large cluster has thousands of ReplicaSets; a buffer with another provisioning strategy reads nothing."""
    cluster = Cluster()
    idle = buffer_body("idle", podTemplateRef={"name": "s"}, replicas=1, provisioningStrategy="of-another")
    cluster.add(buffer_body("spare", **spec), idle)
    settings = replace(cluster.run().settings, feature_gates=FeatureGates(capacity_buffer=True))
    store = Counting(cluster.server)
    load(cluster.run(settings=settings, store=store), EVERYTHING)

    workloads = {"PodTemplate", "Deployment", "ReplicaSet", "StatefulSet", "ReplicationController", "Service"}
    assert workloads & {kind for kind, _ in store.listed} == kinds


def an_offering_state(**status):
    return a_body("journeyman.dev/v1alpha1", "OfferingState", "default", status=status)


@pytest.mark.parametrize(("seconds", "is_over"), [(1, False), (0, True), (-1, True)])
def test_back_off_of_a_launch_fault_is_over_at_its_end(seconds, is_over):
    """From then on one launch tries whether the fault is gone."""
    cluster = Cluster()
    failure = {"scope": "NodePool", "name": "default", "until": stamp(NOW + timedelta(seconds=seconds))}
    cluster.add(an_offering_state(launchFailures=[failure]))
    (backoff,) = load(cluster.run(), EVERYTHING).launch_backoffs
    assert (backoff.is_over, backoff.fault.name, backoff.node_class) == (is_over, "default", "default")


def test_devices_and_their_claims_are_read_only_on_request():
    cluster = Cluster()
    entry = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", "count": 2}}
    api, expression = "resource.k8s.io/v1", "device.driver == 'gpu.example.com'"
    slice_ = {
        "driver": "gpu.example.com",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "attributes": {"model": {"string": "h100"}, "index": {"int": 0}}}],
    }
    cluster.add(
        a_body(api, "DeviceClass", "gpu.example.com", spec={"selectors": [{"cel": {"expression": expression}}]}),
        a_body(api, "ResourceSlice", "n-gpu", spec={"nodeName": "n", **slice_}),
        a_body(api, "ResourceClaim", "p-gpu", namespace="default", spec={"devices": {"requests": [entry]}}),
        pod_body(
            "p",
            spec={"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]},
            status={"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu"}]},
        ),
    )
    assert load(cluster.run(), EVERYTHING).resource_claims == ()
    settings = replace(cluster.run().settings, ignore_dra_requests=False)
    snapshot = load(cluster.run(settings=settings), EVERYTHING)
    assert [c.spec.devices.requests[0].exactly.count for c in snapshot.resource_claims] == [2]
    assert [c.spec.selectors[0].cel.expression for c in snapshot.device_classes] == [expression]
    (device,) = (d for s in snapshot.resource_slices for d in s.spec.devices)
    assert (device.attributes["model"].string, device.attributes["index"].int_) == ("h100", 0)
    (pod,) = snapshot.pods
    assert pod.spec.resource_claims[0].resource_claim_template_name == "gpu"
    assert pod.status.resource_claim_statuses[0].resource_claim_name == "p-gpu"


def test_a_kind_whose_definition_is_not_installed_reads_as_none():
    """NodeOverlays are optional; NodePools are not."""
    cluster = Cluster()
    cluster.add(pool_body())

    def list_without_overlays(resource, **kwargs):
        if resource is NODE_OVERLAY:
            raise NotFoundError("the server could not find the requested resource", status=404, reason="NotFound")
        return cluster.server.list(resource, **kwargs)

    settings = replace(cluster.settings, feature_gates=FeatureGates(node_overlay=True))
    run = cluster.run(store=Altered(cluster.server, list=list_without_overlays), settings=settings)
    assert load(run, EVERYTHING).node_overlays == ()
    assert [p.metadata.name for p in load(run, EVERYTHING).node_pools] == ["default"]


def test_claims_and_pools_of_another_provider_are_not_ours():
    """Two autoscalers may share a cluster."""
    foreign = {"nodeClassRef": {"group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "x"}}
    cluster = Cluster()
    cluster.add(
        claim_body("ours"),
        claim_body("theirs", spec=foreign),
        pool_body("theirs", spec={"template": {"spec": foreign}}),
    )
    snapshot = load(cluster.run(), EVERYTHING)
    assert [c.metadata.name for c in snapshot.claims] == ["ours"]
    assert snapshot.node_pools == ()


def test_the_catalogue_is_the_same_object_until_something_changes():
    """The scheduler caches by identity; an offering that becomes unavailable or available makes a new catalogue."""
    cluster = Cluster()
    cluster.add(pool_body(), node_class_body())
    first = scheduling_inputs_of(cluster.run(), load(cluster.run(), EVERYTHING)).catalogue
    assert scheduling_inputs_of(cluster.run(), load(cluster.run(), EVERYTHING)).catalogue is first

    offering = {"instanceType": "m.large", "zone": "a", "capacityType": "on-demand"}
    cluster.add(an_offering_state(unavailable=[{**offering, "until": stamp(NOW + timedelta(minutes=3))}]))
    avoided = scheduling_inputs_of(cluster.run(), load(cluster.run(), EVERYTHING)).catalogue
    assert [o.available for t in avoided.instance_types("default") for o in t.offerings if t.name == LARGE.name] == [
        False
    ]

    cluster.clock.advance(180)
    again = scheduling_inputs_of(cluster.run(), load(cluster.run(), EVERYTHING)).catalogue
    assert all(o.available for t in again.instance_types("default") for o in t.offerings)


@pytest.mark.parametrize("error", [CloudProviderError("no subnets"), InvalidObjectError("no subnets")])
def test_a_node_class_without_types_affects_only_its_own_pools(error):
    """The cloud's error for one NodeClass, or one that does not validate, does not stop the others."""
    cluster = Cluster()
    other = {"template": {"spec": {"nodeClassRef": {"name": "other"}}}}
    cluster.add(node_class_body(), node_class_body("other"), pool_body(), pool_body("second", spec=other))

    def types_of_the_first(node_class):
        if node_class["metadata"]["name"] == "other":
            raise error
        return cluster.cloud.types

    run = cluster.run(cloud=Altered(cluster.cloud, get_instance_types=types_of_the_first))
    world = scheduling_inputs_of(run, load(run, EVERYTHING))
    assert world.catalogue.instance_types("default")
    assert world.catalogue.instance_types("second") == ()
    assert [(name, found.message) for name, found in world.failures.items()] == [("other", "no subnets")]

    again = cluster.run()
    assert scheduling_inputs_of(again, load(again, EVERYTHING)).catalogue.instance_types("second")


def test_pods_are_listed_by_node_for_few_nodes_and_at_once_for_many():
    """A drain of one node in a large cluster must not read every pod."""
    cluster = Cluster()
    cluster.add(pod_body("a", node="n1"), pod_body("b", node="n2"))
    store = Counting(cluster.server)
    run = cluster.run(store=store)
    snapshot = load(cluster.run(), NODES_AND_CLAIMS)
    assert [p.key for p in with_pods_of(run, snapshot, ["n1"]).pods] == ["default/a"]
    with_pods_of(run, snapshot, [f"n{i}" for i in range(MAX_POD_LISTS + 1)])
    assert store.listed == [("Pod", "spec.nodeName=n1"), ("Pod", "")]
    with_pods_of(run, snapshot, [f"n{i}" for i in range(MAX_POD_LISTS)])
    assert len(store.listed) == 2 + MAX_POD_LISTS


def test_volumes_and_their_claims_are_read_only_where_needed():
    """A drain waits for them; a run without a drain does not list them."""
    cluster = Cluster()
    for node, volume in (("n1", {"persistentVolumeName": "pv-1"}), ("n2", {"inlineVolumeSpec": {}})):
        spec = {"attacher": EBS, "nodeName": node, "source": volume}
        status = {"attached": True}
        cluster.add(a_body("storage.k8s.io/v1", "VolumeAttachment", f"csi-{node}", spec=spec, status=status))
    cluster.add(a_body("v1", "PersistentVolumeClaim", "data", namespace="default", spec={"volumeName": "pv-1"}))
    store = Counting(cluster.server)
    run, snapshot = cluster.run(store=store), load(cluster.run(), NODES_AND_CLAIMS)

    nothing, none_attached = with_volumes_of(run, snapshot, []), with_volumes_of(run, snapshot, ["n3"])
    attached = with_volumes_of(run, snapshot, ["n1"])

    assert nothing == none_attached == snapshot
    assert [kind for kind, _ in store.listed] == ["VolumeAttachment", "VolumeAttachment", "PersistentVolumeClaim"]
    assert [a.spec.source.persistent_volume_name for a in attached.volume_attachments] == ["pv-1"]
    assert [c.spec.volume_name for c in attached.persistent_volume_claims] == ["pv-1"]


@pytest.mark.parametrize(
    ("conditions", "reason", "message"),
    [
        (
            [("Ready", "True", 1, "Ready", "")],
            "AwaitingReconciliation",
            "generation 2 of its spec is not examined yet, the last one was 1",
        ),
        ([("Ready", "False", 1, "SubnetsNotFound", "no subnet")], "SubnetsNotFound", "no subnet"),
        (
            [
                ("AMIsReady", "Unknown", 2, "AwaitingReconciliation", "object is awaiting reconciliation"),
                ("SubnetsReady", "False", 2, "SubnetsNotFound", ""),
                ("Ready", "False", 2, "UnhealthyDependents", "AMIsReady=Unknown, SubnetsReady=False"),
            ],
            "UnhealthyDependents",
            "AMIsReady=Unknown, SubnetsReady=False",
        ),
        (
            [
                ("AMIsReady", "Unknown", 2, "ResolutionFailed", "no answer"),
                ("Ready", "Unknown", 2, "ResolutionFailed", "x"),
            ],
            "ResolutionFailed",
            "AMIsReady: no answer",
        ),
        (
            [
                ("AMIsReady", "Unknown", 2, "ResolutionFailed", "no answer"),
                ("SubnetsReady", "False", 2, "SubnetsNotFound", "none"),
                ("InstanceProfileReady", "True", 2, "InstanceProfileReady", "all right"),
                ("Ready", "False", 2, "UnhealthyDependents", "SubnetsReady=False"),
            ],
            "UnhealthyDependents",
            "SubnetsReady: none",
        ),
        ([], "AwaitingReconciliation", ""),
    ],
)
def test_reason_of_an_unready_node_class_is_what_is_not_true(conditions, reason, message):
    """Pods read it in the reason why they are not scheduled. A spec that changed since the last run is not validated."""
    names = ("type", "status", "observedGeneration", "reason", "message")
    status = {"conditions": [dict(zip(names, values, strict=True)) for values in conditions]}
    cluster = Cluster()
    cluster.add(merge(node_class_body(), {"metadata": {"generation": 2}, "status": status}))
    (state,) = load(cluster.run(), EVERYTHING).node_classes

    assert (state.ready, state.reason, state.message) == (False, reason, message)


@pytest.mark.parametrize(
    "odd",
    [{"annotations": None}, {"finalizers": None}, {"creationTimestamp": "10000-01-01T00:00:00Z"}, {"labels": None}],
)
def test_node_class_with_odd_metadata_is_read(odd):
    """Fields that are null are missing, and times are in range."""
    cluster = Cluster()
    cluster.add(node_class_body("odd"), node_class_body("good"))
    raws = cluster.server.list(EC2NODECLASS).items
    states = [node_class_state({**raw, "metadata": {**raw["metadata"], **odd}}, EC2NODECLASS) for raw in raws]
    assert [state.name for state in states] == ["good", "odd"]


@pytest.mark.parametrize(
    ("listed", "ends"),
    [
        ([{"id": "cr-1", "reservationType": "capacity-block", "endTime": "2026-01-05T12:00:00Z"}], ["cr-1"]),
        ([{"id": "cr-1", "reservationType": "default", "endTime": "2026-01-05T12:00:00Z"}], []),
        ([{"id": "cr-1", "reservationType": "capacity-block"}, None], []),
        ("odd", []),
    ],
)
def test_node_class_names_the_ends_of_its_capacity_blocks(listed, ends):
    """A status that does not decode has none, and the NodeClass is used all the same."""
    raw = merge(node_class_body(), {"status": {"capacityReservations": listed}})
    assert list(node_class_state(raw, EC2NODECLASS).block_ends) == ends
