"""Builds the API server's errors: their codes, reasons and messages, and their `Status` in responses.

Messages and codes follow k8s.io/apimachinery `pkg/api/errors/errors.go`, so that a log line of the simulation equals one
of a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from journeyman.core.api.objects import Resource
from journeyman.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    KubeAPIError,
    NotFoundError,
    TooManyRequestsError,
)


class ErrorCause(Struct, frozen=True):
    """An invalid field, with a message that describes the mistake."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message

    @property
    def reason(self) -> str:
        """Return the machine-readable reason, which the start of the message determines."""
        if _WRONG_TYPE in self.message:
            return "FieldValueTypeInvalid"
        return next((reason for start, reason in _REASONS.items() if self.message.startswith(start)), _INVALID_VALUE)

    @property
    def blocks(self) -> bool:
        """Whether this error prevents the check of rules over the whole object."""
        return self.reason in _BLOCKING

    def on_wire(self) -> dict[str, str]:
        """Return the entry of a Status's `details.causes`."""
        return {"reason": self.reason, "message": self.message, "field": self.field}


_WRONG_TYPE: Final = "in body must be of type"
_INVALID_VALUE: Final = "FieldValueInvalid"
_REASONS: Final[Mapping[str, str]] = {
    "Required value": "FieldValueRequired",
    "Forbidden": "FieldValueForbidden",
    "Duplicate value": "FieldValueDuplicate",
    "Unsupported value": "FieldValueNotSupported",
    "Too long": "FieldValueTooLong",
    "Too many": "FieldValueTooMany",
}
_BLOCKING: Final = frozenset(
    {
        "FieldValueRequired",
        "FieldValueNotSupported",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    }
)


def group_resource(resource: Resource[Any]) -> str:
    """Return the group and plural: `pods`, `nodeclaims.karpenter.sh`."""
    return _qualified(resource.plural, resource.group)


def _qualified(word: str, group: str) -> str:
    return f"{word}.{group}" if group else word


def _details(resource: Resource[Any], name: str, kind: str) -> dict[str, Any]:
    return {key: value for key, value in {"name": name, "group": resource.group, "kind": kind}.items() if value}


def not_found(resource: Resource[Any], name: str) -> NotFoundError:
    """Return a 404: the object does not exist."""
    message = f'{group_resource(resource)} "{name}" not found'
    details = _details(resource, name, resource.plural)
    return NotFoundError(message, status=404, reason="NotFound", details=details)


def unknown_resource() -> NotFoundError:
    """Return a 404: the kind or its subresource does not exist."""
    return NotFoundError("the server could not find the requested resource", status=404, reason="NotFound")


def already_exists(resource: Resource[Any], name: str) -> AlreadyExistsError:
    """Return a 409: an object with the name exists."""
    message = f'{group_resource(resource)} "{name}" already exists'
    details = _details(resource, name, resource.plural)
    return AlreadyExistsError(message, status=409, reason="AlreadyExists", details=details)


def conflict(resource: Resource[Any], name: str, why: str, *, kind: str = "") -> ConflictError:
    """Return a 409: a precondition does not hold. `kind` is the kind's name in the message, by default the plural."""
    name_of_kind = kind or resource.plural
    message = f'Operation cannot be fulfilled on {_qualified(name_of_kind, resource.group)} "{name}": {why}'
    return ConflictError(message, status=409, reason="Conflict", details=_details(resource, name, name_of_kind))


def modified(resource: Resource[Any], name: str) -> ConflictError:
    """Return a 409: the resourceVersion is not the stored one."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def storage_precondition(resource: Resource[Any], key: str, name: str, wanted: str, stored: str) -> ConflictError:
    """Return a 409: the UID in a binding or a replacement is not the stored one; `key` is the object's storage key."""
    why = (
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {stored}"
    )
    return conflict(resource, name, why)


def uid_mismatch(resource: Resource[Any], name: str, wanted: str, stored: str) -> ConflictError:
    """Return a 409: the deletion's precondition has another UID."""
    why = (
        f"the UID in the precondition ({wanted}) does not match the UID in record ({stored}). "
        "The object might have been deleted and then recreated"
    )
    return conflict(resource, name, why, kind=resource.kind)


def version_mismatch(resource: Resource[Any], name: str, wanted: str, stored: str) -> ConflictError:
    """Return a 409: the deletion's precondition has another resourceVersion."""
    why = (
        f"the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({stored}). "
        "The object might have been modified"
    )
    return conflict(resource, name, why, kind=resource.kind)


def immutable_uid(resource: Resource[Any], name: str, wanted: str) -> ConflictError:
    """Return a 422: the patch has another UID. It is a ConflictError, as which callers handle it."""
    refused = invalid(resource, name, [ErrorCause("metadata.uid", f'Invalid value: "{wanted}": field is immutable')])
    return ConflictError(refused.message, status=422, reason="Invalid", details=refused.details)


def invalid(resource: Resource[Any], name: str, causes: Sequence[ErrorCause]) -> InvalidError:
    """Return a 422: one or more fields are invalid."""
    listed = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
    message = f'{_qualified(resource.kind, resource.group)} "{name}" is invalid: {listed}'
    details = {**_details(resource, name, resource.kind), "causes": [cause.on_wire() for cause in causes]}
    return InvalidError(message, status=422, reason="Invalid", details=details)


def namespace_is_terminating(resource: Resource[Any], name: str, namespace: str) -> ForbiddenError:
    """Return a 403: the namespace is terminating."""
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {namespace} is being terminated",
        "field": "metadata.namespace",
    }
    details = {**_details(resource, name, resource.plural), "causes": [cause]}
    message = f'{group_resource(resource)} "{name}" is forbidden: {why}'
    return ForbiddenError(message, status=403, reason="Forbidden", details=details)


def apply_conflicts(conflicts: Sequence[tuple[str, str]]) -> ConflictError:
    """Return a 409: other managers own fields that the apply would change, given as (manager, field) in field order."""
    owners = sorted({owner for owner, _ in conflicts})
    if len(conflicts) == 1:
        listed = f"conflict with {owners[0]}: {conflicts[0][1]}"
    else:
        groups = (
            f"conflicts with {owner}:" + "".join(f"\n- {path}" for whose, path in conflicts if whose == owner)
            for owner in owners
        )
        listed = "\n".join(groups)
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {owner}", "field": path}
        for owner, path in conflicts
    ]
    number = "1 conflict" if len(conflicts) == 1 else f"{len(conflicts)} conflicts"
    message = f"Apply failed with {number}: {listed}"
    return ConflictError(message, status=409, reason="Conflict", details={"causes": causes})


def undeclared(resource: Resource[Any], name: str, path: str) -> KubeAPIError:
    """Return a 500: the apply has a field that the schema does not declare."""
    what = f"/{name}; {resource.api_version}, Kind={resource.kind}"
    return internal_error(f"failed to create typed patch object ({what}): {path}: field not declared in schema")


def bad_options(cause: ErrorCause) -> InvalidError:
    """Return a 422: a patch option is missing, or belongs to another kind of patch."""
    details = {"group": "meta.k8s.io", "kind": "PatchOptions", "causes": [cause.on_wire()]}
    message = f'PatchOptions.meta.k8s.io "" is invalid: {cause}'
    return InvalidError(message, status=422, reason="Invalid", details=details)


def bad_request(why: str) -> KubeAPIError:
    """Return a 400: the request is malformed."""
    return KubeAPIError(why, status=400, reason="BadRequest")


def name_mismatch(wanted: str, name: str) -> KubeAPIError:
    """Return a 400: the name in the body differs from the name in the URL."""
    return bad_request(f"the name of the object ({wanted}) does not match the name on the URL ({name})")


def internal_error(why: str) -> KubeAPIError:
    """Return a 500 without a reason: an internal error."""
    return KubeAPIError(why, status=500)


def too_old(wanted: int, oldest: int) -> GoneError:
    """Return a 410: the version is no longer in the history."""
    return GoneError(f"too old resource version: {wanted} ({oldest})", status=410, reason="Expired")


def eviction_forbidden(cause: str) -> TooManyRequestsError:
    """Return a 429: a PodDisruptionBudget forbids the eviction; `cause` has its name and the reason."""
    return TooManyRequestsError(
        "Cannot evict pod as it would violate the pod's disruption budget.",
        retry_after_seconds=0.0,
        status=429,
        reason="TooManyRequests",
        details={"causes": [{"reason": "DisruptionBudget", "message": cause}]},
        cause=cause,
    )


def status_of(error: KubeAPIError) -> dict[str, Any]:
    """Return the error's `Status`."""
    body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    body |= {"message": error.message, "code": error.status or 500}
    facts = {"reason": error.reason, "details": dict(error.details)}
    return body | {key: value for key, value in facts.items() if value}
