"""When a NodeClass is compared with the cloud again."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.steps.node_classes import is_due
from tests.helpers.builders import NOW, a_node_class, node_class_body, stamp

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
def test_a_ready_node_class_is_looked_at_once_in_a_period(ago, due):
    """A time far ahead was written by a clock that ran away: waiting for it would be waiting for ever."""
    assert is_due(looked_at(NOW - ago), NOW, PERIOD) is due


def test_one_that_is_not_ready_or_was_never_looked_at_is_due_at_once_and_one_that_goes_is_not():
    """Whoever mends it need not wait; what is being deleted is left as it is."""
    assert is_due(looked_at(NOW, ready=False), NOW, PERIOD)
    assert is_due(looked_at("yesterday"), NOW, PERIOD)
    assert not is_due(looked_at("yesterday", deleting=True), NOW, PERIOD)
