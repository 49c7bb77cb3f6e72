"""What is wrong in an account of Alibaba Cloud or Huawei Cloud becomes a condition with its remedy, and leaves nothing behind.

Once the mistake is corrected, the waiting pods run. `test_alibaba_bad_input` and `test_huawei_bad_input` have what only one
cloud has.
"""

from datetime import timedelta

import pytest

from tests.e2e.bad_cloud_input import ALIBABA, HUAWEI, START, BadInputCluster, bad_input_cluster

pytestmark = pytest.mark.slow
CLOUDS = pytest.mark.parametrize("cluster", [ALIBABA, HUAWEI], ids=["alibaba", "huawei"], indirect=True)


@pytest.fixture
def cluster(request):
    """Return a cluster of the cloud whose pods wait; afterwards, nothing may be left."""
    with bad_input_cluster(request.param) as opened:
        yield opened


@CLOUDS
def test_full_subnets_are_reported(cluster):
    """No NodeClaim and no instance stays, and the log says what the cloud refused."""
    cluster.take_addresses()
    cluster.run(4)

    said = cluster.logged() + cluster.said_by_claims()
    assert cluster.deployment.price_per_hour == 0
    assert any(text in each for each in said for text in ("PrivateIpAddress", "IpNotEnough", "no free IP address"))
    cluster.take_addresses(free=200)


@CLOUDS
def test_no_stock_anywhere_is_reported_until_there_is_some(cluster):
    """The pods wait; each offering is skipped for minutes, and then launched."""
    until = cluster.deployment.clock.now() + timedelta(minutes=10)
    for pool in cluster.pools():
        cluster.account.out_of_stock(*pool, until)
    cluster.run(5)

    assert cluster.deployment.price_per_hour == 0
    said = cluster.said_by_events()
    assert any("NoStock" in each or "no stock of the instance type" in each for each in said), said
    cluster.until_running(3, minutes=90)


REFUSALS = [
    (ALIBABA, "Account.Arrearage", "AccountInArrears", "overdue payment", "Pay it in the console, Expenses and Costs"),
    (ALIBABA, "QuotaExceed.ElasticQuota", "VCPULimitExceeded", "the vCPU quota is used up", "Request a higher one"),
    (
        ALIBABA,
        "Forbidden.RAM",
        "Unauthorized",
        "grant ecs:CreateAutoProvisioningGroup",
        "Grant the action of the message",
    ),
    (HUAWEI, "CCE.01400008", "QuotaExceeded", "quota of ECS servers is used up", "Request a higher one"),
    (HUAWEI, "CCE.01400009", "VCPULimitExceeded", "the vCPU quota is used up", "Request a higher one"),
    (HUAWEI, "CCE.01400014", "ClusterFull", "can manage no further node", "Enlarge its scale"),
    (HUAWEI, "CCE.01400017", "NoContainerCIDR", "no address block left", "Add a container CIDR block"),
    (HUAWEI, "CCE.01403001", "Unauthorized", "grant cce:node:create", "Grant cce:node:create"),
]
REPEATED = [
    (ALIBABA, "Throttling.User", "", "throttles ecs:CreateAutoProvisioningGroup"),
    (ALIBABA, "InternalError", "InternalError", "internal error"),
    (HUAWEI, "APIGW.0308", "", "throttles cce:node:create"),
    (HUAWEI, "CCE.01500001", "InternalError", "internal error"),
]


@pytest.mark.parametrize(
    ("cluster", "code", "reason", "problem", "remedy"),
    REFUSALS,
    ids=[code for _, code, *_ in REFUSALS],
    indirect=["cluster"],
)
def test_refused_launch_has_a_condition_with_the_remedy(cluster, code, reason, problem, remedy):
    """Events on NodeClass, NodePool and pods say at once what to do, and the NodePool's condition from the second refusal on.

    No NodeClaim stays. Soon after the account is in order the pods run: the cluster does not see that it is.
    """
    cluster.account.fail_next(cluster.launch, code, times=1000)
    cluster.run(0.25)
    events = cluster.said_of_launches()
    for kind in (cluster.cloud.node_class.kind, "NodePool", "Pod"):
        assert all(reason in text and problem in text and remedy in text for text in events[kind]), events
    cluster.run(45)

    said = cluster.said_by_pools()
    assert any(text.startswith(reason) and problem in text and remedy in text for text in said), said
    assert cluster.deployment.leftovers() == ()
    cluster.account.stop_failing(cluster.launch)
    cluster.until_running(3, minutes=10)


@pytest.mark.parametrize(
    ("cluster", "code", "reason", "problem"), REPEATED, ids=[code for _, code, *_ in REPEATED], indirect=["cluster"]
)
def test_launch_that_is_repeated_has_a_condition_with_the_reason(cluster, code, reason, problem):
    """No object is at fault: the Launched condition says what happened, and the same NodeClaim is launched later."""
    cluster.account.fail_next(cluster.launch, code, times=30)
    cluster.run(0.5)

    said = cluster.said_by_claims()
    assert any(text.startswith(reason) and problem in text for text in said), said
    names = {claim.metadata.name for claim in cluster.claims()}
    cluster.account.stop_failing(cluster.launch)
    cluster.until_running(3)
    assert names <= {claim.metadata.name for claim in cluster.claims()}


@CLOUDS
def test_account_in_arrears_launches_once_it_is_paid(cluster):
    """The cloud itself refuses while the account is in arrears; a further right would not help."""
    cluster.account.in_arrears = True
    cluster.run(45)
    said = [text for texts in cluster.said_of_launches().values() for text in texts] + cluster.said_by_pools()
    assert said
    assert all("overdue payment" in each and "Pay it in the console" in each for each in said), said
    assert not any("grant" in each.lower() for each in said), said

    cluster.account.in_arrears = False
    cluster.until_running(3, minutes=10)


@pytest.mark.parametrize(
    ("cluster", "action"),
    [(ALIBABA, "ecs:DescribeInstances"), (HUAWEI, "cce:node:list"), (HUAWEI, "ecs:cloudServers:list")],
    indirect=["cluster"],
)
def test_missing_permission_to_list_instances_terminates_no_node(cluster, action):
    """A list that is empty for lack of a right is not taken for nodes that are gone."""
    caller = cluster.cloud.function_caller("terminate")
    cluster.until_running(3)
    before = {claim.metadata.name for claim in cluster.claims()}
    cluster.account.deny(action, **caller)
    cluster.run(15)

    assert {claim.metadata.name for claim in cluster.claims()} == before
    assert any(f"grant {action}" in said for said in cluster.logged())
    cluster.account.allow(action, **caller)


@pytest.mark.parametrize("cloud", [ALIBABA, HUAWEI], ids=["alibaba", "huawei"])
def test_wrong_region_is_named_with_the_remedy(cloud):
    """The log says which region, or whose functions, are unknown."""
    logs = []
    with cloud.deployment(start=START, settings=cloud.wrong_region, on_log=logs.append) as deployment:
        cluster = BadInputCluster(cloud, deployment, logs)
        cluster.scale(3)
        cluster.run(5)

        said = cluster.logged() + cluster.said_by_node_class()
        region = next(iter(cloud.wrong_region.values()))
        assert any(region in text or "InvalidRegionId" in text for text in said), said
        if cloud is ALIBABA:
            assert deployment.price_per_hour == 0
