"""Static NodePools: how many NodeClaims are created, under which names, and the order of deprovisioning."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON
from journeyman.core.catalogue import Unavailable
from journeyman.core.disruption.static_nodepool_state import static_nodepools
from journeyman.core.disruption.static_provisioning import deprovision_static, lifetime_remaining, provision_static
from journeyman.core.plan import CreateObject, DeleteObject, Requeue
from tests.helpers import builders
from tests.helpers.actions import of_type
from tests.helpers.builders import NOW, a_node_class, a_running_claim, a_snapshot, ago, stamp
from tests.helpers.disrupting import PROTECTED, SOLD_OUT
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod, an_unlaunched_member
from tests.helpers.small_clusters import table


def a_static_pool(replicas: int, **spec):
    """A static NodePool with these replicas."""
    return builders.a_pool(spec={"replicas": replicas, **spec})


def a_cluster(pool, *claims):
    """A cluster with a NodeClass that is ready."""
    return a_snapshot(node_pools=(pool,), node_classes=(a_node_class(),), claims=tuple(sorted(claims, key=name_of)))


def name_of(claim) -> str:
    """The name of the NodeClaim."""
    return claim.metadata.name


def created(snapshot, *, max_claims: int = 100, catalogue=None) -> list[dict]:
    """Manifests of the NodeClaims that are created."""
    plan = provision_static(snapshot, catalogue or a_catalogue(), max_claims=max_claims, requeue_at=NOW)
    return [action.body for action in of_type(plan, CreateObject)]


def deleted(snapshot) -> list[str]:
    """Names of the NodeClaims that are deleted, in order."""
    return [action.ref.name for action in of_type(deprovision_static(snapshot), DeleteObject)]


def from_body(body, *, deleting: bool = False):
    """The NodeClaim of a manifest."""
    meta = body["metadata"]
    annotations = {labels.REPLICA_INDEX: meta["annotations"][labels.REPLICA_INDEX]}
    return a_running_claim(meta["name"], deleting=NOW if deleting else None, metadata={"annotations": annotations})


# -- provisioning ---------------------------------------------------------------------------------------------------


def test_static_nodeclaim_names_are_derived_from_pool_and_replica_index():
    """Overlapping runs create the same NodeClaims."""
    pool = a_static_pool(4)
    wanted = created(a_cluster(pool))
    assert [body["metadata"]["annotations"][labels.REPLICA_INDEX] for body in wanted] == ["0", "1", "2", "3"]
    assert created(a_cluster(pool)) == wanted
    assert created(a_cluster(pool, from_body(wanted[0]), from_body(wanted[2]))) == [wanted[1], wanted[3]]

    namesake = builders.a_pool(metadata={"uid": "made-again"}, spec={"replicas": 4})
    names = {body["metadata"]["name"] for body in (*wanted, *created(a_cluster(namesake)))}
    assert len(names) == 8


def test_a_thousand_replicas_have_a_thousand_names():
    """Runs create them in portions, each of which leaves the others for the next run."""
    pool, claims = a_static_pool(1000), []
    while made := created(a_cluster(pool, *claims), max_claims=400):
        assert len(made) <= 400
        claims += [from_body(body) for body in made]
    assert len({name_of(claim) for claim in claims}) == len(claims) == 1000


def test_replica_gets_a_nodeclaim_of_another_name_when_its_nodeclaim_is_deleting():
    """The first name is free again once its NodeClaim is removed."""
    pool, made = a_static_pool(1), []
    for _ in range(3):
        made += created(a_cluster(pool, *(from_body(body, deleting=True) for body in made)))
    assert len({body["metadata"]["name"] for body in made}) == len(made) == 3
    assert {body["metadata"]["annotations"][labels.REPLICA_INDEX] for body in made} == {"0"}
    assert created(a_cluster(pool, from_body(made[2], deleting=True))) == made[:1]


@given(
    replicas=st.integers(0, 6),
    limit=st.integers(0, 8) | st.none(),
    kinds=st.lists(st.sampled_from(["running", "replaced", "deleting"]), max_size=8),
    max_claims=st.integers(0, 6),
)
def test_static_provisioning_respects_replicas_limits_and_max_claims(replicas, limit, kinds, max_claims):
    """It creates as many NodeClaims as they allow."""
    pool = a_static_pool(replicas, **({} if limit is None else {"limits": {"nodes": str(limit)}}))
    claims = [a_claim_that_is(kind, index) for index, kind in enumerate(kinds)]
    made = len(created(a_cluster(pool, *claims), max_claims=max_claims))
    gone = len(deleted(a_cluster(pool, *claims)))

    staying = sum(kind != "deleting" for kind in kinds)
    capacity = replicas - staying if limit is None else min(replicas - staying, limit - len(kinds))
    assert made == min(max(capacity, 0), max_claims)
    assert gone == max(kinds.count("running") - replicas, 0)
    assert not (made and gone)


@pytest.mark.parametrize(
    ("kinds", "allowed"),
    [
        ([], 5),
        (["running"] * 3, 3),
        (["running"] * 6, 0),
        (["deleting"] * 5, 1),
        (["running", "replaced", "deleting"], 3),
        (["running", "deleting", "deleting", "deleting", "deleting", "deleting"], 0),
    ],
)
def test_node_limit_of_a_static_nodepool_counts_all_its_claims(kinds, allowed):
    """Its limit is six nodes; it has five replicas. Deleting nodes count until they are gone, as in Karpenter."""
    claims = tuple(a_claim_that_is(kind, index) for index, kind in enumerate(kinds))
    (static,) = static_nodepools(claims, (a_static_pool(5, limits={"nodes": "6"}),))
    assert static.allowed == min(allowed, static.missing)


def test_claims_of_a_static_nodepool_run_are_replaced_or_are_deleted():
    """A rollback of a replacement, and a changed provider id, leave a NodeClaim running; others' do not count."""
    running = builders.condition(DISRUPTION_REASON, "False")
    claims = (
        builders.a_claim("a-unlaunched"),
        a_claim_that_is("deleting", 1),
        a_claim_that_is("replaced", 2),
        a_claim_that_is("running", 3),
        a_running_claim("c4", provider_id="aws:///a/i-other"),
        a_running_claim("c5", status={"conditions": [running]}),
        *(a_running_claim(n, metadata={"labels": {labels.NODEPOOL: pool}}) for n, pool in (("d", "other"), ("e", ""))),
    )
    other = builders.a_pool("other", spec={"replicas": 1})
    mine, others = static_nodepools(claims, (a_static_pool(5), other))
    names = [[name_of(claim) for claim in part] for part in (mine.running, mine.replaced, mine.deleting)]
    assert names == [["a-unlaunched", "c3", "c4", "c5"], ["c2"], ["c1"]]
    assert [name_of(claim) for claim in others.running] == ["d"]
    (left,) = static_nodepools(claims[1:3], (a_static_pool(5),))
    assert left.running == ()


def a_claim_that_is(kind: str, index: int):
    """A NodeClaim of the static NodePool."""
    true = ("Launched", "Registered", "Initialized", *((DISRUPTION_REASON,) if kind == "replaced" else ()))
    return a_running_claim(f"c{index}", true=true, deleting=NOW if kind == "deleting" else None)


NO_TYPE = {"template": {"spec": {"requirements": [{"key": labels.ARCH, "operator": "In", "values": ["z"]}]}}}
GOING = {"metadata": {"deletionTimestamp": stamp(NOW), "finalizers": ["x"]}}


@table(
    "changes, node_class",
    class_not_ready=({}, a_node_class(ready=False)),
    class_deleting=({}, a_node_class(deleting=True)),
    no_class=({}, a_node_class("other")),
    pool_deleting=(GOING, a_node_class()),
    not_static=({"spec": {"replicas": None}}, a_node_class()),
    no_compatible_type=({"spec": NO_TYPE}, a_node_class()),
)
def test_unusable_static_nodepool_creates_no_nodeclaims(changes, node_class):
    """Its NodeClass is not usable, it is deleting or not static, or no instance type is compatible."""
    pool = builders.a_pool(**builders.merge({"spec": {"replicas": 2}}, changes))
    assert created(a_snapshot(node_pools=(pool,), node_classes=(node_class,))) == []


# -- deprovisioning -------------------------------------------------------------------------------------------------


def a_daemon(node):
    return a_pod(f"agent-{node}", node=f"node-{node}", owner="DaemonSet")


def a_protected_pod(node):
    return a_pod(f"kept-{node}", node=f"node-{node}", **PROTECTED)


def test_static_deprovisioning_deletes_the_cheapest_to_disrupt_first():
    """The order is: no instance, empty, low disruption cost, high disruption cost, do-not-disrupt.

    Other pods without do-not-disrupt, or of a DaemonSet, do not change this.
    """
    members = [
        a_member("d-protected", pods=[a_protected_pod("d-protected")]),
        a_member("a-costly", cpus=["100m"] * 3),
        a_member("b-cheap", cpus=["100m"]),
        a_member("z-empty", pods=[a_daemon("z-empty")]),
    ]
    fleet = a_fleet(*members, an_unlaunched_member("zz-unlaunched"), pools=[a_static_pool(0)])
    assert deleted(fleet) == ["zz-unlaunched", "z-empty", "b-cheap", "a-costly", "d-protected"]

    mixed = [
        a_member("a-protected", cpus=["100m"], pods=[a_protected_pod("a-protected")]),
        a_member("b-mixed", cpus=["100m"], pods=[a_daemon("b-mixed")]),
        a_member("c-plain", cpus=["100m"] * 2),
        a_member("d-empty"),
    ]
    assert deleted(a_fleet(*mixed, pools=[a_static_pool(0)])) == ["d-empty", "b-mixed", "c-plain", "a-protected"]


@pytest.mark.parametrize(
    ("replicas", "kept"),
    [
        (8, "high-1 high-2 low-1 low-2 none-1 none-2 stays-1 stays-2"),
        (6, "high-1 high-2 low-1 low-2 stays-1 stays-2"),
        (4, "high-1 high-2 stays-1 stays-2"),
        (2, "stays-1 stays-2"),
        (0, ""),
    ],
)
def test_static_deprovisioning_keeps_the_nodes_that_cost_most_to_disrupt(replicas, kept):
    """Nodes with DaemonSet pods only go first, then those with few pods, many pods, and do-not-disrupt."""
    members = []
    for number in "12":
        members += [
            a_member(f"none-{number}", pods=[a_daemon(f"none-{number}")]),
            a_member(f"low-{number}", cpus=["100m"]),
            a_member(f"high-{number}", cpus=["100m"] * 3),
            a_member(f"stays-{number}", pods=[a_protected_pod(f"stays-{number}")]),
        ]
    gone = deleted(a_fleet(*members, pools=[a_static_pool(replicas)]))
    assert sorted({m.claim.metadata.name for m in members} - set(gone)) == kept.split()
    assert deleted(a_fleet(pools=[a_static_pool(replicas)])) == []


def test_static_deprovisioning_deletes_the_node_that_expires_sooner():
    """Both nodes have the same pods."""
    old = {"metadata": {"creationTimestamp": stamp(ago(hours=9))}, "spec": {"expireAfter": "10h"}}
    members = [a_member("a-young", cpus=["1"]), a_member("b-old", cpus=["1"], claim=old)]
    assert deleted(a_fleet(*members, pools=[a_static_pool(1)])) == ["b-old"]


@pytest.mark.parametrize(
    ("expire_after", "age", "left"),
    [("10h", 0, 1.0), ("10h", 9, 0.1), ("10h", 11, 0.0), ("Never", 900, 1.0), ("0s", 1, 1.0)],
)
def test_lifetime_remaining_is_the_remaining_fraction_of_expire_after(expire_after, age, left):
    """It is 1 for nodes that never expire."""
    claim = a_running_claim("c", age=timedelta(hours=age), spec={"expireAfter": expire_after})
    assert lifetime_remaining(claim, NOW) == pytest.approx(left)


def test_dynamic_and_deleting_nodepools_are_not_static():
    """Their NodeClaims are neither created nor deleted.

    A node that is deleted counts as deprovisioned: its NodeClaim will be removed, too, so no other node is deleted instead.
    """
    members = [a_member("a"), a_member("b", node=GOING), a_member("c")]
    assert deleted(a_fleet(*members, pools=[a_static_pool(2)])) == []
    pools = [builders.a_pool(), builders.a_pool("going", **GOING, spec={"replicas": 0})]
    assert static_nodepools((), pools) == ()
    assert deleted(a_fleet(a_member("a"), a_member("b", pool="going"), pools=pools)) == []


def test_provisioning_is_requeued_immediately_when_max_claims_leaves_replicas_missing():
    """If max_claims allows all replicas, the plan has neither an immediate requeue nor an Event.

    It applies to all static NodePools together: the first by name gets its replicas first.
    """
    pools = tuple(builders.a_pool(name, spec={"replicas": 2}) for name in ("a", "b"))
    made = created(a_snapshot(node_pools=pools), max_claims=3, catalogue=a_catalogue("a", "b"))
    assert [body["metadata"]["labels"][labels.NODEPOOL] for body in made] == ["a", "a", "b"]

    left, all_made = (
        provision_static(
            a_cluster(a_static_pool(3)), a_catalogue(), max_claims=most, requeue_at=NOW + timedelta(seconds=20)
        )
        for most in (2, 3)
    )
    assert [a.reason for a in of_type(left, Requeue) if a.at == NOW] == [
        "1 node of NodePool default left for the next run"
    ]
    assert [a.reason for a in of_type(all_made, Requeue) if a.at == NOW] == []
    assert all_made.events == ()


def test_static_nodepool_is_requeued_when_its_first_unavailable_offering_expires():
    """Expired records do not count; without any record the plan only has an Event."""
    until = {"s": 9, "m": 4, "l": 0, "xl": -3}
    place = {"zone": "a", "capacity_type": labels.ON_DEMAND}
    records = tuple(
        Unavailable(instance_type=name, **place, until=NOW + timedelta(minutes=m)) for name, m in until.items()
    )
    waiting, lost = (
        provision_static(
            replace(a_cluster(a_static_pool(1)), unavailable=each),
            a_catalogue(of=SOLD_OUT),
            max_claims=9,
            requeue_at=NOW,
        )
        for each in (records, ())
    )
    assert [a.at for a in waiting.actions] == [NOW + timedelta(minutes=4)]
    assert (lost.actions, [e.reason for e in lost.events]) == ((), ["InsufficientCapacityError"])
