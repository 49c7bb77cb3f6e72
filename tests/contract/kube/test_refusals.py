"""Error responses of the API server: Status bodies, reasons and details."""

import pytest

from journeyman.core.api.objects import LEASE, NODE, NODECLAIM, PDB, POD
from tests.contract.kube.clusters import MERGE_PATCH, a_claim_spec, a_pod_spec
from tests.helpers.small_clusters import table

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


def test_missing_or_existing_object_error(served):
    """The server answers 404 with the object's kind and name, or 409 AlreadyExists."""
    answer = served.http.request("GET", POD.path(served.namespace, "missing"))
    assert answer.status == 404
    missing = {"message": 'pods "missing" not found', "reason": "NotFound", "code": 404}
    assert refusal(answer) == {**missing, "details": {"name": "missing", "kind": "pods"}}
    details = {"group": "karpenter.sh", "kind": "nodeclaims"}
    answer = served.http.request("DELETE", NODECLAIM.path("", "missing"))
    assert refusal(answer)["details"] == {**details, "name": "missing"}

    name = served.claim("twice")["metadata"]["name"]
    body = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": name}, "spec": a_claim_spec()}
    existing = {"message": f'nodeclaims.karpenter.sh "{name}" already exists', "reason": "AlreadyExists", "code": 409}
    answer = served.http.request("POST", NODECLAIM.path(), body)
    assert refusal(answer) == {**existing, "details": {**details, "name": name}}


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


POD_AS_NODE = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}}


@pytest.mark.parametrize(
    ("method", "path", "content_type", "body", "code", "reason"),
    [
        ("GET", "/unicorns", JSON, None, 404, "NotFound"),
        ("POST", "/nodes/{node}/eviction", JSON, {}, 404, "NotFound"),
        ("PATCH", "/nodes/{node}", JSON, {}, 415, "UnsupportedMediaType"),
        ("PATCH", "/nodes/{node}", MERGE_PATCH, b"{", 400, "BadRequest"),
        ("PATCH", "/nodes/{node}", MERGE_PATCH, b"[]", 400, "BadRequest"),
        ("POST", "/nodes", JSON, POD_AS_NODE, 400, "BadRequest"),
        ("PATCH", "/nodes", MERGE_PATCH, {}, 405, "MethodNotAllowed"),
        ("GET", "/nodes?limit=many", JSON, None, 400, "BadRequest"),
        ("GET", "/nodes?continue=nonsense", JSON, None, 400, "BadRequest"),
        ("GET", "/nodes?resourceVersion=999999999", JSON, None, 504, "Timeout"),
        ("GET", "/nodes?watch=1&resourceVersion=abc", JSON, None, 500, None),
        ("GET", "/nodes?labelSelector=a+in+b", JSON, None, 400, "BadRequest"),
        ("GET", "/nodes?fieldSelector=spec.colour%3Dred", JSON, None, 400, "BadRequest"),
    ],
)
def test_malformed_request_errors(served, method, path, content_type, body, code, reason):
    """The response has the status code, a reason and a message."""
    path, _, query = path.format(node=served.node()).partition("?")
    parameters = dict(part.split("=", 1) for part in query.split("&") if part)
    answer = served.http.request(method, f"/api/v1{path}", body, content_type, **parameters)
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


REFERENCE, TAINT = "metadata.ownerReferences", {"key": "a", "effect": "NoExecute"}
FINALIZER = 'Invalid value: "bad": name is neither a standard finalizer name nor is it fully qualified'
EFFECT = 'Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"'
SAME_TAINT = 'Duplicate value: {"Key":"a","Value":"","Effect":"NoExecute","TimeAdded":null}'


@table(
    "patch", "causes",
    labels=(
        {"metadata": {"labels": {"a b": "x y"}}},
        [("metadata.labels", f'Invalid value: "a b": {NAME}'), ("metadata.labels", f'Invalid value: "x y": {LABEL}')],
    ),
    annotations=(
        {"metadata": {"annotations": {"a": "x" * 263_000}}},
        [("metadata.annotations", "Too long: may not be more than 262144 bytes")],
    ),
    owners=(
        {"metadata": {"ownerReferences": [{"name": "x"}]}},
        [
            (f"{REFERENCE}.apiVersion", 'Invalid value: "": version must not be empty'),
            *((f"{REFERENCE}.{field}", 'Invalid value: "": must not be empty') for field in ("kind", "uid")),
        ],
    ),
    finalizers=({"metadata": {"finalizers": ["bad"]}}, [("metadata.finalizers[0]", FINALIZER)]),
    taint=(
        {"spec": {"taints": [{"key": "a b", "effect": "Never"}]}},
        [("metadata.taints[0].key", f'Invalid value: "a b": {NAME}'), ("metadata.taints[0].effect", EFFECT)],
    ),
    equal_taints=(
        {"spec": {"taints": [TAINT, TAINT]}},
        [("metadata.taints[1]", f"{SAME_TAINT}: taints must be unique by key and effect pair")],
    ),
    provider_id=(
        {"spec": {"providerID": "other"}},
        [("spec.providerID", 'Forbidden: node updates may not change providerID except from "" to valid')],
    ),
)  # fmt: skip
def test_invalid_node_errors(served, patch, causes):
    """The server answers 422 with every invalid field, its message and reason."""
    node = served.node()
    served.store.patch(NODE, node, {"spec": {"providerID": "one"}})
    status = refusal(served.http.request("PATCH", NODE.path("", node), patch, MERGE_PATCH))
    assert (status["code"], status["reason"], status["details"]) == (422, "Invalid", {"name": node, "kind": "Node"})
    assert [(cause["field"], cause["message"]) for cause in status["causes"]] == causes
    shown = [f"{field}: {message}" for field, message in causes]
    whole = shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"
    assert status["message"] == f'Node "{node}" is invalid: {whole}'
    reasons = {f"FieldValue{reason}" for reason in ("Invalid", "Duplicate", "Forbidden", "NotSupported", "TooLong")}
    assert {cause["reason"] for cause in status["causes"]} <= reasons


NEGATIVE = {"containers": [{"name": "a", "image": "p", "resources": {"requests": {"cpu": "-1"}}}]}
BOTH = (
    '{"MinAvailable":1,"Selector":null,"MaxUnavailable":1,"UnhealthyPodEvictionPolicy":null}: '
    "minAvailable and maxUnavailable cannot be both set"
)
PERCENT = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)
POLICY = 'Unsupported value: "Never": supported values: "AlwaysAllow", "IfHealthyBudget"'


@table(
    "resource", "spec", "message",
    no_containers=(POD, {}, "spec.containers: Required value"),
    negative_request=(
        POD, NEGATIVE,
        'spec.containers[0].resources.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0',
    ),
    two_limits=(PDB, {"minAvailable": 1, "maxUnavailable": 1}, f"spec: Invalid value: {BOTH}"),
    percentage=(PDB, {"minAvailable": "x%"}, f'spec.minAvailable: Invalid value: "x%": {PERCENT}'),
    policy=(PDB, {"unhealthyPodEvictionPolicy": "Never"}, f"spec.unhealthyPodEvictionPolicy: {POLICY}"),
    duration=(
        LEASE, {"leaseDurationSeconds": 0}, "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
    ),
)  # fmt: skip
def test_invalid_creation_errors(served, resource, spec, message):
    """The server answers 422 with its messages."""
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "x"}, "spec": spec}
    answer = served.http.request("POST", resource.path(served.namespace), body)
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    assert (answer.status, answer.body["message"]) == (422, f'{kind} "x" is invalid: {message}')


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
