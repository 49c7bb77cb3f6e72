"""Evaluates policy documents, which IAM of AWS and RAM of Alibaba Cloud have in common: statements, wildcards, conditions.

A call is allowed if a statement of the caller's policies allows each right that it needs, and none denies it. Which rights those
are is each cloud's (`iam_policies`, `ram_policies`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct

from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError

JSON = Mapping[str, Any]
ConditionValues = Mapping[str, tuple[str, ...]]
"""The values of condition keys."""


class NeededRight(Struct, frozen=True, kw_only=True):
    """An action on a resource, with the values of condition keys that its request has."""

    action: str
    resource: str
    context: ConditionValues

    def __str__(self) -> str:
        return f"{self.action} on {self.resource}"


class PolicyStatement(Struct, frozen=True, kw_only=True):
    """One statement of a policy."""

    policy: str
    name: str
    allows: bool
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: Mapping[str, Mapping[str, tuple[str, ...]]]

    def matches(self, right: NeededRight) -> bool:
        """Whether the statement applies to the right. Raises NotSimulatedError for an unknown condition operator."""
        if not any(_like(pattern.lower(), right.action.lower()) for pattern in self.actions):
            return False
        if not any(_like(pattern, right.resource) for pattern in self.resources):
            return False
        return all(
            _holds(operator, right.context.get(key, ()), values)
            for operator, by_key in self.conditions.items()
            for key, values in by_key.items()
        )


class GrantedRight(Struct, frozen=True, order=True):
    """An action that a statement of a policy allows."""

    policy: str
    statement: str
    action: str

    def __str__(self) -> str:
        return f"{self.policy} {self.statement} {self.action}"


def read_statements(policy: str, document: JSON) -> tuple[PolicyStatement, ...]:
    """Return the statements of a policy document, whose intrinsic functions are evaluated."""
    return tuple(
        PolicyStatement(
            policy=policy,
            name=str(statement.get("Sid") or number),
            allows=statement["Effect"] == "Allow",
            actions=_texts(statement["Action"]),
            resources=_texts(statement["Resource"]),
            conditions={
                operator: {key: _texts(values) for key, values in by_key.items()}
                for operator, by_key in (statement.get("Condition") or {}).items()
            },
        )
        for number, statement in enumerate(_listed(document["Statement"]))
    )


def allowing_statement(statements: Iterable[PolicyStatement], right: NeededRight) -> PolicyStatement | None:
    """Return the first statement that allows the right; None if none does, or if one denies it."""
    matching = [statement for statement in statements if statement.matches(right)]
    if any(not statement.allows for statement in matching):
        return None
    return next(iter(matching), None)


def granted_rights(statements: Iterable[PolicyStatement]) -> frozenset[GrantedRight]:
    """Return every action that the statements allow."""
    return frozenset(GrantedRight(s.policy, s.name, action) for s in statements if s.allows for action in s.actions)


def right_of(statement: PolicyStatement, right: NeededRight) -> GrantedRight:
    """Return the action of a statement that allows a right."""
    action = next(a for a in statement.actions if _like(a.lower(), right.action.lower()))
    return GrantedRight(statement.policy, statement.name, action)


def _holds(operator: str, present: Sequence[str], wanted: Sequence[str]) -> bool:
    if operator in {"StringEquals", "ForAnyValue:StringEquals"}:
        return any(value in wanted for value in present)
    if operator == "ForAllValues:StringEquals":
        return all(value in wanted for value in present)
    if operator in {"StringLike", "ArnLike", "ArnEquals"}:
        return any(_like(pattern, value) for pattern in wanted for value in present)
    raise NotSimulatedError(f"the simulation does not support the condition operator {operator}")


def _like(pattern: str, text: str) -> bool:
    return _pattern(pattern).fullmatch(text) is not None


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in _listed(value))
