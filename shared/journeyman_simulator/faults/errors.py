"""What a caller sees when a call goes wrong: ours for the API server (above its transport), botocore's for AWS."""

from __future__ import annotations

from typing import Final

from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from journeyman.errors import KubeAPIError, KubeUnavailableError, TooManyRequestsError
from journeyman_simulator.faults.story import Kind

_THROTTLED: Final = {"ec2": "RequestLimitExceeded"}  # EC2 has a word of its own; the others say ThrottlingException
_UNANSWERED: Final = {
    Kind.FAIL_BEFORE: "the connection was refused",
    Kind.FAIL_AFTER: "the connection broke before the answer",
    Kind.TIMEOUT_BEFORE: "no answer in time",
    Kind.TIMEOUT_AFTER: "no answer in time",
}


def kube_error(kind: Kind, site: str) -> KubeAPIError:
    """As `kube.http_store` raises it after its own retries."""
    if kind is Kind.THROTTLE:
        return TooManyRequestsError("the server has asked us to wait", status=429, reason="TooManyRequests", call=site)
    return KubeUnavailableError(_UNANSWERED[kind], call=site)


def aws_error(kind: Kind, service: str, operation: str) -> Exception:
    """As botocore raises it after its own retries."""
    url = f"https://{service}.us-east-1.amazonaws.com/"
    if kind is Kind.FAIL_AFTER:
        return ConnectionClosedError(endpoint_url=url)
    if kind in {Kind.TIMEOUT_BEFORE, Kind.TIMEOUT_AFTER}:
        return ReadTimeoutError(endpoint_url=url)
    if kind is Kind.THROTTLE:
        return _refused(_THROTTLED.get(service, "ThrottlingException"), "Request limit exceeded.", 503, operation)
    return _refused("InternalError", "An internal error has occurred", 500, operation)


def _refused(code: str, message: str, status: int, operation: str) -> ClientError:
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, operation)  # type: ignore[arg-type]  # the stubs ask for headers, too
