"""What kubectl gets to see of our kinds, from a real API server."""

import pytest

from tests.contract.crds.rule import BASES, with_value

pytestmark = pytest.mark.slow

DISRUPTION = {
    "reason": "Underutilized",
    "decision": "replace",
    "method": "single-node",
    "candidates": [{"nodeClaim": "default-1", "nodePool": "default", "instanceType": "m5.2xlarge"}],
    "replacements": [{"name": "default-2", "instanceType": "m5.large"}],
    "savingPerHour": "0.288",
    "explanation": "2 pods of 1 node fit on a smaller one",
}
UNAVAILABLE = {
    "instanceType": "m5.large",
    "zone": "us-east-1a",
    "capacityType": "spot",
    "until": "2026-03-01T12:03:00Z",
    "reason": "InsufficientInstanceCapacity",
    "failures": 2,
}


def shown(definition, name, *, wide=False):
    """The columns of `kubectl get`, and the object's row."""
    table = definition.table()
    columns = [c for c in table["columnDefinitions"] if wide or not c["priority"]]
    (row,) = [
        dict(zip([c["name"] for c in table["columnDefinitions"]], r["cells"], strict=True))
        for r in table["rows"]
        if r["cells"][0] == name
    ]
    return {c["name"]: row[c["name"]] for c in columns if c["name"] != "Age"}


def test_a_disruption_says_what_becomes_of_which_node_and_why(ours):
    """At a glance: reason, pool, the node's type and its replacement's, the saving, how far it is; wide: in words."""
    named = with_value(BASES["NodeDisruption"], "metadata.name", "shown")
    ours["NodeDisruption"].create({**named, "spec": DISRUPTION})
    ours["NodeDisruption"].write_status("shown", {"phase": "Executing"})
    brief = {
        "Name": "shown",
        "Reason": "Underutilized",
        "Decision": "replace",
        "NodePool": "default",
        "Type": "m5.2xlarge",
        "Replacement": "m5.large",
        "Saving/h": "0.288",
        "Phase": "Executing",
    }
    assert shown(ours["NodeDisruption"], "shown") == brief
    wide = {"Method": "single-node", "NodeClaim": "default-1", "Explanation": DISRUPTION["explanation"]}
    assert shown(ours["NodeDisruption"], "shown", wide=True) == {**brief, **wide}


def test_an_offering_state_says_what_cannot_be_had_until_when(ours):
    """The first of what is out of stock; the object has the rest."""
    ours["OfferingState"].create(with_value(BASES["OfferingState"], "metadata.name", "shown"))
    ours["OfferingState"].write_status("shown", {"unavailable": [UNAVAILABLE]})
    brief = {
        "Name": "shown",
        "NodeClass": "default",
        "Unavailable": "m5.large",
        "Capacity": "spot",
        "Zone": "us-east-1a",
        "Until": "2026-03-01T12:03:00Z",
        "Prices": None,
    }
    assert shown(ours["OfferingState"], "shown") == brief
    wide = {
        "Reason": "InsufficientInstanceCapacity",
        "Failures": 2,
        "PriceSource": None,
        "PriceError": None,
        "Kind": "EC2NodeClass",
    }
    assert shown(ours["OfferingState"], "shown", wide=True) == {**brief, **wide}


@pytest.mark.parametrize(
    ("kind", "short_names", "category"),
    [
        ("NodePool", [], "karpenter"),
        ("NodeClaim", [], "karpenter"),
        ("NodeOverlay", ["overlays"], "karpenter"),
        ("EC2NodeClass", ["ec2nc", "ec2ncs"], "karpenter"),
        ("NodeDisruption", ["disruptions"], "journeyman"),
        ("OfferingState", ["offerings"], "journeyman"),
    ],
)
def test_kinds_go_by_short_names_and_categories(kind, short_names, category, ours):
    """As the API server offers them to kubectl."""
    found = ours[kind].discovered()
    assert found.get("shortNames", []) == short_names
    assert found["categories"] == [category]
    assert not found["namespaced"]


def test_kubectl_scale_sets_the_replicas_of_a_static_pool_only(ours):
    """The scale subresource reads `status.nodes`; a pool that follows its pods has no replicas to set."""
    pools = ours["NodePool"]
    base = with_value(BASES["NodePool"], "metadata.name", "scaled")
    pools.create(with_value(base, "spec.replicas", 2))
    pools.write_status("scaled", {"nodes": 1})
    status, scale = pools.scale("scaled", 7)
    assert (status, scale["spec"], scale["status"]) == (200, {"replicas": 7}, {"replicas": 1})
    pools.create(with_value(base, "metadata.name", "dynamic"))
    status, refusal = pools.scale("dynamic", 7)
    assert status == 422
    assert "Cannot transition NodePool between static" in refusal["message"]
