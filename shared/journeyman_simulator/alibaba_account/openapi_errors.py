"""Defines the HTTP status of each error code of Alibaba Cloud's services, and the errors that several services return.

A handler raises `cloud_rules.service_errors.ServiceError`; each transport converts it to the form that its callers expect.
"""

from __future__ import annotations

from typing import Final

from journeyman_simulator.cloud_rules.service_errors import ServiceError

_STATUS: Final = {
    "Account.Arrearage": 400,
    "EntityNotExist.Role": 404,
    "ErrorClusterNotFound": 404,
    "Forbidden.RAM": 403,
    "IncorrectInstanceStatus": 403,
    "InternalError": 500,
    "InvalidAccessKeyId.NotFound": 404,
    "InvalidAction.NotFound": 404,
    "InvalidImageId.NotFound": 404,
    "InvalidInstanceId.NotFound": 404,
    "InvalidKeyPairName.NotFound": 404,
    "InvalidOperation.DeletionProtection": 403,
    "InvalidRamRole.NotFound": 404,
    "InvalidRegionId.NotFound": 404,
    "InvalidResourceId.NotFound": 404,
    "InvalidSecurityGroupId.NotFound": 404,
    "InvalidVSwitchId.NotFound": 404,
    "InvalidInstanceType.ValueNotSupported": 400,
    "InvalidSpotPriceLimit.LowerThanPublicPrice": 400,
    "ErrorAddonNotFound": 404,
    "ErrorNodePoolNotFound": 404,
    "NoPermission": 403,
    "NotSimulated": 501,
    "QuotaExceed.AfterpayInstance": 400,
    "QuotaExceeded.PrivateIpAddress": 400,
    "ServiceUnavailable": 503,
}
_FORBIDDEN: Final = (  # the codes with these prefixes have status 403 unless `_STATUS` has another
    *("CategoryNotSupported", "Forbidden", "ImageNotSupportInstanceType", "IncorrectInstanceStatus", "InstanceType."),
    *("InvalidDiskCategory.", "InvalidInstanceType.", "InvalidResourceType.", "NoInstanceStock", "OperationDenied"),
    *("QuotaExceed", "SecurityGroupInstanceLimitExceed", "Zone."),
)

NO_STOCK: Final = frozenset({"NoInstanceStock", "OperationDenied.NoStock"})
"""The error codes of a type without stock, which a repeated client token returns again."""


def status_of(code: str) -> int:
    """Return the HTTP status of an error code."""
    return _STATUS.get(code) or (403 if code.startswith(_FORBIDDEN) else 400)


def invalid_parameter(name: str, reason: str) -> ServiceError:
    """Return the error for a parameter that the service rejects; `reason` completes "The parameter X ..."."""
    return ServiceError("InvalidParameter", f"The specified parameter {name} {reason}.")


def missing_parameter(name: str) -> ServiceError:
    """Return the error for a required parameter that the request lacks."""
    message = f"The input parameter {name} that is mandatory for processing this request is not supplied."
    return ServiceError("MissingParameter", message)


def instance_does_not_exist(instance_id: str) -> ServiceError:
    """Return the error for a change of an instance that does not exist."""
    return ServiceError("InvalidInstanceId.NotFound", f"The specified InstanceId {instance_id} does not exist.")


def not_authorized(action: str) -> ServiceError:
    """Return the error for an action ("ecs:RunInstances") that RAM does not allow the caller."""
    return ServiceError("Forbidden.RAM", f"User not authorized to operate on the specified resource: {action}.")


def dry_run_succeeded() -> ServiceError:
    """Return the error with which ECS answers a dry run that would succeed."""
    return ServiceError("DryRunOperation", "Request validation has been passed with DryRun flag set.")
