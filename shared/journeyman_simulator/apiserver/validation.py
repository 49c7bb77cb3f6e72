"""What the API server refuses in nodes, events, budgets and leases: the mistakes that are made when writing them.

Restates: kubernetes `pkg/apis/core/validation/validation.go` `ValidateNodeUpdate`, `validateNodeTaints`,
`pkg/apis/core/validation/events.go` `legacyValidateEvent`, `pkg/apis/policy/validation`, `pkg/apis/coordination/validation`.
Differs: a Lease's times and strategies are not looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from journeyman_simulator.apiserver.metadata import label_value_problem, qualified_name_problem
from journeyman_simulator.apiserver.refusals import Cause

JSON = Mapping[str, Any]

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_EVICTION_POLICIES: Final = ("AlwaysAllow", "IfHealthyBudget")
_PERCENT: Final = re.compile("[0-9]+%", re.ASCII)


def node(new: JSON, old: JSON | None) -> Iterable[Cause]:
    """What is wrong with a node: its taints, or a provider id that changes."""
    spec = new.get("spec") or {}
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(spec.get("taints") or ()):
        key, effect = str(taint.get("key", "")), str(taint.get("effect", ""))
        yield from _taint(f"metadata.taints[{index}]", key, str(taint.get("value", "")), effect)
        if (key, effect) in seen:
            shown = {"Key": key, "Value": str(taint.get("value", "")), "Effect": effect, "TimeAdded": None}
            why = "taints must be unique by key and effect pair"
            yield Cause(f"metadata.taints[{index}]", f"Duplicate value: {_go(shown)}: {why}")
        seen.add((key, effect))
    before = ((old or {}).get("spec") or {}).get("providerID")
    if before and spec.get("providerID") != before:
        why = 'Forbidden: node updates may not change providerID except from "" to valid'
        yield Cause("spec.providerID", why)


def event(new: JSON, _old: JSON | None) -> Iterable[Cause]:
    """What is wrong with an event: it must live where its object does, for cluster-scoped objects in `default`."""
    namespace = new["metadata"]["namespace"]
    involved = (new.get("involvedObject") or {}).get("namespace", "")
    if namespace != (involved or "default"):
        yield Cause("involvedObject.namespace", f'Invalid value: "{involved}": does not match event.namespace')


def budget(new: JSON, _old: JSON | None) -> Iterable[Cause]:
    """What is wrong with a PodDisruptionBudget: both limits at once, or one that is no amount."""
    spec = new.get("spec") or {}
    limits = {field: spec[field] for field in ("minAvailable", "maxUnavailable") if spec.get(field) is not None}
    if len(limits) == 2:
        shown = {
            "MinAvailable": spec["minAvailable"],
            "Selector": spec.get("selector"),
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        yield Cause("spec", f"Invalid value: {_go(shown)}: minAvailable and maxUnavailable cannot be both set")
    for field, amount in limits.items():
        yield from _limit(f"spec.{field}", amount)
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in _EVICTION_POLICIES:
        supported = ", ".join(f'"{known}"' for known in _EVICTION_POLICIES)
        yield Cause("spec.unhealthyPodEvictionPolicy", f'Unsupported value: "{policy}": supported values: {supported}')


def lease(new: JSON, _old: JSON | None) -> Iterable[Cause]:
    """What is wrong with a Lease: numbers that cannot be."""
    spec = new.get("spec") or {}
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        yield Cause("spec.leaseDurationSeconds", f"Invalid value: {duration}: must be greater than 0")
    if transitions is not None and transitions < 0:
        yield Cause("spec.leaseTransitions", f"Invalid value: {transitions}: must be greater than or equal to 0")


def _limit(field: str, amount: int | str) -> Iterable[Cause]:
    if isinstance(amount, str) and not _PERCENT.fullmatch(amount):
        why = "a valid percent string must be a numeric string followed by an ending '%'"
        rule = "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
        yield Cause(field, f'Invalid value: "{amount}": {why} {rule}')
    elif isinstance(amount, int) and amount < 0:
        yield Cause(field, f"Invalid value: {amount}: must be greater than or equal to 0")


def _go(value: Any) -> str:
    """A value as the server shows it."""
    return json.dumps(value, separators=(",", ":"))


def _taint(field: str, key: str, value: str, effect: str) -> Iterable[Cause]:
    if problem := qualified_name_problem(key):
        yield Cause(f"{field}.key", problem)
    if problem := label_value_problem(value):
        yield Cause(f"{field}.value", problem)
    if effect not in _EFFECTS:
        supported = ", ".join(f'"{known}"' for known in _EFFECTS)
        yield Cause(f"{field}.effect", f'Unsupported value: "{effect}": supported values: {supported}')
