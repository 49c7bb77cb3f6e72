"""The simulated Alibaba Cloud services refuse what the real ones refuse: signatures, actions, and parameters."""

import json
from datetime import datetime, timedelta, timezone
from http.client import HTTPConnection
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from alibabacloud_ecs20140526 import models
from alibabacloud_tea_openapi.utils import Utils

from journeyman.cloud.alibaba.open_api import CS, ECS, RAM, VPC, ApiCall, OpenApiError
from journeyman_simulator.alibaba_account.openapi_parameters import flatten
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError
from tests.contract.official_sdk import sdk_open_api, typed_ecs_client

ZONES = ApiCall(service=ECS, action="DescribeZones", parameters={"RegionId": "cn-hangzhou"})


def code_of(api, call):
    """Return the code and status of a refused call."""
    with pytest.raises(OpenApiError) as caught:
        api(call)
    assert caught.value.message
    return caught.value.code, caught.value.status


class Signed:
    """A signed request that a test can change before or after signing."""

    def __init__(self, key, endpoint, action="DescribeZones", query="RegionId=cn-hangzhou", **headers):
        self.key, self.endpoint, self.query, self.body = key, endpoint, query, b""
        self.headers = {
            "host": endpoint,
            "x-acs-action": action,
            "x-acs-version": "2014-05-26",
            "x-acs-date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),  # noqa: TID251 - as the SDK does
            "x-acs-signature-nonce": f"nonce-{id(self)}",
            "x-acs-content-sha256": Utils.hex_encode(Utils.hash(b"", "ACS3-HMAC-SHA256")),
            **headers,
        }
        self.sign()

    def sign(self):
        """Sign the request as it is now."""

        query = dict(pair.split("=", 1) for pair in self.query.split("&"))
        request = SimpleNamespace(method="POST", pathname="/", headers=self.headers, query=query)
        self.authorization = Utils.get_authorization(
            request, "ACS3-HMAC-SHA256", self.headers["x-acs-content-sha256"], self.key.id, self.key.secret
        )
        return self

    def send(self):
        """Send the request, and return its status and JSON body."""
        connection = HTTPConnection(self.endpoint, timeout=5)
        headers = {**self.headers, **({"Authorization": self.authorization} if self.authorization else {})}
        connection.request("POST", f"/?{self.query}", body=self.body, headers=headers)
        answer = connection.getresponse()
        body = json.loads(answer.read())
        connection.close()
        return answer.status, body


@pytest.fixture
def signed(alibaba, endpoint):
    """Return a function that makes a signed request."""
    return lambda **given: Signed(alibaba.access_key, endpoint, **given)


# --- signatures --------------------------------------------------------------------------------------------------------


def test_signed_request_succeeds_once(signed):
    """A repeated nonce is a replay, and errors have the form of RPC."""
    request = signed()
    assert request.send()[0] == 200
    status, body = request.send()
    assert (status, body["Code"]) == (400, "SignatureNonceUsed")
    assert set(body) == {"RequestId", "HostId", "Code", "Message", "Recommend"}


def test_changed_request_has_a_wrong_signature(signed):
    """A changed query, header or body no longer matches, nor does another secret."""
    query, header, body, unsigned = signed(), signed(), signed(), signed()
    query.query += "&Verbose=true"
    header.headers["x-acs-action"] = "DescribeInstances"
    body.body = b"RegionId=cn-hangzhou"
    unsigned.authorization = ""

    assert [request.send()[1]["Code"] for request in (query, header, body)] == ["SignatureDoesNotMatch"] * 3
    assert unsigned.send()[1]["Code"] == "IncompleteSignature"


def test_request_expires_after_fifteen_minutes(signed):
    """So does one from the future."""
    for minutes in (-16, 16):
        moment = datetime.now(timezone.utc) + timedelta(minutes=minutes)  # noqa: TID251 - as the SDK does
        status, body = signed(**{"x-acs-date": moment.strftime("%Y-%m-%dT%H:%M:%SZ")}).send()
        assert (status, body["Code"]) == (400, "InvalidTimeStamp.Expired")


def test_access_key_identifies_the_caller(alibaba, endpoint):
    """RAM denies by caller, and temporary credentials need their token."""
    reader = alibaba.add_access_key("reader", security_token="token-1")
    alibaba.deny("ecs:DescribeZones", caller="reader")
    own = sdk_open_api(endpoint, alibaba.access_key)

    assert own(ZONES)["Zones"]["Zone"]
    assert code_of(sdk_open_api(endpoint, reader), ZONES) == ("Forbidden.RAM", 403)
    assert code_of(alibaba.open_api("reader"), ZONES) == ("Forbidden.RAM", 403)
    for given, code in (
        ({"access_key_id": "none"}, "InvalidAccessKeyId.NotFound"),
        ({"access_key_secret": "wrong"}, "SignatureDoesNotMatch"),
        ({"security_token": None}, "MissingSecurityToken"),
        ({"security_token": "other"}, "InvalidSecurityToken.Malformed"),
    ):
        assert code_of(sdk_open_api(endpoint, reader, **given), ZONES)[0] == code


# --- actions and parameters --------------------------------------------------------------------------------------------


def refusals():
    """Yield a name, a call, and the expected code and status."""
    region = {"RegionId": "cn-hangzhou"}
    invalid, missing = ("InvalidParameter", 400), ("MissingParameter", 400)
    yield "action", ApiCall(service=ECS, action="LaunchRockets", parameters=region), ("InvalidAction.NotFound", 404)
    yield "service", ApiCall(service=VPC, action="DescribeZones", parameters=region), ("InvalidAction.NotFound", 404)
    yield (
        "method",
        ApiCall(service=CS, action="DescribeClusterDetail", path="/clusters/c1"),
        ("InvalidAction.NotFound", 404),
    )
    yield "region", ApiCall(service=ECS, action="DescribeZones"), missing
    yield (
        "other region",
        ApiCall(service=ECS, action="DescribeZones", parameters={"RegionId": "cn-nowhere"}),
        ("InvalidRegionId.NotFound", 404),
    )
    for name, action, parameters, expected in (
        ("unknown name", "DescribeInstances", {"Tags": "x"}, invalid),
        ("no list", "DescribeInstances", {"Tag": "x"}, invalid),
        ("unknown member", "DescribeInstances", {"Tag": [{"Name": "x"}]}, invalid),
        ("list with a gap", "DescribeInstances", {"Tag": {"2": {"Key": "x"}}}, invalid),
        ("no integer", "DescribeInstances", {"MaxResults": 1.5}, invalid),
        ("out of range", "DescribeInstances", {"MaxResults": 101}, invalid),
        ("no boolean", "DescribeInstances", {"DryRun": 1}, invalid),
        ("no member of an enum", "DescribeInstances", {"Status": "running"}, invalid),
        ("no JSON array", "DescribeInstances", {"InstanceIds": "i-1"}, invalid),
        ("list instead of JSON", "DescribeInstances", {"InstanceIds": ["i-1"]}, invalid),
        ("no time", "DescribeSpotPriceHistory", {"InstanceType": "ecs.g7.large", "NetworkType": "vpc", "StartTime": "x"}, invalid),
        ("missing list", "DeleteInstances", {"Force": True}, missing),
        ("missing member", "TagResources", {"ResourceType": "instance", "ResourceId": ["i-1"], "Tag": [{"Value": "x"}]}, missing),
        ("missing text", "DescribeImageFromFamily", {}, missing),
    ):  # fmt: skip
        yield name, ApiCall(service=ECS, action=action, parameters={**region, **parameters}), expected
    yield "region of types", ApiCall(service=ECS, action="DescribeInstanceTypes", parameters=region), invalid
    yield (
        "page size of vSwitches",
        ApiCall(service=VPC, action="DescribeVSwitches", parameters={**region, "PageSize": 51}),
        invalid,
    )
    for name, body in (("JSON type", {"format_disk": "true"}), ("JSON name", {"formatDisk": True})):
        call = ApiCall(service=CS, action="DescribeClusterAttachScripts", path="/clusters/c1/attachscript", body=body)
        yield name, call, invalid
    yield (
        "unknown cluster",
        ApiCall(service=CS, action="DescribeClusterDetail", method="GET", path="/clusters/c1"),
        ("ErrorClusterNotFound", 404),
    )
    yield (
        "unknown role",
        ApiCall(service=RAM, action="GetRole", parameters={"RoleName": "none"}),
        ("EntityNotExist.Role", 404),
    )


@pytest.mark.parametrize(("call", "expected"), [case[1:] for case in refusals()], ids=[case[0] for case in refusals()])
def test_request_is_refused_for_its(api, call, expected):
    """The code and the HTTP status are the service's."""
    assert code_of(api, call) == expected


def test_known_parameter_that_is_not_simulated_is_an_error_of_its_own(alibaba):
    """It says which one."""
    call = ApiCall(service=ECS, action="RunInstances", parameters={"RegionId": "cn-hangzhou", "HpcClusterId": "x"})
    with pytest.raises(NotSimulatedError, match="HpcClusterId"):
        alibaba.open_api()(call)


def test_parameters_are_flattened_as_by_the_sdk():
    """Missing values vanish."""
    nested = {"A": True, "B": [{"C": 1.5, "D": None}, {"C": b"x"}], "E": {"F": ["x", 2]}, "G": [], "H": None}
    assert flatten(nested) == Utils.query(nested)
    assert flatten(nested) == {"A": "True", "B.1.C": "1.5", "B.2.C": "x", "E.F.1": "x", "E.F.2": "2"}


def test_action_and_parameters_may_be_in_query_or_form(alibaba, endpoint):
    """Signature V2 of older clients puts the action into the query, which the headers' version accompanies."""
    body = b"RegionId=cn-hangzhou"
    request = Signed(alibaba.access_key, endpoint, query="Action=DescribeZones&Version=2014-05-26")
    del request.headers["x-acs-action"], request.headers["x-acs-version"]
    request.body = body
    request.headers["content-type"] = "application/x-www-form-urlencoded"
    request.headers["x-acs-content-sha256"] = Utils.hex_encode(Utils.hash(body, "ACS3-HMAC-SHA256"))

    status, answer = request.sign().send()

    assert (status, len(answer["Zones"]["Zone"])) == (200, 3)


def test_user_data_of_32_kb_fits_into_the_request_line(alibaba, ack, endpoint):
    """The SDK sends all parameters in the query."""
    client = typed_ecs_client(endpoint, alibaba.access_key)
    text = "Y" * 43_688  # base64 of 32,766 bytes
    request = models.RunInstancesRequest(
        region_id="cn-hangzhou",
        instance_type="ecs.g7.large",
        image_id=ack.images["AliyunLinux3"],
        v_switch_id=next(iter(ack.vswitches.values())),
        security_group_ids=[ack.security_group],
        tag=[models.RunInstancesRequestTag(key="a", value=quote("b c/ü~*"))],
        user_data=text,
        system_disk=models.RunInstancesRequestSystemDisk(category="cloud_essd", size="40"),
    )

    launched = client.run_instances(request).body.instance_id_sets.instance_id_set
    described = client.describe_instances(models.DescribeInstancesRequest(region_id="cn-hangzhou", dry_run=False))

    (instance,) = described.body.instances.instance
    assert [instance.instance_id] == launched
    assert instance.tags.tag[0].tag_value == quote("b c/ü~*")
    assert instance.vpc_attributes.private_ip_address.ip_address == ["10.0.0.1"]


def test_typed_client_of_the_sdk_provisions_a_group(alibaba, ack, endpoint):
    """ResourcePoolOptions travels as one JSON text."""
    client = typed_ecs_client(endpoint, alibaba.access_key)
    config = models.CreateAutoProvisioningGroupRequestLaunchTemplateConfig
    request = models.CreateAutoProvisioningGroupRequest(
        region_id="cn-hangzhou",
        auto_provisioning_group_type="instant",
        total_target_capacity="1",
        pay_as_you_go_target_capacity="1",
        spot_target_capacity="0",
        resource_pool_options=models.CreateAutoProvisioningGroupRequestResourcePoolOptions(strategy="PublicPoolOnly"),
        launch_configuration=models.CreateAutoProvisioningGroupRequestLaunchConfiguration(
            image_id=ack.images["AliyunLinux3"], security_group_ids=[ack.security_group], password_inherit=True
        ),
        launch_template_config=[
            config(instance_type="ecs.g7.large", v_switch_id=vswitch, weighted_capacity=1.0, max_price=2.5)
            for vswitch in ack.vswitches.values()
        ],
    )

    (result,) = client.create_auto_provisioning_group(request).body.launch_results.launch_result

    assert (result.instance_type, result.amount, len(result.instance_ids.instance_id)) == ("ecs.g7.large", 1, 1)
