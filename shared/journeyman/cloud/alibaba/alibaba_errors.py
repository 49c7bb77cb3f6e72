"""Translate Alibaba Cloud's error codes into `journeyman.errors`.

Source: ECS API reference, "Error codes" of RunInstances, CreateAutoProvisioningGroup and DeleteInstances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from journeyman.cloud.alibaba.open_api import OpenApiError
from journeyman.cloud.fault_rules import FaultRule
from journeyman.core.api.launch_faults import FaultScope
from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    NodeClaimNotFoundError,
    RateLimitedError,
)

SPOT_PRICE_TOO_LOW: Final = "InvalidSpotPriceLimit.LowerThanPublicPrice"
"""The Spot price rose above the limit of the request."""
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

_OFFERING, _CLASS, _POOL = FaultScope.OFFERING, FaultScope.NODE_CLASS, FaultScope.NODE_POOL
_SUBNET, _ACCOUNT = FaultScope.SUBNET, FaultScope.ACCOUNT
_QUOTA: Final = "request a higher one in the console, Quota Center, ECS (aliyun quotas CreateQuotaApplication)"
_HIGHER_QUOTA: Final = _QUOTA[0].upper() + _QUOTA[1:]
_MORE_TYPES: Final = (
    "Allow more instance types, zones or capacity types in the NodePool's spec.template.spec.requirements"
)
_WAIT: Final = "Nothing; the launch is repeated"
_DISK: Final = (
    "Add a category that the instance type has, such as cloud_essd, to spec.systemDisk.categories of the NodeClass; see aliyun ecs "
    "DescribeAvailableResource --DestinationResource SystemDisk"
)
_PAY: Final = "Pay it in the console, Expenses and Costs"
_GRANT: Final = "Grant the action of the message to the function's RAM role"


def _rule(
    scope: FaultScope | None, reason: str, meaning: str, remedy: str, *, node_class_only: bool = False
) -> FaultRule:
    return FaultRule(scope=scope, reason=reason, meaning=meaning, remedy=remedy, node_class_only=node_class_only)


_NO_STOCK: Final = _rule(_OFFERING, "NoStock", "there is no stock of the instance type in the zone", _MORE_TYPES)
_NO_DISK: Final = _rule(
    _OFFERING, "DiskCategoryUnsupported", "the instance type has no disks of the NodeClass's categories in the zone", _DISK,
    node_class_only=True,
)  # fmt: skip
_NO_ADDRESS: Final = _rule(
    _SUBNET, "NoFreeAddress", "the vSwitch has no free IP address left",
    "Add a vSwitch to spec.vSwitchSelectorTerms of the NodeClass, or free addresses: aliyun vpc DescribeVSwitches",
)  # fmt: skip
_UNKNOWN: Final = _rule(
    _POOL, "LaunchFailed", "the instance could not be launched", "Read the message, and correct the NodePool or its NodeClass"
)  # fmt: skip

# in this order: a code that starts with the text
_LAUNCH_RULES: Final[tuple[tuple[str, FaultRule], ...]] = (
    ("QuotaExceeded.PrivateIpAddress", _NO_ADDRESS),
    ("InvalidVSwitchId.IpNotEnough", _NO_ADDRESS),
    ("QuotaExceed.ElasticQuota", _rule(_ACCOUNT, "VCPULimitExceeded", "the vCPU quota is used up", _HIGHER_QUOTA)),
    ("QuotaExceeded.ElasticQuota", _rule(_ACCOUNT, "VCPULimitExceeded", "the vCPU quota is used up", _HIGHER_QUOTA)),
    ("QuotaExceed.Spot", _rule(_OFFERING, "SpotQuotaExceeded", "the quota of preemptible instances is used up", _HIGHER_QUOTA)),
    ("QuotaExceed.PostPaidDisk", _rule(_CLASS, "DiskQuotaExceeded", "the quota of pay-as-you-go disks is used up", f"Lower the disks of the NodeClass, or {_QUOTA}")),
    ("QuotaExceed", _rule(_ACCOUNT, "QuotaExceeded", "a quota of the account is used up", _HIGHER_QUOTA)),
    ("SecurityGroupInstanceLimitExceed", _rule(_CLASS, "SecurityGroupFull", "the security group can hold no further instance", "Select another security group in spec.securityGroupSelectorTerms of the NodeClass, or an enterprise one")),
    ("Account.Arrearage", _rule(_ACCOUNT, "AccountInArrears", "the account has an overdue payment", _PAY)),
    ("InsufficientBalance", _rule(_ACCOUNT, "AccountInArrears", "the account's balance is too low", "Add funds in the console, Expenses and Costs")),
    ("InvalidAccountStatus.NotEnoughBalance", _rule(_ACCOUNT, "AccountInArrears", "the account's balance is too low", "Add funds in the console, Expenses and Costs")),
    ("RealNameAuthenticationError", _rule(_ACCOUNT, "AccountPendingVerification", "the account's owner has not been verified", "Verify the owner in the console, Account Center")),
    ("Forbidden.RiskControl", _rule(_ACCOUNT, "AccountRestricted", "the account is restricted by risk control", "Open a ticket with Alibaba Cloud")),
    ("InvalidUser.PassRoleForbidden", _rule(_CLASS, "Unauthorized", "the function's role may not pass the node role", "Grant ram:PassRole for the role to the function's RAM role")),
    ("Forbidden", _rule(_CLASS, "Unauthorized", "the function's role lacks a permission", _GRANT)),
    ("NoPermission", _rule(_CLASS, "Unauthorized", "the function's role lacks a permission", _GRANT)),
    ("Unauthorized", _rule(_CLASS, "Unauthorized", "the function's role lacks a permission", _GRANT)),
    ("InvalidAccessKeyId", _rule(_ACCOUNT, "Unauthorized", "the access key is not valid", "Correct the function's role or credentials")),
    ("SignatureDoesNotMatch", _rule(_ACCOUNT, "Unauthorized", "the access key is not valid", "Correct the function's role or credentials")),
    ("ImageNotSupportInstanceType", _rule(_OFFERING, "ImageUnsupported", "the instance type does not run the image", "Select another image in spec.imageSelectorTerms of the NodeClass, or exclude the instance type", node_class_only=True)),
    ("InvalidImageId", _rule(_CLASS, "ImageNotFound", "the image does not exist in this region or may not be used", "Correct spec.imageSelectorTerms of the NodeClass; see aliyun ecs DescribeImages")),
    ("InvalidImage", _rule(_CLASS, "ImageNotFound", "the image does not exist in this region or may not be used", "Correct spec.imageSelectorTerms of the NodeClass; see aliyun ecs DescribeImages")),
    ("ImageNotSubscribed", _rule(_CLASS, "ImageNotFound", "the Marketplace image is not subscribed", "Subscribe it, or select another one in spec.imageSelectorTerms of the NodeClass")),
    ("InvalidVSwitchId", _rule(_CLASS, "VSwitchNotFound", "the vSwitch does not exist in this region", "Correct spec.vSwitchSelectorTerms of the NodeClass; see aliyun vpc DescribeVSwitches")),
    ("InvalidSecurityGroupId", _rule(_CLASS, "SecurityGroupNotFound", "the security group does not exist, or is of another VPC", "Correct spec.securityGroupSelectorTerms of the NodeClass")),
    ("InvalidKeyPairName", _rule(_CLASS, "KeyPairNotFound", "the key pair does not exist in this region", "Correct the key pair of the NodeClass, or aliyun ecs ImportKeyPair")),
    ("InvalidRamRole", _rule(_CLASS, "RAMRoleNotFound", "the RAM role of the nodes does not exist, or does not trust ECS", "Correct the RAM role of the NodeClass; see aliyun ram GetRole")),
    ("InvalidUserData.SizeExceeded", _rule(_CLASS, "UserDataSizeLimitExceeded", "the user data is larger than ECS accepts (32 KiB)", "Shorten spec.userData of the NodeClass")),
    ("InvalidUserData", _rule(_CLASS, "InvalidUserData", "ECS does not accept the user data", "Correct spec.userData of the NodeClass")),
    ("InvalidSystemDiskCategory", _NO_DISK),
    ("InvalidSystemDisk", _rule(_CLASS, "SystemDiskInvalid", "ECS does not accept the system disk; see spec.systemDisk", "Correct spec.systemDisk of the NodeClass")),
    ("InvalidDataDisk", _rule(_CLASS, "DataDiskInvalid", "ECS does not accept a data disk", "Correct the data disks of the NodeClass")),
    ("InvalidSnapshot", _rule(_CLASS, "SnapshotNotFound", "the snapshot of a data disk does not exist", "Correct the data disks of the NodeClass; see aliyun ecs DescribeSnapshots")),
    ("InvalidEncrypted", _rule(_CLASS, "KMSKeyInvalid", "the disk cannot be encrypted so", "Correct the encryption of the NodeClass's disks")),
    ("InvalidKMSKeyId", _rule(_CLASS, "KMSKeyInvalid", "the KMS key does not exist, or may not be used", "Enable the key (aliyun kms EnableKey), let ECS use it, or correct the disks of the NodeClass")),
    ("InvalidTag", _rule(_CLASS, "InvalidTag", "ECS does not accept a tag", "Correct spec.tags of the NodeClass")),
    ("InvalidResourceGroup", _rule(_CLASS, "ResourceGroupNotFound", "the resource group does not exist", "Correct the resource group of the NodeClass")),
    ("InvalidPrivatePoolOptions", _rule(_CLASS, "PrivatePoolInvalid", "the private pool does not exist or does not suit", "Correct the private pool of the NodeClass")),
    ("InvalidLaunchTemplate", _rule(_CLASS, "LaunchTemplateNotFound", "the launch template does not exist or is not valid", "Correct the launch template of the NodeClass")),
    ("InvalidRegionId", _rule(_ACCOUNT, "RegionNotFound", "the region does not exist", "Correct the region in the cluster's registration")),
    ("CategoryNotSupported", _NO_DISK),
    ("InvalidDiskCategory", _NO_DISK),
    ("OperationDenied.ZoneSystemCategoryNotMatch", _NO_DISK),
    (SPOT_PRICE_TOO_LOW, _rule(_OFFERING, "SpotPriceTooLow", "the Spot price is above the NodeClass's limit", "Raise spec.spotPriceLimit of the NodeClass, or allow on-demand in the NodePool", node_class_only=True)),
    ("InvalidSpotPriceLimit", _rule(_CLASS, "SpotPriceInvalid", "ECS does not accept the price limit", "Correct spec.spotPriceLimit of the NodeClass")),
    ("InstanceType.Offline", _NO_STOCK),
    ("InvalidInstanceType.NotSupported", _NO_STOCK),
    ("InvalidInstanceType.ZoneNotSupported", _NO_STOCK),
    ("InvalidInstanceType", _NO_STOCK),
    ("InvalidResourceType.NotSupported", _NO_STOCK),
    ("OperationDenied.NoStock", _NO_STOCK),
    ("NoInstanceStock", _NO_STOCK),
    ("Zone.NotOnSale", _NO_STOCK),
    ("Zone.NotOpen", _NO_STOCK),
    ("OperationDenied", _rule(_CLASS, "LaunchDenied", "ECS denies the launch", "Correct the NodeClass as the message says")),
    (TOKEN_REUSED, _rule(None, "LaunchFailed", "the client token was used before", _WAIT)),
    ("LastTokenProcessing", _rule(None, "RequestLimitExceeded", "the request before is not finished", _WAIT)),
    ("Throttling", _rule(None, "RequestLimitExceeded", "Alibaba Cloud throttles our requests", _WAIT)),
    ("InternalError", _rule(None, "InternalError", "Alibaba Cloud had an internal error", _WAIT)),
    ("ServiceUnavailable", _rule(None, "InternalError", "Alibaba Cloud had an internal error", _WAIT)),
    ("InvalidParameter", _rule(_CLASS, "InvalidNodeClass", "ECS does not accept a setting", "Correct the NodeClass as the message says")),
    ("MissingParameter", _rule(_CLASS, "InvalidNodeClass", "ECS misses a setting", "Complete the NodeClass as the message says")),
)  # fmt: skip
LOCK_RULES: Final[Mapping[str, FaultRule]] = {
    "financial": _rule(_ACCOUNT, "AccountInArrears", "the instance is locked for an overdue payment", _PAY),
    "security": _rule(_CLASS, "InstanceLocked", "the instance is locked for security reasons", "Read the notice in the console, Security Center"),
    "Recycling": _rule(_OFFERING, "SpotInterruption", "ECS reclaims the preemptible instance", _MORE_TYPES),
}  # fmt: skip
"""What the reasons of an instance's OperationLocks say."""
RELEASED: Final = _rule(
    _POOL, "InstanceReleased", "ECS released the instance, because it could not be created or its host failed",
    "Read the reason, and correct the disks, their KMS key or the image of the NodeClass",
)  # fmt: skip
"""The system event SystemFailure.Delete."""


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


def launch_rule(code: str) -> FaultRule:
    """Return whose fault a launch is that failed with this code, and what to do."""
    return next((rule for prefix, rule in _LAUNCH_RULES if code.startswith(prefix)), _UNKNOWN)
