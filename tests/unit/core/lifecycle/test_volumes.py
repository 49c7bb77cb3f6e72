"""Volumes that block the termination of a drained node."""

import pytest

from journeyman.core.lifecycle.drain import attached_volumes
from journeyman.core.state import StateNode
from tests.helpers.builders import (
    a_node,
    a_pod,
    a_snapshot,
    a_volume_claim,
    ago,
    an_attachment,
    claims_as_volumes,
    merge,
    stamp,
)

NODE = "node-default-1"
TOLERANT = {"spec": {"tolerations": [{"operator": "Exists"}]}}
STUCK = {"metadata": {"deletionTimestamp": stamp(ago(seconds=61))}}


def names(pods=(), attachments=(), claims=()):
    snapshot = a_snapshot(volume_attachments=tuple(attachments), persistent_volume_claims=tuple(claims))
    return attached_volumes(StateNode(node=a_node(), claim=None, pods=tuple(pods)), snapshot)


def test_volumes_of_this_node_are_waited_for_by_name():
    """Volumes of other nodes and inline volumes do not block."""
    attached = [an_attachment(volume, node) for volume, node in (("b", NODE), ("a", NODE), ("c", "other"), ("", NODE))]
    assert names(attachments=attached) == (f"csi-a-{NODE}", f"csi-b-{NODE}")


@pytest.mark.parametrize("stays", [TOLERANT, STUCK], ids=["tolerates everything", "stuck in termination"])
@pytest.mark.parametrize("kind", ["claim", "ephemeral"])
def test_volumes_of_pods_that_no_drain_ends_are_not_waited_for(stays, kind):
    """They stay attached until the instance is terminated."""
    ephemeral = {"spec": {"volumes": [{"name": "data", "ephemeral": {}}]}}
    uses, claim = (claims_as_volumes("data"), "data") if kind == "claim" else (ephemeral, "daemon-data")
    daemon = a_pod("daemon", node=NODE, **merge(uses, stays))
    attached = [an_attachment("pv-daemon", NODE), an_attachment("pv-other", NODE)]
    claims = [a_volume_claim(claim, volume="pv-daemon"), a_volume_claim("other", volume="pv-other")]
    assert names([daemon], attached, claims) == (f"csi-pv-other-{NODE}",)


def test_volume_of_a_deleted_claim_blocks_termination():
    """Without the PersistentVolumeClaim it is unknown whose volume it is."""
    daemon = a_pod("daemon", node=NODE, **merge(claims_as_volumes("data"), TOLERANT))
    assert names([daemon], [an_attachment("pv", NODE)]) == (f"csi-pv-{NODE}",)
