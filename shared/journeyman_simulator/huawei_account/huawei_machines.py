"""Presents ECS servers as machines to the simulated kubelets, configured by the request that created the node.

Labels, taints, the pod limit, reservations and disks come from CreateNode's body, so that a wrong body leads to a wrong node.
Sizes come from the flavors. The node's name is its address, unless the request asks for CCE's name.

Restates: CCE user guide, "Node resource reservation policy" and "Maximum number of pods"; ext4 disk layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from journeyman_simulator.huawei_account.cce_clusters import ENI
from journeyman_simulator.huawei_account.ecs_servers import DELETED, HuaweiInstance
from journeyman_simulator.huawei_account.flavor_data import FlavorFacts
from journeyman_simulator.huawei_account.huawei_account import HuaweiAccount
from journeyman_simulator.kubelet import Machine

JSON = Mapping[str, Any]
_GIB: Final = 2**30
_EXTENT: Final = 4 * 2**20  # bytes by which LVM allocates
_BLOCK: Final = 4096
_BLOCKS_PER_GROUP: Final = 32_768
_INODE_BLOCKS: Final = 512  # of each group
_GROUPS_PER_DESCRIPTOR_BLOCK: Final = 64
_JOURNALS: Final = (
    *((2_048, 0), (32_768, 1_024), (262_144, 4_096), (524_288, 8_192), (4_194_304, 16_384)),
    *((8_388_608, 32_768), (16_777_216, 65_536), (33_554_432, 131_072)),
)
"""The blocks of the journal by the first number of blocks that has a larger one."""
_LARGEST_JOURNAL: Final = 262_144
_EVICTION_MIB: Final = 100
_PODS_BY_GIB: Final = ((64, 110), (32, 80), (16, 60), (8, 40))
_SMALLEST_PODS: Final = 20
_MIB_PER_POD: Final = {"containerd": 5, "docker": 20}
_DEFAULT_SHARE: Final = 10  # percent of the first data disk that holds the kubelet's files


class HuaweiMachines:
    """A `MachineSource` of one CCE cluster, which caches machines until a server changes its state.

    Args:
        account: The account.
        cluster_id: The id of the cluster.
    """

    def __init__(self, account: HuaweiAccount, cluster_id: str) -> None:
        self._account = account
        self._cluster_id = cluster_id
        self._known: tuple[Machine, ...] = ()
        self._stale = True
        account.instances.observers.append(self.record_event)

    def record_event(self, _: object) -> None:
        """Mark the cached machines as stale; the account calls it with each event."""
        self._stale = True

    def machines(self) -> tuple[Machine, ...]:
        """Return the cluster's servers, including deleted ones, sorted by provider id."""
        if self._stale:
            self._stale = False
            found = [
                self._machine(instance)
                for instance in self._account.instances.known.values()
                if instance.cluster_id == self._cluster_id
            ]
            self._known = tuple(sorted(found, key=lambda machine: machine.provider_id))
        return self._known

    def _machine(self, instance: HuaweiInstance) -> Machine:
        spec = instance.spec
        flavor = self._account.catalogue.flavors[instance.instance_type]
        has_cce_name = spec.get("hostnameConfig", {}).get("type") == "cceNodeName"
        network_mode = self._account.clusters.known[self._cluster_id].network_mode
        capacity, allocatable = node_sizes(flavor, spec, network_mode)
        return Machine(
            provider_id=instance.node_id,
            node_name=instance.name if has_cce_name else instance.address,
            running_since=instance.running_since if instance.joins else None,
            terminated=instance.state == DELETED,
            labels={
                **spec.get("k8sTags", {}),
                "node.kubernetes.io/instance-type": instance.instance_type,
                "node.kubernetes.io/subnetid": instance.subnet_id,
                "topology.kubernetes.io/zone": instance.zone,
                "topology.kubernetes.io/region": self._account.region,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": flavor.architecture or "amd64",
            },
            taints=tuple(dict(taint) for taint in spec.get("taints", ())),
            capacity=capacity,
            allocatable=allocatable,
        )


def node_sizes(flavor: FlavorFacts, spec: JSON, network_mode: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the capacity and allocatable that the kubelet of a node reports, given CreateNode's spec."""
    extend = spec.get("extendParam", {})
    usual_pods = next((pods for gib, pods in _PODS_BY_GIB if flavor.ram_mib >= 1024 * gib), _SMALLEST_PODS)
    pods = extend.get("maxPods", usual_pods)
    if network_mode == ENI:
        pods = min(pods, flavor.sub_interfaces)
    disk = filesystem_bytes(_kubernetes_volume(spec))
    runtime = spec.get("runtime", {}).get("name", "containerd")
    kube_memory = extend.get("kubeReservedMem", 500 + _MIB_PER_POD[runtime] * usual_pods)
    system_memory = extend.get("systemReservedMem", 400 + 25 * flavor.ram_mib // 1024)
    kube_millicores = extend.get("kubeReservedCpu", reserved_millicores(flavor.vcpus))
    millicores = 1000 * flavor.vcpus - kube_millicores - extend.get("systemReservedCpu", 0)
    reserved_disk = (extend.get("kubeReservedStorage", 0) + extend.get("systemReservedStorage", 0)) * _GIB
    capacity = {
        "cpu": str(flavor.vcpus),
        "memory": f"{flavor.ram_mib}Mi",
        "pods": str(pods),
        "ephemeral-storage": str(disk),
    }
    allocatable = capacity | {
        "cpu": f"{millicores}m",
        "memory": f"{flavor.ram_mib - kube_memory - system_memory - _EVICTION_MIB}Mi",
        "ephemeral-storage": str(disk - disk // 10 - reserved_disk),
    }
    if flavor.gpu:
        capacity["nvidia.com/gpu"] = allocatable["nvidia.com/gpu"] = str(flavor.gpu.count)
    return capacity, allocatable


def reserved_millicores(vcpus: int) -> int:
    """Return the CPU that CCE reserves: 60 m for core 1, 10 m for core 2, 5 m for cores 3 and 4, 2.5 m for each other."""
    return sum((60, 10, 5, 5)[:vcpus]) + 5 * max(vcpus - 4, 0) // 2


def _kubernetes_volume(spec: JSON) -> int:
    """Return the size in bytes of the logical volume that holds the kubelet's files, on the disk that CCE manages."""
    disk_gib: int = spec["dataVolumes"][0]["size"]
    percent = _DEFAULT_SHARE
    storage = spec.get("storage", {})
    for group in storage.get("storageGroups", ()):
        if group.get("cceManaged"):
            space = next(each for each in group["virtualSpaces"] if each["name"] == "kubernetes")
            percent = int(space["size"].rstrip("%"))
            selectors = [each for each in storage["storageSelectors"] if each["name"] in group["selectorNames"]]
            sizes = [int(each["matchLabels"]["size"]) for each in selectors if "size" in each.get("matchLabels", {})]
            disk_gib = sizes[0] if sizes else disk_gib
    extents = (disk_gib * _GIB - _EXTENT) // _EXTENT  # LVM's own data takes the first extent
    return extents * percent // 100 * _EXTENT


def filesystem_bytes(volume_bytes: int) -> int:
    """Return the size of the ext4 file system of a volume, less what its own tables and its journal take."""
    blocks = volume_bytes // _BLOCK
    groups = -(-blocks // _BLOCKS_PER_GROUP)
    descriptor_blocks = -(-groups // _GROUPS_PER_DESCRIPTOR_BLOCK)
    growth_groups = -(-min(1024 * blocks, 2**32 - 1) // _BLOCKS_PER_GROUP)  # ext4 can grow a thousandfold
    growth_blocks = -(-growth_groups // _GROUPS_PER_DESCRIPTOR_BLOCK) - descriptor_blocks
    growth_blocks = max(0, min(growth_blocks, _BLOCK // 4))
    journal = next((size for first, size in _JOURNALS if blocks < first), _LARGEST_JOURNAL)
    tables = groups * (2 + _INODE_BLOCKS) + _backups(groups) * (1 + descriptor_blocks + growth_blocks)
    return volume_bytes - _BLOCK * (tables + journal)


def _backups(groups: int) -> int:
    """Return how many groups have a copy of the superblock: 0, 1, and the powers of 3, 5 and 7."""
    powers = {base**exponent for base in (3, 5, 7) for exponent in range(1, 24) if base**exponent < groups}
    return 2 + len(powers)
