"""Send requests to one API server: authorization, compression, retries (`request_budget`) and errors (`error_translation`).

Responses may be compressed: kube-apiserver compresses those of more than 128 KiB. Lists that are read in pieces are not
compressed if the API server has private addresses only, because compressing them takes it longer than sending them
(docs/architecture.md has the figures). Watches are never compressed, so that no proxy buffers events.
"""

from __future__ import annotations

import copy
import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Final, TypeVar, cast
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError
from urllib3.response import BaseHTTPResponse

from journeyman import __version__
from journeyman.errors import ForbiddenError, KubeAPIError, KubeUnavailableError, ResponseTooLargeError
from journeyman.kube import error_translation
from journeyman.kube.connection_pool import Connection, ConnectionPool
from journeyman.kube.request_budget import READS, WRITES, BudgetedRetry, RequestBudget

CONNECT_SECONDS: Final = 3.0
READ_SECONDS: Final = 30.0
CONNECTIONS: Final = 16
"""Connections to keep open: more than the threads of one run. The pool opens them when they are needed."""
QUIET_FACTOR: Final = 4.0
"""A server that is slow to begin its response also pauses for longer within it, so a silence ends a watch only if it is at least
that many times as long as the response took to begin."""
LONGEST_QUIET_SECONDS: Final = 1.0
MAX_LINE_BYTES: Final = 16 << 20
"""The longest line of a watch; etcd stores objects of 1.5 MiB, and JSON is longer."""
MAX_BODY_BYTES: Final = 64 << 20
"""The longest body that is held, decompressed: 500 NodeClaims have 3 MiB, and a page of larger objects is requested again with
fewer of them (`HttpKubeStore.list`)."""
MAX_ITEMS: Final = 500_000
"""Objects of a list that are held; Kubernetes is made for 150,000 pods."""
MAX_STREAM_BYTES: Final = 2 << 30
"""The longest body that is read in pieces, decompressed: 100,000 pods have half a GiB."""
_PIECE_BYTES: Final = 128 * 1024
_LINE_BUFFER_BYTES: Final = 64 * 1024
_USER_AGENT: Final = f"journeyman/{__version__} (python {sys.version_info.major}.{sys.version_info.minor})"

T = TypeVar("T")


def check_count(items: int, kind: str, most: int = MAX_ITEMS) -> None:
    """Raise ResponseTooLargeError if a list has more objects than are held; the rest of it is not read."""
    if items > most:
        raise ResponseTooLargeError(
            f"the API server lists over {most} objects of kind {kind}; they were not read to their end",
            reason="ResponseTooLarge",
            kind=kind,
            to_do="find what creates so many objects, and delete them; if there are none, check what answers in place of the "
            "API server",
        )


class Transport:
    """Sends requests and returns bodies; every failure is a `JourneymanError`. Safe to use from several threads."""

    def __init__(
        self, connection: Connection, *, cluster: str = "", user_agent: str = _USER_AGENT, pool_size: int = CONNECTIONS
    ) -> None:
        """Prepare a pool; nothing is sent yet.

        Args:
            connection: Address, trust and identity.
            cluster: The cluster's name, for errors.
            user_agent: Shown in the API server's audit log.
            pool_size: Connections to keep open, for as many threads.
        """
        self.server = connection.server.rstrip("/")
        self.cluster = cluster
        self._authorization = connection.authorization
        self._user_agent = user_agent
        self._explain_refusal = connection.explain_refusal
        self._budget = RequestBudget(retries=math.inf)
        self._connection = connection
        self._pool = self.new_pool(pool_size)

    def new_pool(self, size: int) -> ConnectionPool:
        """Return a further pool of connections to the same server; nothing is sent yet."""
        return ConnectionPool(self._connection, size=size, timeout=urllib3.Timeout(connect=CONNECT_SECONDS))

    def with_pool(self, pool: ConnectionPool) -> Transport:
        """Return this transport over other connections; with a pool of one, consecutive requests reach the same API server."""
        bound = copy.copy(self)
        bound._pool = pool  # noqa: SLF001 - a copy of ours
        return bound

    @property
    def identity(self) -> str:
        """What distinguishes this cluster from a later one of the same name: its address and its certificate authorities."""
        context = self._connection.ssl_context
        trusted = context.get_ca_certs(binary_form=True) if context is not None else []
        return f"{self.server} {hashlib.sha256(b''.join(sorted(trusted))).hexdigest()}"

    def for_run(self, budget: RequestBudget) -> Transport:
        """Return this transport for one run, within its budget."""
        bound = copy.copy(self)
        bound._budget = budget  # noqa: SLF001 - a copy of ours
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
        retries: BudgetedRetry | None = None,
    ) -> bytes:
        """Return the body of a successful response, decompressed; `accept` lists media types.

        Raises:
            KubeAPIError: And its subclasses, ResponseTooLargeError if the body has over `MAX_BODY_BYTES`; ConfigurationError if
                a certificate is invalid; all name the cluster.
            DeadlineError: The run has ended; nothing was sent.
        """
        policy = retries or (READS if method == "GET" else WRITES)
        with self._translated_errors(method, path):
            headers = {"Accept": accept}
            if body is not None:
                headers |= {"Content-Type": content_type, "Content-Length": str(len(body))}
            while True:
                response = self._send(method, path, query, policy, body=body, headers=headers, preload_content=False)
                try:
                    content = self._body(response, method, path)
                except (ProtocolError, ReadTimeoutError) as error:
                    policy = _next_attempt(response, method, path, error)
                else:
                    self._check(response, content, method, path)
                    return content
                finally:
                    self._budget.count_received(response.tell())
                    response.close()  # also if it was not read to its end; otherwise its connection is in the pool already

    def read(
        self,
        path: str,
        consume: Callable[[Iterator[bytes]], T],
        *,
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
        retries: BudgetedRetry = READS,
        decode_status: Callable[[bytes], error_translation.Status] = error_translation.decode_status,
    ) -> T:
        """Return the result of `consume`, which gets the pieces of a successful response's body while they arrive.

        The response is compressed only if the server has a public address: an API server on the same network takes longer to
        compress a large list than to send it. If the connection breaks, the request is repeated as in `request`, and `consume`
        is called again. Raises as `request` and `consume`.

        Args:
            path: The list's path.
            consume: Reads the body; it may be called several times.
            query: Query parameters.
            accept: Media types.
            retries: When the request is repeated.
            decode_status: Returns the Status in a failure response, or raises ValueError.
        """
        policy = retries
        headers = {"Accept": accept, "Accept-Encoding": "identity" if self._pool.is_private else "gzip"}
        with self._translated_errors("GET", path):
            while True:
                response = self._send("GET", path, query, policy, headers=headers, preload_content=False)
                try:
                    return self._consume(response, path, consume, decode_status)
                except (ProtocolError, ReadTimeoutError) as error:
                    policy = _next_attempt(response, "GET", path, error)

    def stream(
        self,
        path: str,
        query: Mapping[str, str],
        read_seconds: float,
        *,
        quiet_seconds: float | None = None,
        accept: str = "application/json",
        retries: BudgetedRetry = READS,
    ) -> Iterator[bytes]:
        """Yield the lines of a streaming response as they arrive, until the server ends it. The request is sent at once.

        Args:
            path: The path of the watched list.
            query: Query parameters.
            read_seconds: The longest silence of the server.
            quiet_seconds: If given, a silence of that long ends the response once it has begun, or a silence `QUIET_FACTOR` times
                as long as the response took to begin, if that is longer, up to `LONGEST_QUIET_SECONDS`.
            accept: Media types.
            retries: When the request is repeated before the response begins.

        Raises:
            KubeUnavailableError: The connection broke, or the server was silent for `read_seconds`.
            KubeAPIError: The server refused, or a line is longer than `MAX_LINE_BYTES`.
            DeadlineError: The run has ended; nothing was sent.
        """
        started_at = time.monotonic()
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        with self._translated_errors("GET", path):
            response = self._send(
                "GET", path, query, retries, headers=headers, read_seconds=read_seconds, preload_content=False
            )
            if not _is_success(response):
                with closing(response):
                    self._check(response, self._body(response, "GET", path), "GET", path)
        if quiet_seconds is not None:
            slow_start = min(QUIET_FACTOR * (time.monotonic() - started_at), LONGEST_QUIET_SECONDS)
            quiet_seconds = max(quiet_seconds, slow_start)
        return self._stream_lines(response, path, quiet_seconds)

    @property
    def write_count(self) -> int:
        """The number of write requests of this run."""
        return self._budget.usage.writes

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.clear()

    def _stream_lines(self, response: BaseHTTPResponse, path: str, quiet_seconds: float | None) -> Iterator[bytes]:
        with closing(response):
            with self._translated_errors("GET", path):
                yield from self._lines(response, path, quiet_seconds)
            response.release_conn()

    def _lines(self, response: BaseHTTPResponse, path: str, quiet_seconds: float | None) -> Iterator[bytes]:
        """Yield complete lines; a line that is cut off by `quiet_seconds` of silence is dropped."""
        connection = getattr(response.connection, "sock", None)
        if quiet_seconds is not None and connection is not None:
            connection.settimeout(quiet_seconds)
        pending = bytearray()
        try:
            # `read1` returns whatever has arrived, however a proxy cut it into chunks
            while chunk := response.read1(_LINE_BUFFER_BYTES):
                self._budget.count_received(len(chunk))
                *complete, rest = chunk.split(b"\n")
                for part in complete:
                    line, pending = bytes(pending + part), bytearray()
                    if line:
                        yield line
                pending += rest
                if len(pending) > MAX_LINE_BYTES:
                    raise KubeAPIError(f"an object in the watch of {path} has over {MAX_LINE_BYTES} bytes")
        except ReadTimeoutError:
            if quiet_seconds is None:
                raise
            return
        if pending:
            raise KubeUnavailableError(f"the watch of {path} was cut off in the middle of an object")

    def _consume(
        self,
        response: BaseHTTPResponse,
        path: str,
        consume: Callable[[Iterator[bytes]], T],
        decode_status: Callable[[bytes], error_translation.Status],
    ) -> T:
        try:
            if not _is_success(response):
                self._check(response, self._body(response, "GET", path), "GET", path, decode_status)
            return consume(self._pieces(response, "GET", path, MAX_STREAM_BYTES))
        finally:
            self._budget.count_received(response.tell())
            response.close()  # also if it was not read to its end; otherwise its connection is in the pool already

    def _body(self, response: BaseHTTPResponse, method: str, path: str) -> bytes:
        """Return a body of at most `MAX_BODY_BYTES`, decompressed."""
        return b"".join(self._pieces(response, method, path, MAX_BODY_BYTES))

    def _pieces(self, response: BaseHTTPResponse, method: str, path: str, max_bytes: int) -> Iterator[bytes]:
        """Yield a body in pieces, decompressed. Raises ResponseTooLargeError once they have more bytes than that."""
        size = 0
        while piece := response.read(_PIECE_BYTES, decode_content=True):
            size += len(piece)
            if size > max_bytes:
                raise ResponseTooLargeError(
                    f"the response to {method} {path} has over {max_bytes >> 20} MiB; it was not read to its end",
                    reason="ResponseTooLarge",
                    cluster=self.cluster,
                    request=f"{method} {path}",
                    to_do="find the objects that are so large, and remove what they need not have, such as long annotations; "
                    "if there are none, check what answers in place of the API server",
                )
            yield piece

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        policy: BudgetedRetry,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        read_seconds: float = READ_SECONDS,
        preload_content: bool = True,
    ) -> BaseHTTPResponse:
        timeout = urllib3.Timeout(connect=self._budget.limit(CONNECT_SECONDS), read=self._budget.limit(read_seconds))
        if not policy.history:  # `take_retry` has counted the further attempts
            self._budget.count_request(len(body or b""), is_write=method != "GET")
        return self._pool.request(
            method,
            f"{self.server}{path}?{urlencode(query)}" if query else f"{self.server}{path}",
            body=body,
            headers=self._headers(headers or {}),
            retries=policy.within(self._budget),
            timeout=timeout,
            preload_content=preload_content,
        )

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        merged = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": self._user_agent, **headers}
        authorization = self._authorization()
        return {**merged, "Authorization": authorization} if authorization else merged

    def _check(
        self,
        response: BaseHTTPResponse,
        body: bytes,
        method: str,
        path: str,
        decode_status: Callable[[bytes], error_translation.Status] = error_translation.decode_status,
    ) -> None:
        if _is_success(response):
            return
        refusal = error_translation.refusal(
            response.status,
            body,
            f"{method} {path}",
            retry_after=response.headers.get("Retry-After", ""),
            cluster=self.cluster,
            decode=decode_status,
        )
        if isinstance(refusal, ForbiddenError) and self._explain_refusal is not None:
            refusal.context["to_do"] = self._explain_refusal(refusal.status, refusal.message)
        raise refusal

    @contextmanager
    def _translated_errors(self, method: str, path: str) -> Iterator[None]:
        try:
            yield
        except HTTPError as error:
            raise error_translation.unreachable(error, self.server, f"{method} {path}", cluster=self.cluster) from error


def _is_success(response: BaseHTTPResponse) -> bool:
    return 200 <= response.status < 300


def _next_attempt(response: BaseHTTPResponse, method: str, path: str, error: HTTPError) -> BudgetedRetry:
    """Wait, and return the policy that is left after a response broke off. Raises HTTPError if there is no attempt left."""
    policy = cast("BudgetedRetry", response.retries).increment(
        method, path, error=error, _stacktrace=error.__traceback__
    )
    policy.sleep()
    return policy
