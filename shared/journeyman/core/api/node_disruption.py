"""NodeDisruption (`journeyman.dev/v1alpha1`): one decision to give nodes back, its progress and its end.

It is written before the first taint, so a run that dies leaves behind what the next one must finish or undo; once it is
over it stays for a while as history. Prices are decimal text in the provider's currency per hour, because the
Kubernetes API has no floating point; `price` and `saving` give them as numbers.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from journeyman.core.api.conditions import Conditions
from journeyman.core.api.model import Metadata, Model, Time, crd, rules
from journeyman.core.api.objects import ObjectMeta

Reason = Literal["Underutilized", "Empty", "Drifted", "Interrupted"]
Decision = Literal["delete", "replace"]
Method = Literal["rebalance", "emptiness", "static-drift", "drift", "multi-node", "single-node"]
Phase = Literal["Proposed", "Executing", "Succeeded", "RolledBack", "Rejected"]

FINISHED: Final[frozenset[str]] = frozenset({"Succeeded", "RolledBack", "Rejected"})

_PRICE_PATTERN: Final = r"^-?[0-9]{1,12}(\.[0-9]{1,9})?$"


def price_text(price: float | Decimal) -> str:
    """A number as decimal text with at most nine decimals, no exponent."""
    text = f"{price:.9f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


Price = Annotated[str, Field(pattern=_PRICE_PATTERN, max_length=24)]
"""Decimal text; `price_text` makes it."""

_Name = Annotated[str, Field(max_length=253)]


class DisruptionCandidate(Model):
    """A node that is given back."""

    node_claim: _Name = Field(min_length=1, description="Name of the NodeClaim.")
    node_claim_uid: _Name = Field(default="", alias="nodeClaimUID", description="UID of the NodeClaim.")
    node: _Name = Field(default="", description="Name of the Node.")
    node_pool: _Name = Field(default="", description="Name of the NodePool.")
    instance_type: _Name = Field(default="", description="Its instance type.")
    zone: _Name = Field(default="", description="Its zone.")
    capacity_type: _Name = Field(default="", description="on-demand, spot or reserved.")
    price: Price = Field(default="0", description="What it costs per hour; 0 if unknown.")
    pods: tuple[Annotated[str, Field(max_length=512)], ...] = Field(
        default=(),
        max_length=1000,
        description="The pods that must find another place, as namespace/name.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )


class DisruptionReplacement(Model):
    """A NodeClaim that is opened first."""

    name: _Name = Field(min_length=1, description="Name of the NodeClaim.")
    instance_type: _Name = Field(default="", description="The cheapest instance type it may get.")
    zone: _Name = Field(default="", description="The zone of that offering.")
    capacity_type: _Name = Field(default="", description="The capacity type of that offering.")
    price: Price = Field(default="0", description="What that offering costs per hour.")


class NodeDisruptionSpec(Model):
    """`spec` of a NodeDisruption: what was decided. Immutable."""

    model_config = ConfigDict(json_schema_extra=rules(("spec is immutable", "self == oldSelf")))

    reason: Reason = Field(description="Why: Underutilized, Empty, Drifted or Interrupted.")
    decision: Decision = Field(description="delete the nodes, or replace them.")
    method: Method = Field(description="Which way of looking found it.")
    candidates: tuple[DisruptionCandidate, ...] = Field(
        min_length=1, max_length=1000, description="The nodes that are given back, most valuable first."
    )
    replacements: tuple[DisruptionReplacement, ...] = Field(
        default=(), max_length=1000, description="The NodeClaims that are opened first."
    )
    saving_per_hour: Price = Field(
        default="0", description="Price per hour saved once it is done, as decimal text; negative if it costs more."
    )
    created_at: Time | None = Field(default=None, description="When it was decided.")
    explanation: str = Field(default="", max_length=4096, description="The decision in words.")

    @property
    def saving(self) -> float:
        """`savingPerHour` as a number."""
        return float(self.saving_per_hour)


class NodeDisruptionStatus(Model):
    """`status` of a NodeDisruption: how far it came."""

    phase: Phase = Field(
        default="Proposed",
        description="Proposed, Executing, then Succeeded, RolledBack (undone) or Rejected (not begun).",
    )
    messages: tuple[Annotated[str, Field(max_length=4096)], ...] = Field(
        default=(), max_length=100, description="What happened, oldest first."
    )
    conditions: Conditions = Field(default=(), description="Details of its progress.")
    started_at: Time | None = Field(default=None, description="When the first node was tainted.")
    finished_at: Time | None = Field(default=None, description="When it ended.")
    regretted_for: tuple[Annotated[str, Field(max_length=512)], ...] = Field(
        default=(),
        max_length=1000,
        description="Workloads, as namespace/name, whose pods had to move, if one of them got a new node soon after.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )


class NodeDisruption(Model):
    """One decision to give nodes back, its progress and its end."""

    api_version: Literal["journeyman.dev/v1alpha1"] = "journeyman.dev/v1alpha1"
    kind: Literal["NodeDisruption"] = "NodeDisruption"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    spec: NodeDisruptionSpec
    status: NodeDisruptionStatus = Field(default_factory=NodeDisruptionStatus)

    @property
    def finished(self) -> bool:
        """Whether it has ended, one way or another."""
        return self.status.phase in FINISHED

    @property
    def since(self) -> datetime | None:
        """When it was decided; the object's creation if the spec does not say."""
        return self.spec.created_at or self.metadata.creation_timestamp

    @property
    def claims(self) -> tuple[str, ...]:
        """Names of the NodeClaims it gives back."""
        return tuple(candidate.node_claim for candidate in self.spec.candidates)
