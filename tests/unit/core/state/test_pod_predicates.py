"""Pod predicates: which pods are provisionable, reschedulable, disruptable, or blocked by PodDisruptionBudgets."""

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
from tests.helpers.builders import NOW, a_pod, ago, condition, stamp


def owned_by(kind, api_version="apps/v1"):
    """Pod metadata with an ownerReference of this kind."""
    return {"ownerReferences": [{"apiVersion": api_version, "kind": kind, "name": "o", "uid": "o"}]}


def a_pdb(name="pdb", *, app="web", **spec):
    """A PodDisruptionBudget for the pods of an app."""
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
def test_pod_is_provisionable_only_when_a_new_node_may_help(changes, expected):
    """Bound, nominated, completed, terminating, DaemonSet, static and scheduling-gated pods are not."""
    assert is_provisionable(a_pod("p", **changes)) is expected


def test_terminating_statefulset_pod_is_reschedulable():
    """The StatefulSet controller creates another pod of the same name."""
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
        ("1.5h", 1, False),
        (".5h", 1, True),
        ("+2h", 1, False),
        ("7200000000us", 1, False),
    ],
)
def test_do_not_disrupt_protects_a_pod_forever_or_for_a_duration_from_its_start(value, started, expected):
    """A value that is neither "true" nor a positive duration does not protect the pod."""
    pod = a_pod(
        "p",
        node="n",
        metadata={"annotations": {labels.DO_NOT_DISRUPT: value}},
        status={"startTime": stamp(ago(hours=started))},
    )

    assert is_disruptable(pod, NOW) is expected


@pytest.mark.parametrize(("value", "expected"), [("2h", False), ("soon", True)])
def test_do_not_disrupt_duration_protects_a_pod_that_has_not_started(value, expected):
    """The duration starts with the pod; an invalid duration does not protect the pod."""
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
def test_pod_is_fully_blocked_when_its_pdbs_never_allow_an_eviction(pdbs, blocked):
    """One that allows no eviction, or several for one pod, block it; a policy may exempt unhealthy pods."""
    pod = a_pod("p", node="n", status={"conditions": [condition("Ready", status="False")]})

    assert is_fully_blocked(pod, pdbs, NOW) is blocked
    assert is_currently_reschedulable(pod, pdbs, NOW + timedelta(0)) is not blocked
