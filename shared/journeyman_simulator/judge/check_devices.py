"""Checks that the planned devices satisfy each pod's ResourceClaims, and that no device is allocated twice.

A plan names the devices of each claim, for a new node by instance type. Each must exist, be accessible from its node, be
selected by the request, and be free. Counters and shared capacity must suffice, whichever instance types are launched.

Restates: karpenter pkg/scheduling/dynamicresources/allocator.go `Allocate`, consumable_capacity.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from journeyman.core.api import labels, quantity
from journeyman.core.api.device_selectors import (
    DeviceFacts,
    InvalidSelectorError,
    SelectorEvaluationError,
    parse_selector,
)
from journeyman.core.api.dra import (
    CapacityPolicy,
    Device,
    DeviceCapacity,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    ResourceClaim,
    ResourceSliceSpec,
)
from journeyman.core.api.objects import NodeSelector, Object, Pod, QuantityText
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Defect, PlannedDevice
from journeyman.errors import InvalidQuantityError
from journeyman_simulator.judge.possible_nodes import CheckedNode, PlanIndex


class DeviceKey(NamedTuple):
    """A device of a pool."""

    driver: str
    pool: str
    name: str


class CounterKey(NamedTuple):
    """A counter of the counter set `source`, or a capacity of the shared device `source`; the other name is empty."""

    driver: str
    pool: str
    source: str
    counter: str = ""
    capacity: str = ""


CounterAmounts = dict[CounterKey, int]
"""Nano units by counter."""


class FoundDevice(NamedTuple):
    """A device and the ResourceSlice that lists it."""

    device: Device
    slice_: ResourceSliceSpec
    facts: DeviceFacts

    @property
    def id(self) -> DeviceKey:
        """Its driver, pool and name."""
        return DeviceKey(self.slice_.driver, self.slice_.pool.name, self.device.name)

    def capacity_counter(self, name: str) -> CounterKey:
        """Return the counter of one of its capacities."""
        return CounterKey(*self.id, capacity=name)

    def counted(self) -> CounterAmounts:
        """Return the amounts that it draws on its pool's counters."""
        return {
            CounterKey(self.id.driver, self.id.pool, drawn.counter_set, counter=name): nano(counter.value)
            for drawn in self.device.consumes_counters
            for name, counter in drawn.counters.items()
        }

    def consumed(self, request: DeviceRequest) -> CounterAmounts | None:
        """Return the capacity that a request consumes of a shared device; None if the device cannot provide it."""
        requested = {name: nano(text) for name, text in request.capacity.requests.items()}
        if any(name not in self.device.capacity for name in requested):
            return None
        found: CounterAmounts = {}
        for name, capacity in self.device.capacity.items():
            amount = _rounded(requested.get(name), capacity)
            if amount is None:
                return None
            found[self.capacity_counter(name)] = amount
        return found

    def large_enough(self, request: DeviceRequest) -> bool:
        """Whether it has the capacity that the request names."""
        own = self.device.capacity
        return all(name in own and nano(own[name].value) >= nano(n) for name, n in request.capacity.requests.items())

    def reached_from(self, node: CheckedNode) -> bool:
        """Whether every node that this one may become can access it."""
        source = self.device if self.slice_.per_device_node_selection else self.slice_
        if source.all_nodes:
            return True
        if source.node_name:
            return node.state_node is not None and node.state_node.name == source.node_name
        return source.node_selector is not None and selected(node, source.node_selector)


def selected(node: CheckedNode, selector: NodeSelector) -> bool:
    """Whether a node selector selects every node that this one may become."""
    terms = [
        term.match_expressions
        for term in selector.node_selector_terms
        if all(node.state_node is not None and node.state_node.name in entry.values for entry in term.match_fields)
    ]
    return bool(terms) and not node.rows & ~node.possible.rows_meeting((tuple(terms),))


def is_selected(known: FoundDevice, selectors: Iterable[DeviceSelector]) -> bool:
    """Whether all selectors select the device."""
    try:
        return all(s.cel is not None and parse_selector(s.cel.expression).selects(known.facts) for s in selectors)
    except (InvalidSelectorError, SelectorEvaluationError):
        return False


def nano(text: QuantityText) -> int:
    """Return a quantity in nano units. Raises InvalidQuantityError."""
    return quantity.parse(text).nano


def _rounded(requested: int | None, capacity: DeviceCapacity) -> int | None:
    """Return the amount that a request consumes, rounded by the device's request policy."""
    policy = capacity.request_policy or CapacityPolicy()
    if requested is None:
        return nano(capacity.value if policy.default is None else policy.default)
    if policy.valid_range is not None:
        least = nano(policy.valid_range.min or "0")
        step = nano(policy.valid_range.step or "0")
        amount = max(requested, least)
        if step and (amount - least) % step:
            amount += step - (amount - least) % step
        return amount if policy.valid_range.max is None or amount <= nano(policy.valid_range.max) else None
    if policy.valid_values:
        return min((value for text in policy.valid_values if (value := nano(text)) >= requested), default=None)
    return requested


class SliceDevices(Struct):
    """Devices by id, the totals of counters and capacities, and the incomplete pools (driver, name)."""

    devices: dict[DeviceKey, FoundDevice] = field(default_factory=dict)
    totals: CounterAmounts = field(default_factory=dict)
    broken: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, specs: Iterable[ResourceSliceSpec], *, published: bool) -> SliceDevices:
        """Return the devices of slices; of published pools only of the newest generation."""
        pools: dict[tuple[str, str], list[ResourceSliceSpec]] = {}
        for spec in specs:
            pools.setdefault((spec.driver, spec.pool.name), []).append(spec)
        found = cls()
        for key, slices in pools.items():
            newest = max(spec.pool.generation for spec in slices)
            current = [spec for spec in slices if not published or spec.pool.generation == newest]
            names = [device.name for spec in current for device in spec.devices]
            whole = not published or len(current) == current[0].pool.resource_slice_count
            if (
                not whole
                or len(set(names)) < len(names)
                or not all(found._add(spec, published=published) for spec in current)
            ):
                found.broken.add(key)
        return found

    def _add(self, spec: ResourceSliceSpec, *, published: bool) -> bool:
        """Add a slice, which has no devices beside counters if it is published; return whether its amounts are valid."""
        driver, pool = spec.driver, spec.pool.name
        try:
            for counters in spec.shared_counters:
                for name, counter in counters.counters.items():
                    self.totals[CounterKey(driver, pool, counters.name, counter=name)] = nano(counter.value)
            for device in () if published and spec.shared_counters else spec.devices:
                found = FoundDevice(device, spec, DeviceFacts.of(driver, device))
                for name, capacity in device.capacity.items():
                    self.totals[found.capacity_counter(name)] = nano(capacity.value)
                self.devices[found.id] = found
        except InvalidQuantityError:
            return False
        return True


class DeviceUsage(Struct):
    """Allocations: the number of allocations per device, and the amounts drawn on counters."""

    devices: Counter[DeviceKey] = field(default_factory=Counter)
    parts: CounterAmounts = field(default_factory=dict)

    def take(self, known: FoundDevice, parts: CounterAmounts) -> None:
        """Add an allocation of a device with these amounts."""
        if not known.device.allow_multiple_allocations:
            self.devices[known.id] += 1
        self.add(parts)

    def add(self, parts: CounterAmounts) -> None:
        """Add amounts."""
        for key, amount in parts.items():
            self.parts[key] = self.parts.get(key, 0) + amount

    def take_maximum(self, other: DeviceUsage) -> None:
        """Raise the usage to the maximum of both."""
        self.devices |= other.devices
        for key, amount in other.parts.items():
            self.parts[key] = max(self.parts.get(key, 0), amount)

    def excess(self, totals: Mapping[CounterKey, int], in_use: DeviceUsage | None = None) -> Iterator[str]:
        """Yield as text each device and counter of which this usage takes more than `in_use` leaves of the total."""
        before = in_use if in_use is not None else DeviceUsage()
        for device, times in sorted(self.devices.items()):
            if times + before.devices[device] > 1:
                yield f"device {'/'.join(device)} is taken {times + before.devices[device]} times"
        for key, amount in sorted(self.parts.items()):
            if amount and amount + before.parts.get(key, 0) > totals.get(key, 0):
                yield f"more of {'/'.join(part for part in key if part)} is taken than there is"


def check_devices(index: PlanIndex, catalogue: Catalogue) -> Iterator[Defect]:
    """Check the devices of the plan."""
    users = {key: index.known[key] for key in index.placed if index.kind(key).asks_for_devices}
    if users or index.results.devices or any(claim.devices for claim in index.results.new_claims):
        try:
            yield from _DeviceCheck(index, catalogue).run(users)
        except InvalidQuantityError as error:
            yield Defect(f"devices are planned for although an amount cannot be read: {error.message}")


class _DeviceCheck:
    def __init__(self, index: PlanIndex, catalogue: Catalogue) -> None:
        snapshot = index.snapshot
        self._catalogue = catalogue
        self._index = index
        self._claims = {f"{c.metadata.namespace}/{c.metadata.name}": c for c in snapshot.resource_claims}
        self._classes = {found.metadata.name: found.spec.selectors for found in snapshot.device_classes}
        self._departing_pods = _departing_pods(index)
        ready = {n.name for n in index.state_nodes if n.initialized and n.node is not None and not n.is_being_disrupted}
        specs = (found.spec for found in snapshot.resource_slices if _owner(found) in {None, *ready})
        self._published = SliceDevices.of(specs, published=True)
        self._nodes_by_claim: dict[str, dict[str, list[PlannedDevice]]] = {}  # by claim and node

    def run(self, users: Mapping[str, Pod]) -> Iterator[Defect]:
        """Check each node, then all nodes together, then the pods that use the claims."""
        taken = DeviceUsage()
        for node in self._index.nodes:
            yield from self._check_node(node, taken)
        yield from map(Defect, taken.excess(self._published.totals, self._in_use()))
        for node in self._index.nodes:
            yield from self._check_users(node, {key: users[key] for key in node.planned if key in users})

    def _in_use(self) -> DeviceUsage:
        """Return the usage of the allocated claims that are not released."""
        usage = DeviceUsage()
        for claim in self._claims.values():
            allocation = claim.status.allocation
            for result in allocation.devices.results if allocation is not None and not self._is_released(claim) else ():
                known = self._published.devices.get(DeviceKey(result.driver, result.pool, result.device))
                if known is None or result.admin_access:
                    continue
                counted = (
                    {} if known.device.allow_multiple_allocations and known.id in usage.devices else known.counted()
                )
                consumed = {known.capacity_counter(name): nano(text) for name, text in result.consumed_capacity.items()}
                usage.take(known, counted | consumed)
        return usage

    def _is_released(self, claim: ResourceClaim) -> bool:
        """Whether all pods that use the claim are rescheduled or deleted."""
        users = claim.status.reserved_for
        return bool(users) and all(
            u.resource == "pods" and not u.api_group and u.uid in self._departing_pods for u in users
        )

    # -- one node -------------------------------------------------------------------------------------------------------

    def _planned_devices(self, node: CheckedNode) -> Mapping[str, Sequence[PlannedDevice]]:
        """Return the planned devices by instance type; those of an existing node have an empty key."""
        if node.claim is not None:
            return node.claim.devices
        found = self._index.results.devices.get(node.state_node.name) if node.state_node is not None else None
        return {"": found} if found else {}

    def _check_node(self, node: CheckedNode, taken: DeviceUsage) -> Iterator[Defect]:
        """Check the devices of one node for each of its instance types, and add their maximum to `taken`."""
        by_type = self._planned_devices(node)
        if node.claim is not None and by_type and set(by_type) != set(node.claim.instance_types):
            yield node.defect("the plan does not say for each of its instance types which devices are there")
        maximum = DeviceUsage()
        for name, devices in sorted(by_type.items()):
            brought = SliceDevices.of(self._template_slices(node, name), published=False)
            published, own = DeviceUsage(), DeviceUsage()
            for claim in dict.fromkeys(planned.claim for planned in devices):
                of_claim = [planned for planned in devices if planned.claim == claim]
                self._nodes_by_claim.setdefault(claim, {}).setdefault(node.name, []).extend(of_claim)
                yield from map(node.defect, self._check_claim(node, claim, of_claim, brought, (published, own)))
            yield from (node.defect(f"its {excess}") for excess in own.excess(brought.totals))
            maximum.take_maximum(published)
        taken.devices += maximum.devices
        taken.add(maximum.parts)

    def _template_slices(self, node: CheckedNode, instance_type: str) -> tuple[ResourceSliceSpec, ...]:
        """Return the slices that the node will publish, by its instance type if it is new or not initialized."""
        pool = node.claim.node_pool if node.claim is not None else ""
        if node.state_node is not None:
            if node.state_node.initialized:
                return ()
            pool, instance_type = node.state_node.node_pool, node.state_node.labels.get(labels.INSTANCE_TYPE, "")
        types = self._catalogue.instance_types(pool)
        return next((found.device_slices for found in types if found.name == instance_type), ())

    def _check_claim(
        self,
        node: CheckedNode,
        key: str,
        devices: Sequence[PlannedDevice],
        brought: SliceDevices,
        usages: tuple[DeviceUsage, DeviceUsage],
    ) -> Iterator[str]:
        """Check one claim's devices on one node for one instance type; `usages` are those of published and own devices."""
        claim, where = self._claims.get(key), f"ResourceClaim {key}"
        if claim is None:
            yield f"{where} does not exist"
            return
        by_request: dict[str, list[FoundDevice]] = {}
        for planned in devices:
            source, usage = (self._published, usages[0]) if planned.published else (brought, usages[1])
            known = source.devices.get(DeviceKey(planned.driver, planned.pool, planned.device))
            if known is None or (planned.driver, planned.pool) in source.broken:
                yield f"{where}: there is no device {planned.driver}/{planned.pool}/{planned.device} to be had"
                continue
            if planned.published and not known.reached_from(node):
                yield f"{where}: device {'/'.join(known.id)} cannot be reached from there"
            by_request.setdefault(planned.request, []).append(known)
            yield from _add_usage(where, usage, known, _request(claim, planned.request))
        for entry in claim.spec.devices.requests:
            if not any(name.partition("/")[0] == entry.name for name in by_request):
                yield f"{where}: nothing is there for request {entry.name}"
        for name, found in by_request.items():
            yield from self._check_request(f"{where}: request {name}", node, _request(claim, name), found, brought)
        for constraint in claim.spec.devices.constraints:
            yield from _check_constraint(where, constraint, by_request)

    def _check_request(
        self,
        where: str,
        node: CheckedNode,
        request: DeviceRequest | None,
        found: Sequence[FoundDevice],
        brought: SliceDevices,
    ) -> Iterator[str]:
        if request is None:
            yield f"{where} does not exist"
            return
        for known in found:
            if not self._selects(request, known):
                yield f"{where} does not select device {'/'.join(known.id)}"
        expected = request.count
        if request.allocation_mode == "All":
            reachable = [known for known in self._published.devices.values() if known.reached_from(node)]
            expected = sum(self._selects(request, known) for known in (*reachable, *brought.devices.values()))
        if len(found) != expected:
            yield f"{where} gets {len(found)} devices instead of {expected}"

    def _selects(self, request: DeviceRequest, known: FoundDevice) -> bool:
        own = self._classes.get(request.device_class_name)
        return own is not None and is_selected(known, (*own, *request.selectors)) and known.large_enough(request)

    # -- pods and claims ------------------------------------------------------------------------------------------------

    def _check_users(self, node: CheckedNode, users: Mapping[str, Pod]) -> Iterator[Defect]:
        for key, pod in users.items():
            for name in _claim_names(pod):
                yield from (Defect(f"pod {key} is scheduled {w}", (node.name,)) for w in self._check_user(node, name))

    def _check_user(self, node: CheckedNode, name: str) -> Iterator[str]:
        """Check that the node can access the devices of a pod's claims."""
        claim = self._claims.get(name)
        if claim is None:
            yield f"although it has resource claims that do not exist ({name})"
            return
        allocation = claim.status.allocation
        if allocation is not None and not self._is_released(claim):
            if allocation.node_selector is not None and not selected(node, allocation.node_selector):
                yield f"on {node.name}, from where the devices of ResourceClaim {name} cannot be reached"
            return
        if not claim.spec.devices.requests:
            return
        nodes_of_claim = self._nodes_by_claim.get(name, {})
        if len(nodes_of_claim) != 1:
            yield f"although ResourceClaim {name} gets its devices on {len(nodes_of_claim)} nodes"
        if node.name not in nodes_of_claim and not all(
            map(self._reaches(node), (planned for devices in nodes_of_claim.values() for planned in devices))
        ):
            yield f"on {node.name}, but the devices of ResourceClaim {name} are elsewhere"

    def _reaches(self, node: CheckedNode) -> Callable[[PlannedDevice], bool]:
        def reaches(planned: PlannedDevice) -> bool:
            known = (
                self._published.devices.get(DeviceKey(planned.driver, planned.pool, planned.device))
                if planned.published
                else None
            )
            return known is not None and known.reached_from(node)

        return reaches


def _departing_pods(index: PlanIndex) -> frozenset[str]:
    """The UIDs of pods that are rescheduled or deleted."""
    remaining = {node.name for node in index.state_nodes if not node.is_being_disrupted}
    disrupted = (pod for node in index.snapshot.state_nodes if node.name not in remaining for pod in node.pods)
    moved = (index.known[key] for key in index.rescheduled if index.known[key].spec.node_name)
    deleted = (pod for pod in index.snapshot.pods if pod.metadata.deletion_timestamp is not None)
    return frozenset(pod.metadata.uid for pods in (disrupted, moved, deleted) for pod in pods)


def _owner(found: Object) -> str | None:
    """Return the name of the node that publishes a slice."""
    return next((owner.name for owner in found.metadata.owner_references if owner.kind == "Node"), None)


def _claim_names(pod: Pod) -> Iterator[str]:
    """Yield the names of a pod's claims; a claim not created yet has its name in the pod."""
    created = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    for entry in pod.spec.resource_claims:
        name = entry.resource_claim_name or created.get(entry.name, f"the one for {entry.name}")
        if name:
            yield f"{pod.metadata.namespace}/{name}"
    listed = {entry.name for entry in pod.spec.resource_claims}
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        for claim in container.resources.claims:
            if claim.get("name") not in listed:
                yield f"{pod.metadata.namespace}/{claim.get('name')}"


def _request(claim: ResourceClaim, name: str) -> DeviceRequest | None:
    """Return a claim's request or subrequest by name."""
    own, _, option = name.partition("/")
    for entry in claim.spec.devices.requests:
        if entry.name == own:
            return next((o for o in entry.first_available if o.name == option), None) if option else entry.exactly
    return None


def _add_usage(where: str, usage: DeviceUsage, known: FoundDevice, request: DeviceRequest | None) -> Iterator[str]:
    """Add a device to the usage for a request, unless it has `adminAccess`."""
    if request is None or request.admin_access:
        return
    consumed = known.consumed(request) if known.device.allow_multiple_allocations else {}
    if consumed is None:
        yield f"{where}: device {'/'.join(known.id)} does not give what is asked of its capacity"
    usage.take(known, known.counted() | (consumed or {}))


def _check_constraint(
    where: str, constraint: DeviceConstraint, by_request: Mapping[str, Sequence[FoundDevice]]
) -> Iterator[str]:
    if constraint.match_attribute is None:
        yield f"{where}: it has a constraint that is not supported"
        return
    requests = set(constraint.requests)
    values = [
        known.facts.attribute(constraint.match_attribute)
        for name, found in by_request.items()
        if not requests or {name, name.partition("/")[0]} & requests
        for known in found
    ]
    if any(value is None or value != values[0] for value in values):
        yield f"{where}: its devices differ in {constraint.match_attribute}"
