"""Presents ECS instances as machines to the simulated kubelets, configured by their user data.

Labels, taints, the pod limit and reservations come from the options that follow the attach script in the user data, so that
wrong user data leads to a wrong node, or to none. Sizes come from DescribeInstanceTypes: the operating system has slightly
less memory than advertised. The zone, region and type labels are those of ACK's cloud controller.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from email import message_from_string
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct, field

from journeyman.core.api.quantity import parse
from journeyman_simulator.alibaba_account.alibaba_account import AlibabaAccount
from journeyman_simulator.alibaba_account.ecs_instance_states import DELETED, EcsInstance
from journeyman_simulator.kubelet import Machine

_GUEST_MEMORY_PERCENT: Final = 94  # of the nominal size; hypervisor and firmware keep the rest
_MIB: Final = 2**20
_HOST_NETWORK_PODS: Final = 3
_FLANNEL_PODS: Final = 128


class AttachOptions(Struct, frozen=True, kw_only=True):
    """The options of an attach script."""

    token: str
    cluster_id: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    kubelet: Mapping[str, Any] = field(default_factory=dict)  # kubelet_config of --node-config


class AlibabaMachines:
    """A `MachineSource` of one ACK cluster, which caches machines until an instance changes its state.

    Args:
        account: The account.
        cluster_id: The id of the cluster.
    """

    def __init__(self, account: AlibabaAccount, cluster_id: str) -> None:
        self._account = account
        self._cluster_id = cluster_id
        self._known: tuple[Machine, ...] = ()
        self._stale = True
        self._options: dict[str, AttachOptions | None] = {}  # by user data
        self._joined: dict[str, bool] = {}  # by instance
        account.bus.subscribers.append(self.record_event)

    def record_event(self, event: Mapping[str, Any]) -> None:
        """Mark the cached machines as stale; the account calls it with each event."""
        self._stale = True

    def machines(self) -> tuple[Machine, ...]:
        """Return the cluster's instances, including deleted ones, sorted by provider id."""
        if self._stale:
            self._stale = False
            found = [
                self._machine(instance, options)
                for instance in self._account.instances.known.values()
                if (options := self._options_of(instance)) and options.cluster_id == self._cluster_id
            ]
            self._known = tuple(sorted(found, key=lambda machine: machine.provider_id))
        return self._known

    def _options_of(self, instance: EcsInstance) -> AttachOptions | None:
        text = instance.settings.get("UserData", "")
        if text not in self._options:
            self._options[text] = attach_options(base64.b64decode(text).decode())
        return self._options[text]

    def _machine(self, instance: EcsInstance, options: AttachOptions) -> Machine:
        facts = self._account.catalogue.types[instance.instance_type]
        region = self._account.region
        capacity, allocatable = _sizes(facts, options.kubelet, self._account.clusters.known[options.cluster_id].network)
        return Machine(
            provider_id=f"{region}.{instance.id}",
            node_name=f"{region}.{instance.address}",
            running_since=self._running_since(instance, options),
            terminated=instance.state == DELETED,
            labels={
                **options.labels,
                "node.kubernetes.io/instance-type": instance.instance_type,
                "topology.kubernetes.io/zone": instance.zone,
                "topology.kubernetes.io/region": region,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "arm64" if facts["CpuArchitecture"] == "ARM" else "amd64",
            },
            taints=options.taints,
            capacity=capacity,
            allocatable=allocatable,
        )

    def _running_since(self, instance: EcsInstance, options: AttachOptions) -> datetime | None:
        """Return when an instance began to run, if it joined the cluster when it first ran."""
        since = instance.running_since
        if since is None or not instance.joins:
            return None
        if instance.id not in self._joined:
            self._joined[instance.id] = self._account.clusters.admit(options.token, options.cluster_id, since)
        return since if self._joined[instance.id] else None


def attach_options(user_data: str) -> AttachOptions | None:
    """Return the options of the attach script in user data, a shell script or MIME parts; None if it has none.

    Options count only on the line that runs the attach script, as in a shell.
    """
    for script in _scripts(user_data):
        for line in script.replace("\\\n", " ").splitlines():
            if "attach_node.sh" in line and not line.lstrip().startswith("#"):
                return _parsed_options(shlex.split(line))
    return None


def _scripts(user_data: str) -> Iterator[str]:
    message = message_from_string(user_data)
    if not message.is_multipart():
        yield user_data
        return
    for part in message.walk():
        if not part.is_multipart():
            payload = part.get_payload(decode=True)
            yield payload.decode() if isinstance(payload, bytes) else str(part.get_payload())


def _parsed_options(words: list[str]) -> AttachOptions | None:
    options = {name: value for name, value in pairwise(words) if name.startswith("--")}
    if "--token" not in options or "--cluster-id" not in options:
        return None
    config = json.loads(base64.b64decode(options["--node-config"])) if "--node-config" in options else {}
    return AttachOptions(
        token=options["--token"],
        cluster_id=options["--cluster-id"],
        labels=dict(pair.split("=", 1) for pair in options.get("--labels", "").split(",") if pair),
        taints=tuple(_taint(text) for text in options.get("--taints", "").split(",") if text),
        kubelet=config.get("kubelet_config", {}),
    )


def _taint(text: str) -> dict[str, str]:
    """Return a taint written as `key=value:Effect` or `key:Effect`."""
    name, _, effect = text.rpartition(":")
    key, _, value = name.partition("=")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def _sizes(facts: Mapping[str, Any], kubelet: Mapping[str, Any], network: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the capacity and allocatable that the kubelet reports."""
    cpus = facts["CpuCoreCount"]
    memory_mib = int(facts["MemorySize"] * 1024 * _GUEST_MEMORY_PERCENT) // 100
    pods = kubelet.get("maxPods") or _default_pods(facts, network)
    if per_core := kubelet.get("podsPerCore"):
        pods = min(pods, per_core * cpus)
    capacity = {"cpu": str(cpus), "memory": f"{memory_mib}Mi", "pods": str(pods), "ephemeral-storage": "40Gi"}
    kube: Mapping[str, str] = kubelet.get("kubeReserved") or {
        "cpu": f"{_reserved_millicores(cpus)}m",
        "memory": f"{min(11 * pods + 255, memory_mib // 4)}Mi",
    }
    system: Mapping[str, str] = kubelet.get("systemReserved") or {}
    cpu = _millicores(kube.get("cpu", "0")) + _millicores(system.get("cpu", "0"))
    reserved = _bytes(kube.get("memory", "0")) + _bytes(system.get("memory", "0"))
    reserved += _eviction_bytes(kubelet, memory_mib * _MIB)
    allocatable = capacity | {
        "cpu": f"{1000 * cpus - cpu}m",
        "memory": f"{memory_mib - -(-reserved // _MIB)}Mi",
        "ephemeral-storage": "36Gi",
    }
    if facts["GPUAmount"]:
        capacity["nvidia.com/gpu"] = allocatable["nvidia.com/gpu"] = str(facts["GPUAmount"])
    return capacity, allocatable


def _millicores(text: str) -> int:
    return parse(text).milli(round_up=True)


def _bytes(text: str) -> int:
    return parse(text).units(round_up=True)


def _default_pods(facts: Mapping[str, Any], network: str) -> int:
    if not network.startswith("terway"):
        return _FLANNEL_PODS
    return int((facts["EniQuantity"] - 1) * facts["EniPrivateIpAddressQuantity"] + _HOST_NETWORK_PODS)


def _eviction_bytes(kubelet: Mapping[str, Any], memory_bytes: int) -> int:
    signal = str((kubelet.get("evictionHard") or {}).get("memory.available", "100Mi"))
    return int(memory_bytes * float(signal[:-1]) / 100) if signal.endswith("%") else _bytes(signal)


def _reserved_millicores(cpus: int) -> int:
    """Return the CPU that ACK reserves: 60 m for core 1, 10 m for core 2, 5 m for cores 3 and 4, 2.5 m for each other."""
    shares = [60, 10, 5, 5]
    return sum(shares[:cpus]) + (max(cpus - len(shares), 0) * 5 + 1) // 2
