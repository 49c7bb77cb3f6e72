"""Plan: the result of a decision: a closed union of actions, and the Events and observations that explain them.

A `Plan` is a list of independent `Chain`s. A chain's actions are carried out in order, intent before effect: a failed one stops
the rest of its chain and the chains behind it (`Chain.then`), never the other chains. Only `steps.executor` carries actions
out, and it matches the union exhaustively. Every action is idempotent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

from msgspec import Struct, field

from journeyman.core.api.launch_faults import FaultKey, LaunchFault
from journeyman.core.api.objects import NODE, NODECLAIM, POD, LearnedSize, Node, NodeClaim, OfferingKey, Pod, Resource
from journeyman.errors import JourneymanError


class Step(str, Enum):
    """The steps; the value names the queue and the function."""

    PROVISION = "provision"
    TERMINATE = "terminate"
    CONSOLIDATE = "consolidate"
    INTERRUPT = "interrupt"
    SWEEP = "sweep"


class ObjectRef(Struct, frozen=True, kw_only=True):
    """Reference to an object; with `uid`, to this incarnation of it only."""

    resource: Resource[Any]
    name: str
    namespace: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"


def claim_ref(claim: NodeClaim) -> ObjectRef:
    """Return a reference to the NodeClaim, by name and UID."""
    return ObjectRef(resource=NODECLAIM, name=claim.metadata.name, uid=claim.metadata.uid)


def node_ref(node: Node) -> ObjectRef:
    """Return a reference to the Node, by name and UID."""
    return ObjectRef(resource=NODE, name=node.metadata.name, uid=node.metadata.uid)


def pod_ref(pod: Pod) -> ObjectRef:
    """Return a reference to the pod, by name and UID."""
    meta = pod.metadata
    return ObjectRef(resource=POD, name=meta.name, namespace=meta.namespace, uid=meta.uid)


class CreateObject(Struct, frozen=True, kw_only=True):
    """Create an object (NodeClaim, NodeDisruption, FleetPlan, OfferingState); done if an object of that name exists."""

    resource: Resource[Any]
    body: Mapping[str, Any]
    why: str

    @property
    def name(self) -> str:
        """`metadata.name` of the body."""
        return str(self.body["metadata"]["name"])


class PatchObject(Struct, frozen=True, kw_only=True):
    """Send a JSON merge patch of an object.

    With `resource_version` it is a conflict if the object has another version; the run then reads the cluster and decides again.
    Patches of conditions, taints and finalizers always need it, because a merge patch replaces lists whole.
    """

    ref: ObjectRef
    patch: Mapping[str, Any]
    why: str
    resource_version: str = ""
    subresource: str = ""


class DeleteObject(Struct, frozen=True, kw_only=True):
    """Delete an object; done if it does not exist. `ref.uid` is a precondition.

    With `resource_version` it is a conflict if the object has changed since. A decision that rests on the object's content sets
    it, so that a run that froze before the call deletes nothing that another run has changed meanwhile. A decision that no
    change can revoke (the NodeClaim has expired, its instance does not exist) needs none.

    It is a conflict if the object `unless_exists` exists, with its UID if it has one. A decision that rests on the absence of
    another object sets it.
    """

    ref: ObjectRef
    why: str
    resource_version: str = ""
    unless_exists: ObjectRef | None = None


class LaunchInstance(Struct, frozen=True, kw_only=True):
    """Launch the instance behind a NodeClaim that exists (or is created earlier in the same chain).

    Idempotent by the claim's UID. The executor writes the outcome into the claim's status.
    """

    claim: str
    why: str


class TerminateInstance(Struct, frozen=True, kw_only=True):
    """Start terminating an instance; done if it does not exist.

    With `unless_claimed` it is a conflict if the NodeClaim `claim` exists, with `claim_uid` if that is known, and has this
    instance or none yet. A decision that rests on the NodeClaim's absence sets it. A refusal of the cloud is recorded on `node`.
    """

    provider_id: str
    claim: str
    why: str
    claim_uid: str = ""
    node: ObjectRef | None = None
    unless_claimed: bool = False


class NameInstance(Struct, frozen=True, kw_only=True):
    """Give an instance a name that the cloud's console shows; done if it does not exist."""

    provider_id: str
    name: str
    why: str


class ReleaseNodeClass(Struct, frozen=True, kw_only=True):
    """Delete the cloud resources created for this NodeClass alone, as far as they exist. `raw` is the object as read."""

    name: str
    raw: Mapping[str, Any]
    why: str


class EvictPod(Struct, frozen=True, kw_only=True):
    """Evict through the Eviction API, so that PodDisruptionBudgets are honoured; a refusal is recorded on `node`."""

    ref: ObjectRef
    node: ObjectRef
    why: str


class DeletePod(Struct, frozen=True, kw_only=True):
    """Delete a pod without the Eviction API, only to enforce the termination time of its node's NodeClaim.

    It is a conflict unless the NodeClaim `claim`, read again for each pod, still exists and terminates at `deadline` or earlier:
    a run may stand still for a while before each of its deletions, and they bypass every protection that the pod has.
    """

    ref: ObjectRef
    claim: ObjectRef
    deadline: datetime
    grace_period_seconds: int
    why: str


class NominatePods(Struct, frozen=True, kw_only=True):
    """Nominate pods to a node (`status.nominatedNodeName`); an empty `node` clears their nominations.

    If a pod cannot be nominated, that is logged and the chain continues. The nominations with which chains start are all
    written before any other action of the plan.
    """

    pods: tuple[ObjectRef, ...]
    node: str
    why: str


class RenominatePods(Struct, frozen=True, kw_only=True):
    """Repeat the nominations of pods that have neither a node nor a nomination when this action is carried out."""

    nominations: tuple[NominatePods, ...]


class MarkOfferingUnavailable(Struct, frozen=True, kw_only=True):
    """Write offerings that failed at `at` into the NodeClass's OfferingState; launches skip them for a while.

    An offering is skipped for `first` after its first failure, longer after each further one, at most for `longest`.
    OfferingState counts the failures.
    """

    node_class: str
    offerings: tuple[OfferingKey, ...]
    at: datetime
    first: timedelta
    longest: timedelta
    reason: str
    node_class_only: bool = False  # only launches with this NodeClass's settings fail

    @property
    def soonest_end(self) -> datetime:
        """Until when launches skip the offerings at least."""
        return self.at + self.first


class RecordLaunchFault(Struct, frozen=True, kw_only=True):
    """Write whose fault a failed launch is into the NodeClass's OfferingState; nothing with this fault is launched for a while.

    That is for `first` after the first failure, twice as long after each further one, at most for `longest`. `node_pool` is the
    NodePool of the failed launch, `generations` those of the objects. `counts` is whether the failure is one of the NodePool's
    last launches for NodeRegistrationHealthy; a NodeClaim that did not register counts itself.
    """

    node_class: str
    fault: LaunchFault
    node_pool: str
    generations: str
    at: datetime
    first: timedelta
    longest: timedelta
    counts: bool = False

    @property
    def soonest_end(self) -> datetime:
        """Until when nothing with this fault is launched at least."""
        return self.at + self.first


class ClearLaunchFaults(Struct, frozen=True, kw_only=True):
    """Remove these objects' failures from the NodeClass's OfferingState, because a launch at `at` succeeded."""

    node_class: str
    keys: tuple[FaultKey, ...]
    at: datetime


class ClearOfferingFailures(Struct, frozen=True, kw_only=True):
    """Remove an offering's failures from the NodeClass's OfferingState, because a launch at `at` used the offering.

    An offering that is still unavailable at `at` failed after the launch, and stays.
    """

    node_class: str
    offering: OfferingKey
    at: datetime


class RecordLearnedSizes(Struct, frozen=True, kw_only=True):
    """Write what nodes of a NodeClass offer into its OfferingState, beside what that has of the same settings.

    `settings` is the hash of the NodeClass; what was seen with others is removed.
    """

    node_class: str
    settings: str
    at: datetime
    sizes: tuple[LearnedSize, ...]


class Requeue(Struct, frozen=True, kw_only=True):
    """Run `step` again at `at`; at once if that is past. Lost or duplicated requeues are harmless."""

    step: Step
    at: datetime
    reason: str


class ResolveNodeClass(Struct, frozen=True, kw_only=True):
    """Resolve a NodeClass's selectors in the cloud at `at`, and write its status; `raw` is the object as read."""

    name: str
    raw: Mapping[str, Any]
    at: datetime


class DeleteUnusedResources(Struct, frozen=True, kw_only=True):
    """Delete the cloud resources of past launches and NodeClasses that nothing uses, as NodeClasses and NodeClaims are then."""

    why: str


class RefreshPrices(Struct, frozen=True, kw_only=True):
    """Read on-demand prices from the cloud if they are due; without an answer the last prices stay. It takes seconds."""


class RecordPriceAge(Struct, frozen=True, kw_only=True):
    """Write the prices of a NodeClass's instance types, with their source and age, into its OfferingState.

    Other processes read on-demand prices from there, but no decision needs it, so a failure is logged and the chain goes on.
    """

    node_class: str
    kind: str
    uid: str


class ScheduleEntry(Struct, frozen=True, kw_only=True):
    """An entry of the cloud's scheduler, which starts `step` at `at`, and then deletes itself. Its name identifies its content."""

    name: str
    step: Step
    at: datetime
    reason: str


class CreateScheduleEntry(Struct, frozen=True, kw_only=True):
    """Create an entry of the cloud's scheduler; done if one of that name exists."""

    entry: ScheduleEntry


class DeleteScheduleEntry(Struct, frozen=True, kw_only=True):
    """Delete an entry of the cloud's scheduler; done if it does not exist."""

    name: str
    why: str


ImmediateAction = (
    CreateObject
    | PatchObject
    | DeleteObject
    | NameInstance
    | ResolveNodeClass
    | DeleteUnusedResources
    | RefreshPrices
    | RecordPriceAge
    | ReleaseNodeClass
    | EvictPod
    | DeletePod
    | NominatePods
    | RenominatePods
    | MarkOfferingUnavailable
    | ClearOfferingFailures
    | RecordLaunchFault
    | ClearLaunchFaults
    | RecordLearnedSizes
    | CreateScheduleEntry
    | DeleteScheduleEntry
)
"""What a chain does at its place; launches and terminations wait for those of the other chains, and requeues for the run's end."""

Action = ImmediateAction | LaunchInstance | TerminateInstance | Requeue


class Event(Struct, frozen=True, kw_only=True):
    """A Kubernetes Event to record on an object, with Karpenter's reason.

    Events with one reason about one object are repeats of each other, unless their `key` differs.
    """

    ref: ObjectRef
    reason: str
    message: str
    type: str = "Normal"  # or "Warning"
    key: str = ""


class Observation(Struct, frozen=True, kw_only=True):
    """A metric sample. `name` is Karpenter's, without a unit suffix of ours; `kind` is counter, gauge or histogram."""

    name: str
    value: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: str = "counter"


class Chain(Struct, frozen=True, kw_only=True):
    """Actions that depend on each other, in order. `subject` names what they are about, for logs.

    `events` and `observations` are emitted once the whole chain has been carried out, as they are true only then; those of
    the Plan are true as soon as it is decided.
    """

    subject: str
    actions: tuple[Action, ...]
    events: tuple[Event, ...] = ()
    observations: tuple[Observation, ...] = ()
    then: tuple[Chain, ...] = ()  # start once this chain has been carried out; independent of each other
    node_pool: str = ""  # the chain starts only if this NodePool, read again, exists and is within its limits
    wave: int = 0  # its first patch is sent once the first patches of all lower waves have been answered
    in_margin: bool = False  # a quick write that a run may still send when its time is up, within the deadline's margin

    @property
    def all_actions(self) -> tuple[Action, ...]:
        """The actions of this chain, then of the chains behind it."""
        return self.actions + tuple(action for chain in self.then for action in chain.all_actions)


class LogLine(Struct, frozen=True, kw_only=True):
    """A log line with fields; `note` says the same to a person, beside a plan's other notes."""

    level: str
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


class Failure(Struct, frozen=True, kw_only=True):
    """An error that prevents a part of a plan; it is reported, and the rest of the plan is executed."""

    subject: str
    error: JourneymanError


class Plan(Struct, frozen=True, kw_only=True):
    """All actions, events and observations of one decision; an empty plan is a decision, too."""

    chains: tuple[Chain, ...] = ()
    events: tuple[Event, ...] = ()
    observations: tuple[Observation, ...] = ()
    notes: tuple[str, ...] = ()  # one line each, for a person: what was decided and why
    logs: tuple[LogLine, ...] = ()
    failures: tuple[Failure, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()  # added to the counts of the run's outcome
    durations: tuple[Observation, ...] = ()  # their value is the time that the decision took; the run fills it in
    examined_until: str | None = None  # the next run continues behind it; empty: with the first object; None: as before

    def __add__(self, other: Plan) -> Plan:
        return merge_plans((self, other))

    @property
    def actions(self) -> tuple[Action, ...]:
        """All actions, chain after chain."""
        return tuple(action for chain in self.chains for action in chain.all_actions)


REQUEUE_GRIDS: Final = (60, 30, 10, 5, 2, 1)
"""Intervals in seconds of the times at which runs requeue, longest first."""


def next_requeue(now: datetime, wait: timedelta) -> datetime:
    """Return when to check again, about `wait` from now.

    The time is on a grid as coarse as the wait, so that all waiting runs requeue for the same times. Otherwise each run that
    has another trigger would start its own series of requeues, and a drain that is blocked for a day would accumulate hundreds
    of them. If the end of the wait is known, requeue for that time instead.

    Args:
        now: The time.
        wait: The interval; the result is at most half of it early or late.
    """
    grid = next((seconds for seconds in REQUEUE_GRIDS if wait.total_seconds() >= seconds), REQUEUE_GRIDS[-1])
    earliest = now + timedelta(seconds=grid / 2)
    past = timedelta(seconds=earliest.timestamp() % grid)
    return earliest - past + timedelta(seconds=grid) if past else earliest


def chain_of(subject: str, *actions: Action) -> Chain:
    """Return a chain of these actions."""
    return Chain(subject=subject, actions=actions)


def merge_plans(plans: Iterable[Plan]) -> Plan:
    """Return one plan with the content of all plans, in order."""
    parts = tuple(plans)
    return Plan(
        chains=tuple(chain for plan in parts for chain in plan.chains),
        events=tuple(event for plan in parts for event in plan.events),
        observations=tuple(sample for plan in parts for sample in plan.observations),
        notes=tuple(note for plan in parts for note in plan.notes),
        logs=tuple(line for plan in parts for line in plan.logs),
        failures=tuple(failure for plan in parts for failure in plan.failures),
        counts=tuple(count for plan in parts for count in plan.counts),
        durations=tuple(sample for plan in parts for sample in plan.durations),
        examined_until=next((p.examined_until for p in reversed(parts) if p.examined_until is not None), None),
    )
