"""What stands at a story's beginning, drawn from dice."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from journeyman_simulator.account.types import SMALL_SELECTION
from journeyman_simulator.faults.story import CAPACITY_TYPES, Budget, Pool, Setting

_LARGE: Final = ("m5.large", "m6g.large", "r5.large")
"""One of them is always sold: everything that stories deploy fits it."""
_TYPES: Final = tuple(sorted({*SMALL_SELECTION, "c6i.large", "m5.2xlarge", "m6g.xlarge", "t3.medium"}))
_BUDGETS: Final = ("100%", "100%", "50%", "30%", "2", "1", "1", "0")
_REASONS: Final[tuple[tuple[str, ...], ...]] = ((), (), (), ("Empty",), ("Drifted", "Underutilized"))
_THAWS: Final = 0.25  # of stories: Lambda freezes a sandbox in the middle of a run, and thaws it

_AS_DEPLOYED_IN: Final = 0.1  # of stories
_AS_DEPLOYED: Final[Mapping[str, Any]] = {
    "placement_hints": True,
    "registration_poll_seconds": 5,
    "drain_poll_seconds": 2,
    "instance_poll_seconds": 5,
}
_UNHURRIED: Final[Mapping[str, Any]] = {
    "placement_hints": False,
    "registration_poll_seconds": 45,
    "drain_poll_seconds": 20,
    "instance_poll_seconds": 20,
}
"""Half the runs tell the same story."""
_STATIC: Final = 0.15  # of stories: there is a static pool as well


def setting_of(dice: Random, *, sweep: bool) -> Setting:
    """Pools, what the account sells, and how the product is set up."""
    names = ("default",) if dice.random() < 0.7 else ("default", "second")
    types = tuple(sorted({dice.choice(_LARGE), *dice.sample(_TYPES, dice.randint(2, 4))}))
    return Setting(
        pools=(*(_pool(dice, name, types) for name in names), *_static_pool(dice, types)),
        types=types,
        zones=dice.choice((2, 2, 3)),
        daemons=dice.random() < 0.3,
        node_repair=dice.random() < 0.2,
        spot_to_spot=dice.random() < 0.2,
        **(_AS_DEPLOYED if dice.random() < _AS_DEPLOYED_IN else _UNHURRIED),
        registration_timeout_seconds=dice.choice((120, 300, 300)),
        sweep=sweep,
        thaw=dice.random() < _THAWS,
        ends_empty=dice.random() < 0.25,
    )


def _pool(dice: Random, name: str, types: tuple[str, ...]) -> Pool:
    only = tuple(sorted(dice.sample(types, 2))) if dice.random() < 0.15 else ()
    capacity_types = dice.choice((CAPACITY_TYPES, CAPACITY_TYPES, ("on-demand",), ("spot",)))
    return Pool(
        name=name,
        capacity_types=capacity_types,
        rebalance=capacity_types == ("spot",),
        types=only,
        policy=dice.choice(("WhenEmpty", "WhenEmptyOrUnderutilized")),
        consolidate_after_seconds=dice.choice((0, 0, 20, 60, -1)),
        budgets=tuple(_budget(dice) for _ in range(dice.choice((1, 1, 1, 2)))),
        limit_cpus=dice.choice((0, 0, 0, 4, 8, 12)),
        expire_after_seconds=dice.choice((0,) * 7 + (150,)),
        termination_grace_seconds=dice.choice((0, 0, 45, 90)),
        weight=dice.choice((0, 0, 10)),
    )


def readily_consolidated(setting: Setting) -> Setting:
    """The same with one NodePool whose nodes are replaced as soon as something cheaper would do."""
    pool = Pool(name="default", capacity_types=("on-demand",), policy="WhenEmptyOrUnderutilized")
    return replace(setting, pools=(pool,), types=(), daemons=False)


def readily_emptied(setting: Setting) -> Setting:
    """The same with one NodePool whose nodes are given back as soon as they are empty."""
    return replace(setting, pools=(Pool(name="default"),))


def ended_by_force(setting: Setting) -> Setting:
    """The same where all nodes end half a minute after their deletion."""
    return replace(setting, pools=tuple(replace(pool, termination_grace_seconds=30) for pool in setting.pools))


def rebalanced(setting: Setting) -> Setting:
    """The same with one NodePool, of Spot instances, that acts on recommendations."""
    return replace(setting, pools=(Pool(name="default", capacity_types=("spot",), rebalance=True),))


def narrowly_budgeted(setting: Setting) -> Setting:
    """The same where the first pool gives back one node at a time."""
    first = replace(setting.pools[0], budgets=(Budget(nodes="1"),), consolidate_after_seconds=0, limit_cpus=0)
    return replace(setting, pools=(first, *setting.pools[1:]))


def _static_pool(dice: Random, types: tuple[str, ...]) -> tuple[Pool, ...]:
    """Now and then; it has no weight and no limit of vCPUs, for the API server would refuse it."""
    if dice.random() >= _STATIC:
        return ()
    return (replace(_pool(dice, "static", types), replicas=dice.choice((1, 2, 3)), limit_cpus=0, weight=0),)


def _budget(dice: Random) -> Budget:
    return Budget(nodes=dice.choice(_BUDGETS), reasons=dice.choice(_REASONS))
