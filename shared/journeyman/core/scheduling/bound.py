"""What the pods on new nodes cost at least: the linear-programming bound by which a plan is measured.

It knows what each pod wants of its node and the rules about one node, but neither domains that were chosen, nor limits,
nor weights, nor that nodes are whole: what these cost is the gap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from journeyman.core.scheduling.draft import OpenNode, Question, Unit
from journeyman.core.scheduling.offering.market import open_market, worth_considering
from journeyman.core.scheduling.offering.reserved import Reservations
from journeyman.core.scheduling.opening.items import Items
from journeyman.core.scheduling.packing import Problem, lower_bound


def lower_bound_of(question: Question, nodes: Sequence[OpenNode]) -> float:
    """A price per hour that no plan for the pods on these nodes undercuts; 0 without any."""
    counts = np.zeros(len(question.rows), dtype=np.int64)
    for node in nodes:
        for row, count in node.pods:
            counts[question.ladders[question.family[row]][-1]] += count  # what they insist on
    if not counts.any():
        return 0.0
    caps = question.caps.for_new_nodes(counts)
    items = Items.of(question, caps, [Unit(row=int(r), count=int(counts[r])) for r in np.flatnonzero(counts)])
    market = open_market(question.stalls, items.wishes)
    reserved = Reservations.of((stall.template for stall in question.stalls), ())
    width = len(question.axes)
    offers = np.flatnonzero(worth_considering(market, np.flatnonzero(items.requests[:, :width].any(axis=0))))
    return lower_bound(
        Problem(
            counts=items.counts,
            requests=items.requests,
            allowed=market.allowed[:, items.wish_of],
            sizes=np.concatenate((market.sizes[offers], np.tile(caps.caps, (len(offers), 1))), axis=1),
            prices=(market.prices - market.fees)[offers],
            signatures=market.signatures[offers],
            loose=items.loose,
            bound=items.bound,
            stock=market.stock[offers],
            stocks=np.array([reserved.left[name] for name in market.reservations], dtype=np.int64),
        )
    )
