"""The simulated Huawei Cloud services refuse what the real ones refuse: signatures, projects, bodies, rights."""

import json
from datetime import datetime, timedelta, timezone
from urllib.parse import urlsplit

import pytest
from huaweicloudsdkcore.exceptions.exceptions import ServiceResponseException

from journeyman.cloud.huawei.rest_api import RestCall
from journeyman.errors import ConfigurationError
from journeyman.signing import Credentials, escaped_path, escaped_query, huawei_headers, send
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError
from journeyman_simulator.huawei_account.cce_clusters import ClusterCertificate
from tests.contract.crds.rule import with_value
from tests.contract.official_huawei_sdk import (
    SignedRequest,
    cce_call,
    node_body,
    project_call,
    refused,
    sdk_client,
    sdk_rest_api,
)
from tests.helpers.small_clusters import table

DATE = "%Y%m%dT%H%M%SZ"
URN = "urn:fss:cn-north-4:0a1b2c3d4e5f60718293a4b5c6d7e8f9:function:default:journeyman-sweep:latest"


@pytest.fixture
def signed(huawei, cce, huawei_url):
    """Return a function that signs a CreateNode request, and returns it unsent."""

    def sign(key=None, call=None, scope=None, **headers):
        call = call or cce_call(cce, "CreateNode", "POST", body=node_body(cce))
        scope = {"X-Project-Id": huawei.project_id} if scope is None else scope
        return SignedRequest(huawei_url, key or huawei.access_key, call, scope, **headers)

    return sign


# --- signatures ----------------------------------------------------------------------------------------------------------


def shifted(minutes):
    """Return the date of a request that is some minutes off."""
    moment = datetime.now(timezone.utc) + timedelta(minutes=minutes)  # noqa: TID251 - as the SDK does
    return moment.strftime(DATE)


def last_digit_changed(text):
    return text[:-1] + ("0" if text[-1] != "0" else "1")


@table(
    "part", "old", "new",
    body=("body", "c7.large.2", "c9.large.2"),
    path=("path", "nodes", "clustercert"),
    query=("query", "", "nodepoolScaleDown=NoScaleDown"),
    header=("User-Agent", "test", "other"),
    another_key=("Authorization", "Access=HPUA", "Access=XXXX"),
    a_header_less=("Authorization", "x-project-id;", ""),
    no_signature=("Authorization", None, None),
    signature=("Authorization", None, last_digit_changed),
    date=("X-Sdk-Date", None, lambda _: shifted(1)),
)  # fmt: skip
def test_changed_request_is_refused(signed, huawei, part, old, new):
    """It has no effect, and the API gateway's error has a code, a text and the request's id."""
    request = signed()
    if part in ("body", "path"):
        setattr(request, part, getattr(request, part).replace(old, new))
    elif part == "query":
        request.query.append(tuple(new.split("=")))
    elif new is None:
        del request.headers[part]
    else:
        text = request.headers[part]
        request.headers[part] = new(text) if callable(new) else text.replace(old, new)
    status, error = request.send()
    assert (status, error["error_code"]) == (401, "APIGW.0301")
    assert error["error_msg"].startswith("Incorrect IAM authentication information")
    assert huawei.instances.known == {}


@pytest.mark.parametrize(("minutes", "status"), [(-16, 401), (-14, 201), (14, 201), (16, 401)])
def test_date_differs_by_fifteen_minutes_at_most(signed, minutes, status):
    """Earlier and later dates are refused."""
    found, answer = signed(**{"X-Sdk-Date": shifted(minutes)}).send()
    assert (found, answer.get("kind")) == (status, "Node" if status == 201 else None)


def test_temporary_key_needs_its_token(signed, huawei):
    """A permanent key must have none."""
    key = huawei.add_access_key("journeyman-provision", temporary=True)
    assert signed(key).send()[0] == 201
    without, wrong = signed(key), signed(key)
    del without.headers["X-Security-Token"]
    wrong.headers["X-Security-Token"] = "other"
    assert [request.sign().send()[0] for request in (without, wrong)] == [401, 401]
    assert signed(**{"X-Security-Token": "any"}).send()[0] == 401


def test_request_needs_the_project_of_its_path_and_a_json_body(signed):
    """A missing project header is refused, too."""
    for scope in ({}, {"X-Project-Id": "0" * 32}):
        assert signed(scope=scope).send()[0] == 401
    request = signed()
    request.body = "{"
    assert request.sign().send()[0] == 400
    assert signed(**{"Content-Type": "text/plain"}).send()[0] == 400


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


def test_request_must_be_known_and_for_the_callers_project(rest_api, huawei, cce):
    """A wrong path is an error of the caller. An unknown parameter is not simulated, which a test learns at once."""
    call = RestCall(service="vpc", operation="ListSubnets", method="GET", path=f"/v1/{'0' * 32}/subnets")
    assert refused(rest_api, call) == ("APIGW.0301", 401)
    assert refused(huawei.rest_api(), cce_call(cce, "DeleteNode", "GET", path="nodes/x")) == ("APIGW.0101", 404)
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


def creation(huawei, cce, **changes):
    """Return the code and status with which a node is refused."""
    call = cce_call(cce, "CreateNode", "POST", body=node_body(cce, **changes))
    return refused(huawei.rest_api(), call)


@pytest.mark.parametrize("changes", WRONG_SPECS.values(), ids=WRONG_SPECS)
def test_wrong_node_is_refused(huawei, cce, changes):
    """Nothing is created."""
    changes = {"flavor": "c7.large.2", **changes}
    zone = {"zone": changes.pop("az")} if "az" in changes else {}
    assert creation(huawei, cce, **changes, **zone) == ("CCE.01400001", 400)
    assert huawei.instances.known == {}


RUNTIME = {"name": "runtime", "size": "90%", "runtimeConfig": {"lvType": "linear"}}
KUBERNETES = {"name": "kubernetes", "size": "10%", "lvmConfig": {"lvType": "linear"}}
LVM_RUNTIME = {"name": "runtime", "size": "90%", "lvmConfig": {"lvType": "linear"}}


@table(
    "path", "value",
    no_space_for_the_kubelet=("storageGroups.0.virtualSpaces", [RUNTIME]),
    plain_volume_for_the_runtime=("storageGroups.0.virtualSpaces", [LVM_RUNTIME, KUBERNETES]),
    more_space_than_the_disk_has=("storageGroups.0.virtualSpaces", [{**RUNTIME, "size": "95%"}, KUBERNETES]),
    label_as_a_number=("storageSelectors.0.matchLabels.size", 100),
    other_name_of_the_managed_group=("storageGroups.0.name", "pool"),
    unknown_selector=("storageGroups.0.selectorNames", ["other"]),
)  # fmt: skip
def test_wrong_storage_is_refused(huawei, cce, path, value):
    """The storage must fit the disks and itself."""
    storage = node_body(cce)["spec"]["storage"]
    assert storage["storageGroups"][0]["virtualSpaces"] == [RUNTIME, KUBERNETES]
    assert creation(huawei, cce, storage=with_value(storage, path, value)) == ("CCE.01400001", 400)


@pytest.mark.parametrize("name", ["", "A", "1a", "a-", "a_b", "a" * 57])
def test_wrong_name_is_refused(huawei, cce, name):
    """A name has 1 to 56 lower-case letters, digits, dots and hyphens."""
    assert creation(huawei, cce, name=name) == ("CCE.01400001", 400)


@table(
    "changes", "code",
    unknown_system=({"os": "Windows 95"}, "CCE.01400018"),
    system_of_another_architecture=({"os": "Ubuntu 22.04", "flavor": "kc1.large.2"}, "CCE.01400018"),
    unknown_subnet=({"nodeNicSpec": {"primaryNic": {"subnetId": "other"}}}, "CCE.01400002"),
    abandoned_flavor=({"flavor": "c6.4xlarge.4"}, "CCE.01400021"),
    flavor_for_months_only=({"flavor": "m6.4xlarge.8"}, "CCE.01400021"),
    sold_out_in_the_zone=({"flavor": "s6.2xlarge.4", "zone": "cn-north-4b"}, "CCE.01400021"),
    not_as_Spot=({"flavor": "pi2.2xlarge.4", "extend": {"marketType": "spot"}}, "CCE.01400021"),
)  # fmt: skip
def test_unfit_node_has_a_code_of_its_own(huawei, cce, changes, code):
    """The product treats these cases differently."""
    assert creation(huawei, cce, **changes) == (code, 400)


def test_complete_node_is_accepted(huawei, cce):
    """Every optional field has a valid value."""
    image, server_group = "1a9e0000-0000-4000-8000-000000000001", "9f0a0000-0000-4000-8000-000000000001"
    huawei.nodes.agencies.add("node-agency")
    huawei.nodes.images.add(image)
    huawei.nodes.server_groups.add(server_group)
    extend = {"maxPods": 256, "agency_name": "node-agency", "serverMetadataHttpTokens": "required"}
    extend |= {"alpha.cce/preInstall": "ZWNobyBoZWxsbw==", "alpha.cce/postInstall": "", "alpha.cce/NodeImageID": image}
    extend |= {"kubeReservedCpu": 500, "systemReservedMem": 600, "kubeReservedPid": 1000}
    more = {"hostnameConfig": {"type": "cceNodeName"}, "initializedConditions": ["NodeInitial"]}
    body = node_body(cce, extend=extend, ecsGroupId=server_group, rootVolume=GPSSD2, **more)
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
    """The rights that it needed and used are recorded. Custom policies have version 1.1."""
    with pytest.raises(ConfigurationError, match="version"):
        huawei.permissions.attach("provision", {"own": {"Version": "1", "Statement": []}})
    huawei.async_invocations = lambda _urn, _body: "request-1"
    huawei.permissions.attach("provision", {"own": POLICY})
    api = huawei.rest_api("provision")
    assert api(cce_call(cce, "CreateNode", "POST", body=node_body(cce)))["metadata"]["uid"]
    assert api(invocation(cce)) == {"request_id": "request-1"}
    assert refused(api, invocation(cce, URN.replace("journeyman", "other"))) == ("FSS.0403", 403)
    assert refused(api, cce_call(cce, "ListNodes")) == ("CCE.01403001", 403)  # a denial wins
    assert refused(api, cce_call(cce, "ShowCluster", path="")) == ("CCE.01403001", 403)
    assert huawei.rest_api()(cce_call(cce, "ListNodes"))["items"]  # the account itself may do everything
    right = ("cce:node:create", f"cce:cn-north-4:{huawei.domain_id}:cluster:{cce.cluster_id}")
    used, invoke = huawei.permissions.used["provision"], "functiongraph:function:invoke"
    assert right in huawei.permissions.needed["provision"]
    assert {right.action for right in used} == {"cce:node:create", f"{invoke}*"}
    denied = [text.split()[1] for text in huawei.permissions.denied]
    assert denied == [f"{invoke}Async", "cce:node:list", "cce:cluster:get"]


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
