"""EKS and STS as HTTP servers (moto), and a token authenticator that knows a cluster's access entries."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import moto.sts.models  # noqa: F401 - imported with the real clock; during a simulation it would keep the virtual one
import requests
from moto.eks.models import eks_backends
from moto.moto_server.werkzeug_app import MotoRequestHandler
from moto.server import ThreadedMotoServer

OWN_ACCOUNT, OTHER_ACCOUNT = "123456789012", "111122223333"


class EksAccounts:
    """Two accounts with clusters and their access entries.

    Args:
        url: moto's address.

    Attributes:
        entries: The Kubernetes groups of each IAM role, by the role's ARN.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.entries: dict[str, Sequence[str]] = {}

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment of a function in the first account."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "example",
            "AWS_REGION": "eu-central-1",
        }

    def add_cluster(
        self,
        name: str,
        server: str,
        ca_file: Path,
        *,
        account: str = OWN_ACCOUNT,
        region: str = "eu-central-1",
        **described: Any,
    ) -> None:
        """Create a cluster in an account and region with the address of a real API server.

        Args:
            name: The cluster's name.
            server: The API server's address.
            ca_file: The API server's authority.
            account: The account's id.
            region: The cluster's region.
            **described: Other fields of DescribeCluster's response.
        """
        session = boto3.Session(**self._credentials(account), region_name=region)
        client = session.client("eks", endpoint_url=self.url)
        client.create_cluster(name=name, roleArn=f"arn:aws:iam::{account}:role/eks", resourcesVpcConfig={})
        record = eks_backends[account][region].clusters[name]
        record.endpoint = server
        record.certificate_authority = {"data": base64.b64encode(ca_file.read_bytes()).decode()}
        for field, value in described.items():
            setattr(record, field, value)

    def _credentials(self, account: str) -> Mapping[str, str]:
        """Return an account's credentials; for the second account by AssumeRole, from which moto derives the account."""
        own = {"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "example"}
        if account == OWN_ACCOUNT:
            return own
        sts = boto3.client("sts", endpoint_url=self.url, region_name="eu-central-1", **own)
        role = f"arn:aws:iam::{account}:role/admin"
        given = sts.assume_role(RoleArn=role, RoleSessionName="admin")["Credentials"]
        return {
            "aws_access_key_id": given["AccessKeyId"],
            "aws_secret_access_key": given["SecretAccessKey"],
            "aws_session_token": given["SessionToken"],
        }

    def review(self, header: str, cluster: str) -> tuple[str, Sequence[str]] | None:
        """Return the token's user and groups; None if the token is invalid or has no access entry.

        As aws-iam-authenticator does: the token is a signed STS request, which this sends with the cluster's name in a header.
        """
        encoded = header.removeprefix("Bearer k8s-aws-v1.")
        url = urlsplit(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode())
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if query["X-Amz-SignedHeaders"] != "host;x-k8s-aws-id" or not (url.hostname or "").startswith("sts."):
            return None
        named = f"AWS4-HMAC-SHA256 Credential={query['X-Amz-Credential']}"  # moto reads service and account from it
        headers = {"x-k8s-aws-id": cluster, "Authorization": named}
        answer = requests.get(f"{self.url}/?{url.query}", headers=headers, timeout=10)
        arn = answer.text.partition("<Arn>")[2].partition("</Arn>")[0]
        prefix, _, name = arn.partition(":assumed-role/")
        role = f"{prefix.replace(':sts:', ':iam:')}:role/{name.partition('/')[0]}" if name else arn
        return (arn, self.entries[role]) if role in self.entries else None


@contextmanager
def eks_accounts() -> Iterator[EksAccounts]:
    """Serve two empty accounts inside the context."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    requests.post(f"{url}/moto-api/reset", timeout=10)
    try:
        yield EksAccounts(url)
    finally:
        requests.post(f"{url}/moto-api/reset", timeout=10)
        server.stop()
        if "protocol_version" in vars(MotoRequestHandler):
            del MotoRequestHandler.protocol_version  # werkzeug sets it; MotoAccount must set its own
