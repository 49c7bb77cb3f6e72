"""Node capacity and overhead, equal to Karpenter's to the byte."""

import json
from fractions import Fraction

import pytest

from journeyman.cloud.aws.instance_type_info import Accelerator
from journeyman.cloud.aws.node_capacity import NodeSizing, ebs_ephemeral_bytes, memory_bytes
from journeyman.cloud.kubelet_reservations import GIB, MIB, reserved_millicores
from tests.unit.cloud.aws.conftest import EFA_ONLY, PRIMARY, info, node_class


@pytest.fixture
def size(settings):
    return lambda type_=None, class_=None, use=settings: NodeSizing(class_ or node_class(), use).size(type_ or info())


def test_m5_large_matches_karpenters_documentation(size):
    sized = size()
    allocatable = {name: amount - sized.overhead.get(name, 0) for name, amount in sized.capacity.items()}

    assert sized.capacity["memory"] == 7577 * MIB
    assert allocatable == {
        "cpu": 1930,
        "memory": 6903 * MIB,
        "ephemeral-storage": 17 * GIB,
        "pods": 29,
        "vpc.amazonaws.com/pod-eni": 9,
    }


@pytest.mark.parametrize(
    ("vcpus", "millicores"), [(0.5, 30), (1, 60), (2, 70), (4, 80), (8, 90), (96, 310), (448, 1190)]
)
def test_reserved_cpu_by_number_of_cores(vcpus, millicores):
    """It is 6 % of the first core, 1 % of the second, 0.5 % of two more, and 0.25 % of the rest."""
    assert reserved_millicores(int(vcpus * 1000)) == millicores


@pytest.mark.parametrize(
    ("arch", "mib", "percent", "expected"),
    [
        ("amd64", 8192, "0.075", 7577),
        ("arm64", 8192, "0.075", 7518),
        ("amd64", 4000, "0.075", 3700),
        ("amd64", 1, "0", 1),
    ],
)
def test_memory_is_rounded_once_and_exactly(arch, mib, percent, expected):
    """Gravitons reserve 64 MiB; the overhead is rounded up to a whole MiB, without floats."""
    assert memory_bytes(info(arch=arch, memory_mib=mib), Fraction(percent)) == expected * MIB


def test_max_pods_does_not_lower_reservations_on_al2023(size):
    """The image reserves for the ENI limit, whatever maxPods is; Bottlerocket reserves for maxPods."""
    al2023 = size(class_=node_class(kubelet={"maxPods": 10}))
    bottlerocket = size(class_=node_class(amiSelectorTerms=[{"alias": "bottlerocket@latest"}], kubelet={"maxPods": 10}))
    assert al2023.capacity["pods"] == bottlerocket.capacity["pods"] == 10
    assert al2023.overhead["memory"] == (11 * 29 + 255 + 100) * MIB
    assert bottlerocket.overhead["memory"] == (11 * 10 + 255 + 100) * MIB


@pytest.mark.parametrize(
    ("spec", "pods"),
    [
        ({}, 29),
        ({"kubelet": {"podsPerCore": 5}}, 10),
        ({"kubelet": {"podsPerCore": 500}}, 29),
        ({"kubelet": {"maxPods": 110}}, 110),
        ({"amiSelectorTerms": [{"alias": "bottlerocket@latest"}], "kubelet": {"podsPerCore": 5}}, 29),
        ({"amiSelectorTerms": [{"alias": "windows2022@latest"}]}, 110),
        ({"networkInterfaces": [PRIMARY, EFA_ONLY]}, 20),
    ],
)
def test_pod_density_is_eni_limited_by_default(size, spec, pods):
    """It is interfaces times secondary addresses plus two, without EFA-only interfaces; Windows has its own limit."""
    assert size(class_=node_class(**spec)).capacity["pods"] == pods


def test_reserved_enis_lower_pods_but_not_reservations(size, settings):
    from msgspec.structs import replace

    sized = size(use=replace(settings, reserved_enis=1))
    none_left = size(use=replace(settings, reserved_enis=3))
    assert (sized.capacity["pods"], none_left.capacity["pods"]) == (20, 0)
    assert sized.overhead["memory"] == (11 * 29 + 255 + 100) * MIB


@pytest.mark.parametrize(
    ("eviction", "memory", "storage"),
    [
        ({}, 100 * MIB, 2 * GIB),
        ({"memory.available": "5%"}, -(-7577 * MIB * 5 // 100), 2 * GIB),
        ({"memory.available": "7.5%"}, -(-7577 * MIB * 75 // 1000), 2 * GIB),
        ({"memory.available": "300Mi", "nodefs.available": "100%"}, 300 * MIB, 0),
        ({"memory.available": "100%"}, 0, 2 * GIB),
        ({"memory.available": "much"}, 100 * MIB, 2 * GIB),
    ],
)
def test_eviction_thresholds_are_percentages_or_quantities(size, eviction, memory, storage):
    """100 % disables a signal; an invalid value keeps the default, and the NodeClass is not Ready anyway."""
    overhead = size(class_=node_class(kubelet={"evictionHard": eviction})).overhead
    assert overhead["memory"] == (11 * 29 + 255) * MIB + memory
    assert overhead["ephemeral-storage"] == GIB + storage


def test_user_reservations_replace_key_by_key(size):
    """kubeReserved overrides the resources it names; systemReserved is added."""
    kubelet = {"kubeReserved": {"cpu": "200m"}, "systemReserved": {"cpu": "100m", "memory": "1Gi", "pid": "100"}}
    overhead = size(class_=node_class(kubelet=kubelet)).overhead
    assert overhead["cpu"] == 300
    assert overhead["memory"] == (11 * 29 + 255 + 100) * MIB + GIB


@pytest.mark.parametrize(
    ("family", "volumes", "gib"),
    [
        ("al2023", [], 20),
        ("al2023", ["/dev/xvda 50Gi"], 50),
        ("al2023", ["/dev/sdb 50Gi"], 20),
        ("al2023", ["/dev/xvda 50Gi", "/dev/sdb 70Gi root"], 70),
        ("al2023", ["/dev/xvda 60Gi root"], 60),
        ("Custom", [], 20),
        ("Custom", ["/dev/a 5Gi", "/dev/b 9Gi", "/dev/c 7Gi"], 7),
        ("bottlerocket", ["/dev/xvda 50Gi"], 20),
        ("bottlerocket", ["/dev/xvda 4Gi root", "/dev/xvdb 100Gi"], 100),
        ("bottlerocket", ["/dev/xvda 4Gi root"], 20),
        ("bottlerocket", ["/dev/xvda 4Gi", "/dev/xvdb 70Gi root"], 70),
        ("windows2022", [], 50),
    ],
)
def test_ephemeral_storage_is_on_the_familys_device(family, volumes, gib):
    """It is the root volume if one is named, and not Bottlerocket's system disk, or else the family's device for pod storage."""
    image = {"id": "ami-1"} if family == "Custom" else {"alias": f"{family}@latest"}
    spec = {"amiSelectorTerms": [image], **({"amiFamily": family} if family == "Custom" else {})}
    for device, size, *root in map(str.split, volumes):
        mapping = {"deviceName": device, "ebs": {"volumeSize": size}, "rootVolume": bool(root)}
        spec.setdefault("blockDeviceMappings", []).append(mapping)
    assert ebs_ephemeral_bytes(node_class(**spec)) == gib * GIB


def test_local_disks_count_only_under_raid0(size):
    """Their size is in decimal gigabytes, as in EC2's API."""
    disks = info(local_storage_gb=75, nvme=True)
    assert size(disks, node_class(instanceStorePolicy="RAID0")).capacity["ephemeral-storage"] == 75 * 10**9
    assert size(disks).capacity["ephemeral-storage"] == 20 * GIB


def test_accelerators_are_counted_by_vendor_and_absent_ones_left_out(size):
    gpu = Accelerator(name="T4", manufacturer="NVIDIA", count=4, memory_mib=16384)
    neuron = Accelerator(name="Trainium", manufacturer="aws", count=16, cores=2)
    capacity = size(info(gpus=(gpu,), neuron=(neuron,), efa_interfaces=8)).capacity

    assert capacity["nvidia.com/gpu"] == 4
    assert (capacity["aws.amazon.com/neuron"], capacity["aws.amazon.com/neuroncore"]) == (16, 32)
    assert capacity["vpc.amazonaws.com/efa"] == 8
    assert "amd.com/gpu" not in json.dumps(capacity)
