"""How long simulated instances take."""

from __future__ import annotations

from msgspec import Struct


class InstanceTiming(Struct, frozen=True, kw_only=True):
    """How long an instance stays in each state, and how late DescribeInstances learns of a new one; seconds."""

    pending_seconds: float = 8
    shutting_down_seconds: float = 30
    terminated_visible_seconds: float = 3600  # "remains visible for about an hour", EC2 user guide
    interruption_notice_seconds: float = 120  # the two-minute warning
    describe_lag_seconds: float = 0
