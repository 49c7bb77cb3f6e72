"""Passes requests of a cloud's HTTP trigger or API gateway to the HTTP API, a Chalice application (`runtime.api`).

Chalice reads the events of AWS's API Gateway, which finds the route of a request. The gateways of the other clouds pass on all
paths, so the route is found here.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Struct, field

from journeyman.runtime.composition import Context

NOT_FOUND: Final = {"error": "NotFound", "message": "no such route"}
NO_BASE64: Final = {"error": "BadRequest", "message": "the body is not valid Base64"}


class HttpRequest(Struct, frozen=True, kw_only=True):
    """A request, as every cloud's trigger passes it in its own shape."""

    method: str  # in capitals
    path: str  # may be URL-encoded
    headers: Mapping[str, str]
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    body: str | None = None
    is_base64: bool = False  # whether `body` is
    request_id: str = ""
    source_ip: str = ""


def respond(app: Any, request: HttpRequest, context: Context) -> dict[str, Any]:
    """Return the application's response to a request: status code, headers, body, and whether the body is Base64."""
    event = chalice_event(request, app.routes)
    if event is None:
        return _refusal(404, NOT_FOUND)
    if request.is_base64 and not _is_base64(request.body or ""):
        return _refusal(400, NO_BASE64)  # Chalice would fail
    return http_response(app(event, context))


def _refusal(status: int, body: Mapping[str, str]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    return http_response({"statusCode": status, "headers": headers, "body": msgspec.json.encode(body).decode()})


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text)
    except ValueError:  # binascii's error is a subclass
        return False
    return True


def chalice_event(request: HttpRequest, routes: Iterable[str]) -> dict[str, Any] | None:
    """Return a request as API Gateway would pass it to Chalice; None if no route has its path.

    Args:
        request: The request.
        routes: The paths of the application, such as `/clusters/{name}/plan`.
    """
    found = ((route, names) for route in routes if (names := _path_parameters(route, request.path)) is not None)
    route, names = next(found, ("", None))
    if names is None:
        return None
    return {
        "resource": route,
        "path": request.path,
        "httpMethod": request.method,
        "headers": dict(request.headers),
        "multiValueQueryStringParameters": {name: list(values) for name, values in request.query.items()} or None,
        "pathParameters": names,
        "stageVariables": None,
        "requestContext": {
            "resourcePath": route,
            "httpMethod": request.method,
            "requestId": request.request_id,
            "identity": {"sourceIp": request.source_ip},
        },
        "body": request.body,
        "isBase64Encoded": request.is_base64,
    }


def _path_parameters(route: str, path: str) -> dict[str, str] | None:
    """Return the values of the parameters of a route in a URL-encoded path; None if the path is of another route."""
    parts, given = route.strip("/").split("/"), path.strip("/").split("/")
    if len(parts) != len(given):
        return None
    values: dict[str, str] = {}
    for part, text in zip(parts, given, strict=True):
        if part.startswith("{") and text:
            values[part.strip("{}")] = unquote(text)
        elif part != text:
            return None
    return values


def http_response(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return Chalice's response as the answer of a function: with all four fields, and repeated headers joined by commas."""
    repeated = {name: ", ".join(values) for name, values in (answer.get("multiValueHeaders") or {}).items()}
    return {
        "statusCode": answer["statusCode"],
        "headers": {**(answer.get("headers") or {}), **repeated},
        "body": answer["body"],
        "isBase64Encoded": bool(answer.get("isBase64Encoded", False)),
    }
