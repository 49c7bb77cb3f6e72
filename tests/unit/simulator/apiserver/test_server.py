"""The in-memory API server beyond the contract of a KubeStore."""

from datetime import datetime, timezone

import pytest
import yaml

from journeyman.core.api.objects import EVENT, NAMESPACE, NODE, NODECLAIM, NODEPOOL, PDB, POD, Resource
from journeyman.errors import InvalidError, InvalidObjectError, KubeAPIError, NotFoundError
from journeyman_simulator.apiserver import ApiServer, ServedKind
from journeyman_simulator.clock import VirtualClock

START = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
REPLICASET = Resource(group="apps", version="v1", kind="ReplicaSet", plural="replicasets", namespaced=True, type=dict)


@pytest.fixture
def clock():
    return VirtualClock(START)


@pytest.fixture
def server(clock):
    return ApiServer(clock)


def a_pod(name, **metadata):
    containers = [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": containers}}


def owned_by(owner):
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": owner["metadata"]["name"] != "other",
    }


def test_same_requests_give_the_same_history(clock):
    """UIDs, generated names, versions and times are reproducible."""

    def history_of_writes():
        server = ApiServer(VirtualClock(START))
        writes = []
        server.on_write(lambda write: writes.append((write.verb, write.result)))
        server.create(POD, {**a_pod(""), "metadata": {"generateName": "web-"}}, namespace="default")
        server.create(NODE, {"metadata": {"name": "n"}})
        server.patch(NODE, "n", {"metadata": {"labels": {"a": "b"}}})
        server.delete(NODE, "n")
        return writes

    assert history_of_writes() == history_of_writes()


def test_observers_get_every_write_with_its_user(server):
    """They get verb, object, subresource, body and result, in order."""
    writes = []
    server.on_write(writes.append)
    kubelet = server.acting_as("kubelet")
    server.create(POD, a_pod("a"), namespace="default")
    server.bind("default", "a", "node-1")
    kubelet.patch(POD, "a", {"status": {"phase": "Running"}}, namespace="default", subresource="status")
    server.evict("default", "a")
    kubelet.delete(POD, "a", namespace="default", grace_period_seconds=0)

    assert [(w.verb, w.name, w.subresource, w.user) for w in writes] == [
        ("create", "a", "", ""),
        ("bind", "a", "binding", ""),
        ("patch", "a", "status", "kubelet"),
        ("evict", "a", "eviction", ""),
        ("delete", "a", "", "kubelet"),
    ]
    assert writes[2].body == {"status": {"phase": "Running"}}
    assert writes[2].result["status"]["phase"] == "Running"
    assert writes[-1].body == {"gracePeriodSeconds": 0}
    assert [w.version for w in writes] == sorted({w.version for w in writes})


def test_refused_write_is_not_observed(server):
    """Observers see only what the server stored."""
    writes = []
    server.on_write(writes.append)
    with pytest.raises(NotFoundError):
        server.patch(NODE, "missing", {})
    assert writes == []


def test_callers_cannot_reach_into_the_store(server):
    """The server copies objects that it stores and returns."""
    body = {"metadata": {"name": "pool"}, "spec": _pool_spec()}
    returned = server.create(NODEPOOL, body)
    body["spec"]["weight"] = 7
    returned["spec"]["weight"] = 8
    server.get(NODEPOOL, "pool")["spec"]["weight"] = 9
    taints = [{"key": "a", "effect": "NoSchedule"}]
    server.create(NODE, {"metadata": {"name": "n"}})
    server.patch(NODE, "n", {"spec": {"taints": taints}})
    taints.append({"key": "b", "effect": "NoSchedule"})
    assert len(server.get(NODE, "n").spec.taints) == 1
    assert "weight" not in server.get(NODEPOOL, "pool")["spec"]


def test_pods_are_completed_as_the_api_server_completes_them(server):
    """Requests default to limits, built-in priority classes set their priority, and a new pod is Pending."""
    body = a_pod("complete")
    body["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    body["spec"]["priorityClassName"] = "system-node-critical"
    server.create(POD, body, namespace="default")
    pod = server.get(POD, "complete", namespace="default")
    assert pod.spec.containers[0].resources.requests == {"cpu": "1", "memory": "1Gi"}
    assert pod.spec.priority == 2_000_001_000
    assert pod.spec.termination_grace_period_seconds == 30
    assert pod.status.phase == "Pending"


def test_timestamps_come_from_the_clock(server, clock):
    """Both creation and deletion timestamps do, the latter with the grace period."""
    clock.advance(90)
    server.create(POD, a_pod("a"), namespace="default")
    server.bind("default", "a", "node-1")
    server.delete(POD, "a", namespace="default", grace_period_seconds=25)
    meta = server.get(POD, "a", namespace="default").metadata
    assert (meta.creation_timestamp - START).total_seconds() == 90
    assert (meta.deletion_timestamp - START).total_seconds() == 115


def test_garbage_goes_with_its_owners_and_its_namespace(server):
    """The collection is recursive; an object with another owner stays, one with a finalizer is only marked."""
    owner = server.create(REPLICASET, {"metadata": {"name": "web"}}, namespace="default")
    other = server.create(REPLICASET, {"metadata": {"name": "other"}}, namespace="default")
    server.create(POD, a_pod("one", ownerReferences=[owned_by(owner)]), namespace="default")
    server.create(POD, a_pod("both", ownerReferences=[owned_by(owner), owned_by(other)]), namespace="default")
    server.create(
        POD, a_pod("held", ownerReferences=[owned_by(owner)], finalizers=["example.com/hold"]), namespace="default"
    )
    server.create(NAMESPACE, {"metadata": {"name": "gone"}})
    server.create(POD, a_pod("homeless"), namespace="gone")
    assert server.collect_garbage() == 0

    server.delete(REPLICASET, "web", namespace="default")
    server.delete(NAMESPACE, "gone")
    writes = []
    server.on_write(writes.append)
    assert server.collect_garbage() == 4  # the last object is the namespace
    assert {write.user for write in writes} == {"garbage-collector"}
    assert [write.verb for write in writes] == ["delete", "delete", "delete", "update"]
    left = server.list(POD).items
    assert [pod.key for pod in left] == ["default/both", "default/held"]
    assert left[1].metadata.deletion_timestamp is not None
    assert server.collect_garbage() == 0


def test_budget_statuses_follow_the_pods_and_their_workload(server):
    """As in the disruption controller, percentages are of the workload's desired replicas."""
    deployment = Resource(
        group="apps", version="v1", kind="Deployment", plural="deployments", namespaced=True, type=dict
    )
    top = server.create(deployment, {"metadata": {"name": "web"}, "spec": {"replicas": 10}}, namespace="default")
    middle = server.create(
        REPLICASET, {"metadata": {"name": "web-1", "ownerReferences": [owned_by(top)]}}, namespace="default"
    )
    for number in range(9):
        body = a_pod(f"web-1-{number}", labels={"app": "web"}, ownerReferences=[owned_by(middle)])
        server.create(POD, body, namespace="default")
        server.bind("default", f"web-1-{number}", "node-1")
        ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        server.patch(POD, f"web-1-{number}", ready, namespace="default", subresource="status")
    spec = {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": "25%"}
    server.create(PDB, {"metadata": {"name": "web"}, "spec": spec}, namespace="default")

    assert server.sync_disruption_budgets() == 1
    status = server.get(PDB, "web", namespace="default").status
    assert (status.expected_pods, status.desired_healthy, status.current_healthy) == (10, 7, 9)
    assert status.disruptions_allowed == 2
    assert server.sync_disruption_budgets() == 0


KUBECTL_OUTPUT = """
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata:
    name: ip-10-0-0-1
    uid: 7a6b0d2e-0000-4000-8000-000000000001
    creationTimestamp: 2026-01-05T10:00:00Z
    resourceVersion: "991"
    labels: {karpenter.sh/registered: "true"}
  spec: {providerID: "aws:///us-east-1a/i-1"}
  status:
    allocatable: {cpu: 3920m, memory: 7Gi, pods: 58}
- apiVersion: v1
  kind: Pod
  metadata: {name: web-1, namespace: shop, uid: 7a6b0d2e-0000-4000-8000-000000000002}
  spec:
    nodeName: ip-10-0-0-1
    containers: [{name: main, resources: {limits: {cpu: 1}}}]
  status: {phase: Running}
- apiVersion: karpenter.sh/v1
  kind: NodePool
  metadata: {name: from-another-version}
  spec: {template: {spec: {requirements: []}}}
- apiVersion: example.com/v2
  kind: Policy
  metadata: {name: strange, namespace: shop}
"""


def test_kubectl_output_is_loaded_with_status_and_uid(server):
    """It keeps UID and status, sets new versions, and adds missing namespaces and kinds."""
    assert server.load(yaml.safe_load_all(KUBECTL_OUTPUT)) == 4
    node = server.get(NODE, "ip-10-0-0-1")
    assert node.metadata.uid == "7a6b0d2e-0000-4000-8000-000000000001"
    assert node.metadata.creation_timestamp == datetime(2026, 1, 5, 10, 0, tzinfo=timezone.utc)
    assert node.metadata.resource_version != "991"
    assert node.status.allocatable == {"cpu": "3920m", "memory": "7Gi", "pods": 58}
    pod = server.list(POD, namespace="shop").items[0]
    assert (pod.status.phase, pod.spec.containers[0].resources.requests) == ("Running", {"cpu": 1})
    assert server.get(NAMESPACE, "shop").metadata.uid
    assert server.get(NODEPOOL, "from-another-version")["metadata"]["generation"] == 1
    policy = Resource(group="example.com", version="v2", kind="Policy", plural="policies", namespaced=True, type=dict)
    assert server.get(policy, "strange", namespace="shop")["kind"] == "Policy"


def test_typed_lists_are_unpacked(server):
    """Items of `kubectl get --raw` have no kind and apiVersion; the list has them."""
    pods = {"kind": "PodList", "apiVersion": "v1", "items": [a_pod("a", namespace="default")]}
    assert server.load([pods]) == 1
    assert server.get(POD, "a", namespace="default").metadata.name == "a"


@pytest.mark.parametrize("thing", ["text", {"kind": "Pod"}, {"kind": "Pod", "apiVersion": "v1", "metadata": {}}])
def test_non_kubernetes_document_is_refused(server, thing):
    """The server raises one error."""
    with pytest.raises(InvalidObjectError, match="not a Kubernetes object"):
        server.load([thing])


def test_object_that_does_not_decode_is_named(server):
    """The error names the field with the wrong type."""
    server.load([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "odd", "labels": {"a": 5}}}])
    with pytest.raises(InvalidObjectError, match=r"Node odd cannot be read: .*labels"):
        server.list(NODE)


def test_more_kinds_can_be_served(server):
    """A test may add a kind, with or without a status subresource."""
    widget = Resource(group="example.com", version="v1", kind="Widget", plural="widgets", namespaced=False, type=dict)
    with pytest.raises(NotFoundError):
        server.create(widget, {"metadata": {"name": "w"}})
    server.register(ServedKind(resource=widget, status_subresource=False))
    server.create(widget, {"metadata": {"name": "w"}, "status": {"kept": True}})
    assert server.get(widget, "w")["status"] == {"kept": True}
    with pytest.raises(NotFoundError):
        server.patch(widget, "w", {"status": {}}, subresource="status")


def test_existing_invalid_field_does_not_block_other_changes(server):
    """A NodePool stored under an older CRD accepts a status; a new invalid value is rejected."""
    server.load(yaml.safe_load_all(KUBECTL_OUTPUT))
    server.patch(NODEPOOL, "from-another-version", {"status": {"nodes": 1}}, subresource="status")
    with pytest.raises(KubeAPIError, match=r"spec\.weight"):
        server.patch(NODEPOOL, "from-another-version", {"spec": {"weight": 1000}})
    assert server.get(NODEPOOL, "from-another-version")["status"]["nodes"] == 1


def test_nodepool_keeps_its_node_class_kind_and_static_mode(server):
    """The transition rules of its CRD forbid a change."""
    server.create(NODEPOOL, {"metadata": {"name": "pool"}, "spec": _pool_spec()})
    with pytest.raises(KubeAPIError, match=r"nodeClassRef\.kind is immutable"):
        server.patch(NODEPOOL, "pool", {"spec": {"template": {"spec": {"nodeClassRef": {"kind": "Other"}}}}})
    with pytest.raises(KubeAPIError, match="Cannot transition NodePool"):
        server.patch(NODEPOOL, "pool", {"spec": {"replicas": 3}})
    server.patch(NODEPOOL, "pool", {"spec": {"weight": 10}})
    assert server.get(NODEPOOL, "pool")["metadata"]["generation"] == 2


def test_malformed_body_is_refused(server):
    """The bodies are no Kubernetes objects."""
    for body in (
        {"metadata": "x"},
        {"metadata": {"name": "x"}, "spec": 5},
        {"metadata": {"name": "x", "labels": {"a": 1}}},
    ):
        with pytest.raises(KubeAPIError) as caught:
            server.create(NODECLAIM, body)
        assert caught.value.status in {400, 422}
    assert server.list(NODECLAIM).items == ()


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        ({"metadata": {"labels": {"a": "no/slash"}}}, r"metadata\.labels: Invalid value: \"no/slash\""),
        ({"metadata": {"labels": {"a": "x" * 64}}}, "no more than 63 characters"),
        ({"metadata": {"labels": {"a b": "x"}}}, "name part must consist of"),
        ({"metadata": {"annotations": {"big": "x" * 300_000}}}, r"metadata\.annotations: Too long"),
        ({"metadata": {"finalizers": ["short"]}}, "nor is it fully qualified"),
        ({"metadata": {"ownerReferences": [{"kind": "NodeClaim", "name": "c"}]}}, r"ownerReferences\.uid"),
        ({"spec": {"providerID": "aws:///z/i-2"}}, "may not change providerID"),
        ({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}] * 2}}, r"metadata\.taints\[1\]: Duplicate value"),
        ({"spec": {"taints": [{"key": "a", "effect": "Never"}]}}, r"metadata\.taints\[0\]\.effect: Unsupported value"),
    ],
)
def test_invalid_node_write_is_refused(server, patch, problem):
    """The simulated server answers 422 as a real one, so that tests notice the error."""
    server.create(NODE, {"metadata": {"name": "n"}, "spec": {"providerID": "aws:///z/i-1"}})
    with pytest.raises(InvalidError, match=problem):
        server.patch(NODE, "n", patch)
    assert server.get(NODE, "n").spec.provider_id == "aws:///z/i-1"


def test_event_is_in_the_namespace_of_its_object(server):
    """It is in `default` for a cluster-scoped object."""

    def record(namespace, involved):
        server.create(EVENT, {"metadata": {"generateName": "e-"}, "involvedObject": involved}, namespace=namespace)

    record("default", {"kind": "Node", "name": "n"})
    record("kube-system", {"kind": "Pod", "name": "p", "namespace": "kube-system"})
    with pytest.raises(InvalidError, match=r"does not match event\.namespace"):
        record("kube-system", {"kind": "Node", "name": "n"})
    found = server.list(EVENT, field_selector="involvedObject.kind=Pod,involvedObject.name=p")
    assert [event.metadata.namespace for event in found.items] == ["kube-system"]


def test_history_is_bounded(clock):
    """A watch from a version before the history is Gone, one from within it continues."""
    server = ApiServer(clock, history=10)
    server.create(NODE, {"metadata": {"name": "n"}})
    versions = []
    for number in range(50):
        versions.append(server.resource_version)
        server.patch(NODE, "n", {"metadata": {"labels": {"n": str(number)}}})
    events = list(server.watch(NODE, resource_version=versions[-9]))
    assert [event.object.metadata.labels["n"] for event in events[:-1]] == [str(n) for n in range(41, 50)]
    with pytest.raises(KubeAPIError, match="too old resource version"):
        list(server.watch(NODE, resource_version=versions[0]))


@pytest.mark.slow
def test_ten_thousand_pods_are_decoded_once(server):
    """The server decodes a pod once per version; the second list only selects."""
    for number in range(10_000):
        server.create(POD, a_pod(f"pod-{number:05}", labels={"app": "web"}), namespace="default")
    first = server.list(POD, field_selector="spec.nodeName=")
    second = server.list(POD, field_selector="spec.nodeName=")
    assert len(first.items) == 10_000
    assert all(a is b for a, b in zip(first.items, second.items, strict=True))


def _pool_spec():
    ref = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    return {"template": {"spec": {"requirements": [], "nodeClassRef": ref}}}


def test_a_patch_that_changes_nothing_is_accepted_after_the_history_was_dropped(server):
    """No change is left to compare it with."""
    server.create(NODE, {"metadata": {"name": "a", "labels": {"team": "web"}}})
    server.compact_history()

    patched = server.patch(NODE, "a", {"metadata": {"labels": {"team": "web"}}})

    assert patched["metadata"]["labels"] == {"team": "web"}
