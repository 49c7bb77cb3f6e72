"""The words a scenario is told in: its setting, its acts, its faults; as JSON both ways.

A scenario is drawn before anything runs, so it can be shortened, kept and told again. Any part of it is a scenario too:
targets are ordinals that are resolved when their time comes ("the third oldest node", modulo how many there are), an act
that finds nobody does nothing, and a fault whose call never comes does nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Literal

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

CAPACITY_TYPES: Final = ("on-demand", "spot")
Policy = Literal["WhenEmpty", "WhenEmptyOrUnderutilized"]
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
"""What takes somebody who knows what they do wrong."""
NodeChange = Literal["drop-finalizers", "drop-owner", "drop-labels", "drop-taints", "close", "mark"]
"""The last two put our taints on: that of nodes that are not registered, and that of those that leave."""

# -- what stands at the beginning -----------------------------------------------------------------------------------


class ScenarioBudget(Struct, frozen=True, kw_only=True):
    """How many nodes of a pool may be disrupted at once, as NodePools say it ("2", "30%"); for all reasons if none."""

    nodes: str
    reasons: tuple[str, ...] = ()


class ScenarioPool(Struct, frozen=True, kw_only=True):
    """A NodePool. Zero means "not set" throughout."""

    name: str
    capacity_types: tuple[str, ...] = CAPACITY_TYPES
    types: tuple[str, ...] = ()  # of the setting's; empty: all
    policy: Policy = "WhenEmpty"
    consolidate_after_seconds: int = 0  # -1: Never
    budgets: tuple[ScenarioBudget, ...] = (ScenarioBudget(nodes="100%"),)
    limit_cpus: int = 0
    expire_after_seconds: int = 0
    termination_grace_seconds: int = 0
    weight: int = 0
    replicas: int = 0  # a static pool
    rebalance: bool = False  # it acts on rebalance recommendations


class ScenarioSetup(Struct, frozen=True, kw_only=True):
    """What is there before anybody acts, and how it ends."""

    pools: tuple[ScenarioPool, ...] = (ScenarioPool(name="default"),)
    types: tuple[str, ...] = ()  # instance types the account sells; empty: all that it knows
    zones: int = 2
    daemons: bool = False  # a DaemonSet runs on every node
    node_repair: bool = False  # the feature gate
    spot_to_spot: bool = False  # the feature gate
    pod_nomination: bool = True
    # how often the steps look; more rarely than they do by themselves, since each look costs a run and few tell anything
    registration_poll_seconds: int = 30
    drain_poll_seconds: int = 10
    instance_poll_seconds: int = 10
    registration_timeout_seconds: int = 300
    sweep: bool = True  # off: requeues alone must do
    thaw: bool = False  # a run that outlives its function's timeout is frozen and goes on later, instead of being ended
    ends_empty: bool = False  # at the end everything is scaled to zero and nothing may be left


# -- what people and the cloud do -----------------------------------------------------------------------------------


class Operation(Struct, frozen=True, kw_only=True, tag=True, tag_field="operation"):
    """Something that is done at a time; seconds since the beginning."""

    at_seconds: float


class Deploy(Operation, frozen=True, kw_only=True):
    """A Deployment appears, with a PodDisruptionBudget if `min_available` is not negative."""

    app: str
    replicas: int
    cpu_millicores: int = 500
    memory_mib: int = 256
    min_available: int = -1
    do_not_disrupt: bool = False
    protected_seconds: int = 0  # do-not-disrupt for so long from a pod's start
    one_per_node: bool = False  # its pods refuse each other's company
    spread_zones: bool = False
    pool: str = ""  # pods select it; empty: any
    grace_seconds: int = 1  # terminationGracePeriodSeconds


class Scale(Operation, frozen=True, kw_only=True):
    """A Deployment's size changes."""

    app: str
    replicas: int


class Undeploy(Operation, frozen=True, kw_only=True):
    """A Deployment is deleted, its PodDisruptionBudget with it."""

    app: str


class SetBudget(Operation, frozen=True, kw_only=True):
    """A pool's budgets become this one."""

    pool: int
    nodes: str


class SetLimit(Operation, frozen=True, kw_only=True):
    """A pool's CPU limit changes; 0 takes it away."""

    pool: int
    cpus: int


class SetReplicas(Operation, frozen=True, kw_only=True):
    """A static pool's size changes; the API server refuses that for others."""

    pool: int
    replicas: int


class Drift(Operation, frozen=True, kw_only=True):
    """A pool's template gets another label, so that all its nodes have drifted."""

    pool: int


class ShortenExpiry(Operation, frozen=True, kw_only=True):
    """New nodes of a pool expire after so long (old ones have drifted)."""

    pool: int
    seconds: int


class DeletePool(Operation, frozen=True, kw_only=True):
    """A NodePool is deleted; its nodes follow."""

    pool: int


class BreakNodeClass(Operation, frozen=True, kw_only=True):
    """The EC2NodeClass selects subnets that do not exist."""


class MendNodeClass(Operation, frozen=True, kw_only=True):
    """The EC2NodeClass is as it was."""


class DeleteNodeClass(Operation, frozen=True, kw_only=True):
    """The EC2NodeClass is deleted; it goes once its last NodeClaim has gone."""


class Interrupt(Operation, frozen=True, kw_only=True):
    """EC2 warns that it takes an instance back, and does so two minutes later."""

    node: int


class Rebalance(Operation, frozen=True, kw_only=True):
    """EC2 recommends to leave an instance."""

    node: int


class Maintenance(Operation, frozen=True, kw_only=True):
    """AWS Health announces that an instance is retired."""

    node: int


class StopInstance(Operation, frozen=True, kw_only=True):
    """Somebody stops an instance in the console."""

    node: int


class ConsoleTerminate(Operation, frozen=True, kw_only=True):
    """Somebody terminates an instance in the console."""

    node: int


class DeleteNode(Operation, frozen=True, kw_only=True):
    """`kubectl delete node`."""

    node: int


class DeleteClaim(Operation, frozen=True, kw_only=True):
    """`kubectl delete nodeclaim`; claims that are not launched count too."""

    claim: int


class EditClaim(Operation, frozen=True, kw_only=True):
    """A NodeClaim is edited by hand."""

    claim: int
    change: ClaimChange | ClaimStatusChange


class EditNode(Operation, frozen=True, kw_only=True):
    """A Node is edited by hand."""

    node: int
    change: NodeChange


class StripFinalizer(Operation, frozen=True, kw_only=True):
    """All finalizers of a NodeClaim are removed by hand; then it is deleted."""

    claim: int


class OutOfStock(Operation, frozen=True, kw_only=True):
    """A pool of capacity is empty for a while. Ordinals into the setting's types and zones; -1: all of them."""

    type: int
    zone: int
    capacity_type: str  # "on-demand", "spot"; empty: both
    seconds: float


class NeverJoins(Operation, frozen=True, kw_only=True):
    """The next machine that is launched never becomes a node."""


class StopKubelet(Operation, frozen=True, kw_only=True):
    """A node's kubelet is silent for a while: NotReady, its pods neither start nor stop."""

    node: int
    seconds: float


class UnhealthyCondition(Operation, frozen=True, kw_only=True):
    """The node problem agent of a node reports a condition, for a while."""

    node: int
    condition: str
    status: Literal["True", "False", "Unknown"]
    seconds: float


class FailCheck(Operation, frozen=True, kw_only=True):
    """An instance fails one of EC2's status checks, for a while."""

    node: int
    check: Literal["InstanceStatus", "SystemStatus"]
    seconds: float


class JumpClock(Operation, frozen=True, kw_only=True):
    """The functions' clocks are off by so much from now on; the API server's and the cloud's are right."""

    seconds: float


class Protect(Operation, frozen=True, kw_only=True):
    """A running pod gets `karpenter.sh/do-not-disrupt`."""

    pod: int


class CompletePod(Operation, frozen=True, kw_only=True):
    """A running pod comes to its end by itself, and lies where it ran."""

    pod: int


class Unprotect(Operation, frozen=True, kw_only=True):
    """The annotation is taken from every pod that has it by hand."""


AnyOperation = (
    Deploy
    | Scale
    | Undeploy
    | SetBudget
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
    | StripFinalizer
    | OutOfStock
    | NeverJoins
    | StopKubelet
    | UnhealthyCondition
    | FailCheck
    | JumpClock
    | Protect
    | Unprotect
    | CompletePod
)

# -- what goes wrong ------------------------------------------------------------------------------------------------


class FaultKind(str, Enum):
    """What becomes of one outside call."""

    FAIL_BEFORE = "fail-before"  # an error, and nothing was done
    FAIL_AFTER = "fail-after"  # it was done; the answer was lost
    TIMEOUT_BEFORE = "timeout-before"  # as the two above, and the caller waited in vain for `seconds`
    TIMEOUT_AFTER = "timeout-after"
    THROTTLE = "throttle"
    CONFLICT = "conflict"  # somebody else writes the object first; the server itself then checkers the call
    STALE = "stale"  # a cached read answers as of `seconds` ago
    LAG = "lag"  # so does a read that asked for no cache
    CRASH_BEFORE = "crash-before"  # the process ends at this call, before or after its effect; the next one starts cold
    CRASH_AFTER = "crash-after"
    PAUSE = "pause"  # the run stands still for `seconds` before the call, and others run meanwhile


class MessageFaultKind(str, Enum):
    """What becomes of one message on its way into a queue."""

    DROP = "drop"
    DUPLICATE = "duplicate"  # it arrives twice
    DELAY = "delay"  # it arrives `seconds` late
    REORDER = "reorder"  # it is received before those that wait already; standard queues only


class CallFault(Struct, frozen=True, kw_only=True, tag=True, tag_field="fault"):
    """The `nth` call (from 1) at a site (`sites`) goes wrong."""

    site: str
    nth: int
    kind: FaultKind
    seconds: float = 0


class MessageFault(Struct, frozen=True, kw_only=True, tag=True, tag_field="fault"):
    """The `nth` message (from 1) that is sent to a queue goes wrong. Queues: a step's value, or "requeue"."""

    queue: str
    nth: int
    kind: MessageFaultKind
    seconds: float = 0


Fault = CallFault | MessageFault


class FaultScenario(Struct, frozen=True, kw_only=True):
    """Everything that one simulation is made of."""

    seed: int
    setup: ScenarioSetup = ScenarioSetup()
    operations: tuple[AnyOperation, ...] = ()  # by time
    faults: tuple[Fault, ...] = ()

    @property
    def has_pauses(self) -> bool:
        """Whether a run may stand still while others go on."""
        parking = {FaultKind.PAUSE, FaultKind.TIMEOUT_BEFORE, FaultKind.TIMEOUT_AFTER}
        return any(isinstance(fault, CallFault) and fault.kind in parking for fault in self.faults)


def to_json(scenario: FaultScenario) -> bytes:
    """The scenario as a file keeps it: indented and in full, so that a default that changes later changes no kept scenario."""
    return msgspec.json.format(msgspec.json.encode(scenario), indent=1)


def from_json(raw: bytes) -> FaultScenario:
    """The scenario in a file. Raises msgspec.ValidationError naming what is wrong where."""
    return msgspec.json.decode(raw, type=FaultScenario)


_SPACE: Final = "  "


def lines(scenario: FaultScenario) -> list[str]:
    """For people; what is as always is left out."""
    described = [
        f"a scenario of seed {scenario.seed}:",
        f"{_SPACE}{_what_differs(scenario.setup, 'pools') or 'the usual setup'}",
    ]
    described += [
        f"{_SPACE}pool {pool.name}: {_what_differs(pool, 'name') or 'as usual'}" for pool in scenario.setup.pools
    ]
    described += [
        f"{operation.at_seconds:>6g} s  {type(operation).__name__} {_what_differs(operation, 'at_seconds')}"
        for operation in scenario.operations
    ]
    return described + [_fault(fault) for fault in scenario.faults]


def _fault(fault: Fault) -> str:
    what = (
        f"call {fault.nth} of {fault.site}" if isinstance(fault, CallFault) else f"message {fault.nth} to {fault.queue}"
    )
    return f"{_SPACE}{what}: {fault.kind.value}{f' {fault.seconds:g} s' if fault.seconds else ''}"


def _what_differs(thing: Struct, *but: str) -> str:
    """`replicas=3 min_available=2`: fields that are not as by default."""
    values = ((known, getattr(thing, known.name)) for known in fields(thing) if known.name not in but)
    return " ".join(f"{known.name}={_text(value)}" for known, value in values if _differs(value, known.default))


def _differs(value: Any, default: Any) -> bool:
    return default is NODEFAULT or value != default


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_text, value)) or "none"
    return f"({_what_differs(value)})" if isinstance(value, Struct) else str(value)
