"""Churn limits: consolidation waits after reversals and launches, honours caps, and must pay back."""

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.core.api import labels
from journeyman.core.disruption.candidates import DisruptionReason
from journeyman.core.disruption.churn_limits import ChurnLimits, ChurnSettings, invalid_annotations
from journeyman.core.disruption.commands import Command, to_node_disruption
from tests.helpers import builders
from tests.helpers.builders import NOW, a_snapshot, ago, condition, stamp
from tests.helpers.churn import (
    a_candidate,
    a_command,
    a_created_claim,
    a_planned_claim,
    a_proposal,
    an_empty_ledger,
    pod_of,
    stored_ledger,
)
from tests.helpers.small_clusters import table

NO_LIMITS = ChurnSettings(payback=timedelta(0), eviction_cost=0.0, reversal_window=timedelta(0))


def limits(settings_=None, **snapshot) -> ChurnLimits:
    """Return the limits with an empty ledger by default."""
    snapshot = a_snapshot(**{"churn_ledger": an_empty_ledger(), **snapshot})
    return ChurnLimits(snapshot, settings_ if settings_ is not None else ChurnSettings())


def moving(*candidates, replacement: float | None = None) -> Command:
    """Return a consolidation of these candidates, with a replacement at this price."""
    planned = () if replacement is None else (a_planned_claim(price=replacement),)
    return Command(reason=DisruptionReason.UNDERUTILIZED, candidates=candidates, replacements=planned)


# -- reversed consolidations and launched nodes -------------------------------------------------------------------------


def after_a_reversal(now=NOW, *, grown: bool = False):
    """Return a cluster in which a node was launched 30 s ago for a workload that a command had moved."""
    pods = tuple(pod_of("web", s, created=ago(minutes=1)) for s in ("y", "z")) if grown else (pod_of("web", "z"),)
    return {"node_disruptions": (a_command("c"),), "claims": (a_created_claim("web-7c-z"),), "pods": pods, "now": now}


@pytest.mark.parametrize("is_stored", [False, True])
def test_nodes_with_workloads_of_a_reversed_consolidation_are_left_alone(is_stored):
    """Before and after it is stored, and with the NodeDisruption as history or without; all workloads that moved count."""
    cluster = after_a_reversal()
    if is_stored:
        ledger = stored_ledger(a_snapshot(churn_ledger=an_empty_ledger(), **cluster))
        cluster = {"churn_ledger": ledger}

    found = limits(**cluster)

    for workload in ("web", "api"):
        assert found.why_not(a_candidate("other", workload)) == (
            f"Consolidation backs off until 21:09:30 UTC from Deployment default/{workload}: its consolidation had no effect "
            "once in 6 hours, and a node was launched again"
        )
    assert found.why_not(a_candidate("other")) == ""
    checked = found.checked(moving(a_candidate("other"), a_candidate("web", claim="m")))
    assert (checked.candidates, checked.why_not[:24]) == ((), "Consolidation backs off ")


def test_back_off_ends_at_its_time():
    """The window counts from the launch. A workload that grew after its move is left alone, too: an autoscaler raised its replicas."""
    end = ago(seconds=30) + timedelta(minutes=10)
    assert limits(**after_a_reversal(end - timedelta(seconds=1))).why_not(a_candidate("web"))
    assert limits(**after_a_reversal(end)).why_not(a_candidate("web")) == ""
    grown = limits(**after_a_reversal(grown=True))
    assert "its consolidation was followed by its growth" in grown.why_not(a_candidate("web"))
    assert grown.why_not(a_candidate("api")) == ""


def test_node_stays_while_workloads_run_there_for_which_it_was_launched():
    """For the window; a node with pods of other workloads may go, and so may an empty one."""
    claim = a_created_claim("web-7c-x", name="n", at=ago(minutes=9))
    cluster = {"claims": (claim,), "pods": (pod_of("web"),)}
    found = limits(**cluster)

    assert found.why_not(a_candidate("web")) == (
        "NodeClaim n was launched for pods of Deployment default/web, which run there: consolidation leaves it alone until "
        "21:01:00 UTC"
    )
    assert found.why_not(a_candidate("other")) == found.why_not(a_candidate()) == ""
    assert limits(NO_LIMITS, **cluster).why_not(a_candidate("web")) == ""
    assert limits(**cluster, now=NOW + timedelta(minutes=1)).why_not(a_candidate("web")) == ""


def test_replacement_stays_while_the_workloads_run_there_that_its_command_moved():
    """For the payback time. The moved pods have other names, so that the NodeDisruption says which workloads they belong to."""
    claim = a_created_claim("web-7c-old", name="n", replaces="c", at=ago(minutes=59))
    cluster = {"claims": (claim,), "node_disruptions": (a_command("c"),)}
    found = limits(**cluster)
    assert "launched for pods of Deployment default/api" in found.why_not(a_candidate("api", "web"))
    assert found.why_not(a_candidate("other")) == ""
    assert limits(**cluster, now=NOW + timedelta(minutes=1)).why_not(a_candidate("api", "web")) == ""


# -- caps -------------------------------------------------------------------------------------------------------------


def test_workload_is_not_moved_beyond_its_evictions_a_day():
    """Evictions of the ledger, of finished and of unfinished commands count; the message says when the next are possible."""
    earlier = (a_command("a", moved={"web": 2}, ended=ago(hours=3)),)
    before = a_snapshot(node_disruptions=earlier, churn_ledger=an_empty_ledger(), now=ago(hours=3))
    commands = (a_command("b", moved={"web": 1}, phase="Draining", ended=None), a_proposal("c", moved={"web": 1}))
    found = limits(churn_ledger=stored_ledger(before), node_disruptions=commands)

    assert found.why_not(a_candidate("web", limit=5)) == ""
    assert found.why_not(a_candidate("web", limit=5, pods=2)) == (
        "Deployment default/web allows 5 evictions a day (journeyman.dev/max-evictions-per-day): 2 in the last 24 hours, 2 by "
        "commands in progress, and this moves 2 more; possible again from 2026-03-03 19:00 UTC"
    )
    assert found.why_not(a_candidate("other", limit=1)) == found.why_not(a_candidate("web", pods=9)) == ""
    assert found.why_not(a_candidate("other", limit=0)).endswith("0 in the last 24 hours, and this moves 1 more")


def test_all_candidates_of_a_command_count_together():
    """Each of them alone is within the cap."""
    both = moving(a_candidate("web", limit=3, pods=2), a_candidate("web", limit=3, pods=2, claim="m"))
    assert "allows 3 evictions a day" in limits().checked(both).why_not
    assert limits().checked(moving(both.candidates[0])).candidates


def capped(evictions: str):
    """A NodePool with the annotation that caps its evictions a day."""
    return builders.a_pool(metadata={"annotations": {labels.MAX_EVICTIONS_PER_DAY: evictions}})


def test_nodepool_caps_the_evictions_from_its_nodes():
    """Whatever the workload."""
    found = limits(node_disruptions=(a_command("a"),), node_pools=(capped("3"),))
    assert found.why_not(a_candidate("other")) == ""
    assert found.why_not(a_candidate("other", pods=2)).startswith("NodePool default allows 3 evictions a day")


def test_proposals_that_exceed_a_cap_together_are_validated_in_their_order():
    """Neither counts itself; the later one counts the earlier one, and not the other way round."""
    first = a_proposal("b", ago(seconds=20), moved={"web": 2})
    second = a_proposal("a", ago(seconds=10), moved={"web": 2})
    found = limits(node_disruptions=(second, first))
    command = moving(a_candidate("web", limit=3, pods=2))

    assert found.validating(first).checked(command) is command
    assert "2 by commands in progress" in found.validating(second).checked(command).why_not
    started = limits(node_disruptions=(first, a_command("a", moved={"web": 2}, phase="Draining", ended=None)))
    assert not started.validating(first).checked(command).candidates


WORKLOADS, FATES = st.sampled_from(["web", "api"]), st.sampled_from(["ok", "lost", "late"])


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(st.tuples(WORKLOADS, st.integers(1, 4), st.integers(0, 120), FATES), max_size=30),
    cap=st.integers(0, 8),
)
def test_cap_is_never_exceeded_in_any_24_hours(moves, cap):
    """Random proposals, crashes before the ledger is written, and commands that end late."""
    ledger, now, commands, evicted = an_empty_ledger(), NOW, (), []
    for index, (name, pods, minutes, fate) in enumerate(moves):
        now += timedelta(minutes=minutes)
        snapshot = a_snapshot(node_disruptions=commands, churn_ledger=ledger, now=now)
        command = moving(a_candidate(name, limit=cap, pods=pods))
        if ChurnLimits(snapshot, NO_LIMITS).checked(command).candidates:
            evicted += [(now, name)] * pods
            phase = {"phase": "Draining", "ended": None} if fate == "late" else {"ended": now}
            commands = (*commands, a_command(f"c{index}", moved={name: pods}, **phase))
        if fate == "ok":
            ended = tuple(d if d.finished else a_command(d.metadata.name, moved=_pods(d), ended=now) for d in commands)
            snapshot = a_snapshot(node_disruptions=ended, churn_ledger=ledger, now=now)
            ledger, commands = stored_ledger(snapshot), ended
    for end, _ in evicted:
        within = Counter(name for at, name in evicted if end - timedelta(hours=24) < at <= end)
        assert all(number <= cap for number in within.values())


def _pods(disruption):
    return {w.name: w.pods for w in disruption.spec.workloads}


def test_command_lists_the_workloads_that_it_moves():
    """With the UID if it identifies them, so that they are known when the pods are gone; those with a cap first."""
    command = moving(a_candidate("web", pods=3), a_candidate("api", "web", limit=4, claim="m"))
    workloads = to_node_disruption(command, "single-node", NOW).spec.workloads
    assert [(w.kind, w.namespace, w.name, w.uid, w.pods) for w in workloads] == [
        ("Deployment", "default", "web", "", 4),
        ("Deployment", "default", "api", "", 1),
    ]


def test_command_of_more_workloads_than_a_nodedisruption_lists_is_refused():
    """Otherwise some would not be counted."""
    many = moving(a_candidate(*(f"w{i}" for i in range(501))))
    assert limits().checked(many).why_not == "The command would move 501 workloads; a NodeDisruption lists 500"


def test_annotation_that_is_no_whole_number_is_reported_and_allows_no_move():
    """On the NodePool, and on the node where the pod runs."""
    claim = builders.a_claim("n", status={"providerID": builders.provider_id_of("n"), "nodeName": "node-n"})
    pods = (pod_of("web", node="node-n", limit="many"), pod_of("api", node="node-n", limit="2"))
    snapshot = a_snapshot(claims=(claim,), nodes=(builders.a_node("n"),), node_pools=(capped("-1"),), pods=pods)

    events = invalid_annotations(snapshot).events

    assert {(e.ref.resource.kind, e.reason, e.type) for e in events} == {
        (kind, "InvalidAnnotation", "Warning") for kind in ("NodePool", "NodeClaim", "Node")
    }
    assert any("max-evictions-per-day of pod default/web-7c-x is 'many', so consolidation" in e.message for e in events)
    why = ChurnLimits(snapshot, NO_LIMITS).why_not(a_candidate("web", pods=9))
    assert why.startswith("NodePool default allows 0 evictions")


# -- payback ----------------------------------------------------------------------------------------------------------


@table(
    "price, replacement, pays_back",
    saves_5_percent=(1.0, 0.95, True),
    saves_3_percent=(1.0, 0.97, False),
    small_node=(0.05, None, True),
    nearly_free_node=(0.0005, None, False),
    unknown_price=(0.0, None, True),
)
def test_move_must_pay_back_within_an_hour(price, replacement, pays_back):
    """Booting costs 2 minutes of the replacement, pulling images 30 seconds of the candidate, each eviction 0.0001."""
    command = moving(a_candidate("web", pods=10, price=price), replacement=replacement)
    assert bool(limits().checked(command).candidates) is pays_back


def test_message_of_a_move_that_does_not_pay_back_lists_its_costs():
    """What it saves, and what it costs."""
    command = moving(a_candidate("web", pods=10), replacement=0.99)
    assert limits().checked(command).why_not == (
        "The move does not pay back within 1h00m: it saves 0.0100/h, and costs 0.0423 (boot 0.0330, image pulls 0.0083, 10 "
        "evictions 0.0010)"
    )
    longer = ChurnSettings(payback=timedelta(hours=5))
    assert limits(longer).checked(command) is limits(NO_LIMITS).checked(command) is command


def after_launches(gone: int, standing: int = 4):
    """Return a cluster that launched nodes twenty minutes ago, of which some are gone again."""
    at = LATER - timedelta(minutes=20)
    claims = tuple(a_created_claim("web-7c-x", name=f"n{i}", at=at) for i in range(gone + standing))
    ledger = stored_ledger(a_snapshot(churn_ledger=an_empty_ledger(), claims=claims, now=LATER, pods=(pod_of("web"),)))
    return {"churn_ledger": ledger, "claims": claims[gone:], "now": LATER}


LATER = NOW + timedelta(minutes=30)


@table(
    "gone, price, replacement, is_worth_it",
    all_nodes_stay=(0, 1.0, 0.9, True),
    one_is_gone=(1, 1.0, 0.9, True),
    eight_of_twelve_are_gone=(8, 1.0, 0.9, False),
    saves_most=(3, 1.0, 0.4, True),
    deletes_the_node=(8, 1.0, None, True),
    in_a_wave_of_ninety=(90, 1.0, None, False),
    unknown_price=(40, 0.0, 0.9, True),
    seldom_so_far=(2, 1.0, 0.9, False),
)
def test_moves_save_more_where_capacity_is_soon_needed_again(gone, price, replacement, is_worth_it):
    """Twelve nodes were launched at once; if eight are gone after half an hour, the free capacity of the other four lasts 17 minutes."""
    command = moving(a_candidate("web", price=price), replacement=replacement)
    assert bool(limits(**after_launches(gone)).checked(command).candidates) is is_worth_it


def test_longer_a_wave_is_over_the_smaller_a_saving_suffices():
    """Capacity was not needed for three hours, so a saving is expected to last as long again.

    Launches of this very hour count for a minute at least.
    """
    command = moving(a_candidate("web"), replacement=0.9)
    assert not limits(**after_launches(90)).checked(command).candidates
    assert limits(**after_launches(90) | {"now": LATER + timedelta(hours=3)}).checked(command) is command
    assert "are gone" in limits(**after_launches(8) | {"now": LATER.replace(minute=0)}).checked(command).why_not


def some_free(names):
    """The nodes of these NodeClaims, of four CPUs."""
    return tuple(builders.a_node(n, status={"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}) for n in names)


def test_free_capacity_is_used_before_a_node_is_needed_again():
    """Twelve more empty nodes stand there: what is given up is missed four times later."""
    command, cluster = moving(a_candidate("web"), replacement=None), after_launches(40)
    names = [f"empty{i}" for i in range(12)]
    empty = (a_created_claim(name=name, at=ago(days=1)) for name in names)
    assert not limits(**cluster).checked(command).candidates
    roomy = cluster | {"claims": (*cluster["claims"], *empty), "nodes": some_free(names)}
    assert limits(**roomy).checked(command) is command


def test_message_of_a_short_lived_saving_has_its_life_and_what_moving_costs():
    """And how many nodes are gone. Only the capacity that its pods request is moved: a tenth of a node moves for a small saving."""
    command = moving(a_candidate("web"), replacement=0.9)
    cluster = after_launches(8)
    assert limits(**cluster).checked(command).why_not == (
        "The move is not worth it: it saves 0.1000/h for about 17m, until capacity is needed again (8 nodes that NodePool default "
        "launched since 21:00 UTC are gone). It must save 0.7000/h, which is then what its pods' capacity costs in 12m"
    )
    assert limits(NO_LIMITS, **cluster).checked(command) is command

    pods = (builders.a_pod("web-7c-0", node="node-n8", cpu="400m", memory="1Mi"),)
    part = moving(a_candidate("web", claim="n8"), replacement=0.8)
    assert limits(**cluster, nodes=some_free(["n8"]), pods=pods).checked(part) is part


@table(
    "gone, age, replaces, settings_, soon_gone",
    launched_lately=(8, 19, "", None, ["new"]),
    stays_so_far=(8, 21, "", None, []),
    all_nodes_stay=(0, 19, "", None, []),
    replacement=(8, 19, "c", None, []),
    without_limits=(8, 19, "", NO_LIMITS, []),
)
def test_new_node_is_soon_gone_where_others_are(gone, age, replaces, settings_, soon_gone):
    """Eight of the twelve nodes that the NodePool launched before it are gone."""
    cluster = after_launches(gone)
    new = a_created_claim("web-7c-x", name="new", at=LATER - timedelta(minutes=age), replaces=replaces)
    found = limits(settings_, **cluster | {"claims": (*cluster["claims"], new)})
    assert sorted(found.nodes_soon_gone()) == soon_gone


def test_replacements_of_failed_commands_are_not_nodes_that_are_soon_gone():
    """A replacement that did not join says nothing about how long a saving lasts."""
    command, cluster = moving(a_candidate("other"), replacement=0.85), after_launches(2)
    assert limits(**cluster).checked(command).candidates == ()
    failed = a_command("c", phase="RolledBack", ended=LATER)
    assert limits(**cluster, node_disruptions=(failed,)).checked(command) is command


def test_boot_time_is_measured_from_the_nodeclaims_of_the_nodepool():
    """The median from creation to initialization; nodes that boot in ten minutes make a replacement dearer."""
    ready = [condition("Initialized", since=ago(days=1) + timedelta(minutes=m)) for m in (1, 10, 12)]
    created = {"creationTimestamp": stamp(ago(days=1))}
    claims = tuple(builders.a_claim(f"n{i}", metadata=created, status={"conditions": [c]}) for i, c in enumerate(ready))
    why = limits(claims=claims).checked(moving(a_candidate("web"), replacement=0.95)).why_not
    assert f"boot {0.95 * 10 / 60:.4f}" in why


def test_limits_do_not_change_with_the_order_of_commands():
    """Same cluster, same reasons."""
    commands = tuple(a_command(f"c{i}", moved={"web": i + 1}) for i in range(4))
    reasons = {
        limits(node_disruptions=order).why_not(a_candidate("web", limit=3)) for order in (commands, commands[::-1])
    }
    assert len(reasons) == 1
    assert reasons.pop()
