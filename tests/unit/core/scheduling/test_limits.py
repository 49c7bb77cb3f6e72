"""What is left of a NodePool's limits, and what each node uses of them."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.limits import Headroom, size_of
from journeyman.core.scheduling.nodeclaim_templates import make_templates
from tests.helpers.builders import GIB, TYPES, a_claim, a_launched_claim, a_node, a_pool, a_running_claim, a_snapshot

LISTED = {"requirements": [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["m.small", "m.large"]}]}


def the_node(**cluster):
    """The only node of a cluster."""
    (node,) = a_snapshot(**cluster).state_nodes
    return node


@pytest.mark.parametrize(
    ("cluster", "cpu"),
    [
        ({"claims": (a_claim("c", spec=LISTED),)}, 8000),
        ({"claims": (a_launched_claim("c", spec=LISTED),)}, 4000),
        ({"claims": (a_running_claim("c", spec=LISTED),), "nodes": (a_node("c"),)}, 4000),
        ({"nodes": (a_node("c"),)}, 4000),
        (
            {
                "claims": (a_running_claim("c", spec=LISTED, status={"capacity": {}}),),
                "nodes": (a_node("c", status={"capacity": {"cpu": "2"}}),),
            },
            2000,
        ),
    ],
    ids=["before launch", "launched", "joined", "unmanaged", "joined with less"],
)
def test_node_uses_its_capacity_and_before_launch_its_largest_type(cluster, cpu):
    """A small type of two CPUs and a large one of eight are listed; the instance has four."""
    size = size_of(the_node(**cluster), TYPES)

    assert (size["cpu"], size["nodes"]) == (cpu, 1)


def test_types_that_the_claim_does_not_list_do_not_count():
    """The medium type has less memory than is requested, the large one is not listed."""
    small = {"requirements": [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["m.small"]}]}
    node = the_node(claims=(a_claim("c", spec={**small, "resources": {"requests": {"memory": "1Gi"}}}),))

    assert size_of(node, TYPES)["memory"] == 8 * GIB


def test_headroom_is_what_nodes_leave_and_grows_without_them():
    """Two nodes of four CPUs each; one of another NodePool, and one that is being removed, do not count."""
    other = {"metadata": {"labels": {labels.NODEPOOL: "other"}}}
    names = ("one", "two", "else", "gone")
    snapshot = a_snapshot(
        node_pools=(a_pool(spec={"limits": {"cpu": "18", "nodes": "5"}}),),
        nodes=tuple(a_node(n, **(other if n == "else" else {})) for n in names),
        claims=tuple(
            a_running_claim(
                n, **(other if n == "else" else {}), **({"deleting": snapshot_time()} if n == "gone" else {})
            )
            for n in names
        ),
    )
    ((template,), _) = make_templates(snapshot, Catalogue({"default": TYPES}))

    headroom = Headroom(template, snapshot.state_nodes)

    assert (headroom.left_of("cpu"), headroom.left_of("nodes"), headroom.left_of("memory")) == (10_000, 3, None)
    assert headroom.without(["node-one", "node-else"]).left_of("cpu") == 14_000
    assert headroom.left_of("cpu") == 10_000
    assert dict(zip((t.name for t in template.table.types), headroom.allows().tolist(), strict=True)) == {
        "m.large": True,
        "m.medium": True,
        "m.small": True,
    }


def snapshot_time():
    """The time of the snapshot."""
    return a_snapshot().now
