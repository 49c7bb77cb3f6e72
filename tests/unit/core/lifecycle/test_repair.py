"""Repair: nodes unhealthy for too long are deleted at once, unless more than a fifth of a NodePool is unhealthy."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.cloud.aws.provider import REPAIR_POLICIES
from journeyman.core.api import labels
from journeyman.core.lifecycle.health import repair_nodes
from journeyman.core.plan import DeleteObject, PatchObject, Requeue, Step
from tests.helpers.actions import of_type, patches
from tests.helpers.builders import NOW, a_pool, ago, condition, stamp
from tests.helpers.fleets import Member, a_fleet, a_member
from tests.helpers.small_clusters import table

HALF_AN_HOUR = timedelta(minutes=30)


def an_unhealthy_member(name: str, type_: str = "Ready", status: str = "False", *, since: timedelta, **more) -> Member:
    """Return a node with this condition; Ready is True unless it is the condition."""
    conditions = [condition(type_, status, since=NOW - since)]
    if type_ != "Ready":
        conditions.append(condition("Ready", since=ago(hours=2)))
    return a_member(name, node={"status": {"conditions": conditions}}, **more)


def decide(*members: Member):
    """Return the plan with AWS's repair policies."""
    return repair_nodes(a_fleet(*members), REPAIR_POLICIES)


def repaired(plan) -> list[str]:
    """Return the deleted NodeClaims."""
    return [a.ref.name for a in of_type(plan, DeleteObject)]


def ended_at(time):
    """Return the changes of a NodeClaim whose grace period ends then."""
    return {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: stamp(time)}}}


@pytest.mark.parametrize(
    ("type_", "status", "minutes", "goes"),
    [
        ("Ready", "False", 30, True),
        ("Ready", "False", 29, False),
        ("Ready", "Unknown", 30, True),
        ("Ready", "True", 600, False),
        ("AcceleratedHardwareReady", "False", 10, True),
        ("AcceleratedHardwareReady", "False", 9, False),
        ("AcceleratedHardwareReady", "Unknown", 600, False),
        ("StorageReady", "False", 30, True),
        ("NetworkingReady", "False", 29, False),
        ("KernelReady", "False", 30, True),
        ("ContainerRuntimeReady", "False", 30, True),
        ("MemoryPressure", "True", 600, False),
    ],
)
def test_node_is_repaired_once_its_toleration_ends(type_, status, minutes, goes):
    """That holds for conditions of the kubelet and of monitoring agents; a condition without a policy is ignored."""
    plan = decide(an_unhealthy_member("n", type_, status, since=timedelta(minutes=minutes)))
    assert repaired(plan) == (["n"] if goes else [])


def test_of_several_conditions_the_earliest_deadline_counts():
    """Ready is False for 25 of 30 minutes, AcceleratedHardwareReady for 10 of 10, or for 8: the step then runs again in two.

    A condition without a transition time is ignored: keeping an unhealthy node is better than deleting a healthy one.
    """

    def of_conditions(*conditions):
        return decide(a_member("n", node={"status": {"conditions": conditions}}))

    ready = condition("Ready", "False", since=ago(minutes=25))
    over, waits = (
        of_conditions(ready, condition("AcceleratedHardwareReady", "False", since=ago(minutes=m))) for m in (10, 8)
    )

    (chain,) = (c for c in over.chains if c.observations)
    (sample,) = (o for o in chain.observations if o.name == "karpenter_nodeclaims_unhealthy_disrupted_total")
    assert sample.labels["condition"] == "accelerated_hardware_ready"
    assert [a.at for a in of_type(waits, Requeue)] == [NOW + timedelta(minutes=2)]
    alone = decide(an_unhealthy_member("n", since=timedelta(minutes=29)))
    assert [(a.step, a.at) for a in alone.actions] == [(Step.TERMINATE, NOW + timedelta(minutes=1))]
    broken = of_conditions({**condition("Ready", "False"), "lastTransitionTime": None})
    assert broken.actions == ()
    assert "its condition has no transition time" in broken.notes[0]


def test_a_repair_ends_the_grace_period_before_it_deletes_the_claim():
    """PodDisruptionBudgets do not apply. There are two metrics, Events on NodeClaim and node, and two requeues."""
    member = an_unhealthy_member("n", since=HALF_AN_HOUR, claim={"status": {"imageID": "ami-1"}})

    (chain,) = decide(member).chains

    forced, deletion, *wakes = chain.actions
    assert isinstance(forced, PatchObject)
    assert forced.patch == {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: stamp(NOW)}}}
    assert isinstance(deletion, DeleteObject)
    assert (forced.ref.uid, deletion.ref.uid) == ("uid-n", "uid-n")
    assert {wake.step for wake in wakes} == {Step.PROVISION, Step.TERMINATE}
    assert {(e.ref.resource.kind, e.message) for e in chain.events} == {
        ("NodeClaim", "Disrupting NodeClaim: Unhealthy (Ready=False)"),
        ("Node", "Disrupting Node: Unhealthy (Ready=False)"),
    }
    assert [(o.name, o.labels.get("reason"), o.labels.get("image_id")) for o in chain.observations] == [
        ("karpenter_nodeclaims_disrupted_total", "unhealthy", None),
        ("karpenter_pods_disruption_initiated_total", "unhealthy", None),
        ("karpenter_nodeclaims_unhealthy_disrupted_total", None, "ami-1"),
    ]


@pytest.mark.parametrize(("end", "moved"), [(ago(minutes=1), False), (NOW, False), (ago(minutes=-10), True)])
def test_expired_grace_period_is_not_changed(end, moved):
    """Its end stays the recorded time."""
    plan = decide(an_unhealthy_member("n", since=HALF_AN_HOUR, claim=ended_at(end)))
    assert any(isinstance(a, PatchObject) for a in plan.actions) is moved
    assert repaired(plan) == ["n"]


@table(
    "protected",
    later_termination_time=({"claim": ended_at(NOW + timedelta(hours=2))},),
    grace_period=({"claim": {"spec": {"terminationGracePeriod": "2h"}}},),
    do_not_disrupt=({"claim": {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}},),
)
def test_nothing_protects_an_unhealthy_node(protected):
    """Its termination time is now, and no budget of its NodePool counts."""
    member = an_unhealthy_member("n", since=HALF_AN_HOUR, **protected)
    pool = a_pool(spec={"disruption": {"budgets": [{"nodes": "0"}]}})
    snapshot = replace(a_fleet(member), node_pools=(pool,))
    snapshot.nodes[0].metadata.annotations[labels.DO_NOT_DISRUPT] = "true"
    plan = repair_nodes(snapshot, REPAIR_POLICIES)
    (forced,) = patches(plan)
    assert forced["metadata"]["annotations"][labels.TERMINATION_TIMESTAMP] == stamp(NOW)
    assert repaired(plan) == ["n"]


def test_repair_of_a_terminating_node_ends_its_grace_period():
    """The drain of a failed instance would never end; the grace period ends once, and metrics count the node once."""
    first = decide(an_unhealthy_member("n", since=HALF_AN_HOUR, deleting=True))
    again = decide(an_unhealthy_member("n", since=HALF_AN_HOUR, deleting=True, claim=ended_at(NOW)))
    assert [type(a) for a in first.actions] == [PatchObject, Requeue, Requeue]
    assert not any(chain.observations for chain in first.chains)
    assert again.chains == ()


@pytest.mark.parametrize(
    ("unhealthy", "of", "goes"),
    [(1, 1, True), (1, 3, True), (2, 3, False), (2, 10, True), (3, 10, False), (3, 11, True)],
)
def test_a_fifth_of_a_nodepool_may_be_unhealthy_rounded_up(unhealthy, of, goes):
    """If more are unhealthy, new nodes may be, too. One node of a small NodePool may always be repaired."""
    members = [an_unhealthy_member(f"s{i}", since=HALF_AN_HOUR) for i in range(unhealthy)]
    members += [a_member(f"w{i}") for i in range(of - unhealthy)]

    plan = decide(*members)

    assert repaired(plan) == ([f"s{i}" for i in range(unhealthy)] if goes else [])
    blocked = {(e.ref.resource.kind, e.type, e.message) for e in plan.events if e.reason == "NodeRepairBlocked"}
    assert blocked == (set() if goes else {("Node", "Warning", "more than 20% nodes are unhealthy in the nodepool")})


def test_conditions_count_before_their_deadline_does():
    """Two of three are unhealthy, one for long enough: the limit counts unhealthy nodes, not nodes due for repair."""
    late = an_unhealthy_member("late", since=HALF_AN_HOUR)
    fresh = an_unhealthy_member("fresh", since=timedelta(minutes=1))
    assert repaired(decide(late, fresh, a_member("well"))) == []


def test_unhealthy_nodes_of_one_nodepool_do_not_block_another():
    """For a NodeClaim without a NodePool the limit is of the whole cluster."""
    unhealthy = [an_unhealthy_member(f"s{i}", since=HALF_AN_HOUR, pool="broken") for i in range(2)]
    apart, alone = (an_unhealthy_member(name, since=HALF_AN_HOUR) for name in ("apart", "alone"))
    del alone.claim.metadata.labels[labels.NODEPOOL]

    plan = decide(*unhealthy, apart, alone, *(a_member(f"w{i}") for i in range(5)))

    assert repaired(plan) == ["apart"]
    assert "more than 20% nodes are unhealthy in the cluster" in {e.message for e in plan.events}
