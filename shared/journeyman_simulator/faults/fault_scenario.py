"""Defines fault scenarios: their setup, operations and faults, as data and as JSON.

A scenario is generated before it runs, so that it can be shrunk, saved and run again. Any part of a scenario is a valid
scenario: a target is an ordinal that is resolved when the operation runs ("the third oldest node", modulo the number of
nodes), and an operation without a target or a fault without a call has no effect.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Literal

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

CAPACITY_TYPES: Final = ("on-demand", "spot")
BROKEN: Final = "broken"
"""The name of a NodePool that launches no node, and of its NodeClass."""
CloudName = Literal["aws", "alibaba", "huawei"]
Policy = Literal["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"]
Breakage = Literal["", "refuses", "ends", "never-joins"]
"""What is wrong with a NodeClass of its own: the cloud refuses its launches, its instances end at boot, or never join."""
ClaimChange = Literal[
    "drop-pool-label",
    "drop-hash",
    "do-not-disrupt",
    "foreign-label",
    "drop-class-label",
    "drop-finalizers",
    "drop-provider-id",
]
ClaimStatusChange = Literal[
    "drop-conditions",
    "drop-status",
    "nonsense-provider-id",
    "nonsense-end",
    "say-registered",
    "say-initialized",
]
"""Edits of a NodeClaim's status or protected fields, which a user makes only by misusing the API."""
ClaimForgery = Literal["other-provider-id", "end-now", "end-late", "say-terminating"]
"""Further such edits: the provider id of the next NodeClaim; a termination time of now or of the next day; conditions as after
a drain."""
NodeChange = Literal["drop-finalizers", "drop-owner", "drop-labels", "drop-taints", "close", "mark"]
"""`close` adds the taint `karpenter.sh/unregistered`, and `mark` adds `karpenter.sh/disrupted`."""
NodeForgery = Literal["other-owner"]
"""The ownerReference names the next NodeClaim."""
TagChange = Literal["drop-claim", "drop-uid", "other-claim"]
"""Edits of an instance's tags that name its NodeClaim; `other-claim` sets those of the next instance."""

# -- setup --------------------------------------------------------------------------------------------------------------


class ScenarioBudget(Struct, frozen=True, kw_only=True):
    """A NodePool's disruption budget ("2", "30%"), for all reasons if none are named.

    With `seconds`, it is active every day for so long from `opens_at_minute` minutes after the start on; below 60.
    """

    nodes: str
    reasons: tuple[str, ...] = ()
    opens_at_minute: int = 0
    seconds: int = 0


class ScenarioPool(Struct, frozen=True, kw_only=True):
    """A NodePool. In every field, zero means that the field is not set."""

    name: str
    capacity_types: tuple[str, ...] = CAPACITY_TYPES
    types: tuple[str, ...] = ()  # allowed instance types; empty for all of the setup's types
    policy: Policy = "WhenEmpty"
    consolidate_after_seconds: int = 0  # -1 for Never
    budgets: tuple[ScenarioBudget, ...] = (ScenarioBudget(nodes="100%"),)
    limit_cpus: int = 0
    expire_after_seconds: int = 0
    termination_grace_seconds: int = 0
    weight: int = 0
    replicas: int = 0  # above 0 for a static NodePool
    rebalance: bool = False  # replaces nodes on rebalance recommendations
    hibernates_at_minute: int = 0  # every day, from so many minutes after the start on; below 60
    hibernates_seconds: int = 0
    time_zone: str = ""  # of the schedules, which open at the same moments in any
    max_evictions_per_day: int = 0
    broken: Breakage = ""  # not empty for the NodePool `BROKEN`, the only one with its own NodeClass


class FunctionThrottle(Struct, frozen=True, kw_only=True):
    """A time in which the cloud throttles a step's function, as in an account whose concurrency limit is reached."""

    step: Literal["provision", "terminate", "consolidate", "interrupt", "sweep"]
    at_seconds: float
    seconds: float


class ScenarioSetup(Struct, frozen=True, kw_only=True):
    """The cluster and account before the first operation, the product's settings, and how the scenario ends."""

    cloud: CloudName = "aws"
    pools: tuple[ScenarioPool, ...] = (ScenarioPool(name="default"),)
    types: tuple[str, ...] = ()  # the instance types that the account offers; empty for all simulated types
    zones: int = 2
    daemons: bool = False  # whether a DaemonSet runs on every node
    node_repair: bool = False  # feature gate
    spot_to_spot: bool = False  # feature gate
    pod_nomination: bool = True
    # Polling intervals, longer than the defaults: every poll needs a run, and few runs change anything.
    registration_poll_seconds: int = 30
    drain_poll_seconds: int = 10
    instance_poll_seconds: int = 10
    registration_timeout_seconds: int = 300
    fleet_plans: bool = False
    reversal_window_seconds: int = 30  # shorter than the default, as most scenarios take minutes
    sweep: bool = True  # False disables the sweep, so that requeues must suffice
    thaw: bool = (
        False  # True resumes a run that is paused beyond its function's timeout, as after Lambda's freeze and thaw
    )
    # the stack's parameter RecursiveLoop; Stopped: Allow in a region whose Lambda stops chains nevertheless
    recursive_loops: Literal["Allow", "Terminate", "Stopped"] = "Allow"
    throttles: tuple[FunctionThrottle, ...] = ()
    ends_empty: bool = False  # True deletes all workloads and NodePools at the end, and then expects an empty cluster


# -- operations ---------------------------------------------------------------------------------------------------------


class Operation(Struct, frozen=True, kw_only=True, tag=True, tag_field="operation"):
    """An action of a user or the cloud, `at_seconds` after the start."""

    at_seconds: float


class Deploy(Operation, frozen=True, kw_only=True):
    """Create a Deployment, with a PodDisruptionBudget if `min_available` is not negative."""

    app: str
    replicas: int
    cpu_millicores: int = 500
    memory_mib: int = 256
    min_available: int = -1
    do_not_disrupt: bool = False
    protected_seconds: int = 0  # the duration of do-not-disrupt from a pod's start
    one_per_node: bool = False  # True adds anti-affinity between the pods
    spread_zones: bool = False
    pool: str = ""  # the NodePool that the pods select; empty for any
    grace_seconds: int = 1  # terminationGracePeriodSeconds
    max_evictions_per_day: int = 0  # 0 for no cap


class Scale(Operation, frozen=True, kw_only=True):
    """Change a Deployment's replicas."""

    app: str
    replicas: int


class Undeploy(Operation, frozen=True, kw_only=True):
    """Delete a Deployment and its PodDisruptionBudget."""

    app: str


class SetBudget(Operation, frozen=True, kw_only=True):
    """Replace a NodePool's disruption budgets by one."""

    pool: int
    nodes: str


class PauseDisruption(Operation, frozen=True, kw_only=True):
    """Set a NodePool's annotation `journeyman.dev/pause-disruption`; an empty value removes it."""

    pool: int
    value: str


class SetLimit(Operation, frozen=True, kw_only=True):
    """Change a NodePool's CPU limit; 0 removes it."""

    pool: int
    cpus: int


class SetReplicas(Operation, frozen=True, kw_only=True):
    """Change a static NodePool's replicas; the API server rejects the change for other NodePools."""

    pool: int
    replicas: int


class Drift(Operation, frozen=True, kw_only=True):
    """Add a label to a NodePool's template, so that all its nodes drift."""

    pool: int


class ShortenExpiry(Operation, frozen=True, kw_only=True):
    """Change `expireAfter` of a NodePool; existing nodes drift."""

    pool: int
    seconds: int


class DeletePool(Operation, frozen=True, kw_only=True):
    """Delete a NodePool and, by ownership, its nodes."""

    pool: int


class BreakNodeClass(Operation, frozen=True, kw_only=True):
    """Make the NodeClass select networks that do not exist."""


class MendNodeClass(Operation, frozen=True, kw_only=True):
    """Restore the NodeClass."""


class DeleteNodeClass(Operation, frozen=True, kw_only=True):
    """Delete the NodeClass; its finalizer waits for the last NodeClaim."""


class Interrupt(Operation, frozen=True, kw_only=True):
    """The cloud announces the interruption of a Spot instance, and reclaims it two minutes (AWS) or five later."""

    node: int


class Rebalance(Operation, frozen=True, kw_only=True):
    """EC2 sends a rebalance recommendation; AWS only."""

    node: int


class Maintenance(Operation, frozen=True, kw_only=True):
    """The cloud announces the retirement (AWS) or maintenance of an instance."""

    node: int


class StopInstance(Operation, frozen=True, kw_only=True):
    """Stop an instance in the console."""

    node: int


class ConsoleTerminate(Operation, frozen=True, kw_only=True):
    """Terminate an instance in the console."""

    node: int


class DeleteNode(Operation, frozen=True, kw_only=True):
    """Run `kubectl delete node`."""

    node: int


class DeleteClaim(Operation, frozen=True, kw_only=True):
    """Run `kubectl delete nodeclaim` for a NodeClaim, launched or not."""

    claim: int


class EditClaim(Operation, frozen=True, kw_only=True):
    """Edit a NodeClaim by hand."""

    claim: int
    change: ClaimChange | ClaimStatusChange | ClaimForgery


class EditNode(Operation, frozen=True, kw_only=True):
    """Edit a Node by hand."""

    node: int
    change: NodeChange | NodeForgery


class EditTags(Operation, frozen=True, kw_only=True):
    """Edit the tags of an instance in the console."""

    node: int
    change: TagChange


class StripFinalizer(Operation, frozen=True, kw_only=True):
    """Remove all finalizers of a NodeClaim, then delete it."""

    claim: int


class WipeClaims(Operation, frozen=True, kw_only=True):
    """Remove all NodeClaims from etcd, whatever their finalizers; Kubernetes then deletes their Nodes."""


class WipeNodes(Operation, frozen=True, kw_only=True):
    """Remove all Nodes from etcd, whatever their finalizers; their kubelets register them again."""


class WipePools(Operation, frozen=True, kw_only=True):
    """Remove all NodePools from etcd, as the deletion of their CRD does in the end; nothing can be adopted without them."""


class CreatePools(Operation, frozen=True, kw_only=True):
    """Create the scenario's NodePools again that were wiped."""


class BackUp(Operation, frozen=True, kw_only=True):
    """Take a backup of etcd."""


class RestoreBackup(Operation, frozen=True, kw_only=True):
    """Restore etcd from the last backup, if there is one."""


class RebuildCluster(Operation, frozen=True, kw_only=True):
    """Point the register's entry to another cluster of the same name, which is new; the machines of the first one stay in it."""


class ReturnCluster(Operation, frozen=True, kw_only=True):
    """Point the register's entry to the first cluster again, which is as it was when the entry pointed away from it."""


class ForgeNode(Operation, frozen=True, kw_only=True):
    """Create a Node with the provider id and the labels of another one; with `owned`, also with its owner."""

    node: int
    owned: bool = False


class Overstate(Operation, frozen=True, kw_only=True):
    """Make a kubelet report so many CPUs and GiB of memory."""

    node: int
    cpus: int = 1000


class OutOfStock(Operation, frozen=True, kw_only=True):
    """Make offerings unavailable for `seconds`. `type` and `zone` are ordinals in the setup, or -1 for all."""

    type: int
    zone: int
    capacity_type: str  # "on-demand" or "spot"; empty for both
    seconds: float


class NeverJoins(Operation, frozen=True, kw_only=True):
    """Prevent the next launched instance from registering a node."""


class EndsEarly(Operation, frozen=True, kw_only=True):
    """End the instances of the next `number` launches `after_seconds` after their launch: at boot, or once they joined."""

    number: int = 1
    after_seconds: float = 5.0


class RefuseLaunches(Operation, frozen=True, kw_only=True):
    """Refuse the next `number` launches because of their NodeClass: a broken NodeClass, until a user mends it."""

    number: int = 1


class StopKubelet(Operation, frozen=True, kw_only=True):
    """Stop a node's kubelet for `seconds`: the node is NotReady, and its pods neither start nor stop."""

    node: int
    seconds: float


class UnhealthyCondition(Operation, frozen=True, kw_only=True):
    """Make a node's monitoring agent report a condition for `seconds`."""

    node: int
    condition: str
    status: Literal["True", "False", "Unknown"]
    seconds: float


class FailCheck(Operation, frozen=True, kw_only=True):
    """Fail one of an instance's EC2 status checks for `seconds`; AWS only."""

    node: int
    check: Literal["InstanceStatus", "SystemStatus"]
    seconds: float


class JumpClock(Operation, frozen=True, kw_only=True):
    """Shift the functions' clocks from now on, but not the clocks of the API server and the cloud."""

    seconds: float


class Protect(Operation, frozen=True, kw_only=True):
    """Annotate a running pod with `karpenter.sh/do-not-disrupt`."""

    pod: int


class CompletePod(Operation, frozen=True, kw_only=True):
    """Complete a running pod, whose object remains."""

    pod: int


class ResizePod(Operation, frozen=True, kw_only=True):
    """Resize a running pod in place; its Deployment's template keeps the old requests."""

    pod: int
    cpu_millicores: int


class Unprotect(Operation, frozen=True, kw_only=True):
    """Remove the annotation from every pod that `Protect` annotated."""


AnyOperation = (
    Deploy
    | Scale
    | Undeploy
    | SetBudget
    | PauseDisruption
    | SetLimit
    | SetReplicas
    | Drift
    | ShortenExpiry
    | DeletePool
    | BreakNodeClass
    | MendNodeClass
    | DeleteNodeClass
    | Interrupt
    | Rebalance
    | Maintenance
    | StopInstance
    | ConsoleTerminate
    | DeleteNode
    | DeleteClaim
    | EditClaim
    | EditNode
    | EditTags
    | StripFinalizer
    | WipeClaims
    | WipeNodes
    | WipePools
    | CreatePools
    | BackUp
    | RestoreBackup
    | RebuildCluster
    | ReturnCluster
    | ForgeNode
    | Overstate
    | OutOfStock
    | NeverJoins
    | EndsEarly
    | RefuseLaunches
    | StopKubelet
    | UnhealthyCondition
    | FailCheck
    | JumpClock
    | Protect
    | Unprotect
    | CompletePod
    | ResizePod
)

# -- faults -------------------------------------------------------------------------------------------------------------


class FaultKind(str, Enum):
    """What happens to one call to the API server or to the cloud."""

    FAIL_BEFORE = "fail-before"  # an error without effect
    FAIL_AFTER = "fail-after"  # an error after the effect
    TIMEOUT_BEFORE = "timeout-before"  # like the two above, after the caller waited `seconds`
    TIMEOUT_AFTER = "timeout-after"
    THROTTLE = "throttle"
    CONFLICT = "conflict"  # another client changes the object first; the server then accepts or rejects the call
    STALE = "stale"  # a cached read returns the state of `seconds` ago
    LAG = "lag"  # an uncached read returns the state of `seconds` ago
    CRASH_BEFORE = "crash-before"  # the process crashes before (or after) the call's effect; the next run starts cold
    CRASH_AFTER = "crash-after"
    PAUSE = "pause"  # the run is suspended for `seconds` before the call, while others run


class MessageFaultKind(str, Enum):
    """What happens to one message that is sent to a queue."""

    DROP = "drop"
    DUPLICATE = "duplicate"  # delivered twice
    DELAY = "delay"  # delivered `seconds` late
    REORDER = "reorder"  # received before earlier messages; standard queues only


class CallFault(Struct, frozen=True, kw_only=True, tag=True, tag_field="fault"):
    """A fault of the `nth` call (from 1) at a call site."""

    site: str
    nth: int
    kind: FaultKind
    seconds: float = 0


class MessageFault(Struct, frozen=True, kw_only=True, tag=True, tag_field="fault"):
    """A fault of the `nth` message (from 1) sent to a queue: a step's value, "requeue" (AWS) or "delay" (Huawei Cloud)."""

    queue: str
    nth: int
    kind: MessageFaultKind
    seconds: float = 0


Fault = CallFault | MessageFault


class FaultScenario(Struct, frozen=True, kw_only=True):
    """The complete input of one simulation."""

    seed: int
    setup: ScenarioSetup = ScenarioSetup()
    operations: tuple[AnyOperation, ...] = ()  # by time
    faults: tuple[Fault, ...] = ()


def to_json(scenario: FaultScenario) -> bytes:
    """Encode a scenario for a file, indented and with defaults, so that a later change of a default does not affect it."""
    return msgspec.json.format(msgspec.json.encode(scenario), indent=1)


def from_json(raw: bytes) -> FaultScenario:
    """Decode a scenario from a file. Raises msgspec.ValidationError, which names the invalid part."""
    return msgspec.json.decode(raw, type=FaultScenario)


_SPACE: Final = "  "


def describe_scenario(scenario: FaultScenario) -> list[str]:
    """Return the lines that describe a scenario, without fields at their defaults."""
    described = [
        f"scenario of seed {scenario.seed}:",
        f"{_SPACE}{_changed_fields(scenario.setup, 'pools') or 'default setup'}",
    ]
    described += [
        f"{_SPACE}pool {pool.name}: {_changed_fields(pool, 'name') or 'defaults'}" for pool in scenario.setup.pools
    ]
    described += [
        f"{operation.at_seconds:>6g} s  {type(operation).__name__} {_changed_fields(operation, 'at_seconds')}"
        for operation in scenario.operations
    ]
    return described + [_fault(fault) for fault in scenario.faults]


def _fault(fault: Fault) -> str:
    what = (
        f"call {fault.nth} of {fault.site}" if isinstance(fault, CallFault) else f"message {fault.nth} to {fault.queue}"
    )
    return f"{_SPACE}{what}: {fault.kind.value}{f' {fault.seconds:g} s' if fault.seconds else ''}"


def _changed_fields(struct: Struct, *except_fields: str) -> str:
    """Return the fields that differ from their defaults: `replicas=3 min_available=2`."""
    values = ((known, getattr(struct, known.name)) for known in fields(struct) if known.name not in except_fields)
    return " ".join(f"{known.name}={_text(value)}" for known, value in values if _differs(value, known.default))


def _differs(value: Any, default: Any) -> bool:
    return default is NODEFAULT or value != default


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_text, value)) or "none"
    return f"({_changed_fields(value)})" if isinstance(value, Struct) else str(value)
