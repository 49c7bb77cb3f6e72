"""Requests to an API server, from its own audit log, and the rights that the chart's roles grant.

The API server writes a line for each request that it answered: the caller, the verb and the resource as authorization
saw them, and what authorization decided.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "users": ["admin"]},
        {"level": "None", "users": ["system:apiserver"]},
        {"level": "Metadata"},
    ],
}


class Request(Struct, frozen=True, kw_only=True):
    """One request, as authorization saw it."""

    user: str
    verb: str
    group: str
    resource: str  # with its subresource: pods/eviction
    namespace: str
    name: str
    allowed: bool

    def __str__(self) -> str:
        return _permission_text(self)


class Right(Struct, frozen=True, kw_only=True):
    """One verb on one resource; empty `namespace` and `name` mean all of them."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def covers(self, request: Request) -> bool:
        """Return whether this right permits the request."""
        same = (self.verb, self.group, self.resource) == (request.verb, request.group, request.resource)
        return same and self.namespace in {"", request.namespace} and self.name in {"", request.name}

    def __str__(self) -> str:
        return _permission_text(self)


def _permission_text(permission: Request | Right) -> str:
    where = f" in {permission.namespace}" if permission.namespace else ""
    group = f".{permission.group}" if permission.group else ""
    return f"{permission.verb} {permission.resource}{group} {permission.name}{where}"


class AuditLog:
    """The log of one API server.

    Args:
        folder: The folder of policy and log.
    """

    def __init__(self, folder: Path) -> None:
        self._log = folder / "audit.log"
        policy = folder / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(_POLICY))
        self.flags = (
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self._log}",
            "--audit-log-mode=blocking-strict",  # the API server logs a request before it answers
        )

    def requests(self) -> Iterator[Request]:
        """Yield all requests for resources so far, in order, without those for `/version` or discovery."""
        for line in self._log.read_text().splitlines():
            event = json.loads(line)
            if ref := event.get("objectRef"):
                yield from (_request(event, ref, verb) for verb in _verbs(event))


def _verbs(event: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the verbs that a request needs; an apply that creates an object needs `create` too (not logged)."""
    made = event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == 201
    return ("patch", "create") if made else (event["verb"],)


def _request(event: Mapping[str, Any], ref: Mapping[str, str], verb: str) -> Request:
    return Request(
        user=event["user"]["username"],
        verb=verb,
        group=ref.get("apiGroup", ""),
        resource="/".join(filter(None, (ref["resource"], ref.get("subresource")))),
        namespace=ref.get("namespace", ""),
        name=ref.get("name", ""),
        allowed=event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow",
    )


def granted(documents: Iterable[Mapping[str, Any]], subject: str) -> set[Right]:
    """Return the rights that bindings among these objects grant to a group or service account of that name."""
    objects = list(documents)
    roles = {(d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]): d for d in objects}
    found: set[Right] = set()
    for binding in objects:
        if binding["kind"] in {"ClusterRoleBinding", "RoleBinding"} and _names(binding, subject):
            namespace, ref = binding["metadata"].get("namespace", ""), binding["roleRef"]
            role = roles[ref["kind"], namespace if ref["kind"] == "Role" else "", ref["name"]]
            found.update(right for rule in role["rules"] for right in _rights(rule, namespace))
    return found


def _names(binding: Mapping[str, Any], subject: str) -> bool:
    return any(s["name"] == subject for s in binding["subjects"])


def _rights(rule: Mapping[str, Any], namespace: str) -> Iterator[Right]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", [""]):
                    yield Right(verb=verb, group=group, resource=resource, namespace=namespace, name=name)
