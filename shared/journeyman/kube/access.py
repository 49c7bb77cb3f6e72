"""Access by kubeconfig or from inside a cluster, through the `kubernetes` package's configuration.

Importing that package takes over a second, so it happens inside these functions, which no cloud function calls on its
way: a function on AWS comes in through `eks`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from journeyman.errors import ConfigurationError
from journeyman.kube.connection import Connection

if TYPE_CHECKING:
    from kubernetes.client import Configuration


def from_kubeconfig(path: str = "", context: str = "") -> Connection:
    """The cluster that a kubeconfig names; exec plugins and token refresh work as in kubectl.

    Args:
        path: The file; empty means KUBECONFIG, then `~/.kube/config`.
        context: The context; empty means the current one.

    Raises:
        ConfigurationError: The file or the context does not exist or does not make sense.
    """
    from kubernetes import client, config  # noqa: PLC0415 - over a second, see above

    configuration = client.Configuration()
    try:
        load: Callable[..., None] = config.load_kube_config
        load(path or None, context=context or None, client_configuration=configuration)
    except (config.ConfigException, OSError, ValueError) as error:
        raise ConfigurationError(
            f"the kubeconfig cannot be used: {error}", path=path or "KUBECONFIG", context=context or "current"
        ) from error
    return _connection(configuration)


def in_cluster() -> Connection:
    """The cluster this process runs in, as its service account.

    Raises:
        ConfigurationError: This is no pod, or its service account token is not mounted.
    """
    from kubernetes import client, config  # noqa: PLC0415 - over a second, see above

    configuration = client.Configuration()
    try:
        load: Callable[..., None] = config.load_incluster_config
        load(client_configuration=configuration)
    except config.ConfigException as error:
        raise ConfigurationError(
            f"not inside a cluster: {error}",
            to_do="run in a pod with a service account's token, or register the cluster with another kind of access",
        ) from error
    return _connection(configuration)


def _connection(configuration: Configuration) -> Connection:
    def authorization() -> str:
        # runs the refresh hook that the configuration may carry
        setting: Mapping[str, Any] = configuration.auth_settings().get("BearerToken") or {}
        return str(setting.get("value") or "")

    return Connection(
        server=configuration.host,
        ssl_context=_trust(configuration) if configuration.host.startswith("https") else None,
        authorization=authorization,
        assert_hostname=configuration.tls_server_name or "",
    )


def _trust(configuration: Configuration) -> ssl.SSLContext:
    try:
        trust = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
        if configuration.cert_file:
            trust.load_cert_chain(configuration.cert_file, configuration.key_file or None)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(f"the certificates of the kubeconfig cannot be read: {error}") from error
    if not configuration.verify_ssl:
        trust.check_hostname = False
        trust.verify_mode = ssl.CERT_NONE
    return trust
