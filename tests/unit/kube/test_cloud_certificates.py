"""ACK, CCE and kubeconfigs: signed requests, client certificates over TLS, their renewal, and errors with remedies."""

import json
import re
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone

import pytest

from journeyman.core.api.objects import NAMESPACE
from journeyman.errors import (
    CloudUnavailableError,
    ConfigurationError,
    ForbiddenError,
    JourneymanError,
    UnknownClusterError,
)
from journeyman.kube.access.ack import AckCluster
from journeyman.kube.access.cce import CceCluster
from journeyman.kube.access.kubeconfig import from_kubeconfig
from journeyman.kube.connection_pool import Connection, client_context
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman.signing import Credentials
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.http_server import HttpApiServer
from journeyman_simulator.clock import VirtualClock
from tests.controlplane.certificates import Authority
from tests.helpers import ack as fake_ack
from tests.helpers import cce as fake_cce
from tests.helpers.ack import FakeAck
from tests.helpers.cce import FakeCce
from tests.helpers.signed_api import served

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
ALIBABA = Credentials(access_key_id=fake_ack.KEY, access_key_secret=fake_ack.SECRET, security_token=fake_ack.TOKEN)
HUAWEI = Credentials(access_key_id=fake_cce.KEY, access_key_secret=fake_cce.SECRET, security_token=fake_cce.TOKEN)


class TlsCluster:
    """An API server that accepts only clients with a certificate of its authority."""

    def __init__(self, folder, opened):
        self.authority = Authority(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.authority.issue("kube-apiserver"))
        context.load_verify_locations(self.authority.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        self.lets_in = True
        server = ApiServer(VirtualClock(NOW))
        self.url = opened.enter_context(
            HttpApiServer(server, ssl_context=context, authenticate=lambda _token: self.lets_in)
        ).url


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def cluster(tmp_path, opened):
    return TlsCluster(tmp_path, opened)


@pytest.fixture
def clock():
    return VirtualClock(NOW)


def namespaces(transport):
    return [item.metadata.name for item in HttpKubeStore(transport).list(NAMESPACE).items]


def opened_transport(connection, opened):
    transport = Transport(connection)
    opened.callback(transport.close)
    return transport


@pytest.mark.parametrize("has_key_file", [True, False])
def test_client_certificate_of_a_users_kubeconfig_authenticates(tmp_path, cluster, opened, has_key_file):
    """Its key is in a file of its own, or in that of the certificate."""
    certificate, key = cluster.authority.issue("admin")
    user = {"client-certificate": str(certificate)}
    if has_key_file:
        user["client-key"] = str(key)
    else:
        certificate.write_bytes(certificate.read_bytes() + key.read_bytes())
    kubeconfig = {
        "clusters": [
            {
                "name": "c",
                "cluster": {"server": cluster.url, "certificate-authority": str(cluster.authority.certificate)},
            }
        ],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "dev", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "dev",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))

    assert "kube-system" in namespaces(opened_transport(from_kubeconfig(str(tmp_path / "kubeconfig")), opened))


class AnAck:
    """ACK with the interface that tests of both clouds use."""

    credentials = ALIBABA
    lasts = timedelta(minutes=180)
    missing = (404, {"code": "ErrorClusterNotFound", "message": "cluster not found", "requestId": "R-9"})
    denied = (403, {"code": "StatusForbidden", "message": "not authorized", "requestId": "R-9"})
    garbage = (200, {"config": "]["})
    right = "cs:DescribeClusterUserKubeconfig"

    def __init__(self, cluster, clock, opened, **fake):
        self.fake = FakeAck(cluster.authority, fake.pop("public_server", cluster.url), clock, **fake)
        self.clock, self.api = clock, opened.enter_context(served(self.fake))

    def reached(self, cluster_id=fake_ack.CLUSTER, credentials=None, **more):
        asked = credentials or self.credentials
        return AckCluster(cluster_id, "cn-hangzhou", lambda: asked, self.clock, api=self.api, **more)


class ACce(AnAck):
    """CCE with the same interface."""

    credentials = HUAWEI
    lasts = timedelta(days=1)
    missing = (404, {"errorCode": "CCE.01404001", "errorMessage": "Resource not found"})
    denied = (403, {"error_code": "APIGW.0302", "error_msg": "not authorized"})
    garbage = (200, {"kind": "Config"})
    right = "cce:cluster:generateClientCredential"

    def __init__(self, cluster, clock, opened, **fake):
        self.fake = FakeCce(cluster.authority, cluster.url, clock, **{"public_server": cluster.url, **fake})
        self.clock, self.api = clock, opened.enter_context(served(self.fake))

    def reached(self, cluster_id=fake_cce.CLUSTER, credentials=None, **more):
        asked = credentials or self.credentials
        return CceCluster(cluster_id, fake_cce.PROJECT, "cn-north-4", lambda: asked, self.clock, api=self.api, **more)


@pytest.fixture(params=[AnAck, ACce], ids=["ack", "cce"])
def cloud(request, cluster, clock, opened):
    return request.param(cluster, clock, opened)


def test_cluster_rejects_clients_without_a_certificate(cluster, opened):
    """The other tests rely on this behaviour."""
    trust = client_context(ca_file=str(cluster.authority.certificate))
    with pytest.raises(JourneymanError):
        namespaces(opened_transport(Connection(server=cluster.url, ssl_context=trust), opened))


def test_issued_certificate_authenticates_and_is_renewed_when_a_third_of_its_lifetime_is_left(cloud, opened):
    """The cloud accepts the signature. A transport may exist for longer than a certificate is valid."""
    transport = opened_transport(cloud.reached().connect(), opened)
    assert "kube-system" in namespaces(transport)
    cloud.clock.advance(cloud.lasts.total_seconds() * 2 / 3 - 1)
    namespaces(transport)
    assert len(cloud.fake.requests) == 1

    cloud.clock.advance(1)
    assert "kube-system" in namespaces(transport)
    assert len(cloud.fake.requests) == 2


@pytest.mark.parametrize(
    ("expiration", "renewed_after"), [("2026-03-01T13:00:00Z", timedelta(minutes=40)), ("", timedelta(minutes=120))]
)
def test_expiry_that_ack_states_counts_and_else_the_requested_lifetime(
    cluster, clock, opened, expiration, renewed_after
):
    """ACK may issue a certificate for less time than requested; renewed when a third of that is left."""
    cloud = AnAck(cluster, clock, opened)
    cloud.fake.expiration = expiration
    connection = cloud.reached().connect()
    clock.advance(renewed_after.total_seconds() - 1)
    first = connection.current_ssl_context()
    assert first is connection.ssl_context

    clock.advance(1)
    assert connection.current_ssl_context() is not first


def test_valid_certificate_is_used_while_the_cloud_is_unreachable(cloud, opened):
    """The client tries the renewal each minute; an expired certificate is a retryable error."""
    transport = opened_transport(cloud.reached().connect(), opened)
    cloud.fake.failing = (503, {"code": "ServiceUnavailable"})
    cloud.clock.advance(cloud.lasts.total_seconds() * 0.7)
    for _ in range(3):
        assert "kube-system" in namespaces(transport)
    assert len(cloud.fake.requests) == 2
    cloud.clock.advance(61)
    namespaces(transport)
    assert len(cloud.fake.requests) == 3

    cloud.clock.advance_to(NOW + cloud.lasts - timedelta(seconds=1))
    assert "kube-system" in namespaces(transport)
    cloud.clock.advance(1)
    with pytest.raises(CloudUnavailableError) as caught:
        namespaces(transport)
    assert caught.value.retryable


def test_each_cloud_error_has_its_own_message(cloud):
    """The cases are a wrong secret, an unknown cluster, a missing permission, an invalid response and no response."""
    wrong = Credentials(access_key_id=cloud.credentials.access_key_id, access_key_secret="x", security_token="y")
    with pytest.raises(ConfigurationError) as caught:
        cloud.reached(credentials=wrong).connect()
    assert cloud.right in caught.value.context["to_do"]
    assert cloud.fake.requests == []

    reached = cloud.reached()
    cloud.fake.failing = cloud.missing
    with pytest.raises(UnknownClusterError, match="there is no"):
        reached.connect()
    cloud.fake.failing = cloud.denied
    with pytest.raises(ConfigurationError, match="not authorized") as caught:
        reached.connect()
    assert cloud.right in caught.value.context["to_do"]
    cloud.fake.failing = cloud.garbage
    with pytest.raises(ConfigurationError, match="cannot be used"):
        reached.connect()
    cloud.api = "http://127.0.0.1:9"
    with pytest.raises(CloudUnavailableError, match="does not answer"):
        cloud.reached().connect()


NO_JSON = b"<html>bad gateway</html>"


@pytest.mark.parametrize(
    ("made", "status", "body", "kind", "said"),
    [
        (AnAck, 400, {"code": "ErrorClusterNotFound", "message": "gone"}, UnknownClusterError, "ErrorClusterNotFound: gone"),
        (AnAck, 404, NO_JSON, UnknownClusterError, "HTTP 404: <html>bad gateway"),
        (AnAck, 400, {"code": "Throttling.User", "message": "wait"}, CloudUnavailableError, "Throttling.User: wait"),
        (AnAck, 429, {}, CloudUnavailableError, "HTTP 429: "),
        (AnAck, 500, NO_JSON, CloudUnavailableError, "HTTP 500: <html>bad gateway"),
        (ACce, 400, {"errorCode": "CCE.01404001", "errorMessage": "gone"}, UnknownClusterError, "CCE.01404001: gone"),
        (ACce, 404, {"error_code": "APIGW.0101", "error_msg": "no API"}, UnknownClusterError, "APIGW.0101: no API"),
        (ACce, 404, NO_JSON, UnknownClusterError, "HTTP 404: <html>bad gateway"),
        (ACce, 429, {"error_code": "APIGW.0308", "error_msg": "wait"}, CloudUnavailableError, "APIGW.0308: wait"),
        (ACce, 500, {}, CloudUnavailableError, "HTTP 500: "),
    ],
)  # fmt: skip
def test_error_of_a_cloud_is_told_apart_by_its_status_or_its_code(
    cluster, clock, opened, made, status, body, kind, said
):
    """Throttling and failures of the cloud are retryable; a load balancer in front of it sends no JSON."""
    cloud = made(cluster, clock, opened)
    cloud.fake.failing = (status, body)
    with pytest.raises(kind, match=re.escape(said)):
        cloud.reached().connect()


def test_refused_certificate_is_replaced_in_the_next_run(cloud, cluster, opened):
    """It was revoked, or the cluster was restored with a new authority."""
    transport = opened_transport(cloud.reached().connect(), opened)
    cluster.lets_in = False
    with pytest.raises(ForbiddenError) as caught:
        namespaces(transport)
    assert "requests a new one" in caught.value.context["to_do"]

    cluster.lets_in = True
    assert "kube-system" in namespaces(transport)
    assert len(cloud.fake.requests) == 2


def test_missing_right_comes_with_the_command_that_grants_it(cloud):
    """The command sets the user in the chart's values."""
    message = 'pods is forbidden: User "1efbc2fd" cannot list resource "pods" in API group ""'
    remedy = cloud.reached().connect().explain_refusal(403, message)

    assert "helm upgrade journeyman infra/chart --reuse-values" in remedy
    assert "--set access.everyStep[0].kind=User --set access.everyStep[0].name=1efbc2fd" in remedy


def test_ack_returns_the_requested_address(cluster, clock, opened):
    cloud = AnAck(cluster, clock, opened, public_server="", private_server=cluster.url)

    assert "kube-system" in namespaces(opened_transport(cloud.reached(private=True).connect(), opened))
    assert cloud.fake.requests[-1].parameters == {"PrivateIpAddress": "true", "TemporaryDurationMinutes": "180"}
    with pytest.raises(ConfigurationError, match="has no public address") as caught:
        cloud.reached().connect()
    assert '"endpoint": "private"' in caught.value.context["to_do"]


@pytest.mark.parametrize("verified", [False, True])
def test_public_address_of_cce_is_verified(verified, cluster, clock, opened):
    """Although CCE's kubeconfig turns verification off, the authority and the internal name are verified."""
    public = cluster.url.replace("127.0.0.1", "localhost" if verified else "127.0.0.2")
    inside = cluster.url
    cloud = ACce(cluster, clock, opened, public_server=public, verified=verified)
    connection = cloud.reached().connect()

    assert (connection.server, connection.assert_hostname) == (public, "" if verified else "127.0.0.1")
    assert connection.ssl_context.verify_mode is ssl.CERT_REQUIRED
    assert cloud.reached(private=True).connect().server == inside


def test_public_address_of_cce_must_have_the_internal_name(cluster, clock, opened):
    """A certificate without that name is of another server. Without an address the remedy is the VPC, or to bind one."""
    cloud = ACce(cluster, clock, opened)
    assert "kube-system" in namespaces(opened_transport(cloud.reached().connect(), opened))

    cloud.fake.server = cluster.url.replace("127.0.0.1", "10.0.0.1")
    with pytest.raises(JourneymanError, match=r"certificate is not for '10\.0\.0\.1' but for"):
        namespaces(opened_transport(cloud.reached().connect(), opened))
    with pytest.raises(ConfigurationError, match="has no public address") as caught:
        ACce(cluster, clock, opened, public_server="").reached().connect()
    assert "elastic IP" in caught.value.context["to_do"]
