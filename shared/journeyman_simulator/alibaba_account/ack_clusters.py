"""Implements Container Service (CS): ACK clusters, their node pools and add-ons, and the scripts that attach instances.

The answers of this service have lower-case names, and some members hold JSON as text (`meta_data`, `master_url`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final

from msgspec import Struct

from journeyman_simulator.alibaba_account.ack_images import EcsImages
from journeyman_simulator.alibaba_account.openapi_requests import ActionHandlers, ActionRequest, to_second
from journeyman_simulator.alibaba_account.vpc_network import VpcNetwork
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime

JSON = Mapping[str, Any]
_RUNTIME: Final = {"name": "containerd", "version": "1.6.38"}
_TOKEN_HOURS: Final = 24  # of a script without `expired`
_ADDONS: Final = {"terway-eniip": ("terway-eniip",), "Flannel": ("kube-flannel-ds",)}


class SimulatedAckCluster(Struct, kw_only=True):
    """An ACK cluster with its default node pool."""

    id: str
    name: str
    version: str  # such as "1.33.3-aliyun.1"
    endpoint: str
    network: str  # "terway-eniip" or "Flannel"
    security_group: str
    vswitches: tuple[str, ...]
    created_at: datetime
    node_mask: str = "25"
    ip_stack: str = "ipv4"

    @property
    def pool_id(self) -> str:
        """Return the id of the default node pool."""
        return f"np{self.id[1:]}"


class AttachToken(Struct, kw_only=True):
    """A token in an attach script, with which an instance joins a cluster; `uses_left` is None without a limit."""

    cluster_id: str
    expires_at: datetime
    uses_left: int | None


class AckClusters:
    """The account's clusters."""

    def __init__(self, region: str, time: ServiceTime, network: VpcNetwork, images: EcsImages) -> None:
        self._region = region
        self._time = time
        self._network = network
        self._images = images
        self._serial = count(1)
        self.known: dict[str, SimulatedAckCluster] = {}
        self.tokens: dict[str, AttachToken] = {}

    def add(
        self, *, name: str, kubernetes_version: str, endpoint: str, network: str, security_group: str
    ) -> SimulatedAckCluster:
        """Create a cluster in all vSwitches."""
        version = kubernetes_version if kubernetes_version.count(".") > 1 else f"{kubernetes_version}.3-aliyun.1"
        cluster = SimulatedAckCluster(
            id=f"c{next(self._serial):032x}",
            name=name,
            version=version,
            endpoint=endpoint,
            network=network,
            security_group=security_group,
            vswitches=tuple(self._network.vswitches),
            created_at=self._time.now(),
        )
        self.known[cluster.id] = cluster
        return cluster

    def admit(self, token: str, cluster_id: str, at: datetime) -> bool:
        """Whether an instance that runs its attach script at a time joins; a one-time token admits one instance."""
        found = self.tokens.get(token)
        if found is None or found.cluster_id != cluster_id or found.expires_at < at or found.uses_left == 0:
            return False
        if found.uses_left is not None:
            found.uses_left -= 1
        return True

    def handlers(self) -> ActionHandlers:
        """Return the handlers of CS's actions."""
        return {
            "DescribeClusterDetail": lambda request: self._detail(self._require(request)),
            "DescribeClusterAttachScripts": self._attach_script,
            "DescribeClusterNodePools": self._node_pools,
            "GetClusterAddonInstance": self._addon,
            "DescribeKubernetesVersionMetadata": self._metadata,
        }

    def _require(self, request: ActionRequest) -> SimulatedAckCluster:
        cluster = self.known.get(request["ClusterId"])
        if cluster is None:
            raise ServiceError("ErrorClusterNotFound", f"cluster ({request['ClusterId']}) not found in our records")
        return cluster

    def _detail(self, cluster: SimulatedAckCluster) -> dict[str, Any]:
        metadata = {
            "Addons": [],
            "Capabilities": {"Network": cluster.network, "ProxyMode": "ipvs", "IPStack": cluster.ip_stack},
            "CloudMonitorVersion": "0.2.27",
            "ClusterDomain": "cluster.local",
            "Runtime": _RUNTIME["name"],
            "RuntimeVersion": _RUNTIME["version"],
            "KubernetesVersion": cluster.version,
            "VersionSpec": "",
        }
        return {
            "cluster_id": cluster.id,
            "name": cluster.name,
            "cluster_type": "ManagedKubernetes",
            "cluster_spec": "ack.pro.small",
            "profile": "Default",
            "current_version": cluster.version,
            "init_version": cluster.version,
            "state": "running",
            "region_id": self._region,
            "vpc_id": self._network.vpc_id,
            "vswitch_id": ",".join(cluster.vswitches),
            "vswitch_ids": list(cluster.vswitches),
            "security_group_id": cluster.security_group,
            "network_mode": "vpc",
            "container_cidr": "" if cluster.network.startswith("terway") else "172.20.0.0/16",
            "subnet_cidr": "" if cluster.network.startswith("terway") else "172.20.0.0/16",
            "service_cidr": "172.21.0.0/20",
            "node_cidr_mask": cluster.node_mask,
            "ip_stack": cluster.ip_stack,
            "proxy_mode": "ipvs",
            "cluster_domain": "cluster.local",
            "deletion_protection": False,
            "master_url": json.dumps({"intranet_api_server_endpoint": cluster.endpoint}),
            "meta_data": json.dumps(metadata),
            "created": to_second(cluster.created_at),
            "tags": [{"key": "ack.aliyun.com", "value": cluster.id}],
        }

    def _attach_script(self, request: ActionRequest) -> str:
        """Return the script that an instance runs to join. It ends in a line feed, and options can be appended to its last line."""
        cluster = self._require(request)
        if (pool := request.get("nodepool_id")) and pool != cluster.pool_id:
            raise ServiceError("ErrorNodePoolNotFound", f"node pool ({pool}) not found")
        now = self._time.now()
        if "expired" in request.parameters:
            expires_at = datetime.fromtimestamp(min(request["expired"], 253402300799), tz=now.tzinfo)
        else:
            expires_at = now + timedelta(hours=_TOKEN_HOURS)
        number = next(self._serial)
        token = f"{number:06x}.{number:016x}"
        uses = 1 if request.get("one_time_token") else None
        self.tokens[token] = AttachToken(cluster_id=cluster.id, expires_at=expires_at, uses_left=uses)
        arch = request.get("arch", "amd64")
        options = [
            *("--token", token, "--endpoint", cluster.endpoint.removeprefix("https://"), "--cluster-id", cluster.id),
            *("--cluster-dns", "172.21.0.10", "--region", self._region, "--node-pool-id", cluster.pool_id),
            *("--arch", arch, "--format-disk", _lower(request.get("format_disk", False))),
            *("--keep-name", _lower(request.get("keep_instance_name", True))),
            *("--runtime", _RUNTIME["name"], "--runtime-version", _RUNTIME["version"]),
        ]
        script = f"http://attach.example/{self._region}/public/pkg/run/attach/{cluster.version}/{arch}/attach_node.sh"
        return f"#!/bin/bash\ncurl -fsSL {script} | bash -s -- {' '.join(options)}\n"

    def _node_pools(self, request: ActionRequest) -> dict[str, Any]:
        cluster = self._require(request)
        pool = {
            "nodepool_info": {
                "nodepool_id": cluster.pool_id,
                "name": "default-nodepool",
                "is_default": True,
                "type": "ess",
                "region_id": self._region,
                "resource_group_id": "",
                "created": to_second(cluster.created_at),
            },
            "kubernetes_config": {
                "runtime": _RUNTIME["name"],
                "runtime_version": _RUNTIME["version"],
                "cms_enabled": True,
                "cpu_policy": "none",
                "labels": [],
                "taints": [],
                "unschedulable": False,
            },
            "scaling_group": {
                "vswitch_ids": list(cluster.vswitches),
                "security_group_id": cluster.security_group,
                "security_group_ids": [cluster.security_group],
                "image_type": "AliyunLinux3",
                "system_disk_category": "cloud_essd",
                "system_disk_size": 120,
            },
            "status": {"state": "active", "total_nodes": 0, "healthy_nodes": 0},
        }
        wanted = request.get("NodepoolName", "default-nodepool") == "default-nodepool"
        return {"nodepools": [pool] if wanted else []}

    def _addon(self, request: ActionRequest) -> dict[str, Any]:
        cluster = self._require(request)
        name = request["InstanceName"]
        if name not in _ADDONS[cluster.network]:
            raise ServiceError("ErrorAddonNotFound", f"addon instance ({name}) not found")
        return {
            "name": name,
            "version": "v1.16.0",
            "state": "active",
            "config": json.dumps({"IPStack": cluster.ip_stack}),
        }

    def _metadata(self, request: ActionRequest) -> list[dict[str, Any]]:
        versions = sorted({cluster.version for cluster in self.known.values()})
        wanted = request.get("KubernetesVersion")
        return [
            {
                "version": version,
                "creatable": True,
                "multi_az": "enabled",
                "capabilities": {"AnyAZ": True},
                "runtimes": [dict(_RUNTIME), {"name": "containerd", "version": "2.1.3"}],
                "images": self._images.metadata(),
            }
            for version in versions
            if not wanted or version == wanted
        ]


def _lower(value: bool) -> str:
    return "true" if value else "false"
