"""Translation of the SDK's errors."""

import inspect

import botocore.exceptions
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from journeyman.cloud.aws.aws_errors import error_code, launch_rule, translated
from journeyman.core.api.launch_faults import FaultScope
from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    NodeClaimNotFoundError,
    RateLimitedError,
)


def answer(code, status=400, message="text"):
    """Return the exception that botocore raises for an error response."""
    body = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(body, "RunInstances")


def every_botocore_error():
    """Yield one instance of each exception class of botocore, whatever arguments its constructor needs."""
    classes = [c for _, c in inspect.getmembers(botocore.exceptions, inspect.isclass) if issubclass(c, BotoCoreError)]
    return [cls.__new__(cls) for cls in classes]


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (answer("RequestLimitExceeded", 503), RateLimitedError),
        (answer("ThrottlingException"), RateLimitedError),
        (answer("SomethingNew", 429), RateLimitedError),
        (answer("InvalidInstanceID.NotFound"), NodeClaimNotFoundError),
        (answer("InternalError", 500), CloudUnavailableError),
        (answer("SomethingNew", 502), CloudUnavailableError),
        (answer("UnauthorizedOperation", 403), CloudProviderError),
        (answer("ExpiredToken", 403), CloudUnavailableError),
        (answer("ExpiredTokenException"), CloudUnavailableError),
        (answer("RequestExpired"), CloudUnavailableError),
        (answer("InvalidParameterValue"), CloudProviderError),
        (ResponseParserError("html"), CloudUnavailableError),
        (botocore.exceptions.EndpointConnectionError(endpoint_url="u"), CloudUnavailableError),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="u"), CloudUnavailableError),
    ],
)
def test_each_error_code_is_translated(error, ours):
    """Throttling and internal errors are retryable, refusals are not; the original is the cause."""
    with pytest.raises(CloudProviderError) as caught, translated("ec2:RunInstances", nodeclaim="a"):
        raise error

    assert type(caught.value) is ours
    assert caught.value.__cause__ is error
    assert caught.value.context["operation"] == "ec2:RunInstances"
    assert caught.value.context["nodeclaim"] == "a"


def leaves_as(error):
    """Return the exception into which the adapter translates an SDK error."""
    try:
        with translated("ec2:RunInstances"):
            raise error
    except Exception as left:  # noqa: BLE001 - the test returns any exception
        return left


def test_every_botocore_error_is_translated():
    """That includes classes without an entry in the table."""
    errors = every_botocore_error()

    assert len(errors) > 80
    assert [e for e in errors if not isinstance(leaves_as(e), CloudProviderError)] == []


def test_role_that_may_not_be_assumed_any_more_is_named_as_such():
    """The credentials of a further cluster's role are renewed within any call."""
    body = {"Error": {"Code": "AccessDenied", "Message": "not authorized to perform: sts:AssumeRole"}}

    assert "grant sts:AssumeRole" in str(leaves_as(ClientError(body, "AssumeRole")))


def test_forbidden_call_names_the_missing_permission():
    """The message names the permission to grant."""
    with pytest.raises(CloudProviderError, match="grant ec2:CreateFleet") as caught, translated("ec2:CreateFleet"):
        raise answer("UnauthorizedOperation", 403)

    assert error_code(caught.value) == "UnauthorizedOperation"
    assert not caught.value.retryable


def test_refusal_for_another_right_names_that_right():
    """CreateFleet passes the nodes' role to EC2; to grant ec2:CreateFleet again would not help."""
    text = "User: arn:aws:sts::1:assumed-role/f is not authorized to perform: iam:PassRole on resource: arn:aws:iam::1:role/n"

    with (
        pytest.raises(CloudProviderError, match="grant iam:PassRole to the function's role"),
        translated("ec2:CreateFleet"),
    ):
        raise answer("UnauthorizedOperation", 403, text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted: x", "SpotSLRCreationFailed"),
        ("UnauthorizedOperation: with an explicit deny in a service control policy", "Unauthorized"),
        ("AuthFailure: Not authorized for images: [ami-1]", "AMIAuthorizationFailure"),
        ("UnauthorizedOperation: x", "Unauthorized"),
        (
            "InvalidParameter: security group sg-1 and subnet s-1 belong to different networks",
            "SecurityGroupSubnetVPCMismatch",
        ),
        ("InvalidParameterValue: iamInstanceProfile.name is invalid", "InstanceProfileNameInvalid"),
        ("InvalidLaunchTemplateId.NotFound: x", "LaunchTemplateNotFound"),
        ("InvalidUserData.Malformed: User data is limited to 16384 bytes", "UserDataSizeLimitExceeded"),
        ("InvalidAMIID.Malformed: x", "InvalidAMIID"),
        ("InvalidAMIID.NotFound: x", "AMINotFound"),
        ("MaxFleetCountExceeded: x; VcpuLimitExceeded: y", "FleetQuotaExceeded"),
        ("PendingVerification: x", "AccountPendingVerification"),
        ("MaxSpotInstanceCountExceeded: x", "SpotQuotaExceeded"),
        ("VcpuLimitExceeded: x", "VCPULimitExceeded"),
        ("InsufficientFreeAddressesInSubnet: x", "InsufficientFreeAddressesInSubnet"),
        ("SomethingNew: x", "LaunchFailed"),
    ],
)
def test_failed_launch_has_karpenters_reason(text, reason):
    """Alerts for Karpenter's reasons then work."""
    assert launch_rule(text).reason == reason


OFFERING, NODE_CLASS, NODE_POOL = FaultScope.OFFERING, FaultScope.NODE_CLASS, FaultScope.NODE_POOL


@pytest.mark.parametrize(
    ("text", "scope", "remedy"),
    [
        ("InsufficientInstanceCapacity: x", OFFERING, "instance types, zones"),
        ("ReservationCapacityExceeded: x", OFFERING, "modify-capacity-reservation"),
        ("MaxSpotInstanceCountExceeded: x", OFFERING, "request-service-quota-increase --service-code ec2"),
        ("VcpuLimitExceeded: x", OFFERING, "request-service-quota-increase --service-code ec2"),
        ("MaxFleetCountExceeded: x", OFFERING, "request-service-quota-increase"),
        ("UnfulfillableCapacity: x", OFFERING, "instance types, zones"),
        ("Unsupported: not supported in your requested Availability Zone (a)", OFFERING, "instance types, zones"),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted: x", OFFERING, "create-service-linked-role"),
        ("Server.InsufficientInstanceCapacity", OFFERING, "instance types, zones"),
        ("Server.SpotInstanceTermination", OFFERING, "instance types, zones"),
        ("InsufficientFreeAddressesInSubnet: x", FaultScope.SUBNET, "spec.subnetSelectorTerms"),
        ("PendingVerification: x", FaultScope.ACCOUNT, "create-case"),
        ("OptInRequired: x", FaultScope.ACCOUNT, "enable-region"),
        ("UnauthorizedOperation: x", NODE_CLASS, "decode-authorization-message"),
        (
            "InvalidParameterValue: Value (a) for parameter iamInstanceProfile.name is invalid",
            NODE_CLASS,
            "instanceProfile",
        ),
        ("InvalidBlockDeviceMapping: x", NODE_CLASS, "spec.blockDeviceMappings"),
        ("InvalidSnapshot.NotFound: x", NODE_CLASS, "snapshotID"),
        ("Client.InvalidSnapshot.NotFound", NODE_CLASS, "snapshotID"),
        ("VolumeLimitExceeded: x", NODE_CLASS, "--service-code ebs"),
        ("Client.VolumeLimitExceeded", NODE_CLASS, "--service-code ebs"),
        ("Client.InternalError", NODE_CLASS, "key policy"),
        ("InvalidAMIID.Unavailable: x", NODE_CLASS, "amiSelectorTerms"),
        ("InvalidSubnetID.NotFound: x", NODE_CLASS, "subnetSelectorTerms"),
        ("InvalidGroup.NotFound: x", NODE_CLASS, "securityGroupSelectorTerms"),
        ("TagPolicyViolation: x", NODE_CLASS, "spec.tags"),
        ("InvalidParameterCombination: x", NODE_CLASS, "as the message says"),
        ("MissingParameter: x", NODE_CLASS, "as the message says"),
        ("Client.UserInitiatedShutdown", NODE_POOL, "cloudtrail"),
        ("Something.New: x", NODE_POOL, "Read the message"),
        ("RequestLimitExceeded: x", None, "repeated"),
        ("InternalError: x", None, "repeated"),
    ],
)
def test_each_refusal_of_a_launch_says_whose_fault_it_is_and_what_to_do(text, scope, remedy):
    """Only what has the fault is skipped; the remedy is a command or a field."""
    rule = launch_rule(text)

    assert rule.scope is scope
    assert remedy in rule.remedy
    assert not rule.node_class_only


@pytest.mark.parametrize("code", ["Unsupported", "SpotMaxPriceTooLow", "VolumeTypeNotAvailableInZone"])
def test_settings_of_a_node_class_make_an_offering_unavailable_for_it_alone(code):
    """Other NodeClasses launch it."""
    rule = launch_rule(f"{code}: x")

    assert (rule.scope, rule.node_class_only) == (FaultScope.OFFERING, True)
    assert rule.remedy
