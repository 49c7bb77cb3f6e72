"""Error codes of Alibaba Cloud: which condition, which remedy, and whether a retry helps."""

import pytest

from journeyman.cloud.alibaba.alibaba_errors import launch_rule, translated
from journeyman.cloud.alibaba.open_api import OpenApiError
from journeyman.core.api.launch_faults import FaultScope
from journeyman.errors import CloudProviderError, CloudUnavailableError, NodeClaimNotFoundError, RateLimitedError


def error_for(code, status=403):
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
        ("NoPermission", 403, CloudProviderError),
        ("InvalidParameter", 400, CloudProviderError),
    ],
)
def test_each_code_has_a_kind_of_error(code, status, kind):
    """The request's id and the operation are in the log; the original is the cause; a missing permission is the remedy."""
    error = error_for(code, status)
    assert type(error) is kind
    assert (error.context["operation"], error.context["request_id"]) == ("ecs:RunInstances", "R")
    assert error.context["nodeclaim"] == "x"
    assert isinstance(error.__cause__, OpenApiError)
    assert ("grant ecs:RunInstances to the function's role" in str(error)) is (status == 403)


@pytest.mark.parametrize(
    "code", ["InvalidAccessKeyId.NotFound", "InvalidAccessKeyId.Inactive", "SignatureDoesNotMatch"]
)
def test_wrong_access_key_is_not_reported_as_a_missing_permission(code):
    """A further permission would not help."""
    text = str(error_for(code, 404))
    assert "access key" in text
    assert "grant" not in text


ACCOUNT, NODE_CLASS, OFFERING = FaultScope.ACCOUNT, FaultScope.NODE_CLASS, FaultScope.OFFERING


@pytest.mark.parametrize(
    ("code", "reason", "scope", "remedy"),
    [
        ("Account.Arrearage", "AccountInArrears", ACCOUNT, "pay"),
        ("InsufficientBalance", "AccountInArrears", ACCOUNT, "funds"),
        ("QuotaExceed.ElasticQuota", "VCPULimitExceeded", ACCOUNT, "request a higher"),
        ("QuotaExceeded.ElasticQuota", "VCPULimitExceeded", ACCOUNT, "request a higher"),
        ("QuotaExceed.Spot", "SpotQuotaExceeded", OFFERING, "request a higher"),
        ("QuotaExceed.AfterpayInstance", "QuotaExceeded", ACCOUNT, "request a higher"),
        ("QuotaExceeded.PrivateIpAddress", "NoFreeAddress", FaultScope.SUBNET, "no free IP address"),
        ("SecurityGroupInstanceLimitExceed", "SecurityGroupFull", NODE_CLASS, "security group"),
        ("RealNameAuthenticationError", "AccountPendingVerification", ACCOUNT, "verified"),
        ("Forbidden.RiskControl", "AccountRestricted", ACCOUNT, "risk control"),
        ("Forbidden.RAM", "Unauthorized", NODE_CLASS, "permission"),
        ("InvalidUser.PassRoleForbidden", "Unauthorized", NODE_CLASS, "ram:PassRole"),
        ("InvalidImageId.NotFound", "ImageNotFound", NODE_CLASS, "image"),
        ("InvalidImage.NotFound", "ImageNotFound", NODE_CLASS, "image"),
        ("InvalidVSwitchId.NotFound", "VSwitchNotFound", NODE_CLASS, "vSwitch"),
        ("InvalidVSwitchId.IpNotEnough", "NoFreeAddress", FaultScope.SUBNET, "no free IP address"),
        ("InvalidSecurityGroupId.NotFound", "SecurityGroupNotFound", NODE_CLASS, "security group"),
        ("InvalidKeyPairName.NotFound", "KeyPairNotFound", NODE_CLASS, "key pair"),
        ("InvalidKMSKeyId.NotFound", "KMSKeyInvalid", NODE_CLASS, "kms EnableKey"),
        ("InvalidRamRole.NotFound", "RAMRoleNotFound", NODE_CLASS, "RAM role"),
        ("InvalidRamRole.NotEcsRole", "RAMRoleNotFound", NODE_CLASS, "trust ECS"),
        ("InvalidUserData.SizeExceeded", "UserDataSizeLimitExceeded", NODE_CLASS, "32 KiB"),
        ("InvalidSystemDiskSize.LessThanImageSize", "SystemDiskInvalid", NODE_CLASS, "spec.systemDisk"),
        ("InvalidRegionId.NotFound", "RegionNotFound", ACCOUNT, "registration"),
        ("OperationDenied.NoStock", "NoStock", OFFERING, "stock"),
        ("NoInstanceStock", "NoStock", OFFERING, "stock"),
        ("Zone.NotOnSale", "NoStock", OFFERING, "instance types, zones"),
        ("InstanceType.Offline", "NoStock", OFFERING, "instance types, zones"),
        ("Something.New", "LaunchFailed", FaultScope.NODE_POOL, "could not be launched"),
        ("Throttling.User", "RequestLimitExceeded", None, "repeated"),
    ],
)
def test_each_refusal_of_a_launch_has_a_reason_an_object_at_fault_and_a_remedy(code, reason, scope, remedy):
    """They are in the Launched condition, and only what has the fault is skipped."""
    rule = launch_rule(code)
    assert (rule.reason, rule.scope, rule.node_class_only) == (reason, scope, False)
    assert rule.is_capacity is (scope in {OFFERING, FaultScope.SUBNET})
    assert remedy.lower() in f"{rule.meaning}. {rule.remedy}".lower()
    assert rule.remedy


@pytest.mark.parametrize(
    "code", ["CategoryNotSupported", "InvalidDiskCategory.NotSupported", "InvalidSpotPriceLimit.LowerThanPublicPrice"]
)
def test_disks_and_price_limits_make_an_offering_unavailable_for_their_node_class_alone(code):
    rule = launch_rule(code)
    assert (rule.scope, rule.is_capacity, rule.node_class_only) == (OFFERING, False, True)
    assert "spec." in rule.remedy
