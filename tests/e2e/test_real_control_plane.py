"""Provisioning, interruption and termination on a real kube-apiserver, kube-scheduler and kube-controller-manager.

Handlers, queues, schedules and forwarder are the deployed ones; AWS is moto; kubelets are simulated. All tests share one
control plane and one account; each starts and ends with a cluster without nodes.
"""

import json
from datetime import timedelta

import pytest
import yaml

from journeyman.core.api.objects import DAEMONSET, NODE_DISRUPTION, NODECLAIM
from journeyman.runtime.composition import installed
from journeyman_simulator.deployment_files import deployment_file
from tests.controlplane.manifests import install_crds, remove_crds
from tests.controlplane.world import RealWorld
from tests.helpers.deployed_application import FEW_FAMILIES

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real-world")]

SPOT_NOTICE = timedelta(minutes=2)
EMPTY_WITHIN = timedelta(minutes=15)


@pytest.fixture(scope="module")
def world(make_control_plane):
    """Deploy the application on a cluster with the demo's NodePool and without nodes."""
    with make_control_plane(scheduler=True, controllers=True) as plane:
        install_crds(plane.admin)  # before the forwarder starts
        with RealWorld(plane, families=FEW_FAMILIES) as world:
            example(world, "demo-cluster", "inflate")
            world.run_for(
                timedelta(seconds=1)
            )  # the first sweep passes here, so that the forwarder sends the first message in the tests
            yield world


def example(world, *names):
    """Apply examples of the documentation: the demo's NodePool; a Deployment without pods."""
    for name in names:
        world.apply(*yaml.safe_load_all(deployment_file("docs", "examples", f"{name}.yaml").read_text()))


class Scenario:
    """The log lines, cloud calls and invocations since a test started."""

    def __init__(self, world):
        self._world = world
        self._logged, self._calls = len(world.logs), dict(world.aws.calls())
        self._invoked = {name: len(f.invocations) for name, f in world.stack.functions.items()}

    def lines(self, message="", **fields):
        since = self._world.logs[self._logged :]
        return [
            line
            for line in since
            if line["message"].startswith(message) and all(line.get(name) == value for name, value in fields.items())
        ]

    def calls(self, operation):
        return self._world.aws.calls().get(operation, 0) - self._calls.get(operation, 0)

    def outcomes(self):
        functions = self._world.stack.functions.items()
        return {i.outcome.value for name, f in functions for i in f.invocations[self._invoked[name] :]}


@pytest.fixture
def scenario(world):
    """Check that the cluster is empty, and that it becomes empty again once the test's pods and NodeClaims are deleted."""
    assert world.leftovers() == []
    yield Scenario(world)
    world.scale("inflate", 0)
    for claim in world.claims():
        world.store.delete(NODECLAIM, claim.metadata.name)
    world.until(lambda: not world.leftovers() and not world.pods("inflate"), "an empty cluster", within=EMPTY_WITHIN)


def hosts(world, app="inflate"):
    """Return the names of the nodes on which the app's pods run."""
    return {pod.spec.node_name for pod in world.pods(app)}


def phases(world):
    """Return the phases of the NodeDisruptions."""
    return {disruption["status"]["phase"] for disruption in world.store.list(NODE_DISRUPTION).items}


def test_ten_pods_get_nodes_move_on_interruption_and_leave_nothing(world, scenario):
    """kube-scheduler binds ten pods, a Spot node is interrupted, ten pods run on other nodes, then no node is left."""
    world.scale("inflate", 10)
    seconds = world.until_running("inflate", 10)
    world.until(world.is_quiet, "initialized nodes")

    claims, nodes = world.claims(), {node.metadata.name: node for node in world.nodes()}
    assert scenario.lines("running provision")[0]["trigger"] == "ClusterChanged"
    assert hosts(world) == {claim.status.node_name for claim in claims} == nodes.keys()
    assert len(claims) == scenario.calls("CreateFleet")
    assert not [taint for node in nodes.values() for taint in node.spec.taints]
    assert seconds <= 60
    assert scenario.lines(level="WARNING") == []

    seconds = interrupt_fullest_node(world)

    assert seconds <= SPOT_NOTICE.total_seconds()
    assert scenario.lines("initiating delete of nodeclaim")

    world.scale("inflate", 0)
    world.until(lambda: not world.leftovers(), "an empty cluster", within=EMPTY_WITHIN)
    world.until(lambda: phases(world) == {"Succeeded"}, "the disruption to have succeeded")

    assert world.pods("inflate") == []
    assert scenario.outcomes() == {"succeeded"}
    assert scenario.lines(level="ERROR") == []


def interrupt_fullest_node(world):
    """Interrupt the node with most pods and wait for its termination; return the seconds until ten pods run on others."""
    lost = max(world.nodes(), key=lambda n: sum(p.spec.node_name == n.metadata.name for p in world.pods("inflate")))
    world.aws.interrupt(lost.spec.provider_id.rsplit("/", 1)[-1])
    seconds = world.until(
        lambda: world.running("inflate") == 10 and lost.metadata.name not in hosts(world), "ten pods elsewhere"
    )
    world.until(world.is_quiet, "the old node to be gone")
    assert lost.metadata.name not in {node.metadata.name for node in world.nodes()} | hosts(world)
    return seconds


@pytest.mark.nightly
def test_pods_of_a_terminated_instance_move_elsewhere(world, scenario):
    """No kubelet confirms their deletion; Kubernetes' pod garbage collector deletes them once their Node is deleted."""
    world.scale("inflate", 10)
    world.until_running("inflate", 10)
    world.until(world.is_quiet, "initialized nodes")
    lost = world.nodes()[0]

    world.aws.client("ec2").terminate_instances(InstanceIds=[lost.spec.provider_id.rsplit("/", 1)[-1]])
    world.until(
        lambda: lost.metadata.name not in hosts(world) and len(world.pods("inflate")) == world.running("inflate") == 10,
        "ten pods elsewhere",
    )
    world.until(world.is_quiet, "the old node to be gone")

    assert lost.metadata.name not in {node.metadata.name for node in world.nodes()}
    assert scenario.lines(level="ERROR") == []


@pytest.mark.nightly
def test_outage_of_the_api_server_loses_nothing(world, scenario):
    """The outage starts while nodes launch: errors name the cluster and the remedy, and all work continues afterwards."""
    world.scale("inflate", 10)
    world.until(lambda: scenario.calls("CreateFleet") > 0, "a launch")
    launched = scenario.calls("CreateFleet")

    world.plane.stop_apiserver()
    world.run_for(timedelta(seconds=70))  # enough for the nodes to join, and for a sweep
    errors = scenario.lines(level="ERROR")
    world.plane.start_apiserver()
    world.until_running("inflate", 10)
    world.until(world.is_quiet, "initialized nodes")

    assert {line["error"] for line in errors} == {"KubeUnavailableError"}
    assert all("demo" in (line.get("cluster"), line.get("on")) and line["to_do"] for line in errors)
    assert len(world.claims()) == launched == scenario.calls("CreateFleet")


@pytest.mark.nightly
def test_missing_crds_are_reported_and_pods_get_nodes_once_installed(world, scenario):
    """The step launches no instance without a NodeClaim, and needs no further notification of the pods."""
    remove_crds(world.plane.admin)
    world.scale("inflate", 3)
    world.run_for(timedelta(seconds=61))  # enough for a sweep
    errors, launched = scenario.lines(level="ERROR"), scenario.calls("CreateFleet")
    install_crds(world.plane.admin)
    example(world, "demo-cluster")
    world.until_running("inflate", 3)
    world.until(world.is_quiet, "initialized nodes")

    assert {line["controller"] for line in errors} >= {"provision", "sweep"}
    assert {line["message"] for line in errors} == {"the API server does not serve nodeclaims of karpenter.sh/v1"}
    assert all(line["cluster"] == "demo" and "install the CRDs" in line["to_do"] for line in errors)
    assert any("install the CRDs" in text for text in events(world, "CRDNotInstalled"))
    assert (launched, scenario.calls("CreateFleet")) == (0, len(world.claims()))


@pytest.mark.nightly
def test_refused_requests_name_the_missing_right_and_work_once_granted(world, scenario):
    """The API server first rejects the functions' token, then one verb; the step launches no instance without a NodeClaim."""
    kubeconfig = world.plane.kubeconfig_for("newcomer", ["newcomers"])
    token = json.loads(kubeconfig.read_text())["users"][0]["user"]["token"]
    world.plane.revoke(token)  # no request has used it yet
    with installed(world.sandbox(kubeconfig)):
        world.scale("inflate", 3)
        world.run_for(timedelta(seconds=61))  # enough for a sweep
        unknown = scenario.lines(level="ERROR")

        grant(world, EVERYTHING_BUT_NODECLAIMS)
        world.plane.accept(token, "newcomer", ["newcomers"])
        world.until(lambda: scenario.lines(api_group="karpenter.sh", verb="create"), "a NodeClaim that is refused")
        lacking, launched = scenario.lines(verb="create"), scenario.calls("CreateFleet")

        grant(world, EVERYTHING)
        world.until_running("inflate", 3)
        world.until(world.is_quiet, "initialized nodes")

    assert {line["controller"] for line in unknown} >= {"provision", "sweep"}
    assert {line["message"] for line in unknown} == {"the API server does not accept this identity: Unauthorized"}
    assert all(line["cluster"] == "demo" and "access entries" in line["to_do"] for line in unknown)
    assert {(line["cluster"], line["resource"]) for line in lacking} == {("demo", "nodeclaims")}
    assert all("infra/chart" in line["to_do"] for line in lacking)
    assert any("infra/chart" in text and "nodeclaims" in text for text in events(world, "PermissionDenied"))
    assert (launched, scenario.calls("CreateFleet")) == (0, len(world.claims()))


def events(world, reason):
    """Return the messages of the cluster's Events with a reason."""
    found = world.plane.admin.do("GET", "/api/v1/namespaces/default/events")["items"]
    return [e["message"] for e in found if (e["reason"], e["involvedObject"]["kind"]) == (reason, "Namespace")]


EVERYTHING = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["*"]}]
EVERYTHING_BUT_NODECLAIMS = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": ["", "coordination.k8s.io", "karpenter.k8s.aws", "journeyman.dev"],
        "resources": ["*"],
        "verbs": ["*"],
    },
    {"apiGroups": ["karpenter.sh"], "resources": ["nodepools", "nodepools/status"], "verbs": ["*"]},
]


def grant(world, rules):
    """Grant these permissions, and no others, to the group of the functions' new identity."""
    rbac, name = "/apis/rbac.authorization.k8s.io/v1", "newcomers"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}
    for kind, body in {
        "ClusterRole": {"rules": rules},
        "ClusterRoleBinding": {"roleRef": role, "subjects": [subject]},
    }.items():
        whole = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, **body}
        path = f"{rbac}/{kind.lower()}s/{name}?fieldManager=tests&force=true"
        world.plane.admin.do("PATCH", path, whole, kind="application/apply-patch+yaml")


def test_pods_with_affinity_to_a_daemon_set_run_on_the_nodes_launched_for_them(world, scenario):
    """No node exists; the DaemonSet controller creates a pod for each new one, and kube-scheduler binds the pods that join it."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "agent"}}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    agent = a_workload("DaemonSet", "agent", cpu="50m", tolerations=[{"operator": "Exists"}])
    relay = a_workload("Deployment", "relay", cpu="500m", affinity=affinity)
    world.apply(agent, relay)
    world.scale("relay", 3)
    try:
        world.until_running("relay", 3)
        world.until(world.is_quiet, "initialized nodes")

        assert hosts(world, "relay") <= hosts(world, "agent")
        assert {claim.status.node_name for claim in world.claims()} == hosts(world, "relay")
        assert len(world.claims()) == scenario.calls("CreateFleet")
    finally:
        world.store.delete(DAEMONSET, "agent", namespace="default")
        world.scale("relay", 0)


def a_workload(kind, name, *, cpu, **spec):
    """A DaemonSet, or a Deployment without pods."""
    container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container], **spec}}
    body = {"selector": {"matchLabels": {"app": name}}, "template": template}
    if kind == "Deployment":
        body["replicas"] = 0
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": body}
