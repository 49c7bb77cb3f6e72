"""What the API server does to pods beyond storing them: defaults, admission, and which fields may change.

Restates: kubernetes `pkg/apis/core/v1/defaults.go`, `pkg/apis/core/validation/validation.go` `ValidatePodUpdate`,
`plugin/pkg/admission/priority` (the two built-in priority classes only).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from journeyman.core.api.quantity import parse
from journeyman.errors import InvalidQuantityError
from journeyman_simulator.apiserver import refusals
from journeyman_simulator.apiserver.refusals import Cause

JSON = Mapping[str, Any]

FIELDS: Final = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
"""The fields pods can be selected by."""

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
_MUTABLE_OF_CONTAINERS: Final = frozenset({"image", "resources"})
_FROZEN: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def default(pod: JSON) -> JSON:
    """The pod as the API server completes it: spec defaults, requests from limits, priority, phase Pending."""
    spec = {**_SPEC_DEFAULTS, **(pod.get("spec") or {})}
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            spec[kind] = [_with_requests(container) for container in spec[kind]]
    priority = _PRIORITIES.get(spec.get("priorityClassName", ""))
    if priority is not None:
        spec.setdefault("priority", priority)
    return {**pod, "spec": spec, "status": {"phase": "Pending", **(pod.get("status") or {})}}


def default_replicas(workload: JSON) -> JSON:
    """A workload runs one replica unless it says otherwise."""
    return {**workload, "spec": {"replicas": 1, **(workload.get("spec") or {})}}


def validate(new: JSON, old: JSON | None) -> Iterable[Cause]:
    """What is wrong with a pod, or with the change from `old` to `new`.

    Raises:
        KubeAPIError: 400, a quantity cannot be read.
    """
    if old is not None and new["spec"] is old["spec"]:  # a status write
        return
    if not new["spec"].get("containers"):
        yield Cause("spec.containers", "Required value")
    yield from _bad_quantities(new["spec"])
    if old is not None and _frozen_part(new["spec"]) != _frozen_part(old["spec"]):
        yield Cause("spec", f"Forbidden: {_FROZEN}")


def is_terminal(pod: JSON) -> bool:
    """Whether the pod has run to its end."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def is_ready(pod: JSON) -> bool:
    """Whether the pod's Ready condition is True."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def grace_period(pod: JSON, asked: int | None) -> int:
    """Seconds a deletion leaves the pod: none if it never got to a node or has ended.

    Restates: kubernetes `pkg/registry/core/pod/strategy.go` `CheckGracefulDelete`.
    """
    spec = pod.get("spec") or {}
    if not spec.get("nodeName") or is_terminal(pod):
        return 0
    period = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return 0 if period == 0 else max(int(period), 1)  # a negative period means one second


def _with_requests(container: JSON) -> JSON:
    """Where a limit has no request, the request is the limit."""
    resources = container.get("resources") or {}
    limits = resources.get("limits")
    if not limits:
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **(resources.get("requests") or {})}}}


def _bad_quantities(spec: JSON) -> Iterable[Cause]:
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(kind) or ()):
            for part in ("requests", "limits"):
                amounts = (container.get("resources") or {}).get(part) or {}
                for name, amount in amounts.items():
                    field = f"spec.{kind}[{index}].resources.{part}[{name}]"
                    yield from _bad_quantity(field, amount)


def _bad_quantity(field: str, amount: Any) -> Iterable[Cause]:
    try:
        negative = parse(amount).nano < 0
    except InvalidQuantityError as error:
        why = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        raise refusals.bad_request(f'Pod in version "v1" cannot be handled as a Pod: {why}') from error
    if negative:
        yield Cause(field, f'Invalid value: "{amount}": must be greater than or equal to 0')


def _frozen_part(spec: JSON) -> dict[str, Any]:
    frozen = {key: value for key, value in spec.items() if key not in _MUTABLE}
    for kind in ("containers", "initContainers"):
        frozen[kind] = [
            {key: value for key, value in container.items() if key not in _MUTABLE_OF_CONTAINERS}
            for container in spec.get(kind) or ()
        ]
    return frozen
