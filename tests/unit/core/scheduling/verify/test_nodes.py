"""Verification of host ports, volumes and daemon overhead of the pods on a node."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from tests.helpers import plans
from tests.helpers.builders import (
    a_csi_node,
    a_daemon_set,
    a_node,
    a_pod,
    a_running_claim,
    a_snapshot,
    a_storage_class,
    a_volume,
    a_volume_claim,
    ago,
    an_instance_type,
    claims_as_volumes,
    stamp,
)
from tests.helpers.plans import a_plan, a_planned_claim

NODE = "node-default-1"
TYPES = (an_instance_type("z", cpu=8, memory_gib=32, price=0.2, zones=("a", "b")),)


def objections(results, *pods, running=(), ignore_dra_requests=True, is_certain=True, **cluster):
    """Return the findings about a plan for these pods as one text; the cluster has one existing node."""
    there = {"nodes": (a_node(),), "claims": (a_running_claim(),)}
    snapshot = a_snapshot(**{"pods": (*pods, *running), **there, **cluster})
    catalogue = Catalogue({pool.metadata.name: TYPES for pool in snapshot.node_pools})
    return plans.objections(
        snapshot, catalogue, results, pods=pods, ignore_dra_requests=ignore_dra_requests, is_certain=is_certain
    )


def on_a_new_node(*pods, zone="a", **cluster):
    """Return the findings when all these pods are scheduled to one new node in this zone."""
    return objections(a_plan(a_planned_claim(*pods, types=TYPES, zone=zone)), *pods, **cluster)


def on_the_node(*pods, **cluster):
    """Return the findings when these pods are scheduled to the existing node, in zone a."""
    return objections(a_plan(node_default_1=pods), *pods, **cluster)


def listening(name, port=80, protocol="TCP", address="", **more):
    """Return a pod with this host port."""
    return a_pod(name, cpu="100m", spec={"containers": [_container(port, protocol, address)]}, **more)


def _container(port, protocol="TCP", address=""):
    ports = [{"containerPort": port, "hostPort": port, "protocol": protocol, "hostIP": address}]
    return {"name": "c", "ports": ports, "resources": {"requests": {"cpu": "100m"}}}


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [
        ((80,), (80,), True),
        ((80,), (81,), False),
        ((80, "TCP"), (80, "UDP"), False),
        ((80, "TCP", "10.0.0.1"), (80, "TCP", "10.0.0.2"), False),
        ((80, "TCP", "10.0.0.1"), (80, "TCP", "10.0.0.1"), True),
        ((80, "TCP", "0.0.0.0"), (80, "TCP", "10.0.0.1"), True),
        ((80, "TCP", "::"), (80, "TCP", "10.0.0.1"), True),
        ((0,), (0,), False),
    ],
)
def test_pods_on_one_node_cannot_use_the_same_host_port(first, second, clash):
    """Host ports conflict if number and protocol are equal and addresses overlap, on new and existing nodes."""
    pods = (listening("p0", *first), listening("p1", *second))
    for found in (
        on_a_new_node(*pods),
        on_the_node(*pods),
        on_the_node(pods[0], running=(listening("p1", *second, node=NODE),)),
    ):
        assert (found != "") == clash
        assert not clash or "host port 80/TCP of pod default/p" in found
    apart = a_plan(a_planned_claim(pods[0], types=TYPES, zone="a"), node_default_1=pods[1:])
    assert objections(apart, *pods) == ""


def test_host_ports_of_daemon_sets_are_taken_on_new_nodes():
    """A pod cannot use a host port of a DaemonSet that will run on its node."""
    daemon = a_daemon_set("agent", containers=[_container(80)])
    assert "host port 80/TCP of pod default/p is taken by its daemons" in on_a_new_node(
        listening("p"), daemon_sets=(daemon,)
    )
    assert on_a_new_node(listening("p", 81), daemon_sets=(daemon,)) == ""


def test_host_ports_of_daemon_sets_are_taken_on_existing_nodes():
    """The daemon does not run there yet; a DaemonSet for another zone takes no port of a node in zone a."""
    here = a_daemon_set("here", containers=[_container(80)], nodeSelector={labels.ZONE: "a"})
    elsewhere = a_daemon_set("elsewhere", containers=[_container(81)], nodeSelector={labels.ZONE: "b"})
    found = on_the_node(listening("p", 80), listening("q", 81), daemon_sets=(here, elsewhere))

    assert found == f"node {NODE}: host port 80/TCP of pod default/p is taken by its daemons"


def test_host_port_conflict_names_who_uses_the_port():
    """A pod that runs there is named before the daemon that it keeps from starting."""
    daemon = a_daemon_set("agent", containers=[_container(80)])
    running = listening("old", 80, node=NODE)

    assert "taken by a pod that runs there" in on_the_node(listening("p"), running=(running,), daemon_sets=(daemon,))
    assert "of pod default/q is taken by another pod" in on_the_node(listening("p"), listening("q"))


@pytest.mark.parametrize("where", [on_a_new_node, on_the_node])
def test_daemon_set_with_resource_claims_takes_capacity_unless_they_are_ignored(where):
    """As in the scheduler: with IGNORE_DRA_REQUESTS its pods run on no node that Journeyman plans."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    daemon = a_daemon_set("agent", cpu="3", memory="1Gi", resourceClaims=claims)
    pod = a_pod("p", cpu="6" if where is on_a_new_node else "2")

    assert where(pod, daemon_sets=(daemon,)) == ""
    assert "cpu" in where(pod, daemon_sets=(daemon,), ignore_dra_requests=False)


def test_only_pods_of_a_daemon_set_use_the_capacity_kept_for_it():
    """The node has four CPUs and a DaemonSet of one CPU: two fit beside a running CPU, and three if that is the daemon."""
    daemon = a_daemon_set("agent", cpu="1", memory="1Gi")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "uid-agent", "controller": True}
    agent = a_pod("agent", node=NODE, metadata={"ownerReferences": [owner]})

    def beside(running, cpu):
        return on_the_node(a_pod("p", cpu=cpu), running=(running,), daemon_sets=(daemon,))

    assert beside(a_pod("r", node=NODE), "2") == ""
    assert "cpu is exceeded" in beside(a_pod("r", node=NODE), "3")
    assert beside(agent, "3") == ""


def pod_with(*claims):
    """A pod that uses these PersistentVolumeClaims."""
    return a_pod("p", **claims_as_volumes(*claims))


ZONES_A, ZONES_B = {labels.ZONE: ("a",)}, {labels.ZONE: ("b",)}


@pytest.mark.parametrize(
    ("terms", "zone", "right"),
    [
        ((ZONES_A,), "a", True),
        ((ZONES_B,), "a", False),
        ((ZONES_B, ZONES_A), "a", True),
        ((), "a", True),
        (({"topology.ebs.csi.aws.com/zone": ("b",)},), "b", True),
        (({labels.ZONE: ("a",), "rack": ("7",)},), "a", False),
    ],
    ids=["here", "elsewhere", "either", "anywhere", "old-label", "unknown-label"],
)
def test_pod_is_scheduled_only_to_zones_that_its_volume_allows(terms, zone, right):
    """The node must meet one node affinity term of the PersistentVolume."""
    storage = {
        "persistent_volume_claims": (a_volume_claim("data", volume="pv"),),
        "persistent_volumes": (a_volume("pv", *terms),),
    }
    found = on_a_new_node(pod_with("data"), zone=zone, **storage)
    assert (found == "") == right
    assert right or "the volumes of pod default/p cannot be reached from z in a" in found
    if zone == "a":
        assert (on_the_node(pod_with("data"), **storage) == "") == right


def test_node_must_meet_the_node_affinity_of_all_volumes_of_a_pod():
    """One volume allows zones a and b, the other only zone b, so zone a is reported."""
    storage = {
        "persistent_volume_claims": (a_volume_claim("x", volume="x"), a_volume_claim("y", volume="y")),
        "persistent_volumes": (a_volume("x", ZONES_A, ZONES_B), a_volume("y", ZONES_B)),
    }
    assert on_a_new_node(pod_with("x", "y"), zone="b", **storage) == ""
    assert "cannot be reached" in on_a_new_node(pod_with("x", "y"), zone="a", **storage)


def test_hostname_of_a_local_volume_is_ignored():
    """Its zone still binds the pod, and so does the hostname of a volume that is not local."""
    bound = (a_volume_claim("data", volume="pv"),)
    here = a_volume("pv", {labels.HOSTNAME: ("old",)}, spec={"local": {"path": "/x"}})
    assert on_a_new_node(pod_with("data"), persistent_volume_claims=bound, persistent_volumes=(here,)) == ""
    there = a_volume("pv", {labels.HOSTNAME: ("old",), labels.ZONE: ("b",)}, spec={"local": {"path": "/x"}})
    found = on_a_new_node(pod_with("data"), persistent_volume_claims=bound, persistent_volumes=(there,))
    assert "cannot be reached" in found
    remote = a_volume("pv", {labels.HOSTNAME: ("old",)})
    found = on_a_new_node(pod_with("data"), persistent_volume_claims=bound, persistent_volumes=(remote,))
    assert "cannot be reached" in found


def test_unbound_volume_must_be_in_a_zone_that_its_storage_class_allows():
    """The same holds for an ephemeral volume, whose PersistentVolumeClaim is named after pod and volume."""
    waiting = (a_volume_claim("data"), a_volume_claim("p-scratch"))
    limited = {"persistent_volume_claims": waiting, "storage_classes": (a_storage_class(zones=("b",)),)}
    assert on_a_new_node(pod_with("data"), zone="b", **limited) == ""
    assert "cannot be reached" in on_a_new_node(pod_with("data"), zone="a", **limited)
    ephemeral = a_pod("p", spec={"volumes": [{"name": "scratch", "ephemeral": {}}]})
    assert on_a_new_node(ephemeral, zone="b", **limited) == ""
    assert "cannot be reached" in on_a_new_node(ephemeral, zone="a", **limited)


@pytest.mark.parametrize(
    ("claim", "storage_class", "words"),
    [
        (None, {}, "default/data does not exist"),
        ({"metadata": {"deletionTimestamp": stamp(ago(minutes=1))}}, {}, "is being deleted or has lost its volume"),
        ({"status": {"phase": "Lost"}}, {}, "is being deleted or has lost its volume"),
        ({"spec": {"volumeName": "gone"}}, {}, "default/data does not exist or is being deleted"),
        ({"spec": {"volumeName": "pv"}}, {}, "is not bound completely"),
        ({"spec": {"storageClassName": "gone"}}, {}, "its StorageClass does not exist"),
        ({}, {"mode": "Immediate"}, "is to be bound before it has a pod"),
    ],
    ids=["missing", "deleting", "lost", "no-volume", "half-bound", "no-class", "immediate"],
)
def test_scheduled_pod_with_unusable_volumes_is_reported(claim, storage_class, words):
    """kube-scheduler would never bind such a pod."""
    storage = {
        "persistent_volume_claims": () if claim is None else (a_volume_claim("data", **claim),),
        "persistent_volumes": (a_volume("pv"),),
        "storage_classes": (a_storage_class(**storage_class),),
    }
    found = on_a_new_node(pod_with("data"), **storage)
    assert "pod default/p is scheduled although" in found
    assert words in found


def test_volumes_on_a_node_stay_within_the_attach_limit_of_their_csi_driver():
    """Each PersistentVolumeClaim counts once, even if several pods use it; new nodes have no limit."""
    names = ("x", "y", "z")
    storage = {
        "persistent_volume_claims": tuple(a_volume_claim(name) for name in names),
        "storage_classes": (a_storage_class(),),
    }

    def placed(limit, *pods, running=()):
        return on_the_node(*pods, running=running, csi_nodes=(a_csi_node(NODE, **limit),), **storage)

    pods = tuple(a_pod(f"p{name}", cpu="100m", **claims_as_volumes(name)) for name in names)
    assert placed({"ebs_csi_aws_com": 3}, *pods) == ""
    assert "3 volumes of ebs.csi.aws.com with pods default/px" in placed({"ebs_csi_aws_com": 2}, *pods)
    assert placed({"efs_csi_aws_com": 0}, *pods) == ""
    assert placed({"ebs_csi_aws_com": None}, *pods) == ""
    running = (a_pod("r", node=NODE, **claims_as_volumes("x", "y")),)
    assert placed({"ebs_csi_aws_com": 2}, pods[0], running=running) == ""
    assert "it attaches 2" in placed({"ebs_csi_aws_com": 2}, pods[2], running=running)
    assert on_a_new_node(*pods, csi_nodes=(a_csi_node(NODE, ebs_csi_aws_com=0),), **storage) == ""


def test_in_tree_volume_drivers_count_as_their_csi_drivers():
    """Covers an in-tree provisioner in the StorageClass and an in-tree volume source."""
    storage = {
        "persistent_volume_claims": (a_volume_claim("x"), a_volume_claim("y", volume="y")),
        "persistent_volumes": (a_volume("y", spec={"csi": None, "awsElasticBlockStore": {"volumeID": "vol-1"}}),),
        "storage_classes": (a_storage_class(provisioner="kubernetes.io/aws-ebs"),),
        "csi_nodes": (a_csi_node(NODE, ebs_csi_aws_com=1),),
    }
    assert on_the_node(pod_with("x"), **storage) == ""
    assert "2 volumes of ebs.csi.aws.com" in on_the_node(pod_with("x", "y"), is_certain=False, **storage)
