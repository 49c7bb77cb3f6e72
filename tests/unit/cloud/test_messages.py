"""`cloud.messages`: batches of a call, delays in whole seconds, and counted receives."""

from datetime import timedelta

import pytest

from journeyman.cloud.messages import batches, delay_seconds, receives_of, with_receives
from journeyman.core.plan import Step
from journeyman.ports import Message
from journeyman_simulator.clock import VirtualClock
from tests.unit.cloud.aws.conftest import START


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1, 1, 1, 1, 1], [[1, 1, 1], [1, 1]]),
        ([4, 6], [[4, 6]]),
        ([4, 7], [[4], [7]]),
        ([4, 3, 3, 1], [[4, 3, 3], [1]]),
        ([11, 1], [[11], [1]]),
        ([1, 11, 12, 1], [[1], [11], [12], [1]]),
    ],
)
def test_batches_are_as_large_as_a_call_allows(sizes, expected):
    """Three entries, and ten bytes; a larger entry is alone."""
    assert list(batches(sizes, entries_per_call=3, bytes_per_call=10, size_of=lambda size: size)) == expected


@pytest.mark.parametrize(
    ("due_in", "seconds"), [(None, 0), (-5, 0), (0, 0), (0.2, 1), (1, 1), (59.5, 60), (60, 60), (3600, 60)]
)
def test_delay_is_in_whole_seconds_and_bounded(due_in, seconds):
    """No message is early; the receiver sends one again that is due later than the longest delay."""
    at = None if due_in is None else START + timedelta(seconds=due_in)
    message = Message(cluster="dev", step=Step.PROVISION, reason="pods are pending", at=at)
    assert delay_seconds(message, VirtualClock(START), longest=60) == seconds


@pytest.mark.parametrize(
    ("body", "receives"),
    [("{}", 1), ('{"receives":1}', 2), ('{"receives":-7}', 1), ('{"receives":"2"}', 1), ("[]", 1), ("text", 1)],
)
def test_receive_of_a_message_is_one_more_than_its_body_counts(body, receives):
    """A body that someone else wrote is received for the first time; one that is no object is sent as it was: a dead letter."""
    assert receives_of(body) == receives
    assert receives_of(with_receives(body, 3)) == (4 if body.startswith("{") else 1)
    assert body.startswith("{") or with_receives(body, 3) == body


def test_receives_are_added_to_a_message():
    assert with_receives('{"id":"m1"}', 3) == '{"id":"m1","receives":3}'
