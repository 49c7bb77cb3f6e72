"""Errors for operators are Events, once per permission and kind; every error that stops something is counted."""

from datetime import timedelta

import pytest

from journeyman.core.plan import Requeue, Step
from journeyman.errors import (
    NOT_SERVED,
    CloudProviderError,
    ConflictError,
    ForbiddenError,
    KubeAPIError,
    NotFoundError,
)
from journeyman.ports import RequeueDue
from journeyman.steps.recorder import CHAIN_ENDS, RunRecorder, emit_error, event_for_operator
from journeyman.steps.step import send_requeues
from tests.helpers.fakes import Cluster

CREATE = {"verb": "create", "api_group": "karpenter.sh", "resource": "nodeclaims"}


def refused(name="a", **right):
    return ForbiddenError(
        f'nodeclaims "{name}" is forbidden', status=403, to_do="see infra/chart", **{**CREATE, **right}
    )


def a_trigger(cluster, **changes):
    given = {"id": "m", "cluster": "demo", "step": Step.TERMINATE, "reason": "test", "time": cluster.clock.now()}
    return RequeueDue(**given, **changes)


def test_a_missing_permission_or_kind_is_reported_once_with_its_remedy():
    """One missing permission may fail the writes of many objects.

    Objects are deleted all the time, but a kind is missing only without its CustomResourceDefinition.
    """
    first, second, other = (
        event_for_operator(Step.PROVISION, e) for e in (refused(), refused("b"), refused(resource="nodepools"))
    )
    assert (first.reason, first.type, str(first.ref)) == ("PermissionDenied", "Warning", "Namespace default")
    assert first.message == 'provision: nodeclaims "a" is forbidden; see infra/chart'
    assert first.key == second.key != other.key
    assert first.key != event_for_operator(Step.CONSOLIDATE, refused()).key

    kind = NotFoundError("the API server does not serve nodeclaims", reason=NOT_SERVED, to_do="install the CRDs")
    said = "terminate: the API server does not serve nodeclaims; install the CRDs"
    event = event_for_operator(Step.TERMINATE, kind)
    assert (event.reason, event.message) == ("CRDNotInstalled", said)
    assert event_for_operator(Step.TERMINATE, NotFoundError("pods a not found", status=404, reason="NotFound")) is None


@pytest.mark.parametrize(
    "error", [ConflictError("changed"), KubeAPIError("full", status=507), CloudProviderError("no")]
)
def test_retryable_error_is_counted_without_an_event(error):
    """The metric has the error class and the step, for an alarm."""
    cluster = Cluster()
    emit_error(cluster.run(), Step.PROVISION, error)

    assert cluster.record.events == []
    (sample,) = cluster.record.observations
    assert (sample.name, dict(sample.labels)) == (
        "journeyman_errors_total",
        {"controller": "provision", "error": type(error).__name__},
    )


@pytest.mark.parametrize(("hops", "sent"), [(0, [1]), (11, [12]), (12, [])])
def test_chain_of_requeues_ends_at_its_limit(hops, sent):
    """Lambda stops a function after about 16 runs of one chain; before that, the next sweep continues the work."""
    cluster = Cluster()
    run = cluster.run()
    recorder = RunRecorder(run, Step.TERMINATE, Step.TERMINATE, hops=hops)
    recorder.requeue(Step.TERMINATE, cluster.clock.now(), "node a is draining")

    recorder.record_chain_end()
    send_requeues(run, Step.TERMINATE, a_trigger(cluster, hops=hops), recorder.requeues)

    assert [message.hops for message in cluster.queue.sent] == sent
    assert len(recorder.outcome().requeues) == len(sent)
    ended = [o.name for o in cluster.record.observations] == ["journeyman_requeue_chains_ended_total"]
    assert ended is (not sent)
    assert any(CHAIN_ENDS in str(line) for line in cluster.record.lines) is (not sent)


@pytest.mark.parametrize(
    ("pending", "wanted", "is_sent", "next_run"),
    [
        (None, 10, True, 10),
        (5, 10, False, 5),  # an earlier run's message starts the step before
        (10, 10, False, 10),
        (20, 10, True, 10),
        (-1, 10, True, 10),  # that message came, or is lost
        (60, 65, False, 60),
        (61, 65, True, None),  # if it is lost, the sweep should not be late
        (None, 300, True, None),
        (5, 0, True, 5),  # what is due now is not merged
    ],
)
def test_requeue_is_merged_into_an_earlier_message_of_the_step(pending, wanted, is_sent, next_run):
    """So that messages that arrive while a step polls start no further chains. The Lease keeps the time for the next run."""
    cluster = Cluster()
    now = cluster.clock.now()

    def at(seconds):
        return None if seconds is None else now + timedelta(seconds=seconds)

    cluster.fence.next_run = at(pending)
    requeues = [Requeue(step=step, at=at(wanted), reason="test") for step in (Step.PROVISION, Step.TERMINATE)]

    sent = send_requeues(cluster.run(), Step.TERMINATE, a_trigger(cluster), requeues)

    assert sent == at(next_run)
    assert [m.step for m in cluster.queue.sent] == [Step.PROVISION, *([Step.TERMINATE] if is_sent else [])]


@pytest.mark.parametrize(("pending", "is_sent"), [(1, True), (2, False)], ids=["its own message", "another message"])
def test_requeue_is_not_merged_into_the_message_that_started_the_run(pending, is_sent):
    """By the clock of a sandbox that is a second behind, the message is still to come."""
    cluster = Cluster()
    now = cluster.clock.now()
    cluster.fence.next_run = now + timedelta(seconds=pending)
    wanted = Requeue(step=Step.TERMINATE, at=now + timedelta(seconds=10), reason="test")
    trigger = a_trigger(cluster, at=now + timedelta(seconds=1))

    sent = send_requeues(cluster.run(), Step.TERMINATE, trigger, [wanted])

    assert sent == now + timedelta(seconds=10 if is_sent else pending)
    assert bool(cluster.queue.sent) is is_sent
