"""Generates the scenario of a seed.

The generator draws faults uniformly from the list of call sites, so that rare calls fail as often as common ones, and
crashes the process at the first call of each site in turn. Durations follow the product's times: Leases that expire,
messages that become visible again, stale lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final, get_args

from msgspec import Struct
from msgspec.structs import replace

from journeyman_simulator.faults import fault_scenario
from journeyman_simulator.faults.call_sites import CALL_SITES, has_effect, kinds_of
from journeyman_simulator.faults.fault_scenario import (
    BROKEN,
    CAPACITY_TYPES,
    AnyOperation,
    CallFault,
    ClaimChange,
    ClaimForgery,
    ClaimStatusChange,
    CloudName,
    Deploy,
    EditClaim,
    EditNode,
    EditTags,
    Fault,
    FaultKind,
    FaultScenario,
    FunctionThrottle,
    MessageFault,
    MessageFaultKind,
    NodeChange,
    NodeForgery,
    ScenarioBudget,
    ScenarioPool,
    ScenarioSetup,
    TagChange,
)
from journeyman_simulator.faults.operation_generator import (
    LAST_OPERATION_SECONDS,
    block_drain,
    by_time,
    delete_all_pods_together,
    delete_protected_claims,
    draw_operations,
    empty_most_of_nodes,
    empty_nodes_early,
    lie_about_nodes,
    rebuild_cluster,
    resize_pods,
    restore_backup,
    shrink_workload,
    under_use_nodes,
    uninstall,
    wipe_objects,
)
from journeyman_simulator.faults.scenario_clouds import CLOUDS, ScenarioCloud

CRASHES: Final = (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER)
MAX_CALL_FAULTS: Final = 4
MAX_MESSAGE_FAULTS: Final = 4
_CRASHING: Final = 0.35  # of call faults
_LAGGING: Final = 0.1  # of scenarios: any list may be stale
_WITHOUT_SWEEP: Final = 0.15  # of scenarios: no sweep runs, so no message may be lost
_LOST_LAUNCHES: Final = 0.1  # of scenarios: the response to a launch is lost
_STALE_READS: Final = 10  # stale reads of instances, after the first one
_REPEATED: Final = 0.3  # of faults: the next call of the site also fails

# a pause between two calls; beyond a Lease's expiry; until a message is visible again (65, 125 and 185 s)
_PAUSES: Final = (0.0, 2.0, 5.0, 20.0, 61.0, 95.0, 155.0, 215.0)
_TIMEOUTS: Final = (5.0, 20.0, 60.0)
_STALE_CLUSTER: Final = (1.0, 5.0, 15.0, 30.0)
_STALE_ACCOUNT: Final = (1.0, 5.0, 20.0)
_LAGS: Final = (1.0, 2.0, 5.0)
_DELAYS: Final = (1.0, 10.0, 45.0, 120.0)


def generate_scenario(seed: int, cloud: CloudName = "aws") -> FaultScenario:
    """Return the scenario of a seed on a cloud; equal seeds give equal scenarios."""
    return with_rare_features(_scenario_of(seed, cloud))


def _scenario_of(seed: int, cloud: CloudName) -> FaultScenario:
    sites, facts = _SITES[cloud], CLOUDS[cloud]
    rng = Random(seed)
    sweep = rng.random() >= _WITHOUT_SWEEP or facts.needs_sweep
    setup = draw_setup(rng, sweep=sweep, cloud=cloud)
    operations = draw_operations(rng, setup)
    if not sweep:
        return FaultScenario(seed=seed, setup=setup, operations=operations, faults=_overlap_faults(rng, facts))
    calls = _call_faults(rng, sites, lags=rng.random() < _LAGGING)
    messages = _message_faults(rng, facts)
    lost = _lost_launch(rng, facts) if rng.random() < _LOST_LAUNCHES else ()
    return FaultScenario(
        seed=seed,
        setup=setup,
        operations=operations,
        faults=(*_first_call_crash(seed, sites.all), *lost, *calls, *messages),
    )


# -- calls ----------------------------------------------------------------------------------------------------------


def _call_faults(rng: Random, sites: _CloudSites, *, lags: bool) -> tuple[CallFault, ...]:
    faults: list[CallFault] = []
    for _ in range(rng.randint(0, MAX_CALL_FAULTS)):
        site = rng.choice(sites.all if rng.random() < 0.5 else sites.effects)
        kind = _kind(rng, site, lags=lags)
        nth = _ordinal(rng)
        faults.append(CallFault(site=site, nth=nth, kind=kind, seconds=_seconds(rng, site, kind)))
        if rng.random() < _REPEATED:
            again = _kind(rng, site, lags=lags)
            faults.append(CallFault(site=site, nth=nth + 1, kind=again, seconds=_seconds(rng, site, again)))
    return tuple(faults)


def _first_call_crash(seed: int, sites: Sequence[str]) -> tuple[CallFault, ...]:
    """Return a crash at the first call of a site for every second seed: each site in turn, before and after the effect."""
    number, rest = divmod(seed, 2)
    round_, index = divmod(number, len(sites))
    return () if rest else (CallFault(site=sites[index], nth=1, kind=CRASHES[round_ % 2]),)


def _kind(rng: Random, site: str, *, lags: bool) -> FaultKind:
    if rng.random() < _CRASHING:
        return rng.choice(CRASHES)
    possible = [kind for kind in kinds_of(site) if kind not in CRASHES and (lags or kind is not FaultKind.LAG)]
    return rng.choice(possible)


def _seconds(rng: Random, site: str, kind: FaultKind) -> float:
    spans: dict[FaultKind, Sequence[float]] = {
        FaultKind.PAUSE: _PAUSES,
        FaultKind.TIMEOUT_BEFORE: _TIMEOUTS,
        FaultKind.TIMEOUT_AFTER: _TIMEOUTS,
        FaultKind.STALE: _STALE_CLUSTER if ": list " in site else _STALE_ACCOUNT,
        FaultKind.LAG: _LAGS,
    }
    return rng.choice(spans[kind]) if kind in spans else 0.0


def _overlap_faults(rng: Random, cloud: ScenarioCloud) -> tuple[Fault, ...]:
    """Draw faults for scenarios without a sweep: overlapping runs and late messages, but no lost messages."""
    faults: list[Fault] = [
        CallFault(
            site=rng.choice(CALL_SITES[cloud.name]),
            nth=_ordinal(rng),
            kind=FaultKind.PAUSE,
            seconds=rng.choice(_PAUSES[:4]),
        )
        for _ in range(rng.randint(0, 2))
    ]
    late = (MessageFaultKind.DUPLICATE, MessageFaultKind.REORDER)
    faults += [_message_fault(rng, cloud, lambda: rng.choice(late)) for _ in range(rng.randint(0, 2))]
    return tuple(faults)


def _lost_launch(rng: Random, cloud: ScenarioCloud) -> tuple[CallFault, ...]:
    """Return faults that lose the response to a launch, and hide the instance in later reads of instances."""
    step, nth = "provision", _ordinal(rng)
    lost_kind = rng.choice((FaultKind.FAIL_AFTER, FaultKind.TIMEOUT_AFTER, FaultKind.CRASH_AFTER))
    launch = f"{step}: {cloud.launch}"
    describe = f"{step}: {cloud.describe}"
    lost = CallFault(site=launch, nth=nth, kind=lost_kind, seconds=_seconds(rng, launch, lost_kind))
    stale_reads = (
        CallFault(site=describe, nth=n, kind=FaultKind.STALE, seconds=20.0) for n in range(2, 2 + _STALE_READS)
    )
    return (lost, *stale_reads)


# -- messages -------------------------------------------------------------------------------------------------------


def _message_faults(rng: Random, cloud: ScenarioCloud) -> tuple[MessageFault, ...]:
    return tuple(
        _message_fault(rng, cloud, lambda: rng.choice(tuple(MessageFaultKind)))
        for _ in range(rng.randint(0, MAX_MESSAGE_FAULTS))
    )


def _message_fault(rng: Random, cloud: ScenarioCloud, draw: Callable[[], MessageFaultKind]) -> MessageFault:
    queue, kind = rng.choice(cloud.queues), draw()
    seconds = rng.choice(_DELAYS) if kind is MessageFaultKind.DELAY else 0.0
    return MessageFault(queue=queue, nth=_ordinal(rng, 0.4), kind=kind, seconds=seconds)


def _ordinal(rng: Random, often: float = 0.6) -> int:
    """Draw an ordinal, starting at 1, with decreasing probability."""
    nth = 1
    while rng.random() > often:
        nth += 1
    return nth


class _CloudSites(Struct, frozen=True, kw_only=True):
    """The call sites of one cloud: all, those with an effect, and those at which others edit objects while the run waits."""

    all: tuple[str, ...]
    effects: tuple[str, ...]
    slow: tuple[str, ...]


def _sites_of(sites: tuple[str, ...]) -> _CloudSites:
    effects = tuple(site for site in sites if has_effect(site))
    slow = tuple(site for site in sites if site.startswith("terminate: ") or site in effects or ": get " in site)
    return _CloudSites(all=sites, effects=effects, slow=slow)


_SITES: Final = {cloud: _sites_of(sites) for cloud, sites in CALL_SITES.items()}


_BUDGETS: Final = ("100%", "100%", "50%", "30%", "2", "1", "1", "0")
_REASONS: Final[tuple[tuple[str, ...], ...]] = ((), (), (), ("Empty",), ("Drifted", "Underutilized"))
_FREEZES: Final = 0.25  # of scenarios: the cloud freezes a sandbox in the middle of a run and resumes it

_WITH_DEPLOYED_INTERVALS: Final = 0.1  # of scenarios
_DEPLOYED_INTERVALS: Final[Mapping[str, Any]] = {
    "pod_nomination": True,
    "registration_poll_seconds": 5,
    "drain_poll_seconds": 2,
    "instance_poll_seconds": 5,
}
_LONG_INTERVALS: Final[Mapping[str, Any]] = {
    "pod_nomination": False,
    "registration_poll_seconds": 45,
    "drain_poll_seconds": 20,
    "instance_poll_seconds": 20,
}
"""Long polling intervals, with which half as many runs test the same behaviour."""
_STATIC: Final = 0.15  # of scenarios: with a static NodePool


def draw_setup(rng: Random, *, sweep: bool, cloud: CloudName = "aws") -> ScenarioSetup:
    """Draw the NodePools, the offered instance types, and the product's settings."""
    facts = CLOUDS[cloud]
    names = ("default",) if rng.random() < 0.7 else ("default", "second")
    types = tuple(sorted({rng.choice(facts.large_types), *rng.sample(facts.generated_types, rng.randint(2, 4))}))
    return ScenarioSetup(
        cloud=cloud,
        pools=(*(_pool(rng, name, types, facts) for name in names), *_static_pool(rng, types, facts)),
        types=types,
        zones=rng.choice((2, 2, 3)),
        daemons=rng.random() < 0.3,
        node_repair=rng.random() < 0.2,
        spot_to_spot=rng.random() < 0.2,
        **(_DEPLOYED_INTERVALS if rng.random() < _WITH_DEPLOYED_INTERVALS else _LONG_INTERVALS),
        registration_timeout_seconds=rng.choice((120, 300, 300)),
        sweep=sweep,
        thaw=rng.random() < _FREEZES,
        ends_empty=rng.random() < 0.25,
        reversal_window_seconds=rng.choice((0, 30, 30, 600)),
    )


def _pool(rng: Random, name: str, types: tuple[str, ...], cloud: ScenarioCloud) -> ScenarioPool:
    only = tuple(sorted(rng.sample(types, 2))) if rng.random() < 0.15 else ()
    capacity_types = rng.choice((CAPACITY_TYPES, CAPACITY_TYPES, ("on-demand",), ("spot",)))
    return ScenarioPool(
        name=name,
        capacity_types=capacity_types,
        rebalance=capacity_types == ("spot",) and fault_scenario.Rebalance not in cloud.missing,
        types=only,
        policy=rng.choice(("WhenEmpty", "WhenEmptyOrUnderutilized")),
        consolidate_after_seconds=rng.choice((0, 0, 20, 60, -1)),
        budgets=tuple(_budget(rng) for _ in range(rng.choice((1, 1, 1, 2)))),
        limit_cpus=rng.choice((0, 0, 0, 4, 8, 12)),
        expire_after_seconds=rng.choice((0,) * 7 + (150,)),
        termination_grace_seconds=rng.choice((0, 0, 45, 90)),
        weight=rng.choice((0, 0, 10)),
    )


def with_immediate_consolidation(setup: ScenarioSetup) -> ScenarioSetup:
    """Return the setup with one NodePool, whose nodes are consolidated without delay."""
    pool = ScenarioPool(name="default", capacity_types=("on-demand",), policy="WhenEmptyOrUnderutilized")
    return replace(setup, pools=(pool,), types=(), daemons=False, reversal_window_seconds=30)


def with_immediate_emptiness(setup: ScenarioSetup) -> ScenarioSetup:
    """Return the setup with one NodePool, whose empty nodes are deleted without delay."""
    return replace(setup, pools=(ScenarioPool(name="default"),))


def with_short_termination_grace(setup: ScenarioSetup) -> ScenarioSetup:
    """Return the setup with a terminationGracePeriod of half a minute."""
    return replace(setup, pools=tuple(replace(pool, termination_grace_seconds=30) for pool in setup.pools))


def with_rebalancing(setup: ScenarioSetup) -> ScenarioSetup:
    """Return the setup with one Spot NodePool that replaces nodes on rebalance recommendations."""
    return replace(setup, pools=(ScenarioPool(name="default", capacity_types=("spot",), rebalance=True),))


def with_budget_of_one_node(setup: ScenarioSetup) -> ScenarioSetup:
    """Return the setup with a budget of one node for the first NodePool."""
    first = replace(setup.pools[0], budgets=(ScenarioBudget(nodes="1"),), consolidate_after_seconds=0, limit_cpus=0)
    return replace(setup, pools=(first, *setup.pools[1:]))


def _static_pool(rng: Random, types: tuple[str, ...], cloud: ScenarioCloud) -> tuple[ScenarioPool, ...]:
    """Draw a static NodePool for some scenarios, without weight and CPU limit, which the API server rejects."""
    if rng.random() >= _STATIC:
        return ()
    return (replace(_pool(rng, "static", types, cloud), replicas=rng.choice((1, 2, 3)), limit_cpus=0, weight=0),)


def _budget(rng: Random) -> ScenarioBudget:
    return ScenarioBudget(nodes=rng.choice(_BUDGETS), reasons=rng.choice(_REASONS))


_MORE_EMPTY_THAN_BUDGET: Final = 0.08  # of scenarios: more nodes are empty than a budget allows
_STOPPED_LOOPS: Final = 0.1  # of scenarios with a sweep: Lambda stops chains of messages
_THROTTLED: Final = 0.1  # of scenarios
_MAX_THROTTLES: Final = 3
_UNINSTALLED: Final[Mapping[CloudName, float]] = {"aws": 0.0, "alibaba": 0.05, "huawei": 0.05}
"""Of scenarios with a sweep: the NodeClass is deleted. On AWS this leads to rare calls, so the faults at these calls have it."""
_THROTTLE_SECONDS: Final = (15.0, 60.0, 150.0)
_EDITED_BY_HAND: Final = 0.1  # of scenarios with a sweep: some edits send no event
_MAX_EDITS: Final = 2
_RESIZED: Final = 0.1  # of scenarios
_LOST_OBJECTS: Final = 0.1  # of scenarios with a sweep
_LYING_NODES: Final = 0.06  # of scenarios with a sweep
_BROKEN_POOL: Final = 0.05  # of scenarios with a sweep
_BREAKAGES: Final = ("refuses", "ends", "never-joins")
_KEEPING_PODS_PENDING: Final = (
    fault_scenario.OutOfStock,
    fault_scenario.EndsEarly,
    fault_scenario.NeverJoins,
    fault_scenario.RefuseLaunches,
    fault_scenario.SetLimit,
    fault_scenario.DeletePool,
    fault_scenario.DeleteNodeClass,
    fault_scenario.BreakNodeClass,
)
_SPREAD: Final = 0.2  # of Deployments: over zones


def with_rare_features(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with rare features, each drawn from its own random number generator."""
    for change in (
        with_rare_call,
        _with_zonal_spread,
        _with_more_empty_nodes_than_budget,
        _with_manual_edits,
        _with_combined_edits,
        _with_hibernation,
        _with_platform_limits,
        _with_uninstallation,
        _with_under_used_nodes,
        _with_resizes,
        _with_lost_objects,
        _with_lying_nodes,
        _with_broken_pool,
    ):
        scenario = change(scenario)
    return scenario


def _with_resizes(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with in-place resizes of running pods."""
    rng = Random(f"{scenario.seed}: resizes")
    return scenario if rng.random() >= _RESIZED else _with(scenario, resize_pods(rng))


def _with_lost_objects(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with wiped objects, a restored etcd, or another cluster behind the same name."""
    rng, setup = Random(f"{scenario.seed}: lost objects"), scenario.setup
    if rng.random() >= _LOST_OBJECTS or not setup.sweep:
        return scenario
    losses = [wipe_objects, wipe_objects, restore_backup, restore_backup]
    if fault_scenario.RebuildCluster not in CLOUDS[setup.cloud].missing:
        losses.append(rebuild_cluster)
    return _with(_keeping_pools(scenario), rng.choice(losses)(rng))


def _with_lying_nodes(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with Nodes that lie, in half of them where consolidation deletes or replaces nodes at once."""
    rng = Random(f"{scenario.seed}: lying nodes")
    if rng.random() >= _LYING_NODES or not scenario.setup.sweep:
        return scenario
    setup = with_immediate_consolidation(scenario.setup) if rng.random() < 0.5 else scenario.setup
    return _with(replace(scenario, setup=setup), lie_about_nodes(rng))


def _with_broken_pool(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with a NodePool of the highest weight whose NodeClass is broken; nothing else keeps pods pending."""
    rng, setup = Random(f"{scenario.seed}: broken NodePool"), scenario.setup
    if rng.random() >= _BROKEN_POOL or not setup.sweep:
        return scenario
    kept = _without(scenario, *_KEEPING_PODS_PENDING)
    operations = (replace(o, pool="") if isinstance(o, Deploy) else o for o in kept.operations)
    healthy = (
        replace(pool, capacity_types=CAPACITY_TYPES, limit_cpus=0, hibernates_at_minute=0, hibernates_seconds=0)
        for pool in setup.pools
    )
    broken = ScenarioPool(name=BROKEN, weight=50, broken=rng.choice(_BREAKAGES))
    pools = (*healthy, broken)
    return replace(kept, setup=replace(setup, pools=pools, throttles=()), operations=tuple(operations))


def _without(scenario: FaultScenario, *operations: type[fault_scenario.Operation]) -> FaultScenario:
    return replace(scenario, operations=tuple(o for o in scenario.operations if not isinstance(o, operations)))


def _with_zonal_spread(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with some of its Deployments spread over zones."""
    rng = Random(f"{scenario.seed}: spread over zones")
    operations = (
        replace(operation, spread_zones=rng.random() < _SPREAD) if isinstance(operation, Deploy) else operation
        for operation in scenario.operations
    )
    return replace(scenario, operations=tuple(operations))


def _with_more_empty_nodes_than_budget(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with more empty nodes than a budget allows."""
    rng = Random(f"{scenario.seed}: a budget binds")
    if rng.random() >= _MORE_EMPTY_THAN_BUDGET:
        return scenario
    setup = with_budget_of_one_node(scenario.setup)
    operations = by_time([*scenario.operations, *delete_all_pods_together(rng, setup)])
    return replace(scenario, setup=setup, operations=operations)


def _with_under_used_nodes(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with under-used nodes, all methods of disruption and their limits, and crashes between their writes."""
    rng = Random(f"{scenario.seed}: under-used nodes")
    if rng.random() >= _UNDER_USED or not scenario.setup.sweep:
        return scenario
    return _with_disruption(rng, scenario)


def _with_disruption(rng: Random, scenario: FaultScenario) -> FaultScenario:
    setup, cloud = scenario.setup, CLOUDS[scenario.setup.cloud]
    names = rng.choice((("default",), ("default",), ("default", "second")))
    types = tuple(sorted({*cloud.large_types, *cloud.generated_types}))
    static = _static_pool(rng, types, cloud)
    pools = (
        *(_consolidated_pool(rng, name) for name in names),
        *(replace(pool, policy="WhenEmpty") for pool in static),
    )
    setup = replace(
        setup,
        pools=pools,
        types=types,
        daemons=False,
        fleet_plans=rng.random() < 0.5,
        reversal_window_seconds=rng.choice((0, 30)),
    )
    crashes = (
        CallFault(site=site, nth=_ordinal(rng), kind=rng.choice(CRASHES))
        for site in rng.choices(_COMMAND_WRITES, k=rng.choice((0, 1, 1, 2)))
    )
    return replace(scenario, setup=setup, operations=under_use_nodes(rng, setup), faults=(*crashes, *scenario.faults))


def _consolidated_pool(rng: Random, name: str) -> ScenarioPool:
    """Draw a NodePool whose nodes consolidation takes at once, within budgets, windows and caps."""
    window = ScenarioBudget(
        nodes=rng.choice(("0", "1")), opens_at_minute=rng.choice((1, 2, 3)), seconds=60 * rng.choice((1, 2, 5))
    )
    hibernates = rng.random() < _HIBERNATES
    return ScenarioPool(
        name=name,
        capacity_types=rng.choice((("on-demand",), ("on-demand",), CAPACITY_TYPES, ("spot",))),
        policy=rng.choice(("WhenEmptyOrUnderutilized", "WhenEmptyOrUnderutilized", "Balanced")),
        consolidate_after_seconds=rng.choice((0, 0, 20)),
        budgets=(
            ScenarioBudget(nodes=rng.choice(("100%", "100%", "50%", "2", "1")), reasons=rng.choice(_REASONS)),
            *((window,) if rng.random() < 0.3 else ()),
        ),
        hibernates_at_minute=rng.choice((3, 4)) if hibernates else 0,
        hibernates_seconds=rng.choice(_HIBERNATION_SECONDS) if hibernates else 0,
        time_zone=rng.choice(("", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns")),
        max_evictions_per_day=rng.choice((0, 0, 0, 0, 0, 3)),
    )


_UNDER_USED: Final = 0.25  # of scenarios with a sweep
_COMMAND_WRITES: Final = (
    "consolidate: create NodeDisruption",
    "consolidate: patch NodeDisruption/status",
    "consolidate: patch NodeDisruption/status",
    "consolidate: patch NodeClaim/status",
    "consolidate: create NodeClaim",
    "consolidate: patch Node",
    "consolidate: delete NodeClaim",
)
"""The writes of commands: between any two of them the process may crash."""


def _with_hibernation(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with hibernation, which starts and ends while operations go on, and ends once more a day later."""
    rng = Random(f"{scenario.seed}: hibernation")
    if rng.random() >= _HIBERNATES or not scenario.setup.sweep:
        return scenario
    return _with_hibernating_pools(scenario, rng.choice(_HIBERNATION_STARTS), rng.choice(_HIBERNATION_SECONDS))


def _with_hibernating_pools(scenario: FaultScenario, minute: int = 2, seconds: int = 240) -> FaultScenario:
    pools = (replace(p, hibernates_at_minute=minute, hibernates_seconds=seconds) for p in scenario.setup.pools)
    return replace(scenario, setup=replace(scenario.setup, pools=tuple(pools)))


_HIBERNATES: Final = 0.1  # of scenarios with a sweep
_HIBERNATION_STARTS: Final = (1, 2, 3, 5)  # minutes after the start
_HIBERNATION_SECONDS: Final = (60, 180, 330, 600)


def _with_manual_edits(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with manual edits of NodeClaims and Nodes."""
    rng = Random(f"{scenario.seed}: edited by hand")
    if rng.random() >= _EDITED_BY_HAND or not scenario.setup.sweep:
        return scenario
    edits = [_edit(rng) for _ in range(rng.randint(1, _MAX_EDITS))]
    return replace(scenario, operations=by_time([*scenario.operations, *edits]))


def _with_combined_edits(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with edits of a Node, its NodeClaim and its instance within seconds, and slow calls around them.

    Each edit alone may be harmless: what one removes, the product finds by what another has kept.
    """
    rng = Random(f"{scenario.seed}: combined edits")
    if rng.random() >= _COMBINED_EDITS or not scenario.setup.sweep:
        return scenario
    target = rng.choice((0, 0, 0, 1, 2))
    at = float(rng.randrange(5, LAST_OPERATION_SECONDS, 5))
    operations = []
    for draw in rng.choices(_COMBINABLE, k=rng.randint(*_EDITS_TOGETHER)):
        operations.append(draw(rng, at, target))
        at += rng.choice(_BETWEEN_EDITS)
    setup = with_short_termination_grace(scenario.setup) if rng.random() < _SHORT_GRACE else scenario.setup
    slow = _slow_calls(rng, _SITES[scenario.setup.cloud].slow) if rng.random() < _SLOW else ()
    return replace(
        scenario,
        setup=setup,
        operations=by_time([*scenario.operations, *operations]),
        faults=(*slow, *scenario.faults),
    )


def _with_platform_limits(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with chains of messages that Lambda stops, or with functions that the cloud throttles.

    Without a sweep nothing continues a stopped chain.
    """
    rng = Random(f"{scenario.seed}: limits of Lambda")
    setup = scenario.setup
    if rng.random() < _STOPPED_LOOPS and setup.sweep and CLOUDS[setup.cloud].stops_chains:
        setup = replace(setup, recursive_loops=rng.choice(("Terminate", "Stopped")))
    if rng.random() < _THROTTLED:
        setup = replace(setup, throttles=tuple(_throttle(rng) for _ in range(rng.randint(1, _MAX_THROTTLES))))
    return replace(scenario, setup=setup)


def _with_uninstallation(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with a deleted NodeClass and NodePools, unless wiped NodePools come back."""
    rng = Random(f"{scenario.seed}: uninstalled")
    comes_back = any(isinstance(operation, fault_scenario.CreatePools) for operation in scenario.operations)
    if rng.random() >= _UNINSTALLED[scenario.setup.cloud] or not scenario.setup.sweep or comes_back:
        return scenario
    return _with_deleted_node_class(scenario)


def _throttle(rng: Random) -> FunctionThrottle:
    at = float(rng.randrange(0, LAST_OPERATION_SECONDS, 5))
    return FunctionThrottle(
        step=rng.choice(("provision", "terminate", "consolidate", "interrupt", "sweep")),
        at_seconds=at,
        seconds=rng.choice(_THROTTLE_SECONDS),
    )


def _slow_calls(rng: Random, among: Sequence[str]) -> tuple[CallFault, ...]:
    """Draw calls that take seconds: others edit objects while the run waits, or the run was too late for an answer."""
    sites = rng.choices(among, k=rng.randint(1, _MAX_SLOW_CALLS))
    return tuple(
        CallFault(site=site, nth=_ordinal(rng, 0.4), kind=rng.choice(_SLOW_KINDS), seconds=rng.choice(_SLOW_SECONDS))
        for site in sites
    )


def _edit_any_of_claim(rng: Random, at: float, target: int) -> AnyOperation:
    return EditClaim(at_seconds=at, claim=target, change=rng.choice(_CLAIM_EDITS))


def _edit_any_of_node(rng: Random, at: float, target: int) -> AnyOperation:
    return EditNode(at_seconds=at, node=target, change=rng.choice(_NODE_EDITS))


def _edit_any_of_tags(rng: Random, at: float, target: int) -> AnyOperation:
    return EditTags(at_seconds=at, node=target, change=rng.choice(get_args(TagChange)))


def _delete_any(rng: Random, at: float, target: int) -> AnyOperation:
    """Draw a deletion of the Node, the NodeClaim or the instance, or a kubelet that stops."""
    return rng.choice(
        (
            fault_scenario.DeleteClaim(at_seconds=at, claim=target),
            fault_scenario.DeleteNode(at_seconds=at, node=target),
            fault_scenario.StripFinalizer(at_seconds=at, claim=target),
            fault_scenario.Interrupt(at_seconds=at, node=target),
            fault_scenario.ConsoleTerminate(at_seconds=at, node=target),
            fault_scenario.StopKubelet(at_seconds=at, node=target, seconds=rng.choice((5.0, 60.0))),
            fault_scenario.Protect(at_seconds=at, pod=target),
        )
    )


_COMBINED_EDITS: Final = 0.3  # of scenarios with a sweep
_EDITS_TOGETHER: Final = (2, 5)
_BETWEEN_EDITS: Final = (0.0, 0.0, 1.0, 3.0, 10.0, 30.0)  # seconds
_COMBINABLE: Final = (
    _edit_any_of_claim,
    _edit_any_of_claim,
    _edit_any_of_node,
    _edit_any_of_node,
    _edit_any_of_tags,
    _delete_any,
    _delete_any,
)
_CLAIM_EDITS: Final = (*get_args(ClaimChange), *get_args(ClaimStatusChange), *get_args(ClaimForgery))
_NODE_EDITS: Final = (*get_args(NodeChange), *get_args(NodeForgery))
_SHORT_GRACE: Final = 0.25  # of scenarios with combined edits
_SLOW: Final = 0.5  # of scenarios with combined edits
_MAX_SLOW_CALLS: Final = 3
_SLOW_KINDS: Final = (FaultKind.PAUSE, FaultKind.TIMEOUT_BEFORE, FaultKind.TIMEOUT_AFTER)
_SLOW_SECONDS: Final = (1.0, 2.0, 5.0, 20.0)


def _edit(rng: Random) -> AnyOperation:
    at, ordinal = rng.randrange(10, LAST_OPERATION_SECONDS, 5), rng.randrange(_NODES)
    if rng.random() < 0.5:
        return EditClaim(at_seconds=at, claim=ordinal, change=rng.choice(get_args(ClaimStatusChange)))
    return EditNode(at_seconds=at, node=ordinal, change=rng.choice(get_args(NodeChange)))


ScenarioChange = Callable[[FaultScenario], FaultScenario]
_NODES: Final = 4  # the oldest ones
_BEFORE_REGISTRATION: Final[Mapping[CloudName, tuple[float, float]]] = {
    "aws": (4.0, 8.0),
    "alibaba": (4.0, 8.0),
    "huawei": (7.0, 8.0),
}
"""Seconds at which instances run, and their nodes have not joined."""
_PODS_RUN_AT: Final = 60  # seconds: by then, nodes have joined and pods run
_NOTICE_INTERVAL: Final = 63  # seconds: the third notice repeats its Event, if the NodeClaim lives that long


def with_rare_call(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with a change that leads to the rare call of its first fault at one; such changes replace the setup."""
    if not scenario.setup.sweep:
        return scenario
    rare = RARE_CALL_SCENARIOS[scenario.setup.cloud]
    sites = [fault.site for fault in scenario.faults if isinstance(fault, CallFault)]
    change = next((rare[site] for site in sites if site in rare), None)
    return scenario if change is None else change(scenario)


def _with(scenario: FaultScenario, operations: Iterable[AnyOperation], *faults: Fault) -> FaultScenario:
    return replace(
        scenario, operations=by_time([*scenario.operations, *operations]), faults=(*faults, *scenario.faults)
    )


def _with_instances_ended_before_registration(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with instances that are terminated before their nodes join, without messages about them."""
    times = _BEFORE_REGISTRATION[scenario.setup.cloud]
    terminations = (fault_scenario.ConsoleTerminate(at_seconds=at, node=node) for node, at in enumerate(times))
    lost_kind = (MessageFault(queue="interrupt", nth=nth, kind=MessageFaultKind.DROP) for nth in range(1, 7))
    return _with(scenario, terminations, *lost_kind)


def _with_wiped_nodepools(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with wiped NodePools and NodeClaims, so that instances look lost; the NodePools come back later."""
    wipes = (
        fault_scenario.WipePools(at_seconds=_PODS_RUN_AT),
        fault_scenario.WipeClaims(at_seconds=_PODS_RUN_AT),
        fault_scenario.CreatePools(at_seconds=LAST_OPERATION_SECONDS),
    )
    return _with(_keeping_pools(scenario), wipes)


def _keeping_pools(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario in which no NodePool is deleted, since what cannot be adopted is removed within hours only."""
    kept = _without(scenario, fault_scenario.DeletePool, fault_scenario.DeleteNodeClass)
    return replace(kept, setup=replace(kept.setup, ends_empty=False))


def _with_ended_orphaned_instance(scenario: FaultScenario) -> FaultScenario:
    lost = CallFault(site=f"provision: {CLOUDS[scenario.setup.cloud].launch}", nth=1, kind=FaultKind.CRASH_AFTER)
    return _with(scenario, [fault_scenario.ConsoleTerminate(at_seconds=10, node=-1)], lost)


def _with_repeated_recommendations(scenario: FaultScenario) -> FaultScenario:
    return _with(scenario, _recommendations(_PODS_RUN_AT, _PODS_RUN_AT + 5))


def _with_late_recommendations(scenario: FaultScenario) -> FaultScenario:
    return _with(scenario, _recommendations(*range(_PODS_RUN_AT - 20, 300, _NOTICE_INTERVAL)))


def _with_interrupted_nodes(scenario: FaultScenario) -> FaultScenario:
    return _with(scenario, [fault_scenario.Interrupt(at_seconds=_PODS_RUN_AT, node=node) for node in range(_NODES)])


def _with_rebalancing_nodepool(scenario: FaultScenario) -> FaultScenario:
    return _with(replace(scenario, setup=with_rebalancing(scenario.setup)), _recommendations(_PODS_RUN_AT))


def _recommendations(*times: float) -> Iterable[AnyOperation]:
    return [fault_scenario.Rebalance(at_seconds=at, node=node) for at in times for node in range(_NODES)]


def _with_blocked_drain(scenario: FaultScenario) -> FaultScenario:
    return _with(scenario, block_drain(_NODES))


def _with_force_termination(scenario: FaultScenario) -> FaultScenario:
    return _with(replace(scenario, setup=with_short_termination_grace(scenario.setup)), delete_protected_claims(_NODES))


def _without_offerings_at_first(scenario: FaultScenario) -> FaultScenario:
    empty = fault_scenario.OutOfStock(at_seconds=0, type=-1, zone=-1, capacity_type="", seconds=30)
    return _with(scenario, [empty])


def _with_failed_build_of_lost_launch(scenario: FaultScenario) -> FaultScenario:
    """Return the scenario with a run that crashed after its launch, whose instance the cloud then cannot build."""
    lost = CallFault(site=f"provision: {CLOUDS[scenario.setup.cloud].launch}", nth=1, kind=FaultKind.CRASH_AFTER)
    return _with(_without_offerings_at_first(scenario), [], lost)


def _with_early_empty_nodes(scenario: FaultScenario) -> FaultScenario:
    return replace(scenario, setup=with_immediate_emptiness(scenario.setup), operations=empty_nodes_early())


def _with_deleted_node_class(scenario: FaultScenario) -> FaultScenario:
    return _with(scenario, uninstall(scenario.setup))


def _with_replaced_node(scenario: FaultScenario) -> FaultScenario:
    return replace(
        scenario, setup=with_immediate_consolidation(scenario.setup), operations=shrink_workload(out_of_stock=False)
    )


def _with_fleet_plan(scenario: FaultScenario) -> FaultScenario:
    setup = replace(with_immediate_consolidation(scenario.setup), fleet_plans=True)
    return replace(scenario, setup=setup, operations=empty_most_of_nodes())


def _with_unavailable_replacement(scenario: FaultScenario) -> FaultScenario:
    return replace(
        scenario, setup=with_immediate_consolidation(scenario.setup), operations=shrink_workload(out_of_stock=True)
    )


def _with_claims_removed_before_instances(scenario: FaultScenario) -> FaultScenario:
    return _with(scenario, [fault_scenario.StripFinalizer(at_seconds=_PODS_RUN_AT + 30 * n, claim=0) for n in range(3)])


_RARE_AWS_CALLS: Final[Mapping[str, ScenarioChange]] = {
    "consolidate: apply OfferingState": _with_unavailable_replacement,
    "consolidate: create NodeClaim": _with_replaced_node,
    "consolidate: delete NodeClaim": _with_early_empty_nodes,
    "consolidate: ec2 CreateFleet": _with_replaced_node,
    "consolidate: ec2 CreateLaunchTemplate": _with_replaced_node,
    "consolidate: ec2 DescribeInstances": _with_replaced_node,
    "consolidate: ec2 DescribeLaunchTemplates": _with_replaced_node,
    "consolidate: patch OfferingState/status": _with_unavailable_replacement,
    "interrupt: ec2 DescribeInstances": _with_ended_orphaned_instance,
    "interrupt: list Event": _with_repeated_recommendations,
    "interrupt: patch Event": _with_late_recommendations,
    "interrupt: patch NodeClaim": _with_rebalancing_nodepool,
    "provision: delete NodeClaim": _without_offerings_at_first,
    "provision: ec2 DeleteLaunchTemplate": _with_deleted_node_class,
    "provision: iam DeleteInstanceProfile": _with_deleted_node_class,
    "provision: iam ListInstanceProfiles": _with_deleted_node_class,
    "provision: iam RemoveRoleFromInstanceProfile": _with_deleted_node_class,
    "terminate: delete Pod": _with_force_termination,
    "terminate: get NodeClaim": _with_claims_removed_before_instances,
    "terminate: patch Event": _with_blocked_drain,
    "terminate: patch NodePool": _with_instances_ended_before_registration,
    "terminate: create FleetGuard": _with_wiped_nodepools,  # new ones below, as the seeds of the recorded sample follow the order
    "terminate: patch FleetGuard/status": _with_wiped_nodepools,
    "sweep: scheduler CreateSchedule": _with_hibernating_pools,
    "sweep: scheduler DeleteSchedule": _with_hibernating_pools,
    "consolidate: create FleetPlan": _with_fleet_plan,
    "consolidate: patch FleetPlan/status": _with_fleet_plan,
}

_RARE_ALIBABA_CALLS: Final[Mapping[str, ScenarioChange]] = {
    "consolidate: apply OfferingState": _with_unavailable_replacement,
    "consolidate: create NodeClaim": _with_replaced_node,
    "consolidate: cs DescribeClusterAttachScripts": _with_replaced_node,
    "consolidate: cs DescribeClusterNodePools": _with_replaced_node,
    "consolidate: delete NodeClaim": _with_early_empty_nodes,
    "consolidate: ecs CreateAutoProvisioningGroup": _with_replaced_node,
    "consolidate: ecs DescribeInstances": _with_replaced_node,
    "consolidate: patch OfferingState/status": _with_unavailable_replacement,
    "interrupt: apply OfferingState": _with_interrupted_nodes,
    "interrupt: patch OfferingState/status": _with_interrupted_nodes,
    "provision: delete NodeClaim": _without_offerings_at_first,
    "terminate: delete Pod": _with_force_termination,
    "terminate: get NodeClaim": _with_claims_removed_before_instances,
    "terminate: patch Event": _with_blocked_drain,
    "terminate: patch NodePool": _with_instances_ended_before_registration,
    "terminate: create FleetGuard": _with_wiped_nodepools,  # new ones below, as the seeds of the recorded sample follow the order
    "terminate: patch FleetGuard/status": _with_wiped_nodepools,
    "consolidate: create FleetPlan": _with_fleet_plan,
    "consolidate: patch FleetPlan/status": _with_fleet_plan,
}

_RARE_HUAWEI_CALLS: Final[Mapping[str, ScenarioChange]] = {
    "consolidate: apply OfferingState": _with_unavailable_replacement,
    "consolidate: create NodeClaim": _with_replaced_node,
    "consolidate: cce CreateNode": _with_replaced_node,
    "consolidate: cce ListNodes": _with_replaced_node,
    "consolidate: delete NodeClaim": _with_early_empty_nodes,
    "consolidate: patch OfferingState/status": _with_unavailable_replacement,
    "interrupt: apply OfferingState": _with_interrupted_nodes,
    "interrupt: ecs ListServersDetails": _with_ended_orphaned_instance,
    "interrupt: patch OfferingState/status": _with_interrupted_nodes,
    "provision: cce ShowJob": _with_failed_build_of_lost_launch,
    "provision: delete NodeClaim": _without_offerings_at_first,
    "terminate: apply OfferingState": _without_offerings_at_first,
    "terminate: cce ShowJob": _without_offerings_at_first,
    "terminate: delete Pod": _with_force_termination,
    "terminate: get NodeClaim": _with_claims_removed_before_instances,
    "terminate: patch Event": _with_blocked_drain,
    "terminate: patch NodePool": _with_instances_ended_before_registration,
    "terminate: patch OfferingState/status": _without_offerings_at_first,
    "terminate: create FleetGuard": _with_wiped_nodepools,  # new ones below, as the seeds of the recorded sample follow the order
    "terminate: patch FleetGuard/status": _with_wiped_nodepools,
    "consolidate: create FleetPlan": _with_fleet_plan,
    "consolidate: patch FleetPlan/status": _with_fleet_plan,
}

RARE_CALL_SCENARIOS: Final[Mapping[str, Mapping[str, ScenarioChange]]] = {
    "aws": _RARE_AWS_CALLS,
    "alibaba": _RARE_ALIBABA_CALLS,
    "huawei": _RARE_HUAWEI_CALLS,
}
"""By cloud: the changes of scenarios that lead to rare calls, by call site."""
