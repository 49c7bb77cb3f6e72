"""What the selector terms of an ECSNodeClass select: images by alias, vSwitches, security groups, roles."""

from tests.unit.cloud.alibaba.conftest import FOUND
from tests.unit.cloud.conftest import condition


def images(body):
    return {image["id"] for image in body["status"]["images"]}


def test_alias_selects_the_newest_image_of_each_architecture_or_a_release(ack):
    """`latest` follows ACK; a version is the release in the image's id, for both families; a condition names known versions."""
    ids = ack.seeded.images
    release = ids["AliyunLinux3"].rpartition("_")[2].removesuffix(".vhd")

    def of_alias(alias):
        return ack.node_class(imageSelectorTerms=[{"alias": alias}])

    assert images(ack.node_class()) == {ids["AliyunLinux3"], ids["AliyunLinux3Arm64/arm64"]}
    assert images(of_alias("ContainerOS@latest")) == {ids["ContainerOS/x86_64"], ids["ContainerOS/arm64"]}
    assert ids["AliyunLinux3"] in images(of_alias(f"AlibabaCloudLinux3@{release}"))
    assert ids["ContainerOS"] in images(of_alias(f"ContainerOS@{release}"))
    status, reason, message = condition(of_alias("AlibabaCloudLinux3@20200101"), "ImagesReady")
    assert (status, reason) == ("False", "UnknownAlias")
    assert all(part in message for part in ("AlibabaCloudLinux3@latest", release, ack.seeded.kubernetes_version))


def test_image_of_an_earlier_term_wins(acs):
    """For each architecture; of one term's images it is the newest."""
    acs.account.images.add_custom("m-old", tags={"mine": "yes"})
    acs.clock.advance(60)
    acs.account.images.add_custom("m-new", tags={"mine": "yes"})
    terms = [
        {"tags": {"mine": "yes"}},
        {"imageFamily": "acs:containeros_3_x64"},
        {"imageFamily": "acs:containeros_3_arm64"},
    ]

    assert images(acs.node_class(imageSelectorTerms=terms)) == {"m-new", acs.seeded.images["ContainerOS/arm64"]}


def test_newest_image_may_be_on_any_page(acs):
    """A page has 100; the first one may be full."""
    for number in range(101):
        acs.account.images.add_custom(f"m-{number:03}", tags={"mine": "yes"})
        acs.clock.advance(60)
    found = []
    for _ in range(2):
        found.append(images(acs.node_class(imageSelectorTerms=[{"tags": {"mine": "yes"}}])))
        acs.account.images.add_custom(f"m-newer-{len(found)}", tags={"mine": "yes"})
        acs.clock.advance(3600)

    assert found == [{"m-100"}, {"m-newer-1"}]


def test_vswitches_with_most_free_addresses_come_first(ack):
    """Of equal ones the lesser id. The value `*` matches any value of a tag, as in the published provider."""
    ids = sorted(ack.seeded.vswitches.values())
    for id_, free in zip(ids, (7, 9, 9), strict=True):
        ack.account.set_free_addresses(id_, free)
    body = ack.node_class(vSwitchSelectorTerms=[{"tags": {"karpenter.sh/discovery": "*"}}])
    for found in (ack.node_class(), body):
        assert [vswitch["id"] for vswitch in found["status"]["vSwitches"]] == [ids[1], ids[2], ids[0]]


def test_vswitches_are_read_from_all_pages_and_by_zone(acs):
    zone = "cn-hangzhou-h"
    for number in range(60):
        acs.account.network.add_vswitch(zone, f"10.1.{number}.0/24").tags["karpenter.sh/discovery"] = "demo"
    everywhere = acs.node_class()["status"]["vSwitches"]
    here = acs.node_class(vSwitchSelectorTerms=[{**FOUND[0], "zoneID": zone}])["status"]["vSwitches"]

    assert len(everywhere) == 63
    assert len(here) == 61
    assert {vswitch["zone"] for vswitch in here} == {zone}


def test_security_group_name_is_matched_as_a_whole(ack):
    """ECS finds a part of the name as well."""
    found = [{"SecurityGroupId": f"sg-{n}", "SecurityGroupName": name} for n, name in enumerate(("nodes", "old-nodes"))]
    ack.open_api.answers["DescribeSecurityGroups"] = {"SecurityGroups": {"SecurityGroup": found}}
    body = ack.node_class(securityGroupSelectorTerms=[{"name": "nodes"}])
    assert body["status"]["securityGroups"] == [{"id": "sg-0", "name": "nodes"}]


def test_role_must_exist_and_trust_ecs(acs):
    acs.account.roles.add("of-a-function", "fc.aliyuncs.com")
    for role in ("none", "of-a-function"):
        status, reason, message = condition(acs.node_class(role=role), "RAMRoleResolved")
        assert (status, reason) == ("False", "RAMRoleNotFound")
        assert role in message
    assert condition(acs.node_class(role=acs.seeded.role), "RAMRoleResolved")[0] == "True"


def test_launch_template_does_not_replace_selector_terms(acs):
    """The condition names the terms to add, because a template's vSwitches and images are not read."""
    body = acs.node_class(launchTemplateID="lt-1", vSwitchSelectorTerms=None, imageSelectorTerms=None)
    status, reason, message = condition(body, "ValidationSucceeded")
    assert (status, reason) == ("False", "SelectorTermsMissing")
    assert message.endswith("set vSwitchSelectorTerms, imageSelectorTerms as well")


def test_instance_store_policy_is_reported_as_without_effect(acs):
    """ACK mounts no instance store disks, so a node would lack the storage that its pods expect."""
    assert condition(acs.node_class(instanceStorePolicy="RAID0"), "ValidationSucceeded")[1] == "UnsupportedSetting"


def test_too_many_tags_are_a_condition(ack):
    """An instance has 20, of which the controller sets some."""
    body = ack.node_class(tags={f"k{number}": "v" for number in range(14)})
    assert condition(body, "ValidationSucceeded")[:2] == ("False", "TagValidationFailed")
    assert condition(ack.node_class(tags={f"k{n}": "v" for n in range(13)}), "Ready")[0] == "True"
