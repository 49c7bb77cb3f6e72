"""Status conditions: their names, how they are set, and how `Ready` is derived from them.

Every kind has *dependent* conditions, from which `Ready` is derived.

Restates: awslabs/operatorpkg status/condition_set.go.
Differs: conditions with equal transition times are ordered by type, so that the order is total.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field

from journeyman.core.api.duration import time_after
from journeyman.core.api.model import Converted, crd
from journeyman.core.api.objects import Condition, NodeClaim, condition_of, is_true

Status = Literal["True", "False", "Unknown"]

READY: Final = "Ready"

# NodeClaim
LAUNCHED: Final = "Launched"
REGISTERED: Final = "Registered"
INITIALIZED: Final = "Initialized"
CONSOLIDATABLE: Final = "Consolidatable"
DRIFTED: Final = "Drifted"
DRAINED: Final = "Drained"
VOLUMES_DETACHED: Final = "VolumesDetached"
INSTANCE_TERMINATING: Final = "InstanceTerminating"
CONSISTENT_STATE_FOUND: Final = "ConsistentStateFound"
DISRUPTION_REASON: Final = "DisruptionReason"
EXPIRED: Final = "Expired"
"""The reason of DisruptionReason while a node that expires soon is replaced; the others are those of commands."""
DISRUPTABLE: Final = (
    "Disruptable"  # ours: False with the reason why the node stays (`core.disruption.disruptable_condition`)
)

# NodePool
VALIDATION_SUCCEEDED: Final = "ValidationSucceeded"
NODE_CLASS_READY: Final = "NodeClassReady"
NODE_REGISTRATION_HEALTHY: Final = "NodeRegistrationHealthy"

NODECLAIM_DEPENDENTS: Final = (LAUNCHED, REGISTERED, INITIALIZED)
NODEPOOL_DEPENDENTS: Final = (VALIDATION_SUCCEEDED, NODE_CLASS_READY)
NODE_OVERLAY_DEPENDENTS: Final = (VALIDATION_SUCCEEDED,)
EC2NODECLASS_DEPENDENTS: Final = (
    "AMIsReady",
    "SubnetsReady",
    "SecurityGroupsReady",
    "InstanceProfileReady",
    VALIDATION_SUCCEEDED,
)
ECSNODECLASS_DEPENDENTS: Final = ("VSwitchesReady", "SecurityGroupsReady", "ImagesReady", VALIDATION_SUCCEEDED)
ACS_ECSNODECLASS_DEPENDENTS: Final = (
    "VSwitchResolved",
    "SecurityGroupResolved",
    "ImageResolved",
    "RAMRoleResolved",
    VALIDATION_SUCCEEDED,
)
CCENODECLASS_DEPENDENTS: Final = ("SubnetsReady", VALIDATION_SUCCEEDED)

MAX_MESSAGE: Final = 32768
MAX_REASON: Final = 1024
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_AwareTime = Annotated[datetime, msgspec.Meta(tz=True)]

_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "description": "A condition of the object.",
    "required": ["lastTransitionTime", "status", "type"],
    "properties": {
        "lastTransitionTime": {
            "type": "string",
            "format": "date-time",
            "description": "Time at which the status last changed.",
        },
        "message": {"type": "string", "maxLength": MAX_MESSAGE, "description": "Details for people."},
        "observedGeneration": {
            "type": "integer",
            "format": "int64",
            "minimum": 0,
            "description": "The metadata.generation that the condition was set for.",
        },
        "reason": {
            "type": "string",
            "maxLength": MAX_REASON,
            "pattern": "^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?|)$",
            "description": "Reason for the status in one CamelCase word.",
        },
        "status": {
            "type": "string",
            "enum": ["True", "False", "Unknown"],
            "description": "Status of the condition: True, False or Unknown.",
        },
        "type": {
            "type": "string",
            "maxLength": 316,
            "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
            r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
            "description": "Type of the condition.",
        },
    },
}


def format_time(time: datetime) -> str:
    """Return RFC 3339 in UTC with whole seconds, as `metav1.Time` is written."""
    in_utc = time_after(time, timedelta(0)).astimezone(timezone.utc)
    return f"{in_utc.replace(tzinfo=None).isoformat(timespec='seconds')}Z"  # strftime does not pad years before 1000


def parse_time(text: str) -> datetime | None:
    """Return an RFC 3339 time; None if the text is not one, or has no time zone."""
    try:
        return msgspec.convert(text, _AwareTime)
    except msgspec.ValidationError:
        return None


def condition_to_wire(condition: Condition) -> dict[str, Any]:
    """Return one condition as JSON with every field, because CRDs require them even if they have defaults."""
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": format_time(condition.last_transition_time or _EPOCH),
        "observedGeneration": condition.observed_generation,
    }


Conditions = Annotated[
    tuple[Annotated[Condition, Converted(_SCHEMA, condition_to_wire)], ...],
    Field(json_schema_extra=crd(x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["type"])),
]
"""A `status.conditions` field."""


class ConditionSet(Struct, frozen=True, kw_only=True):
    """The conditions of one object, with the fields of the object that their rules need.

    Every change returns a new set; `changed_from` says whether a write is needed.
    """

    conditions: tuple[Condition, ...]
    dependents: tuple[str, ...]
    generation: int
    created: datetime | None
    deleting: bool = False

    @classmethod
    def of_claim(cls, claim: NodeClaim, now: datetime) -> ConditionSet:
        """Return the conditions of a NodeClaim, with missing dependent conditions initialised."""
        metadata = claim.metadata
        return cls(
            conditions=claim.status.conditions,
            dependents=NODECLAIM_DEPENDENTS,
            generation=metadata.generation,
            created=metadata.creation_timestamp,
            deleting=metadata.deletion_timestamp is not None,
        ).initialised(now)

    def get(self, type_: str) -> Condition | None:
        """Return the condition of this type, or None."""
        return condition_of(self.conditions, type_)

    def is_true(self, *types: str) -> bool:
        """Whether all of them are True."""
        return all(is_true(self.conditions, type_) for type_ in types)

    def changed_from(self, before: Iterable[Condition]) -> bool:
        """Whether these conditions differ from `before`, in whatever order."""
        return sorted(self.conditions, key=_by_type) != sorted(before, key=_by_type)

    def initialised(self, now: datetime) -> ConditionSet:
        """Set Ready and every dependent condition that is missing to Unknown, `AwaitingReconciliation`."""
        conditions = self
        for type_ in (READY, *self.dependents):
            if conditions.get(type_) is None:
                conditions = conditions.set(
                    type_, "Unknown", now, "AwaitingReconciliation", "object is awaiting reconciliation"
                )
        return conditions

    def set_true(self, type_: str, now: datetime, reason: str = "", message: str = "") -> ConditionSet:
        """Set to True; the type is the reason if none is given."""
        return self.set(type_, "True", now, reason, message)

    def set_false(self, type_: str, now: datetime, reason: str, message: str = "") -> ConditionSet:
        """Set to False with this reason."""
        return self.set(type_, "False", now, reason, message)

    def set_unknown(self, type_: str, now: datetime, reason: str, message: str = "") -> ConditionSet:
        """Set to Unknown with this reason."""
        return self.set(type_, "Unknown", now, reason, message)

    def set(self, type_: str, status: Status, now: datetime, reason: str, message: str = "") -> ConditionSet:
        """Set one condition at the current generation, then derive Ready.

        The transition time changes only with the status. A dependent condition that is new has the object's creation as
        its transition time.
        """
        updated = self._put(type_, status, now, reason, message)
        if updated is self or type_ == READY:
            return updated
        return updated._ready(now)  # noqa: SLF001 - its own class

    def clear(self, *types: str) -> ConditionSet:
        """Remove conditions that Ready does not depend on; missing ones are ignored.

        Raises:
            ValueError: One of them is Ready or a dependent condition.
        """
        if required := [type_ for type_ in types if type_ == READY or type_ in self.dependents]:
            raise ValueError(f"{', '.join(required)} cannot be removed: Ready depends on it")
        return replace(self, conditions=tuple(c for c in self.conditions if c.type not in types))

    def to_wire(self) -> list[dict[str, Any]]:
        """Return the list for `status.conditions`."""
        return to_wire(self.conditions)

    def _put(self, type_: str, status: Status, now: datetime, reason: str, message: str) -> ConditionSet:
        dependent = type_ == READY or type_ in self.dependents
        after = set_condition(
            self.conditions,
            type_,
            status,
            now=now,
            generation=self.generation,
            reason=reason,
            message=message,
            since=self.created if dependent else None,
        )
        if after is self.conditions:
            return self
        # the other conditions of a deleting object are no longer reconciled: they count as observed
        return replace(self, conditions=_observed(after, self.generation) if self.deleting else after)

    def _ready(self, now: datetime) -> ConditionSet:
        unmet = [
            c
            for c in self.conditions
            if c.type in self.dependents and (c.status != "True" or c.observed_generation != self.generation)
        ]
        if not unmet:
            return self._put(READY, "True", now, READY, "")
        unmet.sort(key=lambda c: c.type)
        unmet.sort(key=_since, reverse=True)
        message = ", ".join(f"{c.type}={c.status}" for c in unmet)
        if any(c.status == "False" and c.observed_generation == self.generation for c in unmet):
            return self._put(READY, "False", now, "UnhealthyDependents", message)
        return self._put(READY, "Unknown", now, "ReconcilingDependents", message)


def set_condition(
    conditions: tuple[Condition, ...],
    type_: str,
    status: Status,
    *,
    now: datetime,
    generation: int,
    reason: str = "",
    message: str = "",
    since: datetime | None = None,
) -> tuple[Condition, ...]:
    """Return the conditions with one of them set, without deriving Ready; the same tuple if nothing changes.

    Args:
        conditions: The object's conditions, any order.
        type_: The condition to set.
        status: Its status; the transition time changes only with it.
        now: The transition time of a change, and of a new condition if `since` is None.
        generation: The object's generation, for `observedGeneration`.
        reason: One word; the type if empty.
        message: Details for people; cut at the API's limit.
        since: Transition time of a new condition.

    Returns:
        Ordered by transition time, then type, Ready last.
    """
    before = condition_of(conditions, type_)
    transition = since if before is None else before.last_transition_time if before.status == status else None
    after = Condition(
        type=type_,
        status=status,
        reason=reason or type_,
        message=message[:MAX_MESSAGE],
        last_transition_time=transition or now,
        observed_generation=generation,
    )
    if after == before:
        return conditions
    return tuple(sorted((*(c for c in conditions if c.type != type_), after), key=_ready_last))


def to_wire(conditions: Iterable[Condition]) -> list[dict[str, Any]]:
    """Return the list for `status.conditions`."""
    return [condition_to_wire(condition) for condition in conditions]


def _observed(conditions: Iterable[Condition], generation: int) -> tuple[Condition, ...]:
    return tuple(msgspec.structs.replace(c, observed_generation=generation) for c in conditions)


def _by_type(condition: Condition) -> str:
    return condition.type


def _since(condition: Condition) -> float:
    time = condition.last_transition_time
    return time.timestamp() if time is not None else 0.0


def _ready_last(condition: Condition) -> tuple[bool, float, str]:
    return (condition.type == READY, _since(condition), condition.type)
