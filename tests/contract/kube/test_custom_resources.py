"""Custom resources: defaults, pruning, schema, CEL rules, ratcheting."""

import pytest

from journeyman.core.api.crds import DEFINITIONS, object_schema
from journeyman.core.api.objects import EC2NODECLASS, NODE_DISRUPTION, NODECLAIM, NODEPOOL, OFFERING_STATE
from journeyman.errors import InvalidError
from journeyman_simulator.apiserver import crd_expressions
from tests.contract.kube.clusters import CLASS_REF

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


def body_of(path, rule):
    return f"{path} in body {rule}"


OPERATORS = ", ".join(f'"{name}"' for name in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"))
LONGEST = "the maximum is 2562047h47m16s"
DURATION = "^(([0-9]+(s|m|h))+|Never)$"


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        # rules
        (budgets({"nodes": "1", "schedule": "@daily"}), [(BUDGETS, "'schedule' must be set with 'duration'")]),
        (
            {**a_pool(), "replicas": 1, "weight": 3},
            [("spec", "'weight' is not supported on static NodePools")],
        ),
        (
            {**a_pool(), "replicas": 1, "weight": 3, "limits": {"cpu": "1"}},
            [
                ("spec", "only 'limits.nodes' is supported on static NodePools"),
                ("spec", "'weight' is not supported on static NodePools"),
            ],
        ),
        (
            requirement(key="kubernetes.io/hostname"),
            [
                (
                    f"{TEMPLATE}.requirements[0].key",
                    '"kubernetes.io/hostname": label "kubernetes.io/hostname" is restricted',
                )
            ],
        ),
        (
            requirement(operator="In"),
            [(f"{TEMPLATE}.requirements", "requirements with operator 'In' must have a value defined")],
        ),
        (
            requirement(operator="In", values=["x"], minValues=2),
            [
                (
                    f"{TEMPLATE}.requirements",
                    "requirements with 'minValues' must have at least that many values specified in the 'values' field",
                )
            ],
        ),
        # bounds and patterns
        (
            {**a_pool(), "weight": 101},
            [("spec.weight", body_of("101: spec.weight", "should be less than or equal to 100"))],
        ),
        (
            {**a_pool(), "weight": 0},
            [("spec.weight", body_of("0: spec.weight", "should be greater than or equal to 1"))],
        ),
        (
            a_pool(expireAfter="soon"),
            [
                (f"{TEMPLATE}.expireAfter", body_of(f'"soon": {TEMPLATE}.expireAfter', f"should match '{DURATION}'")),
                (  # the error of a rule that cannot be evaluated shows the type instead of the value
                    f"{TEMPLATE}.expireAfter",
                    (
                        "\"string\": type conversion error from 'string' to 'google.protobuf.Duration' evaluating rule: "
                        f"{LONGEST}"
                    ),
                ),
            ],
        ),
        (
            a_pool(nodeClassRef={"group": "g", "kind": "K", "name": ""}),
            [
                (
                    f"{TEMPLATE}.nodeClassRef.name",
                    body_of(f'"": {TEMPLATE}.nodeClassRef.name', "should be at least 1 chars long"),
                )
            ],
        ),
        (
            {**a_pool(), "replicas": -1},
            [
                ("spec.replicas", body_of("-1: spec.replicas", "should be greater than or equal to 0")),
                (".spec.replicas", "-1: should be a non-negative integer"),
            ],
        ),
    ],
)
def test_invalid_value_is_refused_with_field_and_reason(cluster, spec, causes):
    """The server answers 422 with the field, scalar values, and the message of the schema or of the CEL rule."""
    assert causes_of(cluster, NODEPOOL, spec) == sorted(f"{path}: Invalid value: {why}" for path, why in causes)


@pytest.mark.parametrize(
    ("resource", "spec", "causes"),
    [
        (NODEPOOL, None, ["spec: Required value"]),
        (NODEPOOL, {"template": {"spec": {"requirements": []}}}, [f"{TEMPLATE}.nodeClassRef: Required value"]),
        (NODEPOOL, a_pool(requirements=None), [f"{TEMPLATE}.requirements: Required value"]),
        (
            NODEPOOL,
            a_pool(taints=[{"value": "a"}]),
            [f"{TEMPLATE}.taints[0].key: Required value", f"{TEMPLATE}.taints[0].effect: Required value"],
        ),
        (
            NODEPOOL,
            budgets({"nodes": "1", "reasons": ["Boredom"]}),
            [
                f'{BUDGETS}[0].reasons[0]: Unsupported value: "Boredom": supported values: "Underutilized", "Empty", "Drifted"'
            ],
        ),
        (NODEPOOL, budgets(*[{"nodes": "1"}] * 51), [f"{BUDGETS}: Too many: 51: must have at most 50 items"]),
        (
            NODEPOOL,
            a_pool(requirements=[{"key": "a" * 317, "operator": "Exists"}]),
            [f"{TEMPLATE}.requirements[0].key: Too long: may not be more than 316 bytes"],
        ),
        (
            NODEPOOL,
            budgets({"nodes": 5}),
            [
                f'{BUDGETS}[0].nodes: Invalid value: "integer": {BUDGETS}[0].nodes in body must be of type string: "integer"'
            ],
        ),
        (
            NODEPOOL,
            {**a_pool(), "weight": "heavy"},
            ['spec.weight: Invalid value: "string": spec.weight in body must be of type integer: "string"'],
        ),
        (
            NODEPOOL,
            a_pool(requirements={"a": "b"}),
            [
                f'{TEMPLATE}.requirements: Invalid value: "object": {TEMPLATE}.requirements in body must be of type array: "object"'
            ],
        ),
        (NODECLAIM, "all", ['spec: Invalid value: "string": spec in body must be of type object: "string"']),
        (
            NODECLAIM,
            {
                "requirements": [{"key": "karpenter.sh/foo", "operator": "Never"}],
                "nodeClassRef": None,
            },
            [
                f'spec.requirements[0].operator: Unsupported value: "Never": supported values: {OPERATORS}',
                "spec.nodeClassRef: Required value",
            ],
        ),
    ],
)
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


@pytest.mark.parametrize(
    ("resource", "spec", "causes"),
    [
        (
            NODE_DISRUPTION,
            {"reason": "Empty", "decision": "delete", "method": "emptiness", "candidates": []},
            ["spec.candidates: Invalid value: 0: spec.candidates in body should have at least 1 items"],
        ),
        (
            NODE_DISRUPTION,
            {
                "reason": "Empty",
                "decision": "delete",
                "method": "emptiness",
                "candidates": [{"nodeClaim": "a"}],
                "createdAt": "soon",
            },
            [
                'spec.createdAt: Invalid value: "soon": spec.createdAt in body must be of type date-time: "soon"',
                UNCHECKED,
            ],
        ),
        (
            EC2NODECLASS,
            {
                "role": "",
                "amiSelectorTerms": [],
                "subnetSelectorTerms": [{"tags": {f"tag-{number}": "x" for number in range(21)}}],
                "securityGroupSelectorTerms": [{"id": "x"}],
            },
            [
                'spec.role: Invalid value: "": spec.role in body should be at least 1 chars long',
                "spec.amiSelectorTerms: Invalid value: 0: spec.amiSelectorTerms in body should have at least 1 items",
                "spec.subnetSelectorTerms[0].tags: Too many: 21: must have at most 20 items",
                (
                    'spec.securityGroupSelectorTerms[0].id: Invalid value: "x": '  # the message of a term's pattern
                    "spec.securityGroupSelectorTerms[0].id in body should match 'sg-[0-9a-z]+'"
                ),
                UNCHECKED,
            ],
        ),
    ],
)
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
