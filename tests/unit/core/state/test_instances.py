"""Instances and NodeClaims: whose instance a NodeClaim names after a user edited its provider id."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.state.instances import CloudInstances
from tests.helpers.builders import (
    NOW,
    a_claim,
    a_launched_claim,
    a_node,
    a_running_claim,
    a_snapshot,
    an_instance,
    provider_id_of,
)

OWN, OTHER = provider_id_of("a"), provider_id_of("b")
LISTED = (an_instance("a"), an_instance("b"))


def named(*claims, nodes=(), listed=LISTED):
    """Return the provider id of each NodeClaim once the tags of instances have been read."""
    snapshot = a_snapshot(claims=claims, nodes=tuple(nodes))
    return [claim.status.provider_id for claim in CloudInstances(listed=listed).with_own_instances(snapshot).claims]


@pytest.mark.parametrize("provider_id", ["i-am-none", OTHER, ""])
def test_launched_claim_that_names_no_instance_or_anothers_names_its_own(provider_id):
    """The tags of its instance name it, and those of the instance that it names do not."""
    assert named(a_running_claim("a", provider_id=provider_id)) == [OWN]
    assert named(a_claim("a", deleting=NOW, status={"providerID": provider_id})) == [OWN]


def test_claim_keeps_an_instance_whose_tags_do_not_contradict():
    """Karpenter's instances may lack the tags; a repeated launch may have created a second instance."""
    untagged = an_instance("b", tags={})
    second = an_instance("a", provider_id="aws:///a/i-0")

    assert named(a_running_claim("a", provider_id=OTHER), listed=(LISTED[0], untagged)) == [OTHER]
    assert named(a_running_claim("a"), listed=(second, *LISTED)) == [OWN]


def test_claim_keeps_the_instance_of_its_node_though_a_list_lacks_it():
    """A list of instances may lag behind."""
    second = an_instance("a", provider_id="aws:///a/i-0")
    assert named(a_launched_claim("a"), nodes=[a_node("a")], listed=(second,)) == [OWN]


def test_claim_whose_instance_is_gone_names_none_whose_node_has_another_owner():
    """A user copied its tags to another instance, whose protected pods would go at its deadline (seed 23065 of Huawei)."""
    forged = an_instance("b", tags={labels.NODECLAIM_TAG: "a", labels.NODECLAIM_UID_TAG: "uid-a"})
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "b", "uid": "uid-b"}
    node = a_node("b", metadata={"ownerReferences": [owner]})

    assert named(a_running_claim("a"), nodes=[node], listed=(forged,)) == [OWN]
    assert named(a_running_claim("a"), nodes=[a_node("b")], listed=(forged,)) == [OTHER]

    mine = an_instance("c", tags=forged.tags)
    assert named(a_running_claim("a", provider_id=""), nodes=[node], listed=(forged, mine)) == [provider_id_of("c")]


def test_claim_that_is_to_be_launched_keeps_its_status():
    """The launch returns the tagged instance, and writes more of the status than the provider id."""
    assert named(a_claim("a")) == [""]


def test_claim_names_an_instance_of_which_the_cloud_knows_only_its_uid():
    """Some clouds have no tags until they have built the instance; that of an earlier claim of the same name has another UID."""
    earlier = an_instance("b", tags={labels.NODECLAIM_UID_TAG: "uid-of-an-earlier-a"})
    building = an_instance("a", tags={labels.NODECLAIM_UID_TAG: "uid-a"})
    assert named(a_running_claim("a", provider_id=""), listed=(earlier, building)) == [OWN]


def test_running_instance_is_preferred_to_one_that_terminates():
    """Both were launched for the NodeClaim."""
    ended = an_instance("a", provider_id="aws:///a/i-0", state="terminated")
    assert named(a_running_claim("a", provider_id="i-am-none"), listed=(ended, *LISTED)) == [OWN]


def test_instance_of_an_earlier_claim_of_the_same_name_is_not_named():
    """Its tag has another UID."""
    earlier = an_instance("a", tags={labels.NODECLAIM_TAG: "a", labels.NODECLAIM_UID_TAG: "another"})
    assert named(a_running_claim("a", provider_id="i-am-none"), listed=(earlier,)) == ["i-am-none"]


def test_instance_without_uid_tag_that_is_older_than_the_claim_is_not_named():
    """It was launched for an earlier NodeClaim of the same name; a user removed its UID tag (seed 3025244)."""
    claim = a_running_claim("a", provider_id="i-am-none", age=timedelta(minutes=1))
    tags = {labels.NODECLAIM_TAG: "a"}
    older = an_instance("a", tags=tags, provider_id="aws:///a/i-0", age=timedelta(seconds=61))

    assert named(claim, listed=(older,)) == ["i-am-none"]
    assert named(claim, listed=(older, an_instance("a", tags=tags, age=timedelta(seconds=60)))) == [OWN]
