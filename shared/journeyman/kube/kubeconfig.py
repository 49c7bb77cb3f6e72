"""A kubeconfig that a cloud hands out: who is in it, and the TLS context that speaks for them.

`access` reads the files of people, with all that kubectl knows. A cloud's answer holds certificates and nothing else, so
reading it takes no more than this.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T")


class _Server(Struct, frozen=True, rename="kebab"):
    server: str
    certificate_authority_data: str = ""


class _User(Struct, frozen=True, rename="kebab"):
    client_certificate_data: str = ""
    client_key_data: str = ""


class _NamedServer(Struct, frozen=True):
    name: str
    cluster: _Server


class _NamedUser(Struct, frozen=True):
    name: str
    user: _User


class _Context(Struct, frozen=True):
    cluster: str
    user: str


class _NamedContext(Struct, frozen=True):
    name: str
    context: _Context


class Entry(Struct, frozen=True, kw_only=True):
    """One context: a server, what its certificate is checked against, and a client's certificate and key; all PEM."""

    server: str
    authority: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"Entry(server={self.server!r})"  # the key is secret


class Kubeconfig(Struct, frozen=True, rename="kebab"):
    """The parts of a kubeconfig that lead to a cluster."""

    clusters: tuple[_NamedServer, ...]
    users: tuple[_NamedUser, ...]
    contexts: tuple[_NamedContext, ...]
    current_context: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The contexts that there are."""
        return tuple(named.name for named in self.contexts)

    def server(self, context: str) -> str:
        """The address in a context; empty if there is no such context. Raises ValueError if it names no cluster."""
        if context not in self.names:
            return ""
        return self._server(self._context(context)).server

    def entry(self, context: str = "") -> Entry:
        """What a context says; the current one by default.

        Raises:
            ValueError: There is no such context, or something in it is missing or not base64.
        """
        chosen = self._context(context or self.current_context)
        server = self._server(chosen)
        user = _named(chosen.user, [(named.name, named.user) for named in self.users], "user")
        return Entry(
            server=server.server,
            authority=_decoded(server.certificate_authority_data, "certificate-authority-data"),
            certificate=_decoded(user.client_certificate_data, "client-certificate-data"),
            key=_decoded(user.client_key_data, "client-key-data"),
        )

    def _context(self, name: str) -> _Context:
        return _named(name, [(named.name, named.context) for named in self.contexts], "context")

    def _server(self, context: _Context) -> _Server:
        return _named(context.cluster, [(named.name, named.cluster) for named in self.clusters], "cluster")


def read_kubeconfig(document: Any) -> Kubeconfig:
    """A decoded document (of JSON or YAML) as a kubeconfig. Raises ValueError if it is none."""
    return msgspec.convert(document, Kubeconfig)  # msgspec.ValidationError is a ValueError


def tls_context(entry: Entry) -> ssl.SSLContext:
    """A context that trusts the entry's authority alone and shows its certificate.

    Raises:
        ValueError: A certificate or the key cannot be read, or they do not belong together.
    """
    # OpenSSL reads certificates and keys from files alone: this one is ours only, and is gone when it has been read.
    with tempfile.NamedTemporaryFile(prefix="journeyman-") as file:
        file.write(entry.certificate.rstrip() + b"\n" + entry.key)
        file.flush()
        try:
            context = ssl.create_default_context(cadata=entry.authority.decode())
            context.load_cert_chain(file.name)
        except ssl.SSLError as error:
            raise ValueError(f"its certificates and its key cannot be used: {error}") from error
    return context


def _named(wanted: str, pairs: Sequence[tuple[str, T]], kind: str) -> T:
    for name, value in pairs:
        if name == wanted:
            return value
    raise ValueError(f"it has no {kind} {wanted!r}, only {', '.join(name for name, _ in pairs) or 'none at all'}")


def _decoded(text: str, field: str) -> bytes:
    if not text:
        raise ValueError(f"{field} is missing")
    return base64.b64decode(text, validate=True)  # binascii.Error is a ValueError
