"""Lists the operations of Huawei Cloud that the account has: their paths, query parameters, IAM actions and statuses.

One table serves requests in this process and over HTTP. All services share one address, since their paths do not collide.

Restates: the API references of the services, and their pages "Actions supported by policy-based authorization".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final

from msgspec import Struct, field

from journeyman.cloud.huawei.rest_api import BSS, CCE, ECS, FUNCTIONGRAPH, VPC
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError
from journeyman_simulator.huawei_account.rest_errors import invalid_request, no_such_api

JSON = Mapping[str, Any]


class WholeNumber(Struct, frozen=True):
    """A query parameter that is a whole number within bounds."""

    least: int
    most: int


class RestOperation(Struct, frozen=True, kw_only=True):
    """An operation of a service.

    Attributes:
        service: The service, as in `RestCall`.
        name: The name of the operation in the API reference.
        method: The HTTP method.
        path: The path, with names in braces.
        query: The query parameters; None for one that is a text.
        action: The IAM action that it needs; "" if every user of the account may call it.
        resource: The type and name of the resource that the action is on, with names in braces.
        status: The HTTP status of success.
    """

    service: str
    name: str
    method: str
    path: str
    query: Mapping[str, WholeNumber | None] = field(default_factory=dict)
    action: str
    resource: str = ""
    status: int = 200

    @property
    def qualified_name(self) -> str:
        """Return the service and the name: "cce CreateNode"."""
        return f"{self.service} {self.name}"


class RestRequest(Struct, frozen=True, kw_only=True):
    """A checked request. ListNodes and ECS's lists of servers return the account's state at `as_of`."""

    path: Mapping[str, str]
    query: JSON
    body: Any
    as_of: datetime
    caller: str

    def text(self, name: str) -> str:
        """Return a query parameter that is a text; "" if the request lacks it."""
        return str(self.query.get(name, ""))


OperationHandlers = Mapping[str, Callable[[RestRequest], Any]]
"""Handlers by the name of the operation. A handler raises ServiceError if the service rejects the request."""

_CLUSTER: Final = "/api/v3/projects/{project_id}/clusters/{cluster_id}"
_NODE: Final = f"{_CLUSTER}/nodes/{{node_id}}"
_SERVERS: Final = "/v1/{project_id}/cloudservers"
_ON_CLUSTER: Final = "cluster:{cluster_id}"

OPERATIONS: Final = (
    RestOperation(
        service=CCE,
        name="CreateNode",
        method="POST",
        path=f"{_CLUSTER}/nodes",
        action="cce:node:create",
        resource=_ON_CLUSTER,
        status=201,
    ),
    RestOperation(
        service=CCE,
        name="ListNodes",
        method="GET",
        path=f"{_CLUSTER}/nodes",
        query={"limit": WholeNumber(1, 2000), "marker": None},
        action="cce:node:list",
        resource=_ON_CLUSTER,
    ),
    RestOperation(service=CCE, name="ShowNode", method="GET", path=_NODE, action="cce:node:get", resource=_ON_CLUSTER),
    RestOperation(
        service=CCE,
        name="DeleteNode",
        method="DELETE",
        path=_NODE,
        query={"nodepoolScaleDown": None},
        action="cce:node:delete",
        resource=_ON_CLUSTER,
    ),
    RestOperation(
        service=CCE,
        name="ShowJob",
        method="GET",
        path="/api/v3/projects/{project_id}/jobs/{job_id}",
        action="cce:job:get",
        resource="job:{job_id}",
    ),
    RestOperation(
        service=CCE, name="ShowCluster", method="GET", path=_CLUSTER, action="cce:cluster:get", resource=_ON_CLUSTER
    ),
    RestOperation(
        service=CCE,
        name="CreateKubernetesClusterCert",
        method="POST",
        path=f"{_CLUSTER}/clustercert",
        action="cce:cluster:generateClientCredential",
        resource=_ON_CLUSTER,
    ),
    RestOperation(
        service=ECS,
        name="ListFlavors",
        method="GET",
        path=f"{_SERVERS}/flavors",
        query={"limit": WholeNumber(1, 1000), "marker": None, "availability_zone": None, "flavor_id": None},
        action="ecs:cloudServerFlavors:get",
    ),
    RestOperation(
        service=ECS,
        name="ListFlavorSellPolicies",
        method="GET",
        path=f"{_SERVERS}/flavor-sell-policies",
        query={
            "limit": WholeNumber(1, 1000),
            "marker": None,
            "flavor_id": None,
            "sell_mode": None,
            "sell_status": None,
            "availability_zone_id": None,
            "interruption_policy": None,
        },
        action="ecs:cloudServerFlavors:get",
    ),
    RestOperation(
        service=ECS,
        name="ListServerAzInfo",
        method="GET",
        path="/v1/{project_id}/availability-zones",
        action="ecs:cloudServers:list",
    ),
    RestOperation(
        service=ECS,
        name="ListServersDetails",
        method="GET",
        path=f"{_SERVERS}/detail",
        query={
            "limit": WholeNumber(1, 1000),
            "offset": WholeNumber(1, 10**6),
            "tags": None,
            "server_id": None,
            "status": None,
            "name": None,
        },
        action="ecs:cloudServers:list",
    ),
    RestOperation(
        service=ECS,
        name="ListScheduledEvents",
        method="GET",
        path="/v3/{project_id}/instance-scheduled-events",
        query={
            "limit": WholeNumber(1, 100),
            **dict.fromkeys(("marker", "id", "instance_id", "type", "state", "publish_since", "publish_until")),
        },
        action="ecs:instanceScheduledEvents:list",
    ),
    RestOperation(
        service=VPC,
        name="ListSubnets",
        method="GET",
        path="/v1/{project_id}/subnets",
        query={"limit": WholeNumber(0, 2000), "marker": None, "vpc_id": None},
        action="vpc:subnets:get",
    ),
    RestOperation(
        service=BSS,
        name="ListOnDemandResourceRatings",
        method="POST",
        path="/v2/bills/ratings/on-demand-resources",
        action="",  # without bss:discount:view, the answer has no discounts
    ),
    RestOperation(
        service=FUNCTIONGRAPH,
        name="AsyncInvokeFunction",
        method="POST",
        path="/v2/{project_id}/fgs/functions/{function_urn}/invocations-async",
        action="functiongraph:function:invokeAsync",
        resource="function:{function}",
        status=202,
    ),
)


def operation_at(method: str, path: str) -> tuple[RestOperation, dict[str, str]]:
    """Return the operation of a method and an unescaped path, and the names in the path. Raises ServiceError."""
    for operation in OPERATIONS:
        if operation.method == method and (matched := _pattern(operation.path).fullmatch(path)):
            return operation, matched.groupdict()
    raise no_such_api(method, path)


def checked_query(operation: RestOperation, query: Mapping[str, str | int]) -> dict[str, Any]:
    """Return the query's parameters in their types.

    Raises:
        ServiceError: The service does not accept a value.
        NotSimulatedError: The simulation does not know a parameter.
    """
    return {name: _checked(operation, name, str(value)) for name, value in query.items()}


def _checked(operation: RestOperation, name: str, value: str) -> str | int:
    if name not in operation.query:
        raise NotSimulatedError(f"the simulation does not know the parameter {name} of {operation.name}")
    bounds = operation.query[name]
    if bounds is None:
        return value
    if not re.fullmatch(r"\d{1,9}", value) or not bounds.least <= int(value) <= bounds.most:
        message = f"{name} must be a whole number from {bounds.least} to {bounds.most}, not {value!r}"
        raise invalid_request(operation.service, message)
    return int(value)


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))
