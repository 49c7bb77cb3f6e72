"""Volumes: which nodes can attach them, and how many more a node attaches."""

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.storage import PersistentVolume, StorageClass
from journeyman.core.scheduling.requirements import EMPTY
from journeyman.core.scheduling.volumes import NO_VOLUMES, StorageObjects, claim_keys, resolve_volumes, volume_usage
from tests.helpers.builders import (
    EBS,
    NOW,
    a_csi_node,
    a_launched_claim,
    a_node,
    a_pod,
    a_running_claim,
    a_snapshot,
    a_storage_class,
    a_volume,
    a_volume_claim,
    claims_as_volumes,
    stamp,
)

AWS_ZONE = "topology.ebs.csi.aws.com/zone"


def storage(*, pods=(), claims=(), volumes=(), classes=(), csi_nodes=()):
    return StorageObjects.of(
        a_snapshot(
            pods=tuple(pods),
            persistent_volume_claims=tuple(claims),
            persistent_volumes=tuple(volumes),
            storage_classes=tuple(classes),
            csi_nodes=tuple(csi_nodes),
        )
    )


def using(name, *claims):
    return a_pod(name, **claims_as_volumes(*claims))


def zones(terms):
    return [sorted(term[labels.ZONE].values) for term in terms]


def test_pod_without_volume_claims_may_use_any_node():
    """Volumes without a PersistentVolumeClaim, such as emptyDir, do not count."""
    assert (
        resolve_volumes(a_pod("web", spec={"volumes": [{"name": "scratch", "emptyDir": {}}]}), storage()) is NO_VOLUMES
    )
    assert NO_VOLUMES.terms == (EMPTY,)


def test_a_volumes_topology_comes_from_its_pv_or_its_storage_class():
    """The EBS driver's zone label counts as the zone; the terms are alternatives in a fixed order."""
    world = storage(
        claims=(a_volume_claim("bound", volume="pv"), a_volume_claim("free")),
        volumes=(a_volume("pv", {AWS_ZONE: ("b",)}, {labels.ZONE: ("a",)}),),
        classes=(a_storage_class(zones=("c", "b")),),
    )
    assert zones(resolve_volumes(using("x", "bound"), world).terms) == [["a"], ["b"]]
    assert zones(resolve_volumes(using("y", "free"), world).terms) == [["b", "c"]]
    assert resolve_volumes(using("z", "free"), world).counts == {EBS: 1}


def test_pod_with_several_volumes_needs_a_topology_that_reaches_all():
    """The terms are all combinations without contradictions; the order of the volumes does not matter."""
    world = storage(
        claims=(a_volume_claim("one", volume="pv-1"), a_volume_claim("two", volume="pv-2")),
        volumes=(
            a_volume("pv-1", {labels.ZONE: ("a",)}, {labels.ZONE: ("b", "c")}),
            a_volume("pv-2", {labels.ZONE: ("c", "b")}, {labels.ZONE: ("d",)}),
        ),
    )
    found = resolve_volumes(using("x", "one", "two"), world)
    assert zones(found.terms) == [["b", "c"]]
    assert found == resolve_volumes(using("y", "two", "one"), world)
    assert hash(found) == hash(resolve_volumes(using("y", "two", "one"), world))


def test_volumes_in_different_zones_give_an_impossible_term():
    """The pod fails on every node, as with one label that must have two values."""
    world = storage(
        claims=(a_volume_claim("one", volume="pv-1"), a_volume_claim("two", volume="pv-2")),
        volumes=(a_volume("pv-1", {labels.ZONE: ("a",)}), a_volume("pv-2", {labels.ZONE: ("b",)})),
    )
    (term,) = resolve_volumes(using("x", "one", "two"), world).terms
    assert term[labels.ZONE].impossible


def test_local_volume_does_not_bind_its_pod_to_the_host():
    """The pod gets another host anyway; the volume's other requirements still apply."""
    local = {"spec": {"local": {"path": "/d"}, "csi": None}}
    world = storage(
        claims=(a_volume_claim("tied", volume="pv-1"), a_volume_claim("zonal", volume="pv-2")),
        volumes=(
            a_volume("pv-1", {labels.HOSTNAME: ("n",)}, {labels.ZONE: ("a",)}, **local),
            a_volume("pv-2", {labels.HOSTNAME: ("n",), labels.ZONE: ("a",)}, **local),
        ),
    )
    tied, zonal = resolve_volumes(using("x", "tied"), world), resolve_volumes(using("y", "zonal"), world)
    assert tied.terms == (EMPTY,)
    assert zones(zonal.terms) == [["a"]]
    assert labels.HOSTNAME not in zonal.terms[0]
    assert tied.counts == {}


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        (None, "PersistentVolumeClaim default/data does not exist"),
        (a_volume_claim("data", metadata={"deletionTimestamp": stamp(NOW)}), "is being deleted"),
        (a_volume_claim("data", volume="gone", status={"phase": "Lost"}), "lost its PersistentVolume gone"),
        (a_volume_claim("data", volume="gone"), "PersistentVolume gone of PersistentVolumeClaim default/data does not"),
        (a_volume_claim("data", volume="leaving"), "PersistentVolume leaving"),
        (a_volume_claim("data", spec={"volumeName": "pv"}), "not bound to PersistentVolume pv yet"),
        (a_volume_claim("data", volume="odd"), "operator 'Near' is not one of"),
        (a_volume_claim("data", storage_class=None), "unbound and has no StorageClass"),
        (a_volume_claim("data", storage_class=""), "unbound and has no StorageClass"),
        (a_volume_claim("data", storage_class="missing"), "StorageClass missing"),
        (a_volume_claim("data", storage_class="eager"), "binds before a pod is scheduled"),
        (a_volume_claim("data", storage_class="empty"), "In needs at least one value"),
    ],
)
def test_unusable_volume_claim_gives_an_error_for_its_pods_only(claim, why):
    """Missing, deleting or contradictory objects give a reason; the function does not raise."""
    term = {"matchExpressions": [{"key": "z", "operator": "Near", "values": ["a"]}]}
    odd = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    world = storage(
        claims=() if claim is None else (claim,),
        volumes=(
            a_volume("pv"),
            a_volume("leaving", metadata={"deletionTimestamp": stamp(NOW)}),
            a_volume("odd", spec=odd),
        ),
        classes=(
            a_storage_class(),
            a_storage_class("eager", mode="Immediate"),
            a_storage_class("empty", allowedTopologies=[{"matchLabelExpressions": [{"key": "z", "values": []}]}]),
        ),
    )
    assert why in resolve_volumes(using("x", "data"), world)
    assert resolve_volumes(a_pod("other"), world) is NO_VOLUMES


def test_too_many_combinations_of_volume_topologies_are_rejected():
    """Twelve volumes with four terms each would give millions of combinations."""
    many = range(12)
    world = storage(
        claims=[a_volume_claim(f"c-{i}", volume=f"pv-{i}") for i in many],
        volumes=[a_volume(f"pv-{i}", *({f"label-{i}": (value,)} for value in "abcd")) for i in many],
    )
    assert "combinations" in resolve_volumes(using("x", *(f"c-{i}" for i in many)), world)


def test_an_ephemeral_volume_has_a_claim_named_after_its_pod():
    """Only this pod uses the claim."""
    pod = a_pod("web-0", spec={"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}]})
    assert claim_keys(pod) == ("default/web-0-scratch",)
    world = storage(claims=(a_volume_claim("web-0-scratch"),), classes=(a_storage_class(),))
    assert resolve_volumes(pod, world).counts == {EBS: 1}


def test_volume_claim_of_several_pods_is_shared():
    """A node attaches it once, however many of its pods use it; completed pods do not use it."""
    ended = a_pod("ended", status={"phase": "Succeeded"}, **claims_as_volumes("own"))
    pods = (using("a", "all", "own"), using("b", "all"), ended)
    world = storage(pods=pods, claims=(a_volume_claim("all"), a_volume_claim("own")), classes=(a_storage_class(),))
    found = resolve_volumes(pods[0], world)
    assert found.shared == ((EBS, "default/all"),)
    assert found.counts == {EBS: 1}


def test_in_tree_volumes_count_for_the_csi_driver_that_replaced_them():
    """An in-tree EBS volume takes the same slot as a CSI volume; a volume without a driver takes none."""
    old = msgspec.convert(
        {"metadata": {"name": "old"}, "spec": {"awsElasticBlockStore": {"volumeID": "v"}}}, PersistentVolume
    )
    none = msgspec.convert({"metadata": {"name": "nfs"}, "spec": {}}, PersistentVolume)
    in_tree = msgspec.convert({"metadata": {"name": "gp2"}, "provisioner": "kubernetes.io/aws-ebs"}, StorageClass)
    world = storage(
        claims=(
            a_volume_claim("old", volume="old"),
            a_volume_claim("nfs", volume="nfs"),
            a_volume_claim("new", storage_class="gp2"),
        ),
        volumes=(old, none),
        classes=(in_tree,),
    )
    assert resolve_volumes(using("x", "old", "nfs", "new"), world).counts == {EBS: 2}


def test_free_slots_are_the_csinode_limit_minus_claims_of_running_pods():
    """Each claim counts once; claims of rescheduled pods do not count; a node without a CSINode has no limit."""
    pods = (
        a_pod("a", node="node-one", **claims_as_volumes("all", "own", "missing")),
        a_pod("b", node="node-one", **claims_as_volumes("all")),
        a_pod("c", node="node-one", **claims_as_volumes("more")),
    )
    snapshot = a_snapshot(
        pods=pods,
        nodes=(a_node("one"), a_node("two")),
        claims=(a_running_claim("one"), a_running_claim("two"), a_launched_claim("three")),
        persistent_volume_claims=(a_volume_claim("all"), a_volume_claim("own"), a_volume_claim("more")),
        storage_classes=(a_storage_class(),),
        csi_nodes=(a_csi_node("node-one", ebs_csi_aws_com=3, efs_csi_aws_com=None),),
    )
    nodes = {node.name: node for node in snapshot.state_nodes}
    storage = StorageObjects.of(snapshot)
    by_name = {name: volume_usage(node, storage, {"default/c"}) for name, node in nodes.items()}
    assert by_name["node-one"].attached == {EBS: frozenset({"default/all", "default/own"})}
    assert by_name["node-one"].free(EBS) == 1
    assert by_name["node-one"].free("efs.csi.aws.com") is None
    assert by_name["node-two"].free(EBS) is None
    assert by_name["three"].free(EBS) is None


def test_one_label_without_a_value_makes_a_combination_impossible():
    """The other labels match, and the combination is still left out."""
    world = storage(
        claims=(a_volume_claim("one", volume="pv-1"), a_volume_claim("two", volume="pv-2")),
        volumes=(
            a_volume("pv-1", {labels.ZONE: ("a",), "disk": ("ssd",)}, {labels.ZONE: ("b",), "disk": ("ssd",)}),
            a_volume("pv-2", {labels.ZONE: ("b",), "disk": ("ssd",)}),
        ),
    )

    assert zones(resolve_volumes(using("x", "one", "two"), world).terms) == [["b"]]


@pytest.mark.parametrize(("operator", "limit"), [("Gt", 0), ("Gt", 1), ("Gt", 2), ("Lt", 1), ("Lt", 2), ("Lt", 3)])
def test_term_with_a_numeric_bound_differs_from_one_without(operator, limit):
    """Two alternatives, one of them with `Gt` or `Lt`, stay two, whatever the bound."""
    expressions = (
        {"key": "size", "operator": "Exists"},
        {"key": "size", "operator": operator, "values": (str(limit),)},
    )
    terms = [{"matchExpressions": [expression]} for expression in expressions]
    world = storage(
        claims=(a_volume_claim("one", volume="pv-1"),),
        volumes=(a_volume("pv-1", spec={"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}),),
    )

    assert len(resolve_volumes(using("x", "one"), world).terms) == 2
