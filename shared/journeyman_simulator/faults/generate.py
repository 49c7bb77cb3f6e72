"""A seed becomes a story: everything is drawn here, before anything runs.

Sites are drawn from the list, never by how often they are called, so that rare calls go wrong as often as common ones; and
each takes its turn in being the last call of a process. What
a kind of fault is drawn for and how long it lasts follows the functions' own times: Leases that lapse, messages that become
visible again, listings that lag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from journeyman_simulator.faults.generate_acts import acts_of
from journeyman_simulator.faults.generate_setting import setting_of
from journeyman_simulator.faults.generate_twists import twisted
from journeyman_simulator.faults.sites import CALL_SITES, has_effect, kinds_of
from journeyman_simulator.faults.story import CallFault, Fault, Kind, MessageFault, MessageKind, Story

QUEUES: Final = ("provision", "terminate", "consolidate", "interrupt", "wake")
DEATHS: Final = (Kind.DIE_BEFORE, Kind.DIE_AFTER)
MOST_CALL_FAULTS: Final = 4
MOST_MESSAGE_FAULTS: Final = 4
_DEADLY: Final = 0.35  # of call faults
_LAGGING: Final = 0.1  # of stories: any list may be stale
_WAITS_FOR_NOTHING: Final = 0.15  # of stories: no sweep, so nothing may be lost
_LOST_LAUNCHES: Final = 0.1  # of stories: a launch is heard of late
_BLIND_LOOKS: Final = 10  # at instances, after the first one
_AGAIN: Final = 0.3  # of faults: the next call of the site goes wrong, too

# Between two calls of a run; a Lease has lapsed; a message is visible again (90, 150 and 210 s)
_PARKS: Final = (0.0, 2.0, 5.0, 20.0, 61.0, 95.0, 155.0, 215.0)
_TIMEOUTS: Final = (5.0, 20.0, 60.0)
_STALE_CLUSTER: Final = (1.0, 5.0, 15.0, 30.0)
_STALE_ACCOUNT: Final = (1.0, 5.0, 20.0)
_LAGS: Final = (1.0, 2.0, 5.0)
_DELAYS: Final = (1.0, 10.0, 45.0, 120.0)


def story_of(seed: int) -> Story:
    """The story of a seed, always the same one."""
    return twisted(_story_of(seed))


def _story_of(seed: int) -> Story:
    dice = Random(seed)
    sweep = dice.random() >= _WAITS_FOR_NOTHING
    setting = setting_of(dice, sweep=sweep)
    acts = acts_of(dice, setting)
    if not sweep:
        return Story(seed=seed, setting=setting, acts=acts, faults=_overlaps(dice))
    calls = _call_faults(dice, lags=dice.random() < _LAGGING)
    messages = _message_faults(dice)
    lost = _lost_launch(dice) if dice.random() < _LOST_LAUNCHES else ()
    return Story(seed=seed, setting=setting, acts=acts, faults=(*_death_in_turn(seed), *lost, *calls, *messages))


# -- calls ----------------------------------------------------------------------------------------------------------


def _call_faults(dice: Random, *, lags: bool) -> tuple[CallFault, ...]:
    faults: list[CallFault] = []
    for _ in range(dice.randint(0, MOST_CALL_FAULTS)):
        site = dice.choice(CALL_SITES if dice.random() < 0.5 else _EFFECTS)
        kind = _kind(dice, site, lags=lags)
        nth = _ordinal(dice)
        faults.append(CallFault(site=site, nth=nth, kind=kind, seconds=_seconds(dice, site, kind)))
        if dice.random() < _AGAIN:
            again = _kind(dice, site, lags=lags)
            faults.append(CallFault(site=site, nth=nth + 1, kind=again, seconds=_seconds(dice, site, again)))
    return tuple(faults)


def _death_in_turn(seed: int) -> tuple[CallFault, ...]:
    """In every second story the first call of a site is a process's last: each site's in turn, before its effect and after."""
    turn, rest = divmod(seed, 2)
    round_, place = divmod(turn, len(CALL_SITES))
    return () if rest else (CallFault(site=CALL_SITES[place], nth=1, kind=DEATHS[round_ % 2]),)


def _kind(dice: Random, site: str, *, lags: bool) -> Kind:
    if dice.random() < _DEADLY:
        return dice.choice(DEATHS)
    possible = [kind for kind in kinds_of(site) if kind not in DEATHS and (lags or kind is not Kind.LAG)]
    return dice.choice(possible)


def _seconds(dice: Random, site: str, kind: Kind) -> float:
    spans: dict[Kind, Sequence[float]] = {
        Kind.PARK: _PARKS,
        Kind.TIMEOUT_BEFORE: _TIMEOUTS,
        Kind.TIMEOUT_AFTER: _TIMEOUTS,
        Kind.STALE: _STALE_CLUSTER if ": list " in site else _STALE_ACCOUNT,
        Kind.LAG: _LAGS,
    }
    return dice.choice(spans[kind]) if kind in spans else 0.0


def _overlaps(dice: Random) -> tuple[Fault, ...]:
    """What may happen where wake-ups alone must do: runs that meet, answers that come late; nothing is lost."""
    faults: list[Fault] = [
        CallFault(site=dice.choice(CALL_SITES), nth=_ordinal(dice), kind=Kind.PARK, seconds=dice.choice(_PARKS[:4]))
        for _ in range(dice.randint(0, 2))
    ]
    late = (MessageKind.DOUBLE, MessageKind.REORDER)
    faults += [_message_fault(dice, lambda: dice.choice(late)) for _ in range(dice.randint(0, 2))]
    return tuple(faults)


def _lost_launch(dice: Random) -> tuple[CallFault, ...]:
    """A launch took effect and nobody heard of it; and EC2's listings do not show it yet."""
    step, nth = "provision", _ordinal(dice)
    unheard = dice.choice((Kind.FAIL_AFTER, Kind.TIMEOUT_AFTER, Kind.DIE_AFTER))
    launch = f"{step}: ec2 CreateFleet"
    look = f"{step}: ec2 DescribeInstances"
    lost = CallFault(site=launch, nth=nth, kind=unheard, seconds=_seconds(dice, launch, unheard))
    blind = (CallFault(site=look, nth=n, kind=Kind.STALE, seconds=20.0) for n in range(2, 2 + _BLIND_LOOKS))
    return (lost, *blind)


# -- messages -------------------------------------------------------------------------------------------------------


def _message_faults(dice: Random) -> tuple[MessageFault, ...]:
    return tuple(
        _message_fault(dice, lambda: dice.choice(tuple(MessageKind)))
        for _ in range(dice.randint(0, MOST_MESSAGE_FAULTS))
    )


def _message_fault(dice: Random, draw: Callable[[], MessageKind]) -> MessageFault:
    queue, kind = dice.choice(QUEUES), draw()
    seconds = dice.choice(_DELAYS) if kind is MessageKind.DELAY else 0.0
    return MessageFault(queue=queue, nth=_ordinal(dice, 0.4), kind=kind, seconds=seconds)


def _ordinal(dice: Random, often: float = 0.6) -> int:
    """From 1, each next one less often."""
    nth = 1
    while dice.random() > often:
        nth += 1
    return nth


_EFFECTS: Final = tuple(site for site in CALL_SITES if has_effect(site))
