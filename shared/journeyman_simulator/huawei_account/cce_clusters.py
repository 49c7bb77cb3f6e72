"""Implements CCE clusters: ShowCluster, and the client certificates of CreateKubernetesClusterCert."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from itertools import count
from typing import Any, Final

from msgspec import Struct

from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.huawei_account.huawei_vpc import HuaweiVpc
from journeyman_simulator.huawei_account.rest_errors import invalid_node, resource_not_found
from journeyman_simulator.huawei_account.rest_operations import OperationHandlers, RestRequest

ENI: Final = "eni"
NETWORK_MODES: Final = ("vpc-router", "overlay_l2", ENI)
_LONGEST_DAYS: Final = 1827


class ClusterCertificate(Struct, frozen=True, kw_only=True):
    """What a kubeconfig of a cluster has, in PEM: the cluster's authority, and a client's certificate and key."""

    authority: bytes
    certificate: bytes
    key: bytes


class SimulatedCceCluster(Struct, kw_only=True):
    """A CCE cluster."""

    id: str
    name: str
    kubernetes_version: str  # such as "v1.33"
    network_mode: str
    vpc_id: str
    subnet_id: str  # of the control plane
    security_group: str
    endpoint: str  # inside the VPC
    external_endpoint: str
    created_at: datetime
    most_nodes: int = 200
    certificate: ClusterCertificate | None = None


class CceClusters:
    """The account's clusters."""

    def __init__(self, time: ServiceTime, network: HuaweiVpc) -> None:
        self._time = time
        self._network = network
        self._serial = count(1)
        self.known: dict[str, SimulatedCceCluster] = {}

    def add(
        self,
        *,
        name: str,
        kubernetes_version: str = "v1.33",
        network_mode: str = "vpc-router",
        endpoint: str = "https://10.0.255.1:5443",
        external_endpoint: str = "",
        security_group: str = "5e600000-0000-4000-8000-000000000001",
    ) -> SimulatedCceCluster:
        """Create a cluster in the account's VPC."""
        if network_mode not in NETWORK_MODES:
            raise ValueError(f"network_mode is one of {', '.join(NETWORK_MODES)}, not {network_mode!r}")
        cluster = SimulatedCceCluster(
            id=f"c1000000-0000-4000-8000-{next(self._serial):012x}",
            name=name,
            kubernetes_version=f"v{kubernetes_version.removeprefix('v')}",
            network_mode=network_mode,
            vpc_id=self._network.vpc_id,
            subnet_id=next(iter(self._network.subnets), ""),
            security_group=security_group,
            endpoint=endpoint,
            external_endpoint=external_endpoint,
            created_at=self._time.now(),
        )
        self.known[cluster.id] = cluster
        return cluster

    def require(self, cluster_id: str) -> SimulatedCceCluster:
        """Return a cluster. Raises ServiceError if it does not exist."""
        if cluster_id not in self.known:
            raise resource_not_found("Cluster", cluster_id)
        return self.known[cluster_id]

    def handlers(self) -> OperationHandlers:
        """Return the handlers of CCE's operations on clusters."""
        return {"ShowCluster": self._show, "CreateKubernetesClusterCert": self._create_certificate}

    def _show(self, request: RestRequest) -> dict[str, Any]:
        cluster = self.require(request.path["cluster_id"])
        is_turbo = cluster.network_mode == ENI
        spec: dict[str, Any] = {
            "category": "Turbo" if is_turbo else "CCE",
            "type": "VirtualMachine",
            "flavor": "cce.s2.small",
            "version": cluster.kubernetes_version,
            "platformVersion": "cce.5.0",
            "hostNetwork": {
                "vpc": cluster.vpc_id,
                "subnet": cluster.subnet_id,
                "SecurityGroup": cluster.security_group,
            },
            "containerNetwork": {"mode": cluster.network_mode},
            "serviceNetwork": {"IPv4CIDR": "10.247.0.0/16"},
            "authentication": {"mode": "rbac"},
            "billingMode": 0,
            "kubeProxyMode": "iptables",
        }
        if is_turbo:
            subnets = [{"subnetID": subnet.network_id} for subnet in self._network.subnets.values()]
            spec["eniNetwork"] = {"subnets": subnets}
        else:
            spec["containerNetwork"] |= {"cidr": "172.16.0.0/16", "cidrs": [{"cidr": "172.16.0.0/16"}]}
        endpoints = [{"url": cluster.endpoint, "type": "Internal"}]
        if cluster.external_endpoint:
            endpoints.append({"url": cluster.external_endpoint, "type": "External"})
        return {
            "kind": "Cluster",
            "apiVersion": "v3",
            "metadata": {
                "name": cluster.name,
                "uid": cluster.id,
                "creationTimestamp": timestamp(cluster.created_at),
                "updateTimestamp": timestamp(cluster.created_at),
            },
            "spec": spec,
            "status": {"phase": "Available", "endpoints": endpoints},
        }

    def _create_certificate(self, request: RestRequest) -> dict[str, Any]:
        """Return a kubeconfig with the certificate that was set for the cluster."""
        cluster = self.require(request.path["cluster_id"])
        _check_duration(request.body)
        certificate = cluster.certificate
        if certificate is None:
            raise NotSimulatedError(f"no client certificate was set for cluster {cluster.name}")
        addresses = {"internal": cluster.endpoint}
        if cluster.external_endpoint:
            addresses["external"] = cluster.external_endpoint
        servers: list[dict[str, Any]] = []
        for name, address in addresses.items():
            trust: dict[str, Any] = {"certificate-authority-data": _encoded(certificate.authority)}
            if name == "external":  # CCE does not know all names under which the address is reached
                trust = {"insecure-skip-tls-verify": True}
            servers.append({"name": f"{name}Cluster", "cluster": {"server": address, **trust}})
        user = {
            "client-certificate-data": _encoded(certificate.certificate),
            "client-key-data": _encoded(certificate.key),
        }
        return {
            "kind": "Config",
            "apiVersion": "v1",
            "preferences": {},
            "clusters": servers,
            "users": [{"name": "user", "user": user}],
            "contexts": [
                {"name": name, "context": {"cluster": f"{name}Cluster", "user": "user"}} for name in addresses
            ],
            "current-context": list(addresses)[-1],
        }


def timestamp(moment: datetime) -> str:
    """Return a time as CCE writes it: "2020-02-01 08:20:49.944664000 +0000 UTC"."""
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f000 +0000 UTC")


def _check_duration(body: Any) -> None:
    if not isinstance(body, Mapping) or not set(body) & {"duration", "expire_at"}:
        raise invalid_node("the body must have duration or expire_at")
    days = body.get("duration", 1)
    if not isinstance(days, int) or isinstance(days, bool) or not (days == -1 or 1 <= days <= _LONGEST_DAYS):
        raise invalid_node(f"duration must be -1 or 1 to {_LONGEST_DAYS} days, not {days!r}")


def _encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()
