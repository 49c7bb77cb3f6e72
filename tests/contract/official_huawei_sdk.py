"""Calls a simulated Huawei Cloud account with the official SDK's generic client, and makes requests that tests can spoil."""

import json
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import ClassVar
from urllib.parse import quote, urlsplit

import pytest
from huaweicloudsdkcore.auth.credentials import BasicCredentials, GlobalCredentials
from huaweicloudsdkcore.client import Client, ClientBuilder
from huaweicloudsdkcore.exceptions.exception_handler import ExceptionHandler
from huaweicloudsdkcore.exceptions.exceptions import SdkException, ServiceResponseException
from huaweicloudsdkcore.http.http_config import HttpConfig
from huaweicloudsdkcore.sdk_request import SdkRequest
from huaweicloudsdkcore.sdk_response import SdkResponse
from huaweicloudsdkcore.signer.signer import Signer

from journeyman.cloud.huawei.rest_api import DOMAIN_SCOPED, RestApiError, RestCall


class Answer(SdkResponse):
    """An answer whose JSON is read, not the SDK's model of it."""

    openapi_types: ClassVar = {}
    attribute_map: ClassVar = {}


class AnyClient(Client):
    """The SDK's client of any service."""

    def __init__(self):
        super().__init__()
        self.model_package = SimpleNamespace(Answer=Answer)


class CompleteErrors(ExceptionHandler):
    """Raises errors with CCE's newer code and its details, both of which the SDK's own handler drops."""

    def handle_exception(self, request, response):
        """Raise RestApiError for an answer that is one."""
        if response.status_code >= 400:
            body = response.json()
            body = body.get("error", body)
            code = next(str(body[key]) for key in ("errorCode", "error_code", "code") if key in body)
            texts = [body.get("errorMessage"), body.get("message") or body.get("error_msg")]
            text = " ".join(dict.fromkeys(each for each in texts if each))
            request_id = response.headers["X-Request-Id"]
            raise RestApiError(code, text, status=response.status_code, request_id=request_id)


def sdk_client(url, account, key, service, *, errors=None, domain_id=None):
    """Return the SDK's client of a service."""
    if service in DOMAIN_SCOPED:
        credentials = GlobalCredentials(key.id, key.secret, account.domain_id if domain_id is None else domain_id)
    else:
        credentials = BasicCredentials(key.id, key.secret, account.project_id)
    if key.security_token:
        credentials.with_security_token(key.security_token)
    builder = ClientBuilder(AnyClient, "BasicCredentials,GlobalCredentials").with_credentials(credentials)
    builder = builder.with_http_config(HttpConfig.get_default_config()).with_endpoint(url)
    return (builder.with_exception_handler(errors) if errors else builder).build()


def sdk_rest_api(url, account, key):
    """Return a `RestApi` that sends requests with the SDK's generic client."""

    def send(call):
        client = sdk_client(url, account, key, call.service, errors=CompleteErrors())
        try:
            response = client.do_http_request(
                method=call.method,
                resource_path=quote(call.path, safe="/"),
                query_params=list(call.query.items()),
                body=None if call.body is None else json.dumps(call.body),
                response_type="Answer",
            )
        except ServiceResponseException as error:  # of status 429, whose body the SDK does not read
            raise RestApiError(error.error_code, error.error_msg, status=error.status_code) from error
        except (SdkException, OSError) as error:  # the connection ended without an answer
            raise RestApiError("", str(error)) from error
        return json.loads(response.raw_content)

    return send


class SignedRequest:
    """A request, signed by the SDK, that a test can change before or after signing."""

    def __init__(self, url, key, call, scope, **headers):
        self.host, self.key, self.method, self.path = urlsplit(url).netloc, key, call.method, call.path
        self.query, self.body = list(call.query.items()), json.dumps(call.body) if call.body else ""
        self.headers = {"Content-Type": "application/json", "User-Agent": "test", **scope, **headers}
        if key.security_token:
            self.headers["X-Security-Token"] = key.security_token
        self.sign()

    def sign(self):
        """Sign the request as it is now."""
        self.headers.pop("Authorization", None)
        request = SdkRequest(
            method=self.method,
            schema="http",
            host=self.host,
            resource_path=self.path,
            query_params=self.query,
            header_params=self.headers,
            body=self.body,
        )
        Signer(SimpleNamespace(ak=self.key.id, sk=self.key.secret)).sign(request)
        self.headers = request.header_params
        return self

    def send(self):
        """Send the request, and return its status and JSON body."""
        connection = HTTPConnection(self.host, timeout=5)
        query = "&".join(f"{name}={quote(str(value), safe='~')}" for name, value in self.query)
        target = f"{quote(self.path, safe='/')}?{query}" if query else quote(self.path, safe="/")
        connection.request(self.method, target, body=self.body.encode(), headers=self.headers)
        answer = connection.getresponse()
        body = json.loads(answer.read())
        connection.close()
        return answer.status, body


def node_body(cce, flavor="c7.large.2", zone="cn-north-4a", name="kp-a1b2", extend=None, **spec):
    """Return a body that CreateNode accepts, with changes of its spec."""
    spaces = [
        {"name": "runtime", "size": "90%", "runtimeConfig": {"lvType": "linear"}},
        {"name": "kubernetes", "size": "10%", "lvmConfig": {"lvType": "linear"}},
    ]
    labels = {"size": "100", "volumeType": "SSD", "count": "1"}
    storage = {
        "storageSelectors": [{"name": "k8s-data", "storageType": "evs", "matchLabels": labels}],
        "storageGroups": [
            {"name": "vgpaas", "cceManaged": True, "selectorNames": ["k8s-data"], "virtualSpaces": spaces}
        ],
    }
    valid = {
        "flavor": flavor,
        "az": zone,
        "os": "Huawei Cloud EulerOS 2.0",
        "count": 1,
        "billingMode": 0,
        "rootVolume": {"size": 40, "volumetype": "SSD"},
        "dataVolumes": [{"size": 100, "volumetype": "SSD"}],
        "storage": storage,
        "login": {"sshKey": cce.key_pair},
        "runtime": {"name": "containerd"},
        "nodeNicSpec": {"primaryNic": {"subnetId": cce.subnets["demo"]}},
        "extendParam": extend or {},
        "k8sTags": {"karpenter.sh/nodepool": "default"},
        "userTags": [{"key": "karpenter-nodepool", "value": "default"}],
        "taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}],
        "offloadNode": True,
    }
    changed = {name: value for name, value in {**valid, **spec}.items() if value is not None}
    return {"kind": "Node", "apiVersion": "v3", "metadata": {"name": name}, "spec": changed}


def cce_call(cce, operation, method="GET", path="nodes", body=None, **query):
    """Return a request about a seeded cluster; `path` follows that of the cluster."""
    whole = f"/api/v3/projects/{cce.project_id}/clusters/{cce.cluster_id}/{path}".rstrip("/")
    return RestCall(service="cce", operation=operation, method=method, path=whole, query=query, body=body)


def project_call(cce, service, operation, path, version="v1", method="GET", body=None, **query):
    """Return a request about a project of the account."""
    whole = f"/{version}/{cce.project_id}/{path}"
    return RestCall(service=service, operation=operation, method=method, path=whole, query=query, body=body)


def refused(call, *arguments, **parameters):
    """Return the code and status of the error of a call."""
    with pytest.raises(RestApiError) as caught:
        call(*arguments, **parameters)
    assert caught.value.message
    return caught.value.code, caught.value.status
