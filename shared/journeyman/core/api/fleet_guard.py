"""FleetGuard (`journeyman.dev/v1alpha1`): what looks lost in a cluster, since when, and what was removed because of that.

One object, `cluster`, for the whole cluster. The terminate step alone writes it, before it removes anything of what it lists. If the
object is deleted, everything that looks lost counts as seen for the first time.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field

from journeyman.core.api.model import Metadata, Model, Time, crd
from journeyman.core.api.objects import ObjectMeta

GUARD_NAME: Final = "cluster"
MAX_LOST: Final = 1000
"""The most objects that are listed; others count as lost once these are gone."""

_Name = Annotated[str, Field(max_length=512)]
LostKind = Literal["Instance", "Node", "NodeClaim"]


class LostObject(Model):
    """An instance or Node without a NodeClaim, or a NodeClaim without an instance or Node."""

    kind: LostKind = Field(description="Instance, Node or NodeClaim.")
    name: _Name = Field(min_length=1, description="Provider id of the instance, or the object's name.")
    uid: _Name = Field(default="", description="UID of the object; empty for an instance.")
    since: Time = Field(description="Time at which it was first seen without its counterpart.")
    removed_at: Time | None = Field(default=None, description="Time at which its removal was decided.")

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies it."""
        return self.kind, self.name, self.uid


class FleetGuardStatus(Model):
    """`status` of a FleetGuard."""

    lost: tuple[LostObject, ...] = Field(
        default=(),
        max_length=MAX_LOST,
        description="Objects that look lost, and those that were removed within the last hour.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )
    held_since: Time | None = Field(
        default=None, description="Time since which removals are held back, because too many objects look lost."
    )
    message: str = Field(default="", max_length=4096, description="What is held back, and what to do.")


class FleetGuard(Model):
    """What looks lost in the cluster, and what was removed because of that."""

    api_version: Literal["journeyman.dev/v1alpha1"] = "journeyman.dev/v1alpha1"
    kind: Literal["FleetGuard"] = "FleetGuard"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    status: FleetGuardStatus = Field(default_factory=FleetGuardStatus)

    def since(self, key: tuple[str, str, str], now: datetime) -> datetime:
        """Return since when an object is lost; now if it is not listed."""
        return next((min(entry.since, now) for entry in self.status.lost if entry.key == key), now)
