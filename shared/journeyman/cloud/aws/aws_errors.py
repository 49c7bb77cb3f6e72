"""Translate AWS errors into `journeyman.errors`.

Restates: karpenter-provider-aws pkg/errors/errors.go (error code sets, `ToReasonMessage`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.parsers import ResponseParserError

from journeyman.cloud.fault_rules import FaultRule
from journeyman.core.api.launch_faults import FaultScope
from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    NodeClaimNotFoundError,
    RateLimitedError,
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

_DENIED: Final = re.compile(r"not authorized to perform: ([a-z0-9-]+:[A-Za-z0-9]+)")

_OFFERING, _CLASS, _POOL = FaultScope.OFFERING, FaultScope.NODE_CLASS, FaultScope.NODE_POOL
_SUBNET, _ACCOUNT = FaultScope.SUBNET, FaultScope.ACCOUNT
_QUOTA: Final = "aws service-quotas request-service-quota-increase --service-code"
_DECODE: Final = "aws sts decode-authorization-message --encoded-message"
_GRANT: Final = (
    "Grant the denied action to the function's role, and iam:PassRole for the nodes' role. An encoded message is decoded by: "
    f"{_DECODE} MESSAGE"
)
_MORE_TYPES: Final = (
    "Allow more instance types, zones or capacity types in the NodePool's spec.template.spec.requirements"
)
_WAIT: Final = "Nothing; the launch is repeated"
_CLASS_ONLY: Final = "Correct the EC2NodeClass, or exclude the instance type in the NodePool's requirements"


def _rule(
    scope: FaultScope | None, reason: str, meaning: str, remedy: str, *, node_class_only: bool = False
) -> FaultRule:
    return FaultRule(scope=scope, reason=reason, meaning=meaning, remedy=remedy, node_class_only=node_class_only)


# All texts must occur in EC2's code and message; the first match counts. What errors.go `ToReasonMessage` has comes in its
# order, with its reasons.
_LAUNCH_RULES: Final[tuple[tuple[tuple[str, ...], FaultRule], ...]] = (
    (
        (NO_SPOT_ROLE,),
        _rule(
            _OFFERING, "SpotSLRCreationFailed", "the Spot service-linked role is missing and may not be created",
            "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
        ),
    ),
    (
        ("permissions boundary", "explicit deny"),
        _rule(
            _CLASS, "Unauthorized", "a permissions boundary denies this operation",
            f"Allow the action in the permissions boundary of the function's role. An encoded message is decoded by: {_DECODE} MESSAGE",
        ),
    ),
    (
        ("service control policy", "explicit deny"),
        _rule(
            _CLASS, "Unauthorized", "a service control policy denies this operation",
            "Change the organization's service control policy, or the setting of the EC2NodeClass that it denies. An encoded message "
            f"is decoded by: {_DECODE} MESSAGE",
        ),
    ),
    (
        ("Not authorized for images",),
        _rule(
            _CLASS, "AMIAuthorizationFailure", "the AMI may not be used by this account",
            "Share the image: aws ec2 modify-image-attribute --image-id AMI --launch-permission 'Add=[{UserId=ACCOUNT}]', or change "
            "spec.amiSelectorTerms",
        ),
    ),
    (("UnauthorizedOperation",), _rule(_CLASS, "Unauthorized", "no identity-based policy allows this operation", _GRANT)),
    (("AccessDenied",), _rule(_CLASS, "Unauthorized", "no identity-based policy allows this operation", _GRANT)),
    (("AuthFailure",), _rule(_CLASS, "Unauthorized", "no identity-based policy allows this operation", _GRANT)),
    (
        ("InvalidParameter", "belong to different networks"),
        _rule(
            _CLASS, "SecurityGroupSubnetVPCMismatch", "security groups and subnets must be in the same VPC",
            "Correct spec.securityGroupSelectorTerms or spec.subnetSelectorTerms of the EC2NodeClass",
        ),
    ),
    (
        ("iamInstanceProfile.name is invalid",),
        _rule(
            _CLASS, "InstanceProfileNameInvalid", "the instance profile does not exist",
            "Correct spec.instanceProfile of the EC2NodeClass, or aws iam create-instance-profile --instance-profile-name NAME and "
            "aws iam add-role-to-instance-profile",
        ),
    ),
    (
        ("InvalidIamInstanceProfile",),
        _rule(
            _CLASS, "InstanceProfileNameInvalid", "the instance profile is not valid",
            "Correct spec.instanceProfile or spec.role of the EC2NodeClass; the profile must have exactly one role",
        ),
    ),
    (
        ("InvalidLaunchTemplate", "NotFound"),
        _rule(None, "LaunchTemplateNotFound", "the launch template was not found", "Nothing; it is created again"),
    ),
    (
        ("User data is limited to",),
        _rule(
            _CLASS, "UserDataSizeLimitExceeded", "the user data is larger than EC2 accepts",
            "Shorten spec.userData of the EC2NodeClass to 16 KiB with what is added to it",
        ),
    ),
    (
        ("InvalidUserData.Malformed",),
        _rule(_CLASS, "InvalidUserData", "EC2 cannot read the user data", "Correct spec.userData of the EC2NodeClass"),
    ),
    (
        ("InvalidAMIID.Malformed",),
        _rule(_CLASS, "InvalidAMIID", "the AMI id is malformed", "Correct spec.amiSelectorTerms of the EC2NodeClass"),
    ),
    (
        ("InvalidAMIID.NotFound",),
        _rule(
            _CLASS, "AMINotFound", "the AMI does not exist or may not be used",
            "Correct spec.amiSelectorTerms of the EC2NodeClass; see aws ec2 describe-images --image-ids AMI",
        ),
    ),
    (
        ("InvalidAMIID.Unavailable",),
        _rule(
            _CLASS, "AMINotFound", "the AMI is not available, or was disabled",
            "Select another image in spec.amiSelectorTerms of the EC2NodeClass, or aws ec2 enable-image --image-id AMI",
        ),
    ),
    (("RequestLimitExceeded",), _rule(None, "RequestLimitExceeded", "AWS throttles our requests", _WAIT)),
    (
        ("Client.InternalError",),
        _rule(
            _CLASS, "InstanceEndedAtBoot", "EC2 ended the instance while it started, mostly because of a KMS key of its volumes",
            "Allow the key's use in its key policy (kms:CreateGrant, kms:Decrypt, kms:GenerateDataKeyWithoutPlaintext), enable it "
            "(aws kms enable-key), or change kmsKeyID in spec.blockDeviceMappings of the EC2NodeClass",
        ),
    ),
    (("Server.InternalError",), _rule(_OFFERING, "InternalError", "EC2 had an internal error while the instance started", _MORE_TYPES)),
    (("InternalError",), _rule(None, "InternalError", "AWS had an internal error", _WAIT)),
    (
        ("not eligible for Free Tier",),
        _rule(
            _OFFERING, "FreeTierIneligible", "the instance type is not eligible for the free tier",
            "Upgrade the account's plan, or require eligible instance types in the NodePool",
        ),
    ),
    (
        ("MaxFleetCountExceeded",),
        _rule(_OFFERING, "FleetQuotaExceeded", "the fleet request quota is used up", f"{_QUOTA} ec2fleet"),
    ),
    (
        ("PendingVerification",),
        _rule(
            _ACCOUNT, "AccountPendingVerification", "the account is still being verified in this region",
            "Wait for AWS's e-mail, at most four hours; then open a case: aws support create-case",
        ),
    ),
    (
        ("OptInRequired",),
        _rule(
            _ACCOUNT, "RegionNotEnabled", "the account does not use this service or region yet, or a Marketplace image is not subscribed",
            "aws account enable-region --region-name REGION, or accept the image's terms in AWS Marketplace",
        ),
    ),
    (("Blocked",), _rule(_ACCOUNT, "AccountBlocked", "the account is blocked", "aws support create-case")),
    (
        ("MaxSpotInstanceCountExceeded",),
        _rule(
            _OFFERING, "SpotQuotaExceeded", "the Spot instance quota is used up",
            f"{_QUOTA} ec2 --quota-code L-34B43A08 --desired-value VCPUS",
        ),
    ),
    (
        ("VcpuLimitExceeded",),
        _rule(
            _OFFERING, "VCPULimitExceeded", "the vCPU quota is used up",
            f"{_QUOTA} ec2 --quota-code L-1216C47A --desired-value VCPUS (other families have other codes: aws service-quotas "
            "list-service-quotas --service-code ec2)",
        ),
    ),
    (
        ("InstanceLimitExceeded",),
        _rule(
            _OFFERING, "InstanceQuotaExceeded", "the instance quota of this type is used up",
            f"{_QUOTA} ec2 --quota-code L-1216C47A --desired-value VCPUS",
        ),
    ),
    (
        (NO_ADDRESSES,),
        _rule(
            _SUBNET, NO_ADDRESSES, "the subnet has no free IP address left",
            "Add a subnet to spec.subnetSelectorTerms of the EC2NodeClass, or free addresses: aws ec2 describe-subnets --subnet-ids SUBNET",
        ),
    ),
    (
        ("VolumeLimitExceeded",),
        _rule(
            _CLASS, "VolumeQuotaExceeded", "the quota of EBS storage is used up",
            f"{_QUOTA} ebs --quota-code L-7A658B76 --desired-value TIB (gp3; see aws service-quotas list-service-quotas --service-code "
            "ebs), or lower volumeSize in spec.blockDeviceMappings of the EC2NodeClass",
        ),
    ),
    (
        ("MaxIOPSLimitExceeded",),
        _rule(
            _CLASS, "VolumeQuotaExceeded", "the quota of provisioned IOPS is used up",
            f"{_QUOTA} ebs --quota-code L-B3A130E6, or lower iops in spec.blockDeviceMappings of the EC2NodeClass",
        ),
    ),
    (
        ("VolumeTypeNotAvailableInZone",),
        _rule(
            _OFFERING, "VolumeTypeUnavailable", "the zone has no volumes of this type",
            "Change volumeType in spec.blockDeviceMappings of the EC2NodeClass", node_class_only=True,
        ),
    ),
    (
        ("InvalidSnapshot",),
        _rule(
            _CLASS, "SnapshotNotFound", "the snapshot of the image or of a block device does not exist, or may not be used",
            "Correct snapshotID in spec.blockDeviceMappings, or select another image in spec.amiSelectorTerms of the EC2NodeClass",
        ),
    ),
    (
        ("InvalidBlockDeviceMapping",),
        _rule(
            _CLASS, "InvalidBlockDeviceMapping", "EC2 does not accept the block devices",
            "Correct spec.blockDeviceMappings of the EC2NodeClass: device names and sizes must suit the image",
        ),
    ),
    (
        ("KMS",),
        _rule(
            _CLASS, "KMSKeyInvalid", "the KMS key of a volume cannot be used",
            "Allow the key's use in its key policy, or change kmsKeyID in spec.blockDeviceMappings of the EC2NodeClass",
        ),
    ),
    (
        ("InvalidSubnet",),
        _rule(
            _CLASS, "SubnetNotFound", "the subnet does not exist any more",
            "Correct spec.subnetSelectorTerms of the EC2NodeClass; its status is read again within five minutes",
        ),
    ),
    (
        ("InvalidGroup",),
        _rule(
            _CLASS, "SecurityGroupNotFound", "the security group does not exist any more",
            "Correct spec.securityGroupSelectorTerms of the EC2NodeClass",
        ),
    ),
    (
        ("InvalidSecurityGroup",),
        _rule(
            _CLASS, "SecurityGroupNotFound", "the security group does not exist any more",
            "Correct spec.securityGroupSelectorTerms of the EC2NodeClass",
        ),
    ),
    (
        ("SecurityGroupsPerInstanceLimitExceeded",),
        _rule(
            _CLASS, "TooManySecurityGroups", "an instance cannot have so many security groups",
            f"Select fewer in spec.securityGroupSelectorTerms of the EC2NodeClass, or {_QUOTA} vpc --quota-code L-2AFB9258",
        ),
    ),
    (
        ("NetworkInterfaceLimitExceeded",),
        _rule(
            _ACCOUNT, "NetworkInterfaceQuotaExceeded", "the quota of network interfaces is used up",
            f"{_QUOTA} vpc --quota-code L-DF5E4CA3 --desired-value NUMBER",
        ),
    ),
    (
        ("PrivateIpAddressLimitExceeded",),
        _rule(
            _CLASS, "TooManyAddresses", "an instance of this type cannot have so many addresses",
            "Lower spec.ipPrefixCount of the EC2NodeClass",
        ),
    ),
    (
        ("AddressLimitExceeded",),
        _rule(_ACCOUNT, "AddressQuotaExceeded", "the quota of elastic IP addresses is used up", f"{_QUOTA} ec2 --quota-code L-0263D0A3"),
    ),
    (
        ("InvalidPlacementGroup",),
        _rule(
            _CLASS, "PlacementGroupNotFound", "the placement group does not exist",
            "Correct spec.placementGroupSelector of the EC2NodeClass",
        ),
    ),
    (
        ("InvalidKeyPair",),
        _rule(_CLASS, "KeyPairNotFound", "the key pair does not exist", "Correct the EC2NodeClass, or aws ec2 import-key-pair"),
    ),
    (
        ("InvalidCapacityReservation",),
        _rule(
            _CLASS, "CapacityReservationNotFound", "the capacity reservation does not exist, or is not active",
            "Correct spec.capacityReservationSelectorTerms of the EC2NodeClass",
        ),
    ),
    (
        ("TagPolicyViolation",),
        _rule(
            _CLASS, "TagPolicyViolation", "a tag policy of the organization does not allow the tags",
            "Correct spec.tags of the EC2NodeClass; see aws organizations describe-effective-policy --policy-type TAG_POLICY",
        ),
    ),
    (
        ("TagLimitExceeded",),
        _rule(_CLASS, "TooManyTags", "a resource cannot have more than 50 tags", "Remove tags from spec.tags of the EC2NodeClass"),
    ),
    (
        ("InvalidTagKey",),
        _rule(_CLASS, "InvalidTag", "a tag is not valid", "Correct spec.tags of the EC2NodeClass"),
    ),
    (
        ("LaunchTemplateLimitExceeded",),
        _rule(_ACCOUNT, "LaunchTemplateQuotaExceeded", "the quota of launch templates is used up", f"{_QUOTA} ec2 --quota-code L-FB451C26"),
    ),
    (
        ("InvalidLaunchTemplate",),
        _rule(_CLASS, "InvalidLaunchTemplate", "EC2 does not accept the launch template", "Correct the EC2NodeClass as the message says"),
    ),
    (
        ("SpotMaxPriceTooLow",),
        _rule(_OFFERING, "SpotPriceTooLow", "the Spot price is above the maximum", _MORE_TYPES, node_class_only=True),
    ),
    (
        ("Unsupported", "Availability Zone"),
        _rule(_OFFERING, "UnsupportedInZone", "the zone does not have the instance type", _MORE_TYPES),
    ),
    (
        ("Unsupported",),
        _rule(
            _OFFERING, "Unsupported", "the instance type does not support the settings of the EC2NodeClass", _CLASS_ONLY,
            node_class_only=True,
        ),
    ),
    (
        ("InvalidParameterCombination",),
        _rule(
            _CLASS, "InvalidNodeClass", "EC2 does not accept these settings together",
            "Correct the EC2NodeClass as the message says",
        ),
    ),
    (
        ("InvalidParameter",),
        _rule(_CLASS, "InvalidNodeClass", "EC2 does not accept a setting", "Correct the EC2NodeClass as the message says"),
    ),
    (
        ("MissingParameter",),
        _rule(_CLASS, "InvalidNodeClass", "EC2 misses a setting", "Complete the EC2NodeClass as the message says"),
    ),
    (("IdempotentParameterMismatch",), _rule(None, "LaunchFailed", "the client token was used before", _WAIT)),
    (("Server.InsufficientInstanceCapacity",), _rule(_OFFERING, "InsufficientCapacity", "EC2 had no capacity to start the instance", _MORE_TYPES)),
    (("Server.Spot",), _rule(_OFFERING, "SpotInterruption", "EC2 reclaimed the Spot instance", _MORE_TYPES)),
    (("InsufficientInstanceCapacity",), _rule(_OFFERING, "InsufficientCapacity", "EC2 has no capacity for the instance type in the zone", _MORE_TYPES)),
    (("InsufficientHostCapacity",), _rule(_OFFERING, "InsufficientCapacity", "no dedicated host has capacity", "aws ec2 allocate-hosts")),
    (("InsufficientCapacity",), _rule(_OFFERING, "InsufficientCapacity", "EC2 has no capacity for the instance type in the zone", _MORE_TYPES)),
    (("UnfulfillableCapacity",), _rule(_OFFERING, "InsufficientCapacity", "EC2 has no capacity for the request", _MORE_TYPES)),
    (
        ("ReservationCapacityExceeded",),
        _rule(
            _OFFERING, "ReservationUsedUp", "the capacity reservation is used up",
            "aws ec2 modify-capacity-reservation --instance-count NUMBER, or allow other capacity types in the NodePool",
        ),
    ),
    (
        ("Client.InstanceInitiatedShutdown",),
        _rule(
            _CLASS, "InstanceShutDownItself", "the instance shut itself down",
            "Read what it did: aws ec2 get-console-output --instance-id INSTANCE; correct spec.userData or the image of the EC2NodeClass",
        ),
    ),
    (
        ("Client.",),  # UserInitiatedShutdown, InstanceTerminated
        _rule(
            _POOL, "InstanceTerminatedByUser", "a user, or a tool such as a bot of a tag policy, terminated the instance",
            "Find out who did: aws cloudtrail lookup-events --lookup-attributes AttributeKey=EventName,AttributeValue=TerminateInstances; "
            "give the instances the tags that it asks for in spec.tags of the EC2NodeClass",
        ),
    ),
)  # fmt: skip
_UNKNOWN: Final = _rule(
    FaultScope.NODE_POOL,
    "LaunchFailed",
    "the instance could not be launched",
    "Read the message, and correct the NodePool or its EC2NodeClass",
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
        denied = _DENIED.search(text)  # a call may need further rights: CreateFleet needs iam:PassRole, say
        operation = denied[1] if denied else operation
        return CloudProviderError(f"not allowed: grant {operation} to the function's role ({text})", **facts)
    return CloudProviderError(f"{operation} was refused: {code}: {text}", **facts)


def error_code(error: CloudProviderError) -> str:
    """Return AWS's error code of a translated error; empty if AWS sent no response."""
    return str(error.context.get("code", ""))


def launch_rule(text: str) -> FaultRule:
    """Return whose fault a failed launch is, and what to do.

    Args:
        text: The error code and the message in AWS's response, or `StateReason` of an instance.

    Restates: errors.go `ToReasonMessage`.
    """
    return next((rule for parts, rule in _LAUNCH_RULES if all(part in text for part in parts)), _UNKNOWN)
