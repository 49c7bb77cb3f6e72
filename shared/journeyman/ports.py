"""Declares what a step needs from the outside, as Protocols that adapters implement; and the values they exchange.

Every adapter translates its SDK's errors into `journeyman.errors`. The core imports none of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim, Resource
from journeyman.core.catalogue import InstanceType
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Event, Observation, Step
from journeyman.core.state import InstanceStatus, NodeClassState, RepairPolicy
from journeyman.errors import KubeAPIError

T = TypeVar("T")
JSON = Mapping[str, Any]


class Listing(Struct, Generic[T], frozen=True, kw_only=True):
    """Items of one list call, all at the same `resource_version`; `in_order` if by namespace and name for sure."""

    items: tuple[T, ...]
    resource_version: str
    in_order: bool = False


class WatchEvent(Struct, Generic[T], frozen=True, kw_only=True):
    """ADDED, MODIFIED, DELETED or BOOKMARK (then `object` is None)."""

    type: str
    object: T | None
    resource_version: str


class Patch(Struct, frozen=True, kw_only=True):
    """One JSON merge patch; `metadata.resourceVersion` and `metadata.uid` inside it are preconditions."""

    name: str
    body: JSON
    namespace: str = ""


class KubeStore(Protocol):
    """One cluster's API server. Every method may raise `KubeAPIError` and its kinds.

    Reads decode into `resource.type` (a msgspec Struct, or dict). Writes take and return raw JSON.
    """

    def version(self) -> tuple[int, int]:
        """Major and minor version of the API server."""
        ...

    def list(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        cached: bool = False,
    ) -> Listing[T]:
        """All objects of a kind. `cached` allows a slightly stale answer from the server's watch cache."""
        ...

    def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """One object. Raises NotFoundError."""
        ...

    def create(self, resource: Resource[Any], body: JSON, *, namespace: str = "") -> dict[str, Any]:
        """Create; returns it as stored. Raises AlreadyExistsError, InvalidError."""
        ...

    def patch(
        self, resource: Resource[Any], name: str, patch: JSON, *, namespace: str = "", subresource: str = ""
    ) -> dict[str, Any]:
        """JSON merge patch; `metadata.resourceVersion` and `metadata.uid` inside it are preconditions (ConflictError).

        The status of a custom resource does not heed a UID: give the version as well, which no other incarnation has.
        """
        ...

    def apply(
        self,
        resource: Resource[Any],
        name: str,
        body: JSON,
        *,
        manager: str,
        force: bool = False,
        namespace: str = "",
        subresource: str = "",
    ) -> dict[str, Any]:
        """Server-side apply: create the object, or make its fields say what `body` says; returns it as stored.

        The name need not be said again in the body.

        What `manager` said before and says no longer is removed; nothing to change means nothing is written. Raises
        ConflictError if another manager says something else of a field, unless `force` takes it over; InvalidError.
        """
        ...

    def patch_each(
        self, resource: Resource[Any], patches: Sequence[Patch], *, subresource: str = ""
    ) -> tuple[dict[str, Any] | KubeAPIError, ...]:
        """Several patches that are independent of each other, side by side; what became of each, in their order."""
        ...

    def delete(
        self,
        resource: Resource[Any],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        """Delete, with preconditions if given. Raises NotFoundError, ConflictError."""
        ...

    def evict(self, namespace: str, name: str, *, uid: str = "") -> None:
        """Evict a pod. Raises TooManyRequestsError if a PodDisruptionBudget forbids it, NotFoundError, ConflictError."""
        ...

    def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: float = 30,
    ) -> Iterator[WatchEvent[T]]:
        """Changes since that version until the timeout, bookmarks included. Raises GoneError if it is too old."""
        ...


class Instance(Struct, frozen=True, kw_only=True):
    """A machine the cloud runs for us."""

    provider_id: str
    instance_type: str
    zone: str
    capacity_type: str
    state: str  # the cloud's word: pending, running, shutting-down, terminated…
    launched_at: datetime
    image_id: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def claim(self) -> str:
        """The NodeClaim it was launched for, from its tag; empty if unknown."""
        return self.tags.get(labels.NODECLAIM_TAG, "")

    @property
    def claim_uid(self) -> str:
        """That NodeClaim's UID, from its tag; empty if unknown, as with instances that Karpenter launched."""
        return self.tags.get(labels.NODECLAIM_UID_TAG, "")


class LaunchRequest(Struct, frozen=True, kw_only=True):
    """Launch one instance for this claim. Repeating it with the same claim UID never makes a second one."""

    claim: NodeClaim
    node_class: NodeClassState
    instance_types: tuple[InstanceType, ...]  # of the claim's pool, availability already marked


class LaunchRefusal(Struct, frozen=True, kw_only=True):
    """An offering that a launch requested and did not get, with the reason that a failed launch's condition has."""

    zone: str
    zone_id: str
    capacity_type: str
    reason: str


class Launched(Struct, frozen=True, kw_only=True):
    """It runs (or starts): what goes into the claim's labels, annotations and status."""

    claim: str
    instance: Instance
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    capacity: Mapping[str, str]  # quantities as text
    allocatable: Mapping[str, str]
    price: float
    unavailable: tuple[tuple[str, str, str], ...] = ()  # offerings that were refused on the way
    refusals: tuple[LaunchRefusal, ...] = ()  # every single one, to be counted
    user_data_bytes: int = 0  # what it boots with; 0 if that was not looked at


class LaunchFailed(Struct, frozen=True, kw_only=True):
    """It did not: `error` is a CloudProviderError (InsufficientCapacity, NodeClassNotReady, Create, RateLimited…).

    `answered` says that the cloud carried the launch out and nothing came of it, so that the next attempt is another
    launch. Without it the next attempt repeats this one, since something may have come of this or an earlier one.
    """

    claim: str
    error: Exception
    unavailable: tuple[tuple[str, str, str], ...] = ()
    refusals: tuple[LaunchRefusal, ...] = ()
    user_data_bytes: int = 0  # what it would have booted with; 0 if that was not looked at
    answered: bool = False
    retry_after: timedelta = timedelta(0)


LaunchOutcome = Launched | LaunchFailed


class Prices(Struct, frozen=True, kw_only=True):
    """Where the prices that offerings carry come from, and how old they are; None: not read yet, or the read failed."""

    on_demand_refreshed_at: datetime | None = None
    spot_refreshed_at: datetime | None = None
    source: str = ""  # of on-demand prices: the cloud's own interface, or a table that ships with the adapter
    message: str = ""  # what went wrong on the last try; empty if nothing


class CloudProvider(Protocol):
    """One cloud account and region, for one cluster."""

    name: str
    """Which cloud, as metrics call it: `aws`."""

    node_class: Resource[dict[str, Any]]
    """The NodeClass kind this provider understands."""

    repair_policies: tuple[RepairPolicy, ...]
    """Which conditions of a node mean that it must be replaced, and after how long."""

    def resolve(self, node_class: JSON, now: datetime) -> JSON:
        """The `status` a NodeClass should have now: subnets, images, conditions.

        A user's mistakes become conditions. Raises CloudProviderError if the cloud could not be asked.
        """
        ...

    def annotations(self, node_class: JSON) -> Mapping[str, str]:
        """The annotations a NodeClass should carry: the hash of what its nodes are made from, for drift.

        Raises InvalidObjectError if it does not validate.
        """
        ...

    def release(self, node_class: JSON) -> None:
        """Take back what was made for a NodeClass that nothing needs any more; safe to repeat. Raises CloudProviderError."""
        ...

    def get_instance_types(self, node_class: JSON) -> tuple[InstanceType, ...]:
        """What this NodeClass could launch, by name, with current prices. Raises CloudProviderError."""
        ...

    def launch(self, requests: Sequence[LaunchRequest]) -> Iterator[LaunchOutcome]:
        """Launch, several at once; outcomes come as they are known, one for each request.

        Leaving the iterator early begins no further launch; those under way finish, and asking again finds them.
        """
        ...

    def list(self) -> tuple[Instance, ...]:
        """All live instances of this cluster (terminated ones left out), by provider id."""
        ...

    def get(self, provider_id: str) -> Instance:
        """One instance, shutting-down ones included. Raises NodeClaimNotFoundError once it is gone or terminated."""
        ...

    def delete(self, provider_id: str) -> None:
        """Start terminating; safe to repeat. Raises NodeClaimNotFoundError once it is gone."""
        ...

    def statuses(self) -> tuple[InstanceStatus, ...]:
        """What the cloud's own checks find wrong with instances, by provider id; other clusters' may be among them.

        Empty where a cloud has no such checks. Raises CloudProviderError.
        """
        ...

    def prices(self) -> Prices:
        """How old the prices in `get_instance_types` are. Makes no call and raises nothing."""
        ...


EVERY_CLUSTER: Final = "*"
"""The cluster of a trigger that names none: its step runs for every registered cluster."""


class TriggerEnvelope(Struct, frozen=True, kw_only=True):
    """What every trigger carries; `time` is when it happened, by the sender's clock."""

    id: str
    cluster: str
    reason: str
    time: datetime


class ClusterChanged(TriggerEnvelope, frozen=True, kw_only=True):
    """The forwarder: pods are unschedulable, or nodes, NodeClaims, NodePools or NodeClasses changed."""

    step: Step
    counts: Mapping[str, int] = field(default_factory=dict)
    oldest_pending_time: datetime | None = None


class RequeueDue(TriggerEnvelope, frozen=True, kw_only=True):
    """A step asked to run again; `at`, if given, is when it is due."""

    step: Step
    at: datetime | None = None


class ScheduledRun(TriggerEnvelope, frozen=True, kw_only=True):
    """A schedule fired: the sweep of every minute, or a budget window that opens."""

    step: Step


class Interruption(TriggerEnvelope, frozen=True, kw_only=True):
    """The cloud says that instances are interrupted, or might be; `time` is the event's own."""

    step: ClassVar[Step] = Step.INTERRUPT

    kind: InterruptionKind
    instance_ids: tuple[str, ...]


class ApiRequest(TriggerEnvelope, frozen=True, kw_only=True):
    """A person or a script asks what a step would do; nothing is written."""

    step: Step


Trigger = ClusterChanged | RequeueDue | ScheduledRun | Interruption | ApiRequest
"""Why a step runs. `events.parse_trigger` makes one of whatever a function is handed; nothing parses it again."""


class Message(Struct, frozen=True, kw_only=True):
    """Run `step` for `cluster`; `at` None means now. Delivered at least once, in order within (cluster, step)."""

    cluster: str
    step: Step
    reason: str
    at: datetime | None = None


class Queue(Protocol):
    """Sends messages to the steps' queues."""

    def send(self, messages: Iterable[Message]) -> None:
        """Send; those that are not due yet wait in the requeue queue. Raises CloudProviderError if one was not accepted."""
        ...

    def retry_now(self, queue: str, receipts: Sequence[str]) -> None:
        """Let messages received from a queue (named as the platform names it: an ARN) be delivered again at once.

        A queue's message group waits until a failed message is delivered again. A queue that is not ours is ignored.
        Raises CloudProviderError; the messages come back later then.
        """
        ...


class Lease(Protocol):
    """The fence: which run has a step now."""

    def acquire(self) -> None:
        """Take it or raise LeaseLostError."""
        ...

    def check(self) -> None:
        """Raise LeaseLostError if another run has it; renews when half its time is gone. Call before outside effects."""
        ...

    def release(self) -> None:
        """Give it back; never raises."""
        ...


class Clock(Protocol):
    """The only source of the time."""

    def now(self) -> datetime:
        """The time, aware, UTC."""
        ...


class Telemetry(Protocol):
    """Where logs, Events and metrics go."""

    def log(self, level: str, message: str, **fields: Any) -> None:
        """One structured line."""
        ...

    def event(self, event: Event) -> None:
        """A Kubernetes Event. Never raises: a lost Event must not stop the work."""
        ...

    def observe(self, observation: Observation) -> None:
        """A metric sample."""
        ...
