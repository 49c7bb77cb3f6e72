"""Each intended difference from Karpenter's disruption decisions in a small cluster: it occurs, and it is explained."""

import copy

import pytest

from tests.differential.accepted_disruption_differences import ACCEPTED, explanation
from tests.differential.compare_disruption import NO_OP, Difference, compare_disruption
from tests.differential.draw.running_clusters import running_cluster
from tests.helpers.under_used_fleets import fleet

NAMES = [accepted.name for accepted in ACCEPTED]


def two_nodes():
    """Return a cluster of two large nodes: one with pods, which also fit on the other, and one without."""
    scenario = copy.deepcopy(fleet(2, 2, seed=1, types=("m5.4xlarge",)))
    is_on_second = [o["kind"] == "Pod" and o["spec"]["nodeName"] == "node-00001" for o in scenario["objects"]]
    scenario["objects"] = [o for o, gone in zip(scenario["objects"], is_on_second, strict=True) if not gone]
    scenario["options"]["everyMethod"] = True
    claim, node = (
        next(o for o in scenario["objects"] if o["kind"] == kind and o["metadata"]["name"] == "node-00001")
        for kind in ("NodeClaim", "Node")
    )
    return scenario, claim, node


def a_starting_node():
    """The empty node is registered, and not initialized."""
    scenario, claim, node = two_nodes()
    claim["status"]["conditions"] = [
        c for c in claim["status"]["conditions"] if c["type"] not in {"Initialized", "Consolidatable", "Ready"}
    ]
    node["metadata"]["labels"] = {
        k: v for k, v in node["metadata"]["labels"].items() if k != "karpenter.sh/initialized"
    }
    return scenario


CLUSTERS = {
    "starting nodes": a_starting_node,
    "nominated pods": lambda: running_cluster(142),
    "pending pods first": lambda: running_cluster(93),
    "missing replicas": lambda: running_cluster(156),
    "nothing to launch": lambda: running_cluster(352),
    "binding orders": lambda: running_cluster(38),
    "pays back": lambda: running_cluster(236),
    "more is saved": lambda: running_cluster(346),
    "preferences": lambda: running_cluster(266),
}


@pytest.mark.parametrize("name", NAMES)
def test_each_accepted_disruption_difference_occurs_and_is_explained(karpenter, name):
    """Every difference in the cluster has this explanation."""
    scenario = CLUSTERS[name]()

    differences = compare_disruption(scenario, karpenter).differences

    assert differences
    assert {explanation(scenario, found, karpenter).name for found in differences} == {name}


def test_a_saving_that_only_karpenter_finds_is_not_explained(karpenter):
    """If all nodes are initialized, a smaller saving of single-node consolidation has no explanation."""
    scenario, _, _ = two_nodes()
    found = Difference(
        kind="saving",
        method="*disruption.SingleNodeConsolidation",
        text="",
        node="node-00000",
        ours=NO_OP,
        karpenters={**NO_OP, "decision": "delete", "saving": 1.0},
    )

    assert explanation(scenario, found, karpenter) is None
