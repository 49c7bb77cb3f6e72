"""What is added to a story that is drawn: what it takes to come to rare calls, and rare things that fit few stories.

Each is drawn by dice of its own, so that all else of a story stays as it is when one is added.
"""

from __future__ import annotations

from random import Random
from typing import Final, get_args

from msgspec.structs import replace

from journeyman_simulator.faults.generate_acts import LAST_ACT_SECONDS, by_time, emptied_at_once
from journeyman_simulator.faults.generate_setting import narrowly_budgeted
from journeyman_simulator.faults.generate_ways import reaching
from journeyman_simulator.faults.story import (
    AnyAct,
    Deploy,
    EditClaim,
    EditNode,
    NodeChange,
    StatusChange,
    Story,
)

_EMPTIED_AT_ONCE: Final = 0.08  # of stories: more nodes are empty than a budget lets go
_EDITED_BY_HAND: Final = 0.1  # of stories that have a sweep: nobody else tells of some edits
_MOST_EDITS: Final = 2
_NODES: Final = 4  # ordinals are drawn below this
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
