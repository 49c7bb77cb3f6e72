"""Prometheus' text format: one family after the other, each with its help and kind, values of labels escaped."""

import pytest

from journeyman.core.plan import Observation
from journeyman.observe.prometheus import to_text_format


def gauge(metric, value, **labels):
    return Observation(name=metric, value=value, labels=labels, kind="gauge")


def test_samples_of_a_metric_stand_together_under_its_help_and_kind():
    """As a scraper demands it, in the order of names, with the cluster on each sample."""
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


def test_nothing_is_an_empty_text():
    """A cluster with nothing in it is no error."""
    assert to_text_format([], constant={}) == ""


def test_a_metric_that_is_not_declared_is_refused():
    """It would have neither kind nor help."""
    with pytest.raises(KeyError):
        to_text_format([gauge("karpenter_made_up", 1)], constant={})
