"""What invariant checkers read from a cluster, straight from the objects and without the product's code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.core.api.objects import NODE, NODE_DISRUPTION, NODECLAIM, NODEPOOL, POD, Condition, Node, NodeClaim, Pod
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.fault_scenario import CallFault, FaultKind, FaultScenario, JumpClock
from journeyman_simulator.faults.scenario_view import RUN_USER_PREFIX, ScenarioView

POOL_LABEL: Final = "karpenter.sh/nodepool"
UID_TAG: Final = "journeyman.dev/nodeclaim-uid"
FINALIZER: Final = "karpenter.sh/termination"
TAINT: Final = "karpenter.sh/disrupted"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
END_ANNOTATION: Final = "karpenter.sh/nodeclaim-termination-timestamp"
COMMAND_ANNOTATION: Final = "journeyman.dev/node-disruption"

_GIB_PER_CPU: Final = {"c": 2, "m": 4, "r": 8, "t": 2}
_CPUS: Final = {"medium": 2, "large": 2, "xlarge": 4, "2xlarge": 8}
_LATE: Final = frozenset(
    {FaultKind.PAUSE, FaultKind.TIMEOUT_BEFORE, FaultKind.TIMEOUT_AFTER, FaultKind.STALE, FaultKind.LAG}
)


def vcpus(instance_type: str) -> int:
    """Return the vCPUs of an instance type that scenarios sell. Raises KeyError for others."""
    return _CPUS[instance_type.partition(".")[2]]


def memory_mib(instance_type: str) -> int:
    """Return the memory of such a type."""
    return vcpus(instance_type) * _GIB_PER_CPU[instance_type[0]] * 1024


def is_ours(write: Write, step: str = "") -> bool:
    """Return whether a run wrote it; of that step, if one is given."""
    return write.user == f"{RUN_USER_PREFIX}{step}" if step else write.user.startswith(RUN_USER_PREFIX)


def staleness(scenario: FaultScenario) -> timedelta:
    """Return how old a run's information may be: the sum of all pauses and stale reads."""
    seconds = (fault.seconds for fault in scenario.faults if isinstance(fault, CallFault) and fault.kind in _LATE)
    return timedelta(seconds=sum(seconds))


def skew(scenario: FaultScenario) -> timedelta:
    """Return how far the functions' clocks may be off."""
    return timedelta(
        seconds=sum(abs(operation.seconds) for operation in scenario.operations if isinstance(operation, JumpClock))
    )


def claims(view: ScenarioView) -> tuple[NodeClaim, ...]:
    """Return all NodeClaims."""
    return view.server.list(NODECLAIM).items


def claim_named(view: ScenarioView, name: str) -> NodeClaim | None:
    """Return the NodeClaim of that name, if there is one."""
    return next((claim for claim in claims(view) if claim.metadata.name == name), None)


def nodes(view: ScenarioView) -> tuple[Node, ...]:
    """Return all Nodes."""
    return view.server.list(NODE).items


def node_named(view: ScenarioView, name: str) -> Node | None:
    """Return the Node of that name, if there is one."""
    return next((node for node in nodes(view) if node.metadata.name == name), None)


def claim_of(view: ScenarioView, node: Node) -> NodeClaim | None:
    """Return a node's NodeClaim: by provider id or, where an edit removed that, by owner reference."""
    owners = {owner.uid for owner in node.metadata.owner_references}
    by_id = (c for c in claims(view) if c.status.provider_id == node.spec.provider_id)
    return next(by_id, next((c for c in claims(view) if c.metadata.uid in owners), None))


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
    """Return whether a condition of that type is True."""
    return any(condition.type == kind and condition.status == "True" for condition in conditions)


def condition_is_true(body: Mapping[str, Any], kind: str) -> bool:
    """Return the same for an object as JSON."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == kind and condition["status"] == "True" for condition in conditions)


def pool_of(claim: NodeClaim) -> str:
    """Return its NodePool, by label."""
    return claim.metadata.labels.get(POOL_LABEL, "")


def is_terminating(claim: NodeClaim) -> bool:
    """Return whether it was deleted and waits for its finalizers."""
    return claim.metadata.deletion_timestamp is not None


def is_tainted_for_disruption(node: Node) -> bool:
    """Return whether it has the `disrupted` taint."""
    return any(taint.key == TAINT for taint in node.spec.taints)


def comes_from(pod: Pod, kind: str) -> bool:
    """Return whether an object of that kind owns it."""
    return any(owner.kind == kind for owner in pod.metadata.owner_references)


def has_ended(pod: Pod) -> bool:
    """Return whether the pod has completed."""
    return pod.status.phase in {"Succeeded", "Failed"}


def parsed_time(text: str) -> datetime:
    """Parse a time as the API server writes it."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def seconds(text: str | None) -> float | None:
    """Parse a duration ("90s", "1m30s"); None for "Never" or nothing."""
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
    """Return when everything on its node is terminated by force, if ever."""
    grace, deleted = seconds(claim.spec.termination_grace_period), claim.metadata.deletion_timestamp
    ends = _times(claim.metadata.annotations.get(END_ANNOTATION, ""))
    if grace is not None and deleted is not None:
        ends.append(deleted + timedelta(seconds=grace))
    return min(ends, default=None)


def _times(text: str) -> list[datetime]:
    """Return the time in a list of one; an empty list for an annotation that is no time."""
    try:
        return [parsed_time(text)]
    except ValueError:
        return []
