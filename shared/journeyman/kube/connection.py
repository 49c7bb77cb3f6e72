"""How one API server is reached; `access` and `eks` make it, `transport` uses it."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from msgspec import Struct


def _anonymous() -> str:
    return ""


class Connection(Struct, frozen=True, kw_only=True):
    """Address, trust and identity.

    `server` is a URL; `ssl_context` None means the system's own trust. `authorization` is asked before every request
    for the Authorization header (an empty text sends none), so that it may refresh a token that runs out.
    """

    server: str
    ssl_context: ssl.SSLContext | None = None
    authorization: Callable[[], str] = _anonymous
    assert_hostname: str = ""
