"""Every way the API server says no, in its own words, and how a refusal looks on the wire.

Texts and codes follow k8s.io/apimachinery `pkg/api/errors/errors.go`, so that a log line from the simulation reads
like one from a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from journeyman.core.api.objects import Resource
from journeyman.errors import (
    AlreadyExistsError,
    ConflictError,
    GoneError,
    InvalidError,
    KubeAPIError,
    NotFoundError,
    TooManyRequestsError,
)


class Cause(Struct, frozen=True):
    """One field that is wrong, and how."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def group_resource(resource: Resource[Any]) -> str:
    """`pods` or `nodeclaims.karpenter.sh`."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def not_found(resource: Resource[Any], name: str) -> NotFoundError:
    """404: no such object."""
    return NotFoundError(f'{group_resource(resource)} "{name}" not found', status=404, reason="NotFound")


def unknown_resource() -> NotFoundError:
    """404: no such kind, or no such subresource of it."""
    return NotFoundError("the server could not find the requested resource", status=404, reason="NotFound")


def already_exists(resource: Resource[Any], name: str) -> AlreadyExistsError:
    """409: the name is taken."""
    message = f'{group_resource(resource)} "{name}" already exists'
    return AlreadyExistsError(message, status=409, reason="AlreadyExists")


def conflict(resource: Resource[Any], name: str, why: str) -> ConflictError:
    """409: a precondition does not hold."""
    message = f'Operation cannot be fulfilled on {group_resource(resource)} "{name}": {why}'
    return ConflictError(message, status=409, reason="Conflict")


def modified(resource: Resource[Any], name: str) -> ConflictError:
    """409: the resourceVersion is not the stored one."""
    return conflict(
        resource,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )


def other_incarnation(resource: Resource[Any], name: str, wanted: str, stored: str) -> ConflictError:
    """409: the UID is not the stored one."""
    return conflict(resource, name, f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {stored}")


def invalid(resource: Resource[Any], name: str, causes: Sequence[Cause]) -> InvalidError:
    """422: one or more fields are wrong."""
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    listed = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
    return InvalidError(f'{kind} "{name}" is invalid: {listed}', status=422, reason="Invalid")


def bad_request(why: str) -> KubeAPIError:
    """400: the request makes no sense."""
    return KubeAPIError(why, status=400, reason="BadRequest")


def internal(why: str) -> KubeAPIError:
    """500: the server gave up."""
    return KubeAPIError(why, status=500, reason="InternalError")


def too_old(wanted: int, oldest: int) -> GoneError:
    """410: that version is no longer in the history."""
    return GoneError(f"too old resource version: {wanted} ({oldest})", status=410, reason="Expired")


def budget_refuses(cause: str, retry_after_seconds: float = 0.0) -> TooManyRequestsError:
    """429: a PodDisruptionBudget forbids the eviction; `cause` says which and why."""
    return TooManyRequestsError(
        "Cannot evict pod as it would violate the pod's disruption budget.",
        retry_after_seconds=retry_after_seconds,
        status=429,
        reason="TooManyRequests",
        cause=cause,
    )


def status_of(error: KubeAPIError) -> dict[str, Any]:
    """The `Status` body that tells a client about this refusal."""
    details: dict[str, Any] = {}
    if "cause" in error.context:
        details["causes"] = [{"reason": "DisruptionBudget", "message": error.context["cause"]}]
    if isinstance(error, TooManyRequestsError) and error.retry_after_seconds > 0:
        details["retryAfterSeconds"] = round(error.retry_after_seconds)
    body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    body |= {"message": error.message, "reason": error.reason, "code": error.status or 500}
    return {**body, "details": details} if details else body
