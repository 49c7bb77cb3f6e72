"""Whose fault a failed launch is, and until when nothing is launched that has the same fault.

A launch fails because of one offering of the account (`OfferingState.status.unavailable`), or because of an object: a
NodeClass, a NodePool, a subnet, or the account as a whole. Only what has the fault is skipped, so that one mistake does not
stop the other NodePools.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Final, NamedTuple

from msgspec import Struct


class FaultScope(str, Enum):
    """The kind of object whose fault a failed launch is."""

    OFFERING = "Offering"  # of the account: another instance type, zone or capacity type may launch
    NODE_CLASS = "NodeClass"
    NODE_POOL = "NodePool"
    SUBNET = "Subnet"
    ACCOUNT = "Account"


class FaultKey(NamedTuple):
    """The object at fault; the name is empty for the account."""

    scope: FaultScope
    name: str

    def __str__(self) -> str:
        """Return the object as messages name it."""
        return "the account" if self.scope is FaultScope.ACCOUNT else f"{self.scope.value} {self.name}"


_OUTSIDE: Final = frozenset({"Unauthorized", "QuotaExceeded", "DiskQuotaExceeded", "VolumeQuotaExceeded"})


class LaunchFault(Struct, frozen=True, kw_only=True):
    """Why a launch failed, and whose fault it is.

    Attributes:
        scope: The kind of object at fault.
        name: The object's name, a subnet's id, or empty for the account.
        reason: The reason of conditions and Events, in CamelCase.
        message: What happened, in the cloud's own words.
        remedy: The command to run, or the field to change.
    """

    scope: FaultScope
    name: str
    reason: str
    message: str
    remedy: str

    @property
    def key(self) -> FaultKey:
        """The object at fault."""
        return FaultKey(self.scope, self.name)

    @property
    def is_mended_outside(self) -> bool:
        """Whether a change of the account mends it, such as a payment, a right or a quota, of which the cluster learns nothing."""
        return self.scope is FaultScope.ACCOUNT or self.reason in _OUTSIDE

    @property
    def text(self) -> str:
        """The message with the remedy."""
        return f"{self.message.rstrip('.')}. {self.remedy}" if self.remedy else self.message


class LaunchBackoff(Struct, frozen=True, kw_only=True):
    """A fault that launches had, as an OfferingState records it.

    Attributes:
        fault: The fault of the last failed launch.
        failures: How many launches failed since the last success.
        until: Until when nothing is launched that has this fault.
        generations: The generations of the objects at the failure (`generations_of`); empty if they do not matter.
        is_over: Whether `until` has passed: one launch may try whether the fault is mended.
        node_class: The NodeClass in whose OfferingState it is recorded.
    """

    fault: LaunchFault
    failures: int
    until: datetime
    generations: str = ""
    is_over: bool = False
    node_class: str = ""


MAX_REMEDY: Final = 1024
MAX_MESSAGE: Final = 2048


def shortened(text: str, limit: int) -> str:
    """Return the text, cut to `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
