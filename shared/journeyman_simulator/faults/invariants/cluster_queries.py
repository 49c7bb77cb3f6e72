"""Queries of a cluster for invariant checkers, which read the objects without the product's code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.core.api.objects import NODE, NODE_DISRUPTION, NODECLAIM, NODEPOOL, POD, Condition, Node, NodeClaim, Pod
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.fault_scenario import (
    CallFault,
    EditClaim,
    EditTags,
    FaultKind,
    FaultScenario,
    JumpClock,
    Operation,
)
from journeyman_simulator.faults.manifests import START
from journeyman_simulator.faults.scenario_clouds import CLOUDS
from journeyman_simulator.faults.scenario_view import RUN_USER_PREFIX, ScenarioView

POOL_LABEL: Final = "karpenter.sh/nodepool"
UID_TAG: Final = "journeyman.dev/nodeclaim-uid"
FINALIZER: Final = "karpenter.sh/termination"
TAINT: Final = "karpenter.sh/disrupted"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
END_ANNOTATION: Final = "karpenter.sh/nodeclaim-termination-timestamp"
COMMAND_ANNOTATION: Final = "journeyman.dev/node-disruption"

_LAUNCH_EDITS: Final = frozenset({"drop-status", "drop-provider-id", "drop-conditions"})
_GIB_PER_CPU: Final = {"c": 2, "g": 4, "m": 4, "r": 8, "t": 2, "u": 2}  # by the first letter of the family
_CPUS: Final = {"medium": 2, "large": 2, "xlarge": 4, "2xlarge": 8, "4xlarge": 16}
_DELAYING_KINDS: Final = frozenset(
    {FaultKind.PAUSE, FaultKind.TIMEOUT_BEFORE, FaultKind.TIMEOUT_AFTER, FaultKind.STALE, FaultKind.LAG}
)


def vcpus(instance_type: str) -> int:
    """Return the vCPUs of an instance type that scenarios use. Raises KeyError for others."""
    return _CPUS[instance_type.removeprefix("ecs.").split(".")[1]]


def memory_mib(instance_type: str) -> int:
    """Return the memory in MiB of an instance type that scenarios use. Raises KeyError for others."""
    family, _size, *gib_per_cpu = instance_type.removeprefix("ecs.").split(".")
    return vcpus(instance_type) * (int(gib_per_cpu[0]) if gib_per_cpu else _GIB_PER_CPU[family[0]]) * 1024


def is_ours(write: Write, step: str = "") -> bool:
    """Whether a run made the write; if `step` is given, a run of that step."""
    return write.user == f"{RUN_USER_PREFIX}{step}" if step else write.user.startswith(RUN_USER_PREFIX)


def staleness(scenario: FaultScenario) -> timedelta:
    """Return the maximum age of a run's information: the sum of all pauses and stale reads."""
    seconds = (
        fault.seconds for fault in scenario.faults if isinstance(fault, CallFault) and fault.kind in _DELAYING_KINDS
    )
    return timedelta(seconds=sum(seconds))


def removes_launches(scenario: FaultScenario) -> bool:
    """Whether users remove what NodeClaims record of their launch."""
    return any(isinstance(o, EditClaim) and o.change in _LAUNCH_EDITS for o in scenario.operations)


def can_repeat_launches(scenario: FaultScenario) -> bool:
    """Whether a run may launch an instance that a list did not show, or that another run launched while it was paused."""
    cloud = CLOUDS[scenario.setup.cloud]
    causes = {(cloud.describe, FaultKind.STALE), (cloud.launch, FaultKind.PAUSE)}
    faults = (fault for fault in scenario.faults if isinstance(fault, CallFault))
    return any((fault.site.partition(": ")[2], fault.kind) in causes for fault in faults)


def has_operation(scenario: FaultScenario, *operations: type[Operation]) -> bool:
    """Whether the scenario has one of these operations."""
    return any(isinstance(operation, operations) for operation in scenario.operations)


def last_loss(view: ScenarioView, *operations: type[Operation]) -> datetime:
    """Return when one of these operations was last executed; the start of scenarios if none was."""
    now = view.clock.now()
    times = (START + timedelta(seconds=o.at_seconds) for o in view.scenario.operations if isinstance(o, operations))
    return max((at for at in times if at <= now), default=START)


def edits_tags(scenario: FaultScenario) -> bool:
    """Whether users edit the tags of instances."""
    return any(isinstance(operation, EditTags) for operation in scenario.operations)


def pauses_at(scenario: FaultScenario, site: str) -> timedelta:
    """Return how long runs are paused in all before calls of this site, after whatever they checked before the call."""
    seconds = (
        fault.seconds
        for fault in scenario.faults
        if isinstance(fault, CallFault) and fault.site == site and fault.kind is FaultKind.PAUSE
    )
    return timedelta(seconds=sum(seconds))


def skew(scenario: FaultScenario) -> timedelta:
    """Return the maximum difference of the functions' clocks from virtual time."""
    return timedelta(
        seconds=sum(abs(operation.seconds) for operation in scenario.operations if isinstance(operation, JumpClock))
    )


def claims(view: ScenarioView) -> tuple[NodeClaim, ...]:
    """Return all NodeClaims."""
    return view.server.list(NODECLAIM).items


def claim_named(view: ScenarioView, name: str) -> NodeClaim | None:
    """Return the NodeClaim of that name; None if it does not exist."""
    return next((claim for claim in claims(view) if claim.metadata.name == name), None)


def nodes(view: ScenarioView) -> tuple[Node, ...]:
    """Return all Nodes."""
    return view.server.list(NODE).items


def node_named(view: ScenarioView, name: str) -> Node | None:
    """Return the Node of that name; None if it does not exist."""
    return next((node for node in nodes(view) if node.metadata.name == name), None)


class DisruptedTaints:
    """The nodes with the disrupted taint, and when others lost it: a run that was paused since does not know that yet."""

    def __init__(self, view: ScenarioView) -> None:
        """Start without nodes; each write is to be recorded."""
        self._view = view
        self._staleness = staleness(view.scenario)
        self._tainted: set[str] = set()  # names of nodes
        self._lost: dict[str, datetime] = {}  # by the node's name: since when

    def record(self, write: Write) -> None:
        """Record a write, which may be of a Node."""
        if write.resource.kind != "Node":
            return
        if has_disrupted_taint(write.result):
            self._tainted.add(write.name)
        elif write.name in self._tainted:
            self._tainted.remove(write.name)
            self._lost[write.name] = self._view.clock.now()

    def may_seem_tainted(self, node: Node) -> bool:
        """Whether a run may believe that the node has the taint."""
        lost = self._lost.get(node.metadata.name)
        has_just_lost = lost is not None and self._view.clock.now() - lost < self._staleness
        return has_just_lost or is_tainted_for_disruption(node)


def claim_of(view: ScenarioView, node: Node) -> NodeClaim | None:
    """Return a node's NodeClaim by provider id; after edits by its instance's tag, else by owner reference or node name.

    Of two NodeClaims with the node's provider id, one of which a user edited, the node's owner counts.
    """
    return next(iter(claims_of(view, node)), None)


def claims_of(view: ScenarioView, node: Node) -> list[NodeClaim]:
    """Return all NodeClaims that a node may belong to, likeliest first; more than one only after edits."""
    tagged = {i.tags.get(UID_TAG) for i in view.instances() if i.provider_id == node.spec.provider_id}
    owners = {owner.uid for owner in node.metadata.owner_references}

    def links(claim: NodeClaim) -> tuple[bool, ...]:
        has_provider_id = claim.status.provider_id == node.spec.provider_id
        is_owner = claim.metadata.uid in owners
        is_tagged = claim.metadata.uid in tagged
        return (
            has_provider_id,
            has_provider_id and is_owner,
            is_tagged,
            is_owner,
            claim.status.node_name == node.metadata.name,
        )

    return sorted((claim for claim in claims(view) if any(links(claim))), key=links, reverse=True)


def pods(view: ScenarioView) -> tuple[Pod, ...]:
    """Return all pods."""
    return view.server.list(POD).items


def pools(view: ScenarioView) -> tuple[Mapping[str, Any], ...]:
    """Return all NodePools, as JSON."""
    return view.server.stored(NODEPOOL)


def commands(view: ScenarioView) -> tuple[Mapping[str, Any], ...]:
    """Return all NodeDisruptions, as JSON."""
    return view.server.stored(NODE_DISRUPTION)


def phase(command: Mapping[str, Any]) -> str:
    """Return a NodeDisruption's phase; empty if it has none yet."""
    return str((command.get("status") or {}).get("phase", ""))


def candidates(command: Mapping[str, Any]) -> list[str]:
    """Return the names of a NodeDisruption's candidates."""
    return [candidate["nodeClaim"] for candidate in command["spec"]["candidates"]]


def has_true_condition(conditions: Iterable[Condition], kind: str) -> bool:
    """Whether the condition of that type is True."""
    return any(condition.type == kind and condition.status == "True" for condition in conditions)


def condition_is_true(body: Mapping[str, Any], kind: str) -> bool:
    """Whether the condition of that type is True in an object as JSON."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == kind and condition["status"] == "True" for condition in conditions)


def pool_of(claim: NodeClaim) -> str:
    """Return the name of the NodeClaim's NodePool, from its label."""
    return claim.metadata.labels.get(POOL_LABEL, "")


def is_terminating(claim: NodeClaim) -> bool:
    """Whether the NodeClaim has a deletion timestamp."""
    return claim.metadata.deletion_timestamp is not None


def is_tainted_for_disruption(node: Node) -> bool:
    """Whether the node has the taint `karpenter.sh/disrupted`."""
    return any(taint.key == TAINT for taint in node.spec.taints)


def has_disrupted_taint(node: Mapping[str, Any]) -> bool:
    """The same of a Node as JSON."""
    return any(taint["key"] == TAINT for taint in node.get("spec", {}).get("taints", ()))


def comes_from(pod: Pod, kind: str) -> bool:
    """Whether an object of that kind owns the pod."""
    return any(owner.kind == kind for owner in pod.metadata.owner_references)


def has_ended(pod: Pod) -> bool:
    """Whether the pod has completed."""
    return pod.status.phase in {"Succeeded", "Failed"}


def parsed_time(text: str) -> datetime:
    """Return the time in the API server's format as a datetime."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def seconds(text: str | None) -> float | None:
    """Return a duration such as "90s" or "1m30s" in seconds; None for "Never", an empty text or None."""
    if not text or text == "Never":
        return None
    total, number = 0.0, ""
    for letter in text:
        if letter.isdigit() or letter == ".":
            number += letter
        else:
            total, number = total + float(number) * {"h": 3600, "m": 60, "s": 1}[letter], ""
    return total


def end_of(claim: NodeClaim) -> datetime | None:
    """Return the deadline at which the NodeClaim's node is force-terminated; None if it has none."""
    grace, deleted = seconds(claim.spec.termination_grace_period), claim.metadata.deletion_timestamp
    ends = _times(claim.metadata.annotations.get(END_ANNOTATION, ""))
    if grace is not None and deleted is not None:
        ends.append(deleted + timedelta(seconds=grace))
    return min(ends, default=None)


def _times(text: str) -> list[datetime]:
    """Return a list with the time in the text; an empty list if the text is not a time."""
    try:
        return [parsed_time(text)]
    except ValueError:
        return []
