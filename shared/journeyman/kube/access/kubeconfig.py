"""Access by a kubeconfig: a user's file, or the one that a cloud issues with a client certificate.

A user's file may use anything that kubectl supports (exec plugins, token refresh), so the `kubernetes` package reads it.
Importing that package takes a third of a second, so functions import it only for clusters that are registered with a kubeconfig.
A cloud's kubeconfig holds certificates only, and is read here.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from journeyman.errors import ConfigurationError
from journeyman.kube.connection_pool import Connection, SharedTlsContext, client_context

if TYPE_CHECKING:
    from kubernetes.client import Configuration

T = TypeVar("T")


def from_kubeconfig(path: str = "", context: str = "") -> Connection:
    """Return the connection to the cluster that a kubeconfig names.

    Args:
        path: The file; empty means KUBECONFIG, then `~/.kube/config`.
        context: The context; empty means the current one.

    Raises:
        ConfigurationError: The file or the context does not exist, or is invalid; or it turns off the verification of the
            server's certificate, which would give the credentials to any machine on the way.
    """
    from kubernetes import client, config  # noqa: PLC0415 - slow, see above

    configuration = client.Configuration()
    try:
        load: Callable[..., None] = config.load_kube_config
        load(path or None, context=context or None, client_configuration=configuration)
    except (config.ConfigException, OSError, ValueError) as error:
        raise ConfigurationError(
            f"the kubeconfig cannot be used: {error}", path=path or "KUBECONFIG", context=context or "current"
        ) from error

    if not configuration.verify_ssl:
        raise ConfigurationError(
            f"the kubeconfig turns off the verification of {configuration.host}'s certificate (insecure-skip-tls-verify)",
            path=path or "KUBECONFIG",
            to_do="put the cluster's CA into certificate-authority-data and remove insecure-skip-tls-verify",
        )

    def authorization() -> str:
        # `auth_settings` refreshes an expiring token
        setting: Mapping[str, Any] = configuration.auth_settings().get("BearerToken") or {}
        return str(setting.get("value") or "")

    return Connection(
        server=configuration.host,
        ssl_context=_context_of(configuration) if configuration.host.startswith("https") else None,
        authorization=authorization,
        assert_hostname=configuration.tls_server_name or "",
    )


def _context_of(configuration: Configuration) -> SharedTlsContext:
    try:
        context = client_context(ca_file=configuration.ssl_ca_cert or "")
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file or None)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(f"the certificates of the kubeconfig cannot be read: {error}") from error
    return context


class _ClusterEntry(Struct, frozen=True, rename="kebab"):
    server: str
    certificate_authority_data: str = ""


class _User(Struct, frozen=True, rename="kebab"):
    client_certificate_data: str = ""
    client_key_data: str = ""

    def __repr__(self) -> str:
        return "_User()"  # the key is secret


class _NamedCluster(Struct, frozen=True):
    name: str
    cluster: _ClusterEntry


class _NamedUser(Struct, frozen=True):
    name: str
    user: _User


class _Context(Struct, frozen=True):
    cluster: str
    user: str


class _NamedContext(Struct, frozen=True):
    name: str
    context: _Context


class KubeconfigEntry(Struct, frozen=True, kw_only=True):
    """One context: the server's URL, its certificate authority, and the client's certificate and key, in PEM."""

    server: str
    authority: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"KubeconfigEntry(server={self.server!r})"  # the key is secret


class Kubeconfig(Struct, frozen=True, rename="kebab"):
    """The clusters, users and contexts of a kubeconfig."""

    clusters: tuple[_NamedCluster, ...]
    users: tuple[_NamedUser, ...]
    contexts: tuple[_NamedContext, ...]
    current_context: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the contexts."""
        return tuple(named.name for named in self.contexts)

    def server(self, context: str) -> str:
        """Return a context's server; empty without such a context. Raises ValueError if the context names no cluster."""
        if context not in self.names:
            return ""
        return self._server(self._context(context)).server

    def entry(self, context: str = "") -> KubeconfigEntry:
        """Return a context, by default the current one.

        Raises:
            ValueError: There is no such context, or a field of it is missing or not base64.
        """
        chosen = self._context(context or self.current_context)
        server = self._server(chosen)
        user = _find(chosen.user, [(named.name, named.user) for named in self.users], "user")
        return KubeconfigEntry(
            server=server.server,
            authority=_decoded(server.certificate_authority_data, "certificate-authority-data"),
            certificate=_decoded(user.client_certificate_data, "client-certificate-data"),
            key=_decoded(user.client_key_data, "client-key-data"),
        )

    def _context(self, name: str) -> _Context:
        return _find(name, [(named.name, named.context) for named in self.contexts], "context")

    def _server(self, context: _Context) -> _ClusterEntry:
        return _find(context.cluster, [(named.name, named.cluster) for named in self.clusters], "cluster")


def read_kubeconfig(document: Any) -> Kubeconfig:
    """Return a document, decoded from JSON or YAML, as a kubeconfig. Raises ValueError if it is not one."""
    return msgspec.convert(document, Kubeconfig)  # msgspec.ValidationError is a ValueError


def tls_context(entry: KubeconfigEntry) -> SharedTlsContext:
    """Return a TLS context that trusts the entry's authority only, and has its client certificate.

    Raises:
        ValueError: A certificate or the key cannot be read, or they do not belong together.
    """
    # OpenSSL reads certificates and keys from files only; this one has mode 0600 and is deleted at once.
    with tempfile.NamedTemporaryFile(prefix="journeyman-") as file:
        file.write(entry.certificate.rstrip() + b"\n" + entry.key)
        file.flush()
        try:
            context = client_context(ca_data=entry.authority.decode())
            context.load_cert_chain(file.name)
        except ssl.SSLError as error:
            raise ValueError(f"the certificates and the key cannot be used: {error}") from error
    return context


def _find(name: str, pairs: Sequence[tuple[str, T]], kind: str) -> T:
    for existing, value in pairs:
        if existing == name:
            return value
    raise ValueError(
        f"the kubeconfig has no {kind} {name!r}, only: {', '.join(existing for existing, _ in pairs) or 'none'}"
    )


def _decoded(text: str, field: str) -> bytes:
    if not text:
        raise ValueError(f"{field} is missing")
    return base64.b64decode(text, validate=True)  # binascii.Error is a ValueError
