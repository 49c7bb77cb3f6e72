"""Runs a fault scenario: with faults, then without, until the cluster is at rest or an invariant is violated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct

from journeyman.core.api.conditions import INITIALIZED, REGISTERED, parse_time
from journeyman.core.api.labels import ADOPTED
from journeyman.core.api.labels import NODEPOOL as NODEPOOL_LABEL
from journeyman.core.api.objects import (
    FLEET_GUARD,
    FLEET_PLAN,
    NODE,
    NODE_DISRUPTION,
    NODECLAIM,
    NODEPOOL,
    OFFERING_STATE,
    POD,
    is_true,
)
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.faults.call_sites import FaultCoverage
from journeyman_simulator.faults.fault_scenario import FaultScenario
from journeyman_simulator.faults.fault_world import MAX_RUNS, MINUTE, FaultWorld, TooManyRunsError
from journeyman_simulator.faults.history import HistoryEntry
from journeyman_simulator.faults.invariants.checkers import InvariantChecker, Violation
from journeyman_simulator.faults.invariants.cluster_queries import is_tainted_for_disruption, skew
from journeyman_simulator.faults.manifests import NAMESPACE, START
from journeyman_simulator.faults.sandboxes import ORIGINALS, Collaborators, logs_silenced
from journeyman_simulator.faults.scenario_view import HUMAN, CloudInstance
from journeyman_simulator.workload_controllers import DEPLOYMENT
from journeyman_simulator.world import WorldStuckError

FAULTS_AFTER_LAST_OPERATION: Final = timedelta(seconds=60)
REST_MINUTES: Final = 3
"""The cluster is at rest after this time without changes, which exceeds every period in which steps run by schedule."""
WITHOUT_CLAIMS_MINUTES: Final = 11
"""The same for a cluster with nodes or instances but no NodeClaims, which the sweep reads every ten minutes."""
PENDING_PODS_MINUTES: Final = 8
"""The same for a cluster with pending pods, after their unavailable offerings may be tried again.

What a run cached while its clock was ahead is read again as much later.
"""
LONGEST_WAIT_FOR_REST: Final = timedelta(minutes=45)
_LONGEST_HOLD: Final = timedelta(hours=6)
"""So long nodes that look lost may be kept; two or more of them are removed within an hour."""
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
    max_runs: int = MAX_RUNS,
    collaborators: Collaborators = ORIGINALS,
) -> ScenarioResult:
    """Run a scenario to its end, or until an invariant is violated.

    Args:
        scenario: The scenario.
        checkers: The invariants to check.
        on_entry: Called with each entry of the history when it is recorded.
        max_runs: The number of invocations, `RUNS_PER_SECOND` aside, after which the scenario counts as one that does not end.
        collaborators: Wrappers of the functions' stores, queues and AWS clients.
    """
    with logs_silenced():
        world = FaultWorld(scenario, checkers, on_entry, max_runs=max_runs, collaborators=collaborators)
        try:
            _run_phases(world)
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


def _run_phases(world: FaultWorld) -> None:
    """Run the phases in order, until an invariant is violated."""
    _run_with_faults(world)
    for phase in (_end_faults, _run_until_at_rest, *((_empty_cluster,) if world.scenario.setup.ends_empty else ())):
        if not world.checkers.violations:
            phase(world)


def _run_with_faults(world: FaultWorld) -> None:
    """Run until a minute after the last operation, and until no run is paused."""
    last = max((operation.at_seconds for operation in world.scenario.operations), default=0.0)
    world.run_for(timedelta(seconds=last) + FAULTS_AFTER_LAST_OPERATION)
    while (until := world.paused_until()) is not None and not world.checkers.violations:
        world.run_for(until - world.clock.now())


def _end_faults(world: FaultWorld) -> None:
    world.history.record("faults end", "scenario")
    world.restore()


def _run_until_at_rest(world: FaultWorld) -> None:
    """Run until the cluster is at rest and nothing is in progress; then run the checks at rest."""
    begun = world.clock.now()
    ends_at = begun + LONGEST_WAIT_FOR_REST
    before, unchanged = state(world.server), 0
    while not world.checkers.violations:
        world.run_for(MINUTE)
        now = state(world.server)
        held = _held_removals(world)
        if held and world.clock.now() < begun + _LONGEST_HOLD:
            ends_at = world.clock.now() + LONGEST_WAIT_FOR_REST
        awaited = [*_awaited_launches(world), *_hibernating(world), *held]
        before, unchanged = now, unchanged + 1 if now == before and not awaited else 0
        in_progress = [*unfinished(world.server), *awaited, *(f"{run} is paused" for run in world.active_runs())]
        if not in_progress and unchanged >= _required_minutes_of_rest(world):
            world.history.record("at rest", "scenario")
            world.checkers.check_at_rest()
            return
        if world.clock.now() >= ends_at:
            text = ", ".join(in_progress) or "it keeps changing"
            world.checkers.report(STUCK, f"the cluster did not come to rest: {text}")


def _held_removals(world: FaultWorld) -> list[str]:
    """Return a sentence if nodes that look lost are kept, because as many as allowed were removed within the last hour."""
    guards = (item.get("status") or {} for item in world.server.list(FLEET_GUARD).items)
    return [f"removals are held since {since}" for status in guards if (since := status.get("heldSince"))]


def _awaited_launches(world: FaultWorld) -> list[str]:
    """Return a sentence for each offering and object that nodes may wait for; long if a clock was ahead when it failed."""
    if not (has_pending_pods(world.server) or _lacks_replicas(world.server)):
        return []
    entries = (
        (str(item["metadata"]["name"]), what, entry)
        for item in world.server.list(OFFERING_STATE).items
        for kind in ("unavailable", "launchFailures")
        for entry in (item.get("status") or {}).get(kind, ())
        for what in (f"{entry.get('instanceType', entry.get('scope'))} {entry.get('zone', entry.get('name'))}",)
    )
    return [
        f"OfferingState {name} has {what} as failed until {entry['until']}"
        for name, what, entry in entries
        if (until := parse_time(entry["until"])) is not None and until > world.clock.now()
    ]


def _lacks_replicas(server: ApiServer) -> bool:
    """Whether a static NodePool has fewer NodeClaims than replicas: the back-off of failed launches exceeds the time of rest."""
    claims = Counter(claim.metadata.labels.get(NODEPOOL_LABEL, "") for claim in server.list(NODECLAIM).items)
    pools = (pool for pool in server.list(NODEPOOL).items if not pool["metadata"].get("deletionTimestamp"))
    return any(claims[pool["metadata"]["name"]] < int(pool["spec"].get("replicas") or 0) for pool in pools)


def _hibernating(world: FaultWorld) -> list[str]:
    """Return a sentence for each NodePool whose hibernation has not ended."""
    now, found = world.clock.now(), {item["metadata"]["name"] for item in world.server.list(NODEPOOL).items}
    return [
        f"NodePool {pool.name} hibernates"
        for pool in world.scenario.setup.pools
        if pool.hibernates_at_minute and pool.name in found
        if now < START + pool.hibernates_at_minute * MINUTE + timedelta(seconds=pool.hibernates_seconds) + MINUTE
    ]


def _required_minutes_of_rest(world: FaultWorld) -> int:
    anything = world.server.list(NODE).items or any(instance.runs for instance in world.instances())
    if anything and not world.server.list(NODECLAIM).items:
        return WITHOUT_CLAIMS_MINUTES
    if not has_pending_pods(world.server):
        return REST_MINUTES
    return PENDING_PODS_MINUTES + math.ceil(skew(world.scenario) / MINUTE)


def _empty_cluster(world: FaultWorld) -> None:
    """Delete all Deployments and NodePools, and check that no NodeClaim, Node or instance remains."""
    world.history.record("Deployments and NodePools are deleted", "scenario")
    human = world.server.acting_as(HUMAN)
    for resource, namespace in ((DEPLOYMENT, NAMESPACE), (NODEPOOL, "")):
        for item in world.server.list(resource).items:
            human.delete(resource, item["metadata"]["name"], namespace=namespace)
    _run_until_at_rest(world)
    entries = (f"schedule entry {name} exists" for name in world.schedule_entries())
    for leftover in (*leftovers(world.server, world.instances()), *entries):
        world.checkers.report(NOTHING_REMAINS, leftover)


_ACTIVE_PHASES: Final = frozenset({"", "Proposed", "Validated", "Replacing", "Draining"})


def state(server: ApiServer) -> list[object]:
    """Return the state that changes while work is in progress, without timestamps, for comparison."""
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
    """Return a sentence for each object whose work is in progress.

    Kubernetes deletes a Node with its NodeClaim. Our finalizer holds it until the NodeClaim is created again, or it may be removed.
    """
    claims = server.list(NODECLAIM).items
    terminating = [n for n in server.list(NODE).items if n.metadata.deletion_timestamp]
    owned = {c.status.provider_id for c in claims if ADOPTED not in c.metadata.annotations}
    nodes = (n for n in terminating if is_tainted_for_disruption(n) or n.spec.provider_id in owned)  # others are held
    commands = server.list(NODE_DISRUPTION).items
    return [
        *(f"NodeClaim {c.metadata.name} is terminating" for c in claims if c.metadata.deletion_timestamp),
        *(f"Node {n.metadata.name} is terminating" for n in nodes),
        *(f"pod {p.key} is terminating" for p in server.list(POD).items if p.metadata.deletion_timestamp),
        *(f"NodeClaim {c.metadata.name} is not initialized" for c in claims if not _is_initialized(c)),
        *(f"NodeDisruption {d['metadata']['name']} has not ended" for d in commands if _phase(d) in _ACTIVE_PHASES),
    ]


def has_pending_pods(server: ApiServer) -> bool:
    """Whether a pod is pending."""
    return any(pod.status.phase == "Pending" for pod in server.list(POD).items)


def leftovers(server: ApiServer, instances: Iterable[CloudInstance]) -> Iterator[str]:
    """Yield a sentence for each object that an emptied cluster must not have."""
    yield from (f"NodeClaim {claim.metadata.name} exists" for claim in server.list(NODECLAIM).items)
    yield from (f"Node {node.metadata.name} exists" for node in server.list(NODE).items)
    yield from (
        f"FleetPlan {plan['metadata']['name']} runs"
        for plan in server.list(FLEET_PLAN).items
        if (plan.get("status") or {}).get("phase", "Running") == "Running"
    )
    yield from (f"instance {i.provider_id} is {i.state}" for i in instances if i.runs)


def _is_initialized(claim: Any) -> bool:
    """Whether Registered and Initialized are True; a user may have written one of them."""
    return all(is_true(claim.status.conditions, type_) for type_ in (REGISTERED, INITIALIZED))


def _phase(command: dict[str, Any]) -> str:
    return str((command.get("status") or {}).get("phase", ""))
