"""Error codes of Huawei Cloud, as errors that say what to do."""

import pytest

from journeyman.cloud.huawei.huawei_errors import launch_rule, translated
from journeyman.cloud.huawei.rest_api import RestApiError
from journeyman.core.api.launch_faults import FaultScope
from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    NodeClaimNotFoundError,
    RateLimitedError,
)


def raised(code, status, message="because"):
    with pytest.raises(CloudProviderError) as caught, translated("cce:node:create", nodeclaim="a"):
        raise RestApiError(code, message, status=status, request_id="r-1")
    return caught.value


@pytest.mark.parametrize(
    ("code", "status", "kind", "retryable"),
    [
        ("", 0, CloudUnavailableError, True),
        ("CCE.01404001", 404, NodeClaimNotFoundError, False),
        ("CCE.02429001", 429, RateLimitedError, True),
        ("APIGW.0308", 429, RateLimitedError, True),
        ("CCE.01429002", 429, RateLimitedError, True),
        ("CCE.01409002", 409, RateLimitedError, True),
        ("CCE.01500001", 500, CloudUnavailableError, True),
        ("502", 502, CloudUnavailableError, True),
        ("CCE.01400001", 400, CloudProviderError, False),
        ("APIGW.0301", 401, CloudProviderError, False),
    ],
)
def test_each_kind_of_failure_has_its_error(code, status, kind, retryable):
    """Its context has the code and the request id for the log."""
    error = raised(code, status)
    assert (type(error), error.retryable) == (kind, retryable)
    assert (error.context["code"], error.context["request_id"], error.context["nodeclaim"]) == (code, "r-1", "a")
    assert "because" in str(error)


def test_refusals_for_lack_of_rights_name_the_remedy():
    """An expired key is renewed by the next run; a wrong one is not."""
    assert "grant cce:node:create" in raised("CCE.01403001", 403).message
    denied = "Policy doesn't allow evs:volumes:create to be performed."
    assert "grant evs:volumes:create" in raised("CCE.01403001", 403, denied).message
    assert "access key" in raised("APIGW.0301", 401).message
    assert "projectId" in raised("APIGW.0301", 401, "the project in the path is not the caller's").message
    assert raised("APIGW.0301", 401, "the security token has expired").retryable


def test_refusal_of_an_account_in_arrears_names_no_right():
    """CCE answers with the status of a missing right; to grant one would not help."""
    error = raised("CCE.01403001", 403, "The account is in arrears; its resources are restricted.")

    assert "pay it" in error.message
    assert "grant" not in error.message


@pytest.mark.parametrize(
    ("code", "text", "reason"),
    [
        ("CCE_CM.0021", "[c7.large.2|cn-north-4a] flavor is insufficient in specified az", "NoStock"),
        ("CCE.01400021", "No available flavors for nodes", "NoStock"),
        ("CCE.01400022", "No EVS type for nodes", "VolumeTypeUnavailable"),
        ("", "Ecs.0319: Insufficient flavor capacity.", "NoStock"),
        ("", "create server failed: Ecs.0219, No valid host was found", "NoStock"),
        ("", "the flavor is sold out in the zone", "NoStock"),
        ("400", "reason: ECSResourcesInsufficient", "NoStock"),
        ("CCE.01400025", "", "NetworkUnsupported"),
        ("", "Eni network is not supported by the flavor", "NetworkUnsupported"),
        ("", "No more IP addresses available on network 1", "NoFreeAddress"),
        ("CCE.01400008", "", "QuotaExceeded"),
        ("CCE.01400009", "", "VCPULimitExceeded"),
        ("CCE.01400013", "", "QuotaExceeded"),
        ("CCE.01400014", "", "ClusterFull"),
        ("CCE.01400017", "", "NoContainerCIDR"),
        ("CCE.01400018", "", "OSUnsupported"),
        ("CCE.01400002", "", "SubnetNotInVPC"),
        ("CCE.01403001", "", "Unauthorized"),
        ("CCE.01500001", "", "InternalError"),
        ("", "Ecs.0219: Failed to create the ECS.", "LaunchFailed"),
        ("", "the account is in arrears", "AccountInArrears"),
        ("Something.New", "", "LaunchFailed"),
    ],
)
def test_each_refusal_of_a_launch_has_a_reason(code, text, reason):
    """It is in the Launched condition; jobs have no code, but may name one in their text."""
    rule = launch_rule(code, text)
    assert rule.reason == reason
    assert rule.remedy


@pytest.mark.parametrize(
    ("code", "scope", "node_class_only"),
    [
        ("CCE.01400022", FaultScope.OFFERING, True),
        ("CCE.01400021", FaultScope.OFFERING, False),
        ("CCE.01400018", FaultScope.NODE_CLASS, False),
        ("CCE.01403001", FaultScope.NODE_CLASS, False),
        ("CCE.01400008", FaultScope.ACCOUNT, False),
        ("CCE.01400014", FaultScope.ACCOUNT, False),
        ("Something.New", FaultScope.NODE_POOL, False),
        ("CCE.01500001", None, False),
    ],
)
def test_each_refusal_of_a_launch_says_whose_fault_it_is(code, scope, node_class_only):
    """Others are tried after an offering's own; disks of the CCENodeClass's type are missing for that NodeClass alone."""
    rule = launch_rule(code, "")
    assert (rule.scope, rule.node_class_only) == (scope, node_class_only)
    assert rule.is_capacity is (code == "CCE.01400021")
