"""The API server's side: lists page by page and watches line by line, so that memory knows one page and one object.

A page that turns out too large (pods of a megabyte each) is given up and asked for again with fewer objects. Connections
are kept alive by probes, so that one that died silently is noticed within a minute and not at the watch's end.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError

from infra.forwarder.resources import Page, Resource

T = TypeVar("T")

PAGE_SIZE: Final = 250
MOST_PAGE_BYTES: Final = 4 << 20
MOST_OBJECT_BYTES: Final = 16 << 20  # etcd takes 1.5 MiB; JSON has more of it
CONNECT_SECONDS: Final = 5.0
READ_SECONDS: Final = 30.0
_CHUNK: Final = 1 << 16
_ADVICE: Final = {
    401: "its token is not accepted: check the service account, and that the clock is right",
    403: "its rights are missing: the Helm chart's ClusterRole for the forwarder has them",
    404: "it has no such kind: install Journeyman's custom resource definitions",
}
_WHEN_SILENT: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # seconds, seconds, times
_PROBES: Final = [
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), n) for name, n in _WHEN_SILENT.items() if hasattr(socket, name)),
]
_TOO_LARGE: Final = "Too large resource version"  # what a server says that was set back to an older state


class ApiServerError(Exception):
    """The API server cannot be reached or refuses; the caller waits, `retry_after` seconds at least, and tries again."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ExpiredError(ApiServerError):
    """The version is too old (410), or of a state that the server no longer has: list again."""


class _TooLargeError(Exception):
    """More bytes than may be held."""


class Change(NamedTuple):
    """One event of a watch; a BOOKMARK has no object, only says how far the watch has come."""

    type: str
    object: Any
    version: str


class _Line(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Versioned(msgspec.Struct, frozen=True):
    class Metadata(msgspec.Struct, frozen=True, rename="camel"):
        resource_version: str = ""

    metadata: Metadata = Metadata()


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class ApiServer:
    """Reads one cluster. Safe to use from several threads.

    Args:
        server: The API server's URL.
        token: Asked before each request, since a service account's token is renewed on disk; "" sends none.
        ca_file: Trust; the system's own if empty.
        watch_seconds: How long one watch lasts before it is begun anew.
        count_bytes: Told what came over the wire, by the resource's name.
    """

    def __init__(
        self,
        server: str,
        *,
        token: Callable[[], str] = str,
        ca_file: str = "",
        watch_seconds: float = 300,
        count_bytes: Callable[[str, int], None] = lambda _name, _number: None,
    ) -> None:
        self._server = server.rstrip("/")
        self._token = token
        self._watch_seconds = max(int(watch_seconds), 1)
        self._count_bytes = count_bytes
        trust: dict[str, Any] = {"ca_certs": ca_file} if ca_file else {}
        self._pool = urllib3.PoolManager(maxsize=5, retries=False, socket_options=_PROBES, **trust)

    def pages(self, resource: Resource[T]) -> Iterator[Page[T]]:
        """All objects, page by page; the last page's version is where to watch from.

        Raises:
            ExpiredError: The list changed too much between two pages.
            ApiServerError: It cannot be read.
        """
        token, limit = "", PAGE_SIZE
        while True:
            query = {"limit": str(limit), **({"continue": token} if token else {})}
            try:
                body = self._body(resource, query, MOST_PAGE_BYTES if limit > 1 else MOST_OBJECT_BYTES)
            except _TooLargeError:
                if limit == 1:
                    raise ApiServerError(f"one of the {resource.name} has over {MOST_OBJECT_BYTES} bytes") from None
                limit = max(limit // 8, 1)
                continue
            page = _read(resource.page, body)
            yield page
            token = page.metadata.continue_
            if not token:
                return

    def watch(self, resource: Resource[T], version: str) -> Iterator[Change]:
        """Changes since that version, until the server ends the watch; it has begun when this returns.

        Raises:
            ExpiredError: The version is too old; on the way, too.
            ApiServerError: The server refuses; on the way, the connection broke.
        """
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._watch_seconds),
        }
        return self._changes(
            resource, self._open(resource, query, resource.watch_accept, self._watch_seconds + READ_SECONDS)
        )

    def _changes(self, resource: Resource[Any], response: urllib3.BaseHTTPResponse) -> Iterator[Change]:
        try:
            for line in self._lines(resource, response):
                yield _change(resource, line)
        except (HTTPError, OSError) as error:
            raise ApiServerError(f"the watch of {resource.name} broke off: {error}") from error
        finally:
            response.close()

    def _body(self, resource: Resource[T], query: dict[str, str], most: int) -> bytearray:
        response = self._open(resource, query, resource.list_accept, READ_SECONDS)
        body = bytearray()
        try:
            for chunk in response.stream(_CHUNK, decode_content=True):
                body += chunk
                if len(body) > most:
                    response.close()  # the rest stays unread
                    raise _TooLargeError
        except (HTTPError, OSError) as error:
            raise ApiServerError(f"the list of {resource.name} broke off: {error}") from error
        finally:
            self._count_bytes(resource.name, response.tell())
            response.release_conn()
        return body

    def _lines(self, resource: Resource[T], response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        rest = bytearray()
        while chunk := response.read1(_CHUNK):  # what is there, at once, however a proxy may have reframed it
            self._count_bytes(resource.name, len(chunk))
            *whole, last = chunk.split(b"\n")
            for part in whole:
                line, rest = bytes(rest + part), bytearray()
                if line:
                    yield line
            rest += last
            if len(rest) > MOST_OBJECT_BYTES:
                raise ApiServerError(f"one of the {resource.name} has over {MOST_OBJECT_BYTES} bytes")
        if rest:
            raise ApiServerError(f"the watch of {resource.name} was cut off in the middle of an object")

    def _open(
        self, resource: Resource[T], query: dict[str, str], accept: str, read_seconds: float
    ) -> urllib3.BaseHTTPResponse:
        selected = {**query, **({"fieldSelector": resource.selector} if resource.selector else {})}
        url = f"{self._server}{resource.path}{'&' if '?' in resource.path else '?'}{urlencode(selected)}"
        encoding = "identity" if "watch" in query else "gzip"  # nothing may wait in a compressor for more to come
        headers = {"Accept": accept, "Accept-Encoding": encoding, "User-Agent": "journeyman-forwarder"}
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=read_seconds)
        try:
            if token := self._token():
                headers["Authorization"] = f"Bearer {token}"
            response = self._pool.request("GET", url, headers=headers, preload_content=False, timeout=timeout)
        except (HTTPError, OSError) as error:
            raise ApiServerError(f"the API server {self._server} cannot be reached: {error}") from error
        if response.status != 200:
            raise self._refused(resource, response)
        return response

    def _refused(self, resource: Resource[T], response: urllib3.BaseHTTPResponse) -> ApiServerError:
        try:
            said = response.read(500, decode_content=True).decode(errors="replace").strip()
        except (HTTPError, OSError):
            said = ""
        response.close()
        advice = _ADVICE.get(response.status, "")
        text = f"the API server {self._server} answers {response.status} for {resource.name}: {said}"
        kind = ExpiredError if response.status == 410 or _TOO_LARGE in said else ApiServerError
        return kind(f"{text}; {advice}" if advice else text, retry_after=retry_after(response))


def retry_after(response: urllib3.BaseHTTPResponse) -> float:
    """The seconds of a Retry-After header; 0 without one."""
    asked = response.headers.get("Retry-After", "")
    return float(asked) if asked.isdecimal() else 0.0


def _change(resource: Resource[Any], line: bytes) -> Change:
    event: _Line = _read(lambda data: msgspec.json.decode(data, type=_Line), line)
    if event.type == "ERROR":
        status: _Status = _read(lambda data: msgspec.json.decode(data, type=_Status), event.object)
        kind = ExpiredError if status.code == 410 or _TOO_LARGE in status.message else ApiServerError
        raise kind(f"the watch of {resource.name} ends with {status.code}: {status.message}")
    if event.type == "BOOKMARK":
        bookmark: _Versioned = _read(lambda data: msgspec.json.decode(data, type=_Versioned), event.object)
        return Change(event.type, None, bookmark.metadata.resource_version)
    return Change(event.type, *_read(resource.changed, event.object))


def _read(decode: Callable[[Any], Any], data: Any) -> Any:
    try:
        return decode(data)
    except (msgspec.DecodeError, LookupError) as error:
        raise ApiServerError(f"the answer cannot be read, so it is not an API server's: {error}") from error


for _type in (_Line, _Status, _Versioned):  # before threads do: see `resources`
    msgspec.json.Decoder(_type)
