"""What is wrong in an ECSNodeClass becomes a condition with its remedy, and leaves nothing behind.

`test_cloud_bad_input` has what is equal in other clouds.
"""

import pytest

from tests.e2e.bad_cloud_input import ALIBABA, bad_input_cluster

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster():
    """Return a cluster whose pods wait; afterwards, the cluster is emptied and nothing may be left."""
    with bad_input_cluster(ALIBABA) as opened:
        yield opened


def test_unknown_image_alias_names_the_known_versions(cluster):
    """ImagesReady is False; the launch waits, and starts once the alias is corrected."""
    cluster.edit_node_class(imageSelectorTerms=[{"alias": "AlibabaCloudLinux3@19990101"}])
    cluster.run(3)

    assert any(
        "AlibabaCloudLinux3@19990101" in said and "AlibabaCloudLinux3@latest" in said
        for said in cluster.said_by_node_class()
    )
    assert not cluster.account.calls().get(cluster.launch)
    cluster.edit_node_class(imageSelectorTerms=[{"alias": "AlibabaCloudLinux3@latest"}])


def test_vswitch_selector_without_matches_says_so(cluster):
    """VSwitchesReady is False until the selector matches."""
    cluster.edit_node_class(vSwitchSelectorTerms=[{"id": "vsw-000"}])
    cluster.run(3)

    assert any(said.startswith("VSwitchesNotFound") for said in cluster.said_by_node_class())
    cluster.edit_node_class(vSwitchSelectorTerms=[{"tags": {"karpenter.sh/discovery": "demo"}}])


def test_full_vswitch_is_skipped_for_another_zone(cluster):
    """Zone i has no free address, so nodes start in zone j, and the offerings of zone i are unavailable."""
    by_zone = {vswitch.zone: vswitch.id for vswitch in cluster.account.network.vswitches.values()}
    cluster.account.set_free_addresses(by_zone["cn-hangzhou-i"], 0)
    cluster.until_running(3)

    zones = {claim.metadata.labels["topology.kubernetes.io/zone"] for claim in cluster.claims()}
    assert zones == {"cn-hangzhou-j"}
    cluster.account.set_free_addresses(by_zone["cn-hangzhou-i"], 200)
