"""What checkers see in a cluster, read their own way: straight from the objects, with nothing of what decides."""

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
    """Of the types that scenarios sell. Raises KeyError for others."""
    return _CPUS[instance_type.partition(".")[2]]


def memory_mib(instance_type: str) -> int:
    """As well."""
    return vcpus(instance_type) * _GIB_PER_CPU[instance_type[0]] * 1024


def is_ours(write: Write, step: str = "") -> bool:
    """Whether a run wrote it; of that step, if one is given."""
    return write.user == f"{RUN_USER_PREFIX}{step}" if step else write.user.startswith(RUN_USER_PREFIX)


def staleness(scenario: FaultScenario) -> timedelta:
    """How old a run's knowledge may be at most: runs take no time but what faults make them wait or see late."""
    seconds = (fault.seconds for fault in scenario.faults if isinstance(fault, CallFault) and fault.kind in _LATE)
    return timedelta(seconds=sum(seconds))


def skew(scenario: FaultScenario) -> timedelta:
    """How far the functions' clocks may be off."""
    return timedelta(
        seconds=sum(abs(operation.seconds) for operation in scenario.operations if isinstance(operation, JumpClock))
    )


def claims(view: ScenarioView) -> tuple[NodeClaim, ...]:
    """All NodeClaims."""
    return view.server.list(NODECLAIM).items


def claim_named(view: ScenarioView, name: str) -> NodeClaim | None:
    """None if there is none."""
    return next((claim for claim in claims(view) if claim.metadata.name == name), None)


def nodes(view: ScenarioView) -> tuple[Node, ...]:
    """All Nodes."""
    return view.server.list(NODE).items


def node_named(view: ScenarioView, name: str) -> Node | None:
    """None if there is none."""
    return next((node for node in nodes(view) if node.metadata.name == name), None)


def claim_of(view: ScenarioView, node: Node) -> NodeClaim | None:
    """The claim whose status says that it is that node; or else, for somebody may have wiped that off, its owner."""
    owners = {owner.uid for owner in node.metadata.owner_references}
    by_id = (c for c in claims(view) if c.status.provider_id == node.spec.provider_id)
    return next(by_id, next((c for c in claims(view) if c.metadata.uid in owners), None))


def pods(view: ScenarioView) -> tuple[Pod, ...]:
    """All pods."""
    return view.server.list(POD).items


def pools(view: ScenarioView) -> tuple[Mapping[str, Any], ...]:
    """All NodePools, as JSON."""
    return view.server.stored(NODEPOOL)


def commands(view: ScenarioView) -> tuple[Mapping[str, Any], ...]:
    """All NodeDisruptions, as JSON."""
    return view.server.stored(NODE_DISRUPTION)


def phase(command: Mapping[str, Any]) -> str:
    """Of a NodeDisruption; empty if nobody wrote one yet."""
    return str((command.get("status") or {}).get("phase", ""))


def candidates(command: Mapping[str, Any]) -> list[str]:
    """Names of the claims that a NodeDisruption gives back."""
    return [candidate["nodeClaim"] for candidate in command["spec"]["candidates"]]


def has_true_condition(conditions: Iterable[Condition], kind: str) -> bool:
    """Whether a condition of that type is True."""
    return any(condition.type == kind and condition.status == "True" for condition in conditions)


def condition_is_true(body: Mapping[str, Any], kind: str) -> bool:
    """As `holds`, of an object as JSON."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == kind and condition["status"] == "True" for condition in conditions)


def pool_of(claim: NodeClaim) -> str:
    """By its label."""
    return claim.metadata.labels.get(POOL_LABEL, "")


def is_terminating(claim: NodeClaim) -> bool:
    """Whether it was deleted, and waits for its finalizers."""
    return claim.metadata.deletion_timestamp is not None


def is_tainted_for_disruption(node: Node) -> bool:
    """Whether Karpenter's taint is on it."""
    return any(taint.key == TAINT for taint in node.spec.taints)


def comes_from(pod: Pod, kind: str) -> bool:
    """Whether that kind of object owns it."""
    return any(owner.kind == kind for owner in pod.metadata.owner_references)


def has_ended(pod: Pod) -> bool:
    """Whether it ran to its end."""
    return pod.status.phase in {"Succeeded", "Failed"}


def parsed_time(text: str) -> datetime:
    """As the API server writes times."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def seconds(text: str | None) -> float | None:
    """Of a duration as scenarios write them ("90s"), and the API server keeps them ("1m30s"); None for "Never" or nothing."""
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
    """When everything on its node is forced to end: its grace period from its deletion, or earlier if it says so."""
    grace, deleted = seconds(claim.spec.termination_grace_period), claim.metadata.deletion_timestamp
    ends = _times(claim.metadata.annotations.get(END_ANNOTATION, ""))
    if grace is not None and deleted is not None:
        ends.append(deleted + timedelta(seconds=grace))
    return min(ends, default=None)


def _times(text: str) -> list[datetime]:
    """The one that it says, or none: anybody may have written it."""
    try:
        return [parsed_time(text)]
    except ValueError:
        return []
