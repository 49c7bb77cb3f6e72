"""Executes a scenario's operations at their times, as the user "human" or as the cloud.

An operation that the API server rejects has no effect.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial, singledispatchmethod
from typing import Any, Final, TypeVar

from msgspec import to_builtins

from journeyman.core.api.conditions import format_time, to_wire
from journeyman.core.api.labels import NODECLAIM_TAG, NODECLAIM_UID_TAG, PAUSE_DISRUPTION, node_class_label
from journeyman.core.api.objects import NAMESPACE as NAMESPACE_KIND
from journeyman.core.api.objects import (
    NODE,
    NODECLAIM,
    NODEPOOL,
    PDB,
    POD,
    Node,
    NodeClaim,
    Resource,
)
from journeyman.errors import KubeAPIError, NotFoundError
from journeyman.ports import Clock
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.object_storage import Backup
from journeyman_simulator.apiserver.object_validation import RESIZE
from journeyman_simulator.apiserver.server import NAMESPACES
from journeyman_simulator.clock import SkewedClock
from journeyman_simulator.faults import fault_scenario, manifests
from journeyman_simulator.faults.fault_scenario import (
    CAPACITY_TYPES,
    ClaimChange,
    ClaimForgery,
    ClaimStatusChange,
    FaultScenario,
    NodeChange,
    NodeForgery,
    TagChange,
)
from journeyman_simulator.faults.manifests import DO_NOT_DISRUPT, NAMESPACE
from journeyman_simulator.faults.node_faults import NodeFaults
from journeyman_simulator.faults.scenario_clouds import CLOUDS, CLUSTER
from journeyman_simulator.faults.scenario_view import HUMAN
from journeyman_simulator.faults.simulated_cloud import CloudOperations
from journeyman_simulator.workload_controllers import DEPLOYMENT

T = TypeVar("T")

_UNPROTECTED: Final = {"metadata": {"annotations": {DO_NOT_DISRUPT: None}}}


class Operations:
    """Executes the operations of a scenario. An `Actor` of its world.

    Args:
        scenario: The scenario.
        server: The API server.
        clock: The virtual clock, at the scenario's start.
        cloud: The operations of the account.
        node_faults: The faults of machines and nodes.
        skew: The functions' clock.
        types: The instance types to which ordinals refer.
        zones: The zones to which ordinals refer.
        on_operation: Called with a description of each operation.
        on_other_cluster: Called when the register's entry points to another cluster.
    """

    def __init__(
        self,
        scenario: FaultScenario,
        *,
        server: ApiServer,
        clock: Clock,
        cloud: CloudOperations,
        node_faults: NodeFaults,
        skew: SkewedClock,
        types: Sequence[str],
        zones: Sequence[str],
        on_operation: Callable[[str], None],
        on_other_cluster: Callable[[], None] = lambda: None,
    ) -> None:
        self._setup = scenario.setup
        self._backup: Backup | None = None
        self._first_cluster: Backup | None = None  # while the entry points away from it
        self._wiped_pools: set[str] = set()
        self._forged: list[str] = []  # names of Nodes
        self._overstated: dict[str, Mapping[str, Any]] = {}  # by Node: its true status
        self._on_other_cluster = on_other_cluster
        self._server = server.acting_as(HUMAN)
        self._clock = clock
        self._cloud = cloud
        self._node_faults = node_faults
        self._skew = skew
        self._types, self._zones = types, zones
        self._facts = CLOUDS[scenario.setup.cloud]
        self._pools = [pool.name for pool in scenario.setup.pools]
        self._scheduled: list[tuple[datetime, int, Callable[[], None]]] = []
        self._serial = 0
        self._protected: list[str] = []
        self._unavailable: set[tuple[str, str, str]] = set()
        self._on_operation = on_operation
        for operation in scenario.operations:
            self._schedule_at(operation.at_seconds, self._execution_of(operation))

    def due(self) -> datetime | None:
        """Return the time of the next operation, or of the end of an operation that lasts."""
        return self._scheduled[0][0] if self._scheduled else None

    def act(self) -> bool:
        """Execute the operations that are due; return whether one was due."""
        executed = False
        while self._scheduled and self._scheduled[0][0] <= self._clock.now():
            heapq.heappop(self._scheduled)[2]()
            executed = True
        return executed

    def restore(self) -> None:
        """Undo the lasting effects of operations, except interruptions that the cloud announced."""
        self._cloud.set_unavailable(sorted(self._unavailable), unavailable=False)
        self._cloud.launch_normally()
        self._restore_node_class()
        self._create_pools()
        self._stop_expiry()
        self._unblock_drains()
        self._remove_lies()
        self._node_faults.restore()
        self._cloud.pass_checks()
        self._skew.offset = timedelta()

    # -- operations ---------------------------------------------------------------------------------------------------------

    def _execution_of(self, operation: fault_scenario.AnyOperation) -> Callable[[], None]:
        def do() -> None:
            self._on_operation(_description(operation))
            try:
                self._execute(operation)
            except KubeAPIError:
                return  # rejected, or the object does not exist: no effect

        return do

    @singledispatchmethod
    def _execute(self, operation: Any) -> None:
        raise NotImplementedError(f"cannot execute {operation}")

    @_execute.register
    def _(self, operation: fault_scenario.Deploy) -> None:
        self._server.create(DEPLOYMENT, manifests.deployment(operation), namespace=NAMESPACE)
        if operation.min_available >= 0:
            self._server.create(PDB, manifests.disruption_budget(operation), namespace=NAMESPACE)

    @_execute.register
    def _(self, operation: fault_scenario.Scale) -> None:
        self._patch(DEPLOYMENT, operation.app, {"spec": {"replicas": operation.replicas}}, NAMESPACE)

    @_execute.register
    def _(self, operation: fault_scenario.Undeploy) -> None:
        self._server.delete(DEPLOYMENT, operation.app, namespace=NAMESPACE)
        self._server.delete(PDB, operation.app, namespace=NAMESPACE)

    @_execute.register
    def _(self, operation: fault_scenario.SetBudget) -> None:
        self._patch(
            NODEPOOL, self._pool(operation.pool), {"spec": {"disruption": {"budgets": [{"nodes": operation.nodes}]}}}
        )

    @_execute.register
    def _(self, operation: fault_scenario.PauseDisruption) -> None:
        annotations = {PAUSE_DISRUPTION: operation.value or None}
        self._patch(NODEPOOL, self._pool(operation.pool), {"metadata": {"annotations": annotations}})

    @_execute.register
    def _(self, operation: fault_scenario.SetLimit) -> None:
        limits = {"cpu": str(operation.cpus) if operation.cpus else None}
        self._patch(NODEPOOL, self._pool(operation.pool), {"spec": {"limits": limits}})

    @_execute.register
    def _(self, operation: fault_scenario.SetReplicas) -> None:
        self._patch(NODEPOOL, self._pool(operation.pool), {"spec": {"replicas": operation.replicas}})

    @_execute.register
    def _(self, operation: fault_scenario.Drift) -> None:
        self._serial += 1
        mark = {"metadata": {"labels": {"example.com/generation": str(self._serial)}}}
        self._patch(NODEPOOL, self._pool(operation.pool), {"spec": {"template": mark}})

    @_execute.register
    def _(self, operation: fault_scenario.ShortenExpiry) -> None:
        template = {"spec": {"expireAfter": manifests.expire_after(operation.seconds)}}
        self._patch(NODEPOOL, self._pool(operation.pool), {"spec": {"template": template}})

    @_execute.register
    def _(self, operation: fault_scenario.DeletePool) -> None:
        self._server.delete(NODEPOOL, self._pool(operation.pool))

    @_execute.register
    def _(self, _: fault_scenario.BreakNodeClass) -> None:
        self._select_networks("nowhere")

    @_execute.register
    def _(self, _: fault_scenario.MendNodeClass) -> None:
        self._restore_node_class()

    @_execute.register
    def _(self, _: fault_scenario.DeleteNodeClass) -> None:
        self._server.delete(self._facts.node_class, manifests.NODE_CLASS)

    @_execute.register
    def _(self, operation: fault_scenario.Interrupt) -> None:
        for provider_id in self._instance(operation.node):
            self._cloud.interrupt(provider_id)

    @_execute.register
    def _(self, operation: fault_scenario.Rebalance) -> None:
        for provider_id in self._instance(operation.node):
            self._cloud.recommend_rebalance(provider_id)

    @_execute.register
    def _(self, operation: fault_scenario.Maintenance) -> None:
        for provider_id in self._instance(operation.node):
            self._cloud.announce_maintenance(provider_id)

    @_execute.register
    def _(self, operation: fault_scenario.StopInstance) -> None:
        for provider_id in self._instance(operation.node):
            self._cloud.stop(provider_id)

    @_execute.register
    def _(self, operation: fault_scenario.ConsoleTerminate) -> None:
        for provider_id in self._instance(operation.node):
            self._cloud.terminate(provider_id)

    @_execute.register
    def _(self, operation: fault_scenario.DeleteNode) -> None:
        for node in self._node(operation.node):
            self._server.delete(NODE, node.metadata.name)

    @_execute.register
    def _(self, operation: fault_scenario.DeleteClaim) -> None:
        for claim in self._claim(operation.claim):
            self._server.delete(NODECLAIM, claim.metadata.name)

    @_execute.register
    def _(self, operation: fault_scenario.EditClaim) -> None:
        for claim in self._claim(operation.claim):
            (other,) = self._claim(operation.claim + 1)
            patch = claim_patch(claim, operation.change, self._clock.now(), other)
            subresource = "status" if "status" in patch else ""
            self._server.patch(NODECLAIM, claim.metadata.name, patch, subresource=subresource)

    @_execute.register
    def _(self, operation: fault_scenario.EditNode) -> None:
        for node in self._node(operation.node):
            others = self._claim(operation.node + 1)
            self._patch(NODE, node.metadata.name, node_patch(operation.change, others))

    @_execute.register
    def _(self, operation: fault_scenario.EditTags) -> None:
        for provider_id in self._instance(operation.node):
            others = self._instance(operation.node + 1)
            if self._cloud.tags(provider_id):
                self._cloud.edit_tags(provider_id, tag_changes(operation.change, self._cloud.tags(others[0])))

    @_execute.register
    def _(self, operation: fault_scenario.StripFinalizer) -> None:
        for claim in self._claim(operation.claim):
            self._patch(NODECLAIM, claim.metadata.name, {"metadata": {"finalizers": None}})
            self._server.delete(NODECLAIM, claim.metadata.name)

    @_execute.register
    def _(self, _: fault_scenario.WipeClaims) -> None:
        self._server.wipe(NODECLAIM)

    @_execute.register
    def _(self, _: fault_scenario.WipeNodes) -> None:
        self._server.wipe(NODE)

    @_execute.register
    def _(self, _: fault_scenario.WipePools) -> None:
        self._wiped_pools |= {pool["metadata"]["name"] for pool in self._server.list(NODEPOOL).items}
        self._server.wipe(NODEPOOL)

    @_execute.register
    def _(self, _: fault_scenario.CreatePools) -> None:
        self._create_pools()

    @_execute.register
    def _(self, _: fault_scenario.BackUp) -> None:
        self._backup = self._server.backup()

    @_execute.register
    def _(self, _: fault_scenario.RestoreBackup) -> None:
        if self._backup is not None:
            self._server.restore(self._backup)

    @_execute.register
    def _(self, _: fault_scenario.RebuildCluster) -> None:
        if self._first_cluster is None and fault_scenario.RebuildCluster not in self._facts.missing:
            self._first_cluster, self._backup = self._server.backup(), None
            self._server.restore({})
            for name in NAMESPACES:
                self._server.create(NAMESPACE_KIND, {"metadata": {"name": name}})
            self._server.load(manifests.initial_manifests(self._setup))
            self._on_other_cluster()

    @_execute.register
    def _(self, _: fault_scenario.ReturnCluster) -> None:
        if self._first_cluster is not None:
            self._server.restore(self._first_cluster)
            self._first_cluster = self._backup = None
            self._on_other_cluster()

    @_execute.register
    def _(self, operation: fault_scenario.ForgeNode) -> None:
        for node in self._node(operation.node):
            forged = forged_node(node, len(self._forged), owned=operation.owned)
            self._forged.append(forged["metadata"]["name"])
            self._server.create(NODE, forged)

    @_execute.register
    def _(self, operation: fault_scenario.Overstate) -> None:
        for node in self._node(operation.node):
            reported = {"capacity": node.status.capacity, "allocatable": node.status.allocatable}
            status = {
                part: {name: amounts.get(name) for name in ("cpu", "memory")} for part, amounts in reported.items()
            }
            self._overstated.setdefault(node.metadata.name, status)
            more = {"cpu": str(operation.cpus), "memory": f"{operation.cpus}Gi"}
            lie = {"status": {"capacity": more, "allocatable": more}}
            self._server.patch(NODE, node.metadata.name, lie, subresource="status")

    @_execute.register
    def _(self, operation: fault_scenario.OutOfStock) -> None:
        types = [_nth(self._types, operation.type)] if operation.type >= 0 else self._types
        zones = [_nth(self._zones, operation.zone)] if operation.zone >= 0 else self._zones
        kinds = [operation.capacity_type] if operation.capacity_type else CAPACITY_TYPES
        pools = [(type_, zone, kind) for type_ in types for zone in zones for kind in kinds]
        self._set_unavailable(pools, unavailable=True)
        self._schedule_after(
            timedelta(seconds=operation.seconds), partial(self._set_unavailable, pools, unavailable=False)
        )

    @_execute.register
    def _(self, _: fault_scenario.NeverJoins) -> None:
        self._cloud.prevent_next_from_joining()

    @_execute.register
    def _(self, operation: fault_scenario.EndsEarly) -> None:
        self._cloud.end_next_early(operation.number, operation.after_seconds)

    @_execute.register
    def _(self, operation: fault_scenario.RefuseLaunches) -> None:
        self._cloud.refuse_next_launches(operation.number)

    @_execute.register
    def _(self, operation: fault_scenario.StopKubelet) -> None:
        for provider_id in self._instance(operation.node):
            self._node_faults.stop_kubelet(provider_id)
            self._schedule_after(
                timedelta(seconds=operation.seconds), partial(self._node_faults.start_kubelet, provider_id)
            )

    @_execute.register
    def _(self, operation: fault_scenario.UnhealthyCondition) -> None:
        for node in self._node(operation.node):
            name = node.metadata.name
            self._node_faults.set_condition(name, operation.condition, operation.status)
            self._schedule_after(
                timedelta(seconds=operation.seconds),
                partial(self._node_faults.clear_condition, name, operation.condition),
            )

    @_execute.register
    def _(self, operation: fault_scenario.FailCheck) -> None:
        for provider_id in self._instance(operation.node):
            self._cloud.fail_check(provider_id, operation.check)
            self._schedule_after(timedelta(seconds=operation.seconds), partial(self._cloud.pass_checks, provider_id))

    @_execute.register
    def _(self, operation: fault_scenario.JumpClock) -> None:
        self._skew.offset += timedelta(seconds=operation.seconds)

    @_execute.register
    def _(self, operation: fault_scenario.Protect) -> None:
        for name in self._running_pod(operation.pod):
            self._protected.append(name)
            self._patch(POD, name, {"metadata": {"annotations": {DO_NOT_DISRUPT: "true"}}}, NAMESPACE)

    @_execute.register
    def _(self, _: fault_scenario.Unprotect) -> None:
        protected, self._protected = self._protected, []
        present = {pod.metadata.name for pod in self._server.list(POD).items}
        for name in protected:
            if name in present:
                self._patch(POD, name, _UNPROTECTED, NAMESPACE)

    @_execute.register
    def _(self, operation: fault_scenario.CompletePod) -> None:
        for name in self._running_pod(operation.pod):
            unready = [{"type": "Ready", "status": "False", "reason": "PodCompleted"}]
            ended = {"status": {"phase": "Succeeded", "conditions": unready}}
            self._server.patch(POD, name, ended, namespace=NAMESPACE, subresource="status")

    @_execute.register
    def _(self, operation: fault_scenario.ResizePod) -> None:
        for name in self._running_pod(operation.pod):
            containers = self._server.get(POD, name, namespace=NAMESPACE).spec.containers
            amounts = ({**c.resources.requests, "cpu": f"{operation.cpu_millicores}m"} for c in containers)
            resized = [
                {"name": c.name, "resources": {"requests": amount}}
                for c, amount in zip(containers, amounts, strict=True)
            ]
            patch = {"spec": {"containers": resized}}
            self._server.patch(POD, name, patch, namespace=NAMESPACE, subresource=RESIZE)

    # -- helpers ------------------------------------------------------------------------------------------------------------

    def _schedule_at(self, seconds: float, do: Callable[[], None]) -> None:
        self._schedule_after(timedelta(seconds=seconds), do)

    def _schedule_after(self, span: timedelta, do: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._scheduled, (self._clock.now() + span, self._serial, do))

    def _patch(self, resource: Resource[Any], name: str, patch: Mapping[str, Any], namespace: str = "") -> None:
        self._server.patch(resource, name, patch, namespace=namespace)

    def _restore_node_class(self) -> None:
        with suppress(NotFoundError):  # it was deleted
            self._select_networks(CLUSTER)

    def _stop_expiry(self) -> None:
        """Set `expireAfter: Never`, since a cluster whose nodes expire never comes to rest."""
        for pool in self._server.list(NODEPOOL).items:
            if pool["spec"]["template"]["spec"].get("expireAfter", "Never") != "Never":
                forever = {"spec": {"template": {"spec": {"expireAfter": "Never"}}}}
                self._patch(NODEPOOL, pool["metadata"]["name"], forever)

    def _unblock_drains(self) -> None:
        """Delete PodDisruptionBudgets and remove do-not-disrupt annotations, which block drains."""
        for budget in self._server.list(PDB).items:
            name = budget.metadata.name
            self._patch(PDB, name, {"spec": {"minAvailable": 0}}, budget.metadata.namespace)
        for pod in self._server.list(POD).items:
            if DO_NOT_DISRUPT in pod.metadata.annotations:
                self._patch(POD, pod.metadata.name, _UNPROTECTED, pod.metadata.namespace)
        for deployment in self._server.list(DEPLOYMENT).items:  # so that later pods lack the annotation
            template, meta = deployment["spec"]["template"], deployment["metadata"]
            if DO_NOT_DISRUPT in template["metadata"].get("annotations", {}):
                self._patch(DEPLOYMENT, meta["name"], {"spec": {"template": _UNPROTECTED}}, meta["namespace"])

    def _create_pools(self) -> None:
        found = {pool["metadata"]["name"] for pool in self._server.list(NODEPOOL).items}
        for pool in self._setup.pools:
            if pool.name in self._wiped_pools - found:
                self._server.create(NODEPOOL, manifests.node_pool(pool, self._facts))

    def _remove_lies(self) -> None:
        """Delete forged Nodes, and report what machines have."""
        for name in self._forged:
            with suppress(NotFoundError):
                self._patch(NODE, name, {"metadata": {"finalizers": None}})
                self._server.delete(NODE, name)
        for name, status in self._overstated.items():
            with suppress(NotFoundError):
                self._server.patch(NODE, name, {"status": status}, subresource="status")

    def _select_networks(self, discovery: str) -> None:
        selector = self._facts.network_selector(discovery)
        self._patch(self._facts.node_class, manifests.NODE_CLASS, {"spec": selector})

    def _set_unavailable(self, pools: Sequence[tuple[str, str, str]], *, unavailable: bool) -> None:
        self._unavailable = self._unavailable | {*pools} if unavailable else self._unavailable - {*pools}
        self._cloud.set_unavailable(pools, unavailable=unavailable)

    def _pool(self, ordinal: int) -> str:
        return _nth(self._pools, ordinal)

    def _node(self, ordinal: int) -> list[Node]:
        return _oldest(self._server.list(NODE).items, ordinal)

    def _claim(self, ordinal: int) -> list[NodeClaim]:
        return _oldest(self._server.list(NODECLAIM).items, ordinal)

    def _running_pod(self, ordinal: int) -> list[str]:
        """Return a list with the name of a running pod that no DaemonSet owns; empty if there is none."""
        running = (p for p in self._server.list(POD).items if p.status.phase == "Running")
        names = sorted(
            p.metadata.name for p in running if all(o.kind != "DaemonSet" for o in p.metadata.owner_references)
        )
        return [_nth(names, ordinal)] if names else []

    def _instance(self, ordinal: int) -> list[str]:
        """Return a list with the provider id of a node, or of a NodeClaim if no node exists; empty if neither exists."""
        if ordinal < 0:  # the youngest instance, with or without a node
            return [*self._cloud.launched()][ordinal:][:1]
        nodes = [node.spec.provider_id for node in self._node(ordinal)]
        launched = [claim for claim in self._server.list(NODECLAIM).items if claim.status.provider_id]
        return nodes or [claim.status.provider_id for claim in _oldest(launched, ordinal)]


def _nth(items: Sequence[T], ordinal: int) -> T:
    return items[ordinal % len(items)]


def _oldest(items: Sequence[Any], ordinal: int) -> list[Any]:
    """Return a list with the ordinal-th oldest object; empty if there are no objects."""
    ranked = sorted(items, key=lambda item: (item.metadata.creation_timestamp, item.metadata.name))
    return [_nth(ranked, ordinal)] if ranked else []


def _description(operation: fault_scenario.AnyOperation) -> str:
    """Return an operation as text: `Scale app=a replicas=3`."""
    fields = {name: getattr(operation, name) for name in operation.__struct_fields__ if name != "at_seconds"}
    return " ".join([type(operation).__name__, *(f"{name}={value}" for name, value in fields.items() if value != "")])


JSON = Mapping[str, Any]
_TERMINATION_TIMESTAMP: Final = "karpenter.sh/nodeclaim-termination-timestamp"

_CLAIM_PATCHES: Final[Mapping[str, JSON]] = {
    "drop-pool-label": {"metadata": {"labels": {"karpenter.sh/nodepool": None}}},
    "drop-hash": {"metadata": {"annotations": {"karpenter.sh/nodepool-hash": None}}},
    "do-not-disrupt": {"metadata": {"annotations": {DO_NOT_DISRUPT: "true"}}},
    "foreign-label": {"metadata": {"labels": {"example.com/edited": "by-hand"}}},
    "drop-finalizers": {"metadata": {"finalizers": None}},
    "drop-provider-id": {"status": {"providerID": None}},
    "drop-conditions": {"status": {"conditions": None}},
    "drop-status": {"status": dict.fromkeys(("conditions", "providerID", "nodeName", "capacity", "allocatable"))},
    "nonsense-provider-id": {"status": {"providerID": "i-am-none"}},
    "nonsense-end": {"metadata": {"annotations": {_TERMINATION_TIMESTAMP: "soon"}}},
}
_NODE_PATCHES: Final[Mapping[str, JSON]] = {
    "drop-finalizers": {"metadata": {"finalizers": None}},
    "drop-owner": {"metadata": {"ownerReferences": None}},
    "drop-labels": {
        "metadata": {
            "labels": dict.fromkeys(f"karpenter.sh/{name}" for name in ("nodepool", "registered", "initialized"))
        }
    },
    "drop-taints": {"spec": {"taints": None}},
    "close": {"spec": {"taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]}},
    "mark": {"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}},
}
_CONDITIONS_SET: Final[Mapping[str, Sequence[str]]] = {
    "say-registered": ("Registered",),
    "say-initialized": ("Initialized",),
    "say-terminating": ("Drained", "VolumesDetached", "InstanceTerminating"),
}
_ENDS: Final[Mapping[str, timedelta]] = {"end-now": timedelta(), "end-late": timedelta(days=1)}


def claim_patch(
    claim: NodeClaim, change: ClaimChange | ClaimStatusChange | ClaimForgery, now: datetime, other: NodeClaim
) -> JSON:
    """Return the patch for an edit of a NodeClaim, which is of the status if it has the key `status`."""
    if change in _CONDITIONS_SET:
        return _with_conditions(claim, _CONDITIONS_SET[change], now)
    if change in _ENDS:
        return {"metadata": {"annotations": {_TERMINATION_TIMESTAMP: format_time(now + _ENDS[change])}}}
    if change == "other-provider-id":
        return {"status": {"providerID": other.status.provider_id or None}}
    if change == "drop-class-label":
        reference = claim.spec.node_class_ref
        return {"metadata": {"labels": {node_class_label(reference.group, reference.kind): None}}}
    return _CLAIM_PATCHES[change]


def node_patch(change: NodeChange | NodeForgery, others: Iterable[NodeClaim]) -> JSON:
    """Return the patch for an edit of a Node; `others` may have the NodeClaim that becomes its owner."""
    if change != "other-owner":
        return _NODE_PATCHES[change]
    owners = [
        {"apiVersion": NODECLAIM.api_version, "kind": NODECLAIM.kind, "name": c.metadata.name, "uid": c.metadata.uid}
        for c in others
    ]
    return {"metadata": {"ownerReferences": owners or None}}


def forged_node(node: Node, serial: int, *, owned: bool) -> dict[str, Any]:
    """Return a Node that pretends to be another one's machine. It offers nothing, so that kube-scheduler binds no pod to it."""
    owners = node.metadata.owner_references if owned else ()
    nothing = {"cpu": "0", "memory": "0", "pods": "0"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    return {
        "metadata": {
            "name": f"forged-{serial}",
            "labels": {**node.metadata.labels, "kubernetes.io/hostname": f"forged-{serial}"},
            "ownerReferences": [to_builtins(owner) for owner in owners],
        },
        "spec": {"providerID": node.spec.provider_id},
        "status": {"capacity": nothing, "allocatable": nothing, "conditions": [ready]},
    }


def tag_changes(change: TagChange, other: Mapping[str, str]) -> Mapping[str, str | None]:
    """Return the tags to set on an instance, None to remove one; `other` are the tags of the next instance."""
    if change == "other-claim":
        return {key: other.get(key) for key in (NODECLAIM_TAG, NODECLAIM_UID_TAG)}
    removed = (NODECLAIM_UID_TAG,) if change == "drop-uid" else (NODECLAIM_TAG, NODECLAIM_UID_TAG)
    return dict.fromkeys(removed)


def _with_conditions(claim: NodeClaim, conditions: Sequence[str], now: datetime) -> JSON:
    """Return a patch of the status in which the conditions became True at `now`."""
    others = [c for c in to_wire(claim.status.conditions) if c["type"] not in conditions]
    true_conditions = [
        {"type": type_, "status": "True", "reason": type_, "message": "", "lastTransitionTime": format_time(now)}
        for type_ in conditions
    ]
    return {"status": {"conditions": [*others, *true_conditions]}}
