"""Tells a scenario of faults: through a storm, into the quiet, and to the end or until a rule is broken."""

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

STORM_AFTER_LAST_ACT: Final = timedelta(seconds=60)
REST_MINUTES: Final = 3
"""So long nothing may change until the cluster counts as at rest: longer than any period in which steps look by themselves."""
LEFT_ALONE_MINUTES: Final = 11
"""The same where nodes or instances are left, and no claims: what is left is looked for every ten minutes then."""
PATIENCE_MINUTES: Final = 8
"""So long instead while pods wait: longer than the cloud's refusals are remembered."""
LONGEST_QUIET: Final = timedelta(minutes=45)
STUCK: Final = "nothing is stuck"
TOO_MANY_RUNS: Final = "no scenario goes on and on"
EMPTIED: Final = "nothing is left"


class ScenarioResult(Struct, frozen=True, kw_only=True):
    """What came of a scenario."""

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
    """Tell a scenario from beginning to end, or until a rule is broken.

    Args:
        scenario: What happens.
        checkers: Observe it.
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
    """Each part begins only if no rule is broken yet."""
    _storm(world)
    for part in (_calm, _come_to_rest, *((_empty,) if world.scenario.setup.ends_empty else ())):
        if not world.checkers.violations:
            part(world)


def _storm(world: FaultWorld) -> None:
    """Until a while after the last act, and until nobody stands still any more."""
    last = max((operation.at_seconds for operation in world.scenario.operations), default=0.0)
    world.live(timedelta(seconds=last) + STORM_AFTER_LAST_ACT)
    while (until := world.paused_until()) is not None and not world.checkers.violations:
        world.live(until - world.clock.now())


def _calm(world: FaultWorld) -> None:
    world.history.note("the storm is over", "scenario")
    world.calm()


def _come_to_rest(world: FaultWorld) -> None:
    """Live until nothing has changed for a while and nobody is on the way; then the checkers are asked."""
    ends_at = world.clock.now() + LONGEST_QUIET
    before, unchanged = state(world.server), 0
    while not world.checkers.violations:
        world.live(MINUTE)
        now = state(world.server)
        before, unchanged = now, unchanged + 1 if now == before else 0
        busy = [*unfinished(world.server), *(f"{run} stands still" for run in world.busy())]
        if not busy and unchanged >= _minutes_of_rest(world):
            world.history.note("at rest", "scenario")
            world.checkers.check_at_rest()
            return
        if world.clock.now() >= ends_at:
            world.checkers.report(STUCK, f"it never came to rest: {', '.join(busy) or 'it goes on and on'}")


def _minutes_of_rest(world: FaultWorld) -> int:
    if pods_wait(world.server):
        return PATIENCE_MINUTES
    anything = world.server.list(NODE).items or any(instance.runs for instance in world.instances())
    return LEFT_ALONE_MINUTES if anything and not world.server.list(NODECLAIM).items else REST_MINUTES


def _empty(world: FaultWorld) -> None:
    """People take everything away: pods go, then pools, and whatever was ours must go by itself."""
    world.history.note("everything is taken away", "scenario")
    someone = world.server.acting_as(HUMAN)
    for resource, namespace in ((DEPLOYMENT, NAMESPACE), (NODEPOOL, "")):
        for item in world.server.list(resource).items:
            someone.delete(resource, item["metadata"]["name"], namespace=namespace)
    _come_to_rest(world)
    for left in leftovers(world.server, world.instances()):
        world.checkers.report(EMPTIED, left)


_UNENDED: Final = frozenset({"", "Proposed", "Executing"})


def state(server: ApiServer) -> list[object]:
    """What changes as long as anybody is busy, without the moments at which it did. Compare, and nothing else."""
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
    """What is still on the way, a sentence each."""
    claims = server.list(NODECLAIM).items
    commands = server.list(NODE_DISRUPTION).items
    return [
        *(f"NodeClaim {c.metadata.name} is leaving" for c in claims if c.metadata.deletion_timestamp),
        *(f"Node {n.metadata.name} is leaving" for n in server.list(NODE).items if n.metadata.deletion_timestamp),
        *(f"pod {p.key} is leaving" for p in server.list(POD).items if p.metadata.deletion_timestamp),
        *(f"NodeClaim {c.metadata.name} is not initialized" for c in claims if not _is_initialized(c)),
        *(f"NodeDisruption {d['metadata']['name']} has not ended" for d in commands if _phase(d) in _UNENDED),
    ]


def pods_wait(server: ApiServer) -> bool:
    """Whether a pod has no node, or does not run yet."""
    return any(pod.status.phase == "Pending" for pod in server.list(POD).items)


def leftovers(server: ApiServer, instances: Iterable[CloudInstance]) -> Iterator[str]:
    """What a cluster from which all was taken away should not have, a sentence each."""
    yield from (f"NodeClaim {claim.metadata.name} is there" for claim in server.list(NODECLAIM).items)
    yield from (f"Node {node.metadata.name} is there" for node in server.list(NODE).items)
    yield from (f"instance {i.provider_id} is {i.state}" for i in instances if i.runs)


def _is_initialized(claim: Any) -> bool:
    return is_true(claim.status.conditions, INITIALIZED)


def _phase(command: dict[str, Any]) -> str:
    return str((command.get("status") or {}).get("phase", ""))
