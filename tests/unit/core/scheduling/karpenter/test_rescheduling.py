"""Karpenter's scheduling suite: pods of deleting nodes, volumes, reservations, errors, and devices."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import PodDisruptionBudget
from journeyman.core.scheduling.results import Options
from tests.helpers.builders import (
    NOW,
    a_csi_node,
    a_daemon_set,
    a_node,
    a_pod,
    a_running_claim,
    a_storage_class,
    a_volume,
    a_volume_claim,
    merge,
    stamp,
    with_reservation,
)
from tests.helpers.karpenter_suite import ZONES, fake_type, pool, requesting, required, requirement, schedule, tiny

TYPE, ZONE = labels.INSTANCE_TYPE, labels.ZONE
GOING = {"deletionTimestamp": stamp(NOW)}


def owned_by(kind):
    """Metadata with an owner of this kind."""
    return {
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "uid-o", "controller": True}]
    }


@pytest.mark.parametrize(
    ("metadata", "moves"),
    [
        pytest.param(owned_by("ReplicaSet"), True),
        (GOING, False),
        ({**owned_by("DaemonSet"), **GOING}, False),
        pytest.param(owned_by("DaemonSet"), False),
        ({**owned_by("ReplicaSet"), **GOING}, False),
        ({**owned_by("StatefulSet"), **GOING}, True),
    ],
)
def test_pods_of_a_deleting_node_get_a_node_if_they_come_back(metadata, moves):
    """A StatefulSet creates its pod again once the old one is gone; a ReplicaSet has created another one already."""
    running = a_pod("p", cpu="100m", memory="1Mi", node="node-default-1", metadata=metadata)

    plan = schedule(running, nodes=(a_node(deleting=NOW),), claims=(a_running_claim(deleting=NOW),))

    assert [claim.pods for claim in plan.results.new_claims] == ([("default/p",)] if moves else [])


def a_budget(name, allowed=0, **spec):
    """A PodDisruptionBudget for the pods of the app web."""
    body = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec},
        "status": {"disruptionsAllowed": allowed},
    }
    return msgspec.convert(body, PodDisruptionBudget)


@pytest.mark.parametrize(
    ("pdbs", "moves"),
    [
        ([a_budget("a", maxUnavailable=0)], False),
        ([a_budget("a", maxUnavailable="0%")], False),
        ([a_budget("a", minAvailable="100%")], False),
        ([a_budget("a", maxUnavailable=1, allowed=1), a_budget("b", minAvailable="100%")], False),
        pytest.param([a_budget("a", maxUnavailable=1, allowed=0)], True),
    ],
)
def test_pod_that_can_never_be_evicted_gets_no_second_node(pdbs, moves):
    """A PodDisruptionBudget that allows no disruption for now does not count."""
    running = a_pod("p", cpu="100m", memory="1Mi", node="node-default-1", metadata=owned_by("ReplicaSet"))

    plan = schedule(running, nodes=(a_node(deleting=NOW),), claims=(a_running_claim(deleting=NOW),), pdbs=tuple(pdbs))

    assert bool(plan.results.new_claims) is moves


# -- volumes

OTHER_DRIVER = "other.csi.example.com"


def ephemeral(name, **template):
    """A pod with a generic ephemeral volume."""
    volume = {"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": template}}}
    return tiny(name, spec={"volumes": [volume]})


def of_pod(name, **changes):
    """The PersistentVolumeClaim of a pod's ephemeral volume."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": f"uid-{name}", "controller": True}
    return a_volume_claim(f"{name}-data", **merge({"metadata": {"ownerReferences": [owner]}}, changes))


FULL = a_csi_node("node-default-1", ebs_csi_aws_com=0)


@pytest.mark.parametrize(
    ("claim", "classes"),
    [
        (of_pod("p"), (a_storage_class(),)),
        (
            of_pod("p", storage_class="standard"),
            (
                a_storage_class(
                    "standard", metadata={"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
                ),
            ),
        ),
        (of_pod("p", volume="pv", storage_class="non-existent"), ()),
        (of_pod("p", volume="pv", storage_class=""), ()),
    ],
)
def test_ephemeral_volume_counts_for_the_driver_of_its_claim(claim, classes):
    """The existing node takes no more EBS volumes, so that the pod gets a new one.

    The API server writes the default StorageClass into a claim that names none.
    """
    plan = schedule(
        ephemeral("p"),
        nodes=(a_node(),),
        claims=(a_running_claim(),),
        csi_nodes=(FULL,),
        persistent_volume_claims=(claim,),
        persistent_volumes=(a_volume("pv"),),
        storage_classes=classes,
    )

    assert plan.results.existing == {}
    assert [new.pods for new in plan.results.new_claims] == [("default/p",)]


@pytest.mark.parametrize("storage_class", ["non-existent", ""])
def test_unbound_ephemeral_volume_without_a_storage_class_has_no_place(storage_class):
    """Nothing will ever create its volume; without a claim, neither."""
    for claims in ((), (of_pod("p", storage_class=storage_class),)):
        plan = schedule(ephemeral("p", storageClassName=storage_class), persistent_volume_claims=claims)
        assert set(plan.results.pod_errors) == {"default/p"}


@pytest.mark.parametrize(
    ("bound", "placed"), [({}, True), ({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": None}}}, False)]
)
def test_claim_that_names_a_volume_must_be_bound(bound, placed):
    """Until then kube-scheduler waits, too."""
    claim = a_volume_claim("data", volume="pv")
    if bound:
        claim = replace(claim, metadata=replace(claim.metadata, annotations={}))
    pod = tiny("p", spec={"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]})

    plan = schedule(
        pod,
        persistent_volume_claims=(claim,),
        persistent_volumes=(a_volume("pv", spec={"csi": {"driver": OTHER_DRIVER}}),),
        storage_classes=(a_storage_class(),),
    )

    assert (plan.node_of("p") is not None) is placed


def test_network_volume_of_several_pods_needs_one_node():
    """It has a zone, and no driver whose limit would count."""
    volume = a_volume("nfs", {ZONE: (ZONES[0],)}, spec={"csi": None, "nfs": {"server": "fake.server", "path": "/p"}})
    claim = a_volume_claim("data", volume="nfs", storage_class="")
    pods = [
        tiny(f"p{n}", spec={"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]})
        for n in range(5)
    ]

    plan = schedule(*pods, persistent_volume_claims=(claim,), persistent_volumes=(volume,))

    assert [len(claim.pods) for claim in plan.results.new_claims] == [5]
    assert plan.label_of("p0", ZONE) == ZONES[0]


@pytest.mark.parametrize(
    "source", [{"spec": {"local": {"path": "/d"}, "csi": None}}, {"spec": {"hostPath": {"path": "/d"}, "csi": None}}]
)
def test_alternative_of_a_host_alone_lets_the_pod_go_anywhere(source):
    """The other alternative is a zone that does not exist."""
    volume = a_volume("pv", {labels.HOSTNAME: ("existing-host",)}, {ZONE: ("invalid-zone",)}, **source)
    pod = tiny("p", spec={"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]})

    plan = schedule(pod, persistent_volume_claims=(a_volume_claim("data", volume="pv"),), persistent_volumes=(volume,))

    assert plan.node_of("p") is not None


@pytest.mark.parametrize(
    ("pod", "claim", "volume"),
    [
        (
            tiny("p", spec={"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}),
            a_volume_claim("data", volume="pv", storage_class=None),
            {"spec": {"csi": None, "awsElasticBlockStore": {"volumeID": "vol-1"}}},
        ),
        (ephemeral("p"), of_pod("p", storage_class="in-tree"), {}),
    ],
)
def test_in_tree_volume_uses_a_slot_of_its_csi_driver(pod, claim, volume):
    """The node takes no more EBS volumes."""
    plan = schedule(
        pod,
        nodes=(a_node(),),
        claims=(a_running_claim(),),
        csi_nodes=(FULL,),
        persistent_volume_claims=(claim,),
        persistent_volumes=(a_volume("pv", **volume),),
        storage_classes=(a_storage_class("in-tree", provisioner="kubernetes.io/aws-ebs"),),
    )

    assert plan.results.existing == {}
    assert [new.pods for new in plan.results.new_claims] == [("default/p",)]


# -- reservations

RESERVED = tuple(
    with_reservation(
        fake_type(f"{size}-instance-type", cpu=cpu, memory=f"{cpu}Gi", offerings=(("a", labels.ON_DEMAND),)),
        f"r-{size}",
        price=cpu / 1e6,
    )
    for size, cpu in (("medium", 3), ("small", 2))
)
APART = {
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": labels.HOSTNAME, "labelSelector": {"matchLabels": {"app": "web"}}}
            ]
        }
    }
}


def alone(count, cpu="1800m", **spec):
    """So many pods, each on a node of its own."""
    return [tiny(f"p{n}", spec={**requesting({"cpu": cpu}), **APART, **spec}) for n in range(count)]


def reservations(plan):
    """The reservations that are used, sorted."""
    return sorted(name for claim in plan.results.new_claims for name in claim.reservations)


def test_reservation_that_nodepools_share_is_used_once():
    """The second pod gets paid capacity."""
    small = RESERVED[1:]
    pods = [
        tiny(f"p{n}", spec={**requesting({"cpu": "1"}), **APART, "nodeSelector": {labels.NODEPOOL: f"np-{n}"}})
        for n in range(2)
    ]

    plan = schedule(*pods, types=small, node_pools=(pool("np-0"), pool("np-1")))

    assert reservations(plan) == ["r-small"]
    assert sorted(c.offering.capacity_type for c in plan.results.new_claims) == [labels.ON_DEMAND, labels.RESERVED]


@pytest.mark.parametrize(("count", "used"), [(1, ["r-small"]), (2, ["r-medium", "r-small"])])
def test_reserved_capacity_is_used_before_any_other(count, used):
    """The cheaper of two reservations comes first."""
    assert reservations(schedule(*alone(count), types=RESERVED)) == used


def test_each_reservation_of_a_type_is_used_up_to_its_capacity():
    """One instance of the first and two of the second; the fourth pod pays."""
    (small,) = (replace(RESERVED[1]),)
    second = replace(small.offerings[-1], reservation_id="r-small-2", reservation_capacity=2)
    second = replace(
        second,
        requirements=tuple(
            replace(r, values=("r-small-2",)) if r.key == labels.RESERVATION_ID else r for r in second.requirements
        ),
    )
    types = (replace(small, offerings=(*small.offerings, second)),)

    plan = schedule(*alone(4), types=types)

    capacity = sorted(claim.offering.capacity_type for claim in plan.results.new_claims)
    assert capacity == [labels.ON_DEMAND] + [labels.RESERVED] * 3


def test_pods_that_share_a_zone_share_the_reserved_node():
    """They require reserved capacity, of which there is one instance."""
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "web"}}}
    together = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    spec = merge(required([requirement(labels.CAPACITY_TYPE, "In", labels.RESERVED)]), {"affinity": together})

    plan = schedule(*(tiny(f"p{n}", spec=spec) for n in range(2)), types=RESERVED[1:])

    assert [(claim.pods, claim.reservations) for claim in plan.results.new_claims] == [
        (("default/p0", "default/p1"), ("r-small",))
    ]


def test_nodepools_with_reservations_of_their_own_use_both():
    """Their NodeClasses select different reservations of one type."""
    small = RESERVED[1]
    other = with_reservation(replace(small, offerings=small.offerings[:-1]), "r-distinct", price=2e-6)
    pods = [
        tiny(f"p{n}", spec={**requesting({"cpu": "1"}), **APART, "nodeSelector": {labels.NODEPOOL: f"np-{n}"}})
        for n in range(2)
    ]

    plan = schedule(*pods, by_pool={"np-0": (small,), "np-1": (other,)}, node_pools=(pool("np-0"), pool("np-1")))

    assert reservations(plan) == ["r-distinct", "r-small"]


# -- errors


@pytest.mark.parametrize(
    "wanted",
    [
        [requirement(TYPE, "In", "non-existent-instance-type")],
        [requirement(labels.ARCH, "In", "non-existent-arch")],
        [requirement(labels.ARCH, "In", "amd64"), requirement(labels.ARCH, "In", "arm64")],
        [requirement(ZONE, "In", "non-existent-zone-1", "non-existent-zone-2")],
    ],
    ids=["type", "architecture", "contradiction", "zone"],
)
def test_error_says_that_the_nodepool_excludes_all_instance_types(wanted):
    """Each of the pods has it, in Karpenter's words and with the requirement that no type meets."""
    plan = schedule(*(tiny(f"p{n}") for n in range(3)), node_pools=(pool(requirements=wanted),))

    assert len(plan.results.pod_errors) == 3
    assert {
        "nodepool requirements filtered out all available instance types" in error.message
        for error in plan.results.pod_errors.values()
    } == {True}


# -- devices

CLAIMS = {"resources": {"claims": [{"name": "gpu"}]}}


def using_devices(*, container, init):
    """A spec whose containers use the pod's ResourceClaim."""
    spec = requesting({"cpu": "1"}, init=({"cpu": "250m"},) if init else ())
    if container:
        spec["containers"] = [merge(each, CLAIMS) for each in spec["containers"]]
    spec["initContainers"] = [merge(each, CLAIMS) for each in spec["initContainers"]]
    return (
        {**spec, "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]} if container or init else spec
    )


@pytest.mark.parametrize(("ignored", "chosen"), [(True, "small-instance-type"), (False, "arm-instance-type")])
def test_daemon_set_with_resource_claims_counts_unless_they_are_ignored(ignored, chosen):
    """It requests three CPUs."""
    spec = requesting({"cpu": "3"})
    spec["containers"] = [merge(each, CLAIMS) for each in spec["containers"]]
    template = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]}
    daemon_set = a_daemon_set("agent", **spec, **template)

    plan = schedule(
        tiny("p", spec=requesting({"cpu": "1"})),
        daemon_sets=(daemon_set,),
        options=Options(ignore_dra_requests=ignored),
    )

    assert plan.label_of("p", TYPE) == chosen


@pytest.mark.parametrize(
    ("container", "init", "kind"),
    [(True, False, "dra"), (False, True, "dra"), (True, True, "dra"), (False, False, None)],
)
def test_pod_with_resource_claims_is_left_to_others(container, init, kind):
    """As with IGNORE_DRA_REQUESTS, the default."""
    plan = schedule(tiny("p", spec=using_devices(container=container, init=init)), options=Options())

    assert (len(plan.results.new_claims), bool(plan.results.pod_errors)) == ((1, False) if kind is None else (0, True))
