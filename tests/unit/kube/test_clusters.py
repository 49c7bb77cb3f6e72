"""The registry of clusters: its settings, its connections, and its errors."""

import pytest

from journeyman.errors import CloudUnavailableError, ConfigurationError, UnknownClusterError
from journeyman.kube.clusters import (
    AckAccess,
    CceAccess,
    ClusterRegistry,
    EksAccess,
    InClusterAccess,
    KubeconfigAccess,
    RegisteredCluster,
    read_clusters,
    registered,
    with_role_of,
)
from journeyman.kube.connection_pool import Connection
from journeyman.runtime.access_providers import ALIBABA_VARIABLES, HUAWEI_VARIABLES, Sessions, access_providers
from journeyman_simulator.clock import VirtualClock
from tests.helpers.builders import NOW

A_CLUSTER = '{"name": "a", "region": "eu-west-1"}'


def with_access(access: str) -> str:
    return f'[{{"name": "a", "region": "eu-west-1", "access": {access}}}]'


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        ('{"kind": "eks"}', EksAccess()),
        ('{"kind": "eks", "endpoint": "private"}', EksAccess(endpoint="private")),
        (
            '{"kind": "eks", "roleArn": "arn:aws-cn:iam::111122223333:role/team/journeyman", "externalId": "x"}',
            EksAccess(role_arn="arn:aws-cn:iam::111122223333:role/team/journeyman", external_id="x"),
        ),
        ('{"kind": "ack", "clusterId": "c1"}', AckAccess(cluster_id="c1", endpoint="public", minutes=180)),
        ('{"kind": "cce", "clusterId": "c1", "projectId": "p"}', CceAccess(cluster_id="c1", project_id="p", days=1)),
        ('{"kind": "kubeconfig", "path": "/opt/k"}', KubeconfigAccess(path="/opt/k")),
        ('{"kind": "in-cluster"}', InClusterAccess()),
    ],
)
def test_each_kind_of_access_has_defaults(access, expected):
    """The defaults are the functions' own role, short-lived certificates and the public address."""
    (cluster,) = read_clusters(with_access(access))

    assert cluster.access == expected


@pytest.mark.parametrize(
    ("access", "message"),
    [
        ('{"kind": "gke"}', r"Invalid value 'gke' - at `\$\[0\]\.access\.kind`"),
        ('{"roleArn": "arn:aws:iam::111122223333:role/x"}', r"missing required field `kind` - at `\$\[0\]\.access`"),
        ('{"kind": "eks", "roleARN": "x"}', r"unknown field `roleARN`"),
        ('{"kind": "eks", "roleArn": "journeyman"}', r"at `\$\[0\]\.access\.roleArn`"),
        ('{"kind": "eks", "endpoint": "inside"}', r"Invalid enum value 'inside'"),
        ('{"kind": "ack"}', r"missing required field `clusterId`"),
        ('{"kind": "ack", "clusterId": "c", "minutes": 14}', r">= 15 - at `\$\[0\]\.access\.minutes`"),
        ('{"kind": "ack", "clusterId": "c", "endpoint": "any"}', r"Invalid enum value 'any'"),
        ('{"kind": "cce", "clusterId": "c"}', r"missing required field `projectId`"),
        ('{"kind": "cce", "clusterId": "c", "projectId": "p", "days": 1828}', r"<= 1827"),
    ],
)
def test_invalid_setting_is_an_error_with_its_path(access, message):
    """A misspelt key is one, too: without the error its value would be ignored."""
    with pytest.raises(ConfigurationError, match=message):
        read_clusters(with_access(access))


def test_cluster_name_is_registered_once():
    """Two clusters of one name would share queues, Leases and caches."""
    with pytest.raises(ConfigurationError, match="'a' is registered twice"):
        registered(read_clusters(f"[{A_CLUSTER}, {A_CLUSTER}]"))


ROLES = "arn:aws:iam::111122223333:role/journeyman-"


@pytest.mark.parametrize(
    ("access", "function", "expected"),
    [
        (EksAccess(role_arn=f"{ROLES}*"), "sweep", EksAccess(role_arn=f"{ROLES}sweep")),
        (EksAccess(role_arn=f"{ROLES}all"), "sweep", EksAccess(role_arn=f"{ROLES}all")),
        (EksAccess(role_arn=f"{ROLES}all"), "", EksAccess(role_arn=f"{ROLES}all")),
        (EksAccess(), "sweep", EksAccess()),
        (InClusterAccess(), "sweep", InClusterAccess()),
    ],
)
def test_star_in_a_role_stands_for_the_function(access, function, expected):
    """Without one all functions assume the same role, or none."""
    cluster = RegisteredCluster(name="a", region="eu-west-1", access=access)
    assert with_role_of(cluster, function).access == expected


def test_role_of_each_function_needs_a_function():
    """A user's shell is none of them."""
    cluster = RegisteredCluster(name="a", region="eu-west-1", access=EksAccess(role_arn=f"{ROLES}*"))
    with pytest.raises(ConfigurationError, match="the roleArn of cluster 'a' ends in"):
        with_role_of(cluster, "")


def test_error_has_the_registered_name_of_the_cluster():
    """A cloud's error may have only the cluster's id."""

    def raise_unavailable(_cluster, _access):
        raise CloudUnavailableError("CCE does not answer", cluster_id="fc2ef5c8")

    registry = ClusterRegistry(registered(read_clusters(f"[{A_CLUSTER}]")), {EksAccess: raise_unavailable})
    with pytest.raises(CloudUnavailableError) as caught:
        registry.connect("a")
    assert caught.value.context == {"cluster_id": "fc2ef5c8", "cluster": "a"}

    with pytest.raises(UnknownClusterError, match="'b' is not registered here") as caught:
        registry.connect("b")
    assert caught.value.context["registered"] == "a"


def test_unsupported_kind_of_access_is_an_error():
    """Deployments on several clouds may share settings."""
    clusters = registered(read_clusters(with_access('{"kind": "kubeconfig"}')))
    registry = ClusterRegistry(clusters, {EksAccess: lambda _cluster, _access: Connection(server="https://a")})

    with pytest.raises(ConfigurationError, match="cannot be reached from here by KubeconfigAccess"):
        registry.connect("a")


@pytest.mark.parametrize(
    ("access", "message"),
    [
        ('{"kind": "ack", "clusterId": "c1"}', "{} and {} are not set".format(*ALIBABA_VARIABLES)),
        ('{"kind": "cce", "clusterId": "c1", "projectId": "p"}', "{} and {} are not set".format(*HUAWEI_VARIABLES)),
        ('{"kind": "in-cluster"}', "does not run in a pod with a service account"),
    ],
)
def test_missing_access_key_or_service_account_is_an_error_with_the_clusters_name(access, message):
    """The function has no role, or runs outside of the cloud or a pod; no request is sent."""
    known = access_providers(VirtualClock(NOW), {}, Sessions().of, lambda _: {})
    registry = ClusterRegistry(registered(read_clusters(with_access(access))), known)

    with pytest.raises(ConfigurationError, match=message) as caught:
        registry.connect("a")
    assert caught.value.context["cluster"] == "a"
