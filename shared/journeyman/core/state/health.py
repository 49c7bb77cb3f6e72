"""What says that a node or its instance is sick: a provider's repair policies, and what the cloud's own checks find."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct


class RepairPolicy(Struct, frozen=True, kw_only=True):
    """A node whose `condition` has had this `status` for longer than `tolerated_for` is to be replaced.

    Restates: karpenter pkg/cloudprovider/types.go `RepairPolicy`.
    """

    condition: str
    status: str  # "True", "False" or "Unknown"
    tolerated_for: timedelta


class InstanceStatus(Struct, frozen=True, kw_only=True):
    """One check of the cloud's own that an instance fails, or one event that the cloud has planned for it.

    `category` is what kind of check (InstanceStatus, SystemStatus, EventStatus), `name` which one; `since` is when it
    began to fail, None for an event: that is to come.
    """

    provider_id: str
    category: str
    name: str
    since: datetime | None = None
