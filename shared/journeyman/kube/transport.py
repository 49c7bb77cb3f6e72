"""Requests to one API server: a connection pool, the bearer token, compression, and what a run may spend.

`retries` says when a request is repeated, `errors` what is said of one that failed.

Answers are asked for compressed: kube-apiserver compresses those of more than 128 KiB. Whole lists are not, where the API
server is in a private network: they are made faster than they are packed (docs/architecture.md has the figures).
"""

from __future__ import annotations

import copy
import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar, cast
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError
from urllib3.response import BaseHTTPResponse

from journeyman import __version__
from journeyman.errors import ForbiddenError
from journeyman.kube import errors
from journeyman.kube.allowance import Allowance
from journeyman.kube.connection import Connection
from journeyman.kube.pool import Pool
from journeyman.kube.retries import READS, WRITES, Patient

CONNECT_SECONDS: Final = 3.0
READ_SECONDS: Final = 30.0
CONNECTIONS: Final = 64
"""Kept open: as many writes as may have to take effect at once. A pool makes none before it needs it."""
QUIET_FACTOR: Final = 4.0
"""Where an answer takes long to begin, so do the pauses within it: a silence that ends it is that many times as long."""
LONGEST_QUIET_SECONDS: Final = 1.0
_PIECE_BYTES: Final = 128 * 1024
_USER_AGENT: Final = f"journeyman/{__version__} (python {sys.version_info.major}.{sys.version_info.minor})"

T = TypeVar("T")


class Transport:
    """Sends requests and hands back bodies; every failure is a `JourneymanError`. Safe to use from several threads."""

    def __init__(
        self, connection: Connection, *, cluster: str = "", user_agent: str = _USER_AGENT, pool_size: int = CONNECTIONS
    ) -> None:
        """Prepare a pool; nothing is sent yet.

        Args:
            connection: Address, trust and identity.
            cluster: The cluster's name, for those who read the errors.
            user_agent: Shown in the API server's audit log.
            pool_size: Connections kept open, for as many threads.
        """
        self.server = connection.server.rstrip("/")
        self.cluster = cluster
        self._authorization = connection.authorization
        self._user_agent = user_agent
        self._refused = connection.refused
        self._allowance = Allowance(retries=math.inf)
        self._connection = connection
        self._pool = self.new_pool(pool_size)

    def new_pool(self, size: int) -> Pool:
        """Connections of their own to the same server; nothing is sent yet."""
        return Pool(self._connection, size=size, timeout=urllib3.Timeout(connect=CONNECT_SECONDS))

    def through(self, pool: Pool) -> Transport:
        """The same, over other connections: through a pool of one, requests in turn reach the same API server of several."""
        bound = copy.copy(self)
        bound._pool = pool  # noqa: SLF001 - a copy of ours
        return bound

    @property
    def identity(self) -> str:
        """What tells one cluster from another that is reached by the same name later: its address, and whom it is trusted by."""
        context = self._connection.ssl_context
        trusted = context.get_ca_certs(binary_form=True) if context is not None else []
        return f"{self.server} {hashlib.sha256(b''.join(sorted(trusted))).hexdigest()}"

    def for_run(self, allowance: Allowance) -> Transport:
        """The same connections for one run, within its allowance."""
        bound = copy.copy(self)
        bound._allowance = allowance  # noqa: SLF001 - a copy of ours
        return bound

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        retries: Patient | None = None,
    ) -> bytes:
        """The body of a successful answer, decompressed; `accept` says in which encodings it may be.

        Raises:
            KubeAPIError: And its kinds; ConfigurationError if the certificates do not fit; both name the cluster.
            DeadlineError: The run's time is up; nothing was sent.
        """
        policy = retries or (READS if method == "GET" else WRITES)
        with self._translated(method, path):
            headers = {"Accept": accept}
            if body is not None:
                headers |= {"Content-Type": content_type, "Content-Length": str(len(body))}
            response = self._send(method, path, query, policy, body=body, headers=headers)
            content = response.data
        self._allowance.received(response.tell())
        self._check(response, content, method, path)
        return content

    def read(
        self,
        path: str,
        take: Callable[[Iterator[bytes]], T],
        *,
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
    ) -> T:
        """What `take` makes of the body of a successful answer, which it gets in pieces as they come.

        It comes compressed from afar only: an API server needs longer to pack a large list than to send it to somebody
        near (Kubernetes' own components do without, too). An answer that breaks off is asked for again, as often as by
        `request`; then `take` begins again. Raises as `request`.
        """
        policy, headers = READS, {"Accept": accept, "Accept-Encoding": "identity" if self._pool.is_near else "gzip"}
        with self._translated("GET", path):
            while True:
                response = self._send("GET", path, query, policy, headers=headers, preload_content=False)
                try:
                    return self._taken(response, path, take)
                except (ProtocolError, ReadTimeoutError) as error:
                    policy = _for_another_try(response, path, error)

    def stream(
        self, path: str, query: Mapping[str, str], read_seconds: float, *, quiet_seconds: float | None = None
    ) -> Iterator[bytes]:
        """The lines of a streaming answer as they come, until the server ends it.

        Args:
            path: What is watched.
            query: Of the request.
            read_seconds: How long the server may say nothing.
            quiet_seconds: If given: once it has begun to answer, a silence of that long is the end, or of `QUIET_FACTOR` times
                as long as it took to begin if that is longer, up to `LONGEST_QUIET_SECONDS`.

        Raises:
            KubeUnavailableError: It broke off, or said nothing for `read_seconds`.
            DeadlineError: The run's time is up; nothing was sent.
        """
        asked_at = time.monotonic()
        with self._translated("GET", path):
            response = self._send("GET", path, query, READS, read_seconds=read_seconds, preload_content=False)
        if quiet_seconds is not None:
            patience = min(QUIET_FACTOR * (time.monotonic() - asked_at), LONGEST_QUIET_SECONDS)
            quiet_seconds = max(quiet_seconds, patience)
        try:
            with self._translated("GET", path):
                if not _is_success(response):
                    self._check(response, response.data, "GET", path)
                yield from self._lines(response, quiet_seconds)
            response.release_conn()
        finally:
            response.close()

    @property
    def writes(self) -> int:
        """How many requests of this run may have changed something."""
        return self._allowance.usage.writes

    def close(self) -> None:
        """Close the connections that are idle."""
        self._pool.clear()

    def _lines(self, response: BaseHTTPResponse, quiet_seconds: float | None) -> Iterator[bytes]:
        """Whole lines; what a silence cuts in two is left out."""
        socket = getattr(response.connection, "sock", None)
        if quiet_seconds is not None and socket is not None:
            socket.settimeout(quiet_seconds)
        pending = b""
        try:
            for chunk in response.stream():
                self._allowance.received(len(chunk))
                *whole, pending = (pending + chunk).split(b"\n")
                yield from (line for line in whole if line)
        except ReadTimeoutError:
            if quiet_seconds is None:
                raise

    def _taken(self, response: BaseHTTPResponse, path: str, take: Callable[[Iterator[bytes]], T]) -> T:
        try:
            if not _is_success(response):
                self._check(response, response.data, "GET", path)
            return take(_pieces(response))
        finally:
            self._allowance.received(response.tell())
            response.close()  # a connection whose answer is not read to its end; others are back in the pool

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        policy: Patient,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        read_seconds: float = READ_SECONDS,
        preload_content: bool = True,
    ) -> BaseHTTPResponse:
        timeout = urllib3.Timeout(
            connect=self._allowance.at_most(CONNECT_SECONDS), read=self._allowance.at_most(read_seconds)
        )
        if not policy.history:  # whoever allowed another try has counted it
            self._allowance.sent(len(body or b""), is_write=method != "GET")
        return self._pool.request(
            method,
            f"{self.server}{path}?{urlencode(query)}" if query else f"{self.server}{path}",
            body=body,
            headers=self._headers(headers or {}),
            retries=policy.within(self._allowance),
            timeout=timeout,
            preload_content=preload_content,
        )

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": self._user_agent, **more}
        authorization = self._authorization()
        return {**headers, "Authorization": authorization} if authorization else headers

    def _check(self, response: BaseHTTPResponse, body: bytes, method: str, path: str) -> None:
        if _is_success(response):
            return
        retry_after = response.headers.get("Retry-After", "")
        refusal = errors.refusal(
            response.status, body, f"{method} {path}", retry_after=retry_after, cluster=self.cluster
        )
        if isinstance(refusal, ForbiddenError) and self._refused is not None:
            refusal.context["to_do"] = self._refused(refusal.status, refusal.message)
        raise refusal

    @contextmanager
    def _translated(self, method: str, path: str) -> Iterator[None]:
        try:
            yield
        except HTTPError as error:
            raise errors.unreachable(error, self.server, f"{method} {path}", cluster=self.cluster) from error


def _is_success(response: BaseHTTPResponse) -> bool:
    return 200 <= response.status < 300


def _pieces(response: BaseHTTPResponse) -> Iterator[bytes]:
    while piece := response.read(_PIECE_BYTES, decode_content=True):
        yield piece


def _for_another_try(response: BaseHTTPResponse, path: str, error: HTTPError) -> Patient:
    """What is left of a request's policy after an answer that broke off; its pause is over. Raises HTTPError: nothing is."""
    policy = cast("Patient", response.retries).increment("GET", path, error=error, _stacktrace=error.__traceback__)
    policy.sleep()
    return policy
