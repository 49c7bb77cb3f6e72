"""Which pods a decision is about."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import PodDisruptionBudget
from journeyman.core.state.pod_predicates import (
    is_currently_reschedulable,
    is_disruptable,
    is_fully_blocked,
    is_provisionable,
    is_reschedulable,
)
from tests.helpers.builders import NOW, a_pod, ago, stamp


def owned_by(kind, api_version="apps/v1"):
    """Metadata of a pod with that owner."""
    return {"ownerReferences": [{"apiVersion": api_version, "kind": kind, "name": "o", "uid": "o"}]}


def a_pdb(name="pdb", *, app="web", **spec):
    """A budget over the pods of an app."""
    body = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}, **spec},
    }
    return msgspec.convert(body, PodDisruptionBudget)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"node": "n"}, False),
        ({"status": {"nominatedNodeName": "n"}}, False),
        ({"status": {"phase": "Succeeded"}}, False),
        ({"metadata": {"deletionTimestamp": stamp(NOW)}}, False),
        ({"metadata": owned_by("DaemonSet")}, False),
        ({"metadata": owned_by("Node", "v1")}, False),
        ({"metadata": owned_by("ReplicaSet")}, True),
        ({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}}, False),
    ],
)
def test_only_pods_that_a_new_node_may_help_are_provisionable(changes, expected):
    """Bound, nominated, ended, leaving, daemon, static and gated pods are not."""
    assert is_provisionable(a_pod("p", **changes)) is expected


def test_a_terminating_stateful_set_pod_needs_a_new_place():
    """Its successor keeps its name, and will come."""
    going = {"deletionTimestamp": stamp(NOW)}

    assert is_reschedulable(a_pod("p", node="n", metadata=going | owned_by("StatefulSet")))
    assert not is_reschedulable(a_pod("p", node="n", metadata=going | owned_by("ReplicaSet")))


@pytest.mark.parametrize(
    ("value", "started", "expected"),
    [
        ("true", 1, False),
        ("false", 1, True),
        ("2h", 1, False),
        ("30m", 1, True),
        ("-5m", 1, True),
        ("soon", 1, True),
        ("", 1, True),
    ],
)
def test_do_not_disrupt_protects_for_ever_or_for_a_time_from_the_start(value, started, expected):
    """Values that are neither "true" nor a positive duration protect nothing."""
    pod = a_pod(
        "p",
        node="n",
        metadata={"annotations": {labels.DO_NOT_DISRUPT: value}},
        status={"startTime": stamp(ago(hours=started))},
    )

    assert is_disruptable(pod, NOW) is expected


@pytest.mark.parametrize(("value", "expected"), [("2h", False), ("soon", True)])
def test_a_pod_that_has_not_started_has_its_protected_time_before_it(value, expected):
    """Nothing says how long it has run, so it is not cut short."""
    pod = a_pod("p", metadata={"annotations": {labels.DO_NOT_DISRUPT: value}})
    assert is_disruptable(pod, NOW) is expected


@pytest.mark.parametrize(
    ("pdbs", "blocked"),
    [
        ([a_pdb(maxUnavailable=0)], True),
        ([a_pdb(maxUnavailable="0%")], True),
        ([a_pdb(minAvailable="100%")], True),
        ([a_pdb(minAvailable=1)], False),
        ([a_pdb(maxUnavailable=0, app="other")], False),
        ([a_pdb("a", maxUnavailable=1), a_pdb("b", maxUnavailable=1)], True),
        ([a_pdb(maxUnavailable=0, unhealthyPodEvictionPolicy="AlwaysAllow")], False),
    ],
)
def test_budgets_that_never_allow_an_eviction_block_a_pod(pdbs, blocked):
    """None at all allowed, or several budgets on one pod; unhealthy pods may be exempt."""
    pod = a_pod("p", node="n")

    assert is_fully_blocked(pod, pdbs) is blocked
    assert is_currently_reschedulable(pod, pdbs, NOW + timedelta(0)) is not blocked
