"""What is added to a story that is drawn: rare things that fit few stories, and what it takes to come to rare calls.

Each is drawn by dice of its own, so that all else of a story stays as it is when one is added.
"""

from __future__ import annotations

from random import Random
from typing import Final, get_args

from msgspec.structs import replace

from journeyman.simulate.faults.generate_acts import (
    LAST_ACT_SECONDS,
    by_time,
    emptied_at_once,
    held_up,
    outgrown,
    uninstall,
)
from journeyman.simulate.faults.generate_setting import narrowly_budgeted, readily_consolidated
from journeyman.simulate.faults.story import (
    AnyAct,
    CallFault,
    ConsoleTerminate,
    Deploy,
    EditClaim,
    EditNode,
    Kind,
    MessageFault,
    MessageKind,
    NodeChange,
    Rebalance,
    StatusChange,
    Story,
)

_EMPTIED_AT_ONCE: Final = 0.08  # of stories: more nodes are empty than a budget lets go
_EDITED_BY_HAND: Final = 0.1  # of stories that have a sweep: nobody else tells of some edits
_MOST_EDITS: Final = 2
_NODES: Final = 4  # ordinals are drawn below this
_SPREAD: Final = 0.2  # of applications: over zones
_LOST_AT_BOOT: Final = "terminate: patch NodePool"  # an instance ends before its node joins, and nobody hears of it
_OF_A_NODE_CLASS_THAT_GOES: Final = frozenset(
    f"provision: {call}"
    for call in (
        "ec2 DeleteLaunchTemplate",
        "iam DeleteInstanceProfile",
        "iam ListInstanceProfiles",
        "iam RemoveRoleFromInstanceProfile",
    )
)
_OF_AN_UNKNOWN_INSTANCE: Final = "interrupt: ec2 DescribeInstances"
_OF_A_SECOND_NOTICE: Final = "interrupt: get Event"
_OF_A_LONG_DRAIN: Final = "terminate: patch Event"
_OF_A_SHORTAGE: Final = frozenset({"consolidate: apply OfferingState", "consolidate: patch OfferingState/status"})
_OF_A_REPLACEMENT: Final = _OF_A_SHORTAGE | frozenset(
    f"consolidate: {call}"
    for call in (
        "create NodeClaim",
        "ec2 CreateFleet",
        "ec2 CreateLaunchTemplate",
        "ec2 DescribeInstances",
        "ec2 DescribeLaunchTemplates",
    )
)


def twisted(story: Story) -> Story:
    """The story, with whatever is added to it."""
    for twist in (_reaching, _spread, _emptied_at_once, _edited_by_hand):
        story = twist(story)
    return story


def _reaching(story: Story) -> Story:
    """With what it takes to come to calls that hardly any story makes, if one of them is to go wrong."""
    sites = {fault.site for fault in story.faults if isinstance(fault, CallFault)}
    if not story.setting.sweep:
        return story
    if _LOST_AT_BOOT in sites:
        ends = (ConsoleTerminate(at_seconds=at, node=node) for node, at in enumerate((4.0, 8.0)))
        unheard = (MessageFault(queue="interrupt", nth=nth, kind=MessageKind.DROP) for nth in range(1, 7))
        return replace(story, acts=by_time([*story.acts, *ends]), faults=(*story.faults, *unheard))
    if _OF_AN_UNKNOWN_INSTANCE in sites:
        lost = CallFault(site="provision: ec2 CreateFleet", nth=1, kind=Kind.DIE_AFTER)
        youngest = ConsoleTerminate(at_seconds=10, node=-1)
        return replace(story, acts=by_time([*story.acts, youngest]), faults=(lost, *story.faults))
    if _OF_A_SECOND_NOTICE in sites:
        notices = (Rebalance(at_seconds=at, node=node) for at in (60, 65) for node in range(_NODES))
        return replace(story, acts=by_time([*story.acts, *notices]))
    if _OF_A_LONG_DRAIN in sites:
        return replace(story, acts=by_time([*story.acts, *held_up(_NODES)]))
    if sites & _OF_A_NODE_CLASS_THAT_GOES:
        return replace(story, acts=by_time([*story.acts, *uninstall(story.setting)]))
    if sites & _OF_A_REPLACEMENT:
        acts = outgrown(out_of_stock=bool(sites & _OF_A_SHORTAGE))
        return replace(story, setting=readily_consolidated(story.setting), acts=acts)
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
