"""What the cloud says of instances: which exist, for which NodeClaim each was launched, and which are unhealthy."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final, Protocol

from msgspec import Struct

from journeyman.core.api.objects import NodeClaim
from journeyman.core.state.state_node import StateNode


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


TERMINATING_STATES: Final = frozenset({"shutting-down", "terminated"})
"""States of an instance that is on its way out already."""
NOT_RUNNING_STATES: Final = TERMINATING_STATES | {"stopping", "stopped"}
"""States in which no pod runs on it, and none will."""


class RunningInstance(Protocol):
    """What the cloud says of an instance it has for this cluster (`ports.Instance`)."""

    @property
    def provider_id(self) -> str:
        """The cloud's id."""

    @property
    def state(self) -> str:
        """The cloud's word: pending, running, stopping, stopped, shutting-down, terminated."""

    @property
    def launched_at(self) -> datetime:
        """When it was launched."""

    @property
    def claim(self) -> str:
        """The NodeClaim it was launched for, from its tag; empty if unknown."""

    @property
    def claim_uid(self) -> str:
        """That NodeClaim's UID, from its tag; empty if unknown."""


class CloudInstances(Struct, frozen=True, kw_only=True, dict=True):
    """What the cloud said before the cluster was read.

    `listed` are the cluster's instances, those that are on their way out included. `gone` are provider ids of nodes and
    claims that were not among them and, asked for by name, do not exist any more.
    """

    listed: tuple[RunningInstance, ...] = ()
    gone: frozenset[str] = frozenset()

    def find(self, provider_id: str) -> RunningInstance | None:
        """The instance with this id, if it was listed."""
        return self._by_provider_id.get(provider_id)

    def launched_for(self, claim: NodeClaim) -> str:
        """The instance whose tags name this claim; empty if there is none.

        A tag of another UID is that of an earlier claim of the same name. Karpenter's instances have no such tag.
        """
        by_name = self._by_claim.get(("", claim.metadata.name), "")
        return self._by_claim.get((claim.metadata.uid, claim.metadata.name), by_name)

    @cached_property
    def ended(self) -> frozenset[str]:
        """Provider ids of instances that are gone, or stand still."""
        return self.gone | {instance.provider_id for instance in self.listed if instance.state in NOT_RUNNING_STATES}

    def is_stopped(self, state: StateNode) -> bool:
        """Whether the machine was stopped: no pod runs on it, and waiting helps none of the pods bound to it."""
        instance = self.find(state.provider_id)
        return not state.ready and instance is not None and instance.state == "stopped"

    @cached_property
    def _by_provider_id(self) -> Mapping[str, RunningInstance]:
        return {instance.provider_id: instance for instance in self.listed}

    @cached_property
    def _by_claim(self) -> Mapping[tuple[str, str], str]:
        """The first of each, so that several go one after another."""
        ordered = sorted(self.listed, key=lambda i: i.provider_id, reverse=True)
        return {(i.claim_uid, i.claim): i.provider_id for i in ordered if i.claim}
