"""Expiration: when NodeClaims are replaced and deleted, how a node is marked, and when it is drained before its time."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.api.duration import parse_duration, time_after
from journeyman.core.disruption.cleanup import remove_stale_taints
from journeyman.core.lifecycle.expiration import drain_replaced, expire_nodeclaims, replace_expiring
from journeyman.core.plan import DeleteObject, Step
from journeyman.core.state.expiration_times import expiration_times
from tests.helpers.actions import conditions, done, events, of_type, patches, requeues
from tests.helpers.builders import NOW, a_launched_claim, a_node, a_pod, a_running_claim, a_snapshot, condition
from tests.helpers.small_clusters import table

INITIALIZED = [condition(type_) for type_ in ("Launched", "Registered", "Initialized")]
MARKED = [*INITIALIZED, condition("DisruptionReason", reason="Expired")]
TAINTED = {"taints": [{"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}]}


def an_expiring_claim(name="default-1", *, conditions=MARKED):
    """Return a claim of an hour that is replaced now."""
    status = {"conditions": conditions, "nodeName": f"node-{name}"}
    return a_running_claim(name, age=timedelta(minutes=57), spec={"expireAfter": "1h"}, status=status)


@pytest.mark.parametrize("expire_after", ["1s", "5m", "1h", "720h", "2562047h"])
def test_claims_of_one_burst_expire_apart_and_within_the_last_tenth(expire_after):
    """The UID decides, so that each run decides the same; replacements start some minutes before."""
    claims = [
        a_running_claim(f"c{n}", age=timedelta(0), spec={"expireAfter": expire_after}, metadata={"uid": f"uid-{n}"})
        for n in range(100)
    ]
    found = [expiration_times(claim) for claim in claims]
    lifetime = parse_duration(expire_after)
    latest = time_after(NOW, lifetime)

    assert found == [expiration_times(claim) for claim in claims]
    assert all(time_after(NOW, lifetime - lifetime / 10) <= t.deleted_from <= t.deleted_by <= latest for t in found)
    assert all(t.replaced_from <= t.deleted_by for t in found)
    assert len({t.deleted_by for t in found}) > 90 or latest == max(t.deleted_by for t in found)
    if expire_after == "720h":
        assert all(t.deleted_by - t.replaced_from == timedelta(minutes=11) for t in found)
        assert max(t.deleted_by for t in found) - min(t.deleted_by for t in found) > timedelta(hours=60)


@pytest.mark.parametrize("registered", [False, True])
def test_a_claim_does_not_expire_before_its_node_registered(registered):
    """Else a NodePool whose expireAfter is shorter than a launch, or a clock that is ahead, launches without end."""
    stages = [condition("Launched"), condition("Registered", "True" if registered else "Unknown")]
    claim = a_running_claim(age=timedelta(minutes=5), spec={"expireAfter": "150s"}, status={"conditions": stages})
    assert bool(of_type(expire_nodeclaims(a_snapshot(claims=(claim,))), DeleteObject)) == registered


def test_a_node_that_expires_soon_is_marked_once():
    """Its taint keeps new pods out and lets provision launch for its own; the mark is written once, the time is kept.

    One in a command is not: the command replaces it.
    """
    plan = replace_expiring(a_snapshot(claims=(an_expiring_claim(conditions=INITIALIZED),), nodes=(a_node(),)))
    node, claim = patches(plan)
    assert [t["key"] for t in node["spec"]["taints"]] == [labels.DISRUPTED_TAINT]
    assert conditions(plan)["DisruptionReason"][1] == "Expired"
    assert requeues(plan).keys() == {Step.PROVISION, Step.TERMINATE}
    assert "Expiring" in {event.reason for event in events(plan)}

    stored = claim["status"]["conditions"]
    marked = a_snapshot(claims=(an_expiring_claim(conditions=stored),), nodes=(a_node(spec=TAINTED),))
    [wake] = replace_expiring(marked).actions
    assert (wake.step, wake.at) == (Step.TERMINATE, expiration_times(an_expiring_claim()).deleted_by)
    assert remove_stale_taints(marked).actions == ()
    claim = an_expiring_claim(conditions=[*INITIALIZED, condition("DisruptionReason", reason="Drifted")])
    assert replace_expiring(a_snapshot(claims=(claim,), nodes=(a_node(),))).actions == ()


PROTECTED = {"annotations": {labels.DO_NOT_DISRUPT: "true"}}
OF_A_DAEMON_SET = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]}


@table(
    "metadata, placed, goes",
    capacity_is_ready=({}, "ready", True),
    capacity_starts=({}, "starting", False),
    no_capacity=({}, "", False),
    do_not_disrupt=(PROTECTED, "ready", False),
    of_a_DaemonSet=(OF_A_DAEMON_SET, "", True),
)
def test_a_replaced_node_goes_once_its_pods_have_capacity(metadata, placed, goes):
    """Others wait for the time at which they must go."""
    others = (a_launched_claim("starting"), a_running_claim("ready", spec={"expireAfter": "Never"}))
    snapshot = a_snapshot(
        claims=(an_expiring_claim(), *others),
        nodes=(a_node(spec=TAINTED), a_node("ready"), a_node("starting", registered=False)),
        pods=(a_pod("a", node="node-default-1", metadata=metadata),),
    )
    plan = drain_replaced(snapshot, {f"node-{placed}": ("default/a",)} if placed else {})
    assert done(plan) == ("delete NodeClaim default-1" if goes else "")


def test_a_tenth_of_a_nodepools_nodes_drain_at_a_time():
    """The others wait a moment: their new pods may still be starting."""
    names = [f"c{n:02}" for n in range(12)]
    claims = [an_expiring_claim(name) for name in names]
    plan = drain_replaced(a_snapshot(claims=claims, nodes=[a_node(n) for n in names]), {})
    assert len(of_type(plan, DeleteObject)) == 2
    assert Step.PROVISION in requeues(plan)
