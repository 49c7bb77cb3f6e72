"""Translate Huawei Cloud's error codes into `journeyman.errors`.

CCE answers with one of two families of codes, `CCE.01400021` and `CCE_CM.0021`; jobs have ECS's codes in their texts. Sources:
CCE, ECS and FunctionGraph API references, "Error codes".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from journeyman.cloud.huawei.rest_api import RestApiError
from journeyman.cloud.huawei.sdk_client import LOCKED, THROTTLED
from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    NodeClaimNotFoundError,
    RateLimitedError,
)

NO_STOCK: Final = "NoStock"
"""The reason of a launch for which the zone has no stock of the instance type; another type or zone may have some."""
NO_ADDRESSES: Final = "NoFreeAddress"
"""The reason of a launch whose subnet has no free address; another subnet may have some."""
NETWORK_UNFIT: Final = "NetworkUnsupported"
"""The reason of a launch whose instance type has no sub-interfaces, which pods of a CCE Turbo cluster need."""
UNFULFILLABLE: Final = frozenset({NO_STOCK, NO_ADDRESSES, NETWORK_UNFIT})
_BUSY_SECONDS: Final = 10
"""When a request is sent again that must wait for another operation, such as the reclaim of a Spot server, which takes minutes."""
NODE_NOT_FOUND: Final = "CCE.01404001"

_NO_STOCK_CODES: Final = frozenset({"CCE_CM.0021", "CCE.01400021", "CCE.01400022", "Ecs.0319"})
_NO_STOCK_TEXTS: Final = (
    "insufficient in specified az", "insufficient capacity", "insufficient flavor capacity", "out of stock", "sold out", "sell out",
    "ecsresourcesinsufficient", "no valid host",
)  # fmt: skip
_NETWORK_CODES: Final = frozenset({"CCE.01400025"})
_NETWORK_TEXT: Final = "eni network is not supported"
_NO_ADDRESS_TEXTS: Final = ("no more ip", "insufficient ip", "ip address is insufficient", "no free ip")
_CODE_IN_TEXT: Final = re.compile(r"\b(?:CCE(?:_CM)?|Ecs|EVS|VPC)\.[0-9]{4,8}\b", re.IGNORECASE)

# code -> (reason, message of the Launched condition)
_LAUNCH_REASONS: Final[dict[str, tuple[str, str]]] = {
    "CCE.01400001": ("InvalidNode", "CCE does not accept the node's settings; see the CCENodeClass"),
    "CCE.01400002": ("SubnetNotInVPC", "the subnet is not in the cluster's VPC; correct subnetSelectorTerms"),
    "CCE.01400008": ("QuotaExceeded", "the quota of ECS servers is used up; request a higher one"),
    "CCE.01400009": ("VCPULimitExceeded", "the vCPU quota is used up; request a higher one"),
    "CCE.01400010": ("QuotaExceeded", "the quota of memory is used up; request a higher one"),
    "CCE.01400011": ("QuotaExceeded", "the quota of security groups is used up; request a higher one"),
    "CCE.01400012": ("QuotaExceeded", "the quota of elastic IPs is used up; request a higher one"),
    "CCE.01400013": ("QuotaExceeded", "the quota of EVS disks is used up; request a higher one"),
    "CCE.01400014": ("ClusterFull", "the cluster can manage no further node; enlarge its scale"),
    "CCE.01400016": ("FlavorUnsupported", "the instance type does not suit the type of the cluster"),
    "CCE.01400017": ("NoContainerCIDR", "the container network has no address block left for another node"),
    "CCE.01400018": ("OSUnsupported", "CCE does not have this operating system; correct imsSelector.imsFamily"),
    "CCE.01400019": ("QuotaExceeded", "a quota of the account is used up; request a higher one"),
    "CCE.01400020": ("VPCInvalid", "the cluster's VPC does not accept nodes"),
    "CCE.01401001": ("Unauthorized", "the access key is not valid; correct the function's agency"),
    "CCE.01403001": ("Unauthorized", "the function's agency lacks a permission"),
    "APIGW.0301": ("Unauthorized", "the access key is not valid; correct the function's agency"),
    "APIGW.0308": ("RequestLimitExceeded", "Huawei Cloud throttles our requests"),
    "CCE.01429002": ("ClusterBusy", "the cluster is busy with another operation"),
    "CCE.01500001": ("InternalError", "CCE had an internal error"),
    "Ecs.0219": ("LaunchFailed", "ECS could not create the server"),
}
_ARREARS_TEXTS: Final = ("arrear", "insufficient balance", "account is frozen", "account is restricted")
_PAY: Final = "the account has an overdue payment; pay it, then launches work again"
_LOCKED: Final = frozenset({LOCKED, "CCE.01409001", "CCE.01409002"})
_EXPIRED: Final = frozenset({"APIGW.0307"})
_UNAUTHENTICATED: Final = frozenset({"APIGW.0301", "CCE.01401001", *_EXPIRED})


@contextmanager
def translated(operation: str, **context: Any) -> Iterator[None]:
    """Translate the errors of one request into `journeyman.errors`, with the original as cause.

    Args:
        operation: The IAM action that the request needs, such as `cce:node:create`, so that a refusal names what to grant.
        context: Values for the log. `code` (the service's error code), `request_id` and `operation` are added.

    Raises:
        NodeClaimNotFoundError: The node does not exist.
        RateLimitedError: Huawei Cloud throttled the request, or is busy with the node or cluster; the next run tries again.
        CloudUnavailableError: It had an internal error or cannot be reached; the next run tries again.
        CloudProviderError: It rejected the request; a retry would also fail.
    """
    try:
        yield
    except RestApiError as error:
        raise _from_response(error, operation, context) from error


@contextmanager
def translated_of_cluster(operation: str, cluster_id: str) -> Iterator[None]:
    """Translate as `translated`, but for a request about a cluster, which may be the one that does not exist."""
    try:
        with translated(operation, cluster=cluster_id):
            yield
    except NodeClaimNotFoundError as error:
        text = f"CCE has no cluster {cluster_id} in this project; correct its registration"
        raise CloudProviderError(text, **error.context) from error


def _from_response(error: RestApiError, operation: str, context: dict[str, Any]) -> CloudProviderError:
    code, text = error.code, error.message
    facts = {"operation": operation, **context, "code": code, "request_id": error.request_id, "cause": text}
    if not error.status:
        return CloudUnavailableError(f"{operation} got no valid response: {text}", **facts)
    if code == NODE_NOT_FOUND:
        return NodeClaimNotFoundError(f"the node does not exist: {text}", **facts)
    if error.status == 409 or code in _LOCKED:
        waits = f"{operation} must wait for another operation: {text}"
        return RateLimitedError(waits, retry_after_seconds=_BUSY_SECONDS, **facts)
    if error.status == 429 or code in THROTTLED:
        return RateLimitedError(f"Huawei Cloud throttles {operation}: {text}", **facts)
    if error.status >= 500:
        return CloudUnavailableError(f"{operation} failed inside Huawei Cloud: {text}", **facts)
    return _refusal(error, operation, facts)


def _refusal(error: RestApiError, operation: str, facts: dict[str, Any]) -> CloudProviderError:
    """Return the error of a request that a repetition does not help, unless only its credentials have expired."""
    code, text = error.code, error.message
    if code in _EXPIRED or (code in _UNAUTHENTICATED and "expire" in text.lower()):
        return CloudUnavailableError(f"the credentials for {operation} have expired: {text}", **facts)
    if error.status == 401 or code in _UNAUTHENTICATED:
        remedy = "correct the function's agency or credentials, or the projectId of the cluster's registration"
        return CloudProviderError(f"the access key for {operation} is not valid there; {remedy} ({text})", **facts)
    if _names_arrears(text):
        return CloudProviderError(f"{operation} was refused: {_PAY} ({text})", **facts)
    if error.status == 403:
        return CloudProviderError(f"not allowed: grant {operation} to the function's agency ({text})", **facts)
    return CloudProviderError(f"{operation} was refused: {code}: {text}", **facts)


def error_code(error: CloudProviderError) -> str:
    """Return the service's error code of a translated error; empty if there was no response."""
    return str(error.context.get("code", ""))


def is_locked(error: CloudProviderError) -> bool:
    """Whether the request must wait for another operation on the node or cluster."""
    return error_code(error) in _LOCKED


def cause_of(error: CloudProviderError) -> str:
    """Return the service's text of a translated error; its message if there is none."""
    return str(error.context.get("cause") or error.message)


def launch_reason(code: str, text: str) -> tuple[str, str]:
    """Return reason and message of the Launched condition for a launch that failed with this code and text.

    A job has no code of its own; its text may hold one.
    """
    codes = {code, *_CODE_IN_TEXT.findall(text)}
    lowered = text.lower()
    if codes & _NETWORK_CODES or _NETWORK_TEXT in lowered:
        return NETWORK_UNFIT, "the instance type has no sub-interfaces for pods of a CCE Turbo cluster"
    if codes & _NO_STOCK_CODES or any(fragment in lowered for fragment in _NO_STOCK_TEXTS):
        return NO_STOCK, "there is no stock of the instance type in the zone"
    if any(fragment in lowered for fragment in _NO_ADDRESS_TEXTS):
        return NO_ADDRESSES, "the subnet has no free IP address left"
    if _names_arrears(text):
        return "AccountInArrears", _PAY
    known = (_LAUNCH_REASONS[each] for each in (code, *sorted(codes)) if each in _LAUNCH_REASONS)
    return next(known, ("LaunchFailed", "the node could not be launched"))


def _names_arrears(text: str) -> bool:
    lowered = text.lower()
    return any(fragment in lowered for fragment in _ARREARS_TEXTS)
