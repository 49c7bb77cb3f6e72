"""`journeyman solve` reads scenario files and prints one line of JSON for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from journeyman.cli.scenario import parse_scenario, read_scenario
from journeyman.cli.solve import answer, solve
from journeyman.errors import ConfigurationError
from tests.helpers.builders import pod_body, pool_body
from tests.helpers.devices import exactly, gpus, slice_spec

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "scenario.json"
TYPE = "node.kubernetes.io/instance-type"
ZONE, CAPACITY_TYPE = "topology.kubernetes.io/zone", "karpenter.sh/capacity-type"


def a_scenario(*objects, name="tiny"):
    """Return a scenario with one instance type in one zone."""
    offering = {
        "price": 0.1,
        "requirements": [
            {"key": ZONE, "operator": "In", "values": ["a"]},
            {"key": CAPACITY_TYPE, "operator": "In", "values": ["spot"]},
        ],
    }
    instance_type = {
        "name": "m.small",
        "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}],
        "offerings": [offering, {**offering, "price": 0.01, "available": False}],
        "capacity": {"cpu": "2", "memory": "8Gi", "pods": "10"},
        "overhead": {"cpu": "100m"},
    }
    return {"name": name, "instanceTypes": [instance_type], "objects": list(objects)}


def a_pending_pod(name="p", **kwargs):
    """Return a pod as in scenario files, without a status."""
    body = pod_body(name, **kwargs)
    del body["status"]
    return body


def test_example_schedules_what_fits_and_explains_the_rest():
    """The scenario that the help names is valid."""
    found = answer(read_scenario(EXAMPLE))

    assert len(found["nodeClaims"]) == 3
    assert list(found["smallestChanges"]) == list(found["errors"]) == ["default/training"]


def test_answer_has_the_keys_that_comparisons_read():
    """Pods without a node and a status count as unschedulable; unavailable offerings are not launched."""
    found = answer(parse_scenario(json.dumps(a_scenario(pool_body(), a_pending_pod())).encode()))

    assert found["nodeClaims"] == [
        {
            "nodePool": "default",
            "pods": ["default/p"],
            "instanceTypes": ["m.small"],
            "cheapestOffering": "m.small/a/spot",
            "price": 0.1,
            "requirements": found["nodeClaims"][0]["requirements"],
        }
    ]
    assert {"name", "existing", "errors", "price", "seconds"} <= found.keys()
    assert (found["price"], found["errors"]) == (0.1, {})
    assert found["seconds"] > 0


def test_instance_types_may_bring_devices():
    """`resourceSlices` of a type serve ResourceClaims once `ignoreDRARequests` is false."""
    claim = {
        "kind": "ResourceClaim",
        "metadata": {"name": "gpu", "namespace": "default"},
        "spec": {"devices": {"requests": [exactly()]}},
    }
    device_class = {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
    pod = a_pending_pod(spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]})
    scenario = a_scenario(pool_body(), claim, device_class, pod)
    (plain,) = scenario["instanceTypes"]
    scenario["instanceTypes"] = [
        {
            **plain,
            "name": name,
            "resourceSlices": slices,
            "requirements": [{"key": TYPE, "operator": "In", "values": [name]}],
        }
        for name, slices in (("m.small", []), ("g.small", [slice_spec(gpus(1))]))
    ]

    def answered(**options):
        return answer(parse_scenario(json.dumps({**scenario, "options": options}).encode()))

    assert [c["instanceTypes"] for c in answered(ignoreDRARequests=False)["nodeClaims"]] == [["g.small"]]
    assert "IGNORE_DRA_REQUESTS" in answered()["errors"]["default/p"]


def test_invalid_nodepool_is_reported_and_the_others_are_used():
    """One NodePool is invalid, so the pod gets a node of the other."""
    bad = pool_body("bad", spec={"weight": 1000})

    scenario = parse_scenario(json.dumps(a_scenario(bad, pool_body(), a_pending_pod())).encode())

    assert [s.name for s in scenario.snapshot.invalid_objects] == ["bad"]
    assert [c["nodePool"] for c in answer(scenario)["nodeClaims"]] == ["default"]


def test_each_file_gives_a_line(tmp_path, capsys):
    """The lines are in the order of the files."""
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_text(json.dumps(a_scenario(pool_body(), a_pending_pod(), name=path.stem)))

    solve(paths)

    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == ["a", "b"]


@pytest.mark.parametrize("text", ["{", "[]", '{"instanceTypes": 3}', '{"objects": [{"kind": "Pod", "spec": 1}]}'])
def test_invalid_scenario_file_is_refused_by_name(tmp_path, text):
    """The one error names the file and the problem."""
    path = tmp_path / "broken.json"
    path.write_text(text)

    with pytest.raises(ConfigurationError, match="scenario"):
        read_scenario(path)


def test_a_missing_file_is_named(tmp_path):
    """The error has the operating system's reason."""
    with pytest.raises(ConfigurationError, match=r"nowhere\.json"):
        read_scenario(tmp_path / "nowhere.json")


def an_empty_node():
    """Return the NodeClaim and the Node of an initialized node without pods."""
    labels = {
        "karpenter.sh/nodepool": "default",
        "karpenter.sh/registered": "true",
        "karpenter.sh/initialized": "true",
        "node.kubernetes.io/instance-type": "m.small",
        ZONE: "a",
        CAPACITY_TYPE: "spot",
    }
    size = {"cpu": "2", "memory": "8Gi", "pods": "10"}
    since = "2026-01-05T10:00:00Z"
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": since}
        for kind in ("Launched", "Registered", "Initialized", "Consolidatable")
    ]
    claim = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": "n1", "labels": labels, "creationTimestamp": since},
        "spec": {"nodeClassRef": {"group": "g", "kind": "K", "name": "default"}, "requirements": []},
        "status": {"providerID": "p://n1", "nodeName": "n1", "conditions": conditions, "allocatable": size},
    }
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "labels": labels, "creationTimestamp": since},
        "spec": {"providerID": "p://n1"},
        "status": {"allocatable": size, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return claim, node


EMPTINESS = {
    "method": "*disruption.Emptiness",
    "reason": "Empty",
    "decision": "delete",
    "candidates": ["n1"],
    "replacements": [],
}


def test_disrupt_option_returns_the_first_disruption_command():
    """A node without pods is disrupted, under Karpenter's name of the method; without the option no command is computed."""
    scenario = a_scenario(pool_body(), *an_empty_node()) | {"now": "2026-01-05T12:00:00Z"}

    asked = answer(parse_scenario(json.dumps({**scenario, "options": {"disrupt": True}}).encode()))
    unasked = answer(parse_scenario(json.dumps(scenario).encode()))

    (found,) = asked["commands"]
    assert found == {**EMPTINESS, "saving": found["saving"]}
    assert found["saving"] > 0
    assert "commands" not in unasked


def test_every_method_option_returns_candidates_and_budgets_of_each_method():
    """An empty node is a candidate of emptiness, and not of consolidation."""
    scenario = a_scenario(pool_body(), *an_empty_node()) | {"now": "2026-01-05T12:00:00Z"}

    options = {"disrupt": True, "everyMethod": True}
    found = answer(parse_scenario(json.dumps({**scenario, "options": options}).encode()))

    by_method = {entry["method"]: entry for entry in found["methods"]}
    emptiness, single_node = by_method["*disruption.Emptiness"], by_method["*disruption.SingleNodeConsolidation"]
    assert [(c["name"], c["cost"]) for c in emptiness["candidates"]] == [("n1", 1.0)]
    assert emptiness["budgets"] == {"default": 1}
    assert [c["candidates"] for c in emptiness["commands"]] == [["n1"]]
    assert (single_node["candidates"], single_node["commands"]) == ([], [])
