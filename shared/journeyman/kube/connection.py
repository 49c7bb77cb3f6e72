"""How one API server is reached; `access`, `eks`, `ack` and `cce` make it, `transport` uses it."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from msgspec import Struct


def _anonymous() -> str:
    return ""


class Connection(Struct, frozen=True, kw_only=True):
    """Address, trust and identity.

    `server` is a URL; `ssl_context` None means the system's own trust. What runs out is asked for before every request:
    `authorization` gives the Authorization header (an empty text sends none), `renewed_context` the TLS context where a
    client certificate is in it; connections made under an earlier context are let go.

    `refused` is told the HTTP status (401 or 403) and the API server's message when it will not have this identity, and
    gives back what a person can do about it.
    """

    server: str
    ssl_context: ssl.SSLContext | None = None
    authorization: Callable[[], str] = _anonymous
    assert_hostname: str = ""
    renewed_context: Callable[[], ssl.SSLContext] | None = None
    refused: Callable[[int, str], str] | None = None
