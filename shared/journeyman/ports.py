"""Protocols of the API server, the cloud, the queues, the clock and telemetry, and the values that they take and return.

Steps depend on these Protocols only. Adapters implement them, and translate their SDK's errors into `journeyman.errors`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.launch_faults import LaunchFault
from journeyman.core.api.objects import NodeClaim, OfferingKey, Resource
from journeyman.core.catalogue import InstanceType
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Event, Observation, ScheduleEntry, Step
from journeyman.core.state import BuildFailure, InstanceStatus, NodeClassState, RepairPolicy
from journeyman.errors import CloudProviderError, KubeAPIError

T = TypeVar("T")
JSON = Mapping[str, Any]


class Listing(Struct, Generic[T], frozen=True, kw_only=True):
    """The items of one list call, all at the same `resource_version`; `in_order` if they are sorted by namespace and name."""

    items: tuple[T, ...]
    resource_version: str
    in_order: bool = False


class WatchEvent(Struct, Generic[T], frozen=True, kw_only=True):
    """One change of a watch; `type` is ADDED, MODIFIED, DELETED or BOOKMARK (then `object` is None)."""

    type: str
    object: T | None
    resource_version: str


class Patch(Struct, frozen=True, kw_only=True):
    """One JSON merge patch; `metadata.resourceVersion` and `metadata.uid` inside it are preconditions."""

    name: str
    body: JSON
    namespace: str = ""


class KubeStore(Protocol):
    """One cluster's API server. Every method may raise `KubeAPIError` and its subclasses.

    Reads decode into `resource.type` (a msgspec Struct, or dict). Writes take and return raw JSON.
    """

    def version(self) -> tuple[int, int]:
        """Return the API server's major and minor version."""
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
        """Return all objects of a kind. `cached` allows a slightly stale list from the API server's watch cache."""
        ...

    def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """Return one object. Raises NotFoundError."""
        ...

    def create(self, resource: Resource[Any], body: JSON, *, namespace: str = "") -> dict[str, Any]:
        """Create an object, and return it as stored. Raises AlreadyExistsError, InvalidError."""
        ...

    def patch(
        self, resource: Resource[Any], name: str, patch: JSON, *, namespace: str = "", subresource: str = ""
    ) -> dict[str, Any]:
        """Send a JSON merge patch, and return the object as stored.

        `metadata.resourceVersion` and `metadata.uid` in the patch are preconditions (ConflictError). The API server ignores
        the UID in patches of a custom resource's status; pass the resourceVersion as well, which is unique to the object.
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
        """Send a server-side apply, and return the object as stored. `body` need not repeat the name.

        Fields that `manager` applied earlier and that are missing from `body` are removed. If nothing changes, nothing is
        written. Raises ConflictError if another manager owns a field with another value, unless `force`; InvalidError.
        """
        ...

    def create_each(self, resource: Resource[Any], bodies: Sequence[JSON]) -> tuple[dict[str, Any] | KubeAPIError, ...]:
        """Create independent objects in parallel; return the stored object or the error of each, in order."""
        ...

    def patch_each(
        self, resource: Resource[Any], patches: Sequence[Patch], *, subresource: str = ""
    ) -> tuple[dict[str, Any] | KubeAPIError, ...]:
        """Send independent patches in parallel; return the stored object or the error of each, in order."""
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
        """Delete an object; `uid` and `resource_version` are preconditions. Raises NotFoundError, ConflictError."""
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
        """Yield changes since `resource_version` until the timeout, with bookmarks. Raises GoneError if it is too old."""
        ...


class Instance(Struct, frozen=True, kw_only=True):
    """An instance of this cluster."""

    provider_id: str
    instance_type: str
    zone: str
    capacity_type: str
    state: str  # as the cloud names it: pending, running, shutting-down, terminated…
    launched_at: datetime
    image_id: str = ""
    reservation_id: str = ""  # of the capacity reservation that it uses
    partition: str = ""  # the partition of its placement group, if that has any
    placement_group_id: str = ""
    subnet_id: str = ""  # of its primary network interface
    security_group_ids: tuple[str, ...] = ()  # of that interface, sorted
    tags: Mapping[str, str] = field(default_factory=dict)
    failure: BuildFailure | None = None  # why the cloud could not build it, after it had accepted the launch

    @property
    def claim(self) -> str:
        """The name of the NodeClaim that it was launched for, from its tag; empty without the tag."""
        return self.tags.get(labels.NODECLAIM_TAG, "")

    @property
    def claim_uid(self) -> str:
        """The UID of that NodeClaim, from its tag; empty without the tag, which Karpenter's instances lack."""
        return self.tags.get(labels.NODECLAIM_UID_TAG, "")

    @property
    def node_pool(self) -> str:
        """The name of its NodePool, from its tag; empty without the tag."""
        return self.tags.get(labels.NODEPOOL, "")

    @property
    def cluster_uid(self) -> str:
        """The UID of the cluster that launched it, from its tag; empty without the tag, which older releases did not set."""
        return self.tags.get(labels.CLUSTER_UID_TAG, "")


class LaunchRequest(Struct, frozen=True, kw_only=True):
    """A launch of one instance for a NodeClaim. Repeating it with the same claim UID never launches a second one."""

    claim: NodeClaim
    node_class: NodeClassState
    instance_types: tuple[InstanceType, ...]  # those of the NodePool, without unavailable offerings
    full_subnets: frozenset[str] = frozenset()  # ids of subnets that had no free address a short while ago
    cluster_uid: str = ""  # the UID of the namespace kube-system, for the instance's tags; empty if unknown


class LaunchRefusal(Struct, frozen=True, kw_only=True):
    """An offering that a launch requested and the cloud refused; `reason` as in the Launched condition of a failed launch."""

    zone: str
    zone_id: str
    capacity_type: str
    reason: str


class Launched(Struct, frozen=True, kw_only=True):
    """A launch that succeeded: the instance, and what is written into the claim's labels, annotations and status."""

    claim: str
    instance: Instance
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    capacity: Mapping[str, str]  # quantities as text
    allocatable: Mapping[str, str]
    price: float
    unavailable: tuple[OfferingKey, ...] = ()  # offerings to mark unavailable
    unavailable_for_class: tuple[OfferingKey, ...] = ()  # those that only this NodeClass's settings make unavailable
    faults: tuple[LaunchFault, ...] = ()  # of subnets that refused the launch before
    refusals: tuple[LaunchRefusal, ...] = ()  # each refusal, for the metrics
    user_data_bytes: int = 0  # 0 if the size of the user data is unknown
    is_confirmed: bool = True  # False if the cloud accepted the launch, and may still fail to build the instance


class LaunchFailed(Struct, frozen=True, kw_only=True):
    """A launch that failed; `error` is a CloudProviderError (InsufficientCapacity, NodeClassNotReady, Create, RateLimited…).

    `answered` is True if the cloud's response proves that no instance was launched: the next attempt is a new launch.
    Otherwise this attempt or an earlier one may have launched an instance, and the next attempt repeats this one.

    `faults` are the objects whose fault it is: the NodeClaim of a NodePool is then deleted, and its pods are scheduled again.
    `unavailable_for_class` are offerings that only this NodeClass's settings make unavailable.
    """

    claim: str
    error: Exception
    unavailable: tuple[OfferingKey, ...] = ()
    unavailable_for_class: tuple[OfferingKey, ...] = ()
    faults: tuple[LaunchFault, ...] = ()
    refusals: tuple[LaunchRefusal, ...] = ()
    user_data_bytes: int = 0
    answered: bool = False
    retry_after: timedelta = timedelta(0)


LaunchOutcome = Launched | LaunchFailed


class Prices(Struct, frozen=True, kw_only=True):
    """The source, age and currency of the prices of offerings. A time is None if prices were not read yet, or no read succeeded.

    `on_demand` are the prices per hour that the cloud's pricing API returned, by instance type. Reading them takes long, so one
    process records them for the others (`CloudProvider.adopt_prices`).
    """

    on_demand_refreshed_at: datetime | None = None
    on_demand_tried_at: datetime | None = None  # also if the read failed
    on_demand_due_at: datetime | None = None  # when `refresh_prices` reads them again; None: never
    spot_refreshed_at: datetime | None = None
    source: str = ""  # of on-demand prices: the cloud's API, or the table in the adapter's package
    message: str = ""  # the errors of the last reads of on-demand and Spot prices; empty if both succeeded
    currency: str = ""  # of all prices
    estimated: bool = False  # on-demand prices are those of another region
    on_demand: Mapping[str, float] = field(default_factory=dict)


class CloudProvider(Protocol):
    """One cloud account and region, for one cluster."""

    name: str
    """The cloud's name in metrics, such as `aws`."""

    node_class: Resource[dict[str, Any]]
    """The NodeClass kind of this cloud."""

    repair_policies: tuple[RepairPolicy, ...]
    """The node conditions after which a node is repaired, each with its toleration."""

    def resolve(self, node_class: JSON, now: datetime) -> JSON:
        """Return the `status` that a NodeClass should have now: subnets, images, conditions.

        A user's mistakes become conditions. Raises CloudProviderError if a request to the cloud fails.
        """
        ...

    def annotations(self, node_class: JSON) -> Mapping[str, str]:
        """Return the annotations that a NodeClass should have: the hash of its spec, for drift, and the hash's version.

        Raises InvalidObjectError if the NodeClass does not validate.
        """
        ...

    def release(self, node_class: JSON) -> None:
        """Delete what was created in the cloud for an unused NodeClass; safe to repeat. Raises CloudProviderError."""
        ...

    def delete_unused(self, node_classes: Sequence[JSON], claims: Sequence[NodeClaim]) -> Mapping[str, Sequence[str]]:
        """Delete what was created in the cloud for launches and NodeClasses of the past, and is not used any more.

        Args:
            node_classes: All NodeClasses of this cloud's kind, as stored now.
            claims: All NodeClaims of this cloud, as stored now.

        Returns:
            The names of what was deleted, by kind.

        Raises:
            CloudProviderError: The cloud refused a request, or did not respond; safe to repeat.
        """
        ...

    def get_instance_types(self, node_class: JSON) -> tuple[InstanceType, ...]:
        """Return the NodeClass's instance types, sorted by name, with current prices.

        Raises CloudProviderError, and InvalidObjectError if the NodeClass does not validate.
        """
        ...

    def launch(self, requests: Sequence[LaunchRequest]) -> Iterator[LaunchOutcome]:
        """Launch several instances in parallel; yield the outcome of each request as it is known.

        Closing the iterator early starts no further launch. Launches in flight finish; repeating a request finds its instance.
        """
        ...

    def list(self) -> tuple[Instance, ...]:
        """Return this cluster's instances that are not terminated, sorted by provider id."""
        ...

    def get_each(self, provider_ids: Iterable[str]) -> Mapping[str, Instance]:
        """Return the instances that exist by provider id, also while they shut down; ids that no instance can have are left out.

        It sends as few requests as the cloud allows. Raises CloudProviderError.
        """
        ...

    def delete_each(self, provider_ids: Iterable[str]) -> Mapping[str, CloudProviderError]:
        """Start terminating instances in as few requests as the cloud allows; safe to repeat.

        Returns:
            The error of each instance that the cloud did not accept, by provider id: NodeClaimNotFoundError once it is
            terminated. No instance's error keeps another one running.
        """
        ...

    def name_instance(self, provider_id: str, name: str) -> None:
        """Give an instance a name that the console shows; nothing on a cloud that names instances itself. Safe to repeat.

        Raises NodeClaimNotFoundError once it is terminated, and CloudProviderError.
        """
        ...

    def statuses(self) -> tuple[InstanceStatus, ...]:
        """Return the failing status checks of instances, sorted by provider id; instances of other clusters may be included.

        Empty if the cloud has no status checks. Raises CloudProviderError.
        """
        ...

    def end_reasons(self, provider_ids: Collection[str]) -> Mapping[str, BuildFailure]:
        """Return why these instances ended, by provider id, as far as the cloud still says.

        Raises:
            CloudProviderError: The cloud refused a request, or did not respond.
        """
        ...

    def is_drifted(self, claims: Sequence[NodeClaim], node_classes: Sequence[NodeClassState]) -> Mapping[str, str]:
        """Return why each NodeClaim's instance differs from what its NodeClass asks for now; cheap for any number of NodeClaims.

        It compares the hashes of NodeClass and NodeClaim, and the instances with the NodeClass's status. At most every
        few minutes it lists the cluster's instances, which takes one request for each page, and never one for each NodeClaim.

        Args:
            claims: Launched NodeClaims, any order.
            node_classes: The NodeClasses of this cloud's kind, with their status.

        Returns:
            Karpenter's reason, such as `NodeClassDrift`, by name of the NodeClaim; empty text if it has not drifted. A NodeClaim
            is missing if the answer is unknown: its NodeClass has found nothing yet, or its instance was not listed.

        Raises:
            CloudProviderError: The cloud refused a request, or did not respond; nothing is known.
        """
        ...

    def prices(self) -> Prices:
        """Return how old the prices in `get_instance_types` are. Makes no call and raises nothing."""
        ...

    def adopt_prices(self, recorded: Prices) -> None:
        """Use the on-demand prices that another process recorded, if they are newer. Makes no call and raises nothing."""
        ...

    def refresh_prices(self) -> None:
        """Read on-demand prices from the cloud if they are due, which may take half a minute.

        A failure keeps the last prices; `prices` then has its message. Raises nothing.
        """
        ...


EVERY_CLUSTER: Final = "*"
"""The cluster of a trigger that names no cluster: the step runs for every registered one."""


class TriggerEnvelope(Struct, frozen=True, kw_only=True):
    """The fields of every trigger.

    `time` is when it happened, by the sender's clock. `hops` is the number of requeues before it in its chain of messages. `at` is
    when a requeue message is due; None for at once.
    """

    id: str
    cluster: str
    reason: str
    time: datetime
    hops: int = 0
    at: datetime | None = None


class ClusterChanged(TriggerEnvelope, frozen=True, kw_only=True):
    """The forwarder reports unschedulable pods, or changed nodes, NodeClaims, NodePools or NodeClasses."""

    step: Step
    counts: Mapping[str, int] = field(default_factory=dict)
    oldest_pending_time: datetime | None = None


class RequeueDue(TriggerEnvelope, frozen=True, kw_only=True):
    """A requeue message."""

    step: Step


class ScheduledRun(TriggerEnvelope, frozen=True, kw_only=True):
    """A schedule fired: the sweep of every minute, or a budget window that opens."""

    step: Step


class Interruption(TriggerEnvelope, frozen=True, kw_only=True):
    """The cloud reports that instances are interrupted, or at risk of it; `time` is that of the cloud's event.

    `account` and `region` are where the instances are, if the event has them.
    """

    step: ClassVar[Step] = Step.INTERRUPT

    kind: InterruptionKind
    instance_ids: tuple[str, ...]
    account: str = ""
    region: str = ""


class AlarmChanged(TriggerEnvelope, frozen=True, kw_only=True):
    """An alarm of the cloud changed its state at `time`; while it is firing, disruption is paused."""

    step: ClassVar[Step] = Step.INTERRUPT

    alarm: str
    is_firing: bool


class ApiRequest(TriggerEnvelope, frozen=True, kw_only=True):
    """A request to the HTTP API for what a step would do; the step writes nothing."""

    step: Step


Trigger = ClusterChanged | RequeueDue | ScheduledRun | Interruption | AlarmChanged | ApiRequest
"""Why a step runs. `events.parse_trigger` parses a function's event into one of these; nothing parses it again."""


class Message(Struct, frozen=True, kw_only=True):
    """A message that starts `step` for `cluster` at `at` (None: now). Delivered at least once, in order by cluster and step.

    `hops` is its place in a chain of messages: each was sent by a run that the one before started.
    """

    cluster: str
    step: Step
    reason: str
    at: datetime | None = None
    hops: int = 0


class ReceivedMessage(Struct, frozen=True, kw_only=True):
    """A message as its queue passed it to this process.

    `queue` is the queue's ARN on AWS, and the name of its step on the other clouds; empty if the event names none. `receipt` is what
    the queue needs to change this receive; empty on a cloud whose queue has no such changes. `group` is its message group;
    a standard queue has none. `receives` counts this receive and those before it.
    """

    id: str
    body: str
    queue: str = ""
    receipt: str = ""
    group: str = ""
    receives: int = 1


class Queue(Protocol):
    """Sends messages to the steps' queues, and settles the messages that this process received from them."""

    def send(self, messages: Iterable[Message]) -> None:
        """Send messages; each is delivered when it is due. Raises CloudProviderError or ConfigurationError if one is refused."""
        ...

    def hold(self, messages: Sequence[ReceivedMessage]) -> AbstractContextManager[None]:
        """Keep received messages of one queue to this process inside the block.

        If the process dies inside it, they are delivered again within seconds, and not after the queue's visibility timeout.
        Raises nothing: a message that cannot be held may be delivered a second time.
        """
        ...

    def retry(self, seconds_by_message: Mapping[ReceivedMessage, int]) -> None:
        """Deliver received messages of one queue again after so many seconds, with one more receive.

        A message whose receives are used up goes to the dead-letter queue instead. A message group waits until its failed message
        is delivered again. Raises CloudProviderError if the queue refuses one.
        """
        ...

    def send_interruptions(self, queue: str, interruptions: Sequence[Interruption], delay_seconds: int) -> None:
        """Send interruptions of one cluster each to the queue of their message; they are delivered after so many seconds.

        Raises CloudProviderError if one was not sent.
        """
        ...

    def send_to_dead_letters(self, messages: Sequence[ReceivedMessage]) -> bool:
        """Send copies of messages of one queue that can never succeed to its dead-letter queue; return False if it has none.

        Raises CloudProviderError if one was not sent.
        """
        ...


class WindowSchedules(Protocol):
    """The entries of the cloud's scheduler for one cluster: each starts a step once, when a window opens or closes."""

    def list(self, prefix: str) -> frozenset[str]:
        """Return the names of the entries that start with the cluster's prefix. Raises CloudProviderError."""
        ...

    def create(self, entry: ScheduleEntry) -> None:
        """Create an entry; done if one of that name exists. Raises CloudProviderError."""
        ...

    def delete(self, name: str) -> None:
        """Delete an entry; done if it does not exist. Raises CloudProviderError."""
        ...


class Lease(Protocol):
    """The Lease of one step in one cluster: only the run that holds it may write."""

    next_run: datetime | None
    """When a message that an earlier run sent starts the step again, known once the Lease is acquired; None if there is none."""

    examined_until: str
    """The last object that an earlier run examined before its time was up, known once the Lease is acquired; empty if there is none."""

    disbelieved: str
    """Why this run has acquired a Lease that another holder claims, as text, known once it is acquired; empty if none does."""

    def acquire(self) -> None:
        """Acquire the Lease. Raises LeaseLostError if another run holds it."""
        ...

    def check(self) -> None:
        """Renew the Lease once a quarter of its duration has passed; to be called before each outside effect.

        Raises LeaseLostError if another run holds it.
        """
        ...

    def release(self, next_run: datetime | None = None, examined_until: str = "") -> None:
        """Release the Lease, and store when the next run was sent for, and after which object it continues; never raises."""
        ...


class Clock(Protocol):
    """The only source of the time."""

    def now(self) -> datetime:
        """Return the time in UTC."""
        ...


class Telemetry(Protocol):
    """Records logs, Kubernetes Events and metrics. No method raises: a lost Event must not stop a run."""

    def log(self, level: str, message: str, **fields: Any) -> None:
        """Write a log line."""
        ...

    def event(self, event: Event) -> None:
        """Record a Kubernetes Event."""
        ...

    def observe(self, observation: Observation) -> None:
        """Record a metric sample."""
        ...
