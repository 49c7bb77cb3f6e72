"""Error codes of Huawei Cloud, as errors that say what to do."""

import pytest

from journeyman.cloud.huawei.huawei_errors import launch_rule, translated
from journeyman.cloud.huawei.rest_api import RestApiError
from journeyman.core.api.launch_faults import FaultScope
from journeyman.errors import CloudProviderError, CloudUnavailableError, NodeClaimNotFoundError, RateLimitedError


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
    """An expired key is renewed by the next run; a wrong one is not. CCE answers with the same status for arrears."""
    assert "grant cce:node:create" in raised("CCE.01403001", 403).message
    denied = "Policy doesn't allow evs:volumes:create to be performed."
    assert "grant evs:volumes:create" in raised("CCE.01403001", 403, denied).message
    assert "access key" in raised("APIGW.0301", 401).message
    assert "projectId" in raised("APIGW.0301", 401, "the project in the path is not the caller's").message
    assert raised("APIGW.0301", 401, "the security token has expired").retryable
    arrears = raised("CCE.01403001", 403, "The account is in arrears; its resources are restricted.").message
    assert ("pay it" in arrears, "grant" in arrears) == (True, False)


ACCOUNT, NODE_CLASS, OFFERING = FaultScope.ACCOUNT, FaultScope.NODE_CLASS, FaultScope.OFFERING


@pytest.mark.parametrize(
    ("code", "text", "reason", "scope"),
    [
        ("CCE_CM.0021", "[c7.large.2|cn-north-4a] flavor is insufficient in specified az", "NoStock", OFFERING),
        ("CCE.01400021", "No available flavors for nodes", "NoStock", OFFERING),
        ("CCE.01400022", "No EVS type for nodes", "VolumeTypeUnavailable", OFFERING),
        ("", "Ecs.0319: Insufficient flavor capacity.", "NoStock", OFFERING),
        ("", "create server failed: Ecs.0219, No valid host was found", "NoStock", OFFERING),
        ("", "the flavor is sold out in the zone", "NoStock", OFFERING),
        ("400", "reason: ECSResourcesInsufficient", "NoStock", OFFERING),
        ("CCE.01400025", "", "NetworkUnsupported", OFFERING),
        ("", "Eni network is not supported by the flavor", "NetworkUnsupported", OFFERING),
        ("", "No more IP addresses available on network 1", "NoFreeAddress", FaultScope.SUBNET),
        ("CCE.01400008", "", "QuotaExceeded", ACCOUNT),
        ("CCE.01400009", "", "VCPULimitExceeded", ACCOUNT),
        ("CCE.01400013", "", "QuotaExceeded", NODE_CLASS),
        ("CCE.01400014", "", "ClusterFull", ACCOUNT),
        ("CCE.01400017", "", "NoContainerCIDR", ACCOUNT),
        ("CCE.01400018", "", "OSUnsupported", NODE_CLASS),
        ("CCE.01400002", "", "SubnetNotInVPC", NODE_CLASS),
        ("CCE.01403001", "", "Unauthorized", NODE_CLASS),
        ("CCE.01500001", "", "InternalError", None),
        ("", "Ecs.0219: Failed to create the ECS.", "LaunchFailed", FaultScope.NODE_POOL),
        ("", "the account is in arrears", "AccountInArrears", ACCOUNT),
        ("Something.New", "", "LaunchFailed", FaultScope.NODE_POOL),
    ],
)
def test_each_refusal_of_a_launch_has_a_reason_and_an_object_at_fault(code, text, reason, scope):
    """Jobs have no code, but may name one in their text. Disks of a type are missing for the CCENodeClass alone."""
    rule = launch_rule(code, text)
    of_one_class = code == "CCE.01400022"
    assert (rule.reason, rule.scope, rule.node_class_only) == (reason, scope, of_one_class)
    assert rule.is_capacity is (scope in {OFFERING, FaultScope.SUBNET} and not of_one_class)
    assert rule.remedy
