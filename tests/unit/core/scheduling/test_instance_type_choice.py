"""Tests of the instance types that a NodeClaim lists: price order, how many, limits and minValues."""

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
    """Planned nodes for pods that request 1 CPU, and the NodeClaims created from them."""

    def __init__(self, *, types=TYPES, options=None, pool=None, **cluster):
        pods = tuple(a_pod(f"p{i}") for i in range(9))
        snapshot = a_snapshot(pods=pods, node_pools=(pool or a_pool(),), **cluster)
        inputs = ClusterInputs.of(snapshot, Catalogue({"default": types}), options or Options())
        self.problem = prepare_task(inputs, pods, frozenset()).problem

    def node(self, *, pods=1, share=None, **wanted):
        """Return a planned node with `pods` pods; `wanted` are its own requirements, values by label."""
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
        """Return the NodeClaims of these nodes; pods are assigned in order."""
        keys = iter(self.problem.rows[0].keys)
        return planned_nodeclaims(nodes, self.problem, lambda _, count: [next(keys) for _ in range(count)])


@pytest.mark.parametrize(
    ("options", "listed"),
    [
        (Options(), 26),  # instance types that cost at most 25% more than 0.1
        (Options(near_price=1.0), 15),
        (Options(near_price=1.0, min_types=1), 1),
        (Options(near_price=2.0), 60),
        (Options(near_price=1.05, min_types=1, max_types=3), 3),
    ],
)
def test_nodeclaim_lists_the_cheapest_types_within_price_and_count_options(options, listed):
    """The instance types are in price order; the options near_price, min_types and max_types decide how many."""
    new_nodes = NewNodes(types=MANY, options=options)

    (claim,) = new_nodes.claims(new_nodes.node())

    assert claim.instance_types == tuple(t.name for t in MANY[:listed])
    assert (claim.price, str(claim.offering)) == (0.1, "t.000/a/on-demand")


def test_each_nodeclaim_has_its_own_pods_requests_and_instance_types():
    """Nodes with equal requirements are processed together; the NodeClaims keep the order of the nodes."""
    new_nodes = NewNodes(daemon_sets=(a_daemon_set("agent", cpu="100m"),))

    six, one, two = new_nodes.claims(new_nodes.node(pods=6), new_nodes.node(), new_nodes.node(pods=2))

    assert [len(claim.pods) for claim in (six, one, two)] == [6, 1, 2]
    assert [claim.instance_types[0] for claim in (six, one, two)] == ["m.large", "m.small", "m.medium"]
    assert [claim.requests["cpu"] for claim in (six, one, two)] == [6100, 1100, 2100]
    assert len({*six.pods, *one.pods, *two.pods}) == 9


def test_requirements_of_a_node_restrict_its_types_and_appear_in_its_nodeclaim():
    """The node requires one instance type."""
    new_nodes = NewNodes()

    (claim,) = new_nodes.claims(new_nodes.node(**{labels.INSTANCE_TYPE: ["m.large"]}))

    assert claim.instance_types == ("m.large",)
    (entry,) = (r for r in claim.requirements if r.key == labels.INSTANCE_TYPE)
    assert entry.values == ("m.large",)


def test_nodeclaim_lists_no_instance_type_above_its_share_of_a_limit():
    """The share of the NodePool's CPU limit is 4 cores."""
    new_nodes = NewNodes(pool=a_pool(spec={"limits": {"cpu": "100"}}))

    (claim,) = new_nodes.claims(new_nodes.node(share=[4000]))

    assert claim.instance_types == ("m.small", "m.medium")


def test_node_without_a_fitting_instance_type_raises_invariant_error():
    """The packing that planned the node has already checked its instance types."""
    new_nodes = NewNodes(types=(SMALL,))

    with pytest.raises(InvariantError, match="no instance type of NodePool default"):
        new_nodes.claims(new_nodes.node(pods=3))


def test_instance_types_needed_for_min_values_replace_cheaper_ones():
    """An expensive instance type adds the second zone, and the NodeClaim lists at most max_types types."""
    types = (*MANY, an_instance_type("z.dear", cpu=4, memory_gib=16, price=5.0, zones=("b",)))
    zones = {"key": labels.ZONE, "operator": "Exists", "minValues": 2}
    pool = a_pool(spec={"template": {"spec": {"requirements": [zones]}}})
    new_nodes = NewNodes(types=types, options=Options(near_price=1.05, min_types=1, max_types=3), pool=pool)

    (claim,) = new_nodes.claims(new_nodes.node())

    assert claim.instance_types == ("t.000", "t.001", "z.dear")
