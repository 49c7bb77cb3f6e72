"""The clusters that one deployment serves, and the access to each.

A registered cluster is an entry of the settings: a name, a region, and its kind of access with that kind's settings. The registry
checks them when a process starts, connects when a cluster is first needed, and adds the cluster's name to each error. It keeps
no connections: a process keeps a connection for as long as it works (`runtime.composition`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.errors import ConfigurationError, JourneymanError, UnknownClusterError
from journeyman.kube.access.eks import Endpoint
from journeyman.kube.connection_pool import Connection

Name = Annotated[str, msgspec.Meta(min_length=1)]
EndpointType = Literal["public", "private"]
RoleArn = Annotated[str, msgspec.Meta(pattern=r"^(arn:[a-z-]+:iam::\d{12}:role/.+)?$")]
Minutes = Annotated[int, msgspec.Meta(ge=15, le=4320)]  # the range that DescribeClusterUserKubeconfig accepts
Days = Annotated[int, msgspec.Meta(ge=1, le=1827)]  # the range that CreateKubernetesClusterCert accepts


class EksAccess(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="kind", tag="eks"
):
    """EKS: with the functions' own role, or with one that they assume (in another account, or for other permissions).

    A `*` at the end of the role's ARN stands for the function's name, so that each function assumes a role of its own.
    """

    role_arn: RoleArn = ""
    external_id: str = ""
    endpoint: Endpoint = "any"


class AckAccess(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="kind", tag="ack"
):
    """ACK: with client certificates that are valid for some minutes."""

    cluster_id: Name
    endpoint: EndpointType = "public"
    minutes: Minutes = 180
    api: str = ""  # another URL of Container Service, as inside a VPC


class CceAccess(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="kind", tag="cce"
):
    """CCE: with client certificates that are valid for some days."""

    cluster_id: Name
    project_id: Name
    endpoint: EndpointType = "public"
    days: Days = 1
    api: str = ""  # another URL of CCE, as on Huawei Cloud's other sites


class KubeconfigAccess(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="kind", tag="kubeconfig"
):
    """Any cluster: with a kubeconfig file."""

    path: str = ""
    context: str = ""


class InClusterAccess(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="kind", tag="in-cluster"
):
    """The cluster that the process runs in: with its pod's service account."""


Access: TypeAlias = EksAccess | AckAccess | CceAccess | KubeconfigAccess | InClusterAccess


class RegisteredCluster(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One registered cluster."""

    name: Name
    region: Name
    access: Access = EksAccess()
    # EKS's DescribeCluster returns these; set them for access with a kubeconfig or from inside the cluster.
    endpoint: str = ""
    certificate_authority: str = ""  # base64 PEM
    kubernetes_version: str = ""
    service_cidr: str = ""
    node_class_group: str = ""  # on a cloud whose NodeClass has two API groups; empty: the first of them


AccessProvider: TypeAlias = Callable[[RegisteredCluster, Any], Connection]
"""Connects to a cluster with one kind of access, which is the second argument."""


def read_clusters(text: str) -> tuple[RegisteredCluster, ...]:
    """Return the clusters in a JSON list.

    Raises:
        ConfigurationError: The list does not parse; the message has the key and the entry.
    """
    try:
        return msgspec.json.decode(text, type=tuple[RegisteredCluster, ...])
    except msgspec.DecodeError as error:
        raise ConfigurationError(str(error)) from error


def with_role_of(cluster: RegisteredCluster, function: str) -> RegisteredCluster:
    """Return the cluster with the role that a function assumes; unchanged if all functions assume the same one.

    Raises:
        ConfigurationError: Each function has a role of its own, and the process is none of the functions.
    """
    access = cluster.access
    if not isinstance(access, EksAccess) or not access.role_arn.endswith("*"):
        return cluster
    if not function:
        raise ConfigurationError(
            f"the roleArn of cluster {cluster.name!r} ends in *, which stands for a function's name, but no function runs here",
            cluster=cluster.name,
            to_do="name the role of one function",
        )
    return replace(cluster, access=replace(access, role_arn=f"{access.role_arn[:-1]}{function}"))


def registered(clusters: Iterable[RegisteredCluster]) -> dict[str, RegisteredCluster]:
    """Return the clusters by name. Raises ConfigurationError if two have the same name."""
    by_name: dict[str, RegisteredCluster] = {}
    for cluster in clusters:
        if cluster.name in by_name:
            raise ConfigurationError(f"cluster {cluster.name!r} is registered twice", cluster=cluster.name)
        by_name[cluster.name] = cluster
    return by_name


class ClusterRegistry:
    """Connects to registered clusters.

    Args:
        clusters: By name; they may change.
        providers: By kind of access; a process on one cloud may not have them all.
    """

    def __init__(
        self, clusters: Mapping[str, RegisteredCluster], providers: Mapping[type[Struct], AccessProvider]
    ) -> None:
        self._clusters = clusters
        self._providers = dict(providers)

    def __getitem__(self, name: str) -> RegisteredCluster:
        """Return a cluster's settings. Raises UnknownClusterError."""
        if name not in self._clusters:
            raise UnknownClusterError(
                f"cluster {name!r} is not registered here", cluster=name, registered=", ".join(sorted(self._clusters))
            )
        return self._clusters[name]

    def connect(self, name: str) -> Connection:
        """Return a new connection to a cluster.

        Raises:
            UnknownClusterError: The cluster is not registered, or does not exist in its cloud.
            ConfigurationError: Its settings are invalid, or this process lacks a permission.
            CloudUnavailableError: The cluster's cloud does not answer.
        """
        cluster = self[name]
        provider = self._providers.get(type(cluster.access))
        if provider is None:
            raise ConfigurationError(
                f"cluster {name!r} cannot be reached from here by {type(cluster.access).__name__}", cluster=name
            )
        try:
            return provider(cluster, cluster.access)
        except JourneymanError as error:
            error.context["cluster"] = name  # its registered name
            raise
