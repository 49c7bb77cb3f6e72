"""Translate Huawei Cloud's error codes into `journeyman.errors`.

CCE answers with one of two families of codes, `CCE.01400021` and `CCE_CM.0021`; jobs have ECS's codes in their texts. Sources:
CCE, ECS and FunctionGraph API references, "Error codes".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from journeyman.cloud.fault_rules import FaultRule
from journeyman.cloud.huawei.rest_api import RestApiError
from journeyman.cloud.huawei.sdk_client import LOCKED, THROTTLED
from journeyman.core.api.launch_faults import FaultScope
from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    NodeClaimNotFoundError,
    RateLimitedError,
)

_BUSY_SECONDS: Final = 10
"""When a request is sent again that must wait for another operation, such as the reclaim of a Spot server, which takes minutes."""
NODE_NOT_FOUND: Final = "CCE.01404001"

_DENIED: Final = re.compile(r"doesn't allow ([a-z]+:[A-Za-z]+:[A-Za-z]+) to be performed")
_CODE_IN_TEXT: Final = re.compile(r"\b(?:CCE(?:_CM)?|Ecs|EVS|VPC)\.[0-9]{4,8}\b", re.IGNORECASE)

_OFFERING, _CLASS, _POOL = FaultScope.OFFERING, FaultScope.NODE_CLASS, FaultScope.NODE_POOL
_SUBNET, _ACCOUNT = FaultScope.SUBNET, FaultScope.ACCOUNT
_QUOTA: Final = "Request a higher one in the console, My Quotas"
_MORE_TYPES: Final = (
    "Allow more instance types, zones or capacity types in the NodePool's spec.template.spec.requirements"
)
_WAIT: Final = "Nothing; the launch is repeated"
_PAY: Final = "the account has an overdue payment; pay it, then launches work again"


def _rule(
    scope: FaultScope | None, reason: str, meaning: str, remedy: str, *, node_class_only: bool = False
) -> FaultRule:
    return FaultRule(scope=scope, reason=reason, meaning=meaning, remedy=remedy, node_class_only=node_class_only)


_NO_STOCK: Final = _rule(_OFFERING, "NoStock", "there is no stock of the instance type in the zone", _MORE_TYPES)
_NO_DISK: Final = _rule(
    _OFFERING, "VolumeTypeUnavailable", "the zone has no disks of the CCENodeClass's type for the instance type",
    "Change volumeType of the disks in the CCENodeClass, such as to SSD or GPSSD", node_class_only=True,
)  # fmt: skip
_NO_NETWORK: Final = _rule(
    _OFFERING, "NetworkUnsupported", "the instance type has no sub-interfaces for pods of a CCE Turbo cluster", _MORE_TYPES
)  # fmt: skip
_NO_ADDRESS: Final = _rule(
    _SUBNET, "NoFreeAddress", "the subnet has no free IP address left",
    "Add a subnet to spec.subnetSelectorTerms of the CCENodeClass, or free addresses",
)  # fmt: skip
_IN_ARREARS: Final = _rule(_ACCOUNT, "AccountInArrears", _PAY, "Pay it in the console, Billing Center")
_UNKNOWN: Final = _rule(
    _POOL, "LaunchFailed", "the node could not be launched", "Read the message, and correct the NodePool or its CCENodeClass"
)  # fmt: skip
_RULES_BY_CODE: Final[Mapping[str, FaultRule]] = {
    "CCE_CM.0021": _NO_STOCK,
    "CCE.01400021": _NO_STOCK,
    "Ecs.0319": _NO_STOCK,
    "CCE.01400022": _NO_DISK,
    "CCE.01400025": _NO_NETWORK,
    "CCE.01400001": _rule(_CLASS, "InvalidNode", "CCE does not accept the node's settings", "Correct the CCENodeClass as the message says"),
    "CCE.01400002": _rule(_CLASS, "SubnetNotInVPC", "the subnet is not in the cluster's VPC", "Correct spec.subnetSelectorTerms of the CCENodeClass"),
    "CCE.01400008": _rule(_ACCOUNT, "QuotaExceeded", "the quota of ECS servers is used up", _QUOTA),
    "CCE.01400009": _rule(_ACCOUNT, "VCPULimitExceeded", "the vCPU quota is used up", _QUOTA),
    "CCE.01400010": _rule(_ACCOUNT, "QuotaExceeded", "the quota of memory is used up", _QUOTA),
    "CCE.01400011": _rule(_ACCOUNT, "QuotaExceeded", "the quota of security groups is used up", _QUOTA),
    "CCE.01400012": _rule(_CLASS, "QuotaExceeded", "the quota of elastic IPs is used up", f"{_QUOTA}, or launch nodes without elastic IPs"),
    "CCE.01400013": _rule(_CLASS, "QuotaExceeded", "the quota of EVS disks is used up", f"{_QUOTA}, or lower the disks of the CCENodeClass"),
    "CCE.01400014": _rule(_ACCOUNT, "ClusterFull", "the cluster can manage no further node", "Enlarge its scale in the console, Cloud Container Engine, or with ResizeCluster"),
    "CCE.01400016": _rule(_OFFERING, "FlavorUnsupported", "the instance type does not suit the type of the cluster", _MORE_TYPES),
    "CCE.01400017": _rule(_ACCOUNT, "NoContainerCIDR", "the container network has no address block left for another node", "Add a container CIDR block to the cluster, in the console, Cloud Container Engine, Settings, Network"),
    "CCE.01400018": _rule(_CLASS, "OSUnsupported", "CCE does not have this operating system", "Correct spec.imsSelector.imsFamily of the CCENodeClass"),
    "CCE.01400019": _rule(_ACCOUNT, "QuotaExceeded", "a quota of the account is used up", _QUOTA),
    "CCE.01400020": _rule(_ACCOUNT, "VPCInvalid", "the cluster's VPC does not accept nodes", "Correct the cluster's VPC and its subnets"),
    "CCE.01401001": _rule(_ACCOUNT, "Unauthorized", "the access key is not valid", "Correct the function's agency"),
    "CCE.01403001": _rule(_CLASS, "Unauthorized", "the function's agency lacks a permission", "Grant cce:node:create, and what the message names, to the function's agency"),
    "APIGW.0301": _rule(_ACCOUNT, "Unauthorized", "the access key is not valid", "Correct the function's agency"),
    "APIGW.0308": _rule(None, "RequestLimitExceeded", "Huawei Cloud throttles our requests", _WAIT),
    "CCE.02429001": _rule(None, "RequestLimitExceeded", "Huawei Cloud throttles our requests", _WAIT),
    "CCE.01409001": _rule(None, "ClusterBusy", "the cluster is busy with another operation", _WAIT),
    "CCE.01409002": _rule(None, "ClusterBusy", "the cluster is busy with another operation", _WAIT),
    "CCE.01429002": _rule(None, "ClusterBusy", "the cluster is busy with another operation", _WAIT),
    "CCE.01500001": _rule(None, "InternalError", "CCE had an internal error", _WAIT),
    "Ecs.0219": _rule(_POOL, "LaunchFailed", "ECS could not create the server", "Read the job's message, and correct the CCENodeClass or the NodePool's requirements"),
}  # fmt: skip
_RULES_BY_TEXT: Final[tuple[tuple[str, FaultRule], ...]] = (
    ("eni network is not supported", _NO_NETWORK),
    *(
        (fragment, _NO_STOCK)
        for fragment in (
            "insufficient in specified az", "insufficient capacity", "insufficient flavor capacity", "out of stock", "sold out",
            "sell out", "ecsresourcesinsufficient", "no valid host",
        )
    ),
    *((f, _NO_ADDRESS) for f in ("no more ip", "insufficient ip", "ip address is insufficient", "no free ip")),
    ("kms", _rule(_CLASS, "KMSKeyInvalid", "the KMS key of a disk cannot be used", "Enable the key, or correct the encryption of the CCENodeClass's disks")),
    ("volume quota", _rule(_CLASS, "QuotaExceeded", "the quota of EVS disks is used up", f"{_QUOTA}, or lower the disks of the CCENodeClass")),
    ("image not found", _rule(_CLASS, "ImageNotFound", "the image does not exist", "Correct spec.imsSelector of the CCENodeClass")),
    ("imageid", _rule(_CLASS, "ImageNotFound", "the image cannot be used", "Correct spec.imsSelector of the CCENodeClass")),
)  # fmt: skip
"""What texts without a code say, in lower case; jobs have ECS's texts."""
_ARREARS_TEXTS: Final = ("arrear", "insufficient balance", "account is frozen", "account is restricted")
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
        denied = _DENIED.search(text)  # a request may need further rights
        operation = denied[1] if denied else operation
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


def launch_rule(code: str, text: str) -> FaultRule:
    """Return whose fault a launch is that failed with this code and text, and what to do.

    A job has no code of its own; its text may hold one. The network and stock come first, then the rest.
    """
    codes = (code, *sorted(set(_CODE_IN_TEXT.findall(text))))
    lowered = text.lower()
    by_code = [_RULES_BY_CODE[each] for each in codes if each in _RULES_BY_CODE]
    by_text = [rule for fragment, rule in _RULES_BY_TEXT if fragment in lowered]
    if _names_arrears(text):
        by_text.append(_IN_ARREARS)
    found = [*by_code, *by_text]
    decisive = (
        rule
        for first in (_NO_NETWORK, _NO_STOCK, _NO_DISK, _NO_ADDRESS, _IN_ARREARS)
        for rule in found
        if rule == first
    )
    return next(decisive, found[0] if found else _UNKNOWN)


def _names_arrears(text: str) -> bool:
    lowered = text.lower()
    return any(fragment in lowered for fragment in _ARREARS_TEXTS)
