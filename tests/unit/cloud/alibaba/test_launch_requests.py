"""The launch requests of an ECSNodeClass: an auto-provisioning group, or RunInstances for what a group cannot have."""

import base64

import pytest

from journeyman.cloud.alibaba.launch_requests import parse_group_answer
from journeyman.errors import CreateError, InsufficientCapacityError
from tests.unit.cloud.alibaba.conftest import GROUP, INSTANCES
from tests.unit.cloud.conftest import a_claim

H = "cn-hangzhou-h"
CHEAP = "ecs.c7.large"


def test_group_launches_one_instance_of_the_cheapest_pairs_first(ack):
    """It leaves no group behind, and at most 20 pairs of type and vSwitch are requested.

    On demand, all zones of a type cost the same; the first zone must not get every node.
    """
    firsts = {ack.requested(a_claim(f"web-{number}"))["LaunchTemplateConfig"][0]["VSwitchId"] for number in range(12)}
    assert firsts == set(ack.seeded.vswitches.values())
    sent = ack.requested()
    configs = sent["LaunchTemplateConfig"]
    body = ack.node_class()
    prices = {t.name: min(o.price for o in t.offerings) for t in ack.provider.get_instance_types(body)}

    assert (sent["AutoProvisioningGroupType"], sent["TotalTargetCapacity"]) == ("instant", "1")
    assert (sent["PayAsYouGoTargetCapacity"], sent["SpotTargetCapacity"]) == ("1", "0")
    assert sent["PayAsYouGoAllocationStrategy"] == "prioritized"
    assert [c["Priority"] for c in configs] == list(range(20))
    assert {c["VSwitchId"] for c in configs} <= set(ack.seeded.vswitches.values())
    first, last = configs[0]["InstanceType"], configs[-1]["InstanceType"]
    assert prices[first] <= prices[last]
    assert sent["ClientToken"] == "default-abc-uid"
    user_data = base64.b64decode(sent["LaunchConfiguration"]["UserData"]).decode()
    assert user_data.startswith("MIME-Version: 1.0")
    assert "attach_node.sh" in user_data
    assert {tag["Key"] for tag in sent["LaunchConfiguration"]["Tag"]} >= {
        f"kubernetes.io/cluster/{ack.seeded.cluster_id}",
        "karpenter.sh/nodeclaim",
        "karpenter.sh/nodepool",
    }


def test_both_apis_send_the_same_request_for_the_same_settings(ack, acs):
    """Only the notation of the settings differs, and the tag that names the NodeClass."""
    ours = ack.requested(
        imageSelectorTerms=[{"id": ack.seeded.images["AliyunLinux3"]}],
        systemDisk={"categories": ["cloud_essd"], "volumeSize": "60Gi", "performanceLevel": "PL1"},
        dataDisks=[{"volumeSize": "100Gi", "device": "/dev/xvdb"}],
        dataDiskCategories=["cloud_essd"],
        kubeletConfiguration={"maxPods": 30},
        tags={"team": "web"},
    )
    theirs = acs.requested(
        imageSelectorTerms=[{"id": acs.seeded.images["AliyunLinux3"]}],
        systemDisk={"category": "cloud_essd", "size": 60, "performanceLevel": "PL1"},
        dataDisks=[{"category": "cloud_essd", "size": 100, "device": "/dev/xvdb"}],
        kubelet={"maxPods": 30},
        tags={"team": "web"},
    )

    assert ours == theirs


def test_disks_have_categories_in_order_level_and_encryption(ack, acs):
    """ECS takes the first category that is available; a level is for an ESSD only."""
    ours = ack.requested(
        systemDisk={"categories": ["cloud_auto", "cloud_essd"], "volumeSize": "60Gi"},
        dataDisks=[{"volumeSize": "100Gi"}],
        dataDiskCategories=["cloud_essd", "cloud_auto"],
    )
    theirs = acs.requested(
        systemDisk={"encrypted": True, "kmsKeyID": "key-1", "performanceLevel": "PL2"},
        dataDisks=[{"category": "cloud_essd", "size": 40, "encrypted": True, "kmsKeyID": "key-2", "snapshotID": "s-1"}],
    )

    assert [c["DiskCategory"] for c in ours["SystemDiskConfig"]] == ["cloud_auto", "cloud_essd"]
    assert [c["DiskCategory"] for c in ours["DataDiskConfig"]] == ["cloud_essd", "cloud_auto"]
    assert ours["LaunchConfiguration"]["SystemDiskSize"] == 60
    assert "SystemDiskPerformanceLevel" not in ours["LaunchConfiguration"]
    assert ours["LaunchConfiguration"]["DataDisk"] == [{"Size": 100, "DeleteWithInstance": True}]
    assert theirs["LaunchConfiguration"]["SystemDiskPerformanceLevel"] == "PL2"
    assert theirs["LaunchConfiguration"]["SystemDisk"] == {"Encrypted": "true", "KMSKeyId": "key-1"}
    [disk] = theirs["LaunchConfiguration"]["DataDisk"]
    assert (disk["Encrypted"], disk["KmsKeyId"], disk["SnapshotId"]) == ("true", "key-2", "s-1")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {}),
        ({"password": "Secret-123"}, {"Password": "Secret-123"}),
        ({"passwordInherit": True}, {"PasswordInherit": True}),
        ({"keyPairName": "admin"}, {"KeyPairName": "admin"}),
        ({"resourceGroupId": "rg-1"}, {"ResourceGroupId": "rg-1"}),
    ],
)
def test_login_and_resource_group_are_in_the_configuration(ack, spec, expected):
    """Nothing else about them is sent. A user's rights may end at the group, so it is the fleet's, too."""
    request = ack.requested(**spec)
    names = {"Password", "PasswordInherit", "KeyPairName", "ResourceGroupId"}
    assert {key: value for key, value in request["LaunchConfiguration"].items() if key in names} == expected
    assert {key: value for key, value in request.items() if key == "ResourceGroupId"} == {
        key: value for key, value in expected.items() if key == "ResourceGroupId"
    }


def test_spot_price_limit_applies_with_its_strategy_only(acs):
    """SpotAsPriceGo pays the market price, whatever the limit; on-demand has no limit. ECS refuses reservations with Spot."""
    spot = a_claim(capacity_type="spot")
    limited = {"spotStrategy": "SpotWithPriceLimit", "spotPriceLimit": 0.25}

    def limits(claim, **spec):
        return {config.get("MaxPrice") for config in acs.requested(claim, **spec)["LaunchTemplateConfig"]}

    assert limits(spot, **limited) == {0.25}
    assert limits(spot, **{**limited, "spotStrategy": "SpotAsPriceGo"}) == {None}
    assert limits(a_claim("other"), **limited) == {None}
    run = acs.requested(spot, **limited, metadataOptions={})
    assert (run["SpotStrategy"], run["SpotPriceLimit"]) == ("SpotWithPriceLimit", 0.25)
    spec = {"capacityReservationSelectorTerms": [{"id": "crp-1"}], "capacityReservationPreference": "target"}
    assert "PrivatePoolOptions" not in acs.requested(spot, **spec)


def test_balanced_policy_spreads_spot_over_the_zones(ack):
    """`cheapest` takes the pool with the lowest price."""
    spot = a_claim(capacity_type="spot")
    assert ack.requested(spot)["SpotAllocationStrategy"] == "lowest-price"
    assert ack.requested(spot, vSwitchSelectionPolicy="balanced")["SpotAllocationStrategy"] == "diversified"
    assert ack.open_api.launch["SpotTargetCapacity"] == "1"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"metadataOptions": {"httpTokens": "required"}}, {"HttpTokens": "required", "HttpEndpoint": "enabled"}),
        (
            {"launchTemplateID": "lt-1", "launchTemplateVersion": 3},
            {"LaunchTemplateId": "lt-1", "LaunchTemplateVersion": 3},
        ),
        (
            {"capacityReservationSelectorTerms": [{"id": "crp-1"}], "capacityReservationPreference": "target"},
            {"PrivatePoolOptions": {"MatchCriteria": "Target", "Id": "crp-1"}},
        ),
        (
            {"capacityReservationSelectorTerms": [{"tags": {"team": "ml"}}]},
            {"PrivatePoolOptions": {"MatchCriteria": "Open"}},
        ),
    ],
)
def test_settings_that_a_group_lacks_are_sent_with_run_instances(acs, spec, expected):
    sent = acs.requested(role="KarpenterNodeRole-demo", **spec)
    assert acs.open_api.launches[-1][0] == INSTANCES
    assert sent.items() >= expected.items()
    assert (sent["InstanceType"], sent["Amount"], sent["SpotStrategy"]) == (CHEAP, 1, "NoSpot")
    assert sent["RamRoleName"] == "KarpenterNodeRole-demo"
    assert sent["ClientToken"] == "default-abc-uid"


def test_each_pair_has_the_image_of_its_architecture(ack):
    sent = ack.requested(imageSelectorTerms=[{"alias": "AlibabaCloudLinux3@latest"}])
    images = {c["InstanceType"]: c["ImageId"] for c in sent["LaunchTemplateConfig"]}
    launched = [ack.launch(ack.node_class(), a_claim(arch, arch=arch)).instance for arch in ("amd64", "arm64")]
    either = ack.launch(ack.node_class(), a_claim("either")).instance
    only = ack.launch(ack.node_class(), a_claim("only", instance_type=CHEAP)).instance

    assert images[CHEAP] == ack.seeded.images["AliyunLinux3"]
    assert images["ecs.c8y.large"] == ack.seeded.images["AliyunLinux3Arm64/arm64"]
    assert {instance.image_id for instance in launched} == {images[CHEAP], images["ecs.c8y.large"]}
    assert all(instance.image_id == images[instance.instance_type] for instance in (*launched, either, only))


def test_architecture_without_an_image_launches_nothing(ack):
    body = ack.node_class(imageSelectorTerms=[{"id": ack.seeded.images["AliyunLinux3"]}])
    arm = next(t for t in ack.provider.get_instance_types(body) if t.name == "ecs.c8y.large")
    outcome = ack.launch(body, a_claim(arch="arm64"))
    assert {o.unavailable_reason for o in arm.offerings} == {"NoImage"}
    assert isinstance(outcome.error, InsufficientCapacityError)


def test_success_after_failures_in_the_answer_is_found():
    """ECS answers with HTTP 200 whatever the results are."""
    failed = {"InstanceType": "a", "ZoneId": H, "ErrorCode": "NoInstanceStock", "ErrorMsg": "none", "InstanceIds": {}}
    won = {"InstanceType": "b", "ZoneId": H, "InstanceIds": {"InstanceId": ["i-1"]}}
    answer = parse_group_answer({"LaunchResults": {"LaunchResult": [failed, won]}})
    assert (answer.instance_id, answer.instance_type, answer.zone) == ("i-1", "b", H)
    assert [error.code for error in answer.errors] == ["NoInstanceStock"]
    assert parse_group_answer({}).errors == ()


def test_answer_without_results_keeps_the_claim(ack):
    """No offering can be marked, and the next plan would be the same, so the launch is retried later."""
    ack.open_api.answers[GROUP] = {"AutoProvisioningGroupId": "apg-1", "LaunchResults": {}}
    outcome = ack.launch(ack.node_class())
    assert isinstance(outcome.error, CreateError)
    assert outcome.answered


def test_run_instances_marks_the_refused_pair_only(acs):
    acs.open_api.refusal = "OperationDenied.NoStock"
    outcome = acs.launch(acs.node_class(metadataOptions={}), a_claim(zone=H))
    assert isinstance(outcome.error, InsufficientCapacityError)
    assert [(o.instance_type, o.zone, o.capacity_type) for o in outcome.unavailable] == [(CHEAP, H, "on-demand")]


def test_failed_launch_keeps_no_addresses(ack):
    """The next launch uses the same vSwitch, which still has most free addresses; a third one then uses the other."""
    network = ack.account.network
    fuller, emptier = (network.add_vswitch(H, f"10.1.{n}.0/24") for n in range(2))
    for vswitch, free in ((fuller, 90), (emptier, 100)):
        vswitch.tags["two"], vswitch.free = "yes", free
    body = ack.node_class(vSwitchSelectorTerms=[{"tags": {"two": "yes"}}])

    def used(name):
        ack.launch(body, a_claim(name))
        return {config["VSwitchId"] for config in ack.open_api.launch["LaunchTemplateConfig"]}

    ack.open_api.refusal = "OperationDenied.NoStock"
    failed = used("failed")
    ack.open_api.refusal = ""

    assert failed == used("second") == {emptier.id}
    assert used("third") == {fuller.id}
