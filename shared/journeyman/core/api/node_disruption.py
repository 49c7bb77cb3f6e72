"""NodeDisruption (`journeyman.dev/v1alpha1`): one disruption command, its progress and its result.

The consolidate step creates the object before it taints the first node, so that the next run can finish or roll back a
command whose run crashed. Finished commands are kept as history (settings DISRUPTION_HISTORY_LIMIT and DISRUPTION_HISTORY_AGE).
Prices are decimal text in the provider's currency per hour, because the Kubernetes API has no floating point; `saving` is the
number.

::

    Proposed ─► Validated ─► Replacing ─► Draining ─► Succeeded
       │            │            │            │
       │            └────────────┴────────────┴─► RolledBack
       ├─► Rejected  (validation failed)
       └─► Expired   (it was not validated in time)

A delete command has no replacements, and is never Replacing.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from journeyman.core.api.churn_ledger import EvictedWorkload
from journeyman.core.api.conditions import Conditions
from journeyman.core.api.model import Metadata, Model, Time, crd, rules
from journeyman.core.api.objects import ObjectMeta

Reason = Literal["Underutilized", "Empty", "Drifted", "Interrupted", "Hibernated"]
Decision = Literal["delete", "replace"]
Method = Literal[
    "rebalance", "hibernation", "emptiness", "static-drift", "drift", "fleet-plan", "multi-node", "single-node"
]
Phase = Literal["Proposed", "Validated", "Replacing", "Draining", "Succeeded", "RolledBack", "Rejected", "Expired"]

UNDONE: Final[frozenset[str]] = frozenset({"RolledBack", "Rejected", "Expired"})
"""Phases of commands that ended without deleting their candidates."""
FINISHED: Final[frozenset[str]] = frozenset({"Succeeded"}) | UNDONE

MAX_WORKLOADS_LISTED: Final = 500

_PRICE_PATTERN: Final = r"^-?[0-9]{1,12}(\.[0-9]{1,9})?$"


def price_text(price: float | Decimal) -> str:
    """Return a number as decimal text with at most nine decimals and no exponent."""
    text = f"{price:.9f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


Price = Annotated[str, Field(pattern=_PRICE_PATTERN, max_length=24)]
"""Decimal text, as `price_text` returns it."""

_Name = Annotated[str, Field(max_length=253)]


class DisruptionCandidate(Model):
    """A node that the command disrupts."""

    node_claim: _Name = Field(min_length=1, description="Name of the NodeClaim to delete.")
    node_claim_uid: _Name = Field(default="", alias="nodeClaimUID", description="UID of the NodeClaim to delete.")
    node: _Name = Field(default="", description="Name of the Node.")
    node_pool: _Name = Field(default="", description="Name of the NodePool.")
    instance_type: _Name = Field(default="", description="Instance type of the Node.")
    zone: _Name = Field(default="", description="Zone of the Node.")
    capacity_type: _Name = Field(default="", description="Capacity type of the Node: on-demand, spot or reserved.")
    price: Price = Field(default="0", description="Price of the Node per hour; 0 if unknown.")
    pods: tuple[Annotated[str, Field(max_length=512)], ...] = Field(
        default=(),
        max_length=1000,
        description="Pods that must be rescheduled to another node, as namespace/name.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )


class DisruptionReplacement(Model):
    """A NodeClaim that the command launches before it deletes the candidates."""

    name: _Name = Field(min_length=1, description="Name of the replacement NodeClaim.")
    instance_type: _Name = Field(default="", description="Instance type of the cheapest compatible offering.")
    instance_types: tuple[_Name, ...] = Field(
        default=(),
        max_length=1000,
        description="All instance types that the launch may choose.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )
    zone: _Name = Field(default="", description="Zone of the cheapest compatible offering.")
    capacity_type: _Name = Field(default="", description="Capacity type of the cheapest compatible offering.")
    price: Price = Field(default="0", description="Price of the cheapest compatible offering per hour.")


class LaunchedReplacement(Model):
    """A replacement as it was launched, which may be another offering than the cheapest one that was planned."""

    name: _Name = Field(min_length=1, description="Name of the replacement NodeClaim.")
    instance_type: _Name = Field(default="", description="Instance type that was launched.")
    zone: _Name = Field(default="", description="Zone in which it was launched.")
    capacity_type: _Name = Field(default="", description="Capacity type that was launched.")
    price: Price = Field(default="0", description="Price of the launched offering per hour; 0 if unknown.")


class UsedBudget(Model):
    """What a command used of a NodePool's budgets when it was validated."""

    node_pool: _Name = Field(min_length=1, description="Name of the NodePool.")
    nodes: int = Field(default=0, ge=0, description="Nodes that the command disrupts.")
    disrupting: int = Field(default=0, ge=0, description="Nodes that used the budgets before the command.")
    allowed: int = Field(default=0, ge=0, description="Nodes that the active budgets allowed in all.")


class NodeDisruptionSpec(Model):
    """`spec` of a NodeDisruption: the decision. Immutable."""

    model_config = ConfigDict(json_schema_extra=rules(("spec is immutable", "self == oldSelf")))

    reason: Reason = Field(
        description="Reason for the disruption: Underutilized, Empty, Drifted, Interrupted or Hibernated."
    )
    decision: Decision = Field(description="delete the candidates, or replace them by new nodes.")
    method: Method = Field(description="Disruption method that found the candidates.")
    candidates: tuple[DisruptionCandidate, ...] = Field(
        min_length=1, max_length=1000, description="Nodes to disrupt, highest savings first."
    )
    replacements: tuple[DisruptionReplacement, ...] = Field(
        default=(), max_length=1000, description="NodeClaims to launch before the candidates are deleted."
    )
    saving_per_hour: Price = Field(
        default="0", description="Price per hour that the command saves, as decimal text; negative if it costs more."
    )
    workloads: tuple[EvictedWorkload, ...] = Field(
        default=(),
        max_length=MAX_WORKLOADS_LISTED,
        description="Workloads whose pods the command moves; those with journeyman.dev/max-evictions-per-day first, then those with most pods.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )
    created_at: Time | None = Field(default=None, description="Time of the decision.")
    explanation: str = Field(default="", max_length=4096, description="Summary of the decision for people.")

    @property
    def saving(self) -> float:
        """`savingPerHour` as a number."""
        return float(self.saving_per_hour)


class NodeDisruptionStatus(Model):
    """`status` of a NodeDisruption: its progress."""

    phase: Phase = Field(
        default="Proposed",
        description="Proposed; Validated; Replacing (launching replacements); Draining (deleting candidates); then Succeeded, RolledBack (undone after it started), Rejected (validation failed) or Expired (not validated in time).",
    )
    messages: tuple[Annotated[str, Field(max_length=4096)], ...] = Field(
        default=(), max_length=100, description="Changes of phase with time and reason, oldest first."
    )
    conditions: Conditions = Field(default=(), description="Conditions of the command.")
    started_at: Time | None = Field(default=None, description="Time at which the command was validated and started.")
    draining_at: Time | None = Field(default=None, description="Time at which its candidates were deleted.")
    finished_at: Time | None = Field(
        default=None, description="Time at which the command succeeded, was rolled back or rejected, or expired."
    )
    budgets: tuple[UsedBudget, ...] = Field(
        default=(), max_length=1000, description="What the command used of each NodePool's budgets when it started."
    )
    replacements: tuple[LaunchedReplacement, ...] = Field(
        default=(), max_length=1000, description="The replacements as they were launched."
    )
    price_before: Price = Field(default="0", description="Price of the deleted candidates per hour.")
    price_after: Price = Field(default="0", description="Price of the launched replacements per hour.")
    evicted_pods: int = Field(
        default=0, ge=0, description="Pods on the candidates when these were deleted, which their drain evicts."
    )


class NodeDisruption(Model):
    """A disruption command: the nodes to disrupt, their replacements, and its progress."""

    api_version: Literal["journeyman.dev/v1alpha1"] = "journeyman.dev/v1alpha1"
    kind: Literal["NodeDisruption"] = "NodeDisruption"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    spec: NodeDisruptionSpec
    status: NodeDisruptionStatus = Field(default_factory=NodeDisruptionStatus)

    @property
    def finished(self) -> bool:
        """Whether the command succeeded, was rolled back or rejected, or expired."""
        return self.status.phase in FINISHED

    @property
    def since(self) -> datetime | None:
        """The time of the decision; the creation of the object if the spec does not say."""
        return self.spec.created_at or self.metadata.creation_timestamp

    @property
    def claims(self) -> tuple[str, ...]:
        """Names of the candidates' NodeClaims."""
        return tuple(candidate.node_claim for candidate in self.spec.candidates)
