"""FleetPlan (`journeyman.dev/v1alpha1`): the moves from a cluster's nodes to a cheaper fleet, and how far they are.

The consolidate step creates the object with its first commands. Each move becomes a NodeDisruption with the method
`fleet-plan`; their phases say how far the plan is, and `status` keeps that when old NodeDisruptions are deleted.

::

    Running ─► Completed   (every move is done)
       └─────► Superseded  (a move failed or is no longer valid; what was done stays, and the rest is planned again)
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from journeyman.core.api.model import Int, Metadata, Model, Time, crd, rules
from journeyman.core.api.node_disruption import Price
from journeyman.core.api.objects import ObjectMeta

MAX_MOVES: Final = 1000
MAX_NODES_PER_MOVE: Final = 100
"""As many nodes as Karpenter replaces at once: if a replacement does not come up, so many nodes wait for the next attempt."""
MAX_NODES: Final = 5000
"""Of all moves together: an object of their names has about 300 kB."""

_Name = Annotated[str, Field(max_length=253)]
MoveState = Literal["Running", "Done", "Failed"]
PlanPhase = Literal["Running", "Completed", "Superseded"]


class FleetPlanMove(Model):
    """A move: nodes that are deleted together, and what is launched for their pods."""

    name: _Name = Field(min_length=1, description="Name of the move: that of its first NodeClaim.")
    node_claims: tuple[_Name, ...] = Field(
        min_length=1,
        max_length=MAX_NODES_PER_MOVE,
        description="NodeClaims to delete, by name.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )
    replacements: tuple[_Name, ...] = Field(
        default=(),
        max_length=MAX_NODES_PER_MOVE,
        description="Cheapest offering of each node to launch, as instance type/zone/capacity type.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )
    after: tuple[_Name, ...] = Field(
        default=(),
        max_length=MAX_MOVES,
        description="Moves that must be done before, because some pods go to the nodes that they launch.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )
    saving_per_hour: Price = Field(default="0", description="Price per hour that the move saves.")
    evictions: Int = Field(default=0, ge=0, description="Pods that the move evicts, each once.")


class FleetPlanSpec(Model):
    """`spec` of a FleetPlan: the moves. Immutable."""

    model_config = ConfigDict(json_schema_extra=rules(("spec is immutable", "self == oldSelf")))

    moves: tuple[FleetPlanMove, ...] = Field(
        default=(),
        max_length=MAX_MOVES,
        description="Moves, in the order in which they start as budgets allow. None: no move is worthwhile in this cluster.",
    )
    examined: str = Field(
        default="",
        max_length=64,
        description="Digest of the nodes for which no move is worthwhile, not to solve them again.",
    )
    price_before: Price = Field(default="0", description="Price per hour of all nodes considered.")
    price_after: Price = Field(default="0", description="Price per hour once all moves are done.")
    lower_bound: Price = Field(default="0", description="A price per hour that no fleet for these pods is below.")
    evictions: Int = Field(default=0, ge=0, description="Pods that all moves evict, each once.")
    created_at: Time | None = Field(default=None, description="Time of the decision.")
    explanation: str = Field(default="", max_length=4096, description="Summary of the plan for people.")


class StartedMove(Model):
    """A move that was started: its command, and how far it is."""

    name: _Name = Field(min_length=1, description="Name of the move.")
    state: MoveState = Field(description="Running, Done or Failed. A move that is not listed is pending.")
    node_disruption: _Name = Field(default="", description="NodeDisruption of the move.")


class FleetPlanStatus(Model):
    """`status` of a FleetPlan: its progress."""

    phase: PlanPhase = Field(
        default="Running",
        description="Running; Completed (every move is done); or Superseded (the rest is planned again).",
    )
    moves: tuple[StartedMove, ...] = Field(
        default=(), max_length=MAX_MOVES, description="Moves that were started, in the order of the plan."
    )
    done: Int = Field(default=0, ge=0, description="How many moves are done.")
    message: str = Field(default="", max_length=4096, description="Why the plan ended.")
    finished_at: Time | None = Field(default=None, description="Time at which the plan ended.")


class FleetPlan(Model):
    """A plan for all nodes of a cluster: ordered moves, each a disruption command."""

    api_version: Literal["journeyman.dev/v1alpha1"] = "journeyman.dev/v1alpha1"
    kind: Literal["FleetPlan"] = "FleetPlan"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    spec: FleetPlanSpec
    status: FleetPlanStatus = Field(default_factory=FleetPlanStatus)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.status.phase == "Running"

    @property
    def since(self) -> datetime | None:
        """The time of the decision; the creation of the object if the spec does not say."""
        return self.spec.created_at or self.metadata.creation_timestamp
