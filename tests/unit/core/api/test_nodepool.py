"""NodePools: defaults, validation and messages."""

import copy

import pytest

from journeyman.core.api import labels, objects
from journeyman.core.api.model import parse
from journeyman.core.api.nodepool import Budget, NodePool
from journeyman.errors import ConfigurationError, InvalidObjectError

MINIMAL = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "default"},
    "spec": {
        "template": {
            "spec": {
                "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}],
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
            }
        }
    },
}


def changed(path, value):
    """The minimal manifest with one field set; None removes it."""
    raw = copy.deepcopy(MINIMAL)
    *parents, last = path.split(".")
    at = raw
    for name in parents:
        at = at[int(name)] if name.isdigit() else at.setdefault(name, {})
    at[int(last) if last.isdigit() else last] = value
    return raw


def test_minimal_nodepool_has_karpenters_defaults():
    """Nodes expire after 720 hours, the budget is 10 %, and consolidation does not wait."""
    pool = parse(NodePool, MINIMAL)
    assert pool.spec.template.spec.expire_after == "720h"
    assert pool.spec.template.spec.termination_grace_period is None
    assert pool.spec.disruption.consolidate_after == "0s"
    assert pool.spec.disruption.consolidation_policy == "WhenEmptyOrUnderutilized"
    assert pool.spec.disruption.budgets == (Budget(nodes="10%"),)
    assert (pool.spec.weight, pool.spec.replicas, pool.spec.limits) == (0, None, {})
    assert pool.packing == "price"


def test_nested_fields_are_the_structs_of_the_core():
    """They are requirements, taints, reference, metadata and conditions."""
    raw = changed(
        "spec.template.spec.taints", [{"key": "gpu", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}]
    )
    raw["status"] = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    pool = parse(NodePool, raw)
    spec = pool.spec.template.spec
    assert spec.requirements == (
        objects.NodeSelectorRequirement(key="kubernetes.io/arch", operator="In", values=("amd64",)),
    )
    assert spec.taints == (objects.Taint(key="gpu", effect="NoSchedule"),)
    assert spec.node_class_ref == objects.NodeClassReference(
        group="karpenter.k8s.aws", kind="EC2NodeClass", name="default"
    )
    assert pool.metadata == objects.ObjectMeta(name="default")
    assert objects.is_true(pool.status.conditions, "Ready")


def test_full_nodepool_is_unchanged_by_the_round_trip():
    """The model reads what it writes."""
    raw = changed("spec.limits", {"cpu": 1000, "memory": "1000Gi", "nodes": "10"})
    raw["spec"]["weight"] = 10
    raw["spec"]["template"]["metadata"] = {"labels": {"team": "a"}, "annotations": {"example.com/owner": "b"}}
    raw["spec"]["template"]["spec"]["requirements"].append(
        {"key": "karpenter.k8s.aws/instance-family", "operator": "Exists", "minValues": 5}
    )
    raw["spec"]["disruption"] = {
        "consolidateAfter": "Never",
        "budgets": [{"nodes": "0", "schedule": "0 9 * * mon-fri", "duration": "8h", "reasons": ["Drifted"]}],
    }
    pool = parse(NodePool, raw)
    assert parse(NodePool, pool.to_wire()) == pool
    minimal = parse(NodePool, MINIMAL)
    assert parse(NodePool, minimal.to_wire()) == minimal
    assert pool.spec.limit_amounts == {"cpu": 1_000_000, "memory": 1000 * 2**30, "nodes": 10}
    assert pool.spec.template.spec.requirements[1].min_values == 5


def test_unknown_fields_and_nulls_are_ignored():
    """The API server ignores them, too."""
    raw = changed("spec.template.spec.novelty", {"x": 1})
    raw["spec"]["limits"] = None
    raw["metadata"]["labels"] = None
    assert parse(NodePool, raw) == parse(NodePool, MINIMAL)


def test_snake_case_and_camel_case_are_accepted():
    """Python code uses the former, JSON the latter."""
    assert Budget(nodes="5", schedule="@daily", duration="1h") == Budget.model_validate(
        {"nodes": "5", "schedule": "@daily", "duration": "1h"}
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.disruption.consolidateAfter", "1h30m"),
        ("spec.disruption.consolidationPolicy", "Balanced"),
        ("spec.disruption.budgets", [{"nodes": "100%"}, {"nodes": "0"}]),
        ("spec.disruption.budgets", [{"nodes": "5", "schedule": "@weekly", "duration": "8h0m0s"}]),
        ("spec.template.spec.expireAfter", "Never"),
        ("spec.template.spec.terminationGracePeriod", "0s"),
        ("spec.template.spec.requirements", []),
        ("spec.template.spec.requirements.0.operator", "NotIn"),
        ("spec.template.spec.requirements.0", {"key": "example.com/team", "operator": "DoesNotExist"}),
        (
            "spec.template.spec.requirements.0",
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]},
        ),
        (
            "spec.template.spec.requirements.0",
            {"key": "karpenter.k8s.aws/instance-cpu", "operator": "Gte", "values": ["4"]},
        ),
        (
            "spec.template.spec.requirements.0",
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "bogus"]},
        ),
        ("spec.template.metadata.labels", {"node.kubernetes.io/role": "x", "karpenter.sh/capacity-type": "spot"}),
        ("spec.template.spec.taints", [{"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoSchedule"}]),
        ("spec.replicas", 0),
    ],
)
def test_nodepool_that_karpenter_accepts_is_accepted(path, value):
    """The values are at the limits of the rules."""
    assert parse(NodePool, changed(path, value)).metadata.name == "default"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("apiVersion", "karpenter.sh/v1beta1", r"apiVersion: Input should be 'karpenter\.sh/v1'"),
        ("spec", None, r"spec: required, but missing"),
        ("spec.template.spec.nodeClassRef", None, r"spec\.template\.spec\.nodeClassRef: required, but missing"),
        ("spec.template.spec.nodeClassRef.group", "a/b", r"nodeClassRef\.group: String should match"),
        ("spec.template.spec.nodeClassRef.name", "", r"nodeClassRef\.name: .*at least 1 character"),
        ("spec.disruption.consolidateAfter", "5d", r"spec\.disruption\.consolidateAfter: '5d' is not a duration"),
        ("spec.template.spec.terminationGracePeriod", "Never", r"'Never' is not a duration"),
        ("spec.disruption.consolidationPolicy", "Always", r"consolidationPolicy: .*'Balanced' \(given: 'Always'\)"),
        ("spec.disruption.budgets", [{"nodes": "101%"}], r"budgets\[0\]\.nodes: '101%' is neither"),
        ("spec.disruption.budgets", [{"nodes": "-5"}], r"budgets\[0\]\.nodes: '-5' is neither"),
        ("spec.disruption.budgets", [{"schedule": "@daily"}], r"'schedule' must be set with 'duration'"),
        ("spec.disruption.budgets", [{"duration": "1h"}], r"'schedule' must be set with 'duration'"),
        ("spec.disruption.budgets", [{"schedule": "@daily", "duration": "30s"}], r"'30s' is not a budget's duration"),
        ("spec.disruption.budgets", [{"schedule": "* * * *", "duration": "1h"}], r"budgets\[0\]\.schedule: .*pattern"),
        ("spec.disruption.budgets", [{"reasons": ["Expired"]}], r"budgets\[0\]\.reasons\[0\]: Input should be"),
        ("spec.disruption.budgets", [{}] * 51, r"spec\.disruption\.budgets: .*at most 50"),
        ("spec.limits", {"cpu": "ten"}, r"spec\.limits\.cpu: 'ten' is not a quantity"),
        ("spec.weight", 0, r"spec\.weight: .*greater than or equal to 1 \(given: 0\)"),
        ("spec.weight", 101, r"spec\.weight: .*less than or equal to 100"),
        ("spec.weight", "10", r"spec\.weight: Input should be a valid integer"),
        ("spec.replicas", -1, r"spec\.replicas: .*greater than or equal to 0"),
        ("spec.template.spec.requirements.0.operator", "Equals", r"requirements\[0\]\.operator: Input should be 'In'"),
        ("spec.template.spec.requirements.0.values", [], r"requirements\[0\]: .*operator In must have a value"),
        ("spec.template.spec.requirements.0.values", ["a b"], r"values\[0\]: 'a b' is not a label value"),
        ("spec.template.spec.requirements.0.minValues", 2, r"at least minValues \(2\) values"),
        ("spec.template.spec.requirements.0.minValues", 51, r"minValues: .*less than or equal to 50"),
        ("spec.template.spec.requirements.0.key", "karpenter.sh/nodepool", r"set by the NodePool itself; remove it"),
        ("spec.template.spec.requirements.0.key", "kubernetes.io/hostname", r"'kubernetes.io/hostname' is reserved"),
        ("spec.template.spec.requirements.0.key", "karpenter.sh/custom", r"'karpenter.sh/custom' is reserved"),
        ("spec.template.spec.requirements.0.key", "x.karpenter.k8s.aws/y", r"'x.karpenter.k8s.aws/y' is reserved"),
        ("spec.template.spec.requirements.0.key", "karpenter.k8s.alibabacloud/y", r"alibabacloud/y' is reserved"),
        ("spec.template.spec.requirements.0.key", "karpenter.alibabacloud.com/instance-cpu", r"is reserved"),
        ("spec.template.spec.requirements.0.key", "not a key", r"'not a key' is not a label key"),
        (
            "spec.template.spec.requirements.0",
            {"key": "a", "operator": "Gt", "values": ["-1"]},
            r"values\[0\]: '-1' is not a label value",
        ),
        (
            "spec.template.spec.requirements.0",
            {"key": "a", "operator": "Lte", "values": ["1", "2"]},
            r"operator Lte must have a single whole number",
        ),
        (
            "spec.template.spec.requirements.0",
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["bogus"]},
            r"must name one of on-demand, reserved, spot",
        ),
        ("spec.template.spec.requirements", [{"key": "a", "operator": "Exists"}] * 101, r"requirements: .*at most 100"),
        ("spec.template.metadata.labels", {"karpenter.sh/nodepool": "x"}, r"metadata\.labels: .*set by the NodePool"),
        ("spec.template.metadata.labels", {"team": "a b"}, r"metadata\.labels: 'a b' is not a label value"),
        ("spec.template.spec.taints", [{"key": "a", "effect": "Evict"}], r"taints\[0\]\.effect: Input should be"),
        (
            "spec.template.spec.startupTaints",
            [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "value": "x", "effect": "NoSchedule"}],
            r"taint a:NoSchedule appears 2 times",
        ),
        ("metadata.name", 5, r"NodePool 5 does not validate: metadata: Expected `str`, got `int`"),
    ],
)
def test_nodepool_that_karpenter_rejects_is_rejected_with_a_message(path, value, words):
    """The message has object, field, error and what to do."""
    with pytest.raises(InvalidObjectError, match=words) as caught:
        parse(NodePool, changed(path, value))
    assert "\n" not in caught.value.message
    assert caught.value.message.endswith("Correct it and apply it again")
    assert caught.value.context["kind"] == "NodePool"


def test_static_nodepool_rejects_weight_and_limits_other_than_nodes():
    """Its size does not depend on pods."""
    raw = changed("spec.replicas", 3)
    raw["spec"]["limits"] = {"nodes": "5"}
    assert parse(NodePool, raw).spec.static
    raw["spec"]["limits"]["cpu"] = "10"
    with pytest.raises(InvalidObjectError, match=r"only 'limits.nodes' is supported"):
        parse(NodePool, raw)
    raw["spec"]["limits"] = {}
    raw["spec"]["weight"] = 5
    with pytest.raises(InvalidObjectError, match=r"'weight' is not supported"):
        parse(NodePool, raw)


def test_message_shows_the_first_errors_and_counts_the_rest():
    """The message is one line."""
    requirement = {"key": "a", "operator": "Nope"}
    with pytest.raises(InvalidObjectError, match=r"requirements\[2\].*; and 2 more\. Correct") as caught:
        parse(NodePool, changed("spec.template.spec.requirements", [requirement] * 5))
    assert "requirements[3]" not in caught.value.message


def test_value_that_is_not_an_object_is_rejected():
    """The message says that it has no name."""
    with pytest.raises(InvalidObjectError, match=r"NodePool \(without a name\) does not validate"):
        parse(NodePool, {"spec": []})


@pytest.mark.parametrize(("text", "price"), [("0.05", 0.05), ("1e-3", 0.001), ("0", 0.0)])
def test_node_surcharge_is_read_from_the_annotation(text, price):
    """It is in the provider's currency per hour, and 0 if unset."""
    assert parse(NodePool, changed("metadata.annotations", {labels.NODE_SURCHARGE: text})).node_surcharge == price
    assert parse(NodePool, changed("metadata.annotations", {})).node_surcharge == 0.0


@pytest.mark.parametrize("text", ["", "much", "-0.1", "inf", "nan", "0.05$"])
def test_invalid_node_surcharge_names_the_annotation(text):
    """The NodePool itself stays valid."""
    pool = parse(NodePool, changed("metadata.annotations", {labels.NODE_SURCHARGE: text}))
    with pytest.raises(ConfigurationError, match="not a price per hour"):
        assert pool.node_surcharge
