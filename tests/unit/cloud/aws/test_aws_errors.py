"""Translation of the SDK's errors."""

import inspect

import botocore.exceptions
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from journeyman.cloud.aws.aws_errors import error_code, launch_rule, translated
from journeyman.core.api.launch_faults import FaultScope
from journeyman.errors import CloudProviderError, CloudUnavailableError, NodeClaimNotFoundError, RateLimitedError


def answer(code, status=400, message="text"):
    body = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(body, "RunInstances")


def every_botocore_error():
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


PASS_ROLE = (
    "User: arn:aws:sts::1:assumed-role/f is not authorized to perform: iam:PassRole on resource: arn:aws:iam::1:role/n"
)


@pytest.mark.parametrize(
    ("error", "right"),
    [
        (answer("UnauthorizedOperation", 403), "ec2:RunInstances"),
        # CreateFleet passes the nodes' role to EC2; to grant ec2:CreateFleet again would not help
        (answer("UnauthorizedOperation", 403, PASS_ROLE), "iam:PassRole"),
        # the credentials of a further cluster's role are renewed within any call
        (
            ClientError(
                {"Error": {"Code": "AccessDenied", "Message": "not authorized to perform: sts:AssumeRole"}},
                "AssumeRole",
            ),
            "sts:AssumeRole",
        ),
    ],
    ids=["the call's own", "another", "the role's"],
)
def test_refused_call_names_the_right_to_grant(error, right):
    found = leaves_as(error)
    assert f"grant {right}" in str(found)
    assert error_code(found) in {"UnauthorizedOperation", "AccessDenied"}
    assert not found.retryable


OFFERING, NODE_CLASS, NODE_POOL = FaultScope.OFFERING, FaultScope.NODE_CLASS, FaultScope.NODE_POOL
SUBNET, ACCOUNT = FaultScope.SUBNET, FaultScope.ACCOUNT
QUOTA = "request-service-quota-increase --service-code ec2"
NO_CAPACITY = ("InsufficientCapacity", OFFERING, "instance types, zones")


@pytest.mark.parametrize(
    ("text", "reason", "scope", "remedy"),
    [
        ("InsufficientInstanceCapacity: x", *NO_CAPACITY),
        ("Server.InsufficientInstanceCapacity", *NO_CAPACITY),
        ("UnfulfillableCapacity: x", *NO_CAPACITY),
        ("Unsupported: not supported in your requested Availability Zone (a)", "UnsupportedInZone", *NO_CAPACITY[1:]),
        ("Server.SpotInstanceTermination", "SpotInterruption", *NO_CAPACITY[1:]),
        ("ReservationCapacityExceeded: x", "ReservationUsedUp", OFFERING, "modify-capacity-reservation"),
        ("MaxSpotInstanceCountExceeded: x", "SpotQuotaExceeded", OFFERING, QUOTA),
        ("VcpuLimitExceeded: x", "VCPULimitExceeded", OFFERING, QUOTA),
        ("MaxFleetCountExceeded: x", "FleetQuotaExceeded", OFFERING, "request-service-quota-increase"),
        ("MaxFleetCountExceeded: x; VcpuLimitExceeded: y", "FleetQuotaExceeded", OFFERING, "ec2fleet"),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted: x", "SpotSLRCreationFailed", OFFERING, "create-service-linked-role"),
        ("InsufficientFreeAddressesInSubnet: x", "InsufficientFreeAddressesInSubnet", SUBNET, "spec.subnetSelectorTerms"),
        ("PendingVerification: x", "AccountPendingVerification", ACCOUNT, "create-case"),
        ("OptInRequired: x", "RegionNotEnabled", ACCOUNT, "enable-region"),
        ("UnauthorizedOperation: x", "Unauthorized", NODE_CLASS, "decode-authorization-message"),
        ("UnauthorizedOperation: with an explicit deny in a service control policy", "Unauthorized", NODE_CLASS, "organization's service control policy"),
        ("AuthFailure: Not authorized for images: [ami-1]", "AMIAuthorizationFailure", NODE_CLASS, "modify-image-attribute"),
        ("InvalidParameter: security group sg-1 and subnet s-1 belong to different networks", "SecurityGroupSubnetVPCMismatch", NODE_CLASS, "spec.securityGroupSelectorTerms"),
        ("InvalidParameterValue: iamInstanceProfile.name is invalid", "InstanceProfileNameInvalid", NODE_CLASS, "instanceProfile"),
        ("InvalidParameterValue: Value (a) for parameter iamInstanceProfile.name is invalid", "InstanceProfileNameInvalid", NODE_CLASS, "instanceProfile"),
        ("InvalidUserData.Malformed: User data is limited to 16384 bytes", "UserDataSizeLimitExceeded", NODE_CLASS, "Shorten spec.userData"),
        ("InvalidAMIID.Malformed: x", "InvalidAMIID", NODE_CLASS, "amiSelectorTerms"),
        ("InvalidAMIID.NotFound: x", "AMINotFound", NODE_CLASS, "amiSelectorTerms"),
        ("InvalidAMIID.Unavailable: x", "AMINotFound", NODE_CLASS, "amiSelectorTerms"),
        ("InvalidSubnetID.NotFound: x", "SubnetNotFound", NODE_CLASS, "subnetSelectorTerms"),
        ("InvalidGroup.NotFound: x", "SecurityGroupNotFound", NODE_CLASS, "securityGroupSelectorTerms"),
        ("InvalidBlockDeviceMapping: x", "InvalidBlockDeviceMapping", NODE_CLASS, "spec.blockDeviceMappings"),
        ("InvalidSnapshot.NotFound: x", "SnapshotNotFound", NODE_CLASS, "snapshotID"),
        ("Client.InvalidSnapshot.NotFound", "SnapshotNotFound", NODE_CLASS, "snapshotID"),
        ("VolumeLimitExceeded: x", "VolumeQuotaExceeded", NODE_CLASS, "--service-code ebs"),
        ("Client.VolumeLimitExceeded", "VolumeQuotaExceeded", NODE_CLASS, "--service-code ebs"),
        ("Client.InternalError", "InstanceEndedAtBoot", NODE_CLASS, "key policy"),
        ("TagPolicyViolation: x", "TagPolicyViolation", NODE_CLASS, "spec.tags"),
        ("InvalidParameterCombination: x", "InvalidNodeClass", NODE_CLASS, "as the message says"),
        ("MissingParameter: x", "InvalidNodeClass", NODE_CLASS, "as the message says"),
        ("Client.UserInitiatedShutdown", "InstanceTerminatedByUser", NODE_POOL, "cloudtrail"),
        ("Something.New: x", "LaunchFailed", NODE_POOL, "Read the message"),
        ("RequestLimitExceeded: x", "RequestLimitExceeded", None, "repeated"),
        ("InternalError: x", "InternalError", None, "repeated"),
        ("InvalidLaunchTemplateId.NotFound: x", "LaunchTemplateNotFound", None, "created again"),
    ],
)  # fmt: skip
def test_each_refusal_of_a_launch_has_karpenters_reason_an_object_at_fault_and_a_remedy(text, reason, scope, remedy):
    """Alerts for Karpenter's reasons then work; only what has the fault is skipped; the remedy is a command or a field."""
    rule = launch_rule(text)
    assert (rule.reason, rule.scope, rule.node_class_only) == (reason, scope, False)
    assert remedy in rule.remedy


@pytest.mark.parametrize("code", ["Unsupported", "SpotMaxPriceTooLow", "VolumeTypeNotAvailableInZone"])
def test_settings_of_a_node_class_make_an_offering_unavailable_for_it_alone(code):
    rule = launch_rule(f"{code}: x")
    assert (rule.scope, rule.node_class_only) == (FaultScope.OFFERING, True)
    assert rule.remedy
