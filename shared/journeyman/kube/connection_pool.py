"""How one API server is reached (`Connection`), the pool of connections to it, and their TLS contexts."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

import urllib3
from msgspec import Struct
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.util.ssl_ import ALPN_PROTOCOLS

# What `ssl.create_default_context` sets since Python 3.13.
_STRICT: Final = ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT if sys.version_info >= (3, 13) else 0


class SharedTlsContext(ssl.SSLContext):
    """A client context that several threads may use at once; `client_context` makes one.

    urllib3 sets the ALPN protocols of a context again for each connection. OpenSSL does not allow that while another thread
    begins a handshake with the same context: it then sends a malformed ClientHello, and API servers answer with the alert
    "decode error". So this class ignores changes to protocols that are set already.
    """

    _protocols: tuple[str, ...] = ()

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        """Set the protocols, unless they are the same as before."""
        protocols = tuple(alpn_protocols)
        if protocols != self._protocols:
            super().set_alpn_protocols(protocols)
            self._protocols = protocols


def client_context(*, ca_file: str = "", ca_data: str | bytes = "") -> SharedTlsContext:
    """Return a context that verifies servers as `ssl.create_default_context` does.

    Args:
        ca_file: PEM certificates of the authorities to trust.
        ca_data: The same as text, or as DER; without both, the system's authorities are trusted.

    Raises:
        OSError: The certificates cannot be read (`ssl.SSLError` is one).
    """
    context = SharedTlsContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= _STRICT
    if ca_file or ca_data:
        context.load_verify_locations(cafile=ca_file or None, cadata=ca_data or None)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    context.set_alpn_protocols(ALPN_PROTOCOLS)
    return context


IDLE_SECONDS: Final = 60.0
"""Connections that were idle for longer may be dead: kube-apiserver closes them after 90 s, NAT gateways forget them after some
minutes, and a Lambda sandbox that was frozen meanwhile notices neither."""

_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # seconds, seconds, probes
_SOCKET_OPTIONS: Final = [
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), n) for name, n in _KEEPALIVE.items() if hasattr(socket, name)),
]
"""A watch on a connection that died silently is noticed within a minute, and not only at the watch's timeout."""


def _anonymous() -> str:
    return ""


class Connection(Struct, frozen=True, kw_only=True):
    """Address, trust and identity for one API server; `access` makes them.

    Attributes:
        server: The API server's URL.
        ssl_context: None trusts the system's authorities.
        authorization: Returns the Authorization header, before each request; an empty text sends none.
        assert_hostname: The name to verify the server's certificate against, if it is not the URL's.
        current_ssl_context: Returns the TLS context before each request, where a client certificate in it is renewed;
            connections made with an earlier context are closed.
        explain_refusal: Takes the HTTP status (401 or 403) and the API server's message, and returns what to do about it.
    """

    server: str
    ssl_context: SharedTlsContext | None = None
    authorization: Callable[[], str] = _anonymous
    assert_hostname: str = ""
    current_ssl_context: Callable[[], SharedTlsContext] | None = None
    explain_refusal: Callable[[int, str], str] | None = None


class ConnectionPool(urllib3.PoolManager):
    """A pool of connections to one server.

    A renewed TLS context gets new connections. Connections of the earlier context are closed, and so are those that were
    idle for a while: a write that is lost on a dead connection could not be repeated safely.

    Args:
        connection: Address, trust and identity.
        size: Connections to keep open, for as many threads.
        timeout: For requests without a timeout of their own.
        idle_seconds: Connections that were idle for longer are closed.
    """

    def __init__(
        self, connection: Connection, *, size: int, timeout: urllib3.Timeout, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        tls: dict[str, Any] = {}
        if connection.server.startswith("https"):
            tls["ssl_context"] = connection.ssl_context or client_context()
        if connection.assert_hostname:
            tls |= {"assert_hostname": connection.assert_hostname, "server_hostname": connection.assert_hostname}
        self._server = connection.server
        self._current_ssl_context = connection.current_ssl_context
        self._idle_seconds = idle_seconds
        self._used_at = 0.0
        super().__init__(num_pools=1, maxsize=size, timeout=timeout, socket_options=_SOCKET_OPTIONS, **tls)

    @cached_property
    def is_private(self) -> bool:
        """Whether the server has private addresses only; False if its name does not resolve."""
        try:
            found = socket.getaddrinfo(urlsplit(self._server).hostname, None)
        except OSError:
            return False
        return not any(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_global for *_, address in found)

    def connection_from_host(
        self, host: str | None, port: int | None = None, scheme: str | None = "http", pool_kwargs: Any = None
    ) -> HTTPConnectionPool:
        """Return the connections to use now. The TLS context is part of urllib3's key for them."""
        now = time.time()  # monotonic clocks stand still while a Lambda sandbox is frozen
        if now - self._used_at > self._idle_seconds:
            self.clear()
        self._used_at = now
        if self._current_ssl_context is not None:
            pool_kwargs = {**(pool_kwargs or {}), "ssl_context": self._current_ssl_context()}
        return super().connection_from_host(host, port, scheme, pool_kwargs)
