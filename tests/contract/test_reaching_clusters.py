"""Connections from registered clusters to a real API server, with the credentials of EKS, ACK and CCE."""

import json
from contextlib import ExitStack
from datetime import timedelta

import pytest

from journeyman.core.api.objects import NAMESPACE
from journeyman.errors import ConfigurationError, ForbiddenError, UnknownClusterError
from journeyman.kube.access import eks
from journeyman.kube.access.ack import AckCluster
from journeyman.kube.access.cce import CceCluster
from journeyman.kube.clusters import ClusterRegistry, read_clusters, registered
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman.runtime.access_providers import ALIBABA_VARIABLES, HUAWEI_VARIABLES, Sessions, access_providers
from journeyman.runtime.adapters import SystemClock
from journeyman.signing import Credentials
from journeyman_simulator.clock import VirtualClock
from tests.helpers import ack, cce
from tests.helpers.ack import FakeAck
from tests.helpers.cce import FakeCce
from tests.helpers.eks import OTHER_ACCOUNT, eks_accounts
from tests.helpers.signed_api import served

pytestmark = pytest.mark.xdist_group("control-plane")

KEYS = {
    **dict(zip(ALIBABA_VARIABLES, (ack.KEY, ack.SECRET, ack.TOKEN), strict=True)),
    **dict(zip(HUAWEI_VARIABLES, (cce.KEY, cce.SECRET, cce.TOKEN), strict=True)),
}
CLUSTERS = """[
  {"name": "frankfurt", "region": "eu-central-1"},
  {"name": "zurich", "region": "eu-central-1"},
  {"name": "ohio", "region": "us-east-2", "access": {
     "kind": "eks", "roleArn": "arn:aws:iam::111122223333:role/journeyman-ohio", "externalId": "e-1", "endpoint": "public"}},
  {"name": "gone", "region": "eu-central-1"},
  {"name": "hidden", "region": "eu-central-1", "access": {"kind": "eks", "endpoint": "public"}},
  {"name": "hangzhou", "region": "cn-hangzhou", "access": {"kind": "ack", "clusterId": "%(ack)s", "api": "%(ack_api)s"}},
  {"name": "beijing", "region": "cn-north-4", "access": {
     "kind": "cce", "clusterId": "%(cce)s", "projectId": "%(project)s", "api": "%(cce_api)s"}}
]"""


class Issuer:
    """Issues certificates of the control plane for the fake clouds. `lifetime`, if set, is that of the next certificate."""

    def __init__(self, plane):
        self._plane, self.certificate = plane, plane.ca_file
        self.lifetime = None

    def issue(self, user, groups, lifetime):
        lifetime, self.lifetime = self.lifetime or lifetime, None
        return self._plane.certificate_for(user, groups, lifetime)


class Deployment:
    """The settings of clusters on three clouds, all of which have the same API server."""

    def __init__(self, plane, opened, environment):
        clock = SystemClock()
        self.issuer = Issuer(plane)
        self.accounts = opened.enter_context(eks_accounts())
        for name, value in self.accounts.variables.items():
            environment.setenv(name, value)
        self.accounts.add_cluster("frankfurt", plane.server, plane.ca_file)
        self.accounts.add_cluster("zurich", plane.server, plane.ca_file)
        self.accounts.add_cluster("ohio", plane.server, plane.ca_file, account=OTHER_ACCOUNT, region="us-east-2")
        self.accounts.add_cluster(
            "hidden", plane.server, plane.ca_file, resources_vpc_config={"endpointPublicAccess": False, "endpointPrivateAccess": True}
        )  # fmt: skip
        self.ack = FakeAck(self.issuer, plane.server, clock, groups=["system:masters"])
        self.cce = FakeCce(self.issuer, plane.server, clock, public_server=plane.server, groups=["system:masters"])
        text = CLUSTERS % {
            "ack": ack.CLUSTER,
            "ack_api": opened.enter_context(served(self.ack)),
            "cce": cce.CLUSTER,
            "project": cce.PROJECT,
            "cce_api": opened.enter_context(served(self.cce)),
        }
        self._opened, self._plane = opened, plane
        self._clusters = registered(read_clusters(text))

    def connect(self, name):
        sessions = Sessions()  # new providers: tokens that are signed within the same second are equal
        variables = {**KEYS, "_HANDLER": "sweep.lambda_handler"}
        registry = ClusterRegistry(
            self._clusters,
            access_providers(
                SystemClock(), variables, sessions.of, lambda c: eks.describe(c.name, sessions.of(c).client("eks"))
            ),
        )
        connection = registry.connect(name)
        transport = Transport(connection, cluster=name)
        self._opened.callback(transport.close)
        return connection, HttpKubeStore(transport)

    def accept_token(self, connection, name):
        """Add the connection's token to the API server with the user that the authenticator returns, as EKS does."""
        token = connection.authorization()
        user, groups = self.accounts.review(token, name)
        self._plane.accept(token.removeprefix("Bearer "), user, groups)


@pytest.fixture(scope="module")
def deployment(control_plane):
    """Return the settings for all tests; each test opens new connections."""
    with ExitStack() as opened, pytest.MonkeyPatch.context() as environment:
        yield Deployment(control_plane, opened, environment)


def namespaces(store):
    return [item.metadata.name for item in store.list(NAMESPACE).items]


@pytest.mark.parametrize("name", ["hangzhou", "beijing"])
def test_cluster_accepts_the_issued_certificate(deployment, name):
    """The cloud verifies the signature, the API server the client certificate, and the client the server's."""
    _, store = deployment.connect(name)
    assert "kube-system" in namespaces(store)


@pytest.mark.parametrize("name", ["hangzhou", "beijing"])
def test_expired_certificate_is_replaced(deployment, name):
    """It may expire while a sandbox is frozen: one run fails, the next one gets a new certificate."""
    deployment.issuer.lifetime = timedelta(minutes=-1)
    _, store = deployment.connect(name)
    with pytest.raises((ForbiddenError, ConfigurationError)):
        namespaces(store)
    _, store = deployment.connect(name)
    assert "kube-system" in namespaces(store)


def who_am_i(transport):
    answer = transport.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=b"{}")
    return json.loads(answer)["status"]["userInfo"]["username"]


@pytest.mark.parametrize("cloud", ["ack", "cce"])
def test_api_server_sees_the_renewed_certificate(control_plane, cloud):
    """That holds for one transport, whose earlier connections would still be open."""
    clock = VirtualClock(SystemClock().now())
    fake = (FakeAck if cloud == "ack" else FakeCce)(Issuer(control_plane), control_plane.server, clock, user="before")
    key = Credentials(
        **dict(zip(("access_key_id", "access_key_secret", "security_token"), keys_of(cloud), strict=True))
    )
    with served(fake) as api:
        if cloud == "ack":
            connection = AckCluster(ack.CLUSTER, "cn-hangzhou", lambda: key, clock, api=api).connect()
        else:
            connection = CceCluster(cce.CLUSTER, cce.PROJECT, "r", lambda: key, clock, private=True, api=api).connect()
        transport = Transport(connection)
        assert who_am_i(transport) == "before"
        fake.user = "after"
        assert who_am_i(transport) == "before"

        clock.advance(timedelta(hours=20).total_seconds())
        assert who_am_i(transport) == "after"
        transport.close()


def keys_of(cloud):
    module = ack if cloud == "ack" else cce
    return module.KEY, module.SECRET, module.TOKEN


def test_role_without_an_access_entry_gets_the_command_that_creates_one(deployment):
    """401 means that the role has no access entry."""
    _, own = deployment.connect("zurich")
    with pytest.raises(ForbiddenError) as caught:
        namespaces(own)
    assert caught.value.context["cluster"] == "zurich"
    assert (
        "aws eks create-access-entry --cluster-name zurich --region eu-central-1 "
        "--principal-arn arn:aws:sts::123456789012:user/moto --kubernetes-groups journeyman-sweep"
    ) in caught.value.context["to_do"]

    _, assumed = deployment.connect("ohio")
    with pytest.raises(ForbiddenError) as caught:
        namespaces(assumed)
    to_do = caught.value.context["to_do"]
    assert (
        "--cluster-name ohio --region us-east-2 --principal-arn arn:aws:iam::111122223333:role/journeyman-ohio" in to_do
    )
    assert to_do.endswith("journeyman-provision journeyman-terminate journeyman-consolidate journeyman-interrupt journeyman-sweep journeyman-api")  # fmt: skip


def test_eks_cluster_accepts_a_role_with_an_access_entry(deployment):
    """The functions' role calls DescribeCluster and signs a token, which authenticator and RBAC accept."""
    own = "arn:aws:sts::123456789012:user/moto"
    deployment.accounts.entries[own] = ["system:masters"]
    connection, store = deployment.connect("frankfurt")
    deployment.accept_token(connection, "frankfurt")
    assert "kube-system" in namespaces(store)


def test_cluster_of_another_account_and_region_is_reached_with_its_role(deployment):
    """STS returns the role's credentials, and the authenticator sees the role."""
    role = "arn:aws:iam::111122223333:role/journeyman-ohio"
    deployment.accounts.entries[role] = ["system:masters"]
    connection, store = deployment.connect("ohio")
    deployment.accept_token(connection, "ohio")
    assert "kube-system" in namespaces(store)


def test_role_without_rights_gets_the_groups_to_map(deployment):
    """403 means that its groups have no ClusterRoles: the chart is missing, or the entry has other groups."""
    role = "arn:aws:iam::111122223333:role/journeyman-ohio"
    deployment.accounts.entries[role] = ["nobody-bound-this"]
    connection, store = deployment.connect("ohio")
    deployment.accept_token(connection, "ohio")
    with pytest.raises(ForbiddenError) as caught:
        namespaces(store)

    assert "aws eks update-access-entry --cluster-name ohio" in caught.value.context["to_do"]
    assert "infra/chart" in caught.value.context["to_do"]


def test_error_of_one_cluster_has_its_name_and_others_are_reached(deployment):
    """The cluster is deleted, has no such endpoint, or is unknown."""
    for name, kind, message in (
        ("gone", UnknownClusterError, "there is no EKS cluster gone"),
        ("hidden", ConfigurationError, "EKS cluster hidden has no public endpoint"),
        ("typo", UnknownClusterError, "cluster 'typo' is not registered here"),
    ):
        with pytest.raises(kind, match=message) as caught:
            deployment.connect(name)
        assert caught.value.context["cluster"] == name

    assert "kube-system" in namespaces(deployment.connect("beijing")[1])
