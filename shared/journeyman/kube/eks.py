"""Access to an EKS cluster from anywhere: DescribeCluster says where it is, a presigned STS request says who we are.

The bearer token is the URL of an sts:GetCallerIdentity request, signed over the cluster's name (header `x-k8s-aws-id`),
which the cluster's authenticator carries out. It is good for 15 minutes from its signature.

Restates: aws-iam-authenticator `pkg/token/token.go` `GetWithSTS`.
"""

from __future__ import annotations

import base64
import ssl
import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from journeyman.errors import CloudUnavailableError, ConfigurationError, UnknownClusterError
from journeyman.kube.connection import Connection
from journeyman.ports import Clock

if TYPE_CHECKING:
    import boto3

TOKEN_PREFIX: Final = "k8s-aws-v1."  # noqa: S105 - a public prefix, not a secret
_URL_LIFETIME_SECONDS: Final = 60  # what the authenticator expects in X-Amz-Expires; it allows 15 minutes all the same
_REFRESH_AFTER: Final = timedelta(minutes=12)


def connect(
    cluster: str, session: boto3.Session, clock: Clock, *, described: Mapping[str, Any] | None = None
) -> Connection:
    """The connection to an EKS cluster of the session's account and region.

    Args:
        cluster: The EKS cluster's name.
        session: Credentials and region. Needs eks:DescribeCluster, and an access entry in the cluster.
        clock: Decides when the token is renewed.
        described: What `describe` said, if it has been asked already.

    Raises:
        UnknownClusterError: There is no such cluster.
        ConfigurationError: It may not be described, or it has no endpoint (yet).
        CloudUnavailableError: EKS does not answer.
    """
    described = described if described is not None else describe(cluster, session.client("eks"))
    try:
        authority = base64.b64decode(described["certificateAuthority"]["data"]).decode()
        trust = ssl.create_default_context(cadata=authority)
        endpoint = described["endpoint"]
    except KeyError as error:
        raise ConfigurationError(
            f"EKS cluster {cluster} has no endpoint (status {described.get('status', 'unknown')})",
            cluster=cluster,
            advice="wait until the cluster is ACTIVE",
        ) from error
    except (ValueError, ssl.SSLError) as error:  # binascii's and UnicodeDecodeError are ValueErrors
        raise ConfigurationError(f"the CA of EKS cluster {cluster} cannot be read: {error}", cluster=cluster) from error
    return Connection(server=endpoint, ssl_context=trust, authorization=EksToken(cluster, session, clock))


class EksToken:
    """The Authorization header for one EKS cluster, renewed before it runs out; safe to use from several threads."""

    def __init__(self, cluster: str, session: boto3.Session, clock: Clock) -> None:
        self._cluster = cluster
        self._session = session
        self._clock = clock
        self._lock = threading.Lock()
        self._header = ""
        self._renew_at: datetime | None = None

    def __call__(self) -> str:
        """`Bearer …`. Raises ConfigurationError if the session has no credentials."""
        with self._lock:
            now = self._clock.now()
            if self._renew_at is None or now >= self._renew_at:
                url = _presigned(self._cluster, self._session)
                token = base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
                self._header = f"Bearer {TOKEN_PREFIX}{token}"
                self._renew_at = now + _REFRESH_AFTER
            return self._header


def _presigned(cluster: str, session: boto3.Session) -> str:
    """The signed URL of sts:GetCallerIdentity for this cluster; computed here, nothing is sent."""
    from botocore.auth import SigV4QueryAuth  # noqa: PLC0415 - only functions on AWS pay for it
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415 - same

    credentials = session.get_credentials()
    region = session.region_name
    if credentials is None or not region:
        missing = "credentials" if credentials is None else "region"
        raise ConfigurationError(f"there are no AWS {missing} to reach EKS cluster {cluster} with", cluster=cluster)
    suffix = "amazonaws.com.cn" if session.get_partition_for_region(region) == "aws-cn" else "amazonaws.com"
    url = f"https://sts.{region}.{suffix}/?Action=GetCallerIdentity&Version=2011-06-15"
    request = AWSRequest(method="GET", url=url, headers={"x-k8s-aws-id": cluster})
    SigV4QueryAuth(credentials.get_frozen_credentials(), "sts", region, expires=_URL_LIFETIME_SECONDS).add_auth(request)
    return str(request.url)


def describe(cluster: str, client: Any) -> dict[str, Any]:
    """What EKS says of a cluster (`cluster` of DescribeCluster); `client` is boto3's. Raises as `connect` does."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - only functions on AWS pay for it

    facts: dict[str, Any] = {"cluster": cluster, "region": client.meta.region_name, "call": "eks:DescribeCluster"}
    try:
        described: dict[str, Any] = client.describe_cluster(name=cluster)["cluster"]
    except ClientError as error:
        code, said = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
        if code == "ResourceNotFoundException":
            raise UnknownClusterError(
                f"there is no EKS cluster {cluster} in this account and region", **facts
            ) from error
        if code.startswith(("AccessDenied", "Unrecognized", "InvalidClientToken", "ExpiredToken")):
            raise ConfigurationError(f"EKS cluster {cluster} may not be described: {said}", **facts) from error
        raise CloudUnavailableError(f"EKS does not describe cluster {cluster}: {code} {said}", **facts) from error
    except BotoCoreError as error:
        raise CloudUnavailableError(f"EKS cannot be asked about cluster {cluster}: {error}", **facts) from error
    return described
