"""The simulated Alibaba Cloud account lists types, stock, prices, images, networks and ACK clusters, and boots machines."""

import base64
import json
from datetime import timedelta
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import pytest

from journeyman.cloud.alibaba.open_api import CS, ECS, RAM, VPC, ApiCall, OpenApiError
from journeyman_simulator.alibaba_account.alibaba_machines import AlibabaMachines, attach_options
from journeyman_simulator.alibaba_account.ecs_types import all_instance_types

H, J, K = "cn-hangzhou-h", "cn-hangzhou-j", "cn-hangzhou-k"


@pytest.fixture
def ecs(api):
    """Return a function that calls an action of ECS in the region."""

    def call(action, **parameters):
        where = {} if action == "DescribeInstanceTypes" else {"RegionId": "cn-hangzhou"}
        return api(ApiCall(service=ECS, action=action, parameters={**where, **parameters}))

    return call


def the_resource(zone):
    """Return the supported resources of a zone in an answer of DescribeAvailableResource."""
    (resource,) = zone["AvailableResources"]["AvailableResource"]
    return resource["SupportedResources"]["SupportedResource"]


def test_instance_types_are_paged_by_token(ecs):
    """The fields are those of the API."""

    def types(**more):
        answer = ecs("DescribeInstanceTypes", **more)
        return answer["InstanceTypes"]["InstanceType"], answer["NextToken"]

    first, token = types()
    second, end = types(NextToken=token, MaxResults=100)
    ((gpu,), _), (arm, _) = types(InstanceTypes=["ecs.gn7i-c8g1.2xlarge"]), types(CpuArchitecture="ARM")

    assert (len(first), len(second), end) == (100, len(all_instance_types()) - 100, "")
    assert (gpu["InstanceTypeFamily"], gpu["GPUAmount"], gpu["MemorySize"]) == ("ecs.gn7i", 1, 30.0)
    assert {facts["InstanceTypeFamily"] for facts in arm} == {"ecs.c8y", "ecs.g8y", "ecs.r8y"}


def test_available_resource_shows_the_stock_of_each_zone(alibaba, clock, ecs):
    """Spot has a stock of its own, and ClosedWithStock still launches."""
    alibaba.out_of_stock("ecs.g7.large", H, "on-demand", clock.now() + timedelta(minutes=3))
    alibaba.set_stock("ecs.g7.large", J, "on-demand", category="ClosedWithStock")
    asked = {"DestinationResource": "InstanceType", "InstanceType": "ecs.g7.large", "InstanceChargeType": "PostPaid"}

    def stock(strategy):
        found = {}
        answer = ecs("DescribeAvailableResource", SpotStrategy=strategy, **asked)
        for zone in answer["AvailableZones"]["AvailableZone"]:
            (entry,) = the_resource(zone)
            found[zone["ZoneId"]] = (entry["Status"], entry["StatusCategory"])
        return found

    available = ("Available", "WithStock")
    assert stock("NoSpot") == {H: ("SoldOut", "WithoutStock"), J: ("Available", "ClosedWithStock"), K: available}
    assert stock("SpotAsPriceGo") == {H: available, J: available, K: available}


def test_available_resource_lists_the_system_disks_of_a_type(ecs):
    """Types of the seventh generation boot from ESSDs only."""

    def disks(name):
        answer = ecs("DescribeAvailableResource", DestinationResource="SystemDisk", InstanceType=name, ZoneId=H)
        (zone,) = answer["AvailableZones"]["AvailableZone"]
        return [entry["Value"] for entry in the_resource(zone)]

    assert disks("ecs.g7.large") == ["cloud_essd", "cloud_auto"]
    assert "cloud_efficiency" in disks("ecs.g6.large")


def test_price_includes_the_system_disk(alibaba, ecs):
    """A discount changes TradePrice, and a Spot price is its own, of which the advice has the discount."""
    alibaba.catalogue.discount = 0.8

    def price(**given):
        found = ecs("DescribePrice", InstanceType="ecs.g7.large", **given)["PriceInfo"]["Price"]
        return found, {part["Resource"]: part["TradePrice"] for part in found["DetailInfos"]["DetailInfo"]}

    whole, parts = price(PriceUnit="Hour", SystemDisk={"Category": "cloud_essd", "Size": 40})
    _, spot = price(SpotStrategy="SpotAsPriceGo", ZoneId=H)
    assert (whole["Currency"], whole["OriginalPrice"]) == ("CNY", pytest.approx(0.52325 + 40 * 0.00105))
    assert parts["instanceType"] == pytest.approx(0.8 * 0.52325)
    assert spot["instanceType"] == pytest.approx(alibaba.prices.spot("ecs.g7.large", H))

    answer = ecs("DescribeSpotAdvice", InstanceTypes=["ecs.g7.large"], ZoneId=H)
    (zone,) = answer["AvailableSpotZones"]["AvailableSpotZone"]
    (advice,) = zone["AvailableSpotResources"]["AvailableSpotResource"]
    assert advice["AverageSpotDiscount"] == round(100 * alibaba.prices.spot("ecs.g7.large", H) / 0.52325)
    assert advice["InterruptRateDesc"].endswith("%")


def test_spot_prices_are_hourly_and_paged_by_offset(alibaba, clock, ecs):
    """By default the last three hours, and a change shows in its hour."""
    clock.advance(1800)
    alibaba.prices.set_spot("ecs.g7.large", H, 0.25, clock.now() - timedelta(minutes=1))
    query = {"InstanceType": "ecs.g7.large", "NetworkType": "vpc", "OSType": "linux"}
    latest = ecs("DescribeSpotPriceHistory", **query, ZoneId=H)["SpotPrices"]["SpotPriceType"]
    day = ecs("DescribeSpotPriceHistory", **query, StartTime="2026-11-01T08:00:00Z")
    rest = ecs("DescribeSpotPriceHistory", **query, StartTime="2026-11-01T08:00:00Z", Offset=day["NextOffset"])

    assert [row["Timestamp"][11:16] for row in latest] == ["05:00", "06:00", "07:00", "08:00"]
    assert (latest[-1]["SpotPrice"], latest[-1]["OriginPrice"]) == (0.25, 0.52325)
    assert latest[0]["SpotPrice"] < 0.41 * 0.52325
    assert (len(day["SpotPrices"]["SpotPriceType"]), day["NextOffset"]) == (50, 50)
    assert (len(rest["SpotPrices"]["SpotPriceType"]), rest["NextOffset"]) == (25, 0)
    with pytest.raises(OpenApiError, match="30 days"):
        ecs("DescribeSpotPriceHistory", **query, StartTime="2026-09-01T08:00:00Z")


def test_images_are_found_by_id_family_and_architecture(alibaba, ack, ecs):
    """A new release is the family's latest; custom images belong to the account."""
    alibaba.images.add_custom("m-custom", "arm64", tags={"a": "b"})
    newer = alibaba.images.publish("20261101")
    family = "acs:alibaba_cloud_linux_3_2104_lts_x64"

    def ids(**given):
        return [image["ImageId"] for image in ecs("DescribeImages", **given)["Images"]["Image"]]

    assert ecs("DescribeImageFromFamily", ImageFamily=family)["Image"]["ImageId"] == newer["AliyunLinux3"]
    assert ids(ImageId=f"{ack.images['ContainerOS']},m-custom") == [ack.images["ContainerOS"], "m-custom"]
    assert ids(ImageOwnerAlias="self") == ids(Tag=[{"Key": "a", "Value": "b"}]) == ["m-custom"]
    assert len(ids(ImageFamily=family)) == 3
    assert len(ids(Architecture="arm64", PageSize=100)) == 7
    assert len(ids()) == 10


def test_networks_are_found_by_tag(alibaba, ack, api, ecs):
    """VPC names the parts of a tag Key and Value, ECS TagKey and TagValue."""
    other = alibaba.network.add_group("other")
    alibaba.network.add_vswitch(H, "10.1.0.0/24")
    tag = [{"Key": "karpenter.sh/discovery", "Value": "demo"}]
    call = ApiCall(service=VPC, action="DescribeVSwitches", parameters={"RegionId": "cn-hangzhou", "Tag": tag})

    def groups(**given):
        return ecs("DescribeSecurityGroups", **given)["SecurityGroups"]["SecurityGroup"]

    found = api(call)["VSwitches"]["VSwitch"]
    (group,), (named,) = groups(Tag=tag), groups(SecurityGroupIds=json.dumps([other.id]))
    assert {vswitch["ZoneId"]: vswitch["VSwitchId"] for vswitch in found} == ack.vswitches
    assert found[0]["Tags"]["Tag"] == tag
    assert (group["SecurityGroupId"], named["SecurityGroupName"]) == (ack.security_group, "other")
    assert group["Tags"]["Tag"] == [{"TagKey": "karpenter.sh/discovery", "TagValue": "demo"}]


def test_role_names_the_service_that_it_trusts(alibaba, ack, api):
    """Only a role that trusts ECS suits an instance."""
    alibaba.roles.add("other", "fc.aliyuncs.com")
    for name, trusts_ecs in ((ack.role, True), ("other", False)):
        role = api(ApiCall(service=RAM, action="GetRole", parameters={"RoleName": name}))["Role"]
        assert ("ecs.aliyuncs.com" in role["AssumeRolePolicyDocument"]) is trusts_ecs


# --- ACK ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cs(api, ack):
    """Return a function that calls an action of Container Service on the cluster."""

    def call(action, path, method="GET", **more):
        return api(ApiCall(service=CS, action=action, method=method, path=path.format(id=ack.cluster_id), **more))

    return call


def test_cluster_has_details_node_pools_add_ons_and_metadata(ack, cs):
    """Some members hold JSON as text."""
    detail = cs("DescribeClusterDetail", "/clusters/{id}")
    (pool,) = cs("DescribeClusterNodePools", "/clusters/{id}/nodepools")["nodepools"]
    addon = cs("GetClusterAddonInstance", "/clusters/{id}/addon_instances/terway-eniip")
    query = {"Region": "cn-hangzhou", "ClusterType": "ManagedKubernetes", "KubernetesVersion": ack.kubernetes_version}
    (metadata,) = cs("DescribeKubernetesVersionMetadata", "/api/v1/metadata/versions", parameters=query)

    assert (detail["name"], detail["state"], detail["current_version"]) == ("demo", "running", ack.kubernetes_version)
    assert json.loads(detail["meta_data"])["Capabilities"]["Network"] == "terway-eniip"
    assert json.loads(detail["master_url"])["intranet_api_server_endpoint"] == ack.endpoint
    assert (pool["nodepool_info"]["is_default"], pool["kubernetes_config"]["runtime"]) == (True, "containerd")
    assert addon["state"] == "active"
    assert {image["image_id"] for image in metadata["images"]} <= set(ack.images.values())
    with pytest.raises(OpenApiError, match="ErrorAddonNotFound"):
        cs("GetClusterAddonInstance", "/clusters/{id}/addon_instances/kube-flannel-ds")


def test_attach_script_is_text_for_the_default_pool(ack, cs):
    """Its last line takes further options."""
    script = cs("DescribeClusterAttachScripts", "/clusters/{id}/attachscript", method="POST", body={"arch": "arm64"})

    options = attach_options(script)
    assert script.startswith("#!/bin/bash\n")
    assert options.cluster_id == ack.cluster_id
    assert "--arch arm64" in script
    with pytest.raises(OpenApiError, match="ErrorNodePoolNotFound"):
        cs("DescribeClusterAttachScripts", "/clusters/{id}/attachscript", method="POST", body={"nodepool_id": "np-x"})


# --- machines ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def settle(alibaba, clock):
    """Return a function that lets some seconds pass, and returns the machines of the cluster."""

    def passing(machines, seconds=10):
        clock.advance(seconds)
        alibaba.act()
        return machines.machines()

    return passing


@pytest.fixture
def boot(alibaba, ack):
    """Return a function that launches an instance with an attach script and further options, as MIME parts."""
    api = alibaba.open_api()

    def launch(options="", body=None, instance_type="ecs.g7.large", image="AliyunLinux3"):
        path = f"/clusters/{ack.cluster_id}/attachscript"
        call = ApiCall(service=CS, action="DescribeClusterAttachScripts", path=path, body=body or {})
        parts = MIMEMultipart()
        for text in ("echo before\n", f"{api(call).rstrip()} {options}\n"):
            parts.attach(MIMEText(text, "x-shellscript"))
        given = {"RegionId": "cn-hangzhou", "InstanceType": instance_type, "ImageId": ack.images[image]}
        given |= {"VSwitchId": ack.vswitches[J], "SecurityGroupId": ack.security_group}
        given["UserData"] = base64.b64encode(parts.as_bytes()).decode()
        answer = api(ApiCall(service=ECS, action="RunInstances", parameters=given))
        return answer["InstanceIdSets"]["InstanceIdSet"][0]

    return launch


def test_machine_takes_its_node_from_the_attach_options(alibaba, ack, clock, boot, settle):
    """It runs after the instance's start, and is terminated with it."""
    config = {"kubelet_config": {"maxPods": 40, "kubeReserved": {"cpu": "100m", "memory": "500Mi"}}}
    encoded = base64.b64encode(json.dumps(config).encode()).decode()
    taints = "karpenter.sh/unregistered:NoExecute,team=a:NoSchedule"
    machines = AlibabaMachines(alibaba, ack.cluster_id)
    labels = {"karpenter.sh/nodepool": "default", "ack.aliyun.com": "x"}
    given = ",".join(f"{key}={value}" for key, value in labels.items())
    instance, launched_at = boot(f"--labels {given} --taints {taints} --node-config {encoded}"), clock.now()
    (pending,) = machines.machines()
    assert pending.running_since is None
    (machine,) = settle(machines)

    assert machine.running_since == launched_at + timedelta(seconds=6)
    assert machine.provider_id == f"cn-hangzhou.{instance}"
    assert machine.node_name == "cn-hangzhou.10.0.16.1"
    assert machine.labels == {
        **labels,
        "node.kubernetes.io/instance-type": "ecs.g7.large",
        "topology.kubernetes.io/zone": J,
        "topology.kubernetes.io/region": "cn-hangzhou",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    assert machine.taints == (
        {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
        {"key": "team", "effect": "NoSchedule", "value": "a"},
    )
    assert (machine.capacity["pods"], machine.allocatable["cpu"]) == ("40", "1900m")
    assert machine.capacity["memory"] == f"{8192 * 94 // 100}Mi"
    assert machine.allocatable["memory"] == f"{8192 * 94 // 100 - 600}Mi"
    alibaba.terminate(instance)
    assert [m.terminated for m in settle(machines, 60)] == [True]


def test_machine_joins_only_with_a_valid_token(alibaba, ack, clock, boot, settle):
    """An expired token admits no instance, and a one-time token one."""
    expired = boot(body={"expired": int(clock.now().timestamp()) + 1})
    joining = boot(body={"one_time_token": True})
    user_data = alibaba.instances.known[joining].settings["UserData"]
    alibaba.instances.known[boot()].settings |= {"UserData": user_data}

    found = settle(AlibabaMachines(alibaba, ack.cluster_id))
    running = {machine.provider_id: machine.running_since is not None for machine in found}
    assert running[f"cn-hangzhou.{expired}"] is False
    assert sorted(running.values()) == [False, False, True]


def test_arm_and_gpu_machines_have_their_architecture_and_devices(alibaba, ack, boot, settle):
    """Without maxPods, Terway's addresses limit the pods."""
    boot(instance_type="ecs.g8y.xlarge", image="AliyunLinux3Arm64")
    boot(instance_type="ecs.gn7i-c8g1.2xlarge")

    arm, gpu = settle(AlibabaMachines(alibaba, ack.cluster_id))
    assert (arm.labels["kubernetes.io/arch"], arm.capacity["pods"]) == ("arm64", "48")
    assert gpu.allocatable["nvidia.com/gpu"] == "1"
