"""The cloud: calls and their errors, what it offers at what price, and what it warns of.

Restates: karpenter pkg/cloudprovider/metrics/cloudprovider.go; karpenter-provider-aws
pkg/controllers/{metrics,interruption}/metrics.go, pkg/providers/{instance,instancetype,launchtemplate}/metrics.go.
"""

from __future__ import annotations

from typing import Final

from journeyman.core.api.metrics.metric import Metric

_CALL: Final = ("controller", "method", "provider")
_OFFERING: Final = ("instance_type", "capacity_type", "zone")

CLOUD: Final = (
    Metric(
        "karpenter_cloudprovider_duration_seconds",
        "histogram",
        "How long calls of the cloud provider took.",
        _CALL,
    ),
    Metric(
        "karpenter_cloudprovider_errors_total",
        "counter",
        "Calls of the cloud provider that failed, by error.",
        (*_CALL, "error"),
    ),
    Metric(
        "karpenter_interruption_received_messages_total",
        "counter",
        "Interruption messages received, by kind.",
        ("message_type",),
    ),
    Metric(
        "karpenter_interruption_message_queue_duration_seconds",
        "histogram",
        "From an interruption event to the run that acted on it.",
    ),
    Metric("karpenter_interruption_deleted_messages_total", "counter", "Interruption messages that are dealt with."),
    Metric(
        "karpenter_interruption_instance_status_unhealthy_total",
        "counter",
        "Instances that the cloud's own checks found wrong, by the kind of check.",
        ("category",),
    ),
    Metric(
        "karpenter_cloudprovider_instance_launch_failures_total",
        "counter",
        "Offerings that a launch asked for in vain, by why.",
        ("zone", "zone_id", "capacity_type", "reason"),
    ),
    Metric(
        "karpenter_cloudprovider_instance_termination_failures_total",
        "counter",
        "Requests to terminate an instance that were refused.",
        ("zone", "zone_id"),
    ),
    Metric(
        "karpenter_cloudprovider_instance_type_cpu_cores", "gauge", "vCPUs of an instance type.", ("instance_type",)
    ),
    Metric(
        "karpenter_cloudprovider_instance_type_memory_bytes",
        "gauge",
        "Memory of an instance type.",
        ("instance_type",),
    ),
    Metric(
        "karpenter_cloudprovider_instance_type_offering_available",
        "gauge",
        "1 if the offering can be had as far as is known, 0 if it is avoided.",
        _OFFERING,
    ),
    Metric(
        "karpenter_cloudprovider_instance_type_offering_price_estimate",
        "gauge",
        "What an instance costs per hour if bought that way.",
        _OFFERING,
    ),
    Metric(
        "karpenter_ec2nodeclasses_userdata_bytes",
        "gauge",
        "Size of the user data that instances of an EC2NodeClass boot with.",
        ("nodeclass",),
    ),
)
