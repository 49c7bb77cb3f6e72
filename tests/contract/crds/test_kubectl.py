"""kubectl on NodeDisruptions, OfferingStates and static NodePools, with a real API server."""

import pytest

from tests.contract.crds.rule import ACS, BASES, with_value

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
    """Return the columns of `kubectl get`, and the object's row."""
    table = definition.table()
    columns = [c for c in table["columnDefinitions"] if wide or not c["priority"]]
    (row,) = [
        dict(zip([c["name"] for c in table["columnDefinitions"]], r["cells"], strict=True))
        for r in table["rows"]
        if r["cells"][0] == name
    ]
    return {c["name"]: row[c["name"]] for c in columns if c["name"] != "Age"}


def test_kubectl_get_nodedisruption(ours):
    """It shows reason, NodePool, instance types, savings and phase, and with `-o wide` the explanation."""
    named = with_value(BASES["NodeDisruption"], "metadata.name", "shown")
    ours["NodeDisruption"].create({**named, "spec": DISRUPTION})
    ours["NodeDisruption"].write_status("shown", {"phase": "Draining"})
    brief = {
        "Name": "shown",
        "Reason": "Underutilized",
        "Decision": "replace",
        "NodePool": "default",
        "Type": "m5.2xlarge",
        "Replacement": "m5.large",
        "Saving/h": "0.288",
        "Phase": "Draining",
    }
    assert shown(ours["NodeDisruption"], "shown") == brief
    wide = {"Method": "single-node", "NodeClaim": "default-1", "Explanation": DISRUPTION["explanation"]}
    assert shown(ours["NodeDisruption"], "shown", wide=True) == {**brief, **wide}


def test_kubectl_get_offeringstate(ours):
    """It shows the first unavailable offering; the object has the others."""
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
        "Estimated": None,
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
        ("ECSNodeClass", ["ecsnc", "ecsncs"], "karpenter"),
        (ACS, [], "karpenter"),
        ("CCENodeClass", [], "karpenter"),
        ("NodeDisruption", ["disruptions"], "journeyman"),
        ("FleetPlan", ["fleets"], "journeyman"),
        ("OfferingState", ["offerings"], "journeyman"),
        ("ChurnLedger", ["churn"], "journeyman"),
    ],
)
def test_kinds_have_short_names_and_categories(kind, short_names, category, ours):
    """The API server's discovery has them."""
    found = ours[kind].discovered()
    assert found.get("shortNames", []) == short_names
    assert found["categories"] == [category]
    assert not found["namespaced"]


def test_kubectl_scale_sets_replicas_of_static_nodepools_only(ours):
    """The scale subresource reads `status.nodes`."""
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
