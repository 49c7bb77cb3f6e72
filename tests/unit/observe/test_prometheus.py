"""Prometheus' text format: families with help and type, escaped label values."""

import pytest

from journeyman.core.plan import Observation
from journeyman.observe.prometheus import to_text_format


def gauge(metric, value, **labels):
    return Observation(name=metric, value=value, labels=labels, kind="gauge")


def test_samples_of_a_metric_are_grouped_under_help_and_type():
    """They are sorted by name, and each sample has the label `cluster`."""
    text = to_text_format(
        [
            gauge("karpenter_pods_state", 1, name="b"),
            gauge("karpenter_nodepools_limit", 0.5, nodepool="x", resource_type="cpu"),
            gauge("karpenter_pods_state", 1, name='a"\\\n', node=""),
            gauge("karpenter_nodepools_limit", float("inf"), nodepool="y"),
        ],
        constant={"cluster": "dev"},
    )

    assert text.splitlines() == [
        "# HELP karpenter_nodepools_limit Limits of a NodePool.",
        "# TYPE karpenter_nodepools_limit gauge",
        'karpenter_nodepools_limit{cluster="dev",nodepool="x",resource_type="cpu"} 0.5',
        "# HELP karpenter_pods_state A constant 1, labeled by the current state of a pod.",
        "# TYPE karpenter_pods_state gauge",
        'karpenter_pods_state{cluster="dev",name="b"} 1.0',
        'karpenter_pods_state{cluster="dev",name="a\\"\\\\\\n"} 1.0',
    ]
    assert text.endswith("\n")


def test_no_samples_are_an_empty_text():
    """An empty cluster is not an error."""
    assert to_text_format([], constant={}) == ""


def test_undeclared_metric_is_rejected():
    """It has neither kind nor help."""
    with pytest.raises(KeyError):
        to_text_format([gauge("karpenter_made_up", 1)], constant={})
