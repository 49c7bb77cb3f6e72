"""The simulated Alibaba Cloud account behaves like ECS: launches, stock, quotas, states, Spot, events, reads.

Most tests run over HTTP with the official SDK and in process, and state the services' behaviour.
"""

import base64
from datetime import timedelta

import pytest

from journeyman.cloud.alibaba.open_api import ECS, VPC, ApiCall, OpenApiError
from journeyman.errors import ConfigurationError
from journeyman_simulator.alibaba_account import AlibabaAccount
from journeyman_simulator.alibaba_account.ecs_types import SMALL_SELECTION, all_instance_types
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError

H, J, K = "cn-hangzhou-h", "cn-hangzhou-j", "cn-hangzhou-k"
USER_DATA = base64.b64encode(b"#!/bin/bash\n").decode()


@pytest.fixture
def ecs(api):
    """Return a function that calls an action of ECS in the region."""

    def call(action, region=True, **parameters):
        where = {"RegionId": "cn-hangzhou"} if region else {}
        return api(ApiCall(service=ECS, action=action, parameters={**where, **parameters}))

    return call


@pytest.fixture
def run_instances(ecs, ack):
    """Return a function that calls RunInstances with valid parameters, and returns the answer."""

    def run(**more):
        return ecs(
            "RunInstances",
            **{
                "InstanceType": "ecs.g7.large",
                "ImageId": ack.images["AliyunLinux3"],
                "VSwitchId": ack.vswitches[H],
                "SecurityGroupIds": [ack.security_group],
                "SystemDisk": {"Category": "cloud_essd", "Size": "40"},
                "UserData": USER_DATA,
                **more,
            },
        )

    return run


@pytest.fixture
def launch(run_instances):
    """Return a function that launches one instance, and returns its id."""
    return lambda **more: run_instances(**more)["InstanceIdSets"]["InstanceIdSet"][0]


@pytest.fixture
def provision(ecs, ack):
    """Return a function that creates an instant group over types and zones, and returns the launch results."""

    def create(types, zones=(H,), amount=1, capacity="PayAsYouGo", configs=None, **more):
        spot = capacity == "Spot"
        return ecs(
            "CreateAutoProvisioningGroup",
            **{
                "AutoProvisioningGroupType": "instant",
                "TotalTargetCapacity": str(amount),
                "PayAsYouGoTargetCapacity": str(0 if spot else amount),
                "SpotTargetCapacity": str(amount if spot else 0),
                "LaunchConfiguration": {
                    "ImageId": ack.images["AliyunLinux3"],
                    "SecurityGroupIds": [ack.security_group],
                    "UserData": USER_DATA,
                    "RamRoleName": ack.role,
                    "SystemDiskSize": 40,
                    "Tag": [{"Key": "kubernetes.io/cluster/demo", "Value": "owned"}],
                },
                "SystemDiskConfig": [{"DiskCategory": "cloud_essd"}],
                "LaunchTemplateConfig": [
                    {
                        "InstanceType": kind,
                        "VSwitchId": ack.vswitches[zone],
                        "WeightedCapacity": 1,
                        **(configs or {}).get(kind, {}),
                    }
                    for kind in types
                    for zone in zones
                ],
                **more,
            },
        )["LaunchResults"]["LaunchResult"]

    return create


@pytest.fixture
def described(ecs):
    """Return a function that returns the instances of one page of DescribeInstances."""
    return lambda **more: ecs("DescribeInstances", **{"MaxResults": 100, **more})["Instances"]["Instance"]


def refused(call, **parameters):
    """Return the code and status of the error of a call."""
    with pytest.raises(OpenApiError) as caught:
        call(**parameters)
    return caught.value.code, caught.value.status


def outcome(results):
    """Return each launch result as its type, number of instances and error code."""
    return [(r["InstanceType"], r["Amount"], r.get("ErrorCode", "")) for r in results]


# --- CreateAutoProvisioningGroup ---------------------------------------------------------------------------------------


def test_pay_as_you_go_launches_the_cheapest_configuration(provision, described):
    """The instance has the configuration's tags, role, zone and address."""
    (result,) = provision(["ecs.g7.xlarge", "ecs.c7.large", "ecs.g7.large"], zones=(H, J))

    (instance,) = described(InstanceIds=str(result["InstanceIds"]["InstanceId"]).replace("'", '"'))
    assert outcome([result]) == [("ecs.c7.large", 1, "")]
    assert (instance["ZoneId"], instance["Status"], instance["SpotStrategy"]) == (H, "Pending", "NoSpot")
    assert instance["InstanceChargeType"] == "PostPaid"
    assert instance["Tags"]["Tag"] == [{"TagKey": "kubernetes.io/cluster/demo", "TagValue": "owned"}]
    assert instance["VpcAttributes"]["PrivateIpAddress"]["IpAddress"] == ["10.0.0.1"]
    assert instance["Memory"] == 4096


def test_prioritized_launches_the_lowest_priority_number_first(provision):
    """Spot targets ignore the priority."""
    priorities = {"ecs.c7.large": {"Priority": 9}, "ecs.g7.xlarge": {"Priority": 0}}

    on_demand = provision(
        ["ecs.c7.large", "ecs.g7.xlarge"], configs=priorities, PayAsYouGoAllocationStrategy="prioritized"
    )
    spot = provision(["ecs.c7.large", "ecs.g7.xlarge"], configs=priorities, capacity="Spot")

    assert outcome(on_demand) == [("ecs.g7.xlarge", 1, "")]
    assert outcome(spot) == [("ecs.c7.large", 1, "")]


def test_group_answers_with_failures_before_a_success(alibaba, clock, provision):
    """A pool without stock, a full vSwitch and an unsold type are results, and the group goes on."""
    alibaba.out_of_stock("ecs.c7.large", H, "on-demand", clock.now() + timedelta(minutes=3))

    results = provision(["ecs.c7.large", "ecs.g7.large"])
    clock.advance(180)
    later = provision(["ecs.c7.large", "ecs.g7.large"])

    assert outcome(results) == [("ecs.c7.large", 0, "NoInstanceStock"), ("ecs.g7.large", 1, "")]
    assert outcome(later) == [("ecs.c7.large", 1, "")]


def test_group_without_any_stock_answers_with_failures_only(alibaba, ack, provision, described):
    """The status is 200, and nothing is launched."""
    alibaba.set_free_addresses(ack.vswitches[H], 0)
    alibaba.set_stock("ecs.g7.large", J, "on-demand", category="WithoutStock")

    results = provision(["ecs.g7.large"], zones=(H, J))

    assert outcome(results) == [
        ("ecs.g7.large", 0, "QuotaExceeded.PrivateIpAddress"),
        ("ecs.g7.large", 0, "NoInstanceStock"),
    ]
    assert described() == []


def test_group_takes_what_a_small_stock_has_and_goes_on(alibaba, provision):
    """Two of three instances come from the cheaper pool."""
    alibaba.set_stock("ecs.c7.large", H, "on-demand", instances=2)

    assert outcome(provision(["ecs.c7.large", "ecs.g7.large"], amount=3)) == [
        ("ecs.c7.large", 2, ""),
        ("ecs.g7.large", 1, ""),
    ]


def test_min_target_capacity_launches_all_or_nothing(alibaba, provision, described):
    """With less stock the call fails."""
    alibaba.set_stock("ecs.g7.large", H, "on-demand", instances=1)

    assert refused(provision, types=["ecs.g7.large"], amount=2, MinTargetCapacity="2") == (
        "OperationDenied.NoStock",
        403,
    )
    assert described() == []


def test_spot_group_launches_the_cheapest_pool_below_its_max_price(alibaba, provision, described):
    """A configuration whose MaxPrice is below the market price fails."""
    zones = (H, J, K)
    prices = {zone: alibaba.prices.spot("ecs.g7.large", zone) for zone in zones}
    cheapest = min(zones, key=prices.__getitem__)

    (launched,) = provision(["ecs.g7.large"], zones=zones, capacity="Spot")
    (failed,) = provision(["ecs.g7.large"], capacity="Spot", configs={"ecs.g7.large": {"MaxPrice": 0.001}})

    (instance,) = described()
    assert (launched["ZoneId"], instance["SpotStrategy"]) == (cheapest, "SpotAsPriceGo")
    assert failed["ErrorCode"] == "InvalidSpotPriceLimit.LowerThanPublicPrice"


def test_each_configuration_boots_an_image_of_its_architecture(ack, provision, described):
    """An image of another architecture does not support the type."""
    arm = {"ecs.c8y.large": {"ImageId": ack.images["AliyunLinux3Arm64"]}}

    (failed, launched) = provision(["ecs.c8y.large", "ecs.g7.large"])
    (right,) = provision(["ecs.c8y.large", "ecs.g7.large"], configs=arm)

    assert failed["ErrorCode"] == "ImageNotSupportInstanceType"
    assert launched["InstanceType"] == "ecs.g7.large"
    assert right["InstanceType"] == "ecs.c8y.large"
    assert described()[1]["ImageId"] == ack.images["AliyunLinux3Arm64"]


def test_group_of_the_default_type_is_not_simulated(alibaba, ack):
    """Such a group launches again on its own, so a request without `instant` is a mistake."""
    parameters = {"RegionId": "cn-hangzhou", "TotalTargetCapacity": "1"}

    with pytest.raises(NotSimulatedError, match="send instant"):
        alibaba.open_api()(ApiCall(service=ECS, action="CreateAutoProvisioningGroup", parameters=parameters))


# --- RunInstances ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"InstanceType": "ecs.none.large"}, ("InvalidInstanceType.ValueNotSupported", 400)),
        ({"ImageId": "m-none"}, ("InvalidImageId.NotFound", 404)),
        ({"VSwitchId": "vsw-none"}, ("InvalidVSwitchId.NotFound", 404)),
        ({"SecurityGroupIds": ["sg-none"]}, ("InvalidSecurityGroupId.NotFound", 404)),
        ({"RamRoleName": "none"}, ("InvalidRamRole.NotFound", 404)),
        ({"KeyPairName": "none"}, ("InvalidKeyPairName.NotFound", 404)),
        ({"UserData": "***"}, ("InvalidUserData.Base64FormatInvalid", 400)),
        ({"UserData": base64.b64encode(b"x" * 32769).decode()}, ("InvalidUserData.SizeExceeded", 400)),
        ({"SystemDisk": {"Category": "cloud_ssd", "Size": "40"}}, ("InvalidDiskCategory.NotSupported", 403)),
        ({"SystemDisk": {"Size": "5"}}, ("InvalidSystemDiskSize.ValueNotSupported", 400)),
        ({"SpotStrategy": "SpotWithPriceLimit"}, ("MissingParameter", 400)),
        (
            {"SpotStrategy": "SpotWithPriceLimit", "SpotPriceLimit": 0.001},
            ("InvalidSpotPriceLimit.LowerThanPublicPrice", 400),
        ),
        ({"SpotStrategy": "SpotWithPriceLimit", "SpotPriceLimit": 0.1234}, ("InvalidParameter", 400)),
        ({"Amount": 101}, ("InvalidParameter", 400)),
        ({"SecurityGroupId": "sg-1"}, ("InvalidParameter", 400)),
        ({"Tag": [{"Key": "acs:x", "Value": "1"}]}, ("InvalidParameter", 400)),
        ({"Tag": [{"Key": f"k{n}", "Value": "1"} for n in range(21)]}, ("InvalidParameter", 400)),
        ({"ClientToken": "x" * 65}, ("InvalidParameter", 400)),
        ({"DryRun": True}, ("DryRunOperation", 400)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_run_instances_refuses(run_instances, described, given, expected):
    """Nothing is launched."""
    assert refused(run_instances, **given) == expected
    assert described() == []


def test_min_amount_takes_what_the_stock_has(alibaba, run_instances):
    """Without it RunInstances launches all or none."""
    alibaba.set_stock("ecs.g7.large", H, "on-demand", instances=3)

    assert refused(run_instances, Amount=5) == ("OperationDenied.NoStock", 403)
    assert len(run_instances(Amount=5, MinAmount=2)["InstanceIdSets"]["InstanceIdSet"]) == 3


def test_type_is_not_on_sale_in_a_zone_that_lacks_it(clock):
    """The other zones sell it."""
    account = AlibabaAccount(clock, types=SMALL_SELECTION, missing=[("ecs.g7.large", H)])
    ack, api = account.seed(), account.open_api()

    def run(zone):
        given = {
            "InstanceType": "ecs.g7.large",
            "VSwitchId": ack.vswitches[zone],
            "SecurityGroupId": ack.security_group,
        }
        image = {"RegionId": "cn-hangzhou", "ImageId": ack.images["AliyunLinux3"]}
        return api(ApiCall(service=ECS, action="RunInstances", parameters={**given, **image}))

    assert refused(run, zone=H) == ("Zone.NotOnSale", 403)
    assert run(J)["InstanceIdSets"]["InstanceIdSet"]


@pytest.mark.parametrize(
    ("strategy", "capacity_type"), [("NoSpot", "on-demand"), ("SpotAsPriceGo", "spot")], ids=["on-demand", "spot"]
)
def test_quota_counts_the_vcpus_of_a_capacity_type(alibaba, run_instances, provision, strategy, capacity_type):
    """A released instance no longer counts, and a group reports the quota in its results."""
    alibaba.set_vcpu_quota(4, capacity_type)
    run_instances(SpotStrategy=strategy, Amount=2)

    assert refused(run_instances, SpotStrategy=strategy) == ("QuotaExceed.ElasticQuota", 403)
    capacity = "Spot" if capacity_type == "spot" else "PayAsYouGo"
    assert outcome(provision(["ecs.g7.large"], capacity=capacity))[0][2] == "QuotaExceed.ElasticQuota"


def test_account_in_arrears_launches_nothing(alibaba, run_instances, provision):
    """Both launching actions fail."""
    alibaba.in_arrears = True

    assert refused(run_instances) == ("Account.Arrearage", 400)
    assert refused(provision, types=["ecs.g7.large"]) == ("Account.Arrearage", 400)


# --- client tokens, lost answers, throttling ---------------------------------------------------------------------------


def test_client_token_repeats_the_first_answer(run_instances, described):
    """Other parameters with the same token are a mistake."""
    first, second = run_instances(ClientToken="t-1"), run_instances(ClientToken="t-1")

    assert first["InstanceIdSets"] == second["InstanceIdSets"]
    assert len(described()) == 1
    assert refused(run_instances, ClientToken="t-1", Amount=2) == ("IdempotentParameterMismatch", 400)


def test_client_token_repeats_a_failure_for_lack_of_stock(alibaba, clock, run_instances):
    """Only a new token succeeds once there is stock; other failures leave the token unused."""
    alibaba.out_of_stock("ecs.g7.large", H, "on-demand", clock.now() + timedelta(minutes=1))
    refused(run_instances, ClientToken="t-1")
    alibaba.fail_next("RunInstances", "ServiceUnavailable")
    throttled = refused(run_instances, ClientToken="t-2")
    clock.advance(61)

    assert refused(run_instances, ClientToken="t-1") == ("OperationDenied.NoStock", 403)
    assert throttled == ("ServiceUnavailable", 503)
    assert run_instances(ClientToken="t-2")["InstanceIdSets"]["InstanceIdSet"]


def test_lost_answer_has_its_effect(alibaba, provision, described):
    """The same token returns the launched instance."""
    alibaba.lose_next_answer("CreateAutoProvisioningGroup")

    assert refused(provision, types=["ecs.g7.large"], ClientToken="t-1") == ("", 0)
    (result,) = provision(["ecs.g7.large"], ClientToken="t-1")
    assert [instance["InstanceId"] for instance in described()] == result["InstanceIds"]["InstanceId"]


def test_requests_beyond_the_rate_are_throttled(alibaba, clock, ecs):
    """A minute later they succeed again."""
    alibaba.limit_rate("DescribeZones", per_minute=1)
    ecs("DescribeZones")

    assert refused(ecs, action="DescribeZones") == ("Throttling.User", 400)
    clock.advance(60)
    assert [zone["ZoneId"] for zone in ecs("DescribeZones")["Zones"]["Zone"]] == [H, J, K]
    assert alibaba.calls() == {"DescribeZones": 3}


# --- states and deletion -----------------------------------------------------------------------------------------------


def test_instance_starts_runs_and_is_released(clock, ecs, launch, described):
    """It cannot be released while it starts, and vanishes afterwards."""
    instance = launch()
    early = refused(ecs, action="DeleteInstances", InstanceId=[instance], Force=True)
    states = [described()[0]["Status"]]
    for seconds in (2, 4):
        clock.advance(seconds)
        states.append(described()[0]["Status"])

    assert early == ("IncorrectInstanceStatus.Initializing", 403)
    assert states == ["Pending", "Starting", "Running"]
    assert refused(ecs, action="DeleteInstances", InstanceId=[instance]) == ("IncorrectInstanceStatus", 403)
    assert refused(ecs, action="DeleteInstances", InstanceId=[instance], Force=True, DryRun=True)[0] == "DRYRUN.SUCCESS"
    ecs("DeleteInstances", InstanceId=[instance], Force=True)
    assert described()[0]["Status"] == "Stopping"
    ecs("DeleteInstances", InstanceId=[instance], Force=True)
    clock.advance(12)
    assert described() == []
    assert refused(ecs, action="DeleteInstances", InstanceId=[instance], Force=True) == (
        "InvalidInstanceId.NotFound",
        404,
    )


def test_delete_instances_releases_all_or_none(alibaba, clock, ecs, launch, described):
    """A protected instance keeps the others."""
    protected, other = launch(DeletionProtection=True), launch()
    clock.advance(60)

    code = refused(ecs, action="DeleteInstances", InstanceId=[other, protected], Force=True)
    alibaba.protect(protected, protected=False)
    states = {instance["Status"] for instance in described()}
    ecs("DeleteInstances", InstanceId=[other, protected], Force=True)

    assert code == ("InvalidOperation.DeletionProtection", 403)
    assert states == {"Running"}
    assert {instance["Status"] for instance in described()} == {"Stopping"}


def test_stopped_instance_is_released_at_once_and_frees_its_address(alibaba, clock, ack, ecs, api, launch, described):
    """ForceStop=false shuts down the operating system, which takes longer."""

    def free():
        call = ApiCall(service=VPC, action="DescribeVSwitches", parameters={"RegionId": "cn-hangzhou", "ZoneId": H})
        (vswitch,) = api(call)["VSwitches"]["VSwitch"]
        return vswitch["AvailableIpAddressCount"]

    before = free()
    stopped, clean = launch(), launch()
    clock.advance(60)
    alibaba.stop(stopped)
    clock.advance(60)
    assert free() == before - 2

    ecs("DeleteInstance", region=False, InstanceId=stopped)
    ecs("DeleteInstances", InstanceId=[clean], Force=True, ForceStop=False)
    clock.advance(13)

    assert [instance["Status"] for instance in described()] == ["Stopping"]
    clock.advance(60)
    assert described() == []
    assert free() == before


# --- Spot, events, maintenance -----------------------------------------------------------------------------------------


def test_spot_reclaim_announces_locks_and_releases_the_instance(alibaba, clock, launch, described):
    """Only a Spot instance can be reclaimed."""
    events = []
    alibaba.bus.subscribers.append(events.append)
    spot, on_demand = launch(SpotStrategy="SpotAsPriceGo", SpotDuration=0), launch()
    clock.advance(60)
    described()
    alibaba.interrupt(spot)
    locked = {i["InstanceId"]: i["OperationLocks"]["LockReason"] for i in described()}
    clock.advance(300)
    stopping = {i["InstanceId"]: i["Status"] for i in described()}
    clock.advance(12)

    notice = next(event for event in events if event["type"] == "ecs:Instance:PreemptibleInstanceInterruption")
    states = [e["data"]["state"] for e in events if e["data"].get("resourceId") == spot]
    assert [instance["InstanceId"] for instance in described()] == [on_demand]
    assert locked == {spot: [{"LockReason": "Recycling"}], on_demand: []}
    assert stopping == {spot: "Stopping", on_demand: "Running"}
    assert (notice["source"], notice["data"]) == ("acs.ecs", {"instanceId": spot, "action": "delete"})
    assert notice["subject"].endswith(f":instance/{spot}")
    assert states == ["Pending", "Starting", "Running", "Stopping"]
    with pytest.raises(ConfigurationError):
        alibaba.interrupt(on_demand)


def test_maintenance_is_listed_and_published(alibaba, clock, ecs, launch):
    """It is Scheduled, and Executed after its time."""
    events = []
    alibaba.bus.subscribers.append(events.append)
    instance = launch()
    event_id = alibaba.schedule_maintenance(instance, "SystemMaintenance.Redeploy", timedelta(hours=1))

    def listed(status):
        found = ecs(
            "DescribeInstanceHistoryEvents",
            InstanceEventType=["SystemMaintenance.Redeploy"],
            InstanceEventCycleStatus=[status],
            NotBefore={"Start": "2026-11-02T08:00:00Z"},
        )
        return [row["EventId"] for row in found["InstanceSystemEventSet"]["InstanceSystemEventType"]]

    assert listed("Scheduled") == [event_id]
    clock.advance(3600)
    assert (listed("Scheduled"), listed("Executed")) == ([], [event_id])
    published = [e["data"]["eventStatus"] for e in events if e["type"] == "ecs:Instance:SystemMaintenance.Redeploy"]
    assert published == ["Scheduled", "Executing", "Executed"]


# --- reads -------------------------------------------------------------------------------------------------------------


def test_describe_instances_pages_by_token_and_filters(ecs, ack, run_instances, launch, described):
    """MaxResults below 10 counts as 10, unknown ids and an empty list of ids find nothing."""
    run_instances(Amount=24, Tag=[{"Key": "a", "Value": "b"}])
    other = launch(Tag=[{"Key": "a", "Value": "c"}], VSwitchId=ack.vswitches[J])
    found, token = [], ""
    sizes = []
    while True:
        page = ecs("DescribeInstances", MaxResults=5, **({"NextToken": token} if token else {}))
        sizes.append(len(page["Instances"]["Instance"]))
        found += [instance["InstanceId"] for instance in page["Instances"]["Instance"]]
        token = page["NextToken"]
        if not token:
            break

    assert sizes == [10, 10, 5]
    assert len(set(found)) == 25
    assert len(described(Tag=[{"Key": "a", "Value": "b"}])) == 24
    assert len(described(Tag=[{"Key": "a"}])) == 25
    assert [i["InstanceId"] for i in described(ZoneId=J)] == [other]
    assert described(InstanceIds='["i-none"]') == described(InstanceIds="[]") == described(Status="Stopped") == []
    assert refused(ecs, action="DescribeInstances", NextToken="x") == ("InvalidParameter", 400)


def test_describe_instances_without_permission_is_empty(alibaba, ecs, launch, described):
    """Only a dry run reveals the missing permission; other actions are forbidden."""
    launch()
    allowed = refused(ecs, action="DescribeInstances", DryRun=True)
    alibaba.deny("ecs:DescribeInstances", "ecs:DescribeZones")

    assert described() == []
    assert allowed == ("DryRunOperation", 400)
    assert refused(ecs, action="DescribeInstances", DryRun=True) == ("Forbidden.RAM", 403)
    assert refused(ecs, action="DescribeZones") == ("Forbidden.RAM", 403)
    alibaba.allow("ecs:DescribeInstances")
    assert len(described()) == 1


def test_describe_instances_lags_behind(alibaba, clock, launch, described):
    """A new instance shows up later, and a released one for longer."""
    alibaba.describe_lag_seconds = 5
    instance = launch()
    at_once = described()
    clock.advance(30)
    alibaba.terminate(instance)
    clock.advance(14)
    released = [i["Status"] for i in described()]
    clock.advance(5)

    assert at_once == described() == []
    assert released == ["Stopping"]


def test_tags_are_added_listed_and_removed(alibaba, ecs, launch, described):
    """Unknown instances are not found."""
    instance = launch(Tag=[{"Key": "a", "Value": "1"}])
    resources = {"ResourceType": "instance", "ResourceId": [instance]}
    ecs("TagResources", **resources, Tag=[{"Key": "b", "Value": "2"}, {"Key": "a", "Value": "3"}])
    listed = ecs("ListTagResources", **resources)["TagResources"]["TagResource"]
    ecs("UntagResources", **resources, TagKey=["a"])
    alibaba.set_tags(instance, {"c": "4"})

    assert [(row["TagKey"], row["TagValue"]) for row in listed] == [("a", "3"), ("b", "2")]
    assert [tag["TagKey"] for tag in described()[0]["Tags"]["Tag"]] == ["b", "c"]
    missing = {"ResourceType": "instance", "ResourceId": ["i-none"], "Tag": [{"Key": "b", "Value": "2"}]}
    assert refused(ecs, action="TagResources", **missing) == ("InvalidResourceId.NotFound", 404)


def test_account_offers_every_known_type_by_default(alibaba):
    """Every type has prices."""
    assert set(alibaba.catalogue.types) == set(all_instance_types())
    for name in all_instance_types():
        on_demand, spot = alibaba.prices.on_demand(name), alibaba.prices.spot(name, H)
        assert on_demand is not None
        assert spot is not None
        assert 0.09 * on_demand <= spot <= 0.41 * on_demand
