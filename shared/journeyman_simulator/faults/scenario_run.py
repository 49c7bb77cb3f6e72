"""Runs a fault scenario: with faults, then without, until the cluster is at rest or an invariant is violated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct

from journeyman.core.api.conditions import INITIALIZED
from journeyman.core.api.objects import NODE, NODE_DISRUPTION, NODECLAIM, NODEPOOL, POD, is_true
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.faults.call_sites import FaultCoverage
from journeyman_simulator.faults.fault_scenario import FaultScenario
from journeyman_simulator.faults.fault_world import MINUTE, MOST_RUNS, START, FaultWorld, TooManyRunsError
from journeyman_simulator.faults.history import HistoryEntry
from journeyman_simulator.faults.invariants.checkers import InvariantChecker, Violation
from journeyman_simulator.faults.manifests import NAMESPACE
from journeyman_simulator.faults.sandboxes import ORIGINALS, Collaborators, logs_silenced
from journeyman_simulator.faults.scenario_view import HUMAN, CloudInstance
from journeyman_simulator.workload_controllers import DEPLOYMENT
from journeyman_simulator.world import WorldStuckError

FAULTS_AFTER_LAST_OPERATION: Final = timedelta(seconds=60)
REST_MINUTES: Final = 3
"""The cluster is at rest once nothing changed for so long: longer than every period in which steps run by themselves."""
WITHOUT_CLAIMS_MINUTES: Final = 11
"""The same while nodes or instances exist without NodeClaims: the sweep looks for them every ten minutes."""
PENDING_PODS_MINUTES: Final = 8
"""The same while pods are pending: longer than unavailable offerings are skipped."""
LONGEST_WAIT_FOR_REST: Final = timedelta(minutes=45)
STUCK: Final = "nothing is stuck"
TOO_MANY_RUNS: Final = "scenarios end"
NOTHING_REMAINS: Final = "an emptied cluster keeps nothing"


class ScenarioResult(Struct, frozen=True, kw_only=True):
    """The result of running a scenario."""

    scenario: FaultScenario
    violations: tuple[Violation, ...]
    coverage: FaultCoverage
    digest: str
    history: tuple[HistoryEntry, ...]
    runs: int
    minutes: float  # of virtual time


def run_scenario(
    scenario: FaultScenario,
    *,
    checkers: Sequence[type[InvariantChecker]] = (),
    on_entry: Callable[[HistoryEntry], None] | None = None,
    most_runs: int = MOST_RUNS,
    collaborators: Collaborators = ORIGINALS,
) -> ScenarioResult:
    """Run a scenario to its end, or until an invariant is violated.

    Args:
        scenario: What happens.
        checkers: The invariants to check.
        on_entry: Called with each entry of the history, at once.
        most_runs: A scenario with more invocations counts as one that does not end.
        collaborators: Wrappers around what the functions talk to.
    """
    with logs_silenced():
        world = FaultWorld(scenario, checkers, on_entry, most_runs=most_runs, collaborators=collaborators)
        try:
            _play(world)
        except WorldStuckError as error:
            world.checkers.report(STUCK, str(error))
        except TooManyRunsError as error:
            world.checkers.report(TOO_MANY_RUNS, str(error))
        finally:
            world.end()
    return ScenarioResult(
        scenario=scenario,
        violations=tuple(world.checkers.violations),
        coverage=world.coverage,
        digest=world.history.digest,
        history=tuple(world.history.entries),
        runs=world.runs,
        minutes=(world.clock.now() - START) / MINUTE,
    )


def _play(world: FaultWorld) -> None:
    """Run one phase after the other, each only if no invariant is violated yet."""
    _run_with_faults(world)
    for part in (_end_faults, _run_until_at_rest, *((_empty_cluster,) if world.scenario.setup.ends_empty else ())):
        if not world.checkers.violations:
            part(world)


def _run_with_faults(world: FaultWorld) -> None:
    """Run until a while after the last operation, and until no run is paused."""
    last = max((operation.at_seconds for operation in world.scenario.operations), default=0.0)
    world.run_for(timedelta(seconds=last) + FAULTS_AFTER_LAST_OPERATION)
    while (until := world.paused_until()) is not None and not world.checkers.violations:
        world.run_for(until - world.clock.now())


def _end_faults(world: FaultWorld) -> None:
    world.history.note("faults end", "scenario")
    world.restore()


def _run_until_at_rest(world: FaultWorld) -> None:
    """Run until nothing has changed for a while and nothing is unfinished; then run the checks at rest."""
    ends_at = world.clock.now() + LONGEST_WAIT_FOR_REST
    before, unchanged = state(world.server), 0
    while not world.checkers.violations:
        world.run_for(MINUTE)
        now = state(world.server)
        before, unchanged = now, unchanged + 1 if now == before else 0
        busy = [*unfinished(world.server), *(f"{run} is paused" for run in world.busy())]
        if not busy and unchanged >= _required_minutes_of_rest(world):
            world.history.note("at rest", "scenario")
            world.checkers.check_at_rest()
            return
        if world.clock.now() >= ends_at:
            world.checkers.report(STUCK, f"the cluster did not come to rest: {', '.join(busy) or 'it keeps changing'}")


def _required_minutes_of_rest(world: FaultWorld) -> int:
    if has_pending_pods(world.server):
        return PENDING_PODS_MINUTES
    anything = world.server.list(NODE).items or any(instance.runs for instance in world.instances())
    return WITHOUT_CLAIMS_MINUTES if anything and not world.server.list(NODECLAIM).items else REST_MINUTES


def _empty_cluster(world: FaultWorld) -> None:
    """Delete all Deployments and NodePools, and check that nothing of ours remains."""
    world.history.note("Deployments and NodePools are deleted", "scenario")
    someone = world.server.acting_as(HUMAN)
    for resource, namespace in ((DEPLOYMENT, NAMESPACE), (NODEPOOL, "")):
        for item in world.server.list(resource).items:
            someone.delete(resource, item["metadata"]["name"], namespace=namespace)
    _run_until_at_rest(world)
    for left in leftovers(world.server, world.instances()):
        world.checkers.report(NOTHING_REMAINS, left)


_UNENDED: Final = frozenset({"", "Proposed", "Executing"})


def state(server: ApiServer) -> list[object]:
    """Return what changes while work is in progress, without timestamps; for comparison only."""
    claims = [
        (c.metadata.name, bool(c.metadata.deletion_timestamp), [(x.type, x.status) for x in c.status.conditions])
        for c in server.list(NODECLAIM).items
    ]
    nodes = [
        (n.metadata.name, bool(n.metadata.deletion_timestamp), [(t.key, t.value) for t in n.spec.taints])
        for n in server.list(NODE).items
    ]
    pods = [(p.key, p.status.phase, p.spec.node_name) for p in server.list(POD).items]
    commands = [(d["metadata"]["name"], _phase(d)) for d in server.list(NODE_DISRUPTION).items]
    return [claims, nodes, pods, commands]


def unfinished(server: ApiServer) -> list[str]:
    """Return a sentence for each thing that is in progress."""
    claims = server.list(NODECLAIM).items
    commands = server.list(NODE_DISRUPTION).items
    return [
        *(f"NodeClaim {c.metadata.name} is terminating" for c in claims if c.metadata.deletion_timestamp),
        *(f"Node {n.metadata.name} is terminating" for n in server.list(NODE).items if n.metadata.deletion_timestamp),
        *(f"pod {p.key} is terminating" for p in server.list(POD).items if p.metadata.deletion_timestamp),
        *(f"NodeClaim {c.metadata.name} is not initialized" for c in claims if not _is_initialized(c)),
        *(f"NodeDisruption {d['metadata']['name']} has not ended" for d in commands if _phase(d) in _UNENDED),
    ]


def has_pending_pods(server: ApiServer) -> bool:
    """Return whether a pod is pending."""
    return any(pod.status.phase == "Pending" for pod in server.list(POD).items)


def leftovers(server: ApiServer, instances: Iterable[CloudInstance]) -> Iterator[str]:
    """Return a sentence for each thing that an emptied cluster should not have."""
    yield from (f"NodeClaim {claim.metadata.name} is there" for claim in server.list(NODECLAIM).items)
    yield from (f"Node {node.metadata.name} is there" for node in server.list(NODE).items)
    yield from (f"instance {i.provider_id} is {i.state}" for i in instances if i.runs)


def _is_initialized(claim: Any) -> bool:
    return is_true(claim.status.conditions, INITIALIZED)


def _phase(command: dict[str, Any]) -> str:
    return str((command.get("status") or {}).get("phase", ""))
