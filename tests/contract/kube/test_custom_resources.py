"""Custom resources: defaults, pruning, schema, CEL rules, ratcheting."""

import pytest

from journeyman.core.api.crds import DEFINITIONS, object_schema
from journeyman.core.api.objects import EC2NODECLASS, NODE_DISRUPTION, NODECLAIM, NODEPOOL, OFFERING_STATE
from journeyman.errors import InvalidError
from journeyman_simulator.apiserver import crd_expressions
from tests.contract.kube.clusters import CLASS_REF
from tests.helpers.small_clusters import table

UNCHECKED = (
    "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)
BUDGETS = "spec.disruption.budgets"
TEMPLATE = "spec.template.spec"


def a_pool(**template):
    return {"template": {"spec": {"requirements": [], "nodeClassRef": CLASS_REF, **template}}}


def budgets(*wanted):
    return {**a_pool(), "disruption": {"budgets": list(wanted)}}


def requirement(**fields):
    return a_pool(requirements=[{"key": "a", "operator": "Exists", **fields}])


OPERATORS = ", ".join(f'"{name}"' for name in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"))
STATIC = {**a_pool(), "replicas": 1, "weight": 3}
WEIGHT, NODES = "'weight' is not supported on static NodePools", "only 'limits.nodes' is supported on static NodePools"
MIN_VALUES = "requirements with 'minValues' must have at least that many values specified in the 'values' field"
NO_DURATION = (  # the error of a rule that cannot be evaluated shows the type instead of the value
    "\"string\": type conversion error from 'string' to 'google.protobuf.Duration' evaluating rule: "
    "the maximum is 2562047h47m16s"
)


def in_body(path, value, rule):
    return path, f"{value}: {path} in body {rule}"


@table(
    "spec", "causes",
    schedule_without_duration=(
        budgets({"nodes": "1", "schedule": "@daily"}), [(BUDGETS, "'schedule' must be set with 'duration'")],
    ),
    weight_of_a_static_pool=(STATIC, [("spec", WEIGHT)]),
    limits_of_a_static_pool=({**STATIC, "limits": {"cpu": "1"}}, [("spec", NODES), ("spec", WEIGHT)]),
    restricted_label=(
        requirement(key="kubernetes.io/hostname"),
        [
            (f"{TEMPLATE}.requirements[0].key",
             '"kubernetes.io/hostname": label "kubernetes.io/hostname" is restricted'),
        ],
    ),
    no_value=(
        requirement(operator="In"),
        [(f"{TEMPLATE}.requirements", "requirements with operator 'In' must have a value defined")],
    ),
    min_values=(
        requirement(operator="In", values=["x"], minValues=2), [(f"{TEMPLATE}.requirements", MIN_VALUES)],
    ),
    large_weight=({**a_pool(), "weight": 101}, [in_body("spec.weight", 101, "should be less than or equal to 100")]),
    no_weight=({**a_pool(), "weight": 0}, [in_body("spec.weight", 0, "should be greater than or equal to 1")]),
    duration=(
        a_pool(expireAfter="soon"),
        [
            in_body(f"{TEMPLATE}.expireAfter", '"soon"', "should match '^(([0-9]+(s|m|h))+|Never)$'"),
            (f"{TEMPLATE}.expireAfter", NO_DURATION),
        ],
    ),
    name_of_the_node_class=(
        a_pool(nodeClassRef={"group": "g", "kind": "K", "name": ""}),
        [in_body(f"{TEMPLATE}.nodeClassRef.name", '""', "should be at least 1 chars long")],
    ),
    replicas=(
        {**a_pool(), "replicas": -1},
        [
            in_body("spec.replicas", -1, "should be greater than or equal to 0"),
            (".spec.replicas", "-1: should be a non-negative integer"),
        ],
    ),
)  # fmt: skip
def test_invalid_value_is_refused_with_field_and_reason(cluster, spec, causes):
    """The server answers 422 with the field, scalar values, and the message of the schema or of the CEL rule."""
    assert causes_of(cluster, NODEPOOL, spec) == sorted(f"{path}: Invalid value: {why}" for path, why in causes)


def of_type(path, wanted, found):
    return f'{path}: Invalid value: "{found}": {path} in body must be of type {wanted}: "{found}"'


UNKNOWN_REASON = (
    f'{BUDGETS}[0].reasons[0]: Unsupported value: "Boredom": supported values: "Underutilized", "Empty", "Drifted"'
)


@table(
    "resource", "spec", "causes",
    no_spec=(NODEPOOL, None, ["spec: Required value"]),
    no_node_class=(
        NODEPOOL, {"template": {"spec": {"requirements": []}}}, [f"{TEMPLATE}.nodeClassRef: Required value"],
    ),
    no_requirements=(NODEPOOL, a_pool(requirements=None), [f"{TEMPLATE}.requirements: Required value"]),
    taint_without_key_and_effect=(
        NODEPOOL, a_pool(taints=[{"value": "a"}]),
        [f"{TEMPLATE}.taints[0].{field}: Required value" for field in ("key", "effect")],
    ),
    unknown_reason=(NODEPOOL, budgets({"nodes": "1", "reasons": ["Boredom"]}), [UNKNOWN_REASON]),
    many_budgets=(
        NODEPOOL, budgets(*[{"nodes": "1"}] * 51), [f"{BUDGETS}: Too many: 51: must have at most 50 items"],
    ),
    long_key=(
        NODEPOOL, a_pool(requirements=[{"key": "a" * 317, "operator": "Exists"}]),
        [f"{TEMPLATE}.requirements[0].key: Too long: may not be more than 316 bytes"],
    ),
    number_of_nodes=(NODEPOOL, budgets({"nodes": 5}), [of_type(f"{BUDGETS}[0].nodes", "string", "integer")]),
    text_as_weight=(NODEPOOL, {**a_pool(), "weight": "heavy"}, [of_type("spec.weight", "integer", "string")]),
    map_as_requirements=(
        NODEPOOL, a_pool(requirements={"a": "b"}), [of_type(f"{TEMPLATE}.requirements", "array", "object")],
    ),
    text_as_spec=(NODECLAIM, "all", [of_type("spec", "object", "string")]),
    unknown_operator=(
        NODECLAIM, {"requirements": [{"key": "karpenter.sh/foo", "operator": "Never"}], "nodeClassRef": None},
        [
            f'spec.requirements[0].operator: Unsupported value: "Never": supported values: {OPERATORS}',
            "spec.nodeClassRef: Required value",
        ],
    ),
)  # fmt: skip
def test_cel_rules_are_skipped_after_a_schema_error(cluster, resource, spec, causes):
    """Such errors are a wrong type, a missing field, an exceeded length and an unknown enum value."""
    assert causes_of(cluster, resource, spec) == sorted([*causes, UNCHECKED])


def causes_of(cluster, resource, spec):
    """Return the causes of an object's rejection, sorted, because the server's order is random."""
    name = cluster.own("x")
    with pytest.raises(InvalidError) as caught:
        cluster.store.create(resource, {"metadata": {"name": name}} | ({} if spec is None else {"spec": spec}))
    return causes_in(caught.value.message, f'{resource.kind}.{resource.group} "{name}" is invalid: ')


def causes_in(message, start):
    assert message.startswith(start)
    listed = message.removeprefix(start)
    if not listed.startswith("["):
        return [listed]
    texts, known = [], ("spec", ".spec", "status", "<nil>", "metadata")
    for part in listed[1:-1].split(", "):
        if part.startswith(known):
            texts.append(part)
        else:
            texts[-1] += f", {part}"
    return sorted(texts)


def test_set_list_with_duplicates_is_refused(cluster):
    """The server still evaluates CEL rules."""
    found = causes_of(cluster, NODEPOOL, budgets({"nodes": "1", "schedule": "@daily", "reasons": ["Empty", "Empty"]}))
    assert found == [
        f"{BUDGETS}: Invalid value: 'schedule' must be set with 'duration'",
        f'{BUDGETS}[0].reasons[1]: Duplicate value: "Empty"',
    ]


def test_missing_field_gets_its_default(cluster):
    """The server sets defaults on creation and in nested objects; null counts as missing."""
    made = cluster.pool("plain", weight=None)["spec"]
    assert made["disruption"] == {
        "budgets": [{"nodes": "10%"}],
        "consolidateAfter": "0s",
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
    }
    assert made["template"]["spec"]["expireAfter"] == "720h"
    assert "weight" not in made


def test_unknown_fields_are_dropped(cluster):
    """The server drops them from spec and status, on creation and with every patch."""
    made = cluster.pool("odd", colour="red", disruption={"mood": "good"})
    name = made["metadata"]["name"]
    assert "colour" not in made["spec"]
    assert "mood" not in made["spec"]["disruption"]
    assert "colour" not in cluster.store.patch(NODEPOOL, name, {"spec": {"colour": "blue", "weight": 2}})["spec"]
    status = {"status": {"colour": "green", "nodes": 2}}
    assert cluster.store.patch(NODEPOOL, name, status, subresource="status")["status"] == {"nodes": 2}


def test_immutable_field_cannot_change(cluster):
    """Transition rules protect a NodeClaim's spec, and a NodePool's replicas and nodeClassRef group and kind."""
    claim = cluster.claim("fixed")["metadata"]["name"]
    with pytest.raises(InvalidError) as caught:
        cluster.store.patch(NODECLAIM, claim, {"spec": {"expireAfter": "1h"}})
    assert caught.value.status == 422
    assert caught.value.message == (
        f'NodeClaim.karpenter.sh "{claim}" is invalid: spec: Invalid value: spec is immutable'
    )
    pool = cluster.pool("fixed")["metadata"]["name"]
    start = f'NodePool.karpenter.sh "{pool}" is invalid: '
    with pytest.raises(InvalidError) as caught:
        cluster.store.patch(NODEPOOL, pool, {"spec": {"replicas": 1}})
    assert caught.value.message == (
        f"{start}spec: Invalid value: Cannot transition NodePool between static (replicas set) and dynamic (replicas "
        "unset) provisioning modes"
    )
    other = {"template": {"spec": {"nodeClassRef": {"group": "example.com", "kind": "Other"}}}}
    with pytest.raises(InvalidError) as caught:
        cluster.store.patch(NODEPOOL, pool, {"spec": other})
    assert causes_in(caught.value.message, start) == [
        f"{TEMPLATE}.nodeClassRef: Invalid value: nodeClassRef.group is immutable",
        f"{TEMPLATE}.nodeClassRef: Invalid value: nodeClassRef.kind is immutable",
    ]


def test_status_is_validated(cluster):
    """A condition must have all required fields."""
    pool = cluster.pool("checked")["metadata"]["name"]
    with pytest.raises(InvalidError) as caught:
        cluster.store.patch(NODEPOOL, pool, {"status": {"conditions": [{"type": "Ready"}]}}, subresource="status")
    assert causes_in(caught.value.message, f'NodePool.karpenter.sh "{pool}" is invalid: ') == sorted(
        [
            UNCHECKED,
            "status.conditions[0].lastTransitionTime: Required value",
            "status.conditions[0].status: Required value",
        ]
    )
    moment = "2026-03-01T12:00:00Z"
    whole = {"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": moment}
    after = cluster.store.patch(NODEPOOL, pool, {"status": {"conditions": [whole]}}, subresource="status")
    assert after["status"]["conditions"] == [whole]
    with pytest.raises(InvalidError, match=r'status\.conditions\[1\]: Duplicate value: \{"type":"Ready"\}'):
        cluster.store.patch(NODEPOOL, pool, {"status": {"conditions": [whole, whole]}}, subresource="status")


@pytest.mark.parametrize(
    ("resource", "missing"),
    [
        (EC2NODECLASS, ["amiSelectorTerms", "securityGroupSelectorTerms", "subnetSelectorTerms"]),
        (NODE_DISRUPTION, ["candidates", "decision", "method", "reason"]),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_empty_spec_of_our_kinds_names_the_required_fields(cluster, resource, missing):
    """Every server names the same fields."""
    assert causes_of(cluster, resource, {}) == sorted(
        [UNCHECKED, *(f"spec.{field}: Required value" for field in missing)]
    )


DELETED = {"reason": "Empty", "decision": "delete", "method": "emptiness"}
GROUP_PATTERN = "spec.securityGroupSelectorTerms[0].id in body should match 'sg-[0-9a-z]+'"
MANY_TAGS = {f"tag-{number}": "x" for number in range(21)}


@table(
    "resource", "spec", "causes",
    no_candidates=(
        NODE_DISRUPTION, {**DELETED, "candidates": []},
        ["spec.candidates: Invalid value: 0: spec.candidates in body should have at least 1 items"],
    ),
    no_time=(
        NODE_DISRUPTION, {**DELETED, "candidates": [{"nodeClaim": "a"}], "createdAt": "soon"},
        ['spec.createdAt: Invalid value: "soon": spec.createdAt in body must be of type date-time: "soon"', UNCHECKED],
    ),
    node_class=(
        EC2NODECLASS,
        {
            "role": "", "amiSelectorTerms": [], "subnetSelectorTerms": [{"tags": MANY_TAGS}],
            "securityGroupSelectorTerms": [{"id": "x"}],
        },
        [
            'spec.role: Invalid value: "": spec.role in body should be at least 1 chars long',
            "spec.amiSelectorTerms: Invalid value: 0: spec.amiSelectorTerms in body should have at least 1 items",
            "spec.subnetSelectorTerms[0].tags: Too many: 21: must have at most 20 items",
            ": ".join(["spec.securityGroupSelectorTerms[0].id", 'Invalid value: "x"', GROUP_PATTERN]),
            UNCHECKED,
        ],
    ),
)  # fmt: skip
def test_bounds_of_lists_maps_and_times(cluster, resource, spec, causes):
    """The server enforces them on NodeDisruptions and OfferingStates."""
    assert causes_of(cluster, resource, spec) == sorted(causes)


def test_optional_fields_may_be_omitted(cluster):
    """An OfferingState without any of them is valid."""
    assert cluster.store.create(OFFERING_STATE, {"metadata": {"name": cluster.own("x")}, "spec": {}})["spec"] == {}


def test_in_memory_server_parses_every_rule_of_our_crds():
    """A rule that it does not support must be added to it."""
    rules = [rule for definition in DEFINITIONS for rule in rules_in(object_schema(definition.model))]
    assert len(rules) > 50
    assert all(callable(crd_expressions.parse_rule(rule["rule"])) for rule in rules)


def rules_in(schema):
    if isinstance(schema, dict):
        yield from schema.get("x-kubernetes-validations", ())
        for part in schema.values():
            yield from rules_in(part)
