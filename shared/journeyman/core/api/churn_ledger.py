"""ChurnLedger (`journeyman.dev/v1alpha1`): how often pods were evicted and nodes launched, per workload and NodePool and hour.

One object, `cluster`, for the whole cluster. The consolidate step alone writes it, but for `unusedLaunches`, which the provision
step alone writes (`core.lifecycle.unused_launches`). It is derived from NodeDisruptions and
NodeClaims (`core.disruption.churn_counts`): a lost write is made up by the next run, and if the object is deleted, the next
run counts the NodeDisruptions that still exist again.

Counters are lists of whole numbers, one for each hour: the first one is that of the hour `status.hour`, the next one that of
the hour before. Trailing zeros are left out. So the object stays small: at most 25 numbers for each of three counters of 500
workloads and 200 NodePools, and 200 entries of unused launches.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from journeyman.core.api.model import Int, Metadata, Model, Time, crd
from journeyman.core.api.objects import ObjectMeta

LEDGER_NAME: Final = "cluster"
HOURS: Final = 25
"""The hours that are counted: the current one and 24 full ones, so that no 24 hours are undercounted."""
MAX_WORKLOADS: Final = 500
MAX_NODE_POOLS: Final = 200
MAX_COMMANDS: Final = 1000
MAX_UNUSED: Final = 200
MAX_UNUSED_PODS: Final = 20
"""Pods that an entry of unused launches names; one for more pods is for all pods like them."""
MAX_UNUSED_MESSAGE: Final = 1024
MAX_COUNT: Final = 1_000_000
"""The largest count of an hour; larger ones are stored as this one."""

_Name = Annotated[str, Field(max_length=253)]
_Counter = Annotated[
    tuple[Annotated[Int, Field(ge=0, le=MAX_COUNT)], ...],
    Field(max_length=HOURS, json_schema_extra=crd(x_kubernetes_list_type="atomic")),
]


class WorkloadRef(Model):
    """A workload: the controller of pods."""

    kind: _Name = Field(
        min_length=1, description="Kind of the controller, such as Deployment; Pod for pods without one."
    )
    namespace: _Name = Field(min_length=1, description="Namespace of the workload.")
    name: _Name = Field(min_length=1, description="Name of the workload.")
    uid: _Name = Field(default="", description="UID of the workload; empty for Deployments and Rollouts.")


class EvictedWorkload(WorkloadRef):
    """A workload whose pods a command moves."""

    pods: Int = Field(default=0, ge=0, description="Number of its pods that the command moves.")


class ChurnCounters(Model):
    """Counters by hour, the latest hour first."""

    evictions: _Counter = Field(default=(), description="Pods that disruption commands moved, by hour.")
    launches: _Counter = Field(default=(), description="NodeClaims that were created, by hour.")
    reversals: _Counter = Field(
        default=(), description="Consolidations that a launch of a node for the moved workloads reversed, by hour."
    )


class WorkloadChurn(ChurnCounters, WorkloadRef):
    """Counters of one workload."""

    held_until: Time | None = Field(default=None, description="Time until which consolidation leaves it alone.")


class NodePoolChurn(ChurnCounters):
    """Counters of one NodePool."""

    name: _Name = Field(min_length=1, description="Name of the NodePool.")


class CountedCommand(Model):
    """A NodeDisruption that the counters contain."""

    name: _Name = Field(min_length=1, description="Name of the NodeDisruption.")
    is_counted: Annotated[bool, Field(strict=True)] = Field(
        default=False, description="Whether its evictions are counted; so once it has finished."
    )
    reversed_by: _Name = Field(default="", description="NodeClaim that was launched for the workloads that it moved.")


class UnusedLaunches(WorkloadRef):
    """Nodes that were launched for pods of a workload, joined, and were not used by these pods."""

    pod_hash: _Name = Field(
        min_length=1, description="Hash of what schedules the pods; other pods of the workload are not meant."
    )
    pods: tuple[_Name, ...] = Field(
        default=(),
        max_length=MAX_UNUSED_PODS,
        description="UIDs of the pods; empty for all pods of the workload with this hash.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )
    launches: Int = Field(
        default=0, ge=0, description="Number of launches that were not used, one for nodes launched together."
    )
    counted_at: Time = Field(description="Time of the last count; nodes that were launched before are counted.")
    until: Time | None = Field(default=None, description="Time until which no node is launched for the pods.")
    situation: _Name = Field(
        default="",
        description="Hash of the NodePools, the NodeClasses and what is known of the instance type; a change ends the wait.",
    )
    instance_type: _Name = Field(default="", description="Instance type of the last node.")
    message: str = Field(
        default="", max_length=MAX_UNUSED_MESSAGE, description="What was planned, and what the node offers."
    )


class ChurnLedgerStatus(Model):
    """`status` of a ChurnLedger."""

    hour: Time | None = Field(default=None, description="Start of the hour of the first number of each counter.")
    workloads: tuple[WorkloadChurn, ...] = Field(
        default=(),
        max_length=MAX_WORKLOADS,
        description="Workloads with counters other than zero, or that consolidation leaves alone.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )
    other_evictions: _Counter = Field(
        default=(), description="The most pods of any one workload that is not listed that were moved, by hour."
    )
    node_pools: tuple[NodePoolChurn, ...] = Field(
        default=(),
        max_length=MAX_NODE_POOLS,
        description="NodePools with counters other than zero.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )
    commands: tuple[CountedCommand, ...] = Field(
        default=(),
        max_length=MAX_COMMANDS,
        description="Existing NodeDisruptions that the counters contain.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )
    unused_launches: tuple[UnusedLaunches, ...] = Field(
        default=(),
        max_length=MAX_UNUSED,
        description="Nodes that were launched for pods and not used by them, so that the next launch waits.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )
    launches_until: Time | None = Field(
        default=None, description="Creation time of the last NodeClaim that was counted as a launch."
    )


class ChurnLedger(Model):
    """Evictions, launches and reversed consolidations per workload and NodePool, by hour."""

    api_version: Literal["journeyman.dev/v1alpha1"] = "journeyman.dev/v1alpha1"
    kind: Literal["ChurnLedger"] = "ChurnLedger"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    status: ChurnLedgerStatus = Field(default_factory=ChurnLedgerStatus)
