"""ECSNodeClasses of both API groups: defaults, rejected values, and their common view."""

import pytest

from journeyman.core.api.acs_ecsnodeclass import ACSECSNodeClass
from journeyman.core.api.conditions import set_condition
from journeyman.core.api.ecs_settings import (
    ACS_API,
    APIS,
    ECS_API,
    CapacityReservationTerm,
    Disk,
    ImageTerm,
    InstanceMetadata,
    ResolvedImage,
    ResolvedResources,
    ResolvedSecurityGroup,
    ResolvedVSwitch,
    SecurityGroupTerm,
    VSwitchTerm,
    api_of,
    ecs_node_class,
    status_of,
)
from journeyman.core.api.ecsnodeclass import DISK_CATEGORIES, ECSNodeClass
from journeyman.core.api.model import parse
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.errors import InvalidObjectError
from tests.helpers.builders import NOW

ECS, ACS = "karpenter.k8s.alibabacloud/v1alpha1", "karpenter.alibabacloud.com/v1alpha1"
MODELS = {ECS: ECSNodeClass, ACS: ACSECSNodeClass}
SELECTED = [{"tags": {"karpenter.sh/discovery": "prod"}}]


def a_node_class(api, **spec):
    """A manifest with these spec fields; None removes one."""
    images = [{"alias": "AlibabaCloudLinux3@latest"}] if api == ECS else [{"id": "m-1"}]
    terms = {"vSwitchSelectorTerms": SELECTED, "securityGroupSelectorTerms": SELECTED, "imageSelectorTerms": images}
    return {"apiVersion": api, "kind": "ECSNodeClass", "metadata": {"name": "default"}, "spec": {**terms, **spec}}


def settings(api, **spec):
    """The common view of the settings of such a manifest."""
    return ecs_node_class(a_node_class(api, **spec)).settings


def test_defaults_are_those_of_each_api():
    """The CRDs have the same ones."""
    spec = parse(ECSNodeClass, a_node_class(ECS, systemDisk={}, dataDisks=[{}])).spec.to_wire()
    assert spec["vSwitchSelectionPolicy"] == "cheapest"
    assert spec["systemDisk"] == {"categories": list(DISK_CATEGORIES), "performanceLevel": "PL0"}
    assert spec["dataDisks"] == [{"volumeSize": "20Gi"}]
    disk = {"category": "cloud_ssd", "size": 20}
    raw = a_node_class(ACS, systemDisk={}, dataDisks=[disk], metadataOptions={})
    spec = parse(ACSECSNodeClass, raw).spec.to_wire()
    assert spec["systemDisk"] == {"category": "cloud_essd", "size": 40, "performanceLevel": "PL0"}
    assert spec["dataDisks"] == [{**disk, "deleteWithInstance": True}]
    assert spec["metadataOptions"] == {
        "httpEndpoint": "enabled",
        "httpPutResponseHopLimit": 1,
        "httpTokens": "optional",
    }
    assert spec["capacityReservationPreference"] == "open"


@pytest.mark.parametrize(
    ("api", "field", "value"),
    [
        (ECS, "resourceGroupId", "rg-1"),
        (
            ECS,
            "kubeletConfiguration",
            {"clusterDNS": ["10.0.0.10"], "imageGCHighThresholdPercent": 80, "cpuCFSQuota": True},
        ),
        (ACS, "clusterID", "c1"),
        (ACS, "vSwitchSelectorTerms", [{"zoneID": "cn-hangzhou-i"}]),
        (ACS, "imageSelectorTerms", [{"imageFamily": "acs:a", "imageOwnerAlias": "self", "imageOwnerID": "1"}]),
        (
            ACS,
            "dataDisks",
            [{"category": "cloud", "size": 20, "kmsKeyID": "", "snapshotID": "s", "deleteWithInstance": True}],
        ),
        (ACS, "launchTemplateID", "lt-1"),
    ],
)
def test_field_spellings_are_unchanged_by_the_round_trip(api, field, value):
    """Most acronyms are in upper case, resourceGroupId is not."""
    wire = parse(MODELS[api], a_node_class(api, **{field: value})).to_wire()
    assert parse(MODELS[api], wire).to_wire() == wire
    stored = wire["spec"][field]
    assert {k: stored[k] for k in value} == value if isinstance(value, dict) else stored == value


COMMON_MISTAKES = [
    ({"vSwitchSelectorTerms": []}, r"spec\.vSwitchSelectorTerms: .*at least 1 item"),
    ({"vSwitchSelectorTerms": [{}]}, r"term 0: expected at least one, got none, of tags, id"),
    ({"vSwitchSelectorTerms": [{"id": "vsw-1", "tags": {"a": "b"}}]}, r"'id' is mutually exclusive with tags"),
    ({"vSwitchSelectorTerms": [{"id": "subnet-1"}]}, r"vSwitchSelectorTerms\[0\]\.id: String should match"),
    ({"vSwitchSelectorTerms": [{"tags": {"a": ""}}]}, r"empty tag keys or values"),
    ({"securityGroupSelectorTerms": [{"name": "a", "id": "sg-1"}]}, r"'id' is mutually exclusive with tags, name"),
    ({"imageSelectorTerms": None}, r"imageSelectorTerms(: required, but missing| is required)"),
    ({"systemDisk": {"performanceLevel": "PL4"}}, r"systemDisk\.performanceLevel: Input should be 'PL0'"),
    ({"tags": {"": "x"}}, r"a tag key is empty"),
    ({"tags": {"kubernetes.io/cluster/prod": "owned"}}, r"set by the controller itself"),
    ({"tags": {f"k{i}": "" for i in range(21)}}, r"spec\.tags: .*at most 20"),
]
ECS_MISTAKES = [
    ({"vSwitchSelectionPolicy": "random"}, r"vSwitchSelectionPolicy: Input should be 'balanced' or 'cheapest'"),
    ({"securityGroupSelectorTerms": [{"name": "a", "tags": {"b": "c"}}]}, r"'name' is mutually exclusive"),
    ({"imageSelectorTerms": [{"alias": "ContainerOS@latest"}, {"id": "m-1"}]}, r"'alias' must be the only term"),
    ({"imageSelectorTerms": [{"alias": "ContainerOS@latest", "id": "m-1"}]}, r"'id' is mutually exclusive with alias"),
    ({"imageSelectorTerms": [{"alias": "ContainerOS"}]}, r"must match the format 'family@version'"),
    ({"imageSelectorTerms": [{"alias": "Ubuntu@latest"}]}, r"family 'Ubuntu' is not supported"),
    ({"systemDisk": {"volumeSize": "40"}}, r"volumeSize: '40' is not a volume size"),
    ({"systemDisk": {"size": 19}}, r"systemDisk\.size: .*greater than or equal to 20"),
    ({"systemDisk": {"categories": ["gp3"]}}, r"systemDisk\.categories\[0\]: Input should be 'cloud'"),
    ({"resourceGroupId": "1"}, r"resourceGroupId: String should match"),
    ({"tags": {"ecs:ecs-cluster-name": "prod"}}, r"set by the controller itself"),
    ({"password": "Passw0rd", "passwordInherit": True}, r"password cannot be set when passwordInherit is true"),
]
ACS_MISTAKES = [
    ({"vSwitchSelectorTerms": [{"id": "vsw-1", "zoneID": "z"}]}, r"'id' is mutually exclusive with tags, zone_id"),
    ({"securityGroupSelectorTerms": [{"id": "sg-1"}] * 6}, r"securityGroupSelectorTerms: .*at most 5"),
    ({"imageSelectorTerms": [{"id": "ami-1"}]}, r"imageSelectorTerms\[0\]\.id: String should match"),
    ({"imageSelectorTerms": [{"imageOwnerID": "1"}]}, r"of id, tags, name, imageFamily, imageOwnerAlias"),
    ({"imageSelectorTerms": [{"id": "m-1", "name": "a"}]}, r"'id' is mutually exclusive"),
    ({"role": "acs:ram::1:role/a"}, r"spec\.role: String should match"),
    ({"systemDisk": {"kmsKeyID": "k"}}, r"spec\.systemDisk: kmsKeyID requires encrypted"),
    (
        {"dataDisks": [{"category": "cloud_essd", "size": 32769}]},
        r"dataDisks\[0\]\.size: .*less than or equal to 32768",
    ),
    ({"spotStrategy": "SpotWithPriceLimit"}, r"spotPriceLimit is required when spotStrategy is SpotWithPriceLimit"),
    ({"spotPriceLimit": 0}, r"spotPriceLimit: Input should be greater than 0"),
    ({"capacityReservationSelectorTerms": [{"id": "cr-1"}]}, r"id: String should match"),
    ({"metadataOptions": {"httpPutResponseHopLimit": 65}}, r"less than or equal to 64"),
    ({"launchTemplateVersion": 1}, r"launchTemplateVersion requires launchTemplateID"),
    ({"tags": {"karpenter.sh/managed-by": "me"}}, r"set by the controller itself"),
]


@pytest.mark.parametrize(
    ("api", "spec", "words"),
    [
        *((api, *mistake) for api in MODELS for mistake in COMMON_MISTAKES),
        *((ECS, *mistake) for mistake in ECS_MISTAKES),
        *((ACS, *mistake) for mistake in ACS_MISTAKES),
    ],
)
def test_invalid_ecsnodeclass_is_rejected(api, spec, words):
    """Each rule of the CRD applies, and the message names the field."""
    with pytest.raises(InvalidObjectError, match=words):
        ecs_node_class(a_node_class(api, **spec))


@pytest.mark.parametrize(
    ("kubelet", "words"),
    [
        ({"kubeReserved": {"gpu": "1"}}, r"kubeReserved: 'gpu' is no key of kubeReserved"),
        ({"systemReserved": {"cpu": "-1"}}, r"cpu '-1' is negative"),
        ({"systemReserved": {"cpu": "lots"}}, r"'lots' is not a quantity"),
        ({"evictionHard": {"memory.available": "101%"}}, r"'101%' is not a threshold"),
        ({"evictionSoft": {"memory.available": "5%"}}, r"evictionSoft memory.available does not have a matching"),
        ({"evictionSoftGracePeriod": {"pid.available": "1m"}}, r"evictionSoftGracePeriod pid.available does not have"),
        ({"imageGCHighThresholdPercent": 80, "imageGCLowThresholdPercent": 80}, r"must be greater than"),
        ({"maxPods": -1}, r"maxPods: .*greater than or equal to 0"),
    ],
)
@pytest.mark.parametrize("api", MODELS)
def test_invalid_kubelet_settings_are_rejected(api, kubelet, words):
    """Both APIs have the same ones, under different names."""
    field = "kubeletConfiguration" if api == ECS else "kubelet"
    with pytest.raises(InvalidObjectError, match=words):
        ecs_node_class(a_node_class(api, **{field: kubelet}))


@pytest.mark.parametrize("password", ["short", "p" * 31, 12345678])
def test_error_does_not_repeat_an_invalid_password(password):
    """Conditions, Events and logs have the message."""
    with pytest.raises(InvalidObjectError, match="a password is 8 to 30") as caught:
        ecs_node_class(a_node_class(ECS, password=password))
    assert str(password) not in str(caught.value)


def test_launch_template_replaces_selectors():
    """Without one, each list of selector terms is required."""
    nothing = dict.fromkeys(("vSwitchSelectorTerms", "securityGroupSelectorTerms", "imageSelectorTerms"))
    found = settings(ACS, launchTemplateID="lt-1", launchTemplateVersion=2, **nothing)
    assert (found.launch_template_id, found.launch_template_version) == ("lt-1", 2)
    assert found.vswitch_terms == found.security_group_terms == found.image_terms == ()


@pytest.mark.parametrize(
    ("api", "system_disk", "disk"),
    [
        (ECS, None, Disk(categories=DISK_CATEGORIES, size_gib=20, performance_level="PL0")),
        (ECS, {"volumeSize": "1Ti"}, Disk(categories=DISK_CATEGORIES, size_gib=1024, performance_level="PL0")),
        (ECS, {"volumeSize": "100G"}, Disk(categories=DISK_CATEGORIES, size_gib=94, performance_level="PL0")),
        (ECS, {"size": 60, "categories": []}, Disk(categories=DISK_CATEGORIES, size_gib=60, performance_level="PL0")),
        (
            ECS,
            {"size": 60, "volumeSize": "80Gi", "categories": ["cloud_auto"], "performanceLevel": "PL2"},
            Disk(categories=("cloud_auto",), size_gib=80, performance_level="PL2"),
        ),
        (ACS, None, Disk(categories=("cloud_essd",), size_gib=40, performance_level="PL0")),
        (
            ACS,
            {"category": "cloud_ssd", "size": 60, "encrypted": True, "kmsKeyID": "k"},
            Disk(categories=("cloud_ssd",), size_gib=60, performance_level="PL0", encrypted=True, kms_key_id="k"),
        ),
    ],
)
def test_system_disk_has_whole_gib(api, system_disk, disk):
    """A size is rounded up, `volumeSize` takes precedence over `size`, and a missing disk has the API's defaults."""
    assert settings(api, systemDisk=system_disk).system_disk == disk


def test_data_disks_of_both_apis_have_the_same_view():
    """In the first API all disks share their categories; without any, ECS may choose."""
    disks = [{"volumeSize": "100Gi", "device": "/dev/xvdb"}, {}]
    expected = (
        Disk(categories=("cloud_essd",), size_gib=100, device="/dev/xvdb"),
        Disk(categories=("cloud_essd",), size_gib=20),
    )
    assert settings(ECS, dataDisks=disks, dataDiskCategories=["cloud_essd"]).data_disks == expected
    assert settings(ECS, dataDisks=[{}]).data_disks == (Disk(categories=DISK_CATEGORIES, size_gib=20),)
    disks = [{"category": "cloud_essd", "size": 100, "device": "/dev/xvdb"}, {"category": "cloud_essd", "size": 20}]
    assert settings(ACS, dataDisks=disks).data_disks == expected
    (disk,) = settings(
        ACS, dataDisks=[{**disks[1], "snapshotID": "s-1", "deleteWithInstance": False, "performanceLevel": "PL1"}]
    ).data_disks
    assert (disk.snapshot_id, disk.delete_with_instance, disk.performance_level) == ("s-1", False, "PL1")


def test_selector_terms_of_both_apis_have_the_same_view():
    """Unset fields are empty."""
    found = settings(ECS, securityGroupSelectorTerms=[{"name": "web"}], vSwitchSelectorTerms=[{"id": "vsw-1"}])
    assert found.vswitch_terms == (VSwitchTerm(id="vsw-1"),)
    assert found.security_group_terms == (SecurityGroupTerm(name="web"),)
    assert found.image_terms == (ImageTerm(alias="AlibabaCloudLinux3@latest"),)
    assert (found.image_terms[0].alias_family, found.image_terms[0].alias_version) == ("AlibabaCloudLinux3", "latest")
    found = settings(
        ACS,
        vSwitchSelectorTerms=[{"zoneID": "cn-hangzhou-i", "tags": {"a": "*"}}],
        imageSelectorTerms=[
            {"imageFamily": "acs:a", "imageOwnerAlias": "self", "imageOwnerID": "1", "name": "n", "tags": {"a": "b"}}
        ],
        capacityReservationSelectorTerms=[{"id": "crp-1"}],
    )
    assert found.vswitch_terms == (VSwitchTerm(tags={"a": "*"}, zone="cn-hangzhou-i"),)
    assert found.image_terms == (
        ImageTerm(family="acs:a", owner_alias="self", owner_id="1", name="n", tags={"a": "b"}),
    )
    assert found.capacity_reservation_terms == (CapacityReservationTerm(id="crp-1"),)


def test_kubelet_settings_of_both_apis_have_the_same_view():
    """Unset ones are left out."""
    kubelet = {"maxPods": 110, "evictionHard": {"memory.available": "5%"}, "cpuCFSQuota": False}
    assert settings(ECS, kubeletConfiguration=kubelet).kubelet == settings(ACS, kubelet=kubelet).kubelet == kubelet
    assert settings(ECS).kubelet == settings(ACS, kubelet={}).kubelet == {}


def test_settings_of_one_api_alone_are_unset_in_the_other():
    """The provider needs no case for the API."""
    ours = settings(
        ECS, userData="echo", keyPairName="k", password="Passw0rd", formatDataDisk=True, resourceGroupId="rg-1"
    )
    assert (ours.user_data, ours.key_pair_name, ours.password) == ("echo", "k", "Passw0rd")
    assert (ours.format_data_disk, ours.resource_group_id) == (True, "rg-1")
    assert (ours.role, ours.spot_strategy, ours.spot_price_limit, ours.metadata_options) == ("", "", None, None)
    assert ours.capacity_reservation_preference == ""
    vendors = settings(
        ACS, role="r", spotStrategy="SpotWithPriceLimit", spotPriceLimit=0.5, metadataOptions={"httpTokens": "required"},
        instanceStorePolicy="RAID0", clusterID="c1",
    )  # fmt: skip
    assert (vendors.role, vendors.spot_strategy, vendors.spot_price_limit) == ("r", "SpotWithPriceLimit", 0.5)
    assert vendors.metadata_options == InstanceMetadata(http_tokens="required")
    assert (vendors.instance_store_policy, vendors.cluster_id) == ("RAID0", "c1")
    assert (vendors.password, vendors.key_pair_name, vendors.resource_group_id) == ("", "", "")
    assert vendors.capacity_reservation_preference == "open"
    assert vendors.vswitch_selection_policy == "cheapest"


def test_names_are_those_of_the_objects_api():
    """The label is also the tag on instances; the conditions decide on Ready."""
    assert [api_of(a_node_class(api)) for api in MODELS] == [ECS_API, ACS_API]
    assert [(api.label, api.finalizer) for api in APIS] == [
        ("karpenter.k8s.alibabacloud/ecsnodeclass", "karpenter.k8s.alibabacloud/termination"),
        ("karpenter.alibabacloud.com/ecsnodeclass", "karpenter.alibabacloud.com/termination"),
    ]
    for api in APIS:
        named = {name for name in (api.vswitches, api.security_groups, api.images, api.role) if name}
        assert named | {"ValidationSucceeded"} == set(api.dependents)
    assert [[*ecs_node_class(a_node_class(api)).hash_annotations] for api in MODELS] == [
        ["karpenter.k8s.alibabacloud/ecsnodeclass-hash", "karpenter.k8s.alibabacloud/ecsnodeclass-hash-version"],
        ["karpenter.sh/ecsnodeclass-hash", "karpenter.sh/ecsnodeclass-hash-version"],
    ]


def test_object_of_another_group_is_rejected():
    """The message names both API versions."""
    with pytest.raises(InvalidObjectError, match=r"ECSNodeClass default .* apiVersion: 'example.com/v1' is not one of"):
        ecs_node_class({**a_node_class(ECS), "apiVersion": "example.com/v1"})


ARM = NodeSelectorRequirement(key="kubernetes.io/arch", operator="In", values=("arm64",))
RESOLVED = ResolvedResources(
    vswitches=(ResolvedVSwitch(id="vsw-1", zone="cn-hangzhou-i", free_addresses=7),),
    security_groups=(ResolvedSecurityGroup(id="sg-1", name="web"),),
    images=(ResolvedImage(id="m-1", name="a", requirements=(ARM,)),),
    ram_role="r",
)
STATUSES = {
    ECS: {
        "vSwitches": [{"id": "vsw-1", "zoneID": "cn-hangzhou-i"}],
        "securityGroups": [{"id": "sg-1", "name": "web"}],
        "images": [
            {
                "id": "m-1",
                "name": "a",
                "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}],
            }
        ],
    },
    ACS: {
        "ready": True,
        "vSwitches": [
            {"id": "vsw-1", "zone": "cn-hangzhou-i", "zoneID": "cn-hangzhou-i", "availableIPAddressCount": 7}
        ],
        "securityGroups": [{"id": "sg-1", "name": "web"}],
        "images": [{"id": "m-1", "name": "a", "architecture": "arm64"}],
        "ramRole": "r",
    },
}


@pytest.mark.parametrize("api", MODELS)
def test_status_is_written_and_read_in_the_objects_api(api):
    """Reading returns what was written, as far as the API stores it."""
    conditions = set_condition((), "Ready", "True", now=NOW, generation=1)
    status = status_of(api_of(a_node_class(api)), RESOLVED, conditions)
    (condition,) = status.pop("conditions")
    assert condition["type"] == "Ready"
    assert status == STATUSES[api]

    view = ecs_node_class({**a_node_class(api), "status": {**status, "conditions": [condition]}})
    assert (view.name, view.conditions) == ("default", conditions)
    (image,) = view.resolved.images
    assert image.architectures == ("arm64",)
    assert status_of(view.api, view.resolved, view.conditions) == {**status, "conditions": [condition]}


@pytest.mark.parametrize(("requirements", "architecture"), [((), ""), ((ARM,), "arm64")])
def test_image_of_any_architecture_has_none_in_the_status(requirements, architecture):
    """ECS's name of amd64 is x86_64."""
    images = (ResolvedImage(id="m-1", requirements=requirements),)
    assert status_of(ACS_API, ResolvedResources(images=images), ())["images"][0]["architecture"] == architecture
    intel = NodeSelectorRequirement(key="kubernetes.io/arch", operator="In", values=("amd64",))
    (image,) = status_of(ACS_API, ResolvedResources(images=(ResolvedImage(id="m-1", requirements=(intel,)),)), ())[
        "images"
    ]
    assert image["architecture"] == "x86_64"
    read = ecs_node_class({**a_node_class(ACS), "status": {"images": [image]}})
    assert read.resolved.images[0].requirements == (intel,)
