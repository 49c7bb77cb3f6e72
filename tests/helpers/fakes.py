"""Fakes with behaviour, one for each port of a step: cloud provider, queue, lease, telemetry, and a store that interferes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.event_reasons import EVENT_REASONS
from journeyman.core.api.launch_faults import LaunchFault
from journeyman.core.api.objects import EC2NODECLASS, NodeClaim
from journeyman.core.api.resources import format_resources
from journeyman.core.catalogue import InstanceType, Offering
from journeyman.core.plan import Event, Observation, Plan, ScheduleEntry, Step
from journeyman.core.state import BuildFailure, InstanceStatus, RepairPolicy
from journeyman.errors import (
    CloudProviderError,
    CreateError,
    InsufficientCapacityError,
    LeaseLostError,
    NodeClaimNotFoundError,
)
from journeyman.ports import (
    Clock,
    Instance,
    Interruption,
    Launched,
    LaunchFailed,
    LaunchOutcome,
    LaunchRequest,
    Message,
    Prices,
    ReceivedMessage,
    ScheduledRun,
)
from journeyman.steps.context import Memory, Outcome, RunContext, Settings
from journeyman.steps.load import EVERYTHING, load
from journeyman.steps.scheduling_inputs import StepInputs
from journeyman.steps.step import Reconciler, StepDefinition, run_step
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.judge import verify_strictly
from journeyman_simulator.kubelet import Machine
from tests.helpers import builders

SHUT_DOWN = timedelta(seconds=12)


class FakeCloud:
    """A cloud provider that launches the cheapest type a NodeClaim allows, and the machine source of the simulated kubelets.

    The NodeClaim's UID is the client token.

    Attributes:
        out_of_stock: Offerings (type, zone, capacity type) for which a launch fails with insufficient capacity.
        failures: Errors to raise, one for each NodeClaim of a launch and each release of a NodeClass.
        ready: Whether `resolve` sets a NodeClass Ready.
        failed_checks: The result of `statuses`: instances with failed status checks.
        drifted: The result of `is_drifted` by name of the NodeClaim, for those that have drifted; None for an unknown answer.
        drift_error: The error of `is_drifted`, if any.
        broken: Faults of launches, by the name of the NodePool or NodeClass that has each.
        dies: By NodePool, how long after its launch an instance ends, and why; the cloud forgets none of the reasons.
        offered: What the kubelets of an instance type report as allocatable instead of what the catalogue says, by its name.
        frozen: Provider ids of the instances that run without their kubelet.
        deletions: The provider ids of each request to terminate instances.
        names: The names that were given to instances, by provider id.
        refusals: The errors of the next terminations of an instance, by provider id.
        released: The names of the released NodeClasses.
        cleanups: The names of the NodeClasses and NodeClaims at each deletion of unused resources.
        cleanup_error: The error of such deletions, if any.
    """

    name = "fake"
    node_class = EC2NODECLASS
    repair_policies = (
        RepairPolicy(condition="Ready", status="False", tolerated_for=timedelta(minutes=30)),
        RepairPolicy(condition="Ready", status="Unknown", tolerated_for=timedelta(minutes=30)),
        RepairPolicy(condition="AcceleratedHardwareReady", status="False", tolerated_for=timedelta(minutes=10)),
    )

    def __init__(self, clock: Clock, types: Sequence[InstanceType] = builders.TYPES) -> None:
        self.clock = clock
        self.types = tuple(types)
        self.out_of_stock: set[tuple[str, str, str]] = set()
        self.failures: list[Exception] = []
        self.ready = True
        self.failed_checks: tuple[InstanceStatus, ...] = ()
        self.drifted: dict[str, str | None] = {}
        self.drift_error: Exception | None = None
        self.broken: dict[str, LaunchFault] = {}
        self.dies: dict[str, tuple[timedelta, BuildFailure | None]] = {}
        self._reasons: dict[str, BuildFailure | None] = {}
        self.offered: dict[str, dict[str, str]] = {}
        self.frozen: set[str] = set()
        self.launches: list[str] = []
        self.deletions: list[tuple[str, ...]] = []
        self.names: dict[str, str] = {}
        self.refusals: dict[str, list[CloudProviderError]] = {}
        self.resolved = 0
        self.released: list[str] = []
        self.cleanups: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.cleanup_error: Exception | None = None
        self._by_token: dict[str, Instance] = {}
        self._labels: dict[str, dict[str, str]] = {}
        self._ends: dict[str, datetime] = {}
        self._machines: dict[str, tuple[Instance, bool, Machine]] = {}

    # -- CloudProvider ----------------------------------------------------------------------------------------------

    def resolve(self, node_class: dict[str, Any], now: datetime) -> dict[str, Any]:
        self.resolved += 1
        before = (node_class.get("status") or {}).get("conditions") or []
        since = next((c["lastTransitionTime"] for c in before if c["type"] == "Ready"), builders.stamp(now))
        ready = builders.condition(
            "Ready",
            "True" if self.ready else "False",
            reason="Ready" if self.ready else "SubnetsNotFound",
            observedGeneration=node_class["metadata"].get("generation", 0),
        )
        return {"conditions": [{**ready, "lastTransitionTime": since}]}

    def release(self, node_class: dict[str, Any]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.released.append(node_class["metadata"]["name"])

    def delete_unused(self, node_classes: Sequence[Any], claims: Sequence[Any]) -> dict[str, list[str]]:
        self.cleanups.append(
            (tuple(n["metadata"]["name"] for n in node_classes), tuple(c.metadata.name for c in claims))
        )
        if self.cleanup_error is not None:
            raise self.cleanup_error
        return {"template": ["old"]}

    def annotations(self, node_class: dict[str, Any]) -> dict[str, str]:
        return {"karpenter.k8s.aws/ec2nodeclass-hash": str(node_class["metadata"].get("generation", 0))}

    def get_instance_types(self, node_class: dict[str, Any]) -> tuple[InstanceType, ...]:
        return self.types

    def launch(self, requests: Sequence[LaunchRequest]) -> Iterator[LaunchOutcome]:
        for request in requests:
            yield self._launch(request)

    def list(self) -> tuple[Instance, ...]:
        self._pass_time()
        return tuple(i for _, i in sorted(self._by_token.items()) if i.state != "terminated")

    def get_each(self, provider_ids: Iterable[str]) -> dict[str, Instance]:
        return {i.provider_id: i for i in self.list() if i.provider_id in set(provider_ids)}

    def delete_each(self, provider_ids: Iterable[str]) -> dict[str, CloudProviderError]:
        self.deletions.append(tuple(provider_ids))
        errors = {provider_id: self._refusal(provider_id) for provider_id in self.deletions[-1]}
        return {provider_id: error for provider_id, error in errors.items() if error is not None}

    def name_instance(self, provider_id: str, name: str) -> None:
        self.names[provider_id] = name

    def statuses(self) -> tuple[InstanceStatus, ...]:
        return self.failed_checks

    def end_reasons(self, provider_ids: Collection[str]) -> dict[str, BuildFailure]:
        reasons = {id_: self._reasons.get(id_) for id_ in provider_ids}
        return {id_: reason for id_, reason in reasons.items() if reason is not None}

    def is_drifted(self, claims: Sequence[NodeClaim], node_classes: Sequence[Any]) -> dict[str, str]:
        if self.drift_error is not None:
            raise self.drift_error
        found = {c.metadata.name: self.drifted.get(c.metadata.name, "") for c in claims}
        return {name: reason for name, reason in found.items() if reason is not None}

    def prices(self) -> Prices:
        return Prices(source="the types")

    def adopt_prices(self, recorded: Prices) -> None:
        pass

    def refresh_prices(self) -> None:
        pass

    # -- changes by tests -------------------------------------------------------------------------------------

    def get(self, provider_id: str) -> Instance:
        """Return one instance. Raises NodeClaimNotFoundError."""
        for instance in self.list():
            if instance.provider_id == provider_id:
                return instance
        raise NodeClaimNotFoundError("terminated", provider_id=provider_id)

    def delete(self, provider_id: str) -> None:
        """Start terminating one instance, unless `refusals` has an error for it. Raises CloudProviderError."""
        if self.refusals.get(provider_id):
            raise self.refusals[provider_id].pop(0)
        instance = self.get(provider_id)
        if instance.state != "shutting-down":
            self._put(replace(instance, state="shutting-down"))
            self._ends[provider_id] = self.clock.now() + SHUT_DOWN

    def run_orphan(self, provider_id: str, launched_at: datetime, claim: str = "", claim_uid: str = "") -> None:
        """Add an instance with the cluster's tags that `launch` did not create."""
        tags = {labels.NODECLAIM_TAG: claim, labels.NODECLAIM_UID_TAG: claim_uid}
        tags = {key: value for key, value in tags.items() if value}
        self._by_token[provider_id] = Instance(
            provider_id=provider_id, instance_type="m.small", zone="a", capacity_type="on-demand", state="running",
            launched_at=launched_at, tags=tags,
        )  # fmt: skip

    def edit_tags(self, provider_id: str, changes: dict[str, str]) -> None:
        """Change tags of the instance."""
        instance = self.get(provider_id)
        self._put(replace(instance, tags={**instance.tags, **changes}))

    def stop(self, provider_id: str) -> None:
        """Stop the instance: it is still listed, but its kubelet does not run."""
        self._put(replace(self.get(provider_id), state="stopped"))

    def lose(self, provider_id: str) -> None:
        """Remove the instance without a notification."""
        self._put(replace(self.get(provider_id), state="terminated"))

    def machines(self) -> tuple[Machine, ...]:
        """Return the instances as machines for the simulated kubelets."""
        self._pass_time()
        return tuple(self._machine(i) for i in sorted(self._by_token.values(), key=lambda i: i.provider_id))

    @property
    def price(self) -> float:
        """Return the hourly price of the running instances."""
        return sum(self._offering(i).price for i in self.list() if i.state == "running")

    # -- inside -----------------------------------------------------------------------------------------------------

    def _refusal(self, provider_id: str) -> CloudProviderError | None:
        """Terminate one instance, and return the error, if any."""
        try:
            self.delete(provider_id)
        except CloudProviderError as error:
            return error
        return None

    def _launch(self, request: LaunchRequest) -> LaunchOutcome:
        claim = request.claim
        name, token = claim.metadata.name, claim.metadata.uid
        self.launches.append(name)
        if self.failures:
            return LaunchFailed(claim=name, error=self.failures.pop(0))
        names = (claim.metadata.labels.get(labels.NODEPOOL, ""), claim.spec.node_class_ref.name)
        fault = next((self.broken[name] for name in names if name in self.broken), None)
        if fault is not None:
            error = CreateError(fault.message, condition_reason=fault.reason)
            return LaunchFailed(claim=name, error=error, faults=(fault,), answered=True)
        options = sorted((o.price, t.name, o.zone, o.capacity_type) for t, o in _usable(claim, request.instance_types))
        refused = tuple((t, z, c) for _, t, z, c in options if (t, z, c) in self.out_of_stock)
        chosen = next((option for option in options if option[1:] not in self.out_of_stock), None)
        if token not in self._by_token:
            if chosen is None:
                return LaunchFailed(claim=name, error=InsufficientCapacityError("none left", offerings=refused))
            self._start(claim, *chosen[1:], cluster_uid=request.cluster_uid)
            self._schedule_end(self._by_token[token].provider_id, names[0])
        return self._launched(request, self._by_token[token], refused)

    def _start(self, claim: NodeClaim, type_: str, zone: str, capacity_type: str, *, cluster_uid: str) -> None:
        provider_id = f"aws:///{zone}/i-{len(self._by_token):04}"
        self._by_token[claim.metadata.uid] = Instance(
            provider_id=provider_id, instance_type=type_, zone=zone, capacity_type=capacity_type, state="running",
            launched_at=self.clock.now(),
            tags={
                labels.NODECLAIM_TAG: claim.metadata.name, labels.NODECLAIM_UID_TAG: claim.metadata.uid,
                labels.NODEPOOL: claim.metadata.labels.get(labels.NODEPOOL, ""), labels.CLUSTER_UID_TAG: cluster_uid,
            },
        )  # fmt: skip

    def _schedule_end(self, provider_id: str, pool: str) -> None:
        if pool in self.dies:
            after, self._reasons[provider_id] = self.dies[pool]
            self._ends[provider_id] = self.clock.now() + after

    def _launched(
        self, request: LaunchRequest, instance: Instance, refused: tuple[tuple[str, str, str], ...]
    ) -> Launched:
        type_ = next(t for t in (*request.instance_types, *self.types) if t.name == instance.instance_type)
        of_type = {r.key: r.values[0] for r in type_.requirements if r.operator == "In" and len(r.values) == 1}
        made = {
            **of_type,
            labels.INSTANCE_TYPE: instance.instance_type,
            labels.ZONE: instance.zone,
            labels.CAPACITY_TYPE: instance.capacity_type,
            labels.ARCH: "amd64",
            labels.OS: "linux",
        }
        self._labels[instance.provider_id] = made
        return Launched(
            claim=request.claim.metadata.name,
            instance=instance,
            labels=made,
            annotations=self.annotations(request.node_class.raw),
            capacity=format_resources(type_.capacity),
            allocatable=format_resources(type_.allocatable),
            price=self._offering(instance).price,
            unavailable=refused,
        )

    def _offering(self, instance: Instance) -> Offering:
        type_ = next(t for t in self.types if t.name == instance.instance_type)
        return next(o for o in type_.offerings if (o.zone, o.capacity_type) == (instance.zone, instance.capacity_type))

    def _machine(self, instance: Instance) -> Machine:
        """Return the instance's machine; one that is unchanged is the same object, as days of machines are many."""
        running = instance.state == "running" and instance.provider_id not in self.frozen
        known = self._machines.get(instance.provider_id)
        if known is not None and known[:2] == (instance, running):
            return known[2]
        type_ = next(t for t in self.types if t.name == instance.instance_type)
        machine = Machine(
            provider_id=instance.provider_id,
            node_name=f"ip-{instance.provider_id[-4:]}",
            running_since=instance.launched_at if running else None,
            terminated=instance.state == "terminated",
            labels=self._labels.get(instance.provider_id, {}),
            taints=({"key": labels.UNREGISTERED_TAINT, "effect": "NoExecute"},),
            capacity=format_resources(type_.capacity),
            allocatable={**format_resources(type_.allocatable), **self.offered.get(type_.name, {})},
        )
        self._machines[instance.provider_id] = (instance, running, machine)
        return machine

    def _pass_time(self) -> None:
        for provider_id, end in list(self._ends.items()):
            if self.clock.now() >= end:
                del self._ends[provider_id]
                self._put(replace(self._find(provider_id), state="terminated"))

    def _find(self, provider_id: str) -> Instance:
        return next(i for i in self._by_token.values() if i.provider_id == provider_id)

    def _put(self, instance: Instance) -> None:
        token = next(t for t, i in self._by_token.items() if i.provider_id == instance.provider_id)
        self._by_token[token] = instance


def _usable(claim: NodeClaim, types: Iterable[InstanceType]) -> Iterator[tuple[InstanceType, Offering]]:
    """Return the offerings that the NodeClaim's `In` requirements allow and that are marked available."""
    wanted = {r.key: set(r.values) for r in claim.spec.requirements if r.operator == "In"}
    for type_ in types:
        if type_.name not in wanted.get(labels.INSTANCE_TYPE, {type_.name}):
            continue
        for offering in type_.offerings:
            zone_fits = offering.zone in wanted.get(labels.ZONE, {offering.zone})
            capacity_fits = offering.capacity_type in wanted.get(labels.CAPACITY_TYPE, {offering.capacity_type})
            if offering.available and zone_fits and capacity_fits:
                yield type_, offering


@dataclass
class FakeQueue:
    """A queue that records the sent messages, dead letters and retries; it raises `fails`, if set, instead."""

    sent: list[Message] = field(default_factory=list)
    dead_letters: list[ReceivedMessage] = field(default_factory=list)
    retried: dict[str, int] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    interruptions: list[Interruption] = field(default_factory=list)
    fails: Exception | None = None

    def send(self, messages: Iterable[Message]) -> None:
        if self.fails is not None:
            raise self.fails
        self.sent.extend(messages)

    @contextmanager
    def hold(self, messages: Sequence[ReceivedMessage]) -> Iterator[None]:
        self.held.extend(message.id for message in messages)
        try:
            yield
        finally:
            self.released.extend(message.id for message in messages)

    def retry(self, seconds_by_message: Mapping[ReceivedMessage, int]) -> None:
        if self.fails is not None:
            raise self.fails
        self.retried |= {message.id: seconds for message, seconds in seconds_by_message.items()}

    def send_interruptions(self, queue: str, interruptions: Sequence[Interruption], delay_seconds: int) -> None:
        if self.fails is not None:
            raise self.fails
        self.interruptions.extend(interruptions)

    def send_to_dead_letters(self, messages: Sequence[ReceivedMessage]) -> bool:
        if self.fails is not None:
            raise self.fails
        self.dead_letters.extend(messages)
        return True


@dataclass
class FakeWindowSchedules:
    """The entries of the cloud's scheduler, by name; it raises `fails`, if set, instead of answering."""

    entries: dict[str, ScheduleEntry] = field(default_factory=dict)
    lists: int = 0
    fails: Exception | None = None

    def list(self, prefix: str) -> frozenset[str]:
        self.lists += 1
        self._fail()
        return frozenset(name for name in self.entries if name.startswith(prefix))

    def create(self, entry: ScheduleEntry) -> None:
        self._fail()
        self.entries.setdefault(entry.name, entry)

    def delete(self, name: str) -> None:
        self._fail()
        self.entries.pop(name, None)

    def _fail(self) -> None:
        if self.fails is not None:
            raise self.fails


@dataclass
class FakeLease:
    """A lease that is free or `held_by_other`; a run loses it after `checks_left` checks, if given."""

    held_by_other: bool = False
    checks_left: int | None = None
    held: bool = False
    releases: int = 0
    next_run: datetime | None = None
    examined_until: str = ""
    disbelieved: str = ""

    def acquire(self) -> None:
        if self.held_by_other:
            raise LeaseLostError("another run holds it")
        self.held = True

    def check(self) -> None:
        if self.checks_left is not None:
            self.checks_left -= 1
            if self.checks_left < 0:
                raise LeaseLostError("another run took it")

    def release(self, next_run: datetime | None = None, examined_until: str = "") -> None:
        self.held = False
        self.releases += 1
        self.next_run = next_run
        self.examined_until = examined_until


@dataclass
class Record:
    """Telemetry that records log lines, Events and observations."""

    lines: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)

    def log(self, level: str, message: str, **fields: Any) -> None:
        self.lines.append((level, message, fields))

    def event(self, event: Event) -> None:
        entry = EVENT_REASONS.get(event.reason)
        is_transition = event.message.startswith("Status condition transitioned")
        assert is_transition or (entry is not None and entry.type == event.type), event
        self.events.append(event)

    def observe(self, observation: Observation) -> None:
        self.observations.append(observation)

    @property
    def reasons(self) -> list[str]:
        """Return the reasons of the Events, in order."""
        return [event.reason for event in self.events]

    def count_of(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        return sum(o.value for o in self.observations if o.name == name)


@dataclass
class Cluster:
    """The in-memory API server, a fake cloud and the other ports of a run; `run()` returns a new run's context."""

    clock: VirtualClock = field(default_factory=lambda: VirtualClock(builders.NOW))
    settings: Settings = field(default_factory=lambda: Settings(cluster_name=builders.CLUSTER))
    queue: FakeQueue = field(default_factory=FakeQueue)
    fence: FakeLease = field(default_factory=FakeLease)
    record: Record = field(default_factory=Record)
    memory: Memory = field(default_factory=Memory)
    seconds: float = 60.0

    def __post_init__(self) -> None:
        self.server = ApiServer(self.clock)
        self.cloud = FakeCloud(self.clock)

    def run(self, **changes: Any) -> RunContext:
        """Return the context of one run, which may take `seconds` of virtual time."""
        fields = {
            "cluster": builders.CLUSTER,
            "settings": self.settings,
            "store": self.server,
            "cloud": self.cloud,
            "queue": self.queue,
            "lease": self.fence,
            "clock": self.clock,
            "telemetry": self.record,
            "deadline": self.clock.now() + timedelta(seconds=self.seconds),
            "request_id": "run-1",
            "memory": self.memory,
            "verify": verify_strictly,
        }
        return RunContext(**{**fields, **changes})

    def execute(
        self, *plans: Plan, run: RunContext | None = None, step: Step = Step.PROVISION, needs_catalogue: bool = True
    ) -> Outcome:
        """Run a step whose reconcilers return these plans."""
        definition = StepDefinition(
            name=step,
            load=lambda run, trigger: StepInputs.of(run, trigger, load(self.run(), EVERYTHING)),
            reconcilers=tuple(Reconciler(lambda _, plan=plan: plan, needs_catalogue) for plan in plans),  # type: ignore[misc]
            requeues=step,
        )
        now = self.clock.now()
        trigger = ScheduledRun(id="t", cluster=builders.CLUSTER, step=step, reason="test", time=now)
        return run_step(run or self.run(), definition, trigger)

    def add(self, *bodies: dict[str, Any]) -> None:
        """Create objects, status included, on the API server."""
        self.server.load(bodies)


class InterceptingStore:
    """A store that calls `act` just before the `nth` call of one of its methods.

    A test uses it for a change that another client makes between the step's read and its write.
    """

    def __init__(self, store: ApiServer, method: str, nth: int, act: Callable[[], None]) -> None:
        self._store = store
        self._method = method
        self._left = nth
        self._act = act

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name != self._method:
            return found

        def intercepted(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self._act()
            return found(*args, **kwargs)

        return intercepted


class Altered:
    """A store or a cloud of which some methods are a test's own."""

    def __init__(self, inner: Any, **methods: Callable[..., Any]) -> None:
        self._inner = inner
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def failing(error: BaseException) -> Callable[..., Any]:
    """Return a method that raises the error, whatever it is called with."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail
