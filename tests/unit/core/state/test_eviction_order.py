"""Eviction order: the size classes of pods, and which pods a PodDisruptionBudget delays."""

import pytest

from journeyman.core.api.objects import (
    LabelSelector,
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from journeyman.core.state.eviction_order import pods_evicted_late, size_class
from tests.helpers.builders import a_pod


@pytest.mark.parametrize(
    ("cpu", "memory", "expected"),
    [
        ("1", "4Gi", 0),
        ("1001m", "1Gi", 1),
        ("500m", "1Gi", -1),
        ("501m", "2Gi", 0),
        ("100m", "16Gi", 2),
        ("2", "1Gi", 1),
        ("0", "0", -9),
        ("much", "1Gi", -9),
    ],
)
def test_size_class_is_the_power_of_two_of_the_larger_request(cpu, memory, expected):
    """4 GiB of memory weigh as much as one CPU; a request that does not parse makes the pod the smallest."""
    assert size_class(a_pod("p", cpu=cpu, memory=memory)) == expected


@pytest.mark.parametrize(("namespace", "allowed", "late"), [("default", 1, 2), ("default", 2, 0), ("other", 0, 0)])
def test_pods_of_a_budget_that_does_not_allow_all_of_them_are_late(namespace, allowed, late):
    """Only those that it selects, in its namespace."""
    pods = [a_pod(name, metadata={"labels": {"app": app}}) for name, app in (("a", "x"), ("b", "x"), ("c", "y"))]
    budget = PodDisruptionBudget(
        metadata=ObjectMeta(name="x", namespace=namespace),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "x"})),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed),
    )

    assert len(pods_evicted_late(pods, [budget])) == late
