"""Connects to registered clusters: an access provider for each kind of access, and boto3 sessions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from journeyman.core.plan import Step
from journeyman.errors import ConfigurationError
from journeyman.kube.access.in_cluster import in_cluster
from journeyman.kube.clusters import (
    AccessProvider,
    AckAccess,
    CceAccess,
    EksAccess,
    InClusterAccess,
    KubeconfigAccess,
    RegisteredCluster,
)
from journeyman.kube.connection_pool import Connection
from journeyman.ports import Clock

if TYPE_CHECKING:
    import boto3

    from journeyman.signing import Credentials

Variables = Mapping[str, str]
_GROUP_PREFIX: Final = "journeyman-"
GROUPS: Final = tuple(f"{_GROUP_PREFIX}{name}" for name in (*(step.value for step in Step), "api"))

# id, secret and token of an access key, as Function Compute sets them and as Huawei Cloud's SDK reads them
ALIBABA_VARIABLES: Final = (
    "ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_SECURITY_TOKEN",
)  # fmt: skip
HUAWEI_VARIABLES: Final = ("HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "HUAWEICLOUD_SDK_SECURITY_TOKEN")


def access_providers(
    clock: Clock,
    variables: Variables,
    sessions: Callable[[RegisteredCluster], boto3.Session],
    describe: Callable[[RegisteredCluster], Mapping[str, Any]],
) -> dict[type[Struct], AccessProvider]:
    """Return the access provider for each kind of access, for a `ClusterRegistry`.

    Args:
        clock: Decides when tokens and certificates are renewed.
        variables: The environment, read again for each request to Alibaba Cloud and Huawei Cloud.
        sessions: Returns the session for an EKS cluster: credentials and region.
        describe: Returns the response of EKS's DescribeCluster for a cluster.
    """

    def connect_eks(cluster: RegisteredCluster, access: EksAccess) -> Connection:
        from journeyman.kube.access import eks  # noqa: PLC0415 - only AWS has its SDK

        return eks.connect(
            cluster.name,
            sessions(cluster),
            clock,
            described=describe(cluster),
            endpoint=access.endpoint,
            role_arn=access.role_arn,
            groups=_groups(function_name(variables), access),
        )

    return {EksAccess: connect_eks, **own_access_providers(clock, variables)}


def own_access_providers(
    clock: Clock,
    variables: Variables,
    *,
    ack: Callable[[], Credentials] | None = None,
    cce: Callable[[], Credentials] | None = None,
) -> dict[type[Struct], AccessProvider]:
    """Return the access provider for each kind of access but EKS, which needs AWS's SDK.

    Args:
        clock: Decides when certificates are renewed.
        variables: The environment, read again for each request to Alibaba Cloud and Huawei Cloud.
        ack: Returns the access key for ACK; by default that in the variables.
        cce: Returns the access key for CCE; by default that in the variables.
    """

    def connect_ack(cluster: RegisteredCluster, access: AckAccess) -> Connection:
        from journeyman.kube.access.ack import AckCluster  # noqa: PLC0415 - 10 ms of a cold start without such clusters

        private = access.endpoint == "private"
        credentials = ack or _credentials(variables, ALIBABA_VARIABLES)
        return AckCluster(
            access.cluster_id,
            cluster.region,
            credentials,
            clock,
            private=private,
            minutes=access.minutes,
            api=access.api,
        ).connect()

    def connect_cce(cluster: RegisteredCluster, access: CceAccess) -> Connection:
        from journeyman.kube.access.cce import CceCluster  # noqa: PLC0415 - as above

        private = access.endpoint == "private"
        credentials = cce or _credentials(variables, HUAWEI_VARIABLES)
        return CceCluster(
            access.cluster_id,
            access.project_id,
            cluster.region,
            credentials,
            clock,
            private=private,
            days=access.days,
            api=access.api,
        ).connect()

    def connect_by_kubeconfig(_: RegisteredCluster, access: KubeconfigAccess) -> Connection:
        from journeyman.kube.access.kubeconfig import from_kubeconfig  # noqa: PLC0415 - as above

        return from_kubeconfig(access.path, access.context)

    def connect_by_service_account(_: RegisteredCluster, __: InClusterAccess) -> Connection:
        return in_cluster(variables)

    return {
        AckAccess: connect_ack,
        CceAccess: connect_cce,
        KubeconfigAccess: connect_by_kubeconfig,
        InClusterAccess: connect_by_service_account,
    }


def function_name(variables: Variables) -> str:
    """Return the name of the function that runs here, after which its handler's module is named; empty outside of Lambda."""
    name = variables.get("_HANDLER", "").partition(".")[0]
    return name if f"{_GROUP_PREFIX}{name}" in GROUPS else ""


def _groups(function: str, access: EksAccess) -> tuple[str, ...]:
    """Return the groups of the access entry, as the chart names them: those of all functions if they share a role."""
    is_own_role = function and (not access.role_arn or access.role_arn.endswith(f"-{function}"))
    return (f"{_GROUP_PREFIX}{function}",) if is_own_role else GROUPS


def _credentials(variables: Variables, names: tuple[str, str, str]) -> Callable[[], Credentials]:
    """Return a function that reads the access key, which changes with the role's credentials. It raises ConfigurationError."""

    def read() -> Credentials:
        from journeyman.signing import Credentials  # noqa: PLC0415 - only ACK and CCE clusters need it

        key, secret, token = (variables.get(name, "") for name in names)
        if not key or not secret:
            raise ConfigurationError(
                f"access key is missing: {names[0]} and {names[1]} are not set",
                to_do="give the function a role, or set these variables",
            )
        return Credentials(access_key_id=key, access_key_secret=secret, security_token=token)

    return read


class Sessions:
    """boto3 sessions by region and role, each created when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[tuple[str, str, str], boto3.Session] = {}

    def of(self, cluster: RegisteredCluster) -> boto3.Session:
        """Return the session for a cluster's region and role."""
        access = cluster.access
        role, external_id = (access.role_arn, access.external_id) if isinstance(access, EksAccess) else ("", "")
        key = (cluster.region, role, external_id)
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = new_session(*key)
            return self._sessions[key]


def new_session(region: str, role_arn: str = "", external_id: str = "") -> boto3.Session:
    """Return a session with the process's own role, or with another that it assumes."""
    import boto3  # noqa: PLC0415 - a simulation with its own clients does without
    from botocore import session  # noqa: PLC0415 - likewise

    from journeyman.cloud.aws.timestamps import with_fast_timestamps  # noqa: PLC0415 - likewise

    core = _assuming(region, role_arn, external_id) if role_arn else session.get_session()
    return boto3.Session(botocore_session=with_fast_timestamps(core), region_name=region)


def _assuming(region: str, role_arn: str, external_id: str) -> Any:
    """Return a botocore session that assumes a role when it is first needed, and renews the credentials."""
    from botocore import config, credentials, session  # noqa: PLC0415 - as in `new_session`

    own, assumed = session.get_session(), session.get_session()
    # without a route to STS, botocore's default timeouts add up to minutes
    quick = config.Config(connect_timeout=2, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 2})
    external = {"ExternalId": external_id} if external_id else {}
    fetcher = credentials.AssumeRoleCredentialFetcher(
        client_creator=lambda service, **options: own.create_client(
            service, **{"region_name": region, "config": quick, **options}
        ),
        source_credentials=own.get_credentials(),
        role_arn=role_arn,
        extra_args={"RoleSessionName": "journeyman", **external},
    )

    class Provider(credentials.CredentialProvider):
        METHOD = "journeyman-role"

        def load(self) -> Any:
            return credentials.DeferredRefreshableCredentials(
                method=self.METHOD, refresh_using=fetcher.fetch_credentials
            )

    assumed.register_component("credential_provider", credentials.CredentialResolver([Provider()]))
    return assumed
