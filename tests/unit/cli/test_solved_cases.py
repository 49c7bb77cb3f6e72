"""Whole scenarios whose answers were wrong once, through `journeyman solve`: resizes, DaemonSets' pods, volumes in two zones."""

from __future__ import annotations

from pathlib import Path

import pytest

from journeyman.cli.scenario import read_scenario
from journeyman.cli.solve import answer

CASES = Path(__file__).parent / "cases"


def solved(name):
    return answer(read_scenario(CASES / f"{name}.json"))


@pytest.mark.parametrize(
    ("name", "pods_of_new_nodes", "pods_of_nodes"),
    [
        pytest.param("resize-down-in-progress", [["default/new"]], {}, id="a shrinking pod holds what it held"),
        pytest.param("resize-infeasible", [], {"n1": ["default/new"]}, id="an infeasible resize holds what is allocated"),
        pytest.param("affinity-to-daemonset-full-node", [["kube-system/relay-0"]], {}, id="the DaemonSet's pod will be there"),
        pytest.param(
            "affinity-to-daemonset-pending-empty-cluster", [["kube-system/relay-0"]], {}, id="the same, on an empty cluster"
        ),
        pytest.param("antiaffinity-missing-key", [], {"n1": ["default/b"]}, id="no node has the label to keep apart over"),
    ],
)  # fmt: skip
def test_pending_pods_go_where_kube_scheduler_binds_them(name, pods_of_new_nodes, pods_of_nodes):
    """Each of these got a node too many or none."""
    found = solved(name)

    assert [claim["pods"] for claim in found["nodeClaims"]] == pods_of_new_nodes
    assert found["existing"] == pods_of_nodes
    assert found["errors"] == {}


@pytest.mark.parametrize(
    ("name", "reason", "candidates", "pods_of_replacements"),
    [
        ("resize-infeasible-drift", "Drifted", ["n1"], [["default/r"]]),
        ("resize-infeasible-consolidation", "Underutilized", ["n1", "n2"], [["default/r-0", "default/w-0"]]),
    ],
)
def test_node_of_an_infeasible_resize_is_replaced(name, reason, candidates, pods_of_replacements):
    """The pod's spec asks for more than any node has; what is allocated to it counts."""
    (command,) = solved(name)["commands"]

    assert (command["reason"], command["candidates"]) == (reason, candidates)
    assert [claim["pods"] for claim in command["replacements"]] == pods_of_replacements


def test_volumes_in_two_zones_are_named_with_their_zones():
    """The message says which of the two to move."""
    found = solved("pv-two-zones-conflict")

    assert "default/a in zone z-a and default/b in zone z-b" in found["errors"]["default/p"]
    assert found["smallestChanges"]["default/p"].startswith("move its volumes to where one node can attach all of them")
