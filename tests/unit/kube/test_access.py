"""Access to a cluster by kubeconfig, by service account in a pod, and to EKS."""

import base64
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
import requests
import yaml
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from kubernetes.config import kube_config
from moto import mock_aws

from journeyman.core.api.objects import NAMESPACE
from journeyman.errors import CloudUnavailableError, ConfigurationError, ForbiddenError, UnknownClusterError
from journeyman.kube.access import eks
from journeyman.kube.access.in_cluster import in_cluster, server_of
from journeyman.kube.access.kubeconfig import from_kubeconfig, read_kubeconfig
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman_simulator.clock import VirtualClock
from tests.helpers.fakes import failing


@pytest.fixture
def clock():
    return VirtualClock(datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc))


@pytest.fixture
def session():
    """Return a session of an AWS account with one EKS cluster, `prod`."""
    with mock_aws():
        session = boto3.Session(
            aws_access_key_id="AKIAEXAMPLE", aws_secret_access_key="example", region_name="eu-central-1"
        )
        session.client("eks").create_cluster(
            name="prod", roleArn="arn:aws:iam::123456789012:role/eks", resourcesVpcConfig={"subnetIds": []}
        )
        yield session


def namespaces(connection):
    transport = Transport(connection)
    try:
        return [item.metadata.name for item in HttpKubeStore(transport).list(NAMESPACE).items]
    finally:
        transport.close()


def a_kubeconfig(tmp_path, front, token="secret", **changes):
    """Write a kubeconfig for the server, with changes of its cluster, and return its path."""
    authority = base64.b64encode(front.authority).decode()
    cluster = {"server": front.url, "certificate-authority-data": authority, **changes}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {key: value for key, value in cluster.items() if value is not None}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "dev", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "dev",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def described_by(front, **more):
    """Return what EKS says of a cluster with this API server."""
    authority = base64.b64encode(front.authority).decode()
    return {"endpoint": front.url, "certificateAuthority": {"data": authority}, **more}


def test_kubeconfig_has_address_authority_and_token(tmp_path, tls_front):
    """`tls-server-name` is the certificate's, as for a server behind a tunnel."""
    path = a_kubeconfig(tmp_path, tls_front)
    assert "kube-system" in namespaces(from_kubeconfig(path))
    assert "kube-system" in namespaces(from_kubeconfig(path, "dev"))
    assert set(tls_front.tokens) == {"secret"}
    other_name = {"server": tls_front.url.replace("127.0.0.1", "localhost"), "tls-server-name": "127.0.0.1"}
    assert "kube-system" in namespaces(from_kubeconfig(a_kubeconfig(tmp_path, tls_front, **other_name)))
    with pytest.raises(ForbiddenError, match="Unauthorized"):
        namespaces(from_kubeconfig(a_kubeconfig(tmp_path, tls_front, token="wrong")))


def test_kubeconfig_that_turns_off_verification_is_refused(tmp_path, tls_front):
    """Any server that answers would get the token; the error says what to do instead."""
    unverified = {"certificate-authority-data": None}
    with pytest.raises(ConfigurationError, match="certificate is not trusted"):
        namespaces(from_kubeconfig(a_kubeconfig(tmp_path, tls_front, **unverified)))
    path = a_kubeconfig(tmp_path, tls_front, **unverified, **{"insecure-skip-tls-verify": True})
    with pytest.raises(ConfigurationError, match="insecure-skip-tls-verify") as caught:
        from_kubeconfig(path)
    assert "certificate-authority-data" in caught.value.context["to_do"]
    assert caught.value.context["path"] == path


def test_repr_of_a_kubeconfig_has_no_secret():
    """It may be in a log line or a stack trace."""
    secret = base64.b64encode(b"-----BEGIN PRIVATE KEY-----").decode()
    document = {
        "clusters": [{"name": "a", "cluster": {"server": "https://a", "certificate-authority-data": secret}}],
        "users": [{"name": "u", "user": {"client-certificate-data": secret, "client-key-data": secret}}],
        "contexts": [{"name": "c", "context": {"cluster": "a", "user": "u"}}],
        "current-context": "c",
    }
    kubeconfig = read_kubeconfig(document)

    assert secret not in repr(kubeconfig.users)
    assert "PRIVATE" not in repr(kubeconfig.entry())


def test_unusable_kubeconfig_is_named(tmp_path, tls_front, monkeypatch):
    absent, present = str(tmp_path / "absent"), a_kubeconfig(tmp_path, tls_front)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", absent)
    for given, named in (
        ((absent, ""), {"path": absent, "context": "current"}),
        (("", ""), {"path": "KUBECONFIG", "context": "current"}),
        ((present, "prod"), {"path": present, "context": "prod"}),
    ):
        with pytest.raises(ConfigurationError, match="kubeconfig cannot be used") as caught:
            from_kubeconfig(*given)
        assert caught.value.context == named


@pytest.mark.parametrize(
    ("context", "changes", "message"),
    [
        ("other", {}, "the kubeconfig has no context 'other', only: c, d"),
        ("d", {}, "the kubeconfig has no cluster 'b', only: a"),
        ("c", {"users": []}, "the kubeconfig has no user 'u', only: none"),
        ("c", {"users": [{"name": "u", "user": {"client-certificate-data": "QQ=="}}]}, "client-key-data is missing"),
        (
            "c",
            {"clusters": [{"name": "a", "cluster": {"server": "https://a"}}]},
            "certificate-authority-data is missing",
        ),
    ],
)
def test_incomplete_kubeconfig_of_a_cloud_is_an_error_with_what_it_lacks(context, changes, message):
    """It is read without the kubernetes package; the current context is used unless another one is named."""
    document = {
        "clusters": [{"name": "a", "cluster": {"server": "https://a", "certificate-authority-data": "QQ=="}}],
        "users": [{"name": "u", "user": {"client-certificate-data": "QQ==", "client-key-data": "QQ=="}}],
        "contexts": [
            {"name": "c", "context": {"cluster": "a", "user": "u"}},
            {"name": "d", "context": {"cluster": "b", "user": "u"}},
        ],
    }
    assert read_kubeconfig({**document, "current-context": "c"}).entry().server == "https://a"
    with pytest.raises(ValueError, match=message):
        read_kubeconfig({**document, **changes}).entry(context)


def test_eks_token_is_a_presigned_sts_request(session, clock):
    """The cluster's name is signed, and STS accepts the request."""
    header = eks.EksToken("prod", session, clock)()
    prefix, _, encoded = header.partition("k8s-aws-v1.")
    assert prefix == "Bearer "
    assert "=" not in encoded
    url = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    parts = urlsplit(url)
    query = {key: values[0] for key, values in parse_qs(parts.query).items()}
    assert parts.hostname == "sts.eu-central-1.amazonaws.com"
    assert query["Action"] == "GetCallerIdentity"
    assert query["X-Amz-SignedHeaders"] == "host;x-k8s-aws-id"
    assert query["X-Amz-Expires"] == "60"
    assert "eu-central-1/sts/aws4_request" in query["X-Amz-Credential"]
    answer = requests.get(url, headers={"x-k8s-aws-id": "prod"}, timeout=5)
    assert "<Account>123456789012</Account>" in answer.text


class RotatingSession:
    """A session whose credentials change at each read, as a role's do over time."""

    region_name = "cn-north-1"

    def __init__(self):
        self.asked = 0

    def get_credentials(self):
        self.asked += 1
        return Credentials(f"AKIA{self.asked}", "secret", "session-token")

    def get_partition_for_region(self, region):
        return "aws-cn" if region.startswith("cn-") else "aws"


def test_eks_token_is_renewed_before_it_expires(clock):
    token = eks.EksToken("prod", RotatingSession(), clock)
    first = token()
    clock.advance(9 * 60 - 1)
    assert token() == first
    clock.advance(1)
    second = token()
    assert second != first
    url = base64.urlsafe_b64decode(second.removeprefix("Bearer k8s-aws-v1.") + "==").decode()
    assert "AKIA2" in url
    assert urlsplit(url).hostname == "sts.cn-north-1.amazonaws.com.cn"


def test_eks_cluster_accepts_the_token(session, clock, tls_front):
    """Endpoint and CA are from DescribeCluster. One that is not active has no endpoint, or an invalid CA, as in moto."""
    assert "kube-system" in namespaces(eks.connect("prod", session, clock, described=described_by(tls_front)))
    assert tls_front.tokens[-1].startswith("k8s-aws-v1.")
    with pytest.raises(ConfigurationError, match=r"has no endpoint \(status CREATING\)"):
        eks.connect("prod", session, clock, described={"status": "CREATING"})
    with pytest.raises(ConfigurationError, match="the CA of EKS cluster prod cannot be read"):
        eks.connect("prod", session, clock)
    with pytest.raises(UnknownClusterError, match="there is no EKS cluster staging") as caught:
        eks.connect("staging", session, clock)
    assert caught.value.context["region"] == "eu-central-1"


@pytest.mark.parametrize(
    ("wanted", "enabled", "setting", "advice"),
    [
        ("public", "private", "endpointPublicAccess", "run the functions in its VPC"),
        ("private", "public", "endpointPrivateAccess", "set the endpoint to public"),
    ],
)
def test_disabled_endpoint_is_an_error_before_a_request_times_out(
    session, clock, tls_front, wanted, enabled, setting, advice
):
    """Both endpoints have one DNS name, whose addresses would not respond."""
    network = {"endpointPublicAccess": True, "endpointPrivateAccess": True, setting: False}
    described = described_by(tls_front, resourcesVpcConfig=network)
    with pytest.raises(ConfigurationError, match=f"EKS cluster prod has no {wanted} endpoint") as caught:
        eks.connect("prod", session, clock, described=described, endpoint=wanted)

    remedy = caught.value.context["to_do"]
    assert remedy.startswith(advice)
    assert f"--name prod --region eu-central-1 --resources-vpc-config {setting}=true" in remedy
    for endpoint in ("any", enabled):
        assert eks.connect("prod", session, clock, described=described, endpoint=endpoint).server == tls_front.url


def test_cluster_without_access_entries_is_switched_first(session):
    """CONFIG_MAP was once the only authentication mode."""
    described = {"accessConfig": {"authenticationMode": "CONFIG_MAP"}}
    commands = eks.remedy(401, "prod", session, described, groups=["journeyman-sweep"])

    switch, _, entry = commands.partition("; then ")
    assert (
        "aws eks update-cluster-config --name prod --region eu-central-1 --access-config authenticationMode=API_AND_CONFIG_MAP"
        in switch
    )
    assert entry.startswith(
        "aws eks create-access-entry --cluster-name prod --region eu-central-1 --principal-arn arn:aws:"
    )
    assert entry.endswith("--kubernetes-groups journeyman-sweep")


def test_refused_token_is_not_used_again(session, clock, tls_front):
    """The credentials that signed it may have expired."""
    connection = eks.connect("prod", session, clock, described=described_by(tls_front))
    first, signed_at = connection.authorization(), datetime.now(timezone.utc)  # noqa: TID251 - botocore uses the real time
    connection.explain_refusal(403, "no right")
    assert connection.authorization() == first

    connection.explain_refusal(401, "Unauthorized")
    while datetime.now(timezone.utc) < signed_at + timedelta(seconds=1):  # noqa: TID251 - as above
        time.sleep(0.05)
    assert connection.authorization() != first


@pytest.mark.parametrize(
    ("code", "operation", "kind", "message"),
    [
        ("AccessDenied", "AssumeRole", ConfigurationError, "the role of EKS cluster prod may not be assumed"),
        ("AccessDeniedException", "DescribeCluster", ConfigurationError, "may not be described"),
        ("ExpiredTokenException", "DescribeCluster", CloudUnavailableError, "EKS does not describe cluster prod"),
        ("ServerException", "DescribeCluster", CloudUnavailableError, "EKS does not describe cluster prod"),
        ("ResourceNotFoundException", "DescribeCluster", UnknownClusterError, "there is no EKS cluster prod"),
    ],
)
def test_each_aws_error_has_its_own_message(code, operation, kind, message):
    """A role that may not be assumed has another remedy than a cluster that may not be described."""
    refused = failing(ClientError({"Error": {"Code": code, "Message": "not authorized"}}, operation))
    client = SimpleNamespace(meta=SimpleNamespace(region_name="us-east-2"), describe_cluster=refused)
    with pytest.raises(kind, match=message) as caught:
        eks.describe("prod", client)

    assert caught.value.context["call"] == ("sts:AssumeRole" if operation == "AssumeRole" else "eks:DescribeCluster")
    assert caught.value.context["region"] == "us-east-2"


@pytest.mark.parametrize(
    ("credentials", "region", "missing"),
    [(None, "eu-central-1", "credentials"), (Credentials("AKIA", "secret"), None, "region")],
)
def test_missing_credentials_or_region_are_an_error(clock, credentials, region, missing):
    """The error names the problem, and does not come from the signer."""
    session = SimpleNamespace(region_name=region, get_credentials=lambda: credentials)

    with pytest.raises(ConfigurationError, match=f"there are no AWS {missing} to reach EKS cluster prod with"):
        eks.EksToken("prod", session, clock)()


def test_pod_reaches_its_cluster_with_its_service_account(tmp_path, tls_front):
    """The environment has the address; the token's file is read for each request, because kubelet renews it."""
    address = urlsplit(tls_front.url)
    variables = {"KUBERNETES_SERVICE_HOST": address.hostname, "KUBERNETES_SERVICE_PORT": str(address.port)}
    (tmp_path / "ca.crt").write_bytes(tls_front.authority)
    (tmp_path / "token").write_text("old\n")
    connection = in_cluster(variables, tmp_path)
    with pytest.raises(ForbiddenError):
        namespaces(connection)

    (tmp_path / "token").write_text("secret\n")
    assert "kube-system" in namespaces(connection)


@pytest.mark.parametrize(
    ("host", "server"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_pod_environment_has_addresses_of_both_families(host, server):
    """kubelet sets IPv6 addresses without brackets."""
    assert server_of({"KUBERNETES_SERVICE_HOST": host}) == server


@pytest.mark.parametrize(
    ("variables", "has_token", "missing"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False, "token does not exist"),
        ({}, True, "KUBERNETES_SERVICE_HOST is not set"),
    ],
)
def test_process_that_is_in_no_pod_learns_what_is_missing(tmp_path, variables, has_token, missing):
    """A pod may run without its service account's token, and a user's shell has neither."""
    if has_token:
        (tmp_path / "token").write_text("secret")
    with pytest.raises(ConfigurationError, match=f"does not run in a pod with a service account: .*{missing}"):
        in_cluster(variables, tmp_path)


SDKS = "kubernetes boto3 botocore yaml requests cryptography"


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("transport json_decoding access.in_cluster", f"{SDKS} pydantic numpy google journeyman.core"),
        ("http_store access.eks lease access.kubeconfig access.in_cluster access.ack access.cce", SDKS),
    ],
    ids=["the forwarder runs within 64 MiB", "a cold start would take a second more"],
)
def test_access_to_clusters_imports_no_sdk(modules, heavy):
    """Nor do functions import the kubernetes package."""
    imports = ", ".join(f"journeyman.kube.{name}" for name in modules.split())
    prefixes = tuple(f"{name}." for name in heavy.split())
    code = f"import sys, {imports}; print([m for m in sys.modules if f'{{m}}.'.startswith({prefixes})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
