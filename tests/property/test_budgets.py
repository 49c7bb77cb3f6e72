"""For any candidates and budgets: no budget is exceeded, and the order of candidates does not matter."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone
from itertools import takewhile

from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.api.nodepool import Budget
from journeyman.core.disruption.budgets import UNLIMITED, allowed_nodes, is_active, window_of
from journeyman.core.disruption.candidates import Candidate, DisruptionReason, NodeClaimName, NodePoolName
from journeyman.core.disruption.emptiness import delete_empty

MONDAY = datetime(2026, 1, 5, tzinfo=timezone.utc)
POOLS = st.sampled_from(["a", "b", "c"])
REASONS = st.sampled_from(list(DisruptionReason))


@st.composite
def fleets(draw):
    """Candidates with unique names."""
    names = draw(st.sets(st.integers(0, 50), max_size=20))
    return [
        Candidate(
            nodeclaim=NodeClaimName(f"n{n:02}"),
            nodeclaim_uid=f"uid-{n}",
            node=f"node-{n}",
            node_uid=f"uid-node-{n}",
            nodepool=NodePoolName(draw(POOLS)),
            instance_type="m",
            zone="a",
            capacity_type="on-demand",
            price=draw(st.sampled_from([0.0, 0.1, 0.1, 0.2])),
            disruption_cost=draw(st.sampled_from([1.0, 1.0, 2.0])),
            consolidatable=draw(st.booleans()),
        )
        for n in sorted(names)
    ]


@st.composite
def budgets(draw):
    """Integers and percentages, some with a schedule."""
    nodes = draw(st.one_of(st.integers(0, 30).map(str), st.integers(0, 100).map("{}%".format)))
    reasons = draw(st.sets(st.sampled_from(["Empty", "Underutilized", "Drifted"])))
    if draw(st.booleans()):
        return Budget(nodes=nodes, reasons=sorted(reasons))
    minute, hour = draw(st.integers(0, 59)), draw(st.integers(0, 23))
    days = draw(st.sampled_from(["*", "mon-fri", "sat,sun"]))
    length = draw(st.integers(1, 40))
    return Budget(nodes=nodes, reasons=sorted(reasons), schedule=f"{minute} {hour} * * {days}", duration=f"{length}h")


def windows(budget, now):
    """Return (opens, closes) for each firing of the week before `now`."""
    if budget.schedule is None:
        return []
    length = timedelta(hours=int(budget.duration.removesuffix("h")))
    firings = takewhile(lambda at: at <= now, CronSim(budget.schedule, now - timedelta(days=7)))
    return [(at, at + length) for at in firings]


MOMENTS = st.integers(0, 14 * 24 * 60).map(lambda minutes: MONDAY + timedelta(minutes=minutes))


@given(fleets(), st.dictionaries(POOLS.map(NodePoolName), st.integers(0, 5)))
def test_emptiness_deletes_only_empty_nodes_within_budgets(nodes, allowed):
    """As many as each NodePool's budget allows, and only consolidatable ones."""
    commands, constrained = delete_empty(nodes, allowed)

    deleted = [c for command in commands for c in command.candidates]
    taken = Counter(c.nodepool for c in deleted)
    wanted = Counter(c.nodepool for c in nodes if c.is_empty and c.consolidatable)
    assert all(c.is_empty and c.consolidatable for c in deleted)
    assert taken == Counter({p: min(n, allowed.get(p, 0)) for p, n in wanted.items() if min(n, allowed.get(p, 0))})
    assert constrained == {p for p, n in wanted.items() if n > allowed.get(p, 0)}


@given(fleets(), st.dictionaries(POOLS.map(NodePoolName), st.integers(0, 5)), st.randoms())
def test_order_of_candidates_does_not_matter(nodes, allowed, rng):
    """The API server lists objects in any order."""
    shuffled = list(nodes)
    rng.shuffle(shuffled)

    assert delete_empty(shuffled, allowed) == delete_empty(nodes, allowed)


@given(st.lists(budgets(), max_size=4), REASONS, st.integers(0, 200), MOMENTS)
def test_another_budget_never_allows_more_disruptions(found, reason, total, now):
    """And no percentage allows more than all nodes."""
    everything = allowed_nodes(found, reason, total, now)

    assert all(everything <= allowed_nodes(found[:i] + found[i + 1 :], reason, total, now) for i in range(len(found)))
    if everything != UNLIMITED and all(b.nodes.endswith("%") for b in found):
        assert 0 <= everything <= total


@given(budgets(), MOMENTS)
def test_budget_is_active_exactly_within_its_windows(budget, now):
    """The nearest firing and a walk over all firings of a week agree."""
    inside = any(opens <= now < closes for opens, closes in windows(budget, now))

    assert is_active(budget, now) == (budget.schedule is None or inside)


@given(st.lists(budgets(), max_size=4), REASONS, MOMENTS, st.integers(1, 24 * 60 - 1))
def test_allowed_number_changes_only_at_window_edges(found, reason, now, minutes):
    """So that a step that starts at the edges is early enough."""
    later, horizon = now + timedelta(minutes=minutes), now + timedelta(days=2)
    edges = [window.next_edge(now, horizon) for budget in found if (window := window_of(budget)) is not None]

    if all(edge is None or later < edge for edge in edges):
        assert allowed_nodes(found, reason, 100, later) == allowed_nodes(found, reason, 100, now)
