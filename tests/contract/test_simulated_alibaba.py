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
from tests.helpers.small_clusters import table

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
def delete(ecs):
    """Return a function that calls DeleteInstances."""
    return lambda *ids, **more: ecs("DeleteInstances", InstanceId=list(ids), **more)


@pytest.fixture
def published(alibaba):
    """Return the events of the account, as they are published."""
    events = []
    alibaba.bus.subscribers.append(events.append)
    return events


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


def refused(call, *given, **parameters):
    """Return the code and status of the error of a call."""
    with pytest.raises(OpenApiError) as caught:
        call(*given, **parameters)
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
    types = ["ecs.c7.large", "ecs.g7.xlarge"]
    priorities = {"ecs.c7.large": {"Priority": 9}, "ecs.g7.xlarge": {"Priority": 0}}
    on_demand = provision(types, configs=priorities, PayAsYouGoAllocationStrategy="prioritized")
    assert outcome(on_demand) == [("ecs.g7.xlarge", 1, "")]
    assert outcome(provision(types, configs=priorities, capacity="Spot")) == [("ecs.c7.large", 1, "")]


def test_group_answers_with_failures_before_a_success(alibaba, clock, provision):
    """A pool without stock is a result, and the group goes on."""
    types = ["ecs.c7.large", "ecs.g7.large"]
    alibaba.out_of_stock("ecs.c7.large", H, "on-demand", clock.now() + timedelta(minutes=3))
    assert outcome(provision(types)) == [("ecs.c7.large", 0, "NoInstanceStock"), ("ecs.g7.large", 1, "")]
    clock.advance(180)
    assert outcome(provision(types)) == [("ecs.c7.large", 1, "")]


def test_group_without_any_stock_answers_with_failures_only(alibaba, ack, provision, described):
    """The status is 200, and nothing is launched. With less stock than MinTargetCapacity the call fails."""
    alibaba.set_free_addresses(ack.vswitches[H], 0)
    alibaba.set_stock("ecs.g7.large", J, "on-demand", category="WithoutStock")
    alibaba.set_stock("ecs.g7.large", K, "on-demand", instances=1)

    assert outcome(provision(["ecs.g7.large"], zones=(H, J))) == [
        ("ecs.g7.large", 0, "QuotaExceeded.PrivateIpAddress"),
        ("ecs.g7.large", 0, "NoInstanceStock"),
    ]
    too_many = {"types": ["ecs.g7.large"], "zones": (K,), "amount": 2, "MinTargetCapacity": "2"}
    assert refused(provision, **too_many) == ("OperationDenied.NoStock", 403)
    assert described() == []


def test_group_takes_what_a_small_stock_has_and_goes_on(alibaba, provision):
    """Two of three instances come from the cheaper pool."""
    alibaba.set_stock("ecs.c7.large", H, "on-demand", instances=2)
    launched = provision(["ecs.c7.large", "ecs.g7.large"], amount=3)
    assert outcome(launched) == [("ecs.c7.large", 2, ""), ("ecs.g7.large", 1, "")]


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
    types = ["ecs.c8y.large", "ecs.g7.large"]
    arm = {"ecs.c8y.large": {"ImageId": ack.images["AliyunLinux3Arm64"]}}
    wrong = provision(types)
    assert outcome(wrong) == [("ecs.c8y.large", 0, "ImageNotSupportInstanceType"), ("ecs.g7.large", 1, "")]
    assert outcome(provision(types, configs=arm)) == [("ecs.c8y.large", 1, "")]
    assert described()[1]["ImageId"] == ack.images["AliyunLinux3Arm64"]


def test_group_of_the_default_type_is_not_simulated(alibaba, ack):
    """Such a group launches again on its own, so a request without `instant` is a mistake."""
    parameters = {"RegionId": "cn-hangzhou", "TotalTargetCapacity": "1"}
    with pytest.raises(NotSimulatedError, match="send instant"):
        alibaba.open_api()(ApiCall(service=ECS, action="CreateAutoProvisioningGroup", parameters=parameters))


# --- RunInstances ------------------------------------------------------------------------------------------------------


BAD, LIMIT = ("InvalidParameter", 400), {"SpotStrategy": "SpotWithPriceLimit"}


@table(
    "given", "expected",
    unknown_type=({"InstanceType": "ecs.none.large"}, ("InvalidInstanceType.ValueNotSupported", 400)),
    unknown_image=({"ImageId": "m-none"}, ("InvalidImageId.NotFound", 404)),
    unknown_vswitch=({"VSwitchId": "vsw-none"}, ("InvalidVSwitchId.NotFound", 404)),
    unknown_group=({"SecurityGroupIds": ["sg-none"]}, ("InvalidSecurityGroupId.NotFound", 404)),
    unknown_role=({"RamRoleName": "none"}, ("InvalidRamRole.NotFound", 404)),
    unknown_key_pair=({"KeyPairName": "none"}, ("InvalidKeyPairName.NotFound", 404)),
    user_data=({"UserData": "***"}, ("InvalidUserData.Base64FormatInvalid", 400)),
    long_user_data=({"UserData": base64.b64encode(b"x" * 32769).decode()}, ("InvalidUserData.SizeExceeded", 400)),
    disk=({"SystemDisk": {"Category": "cloud_ssd", "Size": "40"}}, ("InvalidDiskCategory.NotSupported", 403)),
    disk_size=({"SystemDisk": {"Size": "5"}}, ("InvalidSystemDiskSize.ValueNotSupported", 400)),
    no_limit=(LIMIT, ("MissingParameter", 400)),
    low_limit=({**LIMIT, "SpotPriceLimit": 0.001}, ("InvalidSpotPriceLimit.LowerThanPublicPrice", 400)),
    limit_of_four_decimals=({**LIMIT, "SpotPriceLimit": 0.1234}, BAD),
    amount=({"Amount": 101}, BAD),
    group_twice=({"SecurityGroupId": "sg-1"}, BAD),
    reserved_tag=({"Tag": [{"Key": "acs:x", "Value": "1"}]}, BAD),
    many_tags=({"Tag": [{"Key": f"k{n}", "Value": "1"} for n in range(21)]}, BAD),
    long_token=({"ClientToken": "x" * 65}, BAD),
    dry_run=({"DryRun": True}, ("DryRunOperation", 400)),
)  # fmt: skip
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
    given = {"RegionId": "cn-hangzhou", "InstanceType": "ecs.g7.large", "ImageId": ack.images["AliyunLinux3"]}

    def run(zone):
        where = {"VSwitchId": ack.vswitches[zone], "SecurityGroupId": ack.security_group}
        return api(ApiCall(service=ECS, action="RunInstances", parameters={**given, **where}))

    assert refused(run, zone=H) == ("Zone.NotOnSale", 403)
    assert run(J)["InstanceIdSets"]["InstanceIdSet"]


@table(
    "strategy", "capacity_type", "capacity",
    on_demand=("NoSpot", "on-demand", "PayAsYouGo"),
    spot=("SpotAsPriceGo", "spot", "Spot"),
)  # fmt: skip
def test_quota_counts_the_vcpus_of_a_capacity_type(
    alibaba, run_instances, provision, strategy, capacity_type, capacity
):
    """A group reports the quota in its results. Both actions fail for an account in arrears."""
    alibaba.set_vcpu_quota(4, capacity_type)
    run_instances(SpotStrategy=strategy, Amount=2)

    assert refused(run_instances, SpotStrategy=strategy) == ("QuotaExceed.ElasticQuota", 403)
    assert outcome(provision(["ecs.g7.large"], capacity=capacity))[0][2] == "QuotaExceed.ElasticQuota"
    alibaba.in_arrears = True
    assert refused(run_instances, SpotStrategy=strategy) == ("Account.Arrearage", 400)
    assert refused(provision, types=["ecs.g7.large"], capacity=capacity) == ("Account.Arrearage", 400)


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
    assert refused(run_instances, ClientToken="t-1") == ("OperationDenied.NoStock", 403)
    alibaba.fail_next("RunInstances", "ServiceUnavailable")
    assert refused(run_instances, ClientToken="t-2") == ("ServiceUnavailable", 503)
    clock.advance(61)

    assert refused(run_instances, ClientToken="t-1") == ("OperationDenied.NoStock", 403)
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
    assert refused(ecs, "DescribeZones") == ("Throttling.User", 400)
    clock.advance(60)
    assert [zone["ZoneId"] for zone in ecs("DescribeZones")["Zones"]["Zone"]] == [H, J, K]
    assert alibaba.calls() == {"DescribeZones": 3}


# --- states and deletion -----------------------------------------------------------------------------------------------


def test_instance_starts_runs_and_is_released(clock, delete, launch, described):
    """It cannot be released while it starts, and vanishes afterwards."""
    instance = launch()
    assert refused(delete, instance, Force=True) == ("IncorrectInstanceStatus.Initializing", 403)
    for status, seconds in (("Pending", 2), ("Starting", 4), ("Running", 0)):
        assert described()[0]["Status"] == status
        clock.advance(seconds)

    assert refused(delete, instance) == ("IncorrectInstanceStatus", 403)
    assert refused(delete, instance, Force=True, DryRun=True)[0] == "DRYRUN.SUCCESS"
    delete(instance, Force=True)
    assert described()[0]["Status"] == "Stopping"
    delete(instance, Force=True)
    clock.advance(12)
    assert described() == []
    assert refused(delete, instance, Force=True) == ("InvalidInstanceId.NotFound", 404)


def test_delete_instances_releases_all_or_none(alibaba, clock, delete, launch, described):
    """A protected instance keeps the others."""
    protected, other = launch(DeletionProtection=True), launch()
    clock.advance(60)

    assert refused(delete, other, protected, Force=True) == ("InvalidOperation.DeletionProtection", 403)
    assert {instance["Status"] for instance in described()} == {"Running"}
    alibaba.protect(protected, protected=False)
    delete(other, protected, Force=True)
    assert {instance["Status"] for instance in described()} == {"Stopping"}


def test_stopped_instance_is_released_at_once_and_frees_its_address(
    alibaba, clock, ecs, api, delete, launch, described
):
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
    delete(clean, Force=True, ForceStop=False)
    clock.advance(13)
    assert [instance["Status"] for instance in described()] == ["Stopping"]
    clock.advance(60)
    assert (described(), free()) == ([], before)


# --- Spot, events, maintenance -----------------------------------------------------------------------------------------


def test_spot_reclaim_announces_locks_and_releases_the_instance(alibaba, clock, launch, described, published):
    """Only a Spot instance can be reclaimed."""
    spot, on_demand = launch(SpotStrategy="SpotAsPriceGo", SpotDuration=0), launch()
    clock.advance(60)
    described()
    alibaba.interrupt(spot)
    locked = {i["InstanceId"]: i["OperationLocks"]["LockReason"] for i in described()}
    assert locked == {spot: [{"LockReason": "Recycling"}], on_demand: []}
    clock.advance(300)
    assert {i["InstanceId"]: i["Status"] for i in described()} == {spot: "Stopping", on_demand: "Running"}
    states = [e["data"]["state"] for e in published if e["data"].get("resourceId") == spot]
    assert states == ["Pending", "Starting", "Running", "Stopping"]
    clock.advance(12)
    assert [instance["InstanceId"] for instance in described()] == [on_demand]

    notice = next(event for event in published if event["type"] == "ecs:Instance:PreemptibleInstanceInterruption")
    assert (notice["source"], notice["data"]) == ("acs.ecs", {"instanceId": spot, "action": "delete"})
    assert notice["subject"].endswith(f":instance/{spot}")
    with pytest.raises(ConfigurationError):
        alibaba.interrupt(on_demand)


def test_maintenance_is_listed_and_published(alibaba, clock, ecs, launch, published):
    """It is Scheduled, and Executed after its time."""
    kind = "SystemMaintenance.Redeploy"
    event_id = alibaba.schedule_maintenance(launch(), kind, timedelta(hours=1))
    asked = {"InstanceEventType": [kind], "NotBefore": {"Start": "2026-11-02T08:00:00Z"}}

    def listed(status):
        found = ecs("DescribeInstanceHistoryEvents", InstanceEventCycleStatus=[status], **asked)
        return [row["EventId"] for row in found["InstanceSystemEventSet"]["InstanceSystemEventType"]]

    assert listed("Scheduled") == [event_id]
    clock.advance(3600)
    assert (listed("Scheduled"), listed("Executed")) == ([], [event_id])
    statuses = [e["data"]["eventStatus"] for e in published if e["type"] == f"ecs:Instance:{kind}"]
    assert statuses == ["Scheduled", "Executing", "Executed"]


# --- reads -------------------------------------------------------------------------------------------------------------


def test_describe_instances_pages_by_token_and_filters(ecs, ack, run_instances, launch, described):
    """MaxResults below 10 counts as 10, unknown ids and an empty list of ids find nothing."""
    run_instances(Amount=24, Tag=[{"Key": "a", "Value": "b"}])
    other = launch(Tag=[{"Key": "a", "Value": "c"}], VSwitchId=ack.vswitches[J])
    pages, token = [], {}
    while not pages or token["NextToken"]:
        answer = ecs("DescribeInstances", MaxResults=5, **token)
        pages.append([instance["InstanceId"] for instance in answer["Instances"]["Instance"]])
        token = {"NextToken": answer["NextToken"]}

    assert [len(page) for page in pages] == [10, 10, 5]
    assert len({instance for page in pages for instance in page}) == 25
    assert len(described(Tag=[{"Key": "a", "Value": "b"}])) == 24
    assert len(described(Tag=[{"Key": "a"}])) == 25
    assert [i["InstanceId"] for i in described(ZoneId=J)] == [other]
    assert described(InstanceIds='["i-none"]') == described(InstanceIds="[]") == described(Status="Stopped") == []
    assert refused(ecs, "DescribeInstances", NextToken="x") == ("InvalidParameter", 400)


def test_describe_instances_without_permission_is_empty(alibaba, ecs, launch, described):
    """Only a dry run reveals the missing permission; other actions are forbidden."""
    launch()
    assert refused(ecs, "DescribeInstances", DryRun=True) == ("DryRunOperation", 400)
    alibaba.deny("ecs:DescribeInstances", "ecs:DescribeZones")

    assert described() == []
    assert refused(ecs, "DescribeInstances", DryRun=True) == ("Forbidden.RAM", 403)
    assert refused(ecs, "DescribeZones") == ("Forbidden.RAM", 403)
    alibaba.allow("ecs:DescribeInstances")
    assert len(described()) == 1


def test_describe_instances_lags_behind(alibaba, clock, launch, described):
    """A new instance shows up later, and a released one for longer."""
    alibaba.describe_lag_seconds = 5
    instance = launch()
    assert described() == []
    clock.advance(30)
    alibaba.terminate(instance)
    clock.advance(14)
    assert [i["Status"] for i in described()] == ["Stopping"]
    clock.advance(5)
    assert described() == []


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
    assert refused(ecs, "TagResources", **missing) == ("InvalidResourceId.NotFound", 404)


def test_account_offers_every_known_type_by_default(alibaba):
    """Every type has prices."""
    assert set(alibaba.catalogue.types) == set(all_instance_types())
    for name in all_instance_types():
        on_demand, spot = alibaba.prices.on_demand(name), alibaba.prices.spot(name, H)
        assert on_demand is not None
        assert spot is not None
        assert 0.09 * on_demand <= spot <= 0.41 * on_demand
