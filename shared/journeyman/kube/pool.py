"""The pool of connections to one API server, under the trust and identity that its `Connection` has now."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
import time
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

import urllib3
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.util.ssl_ import ALPN_PROTOCOLS

from journeyman.kube.connection import Connection

IDLE_SECONDS: Final = 60.0
"""After that long a connection may be dead without our knowing: kube-apiserver closes idle ones after 90 s, address
translation forgets them after some minutes, and a sandbox that was frozen meanwhile has heard of neither."""

_telling = threading.Lock()


class Pool(urllib3.PoolManager):
    """A pool manager for one server.

    A renewed TLS context gets new connections; those of the old one are let go, and so are those that nobody has used for
    a while: a write that is lost with a dead one could not be repeated safely.

    Args:
        connection: Address, trust and identity.
        size: Connections kept open, for as many threads.
        timeout: For requests that bring none of their own.
        idle_seconds: After that long nobody trusts a connection any more.
    """

    def __init__(
        self, connection: Connection, *, size: int, timeout: urllib3.Timeout, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        tls: dict[str, Any] = {}
        if connection.ssl_context is not None:
            tls["ssl_context"] = _shareable(connection.ssl_context)
        if connection.assert_hostname:
            tls |= {"assert_hostname": connection.assert_hostname, "server_hostname": connection.assert_hostname}
        self._server = connection.server
        self._renewed_context = connection.renewed_context
        self._idle_seconds = idle_seconds
        self._used_at = 0.0
        super().__init__(num_pools=1, maxsize=size, timeout=timeout, **tls)

    @cached_property
    def is_near(self) -> bool:
        """Whether the server has none but private addresses. False if its name does not resolve: its requests will say so."""
        try:
            found = socket.getaddrinfo(urlsplit(self._server).hostname, None)
        except OSError:
            return False
        return not any(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_global for *_, address in found)

    def connection_from_host(
        self, host: str | None, port: int | None = None, scheme: str | None = "http", pool_kwargs: Any = None
    ) -> HTTPConnectionPool:
        """The connections to use now; the TLS context is part of what tells one set from another."""
        now = time.time()  # the wall's: other clocks stand still while a sandbox is frozen
        if now - self._used_at > self._idle_seconds:
            self.clear()
        self._used_at = now
        if self._renewed_context is not None:
            pool_kwargs = {**(pool_kwargs or {}), "ssl_context": _shareable(self._renewed_context())}
        return super().connection_from_host(host, port, scheme, pool_kwargs)


def _shareable(context: ssl.SSLContext) -> ssl.SSLContext:
    """The context, told once and for all which protocols are spoken over it.

    urllib3 tells it anew for each connection. OpenSSL does not allow that while another thread begins one: what that
    sends then is garbage, to which API servers answer with "alert decode error".
    """
    with _telling:
        if "set_alpn_protocols" not in vars(context):
            context.set_alpn_protocols(ALPN_PROTOCOLS)
            context.set_alpn_protocols = _is_told  # type: ignore[assignment,method-assign]
    return context


def _is_told(_protocols: object) -> None:
    pass
