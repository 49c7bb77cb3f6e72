"""Invariants that no scenario may violate, in the order of their checks."""

from __future__ import annotations

from typing import Final

from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.invariants.consistency_invariants import (
    CommandsSeeMachines,
    HealthyPoolsServe,
    InstancesOfOthersUntouched,
    NodesWithoutClaimKeepPods,
    RemovalsForInconsistencyBounded,
)
from journeyman_simulator.faults.invariants.disruption_invariants import (
    ConsolidationLowersPrice,
    EvictionCapsHold,
    FleetPlansEnd,
    PausedNodePoolsKeepNodes,
    ReplacementsInitializedFirst,
    UnhealthyNodesReplaced,
)
from journeyman_simulator.faults.invariants.instance_invariants import (
    InstancesDrainedFirst,
    NoOrphanedInstance,
    OneInstancePerNodeClaim,
)
from journeyman_simulator.faults.invariants.nodepool_invariants import (
    DisruptionBudgetsHold,
    NodePoolLimitsHold,
    ScheduleEntriesHaveWindows,
    StaticNodePoolsKeepReplicas,
)
from journeyman_simulator.faults.invariants.pod_invariants import (
    LaunchesPerPodBounded,
    PodsEvictedAsAllowed,
    SchedulablePodsRun,
)
from journeyman_simulator.faults.invariants.progress_invariants import (
    NothingStuck,
    OnlyExpectedErrors,
    UnfinishedWorkHasARequeue,
)

ALL_CHECKERS: Final[tuple[type[InvariantChecker], ...]] = (
    OneInstancePerNodeClaim,
    NoOrphanedInstance,
    PodsEvictedAsAllowed,
    InstancesDrainedFirst,
    DisruptionBudgetsHold,
    NodePoolLimitsHold,
    ScheduleEntriesHaveWindows,
    StaticNodePoolsKeepReplicas,
    ReplacementsInitializedFirst,
    ConsolidationLowersPrice,
    PausedNodePoolsKeepNodes,
    EvictionCapsHold,
    FleetPlansEnd,
    SchedulablePodsRun,
    LaunchesPerPodBounded,
    UnhealthyNodesReplaced,
    UnfinishedWorkHasARequeue,
    NothingStuck,
    OnlyExpectedErrors,
    RemovalsForInconsistencyBounded,
    NodesWithoutClaimKeepPods,
    InstancesOfOthersUntouched,
    CommandsSeeMachines,
    HealthyPoolsServe,
)
