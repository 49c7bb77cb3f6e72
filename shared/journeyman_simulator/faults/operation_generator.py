"""Draws a scenario's operations from a random number generator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from random import Random
from typing import Final, get_args

from journeyman.core.api.conditions import format_time
from journeyman_simulator.faults import fault_scenario
from journeyman_simulator.faults.fault_scenario import AnyOperation, ScenarioSetup
from journeyman_simulator.faults.manifests import START
from journeyman_simulator.faults.scenario_clouds import CLOUDS

LAST_OPERATION_SECONDS: Final = 150
MIN_OPERATIONS: Final = 3
MAX_OPERATIONS: Final = 6
APPS: Final = ("a", "b", "c")
_OWN_APP: Final = "d"
_BLOCKED_UNTIL: Final = 330  # seconds
_NODES: Final = 6  # ordinals are below this
_CPUS: Final = (200, 500, 900, 1500)
_RESIZED_CPUS: Final = (50, 100, 700, 1200, 3000, 64_000)
_MEMORIES: Final = (128, 256, 1024, 3000)
_GRACES: Final = (1, 1, 5, 40)
_FEW: Final = 4  # replicas of Deployments with a node for each pod
_EDITS: Final[tuple[fault_scenario.ClaimChange, ...]] = get_args(fault_scenario.ClaimChange)
_LONG_UNHEALTHY: Final = 0.3  # of scenarios with node repair: a node is unhealthy until its repair

Draw = Callable[[Random, float, ScenarioSetup], AnyOperation]


def draw_operations(rng: Random, setup: ScenarioSetup) -> tuple[AnyOperation, ...]:
    """Draw one or two Deployments at the start, then other operations, sorted by time."""
    first = [_deploy(rng, 0, setup, app) for app in APPS[: rng.choice((1, 1, 2))]]
    draws, weights = zip(*((draw, weight) for draw, weight in _DRAWS if _is_possible(draw, setup)), strict=True)
    later = [
        draw(rng, rng.randrange(0, LAST_OPERATION_SECONDS, 5), setup)
        for draw in rng.choices(draws, weights, k=rng.randint(MIN_OPERATIONS, MAX_OPERATIONS))
    ]
    repair = (
        _unhealthy_for_long(rng, setup) if setup.node_repair and setup.sweep and rng.random() < _LONG_UNHEALTHY else []
    )
    return by_time([*first, *later, *repair])


def by_time(operations: Iterable[AnyOperation]) -> tuple[AnyOperation, ...]:
    """Return the operations in the order of their times."""
    return tuple(sorted(operations, key=lambda operation: operation.at_seconds))


def block_drain(nodes: int) -> tuple[AnyOperation, ...]:
    """Return operations that delete NodeClaims while a PodDisruptionBudget blocks their drain, so that Events repeat."""
    deployment = fault_scenario.Deploy(at_seconds=0, app=_OWN_APP, replicas=2, min_available=2)
    deletions = (fault_scenario.DeleteClaim(at_seconds=60, claim=claim) for claim in range(nodes))
    return (deployment, *deletions, fault_scenario.Unprotect(at_seconds=_BLOCKED_UNTIL))


def delete_all_pods_together(rng: Random, setup: ScenarioSetup) -> tuple[AnyOperation, ...]:
    """Return operations that deploy an application with a node per pod, and delete all its pods together."""
    replicas, pool = rng.randint(3, _FEW), setup.pools[0].name
    deployed = fault_scenario.Deploy(at_seconds=0, app=_OWN_APP, replicas=replicas, one_per_node=True, pool=pool)
    return (deployed, fault_scenario.Undeploy(at_seconds=rng.randrange(60, LAST_OPERATION_SECONDS, 5), app=_OWN_APP))


def empty_nodes_early() -> tuple[AnyOperation, ...]:
    """Return operations that empty nodes as soon as they are initialized, so that consolidation deletes them."""
    deployed = fault_scenario.Deploy(at_seconds=0, app=_OWN_APP, replicas=2, one_per_node=True)
    return (
        deployed,
        fault_scenario.Undeploy(at_seconds=60, app=_OWN_APP),
        fault_scenario.Unprotect(at_seconds=LAST_OPERATION_SECONDS),
    )


def delete_protected_claims(nodes: int) -> tuple[AnyOperation, ...]:
    """Return operations that delete NodeClaims whose pods have do-not-disrupt."""
    deployed = fault_scenario.Deploy(at_seconds=0, app=_OWN_APP, replicas=2, do_not_disrupt=True)
    return (deployed, *(fault_scenario.DeleteClaim(at_seconds=60, claim=claim) for claim in range(nodes)))


def shrink_workload(*, out_of_stock: bool) -> tuple[AnyOperation, ...]:
    """Return operations that scale down so that a smaller node suffices, which is unavailable with `out_of_stock`."""
    empty = fault_scenario.OutOfStock(at_seconds=65, type=-1, zone=-1, capacity_type="", seconds=40)
    return (
        fault_scenario.Deploy(at_seconds=0, app="a", replicas=1, cpu_millicores=500),
        fault_scenario.Deploy(at_seconds=0, app="b", replicas=1, cpu_millicores=3000),
        fault_scenario.Scale(at_seconds=60, app="b", replicas=0),
        *([empty] if out_of_stock else []),
        fault_scenario.Unprotect(at_seconds=150),  # extends the phase with faults
    )


def under_use_nodes(rng: Random, setup: ScenarioSetup) -> tuple[AnyOperation, ...]:
    """Return operations that leave several nodes with small pods, which fit on fewer or cheaper nodes, and disturb that.

    The first application has one pod per node. The small pods of the second spread over these nodes, before the first one goes.
    """
    nodes, cap = rng.randint(3, _FEW), rng.choice((0, 0, 0, 0, 0, 2))
    first = fault_scenario.Deploy(
        at_seconds=0, app=_OWN_APP, replicas=nodes, cpu_millicores=rng.choice(_CPUS), one_per_node=True
    )
    small = fault_scenario.Deploy(
        at_seconds=_NODES_JOINED,
        app="a",
        replicas=rng.choice((nodes, nodes, 2 * nodes)),
        cpu_millicores=200,
        min_available=rng.choice((-1, -1, -1, 0, 1)),
        max_evictions_per_day=cap,
    )
    draws, weights = zip(*_DISTURBANCES, strict=True)
    disturbances = [
        draw(rng, float(rng.randrange(_NODES_JOINED, _DISTURBED_UNTIL, 5)), setup)
        for draw in rng.choices(draws, weights, k=rng.randint(0, 3))
    ]
    gone = fault_scenario.Undeploy(at_seconds=float(rng.randrange(70, 90, 5)), app=_OWN_APP)
    last = fault_scenario.Unprotect(at_seconds=_DISTURBED_UNTIL)  # extends the phase with faults
    return by_time([first, small, gone, *disturbances, last])


def empty_most_of_nodes() -> tuple[AnyOperation, ...]:
    """Return operations that leave four nodes with a small pod each, for which a fleet plan finds fewer nodes."""
    return (
        fault_scenario.Deploy(at_seconds=0, app=_OWN_APP, replicas=4, cpu_millicores=1500, one_per_node=True),
        fault_scenario.Deploy(at_seconds=_NODES_JOINED, app="a", replicas=4, cpu_millicores=200),
        fault_scenario.Undeploy(at_seconds=75, app=_OWN_APP),
        fault_scenario.Unprotect(at_seconds=_DISTURBED_UNTIL),
    )


def resize_pods(rng: Random) -> tuple[AnyOperation, ...]:
    """Return operations that resize running pods: down, up where the node has space, up where it has none yet, or beyond it."""
    times = sorted(rng.randrange(_NODES_JOINED, LAST_OPERATION_SECONDS, 5) for _ in range(rng.randint(1, 4)))
    resizes = (
        fault_scenario.ResizePod(at_seconds=at, pod=rng.randrange(_NODES), cpu_millicores=rng.choice(_RESIZED_CPUS))
        for at in times
    )
    return (*resizes, fault_scenario.Unprotect(at_seconds=LAST_OPERATION_SECONDS))  # extends the phase with faults


def wipe_objects(rng: Random) -> tuple[AnyOperation, ...]:
    """Return operations that wipe NodeClaims, Nodes, NodePools or several, at once or one after the other, and maybe once more."""
    kinds = rng.choice(_WIPED)
    starts = [rng.randrange(_BOOTING, LAST_OPERATION_SECONDS, 5) for _ in range(rng.choice((1, 1, 1, 2)))]
    wipes = (kind(at_seconds=at + n * rng.choice((0, 5))) for at in starts for n, kind in enumerate(kinds))
    last = float(max(*starts, _DISTURBED_UNTIL))
    back = [fault_scenario.CreatePools(at_seconds=last)] if fault_scenario.WipePools in kinds else []
    return (*wipes, *back, fault_scenario.Unprotect(at_seconds=last))  # extends the phase with faults


def restore_backup(rng: Random) -> tuple[AnyOperation, ...]:
    """Return operations that restore etcd from a backup; in between, a workload changes its size."""
    backed_up = float(rng.randrange(_BOOTING, 100, 5))
    restored = backed_up + rng.choice((15, 45, 90, 180))
    scaled = backed_up + rng.choice((1, 5, 10))
    return (
        fault_scenario.BackUp(at_seconds=backed_up),
        fault_scenario.Scale(at_seconds=scaled, app=APPS[0], replicas=rng.choice((0, 1, 6, 12))),
        fault_scenario.RestoreBackup(at_seconds=restored),
        fault_scenario.Unprotect(at_seconds=max(restored + 60, _DISTURBED_UNTIL)),
    )


def rebuild_cluster(rng: Random) -> tuple[AnyOperation, ...]:
    """Return operations that point the register's entry to a new cluster, with a workload, and maybe back to the first one."""
    at = float(rng.randrange(_BOOTING, LAST_OPERATION_SECONDS, 5))
    returned = at + rng.choice((30, 90, 300))
    back = (fault_scenario.ReturnCluster(at_seconds=returned),) if rng.random() < 0.5 else ()
    app = fault_scenario.Deploy(at_seconds=at + 5, app=APPS[0], replicas=rng.choice((1, 3, 6)), cpu_millicores=900)
    return (
        fault_scenario.RebuildCluster(at_seconds=at),
        app,
        *back,
        fault_scenario.Unprotect(at_seconds=max(returned + 60, _DISTURBED_UNTIL)),
    )


def lie_about_nodes(rng: Random) -> tuple[AnyOperation, ...]:
    """Return operations that forge Nodes, or make kubelets report more than their machines have; one of two workloads shrinks later."""
    lies = tuple(
        _lie(rng, float(rng.randrange(_NODES_JOINED, LAST_OPERATION_SECONDS, 5))) for _ in range(rng.randint(1, 3))
    )
    spread = fault_scenario.Deploy(at_seconds=0, app=_OWN_APP, replicas=rng.choice((4, 6)), cpu_millicores=900)
    shrunk = fault_scenario.Scale(at_seconds=LAST_OPERATION_SECONDS, app=APPS[0], replicas=rng.choice((1, 2, 4)))
    return (spread, *lies, shrunk, fault_scenario.Unprotect(at_seconds=_DISTURBED_UNTIL))


def _lie(rng: Random, at: float) -> AnyOperation:
    if rng.random() < 0.5:
        return fault_scenario.ForgeNode(at_seconds=at, node=rng.randrange(_NODES), owned=rng.random() < 0.3)
    return fault_scenario.Overstate(at_seconds=at, node=rng.randrange(_NODES), cpus=rng.choice((16, 1000)))


def uninstall(setup: ScenarioSetup) -> tuple[AnyOperation, ...]:
    """Return operations that delete the NodeClass and then all NodePools."""
    pools = range(len(setup.pools))
    return (
        fault_scenario.DeleteNodeClass(at_seconds=80),
        *(fault_scenario.DeletePool(at_seconds=85, pool=pool) for pool in pools),
    )


def _is_possible(draw: Draw, setup: ScenarioSetup) -> bool:
    if draw is _set_replicas:
        return any(pool.replicas for pool in setup.pools)
    if _DRAWN.get(draw) in CLOUDS[setup.cloud].missing:
        return False
    if draw is _fail_check:
        return setup.node_repair
    return setup.sweep or draw not in _NEEDS_SWEEP


# -- workloads ------------------------------------------------------------------------------------------------------


def _deploy(rng: Random, at: float, setup: ScenarioSetup, app: str = APPS[-1]) -> AnyOperation:
    replicas = rng.choice((1, 2, 3, 4, 6, 9))
    return fault_scenario.Deploy(
        at_seconds=at,
        app=app,
        replicas=replicas,
        cpu_millicores=rng.choice(_CPUS),
        memory_mib=rng.choice(_MEMORIES),
        min_available=rng.choice((-1, -1, 0, replicas - 1, max(replicas - 2, 0), replicas)),
        do_not_disrupt=rng.random() < 0.1,
        protected_seconds=rng.choice((0,) * 9 + (60,)),
        one_per_node=replicas <= _FEW and rng.random() < 0.3,
        pool=rng.choice(setup.pools).name if rng.random() < 0.2 else "",
        grace_seconds=rng.choice(_GRACES),
    )


def _scale(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.Scale(at_seconds=at, app=rng.choice(APPS[:2]), replicas=rng.choice((0, 1, 2, 4, 8)))


def _undeploy(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.Undeploy(at_seconds=at, app=rng.choice(APPS))


def _protect(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.Protect(at_seconds=at, pod=rng.randrange(_NODES))


def _complete(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.CompletePod(at_seconds=at, pod=rng.randrange(_NODES))


def _unprotect(_: Random, at: float, __: ScenarioSetup) -> AnyOperation:
    return fault_scenario.Unprotect(at_seconds=at)


# -- pools and classes ----------------------------------------------------------------------------------------------


def _set_budget(rng: Random, at: float, setup: ScenarioSetup) -> AnyOperation:
    return fault_scenario.SetBudget(at_seconds=at, pool=_pool(rng, setup), nodes=rng.choice(("100%", "50%", "1", "0")))


def _pause(rng: Random, at: float, setup: ScenarioSetup) -> AnyOperation:
    until = format_time(START + timedelta(seconds=at + rng.choice((30, 90, 300))))
    value = rng.choice(("true", until, until, "tomorrow", ""))
    return fault_scenario.PauseDisruption(at_seconds=at, pool=_pool(rng, setup), value=value)


def _set_limit(rng: Random, at: float, setup: ScenarioSetup) -> AnyOperation:
    return fault_scenario.SetLimit(at_seconds=at, pool=_pool(rng, setup), cpus=rng.choice((0, 2, 6, 10)))


def _set_replicas(rng: Random, at: float, setup: ScenarioSetup) -> AnyOperation:
    static = [index for index, pool in enumerate(setup.pools) if pool.replicas]
    return fault_scenario.SetReplicas(at_seconds=at, pool=rng.choice(static), replicas=rng.choice((0, 1, 2, 3)))


def _drift(rng: Random, at: float, setup: ScenarioSetup) -> AnyOperation:
    return fault_scenario.Drift(at_seconds=at, pool=_pool(rng, setup))


def _expiry(rng: Random, at: float, setup: ScenarioSetup) -> AnyOperation:
    return fault_scenario.ShortenExpiry(at_seconds=at, pool=_pool(rng, setup), seconds=rng.choice((60, 150)))


def _delete_pool(rng: Random, at: float, setup: ScenarioSetup) -> AnyOperation:
    return fault_scenario.DeletePool(at_seconds=at, pool=_pool(rng, setup))


def _break_class(_: Random, at: float, __: ScenarioSetup) -> AnyOperation:
    return fault_scenario.BreakNodeClass(at_seconds=at)


def _mend_class(_: Random, at: float, __: ScenarioSetup) -> AnyOperation:
    return fault_scenario.MendNodeClass(at_seconds=at)


def _pool(rng: Random, setup: ScenarioSetup) -> int:
    return rng.randrange(len(setup.pools))


# -- instances ------------------------------------------------------------------------------------------------------


def _interrupt(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.Interrupt(at_seconds=at, node=rng.randrange(_NODES))


def _rebalance(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.Rebalance(at_seconds=at, node=rng.randrange(_NODES))


def _maintenance(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.Maintenance(at_seconds=at, node=rng.randrange(_NODES))


def _stop(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.StopInstance(at_seconds=at, node=rng.randrange(_NODES))


def _console_terminate(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.ConsoleTerminate(at_seconds=at, node=rng.randrange(_NODES))


def _out_of_stock(rng: Random, at: float, setup: ScenarioSetup) -> AnyOperation:
    return fault_scenario.OutOfStock(
        at_seconds=at,
        type=rng.randrange(-1, len(setup.types)),
        zone=rng.randrange(-1, setup.zones),
        capacity_type=rng.choice(("", "on-demand", "spot")),
        seconds=rng.choice((20.0, 100.0, 400.0)),
    )


def _ends_early(rng: Random, at: float, __: ScenarioSetup) -> AnyOperation:
    return fault_scenario.EndsEarly(
        at_seconds=at, number=rng.choice((1, 2, 4)), after_seconds=rng.choice((5.0, 40.0, 70.0))
    )


def _refuse_launches(rng: Random, at: float, __: ScenarioSetup) -> AnyOperation:
    return fault_scenario.RefuseLaunches(at_seconds=at, number=rng.choice((1, 2, 4)))


def _never_joins(_: Random, at: float, __: ScenarioSetup) -> AnyOperation:
    return fault_scenario.NeverJoins(at_seconds=at)


# -- by hand --------------------------------------------------------------------------------------------------------


def _delete_node(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.DeleteNode(at_seconds=at, node=rng.randrange(_NODES))


def _delete_claim(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.DeleteClaim(at_seconds=at, claim=rng.randrange(_NODES))


def _edit_claim(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.EditClaim(at_seconds=at, claim=rng.randrange(_NODES), change=rng.choice(_EDITS))


def _strip_finalizer(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.StripFinalizer(at_seconds=at, claim=rng.randrange(_NODES))


# -- machines and clocks --------------------------------------------------------------------------------------------


def _stop_kubelet(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.StopKubelet(
        at_seconds=at, node=rng.randrange(_NODES), seconds=rng.choice((15.0, 60.0, 200.0))
    )


def _unhealthy(rng: Random, at: float, setup: ScenarioSetup) -> AnyOperation:
    cloud = CLOUDS[setup.cloud]
    condition = rng.choice(cloud.conditions)
    return fault_scenario.UnhealthyCondition(
        at_seconds=at,
        node=rng.randrange(_NODES),
        condition=condition,
        status=rng.choice(cloud.unhealthy_statuses),
        seconds=rng.choice((30.0, 300.0)),
    )


def _unhealthy_for_long(rng: Random, setup: ScenarioSetup) -> list[AnyOperation]:
    """Return operations that make a node unhealthy until its repair is due."""
    cloud = CLOUDS[setup.cloud]
    condition, status = cloud.lasting_condition
    repaired_after = cloud.tolerated[condition, status].total_seconds()
    starts_at, node = rng.randrange(60, LAST_OPERATION_SECONDS, 5), rng.randrange(_NODES)
    seconds = 2.0 * repaired_after
    unhealthy: AnyOperation
    if condition == "Ready":
        unhealthy = fault_scenario.StopKubelet(at_seconds=starts_at, node=node, seconds=seconds)
    else:
        unhealthy = fault_scenario.UnhealthyCondition(
            at_seconds=starts_at, node=node, condition=condition, status=status, seconds=seconds
        )
    return [unhealthy, fault_scenario.Unprotect(at_seconds=starts_at + 1.4 * repaired_after)]


def _fail_check(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.FailCheck(
        at_seconds=at,
        node=rng.randrange(_NODES),
        check=rng.choice(("InstanceStatus", "SystemStatus")),
        seconds=rng.choice((60.0, 400.0)),
    )


def _jump_clock(rng: Random, at: float, _: ScenarioSetup) -> AnyOperation:
    return fault_scenario.JumpClock(at_seconds=at, seconds=rng.choice((-120.0, -20.0, 5.0, 60.0, 300.0)))


_DRAWS: Final[tuple[tuple[Draw, float], ...]] = (
    (_scale, 6.0),
    (_deploy, 2.0),
    (_undeploy, 1.0),
    (_protect, 1.5),
    (_complete, 0.7),
    (_unprotect, 0.5),
    (_set_budget, 1.0),
    (_set_limit, 1.0),
    (_set_replicas, 6.0),
    (_drift, 1.0),
    (_expiry, 0.7),
    (_delete_pool, 0.7),
    (_break_class, 0.7),
    (_mend_class, 0.5),
    (_interrupt, 2.5),
    (_rebalance, 0.7),
    (_maintenance, 1.0),
    (_stop, 1.0),
    (_console_terminate, 1.5),
    (_out_of_stock, 3.0),
    (_never_joins, 1.5),
    (_ends_early, 1.5),
    (_refuse_launches, 1.5),
    (_delete_node, 1.5),
    (_delete_claim, 1.5),
    (_edit_claim, 1.5),
    (_strip_finalizer, 1.0),
    (_stop_kubelet, 1.2),
    (_unhealthy, 0.6),
    (_fail_check, 2.0),
    (_jump_clock, 1.0),
)

_DISTURBANCES: Final[tuple[tuple[Draw, float], ...]] = (
    (_drift, 4.0),
    (_pause, 3.0),
    (_set_budget, 2.0),
    (_scale, 2.0),
    (_protect, 1.0),
    (_out_of_stock, 2.0),
    (_never_joins, 2.0),
    (_delete_claim, 1.0),
    (_console_terminate, 1.0),
    (_stop_kubelet, 1.0),
)
_BOOTING: Final = 20  # seconds
_NODES_JOINED: Final = 50
_DISTURBED_UNTIL: Final = 240

_Wipe = type[fault_scenario.WipeClaims | fault_scenario.WipeNodes | fault_scenario.WipePools]
_WIPED: Final[tuple[tuple[_Wipe, ...], ...]] = (
    (fault_scenario.WipeClaims,),
    (fault_scenario.WipeClaims,),
    (fault_scenario.WipeNodes,),
    (fault_scenario.WipeClaims, fault_scenario.WipeNodes),
    (fault_scenario.WipePools, fault_scenario.WipeClaims),
    (fault_scenario.WipePools, fault_scenario.WipeClaims, fault_scenario.WipeNodes),
)

_DRAWN: Final[Mapping[Draw, type[fault_scenario.Operation]]] = {
    _rebalance: fault_scenario.Rebalance,
    _fail_check: fault_scenario.FailCheck,
}
"""The operations that some clouds lack."""

_NEEDS_SWEEP: Final = frozenset({_strip_finalizer, _edit_claim})
"""Operations whose effects only the sweep finds: no event reports a missing field or an instance without NodeClaim."""
