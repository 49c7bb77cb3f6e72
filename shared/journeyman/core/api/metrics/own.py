"""What Karpenter has no counterpart of."""

from __future__ import annotations

from typing import Final

from journeyman.core.api.metrics.metric import Metric

OWN: Final = (
    Metric(
        "journeyman_plan_defects_total",
        "counter",
        "Plans of which verify rejects a part, or all: that is not carried out.",
    ),
    Metric(
        "journeyman_errors_total",
        "counter",
        "Errors that stopped a run, or a part of it, by their kind.",
        ("controller", "error"),
    ),
    Metric(
        "journeyman_offerings_refused_total",
        "counter",
        "Offerings that the cloud could not give.",
        ("instance_type", "zone", "capacity_type"),
    ),
    Metric("journeyman_kube_requests_total", "counter", "Requests that a run sent to the API server.", ("controller",)),
    Metric("journeyman_kube_retries_total", "counter", "Those of them that repeated another.", ("controller",)),
    Metric("journeyman_kube_sent_bytes_total", "counter", "Bytes of the requests' bodies.", ("controller",)),
    Metric(
        "journeyman_kube_received_bytes_total",
        "counter",
        "Bytes of the answers' bodies, compressed as they came.",
        ("controller",),
    ),
)
