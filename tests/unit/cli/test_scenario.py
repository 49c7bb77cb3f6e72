"""Scenario files: which kinds are read, and how invalid objects are reported."""

import msgspec
import pytest

from journeyman.cli.scenario import parse_scenario
from journeyman.core.api import labels
from journeyman.errors import ConfigurationError
from tests.helpers.builders import buffer_body, merge, overlay_body, pod_body, pool_body

TYPE = {
    "name": "m.small",
    "requirements": [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["m.small"]}],
    "offerings": [{"price": 1.0, "requirements": [{"key": labels.ZONE, "operator": "In", "values": ["a"]}]}],
    "capacity": {"cpu": "2", "memory": "8Gi", "pods": "110"},
}


def scenario(*objects):
    return parse_scenario(msgspec.json.encode({"name": "s", "instanceTypes": [TYPE], "objects": objects}))


def named(kind, name, namespace="", **fields):
    return {"kind": kind, "metadata": {"name": name, **({"namespace": namespace} if namespace else {})}, **fields}


def test_scenario_reads_every_kind_that_scheduling_reads():
    """It reads storage, workloads, overlays and buffers; the latter two need no feature gate."""
    shape = {"metadata": {}, "spec": pod_body("x")["spec"]}
    read = scenario(
        pool_body(),
        pod_body("p"),
        named("PersistentVolumeClaim", "data", "default", spec={"storageClassName": "gp3"}),
        named("PersistentVolume", "pv", spec={"csi": {"driver": "ebs.csi.aws.com"}}),
        named("StorageClass", "gp3", provisioner="ebs.csi.aws.com"),
        named("CSINode", "n", spec={"drivers": [{"name": "ebs.csi.aws.com", "allocatable": {"count": 3}}]}),
        named("Service", "web", "default", spec={"selector": {"app": "web"}}),
        named("Deployment", "web", "default", spec={"replicas": 4, "template": shape}),
        overlay_body("dearer", price="2"),
        buffer_body("spare", scalableRef={"kind": "Deployment", "name": "web"}, percentage=50),
    )
    snapshot = read.snapshot
    assert [c.spec.storage_class_name for c in snapshot.persistent_volume_claims] == ["gp3"]
    assert [v.spec.csi.driver for v in snapshot.persistent_volumes] == ["ebs.csi.aws.com"]
    assert [c.metadata.name for c in snapshot.storage_classes] == ["gp3"]
    assert [n.spec.drivers[0].allocatable.count for n in snapshot.csi_nodes] == [3]
    assert [s.spec.selector for s in snapshot.workloads.services] == [{"app": "web"}]
    assert [p.metadata.name for p in snapshot.pods] == ["capacity-buffer-spare-1", "capacity-buffer-spare-2", "p"]
    assert [o.price for t in read.catalogue.instance_types("default") for o in t.offerings] == [2.0]


def test_invalid_pools_overlays_and_buffers_are_reported():
    """Each error has its reason; the command reads the other objects."""
    read = scenario(
        merge(pool_body("bad"), {"spec": {"weight": 1000}}),
        pool_body("good"),
        overlay_body("odd", price="-1"),
        buffer_body("odd", replicas=-1),
    )
    assert [(s.kind, s.name) for s in read.snapshot.invalid_objects] == [
        ("NodePool", "bad"),
        ("NodeOverlay", "odd"),
        ("CapacityBuffer", "odd"),
    ]
    assert [p.metadata.name for p in read.snapshot.node_pools] == ["good"]


def test_invalid_scenario_is_refused_in_one_line():
    """The cases are text that is not JSON, and objects whose fields have the wrong type."""
    with pytest.raises(ConfigurationError, match="is not a scenario"):
        parse_scenario(b"{")
    with pytest.raises(ConfigurationError, match="a CSINode of the scenario does not read"):
        scenario(named("CSINode", "n", spec={"drivers": "none"}))
