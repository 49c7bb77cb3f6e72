"""Which instance types claims list: the cheapest, enough of them, and none that takes what was not set aside."""

from __future__ import annotations

import numpy as np
import pytest

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.instance_type_choice import planned_nodeclaims
from journeyman.core.scheduling.problem import ClusterInputs, PlannedNode, prepare_task
from journeyman.core.scheduling.requirements import of, requirement
from journeyman.core.scheduling.results import Options
from journeyman.errors import InvariantError
from tests.helpers.builders import SMALL, TYPES, a_daemon_set, a_pod, a_pool, a_snapshot, an_instance_type

MANY = tuple(an_instance_type(f"t.{n:03}", cpu=4, memory_gib=16, price=round(0.1 + n / 1000, 3)) for n in range(100))


class NewNodes:
    """Nodes for single pods of one core, and the claims made of them."""

    def __init__(self, *, types=TYPES, options=None, pool=None, **cluster):
        pods = tuple(a_pod(f"p{i}") for i in range(9))
        snapshot = a_snapshot(pods=pods, node_pools=(pool or a_pool(),), **cluster)
        inputs = ClusterInputs.of(snapshot, Catalogue({"default": types}), options or Options())
        self.problem = prepare_task(inputs, pods, frozenset()).problem

    def node(self, *, pods=1, share=None, **wanted):
        """An open node with so many pods; `wanted` are requirements beyond its pool's, by label."""
        (pool,) = self.problem.pools
        own = of(requirement(key, "In", values) for key, values in wanted.items())
        return PlannedNode(
            pool=0,
            requirements=pool.template.requirements & own,
            pods=((0, pods),),
            total=self.problem.requests[0] * pods,
            share=None if share is None else np.array(share),
        )

    def claims(self, *nodes):
        """The claims, pods drawn in order."""
        keys = iter(self.problem.rows[0].keys)
        return planned_nodeclaims(nodes, self.problem, lambda _, count: [next(keys) for _ in range(count)])


@pytest.mark.parametrize(
    ("options", "listed"),
    [
        (Options(), 26),  # those up to a quarter dearer than 0.1
        (Options(near_price=1.0), 15),
        (Options(near_price=1.0, min_types=1), 1),
        (Options(near_price=2.0), 60),
        (Options(near_price=1.05, min_types=1, max_types=3), 3),
    ],
)
def test_a_claim_lists_enough_types_near_the_best_price(options, listed):
    """Always the cheapest, in their order."""
    new_nodes = NewNodes(types=MANY, options=options)

    (claim,) = new_nodes.claims(new_nodes.node())

    assert claim.instance_types == tuple(t.name for t in MANY[:listed])
    assert (claim.price, claim.offering) == (0.1, ("t.000", "a", labels.ON_DEMAND))


def test_every_node_gets_its_own_pods_and_its_own_size():
    """Nodes of equal requirements are looked at together, and answered in their order."""
    new_nodes = NewNodes(daemon_sets=(a_daemon_set("agent", cpu="100m"),))

    six, one, two = new_nodes.claims(new_nodes.node(pods=6), new_nodes.node(), new_nodes.node(pods=2))

    assert [len(claim.pods) for claim in (six, one, two)] == [6, 1, 2]
    assert [claim.instance_types[0] for claim in (six, one, two)] == ["m.large", "m.small", "m.medium"]
    assert [claim.requests["cpu"] for claim in (six, one, two)] == [6100, 1100, 2100]
    assert len({*six.pods, *one.pods, *two.pods}) == 9


def test_what_a_node_asks_for_narrows_its_types_and_is_said_in_the_claim():
    """The type is named, so there is no choice."""
    new_nodes = NewNodes()

    (claim,) = new_nodes.claims(new_nodes.node(**{labels.INSTANCE_TYPE: ["m.large"]}))

    assert claim.instance_types == ("m.large",)
    (entry,) = (r for r in claim.requirements if r.key == labels.INSTANCE_TYPE)
    assert entry.values == ("m.large",)


def test_no_type_is_listed_that_takes_more_of_a_limit_than_was_set_aside():
    """Four cores were set aside."""
    new_nodes = NewNodes(pool=a_pool(spec={"limits": {"cpu": "100"}}))

    (claim,) = new_nodes.claims(new_nodes.node(share=[4000]))

    assert claim.instance_types == ("m.small", "m.medium")


def test_a_node_that_nothing_can_be_is_a_defect():
    """The packing that opened the node has checked its types."""
    new_nodes = NewNodes(types=(SMALL,))

    with pytest.raises(InvariantError, match="no instance type of NodePool default"):
        new_nodes.claims(new_nodes.node(pods=3))


def test_types_listed_for_min_values_displace_others():
    """A dear type brings the second zone, and the claim lists no more types than allowed."""
    types = (*MANY, an_instance_type("z.dear", cpu=4, memory_gib=16, price=5.0, zones=("b",)))
    zones = {"key": labels.ZONE, "operator": "Exists", "minValues": 2}
    pool = a_pool(spec={"template": {"spec": {"requirements": [zones]}}})
    new_nodes = NewNodes(types=types, options=Options(near_price=1.05, min_types=1, max_types=3), pool=pool)

    (claim,) = new_nodes.claims(new_nodes.node())

    assert claim.instance_types == ("t.000", "t.001", "z.dear")
