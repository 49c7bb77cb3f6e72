"""Damping: what was in vain is seen, remembered, and held back for longer each time; everything else goes on."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.api.node_disruption import (
    DisruptionCandidate,
    DisruptionReplacement,
    NodeDisruption,
    NodeDisruptionSpec,
    NodeDisruptionStatus,
)
from journeyman.core.api.objects import ObjectMeta
from journeyman.core.disruption.candidates import Candidate, DisruptionReason, NodeClaimName, NodePoolName
from journeyman.core.disruption.commands import Command, replacement_name
from journeyman.core.disruption.consolidation_backoff import (
    ConsolidationBackoff,
    find_reversed,
    record_reversed,
    workload_of,
)
from journeyman.core.disruption.stale_taints import delete_old_commands
from journeyman.core.plan import PatchObject
from journeyman.core.scheduling.results import PlannedClaim
from tests.helpers import builders
from tests.helpers.builders import NOW, a_snapshot, ago, stamp


def a_command(name: str, *, ended: datetime | None = NOW, phase: str = "Succeeded", reason="Underutilized", **status):
    """One that moved a pod each of `default/api-6d` and `default/web-7c`, begun two minutes before it ended."""
    moved = DisruptionCandidate(node_claim="old", node_claim_uid="u", pods=("default/web-7c-x1", "default/api-6d-y2"))
    spec = NodeDisruptionSpec(
        reason=reason,
        decision="replace",
        method="single-node",
        candidates=(moved,),
        replacements=(DisruptionReplacement(name=replacement_name(name, "default", 0)),),
    )
    began = (ended or NOW) - timedelta(minutes=2)
    told = NodeDisruptionStatus(phase=phase, started_at=began, finished_at=ended, **status)
    return NodeDisruption(
        metadata=ObjectMeta(name=name, uid=f"uid-{name}", resource_version="7"), spec=spec, status=told
    )


def an_opened_claim(*pods: str, at: datetime = NOW, replaces: str = ""):
    """A claim that was opened for these pods, or as the replacement of a command."""
    annotations = {labels.PLANNED_PODS: ",".join(pods), **({labels.DISRUPTION: replaces} if replaces else {})}
    return builders.a_claim("new", metadata={"annotations": annotations, "creationTimestamp": stamp(at)})


def a_candidate(*pods: str) -> Candidate:
    """A node that these pods would have to leave."""
    return Candidate(
        nodeclaim=NodeClaimName("n"), nodeclaim_uid="u", node="node-n", node_uid="v", nodepool=NodePoolName("default"),
        instance_type="m", zone="a", capacity_type=labels.ON_DEMAND, price=1.0, reschedulable_pods=pods,
    )  # fmt: skip


def a_replacing_command(node_pool: str) -> Command:
    """It opens one node of that pool, and moves a pod nobody has heard of."""
    planned = PlannedClaim(
        node_pool=node_pool, pods=(), instance_types=("s",), requirements=(), requests={},
        offering=("s", "a", labels.ON_DEMAND), price=0.5,
    )  # fmt: skip
    reason = DisruptionReason.UNDERUTILIZED
    return Command(reason=reason, candidates=(a_candidate("default/other-1"),), replacements=(planned,))


# -- regrets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("default/web-6d4cf56db6-x7k2p", "default/web-6d4cf56db6"),
        ("default/db-0", "default/db"),
        ("my-team/alone", "my-team/alone"),
    ],
)
def test_a_workload_is_known_by_the_names_of_its_pods(pod, workload):
    """Dashes of the namespace are none of the name's."""
    assert workload_of(pod) == workload


@pytest.mark.parametrize(
    ("command", "claim", "is_regretted"),
    [
        (a_command("c"), an_opened_claim("default/web-7c-z9"), True),
        (a_command("c", ended=None, phase="Executing"), an_opened_claim("default/web-7c-z9"), True),
        (a_command("c", ended=ago(minutes=9)), an_opened_claim("default/web-7c-z9"), True),
        (a_command("c", ended=ago(minutes=11)), an_opened_claim("default/web-7c-z9"), False),
        (a_command("c"), an_opened_claim("default/web-7c-z9", at=ago(minutes=3)), False),
        (a_command("c"), an_opened_claim("default/web-8e-z9"), False),
        (a_command("c"), an_opened_claim("other/web-7c-z9"), False),
        (a_command("c"), an_opened_claim("default/web-7c-z9", replaces="c"), False),
        (a_command("c", phase="RolledBack"), an_opened_claim("default/web-7c-z9"), False),
        (a_command("c", phase="Rejected"), an_opened_claim("default/web-7c-z9"), False),
        (a_command("c", reason="Drifted"), an_opened_claim("default/web-7c-z9"), False),
        (a_command("c", reprovisioned_workloads=("default/web-7c",)), an_opened_claim("default/web-7c-z9"), False),
    ],
    ids=[
        "at-its-end", "under-way", "soon-after", "late", "before-it", "another-workload", "another-namespace",
        "its-replacement", "undone", "not-begun", "not-for-the-price", "known",
    ],
)  # fmt: skip
def test_a_node_opened_soon_after_for_pods_that_moved_is_regretted(command, claim, is_regretted):
    """The workload tells them, whatever the pods are called now."""
    found = find_reversed(a_snapshot(node_disruptions=(command,), claims=(claim,)))
    assert [(r.claim, r.workloads) for r in found] == is_regretted * [("new", ("default/api-6d", "default/web-7c"))]


def test_a_regret_is_written_on_the_version_that_was_read():
    """All workloads that moved: which of them is left over is chance."""
    command = a_command("c")
    [action] = record_reversed(
        find_reversed(a_snapshot(node_disruptions=(command,), claims=(an_opened_claim("default/web-7c-z"),)))
    ).actions
    assert isinstance(action, PatchObject)
    assert action.patch == {"status": {"reprovisionedWorkloads": ["default/api-6d", "default/web-7c"]}}
    assert (action.ref.uid, action.resource_version, action.subresource) == ("uid-c", "7", "status")


# -- damping --------------------------------------------------------------------------------------------------------


def held_for(*ends: datetime, now: datetime = NOW, **changes) -> bool:
    """Whether a node with a pod of `default/web-7c` has to wait after commands that were regretted ended so."""
    regretted = {"reprovisioned_workloads": ("default/api-6d", "default/web-7c"), **changes}
    history = tuple(a_command(f"c{index}", ended=end, **regretted) for index, end in enumerate(ends))
    return bool(
        ConsolidationBackoff.from_history(a_snapshot(node_disruptions=history, now=now)).why_not(
            a_candidate("default/web-7c-q")
        )
    )


def test_the_wait_doubles_each_time_up_to_an_hour():
    """Counted from the last of them, over six hours."""
    long_ago = [ago(hours=4, minutes=minute) for minute in range(9)]
    for times, minutes in enumerate((2, 4, 8, 16, 32, 60, 60, 60), start=1):
        ends = (NOW, *long_ago[: times - 1])
        assert held_for(*ends, now=NOW + timedelta(minutes=minutes, seconds=-1)), times
        assert not held_for(*ends, now=NOW + timedelta(minutes=minutes)), times
    forgotten = (NOW, *(ago(hours=7) for _ in range(5)))
    assert not held_for(*forgotten, now=NOW + timedelta(minutes=2))


def test_what_is_seen_just_now_counts_before_it_is_written():
    """A run that finds a regret does not propose the same again."""
    snapshot = a_snapshot(node_disruptions=(a_command("c"),), claims=(an_opened_claim("default/web-7c-z"),))
    assert ConsolidationBackoff.from_history(snapshot).workloads == {}
    assert "default/web-7c" in ConsolidationBackoff.from_history(snapshot, find_reversed(snapshot)).workloads


def test_only_nodes_with_pods_of_those_workloads_wait_and_are_told_why():
    """Another workload's are as free as before."""
    backoff = ConsolidationBackoff.from_history(
        a_snapshot(node_disruptions=(a_command("c", reprovisioned_workloads=("default/web-7c",)),))
    )
    assert backoff.why_not(a_candidate("default/other-7c-q", "default/api-6d-q")) == ""
    why = backoff.why_not(a_candidate("default/other-7c-q", "default/web-7c-q"))
    assert why.startswith("Consolidation backs off until 21:02:00 UTC, as it had no effect once in 6 hours")
    assert "default/web-7c" in why


def test_after_replacements_that_never_came_nothing_of_their_pool_is_opened():
    """Nodes may still be deleted, or replaced by those of another pool."""
    pools = (builders.a_pool(), builders.a_pool("other"))
    undone = a_command("c", phase="RolledBack")
    backoff = ConsolidationBackoff.from_history(a_snapshot(node_disruptions=(undone,), node_pools=pools))

    held = backoff.checked(a_replacing_command("default"))
    assert held.candidates == ()
    assert "replacements of NodePool default were not initialized" in held.why_not
    assert backoff.checked(a_replacing_command("other")) == a_replacing_command("other")
    deletion = Command(reason=DisruptionReason.UNDERUTILIZED, candidates=(a_candidate("default/web-7c-q"),))
    assert backoff.checked(deletion) is deletion


@pytest.mark.parametrize("changes", [{"reason": "Interrupted"}, {"phase": "Rejected"}, {"phase": "Succeeded"}])
def test_commands_that_are_not_consolidation_or_came_to_their_end_hold_nothing_back(changes):
    """A rebalance whose replacement never came says nothing about what pays."""
    command = a_command("c", **{"phase": "RolledBack", **changes})
    backoff = ConsolidationBackoff.from_history(
        a_snapshot(node_disruptions=(command,), node_pools=(builders.a_pool(),))
    )
    assert backoff == ConsolidationBackoff(workloads={}, node_pools={})


def test_commands_in_vain_are_not_forgotten_for_those_that_came_to_something():
    """A hundred of each are kept: a busy hour of deleting empty nodes must not end all waiting."""
    busy = [a_command(f"b{index:03}", ended=ago(seconds=index)) for index in range(101)]
    regretted = a_command("regretted", ended=ago(hours=1), reprovisioned_workloads=("default/web-7c",))
    plan = delete_old_commands(a_snapshot(node_disruptions=(*busy, regretted)))
    assert [action.ref.name for action in plan.actions] == ["b100"]
