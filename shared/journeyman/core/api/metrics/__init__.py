"""Every metric there is, declared once: name, kind, labels and help. Karpenter's keep Karpenter's names and labels.

Decisions name a metric in an `Observation`; whoever exposes it (EMF, Prometheus text, dashboards) reads the rest here.

Those of Karpenter's that are about its own process or its libraries have no counterpart and are left out: batchers,
leader election, `controller_runtime_*`, `workqueue_*`, `rest_client_*`, `aws_sdk_go_*`, and `operator_*` without a kind,
which it has deprecated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from journeyman.core.api.metrics.cloud import CLOUD
from journeyman.core.api.metrics.conditions import CONDITIONS, OBJECT_LABELS, object_label
from journeyman.core.api.metrics.decisions import DISRUPTION, SCHEDULING
from journeyman.core.api.metrics.fleet import NODE_LABELS, NODEPOOLS, NODES, PODS, label_name
from journeyman.core.api.metrics.lifecycle import LIFECYCLE
from journeyman.core.api.metrics.metric import Kind, Metric
from journeyman.core.api.metrics.own import OWN

METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric
    for metric in (
        *LIFECYCLE,
        *SCHEDULING,
        *DISRUPTION,
        *CLOUD,
        *NODES,
        *NODEPOOLS,
        *PODS,
        *CONDITIONS,
        *OWN,
    )
}
"""Every metric by name."""

__all__ = ["METRICS", "NODE_LABELS", "OBJECT_LABELS", "Kind", "Metric", "label_name", "object_label"]
