"""The churn ledger counts evictions, launches and reversed consolidations once, and stays small."""

from collections import Counter
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from journeyman.core.api.churn_ledger import HOURS, MAX_COMMANDS, MAX_NODE_POOLS, MAX_WORKLOADS, ChurnLedger
from journeyman.core.api.model import parse
from journeyman.core.api.objects import ObjectMeta
from journeyman.core.disruption.churn_counts import count_churn, record_churn
from journeyman.core.disruption.cleanup import delete_old_commands
from journeyman.core.plan import CreateObject, PatchObject
from journeyman.core.state import InvalidObject
from tests.helpers import builders
from tests.helpers.builders import NOW, a_snapshot, ago
from tests.helpers.churn import (
    WINDOW,
    a_command,
    a_created_claim,
    a_proposal,
    an_empty_ledger,
    deployment,
    pod_of,
    stored_ledger,
)
from tests.helpers.small_clusters import table

ETCD_BYTES = 1_572_864
HISTORY = {"limit": 100, "age": timedelta(hours=24)}


def counted(*commands, claims=(), pods=(), ledger=None, now=NOW):
    """Return the update of a ledger, empty by default."""
    ledger = ledger if ledger is not None else an_empty_ledger()
    snapshot = a_snapshot(node_disruptions=commands, claims=claims, pods=pods, churn_ledger=ledger, now=now)
    return count_churn(snapshot, WINDOW)


# -- evictions --------------------------------------------------------------------------------------------------------


@table(
    "command, evictions",
    succeeded=(a_command("c", moved={"web": 3}), 3),
    drifted=(a_command("c", moved={"web": 3}, reason="Drifted"), 3),
    draining=(a_command("c", moved={"web": 3}, phase="Draining", ended=None), 0),
    proposed=(a_proposal("c", moved={"web": 3}), 0),
    rejected=(a_command("c", moved={"web": 3}, phase="Rejected"), 0),
    rolled_back_after_a_deletion=(a_command("c", moved={"web": 3}, phase="RolledBack"), 3),
)
def test_evictions_of_a_finished_command_are_counted(command, evictions):
    """Unfinished ones are read from the NodeDisruptions; the candidate of the one that was rolled back is gone.

    One that was rolled back in time moved no pod: its candidate still exists and is not deleting.
    """
    counts = counted(command).counts
    assert sum(counts.of_workload(deployment("web")).evictions) == evictions
    assert sum(counts.of_node_pool("default").evictions) == evictions
    claim = builders.a_claim("old", metadata={"uid": "u"})
    in_time = counted(a_command("c", phase="RolledBack"), claims=(claim,)).counts
    assert in_time.of_workload(deployment("web")).evictions == ()


def test_ledger_is_created_then_written_once_with_the_version_that_was_read():
    """The write that names a command as counted also has its evictions, so that a lost one is repeated and none is doubled."""
    command = a_command("c", moved={"web": 2})
    created = record_churn(a_snapshot(node_disruptions=(command,)), WINDOW)
    ledger = an_empty_ledger()
    first = a_snapshot(node_disruptions=(command,), churn_ledger=ledger)
    written = record_churn(first, WINDOW)
    second = replace(first, churn_ledger=stored_ledger(first))

    [create], [patch] = created.actions, written.actions
    assert isinstance(create, CreateObject)
    assert isinstance(patch, PatchObject)
    assert (patch.ref.uid, patch.resource_version, patch.subresource) == ("uid-ledger", "1", "status")
    assert patch.patch["status"]["commands"] == [{"name": "c", "isCounted": True}]
    assert record_churn(second, WINDOW).actions == ()
    assert count_churn(second, WINDOW).counts == count_churn(first, WINDOW).counts
    evictions = [o for c in written.chains for o in c.observations]
    assert [(o.name, o.value, o.labels["reason"]) for o in evictions] == [
        ("journeyman_disruption_evictions_total", 2.0, "underutilized")
    ]


def test_invalid_ledger_is_overwritten():
    """A wrong edit loses counters, and nothing else; the commands that still exist are counted again. One without any is valid."""
    assert parse(ChurnLedger, {"metadata": {"name": "cluster"}}).metadata == ObjectMeta(name="cluster")
    invalid = InvalidObject(kind="ChurnLedger", name="cluster", uid="u", why="status", resource_version="9")
    snapshot = a_snapshot(node_disruptions=(a_command("c"),), invalid_objects=(invalid,))
    [patch] = record_churn(snapshot, WINDOW).actions
    assert (patch.ref.uid, patch.resource_version) == ("u", "9")
    assert patch.patch["status"]["workloads"][0]["evictions"] == [1]


def test_finished_command_is_kept_as_history_until_the_ledger_contains_it():
    """Of a hundred newer commands all are kept; a command that was rejected counts nothing."""
    commands = tuple(a_command(f"c{i:03}", ended=ago(seconds=i)) for i in range(102))
    rejected = a_command("r", phase="Rejected", ended=ago(hours=1))
    before = a_snapshot(node_disruptions=(*commands, rejected), churn_ledger=an_empty_ledger())
    after = replace(before, churn_ledger=stored_ledger(before))

    assert [a.ref.name for a in delete_old_commands(before, **HISTORY).actions] == ["r"]
    assert [a.ref.name for a in delete_old_commands(after, **HISTORY).actions] == ["c100", "c101", "r"]


@pytest.mark.parametrize(
    ("later", "evictions"),
    [({"hours": 0}, (2,)), ({"hours": 24}, (0,) * 24 + (2,)), ({"hours": 25}, ()), ({"seconds": -1}, (2,))],
)
def test_evictions_are_forgotten_after_a_day(later, evictions):
    """They count for 24 full hours, and the counters move with the hours. A clock that is behind keeps all."""
    first = a_snapshot(node_disruptions=(a_command("c", moved={"web": 2}),), churn_ledger=an_empty_ledger())
    counts = counted(ledger=stored_ledger(first), now=NOW + timedelta(**later)).counts
    assert counts.of_workload(deployment("web")).evictions[: len(evictions) or None] == evictions
    assert sum(counts.of_workload(deployment("web")).evictions) == sum(evictions)


# -- launches ---------------------------------------------------------------------------------------------------------


def test_launches_are_counted_once_per_nodeclaim():
    """For the NodePool, and for the workloads of the pods it was created for."""
    cluster = {"claims": (a_created_claim("web-7c-x", at=NOW + timedelta(minutes=5)),), "pods": (pod_of("web"),)}
    at = NOW + timedelta(minutes=6)
    ledger = stored_ledger(a_snapshot(**cluster, churn_ledger=an_empty_ledger(), now=at))

    counts = counted(**cluster, ledger=ledger, now=at + timedelta(hours=1))

    assert not counts.is_changed
    assert counts.counts.of_node_pool("default").launches == (0, 1)
    assert counts.counts.of_workload(deployment("web")).launches == (0, 1)


# -- reversed consolidations ------------------------------------------------------------------------------------------


NEW = a_created_claim("web-7c-z")


@table(
    "command, claim, is_reversed",
    at_its_end=(a_command("c"), NEW, True),
    draining=(a_command("c", ended=None, phase="Draining"), NEW, True),
    soon_after=(a_command("c", ended=ago(minutes=10)), NEW, True),
    late=(a_command("c", ended=ago(minutes=11)), NEW, False),
    before_it=(a_command("c"), a_created_claim("web-7c-z", at=ago(minutes=3)), False),
    another_workload=(a_command("c"), a_created_claim("other-7c-z"), False),
    pod_is_gone=(a_command("c"), a_created_claim("web-7c-gone"), False),
    its_replacement=(a_command("c"), a_created_claim("web-7c-z", replaces="c"), False),
    rolled_back=(a_command("c", phase="RolledBack"), NEW, False),
    rejected=(a_command("c", phase="Rejected"), NEW, False),
    another_method=(a_command("c", reason="Drifted"), NEW, False),
)
def test_consolidation_is_reversed_when_a_nodeclaim_is_created_for_its_moved_workloads(command, claim, is_reversed):
    """Pods are compared by the controller that owns them; all workloads that moved are held, as another may be next."""
    pods = (pod_of("web", "z"), pod_of("other", "z"))
    update = counted(command, claims=(claim,), pods=pods)
    assert [(r.claim.metadata.name, r.is_growth) for r in update.reversals] == is_reversed * [("new", False)]
    for name in ("api", "web"):
        churn = update.counts.of_workload(deployment(name))
        assert (sum(churn.reversals), churn.held_until is not None) == (is_reversed, is_reversed)


def test_rollout_of_a_new_replica_set_reverses_the_move_of_the_old_one():
    """Today's ReplicaSet has another hash than the moved pod's; the Deployment is the same."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-9f", "uid": "n", "controller": True}
    metadata = {"labels": {"pod-template-hash": "9f"}, "ownerReferences": [owner]}
    pods = (builders.a_pod("web-9f-q", metadata=metadata),)
    update = counted(a_command("c"), claims=(a_created_claim("web-9f-q"),), pods=pods)
    assert [r.workloads for r in update.reversals] == [(deployment("api"), deployment("web"))]


def test_workload_that_grew_is_held_but_not_counted_as_reversed():
    """Two pods were created since and one was moved: an autoscaler raised the replicas, which is not the consolidation's fault."""
    pods = tuple(pod_of("web", suffix, created=ago(minutes=1)) for suffix in ("y", "z"))

    update = counted(a_command("c"), claims=(NEW,), pods=pods)

    [reversal] = update.reversals
    web, api = (update.counts.of_workload(deployment(name)) for name in ("web", "api"))
    assert (reversal.is_growth, reversal.workloads) == (True, (deployment("web"),))
    assert (web.reversals, web.held_until) == ((), reversal.at + WINDOW)
    assert api.held_until is None


def test_reversals_hold_workloads_longer_each_time():
    """Ten minutes, then twice as long, at most four hours; it starts at the launch."""
    ledger, at = an_empty_ledger(), ago(seconds=30)
    for times, minutes in enumerate((10, 20, 40, 80, 160, 240, 240), start=1):
        claims, pods = (a_created_claim("web-7c-z", name=f"new{times}", at=at),), (pod_of("web", "z"),)
        snapshot = a_snapshot(node_disruptions=(a_command(f"c{times}"),), claims=claims, pods=pods, churn_ledger=ledger)
        held = count_churn(snapshot, WINDOW).counts.of_workload(deployment("web")).held_until
        assert held == at + timedelta(minutes=minutes), times
        ledger = stored_ledger(snapshot)


def after_a_launch(*commands):
    """A snapshot in which a NodeClaim was created for a workload that these commands moved."""
    cluster = {"node_disruptions": commands, "claims": (NEW,), "pods": (pod_of("web", "z"),)}
    return a_snapshot(**cluster, churn_ledger=an_empty_ledger())


def test_one_launch_reverses_several_commands_and_counts_once_per_workload():
    """A fleet plan moves a workload by many commands at once."""
    snapshot = after_a_launch(*(a_command(f"c{i}") for i in range(5)))
    counts = count_churn(snapshot, WINDOW).counts
    assert counts.of_workload(deployment("web")).reversals == (1,)
    assert {c.reversed_by for c in counts.commands.values()} == {"new"}
    assert record_churn(replace(snapshot, churn_ledger=stored_ledger(snapshot)), WINDOW).actions == ()


def test_reversed_consolidation_is_reported_on_the_nodeclaim():
    """The Event names the command and the workloads; the metric its NodePool and cause."""
    [chain] = record_churn(after_a_launch(a_command("c")), WINDOW).chains
    [event] = chain.events
    assert (event.reason, event.ref.name) == ("ConsolidationReversed", "new")
    assert event.message.startswith("NodeDisruption c had no effect: NodeClaim new was created for pods of workloads")
    reversed_ = [o.labels for o in chain.observations if o.name == "journeyman_consolidations_reversed_total"]
    assert reversed_ == [{"nodepool": "default", "cause": "placement"}]


# -- size -------------------------------------------------------------------------------------------------------------


def test_full_ledger_is_far_below_the_limit_of_etcd():
    """More workloads and NodePools than it may have, with long names, each moved and launched every hour."""
    long = "n" * 60
    names = [f"{long}-{i}" for i in range(MAX_WORKLOADS + 50)]
    counters = {name: [1000] * HOURS for name in ("evictions", "launches", "reversals")}
    where = {"kind": "StatefulSet", "namespace": long, "uid": "0" * 36, "heldUntil": "2026-03-03T00:00:00Z"}
    status = {
        "hour": "2026-03-02T21:00:00Z",
        "workloads": [{**where, "name": name, **counters} for name in names[:MAX_WORKLOADS]],
        "nodePools": [{"name": n, **counters} for n in names[:MAX_NODE_POOLS]],
        "commands": [{"name": f"underutilized-{i:010}", "isCounted": True, "reversedBy": f"{long}-{i}"} for i in range(990)],
    }  # fmt: skip
    ledger = parse(ChurnLedger, {"metadata": {"name": "cluster"}, "status": status})
    commands = tuple(a_command(c.name) for c in ledger.status.commands[:-20])
    more = tuple(a_command(f"new{i}", moved={names[-i]: 1, "api": 1}, pool=f"p{i}") for i in range(1, 60))
    snapshot = a_snapshot(node_disruptions=(*commands, *more), churn_ledger=ledger)

    [patch] = record_churn(snapshot, WINDOW).actions

    status = patch.patch["status"]
    assert (len(status["workloads"]), len(status["nodePools"])) == (MAX_WORKLOADS, MAX_NODE_POOLS)
    assert len(status["commands"]) == MAX_COMMANDS
    assert len(msgspec.json.encode(patch.patch)) < ETCD_BYTES / 2


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 5), st.integers(0, 180), st.booleans()), max_size=25
    )
)
def test_no_workload_is_undercounted_however_few_the_ledger_lists(moves, monkeypatch_bound):
    """Random histories, with lost writes: the count of a workload is at least its evictions of the last 24 hours."""
    ledger, now, commands, history = an_empty_ledger(), NOW, (), []
    for index, (name, pods, minutes, is_lost) in enumerate(moves):
        now += timedelta(minutes=minutes)
        history.append((now, name, pods))
        commands = (*commands, a_command(f"c{index}", moved={name: pods}, ended=now))
        snapshot = a_snapshot(node_disruptions=commands, churn_ledger=ledger, now=now)
        counts = count_churn(snapshot, WINDOW).counts
        exact = Counter()
        for at, moved, number in history:
            exact[moved] += number if now - at <= timedelta(hours=24) else 0
        for moved, number in exact.items():
            assert sum(counts.of_workload(deployment(moved)).evictions) >= number
        assert len(counts.workloads) <= 3
        if not is_lost:
            ledger = stored_ledger(snapshot)
            old = delete_old_commands(replace(snapshot, churn_ledger=ledger), **HISTORY)
            deleted = {a.ref.name for a in old.actions}
            commands = tuple(c for c in commands if c.metadata.name not in deleted)


@pytest.fixture(scope="module")
def monkeypatch_bound():
    """Let the ledger list three workloads only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("journeyman.core.disruption.churn_counts.MAX_WORKLOADS", 3)
        yield
