"""Defines the HTTP status and the body of each error of Huawei Cloud's services, and the errors that several services return.

A handler raises `cloud_rules.service_errors.ServiceError`; each transport converts it to the form that its callers expect.

Restates: API references of CCE, ECS, VPC, FunctionGraph and BSS, "Error codes"; API Gateway, "Error codes". The codes of ECS and
FunctionGraph for a missing right, and the code for a subnet without free addresses, are not documented; they are assumptions.
"""

from __future__ import annotations

import re
from typing import Any, Final

from journeyman.cloud.huawei.rest_api import BSS, CCE, ECS, FUNCTIONGRAPH, VPC
from journeyman_simulator.cloud_rules.service_errors import ServiceError

INVALID_NODE: Final = "CCE.01400001"
SUBNET_NOT_IN_VPC: Final = "CCE.01400002"
NO_STOCK: Final = "CCE.01400021"
NOT_FOUND: Final = "CCE.01404001"
LOCKED: Final = "CCE.01429002"

_STATUS: Final = {
    "APIGW.0101": 404,
    "APIGW.0301": 401,
    "APIGW.0308": 429,
    "CBC.0151": 403,
    "Ecs.0114": 404,
    "FSS.0403": 403,
    "FSS.0413": 413,
    "FSS.1051": 404,
    "NotSimulated": 501,
    "VPC.2201": 403,
}
_STATUS_IN_CODE: Final = re.compile(r"CCE\.\d\d([45]\d\d)\d{3}")
_TEXTS: Final = {
    INVALID_NODE: "Invalid request.",
    SUBNET_NOT_IN_VPC: "Subnet not found in the VPC.",
    "CCE.01400008": "Insufficient server quota.",
    "CCE.01400009": "Insufficient CPU quota.",
    "CCE.01400010": "Insufficient memory quota.",
    "CCE.01400013": "Insufficient volume quota.",
    "CCE.01400014": "Cluster scale exceeded.",
    "CCE.01400016": "Flavor not supported for the cluster type.",
    "CCE.01400018": "OS not supported.",
    NO_STOCK: "No available flavors for nodes.",
    "CCE.01400025": "Eni network is not supported.",
    "CCE.01401001": "Authorization failed.",
    "CCE.01403001": "Forbidden.",
    NOT_FOUND: "Resource not found.",
    LOCKED: "Resource locked when other operations are in progress.",
    "CCE.01500001": "Internal error.",
}
"""CCE's `errorMessage` by code; `message` has the details of the case."""
_OTHER_FAMILY: Final = {
    INVALID_NODE: ("CCE_CM.0004", "Request is invalid"),
    NO_STOCK: ("CCE_CM.0021", "flavor is insufficient in specified az"),
    NOT_FOUND: ("CCE_CM.0003", "Resource not found"),
}
"""The code and text of CCE's older family, which some answers have beside the newer one."""
_REASONS: Final = {400: "BadRequest", 403: "Forbidden", 404: "NotFound", 429: "TooManyRequests"}
_INVALID: Final = {CCE: INVALID_NODE, ECS: "Ecs.0005", VPC: "VPC.0201", BSS: "CBC.0100", FUNCTIONGRAPH: "FSS.1006"}
_DENIED: Final = {CCE: "CCE.01403001", ECS: "403", VPC: "VPC.2201", BSS: "CBC.0151", FUNCTIONGRAPH: "FSS.0403"}


def status_of(code: str) -> int:
    """Return the HTTP status of an error code."""
    if matched := _STATUS_IN_CODE.fullmatch(code):
        return int(matched[1])
    return _STATUS.get(code) or (int(code) if re.fullmatch(r"[45]\d\d", code) else 400)


def error_text(error: ServiceError) -> str:
    """Return what an error says: CCE's text for the code, and then the details of the case."""
    general = _TEXTS.get(error.code, "")
    return f"{general} {error.message}".strip()


def error_body(service: str, error: ServiceError, request_id: str) -> dict[str, Any]:
    """Return the body of an error, which has one form in each service."""
    code, message = error.code, error.message
    if code.startswith(("APIGW.", "NotSimulated")):
        return {"error_code": code, "error_msg": message, "request_id": request_id}
    if service == CCE:
        return _cce_body(code, message)
    if service == ECS:
        return {"error": {"code": code, "message": message}}
    if service == VPC:
        return {"code": code, "message": message}
    return {"error_code": code, "error_msg": message}


def _cce_body(code: str, message: str) -> dict[str, Any]:
    """Return the body of a CCE error: always with `errorCode`, and with `error_code` where an older code exists."""
    status = status_of(code)
    body: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "code": status,
        "errorCode": code,
        "errorMessage": _TEXTS.get(code, message),
        "reason": _REASONS.get(status, "InternalError"),
        "message": message,
    }
    if code in _OTHER_FAMILY:
        body["error_code"], body["error_msg"] = _OTHER_FAMILY[code]
    return body


def invalid_request(service: str, message: str) -> ServiceError:
    """Return the error for a request that a service does not accept."""
    return ServiceError(_INVALID[service], message)


def invalid_node(message: str) -> ServiceError:
    """Return the error for a CreateNode body that CCE does not accept."""
    return ServiceError(INVALID_NODE, message)


def not_allowed(service: str, action: str) -> ServiceError:
    """Return the error for an action ("cce:node:create") that IAM does not allow the caller."""
    return ServiceError(_DENIED[service], f"Policy doesn't allow {action} to be performed.")


def unauthenticated(reason: str) -> ServiceError:
    """Return the API gateway's error for a request whose signature, key, token, date or project is not valid."""
    return ServiceError("APIGW.0301", f"Incorrect IAM authentication information: {reason}")


def no_such_api(method: str, path: str) -> ServiceError:
    """Return the API gateway's error for a path that no service has."""
    message = f"The API does not exist or has not been published in the environment: {method} {path}"
    return ServiceError("APIGW.0101", message)


def throttled() -> ServiceError:
    """Return the API gateway's error for too many requests."""
    message = "The throttling threshold has been reached: policy user over ratelimit, time:1 minute."
    return ServiceError("APIGW.0308", message)


def resource_not_found(kind: str, name: str) -> ServiceError:
    """Return CCE's error for a cluster, node or job that does not exist."""
    return ServiceError(NOT_FOUND, f"{kind} {name} not found")


def server_not_found(server_id: str) -> ServiceError:
    """Return ECS's error for a server that does not exist."""
    return ServiceError("Ecs.0114", f"Instance [{server_id}] could not be found.")


def no_stock(flavor: str, zone: str) -> ServiceError:
    """Return CCE's error for a flavor that a zone has no stock of."""
    message = f"[{flavor}|{zone}] flavor is insufficient in specified az, reason: ECSResourcesInsufficient"
    return ServiceError(NO_STOCK, message)


def no_free_address(network_id: str) -> ServiceError:
    """Return CCE's error for a subnet whose addresses are all in use."""
    return invalid_node(f"No more IP addresses available on network {network_id}.")
