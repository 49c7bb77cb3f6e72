"""Plan: what a decision writes: a closed union of actions, and the events and observations that explain them.

A `Plan` is a list of independent `Chain`s. Inside a chain order is law: intent before effect, and a failed action stops
the rest of its chain and what stands behind it (`Chain.then`), never the other chains. `steps.executor` is the only code that
carries actions out, and matches the union exhaustively. Every action may be carried out twice with the effect of once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

from msgspec import Struct, field

from journeyman.core.api.objects import OfferingKey, Resource
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


class CreateObject(Struct, frozen=True, kw_only=True):
    """Create an object (NodeClaim, NodeDisruption, OfferingState); one of that name already there counts as done."""

    resource: Resource[Any]
    body: Mapping[str, Any]
    why: str

    @property
    def name(self) -> str:
        """`metadata.name` of the body."""
        return str(self.body["metadata"]["name"])


class PatchObject(Struct, frozen=True, kw_only=True):
    """JSON merge patch under a precondition.

    With `resource_version` the write only goes through on that version (lists are replaced whole by a merge patch, so
    conditions, taints and finalizers always need it). A conflict means: reload and decide again.
    """

    ref: ObjectRef
    patch: Mapping[str, Any]
    why: str
    resource_version: str = ""
    subresource: str = ""


class DeleteObject(Struct, frozen=True, kw_only=True):
    """Delete an object (its finalizers do the rest); already gone counts as done. `ref.uid` is the precondition.

    With `resource_version` it is a conflict if the object has changed since: who deletes because of what the object says,
    and would not if it said otherwise, gives it. A run that was frozen right before the call, for as long as it liked,
    deletes nothing then that others have decided on meanwhile. What cannot be taken back (its end has come, its instance
    is gone) needs none.

    It is a conflict if there is `unless_there` after all, of that UID if it has one: who deletes because something else
    is absent names that.
    """

    ref: ObjectRef
    why: str
    resource_version: str = ""
    unless_there: ObjectRef | None = None


class LaunchInstance(Struct, frozen=True, kw_only=True):
    """Launch the instance behind a NodeClaim that exists (or is created earlier in the same chain).

    Idempotent by the claim's UID. The executor writes the outcome into the claim's status.
    """

    claim: str
    why: str


class TerminateInstance(Struct, frozen=True, kw_only=True):
    """Start terminating an instance; already gone counts as done.

    With `unless_claimed` it is a conflict, so that the chain stops and all is decided again, if there is the NodeClaim
    that it was launched for after all: of the name `claim`, of `claim_uid` if that is known, and with this instance or
    none yet. A decision that rests on a claim's absence sets it. A refusal is recorded on `node`.
    """

    provider_id: str
    claim: str
    why: str
    claim_uid: str = ""
    node: ObjectRef | None = None
    unless_claimed: bool = False


class ReleaseNodeClass(Struct, frozen=True, kw_only=True):
    """Delete the cloud resources made for this NodeClass only; missing ones count as done. `raw` is the object as read."""

    name: str
    raw: Mapping[str, Any]
    why: str


class EvictPod(Struct, frozen=True, kw_only=True):
    """Evict through the Eviction API, so that PodDisruptionBudgets are honoured; a refusal is recorded on `node`."""

    ref: ObjectRef
    node: ObjectRef
    why: str


class DeletePod(Struct, frozen=True, kw_only=True):
    """Delete a pod without the Eviction API, only to enforce a terminationGracePeriod."""

    ref: ObjectRef
    node: str
    grace_period_seconds: int
    why: str


class NominatePods(Struct, frozen=True, kw_only=True):
    """Nominate pods to a node (`status.nominatedNodeName`); an empty `node` clears their nominations.

    If a pod cannot be nominated, that is logged and the chain goes on. Nominations that chains begin with are all written
    before any other action of the plan.
    """

    pods: tuple[ObjectRef, ...]
    node: str
    why: str


class RenominatePods(Struct, frozen=True, kw_only=True):
    """Nominate once more those of the pods that have neither a node nor a nomination by now."""

    nominations: tuple[NominatePods, ...]


class MarkOfferingUnavailable(Struct, frozen=True, kw_only=True):
    """Write offerings that failed at `at` into the NodeClass's OfferingState; launches skip them for a while.

    The first time for `first`, longer if it fails again and again, at most for `longest`: who writes it knows how often
    it failed before.
    """

    node_class: str
    offerings: tuple[OfferingKey, ...]
    at: datetime
    first: timedelta
    longest: timedelta
    reason: str

    @property
    def soonest_end(self) -> datetime:
        """Until when they are avoided at least."""
        return self.at + self.first


class ClearOfferingFailures(Struct, frozen=True, kw_only=True):
    """Remove an offering's failures before `at`, when a launch got it, from the NodeClass's OfferingState.

    What is still avoided at `at` stays: it failed meanwhile.
    """

    node_class: str
    offering: OfferingKey
    at: datetime


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


class RecordPriceAge(Struct, frozen=True, kw_only=True):
    """Write the age of the prices of a NodeClass's instance types into its OfferingState.

    No decision reads it, so a failure is logged and the chain goes on.
    """

    node_class: str
    kind: str
    uid: str


Action = (
    CreateObject
    | PatchObject
    | DeleteObject
    | LaunchInstance
    | TerminateInstance
    | ResolveNodeClass
    | RecordPriceAge
    | ReleaseNodeClass
    | EvictPod
    | DeletePod
    | NominatePods
    | RenominatePods
    | MarkOfferingUnavailable
    | ClearOfferingFailures
    | Requeue
)


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

    `events` and `observations` are true only once the whole chain has been carried out, and are emitted then; those of
    the Plan are true as soon as it is decided.
    """

    subject: str
    actions: tuple[Action, ...]
    events: tuple[Event, ...] = ()
    observations: tuple[Observation, ...] = ()
    then: tuple[Chain, ...] = ()  # begin once all of it has been carried out; independent of one another
    node_pool: str = ""  # it starts only if this NodePool, as it is stored then, exists and is within its limits
    wave: int = 0  # its first patch is sent once those of chains with a lower number have been answered

    @property
    def all_actions(self) -> tuple[Action, ...]:
        """Its actions, then those of the chains behind it."""
        return self.actions + tuple(action for chain in self.then for action in chain.all_actions)


class LogLine(Struct, frozen=True, kw_only=True):
    """A line for the log alone."""

    level: str
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)


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

    def __add__(self, other: Plan) -> Plan:
        return merge_plans((self, other))

    @property
    def actions(self) -> tuple[Action, ...]:
        """All actions, chain after chain."""
        return tuple(action for chain in self.chains for action in chain.all_actions)


REQUEUE_GRIDS: Final = (60, 30, 10, 5, 2, 1)
"""Seconds between looks that runs share, longest first."""


def next_requeue(now: datetime, wait: timedelta) -> datetime:
    """Return when to check again, about `wait` from now.

    Looks lie on a grid as coarse as the wait, so that all runs that wait ask for the same moments. Otherwise each run
    that anything else woke would begin a series of requeues of its own, and a drain that stands still for a day would
    gather hundreds of them. For a moment that something ends at, requeue at that moment instead.

    Args:
        now: The time.
        wait: The pace; a look is at most half of it early or late.
    """
    grid = next((seconds for seconds in REQUEUE_GRIDS if wait.total_seconds() >= seconds), REQUEUE_GRIDS[-1])
    soonest = now + timedelta(seconds=grid / 2)
    past = timedelta(seconds=soonest.timestamp() % grid)
    return soonest - past + timedelta(seconds=grid) if past else soonest


def chain_of(subject: str, *actions: Action) -> Chain:
    """A chain of these actions."""
    return Chain(subject=subject, actions=actions)


def merge_plans(plans: Iterable[Plan]) -> Plan:
    """All of them as one, in order."""
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
    )
