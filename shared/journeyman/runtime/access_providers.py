"""How this process reaches registered clusters: what each kind of access needs, with the credentials found here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from journeyman.core.plan import Step
from journeyman.errors import ConfigurationError
from journeyman.kube import access, eks
from journeyman.kube.connection import Connection
from journeyman.kube.registry import (
    AckAccess,
    CceAccess,
    Cluster,
    EksAccess,
    InClusterAccess,
    KubeconfigAccess,
    Way,
)
from journeyman.ports import Clock
from journeyman.signing.credentials import Credentials

if TYPE_CHECKING:
    import boto3

Variables = Mapping[str, str]
_GROUP_PREFIX: Final = "journeyman-"
GROUPS: Final = tuple(f"{_GROUP_PREFIX}{name}" for name in (*(step.value for step in Step), "api"))

# id, secret, token of a temporary key: what Function Compute sets, and what Huawei Cloud's own SDK reads
ALIBABA_VARIABLES: Final = (
    "ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_SECURITY_TOKEN",
)  # fmt: skip
HUAWEI_VARIABLES: Final = ("HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "HUAWEICLOUD_SDK_SECURITY_TOKEN")


def ways(
    clock: Clock,
    variables: Variables,
    sessions: Callable[[Cluster], boto3.Session],
    described: Callable[[Cluster], Mapping[str, Any]],
) -> dict[type[Struct], Way]:
    """Every kind of access, for a `Registry`.

    Args:
        clock: Decides when tokens and certificates are renewed.
        variables: The environment, read again for each request to Alibaba Cloud and Huawei Cloud.
        sessions: The credentials and region for an EKS cluster.
        described: What EKS says of a cluster.
    """

    def by_eks(cluster: Cluster, how: EksAccess) -> Connection:
        return eks.connect(
            cluster.name,
            sessions(cluster),
            clock,
            described=described(cluster),
            endpoint=how.endpoint,
            role_arn=how.role_arn,
            groups=_groups(variables.get("_HANDLER", ""), how),
        )

    def by_ack(cluster: Cluster, how: AckAccess) -> Connection:
        from journeyman.kube.ack import Ack  # noqa: PLC0415 - 10 ms of a cold start without such clusters

        private = how.endpoint == "private"
        asked = _credentials(variables, ALIBABA_VARIABLES)
        return Ack(
            how.cluster_id, cluster.region, asked, clock, private=private, minutes=how.minutes, api=how.api
        ).connect()

    def by_cce(cluster: Cluster, how: CceAccess) -> Connection:
        from journeyman.kube.cce import Cce  # noqa: PLC0415 - as above

        private = how.endpoint == "private"
        asked = _credentials(variables, HUAWEI_VARIABLES)
        return Cce(
            how.cluster_id, how.project_id, cluster.region, asked, clock, private=private, days=how.days, api=how.api
        ).connect()

    def by_kubeconfig(_: Cluster, how: KubeconfigAccess) -> Connection:
        return access.from_kubeconfig(how.path, how.context)

    def in_cluster(_: Cluster, __: InClusterAccess) -> Connection:
        return access.in_cluster()

    return {
        EksAccess: by_eks,
        AckAccess: by_ack,
        CceAccess: by_cce,
        KubeconfigAccess: by_kubeconfig,
        InClusterAccess: in_cluster,
    }


def _groups(handler: str, how: EksAccess) -> tuple[str, ...]:
    """The groups of an access entry, as the chart has them: a role that is assumed serves all functions, else each has its own.

    Args:
        handler: As Lambda tells it (`_HANDLER`): the name of its module is the step's.
        how: Whether a role is assumed.
    """
    own = f"{_GROUP_PREFIX}{handler.partition('.')[0]}"
    return (own,) if own in GROUPS and not how.role_arn else GROUPS


def _credentials(variables: Variables, names: tuple[str, str, str]) -> Callable[[], Credentials]:
    """Reads an access key at each call, as a function's role gets new ones. The call raises ConfigurationError."""

    def read() -> Credentials:
        key, secret, token = (variables.get(name, "") for name in names)
        if not key or not secret:
            raise ConfigurationError(
                f"there is no access key: {names[0]} and {names[1]} are not set",
                to_do="give the function a role; elsewhere set them",
            )
        return Credentials(access_key_id=key, access_key_secret=secret, security_token=token)

    return read


class Sessions:
    """boto3 sessions: the process's own in each region, and those of roles that it assumes. Made once, when needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str, str], boto3.Session] = {}

    def of(self, cluster: Cluster) -> boto3.Session:
        """The session for a cluster's region and role."""
        how = cluster.access
        role, external_id = (how.role_arn, how.external_id) if isinstance(how, EksAccess) else ("", "")
        key = (cluster.region, role, external_id)
        with self._lock:
            if key not in self._made:
                self._made[key] = new_session(*key)
            return self._made[key]


def new_session(region: str, role_arn: str = "", external_id: str = "") -> boto3.Session:
    """A session in the process's own role, or in another that it assumes."""
    import boto3  # noqa: PLC0415 - a simulation with its own clients does without
    from botocore import session  # noqa: PLC0415 - likewise

    from journeyman.cloud.aws.response_parser import with_fast_answers  # noqa: PLC0415 - likewise

    core = _assuming(region, role_arn, external_id) if role_arn else session.get_session()
    return boto3.Session(botocore_session=with_fast_answers(core), region_name=region)


def _assuming(region: str, role_arn: str, external_id: str) -> Any:
    """A botocore session in another role, whose credentials are fetched when first needed and renewed by themselves."""
    from botocore import config, credentials, session  # noqa: PLC0415 - as in `new_session`

    own, assumed = session.get_session(), session.get_session()
    # in a VPC without a way to STS, botocore would wait for minutes
    quick = config.Config(connect_timeout=2, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 2})
    external = {"ExternalId": external_id} if external_id else {}
    fetcher = credentials.AssumeRoleCredentialFetcher(
        client_creator=lambda service, **given: own.create_client(
            service, **{"region_name": region, "config": quick, **given}
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
