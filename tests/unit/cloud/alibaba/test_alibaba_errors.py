"""Error codes of Alibaba Cloud: which condition, which remedy, and whether a retry helps."""

import pytest

from journeyman.cloud.alibaba.alibaba_errors import (
    launch_rule,
    translated,
)
from journeyman.cloud.alibaba.open_api import OpenApiError
from journeyman.core.api.launch_faults import FaultScope
from journeyman.errors import CloudProviderError, CloudUnavailableError, NodeClaimNotFoundError, RateLimitedError


def error_for(code, status=403):
    """Return the translated error for an error code."""
    with pytest.raises(CloudProviderError) as caught, translated("ecs:RunInstances", nodeclaim="x"):
        raise OpenApiError(code, "the service's text", status=status, request_id="R")
    return caught.value


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("Throttling", 400, RateLimitedError),
        ("Throttling.User", 400, RateLimitedError),
        ("LastTokenProcessing", 400, RateLimitedError),
        ("Whatever", 429, RateLimitedError),
        ("InternalError", 500, CloudUnavailableError),
        ("ServiceUnavailable", 503, CloudUnavailableError),
        ("Whatever", 500, CloudUnavailableError),
        ("Whatever", 499, CloudProviderError),
        ("InvalidSecurityToken.Expired", 400, CloudUnavailableError),
        ("", 0, CloudUnavailableError),
        ("InvalidInstanceId.NotFound", 404, NodeClaimNotFoundError),
        ("Forbidden.RAM", 403, CloudProviderError),
        ("InvalidParameter", 400, CloudProviderError),
    ],
)
def test_each_code_has_a_kind_of_error(code, status, kind):
    """The request's id and the operation are in the log; the original is the cause."""
    error = error_for(code, status)

    assert type(error) is kind
    assert error.context["operation"] == "ecs:RunInstances"
    assert error.context["request_id"] == "R"
    assert error.context["nodeclaim"] == "x"
    assert isinstance(error.__cause__, OpenApiError)


def test_missing_permission_is_named_with_the_remedy():
    """As RAM writes it."""
    assert "grant ecs:RunInstances to the function's role" in str(error_for("Forbidden.RAM"))
    assert "grant ecs:RunInstances to the function's role" in str(error_for("NoPermission"))


@pytest.mark.parametrize(
    "code", ["InvalidAccessKeyId.NotFound", "InvalidAccessKeyId.Inactive", "SignatureDoesNotMatch"]
)
def test_wrong_access_key_is_not_reported_as_a_missing_permission(code):
    """A further permission would not help."""
    text = str(error_for(code, 404))

    assert "access key" in text
    assert "grant" not in text


@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        ("Account.Arrearage", "AccountInArrears", "pay"),
        ("InsufficientBalance", "AccountInArrears", "funds"),
        ("QuotaExceed.ElasticQuota", "VCPULimitExceeded", "request a higher"),
        ("QuotaExceeded.ElasticQuota", "VCPULimitExceeded", "request a higher"),
        ("QuotaExceed.Spot", "SpotQuotaExceeded", "request a higher"),
        ("QuotaExceed.AfterpayInstance", "QuotaExceeded", "request a higher"),
        ("QuotaExceeded.PrivateIpAddress", "NoFreeAddress", "no free IP address"),
        ("SecurityGroupInstanceLimitExceed", "SecurityGroupFull", "security group"),
        ("RealNameAuthenticationError", "AccountPendingVerification", "verified"),
        ("Forbidden.RiskControl", "AccountRestricted", "risk control"),
        ("Forbidden.RAM", "Unauthorized", "permission"),
        ("InvalidUser.PassRoleForbidden", "Unauthorized", "ram:PassRole"),
        ("InvalidImageId.NotFound", "ImageNotFound", "image"),
        ("InvalidImage.NotFound", "ImageNotFound", "image"),
        ("InvalidVSwitchId.NotFound", "VSwitchNotFound", "vSwitch"),
        ("InvalidVSwitchId.IpNotEnough", "NoFreeAddress", "no free IP address"),
        ("InvalidSecurityGroupId.NotFound", "SecurityGroupNotFound", "security group"),
        ("InvalidKeyPairName.NotFound", "KeyPairNotFound", "key pair"),
        ("InvalidRamRole.NotFound", "RAMRoleNotFound", "RAM role"),
        ("InvalidRamRole.NotEcsRole", "RAMRoleNotFound", "trust ECS"),
        ("InvalidUserData.SizeExceeded", "UserDataSizeLimitExceeded", "32 KiB"),
        ("InvalidSystemDiskSize.LessThanImageSize", "SystemDiskInvalid", "spec.systemDisk"),
        ("InvalidRegionId.NotFound", "RegionNotFound", "registration"),
        ("OperationDenied.NoStock", "NoStock", "stock"),
        ("NoInstanceStock", "NoStock", "stock"),
        ("Something.New", "LaunchFailed", "could not be launched"),
    ],
)
def test_each_refusal_of_a_launch_has_a_reason_and_a_remedy(code, reason, remedy):
    """They are in the Launched condition."""
    rule = launch_rule(code)

    assert rule.reason == reason
    assert remedy.lower() in f"{rule.meaning}. {rule.remedy}".lower()
    assert rule.remedy


@pytest.mark.parametrize(
    ("code", "scope", "is_capacity"),
    [
        ("Account.Arrearage", FaultScope.ACCOUNT, False),
        ("QuotaExceed.AfterpayInstance", FaultScope.ACCOUNT, False),
        ("Forbidden.RAM", FaultScope.NODE_CLASS, False),
        ("InvalidKMSKeyId.NotFound", FaultScope.NODE_CLASS, False),
        ("InvalidImageId.NotFound", FaultScope.NODE_CLASS, False),
        ("QuotaExceeded.PrivateIpAddress", FaultScope.SUBNET, True),
        ("InvalidVSwitchId.IpNotEnough", FaultScope.SUBNET, True),
        ("Zone.NotOnSale", FaultScope.OFFERING, True),
        ("InstanceType.Offline", FaultScope.OFFERING, True),
        ("CategoryNotSupported", FaultScope.OFFERING, False),
        ("InvalidDiskCategory.NotSupported", FaultScope.OFFERING, False),
        ("InvalidSpotPriceLimit.LowerThanPublicPrice", FaultScope.OFFERING, False),
        ("Something.New", FaultScope.NODE_POOL, False),
        ("Throttling.User", None, False),
    ],
)
def test_each_refusal_of_a_launch_says_whose_fault_it_is(code, scope, is_capacity):
    """Only what has the fault is skipped. Disks and price limits are the NodeClass's: for it alone, offerings are unavailable."""
    rule = launch_rule(code)

    assert (rule.scope, rule.is_capacity) == (scope, is_capacity)
    assert rule.node_class_only is (scope is FaultScope.OFFERING and not is_capacity)
    assert "spec." in rule.remedy or not rule.node_class_only
