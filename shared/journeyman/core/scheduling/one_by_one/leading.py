"""Who must share a node with others comes right behind one of them, before the others have filled it up.

Differs: Karpenter keeps to its order, and leaves the follower pending where the leader's node is full by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from journeyman.core.api import labels
from journeyman.core.scheduling.demand.topology import Group, LabelIndex
from journeyman.core.scheduling.draft import Question


def behind_leaders(question: Question, queue: Sequence[int], left: Sequence[int]) -> list[int]:
    """The queue (of classes) with those left over at its head, each class behind a pod of each kind that it must join.

    Empty if nobody left over must join anybody who waits.
    """
    asked = {c: groups for c in dict.fromkeys(left) if (groups := _joined(question, c))}
    if not asked:
        return []
    index = LabelIndex(question.rows)
    waiting, head = Counter(queue), Counter[int]()
    order: list[int] = []
    for c, groups in asked.items():
        for group in groups:
            counted = {question.family[row] for row in index.counted_by(group)} - {c}
            leader = next((d for d in queue if d in counted and head[d] < waiting[d]), None)
            if leader is not None:
                head[leader] += 1
                order.append(leader)
        order += [c] * (waiting[c] - head[c])
        head[c] = waiting[c]
    return [*order, *_others(queue, head)] if head.keys() - asked.keys() else []


def _joined(question: Question, c: int) -> list[Group]:
    """Of whom the class needs one on its node, whatever becomes of its preferences."""
    return [group for group in question.rows[question.ladders[c][-1]].affinities if group.key == labels.HOSTNAME]


def _others(queue: Sequence[int], head: Counter[int]) -> Iterator[int]:
    taken = head.copy()
    for c in queue:
        if taken[c]:
            taken[c] -= 1
        else:
            yield c
