"""Capacity, overhead and labels of flavors as instance types."""

from fractions import Fraction

import pytest

from journeyman.cloud.huawei.flavors import Flavor
from journeyman.cloud.huawei.instance_types import TURBO, default_pods, labels_of, node_size, pod_limit
from journeyman.cloud.huawei.pricing import estimated_price
from journeyman.cloud.kubelet_reservations import GIB, MIB, kubelet_of
from journeyman.core.api import labels

NONE = kubelet_of({})


def a_flavor(name="c9.2xlarge.4", *, vcpus=8, memory_gib=32, **more):
    zones = (("cn-north-4a", True),)
    return Flavor(name=name, arch="amd64", vcpus=vcpus, memory_mib=memory_gib * 1024, on_demand=zones, spot=(), **more)


def size_of(flavor, *, kubelet=NONE, runtime="containerd", overhead=Fraction(0), disk_gib=100):
    pods = pod_limit(flavor, "vpc-router", kubelet)
    return node_size(flavor, pods, disk_gib=disk_gib, runtime=runtime, kubelet=kubelet, memory_overhead=overhead)


@pytest.mark.parametrize(
    ("memory_gib", "pods"), [(4, 20), (7, 20), (8, 40), (16, 60), (31, 60), (32, 80), (64, 110), (512, 110)]
)
def test_default_number_of_pods_follows_the_memory(memory_gib, pods):
    assert default_pods(memory_gib * 1024) == pods


def test_pods_of_a_turbo_cluster_need_sub_interfaces():
    """They limit `maxPods` as well; pods of other networks do not have them."""
    flavor, many = a_flavor(sub_interfaces=64), kubelet_of({"maxPods": 200})
    assert [pod_limit(flavor, TURBO, kubelet) for kubelet in (NONE, many)] == [64, 64]
    assert [pod_limit(flavor, "vpc-router", kubelet) for kubelet in (NONE, many)] == [80, 200]


@pytest.mark.parametrize(
    ("vcpus", "memory_gib", "cpu", "memory_mib"),
    [
        # published formulas: 400 + 25 a GiB, 500 + 5 a pod of CCE's default, and 100 for eviction
        (2, 8, 60 + 10, (400 + 200) + (500 + 200) + 100),
        (8, 32, 60 + 10 + 10 + 10, (400 + 800) + (500 + 400) + 100),
        (64, 256, 60 + 10 + 10 + 150, (400 + 6400) + (500 + 550) + 100),
    ],
)
def test_overhead_is_what_cce_reserves(vcpus, memory_gib, cpu, memory_mib):
    size = size_of(a_flavor(vcpus=vcpus, memory_gib=memory_gib))
    assert size.overhead["cpu"] == cpu
    assert size.overhead["memory"] == memory_mib * MIB


def test_docker_and_user_settings_change_the_overhead():
    """Docker needs 15 MiB more for each pod; a set value replaces CCE's formula, and `maxPods` does not change it."""
    flavor = a_flavor()
    usual = size_of(flavor).overhead["memory"]
    assert size_of(flavor, runtime="docker").overhead["memory"] - usual == 15 * 80 * MIB
    assert size_of(flavor, kubelet=kubelet_of({"maxPods": 16})).overhead["memory"] == usual
    given = kubelet_of({"kubeReserved": {"memory": "1Gi", "pid": "1000"}, "systemReserved": {"cpu": "250m"}})
    overhead = size_of(flavor, kubelet=given).overhead
    assert overhead["memory"] == (1024 + 1200 + 100) * MIB
    assert overhead["cpu"] == 90 + 250
    assert "pid" not in overhead


def test_capacity_has_the_kubelets_share_of_the_disk_and_visible_memory():
    """CCE gives a tenth of the disk to the kubelet; firmware and kernel hide some of the memory."""
    size = size_of(a_flavor(gpus=2, gpu_name="nvidia-t4"), overhead=Fraction(5, 100))
    assert size.capacity["cpu"] == 8000
    assert size.capacity["memory"] == (32768 - 1639) * MIB
    assert size.capacity["ephemeral-storage"] == 10 * GIB * 98 // 100 - 128 * MIB  # without inode tables and journal
    assert size_of(a_flavor(), disk_gib=1).capacity["ephemeral-storage"] == 0
    assert size.capacity["nvidia.com/gpu"] == 2
    assert size_of(a_flavor(gpus=1, gpu_name="ascend-310")).capacity["huawei.com/ascend-310"] == 1


def test_labels_describe_the_flavor():
    """A label without a value is absent on the node."""
    gpu = a_flavor("p2s.2xlarge.8", gpus=1, gpu_name="nvidia-v100", gpu_memory_mib=32768, max_rate_mbit=10000)
    found = labels_of(gpu, region="cn-north-4", zones=["cn-north-4a"], capacity_types=("on-demand", "spot"))
    short = {key.rpartition("/")[2]: values for key, values in found.items()}

    assert found[labels.INSTANCE_TYPE] == ("p2s.2xlarge.8",)
    assert found[labels.CAPACITY_TYPE] == ("on-demand", "spot")
    assert (short["instance-category"], short["instance-family"], short["instance-generation"]) == (
        ("p",),
        ("p2s",),
        ("2",),
    )
    assert (short["instance-size"], short["instance-cpu"], short["instance-memory"]) == (
        ("2xlarge",),
        ("8",),
        ("32768",),
    )
    assert (short["instance-gpu-name"], short["instance-gpu-manufacturer"]) == (("nvidia-v100",), ("nvidia",))
    assert (short["instance-gpu-count"], short["instance-network-bandwidth"]) == (("1",), ("10000",))
    plain = labels_of(a_flavor(), region="cn-north-4", zones=["cn-north-4a"], capacity_types=("on-demand",))
    assert plain["karpenter.k8s.huawei/instance-gpu-name"] == ()


def test_estimates_grow_with_vcpus_memory_and_gpus():
    """Until prices were read, a larger flavor is the more expensive one, and a GPU costs more than CPUs."""
    small, large = a_flavor(vcpus=2, memory_gib=8), a_flavor(vcpus=4, memory_gib=16)
    assert 0 < estimated_price(small) == pytest.approx(estimated_price(large) / 2)
    assert estimated_price(a_flavor(gpus=1, gpu_name="x")) > 2 * estimated_price(a_flavor())
