"""Static NodePools: how many nodes are opened, under which names, and in which order surplus ones go."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON
from journeyman.core.disruption.static_capacity import deprovision_static, lifetime_remaining, provision_static
from journeyman.core.disruption.static_nodepools import static_nodepools
from journeyman.core.plan import CreateObject, DeleteObject
from tests.helpers import builders
from tests.helpers.builders import NOW, a_node_class, a_running_claim, a_snapshot, ago, stamp
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod, an_unlaunched_member


def a_static_pool(replicas: int, **spec):
    """One that asks for so many nodes."""
    return builders.a_pool(spec={"replicas": replicas, **spec})


def a_world(pool, *claims):
    """With a NodeClass that can be used."""
    return a_snapshot(node_pools=(pool,), node_classes=(a_node_class(),), claims=tuple(sorted(claims, key=name_of)))


def name_of(claim) -> str:
    """Its name."""
    return claim.metadata.name


def opened(snapshot, *, most: int = 100, catalogue=None) -> list[dict]:
    """The claims that are created."""
    plan = provision_static(snapshot, catalogue or a_catalogue(), max_claims=most, requeue_at=NOW)
    return [action.body for action in plan.actions if isinstance(action, CreateObject)]


def closed(snapshot) -> list[str]:
    """The claims that are deleted, in that order."""
    return [action.ref.name for action in deprovision_static(snapshot).actions if isinstance(action, DeleteObject)]


def from_body(body, *, deleting: bool = False):
    """A claim that was created from it."""
    meta = body["metadata"]
    annotations = {labels.REPLICA_INDEX: meta["annotations"][labels.REPLICA_INDEX]}
    return a_running_claim(meta["name"], deleting=NOW if deleting else None, metadata={"annotations": annotations})


# -- provisioning ---------------------------------------------------------------------------------------------------


def test_names_follow_from_pool_and_slot_alone():
    """Whoever sees more of what was opened opens less of the same, and never anything else."""
    pool = a_static_pool(4)
    wanted = opened(a_world(pool))
    assert [body["metadata"]["annotations"][labels.REPLICA_INDEX] for body in wanted] == ["0", "1", "2", "3"]
    assert opened(a_world(pool)) == wanted
    assert opened(a_world(pool, from_body(wanted[0]), from_body(wanted[2]))) == [wanted[1], wanted[3]]

    namesake = builders.a_pool(metadata={"uid": "made-again"}, spec={"replicas": 4})
    names = {body["metadata"]["name"] for body in (*wanted, *opened(a_world(namesake)))}
    assert len(names) == 8


def test_a_slot_whose_claim_is_leaving_gets_one_of_another_name():
    """Two may leave at once; once they are gone the first name is free again."""
    pool = a_static_pool(1)
    [first] = opened(a_world(pool))
    [second] = opened(a_world(pool, from_body(first, deleting=True)))
    [third] = opened(a_world(pool, from_body(first, deleting=True), from_body(second, deleting=True)))
    names = [body["metadata"]["name"] for body in (first, second, third)]
    assert len(set(names)) == 3
    assert {body["metadata"]["annotations"][labels.REPLICA_INDEX] for body in (first, second, third)} == {"0"}
    assert opened(a_world(pool, from_body(third, deleting=True))) == [first]


@given(
    replicas=st.integers(0, 6),
    limit=st.integers(0, 8) | st.none(),
    kinds=st.lists(st.sampled_from(["running", "replaced", "leaving"]), max_size=8),
    most=st.integers(0, 6),
)
def test_never_more_than_was_asked_for_nor_than_the_limit_allows(replicas, limit, kinds, most):
    """And no fewer than that, but for what one run may open."""
    pool = a_static_pool(replicas, **({} if limit is None else {"limits": {"nodes": str(limit)}}))
    claims = [a_claim_that_is(kind, index) for index, kind in enumerate(kinds)]
    made = len(opened(a_world(pool, *claims), most=most))
    gone = len(closed(a_world(pool, *claims)))

    staying = sum(kind != "leaving" for kind in kinds)
    room = replicas - staying if limit is None else min(replicas - staying, limit - len(kinds))
    assert made == min(max(room, 0), most)
    assert gone == max(kinds.count("running") - replicas, 0)
    assert not (made and gone)


def a_claim_that_is(kind: str, index: int):
    """One of a static pool."""
    true = ("Launched", "Registered", "Initialized", *((DISRUPTION_REASON,) if kind == "replaced" else ()))
    return a_running_claim(f"c{index}", true=true, deleting=NOW if kind == "leaving" else None)


@pytest.mark.parametrize(
    ("changes", "node_class"),
    [
        ({}, a_node_class(ready=False)),
        ({}, a_node_class(deleting=True)),
        ({}, a_node_class("other")),
        ({"metadata": {"deletionTimestamp": stamp(NOW), "finalizers": ["x"]}}, a_node_class()),
        ({"spec": {"replicas": None}}, a_node_class()),
        (
            {
                "spec": {
                    "template": {"spec": {"requirements": [{"key": labels.ARCH, "operator": "In", "values": ["z"]}]}}
                }
            },
            a_node_class(),
        ),
    ],
    ids=["class-not-ready", "class-going", "no-class", "pool-going", "not-static", "no-type-suits"],
)
def test_a_pool_that_cannot_be_used_opens_nothing(changes, node_class):
    """What is wrong with it must be over first."""
    pool = builders.a_pool(**builders.merge({"spec": {"replicas": 2}}, changes))
    assert opened(a_snapshot(node_pools=(pool,), node_classes=(node_class,))) == []


# -- deprovisioning -------------------------------------------------------------------------------------------------


def test_what_goes_first_costs_least():
    """No instance, empty, cheap to move, dear to move, and last what asks to stay."""
    protected = a_pod("kept", node="node-d-asks", metadata={"annotations": {labels.DO_NOT_DISRUPT: "true"}})
    daemon = a_pod("agent", node="node-z-empty", owner="DaemonSet")
    members = [
        a_member("d-asks", pods=[protected]),
        a_member("a-dear", cpus=["100m"] * 3),
        a_member("b-cheap", cpus=["100m"]),
        a_member("z-empty", pods=[daemon]),
    ]
    fleet = a_fleet(*members, an_unlaunched_member("zz-unlaunched"), pools=[a_static_pool(0)])
    assert closed(fleet) == ["zz-unlaunched", "z-empty", "b-cheap", "a-dear", "d-asks"]


def test_of_nodes_alike_the_one_that_expires_sooner_goes():
    """Both have the same pods; one has a tenth of its life left."""
    old = {"metadata": {"creationTimestamp": stamp(ago(hours=9))}, "spec": {"expireAfter": "10h"}}
    members = [a_member("a-young", cpus=["1"]), a_member("b-old", cpus=["1"], claim=old)]
    assert closed(a_fleet(*members, pools=[a_static_pool(1)])) == ["b-old"]


@pytest.mark.parametrize(
    ("expire_after", "age", "left"),
    [("10h", 0, 1.0), ("10h", 9, 0.1), ("10h", 11, 0.0), ("Never", 900, 1.0), ("0s", 1, 1.0)],
)
def test_lifetime_left(expire_after, age, left):
    """A share; what never expires has all of it."""
    claim = a_running_claim("c", age=timedelta(hours=age), spec={"expireAfter": expire_after})
    assert lifetime_remaining(claim, NOW) == pytest.approx(left)


def test_a_node_that_is_deleted_already_is_one_less_to_delete():
    """Its claim follows; were it counted as running, another would go in its place."""
    going = {"metadata": {"deletionTimestamp": stamp(NOW), "finalizers": [labels.TERMINATION_FINALIZER]}}
    members = [a_member("a"), a_member("b", node=going), a_member("c")]
    assert closed(a_fleet(*members, pools=[a_static_pool(2)])) == []


def test_pools_that_are_scaled_by_pods_are_left_alone():
    """Nor are those being deleted: their claims go with them."""
    going = {"metadata": {"deletionTimestamp": stamp(NOW), "finalizers": ["x"]}, "spec": {"replicas": 0}}
    pools = [builders.a_pool(), builders.a_pool("going", **going)]
    assert static_nodepools((), pools) == ()
    assert closed(a_fleet(a_member("a"), a_member("b", pool="going"), pools=pools)) == []
