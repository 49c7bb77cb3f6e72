"""The clusters that one deployment serves, and how each is reached.

A registered cluster is a line of settings: a name, a region, and its kind of access with what that needs. The registry checks
them when a process starts, connects when a cluster is first needed, and tells each error with the cluster's name. It keeps
nothing: a process keeps what it has connected for as long as that works (`runtime.composition`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from journeyman.errors import ConfigurationError, JourneymanError, UnknownClusterError
from journeyman.kube import eks
from journeyman.kube.connection import Connection

Name = Annotated[str, msgspec.Meta(min_length=1)]
Side = Literal["public", "private"]
RoleArn = Annotated[str, msgspec.Meta(pattern=r"^(arn:[a-z-]+:iam::\d{12}:role/.+)?$")]
Minutes = Annotated[int, msgspec.Meta(ge=15, le=4320)]  # what DescribeClusterUserKubeconfig takes
Days = Annotated[int, msgspec.Meta(ge=1, le=1827)]  # what CreateKubernetesClusterCert takes


class EksAccess(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="kind", tag="eks"
):
    """EKS: by the functions' own role, or by one that they assume (in another account, or for other rights)."""

    role_arn: RoleArn = ""
    external_id: str = ""
    endpoint: eks.Endpoint = "any"


class AckAccess(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="kind", tag="ack"
):
    """ACK: by certificates for some minutes."""

    cluster_id: Name
    endpoint: Side = "public"
    minutes: Minutes = 180
    api: str = ""  # Container Service by another address, as inside a VPC


class CceAccess(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="kind", tag="cce"
):
    """CCE: by certificates for some days."""

    cluster_id: Name
    project_id: Name
    endpoint: Side = "public"
    days: Days = 1
    api: str = ""  # CCE by another address, as at Huawei Cloud's other sites


class KubeconfigAccess(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="kind", tag="kubeconfig"
):
    """Any cluster: by a kubeconfig file."""

    path: str = ""
    context: str = ""


class InClusterAccess(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="kind", tag="in-cluster"
):
    """The cluster whose pod the steps run in: as its service account."""


Access: TypeAlias = EksAccess | AckAccess | CceAccess | KubeconfigAccess | InClusterAccess


class Cluster(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One registered cluster."""

    name: Name
    region: Name
    access: Access = EksAccess()
    # What EKS's DescribeCluster says otherwise: needed where it is not asked: with a kubeconfig, and in a pod.
    endpoint: str = ""
    certificate_authority: str = ""  # base64 PEM
    kubernetes_version: str = ""
    service_cidr: str = ""


Way: TypeAlias = Callable[[Cluster, Any], Connection]
"""Connects to a cluster by one kind of access, which is the second argument."""


def read_clusters(text: str) -> tuple[Cluster, ...]:
    """Clusters out of a JSON list.

    Raises:
        ConfigurationError: It does not parse; the text says at which key of which entry.
    """
    try:
        return msgspec.json.decode(text, type=tuple[Cluster, ...])
    except msgspec.DecodeError as error:
        raise ConfigurationError(str(error)) from error


def registered(clusters: Iterable[Cluster]) -> dict[str, Cluster]:
    """The clusters by name. Raises ConfigurationError if two have the same."""
    by_name: dict[str, Cluster] = {}
    for cluster in clusters:
        if cluster.name in by_name:
            raise ConfigurationError(f"cluster {cluster.name!r} is registered twice", cluster=cluster.name)
        by_name[cluster.name] = cluster
    return by_name


class Registry:
    """Who connects to which cluster how.

    Args:
        clusters: By name.
        ways: How each kind of access is carried out here; a process on one cloud may not have them all.
    """

    def __init__(self, clusters: Mapping[str, Cluster], ways: Mapping[type[Struct], Way]) -> None:
        self._clusters = dict(clusters)
        self._ways = dict(ways)

    def __getitem__(self, name: str) -> Cluster:
        """A cluster's settings. Raises UnknownClusterError."""
        if name not in self._clusters:
            raise UnknownClusterError(
                f"cluster {name!r} is not registered here", cluster=name, registered=", ".join(sorted(self._clusters))
            )
        return self._clusters[name]

    def connect(self, name: str) -> Connection:
        """A new connection to a cluster.

        Raises:
            UnknownClusterError: It is not registered, or its cloud does not know it.
            ConfigurationError: Its settings, or the rights of this process, do not lead there.
            CloudUnavailableError: Its cloud does not answer.
        """
        cluster = self[name]
        way = self._ways.get(type(cluster.access))
        if way is None:
            raise ConfigurationError(
                f"cluster {name!r} cannot be reached from here by {type(cluster.access).__name__}", cluster=name
            )
        try:
            return way(cluster, cluster.access)
        except JourneymanError as error:
            error.context["cluster"] = name  # whatever its cloud calls it
            raise
