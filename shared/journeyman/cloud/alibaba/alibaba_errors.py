"""Translate Alibaba Cloud's error codes into `journeyman.errors`.

Source: ECS API reference, "Error codes" of RunInstances, CreateAutoProvisioningGroup and DeleteInstances.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from journeyman.cloud.alibaba.open_api import OpenApiError
from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    NodeClaimNotFoundError,
    RateLimitedError,
)

NO_STOCK: Final = frozenset(
    {
        "ImageNotSupportInstanceType",
        "InstanceType.Offline",
        "InvalidInstanceType.NotSupported",
        "InvalidInstanceType.ZoneNotSupported",
        "InvalidResourceType.NotSupported",
        "NoInstanceStock",
        "OperationDenied.NoStock",
        "Zone.NotOnSale",
        "Zone.NotOpen",
    }
)
"""This instance type is unavailable in this zone; another type or zone may be available."""
NO_DISK: Final = frozenset(
    {"CategoryNotSupported", "InvalidDiskCategory.NotSupported", "OperationDenied.ZoneSystemCategoryNotMatch"}
)
"""None of the NodeClass's disk categories fits this instance type in this zone."""
SPOT_PRICE_TOO_LOW: Final = "InvalidSpotPriceLimit.LowerThanPublicPrice"
"""The Spot price rose above the limit of the request; it is the offering that is unavailable."""
NO_ADDRESSES: Final = frozenset({"QuotaExceeded.PrivateIpAddress", "InvalidVSwitchId.IpNotEnough"})
"""The vSwitch has no free IP address; another vSwitch may have one."""
UNFULFILLABLE: Final = NO_STOCK | NO_DISK | NO_ADDRESSES | {SPOT_PRICE_TOO_LOW}
TOKEN_REUSED: Final = "IdempotentParameterMismatch"  # noqa: S105 - an error code
IS_STARTING: Final = frozenset({"IncorrectInstanceStatus", "IncorrectInstanceStatus.Initializing"})
"""The instance cannot be deleted in its state; it can some seconds later."""

_INSTANCE_NOT_FOUND: Final = frozenset({"InvalidInstanceId.NotFound"})
_THROTTLED: Final = ("Throttling", "LastTokenProcessing")  # prefixes
_SERVER_ERRORS: Final = frozenset({"InternalError", "ServiceUnavailable"})
_EXPIRED: Final = frozenset(
    {"InvalidSecurityToken.Expired", "InvalidSecurityToken.Malformed", "InvalidTimeStamp.Expired"}
)
_WRONG_KEY: Final = ("InvalidAccessKeyId", "SignatureDoesNotMatch")  # prefixes
_UNAUTHORIZED: Final = ("Forbidden.RAM", "NoPermission", "Unauthorized")  # prefixes

# in this order: a code that starts with the text -> (reason, message of the Launched condition)
_LAUNCH_REASONS: Final[tuple[tuple[str, str, str], ...]] = (
    ("QuotaExceeded.PrivateIpAddress", "NoFreeAddress", "the vSwitch has no free IP address left"),
    ("InvalidVSwitchId.IpNotEnough", "NoFreeAddress", "the vSwitch has no free IP address left"),
    ("QuotaExceed.ElasticQuota", "VCPULimitExceeded", "the vCPU quota is used up; request a higher one"),
    ("QuotaExceeded.ElasticQuota", "VCPULimitExceeded", "the vCPU quota is used up; request a higher one"),
    ("QuotaExceed.Spot", "SpotQuotaExceeded", "the quota of preemptible instances is used up; request a higher one"),
    ("QuotaExceed", "QuotaExceeded", "a quota of the account is used up; request a higher one"),
    ("SecurityGroupInstanceLimitExceed", "SecurityGroupFull", "the security group can hold no further instance"),
    ("Account.Arrearage", "AccountInArrears", "the account has an overdue payment; pay it, then launches work again"),
    ("InsufficientBalance", "AccountInArrears", "the account's balance is too low; add funds"),
    ("InvalidAccountStatus.NotEnoughBalance", "AccountInArrears", "the account's balance is too low; add funds"),
    ("RealNameAuthenticationError", "AccountPendingVerification", "the account's owner has not been verified"),
    ("Forbidden.RiskControl", "AccountRestricted", "the account is restricted by risk control; ask Alibaba Cloud"),
    (
        "InvalidUser.PassRoleForbidden",
        "Unauthorized",
        "the function's role may not pass the node role: grant ram:PassRole",
    ),
    ("Forbidden", "Unauthorized", "the function's role lacks a permission"),
    ("NoPermission", "Unauthorized", "the function's role lacks a permission"),
    ("InvalidImageId", "ImageNotFound", "the image does not exist in this region or may not be used"),
    ("InvalidImage", "ImageNotFound", "the image does not exist in this region or may not be used"),
    ("InvalidVSwitchId", "VSwitchNotFound", "the vSwitch does not exist in this region"),
    ("InvalidSecurityGroupId", "SecurityGroupNotFound", "the security group does not exist, or is of another VPC"),
    ("InvalidKeyPairName", "KeyPairNotFound", "the key pair does not exist in this region"),
    ("InvalidRamRole", "RAMRoleNotFound", "the RAM role of the nodes does not exist, or does not trust ECS"),
    ("InvalidUserData.SizeExceeded", "UserDataSizeLimitExceeded", "the user data is larger than ECS accepts (32 KiB)"),
    ("InvalidSystemDisk", "SystemDiskInvalid", "ECS does not accept the system disk; see spec.systemDisk"),
    ("InvalidRegionId", "RegionNotFound", "the region does not exist; correct the cluster's registration"),
    ("OperationDenied.NoStock", "NoStock", "there is no stock of the instance type in the zone"),
    ("NoInstanceStock", "NoStock", "there is no stock of the instance type in the zone"),
    ("Throttling", "RequestLimitExceeded", "Alibaba Cloud throttles our requests"),
    ("InternalError", "InternalError", "Alibaba Cloud had an internal error"),
)


@contextmanager
def translated(operation: str, **context: Any) -> Iterator[None]:
    """Translate the errors of one request into `journeyman.errors`, with the original as cause.

    Args:
        operation: `service:Action`, as RAM writes it, so that a refusal names the permission to grant.
        context: Values for the log. `code` (the service's error code), `request_id` and `operation` are added.

    Raises:
        NodeClaimNotFoundError: The instance does not exist.
        RateLimitedError: Alibaba Cloud throttled the request; the next run tries again.
        CloudUnavailableError: It had an internal error or cannot be reached; the next run tries again.
        CloudProviderError: It rejected the request; a retry would also fail.
    """
    try:
        yield
    except OpenApiError as error:
        raise _from_response(error, operation, context) from error


def _from_response(error: OpenApiError, operation: str, context: dict[str, Any]) -> CloudProviderError:
    code, text = error.code, error.message
    facts = {"operation": operation, **context, "code": code, "request_id": error.request_id}
    if not error.status:
        return CloudUnavailableError(f"{operation} got no valid response: {text}", **facts)
    if code in _INSTANCE_NOT_FOUND:
        return NodeClaimNotFoundError(f"the instance does not exist: {text}", **facts)
    if code.startswith(_THROTTLED) or error.status == 429:
        return RateLimitedError(f"Alibaba Cloud throttles {operation}: {text}", **facts)
    if code in _SERVER_ERRORS or error.status >= 500:
        return CloudUnavailableError(f"{operation} failed inside Alibaba Cloud: {text}", **facts)
    if code in _EXPIRED:
        return CloudUnavailableError(f"the credentials for {operation} have expired: {text}", **facts)
    if code.startswith(_WRONG_KEY):
        text = f"the access key for {operation} is not valid; correct the function's role or credentials ({text})"
        return CloudProviderError(text, **facts)
    if code.startswith(_UNAUTHORIZED):
        return CloudProviderError(f"not allowed: grant {operation} to the function's role ({text})", **facts)
    return CloudProviderError(f"{operation} was refused: {code}: {text}", **facts)


def error_code(error: CloudProviderError) -> str:
    """Return the service's error code of a translated error; empty if there was no response."""
    return str(error.context.get("code", ""))


def launch_reason(code: str) -> tuple[str, str]:
    """Return reason and message of the Launched condition for a failed launch."""
    for prefix, reason, message in _LAUNCH_REASONS:
        if code.startswith(prefix):
            return reason, message
    return "LaunchFailed", "the instance could not be launched"
