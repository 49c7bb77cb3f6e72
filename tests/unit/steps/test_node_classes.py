"""When a NodeClass is compared with the cloud again, and how it goes: last of all that was made for it."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import EC2NODECLASS, NODECLAIM, NODEPOOL
from journeyman.core.plan import Step
from journeyman.errors import CloudProviderError
from journeyman.ports import RequeueDue
from journeyman.steps.node_classes import is_due
from journeyman.steps.provision import provision
from tests.helpers.builders import NOW, SMALL, a_node_class, node_class_body, pool_body, stamp
from tests.helpers.fakes import Interfering
from tests.helpers.living import Living

PERIOD = timedelta(minutes=5)


def looked_at(when, **changes):
    """A NodeClass that was last looked at then, in words or as a time."""
    text = when if isinstance(when, str) else stamp(when)
    return a_node_class(raw=node_class_body(metadata={"annotations": {labels.RESOLVED_AT: text}}), **changes)


@pytest.mark.parametrize(
    ("ago", "due"),
    [
        (timedelta(0), False),
        (PERIOD - timedelta(seconds=1), False),
        (PERIOD, True),
        (-timedelta(seconds=30), False),
        (-timedelta(hours=1), True),
    ],
)
def test_a_ready_node_class_is_checked_once_in_a_period(ago, due):
    """A time far ahead was written by a clock that ran away: waiting for it would be waiting for ever."""
    assert is_due(looked_at(NOW - ago), NOW, PERIOD) is due


def test_a_node_class_without_a_ready_condition_is_due_at_once():
    """A user who mends it need not wait; the step ignores one that is being deleted."""
    assert is_due(looked_at(NOW, ready=False), NOW, PERIOD)
    assert is_due(looked_at("yesterday"), NOW, PERIOD)
    assert not is_due(looked_at("yesterday", deleting=True), NOW, PERIOD)


FINALIZER = "karpenter.k8s.aws/termination"


@pytest.fixture
def living():
    """A node with a pod, which nothing consolidates."""
    living = Living((SMALL,), pool_body(spec={"disruption": {"consolidateAfter": "Never"}}))
    living.deploy("web", 1, cpu="1.5")
    living.until(lambda: living.running() == 1, "a pod on a node")
    return living


def class_of(living):
    """The NodeClass as it is stored; None once it is gone."""
    return next(iter(living.server.list(EC2NODECLASS).items), None)


def messages(living, reason):
    return [event.message for event in living.record.events if event.reason == reason]


def a_trigger(living):
    now = living.clock.now()
    return RequeueDue(id="t", cluster="demo", step=Step.PROVISION, reason="test", time=now)


def drop_finalizer(living):
    living.server.patch(EC2NODECLASS, "default", {"metadata": {"finalizers": []}})


def test_a_node_class_in_use_is_held_before_anything_is_made_for_it(living):
    """The step adds Karpenter's finalizer again if a user removes it; a NodeClass without a NodePool gets none."""
    assert class_of(living)["metadata"]["finalizers"] == [FINALIZER]
    drop_finalizer(living)
    living.requeue(Step.PROVISION)
    living.live(minutes=1)
    assert class_of(living)["metadata"]["finalizers"] == [FINALIZER]

    living.cluster.add(node_class_body("spare"))
    living.requeue(Step.PROVISION)
    living.live(minutes=1)
    assert "finalizers" not in living.server.get(EC2NODECLASS, "spare")["metadata"]


def test_a_node_class_that_cannot_be_held_is_not_resolved(living):
    """Another client writes it at that moment: its instance profile might be left behind."""
    drop_finalizer(living)
    living.server.patch(EC2NODECLASS, "default", {"spec": {"role": "another"}})
    before, run = living.cloud.resolved, living.cluster.run()
    written = {"metadata": {"labels": {"written": "meanwhile"}}}
    meanwhile = lambda: living.server.patch(EC2NODECLASS, "default", written)  # noqa: E731
    provision(replace(run, store=Interfering(living.server, "patch", 1, meanwhile)), a_trigger(living))
    assert living.cloud.resolved == before
    assert not class_of(living)["metadata"]["finalizers"]

    living.live(minutes=1)
    assert living.cloud.resolved == before + 1
    assert class_of(living)["metadata"]["finalizers"] == [FINALIZER]


def test_a_deleted_node_class_waits_until_its_claims_are_gone(living):
    """An Event says so every ten minutes; then the step deletes its cloud resources and removes the finalizer."""
    living.server.delete(EC2NODECLASS, "default")
    living.live(minutes=21)
    (claim,) = living.claims()
    waiting = f"Waiting on NodeClaim termination for {claim.metadata.name}"
    assert set(messages(living, "WaitingOnNodeClaimTermination")) == {waiting}
    assert len(messages(living, "WaitingOnNodeClaimTermination")) >= 2
    assert living.cloud.released == []

    living.server.delete(NODEPOOL, "default")
    living.server.delete(NODECLAIM, claim.metadata.name)
    living.until(lambda: class_of(living) is None, "the NodeClass to go", minutes=10)
    assert living.cloud.released == ["default"]
    assert living.cloud.list() == ()
    assert messages(living, "Finalized")
    took = living.record.count_of("operator_ec2nodeclass_termination_duration_seconds")
    assert took >= timedelta(minutes=21).total_seconds()


def test_a_node_class_stays_until_what_was_made_for_it_is_taken_back(living):
    """The cloud refuses at first: its finalizer is what remembers that something is left."""
    living.server.delete(NODEPOOL, "default")
    living.server.delete(NODECLAIM, living.claims()[0].metadata.name)
    living.until(lambda: not living.claims(), "the claim to go", minutes=10)
    living.cloud.failures = [CloudProviderError("no right to iam:DeleteInstanceProfile")]
    living.server.delete(EC2NODECLASS, "default")
    living.until(lambda: not living.cloud.failures, "the first try", minutes=2)
    assert class_of(living) is not None

    living.until(lambda: class_of(living) is None, "the NodeClass to go", minutes=3)
    assert living.cloud.released == ["default"]
