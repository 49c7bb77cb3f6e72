"""The HTTPS sink: posts to Journeyman's API with a projected service account token, read from its file before each message.

The kubelet renews the token after four fifths of its lifetime. The token's only audience is the receiver, so the API server does
not accept it for requests. The receiver has the cluster that the message names review the token.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError

from infra.forwarder.forwarder import SendError
from infra.forwarder.notifications import NotifiedStep

_ADVICE: Final = {
    401: "check the token's audience, the service account's name, and that the cluster is registered there",
    404: "check RECEIVER_URL",
}


class HttpsSink:
    """Posts messages.

    Args:
        url: The receiver's URL for this cluster.
        token_file: The file with the projected token.
        ca_file: The CA certificates to trust; the system's if empty.
    """

    name: Final = "https"

    def __init__(self, url: str, token_file: Path, *, ca_file: str = "") -> None:
        self._url = url
        self._token_file = token_file
        self._pool = _pool(url, {"ca_certs": ca_file} if ca_file else {})

    def send(self, step: NotifiedStep, body: str, message_id: str) -> None:
        """Send one message; the step is in the body. Raises SendError."""
        try:
            token = self._token_file.read_text().strip()
        except OSError as error:
            raise SendError(f"the token for {self._url} cannot be read: {error}") from error
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "User-Agent": "journeyman-forwarder",
        }
        try:
            response = self._pool.request("POST", self._url, body=body.encode(), headers=headers, redirect=False)
        except HTTPError as error:
            raise SendError(f"{self._url} cannot be reached: {error}") from error
        if not 200 <= response.status < 300:
            excerpt = response.data[:300].decode(errors="replace")
            advice = _ADVICE.get(response.status, "")
            text = f"{self._url} returned {response.status}: {excerpt}"
            raise SendError(f"{text}; {advice}" if advice else text, retry_after=_retry_after(response))


def _pool(url: str, trust: Mapping[str, Any]) -> urllib3.PoolManager:
    """Return connections to the receiver, through HTTPS_PROXY unless NO_PROXY has its name."""
    options: dict[str, Any] = {**trust, "maxsize": 1, "retries": False, "timeout": urllib3.Timeout(connect=3, read=20)}
    proxy = getproxies().get("https", "")
    if proxy and not proxy_bypass(urlsplit(url).hostname or ""):
        return urllib3.ProxyManager(proxy, **options)
    return urllib3.PoolManager(**options)


def _retry_after(response: urllib3.BaseHTTPResponse) -> float:
    """Return the seconds of a Retry-After header; 0 without one."""
    seconds = response.headers.get("Retry-After", "")
    return float(seconds) if seconds.isdecimal() else 0.0
