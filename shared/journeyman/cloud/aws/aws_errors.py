"""Translate AWS errors into `journeyman.errors`.

Restates: karpenter-provider-aws pkg/errors/errors.go (error code sets, `ToReasonMessage`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.parsers import ResponseParserError

from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    NodeClaimNotFoundError,
    RateLimitedError,
)

# errors.go `unfulfillableCapacityErrorCodes`: this offering is unavailable, another may be available
UNFULFILLABLE: Final = frozenset(
    {
        "InsufficientInstanceCapacity",
        "MaxSpotInstanceCountExceeded",
        "VcpuLimitExceeded",
        "UnfulfillableCapacity",
        "Unsupported",
        "InsufficientFreeAddressesInSubnet",
        "MaxFleetCountExceeded",
        "ReservationCapacityExceeded",
    }
)
NO_ADDRESSES: Final = "InsufficientFreeAddressesInSubnet"
NO_SPOT_ROLE: Final = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
TOKEN_REUSED: Final = "IdempotentParameterMismatch"  # noqa: S105 - an error code
NO_SUCH_TEMPLATE: Final = frozenset(
    {
        "InvalidLaunchTemplateName.NotFoundException",
        "InvalidLaunchTemplateId.NotFound",
        "InvalidLaunchTemplateId.NotFoundException",
    }
)

_INSTANCE_NOT_FOUND: Final = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
_THROTTLED: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_SERVER_ERRORS: Final = frozenset(
    {"InternalError", "InternalFailure", "InternalServerError", "ServiceUnavailable", "Unavailable"}
)
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
"""The credentials, or the signature of a request that waited in a frozen sandbox, are too old; no right is missing."""
_UNAUTHORIZED: Final = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "InvalidClientTokenId",
        "UnauthorizedOperation",
        "UnrecognizedClientException",
    }
)

# errors.go `ToReasonMessage`, in its order: all texts must occur -> (reason, message)
_LAUNCH_REASONS: Final[tuple[tuple[tuple[str, ...], str, str], ...]] = (
    ((NO_SPOT_ROLE,), "SpotSLRCreationFailed", "the Spot service-linked role is missing and may not be created"),
    (("permissions boundary", "explicit deny"), "Unauthorized", "a permissions boundary denies this operation"),
    (("service control policy", "explicit deny"), "Unauthorized", "a service control policy denies this operation"),
    (("Not authorized for images",), "AMIAuthorizationFailure", "the AMI may not be used by this account"),
    (("UnauthorizedOperation",), "Unauthorized", "no identity-based policy allows this operation"),
    (("AccessDenied",), "Unauthorized", "no identity-based policy allows this operation"),
    (("AuthFailure",), "Unauthorized", "no identity-based policy allows this operation"),
    (
        ("InvalidParameter", "belong to different networks"),
        "SecurityGroupSubnetVPCMismatch",
        "security groups and subnets must be in the same VPC",
    ),
    (("iamInstanceProfile.name is invalid",), "InstanceProfileNameInvalid", "the instance profile does not exist"),
    (("InvalidLaunchTemplate", "NotFound"), "LaunchTemplateNotFound", "the launch template was not found"),
    (("User data is limited to",), "UserDataSizeLimitExceeded", "the user data is larger than EC2 accepts"),
    (("InvalidAMIID.Malformed",), "InvalidAMIID", "the AMI id is malformed"),
    (("InvalidAMIID.NotFound",), "AMINotFound", "the AMI does not exist or may not be used"),
    (("RequestLimitExceeded",), "RequestLimitExceeded", "AWS throttles our requests"),
    (("InternalError",), "InternalError", "AWS had an internal error"),
    (("not eligible for Free Tier",), "FreeTierIneligible", "the instance type is not eligible for the free tier"),
    (("MaxFleetCountExceeded",), "FleetQuotaExceeded", "the fleet request quota is used up"),
    (("PendingVerification",), "AccountPendingVerification", "the account is still being verified in this region"),
    (("MaxSpotInstanceCountExceeded",), "SpotQuotaExceeded", "the Spot instance quota is used up"),
    (("VcpuLimitExceeded",), "VCPULimitExceeded", "the vCPU quota is used up"),
    ((NO_ADDRESSES,), NO_ADDRESSES, "the subnet has no free IP address left"),
)


@contextmanager
def translated(operation: str, **context: Any) -> Iterator[None]:
    """Translate the SDK's errors of one AWS call into `journeyman.errors`, with the SDK's error as cause.

    Args:
        operation: `service:Operation`, as IAM writes it, so that a refusal names the permission to grant.
        context: Values for the log. `code` (AWS's error code) and `operation` are added.

    Raises:
        NodeClaimNotFoundError: The instance does not exist.
        RateLimitedError: AWS throttled the call; the next run tries again.
        CloudUnavailableError: AWS had an internal error or cannot be reached; the next run tries again.
        CloudProviderError: AWS rejected the call; a retry would also fail.
    """
    facts = {"operation": operation, **context}
    try:
        yield
    except ClientError as error:
        raise _from_response(error, operation, facts) from error
    except (NoConnectionError, HTTPClientError, ResponseParserError) as error:
        raise CloudUnavailableError(f"{operation} got no valid response: {error}", **facts) from error
    except BotoCoreError as error:
        raise CloudProviderError(f"{operation} could not be called: {error}", **facts) from error


def _from_response(error: ClientError, operation: str, facts: dict[str, Any]) -> CloudProviderError:
    """Return the `journeyman.errors` error for an error response of AWS."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    text = str(error.response.get("Error", {}).get("Message", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
    if error.operation_name == "AssumeRole":  # when the credentials of a further cluster's role are renewed
        operation = facts["operation"] = "sts:AssumeRole"
    facts = {**facts, "code": code}
    if code in _INSTANCE_NOT_FOUND:
        return NodeClaimNotFoundError(f"the instance does not exist: {text}", **facts)
    if code in _THROTTLED or status == 429:
        return RateLimitedError(f"AWS throttles {operation}: {text}", **facts)
    if code in _SERVER_ERRORS or status >= 500:
        return CloudUnavailableError(f"{operation} failed inside AWS: {text}", **facts)
    if code in _EXPIRED:
        return CloudUnavailableError(f"the credentials for {operation} have expired: {text}", **facts)
    if code in _UNAUTHORIZED:
        return CloudProviderError(f"not allowed: grant {operation} to the function's role ({text})", **facts)
    return CloudProviderError(f"{operation} was refused: {code}: {text}", **facts)


def error_code(error: CloudProviderError) -> str:
    """Return AWS's error code of a translated error; empty if AWS sent no response."""
    return str(error.context.get("code", ""))


def launch_reason(text: str) -> tuple[str, str]:
    """Return reason and message of the Launched condition for a failed launch.

    Args:
        text: The error codes and messages in AWS's responses.

    Restates: errors.go `ToReasonMessage`.
    """
    for parts, reason, message in _LAUNCH_REASONS:
        if all(part in text for part in parts):
            return reason, message
    return "LaunchFailed", "the instance could not be launched"
