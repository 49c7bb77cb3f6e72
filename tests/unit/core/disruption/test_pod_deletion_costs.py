"""Deletion costs of pods: which nodes become empty first when ReplicaSets scale in, and whose annotations are written."""

import pytest

from journeyman.core.api import labels
from journeyman.core.disruption.pod_deletion_costs import GOING_AWAY, MOST_NODES, write_deletion_costs
from tests.helpers.builders import condition
from tests.helpers.disrupting import PROTECTED, controller_of
from tests.helpers.fleets import a_fleet, a_member, a_pod, a_pool
from tests.helpers.small_clusters import table

LEAVING_TAINT = {"spec": {"taints": [{"key": labels.LEAVING_TAINT, "effect": "PreferNoSchedule"}]}}
DISRUPTED = {"spec": {"taints": [{"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}]}}
DRIFTED = {"status": {"conditions": [condition(c) for c in ("Launched", "Registered", "Initialized", "Drifted")]}}


def with_pods(name, number=1, *, owner="ReplicaSet", node=None, **more):
    """A node with pods of a controller of this kind."""
    pods = [a_pod(f"{name}-{n}", node=f"node-{name}", owner=owner) for n in range(number)]
    return a_member(name, pods=pods, **({"node": node} if node else {}), **more)


def costs(*members, pools=None):
    """The deletion costs by node."""
    snapshot = a_fleet(*members, pools=pools or [a_pool(budgets=[{"nodes": "100%"}])])
    return dict(controller_of(snapshot).deletion_costs())


def written(snapshot, by_node):
    """The annotations by pod that the plan writes."""
    actions = write_deletion_costs(snapshot, by_node).actions
    return {action.ref.name: action.patch["metadata"]["annotations"] for action in actions}


def both(cost):
    """Both annotations with this cost."""
    return {labels.POD_DELETION_COST: cost, labels.OWN_POD_DELETION_COST: cost}


def test_nodes_with_the_highest_savings_ratio_become_empty_first():
    """Costs are negative, so that pods without one are deleted after them. Drifted nodes must be replaced in any case."""
    found = costs(with_pods("full", 3), with_pods("half", 2), with_pods("bare", 1))
    assert found["node-bare"] < found["node-half"] < found["node-full"] < 0
    drifted = costs(with_pods("full", 3, claim=DRIFTED), with_pods("bare", 1))
    assert drifted["node-full"] < drifted["node-bare"] < 0


def test_cost_of_a_node_does_not_depend_on_others():
    """A new pod is then written to the pods of its own node only, and only if it matters."""
    alone = costs(with_pods("n", 22))
    assert costs(with_pods("n", 22), with_pods("other", 3))["node-n"] == alone["node-n"]
    assert costs(with_pods("n", 23)) == alone


@pytest.mark.parametrize("taint", [LEAVING_TAINT, DISRUPTED])
def test_nodes_that_go_away_have_the_lowest_cost(taint):
    """They count against no budget."""
    pools = [a_pool(budgets=[{"nodes": "0"}])]
    assert costs(with_pods("gone", 3, node=taint), with_pods("bare", 1), pools=pools) == {"node-gone": GOING_AWAY}


def test_budgets_limit_how_many_nodes_have_a_cost_to_fifty_at_most():
    """Scale-in is concentrated on as many nodes as consolidation may delete now. Those that go away are not counted."""
    four = [with_pods(f"n{n}", n + 1) for n in range(4)]
    assert set(costs(*four, pools=[a_pool(budgets=[{"nodes": "50%"}])])) == {"node-n0", "node-n1"}

    many = [with_pods(f"n{n}", 1 + n % 2) for n in range(MOST_NODES + 10)]
    found = costs(*many, with_pods("gone", node=LEAVING_TAINT))
    assert (len(found), found["node-gone"]) == (MOST_NODES + 1, GOING_AWAY)
    assert {f"node-n{n}" for n in range(0, MOST_NODES, 2)} <= set(found)


@table(
    "member",
    must_not_be_disrupted=(with_pods("n", node=PROTECTED),),
    StatefulSet=(with_pods("n", owner="StatefulSet"),),
    no_controller=(a_member("n", pods=[a_pod("bare", node="node-n", owner="")]),),
)
def test_nodes_that_cannot_become_empty_have_no_cost(member):
    """Their pods would be deleted for nothing. Of a NodePool without consolidation a drifted one has: it is replaced anyway."""
    pools = [a_pool(consolidateAfter="Never", budgets=[{"nodes": "100%"}])]
    assert set(costs(member, with_pods("other"))) == {"node-other"}
    assert set(costs(with_pods("n"), with_pods("old", claim=DRIFTED), pools=pools)) == {"node-old"}


def test_pods_of_replicasets_get_the_cost_of_their_node():
    """Other controllers do not read it."""
    snapshot = a_fleet(with_pods("n"), with_pods("d", owner="DaemonSet"), with_pods("other"))
    assert written(snapshot, {"node-n": -1, "node-d": -2}) == {"n-0": both("-1")}


@table(
    "annotations, cost, expected",
    new=({}, -1, both("-1")),
    unchanged=(both("-1"), -1, None),
    changed=(both("-1"), -2, both("-2")),
    removed=(both("-1"), None, both(None)),
    a_users=({labels.POD_DELETION_COST: "7"}, -1, None),
    overwritten_by_a_user=({labels.POD_DELETION_COST: "7", labels.OWN_POD_DELETION_COST: "-1"}, None, None),
    nothing_to_remove=({}, None, None),
)
def test_only_our_own_costs_are_written(annotations, cost, expected):
    """A cost of someone else is left as it is."""
    pod = a_pod("p", node="node-n", owner="ReplicaSet", metadata={"annotations": annotations})
    snapshot = a_fleet(a_member("n", pods=[pod]))
    found = written(snapshot, {} if cost is None else {"node-n": cost})
    assert found == ({} if expected is None else {"p": expected})
