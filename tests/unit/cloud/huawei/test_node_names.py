"""Names and tags of nodes, by which a run after a crash finds them."""

import re

import msgspec
import pytest

from journeyman.cloud.huawei import node_names
from journeyman.core.api import labels
from journeyman.core.api.ccenodeclass import CONTROLLERS_TAGS
from journeyman.core.api.objects import NodeClaim

UID = "5f0c8f1e-8a1b-4f43-9b2c-0d9b2f6d1c11"
ALLOWED = re.compile(r"[a-z][a-z0-9-]{0,54}[a-z0-9]")  # CreateNode


def a_claim(name="default-x7k2p", uid=UID):
    return msgspec.convert({"metadata": {"name": name, "uid": uid, "labels": {labels.NODEPOOL: "default"}}}, NodeClaim)


@pytest.mark.parametrize(
    "name",
    ["default-x7k2p", "a", "demo-cce-elastic-cpu-x7k2p", "0-starts-with-a-digit", "with.dots.in-it", "x" * 253, "-", "ends-in-a-dash-at-the-2-cut"],
)  # fmt: skip
@pytest.mark.parametrize("uid", [UID, "no-uuid-at-all"])
def test_name_is_valid_and_has_the_uid(name, uid):
    """CCE allows 56 lower-case letters, digits and dashes; it starts with a letter."""
    made = node_names.node_name(a_claim(name, uid))
    assert ALLOWED.fullmatch(made)
    assert node_names.digits_of(made) == node_names.uid_digits(uid)


def test_names_of_other_nodes_have_no_uid():
    """A user's nodes, those of CCE's node pools, and that of an earlier claim of the same name are never touched."""
    for name in ("", "my-node", "pool-1-x7k2p", UID.replace("-", ""), f"UPPER-{UID.replace('-', '')}"):
        assert node_names.digits_of(name) == ""
    other = "5f0c8f1e-8a1b-4f43-9b2c-0d9b2f6d1c12"
    assert node_names.node_name(a_claim()) != node_names.node_name(a_claim(uid=other))


def test_tags_of_a_server_complete_what_the_name_has():
    """Before the server exists, only the UID is known; a user may remove the tags."""
    tags = node_names.claim_tags({"team": "web"}, a_claim(), cluster_id="c-1")
    texts = [f"{entry['key']}={entry['value']}" for entry in node_names.to_request(tags)]
    digits = node_names.uid_digits(UID)

    building = node_names.instance_tags(digits, {})
    built = node_names.instance_tags(digits, node_names.from_server(texts))

    assert building == {labels.NODECLAIM_UID_TAG: UID}
    assert built["team"] == "web"
    assert (built[labels.NODECLAIM_TAG], built[labels.NODECLAIM_UID_TAG]) == ("default-x7k2p", UID)
    assert (built[labels.NODEPOOL], built[node_names.CLUSTER]) == ("default", "c-1")
    assert set(CONTROLLERS_TAGS) < set(tags)
