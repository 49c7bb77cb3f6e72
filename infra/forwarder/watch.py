"""The API server's side: list the pods without a node in pages, then watch from there, decoded as they stream in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
import urllib3

from infra.forwarder.pods import Pod

PATH: Final = "/api/v1/pods"
PAGE_SIZE: Final = 200
CONNECT_SECONDS: Final = 5.0
READ_SECONDS: Final = 30.0


class ApiServerError(Exception):
    """The API server cannot be reached or refuses; the caller waits and tries again."""


class ExpiredError(ApiServerError):
    """The version is too old (410): list again."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The watch has come this far, and nothing else happened."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the pods, and the version of the whole list."""

    pods: tuple[Pod, ...]
    resource_version: str


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: tuple[Pod, ...] = ()


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class _Type(msgspec.Struct, frozen=True):
    type: str


class _Change(msgspec.Struct, frozen=True):
    object: Pod


class _Failure(msgspec.Struct, frozen=True):
    object: _Status


class PodSource:
    """Reads one cluster's pods without a node.

    Args:
        server: The API server's URL.
        token: Asked before each request, since a service account's token is renewed on disk; "" sends none.
        ca_file: Trust; the system's own if empty.
        watch_seconds: How long one watch lasts before it is begun anew.
    """

    def __init__(
        self, server: str, *, token: Callable[[], str] = str, ca_file: str = "", watch_seconds: float = 300
    ) -> None:
        self._server = server.rstrip("/")
        self._token = token
        self._watch_seconds = watch_seconds
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
        trust: dict[str, Any] = {"ca_certs": ca_file} if ca_file else {}
        self._pool = urllib3.PoolManager(maxsize=2, timeout=timeout, retries=False, **trust)

    def pages(self) -> Iterator[Page]:
        """All of them, page by page; the last page's version is where to watch from.

        Raises:
            ExpiredError: The list changed too much between two pages.
            ApiServerError: It cannot be read.
        """
        token = ""
        while True:
            query = {"limit": str(PAGE_SIZE), **({"continue": token} if token else {})}
            page = _decode(self._request(query, preload=True).data, _List)
            yield Page(page.items, page.metadata.resource_version)
            token = page.metadata.continue_
            if not token:
                return

    def watch(self, resource_version: str) -> Iterator[tuple[str, Pod] | Bookmark]:
        """Changes since that version, until the server ends the watch.

        Raises:
            ExpiredError: The version is too old.
            ApiServerError: The connection broke, or the server refuses.
        """
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(int(self._watch_seconds), 1)),
        }
        response = self._request(query, preload=False, read_seconds=self._watch_seconds + READ_SECONDS)
        try:
            for line in _lines(response):
                yield _event(line)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiServerError(f"the watch broke off: {error}") from error
        finally:
            response.close()

    def _request(
        self, query: dict[str, str], *, preload: bool, read_seconds: float = READ_SECONDS
    ) -> urllib3.BaseHTTPResponse:
        url = f"{self._server}{PATH}?{urlencode({'fieldSelector': 'spec.nodeName=', **query})}"
        token = self._token()
        headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=read_seconds)
        try:
            response = self._pool.request("GET", url, headers=headers, preload_content=preload, timeout=timeout)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiServerError(f"the API server cannot be reached: {error}") from error
        if response.status == 200:
            return response
        said = response.data[:300].decode(errors="replace")
        response.close()
        kind = ExpiredError if response.status == 410 else ApiServerError
        raise kind(f"the API server answers {response.status}: {said}")


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(65536, decode_content=True):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line)


def _event(line: bytes) -> tuple[str, Pod] | Bookmark:
    type_ = _decode(line, _Type).type
    if type_ == "ERROR":
        status = _decode(line, _Failure).object
        kind = ExpiredError if status.code == 410 else ApiServerError
        raise kind(f"the watch ends with {status.code}: {status.message}")
    pod = _decode(line, _Change).object
    return Bookmark(pod.metadata.resource_version) if type_ == "BOOKMARK" else (type_, pod)


def _decode(data: bytes, type_: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.DecodeError as error:
        raise ApiServerError(f"the API server's answer cannot be read: {error}") from error
