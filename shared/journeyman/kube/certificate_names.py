"""The names that a server's certificate is for, told where it is not for the one that we call the server by.

OpenSSL ends such a handshake without showing the certificate, so it is asked for once more. Nothing is sent over that
connection, and nothing is believed but what an authority that we trust has signed.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final

from urllib3.connectionpool import ConnectionPool

_SECONDS: Final = 3.0
_HTTPS: Final = 443
_OPENSSL: Final = re.compile(r"(?:Hostname|IP address) mismatch, certificate is not valid for '(?P<ours>[^']*)'")
_URLLIB3: Final = re.compile(r"hostname '(?P<ours>[^']*)' doesn't match (?P<theirs>.*)")
_QUOTED: Final = re.compile(r"'([^']*)'")


def mismatch(told: str, pool: ConnectionPool | None) -> tuple[str, tuple[str, ...]] | None:
    """The name we use and those of the certificate, if they are what `told` is about.

    Args:
        told: What OpenSSL says, or urllib3, which looks itself where a certificate is expected to be for another name.
        pool: The connections to the server.

    Returns:
        None if it is about something else. The certificate's names are empty if they cannot be had.
    """
    if found := _URLLIB3.search(told):
        return found["ours"], tuple(_QUOTED.findall(found["theirs"]))
    if found := _OPENSSL.search(told):
        return found["ours"], _shown(pool) if pool is not None else ()
    return None


def _shown(pool: ConnectionPool) -> tuple[str, ...]:
    given: Any = getattr(pool, "conn_kw", {}).get("ssl_context")
    try:
        with (
            socket.create_connection((pool.host, pool.port or _HTTPS), timeout=_SECONDS) as plain,
            _trusting_as(given).wrap_socket(plain) as secured,
        ):
            shown: Mapping[str, Any] = secured.getpeercert() or {}
            return tuple(name for _, name in shown.get("subjectAltName", ()))
    except OSError:  # ssl.SSLError is one
        return ()


def _trusting_as(given: ssl.SSLContext | None) -> ssl.SSLContext:
    """The same authorities, whatever the name; without one the system's."""
    authorities = given.get_ca_certs(binary_form=True) if given is not None else []
    context = ssl.create_default_context(cadata=b"".join(authorities) or None)
    context.check_hostname = False
    return context
