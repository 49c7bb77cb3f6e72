"""Serves the in-memory API server over HTTP/1.1, for clients that need the wire protocol.

It supports get, list (in pages), create, merge patch, server-side apply, replace, delete, status, eviction, binding, watch
and discovery, returns a `Status` for errors, and compresses large bodies if the client accepts it. Bind it to the loopback
interface only: without `authenticate` it accepts every client.
"""

from __future__ import annotations

import gzip
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Struct

from journeyman.core.api.objects import POD, Resource
from journeyman.errors import ForbiddenError, GoneError, KubeAPIError
from journeyman_simulator.apiserver import api_errors
from journeyman_simulator.apiserver.api_errors import ErrorCause
from journeyman_simulator.apiserver.list_and_watch import WatchStream
from journeyman_simulator.apiserver.served_kinds import ServedKind
from journeyman_simulator.apiserver.server import ApiServer

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
_GZIP_FROM_BYTES: Final = 128 * 1024  # k8s.io/apiserver `defaultGzipThresholdBytes`
_BOOKMARK_AFTER_SECONDS: Final = 1.0  # kube-apiserver 1.36 takes 0.7 to 2.5 s (measured)
_WATCH_SECONDS: Final = 1800  # kube-apiserver's --min-request-timeout
_VERSION: Final = {"major": "1", "minor": "36", "gitVersion": "v1.36.0+journeyman", "platform": "linux/amd64"}
_SUCCESS: Final = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


class HttpApiServer:
    """A context manager that serves an `ApiServer` until it is closed.

    Args:
        server: The API server.
        host: The address on which to listen.
        port: The port on which to listen; 0 selects a free one, see `url`.
        authenticate: Returns whether a bearer token ("" if the client sent none) is accepted; None accepts every client.
        ssl_context: The context with which to serve TLS; None serves plain HTTP.
    """

    def __init__(
        self,
        server: ApiServer,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        authenticate: Callable[[str], bool] | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._http = _Listener((host, port), _Handler)
        self._http.api, self._http.authenticate = server, authenticate
        if ssl_context is not None:
            self._http.socket = ssl_context.wrap_socket(self._http.socket, server_side=True)
        scheme = "https" if ssl_context is not None else "http"
        self.url = f"{scheme}://{host}:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server; open watches end within a second."""
        self._http.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def __enter__(self) -> HttpApiServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    api: ApiServer
    authenticate: Callable[[str], bool] | None

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.closing = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # buffers a response, so that it is one segment
    disable_nagle_algorithm = True
    server: _Listener

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        """Log nothing, since the observers of the ApiServer receive every write."""

    def _handle(self) -> None:
        """Handle one request, and send the Status of an error."""
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)  # before any error, since an unread body would prevent reuse of the connection
        try:
            self._authenticate()
            self._dispatch(body)
        except NoSuchPathError:
            self._send(404, b"404 page not found\n", "text/plain; charset=utf-8")
        except KubeAPIError as error:
            self._respond(error.status or 500, api_errors.status_of(error))
        if self.server.closing.is_set():  # a persistent connection must not outlive the server
            self.close_connection = True

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _handle  # noqa: N815 - the names are http.server's

    def _authenticate(self) -> None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()
        if self.server.authenticate is not None and not self.server.authenticate(token):
            raise ForbiddenError("Unauthorized", status=401, reason="Unauthorized")

    def _dispatch(self, body: bytes) -> None:
        url = urlsplit(self.path)
        self._query = dict(parse_qsl(url.query, keep_blank_values=True))
        self._api = self.server.api.acting_as((self.headers.get("User-Agent") or "").partition(" ")[0])
        if self.command == "GET" and self._respond_without_object(url.path):
            return
        route = route_of(url.path, self._api.registry.kinds)
        action = _ACTIONS.get((self.command, bool(route.name)))
        if action is None:
            why = "the server does not allow this method on the requested resource"
            raise KubeAPIError(why, status=405, reason="MethodNotAllowed")
        action(self, route, body)

    def _respond_without_object(self, path: str) -> bool:
        """Respond to a path that names no object; return whether the path is one."""
        if path in {"/healthz", "/livez", "/readyz"}:
            self._send(200, b"ok", "text/plain")
            return True
        response = _VERSION if path == "/version" else discovery(path, self._api.registry.kinds)
        if response is not None:
            self._respond(200, response)
        return response is not None

    def _get(self, route: ApiRoute, _: bytes) -> None:
        self._respond(200, self._api.entry(route.resource, route.namespace, route.name).encoded())

    def _list(self, route: ApiRoute, _: bytes) -> None:
        selection = (route.namespace, self._query.get("labelSelector", ""), self._query.get("fieldSelector", ""))
        version = self._query.get("resourceVersion", "")
        if self._query.get("watch") in {"1", "true"}:
            self._stream(route, self._api.open_watch(route.resource, version, *selection))
            return
        page = self._api.page(
            route.resource,
            *selection,
            limit=_integer("limit", self._query.get("limit") or 0),
            token=self._query.get("continue", ""),
        )
        if version.isdecimal() and int(version) > page.version:
            why = f"Timeout: Too large resource version: {version}, current: {page.version}"
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            details = {"causes": [cause], "retryAfterSeconds": 1}
            raise KubeAPIError(why, status=504, reason="Timeout", details=details)
        metadata: dict[str, Any] = {"resourceVersion": str(page.version)}
        if page.next:
            metadata["continue"] = page.next
        if page.remaining:
            metadata["remainingItemCount"] = page.remaining
        kind = {"kind": f"{route.resource.kind}List", "apiVersion": route.resource.api_version}
        self._respond(200, {**kind, "metadata": metadata, "items": [entry.encoded() for entry in page.entries]})

    def _post(self, route: ApiRoute, content: bytes) -> None:
        body = _object_of(route, content)
        self._respond(201, self._api.create(route.resource, body, namespace=route.namespace))

    def _post_to(self, route: ApiRoute, content: bytes) -> None:
        body = _json(content)
        if route.resource.plural != POD.plural or route.subresource not in {"eviction", "binding"}:
            raise api_errors.unknown_resource()
        if route.subresource == "binding":
            uid = (body.get("metadata") or {}).get("uid", "")
            self._api.bind(route.namespace, route.name, body["target"]["name"], uid=uid)
        else:
            uid = ((body.get("deleteOptions") or {}).get("preconditions") or {}).get("uid", "")
            self._api.evict(route.namespace, route.name, uid=uid)
        self._respond(201, _SUCCESS)

    def _patch(self, route: ApiRoute, content: bytes) -> None:
        kind_of_patch = self.headers.get_content_type()
        if kind_of_patch == APPLY_PATCH:
            self._apply(route, content)
            return
        if kind_of_patch != MERGE_PATCH:
            known = ", ".join((MERGE_PATCH, APPLY_PATCH))
            why = f"the body of the request was in an unknown format - accepted media types include: {known}"
            raise KubeAPIError(why, status=415, reason="UnsupportedMediaType")
        if "force" in self._query:
            raise api_errors.bad_options(ErrorCause("force", "Forbidden: may not be specified for non-apply patch"))
        where = {"namespace": route.namespace, "subresource": route.subresource}
        self._respond(200, self._api.patch(route.resource, route.name, _json(content), **where))

    def _apply(self, route: ApiRoute, content: bytes) -> None:
        """Apply server-side. The YAML body must also be JSON."""
        body, manager = _json(content), self._query.get("fieldManager", "")
        if not manager:
            raise api_errors.bad_options(ErrorCause("fieldManager", "Required value: is required for apply patch"))
        if (body.get("apiVersion"), body.get("kind")) != (route.resource.api_version, route.resource.kind):
            group, _, version = str(body.get("apiVersion", "")).rpartition("/")
            raise api_errors.bad_request(f"invalid object type: {group}/{version}, Kind={body.get('kind', '')}")
        if (body.get("metadata") or {}).get("managedFields"):
            raise api_errors.bad_request("metadata.managedFields must be nil")
        where = {"namespace": route.namespace, "subresource": route.subresource}
        force = self._query.get("force", "") in {"1", "true"}
        applied, new = self._api.applied(route.resource, route.name, body, manager=manager, force=force, **where)
        self._respond(201 if new else 200, applied)

    def _put(self, route: ApiRoute, content: bytes) -> None:
        where = {"namespace": route.namespace, "subresource": route.subresource}
        self._respond(200, self._api.update(route.resource, route.name, _object_of(route, content), **where))

    def _delete(self, route: ApiRoute, content: bytes) -> None:
        options = _json(content)
        preconditions = options.get("preconditions") or {}
        grace = options.get("gracePeriodSeconds", self._query.get("gracePeriodSeconds"))
        self._api.delete(
            route.resource,
            route.name,
            namespace=route.namespace,
            uid=preconditions.get("uid", ""),
            resource_version=preconditions.get("resourceVersion", ""),
            grace_period_seconds=None if grace is None else _integer("gracePeriodSeconds", grace),
        )
        self._respond(200, _SUCCESS)

    def _respond(self, status: int, content: Any) -> None:
        self._send(status, msgspec.json.encode(content), "application/json")

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if "gzip" in (self.headers.get("Accept-Encoding") or "") and len(body) >= _GZIP_FROM_BYTES:
            body = gzip.compress(body, compresslevel=1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, route: ApiRoute, watch: WatchStream) -> None:
        """Stream JSON documents, one per line and chunk, until the client's timeout."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self._stream_events(route, watch)
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client disconnected

    def _stream_events(self, route: ApiRoute, watch: WatchStream) -> None:
        end = time.monotonic() + _integer("timeoutSeconds", self._query.get("timeoutSeconds") or _WATCH_SECONDS)
        wants_bookmarks = self._query.get("allowWatchBookmarks") in {"1", "true"}
        bookmarked, idle_since = -1, time.monotonic()
        while (now := time.monotonic()) < end and not self.server.closing.is_set():
            try:
                events = watch.take()
            except GoneError as error:
                self._chunk("ERROR", api_errors.status_of(error))
                return
            for type_, entry in events:
                self._chunk(type_, entry.encoded())
                idle_since = now
            if wants_bookmarks and watch.version > bookmarked and now - idle_since >= _BOOKMARK_AFTER_SECONDS:
                bookmarked = self._bookmark(route, watch)
            self.wfile.flush()
            watch.wait(min(end - now, _BOOKMARK_AFTER_SECONDS / 4))
        if wants_bookmarks and watch.version > bookmarked:
            self._bookmark(route, watch)

    def _bookmark(self, route: ApiRoute, watch: WatchStream) -> int:
        kind = {"kind": route.resource.kind, "apiVersion": route.resource.api_version}
        self._chunk("BOOKMARK", {**kind, "metadata": {"resourceVersion": str(watch.version)}})
        return watch.version

    def _chunk(self, type_: str, obj: Any) -> None:
        line = msgspec.json.encode({"type": type_, "object": obj}) + b"\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))


_ACTIONS: Final[Mapping[tuple[str, bool], Callable[[_Handler, ApiRoute, bytes], None]]] = {
    # (method, whether the path names one object)
    ("GET", False): _Handler._list,  # noqa: SLF001 - the handler's dispatch table
    ("GET", True): _Handler._get,  # noqa: SLF001 - same
    ("POST", False): _Handler._post,  # noqa: SLF001 - same
    ("POST", True): _Handler._post_to,  # noqa: SLF001 - same
    ("PATCH", True): _Handler._patch,  # noqa: SLF001 - same
    ("PUT", True): _Handler._put,  # noqa: SLF001 - same
    ("DELETE", True): _Handler._delete,  # noqa: SLF001 - same
}


def _json(body: bytes) -> Mapping[str, Any]:
    """Return the body as a JSON object; empty if the request has no body. Raises a 400 BadRequest if it is invalid."""
    if not body:
        return {}
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise api_errors.bad_request(f"the body of the request is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise api_errors.bad_request("the body of the request must be a JSON object")
    return content


def _integer(name: str, value: Any) -> int:
    """Return an integer of a query or body. Raises a 400 BadRequest if the value is not an integer."""
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise api_errors.bad_request(f"{name}: {value!r} is not an integer") from error


def _object_of(route: ApiRoute, content: bytes) -> Mapping[str, Any]:
    """Return the body as an object of the route's kind. Raises a 400 BadRequest if it has another kind."""
    body = _json(content)
    sent = body.get("kind", route.resource.kind)
    if sent != route.resource.kind:
        why = f"{sent} in the body, but {route.resource.kind} is expected at this address"
        raise api_errors.bad_request(why)
    return body


_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


class ApiRoute(Struct, frozen=True, kw_only=True):
    """The target of a path: a collection (without `name`), an object, or a subresource."""

    resource: Resource[Any]
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class NoSuchPathError(Exception):
    """A path for which the server sends a plain-text 404."""


def route_of(path: str, kinds: Iterable[ServedKind]) -> ApiRoute:
    """Return the route of a path.

    Raises:
        NotFoundError: The path is in a built-in group, which has no such resource.
        NoSuchPathError: The server serves nothing at the path, or it is in a group of CustomResourceDefinitions.
    """
    group, version, rest = _group_version(path.strip("/").split("/"))
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3:
        raise api_errors.unknown_resource()
    plural, name, subresource = (*rest, "", "")[:3]
    built_in = False
    for kind in kinds:
        resource = kind.resource
        if (resource.group, resource.version) != (group, version):
            continue
        built_in |= not kind.custom
        if resource.plural == plural:
            return ApiRoute(resource=resource, namespace=namespace, name=name, subresource=subresource)
    raise api_errors.unknown_resource() if built_in else NoSuchPathError(path)


def _group_version(parts: list[str]) -> tuple[str, str, list[str]]:
    if parts[0] == "api" and len(parts) > 1:
        return "", parts[1], parts[2:]
    if parts[0] == "apis" and len(parts) > 2:
        return parts[1], parts[2], parts[3:]
    raise NoSuchPathError("/".join(parts))


def discovery(path: str, kinds: Iterable[ServedKind]) -> dict[str, Any] | None:
    """Return the response to a discovery path (`/api`, `/apis`, `/api/v1`, `/apis/GROUP/VERSION`); None for others."""
    parts = path.strip("/").split("/")
    served = tuple(kinds)
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if parts == ["apis"]:
        versions = sorted({kind.resource.api_version for kind in served if kind.resource.group})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(version) for version in versions]}
    if (parts[0] == "api" and len(parts) == 2) or (parts[0] == "apis" and len(parts) == 3):
        api_version = "/".join(parts[1:])
        resources = [_described(kind) for kind in served if kind.resource.api_version == api_version]
        if resources:
            listed = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version}
            return {**listed, "resources": resources}
    return None


def _group(api_version: str) -> dict[str, Any]:
    group, _, version = api_version.partition("/")
    offered = {"groupVersion": api_version, "version": version}
    return {"name": group, "versions": [offered], "preferredVersion": offered}


def _described(kind: ServedKind) -> dict[str, Any]:
    resource = kind.resource
    singular = resource.kind.lower()
    return {
        "name": resource.plural,
        "singularName": singular,
        "kind": resource.kind,
        "namespaced": resource.namespaced,
        "verbs": _VERBS,
    }
