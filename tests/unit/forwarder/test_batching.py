"""When a batch is sent: time is a parameter, so every window is tested to the instant."""

from hypothesis import given
from hypothesis import strategies as st

from infra.forwarder.batching import LONGEST_PAUSE_SECONDS, Batch


def test_nothing_is_due_before_something_happened():
    """A quiet cluster costs nothing."""
    assert Batch().due() is None
    assert Batch().take(100.0) is False


def test_a_batch_is_sent_after_a_quiet_second():
    """A burst is one message."""
    batch = Batch()
    for now in (5.0, 5.3, 5.9):
        batch.add(now)

    assert batch.due() == 6.9
    assert (batch.take(6.89), batch.take(6.9), batch.take(7.0)) == (False, True, False)


def test_a_stream_without_a_pause_is_sent_after_ten_seconds():
    """A rollout that never pauses must not wait for its end."""
    batch = Batch()
    for tenth in range(200):
        batch.add(tenth / 10)

    assert batch.due() == 10.0


def test_a_failed_batch_waits_longer_each_time_and_is_never_forgotten():
    """Losing the wake-up would leave pods pending until the sweep."""
    batch = Batch()
    batch.add(0.0)
    now, pauses = 1.0, []
    for _ in range(7):
        assert batch.take(now)
        batch.failed(now)
        pauses.append(batch.due() - now)
        now = batch.due()

    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]


def test_success_forgets_the_pauses():
    """The next failure is a first one again."""
    batch = Batch()
    batch.add(0.0)
    batch.take(1.0)
    batch.failed(1.0)
    batch.take(2.0)
    batch.sent()
    batch.add(10.0)

    assert batch.due() == 11.0


def test_what_arrives_while_a_message_is_under_way_is_a_batch_of_its_own():
    """The message under way may have been written before it."""
    batch = Batch()
    batch.add(0.0)
    batch.take(1.0)
    batch.add(1.5)
    batch.sent()

    assert batch.due() == 2.5


@given(st.lists(st.floats(0, 100), min_size=1).map(sorted))
def test_no_pod_waits_longer_than_the_longest_window_and_none_is_left(times):
    """Whatever the arrivals, each is told within ten seconds, and after them nothing is open."""
    batch, waiting = Batch(), []
    for now in [*times, times[-1] + 20]:
        while (due := batch.due()) is not None and due <= now:
            assert batch.take(due)
            assert all(due - arrived <= 10.0 + 1e-9 for arrived in waiting)
            waiting.clear()
            batch.sent()
        if now <= times[-1]:
            batch.add(now)
            waiting.append(now)

    assert (waiting, batch.due()) == ([], None)
