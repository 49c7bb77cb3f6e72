"""Access to an EKS cluster: DescribeCluster returns its endpoint, a presigned STS request is the bearer token.

The token is the URL of an sts:GetCallerIdentity request, signed over the cluster's name (header `x-k8s-aws-id`); the cluster's
authenticator sends that request. A token is valid for 15 minutes after it was signed, or until the credentials that signed it
expire.

The cluster must know the IAM role: an *access entry* maps it to Kubernetes groups, which the chart's ClusterRoles are bound to.
template.yaml creates the entries of its own cluster. For other clusters a user creates them, with the command in the error
for a refused role (`remedy`).

Restates: aws-iam-authenticator `pkg/token/token.go` `GetWithSTS`.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from journeyman.errors import CloudUnavailableError, ConfigurationError, JourneymanError, UnknownClusterError
from journeyman.kube.connection_pool import Connection, client_context
from journeyman.ports import Clock

if TYPE_CHECKING:
    import boto3

TOKEN_PREFIX: Final = "k8s-aws-v1."  # noqa: S105 - a public prefix, not a secret
_URL_LIFETIME_SECONDS: Final = 60  # the authenticator expects it in X-Amz-Expires, and accepts the token for 15 minutes
_REFRESH_AFTER: Final = timedelta(minutes=9)
"""botocore may hand out a role's credentials with ten minutes left (`_mandatory_refresh_timeout`), and the token expires with them."""

Endpoint = Literal["any", "public", "private"]
_SETTINGS: Final[Mapping[Endpoint, str]] = {"public": "endpointPublicAccess", "private": "endpointPrivateAccess"}


def connect(
    cluster: str,
    session: boto3.Session,
    clock: Clock,
    *,
    described: Mapping[str, Any] | None = None,
    endpoint: Endpoint = "any",
    role_arn: str = "",
    groups: Sequence[str] = (),
) -> Connection:
    """Return the connection to an EKS cluster of the session's account and region.

    Args:
        cluster: The EKS cluster's name.
        session: Credentials and region. Needs eks:DescribeCluster, and an access entry in the cluster.
        clock: Decides when the token is renewed.
        described: What `describe` returned, if it was called already.
        endpoint: Which endpoint must exist. Both have the same DNS name, which resolves to private addresses inside the VPC.
        role_arn: The role of the session's credentials, if known.
        groups: The Kubernetes groups that the access entry should name.

    Raises:
        UnknownClusterError: There is no such cluster.
        ConfigurationError: The session may not describe the cluster, or the cluster does not have that endpoint (yet).
        CloudUnavailableError: EKS does not answer.
    """
    described = described if described is not None else describe(cluster, session.client("eks"))
    try:
        authority = base64.b64decode(described["certificateAuthority"]["data"]).decode()
        context = client_context(ca_data=authority)
        server = described["endpoint"]
    except KeyError as error:
        raise ConfigurationError(
            f"EKS cluster {cluster} has no endpoint (status {described.get('status', 'unknown')})",
            cluster=cluster,
            to_do="wait until the cluster is ACTIVE",
        ) from error
    except (ValueError, OSError) as error:  # of base64, UTF-8, OpenSSL
        raise ConfigurationError(f"the CA of EKS cluster {cluster} cannot be read: {error}", cluster=cluster) from error
    _check_endpoint(cluster, session.region_name, described, endpoint)
    token = EksToken(cluster, session, clock)

    def explain_refusal(status: int, _message: str) -> str:
        if status == 401:
            token.forget()
        return remedy(status, cluster, session, described, role_arn=role_arn, groups=groups)

    return Connection(server=server, ssl_context=context, authorization=token, explain_refusal=explain_refusal)


class EksToken:
    """The Authorization header for one EKS cluster, renewed before it expires; safe to use from several threads."""

    def __init__(self, cluster: str, session: boto3.Session, clock: Clock) -> None:
        self._cluster = cluster
        self._session = session
        self._clock = clock
        self._lock = threading.Lock()
        self._header = ""
        self._renew_at: datetime | None = None

    def __call__(self) -> str:
        """Return `Bearer …`. Raises ConfigurationError or CloudUnavailableError if the session has no credentials."""
        with self._lock:
            now = self._clock.now()
            if self._renew_at is None or now >= self._renew_at:
                url = _presigned(self._cluster, self._session)
                token = base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
                self._header = f"Bearer {TOKEN_PREFIX}{token}"
                self._renew_at = now + _REFRESH_AFTER
            return self._header

    def forget(self) -> None:
        """Forget the token, because the cluster refuses it; the next call signs a new one."""
        with self._lock:
            self._renew_at = None


def describe(cluster: str, client: Any) -> dict[str, Any]:
    """Return `cluster` of EKS's DescribeCluster; `client` is boto3's. Raises as `connect` does."""
    with _translated_errors(cluster, client.meta.region_name, "eks:DescribeCluster"):
        described: dict[str, Any] = client.describe_cluster(name=cluster)["cluster"]
        return described


def remedy(
    status: int,
    cluster: str,
    session: boto3.Session,
    described: Mapping[str, Any],
    *,
    role_arn: str = "",
    groups: Sequence[str] = (),
) -> str:
    """Return the command to run when the cluster answers 401 (unknown role) or 403 (missing permission).

    Args:
        status: 401 or 403.
        cluster: The EKS cluster's name.
        session: STS returns its role if `role_arn` is empty.
        described: What `describe` returned.
        role_arn: The role that was assumed, if one was.
        groups: The Kubernetes groups that the access entry should name.
    """
    region = f"--region {session.region_name}"
    principal = f"--principal-arn {role_arn or _own_role(session)} --kubernetes-groups {' '.join(groups)}"
    entry = f"--cluster-name {cluster} {region} {principal}"
    if status == 403:
        return (
            "the chart binds these groups to the ClusterRoles of the steps (helm upgrade --install journeyman infra/chart); "
            f"map the role to them: aws eks update-access-entry {entry}"
        )
    create = f"aws eks create-access-entry {entry}"
    if (described.get("accessConfig") or {}).get("authenticationMode") == "CONFIG_MAP":
        switch = f"aws eks update-cluster-config --name {cluster} {region} --access-config authenticationMode=API_AND_CONFIG_MAP"
        return f"the cluster has no access entry for this role, and its authentication mode does not allow one yet: {switch}; then {create}"
    return f"the cluster has no access entry for this role: {create}"


def _check_endpoint(cluster: str, region: str, described: Mapping[str, Any], endpoint: Endpoint) -> None:
    network = described.get("resourcesVpcConfig") or {}
    setting = _SETTINGS.get(endpoint, "")
    if setting and not network.get(setting, True):
        advice = "run the functions in its VPC (VpcSubnetIds)" if endpoint == "public" else "set the endpoint to public"
        raise ConfigurationError(
            f"EKS cluster {cluster} has no {endpoint} endpoint",
            cluster=cluster,
            to_do=f"{advice}, or: aws eks update-cluster-config --name {cluster} --region {region} --resources-vpc-config {setting}=true",
        )


def _presigned(cluster: str, session: boto3.Session) -> str:
    """Return the signed URL of sts:GetCallerIdentity for this cluster; nothing is sent."""
    from botocore.auth import SigV4QueryAuth  # noqa: PLC0415 - imported on AWS only
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415 - same

    region = session.region_name
    with _translated_errors(cluster, region, "sts:AssumeRole"):  # a role's credentials are renewed here
        credentials = session.get_credentials()
        frozen = credentials.get_frozen_credentials() if credentials is not None else None
    if frozen is None or not region:
        missing = "credentials" if frozen is None else "region"
        raise ConfigurationError(f"there are no AWS {missing} to reach EKS cluster {cluster} with", cluster=cluster)
    suffix = "amazonaws.com.cn" if session.get_partition_for_region(region) == "aws-cn" else "amazonaws.com"
    url = f"https://sts.{region}.{suffix}/?Action=GetCallerIdentity&Version=2011-06-15"
    request = AWSRequest(method="GET", url=url, headers={"x-k8s-aws-id": cluster})
    SigV4QueryAuth(frozen, "sts", region, expires=_URL_LIFETIME_SECONDS).add_auth(request)
    return str(request.url)


def _own_role(session: boto3.Session) -> str:
    """Return the ARN of the credentials' role, from STS, which leaves out the role's path."""
    from botocore.config import Config  # noqa: PLC0415 - needed after a refusal only
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - same

    quick = Config(connect_timeout=2, read_timeout=3, retries={"total_max_attempts": 1})
    try:
        arn = str(session.client("sts", config=quick).get_caller_identity()["Arn"])
    except (BotoCoreError, ClientError):
        return "<ARN of the function's role>"
    prefix, _, name = arn.partition(":assumed-role/")
    return f"{prefix.replace(':sts:', ':iam:')}:role/{name.partition('/')[0]}" if name else arn


@contextmanager
def _translated_errors(cluster: str, region: str, call: str) -> Iterator[None]:
    """Translate botocore's errors."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - imported on AWS only

    context: dict[str, Any] = {"cluster": cluster, "region": region, "call": call}
    try:
        yield
    except ClientError as error:
        raise _refusal(cluster, error.response["Error"], error.operation_name, context) from error
    except BotoCoreError as error:
        raise CloudUnavailableError(f"AWS did not answer for EKS cluster {cluster}: {error}", **context) from error


def _refusal(cluster: str, error: Mapping[str, Any], operation: str, context: Mapping[str, Any]) -> JourneymanError:
    code, message = error["Code"], error.get("Message", "")
    if code == "ResourceNotFoundException":
        return UnknownClusterError(f"there is no EKS cluster {cluster} in this account and region", **context)
    if code.startswith(("AccessDenied", "Unrecognized", "InvalidClientToken")):
        if operation == "AssumeRole":
            return ConfigurationError(
                f"the role of EKS cluster {cluster} may not be assumed: {message}",
                to_do="its trust policy must name the functions' roles (and the external id), its path be /journeyman/, and its account be one of the "
                "parameter ClusterAccounts; or name it in ClusterRoleArns",
                **{**context, "call": "sts:AssumeRole"},
            )
        return ConfigurationError(f"EKS cluster {cluster} may not be described: {message}", **context)
    return CloudUnavailableError(f"EKS does not describe cluster {cluster}: {code} {message}", **context)
