"""Simulates kubelets and the node lifecycle controller: registers Nodes, runs and resizes bound pods, deletes terminated nodes.

A `MachineSource` (the simulated cloud) lists the machines and the settings with which they booted. The kubelet registers
its Node from those settings alone, as a real one does: wrong user data gives a wrong node. The timings are constants,
typical of an EKS node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from msgspec import Struct, field

from journeyman.core.api.conditions import to_wire
from journeyman.core.api.objects import NODE, POD, Node, Pod, condition_of, is_true
from journeyman.core.api.resources import add, fits, subtract, to_resources
from journeyman.errors import AlreadyExistsError, NotFoundError
from journeyman.ports import Clock
from journeyman_simulator import pod_resources
from journeyman_simulator.apiserver import ApiServer

BOOT = timedelta(seconds=25)  # from running to a registered node
BECOME_READY = timedelta(seconds=8)  # from registered to Ready (CNI up)
START_POD = timedelta(seconds=2)  # from bound to Running, with the image already pulled
RESIZE_POD = timedelta(seconds=10)  # from an allocated resize until the containers have it
STOP_POD = timedelta(seconds=1)  # for a container that exits on SIGTERM
_PENDING, _IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
_HOLDS_RESOURCES = frozenset({"Pending", "Running"})
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


class Machine(Struct, frozen=True, kw_only=True):
    """A machine: its state and its boot settings."""

    provider_id: str
    node_name: str
    running_since: datetime | None  # None if it is not running
    terminated: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


class MachineSource(Protocol):
    """Lists the machines on which kubelets run."""

    def machines(self) -> tuple[Machine, ...]:
        """Return all machines, sorted by provider id, including recently terminated ones."""
        ...


class Kubelets:
    """Runs all kubelets of a cluster and the node lifecycle controller.

    Args:
        server: The cluster's API server.
        clock: The virtual clock.
        source: Lists the machines.
        sees_all_writes: Whether `server.version_of` changes with writes of every client. If it changes with the kubelets'
            own writes only, every `act` reads all nodes and pods.
        boot: The time from a running machine to a registered node.
    """

    def __init__(
        self,
        server: ApiServer,
        clock: Clock,
        source: MachineSource,
        *,
        sees_all_writes: bool = True,
        boot: timedelta = BOOT,
    ) -> None:
        self._boot = boot
        self._server = server
        self._clock = clock
        self._source = source
        self._due: list[datetime] = []
        self._sees_all_writes = sees_all_writes
        self._seen: tuple[object, ...] = ()

    def due(self) -> datetime | None:
        """Return the time of the next registration, readiness, pod start or pod stop."""
        return min(self._due, default=None)

    def act(self) -> bool:
        """Run all kubelets once and return whether they wrote anything."""
        machines, before = self._source.machines(), self._server.version_of(NODE, POD)
        due = self.due()
        unchanged = self._sees_all_writes and self._seen == (before, machines)
        if unchanged and (due is None or due > self._clock.now()):
            return False
        self._seen = (before, machines)
        self._due = []
        nodes = {(n.spec.provider_id, n.metadata.name): n for n in self._server.list(NODE).items}
        alive: set[str] = set()
        for machine in machines:
            node = nodes.get((machine.provider_id, machine.node_name))  # others may lie about their provider id
            if machine.running_since is not None:
                self._run_node(machine, node)
                if node is not None:
                    alive.add(node.metadata.name)
            elif node is not None:
                self._lose_node(machine, node)
        pods = [pod for pod in self._server.list(POD).items if pod.spec.node_name in alive]
        for pod in pods:
            self._run_pod(pod)
        self._resize_pods(nodes.values(), pods)
        return self._server.version_of(NODE, POD) != before

    def _wait_until(self, until: datetime) -> bool:
        """Whether `until` is in the future; if it is, `act` is due then."""
        if until <= self._clock.now():
            return False
        self._due.append(until)
        return True

    def _run_node(self, machine: Machine, node: Node | None) -> None:
        assert machine.running_since is not None  # noqa: S101 - the caller looked
        if node is None:
            if not self._wait_until(machine.running_since + self._boot):
                self._register(machine)
        elif not is_true(node.status.conditions, "Ready"):
            created = node.metadata.creation_timestamp or self._clock.now()
            if not self._wait_until(created + BECOME_READY):
                self._set_ready(node, "True", "KubeletReady", "kubelet is posting ready status")

    def _register(self, machine: Machine) -> None:
        condition = _condition("Ready", "False", "KubeletNotReady", "network plugin not ready", self._clock.now())
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": machine.node_name,
                "labels": {**machine.labels, "kubernetes.io/hostname": machine.node_name},
            },
            "spec": {"providerID": machine.provider_id, "taints": [*map(dict, machine.taints), _NOT_READY]},
            "status": {
                "capacity": dict(machine.capacity),
                "allocatable": dict(machine.allocatable),
                "conditions": [condition],
            },
        }
        try:
            self._server.create(NODE, body)
        except AlreadyExistsError:
            return
        self._wait_until(self._clock.now() + BECOME_READY)

    def _set_ready(self, node: Node, status: str, reason: str, message: str) -> None:
        now = self._clock.now()
        taints = [t for t in _raw_taints(node) if t["key"] != _NOT_READY["key"]]
        if status != "True":
            taints.append(_NOT_READY)
        name = node.metadata.name
        self._server.patch(NODE, name, {"spec": {"taints": taints}})
        conditions = [_condition("Ready", status, reason, message, now)]
        self._server.patch(NODE, name, {"status": {"conditions": conditions}}, subresource="status")

    def _lose_node(self, machine: Machine, node: Node) -> None:
        """Mark the node of a stopped machine NotReady, or delete it if the machine is terminated."""
        if is_true(node.status.conditions, "Ready"):
            self._set_ready(node, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
        if machine.terminated and node.metadata.deletion_timestamp is None:
            self._server.delete(NODE, node.metadata.name)

    def _run_pod(self, pod: Pod) -> None:
        if pod.metadata.deletion_timestamp is not None:
            self._stop_pod(pod)
        elif pod.status.phase == "Pending":
            if pod.status.start_time is None:
                self._patch_status(pod, {"startTime": _text(self._clock.now())})
                self._wait_until(self._clock.now() + START_POD)
            elif not self._wait_until(pod.status.start_time + START_POD):
                self._start_pod(pod)

    def _start_pod(self, pod: Pod) -> None:
        now = self._clock.now()
        kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        conditions = [_condition(kind, "True", "", "", now) for kind in kinds]
        self._patch_status(pod, {"phase": "Running", "conditions": conditions, **pod_resources.reported_status(pod)})

    def _resize_pods(self, nodes: Iterable[Node], pods: Sequence[Pod]) -> None:
        """Allocate and carry out the resizes of running pods, or report why not; one write, after which pods are read again."""
        running = [pod for pod in pods if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None]
        resizing = [pod for pod in running if pod_resources.is_resizing(pod)]
        allocatable = {node.metadata.name: node.status.allocatable for node in nodes if resizing}
        for pod in resizing:
            others = [p for p in pods if p.spec.node_name == pod.spec.node_name and p is not pod]
            if self._resize(pod, to_resources(allocatable[pod.spec.node_name], round_up=False), others):
                return

    def _resize(self, pod: Pod, allocatable: Mapping[str, int], others: Iterable[Pod]) -> bool:
        """Take the next step of a pod's resize, and return whether it wrote."""
        held = [pod_resources.allocated_requests(other) for other in others if other.status.phase in _HOLDS_RESOURCES]
        wanted = pod_resources.wanted_requests(pod)
        started = condition_of(pod.status.conditions, _IN_PROGRESS)
        if not pod_resources.is_allocated(pod):
            if not fits(wanted, allocatable):
                return self._refuse(pod, "Infeasible")
            if not fits(wanted, subtract(allocatable, add(*held))):
                return self._refuse(pod, "Deferred")
            self._set_resize(pod, _IN_PROGRESS, "", pod_resources.reported_status(pod, keep_actual=True))
            return True
        since = started.last_transition_time if started is not None else None
        if since is not None and self._wait_until(since + RESIZE_POD):
            return False
        self._set_resize(pod, "", "", pod_resources.reported_status(pod))
        return True

    def _refuse(self, pod: Pod, reason: str) -> bool:
        known = condition_of(pod.status.conditions, _PENDING)
        if known is not None and known.reason == reason:
            return False
        self._set_resize(pod, _PENDING, reason, {})
        return True

    def _set_resize(self, pod: Pod, kind: str, reason: str, status: Mapping[str, Any]) -> None:
        """Write the condition of this kind, if any, as the only one about resizes, and parts of the status."""
        others = [c for c in to_wire(pod.status.conditions) if c["type"] not in {_PENDING, _IN_PROGRESS}]
        new = [_condition(kind, "True", reason, "", self._clock.now())] if kind else []
        self._patch_status(pod, {"conditions": [*others, *new], **status})

    def _stop_pod(self, pod: Pod) -> None:
        """Stop the pod's containers, which here takes less than the grace period that ends at deletionTimestamp."""
        deadline = pod.metadata.deletion_timestamp
        assert deadline is not None  # noqa: S101 - the caller looked
        grace = timedelta(seconds=pod.spec.termination_grace_period_seconds or 30)
        if self._wait_until(min(deadline, max(deadline - grace, _started(pod)) + STOP_POD)):
            return
        try:
            self._server.delete(
                POD, pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid, grace_period_seconds=0
            )
        except NotFoundError:
            return

    def _patch_status(self, pod: Pod, status: Mapping[str, Any]) -> None:
        meta = pod.metadata
        self._server.patch(POD, meta.name, {"status": status}, namespace=meta.namespace, subresource="status")


def _started(pod: Pod) -> datetime:
    created = pod.metadata.creation_timestamp
    assert created is not None  # noqa: S101 - the API server stamps every object
    return created


def _raw_taints(node: Node) -> list[dict[str, str]]:
    return [{"key": t.key, "effect": t.effect, **({"value": t.value} if t.value else {})} for t in node.spec.taints]


def _condition(kind: str, status: str, reason: str, message: str, now: datetime) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": _text(now)}


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
