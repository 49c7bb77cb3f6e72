"""Results: the gap to the bound, and messages that fit a Kubernetes Event."""

from __future__ import annotations

import pytest

from journeyman.core.scheduling.results import PodError, Results


def test_gap_is_the_share_above_the_lower_bound():
    """0 without a bound."""
    assert Results(price=1.5, lower_bound=1.2).gap == pytest.approx(0.25)
    assert Results(price=1.5).gap == 0.0


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (30, "too large for every NodePool"),
        (28, "too large for every NodePool"),
        (27, "… Smallest change: request less"),
        (5, "… Smallest change: request less"),
    ],
)
def test_message_within_keeps_the_smallest_change(length, text):
    """The message is cut, the way out is not."""
    error = PodError(kind="unschedulable", message="too large for every NodePool", smallest_change="request less")

    assert error.message_within(length) == text


def test_message_within_fills_the_length():
    """The beginning of the message, then the smallest change."""
    error = PodError(kind="unschedulable", message="too large " * 9, smallest_change="request less")

    assert error.message_within(40) == "too large… Smallest change: request less"


def test_message_without_a_smallest_change_is_not_cut():
    """The writer of Events cuts it."""
    assert PodError(kind="unschedulable", message="x" * 50).message_within(10) == "x" * 50
