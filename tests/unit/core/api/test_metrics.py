"""The metric table is the only place where a metric is declared."""

import re
from pathlib import Path

import journeyman
from journeyman.core.api.metrics import METRICS

SOURCE = Path(journeyman.__file__).parent


def test_every_metric_that_the_product_names_is_declared():
    """An undeclared one would have no kind and no help, and nobody would find it."""
    named = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r'"((?:karpenter|journeyman)_[a-z_]+)"', path.read_text())
    }
    assert named <= METRICS.keys()


def test_names_follow_the_conventions():
    """Counters end in _total, durations in _seconds; a prefix tells Karpenter's from ours; labels are distinct."""
    for name, metric in METRICS.items():
        assert name == metric.name
        assert name.startswith(("karpenter_", "journeyman_"))
        assert (metric.kind == "counter") == name.endswith("_total")
        assert "duration" not in name or name.endswith("_seconds")
        assert len(set(metric.labels)) == len(metric.labels)
        assert metric.help.endswith(".")
