"""Status conditions and deletions of the kinds that are watched over; these names have no prefix of Karpenter's.

Off with DISABLE_CLUSTER_STATE_OBSERVABILITY. NodeClaims and Nodes carry some of their Kubernetes labels on top.

Restates: awslabs/operatorpkg status/metrics.go; karpenter pkg/controllers/controllers.go `NewControllers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.metrics.metric import Metric

_CLASS: Final = f"{labels.AWS_GROUP}/ec2nodeclass"
OBJECT_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "nodeclaim": (_CLASS, labels.NODEPOOL),
    "node": (_CLASS, labels.NODEPOOL, labels.INITIALIZED),
    "nodepool": (),
    "ec2nodeclass": (),
    "nodeoverlay": (),
    "capacitybuffer": (),
}
"""Which Kubernetes labels of an object are labels of its metrics (`object_label`), by kind in lower case."""


def object_label(key: str) -> str:
    """A Kubernetes label as the label of such a metric: whole, in characters that Prometheus takes."""
    return key.replace("/", "_").replace(".", "_").replace("-", "_")


def _of(kind: str) -> Iterator[Metric]:
    own = tuple(object_label(key) for key in OBJECT_LABELS[kind])
    one, condition = ("namespace", "name", *own), ("type", "status")
    prefix = f"operator_{kind}_status_condition"
    yield Metric(
        f"{prefix}_transition_seconds",
        "histogram",
        "How long a condition had a status that it then lost.",
        (*condition, *own),
    )
    yield Metric(
        f"{prefix}_transitions_total",
        "counter",
        "Changes of a condition's status.",
        (*condition, "reason", *own),
    )
    yield Metric(f"{prefix}_count", "gauge", "1 for each condition of an object.", (*one, *condition, "reason"))
    yield Metric(
        f"{prefix}_current_status_seconds",
        "gauge",
        "How long a condition has had its status.",
        (*one, *condition, "reason"),
    )
    yield Metric(
        f"operator_{kind}_termination_current_time_seconds",
        "gauge",
        "How long an object has been in deletion.",
        one,
    )
    yield Metric(
        f"operator_{kind}_termination_duration_seconds",
        "histogram",
        "How long a deletion took.",
        own,
    )


CONDITIONS: Final = tuple(metric for kind in OBJECT_LABELS for metric in _of(kind))
