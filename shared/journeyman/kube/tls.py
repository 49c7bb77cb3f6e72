"""TLS contexts for connections to API servers."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterable
from typing import Final

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
