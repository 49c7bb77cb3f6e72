"""Sets defaults of pods and workloads, and validates pods, nodes, events, PodDisruptionBudgets and Leases.

Restates: kubernetes `pkg/apis/core/validation/validation.go` `ValidateNodeUpdate`, `validateNodeTaints`,
`pkg/apis/core/validation/events.go` `legacyValidateEvent`, `pkg/apis/policy/validation`, `pkg/apis/coordination/validation`.
Differs: a Lease's times and strategies are not validated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from journeyman.core.api.objects import POD
from journeyman.core.api.quantity import parse
from journeyman.errors import InvalidQuantityError
from journeyman_simulator.apiserver import api_errors
from journeyman_simulator.apiserver.api_errors import ErrorCause
from journeyman_simulator.apiserver.object_metadata import label_value_problem, qualified_name_problem

JSON = Mapping[str, Any]

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_EVICTION_POLICIES: Final = ("AlwaysAllow", "IfHealthyBudget")
_PERCENT: Final = re.compile("[0-9]+%", re.ASCII)


def validate_node(new: JSON, old: JSON | None) -> Iterable[ErrorCause]:
    """Yield the errors of a node: invalid taints, or a changed provider id."""
    spec = new.get("spec") or {}
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(spec.get("taints") or ()):
        key, effect = str(taint.get("key", "")), str(taint.get("effect", ""))
        yield from _taint(f"metadata.taints[{index}]", key, str(taint.get("value", "")), effect)
        if (key, effect) in seen:
            shown = {"Key": key, "Value": str(taint.get("value", "")), "Effect": effect, "TimeAdded": None}
            why = "taints must be unique by key and effect pair"
            yield ErrorCause(f"metadata.taints[{index}]", f"Duplicate value: {_go_syntax(shown)}: {why}")
        seen.add((key, effect))
    before = ((old or {}).get("spec") or {}).get("providerID")
    if before and spec.get("providerID") != before:
        why = 'Forbidden: node updates may not change providerID except from "" to valid'
        yield ErrorCause("spec.providerID", why)


def validate_event(new: JSON, _old: JSON | None) -> Iterable[ErrorCause]:
    """Yield an error if an event is not in its object's namespace, or in `default` for a cluster-scoped object."""
    namespace = new["metadata"]["namespace"]
    involved = (new.get("involvedObject") or {}).get("namespace", "")
    if namespace != (involved or "default"):
        yield ErrorCause("involvedObject.namespace", f'Invalid value: "{involved}": does not match event.namespace')


def validate_disruption_budget(new: JSON, _old: JSON | None) -> Iterable[ErrorCause]:
    """Yield the errors of a PodDisruptionBudget: both limits, or a malformed limit or policy."""
    spec = new.get("spec") or {}
    limits = {field: spec[field] for field in ("minAvailable", "maxUnavailable") if spec.get(field) is not None}
    if len(limits) == 2:
        shown = {
            "MinAvailable": spec["minAvailable"],
            "Selector": spec.get("selector"),
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        yield ErrorCause(
            "spec", f"Invalid value: {_go_syntax(shown)}: minAvailable and maxUnavailable cannot be both set"
        )
    for field, amount in limits.items():
        yield from _limit(f"spec.{field}", amount)
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in _EVICTION_POLICIES:
        supported = ", ".join(f'"{known}"' for known in _EVICTION_POLICIES)
        yield ErrorCause(
            "spec.unhealthyPodEvictionPolicy", f'Unsupported value: "{policy}": supported values: {supported}'
        )


def validate_lease(new: JSON, _old: JSON | None) -> Iterable[ErrorCause]:
    """Yield the errors of a Lease: negative numbers."""
    spec = new.get("spec") or {}
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        yield ErrorCause("spec.leaseDurationSeconds", f"Invalid value: {duration}: must be greater than 0")
    if transitions is not None and transitions < 0:
        yield ErrorCause("spec.leaseTransitions", f"Invalid value: {transitions}: must be greater than or equal to 0")


def _limit(field: str, amount: int | str) -> Iterable[ErrorCause]:
    if isinstance(amount, str) and not _PERCENT.fullmatch(amount):
        why = "a valid percent string must be a numeric string followed by an ending '%'"
        rule = "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
        yield ErrorCause(field, f'Invalid value: "{amount}": {why} {rule}')
    elif isinstance(amount, int) and amount < 0:
        yield ErrorCause(field, f"Invalid value: {amount}: must be greater than or equal to 0")


def _go_syntax(value: Any) -> str:
    """Return a value in the notation of the server's messages."""
    return json.dumps(value, separators=(",", ":"))


def _taint(field: str, key: str, value: str, effect: str) -> Iterable[ErrorCause]:
    if problem := qualified_name_problem(key):
        yield ErrorCause(f"{field}.key", problem)
    if problem := label_value_problem(value):
        yield ErrorCause(f"{field}.value", problem)
    if effect not in _EFFECTS:
        supported = ", ".join(f'"{known}"' for known in _EFFECTS)
        yield ErrorCause(f"{field}.effect", f'Unsupported value: "{effect}": supported values: {supported}')


POD_FIELDS: Final = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
"""The fields that a field selector of pods can have."""

_SPEC_DEFAULTS: Final = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
}
_PRIORITIES: Final = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_MUTABLE: Final = frozenset(
    {"activeDeadlineSeconds", "tolerations", "schedulingGates", "terminationGracePeriodSeconds"}
)
_MUTABLE_OF_CONTAINERS: Final = frozenset({"image"})
RESIZE: Final = "resize"
"""The subresource of pods that changes the resources of their containers."""
_IMMUTABLE_MESSAGE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def default_pod(pod: JSON) -> JSON:
    """Return the pod with the defaults of spec, requests (from limits), priority and phase (Pending)."""
    spec = {**_SPEC_DEFAULTS, **(pod.get("spec") or {})}
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            spec[kind] = [_with_requests(container) for container in spec[kind]]
    priority = _PRIORITIES.get(spec.get("priorityClassName", ""))
    if priority is not None:
        spec.setdefault("priority", priority)
    return {**pod, "spec": spec, "status": {"phase": "Pending", **(pod.get("status") or {})}}


def default_replicas(workload: JSON) -> JSON:
    """Return the workload with one replica if it has no number of replicas."""
    return {**workload, "spec": {"replicas": 1, **(workload.get("spec") or {})}}


def validate_pod(new: JSON, old: JSON | None) -> Iterable[ErrorCause]:
    """Return the errors of a pod, or of the change from `old` to `new`.

    Raises:
        KubeAPIError: A quantity is malformed (400).
    """
    if old is not None and new["spec"] is old["spec"]:  # a status write
        return
    if not new["spec"].get("containers"):
        yield ErrorCause("spec.containers", "Required value")
    yield from _quantity_errors(new["spec"])
    if old is not None and _immutable_part(new["spec"]) != _immutable_part(old["spec"]):
        yield ErrorCause("spec", f"Forbidden: {_IMMUTABLE_MESSAGE}")


def resized_pod(old: JSON, requested: JSON) -> dict[str, Any]:
    """Return the pod with the resources of the requested one's containers and pod level; everything else stays.

    Raises:
        InvalidError: It has other containers, or in another order.
    """
    wanted = requested.get("spec") or {}
    spec = {key: value for key, value in old["spec"].items() if key != "resources"}
    if wanted.get("resources"):
        spec["resources"] = wanted["resources"]
    for kind in ("containers", "initContainers"):
        mine, theirs = (part.get(kind) or [] for part in (old["spec"], wanted))
        if causes := list(_other_containers(kind, mine, theirs)):
            raise api_errors.invalid(POD, old["metadata"]["name"], causes)
        if mine:
            resources = [container.get("resources") or {} for container in theirs]
            spec[kind] = [{**one, "resources": other} for one, other in zip(mine, resources, strict=True)]
    return {**old, "spec": spec}


def _other_containers(kind: str, mine: Sequence[JSON], theirs: Sequence[JSON]) -> Iterable[ErrorCause]:
    if len(mine) != len(theirs):
        yield ErrorCause(f"spec.{kind}", f"Forbidden: {kind} may not be added or removed on resize")
        return
    for index, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if one["name"] != other.get("name"):
            field = f"spec.{kind}[{index}].name"
            yield ErrorCause(field, f"Forbidden: {kind} may not be renamed or reordered on resize")


def is_terminal(pod: JSON) -> bool:
    """Whether the pod has completed."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def is_ready(pod: JSON) -> bool:
    """Whether the pod's Ready condition is True."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c.get("status") == "True" for c in conditions)


def grace_period(pod: JSON, requested: int | None) -> int:
    """Return the seconds between a pod's deletion and its removal: 0 if it has no node or has completed.

    Restates: kubernetes `pkg/registry/core/pod/strategy.go` `CheckGracefulDelete`.
    """
    spec = pod.get("spec") or {}
    if not spec.get("nodeName") or is_terminal(pod):
        return 0
    period = spec.get("terminationGracePeriodSeconds", 30) if requested is None else requested
    return 0 if period == 0 else max(int(period), 1)  # a negative period means one second


def _with_requests(container: JSON) -> JSON:
    """Return the container with its limits as missing requests."""
    resources = container.get("resources") or {}
    limits = resources.get("limits")
    if not limits:
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **(resources.get("requests") or {})}}}


def _quantity_errors(spec: JSON) -> Iterable[ErrorCause]:
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(kind) or ()):
            for part in ("requests", "limits"):
                amounts = (container.get("resources") or {}).get(part) or {}
                for name, amount in amounts.items():
                    field = f"spec.{kind}[{index}].resources.{part}[{name}]"
                    yield from _quantity_error(field, amount)


def _quantity_error(field: str, amount: Any) -> Iterable[ErrorCause]:
    try:
        negative = parse(amount).nano < 0
    except InvalidQuantityError as error:
        why = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        raise api_errors.bad_request(f'Pod in version "v1" cannot be handled as a Pod: {why}') from error
    if negative:
        yield ErrorCause(field, f'Invalid value: "{amount}": must be greater than or equal to 0')


def _immutable_part(spec: JSON) -> dict[str, Any]:
    frozen = {key: value for key, value in spec.items() if key not in _MUTABLE}
    for kind in ("containers", "initContainers"):
        frozen[kind] = [
            {key: value for key, value in container.items() if key not in _MUTABLE_OF_CONTAINERS}
            for container in spec.get(kind) or ()
        ]
    return frozen
