"""One signed request to a cloud's own API. It is sent once: a signature is spent with the request that carried it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import urllib3
from msgspec import Struct

from journeyman.errors import CloudUnavailableError

_TIMEOUT: Final = urllib3.Timeout(connect=3.0, read=15.0)
# only what was never sent may be sent again
_RETRIES: Final = urllib3.Retry(total=2, connect=2, read=0, status=0, redirect=0, other=0, backoff_factor=0.2)


class Answer(Struct, frozen=True, kw_only=True):
    """What came back."""

    status: int
    body: bytes


def send(method: str, url: str, headers: Mapping[str, str], body: bytes = b"", **facts: Any) -> Answer:
    """The answer to one request, whatever its status.

    Args:
        method: In capitals.
        url: Escaped as it was signed.
        headers: The signed ones among them.
        body: As it was signed.
        **facts: What goes into an error: the cluster, the call.

    Raises:
        CloudUnavailableError: There is no answer.
    """
    with urllib3.PoolManager(timeout=_TIMEOUT, retries=_RETRIES) as http:
        try:
            answer = http.request(method, url, headers=dict(headers), body=body or None)
        except urllib3.exceptions.HTTPError as error:
            endpoint = urllib3.util.parse_url(url).netloc
            raise CloudUnavailableError(
                f"{endpoint} does not answer: {error}",
                to_do="in a VPC, functions need a NAT gateway or an endpoint for this service",
                **facts,
            ) from error
        return Answer(status=answer.status, body=answer.data)
