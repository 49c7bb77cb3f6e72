"""Properties of every fleet plan."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.core.api import labels
from journeyman.core.disruption.fleet_moves import MoveCost
from journeyman.core.scheduling.results import Results
from journeyman_simulator.judge import verify_strictly
from tests.helpers.examples import examples
from tests.helpers.fleet_rollout import FleetPlanner, Rollout
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod, a_pool

SOME = settings(max_examples=examples(12), deadline=None)
RULES = (
    {},
    {"nodeSelector": {labels.ZONE: "b"}},
    {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": labels.ZONE,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "rule-2"}},
            }
        ]
    },
    {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": labels.HOSTNAME, "labelSelector": {"matchLabels": {"app": "rule-3"}}}
                ]
            }
        }
    },
)


@st.composite
def fleets(draw):
    """A few nodes of several sizes with few pods, some with rules, under a budget; every pod may be where it is."""
    members = []
    for n in range(draw(st.integers(1, 5))):
        zone = "ab"[n % 2]
        pods = []
        for p in range(draw(st.integers(0, 3))):
            rule = draw(st.sampled_from((0, 0, 0, 1, 2, 3)))
            if (rule == 1 and zone != "b") or (rule == 3 and p):
                rule = 0
            cpu = draw(st.sampled_from(("100m", "300m", "600m")))
            spec = {**RULES[rule]}
            meta = {"labels": {"app": f"rule-{rule}"}}
            pods.append(a_pod(f"p{n}-{p}", cpu=cpu, node=f"node-n{n}", metadata=meta, spec=spec))
        members.append(a_member(f"n{n}", size=draw(st.sampled_from(("s", "m", "l"))), zone=zone, pods=pods))
    budget = draw(st.sampled_from(("100%", "1", "2", "30%")))
    return a_fleet(*members, pools=[a_pool(budgets=[{"nodes": budget}])])


@SOME
@given(snapshot=fleets(), eviction=st.sampled_from((0.0, 0.005, 0.2)))
def test_every_move_saves_and_no_pod_moves_twice(snapshot, eviction):
    """The price never rises, each state has no more disrupted nodes than the budget, and every move is verified alone."""
    rollout = Rollout(snapshot, a_catalogue())
    planner = FleetPlanner(cost=MoveCost(eviction=eviction))
    prices = [rollout.price]
    rollout.on_change = lambda r: prices.append(r.price)

    def decide(current):
        moves = planner(current)
        allowed = current.allowed()["default"]
        assert sum(len(m.candidates) for m in (*moves, *(r.move for r in current.running))) <= allowed
        for move in moves:
            assert current.simulation().verify(move.command) == ()
        return moves

    rollout.run(decide)

    assert prices == sorted(prices, reverse=True)
    assert len(planner.plans) > 2 or max(rollout.evictions.values(), default=0) <= 1
    running = {p.key for node in rollout.snapshot.state_nodes for p in node.pods}
    assert running == {p.key for p in snapshot.pods}


@SOME
@given(snapshot=fleets())
def test_every_state_on_the_way_is_valid(snapshot):
    """After each move all pods fit on their nodes, and meet the rules about their nodes and about each other."""
    defects = []

    def check(rollout):
        placed = {node.name: tuple(p.key for p in node.pods) for node in rollout.snapshot.state_nodes if node.pods}
        found = verify_strictly(
            rollout.snapshot, rollout.catalogue, Results(existing=placed), pods=rollout.snapshot.pods
        )
        defects.extend(d.sentence for d in found if "spread" not in d.sentence)  # it may be uneven from the start

    rollout = Rollout(snapshot, a_catalogue(), on_change=check)
    rollout.run(FleetPlanner())

    assert defects == []
