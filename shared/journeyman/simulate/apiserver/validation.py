"""What the API server refuses in nodes and events: the mistakes a controller makes when it writes them.

Restates: kubernetes `pkg/apis/core/validation/validation.go` `ValidateNodeUpdate`, `validateNodeTaints`,
`pkg/apis/core/validation/events.go` `legacyValidateEvent`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from journeyman.simulate.apiserver.metadata import label_value_problem, qualified_name_problem
from journeyman.simulate.apiserver.refusals import Cause

JSON = Mapping[str, Any]

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def node(new: JSON, old: JSON | None) -> Iterable[Cause]:
    """What is wrong with a node: its taints, or a provider id that changes."""
    spec = new.get("spec") or {}
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(spec.get("taints") or ()):
        key, effect = str(taint.get("key", "")), str(taint.get("effect", ""))
        yield from _taint(f"spec.taints[{index}]", key, str(taint.get("value", "")), effect)
        if (key, effect) in seen:
            yield Cause(f"spec.taints[{index}]", f'Duplicate value: "{key}:{effect}"')
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


def _taint(field: str, key: str, value: str, effect: str) -> Iterable[Cause]:
    if problem := qualified_name_problem(key):
        yield Cause(f"{field}.key", problem)
    if problem := label_value_problem(value):
        yield Cause(f"{field}.value", problem)
    if effect not in _EFFECTS:
        yield Cause(f"{field}.effect", f'Unsupported value: "{effect}": supported values: {", ".join(_EFFECTS)}')
