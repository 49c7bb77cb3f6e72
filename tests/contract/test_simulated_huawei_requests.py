"""The simulated Huawei Cloud services refuse what the real ones refuse: signatures, projects, bodies, rights."""

import json
from copy import deepcopy
from datetime import datetime, timedelta, timezone
from urllib.parse import urlsplit

import pytest
from huaweicloudsdkcore.exceptions.exceptions import ServiceResponseException

from journeyman.cloud.huawei.rest_api import RestApiError, RestCall
from journeyman.errors import ConfigurationError
from journeyman.signing import Credentials, escaped_path, escaped_query, huawei_headers, send
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError
from journeyman_simulator.huawei_account.cce_clusters import ClusterCertificate
from tests.contract.official_huawei_sdk import (
    SignedRequest,
    cce_call,
    node_body,
    project_call,
    sdk_client,
    sdk_rest_api,
)

DATE = "%Y%m%dT%H%M%SZ"
URN = "urn:fss:cn-north-4:0a1b2c3d4e5f60718293a4b5c6d7e8f9:function:default:journeyman-sweep:latest"


def refused(call, *arguments):
    """Return the code and status of the error of a call."""
    with pytest.raises(RestApiError) as caught:
        call(*arguments)
    assert caught.value.message
    return caught.value.code, caught.value.status


# --- signatures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def signed(huawei, cce, huawei_url):
    """Return a function that signs a CreateNode request, and returns it unsent."""

    def sign(key=None, call=None, scope=None, **headers):
        call = call or cce_call(cce, "CreateNode", "POST", body=node_body(cce))
        scope = {"X-Project-Id": huawei.project_id} if scope is None else scope
        return SignedRequest(huawei_url, key or huawei.access_key, call, scope, **headers)

    return sign


def shifted(minutes):
    """Return the date of a request that is some minutes off."""
    moment = datetime.now(timezone.utc) + timedelta(minutes=minutes)  # noqa: TID251 - as the SDK does
    return moment.strftime(DATE)


def spoil_body(request):
    """Change a byte of the body."""
    request.body = request.body.replace("c7.large.2", "c9.large.2")


def spoil_header(request):
    """Change a signed header."""
    request.headers["User-Agent"] = "other"


def spoil_path(request):
    """Change the path."""
    request.path = request.path.replace("nodes", "clustercert")


def spoil_query(request):
    """Add a query parameter."""
    request.query.append(("nodepoolScaleDown", "NoScaleDown"))


def spoil_date(request):
    """Change the date after signing."""
    request.headers["X-Sdk-Date"] = shifted(1)


def spoil_signature(request):
    """Change a digit of the signature."""
    text = request.headers["Authorization"]
    request.headers["Authorization"] = text[:-1] + ("0" if text[-1] != "0" else "1")


def spoil_key(request):
    """Name an access key that does not exist."""
    request.headers["Authorization"] = request.headers["Authorization"].replace("Access=HPUA", "Access=XXXX")


def drop_signature(request):
    """Send no signature."""
    del request.headers["Authorization"]


def drop_signed_project(request):
    """Leave the project out of the signed headers."""
    request.headers["Authorization"] = request.headers["Authorization"].replace("x-project-id;", "")


SPOILERS = [
    *(spoil_body, spoil_header, spoil_path, spoil_query, spoil_date, spoil_signature, spoil_key, drop_signature),
    drop_signed_project,
]


def test_signed_request_is_accepted(signed):
    """The SDK's signer makes it."""
    status, node = signed().send()
    assert (status, node["kind"]) == (201, "Node")


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
def test_changed_request_is_refused(signed, huawei, spoil):
    """It has no effect, and the API gateway's error has a code, a text and the request's id."""
    request = signed()
    spoil(request)
    status, error = request.send()
    assert (status, error["error_code"]) == (401, "APIGW.0301")
    assert error["error_msg"].startswith("Incorrect IAM authentication information")
    assert huawei.instances.known == {}


@pytest.mark.parametrize(("minutes", "status"), [(-16, 401), (-14, 201), (14, 201), (16, 401)])
def test_date_differs_by_fifteen_minutes_at_most(signed, minutes, status):
    """Earlier and later dates are refused."""
    assert signed(**{"X-Sdk-Date": shifted(minutes)}).send()[0] == status


def test_temporary_key_needs_its_token(signed, huawei):
    """A permanent key must have none."""
    key = huawei.add_access_key("journeyman-provision", temporary=True)
    assert signed(key).send()[0] == 201
    without = signed(key)
    del without.headers["X-Security-Token"]
    assert without.sign().send()[0] == 401
    wrong = signed(key)
    wrong.headers["X-Security-Token"] = "other"
    assert wrong.sign().send()[0] == 401
    assert signed(**{"X-Security-Token": "any"}).send()[0] == 401


def test_project_header_must_be_that_of_the_path(signed):
    """A missing one is refused, too."""
    assert signed(scope={}).send()[0] == 401
    assert signed(scope={"X-Project-Id": "0" * 32}).send()[0] == 401


def test_prices_need_the_account_instead_of_a_project(signed, huawei, cce):
    """Without a domain id, the SDK sends no X-Domain-Id."""
    call = RestCall(
        service="bss",
        operation="ListOnDemandResourceRatings",
        method="POST",
        path="/v2/bills/ratings/on-demand-resources",
        body={"project_id": cce.project_id, "product_infos": []},
    )
    assert signed(call=call).send()[0] == 401
    status, error = signed(call=call, scope={"X-Domain-Id": huawei.domain_id}).send()
    assert (status, error["error_code"]) == (400, "CBC.0100")


def test_body_that_is_no_json_is_refused(signed):
    """So is one of another content type."""
    request = signed()
    request.body = "{"
    assert request.sign().send()[0] == 400
    assert signed(**{"Content-Type": "text/plain"}).send()[0] == 400


def test_errors_have_the_form_of_each_service(huawei, cce, huawei_url):
    """The SDK itself reads CCE's older code, if an answer has one, and ECS's nested error."""

    def code(service, path, method="GET"):
        client = sdk_client(huawei_url, huawei, huawei.access_key, service)
        with pytest.raises(ServiceResponseException) as caught:
            client.do_http_request(method=method, resource_path=path, response_type="Answer")
        return caught.value.status_code, caught.value.error_code, bool(caught.value.request_id)

    cluster = f"/api/v3/projects/{cce.project_id}/clusters/{cce.cluster_id}"
    assert code("cce", f"{cluster}/nodes/unknown") == (404, "CCE_CM.0003", True)
    huawei.deny("cce:cluster:get", "ecs:cloudServers:list", "vpc:subnets:get")
    assert code("cce", cluster) == (403, 403, True)  # without an older code, it takes the status
    assert code("ecs", f"/v1/{cce.project_id}/availability-zones") == (403, "403", True)
    assert code("vpc", f"/v1/{cce.project_id}/subnets") == (403, "VPC.2201", True)
    assert code("ecs", f"/v1/{cce.project_id}/unknown") == (404, "APIGW.0101", True)


def test_request_signed_without_the_sdk_is_accepted(huawei, cce, huawei_url):
    """The product signs requests for access to clusters itself; the signature is of one path only."""
    key = huawei.add_access_key("journeyman-sweep", temporary=True)
    path, query = f"/v1/{cce.project_id}/subnets", {"limit": "1"}
    headers = huawei_headers(
        "GET",
        urlsplit(huawei_url).netloc,
        path,
        query,
        credentials=Credentials(access_key_id=key.id, access_key_secret=key.secret, security_token=key.security_token),
        now=datetime.now(timezone.utc),  # noqa: TID251 - as the SDK does
        headers={"Content-Type": "application/json", "X-Project-Id": cce.project_id},
    )
    text = escaped_query(query)
    assert send("GET", f"{huawei_url}{escaped_path(path)}?{text}", headers).status == 200
    assert send("GET", f"{huawei_url}{escaped_path(path)}x?{text}", headers).status == 404
    assert send("GET", f"{huawei_url}{escaped_path(path)}", headers).status == 401


# --- both transports ------------------------------------------------------------------------------------------------------


def test_both_transports_give_the_same_answers(huawei, cce, huawei_url, clock):
    """So do errors: code, text and status."""
    over_http, in_process = sdk_rest_api(huawei_url, huawei, huawei.access_key), huawei.rest_api()
    created = in_process(cce_call(cce, "CreateNode", "POST", body=node_body(cce)))
    clock.advance(6)
    huawei.act()
    path = "cloudservers/detail"
    calls = [
        cce_call(cce, "ListNodes", limit=10),
        cce_call(cce, "ShowNode", path=f"nodes/{created['metadata']['uid']}"),
        cce_call(cce, "ShowCluster", path=""),
        project_call(cce, "ecs", "ListFlavors", "cloudservers/flavors", limit=50),
        project_call(cce, "ecs", "ListFlavorSellPolicies", "cloudservers/flavor-sell-policies", sell_mode="spot"),
        project_call(cce, "ecs", "ListServerAzInfo", "availability-zones"),
        project_call(cce, "ecs", "ListServersDetails", path, tags="karpenter-nodepool=default", limit=2),
        project_call(cce, "vpc", "ListSubnets", "subnets", limit=500),
    ]
    for call in calls:
        assert over_http(call) == in_process(call), call.operation
    wrong = [
        cce_call(cce, "ShowNode", path="nodes/unknown"),
        cce_call(cce, "CreateNode", "POST", body={"kind": "Node"}),
        project_call(cce, "ecs", "ListFlavors", "cloudservers/flavors", limit="many"),
    ]
    for call in wrong:
        assert refused(over_http, call) == refused(in_process, call)


def test_path_of_another_project_is_refused(rest_api, cce):
    """The caller's credentials are for one project."""
    call = RestCall(service="vpc", operation="ListSubnets", method="GET", path=f"/v1/{'0' * 32}/subnets")
    assert refused(rest_api, call) == ("APIGW.0301", 401)


def test_operation_must_be_that_of_the_path(huawei, cce):
    """A wrong path is an error of the caller."""
    call = cce_call(cce, "DeleteNode", "GET", path="nodes/x")
    assert refused(huawei.rest_api(), call) == ("APIGW.0101", 404)


def test_unknown_parameter_is_not_simulated(huawei, cce):
    """A test that sends one learns it at once."""
    with pytest.raises(NotSimulatedError, match="offset"):
        huawei.rest_api()(cce_call(cce, "ListNodes", offset=1))


# --- CreateNode's body -----------------------------------------------------------------------------------------------------

GPSSD2 = {"size": 100, "volumetype": "GPSSD2", "iops": 4000, "throughput": 200}
TAINT = {"key": "a", "effect": "NoSchedule"}
WRONG_SPECS = {
    "flavor-unknown": {"flavor": "c7.huge.2"},
    "zone-unknown": {"az": "cn-north-4z"},
    "count-0": {"count": 0},
    "count-missing": {"count": None},
    "field-unknown": {"securityGroups": ["x"]},
    "root-small": {"rootVolume": {"size": 39, "volumetype": "SSD"}},
    "root-large": {"rootVolume": {"size": 1025, "volumetype": "SSD"}},
    "root-type": {"rootVolume": {"size": 40, "volumetype": "SSDX"}},
    "root-size-text": {"rootVolume": {"size": "40", "volumetype": "SSD"}},
    "no-data-disk": {"dataVolumes": [], "storage": None},
    "data-small": {"dataVolumes": [{"size": 19, "volumetype": "SSD"}], "storage": None},
    "iops-of-ssd": {"rootVolume": {"size": 40, "volumetype": "SSD", "iops": 3000}},
    "iops-missing": {"rootVolume": {"size": 100, "volumetype": "ESSD2"}},
    "iops-low": {"rootVolume": {**GPSSD2, "iops": 2999}},
    "iops-per-gib": {"rootVolume": {**GPSSD2, "size": 40, "iops": 20_001}},
    "throughput-missing": {"rootVolume": {"size": 100, "volumetype": "GPSSD2", "iops": 4000}},
    "throughput-of-essd2": {"rootVolume": {"size": 100, "volumetype": "ESSD2", "iops": 4000, "throughput": 200}},
    "throughput-high": {"rootVolume": {**GPSSD2, "throughput": 1001}},
    "selector-matches-nothing": {"dataVolumes": [{"size": 120, "volumetype": "SSD"}]},
    "login-none": {"login": {}},
    "login-two": {"login": {"sshKey": "KeyPair-demo", "userPassword": {"username": "root", "password": "JDYk"}}},
    "login-plain-password": {"login": {"userPassword": {"username": "root", "password": "secret12"}}},
    "key-pair-unknown": {"login": {"sshKey": "other"}},
    "runtime": {"runtime": {"name": "cri-o"}},
    "taint-effect": {"taints": [{"key": "a", "effect": "Evict"}]},
    "taint-of-cce": {"taints": [{"key": "node.kubernetes.io/network-unavailable", "effect": "NoSchedule"}]},
    "taint-twice": {"taints": [TAINT, TAINT]},
    "taints-21": {"taints": [{"key": f"k{number}", "effect": "NoSchedule"} for number in range(21)]},
    "labels-21": {"k8sTags": {f"k{number}": "v" for number in range(21)}},
    "label-key": {"k8sTags": {"a/b/c": "v"}},
    "label-value": {"k8sTags": {"a": "v" * 64}},
    "label-number": {"k8sTags": {"a": 1}},
    "tags-9": {"userTags": [{"key": f"k{number}", "value": "v"} for number in range(9)]},
    "tag-key": {"userTags": [{"key": "karpenter.sh/nodepool", "value": "v"}]},
    "tag-key-long": {"userTags": [{"key": "k" * 37, "value": "v"}]},
    "tag-key-of-cce": {"userTags": [{"key": "CCE-Cluster", "value": "v"}]},
    "tag-value": {"userTags": [{"key": "k", "value": "a,b"}]},
    "tag-twice": {"userTags": [{"key": "k", "value": "a"}, {"key": "k", "value": "b"}]},
    "pods-15": {"extend": {"maxPods": 15}},
    "pods-257": {"extend": {"maxPods": 257}},
    "pods-text": {"extend": {"maxPods": "60"}},
    "market": {"extend": {"marketType": "prepaid"}},
    "price-without-market": {"extend": {"spotPrice": "0.1"}},
    "price-number": {"extend": {"marketType": "spot", "spotPrice": 0.1}},
    "script": {"extend": {"alpha.cce/preInstall": "echo hello"}},
    "agency-unknown": {"extend": {"agency_name": "other"}},
    "image-unknown": {"extend": {"alpha.cce/NodeImageID": "other"}},
    "reserved-text": {"extend": {"kubeReservedMem": "500"}},
    "reserved-half": {"extend": {"kubeReservedCpu": 600, "systemReservedCpu": 400}},
    "reserved-negative": {"extend": {"systemReservedMem": -1}},
    "extend-unknown": {"extend": {"userData": "x"}},
    "server-group-unknown": {"ecsGroupId": "other"},
    "host-name": {"hostnameConfig": {"type": "random"}},
}


@pytest.mark.parametrize("changes", WRONG_SPECS.values(), ids=WRONG_SPECS)
def test_wrong_node_is_refused(huawei, cce, changes):
    """Nothing is created."""
    changes = {"flavor": changes.get("flavor", "c7.large.2"), **changes}
    zone = {"zone": changes.pop("az")} if "az" in changes else {}
    call = cce_call(cce, "CreateNode", "POST", body=node_body(cce, **changes, **zone))
    assert refused(huawei.rest_api(), call) == ("CCE.01400001", 400)
    assert huawei.instances.known == {}


def without_kubernetes_space(storage):
    """Leave the kubelet's virtual space out."""
    del storage["storageGroups"][0]["virtualSpaces"][1]


def with_numbers(storage):
    """Write a label as a number."""
    storage["storageSelectors"][0]["matchLabels"]["size"] = 100


def with_lvm_for_the_runtime(storage):
    """Configure the runtime's space as a plain volume."""
    space = storage["storageGroups"][0]["virtualSpaces"][0]
    space["lvmConfig"] = space.pop("runtimeConfig")


def with_other_group_name(storage):
    """Name the managed group otherwise."""
    storage["storageGroups"][0]["name"] = "pool"


def with_unknown_selector(storage):
    """Name a selector that does not exist."""
    storage["storageGroups"][0]["selectorNames"] = ["other"]


def with_too_much_space(storage):
    """Give away more than the disk has."""
    storage["storageGroups"][0]["virtualSpaces"][0]["size"] = "95%"


STORAGES = [
    *(without_kubernetes_space, with_numbers, with_lvm_for_the_runtime, with_other_group_name),
    *(with_unknown_selector, with_too_much_space),
]


@pytest.mark.parametrize("change", STORAGES, ids=lambda change: change.__name__)
def test_wrong_storage_is_refused(huawei, cce, change):
    """The storage must fit the disks and itself."""
    body = node_body(cce)
    storage = deepcopy(body["spec"]["storage"])
    change(storage)
    call = cce_call(cce, "CreateNode", "POST", body=node_body(cce, storage=storage))
    assert refused(huawei.rest_api(), call) == ("CCE.01400001", 400)


@pytest.mark.parametrize("name", ["", "A", "1a", "a-", "a_b", "a" * 57])
def test_wrong_name_is_refused(huawei, cce, name):
    """A name has 1 to 56 lower-case letters, digits, dots and hyphens."""
    call = cce_call(cce, "CreateNode", "POST", body=node_body(cce, name=name))
    assert refused(huawei.rest_api(), call) == ("CCE.01400001", 400)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"os": "Windows 95"}, "CCE.01400018"),
        ({"os": "Ubuntu 22.04", "flavor": "kc1.large.2"}, "CCE.01400018"),
        ({"nodeNicSpec": {"primaryNic": {"subnetId": "other"}}}, "CCE.01400002"),
        ({"flavor": "c6.4xlarge.4"}, "CCE.01400021"),  # abandoned
        ({"flavor": "m6.4xlarge.8"}, "CCE.01400021"),  # for months only
        ({"flavor": "s6.2xlarge.4", "zone": "cn-north-4b"}, "CCE.01400021"),  # sold out in the zone
        ({"flavor": "pi2.2xlarge.4", "extend": {"marketType": "spot"}}, "CCE.01400021"),  # not as Spot
    ],
)
def test_unfit_node_has_a_code_of_its_own(huawei, cce, changes, code):
    """The product treats these cases differently."""
    call = cce_call(cce, "CreateNode", "POST", body=node_body(cce, **changes))
    assert refused(huawei.rest_api(), call) == (code, 400)


def test_complete_node_is_accepted(huawei, cce):
    """Every optional field has a valid value."""
    huawei.nodes.agencies.add("node-agency")
    huawei.nodes.images.add("1a9e0000-0000-4000-8000-000000000001")
    huawei.nodes.server_groups.add("9f0a0000-0000-4000-8000-000000000001")
    extend = {
        "maxPods": 256,
        "alpha.cce/preInstall": "ZWNobyBoZWxsbw==",
        "alpha.cce/postInstall": "",
        "alpha.cce/NodeImageID": "1a9e0000-0000-4000-8000-000000000001",
        "agency_name": "node-agency",
        "serverMetadataHttpTokens": "required",
        "kubeReservedCpu": 500,
        "systemReservedMem": 600,
        "kubeReservedPid": 1000,
    }
    body = node_body(
        cce,
        extend=extend,
        ecsGroupId="9f0a0000-0000-4000-8000-000000000001",
        rootVolume=GPSSD2,
        hostnameConfig={"type": "cceNodeName"},
        initializedConditions=["NodeInitial"],
    )
    node = huawei.rest_api()(cce_call(cce, "CreateNode", "POST", body=body))
    assert node["spec"]["extendParam"] == extend


# --- functions and rights --------------------------------------------------------------------------------------------------


def invocation(cce, urn=URN, body=None):
    """Return an asynchronous invocation."""
    return RestCall(
        service="functiongraph",
        operation="AsyncInvokeFunction",
        method="POST",
        path=f"/v2/{cce.project_id}/fgs/functions/{urn}/invocations-async",
        body={"reason": "sweep"} if body is None else body,
    )


def test_function_is_invoked_by_its_urn(rest_api, cce, huawei):
    """Over HTTP, the SDK percent-encodes the URN."""
    received = []

    def invoke(urn, body):
        if urn != URN:
            raise KeyError(urn)
        received.append(body)
        return "request-1"

    assert refused(rest_api, invocation(cce)) == ("FSS.1051", 404)
    huawei.async_invocations = invoke
    assert rest_api(invocation(cce)) == {"request_id": "request-1"}
    assert received == [{"reason": "sweep"}]
    assert refused(rest_api, invocation(cce, URN.replace("sweep", "other"))) == ("FSS.1051", 404)
    assert refused(rest_api, invocation(cce, body={"text": "x" * 2**18})) == ("FSS.0413", 413)


POLICY = {
    "Version": "1.1",
    "Statement": [
        {"Effect": "Allow", "Action": ["cce:node:create", "cce:node:list"]},
        {
            "Effect": "Allow",
            "Action": ["functiongraph:function:invoke*"],
            "Resource": ["FUNCTIONGRAPH:*:*:function:default/journeyman-*"],
        },
        {"Effect": "Deny", "Action": ["cce:node:list"]},
    ],
}


def test_caller_with_policies_does_only_what_they_allow(huawei, cce):
    """The rights that it needed and used are recorded."""
    huawei.async_invocations = lambda _urn, _body: "request-1"
    huawei.permissions.attach("provision", {"own": POLICY})
    api = huawei.rest_api("provision")
    assert api(cce_call(cce, "CreateNode", "POST", body=node_body(cce)))["metadata"]["uid"]
    assert api(invocation(cce)) == {"request_id": "request-1"}
    assert refused(api, invocation(cce, URN.replace("journeyman", "other"))) == ("FSS.0403", 403)
    assert refused(api, cce_call(cce, "ListNodes")) == ("CCE.01403001", 403)  # a denial wins
    assert refused(api, cce_call(cce, "ShowCluster", path="")) == ("CCE.01403001", 403)
    assert huawei.rest_api()(cce_call(cce, "ListNodes"))["items"]  # the account itself may do everything
    prefix = f"cce:cn-north-4:{huawei.domain_id}"
    assert ("cce:node:create", f"{prefix}:cluster:{cce.cluster_id}") in huawei.permissions.needed["provision"]
    assert {right.action for right in huawei.permissions.used["provision"]} == {
        "cce:node:create",
        "functiongraph:function:invoke*",
    }
    assert [text.split()[1] for text in huawei.permissions.denied] == [
        "functiongraph:function:invokeAsync",
        "cce:node:list",
        "cce:cluster:get",
    ]


def test_policy_of_another_version_is_refused(huawei):
    """Custom policies have version 1.1."""
    with pytest.raises(ConfigurationError, match="version"):
        huawei.permissions.attach("provision", {"own": {"Version": "1", "Statement": []}})


def test_certificate_is_that_of_the_cluster(huawei, cce, rest_api):
    """The kubeconfig has a context for the address inside the VPC, and one for the public address."""
    cluster = huawei.clusters.known[cce.cluster_id]
    cluster.certificate = ClusterCertificate(authority=b"ca", certificate=b"cert", key=b"key")
    cluster.external_endpoint = "https://203.0.113.1:5443"

    def issue(body):
        return rest_api(cce_call(cce, "CreateKubernetesClusterCert", "POST", path="clustercert", body=body))

    config = issue({"duration": 1})
    assert [context["name"] for context in config["contexts"]] == ["internal", "external"]
    assert config["clusters"][0]["cluster"] == {"server": cce.endpoint, "certificate-authority-data": "Y2E="}
    assert json.loads(json.dumps(config["users"]))[0]["user"]["client-key-data"] == "a2V5"
    assert refused(issue, {"duration": 1828}) == ("CCE.01400001", 400)
    assert refused(issue, {}) == ("CCE.01400001", 400)
