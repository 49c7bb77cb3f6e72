"""The chart's roles have exactly the needed permissions: a real API server with RBAC, and its audit log.

Covers: every function under its own role through one scenario that needs every right: failed and successful launches,
repeated requests, registration and nomination, consolidation with a replacement, rebalance recommendations and
interruption, refused and forced evictions, a node deleted by a user, attached volumes, an instance without a NodeClaim,
deletion of old NodeDisruptions; the forwarder's watches, and its events over HTTPS.
Scenario: two NodePools, five pods; all optional features on, then all off.
"""

import json
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from infra.forwarder.aws_sinks import SqsSink
from infra.forwarder.forwarder import Forwarder
from infra.forwarder.notifications import NotifiedStep
from journeyman.kube.connection_pool import Connection, client_context
from journeyman.kube.transport import Transport
from journeyman.runtime.receiver import Receiver, Sender
from tests.helpers.waiting import wait_until
from tests.infra.audit import AuditLog, granted
from tests.infra.helm_program import CHART, NAMESPACE, RELEASE, helm, rendered
from tests.infra.rights_stage import CLUSTER, FUNCTIONS, MERGE, RightsStage

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rights")]

SAMPLES = Path(__file__).parents[2] / "events"
FORWARDER = f"{RELEASE}-forwarder"
SMALL, LARGE = "m5.large", "m5.4xlarge"
KARPENTER, OURS = "/apis/karpenter.sh/v1", "/apis/journeyman.dev/v1alpha1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# All features, and an HTTPS sink, whose receiver authenticates the sender.
VALUES = {
    "features": {"nodeOverlay": True, "capacityBuffer": True, "dynamicResourceAllocation": True, "defaultSpread": True},
    "forwarder": {
        "clusterName": CLUSTER,
        "image": {"repository": "registry.example/journeyman-forwarder"},
        "sink": {"kind": "https", "receiver": {"url": "https://api.example"}},
    },
}
WITHOUT_FEATURES = [f"--set=features.{name}=false" for name in VALUES["features"]]
BUFFER_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "capacitybuffers.autoscaling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "autoscaling.x-k8s.io",
        "names": {"kind": "CapacityBuffer", "plural": "capacitybuffers"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


class ScenarioResult:
    """The requests to the API server, the granted rights, and the objects that Helm left."""

    def __init__(self, requests, documents, repeated, installed, left):
        self.requests = requests
        self.documents = documents
        self.repeated = repeated
        self.installed = installed
        self.left = left

    def requests_of(self, component):
        return [r for r in self.requests if r.user == user(component)]

    def rights_of(self, component):
        return granted(self.documents, FORWARDER if component == "forwarder" else f"journeyman-{component}")


def user(component):
    """Return the user name in the API server's audit log."""
    return f"system:serviceaccount:{NAMESPACE}:{FORWARDER}" if component == "forwarder" else component


@pytest.fixture(scope="module")
def result(make_control_plane, tmp_path_factory) -> ScenarioResult:
    """Run the scenario from `helm install` to `uninstall`; the cluster already has Karpenter's NodePool CRD."""
    folder = tmp_path_factory.mktemp("rights")
    log = AuditLog(folder)
    values = folder / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES))
    with make_control_plane(apiserver_flags=log.flags) as plane:
        plane.admin.do(
            "POST", CRDS, yaml.safe_load((CHART.parent / "crds" / "karpenter.sh_nodepools.yaml").read_text())
        )
        on_plane = (f"--kubeconfig={plane.kubeconfig}", f"--namespace={NAMESPACE}")
        helm("install", RELEASE, str(CHART), *on_plane, "--create-namespace", f"--values={values}")
        installed = owners(plane.admin)
        with RightsStage(plane) as stage:
            run_scenario(stage, plane)
            helm("upgrade", RELEASE, str(CHART), *on_plane, f"--values={values}", *WITHOUT_FEATURES)
            stage.deploy({})
            run_without_features(stage)
        helm("uninstall", RELEASE, *on_plane)
        left = owners(plane.admin), roles(plane.admin)
    return ScenarioResult(list(log.requests()), rendered(values), stage.repeated, installed, left)


def owners(admin):
    """Return the release that owns each CRD; empty for none."""
    items = admin.do("GET", CRDS)["items"]
    key = "meta.helm.sh/release-name"
    return {crd["metadata"]["name"]: crd["metadata"].get("annotations", {}).get(key, "") for crd in items}


def roles(admin):
    items = admin.do("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles")["items"]
    return [r["metadata"]["name"] for r in items if r["metadata"]["name"].startswith("journeyman")]


def run_scenario(stage, plane):
    create_objects(stage)
    run_read_only_functions(stage)
    with running_forwarder(stage, plane):
        send_over_https(stage)
    launch_nodes(stage)
    replace_node(stage)
    delete_node(stage)
    interrupt_node(stage)
    lose_nodeclaim(stage)
    expire_node_disruptions(stage)
    end_fleet_plans(stage)
    orphan_instance(stage)


def run_without_features(stage):
    """Run the functions with all features off, in their settings and the chart's."""
    run_read_only_functions(stage)
    for step in ("provision", "consolidate"):
        stage.run(step)


# --- the scenario


def create_objects(stage):
    stage.create(CRDS, BUFFER_CRD)
    selected = [{"tags": {"karpenter.sh/discovery": CLUSTER}}]
    spec = {
        "role": f"KarpenterNodeRole-{CLUSTER}",
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "subnetSelectorTerms": selected,
        "securityGroupSelectorTerms": selected,
    }
    stage.create("/apis/karpenter.k8s.aws/v1/ec2nodeclasses", an_object("EC2NodeClass", "karpenter.k8s.aws/v1", spec))
    spot = a_pool("spot", "spot", [SMALL], nodes="0")
    spot["metadata"]["annotations"] = {"journeyman.dev/rebalance": "replace"}
    stage.create(f"{KARPENTER}/nodepools", spot)
    stage.create(f"{KARPENTER}/nodepools", a_pool("steady", "on-demand", [SMALL, LARGE], nodes="100%"))
    overlay = {"requirements": [{"key": "team", "operator": "Exists"}], "priceAdjustment": "+1%"}
    stage.create("/apis/karpenter.sh/v1alpha1/nodeoverlays", an_object("NodeOverlay", "karpenter.sh/v1alpha1", overlay))
    buffers = "/apis/autoscaling.x-k8s.io/v1beta1/capacitybuffers"
    wait_until(lambda: stage.admin.call("GET", buffers)[0] == 200, f"{buffers} is not served")
    shapes = [{"scalableRef": {"kind": kind, "name": "gone"}} for kind in ("Deployment", "ReplicaSet", "StatefulSet")]
    for number, shape in enumerate([*shapes, {"podTemplateRef": {"name": "gone"}}]):
        buffer = an_object(
            "CapacityBuffer", "autoscaling.x-k8s.io/v1beta1", {**shape, "replicas": 1}, f"buffer-{number}"
        )
        stage.create("/apis/autoscaling.x-k8s.io/v1beta1/namespaces/default/capacitybuffers", buffer)


def an_object(kind, version, spec, name="default"):
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def a_pool(name, capacity_type, types, *, nodes):
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity_type]},
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": types},
    ]
    template = {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
        "requirements": requirements,
        "expireAfter": "Never",
        "terminationGracePeriod": "1h",
    }
    budgets = [{"nodes": nodes}]
    policy = {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s", "budgets": budgets}
    spec = {"template": {"spec": template}, "disruption": policy}
    return an_object("NodePool", "karpenter.sh/v1", spec, name)


def run_read_only_functions(stage):
    """Run the read-only functions twice; the second time they watch."""
    for _ in range(2):
        stage.run("sweep", json.loads((SAMPLES / "schedule" / "minute-sweep.json").read_text()))
        answer = stage.run("api", json.loads((SAMPLES / "api" / "get-plan.json").read_text()))
        assert answer["statusCode"] == 200, answer["body"]
        stage.create("/api/v1/namespaces/default/configmaps", {"metadata": {"generateName": "something-changes-"}})


@contextmanager
def running_forwarder(stage, plane):
    """Run the forwarder as its own service account until it watches all its resources."""
    token = token_of(stage)
    context = client_context(ca_file=str(plane.ca_file))
    transport = Transport(Connection(server=plane.server, ssl_context=context, authorization=lambda: f"Bearer {token}"))
    queues = {step: stage.queue_urls[f"{step.value.title()}Queue"] for step in NotifiedStep}
    forwarder = Forwarder(CLUSTER, transport, SqsSink(queues, CLUSTER, stage.aws.client("sqs")), watch_seconds=1)
    forwarder.start()
    yield
    wait_until(lambda: forwarder.is_ready, "the forwarder does not get ready")
    time.sleep(1.2)  # the API server logs a watch when it ends
    forwarder.stop()


def token_of(stage, *audiences):
    """Return the token that the kubelet would mount."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{FORWARDER}/token"
    return stage.create(path, {"spec": {"audiences": list(audiences)}})["status"]["token"]


def send_over_https(stage):
    body = {"version": "1", "source": "forwarder", "id": "1", "cluster": CLUSTER, "reason": "-", "counts": {}}
    body |= {"time": stage.clock.now().isoformat(), "step": "provision"}
    receiver = Receiver(Sender(service_account=f"{NAMESPACE}/{FORWARDER}"))
    token = f"Bearer {token_of(stage, 'journeyman')}"
    reply = receiver.receive(stage.runtime("api"), CLUSTER, token, json.dumps(body).encode())
    assert reply.status == 202, reply


def launch_nodes(stage):
    """Spot is unavailable at first; then both nodes join, and kube-scheduler binds the pods as planned, but late."""
    out_of_stock(stage, SMALL, "spot")
    on_spot, steady = ({"nodeSelector": {"karpenter.sh/nodepool": pool}} for pool in ("spot", "steady"))
    large = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "10"}}}
    stage.create_unschedulable_pod("evictable", on_spot, labels={"app": "guarded"})
    stage.create_unschedulable_pod("stubborn", on_spot, annotations={"karpenter.sh/do-not-disrupt": "true"})
    stage.create_unschedulable_pod("large", {**steady, "containers": [large]})
    replica_set = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "small", "uid": "small", "controller": True}
    stage.create_unschedulable_pod("small", steady, ownerReferences=[replica_set])
    stage.create_unschedulable_pod("impossible", {"nodeSelector": {"nowhere": "ever"}})
    stage.run("provision")
    stage.advance(minutes=4)
    run_until(stage, lambda: stage.initialized() == {"spot", "steady"}, "provision")
    stage.advance(seconds=45)
    for _ in range(2):  # the nodes are not used: the first run creates the ChurnLedger
        stage.run("provision")
    stage.admin.do("DELETE", f"{OURS}/churnledgers")  # consolidate creates it again
    for pool, pods in {"spot": ("evictable", "stubborn"), "steady": ("large", "small")}.items():
        for pod in pods:
            stage.bind(pod, stage.claim_of(pool)["status"]["nodeName"])
    stage.advance(seconds=5)
    stage.advance(seconds=5)


def run_until(stage, done, *steps):
    """Repeat these steps while nodes join; a run may read a slightly older state of the cluster."""
    for _ in range(12):
        for step in steps:
            stage.run(step)
        if done():
            return
        stage.boot()
    raise AssertionError(f"{', '.join(steps)} did not finish: {[line['message'] for line in stage.logs[-20:]]}")


def out_of_stock(stage, instance_type, capacity_type):
    """Make an instance type unavailable for two minutes in all zones."""
    end = stage.clock.now() + timedelta(minutes=2)
    for zone in stage.zones:
        stage.aws.out_of_stock(instance_type, zone, capacity_type, end)


def replace_node(stage):
    """A user deletes the large pod; a small node is enough, but unavailable at first."""
    delete_offering_states(stage)
    old = stage.claim_of("steady")["metadata"]["name"]
    stage.admin.do("DELETE", "/api/v1/namespaces/default/pods/large?gracePeriodSeconds=0")
    out_of_stock(stage, SMALL, "on-demand")
    run_until(stage, lambda: stage.admin.do("GET", f"{OURS}/offeringstates")["items"], "consolidate")
    stage.advance(minutes=3)
    run_until(stage, lambda: "deletionTimestamp" in stage.claims()[old]["metadata"], "consolidate", "provision")


def delete_node(stage):
    """A user deletes the replacement's node; the steps run again after 16 minutes."""
    node = stage.claim_of("steady")["status"]["nodeName"]
    stage.admin.do("DELETE", f"/api/v1/nodes/{node}")
    stage.advance(minutes=16)
    stage.run("provision")
    stage.run("consolidate")


def delete_offering_states(stage):
    """Delete the OfferingState, so that the next failed launch has to create it."""
    stage.admin.do("DELETE", f"{OURS}/offeringstates")


def interrupt_node(stage):
    """An alarm, two recommendations, then an interruption; a PodDisruptionBudget blocks until the grace period ends."""
    delete_offering_states(stage)
    for state in ("alarm", "ok"):
        stage.run("interrupt", cloud_event(stage, f"cloudwatch-alarm/{state}"))
    instance = stage.claim_of("spot")["status"]["providerID"].rpartition("/")[2]
    for _ in range(2):
        stage.run("interrupt", notice(stage, "ec2-rebalance-recommendation/elevated-risk", instance))
        stage.advance(minutes=3)
    stage.run("interrupt", notice(stage, "ec2-spot-interruption/terminate", instance))
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}}
    budget = an_object("PodDisruptionBudget", "policy/v1", spec)
    stage.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    attach_volumes(stage)
    for _ in range(3):
        stage.run("terminate")
        stage.advance(minutes=3)
    stage.advance(hours=1)
    run_until(stage, lambda: not stage.terminating_claims(), "terminate")


def attach_volumes(stage):
    """Attach a volume to every node that is being deleted."""
    nodes = {name: stage.claims()[name].get("status", {}).get("nodeName") for name in stage.terminating_claims()}
    for name, node in nodes.items():
        if node is None:
            continue
        spec = {"attacher": "ebs.csi.aws.com", "nodeName": node, "source": {"persistentVolumeName": f"volume-{name}"}}
        attachment = an_object("VolumeAttachment", "storage.k8s.io/v1", spec, f"attached-{name}")
        stage.create("/apis/storage.k8s.io/v1/volumeattachments", attachment)


def lose_nodeclaim(stage):
    """A user removes our finalizer and deletes the NodeClaim of a running node: terminate creates it again."""
    claim = delete_without_finalizer(stage)
    stage.advance(minutes=1)
    stage.run("terminate")
    assert claim["metadata"]["name"] in stage.claims()


def orphan_instance(stage):
    """The NodePool is gone as well: terminate drains the node, and reads the NodeClaim by name before it ends the instance."""
    claim = delete_without_finalizer(stage)
    stage.admin.do("DELETE", f"{KARPENTER}/nodepools/steady")
    for _ in range(3):  # notes that the instance looks lost, and removes it once it has looked so for long enough
        stage.advance(minutes=6)
        stage.run("terminate")
    for _ in range(3):  # drains the node, terminates the instance
        stage.advance(seconds=5)
        stage.run("terminate")
    instance = claim["status"]["providerID"].rpartition("/")[2]
    (found,) = stage.aws.client("ec2").describe_instances(InstanceIds=[instance])["Reservations"]
    assert found["Instances"][0]["State"]["Name"] in {"shutting-down", "terminated"}


def delete_without_finalizer(stage):
    """Delete the NodeClaim of the NodePool `steady` as a user does who removes its finalizer, and return it."""
    claim = stage.claim_of("steady")
    path = f"{KARPENTER}/nodeclaims/{claim['metadata']['name']}"
    stage.admin.do("PATCH", path, {"metadata": {"finalizers": []}}, kind=MERGE)
    stage.admin.do("DELETE", path)
    return claim


def notice(stage, sample, instance):
    return cloud_event(stage, sample, **{"instance-id": instance})


def cloud_event(stage, sample, **detail):
    event = json.loads((SAMPLES / "eventbridge" / f"{sample}.json").read_text())
    event["time"] = stage.clock.now().isoformat()
    event["detail"] |= detail
    return stage.record(event, "journeyman-interrupt")


def expire_node_disruptions(stage):
    """Finish the NodeDisruptions, and wait until consolidate deletes them a day later."""
    for _ in range(2):
        stage.run("consolidate")
    stage.advance(hours=25)
    run_until(stage, lambda: not stage.admin.do("GET", f"{OURS}/nodedisruptions")["items"], "consolidate")


def end_fleet_plans(stage):
    """Of two plans for nodes that do not exist, the older one is deleted, and the other one is superseded."""
    for name in ("a", "b"):
        spec = {"moves": [{"name": "gone", "nodeClaims": ["gone"]}]}
        stage.create(f"{OURS}/fleetplans", an_object("FleetPlan", "journeyman.dev/v1alpha1", spec, name))
    stage.run("consolidate")


# --- the result


@pytest.mark.parametrize("component", [*FUNCTIONS, "forwarder"])
def test_no_request_is_forbidden(result, component):
    """Every request of the scenario is within the chart's role."""
    requests = result.requests_of(component)
    assert requests
    assert sorted({str(r) for r in requests if not r.allowed}) == []


@pytest.mark.parametrize("component", [*FUNCTIONS, "forwarder"])
def test_every_permission_is_used(result, component):
    """The test fails for a permission that the scenario does not use."""
    requests = result.requests_of(component)
    rights = result.rights_of(component)
    assert rights
    assert sorted(str(right) for right in rights if not any(right.covers(r) for r in requests)) == []


def test_creations_with_a_lost_answer_are_sent_twice(result):
    """Then provision, terminate and consolidate need `get` for NodeClaims, and each for those of our own kinds that it creates."""
    of_consolidate = ["ChurnLedger", "FleetPlan", "NodeClaim", "NodeDisruption"]
    others = ["ChurnLedger", "NodeClaim", "FleetGuard", "NodeClaim"]
    assert sorted(result.repeated) == sorted([*of_consolidate, *others])


def test_helm_keeps_the_crds_of_another_owner_and_its_own(result):
    """The NodePool CRD existed; the release owns the others, which outlive it with all their objects."""
    before, after, roles_left = result.installed, *result.left
    assert before.pop("nodepools.karpenter.sh") == ""
    assert set(before.values()) == {RELEASE}
    assert len(before) == 8
    assert set(after) == {*before, "nodepools.karpenter.sh", BUFFER_CRD["metadata"]["name"]}
    assert roles_left == []
