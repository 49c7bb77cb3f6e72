"""Which tolerations cover which taints."""

from __future__ import annotations

import pytest

from journeyman.core.api.objects import Taint, Toleration
from journeyman.core.state.taints import has_untolerated_preference, tolerates, untolerated

GPU = Taint(key="gpu", value="a100", effect="NoSchedule")
LEVEL = Taint(key="level", value="5", effect="NoExecute")


@pytest.mark.parametrize(
    ("toleration", "taint", "covered"),
    [
        (Toleration(operator="Exists"), GPU, True),
        (Toleration(key="gpu", operator="Exists"), GPU, True),
        (Toleration(key="gpu", value="a100"), GPU, True),
        (Toleration(key="gpu", value="h200"), GPU, False),
        (Toleration(key="gpu", operator="Exists", effect="NoExecute"), GPU, False),
        (Toleration(key="cpu", operator="Exists"), GPU, False),
        (Toleration(key="level", operator="Gt", value="4"), LEVEL, True),
        (Toleration(key="level", operator="Gt", value="5"), LEVEL, False),
        (Toleration(key="level", operator="Lt", value="9"), LEVEL, True),
        (Toleration(key="gpu", operator="Lt", value="9"), GPU, False),
    ],
)
def test_a_toleration_covers_a_taint_by_key_value_and_effect(toleration, taint, covered):
    """Including numeric comparison, which a value that is no number never passes."""
    assert tolerates(toleration, taint) is covered


def test_a_preference_keeps_no_pod_away_but_is_known():
    """PreferNoSchedule asks; it does not forbid."""
    quiet = Taint(key="quiet", effect="PreferNoSchedule")
    assert untolerated((quiet,), ()) is None
    assert has_untolerated_preference((GPU, quiet), ())
    assert not has_untolerated_preference((GPU, quiet), (Toleration(key="quiet", operator="Exists"),))


def test_the_first_uncovered_taint_is_named():
    """So that the error can say which."""
    assert untolerated((GPU, LEVEL), (Toleration(key="gpu", operator="Exists"),)) == LEVEL
    assert untolerated((GPU, LEVEL), (Toleration(operator="Exists"),)) is None
