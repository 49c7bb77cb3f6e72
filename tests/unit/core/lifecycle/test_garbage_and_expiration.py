"""What is left over, and what has grown too old."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from journeyman.core.lifecycle.expiration import expire
from journeyman.core.lifecycle.garbage import collect
from journeyman.core.plan import DeleteObject, TerminateInstance
from tests.helpers.builders import (
    NOW,
    a_claim,
    a_launched_claim,
    a_node,
    a_running_claim,
    a_snapshot,
    ago,
    provider_id_of,
)

AGE = timedelta(seconds=30)


@dataclass
class Running:
    provider_id: str
    launched_at: datetime = NOW - timedelta(minutes=5)
    claim: str = ""


def run(claims=(), nodes=(), instances=()):
    return collect(a_snapshot(claims=tuple(claims), nodes=tuple(nodes)), instances, AGE)


def test_an_instance_without_a_claim_is_terminated_and_its_node_deleted():
    """Nobody would ever give it back otherwise."""
    plan = run(nodes=[a_node()], instances=[Running(provider_id_of("default-1"))])
    terminate, delete = plan.actions
    assert isinstance(terminate, TerminateInstance)
    assert delete.ref.name == "node-default-1"


@pytest.mark.parametrize(
    ("claims", "instance"),
    [
        ([], Running("i-young", launched_at=ago(seconds=30))),
        ([a_launched_claim()], Running(provider_id_of("default-1"))),
        ([a_claim("cut-off")], Running("i-1", claim="cut-off")),
    ],
    ids=["it is young: its claim may just not have been read", "its claim is there", "its launch was cut off"],
)
def test_these_instances_are_no_orphans(claims, instance):
    """Terminating one of them would cost somebody a node."""
    assert run(claims, instances=[instance]).actions == ()


@pytest.mark.parametrize("node", [None, a_node(ready=False)])
def test_a_claim_that_lost_its_instance_is_deleted(node):
    """The instance is not live, and no Ready node says otherwise."""
    (deletion, _) = run([a_running_claim()], [node] if node else []).actions
    assert isinstance(deletion, DeleteObject)


@pytest.mark.parametrize(
    ("claim", "nodes"),
    [(a_running_claim(), [a_node()]), (a_launched_claim(), []), (a_running_claim(deleting=NOW), [])],
    ids=["its node is Ready", "it never registered: liveness decides", "it is going already"],
)
def test_these_claims_are_not_lost(claim, nodes):
    """A list that misses an instance for a moment must cost nothing."""
    assert run([claim], nodes).actions == ()


@pytest.mark.parametrize(
    ("expire_after", "age", "goes"),
    [("1h", timedelta(hours=1), True), ("1h", timedelta(minutes=59), False), ("Never", timedelta(days=9999), False)],
)
def test_a_claim_expires_at_its_age_and_not_before(expire_after, age, goes):
    """Forceful: no budget is asked. Never means never."""
    claim = a_running_claim(age=age, spec={"expireAfter": expire_after})
    plan = expire(a_snapshot(claims=(claim,)))
    assert bool(plan.actions) is goes
    if goes:
        assert plan.chains[0].observations[0].labels["reason"] == "expired"


def test_a_claim_on_its_way_out_does_not_expire_again():
    """One deletion is enough."""
    claim = a_running_claim(age=timedelta(days=99), deleting=NOW)
    assert expire(a_snapshot(claims=(claim,))).actions == ()
