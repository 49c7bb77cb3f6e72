"""Error responses of the API server: Status bodies, reasons and details."""

import pytest

from journeyman.core.api.objects import LEASE, NODE, NODECLAIM, PDB, POD
from tests.contract.kube.clusters import MERGE_PATCH, a_claim_spec, a_pod_spec

JSON = "application/json"


def refusal(answer):
    """Return a Status without its constant fields and repeated causes."""
    body = dict(answer.body)
    assert body.pop("kind") == "Status"
    assert body.pop("apiVersion") == "v1"
    assert body.pop("metadata") == {}
    assert body.pop("status") == "Failure"
    details = {key: value for key, value in (body.pop("details", None) or {}).items() if value}
    causes = details.pop("causes", [])
    unique = [cause for index, cause in enumerate(causes) if cause not in causes[:index]]
    return body | {"details": details} | ({"causes": unique} if unique else {})


def test_missing_object_error(served):
    """The server answers 404 with the object's kind and name."""
    answer = served.http.request("GET", POD.path(served.namespace, "missing"))
    assert answer.status == 404
    assert refusal(answer) == {
        "message": 'pods "missing" not found',
        "reason": "NotFound",
        "details": {"name": "missing", "kind": "pods"},
        "code": 404,
    }
    answer = served.http.request("DELETE", NODECLAIM.path("", "missing"))
    assert refusal(answer)["details"] == {"name": "missing", "group": "karpenter.sh", "kind": "nodeclaims"}


def test_existing_object_error(served):
    """The server answers 409 AlreadyExists."""
    name = served.claim("twice")["metadata"]["name"]
    body = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": name}, "spec": a_claim_spec()}
    assert refusal(served.http.request("POST", NODECLAIM.path(), body)) == {
        "message": f'nodeclaims.karpenter.sh "{name}" already exists',
        "reason": "AlreadyExists",
        "details": {"name": name, "group": "karpenter.sh", "kind": "nodeclaims"},
        "code": 409,
    }


def test_conflict_errors(served):
    """The server answers 409 for a version and for a deletion's preconditions, and 422 for a UID in a patch."""
    made = served.claim("raced")["metadata"]
    path = NODECLAIM.path("", made["name"])
    served.http.request("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH)
    stale = {"metadata": {"resourceVersion": made["resourceVersion"], "labels": {"a": "c"}}}
    assert refusal(served.http.request("PATCH", path, stale, MERGE_PATCH)) == {
        "message": f'Operation cannot be fulfilled on nodeclaims.karpenter.sh "{made["name"]}": the object has been '
        "modified; please apply your changes to the latest version and try again",
        "reason": "Conflict",
        "details": {"name": made["name"], "group": "karpenter.sh", "kind": "nodeclaims"},
        "code": 409,
    }
    options = {"preconditions": {"resourceVersion": made["resourceVersion"]}}
    answer = refusal(served.http.request("DELETE", path, options))
    assert (answer["code"], answer["reason"]) == (409, "Conflict")
    assert answer["details"] == {"name": made["name"], "group": "karpenter.sh", "kind": "NodeClaim"}
    answer = refusal(served.http.request("PATCH", path, {"metadata": {"uid": "x"}}, MERGE_PATCH))
    assert (answer["code"], answer["reason"]) == (422, "Invalid")
    assert [cause["field"] for cause in answer["causes"]] == ["metadata.uid"]


def test_late_binding_errors(served):
    """The server answers 409 for a bound pod, 404 for a missing one, and a conflict for another UID."""
    served.pod("p")
    path = POD.path(served.namespace, "p", "binding")
    target = {"target": {"kind": "Node", "name": served.node()}}
    answer = served.http.request("POST", path, {"metadata": {"name": "p", "uid": "x"}, **target})
    assert answer.status == 409
    assert "Precondition failed: UID in precondition: x, UID in object meta: " in answer.body["message"]
    answer = served.http.request("POST", path, {"metadata": {"name": "p"}, **target})
    assert (answer.status, answer.body["status"]) == (201, "Success")
    assert refusal(served.http.request("POST", path, {"metadata": {"name": "p"}, **target})) == {
        "message": f'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node '
        f'"{served.node()}"',
        "reason": "Conflict",
        "details": {"name": "p", "kind": "pods/binding"},
        "code": 409,
    }


@pytest.mark.parametrize(
    ("method", "path", "content_type", "body", "code", "reason"),
    [
        ("GET", "/api/v1/unicorns", JSON, None, 404, "NotFound"),
        ("POST", "/api/v1/nodes/{node}/eviction", JSON, {}, 404, "NotFound"),
        ("PATCH", "/api/v1/nodes/{node}", "application/json", {}, 415, "UnsupportedMediaType"),
        ("PATCH", "/api/v1/nodes/{node}", MERGE_PATCH, b"{", 400, "BadRequest"),
        ("PATCH", "/api/v1/nodes/{node}", MERGE_PATCH, b"[]", 400, "BadRequest"),
        (
            "POST",
            "/api/v1/nodes",
            JSON,
            {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}},
            400,
            "BadRequest",
        ),
        ("PATCH", "/api/v1/nodes", MERGE_PATCH, {}, 405, "MethodNotAllowed"),
        ("GET", "/api/v1/nodes?limit=many", JSON, None, 400, "BadRequest"),
        ("GET", "/api/v1/nodes?continue=nonsense", JSON, None, 400, "BadRequest"),
        ("GET", "/api/v1/nodes?resourceVersion=999999999", JSON, None, 504, "Timeout"),
        ("GET", "/api/v1/nodes?watch=1&resourceVersion=abc", JSON, None, 500, None),
        ("GET", "/api/v1/nodes?labelSelector=a+in+b", JSON, None, 400, "BadRequest"),
        ("GET", "/api/v1/nodes?fieldSelector=spec.colour%3Dred", JSON, None, 400, "BadRequest"),
    ],
)
def test_malformed_request_errors(served, method, path, content_type, body, code, reason):
    """The response has the status code, a reason and a message."""
    path, _, query = path.format(node=served.node()).partition("?")
    answer = served.http.request(
        method, path, body, content_type, **dict(part.split("=", 1) for part in query.split("&") if part)
    )
    status = refusal(answer)
    assert (answer.status, status["code"], status.get("reason")) == (code, code, reason)
    assert status["message"]


@pytest.mark.parametrize("path", ["/apis/example.com/v1/ghosts", "/apis/karpenter.sh/v1/ghosts", "/nothing/here"])
def test_unknown_path_error_is_plain_text(served, path):
    """A cluster without the CRDs answers so."""
    answer = served.http.request("GET", path)
    assert (answer.status, answer.body) == (404, "404 page not found\n")
    assert answer.headers["Content-Type"].startswith("text/plain")


LABEL = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


@pytest.mark.parametrize(
    ("patch", "causes"),
    [
        (
            {"metadata": {"labels": {"a b": "x y"}}},
            [
                ("metadata.labels", f'Invalid value: "a b": {NAME}'),
                ("metadata.labels", f'Invalid value: "x y": {LABEL}'),
            ],
        ),
        (
            {"metadata": {"annotations": {"a": "x" * 263_000}}},
            [("metadata.annotations", "Too long: may not be more than 262144 bytes")],
        ),
        (
            {"metadata": {"ownerReferences": [{"name": "x"}]}},
            [
                ("metadata.ownerReferences.apiVersion", 'Invalid value: "": version must not be empty'),
                ("metadata.ownerReferences.kind", 'Invalid value: "": must not be empty'),
                ("metadata.ownerReferences.uid", 'Invalid value: "": must not be empty'),
            ],
        ),
        (
            {"metadata": {"finalizers": ["bad"]}},
            [
                (
                    "metadata.finalizers[0]",
                    'Invalid value: "bad": name is neither a standard finalizer name nor is it fully qualified',
                )
            ],
        ),
        (
            {"spec": {"taints": [{"key": "a b", "effect": "Never"}]}},
            [
                ("metadata.taints[0].key", f'Invalid value: "a b": {NAME}'),
                (
                    "metadata.taints[0].effect",
                    'Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"',
                ),
            ],
        ),
        (
            {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoExecute"}]}},
            [
                (
                    "metadata.taints[1]",
                    (
                        'Duplicate value: {"Key":"a","Value":"","Effect":"NoExecute","TimeAdded":null}: '
                        "taints must be unique by key and effect pair"
                    ),
                )
            ],
        ),
        (
            {"spec": {"providerID": "other"}},
            [("spec.providerID", 'Forbidden: node updates may not change providerID except from "" to valid')],
        ),
    ],
)
def test_invalid_node_errors(served, patch, causes):
    """The server answers 422 with every invalid field, its message and reason."""
    node = served.node()
    served.store.patch(NODE, node, {"spec": {"providerID": "one"}})
    status = refusal(served.http.request("PATCH", NODE.path("", node), patch, MERGE_PATCH))
    assert (status["code"], status["reason"], status["details"]) == (422, "Invalid", {"name": node, "kind": "Node"})
    assert [(cause["field"], cause["message"]) for cause in status["causes"]] == causes
    shown = [f"{field}: {message}" for field, message in causes]
    assert (
        status["message"]
        == f'Node "{node}" is invalid: {shown[0] if len(shown) == 1 else "[" + ", ".join(shown) + "]"}'
    )
    assert {cause["reason"] for cause in status["causes"]} <= {
        "FieldValueInvalid",
        "FieldValueDuplicate",
        "FieldValueForbidden",
        "FieldValueNotSupported",
        "FieldValueTooLong",
    }


@pytest.mark.parametrize(
    ("resource", "spec", "message"),
    [
        (POD, {}, 'Pod "x" is invalid: spec.containers: Required value'),
        (
            POD,
            {"containers": [{"name": "a", "image": "p", "resources": {"requests": {"cpu": "-1"}}}]},
            (
                'Pod "x" is invalid: spec.containers[0].resources.requests[cpu]: Invalid value: "-1": '
                "must be greater than or equal to 0"
            ),
        ),
        (
            PDB,
            {"minAvailable": 1, "maxUnavailable": 1},
            (
                'PodDisruptionBudget.policy "x" is invalid: spec: Invalid value: {"MinAvailable":1,"Selector":null,'
                '"MaxUnavailable":1,"UnhealthyPodEvictionPolicy":null}: minAvailable and maxUnavailable cannot be both set'
            ),
        ),
        (
            PDB,
            {"minAvailable": "x%"},
            (
                'PodDisruptionBudget.policy "x" is invalid: spec.minAvailable: Invalid value: "x%": a valid percent string '
                "must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is "
                "'[0-9]+%')"
            ),
        ),
        (
            PDB,
            {"unhealthyPodEvictionPolicy": "Never"},
            (
                'PodDisruptionBudget.policy "x" is invalid: spec.unhealthyPodEvictionPolicy: Unsupported value: "Never": '
                'supported values: "AlwaysAllow", "IfHealthyBudget"'
            ),
        ),
        (
            LEASE,
            {"leaseDurationSeconds": 0},
            (
                'Lease.coordination.k8s.io "x" is invalid: spec.leaseDurationSeconds: Invalid value: 0: '
                "must be greater than 0"
            ),
        ),
    ],
)
def test_invalid_creation_errors(served, resource, spec, message):
    """The server answers 422 with its messages."""
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "x"}, "spec": spec}
    answer = served.http.request("POST", resource.path(served.namespace), body)
    assert (answer.status, answer.body["message"]) == (422, message)


def test_invalid_quantity_is_a_bad_request(served):
    """The server answers 400, because it cannot decode the object."""
    spec = a_pod_spec()
    spec["containers"][0]["resources"] = {"requests": {"cpu": "one"}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    answer = served.http.request("POST", POD.path(served.namespace), body)
    assert refusal(answer) == {
        "message": 'Pod in version "v1" cannot be handled as a Pod: quantities must match the regular expression '
        "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        "reason": "BadRequest",
        "details": {},
        "code": 400,
    }
