"""Instance types of ECS: labels, capacity, pods by network plugin, memory that the host keeps, Spot prices."""

from fractions import Fraction

import pytest

from journeyman.cloud.alibaba.instance_types import labels_of, node_size, parse_type, pod_limit
from journeyman.cloud.kubelet_reservations import GIB, MIB, kubelet_of
from journeyman.core.api import labels
from tests.unit.cloud.alibaba.conftest import AckCluster

G7 = {
    "InstanceTypeId": "ecs.g7.large",
    "CpuArchitecture": "X86",
    "CpuCoreCount": 2,
    "MemorySize": 8.0,
    "EniQuantity": 3,
    "EniPrivateIpAddressQuantity": 10,
    "PhysicalProcessorModel": "Intel Xeon (Ice Lake) Platinum 8369B",
}


@pytest.mark.parametrize(
    ("network", "kubelet", "pods"),
    [
        ("terway-eniip", {}, 23),
        ("Flannel", {}, 256),
        ("", {}, 110),
        ("terway-eniip", {"maxPods": 40}, 40),
        ("Flannel", {"podsPerCore": 20}, 40),
        ("terway-eniip", {"maxPods": 12, "podsPerCore": 20}, 12),
    ],
)
def test_pods_are_limited_by_network_plugin_and_kubelet(network, kubelet, pods):
    """Terway: an address of each further interface for each pod, and three pods on the host network."""
    assert pod_limit(parse_type(G7), network, kubelet_of(kubelet)) == pods


@pytest.mark.parametrize(
    ("name", "category", "family", "generation", "size"),
    [
        ("ecs.g7.xlarge", "g", "ecs.g7", "7", "xlarge"),
        ("ecs.g8i.4xlarge", "g", "ecs.g8i", "8", "4xlarge"),
        ("ecs.gn7i-c8g1.2xlarge", "gn", "ecs.gn7i-c8g1", "7", "2xlarge"),
        ("ecs.ebmg7.32xlarge", "ebmg", "ecs.ebmg7", "7", "32xlarge"),
        ("ecs.u1-c1m2.large", "u", "ecs.u1-c1m2", "1", "large"),
        ("ecs.g5ne.large", "g", "ecs.g5ne", "5", "large"),
    ],
)
def test_labels_follow_the_name_of_the_type(name, category, family, generation, size):
    """Variants come after the generation."""
    info = parse_type({**G7, "InstanceTypeId": name})
    found = labels_of(info, region="cn-hangzhou", zones=["h"], capacity_types=("spot",))
    prefix = "karpenter.k8s.alibabacloud/instance-"

    assert found[f"{prefix}category"] == (category,)
    assert found[f"{prefix}family"] == (family,)
    assert found[f"{prefix}generation"] == (generation,)
    assert found[f"{prefix}size"] == (size,)
    assert found[f"{prefix}memory"] == ("8192",)
    assert found[f"{prefix}cpu-model"] == ("Intel-Xeon-Ice-Lake-Platinum-8369B",)
    assert found[f"{prefix}gpu-name"] == ()


def test_gpu_types_have_labels_and_the_resource():
    """DescribeInstanceTypes reports the memory of one GPU; a count of zero is no label."""
    gpu = {"GPUAmount": 2, "GPUSpec": "NVIDIA A10", "GPUMemorySize": 24.0}
    found = labels_of(parse_type({**G7, **gpu}), region="r", zones=["h"], capacity_types=())
    prefix = "karpenter.k8s.alibabacloud/instance-gpu-"

    assert {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)} == {
        "name": ("NVIDIA-A10",),
        "manufacturer": ("nvidia",),
        "count": ("2",),
        "memory": ("24576",),
    }


def test_capacity_leaves_out_what_the_host_keeps():
    """6.5 % of the memory by default; the system disk is the storage; Terway's addresses are a resource.

    DescribeSpotAdvice has the share of the on-demand price of each type and zone, so Spot differs by zone.
    """
    ack, all_of_it = AckCluster(), AckCluster(vm_memory_overhead_percent=Fraction(0))
    types = {t.name: t for t in ack.provider.get_instance_types(ack.node_class(systemDisk={"volumeSize": "60Gi"}))}
    whole = {t.name: t for t in all_of_it.provider.get_instance_types(all_of_it.node_class())}
    capacity = types["ecs.g7.large"].capacity

    assert capacity["cpu"] == 2000
    assert capacity["memory"] == (8192 - 533) * 2**20
    assert whole["ecs.g7.large"].capacity["memory"] == 8192 * 2**20
    assert capacity["ephemeral-storage"] == 60 * 2**30
    assert capacity["vpc.alibabacloud.com/PrivateIPv4Address"] == capacity["pods"] - 3
    assert types["ecs.g7.large"].overhead["cpu"] == 70
    on_demand = {o.price for o in types["ecs.g7.large"].offerings if o.capacity_type == labels.ON_DEMAND}
    spot = {o.zone: o.price for o in types["ecs.g7.large"].offerings if o.capacity_type == labels.SPOT}
    assert len(on_demand) == 1 < len(set(spot.values()))
    assert max(spot.values()) < min(on_demand)


@pytest.mark.parametrize(
    ("memory_gib", "pods", "kubelet", "memory_mib"),
    [
        (8, 23, {}, (11 * 23 + 255) + 200 + 100),
        (1, 23, {}, 1024 // 4 + 200 + 100),
        (64, 256, {}, (11 * 256 + 255) + 200 + 100),
        (8, 23, {"evictionHard": {"memory.available": "300Mi"}}, (11 * 23 + 255) + 200 + 300),
        (8, 23, {"kubeReserved": {"memory": "1Gi"}, "systemReserved": {"memory": "50Mi"}}, 1024 + 50 + 100),
    ],
)
def test_reserved_memory_grows_with_pods_up_to_a_quarter(memory_gib, pods, kubelet, memory_mib):
    """As the published provider: 255 MiB and 11 a pod, 200 MiB for the system, and the kubelet's eviction threshold."""
    info = parse_type({**G7, "MemorySize": float(memory_gib)})
    size = node_size(info, pods, 40 * GIB, kubelet_of(kubelet), Fraction(0))
    assert size.capacity["memory"] == memory_gib * GIB
    assert size.overhead["memory"] == memory_mib * MIB
    assert size.overhead["ephemeral-storage"] == 4 * GIB


def test_types_stay_identical_when_free_addresses_change(acs):
    """Each launch changes the status, and solvers cache by identity."""
    before = acs.node_class()
    acs.account.set_free_addresses(acs.seeded.vswitches["cn-hangzhou-h"], 7)
    acs.clock.advance(61)
    after = acs.node_class()
    assert before["status"]["vSwitches"] != after["status"]["vSwitches"]
    assert acs.provider.get_instance_types(after) is acs.provider.get_instance_types(before)


def test_types_for_fewer_than_eleven_pods_are_left_out():
    """ACK's own pods would take all of their addresses. Nodes are AMD64 or ARM64."""
    ack = AckCluster()
    assert ack.provider.get_instance_types(ack.node_class(kubeletConfiguration={"maxPods": 10})) == ()
    assert ack.provider.get_instance_types(ack.node_class(kubeletConfiguration={"maxPods": 11}))
    assert parse_type({**G7, "CpuArchitecture": ""}) is None
    assert parse_type({**G7, "CpuArchitecture": "ARM"}).arch == "arm64"


def test_read_prices_have_the_accounts_discount():
    """One type of each family is read; the others of the family have the same discount."""
    ack = AckCluster()
    ack.account.catalogue.discount = 0.5
    shipped = {t.name: t.offerings[0].price for t in ack.provider.get_instance_types(ack.node_class())}
    ack.provider.refresh_prices()
    read = ack.provider.prices()
    asked = [c.parameters["InstanceType"] for c in ack.open_api.calls if c.action == "DescribePrice"]

    assert len(asked) == len({name.rpartition(".")[0] for name in asked}) < len(shipped)
    assert read.on_demand["ecs.g7.4xlarge"] == pytest.approx(shipped["ecs.g7.4xlarge"] / 2)
    assert (read.source, read.currency) == ("ecs:DescribePrice", "CNY")
