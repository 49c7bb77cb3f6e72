"""Calls a simulated Alibaba Cloud account with the official SDK: the generic client, and the typed client of ECS."""

from alibabacloud_ecs20140526.client import Client as EcsClient
from alibabacloud_tea_openapi.client import Client
from alibabacloud_tea_openapi.utils import Utils
from alibabacloud_tea_openapi.utils_models import Config, OpenApiRequest, Params
from darabonba.exceptions import DaraException, UnretryableException
from darabonba.runtime import RuntimeOptions

from journeyman.cloud.alibaba.open_api import VERSIONS, OpenApiError


def config_of(endpoint, key, **given):
    """Return the SDK's configuration for an endpoint and an access key of the account."""
    return Config(
        **{
            "access_key_id": key.id,
            "access_key_secret": key.secret,
            "security_token": key.security_token or None,
            "region_id": "cn-hangzhou",
            "endpoint": endpoint,
            "protocol": "http",
            **given,
        }
    )


def typed_ecs_client(endpoint, key):
    """Return the SDK's client of ECS, whose requests and answers are models."""
    return EcsClient(config_of(endpoint, key))


def sdk_open_api(endpoint, key, **given):
    """Return an `OpenApi` that sends requests with the SDK's generic client."""
    client = Client(config_of(endpoint, key, **given))

    def send(call):
        params = Params(
            action=call.action,
            version=VERSIONS[call.service],
            protocol="HTTPS",
            pathname=call.path or "/",
            method=call.method,
            auth_type="AK",
            style="ROA" if call.path else "RPC",
            req_body_type="json" if call.path else "formData",
            body_type="string" if call.action == "DescribeClusterAttachScripts" else "json",
        )
        request = OpenApiRequest(query=Utils.query(dict(call.parameters)), body=call.body)
        try:
            return client.call_api(params, request, RuntimeOptions(read_timeout=5000))["body"]
        except DaraException as error:
            status = getattr(error, "status_code", None)
            if not status:
                raise OpenApiError("", str(error)) from error
            raise OpenApiError(error.code, error.message, status=status, request_id=error.request_id or "") from error
        except (OSError, UnretryableException) as error:  # the connection ended without an answer
            raise OpenApiError("", str(error)) from error

    return send
