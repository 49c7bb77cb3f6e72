"""Invariants of clusters that lost objects, of other clusters behind the same name, and of nodes that lie.

They count for themselves, from the account's events and the API server's writes, what is removed because something is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.core.api.labels import CLUSTER_UID_TAG
from journeyman.core.api.objects import NAMESPACE, Node, NodeClaim, Pod
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.fault_scenario import (
    EndsEarly,
    ForgeNode,
    NeverJoins,
    Overstate,
    RebuildCluster,
    RefuseLaunches,
    RestoreBackup,
    ReturnCluster,
    StopKubelet,
)
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.invariants.cluster_queries import (
    POOL_LABEL,
    UID_TAG,
    candidates,
    claim_named,
    claim_of,
    claims,
    comes_from,
    has_disrupted_taint,
    has_ended,
    has_operation,
    has_true_condition,
    is_ours,
    is_tainted_for_disruption,
    last_loss,
    node_named,
    nodes,
    parsed_time,
    pods,
    pools,
    seconds,
    skew,
    staleness,
    vcpus,
)
from journeyman_simulator.faults.invariants.pod_invariants import fitting_type, healthy_pools
from journeyman_simulator.faults.scenario_view import HUMAN, RUN_USER_PREFIX, CloudEvent, CloudInstance, ScenarioView
from journeyman_simulator.pod_resources import scheduled_requests

PERIOD: Final = timedelta(hours=1)
FEWEST: Final = 2
PERCENT: Final = 10
_TERMINATE: Final = f"{RUN_USER_PREFIX}terminate"
_STOPPED: Final = frozenset({"stopping", "stopped"})


class RemovalCount:
    """Counts the removals for inconsistency within the last hour: of instances that no deletion of a NodeClaim or Node led to.

    An instance is also removed so if a run deletes its NodeClaim because its Node is missing. What users delete or stop is not, nor
    what the cloud could not build, nor what a command had marked before its NodeClaim was lost. A restored API server, or another one,
    knows of no earlier removals.
    """

    def __init__(self, view: ScenarioView) -> None:
        self._view = view
        self._going: set[str] = set()  # UIDs of NodeClaims that were deleted, and provider ids
        self._marked: set[str] = set()  # provider ids of Nodes that a command disrupts
        self._removed: dict[str, datetime] = {}  # by provider id
        self._unclaimed: dict[str, datetime] = {}  # the same of all that had no NodeClaim any more
        self._fleet: list[tuple[datetime, int]] = []
        self._states: dict[str, str] = {}  # by provider id, before a run terminates it

    def record_write(self, write: Write) -> str:
        """Record a write; return the provider id of an instance that a run removes by it, or an empty text."""
        kind, meta = write.resource.kind, write.result["metadata"]
        if kind == "NodeClaim":
            id_ = (write.result.get("status") or {}).get("providerID", "")
            if self._is_removal(write, id_):
                return self._remove(id_)
            if meta.get("deletionTimestamp"):
                self._going.update((meta["uid"], id_))
        elif kind == "Node":
            self._record_mark(write)
            if meta.get("deletionTimestamp") and self._is_deliberate(write):
                self._going.add(write.result["spec"].get("providerID", ""))
        return ""

    def record_event(self, event: CloudEvent) -> str:
        """Record an event of an instance; return its provider id if a run removes it by this, or an empty text."""
        instance = event.instance
        if event.kind == "launched":
            self._fleet.append((event.at, sum(i.runs for i in self._view.instances())))
        if event.kind != "terminate":
            self._states[instance.provider_id] = instance.state
        names = {instance.provider_id, instance.tags.get(UID_TAG, "")}
        if event.kind != "terminate" or event.by != _TERMINATE:
            return ""
        if not any(names & {claim.metadata.uid, claim.status.provider_id} for claim in claims(self._view)):
            self._unclaimed[instance.provider_id] = event.at
        has_stopped = self._states.get(instance.provider_id) in _STOPPED
        if has_stopped or names & (self._going | self._marked):
            return ""
        return self._remove(instance.provider_id)

    @property
    def count(self) -> int:
        """The number of removals."""
        return len(self._recent(self._removed))

    @property
    def is_used_up(self) -> bool:
        """Whether runs may believe that they must not remove more: nothing says that a lost NodeClaim had been deleted."""
        return len(self._recent({**self._removed, **self._unclaimed})) >= self.allowed

    @property
    def allowed(self) -> int:
        """The most removals within an hour, for the largest fleet in that time."""
        since = self._view.clock.now() - PERIOD
        before = [fleet for at, fleet in self._fleet if at <= since][-1:]
        fleets = [fleet for at, fleet in self._fleet if at > since]
        return max(FEWEST, max((*before, *fleets), default=0) * PERCENT // 100)

    def names(self) -> str:
        """Return the removed instances as text."""
        return ", ".join(sorted(self._recent(self._removed)))

    def _recent(self, removed: Mapping[str, datetime]) -> dict[str, datetime]:
        now = self._view.clock.now()
        since = max(now - PERIOD + 2 * skew(self._view.scenario), self._reset())
        return {id_: at for id_, at in removed.items() if at >= since}

    def _reset(self) -> datetime:
        return last_loss(self._view, RestoreBackup, RebuildCluster, ReturnCluster)

    def _remove(self, id_: str) -> str:
        if id_ in self._removed and self._removed[id_] >= self._reset():
            return ""
        self._removed[id_] = self._view.clock.now()
        return id_

    def _is_removal(self, write: Write, id_: str) -> bool:
        """Whether a run deletes a NodeClaim whose instance runs, because its Node is missing."""
        if (
            write.verb != "delete"
            or write.user != _TERMINATE
            or not id_
            or write.result["metadata"]["uid"] in self._going
        ):
            return False
        if self._expires(write.result):
            return False
        conditions = (write.result.get("status") or {}).get("conditions") or ()
        is_registered = any(c["type"] == "Registered" and c["status"] == "True" for c in conditions)
        runs = any(i.provider_id == id_ and i.state == "running" for i in self._view.instances())
        return is_registered and runs and not any(n.spec.provider_id == id_ for n in nodes(self._view))

    def _record_mark(self, write: Write) -> None:
        """Record the mark of a Node that has its NodeClaim: its drain has begun, as far as the cluster shows."""
        node, id_ = node_named(self._view, write.name), write.result["spec"].get("providerID", "")
        if not has_disrupted_taint(write.result):
            self._marked.discard(id_)
        elif node is not None and claim_of(self._view, node) is not None:
            self._marked.add(id_)

    def _expires(self, claim: Mapping[str, Any]) -> bool:
        """Whether the NodeClaim is in the last fifth of its lifetime, by any function's clock."""
        lifetime = seconds(claim["spec"].get("expireAfter"))
        age = self._view.clock.now() - parsed_time(claim["metadata"]["creationTimestamp"])
        return lifetime is not None and age + skew(self._view.scenario) >= timedelta(seconds=lifetime * 0.8)

    def _is_deliberate(self, write: Write) -> bool:
        """Whether a user deleted the Node, or marked a deleted one as draining; Kubernetes or a run deleted the others."""
        return write.user == HUMAN and (write.verb == "delete" or has_disrupted_taint(write.result))


class RemovalsForInconsistencyBounded(InvariantChecker):
    """Within an hour, at most two instances or a tenth of the fleet are removed because something is missing.

    A tenth counts if it is more than two. So wiped NodeClaims or a restored etcd cost few nodes, whatever else goes wrong.
    """

    name = "removals for inconsistency are bounded"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._removals = RemovalCount(view)

    def check_write(self, write: Write) -> Iterator[str]:
        """Check each NodeClaim that a run deletes."""
        yield from self._check(self._removals.record_write(write))

    def check_cloud_event(self, event: CloudEvent) -> Iterator[str]:
        """Check each instance that a run terminates."""
        yield from self._check(self._removals.record_event(event))

    def _check(self, removed: str) -> Iterator[str]:
        count, allowed = self._removals.count, self._removals.allowed
        if removed and count > allowed:
            yield f"{removed} is removal {count} for inconsistency in an hour, {allowed} allowed ({self._removals.names()})"


class NodesWithoutClaimKeepPods(InvariantChecker):
    """No pod is evicted from a node that has lost its NodeClaim, as long as its NodePool exists: the node is adopted.

    Unless a drain of the node began while it had its NodeClaim or no NodePool, a user set the taint of a drain, a run deleted its
    NodeClaim, which need not have had a finalizer, or several Nodes have its provider id.
    """

    name = "nodes without a NodeClaim keep their pods"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._draining: set[str] = set()  # UIDs of Nodes

    def check_write(self, write: Write) -> Iterator[str]:
        """Record drains, and check evictions."""
        if write.resource.kind == "Node":
            self._record_drain(write)
        elif write.resource.kind == "NodeClaim" and write.verb == "delete" and is_ours(write):
            self._record_deletion(write)
        elif write.resource.kind == "Pod" and write.verb == "evict" and is_ours(write):
            node = node_named(self.view, write.result["spec"].get("nodeName", ""))
            if node is not None and self._is_adoptable(node):
                yield f"{write.user} evicted {write.name} from {node.metadata.name}, which has lost its NodeClaim"

    def _record_drain(self, write: Write) -> None:
        node = node_named(self.view, write.name)
        if node is None or not is_tainted_for_disruption(node):
            return
        if write.user == HUMAN or not self._is_adoptable(node):
            self._draining.add(node.metadata.uid)

    def _record_deletion(self, write: Write) -> None:
        uid, id_ = write.result["metadata"]["uid"], (write.result.get("status") or {}).get("providerID", "")
        for node in nodes(self.view):
            is_owned = any(owner.uid == uid for owner in node.metadata.owner_references)
            if is_owned or (id_ and node.spec.provider_id == id_):
                self._draining.add(node.metadata.uid)

    def _is_adoptable(self, node: Node) -> bool:
        if node.metadata.uid in self._draining or claim_of(self.view, node) is not None:
            return False
        id_ = node.spec.provider_id
        if sum(n.spec.provider_id == id_ for n in nodes(self.view)) > 1:
            return False
        instance = next((i for i in self.view.instances() if i.provider_id == id_), None)
        if instance is None or instance.state != "running":
            return False
        named = claim_named(self.view, instance.claim)
        if named is not None and named.metadata.uid == instance.tags.get(UID_TAG):
            return False
        return pool_exists(self.view, instance, node)


def pool_exists(view: ScenarioView, instance: CloudInstance, node: Node | None = None) -> bool:
    """Whether the NodePool in the instance's tags, or else in the Node's labels, exists and is not being deleted."""
    name = instance.tags.get(POOL_LABEL) or (node.metadata.labels.get(POOL_LABEL, "") if node is not None else "")
    return any(p["metadata"]["name"] == name and not p["metadata"].get("deletionTimestamp") for p in pools(view))


class InstancesOfOthersUntouched(InvariantChecker):
    """No run terminates an instance of another cluster with the same name, or creates a NodeClaim for one."""

    name = "instances of other clusters are untouched"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._of_others: dict[str, str] = {}  # the cluster's UID by provider id

    def check_cloud_event(self, event: CloudEvent) -> Iterator[str]:
        """Check each instance that a run terminates."""
        uid = event.instance.tags.get(CLUSTER_UID_TAG, "")
        if event.kind == "launched":
            self._of_others[event.instance.provider_id] = uid
        if event.kind == "terminate" and event.by.startswith(RUN_USER_PREFIX) and self._is_other(uid):
            yield f"{event.by} terminated {event.instance.provider_id} of the cluster with the UID {uid}"

    def check_write(self, write: Write) -> Iterator[str]:
        """Check each NodeClaim that a run creates or launches."""
        if write.resource.kind != "NodeClaim" or not is_ours(write):
            return
        annotations = write.result["metadata"].get("annotations") or {}
        named = (annotations.get(_ADOPTED, ""), (write.result.get("status") or {}).get("providerID", ""))
        for id_ in sorted({*named} & self._of_others.keys()):
            if self._is_other(self._of_others[id_]):
                yield f"{write.user} wrote NodeClaim {write.name} for {id_} of another cluster"

    def _is_other(self, uid: str) -> bool:
        return bool(uid) and uid != self.view.server.get(NAMESPACE, "kube-system").metadata.uid


_ADOPTED: Final = "journeyman.dev/adopted"


class CommandsSeeMachines(InvariantChecker):
    """Where nodes lie, a command deletes no node as empty that runs pods, and counts on no more CPUs than machines have.

    Pods that started after the run read them do not count.
    """

    name = "commands see the machines behind lying nodes"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._staleness = staleness(view.scenario) + timedelta(seconds=_RUN_SECONDS)
        self._lies = has_operation(view.scenario, ForgeNode, Overstate)

    def check_write(self, write: Write) -> Iterator[str]:
        """Check each command that is proposed."""
        if not self._lies or write.resource.kind != "NodeDisruption" or write.verb != "create" or not is_ours(write):
            return
        leaving = [c for name in candidates(write.result) if (c := claim_named(self.view, name)) is not None]
        moved = [pod for claim in leaving for pod in self._pods_of(claim)]
        if write.result["spec"]["reason"] == "Empty" and moved:
            yield f"{write.name} takes nodes as empty that run {', '.join(sorted(p.metadata.name for p in moved))}"
        elif not write.result["spec"].get("replacements") and write.result["spec"]["reason"] == "Underutilized":
            needed, free = sum(map(_millicores, moved)), self._free_millicores(leaving)
            if needed > free:
                yield f"{write.name} moves pods of {needed}m CPU without a replacement, and machines have {free}m free"

    def _pods_of(self, claim: NodeClaim) -> Iterator[Pod]:
        """Yield the pods on the NodeClaim's machine that have to run elsewhere."""
        now = self.view.clock.now()
        names = {n.metadata.name for n in nodes(self.view) if n.spec.provider_id == claim.status.provider_id}
        for pod in pods(self.view):
            started = pod.status.start_time
            if pod.spec.node_name not in names or has_ended(pod) or pod.metadata.deletion_timestamp is not None:
                continue
            if comes_from(pod, "DaemonSet") or started is None or now - started <= self._staleness:
                continue
            yield pod

    def _free_millicores(self, leaving: list[NodeClaim]) -> int:
        """Return the CPU of the other machines that no pod has requested, whether or not a user removed their NodeClaim."""
        types = {i.provider_id: i.instance_type for i in self.view.instances()}
        owners = {n.metadata.name: n.spec.provider_id for n in nodes(self.view)}
        ids = {c.status.provider_id for c in claims(self.view)}.union(owners.values())
        ids -= {c.status.provider_id for c in leaving}
        free = {id_: vcpus(types[id_]) * 1000 for id_ in ids if id_ in types}
        for pod in pods(self.view):
            id_ = owners.get(pod.spec.node_name, "")
            if id_ in free and not has_ended(pod) and pod.metadata.deletion_timestamp is None:
                free[id_] -= _millicores(pod)
        return sum(max(each, 0) for each in free.values())


_RUN_SECONDS: Final = 5


def _millicores(pod: Pod) -> int:
    """Return the CPU that the pod takes: during a resize the larger amount, unless no node can carry it out."""
    return scheduled_requests(pod).get("cpu", 0)


class HealthyPoolsServe(InvariantChecker):
    """A NodePool that launches nothing does not keep pods from the next one: their nodes are launched within minutes.

    Nodes that never join are known as broken after the registration timeout of two of them. Where launches fail in healthy NodePools as
    well, or while a node is not Ready because its kubelet has stopped, pods wait for other reasons.
    """

    name = "a broken NodePool blocks no other"
    _LONGEST = timedelta(minutes=8)

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        setup = view.scenario.setup
        self._has_broken = any(pool.broken for pool in setup.pools)
        is_late = any(pool.broken == "never-joins" for pool in setup.pools)
        timeouts = timedelta(seconds=2 * setup.registration_timeout_seconds if is_late else 0)
        self._longest = self._LONGEST + timeouts + staleness(view.scenario) + skew(view.scenario)
        self._fails = has_operation(view.scenario, EndsEarly, NeverJoins, RefuseLaunches)
        self._stops = has_operation(view.scenario, StopKubelet)
        self._since: dict[str, datetime] = {}  # by the pod's UID

    def check_every_minute(self) -> Iterator[str]:
        """Check pods that wait although another NodePool fits them."""
        if not self._has_broken or self._fails:
            return
        if self._stops and not all(has_true_condition(node.status.conditions, "Ready") for node in nodes(self.view)):
            self._since.clear()
            return
        now = self.view.clock.now()
        healthy = [*healthy_pools(self.view)]
        waiting = {
            pod.metadata.uid: pod.metadata.name
            for pod in pods(self.view)
            if pod.status.phase == "Pending" and any(fitting_type(self.view, pool, pod) for pool in healthy)
        }
        self._since = {uid: self._since.get(uid, now) for uid in waiting}
        for uid, since in self._since.items():
            if now - since > self._longest:
                yield f"{waiting[uid]} has waited since {since:%H:%M:%S}, and a healthy NodePool fits it"
