"""What people and the cloud do in a story, drawn from dice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Final, Literal, get_args

from journeyman_simulator.faults import fault_scenario as told
from journeyman_simulator.faults.fault_scenario import AnyAct, Setting

LAST_ACT_SECONDS: Final = 150
FEWEST_ACTS: Final = 3
MOST_ACTS: Final = 6
APPS: Final = ("a", "b", "c")
_SHORT_LIVED: Final = "d"
_HELD_UP_UNTIL: Final = 330  # seconds
_NODES: Final = 6  # ordinals are drawn below this
_CPUS: Final = (200, 500, 900, 1500)
_MEMORIES: Final = (128, 256, 1024, 3000)
_GRACES: Final = (1, 1, 5, 40)
_FEW: Final = 4  # replicas, of those that want a node each
_STATUSES: Final[tuple[Literal["True", "False", "Unknown"], ...]] = ("False", "Unknown")
_EDITS: Final[tuple[told.Change, ...]] = get_args(told.Change)
_REPAIRED_AFTER: Final = 600  # seconds: what the cloud tolerates of the illness that it tolerates shortest
_LONG_ILLNESSES: Final = 0.3  # of stories with the gate on: long enough for a repair

Draw = Callable[[Random, float, Setting], AnyAct]


def acts_of(dice: Random, setting: Setting) -> tuple[AnyAct, ...]:
    """One or two applications at first, then whatever happens, by time."""
    first = [_deploy(dice, 0, setting, app) for app in APPS[: dice.choice((1, 1, 2))]]
    draws, weights = zip(*((draw, weight) for draw, weight in _DRAWS if _has_its_place(draw, setting)), strict=True)
    later = [
        draw(dice, dice.randrange(0, LAST_ACT_SECONDS, 5), setting)
        for draw in dice.choices(draws, weights, k=dice.randint(FEWEST_ACTS, MOST_ACTS))
    ]
    ill = _ill_for_long(dice) if setting.node_repair and setting.sweep and dice.random() < _LONG_ILLNESSES else []
    return by_time([*first, *later, *ill])


def by_time(acts: Iterable[AnyAct]) -> tuple[AnyAct, ...]:
    """In the order in which they happen."""
    return tuple(sorted(acts, key=lambda act: act.at_seconds))


def held_up(nodes: int) -> tuple[AnyAct, ...]:
    """Nodes go, and a budget keeps one of them until the storm is over: so long that what is told is told again."""
    kept = told.Deploy(at_seconds=0, app=_SHORT_LIVED, replicas=2, min_available=2)
    going = (told.DeleteClaim(at_seconds=60, claim=claim) for claim in range(nodes))
    return (kept, *going, told.Unprotect(at_seconds=_HELD_UP_UNTIL))


def emptied_at_once(dice: Random, setting: Setting) -> tuple[AnyAct, ...]:
    """An application with a node for each of its pods goes as a whole."""
    replicas, pool = dice.randint(3, _FEW), setting.pools[0].name
    deployed = told.Deploy(at_seconds=0, app=_SHORT_LIVED, replicas=replicas, one_per_node=True, pool=pool)
    return (deployed, told.Undeploy(at_seconds=dice.randrange(60, LAST_ACT_SECONDS, 5), app=_SHORT_LIVED))


def emptied_early() -> tuple[AnyAct, ...]:
    """Nodes have nothing left as soon as they have joined; the storm lasts until somebody has looked."""
    deployed = told.Deploy(at_seconds=0, app=_SHORT_LIVED, replicas=2, one_per_node=True)
    return (deployed, told.Undeploy(at_seconds=60, app=_SHORT_LIVED), told.Unprotect(at_seconds=LAST_ACT_SECONDS))


def protected(nodes: int) -> tuple[AnyAct, ...]:
    """Nodes go, with pods that must not be disrupted."""
    deployed = told.Deploy(at_seconds=0, app=_SHORT_LIVED, replicas=2, do_not_disrupt=True)
    return (deployed, *(told.DeleteClaim(at_seconds=60, claim=claim) for claim in range(nodes)))


def outgrown(*, out_of_stock: bool) -> tuple[AnyAct, ...]:
    """Most of what is on a node goes, and a smaller one would do; which cannot be had, if nothing is in stock."""
    empty = told.OutOfStock(at_seconds=65, type=-1, zone=-1, capacity_type="", seconds=40)
    return (
        told.Deploy(at_seconds=0, app="a", replicas=1, cpu_millicores=500),
        told.Deploy(at_seconds=0, app="b", replicas=1, cpu_millicores=3000),
        told.Scale(at_seconds=60, app="b", replicas=0),
        *([empty] if out_of_stock else []),
        told.Unprotect(at_seconds=150),  # the storm lasts until then
    )


def uninstall(setting: Setting) -> tuple[AnyAct, ...]:
    """The NodeClass goes, and soon all NodePools; the pods are left without."""
    pools = range(len(setting.pools))
    return (told.DeleteNodeClass(at_seconds=80), *(told.DeletePool(at_seconds=85, pool=pool) for pool in pools))


def _has_its_place(draw: Draw, setting: Setting) -> bool:
    if draw is _set_replicas:
        return any(pool.replicas for pool in setting.pools)
    if draw is _fail_check:
        return setting.node_repair
    return setting.sweep or draw not in _FOUND_BY_THE_SWEEP


# -- workloads ------------------------------------------------------------------------------------------------------


def _deploy(dice: Random, at: float, setting: Setting, app: str = APPS[-1]) -> AnyAct:
    replicas = dice.choice((1, 2, 3, 4, 6, 9))
    return told.Deploy(
        at_seconds=at,
        app=app,
        replicas=replicas,
        cpu_millicores=dice.choice(_CPUS),
        memory_mib=dice.choice(_MEMORIES),
        min_available=dice.choice((-1, -1, 0, replicas - 1, max(replicas - 2, 0), replicas)),
        do_not_disrupt=dice.random() < 0.1,
        protected_seconds=dice.choice((0,) * 9 + (60,)),
        one_per_node=replicas <= _FEW and dice.random() < 0.3,
        pool=dice.choice(setting.pools).name if dice.random() < 0.2 else "",
        grace_seconds=dice.choice(_GRACES),
    )


def _scale(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.Scale(at_seconds=at, app=dice.choice(APPS[:2]), replicas=dice.choice((0, 1, 2, 4, 8)))


def _undeploy(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.Undeploy(at_seconds=at, app=dice.choice(APPS))


def _protect(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.Protect(at_seconds=at, pod=dice.randrange(_NODES))


def _complete(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.CompletePod(at_seconds=at, pod=dice.randrange(_NODES))


def _unprotect(_: Random, at: float, __: Setting) -> AnyAct:
    return told.Unprotect(at_seconds=at)


# -- pools and classes ----------------------------------------------------------------------------------------------


def _set_budget(dice: Random, at: float, setting: Setting) -> AnyAct:
    return told.SetBudget(at_seconds=at, pool=_pool(dice, setting), nodes=dice.choice(("100%", "50%", "1", "0")))


def _set_limit(dice: Random, at: float, setting: Setting) -> AnyAct:
    return told.SetLimit(at_seconds=at, pool=_pool(dice, setting), cpus=dice.choice((0, 2, 6, 10)))


def _set_replicas(dice: Random, at: float, setting: Setting) -> AnyAct:
    static = [index for index, pool in enumerate(setting.pools) if pool.replicas]
    return told.SetReplicas(at_seconds=at, pool=dice.choice(static), replicas=dice.choice((0, 1, 2, 3)))


def _drift(dice: Random, at: float, setting: Setting) -> AnyAct:
    return told.Drift(at_seconds=at, pool=_pool(dice, setting))


def _expiry(dice: Random, at: float, setting: Setting) -> AnyAct:
    return told.ShortenExpiry(at_seconds=at, pool=_pool(dice, setting), seconds=dice.choice((60, 150)))


def _delete_pool(dice: Random, at: float, setting: Setting) -> AnyAct:
    return told.DeletePool(at_seconds=at, pool=_pool(dice, setting))


def _break_class(_: Random, at: float, __: Setting) -> AnyAct:
    return told.BreakNodeClass(at_seconds=at)


def _mend_class(_: Random, at: float, __: Setting) -> AnyAct:
    return told.MendNodeClass(at_seconds=at)


def _pool(dice: Random, setting: Setting) -> int:
    return dice.randrange(len(setting.pools))


# -- instances ------------------------------------------------------------------------------------------------------


def _interrupt(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.Interrupt(at_seconds=at, node=dice.randrange(_NODES))


def _rebalance(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.Rebalance(at_seconds=at, node=dice.randrange(_NODES))


def _maintenance(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.Maintenance(at_seconds=at, node=dice.randrange(_NODES))


def _stop(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.StopInstance(at_seconds=at, node=dice.randrange(_NODES))


def _console_terminate(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.ConsoleTerminate(at_seconds=at, node=dice.randrange(_NODES))


def _out_of_stock(dice: Random, at: float, setting: Setting) -> AnyAct:
    return told.OutOfStock(
        at_seconds=at,
        type=dice.randrange(-1, len(setting.types)),
        zone=dice.randrange(-1, setting.zones),
        capacity_type=dice.choice(("", "on-demand", "spot")),
        seconds=dice.choice((20.0, 100.0, 400.0)),
    )


def _never_joins(_: Random, at: float, __: Setting) -> AnyAct:
    return told.NeverJoins(at_seconds=at)


# -- by hand --------------------------------------------------------------------------------------------------------


def _delete_node(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.DeleteNode(at_seconds=at, node=dice.randrange(_NODES))


def _delete_claim(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.DeleteClaim(at_seconds=at, claim=dice.randrange(_NODES))


def _edit_claim(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.EditClaim(at_seconds=at, claim=dice.randrange(_NODES), change=dice.choice(_EDITS))


def _strip_finalizer(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.StripFinalizer(at_seconds=at, claim=dice.randrange(_NODES))


# -- machines and clocks --------------------------------------------------------------------------------------------


def _stop_kubelet(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.StopKubelet(at_seconds=at, node=dice.randrange(_NODES), seconds=dice.choice((15.0, 60.0, 200.0)))


def _unhealthy(dice: Random, at: float, _: Setting) -> AnyAct:
    condition = dice.choice(("NetworkingReady", "KernelReady", "StorageReady", "AcceleratedHardwareReady"))
    return told.UnhealthyCondition(
        at_seconds=at,
        node=dice.randrange(_NODES),
        condition=condition,
        status=dice.choice(_STATUSES),
        seconds=dice.choice((30.0, 300.0)),
    )


def _ill_for_long(dice: Random) -> list[AnyAct]:
    """A node that must be repaired, and time for it."""
    falls_ill = dice.randrange(60, LAST_ACT_SECONDS, 5)
    ill = told.UnhealthyCondition(
        at_seconds=falls_ill,
        node=dice.randrange(_NODES),
        condition="AcceleratedHardwareReady",
        status="False",
        seconds=2.0 * _REPAIRED_AFTER,
    )
    return [ill, told.Unprotect(at_seconds=falls_ill + 1.4 * _REPAIRED_AFTER)]


def _fail_check(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.FailCheck(
        at_seconds=at,
        node=dice.randrange(_NODES),
        check=dice.choice(("InstanceStatus", "SystemStatus")),
        seconds=dice.choice((60.0, 400.0)),
    )


def _jump_clock(dice: Random, at: float, _: Setting) -> AnyAct:
    return told.JumpClock(at_seconds=at, seconds=dice.choice((-120.0, -20.0, 5.0, 60.0, 300.0)))


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
    (_delete_node, 1.5),
    (_delete_claim, 1.5),
    (_edit_claim, 1.5),
    (_strip_finalizer, 1.0),
    (_stop_kubelet, 1.2),
    (_unhealthy, 0.6),
    (_fail_check, 2.0),
    (_jump_clock, 1.0),
)

_FOUND_BY_THE_SWEEP: Final = frozenset({_strip_finalizer, _edit_claim})
"""No message tells that a claim lacks what it carried, or that an instance has none any more."""
