"""Implements ECS servers: their records and states, ListServersDetails, and what happens to them without a request of Journeyman.

A record exists from CreateNode on, in state BUILD, although ECS shows a server only once CCE's job has created it. States:
BUILD, ACTIVE, SHUTOFF; a deleted server is DELETED, and no answer shows it. A record keeps every change of state with its time,
so that a read can return the state of some seconds ago.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final

from msgspec import Struct, field

from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.instance_states import (
    InstanceObservation,
    StateChange,
    StateHistory,
    TimedTransitions,
)
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.huawei_account.ecs_flavors import FlavorCatalogue
from journeyman_simulator.huawei_account.ecs_traces import EcsEvents
from journeyman_simulator.huawei_account.huawei_vpc import HuaweiVpc
from journeyman_simulator.huawei_account.rest_errors import invalid_request, server_not_found
from journeyman_simulator.huawei_account.rest_operations import OperationHandlers, RestRequest

JSON = Mapping[str, Any]
BUILD: Final = "BUILD"
ACTIVE: Final = "ACTIVE"
SHUTOFF: Final = "SHUTOFF"
DELETED: Final = "DELETED"
_NODE_PART, _SERVER_PART = "-0cce-", "-0ec5-"
_DEFAULT_LIMIT: Final = 25
_MOST_IDS: Final = 100


class HuaweiTiming(Struct, frozen=True, kw_only=True):
    """The duration of each step, in seconds, and the delay until ECS's lists show a change."""

    server_seconds: float = 40  # from CreateNode to a running server
    install_seconds: float = 60  # until CCE has prepared the node
    deletion_seconds: float = 40
    stop_seconds: float = 20
    interruption_notice_seconds: float = 300  # "about 5 minutes"
    list_lag_seconds: float = 0
    deleted_known_seconds: float = 3600  # for observers of the account; no answer shows a deleted server


class HuaweiInstance(StateHistory, kw_only=True, eq=False):
    """The record of a server, which is a CCE node."""

    id: str  # of the ECS server
    node_id: str  # of the CCE node
    cluster_id: str
    name: str
    instance_type: str
    zone: str
    subnet_id: str
    address: str
    capacity_type: str  # "spot" or "on-demand"
    launched_at: datetime
    tags: dict[str, str]
    spec: JSON = field(default_factory=dict)  # of the CreateNode request, with labels and taints
    joins: bool = True  # whether its kubelet registers a node
    build_failure: str = ""  # why its job fails; empty if it succeeds
    is_reclaimed: bool = False  # whether ECS is about to delete this Spot server
    deleting_since: datetime | None = None  # when CCE began to delete the node

    @property
    def is_deleting(self) -> bool:
        """Whether CCE is deleting the node, or has deleted it."""
        return self.deleting_since is not None

    @property
    def running_since(self) -> datetime | None:
        """Return when the server began to run; None if it does not run."""
        return self.since(ACTIVE)


def server_id_of(node_id: str) -> str:
    """Return the id of the server of a CCE node, which the simulation derives from the node's."""
    return node_id.replace(_NODE_PART, _SERVER_PART)


class SimulatedServers(TimedTransitions):
    """The account's servers, including recently deleted ones."""

    def __init__(
        self,
        *,
        time: ServiceTime,
        events: EcsEvents,
        network: HuaweiVpc,
        catalogue: FlavorCatalogue,
        timing: HuaweiTiming,
        project_id: str,
    ) -> None:
        super().__init__(time)
        self._events = events
        self._network = network
        self._catalogue = catalogue
        self._timing = timing
        self._project_id = project_id
        self._serial = count(1)
        self._never_joining = 0
        self._build_failures: list[str] = []
        self.known: dict[str, HuaweiInstance] = {}
        self.observers: list[Callable[[InstanceObservation], object]] = []
        self.on_gone: list[Callable[[HuaweiInstance], object]] = []  # called when ECS has reclaimed a Spot server

    # -- reads ---------------------------------------------------------------------------------------------------

    def require(self, instance_id: str) -> HuaweiInstance:
        """Return a server that ECS has. Raises ServiceError if it does not exist (yet)."""
        instance = self.known.get(instance_id)
        if instance is None or instance.state in {BUILD, DELETED}:
            raise server_not_found(instance_id)
        return instance

    def alive(self) -> list[HuaweiInstance]:
        """Return the servers that are not deleted, and those that CCE will create."""
        return [instance for instance in self.known.values() if instance.state != DELETED]

    def handlers(self) -> OperationHandlers:
        """Return the handler of ECS's operation."""
        return {"ListServersDetails": self._list}

    # -- for CCE -------------------------------------------------------------------------------------------------

    def launch(
        self, *, name: str, cluster_id: str, subnet_id: str, spec: JSON, capacity_type: str, tags: Mapping[str, str]
    ) -> HuaweiInstance:
        """Record the server that CCE will create in a subnet which has a free address."""
        node_id = f"{next(self._serial):08x}{_NODE_PART}4000-8000-000000000000"
        instance = HuaweiInstance(
            id=server_id_of(node_id),
            node_id=node_id,
            cluster_id=cluster_id,
            name=name,
            instance_type=spec["flavor"],
            zone=spec["az"],
            subnet_id=subnet_id,
            address=self._network.assign_address(subnet_id),
            capacity_type=capacity_type,
            launched_at=self._time.now(),
            tags=dict(tags),
            spec=spec,
            joins=self._never_joining == 0,
            build_failure=self._build_failures.pop(0) if self._build_failures else "",
            changes=[StateChange(self._time.now(), BUILD)],
        )
        self._never_joining = max(0, self._never_joining - 1)
        self.known[instance.id] = instance
        self._notify("launched", instance)
        self._notify(BUILD, instance)
        return instance

    def create(self, instance: HuaweiInstance) -> None:
        """Create the server of a record, which then runs."""
        self._enter(instance, ACTIVE)
        self._events.publish("createServer", instance.id, instance.name)

    def fail(self, instance: HuaweiInstance) -> None:
        """End a record whose server could not be created."""
        self._release(instance)

    def begin_deletion(self, instance: HuaweiInstance) -> None:
        """Delete a server for CCE, after which it is DELETED. It may not exist yet."""
        if instance.is_deleting or instance.state == DELETED:
            return
        instance.deleting_since = self._time.now()
        self._notify("deletion-requested", instance)
        self.after(self._timing.deletion_seconds, lambda: self._release(instance))

    def note_deletion(self, instance: HuaweiInstance) -> None:
        """Notify observers that the node of a server that is gone is being deleted."""
        self._notify("deletion-requested", instance)

    def after(self, seconds: float, transition: Callable[[], object]) -> None:
        """Make a transition later."""
        self._schedule(seconds, transition)

    # -- without a request of Journeyman ---------------------------------------------------------------------------

    def interrupt(self, instance_id: str) -> None:
        """Reclaim a Spot server with about 5 minutes' notice: publish a trace, and delete it and its node later.

        Raises:
            ConfigurationError: No Spot server with that id runs.
        """
        instance = self.known.get(instance_id)
        if instance is None or instance.capacity_type != "spot" or instance.state != ACTIVE or instance.is_deleting:
            raise ConfigurationError("only a running Spot server can be reclaimed", instance=instance_id)
        if instance.is_reclaimed:
            return
        instance.is_reclaimed = True
        self._events.publish("interruptServer", instance.id, instance.name, by_system=True)
        self.after(self._timing.interruption_notice_seconds, lambda: self._reclaim(instance))

    def terminate(self, instance_id: str) -> None:
        """Delete a server, as a user can in the console; its node stays. Raises ServiceError if ECS cannot delete it."""
        instance = self.require(instance_id)
        if instance.is_reclaimed:
            raise ServiceError("Ecs.0005", f"The server {instance_id} is being reclaimed and cannot be deleted.")
        self._notify("deletion-requested", instance)
        self._release(instance)

    def stop(self, instance_id: str) -> None:
        """Stop a server, as a user can in the console. Raises ServiceError if it does not exist."""
        instance = self.require(instance_id)
        if instance.state == ACTIVE:
            self.after(self._timing.stop_seconds, lambda: self._advance(instance, ACTIVE, SHUTOFF))
            self._events.publish("stopServer", instance.id, instance.name)

    def start(self, instance_id: str) -> None:
        """Start a stopped server. Raises ServiceError if it does not exist, or ECS is reclaiming it."""
        instance = self.require(instance_id)
        if instance.is_reclaimed:
            raise ServiceError("Ecs.0005", f"The server {instance_id} is being reclaimed and cannot be started.")
        self._advance(instance, SHUTOFF, ACTIVE)
        self._events.publish("startServer", instance.id, instance.name)

    def prevent_next_from_joining(self, number: int = 1) -> None:
        """Prevent the servers of the next `number` launches from registering a node."""
        self._never_joining += number

    def end_next_early(self, number: int = 1, *, reason: str, after_seconds: float = 0) -> None:
        """Let the jobs of the next `number` nodes fail with this text; CCE decides when."""
        self._build_failures += [reason] * number

    def launch_normally(self) -> None:
        """Let the jobs of all further nodes succeed."""
        self._build_failures.clear()

    def schedule_maintenance(self, server_id: str, event_type: str, within: timedelta, state: str) -> str:
        """Schedule an event of a server's host, and return its id. Raises ServiceError if the server does not exist.

        Args:
            server_id: The server.
            event_type: "instance-redeploy", "instance-stop", and so on.
            within: The time until the event is carried out.
            state: "scheduled", or "inquiring" if it waits for the user's consent and is not carried out without it.
        """
        self.require(server_id)
        event = self._events.schedule(server_id, event_type, state, self._time.now() + within)
        self.after(within.total_seconds(), lambda: self._carry_out(event.id))
        return event.id

    def cancel_maintenance(self, event_id: str) -> None:
        """Cancel a scheduled event."""
        self._events.set_state(event_id, "canceled")

    # -- transitions ---------------------------------------------------------------------------------------------

    def _reclaim(self, instance: HuaweiInstance) -> None:
        if instance.state != DELETED:
            self._release(instance, by_system=True)
            for callback in self.on_gone:
                callback(instance)

    def _release(self, instance: HuaweiInstance, *, by_system: bool = False) -> None:
        if instance.state == DELETED:
            return
        existed = instance.state != BUILD
        self._network.subnets[instance.subnet_id].free += 1
        self._enter(instance, DELETED)
        if existed:
            self._events.publish("deleteServer", instance.id, instance.name, by_system=by_system)
        self.after(self._timing.deleted_known_seconds, lambda: self.known.pop(instance.id, None))

    def _carry_out(self, event_id: str) -> None:
        """Carry out a scheduled event: stop the server, or start it again, which leaves it ACTIVE."""
        event = self._events.scheduled[event_id]
        if event.state != "scheduled":
            return
        self._events.set_state(event_id, "executing")
        instance = self.known.get(event.server_id)
        if instance is not None and event.type == "instance-stop":
            self._advance(instance, ACTIVE, SHUTOFF)
        elif instance is not None and instance.state == ACTIVE:
            self._events.publish("rebootServer", instance.id, instance.name, by_system=True)
        self._events.set_state(event_id, "completed")

    def _advance(self, instance: HuaweiInstance, before: str, after: str) -> None:
        if instance.state == before:
            self._enter(instance, after)

    def _enter(self, instance: HuaweiInstance, state: str) -> None:
        instance.changes.append(StateChange(self._time.now(), state))
        self._notify(state, instance)

    def _notify(self, what: str, instance: HuaweiInstance) -> None:
        event = InstanceObservation(self._time.now(), what, instance)
        for observer in self.observers:
            observer(event)

    # -- ListServersDetails ----------------------------------------------------------------------------------------

    def _list(self, request: RestRequest) -> dict[str, Any]:
        shown = [
            (instance, state)
            for instance in self.known.values()
            if (state := instance.state_at(request.as_of)) in {ACTIVE, SHUTOFF}
        ]
        if ids := request.text("server_id"):  # which voids the other filters
            wanted = ids.split(",")
            if len(wanted) > _MOST_IDS:
                raise invalid_request("ecs", f"server_id has {len(wanted)} ids; at most {_MOST_IDS} are allowed")
            return self._answer([each for each in shown if each[0].id in wanted])
        tags = [tuple(tag.partition("=")[::2]) for tag in request.text("tags").split(",") if tag]
        found = [
            (instance, state)
            for instance, state in shown
            if all(instance.tags.get(key) == value for key, value in tags)
            and request.query.get("status", state) == state
            and request.text("name") in instance.name
        ]
        limit = request.query.get("limit", _DEFAULT_LIMIT)
        start = (request.query.get("offset", 1) - 1) * limit
        return {**self._answer(found[start : start + limit]), "count": len(found)}

    def _answer(self, found: list[tuple[HuaweiInstance, str]]) -> dict[str, Any]:
        return {"count": len(found), "servers": [self._entry(instance, state) for instance, state in found]}

    def _entry(self, instance: HuaweiInstance, state: str) -> dict[str, Any]:
        flavor = self._catalogue.flavors[instance.instance_type]
        created = instance.launched_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        vpc_id = self._network.subnets[instance.subnet_id].vpc_id
        return {
            "id": instance.id,
            "name": instance.name,
            "status": state,
            "tenant_id": self._project_id,
            "created": created,
            "updated": instance.changes[-1].at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "OS-EXT-STS:vm_state": "active" if state == ACTIVE else "stopped",
            "OS-EXT-AZ:availability_zone": instance.zone,
            "OS-SRV-USG:launched_at": created,
            "enterprise_project_id": "0",
            "key_name": instance.spec.get("login", {}).get("sshKey", ""),
            "flavor": {
                "id": flavor.name,
                "name": flavor.name,
                "vcpus": str(flavor.vcpus),
                "ram": str(flavor.ram_mib),
                "disk": "0",
            },
            "metadata": {
                "charging_mode": "2" if instance.capacity_type == "spot" else "0",
                "vpc_id": vpc_id,
                "os_type": "Linux",
            },
            "addresses": {vpc_id: [{"addr": instance.address, "version": "4", "OS-EXT-IPS:type": "fixed"}]},
            "tags": [f"{key}={value}" for key, value in instance.tags.items()],
        }
