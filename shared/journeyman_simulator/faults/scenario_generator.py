"""A seed becomes a story: everything is drawn here, before anything runs.

Sites are drawn from the list, never by how often they are called, so that rare calls go wrong as often as common ones; and
each takes its turn in being the last call of a process. What
a kind of fault is drawn for and how long it lasts follows the functions' own times: Leases that lapse, messages that become
visible again, listings that lag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final, get_args

from msgspec.structs import replace

from journeyman_simulator.faults import fault_scenario as told
from journeyman_simulator.faults.call_sites import CALL_SITES, has_effect, kinds_of
from journeyman_simulator.faults.fault_scenario import (
    CAPACITY_TYPES,
    AnyAct,
    Budget,
    CallFault,
    Deploy,
    EditClaim,
    EditNode,
    Fault,
    Kind,
    MessageFault,
    MessageKind,
    NodeChange,
    Pool,
    Setting,
    StatusChange,
    Story,
)
from journeyman_simulator.faults.operation_generator import (
    LAST_ACT_SECONDS,
    acts_of,
    by_time,
    emptied_at_once,
    emptied_early,
    held_up,
    outgrown,
    protected,
    uninstall,
)
from journeyman_simulator.in_process_account.ec2_catalogue import SMALL_SELECTION

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


_LARGE: Final = ("m5.large", "m6g.large", "r5.large")
"""One of them is always sold: everything that stories deploy fits it."""
_TYPES: Final = tuple(sorted({*SMALL_SELECTION, "c6i.large", "m5.2xlarge", "m6g.xlarge", "t3.medium"}))
_BUDGETS: Final = ("100%", "100%", "50%", "30%", "2", "1", "1", "0")
_REASONS: Final[tuple[tuple[str, ...], ...]] = ((), (), (), ("Empty",), ("Drifted", "Underutilized"))
_THAWS: Final = 0.25  # of stories: Lambda freezes a sandbox in the middle of a run, and thaws it

_AS_DEPLOYED_IN: Final = 0.1  # of stories
_AS_DEPLOYED: Final[Mapping[str, Any]] = {
    "pod_nomination": True,
    "registration_poll_seconds": 5,
    "drain_poll_seconds": 2,
    "instance_poll_seconds": 5,
}
_UNHURRIED: Final[Mapping[str, Any]] = {
    "pod_nomination": False,
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


_EMPTIED_AT_ONCE: Final = 0.08  # of stories: more nodes are empty than a budget lets go
_EDITED_BY_HAND: Final = 0.1  # of stories that have a sweep: nobody else tells of some edits
_MOST_EDITS: Final = 2
_SPREAD: Final = 0.2  # of applications: over zones


def twisted(story: Story) -> Story:
    """The story, with whatever is added to it."""
    for twist in (reaching, _spread, _emptied_at_once, _edited_by_hand):
        story = twist(story)
    return story


def _spread(story: Story) -> Story:
    """With some of its applications spread over zones."""
    dice = Random(f"{story.seed}: spread over zones")
    acts = (
        replace(act, spread_zones=dice.random() < _SPREAD) if isinstance(act, Deploy) else act for act in story.acts
    )
    return replace(story, acts=tuple(acts))


def _emptied_at_once(story: Story) -> Story:
    """With more nodes empty at once than a budget lets go."""
    dice = Random(f"{story.seed}: a budget binds")
    if dice.random() >= _EMPTIED_AT_ONCE:
        return story
    setting = narrowly_budgeted(story.setting)
    acts = by_time([*story.acts, *emptied_at_once(dice, setting)])
    return replace(story, setting=setting, acts=acts)


def _edited_by_hand(story: Story) -> Story:
    """With claims and Nodes edited by somebody who knows what they do wrong."""
    dice = Random(f"{story.seed}: edited by hand")
    if dice.random() >= _EDITED_BY_HAND or not story.setting.sweep:
        return story
    edits = [_edit(dice) for _ in range(dice.randint(1, _MOST_EDITS))]
    return replace(story, acts=by_time([*story.acts, *edits]))


def _edit(dice: Random) -> AnyAct:
    at, ordinal = dice.randrange(10, LAST_ACT_SECONDS, 5), dice.randrange(_NODES)
    if dice.random() < 0.5:
        return EditClaim(at_seconds=at, claim=ordinal, change=dice.choice(get_args(StatusChange)))
    return EditNode(at_seconds=at, node=ordinal, change=dice.choice(get_args(NodeChange)))


Way = Callable[[Story], Story]
_NODES: Final = 4  # the oldest ones
_BUSY: Final = 60  # seconds: by then nodes have joined and pods run
_A_MINUTE: Final = 63  # seconds: of notices that far apart the third is told again, if its claim lives that long


def reaching(story: Story) -> Story:
    """The story, with what it takes to come to a rare call, if one is to go wrong.

    One way at most: they make settings of their own.
    """
    if not story.setting.sweep:
        return story
    sites = [fault.site for fault in story.faults if isinstance(fault, CallFault)]
    way = next((_WAYS[site] for site in sites if site in _WAYS), None)
    return story if way is None else way(story)


def _with(story: Story, acts: Iterable[AnyAct], *faults: Fault) -> Story:
    return replace(story, acts=by_time([*story.acts, *acts]), faults=(*faults, *story.faults))


def _end_before_their_nodes_join(story: Story) -> Story:
    """And nobody hears of it."""
    ends = (told.ConsoleTerminate(at_seconds=at, node=node) for node, at in enumerate((4.0, 8.0)))
    unheard = (MessageFault(queue="interrupt", nth=nth, kind=MessageKind.DROP) for nth in range(1, 7))
    return _with(story, ends, *unheard)


def _an_instance_that_no_claim_knows_ends(story: Story) -> Story:
    lost = CallFault(site="provision: ec2 CreateFleet", nth=1, kind=Kind.DIE_AFTER)
    return _with(story, [told.ConsoleTerminate(at_seconds=10, node=-1)], lost)


def _two_notices_of_each_instance(story: Story) -> Story:
    return _with(story, _recommendations(_BUSY, _BUSY + 5))


def _a_notice_comes_again_late(story: Story) -> Story:
    return _with(story, _recommendations(*range(_BUSY - 20, 300, _A_MINUTE)))


def _a_pool_acts_on_recommendations(story: Story) -> Story:
    return _with(replace(story, setting=rebalanced(story.setting)), _recommendations(_BUSY))


def _recommendations(*times: float) -> Iterable[AnyAct]:
    return [told.Rebalance(at_seconds=at, node=node) for at in times for node in range(_NODES)]


def _a_drain_takes_long(story: Story) -> Story:
    return _with(story, held_up(_NODES))


def _a_drain_is_ended_by_force(story: Story) -> Story:
    return _with(replace(story, setting=ended_by_force(story.setting)), protected(_NODES))


def _nothing_is_in_stock_at_first(story: Story) -> Story:
    empty = told.OutOfStock(at_seconds=0, type=-1, zone=-1, capacity_type="", seconds=30)
    return _with(story, [empty])


def _nodes_are_empty_early(story: Story) -> Story:
    return replace(story, setting=readily_emptied(story.setting), acts=emptied_early())


def _the_node_class_goes(story: Story) -> Story:
    return _with(story, uninstall(story.setting))


def _a_node_is_replaced(story: Story) -> Story:
    return replace(story, setting=readily_consolidated(story.setting), acts=outgrown(out_of_stock=False))


def _a_replacement_cannot_be_had(story: Story) -> Story:
    return replace(story, setting=readily_consolidated(story.setting), acts=outgrown(out_of_stock=True))


def _claims_go_before_their_instances(story: Story) -> Story:
    return _with(story, [told.StripFinalizer(at_seconds=_BUSY + 30 * n, claim=0) for n in range(3)])


_WAYS: Final[dict[str, Way]] = {
    "consolidate: apply OfferingState": _a_replacement_cannot_be_had,
    "consolidate: create NodeClaim": _a_node_is_replaced,
    "consolidate: delete NodeClaim": _nodes_are_empty_early,
    "consolidate: ec2 CreateFleet": _a_node_is_replaced,
    "consolidate: ec2 CreateLaunchTemplate": _a_node_is_replaced,
    "consolidate: ec2 DescribeInstances": _a_node_is_replaced,
    "consolidate: ec2 DescribeLaunchTemplates": _a_node_is_replaced,
    "consolidate: patch OfferingState/status": _a_replacement_cannot_be_had,
    "interrupt: ec2 DescribeInstances": _an_instance_that_no_claim_knows_ends,
    "interrupt: get Event": _two_notices_of_each_instance,
    "interrupt: patch Event": _a_notice_comes_again_late,
    "interrupt: patch NodeClaim": _a_pool_acts_on_recommendations,
    "provision: delete NodeClaim": _nothing_is_in_stock_at_first,
    "provision: ec2 DeleteLaunchTemplate": _the_node_class_goes,
    "provision: iam DeleteInstanceProfile": _the_node_class_goes,
    "provision: iam ListInstanceProfiles": _the_node_class_goes,
    "provision: iam RemoveRoleFromInstanceProfile": _the_node_class_goes,
    "terminate: delete Pod": _a_drain_is_ended_by_force,
    "terminate: get NodeClaim": _claims_go_before_their_instances,
    "terminate: patch Event": _a_drain_takes_long,
    "terminate: patch NodePool": _end_before_their_nodes_join,
}
