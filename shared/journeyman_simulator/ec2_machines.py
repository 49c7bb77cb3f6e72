"""Presents EC2 instances as machines to the simulated kubelets, configured by their launch templates.

Labels, taints and the pod limit come from the NodeConfig in the instance's user data, so that a wrong template leads to
a wrong node. Sizes come from DescribeInstanceTypes: the operating system has slightly less memory than advertised, and
the kubelet reserves what nodeadm configures. The zone, region and type labels are those of the cloud controller.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from email import message_from_string
from typing import Any

from journeyman_simulator.kubelet import Machine
from journeyman_simulator.sam_stack import AwsAccount

_GUEST_MEMORY_PERCENT = 94  # of what EC2 advertises; hypervisor and firmware keep the rest
_EVICTION_MIB = 100
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
_NODE_LABELS_FLAG = "--node-labels="


class Ec2Machines:
    """A `MachineSource` that caches DescribeInstances until an instance changes its state."""

    def __init__(self, aws: AwsAccount, cluster: str) -> None:
        self._aws = aws
        self._ec2 = aws.client("ec2")
        self._cluster = cluster
        self._known: tuple[Machine, ...] = ()
        self._stale = True
        self._node_configs: dict[str, Mapping[str, Any]] = {}
        self._types: dict[str, Mapping[str, Any]] = {}
        self._running_since: dict[str, datetime] = {}

    def record_event(self, event: Mapping[str, Any]) -> None:
        """Mark the cached machines as stale if the AWS event (`on_event` of an account) is a state change."""
        if event["detail-type"] == "EC2 Instance State-change Notification":
            self._stale = True
            if event["detail"]["state"] == "running":
                changed_at = datetime.fromisoformat(event["time"].replace("Z", "+00:00"))
                self._running_since[event["detail"]["instance-id"]] = changed_at

    def machines(self) -> tuple[Machine, ...]:
        """Return the cluster's instances, including terminated ones, sorted by provider id."""
        if self._stale:
            self._stale = False
            pages = self._ec2.get_paginator("describe_instances").paginate(
                Filters=[{"Name": "tag:eks:eks-cluster-name", "Values": [self._cluster]}]
            )
            found = [self._machine(i) for page in pages for r in page["Reservations"] for i in r["Instances"]]
            self._known = tuple(sorted(found, key=lambda m: m.provider_id))
        return self._known

    def _machine(self, instance: Mapping[str, Any]) -> Machine:
        state, zone = instance["State"]["Name"], instance["Placement"]["AvailabilityZone"]
        config = self._node_config(instance)
        kubelet = config["spec"]["kubelet"]
        facts = self._type(instance["InstanceType"])
        capacity, allocatable = _sizes(facts, kubelet["config"])
        return Machine(
            provider_id=f"aws:///{zone}/{instance['InstanceId']}",
            node_name=instance["PrivateDnsName"],
            running_since=self._running_since.get(instance["InstanceId"]) if state == "running" else None,
            terminated=state == "terminated",
            labels={
                **_labels(kubelet["flags"]),
                "node.kubernetes.io/instance-type": instance["InstanceType"],
                "topology.kubernetes.io/zone": zone,
                "topology.kubernetes.io/region": self._aws.region,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": _architecture(facts),
            },
            taints=tuple(kubelet["config"].get("registerWithTaints", ())),
            capacity=capacity,
            allocatable=allocatable,
        )

    def _node_config(self, instance: Mapping[str, Any]) -> Mapping[str, Any]:
        tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
        template = tags["aws:ec2launchtemplate:id"]
        if template not in self._node_configs:
            version = self._ec2.describe_launch_template_versions(
                LaunchTemplateId=template, Versions=[tags["aws:ec2launchtemplate:version"]]
            )["LaunchTemplateVersions"][0]
            text = base64.b64decode(version["LaunchTemplateData"]["UserData"]).decode()
            self._node_configs[template] = _parse_node_config(text)
        return self._node_configs[template]

    def _type(self, name: str) -> Mapping[str, Any]:
        if name not in self._types:
            self._types[name] = self._ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"][0]
        return self._types[name]


def _parse_node_config(user_data: str) -> Mapping[str, Any]:
    """Return the NodeConfig part of AL2023 user data. Raises ValueError if it is missing: the machine would never join."""
    for part in message_from_string(user_data).walk():
        if part.get_content_type() == "application/node.eks.aws":
            config: Mapping[str, Any] = json.loads(str(part.get_payload()))
            return config
    raise ValueError("the user data has no NodeConfig; the simulation supports only AL2023 machines")


def _labels(flags: list[str]) -> dict[str, str]:
    given = next((flag.removeprefix(_NODE_LABELS_FLAG) for flag in flags if flag.startswith(_NODE_LABELS_FLAG)), "")
    pairs = (pair.split("=", 1) for pair in given.strip('"').split(",") if pair)
    return dict(pairs)


def _architecture(facts: Mapping[str, Any]) -> str:
    return next(_ARCHITECTURES[a] for a in facts["ProcessorInfo"]["SupportedArchitectures"] if a in _ARCHITECTURES)


def _sizes(facts: Mapping[str, Any], kubelet: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the capacity and allocatable that the kubelet reports."""
    cpus = facts["VCpuInfo"]["DefaultVCpus"]
    memory_mib = facts["MemoryInfo"]["SizeInMiB"] * _GUEST_MEMORY_PERCENT // 100
    pods = kubelet["maxPods"]
    reserved_mib = 11 * pods + 255 + _EVICTION_MIB
    capacity = {"cpu": str(cpus), "memory": f"{memory_mib}Mi", "pods": str(pods), "ephemeral-storage": "20Gi"}
    allocatable = capacity | {
        "cpu": f"{1000 * cpus - _reserved_millicores(cpus)}m",
        "memory": f"{memory_mib - reserved_mib}Mi",
        "ephemeral-storage": "17Gi",
    }
    for gpu in facts.get("GpuInfo", {}).get("Gpus", ()):
        if gpu["Manufacturer"] == "NVIDIA":
            capacity["nvidia.com/gpu"] = allocatable["nvidia.com/gpu"] = str(gpu["Count"])
    return capacity, allocatable


def _reserved_millicores(cpus: int) -> int:
    """Return the CPU that nodeadm reserves: 6 % of core 1, 1 % of core 2, 0.5 % of cores 3 and 4, 0.25 % of the rest."""
    shares = [60, 10, 5, 5]
    return sum(shares[:cpus]) + (max(cpus - len(shares), 0) * 5 + 1) // 2
