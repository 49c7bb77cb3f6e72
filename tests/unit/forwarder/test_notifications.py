"""Batches: when they close, what their messages contain, and that no notification is lost."""

import json
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.forwarder.notifications import (
    LONGEST_PAUSE_SECONDS,
    REQUEUED_STEPS,
    Batcher,
    BatchWindow,
    Notification,
    NotificationCause,
    NotifiedStep,
    PodSummary,
)
from journeyman.core.plan import Step
from journeyman.events import parse_trigger
from journeyman.ports import ClusterChanged

NINE = datetime(2026, 11, 21, 9, tzinfo=timezone.utc)
STUCK, JOINED = (
    Notification(NotificationCause.POD_UNSCHEDULABLE, "p", "1"),
    Notification(NotificationCause.NODE_JOINED, "n", "2"),
)
GONE, LEAVING = (
    Notification(NotificationCause.NODE_GONE, "n", "3"),
    Notification(NotificationCause.CLAIM_DELETING, "c", "4"),
)
NEWS = st.builds(
    Notification, st.sampled_from(NotificationCause), st.text("abc", min_size=1, max_size=3), st.text("12", min_size=1)
)


def test_each_step_has_its_own_batch():
    """A node that is gone requeues both steps; neither waits for the other's window."""
    batcher = Batcher()
    batcher.add([STUCK, GONE], 0.0)
    batcher.add([LEAVING], 0.5)

    assert batcher.due() == 1.0
    (provision,) = batcher.take(1.0)
    (terminate,) = batcher.take(1.5)
    assert (provision.step, provision.counts) == (
        NotifiedStep.PROVISION,
        {NotificationCause.POD_UNSCHEDULABLE: 1, NotificationCause.NODE_GONE: 1},
    )
    assert (terminate.step, terminate.counts) == (
        NotifiedStep.TERMINATE,
        {NotificationCause.CLAIM_DELETING: 1, NotificationCause.NODE_GONE: 1},
    )
    assert batcher.due() is None


@pytest.mark.parametrize(
    ("later", "closes"),
    [(None, 5.0), (STUCK, 5.0), (STUCK._replace(version="9"), 5.0), (STUCK._replace(name="q"), 8.0)],
)
def test_only_another_object_extends_the_window(later, closes):
    """A pod whose status changes all the time delays no other; the next batch waits for it again."""
    batcher = Batcher(idle_seconds=5.0, max_seconds=10.0)
    batcher.add([STUCK], 0.0)
    batcher.add([later] if later else [], 3.0)

    assert batcher.due() == closes
    (batch,) = batcher.take(closes)
    batcher.delivered(batch)
    batcher.add([STUCK], 20.0)
    assert batcher.due() == 25.0


def test_unsent_batch_is_sent_again_with_later_notifications():
    """They are sent as one message."""
    batcher = Batcher()
    batcher.add([STUCK], 0.0)
    (batch,) = batcher.take(1.0)
    batcher.add([JOINED], 1.2)
    batcher.failed(batch, 2.0)

    assert batcher.take(2.9) == ()
    (again,) = batcher.take(3.0)
    assert again.counts == {NotificationCause.POD_UNSCHEDULABLE: 1, NotificationCause.NODE_JOINED: 1}


def test_pause_is_as_long_as_the_sink_asks_up_to_30_seconds():
    """For example, a response has a Retry-After header."""
    batcher = Batcher()
    batcher.add([STUCK], 0.0)
    batcher.failed(*batcher.take(1.0), 1.0, min_seconds=7.0, jitter=0.5)
    assert batcher.due() == 8.0
    batcher.failed(*batcher.take(8.0), 8.0, min_seconds=3600.0)
    assert batcher.due() == 38.0


def test_open_batches_are_sent_at_once_when_the_forwarder_stops():
    """The forwarder does not wait for the ends of their windows."""
    batcher = Batcher()
    batcher.add([STUCK, LEAVING], 0.0)

    assert {batch.step for batch in batcher.take(0.1, flush=True)} == {NotifiedStep.PROVISION, NotifiedStep.TERMINATE}
    assert (batcher.take(0.1, flush=True), batcher.due()) == ((), None)


@given(st.lists(NEWS, max_size=30, unique=True), st.randoms())
def test_replicas_with_the_same_notifications_use_the_same_id(news, random):
    """The order and the number of attempts do not matter, so a FIFO queue accepts one message."""
    shuffled = list(news)
    random.shuffle(shuffled)
    one, other = Batcher(), Batcher()
    one.add(news, 0.0)
    half = len(shuffled) // 2
    other.add(shuffled[:half], 0.0)
    for batch in other.take(1.0):
        other.failed(batch, 1.0)
    other.add(shuffled[half:], 1.0)

    assert {p.step: (p.id, p.counts) for p in one.take(60.0)} == {p.step: (p.id, p.counts) for p in other.take(60.0)}


def test_other_notifications_have_another_id():
    """A pod that is unschedulable again an hour later has another version."""
    ids = set()
    for news in ([STUCK], [STUCK._replace(version="9")], [STUCK, JOINED], [JOINED]):
        batcher = Batcher()
        batcher.add(news, 0.0)
        ids.update(batch.id for batch in batcher.take(1.0))
    assert len(ids) == 4


@given(st.lists(st.tuples(NEWS, st.booleans()), max_size=60))
def test_each_notification_is_delivered_to_each_of_its_steps(steps):
    """That holds after any sequence of failures."""
    batcher, now, delivered = Batcher(), 0.0, dict.fromkeys(NotifiedStep, 0)

    def send(*, works):
        for batch in batcher.take(now):
            if works:
                delivered[batch.step] += sum(batch.counts.values())
                batcher.delivered(batch)
            else:
                batcher.failed(batch, now)

    for news, works in steps:
        batcher.add([news], now)
        now += 40.0
        send(works=works)
    now += 40.0
    send(works=True)

    assert delivered == {step: sum(step in REQUEUED_STEPS[news.cause] for news, _ in steps) for step in NotifiedStep}
    assert batcher.due() is None


@pytest.mark.parametrize("step", list(NotifiedStep))
def test_functions_parse_the_message(step):
    """It has cluster, step, counts, age and a readable reason."""
    batcher = Batcher()
    batcher.add([STUCK, GONE, Notification(NotificationCause.STARTED, "claims", "5")], 0.0)
    (batch,) = (p for p in batcher.take(1.0) if p.step is step)
    trigger = parse_trigger(json.loads(batch.message("dev", PodSummary(12, 10, NINE), NINE)))

    assert (trigger.cluster, trigger.step, type(trigger)) == ("dev", Step(step.value), ClusterChanged)
    assert trigger.id == batch.id
    assert trigger.counts.items() >= {"pending": 12, "unschedulable": 10, "nodesGone": 1}.items()
    assert trigger.oldest_pending_time == NINE
    waits = "10 pods are unschedulable, " if step is NotifiedStep.PROVISION else ""
    assert trigger.reason == f"{waits}1 node is gone, the forwarder has started"


def test_batch_is_obsolete_once_its_pods_are_scheduled():
    """kube-scheduler may bind them within the window; a batch with other causes is sent anyway."""
    batcher = Batcher()
    batcher.add([STUCK], 0.0)
    (batch,) = batcher.take(1.0)
    batcher.add([STUCK, JOINED], 2.0)
    (mixed,) = batcher.take(3.0)

    assert batch.is_obsolete(PodSummary(3, 0, None))
    assert not batch.is_obsolete(PodSummary(3, 1, NINE))
    assert not mixed.is_obsolete(PodSummary(0, 0, None))


def test_no_batch_is_due_without_notifications():
    """Without changes in the cluster the forwarder sends nothing."""
    assert BatchWindow().due() is None
    assert BatchWindow().close(100.0) is False


def test_batch_closes_after_a_second_without_notifications():
    """So a burst of notifications is one message."""
    window = BatchWindow()
    for now in (5.0, 5.3, 5.9):
        window.add(now)

    assert window.due() == 6.9
    assert (window.close(6.89), window.close(6.9), window.close(7.0)) == (False, True, False)


def test_batch_closes_after_ten_seconds_of_notifications():
    """A long rollout must not delay its own message."""
    window = BatchWindow()
    for tenth in range(200):
        window.add(tenth / 10)

    assert window.due() == 10.0


def test_pause_doubles_with_each_failure_up_to_30_seconds():
    """The batch is never dropped: pods would be pending until the next sweep."""
    window = BatchWindow()
    window.add(0.0)
    now, pauses = 1.0, []
    for _ in range(7):
        assert window.close(now)
        window.failed(now)
        pauses.append(window.due() - now)
        now = window.due()

    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]


def test_success_resets_the_pause():
    """The next failure counts as the first."""
    window = BatchWindow()
    window.add(0.0)
    window.close(1.0)
    window.failed(1.0)
    window.close(2.0)
    window.sent()
    window.add(10.0)

    assert window.due() == 11.0


def test_notification_during_a_send_opens_a_new_batch():
    """The message that is being sent does not contain it."""
    window = BatchWindow()
    window.add(0.0)
    window.close(1.0)
    window.add(1.5)
    window.sent()

    assert window.due() == 2.5


@given(st.lists(st.floats(0, 100), min_size=1).map(sorted))
def test_each_notification_is_sent_within_the_longest_window(times):
    """It is ten seconds, whenever notifications arrive; afterwards no batch is open."""
    window, waiting = BatchWindow(), []
    for now in [*times, times[-1] + 20]:
        while (due := window.due()) is not None and due <= now:
            assert window.close(due)
            assert all(due - arrived <= 10.0 + 1e-9 for arrived in waiting)
            waiting.clear()
            window.sent()
        if now <= times[-1]:
            window.add(now)
            waiting.append(now)

    assert (waiting, window.due()) == ([], None)
