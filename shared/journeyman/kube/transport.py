"""Requests to one API server: a connection pool, the bearer token, and retries only where a repeat is safe.

Reads are repeated after a broken connection, 429 and 5xx. Writes are repeated only when the server cannot have seen them
(no connection was made) or says that it has not carried them out (429 of its priority and fairness); a write that may
have happened is an error for the step, whose preconditions make the next run safe. An eviction's 429 is an answer, not
a hiccup, and is never repeated here.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from journeyman.errors import ForbiddenError
from journeyman.kube import errors
from journeyman.kube.connection import Connection
from journeyman.kube.pool import Pool

CONNECT_SECONDS: Final = 3.0
READ_SECONDS: Final = 30.0
_LONGEST_WAIT_SECONDS: Final = 8.0
_USER_AGENT: Final = f"journeyman (python {sys.version_info.major}.{sys.version_info.minor})"


class _Patient(urllib3.Retry):
    """Waits as the server asks, but never so long that a function's time is wasted."""

    RETRY_AFTER_STATUS_CODES = frozenset({429})  # a 503 on a write may have happened

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        asked = super().get_retry_after(response)
        return None if asked is None else min(asked, _LONGEST_WAIT_SECONDS)


def _retry(methods: Collection[str], *, read: int, statuses: Collection[int]) -> _Patient:
    return _Patient(
        total=5,
        connect=3,
        read=read,
        status=3,
        redirect=0,
        other=0,
        allowed_methods=methods,
        status_forcelist=statuses,
        backoff_factor=0.1,
        backoff_jitter=0.2,
        backoff_max=_LONGEST_WAIT_SECONDS,
        raise_on_status=False,
    )


READS: Final = _retry({"GET"}, read=2, statuses={429, 500, 502, 503, 504})
WRITES: Final = _retry({"POST", "PUT", "PATCH", "DELETE"}, read=0, statuses={429})
EVICTIONS: Final = WRITES.new(status_forcelist=(), respect_retry_after_header=False)


class Transport:
    """Sends requests and hands back bodies; every failure is a `JourneymanError`."""

    def __init__(self, connection: Connection, *, user_agent: str = _USER_AGENT, pool_size: int = 16) -> None:
        """Prepare a pool; nothing is sent yet.

        Args:
            connection: Address, trust and identity.
            user_agent: Shown in the API server's audit log.
            pool_size: Connections kept open, for as many threads.
        """
        self.server = connection.server.rstrip("/")
        self._authorization = connection.authorization
        self._user_agent = user_agent
        self._refused = connection.refused
        self._pool = Pool(
            connection, size=pool_size, timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
        )

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        retries: urllib3.Retry | None = None,
    ) -> bytes:
        """The body of a successful answer, decompressed. Raises KubeAPIError and its kinds, ConfigurationError."""
        with self._translated(method, path):
            response = self._pool.request(
                method,
                self._url(path, query),
                body=body,
                headers=self._headers({"Content-Type": content_type} if body is not None else {}),
                retries=retries or (READS if method == "GET" else WRITES),
            )
        self._check(response, method, path)
        return response.data

    def stream(self, path: str, query: Mapping[str, str], read_seconds: float) -> Iterator[bytes]:
        """The lines of a streaming answer as they come, until the server ends it.

        Raises:
            KubeUnavailableError: It broke off, or said nothing for `read_seconds`.
        """
        with self._translated("GET", path):
            response = self._pool.request(
                "GET",
                self._url(path, query),
                headers=self._headers({}),
                retries=READS,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=read_seconds),
                preload_content=False,
            )
        try:
            with self._translated("GET", path):
                self._check(response, "GET", path)
                yield from _lines(response)
            response.release_conn()
        finally:
            response.close()

    def close(self) -> None:
        """Close the connections that are idle."""
        self._pool.clear()

    def _url(self, path: str, query: Mapping[str, str] | None) -> str:
        return f"{self.server}{path}?{urlencode(query)}" if query else f"{self.server}{path}"

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": self._user_agent, **more}
        authorization = self._authorization()
        return {**headers, "Authorization": authorization} if authorization else headers

    def _check(self, response: BaseHTTPResponse, method: str, path: str) -> None:
        if not 200 <= response.status < 300:
            retry_after = response.headers.get("Retry-After", "")
            refusal = errors.refusal(response.status, response.data, f"{method} {path}", retry_after)
            if isinstance(refusal, ForbiddenError) and self._refused is not None:
                refusal.context["advice"] = self._refused(refusal.status, refusal.message)
            raise refusal

    @contextmanager
    def _translated(self, method: str, path: str) -> Iterator[None]:
        try:
            yield
        except HTTPError as error:
            raise errors.unreachable(error, self.server, f"{method} {path}") from error


def _lines(response: BaseHTTPResponse) -> Iterator[bytes]:
    pending = b""
    for chunk in response.stream():
        *whole, pending = (pending + chunk).split(b"\n")
        yield from (line for line in whole if line)
