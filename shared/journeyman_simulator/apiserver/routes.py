"""Which object or collection a URL path names, and what a client can discover about the kinds served.

Restates: k8s.io/apiserver `pkg/endpoints/request/requestinfo.go` `NewRequestInfo`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from journeyman.core.api.objects import Resource
from journeyman_simulator.apiserver import refusals
from journeyman_simulator.apiserver.kinds import Kind

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


class Route(Struct, frozen=True, kw_only=True):
    """What a path names: a collection (no `name`), an object, or a subresource of it."""

    resource: Resource[Any]
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class NoSuchPathError(Exception):
    """A path that belongs to nobody: the server says so in plain text."""


def route(path: str, kinds: Iterable[Kind]) -> Route:
    """The route behind a path.

    Raises:
        NotFoundError: A group of the server's own has no such resource.
        NoSuchPathError: Nothing is served there; so it is in groups that only definitions make.
    """
    group, version, rest = _group_version(path.strip("/").split("/"))
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3:
        raise refusals.unknown_resource()
    plural, name, subresource = (*rest, "", "")[:3]
    built_in = False
    for kind in kinds:
        resource = kind.resource
        if (resource.group, resource.version) != (group, version):
            continue
        built_in |= not kind.custom
        if resource.plural == plural:
            return Route(resource=resource, namespace=namespace, name=name, subresource=subresource)
    raise refusals.unknown_resource() if built_in else NoSuchPathError(path)


def _group_version(parts: list[str]) -> tuple[str, str, list[str]]:
    if parts[0] == "api" and len(parts) > 1:
        return "", parts[1], parts[2:]
    if parts[0] == "apis" and len(parts) > 2:
        return parts[1], parts[2], parts[3:]
    raise NoSuchPathError("/".join(parts))


def discovery(path: str, kinds: Iterable[Kind]) -> dict[str, Any] | None:
    """The answer to a discovery path (`/api`, `/apis`, `/api/v1`, `/apis/GROUP/VERSION`), None for any other."""
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


def _described(kind: Kind) -> dict[str, Any]:
    resource = kind.resource
    singular = resource.kind.lower()
    return {
        "name": resource.plural,
        "singularName": singular,
        "kind": resource.kind,
        "namespaced": resource.namespaced,
        "verbs": _VERBS,
    }
