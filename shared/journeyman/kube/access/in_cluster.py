"""Access from inside a cluster, as the pod's service account, for the forwarder and for functions that run in a pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from journeyman.errors import ConfigurationError
from journeyman.kube.connection_pool import Connection, client_context

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def in_cluster(variables: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Connection:
    """Return the connection to the cluster that this process runs in.

    Args:
        variables: The environment.
        folder: Where kubelet mounts the service account's token and the cluster's CA certificate.

    Raises:
        ConfigurationError: This process does not run in a pod, or no token is mounted.
    """
    server, token = server_of(variables), folder / "token"
    if not server or not token.exists():
        missing = f"{token} does not exist" if server else "KUBERNETES_SERVICE_HOST is not set"
        raise ConfigurationError(
            f"this process does not run in a pod with a service account: {missing}",
            to_do="run it in a pod with a service account's token, or register the cluster with another kind of access",
        )
    return with_token_file(server, token, ca_file=str(folder / "ca.crt"))


def server_of(variables: Mapping[str, str]) -> str:
    """Return the API server's URL as kubelet passes it to pods; empty outside of a pod."""
    host = variables.get("KUBERNETES_SERVICE_HOST", "")
    bracketed = f"[{host}]" if ":" in host else host
    return f"https://{bracketed}:{variables.get('KUBERNETES_SERVICE_PORT', '443')}" if host else ""


def with_token_file(server: str, token_file: Path | None, *, ca_file: str = "") -> Connection:
    """Return a connection whose token is read from its file before each request, because kubelet renews it.

    Args:
        server: The API server's URL.
        token_file: None sends no token.
        ca_file: The cluster's CA certificate; empty trusts the system's authorities.

    Raises:
        ConfigurationError: The CA certificate cannot be read.
    """
    try:
        context = client_context(ca_file=ca_file) if server.startswith("https") else None
    except OSError as error:
        raise ConfigurationError(f"the CA certificate {ca_file} cannot be read: {error}", server=server) from error
    if token_file is None:
        return Connection(server=server, ssl_context=context)
    return Connection(server=server, ssl_context=context, authorization=_bearer(token_file))


def _bearer(token_file: Path) -> Callable[[], str]:
    def authorization() -> str:
        try:
            return f"Bearer {token_file.read_text().strip()}"
        except OSError as error:
            raise ConfigurationError(f"the service account's token cannot be read: {error}") from error

    return authorization
