"""Ways to calls that hardly any story makes: whoever is to go wrong at one of them gets what it takes to come there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from journeyman_simulator.faults import story as told
from journeyman_simulator.faults.generate_acts import by_time, emptied_early, held_up, outgrown, protected, uninstall
from journeyman_simulator.faults.generate_setting import (
    ended_by_force,
    readily_consolidated,
    readily_emptied,
    rebalanced,
)
from journeyman_simulator.faults.story import AnyAct, CallFault, Fault, Kind, MessageFault, MessageKind, Story

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
