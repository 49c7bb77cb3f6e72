"""Which tolerations tolerate which taints."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
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
def test_toleration_matches_a_taint_by_key_value_and_effect(toleration, taint, covered):
    """Gt and Lt compare numbers, and never match a value that is not a number."""
    assert tolerates(toleration, taint) is covered


def test_prefer_no_schedule_taint_does_not_block_a_pod_but_is_reported():
    """PreferNoSchedule does not make a taint untolerated; has_untolerated_preference reports it."""
    quiet = Taint(key="quiet", effect="PreferNoSchedule")
    assert untolerated((quiet,), ()) is None
    assert has_untolerated_preference((GPU, quiet), ())
    assert not has_untolerated_preference((GPU, quiet), (Toleration(key="quiet", operator="Exists"),))


def test_first_untolerated_taint_is_returned():
    """The error message can then name the taint."""
    assert untolerated((GPU, LEVEL), (Toleration(key="gpu", operator="Exists"),)) == LEVEL
    assert untolerated((GPU, LEVEL), (Toleration(operator="Exists"),)) is None


@pytest.mark.parametrize(
    ("key", "effect", "vanishes"),
    [
        ("node.kubernetes.io/not-ready", "NoSchedule", True),
        ("readiness.k8s.io/my-rule", "NoSchedule", True),
        ("readiness.k8s.io/another", "NoExecute", True),
        ("example.com/some-taint", "NoSchedule", False),
        ("foo/readiness.k8s.io/bar", "NoSchedule", False),
    ],
)
def test_taint_of_a_starting_node_vanishes_by_itself(key, effect, vanishes):
    """Until then it keeps no pod from being planned for the node."""
    assert labels.is_ephemeral_taint(key, effect) is vanishes
