"""Launch templates and instance profiles that nothing uses are deleted; those that a launch may use are not."""

import pytest
from msgspec.structs import replace

from journeyman.errors import CloudProviderError
from journeyman_simulator.in_process_account.account import REGION
from tests.unit.cloud.aws.conftest import launching_claim as a_claim


def templates(aws) -> list[str]:
    pages = aws.client("ec2").get_paginator("describe_launch_templates").paginate()
    return sorted(t["LaunchTemplateName"] for page in pages for t in page["LaunchTemplates"])


def profiles(aws) -> set[str]:
    return {p["InstanceProfileName"] for p in aws.client("iam").list_instance_profiles()["InstanceProfiles"]}


def new_images(aws, week: int) -> list[dict[str, str]]:
    """Publish the week's images, and return the terms that select them."""
    released = list(aws.images.known.values())[:2]
    for image in released:
        new = replace(image, id=f"{image.id}{week}", name=f"{image.name}-{week}")
        aws.images.known[new.id] = new
    return [{"id": f"{image.id}{week}"} for image in released]


@pytest.mark.slow
def test_a_year_of_ami_and_label_changes_keeps_under_200_launch_templates(aws, provider, launch, resolved, clock):
    """Weekly images and daily edits of a NodePool: each makes a template for each architecture and pod density.

    One NodePool has at most 40 at any time, so that five have at most 200.
    """
    most = 0
    for day in range(365):
        if day % 7 == 0:
            node_class = resolved(amiSelectorTerms=new_images(aws, day), amiFamily="AL2023")
        provider.delete_each([launch(a_claim(f"c-{day}", clock.now(), team=str(day)), node_class).instance.provider_id])
        provider.delete_unused([node_class], [])
        most = max(most, len(templates(aws)))
        clock.advance(24 * 3600)

    assert aws.calls()["CreateLaunchTemplate"] > 2500
    assert most <= 40


def test_a_template_of_a_launch_in_flight_is_not_deleted(aws, provider, launch, resolved, clock):
    """A NodeClaim of the last minute of a day launches ten minutes later, from a template that is a day old."""
    node_class = resolved()
    clock.advance(16 * 3600 + 60)  # one minute after midnight
    midnight = clock.now()
    launch(a_claim("first", midnight), node_class)
    used = templates(aws)
    clock.advance(24 * 3600 - 120)
    late = a_claim("late", clock.now())
    clock.advance(600)
    assert provider.delete_unused([node_class], [])["launch template"] == ()
    launch(late, node_class)

    assert templates(aws) == used
    clock.advance(2 * 3600)
    assert sorted(provider.delete_unused([node_class], [])["launch template"]) == used
    assert templates(aws) == []


def test_a_repeated_launch_has_the_same_templates_on_the_next_day(aws, launch, resolved, clock):
    """EC2 refuses a client token with other parameters, so a launch must not change at midnight."""
    node_class, claim = resolved(), a_claim("slow", clock.now())
    launch(claim, node_class)
    clock.advance(17 * 3600)
    launch(claim, node_class)
    assert len(templates(aws)) == len({*templates(aws)}) == aws.calls()["CreateLaunchTemplate"]


def test_launch_template_that_another_process_deletes_first_is_no_error(aws, provider, launch, resolved, clock):
    """Both list it, and one is late; the rest is deleted. Any other refusal is an error."""
    launch(a_claim("first", clock.now()), resolved())
    clock.advance(27 * 3600)
    created = templates(aws)
    aws.fail_next("DeleteLaunchTemplate", "InvalidLaunchTemplateName.NotFoundException")
    assert sorted(provider.delete_unused([], [])["launch template"]) == created
    [left] = templates(aws)  # which the account has in truth

    aws.fail_next("DeleteLaunchTemplate", "UnauthorizedOperation")
    with pytest.raises(CloudProviderError, match="ec2:DeleteLaunchTemplate"):
        provider.delete_unused([], [])
    assert templates(aws) == [left]


def test_launch_templates_of_others_stay(aws, provider, clock):
    """Other clusters have their own tag; a template without it belongs to a user."""
    ec2 = aws.client("ec2")
    for name, cluster in (("karpenter.k8s.aws/other", "other"), ("karpenter.k8s.aws/old", "demo"), ("mine", "demo")):
        tags = [
            {"Key": "eks:eks-cluster-name", "Value": cluster},
            {"Key": "karpenter.k8s.aws/ec2nodeclass", "Value": "default"},
        ]
        ec2.create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData={},
            TagSpecifications=[{"ResourceType": "launch-template", "Tags": tags}],
        )
    clock.advance(27 * 3600)
    provider.delete_unused([], [])

    assert templates(aws) == ["karpenter.k8s.aws/other", "mine"]


def test_instance_profile_of_a_former_role_is_deleted(aws, provider, resolved, clock):
    """It stays while a NodeClaim uses it or has no instance yet, and for its first hour."""
    first = resolved()
    former = first["status"]["instanceProfile"]
    current = resolved(status=first["status"], role="second")
    young = provider.delete_unused([current], [])
    clock.advance(2 * 3600)
    user = a_claim("user", clock.now(), profile=former)
    waiting = a_claim("waiting", clock.now(), launched=False)
    unnamed = a_claim("unnamed", clock.now())
    kept = [provider.delete_unused([current], [claim]) for claim in (user, waiting, unnamed)]
    assert {d["instance profile"] for d in [young, *kept]} == {()}
    assert former in profiles(aws)

    named = a_claim("named", clock.now(), profile=current["status"]["instanceProfile"])
    assert provider.delete_unused([current], [named])["instance profile"] == (former,)
    assert profiles(aws) == {current["status"]["instanceProfile"]}


def test_role_that_returns_after_its_profile_was_deleted_gets_it_again(aws, provider, resolved, clock):
    """The provider remembers that it has created the profile, but another process deleted it meanwhile."""
    first = resolved()
    second = resolved(status=first["status"], role="second")
    del aws.identity.profiles[first["status"]["instanceProfile"]]
    again = resolved(status=second["status"])
    assert again["status"]["instanceProfile"] == first["status"]["instanceProfile"]
    assert first["status"]["instanceProfile"] in profiles(aws)


def test_profiles_of_an_invalid_node_class_stay_until_it_is_released_or_gone(aws, provider, resolved, clock):
    """Which role it will name is unknown; its deletion needs only its name and UID. Profiles of other clusters stay."""
    aws.client("iam").create_instance_profile(
        InstanceProfileName="theirs", Path=f"/karpenter/{REGION}/demo-2/x/", Tags=[]
    )
    former = resolved()
    resolved(role="second")
    invalid = {**former, "spec": "mine"}
    clock.advance(2 * 3600)

    assert provider.delete_unused([invalid], [])["instance profile"] == ()
    assert len(profiles(aws)) == 3
    provider.release(invalid)
    assert profiles(aws) == {"theirs"}

    resolved()
    clock.advance(2 * 3600)
    provider.delete_unused([], [])  # the finalizer of its NodeClass was removed by hand
    assert profiles(aws) == {"theirs"}
