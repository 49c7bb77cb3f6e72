"""Consolidation back-off: finds and stores reversed consolidations, and backs off longer after each."""

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
    BackoffEntry,
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
    """A command that moved a pod of `default/api-6d` and of `default/web-7c`, and took two minutes."""
    moved = DisruptionCandidate(node_claim="old", node_claim_uid="u", pods=("default/web-7c-x1", "default/api-6d-y2"))
    spec = NodeDisruptionSpec(
        reason=reason,
        decision="replace",
        method="single-node",
        candidates=(moved,),
        replacements=(DisruptionReplacement(name=replacement_name(name, "default", 0)),),
    )
    started = (ended or NOW) - timedelta(minutes=2)
    disruption_status = NodeDisruptionStatus(phase=phase, started_at=started, finished_at=ended, **status)
    return NodeDisruption(
        metadata=ObjectMeta(name=name, uid=f"uid-{name}", resource_version="7"), spec=spec, status=disruption_status
    )


def a_created_claim(*pods: str, at: datetime = NOW, replaces: str = ""):
    """A NodeClaim that was created for these pods, or as the replacement of a command."""
    annotations = {labels.PLANNED_PODS: ",".join(pods), **({labels.DISRUPTION: replaces} if replaces else {})}
    return builders.a_claim("new", metadata={"annotations": annotations, "creationTimestamp": stamp(at)})


def a_candidate(*pods: str) -> Candidate:
    """A node with these pods."""
    return Candidate(
        nodeclaim=NodeClaimName("n"), nodeclaim_uid="u", node="node-n", node_uid="v", nodepool=NodePoolName("default"),
        instance_type="m", zone="a", capacity_type=labels.ON_DEMAND, price=1.0, reschedulable_pods=pods,
    )  # fmt: skip


def a_replacing_command(node_pool: str) -> Command:
    """A command with a replacement of this NodePool, which moves a pod of another workload."""
    planned = PlannedClaim(
        node_pool=node_pool, pods=(), instance_types=("s",), requirements=(), requests={},
        offering=("s", "a", labels.ON_DEMAND), price=0.5,
    )  # fmt: skip
    reason = DisruptionReason.UNDERUTILIZED
    return Command(reason=reason, candidates=(a_candidate("default/other-1"),), replacements=(planned,))


# -- reversed consolidations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("default/web-6d4cf56db6-x7k2p", "default/web-6d4cf56db6"),
        ("default/db-0", "default/db"),
        ("my-team/alone", "my-team/alone"),
    ],
)
def test_workload_is_derived_from_the_pod_name(pod, workload):
    """Dashes in the namespace are not part of the pod name."""
    assert workload_of(pod) == workload


@pytest.mark.parametrize(
    ("command", "claim", "is_reversed"),
    [
        (a_command("c"), a_created_claim("default/web-7c-z9"), True),
        (a_command("c", ended=None, phase="Replacing"), a_created_claim("default/web-7c-z9"), True),
        (a_command("c", ended=ago(minutes=9)), a_created_claim("default/web-7c-z9"), True),
        (a_command("c", ended=ago(minutes=11)), a_created_claim("default/web-7c-z9"), False),
        (a_command("c"), a_created_claim("default/web-7c-z9", at=ago(minutes=3)), False),
        (a_command("c"), a_created_claim("default/web-8e-z9"), False),
        (a_command("c"), a_created_claim("other/web-7c-z9"), False),
        (a_command("c"), a_created_claim("default/web-7c-z9", replaces="c"), False),
        (a_command("c", phase="RolledBack"), a_created_claim("default/web-7c-z9"), False),
        (a_command("c", phase="Rejected"), a_created_claim("default/web-7c-z9"), False),
        (a_command("c", reason="Drifted"), a_created_claim("default/web-7c-z9"), False),
        (a_command("c", reprovisioned_workloads=("default/web-7c",)), a_created_claim("default/web-7c-z9"), False),
    ],
    ids=[
        "at-its-end", "executing", "soon-after", "late", "before-it", "another-workload", "another-namespace",
        "its-replacement", "rolled-back", "rejected", "another-method", "stored",
    ],
)  # fmt: skip
def test_consolidation_is_reversed_when_a_nodeclaim_is_created_for_its_moved_workloads(command, claim, is_reversed):
    """Pods are compared by workload, because new pods have other names."""
    found = find_reversed(a_snapshot(node_disruptions=(command,), claims=(claim,)))
    assert [(r.claim, r.workloads) for r in found] == is_reversed * [("new", ("default/api-6d", "default/web-7c"))]


def test_reversed_consolidation_stores_all_moved_workloads():
    """The patch has the resource version that was read."""
    command = a_command("c")
    [action] = record_reversed(
        find_reversed(a_snapshot(node_disruptions=(command,), claims=(a_created_claim("default/web-7c-z"),)))
    ).actions
    assert isinstance(action, PatchObject)
    assert action.patch == {"status": {"reprovisionedWorkloads": ["default/api-6d", "default/web-7c"]}}
    assert (action.ref.uid, action.resource_version, action.subresource) == ("uid-c", "7", "status")


# -- back-off --------------------------------------------------------------------------------------------------------


def backs_off_after(*ends: datetime, now: datetime = NOW, **changes) -> bool:
    """Whether consolidation backs off from `default/web-7c` after reversed commands with these ends."""
    reversed_ = {"reprovisioned_workloads": ("default/api-6d", "default/web-7c"), **changes}
    history = tuple(a_command(f"c{index}", ended=end, **reversed_) for index, end in enumerate(ends))
    return bool(
        ConsolidationBackoff.from_history(a_snapshot(node_disruptions=history, now=now)).why_not(
            a_candidate("default/web-7c-q")
        )
    )


def test_backoff_doubles_with_each_reversed_consolidation_up_to_an_hour():
    """It starts at the last reversed consolidation; those of the last six hours count."""
    long_ago = [ago(hours=4, minutes=minute) for minute in range(9)]
    for times, minutes in enumerate((2, 4, 8, 16, 32, 60, 60, 60), start=1):
        ends = (NOW, *long_ago[: times - 1])
        assert backs_off_after(*ends, now=NOW + timedelta(minutes=minutes, seconds=-1)), times
        assert not backs_off_after(*ends, now=NOW + timedelta(minutes=minutes)), times
    old = (NOW, *(ago(hours=7) for _ in range(5)))
    assert not backs_off_after(*old, now=NOW + timedelta(minutes=2))


def test_reversed_consolidation_causes_backoff_before_it_is_stored():
    """The same run does not propose the same consolidation again."""
    snapshot = a_snapshot(node_disruptions=(a_command("c"),), claims=(a_created_claim("default/web-7c-z"),))
    assert ConsolidationBackoff.from_history(snapshot).workloads == {}
    assert "default/web-7c" in ConsolidationBackoff.from_history(snapshot, find_reversed(snapshot)).workloads


def test_backoff_applies_to_nodes_with_pods_of_the_workloads():
    """The reason contains the end of the back-off and the workload."""
    backoff = ConsolidationBackoff.from_history(
        a_snapshot(node_disruptions=(a_command("c", reprovisioned_workloads=("default/web-7c",)),))
    )
    assert backoff.why_not(a_candidate("default/other-7c-q", "default/api-6d-q")) == ""
    why = backoff.why_not(a_candidate("default/other-7c-q", "default/web-7c-q"))
    assert why.startswith("Consolidation backs off until 21:02:00 UTC, as it had no effect once in 6 hours")
    assert "default/web-7c" in why


def test_backoff_after_rollback_applies_to_replacements_of_the_nodepool():
    """Nodes may still be deleted, or replaced by nodes of another NodePool."""
    pools = (builders.a_pool(), builders.a_pool("other"))
    rolled_back = a_command("c", phase="RolledBack")
    backoff = ConsolidationBackoff.from_history(a_snapshot(node_disruptions=(rolled_back,), node_pools=pools))

    held = backoff.checked(a_replacing_command("default"))
    assert held.candidates == ()
    assert "replacements of NodePool default were not initialized" in held.why_not
    assert backoff.checked(a_replacing_command("other")) == a_replacing_command("other")
    deletion = Command(reason=DisruptionReason.UNDERUTILIZED, candidates=(a_candidate("default/web-7c-q"),))
    assert backoff.checked(deletion) is deletion


@pytest.mark.parametrize("changes", [{"reason": "Interrupted"}, {"phase": "Rejected"}, {"phase": "Succeeded"}])
def test_other_methods_and_successful_commands_cause_no_backoff(changes):
    """Only a consolidation that was rolled back causes a back-off of its NodePool."""
    command = a_command("c", **{"phase": "RolledBack", **changes})
    backoff = ConsolidationBackoff.from_history(
        a_snapshot(node_disruptions=(command,), node_pools=(builders.a_pool(),))
    )
    assert backoff == ConsolidationBackoff(workloads={}, node_pools={})


def test_reversed_command_is_kept_when_a_hundred_newer_commands_exist():
    """Deleting many empty nodes must not end a back-off."""
    busy = [a_command(f"b{index:03}", ended=ago(seconds=index)) for index in range(101)]
    reversed_ = a_command("reversed_", ended=ago(hours=1), reprovisioned_workloads=("default/web-7c",))
    plan = delete_old_commands(a_snapshot(node_disruptions=(*busy, reversed_)), limit=100, age=timedelta(days=1))
    assert [action.ref.name for action in plan.actions] == ["b100"]


def test_backoff_reason_names_the_workload_with_the_longest_backoff():
    """Only the two workloads whose pods run on the node count."""
    entries = {
        "default/api-6d": BackoffEntry(until=NOW + timedelta(hours=1), times=1),
        "default/web-7c": BackoffEntry(until=NOW + timedelta(hours=2), times=2),
        "default/zeta": BackoffEntry(until=NOW + timedelta(hours=9), times=4),
    }
    candidate = a_candidate("default/web-7c-x1", "default/api-6d-y2")

    assert "for pods of default/web-7c " in ConsolidationBackoff(workloads=entries, node_pools={}).why_not(candidate)
