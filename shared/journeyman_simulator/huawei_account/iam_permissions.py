"""Denies the requests that a caller's IAM policies do not allow, and records which rights each caller uses.

A caller without policies may do everything, as the account itself. Policies are of version 1.1: a statement without `Resource`
is about all resources, and the services' names in actions and resources have no case.

Restates: IAM, "Custom policies"; FunctionGraph, "Creating a custom policy" (resources of functions).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.policy_statements import (
    GrantedRight,
    NeededRight,
    PolicyStatement,
    allowing_statement,
    granted_rights,
    read_statements,
    right_of,
)
from journeyman_simulator.huawei_account.rest_operations import RestOperation

JSON = Mapping[str, Any]
VERSION: Final = "1.1"
VIEW_DISCOUNTS: Final = "bss:discount:view"


class IamPermissions:
    """The policies of one account's callers, and what was used and denied of them.

    Attributes:
        used: The granted rights that requests used, by caller.
        needed: The (action, resource) pairs that requests needed, by caller.
        denied: The refused requests, as text.
    """

    def __init__(self, region: str, domain_id: str) -> None:
        self._region = region
        self._domain_id = domain_id
        self._statements: dict[str, tuple[PolicyStatement, ...]] = {}
        self._denied_actions: set[tuple[str, str]] = set()
        self.used: dict[str, set[GrantedRight]] = {}
        self.needed: dict[str, set[tuple[str, str]]] = {}
        self.denied: list[str] = []

    def attach(self, caller: str, policies: Mapping[str, JSON]) -> None:
        """Let a caller do only what these policies (documents by name) allow. Raises ConfigurationError for a bad document."""
        self._statements[caller] = tuple(
            statement for name, document in policies.items() for statement in _read_policy(name, document)
        )

    def granted(self, caller: str) -> frozenset[GrantedRight]:
        """Return the actions that the caller's policies allow."""
        return granted_rights(self._statements.get(caller, ()))

    def deny(self, caller: str, *actions: str) -> None:
        """Deny a caller actions ("cce:node:create"), whatever its policies allow."""
        self._denied_actions.update((caller, action) for action in actions)

    def allow(self, caller: str, *actions: str) -> None:
        """End `deny`."""
        self._denied_actions.difference_update((caller, action) for action in actions)

    def is_allowed(self, caller: str, operation: RestOperation, path: Mapping[str, str]) -> bool:
        """Whether a caller may call an operation, given the names in its path; it also records the answer."""
        if not operation.action:
            return True
        names = {**path, "function": function_resource(path.get("function_urn", ""))}
        return self._has_right(caller, operation.action, operation.resource.format(**names))

    def shows_discounts(self, caller: str) -> bool:
        """Whether a caller may see the account's discounts."""
        return self._has_right(caller, VIEW_DISCOUNTS, "")

    def _has_right(self, caller: str, action: str, resource: str) -> bool:
        service = action.partition(":")[0]
        name = f"{service}:{self._region}:{self._domain_id}:{resource or '*'}"
        self.needed.setdefault(caller, set()).add((action, name))
        right = NeededRight(action=action, resource=name, context={})
        statement = None
        if caller in self._statements:
            statement = allowing_statement(self._statements[caller], right)
        is_allowed = statement is not None or caller not in self._statements
        if (caller, action) in self._denied_actions or not is_allowed:
            self.denied.append(f"{caller}: {right}")
            return False
        if statement is not None:
            self.used.setdefault(caller, set()).add(right_of(statement, right))
        return True


def function_resource(urn: str) -> str:
    """Return the part of a function's URN that names it in policies: "default/journeyman-sweep"."""
    parts = urn.split(":")
    return "/".join(parts[5:7]) if len(parts) >= 7 else urn


def _read_policy(name: str, document: JSON) -> tuple[PolicyStatement, ...]:
    if document.get("Version") != VERSION:
        raise ConfigurationError(f"the version of policy {name} must be {VERSION!r}, not {document.get('Version')!r}")
    statements = [
        {**statement, "Resource": [_with_lower_service(each) for each in _listed(statement.get("Resource", "*"))]}
        for statement in document["Statement"]
    ]
    return read_statements(name, {"Statement": statements})


def _with_lower_service(resource: str) -> str:
    service, colon, rest = resource.partition(":")
    return f"{service.lower()}{colon}{rest}"


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
